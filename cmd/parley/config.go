package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/spelling"
	"github.com/parley-hub/parley/node"
)

func (a *app) configCommand() *cobra.Command {
	check := &cobra.Command{
		Use:     "check [FILE]",
		Short:   "Check a configuration file",
		Example: "  parley config check parley.toml",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			path := cmp.Or(argument(args), a.config, configName)
			if _, err := node.Load(path); err != nil {
				return &exitError{exitUsage, err}
			}
			return a.print(map[string]any{"file": path, "ok": true}, "%s is valid\n", path)
		},
	}
	reload := &cobra.Command{
		Use:   "reload",
		Short: "Make the running hub reload its configuration",
		Long: `Make the running hub reload its configuration, as SIGHUP does. Changed rules, rates,
network.allow, agents, certificate, alerts and log level come into force without dropping
a connection; the output names changed keys that need a restart. If the file has an error,
the whole old configuration stays in force.`,
		Example: "  parley config reload",
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, _ []string) error {
			v, err := hub.Reload(ctx)
			if err != nil {
				return err
			}
			if a.json {
				return a.print(v, "")
			}
			for _, k := range v.Changed {
				fmt.Fprintf(a.out, "in force       %s\n", clean(k))
			}
			for _, k := range v.Restart {
				fmt.Fprintf(a.out, "needs restart  %s\n", clean(k))
			}
			if len(v.Changed)+len(v.Restart) == 0 {
				fmt.Fprintln(a.out, "the configuration has not changed; tokens were read again")
			}
			return nil
		}),
	}
	return group("config", "Check the configuration, describe its keys, or reload it",
		`  parley config check parley.toml
  parley config describe listen
  parley config reload`, helps, check, a.configDescribe(), reload)
}

func (a *app) configDescribe() *cobra.Command {
	var markdown bool
	c := &cobra.Command{
		Use:     "describe [KEY]",
		Short:   "Describe the keys of the configuration file",
		Example: "  parley config describe listen",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			var out []node.Key
			for _, k := range node.Keys() {
				if len(args) == 0 || k.Name == args[0] || strings.HasPrefix(k.Name, args[0]+".") {
					out = append(out, k)
				}
			}
			if len(out) == 0 {
				var known []string
				for _, k := range node.Keys() {
					known = append(known, k.Name)
				}
				return usage("there is no key %q%s\n        `parley config describe` lists all keys", args[0],
					spelling.DidYouMean(args[0], known))
			}
			if markdown {
				return describeMarkdown(a.out, out)
			}
			if a.json {
				return a.print(out, "")
			}
			for _, k := range out {
				fmt.Fprintf(a.out, "%-28s %-16s %s\n", k.Name, k.Type, k.Doc)
				more := "a change needs a restart"
				if k.Reload {
					more = "`parley config reload` applies a change"
				}
				if k.Default != "" {
					more = "default " + k.Default + "; " + more
				}
				fmt.Fprintf(a.out, "%-45s %s\n", "", more)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&markdown, "markdown", false, "as a Markdown page, such as docs/configuration.md")
	return c
}

// describeMarkdown writes the page about the configuration.
func describeMarkdown(w io.Writer, keys []node.Key) error {
	var b strings.Builder
	b.WriteString(`# Configuration

Made by ` + "`parley config describe --markdown`" + `. A hub reads one TOML file: ` + "`parley serve --config FILE`" + `, else
` + "`parley.toml`" + ` in the current directory. ` + "`parley init`" + ` writes a file that explains every key; ` + "`parley config check`" + `
finds errors in a file. Relative paths are relative to the file. Effects in capitals cannot be undone.

"Reload" says whether ` + "`parley config reload`" + ` (or SIGHUP) applies a change while the hub runs. All other keys need a restart,
and the reload names them. Secrets are not in the file: ` + "`PARLEY_PASSPHRASE`" + ` or ` + "`PARLEY_PASSPHRASE_FILE`" + ` for the keyring, the
standard ` + "`OTEL_`" + ` variables for traces.
`)
	// The keys of a table stay together, even if another table lies between them.
	var titles []string
	rows := map[string]string{} // by title
	for _, k := range keys {
		at := strings.LastIndexByte(k.Name, '.')
		table := k.Name[:max(0, at)]
		title := "Outside of tables"
		if list, ok := strings.CutSuffix(table, "[]"); ok {
			title = "`[[" + strings.ReplaceAll(list, "[]", "") + "]]`"
		} else if table != "" {
			title = "`[" + table + "]`"
		}
		if rows[title] == "" {
			titles = append(titles, title)
		}
		reload := "no"
		if k.Reload {
			reload = "yes"
		}
		def := ""
		if k.Default != "" {
			def = "`" + k.Default + "`"
		}
		rows[title] += fmt.Sprintf("| `%s` | %s | %s | %s | %s |\n", k.Name[at+1:], k.Type, def, reload,
			strings.NewReplacer("|", "\\|", "<", "&lt;").Replace(k.Doc))
	}
	for _, title := range titles {
		fmt.Fprintf(&b, "\n## %s\n\n| Key | Type | Default | Reload | Meaning |\n|---|---|---|---|---|\n%s", title,
			rows[title])
	}
	_, err := io.WriteString(w, b.String())
	return err
}
