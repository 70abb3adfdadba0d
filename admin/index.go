package admin

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"iter"
	"strconv"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
)

// Summary is a message in a list.
type Summary index.Message

// Recorded is a message as the journal holds it.
type Recorded struct {
	Summary
	Node     string            `json:"node,omitzero"`     // the hub that recorded it
	Content  *Message          `json:"content,omitzero"`  // missing where it is no longer kept
	Header   map[string]string `json:"header,omitzero"`   // of the transport, as far as it is kept
	Raw      []byte            `json:"raw,omitzero"`      // the envelope as received; only when asked for
	RawBytes int               `json:"rawBytes,omitzero"` // its size
	// of the envelope, also where it is hidden or erased: "sha-256=:…:"
	RawDigest string            `json:"rawDigest,omitzero"`
	Erased    *Erasure          `json:"erased,omitzero"` // its content was erased
	Advice    map[string]string `json:"advice,omitzero"` // about its failed deliveries, by recipient; "" is its own error

	Recipients []Recipient `json:"recipients,omitzero"` // those that are not ready now

	Admissions []Admission `json:"admissions,omitzero"` // by the rules in force now; missing: it needs no rule

	Course
}

// MessagePage is a page of the messages that a filter chooses; Next is the cursor
// of the following page, "" for the last one.
type MessagePage struct {
	Messages []Summary `json:"messages"`
	Next     string    `json:"next,omitzero"`
}

// ConversationInfo is a conversation in a list.
type ConversationInfo index.Conversation

// ConversationPage is some of the conversations that a filter chooses.
type ConversationPage struct {
	Conversations []ConversationInfo `json:"conversations"`
	Next          string             `json:"next,omitzero"`
}

// Conversation is a conversation with a page of its messages, the oldest
// first.
type Conversation struct {
	ConversationInfo
	History  []HistoryEntry `json:"history"`
	Next     string         `json:"next,omitzero"`
	Before   int            `json:"before,omitzero"`   // messages before this page
	Previous string         `json:"previous,omitzero"` // cursor of the page before; "" is that of the first page
}

func viewSummary(by Actor, m index.Message) Summary {
	v := Summary(m)
	return *forActor(by, &v)
}

func viewConversation(by Actor, c index.Conversation) ConversationInfo {
	v := ConversationInfo(c)
	return *forActor(by, &v)
}

// fresh gives the index to an actor who may read it, as soon as it holds every record made before the call, or
// after freshness at the latest: a list that is a little behind is better than
// none.
func (a *Admin) fresh(ctx context.Context, by Actor) (*index.Index, error) {
	if err := by.may(Observe); err != nil {
		return nil, err
	}
	wait, cancel := context.WithTimeout(ctx, freshness)
	defer cancel()
	if err := a.c.Index.Wait(wait); err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return a.c.Index, nil
}

const freshness = 2 * time.Second

// Messages lists messages of the journal, the newest first.
func (a *Admin) Messages(ctx context.Context, by Actor, f index.Filter) (MessagePage, error) {
	if err := cmp.Or(by.maySearch(&f), a.resolveNames(&f.Agent, &f.From, &f.To)); err != nil {
		return MessagePage{}, err
	}
	x, err := a.fresh(ctx, by)
	if err != nil {
		return MessagePage{}, err
	}
	page, err := x.Messages(ctx, f)
	if err != nil {
		return MessagePage{}, unresolved(err, "message", "")
	}
	return MessagePage{viewAll(by, page.Messages, viewSummary), page.Next}, nil
}

// Message finds one by its id, or by at least the first 8 digits of it.
func (a *Admin) Message(ctx context.Context, by Actor, id string, raw bool) (Recorded, error) {
	x, err := a.fresh(ctx, by)
	if err != nil {
		return Recorded{}, err
	}
	m, err := x.Message(ctx, id)
	if err != nil {
		return Recorded{}, unresolved(err, "message", id)
	}
	out := Recorded{Summary: viewSummary(by, m), Advice: a.adviceOn(&m)}
	for _, d := range m.Deliveries {
		if s := a.notReady(by, d.To); s != nil {
			out.Recipients = append(out.Recipients, Recipient{d.To, *s})
		}
	}
	r, err := a.c.Hub.Journal().Read(ctx, m.Position)
	if err != nil && !errors.Is(err, journal.ErrNotFound) {
		return out, err
	}
	if out.Course, err = a.courses(by).of(ctx, &m, r); err != nil {
		return out, err
	}
	if r == nil || r.Message == nil {
		return out, nil // the journal has removed it since
	}
	out.Erased = a.erasure(ctx, r)
	if r.Refused == nil {
		out.Admissions = a.admissions(r.Message)
	}
	o := &a.masked(r.Message).Origin
	out.Node, out.Content, out.Header, out.RawBytes = r.Node, a.show(by, r.Message), o.Header, len(o.Raw)
	switch e := r.Erased; {
	case len(o.Raw) > 0:
		out.RawDigest = digest(o.Raw)
	case e != nil && e.Digest != nil:
		out.RawBytes = int(e.Size)
		out.RawDigest = "sha-256=:" + base64.StdEncoding.EncodeToString(e.Digest) + ":"
	}
	if raw {
		out.Raw = o.Raw
	}
	return *forActor(by, &out), nil
}

// Conversations lists conversations, the one with the newest message first.
func (a *Admin) Conversations(ctx context.Context, by Actor, f index.ConversationFilter) (ConversationPage, error) {
	x, err := a.fresh(ctx, by)
	if err != nil {
		return ConversationPage{}, err
	}
	if err := a.resolveNames(&f.Agent); err != nil {
		return ConversationPage{}, err
	}
	page, err := x.Conversations(ctx, f)
	if err != nil {
		return ConversationPage{}, unresolved(err, "conversation", "")
	}
	return ConversationPage{viewAll(by, page.Conversations, viewConversation), page.Next}, nil
}

// Conversation finds one by its id, or by at least the first 8 digits of it,
// with a page of its messages behind cursor.
func (a *Admin) Conversation(ctx context.Context, by Actor, id, cursor string, limit int) (Conversation, error) {
	x, c, err := a.conversation(ctx, by, id)
	if err != nil {
		return Conversation{}, err
	}
	page, err := x.History(ctx, c.ID, cursor, limit)
	if err != nil {
		return Conversation{}, unresolved(err, "conversation", id)
	}
	return a.viewHistory(ctx, by, c, page)
}

// An Event is one event of [Admin.Tail]; exactly one of its pointers is set.
type Event struct {
	Message  *Summary      // was recorded
	Delivery *DeliveryNews // moved on
	Refusal  *Refusal      // was turned away before it was recorded
	Dropped  *Dropped      // the stream ends: the reader was too slow
}

// DeliveryNews is one step of one delivery.
type DeliveryNews struct {
	Message   parley.ID            `json:"message"`
	To        string               `json:"to"`
	State     parley.DeliveryState `json:"state"`
	Attempt   int                  `json:"attempt,omitzero"`
	Postponed bool                 `json:"postponed,omitzero"`
	Next      time.Time            `json:"next,omitzero"`
	Error     *index.Reason        `json:"error,omitzero"`
	Reply     parley.ID            `json:"reply,omitzero"`
	Position  journal.Position     `json:"position"`
	Time      time.Time            `json:"time"`
}

// Dropped ends the stream of a reader that was too slow.
type Dropped struct {
	Reason string `json:"reason"`
}

// name and id of the server-sent event.
func (e *Event) name() (name, id string, v any) {
	switch {
	case e.Message != nil:
		return "message", e.Message.Position.String(), e.Message
	case e.Delivery != nil:
		return "delivery", e.Delivery.Position.String(), e.Delivery
	case e.Refusal != nil:
		return "refused", e.Refusal.Ref, e.Refusal
	}
	return "dropped", "", e.Dropped
}

const (
	tailQueue    = 1024                   // records that wait for one reader
	tailRefusals = 500 * time.Millisecond // between looks for new refusals
)

// Tail yields new messages and deliveries that the filter chooses, and new refusals
// unless the filter needs a field that refusals lack. Started, if not nil, is called once
// no later event can be missed.
func (a *Admin) Tail(ctx context.Context, by Actor, f index.Filter, started func()) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if err := cmp.Or(by.maySearch(&f), a.resolveNames(&f.Agent, &f.From, &f.To)); err != nil {
			yield(Event{}, err)
			return
		}
		in, err := a.follow(by)
		if err != nil {
			yield(Event{}, err)
			return
		}
		defer in.leave()
		look := time.NewTicker(tailRefusals)
		defer look.Stop()
		if started != nil {
			started()
		}
		for {
			if in.missed.Load() > 0 {
				yield(Event{Dropped: &Dropped{"the reader was too slow: more than " + strconv.Itoa(tailQueue) +
					" records waited for it"}}, nil)
				return
			}
			select {
			case r := <-in.news:
				if !a.yieldRecord(ctx, by, &f, r, yield) {
					return
				}
			case <-look.C:
				var list []Refusal
				list, in.refused = a.refusedSince(by, &f, in.refused)
				for i := range list {
					if !yield(Event{Refusal: &list[i]}, nil) {
						return
					}
				}
			case <-ctx.Done():
				return
			case <-a.ended:
				return
			}
		}
	}
}

// yieldRecord yields the parts of a record that the filter chooses.
func (a *Admin) yieldRecord(ctx context.Context, by Actor, f *index.Filter, r *journal.Record,
	yield func(Event, error) bool) bool {
	if m, ok := a.c.Index.Of(r); ok && f.Matches(&m) {
		v := viewSummary(by, m)
		if !yield(Event{Message: &v}, nil) {
			return false
		}
	}
	for i := range r.Steps {
		s := &r.Steps[i]
		if !a.wanted(ctx, f, s) {
			continue
		}
		d := &DeliveryNews{Message: s.Message, To: s.To, State: s.State, Attempt: s.Attempt, Postponed: s.Postponed,
			Next: s.Next, Error: index.ReasonOf(s.Error), Reply: s.Reply, Position: r.Position, Time: r.Time}
		if !yield(Event{Delivery: forActor(by, d)}, nil) {
			return false
		}
	}
	return true
}

// wanted reports whether a filter chooses a step, by the step alone or else by its
// message.
func (a *Admin) wanted(ctx context.Context, f *index.Filter, s *journal.Step) bool {
	// A failed attempt is a failure too, unless the peer only asked for patience.
	failed := s.State >= parley.Dead || s.State == parley.Waiting && s.Error != nil && !s.Postponed
	if f.Refused || f.Proof == index.ProvedRefused || f.State != 0 && s.State != f.State || f.To != "" && s.To != f.To ||
		f.Failed && !failed || f.Waiting && s.State != parley.Waiting {
		return false
	}
	rest := *f
	rest.State, rest.To, rest.Failed, rest.Waiting, rest.Now = 0, "", false, false, time.Time{}
	rest.Cursor, rest.Limit, rest.Oldest, rest.Since, rest.Until = "", 0, false, time.Time{}, time.Time{}
	if rest.Agent == s.To {
		rest.Agent = ""
	}
	if rest == (index.Filter{}) {
		return true
	}
	x := a.c.Index
	if (rest.Slow > 0 || rest.Via != "") && x.Wait(ctx) != nil { // the message has them after this step
		return false
	}
	m, err := x.Message(ctx, s.Message.String())
	if errors.Is(err, index.ErrNotFound) && x.Wait(ctx) == nil {
		m, err = x.Message(ctx, s.Message.String())
	}
	return err == nil && rest.Matches(&m)
}

// EndStreams ends all calls of [Admin.Tail], so that a server can shut down
// without waiting for their readers, and all jobs.
func (a *Admin) EndStreams() {
	a.endOnce.Do(func() { close(a.ended) })
	a.jobs.stop()
}
