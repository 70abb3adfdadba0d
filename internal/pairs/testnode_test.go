package pairs

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/testcluster"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
)

// Most tests wait for peers and for time to pass: more tests run at once than there are
// processors.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m, testcluster.Leaks()...)
}

// within bounds every wait of a test on a busy machine.
const within = 90 * time.Second

// testNode is a node with peers and the records of its journal.
type testNode struct {
	*node.Node
	config node.Config
	peers  []Peer

	mu      sync.Mutex
	records []*journal.Record
	more    chan struct{} // closed by the next record
}

// newTestNode starts a node that has the peers in its configuration. They have not joined
// it.
func newTestNode(t *testing.T, c node.Config, peers ...Peer) *testNode {
	t.Helper()
	if c.Data == "" {
		c.Data = filepath.Join(t.TempDir(), "data")
	}
	c.Durability = cmp.Or(c.Durability, "memory")
	if err := Configure(&c, t.TempDir(), peers...); err != nil {
		t.Fatal(err)
	}
	w := &testNode{config: c, peers: peers, more: make(chan struct{})}
	w.open(t)
	t.Cleanup(func() {
		var leaving sync.WaitGroup
		for _, p := range peers {
			leaving.Go(p.Leave)
		}
		leaving.Wait()
		w.close(t)
	})
	return w
}

func (w *testNode) open(t *testing.T) {
	t.Helper()
	n, err := node.Open(context.Background(), w.config)
	if err != nil {
		t.Fatal(err)
	}
	w.Node = n
	n.Hub().Journal().Watch(func(r *journal.Record) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.records = append(w.records, r)
		close(w.more)
		w.more = make(chan struct{})
	})
	if err := n.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func (w *testNode) close(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), within)
	defer stop()
	if err := w.Close(ctx); err != nil {
		t.Error(err)
	}
}

// join connects peers to the node.
func (w *testNode) join(t *testing.T, peers ...Peer) {
	t.Helper()
	for _, p := range peers {
		if err := p.Join(patient(t), At(w.Node), false); err != nil {
			t.Fatalf("%s joins: %v", p.Name(), err)
		}
	}
}

// record waits for a record that satisfies f.
func (w *testNode) record(t *testing.T, what string, f func(*journal.Record) bool) *journal.Record {
	t.Helper()
	ctx := patient(t)
	for at := 0; ; {
		w.mu.Lock()
		list, more := w.records, w.more
		w.mu.Unlock()
		for ; at < len(list); at++ {
			if f(list[at]) {
				return list[at]
			}
		}
		select {
		case <-more:
		case <-ctx.Done():
			t.Fatalf("the journal never recorded %s", what)
		}
	}
}

// said finds the record of a message from one agent to another.
func (w *testNode) said(t *testing.T, from, to Peer, text string) *parley.Message {
	t.Helper()
	return w.record(t, fmt.Sprintf("%q from %s to %s", text, from.Name(), to.Name()), func(r *journal.Record) bool {
		m := r.Message
		return m != nil && m.From == from.Name() && slices.Contains(m.Recipients(), to.Name()) && r.Refused == nil &&
			m.InReplyTo.IsZero() && holds(m, text)
	}).Message
}

// holds reports whether a message has a text, in any protocol's form.
func holds(m *parley.Message, text string) bool { return Said(m) == text }

// settled waits until the delivery of a message has one of the states.
func (w *testNode) settled(t *testing.T, id parley.ID, want ...parley.DeliveryState) journal.Step {
	t.Helper()
	var found journal.Step
	w.record(t, fmt.Sprintf("the delivery of %s as %v", id, want), func(r *journal.Record) bool {
		for _, s := range r.Steps {
			for _, v := range want {
				if s.Message == id && s.State == v {
					found = s
					return true
				}
			}
		}
		return false
	})
	return found
}

// patient is a context that ends when a wait of the test has failed.
func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), within)
	t.Cleanup(stop)
	return ctx
}

// next waits for a message to a peer that satisfies f.
func next(t *testing.T, p Peer, what string, f func(Heard) bool) Heard {
	t.Helper()
	ctx := patient(t)
	for {
		select {
		case h := <-p.Heard():
			if f(h) {
				return h
			}
		case <-ctx.Done():
			t.Fatalf("%s never heard %s", p.Name(), what)
		}
	}
}

func hears(t *testing.T, p Peer, text string) Heard {
	t.Helper()
	return next(t, p, fmt.Sprintf("%q", text), func(h Heard) bool { return h.Text == text })
}

func newPeer(t *testing.T, protocol, name string) Peer {
	t.Helper()
	p, err := New(protocol, name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// explain logs the journal's records of two agents if the test fails.
func (w *testNode) explain(t *testing.T, from, to Peer) {
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		mine := map[parley.ID]bool{}
		for _, r := range w.records {
			if m := r.Message; m != nil && (m.From == from.Name() || m.From == to.Name()) {
				mine[m.ID] = true
				t.Logf("%s %s %s: %s -> %s %s about %s %.80q %v", r.Time.Format("05.000"), r.Position, m.Kind, m.From,
					m.Recipients(), m.ID, m.InReplyTo, m.Text(), m.Error)
			}
			for _, s := range r.Steps {
				if mine[s.Message] {
					t.Logf("%s %s %s to %s: %s, attempt %d, %v", r.Time.Format("05.000"), r.Position, s.Message, s.To,
						s.State, s.Attempt, s.Error)
				}
			}
		}
	})
}
