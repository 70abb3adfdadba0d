package asp

import (
	"slices"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
)

// TestFollow: the log before a message determines the call that it answers. The node
// that owns the session finds the call when the message is added. A second reading of
// the log gives the same call, also when some calls are settled meanwhile.
func TestFollow(t *testing.T) {
	const hub, bob, carol = "agent://hub.example/parley/hub", "agent://bob.example/x/bob",
		"agent://carol.example/x/carol"
	ids := map[string]parley.ID{}
	for _, name := range []string{"a", "b", "c", "d"} {
		ids[name] = parley.HashID([]byte(name))
	}
	result := func(ref string) protocol.Information {
		return protocol.Information{InformType: informResult, ReferenceID: ref, Topic: "x"}
	}
	steps := []struct {
		by      string
		act     protocol.Performative
		body    any
		asks    string // the callee, if the step is a call
		call    string // the name of the call
		answers string
	}{
		{by: bob, act: protocol.Inform, body: result("")},
		{by: hub, act: protocol.Query, asks: bob, call: "a"},
		{by: hub, act: protocol.Query, asks: bob, call: "b"},
		{by: hub, act: protocol.Query, asks: carol, call: "c"},
		{by: hub, act: protocol.Inform, body: result("")},
		{by: bob, act: protocol.Inform, body: protocol.Information{InformType: introduction, Topic: introduction}},
		{by: bob, act: protocol.Inform, body: protocol.Information{InformType: informProgress, Topic: "x"},
			answers: "a"},
		{by: bob, act: protocol.Inform, body: result(ids["b"].String()), answers: "b"},
		{by: bob, act: protocol.Inform, body: result(""), answers: "a"},
		{by: bob, act: protocol.Inform, body: result("")},
		{by: bob, act: protocol.Inform, body: result(ids["a"].String())},
		{by: hub, act: protocol.Query, asks: bob, call: "d"},
		{by: carol, act: protocol.Inform, body: result(""), answers: "c"},
		{by: bob, act: protocol.Inform, body: result(""), answers: "d"},
	}
	speakers := map[string]*protocol.Identity{}
	for _, id := range []string{hub, bob, carol} {
		i, err := protocol.GenerateIdentity(id, "org_x")
		if err != nil {
			t.Fatal(err)
		}
		speakers[id] = i
	}
	b := &Binding{c: Config{Journal: memoryJournal(t)}, standIns: &standIns{byID: map[string]string{hub: "parley"},
		byName: map[string]*protocol.Identity{"parley": speakers[hub]}}}
	b.reconciler = newReconciler(b)
	s := &store{b: b, j: b.c.Journal}
	c := &chain{}
	var said []*protocol.Record
	nameOf := func(request parley.ID) string {
		for name, id := range ids {
			if request == id {
				return name
			}
		}
		return ""
	}
	for n, x := range steps {
		if x.act == protocol.Query {
			x.body = protocol.Question{QueryID: x.call, QueryType: "x"}
		}
		d := protocol.Draft{SessionID: "01890000-0000-7000-8000-000000000000", Performative: x.act, Body: x.body,
			Time: time.Unix(1e9, 0)}
		e, err := d.Sign(speakers[x.by])
		if err != nil {
			t.Fatal(n, err)
		}
		r := &protocol.Record{Position: int64(n), Kind: protocol.RecordMessage, Sender: x.by, Raw: e.Raw(),
			Format: protocol.JSON}
		var asks callee
		if x.asks != "" {
			asks = callee{To: "guest/" + x.asks, Peer: x.asks}
		}
		said = append(said, r)
		s.trackCalls(c, r, ids[x.call], asks, s.answerIn(c, r))
	}
	if len(c.calls) != 4 || c.looked != int64(len(steps)) {
		t.Fatalf("%+v, looked at %d", c.calls, c.looked)
	}
	found := map[int64]string{}
	for _, a := range c.answers {
		found[a.position] = nameOf(a.reply.InReplyTo)
	}
	for n, x := range steps {
		if got := found[int64(n)]; got != x.answers {
			t.Errorf("message %d answers %q, want %q", n, got, x.answers)
		}
	}
	for _, settled := range []string{"", "a", "b", "c", "d"} {
		left := &chain{calls: slices.DeleteFunc(slices.Clone(c.calls),
			func(x call) bool { return x.Request == ids[settled] })}
		for n, x := range steps {
			want := x.answers
			if want == settled {
				want = ""
			}
			got := ""
			if a := s.answerIn(left, said[n]); a != nil {
				got = nameOf(a.reply.InReplyTo)
			}
			if got != want {
				t.Errorf("message %d answers %q, want %q, where %q is settled", n, got, want, settled)
			}
		}
	}
}

// TestTooManyAnswers: a session holds a bounded number of answers in memory. It reads
// the next ones after the hub has these.
func TestTooManyAnswers(t *testing.T) {
	b := &Binding{c: Config{Journal: memoryJournal(t), Now: time.Now}, standIns: &standIns{}}
	b.reconciler = newReconciler(b)
	s := &store{b: b, j: b.c.Journal, chains: map[string]*chain{}}
	i, err := protocol.GenerateIdentity("agent://bob.example/x/bob", "org_x")
	if err != nil {
		t.Fatal(err)
	}
	c := &chain{id: "s", ledger: &protocol.Ledger{}, calls: []call{{Request: parley.HashID([]byte("a")),
		callee: callee{To: "bob", Peer: i.ID()}}}}
	s.chains[c.id] = c
	e, err := protocol.Draft{SessionID: "01890000-0000-7000-8000-000000000000", Performative: protocol.Inform,
		Body: protocol.Information{InformType: informProgress, Topic: "x"}, Time: time.Unix(1e9, 0)}.Sign(i)
	if err != nil {
		t.Fatal(err)
	}
	const all = recentRecords + 3
	for n := range int64(all) {
		r := &protocol.Record{Position: n, Kind: protocol.RecordMessage, Sender: i.ID(), Raw: e.Raw(),
			Format: protocol.JSON}
		c.index(uint64(n+1), parley.ID{})
		c.recent = append(c.recent, nil)
		c.recent = c.recent[:min(len(c.recent), recentRecords)]
		c.recent[n%recentRecords] = r
		s.trackCalls(c, r, parley.ID{}, callee{}, s.answerIn(c, r))
	}
	if len(c.answers) != recentRecords {
		t.Fatalf("%d answers in memory", len(c.answers))
	}
	var got []int64
	for len(got) <= all {
		list, open, err := s.answers(t.Context(), &protocol.Ledger{ID: c.id})
		if err != nil || open != 1 {
			t.Fatal(open, err)
		}
		if len(list) == 0 {
			break
		}
		for _, a := range list[:(len(list)+1)/2] { // the others fail
			got = append(got, a.position)
		}
		s.delivered(c.id, got[len(got)-1], nil)
	}
	for n, position := range got {
		if position != int64(n) {
			t.Fatalf("delivered %v", got)
		}
	}
	if len(got) != all {
		t.Errorf("delivered %d of %d", len(got), all)
	}
}

func memoryJournal(t *testing.T) *journal.Journal {
	t.Helper()
	j, err := journal.Open(t.Context(), journal.Config{Store: testjournal.Memory(t), Partitions: 2})
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

// TestSettle: a call is kept as long as its request is open, answered or not.
func TestSettle(t *testing.T) {
	j := memoryJournal(t)
	s, c := &store{j: j}, &chain{}
	request := func(name string, steps ...journal.Step) {
		t.Helper()
		m := &parley.Message{ID: parley.HashID([]byte(name)), Kind: parley.Request, From: "alice", To: "bob"}
		e := journal.Entry{Scope: name, Message: m, Open: []journal.Opening{{To: m.To}}}
		if _, err := j.Append(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		for _, step := range steps {
			step.Message, step.To = m.ID, m.To
			if _, err := j.Append(t.Context(), journal.Entry{Scope: name, Steps: []journal.Step{step}}); err != nil {
				t.Fatal(err)
			}
		}
		c.calls = append(c.calls, call{callee: callee{To: m.To}, Request: m.ID, Answered: int64(len(steps))})
	}
	request("open")
	request("answered", journal.Step{State: parley.Answered, Reply: parley.HashID([]byte("reply"))})
	request("delivered", journal.Step{State: parley.Delivered})
	request("expired", journal.Step{State: parley.Expired})
	if err := s.dropSettledCalls(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if len(c.calls) != 2 || c.calls[0].Request != parley.HashID([]byte("open")) ||
		c.calls[1].Request != parley.HashID([]byte("delivered")) {
		t.Errorf("%+v", c.calls)
	}
}
