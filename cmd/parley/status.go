package main

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/admin"
)

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show a running hub on one screen", Args: cobra.NoArgs,
		Long: `Show a running hub on one screen: what it promises, and the numbers of the moment. Lines
with ! need an operator, because what they show does not mend itself.

The exit code is 0 if nothing does, 1 if something does, 3 if no hub answers.`,
		Example: "  parley status\n  parley status --json",
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, _ []string) error {
			s, err := hub.Status(ctx)
			if err != nil {
				return err
			}
			return a.verdict(!s.Alarm, s, func() error { return a.showStatus(&s) })
		}),
	}
}

func (a *app) showStatus(s *admin.Status) error {
	line := a.labels(14, 1000)
	gauge := func(name string, g admin.Gauge, text string) {
		if g.Alarm {
			name, text = "! "+name, text+": "+g.Text
		}
		line(name, "%s", text)
	}
	count := func(name string, g admin.Gauge) { gauge(name, g, strconv.FormatUint(g.Number, 10)) }
	line("hub", "%s, parley %s", s.Hub, s.Version)
	if !s.Started.IsZero() {
		line("started", "%s", a.when(s.Started))
	}
	line("accepted", "= %s", s.Accepted)
	health := "takes messages"
	if s.Health.Number == 0 {
		health = "takes no messages"
	}
	gauge("health", s.Health, health)
	if s.Free.Number > 0 || s.Free.Alarm {
		gauge("free", s.Free, size(s.Free.Number))
	}
	gauge("refused", s.Refused, strconv.FormatUint(s.Refused.Number, 10)+" in the last minute")
	count("dead letters", s.Dead)
	waiting := strconv.FormatUint(s.Waiting.Number, 10) + " not settled"
	if !s.Oldest.IsZero() {
		waiting += "; the oldest waits " + a.since(s.Oldest)
	}
	gauge("deliveries", s.Waiting, waiting)
	count("agents", s.Agents)
	count("not reached", s.NotReached)
	count("paused", s.Paused)
	lag := "up to date"
	if s.Lag.Number > 0 {
		lag = "behind by " + plural(int(s.Lag.Number), "record", "records")
	}
	gauge("index", s.Lag, lag)
	for _, w := range s.Warnings {
		line("warning", "%s", w)
	}
	return nil
}
