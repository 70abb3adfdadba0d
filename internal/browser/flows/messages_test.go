package flows

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/browser"
)

// ask has the traveller ask an agent.
func (c *console) ask(to, text string) {
	c.t.Helper()
	if _, err := c.Ask(c.t.Context(), "traveller", to, text); err != nil {
		c.t.Fatal(err)
	}
}

// rows gives an attribute of each row.
func (v *tab) rows(attribute string) (s []string) {
	v.t.Helper()
	v.do(browser.Attrs("#rows tr[data-row]", attribute, &s))
	return s
}

// row is the row in which something is said.
func row(text string) string {
	return fmt.Sprintf(`[...document.querySelectorAll("#rows tr")].some(r => r.textContent.includes(%q))`, text)
}

// TestFlow02MessagesAppear: what is said appears without a reload. Paused, the page stays as it is; when it goes on,
// what was missed is one key away at most.
func TestFlow02MessagesAppear(t *testing.T) {
	c := begin(t)
	v, other := c.entered(browser.Look{}, admin.Operate), c.entered(browser.Look{}, admin.Read)
	for _, v := range []*tab{v, other} {
		v.says("[data-empty]", "Nothing was said here yet")
		v.do(browser.Has(`[data-live][aria-pressed="true"]`))
	}
	v.do(browser.Eval("window.loaded = 'once'", nil))
	c.ask("inn", "A room for tonight")
	for _, v := range []*tab{v, other} {
		v.do(browser.Wait(row("A room for tonight")), browser.Wait(row("two beds, a room with a view")))
	}
	v.is("window.loaded === 'once'", "the page was not loaded again")
	v.shot("messages-live")

	v.do(browser.Press("p"), browser.Has(`[data-live][aria-pressed="false"]`))
	before := v.rows("data-row")
	c.ask("museum", "What is on show?")
	other.do(browser.Wait(row("What is on show?"))) // by now it was pushed
	if after := v.rows("data-row"); !slices.Equal(before, after) {
		t.Errorf("paused, the rows changed from %q to %q", before, after)
	}
	v.shot("messages-paused")
	v.do(browser.Press("p"), browser.HasText("#more:not([hidden])", "2 more")) // the question and its answer
	if after := v.rows("data-row"); !slices.Equal(before, after) {
		t.Errorf("the page goes on, and its rows changed from %q to %q", before, after)
	}
	v.shot("messages-more")
	v.do(browser.Press("."), browser.Wait(row("What is on show?")))
	v.is("window.loaded === 'once'", "the page was not loaded again")
}

// TestFlow04NoMatch: an empty list names the filter that hides everything; its button brings rows.
func TestFlow04NoMatch(t *testing.T) {
	c := begin(t)
	c.trip()
	v := c.entered(browser.Look{}, admin.Operate)
	v.to("/console/?" + url.Values{"agent": {"inn"}, "text": {"nobody ever said this"}}.Encode())
	v.says("[data-empty]", "No message matches", "nobody ever said this", "inn")
	v.shot("messages-empty")
	v.do(browser.ClickTo(`[data-without="text"]`, "/console/?agent=inn"), browser.Has("#rows tr"))
}

// TestFlow05Forged: two clicks from Messages explain a request with the wrong key, and say what helps.
func TestFlow05Forged(t *testing.T) {
	c := begin(t)
	ref := c.trip()
	v := c.entered(browser.Look{}, admin.Operate)
	v.do(browser.ClickTo("#show-refused", "/console/?show=refused"))
	v.do(browser.Click(fmt.Sprintf(`tr[data-row=%q] a.ft`, ref)), browser.Has(fmt.Sprintf(`[data-explain=%q]`, ref)))
	v.says("[data-explain]", "signature", "agent://traveller.example", "parley explain "+ref)
	if advice := v.text("[data-advice]"); strings.Contains(advice, "no advice") || advice == "" {
		t.Errorf("advice %q", advice)
	}
	v.shot("messages-refused")
}
