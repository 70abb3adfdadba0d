package journal

import (
	"errors"
	"testing"
	"time"
)

// unacknowledged is an op of the state as its writer has it that sent it and
// heard nothing.
func unacknowledged(j *Journal, v Value, expect *expectation) *op {
	id := opID{j.run, j.number.Add(1)}
	o := &op{id: id, kv: &change{"bucket", v}, done: make(chan struct{}), msgs: []*outgoing{{subject: j.keySubject("bucket", v.Key), data: encodeState(&v, id), expect: expect}}}
	o.phase.Store(opTaken)
	j.state.writer.fly([]*op{o})
	return o
}

// TestLeaderIsGone: what was sent to a leader that is gone, and that the one after
// it does not have, is sent again where that does no harm, and stored once.
func TestLeaderIsGone(t *testing.T) {
	s := natsServer(t, nil)
	j := open(t, Config{URL: s.ClientURL(), Partitions: 1})
	w, state := j.state.writer, j.State("bucket")
	value := func(key string) (string, uint64) {
		v, err := state.Get(t.Context(), key)
		if err != nil && !errors.Is(err, ErrNotFound) {
			t.Fatal(err)
		}
		return string(v.Data), v.Revision
	}

	o := unacknowledged(j, Value{Key: "a", Data: []byte("new")}, nil)
	w.resolveExternal([]*op{o}, true)
	<-o.done
	if v, at := value("a"); o.err != nil || v != "new" || at != o.seq {
		t.Errorf("sent again: %q at %d, not %d, %v", v, at, o.seq, o.err)
	}

	// It had landed: it is not sent again.
	rev, err := state.Put(t.Context(), "b", []byte("old"), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	o = unacknowledged(j, Value{Key: "b", Data: []byte("new")}, nil)
	w.arrived(o.id, rev)
	w.resolveExternal([]*op{o}, true)
	<-o.done
	if v, _ := value("b"); o.err != nil || o.seq != rev || v != "old" {
		t.Errorf("it had landed: %q, %d, %v", v, o.seq, o.err)
	}

	// It lands while it is sent again: what refuses the second is the first.
	o = unacknowledged(j, Value{Key: "c", Data: []byte("new")}, nil)
	subject := o.msgs[0].subject
	o.msgs[0].expect = &expectation{ofState, subject, 0}
	o.resent = true
	if err := o.msgs[0].publish(j.link.Load().nc, "", nil); err != nil {
		t.Fatal(err)
	}
	w.again([]*op{o})
	<-o.done
	if v, at := value("c"); o.err != nil || v != "new" || at != o.seq {
		t.Errorf("it landed meanwhile: %q at %d, not %d, %v", v, at, o.seq, o.err)
	}

	// Another's is still a conflict.
	o = unacknowledged(j, Value{Key: "c", Data: []byte("newer")}, &expectation{ofState, subject, 0})
	w.resolveExternal([]*op{o}, true)
	<-o.done
	if v, _ := value("c"); !errors.Is(o.err, ErrConflict) || v != "new" {
		t.Errorf("another was sooner: %q, %v", v, o.err)
	}

	// What could be stored twice is not sent again.
	p := j.parts[0].writer
	r := &op{id: opID{j.run, j.number.Add(1)}, rec: &sealed{Record: &Record{}}, msgs: []*outgoing{{subject: "PARLEY.x"}}, done: make(chan struct{})}
	p.fly([]*op{r})
	p.resolveExternal([]*op{r}, true)
	if <-r.done; !errors.Is(r.err, ErrUnknown) {
		t.Errorf("%v", r.err)
	}
	p.land([]*op{r})

	w.flyMu.Lock()
	defer w.flyMu.Unlock()
	if o := w.flying; len(o) > 1 { // "b" was never committed, nor taken out
		t.Errorf("%d ops are remembered", len(o))
	}
}

// TestDeposed: a writer learns that the stream has another leader than it knew,
// when it has read what that one has.
func TestDeposed(t *testing.T) {
	if testing.Short() {
		t.Log("the cluster is left out with -short")
		return
	}
	c := natsCluster(t)
	j := open(t, Config{URL: c[0].ClientURL(), Partitions: 1})
	w := j.state.writer
	rev, err := j.State("bucket").Put(t.Context(), "a", []byte("b"), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	known := func() string {
		w.flyMu.Lock()
		defer w.flyMu.Unlock()
		return w.leader
	}
	eventually(t, "the leader is known", func() bool { return known() != "" })
	noticed := func(reconnects uint64) {
		t.Helper()
		w.fly(nil)
		gone, stop := w.deposed(reconnects)
		defer stop()
		select {
		case <-gone:
		case <-time.After(time.Minute):
			t.Fatal("not noticed")
		}
	}
	nc := j.link.Load().nc
	w.ledBy("a server that is gone")
	noticed(nc.Stats().Reconnects)
	noticed(nc.Stats().Reconnects + 1) // another connection, to the same leader
	if got := w.followed.Load(); got < rev {
		t.Errorf("followed to %d, not %d", got, rev)
	}
	if leader := known(); leader == "" || leader == "a server that is gone" {
		t.Errorf("the leader is %q", leader)
	}
}
