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
	"reflect"
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

// What is read can be written, and reads the same again.
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
		if e.CallbackURL == "" { // whose form is checked after authentication
			if err := RequestDocument.Validate(out); err != nil && !errors.Is(err, errNumber) {
				t.Fatal(err)
			}
		}
		d, err := Decode(out)
		if err != nil || d.From != e.From || d.Nonce != e.Nonce || d.Skill != e.Skill || d.TraceID != e.TraceID || d.ReplayKey() != e.ReplayKey() {
			t.Fatalf("%s\n%s\n%v", b, out, err)
		}
	})
}

// What is read member by member is what the library reads.
func FuzzRead(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(s)
	}
	for _, s := range []string{`{"from":null,"to":"\u0061","unknown":[1],"auth":{"scheme":"bearer"},"payload":null,"parentSpanId":"","callbackUrl":"x\n","delegationToken":"t"}`, `{"auth":null,"payload":[]}`, `{"auth":{"token":7}}`, `{"auth":"x"}`,
		`{"from":7}`, `{"from":"a","from":"b"}`, `null`, `[]`, `{}`, `{"a":1}x`, ` {"done" : true, "result": { "a" : 1 }, "chunk":null, "status":"ok", "taskId":"t","code":1,"message":"m","error":{},"progress":0.5,"traceId":"\ud83d\ude00","spanId":2} `} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var want wireEnvelope
		err := jsonx.Decode(b, &want)
		if got := quickWire(b); got != nil && (err != nil || !reflect.DeepEqual(*got, want)) {
			t.Errorf("%q is read as %+v, want %+v, %v", b, got, want, err)
		} else if got == nil && err == nil && bytes.HasPrefix(bytes.TrimSpace(b), []byte("{")) {
			t.Errorf("%q is left to the library", b)
		}
		var reply remoteReply
		err = jsonx.Decode(b, &reply)
		if got, is := readRemote(b); (is != nil) != (err != nil) || err == nil && !reflect.DeepEqual(*got, reply) {
			t.Errorf("%q is read as %+v, %v; want %+v, %v", b, got, is, reply, err)
		}
	})
}

// What is written member by member is what the library writes.
func TestEncodeIsLikeTheLibrary(t *testing.T) {
	auth, token := "bearer", "t\"x"
	full := Envelope{From: "agent://alice.test", To: "agent://böb.test", Skill: "say <it>", Mode: ModeAsync, Nonce: "nonce-\u2028-1", Timestamp: time.Date(2026, 4, 11, 10, 0, 0, 5e6, time.UTC),
		TraceID: "t", SpanID: "s", ParentSpanID: "p", DelegationToken: "d", Auth: &Auth{auth, token}, CallbackURL: "https://a.test/?a&b", Payload: jsonx.Value(" {\"a\" : [1.0, \"\\u00e9\\/\"]} ")}
	few := Envelope{From: "agent://alice.test", To: "agent://bob.test", Mode: ModeSync, Nonce: "12345678", Timestamp: full.Timestamp}
	empty := full
	empty.Auth, empty.Payload = &Auth{}, jsonx.Value("null")
	for _, e := range []Envelope{full, few, empty} {
		mode, stamp := string(e.Mode), FormatTimestamp(e.Timestamp)
		w := wireEnvelope{From: &e.From, To: &e.To, Skill: &e.Skill, Mode: &mode, Nonce: &e.Nonce, Timestamp: &stamp, TraceID: &e.TraceID, SpanID: &e.SpanID, Payload: e.Payload}
		for _, o := range []struct {
			to   **string
			from *string
		}{{&w.ParentSpanID, &e.ParentSpanID}, {&w.DelegationToken, &e.DelegationToken}, {&w.CallbackURL, &e.CallbackURL}} {
			if *o.from != "" {
				*o.to = o.from
			}
		}
		if e.Auth != nil {
			w.Auth = &wireAuth{Token: &e.Auth.Token}
			if e.Auth.Scheme != "" {
				w.Auth.Scheme = &e.Auth.Scheme
			}
		}
		if jsonx.IsNull(w.Payload) {
			w.Payload = jsonx.Value("{}")
		}
		want, err := jsonx.Encode(&w)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := e.Encode(); err != nil || string(got) != string(want) {
			t.Errorf("%s, %v\nwant %s", got, err, want)
		}
	}
	full.TraceID = "\xff"
	if b, err := full.Encode(); err == nil {
		t.Errorf("%s has a text that is none", b)
	}
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

// No schema and no payload brings the process down or takes long, and what is
// handed on is JSON.
func FuzzPayload(f *testing.F) {
	f.Add([]byte(`{"type":"object","properties":{"a":{"$ref":"#"},"n":{"type":"integer","maximum":5}},"additionalProperties":false}`), []byte(`{"a":{"n":1.0},"x":1}`))
	f.Add([]byte(`{"anyOf":[{"type":"object","properties":{"a":{"default":1}}}],"uniqueItems":true}`), []byte(`{}`))
	f.Fuzz(func(t *testing.T, schema, payload []byte) {
		if jsonx.Valid(payload, 0) != nil || payload[0] != '{' {
			return
		}
		_ = ScanPayload(payload)
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

// Whatever is posted, in several states of the server, the answer is one of
// the protocol's.
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
				w.clk.t = e.Timestamp
				if id, err := IdentityFromSeed(e.From, "k", bytes.Repeat([]byte{1}, 32)); err == nil {
					w.srv.Verifier.Keys = StaticKeys{e.From: {id.Key()}}
					w.agent.Card.ID = worldID
					p, _, _ := strings.Cut(path, "?")
					if sig, err := Sign(id, r.Method, p, body, w.clk.t); err == nil {
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
