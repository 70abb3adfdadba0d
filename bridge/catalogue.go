package bridge

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"sync"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/policy"
)

// A Catalogue is the directory as tools, for protocols whose agents call tools: one for
// each skill of each agent. For example, the skill "report" of the agent "crew/echo" is the
// tool crew-echo__report. It is safe for concurrent use.
//
// A tool's name matches ^[a-zA-Z0-9_-]{1,64}$ (MCP-020), is unique, and is the same after a
// restart. It has "__", or a hash at its end, so it is never the name of a hub's own tool.
// Tools whose names would be the same all have a hash: while a tool is there, its name never
// passes to another one.
type Catalogue struct {
	hub *hub.Hub

	mu    sync.Mutex
	index *toolIndex
	lists toolLists
}

// toolLists caches what callers see of one index under one policy.
type toolLists struct {
	index  *toolIndex
	policy *policy.Policy
	of     map[string][]*Tool // by protocol and caller
}

const maxToolLists = 256

// A Tool is one skill of one agent. It is immutable.
type Tool struct {
	Name  string
	Agent string
	Entry *directory.Entry
	Skill parley.SkillSpec // ID is "" for an agent without known skills

	text string // for Search, in lower case; see toolIndex.texts
}

// toolIndex holds the tools of one state of the directory.
type toolIndex struct {
	entries []*directory.Entry // as the directory listed them
	list    []*Tool            // by name
	byName  map[string]*Tool   // nil for a name that several tools would have
	byAgent map[string][]*Tool // in the order of the agent's skills
	texts   sync.Once          // the first search sets the texts of all tools
}

// NewCatalogue makes the catalogue of a hub's directory.
func NewCatalogue(h *hub.Hub) *Catalogue { return &Catalogue{hub: h, index: newToolIndex(nil)} }

// current gives the index of the directory as it is now.
func (c *Catalogue) current() *toolIndex {
	entries := c.hub.Directory().All()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !sameList(entries, c.index.entries) {
		c.index = newToolIndex(entries)
	}
	return c.index
}

// sameList reports whether the directory gave one list twice: it makes a new one after each
// change, and never writes to an old one.
func sameList(a, b []*directory.Entry) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

func newToolIndex(entries []*directory.Entry) *toolIndex {
	x := &toolIndex{entries: entries, byName: map[string]*Tool{}, byAgent: map[string][]*Tool{}}
	var shared []*Tool // whose names are too long, or not theirs alone
	for _, e := range entries {
		list := e.Skills
		if len(list) == 0 {
			list = []parley.SkillSpec{{}}
		}
		for _, s := range list {
			t := &Tool{Name: SafeName(e.Name) + "__" + SafeName(skillID(s)), Agent: e.Name, Entry: e, Skill: s}
			x.byAgent[e.Name] = append(x.byAgent[e.Name], t)
			x.list = append(x.list, t)
			other, taken := x.byName[t.Name]
			switch {
			case !taken && len(t.Name) <= maxToolName:
				x.byName[t.Name] = t
				continue
			case other != nil:
				shared = append(shared, other)
				x.byName[t.Name] = nil
			}
			shared = append(shared, t)
		}
	}
	marked := map[string]bool{}
	for i := 0; i < len(shared); i++ {
		t := shared[i]
		t.Name = x.markedName(t, marked)
		marked[t.Name] = true
		if other := x.byName[t.Name]; other != nil { // its skill's id looks like a hash
			shared = append(shared, other)
		}
		x.byName[t.Name] = t
	}
	slices.SortFunc(x.list, func(a, b *Tool) int { return cmp.Compare(a.Name, b.Name) })
	return x
}

// skillID names the one tool of an agent without known skills too.
func skillID(s parley.SkillSpec) string { return cmp.Or(s.ID, "talk") }

// maxToolName is the longest name of a tool that the makers of models allow.
const maxToolName = 64

// markedName gives a tool's name with a part of its hash. No other marked tool has it.
func (x *toolIndex) markedName(t *Tool, marked map[string]bool) string {
	seed := t.Agent + "\x00" + skillID(t.Skill)
	for {
		sum := sha256.Sum256([]byte(seed))
		mark := "-" + hex.EncodeToString(sum[:4])
		name := t.Name[:min(len(t.Name), maxToolName-len(mark))] + mark
		if other, ok := x.byName[name]; !marked[name] && (!ok || other != nil) {
			return name
		}
		seed = string(sum[:])
	}
}

// SafeName spells a name in the characters that the makers of models allow.
func SafeName(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '-':
			return r
		}
		return '-'
	}, s)
}

// Tool finds a tool by its name, by agent__skill or agent.skill with the names of the
// directory, or by an agent alone. A name that several tools would have finds none. Tool does
// not ask whether the caller may see it.
func (c *Catalogue) Tool(name string) (*Tool, bool) {
	x := c.current()
	if t, ok := x.byName[name]; ok {
		return t, t != nil
	}
	for _, sep := range []string{"__", "."} {
		for i := range name {
			skill, found := strings.CutPrefix(name[i:], sep)
			if !found {
				continue
			}
			if t, ok := x.skill(name[:i], skill); ok {
				return t, true
			}
		}
	}
	return x.skill(name, "")
}

// Skill finds the tool of an agent's skill; "" is the default skill. The agent has the name
// of the directory, the skill its id or the spelling of it in the tool's name.
func (c *Catalogue) Skill(agent, skill string) (*Tool, bool) { return c.current().skill(agent, skill) }

func (x *toolIndex) skill(agent, skill string) (*Tool, bool) {
	tools := x.byAgent[agent]
	if len(tools) == 0 {
		return nil, false
	}
	if skill == "" {
		s, ok := tools[0].Entry.SkillNamed("")
		if !ok && len(tools[0].Entry.Skills) > 0 {
			return nil, false
		}
		skill = skillID(s)
	}
	i := slices.IndexFunc(tools, func(t *Tool) bool { return skillID(t.Skill) == skill })
	if i < 0 {
		i = slices.IndexFunc(tools, func(t *Tool) bool { return SafeName(skillID(t.Skill)) == skill })
	}
	if i < 0 {
		return nil, false
	}
	return tools[i], true
}

// Visible lists the tools that a caller of a protocol may call, by name. Its own skills are
// not among them. The result is shared: do not change it.
func (c *Catalogue) Visible(protocol, caller string) []*Tool {
	return c.visible(c.current(), protocol, caller)
}

func (c *Catalogue) visible(x *toolIndex, protocol, caller string) []*Tool {
	now := toolLists{index: x, policy: c.hub.Policy()}
	key := protocol + "\n" + caller
	c.mu.Lock()
	if c.lists.index != now.index || c.lists.policy != now.policy || len(c.lists.of) >= maxToolLists {
		now.of = map[string][]*Tool{}
		c.lists = now
	}
	now.of = c.lists.of
	out, known := now.of[key]
	c.mu.Unlock()
	if known {
		return out
	}
	for _, t := range x.list {
		if t.Agent != caller && c.hub.Visible(protocol, caller, t.Entry, t.Skill.ID) {
			out = append(out, t)
		}
	}
	if c.hub.Policy() == now.policy { // else some are by newer rules
		c.mu.Lock()
		now.of[key] = out
		c.mu.Unlock()
	}
	return out
}

// Search lists at most limit of the visible tools whose names or descriptions have each word
// of a query, by name; total counts all of them.
func (c *Catalogue) Search(protocol, caller, query string, limit int) (found []*Tool, total int) {
	words := strings.Fields(strings.ToLower(query))
	x := c.current()
	x.texts.Do(func() {
		for _, t := range x.list {
			t.text = strings.ToLower(t.Name + " " + t.Agent + " " + t.Skill.Name + " " + t.Description())
		}
	})
	for _, t := range c.visible(x, protocol, caller) {
		if slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(t.text, w) }) {
			continue
		}
		if total++; total <= limit {
			found = append(found, t)
		}
	}
	return found, total
}

// Description says whose tool it is and what it does, in at most 1000 characters.
func (t *Tool) Description() string {
	var s []string
	for _, v := range []string{t.Skill.Description, t.Entry.Description} {
		if v != "" && !slices.Contains(s, v) {
			s = append(s, v)
		}
	}
	if len(s) == 0 {
		s = append(s, "asks the agent")
	}
	return Shorten(cmp.Or(t.Entry.Title, t.Agent)+": "+strings.Join(s, " "), 1000)
}

// Tags are "agent:NAME", "skill:ID", and "protocol:NAME" for each that the agent speaks.
func (t *Tool) Tags() []string {
	tags := []string{"agent:" + t.Agent}
	if t.Skill.ID != "" {
		tags = append(tags, "skill:"+t.Skill.ID)
	}
	for _, i := range t.Entry.Identities {
		if p := "protocol:" + i.Protocol; !i.StandIn && !slices.Contains(tags, p) {
			tags = append(tags, p)
		}
	}
	return tags
}

// A Hit is a tool as parley_find shows it.
type Hit struct {
	Agent       string          `json:"agent"`
	Skill       string          `json:"skill,omitempty"`
	Tool        string          `json:"tool"`
	Description string          `json:"description"`
	Input       json.RawMessage `json:"input,omitzero"` // JSON Schema of the skill's content
}

// Hit gives the tool as parley_find shows it.
func (t *Tool) Hit() Hit {
	return Hit{t.Agent, t.Skill.ID, t.Name, t.Description(), SchemaObject(t.Skill.Input)}
}

// Wrapped reports whether the skill's content is no object. Arguments of a tool are always
// an object, so they hold the content as a member.
func (t *Tool) Wrapped() bool {
	s, ok := ReadSchema(t.Skill.Input)
	return ok && !s.TakesObject()
}

// Content gives the content for the skill from the arguments of a call. member is the argument that has all of the
// content if the tool is [Tool.Wrapped].
func (t *Tool) Content(arguments json.RawMessage, member string) json.RawMessage {
	if !t.Wrapped() {
		return arguments
	}
	var m map[string]json.RawMessage
	if jsonx.Decode(arguments, &m) == nil && len(m) == 1 && m[member] != nil {
		return m[member]
	}
	return arguments
}

// Shorten bounds a text for people to n characters; "…" is in place of those it leaves out.
func Shorten(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}
