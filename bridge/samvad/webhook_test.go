package samvad_test

import (
	"context"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
)

// clock is a clock that tests move.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.Now()} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

// to moves the clock on to t, never back.
func (c *clock) to(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.After(c.t) {
		c.t = t
	}
}

// receiver takes webhooks over TLS and remembers them.
type receiver struct {
	*httptest.Server
	answer func(w http.ResponseWriter, r *http.Request, body []byte)

	mu   sync.Mutex
	seen []hook
}

type hook struct {
	header http.Header
	path   string
	body   []byte
}

func newReceiver(t *testing.T, answer func(http.ResponseWriter, *http.Request, []byte)) (r *receiver, ca string) {
	t.Helper()
	r = &receiver{answer: answer}
	r.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		b, err := io.ReadAll(q.Body)
		if err != nil {
			t.Error(err)
		}
		r.mu.Lock()
		r.seen = append(r.seen, hook{q.Header, q.URL.EscapedPath(), b})
		r.mu.Unlock()
		r.answer(w, q, b)
	}))
	t.Cleanup(r.Close)
	ca = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate().Raw}),
		0o600); err != nil {
		t.Fatal(err)
	}
	return r, ca
}

func (r *receiver) hooks() []hook {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]hook(nil), r.seen...)
}

// eventually polls until f holds, or fails the test after a while.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal(what)
		}
	}
}

// callback finds the delivery of the callback to alice.
func (w *world) callback() (journal.Delivery, bool) {
	for _, d := range w.Hub().Journal().Deliveries(journal.Filter{To: "alice (callback)"}) {
		return d, true
	}
	return journal.Delivery{}, false
}

// at makes a hub and alice that live by a clock.
func at(c *clock, ca string) node.Config {
	return node.Config{Now: c.now, TLS: node.TLS{CA: []string{ca}}}
}

// SAM-131: a receiver that fails for an hour gets the result, signed, once for
// each attempt that was recorded, over a restart of the hub in the middle.
func TestWebhookOfAReceiverThatFailsForAnHour(t *testing.T) {
	c := newClock()
	began := c.now()
	r, ca := newReceiver(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		if c.now().Before(began.Add(time.Hour)) {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	config := at(c, ca)
	config.Data, config.Durability, config.PublicURL = filepath.Join(t.TempDir(), "data"), "disk", "https://parley.test"
	w := newWorld(t, config)
	w.client.Now = c.now
	card, err := w.client.Card(t.Context(), w.echo("").URL)
	if err != nil {
		t.Fatal(err)
	}
	call := w.echo("echo")
	call.To, call.CallbackURL, call.TraceID = card.ID, r.URL+"/hooks/7%2F8?x=1", "trace of mine"
	id, err := w.client.Send(t.Context(), call)
	if err != nil {
		t.Fatal(err)
	}
	attempts, restarted := 0, false
	for c.now().Before(began.Add(2 * time.Hour)) {
		var d journal.Delivery
		var open bool
		eventually(t, "no attempt ends", func() bool {
			d, open = w.callback()
			if !open { // settled, or not opened yet
				return len(r.hooks()) > attempts
			}
			return d.State == parley.Waiting && d.Attempt > attempts
		})
		if !open {
			break
		}
		if attempts = d.Attempt; attempts != len(r.hooks()) {
			t.Fatalf("%d attempts are recorded, the receiver saw %d", attempts, len(r.hooks()))
		}
		if task, err := w.client.Task(t.Context(), w.echo("").URL, id); err != nil || task.Status != samvad.TaskDone {
			t.Fatalf("the callback recipient polls and gets %+v, %v", task, err)
		}
		if wait := d.Next.Sub(c.now()); wait < 0 || wait > 15*time.Minute {
			t.Fatalf("the next attempt is in %s", wait)
		}
		if attempts == 6 && !restarted {
			restarted = true
			w.close()
			w.open(config)
			w.client.Now = c.now
		}
		c.to(d.Next)
		w.Hub().Kick("alice (callback)")
	}
	hooks := r.hooks()
	if !restarted || len(hooks) != attempts+1 || attempts < 8 || attempts > 24 {
		t.Fatalf("%d attempts failed, the receiver saw %d; restarted: %v", attempts, len(hooks), restarted)
	}
	key, err := samvad.ParseKey(w.SAMVAD().Hosting().Key)
	if err != nil {
		t.Fatal(err)
	}
	for i, h := range hooks {
		reply, err := samvad.DecodeReply(h.body)
		if err != nil || string(reply.Result) != `{"text":"hi"}` || reply.TraceID != "trace of mine" {
			t.Fatalf("webhook %d: %s, %v", i, h.body, err)
		}
		if string(h.body) != string(hooks[0].body) {
			t.Errorf("webhook %d differs from the first, so that its receiver cannot tell it is a repeat", i)
		}
		in := &samvad.Incoming{Method: http.MethodPost, Paths: []string{"/hooks/7%2F8"}, Header: h.header, Body: h.body}
		if _, err := samvad.VerifySignature(in, c.now(), key); err != nil {
			t.Errorf("webhook %d: %v", i, err)
		}
	}
	if dead := w.Hub().Dead(); len(dead) != 0 {
		t.Errorf("dead letters: %+v", dead)
	}
}

// SAM-131: a receiver's redirect is not followed, and a receiver that resolves to an
// internal address is not called. Both become dead letters with the reason, and an
// operator may retry them.
func TestWebhookThatLeadsInside(t *testing.T) {
	inside := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter,
		*http.Request) {
		t.Error("an address inside was called")
	}))
	defer inside.Close()
	location := inside.URL
	var mu sync.Mutex
	good := false
	r, ca := newReceiver(t, func(w http.ResponseWriter, q *http.Request, _ []byte) {
		mu.Lock()
		defer mu.Unlock()
		if !good {
			http.Redirect(w, q, location, http.StatusTemporaryRedirect)
		}
	})
	w := newWorld(t, node.Config{TLS: node.TLS{CA: []string{ca}}})
	call := w.echo("fail") // failures are called back too
	call.CallbackURL = r.URL + "/hook"
	if _, err := w.client.Send(t.Context(), call); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no dead letter", func() bool { return len(w.Hub().Dead()) == 1 })
	d := w.Hub().Dead()[0]
	if d.Attempt != 1 || !strings.Contains(d.Error.Text, "307") || len(r.hooks()) != 1 {
		t.Errorf("%d attempts, %v, %d calls", d.Attempt, d.Error, len(r.hooks()))
	}
	if reply, err := samvad.DecodeReply(r.hooks()[0].body); err != nil || reply.Err == nil ||
		reply.Err.Code != samvad.CodeAgentUnavailable || strings.Contains(string(r.hooks()[0].body), "passwd") {
		t.Errorf("%+v, %v", reply, err)
	}
	mu.Lock()
	good = true
	mu.Unlock()
	if err := w.Hub().Retry(t.Context(), d.Message, d.To); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the retry is not made", func() bool { _, open := w.callback(); return !open && len(r.hooks()) == 2 })

	// Only this address is forbidden, and only when it is dialled: the URL
	// itself passed.
	private := "https://10.1.2.3/hook"
	w2 := newWorld(t, node.Config{})
	for callback, want := range map[string]string{private: "SCHEMA_INVALID", "http://example.com/x": "SCHEMA_INVALID",
		"https://user@example.com/x": "SCHEMA_INVALID"} {
		call := w2.echo("echo")
		call.CallbackURL = callback
		h, b := w2.signed(w2.alice, call, samvad.ModeAsync)
		if status, code, _ := w2.post("/agents/crew/echo/agent/task", h, b); status != 400 || code != want {
			t.Errorf("SAM-130 %s: HTTP %d %s", callback, status, code)
		}
	}
	if n := w2.calls.Load(); n != 0 {
		t.Errorf("the handler ran %d times", n)
	}
}

// A webhook to an address that the operator forbids meanwhile is not sent: the
// address is checked when it is dialled, not only when the request came.
func TestWebhookThatIsForbiddenMeanwhile(t *testing.T) {
	c := newClock()
	r, ca := newReceiver(t, func(w http.ResponseWriter, _ *http.Request,
		_ []byte) {
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	config := at(c, ca)
	config.Read = func() (node.Config, error) { return node.Config{}, nil } // no internal address may be called
	w := newWorld(t, config)
	w.client.Now = c.now
	call := w.echo("echo")
	call.CallbackURL = r.URL
	if _, err := w.client.Send(t.Context(), call); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no attempt failed", func() bool {
		d, ok := w.callback()
		return ok && d.State == parley.Waiting &&
			d.Attempt == 1
	})
	if _, err := w.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.CloseClientConnections() // a connection that is open would be used again
	d, _ := w.callback()
	c.to(d.Next)
	w.Hub().Kick(d.To)
	eventually(t, "it is not given up", func() bool { return len(w.Hub().Dead()) == 1 })
	if d := w.Hub().Dead()[0]; d.Attempt != 2 || !strings.Contains(d.Error.Text, "network") || len(r.hooks()) != 1 {
		t.Errorf("%d attempts, %v, %d calls", d.Attempt, d.Error, len(r.hooks()))
	}
}
