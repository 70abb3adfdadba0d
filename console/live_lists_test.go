package console_test

import (
	"context"
	"strings"
	"testing"

	"github.com/parley-hub/parley/admin"
)

// without reports each text that a push must not have.
func without(t *testing.T, data string, bad ...string) {
	t.Helper()
	for _, s := range bad {
		if strings.Contains(data, s) {
			t.Errorf("%s is pushed", s)
		}
	}
}

// TestLiveAgents: rows and the chosen agent's parts change, and nothing else is pushed.
func TestLiveAgents(t *testing.T) {
	b := withAgents(t)
	w := b.entered(b.token("ops", admin.Read))
	e := w.live(w.page("/console/agents/sink"))
	_, data, _ := e.next()
	for _, part := range []string{`id="show"`, `id="about"`, `id="agent-backlog"`, `id="agent-bindings"`} {
		has(t, data, part)
	}
	without(t, data, "data-row") // the page has the rows
	b.tell(admin.Send{To: "sink", Text: text("one more")})
	data = e.until(`data-row="sink"`)
	if got := row(t, data, "sink"); !strings.Contains(got, "1 · 0") {
		t.Errorf("the row of an agent with a waiting message: %s", got)
	}
	without(t, data, `data-row="weather"`)
	has(t, data, `id="agent-backlog"`, "1 waiting")
	if _, err := b.api.PauseFor(context.Background(), "weather", "month end"); err != nil {
		t.Fatal(err)
	}
	has(t, row(t, e.until(`data-row="weather"`), "weather"), "paused", "month end")
}

// TestLiveAgentThatMoves: an agent that is on another page of the list by now still changes on this one.
func TestLiveAgentThatMoves(t *testing.T) {
	b := withAgents(t)
	ctx := context.Background()
	if _, err := b.api.PauseFor(ctx, "weather", "month end"); err != nil {
		t.Fatal(err)
	}
	w := b.entered(b.token("ops", admin.Read))
	e := w.live(w.page("/console/agents?state=paused"))
	e.until(`id="show"`)
	if _, err := b.api.Pause(ctx, "weather", false); err != nil {
		t.Fatal(err)
	}
	has(t, row(t, e.until(`data-row="weather"`), "weather"), "ready")
}

// TestLiveUndelivered: numbers and times of a group change in place; a new group is news.
func TestLiveUndelivered(t *testing.T) {
	b := ledger(t, 2)
	w := b.entered(b.token("ops", admin.Operate))
	page := w.page("/console/undelivered")
	group, _, _ := strings.Cut(page[strings.Index(page, ` id="g-`)+5:], `"`)
	e := w.live(page)
	_, data, _ := e.next()
	without(t, data, group)
	id := b.bury("bob", "ledger", "invoice 3", untrusted)
	data = e.until(group + "-n")
	has(t, data, `id="`+group+`-n">3<`, `id="`+group+`-when"`, `data-row="`+id.String(), `id="show"`, "3 dead letters")
	without(t, data, "-new")
	b.bury("bob", "bank", "invoice 4", unknown)
	data = e.until("-new")
	without(t, data, group+"-n")
	has(t, data, "2 causes")
}

// TestLiveConversation: the picture and the chosen message change with each attempt; a page that has them gets nothing.
func TestLiveConversation(t *testing.T) {
	b := ledger(t, 0)
	if _, err := b.api.Pause(context.Background(), "ledger", true); err != nil {
		t.Fatal(err)
	}
	w := b.entered(b.token("ops", admin.Read))
	r := b.tell(admin.Send{To: "ledger", Text: text("invoice")})
	b.indexed()
	e := w.live(w.page("/console/conversations/" + r.Conversation.String() + "?m=" + r.ID.String()))
	_, data, _ := e.next()
	without(t, data, `id="picture"`)
	if _, err := b.api.Pause(context.Background(), "ledger", false); err != nil {
		t.Fatal(err)
	}
	data = e.until(`data-attempts="1"`)
	has(t, data, `id="picture"`, `id="log"`, `id="side"`)
}
