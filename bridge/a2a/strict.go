package a2a

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parley-hub/parley/internal/jsonx"
)

// Strict reading of requests (rule A2A-010), for all methods in one way:
//
//  1. jsonx.Valid: one JSON value in UTF-8, no duplicate members, bounded depth.
//  2. canonical: members that the protocol knows have their exact name. snake_case names of
//     ProtoJSON are replaced by the camelCase ones; other spellings in case are refused.
//  3. jsonx.Decode into the types of wire.go.
//
// The known members are those of the types: a shape is made of each type once.

// maxDepth bounds the nesting of a request.
const maxDepth = 128

// A shape is what the protocol knows of a value: nil where it may be anything.
type shape struct {
	members  map[string]member // by each spelling that is accepted
	folded   map[string]string // names by their spelling in lower case
	elements *shape            // of an array
}

type member struct {
	name  string // in camelCase
	shape *shape
}

// shapeOf makes the shape of a type with JSON tags.
func shapeOf[T any]() *shape { return shapeOfType(reflect.TypeFor[T]()) }

func shapeOfType(t reflect.Type) *shape {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		if e := shapeOfType(t.Elem()); e != nil {
			return &shape{elements: e}
		}
		return nil
	case t.Kind() != reflect.Struct || t.PkgPath() == "time":
		return nil
	}
	s := &shape{members: map[string]member{}, folded: map[string]string{}}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		m := member{name, shapeOfType(f.Type)}
		for _, spelling := range []string{name, snake(name)} {
			s.members[spelling] = m
			s.folded[strings.ToLower(spelling)] = name
		}
	}
	return s
}

// snake is the name of a member in the protocol buffers definition.
func snake(camel string) string {
	var b strings.Builder
	for _, r := range camel {
		if r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}

// canonical gives valid JSON with the known members in camelCase: b itself where they have
// it. The error names the member.
func canonical(b []byte, s *shape) ([]byte, error) {
	c := canonizer{b: b}
	if err := c.value(jsonx.Place{From: 0, To: len(b)}, s); err != nil {
		return nil, err
	}
	if len(c.edits) == 0 {
		return b, nil
	}
	out, done := make([]byte, 0, len(b)), 0
	for _, e := range c.edits {
		out = append(append(append(append(out, b[done:e.at.From]...), '"'), e.name...), '"')
		done = e.at.To
	}
	return append(out, b[done:]...), nil
}

type canonizer struct {
	b     []byte
	edits []edit
}

type edit struct {
	at   jsonx.Place // of the name with its quotes
	name string
}

// A spellingError is a member whose name differs from a known one.
type spellingError struct{ field, text string }

func (e *spellingError) Error() string { return e.field + ": " + e.text }

// within puts the path of the value around the error's own.
func (e *spellingError) within(path string) *spellingError {
	sep := "."
	if e.field == "" || e.field[0] == '[' {
		sep = ""
	}
	return &spellingError{path + sep + e.field, e.text}
}

func (c *canonizer) value(at jsonx.Place, s *shape) (err error) {
	text := at.Of(c.b)
	switch {
	case s == nil:
	case s.elements != nil && jsonx.Kind(text) == '[':
		i := 0
		jsonx.ElementPlaces(text, func(v jsonx.Place) bool {
			if e := c.value(jsonx.Place{From: at.From + v.From, To: at.From + v.To}, s.elements); e != nil {
				err = inside(e, fmt.Sprintf("[%d]", i))
			}
			i++
			return err == nil
		})
	case s.members != nil && jsonx.Kind(text) == '{':
		err = c.object(at, s)
	}
	return err
}

func (c *canonizer) object(at jsonx.Place, s *shape) (err error) {
	text := at.Of(c.b)
	move := func(p jsonx.Place) jsonx.Place { return jsonx.Place{From: at.From + p.From, To: at.From + p.To} }
	first := len(c.edits)
	jsonx.Places(text, func(quoted, v jsonx.Place) bool {
		name, _ := jsonx.Unquote(quoted.Of(text))
		m, known := s.members[name]
		if !known {
			if like := s.folded[strings.ToLower(name)]; like != "" {
				err = &spellingError{name, fmt.Sprintf("the member is spelt %q", like)}
			}
			return err == nil
		}
		if m.name != name {
			c.edits = append(c.edits, edit{move(quoted), m.name})
		}
		if e := c.value(move(v), m.shape); e != nil {
			err = inside(e, m.name)
		}
		return err == nil
	})
	if err != nil || len(c.edits) == first {
		return err
	}
	return unique(text, s)
}

// unique refuses a member that stands in both spellings.
func unique(text []byte, s *shape) (err error) {
	seen := map[string]bool{}
	jsonx.Members(text, func(name string, _ jsonx.Value) bool {
		if m, known := s.members[name]; known {
			if seen[m.name] {
				err = &spellingError{m.name, "the member is there twice"}
			}
			seen[m.name] = true
		}
		return err == nil
	})
	return err
}

func inside(err error, path string) error {
	if e, ok := errors.AsType[*spellingError](err); ok {
		return e.within(path)
	}
	return err
}

// decodeParams reads the parameters of a method. They are strict JSON with the exact names.
func decodeParams(params []byte, v any) error {
	err := jsonx.Decode(params, v)
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*jsonx.Error](err); ok {
		return invalidParams(fieldPath(e.Pointer), "the value has the wrong type or form")
	}
	return protocol.ErrInvalidParams
}

// fieldPath gives a JSON pointer as the path of a field violation: message.parts[0].raw.
func fieldPath(pointer string) string {
	var b strings.Builder
	for _, step := range strings.Split(strings.TrimPrefix(pointer, "/"), "/") {
		switch {
		case strings.Trim(step, "0123456789") == "" && step != "":
			b.WriteString("[" + step + "]")
			continue
		case b.Len() > 0:
			b.WriteByte('.')
		}
		b.WriteString(step)
	}
	return b.String()
}
