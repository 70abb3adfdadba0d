package a2e

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
)

// SkillDefinition describes a skill (A2E §6.14). Nil members are null on the wire;
// Arguments is an array or null, never the empty object of the reference.
type SkillDefinition struct {
	Name           string          `json:"name"`
	Version        string          `json:"version"`
	Description    string          `json:"description"`
	Triggers       []string        `json:"triggers"`
	Status         string          `json:"status"` // Created, Blocked, Published, Archived; Published when empty
	InputSchema    json.RawMessage `json:"input_schema,omitzero"`
	OutputSchema   json.RawMessage `json:"output_schema,omitzero"`
	Instructions   *string         `json:"instructions"`
	Arguments      []string        `json:"arguments"`
	WhenToUse      string          `json:"when_to_use"`
	ArgumentHint   string          `json:"argument_hint"`
	Source         string          `json:"source"`
	Category       *string         `json:"category"`
	Tags           []string        `json:"tags"`
	MaxTurns       *int            `json:"max_turns"`
	TimeoutSeconds *int            `json:"timeout_seconds"`
	Metadata       json.RawMessage `json:"metadata,omitzero"`
}

// SkillCall is a skill/call/req.
type SkillCall struct {
	*Request
	Name        string
	Arguments   json.RawMessage
	Streaming   bool
	LLMOverride json.RawMessage // overrides the model of the skill (A2E §6.14), or null; may hold secrets of the agent
	Metadata    json.RawMessage
}

// SkillResult is the member data of a skill/call/resp (A2E §6.14).
type SkillResult struct {
	Success    bool
	Data       any
	Summary    any
	Truncated  bool
	Error      string // null on the wire when empty
	ErrorCode  string
	DurationMS int64           // measured when 0
	Metadata   json.RawMessage // an extension, as of a [ToolResult]
}

// Skills is the capability "skill". An [*Error] from Call goes to the agent unchanged;
// any other error becomes skill_error without its text.
type Skills interface {
	// Discover gives all skills that the agent may see; [ServeSkills] applies the
	// filters of the request.
	Discover(ctx context.Context, r *Request) ([]SkillDefinition, error)
	// Call runs a skill; [ErrUnknownSkill] if the name is unknown.
	Call(ctx context.Context, c *SkillCall) (SkillResult, error)
}

// ServeSkills makes the provider of the capability "skill".
func ServeSkills(s Skills) Provider { return skillProvider{s} }

type skillProvider struct{ skills Skills }

func (p skillProvider) Serve(ctx context.Context, r *Request) (Response, error) {
	switch r.Type {
	case "skill/discover/req":
		all, err := p.skills.Discover(ctx, r)
		if err != nil {
			return Response{}, err
		}
		tags, categories := r.Strings("filter_tags"), r.Strings("filter_categories")
		list := []SkillDefinition{}
		for _, s := range all {
			if len(tags) > 0 && !slices.ContainsFunc(s.Tags, func(t string) bool { return slices.Contains(tags, t) }) {
				continue
			}
			if len(categories) > 0 && (s.Category == nil || !slices.Contains(categories, *s.Category)) {
				continue
			}
			s.Status = cmp.Or(s.Status, "Published")
			list = append(list, s)
		}
		return Response{Body: map[string]any{"skills": list}}, nil
	case "skill/call/req":
		return p.call(ctx, r)
	}
	return Response{}, ErrUnknownType
}

func (p skillProvider) call(ctx context.Context, r *Request) (Response, error) {
	c := &SkillCall{
		Request: r, Name: r.Str("name"), Arguments: r.Get("arguments"), Streaming: r.Bool("streaming"),
		LLMOverride: r.Get("llm_override"), Metadata: r.Get("metadata"),
	}
	res, err := p.skills.Call(ctx, c)
	if err != nil {
		return Response{}, failedAs(err, SkillError, "the skill failed", "skill")
	}
	f, err := r.appendResult(r.head("skill/call/resp", 512).text("name", c.Name).name("data"), ToolResult{
		Success: res.Success, Data: res.Data, Summary: res.Summary, Truncated: res.Truncated, Error: res.Error,
		ErrorCode: res.ErrorCode, DurationMS: res.DurationMS, Metadata: res.Metadata,
	}, false)
	if err != nil {
		return Response{}, &Error{Code: SkillError, Text: "the result of the skill is not JSON", Step: "handler",
			Capability: "skill", cause: err}
	}
	return Response{Body: wholeFrame(append(f.json("error", null).time("created_at", r.h.Now()), '}'))}, nil
}
