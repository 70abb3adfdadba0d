package admin

import (
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
)

// An Attempt is one try to deliver a message, as the journal has it. Of an attempt that is in flight,
// or was recorded by an earlier release, only the number, the state and the times are known.
type Attempt struct {
	Number    int                  `json:"number"`
	State     parley.DeliveryState `json:"state"` // how it ended; delivering: it is in flight
	Begun     time.Time            `json:"begun"`
	Ended     time.Time            `json:"ended,omitzero"`
	Protocol  string               `json:"protocol,omitzero"` // that carried it: "go" for a handler, "api" for an inbox
	Address   string               `json:"address,omitzero"`  // that was dialled, or of the peer's own connection
	Status    string               `json:"status,omitzero"`   // in the protocol's words: "503 Service Unavailable"
	Routed    Duration             `json:"routed,omitzero"`   // from Begun until the way was known
	Written   Duration             `json:"written,omitzero"`  // from Begun until the first byte was about to leave
	Took      Duration             `json:"took,omitzero"`     // from Begun to its end
	Size      int                  `json:"size,omitzero"`     // bytes that left, without headers of the transport
	Digest    string               `json:"digest,omitzero"`   // of them: "sha-256=:…:" (RFC 9530)
	Sent      []byte               `json:"sent,omitzero"`     // head and body, secrets masked; if journal.sent is set
	Answer    string               `json:"answer,omitzero"`   // the first KiB of what came back
	Error     *Problem             `json:"error,omitzero"`
	Postponed bool                 `json:"postponed,omitzero"` // it does not count as a try
	Next      time.Time            `json:"next,omitzero"`      // waiting: the next attempt is not before this
}

// A Duration is written as "212ms".
type Duration time.Duration

func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	*d = Duration(v)
	return err
}

// Times are when a message passed the first steps of the hub; a zero one is not known.
type Times struct {
	Received time.Time `json:"received,omitzero"`
	Verified time.Time `json:"verified,omitzero"` // every check was made
	Admitted time.Time `json:"admitted,omitzero"`
	Recorded time.Time `json:"recorded"`
}

// Course is what became of a message in the hub.
type Course struct {
	Times    Times                `json:"times"`
	Attempts map[string][]Attempt `json:"attempts,omitzero"` // by recipient, the oldest first
	Omitted  map[string]int       `json:"omitted,omitzero"`  // by recipient: attempts left out after the first ten
}

// HistoryEntry is a message of a conversation.
type HistoryEntry struct {
	Summary
	Course
	Losses  []string `json:"losses,omitzero"`  // of an event or a reply that has no delivery of its own
	Erased  *Erasure `json:"erased,omitzero"`  // its content was erased
	Removed bool     `json:"removed,omitzero"` // the journal has removed the record since
}

const (
	firstAttempts  = 10
	newestAttempts = 90
	maxRecordsRead = 5_000 // for one answer; attempts beyond it have no exchange
)

// withoutContent leaves sizes, digests and codes.
func (x *Attempt) withoutContent() {
	x.Sent, x.Answer = nil, ""
	x.Error.withoutContent()
}

// courses reads the deliveries and attempts of messages, within a bound for one answer.
type courses struct {
	a    *Admin
	by   Actor
	left int // records that may still be read
}

func (a *Admin) courses(by Actor) *courses { return &courses{a, by, maxRecordsRead} }

// of reads the course of a message; r is its record, nil if the journal has it no more.
func (c *courses) of(ctx context.Context, m *index.Message, r *journal.Record) (out Course, err error) {
	out.Times.Recorded = m.Time
	if r != nil && r.Message != nil {
		o := &r.Message.Origin
		after := func(d time.Duration) (t time.Time) {
			if d > 0 {
				t = o.Received.Add(d)
			}
			return t
		}
		out.Times.Received, out.Times.Verified, out.Times.Admitted = o.Received, after(o.Verified), after(o.Admitted)
	}
	for i := range m.Deliveries {
		d := &m.Deliveries[i]
		list, omitted, err := c.attempts(ctx, m.ID, d)
		if err != nil {
			return out, err
		}
		if len(list) > 0 {
			if out.Attempts == nil {
				out.Attempts = map[string][]Attempt{}
			}
			out.Attempts[d.To] = list
		}
		if omitted > 0 {
			if out.Omitted == nil {
				out.Omitted = map[string]int{}
			}
			out.Omitted[d.To] = omitted
		}
	}
	return out, nil
}

// tried is an attempt in the steps of a delivery.
type tried struct {
	begun index.Step
	ended *index.Step // nil: it is in flight
}

// attempts reads the first attempts of a delivery and the newest ones, and counts those between.
func (c *courses) attempts(ctx context.Context, message parley.ID, d *index.Delivery) (out []Attempt, omitted int,
	err error) {
	var list []tried
	for i, s := range d.Steps {
		if s.State != parley.Delivering {
			continue
		}
		t := tried{begun: s}
		if i+1 < len(d.Steps) {
			t.ended = &d.Steps[i+1]
		}
		list = append(list, t)
	}
	if omitted = len(list) - firstAttempts - newestAttempts; omitted > 0 {
		list = append(list[:firstAttempts:firstAttempts], list[firstAttempts+omitted:]...)
	}
	for _, t := range list {
		v, err := c.attempt(ctx, message, d.To, t)
		if err != nil {
			return nil, 0, err
		}
		out = append(out, *forActor(c.by, v))
	}
	return out, max(omitted, 0), nil
}

func (c *courses) attempt(ctx context.Context, message parley.ID, to string, t tried) (*Attempt, error) {
	v := &Attempt{Number: t.begun.Attempt, State: parley.Delivering, Begun: t.begun.Time}
	if t.ended == nil {
		return v, nil
	}
	v.State, v.Ended = t.ended.State, t.ended.Time
	if t.ended.State == parley.Delivering { // the hub stopped during the attempt, and made another
		v.Ended = time.Time{}
		return v, nil
	}
	if c.left--; c.left < 0 {
		return v, nil
	}
	r, err := c.a.c.Hub.Journal().Read(ctx, t.ended.Position)
	if errors.Is(err, journal.ErrNotFound) {
		return v, nil // the journal has removed it since
	}
	if err != nil {
		return nil, err
	}
	for i := range r.Steps {
		if s := &r.Steps[i]; s.Message == message && s.To == to {
			v.Error, v.Postponed, v.Next = problem(s.Error), s.Postponed, s.Next
			v.exchanged(s.Exchange)
		}
	}
	return v, nil
}

func (x *Attempt) exchanged(e *parley.Exchange) {
	if e == nil {
		return
	}
	x.Begun, x.Ended = e.Started, e.Started.Add(e.Took)
	x.Protocol, x.Address, x.Status = e.Protocol, e.Address, e.Status
	x.Routed, x.Written, x.Took = Duration(e.Routed), Duration(e.Written), Duration(e.Took)
	x.Size, x.Sent, x.Answer = e.Size, e.Sent, strings.ToValidUTF8(string(e.Answer), "\uFFFD")
	if len(e.Digest) > 0 {
		x.Digest = "sha-256=:" + base64.StdEncoding.EncodeToString(e.Digest) + ":"
	}
}

// history reads a page of a conversation's messages with their deliveries and attempts.
func (a *Admin) history(ctx context.Context, by Actor, list []index.Message) ([]HistoryEntry, error) {
	out, c := make([]HistoryEntry, 0, len(list)), a.courses(by)
	for i := range list {
		m := &list[i]
		var r *journal.Record
		removed := false
		if c.left--; c.left >= 0 {
			var err error
			if r, err = a.c.Hub.Journal().Read(ctx, m.Position); err != nil && !errors.Is(err, journal.ErrNotFound) {
				return nil, err
			}
			removed = err != nil
		}
		course, err := c.of(ctx, m, r)
		if err != nil {
			return nil, err
		}
		e := HistoryEntry{Summary: viewSummary(by, *m), Course: course, Removed: removed}
		if r != nil {
			e.Erased = a.erasure(ctx, r)
			for _, l := range r.Losses {
				e.Losses = append(e.Losses, l.String())
			}
		}
		out = append(out, *forActor(by, &e))
	}
	return out, nil
}

// attemptsOf reads the attempts of one delivery.
func (a *Admin) attemptsOf(ctx context.Context, by Actor, message parley.ID, to string) ([]Attempt, int, error) {
	x, err := a.fresh(ctx, by)
	if err != nil {
		return nil, 0, err
	}
	m, err := x.Message(ctx, message.String())
	if errors.Is(err, index.ErrNotFound) {
		return nil, 0, nil // the index is behind
	}
	if err != nil {
		return nil, 0, err
	}
	for i := range m.Deliveries {
		if m.Deliveries[i].To == to {
			return a.courses(by).attempts(ctx, m.ID, &m.Deliveries[i])
		}
	}
	return nil, 0, nil
}
