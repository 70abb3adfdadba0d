package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/internal/jqmap"
)

// A Mapping turns content that does not fit a skill into content that does.
type Mapping struct {
	Agent    string
	Skill    string // "": messages without a skill to an agent whose skills are unknown
	Response bool   // it maps the skill's result, not its input
	Program  Program
}

// A Program is a compiled mapping, safe for concurrent use.
type Program interface {
	fmt.Stringer // its source
	// Run gives the one JSON value that the program makes of content (JSON) and of the
	// message's [MappingInput].
	Run(ctx context.Context, content []byte, message map[string]any) ([]byte, error)
}

type mapKey struct {
	agent, skill string
	response     bool
}

// SetMappings replaces all mappings. Of two for the same skill the last counts.
func (h *Hub) SetMappings(list []Mapping) {
	if len(list) == 0 {
		h.maps.Store(nil)
		return
	}
	m := make(map[mapKey]Program, len(list))
	for _, x := range list {
		m[mapKey{x.Agent, x.Skill, x.Response}] = x.Program
	}
	h.maps.Store(&m)
}

func (h *Hub) mapping(agent, skill string, response bool) Program {
	m := h.maps.Load()
	if m == nil {
		return nil
	}
	return (*m)[mapKey{agent, skill, response}]
}

// skillOf is the skill of that name, of an agent whose skills may be unknown.
func skillOf(e *directory.Entry, name string) (parley.SkillSpec, bool) {
	if s, ok := e.SkillNamed(name); ok {
		return s, true
	}
	return parley.SkillSpec{ID: name}, false
}

// fitReply makes the content of a Response fit the declared result of the request's
// skill, where the operator configured a mapping. A reply that cannot fit becomes a
// Failure.
func (h *Hub) fitReply(ctx context.Context, request *parley.Message, from string, reply *parley.Message) {
	if h.maps.Load() == nil || reply.Kind != parley.Response {
		return
	}
	e, ok := h.c.Directory.Agent(from)
	if !ok {
		return
	}
	skill, _ := skillOf(e, request.Skill)
	p := h.mapping(from, skill.ID, true)
	if p == nil || len(skill.Output) > 0 && CheckContent(skill.Output, Content(reply)) == nil {
		return
	}
	part, err := runMapping(ctx, p, reply, skill.Output)
	if err != nil {
		h.c.Logger.Warn("an answer could not be mapped", "agent", from, "skill", skill.ID, "request", request.ID,
			"error", err)
		reply.Kind, reply.Parts, reply.Error = parley.Failure, nil, err.Stated()
		return
	}
	reply.Parts = []parley.Part{part}
}

// Content is the input of a mapping: the main JSON part, else the text as a JSON string,
// else null.
func Content(m *parley.Message) []byte {
	if i := parley.MainJSON(m.Parts); i >= 0 {
		return m.Parts[i].Data
	}
	if text := m.Text(); text != "" {
		if b, err := json.Marshal(text); err == nil {
			return b
		}
	}
	return []byte("null")
}

// runMapping runs a mapping and checks its result. The error names the reason, but not
// the content.
func runMapping(ctx context.Context, p Program, m *parley.Message,
	schema json.RawMessage) (parley.Part, *parley.Error) {
	out, err := p.Run(ctx, Content(m), MappingInput(m))
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return parley.Part{}, parley.AsError(err)
	case errors.Is(err, jqmap.ErrTime), errors.Is(err, jqmap.ErrSize):
		return parley.Part{}, parley.Refuse(parley.TooLarge,
			"the content is too large for the hub's mapping of this skill: %s", err).Because(err)
	case err != nil:
		return parley.Part{}, parley.Refuse(parley.InvalidContent,
			"the hub's mapping of this skill cannot take the content").Because(err)
	}
	if err := CheckContent(schema, out); err != nil {
		return parley.Part{}, parley.Refuse(parley.InvalidContent,
			"the result of the hub's mapping does not fit the skill: %s", err).Because(err)
	}
	return parley.Part{MediaType: "application/json", Data: out}, nil
}

// MappingInput is the value of $message in a mapping.
func MappingInput(m *parley.Message) map[string]any {
	return map[string]any{"kind": m.Kind.String(), "from": m.From, "to": m.To, "skill": m.Skill, "act": m.Act,
		"protocol": m.Origin.Protocol, "text": m.Text()}
}

// CheckSchema reports why a JSON Schema cannot be used: it is malformed, or refers to other documents.
func CheckSchema(schema json.RawMessage) error {
	_, err := newSchema(schema)
	return err
}

// CheckContent validates JSON against a JSON Schema. The error says where and why it
// does not fit; an empty schema accepts anything.
func CheckContent(schema json.RawMessage, b []byte) error {
	if len(schema) == 0 {
		return nil
	}
	s, err := compile(schema)
	if err != nil {
		return nil // a broken schema refuses nothing; see fitSchema
	}
	if err := s.validate(b); err != nil {
		return errors.New(reason(err))
	}
	return nil
}
