package samvad

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/parley-hub/parley/internal/jsonx"
)

// Document is a kind of JSON document that the protocol publishes a schema
// for.
type Document string

// The documents of SAMVAD 1.2.
const (
	RequestDocument  Document = "request"
	ResponseDocument Document = "response"
	TaskDocument     Document = "task"
	CardDocument     Document = "card"
)

// documents are the rules of the published schemas (draft 2020-12).
//
//go:embed schemas
var documents embed.FS

var compiledDocuments = sync.OnceValues(func() (map[Document]*jsonschema.Schema, error) {
	m := map[Document]*jsonschema.Schema{}
	for _, d := range []Document{RequestDocument, ResponseDocument, TaskDocument, CardDocument} {
		text, err := documents.ReadFile("schemas/" + string(d) + ".json")
		if err != nil {
			return nil, err
		}
		s, err := compileSchema(text)
		if err != nil {
			return nil, fmt.Errorf("samvad: schema of %s: %w", d, err)
		}
		m[d] = s
	}
	return m, nil
})

// Validate checks a document against its published schema, formats asserted.
// It is stricter than reading: unknown members are refused. The error lists
// where each rule failed.
func (d Document) Validate(b []byte) error {
	if err := jsonx.Valid(b, 0); err != nil {
		return because(ErrMalformed, err)
	}
	v, err := parseTree(b)
	if err != nil {
		return because(ErrMalformed, err)
	}
	all, err := compiledDocuments()
	if err != nil {
		return err
	}
	s, ok := all[d]
	if !ok {
		return fmt.Errorf("samvad: no schema for %q", d)
	}
	if err := s.Validate(v); err != nil {
		return because(ErrMalformed, err)
	}
	return nil
}

// errRemote refuses a schema that refers to another document (SAM-092).
var errRemote = errors.New("references to other documents are not followed")

type noLoader struct{}

func (noLoader) Load(string) (any, error) { return nil, errRemote }

// schemaURL is the placeholder URL of a compiled schema.
const schemaURL = "urn:samvad:schema"

// compileSchema compiles a skill's schema: the draft that $schema names, else
// 2020-12, formats asserted, nothing fetched.
func compileSchema(text json.RawMessage) (s *jsonschema.Schema, err error) {
	doc, err := parseTree(text)
	if err != nil {
		return nil, err
	}
	// A guest's card may hold the text, and the library may panic.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("schema cannot be compiled: %v", p)
		}
	}()
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(noLoader{})
	c.AssertFormat()
	if err := c.AddResource(schemaURL, doc); err != nil {
		return nil, err
	}
	return c.Compile(schemaURL)
}

// maxNumber bounds the literal of a number that a schema looks at: the
// validator turns it into a fraction of big integers.
const (
	maxNumber   = 400
	maxExponent = 400
)

var errNumber = errors.New("number out of range")

// parseTree gives the tree form that the validator takes: numbers keep their
// literals.
func parseTree(b []byte) (any, error) {
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	return v, boundNumbers(v)
}

func boundNumbers(v any) error {
	switch v := v.(type) {
	case map[string]any:
		for _, m := range v {
			if err := boundNumbers(m); err != nil {
				return err
			}
		}
	case []any:
		for _, m := range v {
			if err := boundNumbers(m); err != nil {
				return err
			}
		}
	case json.Number:
		s := v.String()
		if len(s) > maxNumber {
			return errNumber
		}
		if i := strings.IndexAny(s, "eE"); i >= 0 {
			if n, err := strconv.Atoi(s[i+1:]); err != nil || n > maxExponent || n < -maxExponent {
				return errNumber
			}
		}
	}
	return nil
}

// An InputSchema checks payloads against a skill's inputSchema.
type InputSchema struct {
	schema *jsonschema.Schema
	doc    any  // the schema as a tree
	any    bool // accepts every object unchanged
}

// CompileInput compiles a skill's inputSchema. References to other documents
// are refused, never fetched (SAM-092). An absent schema accepts everything.
func CompileInput(text json.RawMessage) (*InputSchema, error) {
	if isNull(text) {
		return &InputSchema{any: true}, nil
	}
	if err := jsonx.Valid(text, 0); err != nil {
		return nil, fmt.Errorf("samvad: input schema: %w", err)
	}
	doc, err := parseTree(text)
	if err != nil {
		return nil, fmt.Errorf("samvad: input schema: %w", err)
	}
	s := &InputSchema{doc: doc}
	if s.schema, err = compileSchema(text); err != nil {
		return nil, fmt.Errorf("samvad: input schema: %w", err)
	}
	if m, ok := doc.(map[string]any); ok {
		rest := len(m)
		for _, k := range []string{"$schema", "title", "description"} {
			if _, ok := m[k]; ok {
				rest--
			}
		}
		s.any = rest == 0 || rest == 1 && m["type"] == "object"
	}
	return s, nil
}

// Apply gives the payload that the handler gets: members that the schema
// forbids are taken out at every level, defaults filled in, the rest
// validated (SAM-090). A payload that needs no change is returned as it is,
// byte for byte. The error wraps [ErrPayload]; its text names the member and
// the constraint.
func (s *InputSchema) Apply(payload json.RawMessage) (_ json.RawMessage, err error) {
	if isNull(payload) {
		payload = json.RawMessage("{}")
	}
	if s.any {
		return payload, nil
	}
	v, err := parseTree(payload)
	if err != nil {
		return nil, refuse(ErrPayload, "", err)
	}
	defer func() {
		if p := recover(); p != nil {
			err = refuse(ErrPayload, "", fmt.Errorf("validator: %v", p))
		}
	}()
	f := fitter{root: s.doc}
	v = f.fit(s.doc, v, 0)
	if err := s.schema.Validate(v); err != nil {
		if ve, ok := errors.AsType[*jsonschema.ValidationError](err); ok {
			return nil, refuse(ErrPayload, constraint(ve), err)
		}
		return nil, refuse(ErrPayload, "", err)
	}
	if !f.changed {
		return payload, nil
	}
	return jsonx.EncodeTree(v)
}

// constraint says which rule of a schema a value breaks first, in the form of the
// published example: "Field 'code' exceeds maxLength of 50000 characters" (SAMVAD
// 1.2 §4). It names members and the rule of the schema, never the value sent.
func constraint(e *jsonschema.ValidationError) string {
	for len(e.Causes) > 0 {
		e = e.Causes[0]
	}
	if k, ok := e.ErrorKind.(*kind.Required); ok {
		return subject(slices.Concat(e.InstanceLocation, k.Missing[:1])...) + " is required"
	}
	return subject(e.InstanceLocation...) + " " + broken(e)
}

// subject names a member by its path from the payload.
func subject(way ...string) string {
	if len(way) == 0 {
		return "The payload"
	}
	q := strconv.Quote(clip(strings.Join(way, ".")))
	return "Field '" + q[1:len(q)-1] + "'"
}

func broken(e *jsonschema.ValidationError) string {
	switch k := e.ErrorKind.(type) {
	case *kind.Type:
		return "is not of type " + strings.Join(k.Want, " or ")
	case *kind.Enum:
		return "is not one of the enum " + literals(k.Want...)
	case *kind.Const:
		return "is not the const " + literals(k.Want)
	case *kind.MaxLength:
		return fmt.Sprintf("exceeds maxLength of %d characters", k.Want)
	case *kind.MinLength:
		return fmt.Sprintf("is below minLength of %d characters", k.Want)
	case *kind.MaxItems:
		return fmt.Sprintf("exceeds maxItems of %d", k.Want)
	case *kind.MinItems:
		return fmt.Sprintf("is below minItems of %d", k.Want)
	case *kind.MaxProperties:
		return fmt.Sprintf("exceeds maxProperties of %d", k.Want)
	case *kind.MinProperties:
		return fmt.Sprintf("is below minProperties of %d", k.Want)
	case *kind.Maximum:
		return "exceeds maximum of " + decimal(k.Want)
	case *kind.Minimum:
		return "is below minimum of " + decimal(k.Want)
	case *kind.ExclusiveMaximum:
		return "is not below exclusiveMaximum of " + decimal(k.Want)
	case *kind.ExclusiveMinimum:
		return "is not above exclusiveMinimum of " + decimal(k.Want)
	case *kind.MultipleOf:
		return "is not a multipleOf " + decimal(k.Want)
	case *kind.Pattern:
		return "does not match pattern " + clip(k.Want)
	case *kind.Format:
		return "does not match format " + clip(k.Want)
	}
	if way := e.ErrorKind.KeywordPath(); len(way) > 0 {
		return "does not fit " + way[0]
	}
	return "does not fit the skill's input schema"
}

// literals lists values of a schema as JSON.
func literals(values ...any) string {
	out := make([]string, len(values))
	for i, v := range values {
		b, err := jsonx.EncodeTree(v)
		if err != nil {
			b = []byte("?")
		}
		out[i] = string(b)
	}
	return clip(strings.Join(out, ", "))
}

// decimal writes a bound of a schema.
func decimal(r *big.Rat) string {
	if r.IsInt() {
		return clip(r.Num().String())
	}
	return clip(strings.TrimRight(r.FloatString(12), "0"))
}

// fitter removes the members that a schema forbids from a value and fills in
// defaults, as the SDKs' validators do. It follows local references and leaves alone
// the keywords that it does not know: validation decides.
type fitter struct {
	root    any
	changed bool
}

const maxFit = 64 // references and levels followed

func (f *fitter) fit(schema, v any, depth int) any {
	s, ok := schema.(map[string]any)
	if !ok || depth > maxFit {
		return v
	}
	if ref, ok := s["$ref"].(string); ok {
		if target, ok := f.local(ref); ok {
			v = f.fit(target, v, depth+1)
		}
	}
	switch val := v.(type) {
	case map[string]any:
		f.fitObject(s, val, depth)
	case []any:
		items := s["items"]
		prefix, ok := s["prefixItems"].([]any)
		if list, old := items.([]any); old && !ok { // before draft 2020-12
			prefix, items = list, nil
		}
		for i := range val {
			if i < len(prefix) {
				val[i] = f.fit(prefix[i], val[i], depth+1)
			} else {
				val[i] = f.fit(items, val[i], depth+1)
			}
		}
	}
	if one := only(s, "anyOf", v); one != nil {
		v = f.fit(one, v, depth+1)
	}
	if one := only(s, "oneOf", v); one != nil {
		v = f.fit(one, v, depth+1)
	}
	return v
}

func (f *fitter) fitObject(s, val map[string]any, depth int) {
	props, _ := s["properties"].(map[string]any)
	_, patterns := s["patternProperties"]
	additional, closed := s["additionalProperties"]
	for name, m := range val {
		if p, ok := props[name]; ok {
			val[name] = f.fit(p, m, depth+1)
			continue
		}
		if patterns || !closed {
			continue
		}
		if additional == false {
			delete(val, name)
			f.changed = true
			continue
		}
		val[name] = f.fit(additional, m, depth+1)
	}
	for name, p := range props {
		if _, ok := val[name]; ok {
			continue
		}
		if ps, ok := p.(map[string]any); ok {
			if def, ok := ps["default"]; ok {
				val[name] = def
				f.changed = true
			}
		}
	}
}

// only gives the branch of a choice that is meant: the one whose type fits,
// if there is just one.
func only(s map[string]any, word string, v any) any {
	list, _ := s[word].([]any)
	var found any
	for _, b := range list {
		m, ok := b.(map[string]any)
		if !ok {
			return nil
		}
		_, object := v.(map[string]any)
		_, array := v.([]any)
		t := m["type"]
		_, props := m["properties"]
		if object && (t == "object" || t == nil && props) || array && t == "array" {
			if found != nil {
				return nil
			}
			found = b
		} else if t == nil && !props {
			return nil
		}
	}
	return found
}

// local resolves a reference within the schema: "#" or "#/…".
func (f *fitter) local(ref string) (any, bool) {
	path, ok := strings.CutPrefix(ref, "#")
	if !ok {
		return nil, false
	}
	at := f.root
	if path == "" {
		return at, true
	}
	for _, tok := range strings.Split(strings.TrimPrefix(path, "/"), "/") {
		tok = strings.NewReplacer("~1", "/", "~0", "~").Replace(tok)
		switch v := at.(type) {
		case map[string]any:
			at, ok = v[tok]
			if !ok {
				return nil, false
			}
		case []any:
			i, err := strconv.Atoi(tok)
			if err != nil || i < 0 || i >= len(v) {
				return nil, false
			}
			at = v[i]
		default:
			return nil, false
		}
	}
	return at, true
}
