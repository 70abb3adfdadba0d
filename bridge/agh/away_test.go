package agh_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/agh"
	bridge "github.com/parley-hub/parley/bridge/agh"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
)

// bare is a peer that only subscribes its two subjects and greets.
type bare struct {
	nc  *nats.Conn
	got chan *nats.Msg
}

func (w *world) bare(token, id string) *bare {
	w.t.Helper()
	p := &bare{nc: w.connect(token), got: make(chan *nats.Msg, 256)}
	for _, subject := range []string{"agh.network.v0.acme.builders.broadcast", own(w.t, id)} {
		if _, err := p.nc.ChanSubscribe(subject, p.got); err != nil {
			w.t.Fatal(err)
		}
	}
	subject, b := greeting(w.t, "acme", "builders", id)
	if err := errors.Join(p.nc.Flush(), p.nc.Publish(subject, b), p.nc.Flush()); err != nil {
		w.t.Fatal(err)
	}
	w.here("acme", id)
	return p
}

// next gives the next message of a conversation, and a summary of it.
func (p *bare) next(t *testing.T) (*agh.Envelope, string) {
	t.Helper()
	for {
		select {
		case m := <-p.got:
			e, err := agh.Decode(m.Data)
			if _, trusting := (&agh.Decoder{Handles: true}).Decode(m.Data); err != nil && trusting == nil {
				continue // from a verified peer, for peers that accept handles
			}
			if err != nil {
				t.Fatalf("%s: %v", m.Data, err)
			}
			switch c := e.Content().(type) {
			case *agh.Say:
				return e, "say " + c.Text
			case *agh.Trace:
				return e, "trace " + string(c.State)
			case *agh.Receipt:
				return e, "receipt " + string(c.Status)
			}
		case <-time.After(time.Minute):
			t.Fatal("no message arrives")
		}
	}
}

func (p *bare) publish(t *testing.T, e *agh.Envelope, content any) {
	t.Helper()
	e.ID, e.WorkspaceID, e.Channel, e.TS = agh.NewID(), "acme", "builders", time.Now().Unix()
	if err := errors.Join(p.nc.Publish(written(t, e, content)), p.nc.Flush()); err != nil {
		t.Fatal(err)
	}
}

// A peer that greets again gets the messages that it missed, of every kind and from
// every sender, unless expired. No peer gets a message twice.
func TestAwayGetsEveryKind(t *testing.T) {
	var ahead atomic.Int64 // of the hub's clock, in seconds
	w := newWorld(t, func(c *node.Config) {
		c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load()) * time.Second) }
	})
	bob, carol := w.bare("tb", "bob"), w.bare("tc", "carol")
	thread := &agh.Envelope{Surface: agh.SurfaceThread, ThreadID: "thread_work", From: "bob", To: "crew__weather",
		WorkID: "work_slow"}
	bob.publish(t, thread, &agh.Say{Text: `{"city":"slow"}`})
	for _, want := range []string{"receipt accepted", "trace working"} {
		if _, got := bob.next(t); got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
	say := func(kind parley.Kind, from, to, text string, more func(*parley.Message)) *parley.Message {
		t.Helper()
		m := &parley.Message{Kind: kind, From: from, To: to, Parts: []parley.Part{parley.Text(text)},
			Origin: parley.Origin{Protocol: "go", Peer: from}}
		if more != nil {
			more(m)
		}
		got, err := w.Hub().Accept(t.Context(), hub.Submission{Scope: "go", Message: m})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	first := say(parley.Notice, "listener", "agh/acme/builders", "to all who are here", nil)
	for _, p := range []*bare{bob, carol} {
		if e, got := p.next(t); got != "say to all who are here" || e.From != "listener" || e.To != "" {
			t.Errorf("%s", e.Raw())
		}
	}
	w.until("all deliveries are recorded", func() bool {
		return len(w.Hub().Journal().Deliveries(journal.Filter{Conversation: first.Conversation,
			States: []parley.DeliveryState{parley.Waiting, parley.Delivering}})) == 0
	})
	bob.nc.Close()
	away, _ := w.Hub().Directory().Lookup("agh", "acme/bob")
	w.until("bob is away", func() bool { return w.AGH().Holds(away, bridge.Identity("acme", "bob")) })

	soon := w.Hub().Now().Add(100 * time.Second)
	say(parley.Notice, "listener", "agh/acme/builders", "to all", nil)
	say(parley.Notice, "listener", "agh/acme/builders", "too late for all",
		func(m *parley.Message) { m.Expires = soon })
	say(parley.Notice, "listener", "guest/agh/acme/bob", "to bob", nil)
	say(parley.Notice, "listener", "guest/agh/acme/bob", "too late", func(m *parley.Message) { m.Expires = soon })
	request := say(parley.Request, "listener", "guest/agh/acme/bob", "build it", nil)
	stale := say(parley.Request, "listener", "guest/agh/acme/bob", "build it too late",
		func(m *parley.Message) { m.Deadline = soon })
	close(w.block) // the answer to bob's request
	var heard []string
	for range 2 { // of two conversations, in any order
		_, got := carol.next(t)
		heard = append(heard, got)
	}
	slices.Sort(heard)
	if want := []string{"say to all", "say too late for all"}; !slices.Equal(heard, want) {
		t.Errorf("carol received %q", heard)
	}
	w.until("the answer is recorded", func() bool { return len(w.messages(parley.Response)) == 1 })
	ahead.Store(200)

	back := w.bare("tb", "bob")
	var got []string
	for range 5 {
		e, s := back.next(t)
		if e.WorkID == "work_slow" {
			s = "answer: " + strings.Fields(s)[0]
		}
		if s == "say build it" && (e.WorkID == "" || !strings.Contains(string(e.Ext), request.ID.String())) {
			t.Errorf("%s", e.Raw())
		}
		got = append(got, s)
	}
	slices.Sort(got)
	if want := []string{"answer: say", "answer: trace", "say build it", "say to all", "say to bob"}; !slices.Equal(got,
		want) {
		t.Errorf("got %q", got)
	}
	w.until("the late request has failed", func() bool {
		return slices.ContainsFunc(w.messages(parley.Failure),
			func(m *parley.Message) bool { return m.InReplyTo == stale.ID })
	})
	// The last message: neither peer gets another before it.
	say(parley.Notice, "listener", "agh/acme/builders", "the last word", nil)
	for _, p := range []*bare{back, carol} {
		if _, got := p.next(t); got != "say the last word" {
			t.Errorf("received %q", got)
		}
	}
}

// Agents of other protocols in a channel get the channel's messages, from peers and
// from agents.
func TestChannelIsHeardByAgents(t *testing.T) {
	w := newWorld(t, nil)
	if _, err := w.Hub().Accept(t.Context(), hub.Submission{Scope: "api",
		Message: &parley.Message{Kind: parley.Notice, From: "operator", To: "agh/acme/builders",
			Parts:  []parley.Part{parley.Text("dinner is ready")},
			Origin: parley.Origin{Protocol: "api", Peer: "operator"}}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	select {
	case m := <-w.notices:
		if m.Text() != "dinner is ready" || m.From != "operator" {
			t.Errorf("%+v", m)
		}
	case <-ctx.Done():
		t.Fatal(fmt.Errorf("no agent received it: %w", ctx.Err()))
	}
}
