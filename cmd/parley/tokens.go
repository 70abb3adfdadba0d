package main

import (
	"context"
	"crypto/rand"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/admin"
)

func (a *app) tokensCommand() *cobra.Command {
	n := admin.NewToken{Role: admin.Observe}
	var expires string
	add := &cobra.Command{
		Use:   "add NAME",
		Short: "Issue a token and show its secret, once",
		Long: `Issue a token for the admin API, for an account that registers uAgents at the hub
(--role register), or for an agent that calls the hub over A2A or MCP (--agent). A token
for an agent opens nothing else. Its secret is shown once; the hub keeps only a hash. A running
hub, and every hub of its cluster, accepts it at once; a hub that does not run, when it
starts.`,
		Example: `  parley tokens add alice --role register
  parley tokens add monitoring --role observe
  parley tokens add scout --agent crew/scout
  parley tokens add deploy --role operate --speak 'crew/*' --expires 30d`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			n.Name = args[0]
			if n.Agent != "" && !cmd.Flags().Changed("role") {
				n.Role = ""
			}
			if n.Expires, err = later("--expires", expires); err != nil {
				return err
			}
			n.Expires = n.Expires.UTC().Truncate(time.Second)
			k, err := a.tokenKeeper(cmd.Context())
			if hub, ok := k.(*admin.Client); ok && err == nil {
				err = keepsSecret(hub.Base)
			}
			if err != nil {
				return err
			}
			t, err := k.IssueToken(cmd.Context(), n)
			if err != nil {
				return a.hubError(err)
			}
			text := "token  " + t.Secret + "\n\nshown once"
			if !t.Expires.IsZero() {
				text += "; it expires at " + stamp(t.Expires)
			}
			if _, offline := k.(tokenFile); offline {
				text += "; no hub runs on the data directory: it knows the token when it starts"
			}
			return a.print(t, "%s\n", text)
		},
	}
	f := add.Flags()
	f.StringVar((*string)(&n.Role), "role", string(n.Role), "register, observe, read, operate or administer")
	f.StringVar(&n.Agent, "agent", "", "agent that shows the token when it calls the hub; instead of a role")
	f.StringSliceVar(&n.Speak, "speak", nil, "agents for which it may send; patterns (default: operator)")
	f.StringVar(&expires, "expires", "", "when it expires: a time, or a duration from now (30d); default: never")
	list := &cobra.Command{
		Use: "list", Short: "List the tokens: role or agent, when issued, when they expire, last use", RunE: a.tokensList,
		Example: "  parley tokens list --json",
	}
	return group("tokens", "List, issue and revoke tokens of the admin API, of accounts and of agents", "  parley tokens",
		a.tokensList, add, list, a.tokensRevoke())
}

func (a *app) tokensRevoke() *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "revoke NAME", Short: "Revoke a token, and end what runs on it", Args: cobra.ExactArgs(1),
		Long: `Revoke a token. A running hub, and every hub of its cluster, refuses it at once, and ends
the calls that run on it, such as parley tail. A hub that does not run refuses it when it
starts. The agents of an account stay until ` + "`parley agents remove`" + `.

The last token that may administer is revoked only with --force.`,
		Example: "  parley tokens revoke alice",
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := a.tokenKeeper(cmd.Context())
			if err != nil {
				return err
			}
			if err := k.RevokeToken(cmd.Context(), args[0], force); err != nil {
				return a.hubError(err)
			}
			return a.print(map[string]string{"revoked": args[0]}, "token %s is revoked\n", args[0])
		},
	}
	c.Flags().BoolVar(&force, "force", false, "revoke the last token that may administer, too")
	return c
}

func (a *app) tokensList(cmd *cobra.Command, _ []string) error {
	k, err := a.tokenKeeper(cmd.Context())
	if err != nil {
		return err
	}
	all, err := k.Tokens(cmd.Context())
	if err != nil {
		return a.hubError(err)
	}
	titles := []string{"TOKEN", "ROLE", "SPEAKS AS", "ISSUED", "EXPIRES", "LAST USED"}
	return printList(a, all, "no tokens", titles, func(t *admin.Token) []string {
		expires := a.when(t.Expires)
		if t.Expired(a.now()) {
			expires += " (expired)"
		}
		role, speaks := string(t.Role), strings.Join(t.Speak, ",")
		if t.Agent != "" {
			role, speaks = "agent", t.Agent
		}
		return []string{t.Name, role, speaks, a.when(t.Created), expires, a.when(t.Used)}
	})
}

// A tokenKeeper reads and changes tokens: the running hub, which applies a change at once,
// or else the token file of the data directory.
type tokenKeeper interface {
	Tokens(context.Context) ([]admin.Token, error)
	IssueToken(context.Context, admin.NewToken) (admin.Token, error)
	RevokeToken(ctx context.Context, name string, force bool) error
}

func (a *app) tokenKeeper(ctx context.Context) (tokenKeeper, error) {
	hub, err := a.running(ctx)
	if err != nil || hub != nil {
		return hub, err
	}
	c, err := a.load()
	return tokenFile(c.Data), err
}

// tokenFile is the data directory of a hub that does not run.
type tokenFile string

func (f tokenFile) Tokens(context.Context) ([]admin.Token, error) {
	t, err := admin.ReadTokens(string(f))
	if err != nil {
		return nil, err
	}
	return t.All(), nil
}

func (f tokenFile) IssueToken(_ context.Context, n admin.NewToken) (admin.Token, error) {
	return admin.IssueToken(string(f), n, time.Now(), rand.Reader)
}

func (f tokenFile) RevokeToken(_ context.Context, name string, force bool) error {
	return admin.RevokeToken(string(f), name, force, time.Now())
}
