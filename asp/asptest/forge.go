package asptest

import (
	"bytes"
	"encoding/json"
	"time"

	"github.com/parley-hub/parley/asp"
)

// A Forgery is an envelope, and what a verifier must say to it.
type Forgery struct {
	Name     string // what is wrong with it
	Envelope []byte // JSON text
	Err      error  // that a [asp.Verifier] gives, for errors.Is; nil: it accepts
}

// Sign signs a draft as the peer. A draft without a session gets a new one.
func (p *Peer) Sign(d asp.Draft) *asp.Envelope {
	p.t.Helper()
	return p.sign(p.Identity, d)
}

func (p *Peer) sign(as *asp.Identity, d asp.Draft) *asp.Envelope {
	p.t.Helper()
	var err error
	if d.SessionID == "" {
		if d.SessionID, err = asp.NewSessionID(); err != nil {
			p.t.Fatal(err)
		}
	}
	if d.Time.IsZero() && p.Now != nil {
		d.Time = p.Now()
	}
	e, err := d.Sign(as)
	if err != nil {
		p.t.Fatal(err)
	}
	return e
}

// Forgeries gives envelopes that a verifier must see in this order. The first is a
// genuine INFORM. The last repeats it, and in between is one forgery of each kind. The
// verifier must know [Peer.Keys], and nobody else.
func (p *Peer) Forgeries() []Forgery {
	p.t.Helper()
	session, err := asp.NewSessionID()
	if err != nil {
		p.t.Fatal(err)
	}
	draft := asp.Draft{SessionID: session, Performative: asp.Inform, Body: asp.Information{Topic: "status"}}
	signed := func(as *asp.Identity, change func(*asp.Draft)) []byte {
		d := draft
		change(&d)
		return p.sign(as, d).Raw()
	}
	same := func(*asp.Draft) {}
	genuine := signed(p.Identity, same)
	edit := func(change func(m map[string]any)) []byte {
		var m map[string]any
		d := json.NewDecoder(bytes.NewReader(signed(p.Identity, same)))
		d.UseNumber()
		if err := d.Decode(&m); err != nil {
			p.t.Fatal(err)
		}
		change(m)
		b, err := json.Marshal(m)
		if err != nil {
			p.t.Fatal(err)
		}
		return b
	}
	in := func(m map[string]any, name string) map[string]any { v, _ := m[name].(map[string]any); return v }
	now := time.Now
	if p.Now != nil {
		now = p.Now
	}
	mallory, err := asp.GenerateIdentity(p.ID(), "org_test")
	if err != nil {
		p.t.Fatal(err)
	}
	other := p.sign(p.Identity, asp.Draft{Performative: asp.Inform, Body: asp.Information{Topic: "forged"}})
	guest := identity(p.t, "agent://guest.example/services/guest")
	foreign := p.sign(guest, draft)
	refused := func(code string) error { return &asp.Error{Code: code} }
	return []Forgery{
		{"genuine", genuine, nil},
		{"signed with another key", signed(mallory, same), asp.ErrSignature},
		{"of a sender without a known key", foreign.Raw(), asp.ErrUnknownKey},
		{"with another body", edit(func(m map[string]any) { m["content"] = json.RawMessage(content(other)) }), asp.ErrHash},
		{"with another body and its hash", edit(func(m map[string]any) {
			m["content"] = json.RawMessage(content(other))
			in(m, "integrity")["hash"] = other.Integrity.Hash
		}), asp.ErrSignature},
		{"in another session", edit(func(m map[string]any) { m["sessionId"] = other.SessionID }), asp.ErrSignature},
		{"with another number", edit(func(m map[string]any) { m["sequenceNumber"] = 7 }), asp.ErrSignature},
		{"linked to another message", edit(func(m map[string]any) {
			in(m, "integrity")["previousHash"] = other.Integrity.Hash
		}), asp.ErrSignature},
		{"with the proof of another session", edit(func(m map[string]any) {
			in(m, "sender")["dpopProof"] = other.Sender.DPoPProof
		}), refused("dpop_htu_mismatch")},
		{"with the proof of another agent", edit(func(m map[string]any) {
			in(m, "sender")["dpopProof"] = foreign.Sender.DPoPProof
		}), refused("dpop_key_mismatch")},
		{"without a proof", edit(func(m map[string]any) { delete(in(m, "sender"), "dpopProof") }), asp.ErrMissingField},
		{"too old", signed(p.Identity, func(d *asp.Draft) { d.Time = now().Add(-time.Hour) }),
			refused("dpop_iat_out_of_window")},
		{"from the future", signed(p.Identity, func(d *asp.Draft) { d.Time = now().Add(time.Hour) }),
			refused("dpop_iat_out_of_window")},
		{"with a member twice", append([]byte(`{"version":"asp/1.0",`), genuine[1:]...), asp.ErrDuplicateKey},
		{"of another version", edit(func(m map[string]any) { m["version"] = "asp/9.0" }), asp.ErrVersion},
		{"cut off", genuine[:len(genuine)-1], asp.ErrMalformed},
		{"repeated", genuine, asp.ErrReplay},
	}
}

// content is the text of the member content of an envelope.
func content(e *asp.Envelope) []byte {
	var m struct{ Content json.RawMessage }
	_ = json.Unmarshal(e.Raw(), &m) // package asp has made it
	return m.Content
}
