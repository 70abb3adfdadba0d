package console_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/node"
)

// withBaker is a hub with an agent whose skill has a schema.
func withBaker(t *testing.T, change func(*node.Config)) *bench {
	t.Helper()
	b := open(t, change)
	if err := b.node.Handle(parley.Agent{Name: "baker", Exposed: parley.Everywhere}, parley.Skill("bake",
		func(_ context.Context, _ *parley.Message, q struct {
			Loaves int `json:"loaves"`
		}) (int, error) {
			return q.Loaves, nil
		})); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestForeseenWhileTyping: the form gets the part of the page that points at what does not fit, and a browser without
// scripts gets the page with the form as it was. Nothing is sent, and the form's key still sends once.
func TestForeseenWhileTyping(t *testing.T) {
	b := withBaker(t, nil)
	w := b.entered(b.token("ops", admin.Operate))
	form := w.compose("baker", "skill", "bake", "content", `{"loaves":"<b>many"}`)
	const path = "/console/workbench/foresee"
	status, part := w.do("POST", path, form, "HX-Request", "true")
	if status != http.StatusOK || strings.Contains(part, "<html") || strings.Contains(part, "<b>many") {
		t.Errorf("%d %s", status, part)
	}
	has(t, part, `<div class="all" id="foreseen"`, `data-accepted="false"`, `data-misfit="/loaves"`,
		"got string, want integer", "It would be refused: invalid_content", "baker", "ready", "parley send --dry-run")
	status, page := w.do("POST", path, form)
	if status != http.StatusOK {
		t.Fatalf("%d", status)
	}
	has(t, page, `data-misfit="/loaves"`, "{&#34;loaves&#34;:&#34;&lt;b&gt;many&#34;}", `value="bake"`, "Send to baker")
	if again := w.composition(page); again.Get("key") != form.Get("key") || form.Get("key") == "" {
		t.Error("checking used the form's key up")
	}
	form.Set("content", "3")
	_, part = w.do("POST", path, form, "HX-Request", "true")
	has(t, part, `data-accepted="false"`, "data-misfit")
	form.Set("content", `{"loaves":3}`)
	_, part = w.do("POST", path, form, "HX-Request", "true")
	has(t, part, `data-accepted="true"`, "The hub would record it", `data-copy="curl -X POST &#39;http://127.0.0.1:`,
		"$PARLEY_TOKEN")
	if strings.Contains(part, "data-misfit") {
		t.Error("what fits does not fit")
	}
	for name, c := range map[string][2]string{"as": {"weather", "may not speak as"}, "to": {"bakre", "did you mean"},
		"kind": {"event", "want request or notice"}, "content": {"\xff", "not text in UTF-8"}} {
		other := url.Values{}
		for k, v := range form {
			other[k] = v
		}
		other.Set(name, c[0])
		if status, part := w.do("POST", path, other, "HX-Request", "true"); status != http.StatusOK ||
			!strings.Contains(part, c[1]) {
			t.Errorf("%s: %d %s, want %q", name, status, part, c[1])
		}
	}
	if list, err := b.api.Messages(t.Context(), index.Filter{}); err != nil || len(list.Messages) > 0 {
		t.Errorf("checking recorded %d messages, %v", len(list.Messages), err)
	}
	if refused, err := b.api.Refused(t.Context(), 10); err != nil || len(refused) > 0 {
		t.Errorf("checking left %d refusals, %v", len(refused), err)
	}
	form.Set("form", "another")
	if status, _ := w.do("POST", path, form); status != http.StatusForbidden {
		t.Errorf("a form of another session: %d", status)
	}
	viewer := b.entered(b.token("viewer", admin.Read))
	has(t, viewer.page("/console/workbench?to=baker"), `workbench/foresee#foreseen" disabled>Check`)
	if page := viewer.page("/console/workbench?to=baker"); strings.Contains(page, "hx-post") {
		t.Error("the page of a viewer asks while it is typed")
	}
	if status, _ := viewer.do("POST", path, viewer.compose("baker")); status != http.StatusForbidden {
		t.Errorf("a viewer checks: %d", status)
	}
}

// TestManySpeakers: a menu has at most 200 agents; more are a field with suggestions. What a form chose stays chosen,
// and the recipients are those that the speaker may send to.
func TestManySpeakers(t *testing.T) {
	b := withBaker(t, func(c *node.Config) {
		c.Allow = []node.Allow{{From: "crew/*", To: []string{"baker"}}}
	})
	for i := range 203 {
		agent := admin.NewAgent{Name: fmt.Sprintf("crew/n%03d", i), Inbox: true}
		if _, err := b.api.AddAgent(t.Context(), agent); err != nil {
			t.Fatal(err)
		}
	}
	v, err := b.api.IssueToken(t.Context(), admin.NewToken{Name: "crew", Role: admin.Operate, Speak: []string{"crew/*"}})
	if err != nil {
		t.Fatal(err)
	}
	page := b.entered(v.Secret).page("/console/workbench?to=baker&as=crew/n202")
	has(t, page, `name="as" value="crew/n202" list="speakers"`,
		`<datalist id="agents"><option value="baker"></option></datalist>`)
	if n := strings.Count(page, `<option value="crew/n`); n != 201 { // and the chosen one
		t.Errorf("%d suggestions", n)
	}
}

// TestEntrances: for each protocol of the stand-in, the page names the command that sends a message; it signs nothing.
func TestEntrances(t *testing.T) {
	b := withBaker(t, func(c *node.Config) { c.Listen.HTTP = "127.0.0.1:0" })
	w := b.entered(b.token("ops", admin.Operate))
	_, page := w.do("POST", "/console/workbench/foresee", w.compose("baker", "skill", "bake", "content", `{"loaves":3}`))
	for protocol, want := range map[string]string{
		"samvad":  "/agents/baker --key me.json --as agent://me --skill bake &#39;{&#34;loaves&#34;:3}&#39;",
		"uagents": "--to agent1", "a2e": "--skill baker.bake", "asp": "--to agent://",
		"a2a": "/a2a/baker --token-file me.token", "mcp": "/mcp/agents/baker --token-file me.token"} {
		_, text, ok := strings.Cut(page, `data-enters="`+protocol+`"`)
		text, _, _ = strings.Cut(text, "</pre>")
		if !ok || !strings.Contains(text, "parley send --protocol "+protocol+" --url http") || !strings.Contains(text, want) {
			t.Errorf("%s: %q, want %q", protocol, text, want)
		}
	}
}
