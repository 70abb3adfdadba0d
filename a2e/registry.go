package a2e

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/parley-hub/parley/internal/jsonx"
)

// A Class says which part a message plays in an exchange (A2E §2.3).
type Class uint8

const (
	ClassRequest  Class = iota + 1 // answered by exactly one final frame
	ClassResponse                  // the final frame of a request, errors included
	ClassEvent                     // about a request, before its final frame
	ClassPush                      // from the host, about no request
)

var classNames = [...]string{"", "request", "response", "event", "push"}

func (c Class) String() string { return classNames[c] }

// classOf classifies a type that no registry knows by its name and by whether the
// message has a req_id (A2E §2.3, §5.2): a message that looks like an answer is never
// answered.
func classOf(name string, hasReqID bool) Class {
	switch {
	case strings.HasSuffix(name, "/event"):
		return ClassEvent
	case strings.HasSuffix(name, "/push"):
		return ClassPush
	case hasReqID, strings.HasSuffix(name, "/resp"), name == "error", name == "pong":
		return ClassResponse
	}
	return ClassRequest
}

// Kind is the JSON type of a member.
type Kind uint8

const (
	Any Kind = iota
	String
	Integer // 30 and 30.0, not 1.5 (A2E §2.2)
	Number
	Boolean
	Object // any object; with a Model, one of its members
	Array
	Map // an object whose values all have the shape Elem
	Enum
)

// Shape is the required form of a value.
type Shape struct {
	Kind     Kind
	Nullable bool
	Elem     *Shape   // of Array and Map
	Model    []Field  // of Object; nil means any members
	Values   []string // of Enum
	Length   int      // of Array: exact number of elements; 0 means any
	also     string   // another literal that peers are known to send
	model    string
}

// Field is one member of a type.
type Field struct {
	Name     string
	Shape    Shape
	Required bool
	Default  string // JSON text, or one of: now hex32 hex8 uuid feedback
}

// Type is one message type.
type Type struct {
	Name       string
	Class      Class
	Capability string // the negotiated namespace; empty for the core
	Answer     string // of a request: the type of its response
	Fields     []Field
	Timed      bool // the member timeout is the deadline of the request, in seconds
	Bare       bool // has no base members besides type (SUBAGENT_*)
}

// field finds a member by name.
func (t *Type) field(name string) *Field {
	if t == nil {
		return nil
	}
	for i := range t.Fields {
		if t.Fields[i].Name == name {
			return &t.Fields[i]
		}
	}
	return nil
}

// Registry maps type strings to types. It is safe for concurrent use; a lookup
// takes no lock. The zero value is empty; use [NewRegistry].
type Registry struct {
	mu     sync.Mutex
	types  atomic.Pointer[map[string]*Type]
	models map[string][]Field
	enums  map[string][]string
}

// NewRegistry gives a registry of all types of A2E §6, to which an embedder
// may add its own.
func NewRegistry() *Registry { return builtin().clone() }

// coreTypes need no capability (A2E §6.1).
var coreTypes = [...]string{"handshake/req", "handshake/resp", "invoke/event", "ping", "pong", "shutdown", "error"}

// builtin is the registry of hosts and clients that are given none. It is read-only.
var builtin = sync.OnceValue(func() *Registry {
	r := &Registry{models: map[string][]Field{}, enums: map[string][]string{}}
	for _, e := range enumTable {
		r.enums[e.name] = strings.Split(e.values, ", ")
	}
	for _, m := range modelTable {
		r.models[m.name] = nil
	}
	fields := func(name, members string) []Field {
		f, err := r.parseFields(members)
		if err != nil {
			panic("a2e: table of " + name + ": " + err.Error())
		}
		return f
	}
	// Models refer to each other, and ToolParameter to itself: three passes check three
	// levels of it, which bounds the work for one message.
	for range 3 {
		for _, m := range modelTable {
			r.models[m.name] = fields(m.name, m.members)
		}
	}
	all := make(map[string]*Type, len(typeTable))
	for _, t := range typeTable {
		typ := &Type{Name: t.name, Capability: t.capability, Fields: fields(t.name, t.members)}
		switch {
		case strings.HasPrefix(t.name, "SUBAGENT_"):
			typ.Bare = true
			switch {
			case strings.HasSuffix(t.name, "_RESP"):
				typ.Class = ClassResponse
			case strings.HasSuffix(t.name, "_EVENT"):
				typ.Class = ClassEvent
			default:
				typ.Class, typ.Answer = ClassRequest, strings.TrimSuffix(t.name, "_REQ")+"_RESP"
			}
		case t.name == "ping":
			typ.Class, typ.Answer = ClassRequest, "pong"
		case t.name == "shutdown":
			typ.Class = ClassRequest
		default:
			typ.Class = classOf(t.name, false)
			if typ.Class == ClassRequest {
				typ.Answer = answerOf(t.name)
			}
		}
		switch t.name {
		case "tool/call/req", "skill/call/req", "chain/req":
			typ.Timed = true
		}
		all[t.name] = typ
	}
	r.types.Store(&all)
	return r
})

// answerOf: x/req is answered by x/resp, x by x/resp (A2E §2.3).
func answerOf(name string) string { return strings.TrimSuffix(name, "/req") + "/resp" }

func (r *Registry) clone() *Registry {
	c := &Registry{models: maps.Clone(r.models), enums: maps.Clone(r.enums)}
	all := maps.Clone(r.all())
	c.types.Store(&all)
	return c
}

// all gives the types by name, nil for none.
func (r *Registry) all() map[string]*Type {
	if all := r.types.Load(); all != nil {
		return *all
	}
	return nil
}

// Lookup finds a type by its exact name.
func (r *Registry) Lookup(name string) (*Type, bool) {
	t, ok := r.all()[name]
	return t, ok
}

// Names lists all type strings in order.
func (r *Registry) Names() []string { return slices.Sorted(maps.Keys(r.all())) }

// Register adds types: a plugin's TYPE_MAP. If one of them is a type of the core or
// already registered, Register adds none and gives an error. A request without Answer
// gets x/resp for x/req.
func (r *Registry) Register(types ...Type) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make(map[string]*Type, len(r.all())+len(types))
	maps.Copy(all, r.all())
	for _, t := range types {
		if len(t.Name) > 128 || !typeName.MatchString(t.Name) {
			return fmt.Errorf("a2e: type %q is not namespace/verb", clip(t.Name, 128))
		}
		if _, dup := all[t.Name]; dup || slices.Contains(coreTypes[:], t.Name) {
			return fmt.Errorf("a2e: type %q is registered already", t.Name)
		}
		if t.Class == 0 {
			t.Class = classOf(t.Name, false)
		}
		if t.Class == ClassRequest && t.Answer == "" {
			t.Answer = answerOf(t.Name)
		}
		t.Fields = slices.Clone(t.Fields)
		all[t.Name] = &t
	}
	r.types.Store(&all)
	return nil
}

// Define is [Registry.Register] for one type in the notation of the protocol's
// own tables: `city: string!; days: integer = 3; tags: array<string> = []`.
// Types are any, string, integer, number, boolean, object, array<T>,
// object<T>, a nested object of A2E §6.14 or an enumeration of §6.15, each
// with "or null". "!" marks a required member.
func (r *Registry) Define(name, capability, members string) error {
	f, err := r.parseFields(members)
	if err != nil {
		return fmt.Errorf("a2e: type %q: %w", name, err)
	}
	return r.Register(Type{Name: name, Capability: capability, Fields: f})
}

// typeName is the suggested pattern of A2E §2.3.
var typeName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]*(/[A-Za-z0-9_.-]+)*$`)

func (r *Registry) parseFields(table string) ([]Field, error) {
	var out []Field
	for part := range strings.SplitSeq(table, "; ") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		name, rest, ok := strings.Cut(part, ": ")
		if !ok {
			return nil, fmt.Errorf("%q is not name: type", part)
		}
		f := Field{Name: name}
		shape, def, hasDefault := strings.Cut(rest, " = ")
		if !hasDefault {
			shape, f.Required = strings.CutSuffix(shape, "!")
			if !f.Required {
				return nil, fmt.Errorf("%q has neither a default nor !", name)
			}
		}
		f.Default = def
		var err error
		f.Shape, err = r.parseShape(shape)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", name, err)
		}
		if def != "" && generated[def] == nil {
			if err := jsonx.Valid([]byte(def), 0); err != nil {
				return nil, fmt.Errorf("default of %q: %w", name, err)
			}
		}
		out = append(out, f)
	}
	return out, nil
}

func (r *Registry) parseShape(s string) (Shape, error) {
	alternatives := strings.Split(s, " or ")
	sh, err := r.parseOne(alternatives[0])
	for _, a := range alternatives[1:] {
		if a == "null" {
			sh.Nullable = true
		} else {
			sh.also = a
		}
	}
	return sh, err
}

var kinds = map[string]Kind{"any": Any, "string": String, "integer": Integer, "number": Number, "boolean": Boolean,
	"object": Object}

func (r *Registry) parseOne(s string) (Shape, error) {
	if inner, ok := strings.CutPrefix(s, "array<"); ok {
		e, err := r.parseOne(strings.TrimSuffix(inner, ">"))
		return Shape{Kind: Array, Elem: &e}, err
	}
	if inner, ok := strings.CutPrefix(s, "object<"); ok {
		e, err := r.parseOne(strings.TrimSuffix(inner, ">"))
		return Shape{Kind: Map, Elem: &e}, err
	}
	if s == "[integer, integer]" {
		return Shape{Kind: Array, Elem: &Shape{Kind: Integer}, Length: 2}, nil
	}
	if k, ok := kinds[s]; ok {
		return Shape{Kind: k}, nil
	}
	if v, ok := r.enums[s]; ok {
		return Shape{Kind: Enum, Values: v}, nil
	}
	if m, ok := r.models[s]; ok {
		return Shape{Kind: Object, Model: m, model: s}, nil
	}
	return Shape{}, errors.New("unknown type " + s)
}

// schemaFault is one reason why a message fails its type's schema.
type schemaFault struct {
	Path   string `json:"path"`   // member, nested members and indexes joined by dots
	Reason string `json:"reason"` // missing, string_type, int_type, …: as the reference names it
}

// maxFaults bounds the list of faults in an error.
const maxFaults = 16

type checker struct{ faults []schemaFault }

func (c *checker) add(path, reason string) bool {
	c.faults = append(c.faults, schemaFault{Path: clip(path, 128), Reason: reason})
	return len(c.faults) < maxFaults
}

// checkFields matches the members of an object against fields. The last of several
// members with one name counts.
func (c *checker) checkFields(raw []byte, ms []member, fields []Field, path string) {
	if len(fields) == 0 {
		return
	}
	var inline [32]int32
	at := inline[:]
	if len(fields) > len(at) {
		at = make([]int32, len(fields))
	}
	match(raw, ms, fields, at)
	for i := range fields {
		f := &fields[i]
		if at[i] == 0 {
			if f.Required && !c.add(path+f.Name, "missing") {
				return
			}
			continue
		}
		c.value(ms[at[i]-1].value.of(raw), &f.Shape, path, f.Name)
		if len(c.faults) >= maxFaults {
			return
		}
	}
}

// match records for each field the number of its member plus one. Peers write members
// in the order of the table, so match tries the next field first.
func match(raw []byte, ms []member, fields []Field, at []int32) {
	next := 0
	for i := range ms {
		for n := range fields {
			k := next + n
			if k >= len(fields) {
				k -= len(fields)
			}
			if ms[i].is(raw, fields[k].Name) {
				at[k] = int32(i + 1)
				next = k + 1
				break
			}
		}
	}
}

// value checks one value against its shape; it joins path and name only to report a
// fault.
func (c *checker) value(v []byte, s *Shape, path, name string) {
	first := v[0]
	if first == 'n' && s.Nullable || s.also != "" && string(v) == s.also {
		return
	}
	reason := ""
	switch s.Kind {
	case Any:
	case String:
		if first != '"' {
			reason = "string_type"
		}
	case Integer:
		reason = notNumber(first, "int")
		if reason == "" && !integral(v) {
			reason = "int_from_float"
		}
	case Number:
		reason = notNumber(first, "float")
	case Boolean:
		switch {
		case first == 't' || first == 'f':
		case first == '"' || isNumber(first):
			reason = "bool_parsing"
		default:
			reason = "bool_type"
		}
	case Enum:
		if got, ok := textOf(v); !ok || !slices.Contains(s.Values, got) {
			reason = "enum"
		}
	case Object:
		switch {
		case first != '{' && s.model != "":
			reason = "model_type"
		case first != '{':
			reason = "dict_type"
		case len(s.Model) > 0:
			var few [fewMembers]member
			ms := membersInto(few[:0], v)
			c.checkFields(v, ms, s.Model, path+name+".")
			if s.model == "Feedback" {
				c.corrective(v, ms, path+name)
			}
		}
	case Map:
		if first != '{' {
			reason = "dict_type"
			break
		}
		var few [fewMembers]member
		for _, m := range membersInto(few[:0], v) {
			key, _ := unquote(m.name.of(v))
			c.value(m.value.of(v), s.Elem, path+name+".", key)
			if len(c.faults) >= maxFaults {
				return
			}
		}
	case Array:
		if first != '[' {
			reason = "list_type"
			break
		}
		n := 0
		elements(v, func(i int, e []byte) bool {
			n++
			c.value(e, s.Elem, path+name+".", strconv.Itoa(i))
			return len(c.faults) < maxFaults
		})
		if s.Length > 0 && n != s.Length {
			reason = "length"
		}
	}
	if reason != "" {
		c.add(path+name, reason)
	}
}

// corrective checks that corrective feedback has a correction (A2E §6.14).
func (c *checker) corrective(v []byte, ms []member, path string) {
	text := func(name string) string {
		s, _ := textOf(lookup(v, ms, name))
		return s
	}
	if text("polarity") == "corrective" && text("correction") == "" {
		c.add(path+".correction", "missing")
	}
}

// notNumber gives the fault of a value that should be a number, empty for a number.
func notNumber(first byte, kind string) (reason string) {
	switch {
	case first == '"':
		return kind + "_parsing"
	case !isNumber(first):
		return kind + "_type"
	}
	return ""
}

func isNumber(first byte) bool { return first == '-' || first >= '0' && first <= '9' }
