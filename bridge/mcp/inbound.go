package mcp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/bridge/follow"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
)

// From the wire to the hub: a call becomes a request, or is refused.

// callScope is where the order and the replay keys of a caller's requests to an agent are kept.
func callScope(agent, caller string) string { return Protocol + " " + agent + "\n" + caller }

// keyLife is how long an idempotency key is remembered. Of a caller that has given more of them than the journal keeps
// for it, it is the journal's usual window.
const keyLife = 24 * time.Hour

// submit records the request, or finds the one that stands for it.
func (e *clientCall) submit(ctx context.Context, m *parley.Message) error {
	var err error
	if m.ID, err = parley.NewID(e.b.c.Now(), e.b.c.Rand); err != nil {
		return parley.Refuse(parley.Internal, "internal error").Because(err)
	}
	e.id, e.to = m.ID, m.To
	e.sub = e.b.requests.Subscribe(m.ID, e.token != nil) // first: the records begin with the request
	recorded, err := e.accept(ctx, m, e.t.tool != nil && len(e.t.tool.Skill.Input) > 0)
	if err != nil || recorded.ID == e.id {
		return err
	}
	return e.open(ctx, recorded.ID)
}

// repeats reports whether the call has the idempotency key of one that was recorded before, at any hub.
func (e *clientCall) repeats(ctx context.Context, m *parley.Message) (bool, error) {
	key, err := idempotencyKey(e.t.params.Meta)
	if err != nil || key == "" {
		return false, err
	}
	if err := e.b.requests.Indexed(ctx); err != nil {
		return false, err
	}
	_, known := e.b.c.Journal.Seen(callScope(m.To, m.From), replayKey(key))
	return known, nil
}

// replayKey is the replay key of an idempotency key.
func replayKey(key string) string { return "key " + key }

// accept records a message of the caller; fits: its content fits the skill. One that the same idempotency key came with
// before stands for it (rule MCP-061).
func (e *clientCall) accept(ctx context.Context, m *parley.Message, fits bool) (*parley.Message, error) {
	key, err := idempotencyKey(e.t.params.Meta)
	if err != nil {
		return nil, err
	}
	digest := argumentsDigest(e.t)
	m.Trace.Foreign[foreignArguments] = digest
	inRaw(m)
	s := hub.Submission{Message: m, Scope: callScope(m.To, m.From), Fits: fits}
	if key != "" {
		s.Key = journal.Key{ID: replayKey(key), Sender: m.From, Until: e.b.c.Now().Add(keyLife)}
	}
	hops := m.Hops
	ctx = context.WithoutCancel(ctx) // else it is not known whether the request must be cancelled
	accepted, err := e.b.c.Hub.Accept(ctx, s)
	if key != "" && errors.Is(err, journal.ErrBusy) {
		s.Key.Until, m.Hops = time.Time{}, hops
		accepted, err = e.b.c.Hub.Accept(ctx, s)
	}
	prior, ok := errors.AsType[*hub.Prior](err)
	if !ok {
		return accepted, err
	}
	first, err := e.b.c.Journal.Read(ctx, prior.Of.Position)
	switch {
	case err != nil:
		return nil, parley.AsError(err)
	case first.Message == nil:
		return nil, follow.ErrNotFound
	case first.Message.Trace.Foreign[foreignArguments] != digest:
		return nil, parley.Refuse(parley.Conflict,
			"_meta %s: another call was made with this key; give each call a key of its own", metaKey)
	case prior.Refused != nil:
		return nil, prior.Refused
	}
	return first.Message, nil
}

// refused gives the result of a call that the hub did not accept, or could not answer.
func (e *clientCall) refused(err error) (*mcp.CallToolResult, error) {
	if wire, ok := errors.AsType[*jsonrpc.Error](err); ok {
		return nil, wire
	}
	p := parley.AsError(err)
	if errors.Is(err, follow.ErrNotFound) {
		p = parley.Refuse(parley.Conflict, "the content of this request was erased; make another one")
	}
	to := e.t.name
	if e.t.tool != nil {
		to = e.t.tool.Agent
	}
	if p.Ref == "" {
		cause := ""
		if c := errors.Unwrap(p); c != nil {
			cause = c.Error()
		}
		c, who := *p, e.t.caller
		c.Ref = e.b.c.Hub.Refuse(hub.Refusal{Protocol: Protocol, Source: who.remote, Claim: who.Name, To: to, Step: "admit",
			Code: p.Code, Text: p.Text, Cause: cause, Size: len(e.t.params.Arguments), Verdict: who.Verdict}.Because(p))
		p = &c
	}
	switch p.Code {
	case parley.UnknownAgent, parley.UnknownSkill, parley.Forbidden: // one text, which tells nothing (rule MCP-023)
		if e.t.tool != nil {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: fmt.Sprintf("unknown tool %q", e.t.name)}
		}
	case parley.Malformed:
		return nil, badParams(p.Text)
	}
	return failedResult(p), nil
}

func badParams(text string) error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: text}
}

// invalidArgument refuses an argument of a tool, which it names (rule MCP-025).
func invalidArgument(member, format string, args ...any) *parley.Error {
	return parley.Refuse(parley.InvalidContent, "%s: %s", member, fmt.Sprintf(format, args...))
}

// decodeArguments reads the arguments of a tool of the hub. The error names the member.
func decodeArguments(arguments []byte, v any) error {
	if len(arguments) == 0 {
		arguments = []byte("{}")
	}
	return argumentError(jsonx.DecodeKnown(arguments, v))
}

// argumentError refuses arguments that cannot be decoded.
func argumentError(err error) error {
	member := "arguments"
	e, ok := errors.AsType[*jsonx.Error](err)
	switch {
	case err == nil:
		return nil
	case ok:
		err = e.Is
		if e.Pointer != "" {
			member = bridge.Shorten(e.Pointer[1:], 100)
		}
	}
	return invalidArgument(member, "%s", err)
}

// message makes the request of a call.
func (e *clientCall) message(ctx context.Context) (*parley.Message, error) {
	t := e.t
	m := e.from(parley.Request)
	if e.token == nil {
		m.Trace.Foreign[foreignProgress] = "no"
	}
	arguments := t.params.Arguments
	if len(arguments) == 0 {
		arguments = []byte("{}")
	}
	if err := argumentError(jsonx.Valid(arguments, 0)); err != nil {
		return nil, err
	}
	if jsonx.Kind(arguments) != '{' {
		return nil, invalidArgument("arguments", "want a JSON object")
	}
	if t.name == toolAsk {
		return m, e.addressed(ctx, m)
	}
	m.To, m.Skill = t.tool.Agent, t.tool.Skill.ID
	content := t.tool.Content(arguments, wrappedMember)
	if err := hub.CheckContent(t.tool.Skill.Input, content); err != nil {
		return nil, invalidArgument("arguments", "they do not fit the tool's input schema: %s", err)
	}
	if text, ok := talkText(content); ok && len(t.tool.Skill.Input) == 0 {
		m.Parts = []parley.Part{parley.Text(text)}
	} else {
		m.Parts = []parley.Part{jsonPart(content)}
	}
	return m, nil
}

// addressed takes recipient and content from the arguments of parley_ask. The hub fits the content to the skill.
func (e *clientCall) addressed(ctx context.Context, m *parley.Message) error {
	var q struct {
		Agent        string      `json:"agent"`
		Skill        string      `json:"skill"`
		Content      jsonx.Value `json:"content"`
		Conversation string      `json:"conversation"`
	}
	if err := decodeArguments(e.t.params.Arguments, &q); err != nil {
		return err
	}
	b, who := e.b, e.t.caller
	unknown := invalidArgument("agent", "no agent %q that you may ask", bridge.Shorten(q.Agent, 128))
	agent, ok := b.c.Hub.Directory().Agent(q.Agent)
	if !ok || !slices.ContainsFunc(b.clients.ofAgent(q.Agent), func(t listedTool) bool { return b.sees(who, t.Tool) }) {
		return unknown
	}
	m.To, m.Skill = agent.Name, q.Skill
	if len(agent.Skills) > 0 { // else it may have any
		tool, ok := b.catalogue.Skill(agent.Name, q.Skill)
		if !ok || !b.sees(who, tool) {
			return invalidArgument("skill", "agent %q has no such skill that you may use; %s lists them", agent.Name, toolFind)
		}
		m.Skill = tool.Skill.ID
	}
	var err error
	if q.Conversation != "" {
		if m.Conversation, err = b.conversationOf(ctx, who, q.Conversation); err != nil {
			return err
		}
	}
	m.Parts, err = wantContent(q.Content)
	return err
}

// conversationOf gives the conversation that a caller names. One in which the caller takes no part is unknown. Errors
// are *parley.Error.
func (b *Binding) conversationOf(ctx context.Context, who *caller, name string) (parley.ID, error) {
	unknown := invalidArgument("conversation", "you take part in no conversation with this id; leave it out for a new one")
	id, err := parley.ParseID(name)
	if err != nil {
		return id, unknown
	}
	if err := b.requests.Indexed(ctx); err != nil {
		return id, err
	}
	page, err := b.c.Index.Messages(ctx, index.Filter{Agent: who.Name, Conversation: id, Limit: 100})
	if err != nil {
		return id, parley.Fail(parley.Unavailable, err, "the index cannot be read now")
	}
	if !slices.ContainsFunc(page.Messages, func(m index.Message) bool { return !m.Refused }) {
		return id, unknown
	}
	return id, nil
}
