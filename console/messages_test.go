package console_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
)

// said is what [TestFilters] looks for: names of rows, by their key.
type said map[string]string

func (s said) names(keys []string) string {
	var out []string
	for _, k := range keys {
		out = append(out, s[k])
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func text(s string) *string { return &s }

// talk makes one message or more of each sort.
func talk(b *bench) said {
	s := said{}
	r := b.ask("weather", `{"city":"Bern"}`)
	s[r.ID.String()], s[r.Reply.ID.String()] = "question", "answer"
	r = b.ask("museum", `{"city":"Bern","day":"Monday"}`)
	s[r.ID.String()], s[r.Reply.ID.String()] = "wish", "failure"
	s[b.tell(admin.Send{To: "sink", Text: text("mind the step")}).ID.String()] = "notice"
	s[b.forge("agent://evil.example")] = "forged"
	return s
}

func TestFilters(t *testing.T) {
	b := withAgents(t)
	w := b.entered(b.token("ops", admin.Read))
	s := talk(b)
	for query, want := range map[string]string{
		"":                                 "answer failure forged notice question wish",
		"show=failed":                      "failure forged",
		"show=refused":                     "forged",
		"show=slow":                        "",
		"text=Monday":                      "wish",
		"text=step":                        "notice",
		"agent=museum":                     "failure wish",
		"from=museum":                      "failure",
		"to=museum":                        "wish",
		"protocol=api":                     "notice question wish",
		"protocol=samvad":                  "forged",
		"proof=refused":                    "forged",
		"proof=signed":                     "",
		"kind=notice":                      "notice",
		"kind=error":                       "failure",
		"state=answered":                   "question wish",
		"since=1h":                         "answer failure forged notice question wish",
		"until=1h":                         "",
		"agent=museum&kind=request":        "wish",
		"agent=museum&kind=request&text=x": "",
		"agent=weather&protocol=api&kind=request&proof=session": "question",
		"show=failed&agent=museum&kind=error":                   "failure",
		"show=failed&agent=museum&since=1h":                     "failure",
		"show=&agent=&text=&kind=notice":                        "notice", // as forms without scripts send it
	} {
		page := w.page("/console/?" + query)
		if got := s.names(rows(page)); got != want {
			t.Errorf("%s: rows %q, want %q", query, got, want)
		}
		if again := w.page("/console/?" + query); !slices.Equal(rows(again), rows(page)) {
			t.Errorf("%s: a reload shows other rows", query)
		}
	}
	for _, query := range []string{"show=everything", "kind=letter", "since=yesterday", "proof=sworn", "slow=very",
		"text=" + strings.Repeat("x", 2000), "before=!"} {
		if status, body := w.do("GET", "/console/?"+query, nil); status != http.StatusBadRequest ||
			!strings.Contains(body, `data-screen="fault"`) {
			t.Errorf("%.40s: %d", query, status)
		}
	}
}

// TestFiltersAreOnThePage: each filter that is set can be taken away, and each menu keeps the others.
func TestFiltersAreOnThePage(t *testing.T) {
	b := withAgents(t)
	w := b.entered(b.token("ops", admin.Read))
	talk(b)
	page := w.page("/console/?agent=museum&kind=request&since=24h&text=Bern&show=failed")
	for _, want := range []string{
		`last 24 hours<a href="?agent=museum&amp;kind=request&amp;show=failed&amp;text=Bern"`,
		`agent: museum<a href="?kind=request&amp;show=failed&amp;since=24h&amp;text=Bern"`,
		`href="?agent=museum&amp;kind=request&amp;proof=signed&amp;show=failed&amp;since=24h&amp;text=Bern"`,
		`id="show-failed" href="?agent=museum&amp;kind=request&amp;show=failed&amp;since=24h&amp;text=Bern" aria-current`,
		`id="show-all" href="?agent=museum&amp;kind=request&amp;since=24h&amp;text=Bern" data-key-f`,
		`<input type="hidden" name="agent" value="museum">`, `name="text" type="search" value="Bern"`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
}

func TestNothingMatches(t *testing.T) {
	b := withAgents(t)
	w := b.entered(b.token("ops", admin.Read))
	if page := w.page("/console/"); !strings.Contains(page, "Nothing was said here yet") {
		t.Error("a new hub does not say so")
	}
	s := talk(b)
	page := w.page("/console/?agent=museum&kind=notice")
	for _, want := range []string{"No message matches", "6 are recorded",
		`href="?kind=notice" data-without="agent">Without “agent: museum”: 1<`,
		`href="?agent=museum" data-without="kind">Without “kind: notice”: 2<`} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if got := s.names(rows(w.page("/console/?agent=museum"))); got != "failure wish" {
		t.Errorf("without the filter: %q", got)
	}
}

// TestPages: pages by cursor have each message once, also while new ones arrive.
func TestPages(t *testing.T) {
	b := withAgents(t)
	w := b.entered(b.token("ops", admin.Read))
	want := map[string]bool{}
	for i := range 230 {
		want[b.tell(admin.Send{To: "sink", Text: text(fmt.Sprint("number ", i))}).ID.String()] = true
	}
	path, seen := "/console/", map[string]bool{}
	for n := range 4 {
		page := w.page(path)
		for _, key := range rows(page) {
			if seen[key] {
				t.Errorf("%s is on two pages", key)
			}
			if want[key] {
				seen[key] = true
			}
		}
		if n > 0 && !strings.Contains(page, `id="newest" href="?"`) {
			t.Errorf("page %d has no way to the newest", n)
		}
		_, link, ok := strings.Cut(page, `id="older" href="`)
		if !ok {
			break
		}
		link, _, _ = strings.Cut(link, `"`)
		path = "/console/" + strings.ReplaceAll(link, "&amp;", "&")
		b.tell(admin.Send{To: "sink", Text: text("a new one")})
	}
	if len(seen) != len(want) {
		t.Errorf("the pages have %d of %d messages", len(seen), len(want))
	}
	if page := w.page("/console/?before=zzzzzzzz&kind=cancel"); !strings.Contains(page, "Nothing is older") {
		t.Error("a page behind the last says nothing")
	}
}

func TestRows(t *testing.T) {
	b := withAgents(t)
	release := make(chan struct{})
	if err := b.node.Handle(parley.Agent{Name: "builder"}, parley.Skill("do", func(ctx context.Context, _ *parley.Message,
		_ json.RawMessage) (string, error) {
		for i := range 14 {
			if err := parley.Progress(ctx, fmt.Sprint(i, " percent")); err != nil {
				return "", err
			}
		}
		<-release
		return "built", nil
	})); err != nil {
		t.Fatal(err)
	}
	w := b.entered(b.token("ops", admin.Read))
	s := talk(b)
	asked := b.tell(admin.Send{To: "builder", Kind: parley.Request, Skill: "do", JSON: json.RawMessage(`"wall"`)})
	page := w.page("/console/?agent=builder&kind=event")
	for tries := 0; !strings.Contains(page, "×14"); tries++ {
		if tries == 1000 {
			t.Fatalf("14 events are not folded: %v", rows(page))
		}
		page = w.page("/console/?agent=builder&kind=event")
	}
	if got := rows(page); len(got) != 1 || !strings.Contains(row(t, page, got[0]), "13 percent") {
		t.Errorf("folded events: %v", got)
	}
	b.clock.move(5 * time.Second)
	close(release)
	for tries := 0; !strings.Contains(page, `data-state="answered"`); tries++ {
		if tries == 1000 {
			t.Fatal("the request is not answered")
		}
		page = w.page("/console/?agent=builder&kind=request")
	}
	if got := row(t, page, asked.ID.String()); !strings.Contains(got, `num slow">5.0 s<`) {
		t.Errorf("an answer after 5 s: %s", got)
	}
	page = w.page("/console/")
	for key, want := range map[string][]string{
		"question": {`data-state="answered"`, `data-proof="session"`, "request <span class=\"sk\">do<", ">1<",
			"{&#34;city&#34;:&#34;Bern&#34;}", "/console/conversations/", `>API`},
		"failure": {`class="isbad"`, `data-state="failed"`, "rejected", "closed on Mondays"},
		"forged": {`class="isbad"`, `data-state="at `, `data-proof="refused"`, "agent://evil.example", `<span class="q"`,
			" from 127.0.0.1"},
	} {
		for k, name := range s {
			if name != key {
				continue
			}
			for _, part := range want {
				if got := row(t, page, k); !strings.Contains(got, part) {
					t.Errorf("%s lacks %q: %s", name, part, got)
				}
			}
		}
	}
	found := w.page("/console/?text=Monday")
	if !strings.Contains(found, "<mark>Monday</mark>") {
		t.Error("what was found is not marked")
	}
}

// TestRefusalIsExplained: two clicks lead to the reason and to what helps.
func TestRefusalIsExplained(t *testing.T) {
	b := withAgents(t)
	w := b.entered(b.token("ops", admin.Read))
	ref := b.forge("agent://evil.example")
	page := w.page("/console/?show=refused")
	_, link, _ := strings.Cut(row(t, page, ref), `class="ft" href="`)
	link, _, _ = strings.Cut(link, `"`)
	page = w.page("/console/" + strings.ReplaceAll(link, "&amp;", "&"))
	r, err := b.api.Refusal(context.Background(), ref)
	if err != nil {
		t.Fatal(err)
	}
	plain := strings.NewReplacer("<code>", "`", "</code>", "`", "&#39;", "'", "&#34;", `"`).Replace(page)
	for _, want := range []string{`data-explain="` + ref, r.Advice, r.Cause, "a claim, not proved",
		"parley explain " + ref} {
		if want == "" || !strings.Contains(plain, want) {
			t.Errorf("the explanation lacks %q", want)
		}
	}
	if page = w.page("/console/?kind=notice&m=" + ref); !strings.Contains(page, `data-explain="`+ref) {
		t.Error("a refusal that the list does not have is not explained")
	}
}

// TestTextsOfGuests: nothing that a guest writes is markup, or changes the look of what stands beside it.
func TestTextsOfGuests(t *testing.T) {
	b := withAgents(t)
	w := b.entered(b.token("ops", admin.Read))
	const evil = "<script>alert(1)</script><img src=x onerror=y>\u202egnp.exe\u0007\r\ndata: x"
	b.tell(admin.Send{To: "sink", Text: text(evil)})
	b.tell(admin.Send{To: "sink", Act: "<b>act</b>", Text: text(strings.Repeat("<u>", 300_000))})
	b.forge("agent://evil.example/<script>\u202e\r\n")
	b.forge("agent://" + strings.Repeat("x", 900_000))
	for _, path := range []string{"/console/", "/console/conversations",
		"/console/?" + url.Values{"text": {evil}}.Encode(),
		"/console/?" + url.Values{"agent": {evil}, "m": {evil}}.Encode()} {
		page := w.page(path)
		for _, bad := range []string{"<script>alert", "<img src=x", "<u>", "<b>act", "\u202e", "\u0007"} {
			if strings.Contains(page, bad) {
				t.Errorf("%s has %q", path, bad)
			}
		}
		if len(page) > 300_000 {
			t.Errorf("%s has %d bytes", path, len(page))
		}
	}
}

// TestObserversSeeNoContent: rows stay, contents and reasons do not.
func TestObserversSeeNoContent(t *testing.T) {
	b := withAgents(t)
	s := talk(b)
	w := b.entered(b.token("watch", admin.Observe))
	page := w.page("/console/")
	if got := s.names(rows(page)); got != "answer failure forged notice question wish" {
		t.Errorf("rows %q", got)
	}
	if !strings.Contains(page, "content hidden") || !strings.Contains(page, "watch · viewer") {
		t.Error("the page does not say that content is hidden")
	}
	for _, path := range []string{"/console/", "/console/conversations", "/console/?text=Monday",
		"/console/?show=refused"} {
		page := w.page(path)
		for _, secret := range []string{"mind the step", "celsius", "closed on Mondays", "&#34;Monday&#34;"} {
			if strings.Contains(page, secret) {
				t.Errorf("%s shows %q", path, secret)
			}
		}
	}
	if page = w.page("/console/?text=Monday"); len(rows(page)) != 0 || !strings.Contains(page, "Only ids") {
		t.Error("a search in hidden content finds, or does not say what it did")
	}
	if status, _ := w.do("GET", "/console/audit", nil); status != http.StatusForbidden {
		t.Errorf("the audit list: %d", status)
	}
}

func TestConversations(t *testing.T) {
	b := withAgents(t)
	w := b.entered(b.token("ops", admin.Read))
	first := b.ask("weather", `{"city":"Bern"}`).Conversation.String()
	failed := b.ask("museum", `{"city":"Bern"}`).Conversation.String()
	s := said{first: "first", failed: "failed"}
	for query, want := range map[string]string{"": "failed first", "agent=weather": "first", "failed=1": "failed",
		"open=1": "", "since=1h": "failed first", "agent=weather&failed=1&since=1h": ""} {
		if got := s.names(rows(w.page("/console/conversations?" + query))); got != want {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	page := w.page("/console/conversations")
	for _, want := range []string{`/console/conversations/` + first, "museum", ">2<", "celsius"} {
		if !strings.Contains(page, want) {
			t.Errorf("the list lacks %q", want)
		}
	}
	if page = w.page("/console/conversations?agent=nobody"); !strings.Contains(page, `data-without="agent"`) {
		t.Error("the filter that hides all is not named")
	}
}

func TestAudit(t *testing.T) {
	b := withAgents(t)
	ctx := context.Background()
	b.token("ops-laptop", admin.Operate)
	if _, err := b.api.Pause(ctx, "sink", true); err != nil {
		t.Fatal(err)
	}
	w := b.entered(b.token("root", admin.Administer))
	all := rows(w.page("/console/audit"))
	if len(all) < 4 {
		t.Fatalf("%d actions", len(all))
	}
	page := w.page("/console/audit?action=token&target=ops-laptop&since=1h")
	if got := rows(page); len(got) != 1 || !strings.Contains(row(t, page, got[0]), "token.issue") {
		t.Errorf("three filters: %v", got)
	}
	if got := rows(w.page("/console/audit?action=agent.pause")); len(got) != 1 {
		t.Errorf("pauses: %v", got)
	}
	if page = w.page("/console/audit?by=nobody"); !strings.Contains(page, `data-without="by"`) {
		t.Error("the filter that hides all is not named")
	}
}

// TestFrameOnEveryPage: the hub's numbers stand above each page, and lead to the page that says more.
func TestFrameOnEveryPage(t *testing.T) {
	b := withAgents(t)
	if _, err := b.api.Pause(context.Background(), "sink", true); err != nil {
		t.Fatal(err)
	}
	b.forge("agent://evil.example")
	w := b.entered(b.token("root", admin.Administer))
	b.clock.move(2 * time.Second) // a status is kept for a second
	for _, path := range []string{"/console/", "/console/conversations", "/console/audit"} {
		page := w.page(path)
		for _, want := range []string{
			`href="/console/?show=refused" class="warn" data-fact="refused"><b>1</b> refused a minute`,
			`href="/console/agents" class="opt" data-fact="agents"><b>4</b> agents, 1 paused`, "accepted = <b>in memory</b>"} {
			if !strings.Contains(page, want) {
				t.Errorf("%s lacks %s", path, want)
			}
		}
	}
}
