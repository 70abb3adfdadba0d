package inspect

import (
	"maps"
	"slices"
	"strings"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/readable"
)

// A Report is an explanation while it is being made.
type Report struct{ admin.Inspected }

// fail adds a check that failed; the first one gives the sentence and the fix.
func (v *Report) fail(name, detail, sentence, fix string) {
	v.Checks = append(v.Checks, admin.InspectedCheck{Name: name, State: admin.CheckFailed, Detail: detail})
	if v.Sentence == "" {
		v.Sentence, v.Fix = sentence, fix
	}
}

// ok adds a check that holds.
func (v *Report) ok(name, detail string) {
	v.Checks = append(v.Checks, admin.InspectedCheck{Name: name, State: admin.CheckOK, Detail: detail})
}

// pass adds checks that hold, without details.
func (v *Report) pass(names ...string) {
	for _, name := range names {
		v.ok(name, "")
	}
}

// skip adds checks that were not made.
func (v *Report) skip(why string, names ...string) {
	for _, name := range names {
		v.Checks = append(v.Checks, admin.InspectedCheck{Name: name, State: admin.CheckSkipped, Detail: why})
	}
}

// field adds a field.
func (v *Report) field(name, value, meaning string) {
	v.Fields = append(v.Fields, admin.InspectedField{Name: name, Value: value, Meaning: meaning})
}

// members adds the members of an envelope, those with a meaning in its order, then the
// others with the meaning other, unless that is "".
func (v *Report) members(members map[string]jsonx.Value, meanings []meaning, text func(jsonx.Value) string,
	other string) {
	for _, m := range meanings {
		if value, ok := members[m.name]; ok {
			v.field(m.name, text(value), m.meaning)
			delete(members, m.name)
		}
	}
	if other == "" {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		v.field(name, string(members[name]), other)
	}
}

// A meaning is what a member of an envelope means.
type meaning struct{ name, meaning string }

// Decoded is the text of a JSON string, and any other JSON as it stands.
func Decoded(v jsonx.Value) string {
	var s string
	if v.Kind() == '"' && jsonx.Decode(v, &s) == nil {
		return s
	}
	return string(v)
}

// unquoted is JSON as it stands, without quotes around it.
func unquoted(v jsonx.Value) string { return strings.Trim(string(v), `"`) }

// signedStep is one step on the way to the signed bytes.
func signedStep(step, text string) admin.InspectedStep {
	return admin.InspectedStep{Step: step, Text: text}
}

// differs notes a part of the signed bytes that is not what was sent.
func (v *Report) differs(part, signed, sent string) {
	v.Differs = append(v.Differs, admin.Difference{Part: part, Signed: signed, Sent: sent})
}

// newReport makes an empty report, whose lists are [] in JSON.
func newReport() *Report {
	return &Report{admin.Inspected{Fields: []admin.InspectedField{}, Signed: []admin.InspectedStep{},
		Checks: []admin.InspectedCheck{}}}
}

// Texts for people.
var (
	clean  = readable.Clean
	short  = readable.Short
	plural = readable.Plural
	stamp  = readable.Stamp
)
