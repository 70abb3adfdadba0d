package parley

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
)

// An Agent is one entry of the directory: its names, its skills and its addresses.
type Agent struct {
	Name        string // in the directory: "weather", "crew/scout"; see [CheckName]
	Title       string // for people; Name where empty
	Description string
	Skills      []SkillSpec
	Exposed     []string // the protocols in which the hub stands in for it; [Everywhere] for all
	Identities  []Identity
	Version     string  // of the agent's own software
	Retries     Retries `json:",omitzero"`
	Record      Recording
}

// Retries says how messages to an agent are delivered when an attempt fails. A zero
// field means what the hub does for all agents.
type Retries struct {
	Tries     int           `json:",omitzero"` // attempts before a message becomes a dead letter, at most [MaxTries]
	Patience  time.Duration `json:",omitzero"` // how long a message is tried, since it was recorded
	Unordered bool          `json:",omitzero"` // later messages of a conversation overtake one that failed
}

// MaxTries bounds [Retries.Tries].
const MaxTries = 1000

// Check fails for numbers that no delivery can follow.
func (r Retries) Check() error {
	switch {
	case r.Tries < 0 || r.Tries > MaxTries:
		return Refuse(Malformed, "tries = %d: want 1 to %d, or 0 for what the hub does for all agents", r.Tries, MaxTries)
	case r.Patience < 0:
		return Refuse(Malformed, "patience = %s: want a duration above zero, such as 24h", r.Patience)
	}
	return nil
}

// Recording is what the hub's journal keeps of the content of an agent's messages, those
// from it and those to it, after their delivery is settled. Of two agents the one that
// keeps less counts.
type Recording string

// The recordings.
const (
	RecordFull    Recording = "full"    // all, as "" does
	RecordHeaders Recording = "headers" // headers of the transport, the network address, and digests
	RecordDigest  Recording = "digest"  // digests alone
)

// Check refuses an unknown word; "" is allowed.
func (r Recording) Check() error {
	switch r {
	case "", RecordFull, RecordHeaders, RecordDigest:
		return nil
	}
	return Refuse(Malformed, "record %.40q: want full, headers or digest", string(r))
}

// Everywhere exposes an agent in every protocol.
var Everywhere = []string{"all"}

// ExposedIn reports whether the hub stands in for the agent in a protocol.
func (a *Agent) ExposedIn(protocol string) bool {
	return slices.Contains(a.Exposed, protocol) || slices.Contains(a.Exposed, "all")
}

// SkillNamed finds a skill by its id; "" finds the default skill: the one with Default
// set, or the only one.
func (a *Agent) SkillNamed(id string) (SkillSpec, bool) {
	for _, s := range a.Skills {
		if id == s.ID || id == "" && (s.Default || len(a.Skills) == 1) {
			return s, true
		}
	}
	return SkillSpec{}, false
}

// An Identity is an agent's id in one protocol.
type Identity struct {
	Protocol string
	ID       string // "agent://weather.corp", "agent1q…"
	URL      string // where it is reached, if it is reached by URL
	// fingerprint of the enrolled key, where several agents claim the same ID; else ""
	Key     string
	StandIn bool // kept by the hub for an agent that does not speak the protocol
}

var nameForm = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?(?:/[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?)*$`)

// CheckName tells whether s can be a directory name: one to 128 characters, lower-case
// letters, digits, and ". _ -" in segments that are separated by "/" and begin and end
// with a letter or digit.
func CheckName(s string) error {
	if len(s) > 128 || !nameForm.MatchString(s) || strings.Contains(s, "__") {
		return Refuse(Malformed,
			"%.140q is not an agent name: want lower-case letters, digits, and single . _ - between them, in segments "+
				"separated by /", s)
	}
	return nil
}

// A Handler works on one message for an agent in this process. Its result, or the
// earlier argument of r.Reply, is the terminal reply of a request. An [*Error]
// reaches the sender with its code and text, any other error as "handler_failed"
// without its text. The context ends with the request's deadline and when the sender
// cancels. A handler sees the same message ID again when an earlier attempt ended
// without a recorded outcome; Attempt gives the number. It may run on many goroutines
// at once. With its context it may call other agents: [Ask], [Tell], [Stream].
type Handler func(ctx context.Context, m *Message, r Replier) error

// A Replier sends a handler's events and reply.
type Replier interface {
	// Attempt is 1 for the first try of this message, 2 for the second…
	Attempt() int
	// Progress sends an event in the state Working.
	Progress(text string) error
	// Chunk sends a piece of the result ahead of the reply.
	Chunk(p Part) error
	// Reply gives the content of the terminal response. A second call fails.
	Reply(parts ...Part) error
}

// A Meter is a [Replier] that counts the cost of the work, for limits per sender and
// day. The hub's repliers are meters.
type Meter interface {
	Replier
	// Spend counts tokens of a language model that were used for the sender.
	Spend(tokens int)
}

// A Prompter is a [Replier] that asks the requester for more. The hub's repliers are
// prompters.
type Prompter interface {
	Replier
	// NeedInput sends an event in the state NeedsInput, and waits for the [Input] that
	// answers it. It fails when the time of the request is up, its sender cancels, or the
	// hub stops: then the handler is called again after the next start.
	NeedInput(parts ...Part) (*Message, error)
}

// CostExtension is the key in [Message.Extensions] of a reply's cost: {"tokens": 123}.
const CostExtension = "parley"

// Tokens is the cost that a reply states, in tokens of a language model.
func (m *Message) Tokens() int {
	var cost struct{ Tokens int }
	if v := m.Extensions[CostExtension]; v == nil || json.Unmarshal(v, &cost) != nil {
		return 0
	}
	return max(cost.Tokens, 0)
}

// Mode is a way in which a skill may be called.
type Mode string

const (
	Sync      Mode = "sync"   // the caller waits for the answer
	Async     Mode = "async"  // the caller fetches the answer later, or is called back
	Streaming Mode = "stream" // the caller sees events until the answer
)

// A SkillSpec is one operation of an agent.
type SkillSpec struct {
	ID          string
	Name        string // for people; ID where empty
	Description string
	Input       json.RawMessage `json:",omitempty"` // JSON Schema of the content; nil: anything
	Output      json.RawMessage `json:",omitempty"` // JSON Schema of the result; nil: anything
	Modes       []Mode          // nil: all three
	Access      Access          // who may call it in the agent's own protocol
	Peers       []string        // with Access Peers: wire identities
	Default     bool            // takes messages without a skill
	Handler     Handler         `json:"-"` // nil for an agent that is not in this process
}

// Access is the trust tier of a skill (SAMVAD 1.2 §11).
type Access string

const (
	Public        Access = "public"        // any proved sender; the zero value means the same
	Authenticated Access = "authenticated" // and a token that the hub accepts
	TrustedPeers  Access = "trusted-peers" // and one of Peers
)

// A SkillOption changes a SkillSpec that [Skill] or [RawSkill] makes.
type SkillOption func(*SkillSpec)

// Describe sets the description of a skill, for people.
func Describe(name, text string) SkillOption {
	return func(s *SkillSpec) { s.Name, s.Description = name, text }
}

// AsDefault makes the skill take messages without a skill.
func AsDefault() SkillOption { return func(s *SkillSpec) { s.Default = true } }

// WithModes limits how a skill may be called.
func WithModes(m ...Mode) SkillOption { return func(s *SkillSpec) { s.Modes = m } }

// WithAccess sets who may call a skill.
func WithAccess(a Access, peers ...string) SkillOption {
	return func(s *SkillSpec) { s.Access, s.Peers = a, peers }
}

// RawSkill makes a skill of a [Handler] that takes any content.
func RawSkill(id string, h Handler, options ...SkillOption) SkillSpec {
	s := SkillSpec{ID: id, Handler: h}
	for _, o := range options {
		o(&s)
	}
	return s
}

// Skill makes a skill of a typed function. In and Out become the JSON Schemas
// of the skill by [SchemaOf]; content that does not fit In never reaches f.
// Inside f, [Progress] and [Chunk] send events.
func Skill[In, Out any](id string, f func(ctx context.Context, m *Message, in In) (Out, error),
	options ...SkillOption) SkillSpec {
	h := func(ctx context.Context, m *Message, r Replier) error {
		var in In
		if err := bindOrText(m, &in); err != nil {
			return Refuse(InvalidContent, "the content does not fit skill %q", id).Because(err)
		}
		out, err := f(context.WithValue(ctx, replierKey{}, r), m, in)
		if err != nil {
			return err
		}
		p, err := JSON(out)
		if err != nil {
			return fmt.Errorf("encode the result of skill %q: %w", id, err)
		}
		return r.Reply(p)
	}
	s := RawSkill(id, h, options...)
	s.Input, s.Output = SchemaOf(reflect.TypeFor[In]()), SchemaOf(reflect.TypeFor[Out]())
	return s
}

type replierKey struct{}

// ErrNoReplier is the error of Progress and Chunk outside a typed skill.
var ErrNoReplier = errors.New("not inside a skill that parley.Skill made")

// Progress sends an event in the state Working about the request of a typed skill.
func Progress(ctx context.Context, text string) error {
	if r, ok := ctx.Value(replierKey{}).(Replier); ok {
		return r.Progress(text)
	}
	return ErrNoReplier
}

// Chunk sends a piece of a typed skill's result ahead of it.
func Chunk(ctx context.Context, p Part) error {
	if r, ok := ctx.Value(replierKey{}).(Replier); ok {
		return r.Chunk(p)
	}
	return ErrNoReplier
}

// NeedInput asks the requester of a typed skill for more, and waits for it; see [Prompter].
func NeedInput(ctx context.Context, text string) (*Message, error) {
	if r, ok := ctx.Value(replierKey{}).(Prompter); ok {
		return r.NeedInput(Text(text))
	}
	return nil, ErrNoReplier
}

// Spend counts tokens of a language model that a typed skill used; see [Meter].
func Spend(ctx context.Context, tokens int) error {
	if r, ok := ctx.Value(replierKey{}).(Meter); ok {
		r.Spend(tokens)
		return nil
	}
	return ErrNoReplier
}

// SchemaOf derives a JSON Schema (draft 2020-12) of the JSON form that
// encoding/json gives values of type t: members by their json tags, required
// unless omitempty or omitzero, time.Time as a date-time string, []byte as
// base64 text, pointers as nullable. A member's `doc` tag is its description.
// Types that JSON cannot hold, and those that write their own JSON, are left
// open ({}).
func SchemaOf(t reflect.Type) json.RawMessage {
	b, err := json.Marshal(schemaOf(t, nil))
	if err != nil { // maps, slices and strings only: cannot happen
		return json.RawMessage("{}")
	}
	return b
}

func schemaOf(t reflect.Type, above []reflect.Type) map[string]any {
	marshaler := reflect.TypeFor[json.Marshaler]()
	switch {
	case t == nil || slices.Contains(above, t): // a recursive type is left open
		return map[string]any{}
	case t == reflect.TypeFor[time.Time]():
		return map[string]any{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[[]byte]():
		return map[string]any{"type": "string", "contentEncoding": "base64"}
	case t.Implements(marshaler) || reflect.PointerTo(t).Implements(marshaler):
		return map[string]any{}
	}
	above = append(above[:len(above):len(above)], t)
	switch t.Kind() {
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return map[string]any{"type": "integer"}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return map[string]any{"type": "integer", "minimum": 0}
	case reflect.Float32, reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Slice, reflect.Array:
		return map[string]any{"type": "array", "items": schemaOf(t.Elem(), above)}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schemaOf(t.Elem(), above)}
	case reflect.Pointer:
		return map[string]any{"anyOf": []any{schemaOf(t.Elem(), above), map[string]any{"type": "null"}}}
	case reflect.Struct:
		properties, required := map[string]any{}, []string{}
		for _, f := range reflect.VisibleFields(t) {
			tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case !f.IsExported(), tag == "-" && options == "", f.Anonymous && tag == "":
				continue
			case tag == "":
				tag = f.Name
			}
			p := schemaOf(f.Type, above)
			if doc := f.Tag.Get("doc"); doc != "" {
				p["description"] = doc
			}
			properties[tag] = p
			if !strings.Contains(options, "omitempty") && !strings.Contains(options, "omitzero") {
				required = append(required, tag)
			}
		}
		s := map[string]any{"type": "object", "properties": properties}
		if len(required) > 0 {
			s["required"] = required
		}
		return s
	}
	return map[string]any{}
}
