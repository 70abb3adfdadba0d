package uagents

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/google/uuid"

	"github.com/parley-hub/parley/internal/jsonx"
)

// A Model is a message type: a JSON Schema in the style of pydantic v1 and its
// digest, which envelopes name. Make one with [ModelOf] or [ParseModel]; a
// Model does not change and is safe for concurrent use.
type Model struct {
	name   string
	schema *node
	digest string
	strict func(*node) error // the rules of the reference's own class beyond the schema
	err    error
}

// ParseModel takes a model's JSON Schema as manifests publish it: an object in
// the style of pydantic v1, references to #/definitions only. The error is
// ErrSchema.
func ParseModel(schema []byte) (*Model, error) {
	n, err := parse(schema)
	if err != nil {
		return nil, ErrSchema.Because(err)
	}
	return modelOfNode(n)
}

func modelOfNode(n *node) (*Model, error) {
	if n.kind != '{' {
		return nil, ErrSchema.Because(errors.New("a schema is an object"))
	}
	if err := localRefs(n); err != nil {
		return nil, ErrSchema.Because(err)
	}
	digest, err := digestOf("model:", n)
	if err != nil {
		return nil, ErrSchema.Because(err)
	}
	name := n.get("title").str()
	if ref, ok := strings.CutPrefix(n.get("$ref").str(), definitions); ok && name == "" {
		name = ref
	}
	return &Model{name: name, schema: n, digest: digest, strict: strictOf(digest)}, nil
}

const definitions = "#/definitions/"

// localRefs refuses references that leave the document.
func localRefs(n *node) error {
	if ref := n.get("$ref"); ref != nil && ref.kind == '"' && !strings.HasPrefix(ref.text, "#/") {
		return fmt.Errorf("reference to %.80q leaves the schema", ref.text)
	}
	for _, v := range n.vals {
		if err := localRefs(v); err != nil {
			return err
		}
	}
	return nil
}

// Name is the schema's title: the class name in the reference.
func (m *Model) Name() string { return m.name }

// Description is the schema's description: the class's doc string in the
// reference.
func (m *Model) Description() string { return m.schema.get("description").str() }

// Digest is model: and the SHA-256 of the schema as the reference writes it.
func (m *Model) Digest() string { return m.digest }

// Err says why [ModelOf] could not make a schema; nil for a usable model.
func (m *Model) Err() error { return m.err }

// Schema is the JSON Schema, members in the order they were given.
func (m *Model) Schema() ([]byte, error) {
	if m.err != nil {
		return nil, m.err
	}
	return pyDefault.write(nil, m.schema)
}

// Message encodes v and checks it against the schema. An error stays in the message
// and is returned by the function that sends it.
func (m *Model) Message(v any) Message {
	if m.err != nil {
		return Message{err: m.err}
	}
	b, err := jsonx.Encode(v)
	if err != nil {
		return Message{err: ErrContent.Because(err)}
	}
	return m.MessageText(b)
}

// messageOf is [Model.Message] of a tree; size is about the length of its text.
func (m *Model) messageOf(n *node, size int) Message {
	if m.err != nil {
		return Message{err: m.err}
	}
	if err := m.validate(n); err != nil {
		return Message{err: err}
	}
	b, err := pyDefault.write(make([]byte, 0, size), n)
	if err != nil {
		return Message{err: ErrContent.Because(err)}
	}
	return Message{Schema: m.digest, Payload: b}
}

// MessageText is [Model.Message] for a JSON text.
func (m *Model) MessageText(text []byte) Message {
	if m.err != nil {
		return Message{err: m.err}
	}
	n, _, err := m.read(text)
	if err != nil {
		return Message{err: err}
	}
	return m.messageOf(n, len(text)+len(text)/8)
}

// Documented may be implemented by a message struct to set its title (the
// reference's class name; empty: the Go name) and its description (the
// reference's doc string). Both are part of the digest.
type Documented interface {
	ModelDoc() (title, description string)
}

// Enumerated may be implemented by a string type to become an enumeration.
type Enumerated interface{ EnumValues() []string }

// Union may be implemented by a type that is one of several on the wire. It
// gives one value of each, in the order they are tried.
type Union interface{ UnionOf() []any }

// ModelOf declares a model from a Go struct. Its schema and digest are those of a
// class of the same shape in the Python library.
//
// Names come from json tags. A pointer, omitempty and omitzero make a field
// optional (Optional[X]); any is Any. Further tags: default (a JSON value, or
// plain text for strings), doc (description), pattern, and schema, a list of
// key=value of title, format, enum (values separated by |), minLength, maxLength,
// minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf, minItems,
// maxItems, and the bare word unique for a set. uuid.UUID is format uuid,
// unless the tag says uuid4; time.Time is date-time. Named struct types become
// definitions. See [Documented], [Enumerated] and [Union].
//
// A type without a schema gives a model with a [Model.Err].
func ModelOf[T any]() *Model {
	t := reflect.TypeFor[T]()
	if m, ok := models.Load(t); ok {
		return m.(*Model)
	}
	m, err := modelOfType(t)
	if err != nil {
		m = &Model{err: ErrSchema.Because(err)}
	}
	models.Store(t, m)
	return m
}

// models caches the models of Go types: making one takes longer than encoding a
// message. It is unbounded, as a program has a fixed number of types.
var models sync.Map

func modelOfType(t reflect.Type) (*Model, error) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil, fmt.Errorf("%s is not a struct", t)
	}
	b := &schemaBuilder{defs: &node{kind: '{'}, types: map[string]reflect.Type{}, root: t}
	top, err := b.structSchema(t)
	if err != nil {
		return nil, err
	}
	title := top.get("title").str()
	if b.rootUsed {
		b.defs.set(title, top)
		top = object("$ref", definitions+title)
	}
	if len(b.defs.keys) > 0 {
		top.set("definitions", b.defs)
	}
	return modelOfNode(top)
}

type schemaBuilder struct {
	root     reflect.Type
	rootUsed bool  // root refers to itself
	defs     *node // by title
	types    map[string]reflect.Type
}

// implementation gives t's zero value as the interface, on value or pointer.
func implementation[I any](t reflect.Type) (I, bool) {
	i, ok := reflect.New(t).Interface().(I)
	return i, ok
}

func docOf(t reflect.Type) (title, description string) {
	if d, ok := implementation[Documented](t); ok {
		title, description = d.ModelDoc()
	}
	if title == "" {
		title, _, _ = strings.Cut(t.Name(), "[")
	}
	return title, description
}

func (b *schemaBuilder) structSchema(t reflect.Type) (*node, error) {
	title, description := docOf(t)
	if title == "" {
		return nil, errors.New("an anonymous struct has no title")
	}
	n := object("title", title)
	if description != "" {
		n.set("description", str(description))
	}
	n.set("type", str("object"))
	properties, required := &node{kind: '{'}, list()
	if err := b.fields(t, properties, required); err != nil {
		return nil, fmt.Errorf("%s: %w", title, err)
	}
	n.set("properties", properties)
	if len(required.vals) > 0 {
		n.set("required", required)
	}
	return n, nil
}

func (b *schemaBuilder) fields(t reflect.Type, properties, required *node) error {
	for i := range t.NumField() {
		f := t.Field(i)
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == "-" || !f.IsExported() && !f.Anonymous {
			continue
		}
		if f.Anonymous && tag == "" && f.Type.Kind() == reflect.Struct {
			if err := b.fields(f.Type, properties, required); err != nil {
				return err
			}
			continue
		}
		if tag == "" {
			tag = f.Name
		}
		schema, optional, err := b.field(f, tag)
		if err != nil {
			return fmt.Errorf("field %s: %w", tag, err)
		}
		opts := strings.Split(options, ",")
		if _, ok := f.Tag.Lookup("default"); !ok && !optional &&
			!slices.Contains(opts, "omitempty") && !slices.Contains(opts, "omitzero") {
			required.vals = append(required.vals, str(tag))
		}
		properties.set(tag, schema)
	}
	return nil
}

// field gives a property's schema and reports whether its Go type makes it optional.
func (b *schemaBuilder) field(f reflect.StructField, name string) (*node, bool, error) {
	t, optional := f.Type, false
	if t.Kind() == reflect.Pointer {
		t, optional = t.Elem(), true
	}
	own, err := b.typeSchema(t)
	if err != nil {
		return nil, false, err
	}
	if t.Kind() == reflect.Interface {
		optional = true
	}
	over := &node{kind: '{'}
	title, titled := tagOption(f.Tag.Get("schema"), "title")
	_, enum := implementation[Enumerated](t)
	if titled {
		over.set("title", str(title))
	} else if !enum {
		over.set("title", str(FieldTitle(name)))
	}
	overridden := titled
	if doc := f.Tag.Get("doc"); doc != "" {
		over.set("description", str(doc))
		overridden = true
	}
	if def, ok := f.Tag.Lookup("default"); ok {
		v := str(def)
		if t.Kind() != reflect.String {
			if v, err = parse([]byte(def)); err != nil {
				return nil, false, fmt.Errorf("default: %w", err)
			}
		}
		over.set("default", v)
		overridden = true
	}
	if own.get("$ref") != nil {
		if !overridden {
			return own, optional, nil
		}
		over.set("allOf", list(own))
		return over, optional, nil
	}
	for i, k := range own.keys {
		over.set(k, own.vals[i])
	}
	return over, optional, constrain(over, f.Tag)
}

func tagOption(tag, key string) (string, bool) {
	for _, o := range strings.Split(tag, ",") {
		if k, v, _ := strings.Cut(o, "="); strings.TrimSpace(k) == key {
			return v, true
		}
	}
	return "", false
}

// constrain puts the schema and pattern tags onto a property.
func constrain(n *node, tag reflect.StructTag) error {
	if p := tag.Get("pattern"); p != "" {
		n.set("pattern", str(p))
	}
	for _, o := range strings.Split(tag.Get("schema"), ",") {
		k, v, _ := strings.Cut(strings.TrimSpace(o), "=")
		switch k {
		case "", "title":
		case "format":
			n.set(k, str(v))
		case "unique":
			n.set("uniqueItems", boolean(true))
		case "enum":
			n.set("enum", texts(strings.Split(v, "|")))
		case "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
			"minItems", "maxItems":
			lit, err := parse([]byte(v))
			if err != nil || lit.kind != '0' {
				return fmt.Errorf("%s needs a number", k)
			}
			n.set(k, lit)
		default:
			return fmt.Errorf("unknown schema option %q", k)
		}
	}
	return nil
}

func typeNode(name string) *node { return object("type", name) }

func formatNode(format string) *node {
	n := typeNode("string")
	n.set("format", str(format))
	return n
}

func (b *schemaBuilder) typeSchema(t reflect.Type) (*node, error) {
	switch t {
	case reflect.TypeFor[time.Time](), reflect.TypeFor[Timestamp]():
		return formatNode("date-time"), nil
	case reflect.TypeFor[uuid.UUID]():
		return formatNode("uuid"), nil
	case reflect.TypeFor[jsonx.Value](), reflect.TypeFor[json.RawMessage]():
		return &node{kind: '{'}, nil
	}
	if u, ok := implementation[Union](t); ok && t.Kind() != reflect.Interface {
		any := list()
		for _, v := range u.UnionOf() {
			s, err := b.typeSchema(reflect.TypeOf(v))
			if err != nil {
				return nil, err
			}
			any.vals = append(any.vals, s)
		}
		n := &node{kind: '{'}
		n.set("anyOf", any)
		return n, nil
	}
	switch t.Kind() {
	case reflect.String:
		if e, ok := implementation[Enumerated](t); ok {
			return b.enum(t, e.EnumValues())
		}
		return typeNode("string"), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return typeNode("integer"), nil
	case reflect.Float32, reflect.Float64:
		return typeNode("number"), nil
	case reflect.Bool:
		return typeNode("boolean"), nil
	case reflect.Interface:
		return &node{kind: '{'}, nil
	case reflect.Pointer:
		return b.typeSchema(t.Elem())
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return formatNode("binary"), nil
		}
		items, err := b.typeSchema(t.Elem())
		if err != nil {
			return nil, err
		}
		n := typeNode("array")
		if t.Kind() == reflect.Slice {
			n.set("items", items)
			return n, nil
		}
		tuple := list()
		for range t.Len() {
			tuple.vals = append(tuple.vals, items)
		}
		n.set("minItems", number(int64(t.Len())))
		n.set("maxItems", number(int64(t.Len())))
		n.set("items", tuple)
		return n, nil
	case reflect.Map:
		if t.Key().Kind() != reflect.String {
			return nil, fmt.Errorf("a map needs string keys, not %s", t.Key())
		}
		n := typeNode("object")
		if t.Elem().Kind() != reflect.Interface {
			v, err := b.typeSchema(t.Elem())
			if err != nil {
				return nil, err
			}
			n.set("additionalProperties", v)
		}
		return n, nil
	case reflect.Struct:
		return b.reference(t)
	}
	return nil, fmt.Errorf("%s has no JSON Schema", t)
}

// reference defines a nested struct, once, and gives a reference to the definition.
func (b *schemaBuilder) reference(t reflect.Type) (*node, error) {
	title, _ := docOf(t)
	ref := object("$ref", definitions+title)
	if t == b.root {
		b.rootUsed = true
		return ref, nil
	}
	if known, err := b.defined(title, t); known || err != nil {
		return ref, err
	}
	n, err := b.structSchema(t)
	if err != nil {
		return nil, err
	}
	b.defs.set(title, n)
	return ref, nil
}

// defined reports whether a title was used before, and notes its type.
func (b *schemaBuilder) defined(title string, t reflect.Type) (bool, error) {
	seen, ok := b.types[title]
	if ok && seen != t {
		return true, fmt.Errorf("two types are called %s", title)
	}
	b.types[title] = t
	return ok, nil
}

func (b *schemaBuilder) enum(t reflect.Type, values []string) (*node, error) {
	title, description := docOf(t)
	if description == "" {
		description = "An enumeration."
	}
	if _, err := b.defined(title, t); err != nil {
		return nil, err
	}
	n := object("title", title)
	n.set("description", str(description))
	n.set("enum", texts(values))
	n.set("type", str("string"))
	b.defs.set(title, n)
	return object("$ref", definitions+title), nil
}

// FieldTitle is the title that pydantic gives a member: snake_case → Snake Case,
// userID → Userid. It is Python's name.title().replace("_", " "): each run of letters
// begins with a capital and goes on in lower case.
func FieldTitle(name string) string {
	var s strings.Builder
	letter := false
	for _, r := range name {
		switch {
		case !unicode.IsLetter(r):
			letter = false
			if r == '_' {
				r = ' '
			}
		case letter:
			r = unicode.ToLower(r)
		default:
			letter = true
			r = unicode.ToTitle(r)
		}
		s.WriteRune(r)
	}
	return s.String()
}
