package bridge

import (
	"encoding/json"

	"github.com/parley-hub/parley/internal/jsonx"
)

// SkillSchema is the part of a JSON Schema that descriptions of tools can express.
type SkillSchema struct {
	Type        any                        `json:"type"`
	Description string                     `json:"description"`
	Properties  map[string]json.RawMessage `json:"properties"`
	Required    []string                   `json:"required"`
	Enum        []any                      `json:"enum"`
}

// ReadSchema gives false for no schema, and for one that is no object or cannot be read.
func ReadSchema(raw json.RawMessage) (*SkillSchema, bool) {
	var s SkillSchema
	ok := json.Unmarshal(raw, &s) == nil
	return &s, ok
}

// Kind is the schema's type, of several the first besides "null"; "": any.
func (s *SkillSchema) Kind() string {
	switch t := s.Type.(type) {
	case string:
		return t
	case []any: // "or null"
		for _, v := range t {
			if k, ok := v.(string); ok && k != "null" {
				return k
			}
		}
	}
	if s.Properties != nil {
		return "object"
	}
	return ""
}

// TakesObject reports whether the content of a skill is an object, as it is unless the
// schema says otherwise.
func (s *SkillSchema) TakesObject() bool {
	k := s.Kind()
	return k == "object" || k == "" && len(s.Enum) == 0
}

// SchemaObject gives a schema that is a JSON object; nil for none, true and false.
func SchemaObject(raw json.RawMessage) json.RawMessage {
	if len(raw) > 0 && jsonx.Kind(raw) == '{' && jsonx.Valid(raw, 0) == nil {
		return raw
	}
	return nil
}
