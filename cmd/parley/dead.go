package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
)

func (a *app) deadCommand() *cobra.Command {
	var listing deadFlags
	var filter admin.DeadFilter
	list := &cobra.Command{
		Use: "list", Short: "List the dead letters, the oldest first",
		Example: "  parley dead list --to weather --since 2h",
		PreRunE: func(*cobra.Command, []string) (err error) {
			filter, err = listing.filter()
			return err
		},
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, _ []string) error {
			return a.deadList(ctx, hub, filter)
		}),
	}
	listing.register(list)
	var to string
	var id parley.ID
	show := &cobra.Command{
		Use: "show ID", Short: "Show a dead letter with its message", Args: cobra.ExactArgs(1),
		Example: "  parley dead show 01a2b3c4-…",
		PreRunE: func(_ *cobra.Command, args []string) (err error) {
			id, err = deadID(args[0])
			return err
		},
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, _ []string) error {
			return a.deadShow(ctx, hub, id, to)
		}),
	}
	show.Flags().StringVar(&to, "to", "", "recipient, if the message has several")
	return group("dead", "List, retry and drop messages that could not be delivered",
		`  parley dead
  parley dead retry 01a2b3c4-…
  parley dead drop --to weather --dry-run`,
		a.withHub(func(ctx context.Context, hub *admin.Client, _ []string) error {
			return a.deadList(ctx, hub, admin.DeadFilter{})
		}), list, show,
		a.deadChange("retry", "Deliver dead letters again: same message, same id", (*admin.Client).RetryAll,
			func(c *admin.Client, ctx context.Context, id parley.ID, to, _ string) (admin.DeadLetter, error) {
				return c.Retry(ctx, id, to)
			}),
		a.deadChange("drop", "Remove dead letters for good", (*admin.Client).DropAll, (*admin.Client).Drop))
}

// deadFlags choose dead letters.
type deadFlags struct {
	to, from, code, since, before string
	limit                         int
}

func (f *deadFlags) register(c *cobra.Command) {
	c.Flags().StringVar(&f.to, "to", "", "only dead letters to this agent")
	c.Flags().StringVar(&f.from, "from", "", "only dead letters from this agent")
	c.Flags().StringVar(&f.code, "code", "", "only those with this error code, e.g. timed_out")
	c.Flags().StringVar(&f.since, "since", "", "only those given up since this time; or a duration back from now (2h)")
	c.Flags().StringVar(&f.before, "before", "", "only those given up before this time; or a duration back from now "+
		"(2h)")
	c.Flags().IntVar(&f.limit, "limit", 0, "at most this many (default: all, up to 10,000)")
}

func (f deadFlags) filter() (admin.DeadFilter, error) {
	out := admin.DeadFilter{To: f.to, From: f.from, Code: parley.Code(f.code), Limit: f.limit}
	var err error
	if out.Since, err = moment("--since", f.since); err != nil {
		return out, err
	}
	out.Before, err = moment("--before", f.before)
	return out, err
}

// moment parses a time, or a duration back from now.
func moment(flag, s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return time.Now().Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return t, usage("%s %q: want a time such as 2026-11-20T15:04:05Z, or a duration such as 2h", flag, s)
	}
	return t, nil
}

func (a *app) deadList(ctx context.Context, hub *admin.Client, filter admin.DeadFilter) error {
	list, err := hub.Dead(ctx, filter)
	if err != nil {
		return err
	}
	titles := []string{"GIVEN UP", "MESSAGE", "FROM", "TO", "KIND", "TRIED", "REASON", "TEXT"}
	return printList(a, list, "no dead letters", titles, func(d *admin.DeadLetter) []string {
		return []string{stamp(d.Changed), d.Message.String(), d.From, d.To, d.Kind.String(), strconv.Itoa(d.Attempts),
			string(d.Reason.Code), short(d.Reason.Text, 60)}
	})
}

func deadID(s string) (parley.ID, error) {
	id, err := parley.ParseID(s)
	if err != nil {
		return id, usage("%q is not the id of a message; `parley dead` lists the dead letters", s)
	}
	return id, nil
}

func (a *app) deadShow(ctx context.Context, hub *admin.Client, id parley.ID, to string) error {
	d, err := hub.DeadLetter(ctx, id, to)
	if err != nil {
		return a.hubError(err, "`parley dead` lists them")
	}
	if a.json {
		return a.print(d, "")
	}
	fmt.Fprintf(a.out, "message      %s\nfrom         %s\nto           %s\nkind         %s\nconversation %s\ngiven "+
		"up     %s after %s\nreason       %s: %s\n",
		d.Message, clean(d.From), clean(d.To), d.Kind, d.Conversation, stamp(d.Changed),
		plural(d.Attempts, "attempt", "attempts"), d.Reason.Code, clean(d.Reason.Text))
	if h := adviceFor(d.Reason.Code); h != "" {
		fmt.Fprintf(a.out, "advice       %s\n", h)
	}
	for _, l := range d.Losses {
		fmt.Fprintf(a.out, "lost         %s\n", clean(l))
	}
	if d.Content != nil {
		fmt.Fprintf(a.out, "\n%s\n", shown(d.Content))
	}
	return nil
}

func (a *app) deadChange(use, text string,
	all func(*admin.Client, context.Context, admin.Bulk) (admin.BulkResult, error),
	one func(*admin.Client, context.Context, parley.ID, string, string) (admin.DeadLetter, error)) *cobra.Command {
	var f deadFlags
	var b admin.Bulk
	done := map[string]string{"retry": "queued again", "drop": "dropped"}[use]
	c := &cobra.Command{
		Use: use + " [ID]", Short: text, Args: cobra.MaximumNArgs(1),
		Long: text + ".\n\nName one by its id, or several with --to, --from, --code, --since, --before or " +
			"--all.\n--dry-run only counts them.",
		Example: fmt.Sprintf(`  parley dead %[1]s 01a2b3c4-…
  parley dead %[1]s --to weather --since 2h --dry-run
  parley dead %[1]s --all`, use),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if b.Filter, err = f.filter(); err != nil {
				return err
			}
			if len(args) == 0 {
				return a.deadAll(cmd.Context(), use, done, b, all)
			}
			if b.All || b.DryRun || f.from != "" || f.code != "" || f.since != "" || f.before != "" {
				return usage("name one dead letter by its id, or several by flags, not both (--to may go with an id)")
			}
			id, err := deadID(args[0])
			if err != nil {
				return err
			}
			hub, err := a.hub()
			if err != nil {
				return err
			}
			d, err := one(hub, cmd.Context(), id, f.to, b.Reason)
			if err != nil {
				return a.hubError(err)
			}
			return a.print(d, "message %s to %s is %s\n", d.Message, clean(d.To), done)
		},
	}
	f.register(c)
	c.Flags().BoolVar(&b.All, "all", false, "all dead letters")
	c.Flags().BoolVar(&b.DryRun, "dry-run", false, "only count the dead letters")
	c.Flags().StringVar(&b.Reason, "reason", "", "reason for the audit trail")
	return c
}

func (a *app) deadAll(ctx context.Context, use, done string, b admin.Bulk,
	all func(*admin.Client, context.Context, admin.Bulk) (admin.BulkResult, error)) error {
	f := b.Filter
	f.Limit = 0
	if f == (admin.DeadFilter{}) && !b.All {
		return usage("say which: an id, --to, --from, --code, --since, --before or --all")
	}
	hub, err := a.hub()
	if err != nil {
		return err
	}
	r, err := all(hub, ctx, b)
	if err != nil {
		return a.hubError(err)
	}
	text := plural(r.Done, "dead letter is", "dead letters are")
	if r.DryRun {
		text = plural(r.Matched, "dead letter", "dead letters") + " would be"
	}
	if err := a.print(r, "%s %s\n", text, done); err != nil {
		return err
	}
	if failed := r.Matched - r.Done; failed > 0 && !r.DryRun {
		return &exitError{exitFailed, fmt.Errorf("%s could not be changed:\n        %s",
			plural(failed, "dead letter", "dead letters"), clean(strings.Join(r.Failed, "\n        ")))}
	}
	return nil
}
