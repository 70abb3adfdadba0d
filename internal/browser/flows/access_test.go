package flows

import (
	"errors"
	"testing"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/browser"
)

// looks are those in which every page has to be usable. axe-core judges the first four: the others have the same
// elements and colours.
var looks = []struct {
	name string
	browser.Look
	judged bool
}{
	{"light", browser.Look{}, true},
	{"dark", browser.Look{Dark: true}, true},
	{"light-360", browser.Look{Width: 360, Height: 800}, true},
	{"dark-360", browser.Look{Width: 360, Height: 800, Dark: true}, true},
	{"zoom-200", browser.Look{Zoom: 2}, false},
	{"forced", browser.Look{ForcedColors: true}, false},
}

// TestFlow15Accessibility: no page breaks WCAG 2.2 AA in either theme, wide or narrow, as far as axe-core sees it; none
// scrolls sideways, also with text of 200 %; without scripts, reading works.
func TestFlow15Accessibility(t *testing.T) {
	c := begin(t)
	ref := c.trip()
	conversation := c.Origin() + "/console/conversations/" + c.planned()
	if _, err := c.API.Connect(t.Context(), admin.NewAgent{Name: "desk", Inbox: true}); err != nil {
		t.Fatal(err)
	}
	outside := c.tab(browser.Look{})
	v, boss := c.entered(browser.Look{}, admin.Operate), c.entered(browser.Look{}, admin.Administer)
	for _, p := range []struct {
		name string
		tab  *tab
		url  string
		has  string // an element that only this page has
	}{
		{"enter", outside, c.link(admin.Operate), `input[name="once"]`},
		{"no-way-in", outside, c.Origin() + "/console/", "main pre"},
		{"no-page", v, c.Origin() + "/console/nowhere", "main .badbox"},
		{"messages", v, c.Origin() + "/console/", "#rows tr"},
		{"messages-refused", v, c.Origin() + "/console/?show=refused&m=" + ref, "[data-explain]"},
		{"messages-empty", v, c.Origin() + "/console/?text=nobody+said+this&kind=request", "[data-empty]"},
		{"conversations", v, c.Origin() + "/console/conversations", "#rows tr"},
		{"conversation", v, conversation, ".seq"},
		{"conversation-trace", v, conversation + "?extent=trace", ".seq"},
		{"conversation-table", v, conversation + "?view=table", ".log"},
		{"conversation-proof", v, conversation + "?view=proof", ".proofs"},
		{"conversation-content", v, conversation + "?view=content", "main pre"},
		{"evidence", v, conversation + "#evidence", "#evidence:target"},
		{"agents", v, c.Origin() + "/console/agents", "#rows tr"},
		{"agent", boss, c.Origin() + "/console/agents/museum", `[data-agent="museum"]`},
		{"agent-link", boss, c.Origin() + "/console/agents/museum#link", "#link:target"},
		{"agent-rotate", boss, c.Origin() + "/console/agents/museum?ask=rotate&in=asp#ask", "#ask:target"},
		{"forget", boss, conversation + "?ask=forget#forget", "#forget:target"},
		{"connect", boss, c.Origin() + "/console/agents/connect", "main h1"},
		{"connect-card", boss, c.Origin() + "/console/agents/connect?protocol=asp", "#add textarea"},
		{"connect-steps", boss, c.Origin() + "/console/agents/connect/desk", "#stepper"},
		{"undelivered", v, c.Origin() + "/console/undelivered", "main h1"},
		{"workbench", v, c.Origin() + "/console/workbench", "main textarea"},
		{"workbench-explained", v, c.Origin() + "/console/workbench?inspect=" + ref, ".verdict"},
		{"workbench-to", v, c.Origin() + "/console/workbench?to=museum", "main textarea"},
		{"audit", boss, c.Origin() + "/console/audit", "main h1"},
		{"keys", v, c.Origin() + "/console/#keys", "#keys:target"},
	} {
		t.Run(p.name, func(t *testing.T) {
			v := &tab{p.tab.Page, &console{c.Stage, t}}
			for _, l := range looks {
				if err := v.Show(l.Look); err != nil {
					t.Fatal(err)
				}
				v.do(browser.Go("about:blank"), browser.Go(p.url), browser.Has(p.has),
					browser.Wait("document.readyState === 'complete'"))
				v.shot(p.name + "-" + l.name)
				v.is("document.documentElement.scrollWidth <= innerWidth", l.name+": the page does not scroll sideways")
				if l.judged {
					v.judge(l.name)
				}
			}
		})
	}
}

// judge has axe-core look at the page.
func (v *tab) judge(look string) {
	v.t.Helper()
	found, err := v.Axe()
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

// TestFlow15WithoutScripts: entering, reading and leaving are links and forms.
func TestFlow15WithoutScripts(t *testing.T) {
	c := begin(t)
	c.trip()
	v := c.entered(browser.Look{NoScript: true}, admin.Operate)
	v.says("main", "forecast", "answered", "signed")
	v.shot("messages-without-scripts")
	v.do(browser.Click(`form[action="/console/leave"] button`), browser.HasText("main h1", "No way in"))
}
