package flows

import (
	"crypto/rand"
	"strings"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/browser"
	"github.com/parley-hub/parley/journal"
)

// overdueOrders are so many orders for the shop that were given up while it restarted.
func (c *console) overdueOrders(number int) {
	c.t.Helper()
	j := c.Node.Hub().Journal()
	for range number {
		id, err := parley.NewID(c.Clock.Now(), rand.Reader)
		if err != nil {
			c.t.Fatal(err)
		}
		m := parley.Message{ID: id, Conversation: id, Kind: parley.Request, From: "planner", To: "shop", Skill: "order",
			Parts: []parley.Part{parley.Text("one map of Bern")}, Origin: parley.Origin{Protocol: "go"}}
		for _, e := range []journal.Entry{
			{Scope: "shop", Message: &m, Open: []journal.Opening{{To: "shop", Attempt: 1}}},
			{Steps: []journal.Step{{Message: id, To: "shop", State: parley.Dead, Error: parley.Fail(parley.Unavailable, nil,
				"HTTP 503: upstream restarting").With(parley.ByPeer, parley.PeerBusy, "")}}},
		} {
			if _, err := j.Append(c.t.Context(), e); err != nil {
				c.t.Fatal(err)
			}
		}
	}
	// The answer waits for the index.
	if _, err := c.API.Undelivered(c.t.Context(), admin.UndeliveredFilter{Show: admin.ShowDropped}); err != nil {
		c.t.Fatal(err)
	}
}

// until loads a page until an expression is true: pages without a live stream show what was so when they were made.
func (v *tab) until(path, condition string) {
	v.t.Helper()
	for range 200 {
		v.to(path)
		var ok bool
		if v.do(browser.Eval("!!("+condition+")", &ok)); ok {
			return
		}
	}
	v.t.Fatalf("%s: never %s", path, condition)
}

// submit presses the button of a dialog that orders.
const submit = ".scrim:target footer button:last-child"

// TestFlow10DeadGroup: a group says what helps; its dialog counts. The oldest one is tried, and arrives; then all are
// retried, and the group is under "recovered". The audit list has both retries.
func TestFlow10DeadGroup(t *testing.T) {
	c := begin(t)
	c.overdueOrders(3)
	v := c.entered(browser.Look{}, admin.Operate)
	v.to("/console/undelivered")
	v.says(`[data-group="shop"]`, "503", "What helps")
	v.says(`[data-group="shop"] .advice`, "wait: shop is full, or starts or stops")
	v.shot("dead-group")
	v.do(browser.Press("r"), browser.Has("#retry:target"))
	v.says("#retry", "3 match", "tried once", "parley dead retry --to shop")
	v.shot("dead-retry")
	v.do(browser.Click(`#retry button[name="one"]`), browser.HasText("#done", "1 message is queued again"))
	const shop = `[data-group="shop"]`
	v.until("/console/undelivered", `document.querySelector('`+shop+`[data-tab="dead"][data-number="2"]') &&
		document.querySelector('`+shop+`[data-tab="recovered"][data-number="1"]')`)
	v.shot("dead-one-arrived")
	v.do(browser.Press("r"), browser.Has("#retry:target"))
	v.says("#retry", "2 match")
	v.do(browser.Click(submit), browser.HasText("#done", "2 messages are queued again"))
	v.until("/console/undelivered", `document.querySelector('`+shop+`[data-tab="recovered"][data-number="3"]')`)
	v.says(shop, "Recovered", "Reached again")
	v.says("main", "Nothing is undelivered")
	v.shot("dead-recovered")

	boss := c.entered(browser.Look{}, admin.Administer)
	boss.to("/console/audit?action=dead")
	if rows := boss.texts("#rows tr"); len(rows) != 2 {
		t.Errorf("the audit list has %q", rows)
	} else {
		for _, r := range rows {
			for _, want := range []string{"ops-laptop via console", "dead.retry", "done"} {
				if !strings.Contains(r, want) {
					t.Errorf("the audit list has %q, want %q in it", r, want)
				}
			}
		}
	}
}

// TestFlow11Drop: a drop needs a reason and the number. A viewer's buttons do nothing, and a form of their own is
// refused.
func TestFlow11Drop(t *testing.T) {
	c := begin(t)
	c.overdueOrders(2)
	looker := c.entered(browser.Look{}, admin.Read)
	looker.to("/console/undelivered")
	looker.says(`[data-group="shop"]`, "Retry 2", "Drop")
	looker.is(`[...document.querySelectorAll('[data-group="shop"] .acts button')].every(b => b.disabled &&
		b.title.includes("needs the role operator"))`, "a viewer's buttons are disabled, and say why")
	looker.do(browser.Eval(`(() => { const f = document.createElement("form"); f.method = "post";
		f.action = "/console/undelivered/drop";
		const token = document.querySelector('form[action="/console/leave"] [name="form"]').value;
		for (const [k, v] of Object.entries({form: token,
			to: "shop", code: "unavailable", expect: "2", typed: "2", why: "mine"})) {
			const i = document.createElement("input"); i.name = k; i.value = v; f.append(i); }
		document.body.append(f); f.submit(); return true; })()`, new(bool)), browser.HasText("main h1", "This was not done"))
	looker.says("main", "operate")

	v := c.entered(browser.Look{}, admin.Operate)
	v.to("/console/undelivered")
	v.do(browser.Click(`[data-group="shop"] .acts .danger`), browser.Has("#drop:target"))
	v.says("#drop", "They will not be tried again", "cannot be undone", "parley dead drop --to shop")
	v.do(browser.Click(submit))
	v.is(`document.querySelector("#drop:target input[name=why]:invalid")`, "the browser asks for the reason")
	v.do(browser.Type(`#drop input[name="why"]`, "nobody needs them"), browser.Type(`#drop input[name="typed"]`, "3"),
		browser.Click(submit), browser.HasText("#drop [role=alert]", "the number is 2"))
	v.is(`document.querySelector('#drop input[name="why"]').value === "nobody needs them"`, "what was typed stays")
	v.shot("drop-again")
	v.do(browser.Type(`#drop input[name="typed"]`, "2"), browser.Click(submit),
		browser.HasText("#done", "2 messages are dropped"))
	list, err := c.API.Dead(t.Context(), admin.DeadFilter{To: "shop"})
	if err != nil || len(list) != 0 {
		t.Errorf("left: %+v, %v", list, err)
	}
	audit, err := c.API.Audit(t.Context(), admin.AuditFilter{Action: "dead.drop"})
	if err != nil || len(audit) != 1 || audit[0].Actor != "ops-laptop" || audit[0].Via != "console" ||
		!strings.Contains(audit[0].Detail, "nobody needs them") {
		t.Errorf("the audit list has %+v, %v", audit, err)
	}
}
