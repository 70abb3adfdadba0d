package main

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/admin"
)

// followEvery is how often --follow looks for new refusals.
const followEvery = time.Second

func (a *app) refusedCommand() *cobra.Command {
	var last int
	var follow bool
	c := &cobra.Command{
		Use:   "refused",
		Short: "List refused messages and the reason of each",
		Long: `List the latest refused messages: time, source, claimed sender, and the check that failed.
The hub keeps them in memory. ` + "`parley explain REF`" + ` explains one and tells what to do.`,
		Example: `  parley refused
  parley refused --last 100 --json
  parley refused --follow`,
		PreRunE: func(*cobra.Command, []string) error {
			if last < 0 {
				return usage("--last %d: want 0 (all) or more", last)
			}
			return nil
		},
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, _ []string) error {
			list, err := hub.Refused(ctx, last)
			if err != nil {
				return err
			}
			if follow {
				return a.follow(ctx, hub, list)
			}
			titles := []string{"TIME", "REF", "BY", "SOURCE", "CLAIMS TO BE", "TO", "CHECK", "WHY", "BYTES"}
			none := "nothing was refused since the hub started"
			return printList(a, list, none, titles, func(r *admin.Refusal) []string {
				return []string{a.when(r.Time), r.Ref, r.Protocol, r.Source, shortName(r.Claim, 40),
					shortName(cmp.Or(r.Agent, r.To), 30), r.Step, short(why(r), 60), strconv.Itoa(r.Size)}
			})
		}),
	}
	c.Flags().IntVar(&last, "last", 20, "show at most this many; 0 means all that are kept")
	c.Flags().BoolVar(&follow, "follow", false, "show new ones too, until interrupted")
	return c
}

// why is the cause of a refusal, or the best substitute.
func why(r *admin.Refusal) string {
	return cmp.Or(r.Cause, r.Text, string(r.Code)) // a token with the role observe sees no text
}

// follow shows refusals as they come, the oldest first.
func (a *app) follow(ctx context.Context, hub *admin.Client, list []admin.Refusal) error {
	shown := map[string]bool{}
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		slices.Reverse(list)
		now := map[string]bool{}
		for _, r := range list {
			now[r.Ref] = true
			if shown[r.Ref] {
				continue
			}
			if err := a.print(r, "%s  %s  %s from %s as %q: %s at %q: %s\n", stamp(r.Time), r.Ref, r.Protocol, r.Source,
				short(r.Claim, 60), r.Code, r.Step, short(why(&r), 120)); err != nil {
				return err
			}
		}
		shown = now
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		var err error
		if list, err = hub.Refused(ctx, 0); err != nil && ctx.Err() == nil {
			return err
		}
	}
}
