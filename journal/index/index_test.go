package index

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testID makes an ID. IDs of kind 2 are in random order, the others are in the order
// of n.
func testID(n uint64, kind byte) (id parley.ID) {
	binary.BigEndian.PutUint64(id[:], n<<16|1<<62)
	id[6], id[8], id[15] = 0x70, 0x80, kind
	if kind == 2 {
		binary.BigEndian.PutUint64(id[8:], n*0x9e3779b97f4a7c15)
		binary.BigEndian.PutUint64(id[:], n*0xbf58476d1ce4e5b9)
		id[6] = 0x80 | id[6]&0x0f
	}
	return id
}

func memoryJournal(t testing.TB, partitions int) *journal.Journal {
	t.Helper()
	return openJournal(t, journal.Config{Store: testjournal.Memory(t), Node: "n1", Partitions: partitions})
}

func openJournal(t testing.TB, c journal.Config) *journal.Journal {
	t.Helper()
	j, err := journal.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	return j
}

// exchange appends a request and its reply, as the hub does.
func exchange(t testing.TB, j *journal.Journal, i int) {
	from, to := fmt.Sprintf("client-%d", i%50), fmt.Sprintf("worker-%d", i%7)
	id, conversation, reply := testID(uint64(i)*2, 1), testID(uint64(i), 2), testID(uint64(i)*2+1, 1)
	trace := parley.Trace{Parent: fmt.Sprintf("00-%032x-%016x-01", i*7919+1, i+1)}
	origin := parley.Origin{Protocol: "samvad", Peer: from, Verdict: parley.Verdict{Assurance: parley.Signed}}
	body := fmt.Sprintf(`{"city":"Bern","days":%d,"note":"what will the weather be like in the mountains"}`, i)
	ctx := context.Background()
	_, err := j.Append(ctx, journal.Entry{Scope: to,
		Message: &parley.Message{ID: id, Kind: parley.Request, From: from, To: to, Conversation: conversation,
			Trace: trace,
			Parts: []parley.Part{{MediaType: "application/json", Data: []byte(body)}}, Origin: origin},
		Open: []journal.Opening{{To: to, Attempt: 1, Sync: true}}})
	if err != nil {
		t.Error(err)
		return
	}
	_, err = j.Append(ctx, journal.Entry{Scope: to,
		Message: &parley.Message{ID: reply, Kind: parley.Response, From: to, To: from, Conversation: conversation,
			InReplyTo: id, Trace: trace,
			Parts:  []parley.Part{{MediaType: "application/json", Data: []byte(`{"celsius":21,"sky":"clear"}`)}},
			Origin: parley.Origin{Protocol: "go"}},
		Steps: []journal.Step{{Message: id, To: to, State: parley.Answered, Attempt: 1}}})
	if err != nil {
		t.Error(err)
	}
}

// fill appends exchanges concurrently.
func fill(b testing.TB, j *journal.Journal, exchanges int) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 512 {
		wg.Go(func() {
			for i := int(next.Add(1)); i <= exchanges; i = int(next.Add(1)) {
				exchange(b, j, i)
			}
		})
	}
	wg.Wait()
}

// naive is the expected content of an index: every record of a journal in order, read by
// the rules of package journal.
type naive struct {
	messages      map[parley.ID]*naiveMessage
	conversations map[parley.ID]*naiveConversation
}

type naiveMessage struct {
	r          *journal.Record
	deliveries map[string]*naiveDelivery
}

type naiveDelivery struct {
	state     parley.DeliveryState
	attempts  int
	postponed int
	code      parley.Code
	reply     parley.ID
	steps     int
	losses    []string
}

// lose adds losses. An event's losses are dropped if the sum is more than most.
func (d *naiveDelivery) lose(losses []parley.Loss, most int) {
	all := slices.Clone(d.losses)
	for _, l := range losses {
		if !slices.Contains(all, l.String()) {
			all = append(all, l.String())
		}
	}
	if len(all) <= most {
		d.losses = all
	}
}

type naiveConversation struct{ messages, open, failed int }

func scan(t testing.TB, j *journal.Journal) *naive {
	t.Helper()
	v := &naive{map[parley.ID]*naiveMessage{}, map[parley.ID]*naiveConversation{}}
	for p := range j.Partitions() {
		for r, err := range j.Records(t.Context(), p, journal.From{}) {
			if err != nil {
				t.Fatal(err)
			}
			if m := r.Message; m != nil {
				n := &naiveMessage{r: r, deliveries: map[string]*naiveDelivery{}}
				for _, o := range r.Open {
					n.deliveries[o.To] = &naiveDelivery{state: parley.Waiting, steps: 1}
					if o.Attempt == 1 {
						n.deliveries[o.To] = &naiveDelivery{state: parley.Delivering, attempts: 1, steps: 1}
					}
				}
				v.messages[m.ID] = n
				if asked := v.messages[m.InReplyTo]; len(r.Losses) > 0 {
					if d := asked.deliveries[m.From]; !d.state.Settled(parley.Request) && d.state != parley.Dead {
						d.lose(r.Losses, journal.MaxLosses)
					}
				}
			}
			for _, s := range r.Steps {
				n := v.messages[s.Message]
				d := n.deliveries[s.To]
				d.steps++
				if s.Postponed && d.state == parley.Delivering {
					d.postponed++
				}
				d.state = s.State
				if s.State == parley.Delivering {
					d.attempts = s.Attempt
				}
				if s.State == parley.Answered {
					d.reply = s.Reply
				}
				if s.Error != nil {
					d.code = s.Error.Code
				}
				d.lose(s.Losses, 1<<10)
			}
		}
	}
	v.count()
	return v
}

// count builds the conversations from the messages.
func (v *naive) count() {
	clear(v.conversations)
	for _, m := range v.messages {
		id := m.r.Message.Conversation
		c := v.conversations[id]
		if c == nil {
			c = &naiveConversation{}
			v.conversations[id] = c
		}
		c.messages++
		for _, d := range m.deliveries {
			if d.state != parley.Dead && !d.state.Settled(m.r.Message.Kind) {
				c.open++
			}
		}
		if m.failed() {
			c.failed++
		}
	}
}

func (m *naiveMessage) failed() bool {
	if m.r.Refused != nil || m.r.Message.Kind == parley.Failure {
		return true
	}
	for _, d := range m.deliveries {
		switch d.state {
		case parley.Dead, parley.Dropped, parley.Expired, parley.Abandoned:
			return true
		}
	}
	return false
}

// all returns every page of a filter's messages.
func all(t testing.TB, x *Index, f Filter) []Message {
	t.Helper()
	var out []Message
	f.Limit = 7
	for {
		page, err := x.Messages(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, page.Messages...)
		if f.Cursor = page.Next; f.Cursor == "" {
			return out
		}
	}
}

// compare checks every query of the index against a plain reading of the journal.
func compare(t testing.TB, x *Index, j *journal.Journal) {
	t.Helper()
	if err := x.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	compareWith(t, x, scan(t, j))
}

func codeIn(r *Reason) parley.Code {
	if r == nil {
		return ""
	}
	return r.Code
}

func compareWith(t testing.TB, x *Index, v *naive) {
	t.Helper()
	list := all(t, x, Filter{})
	if len(list) != len(v.messages) {
		t.Fatalf("the index has %d messages, the journal %d", len(list), len(v.messages))
	}
	for i, m := range list {
		want := v.messages[m.ID]
		if want == nil {
			t.Fatalf("message %s is not in the journal", m.ID)
		}
		w := want.r.Message
		if i > 0 && m.key >= list[i-1].key {
			t.Errorf("the order is not by key: %d after %d", m.key, list[i-1].key)
		}
		if m.Position != want.r.Position || m.Kind != w.Kind || m.From != w.From || m.To != w.To ||
			m.Conversation != w.Conversation || m.InReplyTo != w.InReplyTo ||
			!m.Time.Equal(want.r.Time) || m.Refused != (want.r.Refused != nil) || m.Failed != want.failed() ||
			m.Preview != w.Text() {
			t.Errorf("message %s is %+v, want %+v", m.ID, m, w)
		}
		if len(m.Deliveries) != len(want.deliveries) {
			t.Errorf("message %s has %d deliveries, want %d", m.ID, len(m.Deliveries), len(want.deliveries))
		}
		one, err := x.Message(t.Context(), m.ID.String())
		if err != nil || one.Position != m.Position {
			t.Fatalf("by id: %+v %v", one, err)
		}
		for _, d := range one.Deliveries {
			nd := want.deliveries[d.To]
			if nd == nil || d.State != nd.state || d.Attempts != nd.attempts || d.Postponed != nd.postponed ||
				codeIn(d.Error) != nd.code || d.Reply != nd.reply || len(d.Steps) != nd.steps ||
				!slices.Equal(d.Losses, nd.losses) {
				t.Errorf("delivery of %s to %s is %+v, want %+v", m.ID, d.To, d, nd)
			}
		}
	}
	filters := map[string]struct {
		f    Filter
		want func(*naiveMessage) bool
	}{
		"failed":  {Filter{Failed: true}, (*naiveMessage).failed},
		"refused": {Filter{Refused: true}, func(m *naiveMessage) bool { return m.r.Refused != nil }},
		"agent":   {Filter{Agent: "a1"}, func(m *naiveMessage) bool { return m.party("a1") }},
		"from":    {Filter{From: "a1"}, func(m *naiveMessage) bool { return m.r.Message.From == "a1" }},
		"to": {Filter{To: "a2"}, func(m *naiveMessage) bool {
			return m.r.Message.To == "a2" ||
				m.deliveries["a2"] != nil
		}},
		"both": {Filter{From: "a1", To: "a2", Oldest: true}, func(m *naiveMessage) bool {
			return m.r.Message.From == "a1" && (m.r.Message.To == "a2" || m.deliveries["a2"] != nil)
		}},
		"kind": {Filter{Kind: parley.Notice},
			func(m *naiveMessage) bool { return m.r.Message.Kind == parley.Notice }},
		"text": {Filter{Text: "word3"}, func(m *naiveMessage) bool {
			return strings.Contains(m.r.Message.Text(),
				"word3")
		}},
		"failed agent": {Filter{Failed: true, Agent: "a3"},
			func(m *naiveMessage) bool { return m.failed() && m.party("a3") }},
		"text agent": {Filter{Text: "word3", Agent: "a1"},
			func(m *naiveMessage) bool { return strings.Contains(m.r.Message.Text(), "word3") && m.party("a1") }},
		"trace": {Filter{Trace: "4bf92f3577b34da6a3ce929d0e0e4736"},
			func(m *naiveMessage) bool { return m.r.Message.Trace.Parent != "" }},
		"nobody": {Filter{Agent: "nobody"}, func(*naiveMessage) bool { return false }},
	}
	for s := parley.Waiting; s <= parley.Abandoned; s++ {
		has := func(m *naiveMessage) bool {
			for _, d := range m.deliveries {
				if d.state == s {
					return true
				}
			}
			return false
		}
		filters["state "+s.String()] = struct {
			f    Filter
			want func(*naiveMessage) bool
		}{Filter{State: s}, has}
		filters["failed "+s.String()] = struct {
			f    Filter
			want func(*naiveMessage) bool
		}{Filter{State: s, Failed: true}, func(m *naiveMessage) bool { return has(m) && m.failed() }}
	}
	for name, f := range filters {
		got := map[parley.ID]bool{}
		for _, m := range all(t, x, f.f) {
			if got[m.ID] {
				t.Errorf("filter %s returns %s twice", name, m.ID)
			}
			got[m.ID] = true
		}
		for id, m := range v.messages {
			if got[id] != f.want(m) {
				t.Errorf("filter %s: message %s is returned: %v, want %v", name, id, got[id], f.want(m))
			}
		}
	}
	count := 0
	f := ConversationFilter{Limit: 2}
	for {
		page, err := x.Conversations(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range page.Conversations {
			count++
			if w := v.conversations[c.ID]; w == nil || c.Messages != w.messages || c.Open != w.open ||
				c.Failed != w.failed {
				t.Errorf("conversation %s is %+v, want %+v", c.ID, c, w)
			}
			h, err := x.History(t.Context(), c.ID, "", 0)
			if err != nil || len(h.Messages) != min(100, c.Messages) {
				t.Errorf("conversation %s has a history of %d messages: %v", c.ID, len(h.Messages), err)
			}
		}
		if f.Cursor = page.Next; f.Cursor == "" {
			break
		}
	}
	if count != len(v.conversations) {
		t.Errorf("%d conversations are listed, want %d", count, len(v.conversations))
	}
}

func (m *naiveMessage) party(name string) bool {
	return m.r.Message.From == name || m.r.Message.To == name || m.deliveries[name] != nil
}

// author appends random entries.
type author struct {
	j      *journal.Journal
	n      uint64
	int    func(int) int
	scopes map[parley.ID]string
}

// losses returns up to two of n possible losses.
func (a *author) losses(n int) (out []parley.Loss) {
	for range a.int(3) {
		out = append(out, parley.Loss{Field: fmt.Sprint("field", a.int(n)), Reason: "no word for it"})
	}
	return out
}

func (a *author) append(t testing.TB) {
	t.Helper()
	name := func() string { return fmt.Sprint("a", a.int(4)) }
	a.n++
	m := &parley.Message{ID: testID(a.n, 1), Kind: []parley.Kind{parley.Request, parley.Notice,
		parley.Failure}[a.int(3)], From: name(), To: name(),
		Conversation: testID(uint64(a.int(6)), 2),
		Parts:        []parley.Part{parley.Text(fmt.Sprintf("word%d of message %d", a.int(6), a.n))}}
	if a.int(3) == 0 {
		m.Trace.Parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	}
	e := journal.Entry{Scope: fmt.Sprint("scope", a.int(5)), Message: m}
	switch a.int(10) {
	case 0:
		e.Refused = parley.Refuse(parley.Forbidden, "no")
	case 1:
	default:
		e.Open = []journal.Opening{{To: m.To, Attempt: a.int(2)}}
		if other := name(); m.Kind == parley.Notice && other != m.To {
			e.Open = append(e.Open, journal.Opening{To: other})
		}
	}
	if _, err := a.j.Append(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if a.scopes == nil {
		a.scopes = map[parley.ID]string{}
	}
	a.scopes[m.ID] = e.Scope
	said := false
	for _, d := range a.j.Deliveries(journal.Filter{}) {
		if d.Kind == parley.Request && !said && a.int(4) == 0 {
			said = true
			a.n++
			e := journal.Entry{Scope: a.scopes[d.Message], Losses: a.losses(40),
				Message: &parley.Message{ID: testID(a.n, 1), Kind: parley.Event, From: d.To, To: d.From,
					Conversation: d.Conversation, InReplyTo: d.Message, Parts: []parley.Part{parley.Text("said")}}}
			if _, err := a.j.Append(t.Context(), e); err != nil {
				t.Fatal(err)
			}
		}
		if a.int(3) > 0 {
			continue
		}
		s := journal.Step{Message: d.Message, To: d.To, State: parley.DeliveryState(1 + a.int(8))}
		if s.State == parley.Delivering {
			s.Attempt = d.Attempt + 1
		}
		if s.State == parley.Waiting {
			s.Postponed = a.int(2) == 0
			s.Next = time.Unix(1_800_000_000, 0)
		}
		if s.State == parley.Answered {
			s.Reply = testID(a.n, 3)
		}
		if s.State >= parley.Dead {
			s.Error = parley.Refuse(parley.TimedOut, "late")
		}
		s.Losses = a.losses(9)
		if _, err := a.j.Append(t.Context(), journal.Entry{Steps: []journal.Step{s}}); err != nil &&
			!errors.Is(err, journal.ErrConflict) {
			t.Fatal(err)
		}
	}
}

// TestEqualsScan: for any records, and over restarts and overflows, the index agrees
// with a plain reading of the journal.
func TestEqualsScan(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		j := memoryJournal(t, rapid.IntRange(1, 3).Draw(rt, "partitions"))
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		a := &author{j: j, int: rnd.IntN}
		c := Config{Journal: j, Path: filepath.Join(t.TempDir(), "index.db"),
			queue: rapid.IntRange(1, 64).Draw(rt, "queue"), batch: rapid.IntRange(1, 32).Draw(rt, "batch"),
			gather: time.Millisecond}
		if rapid.Bool().Draw(rt, "memory") {
			c.Path = ""
		}
		for range rapid.IntRange(1, 3).Draw(rt, "restarts") {
			for range rapid.IntRange(0, 20).Draw(rt, "before") {
				a.append(t)
			}
			x, err := Open(t.Context(), c)
			if err != nil {
				rt.Fatal(err)
			}
			for range rapid.IntRange(0, 40).Draw(rt, "while") {
				a.append(t)
			}
			if rapid.Bool().Draw(rt, "compare") {
				compare(t, x, j)
			}
			if err := x.Close(); err != nil {
				rt.Fatal(err)
			}
		}
		x, err := Open(t.Context(), c)
		if err != nil {
			rt.Fatal(err)
		}
		compare(t, x, j)
		if n := x.Stats().Rebuilds; n != 0 {
			rt.Errorf("the index was rebuilt %d times", n)
		}
		if err := x.Close(); err != nil {
			rt.Fatal(err)
		}
	})
}

func openIndex(t testing.TB, c Config) *Index {
	t.Helper()
	if c.retry == 0 {
		c.retry = time.Millisecond
	}
	x, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	return x
}

func filled(t testing.TB, n int) (*journal.Journal, *author) {
	j := memoryJournal(t, 1)
	a := &author{j: j, int: rand.New(rand.NewPCG(7, 7)).IntN}
	for range n {
		a.append(t)
	}
	return j, a
}

func TestThrownAway(t *testing.T) {
	other, _ := filled(t, 5)
	writes := func(statement string) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			c, err := openConn(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(execute(c, statement, nil), c.Close()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, spoil := range map[string]func(t *testing.T, path string){
		"garbage": func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte(strings.Repeat("not a database ", 1000)), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"truncated": func(t *testing.T, path string) {
			if err := os.Truncate(path, 5000); err != nil {
				t.Fatal(err)
			}
		},
		"older schema": writes("UPDATE meta SET value='0' WHERE key='version'"),
		"lost table":   writes("DROP TABLE lists"),
		"of another journal": func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			x, err := Open(t.Context(), Config{Journal: other, Path: path})
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(x.Wait(t.Context()), x.Close()); err != nil {
				t.Fatal(err)
			}
		},
		"ahead of its journal": writes("UPDATE progress SET sequence=1000000"),
		"another record":       writes("UPDATE progress SET print=print+1"),
	} {
		t.Run(name, func(t *testing.T) {
			j, a := filled(t, 30)
			path := filepath.Join(t.TempDir(), "index.db")
			x, err := Open(t.Context(), Config{Journal: j, Path: path})
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(x.Wait(t.Context()), x.Close()); err != nil {
				t.Fatal(err)
			}
			spoil(t, path)
			x = openIndex(t, Config{Journal: j, Path: path})
			a.append(t)
			compare(t, x, j)
			if x.Stats().Rebuilds == 0 {
				t.Error("the damaged index was not rebuilt")
			}
			if i, err := os.Stat(path); err != nil || i.Mode().Perm() != 0o600 {
				t.Errorf("mode %v %v, want 0600", i.Mode(), err)
			}
		})
	}
}

// TestDamagedWhileOpen: damage that a query or write finds in an open index causes a
// rebuild.
func TestDamagedWhileOpen(t *testing.T) {
	j, a := filled(t, 50)
	path := filepath.Join(t.TempDir(), "index.db")
	x := openIndex(t, Config{Journal: j, Path: path})
	compare(t, x, j)
	x.broken.Store(true) // as a query does after SQLITE_CORRUPT
	a.append(t)
	for x.Stats().Rebuilds == 0 {
		if err := x.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		x.queue.wakeWriter()
	}
	compare(t, x, j)
}

// TestDamagedPages overwrites all pages but the first: Open does not find the damage,
// the first query or write does.
func TestDamagedPages(t *testing.T) {
	j, a := filled(t, 60)
	path := filepath.Join(t.TempDir(), "index.db")
	x, err := Open(t.Context(), Config{Journal: j, Path: path})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(x.Wait(t.Context()), x.Close()); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil || len(b) < 3*4096 {
		t.Fatal(len(b), err)
	}
	for i := 4096; i < len(b); i++ {
		b[i] = 0x55
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	x = openIndex(t, Config{Journal: j, Path: path})
	for x.Stats().Rebuilds == 0 {
		a.append(t)
		if _, err := x.Messages(t.Context(), Filter{}); err != nil {
			t.Log(err)
		}
	}
	compare(t, x, j)
}

// TestLocked: the index waits while another connection has the file locked for writing,
// and is complete afterwards.
func TestLocked(t *testing.T) {
	j, a := filled(t, 20)
	path := filepath.Join(t.TempDir(), "index.db")
	x := openIndex(t, Config{Journal: j, Path: path})
	if err := x.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, err := openConn(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := execute(c, "BEGIN IMMEDIATE", nil); err != nil {
		t.Fatal(err)
	}
	a.append(t)
	if err := errors.Join(execute(c, "ROLLBACK", nil), c.Close()); err != nil {
		t.Fatal(err)
	}
	compare(t, x, j)
}

func TestRefusals(t *testing.T) {
	j, _ := filled(t, 3)
	x := openIndex(t, Config{Journal: j})
	if err := x.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, f := range []Filter{{Cursor: "!"}, {Cursor: "0"}, {Cursor: "-1"}, {Text: `"*`}} {
		if _, err := x.Messages(t.Context(), f); !errors.Is(err, ErrFilter) {
			t.Errorf("%+v: %v, want ErrFilter", f, err)
		}
	}
	if _, err := x.Message(t.Context(), "1234567"); !errors.Is(err, ErrFilter) {
		t.Errorf("a short prefix: %v", err)
	}
	if _, err := x.Message(t.Context(), "ffffffff"); !errors.Is(err, ErrNotFound) {
		t.Errorf("an unknown prefix: %v", err)
	}
	var several *AmbiguousError
	if _, err := x.Message(t.Context(), "40000000"); !errors.As(err, &several) || len(several.IDs) < 2 ||
		several.IDs[0] == several.IDs[1] || !strings.HasPrefix(several.IDs[1].String(), "40000000") {
		t.Errorf("an ambiguous prefix: %v", err)
	}
	if _, err := x.Conversation(t.Context(), "zzzzzzzz"); !errors.Is(err, ErrFilter) {
		t.Errorf("a prefix that is not hexadecimal: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := x.Messages(ctx, Filter{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled context: %v", err)
	}
}

func TestSearch(t *testing.T) {
	j := memoryJournal(t, 1)
	for i, text := range []string{"The Weather in Bern is fine", "weathering the storm",
		`{"city":"Zürich","text":"fine weather tomorrow"}`, "nothing of it"} {
		p := parley.Text(text)
		if strings.HasPrefix(text, "{") {
			p.MediaType = "application/json"
		}
		m := &parley.Message{ID: testID(uint64(i+1), 1), Kind: parley.Notice, From: "a", To: "b",
			Conversation: testID(1, 2), Parts: []parley.Part{p}}
		if _, err := j.Append(t.Context(), journal.Entry{Scope: "s", Message: m}); err != nil {
			t.Fatal(err)
		}
	}
	x := openIndex(t, Config{Journal: j})
	if err := x.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	for q, want := range map[string]string{"weather": "13", "weather*": "123", `"weather in bern"`: "1",
		"fine weather": "13", `"fine weather"`: "3", "zürich": "3", "zurich": "3",
		"weather OR nothing": "", "weather-in": "1", `we"ather`: "", "NEAR(weather": ""} {
		got := ""
		for _, m := range all(t, x, Filter{Text: q, Oldest: true}) {
			got += strconv.Itoa(int(m.Position.Sequence))
		}
		if got != want {
			t.Errorf("search %q gives %q, want %q", q, got, want)
		}
	}
	page, err := x.Messages(t.Context(), Filter{Text: "bern"})
	if err != nil || len(page.Messages) != 1 || page.Messages[0].Snippet != "The Weather in «Bern» is fine" {
		t.Errorf("%+v %v", page.Messages, err)
	}
	quiet := openIndex(t, Config{Journal: j, NoText: true})
	if err := quiet.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := quiet.Messages(t.Context(), Filter{Text: "bern"}); !errors.Is(err, ErrFilter) {
		t.Errorf("a search in an index without texts: %v", err)
	}
	if page, err = quiet.Messages(t.Context(), Filter{}); err != nil || len(page.Messages) != 4 ||
		page.Messages[0].Preview != "" {
		t.Errorf("%+v %v", page.Messages, err)
	}
}

// TestTraceAlone: a message that belongs to no conversation is found by its trace.
func TestTraceAlone(t *testing.T) {
	j := memoryJournal(t, 1)
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	m := &parley.Message{ID: testID(1, 1), Kind: parley.Notice, From: "a", To: "b",
		Trace: parley.Trace{Parent: "00-" + trace + "-00f067aa0ba902b7-01"}}
	if _, err := j.Append(t.Context(), journal.Entry{Scope: "s", Message: m}); err != nil {
		t.Fatal(err)
	}
	x := openIndex(t, Config{Journal: j})
	if err := x.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if list := all(t, x, Filter{Trace: trace}); len(list) != 1 || list[0].Trace != trace {
		t.Errorf("found %+v", list)
	}
}

// TestTimes: a filter by time is right also if the clock stood still or went back.
func TestTimes(t *testing.T) {
	var now atomic.Int64
	start := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	j := openJournal(t, journal.Config{Store: testjournal.Memory(t), Node: "n1",
		Now: func() time.Time { return start.Add(time.Duration(now.Load())) }})
	for i, at := range []int{0, 0, 0, 10, 5, 20, 60} {
		now.Store(int64(time.Duration(at) * time.Second))
		m := &parley.Message{ID: testID(uint64(i+1), 1), Kind: parley.Notice, From: "a", To: "b"}
		if _, err := j.Append(t.Context(), journal.Entry{Scope: "s", Message: m}); err != nil {
			t.Fatal(err)
		}
	}
	x := openIndex(t, Config{Journal: j})
	if err := x.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		from, to int
		want     string
	}{{0, 1, "321"}, {1, 30, "654"}, {60, 90, "7"}, {61, 90, ""}} {
		got := ""
		for _, m := range all(t, x, Filter{Since: start.Add(time.Duration(c.from) * time.Second),
			Until: start.Add(time.Duration(c.to) * time.Second)}) {
			got += strconv.Itoa(int(m.ID[5]))
		}
		if got != c.want {
			t.Errorf("from %d to %d: %q, want %q", c.from, c.to, got, c.want)
		}
	}
}
