package flows

import (
	"errors"
	"fmt"
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
	by   admin.Role // of the session; "": none
	path string
	has  string // an element that only this page has
	then string // JavaScript that brings the state about; ""
}

// TestFlow15Accessibility: no page, no dialog and no state breaks WCAG 2.2 AA in either theme, wide or narrow, as far
// as axe-core sees it; none scrolls sideways, also with text of 200 % and forced colours.
func TestFlow15Accessibility(t *testing.T) {
	c := begin(t)
	c.usable(t, "a new hub", []page{
		{"new-messages", admin.Operate, "/console/", "[data-empty]", ""},
		{"new-conversations", admin.Operate, "/console/conversations", "[data-empty]", ""},
		{"new-undelivered", admin.Operate, "/console/undelivered", "main .empty", ""},
	})
	s := c.states()
	c.usable(t, "a hub with a history", []page{
		{"enter", "", s.link, `input[name="once"]`, ""},
		{"no-way-in", "", "/console/", "main pre", ""},
		{"no-page", admin.Operate, "/console/nowhere", "main .badbox", ""},
		{"no-filter", admin.Operate, "/console/?kind=nothing", "main .badbox", ""},
		{"messages", admin.Operate, "/console/", "#rows tr", ""},
		{"messages-menu", admin.Operate, "/console/?agent=robot", `[data-menu="agent"][open]`, open(`[data-menu="agent"]`)},
		{"messages-silent", admin.Operate, "/console/?agent=robot", `#silent:not([hidden])`,
			`setInterval(() => document.dispatchEvent(new CustomEvent("htmx:sseError")), 100)`}, // as if the hub never answered
		{"messages-loading", admin.Operate, "/console/?agent=robot", `#loading.htmx-request`,
			`document.querySelector("#loading").classList.add("htmx-request")`},
		{"messages-refused", admin.Operate, "/console/?show=refused&m=" + s.ref, "[data-explain]", ""},
		{"messages-empty", admin.Operate, "/console/?text=nobody+said+this&kind=request", "[data-empty]", ""},
		{"messages-viewer", admin.Read, "/console/?agent=robot", "#rows tr", ""},
		{"messages-observer", admin.Observe, "/console/?agent=robot", "[data-hidden]", ""},
		{"conversations", admin.Operate, "/console/conversations", "#rows tr", ""},
		{"conversations-empty", admin.Operate, "/console/conversations?agent=newcomer", "[data-empty]", ""},
		{"conversation", admin.Operate, s.conversation, ".seq", ""},
		{"conversation-trace", admin.Operate, s.conversation + "?extent=trace", ".seq", ""},
		{"conversation-table", admin.Operate, s.conversation + "?view=table", ".log", ""},
		{"conversation-proof", admin.Operate, s.conversation + "?view=proof", ".proofs", ""},
		{"conversation-content", admin.Operate, s.conversation + "?view=content", "main pre", ""},
		{"conversation-observer", admin.Observe, s.conversation + "?view=content", ".card", ""},
		{"conversation-erased", admin.Operate, s.erased, ".seq", ""},
		{"conversation-erased-content", admin.Operate, s.erased + "?view=content", ".card", ""},
		{"agents", admin.Operate, "/console/agents", "#rows tr", ""},
		{"agents-empty", admin.Operate, "/console/agents?q=nobody", "[data-empty]", ""},
		{"agent", admin.Administer, "/console/agents/museum", `[data-agent="museum"]`, ""},
		{"agent-paused", admin.Operate, "/console/agents/inn", `button#pausing`, ""},
		{"agent-viewer", admin.Read, "/console/agents/ledger", "aside button[disabled]", ""},
		{"connect", admin.Administer, "/console/agents/connect", "main h1", ""},
		{"connect-card", admin.Administer, "/console/agents/connect?protocol=asp", "#add textarea", ""},
		{"connect-one", admin.Administer, "/console/agents/connect/newcomer", "[data-checklist]", ""},
		{"connect-viewer", admin.Read, "/console/agents/connect", "main h1", ""},
		{"undelivered", admin.Operate, s.dead, "tr.open [data-attempt]", ""},
		{"undelivered-list", admin.Operate, "/console/undelivered?view=list", "#rows tr", ""},
		{"undelivered-waiting", admin.Operate, "/console/undelivered?show=waiting", "[data-group]", ""},
		{"undelivered-dropped", admin.Operate, "/console/undelivered?show=dropped", "[data-group]", ""},
		{"undelivered-empty", admin.Operate, "/console/undelivered?text=nothing", "main .empty", ""},
		{"undelivered-viewer", admin.Read, "/console/undelivered", ".group button[disabled]", ""},
		{"workbench", admin.Operate, "/console/workbench", "main textarea", ""},
		{"workbench-explained", admin.Operate, "/console/workbench?inspect=" + s.ref, ".verdict", ""},
		{"workbench-to", admin.Operate, "/console/workbench?to=museum", "main textarea", ""},
		{"workbench-viewer", admin.Read, "/console/workbench?to=museum", "main button[disabled]", ""},
		{"audit", admin.Administer, "/console/audit", "main h1", ""},
		// The dialogs, one a line.
		{"dialog-keys", admin.Operate, "/console/conversations?agent=robot#keys", "#keys:target", ""},
		{"dialog-evidence", admin.Operate, s.conversation + "#evidence", "#evidence:target", ""},
		{"dialog-retry", admin.Operate, "/console/undelivered?retry=1&" + s.cause, "#retry:target", ""},
		{"dialog-drop", admin.Operate, "/console/undelivered?drop=1&" + s.cause, "#drop:target", ""},
		{"dialog-causes", admin.Operate, "/console/undelivered?retry=1&from=planner", "#retry:target", ""},
		{"dialog-pause", admin.Operate, "/console/agents/museum#pause", "#pause:target", ""},
		{"dialog-expose", admin.Administer, "/console/agents/ledger#expose", "#expose:target", ""},
		{"dialog-exposed", admin.Administer, "/console/agents/ledger?ask=expose&p=asp&p=a2a#ask", "#ask:target", ""},
		{"dialog-link", admin.Administer, "/console/agents/museum#link", "#link:target", ""},
		{"dialog-enrol", admin.Administer, "/console/agents/museum#enroll", "#enroll:target", ""},
		{"dialog-rotate", admin.Administer, "/console/agents/museum?ask=rotate&in=asp#ask", "#ask:target", ""},
		{"dialog-forget", admin.Administer, s.conversation + "?ask=forget#forget", "#forget:target", ""},
		{"dialog-remove", admin.Administer, "/console/agents/ledger?ask=remove#ask", "#ask:target", ""},
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

// usable looks at pages in each look. Two tabs share them, as axe takes most of the time.
func (c *console) usable(t *testing.T, what string, list []page) {
	t.Run(what, func(t *testing.T) {
		for first := range 2 {
			t.Run(fmt.Sprint("tab ", first+1), func(t *testing.T) {
				c := &console{c.Stage, t}
				tabs := map[admin.Role]*tab{"": c.tab(browser.Look{})}
				for i := first; i < len(list); i += 2 {
					if by := list[i].by; tabs[by] == nil {
						tabs[by] = c.entered(browser.Look{}, by)
					}
				}
				t.Parallel()
				for i := first; i < len(list); i += 2 {
					p := list[i]
					t.Run(p.name, func(t *testing.T) { (&tab{tabs[p.by].Page, &console{c.Stage, t}}).inEachLook(p) })
				}
			})
		}
	})
}

// inEachLook looks at a page in each look. Each width loads it anew.
func (v *tab) inEachLook(p page) {
	width := -1
	for _, l := range looks {
		if err := v.Show(l.Look); err != nil {
			v.t.Fatal(err)
		}
		if l.Width != width {
			width = l.Width
			v.do(browser.Go("about:blank"), browser.Go(v.Origin()+p.path))
			if p.then != "" {
				v.do(browser.Loaded(), browser.Eval(p.then, nil))
			}
			v.do(browser.Has(p.has), browser.Loaded())
		}
		v.shot(p.name + "-" + l.name)
		v.is("document.documentElement.scrollWidth <= innerWidth", l.name+": the page does not scroll sideways")
		v.is(reachable, l.name+": the whole dialog can be reached")
		if l.judged {
			v.judge(l.name, l.rules...)
		}
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
