package uagents

import (
	"encoding/json"
	"errors"
	"strings"
	"unicode"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/jsonx"
	protocol "github.com/parley-hub/parley/uagents"
)

// derived makes the model that a Python agent would declare for a skill of
// this hub: a class named after the skill ("forecast" → ForecastRequest and
// ForecastResponse) with the members of its schema. A schema with its own title
// is a model already. Nil for a skill without a schema.
func derived(skill parley.SkillSpec, raw json.RawMessage, suffix string) *protocol.Model {
	if len(raw) == 0 {
		return nil
	}
	var s map[string]json.RawMessage
	if json.Unmarshal(raw, &s) != nil || s == nil { // null is no schema
		return nil
	}
	if _, titled := s["title"]; !titled {
		var properties map[string]map[string]json.RawMessage
		if p, ok := s["properties"]; ok && json.Unmarshal(p, &properties) != nil {
			return nil
		}
		for name, p := range properties {
			if p == nil {
				return nil
			}
			_, titled := p["title"]
			if _, ref := p["$ref"]; !titled && !ref {
				p["title"] = jsonx.AppendText(nil, protocol.FieldTitle(name))
			}
		}
		members, err := jsonx.Encode(properties) // nil: {}
		if err != nil {
			return nil
		}
		s["properties"] = members
		s["title"] = jsonx.AppendText(nil, className(skill.ID)+suffix)
		delete(s, "$schema")
	}
	b, err := jsonx.Encode(s)
	if err != nil {
		return nil
	}
	m, err := protocol.ParseModel(b)
	if err != nil {
		return nil
	}
	return m
}

// className is a skill's id as a Python class: "weather_report" →
// "WeatherReport".
func className(id string) string {
	var b strings.Builder
	apart := func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }
	for _, word := range strings.FieldsFunc(id, apart) {
		r := []rune(word)
		b.WriteRune(unicode.ToUpper(r[0]))
		b.WriteString(string(r[1:]))
	}
	return b.String()
}

// toObject translates a message's content into the JSON object of a model: the first JSON
// part; text that is a JSON object; text as the model's only required text member.
func toObject(m *parley.Message, model *protocol.Model) ([]byte, error) {
	var candidates [][]byte
	for _, p := range m.Parts {
		if p.IsJSON() {
			candidates = append(candidates, p.Data)
		}
	}
	if text := m.Text(); text != "" {
		candidates = append(candidates, []byte(text))
		if model != nil {
			if member := onlyString(model); member != "" {
				b, err := jsonx.Encode(map[string]string{member: text})
				if err != nil {
					return nil, err
				}
				candidates = append(candidates, b)
			}
		}
	}
	switch {
	case len(candidates) > 0:
	case len(m.Parts) > 0:
		return nil, errors.New("bytes and links are no JSON object")
	default:
		candidates = append(candidates, []byte("{}"))
	}
	var last error
	for _, c := range candidates {
		if jsonx.Valid(c, 0) != nil || jsonx.Value(c).Kind() != '{' {
			last = errors.Join(last, errors.New("not a JSON object"))
			continue
		}
		text, err := protocol.MessageJSON(c)
		if err == nil && model != nil {
			err = model.Validate(text)
		}
		if err == nil {
			return text, nil
		}
		last = err
	}
	return nil, last
}

// onlyString is the only required member of a model, if it is a string.
func onlyString(m *protocol.Model) string {
	raw, err := m.Schema()
	if err != nil {
		return ""
	}
	var s struct {
		Required   []string                         `json:"required"`
		Properties map[string]struct{ Type string } `json:"properties"`
	}
	if json.Unmarshal(raw, &s) != nil || len(s.Required) != 1 || s.Properties[s.Required[0]].Type != "string" {
		return ""
	}
	return s.Required[0]
}
