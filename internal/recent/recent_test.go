package recent

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var start = time.Unix(1_800_000_000, 0)

func TestKeysAreRememberedThroughTheirSecond(t *testing.T) {
	t.Parallel()
	k := &Keys{Max: 10}
	until := start.Add(10*time.Second + 300*time.Millisecond)
	if fresh, err := k.Seen("a", "x", start, until); !fresh || err != nil {
		t.Fatal(fresh, err)
	}
	for _, at := range []time.Time{start, until, start.Add(11*time.Second - 1)} {
		if fresh, err := k.Seen("a", "x", at, until); fresh || err != nil || !k.Known("x", at) {
			t.Error(at, fresh, err)
		}
	}
	if at := start.Add(11 * time.Second); k.Known("x", at) {
		t.Error("remembered after its second")
	}
	// A key that is due already lasts to the end of the present second.
	k.Seen("a", "y", start, start.Add(-time.Hour))
	if !k.Known("y", start) || k.Known("y", start.Add(time.Second)) {
		t.Error("a key whose time is past")
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	k := &Keys{Max: 8, MaxOwner: 3, Long: 5 * time.Minute}
	see := func(owner, key string, life time.Duration, want error) {
		t.Helper()
		fresh, err := k.Seen(owner, key, start, start.Add(life))
		if !errors.Is(err, want) || fresh != (want == nil) {
			t.Errorf("%s %s: %v, %v", owner, key, fresh, err)
		}
	}
	for i := range 3 {
		see("a", fmt.Sprint("a", i), time.Minute, nil)
	}
	see("a", "a3", time.Minute, ErrFull)
	for i := range 4 {
		see(fmt.Sprint(i), fmt.Sprint("long", i), time.Hour, nil)
	}
	see("z", "z", time.Hour, ErrFull)
	see("z", "z", time.Second, nil)
	see("y", "y", time.Second, ErrFull)
	at := start.Add(2 * time.Minute)
	if k.Known("a0", at) || k.Len() != 4 || len(k.owners) != 4 || k.long != 4 {
		t.Errorf("%d keys of %d owners, %d long", k.Len(), len(k.owners), k.long)
	}
	k.Known("", start.Add(2*time.Hour))
	if k.Len() != 0 || len(k.owners) != 0 || k.long != 0 || len(k.due) != 0 {
		t.Errorf("%+v", k)
	}
}

func TestClockJumps(t *testing.T) {
	t.Parallel()
	k := &Keys{Max: 1000}
	at := start
	for i := range 5000 {
		at = at.Add(time.Second)
		if fresh, err := k.Seen("", fmt.Sprint(i), at, at.Add(300*time.Second)); err != nil || !fresh {
			t.Fatal(i, fresh, err)
		}
	}
	if k.Len() > 302 || len(k.due) > 302 {
		t.Errorf("%d keys, %d seconds kept", k.Len(), len(k.due))
	}
	at = at.Add(time.Hour)
	if _, err := k.Seen("", "x", at, at.Add(time.Second)); err != nil || k.Len() != 1 || len(k.due) != 1 {
		t.Errorf("%d keys, %d seconds kept after an hour", k.Len(), len(k.due))
	}
	at = at.Add(-time.Minute)
	if fresh, err := k.Seen("", "y", at, at.Add(time.Second)); err != nil || !fresh || !k.Known("y", at) {
		t.Error(fresh, err)
	}
	if k.Known("y", at.Add(2*time.Second)) {
		t.Error("y is remembered although its time is past")
	}
}

func TestExactlyOneOfConcurrentCallsIsFresh(t *testing.T) {
	t.Parallel()
	k := &Keys{Max: 10}
	var fresh atomic.Int32
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			if ok, _ := k.Seen("a", "x", start, start.Add(time.Minute)); ok {
				fresh.Add(1)
			}
		})
	}
	wg.Wait()
	if fresh.Load() != 1 {
		t.Error(fresh.Load())
	}
}
