package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/admin"
)

func (a *app) auditCommand() *cobra.Command {
	var f admin.AuditFilter
	var since string
	c := &cobra.Command{
		Use:   "audit",
		Short: "Show who changed what, and when",
		Long: `Show the changes that operators made through the admin API, the newest first: time, name
of the token, action, what it changed, and the outcome. In a cluster the list has those of
all hubs. With several flags all of them must match.`,
		Example: `  parley audit
  parley audit --by deploy --since 7d
  parley audit --action token --json`,
		PreRunE: func(*cobra.Command, []string) (err error) {
			if f.Limit < 0 {
				return usage("--limit %d: want 0 (all) or more", f.Limit)
			}
			f.Since, err = moment("--since", since)
			return err
		},
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, _ []string) error {
			list, err := hub.Audit(ctx, f)
			if err != nil {
				return err
			}
			titles := []string{"TIME", "BY", "ROLE", "FROM", "ACTION", "OF", "DETAIL", "OUTCOME"}
			none := "no changes through the admin API"
			if f.By != "" || f.Action != "" || f.Target != "" || since != "" {
				none = "no such changes through the admin API"
			}
			return printList(a, list, none, titles, func(e *admin.AuditEntry) []string {
				by := e.Actor
				if e.Via != "" {
					by += " via " + e.Via
				}
				return []string{stamp(e.Time), by, string(e.Role), e.Address, e.Action, e.Target, short(e.Detail, 60),
					short(e.Outcome, 60)}
			})
		}),
	}
	c.Flags().StringVar(&f.By, "by", "", "only by the token of this name; the commands on the hub's machine are local")
	c.Flags().StringVar(&f.Action, "action", "", "only this action, e.g. dead.drop, or all that begin so, e.g. dead")
	c.Flags().StringVar(&f.Target, "of", "", "only changes of this agent, token or message")
	c.Flags().StringVar(&since, "since", "", "only those since this time; or a duration back from now (2h)")
	c.Flags().IntVar(&f.Limit, "limit", 100, "show at most this many; 0 means all that are kept")
	return c
}
