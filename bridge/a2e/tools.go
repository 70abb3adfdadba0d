package a2e

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/internal/jsonx"
)

// tools is the directory as an A2E agent sees it: every skill of every agent that the
// agent may call, and the hub's own tools.
type tools struct {
	b         *Binding
	catalogue *bridge.Catalogue
}

func newTools(b *Binding) *tools { return &tools{b, bridge.NewCatalogue(b.c.Hub)} }

// visible lists the skills that an agent may call.
func (t *tools) visible(agent string) []*bridge.Tool { return t.catalogue.Visible(Protocol, agent) }

// List implements a2e.Tools.
func (t *tools) List(_ context.Context, r *protocol.Request) ([]protocol.ToolDefinition, error) {
	found := t.visible(r.Identity.Name)
	many := len(found) > t.b.c.Tools
	list := hubTools(many)
	for _, tg := range found {
		list = append(list, protocol.ToolDefinition{
			Name: tg.Name, Description: tg.Description(), InputParameters: parameters(tg.Skill.Input),
			OutputParameters: outputs(tg.Skill.Output), Streaming: true, Tags: tg.Tags(),
			Version: cmp.Or(tg.Entry.Version, "1.0.0"), Toolkit: &tg.Agent, DeferLoading: many,
		})
	}
	return list, nil
}

func outputs(raw []byte) []protocol.ToolParameter {
	if len(raw) == 0 {
		return nil
	}
	return parameters(raw)
}

// Call implements a2e.Tools.
func (t *tools) Call(ctx context.Context, c *protocol.ToolCall) (protocol.ToolResult, error) {
	if isHubTool(c.Name) {
		return t.callHubTool(ctx, c)
	}
	tg, ok := t.catalogue.Tool(c.Name)
	if !ok {
		return protocol.ToolResult{}, protocol.ErrUnknownTool
	}
	return t.callTool(ctx, c, tg, c.Arguments)
}

func (t *tools) callTool(ctx context.Context, c *protocol.ToolCall, tg *bridge.Tool,
	arguments json.RawMessage) (protocol.ToolResult, error) {
	data, metadata, err := t.call(ctx, c.Request, tg, arguments, c.Streaming, nil)
	return protocol.ToolResult{Success: true, Data: data, Metadata: metadata}, err
}

// call sends a request to a skill and waits for its answer, which it gives as the data
// and metadata of a result. Events go to the agent as they arrive, before the answer.
// more are the extensions of the request.
func (t *tools) call(ctx context.Context, r *protocol.Request, tg *bridge.Tool, arguments json.RawMessage,
	streaming bool, more map[string]json.RawMessage) (data, metadata json.RawMessage, err error) {
	parts, err := fromContent(tg.Content(arguments, wrappedMember))
	if err != nil {
		return nil, nil, protocol.ErrSchema.Because(err)
	}
	m := t.b.request(r, parley.Request)
	m.To, m.Skill, m.Parts, m.Extensions = tg.Agent, tg.Skill.ID, parts, more
	var event func(*parley.Message) error
	if streaming {
		event = func(e *parley.Message) error {
			kind, data := toEvent(e)
			return r.Event(ctx, kind, data)
		}
	} else {
		m.Trace.Foreign[foreignEvents] = "no"
	}
	reply, err := t.b.call(ctx, r, m, false, event)
	if err != nil {
		return nil, nil, err
	}
	data, err = toData(reply.Parts)
	return data, provenanceOf(reply, t.b.c.Hub.ID(), bridge.Call), err
}

// skills is the directory as skills (A2E §6.4).
type skills struct{ t *tools }

// Discover implements a2e.Skills.
func (s skills) Discover(_ context.Context, r *protocol.Request) ([]protocol.SkillDefinition, error) {
	var list []protocol.SkillDefinition
	for _, tg := range s.t.visible(r.Identity.Name) {
		var arguments []string
		for _, p := range parameters(tg.Skill.Input) {
			arguments = append(arguments, p.Name)
		}
		list = append(list, protocol.SkillDefinition{
			Name: tg.Name, Version: cmp.Or(tg.Entry.Version, "1.0.0"), Description: tg.Description(),
			Triggers:    []string{cmp.Or(tg.Skill.Name, tg.Name)},
			InputSchema: bridge.SchemaObject(tg.Skill.Input), OutputSchema: bridge.SchemaObject(tg.Skill.Output),
			Arguments: arguments, WhenToUse: tg.Description(),
			ArgumentHint: strings.Join(arguments, " "), Source: "parley:" + tg.Agent, Category: &tg.Agent,
			Tags: tg.Tags(),
		})
	}
	return list, nil
}

// Call implements a2e.Skills.
func (s skills) Call(ctx context.Context, c *protocol.SkillCall) (protocol.SkillResult, error) {
	tg, ok := s.t.catalogue.Tool(c.Name)
	if !ok {
		return protocol.SkillResult{}, protocol.ErrUnknownSkill
	}
	var more map[string]json.RawMessage
	if !jsonx.IsNull(c.LLMOverride) {
		more = map[string]json.RawMessage{Protocol: json.RawMessage(`{"llm_override":` + string(c.LLMOverride) + `}`)}
	}
	data, metadata, err := s.t.call(ctx, c.Request, tg, c.Arguments, c.Streaming, more)
	return protocol.SkillResult{Success: true, Data: data, Metadata: metadata}, err
}

// The hub's own tools.
const (
	toolInbox = "parley_inbox"
	toolReply = "parley_reply"
	toolSend  = "parley_send"
	toolFind  = "parley_find"
	toolAsk   = "parley_ask"
)

func isHubTool(name string) bool {
	return slices.Contains([]string{toolInbox, toolReply, toolSend, toolFind, toolAsk}, name)
}

func hubTools(many bool) []protocol.ToolDefinition {
	text := func(name, description string, required bool) protocol.ToolParameter {
		return protocol.ToolParameter{Name: name, Type: "string", Description: description, Required: required}
	}
	content := protocol.ToolParameter{Name: "content", Type: "any",
		Description: "text, or JSON as the skill asks for it"}
	define := func(name, description string, deferred bool, in ...protocol.ToolParameter) protocol.ToolDefinition {
		return protocol.ToolDefinition{Name: name, Description: description, InputParameters: in,
			Streaming: true, Tags: []string{"parley"}, Version: "1.0.0", DeferLoading: deferred}
	}
	return []protocol.ToolDefinition{
		define(toolInbox, "Waits for messages of other agents. Each comes as an event as soon as it arrives; "+
			"the answer holds them all again under \"messages\". Answer requests with parley_reply; "+
			"an input adds to the request in its in_reply_to.", false,
			protocol.ToolParameter{Name: "wait", Type: "number",
				Description: "seconds to wait; default: as long as the call may take"},
			protocol.ToolParameter{Name: "max", Type: "integer",
				Description: "return after so many messages; default: 1 without streaming, else 32"}),
		define(toolReply, "Answers a request of another agent that came by parley_inbox.", false,
			text("id", "id of the request", true), content,
			text("error", "says that the request failed, and why, in place of content", false),
			text("state", "accepted, working or needs-input: says so and leaves the request open", false)),
		define(toolSend, "Sends a message to an agent without waiting for an answer.", false,
			text("agent", "name of the agent", true),
			text("skill", "skill to call; default: the agent's default", false), content,
			text("in_reply_to", "adds to your open call of the agent, which may have asked for input: "+
				"the in_reply_to of its event, or the id of the call", false)),
		define(toolFind, "Finds agents and their skills by words of their names and descriptions.", !many,
			text("query", "words; empty finds all", false),
			protocol.ToolParameter{Name: "limit", Type: "integer", Description: "at most so many; default 20"}),
		define(toolAsk, "Asks an agent and waits for its answer.", !many,
			text("agent", "name of the agent", true),
			text("skill", "skill to call; default: the agent's default", false), content),
	}
}

func (t *tools) callHubTool(ctx context.Context, c *protocol.ToolCall) (res protocol.ToolResult, err error) {
	res.Success = true
	switch c.Name {
	case toolInbox:
		res.Data, err = t.b.inboxes.call(ctx, c)
	case toolReply:
		res.Data, err = t.b.inboxes.reply(ctx, c)
	case toolSend:
		res.Data, err = t.send(ctx, c)
	case toolFind:
		res.Data, err = t.search(c)
	case toolAsk:
		tg, q, err := t.addressed(c)
		if err != nil {
			return res, err
		}
		return t.callTool(ctx, c, tg, q.Content)
	}
	return res, err
}

// addressed are the arguments of a tool that names an agent.
type addressed struct {
	Agent     string          `json:"agent"`
	Skill     string          `json:"skill"`
	Content   json.RawMessage `json:"content"`
	InReplyTo string          `json:"in_reply_to"` // of parley_send
}

// addressed reads the arguments of a tool that names an agent.
func (t *tools) addressed(c *protocol.ToolCall) (tg *bridge.Tool, q addressed, err error) {
	if err := jsonx.Decode(c.Arguments, &q); err != nil {
		return nil, q, badArguments("want {agent, skill, content}", err)
	}
	e, ok := t.b.c.Hub.Directory().Agent(q.Agent)
	input := c.Name == toolSend && q.InReplyTo != "" // its skill is that of the open call
	if ok && (input || len(e.Skills) == 0) {
		return &bridge.Tool{Agent: e.Name, Entry: e, Skill: parley.SkillSpec{ID: q.Skill}}, q, nil
	}
	if ok {
		tg, ok = t.catalogue.Skill(q.Agent, q.Skill)
	}
	if !ok {
		return nil, q, protocol.ErrUnknownTool
	}
	return tg, q, nil
}

func badArguments(text string, cause error) error {
	e := protocol.ErrSchema.Because(cause)
	e.Text, e.Capability = text, "tools"
	return e
}

// send sends a message without waiting for an answer.
func (t *tools) send(ctx context.Context, c *protocol.ToolCall) (any, error) {
	tg, q, err := t.addressed(c)
	if err != nil {
		return nil, err
	}
	m := t.b.request(c.Request, parley.Notice)
	if q.InReplyTo != "" {
		m.Kind, m.InReplyTo = parley.Input, t.b.requestNamed(c.Request, q.InReplyTo)
	}
	if m.Parts, err = fromContent(q.Content); err != nil {
		return nil, badArguments("the content is not usable", err)
	}
	m.To, m.Skill = tg.Agent, tg.Skill.ID
	id, conversation, err := t.b.accept(ctx, c.Request, t.b.submission(c.Request, m))
	data := map[string]any{"id": id}
	if !conversation.IsZero() {
		data["conversation"] = conversation
	}
	return data, err
}

// search finds skills by words.
func (t *tools) search(c *protocol.ToolCall) (any, error) {
	q := struct {
		Query string `json:"query"`
		Limit int    `json:"limit"`
	}{Limit: 20}
	if err := jsonx.Decode(c.Arguments, &q); err != nil {
		return nil, badArguments("want {query, limit}", err)
	}
	found, total := t.catalogue.Search(Protocol, c.Identity.Name, q.Query, q.Limit)
	hits := make([]bridge.Hit, len(found))
	for i, tg := range found {
		hits[i] = tg.Hit()
	}
	return map[string]any{"found": hits, "total": total}, nil
}
