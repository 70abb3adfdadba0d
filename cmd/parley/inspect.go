package main

import (
	"context"
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
	c := &cobra.Command{
		Use:   "inspect [FILE|-]",
		Short: "Explain any message: its protocol, its fields, its signed bytes, why it fails",
		Long: `Read a message from FILE or the standard input and explain it: which protocol
it is of, what each field means, how the signed bytes come about, and each check
in order. It may be the text of an HTTP request, a curl command, JSON with
method, target, headers and body, an entry of a HAR file, or a bare envelope.
Nothing is sent anywhere.`,
		Example: "  parley inspect request.http --key BASE64\n  pbpaste | parley inspect -\n  parley inspect " +
			"message.json --card card.json --json",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			v, err := a.inspection(cmd.Context(), args, f)
			if err != nil {
				return err
			}
			return a.verdict(true, v, func() error { return a.showInspection(v, true) })
		},
	}
	f.register(c)
	return c
}

// inspection reads a message, finds its protocol and explains it.
func (a *app) inspection(ctx context.Context, args []string, f inspectFlags) (*admin.Inspected, error) {
	o := inspect.Options{Keys: f.keys, Self: f.self, Now: a.now()}
	var err error
	if f.now != "" {
		if o.Now, err = time.Parse(time.RFC3339Nano, f.now); err != nil {
			return nil, usage("--now %q: want a time such as 2026-11-20T15:04:05Z", f.now)
		}
	}
	if f.card != "" {
		if o.Card, err = os.ReadFile(f.card); err != nil {
			return nil, &exitError{exitUsage, err}
		}
	}
	raw, err := a.input(fileArg(args))
	if err != nil {
		return nil, err
	}
	v, err := inspect.Inspect(ctx, raw, f.protocol, o)
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
