package a2e

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/recorder"
)

// From the hub to the wire: Deliver calls a host's tool (hosts.go), records the result
// of delegated work (subagents.go), or puts a message into an agent's inbox (inbox.go).

// Deliver implements hub.Binding.
func (b *Binding) Deliver(ctx context.Context, o hub.Outbound) hub.Outcome {
	if o.Identity.URL != "" {
		return b.hosts.deliver(ctx, o)
	}
	if done, out := b.subagents.report(ctx, o); done {
		return out
	}
	return b.inboxes.deliver(ctx, o)
}

// deliver records a message for an open call of its recipient.
func (x *inboxes) deliver(ctx context.Context, o hub.Outbound) hub.Outcome {
	agent := o.Recipient.Name
	data, err := bridge.ArrivalOf(bridge.Inbox, o.Message, o.Attempt, x.b.c.Hub.ID())
	if err != nil {
		return hub.Outcome{Err: parley.Refuse(parley.InvalidContent, "the content cannot be said in A2E: %v", err)}
	}
	lost := bridge.Losses(bridge.Inbox, o.Message, agent)
	o.Loses(ctx, lost)
	size := frameSize(data)
	if size > x.room {
		return hub.Outcome{Err: parley.Refuse(parley.TooLarge,
			"the message is larger than a frame of A2E: %d bytes", size).With(parley.ByLimit, parley.BodySize, "")}
	}
	for {
		a, next := x.reserve(agent, size)
		switch {
		case a != nil:
			recorder.Sent(ctx, "", data) // its open call takes it
			m := inboxMessage{Hub: a.Node, Call: a.id, Arrival: data}
			err := x.keep(context.WithoutCancel(ctx), agent, m)
			x.noteRecorded(a)
			if err != nil {
				x.unreserve(a, size)
				return hub.Outcome{Err: parley.Fail(parley.Unavailable, err, "the message could not be kept").
					With(parley.ByHub, parley.HubStorage, ""), Wait: time.Second}
			}
			return hub.Outcome{Losses: lost}
		case !o.Waits:
			wait := time.Millisecond // then Capabilities.Holds makes the message wait
			if x.hasCall(agent) {
				wait = callAgainTime // the agent awaits the result of work
			}
			err := parley.Fail(parley.Unavailable, nil, "agent %q does not ask for its messages just now", agent).
				With(parley.ByNetwork, parley.NotConnected, "")
			return hub.Outcome{Err: err, Wait: wait}
		}
		select { // one attempt only: the agent mostly calls again at once
		case <-next:
		case <-ctx.Done():
			return hub.Outcome{Err: parley.AsError(ctx.Err()).With(parley.ByNetwork, parley.NotConnected,
				"it did not ask for its messages in time"), Wait: callAgainTime}
		}
	}
}

// deliver calls a host, as the hub.
func (h *hosts) deliver(ctx context.Context, o hub.Outbound) hub.Outcome {
	m := o.Message
	lost := bridge.Losses(bridge.Call, m, o.Recipient.Name)
	switch m.Kind {
	case parley.Request, parley.Notice:
	case parley.Cancel, parley.Input:
		return hub.Outcome{Losses: lost}
	default:
		return hub.Outcome{Err: parley.Refuse(parley.Unsupported, "a host takes requests")}
	}
	a := h.get(o.Recipient.Name)
	if a == nil {
		return hub.Outcome{Err: parley.Fail(parley.Unavailable, nil,
			"the host of %q cannot be attached to", o.Recipient.Name).With(parley.ByNetwork, parley.NoAddress, "")}
	}
	msg := protocol.Message{ID: hex.EncodeToString(m.ID[:])}
	x := extensionOf(m)
	var err error
	if x.Type != "" && m.Origin.Protocol == Protocol {
		msg.Type = x.Type
		if len(m.Parts) == 1 {
			msg.Body = json.RawMessage(m.Parts[0].Data)
		}
	} else {
		skill := m.Skill
		if s, ok := o.Recipient.SkillNamed(skill); ok {
			skill = s.ID
		}
		if skill == "" {
			e := a.ambiguous(o.Recipient.Skills)
			if e.Retryable {
				return hub.Outcome{Err: e, Losses: lost}
			}
			return failed(m, e)
		}
		msg.Type = "tool/call/req"
		msg.Body, err = h.toCall(ctx, m, skill)
	}
	if err != nil {
		return hub.Outcome{Err: parley.Refuse(parley.InvalidContent, "the content cannot be said in A2E: %v", err)}
	}
	recorder.To(ctx, a.address())
	for e, err := range a.client.Stream(ctx, msg) {
		switch {
		case err != nil:
			if refusal, ok := errors.AsType[*protocol.Error](err); ok && refusal.Step == "peer" {
				recorder.Got(ctx, string(refusal.Code), []byte(refusal.Text))
			}
			failure, attempt, unknown := fromError(err)
			if failure != nil {
				out := failed(m, failure)
				out.Losses = lost
				return out
			}
			return hub.Outcome{Err: attempt, Unknown: unknown, Losses: lost}
		case !e.Final:
			if m.Kind == parley.Request {
				state, parts := eventOf(e)
				if err := o.Event(state, parts...); err != nil {
					return hub.Outcome{Err: parley.AsError(err), Unknown: true, Losses: lost}
				}
			}
		default:
			recorder.Got(ctx, "", e.Raw())
			out := h.answer(e.Envelope, x.Type != "")
			out.Losses = lost
			if m.Kind != parley.Request {
				return hub.Outcome{Err: out.Failure, Losses: lost}
			}
			return out
		}
	}
	return hub.Outcome{Err: parley.Fail(parley.Unavailable, nil, "the host did not answer").
		With(parley.ByNetwork, parley.ConnectionLost, "the stream ended before its answer"), Unknown: true, Losses: lost}
}

// failed is the host's reply to a request; for another message, a failed delivery.
func failed(m *parley.Message, e *parley.Error) hub.Outcome {
	if m.Kind == parley.Request {
		return hub.Outcome{Answered: true, Failure: e}
	}
	return hub.Outcome{Err: e}
}

func (h *hosts) toCall(ctx context.Context, m *parley.Message, skill string) (any, error) {
	arguments, err := toData(m.Parts)
	if err == nil {
		arguments, err = asObject(arguments)
	}
	if err != nil {
		return nil, err
	}
	timeout := 30
	if until, ok := ctx.Deadline(); ok {
		timeout = max(1, int(time.Until(until)/time.Second))
	}
	return map[string]any{"tool_name": skill, "arguments": arguments, "correlation_id": m.Conversation.String(),
		"streaming": true, "timeout": timeout, "metadata": provenanceOf(m, h.b.c.Hub.ID(), bridge.Call)}, nil
}

// answer translates the final frame of a host.
func (h *hosts) answer(e *protocol.Envelope, whole bool) hub.Outcome {
	reply := &parley.Message{Origin: parley.Origin{Protocol: Protocol, Raw: e.Raw(),
		Verdict: parley.Verdict{Assurance: parley.Session,
			Checks: []parley.Check{{Name: "transport", OK: true,
				Detail: "A2E answers are not signed; the connection answers for them"}}}}}
	out := hub.Outcome{Answered: true, Reply: reply}
	if whole {
		var err error
		if reply.Extensions, err = (extension{Type: e.Type}).in(); err == nil {
			var body json.RawMessage
			if body, err = bodyOf(e); err == nil {
				out.Parts = []parley.Part{jsonPart(body)}
				return out
			}
		}
		out.Failure = bridge.NotUnderstood(
			parley.Refuse(parley.HandlerFailed, "the host's answer cannot be passed on").Because(err), err)
		return out
	}
	var r struct {
		Success   *bool           `json:"success"`
		Data      json.RawMessage `json:"data"`
		Error     *string         `json:"error"`
		ErrorCode *string         `json:"error_code"`
	}
	if err := jsonx.Decode(e.Get("data"), &r); err != nil || r.Success == nil {
		out.Failure = bridge.NotUnderstood(parley.Refuse(parley.HandlerFailed, "the host's answer is no tool result"), err)
		return out
	}
	if !*r.Success {
		text, code := "the tool failed", "tool_error"
		if r.Error != nil && *r.Error != "" {
			text = *r.Error
		}
		if r.ErrorCode != nil && *r.ErrorCode != "" {
			code = *r.ErrorCode
		}
		code, text = bridge.Shorten(code, 64), bridge.Shorten(text, 200)
		out.Failure = bridge.Answered(parley.Refuse(parley.HandlerFailed, "%s: %s", code, text), Protocol, text, code)
		return out
	}
	if len(r.Data) == 0 {
		r.Data = json.RawMessage("null")
	}
	out.Parts = []parley.Part{jsonPart(r.Data)}
	return out
}

// report records the result of delegated work; done is false for other messages.
func (a *subagents) report(ctx context.Context, o hub.Outbound) (done bool, out hub.Outcome) {
	if o.Request == nil || o.Request.Origin.Protocol != Protocol || o.Request.From != o.Recipient.Name {
		return false, out
	}
	x := extensionOf(o.Request)
	if x.Subagent == "" {
		return false, out
	}
	m := o.Message
	if !m.Kind.Terminal() {
		return true, hub.Outcome{Losses: []parley.Loss{{Field: "Kind", Reason: "multi_agent has no events"}}}
	}
	_, err := a.edit(ctx, o.Recipient.Name, x.Subagent, func(s *subagent) bool {
		if s.Request != o.Request.ID || s.Status == protocol.StatusTerminated {
			return false
		}
		if m.Kind == parley.Failure {
			s.Status, s.Error = protocol.StatusFailed, string(m.Error.Code)+": "+m.Error.Text
			return true
		}
		data, derr := toData(m.Parts)
		if derr != nil {
			s.Status, s.Error = protocol.StatusFailed, "the answer cannot be said in A2E"
			return true
		}
		if data, derr = asObject(data); derr != nil {
			return false
		}
		s.Status, s.Result = protocol.StatusCompleted, json.RawMessage(data)
		return true
	})
	if err != nil && !errors.Is(err, errUnknownSubagent) {
		return true, hub.Outcome{Err: parley.Fail(parley.Unavailable, err, "the result could not be kept").
			With(parley.ByHub, parley.HubStorage, "")}
	}
	return true, hub.Outcome{Losses: append(bridge.Losses(bridge.Call, m, o.Recipient.Name),
		parley.Loss{Field: "Origin", Reason: "multi_agent/await has no place for where a result comes from"})}
}
