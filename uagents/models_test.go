package uagents

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/parley-hub/parley/internal/jsonx"
)

type color string

func (color) EnumValues() []string       { return []string{"red", "blue"} }
func (color) ModelDoc() (string, string) { return "Color", "" }

type inner struct {
	N int `json:"n"`
}

func (inner) ModelDoc() (string, string) { return "Inner", "" }

type numberOrText struct{}

func (numberOrText) UnionOf() []any { return []any{0, "", []string{}} }

type treeNode struct {
	V    int         `json:"v"`
	Kids []*treeNode `json:"kids" default:"[]"`
}

func (treeNode) ModelDoc() (string, string) { return "Node", "" }

// UAG-059: Go types give the digests of the Python classes of the same shape.
// The digests were made with pydantic 1.10; most are in the shared vectors.
func TestModelOf(t *testing.T) {
	type Pt struct {
		X  int     `json:"x"`
		Y  float64 `json:"y"`
		OK bool    `json:"ok"`
	}
	type Opt struct {
		A *string `json:"a"`
		B int     `json:"b" default:"5"`
		C *int    `json:"c"`
	}
	type Nested struct {
		Inner inner            `json:"inner"`
		Many  []inner          `json:"many"`
		By    map[string]inner `json:"by"`
	}
	type Described struct {
		T string  `json:"t" doc:"the text é☃" schema:"minLength=1,maxLength=10"`
		N int     `json:"n" default:"7" schema:"minimum=0,maximum=100"`
		F float64 `json:"f" default:"0.1" schema:"exclusiveMinimum=0,multipleOf=0.5"`
	}
	type Lit struct {
		K   string `json:"k" schema:"enum=a|b"`
		One string `json:"one" schema:"enum=z"`
	}
	type En struct {
		C color `json:"c" default:"red"`
	}
	type Un struct {
		U numberOrText `json:"u"`
	}
	type Tm struct {
		T time.Time `json:"t"`
		D string    `json:"d" schema:"format=date"`
		I uuid.UUID `json:"i"`
	}
	type AnyM struct {
		A any            `json:"a"`
		L []any          `json:"l"`
		D map[string]any `json:"d"`
		O jsonx.Value    `json:"o,omitempty"`
	}
	type Empty struct{}
	f := loadVectors(t, vectorDir()+"/schema_digest.json")
	vectors := map[string]*Model{}
	for _, c := range f.Cases {
		m, err := ParseModel(c.Input["schema"])
		if err != nil {
			t.Fatal(err)
		}
		vectors[c.Name] = m
	}
	for _, m := range []*Model{
		ModelOf[Pt](), ModelOf[Opt](), ModelOf[Nested](), ModelOf[Described](), ModelOf[Lit](), ModelOf[En](),
		ModelOf[Un](),
		ModelOf[Tm](), ModelOf[AnyM](), ModelOf[Empty](), ModelOf[RequestPayment](), ModelOf[CommitPayment](),
		ModelOf[RejectPayment](), ModelOf[CancelPayment](), ModelOf[CompletePayment](),
	} {
		if m.Err() != nil {
			t.Error(m.Err())
			continue
		}
		v := vectors[m.Name()]
		if v == nil {
			t.Logf("no vector for %s", m.Name())
			continue
		}
		if m.Digest() != v.Digest() {
			a, _ := pySorted.write(nil, m.schema)
			b, _ := pySorted.write(nil, v.schema)
			t.Errorf("%s:\n got %s\nwant %s", m.Name(), a, b)
		}
	}
	b, err := ModelOf[treeNode]().Schema()
	if err != nil {
		t.Fatal(err)
	}
	same(t, "recursive", sortedJSON(t, b), sortedJSON(t,
		[]byte(`{"$ref": "#/definitions/Node", "definitions": {"Node": {"title": "Node", "type": "object", "properties": {"v": {"title": "V", "type": "integer"}, "kids": {"title": "Kids", "default": [], "type": "array", "items": {"$ref": "#/definitions/Node"}}}, "required": ["v"]}}}`)))
	if err := ModelOf[treeNode]().Validate([]byte(`{"v":1,"kids":[{"v":2,"kids":[{"v":"x"}]}]}`)); !errors.Is(err,
		ErrContent) || !strings.Contains(err.Error(), "kids.0.kids.0.v") {
		t.Errorf("err = %v", err)
	}
	for _, m := range []*Model{ModelOf[int](), ModelOf[struct{ C chan int }](), ModelOf[struct{}](), ModelOf[struct {
		M map[int]string
	}]()} {
		if !errors.Is(m.Err(), ErrSchema) || m.Message(1).Err() == nil || m.Validate([]byte("{}")) == nil {
			t.Errorf("err = %v", m.Err())
		}
	}
}

func TestFieldTitle(t *testing.T) {
	for in, want := range map[string]string{
		"userID": "Userid", "snake_case_name": "Snake Case Name", "a1b": "A1B", "x": "X", "msg-id": "Msg-Id",
		"_p": " P",
	} {
		same(t, in, FieldTitle(in), want)
	}
}

// The expectations were observed with pydantic 1.10.
func TestValidate(t *testing.T) {
	const object = `{"type":"object","properties":{"v":`
	for _, c := range []struct{ schema, good, bad string }{
		{`{"type":"string"}`, `"" 5 1.5 true 1e3`, `null [] {}`},
		{`{"type":"integer"}`, `1 1.9 "5" " 5 " "1_0" true 100000000000000000000000000000`,
			`null "5.0" "x" "" [] {} "0x1"`},
		{`{"type":"number"}`, `1 1.5 "1e3" "inf" true`, `null "x" "" [] "0x10"`},
		{`{"type":"boolean"}`, `true 0 1 1.0 "yes" "ON" "f"`, `null 2 "2" "" [] 1.5`},
		{`{"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":2}`, `[1] [1,"2"]`,
			`[] [1,2,3] [null] ["x"] {} "a" null`},
		{`{"type":"array","items":[{"type":"integer"},{"type":"string"}],"minItems":2,"maxItems":2}`, `[1,"a"] ["1",2]`,
			`[1] ["a","a"]`},
		{`{"type":"object","additionalProperties":{"type":"integer"}}`, `{} {"a":1}`, `{"a":"x"} {"a":null} [1] null`},
		{`{"anyOf":[{"type":"integer"},{"type":"array","items":{"type":"string"}}]}`, `1 ["a"] []`,
			`"x" {} [null] null`},
		{`{"enum":["a","b"],"type":"string"}`, `"a"`, `"c" 1 null []`},
		{`{"enum":[1,2]}`, `1 2.0 true`, `3 "1"`},
		{`{"allOf":[{"$ref":"#/properties/w"}],"default":"x"}`, `1`, `"x" null`},
		{`{"type":"string","format":"date-time"}`,
			`"2026-01-02T03:04:05Z" "2026-01-02 03:04" "2026-1-2T3:4" 1767323045 "1767323045000"`,
			`"2026-01-02" "2026-02-30T00:00:00" "2026-01-02T24:00:00" "2026-01-02T03:04:05+23:99" "nan" {} null`},
		{`{"type":"string","format":"date"}`, `"2026-01-02" 1767323045`, `"2026-02-30" "2026-01-02T00:00:00" []`},
		{`{"type":"string","format":"uuid"}`,
			`"{11111111-2222-4333-8444-555555555555}" "6ba7b810-9dad-11d1-80b4-00c04fd430c8"`, `"x" 1 null`},
		{`{"type":"string","format":"uuid4"}`, `"11111111222243338444555555555555"`,
			`"6ba7b810-9dad-11d1-80b4-00c04fd430c8" "11111111-2222-4333-c444-555555555555"`},
		{`{"type":"string","minLength":2,"maxLength":3,"pattern":"a+"}`, `"aa" "aab"`, `"a" "aaaa" "ba"`},
		{`{"type":"integer","minimum":0,"exclusiveMaximum":10,"multipleOf":2}`, `0 8`, `-2 10 3`},
		{`{"type":"number","exclusiveMinimum":0,"maximum":1}`, `0.5 1`, `0 1.5`},
		{`{}`, `null 1 "x" [] {}`, ``},
		{`{"$ref":"#/nowhere"}`, `1 {}`, ``},
		{`{"type":"string","format":"ipv4"}`, `"x" 1`, `null`},
	} {
		m, err := ParseModel([]byte(object + c.schema + `,"w":{"type":"integer"}},"required":["v"]}`))
		if err != nil {
			t.Fatalf("%s: %v", c.schema, err)
		}
		for i, list := range []string{c.good, c.bad} {
			for _, v := range splitValues(list) {
				if err := m.Validate([]byte(`{"v":` + v + `,"extra":1}`)); (err == nil) != (i == 0) {
					t.Errorf("%s with %s: %v", c.schema, v, err)
				}
			}
		}
	}
	opt := ModelOf[struct1]()
	for text, ok := range map[string]bool{`{}`: true, `{"a":null}`: true, `{"b":null}`: false, `{"b":"6"}`: true,
		`[]`: false, `x`: false} {
		if err := opt.Validate([]byte(text)); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, bad := range []string{`[]`, `{`, `{"$ref":"http://evil/x"}`,
		`{"properties":{"a":{"$ref":"file:///etc/passwd"}}}`, `{"default":1e999}`, strings.Repeat("[", 100)} {
		if _, err := ParseModel([]byte(bad)); !errors.Is(err, ErrSchema) {
			t.Errorf("%.40s: %v", bad, err)
		}
	}
}

type struct1 struct {
	A *string `json:"a"`
	B int     `json:"b" default:"5"`
}

// splitValues splits JSON values at spaces outside of strings.
func splitValues(s string) []string {
	var out []string
	start, quoted := 0, false
	for i := 0; i <= len(s); i++ {
		switch {
		case i < len(s) && s[i] == '"':
			quoted = !quoted
		case i == len(s) || s[i] == ' ' && !quoted:
			if i > start {
				out = append(out, s[start:i])
			}
			start = i + 1
		}
	}
	return out
}

// The work for a hostile schema stays within the budget.
func TestValidateBudget(t *testing.T) {
	for _, schema := range []string{
		`{"type":"object","properties":{"v":{"$ref":"#/definitions/a"}},"definitions":{"a":{"$ref":"#/definitions/a"}}}`,
		`{"type":"object","properties":{"v":{"$ref":"#/definitions/a"}},"definitions":{"a":{"anyOf":[{"$ref":"#/definitions/b"},{"$ref":"#/definitions/b"}]},
		 "b":{"anyOf":[{"items":{"$ref":"#/definitions/a"},"type":"array"},{"items":{"$ref":"#/definitions/a"},"type":"array"},{"type":"integer"}]}}}`,
	} {
		m, err := ParseModel([]byte(schema))
		if err != nil {
			t.Fatal(err)
		}
		deep := strings.Repeat("[", 50) + `"x"` + strings.Repeat("]", 50)
		if err := m.Validate([]byte(`{"v":` + deep + `}`)); !errors.Is(err, ErrContent) {
			t.Errorf("err = %v", err)
		}
	}
}

func TestPythonNumbers(t *testing.T) {
	for in, want := range map[string]string{
		"1": "1", "-0": "0", "1.0": "1.0", "1e2": "100.0", "-0.0": "-0.0", "1e-7": "1e-07", "0.0001": "0.0001",
		"0.00001": "1e-05",
		"1e16":    "1e+16", "9007199254740993.0": "9007199254740992.0",
		"123456789012345678901234567890": "123456789012345678901234567890",
		"1e15":                           "1000000000000000.0", "5e-324": "5e-324",
	} {
		got, err := pyNumber(in)
		if err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", in, got, err, want)
		}
	}
	if _, err := pyNumber("1e999"); err == nil {
		t.Error("infinity")
	}
}

// UAG-017: the texts of numbers, as pydantic 2 reads them.
func TestIntTexts(t *testing.T) {
	for in, want := range map[string]string{
		`"1."`: "!", `"1.00"`: "1", `".0"`: "!", `"+ 1"`: "!", `"-5"`: "-5", `"--5"`: "!", `"-0"`: "0", `"007"`: "7",
		`"1__0"`: "!", `"_1"`: "!", `"1_"`: "!", `"1_0.0"`: "10", `"1.0_0"`: "!", `"+1.0"`: "1", `"1e3"`: "!",
		`"\t1\n"`: "1",
		`1e30`:    "!", `1e18`: "1000000000000000000", `9.3e18`: "!", `-0.0`: "0", `-0`: "0", `"-1.0"`: "-1", `"1 0"`: "!",
		`" "`:                   "!",
		`9223372036854774784.0`: "9223372036854774784", `true`: "1", `null`: "", `[]`: "!", `1.5`: "!",
	} {
		got, err := parseInt(jsonx.Value(in))
		if err != nil {
			got = "!"
		}
		same(t, in, string(got), want)
	}
}

// TestChatDuplicates: of members with the same name in a chat message the last counts,
// as in Python. Other faults in the JSON are refused, and so are duplicates in other
// messages.
func TestChatDuplicates(t *testing.T) {
	const id, stamp = "11111111-2222-4333-8444-555555555555", "2026-01-02T03:04:05+00:00"
	message := func(content string) string {
		return `{"timestamp":"` + stamp + `","msg_id":"x","content":"none","msg_id":"` + id + `","content":[` +
			content + `]}`
	}
	text := message(`{"type":"metadata","text":1,"type":"text","text":"first","text":"last"},` +
		`{"type":"metadata","metadata":{"a":"1","b":"2","\u0061":"3"}},` +
		`{"type":"resource","resource_id":"` + id +
		`","resource":{"uri":"x","uri":"https://example.com","metadata":{}}}`)
	m, err := DecodeChatMessage([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if m.MsgID != id || m.Text() != "last" || m.Content[1].Metadata["a"] != "3" || len(m.Content[1].Metadata) != 2 ||
		m.Content[2].Resources[0].URI != "https://example.com" || !m.Duplicate() {
		t.Errorf("%+v", m)
	}
	if err := ModelOf[ChatMessage]().Validate([]byte(text)); err != nil {
		t.Error(err)
	}
	ack := `{"timestamp":"` + stamp + `","acknowledged_msg_id":"x","acknowledged_msg_id":"` + id + `"}`
	if a, err := DecodeChatAcknowledgement([]byte(ack)); err != nil || a.AcknowledgedMsgID != id {
		t.Errorf("%+v, %v", a, err)
	}
	plain, err := DecodeChatMessage([]byte(`{"timestamp":"` + stamp + `","msg_id":"` + id + `","content":[]}`))
	if err != nil || plain.Duplicate() {
		t.Errorf("%+v, %v", plain, err)
	}
	twice := `{"type":"text","text":"a","text":"b"}`
	deep := strings.Repeat(`{"a":`, 70) + "1" + strings.Repeat("}", 70)
	for name, text := range map[string]string{
		"the last does not fit": message(`{"type":"text","text":"a","text":null}`),
		"the last is unknown":   message(`{"type":"text","text":"a","type":"other"}`),
		"an unknown member":     message(`{"type":"text","text":"a","x":1,"x":2}`),
		"cut off":               strings.TrimSuffix(message(twice), "]}"),
		"more behind":           message(twice) + "{}",
		"no UTF-8":              message(`{"type":"text","text":"a","text":"` + "\xff" + `"}`),
		"half a pair":           message(`{"type":"text","text":"a","text":"\ud83d"}`),
		"too deep":              message(twice + `,{"type":"metadata","metadata":` + deep + `}`),
	} {
		if _, err := DecodeChatMessage([]byte(text)); !errors.Is(err, ErrContent) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := ModelOf[ErrorMessage]().Validate([]byte(`{"error":"a","error":"b"}`)); !errors.Is(err, ErrContent) {
		t.Errorf("another model: %v", err)
	}
}
