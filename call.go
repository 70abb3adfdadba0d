package parley

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
)

// A Caller sends the messages of one agent of this process. The hub puts one into the
// context of each call of a handler, and node.Node.As makes others; [Ask], [Tell] and
// [Stream] use it. It takes To, Skill and Parts from the message. All else is the
// caller's own: who the sender is, and what comes with the message that a handler works
// on (its conversation, trace, hops and deadline). An Input has InReplyTo besides.
type Caller interface {
	// Ask sends a request and gives its terminal reply, a Response or a Failure.
	Ask(ctx context.Context, m *Message) (*Message, error)
	// Stream sends a request and yields its events, last its terminal reply. Leaving
	// the loop cancels the request.
	Stream(ctx context.Context, m *Message) iter.Seq2[*Message, error]
	// Tell records a notice, or an Input about an open request of the caller, and starts its
	// delivery.
	Tell(ctx context.Context, m *Message) error
}

type callerKey struct{}

// WithCaller puts a caller into a context, for [Ask], [Tell] and [Stream].
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf is the caller that a context holds; nil if it holds none.
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

// ErrNoCaller is the error of Ask, Tell and Stream with a context that names no sender.
var ErrNoCaller = errors.New("no agent speaks here: pass the context of a handler's call, or one of node.Node.As")

// Ask sends a request from inside a handler, in the name of its agent, and waits for the
// answer:
//
//	a, err := parley.Ask[Answer](ctx, "weather", "forecast", Query{City: "Bern"})
//
// The agent is a name of the directory, or an identity in a protocol ("agent://…"); the
// skill "" is its default skill. A string as content is sent as text, a [Part] or a
// []Part as it is, nil as a message without content, any other value as JSON. Out may be
// a string for an answer of text, []Part or *[Message] for an answer as it came, else
// the answer's JSON is read into it.
//
// The request belongs to the one that the handler works on: it has the same
// conversation and trace, at most its deadline, and it ends with ctx. Policy decides
// about it as about the request of any sender. Requests that lead from handler to
// handler end after [MaxHops] with the code [Loop].
//
// The recipient's failure, and the hub's refusal, are an [*Error] in errors.As.
// Outside a handler the error is [ErrNoCaller].
func Ask[Out any](ctx context.Context, agent, skill string, content any) (out Out, err error) {
	c, m, err := prepare(ctx, Request, agent, skill, content)
	if err != nil {
		return out, err
	}
	reply, err := c.Ask(ctx, m)
	if err != nil {
		return out, callError(agent, err)
	}
	return answer[Out](agent, reply)
}

// Tell sends a notice from inside a handler, in the name of its agent; see [Ask]. It
// returns once the notice is recorded. No answer comes.
func Tell(ctx context.Context, agent, skill string, content any) error {
	c, m, err := prepare(ctx, Notice, agent, skill, content)
	if err != nil {
		return err
	}
	if err := c.Tell(ctx, m); err != nil {
		return callError(agent, err)
	}
	return nil
}

// Answer sends more about a request of one's own to the agent that asked for it, with an
// event in the state NeedsInput that [Stream] yielded; see [Ask] for the content. It
// returns once the input is recorded.
func Answer(ctx context.Context, event *Message, content any) error {
	c, m, err := prepare(ctx, Input, event.From, "", content)
	if err != nil {
		return err
	}
	m.InReplyTo = event.InReplyTo
	if err := c.Tell(ctx, m); err != nil {
		return callError(event.From, err)
	}
	return nil
}

// An Update is what [Stream] yields.
type Update[Out any] struct {
	Event  *Message // progress, or a piece of the answer ahead of it; nil: Result is set
	Result Out      // the answer; the last update has it
}

// Stream sends a request as [Ask] does, and yields what the recipient sends about it:
// events while it works, last the result, or an error. Leaving the loop cancels the
// request.
func Stream[Out any](ctx context.Context, agent, skill string, content any) iter.Seq2[Update[Out], error] {
	return func(yield func(Update[Out], error) bool) {
		c, m, err := prepare(ctx, Request, agent, skill, content)
		if err != nil {
			yield(Update[Out]{}, err)
			return
		}
		for reply, err := range c.Stream(ctx, m) {
			var u Update[Out]
			switch {
			case err != nil:
				err = callError(agent, err)
			case reply.Kind.Terminal():
				u.Result, err = answer[Out](agent, reply)
			default:
				u.Event = reply
			}
			if !yield(u, err) || err != nil {
				return
			}
		}
	}
}

// prepare finds the caller, and makes the message.
func prepare(ctx context.Context, k Kind, agent, skill string, content any) (Caller, *Message, error) {
	c := CallerOf(ctx)
	if c == nil {
		return nil, nil, callError(agent, ErrNoCaller)
	}
	m := &Message{Kind: k, To: agent, Skill: skill}
	switch v := content.(type) {
	case nil:
	case string:
		m.Parts = []Part{Text(v)}
	case Part:
		m.Parts = []Part{v}
	case []Part:
		m.Parts = v
	default:
		p, err := JSON(v)
		if err != nil {
			return nil, nil, callError(agent, fmt.Errorf("encode the content: %w", err))
		}
		m.Parts = []Part{p}
	}
	return c, m, nil
}

func callError(agent string, err error) error { return fmt.Errorf("call agent %q: %w", agent, err) }

// answer reads a terminal reply.
func answer[Out any](agent string, reply *Message) (out Out, err error) {
	if reply.Kind == Failure {
		if reply.Error == nil {
			return out, callError(agent, Refuse(Internal, "the failure has no error"))
		}
		return out, callError(agent, reply.Error)
	}
	if err := bindAnswer(reply, &out); err != nil {
		return out, callError(agent, fmt.Errorf("its answer is no %T: %w", out, err))
	}
	return out, nil
}

func bindAnswer(m *Message, v any) error {
	switch v := v.(type) {
	case **Message:
		*v = m
		return nil
	case *[]Part:
		*v = m.Parts
		return nil
	}
	if len(m.Parts) == 0 {
		switch v.(type) {
		case *struct{}, *any:
			return nil
		}
	}
	return bindOrText(m, v)
}

// bindOrText is [Message.Bind] that takes the text of a message without JSON for a
// string, or for the JSON that it spells.
func bindOrText(m *Message, v any) error {
	err := m.Bind(v)
	if !errors.Is(err, ErrNoJSON) {
		return err
	}
	text := m.Text()
	if s, ok := v.(*string); ok {
		*s = text
		return nil
	}
	if strings.TrimSpace(text) == "" || json.Unmarshal([]byte(text), v) != nil {
		return err
	}
	return nil
}
