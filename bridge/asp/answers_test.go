package asp_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/internal/testcluster"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
)

// repliesTo lists the texts of the replies to a request, in order; over reports that a
// terminal reply is among them.
func repliesTo(list []*journal.Record, request *parley.Message) (texts []string, over bool) {
	for _, r := range list {
		m := r.Message
		if m == nil || m.InReplyTo != request.ID || m.Kind != parley.Event && !m.Kind.Terminal() {
			continue
		}
		text := m.Text()
		if m.Error != nil {
			text = m.Error.Text
		}
		texts, over = append(texts, text), over || m.Kind.Terminal()
	}
	return texts, over
}

// answered waits until all requests are answered.
func (l *recordLog) answered(ctx context.Context, t *testing.T, requests []*parley.Message) []*journal.Record {
	t.Helper()
	return l.until(ctx, t, "answer to each request", func(list []*journal.Record) bool {
		return !slices.ContainsFunc(requests, func(m *parley.Message) bool {
			_, over := repliesTo(list, m)
			return !over
		})
	})
}

// TestAnswersWait: answers that wait for a worker are delivered once and in order: from
// memory, from a session that was dropped from memory, and after the hub refused them
// at first. There are more answers than a session holds in memory, and a checkpoint is
// written before their delivery.
func TestAnswersWait(t *testing.T) {
	for what, meanwhile := range map[string]func(ctx context.Context, w *world, session string){
		"in memory": func(context.Context, *world, string) {},
		"evicted":   func(_ context.Context, w *world, session string) { w.ASP().Evict(session) },
		"not taken": func(ctx context.Context, w *world, session string) {
			ctx, stop := context.WithCancel(ctx)
			stop()
			if err := w.ASP().DeliverAnswers(ctx, session); !errors.Is(err, context.Canceled) {
				w.t.Errorf("the hub takes an answer: %v", err)
			}
		},
		"conflict": func(ctx context.Context, w *world, session string) {
			l, err := w.ASP().Server().Session(ctx, session, "")
			if err != nil {
				w.t.Fatal(err)
			}
			old := l.Head
			old.Count--
			if err := w.ASP().Append(ctx, session, old, l); !errors.Is(err, asp.ErrConflict) {
				w.t.Errorf("a record behind an old head: %v", err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t, node.Config{})
			ctx := w.ctx()
			bob := w.client("bob")
			requests, session := w.asked(ctx, bob)
			log, release := w.watch(), w.ASP().HoldReconciler()
			var want []string
			for n := range 300 {
				want = append(want, fmt.Sprint("piece ", n))
				w.inform(ctx, bob.Identity, session, asp.Information{InformType: "chunk",
					ReferenceID: requests[0].ID.String(), Topic: want[n]})
			}
			for _, topic := range []string{"first", "second"} { // each of the oldest request
				w.inform(ctx, bob.Identity, session, asp.Information{InformType: "result", Topic: topic})
			}
			meanwhile(ctx, w, session)
			earlier, _ := log.all()
			if got, _ := repliesTo(earlier, requests[0]); got != nil {
				t.Errorf("delivered too soon: %q", got)
			}
			release()
			list := log.answered(ctx, t, requests)
			if got, _ := repliesTo(list, requests[0]); !slices.Equal(got, append(want, "first")) {
				t.Errorf("replies to the first request: %q", got)
			}
			if got, _ := repliesTo(list, requests[1]); !slices.Equal(got, []string{"second"}) {
				t.Errorf("replies to the second request: %q", got)
			}
			for _, r := range list {
				if m := r.Message; m != nil && !m.InReplyTo.IsZero() && len(m.Hops) != 1 {
					t.Errorf("%q passed the hubs %v", m.Text(), m.Hops)
				}
			}
		})
	}
}

// TestErasedAnswer: an answer whose content is erased before it is delivered is not
// delivered afterwards.
func TestErasedAnswer(t *testing.T) {
	w := newWorld(t, node.Config{})
	ctx := w.ctx()
	bob := w.client("bob")
	requests, session := w.asked(ctx, bob)
	log, release := w.watch(), w.ASP().HoldReconciler()
	w.inform(ctx, bob.Identity, session, asp.Information{InformType: "result", Topic: "secret"})
	list, _ := log.all()
	list = slices.DeleteFunc(slices.Clone(list), func(r *journal.Record) bool { return r.Chain == nil })
	j := w.Hub().Journal()
	e, err := j.NewErasure(ctx, journal.Erasure{What: "conversation", By: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Hub().Erasing(ctx, list); err != nil {
		t.Fatal(err)
	}
	if n, err := j.Erase(ctx, e.Number, journal.Digests, []journal.Position{list[0].Position}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if err := w.ASP().Server().CloseSession(ctx, session, "", ""); err != nil {
		t.Fatal(err)
	}
	release()
	list = log.answered(ctx, t, requests)
	for _, m := range requests {
		if got, _ := repliesTo(list, m); len(got) != 1 || !strings.Contains(got[0], "the session ended") {
			t.Errorf("replies to %s: %q", m.Text(), got)
		}
	}
}

// TestAnswersOfTwoHubs: the hub that owns a session delivers its answers, also those
// that another hub recorded. The next owner delivers the remaining answers.
func TestAnswersOfTwoHubs(t *testing.T) {
	url := testcluster.Start(t, 1).URLs[0]
	var hubs []*world
	for _, name := range []string{"a", "b"} {
		hubs = append(hubs, newWorld(t, node.Config{Name: name, Data: t.TempDir() + "/data", Durability: "replicated",
			Passphrase: []byte("a passphrase"), PassphraseWork: 4,
			Engine: node.Engine{URL: url, Replicas: 1, Partitions: 2},
			ASP:    node.ASP{Domain: "hubs.example"}}))
	}
	ctx := hubs[0].ctx()
	owns := func(w *world, partition int) bool { return w.Hub().Journal().Owned(partition) }
	wait := func(what string, until func() bool) {
		t.Helper()
		look := time.NewTicker(10 * time.Millisecond)
		defer look.Stop()
		for !until() {
			select {
			case <-look.C:
			case <-ctx.Done():
				t.Fatal(what)
			}
		}
	}
	wait("the partitions are not shared", func() bool {
		return owns(hubs[0], 0) != owns(hubs[0], 1) && owns(hubs[1], 0) != owns(hubs[1], 1)
	})
	bob := hubs[0].client("bob")
	wait("the other hub does not know bob", func() bool {
		_, ok := hubs[1].Hub().Directory().Lookup("asp", bob.Identity.ID())
		return ok
	})
	requests, session := hubs[0].asked(ctx, bob)
	owner, other := hubs[0], hubs[1]
	if !owns(owner, owner.Hub().Journal().Partition("asp "+session)) {
		owner, other = other, owner
	}
	log := other.watch()
	var want []string
	piece := func(by *world) {
		t.Helper()
		want = append(want, fmt.Sprint("piece ", len(want)))
		by.inform(ctx, bob.Identity, session, asp.Information{InformType: "chunk",
			ReferenceID: requests[0].ID.String(), Topic: want[len(want)-1]})
	}
	for range 10 {
		piece(other)
		piece(owner)
		piece(owner)
	}
	log.until(ctx, t, "each piece", func(list []*journal.Record) bool {
		got, _ := repliesTo(list, requests[0])
		return len(got) == len(want)
	})
	owner.ASP().HoldReconciler()
	piece(owner)
	piece(other)
	if err := owner.ASP().ReadAhead(ctx, session); err != nil {
		t.Fatal(err)
	}
	other.inform(ctx, bob.Identity, session, asp.Information{InformType: "result", Topic: "first"})
	owner.close()
	other.inform(ctx, bob.Identity, session, asp.Information{InformType: "result", Topic: "second"})
	list := log.answered(ctx, t, requests)
	if got, _ := repliesTo(list, requests[0]); !slices.Equal(got, append(want, "first")) {
		t.Errorf("replies to the first request: %q, want %q", got, want)
	}
	if got, _ := repliesTo(list, requests[1]); !slices.Equal(got, []string{"second"}) {
		t.Errorf("replies to the second request: %q", got)
	}
}
