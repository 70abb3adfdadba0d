package samvad

import (
	"encoding/json"
	"errors"
	"testing"
)

// A payload that does not fit is refused with the constraint, as the published
// example has it.
func TestSchemaErrorsNameTheConstraint(t *testing.T) {
	const schema = `{"type":"object","required":["code"],"minProperties":1,"properties":{
 "code":{"type":"string","maxLength":5,"minLength":2,"pattern":"^[a-z]+$"},
 "n":{"type":["integer","null"],"minimum":0,"maximum":10},
 "x":{"type":"number","exclusiveMinimum":0.5,"exclusiveMaximum":2,"multipleOf":0.25},
 "lang":{"enum":["go","ts",1]},"v":{"const":"1"},"at":{"type":"string","format":"date-time"},
 "list":{"type":"array","minItems":1,"maxItems":2,"uniqueItems":true,"items":{"type":"object","properties":{"id":{"type":"string"}},"required":["id"]}},
 "any":{"not":{"type":"string"}},"map":{"type":"object","maxProperties":1}}}`
	s, err := CompileInput(json.RawMessage(schema))
	if err != nil {
		t.Fatal(err)
	}
	for payload, want := range map[string]string{
		`{"code":"abcdef"}`:                    "Field 'code' exceeds maxLength of 5 characters",
		`{"code":"a"}`:                         "Field 'code' is below minLength of 2 characters",
		`{"code":"AB"}`:                        "Field 'code' does not match pattern ^[a-z]+$",
		`{"code":7}`:                           "Field 'code' is not of type string",
		`{"n":1}`:                              "Field 'code' is required",
		`{"code":"ab","n":11}`:                 "Field 'n' exceeds maximum of 10",
		`{"code":"ab","n":-1}`:                 "Field 'n' is below minimum of 0",
		`{"code":"ab","n":"x"}`:                "Field 'n' is not of type null or integer",
		`{"code":"ab","x":0.5}`:                "Field 'x' is not above exclusiveMinimum of 0.5",
		`{"code":"ab","x":2}`:                  "Field 'x' is not below exclusiveMaximum of 2",
		`{"code":"ab","x":0.6}`:                "Field 'x' is not a multipleOf 0.25",
		`{"code":"ab","lang":"secret"}`:        `Field 'lang' is not one of the enum "go", "ts", 1`,
		`{"code":"ab","v":"2"}`:                `Field 'v' is not the const "1"`,
		`{"code":"ab","at":"noon"}`:            "Field 'at' does not match format date-time",
		`{"code":"ab","list":[]}`:              "Field 'list' is below minItems of 1",
		`{"code":"ab","list":[{"id":"a"},{}]}`: "Field 'list.1.id' is required",
		`{"code":"ab","list":[{"id":1}]}`:      "Field 'list.0.id' is not of type string",
		`{"code":"ab","any":"x"}`:              "Field 'any' does not fit the skill's input schema",
		`{"code":"ab","map":{"a":1,"b":2}}`:    "Field 'map' exceeds maxProperties of 1",
	} {
		_, err := s.Apply(json.RawMessage(payload))
		var e *Error
		if !errors.As(err, &e) || e.Text != want || !errors.Is(err, ErrPayload) {
			t.Errorf("%s: %q, want %q", payload, e.Text, want)
		}
	}
}
