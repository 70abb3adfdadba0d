package mcp

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/journal"
)

// Bounds of a list of tools. Two lists are in one row of the journal, whose values may have 1 MiB.
const (
	maxPages       = 100
	maxListed      = 1000
	maxListBytes   = 400 << 10
	maxToolText    = 128  // bytes of a name
	maxPinnedTitle = 200  // characters
	maxPinnedText  = 4000 // characters
)

// pinned is what is kept of an attached server's tools: what the operator approved, and what the server lists now.
type pinned struct {
	Identity string         `json:"identity"` // of the server
	Card     directory.Card `json:"card"`     // as of the approval
	Approved []ToolText     `json:"approved"`
	Offered  []ToolText     `json:"offered,omitzero"`
	Next     directory.Card `json:"next,omitzero"`   // comes with Offered
	Digest   string         `json:"digest,omitzero"` // of Offered; "": the server lists what was approved
}

// approve takes what the server lists now.
func (p *pinned) approve() {
	p.Card, p.Approved = p.Next, p.Offered
	p.Next, p.Offered, p.Digest = directory.Card{}, nil, ""
}

// toolList checks the tools that a server lists, and brings them into the form that is pinned: by name, with bounded
// texts. A tool with a name or a schema that cannot be used is left out, and named in skipped.
func toolList(listed []*mcp.Tool) (tools []ToolText, skipped []string, err error) {
	size := 0
	for _, t := range listed {
		x := ToolText{Name: t.Name, Title: shownText(cmp.Or(t.Title, titleOf(t)), maxPinnedTitle),
			Description: shownText(t.Description, maxPinnedText)}
		var bad bool
		x.Input, bad = pinnedSchema(t.InputSchema)
		if !bad {
			x.Output, bad = pinnedSchema(t.OutputSchema)
		}
		if bad || !validName(t.Name) {
			skipped = append(skipped, shownText(t.Name, maxToolText))
			continue
		}
		size += len(x.Name) + len(x.Title) + len(x.Description) + len(x.Input) + len(x.Output)
		if len(tools) == maxListed || size > maxListBytes {
			return nil, nil, fmt.Errorf("the server lists too much: at most %d tools with %d bytes are taken",
				maxListed, maxListBytes)
		}
		tools = append(tools, x)
	}
	slices.SortFunc(tools, func(a, b ToolText) int { return cmp.Compare(a.Name, b.Name) })
	for i := range tools[min(1, len(tools)):] {
		if tools[i].Name == tools[i+1].Name {
			return nil, nil, fmt.Errorf("the server lists the tool %q twice", tools[i].Name)
		}
	}
	return tools, skipped, nil
}

func titleOf(t *mcp.Tool) string {
	if t.Annotations == nil {
		return ""
	}
	return t.Annotations.Title
}

// validName reports whether a tool's name can be used: visible characters, without spaces.
func validName(s string) bool {
	return s != "" && len(s) <= maxToolText && s == strings.ToValidUTF8(s, "") &&
		!strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsGraphic(r) || unicode.IsSpace(r) })
}

// pinnedSchema gives the canonical text of a schema, nil for none; bad: it is no object, or too large.
func pinnedSchema(schema any) (text json.RawMessage, bad bool) {
	if schema == nil {
		return nil, false
	}
	raw, err := json.Marshal(schema)
	if err != nil || len(raw) > maxSchemaSize || jsonx.Kind(raw) != '{' || jsonx.TooDeep(raw, maxSchemaDepth) {
		return nil, true
	}
	raw, err = jsonx.Canonicalize(raw)
	return raw, err != nil
}

// digestOf is the digest of a list of tools.
func digestOf(tools []ToolText) string {
	raw, _ := json.Marshal(tools) // no input can make it fail
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

// toolSkill is the id of a tool's skill: its name, if that is one of the specification.
func toolSkill(name string) string {
	safe := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '-', r == '.':
			return r
		}
		return '-'
	}, name)
	if safe == name {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return safe + "-" + hex.EncodeToString(sum[:4])
}

// skillsOf gives tools as the skills of the server's agent.
func skillsOf(tools []ToolText) []parley.SkillSpec {
	var out []parley.SkillSpec
	for _, t := range tools {
		out = append(out, parley.SkillSpec{ID: toolSkill(t.Name), Name: t.Title, Description: t.Description,
			Input: t.Input, Output: t.Output})
	}
	return out
}

// approvedTools gives the tools of a server that agents may call; none: its list was never read.
func (s *servers) approvedTools(agent string, id parley.Identity) []ToolText {
	p := s.pins.Known(agent).Value
	if p.Identity != id.ID {
		return nil
	}
	return p.Approved
}

// toolOf finds the tool of a skill; "" is the only one.
func toolOf(tools []ToolText, skill string) (*ToolText, bool) {
	if skill == "" && len(tools) == 1 {
		return &tools[0], true
	}
	for i := range tools {
		if toolSkill(tools[i].Name) == skill {
			return &tools[i], true
		}
	}
	return nil, false
}

// isApproved reports whether a server's tool may be called.
func (s *servers) isApproved(agent string, id parley.Identity, tool string) bool {
	return slices.ContainsFunc(s.approvedTools(agent, id), func(t ToolText) bool { return t.Name == tool })
}

// offer takes the tools that a server lists now. The first ones are pinned; later ones wait for the operator, unless
// the agent's settings take them.
func (s *servers) offer(ctx context.Context, agent string, id parley.Identity, card directory.Card,
	tools []ToolText) error {
	if tools == nil {
		tools = []ToolText{} // unlike nil, recorded as a list
	}
	digest, accept := digestOf(tools), s.b.settingsOf(agent).Accept
	var before pinned
	var changed bool
	_, err := s.pins.Change(ctx, agent, func(r *journal.Row[pinned]) (bool, error) {
		p := &r.Value
		before, changed = *p, false
		switch {
		case r.Revision == 0 || p.Identity != id.ID || len(p.Approved) == 0 && p.Digest == "":
			if len(tools) == 0 && p.Identity == id.ID {
				return false, nil // a server may list its tools some time after its start
			}
			before = pinned{}
			*p = pinned{Identity: id.ID, Card: card, Approved: tools}
		case digestOf(p.Approved) == digest:
			if p.Digest == "" {
				return false, nil
			}
			p.Next, p.Offered, p.Digest = directory.Card{}, nil, ""
		case p.Digest == digest && !accept:
			return false, nil
		default:
			changed = true
			p.Next, p.Offered, p.Digest = card, tools, digest
			if accept {
				p.approve()
			}
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("record the tools of %q: %w", agent, err)
	}
	if changed {
		s.logChange(agent, before.Approved, tools, accept)
	}
	return nil
}

// logChange says which tools of a server changed.
func (s *servers) logChange(agent string, before, after []ToolText, accepted bool) {
	text := "the tools of an MCP server changed; agents see them as they were approved until the change is approved: " +
		"parley mcp tools " + agent
	if accepted {
		text = "the tools of an MCP server changed, and the change was taken, as its settings say"
	}
	added, removed, changed := differences(before, after)
	s.b.c.Logger.Warn(text, "agent", agent, "added", listNames(added), "removed", listNames(removed),
		"changed", listNames(changed))
}

// differences gives the names of tools that are in one list alone, and of those that differ.
func differences(before, after []ToolText) (added, removed, changed []string) {
	old := map[string]ToolText{}
	for _, t := range before {
		old[t.Name] = t
	}
	for _, t := range after {
		o, known := old[t.Name]
		if !known {
			added = append(added, t.Name)
		} else if !reflect.DeepEqual(o, t) {
			changed = append(changed, t.Name)
		}
		delete(old, t.Name)
	}
	for _, t := range before {
		if _, gone := old[t.Name]; gone {
			removed = append(removed, t.Name)
		}
	}
	return added, removed, changed
}

// listNames bounds a list of names for a log.
func listNames(s []string) string { return bridge.Shorten(strings.Join(s, ", "), 500) }

// learn makes the approved tools the skills of the server's agent.
func (s *servers) learn(ctx context.Context, agent string) {
	p := s.pins.Known(agent).Value
	d := s.b.c.Hub.Directory()
	e, ok := d.Agent(agent)
	if !ok || !slices.ContainsFunc(e.Identities, func(i parley.Identity) bool {
		return i.Protocol == Protocol && !i.StandIn && i.ID == p.Identity
	}) {
		return
	}
	skills := skillsOf(p.Approved)
	if e.Card == p.Card && sameSkills(e.Skills, skills) {
		return
	}
	err := d.LearnCard(ctx, agent, Protocol, p.Card, skills)
	if err != nil && !errors.Is(err, directory.ErrUnknown) && s.b.ctx.Err() == nil {
		s.b.c.Logger.Error("cannot record the tools of an MCP server", "agent", agent, "error", err)
	}
}

func sameSkills(a, b []parley.SkillSpec) bool {
	return len(a) == len(b) && (len(a) == 0 || reflect.DeepEqual(a, b))
}

// ToolList is what is known of the tools of an attached server.
type ToolList struct {
	Approved []ToolText // what agents call
	Offered  []ToolText // what the server lists now, if that differs; nil: it does not
	Digest   string     // of Offered, hex: what an approval names
}

// A ToolText is a tool as its server describes it: untrusted text, clipped.
type ToolText struct {
	Name        string          `json:"name"`
	Title       string          `json:"title,omitzero"`
	Description string          `json:"description,omitzero"`
	Input       json.RawMessage `json:"input,omitzero"`  // JSON Schema
	Output      json.RawMessage `json:"output,omitzero"` // JSON Schema
}

// Tools gives the tools of an attached server, as they were listed last.
func (b *Binding) Tools(ctx context.Context, agent string) (ToolList, error) {
	row, err := b.servers.pins.Get(ctx, agent)
	if err != nil {
		return ToolList{}, fmt.Errorf("read the tools of %q: %w", agent, err)
	}
	p := row.Value
	return ToolList{Approved: p.Approved, Offered: p.Offered, Digest: p.Digest}, nil
}

// ApproveTools takes the tools that a server offers, if their digest is this one.
func (b *Binding) ApproveTools(ctx context.Context, agent, digest string) error {
	_, err := b.servers.pins.Change(ctx, agent, func(r *journal.Row[pinned]) (bool, error) {
		switch {
		case r.Revision == 0:
			return false, fmt.Errorf("no tools of %q are known yet: its server has not been reached", agent)
		case r.Value.Digest == "":
			return false, fmt.Errorf("the tools of %q did not change: there is nothing to approve", agent)
		case r.Value.Digest != digest:
			return false, fmt.Errorf("the tools of %q have the digest %s now, not %s: look at them again with "+
				"\"parley mcp tools %s\"", agent, r.Value.Digest, bridge.Shorten(digest, 64), agent)
		}
		r.Value.approve()
		return true, nil
	})
	return err
}

// pinChanged follows the pinned tools, whichever hub changed them.
func (s *servers) pinChanged(_, after journal.Row[pinned]) {
	if after.Revision != 0 {
		s.b.spawn(func() { s.learn(s.b.ctx, after.Key) })
	}
}

// readTools reads the tools of a server.
func (l *link) readTools(ctx context.Context) error {
	l.mu.Lock()
	l.read = time.Now()
	l.mu.Unlock()
	info := l.session.InitializeResult()
	var listed []*mcp.Tool
	if info.Capabilities != nil && info.Capabilities.Tools != nil {
		params := &mcp.ListToolsParams{}
		for page := 1; ; page++ {
			r, err := safely(func() (*mcp.ListToolsResult, error) {
				return l.session.ListTools(withOngoing(ctx, &ongoing{}), params)
			})
			if err != nil {
				return fmt.Errorf("list the server's tools: %w", err)
			}
			if kind := r.Meta[kindMeta]; kind != nil {
				return fmt.Errorf("list the server's tools: %w: a result of type %q", errMalformed, kind)
			}
			listed = append(listed, r.Tools...)
			if r.NextCursor == "" {
				break
			}
			if page == maxPages || len(listed) > maxListed {
				return fmt.Errorf("the server lists too much: at most %d tools on %d pages are taken",
					maxListed, maxPages)
			}
			params = &mcp.ListToolsParams{Cursor: r.NextCursor}
		}
	}
	tools, skipped, err := toolList(listed)
	if err != nil {
		return err
	}
	if len(skipped) > 0 {
		l.s.b.c.Logger.Warn("tools of an MCP server are left out: their names or schemas cannot be used",
			"agent", l.v.agent, "tools", listNames(skipped))
	}
	offered := map[string]bool{}
	for _, t := range tools {
		offered[t.Name] = true
	}
	l.mu.Lock()
	l.offered = offered
	l.mu.Unlock()
	return l.s.offer(ctx, l.v.agent, l.identity, l.card(), tools)
}

// card is what a server says of itself.
func (l *link) card() directory.Card {
	info := l.session.InitializeResult()
	c := directory.Card{Description: shownText(info.Instructions, maxPinnedText)}
	if i := info.ServerInfo; i != nil {
		c.Title, c.Version = shownText(cmp.Or(i.Title, i.Name), maxPinnedTitle), shownText(i.Version, maxPinnedTitle)
	}
	return c
}
