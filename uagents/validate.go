package uagents

import (
	"fmt"
	"math"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// This file decides whether the reference's data model (pydantic v1) would take a
// message. It is as lenient as that model, because refusing a message that an agent
// would take is wrong, and as strict, because a message that does not fit stops the
// reference agent's message loop for good. Where it must err (null for a field with a
// default, an empty array for a dict, times beyond the calendar) it refuses.

// A FieldError names the member of a message that does not fit its schema, in the
// reference's words.
type FieldError struct {
	Loc  []string // path; list positions as decimal numbers
	Msg  string
	Type string
}

func (e *FieldError) Error() string { return strings.Join(e.Loc, ".") + ": " + e.Msg }

// Validate checks the JSON text of a message. The error is ErrContent, its cause a
// [*FieldError] where a member does not fit.
func (m *Model) Validate(text []byte) error {
	if m.err != nil {
		return m.err
	}
	n, _, err := m.read(text)
	if err != nil {
		return err
	}
	return m.validate(n)
}

// read parses a message for validation: a chat message by [parseChat].
func (m *Model) read(text []byte) (n *node, duplicate bool, err error) {
	if m.strict != nil {
		n, duplicate, err = parseChat(text)
	} else {
		n, err = parse(text)
	}
	if err != nil {
		return nil, false, ErrContent.Because(
			&FieldError{[]string{"__root__"}, "not JSON: " + err.Error(), "value_error.jsondecode"})
	}
	return n, duplicate, nil
}

func (m *Model) validate(n *node) error {
	if n.kind != '{' {
		return ErrContent.Because(&FieldError{[]string{"__root__"}, m.name + " expected dict", "type_error"})
	}
	if m.strict != nil {
		if err := m.strict(n); err != nil {
			return ErrContent.Because(err)
		}
		return nil
	}
	v := &validator{root: m.schema, budget: 100_000}
	if err := v.value(m.schema, n, nil); err != nil {
		return ErrContent.Because(err)
	}
	return nil
}

// A validator checks one message. Its budget bounds the work that unions and
// references of a hostile schema can cause.
type validator struct {
	root   *node
	budget int
}

func wrong(loc []string, kind, msg string) *FieldError {
	return &FieldError{slices.Clone(loc), msg, kind}
}

var errBudget = &FieldError{Msg: "schema is too complex", Type: "value_error"}

// value gives the last fault, or nil.
func (v *validator) value(s, n *node, loc []string) *FieldError {
	for {
		v.budget--
		if v.budget < 0 {
			return errBudget
		}
		ref := s.get("$ref")
		if ref == nil {
			break
		}
		s = v.resolve(ref.text)
		if s == nil {
			return nil // no type in the schema
		}
	}
	if all := s.get("allOf"); all != nil && all.kind == '[' {
		for _, one := range all.vals {
			if err := v.value(one, n, loc); err != nil {
				return err
			}
		}
	}
	if any := s.get("anyOf"); any != nil && any.kind == '[' {
		var last *FieldError
		for _, one := range any.vals {
			last = v.value(one, n, loc)
			if last == nil {
				return nil
			}
		}
		return last
	}
	kind := s.get("type").str()
	if n.kind == 'n' {
		if kind == "" && s.get("enum") == nil && s.get("properties") == nil {
			return nil
		}
		return wrong(loc, "type_error.none.not_allowed", "none is not an allowed value")
	}
	if enum := s.get("enum"); enum != nil && enum.kind == '[' {
		return permitted(enum, n, loc)
	}
	switch kind {
	case "string":
		return v.text(s, n, loc)
	case "integer":
		return v.integer(s, n, loc)
	case "number":
		f, ok := asFloat(n)
		if !ok {
			return wrong(loc, "type_error.float", "value is not a valid float")
		}
		return inRange(s, f, loc)
	case "boolean":
		if _, ok := asBool(n); !ok {
			return wrong(loc, "value_error.bool", "value could not be parsed to a boolean")
		}
	case "array":
		return v.array(s, n, loc)
	case "object":
		return v.object(s, n, loc)
	}
	return nil
}

// resolve finds #/a/b in the schema.
func (v *validator) resolve(ref string) *node {
	s := v.root
	for _, part := range strings.Split(strings.TrimPrefix(ref, "#/"), "/") {
		part = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
		s = s.get(part)
		if s == nil {
			return nil
		}
	}
	return s
}

func (v *validator) object(s, n *node, loc []string) *FieldError {
	if n.kind != '{' {
		return wrong(loc, "type_error.dict", "value is not a valid dict")
	}
	properties, additional := s.get("properties"), s.get("additionalProperties")
	var last *FieldError
	if properties != nil && properties.kind == '{' {
		required := s.get("required")
		for i, name := range properties.keys {
			at := append(slices.Clip(loc), name)
			member := n.get(name)
			need := required != nil && slices.ContainsFunc(required.vals, func(r *node) bool { return r.str() == name })
			switch {
			case member == nil && need:
				last = wrong(at, "value_error.missing", "field required")
			case member == nil:
			case member.kind == 'n' && !need && properties.vals[i].get("default") == nil:
				// Optional[X]. With a default, its schema looks like that of a plain
				// X, which null does not fit: refused, to be safe.
			default:
				if err := v.value(properties.vals[i], member, at); err != nil {
					last = err
				}
			}
		}
		return last
	}
	if additional != nil && additional.kind == '{' {
		for i, name := range n.keys {
			if err := v.value(additional, n.vals[i], append(slices.Clip(loc), name)); err != nil {
				last = err
			}
		}
	}
	return last
}

func (v *validator) array(s, n *node, loc []string) *FieldError {
	if n.kind != '[' {
		return wrong(loc, "type_error.list", "value is not a valid list")
	}
	length := float64(len(n.vals))
	if b, ok := asFloat(s.get("minItems")); ok && length < b {
		return wrong(loc, "value_error.list.min_items", "wrong number of items: minItems is "+s.get("minItems").text)
	}
	if b, ok := asFloat(s.get("maxItems")); ok && length > b {
		return wrong(loc, "value_error.list.max_items", "wrong number of items: maxItems is "+s.get("maxItems").text)
	}
	items := s.get("items")
	if items == nil {
		return nil
	}
	var last *FieldError
	for i, one := range n.vals {
		schema := items
		if items.kind == '[' {
			if i >= len(items.vals) {
				break
			}
			schema = items.vals[i]
		}
		if err := v.value(schema, one, append(slices.Clip(loc), strconv.Itoa(i))); err != nil {
			last = err
		}
	}
	return last
}

func (v *validator) text(s, n *node, loc []string) *FieldError {
	switch s.get("format").str() {
	case "date-time":
		if _, err := timestampOf(n); err != nil {
			return wrong(loc, "value_error.datetime", "invalid datetime format")
		}
		return nil
	case "date":
		if !isDate(n) {
			return wrong(loc, "value_error.date", "invalid date format")
		}
		return nil
	case "uuid", "uuid1", "uuid3", "uuid4", "uuid5":
		version := strings.TrimPrefix(s.get("format").str(), "uuid")
		u, ok := pyUUID(n)
		switch {
		case !ok:
			return wrong(loc, "type_error.uuid", "value is not a valid uuid")
		case version != "" && strconv.Itoa(pyUUIDVersion(u)) != version:
			return wrong(loc, "value_error", "uuid version "+version+" expected")
		}
		return nil
	case "time", "time-delta", "ipv4", "ipv6", "uri", "email", "path", "file-path", "directory-path", "binary",
		"json-string":
		return nil // the model coerces these in ways of its own
	}
	t, ok := asString(n)
	if !ok {
		return wrong(loc, "type_error.str", "str type expected")
	}
	length := float64(utf8.RuneCountInString(t))
	if b, ok := asFloat(s.get("minLength")); ok && length < b {
		return wrong(loc, "value_error.any_str.min_length",
			"ensure this value has at least "+s.get("minLength").text+" characters")
	}
	if b, ok := asFloat(s.get("maxLength")); ok && length > b {
		return wrong(loc, "value_error.any_str.max_length",
			"ensure this value has at most "+s.get("maxLength").text+" characters")
	}
	if p := s.get("pattern"); p.str() != "" {
		// A pattern that Go's engine cannot compile is not checked.
		if re, err := regexp.Compile(`^(?:` + p.text + `)`); err == nil && !re.MatchString(t) {
			return wrong(loc, "value_error.str.regex", fmt.Sprintf("string does not match regex %q", p.text))
		}
	}
	return nil
}

func (v *validator) integer(s, n *node, loc []string) *FieldError {
	i, ok := asInteger(n)
	if !ok {
		return wrong(loc, "type_error.integer", "value is not a valid integer")
	}
	f, _ := new(big.Float).SetInt(i).Float64()
	return inRange(s, f, loc)
}

// inRange checks the numeric constraints.
func inRange(s *node, f float64, loc []string) *FieldError {
	for _, c := range []struct {
		name, kind, word string
		ok               func(f, bound float64) bool
	}{
		{"minimum", "value_error.number.not_ge", "greater than or equal to ",
			func(f, b float64) bool { return f >= b }},
		{"exclusiveMinimum", "value_error.number.not_gt", "greater than ", func(f, b float64) bool { return f > b }},
		{"maximum", "value_error.number.not_le", "less than or equal to ", func(f, b float64) bool { return f <= b }},
		{"exclusiveMaximum", "value_error.number.not_lt", "less than ", func(f, b float64) bool { return f < b }},
		{"multipleOf", "value_error.number.not_multiple", "a multiple of ", func(f, b float64) bool {
			mod := math.Mod(f/b, 1)
			return b == 0 || math.Abs(mod) < 1e-8 || math.Abs(math.Abs(mod)-1) < 1e-8
		}},
	} {
		if bound := s.get(c.name); bound != nil {
			if b, ok := asFloat(bound); ok && !c.ok(f, b) {
				return wrong(loc, c.kind, "ensure this value is "+c.word+bound.text)
			}
		}
	}
	return nil
}

// permitted checks a literal or enumeration. Python's 1 == 1.0 == True.
func permitted(enum, n *node, loc []string) *FieldError {
	var names []string
	for _, one := range enum.vals {
		if one.kind == n.kind && one.kind == '"' && one.text == n.text {
			return nil
		}
		if a, ok := pyNumeric(one); ok {
			if b, ok := pyNumeric(n); ok && a == b {
				return nil
			}
		}
		b, err := pyDefault.write(nil, one)
		if err == nil {
			names = append(names, string(b))
		}
	}
	return wrong(loc, "value_error.const", "unexpected value; permitted: "+strings.Join(names, ", "))
}

func pyNumeric(n *node) (float64, bool) {
	if n.kind == '"' {
		return 0, false
	}
	return asFloat(n)
}

// asString is pydantic v1's str: numbers and booleans become their Python
// texts.
func asString(n *node) (string, bool) {
	switch n.kind {
	case '"':
		return n.text, true
	case 't':
		return "True", true
	case 'f':
		return "False", true
	case '0':
		s, err := pyNumber(n.text)
		return s, err == nil
	}
	return "", false
}

// asInteger is pydantic v1's int: floats are cut, decimal strings are read.
func asInteger(n *node) (*big.Int, bool) {
	switch n.kind {
	case 't':
		return big.NewInt(1), true
	case 'f':
		return new(big.Int), true
	case '"':
		if strings.Contains(n.text, ".") {
			return nil, false
		}
		i, err := intText(n.text)
		if err != nil {
			return nil, false
		}
		return new(big.Int).SetString(string(i), 10)
	case '0':
		if !strings.ContainsAny(n.text, ".eE") {
			if len(n.text) > maxDigits {
				return nil, false
			}
			return new(big.Int).SetString(n.text, 10)
		}
		f, err := strconv.ParseFloat(n.text, 64)
		if err != nil || math.IsInf(f, 0) {
			return nil, false
		}
		i, _ := big.NewFloat(f).Int(nil)
		return i, true
	}
	return nil, false
}

// asFloat is pydantic v1's float. n may be nil.
func asFloat(n *node) (float64, bool) {
	if n == nil {
		return 0, false
	}
	switch n.kind {
	case 't':
		return 1, true
	case 'f':
		return 0, true
	case '0', '"':
		s := strings.TrimSpace(n.text)
		if strings.ContainsAny(s, "xXpP") {
			return 0, false
		}
		if strings.Contains(s, "__") || strings.HasPrefix(s, "_") || strings.HasSuffix(s, "_") {
			return 0, false
		}
		f, err := strconv.ParseFloat(strings.ReplaceAll(s, "_", ""), 64)
		return f, err == nil || math.IsInf(f, 0)
	}
	return 0, false
}

// asBool is pydantic v1's bool.
func asBool(n *node) (value, ok bool) {
	if n.kind == '"' {
		switch strings.ToLower(n.text) {
		case "0", "off", "f", "false", "n", "no":
			return false, true
		case "1", "on", "t", "true", "y", "yes":
			return true, true
		}
		return false, false
	}
	f, ok := asFloat(n)
	return f == 1, ok && (f == 0 || f == 1)
}
