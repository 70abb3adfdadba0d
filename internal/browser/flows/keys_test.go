package flows

import (
	"fmt"
	"testing"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/browser"
)

// visible is an expression that is true if an element has the focus, shows it, and is not behind the bar.
const visible = `(() => { const n = document.activeElement, s = getComputedStyle(n), r = n.getBoundingClientRect();
	return n !== document.body && n.matches(":focus-visible") &&
		(s.outlineStyle !== "none" && parseFloat(s.outlineWidth) > 0 || s.boxShadow !== "none") &&
		r.width > 0 && r.top < innerHeight && r.bottom > 0 &&
		(n.closest(".top, .scrim, .skip") || r.bottom > document.querySelector(".top").getBoundingClientRect().bottom); })()`

// focused waits until an element has the focus, which has to be visible.
func (v *tab) focused(selector string) {
	v.t.Helper()
	if err := v.Do(browser.Wait(fmt.Sprintf("document.activeElement.matches(%q)", selector))); err != nil {
		var is string
		v.do(browser.Eval("document.activeElement.outerHTML.slice(0, 200)", &is))
		v.t.Fatalf("the focus is at %s: %v", is, err)
	}
	v.is(visible, "the focus on "+selector+" is visible")
}

// tabTo presses Tab until an element has the focus, which is visible wherever it was meanwhile.
func (v *tab) tabTo(selector string) {
	v.t.Helper()
	for range 100 {
		v.do(browser.Press("Tab"))
		v.is(visible, "the focus on the way to "+selector+" is visible")
		var there bool
		v.do(browser.Eval(fmt.Sprintf("document.activeElement.matches(%q)", selector), &there))
		if there {
			return
		}
	}
	v.t.Fatalf("Tab does not lead to %s", selector)
}

// TestFlow13KeysOnly: from entering on, a keyboard is enough. The focus is visible, and returns after dialogs.
func TestFlow13KeysOnly(t *testing.T) {
	c := begin(t)
	c.trip()
	c.undeliverable()
	c.lose("planner", ledger, "the first")
	c.lose("weather", ledger, "the second")
	v := c.tab(browser.Look{})
	v.do(browser.Go(c.link(admin.Operate)), browser.Wait(`document.activeElement.matches("main form button")`))
	v.do(browser.Press("Enter"), browser.At("/console/"), browser.Has("#rows tr"))

	v.do(browser.Press("Tab"))
	v.is(`document.activeElement.matches("a.skip")`, "the first stop is the way to the content")
	v.do(browser.Press("Tab", "Tab"))
	v.is(`document.activeElement.closest("#nav")`, "the navigation is reached")
	v.is(visible, "the focus in the navigation is visible")
	v.do(browser.Press("?"), browser.Has("#keys:target"), browser.Wait(`document.activeElement.closest("#keys")`))
	v.is(visible, "the focus in the dialog is visible")
	v.is(`document.querySelector("main").inert`, "what is behind the dialog cannot be reached")
	v.shot("keys")
	v.do(browser.Press("Escape"), browser.Gone("#keys:target"), browser.Wait(`document.activeElement.closest("#nav")`))
	v.is(`!document.querySelector("main").inert`, "the page can be used again")

	v.do(browser.Press("t"), browser.Has(`html[data-theme="dark"]`))
	v.to("/console/")
	v.is(`document.documentElement.dataset.theme === "dark"`, "the theme is kept")
	v.do(browser.Press("t"), browser.Has(`html[data-theme="light"]`))

	v.retriesByKeys()
	v.pausesByKeys()
}

// retriesByKeys retries dead letters.
func (v *tab) retriesByKeys() {
	const retry, inDialog = `a[data-key-r]`, `#retry:target `
	v.do(browser.Press("g", "u"), browser.At("/console/undelivered"), browser.Has(retry))
	v.do(browser.Press("j"))
	v.focused("tr[aria-selected=true] a")
	var first, second string
	chosen := func(s *string) { v.do(browser.Eval(`document.querySelector("[aria-selected=true]").dataset.row`, s)) }
	chosen(&first)
	v.do(browser.Press("j"))
	v.focused("tr[aria-selected=true] a")
	if chosen(&second); first == second {
		v.t.Error("j does not move on")
	}
	v.do(browser.Press("k"), browser.Press("Enter"), browser.Has("[data-attempt]"))
	v.focused("tr[aria-selected=true] a")
	v.is(fmt.Sprintf("new URL(location).searchParams.get('m').startsWith(%q)", first), "Enter opens the chosen row")

	v.do(browser.Press("r"), browser.Has(inDialog+"form"))
	v.focused(inDialog + `[name="since"]`)
	v.shot("keys-retry")
	v.do(browser.Press("Escape"), browser.Gone("#retry:target"))
	v.focused(retry)
	const drop = `a[href^="?drop"]`
	v.tabTo(drop)
	v.do(browser.Press("Enter"), browser.Has("#drop:target form"))
	v.focused(`#drop:target [name="why"]`)
	v.do(browser.Press("Escape"), browser.Gone("#drop:target"))
	v.focused(drop)

	v.do(browser.Press("r"), browser.Has(inDialog+"form"))
	v.focused(inDialog + `[name="since"]`)
	v.tabTo(inDialog + `[name="rate"]`)
	v.tabTo(inDialog + `[name="why"]`)
	v.do(browser.Type(inDialog+`[name="why"]`, "the ledger is back"))
	v.tabTo(inDialog + `.btn.go`)
	v.do(browser.Press("Enter"), browser.HasText("#done", "queued again"))
	v.focused("#done, " + retry)
	v.shot("keys-retried")
}

// pausesByKeys pauses an agent and resumes it.
func (v *tab) pausesByKeys() {
	v.do(browser.Press("g", "a"), browser.At("/console/agents"), browser.Has("#pausing"))
	v.tabTo("#pausing")
	v.do(browser.Press("Enter"), browser.Has("#pause:target"))
	v.focused(`#pause:target [name="reason"]`)
	v.do(browser.Press("Escape"), browser.Gone("#pause:target"))
	v.focused("a#pausing")
	v.do(browser.Press("Enter"), browser.Has("#pause:target"))
	v.focused(`#pause:target [name="reason"]`)
	v.tabTo(`#pause:target .btn.go`)
	v.do(browser.Press("Enter"))
	v.focused("button#pausing")
	v.do(browser.Press("Enter"), browser.Has("a#pausing"))
}
