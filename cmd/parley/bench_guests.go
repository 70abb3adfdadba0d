package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/internal/bench"
)

func (a *app) benchGuestsCommand() *cobra.Command {
	c := bench.GuestsConfig{}
	cmd := &cobra.Command{
		Use:   "guests",
		Short: "Attack a hub as guests can, while enrolled agents talk",
		Long: `Attack a hub in every way that is open to guests, all at once and from several
addresses, while ten enrolled agents, two of each protocol, talk with each other.
The hub runs in a process of its own with its records on disk. The attackers run in
another one with a low priority, because on a network they have machines of their own.
First the agents talk for a while without an attack.

The report has the growth of the hub's memory and data (less the bytes that the agents'
own messages take without an attack), the agents' failures and latencies, and the time
of a restart. The exit code is 0 if every bound holds, else 1. It needs Linux.`,
		Example: `  parley bench guests
  parley bench guests --duration 10s --dir .
  parley bench guests --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.Duration <= 0 {
				return usage("--duration %s: want more than 0s", c.Duration)
			}
			if err := existing(c.Dir); err != nil {
				return err
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			c.Hub = []string{self, "serve", "--log", "error"}
			c.Attackers = []string{"nice", "-n", "10", self, "bench", "guests", "attackers"}
			if f := a.terminal(); f != nil {
				c.Progress = func(phase string, of time.Duration) {
					if of > 0 {
						phase += ", " + of.String()
					}
					fmt.Fprintln(f, phase)
				}
			}
			r, err := bench.Guests(cmd.Context(), c)
			if err != nil {
				return err
			}
			return a.verdict(r.Holds(), r, func() error { return guestsTable(a.out, r) })
		},
	}
	cmd.AddCommand(&cobra.Command{Use: "attackers", Hidden: true,
		Short: "The attackers of bench guests, which runs them",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var c bench.GuestAttackers
			if err := json.NewDecoder(cmd.InOrStdin()).Decode(&c); err != nil {
				return err
			}
			out, err := c.Run(cmd.Context())
			if err != nil {
				return err
			}
			return json.NewEncoder(a.out).Encode(out)
		}})
	f := cmd.Flags()
	f.DurationVar(&c.Duration, "duration", time.Minute, "of the attack")
	f.StringVar(&c.Dir, "dir", "", "directory for the hub's records: choose a real disk (default: the temporary "+
		"directory)")
	return cmd
}

// guestsTable writes a report for people. A line without tabs ends the columns of a table.
func guestsTable(out io.Writer, r *bench.GuestsReport) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "ATTACK\tSENT\tTAKEN\tREFUSED\tTRY LATER\tBROKEN\tCHANGED\tMiB")
	for _, g := range r.Attacks {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%.1f\n",
			g.Name, g.Sent, g.Taken, g.Refused, g.Later, g.Broken, g.Changed, float64(g.Bytes)/(1<<20))
	}
	for _, g := range r.Attacks {
		if g.Error != "" {
			fmt.Fprintf(w, "  %s: %s\n", g.Name, short(g.Error, 200))
		}
	}
	mib := func(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
	fmt.Fprintln(w, "\n\tBEFORE\tPEAK\tAFTER")
	fmt.Fprintf(w, "memory\t%s\t%s\t%s\n", mib(r.Memory.Before), mib(r.Memory.Peak), mib(r.Memory.After))
	fmt.Fprintf(w, "disk\t%s\t-\t%s, of which %s are the agents'\n", mib(r.Disk.Before), mib(r.Disk.After), mib(r.Own))
	fmt.Fprintln(w, "\nENROLLED AGENTS\tASKED\tFAILED\tP50\tP99")
	for _, t := range []struct {
		when string
		bench.Talk
	}{{"without an attack", r.Quiet}, {"under attack", r.Under}} {
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\n", t.when, t.Asked, t.Failed, round(t.P50), round(t.P99))
	}
	for _, t := range []bench.Talk{r.Quiet, r.Under} {
		for _, e := range slices.Sorted(maps.Keys(t.Errors)) {
			fmt.Fprintf(w, "  %d times %s\n", t.Errors[e], short(e, 200))
		}
	}
	fmt.Fprintln(w, "\nBOUND\tWAS\tWANT\t")
	for _, b := range r.Bounds {
		verdict := "holds"
		if !b.Holds {
			verdict = "DOES NOT HOLD"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", b.What, b.Was, b.Want, verdict)
	}
	return w.Flush()
}
