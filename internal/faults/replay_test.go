package faults

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/parleytest"
	"github.com/parley-hub/parley/samvad"
)

// flood is a hub in this process that is called without sockets: the tests measure its
// memory and its journal.
type flood struct {
	node     *node.Node
	sender   *samvad.Identity
	base, to string
	clock    parleytest.Clock

	mu    sync.Mutex
	calls map[string]int // by message text
}

func newFlood(t *testing.T, durability string) *flood {
	t.Helper()
	f := &flood{sender: newIdentity(t, "agent://sender.test"), calls: map[string]int{}}
	n, err := node.Open(t.Context(), node.Config{Data: filepath.Join(t.TempDir(), "data"), Durability: durability,
		Now:       f.clock.Now,
		PublicURL: "http://hub.test", Limits: node.Limits{SenderRate: -1}, Agents: enrolled(f.sender)})
	if err != nil {
		t.Fatal(err)
	}
	f.node = n
	t.Cleanup(func() {
		if err := n.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	err = n.Handle(parley.Agent{Name: "worker", Exposed: parley.Everywhere},
		parley.RawSkill("echo", func(_ context.Context, m *parley.Message, r parley.Replier) error {
			var q struct{ N string }
			if err := m.Bind(&q); err != nil {
				return err
			}
			f.mu.Lock()
			f.calls[q.N]++
			f.mu.Unlock()
			return r.Reply(m.Parts...)
		}))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.base = "http://hub.test/agents/worker"
	f.to = "agent://worker.hub.test"
	return f
}

func (f *flood) shot(t *testing.T, n int, mode samvad.Mode) *shot {
	t.Helper()
	client := &samvad.Client{Identity: f.sender, Now: f.clock.Now}
	e, body, err := client.Envelope(samvad.Call{To: f.to, Skill: "echo", Payload: fmt.Appendf(nil, `{"n":"%d"}`, n)},
		mode)
	if err != nil {
		t.Fatal(err)
	}
	s := &shot{from: f.sender, mode: mode, base: f.base, body: body, nonce: e.Nonce,
		header: http.Header{"Content-Type": {"application/json"}}}
	if err := s.seal(f.clock.Now()); err != nil {
		t.Fatal(err)
	}
	return s
}

// serve hands a request to the hub as its listener would.
func (f *flood) serve(s *shot, body []byte, remote string) answer {
	r := httptest.NewRequest(http.MethodPost, s.path, bytes.NewReader(body))
	r.Host, r.RemoteAddr, r.Header = "hub.test", remote, s.header.Clone()
	w := httptest.NewRecorder()
	f.node.SAMVAD().ServeHTTP(w, r)
	return answer{w.Code, w.Result().Header, w.Body.Bytes()}
}

// keys is how many replay keys the journal holds.
func (f *flood) keys() (n int) {
	for _, p := range f.node.Hub().Journal().Stats().Partitions {
		n += p.Keys + p.LongKeys
	}
	return n
}

// heap is the memory in use after a collection.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // memory that finalizers released
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestReplays sends every tenth request again, at once and later, at the same
// time and to the other endpoints: each is refused, none is worked on twice,
// and the guard holds one key for each message and drops it in time.
func TestReplays(t *testing.T) {
	f := newFlood(t, "disk")
	const count, workers = 3000, 16
	var captured sync.Map // of *shot
	var fresh, refused atomic.Int64
	var crowd sync.WaitGroup
	modes := []samvad.Mode{samvad.ModeSync, samvad.ModeSync, samvad.ModeAsync, samvad.ModeStream}
	for w := range workers {
		crowd.Go(func() {
			for i := w; i < count; i += workers {
				s := f.shot(t, i, modes[i%len(modes)])
				if i%10 == 0 {
					// The same bytes twice at once: exactly one is the first.
					var pair [2]answer
					var two sync.WaitGroup
					for k := range pair {
						two.Go(func() { pair[k] = f.serve(s, s.body, "192.0.2.1:1") })
					}
					two.Wait()
					var replays int
					for _, a := range pair {
						if a.status == http.StatusUnauthorized && a.code() == samvad.CodeReplayDetected {
							replays++
						} else if a.status/100 != 2 {
							t.Errorf("request %d: %s", i, a)
						}
					}
					if replays != 1 {
						t.Errorf("request %d sent twice at once: %s and %s", i, pair[0], pair[1])
					}
					fresh.Add(1)
					refused.Add(1)
					captured.Store(i, s)
					continue
				}
				if a := f.serve(s, s.body, "192.0.2.1:1"); a.status/100 != 2 {
					t.Errorf("request %d: %s", i, a)
				}
				fresh.Add(1)
				// Some time later, a captured one.
				if v, ok := captured.Load(i - i%10 - 10*workers); ok && i%10 == 5 {
					s := v.(*shot)
					if a := f.serve(s, s.body, "198.51.100.7:1"); a.status != http.StatusUnauthorized ||
						a.code() != samvad.CodeReplayDetected {
						t.Errorf("captured request repeated: %s", a)
					}
					refused.Add(1)
				}
			}
		})
	}
	crowd.Wait()
	// A captured message is refused at the other endpoints too: its signature is for
	// the first.
	captured.Range(func(_, v any) bool {
		s := *v.(*shot)
		for _, mode := range []samvad.Mode{samvad.ModeSync, samvad.ModeAsync, samvad.ModeStream} {
			s.path = "/agents/worker" + endpoints[mode]
			if a := f.serve(&s, s.body, "198.51.100.7:1"); a.status != http.StatusUnauthorized {
				t.Errorf("captured request at %s: %s", s.path, a)
			}
			refused.Add(1)
		}
		return true
	})
	err := eventually(t.Context(), 20*time.Second, func() (bool, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.calls) == count, fmt.Errorf("%d of %d were worked on", len(f.calls), count)
	})
	if err != nil {
		t.Error(err)
	}
	f.mu.Lock()
	for n, calls := range f.calls {
		if calls != 1 {
			t.Errorf("request %s was worked on %d times", n, calls)
		}
	}
	f.mu.Unlock()
	if n := f.keys(); n != count {
		t.Errorf("the guard holds %d keys for %d messages", n, count)
	}
	// Past the window a message is stale, so its key need not be held.
	old := f.shot(t, count, samvad.ModeSync)
	f.clock.Advance(16 * time.Minute)
	if a := f.serve(old, old.body, "192.0.2.1:1"); a.status != http.StatusUnauthorized ||
		a.code() != samvad.CodeAuthFailed {
		t.Errorf("a stale request: %s", a)
	}
	s := f.shot(t, count+1, samvad.ModeSync)
	if a := f.serve(s, s.body, "192.0.2.1:1"); a.status != http.StatusOK {
		t.Error(a)
	}
	if n := f.keys(); n > 1 {
		t.Errorf("the guard holds %d keys past its window", n)
	}
	t.Logf("%d accepted, %d replays refused", fresh.Load(), refused.Load())
}

// TestUnauthenticatedSendersLeaveNothing lets 100,000 senders, each with another name
// and address, send messages that they cannot prove. Memory stays as it was, the
// journal records nothing of them, and honest senders pass all the while.
func TestUnauthenticatedSendersLeaveNothing(t *testing.T) {
	f := newFlood(t, "memory")
	count := much(t, 30_000, 100_000, 100_000)
	honest := 0
	template := f.shot(t, 0, samvad.ModeSync)
	forger := newIdentity(t, f.sender.ID())
	send := func(i int) {
		var b [8]byte
		binary.BigEndian.PutUint64(b[:], uint64(i))
		address := fmt.Sprintf("10.%d.%d.%d", b[5], b[6], b[7])
		// Addresses that the hub refuses to fetch cards from, so that the test
		// needs no network; every fourth one claims to be the honest sender.
		claim := "agent://" + address
		if i%4 == 0 {
			claim = f.sender.ID()
		}
		s := &shot{from: forger, mode: samvad.ModeSync, base: f.base,
			header: http.Header{"Content-Type": {"application/json"}},
			body: []byte(strings.NewReplacer(`"from":"`+f.sender.ID(), `"from":"`+claim, template.nonce,
				fmt.Sprintf("nonce-%028d", i)).Replace(string(template.body)))}
		if err := s.seal(time.Now()); err != nil {
			t.Fatal(err)
		}
		if a := f.serve(s, s.body, address+":1234"); a.status != http.StatusUnauthorized ||
			a.code() != samvad.CodeAuthFailed {
			t.Fatalf("forged request %d: %s", i, a)
		}
		if i%1000 == 999 {
			honest++
			s := f.shot(t, i, samvad.ModeSync)
			if a := f.serve(s, s.body, "192.0.2.1:1"); a.status != http.StatusOK {
				t.Errorf("an honest request amid forged ones: %s", a)
			}
		}
	}
	// Bounded rings and tables fill up first.
	for i := range count / 5 {
		send(i)
	}
	before := heap()
	for i := count / 5; i < count; i++ {
		send(i)
	}
	after := heap()
	const bound = 8 << 20
	if after > before+bound {
		t.Errorf("the heap grew from %d to %d KiB over %d forged requests", before>>10, after>>10, count*4/5)
	}
	if n := f.keys(); n != honest {
		t.Errorf("the guard holds %d keys for %d honest messages", n, honest)
	}
	f.mu.Lock()
	calls := len(f.calls)
	f.mu.Unlock()
	if calls != honest {
		t.Errorf("the handler worked on %d messages, %d were honest", calls, honest)
	}
	if n := len(f.node.Hub().Refused(0)); n > 4096 {
		t.Errorf("%d refusals are kept", n)
	}
	t.Logf("heap %d KiB, after %d forged requests more %d KiB", before>>10, count*4/5, after>>10)
}

// TestForgersDoNotUseUpNonces lets a forger send a victim's nonce before the
// victim does.
func TestForgersDoNotUseUpNonces(t *testing.T) {
	f := newFlood(t, "memory")
	for i := range 50 {
		s := f.shot(t, i, samvad.ModeSync)
		forged := *s
		forged.from = newIdentity(t, f.sender.ID())
		forged.header = s.header.Clone()
		if err := forged.seal(time.Now()); err != nil {
			t.Fatal(err)
		}
		if a := f.serve(&forged, forged.body, "203.0.113.9:1"); a.status != http.StatusUnauthorized ||
			a.code() != samvad.CodeAuthFailed {
			t.Fatalf("forged: %s", a)
		}
		if a := f.serve(s, s.body, "192.0.2.1:1"); a.status != http.StatusOK {
			t.Fatalf("the victim is refused: %s", a)
		}
	}
}
