package journal

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal/store"
)

func TestTransitions(t *testing.T) {
	j := open(t, memory(t))
	w, d, ok, ans, dead := parley.Waiting, parley.Delivering, parley.Delivered, parley.Answered, parley.Dead
	type step struct {
		state   parley.DeliveryState
		attempt int
		ok      bool
	}
	for name, steps := range map[string][]step{
		"delivered and answered": {{d, 1, true}, {ok, 1, true}, {ans, 0, true}, {ans, 0, false}},
		"attempts count": {{d, 2, false}, {d, 1, true}, {d, 1, false}, {w, 1, true}, {d, 1, false},
			{d, 2, true}},
		"unknown outcome repeated": {{d, 1, true}, {d, 2, true}, {ok, 1, false}, {ok, 2, true}},
		"dead letter retried":      {{d, 1, true}, {dead, 1, true}, {d, 2, false}, {w, 0, true}, {d, 2, true}},
		"dead letter dropped":      {{dead, 0, true}, {parley.Dropped, 0, true}, {w, 0, false}},
		"late reply":               {{dead, 0, true}, {ans, 0, true}},
		"expired":                  {{parley.Expired, 0, true}, {w, 0, false}},
		"abandoned":                {{d, 1, true}, {parley.Abandoned, 0, true}, {d, 2, false}},
		"dropped, not dead":        {{parley.Dropped, 0, false}},
		"lost with connection":     {{d, 1, true}, {ok, 1, true}, {d, 2, false}, {w, 1, true}, {d, 2, true}},
	} {
		t.Run(name, func(t *testing.T) {
			m := request(t, "alice", "bob")
			if _, err := j.Append(t.Context(), Entry{Scope: "s", Message: m,
				Open: []Opening{{To: "bob"}}}); err != nil {
				t.Fatal(err)
			}
			for i, s := range steps {
				_, err := j.Append(t.Context(), Entry{Steps: []Step{{Message: m.ID, To: "bob", State: s.state,
					Attempt: s.attempt, Reply: sampleID(1)}}})
				if s.ok && err != nil || !s.ok && !errors.Is(err, ErrConflict) {
					t.Fatalf("step %d: %v", i, err)
				}
			}
		})
	}
}

func TestPostponedIsNoTry(t *testing.T) {
	j := open(t, memory(t))
	m := request(t, "alice", "bob")
	next := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	steps := []Step{
		{State: parley.Delivering, Attempt: 1}, {State: parley.Waiting, Attempt: 1, Postponed: true, Next: next},
		{State: parley.Delivering, Attempt: 2}, {State: parley.Waiting, Attempt: 2,
			Error: parley.Fail(parley.Unavailable, errors.New("private"), "no"), Next: next},
	}
	if _, err := j.Append(t.Context(), Entry{Scope: "s", Message: m, Open: []Opening{{To: "bob"}}}); err != nil {
		t.Fatal(err)
	}
	for _, s := range steps {
		s.Message, s.To = m.ID, "bob"
		if _, err := j.Append(t.Context(), Entry{Steps: []Step{s}}); err != nil {
			t.Fatal(err)
		}
	}
	d, ok := j.Delivery(m.ID, "bob")
	if !ok || d.Attempt != 2 || d.Tries() != 1 || !d.Next.Equal(next) || d.Error.Code != parley.Unavailable ||
		d.Error.Unwrap() != nil {
		t.Fatalf("%+v", d)
	}
}

func TestConcurrentAttempts(t *testing.T) {
	j := open(t, setup{Dir: t.TempDir()})
	m := request(t, "alice", "bob")
	if _, err := j.Append(t.Context(), Entry{Scope: "s", Message: m, Open: []Opening{{To: "bob"}}}); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	recorded := map[int]int{}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 10 {
				d, _ := j.Delivery(m.ID, "bob")
				n := d.Attempt + 1
				_, err := j.Append(t.Context(), Entry{Steps: []Step{{Message: m.ID, To: "bob", State: parley.Delivering,
					Attempt: n}}})
				if err == nil {
					mu.Lock()
					recorded[n]++
					mu.Unlock()
				} else if !errors.Is(err, ErrConflict) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	d, _ := j.Delivery(m.ID, "bob")
	if len(recorded) != d.Attempt {
		t.Fatalf("%d attempts recorded, the delivery counts %d", len(recorded), d.Attempt)
	}
	for n, times := range recorded {
		if times != 1 {
			t.Errorf("attempt %d was recorded %d times", n, times)
		}
	}
}

func TestChainsAndFences(t *testing.T) {
	for name, cfg := range map[string]setup{"memory": memory(t), "disk": {Dir: t.TempDir()}} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			cfg.Now = c.now
			j := open(t, cfg)
			ctx := t.Context()
			link := func(after uint64, fence *Lease) (Position, error) {
				return j.Append(ctx, Entry{Scope: "s", Message: request(t, "x", "y"),
					Chain: &ChainLink{Name: "c", After: after}, Fence: fence})
			}
			if h, err := j.Head(ctx, "s", "c"); h != 0 || err != nil {
				t.Fatal(h, err)
			}
			one, err := link(0, nil)
			if err != nil {
				t.Fatal(err)
			}
			two, err := link(one.Sequence, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, forgetful := range []bool{false, true} {
				if forgetful {
					clear(j.parts[0].heads) // heads are read from the engine
				}
				var conflict *ConflictError
				if _, err := link(one.Sequence, nil); !errors.As(err, &conflict) || conflict.Head != two.Sequence ||
					!errors.Is(err, ErrConflict) || parley.CodeOf(err) != parley.Conflict {
					t.Fatal(err)
				}
				if _, err := link(0, nil); !errors.As(err, &conflict) || conflict.Head != two.Sequence {
					t.Fatal(err)
				}
			}
			// An invalid entry of a group is refused alone.
			clear(j.parts[0].heads)
			var wg sync.WaitGroup
			for i := range 100 {
				wg.Go(func() {
					e := Entry{Scope: "s", Message: request(t, "x", "y")}
					if i%10 == 0 {
						e.Chain = &ChainLink{Name: fmt.Sprint("chain", i), After: uint64(i % 20)}
					}
					_, err := j.Append(ctx, e)
					if wrong := i%10 == 0 && i%20 != 0; wrong != errors.Is(err, ErrConflict) || !wrong && err != nil {
						t.Error(i, err)
					}
				})
			}
			wg.Wait()

			lease, err := j.Lease(ctx, "s", "conn", time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := j.Lease(ctx, "s", "conn", time.Minute); !errors.Is(err, ErrExists) {
				t.Fatal(err)
			}
			c.add(50 * time.Second)
			if err := lease.Renew(ctx); err != nil {
				t.Fatal(err)
			}
			c.add(50 * time.Second)
			if _, err := j.Lease(ctx, "s", "conn", time.Minute); !errors.Is(err, ErrExists) {
				t.Fatal("another node acquired a renewed lease:", err)
			}
			three, err := link(two.Sequence, lease)
			if err != nil {
				t.Fatal(err)
			}
			c.add(time.Minute)
			taken, err := j.Lease(ctx, "s", "conn", time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			if taken.Epoch() <= lease.Epoch() {
				t.Fatal("the epoch does not grow")
			}
			for range 2 {
				if err := lease.Renew(ctx); !errors.Is(err, ErrFenced) {
					t.Fatal(err)
				}
			}
			if _, err := j.Append(ctx, Entry{Scope: "s", Message: request(t, "x", "y"), Fence: lease}); !errors.Is(err,
				ErrFenced) {
				t.Fatal(err)
			}
			if _, err := link(three.Sequence, lease); !errors.Is(err, ErrFenced) {
				t.Fatal(err)
			}
			if _, err := link(three.Sequence, taken); err != nil {
				t.Fatal(err)
			}
			if err := taken.Release(ctx); err != nil {
				t.Fatal(err)
			}
			if _, err := j.Lease(ctx, "s", "conn", time.Minute); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestLeaseOfEndedProcess: in a store for one process only, the lease of a killed
// process delays no other, whatever the name of its node.
func TestLeaseOfEndedProcess(t *testing.T) {
	dir := t.TempDir()
	j := open(t, setup{Dir: dir, Node: "one"})
	if _, err := j.Lease(t.Context(), "s", "erasing", time.Hour); err != nil {
		t.Fatal(err)
	}
	again := open(t, setup{Dir: crash(t, dir), Node: "two"})
	if _, err := again.Lease(t.Context(), "s", "erasing", time.Hour); err != nil {
		t.Error(err)
	}
}

func TestLimits(t *testing.T) {
	c := newClock()
	j := open(t, setup{Memory: true, Now: c.now, MaxKeys: 9, MaxLongKeys: 3, MaxOpen: 4, MaxPayload: 4096})
	accept := func(key, sender string, life time.Duration) error {
		_, _, err := j.Accept(t.Context(), Entry{Scope: "s", Message: request(t, "a", "b"),
			Key: Key{ID: key, Sender: sender, Until: c.now().Add(life)}})
		return err
	}
	for i := range 3 {
		if err := accept(fmt.Sprint("long", i), "alice", time.Hour+time.Duration(i)*time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	if err := accept("one more", "alice", time.Hour); !errors.Is(err, ErrBusy) || !parley.AsError(err).Retryable {
		t.Fatal(err)
	}
	if err := accept("of another", "bob", time.Hour); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		if err := accept(fmt.Sprint("short", i), "alice", time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	if err := accept("short 5", "alice", time.Minute); !errors.Is(err, ErrBusy) {
		t.Fatal(err)
	}
	c.add(15 * time.Minute)
	if err := accept("short 5", "alice", time.Minute); err != nil {
		t.Fatal("a key after the window of the short keys:", err)
	}
	if err := accept("one more", "alice", time.Hour); !errors.Is(err, ErrBusy) {
		t.Fatal(err)
	}
	c.add(46 * time.Minute)
	if err := accept("one more", "alice", time.Hour); err != nil {
		t.Fatal("a long key after another has expired:", err)
	}
	if s := j.Stats().Partitions[0]; s.LongKeys != 2 || s.Keys != 0 {
		t.Fatalf("%+v", s)
	}

	var first parley.ID
	for i := range 4 {
		m := request(t, "a", "b")
		if i == 0 {
			first = m.ID
		}
		if _, err := j.Append(t.Context(), Entry{Scope: "s", Message: m, Open: []Opening{{To: "b"}}}); err != nil {
			t.Fatal(err)
		}
	}
	one := Entry{Scope: "s", Message: request(t, "a", "b"), Open: []Opening{{To: "b"}}}
	if _, err := j.Append(t.Context(), one); !errors.Is(err, ErrBusy) {
		t.Fatal(err)
	}
	if _, err := j.Append(t.Context(), Entry{Steps: []Step{{Message: first, To: "b",
		State: parley.Expired}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Append(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	big := request(t, "a", "b")
	big.Parts[0].Data = make([]byte, 5000)
	if _, err := j.Append(t.Context(), Entry{Scope: "s", Message: big}); !errors.Is(err, ErrTooLarge) ||
		parley.CodeOf(err) != parley.TooLarge {
		t.Fatal(err)
	}
}

func TestInvalidEntries(t *testing.T) {
	j := open(t, setup{Memory: true, Partitions: 4})
	m := request(t, "a", "b")
	var other string
	for i := range 100 {
		if s := fmt.Sprint("x", i); j.Partition(s) != j.Partition("s") {
			other = s
		}
	}
	if _, err := j.Append(t.Context(), Entry{Scope: "s", Message: m, Open: []Opening{{To: "b"}}}); err != nil {
		t.Fatal(err)
	}
	lease, err := j.Lease(t.Context(), other, "l", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		e    Entry
		want error
	}{
		"empty":    {Entry{Scope: "s"}, ErrInvalid},
		"no scope": {Entry{Message: request(t, "a", "b")}, ErrInvalid},
		"no id":    {Entry{Scope: "s", Message: &parley.Message{}}, ErrInvalid},
		"open without message": {Entry{Scope: "s", Steps: []Step{{Message: m.ID, To: "b", State: parley.Dead}},
			Open: []Opening{{To: "b"}}}, ErrInvalid},
		"recipient twice": {Entry{Scope: "s", Message: request(t, "a", "b"), Open: []Opening{{To: "b"}, {To: "b"}}},
			ErrInvalid},
		"refused and open": {Entry{Scope: "s", Message: request(t, "a", "b"),
			Refused: parley.Refuse(parley.Forbidden, "no"), Open: []Opening{{To: "b"}}}, ErrInvalid},
		"two steps": {Entry{Steps: []Step{{Message: m.ID, To: "b", State: parley.Dead},
			{Message: m.ID, To: "b", State: parley.Dead}}}, ErrInvalid},
		"no state":          {Entry{Steps: []Step{{Message: m.ID, To: "b"}}}, ErrInvalid},
		"no reply":          {Entry{Steps: []Step{{Message: m.ID, To: "b", State: parley.Answered}}}, ErrInvalid},
		"key in Append":     {Entry{Scope: "s", Message: request(t, "a", "b"), Key: Key{ID: "x"}}, ErrInvalid},
		"duplicate message": {Entry{Scope: "s", Message: m, Open: []Opening{{To: "b"}}}, ErrConflict},
		"no such delivery":  {Entry{Steps: []Step{{Message: sampleID(9), To: "b", State: parley.Dead}}}, ErrConflict},
		"other partition": {Entry{Scope: other, Message: request(t, "a", "b"),
			Steps: []Step{{Message: m.ID, To: "b", State: parley.Dead}}}, ErrScope},
		"fence elsewhere": {Entry{Scope: "s", Message: request(t, "a", "b"), Fence: lease}, ErrScope},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := j.Append(t.Context(), c.e); !errors.Is(err, c.want) {
				t.Fatal(err)
			}
		})
	}
	if _, _, err := j.Accept(t.Context(), Entry{Scope: "s", Message: request(t, "a", "b")}); !errors.Is(err,
		ErrInvalid) {
		t.Fatal(err)
	}
	if _, err := j.Append(t.Context(), Entry{Steps: []Step{{Message: m.ID, To: "b", State: parley.Dead}}}); err != nil {
		t.Fatal("an entry with steps and no scope:", err)
	}
}

func TestRefusedUsesItsKey(t *testing.T) {
	j := open(t, memory(t))
	m := request(t, "a", "b")
	at, _, err := j.Accept(t.Context(), Entry{Scope: "s", Message: m,
		Refused: parley.Refuse(parley.Forbidden, "not yours"), Key: Key{ID: "k"}})
	if err != nil {
		t.Fatal(err)
	}
	_, prior, err := j.Accept(t.Context(), Entry{Scope: "s", Message: request(t, "a", "b"), Open: []Opening{{To: "b"}},
		Key: Key{ID: "k"}})
	if err != nil || prior == nil || !prior.Refused || prior.Message != m.ID {
		t.Fatal(prior, err)
	}
	r, err := j.Read(t.Context(), at)
	if err != nil || r.Refused.Code != parley.Forbidden {
		t.Fatal(r, err)
	}
	if n := len(j.Deliveries(Filter{})); n != 0 {
		t.Fatalf("%d deliveries", n)
	}
}

func TestWatchAndFollow(t *testing.T) {
	for name, cfg := range map[string]setup{"memory": memory(t), "disk": {Dir: t.TempDir()}} {
		t.Run(name, func(t *testing.T) {
			j := open(t, cfg)
			var last uint64
			seen := map[parley.ID]*Record{}
			stop := j.Watch(func(r *Record) {
				if r.Position.Sequence <= last {
					t.Errorf("%d after %d", r.Position.Sequence, last)
				}
				last = r.Position.Sequence
				seen[r.Message.ID] = r
			})
			followed := make(chan parley.ID, 300)
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() {
				for r, err := range j.Records(ctx, 0, From{Follow: true}) {
					if err != nil {
						if !errors.Is(err, context.Canceled) {
							t.Error(err)
						}
						return
					}
					followed <- r.Message.ID
				}
			})
			var callers sync.WaitGroup
			for range 8 {
				callers.Go(func() {
					for range 25 {
						m := request(t, "a", "b")
						at, err := j.Append(t.Context(), Entry{Scope: "s", Message: m})
						if err != nil {
							t.Error(err)
							return
						}
						got := <-followed
						_ = got
						_ = at
					}
				})
			}
			callers.Wait()
			stop()
			if len(seen) != 200 {
				t.Fatalf("%d records were watched", len(seen))
			}
			if _, err := j.Append(t.Context(), Entry{Scope: "s", Message: request(t, "a", "b")}); err != nil {
				t.Fatal(err)
			}
			if len(seen) != 200 {
				t.Fatal("a record was reported after stop")
			}
			cancel()
			wg.Wait()
		})
	}
}

func TestRecordsFrom(t *testing.T) {
	c := newClock()
	j := open(t, setup{Memory: true, Now: c.now})
	start := c.now()
	var ids []parley.ID
	for range 1200 {
		m := request(t, "a", "b")
		ids = append(ids, m.ID)
		if _, err := j.Append(t.Context(), Entry{Scope: "s", Message: m}); err != nil {
			t.Fatal(err)
		}
		c.add(time.Second)
	}
	count := func(f From) (n int, first parley.ID) {
		for r, err := range j.Records(t.Context(), 0, f) {
			if err != nil {
				t.Fatal(err)
			}
			if n == 0 {
				first = r.Message.ID
			}
			n++
		}
		return n, first
	}
	for name, x := range map[string]struct {
		from From
		want int
	}{
		"all": {From{}, 0}, "sequence": {From{Sequence: 700}, 699},
		"time":       {From{Time: start.Add(500 * time.Second)}, 500},
		"before all": {From{Time: start.Add(-time.Hour)}, 0}, "page": {From{Sequence: 513}, 512},
	} {
		if n, first := count(x.from); n != 1200-x.want || first != ids[x.want] {
			t.Errorf("%s: %d records from %s, want %d", name, n, first, 1200-x.want)
		}
	}
	if n, _ := count(From{Time: start.Add(time.Hour)}); n != 0 {
		t.Errorf("%d records after the end", n)
	}
	for r, err := range j.Records(t.Context(), 0, From{}) {
		if err != nil || r.Message.ID != ids[0] {
			t.Fatal(err)
		}
		break
	}
	if _, err := j.Read(t.Context(), Position{Sequence: 5000}); !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
}

func TestCallersLeave(t *testing.T) {
	j := open(t, setup{Dir: t.TempDir()})
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			if i%2 == 0 {
				go cancel()
			}
			defer cancel()
			m := request(t, "a", "b")
			_, err := j.Append(ctx, Entry{Scope: "s", Message: m, Open: []Opening{{To: "b"}}})
			switch {
			case err == nil:
				if _, ok := j.Delivery(m.ID, "b"); !ok {
					t.Error("an acknowledged delivery is missing")
				}
			case i%2 != 0:
				t.Error("a caller that did not cancel:", err)
			case errors.Is(err, ErrUnknown), errors.Is(err, context.Canceled):
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestQueueIsBounded(t *testing.T) {
	j := open(t, setup{Dir: t.TempDir(), maxQueued: 4})
	var wg sync.WaitGroup
	var mu sync.Mutex
	busy, stored := 0, 0
	for range 100 {
		wg.Go(func() {
			_, err := j.Append(t.Context(), Entry{Scope: "s", Message: request(t, "a", "b")})
			mu.Lock()
			defer mu.Unlock()
			if errors.Is(err, ErrBusy) {
				busy++
			} else if err == nil {
				stored++
			} else {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if busy+stored != 100 || stored == 0 {
		t.Fatal(busy, stored)
	}
}

func TestPosition(t *testing.T) {
	for _, s := range []string{"0-1", "12-18446744073709551615"} {
		p, err := ParsePosition(s)
		if err != nil || p.String() != s {
			t.Error(s, p, err)
		}
	}
	for _, s := range []string{"", "1", "0-0", "-1-2", "00-1", "0-01", "0-1 ", "70000-1", "+1-1"} {
		if _, err := ParsePosition(s); err == nil {
			t.Errorf("%q was parsed", s)
		}
	}
}

func TestStateTokens(t *testing.T) {
	j := open(t, memory(t))
	for _, key := range []string{"a", "/", "//", "a/", "/a", "a.b", "a_b", "*", ">", "Zürich/☃", "a b\x00c", "_"} {
		for _, bucket := range []string{"b", "b.c", "*"} {
			b, k, ok := store.ParseKeyTokens(store.KeyTokens(bucket, key))
			if !ok || b != bucket || k != key {
				t.Errorf("%q in %q became %q in %q", key, bucket, k, b)
			}
			rev, err := j.State(bucket).Put(t.Context(), key, []byte(key), time.Time{})
			if err != nil {
				t.Fatal(err)
			}
			v, err := j.State(bucket).Get(t.Context(), key)
			if err != nil || v.Key != key || string(v.Data) != key || v.Revision != rev {
				t.Errorf("%q: %+v %v", key, v, err)
			}
		}
	}
	n := 0
	for v, err := range j.State("b").Range(t.Context(), "/") {
		if err != nil || v.Key[0] != '/' {
			t.Fatal(v, err)
		}
		n++
	}
	if n != 3 {
		t.Fatalf("%d keys begin with a slash, want 3", n)
	}
}
