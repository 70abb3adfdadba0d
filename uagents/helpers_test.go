package uagents

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// signed makes a signed envelope of a message, valid for a minute.
func signed(t testing.TB, from *Identity, to string, m Message) *Envelope {
	t.Helper()
	return signedAt(t, from, to, "", m, time.Now().Add(time.Minute))
}

func signedAt(t testing.TB, from *Identity, to, session string, m Message, expires time.Time) *Envelope {
	t.Helper()
	e, err := NewEnvelope(from.Address(), to, session, m, expires)
	if err != nil {
		t.Fatal(err)
	}
	resign(t, from, e)
	return e
}

// resign signs an envelope again after a change.
func resign(t testing.TB, from *Identity, e *Envelope) {
	t.Helper()
	d, err := e.Digest()
	if err != nil {
		t.Fatal(err)
	}
	sig, err := from.SignDigest(d)
	if err != nil {
		t.Fatal(err)
	}
	e.Signature = &sig
}

func encoded(t testing.TB, e *Envelope) []byte {
	t.Helper()
	b, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func hello() Message { return ModelOf[echoMessage]().Message(echoMessage{"hello"}) }

// submit posts a body to a server and gives status and body.
func submit(h http.Handler, body []byte, headers ...string) (int, string) {
	rec := submitTo(h, "/submit", body, headers...)
	return rec.Code, rec.Body.String()
}

func submitTo(h http.Handler, path string, body []byte, headers ...string) *httptest.ResponseRecorder {
	return request(h, "POST", path, body, append([]string{"Content-Type", "application/json"}, headers...)...)
}

func request(h http.Handler, method, path string, body []byte, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, bytes.NewReader(body))
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	return rec
}

const syncHeader = "X-Uagents-Connection"

// answerOf reads the message of a sync answer.
func answerOf(t testing.TB, body string) Message {
	t.Helper()
	e, err := Decode([]byte(body))
	if err != nil {
		t.Fatalf("answer %s: %v", body, err)
	}
	m, err := e.Message()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func wantAnswer(t testing.TB, status int, body, text string) {
	t.Helper()
	if status != 200 {
		t.Fatalf("status %d: %s", status, body)
	}
	if got := string(answerOf(t, body).Payload); got != text {
		t.Fatalf("answer %s, want %s", got, text)
	}
}

func wantError(t testing.TB, status int, body string, want *Error) {
	t.Helper()
	var e struct{ Error string }
	if err := json.Unmarshal([]byte(body), &e); err != nil || status != want.Status() ||
		!strings.HasPrefix(e.Error, want.Text) {
		t.Fatalf("got %d %s, want %d %s", status, body, want.Status(), want.Text)
	}
}

// accepting makes a [Server.Accept] that admits envelopes for the agent, and records
// them with the function.
func accepting(a *Agent, record func(*Request) (bool, error)) func(context.Context, *Request) (bool, error) {
	return func(_ context.Context, r *Request) (bool, error) {
		if r.Refusal == nil {
			agent := a
			if r.Target != a.Address {
				agent = nil
			}
			if err := r.Admit(agent); err != nil {
				return false, err
			}
		}
		return record(r)
	}
}

// counter counts the requests that reach an agent.
type counter struct {
	got chan *Request
}

func counting(id *Identity) (*Agent, *counter) {
	c := &counter{got: make(chan *Request, 1000)}
	return &Agent{Address: id.Address(), Handler: func(_ context.Context, r *Request) (Response, error) {
		c.got <- r
		return Response{}, nil
	}}, c
}

func readAll(t testing.TB, r io.Reader) []byte {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
