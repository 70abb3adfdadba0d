package flows

import (
	"slices"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/browser"
)

// hide hides the tab, or shows it again.
func hide(hidden bool) chromedp.Action {
	name := "false"
	if hidden {
		name = "true"
	}
	return browser.Eval(`Object.defineProperty(document, "hidden", {value: `+name+`, configurable: true});
		document.dispatchEvent(new Event("visibilitychange"))`, nil)
}

const (
	bar    = "#more:not([hidden])"
	still  = `window.was = [scrollY, document.querySelector("#rows tr").dataset.row]`
	moved  = `window.was[0] !== scrollY || window.was[1] !== document.querySelector("#rows tr").dataset.row`
	marked = `document.querySelector("#main").marked`
)

// TestFlow02StaysInPlace: where the reader looks at something, new rows go into the bar, and nothing is replaced behind
// a dialog, also not when the tab was hidden meanwhile.
func TestFlow02StaysInPlace(t *testing.T) {
	c := begin(t)
	c.trip()
	v := c.entered(browser.Look{Width: 1200, Height: 400}, admin.Operate)
	for _, try := range []struct {
		name       string
		look, away chromedp.Action
	}{
		{"scrolled", browser.Eval("scrollTo(0, 200)", nil), browser.Eval("scrollTo(0, 0)", nil)},
		{"with a chosen row", browser.Press("j"), browser.Press("k")},
		{"with an open dialog", chromedp.Tasks{browser.Press("?"), browser.Has("#keys:target")}, browser.Press("Escape")},
	} {
		v.to("/console/")
		v.do(browser.Has(`[data-live][aria-pressed="true"]`), try.look, browser.Eval(still, nil))
		c.ask("inn", "A bed while the page is "+try.name)
		v.do(browser.HasText(bar, "2 more"))
		v.is("!("+moved+")", "nothing moved on a page "+try.name)
		v.do(hide(true))
		c.ask("inn", "Another bed while the page is "+try.name)
		v.do(hide(false), browser.HasText(bar, "4 more"))
		v.is("!("+moved+")", "nothing moved on a page "+try.name+" when its tab came back")
		v.shot("messages-" + try.name)
		v.do(try.away)
	}

	v.to("/console/")
	v.do(browser.Has("#rows tr"), browser.Press("?"), browser.Has("#keys:target"), browser.Eval(marked+" = true", nil),
		hide(true), hide(false))
	c.ask("inn", "A bed behind the dialog")
	v.do(browser.HasText(bar, "2 more"))
	v.is(marked, "the main part was not swapped behind the dialog")
	v.do(browser.Press("Escape"), browser.Press("."), browser.Wait(row("A bed behind the dialog")))
}

// TestFlow07FailsTwice: an agent that cannot be reached twice. The page of the conversation shows two red attempts,
// then the answer, without a reload, and stays where the reader has scrolled to.
func TestFlow07FailsTwice(t *testing.T) {
	c := begin(t)
	if _, err := c.API.Pause(t.Context(), "shop", true); err != nil {
		t.Fatal(err)
	}
	r, err := c.Send(t.Context(), "shop", "order", "A map of Bern")
	if err != nil {
		t.Fatal(err)
	}
	v := c.entered(browser.Look{Width: 1440, Height: 400}, admin.Operate)
	list := c.entered(browser.Look{}, admin.Operate)
	page := "/console/conversations/" + r.Conversation.String() + "?m=" + r.ID.String()
	v.to(page)
	request := `a[data-id="` + r.ID.String() + `"]`
	v.do(browser.Has(request+`[data-failed="0"]`), browser.Eval(`scrollTo(0, 120); window.loaded = scrollY`, nil))
	v.is("window.loaded > 0", "the page can be scrolled")
	c.CloseShop()
	if _, err := c.API.Pause(t.Context(), "shop", false); err != nil {
		t.Fatal(err)
	}
	v.do(browser.Has(request + `[data-failed="1"]`))
	v.shot("fails-once")
	v.do(browser.Has(request+`[data-failed="2"]`), browser.HasText("#side .att .bad", "refused"),
		browser.HasText("#signs", "2 attempts failed"))
	v.shot("fails-twice")
	if err := c.OpenShop(); err != nil {
		t.Fatal(err)
	}
	v.do(browser.Has(`a[data-id]:not([data-id="`+r.ID.String()+`"])`), browser.Has(request+`[data-state="answered"]`))
	v.shot("answers-then")
	v.is("scrollY === window.loaded", "the page was not loaded again, and stayed in its place")
	list.do(browser.Wait(row("one map of Bern")), browser.Has(`#rows tr[data-row="`+r.ID.String()+`"] .c-tries.slow`))
}

// TestLiveAgentsAndUndelivered: their numbers and states change in place; what is new goes into the bar.
func TestLiveAgentsAndUndelivered(t *testing.T) {
	c := begin(t)
	agents, causes := c.entered(browser.Look{}, admin.Operate), c.entered(browser.Look{}, admin.Operate)
	agents.to("/console/agents/shop")
	causes.to("/console/undelivered?show=waiting")
	causes.do(browser.Has("[data-empty]"), browser.Eval(marked+" = true", nil))
	agents.do(browser.Has(`[data-agent="shop"]`), browser.Eval(marked+" = true", nil))
	if _, err := c.API.PauseFor(t.Context(), "shop", "month end"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Send(t.Context(), "shop", "order", "A map of Bern"); err != nil {
		t.Fatal(err)
	}
	agents.do(browser.Has(`#rows tr[data-row="shop"][data-state="paused"]`),
		browser.HasText(`#rows tr[data-row="shop"] .c-took`, "1 · 0"), browser.HasText("#agent-trouble", "month end"),
		browser.HasText("#agent-backlog", "1 waiting"))
	agents.is(marked, "the page was not swapped")
	causes.do(browser.HasText(".group .n", "1"), browser.Eval(marked+" = true", nil)) // an empty page is read anew
	if _, err := c.Send(t.Context(), "shop", "order", "A second map"); err != nil {
		t.Fatal(err)
	}
	causes.do(browser.HasText(".group .n", "2"), browser.HasText("#show-waiting", "2"), browser.HasText(bar, "1 more"))
	causes.is(marked, "the page was not swapped")
	causes.shot("undelivered-live")
	agents.shot("agents-live")
}

// TestHubIsSilent: without the hub the page says how old it is and when it tries again; with it, the page is read anew.
func TestHubIsSilent(t *testing.T) {
	c := begin(t)
	p, err := chromium.Open(c.Origin(), browser.Look{}) // not c.tab: a browser without a network complains
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	v := &tab{p, c}
	offline := func(off bool) chromedp.Action { return network.EmulateNetworkConditions(off, 0, -1, -1) }
	v.do(browser.Go(v.link(admin.Operate)), browser.ClickTo("main form button", "/console/"),
		browser.Has(`[data-live][aria-pressed="true"]`))
	v.do(offline(true), hide(true), hide(false), browser.Has("#silent:not([hidden])"))
	v.says("#silent", "The hub has not answered for", "What you see is of", "Trying again by itself, next in", "Now")
	v.says("[data-live]", "Not live")
	v.says("#said", "The hub does not answer")
	v.shot("hub-silent")
	c.ask("inn", "A bed while nobody could look")
	v.do(offline(false), browser.Click("[data-now-link]"),
		browser.Wait(row("A bed while nobody could look")), browser.Has("#silent[hidden]"))
	v.says("[data-live]", "Live")
}

// BenchmarkRecordToPixel measures how long after its record a message is on the screen of an open page that was quiet:
// up to the end of the first frame with its row. The bound is 50 ms in the median, on this machine alone.
func BenchmarkRecordToPixel(b *testing.B) {
	c := begin(b)
	v := c.entered(browser.Look{}, admin.Operate)
	c.trip()
	v.do(browser.Has("#rows tr"), browser.Eval(`window.seen = {};
		new MutationObserver(list => {
			for (const r of list.flatMap(m => [...m.addedNodes])) {
				if (r.dataset?.row && !(r.dataset.row in seen)) {
					seen[r.dataset.row] = 0;
					requestAnimationFrame(() => setTimeout(() => {
						seen[r.dataset.row] = performance.timeOrigin + performance.now() - r.dataset.at / 1000;
					}));
				}
			}
		}).observe(document.querySelector("#rows"), {childList: true})`, nil))
	var all []float64
	for b.Loop() {
		time.Sleep(time.Second) // a quiet time
		text := "how long?"
		r, err := c.API.Send(b.Context(), admin.Send{From: "planner", To: "inn", Kind: parley.Notice, Text: &text})
		if err != nil {
			b.Fatal(err)
		}
		var ms float64
		seen := `window.seen["` + r.ID.String() + `"]`
		v.do(browser.Wait(seen), browser.Eval(seen, &ms))
		all = append(all, ms)
	}
	slices.Sort(all)
	b.ReportMetric(all[len(all)/2], "ms-median")
	b.ReportMetric(all[len(all)-1], "ms-worst")
}

// TestLiveIsSaid: what is new is said politely, as a sum and not often; what was too fast is a number at the foot.
func TestLiveIsSaid(t *testing.T) {
	c := begin(t)
	c.trip()
	v := c.entered(browser.Look{}, admin.Operate)
	v.do(browser.Has("#rows tr"), browser.Eval(`window.heard = [];
		new MutationObserver(() => heard.push([Date.now(), document.querySelector("#said").textContent])).
			observe(document.querySelector("#said"), {childList: true})`, nil))
	for range 3 {
		c.ask("inn", "A bed, quickly")
	}
	v.do(browser.Wait(`heard.length > 0`), browser.Wait(row("A bed, quickly")))
	v.is(`heard.every(([at, text], i) => /^\d+ more/.test(text) && (!i || at - heard[i - 1][0] > 9_900))`,
		"news are said as a sum, at most every 10 s")
	v.is(`document.querySelector("#said").getAttribute("role") === "status"`, "they are said politely")
	v.do(browser.Eval(`htmx.swap("#main", '<span id="missed" class="waiting">too fast to show: 1,204 missed</span>',
		{swapStyle: "live", settleDelay: 0}, {contextElement: document.querySelector("#stream")})`, nil),
		browser.HasText("#missed:not([hidden])", "too fast to show: 1,204 missed"))
}
