package flows

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/browser"
	"github.com/parley-hub/parley/journal/index"
)

// drawn is what a row of the diagram says of itself, and what of it is drawn.
type drawn struct {
	ID, State, Proof                      string
	Beads, Attempts, Failed, Lost, Untold int
	Solid, Rings, Crosses, Diamonds       int
}

// readDrawn reads the rows of messages. Each ring is two circles, one above the other.
const readDrawn = `[...document.querySelectorAll('svg.seq a[data-row="message"]')].map(a => {
	const n = s => a.querySelectorAll(s).length, d = a.dataset;
	return {ID: d.id, State: d.state, Proof: d.proof, Beads: +d.beads, Attempts: +d.attempts, Failed: +d.failed,
		Lost: +d.lost, Untold: +d.untold, Solid: n("circle.bead:not(.off)"), Rings: n("circle.num1") / 2,
		Crosses: n('use[href="#i-x"]'), Diamonds: n('use[href="#i-loss"]')};
})`

// TestFlow06Conversation: the diagram has the lanes, beads, attempts and losses that the API has: of a conversation
// over six protocols in which messages wait and fail, and of a trace over all of them.
func TestFlow06Conversation(t *testing.T) {
	c := begin(t)
	c.trip()
	c.undeliverable()
	v := c.entered(browser.Look{Width: 1440, Height: 1400}, admin.Operate)
	id := c.mixed()
	one, err := c.API.Conversation(t.Context(), id, "", 500)
	if err != nil {
		t.Fatal(err)
	}
	v.to("/console/conversations/" + id + "?events=1&refusals=0")
	if p := v.draws(one.History); len(p) < 6 {
		t.Errorf("the conversation goes over %q only", p)
	}
	v.shot("conversation-mixed")

	id = c.planned()
	trace, err := c.API.Trace(t.Context(), id, "", 500)
	if err != nil {
		t.Fatal(err)
	}
	v.to("/console/conversations/" + id + "?extent=trace&events=1&refusals=0")
	v.draws(trace.History)
	v.shot("conversation-trace-whole")

	if _, err = c.Ask(t.Context(), "assistant", "inn", "Two beds"); err != nil { // something of its answer is lost
		t.Fatal(err)
	}
	page, err := c.API.Messages(t.Context(), index.Filter{From: "assistant", To: "inn", Limit: 1})
	if err != nil || len(page.Messages) != 1 {
		t.Fatal(page, err)
	}
	id = page.Messages[0].Conversation.String()
	if one, err = c.API.Conversation(t.Context(), id, "", 500); err != nil {
		t.Fatal(err)
	}
	v.to("/console/conversations/" + id + "?events=1&refusals=0")
	v.draws(one.History)
	if lost := v.texts("svg.seq .f-loss"); len(lost) == 0 {
		t.Error("nothing of the answer is lost")
	}
}

// draws compares the diagram with a history of the API.
func (v *tab) draws(history []admin.HistoryEntry) (protocols []string) {
	v.t.Helper()
	v.do(browser.Has("svg.seq"))
	var lanes []string
	var rows []drawn
	v.do(browser.Attrs("svg.seq g[data-agents]", "data-agents", &lanes), browser.Eval(readDrawn, &rows))
	agents, over := map[string]bool{}, map[string]bool{}
	if len(rows) != len(history) {
		v.t.Fatalf("the diagram has %d messages, the API %d", len(rows), len(history))
	}
	replies := map[parley.ID]int{} // losses of answers, which are noted at the requests
	for i := range history {
		m := &history[i]
		for _, d := range m.Deliveries {
			for _, l := range d.Losses {
				if strings.HasPrefix(l, "Reply.") {
					replies[d.Reply]++
				}
			}
		}
		over[m.Protocol] = true
		for _, name := range []string{m.From, m.To} {
			agents[name] = name != ""
		}
		for _, d := range m.Deliveries {
			agents[d.To], over[d.Protocol] = true, true
		}
		v.compare(&rows[i], m, replies[m.ID])
	}
	delete(agents, "")
	got := strings.Fields(strings.Join(lanes, " "))
	slices.Sort(got)
	if want := slices.Sorted(maps.Keys(agents)); !slices.Equal(got, want) {
		v.t.Errorf("the lanes are of %q, the API has %q", got, want)
	}
	return slices.Sorted(maps.Keys(over))
}

// compare compares a row with its message. lost is what was lost of it, as its request says.
func (v *tab) compare(got *drawn, m *admin.HistoryEntry, lost int) {
	v.t.Helper()
	want := drawn{ID: m.ID.String(), Proof: m.Assurance.String(), State: got.State, Lost: lost,
		Beads: 4} // up to "recorded"
	if len(m.Deliveries) == 0 && m.Kind.Terminal() {
		want.Beads++ // the caller took it: it is settled
	}
	for _, d := range m.Deliveries {
		beads := 4
		for _, a := range m.Attempts[d.To] {
			want.Attempts++
			if a.Error != nil && a.State != parley.Answered {
				want.Failed++
			}
			switch {
			case a.Written > 0:
				beads = 6 // routed and translated
			case a.Routed > 0:
				beads = max(beads, 5)
			}
		}
		if d.State == parley.Delivered || d.State == parley.Answered {
			beads = 7
		}
		if d.State.Settled(m.Kind) {
			beads++
		}
		want.Beads = max(want.Beads, beads)
		for _, l := range d.Losses {
			if m.Kind != parley.Request || !strings.HasPrefix(l, "Event.") && !strings.HasPrefix(l, "Reply.") {
				want.Lost++
			}
		}
	}
	for _, l := range m.Losses { // of what has no delivery of its own
		if field, _, _ := strings.Cut(l, ": "); field == "Event.State" || field == "Event.Kind" {
			want.Untold = 1
		} else {
			want.Lost++
		}
	}
	// What is drawn is what the attributes say. The steps after the hub are those of each attempt, if there are several.
	want.Solid, want.Crosses, want.Rings = want.Beads, want.Failed, 0
	if want.Attempts > 1 || want.Failed > 0 || got.State == "waiting" {
		want.Solid, want.Rings = got.Solid, want.Attempts
	}
	if got.State == "waiting" {
		want.Rings++ // of the attempt to come
	}
	want.Diamonds = min(want.Lost+want.Untold, 1)
	if *got != want {
		v.t.Errorf("%s %s to %s: the diagram has %+v, the API %+v", m.Kind, m.From, m.To, *got, want)
	}
}

// mixed is a conversation over six protocols: something is lost, something waits, something fails twice.
func (c *console) mixed() (id string) {
	c.t.Helper()
	ctx, plan, note, twice := c.t.Context(), "A day in Bern", "with two children", 2
	_, err := c.API.SetDelivery(ctx, ledger, admin.DeliveryChange{Tries: &twice})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, to := range []string{"museum", "guide", "robot", "mason", "baker", "inn"} {
		r, err := c.API.Ask(ctx, admin.Send{From: "planner", To: to, Conversation: id, Timeout: "30s",
			Parts: []admin.Part{{Text: &plan}, {Text: &note}}})
		if err != nil {
			c.t.Fatal(err)
		}
		id = r.Conversation.String()
	}
	c.giveUp(admin.Send{From: "planner", To: ledger, Conversation: id, Text: &plan, Timeout: "1h"})
	if _, err = c.API.PauseFor(ctx, "shop", "closed"); err == nil {
		_, err = c.API.Send(ctx, admin.Send{From: "planner", To: "shop", Conversation: id, Text: &plan})
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return id
}
