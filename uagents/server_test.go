package uagents

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley/internal/bech32"
	"github.com/parley-hub/parley/internal/memhttp"
	"github.com/parley-hub/parley/internal/sleep"
)

func TestSignature(t *testing.T) {
	me, you := seeded(t, "me"), seeded(t, "you")
	e := signed(t, me, you.Address(), hello())
	n, _ := new(big.Int).SetString("fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141", 16)
	negated := func(sig string) string {
		_, b, err := bech32.DecodeNoLimit(sig)
		if err != nil {
			t.Fatal(err)
		}
		s := new(big.Int).Sub(n, new(big.Int).SetBytes(b[32:]))
		s.FillBytes(b[32:])
		out, err := bech32.Encode("sig", b)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	t.Run("UAG-031 deterministic and low-S", func(t *testing.T) {
		again := *e
		if err := again.Sign(me); err != nil || *again.Signature != *e.Signature {
			t.Fatalf("two signatures of one envelope: %v", err)
		}
		_, b, err := bech32.DecodeNoLimit(*e.Signature)
		if err != nil || len(*e.Signature) != 113 {
			t.Fatal(err)
		}
		if s := new(big.Int).SetBytes(b[32:]); s.Lsh(s, 1).Cmp(n) > 0 {
			t.Error("the signature is high-S")
		}
	})
	t.Run("UAG-027 high-S is accepted", func(t *testing.T) {
		high := *e
		sig := negated(*e.Signature)
		high.Signature = &sig
		if err := high.VerifySignature(); err != nil {
			t.Error(err)
		}
	})
	t.Run("UAG-032 the other valid signature (n-s) is a duplicate", func(t *testing.T) {
		agent, seen := counting(you)
		s := &Server{Resolve: Serve(agent)}
		turned := *e
		sig := negated(*e.Signature)
		turned.Signature = &sig
		for _, one := range []*Envelope{e, &turned} {
			if code, body := submit(s, encoded(t, one)); code != 200 || body != "{}" {
				t.Fatalf("%d %s", code, body)
			}
		}
		if err := s.Shutdown(t.Context()); err != nil || len(seen.got) != 1 {
			t.Errorf("processed %d times, %v", len(seen.got), err)
		}
	})
	t.Run("UAG-030 the digest is not hashed again", func(t *testing.T) {
		d, _ := e.Digest()
		sig, err := me.Sign(d[:])
		if err != nil {
			t.Fatal(err)
		}
		twice := *e
		twice.Signature = &sig
		if err := twice.VerifySignature(); !errors.Is(err, ErrSignature) {
			t.Errorf("err = %v", err)
		}
	})
	t.Run("UAG-003 seeds are not trimmed", func(t *testing.T) {
		if seeded(t, "x").Address() == seeded(t, "x ").Address() ||
			seeded(t, "é").Address() == seeded(t, "e\u0301").Address() {
			t.Error("two seeds have one key")
		}
	})
	t.Run("signing for another", func(t *testing.T) {
		if err := (&Envelope{Sender: you.Address()}).Sign(me); !errors.Is(err, ErrAddress) {
			t.Errorf("err = %v", err)
		}
		if s := fmt.Sprintf("%v %+v %#v", me, me, me); strings.Contains(s, hex.EncodeToString(me.PrivateKey())) ||
			strings.Contains(s, "key") {
			t.Errorf("an identity prints its key: %s", s)
		}
	})
}

func TestVerifierPolicy(t *testing.T) {
	me, you := seeded(t, "me"), seeded(t, "you")
	now := time.Unix(1_800_000_000, 0)
	clock := func() time.Time { return now }
	zero := &Verifier{Now: clock}
	at := func(d time.Duration) *Envelope { return signedAt(t, me, you.Address(), "", hello(), now.Add(d)) }
	check := func(t *testing.T, v *Verifier, e *Envelope, want error) {
		t.Helper()
		_, err := v.Check(e)
		if want == nil && err != nil || want != nil && !errors.Is(err, want) {
			t.Errorf("err = %v, want %v", err, want)
		}
	}
	t.Run("UAG-035 expires plus skew is the last moment", func(t *testing.T) {
		check(t, zero, at(0), nil)
		check(t, zero, at(-5*time.Second), nil)
		check(t, zero, at(-6*time.Second), ErrStale)
		check(t, &Verifier{Now: clock, Limits: Limits{Skew: -1}}, at(-time.Second), ErrStale)
		check(t, &Verifier{Now: clock, AllowExpired: true}, at(-time.Hour), nil)
	})
	t.Run("UAG-034 horizon", func(t *testing.T) {
		check(t, zero, at(24*time.Hour), nil)
		check(t, zero, at(24*time.Hour+time.Second), ErrHorizon)
	})
	t.Run("UAG-025 zero counts", func(t *testing.T) {
		e := at(time.Minute)
		e.Expires = "0"
		resign(t, me, e)
		check(t, zero, e, ErrStale)
	})
	t.Run("hole 3a: a nonce alone", func(t *testing.T) {
		e := at(time.Minute)
		e.Nonce, e.Expires = e.Expires, ""
		if err := e.VerifySignature(); err != nil {
			t.Fatalf("the digest tells them apart: %v", err)
		}
		check(t, zero, e, ErrAmbiguous)
		check(t, &Verifier{Now: clock, AllowNonce: true}, e, nil)
		both := at(time.Minute)
		both.Nonce = "7"
		resign(t, me, both)
		check(t, zero, both, nil)
	})
	t.Run("hole 3b, UAG-033: characters move from payload to schema digest", func(t *testing.T) {
		e := at(time.Minute)
		p := *e.Payload
		e.SchemaDigest += p[:4]
		p = p[4:]
		e.Payload = &p
		if err := e.VerifySignature(); err != nil {
			t.Fatal(err)
		}
		check(t, zero, e, ErrSchemaDigest)
	})
	t.Run("hole 3c: payload characters become an expiry", func(t *testing.T) {
		e, err := NewEnvelope(me.Address(), you.Address(), "", hello(), time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		resign(t, me, e)
		p := *e.Payload
		var n uint64
		for _, c := range []byte(p[len(p)-8:]) {
			n = n<<8 | uint64(c)
		}
		p = p[:len(p)-8]
		e.Payload, e.Expires = &p, Uint(n)
		if err := e.VerifySignature(); err != nil {
			t.Fatal(err)
		}
		check(t, zero, e, ErrHorizon)
	})
	t.Run("hole 3d: null and empty payload are one, and never pass", func(t *testing.T) {
		agent, _ := counting(you)
		s := &Server{Resolve: Serve(agent), Now: clock}
		for _, p := range []*string{nil, new(string)} {
			e := at(time.Minute)
			e.Payload = p
			resign(t, me, e)
			code, body := submit(s, encoded(t, e))
			wantError(t, code, body, ErrContent)
		}
	})
	t.Run("duplicate names", func(t *testing.T) {
		b := encoded(t, at(time.Minute))
		b = append([]byte(`{"target":"x",`), b[1:]...)
		if _, err := zero.Verify(t.Context(), b); !errors.Is(err, ErrAmbiguous) {
			t.Errorf("err = %v", err)
		}
		if _, err := (&Verifier{Now: clock, AllowDuplicates: true}).Verify(t.Context(), b); err != nil {
			t.Error(err)
		}
	})
	t.Run("UAG-010 unsigned senders", func(t *testing.T) {
		user, err := NewUser()
		if err != nil {
			t.Fatal(err)
		}
		open := &Verifier{Now: clock, AllowUnsigned: true}
		for sender, want := range map[string]error{
			user: nil, strings.ToUpper(user): ErrUnsigned, "user": ErrUserAddress, "user-anything": ErrUserAddress,
			user[:len(user)-1] + map[bool]string{true: "p", false: "q"}[strings.HasSuffix(user, "q")]: ErrUserAddress,
			me.Address(): ErrUnsigned,
		} {
			e := at(time.Minute)
			e.Sender, e.Signature = sender, nil
			v, err := open.Check(e)
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", sender, err, want)
			}
			if err == nil && (v.Verdict.Assurance != Unsigned || v.Verdict.Key != "") {
				t.Errorf("%s: %+v", sender, v.Verdict)
			}
		}
		e := at(time.Minute)
		e.Sender, e.Signature = user, nil
		check(t, zero, e, ErrUnsigned)
	})
	t.Run("payload, size and self", func(t *testing.T) {
		e := at(time.Minute)
		p := "e30=\n"
		e.Payload = &p
		resign(t, me, e)
		check(t, zero, e, ErrPayload)
		check(t, &Verifier{Now: clock, LenientPayload: true}, e, nil)
		small := &Verifier{Now: clock, Limits: Limits{Body: 10}}
		if _, err := small.Verify(t.Context(), encoded(t, e)); !errors.Is(err, ErrTooLarge) {
			t.Errorf("err = %v", err)
		}
		other := &Verifier{Now: clock, Self: me.Address()}
		if _, err := other.Verify(t.Context(), encoded(t, at(time.Minute))); !errors.Is(err, ErrUnknownAgent) {
			t.Errorf("err = %v", err)
		}
	})
	t.Run("UAG-036 second use", func(t *testing.T) {
		b := encoded(t, at(time.Minute))
		v, err := zero.Verify(t.Context(), b)
		if err != nil || v.Verdict.Assurance != Signed || v.Verdict.Key != me.Address() ||
			string(v.Content.Payload) != `{"message": "hello"}` {
			t.Fatalf("%+v, %v", v, err)
		}
		if v, err = zero.Verify(t.Context(), b); !errors.Is(err, ErrReplay) || v == nil {
			t.Errorf("err = %v", err)
		}
	})
}

func TestServerAnswers(t *testing.T) {
	me, you := seeded(t, "me"), seeded(t, "you")
	t.Run("UAG-047 probes", func(t *testing.T) {
		s := &Server{Resolve: Serve(echoAgent(you)), Log: quiet()}
		status := func(headers ...string) (string, string) {
			rec := request(s, "HEAD", "/submit", nil, headers...)
			if rec.Code != 200 || rec.Body.Len() != 0 {
				t.Errorf("%d %s", rec.Code, rec.Body)
			}
			return rec.Header().Get(headerStatus), rec.Header().Get(headerHint)
		}
		if st, hint := status(headerAddress, you.Address()); st != "ready" || hint != "5" {
			t.Errorf("%s %s", st, hint)
		}
		if st, _ := status(); st != "indeterminate" {
			t.Error(st)
		}
		if st, _ := status(headerAddress, me.Address()); st != "not-ready" {
			t.Error(st)
		}
		if err := s.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
		if st, _ := status(headerAddress, you.Address()); st != "not-ready" {
			t.Error(st)
		}
		code, body := submit(s, encoded(t, signed(t, me, you.Address(), hello())))
		wantError(t, code, body, ErrBusy)
	})
	t.Run("UAG-048 preflight", func(t *testing.T) {
		rec := request(&Server{}, "OPTIONS", "/any", nil)
		if rec.Code != 204 || rec.Header().Get("Access-Control-Allow-Origin") != "*" || rec.Body.Len() != 0 {
			t.Errorf("%d %v", rec.Code, rec.Header())
		}
	})
	t.Run("UAG-046 paths", func(t *testing.T) {
		for _, path := range []string{"/submit/", "/", "/Submit", "//submit"} {
			rec := submitTo(&Server{}, path, []byte("{}"))
			wantError(t, rec.Code, rec.Body.String(), ErrNotFound)
		}
	})
	t.Run("UAG-038 UAG-039 UAG-040 UAG-041 UAG-042 content type and body; hole 9", func(t *testing.T) {
		s := &Server{}
		for _, c := range []struct {
			method, contentType, body string
			want                      *Error
		}{
			{"POST", "application/json; charset=utf-8", "{}", ErrShape},
			{"POST", "text/plain", "{}", ErrContentType},
			{"POST", "", "{}", ErrNoContentType},
			{"POST", "application/json", "", ErrMalformed},
			{"POST", "application/json", "{", ErrMalformed},
			{"POST", "application/json", "\ufeff{}", ErrMalformed},
			{"POST", "application/json", "\"\xff\"", ErrMalformed},
			{"POST", "application/json", "[]", ErrShape},
			{"POST", "application/json", "null", ErrShape},
			{"POST", "application/json", `{"expires": NaN}`, ErrShape},
			{"PUT", "application/json", "{}", ErrMethod},
			{"DELETE", "application/json", "{}", ErrMethod},
			{"GET", "application/json", "", ErrMethod},
		} {
			headers := []string{"User-Agent", "test"}
			if c.contentType != "" {
				headers = append(headers, "Content-Type", c.contentType)
			}
			rec := request(s, c.method, "/submit", []byte(c.body), headers...)
			wantError(t, rec.Code, rec.Body.String(), c.want)
		}
	})
	t.Run("UAG-049 deep or large", func(t *testing.T) {
		s := &Server{}
		for _, open := range []string{"[", `{"a":`} {
			code, body := submit(s, []byte(strings.Repeat(open, 100_000)))
			wantError(t, code, body, ErrMalformed)
		}
		large := bytes.Repeat([]byte(" "), EnvelopeSize(1<<20)+1)
		code, body := submit(s, large)
		wantError(t, code, body, ErrTooLarge)
		r := httptest.NewRequest("POST", "/submit", struct{ *bytes.Reader }{bytes.NewReader(large)})
		r.ContentLength = -1
		r.Header.Set("Content-Type", "application/json")
		rec := httptest.NewRecorder()
		s.ServeHTTP(rec, r)
		wantError(t, rec.Code, rec.Body.String(), ErrTooLarge)
	})
	t.Run("UAG-045 signature before target", func(t *testing.T) {
		s := &Server{Resolve: Serve(echoAgent(you)), Log: quiet()}
		e := signed(t, me, me.Address(), hello())
		code, body := submit(s, encoded(t, e))
		wantError(t, code, body, ErrUnknownAgent)
		e.Session = NewSession()
		code, body = submit(s, encoded(t, e))
		wantError(t, code, body, ErrSignature)
	})
	t.Run("UAG-018 UAG-026 numbers", func(t *testing.T) {
		s := &Server{Resolve: Serve(echoAgent(you)), Log: quiet()}
		for _, n := range []Int{"-1", "18446744073709551616"} {
			e := signed(t, me, you.Address(), hello())
			e.Nonce = n
			code, body := submit(s, encoded(t, e))
			wantError(t, code, body, ErrRange)
		}
		b := bytes.Replace(encoded(t, signed(t, me, you.Address(), hello())), []byte(`"nonce":null`),
			[]byte(`"nonce":{}`), 1)
		code, body := submit(s, b)
		wantError(t, code, body, ErrShape)
	})
	t.Run("hole 6: sync answers are signed when the key is here", func(t *testing.T) {
		agent := echoAgent(you)
		agent.Identity = you
		code, body := submit(&Server{Resolve: Serve(agent)}, encoded(t, signed(t, me, you.Address(), hello())),
			syncHeader, "sync")
		wantAnswer(t, code, body, `{"text": "echo: hello"}`)
		e, err := Decode([]byte(body))
		if err != nil || e.VerifySignature() != nil {
			t.Errorf("signature: %v", err)
		}
	})
	t.Run("UAG-053 other header values are async", func(t *testing.T) {
		s := &Server{Resolve: Serve(echoAgent(you)), Log: quiet()}
		for _, v := range []string{"SYNC", "async", ""} {
			if code, body := submit(s, encoded(t, signed(t, me, you.Address(), hello())), syncHeader, v); code != 200 ||
				body != "{}" {
				t.Errorf("%q: %d %s", v, code, body)
			}
		}
		_ = s.Shutdown(t.Context())
	})
	t.Run("UAG-056 unsigned to a signed-only handler", func(t *testing.T) {
		user, err := NewUser()
		if err != nil {
			t.Fatal(err)
		}
		s := &Server{Resolve: Serve(echoAgent(you)), Log: quiet()}
		e := signed(t, me, you.Address(), hello())
		e.Sender, e.Signature = user, nil
		code, body := submit(s, encoded(t, e), syncHeader, "sync")
		wantAnswer(t, code, body, `{"error": "Message must be sent from verified agent address"}`)
		code, body = submit(s, encoded(t, e))
		wantError(t, code, body, ErrVerifiedOnly)
	})
	t.Run("a handler's panic and error", func(t *testing.T) {
		agent := &Agent{Address: you.Address(), Handler: func(_ context.Context, r *Request) (Response, error) {
			if r.Sync {
				panic("secret")
			}
			return Response{}, errors.New("secret")
		}}
		s := &Server{Resolve: Serve(agent), Log: quiet()}
		code, body := submit(s, encoded(t, signed(t, me, you.Address(), hello())), syncHeader, "sync")
		wantAnswer(t, code, body, `{"error": "Message could not be processed"}`)
		if code, body := submit(s, encoded(t, signed(t, me, you.Address(), hello()))); code != 200 || body != "{}" {
			t.Errorf("%d %s", code, body)
		}
		_ = s.Shutdown(t.Context())
	})
}

// Hole 1, UAG-066: a message that would stop a reference agent is refused.
func TestServerRefusesPoison(t *testing.T) {
	me, you := seeded(t, "me"), seeded(t, "you")
	agent := echoAgent(you)
	agent.Handler = func(context.Context, *Request) (Response, error) {
		t.Error("poison reached the handler")
		return Response{}, nil
	}
	s := &Server{Resolve: Serve(agent)}
	digest := ModelOf[echoMessage]().Digest()
	chat := func(extra string) string {
		return `{"timestamp":"2026-01-02T03:04:05Z","msg_id":"` + NewSession() + `","content":[` + extra + `}`
	}
	for name, m := range map[string]Message{
		"wrong type":        {Schema: digest, Payload: []byte(`{"message": {}}`)},
		"missing field":     {Schema: digest, Payload: []byte(`{}`)},
		"null field":        {Schema: digest, Payload: []byte(`{"message": null}`)},
		"not an object":     {Schema: digest, Payload: []byte(`[]`)},
		"not JSON":          {Schema: digest, Payload: []byte(`{`)},
		"chat, unknown key": {Schema: ChatMessageDigest, Payload: []byte(chat(`],"x":1`))},
		"item, unknown key": {Schema: ChatMessageDigest, Payload: []byte(chat(`{"type":"text","text":"x","zz":1}]`))},
		"chat, no time": {Schema: ChatMessageDigest, Payload: []byte(`{"msg_id":"` + NewSession() +
			`","content":[]}`)},
		"ack, unknown key": {Schema: ChatAcknowledgementDigest,
			Payload: []byte(`{"timestamp":1,"acknowledged_msg_id":"` + NewSession() + `","a":1}`)},
		"empty, unknown": {Schema: "model:" + strings.Repeat("0", 64), Payload: nil},
		"payment, no funds": {Schema: ModelOf[RequestPayment]().Digest(),
			Payload: []byte(`{"recipient":"x","deadline_seconds":5}`)},
		"subscription": {Schema: ModelOf[AcceptAgentSubscriptionUpdate]().Digest(),
			Payload: []byte(`{"update_id":null}`)},
	} {
		t.Run(name, func(t *testing.T) {
			code, body := submit(s, encoded(t, signed(t, me, you.Address(), m)))
			wantError(t, code, body, ErrContent)
			code, body = submit(s, encoded(t, signed(t, me, you.Address(), m)), syncHeader, "sync")
			if text, bad := answerOf(t, body).IsError(); code != 200 || !bad ||
				!strings.HasPrefix(text, ErrContent.Text) {
				t.Errorf("sync: %d %s", code, body)
			}
		})
	}
}

// An ErrorMessage is refused too, but not answered with another.
func TestServerRefusesPoisonousErrors(t *testing.T) {
	me, you := seeded(t, "me"), seeded(t, "you")
	agent, seen := counting(you)
	s := &Server{Resolve: Serve(agent)}
	for payload, good := range map[string]bool{`{"error":"x"}`: true, `{"error":"x","more":1}`: true,
		`{"error":5}`: true, `{"error":{}}`: false, `{"error":null}`: false, `{}`: false, `"x"`: false, `{`: false} {
		for _, mode := range []string{"sync", "async"} {
			code, body := submit(s, encoded(t, signed(t, me, you.Address(),
				Message{Schema: ErrorMessageDigest, Payload: []byte(payload)})), syncHeader, mode)
			if good {
				if code != 200 || body != "{}" {
					t.Errorf("%s, %s: %d %s", payload, mode, code, body)
				}
			} else {
				wantError(t, code, body, ErrContent)
			}
		}
	}
	if err := s.Shutdown(t.Context()); err != nil || len(seen.got) != 6 {
		t.Errorf("handled %d, %v", len(seen.got), err)
	}
}

// Hole 2, UAG-036, UAG-037.
func TestServerReplay(t *testing.T) {
	me, you := seeded(t, "me"), seeded(t, "you")
	agent, seen := counting(you)
	s := &Server{Resolve: Serve(agent)}
	b := encoded(t, signed(t, me, you.Address(), hello()))
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if code, body := submit(s, b); code != 200 || body != "{}" {
				t.Errorf("%d %s", code, body)
			}
		})
	}
	wg.Wait()
	// The same envelope spelt differently, and with other unsigned fields.
	e, err := Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	e.Version, e.Session = "2", strings.ToUpper(e.Session)
	p := "proto:" + strings.Repeat("0", 64)
	e.ProtocolDigest = &p
	if code, body := submit(s, encoded(t, e)); code != 200 || body != "{}" {
		t.Errorf("%d %s", code, body)
	}
	code, body := submit(s, b, syncHeader, "sync")
	wantAnswer(t, code, body, `{"error": "Envelope has already been processed"}`)
	if err := s.Shutdown(t.Context()); err != nil || len(seen.got) != 1 {
		t.Errorf("processed %d times, %v", len(seen.got), err)
	}
}

func TestServerRecord(t *testing.T) {
	me, you := seeded(t, "me"), seeded(t, "you")
	agent, seen := counting(you)
	type entry struct {
		refusal *Error
		agent   bool
	}
	var log []entry
	var prior, handled bool
	var fail error
	var refused []*Refusal
	s := &Server{
		Log: quiet(),
		Accept: accepting(agent, func(r *Request) (bool, error) {
			log = append(log, entry{r.Refusal, r.Agent != nil})
			if handled {
				r.Handler = nil
			}
			return prior, fail
		}),
		Refused: func(_ context.Context, r *Refusal) string {
			refused = append(refused, r)
			return fmt.Sprintf("ref-%d", len(refused))
		},
	}
	post := func(e *Envelope) *httptest.ResponseRecorder { return submitTo(s, "/submit", encoded(t, e)) }

	if rec := post(signed(t, me, you.Address(), hello())); rec.Code != 200 || len(log) != 1 || log[0].refusal != nil ||
		!log[0].agent {
		t.Fatalf("%d %+v", rec.Code, log)
	}
	// Without a Handler from Accept, an async message is not handled.
	handled = true
	if rec := post(signed(t, me, you.Address(), hello())); rec.Code != 200 || rec.Body.String() != "{}" ||
		len(log) != 2 {
		t.Fatalf("%d %s %+v", rec.Code, rec.Body, log)
	}
	s.running.Wait()
	if n := len(seen.got); n != 1 {
		t.Errorf("%d were handled, want the first alone", n)
	}
	handled, log = false, log[:1]
	// An authenticated refusal is recorded, with its reason.
	rec := post(signed(t, me, me.Address(), hello()))
	wantError(t, rec.Code, rec.Body.String(), ErrUnknownAgent)
	if len(log) != 2 || !errors.Is(log[1].refusal, ErrUnknownAgent) || rec.Header().Get(RefHeader) != "ref-1" {
		t.Fatalf("%+v %v", log, rec.Header())
	}
	stale := signedAt(t, me, you.Address(), "", hello(), time.Now().Add(-time.Hour))
	rec = post(stale)
	wantError(t, rec.Code, rec.Body.String(), ErrStale)
	if len(log) != 3 || !errors.Is(log[2].refusal, ErrStale) {
		t.Fatalf("%+v", log)
	}
	// A forgery is not.
	forged := signed(t, me, you.Address(), hello())
	forged.Session = NewSession()
	rec = post(forged)
	wantError(t, rec.Code, rec.Body.String(), ErrSignature)
	if len(log) != 3 || len(refused) != 3 || refused[2].Envelope.Sender != me.Address() || refused[2].Verified != nil ||
		refused[2].Size == 0 {
		t.Fatalf("%+v %+v", log, refused)
	}
	// An envelope that cannot be recorded is not accepted.
	fail = errors.New("disk on fire")
	rec = post(signed(t, me, you.Address(), hello()))
	if rec.Code != 500 || strings.Contains(rec.Body.String(), "fire") {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	fail = ErrBusy
	rec = post(signed(t, me, you.Address(), hello()))
	wantError(t, rec.Code, rec.Body.String(), ErrBusy)
	fail, prior = nil, true
	if rec = post(signed(t, me, you.Address(), hello())); rec.Code != 200 || rec.Body.String() != "{}" {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	if err := s.Shutdown(t.Context()); err != nil || len(seen.got) != 1 {
		t.Errorf("handled %d, %v", len(seen.got), err)
	}
}

// By default a refused envelope is not remembered.
func TestServerRefusedThenTaken(t *testing.T) {
	me, you := seeded(t, "me"), seeded(t, "you")
	agent, seen := counting(you)
	there := false
	s := &Server{Resolve: func(context.Context, string) (*Agent, error) {
		if there {
			return agent, nil
		}
		return nil, nil
	}}
	b := encoded(t, signed(t, me, you.Address(), hello()))
	code, body := submit(s, b)
	wantError(t, code, body, ErrUnknownAgent)
	there = true
	if code, body := submit(s, b); code != 200 || body != "{}" {
		t.Errorf("%d %s", code, body)
	}
	if err := s.Shutdown(t.Context()); err != nil || len(seen.got) != 1 {
		t.Errorf("handled %d, %v", len(seen.got), err)
	}
}

// UAG-051, UAG-052, UAG-054, UAG-055; holes 5 and 8.
func TestServerSync(t *testing.T) {
	me, you := seeded(t, "me"), seeded(t, "you")
	silent := ModelOf[echoSilent]().Message(echoSilent{1})
	t.Run("UAG-052 time runs out at the expiry", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &Server{Resolve: Serve(echoAgent(you)), Log: quiet()}
			for _, c := range []struct{ expires, want time.Duration }{
				{7 * time.Second, 7 * time.Second}, {time.Hour, 30 * time.Second}, {0, 30 * time.Second},
			} {
				var at time.Time
				if c.expires > 0 {
					at = time.Now().Add(c.expires)
				}
				began := time.Now()
				code, body := submit(s, encoded(t, signedAt(t, me, you.Address(), "", silent, at)), syncHeader, "sync")
				wantAnswer(t, code, body, `{"error": "Query envelope expired"}`)
				if took := time.Since(began); took != c.want {
					t.Errorf("took %v, want %v", took, c.want)
				}
			}
			code, body := submit(s, encoded(t, signedAt(t, me, you.Address(), "", hello(), time.Now().Add(-time.Hour))),
				syncHeader, "sync")
			wantAnswer(t, code, body, `{"error": "Query envelope expired"}`)
			synctest.Wait()
		})
	})
	t.Run("UAG-054 each caller its own answer", func(t *testing.T) {
		s := &Server{Resolve: Serve(echoAgent(you)), Log: quiet()}
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				m := ModelOf[echoMessage]().Message(echoMessage{fmt.Sprint(i)})
				e := signed(t, me, you.Address(), m)
				code, body := submit(s, encoded(t, e), syncHeader, "sync")
				if code != 200 || !strings.Contains(body, e.Session) {
					t.Errorf("%d %s", code, body)
					return
				}
				if got := string(answerOf(t, body).Payload); got != fmt.Sprintf(`{"text": "echo: %d"}`, i) {
					t.Errorf("%d got %s", i, got)
				}
			})
		}
		wg.Wait()
	})
	t.Run("UAG-055 a forged request leaves nothing behind", func(t *testing.T) {
		s := &Server{Resolve: Serve(echoAgent(you)), Log: quiet()}
		forged := signed(t, me, you.Address(), hello())
		real := *forged
		forged.Signature = signed(t, you, you.Address(), hello()).Signature
		code, body := submit(s, encoded(t, forged), syncHeader, "sync")
		wantError(t, code, body, ErrSignature)
		code, body = submit(s, encoded(t, &real), syncHeader, "sync")
		wantAnswer(t, code, body, `{"text": "echo: hello"}`)
	})
	t.Run("a timed-out call does not disturb the next", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &Server{Resolve: Serve(echoAgent(you)), Log: quiet()}
			session := NewSession()
			submit(s, encoded(t, signedAt(t, me, you.Address(), session, silent, time.Now().Add(2*time.Second))),
				syncHeader, "sync")
			code, body := submit(s, encoded(t, signedAt(t, me, you.Address(), session, hello(),
				time.Now().Add(time.Minute))), syncHeader, "sync")
			wantAnswer(t, code, body, `{"text": "echo: hello"}`)
			synctest.Wait()
		})
	})
	t.Run("hole 8: sessions do not wait for each other, messages of one do", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			var order []string
			agent := &Agent{Address: you.Address(), Handler: func(ctx context.Context, r *Request) (Response, error) {
				var m echoMessage
				if err := r.Content.Bind(&m); err != nil {
					return Response{}, err
				}
				if m.Message == "slow" {
					_ = sleep.For(ctx, 10*time.Second)
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, m.Message)
				return Response{}, nil
			}}
			s := &Server{Resolve: Serve(agent)}
			one := NewSession()
			for _, c := range []struct{ session, text string }{{one, "slow"}, {one, "after"}, {NewSession(), "other"}} {
				m := ModelOf[echoMessage]().Message(echoMessage{c.text})
				if code, _ := submit(s, encoded(t, signedAt(t, me, you.Address(), c.session, m,
					time.Now().Add(time.Minute)))); code != 200 {
					t.Fatal(code)
				}
			}
			if err := s.Shutdown(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(order, []string{"other", "slow", "after"}) {
				t.Errorf("order %v", order)
			}
		})
	})
	t.Run("the room is bounded", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &Server{Resolve: Serve(echoAgent(you)), MaxWaiting: 1, MaxQueued: 1, Log: quiet()}
			for _, mode := range []string{"sync", "async"} {
				first := encoded(t, signed(t, me, you.Address(), silent))
				go submit(s, first, syncHeader, mode)
				synctest.Wait()
				code, body := submit(s, encoded(t, signed(t, me, you.Address(), hello())), syncHeader, mode)
				wantError(t, code, body, ErrBusy)
				// A duplicate is still answered as a duplicate.
				if code, _ := submit(s, first, syncHeader, mode); code != 200 {
					t.Errorf("%s: a duplicate got %d", mode, code)
				}
			}
			if err := s.Shutdown(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	})
}

// Hole 4: unsigned senders are marked, limited and confined.
func TestServerUnsigned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		you := seeded(t, "you")
		open := ModelOf[echoOpen]().Message(echoOpen{"x"})
		var got []Assurance
		agent := echoAgent(you)
		inner := agent.Handler
		agent.Handler = func(ctx context.Context, r *Request) (Response, error) {
			got = append(got, r.Verdict.Assurance)
			return inner(ctx, r)
		}
		s := &Server{Resolve: Serve(agent), UnsignedRate: 1, UnsignedBurst: 2}
		post := func() (int, string) {
			user, err := NewUser()
			if err != nil {
				t.Fatal(err)
			}
			e, err := NewEnvelope(user, you.Address(), "", open, time.Now().Add(time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			return submit(s, encoded(t, e), syncHeader, "sync")
		}
		for range 2 {
			code, body := post()
			wantAnswer(t, code, body, `{"text": "open: x"}`)
		}
		code, body := post()
		wantError(t, code, body, ErrRate)
		if err := sleep.For(t.Context(), 2*time.Second); err != nil {
			t.Fatal(err)
		}
		code, body = post()
		wantAnswer(t, code, body, `{"text": "open: x"}`)
		// That limit does not apply to signed senders.
		me := seeded(t, "me")
		for range 10 {
			code, body := submit(s, encoded(t, signed(t, me, you.Address(), hello())), syncHeader, "sync")
			wantAnswer(t, code, body, `{"text": "echo: hello"}`)
		}
		if got[0] != Unsigned || got[len(got)-1] != Signed {
			t.Errorf("%v", got)
		}
		none := &Server{Resolve: Serve(agent), UnsignedRate: -1}
		s = none
		code, body = post()
		wantError(t, code, body, ErrRate)
	})
}

// UAG-067.
func TestNoErrorAnswersAnError(t *testing.T) {
	me, you := seeded(t, "me"), seeded(t, "you")
	posted := 0
	net := memhttp.Hosts{"me": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { posted++ })}
	agent := &Agent{Address: you.Address(), Identity: you, Handler: func(context.Context, *Request) (Response, error) {
		return Response{}, errors.New("no")
	}}
	s := &Server{Resolve: Serve(agent), Log: quiet(), Client: &Client{HTTP: net.Client(),
		Resolver: Endpoints{me.Address(): {"http://me/submit"}}}}
	for _, mode := range []string{"sync", "async"} {
		if code, body := submit(s, encoded(t, signed(t, me, you.Address(), NewErrorMessage("x"))), syncHeader,
			mode); code != 200 || body != "{}" {
			t.Errorf("%s: %d %s", mode, code, body)
		}
	}
	if err := s.Shutdown(t.Context()); err != nil || posted != 0 {
		t.Errorf("%d answers, %v", posted, err)
	}
	// Another message is answered.
	if code, _ := submit(&Server{Resolve: s.Resolve, Client: s.Client, Log: quiet()},
		encoded(t, signed(t, me, you.Address(), hello()))); code != 200 {
		t.Error(code)
	}
}

// UAG-058, hole 7.
func TestLocalOnly(t *testing.T) {
	served := 0
	s := &Server{Local: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { served++ })}
	for _, c := range []struct {
		remote, header, value string
		want                  int
	}{
		{"127.0.0.1:1", "", "", 200}, {"[::1]:1", "", "", 200}, {"192.0.2.1:1", "", "", 403},
		{"192.0.2.1:1", "X-Forwarded-For", "127.0.0.1", 403}, {"127.0.0.1:1", "X-Forwarded-For", "127.0.0.1", 403},
		{"192.0.2.1:1", "Forwarded", "for=127.0.0.1", 403}, {"@", "", "", 403},
	} {
		r := httptest.NewRequest("GET", "/messages", nil)
		r.RemoteAddr = c.remote
		if c.header != "" {
			r.Header.Set(c.header, c.value)
		}
		rec := httptest.NewRecorder()
		s.ServeHTTP(rec, r)
		if rec.Code != c.want {
			t.Errorf("%+v: %d", c, rec.Code)
		}
		if rec.Code == 200 && rec.Header().Get("Access-Control-Allow-Origin") != "" {
			t.Error("readable by any web page")
		}
	}
	if rec := request(&Server{}, "POST", "/connect", nil); rec.Code != 403 {
		t.Errorf("%d", rec.Code)
	}
}

// Digest §6.3.
func TestREST(t *testing.T) {
	one, two := seeded(t, "one"), seeded(t, "two")
	answer := func(text string) func(context.Context, *http.Request, []byte) (any, error) {
		return func(context.Context, *http.Request, []byte) (any, error) { return restEcho{text}, nil }
	}
	s := &Server{Log: quiet(), Routes: []Route{
		{Address: one.Address(), Method: "GET", Path: "/x", Handler: answer("one")},
		{Address: two.Address(), Method: "GET", Path: "/x", Handler: answer("two")},
		{Method: "GET", Path: "/panic", Handler: func(context.Context, *http.Request, []byte) (any,
			error) {
			panic("x")
		}},
		{Method: "POST", Path: "/submit", Handler: answer("never")},
	}}
	for _, c := range []struct {
		path, address string
		code          int
		body          string
	}{
		{"/x", "", 400,
			`{"error": "missing header: x-uagents-address", "message": "Multiple handlers found for REST endpoint."}`},
		{"/x", two.Address(), 200, `{"text": "two"}`},
		{"/x", "agent1nobody", 404, `{"error": "not found"}`},
		{"/panic", "", 500, `{"error": "Handler response does not match response schema."}`},
		{"/agent_info", "", 404, `{"error": "not found"}`},
	} {
		rec := request(s, "GET", c.path, nil, headerAddress, c.address)
		if rec.Code != c.code || rec.Body.String() != c.body {
			t.Errorf("%s: %d %s", c.path, rec.Code, rec.Body)
		}
	}
	code, body := submit(s, []byte("{}"))
	wantError(t, code, body, ErrShape)
	// UAG-079.
	s = &Server{Info: func(context.Context, string) (*AgentInfo, error) {
		return &AgentInfo{Address: one.Address(), Endpoints: []Endpoint{{"http://a/submit", 0},
			{"http://b/submit", 2}}}, nil
	}}
	rec := request(s, "GET", "/agent_info", nil)
	if b := rec.Body.String(); strings.Contains(b, "http://a") || !strings.Contains(b, "http://b") {
		t.Error(b)
	}
}

func TestMemory(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	m := NewMemory(32, func() time.Time { return now })
	seen := func(key string, life time.Duration) (bool, error) {
		return m.Seen(t.Context(), key, now.Add(life))
	}
	for i := range 2 {
		if fresh, err := seen(fmt.Sprintf("a %d", i), time.Minute); !fresh || err != nil {
			t.Fatal(fresh, err)
		}
	}
	if _, err := seen("a 2", time.Minute); !errors.Is(err, ErrBusy) {
		t.Errorf("one sender takes all the room: %v", err)
	}
	if fresh, err := seen("a 0", time.Minute); fresh || err != nil {
		t.Errorf("forgotten: %v %v", fresh, err)
	}
	for i := range 16 {
		if fresh, err := seen(fmt.Sprintf("%d x", i), time.Hour); !fresh || err != nil {
			t.Fatal(fresh, err)
		}
	}
	if _, err := seen("z x", time.Hour); !errors.Is(err, ErrBusy) {
		t.Errorf("long keys fill the room: %v", err)
	}
	for i := range 14 {
		if fresh, err := seen(fmt.Sprintf("%d y", i), time.Second); !fresh || err != nil {
			t.Fatal(fresh, err)
		}
	}
	if _, err := seen("y x", time.Second); !errors.Is(err, ErrBusy) {
		t.Errorf("beyond the room: %v", err)
	}
	now = now.Add(2 * time.Minute)
	if known, _ := m.Known(t.Context(), "a 0"); known {
		t.Error("remembered after its time")
	}
	if known, _ := m.Known(t.Context(), "3 x"); !known {
		t.Error("forgotten before its time")
	}
}
