package main

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/admin"
	bridge "github.com/parley-hub/parley/bridge/a2e"
	"github.com/parley-hub/parley/internal/connect"
)

var a2eProtocol = protocol{
	name: bridge.Protocol,
	add: adding{
		how:  "--a2e new or URL",
		help: "  parley agents add robot --a2e new\n  parley agents add lab --a2e https://lab.corp/a2e --expose all\n",
		flags: func(c *cobra.Command) adder {
			v := values(c, "a2e")
			var token string
			return adder{
				given: func() bool { return *v["a2e"] != "" },
				identity: func(name string) (admin.NewIdentity, error) {
					if *v["a2e"] != "new" {
						return v.identity("a2e", "host")(name)
					}
					var id string
					var err error
					if token, id, err = connect.NewA2EToken(); err != nil {
						return admin.NewIdentity{}, err
					}
					return connect.WayTo("a2e", "").Identity(name, connect.Values{"token-id": id})
				},
				token: func() string { return token },
			}
		},
	},
	unsigned:     "A2E messages have no signatures: the session's token answers for them",
	checkAddress: (*doctor).a2eAddress,
	way:          a2eWay,
	send:         (*app).sendA2E,
	demo:         (*demo).a2eScenes,
	command:      (*app).a2eCommand,
	bench:        (*app).benchA2ECommand,
}

// sendA2E calls a tool of an A2E host directly.
func (a *app) sendA2E(ctx context.Context, s sending, raw []byte, isJSON bool) error {
	switch {
	case s.url == "":
		return usage("say which host: --url http(s)://HOST/PATH, tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH")
	case s.skill == "":
		return usage("say which tool: --skill NAME (`--skill tool/list` lists the tools)")
	case s.from != "" || s.to != "" || s.conversation != "" || s.key != "" || s.noWait:
		return usage("--from, --to, --conversation, --idempotency-key and --no-wait are for messages through a hub")
	}
	c := &a2e.Client{URL: s.url, AgentID: s.as, HTTP: &http.Client{}}
	if s.keyFile != "" {
		var err error
		if c.Token, err = secretIn(s.keyFile); err != nil {
			return err
		}
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, s.wait)
	defer cancel()
	if s.skill == "tool/list" {
		list, err := c.Tools(ctx, a2e.ToolQuery{Query: strings.TrimSpace(string(raw)), IncludeDeferred: true})
		if err != nil {
			return a2eError(err)
		}
		if a.json {
			return a.print(list, "")
		}
		var rows [][]string
		for _, t := range list {
			rows = append(rows, []string{t.Name, t.Description})
		}
		return a.table([]string{"TOOL", "DESCRIPTION"}, rows, nil)
	}
	arguments := json.RawMessage(raw)
	if object := isJSON && !s.text && strings.TrimSpace(string(raw))[0] == '{'; !object && len(raw) > 0 {
		var err error
		arguments, err = json.Marshal(map[string]string{"text": strings.TrimSuffix(string(raw), "\n")})
		if err != nil {
			return err
		}
	}
	var told error
	var onEvent func(a2e.Event)
	if s.stream {
		onEvent = func(e a2e.Event) {
			told = errors.Join(told, a.print(map[string]any{"kind": e.Kind, "seq": e.Seq,
				"data": json.RawMessage(e.Data)}, "%3d %s  %s\n", e.Seq, clean(string(e.Kind)), clean(string(e.Data))))
		}
	}
	r, err := c.CallTool(ctx, s.skill, arguments, onEvent)
	if err != nil {
		return a2eError(err)
	}
	if told != nil {
		return told
	}
	data, err := json.Marshal(r.Data)
	if err != nil {
		return err
	}
	if !r.Success {
		return &exitError{exitRefused, fmt.Errorf("the tool failed: %s: %s", clean(r.ErrorCode), clean(r.Error))}
	}
	return a.print(map[string]any{"tool": r.ToolName, "durationMs": r.DurationMS, "result": json.RawMessage(data)},
		"%s\n", clean(string(data)))
}

// a2eError shows a host's error, with advice.
func a2eError(err error) error {
	e, ok := errors.AsType[*a2e.Error](err)
	if !ok {
		return &exitError{exitUnreachable, err}
	}
	text := fmt.Sprintf("%s: %s", clean(string(e.Code)), clean(e.Text))
	switch {
	case e.Step == "handshake" || errors.Is(e, a2e.ErrUnauthorized):
		text += "\n        is the token right? --key FILE names the file that holds it"
	case e.Step != "peer":
		if cause := e.Unwrap(); cause != nil {
			text += " (" + clean(cause.Error()) + ")"
		}
		return &exitError{exitUnreachable, errors.New(text)}
	}
	var detail struct {
		Ref string `json:"ref"`
	}
	_ = json.Unmarshal(e.Detail, &detail) // other hosts have other details
	return &exitError{exitRefused, atHub(text, detail.Ref)}
}

func (a *app) a2eCommand() *cobra.Command {
	token := &cobra.Command{
		Use: "token", Short: "Make a token for an A2E agent",
		Example: "  parley a2e token > alice.token && chmod 600 alice.token",
		RunE: func(*cobra.Command, []string) error {
			t, err := bridge.NewToken()
			if err != nil {
				return err
			}
			return a.print(map[string]string{"token": t}, "%s\n", t)
		},
	}
	var at string
	stdio := &cobra.Command{
		Use:   "stdio",
		Short: "Join standard input and output to a running hub: what an A2E agent starts as its host",
		Long: `Join standard input and output to a running hub. An A2E agent whose host is a
child process starts this command; its token goes in its own handshake. Nothing
but NDJSON is written to standard output. It ends with its input.

The hub is that of the data directory, or the one at --url.`,
		Example: `  parley a2e stdio --data ./data
  parley a2e stdio --url https://hub.corp`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			base, err := a.hubURL(at)
			if err != nil {
				return err
			}
			return a.stdio(cmd.Context(), base)
		},
	}
	stdio.Flags().StringVar(&at, "url", "", "base URL of the hub (default: as the data directory says)")
	return group("a2e", "For A2E agents: a host as a child process, tokens",
		"  parley a2e stdio --data ./data\n  parley a2e token",
		helps, stdio, token)
}

// hubURL is the base URL of a hub's A2E endpoints.
func (a *app) hubURL(at string) (*url.URL, error) {
	c, err := a.load()
	if err != nil {
		return nil, err
	}
	return hubEndpoint(c.Data, at, cmp.Or(c.A2E.Path, bridge.DefaultPath))
}

// hubEndpoint is the URL of an endpoint of a hub: the one at this base URL, or else the one on the data directory.
func hubEndpoint(data, at, path string) (*url.URL, error) {
	if at == "" {
		hub, err := announced(data)
		if err != nil {
			return nil, err
		}
		if hub.Local == "" {
			return nil, &exitError{exitUnreachable, fmt.Errorf("no hub runs on the data directory %s; start one with "+
				"`parley serve`, or name one with --url", data)}
		}
		at = hub.Local
	}
	u, ok := webURL(strings.TrimRight(at, "/"))
	if !ok {
		return nil, usage("--url %q: want http(s)://HOST[:PORT][/PATH]", at)
	}
	if !strings.HasSuffix(u.Path, path) {
		u.Path += path
	}
	return u, nil
}

// stdio copies both ways until the input ends, then the rest of the hub's output.
func (a *app) stdio(ctx context.Context, base *url.URL) error {
	conn, in, err := dialHub(ctx, base)
	if err != nil {
		return &exitError{exitUnreachable, err}
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	sent := make(chan error, 1)
	go func() {
		_, err := io.Copy(conn, a.in)
		if half, ok := conn.(interface{ CloseWrite() error }); ok && err == nil {
			err = half.CloseWrite()
		}
		sent <- err
	}()
	received := make(chan error, 1)
	go func() { _, err := io.Copy(a.out, in); received <- err }()
	select {
	case err = <-received: // the hub ended the session: do not wait for the input
	case err = <-sent:
		// The agent has closed its end. It waits at most three seconds.
		t := time.NewTimer(2500 * time.Millisecond)
		defer t.Stop()
		select {
		case err = <-received:
		case <-t.C:
		}
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("the connection to the hub broke: %w", err)
	}
	return nil
}

// dialHub makes an HTTP connection a stream of NDJSON.
func dialHub(ctx context.Context, base *url.URL) (net.Conn, io.Reader, error) {
	host := base.Host
	if base.Port() == "" {
		host = net.JoinHostPort(base.Hostname(), map[string]string{"http": "80", "https": "443"}[base.Scheme])
	}
	wait, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	dial := (&net.Dialer{}).DialContext
	if base.Scheme == "https" {
		dial = (&tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12,
			NextProtos: []string{"http/1.1"}}}).DialContext
	}
	conn, err := dial(wait, "tcp", host)
	if err != nil {
		return nil, nil, fmt.Errorf("no hub answers at %s: %w", base.Host, err)
	}
	fail := func(err error) (net.Conn, io.Reader, error) { return nil, nil, errors.Join(err, conn.Close()) }
	deadline, _ := wait.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return fail(err)
	}
	r, err := http.NewRequestWithContext(wait, http.MethodGet, base.String()+"/connect", nil)
	if err != nil {
		return fail(err)
	}
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", bridge.Upgrade)
	if err := r.Write(conn); err != nil {
		return fail(err)
	}
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, r)
	if err != nil {
		return fail(fmt.Errorf("the server at %s is no hub: %w", base.Host, err))
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		_ = resp.Body.Close()
		return fail(fmt.Errorf("the server at %s has no A2E endpoint %s/connect: HTTP %d", base.Host, base.Path,
			resp.StatusCode))
	}
	return conn, in, conn.SetDeadline(time.Time{})
}
