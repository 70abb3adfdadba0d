package asp_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
)

// asked sends bob two requests, the first with an invitation, and gives the requests
// and the session.
func (w *world) asked(ctx context.Context, bob *asp.Client) (requests []*parley.Message, session string) {
	w.t.Helper()
	queries := make(chan *asp.Message, 2)
	listening, stop := context.WithCancel(ctx)
	defer stop()
	answer(listening, w.t, bob, func(s *asp.Session, m *asp.Message) error {
		switch {
		case m.IsInvitation():
			_, err := s.Send(listening, asp.Accept, asp.Answer{}, asp.InReplyTo(m))
			return err
		case m.Performative == asp.Query:
			queries <- m
		}
		return nil
	})
	for _, text := range []string{"one", "two"} {
		q := question(nameOf(w.t, w, bob.Identity.ID()), text)
		m, err := w.Hub().Accept(ctx, hub.Submission{Scope: "go", Foreign: "x", Message: q})
		if err != nil {
			w.t.Fatal(err)
		}
		requests, session = append(requests, m), wasAsked(ctx, w.t, queries).SessionID
	}
	return requests, session
}

// inform sends an INFORM in a session as i, without a client.
func (w *world) inform(ctx context.Context, i *asp.Identity, session string, body asp.Information) {
	w.t.Helper()
	server := w.ASP().Server()
	for {
		l, err := server.Session(ctx, session, "")
		if err != nil {
			w.t.Fatal(err)
		}
		d := asp.Draft{SessionID: session, PreviousHash: l.Head.Hash, Performative: asp.Inform, Body: body,
			Time: asp.NextTimestamp(time.Now(), l.LastTimestamp)}
		for _, p := range l.Participants {
			if p.AgentID == i.ID() {
				d.SequenceNumber = p.Next
			}
		}
		e, err := d.Sign(i)
		if err != nil {
			w.t.Fatal(err)
		}
		_, err = server.Ingest(ctx, e.Raw(), asp.Transport{Agent: i.ID()}, session)
		if err == nil {
			return
		}
		if !errors.Is(err, asp.ErrChain) && !errors.Is(err, asp.ErrSequenceGap) &&
			!errors.Is(err, asp.ErrEquivocation) {
			w.t.Fatal(err)
		}
		if err := server.Notify(ctx, session); err != nil { // another hub appended first
			w.t.Fatal(err)
		}
	}
}

// TestAnswersOfAStoppedHub: a hub that stops before it submits recorded answers submits
// them after its restart: each to its request, and each once. The session's checkpoint
// lies between question and answer.
func TestAnswersOfAStoppedHub(t *testing.T) {
	c := node.Config{Data: t.TempDir() + "/data", Durability: "disk", Guests: node.Guests{Disk: "1GiB"}}
	w := newWorld(t, c)
	ctx := w.ctx()
	bob := w.client("bob")
	log := w.watch()
	requests, session := w.asked(ctx, bob)
	const events = 260
	replies := func(list []*journal.Record) map[string]int {
		out := map[string]int{}
		for _, r := range list {
			if m := r.Message; m != nil && (m.Kind == parley.Event || m.Kind.Terminal()) {
				out[fmt.Sprint(m.InReplyTo == requests[1].ID, " ", m.Kind, " ", m.Text())]++
			}
		}
		return out
	}
	for range events {
		w.inform(ctx, bob.Identity, session,
			asp.Information{InformType: "chunk", ReferenceID: requests[0].ID.String(), Topic: "piece"})
	}
	piece := fmt.Sprint(false, " ", parley.Event, " piece")
	log.until(ctx, t, "event of each piece",
		func(list []*journal.Record) bool { return replies(list)[piece] == events })

	w.ASP().HoldReconciler()
	// answers the oldest question
	w.inform(ctx, bob.Identity, session, asp.Information{InformType: "result", Topic: "first"})
	w.inform(ctx, bob.Identity, session, asp.Information{InformType: "result", Topic: "second"})
	earlier, _ := log.all()
	if got := replies(earlier); len(got) != 1 {
		t.Fatalf("submitted too soon: %v", got)
	}
	w.close()
	w.open(c)
	// The test does not see the replies that the hub submits during its start.
	want := map[string]int{piece: events, fmt.Sprint(false, " ", parley.Response, " first"): 1,
		fmt.Sprint(true, " ", parley.Response, " second"): 1}
	open := func() bool {
		for _, m := range requests {
			if _, ok := w.Hub().Journal().Delivery(m.ID, m.To); ok {
				return true
			}
		}
		return false
	}
	log = w.watch()
	if open() {
		log.until(ctx, t, "answer to both", func([]*journal.Record) bool { return !open() })
	}
	var all []*journal.Record
	for r, err := range w.Hub().Journal().Records(ctx, 0, journal.From{}) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	if got := replies(all); !maps.Equal(got, want) {
		t.Errorf("replies %v, want %v", got, want)
	}
}

// TestCallsAreInTheLog: a request to an ASP agent and its answer change nothing in
// the journal's state, where each change is a transaction of its own.
func TestCallsAreInTheLog(t *testing.T) {
	w := newWorld(t, node.Config{})
	ctx := w.ctx()
	bob := w.client("bob")
	log := w.watch()
	_, session := w.asked(ctx, bob)
	revision := func() uint64 {
		t.Helper()
		n, err := w.Hub().Journal().State("test").Put(ctx, "key", nil, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := revision()
	q := question(nameOf(t, w, bob.Identity.ID()), "three")
	m, err := w.Hub().Accept(ctx, hub.Submission{Scope: "go", Foreign: "x", Message: q})
	if err != nil {
		t.Fatal(err)
	}
	recorded := func(what string, is func(m *parley.Message) bool) {
		t.Helper()
		log.until(ctx, t, what, func(list []*journal.Record) bool {
			return slices.ContainsFunc(list, func(r *journal.Record) bool { return r.Message != nil && is(r.Message) })
		})
	}
	recorded("QUERY", func(x *parley.Message) bool { return x.Trace.Foreign["asp.says"] == m.ID.String() })
	w.inform(ctx, bob.Identity, session, asp.Information{InformType: "result", ReferenceID: m.ID.String(),
		Topic: "third"})
	recorded("answer", func(x *parley.Message) bool { return x.InReplyTo == m.ID && x.Text() == "third" })
	if after := revision(); after != before+1 {
		t.Errorf("the state was changed %d times", after-before-1)
	}
}
