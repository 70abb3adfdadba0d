package flows

import (
	"testing"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/browser"
)

// visible is an expression that is true if the focus is on an element that shows it.
const visible = `(() => { const n = document.activeElement, s = getComputedStyle(n);
	return n !== document.body &&
		(s.outlineStyle !== "none" && parseFloat(s.outlineWidth) > 0 || s.boxShadow !== "none"); })()`

// TestFlow13KeysOnly: from entering on, a keyboard is enough. The focus is visible, and returns after dialogs.
func TestFlow13KeysOnly(t *testing.T) {
	c := begin(t)
	c.trip()
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
}
