package index

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"zombiezen.com/go/sqlite"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// talk appends records about requests from alice to bob.
type talk struct {
	t testing.TB
	j *journal.Journal
	n uint64
}

func (k *talk) add(m parley.Message, open bool) parley.ID {
	k.t.Helper()
	k.n++
	m.ID = testID(k.n, 1)
	if m.Origin.Protocol == "" {
		m.Origin.Protocol = "a2a"
	}
	e := journal.Entry{Scope: "bob", Message: &m}
	if open {
		e.Open = []journal.Opening{{To: m.To, Attempt: 1}}
	}
	if m.Kind.Terminal() {
		e.Steps = []journal.Step{{Message: m.InReplyTo, To: "bob", State: parley.Answered, Reply: m.ID}}
	}
	if _, err := k.j.Append(k.t.Context(), e); err != nil {
		k.t.Fatal(err)
	}
	return m.ID
}

func (k *talk) request(conversation uint64) parley.ID {
	return k.add(parley.Message{Kind: parley.Request, From: "alice", To: "bob",
		Conversation: testID(conversation, 2)}, true)
}

func (k *talk) about(request parley.ID, m parley.Message) {
	m.InReplyTo = request
	k.add(m, false)
}

func ids(list []RequestState) (out []parley.ID) {
	for _, r := range list {
		out = append(out, r.ID)
	}
	return out
}

// The state of a request follows its records, before and after they are in the file, and the last
// changed request comes first.
func TestRequests(t *testing.T) {
	j := memoryJournal(t, 1)
	path := filepath.Join(t.TempDir(), "index")
	x := openIndex(t, Config{Journal: j, Path: path})
	k := &talk{t: t, j: j}
	wait := func() {
		t.Helper()
		if err := x.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	f := RequestFilter{From: "alice", To: "bob", Protocol: "a2a"}
	requests := func(f RequestFilter) RequestPage {
		t.Helper()
		page, err := x.Requests(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		return page
	}
	if page := requests(f); page.Total != 0 || page.Next != "" || len(page.Requests) != 0 {
		t.Errorf("of agents that nobody knows: %+v", page)
	}
	first, second, third := k.request(1), k.request(1), k.request(2)
	k.add(parley.Message{Kind: parley.Request, From: "carol", To: "bob"}, true)
	k.add(parley.Message{Kind: parley.Request, From: "alice", To: "bob", Origin: parley.Origin{Protocol: "asp"}}, true)
	wait()
	if got, want := ids(requests(f).Requests), []parley.ID{third, second, first}; !slices.Equal(got, want) {
		t.Errorf("new requests: %v, want %v", got, want)
	}
	from := parley.Message{From: "bob", To: "alice"}
	event := func(s parley.State) parley.Message {
		m := from
		m.Kind, m.State, m.Act = parley.Event, s, "act"
		return m
	}
	input := parley.Message{Kind: parley.Input, From: "alice", To: "bob"}
	failure := from
	failure.Kind, failure.Error = parley.Failure, parley.Refuse(parley.Rejected, "no")
	response := from
	response.Kind = parley.Response
	for _, step := range []struct {
		m    parley.Message
		want LastRecord
	}{
		{input, LastRecord{Kind: parley.Request}}, // it was not asked for
		{event(parley.NoState), LastRecord{Kind: parley.Request}},
		{event(parley.NeedsInput), LastRecord{Kind: parley.Event, State: parley.NeedsInput, Act: "act"}},
		{input, LastRecord{Kind: parley.Input}},
		{event(parley.Working), LastRecord{Kind: parley.Event, State: parley.Working, Act: "act"}},
		{failure, LastRecord{Kind: parley.Failure, Code: parley.Rejected}},
	} {
		k.about(first, step.m)
		wait()
		page := requests(f)
		i := slices.Index(ids(page.Requests), first)
		got := page.Requests[i].Last
		if got.Time.IsZero() {
			t.Errorf("after %v: no time", step.m.Kind)
		}
		got.Time = time.Time{}
		if got != step.want || (step.want.Kind != parley.Request) != (i == 0) {
			t.Errorf("after %v %v: %+v at %d, want %+v", step.m.Kind, step.m.State, got, i, step.want)
		}
	}
	// The first terminal reply counts; a request and its reply may be in one batch.
	late := response
	late.ID, late.InReplyTo, late.Origin.Protocol = testID(999, 1), first, "a2a"
	if _, err := j.Append(t.Context(), journal.Entry{Scope: "bob", Message: &late}); err != nil {
		t.Fatal(err)
	}
	fourth := k.request(2)
	k.about(fourth, response)
	for range 2 {
		wait()
		page := requests(f)
		if got, want := ids(page.Requests), []parley.ID{fourth, first, third, second}; !slices.Equal(got, want) {
			t.Errorf("in the end: %v, want %v", got, want)
		}
		if l := page.Requests[1].Last; l.Kind != parley.Failure {
			t.Errorf("after a second terminal reply: %+v", l)
		}
		// Pages, filters and their totals.
		g := f
		g.Limit = 3
		page = requests(g)
		g.Cursor = page.Next
		rest := requests(g)
		if len(page.Requests) != 3 || page.Total != 4 || !slices.Equal(ids(rest.Requests), []parley.ID{second}) ||
			rest.Next != "" || rest.Total != 4 {
			t.Errorf("two pages: %+v, %+v", page, rest)
		}
		g = f
		g.Conversation = testID(1, 2)
		if got := ids(requests(g).Requests); !slices.Equal(got, []parley.ID{first, second}) {
			t.Errorf("of a conversation: %v", got)
		}
		g = f
		g.Keep = func(l *LastRecord) bool { return l.Kind.Terminal() }
		if page := requests(g); page.Total != 2 || !slices.Equal(ids(page.Requests), []parley.ID{fourth, first}) {
			t.Errorf("ended: %+v", page)
		}
		g = f
		g.Changed = requests(f).Requests[1].Last.Time
		if got := ids(requests(g).Requests); !slices.Equal(got, []parley.ID{fourth}) {
			t.Errorf("changed later: %v", got)
		}
		// The same again from a file that is made anew.
		x = openIndex(t, Config{Journal: j, Path: path + "-again"})
	}
	for _, bad := range []RequestFilter{{From: "alice"}, {From: "alice", To: "bob", Cursor: "!"}} {
		if _, err := x.Requests(t.Context(), bad); !errors.Is(err, ErrFilter) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// Both queries that tasks need use an index of the file.
func TestRequestsUseIndexes(t *testing.T) {
	j := memoryJournal(t, 1)
	x := openIndex(t, Config{Journal: j})
	k := &talk{t: t, j: j}
	k.about(k.request(1), parley.Message{Kind: parley.Response, From: "bob", To: "alice"})
	if err := x.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := x.view(t.Context(), func(tx *sqlite.Conn) error {
		for query, want := range map[string]string{
			"SELECT m.n FROM messages m INDEXED BY messages_requests CROSS JOIN messages a ON a.n=m.last " +
				"WHERE m.sender=1 AND m.recipient=2 AND m.last<9 ORDER BY m.last DESC": "[SEARCH m USING COVERING INDEX " +
				"messages_requests (sender=? AND recipient=? AND last<?) SEARCH a USING INTEGER PRIMARY KEY (rowid=?)]",
			"SELECT m.n FROM messages m INDEXED BY messages_reply " +
				"WHERE m.reply_to=x'00' AND m.n>0 AND m.n<9 ORDER BY 1": "[SEARCH m USING COVERING INDEX " +
				"messages_reply (reply_to=? AND rowid>? AND rowid<?)]",
		} {
			var plan []string
			if err := execute(tx, "EXPLAIN QUERY PLAN "+query, func(q *sqlite.Stmt) error {
				plan = append(plan, q.ColumnText(3))
				return nil
			}); err != nil {
				return err
			}
			if fmt.Sprint(plan) != want {
				t.Errorf("%s\n%v, want %s", query, plan, want)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if page, err := x.Messages(context.Background(), Filter{InReplyTo: testID(1, 1), Oldest: true}); err != nil ||
		len(page.Messages) != 1 {
		t.Errorf("messages about a request: %+v, %v", page, err)
	}
}
