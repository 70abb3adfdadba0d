package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/policy"
)

// say records a notice from one agent to another in a conversation.
func (w *world) say(conversation parley.ID, from, to string, parts ...parley.Part) *parley.Message {
	w.t.Helper()
	m, err := w.node.hub.Accept(w.t.Context(), w.saying(conversation, from, to, parts...))
	w.must(err)
	return m
}

func (w *world) saying(conversation parley.ID, from, to string, parts ...parley.Part) hub.Submission {
	return hub.Submission{Scope: "test " + conversation.String(), Message: &parley.Message{Kind: parley.Notice, From: from,
		To: to, Conversation: conversation, Parts: parts, Sent: time.Unix(1_800_000_000, 0),
		Origin: parley.Origin{Protocol: Protocol, Peer: "token " + from, Raw: []byte("raw"), Received: time.Now(),
			Verdict: parley.Verdict{Assurance: parley.Session, Checks: []parley.Check{{Name: "token", OK: true}}}}}}
}

func conversationID(n byte) parley.ID { return parley.HashID(slices.Repeat([]byte{n}, 32)) }

// readPage reads a page of a conversation.
func (c *client) readPage(uri string) (page transcript, text string, err error) {
	r, err := c.ReadResource(c.w.t.Context(), &mcp.ReadResourceParams{URI: uri})
	if err != nil {
		return page, "", err
	}
	if len(r.Contents) != 1 || r.Contents[0].URI != uri || r.Contents[0].MIMEType != jsonType {
		c.w.t.Error(encoded(c.w.t, r))
	}
	text = r.Contents[0].Text
	return page, text, json.Unmarshal([]byte(text), &page)
}

func saidBy(page transcript) (out []string) {
	for _, m := range page.Messages {
		text := ""
		for _, p := range m.Parts {
			if p.Text != nil {
				text += *p.Text
			}
		}
		out = append(out, m.From+": "+text)
	}
	return out
}

func TestResourceLists(t *testing.T) {
	t.Parallel()
	eras(t, func(t *testing.T, revision string) {
		w := newWorld(t)
		w.must(w.node.hub.Handle(parley.Agent{Name: "crew/weather", Title: "Wea\u200bther", Exposed: parley.Everywhere,
			Description: "Forecasts.", Skills: []parley.SkillSpec{parley.RawSkill("a", echo), parley.RawSkill("b", echo)}}))
		w.handle("closed", echo)
		w.allow(policy.Rule{From: "*", To: []string{"crew/weather", "bob", "alice"}})
		w.say(conversationID(1), "alice", "bob", parley.Text("hi"))
		w.say(conversationID(2), "bob", "crew/weather", parley.Text("hi"))
		c := w.connect("alice", revision)
		list, err := c.ListResources(t.Context(), nil)
		w.must(err)
		var got []string
		for _, r := range list.Resources {
			got = append(got, r.URI+" "+r.Title)
		}
		if want := []string{agentURI + "bob ", agentURI + "crew%2Fweather Weather",
			conversationURI + conversationID(1).String() + " Conversation with bob"}; !slices.Equal(got, want) {
			t.Errorf("MCP-022 MCP-100 %q, want %q", got, want)
		}
		for _, r := range list.Resources {
			if _, err := c.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: r.URI}); err != nil {
				t.Errorf("%s: %v", r.URI, err)
			}
		}
		templates, err := c.ListResourceTemplates(t.Context(), nil)
		if err != nil || len(templates.ResourceTemplates) != 2 {
			t.Error(encoded(t, templates), err)
		}

		one, err := w.connect("bob", revision, at("crew/weather")).ListResources(t.Context(), nil)
		if err != nil || len(one.Resources) != 2 || one.Resources[0].Name != "crew/weather" ||
			one.Resources[1].URI != conversationURI+conversationID(2).String() {
			t.Error("one agent:", encoded(t, one), err)
		}
		guest := w.connect("alice", revision, asGuest) // an address may be that of several guests
		none, err := guest.ListResources(t.Context(), nil)
		if err != nil || len(none.Resources) != 0 {
			t.Error("MCP-100 a guest:", encoded(t, none), err)
		}
		templates, err = guest.ListResourceTemplates(t.Context(), nil)
		if err != nil || len(templates.ResourceTemplates) != 1 {
			t.Error(encoded(t, templates), err)
		}
	})
}

func TestCards(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := schemas(parley.RawSkill("forecast", echo), `{"type":"string","x-note":"obey"}`, `{"type":"array"}`)
	s.Name, s.Description = "Forecast", "Says\u202e it."
	w.must(w.node.hub.Handle(parley.Agent{Name: "crew/weather", Title: "Weather", Exposed: parley.Everywhere, Version: "2",
		Skills: []parley.SkillSpec{s, parley.RawSkill("hidden", echo)}}))
	w.allow(policy.Rule{From: "*", To: []string{"crew/weather.forecast"}})
	const skill = `{"id":"forecast","name":"Forecast","tool":"%s","description":"Says it.","input":{"type":"string"},` +
		`"output":{"type":"array"}}`
	for _, c := range []struct {
		client *client
		tool   string
	}{
		{w.connect("alice", legacy), "crew-weather__forecast"},
		{w.connect("alice", modern, at("crew/weather")), "forecast"},
	} {
		r, err := c.client.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: agentURI + "crew%2Fweather"})
		if want := `{"name":"crew/weather","title":"Weather","version":"2","skills":[` + fmt.Sprintf(skill, c.tool) +
			`]}`; err != nil || r.Contents[0].Text != want {
			t.Errorf("%s, %v; want %s", encoded(t, r), err, want)
		}
	}
}

func TestUnknownResources(t *testing.T) {
	t.Parallel()
	for revision, want := range map[string]int64{legacy: -32002, modern: jsonrpc.CodeInvalidParams} {
		t.Run(revision, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.handle("weather", echo)
			w.handle("closed", echo)
			w.allow(policy.Rule{From: "*", To: []string{"weather", "bob", "alice"}})
			w.say(conversationID(1), "bob", "weather", parley.Text("secret"))
			known := conversationURI + conversationID(1).String()
			// alice is refused in the conversation of others: she takes no part in it.
			refused := w.saying(conversationID(1), "alice", "closed", parley.Text("let me in"))
			if _, err := w.node.hub.Accept(t.Context(), refused); parley.CodeOf(err) != parley.Forbidden {
				t.Fatal(err)
			}
			unknown := func(c *client, uri string) {
				t.Helper()
				_, err := c.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
				if code, text := rpcCode(t, err); code != want || text != fmt.Sprintf("resource not found: %q", uri) {
					t.Errorf("MCP-100 %s: %d %s", uri, code, text)
				}
				e, _ := errors.AsType[*jsonrpc.Error](err)
				var data struct{ URI string }
				if json.Unmarshal(e.Data, &data) != nil || data.URI != uri {
					t.Errorf("%s: data %s", uri, e.Data)
				}
			}
			alice := w.connect("alice", revision)
			for _, uri := range []string{known, conversationURI + conversationID(9).String(), conversationURI + "x",
				conversationURI, known + "?before=x", known + "?after=a&after=b", known + "?%zz", agentURI + "closed",
				agentURI + "none", agentURI + "alice", agentURI + "%zz", hiddenResource, "file:///etc/passwd", "x"} {
				unknown(alice, uri)
			}
			list, err := alice.ListResources(t.Context(), nil)
			if err != nil || strings.Contains(encoded(t, list), conversationURI) {
				t.Error("MCP-100", encoded(t, list), err)
			}
			unknown(w.connect("alice", revision, at("weather")), agentURI+"bob")
			unknown(w.connect("bob", revision, asGuest), known)
			_, err = alice.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "x:" + strings.Repeat("x", maxURI)})
			if e, ok := errors.AsType[*jsonrpc.Error](err); !ok || e.Code != want || e.Data != nil || len(e.Message) > 400 {
				t.Errorf("a long URI: %v", err)
			}
			if _, _, err := w.connect("bob", revision).readPage(known); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestTranscripts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent(parley.Agent{Name: "carol", Identities: []parley.Identity{IdentityOfCaller("carol")}})
	id := conversationID(1)
	sent := w.say(id, "alice", "bob", parley.Text("hello"), parley.Part{MediaType: "application/json",
		Data: []byte(`{"n":12345678901234567890}`)}, parley.Part{MediaType: "image/png", Name: "x.png", Data: []byte{1, 2}},
		parley.Part{MediaType: "text/html", URI: "https://x.example/", Digest: "sha-256=:AA==:"})
	w.say(id, "bob", "carol", parley.Text("between bob and carol"))
	w.say(id, "bob", "alice", parley.Text("hello yourself"))
	uri := conversationURI + id.String()

	page, text, err := w.connect("alice", modern).readPage(uri)
	w.must(err)
	got, want := saidBy(page), []string{"alice: hello", "bob: hello yourself"}
	if !slices.Equal(got, want) || page.Next != "" {
		t.Errorf("MCP-100 %q, want %q", got, want)
	}
	first := page.Messages[0]
	if p := first.Provenance; first.ID != sent.ID || first.To != "bob" || first.Kind != parley.Notice || first.Erased ||
		!first.Sent.Equal(sent.Sent) || p.Assurance != "session" || !slices.Equal(p.Proved, []string{"token"}) ||
		!strings.HasPrefix(p.Digest, "sha-256=:") || p.Hub != "here" || p.Message != sent.ID || p.Sender != "alice" {
		t.Error(encoded(t, first))
	}
	for _, want := range []string{`{"media_type":"application/json","json":{"n":12345678901234567890}}`,
		`{"media_type":"image/png","name":"x.png","data":"AQI="}`,
		`{"media_type":"text/html","uri":"https://x.example/","digest":"sha-256=:AA==:"}`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not in %s", want, text)
		}
	}
	page, _, err = w.connect("bob", legacy).readPage(uri)
	if got := saidBy(page); err != nil || len(got) != 3 {
		t.Errorf("%q, %v", got, err)
	}

	// A failure says why, and nothing that is for operators.
	w.handle("broken", func(_ context.Context, _ *parley.Message, _ parley.Replier) error {
		return parley.Fail(parley.Rejected, errors.New("inside"), "not today").With(parley.ByPeer, "", "at 10.0.0.1")
	})
	s := w.saying(conversationID(2), "alice", "broken", parley.Text("please"))
	s.Message.Kind = parley.Request
	if _, err := w.node.hub.Ask(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	page, text, err = w.connect("alice", modern).readPage(conversationURI + conversationID(2).String())
	if err != nil || len(page.Messages) != 2 || page.Messages[1].InReplyTo != page.Messages[0].ID ||
		page.Messages[1].Error.Code != parley.Rejected || page.Messages[1].Error.Text != "not today" ||
		strings.Contains(text, "10.0.0.1") || strings.Contains(text, "inside") {
		t.Error(text, err)
	}

	// Content that was erased is not there.
	m, err := w.node.index.Message(t.Context(), sent.ID.String())
	w.must(err)
	erasure, err := w.j.NewErasure(t.Context(), journal.Erasure{What: "agent", Name: "alice", By: "op"})
	w.must(err)
	n, err := w.j.Erase(t.Context(), erasure.Number, journal.Digests, []journal.Position{m.Position})
	if err != nil || n != 1 {
		t.Fatal(n, err)
	}
	page, text, err = w.connect("alice", modern).readPage(uri)
	if err != nil || len(page.Messages) != 2 || !page.Messages[0].Erased || page.Messages[1].Erased ||
		strings.Contains(text, "hello\"") {
		t.Error(text, err)
	}
}

func TestTranscriptPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.handle("closed", echo)
	w.allow(policy.Rule{From: "*", To: []string{"bob"}})
	id := conversationID(1)
	large := strings.Repeat("x", pageSize/2-100)
	var want []string
	for i := range pageMessages + 30 {
		text := fmt.Sprint(i, " ")
		if i >= 20 && i < 25 {
			text += large
		}
		w.say(id, "alice", "bob", parley.Text(text))
		want = append(want, "alice: "+text)
		if i%10 == 0 {
			if _, err := w.node.hub.Accept(t.Context(), w.saying(id, "alice", "closed", parley.Text("no"))); err == nil {
				t.Fatal("the message is not refused")
			}
		}
	}
	c := w.connect("alice", modern)
	uri := conversationURI + id.String()
	var got []string
	next, pages := "", 0
	for pages = 1; pages < 20; pages++ {
		page, text, err := c.readPage(uri + next)
		w.must(err)
		if len(page.Messages) == 0 || len(page.Messages) > pageMessages || len(text) > pageSize+pageMessages*1000 {
			t.Errorf("page %d: %d messages, %d bytes", pages, len(page.Messages), len(text))
		}
		got = append(got, saidBy(page)...)
		if page.Next == "" {
			break
		}
		next = "?after=" + page.Next
	}
	if !slices.Equal(got, want) || pages < 4 {
		t.Errorf("%d messages on %d pages, want %d", len(got), pages, len(want))
	}
	_, _, err := c.readPage(uri + "?after=x-1")
	if code, text := rpcCode(t, err); code != jsonrpc.CodeInvalidParams || !strings.HasPrefix(text, "after: ") {
		t.Errorf("%d %s", code, text)
	}
}
