package follow

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/journal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a journal in memory whose requests are followed.
type world struct {
	t testing.TB
	j *journal.Journal
	x *index.Index
	*Requests
	made int
}

func newWorld(t testing.TB) *world {
	t.Helper()
	return newWorldOn(t, testjournal.Memory(t))
}

func newWorldOn(t testing.TB, s store.Store) *world {
	t.Helper()
	w := &world{t: t}
	var err error
	w.j, err = journal.Open(context.Background(), journal.Config{Store: s})
	w.must(err)
	w.x, err = index.Open(context.Background(), index.Config{Journal: w.j})
	w.must(err)
	w.Requests = New(Config{Journal: w.j, Index: w.x})
	w.Start()
	t.Cleanup(func() {
		w.Close()
		w.must(errors.Join(w.x.Close(), w.j.Close()))
	})
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) newID() parley.ID {
	w.made++
	return parley.HashID(fmt.Appendf(nil, "%016d", w.made))
}

// record appends a message with a text.
func (w *world) record(m parley.Message, text string) (parley.ID, journal.Position) {
	w.t.Helper()
	return w.entry(journal.Entry{Message: &m}, text)
}

func (w *world) entry(e journal.Entry, text string) (parley.ID, journal.Position) {
	w.t.Helper()
	if e.Message.ID.IsZero() {
		e.Message.ID = w.newID()
	}
	e.Scope, e.Message.Parts = "s", []parley.Part{parley.Text(text)}
	at, err := w.j.Append(w.t.Context(), e)
	w.must(err)
	return e.Message.ID, at
}

// request is one of alice to bob.
func request() parley.Message {
	return parley.Message{Kind: parley.Request, From: "alice", To: "bob", Origin: parley.Origin{Protocol: "p"}}
}

func from(kind parley.Kind, sender string, request parley.ID) parley.Message {
	return parley.Message{Kind: kind, From: sender, InReplyTo: request}
}

func textOf(r *journal.Record) string { return string(r.Message.Parts[0].Data) }

// texts gives the texts that a load of a request of alice yields.
func (w *world) texts(id parley.ID, pieces bool, room *int) (out []string, err error) {
	m, err := w.Find(w.t.Context(), id, By{From: "alice"})
	if err != nil {
		return nil, err
	}
	for r, err := range w.Load(w.t.Context(), m, pieces, room) {
		if err != nil {
			return out, err
		}
		out = append(out, textOf(r))
	}
	return out, nil
}

func TestFind(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, at := w.record(request(), "go")
	event, _ := w.record(from(parley.Event, "bob", id), "half")
	refused := request()
	guest, _ := w.entry(journal.Entry{Message: &refused, Refused: parley.Refuse(parley.Forbidden, "no")}, "in")
	for _, c := range []struct {
		name string
		id   parley.ID
		by   By
		want error
	}{
		{"its sender", id, By{From: "alice"}, nil},
		{"its sender, recipient and protocol", id, By{"alice", "bob", "p"}, nil},
		{"another sender", id, By{From: "bob"}, ErrNotFound},
		{"no sender", id, By{To: "bob", Protocol: "p"}, ErrNotFound},
		{"another recipient", id, By{"alice", "carol", "p"}, ErrNotFound},
		{"another protocol", id, By{"alice", "bob", "q"}, ErrNotFound},
		{"an unknown id", w.newID(), By{From: "alice"}, ErrNotFound},
		{"no id", parley.ID{}, By{From: "alice"}, ErrNotFound},
		{"an event", event, By{From: "bob"}, ErrNotFound},
		{"a refused request", guest, By{From: "alice"}, ErrNotFound},
	} {
		got, err := w.Find(t.Context(), c.id, c.by)
		if !errors.Is(err, c.want) || err == nil && got.Position != at || err != nil && !got.ID.IsZero() {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
	}
}

// What is loaded is the request and everything admitted about it, in order, except cancels and, if they are
// not wanted, pieces; a second run reads the same.
func TestLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, _ := w.record(request(), "go")
	other, _ := w.record(request(), "other")
	working := from(parley.Event, "bob", id)
	working.State = parley.Working
	w.record(working, "half")
	w.record(from(parley.Event, "bob", id), "piece")
	w.record(from(parley.Event, "bob", other), "of the other")
	w.record(from(parley.Input, "alice", id), "more")
	w.record(from(parley.Cancel, "alice", id), "stop")
	late := from(parley.Input, "eve", id)
	w.entry(journal.Entry{Message: &late, Refused: parley.Refuse(parley.Forbidden, "no")}, "refused")
	w.record(from(parley.Response, "bob", id), "done")
	again := New(w.c) // as after a restart
	defer again.Close()
	for _, r := range []*Requests{w.Requests, again} {
		w := &world{t: t, Requests: r}
		if got, err := w.texts(id, true, nil); err != nil ||
			!slices.Equal(got, []string{"go", "half", "piece", "more", "done"}) {
			t.Errorf("with pieces: %q, %v", got, err)
		}
		if got, err := w.texts(id, false, nil); err != nil || !slices.Equal(got, []string{"go", "half", "more", "done"}) {
			t.Errorf("without pieces: %q, %v", got, err)
		}
	}
	m, err := w.Find(t.Context(), id, By{From: "alice"})
	w.must(err)
	for r, err := range w.Load(t.Context(), m, true, nil) {
		if err != nil || textOf(r) != "go" {
			t.Errorf("the first: %+v, %v", r, err)
		}
		break // nothing is yielded after it
	}
}

// A load takes no more content than there is room, over all requests that share it, and no more records than
// the bound.
func TestLoadIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, _ := w.record(request(), "12345")
	w.record(from(parley.Event, "bob", id), "12345")
	one, err := w.j.Read(t.Context(), journal.Position{Sequence: 1})
	w.must(err)
	room := 3 * journal.ContentSize(one)
	if got, err := w.texts(id, true, &room); err != nil || len(got) != 2 || room != journal.ContentSize(one) {
		t.Errorf("the first: %q, %v, %d bytes left", got, err, room)
	}
	if got, err := w.texts(id, true, &room); parley.CodeOf(err) != parley.TooLarge || len(got) != 1 {
		t.Errorf("the second: %q, %v", got, err)
	}
	for range maxRecords - 1 {
		w.record(from(parley.Event, "bob", id), "x")
	}
	w.record(from(parley.Response, "bob", id), "done")
	if got, err := w.texts(id, true, nil); parley.CodeOf(err) != parley.TooLarge || len(got) != 1+maxRecords {
		t.Errorf("of one record too many: %d, %v", len(got), err)
	}
}

// A request whose content was erased is not found.
func TestErasedRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, at := w.record(request(), strings.Repeat("x", 100))
	erasure, err := w.j.NewErasure(t.Context(), journal.Erasure{What: "agent", Name: "alice", By: "op"})
	w.must(err)
	if n, err := w.j.Erase(t.Context(), erasure.Number, journal.Digests, []journal.Position{at}); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	m, err := w.Find(t.Context(), id, By{From: "alice"})
	w.must(err)
	if _, err := w.Request(t.Context(), m); !errors.Is(err, ErrNotFound) {
		t.Errorf("Request: %v", err)
	}
	if got, err := w.texts(id, true, nil); !errors.Is(err, ErrNotFound) || len(got) > 0 {
		t.Errorf("Load: %q, %v", got, err)
	}
}

// behind is a store that another hub writes to, and that does not answer, while it is on.
type behind struct {
	store.Store
	on atomic.Bool
}

func (s *behind) Exclusive() bool { return !s.on.Load() }

func (s *behind) Span(ctx context.Context, partition int) (store.Span, error) {
	if !s.on.Load() {
		return s.Store.Span(ctx, partition)
	}
	<-ctx.Done()
	return store.Span{}, ctx.Err()
}

// The wait for what other hubs recorded is bounded, and ends with Close and with the caller. The error says
// that a retry helps.
func TestIndexed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		during func(w *world, leave func())
		code   parley.Code
		after  time.Duration
	}{
		{"nothing comes", func(*world, func()) {}, parley.Unavailable, indexWait},
		{"the hub stops", func(w *world, _ func()) { w.Close() }, parley.Unavailable, 0},
		{"the caller leaves", func(_ *world, leave func()) { leave() }, parley.Cancelled, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &behind{Store: testjournal.Memory(t)}
				w := newWorldOn(t, s)
				id, _ := w.record(request(), "go")
				w.must(w.Indexed(t.Context()))
				s.on.Store(true)
				defer s.on.Store(false)
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				began, done := time.Now(), make(chan error)
				go func() {
					_, err := w.Find(ctx, id, By{From: "alice"})
					done <- err
				}()
				synctest.Wait()
				c.during(w, leave)
				err := <-done
				if took := time.Since(began); parley.CodeOf(err) != c.code || took != c.after {
					t.Errorf("%v after %s", err, took)
				}
				if e := parley.AsError(err); c.code == parley.Unavailable && (e == nil || !e.Retryable || e.After == 0) {
					t.Errorf("%+v", e)
				}
			})
		})
	}
}

// An index that cannot be read is no reason to say that there is no request.
func TestIndexThatCannotBeRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, _ := w.record(request(), "go")
	m, err := w.Find(t.Context(), id, By{From: "alice"})
	w.must(err)
	w.must(w.x.Close())
	w.x, err = index.Open(context.Background(), index.Config{Journal: w.j}) // to be closed
	w.must(err)
	_, err = w.Find(t.Context(), id, By{From: "alice"})
	if e := parley.AsError(err); e == nil || e.Code != parley.Unavailable || !e.Retryable {
		t.Errorf("Find: %v", err)
	}
	var got []string
	for r, e := range w.Load(t.Context(), m, true, nil) {
		if err = e; e == nil {
			got = append(got, textOf(r))
		}
	}
	if parley.CodeOf(err) != parley.Unavailable || !slices.Equal(got, []string{"go"}) {
		t.Errorf("Load: %q, %v", got, err)
	}
}
