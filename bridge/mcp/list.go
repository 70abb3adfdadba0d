package mcp

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/internal/jsonx"
)

// sees reports whether a caller may use a tool. A tool that it may not use is unknown to it.
func (b *Binding) sees(c *caller, t *bridge.Tool) bool {
	return t.Agent != c.Name && (!c.Guest || b.opensToGuests(t.Agent)) &&
		b.c.Hub.Visible(Protocol, c.Name, t.Entry, t.Skill.ID)
}

// A listedTool is an agent's tool under the name that it has at an endpoint.
type listedTool struct {
	name string
	*bridge.Tool
}

// visible lists the agents' tools that a caller may use at its endpoint, by name.
func (c *clients) visible(who *caller) (out []listedTool) {
	if who.agent != "" {
		for _, t := range c.ofAgent(who.agent) {
			if c.b.sees(who, t.Tool) {
				out = append(out, t)
			}
		}
		return out
	}
	for _, t := range c.b.catalogue.Visible(Protocol, who.Name) {
		if !who.Guest || c.b.opensToGuests(t.Agent) {
			out = append(out, listedTool{t.Name, t})
		}
	}
	return out
}

const maxToolName = 64 // that the makers of models allow

// ofAgent lists the tools of one agent by the names of their skills, which are valid, unique and stable (MCP-020).
func (c *clients) ofAgent(agent string) []listedTool {
	e, ok := c.b.c.Hub.Directory().Agent(agent)
	if !ok {
		return nil
	}
	skills := e.Skills
	if len(skills) == 0 {
		skills = []parley.SkillSpec{{ID: "talk"}} // see bridge.Catalogue
	}
	times := map[string]int{toolResult: 1}
	for _, s := range skills {
		times[bridge.SafeName(s.ID)]++
	}
	var out []listedTool
	for _, s := range skills {
		t, ok := c.b.catalogue.Skill(agent, s.ID)
		if !ok {
			continue // the directory has changed just now
		}
		name := bridge.SafeName(s.ID)
		if times[name] > 1 || len(name) > maxToolName || name == "" {
			sum := sha256.Sum256([]byte(s.ID))
			mark := "-" + hex.EncodeToString(sum[:4])
			name = name[:min(len(name), maxToolName-len(mark))] + mark
		}
		out = append(out, listedTool{name, t})
	}
	slices.SortStableFunc(out, func(a, b listedTool) int { return cmp.Compare(a.name, b.name) })
	return slices.CompactFunc(out, func(a, b listedTool) bool { return a.name == b.name })
}

// find finds the tool that a caller names: tool is nil for one of the hub's own. ok is false for one that the caller
// may not use.
func (c *clients) find(who *caller, name string) (tool *bridge.Tool, ok bool) {
	if slices.Contains(hubTools, name) {
		return nil, c.serves(who, name)
	}
	if who.agent == "" {
		tool, ok = c.b.catalogue.Tool(name)
		return tool, ok && c.b.sees(who, tool)
	}
	for _, t := range c.ofAgent(who.agent) {
		if t.name == name {
			return t.Tool, c.b.sees(who, t.Tool)
		}
	}
	return nil, false
}

// serves reports whether a caller may call one of the hub's own tools. parley_find and parley_ask may be called
// although they are not listed: a client that has them keeps them when an agent goes.
func (c *clients) serves(who *caller, name string) bool {
	switch {
	case name == toolResult:
		return true
	case who.agent != "":
		return false
	case name == toolInbox || name == toolReply:
		return c.hasInbox(who)
	}
	return true
}

// hasInbox reports whether a caller is an agent that gets messages by parley_inbox.
func (c *clients) hasInbox(who *caller) bool {
	e, ok := c.b.c.Hub.Directory().Lookup(Protocol, IdentityOfCaller(who.Name).ID)
	return ok && e.Name == who.Name && !who.Guest
}

// tools is the list of tools of a caller: rules MCP-022 and MCP-024.
func (c *clients) tools(who *caller, modern bool) []*mcp.Tool {
	list := c.visible(who)
	many := who.agent == "" && len(list) > c.b.c.Tools
	out := []*mcp.Tool{}
	for _, name := range hubTools {
		if c.serves(who, name) && (many || name != toolFind && name != toolAsk) {
			out = append(out, hubDefinitions[name])
		}
	}
	if !many {
		for _, t := range list {
			out = append(out, c.definition(t, modern))
		}
	}
	slices.SortFunc(out, func(a, b *mcp.Tool) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

const (
	maxTitle       = 100  // characters
	maxDescription = 1200 // characters
)

func (c *clients) definition(t listedTool, modern bool) *mcp.Tool {
	s := c.schemas.of(t.Tool)
	def := &mcp.Tool{Name: t.name, InputSchema: s.input, Annotations: foreignHints,
		Title: shownText(cmp.Or(t.Skill.Name, t.Skill.ID, "talk")+" ("+t.Agent+")", maxTitle),
		Description: shownText("Asks the agent "+t.Agent+", whose own words these are: "+t.Description(),
			maxDescription)}
	if out := s.outputFor(modern); out != nil {
		def.OutputSchema = out
	}
	return def
}

func hints(readOnly, destructive, open bool) *mcp.ToolAnnotations {
	return &mcp.ToolAnnotations{ReadOnlyHint: readOnly, DestructiveHint: &destructive, OpenWorldHint: &open}
}

// foreignHints are those of all agents' tools: nobody vouches for better ones.
var foreignHints = hints(false, true, true)

func hubTool(name, title, description string, h *mcp.ToolAnnotations, schema string) *mcp.Tool {
	return &mcp.Tool{Name: name, Title: title, Description: description, Annotations: h,
		InputSchema: json.RawMessage(schema)}
}

// Members of the hub's tools.
const (
	agentMember   = `"agent":{"type":"string","description":"name of the agent"}`
	skillMember   = `"skill":{"type":"string","description":"skill to use; left out: the agent's default"}`
	contentMember = `"content":{"description":"text, or JSON as the skill asks for it"}`
	talkMember    = `"conversation":{"type":"string","description":"id of a conversation that goes on, from an ` +
		`earlier result; left out: a new one"}`
	waitMember = `"wait":{"type":"number","minimum":0,"description":"seconds to wait; left out: as long as the hub ` +
		`lets calls wait"}`
)

func objectSchema(required string, members ...string) string {
	return `{"type":"object","properties":{` + strings.Join(members, ",") + `},"required":[` + required +
		`],"additionalProperties":false}`
}

var hubDefinitions = map[string]*mcp.Tool{
	toolFind: hubTool(toolFind, "Find agents",
		"Finds agents and their skills by words of their names and descriptions. Call a tool that it finds by its name, "+
			"or use parley_ask.", hints(true, false, false),
		objectSchema("", `"query":{"type":"string","description":"words; left out or empty: all agents"}`,
			`"limit":{"type":"integer","minimum":1,"maximum":100,"description":"at most so many; left out: 20"}`)),
	toolAsk: hubTool(toolAsk, "Ask an agent",
		"Asks an agent, and waits for its answer. If that takes too long, the result has an id, by which parley_result "+
			"fetches the answer.", foreignHints,
		objectSchema(`"agent","content"`, agentMember, skillMember, contentMember, talkMember)),
	// The root of a schema has no oneOf or not: many clients refuse these.
	toolSend: hubTool(toolSend, "Send a message", "Sends a message to an agent, and waits for no answer.", foreignHints,
		objectSchema(`"agent","content"`, agentMember, skillMember, contentMember, talkMember,
			`"in_reply_to":{"type":"string","description":"id of your open call of this agent that the content adds `+
				`to, for example because the agent asked for input; then leave skill and conversation out: they are `+
				`those of the call"}`)),
	toolInbox: hubTool(toolInbox, "Read messages",
		"Gives the messages that other agents sent to you, the oldest first, and waits for one if there is none. "+
			"Answer requests with parley_reply.", hints(false, false, true),
		objectSchema("", `"after":{"type":"string","description":"cursor of the last result: the messages up to it `+
			`are removed; left out: unread messages come again"}`, waitMember,
			`"max":{"type":"integer","minimum":1,"description":"at most so many messages"}`)),
	toolReply: hubTool(toolReply, "Answer a request", "Answers a request of another agent that came by parley_inbox.",
		foreignHints, objectSchema(`"id"`, `"id":{"type":"string","description":"id of the request"}`, contentMember,
			`"error":{"type":"string","description":"in place of content: says that the request failed, and why"}`,
			`"state":{"enum":["accepted","working","needs-input"],"description":"says so, and leaves the request open"}`)),
	toolResult: hubTool(toolResult, "Fetch an answer",
		"Fetches the answer of an earlier call that took too long, and waits for it if it is not there yet.",
		hints(true, false, true),
		objectSchema(`"id"`, `"id":{"type":"string","description":"id from the result of the call"}`, waitMember)),
}

const maxFound = 256 << 10 // bytes of the skills in one answer

// search answers a call of parley_find.
func (c *clients) search(t *toolCall) *mcp.CallToolResult {
	q := struct {
		Query string  `json:"query"`
		Limit float64 `json:"limit"`
	}{Limit: 20}
	err := decodeArguments(t.params.Arguments, &q)
	if err == nil && (q.Limit < 1 || q.Limit > 100 || q.Limit != math.Trunc(q.Limit)) {
		err = invalidArgument("limit", "want a whole number from 1 to 100")
	}
	if err != nil {
		return failedResult(parley.AsError(err))
	}
	found, _ := c.b.catalogue.Search(Protocol, t.caller.Name, q.Query, math.MaxInt)
	if t.caller.Guest {
		found = slices.DeleteFunc(found, func(t *bridge.Tool) bool { return !c.b.opensToGuests(t.Agent) })
	}
	out := struct {
		Found []json.RawMessage `json:"found"`
		Total int               `json:"total"`
	}{Found: []json.RawMessage{}, Total: len(found)}
	size := 0
	for _, t := range found[:min(int(q.Limit), len(found))] {
		hit, err := jsonx.Encode(bridge.Hit{Agent: t.Agent, Skill: visible(t.Skill.ID), Tool: t.Name,
			Description: shownText(t.Description(), maxDescription), Input: c.schemas.of(t).content})
		if size += len(hit); err != nil || size > maxFound {
			break // total says that there are more
		}
		out.Found = append(out.Found, hit)
	}
	text, err := jsonx.Encode(out)
	if err != nil {
		return toolError("the hub failed")
	}
	return &mcp.CallToolResult{StructuredContent: json.RawMessage(text),
		Content: []mcp.Content{&mcp.TextContent{Text: string(text)}}}
}

// toolError is the result of a call that failed, for the model.
func toolError(format string, args ...any) *mcp.CallToolResult {
	return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, args...)}}}
}
