package uagents

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func FuzzDecode(f *testing.F) {
	me := seeded(f, "me")
	f.Add(encoded(f, signed(f, me, me.Address(), hello())))
	f.Add([]byte(`{"version":"1_0","sender":"","target":"\ud83d\ude80","session":"{aaaaaaaa-bbbb-4ccc-9ddd-eeeeeeeeeeee}","schema_digest":"","expires":1.7e9,"nonce":true,"nonce":null}`))
	f.Add([]byte(`{"expires": NaN}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := Decode(b)
		if err != nil {
			return
		}
		out, err := e.Encode()
		if err != nil {
			t.Fatalf("%q cannot be written: %v", b, err)
		}
		again, err := Decode(out)
		if err != nil {
			t.Fatalf("%q became %q: %v", b, out, err)
		}
		d1, err1 := e.Digest()
		d2, err2 := again.Digest()
		if (err1 == nil) != (err2 == nil) || d1 != d2 {
			t.Fatalf("%q and %q have different digests", b, out)
		}
		if _, err := e.encodeAnswer(); err != nil {
			t.Fatal(err)
		}
		_, _ = (&Verifier{}).Check(e)
	})
}

func FuzzMessages(f *testing.F) {
	for _, s := range []string{
		`{"timestamp":"2026-01-02T03:04:05.5+05:30","msg_id":"11111111-2222-4333-8444-555555555555","content":[{"text":5}]}`,
		`{"timestamp":1e20,"acknowledged_msg_id":"11111111222243338444555555555555","metadata":{"a":1.5}}`,
		`{"content":[{"resource_id":"aaaaaaaa-bbbb-4ccc-9ddd-eeeeeeeeeeee","resource":[{"uri":"u","metadata":{}}]}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := DecodeChatMessage(b); err == nil {
			out := m.Message()
			if out.Err() != nil {
				t.Fatalf("%q cannot be written: %v", b, out.Err())
			}
			again, err := DecodeChatMessage(out.Payload)
			if err != nil || !again.Timestamp.Equal(m.Timestamp.Time) {
				t.Fatalf("%q became %q: %v", b, out.Payload, err)
			}
		}
		if a, err := DecodeChatAcknowledgement(b); err == nil && a.Message().Err() != nil {
			t.Fatalf("%q cannot be written: %v", b, a.Message().Err())
		}
		if c, err := MessageJSON(b); err == nil {
			if again, err := MessageJSON(c); err != nil || !bytes.Equal(again, c) {
				t.Fatalf("%q is not stable", c)
			}
		}
		_ = ModelOf[CommitPayment]().Validate(b)
		if p, err := decodePayloadLenient(string(b)); err == nil {
			if q, err := DecodePayload(EncodePayload(p)); err != nil || !bytes.Equal(p, q) {
				t.Fatalf("payload %q: %v", p, err)
			}
		}
	})
}

func FuzzModel(f *testing.F) {
	b, err := ModelOf[ChatMessage]().Schema()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b, []byte(`{}`))
	f.Add([]byte(`{"$ref":"#/definitions/a","definitions":{"a":{"anyOf":[{"$ref":"#"},{"type":"string","pattern":"("}]}}}`), []byte(`{"a":1}`))
	m, err := PaymentProtocol().Manifest("")
	if err != nil {
		f.Fatal(err)
	}
	if b, err = m.JSON(); err != nil {
		f.Fatal(err)
	}
	f.Add(b, b)
	f.Fuzz(func(t *testing.T, schema, message []byte) {
		if m, err := ParseModel(schema); err == nil {
			_ = m.Validate(message)
			b, err := m.Schema()
			if err != nil {
				t.Fatal(err)
			}
			if again, err := ParseModel(b); err != nil || again.Digest() != m.Digest() {
				t.Fatalf("%q and %q have different digests: %v", schema, b, err)
			}
		}
		if m, err := ParseManifest(schema); err == nil {
			_ = m.Verify()
			b, err := m.JSON()
			if err != nil {
				t.Fatal(err)
			}
			if again, err := ParseManifest(b); err != nil || again.Digest() != m.Digest() {
				t.Fatalf("%q: %v", b, err)
			}
		}
	})
}

func FuzzIdentifiers(f *testing.F) {
	me := seeded(f, "me")
	token, err := me.NewToken(time.Unix(1_800_000_000, 0), time.Hour)
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{"agent://name/" + me.Address(), "user", token, "a://b://c/d/e"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id := ParseIdentifier(s)
		if id.Address != "" && !IsAddress(id.Address) {
			t.Fatalf("%q has address %q", s, id.Address)
		}
		if key, err := ParseAddress(s); err == nil {
			if again, err := AddressOf(key[:]); err != nil || again != s {
				t.Fatalf("%q is a second spelling of %q", s, again)
			}
		}
		_, _ = ParseUser(s)
		_, _ = parseSession(s)
		_, _ = TokenVerifier{}.Verify(s, "")
		_ = VerifyDigest(me.Address(), [32]byte{}, s)
	})
}

func FuzzAttestation(f *testing.F) {
	me := seeded(f, "me")
	f.Add(registration(f, me, time.Unix(1_800_000_000, 0), "http://x/submit"))
	f.Add(statusUpdate(f, me, time.Unix(1_800_000_000, 0), true))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, status := range []bool{false, true} {
			a, err := decodeAttestation(b, status)
			if err != nil {
				continue
			}
			_ = a.VerifySignature()
			text, err := a.SignedText()
			if err != nil {
				t.Fatal(err)
			}
			sent, err := a.Encode()
			if err != nil {
				t.Fatal(err)
			}
			again, err := decodeAttestation(sent, status)
			if err != nil {
				t.Fatalf("%q became %q: %v", b, sent, err)
			}
			if text2, err := again.SignedText(); err != nil || !bytes.Equal(text, text2) {
				t.Fatalf("%q and %q sign different texts", b, sent)
			}
		}
	})
}

// FuzzServer sends requests to a server in several states: idle, full, and
// shut down, and to the registry and the mailbox. It
// answers every request, a refused one in JSON, and goes on serving.
func FuzzServer(f *testing.F) {
	me, you := seeded(f, "me"), seeded(f, "you")
	good := encoded(f, signedAt(f, me, you.Address(), "", hello(), time.Time{}))
	for state := range byte(5) {
		f.Add(state, "POST", "/submit", "application/json", "sync", good)
		f.Add(state, "POST", "/submit", "application/json", "", []byte(`{"sender":"user1"}`))
		f.Add(state, "PUT", "/rest/echo", "", "", []byte(`[`))
		f.Add(state, "POST", "/v1/almanac/agents/batch", "", "", []byte(`{"attestations":[{}]}`))
		f.Add(state, "GET", "/v2/agents/x/mailbox", "", "", []byte{})
	}
	f.Fuzz(func(t *testing.T, state byte, method, path, contentType, connection string, body []byte) {
		agent := echoAgent(you)
		s := &Server{Resolve: Serve(agent), Routes: restRoutes(), Log: quiet(), Wait: time.Millisecond,
			HandlerTime: time.Millisecond}
		var h http.Handler = s
		switch state % 5 {
		case 1:
			s.start()
			s.waiting, s.queued = make(chan struct{}), make(chan struct{}) // no room
		case 2:
			if err := s.Shutdown(t.Context()); err != nil {
				t.Fatal(err)
			}
		case 3:
			h = &AlmanacServer{Store: &MemoryAlmanac{}}
		case 4:
			h = &MailboxServer{Store: &MemoryMailbox{}}
		}
		r, err := http.NewRequest(method, "http://hub/", bytes.NewReader(body))
		if err != nil {
			return
		}
		r.URL.Path, r.RemoteAddr = path, "192.0.2.1:1"
		r.Header.Set("Content-Type", contentType)
		r.Header.Set(headerConnection, connection)
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r)
		if rec.Code >= 400 && rec.Header().Get("Content-Type") == "application/json" {
			if _, err := parse(rec.Body.Bytes()); err != nil {
				t.Fatalf("%d %q", rec.Code, rec.Body)
			}
		}
		if rec.Code >= 500 && rec.Code != 503 && rec.Code != 507 {
			t.Fatalf("%s %s: %d %s", method, path, rec.Code, rec.Body)
		}
		if state%5 == 0 {
			code, answer := submit(s, encoded(t, signedAt(t, me, you.Address(), "", hello(), time.Time{})))
			if code != 200 || answer != "{}" {
				t.Fatalf("afterwards: %d %s", code, answer)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Fatal(err)
		}
	})
}
