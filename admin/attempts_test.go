package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// attempt records an attempt of a delivery that waits, and its end.
func (b *bench) attempt(m parley.ID, to string, n int, end journal.Step) {
	b.t.Helper()
	end.Message, end.To, end.Attempt = m, to, n
	for _, s := range []journal.Step{{Message: m, To: to, State: parley.Delivering, Attempt: n}, end} {
		if _, err := b.hub.Journal().Append(context.Background(), journal.Entry{Steps: []journal.Step{s}}); err != nil {
			b.t.Fatal(err)
		}
	}
}

func busy(at time.Time) *parley.Exchange {
	return &parley.Exchange{Protocol: "asp", Address: "192.0.2.7:443", Status: "503 Service Unavailable", Started: at,
		Routed: time.Millisecond, Written: 2 * time.Millisecond, Took: 212 * time.Millisecond, Size: 1871,
		Digest: make([]byte, 32), Sent: []byte("POST /"), Answer: []byte("too \xff busy")}
}

// TestAttempts: a message, its conversation and its dead letter have the attempts, as the journal has them.
func TestAttempts(t *testing.T) {
	b := open(t, nil)
	ctx := t.Context()
	if _, err := b.client.AddAgent(ctx, NewAgent{Name: "box", Inbox: true}); err != nil {
		t.Fatal(err)
	}
	text := "hello"
	r, err := b.client.Send(ctx, Send{From: "bot", To: "box", Kind: parley.Notice, Text: &text})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Date(2026, 11, 27, 14, 31, 25, 902e6, time.UTC)
	next := time.Now().Add(time.Hour).UTC().Round(time.Millisecond)
	failure := parley.Fail(parley.Unavailable, nil, "it is busy")
	b.attempt(r.ID, "box", 1, journal.Step{State: parley.Waiting, Next: next, Postponed: true, Error: failure,
		Exchange: busy(began)})
	b.attempt(r.ID, "box", 2, journal.Step{State: parley.Dead, Error: failure})
	want := `[{"number":1,"state":"waiting","begun":"2026-11-27T14:31:25.902Z","ended":"2026-11-27T14:31:26.114Z",` +
		`"protocol":"asp","address":"192.0.2.7:443","status":"503 Service Unavailable","routed":"1ms","written":"2ms",` +
		`"took":"212ms","size":1871,"digest":"sha-256=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:","sent":"UE9TVCAv",` +
		`"answer":"too � busy","error":{"code":"unavailable","text":"it is busy","retryable":true},"postponed":true,` +
		`"next":"` + next.Format(time.RFC3339Nano) + `"}]`
	check := func(what string, list []Attempt) {
		t.Helper()
		if len(list) != 2 {
			t.Fatalf("%s: %+v", what, list)
		}
		if got, err := json.Marshal(list[:1]); err != nil || string(got) != want {
			t.Errorf("%s:\n%s\nwant\n%s (%v)", what, got, want, err)
		}
		if x := list[1]; x.Number != 2 || x.State != parley.Dead || x.Protocol != "" || x.Took != 0 || x.Begun.IsZero() {
			t.Errorf("%s: %+v", what, x)
		}
	}
	m, err := b.client.Message(ctx, r.ID.String(), false)
	if err != nil {
		t.Fatal(err)
	}
	check("message", m.Attempts["box"])
	if x := m.Times; x.Recorded.IsZero() || x.Received.IsZero() || x.Admitted.Before(x.Received) ||
		x.Recorded.Before(x.Admitted.Add(-time.Second)) {
		t.Errorf("times %+v", x)
	}
	c, err := b.client.Conversation(ctx, r.Conversation.String(), "", 10)
	if err != nil || len(c.History) != 1 {
		t.Fatal(c, err)
	}
	check("conversation", c.History[0].Attempts["box"])
	if c.History[0].Times != m.Times {
		t.Errorf("times %+v and %+v", c.History[0].Times, m.Times)
	}
	d, err := b.client.DeadLetter(ctx, r.ID.String(), "")
	if err != nil {
		t.Fatal(err)
	}
	check("dead letter", d.History)
	seen, err := b.admin.Message(ctx, Actor{Name: "watch", Role: Observe}, r.ID.String(), false)
	if err != nil {
		t.Fatal(err)
	}
	if x := seen.Attempts["box"][0]; x.Sent != nil || x.Answer != "" || x.Error.Text != "" || x.Size != 1871 ||
		x.Digest == "" || x.Status == "" {
		t.Errorf("an observer sees %+v", x)
	}
}

// TestManyAttempts: the first ten and the newest ninety are shown, and the rest is counted.
func TestManyAttempts(t *testing.T) {
	b := open(t, nil)
	ctx := t.Context()
	if _, err := b.client.AddAgent(ctx, NewAgent{Name: "box", Inbox: true}); err != nil {
		t.Fatal(err)
	}
	text := "hello"
	r, err := b.client.Send(ctx, Send{From: "bot", To: "box", Kind: parley.Notice, Text: &text})
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= 103; n++ {
		x := busy(time.Unix(int64(n), 0))
		x.Status = fmt.Sprint(n)
		b.attempt(r.ID, "box", n, journal.Step{State: parley.Waiting, Next: time.Now().Add(time.Hour), Postponed: true,
			Exchange: x})
	}
	m, err := b.client.Message(ctx, r.ID.String(), false)
	if err != nil {
		t.Fatal(err)
	}
	list := m.Attempts["box"]
	if len(list) != 100 || m.Omitted["box"] != 3 || list[9].Number != 10 || list[10].Number != 14 ||
		list[99].Number != 103 ||
		slices.ContainsFunc(list, func(x Attempt) bool { return x.Status != fmt.Sprint(x.Number) }) {
		t.Errorf("%d attempts, %v left out: %+v", len(list), m.Omitted, list)
	}
}
