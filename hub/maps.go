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
	Skill    string // "" for talk with an agent of which no skill is known
	Response bool   // of the skill's result, not of what is asked of it
	Program  Program
}

// A Program is a compiled mapping, safe for concurrent use.
type Program interface {
	fmt.Stringer // its source
	// Run gives the one JSON value that the program makes of content (JSON) and of
	// what [MappingInput] says about the message.
	Run(ctx context.Context, content []byte, message map[string]any) ([]byte, error)
}

type mapKey struct {
	agent, skill string
	response     bool
}

// SetMappings puts other mappings in force, in place of all before. Of two for
// the same the last counts.
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

// skillOf is the skill that a name means, of an agent whose skills may not be
// known.
func skillOf(e *directory.Entry, name string) (parley.SkillSpec, bool) {
	if s, ok := e.SkillNamed(name); ok {
		return s, true
	}
	return parley.SkillSpec{ID: name}, false
}

// fitReply makes the content of a Response fit the result that the skill of
// the request declares, where the operator configured a mapping for it. What
// cannot be made to fit becomes a Failure.
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
		h.c.Logger.Warn("an answer could not be mapped", "agent", from, "skill", skill.ID, "request", request.ID, "error", err)
		reply.Kind, reply.Parts, reply.Error = parley.Failure, nil, err
		return
	}
	reply.Parts = []parley.Part{part}
}

// Content is what a mapping reads: the main JSON part, else the text as a JSON
// string, else null.
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

// runMapping runs a mapping and checks what comes of it. The sender is told which
// mapping failed and why; what its content was is not repeated.
func runMapping(ctx context.Context, p Program, m *parley.Message, schema json.RawMessage) (parley.Part, *parley.Error) {
	out, err := p.Run(ctx, Content(m), MappingInput(m))
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return parley.Part{}, parley.AsError(err)
	case errors.Is(err, jqmap.ErrTime), errors.Is(err, jqmap.ErrSize):
		return parley.Part{}, parley.Refuse(parley.TooLarge, "the content is too much for the mapping that the hub has for this skill: %s", err).Because(err)
	case err != nil:
		return parley.Part{}, parley.Refuse(parley.InvalidContent, "the content does not suit the mapping that the hub has for this skill").Because(err)
	}
	if err := CheckContent(schema, out); err != nil {
		return parley.Part{}, parley.Refuse(parley.InvalidContent, "what the hub's mapping makes of the content does not fit the skill: %s", err).Because(err)
	}
	return parley.Part{MediaType: "application/json", Data: out}, nil
}

// MappingInput is what a mapping knows of a message as $message.
func MappingInput(m *parley.Message) map[string]any {
	return map[string]any{"kind": m.Kind.String(), "from": m.From, "to": m.To, "skill": m.Skill, "act": m.Act, "protocol": m.Origin.Protocol, "text": m.Text()}
}

// CheckContent says where and why JSON does not fit a JSON Schema; an empty
// schema takes anything.
func CheckContent(schema json.RawMessage, b []byte) error {
	if len(schema) == 0 {
		return nil
	}
	s, err := compile(schema)
	if err != nil {
		return nil // as when a message is judged: see shape
	}
	if err := validate(s, b); err != nil {
		return errors.New(reason(err))
	}
	return nil
}
