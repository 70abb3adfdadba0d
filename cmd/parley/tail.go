package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/journal/index"
)

func (a *app) tailCommand() *cobra.Command {
	var m messageFlags
	var count int
	c := &cobra.Command{
		Use:   "tail",
		Short: "Show messages, deliveries and refusals as they happen",
		Long: `Show messages, the steps of their deliveries, and refusals, one line each, as they happen,
until interrupted. With several flags all of them must match.`,
		Example: `  parley tail
  parley tail --agent weather --failed
  parley tail --slow 2s --via mcp
  parley tail --refused --json`,
		PreRunE: func(*cobra.Command, []string) error {
			if count < 0 {
				return usage("--count %d: want 0 or more", count)
			}
			return m.parse()
		},
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, _ []string) error {
			if err := m.find(ctx, a, hub); err != nil {
				return err
			}
			return a.tail(ctx, hub, m.Filter, count)
		}),
	}
	m.register(c)
	c.Flags().BoolVar(&m.Failed, "failed", false, "only failures: refusals, error answers, failed attempts, dead letters")
	c.Flags().BoolVar(&m.Refused, "refused", false, "only refusals")
	c.Flags().BoolVar(&m.Waiting, "waiting", false, "only deliveries that wait for their next attempt")
	c.Flags().IntVar(&count, "count", 0, "end after this many lines (default: never)")
	return c
}

func (a *app) tail(ctx context.Context, hub *admin.Client, f index.Filter, count int) error {
	n := 0
	started := func() {
		if !a.json {
			fmt.Fprintln(a.errs, "following; interrupt to end")
		}
	}
	for e, err := range hub.Tail(ctx, f, started) {
		if err != nil {
			if ctx.Err() != nil {
				return nil // an interrupt is the normal end
			}
			return err
		}
		if e.Dropped != nil {
			return errors.New(clean(e.Dropped.Reason))
		}
		if err := a.writeEvent(&e); err != nil {
			return err
		}
		if n++; n == count {
			return nil
		}
	}
	return nil
}

// writeEvent writes an event as one line.
func (a *app) writeEvent(e *admin.Event) error {
	switch {
	case e.Message != nil:
		m := e.Message
		what := short(m.Preview, 60)
		if m.Error != nil {
			what = brief(m.Error, 80)
		}
		if m.Refused {
			what = "REFUSED " + what
		}
		return a.print(map[string]any{"event": "message", "message": m}, "%s  %s  %s  %s  %s  %s\n", clock(m.Time),
			parties(m), kindAndSkill(m), proof(m), m.ID, what)
	case e.Delivery != nil:
		d := e.Delivery
		line := fmt.Sprintf("%s  to %s: %s", clock(d.Time), short(d.To, 40), d.State)
		if d.State == parley.Delivering {
			line += fmt.Sprintf(" (attempt %d)", d.Attempt)
		}
		if d.State == parley.Waiting && !d.Next.IsZero() {
			line += " until " + clock(d.Next)
		}
		line += "  " + d.Message.String()
		if d.Error != nil {
			line += "  " + brief(d.Error, 80)
		}
		return a.print(map[string]any{"event": "delivery", "delivery": d}, "%s\n", line)
	default:
		r := e.Refusal
		return a.print(map[string]any{"event": "refused", "refused": r},
			"%s  REFUSED %s from %s as %q: %s at %q: %s  (parley explain %s)\n", clock(r.Time), short(r.Protocol, 12),
			short(r.Source, 60), short(r.Claim, 60), r.Code, short(r.Step, 30), short(why(r), 120), r.Ref)
	}
}
