package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	bridge "github.com/parley-hub/parley/bridge/mcp"
)

func (a *app) mcpCommand() *cobra.Command {
	return group("mcp", "For MCP: attached servers and their tools, and settings of clients",
		"  parley mcp config claude-code\n  parley mcp stdio --data ./data\n"+
			"  parley mcp attach files --token-file files.token -- files-server /srv\n  parley mcp tools files",
		helps, a.mcpConfigCommand(), a.mcpStdioCommand(), a.mcpAttachCommand(), a.mcpToolsCommand(), a.mcpApproveCommand())
}

func (a *app) mcpToolsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "tools NAME", Short: "Show the tools of an attached server, and what it changed", Args: cobra.ExactArgs(1),
		Long: `Show the tools of an MCP server that is attached as an agent, and how those that it lists
now differ. Agents call the approved tools, with the approved texts, until you approve
the change (parley mcp approve). The server wrote the texts: read them as you would read
a program from there.`,
		Example: "  parley mcp tools files",
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, args []string) error {
			t, err := hub.AgentTools(ctx, args[0])
			if err != nil {
				return err
			}
			return a.verdict(true, t, func() error { return a.showTools(args[0], &t) })
		}),
	}
}

func (a *app) mcpApproveCommand() *cobra.Command {
	var digest string
	var yes bool
	c := &cobra.Command{
		Use: "approve NAME", Short: "Let agents call the tools that an attached server changed", Args: cobra.ExactArgs(1),
		Long: `Let agents call the tools that an attached MCP server lists now, in place of the approved
ones. Without --digest and --yes the command shows what would change, and changes nothing.
A list that the server changed after you looked at it has another digest, and is not
approved.`,
		Example: `  parley mcp approve files
  parley mcp approve files --digest 5f2c9a6b`,
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, args []string) error {
			t, err := hub.AgentTools(ctx, args[0])
			switch {
			case err != nil:
				return err
			case t.Digest == "":
				return &exitError{exitFailed, fmt.Errorf("no tools of %s wait for approval: there is nothing to approve",
					args[0])}
			case digest == "" && !yes:
				if err := a.verdict(true, t, func() error { return a.showTools(args[0], &t) }); err != nil {
					return err
				}
				return &exitError{exitFailed, errors.New("nothing was approved: give --digest, or --yes")}
			case len(digest) >= 8 && strings.HasPrefix(t.Digest, digest):
				digest = t.Digest
			}
			if digest == "" {
				digest = t.Digest
			}
			changes := t.Changes()
			now, err := hub.ApproveTools(ctx, args[0], digest)
			if err != nil {
				return err
			}
			return a.print(now, "%s: %s approved, %s in all\n", args[0], plural(len(changes), "change", "changes"),
				plural(len(now.Approved), "tool", "tools"))
		}),
	}
	c.Flags().StringVar(&digest, "digest", "", "digest of the tools that you looked at, as parley mcp tools shows it, or "+
		"its first 8 characters")
	c.Flags().BoolVar(&yes, "yes", false, "approve what the server lists now, whatever it is")
	return c
}

// showTools writes the approved tools, and the differences to those that the server offers.
func (a *app) showTools(name string, t *admin.AgentTools) error {
	if len(t.Approved) == 0 && t.Digest == "" {
		return a.print(nil, "no tools of %s are known: its server was not reached yet, or lists none; `parley doctor %s` "+
			"checks the way\n", name, name)
	}
	rows := make([][]string, 0, len(t.Approved))
	for _, tool := range t.Approved {
		rows = append(rows, []string{tool.Name, tool.Description})
	}
	if err := a.table([]string{"APPROVED TOOL", "DESCRIPTION"}, rows, func(int) []string { return nil }); err != nil {
		return err
	}
	if t.Digest == "" {
		return nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s\n", a.painted(title, "the server changed its tools; agents call the approved ones"))
	for _, c := range t.Changes() {
		switch {
		case c.Was == nil:
			fmt.Fprintf(&b, "%s\n", a.painted(good, "+ "+oneLine(c.Now.Name)))
			a.toolLines(&b, nil, c.Now)
		case c.Now == nil:
			fmt.Fprintf(&b, "%s\n", a.painted(bad, "- "+oneLine(c.Was.Name)))
		default:
			fmt.Fprintf(&b, "%s\n", a.painted(pending, "~ "+oneLine(c.Now.Name)))
			a.toolLines(&b, c.Was, c.Now)
		}
	}
	fmt.Fprintf(&b, "approve this: parley mcp approve %s --digest %s\n", name, t.Digest)
	_, err := fmt.Fprint(a.out, b.String())
	return err
}

// toolLines writes the lines of a tool that differ from what it was; nil: all.
func (a *app) toolLines(b *strings.Builder, was, now *admin.Tool) {
	if was == nil {
		was = new(admin.Tool)
	}
	for _, part := range []struct{ name, was, now string }{{"title", was.Title, now.Title},
		{"description", was.Description, now.Description},
		{"input", indented(was.Input), indented(now.Input)}, {"output", indented(was.Output), indented(now.Output)}} {
		if part.was == part.now {
			continue
		}
		fmt.Fprintf(b, "    %s\n", a.painted(label, part.name))
		for _, line := range differences(strings.Split(part.was, "\n"), strings.Split(part.now, "\n")) {
			paint := plain
			switch line[0] {
			case '+':
				paint = good
			case '-':
				paint = bad
			}
			fmt.Fprintf(b, "      %s\n", a.painted(paint, visible(line)))
		}
	}
}

// visible makes every character of a line that prints nothing an escape: hidden text steers models.
func visible(line string) string {
	var b strings.Builder
	for _, r := range line {
		if strconv.IsPrint(r) {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, "\\u{%x}", r)
		}
	}
	return b.String()
}

func indented(schema json.RawMessage) string {
	var b bytes.Buffer
	if json.Indent(&b, schema, "", "  ") != nil {
		return string(schema)
	}
	return b.String()
}

// longestDiff bounds the lines that are compared; longer texts are shown whole.
const longestDiff = 1000

// differences gives the lines of two texts, each behind "+ ", "- " or "  ", with two common lines around each change.
func differences(was, now []string) (out []string) {
	if len(was) > longestDiff || len(now) > longestDiff {
		for _, l := range was {
			out = append(out, "- "+l)
		}
		for _, l := range now {
			out = append(out, "+ "+l)
		}
		return out
	}
	common := make([][]int, len(was)+1) // longest common subsequence of the rests
	for i := range common {
		common[i] = make([]int, len(now)+1)
	}
	for i := len(was) - 1; i >= 0; i-- {
		for j := len(now) - 1; j >= 0; j-- {
			if was[i] == now[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	var all []string
	i, j := 0, 0
	for i < len(was) || j < len(now) {
		switch {
		case i < len(was) && j < len(now) && was[i] == now[j]:
			all = append(all, "  "+was[i])
			i, j = i+1, j+1
		case i < len(was) && (j == len(now) || common[i+1][j] >= common[i][j+1]):
			if was[i] != "" || len(was) > 1 {
				all = append(all, "- "+was[i])
			}
			i++
		default:
			if now[j] != "" || len(now) > 1 {
				all = append(all, "+ "+now[j])
			}
			j++
		}
	}
	const around = 2
	for k, line := range all {
		near := all[max(0, k-around):min(len(all), k+around+1)]
		if slices.ContainsFunc(near, func(s string) bool { return s[0] != ' ' }) {
			out = append(out, line)
		} else if len(out) > 0 && out[len(out)-1] != "  …" {
			out = append(out, "  …")
		}
	}
	return out
}

// An mcpClient is a program that calls MCP servers, and how a server is entered there.
type mcpClient struct {
	name, title, where string
	text               func(mcpEntry) string
}

// An mcpEntry is the hub as a server.
type mcpEntry struct {
	name, url, base, agent string
}

// stdio is the entry of a client that starts its servers as processes.
func (e mcpEntry) stdio() map[string]any {
	args := []string{"mcp", "stdio", "--url", e.base}
	if e.agent != "" {
		args = append(args, "--agent", e.agent)
	}
	return map[string]any{"command": "parley", "args": append(args, "--token-file", "/PATH/TO/TOKEN")}
}

// remote is the entry of a client that calls its servers over HTTP, with a token from its environment.
func (e mcpEntry) remote(urlKey, token string) map[string]any {
	return map[string]any{urlKey: e.url, "headers": map[string]string{"Authorization": "Bearer " + token}}
}

// entered is the JSON of a configuration file.
func (e mcpEntry) entered(list string, server map[string]any, more map[string]any) string {
	v := map[string]any{list: map[string]any{e.name: server}}
	for k, x := range more {
		v[k] = x
	}
	b, _ := json.MarshalIndent(v, "", "  ") // of maps and strings
	return string(b)
}

var mcpClients = []mcpClient{
	{"claude-code", "Claude Code", "a shell", func(e mcpEntry) string {
		return "claude mcp add --transport http " + e.name + " " + e.url +
			" --header \"Authorization: Bearer $(cat /PATH/TO/TOKEN)\""
	}},
	{"claude-desktop", "Claude Desktop", "claude_desktop_config.json (Settings, Developer, Edit Config)",
		func(e mcpEntry) string { return e.entered("mcpServers", e.stdio(), nil) }},
	{"vscode", "VS Code", ".vscode/mcp.json", func(e mcpEntry) string {
		server := e.remote("url", "${input:parley-token}")
		server["type"] = "http"
		return e.entered("servers", server, map[string]any{"inputs": []map[string]any{{"type": "promptString",
			"id": "parley-token", "description": "Token of the Parley hub", "password": true}}})
	}},
	{"cursor", "Cursor", "~/.cursor/mcp.json, with the token in PARLEY_MCP_TOKEN", func(e mcpEntry) string {
		return e.entered("mcpServers", e.remote("url", "${env:PARLEY_MCP_TOKEN}"), nil)
	}},
	{"codex", "Codex CLI", "~/.codex/config.toml, with the token in PARLEY_MCP_TOKEN", func(e mcpEntry) string {
		return fmt.Sprintf("[mcp_servers.%s]\nurl = %q\nbearer_token_env_var = \"PARLEY_MCP_TOKEN\"", e.name, e.url)
	}},
	{"gemini", "Gemini CLI", "~/.gemini/settings.json, with the token in PARLEY_MCP_TOKEN", func(e mcpEntry) string {
		return e.entered("mcpServers", e.remote("httpUrl", "$PARLEY_MCP_TOKEN"), nil)
	}},
	{"stdio", "any client that starts its servers", "its list of servers", func(e mcpEntry) string {
		return e.entered("mcpServers", e.stdio(), nil)
	}},
	{"http", "any client that calls its servers over HTTP", "its list of servers", func(e mcpEntry) string {
		return "URL     " + e.url + "\nheader  Authorization: Bearer TOKEN"
	}},
}

func mcpClientNames() (names []string) {
	for _, c := range mcpClients {
		names = append(names, c.name)
	}
	return names
}

func (a *app) mcpConfigCommand() *cobra.Command {
	var at, agent, name string
	c := &cobra.Command{
		Use: "config [CLIENT]", Short: "Show what to enter in an MCP client, so that it uses a hub",
		Args: cobra.MaximumNArgs(1),
		Long: `Show what to enter in an MCP client, so that it uses a hub: one client, or all. The client
shows the hub a token of an agent (parley tokens add NAME --agent AGENT); an agent that is
open to guests needs none.

Clients: ` + strings.Join(mcpClientNames(), ", ") + `.`,
		Example: `  parley mcp config claude-code
  parley mcp config vscode --url https://hub.corp --agent weather`,
		RunE: func(_ *cobra.Command, args []string) error {
			list := mcpClients
			if len(args) == 1 {
				i := slices.IndexFunc(mcpClients, func(c mcpClient) bool { return c.name == args[0] })
				if i < 0 {
					return usage("CLIENT %q: want one of %s", args[0], strings.Join(mcpClientNames(), ", "))
				}
				list = mcpClients[i : i+1]
			}
			if agent != "" {
				if err := parley.CheckName(agent); err != nil {
					return usage("--agent: %w", err)
				}
			}
			e, err := a.mcpEntryAt(at, agent, name)
			if err != nil {
				return err
			}
			shown := map[string]string{}
			var b strings.Builder
			for _, c := range list {
				shown[c.name] = c.text(e)
				if len(list) > 1 || c.where != "a shell" {
					fmt.Fprintf(&b, "%s\n", a.painted(label, "# "+c.title+": into "+c.where))
				}
				fmt.Fprintf(&b, "%s\n\n", shown[c.name])
			}
			return a.print(shown, "%s\n", strings.TrimSpace(b.String()))
		},
	}
	f := c.Flags()
	f.StringVar(&at, "url", "", "base URL of the hub, as clients reach it (default: that of the hub on the data "+
		"directory, or public_url)")
	f.StringVar(&agent, "agent", "", "only the tools of this agent (default: of all agents that the caller may use)")
	f.StringVar(&name, "name", "parley", "name of the hub in the client")
	return c
}

// mcpEntryAt finds the hub's URL: the one given, that of the configuration, or that of the hub that runs.
func (a *app) mcpEntryAt(at, agent, name string) (mcpEntry, error) {
	c, err := a.located(at != "")
	if err != nil {
		return mcpEntry{}, err
	}
	if at == "" {
		hub, err := announced(c.Data)
		if err != nil {
			return mcpEntry{}, err
		}
		at = cmp.Or(hub.HTTP, c.PublicURL)
	}
	if at == "" {
		return mcpEntry{}, usage("which hub? name it with --url, or set public_url; no hub runs on the data directory %s",
			c.Data)
	}
	u, err := hubEndpoint(c.Data, at, bridge.Base)
	if err != nil {
		return mcpEntry{}, err
	}
	if agent != "" {
		u = u.JoinPath("agents", agent)
	}
	return mcpEntry{name: name, url: u.String(), base: strings.TrimRight(at, "/"), agent: agent}, nil
}
