package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/admin"
)

func (a *app) agentsChecklist() *cobra.Command {
	var watch bool
	c := &cobra.Command{
		Use: "checklist [NAME]", Short: "Show how far agents are connected, step by step", Args: cobra.MaximumNArgs(1),
		Long: `Show how far an agent is connected that "parley agents add --wait" or the console added: whether
the hub reaches it, its card and key, whether it accepts the hub's key, its first proved
message, and its first answer. Each failed step names the setting or command that mends it.
The hub works on the list for an hour, also over a restart.

With --watch each step is shown as it turns, until all are done or the hub waits no longer;
with --json one line of JSON for each step that turned.

The exit code is 0 if no step failed, 1 if one did, 4 if the hub connects no such agent.`,
		Example: "  parley agents checklist museum\n  parley agents checklist museum --watch\n  " +
			"parley agents checklist --json",
		PreRunE: func(_ *cobra.Command, args []string) error {
			if watch && len(args) == 0 {
				return usage("say which agent --watch is for: NAME")
			}
			return nil
		},
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, args []string) error {
			var list []admin.Checklist
			if len(args) == 0 {
				var err error
				if list, err = hub.Checklists(ctx); err != nil {
					return err
				}
			} else {
				v, err := hub.Checklist(ctx, args[0])
				if err != nil {
					return a.hubError(err, "`parley agents checklist` lists those there are")
				}
				if watch {
					v, err = a.watchSteps(ctx, hub, v, func(v *admin.Checklist) bool { return false })
					if err != nil {
						return err
					}
					return a.verdict(v.State != admin.StepFailed, nil, func() error { return nil })
				}
				list = append(list, v)
			}
			failed := false
			for _, v := range list {
				failed = failed || v.State == admin.StepFailed
			}
			return a.verdict(!failed, map[string]any{"checklists": list}, func() error { return a.showChecklists(list) })
		}),
	}
	c.Flags().BoolVar(&watch, "watch", false, "show each step as it turns")
	return c
}

func (a *app) showChecklists(list []admin.Checklist) error {
	if len(list) == 0 {
		return a.print(nil, "the hub connects no agent; `parley agents add NAME … --wait 2m` does\n")
	}
	for _, v := range list {
		fmt.Fprintf(a.out, "%s %s: %s since %s\n", clean(v.Agent), v.Protocol, v.State, a.when(v.Begun))
		for _, s := range v.Steps {
			a.showStep(&s)
		}
	}
	return nil
}

func (a *app) showStep(s *admin.ConnectStep) {
	state := a.painted(mood(string(s.State)), fmt.Sprintf("%-10s", s.State))
	a.hang(fmt.Sprintf("  %s %-14s ", state, s.Step), 28, "", clean(s.Detail))
	if s.Fix != "" {
		a.hang(fmt.Sprintf("%28s-> ", ""), 31, "", clean(s.Fix))
	}
	if s.Ref != "" {
		a.hang(fmt.Sprintf("%28s-> ", ""), 31, "", strings.TrimSpace("parley explain "+clean(s.Ref)))
	}
}

// turnWait is how long a command waits for the next step of a checklist in one request.
const turnWait = 30 * time.Second

// watchSteps shows the steps of a checklist as they turn, until the list is over, enough says so, or the context ends:
// on a terminal as lines that change, else a line for each step that turned.
func (a *app) watchSteps(ctx context.Context, hub *admin.Client, v admin.Checklist,
	enough func(*admin.Checklist) bool) (admin.Checklist, error) {
	w := &stepsView{app: a}
	for {
		if err := w.show(&v); err != nil {
			return v, err
		}
		if v.State == admin.StepDone || v.State == admin.StepGaveUp || enough(&v) {
			return v, nil
		}
		next, err := hub.NextChecklist(ctx, v.Agent, v.Version, turnWait)
		if err != nil && ctx.Err() != nil {
			return v, nil
		}
		if err != nil {
			return v, err
		}
		v = next
	}
}

// stepsView is what of a checklist was shown.
type stepsView struct {
	*app
	lines int // on the terminal
	last  []admin.ConnectStep
}

// show shows the steps that have turned.
func (w *stepsView) show(v *admin.Checklist) error {
	if w.screen.width > 0 && !w.json {
		return w.redraw(v)
	}
	for i, s := range v.Steps {
		if i < len(w.last) && w.last[i] == s || len(w.last) == 0 && s.State == admin.StepWaiting {
			continue
		}
		if !w.json {
			w.showStep(&s)
			continue
		}
		if err := w.print(struct {
			Agent string `json:"agent"`
			admin.ConnectStep
		}{v.Agent, s}, ""); err != nil {
			return err
		}
	}
	w.last = v.Steps
	return nil
}

// redraw writes the list in place of the one before.
func (w *stepsView) redraw(v *admin.Checklist) error {
	var b bytes.Buffer
	out := w.out
	w.out = &b
	err := w.showChecklists([]admin.Checklist{*v})
	w.out = out
	if err != nil {
		return err
	}
	if w.lines > 0 {
		fmt.Fprintf(w.out, "\x1b[%dA\x1b[J", w.lines)
	}
	w.lines = bytes.Count(b.Bytes(), []byte("\n"))
	_, err = w.out.Write(b.Bytes())
	return err
}
