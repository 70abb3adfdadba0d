package flows

import (
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/browser"
)

// TestFlow01EnterOnce: a link lets one browser in, once. Again, late or altered it is refused, with a way out. Looking
// at it changes nothing.
func TestFlow01EnterOnce(t *testing.T) {
	c := begin(t)
	link := c.link(admin.Operate)
	refused := func(v *tab) {
		t.Helper()
		v.says("main h1", "No way in")
		v.says("main pre", "parley console")
	}
	v := c.tab(browser.Look{})
	for range 2 { // programs that preview links
		v.do(browser.Go(link))
		v.says("main", "Enter as ops-laptop", "operator", "It works once")
	}
	v.shot("enter")
	v.to("/console/")
	refused(v)
	v.shot("enter-refused")
	altered := "A"
	if strings.HasSuffix(link, altered) {
		altered = "E"
	}
	v.do(browser.Go(link[:len(link)-1] + altered))
	refused(v)

	v.do(browser.Go(link), browser.ClickTo("main form button", "/console/"), browser.Has(`main[data-screen="messages"]`))
	v.says(".who", "ops-laptop · operator")
	v.is("document.cookie.indexOf('parley-hub') < 0", "a script sees the session")

	for name, try := range map[string]func() string{
		"again": func() string { return link },
		"late":  func() string { l := c.link(admin.Operate); c.Clock.Move(10 * time.Minute); return l },
	} {
		t.Run(name, func(t *testing.T) {
			other := c.tab(browser.Look{})
			other.do(browser.Go(try()))
			refused(other)
			other.to("/console/")
			refused(other)
		})
	}
	v.to("/console/")
	v.do(browser.Click(`form[action="/console/leave"] button`), browser.HasText("main h1", "No way in"))
	v.to("/console/")
	refused(v)
}
