package journal

import (
	"errors"
	"sync"
	"testing"
	"time"
)

// laggard opens a journal whose watcher blocks at the first record, so that its view
// lags behind. held is closed when the watcher blocks; readOn releases it.
func laggard(t *testing.T, cfg setup) (j *Journal, held <-chan struct{}, readOn func()) {
	t.Helper()
	j = open(t, cfg)
	first, gate := make(chan struct{}), make(chan struct{})
	var once sync.Once
	stop := j.Watch(func(*Record) {
		once.Do(func() { close(first) })
		<-gate
	})
	readOn = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(func() { readOn(); stop() })
	return j, first, readOn
}

// TestCatchUp: after CatchUp a node knows every record that another node appended
// before, however far it lagged behind.
func TestCatchUp(t *testing.T) {
	s := natsServer(t, nil)
	a := open(t, setup{URL: s.ClientURL(), Node: "a", Partitions: 2})
	b, held, readOn := laggard(t, setup{URL: s.ClientURL(), Node: "b"})
	deliver := func() *Entry {
		m := request(t, "alice", "bob")
		e := &Entry{Scope: "s", Message: m, Open: []Opening{{To: "bob"}}}
		if _, err := a.Append(t.Context(), *e); err != nil {
			t.Fatal(err)
		}
		return e
	}
	deliver()
	<-held
	late := deliver().Message.ID
	if _, ok := b.Delivery(late, "bob"); ok {
		t.Fatal("b knows the delivery although its watcher is blocked")
	}
	done := make(chan error, 1)
	go func() { done <- b.CatchUp(t.Context()) }()
	readOn()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, ok := b.Delivery(late, "bob"); !ok {
		t.Error("after CatchUp b does not know the delivery")
	}
	if err := a.CatchUp(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestCatchUpGivesUp: if a node cannot read on, CatchUp returns a retryable error within
// its timeout.
func TestCatchUpGivesUp(t *testing.T) {
	s := natsServer(t, nil)
	a := open(t, setup{URL: s.ClientURL(), Node: "a", Partitions: 1})
	b, held, _ := laggard(t, setup{URL: s.ClientURL(), Node: "b"})
	b.cfg.Timeout = 100 * time.Millisecond // only now: to open it may take longer
	for range 2 {
		if _, err := a.Append(t.Context(), Entry{Scope: "s", Message: request(t, "alice", "bob")}); err != nil {
			t.Fatal(err)
		}
	}
	<-held
	if err := b.CatchUp(t.Context()); !errors.Is(err, ErrBusy) {
		t.Error(err)
	}
}
