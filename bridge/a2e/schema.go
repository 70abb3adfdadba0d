package a2e

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/internal/jsonx"
)

// JSON Schemas of skills as parameters of tools (A2E §6.14), and the reverse.

// wrappedMember is the argument of a tool that has all of its content; see [bridge.Tool.Wrapped].
const wrappedMember = "value"

// parameters translates a schema into a tool's parameters (A2E §6.14). The hub also
// checks the constraints that parameters cannot express.
func parameters(raw json.RawMessage) []protocol.ToolParameter {
	list := []protocol.ToolParameter{}
	s, ok := bridge.ReadSchema(raw)
	if !ok {
		return append(list, protocol.ToolParameter{Name: "text", Type: "string",
			Description: "what to say; other members are passed on as they are"})
	}
	if !s.TakesObject() {
		p := parameter(wrappedMember, raw, 0)
		p.Required = true
		return append(list, p)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		p := parameter(name, s.Properties[name], 0)
		p.Required = slices.Contains(s.Required, name)
		list = append(list, p)
	}
	return list
}

func parameter(name string, raw json.RawMessage, depth int) protocol.ToolParameter {
	p := protocol.ToolParameter{Name: name, Type: "any"}
	s, ok := bridge.ReadSchema(raw)
	if !ok {
		return p
	}
	if k := s.Kind(); k != "" {
		p.Type = k
	}
	p.Description = s.Description
	if len(s.Enum) > 0 {
		words := make([]string, 0, len(s.Enum))
		for _, v := range s.Enum {
			if w, ok := v.(string); ok {
				words = append(words, w)
			}
		}
		if len(words) == len(s.Enum) {
			p.Enum = &words
		}
	}
	if len(s.Properties) > 0 && depth < 8 {
		p.Properties = map[string]protocol.ToolParameter{}
		for n, v := range s.Properties {
			q := parameter(n, v, depth+1)
			q.Required = slices.Contains(s.Required, n)
			p.Properties[n] = q
		}
	}
	return p
}

// schemaOf is the reverse of parameters, for the tools of hosts.
func schemaOf(list []protocol.ToolParameter) (json.RawMessage, error) {
	s, err := jsonx.Encode(objectSchema(list, 0))
	return json.RawMessage(s), err
}

// jsonTypes are the types of JSON Schema by those of hosts.
var jsonTypes = map[string]string{"string": "string", "integer": "integer", "number": "number", "boolean": "boolean",
	"object": "object", "array": "array",
	"str": "string", "int": "integer", "float": "number", "bool": "boolean", "dict": "object", "list": "array"}

func objectSchema(list []protocol.ToolParameter, depth int) map[string]any {
	properties, required := map[string]any{}, []string{}
	for _, p := range list {
		v := map[string]any{}
		if typ := jsonTypes[p.Type]; typ != "" {
			v["type"] = typ
		}
		if len(p.Properties) > 0 && depth < 8 {
			inner := make([]protocol.ToolParameter, 0, len(p.Properties))
			for name, q := range p.Properties {
				q.Name = name
				inner = append(inner, q)
			}
			v = objectSchema(inner, depth+1)
		}
		if p.Description != "" {
			v["description"] = p.Description
		}
		if p.Enum != nil {
			v["enum"] = *p.Enum
		}
		properties[p.Name] = v
		if p.Required {
			required = append(required, p.Name)
		}
	}
	slices.Sort(required)
	out := map[string]any{"type": "object", "properties": properties}
	if len(required) > 0 {
		out["required"] = required
	}
	return out
}

// toSkill translates a tool into a skill.
func toSkill(t protocol.ToolDefinition) (parley.SkillSpec, error) {
	s := parley.SkillSpec{ID: t.Name, Name: t.Name, Description: bridge.Shorten(t.Description, 1000)}
	if t.Name == "" || len(t.Name) > 64 {
		return s, errors.New("its name has not 1 to 64 characters")
	}
	var err error
	if s.Input, err = schemaOf(t.InputParameters); err != nil {
		return s, err
	}
	if len(t.OutputParameters) > 0 {
		s.Output, err = schemaOf(t.OutputParameters)
	}
	return s, err
}
