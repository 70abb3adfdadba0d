package agh

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"time"
)

// Send makes and checks a message of a hosted peer, which From names, and
// takes it through the work lifecycle. Of e, kind and body (see
// [Envelope.SetContent]), workspace, channel, surface with its id, and what
// else applies must be set; ID and TS are filled in if they are not, and the
// direct_id of a direct message always is. The Result says what to publish
// (Published) and which hosted peers hear it too (Deliver).
//
// Errors: [ErrForbidden] if From is not hosted, [ErrNotTarget] if To is not
// present (but an answer needs no greeting, nor does a whois), [ErrWorkUnknown] for a receipt or
// trace of no known work,
// [ErrScreened], and those of the lifecycle and of validation.
func (r *Router) Send(ctx context.Context, e *Envelope) (Result, error) {
	all, err := r.SendAll(ctx, e)
	if err != nil {
		return Result{}, err
	}
	return all[0], nil
}

// SendAll is Send for several messages in order. It returns the results of the
// messages that can be sent, and the error of the first that cannot.
func (r *Router) SendAll(ctx context.Context, es ...*Envelope) ([]Result, error) {
	r.init()
	now := r.Verifier.now()
	all := make([]Result, 0, len(es))
	for begun := 0; begun < len(es); {
		work, n := es[begun].WorkID, 0 // those that one step of the work's state is enough for
		var first error
		for _, e := range es[begun:] {
			if e.WorkID != work || e.WorkspaceID != es[begun].WorkspaceID {
				break
			}
			res, err := r.prepare(ctx, e, now)
			if err != nil {
				first = err
				break
			}
			all = append(all, res)
			n++
		}
		done, err := r.steps(ctx, all[begun:begun+n], now)
		for i := range all[begun : begun+done] {
			r.addressed(&all[begun+i], now)
		}
		all = all[:begun+done]
		if err != nil {
			return all, err
		}
		if first != nil {
			return all, first
		}
		begun += n
	}
	return all, nil
}

// steps takes the work of some messages on by all of them, and gives how many
// the lifecycle allowed.
func (r *Router) steps(ctx context.Context, all []Result, now time.Time) (done int, refused error) {
	if len(all) == 0 || all[0].Envelope.WorkID == "" {
		return len(all), nil
	}
	works := make([]Work, len(all))
	_, err := r.works.Update(ctx, all[0].Envelope, func(w Work, ok bool) (Work, error) {
		done, refused = 0, nil
		for i := range all {
			if all[i].Outcome == Duplicate {
				done++
				continue
			}
			next, err := r.step(all[i].Envelope, now)(w, ok)
			if err != nil {
				refused = err
				if done == 0 {
					return w, err
				}
				break
			}
			w, ok, works[i] = next, true, next
			done++
		}
		return w, nil
	})
	if err != nil {
		return 0, err
	}
	for i := range all[:done] {
		if all[i].Outcome != Duplicate {
			all[i].Work = &works[i]
		}
	}
	return done, refused
}

// prepare makes and checks a message of a hosted peer.
func (r *Router) prepare(ctx context.Context, e *Envelope, now time.Time) (Result, error) {
	l := r.local(e.WorkspaceID, e.Channel, e.From)
	if l == nil {
		return Result{}, refuse(ErrForbidden, StepRouting, "from", "is no peer of this node")
	}
	c := *e
	if c.Surface == SurfaceDirect {
		var err error
		c.DirectID, err = VerifiedDirectID(c.WorkspaceID, c.Channel, c.From, c.To)
		if err != nil {
			return Result{}, err
		}
	}
	// An answer goes where the question came from; what one begins has a name
	// that every implementation takes.
	if c.ReplyTo == "" && c.Kind.conversation() {
		if c.Surface == SurfaceThread && !ValidThreadID(c.ThreadID) {
			return Result{}, malformed(StepSurface, "thread_id", "must match thread_[a-z0-9][a-z0-9_-]{2,95}")
		}
		if c.WorkID != "" && !validWorkID(c.WorkID) {
			if _, ok, err := r.works.Work(ctx, c.WorkspaceID, c.WorkID); err != nil || !ok {
				return Result{}, malformed(StepSurface, "work_id", "must match work_[a-zA-Z0-9_-]{1,64}").because(err)
			}
		}
	}
	if c.Kind == KindGreet && c.To != "" {
		return Result{}, malformed(StepSurface, "to", "a greet is for all")
	}
	if r.Screen && looksSecret(&c) {
		return Result{}, refuse(ErrScreened, StepBody, "body", "")
	}
	out, err := r.emit(l, &c)
	if err != nil {
		return Result{}, err
	}
	sent := out.Envelope
	if err := r.Verifier.Limits.Fresh(sent, now); err != nil {
		return Result{}, err
	}
	here := r.local(sent.WorkspaceID, sent.Channel, sent.To) != nil
	// A requester is present, and a whois may look for an absent peer.
	unasked := sent.ReplyTo == "" && sent.Kind != KindWhois
	if sent.To != "" && !here && unasked {
		if _, ok := r.presence.Peer(sent.WorkspaceID, sent.Channel, sent.To, now); !ok &&
			!r.remote(sent.WorkspaceID, sent.Channel, sent.To) {
			return Result{}, refuse(ErrNotTarget, StepRouting, "to", "is not present")
		}
	}
	// Our own key is consumed, so that an echo of the message is a duplicate.
	if r.Admit == nil {
		switch err := r.Verifier.remember(ctx, r.memory, sent); {
		case errors.Is(err, ErrReplay): // sent before: sending again is no error and does nothing
			return Result{Outcome: Duplicate, Err: err, Envelope: sent}, nil
		case err != nil:
			return Result{}, err
		}
	}
	return Result{Outcome: Accepted, Envelope: sent, Published: []Outgoing{out}}, nil
}

// addressed finds the peers of this node that receive a sent message.
func (r *Router) addressed(res *Result, now time.Time) {
	sent := res.Envelope
	if w, ok := sent.content.(*Whois); ok && w.Type == WhoisRequest && res.Outcome == Accepted {
		r.asked(res, sent, w, now)
	} else if sent.Kind != KindGreet && res.Outcome == Accepted {
		r.deliver(res, sent)
	}
	res.Relay = false
}

// emit completes a message of a hosted peer and writes it.
func (r *Router) emit(l *Local, e *Envelope) (Outgoing, error) {
	e.WorkspaceID, e.Channel, e.From = l.WorkspaceID, l.Channel, l.Card.PeerID
	if e.ID == "" {
		e.ID = NewID()
		if r.NewID != nil {
			e.ID = r.NewID()
		}
	}
	e.TS = cmp.Or(e.TS, r.Verifier.now().Unix())
	d := Decoder{Handles: r.Verifier.Trust || l.Identity != nil, Limits: Limits{Envelope: r.Verifier.Limits.Envelope}}
	var sent *Envelope
	var b []byte
	var err error
	if l.Identity != nil {
		b, err = l.Identity.Sign(e)
		if err == nil {
			sent, err = d.Decode(b)
		}
	} else if b, err = e.marshal(); err == nil {
		sent, err = d.written(e, b)
	}
	if err != nil {
		return Outgoing{}, err
	}
	sent.Note = e.Note
	subject, err := sent.Subject()
	if err != nil {
		return Outgoing{}, err
	}
	return Outgoing{Subject: subject, Data: b, Envelope: sent}, nil
}

// Greeting gives the greeting of a hosted peer, to be published when it joins,
// every greet interval and after each reconnection.
func (r *Router) Greeting(l *Local) (Outgoing, error) {
	e := &Envelope{}
	if err := e.SetContent(&Greet{Card: l.Card, Summary: l.Card.Summary()}); err != nil {
		return Outgoing{}, err
	}
	return r.emit(l, e)
}

// NewID makes a message id: msg_ and 32 hex digits.
func NewID() string { return "msg_" + random() }

// NewThreadID makes a thread id that every implementation takes.
func NewThreadID() string { return "thread_" + random() }

// NewWorkID makes a work id that every implementation takes.
func NewWorkID() string { return "work_" + random() }

func random() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
