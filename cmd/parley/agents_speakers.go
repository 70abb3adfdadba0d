package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/admin"
)

// agentsSpeakers lists the agents as which the token may speak.
func (a *app) agentsSpeakers() *cobra.Command {
	return &cobra.Command{
		Use: "speakers", Short: "List the agents that your token may speak as", Args: cobra.NoArgs,
		Long: `List the agents that your token may speak as, with parley send --from and in the
workbench of the console. The first one is the default, if there is one.`,
		Example: "  parley agents speakers",
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, _ []string) error {
			v, err := hub.Speakers(ctx)
			if err != nil {
				return err
			}
			if a.json {
				return a.print(v, "")
			}
			for _, name := range v.Agents {
				fmt.Fprintln(a.out, clean(name))
			}
			if v.More > 0 {
				fmt.Fprintf(a.out, "and %d more\n", v.More)
			}
			return a.print(nil, "may speak as %s\n", clean(strings.Join(v.Patterns, ", ")))
		}),
	}
}
