package samvad

import (
	"cmp"
	"context"
	"slices"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/recorder"
	protocol "github.com/parley-hub/parley/samvad"
)

// Deliver calls a SAMVAD agent elsewhere, as the hub.
func (b *Binding) Deliver(ctx context.Context, o hub.Outbound) hub.Outcome {
	m := o.Message
	if o.Request != nil && m.Kind.Terminal() && o.Request.Origin.Protocol == Protocol {
		return b.callBack(ctx, o)
	}
	losses := bridge.Losses(bridge.SAMVAD, m, o.Recipient.Name)
	o.Loses(ctx, losses)
	if m.Kind == parley.Cancel {
		b.cancelRemoteTask(m.InReplyTo)
		return hub.Outcome{Losses: losses}
	}
	if m.Kind == parley.Input {
		return hub.Outcome{Losses: losses}
	}
	var before *remoteTask
	if m.Kind == parley.Request && o.Attempt > 1 {
		row, err := b.remoteTasks.Get(ctx, m.ID.String())
		if err != nil {
			return hub.Outcome{Err: parley.Fail(parley.Unavailable, err,
				"how the request was sent before cannot be read").With(parley.ByHub, parley.HubStorage, ""), Wait: pause}
		}
		if row.Value.Task != "" { // the agent has the task: only polling remains
			b.follow(m.ID, &row.Value)
			return hub.Outcome{Losses: losses}
		}
		if row.Revision != 0 {
			before = &row.Value
		}
	}
	call, err := callOf(m, &o.Recipient.Agent, o.Identity)
	if err != nil {
		return hub.Outcome{Err: parley.Refuse(parley.InvalidContent, "the content is not JSON: %v", err)}
	}
	if call.Skill == "" {
		call.Skill = b.defaultSkill(b.cardOf(ctx, o.Recipient.Name))
		if call.Skill == "" { // an agent that is just starting would refuse the call for good
			return hub.Outcome{Err: noCard(b.cardError(o.Recipient.Name), o.Recipient.Name)}
		}
	}
	attempt := func() hub.Outcome {
		out := b.attempt(ctx, o, call, before)
		out.Losses = losses
		return out
	}
	if before != nil { // the outcome of the earlier attempt counts more than the limits
		return attempt()
	}
	return b.paced(ctx, o, attempt)
}

// attempt makes a call once; see [Binding.sendTask] for before.
func (b *Binding) attempt(ctx context.Context, o hub.Outbound, call protocol.Call, before *remoteTask) hub.Outcome {
	m := o.Message
	if m.Kind != parley.Request {
		// A message without an answer goes as a task without a callback.
		err := b.identity.withAnyKey(&call, func() error { _, err := b.client.Send(ctx, call); return err })
		if err == nil {
			return hub.Outcome{}
		}
		out := failedCall(err)
		return hub.Outcome{Err: cmp.Or(out.Err, out.Failure), Wait: out.Wait, Unknown: out.Unknown}
	}
	if err := b.addCredentials(ctx, m, o.Recipient.Name, &call); err != nil {
		return hub.Outcome{Answered: true, Failure: err}
	}
	mode := b.modeFor(ctx, o, call.Skill)
	if before != nil || mode == protocol.ModeAsync && !o.Waits {
		return b.sendTask(ctx, o, call, before)
	}
	var reply *protocol.Reply
	err := b.identity.withAnyKey(&call, func() (err error) { reply, err = b.ask(ctx, o, mode, call); return err })
	if err != nil {
		return failedCall(err)
	}
	return hub.Outcome{
		Answered: true, Parts: []parley.Part{{MediaType: "application/json", Data: reply.Result}},
		Reply: &parley.Message{
			Origin:     remoteOrigin(o.Identity.ID),
			Extensions: replyExtension(reply.Replaced),
			Trace: parley.Trace{Parent: m.Trace.Parent,
				Foreign: map[string]string{foreignTrace: reply.TraceID, foreignSpan: reply.SpanID}},
		},
	}
}

// addCredentials adds the sender's credentials to a call of another SAMVAD agent: its
// token, for the agent to check, and its delegation, issued anew by the hub for this
// one skill, one level less and no longer (SAM-105). The operator's configured
// credentials stand in for those that the sender did not give.
func (b *Binding) addCredentials(ctx context.Context, m *parley.Message, to string, call *protocol.Call) *parley.Error {
	var e *protocol.Envelope // nil: of another protocol, or of version 1.1, which knows neither
	if m.Origin.Protocol == Protocol {
		e, _ = protocol.Decode(m.Origin.Raw)
	}
	delegation := ""
	if e != nil {
		token, refused := b.tokens.tokenOf(m, e)
		if refused != nil {
			return refused
		}
		if token != "" {
			call.Auth = &protocol.Auth{Scheme: e.Auth.Scheme, Token: token}
		}
		delegation = e.DelegationToken
	}
	b.mu.RLock()
	own := b.credentials[to]
	b.mu.RUnlock()
	if call.Auth == nil && own.Token != "" {
		call.Auth = &protocol.Auth{Scheme: "bearer", Token: own.Token}
	}
	if call.Auth != nil {
		recorder.Hide(ctx, call.Auth.Token)
	}
	now := b.c.Now()
	var d *protocol.Delegation
	var err error
	switch {
	case delegation != "":
		if d, err = protocol.VerifyDelegation(ctx, delegation, b.server.Verifier.Keys, now); err == nil {
			d, err = d.Narrow(b.identity.ID(), []string{call.Skill})
		}
	case own.Delegate:
		d = &protocol.Delegation{Subject: b.identity.ID(), Scope: []string{call.Skill}, MaxDepth: 1}
	default:
		return nil
	}
	if err == nil {
		call.DelegationToken, err = d.Issue(b.identity, now)
		recorder.Hide(ctx, call.DelegationToken)
	}
	if err != nil {
		return parley.Refuse(parley.Forbidden, "the delegation does not reach to %q any more", m.To).Because(err)
	}
	return nil
}

// ask calls a skill and waits for its answer. The chunks of a stream become
// events; a task is polled.
func (b *Binding) ask(
	ctx context.Context, o hub.Outbound, mode protocol.Mode, call protocol.Call) (*protocol.Reply, error) {
	switch mode {
	case protocol.ModeStream:
		var last protocol.Event
		replaced := false // in the events passed on
		for e, err := range b.client.Stream(ctx, call) {
			if err != nil {
				return nil, err
			}
			replaced = replaced || e.Replaced
			last = e
			if e.Done || e.Again || jsonx.IsNull(e.Chunk) || o.Event == nil {
				continue // only a piece before the answer is an event
			}
			if err := o.Event(parley.NoState, parley.Part{MediaType: "application/json", Data: e.Chunk}); err != nil {
				return nil, err
			}
		}
		if !last.Done {
			return nil, protocol.ErrResponse
		}
		return &protocol.Reply{TraceID: last.TraceID, SpanID: last.SpanID, Result: last.Result, Replaced: replaced}, nil
	case protocol.ModeAsync:
		base, err := baseOf(call)
		if err != nil {
			return nil, err
		}
		id, err := b.client.Send(ctx, call)
		if err != nil {
			return nil, err
		}
		t, err := b.client.Wait(ctx, base, id)
		if err != nil {
			return nil, err
		}
		return &protocol.Reply{TraceID: call.TraceID, Result: t.Result, Replaced: t.Replaced}, nil
	}
	return b.client.Ask(ctx, call)
}

// baseOf is the base URL of the agent that is called.
func baseOf(call protocol.Call) (string, error) {
	if call.URL != "" {
		return call.URL, nil
	}
	return protocol.AgentOrigin(call.To)
}

// modeFor chooses how to call a skill elsewhere, from the modes in the directory,
// else on its card. For a caller that waits on a connection it is a stream if the
// caller sees events, else sync. For others it is a task, which outlasts
// connections; but a stream if the caller sees events and the skill names streams
// before tasks.
func (b *Binding) modeFor(ctx context.Context, o hub.Outbound, skill string) protocol.Mode {
	var modes []protocol.Mode
	if s, ok := o.Recipient.SkillNamed(skill); ok {
		for _, m := range s.Modes {
			modes = append(modes, protocol.Mode(m))
		}
	} else if c := b.cardOf(ctx, o.Recipient.Name); c != nil {
		if s := c.Skill(skill); s != nil {
			modes = s.Modes
		}
	}
	stream, task := slices.Index(modes, protocol.ModeStream), slices.Index(modes, protocol.ModeAsync)
	switch {
	case o.Streams && stream >= 0 && (o.Waits || task < 0 || stream < task):
		return protocol.ModeStream
	case !o.Waits && task >= 0:
		return protocol.ModeAsync
	}
	for _, m := range []protocol.Mode{protocol.ModeSync, protocol.ModeStream, protocol.ModeAsync} {
		if slices.Contains(modes, m) {
			return m
		}
	}
	return protocol.ModeSync
}

// defaultSkill is the skill of an agent elsewhere that takes messages without a
// skill: the only one on its card, or talk.
func (b *Binding) defaultSkill(card *protocol.Card) string {
	if card == nil {
		return ""
	}
	if card.Skill(talk) != nil || len(card.Skills) != 1 {
		return talk
	}
	return card.Skills[0].ID
}

// noCard is the error for a message without a skill to an agent without a card.
func noCard(err error, agent string) *parley.Error {
	e := bridge.Unreachable(parley.Fail(parley.Unavailable, err,
		"the message names no skill, and the card of %q, which would, cannot be read now", agent), err)
	if e.Source == parley.NotStated && err != nil {
		return bridge.NotUnderstood(e, err)
	}
	return e
}

// cardOf gives the card of an agent here, with the skills of its own card
// elsewhere; nil where none is known.
func (b *Binding) cardOf(ctx context.Context, name string) *protocol.Card {
	if a := b.standIn(ctx, name); a != nil {
		return a.Card
	}
	return nil
}

// Credentials are the operator's, for calls of an agent elsewhere. They are used
// where the sender gave none. No record has them.
type Credentials struct {
	Token    string // bearer token for authenticated skills; "": none
	Delegate bool   // a delegation token of the hub's own
}

// SetCredentials sets the credentials for calls of an agent, until the agent is
// removed.
func (b *Binding) SetCredentials(agent string, c Credentials) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c == (Credentials{}) {
		delete(b.credentials, agent)
		return
	}
	b.credentials[agent] = c
}
