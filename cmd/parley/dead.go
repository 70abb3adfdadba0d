package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/admin"
)

func (a *app) deadCommand() *cobra.Command {
	var listing deadFlags
	var causes causeFlags
	list := &cobra.Command{
		Use: "list", Short: "List the dead letters, the oldest first; or by cause",
		Example: "  parley dead list --to weather --since 2h\n  parley dead list --by-cause\n  parley dead list --recovered",
		PreRunE: func(*cobra.Command, []string) error { return cmp.Or(causes.check(), listing.parse()) },
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, _ []string) error {
			if f, ok := causes.filter(&listing.DeadFilter); ok {
				return a.undelivered(ctx, hub, f)
			}
			return a.deadList(ctx, hub, listing.DeadFilter)
		}),
	}
	listing.register(list)
	list.Flags().StringVar(&listing.Cursor, "cursor", "", "only those behind this cursor, which --json gives for each")
	causes.register(list)
	var to string
	show := &cobra.Command{
		Use: "show ID", Short: "Show a dead letter with its message", Args: cobra.ExactArgs(1),
		Long: "Show a dead letter with its message. ID is the message's, or the beginning of it: at least\n8 digits, as " +
			"many as no other dead letter has.",
		Example: "  parley dead show 01a2b3c4-d5e6-7",
		PreRunE: func(_ *cobra.Command, args []string) error { return checkID(args[0], "a message", deadListed) },
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, args []string) error {
			return a.deadShow(ctx, hub, args[0], to)
		}),
	}
	show.Flags().StringVar(&to, "to", "", "recipient, if the message has several")
	return group("dead", "List, retry and drop messages that could not be delivered",
		`  parley dead
  parley dead retry 01a2b3c4-d5e6-7
  parley dead drop --to weather --dry-run`,
		list.RunE, list, show, a.deadJobs(),
		a.deadChange("retry", "Deliver dead letters again: same message, same id", (*admin.Client).RetryAll,
			func(c *admin.Client, ctx context.Context, id, to, _ string) (admin.DeadLetter, error) {
				return c.Retry(ctx, id, to)
			}),
		a.deadChange("drop", "Remove dead letters for good", (*admin.Client).DropAll, (*admin.Client).Drop))
}

// deadFlags choose dead letters.
type deadFlags struct {
	admin.DeadFilter
	sinceText, beforeText string
}

func (f *deadFlags) register(c *cobra.Command) {
	c.Flags().StringVar(&f.To, "to", "", "only dead letters to this agent")
	c.Flags().StringVar(&f.From, "from", "", "only dead letters from this agent")
	c.Flags().StringVar((*string)(&f.Code), "code", "", "only those with this error code, e.g. timed_out")
	c.Flags().StringVar((*string)(&f.Reason), "cause", "", "only those with this cause, e.g. connection_refused; none: "+
		"those without one")
	c.Flags().StringVar(&f.sinceText, "since", "", "only those given up since this time; or a duration back from now (2h)")
	c.Flags().StringVar(&f.beforeText, "before", "", "only those given up before this time; or a duration back from now "+
		"(2h)")
	c.Flags().IntVar(&f.Limit, "limit", 0, "at most this many (default: all, up to 10,000)")
}

// parse completes the filter.
func (f *deadFlags) parse() (err error) {
	if f.Since, err = moment("--since", f.sinceText); err != nil {
		return err
	}
	f.Before, err = moment("--before", f.beforeText)
	return err
}

func (a *app) deadList(ctx context.Context, hub *admin.Client, filter admin.DeadFilter) error {
	list, err := hub.Dead(ctx, filter)
	if err != nil {
		return err
	}
	titles := []string{"GIVEN UP", "MESSAGE", "FROM", "TO", "KIND", "TRIED", "REASON", "TEXT"}
	err = printList(a, list, "no dead letters", titles, func(d *admin.DeadLetter) []string {
		return []string{a.when(d.Changed), a.id(d.Message), d.From, d.To, d.Kind.String(), strconv.Itoa(d.Attempts),
			string(d.Reason.Code), short(cmp.Or(d.Reason.Detail, d.Reason.Text), 60)}
	})
	a.tellRecipients(list)
	return err
}

const deadListed = "`parley dead` lists them"

func (a *app) deadShow(ctx context.Context, hub *admin.Client, id, to string) error {
	d, err := hub.DeadLetter(ctx, id, to)
	if err != nil {
		return a.hubError(err, deadListed)
	}
	if a.json {
		return a.print(d, "")
	}
	line := a.labels(12, 1000)
	line("message", "%s", d.Message)
	line("from", "%s", d.From)
	line("to", "%s", d.To)
	line("kind", "%s", d.Kind)
	line("conversation", "%s", d.Conversation)
	line("given up", "%s after %s", a.when(d.Changed), plural(d.Attempts, "attempt", "attempts"))
	for _, x := range a.attempts(d.History, d.Omitted) {
		line("attempt", "%s", x)
	}
	line("reason", "%s: %s", d.Reason.Code, d.Reason.Text)
	line("cause", "%s", cause(d.To, &d.Reason, ""))
	line("advice", "%s", d.Reason.Advice)
	if d.Recipient != nil {
		line("recipient", "%s", a.stateWords(d.Recipient))
	}
	for _, l := range d.Losses {
		line("lost", "%s", l)
	}
	if d.Content != nil {
		fmt.Fprintf(a.out, "\n%s\n", shown(d.Content))
	}
	return nil
}

func (a *app) deadChange(use, text string,
	all func(*admin.Client, context.Context, admin.Bulk) (admin.BulkResult, error),
	one func(c *admin.Client, ctx context.Context, id, to, reason string) (admin.DeadLetter, error)) *cobra.Command {
	var f deadFlags
	var b admin.Bulk
	done := map[string]string{"retry": "queued again", "drop": "dropped"}[use]
	more := ""
	if use == "retry" {
		more = "\n\nEach is tried once, also if its recipient is paused or fails. --rate goes on in the hub when\n" +
			"the command has ended: parley dead jobs shows it. --limit 1 tries the oldest one."
	}
	c := &cobra.Command{
		Use: use + " [ID]", Short: text, Args: cobra.MaximumNArgs(1),
		Long: text + ".\n\nName one by its id or the beginning of it, or several with --to, --from, --code, --cause,\n" +
			"--since, --before or --all. --dry-run says what would happen; with --expect the number that it\n" +
			"counted nothing is done if the number differs then (exit code 4)." + more,
		Example: fmt.Sprintf(`  parley dead %[1]s 01a2b3c4-d5e6-7
  parley dead %[1]s --to weather --since 2h --dry-run
  parley dead %[1]s --to weather --since 2h --expect 21
  parley dead %[1]s --all`, use),
		PreRunE: func(_ *cobra.Command, args []string) (err error) {
			if err = f.parse(); err != nil {
				return err
			}
			b.Filter = f.DeadFilter
			chosen := f.DeadFilter
			chosen.Limit = 0
			switch {
			case len(args) == 0 && chosen == (admin.DeadFilter{}) && !b.All:
				return usage("say which: an id, --to, --from, --code, --cause, --since, --before or --all")
			case len(args) == 0:
				return nil
			case b.All || b.DryRun || b.Expect != 0 || b.Rate != 0 || f.From != "" || f.Code != "" || f.Reason != "" ||
				!f.Since.IsZero() || !f.Before.IsZero():
				return usage("name one dead letter by its id, or several by flags, not both (--to may go with an id)")
			}
			return checkID(args[0], "a message", deadListed)
		},
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, args []string) error {
			if len(args) == 0 {
				r, err := all(hub, ctx, b)
				if err != nil {
					return err
				}
				return a.deadChanged(r, done)
			}
			d, err := one(hub, ctx, args[0], f.To, b.Reason)
			if err != nil {
				return a.hubError(err, deadListed)
			}
			if use == "retry" {
				a.warnUnknown(&d)
			}
			return a.print(d, "message %s to %s is %s\n", d.Message, clean(d.To), done)
		}),
	}
	f.register(c)
	c.Flags().BoolVar(&b.All, "all", false, "all dead letters")
	c.Flags().BoolVar(&b.DryRun, "dry-run", false, "only count the dead letters, and say what would happen")
	c.Flags().IntVar(&b.Expect, "expect", 0, "do nothing unless this many match")
	if use == "retry" {
		c.Flags().Float64Var(&b.Rate, "rate", 0, "at most this many a second, in the background; 0: all at once")
		c.Flags().BoolVar(&b.Unknown, "unknown", false, "also those that their recipient may have had (outcome_unknown)")
	}
	c.Flags().StringVar(&b.Reason, "reason", "", "reason for the audit trail")
	return c
}

// deadChanged shows the result for several dead letters.
func (a *app) deadChanged(r admin.BulkResult, done string) error {
	text := plural(r.Done, "dead letter is", "dead letters are")
	switch {
	case r.DryRun:
		text = plural(r.Matched, "dead letter", "dead letters") + " would be"
	case r.Job != nil:
		return a.print(r, "%s retried, %g a second; `parley dead jobs %s` shows how it goes on\n",
			plural(r.Matched, "dead letter is", "dead letters are"), r.Job.Rate, r.Job.ID)
	}
	if err := a.print(r, "%s %s\n", text, done); err != nil {
		return err
	}
	if r.DryRun && !a.json && r.Matched > 0 {
		a.hang("", 0, "", r.Text)
	}
	if failed := r.Matched - r.Done; failed > 0 && !r.DryRun {
		return fmt.Errorf("%s could not be changed:\n        %s",
			plural(failed, "dead letter", "dead letters"), clean(strings.Join(r.Failed, "\n        ")))
	}
	return nil
}
