package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/node"
)

// This file has the helpers of the commands for a running hub.

const (
	defaultAdmin = "127.0.0.1:9090"
	maxInput     = 16 << 20
	tokenEnv     = "PARLEY_TOKEN"
)

// hub gives a client of the running hub. Its address is that of --admin, or the one
// that the hub announced in the data directory; its token is PARLEY_TOKEN, or the
// one that the hub made for commands on its machine.
func (a *app) hub() (*admin.Client, error) {
	c, err := a.located(a.data != "" || a.admin != "" && os.Getenv(tokenEnv) != "")
	if err != nil {
		return nil, err
	}
	at, err := announced(c.Data)
	if err != nil {
		return nil, err
	}
	base := cmp.Or(a.admin, at.Admin, c.Listen.Admin, defaultAdmin)
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	client := &admin.Client{Base: base, Token: cmp.Or(os.Getenv(tokenEnv), at.Token)}
	switch {
	case client.Token != "":
		return client, nil
	case at.Admin != "":
		return nil, usage("the hub on the data directory %s has an earlier version and made no token for commands\n"+
			"        restart it with this version, or set %s", c.Data, tokenEnv)
	case a.admin != "":
		return nil, usage("no token for the hub at %s\n        set %s; for a hub on this machine name its data "+
			"directory with --data (no hub runs on %s)", base, tokenEnv, c.Data)
	}
	return nil, &exitError{exitUnreachable, fmt.Errorf("no hub runs on the data directory %s\n        start one with "+
		"`parley serve --data %[1]s`, or name the data directory of a running hub with --data", c.Data)}
}

// withHub makes the RunE of a command for a running hub. An error of the hub gets its
// exit code and advice: see hubError.
func (a *app) withHub(run func(context.Context, *admin.Client, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		hub, err := a.hub()
		if err != nil {
			return err
		}
		return a.hubError(run(cmd.Context(), hub, args))
	}
}

// announced is the announcement of the hub that runs on a data directory; empty if no hub
// runs.
func announced(dir string) (node.Announcement, error) {
	at, err := node.ReadAnnouncement(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return at, &exitError{exitUsage, err}
	}
	return at, nil
}

// hubError gives an error of the hub its exit code and advice. Where names the
// command that lists the valid names, for a name that the hub does not know.
func (a *app) hubError(err error, where ...string) error {
	var done *exitError
	var away *admin.UnreachableError
	var e *parley.Error
	switch {
	case err == nil || errors.As(err, &done):
		return err
	case errors.As(err, &away):
		base := strings.TrimPrefix(away.Base, "http://")
		return &exitError{exitUnreachable, fmt.Errorf("no hub answers at %s (%v)\n        start a hub with `parley "+
			"serve`, or name another one with --admin or --data", base, away.Err)}
	case errors.Is(err, admin.ErrToken):
		why := "the hub does not know this token"
		if errors.As(err, &e) {
			why = clean(e.Text)
		}
		return &exitError{exitRefused, fmt.Errorf("%s\n        set %s to a token of that hub; on its machine unset "+
			"%[2]s and name its data directory with --data", why, tokenEnv)}
	case errors.As(err, &e):
		err := problemError(problemIn(e), fmt.Sprintf("%s: %s", e.Code, clean(e.Text)))
		if e.Code == "not_found" && len(where) > 0 {
			err = fmt.Errorf("%w\n        %s", err, strings.Join(where, "; "))
		}
		return &exitError{exitRefused, err}
	}
	return err
}

// problemIn is an error of the admin API as a problem, with advice.
func problemIn(e *parley.Error) *admin.Problem {
	p := &admin.Problem{Code: e.Code, Text: e.Text, Ref: e.Ref, Source: e.Source, Reason: e.Reason, Detail: e.Detail}
	says := strings.HasPrefix(e.Text, "the configuration ") || strings.HasPrefix(e.Text, "keyring: ") ||
		strings.HasSuffix(e.Text, "then parley config reload")
	if !says { // what to do
		p.Advice = admin.Advise(*p, admin.At{Protocol: "api"})
	}
	return p
}

// problemError is a problem as a text for people: what happened, and below it the advice
// and the command that explains it.
func problemError(p *admin.Problem, what string) error {
	if p.Advice != "" {
		what += "\n        " + p.Advice
	}
	if p.Ref != "" {
		what += "\n        parley explain " + clean(p.Ref)
	}
	return errors.New(what)
}

// content reads the content to send: the argument itself, "@FILE" or "-" for the
// standard input. isJSON reports whether it is valid JSON by the strict rules.
func (a *app) content(arg string) (raw []byte, isJSON bool, err error) {
	if raw, err = a.input(arg); err != nil {
		return nil, false, err
	}
	return raw, len(bytes.TrimSpace(raw)) > 0 && jsonx.Valid(raw, 0) == nil, nil
}

// argument is the one optional argument of a command, "" if there is none.
func argument(args []string) string { return strings.Join(args, "") }

// fileArg is the optional argument FILE|- in the form of input; none: the standard input.
func fileArg(args []string) string {
	if len(args) == 0 || args[0] == "-" {
		return "-"
	}
	return "@" + args[0]
}

// secretIn reads a secret from a file: its text without the spaces around it.
func secretIn(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", &exitError{exitUsage, err}
	}
	return strings.TrimSpace(string(b)), nil
}

func (a *app) input(arg string) ([]byte, error) {
	var r io.Reader
	switch name, file := strings.CutPrefix(arg, "@"); {
	case arg == "-":
		r = a.in
	case file:
		f, err := os.Open(name)
		if err != nil {
			return nil, &exitError{exitUsage, err}
		}
		defer f.Close()
		r = f
	default:
		return []byte(arg), nil
	}
	b, err := io.ReadAll(io.LimitReader(r, maxInput+1))
	if err != nil {
		return nil, fmt.Errorf("read the content: %w", err)
	}
	if len(b) > maxInput {
		return nil, usage("the content has more than %d MiB", maxInput>>20)
	}
	return b, nil
}

// guardOf judges addresses as a hub with this configuration does.
func guardOf(c *node.Config) (*netguard.Guard, error) {
	allow, err := c.Allowed()
	return &netguard.Guard{Allow: allow, Advice: netguard.HubAdvice}, err
}

// webURL parses an http or https URL with a host.
func webURL(s string) (u *url.URL, ok bool) {
	u, err := url.Parse(s)
	return u, err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
}

// body puts content into a message: JSON unchanged, or text.
func body(s *admin.Send, raw []byte, isJSON bool) {
	if isJSON {
		s.JSON = bytes.TrimSpace(raw)
		return
	}
	text := strings.TrimSuffix(string(raw), "\n")
	s.Text = &text
}

// shown is the content of a message as text for people.
func shown(m *admin.Message) string {
	var out []string
	if m.Error != nil {
		out = append(out, fmt.Sprintf("%s: %s", m.Error.Code, clean(m.Error.Text)))
	}
	for _, p := range m.Parts {
		switch {
		case p.Text != nil:
			out = append(out, clean(*p.Text))
		case p.JSON != nil:
			out = append(out, clean(string(p.JSON)))
		case p.URI != "":
			out = append(out, clean(p.URI))
		default:
			out = append(out, fmt.Sprintf("(%d bytes of %s)", len(p.Data), clean(p.MediaType)))
		}
	}
	return strings.Join(out, "\n")
}

// group makes a command that holds others. Called without one of them it runs bare.
func group(use, short, example string, bare func(*cobra.Command, []string) error,
	commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Example: example, RunE: bare}
	c.AddCommand(commands...)
	return c
}

// helps is the bare form of a group without a default command: it shows the help.
func helps(c *cobra.Command, _ []string) error { return c.Help() }
