package asp_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
)

// recordLog has the journal's records from the start of the watch.
type recordLog struct {
	mu   sync.Mutex
	list []*journal.Record
	more chan struct{} // closed by the next record
}

// watch begins a recordLog; before are earlier records.
func (w *world) watch(before ...*journal.Record) *recordLog {
	w.t.Helper()
	out := &recordLog{list: before, more: make(chan struct{})}
	w.t.Cleanup(w.Hub().Journal().Watch(func(r *journal.Record) {
		out.mu.Lock()
		defer out.mu.Unlock()
		out.list = append(out.list, r)
		close(out.more)
		out.more = make(chan struct{})
	}))
	return out
}

func (l *recordLog) all() ([]*journal.Record, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.list[:len(l.list):len(l.list)], l.more
}

// until waits until the records satisfy is.
func (l *recordLog) until(ctx context.Context, t *testing.T, what string,
	is func([]*journal.Record) bool) []*journal.Record {
	t.Helper()
	for {
		list, more := l.all()
		if is(list) {
			return list
		}
		select {
		case <-more:
		case <-ctx.Done():
			t.Fatal("there was no ", what)
		}
	}
}

// head is the end of a session's log.
func (w *world) head(session string) asp.Head {
	w.t.Helper()
	l, err := w.ASP().Server().Session(w.ctx(), session, "")
	if err != nil {
		w.t.Fatal(err)
	}
	return l.Head
}

// TestReplyIsSaidOnce: a session gets each reply of a handler once. If the hub stops
// after the delivery of a reply and before its delivery record, it finds the reply in
// the session after a restart, and does not send it again.
func TestReplyIsSaidOnce(t *testing.T) {
	for _, format := range []asp.Format{asp.JSON, asp.MessagePack} {
		c := node.Config{Data: t.TempDir() + "/data", Durability: "disk"}
		w := newWorld(t, c)
		alice := w.client("alice")
		ctx := w.ctx()
		s, err := alice.Open(ctx, asp.Invitation{To: []string{w.echoID()}, Format: format})
		if err != nil {
			t.Fatal(err)
		}
		wait(t, s, asp.Introduced)
		log := w.watch()
		if m, err := s.Ask(ctx, asp.Question{QueryType: "pieces"}); err != nil ||
			!strings.Contains(string(m.Body), "done") {
			t.Fatalf("%+v %v", m, err)
		}
		if m, err := s.Ask(ctx, asp.Question{QueryType: "refuse"}); err != nil || m.Performative != asp.Reject {
			t.Fatalf("%+v %v", m, err)
		}
		replies, requests, said := map[parley.ID]*journal.Record{}, map[parley.ID]*journal.Record{}, map[string]int{}
		settled := func(list []*journal.Record) bool {
			n := 0
			for _, r := range list {
				for _, s := range r.Steps {
					if s.State == parley.Delivered {
						n++
					}
				}
			}
			return n == 4
		}
		for _, r := range log.until(ctx, t, "delivery of all replies", settled) {
			switch m := r.Message; {
			case m == nil:
			case m.Kind == parley.Request:
				requests[m.ID] = r
			case m.Kind == parley.Event || m.Kind.Terminal():
				replies[m.ID] = r
			case m.Trace.Foreign["asp.says"] != "":
				said[m.Trace.Foreign["asp.says"]]++
			}
		}
		if len(requests) != 2 || len(replies) != 4 || len(said) != 4 {
			t.Fatalf("%s: %d requests, %d replies, %d in the session", format, len(requests), len(replies), len(said))
		}
		for id := range replies {
			if said[id.String()] != 1 {
				t.Errorf("%s: %s is in the session %d times", format, id, said[id.String()])
			}
		}
		before, base := w.head(s.ID()), w.base
		w.close()
		c.Listen.HTTP = strings.TrimPrefix(base, "http://")
		w.open(c)
		again := func(when string) {
			t.Helper()
			for _, r := range replies {
				e, ok := w.Hub().Directory().Agent(r.Message.To)
				if !ok {
					t.Fatal(r.Message.To)
				}
				id, _ := e.Identity("asp")
				request := requests[r.Message.InReplyTo]
				out := w.ASP().Deliver(ctx, hub.Outbound{Message: r.Message, Request: request.Message,
					Scope: request.Scope, Recipient: e, Identity: id, Attempt: 2})
				if out.Err != nil || out.Reply != nil || out.Answered {
					t.Errorf("%s, %s: %+v", format, when, out)
				}
			}
			if got := w.head(s.ID()); got != before {
				t.Errorf("%s, %s: sent twice: %+v, was %+v", format, when, got, before)
			}
		}
		again("after a restart")
		// The log alone is as good as the checkpoint of an ended session.
		if m, err := s.Ask(ctx, asp.Question{QueryType: "echo",
			Parameters: map[string]string{"text": "still here"}}); err != nil ||
			!strings.Contains(string(m.Body), "still here") {
			t.Fatalf("%s: %+v %v", format, m, err)
		}
		before = w.head(s.ID())
		again("while the session goes on")
		var transcript strings.Builder
		if r, err := s.Export(ctx, &transcript); err != nil || r.Records != before.Count ||
			strings.Count(transcript.String(), "trust-evidence") < 1 && format == asp.JSON {
			t.Errorf("%s: %+v %v", format, r, err)
		}
	}
}

// TestAnswerIsOneReply: an agent's answer in a session is one reply to its request, and
// to no other request: also after a restart, when the hub looks for missed answers.
func TestAnswerIsOneReply(t *testing.T) {
	c := node.Config{Data: t.TempDir() + "/data", Durability: "disk"}
	w := newWorld(t, c)
	bob := w.client("bob")
	ctx := w.ctx()
	queries := make(chan *asp.Message, 4)
	sessions := make(chan *asp.Session, 1)
	listening, stop := context.WithCancel(ctx)
	answer(listening, t, bob, func(s *asp.Session, m *asp.Message) error {
		switch {
		case m.IsInvitation():
			_, err := s.Send(listening, asp.Accept, asp.Answer{}, asp.InReplyTo(m))
			sessions <- s
			return err
		case m.Performative == asp.Query:
			queries <- m
		}
		return nil
	})
	ask := func(text string) (*parley.Message, *asp.Message) {
		t.Helper()
		m, err := w.Hub().Accept(ctx, hub.Submission{Scope: "go", Foreign: text,
			Message: question(nameOf(t, w, bob.Identity.ID()), text)})
		if err != nil {
			t.Fatal(err)
		}
		return m, wasAsked(ctx, t, queries)
	}
	log := w.watch()
	one, _ := ask("one")
	two, q := ask("two")
	s := <-sessions
	inform := func(text string, opts ...asp.SendOption) *asp.Envelope {
		t.Helper()
		e, err := s.Send(ctx, asp.Inform, asp.Information{InformType: "result", Data: map[string]string{"text": text}},
			opts...)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	// Without a reference, it answers the oldest question.
	first := inform("first")
	// replies gives the replies to a request.
	replies := func(to *parley.Message) (texts []string) {
		t.Helper()
		list := log.until(ctx, t, "reply", func(list []*journal.Record) bool {
			return slices.ContainsFunc(list, func(r *journal.Record) bool {
				return r.Message != nil && r.Message.InReplyTo == to.ID && r.Message.Kind == parley.Response
			})
		})
		for _, r := range list {
			if m := r.Message; m != nil && m.InReplyTo == to.ID && m.Kind == parley.Response {
				if m.Origin.Peer != bob.Identity.ID() || m.Origin.Verdict.Assurance != parley.Signed ||
					string(m.Origin.Raw) == "" {
					t.Errorf("%s is not bob's message: %+v", m.ID, m.Origin)
				}
				texts = append(texts, m.Text())
			}
		}
		return texts
	}
	if got := replies(one); len(got) != 1 || got[0] != "first" {
		t.Errorf("replies to the first request: %q", got)
	}
	stop()
	before := w.base
	w.close()
	c.Listen.HTTP = strings.TrimPrefix(before, "http://")
	w.open(c)
	earlier, _ := log.all()
	log = w.watch(earlier...)
	// A proof is valid once, also after a restart.
	l, err := w.ASP().Server().Session(ctx, s.ID(), "")
	if err != nil {
		t.Fatal(err)
	}
	d := asp.Draft{SessionID: s.ID(), PreviousHash: l.Head.Hash, Performative: asp.Inform,
		Body: asp.Information{Topic: "borrowed"}}
	for _, p := range l.Participants {
		if p.AgentID == bob.Identity.ID() {
			d.SequenceNumber = p.Next
		}
	}
	e, err := d.Sign(bob.Identity)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.ASP().Server().Ingest(ctx, borrowed(t, e, first), asp.Transport{Agent: bob.Identity.ID()},
		s.ID()); err == nil || !strings.Contains(err.Error(), "dpop_jti_replayed") {
		t.Errorf("a proof served twice: %v", err)
	}
	inform("second", asp.InReplyTo(q))
	if got := replies(two); len(got) != 1 || got[0] != "second" {
		t.Errorf("replies to the second request: %q", got)
	}
	if got := replies(one); len(got) != 1 {
		t.Errorf("replies to the first request: %q", got)
	}
}
