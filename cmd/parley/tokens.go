package main

import (
	"crypto/rand"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/admin"
)

func (a *app) tokensCommand() *cobra.Command {
	t := admin.Token{Role: admin.Observe}
	add := &cobra.Command{
		Use:   "add NAME",
		Short: "Issue a token and show its secret, once",
		Long: `Issue a token for the admin API, or for an account that registers uAgents at the hub
(--role register). Its secret is shown once and stored nowhere; the data directory holds
its hash. A running hub knows the token after ` + "`parley config reload`" + ` or a restart.`,
		Example: `  parley tokens add alice --role register
  parley tokens add monitoring --role observe`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := a.load()
			if err != nil {
				return err
			}
			t.Name, t.Created = args[0], a.now().UTC().Truncate(time.Second)
			secret, err := admin.IssueToken(c.Data, t, rand.Reader)
			if err != nil {
				return err
			}
			return a.print(map[string]string{"name": t.Name, "role": string(t.Role), "token": secret},
				"token  %s\n\nshown once; a running hub knows the token after: parley config reload\n", secret)
		},
	}
	add.Flags().StringVar((*string)(&t.Role), "role", string(t.Role), "register, observe, read, operate or administer")
	add.Flags().StringSliceVar(&t.Speak, "speak", nil, "agents for which it may send; patterns (default: operator)")
	remove := &cobra.Command{
		Use: "remove NAME", Short: "Remove a token", Args: cobra.ExactArgs(1),
		Long: `Remove a token. A running hub refuses it after ` + "`parley config reload`" + ` or a restart.
The agents of an account stay until ` + "`parley agents remove`" + `.`,
		Example: "  parley tokens remove alice",
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := a.load()
			if err != nil {
				return err
			}
			if err := admin.RemoveToken(c.Data, args[0]); err != nil {
				return err
			}
			return a.print(map[string]string{"removed": args[0]},
				"removed; a running hub refuses the token after: parley config reload\n")
		},
	}
	return group("tokens", "List, issue and remove tokens of the admin API and of accounts", "  parley tokens",
		a.tokensList, add, remove)
}

func (a *app) tokensList(*cobra.Command, []string) error {
	c, err := a.load()
	if err != nil {
		return err
	}
	t, err := admin.ReadTokens(c.Data)
	if err != nil {
		return err
	}
	all := t.All()
	for i := range all {
		all[i].Hash = ""
	}
	return printList(a, all, "no tokens", []string{"TOKEN", "ROLE", "ISSUED"}, func(t *admin.Token) []string {
		return []string{t.Name, string(t.Role), a.when(t.Created)}
	})
}
