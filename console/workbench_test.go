package console_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/samvad"
)

// post submits a form with the session's token.
func (w *browser) post(path string, form url.Values) (int, string) {
	w.t.Helper()
	form.Set("form", formToken.FindStringSubmatch(w.page("/console/"))[1])
	return w.do("POST", path, form)
}

// explain lets the workbench explain a text.
func (w *browser) explain(input, at string) (int, string) {
	w.t.Helper()
	return w.post("/console/workbench", url.Values{"input": {input}, "at": {at}})
}

// signedRequest is a SAMVAD request of an agent whose key the hub knows, signed over one path and sent to another.
func signedRequest(t *testing.T, b *bench, signed, sent, payload string) string {
	t.Helper()
	me, err := samvad.NewIdentity("agent://acme.example", "key-1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.api.AddAgent(t.Context(), admin.NewAgent{Name: "acme", Inbox: false, Identities: []admin.NewIdentity{{
		Protocol: "samvad", ID: me.ID(), URL: "https://acme.example", KeyID: me.KID(),
		PublicKey: base64.StdEncoding.EncodeToString(me.Public())}}}); err != nil {
		t.Fatal(err)
	}
	body := []byte(`{"from":"agent://acme.example","to":"agent://weather.example","skill":"do","mode":"sync",` +
		`"nonce":"nonce-12345678","timestamp":"2026-04-11T10:00:00Z","traceId":"trace-12345678",` +
		`"spanId":"span-12345678","payload":` + payload + `}`)
	sig, err := samvad.Sign(me, "POST", signed, body, time.Date(2026, 4, 11, 10, 0, 0, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	h := http.Header{}
	sig.Set(h)
	text := "POST " + sent + " HTTP/1.1\nHost: parley.example\nContent-Type: application/json\n"
	for name := range h {
		text += name + ": " + h.Get(name) + "\n"
	}
	return text + "\n" + string(body)
}

// TestPrefixFaultIsNamed: of a request behind a proxy that adds a prefix the page names the fault, marks the piece of
// the path that was not signed, and keeps the input in its field.
func TestPrefixFaultIsNamed(t *testing.T) {
	b := withAgents(t)
	w := b.entered(b.token("watch", admin.Observe))
	const path = "/agents/weather/agent/message"
	input := signedRequest(t, b, path, "/x"+path, "{\n \"city\": \"Bern\"\n}")
	input = strings.ReplaceAll(input, "\n", "\r\n") // as browsers send a textarea
	status, page := w.explain(input, "2026-04-11 10:00:01")
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, page)
	}
	has(t, page, "SAMVAD 1.2, refused at the signature", "It was signed over "+path+", but sent to /x"+path,
		"What helps:", "public_url", `<span class="x">/x</span>`+path, "← holds without /x", `data-check="failed"`,
		`data-verified="false"`, "1s old", "Content-Digest is that of the body", "judged at 11 Apr 2026 10:00:01 UTC",
		`value="2026-04-11 10:00:01"`, "POST /x"+path+" HTTP/1.1")
	if n := strings.Count(page, `data-check="ok"`); n < 5 {
		t.Errorf("%d checks hold", n)
	}
	_, page = w.explain(strings.Replace(input, "/x"+path, path, 1), "2026-04-11T10:00:01Z")
	has(t, page, "SAMVAD 1.2, proved", "It is proved that agent://acme.example signed", `data-verified="true"`)
	if list, err := b.api.Messages(t.Context(), index.Filter{}); err != nil || len(list.Messages) != 0 {
		t.Errorf("explaining recorded %d messages, %v", len(list.Messages), err)
	}
}

// TestRecordedIsExplained: an id, its beginning and the reference of a refusal lead to an explanation.
func TestRecordedIsExplained(t *testing.T) {
	b := withAgents(t)
	w := b.entered(b.token("ops", admin.Read))
	r := b.ask("museum", `{"city":"Bern"}`)
	ref := b.forge("agent://evil.example")
	for _, name := range []string{r.Reply.ID.String(), r.Reply.ID.String()[:18]} {
		has(t, w.page("/console/workbench?inspect="+name), "closed on Mondays", "parley explain "+r.Reply.ID.String(),
			"/console/conversations/"+r.Reply.ID.String())
	}
	has(t, w.page("/console/workbench?inspect="+ref), "refused at the ", "/console/conversations/"+ref,
		"parley explain "+ref, `data-check="failed"`)
	if _, page := w.explain(" "+ref+"\n", ""); !strings.Contains(page, "parley explain "+ref) {
		t.Error("a pasted reference is not explained")
	}
	if status, page := w.do("GET", "/console/workbench?inspect=zzzzzzzz", nil); status != http.StatusNotFound ||
		!strings.Contains(page, "reference of a refusal") {
		t.Errorf("an unknown reference: %d", status)
	}
	watch := b.entered(b.token("watch", admin.Observe))
	page := watch.page("/console/workbench?inspect=" + r.Reply.ID.String())
	if !strings.Contains(page, "rejected") || strings.Contains(page, "closed on Mondays") {
		t.Error("an observer sees the text of an answer")
	}
}

// TestInspectedTextsOfGuests: what is pasted is text, is cut, and what is too large is refused.
func TestInspectedTextsOfGuests(t *testing.T) {
	b := withAgents(t)
	w := b.entered(b.token("watch", admin.Observe))
	const evil = "</textarea><script>alert(1)</script><img src=x onerror=y>\u202egnp.exe\u0007"
	envelope := func(s string) string {
		body, err := json.Marshal(map[string]any{"from": "agent://" + s, "to": s, "skill": s, "mode": "sync", "nonce": s,
			"timestamp": s, "traceId": s, "spanId": s, "payload": map[string]string{s: s}, s: s})
		if err != nil {
			t.Fatal(err)
		}
		return strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0007`, "\u0007").Replace(string(body))
	}
	for name, input := range map[string]string{"text": evil, "envelope": envelope(evil),
		"escaped": strings.ReplaceAll(envelope(evil), "\u0007", `\u0007`), "bytes": "\xff\xfe" + evil,
		"headers": "POST /agent/message HTTP/1.1\n" + evil + ": x\n\n", "large": envelope(strings.Repeat("<u>", 20_000))} {
		status, page := w.explain(input, evil[:20])
		if status >= 500 {
			t.Errorf("%s: %d", name, status)
		}
		_, now := w.explain(input, "")
		page += now
		for _, bad := range []string{"<script>alert", "<img src=x", "<u>", "\u202e", "\u0007", "</textarea><script"} {
			if strings.Contains(page, bad) {
				t.Errorf("%s: the page has %q", name, bad)
			}
		}
		if len(page) > 2*600_000 {
			t.Errorf("%s: the pages have %d bytes", name, len(page))
		}
	}
	if _, page := w.explain(envelope(strings.Repeat("x", 20_000)), ""); !strings.Contains(page, "up to 64 KiB in all") {
		t.Error("the page does not say that it is cut")
	}
	status, page := w.explain(strings.Repeat("<u>", 1_000_000), "")
	if status != http.StatusRequestEntityTooLarge || strings.Contains(page, "<u>") || len(page) > 600_000 ||
		!strings.Contains(page, "3000000 bytes; at most 1048576 are inspected") {
		t.Errorf("3 MB: %d, a page of %d bytes", status, len(page))
	}
	if status, page = w.explain(`{"a":1}`, "soon"); status != http.StatusBadRequest ||
		!strings.Contains(page, "want a time such as") {
		t.Errorf("a wrong time: %d", status)
	}
}

var hiddenInput = regexp.MustCompile(`<input type="hidden" name="([a-z]+)" value="([^"]*)">`)

// composition is the form that sends, as a page has it.
func (w *browser) composition(page string) url.Values {
	w.t.Helper()
	_, text, ok := strings.Cut(page, `action="/console/workbench/send"`)
	if !ok {
		w.t.Fatal("the page has no form that sends")
	}
	text, _, _ = strings.Cut(text, "</form>")
	form := url.Values{"kind": {"request"}, "wait": {"30"}}
	for _, m := range hiddenInput.FindAllStringSubmatch(text, -1) {
		form.Set(m[1], html.UnescapeString(m[2]))
	}
	return form
}

// compose is the form of the page for a recipient, with more fields.
func (w *browser) compose(to string, pairs ...string) url.Values {
	w.t.Helper()
	form := w.composition(w.page("/console/workbench?" + url.Values{"to": {to}}.Encode()))
	for i := 0; i+1 < len(pairs); i += 2 {
		form.Set(pairs[i], pairs[i+1])
	}
	return form
}

// recorded is the number of recorded messages.
func (b *bench) recorded() int {
	b.t.Helper()
	list, err := b.api.Messages(context.Background(), index.Filter{})
	if err != nil {
		b.t.Fatal(err)
	}
	return len(list.Messages)
}

var sentID = regexp.MustCompile(`data-sent="([^"]+)"`)

func TestSendAndAnswer(t *testing.T) {
	b := withAgents(t)
	w := b.entered(b.token("ops-laptop", admin.Operate))
	form := w.compose("weather", "skill", "do", "content", `{"city":"it's Bern"}`)
	status, page := w.do("POST", "/console/workbench/send", form)
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, page)
	}
	has(t, page, "Answered in ", " by weather", `the answer is <span class="badge session">`,
		"{&#34;celsius&#34;:21}", "see the conversation", "recorded as ", "Send to weather", `<small>1</small>`,
		"the API, proof session", "data-keep", html.EscapeString(
			`parley send --from operator --to weather --skill do '{"city":"it'\''s Bern"}'`))
	if strings.Contains(page, "data-again") {
		t.Error("the first submit counts as a repeat")
	}
	id := sentID.FindStringSubmatch(page)[1]
	m, err := b.api.Message(t.Context(), id, false)
	if err != nil || m.From != "operator" || m.To != "weather" || m.Protocol != "api" || m.Assurance != parley.Session ||
		m.Content.Origin.Peer != "ops-laptop" || string(m.Content.Parts[0].JSON) != `{"city":"it's Bern"}` {
		t.Errorf("recorded: %+v, %v", m, err)
	}
	before := b.recorded()
	if status, page = w.do("POST", "/console/workbench/send", form); status != http.StatusOK ||
		!strings.Contains(page, "nothing new was sent") || sentID.FindStringSubmatch(page)[1] != id {
		t.Errorf("the same form again: %d", status)
	}
	if n := b.recorded(); n != before || !strings.Contains(page, `<small>1</small>`) {
		t.Errorf("the same form again: %d messages, before %d", n, before)
	}
	if again := w.composition(page); again.Get("key") == form.Get("key") {
		t.Error("the form below an answer would send nothing")
	}
}

// TestSentTwiceAtOnce: a form that is submitted again while its answer is awaited sends once. Both get the answer.
func TestSentTwiceAtOnce(t *testing.T) {
	b := withAgents(t)
	called, release := make(chan struct{}, 2), make(chan struct{})
	if err := b.node.Handle(parley.Agent{Name: "baker"}, parley.Skill("do", func(context.Context, *parley.Message,
		json.RawMessage) (string, error) {
		called <- struct{}{}
		<-release
		return "bread", nil
	})); err != nil {
		t.Fatal(err)
	}
	w := b.entered(b.token("ops", admin.Operate))
	form := w.compose("baker", "skill", "do", "content", "{}")
	pages := make(chan string, 2)
	submit := func() {
		page := ""
		defer func() { pages <- page }()
		_, page = w.do("POST", "/console/workbench/send", form)
	}
	go submit()
	<-called
	go submit()
	close(release)
	one, two := <-pages, <-pages
	has(t, one+two, "nothing new was sent")
	a, c := sentID.FindStringSubmatch(one), sentID.FindStringSubmatch(two)
	if a == nil || c == nil || a[1] != c[1] || len(called) != 0 || !strings.Contains(one, "bread") ||
		!strings.Contains(two, "bread") {
		t.Errorf("messages %v and %v, %d more calls", a, c, len(called))
	}
}

// TestSendWithoutWaiting: notices and requests without a wait are only recorded.
func TestSendWithoutWaiting(t *testing.T) {
	b := withAgents(t)
	w := b.entered(b.token("ops", admin.Operate))
	_, page := w.do("POST", "/console/workbench/send", w.compose("sink", "kind", "notice", "content", "mind\r\nthe step"))
	has(t, page, "Recorded; to sink: ", `data-recipient="no_reader"`, "is now: no reader",
		"--kind notice", "There is no answer yet")
	m, err := b.api.Message(t.Context(), sentID.FindStringSubmatch(page)[1], false)
	if err != nil || m.Kind != parley.Notice || *m.Content.Parts[0].Text != "mind\nthe step" {
		t.Errorf("%+v, %v", m, err)
	}
	_, page = w.do("POST", "/console/workbench/send", w.compose("weather", "wait", "0", "skill", "do", "content", "{}"))
	has(t, page, "--no-wait")
	id := sentID.FindStringSubmatch(page)[1]
	for tries := 0; !strings.Contains(page, "Answered in "); tries++ {
		if tries == 1000 {
			t.Fatal("the answer does not come")
		}
		page = w.page("/console/workbench?sent=" + id + "&wait=0") // "look again"
	}
	if _, err := b.api.Pause(t.Context(), "weather", true); err != nil {
		t.Fatal(err)
	}
	_, page = w.do("POST", "/console/workbench/send", w.compose("weather", "skill", "do", "content", "{}"))
	has(t, page, "Recorded; to weather: waiting", ">look again<", `data-recipient="paused"`)
}

// TestNotAnswered: who failed or refused is named, with what helps and a reference.
func TestNotAnswered(t *testing.T) {
	b := withAgents(t)
	if err := b.node.Handle(parley.Agent{Name: "broken"}, parley.Skill("do", func(context.Context, *parley.Message,
		json.RawMessage) (string, error) {
		return "", errors.New("out of flour")
	})); err != nil {
		t.Fatal(err)
	}
	w := b.entered(b.token("ops", admin.Operate))
	send := func(form url.Values) (int, string) { return w.do("POST", "/console/workbench/send", form) }
	_, page := send(w.compose("museum", "skill", "do", "content", "{}"))
	has(t, page, "museum refused: rejected: closed on Mondays", "see the conversation", `class="bad"`)
	_, page = send(w.compose("broken", "skill", "do", "content", "{}"))
	has(t, page, "broken failed: handler_failed")

	form := w.compose("weather", "skill", "fly", "content", `{"a":1}`)
	status, page := send(form)
	if status < 400 {
		t.Errorf("an unknown skill: %d", status)
	}
	has(t, page, "Not sent: unknown_skill", "Reference ", "parley explain ", "{&#34;a&#34;:1}", `value="fly"`,
		"Send to weather", `<small>3</small>`)
	if w.composition(page).Get("key") == form.Get("key") {
		t.Error("the mended form would get the first refusal")
	}
	for name, c := range map[string]struct {
		form url.Values
		want string
	}{
		"unknown agent": {w.compose("nobody"), "unknown_agent"},
		"no recipient":  {w.compose(""), "choose the recipient first"},
		"kind":          {w.compose("weather", "kind", "response"), "want request or notice"},
		"wait":          {w.compose("weather", "wait", "301"), "want 0 to 300 seconds"},
		"no key":        {w.compose("weather", "key", ""), "reload the page"},
		"another agent": {w.compose("weather", "as", "weather"), "may not speak as"},
		"bytes":         {w.compose("weather", "content", "\xff"), "not text in UTF-8"},
		"too large":     {w.compose("weather", "content", strings.Repeat("x", 4<<20+1)), "at most 4194304"},
	} {
		before := b.recorded()
		if status, page := send(c.form); status < 400 || status >= 500 || !strings.Contains(page, c.want) {
			t.Errorf("%s: %d, want %q", name, status, c.want)
		}
		if n := b.recorded(); n > before+1 {
			t.Errorf("%s: %d messages, before %d", name, n, before)
		}
	}
}

// TestSpeakers: the form offers the agents as which the token may speak.
func TestSpeakers(t *testing.T) {
	b := withAgents(t)
	for _, name := range []string{"crew/scout", "crew/cook"} {
		if _, err := b.api.AddAgent(t.Context(), admin.NewAgent{Name: name, Inbox: true}); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		speak []string
		want  string
	}{
		"default":  {nil, `name="as" value="operator"`},
		"one":      {[]string{"crew/cook"}, `name="as" value="crew/cook"`},
		"patterns": {[]string{"crew/*"}, `<option>crew/cook</option><option selected>crew/scout</option></select>`},
	} {
		v, err := b.api.IssueToken(t.Context(), admin.NewToken{Name: name, Role: admin.Operate, Speak: c.speak})
		if err != nil {
			t.Fatal(err)
		}
		w := b.entered(v.Secret)
		page := w.page("/console/workbench?to=weather&as=crew/scout")
		has(t, page, c.want, `<datalist id="skills"><option value="do"></option></datalist>`)
		if name == "patterns" {
			form := w.compose("weather", "as", "crew/scout", "skill", "do", "content", "{}")
			_, page = w.do("POST", "/console/workbench/send", form)
			has(t, page, "Answered in ", "--from crew/scout")
		}
	}
}

// TestViewersSendNothing: the button is disabled, and a form made by hand is refused.
func TestViewersSendNothing(t *testing.T) {
	b := withAgents(t)
	for _, role := range []admin.Role{admin.Observe, admin.Read} {
		w := b.entered(b.token("viewer-"+string(role), role))
		form := w.compose("weather", "skill", "do", "content", "{}")
		has(t, w.page("/console/workbench?to=weather"), `type="submit" disabled>Send to weather`, "needs the role operator")
		status, page := w.do("POST", "/console/workbench/send", form)
		if status != http.StatusForbidden || !strings.Contains(page, "this needs &#34;operate&#34;") {
			t.Errorf("%s: %d", role, status)
		}
	}
	if n := b.recorded(); n != 0 {
		t.Errorf("%d messages", n)
	}
	w := b.entered(b.token("ops", admin.Operate))
	form := w.compose("weather", "skill", "do", "content", "{}")
	form.Set("form", "another")
	if status, _ := w.do("POST", "/console/workbench/send", form); status != http.StatusForbidden || b.recorded() != 0 {
		t.Errorf("a form of another session: %d", status)
	}
}

// TestGetSendsNothing: no address sends, and none brings a content into the form.
func TestGetSendsNothing(t *testing.T) {
	b := withAgents(t)
	w := b.entered(b.token("ops", admin.Operate))
	form := w.compose("weather", "skill", "do", "content", "quincunx")
	page := w.page("/console/workbench?" + form.Encode())
	if strings.Contains(page, "quincunx") || !strings.Contains(page, `name="skill" value="do"`) {
		t.Error("a link brings a content, or brings no skill")
	}
	if status, _ := w.do("GET", "/console/workbench/send?"+form.Encode(), nil); status != http.StatusNotFound {
		t.Errorf("GET of the action: %d", status)
	}
	if n := b.recorded(); n != 0 {
		t.Fatalf("GET sent %d messages", n)
	}
	// The page of a sent message has its content. A message of somebody else leads to its conversation.
	other := b.tell(admin.Send{To: "sink", Text: text("quincunx")})
	page = w.page("/console/workbench?sent=" + other.ID.String())
	if !strings.Contains(page, `data-screen="conversation"`) || strings.Contains(page, "data-sent") {
		t.Error("a link prepares the form with a content of somebody else")
	}
}

// TestHistoryOfSessions: each session has its own history, of at most 50 messages, which ends with it.
func TestHistoryOfSessions(t *testing.T) {
	b := withAgents(t)
	token := b.token("ops", admin.Operate)
	w, other := b.entered(token), b.entered(token)
	form := w.compose("sink", "kind", "notice")
	for i := range 52 {
		form.Set("content", fmt.Sprint("number ", i))
		form.Set("key", fmt.Sprint("key-", i))
		if status, page := w.do("POST", "/console/workbench/send", form); status != http.StatusOK {
			t.Fatalf("%d: %d %s", i, status, page)
		}
	}
	history := func(w *browser) int {
		return strings.Count(w.page("/console/workbench"), `href="/console/workbench?sent=`)
	}
	if n := history(w); n != 50 {
		t.Errorf("a history of %d", n)
	}
	if n := history(other); n != 0 {
		t.Errorf("another session of the same token sees %d", n)
	}
	w.post("/console/leave", url.Values{})
	again := b.entered(token)
	if n := history(again); n != 0 {
		t.Errorf("the history of a session that was left is seen by the next one: %d", n)
	}
}

// TestWiresOfPeers: of a message to an agent on another protocol the page shows what left and what came back.
func TestWiresOfPeers(t *testing.T) {
	b, _ := crossing(t)
	w := b.entered(b.token("ops", admin.Operate))
	for p, name := range map[string]string{"uagents": "uAgents", "a2e": "A2E", "agh": "AGH", "asp": "ASP"} {
		_, page := w.do("POST", "/console/workbench/send", w.compose("peer-"+p, "content", "say <b>quincunx</b>"))
		id := sentID.FindStringSubmatch(page)[1]
		for tries := 0; !strings.Contains(page, "as "+name+", "); tries++ { // the attempt is recorded after the answer
			if tries == 1000 {
				t.Fatalf("%s: the page does not say what left", p)
			}
			page = w.page("/console/workbench?sent=" + id)
		}
		m, err := b.api.Message(t.Context(), id, false)
		if err != nil {
			t.Fatal(err)
		}
		reply, err := b.api.Message(t.Context(), m.Deliveries[0].Reply.String(), true)
		if err != nil {
			t.Fatal(err)
		}
		sent := m.Attempts["peer-"+p][0]
		has(t, page, "Answered in ", " by peer-"+p, strings.ReplaceAll(sent.Digest, "+", "&#43;"),
			`the answer is <span class="badge `+reply.Assurance.String()+`">`, `aria-label="The answer, as it came"`,
			"&lt;b&gt;quincunx&lt;/b&gt;")
		if sent.Status != "" {
			has(t, page, `Came back <small class="dim">`+sent.Status)
		}
		if strings.Contains(page, "<b>quincunx") {
			t.Error("a content is markup")
		}
	}
}
