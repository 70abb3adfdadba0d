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

// TestFollow: what a message of a session answers follows from the log before it.
// It is the same when the log is looked at again, and where some of the calls are
// settled meanwhile.
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
		asks    string // of whom, where it is a call
		call    string // its name
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
	s := &store{b: &Binding{standIns: &standIns{byID: map[string]string{hub: "parley"},
		byName: map[string]*protocol.Identity{"parley": speakers[hub]}}}}
	c := &chain{}
	var said []*protocol.Envelope
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
		said = append(said, e)
		r := &protocol.Record{Position: int64(n), Kind: protocol.RecordMessage, Sender: x.by, Raw: e.Raw(),
			Format: protocol.JSON}
		var asks callee
		if x.asks != "" {
			asks = callee{To: "guest/" + x.asks, Peer: x.asks}
		}
		s.trackCalls(c, r, ids[x.call], asks)
	}
	if len(c.calls) != 4 {
		t.Fatalf("%+v", c.calls)
	}
	for _, settled := range []string{"", "a", "b", "c", "d"} {
		left := slices.DeleteFunc(slices.Clone(c.calls), func(x call) bool { return x.Request == ids[settled] })
		for n, x := range steps {
			if x.by == hub {
				continue
			}
			want := x.answers
			if want == settled {
				want = ""
			}
			got := ""
			if a, _ := answered(left, said[n], int64(n)); a != nil {
				for name, id := range ids {
					if a.Request == id {
						got = name
					}
				}
			}
			if got != want {
				t.Errorf("message %d answers %q, want %q, where %q is settled", n, got, want, settled)
			}
		}
	}
}

// TestSettle: a call is kept as long as its request is open, answered or not.
func TestSettle(t *testing.T) {
	j, err := journal.Open(t.Context(), journal.Config{Store: testjournal.Memory(t), Partitions: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	}()
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
