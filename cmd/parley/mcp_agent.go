package main

import (
	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/admin"
	bridge "github.com/parley-hub/parley/bridge/mcp"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/node"
)

var mcpProtocol = protocol{
	name: bridge.Protocol,
	add: adding{
		how: "--mcp URL, --mcp-attached, --mcp-calls",
		help: `  parley agents add lab --mcp https://lab.example/mcp --expose all
  parley agents add files --mcp-attached --expose all
  parley agents add editor --mcp-calls
`,
		flags: func(c *cobra.Command) adder {
			v, s := values(c, "mcp"), &peerFlags{protocol: bridge.Protocol}
			var attached, calls bool
			f := c.Flags()
			f.BoolVar(&attached, "mcp-attached", false, "an MCP server that parley mcp attach joins to the hub")
			f.BoolVar(&calls, "mcp-calls", false, "an MCP client: it calls the hub, and reads its messages with parley_inbox")
			s.declare(f)
			return adder{
				given: func() bool { return *v["mcp"] != "" || attached || calls || s.shows() },
				identity: func(name string) (admin.NewIdentity, error) {
					way := ""
					switch {
					case attached && calls, *v["mcp"] != "" && (attached || calls):
						return admin.NewIdentity{}, usage("--mcp URL, --mcp-attached and --mcp-calls exclude each other: give " +
							"one of them")
					case attached:
						way = "attached"
					case calls:
						way = "calls"
					}
					if *v["mcp"] == "" {
						return s.unshown(v.identity("mcp", way), "a server", "--mcp URL")(name)
					}
					return s.shownBy(v.identity("mcp", ""))(name)
				},
			}
		},
	},
	checkID: func(id string) error {
		if _, err := bridge.IdentityAt(id); err != nil {
			return usage("--id %q: want the URL of the server's MCP endpoint", id)
		}
		return nil
	},
	unsigned:     "MCP messages have no signatures: the caller's token or certificate answers for them",
	checkHub:     (*doctor).mcpHub,
	checkAddress: (*doctor).mcpAddress,
	way:          mcpWay,
	send:         (*app).sendMCP,
	bench:        (*app).benchMCPCommand,
}

// mcpWay is the way to an agent with a table of MCP.
func mcpWay(_ *node.Config, a *node.Agent) *hub.Way {
	switch {
	case a.MCP == nil:
		return nil
	case a.MCP.Attached:
		return &hub.Way{How: "`parley mcp attach` joins its server to the hub"}
	case a.MCP.Calls:
		return &hub.Way{How: "it calls the hub, and reads its messages with parley_inbox"}
	}
	i, err := bridge.IdentityAt(a.MCP.URL)
	if err != nil {
		return nil // it has no URL, or the configuration's check says so
	}
	return &hub.Way{ID: i.ID, How: "the hub calls it", Addresses: []string{i.URL}}
}
