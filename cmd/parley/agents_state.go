package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/hub"
)

// This file says in words whether messages reach an agent, and how they are retried.

// stateWords says what state an agent is in, as one clause. It is "" for a ready agent.
func (a *app) stateWords(s *admin.AgentState) string {
	if s == nil {
		return ""
	}
	next := ""
	if !s.Next.IsZero() {
		next = "; next attempt " + a.when(s.Next)
	}
	failed := fmt.Sprintf("%s: %s (%s%s)", a.since(s.Since), stateReason(s),
		plural(s.Failures, "failed attempt", "failed attempts"), next)
	switch s.State {
	case hub.Ready:
		return ""
	case hub.Paused:
		return pausedWords(s, a.since) + ": its messages wait at the hub"
	case hub.Unreachable:
		return "cannot be reached " + failed
	case hub.Failing:
		return "fails " + failed
	case hub.Postponed:
		return fmt.Sprintf("asked the hub to come back later: %s%s", stateReason(s), next)
	case hub.NotConnected:
		return "is not connected: its messages wait at the hub"
	case hub.NoReader:
		return "has an inbox that nobody reads: its messages wait at the hub (parley listen)"
	}
	return string(s.State)
}

// pausedWords says since when an agent is paused, by whom and why.
func pausedWords(s *admin.AgentState, since func(time.Time) string) string {
	words := "paused"
	if !s.Since.IsZero() {
		words += " " + since(s.Since)
	}
	if s.PausedBy != "" {
		words += " by " + clean(s.PausedBy)
	}
	if s.PausedWhy != "" {
		words += " (" + short(clean(s.PausedWhy), 160) + ")"
	}
	return words
}

func stateReason(s *admin.AgentState) string {
	p := s.Reason
	if p == nil {
		return "no reason was recorded"
	}
	words := strings.ReplaceAll(string(cmp.Or(string(p.Reason), string(p.Code))), "_", " ")
	return short(cmp.Or(p.Detail, p.Text, words), 160)
}

// tellState says on the error output, before the command waits, that messages do not
// reach the recipient now. A paused recipient is told with the receipt. It fails only if
// no hub answers; sending shows any other error.
func (a *app) tellState(ctx context.Context, client *admin.Client, to string) error {
	if a.json {
		return nil // the receipt has it
	}
	s, err := client.AgentState(ctx, to)
	if away, ok := errors.AsType[*admin.UnreachableError](err); ok {
		return away
	}
	if err != nil || s.State == hub.Ready || s.State == hub.Paused {
		return nil
	}
	after := "; the message is recorded, and tried all the same"
	if s.State != hub.Unreachable && s.State != hub.Failing {
		after = ""
	}
	fmt.Fprintf(a.errs, "%s %s%s\n", clean(to), a.stateWords(&s), after)
	return nil
}

// tellRecipients says of each recipient of dead letters whether messages reach it now.
func (a *app) tellRecipients(list []admin.DeadLetter) {
	var told []string
	for _, d := range list {
		if d.Recipient == nil || slices.Contains(told, d.To) || a.json {
			continue
		}
		if len(told) == 10 {
			fmt.Fprintln(a.out, "…")
			return
		}
		told = append(told, d.To)
		a.hang("", rowIndent, "", clean(d.To)+" "+a.stateWords(d.Recipient))
	}
}

// scheduleWords says how messages to an agent are retried.
func scheduleWords(d *admin.AgentDelivery) string {
	if d == nil {
		return "" // an earlier version of the hub
	}
	times := fmt.Sprintf("retried after about %s, then about twice as long each time up to %s, at most %d attempts "+
		"within %s", spoken(d.First), spoken(d.Longest), d.Tries, spoken(d.Patience))
	if d.Tries == 1 {
		times = "tried once, and not retried"
	}
	if !d.Ordered {
		return times + "; later messages of a conversation overtake one that failed"
	}
	return times + "; in order per conversation"
}

// spoken writes a duration of the API for people: "1 h 30 min".
func spoken(text string) string {
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Second {
		return text
	}
	var parts []string
	for _, u := range []struct {
		name string
		unit time.Duration
	}{{"h", time.Hour}, {"min", time.Minute}, {"s", time.Second}} {
		if n := d / u.unit; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, u.name))
			d -= n * u.unit
		}
	}
	return strings.Join(parts, " ")
}

// deliveryFlags are the flags that set how messages to an agent are retried.
type deliveryFlags struct {
	command  *cobra.Command
	tries    int
	patience time.Duration
	ordered  bool
}

func (d *deliveryFlags) register(c *cobra.Command) {
	d.command = c
	f := c.Flags()
	f.IntVar(&d.tries, "tries", 0, "attempts before a message becomes a dead letter; 0: delivery.tries")
	f.DurationVar(&d.patience, "patience", 0, "how long a message is tried, at most; 0: delivery.for")
	f.BoolVar(&d.ordered, "ordered", true, "whether a message that fails holds up the later ones of its conversation")
}

// change has the flags that were given; nil without any.
func (d *deliveryFlags) change() *admin.DeliveryChange {
	var c admin.DeliveryChange
	f := d.command.Flags()
	if f.Changed("tries") {
		c.Tries = &d.tries
	}
	if f.Changed("patience") {
		text := d.patience.String()
		c.Patience = &text
	}
	if f.Changed("ordered") {
		c.Ordered = &d.ordered
	}
	if c == (admin.DeliveryChange{}) {
		return nil
	}
	return &c
}

func (a *app) agentsDelivery() *cobra.Command {
	var d deliveryFlags
	c := &cobra.Command{
		Use: "delivery NAME", Short: "Set how messages to an agent are retried", Args: cobra.ExactArgs(1),
		Long: `Set how messages to an agent are retried when they cannot be delivered. What is
not given stays as it is. It applies to messages that wait already, too. For an
agent of the configuration file set agents.NAME.delivery there.`,
		Example: `  parley agents delivery weather --tries 5 --patience 2h
  parley agents delivery weather --ordered=false`,
		PreRunE: func(*cobra.Command, []string) error {
			if d.change() == nil {
				return usage("say what to set: --tries, --patience or --ordered (`parley agents show NAME` shows them)")
			}
			return nil
		},
		RunE: a.withHub(func(ctx context.Context, client *admin.Client, args []string) error {
			v, err := client.SetDelivery(ctx, args[0], *d.change())
			if err != nil {
				return err
			}
			return a.print(v, "agent %s: %s\n", v.Name, scheduleWords(v.Delivery))
		}),
	}
	d.register(c)
	return c
}
