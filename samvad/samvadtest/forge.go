package samvadtest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"time"

	"github.com/parley-hub/parley/samvad"
)

// A Forgery is a request, and what a verifier must say to it.
type Forgery struct {
	Name    string        // what is wrong with it
	Request *http.Request // for a handler, which reads the body once
	Err     error         // that a [samvad.Verifier] gives, for errors.Is; nil: it accepts
}

// Request gives a signed request of mode sync for a handler: a call of a skill of the
// agent to. The payload is a JSON object.
func (p *Peer) Request(to, skill, payload string) *http.Request {
	p.t.Helper()
	return p.request(p, p.call(to, skill, payload))
}

// Forgeries gives requests to the agent to, in the order in which a verifier must see
// them. The first is genuine. The last repeats it, and in between is one forgery of each
// kind. The verifier must know [Peer.Keys], and nobody else; its time window must be at
// most an hour.
func (p *Peer) Forgeries(to, skill, payload string) []Forgery {
	p.t.Helper()
	call := p.call(to, skill, payload)
	genuine := p.request(p, call)
	mallory := NewPeer(p.t, p.ID())                // claims to be the peer
	stranger := NewPeer(p.t, "agent://guest.test") // is itself, and unknown
	other := p.call("agent://other.test", skill, payload)
	other.URL = call.URL
	at := func(d time.Duration) samvad.Call {
		c := call
		c.Timestamp = p.now().Add(d)
		return c
	}
	list := []Forgery{
		{"genuine", p.repeat(genuine), nil},
		{"signed with another key", p.request(mallory, call), samvad.ErrSignature},
		{"from a sender without a known key", p.request(stranger, call), samvad.ErrUnknownKey},
		{"for another agent", p.request(p, other), samvad.ErrRecipient},
		{"too old", p.request(p, at(-2*time.Hour)), samvad.ErrStale},
		{"from the future", p.request(p, at(2*time.Hour)), samvad.ErrStale},
	}
	add := func(name string, err error, change func(r *http.Request, body []byte) []byte) {
		r := p.request(p, call)
		setBody(r, change(r, p.body(r)))
		list = append(list, Forgery{name, r, err})
	}
	add("without a signature", samvad.ErrUnsigned, func(r *http.Request, body []byte) []byte {
		for _, h := range []string{"Content-Digest", "Signature-Input", "Signature"} {
			r.Header.Del(h)
		}
		return body
	})
	add("with another body", samvad.ErrDigest, func(_ *http.Request, body []byte) []byte {
		return append(body, '\n')
	})
	add("with another body and its digest", samvad.ErrSignature, func(r *http.Request, body []byte) []byte {
		body = append(body, '\n')
		r.Header.Set("Content-Digest", p.sign(r.URL.EscapedPath(), body).ContentDigest)
		return body
	})
	add("signed for another path", samvad.ErrSignature, func(r *http.Request, body []byte) []byte {
		p.sign("/agent/task", body).Set(r.Header)
		return body
	})
	add("with a member twice", samvad.ErrMalformed, func(r *http.Request, body []byte) []byte {
		body = append([]byte(`{"from":"agent://other.test",`), body[1:]...)
		p.sign(r.URL.EscapedPath(), body).Set(r.Header)
		return body
	})
	add("as text", samvad.ErrMediaType, func(r *http.Request, body []byte) []byte {
		r.Header.Set("Content-Type", "text/plain")
		return body
	})
	return append(list, Forgery{"repeated", p.repeat(genuine), samvad.ErrReplay})
}

func (p *Peer) now() time.Time {
	if p.Now != nil {
		return p.Now()
	}
	return time.Now()
}

func (p *Peer) call(to, skill, payload string) samvad.Call {
	p.t.Helper()
	origin, err := samvad.AgentOrigin(to)
	if err != nil {
		p.t.Fatal(err)
	}
	return samvad.Call{URL: origin, To: to, Skill: skill, Payload: json.RawMessage(payload)}
}

func (p *Peer) request(as samvad.Signer, call samvad.Call) *http.Request {
	p.t.Helper()
	r, _, err := (&samvad.Client{Identity: as, Now: p.Now}).Request(context.Background(), call, samvad.ModeSync)
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

func (p *Peer) sign(path string, body []byte) *samvad.Signature {
	p.t.Helper()
	s, err := samvad.Sign(p, http.MethodPost, path, body, p.now())
	if err != nil {
		p.t.Fatal(err)
	}
	return s
}

func (p *Peer) body(r *http.Request) []byte {
	p.t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return b
}

func setBody(r *http.Request, body []byte) {
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
}

// repeat gives the same request again.
func (p *Peer) repeat(r *http.Request) *http.Request {
	p.t.Helper()
	again := r.Clone(r.Context())
	var err error
	if again.Body, err = r.GetBody(); err != nil {
		p.t.Fatal(err)
	}
	return again
}
