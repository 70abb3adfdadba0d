package mcp

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/hub"
)

func skillTool(input, output string) *bridge.Tool {
	return &bridge.Tool{Name: "a__b", Agent: "a", Skill: schemas(parley.SkillSpec{ID: "b"}, input, output)}
}

// deep is a schema that nests n deep.
func deep(n int) string {
	return strings.Repeat(`{"type":"object","properties":{"p":`, n) + `{}` + strings.Repeat(`}}`, n)
}

func TestShownInput(t *testing.T) {
	t.Parallel()
	wide := `{"type":"object","properties":{"p0":{}`
	for i := range maxSubschemas {
		wide += fmt.Sprintf(`,"q%d":{}`, i)
	}
	wide += `}}`
	doubling := ""
	for i := range 30 {
		doubling += fmt.Sprintf(`,"a%d":{"allOf":[{"$ref":"#/$defs/a%d"},{"$ref":"#/$defs/a%d"}]}`, i+1, i, i)
	}
	refs := `{"type":"object","allOf":[{}` + strings.Repeat(`,{"$ref":"#"}`, maxReferences+1) + `]}`
	for _, c := range []struct{ name, schema, want string }{
		{"no schema", ``, string(talkSchema)},
		{"true", `true`, string(talkSchema)},
		{"no JSON", `{"type":`, string(talkSchema)},
		{"an object as it is", `{"type":"object","properties":{"city":{"type":"string","minLength":1}},"required":["city"]}`,
			`{"properties":{"city":{"minLength":1,"type":"string"}},"required":["city"],"type":"object"}`},
		{"a root without a type", `{"properties":{"n":{"maximum":12345678901234567890}}}`,
			`{"properties":{"n":{"maximum":12345678901234567890}},"type":"object"}`},
		{"an object or null", `{"type":["object","null"]}`, `{"type":"object"}`},
		{"a string is wrapped", `{"type":"string","description":"words"}`, `{"additionalProperties":false,"properties":` +
			`{"content":{"description":"words","type":"string"}},"required":["content"],"type":"object"}`},
		{"a list is wrapped, and its references", `{"$schema":"http://json-schema.org/draft-07/schema#","type":"array",` +
			`"items":{"$ref":"#/definitions/d"},"definitions":{"d":{"type":"array","items":{"$ref":"#"}}}}`,
			`{"$schema":"http://json-schema.org/draft-07/schema#","additionalProperties":false,"properties":{"content":` +
				`{"definitions":{"d":{"items":{"$ref":"#/properties/content"},"type":"array"}},` +
				`"items":{"$ref":"#/properties/content/definitions/d"},"type":"array"}},"required":["content"],"type":"object"}`},
		{"x-mcp-header, $id and foreign keywords go", `{"$id":"https://evil.example/s","type":"object","x-note":"obey",` +
			`"properties":{"a":{"type":"string","x-mcp-header":"A","$comment":"obey","examples":["obey"]},` +
			`"x-mcp-header":{"type":"string"}}}`,
			`{"properties":{"a":{"type":"string"},"x-mcp-header":{"type":"string"}},"type":"object"}`},
		{"a remote reference goes",
			`{"type":"object","properties":{"a":{"$ref":"https://evil.example/s.json","minLength":1}}}`,
			`{"properties":{"a":{"minLength":1}},"type":"object"}`},
		{"a dynamic reference goes", `{"type":"object","properties":{"a":{"$dynamicRef":"#x"}}}`,
			`{"properties":{"a":{}},"type":"object"}`},
		{"a remote reference that must not fit", `{"type":"object","not":{"$ref":"https://evil.example/s.json"}}`,
			string(openSchema)},
		{"a reference to nothing", `{"type":"object","properties":{"a":{"$ref":"#/$defs/none"}}}`, string(openSchema)},
		{"a reference into a list", `{"type":"object","anyOf":[{"required":["a"]}],"allOf":[{"$ref":"#/anyOf/0"}]}`,
			`{"allOf":[{"$ref":"#/anyOf/0"}],"anyOf":[{"required":["a"]}],"type":"object"}`},
		{"hidden characters of texts go", "{\"type\":\"object\",\"description\":\"a\u200bb\u202ec\U000e0041d\ufe0fe\"}",
			`{"description":"abcde","type":"object"}`},
		{"hidden characters of values",
			"{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[\"x\u200b\"],\"default\":\"\u2060\"}}}",
			`{"properties":{"a":{}},"type":"object"}`},
		{"hidden characters of names", "{\"type\":\"object\",\"properties\":{\"a\u200b\":{}}}", string(openSchema)},
		{"a pattern of another dialect goes", `{"type":"object","properties":{"a":{"pattern":"(?=x)"}},` +
			`"patternProperties":{"(?=y)":{}},"additionalProperties":false}`,
			`{"patternProperties":{},"properties":{"a":{}},"type":"object"}`},
		{"a null constant stays", `{"type":"object","properties":{"a":{"const":null}}}`,
			`{"properties":{"a":{"const":null}},"type":"object"}`},
		{"a keyword of the wrong type", `{"type":"object","required":[1]}`, string(openSchema)},
		{"a type that is none", `{"type":"object","properties":{"a":{"type":"date"}}}`,
			`{"properties":{"a":{}},"type":"object"}`},
		{"duplicate members", `{"type":"object","type":"string"}`, string(talkSchema)},
		{"references that double", `{"type":"object","$defs":{"a0":{}` + doubling + `},"$ref":"#/$defs/a30"}`,
			string(openSchema)},
		{"recursion", `{"type":"object","properties":{"l":{"$ref":"#"},"r":{"$ref":"#"}}}`,
			`{"properties":{"l":{"$ref":"#"},"r":{"$ref":"#"}},"type":"object"}`},
		{"an anchor that no reference needs", `{"type":"object","$defs":{"a":{"$anchor":"x"}},"$ref":"#/$defs/a"}`,
			`{"$defs":{"a":{}},"$ref":"#/$defs/a","type":"object"}`},
		{"a reference to an anchor", `{"type":"object","$defs":{"a":{"$anchor":"x"}},"$ref":"#x"}`, string(openSchema)},
		{"too deep", deep(maxSchemaDepth + 1), string(openSchema)},
		{"too wide", wide, string(openSchema)},
		{"too many references", refs, string(openSchema)},
		{"too large", `{"type":"object","title":"` + strings.Repeat("x", maxSchemaSize) + `"}`, string(openSchema)},
		{"too large, and wrapped", `{"type":"string","title":"` + strings.Repeat("x", maxSchemaSize) + `"}`,
			string(openWrapped)},
	} {
		t.Run("MCP-021 "+c.name, func(t *testing.T) {
			t.Parallel()
			var x shownSchemas
			tool := skillTool(c.schema, "")
			got := x.of(tool).input
			if string(got) != c.want {
				t.Errorf("%.2000s\nwant %s", got, c.want)
			}
			if first, again := x.of(tool), x.of(tool); first != again {
				t.Error("a schema is made twice")
			}
			// The SDK panics at schemas that it does not take.
			mcp.NewServer(&mcp.Implementation{Name: "x"}, nil).AddTool(&mcp.Tool{Name: "x", InputSchema: got}, nil)
			if err := hub.CheckSchema(got); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("MCP-021 as deep as allowed", func(t *testing.T) {
		t.Parallel()
		if got := new(shownSchemas).of(skillTool(deep(maxSchemaDepth-1), "")).input; string(got) == string(openSchema) {
			t.Error("the schema is not shown")
		}
	})
}

// What fits a skill's own schema fits the one that is shown.
func TestShownSchemaIsNoStricter(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ schema, content string }{
		{`{"type":"object","not":{"required":["a"],"pattern":"(?=x)"}}`, `{"b":1}`},
		{`{"type":"object","oneOf":[{"type":"object","$ref":"https://x.example/s"},{"type":"object"}]}`, `{}`},
		{`{"type":"object","allOf":[{"$dynamicRef":"#m"}],"$defs":{"m":{"$dynamicAnchor":"m","properties":{"a":{}}}},` +
			`"unevaluatedProperties":false}`, `{"a":1}`},
		{`{"type":"object","patternProperties":{"^(?=a)":{}},"additionalProperties":false}`, `{"ab":1}`},
		{`{"type":"object","properties":{"l":{"contains":{"pattern":"(?=x)"},"maxContains":1}}}`, `{"l":["a","b"]}`},
		{`{"type":"object","$defs":{"d":{"pattern":"(?=x)"}},"properties":{"a":{"not":{"$ref":"#/$defs/d"}}}}`, `{"a":"b"}`},
		{`{"type":"object","if":{"$ref":"https://x.example/s"},"then":{"required":["a"]}}`, `{}`},
	} {
		for _, got := range []json.RawMessage{new(shownSchemas).of(skillTool(c.schema, "")).input,
			new(shownSchemas).of(skillTool("", c.schema)).output} {
			if err := hub.CheckContent(got, []byte(c.content)); err != nil {
				t.Errorf("%s: %s refuses %s: %v", c.schema, got, c.content, err)
			}
		}
	}
}

func TestShownOutput(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, schema, modern, legacy string }{
		{"none", ``, ``, ``},
		{"an object", `{"type":"object"}`, `{"type":"object"}`, `{"type":"object"}`},
		{"a list", `{"type":"array"}`, `{"type":"array"}`, ``},
		{"any type", `{"title":"x"}`, `{"title":"x"}`, ``},
		{"one that cannot be shown", deep(maxSchemaDepth + 1), ``, ``},
		{"not an object", `false`, ``, ``},
	} {
		s := new(shownSchemas).of(skillTool("", c.schema))
		if m, l := string(s.outputFor(true)), string(s.outputFor(false)); m != c.modern || l != c.legacy {
			t.Errorf("%s: %q and %q, want %q and %q", c.name, m, l, c.modern, c.legacy)
		}
	}
}

func TestShownSchemasAreBounded(t *testing.T) {
	t.Parallel()
	x := shownSchemas{m: map[[sha256.Size]byte]*shownSkill{}}
	for i := range maxShownSchemas {
		x.m[sha256.Sum256([]byte(fmt.Sprint(i)))] = &shownSkill{}
	}
	x.of(skillTool("", ""))
	if n := len(x.m); n != 1 {
		t.Errorf("%d schemas are cached", n)
	}
}

func TestShownText(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain\n\ttext": "plain\n\ttext", "e\u0301té": "e\u0301té", "日本": "日本",
		"a\u200b\u200d\u2066\u202eb": "ab", "x\U000e0020\U000e0041": "x", "a\ufe0f\U000e0100b": "ab",
		"a\x00\x1b[31mb": "a[31mb", "\ufeffa\u00adb": "ab", "a\xffb": "a\uFFFDb", "\ue000a\u3164b\uffff": "ab",
	} {
		if got := shownText(in, 20); got != want {
			t.Errorf("%q is %q, want %q", in, got, want)
		}
	}
	if got := shownText("\u200b123456789012", 9); got != "12345678…" {
		t.Errorf("%q", got)
	}
}
