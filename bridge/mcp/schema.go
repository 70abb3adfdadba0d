package mcp

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"

	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/jsonx"
)

// wrappedMember is the argument of a tool that has all of its content; see [bridge.Tool.Wrapped].
const wrappedMember = "content"

// Bounds of a foreign schema that is shown. One beyond them is shown as an open one.
const (
	maxSchemaSize  = 64 << 10
	maxSchemaDepth = 32
	maxSubschemas  = 1000
	maxReferences  = 100
	maxWork        = 20_000 // subschemas with those that references lead to
	maxSchemaText  = 1000   // characters of a title or description
)

// A shownSkill has the schemas of a skill as clients see them. They allow all that the skill's own schemas allow, and
// may allow more: the content of a call is checked against the skill's own.
type shownSkill struct {
	input   json.RawMessage // of a tool's arguments: always an object
	content json.RawMessage // of the content for parley_ask; nil: anything
	output  json.RawMessage // of answers; nil: none is shown
	object  bool            // output is that of an object, as clients of the handshake revisions want it
}

// outputFor is the schema that clients of an era see for answers of the skill; nil: none.
func (s *shownSkill) outputFor(modern bool) json.RawMessage {
	if modern || s.object {
		return s.output
	}
	return nil
}

// shownSchemas caches shown schemas by the text of the skill's own. It is emptied when full.
type shownSchemas struct {
	mu sync.Mutex
	m  map[[sha256.Size]byte]*shownSkill
}

const maxShownSchemas = 8192

// of gives the schemas of a tool.
func (x *shownSchemas) of(t *bridge.Tool) *shownSkill {
	key := sha256.Sum256(slices.Concat(t.Skill.Input, []byte{0}, t.Skill.Output))
	x.mu.Lock()
	s := x.m[key]
	x.mu.Unlock()
	if s != nil {
		return s
	}
	s = &shownSkill{}
	s.input, s.content = inputSchemas(t)
	s.output, s.object = outputSchema(t.Skill.Output)
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.m == nil || len(x.m) >= maxShownSchemas {
		x.m = map[[sha256.Size]byte]*shownSkill{}
	}
	x.m[key] = s
	return s
}

// Schemas in place of those that are not there or cannot be shown.
var (
	talkSchema = json.RawMessage(`{"type":"object","properties":{"text":{"type":"string","description":` +
		`"what to say to the agent; in place of it, other members if its description asks for them"}}}`)
	openSchema = json.RawMessage(`{"type":"object","description":` +
		`"the skill's own schema cannot be shown here: see its description"}`)
	openWrapped = json.RawMessage(`{"type":"object","properties":{"content":{"description":` +
		`"the skill's own schema cannot be shown here: see its description"}},"required":["content"],` +
		`"additionalProperties":false}`)
)

// inputSchemas gives the schema of a tool's arguments, and that of its content alone.
func inputSchemas(t *bridge.Tool) (input, content json.RawMessage) {
	raw := bridge.SchemaObject(t.Skill.Input)
	if raw == nil {
		return talkSchema, nil
	}
	wrapped := t.Wrapped()
	content, err := showSchema(raw, func(s map[string]any) map[string]any { return s }, "")
	if err != nil {
		if wrapped {
			return openWrapped, nil
		}
		return openSchema, nil
	}
	if wrapped {
		input, err = showSchema(raw, func(s map[string]any) map[string]any {
			out := map[string]any{"type": "object", "properties": map[string]any{wrappedMember: s},
				"required": []any{wrappedMember}, "additionalProperties": false}
			if draft, ok := s["$schema"]; ok { // it may be at the root alone
				out["$schema"] = draft
				delete(s, "$schema")
			}
			return out
		}, "/properties/"+wrappedMember)
		if err != nil {
			return openWrapped, content
		}
		return input, content
	}
	input, err = showSchema(raw, func(s map[string]any) map[string]any {
		s["type"] = "object"
		return s
	}, "")
	if err != nil {
		return openSchema, content
	}
	return input, content
}

// outputSchema gives the schema of a skill's answers; object: it is that of an object.
func outputSchema(raw json.RawMessage) (out json.RawMessage, object bool) {
	if raw = bridge.SchemaObject(raw); raw == nil {
		return nil, false
	}
	out, err := showSchema(raw, func(s map[string]any) map[string]any { object = s["type"] == "object"; return s }, "")
	if err != nil {
		return nil, false
	}
	return out, object
}

var (
	errSchemaBounds = errors.New("mcp: a schema is beyond the bounds")
	errSchemaForm   = errors.New("mcp: a schema cannot be normalised")
)

// showSchema normalises a foreign schema for clients: only known keywords, no reference to other documents, texts
// without hidden characters, bounded. place puts it into the schema that is shown, at the JSON pointer base.
func showSchema(raw json.RawMessage, place func(map[string]any) map[string]any, base string) (json.RawMessage, error) {
	if len(raw) > maxSchemaSize || jsonx.TooDeep(raw, 2*maxSchemaDepth) {
		return nil, errSchemaBounds
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var root map[string]any
	if err := d.Decode(&root); err != nil {
		return nil, err
	}
	n := normaliser{base: base}
	s, err := n.object(root, 0)
	if err != nil {
		return nil, err
	}
	if draft, ok := root["$schema"].(string); ok && knownDraft.MatchString(draft) {
		s["$schema"] = draft
	}
	shown := place(s)
	for _, pointer := range n.references {
		if _, ok := resolved(shown, pointer); !ok {
			return nil, errSchemaForm
		}
	}
	if n.dropped && n.sensitive || work(shown, shown, map[string]int{}) >= maxWork {
		return nil, errSchemaForm
	}
	out, err := jsonx.EncodeTree(shown)
	if err != nil {
		return nil, err
	}
	return out, hub.CheckSchema(out)
}

var knownDraft = regexp.MustCompile(
	`^(https?://json-schema\.org/draft-0[467]/schema#?|https://json-schema\.org/draft/20(19-09|20-12)/schema#?)$`)

// A normaliser walks a schema.
type normaliser struct {
	base       string   // pointer to the schema in the one that is shown
	count      int      // subschemas
	references []string // local, as pointers into the schema that is shown
	negated    int      // greater than 0: inside a schema that must not fit
	dropped    bool     // a condition is left out
	sensitive  bool     // a condition left out elsewhere could make the schema stricter
}

// drop notes that a condition is left out: the schema must become no stricter by it.
func (n *normaliser) drop() error {
	if n.dropped = true; n.negated > 0 {
		return errSchemaForm
	}
	return nil
}

// A keyword reads the value of a keyword: ok is false for one that is left out. nil: the keyword has subschemas.
type keyword func(v any) (_ any, ok bool)

// keywords are those of JSON Schema that clients see, from draft 4 to 2020-12. Annotations that they lose nothing by,
// and those of other vocabularies, are left out; so is "x-mcp-header", which would put arguments into headers. So is
// "$anchor", although the conformance suite would have it kept (sep-2106-anchor-keyword-preserved): no reference that
// is shown needs it, and Ajv, the validator of many clients, refuses it by default as an unknown keyword. Whatever its
// options, Ajv refuses two equal anchors, which are there where parts had an "$id" of their own: "$id" is left out.
var keywords = map[string]keyword{
	"title": schemaText, "description": schemaText, "default": schemaData,
	"readOnly": schemaBool, "writeOnly": schemaBool, "deprecated": schemaBool,
	"type": schemaType, "enum": schemaData, "const": schemaData, "format": schemaWord, "pattern": schemaPattern,
	"contentEncoding": schemaWord, "contentMediaType": schemaWord, "multipleOf": schemaNumber, "minimum": schemaNumber,
	"maximum": schemaNumber, "exclusiveMinimum": schemaNumber, "exclusiveMaximum": schemaNumber,
	"minLength": schemaNumber, "maxLength": schemaNumber, "minItems": schemaNumber, "maxItems": schemaNumber,
	"minContains": schemaNumber, "maxContains": schemaNumber, "minProperties": schemaNumber,
	"maxProperties": schemaNumber, "uniqueItems": schemaBool, "required": schemaData, "dependentRequired": schemaData,

	"properties": nil, "patternProperties": nil, "$defs": nil, "definitions": nil, "dependentSchemas": nil,
	"dependencies": nil, "items": nil, "additionalItems": nil, "additionalProperties": nil, "unevaluatedItems": nil,
	"unevaluatedProperties": nil, "contains": nil, "propertyNames": nil, "not": nil, "if": nil, "then": nil,
	"else": nil, "allOf": nil, "anyOf": nil, "oneOf": nil, "prefixItems": nil,
}

// annotations are conditions for nobody: one that cannot be shown is left out without further ado.
var annotations = []string{"title", "description", "default", "format", "contentEncoding", "contentMediaType",
	"readOnly", "writeOnly", "deprecated"}

// named are the keywords whose value has subschemas by name.
var named = []string{"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}

func (n *normaliser) object(in map[string]any, depth int) (map[string]any, error) {
	if n.count++; depth > maxSchemaDepth || n.count > maxSubschemas {
		return nil, errSchemaBounds
	}
	out := make(map[string]any, len(in))
	if err := n.reference(in, out); err != nil {
		return nil, err
	}
	for _, key := range slices.Sorted(maps.Keys(in)) {
		read, known := keywords[key]
		v := in[key]
		var err error
		switch {
		case !known:
			continue
		case read == nil:
			v, err = n.applied(in, key, v, depth+1)
		default:
			var ok bool
			if v, ok = read(v); !ok {
				v = nil
				if !slices.Contains(annotations, key) {
					err = n.drop()
				}
			}
		}
		if err != nil {
			return nil, err
		}
		if v != nil || read != nil && in[key] == nil && (key == "const" || key == "default") {
			out[key] = v
		}
	}
	return out, nil
}

// reference keeps a local reference, and leaves out any other.
func (n *normaliser) reference(in, out map[string]any) error {
	for _, key := range []string{"$dynamicRef", "$recursiveRef"} {
		if _, ok := in[key]; ok {
			if err := n.drop(); err != nil {
				return err
			}
		}
	}
	v, ok := in["$ref"]
	if !ok {
		return nil
	}
	to, _ := v.(string)
	pointer, local := strings.CutPrefix(to, "#")
	if !local {
		return n.drop()
	}
	if pointer != "" && pointer[0] != '/' {
		return errSchemaForm // an anchor
	}
	pointer = n.base + pointer
	n.references = append(n.references, pointer)
	n.sensitive = n.sensitive || n.negated > 0
	if out["$ref"] = "#" + pointer; len(n.references) > maxReferences {
		return errSchemaBounds
	}
	return nil
}

// applied walks the subschemas of a keyword.
func (n *normaliser) applied(in map[string]any, key string, v any, depth int) (any, error) {
	switch _, most := in["maxContains"]; {
	case key == "not", key == "if", key == "oneOf", key == "contains" && most:
		n.negated++
		defer func() { n.negated-- }()
	case strings.HasPrefix(key, "unevaluated"):
		n.sensitive = true
	case key == "additionalProperties" && badPatterns(in):
		return nil, n.drop()
	}
	if !slices.Contains(named, key) {
		return n.value(v, depth)
	}
	list, ok := v.(map[string]any)
	if !ok {
		return nil, errSchemaForm
	}
	out := make(map[string]any, len(list))
	for _, name := range slices.Sorted(maps.Keys(list)) {
		if shownText(name, maxSchemaText) != name {
			return nil, errSchemaForm
		}
		if key == "patternProperties" && !usablePattern(name) {
			if err := n.drop(); err != nil {
				return nil, err
			}
			continue
		}
		if key == "dependencies" {
			if names, ok := list[name].([]any); ok && plain(names) {
				out[name] = names
				continue
			}
		}
		s, err := n.value(list[name], depth)
		if err != nil {
			return nil, err
		}
		out[name] = s
	}
	return out, nil
}

// value walks a subschema, or a list of them.
func (n *normaliser) value(v any, depth int) (any, error) {
	switch v := v.(type) {
	case bool:
		return v, nil
	case map[string]any:
		return n.object(v, depth)
	case []any:
		out := make([]any, len(v))
		for i := range v {
			if _, ok := v[i].([]any); ok {
				return nil, errSchemaForm
			}
			var err error
			if out[i], err = n.value(v[i], depth); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return nil, errSchemaForm
}

// resolved finds the subschema at a JSON pointer.
func resolved(root any, pointer string) (at any, ok bool) {
	at = root
	if pointer == "" {
		return at, true
	}
	for token := range strings.SplitSeq(pointer[1:], "/") {
		switch v := at.(type) {
		case map[string]any:
			at, ok = v[strings.NewReplacer("~1", "/", "~0", "~").Replace(token)]
		case []any:
			i, err := strconv.Atoi(token)
			if ok = err == nil && i >= 0 && i < len(v); ok {
				at = v[i]
			}
		default:
			ok = false
		}
		if !ok {
			return nil, false
		}
	}
	return at, true
}

// work counts the subschemas with those that references lead to, once for each reference: a few that refer to each
// other twice would keep a validator busy for ever. It stops at maxWork. known has the counts by pointer.
func work(root, v any, known map[string]int) (n int) {
	switch v := v.(type) {
	case map[string]any:
		n = 1
		for key, sub := range v {
			to, _ := sub.(string)
			pointer, ok := strings.CutPrefix(to, "#")
			if key != "$ref" || !ok {
				n = min(n+work(root, sub, known), maxWork)
				continue
			}
			if _, counted := known[pointer]; !counted {
				known[pointer] = 1 // within itself: recursion follows the content, which is bounded
				target, _ := resolved(root, pointer)
				known[pointer] = work(root, target, known)
			}
			n = min(n+known[pointer], maxWork)
		}
	case []any:
		for _, sub := range v {
			n = min(n+work(root, sub, known), maxWork)
		}
	}
	return n
}

func schemaText(v any) (any, bool) {
	s, ok := v.(string)
	if ok {
		s = shownText(s, maxSchemaText)
	}
	return s, ok && s != ""
}

func schemaWord(v any) (any, bool) {
	s, ok := v.(string)
	return s, ok && shownText(s, maxSchemaText) == s
}

func schemaPattern(v any) (any, bool) {
	s, ok := v.(string)
	return s, ok && usablePattern(s)
}

func usablePattern(s string) bool {
	_, err := regexp.Compile(s)
	return err == nil && shownText(s, maxSchemaText) == s
}

func badPatterns(in map[string]any) bool {
	list, _ := in["patternProperties"].(map[string]any)
	for name := range list {
		if !usablePattern(name) {
			return true
		}
	}
	return false
}

func schemaBool(v any) (any, bool) {
	b, ok := v.(bool)
	return b, ok
}

func schemaNumber(v any) (any, bool) {
	n, ok := v.(json.Number)
	return n, ok
}

func schemaType(v any) (any, bool) {
	unknown := func(v any) bool {
		s, _ := v.(string)
		return !slices.Contains([]string{"object", "array", "string", "number", "integer", "boolean", "null"}, s)
	}
	if list, ok := v.([]any); ok {
		return v, len(list) > 0 && !slices.ContainsFunc(list, unknown)
	}
	return v, !unknown(v)
}

// schemaData are values that a client passes on as they are, so they cannot be cleaned.
func schemaData(v any) (any, bool) { return v, plain(v) }

// plain reports whether the texts of a value have no hidden characters.
func plain(v any) bool {
	switch v := v.(type) {
	case string:
		return visible(v) == v
	case []any:
		return !slices.ContainsFunc(v, func(v any) bool { return !plain(v) })
	case map[string]any:
		for name, v := range v {
			if !plain(name) || !plain(v) {
				return false
			}
		}
	}
	return true
}

// visible removes the characters of a text that people do not see and models read: zero-width and formatting
// characters, changes of writing direction, tags, variation selectors, controls.
func visible(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case unicode.IsControl(r), unicode.In(r, unicode.Cf, unicode.Co, unicode.Variation_Selector,
			unicode.Other_Default_Ignorable_Code_Point, unicode.Noncharacter_Code_Point):
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}

// shownText gives a foreign text for a model: without hidden characters, and of at most n characters.
func shownText(s string, n int) string { return bridge.Shorten(visible(s), n) }
