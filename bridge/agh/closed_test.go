package agh

import (
	"fmt"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
)

func memoryJournal(t *testing.T) *journal.Journal {
	t.Helper()
	j, err := journal.Open(t.Context(), journal.Config{Store: testjournal.Memory(t), Node: "n"})
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

// Digest §12 (14): work that an agent ended stays ended over a restart, an
// orderly one and one after a crash, though nothing is written for each.
func TestClosedWorkComesFromTheLog(t *testing.T) {
	j := memoryJournal(t)
	now := time.Unix(1776366000, 0)
	number := byte(0)
	id := func() parley.ID { number++; return parley.HashID([]byte{number}) }
	request := func(c *closed, work string) (*parley.Message, journal.Position) {
		e := &protocol.Envelope{ID: "msg_" + work, WorkspaceID: "acme", Channel: "builders", Surface: protocol.SurfaceThread, ThreadID: "thread_abc",
			From: "alice", To: "echo", WorkID: work, TS: now.Unix()}
		if err := e.SetContent(&protocol.Say{Text: "go"}); err != nil {
			t.Fatal(err)
		}
		raw, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		m := &parley.Message{ID: id(), Kind: parley.Request, From: "guest/agh/acme/alice", To: "echo", Conversation: id(), Deadline: now.Add(time.Hour),
			Origin: parley.Origin{Protocol: Protocol, Raw: raw}}
		c.begun(m.ID, submitted(e, now))
		at, err := j.Append(t.Context(), journal.Entry{Scope: "s", Message: m, Open: []journal.Opening{{To: "echo", Attempt: 1}}})
		if err != nil {
			t.Fatal(err)
		}
		return m, at
	}
	reply := func(m *parley.Message, at journal.Position, fails *parley.Error) {
		r := &parley.Message{ID: id(), Kind: parley.Response, From: "echo", To: m.From, Conversation: m.Conversation, InReplyTo: m.ID, Error: fails,
			Trace: parley.Trace{Foreign: map[string]string{foreignRequest: at.String()}}}
		if fails != nil {
			r.Kind = parley.Failure
		}
		if _, err := j.Append(t.Context(), journal.Entry{Scope: "s", Message: r,
			Steps: []journal.Step{{Message: m.ID, To: "echo", State: parley.Answered, Attempt: 1, Reply: r.ID, Error: fails}}}); err != nil {
			t.Fatal(err)
		}
	}
	// start is a hub that begins on what the journal holds.
	start := func(want ...string) *closed {
		t.Helper()
		c := newClosed(j, func() time.Time { now = now.Add(time.Second); return now })
		t.Cleanup(j.Watch(c.recorded))
		got := map[string]bool{}
		if err := c.load(t.Context(), found{decode: protocol.Decode, ended: func(w ending) { got[w.WorkID+" "+string(w.State)+" "+w.Initiator] = true },
			peer: func(string) (string, string, bool) { return "", "", false }}); err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			if !got[w] {
				t.Errorf("%q is not known to have ended", w)
			}
		}
		if len(got) != len(want) {
			t.Errorf("ended: %v", got)
		}
		return c
	}
	one := start()
	m1, at1 := request(one, "work_1")
	m2, at2 := request(one, "work_2")
	m3, at3 := request(one, "work_3")
	request(one, "work_open")
	reply(m1, at1, nil)
	// The hub is killed: nothing was written since it began.
	two := start("work_1 completed alice")
	two.begun(m2.ID, one.open[m2.ID])
	two.begun(m3.ID, one.open[m3.ID])
	reply(m2, at2, parley.Refuse(parley.HandlerFailed, "no"))
	for range 2 { // a write, and an orderly end
		two.at = 0 // as if much was recorded since
		if err := two.flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	three := start("work_1 completed alice", "work_2 failed alice")
	reply(m3, at3, parley.Refuse(parley.Cancelled, "enough")) // whose request lies before what is read again
	start("work_1 completed alice", "work_2 failed alice", "work_3 canceled alice")
	if three.key != two.key {
		t.Error("a restart begins another segment though the last one has room")
	}
}

// What is kept of ended work is bounded: the newest that the table can hold.
func TestClosedWorkIsBounded(t *testing.T) {
	j := memoryJournal(t)
	now := time.Unix(1776366000, 0)
	c := newClosed(j, func() time.Time { now = now.Add(time.Second); return now })
	for i := range 2 + keepClosed/segmentWorks {
		works := make([]ending, segmentWorks)
		for k := range works {
			works[k].WorkID = fmt.Sprintf("work_%d_%d", i, k)
		}
		c.ended = works
		if err := c.flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	n, first, last := 0, false, false
	if err := newClosed(j, c.now).load(t.Context(), found{ended: func(w ending) {
		n++
		first = first || w.WorkID == "work_0_0"
		last = last || w.WorkID == fmt.Sprintf("work_%d_0", 1+keepClosed/segmentWorks)
	}}); err != nil {
		t.Fatal(err)
	}
	if n < keepClosed || n > keepClosed+2*segmentWorks || first || !last {
		t.Errorf("%d are kept, the first %v, the last %v", n, first, last)
	}
}
