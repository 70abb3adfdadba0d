package console_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/node"
)

// key is an Ed25519 public key, base64.
const key = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="

// hall is a hub with agents in several states: held is paused, box is not read, the others are ready.
func hall(t *testing.T) *bench {
	t.Helper()
	b := open(t, func(c *node.Config) { c.Listen.HTTP = "127.0.0.1:0" })
	ctx := context.Background()
	for _, n := range []admin.NewAgent{
		{Name: "acme/buyer", Title: "Acme procurement", Expose: []string{"asp"}, Skills: []admin.Skill{{ID: "order",
			Default: true}, {ID: "cancel"}}, Identities: []admin.NewIdentity{{Protocol: "samvad", ID: "agent://acme.example",
			URL: "https://acme.example", PublicKey: key, KeyID: "k1"}}},
		{Name: "box", Inbox: true, Title: `<script>alert(1)</script>` + "\u202eevil"},
		{Name: "held", Identities: []admin.NewIdentity{{Protocol: "uagents",
			ID: "agent1qdxgvgazffn8uftce7d0zff7uxxqf0h5g2ssyhfr6gqzmltnedcgyymkhza"}}},
	} {
		if _, err := b.api.AddAgent(ctx, n); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.node.Handle(parley.Agent{Name: "crew/planner"}, parley.Skill("plan", func(context.Context, *parley.Message,
		json.RawMessage) (any, error) {
		return nil, nil
	})); err != nil {
		t.Fatal(err)
	}
	guest := parley.Agent{Name: "guest/agh/worker", Title: `<b>me</b>`, Identities: []parley.Identity{{Protocol: "api",
		ID: "guest/agh/worker"}}}
	if _, err := b.node.Hub().Directory().Put(ctx, guest, directory.FromGuest); err != nil {
		t.Fatal(err)
	}
	if _, err := b.api.PauseFor(ctx, "held", "month end"); err != nil {
		t.Fatal(err)
	}
	return b
}

// has reports each text that a page lacks.
func has(t *testing.T, page string, want ...string) {
	t.Helper()
	for _, s := range want {
		if !strings.Contains(page, s) {
			t.Errorf("the page lacks %s", s)
		}
	}
}

// detail is the part of the page about the chosen agent, with its dialogs.
func detail(t *testing.T, page, name string) string {
	t.Helper()
	_, rest, ok := strings.Cut(page, `data-agent="`+name+`"`)
	if !ok {
		t.Fatalf("the page does not show %s", name)
	}
	return rest
}

// agentForm sends a form of the screen Agents.
func (w *browser) agentForm(path string, form url.Values) (int, string) {
	w.t.Helper()
	return w.post("/console/agents/"+path, form)
}

func TestAgentsInTroubleComeFirst(t *testing.T) {
	b := hall(t)
	w := b.entered(b.token("ops", admin.Read))
	for query, want := range map[string]string{
		"":                        "box guest/agh/worker held acme/buyer crew/planner",
		"state=trouble":           "box guest/agh/worker held",
		"state=paused":            "held",
		"standin=1":               "acme/buyer parley",
		"guest=1":                 "guest/agh/worker",
		"protocol=uagents":        "held",
		"q=procure":               "acme/buyer",
		"q=cancel":                "acme/buyer",
		"q=AGENT1QDX":             "held",
		"q=acme&protocol=uagents": "",
		"state=trouble&q=box":     "box",
	} {
		var got []string
		for _, k := range rows(w.page("/console/agents?" + query)) {
			if k != "" {
				got = append(got, k)
			}
		}
		list := strings.Fields(want)
		if query == "" { // the hub may have an agent of its own
			got = slices.DeleteFunc(got, func(s string) bool { return !slices.Contains(list, s) })
		}
		if !slices.Equal(got, list) {
			t.Errorf("%s: %q, want %q", query, got, list)
		}
	}
	page := w.page("/console/agents?state=trouble")
	has(t, page, `id="show-trouble" href="/console/agents?state=trouble" aria-current="true">In trouble <span>3</span>`,
		`href="/console/agents?standin=1">With stand-ins <span>2</span>`, `>Guests <span>1</span>`)
	held := row(t, page, "held")
	has(t, held, "paused", "“month end”", "uAgents", `href="/console/agents/held?state=trouble"`)
	has(t, detail(t, page, "box"), "nobody reads")
	page = w.page("/console/agents?q=acme&protocol=uagents")
	has(t, page, "No agent matches", `data-without="q">Without “acme”: 1<`,
		`href="/console/agents?q=acme" data-without="protocol">Without “speaks uAgents”: 1<`)
	for _, query := range []string{"state=merry", "before=!", "q=" + strings.Repeat("x", 2000)} {
		if status, _ := w.do("GET", "/console/agents?"+query, nil); status != http.StatusBadRequest {
			t.Errorf("%.30s: %d", query, status)
		}
	}
}

// TestAgentsInPages: 100 a page by cursor; each is on one page.
func TestAgentsInPages(t *testing.T) {
	b := open(t, nil)
	w := b.entered(b.token("ops", admin.Read))
	for i := range 130 {
		n := admin.NewAgent{Name: fmt.Sprintf("many/n-%03d", i), Inbox: true}
		if _, err := b.api.AddAgent(context.Background(), n); err != nil {
			t.Fatal(err)
		}
	}
	one := w.page("/console/agents?q=many")
	_, rest, _ := strings.Cut(one, `id="older" href="`)
	next, _, ok := strings.Cut(rest, `"`)
	if !ok || !strings.Contains(rest, ">30 more<") {
		t.Fatal("the first page leads to no second")
	}
	two := w.page(strings.ReplaceAll(next, "&amp;", "&"))
	all := append(rows(one), rows(two)...)
	slices.Sort(all)
	if n := len(slices.Compact(all)); n != 130 || len(rows(one)) != 100 {
		t.Errorf("%d agents, %d on the first page", n, len(rows(one)))
	}
	has(t, two, `id="newest" href="/console/agents?q=many"`)
	if !strings.Contains(row(t, two, "many/n-120"), "before=") {
		t.Error("a row of the second page leads back to the first")
	}
}

// TestWaitingMessages: the list and the detail count what waits, and lead to it.
func TestWaitingMessages(t *testing.T) {
	b := hall(t)
	w := b.entered(b.token("ops", admin.Read))
	for range 2 {
		b.tell(admin.Send{To: "box", JSON: []byte(`{}`), Expires: b.clock.now().Add(2 * time.Hour)})
	}
	b.clock.move(90 * time.Second)
	page := w.page("/console/agents/box")
	has(t, row(t, page, "box"), `<span class="two waiting">2 · 0<small class="dim">oldest <span data-age="`,
		`>1 min 30 s<`, "nobody reads")
	d := detail(t, page, "box")
	has(t, d, "nobody reads since ", "2 messages are kept; the first expires at ",
		"2 waiting</a>, the oldest for 1 min 30 s")
	_, rest, _ := strings.Cut(d, `<a class="link" href="/console/?show=waiting`)
	link, _, _ := strings.Cut(rest, `"`)
	if n := len(rows(w.page("/console/?show=waiting" + strings.ReplaceAll(link, "&amp;", "&")))); n != 2 {
		t.Errorf("the link leads to %d messages", n)
	}
}

func TestAgentDetail(t *testing.T) {
	b := hall(t)
	w := b.entered(b.token("ops", admin.Read))
	page := w.page("/console/agents/acme/buyer?q=a")
	if !strings.Contains(row(t, page, "acme/buyer"), `aria-selected="true"`) {
		t.Error("the chosen row is not marked")
	}
	d := detail(t, page, "acme/buyer")
	_, itself, _ := strings.Cut(d, `data-binding="samvad"`)
	itself, standIn, _ := strings.Cut(itself, `data-binding="asp"`)
	has(t, itself, "<b>itself</b>", `data-copy="agent://acme.example"`, `data-copy="https://acme.example"`)
	has(t, standIn, "stand-in", "answers for it", "callers lose: ")
	has(t, d, `data-key-of="samvad"`, "id <code>k1</code>", "no use is known", "<code>order</code>", "default",
		"Whoever finds it: the hub has no rules", "least proof: signed", "operator ", "parley agents expose acme/buyer")
	if status, _ := w.do("GET", "/console/agents/nobody/here", nil); status != http.StatusNotFound {
		t.Errorf("an unknown agent: %d", status)
	}
	page = w.page("/console/agents?m=held")
	has(t, detail(t, page, "held"), "paused since", ", by ", "“month end”")
}

// TestNamesOfOtherPages: an agent may be called as a page below that of agents.
func TestNamesOfOtherPages(t *testing.T) {
	b := open(t, nil)
	w := b.entered(b.token("ops", admin.Administer))
	for _, name := range []string{"connect", "connect/me", "pause", "a/b/c"} {
		if _, err := b.api.AddAgent(context.Background(), admin.NewAgent{Name: name, Inbox: true}); err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(row(t, w.page("/console/agents"), name), `href="`)
		link, _, _ := strings.Cut(rest, `"`)
		detail(t, w.page(strings.ReplaceAll(link, "&amp;", "&")), name)
		if status, page := w.agentForm("pause", url.Values{"name": {name}, "reason": {"why not"}}); status != 200 {
			t.Errorf("pause %s: %d", name, status)
		} else {
			has(t, detail(t, page, name), "paused since", "why not")
		}
	}
}

func TestTextsOfGuestsAreText(t *testing.T) {
	b := hall(t)
	w := b.entered(b.token("ops", admin.Read))
	page := w.page("/console/agents/box")
	if strings.Contains(page, "<script>alert") || strings.Contains(page, "\u202e") {
		t.Error("a title is not shown as text")
	}
	has(t, page, `&lt;script&gt;alert(1)&lt;/script&gt;\u202eevil`)
	has(t, row(t, page, "guest/agh/worker"), "&lt;b&gt;me&lt;/b&gt; · registered itself")
}

// TestFileIsLocked: what the file configures names its line, and has no button.
func TestFileIsLocked(t *testing.T) {
	file := filepath.Join(t.TempDir(), "parley.toml")
	if err := os.WriteFile(file, []byte(`
[agents."plant-7/mason"]
title = "Mason"
inbox = true

[[allow]]
from = "acme/*"
to = ["plant-7/*"]
`), 0o600); err != nil {
		t.Fatal(err)
	}
	b := open(t, func(c *node.Config) {
		v, err := node.Load(file)
		if err != nil {
			t.Fatal(err)
		}
		v.Data, v.Durability, v.Log, v.Now = c.Data, c.Durability, c.Log, c.Now
		v.Listen, v.FirstToken = c.Listen, c.FirstToken
		*c = v
	})
	w := b.entered(b.token("root", admin.Administer))
	d := detail(t, w.page("/console/agents/plant-7/mason"), "plant-7/mason")
	has(t, d, `parley.toml, line 2: edit the file, then <code>parley config reload</code>`,
		`<code>acme/*</code> by rule 1`, `parley.toml, line 6: edit the file, then <code>parley config reload</code>`,
		`href="#pause"`)
	for _, s := range []string{`href="#expose"`, "ask=remove", `id="expose"`} {
		if strings.Contains(d, s) {
			t.Errorf("the page offers %s", s)
		}
	}
	for path, form := range map[string]url.Values{"expose": {"p": {"asp"}}, "remove": {"typed": {"plant-7/mason"}}} {
		form.Set("name", "plant-7/mason")
		if status, _ := w.agentForm(path, form); status != http.StatusForbidden {
			t.Errorf("%s by a hand-made form: %d", path, status)
		}
	}
}

func TestPauseAndResume(t *testing.T) {
	b := hall(t)
	w := b.entered(b.token("ops-laptop", admin.Operate))
	has(t, detail(t, w.page("/console/agents/acme/buyer"), "acme/buyer"), `href="#pause"`, `id="pause"`,
		"parley agents pause acme/buyer --reason", `disabled title="needs the role admin"`)
	var at string
	w.http.CheckRedirect = func(r *http.Request, _ []*http.Request) error { at = r.URL.Path; return nil }
	_, page := w.agentForm("pause", url.Values{"name": {"acme/buyer"}, "reason": {"disk <b>full</b>"}})
	if at != "/console/agents/acme/buyer" {
		t.Errorf("after the action: %s", at)
	}
	has(t, detail(t, page, "acme/buyer"), "by ops-laptop, “disk &lt;b&gt;full&lt;/b&gt;”",
		`action="/console/agents/resume"`)
	has(t, row(t, page, "acme/buyer"), "by ops-laptop")
	if _, page = w.agentForm("resume", url.Values{"name": {"acme/buyer"}}); strings.Contains(page, "full&lt;") {
		t.Error("the reason stays after resuming")
	}
	list, err := b.api.Audit(t.Context(), admin.AuditFilter{Target: "acme/buyer", By: "ops-laptop"})
	if err != nil || len(list) != 2 || list[0].Via != "console" {
		t.Errorf("%+v, %v", list, err)
	}
	if status, _ := w.agentForm("pause", url.Values{}); status != http.StatusBadRequest {
		t.Errorf("a form without a name: %d", status)
	}
}

func TestViewersChangeNothing(t *testing.T) {
	b := hall(t)
	w := b.entered(b.token("looker", admin.Read))
	d := detail(t, w.page("/console/agents/acme/buyer"), "acme/buyer")
	has(t, d, `disabled title="needs the role operator">Pause`, `disabled title="needs the role admin">Remove`)
	if strings.Contains(d, `id="pause"`) || strings.Contains(d, `id="expose"`) {
		t.Error("a viewer has a form that would be refused")
	}
	for _, path := range []string{"pause", "resume", "expose", "remove", "connect"} {
		form := url.Values{"name": {"acme/buyer"}, "typed": {"acme/buyer"}, "p": {"agh"}, "samvad": {"https://x.example"}}
		if status, _ := w.agentForm(path, form); status != http.StatusForbidden {
			t.Errorf("%s by a hand-made form: %d", path, status)
		}
	}
	v, err := b.api.Agent(t.Context(), "acme/buyer", 0)
	if err != nil || v.Paused || !slices.Equal(v.Exposed, []string{"asp"}) {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestExposeShowsWhatChanges(t *testing.T) {
	b := hall(t)
	w := b.entered(b.token("root", admin.Administer))
	has(t, detail(t, w.page("/console/agents/acme/buyer"), "acme/buyer"), `action="/console/agents/acme/buyer#ask"`,
		`name="p" value="asp" checked`, `name="p" value="agh">`)
	page := w.page("/console/agents/acme/buyer?ask=expose&p=a2a")
	has(t, page, "becomes reachable in a2a as ", "can no longer be reached in asp",
		"<code class=\"dim\">parley agents expose acme/buyer a2a</code>", `<input type="hidden" name="p" value="a2a">`)
	if v, err := b.api.Agent(t.Context(), "acme/buyer", 0); err != nil || !slices.Equal(v.Exposed, []string{"asp"}) {
		t.Fatalf("the question alone changed something: %v, %v", v.Exposed, err)
	}
	w.agentForm("expose", w.asked("/console/agents/acme/buyer?ask=expose&p=a2a", "ask"))
	if v, err := b.api.Agent(t.Context(), "acme/buyer", 0); err != nil || !slices.Equal(v.Exposed, []string{"a2a"}) {
		t.Errorf("%v, %v", v.Exposed, err)
	}
	has(t, w.page("/console/agents/acme/buyer?ask=expose&p=telex"), "is no protocol")
	w.agentForm("expose", w.asked("/console/agents/acme/buyer?ask=expose", "ask"))
	if v, err := b.api.Agent(t.Context(), "acme/buyer", 0); err != nil || len(v.Exposed) != 0 {
		t.Errorf("exposed nowhere: %v, %v", v.Exposed, err)
	}
}

var seen = `name="seen" value="`

func TestRemoveNeedsTheName(t *testing.T) {
	b := hall(t)
	w := b.entered(b.token("root", admin.Administer))
	read := func() string {
		_, rest, ok := strings.Cut(w.page("/console/agents/box?ask=remove"), seen)
		if !ok {
			t.Fatal("there is no dialog")
		}
		text, _, _ := strings.Cut(rest, `"`)
		return text
	}
	there := func() bool { _, err := b.api.Agent(t.Context(), "box", 0); return err == nil }
	text := read()
	form := func(typed string) url.Values { return url.Values{"name": {"box"}, "typed": {typed}, "seen": {text}} }
	for _, typed := range []string{"", "bo", "BOX", "held"} {
		if status, _ := w.agentForm("remove", form(typed)); status != http.StatusBadRequest || !there() {
			t.Errorf("typed %q: %d, there %t", typed, status, there())
		}
	}
	b.tell(admin.Send{To: "box", JSON: []byte(`{}`)})
	status, page := w.agentForm("remove", form("box"))
	if status != 200 || !there() {
		t.Fatalf("what was read is not so any more: %d, there %t", status, there())
	}
	has(t, page, "data-changed", "1 message becomes a dead letter", "parley agents remove box")
	text = read()
	if status, _ := w.agentForm("remove", form("box")); status != 200 || there() {
		t.Errorf("the name: %d, there %t", status, there())
	}
}

func TestConnectPages(t *testing.T) {
	b := open(t, nil)
	w := b.entered(b.token("root", admin.Administer))
	page := w.page("/console/agents/connect")
	for _, p := range []string{"samvad", "uagents", "a2e", "agh", "asp", "a2a", "mcp"} {
		has(t, page, `data-way="`+p+`"`, "parley agents add NAME --"+p)
	}
	has(t, page, "The hub connects no agent now", `action="/console/agents/connect"`)
	for _, form := range []url.Values{{"name": {"x"}}, {"name": {"x"}, "samvad": {"gopher://x"}},
		{"name": {"Not A Name"}, "samvad": {"https://x.example"}},
		{"name": {"x"}, "samvad": {"https://x.example"}, "key": {"!"}}} {
		if status, _ := w.agentForm("connect", form); status != http.StatusBadRequest {
			t.Errorf("%v: %d", form, status)
		}
	}
	var at string
	w.http.CheckRedirect = func(r *http.Request, _ []*http.Request) error { at = r.URL.Path; return nil }
	page = w.connect(url.Values{"name": {"town/museum"}, "samvad": {"http://127.0.0.1:1/"}, "key": {key},
		"key-id": {"museum"}})
	if at != "/console/agents/connect/town/museum" {
		t.Fatalf("after the form: %s", at)
	}
	for _, step := range []string{"protocol", "address", "reached", "card", "hub key", "first message", "answered"} {
		has(t, page, `data-step="`+step+`"`)
	}
	has(t, page, `hx-get="/console/agents/connect/town/museum" hx-trigger="every 2s" hx-select="#stepper, `,
		"parley agents add town/museum --samvad http://127.0.0.1:1 --wait 2m", "http://127.0.0.1:1 as town/museum",
		`href="/console/agents/town/museum?ask=remove#ask"`, "agent.trust_peer(")
	has(t, w.page("/console/agents/connect"), `href="/console/agents/connect/town/museum"`)
	has(t, detail(t, w.page("/console/agents/town/museum"), "town/museum"), `data-copy="agent://127.0.0.1"`,
		"id <code>museum</code>", `href="/console/agents/connect/town/museum">How far`)
	if status, _ := w.do("GET", "/console/agents/connect/nobody", nil); status != http.StatusNotFound {
		t.Errorf("no checklist: %d", status)
	}
}

// TestAgentPagesObeyThePolicy: no page has what the policy forbids, and none shows an observer what operators wrote.
func TestAgentPagesObeyThePolicy(t *testing.T) {
	b := hall(t)
	root, observer := b.entered(b.token("root", admin.Administer)), b.entered(b.token("observer", admin.Observe))
	root.connect(url.Values{"name": {"museum"}, "samvad": {"http://127.0.0.1:1"}})
	for _, path := range []string{"agents", "agents/held", "agents/acme/buyer?ask=expose&p=a2a", "agents/box?ask=remove",
		"agents/connect", "agents/connect/museum"} {
		for _, w := range []*browser{root, observer} {
			page := w.page("/console/" + path)
			for _, bad := range []string{"<script>", " style=", " onclick", "javascript:", `src="http`, `href="http`} {
				if strings.Contains(page, bad) {
					t.Errorf("%s has %q", path, bad)
				}
			}
			if w == observer && strings.Contains(page, "month end") {
				t.Errorf("%s shows an observer why an agent is paused", path)
			}
		}
	}
	has(t, root.page("/console/agents/held"), "month end")
	has(t, observer.page("/console/agents/box?ask=remove"), "data-refused")
}
