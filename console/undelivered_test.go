package console_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/journal"
)

// bury records a request with an attempt and the steps that follow it, a millisecond after the last.
func (b *bench) bury(from, to, say string, steps ...journal.Step) parley.ID {
	b.t.Helper()
	b.clock.move(time.Millisecond)
	id, err := parley.NewID(b.clock.now(), rand.Reader)
	if err != nil {
		b.t.Fatal(err)
	}
	m := parley.Message{ID: id, Conversation: id, Kind: parley.Request, From: from, To: to, Skill: "do",
		Parts: []parley.Part{parley.Text(say)}}
	m.Origin.Protocol = "samvad"
	j := b.node.Hub().Journal()
	if _, err := j.Append(b.t.Context(), journal.Entry{Scope: to, Message: &m,
		Open: []journal.Opening{{To: to, Attempt: 1}}}); err != nil {
		b.t.Fatal(err)
	}
	for _, s := range steps {
		s.Message, s.To = id, to
		if _, err := j.Append(b.t.Context(), journal.Entry{Steps: []journal.Step{s}}); err != nil {
			b.t.Fatal(err)
		}
	}
	return id
}

// dies is the step of a delivery that is given up.
func dies(code parley.Code, reason parley.Reason, text string) journal.Step {
	return journal.Step{State: parley.Dead, Error: parley.Fail(code, nil, "%s", text).With(parley.ByNetwork, reason, "")}
}

var (
	untrusted = dies(parley.Unavailable, parley.ConnectionRefused, "connection refused by 192.0.2.7:443")
	unknown   = dies(parley.OutcomeUnknown, parley.HubStops, "the hub was stopped")
)

// indexed waits until the index has every record.
func (b *bench) indexed() {
	b.t.Helper()
	if _, err := b.api.Undelivered(context.Background(), admin.UndeliveredFilter{Show: admin.ShowDropped}); err != nil {
		b.t.Fatal(err)
	}
}

// ledger is a hub with an agent that answers; n messages to it were given up.
func ledger(t *testing.T, n int) *bench {
	t.Helper()
	b := open(t, nil)
	if err := b.node.Handle(parley.Agent{Name: "ledger"}, parley.Skill("do", func(context.Context, *parley.Message,
		json.RawMessage) (string, error) {
		return "posted", nil
	})); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		b.bury("bob", "ledger", fmt.Sprint("invoice ", i), untrusted)
	}
	b.indexed()
	return b
}

var groupTag = regexp.MustCompile(`data-group="([^"]*)" data-code="([^"]*)" data-number="(\d+)" data-tab="([^"]*)"`)

// causes are the groups of a page in short.
func causes(page string) (out []string) {
	for _, m := range groupTag.FindAllStringSubmatch(page, -1) {
		out = append(out, html.UnescapeString(strings.Join(m[1:], " ")))
	}
	return out
}

// dialog gives the fields of the dialog on a page.
func dialog(t *testing.T, page string) url.Values {
	t.Helper()
	_, text, ok := strings.Cut(page, `role="dialog" aria-modal="true" aria-labelledby="askh"`)
	if !ok {
		t.Fatal("the page has no dialog")
	}
	text, _, _ = strings.Cut(text, "</form>")
	out := url.Values{}
	for _, tag := range regexp.MustCompile(`<input[^>]*>`).FindAllString(text, -1) {
		attr := map[string]string{}
		for _, m := range regexp.MustCompile(`([a-z]+)="([^"]*)"`).FindAllStringSubmatch(tag, -1) {
			attr[m[1]] = html.UnescapeString(m[2])
		}
		if attr["type"] != "checkbox" || strings.Contains(tag, " checked") {
			out.Set(attr["name"], attr["value"])
		}
	}
	return out
}

const ofLedger = "to=ledger&code=unavailable&reason=connection_refused"

// audited gives the details of an action in the audit trail, the newest first.
func (b *bench) audited(action string) (out []string) {
	b.t.Helper()
	list, err := b.api.Audit(context.Background(), admin.AuditFilter{Action: action})
	if err != nil {
		b.t.Fatal(err)
	}
	for _, e := range list {
		out = append(out, e.Actor+" via "+e.Via+", "+e.Target+": "+e.Detail+": "+e.Outcome)
	}
	return out
}

func TestUndelivered(t *testing.T) {
	b := ledger(t, 3)
	first := b.bury("bob", "ledger", "invoice 3", untrusted)
	if _, err := b.api.PauseFor(context.Background(), "ledger", "they <move>"); err != nil {
		t.Fatal(err)
	}
	later := journal.Step{State: parley.Waiting, Error: untrusted.Error, Next: b.clock.now().Add(time.Hour)}
	b.bury("eve", "far", "lost", unknown)
	b.bury("bob", "museum", "late", later, journal.Step{State: parley.Delivering, Attempt: 2},
		journal.Step{State: parley.Delivered})
	b.bury("bob", "far", "useless", untrusted, journal.Step{State: parley.Dropped})
	b.bury("bob", "far", "patient", later)
	b.indexed()
	w := b.entered(b.token("ops", admin.Operate))
	for query, want := range map[string][]string{
		"": {"far outcome_unknown 1 dead", "ledger unavailable 4 dead",
			"museum unavailable 1 recovered"},
		"show=waiting":           {"far unavailable 1 waiting"},
		"show=recovered":         {"museum unavailable 1 recovered"},
		"show=dropped":           {"far unavailable 1 dropped"},
		"from=eve":               {"far outcome_unknown 1 dead"},
		"to=ledger":              {"ledger unavailable 4 dead"},
		"code=outcome_unknown":   {"far outcome_unknown 1 dead"},
		"reason=hub_stops":       {"far outcome_unknown 1 dead"},
		"text=REFUSED+by&since=": {"ledger unavailable 4 dead"},
		"since=1h&to=ledger":     {"ledger unavailable 4 dead"},
	} {
		if got := causes(w.page("/console/undelivered?" + query)); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	page := w.page("/console/undelivered?to=ledger")
	has(t, page, `aria-current="true">Dead <span>4</span>`, "What helps", "<code>parley doctor ledger</code>",
		"connection refused by 192.0.2.7:443", "invoice 3", "invoice 1", ">1 more</a>",
		"The recipient now: paused by ", ": they &lt;move&gt;<",
		`href="?code=unavailable&amp;reason=connection_refused&amp;to=ledger&amp;view=list"`,
		`href="?retry=1&amp;code=unavailable&amp;reason=connection_refused&amp;to=ledger" hx-boost="false" data-key-r>`+
			"Retry 4…")
	if strings.Contains(page, "invoice 0") {
		t.Error("a group shows more than its newest three")
	}
	page = w.page("/console/undelivered?m=" + first.String())
	if !strings.Contains(page, `to=ledger" hx-boost="false" data-key-r`) || strings.Count(page, "data-key-r") != 1 {
		t.Error("the key r is not of the group of the chosen message")
	}
	page = w.page("/console/undelivered")
	if !strings.Contains(page, `to=far" hx-boost="false" data-key-r`) || strings.Count(page, "data-key-r") != 1 {
		t.Error("the key r is not of the first group")
	}
	b.clock.move(2 * time.Second) // a status is kept for a second
	has(t, w.page("/console/"), `<a href="/console/undelivered" class="alarm" data-fact="dead"`)
	has(t, page, "5 dead letters have 2 causes", `data-key="u">Undelivered`)
	for _, query := range []string{"show=lost", "since=yesterday", "text=" + strings.Repeat("x", 2000), "retry=1",
		"drop=1"} {
		if status, body := w.do("GET", "/console/undelivered?"+query, nil); status != http.StatusBadRequest ||
			!strings.Contains(body, `data-screen="fault"`) {
			t.Errorf("%.20s: %d", query, status)
		}
	}
}

// TestAttemptsOfTheChosen: each attempt with its time, address, result, duration and what followed.
func TestAttemptsOfTheChosen(t *testing.T) {
	b := ledger(t, 3)
	begun := b.clock.now()
	exchange := func(answer string) *parley.Exchange {
		return &parley.Exchange{Started: begun, Took: 18 * time.Millisecond, Address: "192.0.2.7:443", Answer: []byte(answer)}
	}
	fails := untrusted
	fails.Exchange = exchange("<b>no such key</b>")
	old := b.bury("bob", "ledger", "two attempts", journal.Step{State: parley.Waiting, Error: untrusted.Error,
		Next: begun.Add(time.Hour), Exchange: exchange("")}, journal.Step{State: parley.Delivering, Attempt: 2}, fails)
	b.indexed()
	w := b.entered(b.token("ops", admin.Read))
	page := w.page("/console/undelivered?m=" + old.String())
	if n := strings.Count(page, "data-attempt="); n != 2 || strings.Count(page, `aria-selected="true"`) != 1 {
		t.Errorf("%d attempts", n)
	}
	has(t, page, "192.0.2.7:443</td>", "18 ms", "paused ", "given up", "&lt;b&gt;no such key&lt;/b&gt;",
		"/console/conversations/"+old.String()+"?m="+old.String(), "parley dead show "+old.String())
	for range 3 { // newer ones take its place
		b.bury("bob", "ledger", "newer", untrusted)
	}
	if page = w.page("/console/undelivered?m=" + old.String()[:13]); strings.Count(page, "data-attempt=") != 2 {
		t.Error("the attempts of a message that no group shows are missing")
	}
	if page = w.page("/console/undelivered?view=list&m=" + old.String()); strings.Count(page, "data-attempt=") != 2 {
		t.Error("the list lacks the attempts")
	}
	for _, m := range []string{"0197", "zzzzzzzzz", old.String() + "/museum"} {
		if page = w.page("/console/undelivered?m=" + m); strings.Contains(page, "data-attempt=") {
			t.Errorf("%s is chosen", m)
		}
	}
}

func TestDeadList(t *testing.T) {
	b := ledger(t, 4)
	far := b.bury("eve", "far", "lost", unknown)
	w := b.entered(b.token("ops", admin.Read))
	if got := rows(w.page("/console/undelivered?view=list")); len(got) != 5 || got[4] != far.String() {
		t.Errorf("rows %q", got)
	}
	for query, want := range map[string]int{"to=ledger&code=unavailable": 4, "from=eve": 1, "text=stopped": 1,
		"reason=hub_stops": 1, "to=far&text=ledger": 0, "since=1h": 5} {
		if got := rows(w.page("/console/undelivered?view=list&" + query)); len(got) != want {
			t.Errorf("%s: %d rows, want %d", query, len(got), want)
		}
	}
	has(t, w.page("/console/undelivered?view=list"), "outcome_unknown", ">By cause</a>", `data-total>5<`)
}

// TestDeadListHasPages: each has the next 100, also if the one before it is not the list's any more.
func TestDeadListHasPages(t *testing.T) {
	b := ledger(t, 203)
	w := b.entered(b.token("ops", admin.Operate))
	page := w.page("/console/undelivered?view=list")
	if strings.Contains(page, `id="first"`) {
		t.Error("the first page leads to itself")
	}
	first := rows(page)
	var all []string
	for next := true; next; {
		has(t, page, `data-total>203<`)
		all = append(all, rows(page)...)
		var link string
		if _, link, next = strings.Cut(page, `id="next" href="`); next {
			link, _, _ = strings.Cut(link, `"`)
			page = w.page("/console/undelivered" + html.UnescapeString(link))
			has(t, page, `id="first" href="?view=list"`)
		}
	}
	slices.Sort(all)
	if n := len(slices.Compact(all)); len(first) != 100 || n != 203 {
		t.Errorf("the first page has %d rows, all have %d", len(first), n)
	}
	_, link, _ := strings.Cut(w.page("/console/undelivered?view=list"), `id="next" href="`)
	link, _, _ = strings.Cut(link, `"`)
	second := rows(w.page("/console/undelivered" + html.UnescapeString(link)))
	last, err := parley.ParseID(first[99])
	if err == nil {
		err = b.node.Hub().Drop(t.Context(), last, "ledger")
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := rows(w.page("/console/undelivered" + html.UnescapeString(link))); !slices.Equal(got, second) {
		t.Errorf("the second page changed to %q", got)
	}
	if got := rows(w.page("/console/undelivered" + html.UnescapeString(link) + "&m=" + second[0])); len(got) != 100 {
		t.Errorf("with a chosen row it has %d", len(got))
	}
	if status, _ := w.do("GET", "/console/undelivered?view=list&cursor=x", nil); status != http.StatusBadRequest {
		t.Errorf("a cursor that is none: %d", status)
	}
}

func TestNothingUndelivered(t *testing.T) {
	b := open(t, nil)
	w := b.entered(b.token("ops", admin.Read))
	has(t, w.page("/console/undelivered"), "Nothing is undelivered", "0 dead letters")
	has(t, w.page("/console/undelivered?show=waiting"), "Nothing waits")
	b.bury("bob", "ledger", "a", untrusted)
	has(t, w.page("/console/undelivered?to=ledger&from=eve"), "No dead letter matches", "1 are recorded",
		`href="?to=ledger" data-without="from">Without “from: eve”: 1<`,
		`href="?from=eve" data-without="to">Without “to: ledger”: 0<`)
}

// TestRetry: the dialog counts, the oldest goes first, the others follow, and all are under recovered; the audit list
// has both orders.
func TestRetry(t *testing.T) {
	b := ledger(t, 3)
	w := b.entered(b.token("ops", admin.Operate))
	page := w.page("/console/undelivered?retry=1&" + ofLedger)
	has(t, page, "Retry 3 messages to ledger?", "3 match. Each keeps its id, is signed anew",
		"A message to ledger was given up for the same reason just now. Retry the oldest one first?",
		"parley dead retry --to ledger --code unavailable --cause connection_refused --expect 3<", `id="retry"`,
		`action="/console/undelivered/retry#retry"`)
	w.http.CheckRedirect = func(r *http.Request, _ []*http.Request) error {
		if r.URL.Fragment != "retry" && r.URL.Fragment != "done" {
			t.Errorf("%s leads to no dialog, and to no result", r.URL)
		}
		return nil
	}
	w.page("/console/undelivered?retry=1&" + ofLedger)
	form := dialog(t, page)
	if form.Get("since") == "" {
		t.Error("the dialog does not say since when")
	}
	form.Set("why", "key enrolled")
	form.Set("one", "1")
	if status, page := w.do("POST", "/console/undelivered/retry", form); status != 200 ||
		!strings.Contains(page, "1 message is queued again") {
		t.Fatalf("the oldest: %d %s", status, page)
	}
	form.Del("one")
	status, page := w.do("POST", "/console/undelivered/retry", form)
	if status != http.StatusConflict {
		t.Fatalf("a count that differs: %d %s", status, page)
	}
	has(t, page, "2 dead letters match now, not 3: nothing was done", "Retry 2 messages to ledger?", "--expect 2 ",
		`value="key enrolled"`, "--reason &#39;key enrolled&#39;")
	if len(b.audited("dead.retry")) != 1 {
		t.Error("a count that differs was not held against it")
	}
	if status, page = w.do("POST", "/console/undelivered/retry", dialog(t, page)); status != 200 ||
		!strings.Contains(page, "2 messages are queued again") {
		t.Fatalf("the others: %d %s", status, page)
	}
	for tries := 0; !slices.Contains(causes(page), "ledger unavailable 3 recovered"); tries++ {
		if tries == 1000 {
			t.Fatalf("not recovered: %q", causes(page))
		}
		page = w.page("/console/undelivered")
	}
	got := b.audited("dead.retry")
	if len(got) != 2 || !strings.HasPrefix(got[1], "ops via console, 1 dead letters") ||
		!strings.Contains(got[1], "the oldest 1; key enrolled: done") || !strings.Contains(got[0], ", 2 dead letters: ") {
		t.Errorf("audit: %q", got)
	}
}

// TestRetryAnsweredWithAFailure: a dead letter that reaches its recipient has recovered, whatever the recipient
// answers. The page says how many it answered with a failure.
func TestRetryAnsweredWithAFailure(t *testing.T) {
	b := open(t, nil)
	if err := b.node.Handle(parley.Agent{Name: "ledger"}, parley.RawSkill("do", func(_ context.Context, m *parley.Message,
		_ parley.Replier) error {
		if strings.Contains(m.Text(), "odd") {
			return parley.Refuse(parley.Rejected, "this is no invoice")
		}
		return nil
	})); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"invoice 1", "odd 2", "invoice 3"} {
		b.bury("bob", "ledger", text, untrusted)
	}
	b.indexed()
	if _, err := b.api.RetryAll(t.Context(), admin.Bulk{Filter: admin.DeadFilter{To: "ledger"}}); err != nil {
		t.Fatal(err)
	}
	w := b.entered(b.token("ops", admin.Operate))
	page := ""
	for tries := 0; !slices.Contains(causes(page), "ledger unavailable 3 recovered") ||
		!strings.Contains(page, "Reached again, after 2 attempts at most. 1 of them was answered with a failure."); tries++ {
		if tries == 1000 {
			t.Fatalf("it is not said: %q, %s", causes(page), page)
		}
		page = w.page("/console/undelivered?show=recovered")
	}
}

func TestRetryOfOutcomeUnknownAsks(t *testing.T) {
	b := ledger(t, 0)
	b.bury("bob", "ledger", "a", unknown)
	b.bury("bob", "ledger", "b", unknown)
	w := b.entered(b.token("ops", admin.Operate))
	page := w.page("/console/undelivered?retry=1&to=ledger&code=outcome_unknown")
	has(t, page, "ledger may have had 2 of them already", " --unknown", "Ask there first")
	form := dialog(t, page)
	for _, one := range []string{"", "1"} {
		form.Set("one", one)
		status, page := w.do("POST", "/console/undelivered/retry", form)
		if status != http.StatusConflict || !strings.Contains(page, "outcome_unknown: the recipient may have had") {
			t.Fatalf("one=%s without consent: %d", one, status)
		}
	}
	form.Del("one")
	form.Set("unknown", "1")
	if status, page := w.do("POST", "/console/undelivered/retry", form); status != 200 ||
		!strings.Contains(page, "2 messages are queued again") {
		t.Fatalf("with consent: %d", status)
	}
}

// TestNoActionOverCauses: nothing is retried or dropped over several causes, also not by a form made by hand.
func TestNoActionOverCauses(t *testing.T) {
	b := ledger(t, 2)
	b.bury("bob", "ledger", "other", dies(parley.Unavailable, parley.NoAnswer, "too late"))
	w := b.entered(b.token("ops", admin.Operate))
	for _, action := range []string{"retry", "drop"} {
		page := w.page("/console/undelivered?" + action + "=1&to=ledger")
		has(t, page, "These have several causes", "2 to ledger: unavailable, connection_refused")
		form := dialog(t, page)
		form.Set("typed", "3")
		form.Set("why", "all of it")
		if status, page := w.do("POST", "/console/undelivered/"+action, form); status != http.StatusConflict ||
			!strings.Contains(page, "these dead letters have 2 causes; nothing was done") {
			t.Errorf("%s: %d", action, status)
		}
	}
	if got := append(b.audited("dead.retry"), b.audited("dead.drop")...); len(got) > 0 {
		t.Errorf("done: %q", got)
	}
}

// TestCauseWithoutAReason: its dialog means its dead letters only, also if others with a reason have the same code.
func TestCauseWithoutAReason(t *testing.T) {
	b := ledger(t, 2)
	b.bury("bob", "ledger", "other", dies(parley.Unavailable, "", "it says no more"))
	w := b.entered(b.token("ops", admin.Operate))
	page := w.page("/console/undelivered?to=ledger")
	_, group, ok := strings.Cut(page, `it says no more`)
	link := regexp.MustCompile(`href="(\?drop=1&amp;[^"]*)"`).FindStringSubmatch(group)
	if !ok || link == nil {
		t.Fatal("there is no group without a reason")
	}
	page = w.page("/console/undelivered" + html.UnescapeString(link[1]))
	has(t, page, "Drop 1 message to ledger?", "--cause none")
	form := dialog(t, page)
	form.Set("typed", "1")
	form.Set("why", "nobody needs it")
	if status, _ := w.do("POST", "/console/undelivered/drop", form); status != http.StatusOK {
		t.Errorf("drop: %d", status)
	}
	if list, err := b.api.Dead(t.Context(), admin.DeadFilter{To: "ledger"}); err != nil || len(list) != 2 ||
		list[0].Reason.Reason == "" || list[1].Reason.Reason == "" {
		t.Errorf("left: %+v, %v", list, err)
	}
}

func TestRetryDialogKeepsWhatWasTyped(t *testing.T) {
	b := ledger(t, 2)
	w := b.entered(b.token("ops", admin.Operate))
	form := dialog(t, w.page("/console/undelivered?retry=1&"+ofLedger))
	for field, c := range map[string]struct{ value, want string }{
		"rate":   {"NaN", "want a number such as 5"},
		"since":  {"yesterday", "want a time such as 2026-11-20 15:04"},
		"why":    {strings.Repeat("x", 600), "at most 512 bytes"},
		"expect": {"0", "the form has no count"},
	} {
		v := url.Values{}
		for k := range form {
			v.Set(k, form.Get(k))
		}
		v.Set(field, c.value)
		status, page := w.do("POST", "/console/undelivered/retry", v)
		if status < 400 || status >= 500 || !strings.Contains(page, c.want) {
			t.Errorf("%s: %d", field, status)
			continue
		}
		if again := dialog(t, page); field != "expect" && again.Get(field) != c.value || again.Get("expect") != "2" {
			t.Errorf("%s: %q", field, again)
		}
	}
	if got := b.audited("dead.retry"); len(got) > 0 {
		t.Errorf("done: %q", got)
	}
	// The page of a form is at the address of the form; its links lead to the screen.
	has(t, w.page("/console/undelivered/retry?show=dropped"), "Nothing was dropped today")
}

func TestPacedRetry(t *testing.T) {
	b := ledger(t, 3)
	w := b.entered(b.token("ops", admin.Operate))
	form := dialog(t, w.page("/console/undelivered?retry=1&"+ofLedger))
	form.Set("rate", "0.01")
	status, page := w.do("POST", "/console/undelivered/retry", form)
	if status != 200 {
		t.Fatalf("%d %s", status, page)
	}
	has(t, page, `data-outcome="running"`, "retry of 3 messages to ledger, at most 0.01 a second", "of 3 tried",
		`hx-trigger="every 2s"`, "parley dead jobs --stop 1")
	stop := url.Values{"form": {form.Get("form")}, "job": {"1"}}
	watch := b.entered(b.token("watch", admin.Read))
	if page := watch.page("/console/undelivered"); strings.Contains(page, `action="/console/undelivered/stop"`) {
		t.Error("a viewer may stop it")
	}
	if status, page = w.do("POST", "/console/undelivered/stop", stop); status != 200 {
		t.Fatalf("%d %s", status, page)
	}
	for tries := 0; !strings.Contains(page, "stopped by ops"); tries++ {
		if tries == 1000 {
			t.Fatal("it does not stop")
		}
		page = w.page("/console/undelivered")
	}
	if strings.Contains(page, "hx-trigger") {
		t.Error("a page looks again for a job that has ended")
	}
	b.clock.move(59 * time.Minute)
	has(t, w.page("/console/undelivered"), "stopped by ops")
	b.clock.move(2 * time.Minute)
	if page = w.page("/console/undelivered"); strings.Contains(page, "stopped by ops") {
		t.Error("it is shown for more than an hour")
	}
}

// TestDropAsks for the reason and the number.
func TestDropAsks(t *testing.T) {
	b := ledger(t, 3)
	w := b.entered(b.token("ops", admin.Operate))
	page := w.page("/console/undelivered?drop=1&" + ofLedger)
	has(t, page, "Drop 3 messages to ledger?", "They will not be tried again. Their content stays in the record.",
		"This cannot be undone.", "parley dead drop --to ledger --code unavailable --cause connection_refused --expect 3<")
	form := dialog(t, page)
	for _, c := range []struct{ why, typed, want string }{
		{"", "3", "a reason is needed"}, {"  ", "3", "a reason is needed"}, {"old", "", "the number is 3"},
		{"old", "2", "the number is 3"}, {"old", "three", "the number is 3"},
	} {
		form.Set("why", c.why)
		form.Set("typed", c.typed)
		if status, page := w.do("POST", "/console/undelivered/drop", form); status != http.StatusBadRequest ||
			!strings.Contains(page, c.want) {
			t.Errorf("%q %q: %d", c.why, c.typed, status)
		}
	}
	form.Set("why", "old")
	form.Set("typed", "3")
	b.bury("bob", "ledger", "one more", untrusted)
	form.Set("since", "")
	if status, page := w.do("POST", "/console/undelivered/drop", form); status != http.StatusConflict ||
		!strings.Contains(page, "Drop 4 messages") {
		t.Errorf("one more meanwhile: %d", status)
	}
	form.Set("expect", "4")
	form.Set("typed", "4")
	if status, page := w.do("POST", "/console/undelivered/drop", form); status != 200 ||
		!strings.Contains(page, "4 messages are dropped") || len(causes(page)) > 0 {
		t.Errorf("%d %q", status, causes(page))
	}
	if got := b.audited("dead.drop"); len(got) != 1 || !strings.HasSuffix(got[0], "; old: done") {
		t.Errorf("audit: %q", got)
	}
}

func TestViewersSeeWhatIsUndelivered(t *testing.T) {
	b := ledger(t, 3)
	for role, hidden := range map[admin.Role]bool{admin.Read: false, admin.Observe: true} {
		w := b.entered(b.token("watch-"+string(role), role))
		page := w.page("/console/undelivered")
		has(t, page, "needs the role operator", "disabled", "Retry 3…")
		if strings.Contains(page, "?retry=1") || strings.Contains(page, "data-key-r") {
			t.Errorf("%s has a way to the dialog", role)
		}
		if hidden != strings.Contains(page, "content hidden") || hidden == strings.Contains(page, "invoice") ||
			hidden == strings.Contains(page, "192.0.2.7") {
			t.Errorf("%s sees the content, or not", role)
		}
		form := url.Values{"form": {formToken.FindStringSubmatch(page)[1]}, "to": {"ledger"}, "code": {"unavailable"},
			"reason": {"connection_refused"}, "expect": {"3"}, "typed": {"3"}, "why": {"by hand"}, "job": {"1"}}
		for _, action := range []string{"retry", "drop", "stop"} {
			if status, body := w.do("POST", "/console/undelivered/"+action, form); status != http.StatusForbidden ||
				!strings.Contains(body, `data-screen="fault"`) {
				t.Errorf("%s, %s by hand: %d", role, action, status)
			}
		}
		if status, _ := w.do("GET", "/console/undelivered?retry=1&"+ofLedger, nil); status != http.StatusForbidden {
			t.Errorf("%s sees the dialog: %d", role, status)
		}
	}
	w := b.entered(b.token("ops", admin.Operate))
	form := dialog(t, w.page("/console/undelivered?retry=1&"+ofLedger))
	form.Set("form", strings.Repeat("A", len(form.Get("form"))))
	for _, action := range []string{"retry", "drop", "stop"} {
		if status, _ := w.do("POST", "/console/undelivered/"+action, form); status != http.StatusForbidden {
			t.Errorf("%s with the token of another session: %d", action, status)
		}
	}
	if list, err := b.api.Dead(context.Background(), admin.DeadFilter{}); err != nil || len(list) != 3 {
		t.Errorf("%d dead letters, %v", len(list), err)
	}
}

// TestTextsOfGuestsInUndelivered: nothing that a guest or a peer writes is markup, or runs in a shell.
func TestTextsOfGuestsInUndelivered(t *testing.T) {
	b := open(t, nil)
	const evil = "<script>alert(1)</script>\u202egnp.exe\u0007'; rm -rf"
	id := b.bury(evil, evil, evil+strings.Repeat("<u>", 100_000), dies("<b>code</b>", "<b>why</b>", evil))
	b.indexed()
	w := b.entered(b.token("ops", admin.Operate))
	of := url.Values{"to": {evil}, "code": {"<b>code</b>"}, "reason": {"<b>why</b>"}}
	for _, query := range []string{"", "m=" + id.String(), "view=list&m=" + id.String(), "retry=1&" + of.Encode(),
		"drop=1&" + of.Encode(), url.Values{"text": {evil}, "from": {evil}}.Encode(), "retried=" + url.QueryEscape(evil)} {
		page := w.page("/console/undelivered?" + query)
		for _, bad := range []string{"<script>alert", "<u>", "<b>code", "<b>why", "\u202e", "\u0007"} {
			if strings.Contains(page, bad) {
				t.Errorf("%.40s has %q", query, bad)
			}
		}
		if len(page) > 200_000 {
			t.Errorf("%.40s has %d bytes", query, len(page))
		}
	}
	page := html.UnescapeString(w.page("/console/undelivered?retry=1&" + of.Encode()))
	has(t, page, `--to $'<script>alert(1)</script>\xe2\x80\xaegnp.exe\x07\'; rm -rf' --code '<b>code</b>'`)
}
