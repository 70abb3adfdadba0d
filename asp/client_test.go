package asp

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// next reads the next message of a session.
func next(t *testing.T, s *Session) *Message {
	t.Helper()
	for m, err := range s.Messages(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	t.Fatal("the session is over")
	return nil
}

func openPair(t *testing.T, w *world) (alice, bob *Session) {
	t.Helper()
	alice, err := w.alice.Open(t.Context(), Invitation{To: []string{bobID}, Purpose: "buy 10 widgets"})
	if err != nil {
		t.Fatal(err)
	}
	for inv, err := range w.bob.Invitations(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if inv.SessionID != alice.ID() || inv.From != aliceID {
			t.Fatalf("got %+v", inv)
		}
		break
	}
	if bob, err = w.bob.Join(t.Context(), alice.ID()); err != nil {
		t.Fatal(err)
	}
	return alice, bob
}

func TestClientSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.alice.Store = Dir(filepath.Join(t.TempDir(), "state"))
	ctx := t.Context()
	alice, bob := openPair(t, w)
	inv := next(t, bob)
	if _, err := bob.Send(ctx, Accept, Answer{}, InReplyTo(inv)); err != nil {
		t.Fatal(err)
	}
	if _, err := alice.Send(ctx, Propose, Proposal{Type: "service-agreement", Subject: "widgets",
		Terms: map[string]any{"n": 10}}); err != nil {
		t.Fatal(err) // alice did not know the ACCEPT, so her message was linked again
	}
	if alice.State() != Conversing {
		t.Errorf("state %s", alice.State())
	}
	read := 0
	for m, err := range bob.Messages(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		switch m.Performative {
		case Propose:
			read++
			if read > 1 {
				if _, err := bob.Send(ctx, Counter, Proposal{Terms: map[string]any{"n": 20}},
					InReplyTo(m)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if read > 1 {
			break
		}
	}

	// Alice's process ends; a new process continues from the stored head.
	again := w.client(w.alice.Identity)
	again.Store = w.alice.Store
	alice2, err := again.Join(ctx, alice.ID())
	if err != nil {
		t.Fatal(err)
	}
	for m, err := range alice2.Messages(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if m.Performative == Counter {
			if _, err := alice2.Send(ctx, Accept, Answer{}, InReplyTo(m)); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	if err := bob.Close(ctx, "done"); err != nil {
		t.Fatal(err)
	}
	for _, err := range alice2.Messages(ctx) { // ends with the session
		if err != nil {
			t.Fatal(err)
		}
	}
	var file bytes.Buffer
	report, err := alice2.Export(ctx, &file)
	if err != nil {
		t.Fatal(err)
	}
	if report.Messages != 6 || !report.Signed || report.State != Closed {
		t.Errorf("report %+v", report)
	}
	// ASP-077: export → offline verifier.
	if _, err := VerifyTranscript(&file); err != nil {
		t.Error("ASP-077", err)
	}
	// ASP-080: timestamps rise strictly along the chain.
	if len(report.Warnings) != 0 {
		t.Errorf("ASP-080: %v", report.Warnings)
	}
}

// lossy breaks the connection of the first POSTs of messages, before or after the
// server handles them.
type lossy struct {
	http.RoundTripper
	before, after int
}

var errBroken = errors.New("connection broke")

func (l *lossy) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != "POST" || r.URL.Path == "/oauth/token" {
		return l.RoundTripper.RoundTrip(r)
	}
	if l.before > 0 {
		l.before--
		return nil, errBroken
	}
	resp, err := l.RoundTripper.RoundTrip(r)
	if l.after > 0 && err == nil {
		l.after--
		_ = resp.Body.Close()
		return nil, errBroken
	}
	return resp, err
}

func TestClientUnknownOutcome(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		before, after int
	}{{"not arrived", 1, 0}, {"arrived", 0, 1}} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			id := w.conversing()
			w.alice.Store = Dir(t.TempDir())
			alice, err := w.alice.Join(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			loss := &lossy{w.http.Client().Transport, c.before, c.after}
			w.alice.http = &http.Client{Transport: loss}
			count := w.head(id).Count
			body := Information{Topic: "once"}
			if _, err := alice.Send(t.Context(), Inform, body); !isUnknown(err) {
				t.Fatalf("got %v", err)
			}
			// Meanwhile bob sends a message, and alice's process restarts.
			w.say(id, w.bob, Observe, struct{}{})
			alice, err = w.alice.Join(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			if got := w.head(id).Count; got != count+2 {
				t.Errorf("%d records more, want 2", got-count)
			}
			if _, err := alice.Send(t.Context(), Inform, body); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// cardFailures breaks the connection of the first requests for cards.
type cardFailures struct {
	http.RoundTripper
	left atomic.Int32
}

func (l *cardFailures) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, "/card") && l.left.Add(-1) >= 0 {
		return nil, errBroken
	}
	return l.RoundTripper.RoundTrip(r)
}

// TestClientCardLater: if the server is unreachable while a message is verified, the
// client retries the message.
func TestClientCardLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := openPair(t, w)
	inv := next(t, bob)
	if _, err := bob.Send(t.Context(), Accept, Answer{}, InReplyTo(inv)); err != nil {
		t.Fatal(err)
	}
	if _, err := alice.Send(t.Context(), Inform, Information{Topic: "hello"}); err != nil {
		t.Fatal(err)
	}
	// Bob's client has not fetched his card in this session yet.
	loss := &cardFailures{RoundTripper: w.http.Client().Transport}
	loss.left.Store(2)
	w.bob.http = &http.Client{Transport: loss}
	for m, err := range bob.Messages(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if m.Performative == Inform {
			break
		}
	}
	if n := loss.left.Load(); n >= 0 {
		t.Errorf("%d requests for cards were not made", n+1)
	}
}

func TestClientRefusesForgedStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.conversing()
	// The client detects that the server changed a message.
	s := w.Server.store.(*memoryStore)
	r := s.sessions[id].records[1]
	r.Raw = bytes.Replace(r.Raw, []byte("inv"), []byte("vni"), 1)
	alice, err := w.alice.Join(t.Context(), id)
	if !isCode(err, "hash_mismatch") {
		t.Errorf("got %v, %v", alice, err)
	}
}

func TestAsk(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.conversing()
	alice, err1 := w.alice.Join(t.Context(), id)
	bob, err2 := w.bob.Join(t.Context(), id)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	var said sync.WaitGroup
	said.Go(func() {
		for m, err := range bob.Messages(t.Context()) {
			if err != nil {
				return
			}
			if m.Performative == Query {
				// only the last of them is the answer
				for i, step := range []string{"accepted", "progress", "result"} {
					if _, err := bob.Send(t.Context(), Inform,
						Information{InformType: step, Data: map[string]int{"celsius": 19 + i}},
						InReplyTo(m)); err != nil {
						t.Error(err)
					}
				}
				return
			}
		}
	})
	answer, err := alice.Ask(t.Context(), Question{QueryType: "forecast", Subject: "Bern"})
	if err != nil {
		t.Fatal(err)
	}
	if got := answer.body().get("data").get("celsius"); got == nil || string(got.raw) != "21" {
		t.Errorf("answer %s", answer.Body)
	}
	said.Wait() // the answer can arrive before its sender gets the receipt
}

func TestInviteSeveral(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, err := w.alice.Open(t.Context(), Invitation{To: []string{bobID, carolID}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := w.Session(t.Context(), alice.ID(), "")
	if err != nil {
		t.Fatal(err)
	}
	w.say(alice.ID(), w.bob, Accept, Answer{ReferenceID: l.Items[0].ID})
	for range 2 {
		if _, err := alice.Send(t.Context(), Observe, struct{}{}); err != nil {
			t.Fatal(err)
		}
	}
	if l, err = w.Session(t.Context(), alice.ID(), carolID); err != nil || len(l.Participants) != 3 {
		t.Errorf("%v", err)
	}
}

func TestIdentityFile(t *testing.T) {
	t.Parallel()
	id := testIdentity(t, aliceID, "org_acme")
	path := filepath.Join(t.TempDir(), "alice.json")
	if err := id.Save(path); err != nil {
		t.Fatal(err)
	}
	if err := id.Save(path); !errors.Is(err, os.ErrExist) {
		t.Errorf("saved over a file: %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	back, err := LoadIdentity(path)
	if err != nil || back.Public().ID() != id.Public().ID() || !back.proof.Equal(id.proof) {
		t.Errorf("%+v, %v", back, err)
	}
	generated, err := GenerateIdentity(bobID, "org_widgets")
	if err != nil || generated.Public().ID() == id.Public().ID() {
		t.Errorf("%v", err)
	}
}

func TestTimestampsRise(t *testing.T) {
	// ASP-080.
	now := time.Date(2026, 3, 7, 14, 30, 0, 0, time.UTC)
	for _, c := range []struct {
		previous, want string
	}{
		{"2026-03-07T14:29:59.999Z", "2026-03-07T14:30:00.000Z"},
		{"2026-03-07T14:30:00.000Z", "2026-03-07T14:30:00.001Z"},
		{"2026-03-07T14:30:07.000Z", "2026-03-07T14:30:07.001Z"},
		{"", "2026-03-07T14:30:00.000Z"},
	} {
		if got := Timestamp(NextTimestamp(now, c.previous)); got != c.want {
			t.Errorf("after %s: %s, want %s", c.previous, got, c.want)
		}
	}
}
