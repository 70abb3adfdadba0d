package flows

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/browser"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/samvad"
)

// signedFor is a SAMVAD request of an agent whose key the hub knows, signed over one path and sent to another.
func (c *console) signedFor(signed, sent string, at time.Time) string {
	c.t.Helper()
	me, err := samvad.NewIdentity("agent://acme.example", "key-1")
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.API.AddAgent(c.t.Context(), admin.NewAgent{Name: "acme", Identities: []admin.NewIdentity{{
		Protocol: "samvad", ID: me.ID(), URL: "https://acme.example", KeyID: me.KID(),
		PublicKey: base64.StdEncoding.EncodeToString(me.Public())}}}); err != nil {
		c.t.Fatal(err)
	}
	body := []byte(`{"from":"agent://acme.example","to":"agent://weather.example","skill":"forecast","mode":"sync",` +
		`"nonce":"nonce-12345678","timestamp":"` + at.Format(time.RFC3339) + `","traceId":"trace-12345678",` +
		`"spanId":"span-12345678","payload":{"city":"Bern"}}`)
	sig, err := samvad.Sign(me, "POST", signed, body, at)
	if err != nil {
		c.t.Fatal(err)
	}
	h := http.Header{}
	sig.Set(h)
	text := "POST " + sent + " HTTP/1.1\nHost: parley.example\nContent-Type: application/json\n"
	for name := range h {
		text += name + ": " + h.Get(name) + "\n"
	}
	return text + "\n" + string(body)
}

// fill puts a text into a field without typing it, as pasting a long one does.
func fill(selector, text string) chromedp.Action {
	return browser.Eval(fmt.Sprintf(`document.querySelector(%q).value = %q`, selector, text), nil)
}

// sentTo counts the recorded messages to an agent.
func (c *console) sentTo(agent string) int {
	c.t.Helper()
	page, err := c.API.Messages(c.t.Context(), index.Filter{To: agent})
	if err != nil {
		c.t.Fatal(err)
	}
	return len(page.Messages)
}

// TestFlow12Workbench: inspecting names the fault of a proxy that adds a prefix. Composing points at what does not fit
// while it is typed, foretells what is lost, and sends once, however often the button is pressed; a reload sends
// nothing.
func TestFlow12Workbench(t *testing.T) {
	c := begin(t)
	v := c.entered(browser.Look{}, admin.Operate)

	const path = "/agents/weather/agent/message"
	at := time.Date(2026, 4, 11, 10, 0, 0, 0, time.UTC)
	v.to("/console/workbench")
	v.do(fill("#paste", c.signedFor(path, "/x"+path, at)), browser.Type(`input[name="at"]`, "2026-04-11 10:00:01"),
		browser.Click("#paste"), chromedp.KeyEvent("\r", chromedp.KeyModifiers(2)), browser.Has("#found"))
	v.says("#found", "refused at the signature", "signed over "+path+", but sent to /x"+path, "public_url")
	v.says(".bench pre .x", "/x")
	v.says(".bench pre .c", "holds without /x")
	if names := v.texts(`[data-check="ok"] b`); !slices.Contains(names, "digest") || len(names) < 5 {
		t.Errorf("the checks that hold are %q", names)
	}
	v.shot("workbench-inspected")

	v.to("/console/workbench")
	v.do(browser.Type(`.form.to input[name="to"]`, "weather"), browser.Click(`.form.to button`),
		browser.Has(`#compose .btn.go:not([disabled])`))
	const content = `#compose textarea`
	v.do(browser.Type(content, `{"town":"Bern"}`), browser.Has(`#foreseen[data-accepted="false"] [data-misfit=""]`))
	v.says("#foreseen", "missing property 'city'", "It would be refused: invalid_content")
	v.shot("workbench-misfit")
	v.do(browser.Type(content, `{"city":7}`), browser.Has(`[data-misfit="/city"]`))
	v.do(browser.Type(content, `{"city":"Bern"}`), browser.Has(`#foreseen[data-accepted="true"]`),
		browser.Gone("[data-misfit]"))
	if n := c.sentTo("weather"); n != 0 {
		t.Errorf("typing sent %d messages", n)
	}

	v.do(browser.Eval(`(b => { b.click(); b.click(); })(document.querySelector("#compose .btn.go"))`, nil),
		browser.Has("[data-sent]"))
	v.says("#sent", "Answered in", "by weather")
	v.says(`pre[aria-label="Command"]`, "parley send --from operator --to weather")
	v.shot("workbench-sent")
	v.do(browser.Eval("window.old = true", nil), chromedp.Reload(), browser.Wait("!window.old"),
		browser.Has("[data-sent]"))
	if n := c.sentTo("weather"); n != 1 {
		t.Errorf("pressed twice and loaded again: %d messages", n)
	}
	v.says("#history summary", "1")

	v.to("/console/workbench?to=baker")
	v.do(browser.Type(content, `{"n":12345678901234567890}`), browser.Has(`[data-loss="refused"]`),
		browser.Has(`[data-back="absent"]`))
	v.says("#foreseen", "reached in ASP", "Numbers beyond a 64-bit float")
	v.shot("workbench-foretold")
	v.judge("foretold")
}

// TestFlow12Texts: whatever is sent or pasted is text on the page: markup, characters that turn the line, 3 MB. All of
// it works without scripts, as checking does.
func TestFlow12Texts(t *testing.T) {
	c := begin(t)
	if _, err := c.API.AddAgent(t.Context(), admin.NewAgent{Name: "box", Inbox: true}); err != nil {
		t.Fatal(err)
	}
	v := c.entered(browser.Look{}, admin.Operate)
	const evil = "</textarea><script>window.hacked = true</script><img src=x onerror='window.hacked = true'>\u202egnp.exe"
	send := func(content string) {
		t.Helper()
		v.to("/console/workbench?to=box")
		v.do(browser.Eval(`document.querySelector('#compose [name="kind"]').value = "notice"`, nil),
			fill("#compose textarea", content), browser.Click("#compose .btn.go"), browser.Has("[data-sent]"))
	}
	send(evil)
	v.is("window.hacked === undefined && !document.querySelector('main script, main img')", "the content is no markup")
	v.says(`pre[aria-label="The content of the form"]`, "<script>window.hacked", "gnp.exe")
	v.is(`!document.querySelector("main").textContent.includes("\u202e")`, "no character turns the line")
	v.shot("workbench-text")

	v.to("/console/workbench?to=box")
	v.do(browser.Eval(`document.querySelector('#compose [name="kind"]').value = "notice"`, nil),
		browser.Eval(`document.querySelector("#compose textarea").value = "<u>" + "x".repeat(3 << 20)`, nil),
		browser.Click("#compose .btn.go"), browser.Has("[data-sent]"))
	v.is(`!document.querySelector("main u") && document.querySelector("main").textContent.length < 1e6`,
		"3 MB are cut, and text")
	v.says("#compose + .fields + .sub, #compose ~ .sub", "3.1 MB")
	v.to("/console/workbench")
	v.do(browser.Eval(`document.querySelector("#paste").value = "<u>" + "x".repeat(3 << 20)`, nil),
		browser.Click(`.bench form[action*="found"] .btn.go`), browser.Has("#found"))
	v.says("#found", "at most 1048576 are inspected")
	v.is(`!document.querySelector("main u")`, "what was pasted is text")
	if n := c.sentTo("box"); n != 2 {
		t.Errorf("%d messages", n)
	}

	if err := v.Show(browser.Look{NoScript: true, Width: 360, Height: 800}); err != nil {
		t.Fatal(err)
	}
	v.do(browser.Go(c.Origin() + "/console/workbench?to=weather"))
	v.do(chromedp.SetValue("#compose textarea", `{"town":"Bern"}`, chromedp.ByQuery),
		browser.Click(`#compose [formaction]`), browser.Has(`[data-misfit=""]`))
	v.is("document.documentElement.scrollWidth <= innerWidth", "nothing scrolls sideways")
	if text := v.text("#foreseen"); !strings.Contains(text, "missing property") {
		t.Errorf("without scripts: %q", text)
	}
	v.shot("workbench-checked-360")
}
