package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/admin"
)

func (a *app) agentsChecklist() *cobra.Command {
	return &cobra.Command{
		Use: "checklist [NAME]", Short: "Show how far agents are connected, step by step", Args: cobra.MaximumNArgs(1),
		Long: `Show how far an agent is connected that "parley agents add --wait" or the console added: whether
the hub reaches it, its card and key, whether it accepts the hub's key, its first proved
message, and its first answer. Each failed step names the setting or command that mends it.
The hub works on the list for an hour, and keeps it in memory.

The exit code is 0 if no step failed, 1 if one did, 4 if the hub connects no such agent.`,
		Example: "  parley agents checklist museum\n  parley agents checklist --json",
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
				list = append(list, v)
			}
			failed := false
			for _, v := range list {
				failed = failed || v.State == admin.StepFailed
			}
			return a.verdict(!failed, map[string]any{"checklists": list}, func() error { return a.showChecklists(list) })
		}),
	}
}

func (a *app) showChecklists(list []admin.Checklist) error {
	if len(list) == 0 {
		return a.print(nil, "the hub connects no agent; `parley agents add NAME … --wait 2m` does\n")
	}
	for _, v := range list {
		fmt.Fprintf(a.out, "%s %s: %s since %s\n", clean(v.Agent), v.Protocol, v.State, a.when(v.Begun))
		for _, s := range v.Steps {
			state := a.painted(mood(string(s.State)), fmt.Sprintf("%-10s", s.State))
			a.hang(fmt.Sprintf("  %s %-14s ", state, s.Step), 28, "", clean(s.Detail))
			if s.Fix != "" {
				a.hang(fmt.Sprintf("%28s-> ", ""), 31, "", clean(s.Fix))
			}
			if s.Ref != "" {
				a.hang(fmt.Sprintf("%28s-> ", ""), 31, "", strings.TrimSpace("parley explain "+clean(s.Ref)))
			}
		}
	}
	return nil
}
