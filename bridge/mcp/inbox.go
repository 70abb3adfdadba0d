package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/bridge/follow"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/journal/index"
)

// Tools with which agents that call the hub get messages of others, answer them, and send their own.

// Bounds of one answer of parley_inbox.
const (
	defaultBatch = 20
	maxBatch     = 100
	batchBytes   = 256 << 10 // of messages, but for a single one that is larger
)

// call answers a call of one of the tools parley_inbox, parley_reply and parley_send.
func (i *inbox) call(ctx context.Context, t *toolCall) *mcp.CallToolResult {
	e := &clientCall{b: i.b, t: t}
	var result any
	var err error
	switch t.name {
	case toolInbox:
		result, err = i.read(ctx, t)
	case toolReply:
		result, err = i.reply(ctx, e)
	default:
		result, err = i.send(ctx, e)
	}
	if err == nil {
		var text []byte
		if text, err = jsonx.Encode(result); err == nil {
			return &mcp.CallToolResult{StructuredContent: json.RawMessage(text), Content: oneText("%s", text)}
		}
	}
	r, err := e.refused(err)
	if wire, ok := errors.AsType[*jsonrpc.Error](err); ok {
		return failedResult(parley.Refuse(parley.InvalidContent, "%s", wire.Message))
	}
	return r
}

// read answers a call of parley_inbox. The messages stay until a later call says that they have arrived.
func (i *inbox) read(ctx context.Context, t *toolCall) (*batch, error) {
	q := struct {
		After string   `json:"after"` // id of the last message that the agent has
		Wait  *float64 `json:"wait"`  // seconds
		Max   float64  `json:"max"`
	}{Max: defaultBatch}
	if err := decodeArguments(t.params.Arguments, &q); err != nil {
		return nil, err
	}
	limit := i.b.c.Wait
	if t.params.GetProgressToken() != nil {
		limit = i.b.c.LongWait
	}
	if q.Wait != nil {
		if *q.Wait < 0 {
			return nil, invalidArgument("wait", "want seconds, 0 or more")
		}
		limit = time.Duration(min(*q.Wait, limit.Seconds()) * float64(time.Second))
	}
	if q.Max < 1 || q.Max != math.Trunc(q.Max) {
		return nil, invalidArgument("max", "want a whole number of 1 or more")
	}
	agent := t.caller.Name
	if q.After != "" {
		last, err := parley.ParseID(q.After)
		if err != nil {
			return nil, invalidArgument("after", "want the cursor of an earlier result")
		}
		if err := i.remove(ctx, agent, last); err != nil {
			return nil, err
		}
	}
	ctx, end := i.b.calls.begin(ctx, t.caller)
	defer end()
	ok, leave := i.enter(agent)
	defer leave()
	if !ok {
		limit = 0
	}
	waiting, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer context.AfterFunc(i.b.streaming, cancel)()
	for {
		grown := i.next(agent) // first: a message that comes after the read closes it
		list, err := i.unread(ctx, agent, int(min(q.Max, maxBatch)), batchBytes)
		if err != nil || len(list.Messages) > 0 {
			return list, err
		}
		select {
		case <-grown:
		case <-waiting.Done():
			return list, nil
		}
	}
}

// A sentMessage is the result of a call that recorded a message.
type sentMessage struct {
	ID           parley.ID `json:"id"`
	Conversation parley.ID `json:"conversation"`
	InReplyTo    parley.ID `json:"in_reply_to,omitzero"`
	To           string    `json:"to"`
}

func sentMessageOf(m *parley.Message) *sentMessage {
	return &sentMessage{ID: m.ID, Conversation: m.Conversation, InReplyTo: m.InReplyTo, To: m.To}
}

// reply answers a call of parley_reply: it answers a request, or says how it goes on.
func (i *inbox) reply(ctx context.Context, e *clientCall) (*sentMessage, error) {
	var q struct {
		ID      string      `json:"id"`
		Content jsonx.Value `json:"content"`
		Error   *string     `json:"error"`
		State   *string     `json:"state"`
	}
	if err := decodeArguments(e.t.params.Arguments, &q); err != nil {
		return nil, err
	}
	request, err := parley.ParseID(q.ID)
	if err != nil {
		return nil, invalidArgument("id", "want the id of a request that came by %s", toolInbox)
	}
	m := e.from(parley.Response)
	m.InReplyTo = request
	switch {
	case q.Error != nil && (q.State != nil || !jsonx.IsNull(q.Content)):
		return nil, invalidArgument("error", "it stands in place of content and state; leave them out, or leave it out")
	case q.Error != nil && *q.Error == "":
		return nil, invalidArgument("error", "want a text that says why the request failed")
	case q.Error != nil:
		m.Kind, m.Error = parley.Failure, parley.Refuse(parley.HandlerFailed, "%s", bridge.Shorten(*q.Error, 500))
	case q.State != nil:
		m.Kind = parley.Event
		if err := m.State.UnmarshalText([]byte(*q.State)); err != nil || m.State == parley.NoState {
			return nil, invalidArgument("state", "want accepted, working or needs-input")
		}
	case jsonx.IsNull(q.Content):
		return nil, invalidArgument("content", "want the answer; or give error, or state")
	}
	if m.Parts, err = fromContent(q.Content); err != nil {
		return nil, err
	}
	recorded, err := e.accept(ctx, m, false)
	if parley.CodeOf(err) == parley.Conflict {
		recorded, err = i.earlier(ctx, m, err)
	}
	if err != nil {
		return nil, err
	}
	return sentMessageOf(recorded), nil
}

// earlier gives the reply of the caller that a repeated one stands for. Else the error says why the request takes no
// reply of the caller: refused, the hub's, says less. Requests of others are unknown.
func (i *inbox) earlier(ctx context.Context, m *parley.Message, refused error) (*parley.Message, error) {
	unknown := invalidArgument("id", "no request with this id came to you by %s", toolInbox)
	if err := i.b.requests.Indexed(ctx); err != nil {
		return nil, err
	}
	request, err := i.b.c.Index.Message(ctx, m.InReplyTo.String())
	if errors.Is(err, index.ErrNotFound) {
		return nil, unknown
	} else if err != nil {
		return nil, parley.Fail(parley.Unavailable, err, "the index cannot be read now")
	}
	at := slices.IndexFunc(request.Deliveries, func(d index.Delivery) bool { return d.To == m.From })
	if request.Kind != parley.Request || request.Refused || at < 0 {
		return nil, unknown
	}
	d := &request.Deliveries[at]
	switch d.State {
	case parley.Waiting, parley.Delivering, parley.Delivered:
		return nil, refused // it is open, so the hub says what is wrong
	case parley.Answered:
		reply, err := i.b.c.Index.Message(ctx, d.Reply.String())
		if err != nil {
			return nil, parley.Fail(parley.Unavailable, err, "the index cannot be read now")
		}
		if reply.Protocol == Protocol {
			r, err := i.b.c.Journal.Read(ctx, reply.Position)
			if err == nil && r.Message != nil &&
				r.Message.Trace.Foreign[foreignArguments] == m.Trace.Foreign[foreignArguments] {
				return r.Message, nil
			}
			return nil, parley.Refuse(parley.Conflict, "you have answered this request before: your first answer, "+
				"message %s, stands, and this one was not sent", d.Reply)
		}
	}
	return nil, parley.Refuse(parley.Conflict, "the request has ended without an answer of yours, so this one was not "+
		"sent: it was cancelled, or its time was up")
}

// send answers a call of parley_send: a message that waits for no answer, or more about an open request of the caller.
func (i *inbox) send(ctx context.Context, e *clientCall) (*sentMessage, error) {
	arguments := e.t.params.Arguments
	if len(arguments) == 0 {
		arguments = json.RawMessage("{}")
	}
	m := e.from(parley.Notice)
	if err := argumentError(jsonx.Valid(arguments, 0)); err != nil {
		return nil, err
	}
	var err error
	if from, to := jsonx.Find(arguments, "in_reply_to"); from == to {
		err = e.addressed(ctx, m)
	} else {
		err = e.addition(ctx, m)
	}
	if err != nil {
		return nil, err
	}
	recorded, err := e.accept(ctx, m, false)
	if err != nil {
		return nil, err
	}
	return sentMessageOf(recorded), nil
}

// addition takes more about an open request from the arguments of parley_send. Models repeat the skill and the
// conversation of the request, which say nothing new.
func (e *clientCall) addition(ctx context.Context, m *parley.Message) error {
	var q struct {
		Agent        string      `json:"agent"`
		InReplyTo    string      `json:"in_reply_to"` // id of the request
		Content      jsonx.Value `json:"content"`
		Skill        string      `json:"skill"`
		Conversation string      `json:"conversation"`
	}
	if err := decodeArguments(e.t.params.Arguments, &q); err != nil {
		return err
	}
	var err error
	unknown := invalidArgument("in_reply_to", "want the id of an open request of yours, as its call returned it")
	if m.InReplyTo, err = parley.ParseID(q.InReplyTo); err != nil {
		return unknown
	}
	if q.Agent == "" {
		return invalidArgument("agent", "want the agent that has the request")
	}
	if q.Skill != "" || q.Conversation != "" {
		request, err := e.b.requests.Find(ctx, m.InReplyTo, follow.By{From: m.From})
		switch {
		case errors.Is(err, follow.ErrNotFound):
			return unknown
		case err != nil:
			return err
		case q.Skill != "" && q.Skill != request.Skill:
			return invalidArgument("skill", "the request uses the skill %q, which its inputs do not change; leave it out",
				request.Skill)
		case q.Conversation != "" && q.Conversation != request.Conversation.String():
			return invalidArgument("conversation", "the request is in conversation %s; leave it out", request.Conversation)
		}
	}
	m.Kind, m.To = parley.Input, q.Agent
	m.Parts, err = wantContent(q.Content)
	return err
}
