package flows

import (
	"net/url"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/browser"
	"github.com/parley-hub/parley/journal/index"
)

// markup is what would set a global, open a dialog or call another host, if a page took it for more than text.
const markup = `"><script>window.pwned=1;alert(1)</script><img src=https://evil.example/x onerror="window.pwned=1">` +
	`<svg onload="window.pwned=1"></svg></pre></textarea><iframe srcdoc="<script>parent.pwned=1</script>"></iframe>` +
	`<a href="javascript:window.pwned=1">` + "\u202egnp.exe\u2066"

// TestMarkupOfAgentsDoesNothing: in a browser, what agents of each protocol say runs nothing, opens nothing and calls
// nobody, on any page and in the rows that come by the stream. (A tab fails by itself if a request leaves the origin,
// or if the policy had to stop something.)
func TestMarkupOfAgentsDoesNothing(t *testing.T) {
	c := begin(t)
	v := c.entered(browser.Look{Width: 1440, Height: 900}, admin.Operate)
	v.do(chromedp.Evaluate(`window.stayed = 1`, nil))
	for from, to := range map[string]string{"traveller": "robot", "guide": "mason", "robot": "guide", "mason": "baker",
		"baker": "inn", "assistant": "museum"} {
		if _, err := c.Ask(t.Context(), from, to, markup); err != nil {
			t.Errorf("%s asks %s: %v", from, to, err)
		}
	}
	if _, err := c.Forge(t.Context()); err != nil {
		t.Fatal(err)
	}
	unharmed := func(where string) {
		t.Helper()
		v.is(`window.pwned === undefined && `+
			`!document.querySelector("main iframe, main script, main img, [onerror], [onload]")`, where)
	}
	// The rows came into the page that was open all the while.
	page, err := c.API.Messages(t.Context(), index.Filter{Kind: parley.Request, Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range page.Messages {
		v.do(browser.Has("#m-" + m.ID.String()))
	}
	v.is("window.stayed === 1", "the page was not read anew")
	unharmed("the rows of the stream")
	v.shot("markup-messages")
	seen := 0
	for _, m := range page.Messages {
		at := "/console/conversations/" + m.Conversation.String() + "?m=" + m.ID.String()
		for _, path := range []string{at, at + "&view=content"} {
			v.to(path)
			unharmed(path)
		}
		if seen++; seen == 1 {
			v.says("main pre", "<script>window.pwned=1;alert(1)</script>", `\u202egnp.exe`)
			for _, path := range []string{at + "&view=table", at + "&view=proof", "/console/workbench?inspect=" + m.ID.String(),
				"/console/conversations", "/console/agents", "/console/?" + url.Values{"text": {markup}}.Encode()} {
				v.to(path)
				unharmed(path)
			}
		}
	}
	if seen < 6 {
		t.Errorf("only %d requests were seen", seen)
	}
}
