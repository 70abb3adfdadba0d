package agh

import (
	"context"
	"fmt"
	"testing"
)

// A capability begins and resumes work as a say does, but a late one gets no
// receipt. Receipts other than refusals do not change the state. A stale message
// creates no work.
func TestCapabilitiesAndReceiptsInWork(t *testing.T) {
	doc, err := (&Capability{ID: "a", Summary: "s", Outcome: "o"}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	capability := with(workText, "kind", "capability", "id", "cap", "body", js(`{"capability":`+string(doc)+`}`))
	state := func(w *WorkTable) WorkState {
		x, _, _ := w.Work(context.Background(), "ws", "work_1")
		return x.State
	}
	t.Run("AGH-070 a capability opens work", func(t *testing.T) {
		r, w := workNode(t)
		if res := receive(r, capability); res.Outcome != Accepted || state(w) != StateSubmitted ||
			res.Work.Initiator != "alice" || res.Work.Target != "bob" {
			t.Errorf("%+v", res)
		}
	})
	t.Run("AGH-071 AGH-077 either participant resumes, by either kind", func(t *testing.T) {
		for i, raw := range []string{capability, with(workText, "id", "s"),
			with(capability, "from", "bob", "to", "alice"), with(workText, "id", "s", "from", "bob", "to", "alice")} {
			r, w := workNode(t)
			receive(r, workText)
			receive(r, traceText("bob", "alice", "needs_input", "t"))
			if res := receive(r, raw); res.Outcome != Accepted || state(w) != StateWorking {
				t.Errorf("%d: %s, %v", i, state(w), res.Err)
			}
		}
	})
	t.Run("AGH-072 AGH-081 no receipt for a capability that comes too late", func(t *testing.T) {
		r, w := workNode(t)
		r.Self = "hub"
		receive(r, workText)
		receive(r, traceText("bob", "alice", "failed", "t"))
		if res := receive(r, capability); ReasonOf(res.Err) != ReasonWorkClosed || len(res.Published) > 0 ||
			res.Relay || state(w) != StateFailed {
			t.Errorf("%+v", res)
		}
	})
	t.Run("AGH-071 receipts that refuse nothing leave the state", func(t *testing.T) {
		for _, from := range []WorkState{StateSubmitted, StateWorking, StateNeedsInput} {
			for _, status := range []ReceiptStatus{StatusAccepted, StatusDuplicate, StatusExpired, StatusUnsupported} {
				r, w := workNode(t)
				receive(r, workText)
				if from != StateSubmitted {
					receive(r, traceText("bob", "alice", string(from), "t"))
				}
				if res := receive(r, receiptText("bob", "alice", string(status), "e")); res.Outcome != Accepted ||
					state(w) != from {
					t.Errorf("%s in %s: %s, %v", status, from, state(w), res.Err)
				}
			}
		}
	})
	t.Run("AGH-080 a stale message creates no work", func(t *testing.T) { // digest §12 (10)
		r := node(t, nil, "bob")
		w := &WorkTable{}
		r.Works = w
		for i, raw := range []string{with(workText, "ts", clock-301), with(workText, "expires_at", clock)} {
			if res := receive(r, with(raw, "id", fmt.Sprint(i))); ReasonOf(res.Err) != ReasonExpired ||
				len(res.Published) != 1 || len(w.works) != 0 {
				t.Errorf("%+v, %d works", res, len(w.works))
			}
		}
	})
	t.Run("AGH-045 each refusal needs a reason", func(t *testing.T) {
		for _, s := range []ReceiptStatus{StatusRejected, StatusDuplicate, StatusExpired, StatusUnsupported} {
			refuses(t, string(s), with(workText, "kind", "receipt", "body", map[string]any{"for_id": "m", "status": s}),
				ReasonMalformed)
			accepts(t, string(s), with(workText, "kind", "receipt", "body",
				map[string]any{"for_id": "m", "status": s, "reason_code": "busy"}))
		}
	})
}

// Each refusal says what is wrong in words that its sender can use.
func TestRefusalsOfWorkSayWhy(t *testing.T) {
	open := []string{workText}
	for name, c := range map[string]struct {
		before []string
		raw    string
		want   string
	}{
		"a trace of unknown work": {nil, traceText("bob", "alice", "working", "t"),
			"agh: no such work: work_id: is not known, and only say and capability begin work"},
		"work to nobody": {nil, with(workText, "to", nil),
			"agh: work needs another peer as its target: to: must name another peer: work has two"},
		"the container of other work": {open, with(workText, "id", "s", "thread_id", "thread_2"),
			"agh: work belongs to another conversation: work_id: is used in another conversation"},
		"a peer without a part": {open, traceText("carol", "alice", "working", "t"),
			"agh: sender or target has no part in this work: from: has no part in this work"},
		"closed work": {append(open, traceText("bob", "alice", "failed", "t")), with(workText, "id", "s"),
			"agh: work is closed: work_id: is closed: its state is failed"},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := workNode(t)
			for _, raw := range c.before {
				receive(r, raw)
			}
			if res := receive(r, c.raw); res.Err == nil || res.Err.Error() != c.want {
				t.Errorf("%v", res.Err)
			}
		})
	}
}
