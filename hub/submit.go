package hub

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"slices"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/policy"
)

// A Submission is a verified message for the hub. Its Message has From, To or
// Audience as directory names. The hub sets ID and Conversation where they are zero,
// and adds itself to Hops.
type Submission struct {
	Message *parley.Message
	Scope   string        // the protocol's scope: order and replay are kept within it
	Key     journal.Key   // the replay key; the zero Key: none
	Foreign string        // the protocol's own conversation id
	Refused *parley.Error // the protocol's own refusal of a verified message: it is recorded and consumes the key
	Fits    bool          // the content was checked against the skill's schema already

	// Chain: record it only as the next of a chain in Scope; else the error wraps
	// journal.ErrConflict.
	Chain    *journal.ChainLink
	Admitted bool              // the hub composed it from an admitted message: policy is not asked again
	Vouched  bool              // the operator configured the sender's connection: it is no guest, known or not
	Reads    []string          // recipients that read the record itself: admitted, without a delivery
	Began    []string          // recipients that began the exchange; see [policy.Recipient]
	At       *journal.Position // is set to the record's position, unless the message is refused; may be nil

	inside bool  // an agent of this process sends it; the context may be that of another agent's connection
	asker  *turn // the handler's call that sends it; nil: none
}

func (s *Submission) note(p journal.Position) {
	if s.At != nil {
		*s.At = p
	}
}

// Prior is the error for a duplicate: a message whose key was recorded before.
type Prior struct {
	Of      journal.Prior
	Refused *parley.Error // the recorded refusal; nil: it was accepted
}

func (p *Prior) Error() string { return "the message was recorded before, as " + p.Of.Message.String() }

// Unwrap makes errors.As find a parley.Error with code Replayed.
func (p *Prior) Unwrap() error {
	return parley.Refuse(parley.Replayed, "the message was received before")
}

// Accept records a message and starts its delivery. It returns as soon as the
// message is as durable as the journal promises. Errors are [*Prior] and
// [*parley.Error]; after an error nothing is delivered.
func (h *Hub) Accept(ctx context.Context, s Submission) (*parley.Message, error) {
	h.verified(s.Message)
	a, err := h.submit(ctx, s, false)
	if err != nil {
		return nil, err
	}
	h.startAttempts(a)
	return a.message, nil
}

// startAttempts makes the attempts that were recorded with a message, in the
// background.
func (h *Hub) startAttempts(a *recordedMessage) {
	for _, c := range a.claims {
		c.Go(delivery.Attempt{Message: a.message, Position: a.position, Scope: a.scope, Request: a.request})
	}
}

type recordedMessage struct {
	message  *parley.Message
	position journal.Position
	scope    string
	claims   []*delivery.Claim
	request  *parley.Message // the request that message is about; nil for a Request or Notice
}

// complete sets the members of a message that only the hub can set.
func (h *Hub) complete(m *parley.Message, waits bool) error {
	if m.ID.IsZero() {
		id, err := parley.NewID(h.c.Now(), h.c.Rand)
		if err != nil {
			return parley.Refuse(parley.Internal, "internal error").Because(err)
		}
		m.ID = id
	}
	if m.Origin.Received.IsZero() {
		m.Origin.Received = h.c.Now()
	}
	if m.Sent.IsZero() {
		m.Sent = m.Origin.Received
	}
	if m.Kind == parley.Failure && m.Error != nil && m.Error.Ref == "" {
		// `parley explain` finds the failure by its id, as it finds a refusal by its reference.
		e := *m.Error
		e.Ref = m.ID.String()
		m.Error = &e
	}
	if m.Kind == parley.Request && m.Deadline.IsZero() {
		t := h.c.LongTimeout
		if waits {
			t = h.c.Timeout
		}
		m.Deadline = h.c.Now().Add(t)
	}
	return nil
}

// Conversation derives the hub's conversation from a protocol's own. It is the same
// for the same protocol, scope, participants (in any order) and foreign id. Computing
// it takes the hub's secret: so a peer that knows a foreign id cannot join the
// conversation of others.
func (h *Hub) Conversation(protocol, scope, foreign string, participants ...string) parley.ID {
	participants = slices.Clone(participants)
	slices.Sort(participants)
	mac, ok := h.macs.Get().(hash.Hash)
	if !ok {
		mac = hmac.New(sha256.New, h.c.Secret)
	}
	defer func() { mac.Reset(); h.macs.Put(mac) }()
	text := make([]byte, 0, 512)
	part := func(s string) { text = append(binary.BigEndian.AppendUint32(text, uint32(len(s))), s...) }
	part("conversation")
	part(protocol)
	part(scope)
	part(foreign)
	for _, s := range slices.Compact(participants) {
		part(s)
	}
	mac.Write(text)
	return parley.HashID(mac.Sum(text[:0]))
}

// submit admits and records.
func (h *Hub) submit(ctx context.Context, s Submission, waits bool) (*recordedMessage, error) {
	m := s.Message
	if err := h.complete(m, waits); err != nil {
		return nil, err
	}
	switch {
	case m.From == "":
		return nil, parley.Refuse(parley.Malformed, "the message has no sender")
	case m.Kind == parley.Event || m.Kind.Terminal():
		return h.submitReply(ctx, s)
	case m.Kind == parley.Cancel:
		return h.submitCancel(ctx, s)
	case m.Kind == parley.Input:
		return h.submitInput(ctx, s)
	}
	if err := h.resolveRecipients(m); err != nil {
		return nil, err
	}
	if m.Kind == parley.Notice && len(m.Audience) == 0 && m.To != "" {
		m.Audience = h.groupMembers(m)
	}
	names := m.Recipients()
	if m.Conversation.IsZero() {
		if s.Foreign == "" {
			m.Conversation = parley.HashID(m.ID[:])
		} else {
			m.Conversation = h.Conversation(m.Origin.Protocol, s.Scope, s.Foreign, append(names, m.From)...)
		}
	}
	refused := s.Refused
	if refused == nil && !s.Admitted {
		refused = h.admit(m, names, s)
	}
	if refused != nil && (s.Key.ID == "" || refused.Code == parley.RateLimited) {
		return nil, refused // it has no key to consume, or its sender is over its rate
	}
	if err := h.charge(ctx, &s, refused != nil); err != nil {
		return nil, cmp.Or(refused, err)
	}
	entry := journal.Entry{Scope: s.Scope, Message: m, Key: s.Key, Refused: refused.Stated()}
	if refused == nil {
		entry.Chain = s.Chain // a refused message is not in the chain
	}
	m.Hops = append(slices.Clone(m.Hops), h.c.ID)
	a := &recordedMessage{message: m, scope: s.Scope}
	if refused == nil {
		for _, to := range names {
			if slices.Contains(s.Reads, to) {
				continue
			}
			entry.Open = append(entry.Open, journal.Opening{To: to, Sync: waits})
		}
		h.claimLanes(a, entry.Open)
	}
	if err := h.write(ctx, entry, a); err != nil {
		return nil, err
	}
	if refused != nil {
		h.refusals.recorded(m, refused, h.c.Now())
		return nil, refused
	}
	s.note(a.position)
	h.recent.note(m, s.Scope, a.position)
	return a, nil
}

// write records an entry with the first attempts whose lanes a holds. If it is not
// recorded, the lanes are released.
func (h *Hub) write(ctx context.Context, e journal.Entry, a *recordedMessage) error {
	position, prior, err := h.append(ctx, e)
	return h.finishWrite(ctx, a, position, prior, err)
}

// finishWrite handles the outcome of an append.
func (h *Hub) finishWrite(ctx context.Context, a *recordedMessage, position journal.Position, prior *journal.Prior,
	err error) error {
	if err == nil && prior == nil {
		a.position = position
		return nil
	}
	for _, c := range a.claims {
		c.Release(err)
	}
	if err != nil {
		return recordError(err)
	}
	return h.prior(ctx, prior)
}

// claimLanes takes the lanes of first attempts that can be recorded with the message,
// if this hub owns the partition of its scope.
func (h *Hub) claimLanes(a *recordedMessage, open []journal.Opening) {
	j := h.c.Journal
	partition := j.Partition(a.scope)
	if len(open) == 0 || !j.Owned(partition) {
		return
	}
	for i := range open {
		o := &open[i]
		if c := h.deliver.Claim(partition, a.message.ID, o.To, a.message.Conversation, o.Sync); c != nil {
			o.Attempt = 1
			a.claims = append(a.claims, c)
		}
	}
}

// resolveRecipients replaces identities of protocols among a message's recipients by
// directory names.
func (h *Hub) resolveRecipients(m *parley.Message) *parley.Error {
	name := func(ref string) (string, *parley.Error) {
		e, err := h.c.Directory.Resolve(ref)
		switch {
		case err == nil:
			return e.Name, nil
		case errors.Is(err, directory.ErrAmbiguous):
			// Only callers that may list agents learn their names: `parley agents show`.
			return "", parley.Refuse(parley.Conflict, "%q is the address of several agents; give a name", ref)
		}
		return ref, nil // policy refuses it as unknown
	}
	if m.To != "" {
		to, err := name(m.To)
		if err != nil {
			return err
		}
		m.To = to
	}
	m.Audience = slices.Clone(m.Audience)
	for i, ref := range m.Audience {
		to, err := name(ref)
		if err != nil {
			return err
		}
		m.Audience[i] = to
	}
	return nil
}

// admit asks policy, and fits the content to the recipients' skills.
func (h *Hub) admit(m *parley.Message, names []string, s Submission) *parley.Error {
	if len(names) == 0 {
		return parley.Refuse(parley.UnknownAgent, "the message names no recipient")
	}
	if m.Kind == parley.Request && len(names)-len(s.Reads) > 1 {
		return parley.Refuse(parley.Malformed, "a request has one recipient; send a notice to many")
	}
	to := make([]policy.Recipient, len(names))
	entries := make([]*directory.Entry, len(names))
	for i, name := range names {
		e, ok := h.c.Directory.Agent(name)
		if !ok {
			return parley.Refuse(parley.UnknownAgent, "no agent %q here", name).
				With(parley.ByPolicy, parley.NoSuchAgent, "")
		}
		to[i], entries[i] = policy.Recipient{Agent: &e.Agent, Native: e.Native(),
			Began: slices.Contains(s.Began, name)}, e
	}
	if err := h.policy.Load().Admit(m, to); err != nil {
		return err
	}
	if s.Fits {
		return nil
	}
	return h.admitContent(m, entries[0])
}

// append records an entry, with the replay check where it has a key.
func (h *Hub) append(ctx context.Context, e journal.Entry) (p journal.Position, prior *journal.Prior, err error) {
	if o := h.c.Observer; o != nil {
		var end func(error)
		if ctx, end = o.Record(ctx, e.Message); end != nil {
			defer func() { end(err) }()
		}
	}
	if o := &e.Message.Origin; e.Refused == nil && o.Admitted == 0 {
		o.Admitted = max(h.c.Now().Sub(o.Received), 0)
	}
	if e.Key.ID != "" {
		return h.c.Journal.Accept(ctx, e)
	}
	p, err = h.c.Journal.Append(ctx, e)
	return p, nil, err
}

// recordError is the sender's error for a message that could not be recorded. The
// texts of the journal's errors may be sent to guests.
func recordError(err error) *parley.Error { return parley.AsError(err).Because(err) }

// prior is the error for a duplicate, with the refusal recorded for the first.
func (h *Hub) prior(ctx context.Context, p *journal.Prior) error {
	out := &Prior{Of: *p}
	if p.Refused {
		r, err := h.c.Journal.Read(ctx, p.Position)
		if err != nil {
			return recordError(err) // the sender may try again for the first answer
		}
		out.Refused = r.Refused
	}
	return out
}
