package hub

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/internal/testcluster"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/jetstream"
)

// TestRecipientJustAdded: another hub adds an agent and takes a message for it. The hub
// that makes the attempt finds the agent, though it has not heard of it yet.
func TestRecipientJustAdded(t *testing.T) {
	ctx := t.Context()
	j, err := journal.Open(ctx, journal.Config{Store: testjournal.Memory(t)})
	if err != nil {
		t.Fatal(err)
	}
	directories := make([]*directory.Directory, 2)
	for i := range directories {
		if directories[i], err = directory.Open(ctx, directory.Options{State: j.State("agents")}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(directories[i].Close)
	}
	directories[1].Close() // it gets no more changes
	bob := parley.Agent{Name: "bob", Identities: []parley.Identity{{Protocol: "wire", ID: "bob"}}}
	if _, err := directories[0].Put(ctx, bob, directory.FromOperator); err != nil {
		t.Fatal(err)
	}
	m := &parley.Message{ID: parley.HashID([]byte("notice")), Kind: parley.Notice, From: "alice", To: "bob",
		Parts: []parley.Part{parley.Text("hello")}}
	if _, err := j.Append(ctx, journal.Entry{Scope: "test", Message: m,
		Open: []journal.Opening{{To: "bob"}}}); err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 1)
	start(t, func(c *Config) { c.Journal, c.Directory = j, directories[1] },
		&wire{name: "wire", deliver: func(_ context.Context, o Outbound) Outcome {
			got <- o.Message.Text()
			return Outcome{}
		}})
	select {
	case text := <-got:
		if text != "hello" {
			t.Errorf("delivered: %q", text)
		}
	case <-time.After(time.Minute):
		d, _ := j.Delivery(m.ID, "bob")
		t.Fatalf("it was not delivered: %+v", d)
	}
}

// TestHubsComeAndGo: hubs are started and stopped in order while attempts are in
// flight at recipients that do not deduplicate. Each message is attempted once,
// wherever its partition goes, no outcome is unknown, and callers are answered at
// the hub where they wait.
func TestHubsComeAndGo(t *testing.T) {
	url := testcluster.Start(t, 1).URLs[0]
	const partitions = 8
	var mu sync.Mutex
	attempts := map[string]int{} // by text
	begun := make(chan struct{}, 1000)
	var gate chan struct{} // attempts wait until it is closed
	hold := func() (release func()) {
		mu.Lock()
		defer mu.Unlock()
		g := make(chan struct{})
		gate = g
		return func() { close(g) }
	}
	type running struct {
		*Hub
		j *journal.Journal
	}
	open := func(name string) running {
		w := &wire{name: "wire", can: Capabilities{CarriesReplies: true},
			deliver: func(ctx context.Context, o Outbound) Outcome {
				mu.Lock()
				attempts[o.Message.Text()]++
				g := gate
				mu.Unlock()
				begun <- struct{}{}
				select {
				case <-g:
				case <-ctx.Done():
					return Outcome{Err: parley.AsError(ctx.Err()), Unknown: true}
				}
				if o.Message.Kind != parley.Request {
					return Outcome{}
				}
				return Outcome{Answered: true, Parts: []parley.Part{parley.Text("answer to " + o.Message.Text())}}
			}}
		j, err := journal.Open(t.Context(), journal.Config{Store: testjournal.Cluster(t, jetstream.Config{URL: url}),
			Node: name, Partitions: partitions})
		if err != nil {
			t.Fatal(err)
		}
		h := start(t, func(c *Config) {
			c.Journal, c.Delivery.HandOver = j, 100*time.Millisecond
		}, w)
		t.Cleanup(func() {
			if err := j.Close(); err != nil {
				t.Error(err)
			}
		})
		h.agent(t, "bob", parley.Identity{Protocol: "wire", ID: "bob"})
		return running{h, j}
	}
	owned := func(hs ...running) (n int) {
		for p := range partitions {
			for _, h := range hs {
				if h.j.Owned(p) {
					n++
				}
			}
		}
		return n
	}
	one, two := open("one"), open("two")
	wait := func(what string, ok func() bool) {
		t.Helper()
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for limit := time.After(time.Minute); !ok(); {
			select {
			case <-tick.C:
			case <-limit:
				t.Fatal("not reached: " + what)
			}
		}
	}
	wait("two hubs share", func() bool { return owned(one, two) == partitions && owned(two) > 0 && owned(one) > 0 })

	const n = 40
	round := 0
	// load leaves messages in flight at h, and asks with callers that wait.
	load := func(h running) (heard chan error) {
		t.Helper()
		round++
		heard = make(chan error, n)
		for i := range n {
			s := ask("bob", "", fmt.Sprintf("%d/%d", round, i))
			s.Scope = fmt.Sprint("scope ", round, " ", i)
			if i%2 == 0 {
				s.Message.Kind = parley.Notice
				if _, err := h.Accept(t.Context(), s); err != nil {
					t.Fatal(err)
				}
				heard <- nil
				continue
			}
			go func() {
				m, err := h.Ask(t.Context(), s)
				if err == nil && m.Text() != "answer to "+s.Message.Text() {
					err = fmt.Errorf("%s was answered %q, %v", s.Message.Text(), m.Text(), m.Error)
				}
				heard <- err
			}()
		}
		for range n {
			<-begun
		}
		return heard
	}
	answered := func(heard chan error) {
		t.Helper()
		for range n {
			if err := <-heard; err != nil {
				t.Error(err)
			}
		}
	}

	release := hold()
	first := load(one)
	three := open("three")
	wait("the third has its share", func() bool { return owned(one, two, three) == partitions && owned(three) > 0 })
	release()
	answered(first)

	// One hub is stopped in order while it has attempts in flight, of its own callers
	// and of another hub's.
	release = hold()
	second := load(two)
	stopped := make(chan error)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		stopped <- one.Close(ctx)
	}()
	wait("the others share", func() bool { return owned(two, three) == partitions })
	release()
	answered(second)
	if err := <-stopped; err != nil {
		t.Error(err)
	}

	wait("all is settled", func() bool {
		return len(two.j.Deliveries(journal.Filter{States: []parley.DeliveryState{parley.Waiting,
			parley.Delivering}})) == 0
	})
	if dead := two.j.Deliveries(journal.Filter{States: []parley.DeliveryState{parley.Dead}}); len(dead) > 0 {
		t.Errorf("%d dead letters, the first: %v", len(dead), dead[0].Error)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(attempts) != 2*n {
		t.Errorf("%d messages were attempted, want %d", len(attempts), 2*n)
	}
	for text, k := range attempts {
		if k != 1 {
			t.Errorf("%s was attempted %d times", text, k)
		}
	}
}
