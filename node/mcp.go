package node

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	bridge "github.com/parley-hub/parley/bridge/mcp"
	"github.com/parley-hub/parley/policy"
)

var mcpProtocol = Protocol{
	Name:    bridge.Protocol,
	Section: func(c *Config) any { return &c.MCP },
	Agent:   func(a *Agent) any { return &a.MCP },
	Files: peerFiles(func(a *Agent) *PeerCredentials {
		if a.MCP == nil {
			return nil
		}
		return &a.MCP.PeerCredentials
	}),
	Check:      func(c *Config) error { return c.MCP.check() },
	CheckAgent: func(name string, a *Agent) error { return a.MCP.check(name) },
	AgentID: func(a *Agent) string {
		if a.MCP == nil || a.MCP.URL == "" {
			return ""
		}
		i, err := bridge.IdentityAt(a.MCP.URL)
		if err != nil {
			return "" // CheckAgent says so
		}
		return i.ID
	},
	Export: func(t *AgentText, _ *admin.Agent, i admin.Identity) {
		switch {
		case bridge.IsCaller(i.ID):
			t.text.WriteString("mcp.calls = true\n")
		case bridge.IsTunnel(i.ID):
			t.text.WriteString("mcp.attached = true\n")
		default:
			t.Line("mcp.url", i.ID)
			t.Note("If the server wants a token, put it into a file of mode 0600, and name the file: mcp.token_file = \"…\"")
		}
	},
	Assurance: parley.Session, // MCP has no signatures; a token or a certificate proves the session
	Address:   "mcp.url",
	Open:      openMCP,
}

// MCP configures MCP.
type MCP struct {
	// do not speak MCP
	Off bool `toml:"off"`
	// how many skills are listed as tools at /mcp, at most 500; if a client may use more, it finds them with
	// parley_find
	Tools int `toml:"tools" default:"20"`
	// how long a call waits for its answer; then it gets a handle, with which parley_result fetches the answer
	Wait Duration `toml:"wait" default:"\"50s\""`
	// the same for a client that asked for progress
	LongWait Duration `toml:"long_wait" default:"\"10m\""`
	// sessions that one caller may have open at once, with its subscriptions and tunnels; guests of one source address
	// count as one caller
	Sessions int `toml:"sessions" default:"32"`
	// a session without a request ends after this time
	Idle Duration `toml:"idle" default:"\"30m\""`
	// further values of the header Host that are accepted, as HOST or HOST:PORT, e.g. that of a proxy that sets its own;
	// others are refused, against DNS rebinding; default: that of public_url alone
	Hosts []string `toml:"hosts"`
	// agents that callers without credentials may use over MCP, whatever policy.assurance and [[require]] say: names
	// or patterns, such as "weather" or "public/*"; default: those with guests in their table
	Guests []string `toml:"guests"`
	// largest answer of an attached server, and largest event or line of it
	MaxAnswer string `toml:"max_answer" default:"\"4MiB\""`
	// longest call of an attached server, whatever the deadline of the request
	Ceiling Duration `toml:"ceiling" default:"\"1h\""`
}

// MCPAgent attaches an MCP server as an agent, or makes an agent a client of MCP. Without url, attached and calls it
// says how clients use an agent of the hub.
type MCPAgent struct {
	// URL of the MCP endpoint of a server elsewhere, whose tools become the agent's skills; it is the agent's identity
	URL string `toml:"url" reload:"yes"`
	// its server is joined to the hub by `parley mcp attach`, with a token of the agent, and has no URL
	Attached bool `toml:"attached" reload:"yes"`
	// it calls the hub over MCP, with a token or certificate, and reads its messages with parley_inbox
	Calls bool `toml:"calls" reload:"yes"`

	PeerCredentials
	// tools that the server adds or changes after the first time: hold = agents go on with the approved ones until
	// `parley mcp approve` | accept = take them at once
	Changes string `toml:"changes" default:"\"hold\"" reload:"yes"`
	// the server may ask the requester for input during a call
	Elicitation bool `toml:"elicitation" reload:"yes"`
	// tools that may be called again when it is not known whether a call arrived: names, or "*"; default: none
	Repeatable []string `toml:"repeatable" reload:"yes"`

	// callers without credentials may use it over MCP, whatever policy.assurance and [[require]] say
	Guests bool `toml:"guests" reload:"yes"`
}

func (c *MCP) check() error {
	if c.Tools < 0 || c.Tools > 500 {
		return fmt.Errorf("mcp.tools = %d: want at most 500", c.Tools)
	}
	if c.Sessions < 0 || min(c.Wait.Duration, c.LongWait.Duration, c.Idle.Duration, c.Ceiling.Duration) < 0 {
		return errors.New("mcp: want sessions, wait, long_wait, idle and ceiling above zero")
	}
	for _, h := range c.Hosts {
		if u := httpURL("http://" + h); u == nil || u.Host != h {
			return fmt.Errorf("mcp.hosts: %q: want HOST or HOST:PORT", h)
		}
	}
	_, err := sizeOr("mcp.max_answer", c.MaxAnswer, 0)
	return err
}

func (a *MCPAgent) check(name string) error {
	if a == nil {
		return nil
	}
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("agents.%s.mcp.%s", name, fmt.Sprintf(format, args...))
	}
	if a.URL != "" {
		if _, err := bridge.IdentityAt(a.URL); err != nil {
			return refuse("%s", err)
		}
	}
	if err := oneOf("agents."+name+".mcp.changes", a.Changes, "hold", "accept"); err != nil {
		return err
	}
	server := a.URL != "" || a.Attached
	switch {
	case a.URL != "" && a.Attached:
		return refuse("attached: url and attached exclude each other: the hub calls the server, or it is joined to the hub")
	case server && a.Calls:
		return refuse("calls: an agent is an attached server or calls the hub, not both; make two agents")
	case a.URL == "" && a.hasCredentials():
		return refuse("url: credentials are for calls of a server elsewhere, so its url is needed")
	case !server && (a.Changes == "accept" || a.Elicitation || len(a.Repeatable) > 0):
		return refuse("url: changes, elicitation and repeatable are about an attached server; set url, or attached = true")
	case slices.Contains(a.Repeatable, ""):
		return refuse("repeatable: want names of tools, or \"*\"")
	}
	if err := a.checkCredentials(); err != nil {
		return refuse("%s", err)
	}
	return nil
}

// settings reads the files of an agent's table.
func (a *MCPAgent) settings() (s bridge.AgentSettings, err error) {
	s = bridge.AgentSettings{Guests: a.Guests, Accept: a.Changes == "accept", Elicitation: a.Elicitation,
		Repeatable: a.Repeatable}
	s.Credentials, err = a.readCredentials()
	return s, err
}

// mcpGuests are the rules that let callers without credentials reach agents that are open to guests in MCP.
func (c *Config) mcpGuests() []policy.Least {
	return c.guestRules(bridge.Protocol, c.MCP.Guests, func(a *Agent) bool { return a.MCP != nil && a.MCP.Guests })
}

// MCP is the node's MCP binding, or nil where it is switched off.
func (n *Node) MCP() *bridge.Binding { return bindingOf[*bridge.Binding](n) }

func openMCP(_ context.Context, n *Node) (*Binding, error) {
	c := n.c.MCP
	if c.Off {
		return switchedOff(bridge.Protocol, func(a *Agent) bool { return a.MCP != nil }), nil
	}
	answer, err := sizeOr("mcp.max_answer", c.MaxAnswer, 0)
	if err != nil {
		return nil, err
	}
	b, err := bridge.New(bridge.Config{Hub: n.hub, Keys: n.keys, Journal: n.journal, Index: n.index, Callers: n.callers(),
		Allow: n.guard.Prefixes, RootCAs: n.rootCAs, Transport: n.tracer.transport, PublicURL: n.c.PublicURL,
		Hosts: c.Hosts, Origins: n.c.Listen.Origins, Guests: c.Guests, Version: n.c.Version, Tools: c.Tools,
		MaxBody: n.k.body, MaxAnswer: answer, Wait: c.Wait.Duration, LongWait: c.LongWait.Duration, Sessions: c.Sessions,
		Idle: c.Idle.Duration, Ceiling: c.Ceiling.Duration, Now: n.c.Now, Logger: n.log})
	if err != nil {
		return nil, err
	}
	out := &Binding{Hub: b, EndStreams: b.EndStreams, Reloaded: b.ListsChanged,
		Agent: func(name string, a *Agent) (Enrolment, error) { return enrolMCP(b, name, a.MCP) },
		Gone:  func(name string) { b.SetAgent(name, bridge.AgentSettings{}) }}
	out.Admin.Credentials = credentialStore(b.StoreCredentials)
	out.Admin.Tools = func(ctx context.Context, agent string) (admin.AgentTools, error) {
		l, err := b.Tools(ctx, agent)
		return admin.AgentTools{Approved: append([]admin.Tool{}, toolTexts(l.Approved)...), Offered: toolTexts(l.Offered),
			Digest: l.Digest}, err
	}
	out.Admin.ApproveTools = b.ApproveTools
	return out, nil
}

// toolTexts gives tools as the admin API has them; nil stays nil.
func toolTexts(list []bridge.ToolText) []admin.Tool {
	if list == nil {
		return nil
	}
	out := make([]admin.Tool, 0, len(list))
	for _, t := range list {
		out = append(out, admin.Tool(t))
	}
	return out
}

func enrolMCP(b *bridge.Binding, name string, a *MCPAgent) (e Enrolment, err error) {
	var settings bridge.AgentSettings
	if a != nil {
		switch {
		case a.URL != "":
			e.Identity, err = bridge.IdentityAt(a.URL)
		case a.Attached:
			e.Identity = bridge.IdentityOfTunnel(name)
		case a.Calls:
			e.Identity = bridge.IdentityOfCaller(name)
		}
		if err == nil {
			settings, err = a.settings()
		}
		if err != nil {
			return e, fmt.Errorf("agents.%s.mcp.%w", name, err)
		}
		e.Files = a.namesFiles()
	}
	e.Before = func(*parley.Agent) error {
		b.SetAgent(name, settings) // none, if the table was removed
		return nil
	}
	return e, nil
}
