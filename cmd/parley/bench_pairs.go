package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/internal/bench"
)

func (a *app) benchPairsCommand() *cobra.Command {
	c := bench.PairsConfig{}
	var storage []string
	cmd := &cobra.Command{
		Use:   "pairs",
		Short: "Requests and their answers from every protocol to every other",
		Long: `Measure the CPU time of a hub's process for one request and its answer, from agents of
each protocol to agents of each other, all on real sockets. It is compared with the sum
of two floors, one for each end: the CPU time of a bare program that exchanges the same
requests, events, messages and signatures with as many peers, makes the same appends,
and does nothing else. It needs Linux.`,
		Example: `  parley bench pairs
  parley bench pairs --only 'samvad->agh' --storage disk --duration 10s
  parley bench pairs --agents 10000 --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := measurable(&c.Config, storage); err != nil {
				return err
			}
			if c.Peers < 1 || c.Peers > 1000 {
				return usage("--peers %d: want 1 to 1000", c.Peers)
			}
			for _, pair := range c.Only {
				from, to, _ := strings.Cut(pair, "->")
				if protocolNamed(from) == nil || protocolNamed(to) == nil {
					return usage("--only %q: want FROM->TO, each of them %s; quote it, for shells take > for "+
						"themselves", pair, protocolNames("or"))
				}
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			c.Hub, c.Floor = []string{self, "serve", "--log", "error"}, []string{self, "bench", "floor"}
			if !a.json {
				fmt.Fprintf(a.out, "%-18s %7s %7s %9s %10s %10s %6s\n", "pair", "storage", "agents", "messages",
					"cpu/msg", "floor", "ratio")
			}
			return bench.Pairs(cmd.Context(), c, func(r bench.PairRow) {
				_ = a.print(r, "%-18s %7s %7d %9d %10s %10s %6.2f\n", r.From+" -> "+r.To, r.Storage, r.Agents,
					r.Messages, round(r.CPU), round(r.Floor), r.Ratio)
			})
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&c.Only, "only", nil, "pairs to measure, such as samvad->agh (default all)")
	f.IntVar(&c.Peers, "peers", 4, "agents that ask at once, each a different one")
	f.IntVar(&c.Agents, "agents", 0, "agents in the directory besides those that talk")
	f.DurationVar(&c.Duration, "duration", 2*time.Second, "of each measurement")
	f.IntVar(&c.Payload, "payload", 1024, "bytes of a message")
	f.StringSliceVar(&storage, "storage", nil, "of the hub: memory, disk (default both)")
	f.StringVar(&c.Dir, "dir", "", "directory for the hub's records (default: the temporary directory)")
	return cmd
}

// benchFloorCommand runs one end of the floor measurement, as a process that "bench
// pairs" starts.
func (a *app) benchFloorCommand() *cobra.Command {
	return &cobra.Command{Use: "floor", Hidden: true, Short: "The floor of an end for bench pairs, which runs it",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return bench.Floor(cmd.Context(), os.Stdin, a.out)
		}}
}
