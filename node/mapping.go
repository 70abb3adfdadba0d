package node

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/jqmap"
)

// Map turns content that does not fit a skill into content that does.
type Map struct {
	// directory name of the agent
	Agent string `toml:"agent" reload:"yes"`
	// id of its skill; "": messages without a skill, to an agent of which no skill is known
	Skill string `toml:"skill" reload:"yes"`
	// request: content for the skill; response: content of its answer
	Direction string `toml:"direction" default:"\"request\"" reload:"yes"`
	// jq program that turns the content into one value, e.g. '{city: .text}'. $message has kind, from, to,
	// skill, act, protocol and text. Try it with parley map test
	JQ string `toml:"jq" reload:"yes"`
}

// mapError is a mistake in one of the mappings.
type mapError struct {
	index int // of the table, from 0
	line  int // within its jq, from 1; 0: not in the jq
	text  string
}

func (e *mapError) Error() string { return fmt.Sprintf("map %d: %s", e.index+1, e.text) }

// Mappings compiles the mappings of the configuration.
func (c *Config) Mappings() ([]hub.Mapping, error) {
	var out []hub.Mapping
	seen := map[Map]bool{}
	for i, m := range c.Map {
		if m.Agent+m.Skill+m.JQ == "" {
			continue // an empty table, as in the file of parley init
		}
		fail := func(line int, format string, args ...any) error {
			return &mapError{i, line, fmt.Sprintf(format, args...)}
		}
		if err := parley.CheckName(m.Agent); err != nil {
			return nil, fail(0, "agent: %s", parley.AsError(err).Text)
		}
		if len(m.Skill) > 64 {
			return nil, fail(0, "skill: a skill's id has at most 64 characters")
		}
		m.Direction = cmp.Or(m.Direction, "request")
		if m.Direction != "request" && m.Direction != "response" {
			return nil, fail(0, "direction = %q: want request or response", m.Direction)
		}
		p, err := jqmap.Compile(m.JQ)
		var syntax *jqmap.SyntaxError
		switch {
		case strings.TrimSpace(m.JQ) == "":
			return nil, fail(0, `jq is missing: write e.g. jq = '{city: .text}'`)
		case errors.As(err, &syntax):
			return nil, fail(syntax.Line, "jq: %s", syntax.Text)
		case err != nil:
			return nil, fail(1, "jq: %s", err)
		}
		one := hub.Mapping{Agent: m.Agent, Skill: m.Skill, Response: m.Direction == "response", Program: p}
		key := Map{Agent: m.Agent, Skill: m.Skill, Direction: m.Direction}
		if seen[key] {
			return nil, fail(0, "there is another mapping for this agent, skill and direction")
		}
		seen[key] = true
		out = append(out, one)
	}
	return out, nil
}

var (
	mapTable = regexp.MustCompile(`^\s*\[\[\s*map\s*\]\]`)
	anyTable = regexp.MustCompile(`^\s*\[`)
	jqKey    = regexp.MustCompile(`^\s*jq\s*=\s*("""|'''|)`)
)

// placed adds the line in the file to a mistake in a mapping.
func placed(err error, file []byte) error {
	var e *mapError
	if !errors.As(err, &e) {
		return err
	}
	lines := strings.Split(string(file), "\n")
	table, count := -1, 0
	for i, l := range lines {
		if mapTable.MatchString(l) {
			if count == e.index {
				table = i
				break
			}
			count++
		}
	}
	if table < 0 { // written as an inline array
		return err
	}
	at := table
	if e.line > 0 {
		for i := table + 1; i < len(lines) && !anyTable.MatchString(lines[i]); i++ {
			if m := jqKey.FindStringSubmatch(lines[i]); m != nil {
				at = i + e.line - 1
				// A newline right after the opening quotes is not part of the text.
				if m[1] != "" && strings.TrimSpace(lines[i][len(m[0]):]) == "" {
					at++
				}
				break
			}
		}
	}
	return fmt.Errorf("line %d: %w", at+1, err)
}
