package aghtest

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"time"

	"github.com/parley-hub/parley/agh"
)

// A Forgery is an envelope, and what a verifier must say to it.
type Forgery struct {
	Name     string // what is wrong with it
	Envelope []byte // JSON text
	Err      error  // that [Peer.Verifier] gives, for errors.Is; nil: it accepts
}

// Verifier gives a verifier that accepts the peer, which must be a verified one, and
// nobody else.
func (p *Peer) Verifier() *agh.Verifier {
	nickname, _, _ := agh.SplitHandle(p.ID())
	return &agh.Verifier{Trust: true, RequireVerified: true, RequirePin: true, Memory: &agh.ReplayMemory{Now: p.now},
		Keys: agh.StaticKeys{nickname: {p.Identity.Public()}}, Now: p.now}
}

// Envelope gives a signed envelope of a verified peer, that says a text in a new thread.
func (p *Peer) Envelope(text string) []byte {
	p.t.Helper()
	return p.sign(p.Identity, p.say(text))
}

// Forgeries gives envelopes that say a text, in the order in which a verifier must see
// them. The first is genuine. The last repeats it, and in between is one forgery of each
// kind. The peer must be a verified one.
func (p *Peer) Forgeries(text string) []Forgery {
	p.t.Helper()
	genuine := p.Envelope(text)
	nickname, _, _ := agh.SplitHandle(p.ID())
	impostor, guest := identity(p.t, nickname, "an impostor's"), identity(p.t, "guest", "guest")
	at := func(d time.Duration) *agh.Envelope {
		e := p.say(text)
		e.TS = p.now().Add(d).Unix()
		return e
	}
	edit := func(envelope []byte, f func(members, proof map[string]any)) []byte {
		var members map[string]any
		d := json.NewDecoder(bytes.NewReader(envelope))
		d.UseNumber()
		if err := d.Decode(&members); err != nil {
			p.t.Fatal(err)
		}
		proof, _ := members["proof"].(map[string]any)
		f(members, proof)
		b, err := json.Marshal(members)
		if err != nil {
			p.t.Fatal(err)
		}
		return b
	}
	return []Forgery{
		{"genuine", genuine, nil},
		{"of the same nickname with another key", p.sign(impostor, p.say(text)), agh.ErrUnknownKey},
		{"of a sender without a known key", p.sign(guest, p.say(text)), agh.ErrUnknownKey},
		{"with the handle of another key", edit(p.sign(impostor, p.say(text)), func(m, _ map[string]any) {
			m["from"] = p.ID()
		}), agh.ErrSignature},
		{"with another body", edit(genuine, func(m, _ map[string]any) { m["body"] = map[string]any{"text": "forged"} }),
			agh.ErrSignature},
		{"with another id", edit(genuine, func(m, _ map[string]any) { m["id"] = agh.NewID() }), agh.ErrSignature},
		{"with another thread", edit(genuine, func(m, _ map[string]any) { m["thread_id"] = "thread_other" }),
			agh.ErrSignature},
		{"without a proof", edit(genuine, func(m, _ map[string]any) { m["proof"] = nil }), agh.ErrSignature},
		{"with a proof of another profile", edit(genuine, func(_, proof map[string]any) { proof["profile"] = "other/v1" }),
			agh.ErrSignature},
		{"with a weak key", edit(genuine, func(_, proof map[string]any) {
			key := make(ed25519.PublicKey, ed25519.PublicKeySize) // of small order
			proof["pubkey"], proof["key_id"] = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", agh.KeyID(key)
		}), agh.ErrSignature},
		{"of a plain peer", edit(genuine, func(m, _ map[string]any) { m["from"], m["proof"] = nickname, nil }),
			agh.ErrSignature},
		{"too old", p.sign(p.Identity, at(-time.Hour)), agh.ErrStale},
		{"from the future", p.sign(p.Identity, at(time.Hour)), agh.ErrStale},
		{"with a member twice", append([]byte(`{"channel":"builders",`), genuine[1:]...), agh.ErrMalformed},
		{"with an unknown member", edit(genuine, func(m, _ map[string]any) { m["admin"] = true }), agh.ErrMalformed},
		{"cut off", genuine[:len(genuine)-1], agh.ErrMalformed},
		{"repeated", genuine, agh.ErrReplay},
	}
}

func (p *Peer) now() time.Time {
	if p.Router != nil && p.Router.Verifier.Now != nil {
		return p.Router.Verifier.Now()
	}
	return time.Now()
}

func (p *Peer) say(text string) *agh.Envelope {
	p.t.Helper()
	e := &agh.Envelope{ID: agh.NewID(), WorkspaceID: p.WorkspaceID, Channel: p.Channel, Surface: agh.SurfaceThread,
		ThreadID: agh.NewThreadID(), TS: p.now().Unix()}
	if err := e.SetContent(&agh.Say{Text: text}); err != nil {
		p.t.Fatal(err)
	}
	return e
}

func (p *Peer) sign(as *agh.Identity, e *agh.Envelope) []byte {
	p.t.Helper()
	b, err := as.Sign(e)
	if err != nil {
		p.t.Fatal(err)
	}
	return b
}
