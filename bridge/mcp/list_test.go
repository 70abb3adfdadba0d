package mcp

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/policy"
)

// listed gives the names of the tools of a client.
func (c *client) listed() (out []string) {
	c.w.t.Helper()
	r, err := c.ListTools(c.w.t.Context(), nil)
	c.w.must(err)
	for _, t := range r.Tools {
		out = append(out, t.Name)
	}
	return out
}

func expectNames(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func TestLists(t *testing.T) {
	t.Parallel()
	eras(t, func(t *testing.T, revision string) {
		w := newWorld(t, func(c *Config) { c.Tools, c.Guests = 3, []string{"weather"} })
		w.agent(parley.Agent{Name: "carol"})
		w.handleAt(w.node, "weather", parley.RawSkill("now", echo), parley.RawSkill("forecast", echo))
		w.handle("closed", echo)
		w.allow(policy.Rule{From: "*", To: []string{"weather", "bob"}}, policy.Rule{From: "carol", To: []string{"closed"}},
			policy.Rule{From: "guest/**", To: []string{"weather", "closed"}})

		alice, carol := w.connect("alice", revision), w.connect("carol", revision)
		guest := w.connect("guest/mcp/x", revision, asGuest)
		expectNames(t, "MCP-022 an agent", alice.listed(), "bob__talk", toolInbox, toolReply, toolResult, toolSend,
			"weather__forecast", "weather__now")
		expectNames(t, "MCP-024 many", carol.listed(), toolAsk, toolFind, toolResult, toolSend)
		expectNames(t, "MCP-022 a guest", guest.listed(), toolResult, toolSend, "weather__forecast", "weather__now")
		expectNames(t, "one agent", w.connect("alice", revision, at("weather")).listed(), "forecast", "now", toolResult)
		expectNames(t, "an agent without skills", w.connect("alice", revision, at("bob")).listed(), toolResult, "talk")
		expectNames(t, "one agent, hidden", w.connect("alice", revision, at("closed")).listed(), toolResult)
		expectNames(t, "one agent, not open to guests", w.connect("guest/mcp/x", revision, at("closed"), asGuest).listed(),
			toolResult)
		w.node.SetAgent("closed", AgentSettings{Guests: true})
		expectNames(t, "one agent, open to guests", w.connect("guest/mcp/x", revision, at("closed"), asGuest).listed(), "do",
			toolResult)

		// Tools that are not listed are called by name.
		for _, name := range []string{"weather__now", "closed__do", "weather.forecast", toolFind} {
			if _, err := carol.tool(t.Context(), name, `{}`); err != nil {
				t.Errorf("MCP-024 %s: %v", name, err)
			}
		}
	})
}

func TestDefinitions(t *testing.T) {
	t.Parallel()
	eras(t, func(t *testing.T, revision string) {
		w := newWorld(t)
		s := schemas(parley.RawSkill("forecast", echo), `{"type":"string"}`, `{"type":"array"}`)
		s.Name, s.Description = "Fore\u200bcast", "Says\u202e it."+strings.Repeat("x", 2*maxDescription)
		w.handleAt(w.node, "weather", s)
		r, err := w.connect("alice", revision).ListTools(t.Context(), nil)
		w.must(err)
		i := slices.IndexFunc(r.Tools, func(t *mcp.Tool) bool { return t.Name == "weather__forecast" })
		got := r.Tools[i]
		if got.Title != "Forecast (weather)" || len([]rune(got.Description)) > maxDescription ||
			!strings.HasPrefix(got.Description, "Asks the agent weather, whose own words these are: weather: Says it.xxx") ||
			got.Annotations.ReadOnlyHint || !*got.Annotations.DestructiveHint || !*got.Annotations.OpenWorldHint {
			t.Error(encoded(t, got))
		}
		in := encoded(t, got.InputSchema)
		if in != `{"additionalProperties":false,"properties":{"content":{"type":"string"}},"required":["content"],`+
			`"type":"object"}` {
			t.Error("MCP-021", in)
		}
		if (got.OutputSchema != nil) != (revision == modern) {
			t.Error("MCP-026", encoded(t, got.OutputSchema))
		}
	})
}

// The hub's own tools take what their schemas say.
func TestHubTools(t *testing.T) {
	t.Parallel()
	names := slices.Clone(hubTools)
	for name, d := range hubDefinitions {
		if name != d.Name || !slices.Contains(names, name) {
			t.Errorf("%s is no tool of the hub", name)
		}
		schema, ok := d.InputSchema.(json.RawMessage)
		if normal, err := showSchema(schema, func(s map[string]any) map[string]any { return s }, ""); !ok || err != nil ||
			!strings.Contains(string(normal), `"additionalProperties":false`) {
			t.Errorf("%s: %s, %v", name, normal, err)
		}
	}
	if len(hubDefinitions) != len(names) {
		t.Errorf("%d of %d tools are defined", len(hubDefinitions), len(names))
	}
	for _, c := range []struct {
		tool, arguments string
		ok              bool
	}{
		{toolAsk, `{"agent":"a","content":1,"skill":"s","conversation":"c"}`, true}, {toolAsk, `{"agent":"a"}`, false},
		{toolSend, `{"agent":"a","content":{},"in_reply_to":"x"}`, true}, {toolSend, `{"content":{}}`, false},
		{toolInbox, `{"after":"x","wait":0.5,"max":1}`, true}, {toolInbox, `{"max":0}`, false},
		{toolReply, `{"id":"x","state":"needs-input","content":"y"}`, true}, {toolReply, `{"id":"x","state":"done"}`, false},
		{toolResult, `{"id":"x","wait":0}`, true}, {toolResult, `{"id":"x","wait":-1}`, false},
	} {
		schema, _ := hubDefinitions[c.tool].InputSchema.(json.RawMessage)
		if err := hub.CheckContent(schema, json.RawMessage(c.arguments)); (err == nil) != c.ok {
			t.Errorf("MCP-025 %s %s: %v", c.tool, c.arguments, err)
		}
	}
}

// MCP-025: a tool of the hub takes each member that its schema shows, beside the required ones, and refuses by name a
// member that it does not show, one of another type, and the absence of a required one.
func TestMCP025HubToolSchemas(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.Wait = time.Nanosecond })
	w.far("distant", parley.SkillSpec{ID: "do"})
	c := w.connect("alice", modern)
	r, err := c.tool(t.Context(), "distant__do", `{"text":"hi"}`)
	wantText(t, r, err, false, toolResult)
	open := r.Meta[metaHandle]
	w.ask("bob", "alice", "hi")
	values := map[string]any{"agent": "distant", "skill": "do", "content": "hi", "conversation": r.Meta[metaConversation],
		"in_reply_to": open, "after": w.arrived("alice", 1).Cursor, "wait": 0, "max": 1, "id": open, "error": "no",
		"state": "working", "query": "distant", "limit": 1}
	type schema struct {
		Properties map[string]any
		Required   []string
	}
	shown := map[string]schema{}
	for name, tool := range hubDefinitions {
		var s schema
		w.must(json.Unmarshal(tool.InputSchema.(json.RawMessage), &s))
		shown[name] = s
		for member := range s.Properties {
			if values[member] == nil {
				t.Errorf("%s shows %s, which this test does not know", name, member)
			}
		}
	}
	for name, s := range shown {
		call := func(edit func(arguments map[string]any)) *mcp.CallToolResult {
			t.Helper()
			arguments := map[string]any{}
			for _, member := range s.Required {
				arguments[member] = values[member]
			}
			if name == toolReply { // what it needs besides is one of three
				arguments["id"], arguments["content"] = w.ask("bob", "alice", "hi").ID, "hi"
			}
			edit(arguments)
			r, err := c.tool(t.Context(), name, encoded(t, arguments))
			w.must(err)
			return r
		}
		for member, value := range values {
			if s.Properties[member] == nil {
				r := call(func(a map[string]any) { a[member] = value })
				wantText(t, r, nil, true, member+": ")
				continue
			}
			r := call(func(a map[string]any) {
				if name == toolReply && member == "error" {
					delete(a, "content")
				}
				if name != toolReply || member != "id" {
					a[member] = value
				}
			})
			if r.IsError {
				t.Errorf("%s does not take %s: %s", name, member, texts(r))
			}
			if member != "content" {
				wantText(t, call(func(a map[string]any) { a[member] = []bool{true} }), nil, true, member+": ")
			}
			if slices.Contains(s.Required, member) {
				wantText(t, call(func(a map[string]any) { delete(a, member) }), nil, true, member+": ")
			}
		}
	}
}

func TestNamesOfOneAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	long := strings.Repeat("x", 64)
	w.handleAt(w.node, "odd", parley.RawSkill("a.b", echo), parley.RawSkill("a-b", echo), parley.RawSkill(long, echo),
		parley.RawSkill(toolResult, echo), parley.RawSkill("ünï", echo), parley.RawSkill("plain", echo))
	c := w.connect("alice", modern, at("odd"))
	got := c.listed()
	if len(got) != 7 || !slices.IsSorted(got) || !slices.Equal(got, c.listed()) {
		t.Errorf("MCP-020 %q", got)
	}
	valid := regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)
	skills := map[string]bool{}
	for _, name := range got {
		if !valid.MatchString(name) {
			t.Errorf("MCP-020 %q", name)
		}
		if name == toolResult {
			continue
		}
		tool, ok := w.node.clients.find(w.node.clientAt("alice", "odd"), name)
		if !ok || skills[tool.Skill.ID] {
			t.Errorf("MCP-020 %q is found: %v", name, ok)
			continue
		}
		skills[tool.Skill.ID] = true
	}
	if len(skills) != 6 || !slices.Contains(got, "plain") || !slices.Contains(got, toolResult) {
		t.Errorf("MCP-020 %q", got)
	}
}

func (n *testNode) clientAt(name, agent string) *caller {
	c := &caller{endpoint: Base + "/agents/" + agent, agent: agent}
	c.Name = name
	return c
}

func TestFind(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.Guests = []string{"open"} })
	skill := schemas(parley.RawSkill("forecast", echo), `{"type":"string","title":"x\u200by"}`, "")
	skill.Description = "Says how the wea\u200bther will be."
	w.handleAt(w.node, "weather", skill)
	w.handle("open", echo)
	w.handle("closed", echo)
	w.allow(policy.Rule{From: "alice", To: []string{"weather", "open"}}, policy.Rule{From: "guest/**", To: []string{"**"}})
	type answer struct {
		Found []struct {
			Agent, Skill, Tool, Description string
			Input                           json.RawMessage
		}
		Total int
	}
	find := func(c *client, arguments string) (out answer) {
		t.Helper()
		r, err := c.tool(t.Context(), toolFind, arguments)
		w.must(err)
		if r.IsError || encoded(t, r.StructuredContent) == "" {
			t.Fatal(texts(r))
		}
		w.must(json.Unmarshal([]byte(texts(r)), &out))
		var again answer
		w.must(json.Unmarshal([]byte(encoded(t, r.StructuredContent)), &again))
		if encoded(t, out) != encoded(t, again) {
			t.Errorf("MCP-027 %v and %v", out, again)
		}
		return out
	}
	alice := w.connect("alice", modern)
	if got := find(alice, `{"query":"Forecast SAYS"}`); got.Total != 1 || got.Found[0].Tool != "weather__forecast" ||
		got.Found[0].Agent != "weather" || got.Found[0].Skill != "forecast" ||
		string(got.Found[0].Input) != `{"title":"xy","type":"string"}` ||
		got.Found[0].Description != "weather: Says how the weather will be." {
		t.Error(encoded(t, got))
	}
	if got := find(alice, `{}`); got.Total != 2 || len(got.Found) != 2 {
		t.Error("MCP-022", encoded(t, got))
	}
	if got := find(alice, `{"limit":1.0}`); got.Total != 2 || len(got.Found) != 1 {
		t.Error(encoded(t, got))
	}
	got := find(w.connect("guest/mcp/x", legacy, asGuest), `{"limit":1}`)
	if got.Total != 1 || got.Found[0].Agent != "open" {
		t.Error("MCP-022", encoded(t, got))
	}
	for arguments, member := range map[string]string{`{"limit":0}`: "limit: ", `{"limit":101}`: "limit: ",
		`{"query":["x"]}`: "query: ", `{"limit":1.5}`: "limit: ", `{"Query":"x"}`: "Query: ", `[]`: "arguments: "} {
		r, err := alice.tool(t.Context(), toolFind, arguments)
		if err != nil || !r.IsError || !strings.Contains(texts(r), member) {
			t.Errorf("MCP-025 %s: %v, %v", arguments, r, err)
		}
	}
}

// The skills in one answer are bounded; the total says how many there are.
func TestFindIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var list []parley.SkillSpec
	for i := range 20 {
		list = append(list, schemas(parley.RawSkill(fmt.Sprint("s", i), echo), `{"type":"object","enum":["`+
			strings.Repeat("x", maxSchemaSize/2)+`"]}`, ""))
	}
	w.handleAt(w.node, "large", list...)
	r := w.node.clients.search(w.toolCall(w.caller("alice"), toolFind, `{"query":"large"}`))
	text := texts(r)
	if len(text) > maxFound+1000 || len(text) < maxFound/2 || !strings.HasSuffix(text, `"total":20}`) {
		t.Errorf("%d bytes: …%s", len(text), text[max(0, len(text)-100):])
	}
}

// bigWorld has 1,000 agents with 5 skills each.
func bigWorld(b *testing.B) *world {
	w := newWorld(b, func(c *Config) { c.Callers = &doorCallers{} })
	for i := range 1000 {
		a := parley.Agent{Name: fmt.Sprintf("agent-%d", i), Exposed: parley.Everywhere, Description: "An agent."}
		for j := range 5 {
			a.Skills = append(a.Skills, parley.SkillSpec{ID: fmt.Sprintf("skill-%d", j), Description: "Does something.",
				Input: json.RawMessage(`{"type":"object","properties":{"q":{"type":"string"}}}`)})
		}
		w.agent(a)
	}
	return w
}

func BenchmarkListTools(b *testing.B) {
	w := bigWorld(b)
	for _, c := range []struct {
		name string
		to   []string
	}{{"20 of 5,000", []string{"agent-1", "agent-2", "agent-3", "agent-4"}}, {"5,000", []string{"**"}}} {
		b.Run(c.name, func(b *testing.B) {
			p, err := policy.New(policy.Config{Hub: "here", Allow: []policy.Rule{{From: "alice", To: c.to}}})
			w.must(err)
			w.node.hub.SetPolicy(p)
			who := w.caller("alice")
			b.ReportAllocs()
			for b.Loop() {
				if _, err := json.Marshal(w.node.clients.tools(who, true)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkListToolsOverHTTP is the whole way of a list: a connection, the door, the SDK, the answer. A list of 20 may
// take 5 ms. Of 5,000 tools the list has parley_find and parley_ask instead.
func BenchmarkListToolsOverHTTP(b *testing.B) {
	w := bigWorld(b)
	hub := httptest.NewServer(w.node)
	defer hub.Close()
	send := func(a ask) (session string, reply rpcReply) {
		r := a.on()
		r.RequestURI, r.URL.Scheme, r.URL.Host = "", "http", hub.Listener.Addr().String()
		resp, err := hub.Client().Do(r)
		w.must(err)
		defer resp.Body.Close()
		return resp.Header.Get(sessionHeader), replyOf(b, resp)
	}
	session, _ := send(ask{token: "alice", body: initialize})
	of := func(n int) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprintf("agent-%d", i))
		}
		return out
	}
	for _, c := range []struct {
		name  string
		to    []string
		tools int
		finds bool
	}{{"20 tools", of(4), 24, false}, {"5,000 tools", []string{"**"}, 6, true}} {
		w.allow(policy.Rule{From: "alice", To: c.to})
		for revision, a := range map[string]ask{modern: modernAsk(methodListTools, ""),
			legacy: legacyAsk("alice", session, `{"jsonrpc":"2.0","id":7,"method":"tools/list"}`)} {
			b.Run(c.name+", "+revision, func(b *testing.B) {
				b.ReportAllocs()
				var list mcp.ListToolsResult
				for b.Loop() {
					_, reply := send(a)
					w.must(json.Unmarshal(reply.Result, &list))
				}
				found := slices.ContainsFunc(list.Tools, func(t *mcp.Tool) bool { return t.Name == toolFind })
				if len(list.Tools) != c.tools || found != c.finds {
					b.Errorf("%d tools, %s among them: %v", len(list.Tools), toolFind, found)
				}
			})
		}
	}
}

func BenchmarkFind(b *testing.B) {
	w := bigWorld(b)
	t := w.toolCall(w.caller("alice"), toolFind, `{"query":"agent-7 skill-3"}`)
	b.ReportAllocs()
	for b.Loop() {
		if r := w.node.clients.search(t); r.IsError {
			b.Fatal(texts(r))
		}
	}
}
