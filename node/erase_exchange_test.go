package node

import (
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/journal"
)

// attempted records an attempt to deliver a message that waits in an inbox, with what it sent and got.
func attempted(t *testing.T, n *Node, id parley.ID, to, text string) {
	t.Helper()
	for _, s := range []journal.Step{
		{Message: id, To: to, State: parley.Delivering, Attempt: 1},
		{Message: id, To: to, State: parley.Delivered, Attempt: 1, Exchange: &parley.Exchange{Protocol: "asp",
			Sent: []byte("POST " + text), Answer: []byte(text), Size: 1871, Digest: make([]byte, 32)}}} {
		if _, err := n.journal.Append(t.Context(), journal.Entry{Steps: []journal.Step{s}}); err != nil {
			t.Fatal(err)
		}
	}
	if len(inFiles(t, n.c.Data, text)) == 0 {
		t.Fatal("the exchange is not in the files")
	}
}

// TestForgetExchanges: what attempts sent and got goes with the messages, from every file.
func TestForgetExchanges(t *testing.T) {
	const text = "the attempt said marchpane"
	for what, f := range map[string]func(*parley.Message) admin.Forget{
		"conversation": func(m *parley.Message) admin.Forget { return admin.Forget{Conversation: m.Conversation.String()} },
		"recipient":    func(m *parley.Message) admin.Forget { return admin.Forget{Agent: m.To} },
		"sender":       func(m *parley.Message) admin.Forget { return admin.Forget{Agent: m.From} },
	} {
		t.Run(what, func(t *testing.T) {
			n := erasable(t, Config{})
			r := notice(t, n, "box", "hello")
			attempted(t, n, r.ID, "box", text)
			if _, err := n.Admin().Forget(t.Context(), everything, f(recorded(t, n, r.ID).Message)); err != nil {
				t.Fatal(err)
			}
			if files := inFiles(t, n.c.Data, text); files != nil {
				t.Errorf("%v have what was forgotten", files)
			}
		})
	}
}

// TestRetainExchanges: a rule for the sender holds for the steps of its messages too, which name the recipient alone.
func TestRetainExchanges(t *testing.T) {
	const text = "the attempt said marchpane"
	clock := newFakeClock()
	n := erasable(t, Config{Now: clock.now, Retention: Retention{Every: Duration{1000 * time.Hour},
		Agents: []KeepAgent{{Agent: "cellar", Keep: Duration{2 * time.Hour}}}}})
	n.eraser.cancel() // the test alone makes passes
	n.eraser.work.Wait()
	hello := strings.Repeat("hello", 20)
	r, err := n.Admin().Send(t.Context(), everything, admin.Send{From: "cellar", To: "box", Kind: parley.Notice,
		Text: &hello})
	if err != nil {
		t.Fatal(err)
	}
	attempted(t, n, r.ID, "box", text)
	clock.add(3 * time.Hour)
	if err := n.eraser.retain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if files := inFiles(t, n.c.Data, text); files != nil {
		t.Errorf("%v have what was to be erased", files)
	}
}
