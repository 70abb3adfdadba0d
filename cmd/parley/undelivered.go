package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
)

// This file is `parley dead list --by-cause`, and the jobs of paced retries.

// causeFlags ask for groups in place of a list.
type causeFlags struct {
	byCause, waiting, recovered, dropped bool
	text                                 string
}

func (f *causeFlags) register(c *cobra.Command) {
	c.Flags().BoolVar(&f.byCause, "by-cause", false, "groups by recipient and cause, with what helps")
	c.Flags().BoolVar(&f.waiting, "waiting", false, "groups of messages that wait to be delivered")
	c.Flags().BoolVar(&f.recovered, "recovered", false,
		"groups of messages that were delivered within a day, after failures")
	c.Flags().BoolVar(&f.dropped, "dropped", false, "groups of messages that were dropped within a day")
	c.Flags().StringVar(&f.text, "text", "", "of groups, only those with this text in names or in the error")
}

// check refuses flags that exclude each other.
func (f *causeFlags) check() error {
	if f.waiting && f.recovered || f.waiting && f.dropped || f.recovered && f.dropped {
		return usage("choose one of --waiting, --recovered and --dropped")
	}
	return nil
}

// filter is that of the groups; ok: groups are asked for.
func (f *causeFlags) filter(d *admin.DeadFilter) (u admin.UndeliveredFilter, ok bool) {
	u = admin.UndeliveredFilter{To: d.To, From: d.From, Code: d.Code, Reason: d.Reason, Since: d.Since, Limit: d.Limit,
		Text: f.text, Show: admin.ShowDead}
	switch {
	case f.waiting:
		u.Show = admin.ShowWaiting
	case f.recovered:
		u.Show = admin.ShowRecovered
	case f.dropped:
		u.Show = admin.ShowDropped
	default:
		return u, f.byCause || f.text != ""
	}
	return u, true
}

func (a *app) undelivered(ctx context.Context, hub *admin.Client, f admin.UndeliveredFilter) error {
	u, err := hub.Undelivered(ctx, f)
	if err != nil {
		return err
	}
	if a.json {
		return a.print(u, "")
	}
	counts := []string{}
	for _, c := range []struct {
		admin.Count
		what string
	}{{u.Counts.Dead, "dead"}, {u.Counts.Waiting, "waiting"}, {u.Counts.Recovered, "recovered"},
		{u.Counts.Dropped, "dropped"}} {
		n := strconv.Itoa(c.Number)
		if c.More {
			n += "+"
		}
		counts = append(counts, n+" "+c.what)
	}
	if !u.AsOf.IsZero() {
		counts = append(counts, "counted at "+u.AsOf.UTC().Format("15:04:05"))
	}
	fmt.Fprintln(a.out, strings.Join(counts, ", "))
	for i := range u.Groups {
		a.showGroup(u.Show, &u.Groups[i])
	}
	if u.More {
		fmt.Fprintln(a.out, "\n… there are more groups; --limit shows up to 1,000")
	}
	return nil
}

func (a *app) showGroup(show admin.Show, g *admin.UndeliveredGroup) {
	name := strings.TrimSpace(string(g.Problem.Code) + " " + string(g.Problem.Reason))
	a.hang("\n", 0, "", fmt.Sprintf("%d to %s: %s", g.Number, clean(g.To), cmp.Or(name, "not tried yet")))
	line := a.labels(12, 1000)
	if g.Problem.Code != "" {
		line("cause", "%s", cause(g.To, &g.Problem, ""))
	}
	if show == admin.ShowDead || show == admin.ShowWaiting {
		line("what helps", "%s", g.Problem.Advice)
		line("recipient", "%s", a.stateWords(g.Recipient))
	}
	times := a.when(g.First) + " to " + a.when(g.Last)
	if g.First.Equal(g.Last) {
		times = a.when(g.Last)
	}
	words := map[admin.Show]string{admin.ShowDead: "given up", admin.ShowRecovered: "troubled"}
	line(cmp.Or(words[show], string(show)), "%s, %s at most", times, plural(g.Attempts, "attempt", "attempts"))
	if g.Expired > 0 {
		line("late", "%d past their deadline: a retry would only say so", g.Expired)
	}
	if g.Failed > 0 {
		line("answered", "%d with a failure", g.Failed)
	}
	for i := range g.Newest {
		m := &g.Newest[i]
		said := strings.TrimSpace(strings.Join([]string{m.Kind.String(), m.Skill, m.Act, clean(m.Preview)}, " "))
		line("message", "%s from %s: %s", a.id(m.Message), clean(m.From), short(said, 100))
	}
}

func (a *app) deadJobs() *cobra.Command {
	var stop string
	c := &cobra.Command{
		Use: "jobs [JOB]", Short: "Show how retries with --rate go on, or stop one", Args: cobra.MaximumNArgs(1),
		Long: "Show how retries with --rate go on in the hub, or stop one. What was retried by then stays\n" +
			"retried. The hub keeps the last 20 until it ends; parley audit has the outcome of each.",
		Example: "  parley dead jobs\n  parley dead jobs --stop 3",
		PreRunE: func(_ *cobra.Command, args []string) error {
			if stop != "" && len(args) > 0 {
				return usage("name one job, or stop one, not both")
			}
			return nil
		},
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, args []string) error {
			switch {
			case stop != "":
				j, err := hub.StopJob(ctx, stop)
				if err != nil {
					return err
				}
				return a.print(j, "job %s is stopped; it has retried %d of %d\n", j.ID, j.Done, j.Matched)
			case len(args) > 0:
				j, err := hub.Job(ctx, args[0])
				if err != nil {
					return err
				}
				if a.json {
					return a.print(j, "")
				}
				return a.showJobs([]admin.Job{j})
			}
			list, err := hub.Jobs(ctx)
			if err != nil {
				return err
			}
			return a.showJobs(list)
		}),
	}
	c.Flags().StringVar(&stop, "stop", "", "stop this job")
	return c
}

func (a *app) showJobs(list []admin.Job) error {
	titles := []string{"JOB", "STARTED", "BY", "RATE", "RETRIED", "OF", "FAILED", "OUTCOME"}
	return printList(a, list, "no retry has had a rate since the hub started", titles, func(j *admin.Job) []string {
		return []string{j.ID, a.when(j.Started), j.By, fmt.Sprintf("%g/s", j.Rate), strconv.Itoa(j.Done),
			strconv.Itoa(j.Matched), strconv.Itoa(j.Tried - j.Done), j.Outcome}
	})
}

// warnUnknown says after the retry of one dead letter that the recipient may have had it before.
func (a *app) warnUnknown(d *admin.DeadLetter) {
	if d.Reason.Code == parley.OutcomeUnknown && !a.json {
		fmt.Fprintf(a.errs, "%s may have had it before: its outcome was unknown\n", clean(d.To))
	}
}
