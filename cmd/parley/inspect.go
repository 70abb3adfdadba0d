package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/inspect"
)

// inspectFlags are the flags of inspect and verify.
type inspectFlags struct {
	keys                      []string
	card, self, protocol, now string
	vector                    bool
}

func (f *inspectFlags) register(c *cobra.Command) {
	c.Flags().StringArrayVar(&f.keys, "key", nil, "public key of the sender, base64 (more than once for several)")
	c.Flags().StringVar(&f.card, "card", "", "file with the sender's card, for its keys")
	c.Flags().StringVar(&f.self, "self", "", "identity that the message should be addressed to")
	c.Flags().StringVar(&f.protocol, "protocol", "", "protocol (default: as recognised)")
	c.Flags().StringVar(&f.now, "now", "", "judge freshness at this time, e.g. 2026-11-20T15:04:05Z (default: now)")
}

func (a *app) inspectCommand() *cobra.Command {
	var f inspectFlags
	var atHub, curl bool
	c := &cobra.Command{
		Use:   "inspect [FILE|-|MESSAGE|REF]",
		Short: "Explain any message: its protocol, its fields, its signed bytes, why it fails",
		Long: `Read a message from FILE or the standard input and explain it: which protocol
it is of, what each field means, how the signed bytes come about, and each check
in order. It may be the text of an HTTP request, a curl command, JSON with
method, target, headers and body, an entry of a HAR file, or a bare envelope.
Tokens and cookies in it are masked. Nothing is sent anywhere.

With --hub the running hub explains it, with the keys and cards that it knows. It
also takes the id of a MESSAGE that it recorded, or the REF of a refusal.

With --vector it prints the message as a test vector, in the form of the files in
testdata/vectors: the message with its secrets masked, and the verdict on it.

The exit code is 0 if the message was explained, even if a check fails; 1 if it is of no
protocol; 3 if --hub is given and no hub answers.`,
		Example: "  parley inspect request.http --key BASE64\n  pbpaste | parley inspect -\n  parley inspect " +
			"message.json --card card.json --json\n  parley inspect --hub request.http\n" +
			"  parley inspect --hub 018f8fad-5bd9-7b46\n  parley inspect --curl request.http\n" +
			"  parley inspect --hub 018f8fad-5bd9-7b46 --vector >vector.json",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			explain := a.inspection
			if atHub {
				explain = a.inspectionAtHub
			}
			v, err := explain(cmd.Context(), args, f)
			if err != nil {
				return err
			}
			switch {
			case curl && v.Curl == "":
				return fmt.Errorf("this %s has no method, path and host, so there is no curl command for it", v.Form)
			case curl:
				return a.print(map[string]string{"curl": v.Curl}, "%s\n", v.Curl)
			case f.vector:
				var b bytes.Buffer
				if err := json.Indent(&b, bytes.TrimSpace(v.Vector), "", " "); err != nil {
					return err
				}
				_, err = fmt.Fprintln(a.out, &b)
				return err
			}
			return a.verdict(true, v, func() error { return a.showInspection(v, true) })
		},
	}
	f.register(c)
	c.Flags().BoolVar(&curl, "curl", false, "only show the HTTP request as a curl command, without its tokens and cookies")
	c.Flags().BoolVar(&atHub, "hub", false, "let the running hub explain it, with the keys that it knows")
	c.Flags().BoolVar(&f.vector, "vector", false, "print it as a test vector, with secrets masked")
	return c
}

// asked makes the inspection that the flags ask for, without its input.
func (f *inspectFlags) asked() (i admin.Inspection, err error) {
	i = admin.Inspection{Keys: f.keys, Self: f.self, Protocol: f.protocol, Vector: f.vector}
	if f.now != "" {
		if i.At, err = time.Parse(time.RFC3339Nano, f.now); err != nil {
			return i, usage("--now %q: want a time such as 2026-11-20T15:04:05Z", f.now)
		}
	}
	if f.card != "" {
		if i.Card, err = os.ReadFile(f.card); err != nil {
			return i, &exitError{exitUsage, err}
		}
	}
	return i, nil
}

// inspectionAtHub lets the running hub explain a message. An argument that names no file is an id or a reference.
func (a *app) inspectionAtHub(ctx context.Context, args []string, f inspectFlags) (*admin.Inspected, error) {
	i, err := f.asked()
	if err != nil {
		return nil, err
	}
	i.ID = argument(args)
	if _, err := os.Stat(i.ID); err == nil || i.ID == "" || i.ID == "-" {
		i.ID = ""
		if i.Input, err = a.input(fileArg(args)); err != nil {
			return nil, err
		}
	}
	hub, err := a.hub()
	if err != nil {
		return nil, err
	}
	v, err := hub.Inspect(ctx, i)
	if err != nil {
		return nil, a.hubError(err)
	}
	return &v, nil
}

// inspection reads a message, finds its protocol and explains it.
func (a *app) inspection(ctx context.Context, args []string, f inspectFlags) (*admin.Inspected, error) {
	i, err := f.asked()
	if err != nil {
		return nil, err
	}
	o := inspect.Options{Keys: i.Keys, Card: i.Card, Self: i.Self, Now: cmp.Or(i.At, a.now())}
	raw, err := a.input(fileArg(args))
	if err != nil {
		return nil, err
	}
	v, err := inspect.Inspect(ctx, raw, f.protocol, o)
	if err == nil && f.vector {
		v.Vector, err = inspect.Vector(ctx, raw, f.protocol, o)
	}
	if unusable, ok := errors.AsType[*inspect.InputError](err); ok {
		return nil, &exitError{exitUsage, unusable.Err}
	}
	return v, err
}

func (a *app) showInspection(v *admin.Inspected, all bool) error {
	if all {
		fmt.Fprintf(a.out, "%s, from %s\n", v.Protocol, v.Form)
		if len(v.Fields) > 0 {
			fmt.Fprintln(a.out)
			var rows [][]string
			for _, f := range v.Fields {
				rows = append(rows, []string{f.Name, short(f.Value, 60), f.Meaning})
			}
			if err := a.table([]string{"FIELD", "VALUE", "MEANING"}, rows, nil); err != nil {
				return err
			}
		}
		for i, s := range v.Signed {
			if i == 0 {
				fmt.Fprintf(a.out, "\nhow the signed bytes come about\n")
			}
			fmt.Fprintf(a.out, "  %d. %s\n", i+1, s.Step)
			for line := range strings.Lines(clean(s.Text)) {
				fmt.Fprintf(a.out, "     | %s\n", strings.TrimSuffix(line, "\n"))
			}
		}
		for _, d := range v.Differs {
			fmt.Fprintf(a.out, "  %s differs: signed %s\n     | sent %s\n", d.Part, short(d.Signed, 200), short(d.Sent, 200))
		}
		fmt.Fprintf(a.out, "\nchecks, in order\n")
	}
	for _, c := range v.Checks {
		fmt.Fprintf(a.out, "  %-8s %-10s %s\n", c.State, c.Name, short(c.Detail, 200))
	}
	text := "\n" + clean(v.Sentence) + "\n"
	if v.Fix != "" {
		text += clean(v.Fix) + "\n"
	}
	_, err := io.WriteString(a.out, text)
	return err
}
