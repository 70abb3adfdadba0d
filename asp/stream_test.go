package asp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// flakyServer is a server whose streams break. Each entry of tries is the time for which
// one stream stays open; below 0 the server is unreachable.
type flakyServer struct {
	tries []time.Duration
	ended []time.Time // the ends of tries
	began []time.Time
	stop  context.CancelFunc
}

func (a *flakyServer) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := func(body io.ReadCloser) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: body, Request: r}, nil
	}
	if r.URL.Path == "/oauth/token" {
		return answer(io.NopCloser(strings.NewReader(`{"access_token":"t","expires_in":36000}`)))
	}
	a.began = append(a.began, time.Now())
	if len(a.began) > len(a.tries) {
		a.stop()
		return nil, r.Context().Err()
	}
	try := a.tries[len(a.began)-1]
	if try < 0 {
		a.ended = append(a.ended, time.Now())
		return nil, errors.New("connection refused")
	}
	return answer(io.NopCloser(readFunc(func([]byte) (int, error) {
		<-time.After(try)
		a.ended = append(a.ended, time.Now())
		return 0, io.ErrUnexpectedEOF
	})))
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(b []byte) (int, error) { return f(b) }

// TestStreamPauses: a client reconnects soon after each restart of a server that
// restarts again and again.
func TestStreamPauses(t *testing.T) {
	const gone = -1
	ms := func(list ...int) (out []time.Duration) {
		for _, n := range list {
			out = append(out, time.Duration(n)*time.Millisecond)
		}
		return out
	}
	for name, c := range map[string]struct{ tries, pauses []time.Duration }{
		"away": {[]time.Duration{gone, gone, gone, gone, gone, gone, gone, gone, gone, gone, gone},
			ms(100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000)},
		"restarts": {[]time.Duration{2 * time.Second, gone, gone, gone, time.Minute, gone, 2 * time.Second,
			gone}, ms(100, 200, 400, 800, 100, 200, 100, 200)},
		"killed early": {[]time.Duration{gone, gone, gone, gone, gone, gone, 300 * time.Millisecond, gone,
			300 * time.Millisecond}, ms(100, 200, 400, 800, 1600, 3200, 1000, 2000, 1000)},
		"ends every stream":  {make([]time.Duration, 8), ms(100, 200, 400, 800, 1000, 1000, 1000, 1000)},
		"an hour, then ends": {[]time.Duration{time.Hour, 0, 0}, ms(100, 200, 400)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				server := &flakyServer{tries: c.tries, stop: cancel}
				client := &Client{Server: "http://hub.test", Identity: testIdentity(t, bobID, "org_widgets"),
					HTTP: &http.Client{Transport: server}}
				for _, err := range client.Invitations(ctx) {
					if !errors.Is(err, context.Canceled) {
						t.Fatal(err)
					}
				}
				for i, want := range c.pauses {
					if got := server.began[i+1].Sub(server.ended[i]); got != want {
						t.Errorf("after try %d it waited %s, want %s", i+1, got, want)
					}
				}
			})
		})
	}
}

// flushLog is a sink that records the time and the messages of each flush.
type flushLog struct {
	start time.Time
	open  []string
	got   []string
}

func (h *flushLog) emit(f *frame) error {
	if f.record != nil {
		h.open = append(h.open, f.record.MessageID[:8])
	}
	return nil
}

func (h *flushLog) flush() error {
	if len(h.open) > 0 {
		h.got = append(h.got, time.Since(h.start).String()+" "+strings.Join(h.open, " "))
		h.open = nil
	}
	return nil
}

// TestEchoes: a stream sends the messages of other agents at once, and its own agent's
// messages together with them or a moment later.
func TestEchoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		s := &Server{}
		ids := map[string]*Identity{aliceID: testIdentity(t, aliceID, "org_acme"),
			bobID: testIdentity(t, bobID, "org_widgets")}
		for _, id := range ids {
			card, err := id.Card().JSON()
			if err == nil {
				_, err = s.Register(ctx, card)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		session := "019cc8aa-0001-7def-8a12-000000000001"
		n := 0
		say := func(who string, act Performative, body any) string {
			t.Helper()
			n++
			d := Draft{SessionID: session, MessageID: fmt.Sprintf("%08x-0001-7def-8a12-000000000001", n),
				Performative: act, Body: body, Recipient: &Party{AgentID: bobID, OrgID: "org_widgets"}}
			if l, err := s.Session(ctx, session, ""); err == nil {
				d.PreviousHash, d.SequenceNumber = l.Head.Hash, l.participant(who).Next
			}
			e, err := d.Sign(ids[who])
			if err == nil {
				_, err = s.Say(ctx, e)
			}
			if err != nil {
				t.Fatal(err)
			}
			return d.MessageID[:8]
		}
		say(aliceID, Propose, Proposal{ProposalID: "p", Type: "session-invitation", Subject: "talk",
			Terms: map[string]any{}})
		say(bobID, Accept, Answer{ReferenceID: "p"})
		say(aliceID, Inform, inform("begin"))
		alice, bob := &flushLog{start: time.Now()}, &flushLog{start: time.Now()}
		var streams sync.WaitGroup
		for who, out := range map[string]*flushLog{aliceID: alice, bobID: bob} {
			streams.Go(func() { _ = s.follow(ctx, session, who, 3, out) })
		}
		synctest.Wait()
		one := say(aliceID, Inform, inform("one"))
		synctest.Wait()
		time.Sleep(10 * time.Millisecond)
		two := say(aliceID, Inform, inform("two"))
		synctest.Wait()
		three := say(bobID, Inform, inform("three"))
		synctest.Wait()
		four := say(aliceID, Inform, inform("four"))
		synctest.Wait()
		time.Sleep(20 * time.Millisecond)
		five := say(aliceID, Inform, inform("five"))
		time.Sleep(time.Second)
		end := say(aliceID, Close, Closing{Reason: "done"})
		streams.Wait()
		stop()
		if want := []string{"10ms " + one + " " + two + " " + three, "35ms " + four + " " + five, "1.03s " +
			end}; !slices.Equal(alice.got, want) {
			t.Errorf("alice, the sender, got %q, want %q", alice.got, want)
		}
		if want := []string{"0s " + one, "10ms " + two, "10ms " + three + " " + four, "30ms " + five, "1.03s " +
			end}; !slices.Equal(bob.got, want) {
			t.Errorf("bob got %q, want %q", bob.got, want)
		}
	})
}
