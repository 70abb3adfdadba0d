package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
)

func (a *app) listenCommand() *cobra.Command {
	var create bool
	var reply string
	var count int
	var answer *admin.Send
	c := &cobra.Command{
		Use:   "listen NAME",
		Short: "Read an agent's messages from its inbox at the hub",
		Long: `Show the messages to an agent as they come, the waiting ones first, until interrupted.
The agent must have an inbox at the hub: --create makes one. A shown message counts as
delivered. A request still needs an answer: give it with --reply, or send a message with
inReplyTo (POST /v1/messages).`,
		Example: `  parley listen me --create
  parley listen me --reply 'thank you'
  parley listen me --count 1 --json`,
		Args: cobra.ExactArgs(1),
		PreRunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("reply") {
				raw, isJSON, err := a.content(reply)
				if err != nil {
					return err
				}
				answer = &admin.Send{From: args[0], Kind: parley.Response}
				body(answer, raw, isJSON)
			}
			if count < 0 {
				return usage("--count %d: want 0 or more", count)
			}
			return nil
		},
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, args []string) error {
			return a.listen(ctx, hub, args[0], create, answer, count)
		}),
	}
	f := c.Flags()
	f.BoolVar(&create, "create", false, "make the agent if it does not exist")
	f.StringVar(&reply, "reply", "", "answer to every request: JSON, text or @FILE")
	f.IntVar(&count, "count", 0, "end after this many messages (default: never)")
	return c
}

func (a *app) listen(ctx context.Context, hub *admin.Client, name string, create bool, answer *admin.Send,
	count int) error {
	v, err := hub.Agent(ctx, name, 0)
	var e *parley.Error
	unknown := errors.As(err, &e) && e.Code == parley.UnknownAgent
	switch {
	case unknown && create:
		if _, err := hub.AddAgent(ctx, admin.NewAgent{Name: name, Inbox: true}); err != nil {
			return err
		}
	case unknown:
		return &exitError{exitRefused, fmt.Errorf("no agent %q here\n        --create makes it, with an inbox", name)}
	case err != nil:
		return err
	case !v.Inbox:
		return &exitError{exitRefused, fmt.Errorf("agent %q has no inbox at the hub: it gets its messages by %s", name,
			strings.Join(v.Native, ", "))}
	}
	if !a.json {
		fmt.Fprintf(a.errs, "listening as %s\n", name)
	}
	n := 0
	for m, err := range hub.Inbox(ctx, name) {
		if err != nil {
			if ctx.Err() != nil {
				return nil // an interrupt is the normal end
			}
			return err
		}
		if err := a.writeMessage(m); err != nil {
			return err
		}
		if answer != nil && m.Kind == parley.Request {
			r := *answer
			r.InReplyTo = m.ID.String()
			// A request that ended meanwhile is no reason to stop listening.
			if _, err := hub.Send(ctx, r); errors.As(err, &e) {
				fmt.Fprintf(a.errs, "parley: the answer to %s was refused: %s: %s\n", m.ID, e.Code, clean(e.Text))
			} else if err != nil {
				return err
			}
		}
		if n++; n == count {
			return nil
		}
	}
	return nil
}

// writeMessage shows one message of an inbox.
func (a *app) writeMessage(m *admin.Message) error {
	about := ""
	if m.Skill != "" {
		about = " skill " + clean(m.Skill)
	}
	if !m.InReplyTo.IsZero() {
		about += " about " + m.InReplyTo.String()
	}
	text := ""
	for line := range strings.Lines(shown(m)) {
		text += "  " + strings.TrimSuffix(line, "\n") + "\n"
	}
	return a.print(m, "%s  %s from %s (%s by %s)%s  %s\n%s", stamp(m.Received), m.Kind, clean(m.From),
		m.Origin.Assurance, clean(m.Origin.Protocol), about, m.ID, text)
}
