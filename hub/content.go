package hub

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/internal/jsonx"
)

// fit makes a message's content fit the skill it goes to, by one rule, in
// this order: what fits stays as it is; text becomes the object it spells, if
// that fits, or the skill's only required string member; anything else is
// refused, with the schema that was expected (DESIGN §3).
func fit(m *parley.Message, e *directory.Entry) *parley.Error {
	if len(e.Skills) == 0 {
		return nil // the hub does not know its skills
	}
	skill, ok := e.SkillNamed(m.Skill)
	if !ok {
		return parley.Refuse(parley.UnknownSkill, "agent %q has no skill %q", e.Name, m.Skill)
	}
	if len(skill.Input) == 0 {
		return nil
	}
	schema, err := compile(skill.Input)
	if err != nil {
		return nil // an agent's own broken schema does not make it unreachable
	}
	for _, p := range m.Parts {
		if p.IsJSON() {
			why := validate(schema, p.Data)
			if why == nil {
				return nil
			}
			if text, ok := parley.OnlyText(p); ok && wrap(m, schema, skill.Input, text) {
				return nil
			}
			return unfit(skill, why)
		}
	}
	if text := m.Text(); text != "" && wrap(m, schema, skill.Input, text) {
		return nil
	}
	why := errors.New("no JSON content")
	if len(m.Parts) == 0 {
		if why = validate(schema, []byte("{}")); why == nil {
			m.Parts = []parley.Part{{MediaType: "application/json", Data: []byte("{}")}}
			return nil
		}
	}
	return unfit(skill, why)
}

// wrap turns text into content that fits.
func wrap(m *parley.Message, schema *jsonschema.Schema, raw json.RawMessage, text string) bool {
	candidates := [][]byte{[]byte(text)}
	if member, ok := onlyString(raw); ok {
		if b, err := json.Marshal(map[string]string{member: text}); err == nil {
			candidates = append(candidates, b)
		}
	}
	if b, err := json.Marshal(text); err == nil {
		candidates = append(candidates, b)
	}
	for _, b := range candidates {
		if validate(schema, b) == nil {
			m.Parts = []parley.Part{{MediaType: "application/json", Data: b}}
			return true
		}
	}
	return false
}

// onlyString finds the only required member of an object schema, if that is a
// string.
func onlyString(raw json.RawMessage) (string, bool) {
	var s struct {
		Required   []string `json:"required"`
		Properties map[string]struct {
			Type any `json:"type"`
		} `json:"properties"`
	}
	if json.Unmarshal(raw, &s) != nil || len(s.Required) != 1 || s.Properties[s.Required[0]].Type != "string" {
		return "", false
	}
	return s.Required[0], true
}

func unfit(s parley.SkillSpec, why error) *parley.Error {
	text := reason(why)
	schema := string(s.Input)
	if len(schema) > 2048 {
		schema = schema[:2048] + "…"
	}
	return parley.Refuse(parley.InvalidContent, "the content does not fit skill %q: %s; expected %s", s.ID, text, schema)
}

// reason says in a line why content does not fit.
func reason(why error) string {
	var v *jsonschema.ValidationError
	if errors.As(why, &v) {
		return explain(v)
	}
	return why.Error()
}

// explain finds the innermost reason: where, and what.
func explain(v *jsonschema.ValidationError) string {
	for len(v.Causes) > 0 {
		v = v.Causes[0]
	}
	at := ""
	for _, s := range v.InstanceLocation {
		at += "/" + s
	}
	if at == "" {
		at = "/"
	}
	out := v.BasicOutput()
	if out.Error != nil {
		return fmt.Sprintf("at %s: %s", at, out.Error.String())
	}
	return "at " + at
}

func validate(s *jsonschema.Schema, b []byte) error {
	if err := jsonx.Valid(b, 0); err != nil {
		return err
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		return err
	}
	return s.Validate(v)
}

// schemas caches compiled schemas by their text. It starts anew when full.
var schemas struct {
	sync.Mutex
	m map[string]*jsonschema.Schema
}

const maxSchemas = 4096

// compile makes a schema ready; nil for one that allows anything. References
// to other documents are never fetched.
func compile(raw json.RawMessage) (*jsonschema.Schema, error) {
	if len(raw) == 0 {
		raw = json.RawMessage("{}")
	}
	schemas.Lock()
	s, ok := schemas.m[string(raw)]
	schemas.Unlock()
	if ok {
		return s, nil
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(noLoader{})
	const here = "urn:parley:skill"
	if err := c.AddResource(here, doc); err != nil {
		return nil, err
	}
	if s, err = c.Compile(here); err != nil {
		return nil, err
	}
	schemas.Lock()
	defer schemas.Unlock()
	if schemas.m == nil || len(schemas.m) >= maxSchemas {
		schemas.m = map[string]*jsonschema.Schema{}
	}
	schemas.m[string(raw)] = s
	return s, nil
}

type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("schemas of other documents are not fetched: %s", url)
}
