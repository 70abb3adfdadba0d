package main

import (
	"cmp"
	"context"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
)

func (a *app) answerCommand() *cobra.Command {
	var from, key string
	var text bool
	c := &cobra.Command{
		Use:   "answer MESSAGE [CONTENT]",
		Short: "Add to an open request, for example what its agent asks for",
		Long: `Send more about a request that has no answer yet to the agent that works on it. An agent
that needs more sends an event in the state needs-input: ` + "`parley conversation show`" + ` has it.
MESSAGE is the id of the request, of that event, or of another message about the request,
or the beginning of the id. CONTENT is JSON or text, @FILE, or - for the standard input.

The agent reads it as an input. In protocols that cannot carry one it is lost, and
` + "`parley explain`" + ` says so. The answer to the request goes where it would go anyway.`,
		Example: `  parley answer 018f8fad-5bd9-7b46 'to Bern'
  parley answer 018f8fad-5bd9-7b46 '{"city":"Bern","days":3}'
  parley answer 018f8fad-5bd9-7b46 @form.json --from crew/scout`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkID(args[0], "a message", "`parley conversation show` has them"); err != nil {
				return err
			}
			m := admin.Send{From: from, Kind: parley.Input, IdempotencyKey: key}
			if len(args) == 2 {
				raw, isJSON, err := a.content(args[1])
				if err != nil {
					return err
				}
				body(&m, raw, isJSON && !text)
			}
			hub, err := a.hub()
			if err != nil {
				return err
			}
			return a.sendInput(cmd.Context(), hub, args[0], m)
		},
	}
	f := c.Flags()
	f.StringVar(&from, "from", "", "agent as which to send (default: the one that made the request)")
	f.StringVar(&key, "idempotency-key", "", "send at most once under this key, and show the first receipt again")
	f.BoolVar(&text, "text", false, "CONTENT is text even if it looks like JSON")
	return c
}

// sendInput sends m about the request that a message is, or is about.
func (a *app) sendInput(ctx context.Context, hub *admin.Client, id string, m admin.Send) error {
	about, err := hub.Message(ctx, id, false)
	if err != nil {
		return a.hubError(err, "`parley conversation` lists the conversations")
	}
	requester := about.From
	m.InReplyTo, m.To = about.ID.String(), about.To
	if !about.InReplyTo.IsZero() {
		m.InReplyTo = about.InReplyTo.String()
	}
	if about.Kind == parley.Event || about.Kind.Terminal() {
		requester, m.To = about.To, about.From
	}
	m.From = cmp.Or(m.From, requester)
	r, err := hub.Send(ctx, m)
	if err != nil {
		return a.sendError(m.To, err)
	}
	return a.receipt(ctx, hub, m.To, false, r)
}
