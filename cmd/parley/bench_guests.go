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
	"golang.org/x/term"

	"github.com/parley-hub/parley/internal/bench"
)

func (a *app) benchGuestsCommand() *cobra.Command {
	c := bench.GuestsConfig{}
	cmd := &cobra.Command{
		Use:   "guests",
		Short: "What guests can do to a hub while enrolled agents talk",
		Long: `Attack a hub in every way that is open to guests, all at once and from several
addresses, while ten enrolled agents, two of each protocol, talk with each other.
The hub has a process of its own, with its records on disk. So have the attackers,
at a low priority: on a network they have machines of their own. The agents talk
for a while without an attack first. Measured are the hub's memory, its
data (less what the agents' own messages cost, by the bytes of a message without an
attack), their failures and latencies, and a restart.

Exit code 0 says that every bound holds, 1 that one does not. It needs Linux.`,
		Example: `  parley bench guests
  parley bench guests --duration 10s --dir .
  parley bench guests --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			steadyHeap()
			if c.Duration <= 0 {
				return usage("--duration %s: want more than nothing", c.Duration)
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
			show := a.phases()
			c.Progress = show.begin
			r, err := bench.Guests(cmd.Context(), c)
			show.end()
			if err != nil {
				return err
			}
			if a.json {
				err = a.print(r, "")
			} else {
				err = guestsTable(a.out, r)
			}
			if err == nil && !r.Holds() {
				err = &exitError{code: exitFailed} // the report says it
			}
			return err
		},
	}
	cmd.AddCommand(&cobra.Command{Use: "attackers", Hidden: true, Short: "The attackers of bench guests, which runs them", Args: cobra.NoArgs,
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
	f.StringVar(&c.Dir, "dir", "", "where the hub keeps its records: choose a real disk (default: the temporary directory)")
	return cmd
}

// guestsTable writes a report for people.
func guestsTable(out io.Writer, r *bench.GuestsReport) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "ATTACK\tSENT\tTAKEN\tREFUSED\tTRY LATER\tBROKEN\tCHANGED\tMiB")
	for _, g := range r.Attacks {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%.1f\n",
			g.Name, g.Sent, g.Taken, g.Refused, g.Later, g.Broken, g.Changed, float64(g.Bytes)/(1<<20))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, g := range r.Attacks {
		if g.Error != "" {
			fmt.Fprintf(out, "  %s: %s\n", g.Name, short(g.Error, 200))
		}
	}
	mib := func(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
	fmt.Fprintln(out)
	w = tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "\tBEFORE\tPEAK\tAFTER")
	fmt.Fprintf(w, "memory\t%s\t%s\t%s\n", mib(r.Memory.Before), mib(r.Memory.Peak), mib(r.Memory.After))
	fmt.Fprintf(w, "disk\t%s\t-\t%s, of which %s are the agents'\n", mib(r.Disk.Before), mib(r.Disk.After), mib(r.Own))
	fmt.Fprintln(w, "\nENROLLED AGENTS\tASKED\tFAILED\tP50\tP99")
	for _, t := range []struct {
		when string
		bench.Talk
	}{{"without an attack", r.Quiet}, {"under attack", r.Under}} {
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\n", t.when, t.Asked, t.Failed, round(t.P50), round(t.P99))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, t := range []bench.Talk{r.Quiet, r.Under} {
		for _, e := range slices.Sorted(maps.Keys(t.Errors)) {
			fmt.Fprintf(out, "  %d times %s\n", t.Errors[e], short(e, 200))
		}
	}
	fmt.Fprintln(out)
	w = tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "BOUND\tWAS\tWANT\t")
	for _, b := range r.Bounds {
		verdict := "holds"
		if !b.Holds {
			verdict = "DOES NOT HOLD"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", b.What, b.Was, b.Want, verdict)
	}
	return w.Flush()
}

// phases shows on a terminal what a long command is at.
type phases struct {
	out  *os.File // nil: nowhere
	over chan struct{}
	done chan struct{}
}

func (a *app) phases() *phases {
	if f, ok := a.errs.(*os.File); ok && !a.json && term.IsTerminal(int(f.Fd())) {
		return &phases{out: f}
	}
	return &phases{}
}

// begin shows a phase and, where it lasts for a known time, how much is left.
func (p *phases) begin(what string, of time.Duration) {
	if p.end(); p.out == nil {
		return
	}
	p.over, p.done = make(chan struct{}), make(chan struct{})
	began := time.Now()
	go func() {
		defer close(p.done)
		t := time.NewTicker(time.Second)
		defer t.Stop()
		for {
			left := ""
			if of > 0 {
				left = ", " + max(0, of-time.Since(began)).Round(time.Second).String() + " left"
			}
			fmt.Fprintf(p.out, "\r\x1b[K%s%s", what, left)
			select {
			case <-t.C:
			case <-p.over:
				fmt.Fprint(p.out, "\r\x1b[K")
				return
			}
		}
	}()
}

// end takes the phase off the terminal.
func (p *phases) end() {
	if p.over != nil {
		close(p.over)
		<-p.done
		p.over = nil
	}
}
