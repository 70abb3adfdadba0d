package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/hub"
)

// This file shows agents with the state of each identity, where they came from and who may call them, and what a change
// would do.

// wideAgents prints the list with state, stand-ins, messages that wait, and origin.
func (a *app) wideAgents(page *admin.AgentPage) error {
	titles := []string{"AGENT", "STATE", "ITSELF", "STAND-INS", "LAST HEARD OF", "WAITING", "DEAD", "OLDEST", "FROM"}
	var rows [][]string
	for i := range page.Agents {
		v := &page.Agents[i]
		seen, waiting, dead, oldest := "", "", "", ""
		if v.Seen != nil {
			seen = a.when(v.Seen.Time) + " " + v.Seen.Assurance.String()
		}
		if w := v.Waiting; w != nil {
			waiting, dead = strconv.Itoa(w.Open), strconv.Itoa(w.Dead)
			if w.Open > 0 {
				oldest = a.when(w.Oldest)
			}
		}
		var standIns []string
		for _, b := range v.Bindings {
			if b.StandIn && !slices.Contains(standIns, b.Protocol) {
				standIns = append(standIns, b.Protocol)
			}
		}
		state := strings.ReplaceAll(string(v.State), "_", " ")
		if v.State != hub.Ready && !v.Since.IsZero() {
			state += " " + a.since(v.Since)
		}
		rows = append(rows, []string{v.Name, state, strings.Join(v.Native, ","), strings.Join(standIns, ","), seen,
			waiting, dead, oldest, v.Origin.Text})
	}
	err := a.table(titles, rows, func(row int) []string { return a.troubles(&page.Agents[row]) })
	if err == nil {
		fmt.Fprintf(a.errs, "last heard of: since the hub started, %s\n", a.when(page.HeardSince))
	}
	return err
}

// troubles says what is wrong with an agent: of each own identity that has a reason.
func (a *app) troubles(v *admin.Agent) (out []string) {
	for i := range v.Bindings {
		if b := &v.Bindings[i]; b.Reason != nil {
			out = append(out, b.Protocol+": "+a.stateWords(&b.AgentState))
		}
	}
	return out
}

// bindingWords says what there is to say of the state of an identity.
func (a *app) bindingWords(b *admin.AgentBinding) string {
	var parts []string
	if s := a.stateWords(&b.AgentState); s != "" {
		if b.Reason == nil && !b.Since.IsZero() {
			s += ", " + a.since(b.Since)
		}
		parts = append(parts, s)
	} else if text := b.Text; text != "" {
		if !b.Since.IsZero() {
			text += " " + a.since(b.Since)
		}
		parts = append(parts, text)
	}
	if !b.Heard.IsZero() {
		parts = append(parts, "last sign of life "+a.when(b.Heard))
	}
	return strings.Join(parts, "; ")
}

// showBindings prints the state of each identity, and what callers of stand-ins lose.
func (a *app) showBindings(v *admin.Agent, line func(label, format string, args ...any)) {
	for i := range v.Bindings {
		b := &v.Bindings[i]
		kind := "itself"
		if b.StandIn {
			kind = "stand-in"
		}
		line("by "+b.Protocol, "%s: %s", kind, cmp.Or(a.bindingWords(b), "ready"))
		if len(b.Losses) > 0 {
			line("", "callers lose: %s", strings.Join(b.Losses, ", "))
		}
	}
}

// placeWords names a place in the file for people.
func placeWords(p admin.Place) string {
	if p.Line == 0 {
		return ""
	}
	return " (" + p.String() + ")"
}

// showCallers prints who may call an agent, and by which rule.
func showCallers(c *admin.Callers, line func(label, format string, args ...any)) {
	if c == nil {
		return // an earlier version of the hub
	}
	switch {
	case c.Open:
		line("callers", "all who find it: the hub has no rules ([[allow]])")
	case len(c.Rules) == 0:
		line("callers", "none: no rule names it ([[allow]])")
	}
	for _, r := range c.Rules {
		line("callers", "%s may call %s, by rule %d%s", r.From, strings.Join(r.To, ", "), r.Number, placeWords(r.Place))
	}
	var words []string
	in := map[string][]string{}
	for _, l := range c.Least {
		w := l.Assurance.String() + placeWords(l.Place)
		if in[w] == nil {
			words = append(words, w)
		}
		in[w] = append(in[w], l.Protocol)
	}
	for _, w := range words {
		line("least proof", "%s in %s", w, strings.Join(in[w], ", "))
	}
}

// printPreview says what a change would do.
func (a *app) printPreview(p admin.Preview, err error) error {
	if err != nil {
		return err
	}
	return a.print(p, "%s\nnothing is changed; to do it: %s\n", clean(strings.Join(p.Text, "\n")), clean(p.Command))
}

// dryRun adds the flag --dry-run to a command that asks the hub. preview is called in place of the command.
func (a *app) dryRun(c *cobra.Command, preview func(context.Context, *admin.Client, []string) (admin.Preview, error)) {
	dry, run := false, c.RunE
	c.Flags().BoolVar(&dry, "dry-run", false, "only say what would change")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if !dry {
			return run(cmd, args)
		}
		return a.withHub(func(ctx context.Context, hub *admin.Client, args []string) error {
			return a.printPreview(preview(ctx, hub, args))
		})(cmd, args)
	}
}

// agentsChosen adds the flags that choose agents of a list.
func agentsChosen(c *cobra.Command, f *admin.AgentFilter, wide, trouble *bool) {
	flags := c.Flags()
	flags.StringVar(&f.Q, "search", "",
		"only agents with this text in the name, the title, an id or URL, a skill or a key")
	flags.StringVar(&f.State, "state", "", "only agents in this state: ready, paused, unreachable, failing, waiting, "+
		"not_connected or no_reader")
	flags.StringVar(&f.Protocol, "protocol", "", "only agents that speak this protocol themselves")
	flags.BoolVar(&f.StandIn, "stand-ins", false, "only agents for which the hub stands in")
	flags.BoolVar(&f.Guest, "guests", false, "only agents for whom nobody vouches")
	flags.StringVar(&f.CallableBy, "callable-by", "", "only agents that this agent may send to through the hub's API")
	flags.BoolVar(trouble, "trouble", false, "only agents that are not ready, the worst state first")
	flags.StringVar(&f.Order, "order", "", "name, or trouble: those that are not ready first (default name)")
	flags.BoolVar(wide, "wide", false, "also since when, stand-ins, messages that wait, and where each agent came from")
}
