package samvad

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley/internal/jsonx"
)

// seeds gives the bodies of the request vectors.
func seeds(f *testing.F) [][]byte {
	b, err := os.ReadFile(filepath.Join(vectorDir(), "requests.json"))
	if err != nil {
		f.Fatal(err)
	}
	var file struct {
		Cases []struct {
			Input struct {
				Requests []struct {
					Body string `json:"body"`
				} `json:"requests"`
			} `json:"input"`
		} `json:"cases"`
	}
	if err := json.Unmarshal(b, &file); err != nil {
		f.Fatal(err)
	}
	var all [][]byte
	for _, c := range file.Cases {
		for _, r := range c.Input.Requests {
			if len(r.Body) < 2000 {
				all = append(all, []byte(r.Body))
			}
		}
	}
	return all
}

// A decoded envelope can be encoded, and decodes the same again.
func FuzzDecode(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(s)
	}
	f.Add([]byte(`{"from":"agent://alice.test","to":"agent://receiver.test","skill":"secure","mode":"sync","nonce":"nonce-000038","timestamp":"2026-04-11T10:00:00.000Z","traceId":"trace-38","spanId":"span-38","payload":{},"auth":{"token":"no scheme"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := Decode(b)
		if err != nil {
			var pe *Error
			if !errors.As(err, &pe) || !errors.Is(err, ErrMalformed) {
				t.Fatalf("error of unknown kind: %v", err)
			}
			return
		}
		if y := e.Timestamp.UTC().Year(); y < 0 || y > 9999 {
			return // next to a zone the year can leave what RFC 3339 writes
		}
		out, err := e.Encode()
		if err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		if e.CallbackURL == "" { // its form is checked after authentication
			if err := RequestDocument.Validate(out); err != nil && !errors.Is(err, errNumber) {
				t.Fatal(err)
			}
		}
		d, err := Decode(out)
		if err != nil || d.From != e.From || d.Nonce != e.Nonce || d.Skill != e.Skill || d.TraceID != e.TraceID ||
			d.ReplayKey() != e.ReplayKey() {
			t.Fatalf("%s\n%s\n%v", b, out, err)
		}
	})
}

// The pieces in which a stream arrives do not matter.
func FuzzStreamParser(f *testing.F) {
	f.Add([]byte("data: {\"chunk\":\"a\",\"done\":false}\n\ndata: {\"done\":true,\"result\":{}}\n\n"), 3)
	f.Add([]byte("\xef\xbb\xbfevent: result\r\ndata: {\"status\":\"ok\",\r\ndata: \"result\":{}}\r\n\r\n"), 1)
	f.Add([]byte(": ping\r\rdata:\n\n"), 2)
	f.Fuzz(func(t *testing.T, b []byte, cut int) {
		read := func(size int) (out string) {
			p := &sseParser{limit: 4096}
			for rest := b; len(rest) > 0; {
				n := min(size, len(rest))
				for ev, err := range p.feed(rest[:n]) {
					if err != nil {
						return out + "error " + string(AsError(err).Code)
					}
					out += string(ev.Chunk) + "|" + ev.State + "|" + string(ev.Result) + "\n"
				}
				rest = rest[n:]
			}
			return out
		}
		if cut = 1 + (cut&0x7fffffff)%64; read(cut) != read(len(b)+1) {
			t.Fatalf("pieces of %d: %q, whole: %q", cut, read(cut), read(len(b)+1))
		}
	})
}

// No schema and no payload stops the process or takes long, and the result is JSON.
func FuzzPayload(f *testing.F) {
	f.Add([]byte(`{"type":"object","properties":{"a":{"$ref":"#"},"n":{"type":"integer","maximum":5}},"additionalProperties":false}`), []byte(`{"a":{"n":1.0},"x":1}`))
	f.Add([]byte(`{"anyOf":[{"type":"object","properties":{"a":{"default":1}}}],"uniqueItems":true}`), []byte(`{}`))
	f.Fuzz(func(t *testing.T, schema, payload []byte) {
		if jsonx.Valid(payload, 0) != nil || payload[0] != '{' {
			return
		}
		_ = scanPayload(payload)
		s, err := CompileInput(schema)
		if err != nil {
			return
		}
		got, err := s.Apply(payload)
		if err == nil && jsonx.Valid(got, 0) != nil {
			t.Fatalf("%s", got)
		}
	})
}

// Every POST, in several states of the server, gets one of the protocol's answers.
func FuzzServer(f *testing.F) {
	for _, s := range seeds(f)[:20] {
		f.Add(uint8(0), "/agent/message", s, "")
	}
	f.Add(uint8(1), "//x/agent/task", []byte(`{"skill":"echo","payload":{"text":"a"}}`), `sig1=();created=1`)
	f.Add(uint8(7), "/agent/stream", []byte(`{}`), `a=("@path" "@path")`)
	f.Add(uint8(2), "/agent/task/x", []byte(nil), "")
	f.Fuzz(func(t *testing.T, state uint8, path string, body []byte, input string) {
		if !strings.HasPrefix(path, "/") || strings.ContainsAny(path, "#\x00 \t\r\n") {
			return
		}
		u, err := http.NewRequest(http.MethodPost, "http://self.test"+path, nil)
		if err != nil {
			return
		}
		w := newWorld(t, func(w *world) {
			if state&1 != 0 {
				w.agent.Skills = map[string]SkillOptions{"echo": {Lightweight: true}}
			}
			if state&4 != 0 {
				w.srv.Verifier.Legacy = true
			}
			w.srv.Webhook = &Webhook{HTTP: &http.Client{Transport: refuseAll{}}, Attempts: 1}
		})
		r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
		r.URL, r.RequestURI = u.URL, path
		if state&2 != 0 {
			r.Method = http.MethodGet
		}
		r.Header.Set("Content-Type", "application/json")
		if input == "" {
			if e, err := Decode(body); err == nil {
				w.clk.set(e.Timestamp)
				if id, err := IdentityFromSeed(e.From, "k", bytes.Repeat([]byte{1}, 32)); err == nil {
					w.srv.Verifier.Keys = StaticKeys{e.From: {id.Key()}}
					w.agent.Card.ID = worldID
					p, _, _ := strings.Cut(path, "?")
					if sig, err := Sign(id, r.Method, p, body, w.clk.now()); err == nil {
						sig.Set(r.Header)
					}
				}
			}
		} else {
			r.Header.Set("Signature-Input", input)
			r.Header.Set("Signature", "sig1=:AAAA:")
			r.Header.Set("Content-Digest", "sha-256=:AAAA:")
		}
		rec := w.serve(r)
		_ = w.srv.Close(context.Background())
		if rec.Code < 200 || rec.Code > 500 || rec.Code/100 == 3 {
			t.Fatalf("status %d", rec.Code)
		}
		if rec.Code >= 400 {
			if err := ResponseDocument.Validate(rec.Body.Bytes()); err != nil {
				t.Fatalf("%d %s: %v", rec.Code, rec.Body, err)
			}
		}
	})
}

func FuzzDelegation(f *testing.F) {
	id := identity(f, "agent://issuer.test", "k", 1)
	tok, err := (&Delegation{Subject: "agent://a.test", Scope: []string{"s"}, MaxDepth: 1}).Issue(id, epoch)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(tok)
	f.Add("a.b.c")
	f.Fuzz(func(t *testing.T, token string) {
		d, err := VerifyDelegation(t.Context(), token, StaticKeys{id.ID(): {id.Key()}}, epoch.Add(time.Second))
		if err == nil && (d.Issuer != id.ID() || d.MaxDepth < 1) {
			t.Fatalf("%q accepted as %+v", token, d)
		}
	})
}
