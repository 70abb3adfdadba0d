package agh

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func directText(t *testing.T, from, to string) string {
	t.Helper()
	id, err := DirectID("ws", "c", from, to)
	if err != nil {
		t.Fatal(err)
	}
	return with(sayText, "from", from, "to", to, "thread_id", nil, "surface", "direct", "direct_id", id)
}

func TestDeliveryChecklist(t *testing.T) {
	t.Run("AGH-050 direct_id", func(t *testing.T) { // and TestVectors/direct-id.json
		a, err1 := DirectID("ws", "c", "alice", "bob")
		b, err2 := DirectID("ws", "c", "bob", "alice")
		if a != b || err1 != nil || err2 != nil {
			t.Errorf("%s %s %v %v", a, b, err1, err2)
		}
		if _, err := DirectID("ws", "c", "bob", "bob"); !errors.Is(err, ErrMalformed) {
			t.Error(err)
		}
	})
	t.Run("AGH-051 AGH-052 subjects", func(t *testing.T) { // and TestVectors/nats-subject.json
		for raw, want := range map[string]string{
			sayText:                      "agh.network.v0.ws.c.broadcast",
			with(sayText, "to", "alice"): "agh.network.v0.ws.c.peer.2bd806c97f0e00af1a1fc3328fa763a9",
		} {
			e, err := Decode([]byte(raw))
			if err != nil {
				t.Fatal(err)
			}
			if s, err := e.Subject(); s != want || err != nil {
				t.Errorf("%s, %v", s, err)
			}
		}
	})
	t.Run("AGH-053 a broadcast reaches all but the sender", func(t *testing.T) {
		r := node(t, nil, "bob", "carol")
		if res := receive(r, sayText); !delivered(res, "bob", "carol") {
			t.Errorf("%+v", res)
		}
		e := &Envelope{WorkspaceID: "ws", Channel: "c", From: "bob", Surface: SurfaceThread, ThreadID: "thread_abc"}
		if err := e.SetContent(&Say{Text: "x"}); err != nil {
			t.Fatal(err)
		}
		if res, err := r.Send(context.Background(), e); err != nil || !delivered(res, "carol") ||
			res.Published[0].Subject != "agh.network.v0.ws.c.broadcast" {
			t.Errorf("%+v %v", res, err)
		}
	})
	t.Run("AGH-054 not for us", func(t *testing.T) {
		r := node(t, nil, "bob")
		if res := receive(r, with(workText, "to", "dave")); ReasonOf(res.Err) != ReasonNotTarget ||
			len(res.Published) > 0 || res.Relay {
			t.Errorf("%+v", res)
		}
	})
	t.Run("AGH-055 direct rooms", func(t *testing.T) {
		r := node(t, nil, "bob", "carol")
		if res := receive(r, directText(t, "alice", "bob")); !delivered(res, "bob") {
			t.Errorf("%+v", res)
		}
		wrong := with(directText(t, "alice", "carol"), "to", "bob", "id", "m2")
		if res := receive(r, wrong); res.Outcome != Accepted || !delivered(res) || res.Relay || len(res.Published) > 0 {
			t.Errorf("%+v", res)
		}
	})
	t.Run("AGH-056 workspaces and channels are apart", func(t *testing.T) {
		r := node(t, nil, "bob")
		for _, m := range []string{"workspace_id", "channel"} {
			if res := receive(r, with(sayText, m, "other")); !delivered(res) {
				t.Errorf("%+v", res)
			}
		}
	})
	t.Run("AGH-057 subject and envelope agree", func(t *testing.T) {
		r := node(t, nil, "bob")
		toBob, _ := PeerSubject("ws", "c", "bob")
		for _, subject := range []string{toBob, "agh.network.v0.ws.d.broadcast", "agh.network.v0.ws2.c.broadcast",
			"agh.network.v0.c.broadcast"} {
			if res := r.Receive(context.Background(), Inbound{Raw: []byte(sayText),
				Subject: subject}); !errors.Is(res.Err, ErrSubject) {
				t.Errorf("%s: %+v", subject, res)
			}
		}
		if res := r.Receive(context.Background(), Inbound{Raw: []byte(sayText),
			Subject: "agh.network.v0.ws.c.broadcast"}); res.Outcome != Accepted {
			t.Errorf("%+v", res)
		}
	})
	t.Run("AGH-012 an empty to is no broadcast", func(t *testing.T) { // digest §12 (3)
		r := node(t, nil, "bob")
		for _, v := range []string{"", "  "} {
			if res := receive(r, with(sayText, "to", v)); res.Outcome != Refused || len(res.Deliver) > 0 {
				t.Errorf("%+v", res)
			}
		}
	})
	t.Run("a message from a hosted peer is not taken from the network", func(t *testing.T) {
		r := node(t, nil, "bob", "alice")
		if res := guarded(r, sayText); !errors.Is(res.Err, ErrForbidden) {
			t.Errorf("%+v", res)
		}
	})
	t.Run("a relay", func(t *testing.T) {
		r := node(t, nil, "desk")
		r.Relay, r.Self = true, "hub"
		for _, p := range []string{"alice", "bob"} {
			if res := receive(r, strings.ReplaceAll(with(greetText, "id", p), "alice", p)); !res.Relay {
				t.Errorf("%+v", res)
			}
		}
		for name, c := range map[string]struct {
			raw   string
			relay bool
			to    string
		}{
			"broadcast":        {with(sayText, "id", "1"), true, "desk"},
			"directed":         {with(sayText, "id", "2", "to", "bob"), true, ""},
			"to a hosted peer": {with(sayText, "id", "3", "to", "desk"), false, "desk"},
			"direct":           {with(directText(t, "alice", "bob"), "id", "4"), true, ""},
			"wrong room":       {with(directText(t, "alice", "carol"), "id", "5", "to", "bob"), false, ""},
			"broadcast whois": {with(greetText, "id", "6", "kind", "whois", "body",
				js(`{"type":"request","query":"x"}`)), true, ""},
			"directed greeting": {with(greetText, "id", "7", "to", "bob"), true, ""},
		} {
			res := receive(r, c.raw)
			if res.Outcome != Accepted || res.Relay != c.relay || strings.Join(res.Deliver, " ") != c.to {
				t.Errorf("%s: %+v", name, res)
			}
		}
		// AGH-054, but a present peer gets its receipts from the hub in its own name.
		bad := with(workText, "id", "8", "body", js(`{}`))
		if res := receive(r, bad); len(res.Published) != 1 || res.Published[0].Envelope.From != "hub" {
			t.Errorf("%+v", res)
		}
		if res := r.Receive(context.Background(), Inbound{Raw: []byte(bad),
			May: func(*Envelope) error { return errors.New("no") }}); len(res.Published) > 0 {
			t.Errorf("a receipt for a spoofed message: %+v", res)
		}
	})
}

func greetFrom(peer, id string, ts int64) string {
	return with(strings.ReplaceAll(greetText, "alice", peer), "id", id, "ts", ts)
}

func TestDiscoveryChecklist(t *testing.T) {
	ctx := context.Background()
	t.Run("AGH-060 AGH-061 presence", func(t *testing.T) {
		for _, interval := range []time.Duration{0, 10 * time.Second} {
			step := cmp.Or(interval, 30*time.Second)
			now := atClock()
			r := node(t, func() time.Time { return now }, "bob")
			r = &Router{Verifier: r.Verifier, Presence: &Presence{Interval: interval}}
			joins := func(id string) int {
				return len(receive(r, greetFrom("alice", id, now.Unix())).Events)
			}
			if joins("1") != 1 || joins("2") != 0 {
				t.Error("joins once")
			}
			for _, c := range []struct {
				age  time.Duration
				want PresenceState
			}{{step, PresenceActive}, {step + time.Second, PresenceInactive}, {2*step - time.Second, PresenceInactive},
				{2 * step, ""}} {
				now = atClock().Add(c.age)
				got := PresenceState("")
				if peers := r.Peers("ws", "c"); len(peers) == 1 {
					got = peers[0].State
				}
				if got != c.want {
					t.Errorf("after %v: %q, want %q", c.age, got, c.want)
				}
			}
			if joins("3") != 2 { // left, joined
				t.Error("joins again")
			}
		}
	})
	catalog := []Capability{{ID: "build", Summary: "Build.", Outcome: "A page."},
		{ID: "review", Summary: "Review.", Outcome: "Notes."}}
	host := func(t *testing.T) *Router {
		r := node(t, nil, "carol")
		card, err := NewCard("bob", "Bob B", catalog)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Host(&Local{WorkspaceID: "ws", Channel: "c", Card: card, Catalog: catalog}); err != nil {
			t.Fatal(err)
		}
		return r
	}
	n := 0
	ask := func(r *Router, more ...any) []Outgoing {
		n++
		return receive(r, with(with(greetText, "id", fmt.Sprint("q", n),
			"kind", "whois", "body", js(`{"type":"request"}`)), more...)).Published
	}
	query := func(q string) js { return js(`{"type":"request","query":"` + q + `"}`) }
	t.Run("AGH-062 whois matching", func(t *testing.T) {
		r := host(t)
		for q, want := range map[string]int{"": 2, " ": 2, "build": 1, " build ": 1, "Build": 0, "Bob B": 1, "bob b": 0,
			"bob": 1, "bo": 0, "agh-network/v0": 2, "capability": 2} {
			if got := ask(r, "body", query(q)); len(got) != want {
				t.Errorf("%q: %d answers, want %d", q, len(got), want)
			}
		}
		if got := ask(r, "body", query("nothing"), "to", "carol"); len(got) != 1 {
			t.Errorf("directed: %d answers", len(got))
		}
	})
	t.Run("AGH-063 the answer", func(t *testing.T) {
		out := ask(host(t), "to", "bob")[0]
		if e := out.Envelope; e.ReplyTo != fmt.Sprint("q", n) || e.To != "alice" ||
			out.Subject != "agh.network.v0.ws.c.peer.2bd806c97f0e00af1a1fc3328fa763a9" {
			t.Errorf("%s", out.Data)
		}
	})
	t.Run("AGH-062 the requester does not answer itself", func(t *testing.T) {
		r := host(t)
		e := &Envelope{WorkspaceID: "ws", Channel: "c", From: "bob"}
		if err := e.SetContent(&Whois{Type: WhoisRequest}); err != nil {
			t.Fatal(err)
		}
		res, err := r.Send(ctx, e)
		if err != nil || len(res.Published) != 2 || res.Published[0].Envelope.From != "bob" ||
			res.Published[1].Envelope.From != "carol" {
			t.Errorf("%+v, %v; want the question of bob and the answer of carol", res.Published, err)
		}
		for to, answers := range map[any]int{nil: 1, "bob": 0} { // its own request, from the network
			out := ask(r, "from", "bob", "to", to)
			if len(out) != answers || answers == 1 && out[0].Envelope.From != "carol" {
				t.Errorf("to %v: %+v", to, out)
			}
		}
	})
	t.Run("AGH-063 the trace of the question is that of the answer", func(t *testing.T) {
		if out := ask(host(t), "to", "bob", "trace_id", "trace_7"); len(out) != 1 ||
			out[0].Envelope.TraceID != "trace_7" {
			t.Errorf("%+v", out)
		}
		if out := ask(host(t), "to", "bob"); len(out) != 1 || out[0].Envelope.TraceID != "" {
			t.Errorf("%+v", out)
		}
	})
	t.Run("AGH-064 catalogue", func(t *testing.T) {
		r := host(t)
		for ext, want := range map[string]string{
			`{}`:                                     "-",
			`{"agh.include":"capability_catalog"}`:   "-",
			`{"agh.include":["capability_catalog"]}`: "build review",
			`{"agh.include":["x","capability_catalog"],"agh.capability_ids":["review","nope","build"]}`: "build review",
			`{"agh.include":["capability_catalog"],"agh.capability_ids":["review"]}`:                    "review",
			`{"agh.include":["capability_catalog"],"agh.capability_ids":["nope"]}`:                      "",
			`{"agh.include":["capability_catalog"],"agh.capability_ids":[]}`:                            "",
			`{"agh.include":["capability_catalog"],"agh.capability_ids":"review"}`:                      "",
			`{"agh.include":["capability_catalog"],"agh.capability_ids":[1]}`:                           "",
		} {
			e := ask(r, "to", "bob", "ext", js(ext))[0].Envelope
			got := "-"
			if e.ExtValue(ExtCatalog) != nil {
				caps, err := CatalogOf(e)
				if err != nil {
					t.Fatal(err)
				}
				var ids []string
				for _, c := range caps {
					ids = append(ids, c.ID)
				}
				got = strings.Join(ids, " ")
			}
			if got != want {
				t.Errorf("%s: %q, want %q", ext, got, want)
			}
			// With a filter the card lists the selected capabilities.
			listed := "build review"
			if strings.Contains(ext, ExtFilter) {
				listed = want
			}
			if c := e.Content().(*Whois).Card; strings.Join(c.Capability, " ") != listed {
				t.Errorf("%s: card lists %v, want %s", ext, c.Capability, listed)
			}
		}
	})
	t.Run("AGH-065 no catalogue", func(t *testing.T) {
		out := ask(host(t), "to", "carol")[0]
		if !bytes.Contains(out.Data, []byte(`"capabilities":[]`)) || bytes.Contains(out.Data, []byte("brief")) {
			t.Errorf("%s", out.Data)
		}
	})
	answer := func(from, replyTo, id string, caps string) string {
		s := with(strings.ReplaceAll(greetText, "alice", from), "id", id,
			"kind", "whois", "to", "bob", "reply_to", replyTo)
		var m map[string]json.RawMessage
		json.Unmarshal([]byte(s), &m)
		return with(s, "body", js(strings.Replace(`{"type":"response",`+strings.TrimSpace(string(m["body"]))[1:],
			`"capabilities":[]`, `"capabilities":`+caps, 1)))
	}
	question := func(t *testing.T, r *Router, to, ext string) string {
		e := &Envelope{WorkspaceID: "ws", Channel: "c", From: "bob", To: to}
		if ext != "" {
			e.Ext = js(ext)
		}
		if err := e.SetContent(&Whois{Type: WhoisRequest}); err != nil {
			t.Fatal(err)
		}
		res, err := r.Send(ctx, e)
		if err != nil {
			t.Fatal(err)
		}
		return res.Envelope.ID
	}
	t.Run("an unsolicited answer is refused", func(t *testing.T) { // digest §12 (4)
		r := host(t)
		receive(r, greetFrom("alice", "g1", clock))
		if res := guarded(r, answer("alice", "q0", "r1", `["x"]`)); !errors.Is(res.Err, ErrUnsolicited) ||
			len(res.Deliver) > 0 {
			t.Errorf("%+v", res)
		}
		id := question(t, r, "alice", "")
		if res := guarded(r, answer("mallory", id, "r2", `["x"]`)); !errors.Is(res.Err, ErrUnsolicited) {
			t.Errorf("an answer of a peer that was not asked: %+v", res)
		}
		if len(r.Peers("ws", "c")) != 3 || len(r.Peers("ws", "c")[2].Card.Capability) != 0 {
			t.Errorf("%+v", r.Peers("ws", "c"))
		}
		if res := guarded(r, answer("alice", id, "r3", `["x"]`)); !delivered(res, "bob") ||
			len(r.Peers("ws", "c")[2].Card.Capability) != 1 {
			t.Errorf("%+v", res)
		}
	})
	t.Run("a filtered answer does not shrink the known card", func(t *testing.T) { // digest §12 (15)
		r := host(t)
		receive(r, strings.Replace(greetFrom("alice", "g1", clock), `"capabilities":[]`, `"capabilities":["x","y"]`, 1))
		id := question(t, r, "alice", `{"agh.include":["capability_catalog"],"agh.capability_ids":["x"]}`)
		if res := receive(r, answer("alice", id, "r1", `["x"]`)); !delivered(res, "bob") {
			t.Errorf("%+v", res)
		}
		if c := r.Peers("ws", "c")[2].Card.Capability; len(c) != 2 {
			t.Errorf("%v", c)
		}
	})
	t.Run("presence is bounded and costs the same for every peer", func(t *testing.T) { // digest §12 (13)
		p := &Presence{Max: 10000, MaxCard: 1000}
		for i := range 10000 {
			if _, err := p.Refresh(fmt.Sprint("u", i%8), "ws", fmt.Sprint("c", i%1000),
				&Card{PeerID: fmt.Sprint("p", i)}, false, atClock()); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := p.Refresh("u9", "ws", "c0", &Card{PeerID: "one-more"}, false, atClock()); !errors.Is(err,
			ErrBusy) {
			t.Error(err)
		}
		if _, err := p.Refresh("u0", "ws", "c0", &Card{PeerID: "p0", DisplayName: strings.Repeat("x", 1001)}, false,
			atClock()); !errors.Is(err, ErrBusy) {
			t.Error(err)
		}
		if got := p.Channel("ws", "c7", atClock()); len(got) != 10 || p.Len() != 10000 {
			t.Errorf("%d of %d", len(got), p.Len())
		}
		if events := p.Expire(atClock().Add(time.Minute)); len(events) != 10000 || p.Len() != 0 || len(p.owned) != 0 ||
			len(p.channels) != 0 {
			t.Errorf("%d left, %d remain", len(events), p.Len())
		}
		for i := range 2501 { // one owner fills its share and no more
			if _, err := p.Refresh("mallory", "ws", fmt.Sprint("c", i), &Card{PeerID: "m"}, false,
				atClock()); (err != nil) != (i == 2500) {
				t.Fatal(i, err)
			}
		}
	})
	t.Run("whois requests are bounded for each requester", func(t *testing.T) { // digest §12 (13)
		var a asks
		e := &Envelope{WorkspaceID: "ws", Channel: "c", From: "mallory"}
		for i := range maxAsksEach + 10 {
			e.ID = fmt.Sprint(i)
			a.note(e, false, "", atClock())
		}
		if len(a.byKey) != maxAsksEach {
			t.Errorf("%d", len(a.byKey))
		}
		e.From = "alice"
		a.note(e, false, "", atClock().Add(askTime))
		if len(a.byKey) != 1 || len(a.order) != 1 || len(a.count) != 1 {
			t.Errorf("%d %d %d", len(a.byKey), len(a.order), len(a.count))
		}
	})
}

// workNode makes a relay with three greeted peers, and its WorkTable.
func workNode(t *testing.T) (*Router, *WorkTable) {
	w := &WorkTable{}
	r := &Router{Works: w, Relay: true, Verifier: Verifier{Now: atClock}}
	for i, p := range []string{"alice", "bob", "carol"} {
		receive(r, greetFrom(p, fmt.Sprint("g", i), clock))
	}
	return r, w
}

func traceText(from, to, state, id string) string {
	return with(workText, "kind", "trace", "from", from, "to", to, "id", id, "body", map[string]string{"state": state})
}

func receiptText(from, to, status, id string) string {
	body := map[string]string{"for_id": "m1", "status": status}
	if status != "accepted" && status != "canceled" {
		body["reason_code"] = "busy"
	}
	return with(workText, "kind", "receipt", "from", from, "to", to, "id", id, "body", body)
}

func TestWorkChecklist(t *testing.T) {
	ctx := context.Background()
	state := func(w *WorkTable) WorkState {
		x, _, _ := w.Work(ctx, "ws", "work_1")
		return x.State
	}
	t.Run("AGH-070 opening", func(t *testing.T) {
		r, w := workNode(t)
		if res := receive(r, workText); res.Outcome != Accepted || state(w) != StateSubmitted ||
			res.Work.Initiator != "alice" || res.Work.Target != "bob" {
			t.Errorf("%+v", res)
		}
		if res := receive(r, with(workText, "id", "x", "work_id", "work_2", "to", nil)); res.Outcome != Failed ||
			!errors.Is(res.Err, ErrWorkTarget) {
			t.Errorf("without target: %+v", res)
		}
		// digest §12 (11)
		if res := receive(r, with(workText, "id", "y", "work_id", "work_3", "to", "alice")); res.Outcome != Failed {
			t.Errorf("for oneself: %+v", res)
		}
	})
	t.Run("AGH-071 AGH-077 the table", func(t *testing.T) {
		for from, events := range lifecycle {
			for ev, to := range events {
				r, w := workNode(t)
				receive(r, workText)
				if from != StateSubmitted {
					receive(r, traceText("bob", "alice", string(from), "t"))
				}
				name, what, _ := strings.Cut(string(ev), " ")
				raw := with(workText, "id", "e")
				switch {
				case name == "trace":
					raw = traceText("bob", "alice", what, "e")
				case name == "receipt" && ev == receiptOther:
					raw = receiptText("bob", "alice", "accepted", "e")
				case name == "receipt":
					raw = receiptText("bob", "alice", what, "e")
				}
				if res := receive(r, raw); res.Outcome != Accepted || state(w) != to {
					t.Errorf("%s, %s: %s, want %s (%v)", from, ev, state(w), to, res.Err)
				}
			}
		}
	})
	t.Run("AGH-072 the first end is the end", func(t *testing.T) {
		r, w := workNode(t)
		r.Self = "hub"
		receive(r, workText)
		receive(r, traceText("bob", "alice", "completed", "t"))
		for _, raw := range []string{traceText("bob", "alice", "failed", "a"),
			receiptText("alice", "bob", "canceled", "b"), with(workText, "id", "c")} {
			res := receive(r, raw)
			if ReasonOf(res.Err) != ReasonWorkClosed || state(w) != StateCompleted || res.Relay {
				t.Errorf("%+v", res)
			}
			if e := res.Envelope; (e.Kind == KindSay) != (len(res.Published) == 1) {
				t.Errorf("%s: %d receipts", e.Kind, len(res.Published))
			} else if e.Kind == KindSay && !bytes.Contains(res.Published[0].Data,
				[]byte(`"status":"rejected","reason_code":"work_closed"`)) {
				t.Errorf("%s", res.Published[0].Data)
			}
		}
	})
	t.Run("AGH-073 container", func(t *testing.T) {
		r, w := workNode(t)
		receive(r, workText)
		for _, m := range []string{"thread_id", "channel"} {
			raw := with(workText, "id", m, m, "thread_other")
			if m == "channel" {
				receive(r, with(greetFrom("bob", "gx", clock), "channel", "thread_other"))
			}
			if res := receive(r, raw); ReasonOf(res.Err) != ReasonContainerMismatch || state(w) != StateSubmitted {
				t.Errorf("%+v", res)
			}
		}
	})
	t.Run("AGH-074 non-participants are ignored", func(t *testing.T) {
		r, w := workNode(t)
		r.Self = "hub"
		receive(r, workText)
		for i, raw := range []string{traceText("carol", "bob", "failed", ""), with(workText, "from", "carol"),
			with(workText, "to", "carol")} {
			if res := receive(r, with(raw, "id", fmt.Sprint("x", i))); res.Outcome != Ignored ||
				len(res.Published) > 0 || res.Relay || state(w) != StateSubmitted {
				t.Errorf("%d: %+v", i, res)
			}
		}
	})
	t.Run("AGH-073 a non-participant in another container gets a receipt", func(t *testing.T) {
		r, w := workNode(t)
		r.Self = "hub"
		receive(r, workText)
		res := receive(r, with(workText, "id", "x", "from", "carol", "thread_id", "thread_other"))
		if ReasonOf(res.Err) != ReasonContainerMismatch || len(res.Published) != 1 || res.Relay ||
			state(w) != StateSubmitted {
			t.Errorf("%+v", res)
		}
	})
	t.Run("AGH-071 either participant reports", func(t *testing.T) {
		for raw, want := range map[string]WorkState{
			traceText("alice", "bob", "working", "a"):    StateWorking,
			traceText("alice", "bob", "completed", "a"):  StateCompleted,
			traceText("bob", "alice", "completed", "a"):  StateCompleted,
			receiptText("alice", "bob", "rejected", "a"): StateFailed,
			traceText("alice", "bob", "canceled", "a"):   StateCanceled,
		} {
			r, w := workNode(t)
			receive(r, workText)
			if res := receive(r, raw); res.Outcome != Accepted || state(w) != want {
				t.Errorf("%s: %+v is %s", raw, res, state(w))
			}
		}
	})
	t.Run("AGH-075 unknown work", func(t *testing.T) {
		r, w := workNode(t)
		for _, raw := range []string{traceText("bob", "alice", "working", "a"),
			receiptText("bob", "alice", "accepted", "b")} {
			if res := receive(r, raw); res.Outcome != Ignored || res.Relay || len(w.works) > 0 {
				t.Errorf("%+v", res)
			}
		}
	})
	t.Run("AGH-076 trace submitted", func(t *testing.T) {
		r, w := workNode(t)
		receive(r, workText)
		if res := receive(r, traceText("bob", "alice", "submitted", "a")); ReasonOf(res.Err) != ReasonInternal ||
			state(w) != StateSubmitted || len(res.Published) > 0 {
			t.Errorf("%+v", res)
		}
	})
	t.Run("AGH-078 another workspace", func(t *testing.T) {
		r, w := workNode(t)
		receive(r, with(greetFrom("bob", "g9", clock), "workspace_id", "ws2"))
		receive(r, workText)
		receive(r, traceText("bob", "alice", "completed", "t"))
		if res := receive(r, with(workText, "workspace_id", "ws2")); res.Outcome != Accepted || len(w.works) != 2 {
			t.Errorf("%+v", res)
		}
	})
	t.Run("closed work stays closed over a restart when Works is durable", func(t *testing.T) { // digest §12 (14)
		r, w := workNode(t)
		receive(r, workText)
		receive(r, traceText("bob", "alice", "completed", "t"))
		again := &Router{Works: w, Relay: true, Verifier: Verifier{Now: atClock}}
		receive(again, greetFrom("bob", "g", clock))
		if res := receive(again, with(workText, "id", "new")); !errors.Is(res.Err, ErrWorkClosed) {
			t.Errorf("%+v", res)
		}
	})
	t.Run("the table of works is bounded, each initiator by itself", func(t *testing.T) { // digest §12 (13)
		w := &WorkTable{Max: 3, PerInitiator: 2}
		open := func(who, id string) error {
			_, err := w.Update(ctx, &Envelope{WorkspaceID: "ws", WorkID: id}, func(Work, bool) (Work, error) {
				return Work{WorkspaceID: "ws", WorkID: id, Initiator: who, State: StateSubmitted}, nil
			})
			return err
		}
		if open("m", "1") != nil || open("m", "2") != nil || !errors.Is(open("m", "3"), ErrBusy) ||
			open("a", "4") != nil || !errors.Is(open("a", "5"), ErrBusy) {
			t.Error("bounds")
		}
		w.Update(ctx, &Envelope{WorkspaceID: "ws", WorkID: "1"}, func(x Work, _ bool) (Work, error) {
			x.State = StateFailed
			return x, nil
		})
		if open("a", "5") != nil || len(w.works) != 3 {
			t.Error("closed work makes no room")
		}
	})
}

func TestReceiptChecklist(t *testing.T) {
	t.Run("AGH-080 AGH-082 receipts", func(t *testing.T) {
		for name, c := range map[string]struct {
			raw  string
			body string
		}{
			"malformed": {with(workText, "body", js(`{}`)),
				`{"for_id":"m1","status":"rejected","reason_code":"malformed"}`},
			// digest §12 (10): and no work is kept
			"stale": {with(workText, "ts", clock-301),
				`{"for_id":"m1","status":"expired","reason_code":"expired"}`},
			"duplicate": {workText, `{"for_id":"m1","status":"duplicate","reason_code":"duplicate"}`},
		} {
			r := node(t, nil, "bob")
			if name == "duplicate" {
				receive(r, c.raw)
			}
			res := receive(r, with(c.raw, "trace_id", "tr"))
			if len(res.Published) != 1 {
				t.Errorf("%s: %+v", name, res)
				continue
			}
			e := res.Published[0].Envelope
			if string(e.Body) != c.body || e.From != "bob" || e.To != "alice" || e.WorkID != "work_1" ||
				e.ReplyTo != "m1" || e.CausationID != "m1" ||
				e.TraceID != "tr" || e.ThreadID != "thread_abc" || e.Surface != SurfaceThread {
				t.Errorf("%s: %s", name, res.Published[0].Data)
			}
			if err := verifyText(string(res.Published[0].Data)); err != nil {
				t.Errorf("%s: the receipt is not valid: %v", name, err)
			}
		}
	})
	t.Run("AGH-081 no receipts", func(t *testing.T) {
		bad := with(workText, "body", js(`{}`))
		for name, raw := range map[string]string{
			"no work":      with(bad, "work_id", nil),
			"broadcast":    with(bad, "to", nil),
			"receipt":      with(bad, "kind", "receipt"),
			"trace":        with(bad, "kind", "trace"),
			"unknown kind": with(bad, "kind", "recipe"),
			"not for us":   with(bad, "to", "dave"),
			"greet":        with(greetText, "to", "bob", "work_id", "work_1"),
			"bad sender":   with(bad, "from", "Alice"),
			"not JSON":     "{",
			"digest": with(workText, "kind", "capability", "body",
				js(`{"capability":{"id":"a","summary":"s","outcome":"o","digest":"sha256:0"}}`)),
			"from the target":  with(bad, "from", "bob"),
			"AGH-082 surface":  with(bad, "surface", nil), // digest §12 (9)
			"AGH-082 work id":  with(bad, "work_id", "a/b"),
			"AGH-082 thread":   with(bad, "thread_id", "a/b"),
			"AGH-082 no space": with(bad, "id", strings.Repeat("x", 1<<20-len(with(bad, "id", "")))),
		} {
			if res := receive(node(t, nil, "bob"), raw); len(res.Published) > 0 || res.Outcome != Refused {
				t.Errorf("%s: %+v", name, res)
			}
		}
	})
}

// Digest §12 (7): a forwarded message is unchanged, padding included.
func TestNothingIsRewritten(t *testing.T) {
	raw := "\n" + with(sayText, "id", " m1 ", "workspace_id", " ws ")
	r := node(t, nil, "bob")
	res := receive(r, raw)
	if res.Outcome != Accepted || string(res.Envelope.Raw()) != raw || res.Envelope.ID != "m1" {
		t.Errorf("%+v", res)
	}
	if res := receive(r, with(sayText, "workspace_id", "ws")); res.Outcome != Duplicate {
		t.Errorf("padding makes another message: %+v", res)
	}
}

func TestAdmitIsAskedOnce(t *testing.T) {
	var calls []*Admission
	r := node(t, nil, "bob")
	r.Admit = func(_ context.Context, a *Admission) (Decision, error) {
		calls = append(calls, a)
		return Pass, nil
	}
	for _, raw := range []string{"{", with(sayText, "to", "nobody"), with(sayText, "ts", 1)} {
		receive(r, raw)
	}
	if len(calls) != 0 {
		t.Errorf("asked about %d messages that are none", len(calls))
	}
	receive(r, workText)
	receive(r, traceText("mallory", "bob", "failed", "x"))
	if len(calls) != 2 || calls[0].Refused != nil || !errors.Is(calls[1].Refused, ErrWorkActor) {
		t.Errorf("%+v", calls)
	}
	if calls[0].Until != time.Unix(clock+301, 0) {
		t.Errorf("until %v", calls[0].Until)
	}
	r.Admit = func(context.Context, *Admission) (Decision, error) { return Take, nil }
	if res := receive(r, with(sayText, "id", "y")); !res.Taken || len(res.Deliver) > 0 {
		t.Errorf("%+v", res)
	}
}

func TestScreen(t *testing.T) {
	for text, want := range map[string]bool{
		`{"text":"the password: hunter2"}`: true, `{"text":"set token=abc123"}`: true,
		`{"text":"count the token usage"}`:         false,
		`{"text":"x","artifacts":[{"token":"t"}]}`: true, `{"text":"x","artifacts":[{"token_hash":"t"}]}`: false,
		`{"text":"agh_claim_abcDEF12"}`: true,
		`{"text":"Authorization: x"}`:   true, `{"text":"x","artifacts":[{"password":""}]}`: false,
		`{"text":"x","artifacts":[{"client-secret":1}]}`: true,
	} {
		e, err := Decode([]byte(with(sayText, "body", js(text))))
		if err != nil {
			t.Fatal(err)
		}
		if looksSecret(e) != want {
			t.Errorf("%s: %v", text, !want)
		}
	}
	e, _ := Decode([]byte(with(sayText, "ext", js(`{"token":"t"}`))))
	if looksSecret(e) {
		t.Error("a member name of ext itself")
	}
}
