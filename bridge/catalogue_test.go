package bridge

import (
	"context"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/policy"
)

// newCatalogue gives the catalogue of agents that alice and b may call.
func newCatalogue(t *testing.T, agents ...parley.Agent) (*Catalogue, *directory.Directory) {
	t.Helper()
	j, err := journal.Open(t.Context(), journal.Config{Store: testjournal.Memory(t)})
	if err != nil {
		t.Fatal(err)
	}
	d, err := directory.Open(t.Context(), directory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := policy.New(policy.Config{Hub: "hub", Allow: []policy.Rule{
		{From: "alice", To: []string{"**"}}, {From: "b", To: []string{"**"}}}})
	if err != nil {
		t.Fatal(err)
	}
	h, err := hub.New(hub.Config{ID: "hub", Secret: make([]byte, 32), Journal: j, Directory: d, Policy: p})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, err := range []error{h.Close(context.Background()), j.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
		d.Close()
	})
	for _, a := range agents {
		put(t, d, a)
	}
	return NewCatalogue(h), d
}

func put(t *testing.T, d *directory.Directory, a parley.Agent) {
	t.Helper()
	a.Exposed = parley.Everywhere
	if _, err := d.Put(t.Context(), a, directory.FromOperator); err != nil {
		t.Fatal(err)
	}
}

// agent makes an agent with skills of these ids.
func agent(name string, skills ...string) parley.Agent {
	a := parley.Agent{Name: name}
	for _, id := range skills {
		a.Skills = append(a.Skills, parley.SkillSpec{ID: id})
	}
	return a
}

func namesOf(tools []*Tool) (names []string) {
	for _, t := range tools {
		names = append(names, t.Name)
	}
	return names
}

var odd = []parley.Agent{
	agent("crew/echo", "echo", "say again", "say.again", "äöü", "\xff", "parley_find", "echo"),
	agent("crew.echo", "echo"), agent("crew-echo", "echo"), agent("bob"), agent("parley_find"),
	agent("short", strings.Repeat("long-", 20), strings.Repeat("long-", 20)+"x", strings.Repeat("x", 57),
		strings.Repeat("x", 58)),
	agent(strings.Repeat("a", 100), "echo", "raw"),
}

func TestToolNames(t *testing.T) {
	t.Parallel()
	c, _ := newCatalogue(t, odd...)
	tools := c.Visible("a2e", "alice")
	names := namesOf(tools)

	t.Run("MCP-020 names are valid, unique and sorted", func(t *testing.T) {
		form := regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)
		for i, name := range names {
			if !form.MatchString(name) || i > 0 && name <= names[i-1] {
				t.Errorf("%q comes after %q", name, names[max(i-1, 0)])
			}
		}
		if len(names) != 17 {
			t.Errorf("%d tools: %q", len(names), names)
		}
	})
	t.Run("MCP-020 names are the same after a restart", func(t *testing.T) {
		agents := slices.Clone(odd)
		slices.Reverse(agents)
		again, _ := newCatalogue(t, agents...)
		if got := namesOf(again.Visible("a2e", "alice")); !slices.Equal(got, names) {
			t.Errorf("%q, before %q", got, names)
		}
	})
	t.Run("a name that several tools would have leads to none", func(t *testing.T) {
		if got, ok := c.Tool("crew-echo__echo"); ok || slices.Contains(names, "crew-echo__echo") {
			t.Errorf("it leads to %+v", got)
		}
	})
	t.Run("a name leads to its tool", func(t *testing.T) {
		for _, want := range tools {
			if got, ok := c.Tool(want.Name); !ok || got != want {
				t.Errorf("%q leads to %+v", want.Name, got)
			}
		}
	})
	t.Run("a name of the usual form is agent__skill", func(t *testing.T) {
		for _, name := range []string{"bob__talk", "crew-echo__---", "crew-echo__-", "parley_find__talk",
			"short__" + strings.Repeat("x", 57)} {
			if !slices.Contains(names, name) {
				t.Errorf("%q is not in %q", name, names)
			}
		}
	})
}

func TestToolLookup(t *testing.T) {
	t.Parallel()
	two := agent("two", "a.b", "a-b", "c d")
	two.Skills[1].Default = true
	c, d := newCatalogue(t, agent("crew/echo", "echo"), agent("crew.v2", "x"), agent("bob"), agent("many", "a", "b"), two)
	for name, want := range map[string]string{
		"crew-echo__echo": "crew/echo echo", "crew/echo__echo": "crew/echo echo", "crew/echo.echo": "crew/echo echo",
		"crew/echo": "crew/echo echo", "crew.v2": "crew.v2 x", "crew.v2.x": "crew.v2 x",
		"bob": "bob ", "bob__talk": "bob ", "bob.talk": "bob ",
		"two": "two a-b", "two.a.b": "two a.b", "two.a-b": "two a-b", "two__c-d": "two c d", "two.c d": "two c d",
		"many": "", "many.b": "many b", "many.c": "", "bob.x": "", "nobody": "", "nobody__x": "", "": "", "__": "", ".": "",
	} {
		got, ok := c.Tool(name)
		if ok != (want != "") || ok && got.Agent+" "+got.Skill.ID != want {
			t.Errorf("%q leads to %+v, want %q", name, got, want)
		}
	}
	if got, ok := c.Skill("two", ""); !ok || got.Skill.ID != "a-b" {
		t.Errorf("the default skill is %+v", got)
	}

	put(t, d, agent("new", "x"))
	if _, ok := c.Tool("new__x"); !ok {
		t.Error("an agent that was added is not found")
	}
	put(t, d, agent("new", "y"))
	if _, ok := c.Tool("new__x"); ok {
		t.Error("a skill that went away is found")
	}
	if err := d.Remove(t.Context(), "new"); err != nil {
		t.Fatal(err)
	}
	if _, ok := c.Tool("new__y"); ok {
		t.Error("an agent that was removed is found")
	}
}

func TestToolsOfCaller(t *testing.T) {
	t.Parallel()
	c, d := newCatalogue(t, agent("a", "x"), agent("b", "x", "y"))
	hidden := parley.Agent{Name: "hidden", Skills: []parley.SkillSpec{{ID: "x"}}}
	if _, err := d.Put(t.Context(), hidden, directory.FromOperator); err != nil {
		t.Fatal(err)
	}
	for caller, want := range map[string][]string{
		"alice": {"a__x", "b__x", "b__y"}, "b": {"a__x"}, "shut-out": nil,
	} {
		if got := namesOf(c.Visible("a2e", caller)); !slices.Equal(got, want) {
			t.Errorf("%s sees %q", caller, got)
		}
	}
	for _, x := range []struct {
		caller, query string
		limit         int
		want          []string
		total         int
	}{
		{"alice", "", 20, []string{"a__x", "b__x", "b__y"}, 3}, {"alice", "", 2, []string{"a__x", "b__x"}, 3},
		{"alice", " B  y ", 20, []string{"b__y"}, 1}, {"alice", "hidden", 20, nil, 0}, {"alice", "", -1, nil, 3},
		{"shut-out", "", 20, nil, 0},
	} {
		found, total := c.Search("a2e", x.caller, x.query, x.limit)
		if got := namesOf(found); !slices.Equal(got, x.want) || total != x.total {
			t.Errorf("%s finds by %q %q of %d", x.caller, x.query, got, total)
		}
	}
}

func TestToolTexts(t *testing.T) {
	t.Parallel()
	entry := &directory.Entry{Agent: parley.Agent{Name: "crew/echo", Title: "Echo", Description: "An echo.",
		Identities: []parley.Identity{{Protocol: "asp"}, {Protocol: "a2a", StandIn: true}}}}
	tool := &Tool{Name: "crew-echo__say", Agent: "crew/echo", Entry: entry,
		Skill: parley.SkillSpec{ID: "say", Description: "Says it again.", Input: json.RawMessage(`{"type":"object"}`)}}
	if got := tool.Description(); got != "Echo: Says it again. An echo." {
		t.Errorf("described as %q", got)
	}
	if got := tool.Tags(); !slices.Equal(got, []string{"agent:crew/echo", "skill:say", "protocol:asp"}) {
		t.Errorf("tagged %q", got)
	}
	hit, err := json.Marshal(tool.Hit())
	if want := `{"agent":"crew/echo","skill":"say","tool":"crew-echo__say","description":` +
		`"Echo: Says it again. An echo.","input":{"type":"object"}}`; err != nil || string(hit) != want {
		t.Errorf("found as %s, %v", hit, err)
	}

	plain := &Tool{Name: "bob__talk", Agent: "bob", Entry: &directory.Entry{Agent: parley.Agent{Name: "bob"}}}
	if got := plain.Description(); got != "bob: asks the agent" {
		t.Errorf("described as %q", got)
	}
	plain.Skill.Description = strings.Repeat("ä", 2000)
	if got := []rune(plain.Description()); len(got) != 1000 || got[999] != '…' {
		t.Errorf("described in %d characters", len(got))
	}
}

func TestWrappedContent(t *testing.T) {
	t.Parallel()
	for schema, wrapped := range map[string]bool{
		``: false, `{}`: false, `true`: false, `null`: false, `[]`: false, `{"type":"object"}`: false,
		`{"properties":{}}`: false, `{"type":["null","object"]}`: false,
		`{"type":"string"}`: true, `{"type":["null","array"]}`: true, `{"enum":["a",1]}`: true,
	} {
		tool := &Tool{Skill: parley.SkillSpec{Input: json.RawMessage(schema)}}
		if got := tool.Wrapped(); got != wrapped {
			t.Errorf("%s: wrapped is %t", schema, got)
		}
		for arguments, content := range map[string]string{`{"value":[1]}`: `[1]`, `{"value":1,"x":2}`: "", `"a"`: "", ``: ""} {
			if !wrapped || content == "" {
				content = arguments
			}
			if got := tool.Content(json.RawMessage(arguments), "value"); string(got) != content {
				t.Errorf("%s: the content of %s is %s", schema, arguments, got)
			}
		}
	}
}

// A name never passes to another tool, whatever names and skills other agents choose.
func TestToolNamesAreNotTaken(t *testing.T) {
	t.Parallel()
	c, d := newCatalogue(t, agent("x/y", "a"))
	names := map[string]string{} // name → its first tool
	look := func(tools int) {
		t.Helper()
		list := c.Visible("a2e", "alice")
		if len(list) != tools {
			t.Errorf("%q: want %d tools", namesOf(list), tools)
		}
		for i, tool := range list {
			is := tool.Agent + " " + tool.Skill.ID
			if was := names[tool.Name]; was != "" && was != is || i > 0 && tool.Name == list[i-1].Name {
				t.Errorf("%q is %q now, and was %q", tool.Name, is, was)
			}
			names[tool.Name] = is
		}
		for name, was := range names {
			if got, ok := c.Tool(name); ok && got.Agent+" "+got.Skill.ID != was {
				t.Errorf("%q leads to %+v now, and was %q", name, got, was)
			}
		}
	}
	skills := func() (ids []string) {
		for _, tool := range c.Visible("a2e", "alice") {
			_, id, _ := strings.Cut(tool.Name, "__")
			ids = append(ids, id)
		}
		return ids
	}
	look(1)
	put(t, d, agent("x-y", skills()...)) // the same tool name
	look(2)
	put(t, d, agent("x-y", append(skills(), "a")...)) // the names that these tools have now
	look(4)
	put(t, d, agent("x.y", skills()...))
	look(8)
}

// What a caller sees is cached until the directory or the policy changes.
func TestVisibleFollowsChanges(t *testing.T) {
	t.Parallel()
	c, d := newCatalogue(t, agent("bob", "do"))
	see := func(what, caller string, want ...string) {
		t.Helper()
		for range 2 {
			if got := namesOf(c.Visible("a2e", caller)); !slices.Equal(got, want) {
				t.Errorf("%s: %s sees %q, want %q", what, caller, got, want)
			}
			if found, total := c.Search("a2e", caller, "", 100); total != len(want) || !slices.Equal(namesOf(found), want) {
				t.Errorf("%s: %s finds %q, want %q", what, caller, namesOf(found), want)
			}
		}
	}
	see("at first", "alice", "bob__do")
	see("at first", "mallory")
	put(t, d, agent("carol", "talk"))
	see("a new agent", "alice", "bob__do", "carol__talk")
	p, err := policy.New(policy.Config{Hub: "hub", Allow: []policy.Rule{{From: "mallory", To: []string{"bob"}}}})
	if err != nil {
		t.Fatal(err)
	}
	c.hub.SetPolicy(p)
	see("a new policy", "alice")
	see("a new policy", "mallory", "bob__do")
	for i := range maxToolLists + 1 {
		c.Visible("a2e", strings.Repeat("x", i+1))
	}
	if n := len(c.lists.of); n > maxToolLists {
		t.Errorf("%d lists are cached", n)
	}
	see("many callers", "mallory", "bob__do")
}
