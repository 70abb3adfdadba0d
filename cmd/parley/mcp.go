package main

import "github.com/spf13/cobra"

func (a *app) mcpCommand() *cobra.Command {
	return group("mcp", "For MCP: clients and servers that are processes",
		"  parley mcp stdio --data ./data\n  parley mcp attach files --token-file files.token -- files-server /srv",
		helps, a.mcpStdioCommand(), a.mcpAttachCommand())
}
