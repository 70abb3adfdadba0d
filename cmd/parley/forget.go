package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/admin"
)

func (a *app) forgetCommand() *cobra.Command {
	var f admin.Forget
	var list bool
	c := &cobra.Command{
		Use:   "forget AGENT | --conversation ID",
		Short: "Erase the content of an agent's or a conversation's messages",
		Long: `Erase the content of all messages from and to an agent, or of a conversation. It is overwritten in the
journal's files and removed from the index. The records stay, with sender, recipient, time, deliveries,
digests of the content, and the erasure with its time, author and reason: exports still verify, and
replays are still refused.

Messages that are not delivered yet, dead letters, and sessions with a message in the last hour are
skipped and counted; the exit code is 1 then. Run the command again later, or drop the dead letters
first. Earlier backups keep the content.`,
		Example: `  parley forget weather --dry-run
  parley forget weather --reason "asked for on 3 May"
  parley forget --conversation 01a2b3c4
  parley forget --list`,
		Args: cobra.MaximumNArgs(1),
		PreRunE: func(_ *cobra.Command, args []string) error {
			if list {
				return nil
			}
			f.Agent = argument(args)
			if (f.Agent == "") == (f.Conversation == "") {
				return usage("say which: an agent, or --conversation ID")
			}
			if f.Conversation != "" {
				return checkID(f.Conversation, "a conversation", conversationsListed)
			}
			return nil
		},
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, _ []string) error {
			if list {
				return a.erasures(ctx, hub)
			}
			return a.forget(ctx, hub, f)
		}),
	}
	c.Flags().StringVar(&f.Conversation, "conversation", "",
		"erase this conversation: its id, or at least the first 8 digits")
	c.Flags().StringVar(&f.Reason, "reason", "", "reason for the record of the erasure and the audit trail")
	c.Flags().BoolVar(&f.DryRun, "dry-run", false, "only count the messages")
	c.Flags().BoolVar(&list, "list", false, "list the erasures, by commands and by retention")
	return c
}

func (a *app) forget(ctx context.Context, hub *admin.Client, f admin.Forget) error {
	r, err := hub.Forget(ctx, f)
	if err != nil {
		return a.hubError(err, conversationsListed)
	}
	done := "was erased"
	if r.DryRun {
		done = "would be erased"
	}
	if err := a.print(r, "%s %s: the content of %s %s\n", r.What, clean(r.Name),
		plural(int(r.Erased), "message", "messages"), done); err != nil {
		return err
	}
	if r.Kept() == 0 {
		if r.Erased == 0 && !a.json {
			_, err = fmt.Fprintln(a.out, "no content was there; `parley conversation` lists the conversations and "+
				"their agents")
		}
		return err
	}
	var left string
	for _, x := range []struct {
		n    uint64
		what string
	}{{r.Undelivered, "not delivered yet"}, {r.Dead, "dead letters (parley dead drop gives them up)"},
		{r.Ongoing, "of open sessions"}} {
		if x.n > 0 {
			left += fmt.Sprintf("\n        %d %s", x.n, x.what)
		}
	}
	err = errors.New("some messages are still needed and were not erased; run this again later:" + left)
	if r.DryRun {
		err = errors.New("some messages are still needed and would not be erased:" + left)
	}
	return err
}

func (a *app) erasures(ctx context.Context, hub *admin.Client) error {
	list, err := hub.Erasures(ctx)
	if err != nil {
		return err
	}
	titles := []string{"NUMBER", "BEGUN", "ENDED", "WHAT", "WHOSE", "BY", "ERASED", "LEFT", "WHY"}
	return printList(a, list, "nothing was erased", titles, func(e *admin.Erasure) []string {
		return []string{strconv.FormatUint(e.Number, 10), a.when(e.Begun), a.when(e.Ended), e.What, e.Name, e.By,
			strconv.FormatUint(e.Erased, 10), strconv.FormatUint(e.Kept, 10), e.Reason}
	})
}
