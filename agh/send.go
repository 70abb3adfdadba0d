package agh

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
)

// Send makes and checks a message of a hosted peer, which From names, and
// takes it through the work lifecycle. The caller sets kind and body (see
// [Envelope.SetContent]), workspace, channel, surface with its id, and further
// members as the kind needs them. Send fills in ID and TS if unset, and always
// the direct_id of a direct message. The Result has the message to publish
// (Published) and the hosted peers that receive it too (Deliver).
//
// Errors: [ErrForbidden] if From is not hosted, [ErrNotTarget] if To is not
// present (answers and whois need no present To), [ErrWorkUnknown] for a receipt
// or trace of no known work, [ErrScreened], and the errors of the lifecycle and
// of validation.
func (r *Router) Send(ctx context.Context, e *Envelope) (Result, error) {
	out, err := r.Prepare(ctx, e)
	if err != nil {
		return Result{}, err
	}
	sent, now := out.Envelope, r.Verifier.now()
	res := Result{Outcome: Accepted, Envelope: sent, Published: []Outgoing{out}}
	// The message's key is consumed, so that its echo is a duplicate.
	if r.Admit == nil {
		switch err := r.Verifier.remember(ctx, r.memory, sent); {
		case errors.Is(err, ErrReplay): // sent before: sending again is no error and does nothing
			return Result{Outcome: Duplicate, Err: err, Envelope: sent}, nil
		case err != nil:
			return Result{}, err
		}
	}
	if sent.WorkID != "" {
		w, err := r.works.Update(ctx, sent, r.step(sent, now))
		if err != nil {
			return Result{}, err
		}
		res.Work = &w
	}
	if w, ok := sent.content.(*Whois); ok && w.Type == WhoisRequest {
		r.asked(&res, sent, w, "", now)
	} else if sent.Kind != KindGreet {
		r.deliver(&res, sent)
	}
	res.Relay = false
	return res, nil
}

// Prepare is the part of [Router.Send] that changes nothing: it makes and checks
// the message. An embedder that stores work itself then applies [Advance] and
// publishes.
func (r *Router) Prepare(ctx context.Context, e *Envelope) (Outgoing, error) {
	r.init()
	now := r.Verifier.now()
	l := r.local(e.WorkspaceID, e.Channel, e.From)
	if l == nil {
		return Outgoing{}, refuse(ErrForbidden, StepRouting, "from", "is no peer of this node")
	}
	c := *e
	if c.Surface == SurfaceDirect {
		var err error
		c.DirectID, err = VerifiedDirectID(c.WorkspaceID, c.Channel, c.From, c.To)
		if err != nil {
			return Outgoing{}, err
		}
	}
	// An answer keeps the ids of its request; new containers and work need ids
	// that every implementation takes.
	if c.ReplyTo == "" && c.Kind.conversation() {
		if c.Surface == SurfaceThread && !ValidThreadID(c.ThreadID) {
			return Outgoing{}, malformed(StepSurface, "thread_id", "must match thread_[a-z0-9][a-z0-9_-]{2,95}")
		}
		if c.WorkID != "" && !validWorkID(c.WorkID) {
			if _, ok, err := r.works.Work(ctx, c.WorkspaceID, c.WorkID); err != nil || !ok {
				return Outgoing{}, malformed(StepSurface, "work_id", "must match work_[a-zA-Z0-9_-]{1,64}").because(err)
			}
		}
	}
	if c.Kind == KindGreet && c.To != "" {
		return Outgoing{}, malformed(StepSurface, "to", "a greet is for all")
	}
	if r.Screen && looksSecret(&c) {
		return Outgoing{}, refuse(ErrScreened, StepBody, "body", "seems to hold a secret; AGH daemons drop it")
	}
	out, err := r.emit(l, &c)
	if err != nil {
		return Outgoing{}, err
	}
	sent := out.Envelope
	if err := r.Verifier.Limits.Fresh(sent, now); err != nil {
		return Outgoing{}, err
	}
	// An answer's requester is present, and a whois may look for an absent peer.
	unasked := sent.To != "" && sent.ReplyTo == "" && sent.Kind != KindWhois
	if unasked && r.local(sent.WorkspaceID, sent.Channel, sent.To) == nil {
		if _, ok := r.presence.Peer(sent.WorkspaceID, sent.Channel, sent.To, now); !ok &&
			!r.remote(sent.WorkspaceID, sent.Channel, sent.To) {
			return Outgoing{}, refuse(ErrNotTarget, StepRouting, "to", "is not present")
		}
	}
	return out, nil
}

// emit completes a message of a hosted peer and encodes it.
func (r *Router) emit(l *Local, e *Envelope) (Outgoing, error) {
	e.WorkspaceID, e.Channel, e.From = l.WorkspaceID, l.Channel, l.Card.PeerID
	if e.ID == "" {
		e.ID = NewID()
	}
	e.TS = cmp.Or(e.TS, r.Verifier.now().Unix())
	d := Decoder{Handles: r.Verifier.Trust || l.Identity != nil, Limits: Limits{Envelope: r.Verifier.Limits.Envelope}}
	var sent *Envelope
	var w *lenientWire
	var b []byte
	var err error
	if l.Identity != nil {
		b, err = l.Identity.Sign(e)
		if err == nil {
			sent, err = d.Decode(b)
		}
	} else {
		w, b, err = e.marshal()
		if err == nil {
			sent, err = d.written(w, b)
		}
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
