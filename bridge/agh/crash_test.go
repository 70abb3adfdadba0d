package agh_test

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
)

// workState is what the state has of work: bucket and key to value.
func workState(t *testing.T, j *journal.Journal) map[[2]string][]byte {
	t.Helper()
	kept := map[[2]string][]byte{}
	for _, bucket := range []string{"agh.works", "agh.closed"} {
		for v, err := range j.State(bucket).Range(t.Context(), "") {
			if err != nil {
				t.Fatal(err)
			}
			kept[[2]string{bucket, v.Key}] = v.Data
		}
	}
	return kept
}

// crash begins the hub again as if it had been killed: the journal has of the
// state of work only what it had when kept was taken, not what a hub writes
// when it ends.
func (w *world) crash(kept map[[2]string][]byte) {
	w.t.Helper()
	w.stop()
	j, err := journal.Open(w.t.Context(), journal.Config{Store: testjournal.Disk(w.t, filepath.Join(w.config.Data, "journal")), Node: "test"})
	if err != nil {
		w.t.Fatal(err)
	}
	for at := range workState(w.t, j) {
		err = errors.Join(err, j.State(at[0]).Delete(w.t.Context(), at[1], 0))
	}
	for at, data := range kept {
		_, perr := j.State(at[0]).Put(w.t.Context(), at[1], data, time.Time{})
		err = errors.Join(err, perr)
	}
	if err := errors.Join(err, j.Close()); err != nil {
		w.t.Fatal(err)
	}
	w.open()
}

// give has the agent listener ask bob, and gives the request and what bob hears.
func (w *world) give(bob *peer, content string) (*parley.Message, *agh.Envelope) {
	w.t.Helper()
	m, err := w.Hub().Accept(w.t.Context(), hub.Submission{Scope: "go test", Message: &parley.Message{Kind: parley.Request, From: "listener", To: "guest/agh/acme/bob",
		Parts: []parley.Part{parley.Text(content)}, Origin: parley.Origin{Protocol: "go", Peer: "listener"}}})
	if err != nil {
		w.t.Fatal(err)
	}
	e := bob.next(w.t)
	w.until("the request is delivered", func() bool {
		d, ok := w.Hub().Journal().Delivery(m.ID, m.To)
		return ok && d.State == parley.Delivered
	})
	return m, e
}

// about publishes what somebody says about the work of e, as it is, without
// the checks of a client, which has forgotten it.
func (p *peer) about(t *testing.T, e *agh.Envelope, from, to string, content any) *agh.Envelope {
	t.Helper()
	out := &agh.Envelope{ID: agh.NewID(), WorkspaceID: e.WorkspaceID, Channel: e.Channel, Surface: e.Surface, ThreadID: e.ThreadID, DirectID: e.DirectID,
		From: from, To: to, WorkID: e.WorkID, ReplyTo: e.ID, TS: time.Now().Unix()}
	if err := p.nc.Publish(written(t, out, content)); err != nil {
		t.Fatal(err)
	}
	return out
}

// replyTo waits for the terminal reply to a request.
func (w *world) replyTo(id parley.ID) (reply *parley.Message) {
	w.t.Helper()
	w.until("there is a reply", func() bool {
		for _, k := range []parley.Kind{parley.Response, parley.Failure} {
			for _, m := range w.messages(k) {
				if m.InReplyTo == id {
					reply = m
				}
			}
		}
		return reply != nil
	})
	return reply
}

// first reads what a connection hears until it is what is meant.
func first(t *testing.T, heard func(context.Context) (*agh.Envelope, error), meant func(*agh.Envelope) bool) *agh.Envelope {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		if e, err := heard(ctx); err != nil {
			t.Fatal(err)
		} else if meant(e) {
			return e
		}
	}
}

// receipt is the first receipt for a message.
func receipt(t *testing.T, heard func(context.Context) (*agh.Envelope, error), about string) (r *agh.Receipt) {
	t.Helper()
	first(t, heard, func(e *agh.Envelope) (ok bool) {
		r, ok = e.Content().(*agh.Receipt)
		return ok && r.ForID == about
	})
	return r
}

// listen hears everything that is said to a peer.
func (p *peer) listen(t *testing.T, id string) func(context.Context) (*agh.Envelope, error) {
	t.Helper()
	subject, err := agh.PeerSubject("acme", "builders", id)
	if err != nil {
		t.Fatal(err)
	}
	s, err := p.nc.SubscribeSync(subject)
	if err == nil {
		err = p.nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return func(ctx context.Context) (*agh.Envelope, error) {
		m, err := s.NextMsgWithContext(ctx)
		if err != nil {
			return nil, err
		}
		return agh.Decode(m.Data)
	}
}

// Nothing is written to the state when a peer is given work: the log has the
// request. After a crash it can answer all the same, whether it had said
// something or not, and who asked can cancel; what it had ended stays ended
// (digest §12 (14)).
func TestGivenWorkOverCrash(t *testing.T) {
	w := newWorld(t, func(c *node.Config) { c.Durability, c.Data = "disk", t.TempDir() })
	kept := workState(t, w.Hub().Journal())
	bob := w.join("tb", "acme", "bob")
	silent, quiet := w.give(bob, "one")
	begun, work := w.give(bob, "two")
	bob.about(t, work, "bob", "listener", &agh.Trace{State: agh.StateWorking, Message: "at it"})
	ended, done := w.give(bob, "three")
	bob.about(t, done, "bob", "listener", &agh.Trace{State: agh.StateCompleted, Message: "built"})
	unwanted, given := w.give(bob, "four")
	if m := w.replyTo(ended.ID); m.Text() != "built" {
		t.Errorf("%+v", m)
	}
	w.until("what bob works on is recorded", func() bool { return len(w.messages(parley.Event)) == 1 })
	if now := workState(t, w.Hub().Journal()); len(now) != len(kept) {
		t.Errorf("the state has %d values, not %d", len(now), len(kept))
	}
	bob.stop()
	bob.nc.Close()

	w.crash(kept)
	back := w.join("tb", "acme", "bob")
	heard := back.listen(t, "bob")
	// A stranger, and another place than where it began, change nothing.
	carol := w.join("tc", "acme", "carol")
	carol.about(t, work, "carol", "listener", &agh.Trace{State: agh.StateCompleted, Message: "mine"})
	elsewhere := *work
	elsewhere.Surface, elsewhere.DirectID, elsewhere.ThreadID = agh.SurfaceThread, "", "thread_elsewhere"
	back.about(t, &elsewhere, "bob", "listener", &agh.Trace{State: agh.StateCompleted, Message: "elsewhere"})

	back.about(t, quiet, "bob", "listener", &agh.Trace{State: agh.StateCompleted, Message: "late"})
	back.about(t, work, "bob", "listener", &agh.Trace{State: agh.StateFailed, Message: "no bricks"})
	if m := w.replyTo(silent.ID); m.Kind != parley.Response || m.Text() != "late" {
		t.Errorf("%+v", m)
	}
	if m := w.replyTo(begun.ID); m.Kind != parley.Failure || m.From != "guest/agh/acme/bob" || m.Error.Code != parley.HandlerFailed {
		t.Errorf("%+v", m)
	}
	// What had ended, and what has now, is over.
	for _, e := range []*agh.Envelope{done, work} {
		again := back.about(t, e, "bob", "listener", &agh.Say{Text: "and another thing"})
		if r := receipt(t, heard, again.ID); r.Status != agh.StatusRejected || r.Reason != agh.ReasonWorkClosed {
			t.Errorf("%+v", r)
		}
	}
	// The one who asked cancels what bob has said nothing of.
	if _, err := w.Hub().Accept(t.Context(), hub.Submission{Scope: "go test", Message: &parley.Message{Kind: parley.Cancel, From: "listener", To: unwanted.To, InReplyTo: unwanted.ID,
		Origin: parley.Origin{Protocol: "go", Peer: "listener"}}}); err != nil {
		t.Fatal(err)
	}
	if r := receipt(t, heard, given.ID); r.Status != agh.StatusCanceled {
		t.Errorf("%+v", r)
	}
}

// What peers give each other is in the log as well: after a crash open work can
// be ended, and ended work stays ended, also over a second crash.
func TestWorkBetweenPeersOverCrash(t *testing.T) {
	w := newWorld(t, func(c *node.Config) { c.Durability, c.Data = "disk", t.TempDir() })
	kept := workState(t, w.Hub().Journal())
	alice, bob := w.join("ta", "acme", "alice"), w.join("tb", "acme", "bob")
	heard := bob.listen(t, "bob")
	said := func(p *peer, from, to, work string) *agh.Envelope {
		e := &agh.Envelope{WorkspaceID: "acme", Channel: "builders", Surface: agh.SurfaceThread, ThreadID: "thread_work", WorkID: work}
		return p.about(t, e, from, to, &agh.Say{Text: work})
	}
	for _, work := range []string{"work_open", "work_ended"} {
		said(alice, "alice", "bob", work)
		if e := first(t, heard, func(e *agh.Envelope) bool { return e.From == "alice" }); e.WorkID != work {
			t.Fatalf("%s", e.Raw())
		}
	}
	ended := &agh.Envelope{WorkspaceID: "acme", Channel: "builders", Surface: agh.SurfaceThread, ThreadID: "thread_work", WorkID: "work_ended"}
	bob.about(t, ended, "bob", "alice", &agh.Trace{State: agh.StateCompleted, Result: json.RawMessage(`{}`)})
	w.until("all is recorded", func() bool { return len(w.messages(parley.Notice)) == 3 })
	if now := workState(t, w.Hub().Journal()); len(now) != len(kept) {
		t.Errorf("the state has %d values, not %d", len(now), len(kept))
	}
	for again := range 2 {
		alice.stop()
		alice.nc.Close()
		bob.stop()
		bob.nc.Close()
		w.crash(kept)
		alice, bob = w.join("ta", "acme", "alice"), w.join("tb", "acme", "bob")
		hears := alice.listen(t, "alice")
		closed := []string{"work_ended"}
		if again == 0 {
			open := *ended
			open.WorkID = "work_open"
			trace := bob.about(t, &open, "bob", "alice", &agh.Trace{State: agh.StateFailed, Message: "no bricks"})
			first(t, hears, func(e *agh.Envelope) bool { return e.ID == trace.ID })
		}
		closed = append(closed, "work_open")
		for _, work := range closed {
			say := said(alice, "alice", "bob", work)
			w.until("the say is recorded as refused", func() bool {
				w.mu.Lock()
				defer w.mu.Unlock()
				return slices.ContainsFunc(w.records, func(r *journal.Record) bool {
					return r.Refused != nil && r.Refused.Code == parley.Conflict && r.Message.Trace.Foreign["agh.id"] == say.ID
				})
			})
		}
	}
}
