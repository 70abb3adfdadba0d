package journal

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/testcluster"
)

// natsServer runs a NATS server on loopback.
func natsServer(t testing.TB, change func(*server.Options)) *server.Server {
	t.Helper()
	opts := &server.Options{
		ServerName: "n" + fmt.Sprint(idCount.Add(1)), Host: "127.0.0.1", Port: -1, JetStream: true,
		StoreDir: t.TempDir(),
		NoSigs:   true, NoLog: true, JetStreamMaxStore: 1 << 40, JetStreamMaxMemory: 1 << 40,
	}
	if change != nil {
		change(opts)
	}
	s, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatal("the NATS server is not ready")
	}
	return s
}

// eventually waits for a condition that no event reports.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("timed out waiting until " + what)
		}
	}
}

func TestExternalSingle(t *testing.T) {
	s := natsServer(t, nil)
	a := open(t, setup{URL: s.ClientURL(), Node: "a", Partitions: 2, OwnerTTL: 2 * time.Second})
	b := open(t, setup{URL: s.ClientURL(), Node: "b", OwnerTTL: 2 * time.Second})
	twoNodes(t, a, b)
}

func TestExternalCluster(t *testing.T) {
	if testing.Short() {
		t.Log("skipped with -short: needs a cluster of three servers")
		return
	}
	c := testcluster.Start(t, 3)
	a := open(t, setup{URL: c.URLs[0], Node: "a", Partitions: 2, OwnerTTL: 2 * time.Second})
	b := open(t, setup{URL: c.URLs[1], Node: "b", OwnerTTL: 2 * time.Second})
	if !strings.Contains(a.Promise(), "majority of 3") {
		t.Fatal(a.Promise())
	}
	twoNodes(t, a, b)
}

// twoNodes tests the guarantees that hold across two nodes of one journal.
func twoNodes(t *testing.T, a, b *Journal) {
	ctx := t.Context()
	if b.Partitions() != 2 {
		t.Fatalf("b has %d partitions", b.Partitions())
	}
	t.Run("one of two identical entries wins", func(t *testing.T) {
		const keys = 40
		var won [keys]atomic.Int32
		var wg sync.WaitGroup
		for _, j := range []*Journal{a, b, a, b} {
			wg.Go(func() {
				for k := range keys {
					m := request(t, "alice", "bob")
					at, prior, err := j.Accept(ctx,
						Entry{Scope: fmt.Sprint("scope", k%5), Message: m, Key: Key{ID: fmt.Sprint(k)}})
					switch {
					case err != nil:
						t.Error(k, err)
					case prior == nil:
						won[k].Add(1)
						if p, ok := j.Seen(fmt.Sprint("scope", k%5), fmt.Sprint(k)); !ok || p.Position != at {
							t.Error("the node that recorded the key has not seen it", p, at)
						}
					case prior.Message.IsZero() || prior.Position.IsZero():
						t.Errorf("prior without message or position: %+v", prior)
					}
				}
			})
		}
		wg.Wait()
		for k := range won {
			if n := won[k].Load(); n != 1 {
				t.Errorf("key %d was recorded %d times", k, n)
			}
		}
	})
	t.Run("keys that outlive the window", func(t *testing.T) {
		until := time.Now().Add(time.Hour)
		var won atomic.Int32
		var wg sync.WaitGroup
		for _, j := range []*Journal{a, b, a, b} {
			wg.Go(func() {
				_, prior, err := j.Accept(ctx, Entry{Scope: "s", Message: request(t, "alice", "bob"),
					Key: Key{ID: "long", Sender: "alice", Until: until}})
				if err != nil {
					t.Error(err)
				} else if prior == nil {
					won.Add(1)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 {
			t.Fatalf("recorded %d times", won.Load())
		}
	})
	t.Run("chains", func(t *testing.T) {
		const links = 30
		var head atomic.Uint64
		var wg sync.WaitGroup
		var made atomic.Int32
		for _, j := range []*Journal{a, b} {
			wg.Go(func() {
				for made.Load() < links {
					at, err := j.Append(ctx, Entry{Scope: "chained", Message: request(t, "x", "y"),
						Chain: &ChainLink{Name: "c", After: head.Load()}})
					var c *ConflictError
					switch {
					case err == nil:
						head.Store(at.Sequence)
						made.Add(1)
					case errors.As(err, &c):
						if c.Head == c.After {
							t.Errorf("a conflict although the link follows the head: %v", c)
						}
					default:
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		eventually(t, "a has read all records",
			func() bool { return a.parts[a.Partition("chained")].position() >= head.Load() })
		var last uint64
		for r, err := range a.Records(ctx, a.Partition("chained"), From{}) {
			if err != nil {
				t.Fatal(err)
			}
			if r.Chain == nil {
				continue
			}
			if r.Chain.After != last {
				t.Fatalf("record %s follows %d, its predecessor is %d", r.Position, r.Chain.After, last)
			}
			last = r.Position.Sequence
		}
		if h, err := b.Head(ctx, "chained", "c"); err != nil || h != last {
			t.Fatal(h, last, err)
		}
	})
	t.Run("attempts", func(t *testing.T) {
		m := request(t, "alice", "bob")
		if _, err := a.Append(ctx, Entry{Scope: "att", Message: m, Open: []Opening{{To: "bob"}}}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "b knows the delivery", func() bool { _, ok := b.Delivery(m.ID, "bob"); return ok })
		for attempt := 1; attempt <= 10; attempt++ {
			var won atomic.Int32
			var wg sync.WaitGroup
			for _, j := range []*Journal{a, b, a, b} {
				wg.Go(func() {
					_, err := j.Append(ctx, Entry{Steps: []Step{{Message: m.ID, To: "bob", State: parley.Delivering,
						Attempt: attempt}}})
					if err == nil {
						won.Add(1)
					} else if !errors.Is(err, ErrConflict) {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if won.Load() != 1 {
				t.Fatalf("attempt %d was recorded %d times", attempt, won.Load())
			}
			for _, j := range []*Journal{a, b} {
				eventually(t, "the attempt is known",
					func() bool { d, _ := j.Delivery(m.ID, "bob"); return d.Attempt == attempt })
			}
		}
		reply := &parley.Message{ID: newID(t, time.Now()), Kind: parley.Response, InReplyTo: m.ID, From: "bob",
			To: "alice"}
		e := Entry{Scope: "att", Message: reply, Open: []Opening{{To: "alice"}},
			Steps: []Step{{Message: m.ID, To: "bob", State: parley.Answered}},
			Chain: &ChainLink{Name: "with steps"}}
		if _, err := b.Append(ctx, e); err != nil {
			t.Fatal(err)
		}
		eventually(t, "a knows the answer", func() bool { _, ok := a.Delivery(m.ID, "bob"); return !ok })
	})
	t.Run("fences", func(t *testing.T) {
		one, err := a.Lease(ctx, "conn", "session 1", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Lease(ctx, "conn", "session 1", time.Minute); !errors.Is(err, ErrExists) {
			t.Fatal(err)
		}
		if _, err := a.Append(ctx, Entry{Scope: "conn", Message: request(t, "x", "y"), Fence: one}); err != nil {
			t.Fatal(err)
		}
		if err := one.Release(ctx); err != nil {
			t.Fatal(err)
		}
		two, err := b.Lease(ctx, "conn", "session 1", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if two.Epoch() <= one.Epoch() {
			t.Fatal("the epoch does not grow")
		}
		if _, err := a.Append(ctx, Entry{Scope: "conn", Message: request(t, "x", "y"), Fence: one}); !errors.Is(err,
			ErrFenced) {
			t.Fatal(err)
		}
		if _, err := b.Append(ctx, Entry{Scope: "conn", Message: request(t, "x", "y"), Fence: two,
			Chain: &ChainLink{Name: "fenced"}}); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("state", func(t *testing.T) {
		s, r := a.State("x"), b.State("x")
		got := make(chan Value, 10)
		stop, err := r.Watch(ctx, "", func(v Value) { got <- v })
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		rev, err := s.Create(ctx, "k/1", []byte("v"), time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		if v := <-got; v.Key != "k/1" || v.Revision != rev {
			t.Fatalf("%+v", v)
		}
		if _, err := r.Create(ctx, "k/1", nil, time.Time{}); !errors.Is(err, ErrExists) {
			t.Fatal(err)
		}
		n := 0
		for v, err := range r.Range(ctx, "k/") {
			if err != nil || string(v.Data) != "v" {
				t.Fatal(v, err)
			}
			n++
		}
		if n != 1 {
			t.Fatal(n)
		}
	})
	t.Run("ownership", func(t *testing.T) {
		eventually(t, "each partition has one owner", func() bool {
			for p := range 2 {
				if a.Owned(p) == b.Owned(p) {
					return false
				}
			}
			return true
		})
		changes := make(chan int, 10)
		stop := a.WatchOwned(func(p int, owned bool) {
			if owned {
				changes <- p
			}
		})
		defer stop()
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		seen := map[int]bool{}
		for len(seen) < 2 {
			seen[<-changes] = true
		}
		if a.Owner(0) == nil || a.Owner(1) == nil {
			t.Fatal("a partition is owned without a lease")
		}
	})
}

func TestOwnerIsReplacedWhenItFallsSilent(t *testing.T) {
	s := natsServer(t, nil)
	a := open(t, setup{URL: s.ClientURL(), Node: "a", Partitions: 4, OwnerTTL: time.Second})
	b, err := tryOpen(t.Context(), setup{URL: s.ClientURL(), Node: "b", OwnerTTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	owned := func(j *Journal) (n int) {
		for p := range 4 {
			if j.Owned(p) {
				n++
			}
		}
		return n
	}
	eventually(t, "the partitions are shared", func() bool { return owned(a)+owned(b) == 4 && owned(b) > 0 })
	m := request(t, "x", "y")
	var fence *Lease
	var scope string
	for i := 0; fence == nil; i++ {
		scope = fmt.Sprint("s", i)
		fence = b.Owner(b.Partition(scope))
	}
	if _, err := b.Append(t.Context(), Entry{Scope: scope, Message: m, Open: []Opening{{To: "y"}},
		Fence: fence}); err != nil {
		t.Fatal(err)
	}
	b.stop()
	if err := b.store.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other node owns all partitions", func() bool { return owned(a) == 4 })
	if d, ok := a.Delivery(m.ID, "y"); !ok || d.Node != "b" {
		t.Fatalf("%+v %v", d, ok)
	}
	if a.Owner(a.Partition(scope)).Epoch() <= fence.Epoch() {
		t.Fatal("the epoch did not grow")
	}
}

func TestExternalRestart(t *testing.T) {
	dir := t.TempDir()
	port := -1
	start := func() *server.Server {
		s := natsServer(t, func(o *server.Options) { o.StoreDir, o.Port = dir, port })
		return s
	}
	s := start()
	port = s.Addr().(*net.TCPAddr).Port
	j := open(t, setup{URL: s.ClientURL(), Partitions: 1, Timeout: 500 * time.Millisecond})
	l := startLoad(t, j, 8)
	eventually(t, "appends go on", func() bool { n, _ := l.count(); return n > 50 })
	s.Shutdown()
	s.WaitForShutdown()
	eventually(t, "appends fail", func() bool { _, n := l.count(); return n > 8 })
	eventually(t, "the journal is unhealthy", func() bool { return errors.Is(j.Healthy(), ErrBusy) })
	start()
	acked, _ := l.count()
	eventually(t, "appends go on", func() bool { n, _ := l.count(); return n > acked+50 })
	l.settle(t)
	l.check(t)
}

func TestClusterLosesANode(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Log("skipped with -short: needs a cluster of three servers")
		return
	}
	c := testcluster.Start(t, 3)
	j := open(t, setup{URL: c.URLs[0], Partitions: 1, Timeout: 5 * time.Second})
	l := startLoad(t, j, 8)
	eventually(t, "appends go on", func() bool { n, _ := l.count(); return n > 100 })
	c.Kill(1)
	acked, _ := l.count()
	eventually(t, "appends go on", func() bool { n, _ := l.count(); return n > acked+100 })
	l.settle(t)
	l.check(t)
}

func TestExternalRefusals(t *testing.T) {
	s := natsServer(t, func(o *server.Options) { o.MaxPayload = 64 << 10 })
	if _, err := tryOpen(t.Context(), setup{URL: s.ClientURL(), MaxPayload: 1 << 20}); !errors.Is(err, ErrTooLarge) ||
		!strings.Contains(err.Error(), "1048576") {
		t.Fatal(err)
	}
	j := open(t, setup{URL: s.ClientURL(), Partitions: 3})
	if _, err := tryOpen(t.Context(), setup{URL: s.ClientURL(), Partitions: 4}); !errors.Is(err, ErrInvalid) ||
		!strings.Contains(err.Error(), "3 partitions") {
		t.Fatal(err)
	}
	if _, err := j.Append(t.Context(), Entry{Scope: "s",
		Message: &parley.Message{ID: sampleID(1), Parts: []parley.Part{{Data: make([]byte, 70<<10)}}}}); !errors.Is(err,
		ErrTooLarge) {
		t.Fatal(err)
	}
}
