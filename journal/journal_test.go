package journal

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-hub/parley"
)

// clock is a clock that a test sets.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

var idCount atomic.Uint64

func newID(t testing.TB, now time.Time) parley.ID {
	t.Helper()
	var seed [32]byte
	n := idCount.Add(1)
	for i := range 8 {
		seed[i] = byte(n >> (8 * i))
	}
	id, err := parley.NewID(now, rand.NewChaCha8(seed))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func memory(t testing.TB) setup { return setup{Memory: true, Node: "n1"} }

// stateOf returns the values of a bucket by key.
func stateOf(t testing.TB, j *Journal, bucket string) map[string]string {
	t.Helper()
	values := map[string]string{}
	for v, err := range j.State(bucket).Range(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		values[v.Key] = string(v.Data)
	}
	return values
}

func request(t testing.TB, from, to string) *parley.Message {
	return &parley.Message{
		ID: newID(t, time.Unix(1_790_000_000, 0)), Kind: parley.Request, From: from, To: to, Conversation: sampleID(7),
		Parts: []parley.Part{parley.Text("hello")},
	}
}

func TestAcceptOnce(t *testing.T) {
	for name, cfg := range map[string]setup{"memory": memory(t), "disk": {Dir: t.TempDir()}} {
		t.Run(name, func(t *testing.T) {
			j := open(t, cfg)
			m := request(t, "alice", "bob")
			e := Entry{Scope: "bob", Message: m, Open: []Opening{{To: "bob"}}, Key: Key{ID: "nonce 1", Sender: "alice"}}
			if _, ok := j.Seen("bob", "nonce 1"); ok {
				t.Fatal("seen before it was accepted")
			}
			at, prior, err := j.Accept(t.Context(), e)
			if err != nil || prior != nil {
				t.Fatal(at, prior, err)
			}
			if p, ok := j.Seen("bob", "nonce 1"); !ok || p.Position != at || p.Message != m.ID {
				t.Fatalf("seen: %+v %v, accepted at %s", p, ok, at)
			}
			if _, ok := j.Seen("carol", "nonce 1"); ok {
				t.Fatal("the key is also seen in another scope")
			}
			e.Message = request(t, "alice", "bob")
			again, prior, err := j.Accept(t.Context(), e)
			if err != nil || prior == nil || prior.Position != at || !again.IsZero() {
				t.Fatal(again, prior, err)
			}
			r, err := j.Read(t.Context(), at)
			if err != nil || r.Message.ID != m.ID || r.Scope != "bob" || !r.Keyed ||
				string(r.Message.Parts[0].Data) != "hello" {
				t.Fatalf("%+v %v", r, err)
			}
			if d, ok := j.Delivery(m.ID, "bob"); !ok || d.State != parley.Waiting || d.Position != at ||
				d.From != "alice" {
				t.Fatalf("%+v %v", d, ok)
			}
		})
	}
}

func TestAcceptConcurrent(t *testing.T) {
	for name, cfg := range map[string]setup{"memory": memory(t), "disk": {Dir: t.TempDir()}} {
		t.Run(name, func(t *testing.T) {
			j := open(t, cfg)
			const callers, keys = 64, 8
			won := make([]atomic.Int32, keys)
			var wg sync.WaitGroup
			for i := range callers {
				wg.Go(func() {
					for k := range keys {
						m := request(t, "alice", "bob")
						at, prior, err := j.Accept(t.Context(),
							Entry{Scope: "bob", Message: m, Key: Key{ID: fmt.Sprint(k)}})
						switch {
						case err != nil:
							t.Error(i, err)
						case prior == nil && !at.IsZero():
							won[k].Add(1)
						}
					}
				})
			}
			wg.Wait()
			for k := range won {
				if n := won[k].Load(); n != 1 {
					t.Errorf("key %d was accepted %d times", k, n)
				}
			}
			n := 0
			for r, err := range j.Records(t.Context(), 0, From{}) {
				if err != nil {
					t.Fatal(err)
				}
				if r.Message != nil {
					n++
				}
			}
			if n != keys {
				t.Fatalf("%d records, want %d", n, keys)
			}
		})
	}
}

func TestBasicState(t *testing.T) {
	c := newClock()
	j := open(t, setup{Dir: t.TempDir(), Now: c.now})
	s := j.State("sessions")
	ctx := t.Context()
	if _, err := s.Get(ctx, "a/b c"); !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	r1, err := s.Create(ctx, "a/b c", []byte("1"), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(ctx, "a/b c", []byte("1"), time.Time{}); !errors.Is(err, ErrExists) {
		t.Fatal(err)
	}
	if _, err := s.Update(ctx, "a/b c", []byte("2"), time.Time{}, r1+5); !errors.Is(err, ErrConflict) {
		t.Fatal(err)
	}
	r2, err := s.Update(ctx, "a/b c", []byte("2"), c.now().Add(time.Minute), r1)
	if err != nil || r2 <= r1 {
		t.Fatal(r2, err)
	}
	var seen []string
	var mu sync.Mutex
	changed := make(chan struct{}, 10)
	stop, err := s.Watch(ctx, "a/", func(v Value) {
		mu.Lock()
		seen = append(seen, fmt.Sprintf("%s=%s %v", v.Key, v.Data, v.Deleted))
		mu.Unlock()
		changed <- struct{}{}
	})
	if err != nil {
		t.Fatal(err)
	}
	<-changed
	if _, err := s.Put(ctx, "b/x", []byte("no"), time.Time{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(ctx, "a/y", []byte("yes"), time.Time{}); err != nil {
		t.Fatal(err)
	}
	<-changed
	if err := s.Delete(ctx, "a/y", 0); err != nil {
		t.Fatal(err)
	}
	<-changed
	stop()
	want := "[a/b c=2 false a/y=yes false a/y= true]"
	if got := fmt.Sprint(seen); got != want {
		t.Fatalf("%s, want %s", got, want)
	}
	c.add(2 * time.Minute)
	if _, err := s.Get(ctx, "a/b c"); !errors.Is(err, ErrNotFound) {
		t.Fatal("a value can be read after its expiry:", err)
	}
	if _, err := s.Create(ctx, "a/b c", []byte("3"), time.Time{}); err != nil {
		t.Fatal(err)
	}
	var keys []string
	for v, err := range s.Range(ctx, "") {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, v.Key)
	}
	if fmt.Sprint(keys) != "[b/x a/b c]" {
		t.Fatal(keys)
	}
}

func BenchmarkAppend(b *testing.B) {
	for name, memory := range map[string]bool{"memory": true, "disk": false} {
		for _, n := range []int{1, 8, 64, 256} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				j, err := tryOpen(context.Background(), setup{Dir: b.TempDir(), Memory: memory})
				if err != nil {
					b.Fatal(err)
				}
				defer j.Close()
				raw := []byte(strings.Repeat("x", 1200))
				var left atomic.Int64
				left.Store(int64(b.N))
				b.ResetTimer()
				var wg sync.WaitGroup
				for range n {
					wg.Go(func() {
						for left.Add(-1) >= 0 {
							m := request(b, "alice", "bob")
							m.Origin = parley.Origin{Protocol: "samvad", Raw: raw,
								Verdict: parley.Verdict{KeyID: "key-1",
									Checks: []parley.Check{{Name: "signature", OK: true}}}}
							m.Parts = []parley.Part{{MediaType: "application/json", Data: raw[100:1000]}}
							if _, _, err := j.Accept(context.Background(),
								Entry{Scope: "bob", Message: m, Key: Key{ID: m.ID.String()}}); err != nil {
								b.Error(err)
							}
						}
					})
				}
				wg.Wait()
				b.StopTimer()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "appends/s")
				st := j.Stats().Partitions[0]
				b.ReportMetric(float64(st.Appended)/float64(st.Groups), "appends/group")
			})
		}
	}
}
