package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/spelling"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/node"
)

// This file helps at the command line: completion by the shell, and suggestions for what was misspelt.

func (a *app) completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Write the completion script of a shell",
		Long: `Write a script that lets a shell complete commands, flags, protocols and files and, while
a hub runs, agents, skills, conversations, messages, refusals, dead letters and keys.
SHELL is bash, zsh, fish or powershell.`,
		Example: `  source <(parley completion bash)
  parley completion zsh > "${fpath[1]}/_parley"
  parley completion fish > ~/.config/fish/completions/parley.fish`,
		Args:                  cobra.ExactArgs(1),
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "bash":
				if err := root.GenBashCompletionV2(a.out, true); err != nil {
					return err
				}
				_, err := io.WriteString(a.out, "\n# bash would take @FILE as two words.\n"+
					"COMP_WORDBREAKS=${COMP_WORDBREAKS//@/}\n")
				return err
			case "zsh":
				return root.GenZshCompletion(a.out)
			case "fish":
				return root.GenFishCompletion(a.out, true)
			case "powershell":
				return root.GenPowerShellCompletionWithDesc(a.out)
			}
			return usage("shell %q is not supported: want bash, zsh, fish or powershell", args[0])
		},
	}
}

// A completion gives the words that may stand at a place of the command line. From a running hub they come with a
// remark each; without one there are none.
type completion = cobra.CompletionFunc

// words completes fixed words.
func words(list ...string) completion {
	return cobra.FixedCompletions(list, cobra.ShellCompDirectiveNoFileComp)
}

// files and directories are completed by the shell.
func files(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}

func directories(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs
}

const (
	completionWait = 2 * time.Second // for the hub; a shell waits meanwhile
	completionMost = 100             // of the newest messages, conversations and refusals
)

// of makes a completion of what the hub lists, one call of add each. begin is the word so far.
func (a *app) of(
	list func(ctx context.Context, hub *admin.Client, begin string, add func(word, remark string))) completion {
	return func(cmd *cobra.Command, _ []string, begin string) (out []string, _ cobra.ShellCompDirective) {
		hub, err := a.hub()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, stop := context.WithTimeout(cmd.Context(), completionWait)
		defer stop()
		list(ctx, hub, begin, func(word, remark string) {
			word = oneLine(word)
			known := func(c string) bool { return strings.HasPrefix(c, word+"\t") }
			if !slices.ContainsFunc(out, known) {
				out = append(out, cobra.CompletionWithDesc(word, short(remark, 60)))
			}
		})
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}

// completions are those of the arguments of commands, in order, and those of flags: by name or, where the same name
// means different things, by command and name. The last completion of a command with "…" in its usage goes on.
func (a *app) completions() (arguments map[string][]completion, flags map[string]completion) {
	agents := a.of(func(ctx context.Context, hub *admin.Client, begin string, add func(word, remark string)) {
		// On an error there are none. A shell asks again after the next letter, so one page is enough.
		page, _ := hub.Agents(ctx, admin.AgentFilter{Filter: begin + "*"})
		for _, v := range page.Agents {
			add(v.Name, v.Title)
		}
	})
	speakers := a.of(func(ctx context.Context, hub *admin.Client, _ string, add func(word, remark string)) {
		v, _ := hub.Speakers(ctx)
		for _, name := range v.Agents {
			add(name, "")
		}
	})
	conversations := a.of(func(ctx context.Context, hub *admin.Client, _ string, add func(word, remark string)) {
		page, _ := hub.Conversations(ctx, index.ConversationFilter{Limit: completionMost})
		for _, c := range page.Conversations {
			add(c.ID.String(), strings.Join(c.Agents, ", ")+": "+c.Preview)
		}
	})
	dead := a.of(func(ctx context.Context, hub *admin.Client, _ string, add func(word, remark string)) {
		list, _ := hub.Dead(ctx, admin.DeadFilter{Limit: completionMost})
		for _, d := range list {
			add(d.Message.String(), fmt.Sprintf("to %s: %s", d.To, d.Reason.Code))
		}
	})
	causes := a.of(func(ctx context.Context, hub *admin.Client, _ string, add func(word, remark string)) {
		u, _ := hub.Undelivered(ctx, admin.UndeliveredFilter{})
		for _, g := range u.Groups {
			if g.Problem.Reason != "" {
				add(string(g.Problem.Reason), fmt.Sprintf("%d to %s", g.Number, g.To))
			}
		}
	})
	jobs := a.of(func(ctx context.Context, hub *admin.Client, _ string, add func(word, remark string)) {
		list, _ := hub.Jobs(ctx)
		for _, j := range list {
			add(j.ID, fmt.Sprintf("%d of %d, %s", j.Done, j.Matched, j.Outcome))
		}
	})
	messages := a.of(func(ctx context.Context, hub *admin.Client, _ string, add func(word, remark string)) {
		page, _ := hub.Messages(ctx, index.Filter{Limit: completionMost})
		for _, m := range page.Messages {
			add(m.ID.String(), m.Kind.String()+" "+parties(&m))
		}
	})
	explained := a.of(func(ctx context.Context, hub *admin.Client, _ string, add func(word, remark string)) {
		refused, _ := hub.Refused(ctx, completionMost)
		for _, r := range refused {
			add(r.Ref, "refused: "+why(&r))
		}
		page, _ := hub.Messages(ctx, index.Filter{Limit: completionMost})
		for _, m := range page.Messages {
			add(m.ID.String(), m.Kind.String()+" "+parties(&m))
		}
	})
	keys := func(word func(*shownKey) string) completion {
		return func(cmd *cobra.Command, _ []string, _ string) (out []string, _ cobra.ShellCompDirective) {
			ctx, stop := context.WithTimeout(cmd.Context(), completionWait)
			defer stop()
			list, _ := a.allKeys(ctx)
			for _, k := range shownKeys(list) {
				w := cobra.CompletionWithDesc(oneLine(word(&k)), short(k.kind+" key for "+k.purpose, 60))
				if word(&k) != "" && !slices.Contains(out, w) {
					out = append(out, w)
				}
			}
			return out, cobra.ShellCompDirectiveNoFileComp
		}
	}
	keyIDs, owners := keys(func(k *shownKey) string { return k.id }), keys(func(k *shownKey) string { return k.owner })
	tokens := func(cmd *cobra.Command, _ []string, _ string) (out []string, _ cobra.ShellCompDirective) {
		ctx, stop := context.WithTimeout(cmd.Context(), completionWait)
		defer stop()
		if k, err := a.tokenKeeper(ctx); err == nil {
			list, _ := k.Tokens(ctx) // on an error there are none
			for _, t := range list {
				out = append(out, cobra.CompletionWithDesc(oneLine(t.Name), string(t.Role)))
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
	skills := func(cmd *cobra.Command, args []string, s string) ([]string, cobra.ShellCompDirective) {
		return a.of(func(ctx context.Context, hub *admin.Client, _ string, add func(word, remark string)) {
			for _, flag := range []string{"to", "agent"} {
				if f := cmd.Flags().Lookup(flag); f != nil && f.Value.String() != "" {
					v, _ := hub.Agent(ctx, f.Value.String(), 0)
					for _, s := range v.Skills {
						add(s.ID, s.Description)
					}
				}
			}
		})(cmd, args, s)
	}
	var names, configKeys, codes []string
	for _, p := range protocols {
		names = append(names, p.name)
	}
	for _, k := range node.Keys() {
		configKeys = append(configKeys, cobra.CompletionWithDesc(k.Name, short(k.Doc, 60)))
	}
	for _, code := range admin.Codes() {
		codes = append(codes, string(code))
	}
	protocolWords, exposures := words(names...), words(append(slices.Clone(names), "all")...)
	nothing := words()
	arguments = map[string][]completion{
		"agents expose": {agents, words(append(slices.Clone(names), "all", "none")...)}, "agents link": {agents},
		"agents delivery": {agents}, "agents export": {agents}, "agents pause": {agents},
		"agents record": {agents, words("full", "headers", "digest")}, "agents remove": {agents},
		"agents checklist": {agents},
		"agents resume":    {agents}, "agents show": {agents}, "answer": {messages, content},
		"backup": {files}, "completion": {words("bash", "zsh", "fish", "powershell")}, "config check": {files},
		"config describe": {words(configKeys...)}, "conversation export": {conversations},
		"conversation show": {conversations}, "conversation verify": {files}, "dead drop": {dead}, "dead retry": {dead},
		"dead jobs": {jobs}, "dead show": {dead}, "doctor": {agents}, "explain": {explained}, "forget": {agents},
		"init":    {directories},
		"inspect": {files}, "journal salvage": {files}, "keys enroll": {agents}, "keys export-public": {keyIDs},
		"keys import": {files}, "keys rotate": {owners}, "keys show": {keyIDs}, "keys unenroll": {agents, keyIDs},
		"listen": {agents}, "map test": {files}, "mcp approve": {agents},
		"mcp attach": {agents, files}, "mcp config": {words(mcpClientNames()...)}, "mcp tools": {agents},
		"restore": {files}, "send": {content}, "tokens revoke": {tokens}, "verify": {files},
	}
	flags = map[string]completion{
		"agent": agents, "from": agents, "to": agents, "speak": agents, "by": tokens, "owner": owners, "key-id": keyIDs,
		"callable-by":  agents,
		"conversation": conversations, "skill": skills, "protocol": protocolWords, "expose": exposures,
		"cause": causes, "stop": jobs,
		"kind":        words("request", "event", "response", "error", "notice", "cancel", "input"),
		"send --from": speakers,
		"send --kind": words("request", "notice"), "proof": words("signed", "session", "unsigned", "refused"),
		"via": protocolWords, "order": words("name", "trouble"),
		"state": words("waiting", "delivering", "delivered", "answered", "dead", "dropped", "expired", "abandoned"),
		"agents list --state": words("trouble", "ready", "paused", "unreachable", "failing", "waiting", "not_connected",
			"no_reader"),
		"code": words(codes...), "format": words("hub", "asp"), "color": words(colourModes()...),
		"role": words("register", "observe", "read", "operate", "administer"),
		"log":  words("debug", "info", "warn", "error"), "durability": words("disk", "replicated", "memory"),
		"storage": words("memory", "disk"), "record": words("full", "headers", "digest"), "reply": content,
		"version": words("1.0", "0.3"),

		"config": files, "key-file": files, "card": files, "schema": files, "out": files, "export": files,
		"token-file": files, "seed-file": files, "new-file": files, "file": files, "asp": files, "transcript": files,
		"a2a-token-file": files, "a2a-api-key-file": files, "a2a-client-secret-file": files, "a2a-cert": files,
		"a2a-key": files, "mcp-token-file": files, "mcp-api-key-file": files, "mcp-client-secret-file": files,
		"mcp-cert": files, "mcp-key": files,
		"send --key": files, "agh connect --key": files, "keys asp --key": files, "keys uagents --key": files,
		"data": directories, "dir": directories, "profile": directories, "cpuprofile": directories,
	}
	// The values of these only their user knows.
	for _, free := range []string{"a2e", "action", "admin", "admin-listen", "agents", "agh", "as", "before",
		"channel", "connections", "count", "cursor", "daemon", "duration", "endpoint", "env", "every", "expect",
		"expires", "filter",
		"hub", "id", "idempotency-key", "index", "jq", "key", "last", "limit", "listen", "messages", "nats",
		"network-allow", "now", "of", "only", "org", "overlap", "path", "patience", "payload", "peers", "rate", "reason",
		"replays", "samvad", "search", "self", "session", "since", "slow", "text", "title", "tries", "uagents", "until",
		"url", "wait",
		"workspace", "a2a", "a2a-api-key-header", "a2a-client-id", "a2a-scope", "a2a-token-url",
		"digest", "mcp", "name", "mcp-api-key-header", "mcp-client-id", "mcp-scope", "mcp-token-url"} {
		flags[free] = nothing
	}
	return arguments, flags
}

// content completes CONTENT: after "@", the name of a file.
func content(_ *cobra.Command, args []string, s string) (out []string, _ cobra.ShellCompDirective) {
	name, ok := strings.CutPrefix(s, "@")
	if !ok {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	dir, base := filepath.Split(name)
	list, _ := os.ReadDir(cmp.Or(dir, ".")) // of a directory that cannot be read there is nothing to offer
	directive := cobra.ShellCompDirectiveNoFileComp
	for _, e := range list {
		if !strings.HasPrefix(e.Name(), base) || base == "" && strings.HasPrefix(e.Name(), ".") {
			continue
		}
		word := "@" + dir + e.Name()
		if e.IsDir() {
			word, directive = word+"/", directive|cobra.ShellCompDirectiveNoSpace
		}
		out = append(out, word)
	}
	return out, directive
}

// prepare gives all commands their completions, and errors that suggest the nearest name. A command without a rule for
// its arguments takes none.
func (a *app) prepare(root *cobra.Command) {
	arguments, flags := a.completions()
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			visit(sub)
		}
		name := strings.TrimPrefix(c.CommandPath(), root.Name()+" ")
		switch {
		case c.HasAvailableSubCommands():
			c.Args = knownCommand
		case c.Args == nil:
			c.Args = cobra.NoArgs
		}
		list := arguments[name]
		c.ValidArgsFunction = func(cmd *cobra.Command, args []string, s string) ([]string, cobra.ShellCompDirective) {
			at := len(args)
			if strings.Contains(c.Use, "…") {
				at = min(at, len(list)-1)
			}
			if at < 0 || at >= len(list) {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return list[at](cmd, args, s)
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			complete := flags[name+" --"+f.Name]
			if complete == nil {
				complete = flags[f.Name]
			}
			if complete != nil && f.Value.Type() != "bool" {
				// It fails only for a flag that the command does not have.
				_ = c.RegisterFlagCompletionFunc(f.Name, complete)
			}
		})
	}
	visit(root)
	root.SetFlagErrorFunc(knownFlag)
}

// knownCommand refuses an argument of a command that holds others: a misspelt one of these.
func knownCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var known []string
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			known = append(known, sub.Name())
		}
	}
	return fmt.Errorf("unknown command %q for %q%s", args[0], c.CommandPath(), spelling.DidYouMean(args[0], known))
}

// knownFlag adds to the error for an unknown flag the one that was meant.
func knownFlag(c *cobra.Command, err error) error {
	e, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok || e.GetSpecifiedShortnames() != "" {
		return err
	}
	var known []string
	c.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) }) // the inherited ones are among them
	if near := spelling.Nearest(e.GetSpecifiedName(), known); near != "" {
		return fmt.Errorf("%w; did you mean --%s?", err, near)
	}
	return err
}
