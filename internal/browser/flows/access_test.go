package flows

import (
	"errors"
	"net/url"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/browser"
	"github.com/parley-hub/parley/journal/index"
)

// looks are those in which every page has to be usable. axe-core judges the first four: the others have the same
// elements and colours. A page in the dark has the same elements, too: there it judges the colours.
var looks = []struct {
	name string
	browser.Look
	judged bool
	rules  []string
}{
	{"light", browser.Look{}, true, nil},
	{"dark", browser.Look{Dark: true}, true, []string{"color-contrast"}},
	{"light-360", browser.Look{Width: 360, Height: 800}, true, nil},
	{"dark-360", browser.Look{Width: 360, Height: 800, Dark: true}, true, []string{"color-contrast"}},
	{"zoom-200", browser.Look{Zoom: 2}, false, nil},
	{"forced", browser.Look{ForcedColors: true}, false, nil},
}

// A page of the console, or a state of one.
type page struct {
	name string
	tab  *tab
	path string
	has  string // an element that only this page has
	then string // JavaScript that brings the state about; ""
}

// TestFlow15Accessibility: no page, no dialog and no state breaks WCAG 2.2 AA in either theme, wide or narrow, as far as
// axe-core sees it; none scrolls sideways, also with text of 200 % and forced colours.
func TestFlow15Accessibility(t *testing.T) {
	c := begin(t)
	outside := c.tab(browser.Look{})
	v, boss := c.entered(browser.Look{}, admin.Operate), c.entered(browser.Look{}, admin.Administer)
	reader, observer := c.entered(browser.Look{}, admin.Read), c.entered(browser.Look{}, admin.Observe)
	c.usable(t, []page{
		{"new-messages", v, "/console/", "[data-empty]", ""},
		{"new-conversations", v, "/console/conversations", "[data-empty]", ""},
		{"new-undelivered", v, "/console/undelivered", "main .empty", ""},
	})
	s := c.states()
	c.usable(t, []page{
		{"enter", outside, s.link, `input[name="once"]`, ""},
		{"no-way-in", outside, "/console/", "main pre", ""},
		{"no-page", v, "/console/nowhere", "main .badbox", ""},
		{"no-filter", v, "/console/?kind=nothing", "main .badbox", ""},
		{"messages", v, "/console/", "#rows tr", ""},
		{"messages-menu", v, "/console/?agent=robot", `[data-menu="agent"][open]`, open(`[data-menu="agent"]`)},
		{"messages-silent", v, "/console/?agent=robot", `#silent:not([hidden])`,
			`setInterval(() => document.dispatchEvent(new CustomEvent("htmx:sseError")), 100)`}, // as if the hub never answered
		{"messages-loading", v, "/console/?agent=robot", `#loading.htmx-request`,
			`document.querySelector("#loading").classList.add("htmx-request")`},
		{"messages-refused", v, "/console/?show=refused&m=" + s.ref, "[data-explain]", ""},
		{"messages-empty", v, "/console/?text=nobody+said+this&kind=request", "[data-empty]", ""},
		{"messages-viewer", reader, "/console/?agent=robot", "#rows tr", ""},
		{"messages-observer", observer, "/console/?agent=robot", "[data-hidden]", ""},
		{"conversations", v, "/console/conversations", "#rows tr", ""},
		{"conversations-empty", v, "/console/conversations?agent=newcomer", "[data-empty]", ""},
		{"conversation", v, s.conversation, ".seq", ""},
		{"conversation-trace", v, s.conversation + "?extent=trace", ".seq", ""},
		{"conversation-table", v, s.conversation + "?view=table", ".log", ""},
		{"conversation-proof", v, s.conversation + "?view=proof", ".proofs", ""},
		{"conversation-content", v, s.conversation + "?view=content", "main pre", ""},
		{"conversation-observer", observer, s.conversation + "?view=content", ".card", ""},
		{"conversation-erased", v, s.erased, ".seq", ""},
		{"conversation-erased-content", v, s.erased + "?view=content", ".card", ""},
		{"agents", v, "/console/agents", "#rows tr", ""},
		{"agents-empty", v, "/console/agents?q=nobody", "[data-empty]", ""},
		{"agent", boss, "/console/agents/museum", `[data-agent="museum"]`, ""},
		{"agent-paused", v, "/console/agents/inn", `button#pausing`, ""},
		{"agent-viewer", reader, "/console/agents/ledger", "aside button[disabled]", ""},
		{"connect", boss, "/console/agents/connect", "main h1", ""},
		{"connect-card", boss, "/console/agents/connect?protocol=asp", "#add textarea", ""},
		{"connect-one", boss, "/console/agents/connect/newcomer", "[data-checklist]", ""},
		{"connect-viewer", reader, "/console/agents/connect", "main h1", ""},
		{"undelivered", v, s.dead, "tr.open [data-attempt]", ""},
		{"undelivered-list", v, "/console/undelivered?view=list", "#rows tr", ""},
		{"undelivered-waiting", v, "/console/undelivered?show=waiting", "[data-group]", ""},
		{"undelivered-dropped", v, "/console/undelivered?show=dropped", "[data-group]", ""},
		{"undelivered-empty", v, "/console/undelivered?text=nothing", "main .empty", ""},
		{"undelivered-viewer", reader, "/console/undelivered", ".group button[disabled]", ""},
		{"workbench", v, "/console/workbench", "main textarea", ""},
		{"workbench-explained", v, "/console/workbench?inspect=" + s.ref, ".verdict", ""},
		{"workbench-to", v, "/console/workbench?to=museum", "main textarea", ""},
		{"workbench-viewer", reader, "/console/workbench?to=museum", "main button[disabled]", ""},
		{"audit", boss, "/console/audit", "main h1", ""},
		// The dialogs, one a line.
		{"dialog-keys", v, "/console/conversations?agent=robot#keys", "#keys:target", ""},
		{"dialog-evidence", v, s.conversation + "#evidence", "#evidence:target", ""},
		{"dialog-retry", v, "/console/undelivered?retry=1&" + s.cause, "#retry:target", ""},
		{"dialog-drop", v, "/console/undelivered?drop=1&" + s.cause, "#drop:target", ""},
		{"dialog-causes", v, "/console/undelivered?retry=1&from=planner", "#retry:target", ""},
		{"dialog-pause", v, "/console/agents/museum#pause", "#pause:target", ""},
		{"dialog-expose", boss, "/console/agents/ledger#expose", "#expose:target", ""},
		{"dialog-exposed", boss, "/console/agents/ledger?ask=expose&p=asp&p=a2a#ask", "#ask:target", ""},
		{"dialog-link", boss, "/console/agents/museum#link", "#link:target", ""},
		{"dialog-enrol", boss, "/console/agents/museum#enroll", "#enroll:target", ""},
		{"dialog-rotate", boss, "/console/agents/museum?ask=rotate&in=asp#ask", "#ask:target", ""},
		{"dialog-forget", boss, s.conversation + "?ask=forget#forget", "#forget:target", ""},
		{"dialog-remove", boss, "/console/agents/ledger?ask=remove#ask", "#ask:target", ""},
	})
}

func open(details string) string { return "document.querySelector(`" + details + "`).open = true" }

// states are where to find what a hub with a history has.
type states struct{ link, ref, conversation, erased, dead, cause string }

// states has everything happen that a page shows.
func (c *console) states() (s states) {
	c.t.Helper()
	s.link = c.link(admin.Operate)[len(c.Origin()):]
	s.ref = c.trip()
	c.undeliverable()
	first := c.lose("planner", ledger, "the first")
	c.lose("weather", ledger, "the second")
	dropped := c.lose("planner", "archive", "the third")
	c.lose("planner", "archive", "the fourth")
	c.keep("planner", "inn", "a room, please")
	s.conversation = "/console/conversations/" + c.planned()
	s.dead = "/console/undelivered?m=" + first.String()
	s.cause = url.Values{"to": {ledger}, "code": {string(parley.Unavailable)},
		"reason": {string(parley.ConnectionRefused)}}.Encode()
	_, err := c.API.Drop(c.t.Context(), dropped.String(), archive, "nobody needs it")
	if err == nil {
		_, err = c.API.Connect(c.t.Context(), admin.NewAgent{Name: "newcomer", Identities: []admin.NewIdentity{{
			Protocol: "samvad", ID: "agent://newcomer.example", URL: "http://127.0.0.1:1"}}})
	}
	if err != nil {
		c.t.Fatal(err)
	}
	old, err := c.API.Messages(c.t.Context(), index.Filter{From: "traveller", To: "robot", Limit: 1})
	if err != nil || len(old.Messages) == 0 {
		c.t.Fatal(err)
	}
	id := old.Messages[0].Conversation.String()
	if _, err = c.API.Forget(c.t.Context(), admin.Forget{Conversation: id, Reason: "asked to"}); err != nil {
		c.t.Fatal(err)
	}
	s.erased = "/console/conversations/" + id
	return s
}

// usable looks at pages in each look. Each width loads them anew.
func (c *console) usable(t *testing.T, list []page) {
	for _, p := range list {
		t.Run(p.name, func(t *testing.T) {
			v := &tab{p.tab.Page, &console{c.Stage, t}}
			width := -1
			for _, l := range looks {
				if err := v.Show(l.Look); err != nil {
					t.Fatal(err)
				}
				if l.Width != width {
					width = l.Width
					v.do(browser.Go("about:blank"), browser.Go(v.Origin()+p.path))
					if p.then != "" {
						v.do(browser.Wait("document.readyState === 'complete'"), browser.Eval(p.then, nil))
					}
					v.do(browser.Has(p.has), browser.Wait("document.readyState === 'complete'"))
				}
				v.shot(p.name + "-" + l.name)
				v.is("document.documentElement.scrollWidth <= innerWidth", l.name+": the page does not scroll sideways")
				v.is(reachable, l.name+": the whole dialog can be reached")
				if l.judged {
					v.judge(l.name, l.rules...)
				}
			}
		})
	}
}

// reachable is true if no dialog is open, or what of it is not on the screen can be scrolled to.
const reachable = `[...document.querySelectorAll(".scrim:target .dialog")].every(d => {
	const r = d.getBoundingClientRect(), scrolls = n => /auto|scroll/.test(getComputedStyle(n).overflowY);
	return r.left >= 0 && r.right <= innerWidth && d.scrollWidth <= d.clientWidth + 1 &&
		(r.top >= 0 && r.bottom <= innerHeight || scrolls(d) || scrolls(d.closest(".scrim")));
})`

// judge has axe-core look at the page.
func (v *tab) judge(look string, rules ...string) {
	v.t.Helper()
	found, err := v.Axe(rules...)
	if errors.Is(err, browser.ErrNoAxe) {
		v.t.Skip(err)
	}
	if err != nil {
		v.t.Fatal(err)
	}
	for _, violation := range found {
		v.t.Errorf("%s: %s", look, violation)
	}
}

// TestFlow15WithoutScripts: entering, reading, filtering, retrying, pausing and leaving are links and forms.
func TestFlow15WithoutScripts(t *testing.T) {
	c := begin(t)
	c.trip()
	c.undeliverable()
	c.lose("planner", ledger, "the first")
	v := c.entered(browser.Look{NoScript: true}, admin.Operate)
	v.says("main", "forecast", "answered", "signed")
	v.shot("messages-without-scripts")

	v.do(browser.Type("#q", "angels"), browser.Press("Enter"), browser.At("/console/?text=angels"))
	v.says("#rows", "Paul Klee, angels")
	v.do(browser.Click(`[data-menu="agent"] summary`), browser.Type(`[data-menu="agent"] input[name="agent"]`, "museum"),
		browser.ClickTo(`[data-menu="agent"] button`, "/console/?text=angels&agent=museum"))
	v.says(".chip", "agent: museum")
	v.do(browser.Click("#rows .ft"), browser.Has(".tabs"))
	v.says("main", "Sequence", "museum")

	v.to("/console/undelivered")
	v.do(browser.Click(`a[href^="?retry"]`), browser.Has("#retry:target"))
	v.shot("retry-without-scripts")
	v.do(browser.Type(`#retry [name="why"]`, "it is back"), browser.Click("#retry .btn.go"),
		browser.HasText("#done", "1 message is queued again"))
	audit, err := c.API.Audit(t.Context(), admin.AuditFilter{Action: "dead.retry"})
	if err != nil || len(audit) == 0 {
		t.Errorf("the audit list does not have the retry: %v, %v", audit, err)
	}
	v.to("/console/agents/museum")
	v.do(browser.Click("a#pausing"), browser.Has("#pause:target"), browser.Type(`#pause [name="reason"]`, "closed"),
		browser.Click("#pause .btn.go"), browser.HasText("[data-trouble]", "closed"))
	v.do(browser.Click("button#pausing"), browser.Has("a#pausing"))

	v.do(browser.Click(`form[action="/console/leave"] button`), browser.HasText("main h1", "No way in"))
}
