package hub

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/internal/jsonx"
)

// fit gives a message's content as its skill takes it. It is the one content rule for
// all protocols and kinds, in this order:
//
//   - Content that fits the skill's schema stays as it is.
//   - Text that spells a fitting object becomes it; other text becomes the
//     skill's only required string. Text that spells an object of another shape
//     is JSON, and text only for a string that is called "text" or "message".
//   - A skill that takes text alone gets an object as its "text" or "message", if
//     that is all it has, else as compact JSON.
//   - The operator's mapping makes it fit; for a skill without a schema a mapping
//     always counts.
//   - Else it is an error, which shows the schema.
func (h *Hub) fit(m *parley.Message, e *directory.Entry) ([]parley.Part, *parley.Error) {
	skill, declared := skillOf(e, m.Skill)
	if !declared && len(e.Skills) > 0 {
		return nil, parley.Refuse(parley.UnknownSkill, "agent %q has no skill %q; it has %s", e.Name, m.Skill,
			skillNames(e.Skills))
	}
	var misfit *parley.Error
	if len(skill.Input) > 0 {
		parts, err := fitSchema(m, skill.Input)
		if err == nil {
			return parts, nil
		}
		misfit = misfitError(skill, err)
	}
	p := h.mapping(e.Name, skill.ID, false)
	if p == nil {
		return m.Parts, misfit
	}
	part, err := runMapping(context.Background(), p, m, skill.Input)
	if err != nil {
		return nil, err
	}
	return []parley.Part{part}, nil
}

// maxNamed bounds how many skills an error names.
const maxNamed = 20

func skillNames(skills []parley.SkillSpec) string {
	var names []string
	for _, s := range skills[:min(len(skills), maxNamed)] {
		names = append(names, strconv.Quote(s.ID))
	}
	if len(skills) > maxNamed {
		names = append(names, fmt.Sprintf("and %d more", len(skills)-maxNamed))
	}
	return strings.Join(names, ", ")
}

// admitContent is fit for a submitted message. A notice is fitted to each recipient
// when it is delivered, and refused for none of them; its sender learns only that the
// skill it names does not exist.
func (h *Hub) admitContent(m *parley.Message, e *directory.Entry) *parley.Error {
	parts, err := h.fit(m, e)
	switch {
	case m.Kind != parley.Notice && err == nil:
		m.Parts = parts
	case m.Kind == parley.Notice && (m.Skill == "" || err == nil || err.Code != parley.UnknownSkill):
		return nil
	}
	return err
}

// fitNotice fits a notice to its recipient. Within a protocol the sender's own
// envelope is passed on. A notice without a skill goes unchanged to an agent of
// another protocol that has no skill for it.
func (h *Hub) fitNotice(m *parley.Message, to string, local bool) (*parley.Message, *parley.Error) {
	e, ok := h.c.Directory.Agent(to)
	if !ok || !local && slices.Contains(e.Native(), m.Origin.Protocol) {
		return m, nil
	}
	parts, err := h.fit(m, e)
	switch {
	case err != nil && err.Code == parley.UnknownSkill && m.Skill == "" && !local:
		return m, nil
	case err != nil:
		return nil, err
	}
	fitted := *m // the recorded message must not change
	fitted.Parts = parts
	return &fitted, nil
}

// misfitResult is the result for a notice that its recipient cannot take. It is no
// dead letter, because a notice needs no answer: the delivery has the reason as a
// loss.
func misfitResult(err *parley.Error, losses ...parley.Loss) delivery.Result {
	text := []rune(err.Text)
	if len(text) > maxNote {
		text = append(text[:maxNote], '…')
	}
	return delivery.Result{Losses: append(losses, parley.Loss{Field: "Parts", Reason: "the agent did not get it: " +
		string(text)})}
}

const maxNote = 200 // characters

// isMisfit reports whether the recipient refused the content.
func isMisfit(err *parley.Error) bool {
	return err != nil && !err.Retryable && (err.Code == parley.InvalidContent || err.Code == parley.UnknownSkill)
}

// fitSchema makes content fit a schema; its error is the reason why it cannot.
func fitSchema(m *parley.Message, input json.RawMessage) ([]parley.Part, error) {
	schema, err := compile(input)
	if err != nil {
		return m.Parts, nil // an agent's own broken schema does not make it unreachable
	}
	why, given := errors.New("no JSON content"), parley.MainJSON(m.Parts)
	if given >= 0 {
		if why = schema.validate(m.Parts[given].Data); why == nil {
			return m.Parts, nil
		}
	}
	for _, b := range candidates(m, given, input) {
		err := schema.validate(b)
		if err == nil {
			return []parley.Part{{MediaType: "application/json", Data: b}}, nil
		}
		if given < 0 && jsonx.Value(b).Kind() == '{' {
			why = err
		}
	}
	return nil, why
}

// candidates are the JSON values that content may become if it does not fit as it is:
// made of its only text, or of all parts for a skill that takes a string. given is
// the index of its main JSON part, -1 for none.
func candidates(m *parley.Message, given int, input json.RawMessage) (out [][]byte) {
	quoted := func(v any) {
		if b, err := json.Marshal(v); err == nil {
			out = append(out, b)
		}
	}
	if len(m.Parts) == 0 {
		return [][]byte{[]byte("{}")}
	}
	if takesTextAlone(input) {
		if text, ok := asText(m.Parts); ok {
			quoted(text)
		}
		return out
	}
	text := ""
	if given < 0 {
		text = m.Text()
	} else {
		text, _ = parley.OnlyText(m.Parts[given])
	}
	if text == "" {
		return nil
	}
	out = append(out, []byte(text))
	spelled := jsonx.Value(text).Kind() == '{' && jsonx.Valid([]byte(text), 0) == nil
	if member, ok := onlyString(input); ok && (!spelled || member == "text" || member == "message") {
		quoted(map[string]string{member: text})
	}
	quoted(text)
	return out
}

// takesTextAlone reports whether a schema is that of a string.
func takesTextAlone(raw json.RawMessage) bool {
	var s struct {
		Type any `json:"type"`
	}
	return json.Unmarshal(raw, &s) == nil && s.Type == "string"
}

// asText joins parts as text, one a line; false if one is no text.
func asText(parts []parley.Part) (string, bool) {
	var lines []string
	for _, p := range parts {
		text, ok := parley.OnlyText(p)
		if !ok {
			var b bytes.Buffer
			if !p.IsJSON() || json.Compact(&b, p.Data) != nil {
				return "", false
			}
			text = b.String()
		}
		lines = append(lines, text)
	}
	return strings.Join(lines, "\n"), true
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

func misfitError(s parley.SkillSpec, why error) *parley.Error {
	schema := string(s.Input)
	if len(schema) > 2048 {
		schema = schema[:2048] + "…"
	}
	return parley.Refuse(parley.InvalidContent, "the content does not fit skill %q: %s; expected %s", s.ID, reason(why),
		schema)
}

// reason says in one line why content does not fit: the innermost error of a schema's
// errors, with its location.
func reason(why error) string {
	var v *jsonschema.ValidationError
	if !errors.As(why, &v) {
		return why.Error()
	}
	for len(v.Causes) > 0 {
		v = v.Causes[0]
	}
	text := "at /" + strings.Join(v.InstanceLocation, "/")
	if out := v.BasicOutput(); out.Error != nil {
		text += ": " + out.Error.String()
	}
	return text
}

// schemas caches compiled schemas by their text. It is emptied when full.
var schemas struct {
	sync.Mutex
	m map[string]*schema
}

const maxSchemas = 4096

// compile compiles a schema, or takes it from the cache. An empty one allows anything.
// References to other documents are never fetched.
func compile(raw json.RawMessage) (*schema, error) {
	if len(raw) == 0 {
		raw = json.RawMessage("{}")
	}
	schemas.Lock()
	s, ok := schemas.m[string(raw)]
	schemas.Unlock()
	if ok {
		return s, nil
	}
	s, err := newSchema(raw)
	if err != nil {
		return nil, err
	}
	schemas.Lock()
	defer schemas.Unlock()
	if schemas.m == nil || len(schemas.m) >= maxSchemas {
		schemas.m = map[string]*schema{}
	}
	schemas.m[string(raw)] = s
	return s, nil
}

func newSchema(raw json.RawMessage) (*schema, error) {
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
	root, err := c.Compile(here)
	if err != nil {
		return nil, err
	}
	return bounded(root)
}

type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("schemas of other documents are not fetched: %s", url)
}
