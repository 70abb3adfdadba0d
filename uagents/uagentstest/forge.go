package uagentstest

import (
	"bytes"
	"time"

	"github.com/parley-hub/parley/uagents"
)

// A Forgery is an envelope, and what a verifier must say to it.
type Forgery struct {
	Name     string // what is wrong with it
	Envelope []byte // JSON text
	Err      error  // that a [uagents.Verifier] gives, for errors.Is; nil: it accepts
}

// Envelope gives the text of a signed envelope to the address to, valid for a minute.
func (p *Peer) Envelope(to string, m uagents.Message) []byte {
	p.t.Helper()
	return p.encode(p.sign(p.envelope(to, m)))
}

// Forgeries gives envelopes to the address to, in the order in which a verifier must see
// them. The first is genuine. The last repeats it, and in between is one forgery of each
// kind. [uagents.Verifier.Self] must be to.
func (p *Peer) Forgeries(to string, m uagents.Message) []Forgery {
	p.t.Helper()
	genuine := p.Envelope(to, m)
	list := []Forgery{{"genuine", genuine, nil}}
	add := func(name string, err error, change func(e *uagents.Envelope), sign bool) {
		e := p.sign(p.envelope(to, m))
		change(e)
		if sign {
			p.sign(e)
		}
		list = append(list, Forgery{name, p.encode(e), err})
	}
	mallory := NewPeer(p.t, "mallory")
	add("signed with another key", uagents.ErrSignature, func(e *uagents.Envelope) {
		e.Sender = mallory.Address()
		mallory.sign(e)
		e.Sender = p.Address()
	}, false)
	add("without a signature", uagents.ErrUnsigned, func(e *uagents.Envelope) { e.Signature = nil }, false)
	add("from an unsigned user", uagents.ErrUnsigned, func(e *uagents.Envelope) {
		user, err := uagents.NewUser()
		if err != nil {
			p.t.Fatal(err)
		}
		e.Sender, e.Signature = user, nil
	}, false)
	add("with another payload", uagents.ErrSignature, func(e *uagents.Envelope) {
		e.Payload = new(uagents.EncodePayload([]byte(`{"message": "forged"}`)))
	}, false)
	add("with another session", uagents.ErrSignature, func(e *uagents.Envelope) {
		e.Session = uagents.NewSession()
	}, false)
	add("for another agent", uagents.ErrUnknownAgent, func(e *uagents.Envelope) { e.Target = mallory.Address() }, true)
	add("redirected to this agent", uagents.ErrSignature, func(e *uagents.Envelope) {
		e.Target = mallory.Address()
		p.sign(e)
		e.Target = to
	}, false)
	add("expired", uagents.ErrStale, func(e *uagents.Envelope) { e.Expires = p.in(-time.Hour) }, true)
	add("with a later expiry", uagents.ErrSignature, func(e *uagents.Envelope) { e.Expires = p.in(2 * time.Hour) }, false)
	add("valid for years", uagents.ErrHorizon, func(e *uagents.Envelope) { e.Expires = p.in(1e5 * time.Hour) }, true)
	// The digest covers the sum of both members: see uagents.Verifier.AllowNonce.
	add("whose expiry became a nonce", uagents.ErrAmbiguous, func(e *uagents.Envelope) {
		e.Nonce, e.Expires = e.Expires, ""
	}, false)
	add("with a schema digest that is none", uagents.ErrSchemaDigest, func(e *uagents.Envelope) {
		e.SchemaDigest = "model:"
	}, true)
	add("whose payload is no base64", uagents.ErrPayload, func(e *uagents.Envelope) { e.Payload = new("?") }, true)
	twice := append([]byte(`{"version":1,`), bytes.TrimPrefix(p.Envelope(to, m), []byte("{"))...)
	return append(list,
		Forgery{"with a member twice", twice, uagents.ErrAmbiguous},
		Forgery{"cut off", genuine[:len(genuine)-1], uagents.ErrMalformed},
		Forgery{"without members", []byte("{}"), uagents.ErrShape},
		Forgery{"repeated", genuine, uagents.ErrReplay})
}

// in is a time from now, in Unix seconds.
func (p *Peer) in(d time.Duration) uagents.Int {
	now := time.Now
	if p.Now != nil {
		now = p.Now
	}
	return uagents.Uint(uint64(now().Add(d).Unix()))
}

func (p *Peer) envelope(to string, m uagents.Message) *uagents.Envelope {
	p.t.Helper()
	e, err := uagents.NewEnvelope(p.Address(), to, "", m, time.Time{})
	if err != nil {
		p.t.Fatal(err)
	}
	e.Expires = p.in(time.Minute)
	return e
}

func (p *Peer) sign(e *uagents.Envelope) *uagents.Envelope {
	p.t.Helper()
	if err := e.Sign(p.Identity); err != nil {
		p.t.Fatal(err)
	}
	return e
}

func (p *Peer) encode(e *uagents.Envelope) []byte {
	p.t.Helper()
	b, err := e.Encode()
	if err != nil {
		p.t.Fatal(err)
	}
	return b
}
