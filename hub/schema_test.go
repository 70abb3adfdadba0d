package hub

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// doubling is a schema of 40 definitions, each of which has the next one twice under a keyword.
func doubling(draft, definition, leaf string) json.RawMessage {
	var b strings.Builder
	fmt.Fprintf(&b, `{"$schema":%q,"$ref":"#/$defs/d0","$defs":{`, draft)
	for i := range 40 {
		fmt.Fprintf(&b, `"d%d":%s,`, i, strings.ReplaceAll(definition, "NEXT", fmt.Sprintf(`{"$ref":"#/$defs/d%d"}`, i+1)))
	}
	fmt.Fprintf(&b, `"d40":%s}}`, leaf)
	return json.RawMessage(b.String())
}

// A schema cannot keep the hub busy, and one that refers to itself in a sane way works.
func TestSchemaBudget(t *testing.T) {
	t.Parallel()
	nested := strings.Repeat(`{"a":`, 60) + "1" + strings.Repeat("}", 60)
	for _, draft := range []string{"https://json-schema.org/draft/2020-12/schema",
		"http://json-schema.org/draft-07/schema#"} {
		for name, c := range map[string]struct {
			schema  json.RawMessage
			content string
		}{
			"all that fit":          {doubling(draft, `{"allOf":[NEXT,NEXT]}`, `{}`), `{}`},
			"any that do not fit":   {doubling(draft, `{"anyOf":[NEXT,NEXT]}`, `{"type":"string"}`), `{}`},
			"one that does not fit": {doubling(draft, `{"oneOf":[NEXT,NEXT]}`, `false`), `{}`},
			"not":                   {doubling(draft, `{"not":{"allOf":[NEXT,NEXT]}}`, `true`), `{}`},
			"if":                    {doubling(draft, `{"if":NEXT,"then":NEXT}`, `{}`), `{}`},
			"a recursive property": {json.RawMessage(fmt.Sprintf(`{"$schema":%q,"properties":{"a":{"allOf":[{"$ref":"#"},`+
				`{"$ref":"#"}]}}}`, draft)), nested},
		} {
			s, err := compile(c.schema)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if err := s.validate([]byte(c.content)); !errors.Is(err, errBudget) {
				t.Errorf("%s, %s: %v", draft, name, err)
			}
			if err := CheckContent(c.schema, []byte(c.content)); err == nil || err.Error() != errBudget.Error() {
				t.Errorf("%s, %s: %v", draft, name, err)
			}
		}
	}
	tree := json.RawMessage(`{"type":"object","properties":{"left":{"anyOf":[{"type":"null"},{"$ref":"#"}]},` +
		`"right":{"$ref":"#"},"at":{"type":"string","format":"date"}},"additionalProperties":false}`)
	full := strings.Repeat(`{"right":{},"left":`, 50) + "null" + strings.Repeat("}", 50)
	if err := CheckContent(tree, []byte(full)); err != nil {
		t.Error(err)
	}
	if err := CheckContent(tree, []byte(`{"left":{"up":1}}`)); err == nil {
		t.Error("a member that the schema does not have")
	}
	large := `[` + strings.TrimSuffix(strings.Repeat(`{"left":null,"right":{}},`, 20000), ",") + `]`
	trees := json.RawMessage(`{"items":{"$ref":"#/$defs/t"},"$defs":{"t":` +
		strings.ReplaceAll(string(tree), `"#"`, `"#/$defs/t"`) + `}}`)
	if err := CheckContent(trees, []byte(large)); err != nil {
		t.Error("large content:", err)
	}
	if err := CheckSchema(json.RawMessage(`{"$dynamicRef":"#a","$defs":{"x":{"$dynamicAnchor":"a"}}}`)); err == nil {
		t.Error("a dynamic reference is taken")
	}
}
