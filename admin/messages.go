package admin

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/journal"
)

const (
	maxIdempotencyKey = 256
	keepIdempotency   = 24 * time.Hour
)

// submission makes the hub's form of a caller's message.
func (a *Admin) submission(ctx context.Context, by Actor, s Send) (hub.Submission, error) {
	var none hub.Submission
	if err := cmp.Or(by.may(Operate), a.resolveNames(&s.From, &s.To)); err != nil {
		return none, err
	}
	from, err := by.speaker(s.From)
	if err != nil {
		return none, err
	}
	request, err := a.messageID(ctx, by, s.InReplyTo)
	if err != nil {
		return none, err
	}
	conversation, err := a.conversationID(ctx, by, s.Conversation)
	if err != nil {
		return none, err
	}
	m := &parley.Message{Kind: s.Kind, State: s.State, From: from, To: s.To, Audience: s.Audience, Skill: s.Skill,
		Act: s.Act, InReplyTo: request, Conversation: conversation, Deadline: s.Deadline, Expires: s.Expires,
		Origin: parley.Origin{Protocol: apiProtocol, Peer: by.Name, Address: by.Address,
			Verdict: parley.Verdict{Assurance: parley.Session,
				Checks: []parley.Check{{Name: "token", OK: true, Detail: "token " + by.Name}}}}}
	if m.Kind == 0 {
		m.Kind = parley.Request
		if !m.InReplyTo.IsZero() {
			m.Kind = parley.Response
		}
	}
	answers := m.Kind == parley.Event || m.Kind.Terminal()
	switch {
	case m.InReplyTo.IsZero() && m.Kind != parley.Request && m.Kind != parley.Notice:
		return none, parley.Refuse(parley.Malformed, "kind %q needs inReplyTo, the id of the request", m.Kind)
	case answers && (m.To != "" || len(m.Audience) > 0):
		return none, parley.Refuse(parley.Malformed,
			"a reply goes to the sender of its request; leave to and audience out")
	case !answers && m.To == "" && len(m.Audience) == 0:
		return none, parley.Refuse(parley.Malformed, "name the recipient in to")
	case m.State != parley.NoState && m.Kind != parley.Event:
		return none, parley.Refuse(parley.Malformed, "only an event has a state")
	case len(s.Audience) > 1000:
		return none, parley.Refuse(parley.TooLarge, "at most 1,000 recipients")
	case len(s.IdempotencyKey) > maxIdempotencyKey:
		return none, parley.Refuse(parley.Malformed, "the idempotency key has more than %d characters",
			maxIdempotencyKey)
	case m.Kind == parley.Failure && (s.Error == nil || s.Error.Text == ""):
		return none, parley.Refuse(parley.Malformed, "kind error needs error with a text")
	case m.Kind != parley.Failure && s.Error != nil:
		return none, parley.Refuse(parley.Malformed, "only kind error has an error")
	}
	if s.Error != nil {
		m.Error = &parley.Error{Code: cmp.Or(s.Error.Code, parley.Rejected), Text: clip(s.Error.Text),
			Retryable: s.Error.Retryable}
		if !IsCode(m.Error.Code) {
			return none, parley.Refuse(parley.Malformed, "%.40q is not an error code", m.Error.Code)
		}
	}
	if s.Timeout != "" {
		d, err := time.ParseDuration(s.Timeout)
		if err != nil || d <= 0 || !s.Deadline.IsZero() {
			return none, parley.Refuse(parley.Malformed,
				"timeout is a positive duration such as 30s, in place of deadline")
		}
		if !a.paused(s.To) {
			m.Deadline = a.c.Hub.Now().Add(d)
		}
	}
	if m.Parts, err = s.content(); err != nil {
		return none, err
	}
	out := hub.Submission{Message: m, Scope: apiProtocol + " " + from}
	if s.IdempotencyKey != "" {
		out.Key = journal.Key{ID: apiProtocol + " " + from + " " + s.IdempotencyKey, Sender: apiProtocol + " " + from,
			Until: a.c.Hub.Now().Add(keepIdempotency)}
	}
	return out, nil
}

func (s Send) content() ([]parley.Part, error) {
	if count(s.Text != nil, s.JSON != nil, s.Parts != nil) > 1 {
		return nil, parley.Refuse(parley.Malformed, "text, json and parts exclude each other")
	}
	parts := s.Parts
	if s.Text != nil || s.JSON != nil {
		parts = []Part{{Text: s.Text, JSON: s.JSON}}
	}
	var out []parley.Part
	for _, p := range parts {
		v, err := p.part()
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

// Send records a message and starts its delivery. It returns as soon as the
// message is recorded.
func (a *Admin) Send(ctx context.Context, by Actor, s Send) (Receipt, error) {
	sub, err := a.submission(ctx, by, s)
	if err != nil {
		return Receipt{}, err
	}
	return a.record(ctx, by, sub)
}

// record records a message, which is delivered in the background.
func (a *Admin) record(ctx context.Context, by Actor, sub hub.Submission) (Receipt, error) {
	recipient := a.notReady(by, sub.Message.To)
	m, err := a.c.Hub.Accept(ctx, sub)
	if err != nil {
		return a.answerRepeat(ctx, by, sub, err, false)
	}
	r := Receipt{ID: m.ID, Conversation: m.Conversation, Recipient: recipient}
	if r.Paused() {
		r.Deadline = m.Deadline
	}
	return r, nil
}

// paused reports whether an operator paused the agent of that name.
func (a *Admin) paused(name string) bool {
	e, ok := a.c.Hub.Directory().Agent(name)
	return ok && e.Paused
}

// Ask sends a request and waits for its terminal reply, a message of kind
// response or error. A request to a paused agent is only recorded.
func (a *Admin) Ask(ctx context.Context, by Actor, s Send) (Receipt, error) {
	sub, err := a.submission(ctx, by, s)
	if err != nil {
		return Receipt{}, err
	}
	if a.paused(sub.Message.To) {
		return a.record(ctx, by, sub)
	}
	leave, err := a.enter()
	if err != nil {
		return Receipt{}, err
	}
	defer leave()
	recipient := a.notReady(by, sub.Message.To)
	m, err := a.c.Hub.Ask(ctx, sub)
	if err != nil {
		return a.answerRepeat(ctx, by, sub, err, true)
	}
	return Receipt{ID: m.InReplyTo, Conversation: m.Conversation, Reply: a.show(by, m), Recipient: recipient}, nil
}

// Stream sends a request, calls accepted when it is recorded, and yields its
// events as they come, last its terminal reply. A loop that breaks off cancels
// the request. A request to a paused agent is only recorded, and yields nothing.
func (a *Admin) Stream(ctx context.Context, by Actor, s Send, accepted func(Receipt)) iter.Seq2[*Message, error] {
	return func(yield func(*Message, error) bool) {
		sub, err := a.submission(ctx, by, s)
		if err == nil && sub.Key.ID != "" {
			err = parley.Refuse(parley.Unsupported, "a stream cannot be repeated: leave the idempotency key out")
		}
		if err != nil {
			yield(nil, err)
			return
		}
		if accepted == nil {
			accepted = func(Receipt) {}
		}
		if a.paused(sub.Message.To) {
			r, err := a.record(ctx, by, sub)
			if err != nil {
				yield(nil, err)
				return
			}
			accepted(r)
			return
		}
		leave, err := a.enter()
		if err != nil {
			yield(nil, err)
			return
		}
		defer leave()
		recipient := a.notReady(by, sub.Message.To)
		request, err := a.c.Hub.Begin(ctx, sub)
		if err != nil {
			yield(nil, a.refuse(by, sub, err))
			return
		}
		accepted(Receipt{ID: request.Message().ID, Conversation: request.Message().Conversation, Recipient: recipient})
		for m, err := range request.Stream(ctx) {
			if err != nil {
				yield(nil, a.refuse(by, sub, err))
				return
			}
			if !yield(a.show(by, m), nil) {
				return
			}
		}
	}
}

// refuse records the refusal of a message, so that `parley explain` knows it.
func (a *Admin) refuse(by Actor, s hub.Submission, err error) error {
	e := *parley.AsError(err)
	m := s.Message
	if _, known := a.c.Hub.Directory().Agent(m.To); e.Code == parley.UnknownAgent && m.To != "" && !known {
		e.Text = a.unknownAgent(by, m.To).Text
	}
	size := 0
	for _, p := range m.Parts {
		size += len(p.Data)
	}
	e.Ref = a.c.Hub.Refuse(hub.Refusal{Protocol: apiProtocol, Source: m.Origin.Address, Claim: m.From, To: m.To,
		Step: "admit", Code: e.Code, Text: e.Text, Cause: causeOf(&e), Size: size,
		Verdict: m.Origin.Verdict}.Because(&e))
	return &e
}

func causeOf(e *parley.Error) string {
	if c := e.Unwrap(); c != nil {
		return c.Error()
	}
	return ""
}

// answerRepeat answers a message whose idempotency key was recorded before: the same
// message gets the first answer, another one is refused.
func (a *Admin) answerRepeat(ctx context.Context, by Actor, s hub.Submission, err error, wait bool) (Receipt, error) {
	var prior *hub.Prior
	if !errors.As(err, &prior) {
		return Receipt{}, a.refuse(by, s, err)
	}
	j := a.c.Hub.Journal()
	first, rerr := j.Read(ctx, prior.Of.Position)
	switch {
	case rerr != nil:
		return Receipt{}, a.refuse(by, s, rerr)
	// erased content cannot be compared
	case first.Message == nil || first.Erased == nil && !sameMessage(first.Message, s.Message):
		return Receipt{}, a.refuse(by, s, parley.Refuse(parley.Conflict,
			"the idempotency key was used for another message"))
	case first.Refused != nil:
		return Receipt{}, a.refuse(by, s, first.Refused)
	}
	r := Receipt{ID: first.Message.ID, Conversation: first.Message.Conversation, Replayed: true}
	at := prior.Of.Reply
	if at.IsZero() && wait && first.Message.Kind == parley.Request {
		if at, err = a.replyTo(ctx, s, first.Message); err != nil {
			return Receipt{}, a.refuse(by, s, err)
		}
	}
	if at.IsZero() {
		return r, nil
	}
	reply, rerr := j.Read(ctx, at)
	if rerr != nil {
		return Receipt{}, a.refuse(by, s, rerr)
	}
	r.Reply = a.show(by, reply.Message)
	return r, nil
}

// replyTo waits until the terminal reply to m is recorded.
func (a *Admin) replyTo(ctx context.Context, s hub.Submission, m *parley.Message) (journal.Position, error) {
	j := a.c.Hub.Journal()
	found := make(chan journal.Position, 1)
	stop := j.Watch(func(r *journal.Record) {
		if r.Message != nil && r.Refused == nil && r.Message.InReplyTo == m.ID && r.Message.Kind.Terminal() {
			select {
			case found <- r.Position:
			default:
			}
		}
	})
	defer stop()
	if p, ok := j.Seen(s.Scope, s.Key.ID); ok && !p.Reply.IsZero() {
		return p.Reply, nil
	}
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	select {
	case p := <-found:
		return p, nil
	case <-ctx.Done():
		return journal.Position{}, ctx.Err()
	}
}

// sameMessage reports whether two callers sent the same message.
func sameMessage(a, b *parley.Message) bool {
	return a.Kind == b.Kind && a.To == b.To && a.From == b.From && a.Skill == b.Skill && a.Act == b.Act &&
		a.InReplyTo == b.InReplyTo && slices.Equal(a.Audience, b.Audience) &&
		slices.EqualFunc(a.Parts, b.Parts, func(p, q parley.Part) bool {
			return p.Name == q.Name && p.URI == q.URI && p.Digest == q.Digest && sameBytes(p, q)
		})
}

// sameBytes compares two parts. The hub may have made JSON of a text, to fit the
// recipient's skill: then it compares the texts.
func sameBytes(p, q parley.Part) bool {
	if same := bytes.Equal(p.Data, q.Data); same || p.MediaType == q.MediaType {
		return same
	}
	var members map[string]string
	text, ok := parley.OnlyText(q)
	if !ok {
		return false
	}
	if s, ok := parley.OnlyText(p); ok {
		return s == text
	}
	if jsonx.Decode(p.Data, &members) != nil || len(members) != 1 {
		return false
	}
	for _, v := range members {
		return v == text
	}
	return false
}

// unread holds messages that were taken from an inbox and did not reach a reader.
type unread struct {
	mu      sync.Mutex
	pending []delivery.Attempt
}

func (b *unread) take(n int) []delivery.Attempt {
	b.mu.Lock()
	defer b.mu.Unlock()
	n = min(n, len(b.pending))
	out := slices.Clone(b.pending[:n])
	b.pending = slices.Delete(b.pending, 0, n)
	return out
}

// putBack puts messages in front of the others.
func (b *unread) putBack(list []delivery.Attempt) {
	if len(list) == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pending = append(slices.Clone(list), b.pending...)
}

func (a *Admin) unreadOf(name string) *unread {
	a.mu.Lock()
	defer a.mu.Unlock()
	b := a.unread[name]
	if b == nil {
		b = &unread{}
		a.unread[name] = b
	}
	return b
}

// Inbox yields the messages of an agent's inbox, the waiting ones first, until ctx ends
// or the loop breaks off. The message at which the loop broke off goes to the next
// reader.
func (a *Admin) Inbox(ctx context.Context, by Actor, name string) iter.Seq2[*Message, error] {
	return func(yield func(*Message, error) bool) {
		name, err := a.inboxOf(by, name)
		if err != nil {
			yield(nil, err)
			return
		}
		for d, err := range a.inbox(ctx, name) {
			if err != nil {
				yield(nil, err)
				return
			}
			if !yield(a.showAttempt(by, d), nil) {
				return
			}
		}
	}
}

func (a *Admin) inbox(ctx context.Context, name string) iter.Seq2[delivery.Attempt, error] {
	return func(yield func(delivery.Attempt, error) bool) {
		leave, err := a.enter()
		if err != nil {
			yield(delivery.Attempt{}, err)
			return
		}
		defer leave()
		b := a.unreadOf(name)
		for ctx.Err() == nil {
			list := b.take(1)
			if len(list) == 0 {
				break
			}
			if !yield(list[0], nil) {
				b.putBack(list)
				return
			}
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		c, err := a.c.Hub.Read(ctx, name)
		if err != nil {
			yield(delivery.Attempt{}, err)
			return
		}
		for d := range c {
			if ctx.Err() == nil && yield(d, nil) {
				continue
			}
			// The hub counts these messages as delivered: they must not be lost
			// with this reader.
			cancel()
			rest := []delivery.Attempt{d}
			for d := range c {
				rest = append(rest, d)
			}
			b.putBack(rest)
			return
		}
	}
}

// Collect gives at most limit messages of an inbox: the waiting ones or, if there
// are none, the first to come within wait.
func (a *Admin) Collect(ctx context.Context, by Actor, name string, limit int, wait time.Duration) ([]*Message, error) {
	name, err := a.inboxOf(by, name)
	if err != nil {
		return nil, err
	}
	list, err := a.collect(ctx, name, limit, wait)
	return viewAll(by, list, a.showAttempt), err
}

func (a *Admin) collect(ctx context.Context, name string, limit int, wait time.Duration) ([]delivery.Attempt, error) {
	if limit <= 0 || limit > 100 {
		limit = 100
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Wait for the first message, then take those that the hub hands over
	// without a pause.
	patience := time.AfterFunc(min(max(wait, 0), maxWait)+gather, cancel)
	defer patience.Stop()
	var out []delivery.Attempt
	for d, err := range a.inbox(ctx, name) {
		if err != nil {
			a.unreadOf(name).putBack(out)
			return nil, err
		}
		if out = append(out, d); len(out) == limit {
			cancel()
		}
		patience.Reset(gather)
	}
	return out, nil
}

// gather is how long Collect waits for a message after the last one.
const gather = 50 * time.Millisecond

// inboxOf gives the directory name of an agent whose inbox the actor may read.
func (a *Admin) inboxOf(by Actor, name string) (string, error) {
	if err := cmp.Or(a.resolveNames(&name), by.may(Operate)); err != nil {
		return "", err
	}
	if _, err := by.speaker(name); err != nil {
		return "", err
	}
	e, err := a.entry(by, name)
	if err != nil {
		return "", err
	}
	if !hasInbox(e) {
		return "", parley.Refuse(parley.Conflict, "agent %q has no inbox here: its messages go to %s", name,
			describe(e.Agent))
	}
	return name, nil
}

func (a *Admin) showAttempt(by Actor, d delivery.Attempt) *Message {
	v := a.show(by, d.Message)
	if e := v.Error; e != nil { // an agent reads this, which is told no more than by its protocol
		e.Source, e.Reason, e.Detail, e.Advice = parley.NotStated, "", "", ""
	}
	v.Attempt = d.Number
	return v
}
