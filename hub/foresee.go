package hub

import (
	"errors"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/policy"
)

// A Foresight is what the hub would do with a message if it came now.
type Foresight struct {
	Message   *parley.Message  // with the recipient's name, and the content as its skill takes it
	Recipient *directory.Entry // nil: there is none of that name
	Refused   *parley.Error    // why it would be refused; nil: it would be recorded
	Misfits   []Misfit         // where the content does not fit the schema of the skill
	Losses    []parley.Loss    // of a notice that its recipient would not get, as its skill cannot take it
}

// A Misfit is one place of a content that does not fit a schema.
type Misfit struct {
	At  string // JSON Pointer; "" is the whole content
	Why string
}

const (
	maxMisfits    = 20
	maxMisfitText = 300 // bytes of a sentence, which may quote the content
)

// Foresee asks policy about a request or a notice to one recipient, and fits its content to the recipient's skill, as
// admitting it would. Nothing is recorded, and no rate is used up.
func (h *Hub) Foresee(m *parley.Message) Foresight {
	copied := *m
	m = &copied
	f := Foresight{Message: m}
	if f.Refused = h.resolveRecipients(m); f.Refused != nil {
		return f
	}
	e, ok := h.c.Directory.Agent(m.To)
	if !ok {
		f.Refused = parley.Refuse(parley.UnknownAgent, "no agent %q here", m.To).
			With(parley.ByPolicy, parley.NoSuchAgent, "")
		return f
	}
	f.Recipient = e
	f.Refused = h.policy.Load().Foresee(m, policy.Recipient{Agent: &e.Agent, Native: e.Native()})
	content := h.admitContent(m, e)
	if f.Refused == nil {
		f.Refused = content
	}
	if m.Kind == parley.Notice {
		l, _ := h.here(e.Name)
		var fitted *parley.Message
		if fitted, content = h.fitNotice(m, e.Name, l != nil); content == nil {
			f.Message = fitted
		} else {
			f.Losses = misfitResult(content).Losses
		}
	}
	if content != nil && content.Code == parley.InvalidContent {
		f.Misfits = misfitsOf(m, e)
	}
	return f
}

// misfitsOf lists where a content does not fit the skill that it names.
func misfitsOf(m *parley.Message, e *directory.Entry) (out []Misfit) {
	skill, _ := skillOf(e, m.Skill)
	if len(skill.Input) == 0 {
		return nil
	}
	_, why := fitSchema(m, skill.Input)
	v, ok := errors.AsType[*jsonschema.ValidationError](why)
	if !ok {
		if why != nil {
			out = []Misfit{{Why: why.Error()}}
		}
		return out
	}
	return misfits(v, out)
}

// misfits adds the innermost errors. Of alternatives of which none fits the alternative itself is the place: what is
// wrong with each of them would contradict the others.
func misfits(v *jsonschema.ValidationError, out []Misfit) []Misfit {
	_, any := v.ErrorKind.(*kind.AnyOf)
	_, one := v.ErrorKind.(*kind.OneOf)
	if len(v.Causes) == 0 || any || one {
		at := ""
		for _, name := range v.InstanceLocation {
			at += "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
		}
		why := "it fits none of the alternatives"
		if (!any && !one) || len(v.Causes) == 0 {
			if o := v.BasicOutput(); o.Error != nil {
				why = o.Error.String()
			}
		}
		m := Misfit{At: at, Why: cutText(why, maxMisfitText)}
		if len(out) < maxMisfits && !slices.Contains(out, m) {
			out = append(out, m)
		}
		return out
	}
	for _, c := range v.Causes {
		out = misfits(c, out)
	}
	return out
}

// cutText cuts a text at a character.
func cutText(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}
