package console_test

import (
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley/admin"
	a2e "github.com/parley-hub/parley/bridge/a2e"
	"github.com/parley-hub/parley/internal/pairs"
	"github.com/parley-hub/parley/node"
)

// hidden are the hidden inputs of the form that connects an agent.
var hidden = regexp.MustCompile(`<input type="hidden" name="(seen|token-id)" value="([^"]*)">`)

// connect sends the form that connects an agent, and confirms what the agent says of itself. It gives the page
// of the checklist.
func (w *browser) connect(form url.Values) string {
	w.t.Helper()
	status, page := w.agentForm("connect", form)
	for _, m := range hidden.FindAllStringSubmatch(page, -1) {
		form.Set(m[1], m[2])
	}
	if strings.Contains(page, "data-read") {
		status, page = w.agentForm("connect", form)
	}
	if status != 200 || !strings.Contains(page, `data-step="answered"`) {
		w.t.Fatalf("%v: %d\n%s", form, status, page)
	}
	return page
}

// fieldsOf are the fields of the form for an agent.
func fieldsOf(t *testing.T, a *node.Agent) url.Values {
	t.Helper()
	switch {
	case a.SAMVAD != nil:
		return url.Values{"protocol": {"samvad"}, "samvad": {a.SAMVAD.URL}}
	case a.UAgents != nil:
		return url.Values{"protocol": {"uagents"}, "uagents": {a.UAgents.Address}, "endpoint": {a.UAgents.Endpoint}}
	case a.AGH != nil:
		return url.Values{"protocol": {"agh"}, "agh": {a.AGH.Workspace + "/" + a.AGH.Peer}}
	case a.ASP != nil:
		card, err := os.ReadFile(a.ASP.Card)
		if err != nil {
			t.Fatal(err)
		}
		return url.Values{"protocol": {"asp"}, "asp": {string(card)}}
	case a.A2A != nil:
		return url.Values{"protocol": {"a2a"}, "a2a": {a.A2A.URL}}
	case a.MCP != nil:
		return url.Values{"protocol": {"mcp"}, "mcp": {a.MCP.URL}}
	}
	token, err := os.ReadFile(a.A2E.TokenFile)
	if err != nil {
		t.Fatal(err)
	}
	return url.Values{"protocol": {"a2e"}, "token-id": {a2e.TokenID(string(token))}}
}

// TestConnectEveryProtocol: an agent of each protocol is connected by the form, and all steps of its checklist turn.
func TestConnectEveryProtocol(t *testing.T) {
	dir := t.TempDir()
	b := open(t, func(c *node.Config) {
		if err := pairs.Configure(c, dir); err != nil {
			t.Fatal(err)
		}
	})
	w := b.entered(b.token("root", admin.Administer))
	at := pairs.At(b.node)
	at.Now = b.clock.now
	for _, protocol := range pairs.Protocols {
		t.Run(protocol, func(t *testing.T) {
			name := "new-" + protocol
			p, err := pairs.New(protocol, name)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(p.Leave)
			a, err := p.Agent(dir)
			if err != nil {
				t.Fatal(err)
			}
			form := fieldsOf(t, &a)
			form.Set("name", name)
			form.Set("expose", "all")
			early := protocol == "samvad" // the card is read of an agent that runs
			if early {
				err = p.Join(t.Context(), at, false)
			}
			page := w.connect(form)
			if !early && err == nil {
				err = p.Join(t.Context(), at, false)
			}
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(page, `data-state="not needed" data-step="protocol"`) {
				t.Error("the protocol is no step")
			}
			text := "say hello"
			r, err := b.api.Send(t.Context(), admin.Send{To: name, Text: &text, Timeout: "30s"})
			if err != nil {
				t.Fatal(err)
			}
			v := b.green(t, name)
			if v.Protocol != protocol {
				t.Errorf("%+v, after %s", v, r.ID)
			}
			has(t, w.page("/console/agents/connect/"+name), `data-checklist="done"`)
		})
	}
	t.Run("inbox", func(t *testing.T) {
		has(t, w.connect(url.Values{"protocol": {"inbox"}, "name": {"desk"}}), "it reads an inbox at the hub")
		text := "hello"
		r, err := b.api.Send(t.Context(), admin.Send{To: "desk", Text: &text})
		if err == nil {
			_, err = b.api.Send(t.Context(), admin.Send{From: "desk", InReplyTo: r.ID.String(), Text: &text})
		}
		if err != nil {
			t.Fatal(err)
		}
		b.green(t, "desk")
	})
}

// green waits until all steps of a checklist are done.
func (b *bench) green(t *testing.T, name string) admin.Checklist {
	t.Helper()
	v, err := b.api.Checklist(t.Context(), name)
	for err == nil && v.State != admin.StepDone {
		was := v.Version
		if v, err = b.api.NextChecklist(t.Context(), name, was, 30*time.Second); err == nil && v.Version == was {
			t.Fatalf("nothing turns: %+v", v)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestConnectFormAsksAgain: what an agent says of itself is confirmed as it was shown; only the form shows a token.
func TestConnectFormAsksAgain(t *testing.T) {
	b := open(t, func(c *node.Config) { c.Listen.HTTP = "127.0.0.1:0" })
	w := b.entered(b.token("root", admin.Administer))
	form := url.Values{"protocol": {"samvad"}, "name": {"museum"}, "samvad": {"http://127.0.0.1:1"}, "seen": {"other"}}
	_, page := w.agentForm("connect", form)
	has(t, page, "data-read", "its card could not be read", "[network]",
		`name="samvad" type="url" value="http://127.0.0.1:1"`)
	if _, err := b.api.Agent(t.Context(), "museum", 0); err == nil {
		t.Error("it was added unseen")
	}
	page = w.page("/console/agents/connect?protocol=a2e")
	_, rest, _ := strings.Cut(page, "data-token>")
	token, _, _ := strings.Cut(rest, "<")
	if len(token) != 64 {
		t.Fatalf("no token: %q", token)
	}
	form = url.Values{"protocol": {"a2e"}, "name": {"robot"}, "token-id": {hidden.FindStringSubmatch(page)[2]}}
	page = w.connect(form)
	has(t, page, "A2EClient(", "auth_token=&#34;TOKEN&#34;")
	if strings.Contains(page, token) {
		t.Error("the token is shown again")
	}
	v, err := b.api.Agent(t.Context(), "robot", 0)
	if err != nil || v.Identities[0].ID != a2e.TokenID(token) {
		t.Errorf("%+v, %v", v.Identities, err)
	}
	for query, want := range map[string]string{"protocol=a2a": `name="a2a"`, "protocol=mcp&way=calls": "--mcp-calls",
		"protocol=agh": "an AGH peer, WORKSPACE/PEER", "protocol=asp": "<textarea name=\"asp\"",
		"protocol=samvad&way=calls": `placeholder="agent://caller.example"`, "protocol=nothing": `name="samvad"`,
		"protocol=inbox": "--inbox", "protocol=uagents": `name="endpoint"`} {
		has(t, w.page("/console/agents/connect?"+query), want)
	}
}
