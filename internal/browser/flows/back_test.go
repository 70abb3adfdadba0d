package flows

import (
	"context"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/browser"
)

// nothing is done first.
var nothing = chromedp.Tasks{}

// TestStepsBackWhileAPageLoads: two steps back, of which the second is made while the page of the first loads and its
// scripts do not run yet, lead to the page of the second.
func TestStepsBackWhileAPageLoads(t *testing.T) {
	c := begin(t)
	v := c.entered(browser.Look{}, admin.Operate)
	v.do(browser.ClickTo(`#nav [data-key="c"]`, "/console/conversations"),
		browser.ClickTo(`#nav [data-key="a"]`, "/console/agents"))
	back := browser.Eval("history.back()", nil)
	stepped := false
	err := v.Hold("*/htmx.min.js", chromedp.Tasks{back, browser.Has(`[data-screen="messages"]`), browser.At("/console/")},
		func(url string) (string, chromedp.Action) {
			if stepped {
				return url, nothing
			}
			stepped = true
			return url, chromedp.Tasks{browser.Has(`[data-screen="conversations"]`), back,
				browser.Wait(`location.pathname === "/console/"`)}
		})
	if err != nil || !stepped {
		t.Fatal(err, stepped)
	}
	// The stream of the page is that of its address.
	v.do(browser.Has(`[data-live][aria-pressed="true"]`), browser.Gone(`#nav [data-key="c"][aria-current]`))
}

// TestAPageIsReadOnce: no address is taken for another one, however it is written. If a proxy changes addresses on the
// way to the hub, a page is read twice, and not for ever.
func TestAPageIsReadOnce(t *testing.T) {
	c := begin(t)
	v := c.entered(browser.Look{}, admin.Operate)
	read := func(path string) {
		t.Helper()
		v.do(browser.Go(v.Origin()+path),
			browser.Loaded(), browser.Wait("history.state && !history.state.again"))
	}
	reads := func() (n int) {
		for _, u := range v.Requests() {
			if !strings.Contains(u, "/static/") && !strings.Contains(u, "/console/live") {
				n++
			}
		}
		return n
	}
	for _, path := range []string{"/console/", "/console/?", `/console/?text=%C3%A9%20a+'b'|"c"{}<é>\&x`,
		"/console/agents#keys", "/console/agents/nobody%2Fat%2fall", "/console/agents/../agents/x y"} {
		before := reads()
		if read(path); reads() != before+1 {
			t.Errorf("%s was read %d times: %q", path, reads()-before, v.Requests())
		}
	}
	before := reads()
	err := v.Hold("*/console/agents", chromedp.ActionFunc(func(context.Context) error {
		read("/console/agents")
		read("/console/conversations")
		read("/console/agents")
		return nil
	}), func(url string) (string, chromedp.Action) {
		return strings.Replace(url, "/console/agents", "/console/undelivered", 1), nothing
	})
	if n := reads() - before; err != nil || n != 5 {
		t.Errorf("two visits of a page whose address is changed, and one of another, read %d pages; %v", n, err)
	}
}
