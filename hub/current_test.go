package hub

import (
	"context"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/internal/testcluster"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/jetstream"
)

// shared opens a journal on a server that other nodes use too.
func shared(t *testing.T, url, node string) *journal.Journal {
	t.Helper()
	j, err := journal.Open(t.Context(), journal.Config{Store: testjournal.Cluster(t, jetstream.Config{URL: url}),
		Node: node, Partitions: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after the hub is closed
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	return j
}

// TestReplyIsSoonerThanItsRequest: an answer or a cancel reaches a hub that has not
// yet read the request, which another hub recorded; the hub accepts it.
func TestReplyIsSoonerThanItsRequest(t *testing.T) {
	url := testcluster.Start(t, 1).URLs[0]
	for _, c := range []struct {
		name string
		said *parley.Message // about the request
	}{
		{"answer", &parley.Message{Kind: parley.Response, From: "bob", Parts: []parley.Part{parley.Text("yes")}}},
		{"cancel", &parley.Message{Kind: parley.Cancel, From: "alice", To: "bob"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			silent := func() *wire {
				return &wire{name: "wire", can: Capabilities{Deduplicates: true},
					deliver: func(context.Context, Outbound) Outcome { return Outcome{} }}
			}
			there := start(t, func(h *Config) { h.Journal = shared(t, url, c.name+"-there") }, silent())
			j := shared(t, url, c.name+"-here")
			here := start(t, func(h *Config) { h.Journal = j }, silent())
			bob := parley.Identity{Protocol: "wire", ID: "bob"}
			there.agent(t, "bob", bob)
			here.agent(t, "bob", bob)

			gate, held := make(chan struct{}), make(chan struct{}, 1)
			stop := j.Watch(func(*journal.Record) {
				select {
				case held <- struct{}{}:
				default:
				}
				<-gate
			})
			readOn := sync.OnceFunc(func() { close(gate) })
			t.Cleanup(func() { readOn(); stop() })
			if _, err := there.Accept(t.Context(), ask("bob", "",
				"the record at which the other hub is held up")); err != nil {
				t.Fatal(err)
			}
			<-held
			request, err := there.Accept(t.Context(), ask("bob", "", "well?"))
			if err != nil {
				t.Fatal(err)
			}
			if _, known := j.Delivery(request.ID, "bob"); known {
				t.Fatal("the request is known already")
			}
			nc, err := nats.Connect(url)
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			asks := make(chan *nats.Msg, 64)
			if _, err = nc.ChanSubscribe("$JS.API.STREAM.INFO.>", asks); err == nil {
				err = nc.Flush()
			}
			if err != nil {
				t.Fatal(err)
			}
			c.said.InReplyTo = request.ID
			c.said.Origin = parley.Origin{Protocol: "wire", Verdict: parley.Verdict{Assurance: parley.Session}}
			taken := make(chan error, 1)
			go func() {
				_, err := here.Accept(t.Context(), Submission{Scope: "test bob", Message: c.said})
				taken <- err
			}()
			select {
			case <-asks: // the hub reads on before it refuses
			case err := <-taken:
				t.Fatalf("it did not read on first: %v", err)
			}
			readOn()
			if err := <-taken; err != nil {
				t.Error(err)
			}
		})
	}
}

// recordHook is an Observer that calls a function before a message is recorded.
type recordHook struct {
	Observer
	before func(m *parley.Message)
}

func (o *recordHook) Record(ctx context.Context, m *parley.Message) (context.Context, func(error)) {
	o.before(m)
	return ctx, nil
}

func (o *recordHook) Attempt(ctx context.Context, _ *delivery.Attempt, _ string) (context.Context,
	func(delivery.Result)) {
	return ctx, nil
}

// TestReplyWhileAnotherAttemptBegins: an answer is accepted while another attempt of
// its request begins.
func TestReplyWhileAnotherAttemptBegins(t *testing.T) {
	j, err := journal.Open(t.Context(), journal.Config{Store: testjournal.Memory(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after the hub is closed
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	begun := 0
	o := &recordHook{before: func(m *parley.Message) {
		if m.Kind != parley.Response || begun > 0 {
			return
		}
		begun++
		again := journal.Step{Message: m.InReplyTo, To: "bob", State: parley.Delivering, Attempt: 2}
		if _, err := j.Append(t.Context(), journal.Entry{Steps: []journal.Step{again}}); err != nil {
			t.Error(err)
		}
	}}
	h := start(t, func(c *Config) { c.Journal, c.Observer = j, o })
	m := &parley.Message{ID: parley.HashID([]byte("request")), Kind: parley.Request,
		From: "alice", To: "bob", Parts: []parley.Part{parley.Text("well?")}}
	// No attempt is in flight here.
	if _, err := j.Append(t.Context(), journal.Entry{Scope: "s", Message: m,
		Open: []journal.Opening{{To: "bob", Attempt: 1}}}); err != nil {
		t.Fatal(err)
	}
	answer := &parley.Message{Kind: parley.Response, From: "bob", InReplyTo: m.ID,
		Parts:  []parley.Part{parley.Text("yes")},
		Origin: parley.Origin{Protocol: "api", Verdict: parley.Verdict{Assurance: parley.Session}}}
	if _, err := h.Accept(t.Context(), Submission{Scope: "s", Message: answer}); err != nil {
		t.Fatal(err)
	}
	if _, open := j.Delivery(m.ID, "bob"); open || begun != 1 {
		t.Errorf("the request is open: %v, after %d further attempts", open, begun)
	}
}
