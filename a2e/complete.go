package a2e

import (
	"cmp"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// Complete writes the message anew as this package would send it: base members
// first (in the version of the message), then every member of its type in the order
// of the table, defaults filled in (also in nested objects), then the members that the
// type does not know. Numbers keep their literals. The message must have passed
// [Envelope.Check].
func (m *Envelope) Complete(now time.Time) []byte {
	f := encoder("{").text("a2e", m.Version).text("type", m.Type)
	if m.typ == nil || !m.typ.Bare {
		f = f.text("id", m.ID).text("version", m.Version)
		if v := m.member("ts"); v != nil {
			f = f.json("ts", v)
		} else {
			f = f.time("ts", now)
		}
	}
	var fields []Field
	if m.typ != nil {
		fields = m.typ.Fields
	}
	known := map[string]bool{"a2e": true, "version": true, "id": true, "type": true, "ts": true}
	return append(appendFields(f, m.raw, m.ms, fields, now, known), '}')
}

// appendFields adds the members of an object except the known ones.
func appendFields(f encoder, raw []byte, ms []member, fields []Field, now time.Time, known map[string]bool) encoder {
	at := make([]int32, len(fields))
	match(raw, ms, fields, at)
	for i := range fields {
		field := &fields[i]
		known[field.Name] = true
		f = f.name(field.Name)
		if at[i] != 0 {
			f = appendShape(f, ms[at[i]-1].value.of(raw), &field.Shape, now)
		} else {
			f = appendDefault(f, field.Default, now)
		}
	}
	for i := len(ms) - 1; i >= 0; i-- { // the last of equal names counts
		if name, _ := unquote(ms[i].name.of(raw)); !known[name] {
			known[name] = true
			f = f.json(name, ms[i].value.of(raw))
		}
	}
	return f
}

func appendShape(dst, v []byte, s *Shape, now time.Time) []byte {
	switch {
	case s.also != "" && string(v) == s.also:
		return append(dst, "null"...)
	case s.Kind == Object && len(s.Model) > 0 && v[0] == '{':
		return append(appendFields(append(dst, '{'), v, members(v), s.Model, now, map[string]bool{}), '}')
	case s.Kind == Array && v[0] == '[':
		dst = append(dst, '[')
		elements(v, func(i int, e []byte) bool {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendShape(dst, e, s.Elem, now)
			return true
		})
		return append(dst, ']')
	case s.Kind == Map && v[0] == '{':
		dst = append(dst, '{')
		for i, m := range members(v) {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendASCII(dst, m.name.of(v)), ':')
			dst = appendShape(dst, m.value.of(v), s.Elem, now)
		}
		return append(dst, '}')
	}
	return appendASCII(dst, v)
}

func appendDefault(dst []byte, def string, now time.Time) []byte {
	if add := generated[def]; add != nil {
		return add(dst, now)
	}
	return append(dst, cmp.Or(def, "null")...)
}

// generated are the defaults that each message generates anew, by their names in the
// tables.
var generated = map[string]func(dst []byte, now time.Time) []byte{
	"now":   appendTime,
	"hex32": func(dst []byte, _ time.Time) []byte { return appendString(dst, NewID()) },
	"hex8":  func(dst []byte, _ time.Time) []byte { return appendString(dst, NewID()[:8]) },
	"uuid":  func(dst []byte, _ time.Time) []byte { return appendString(dst, uuid.NewString()) },
	"feedback": func(dst []byte, now time.Time) []byte {
		return appendString(dst, "b_"+strconv.FormatInt(now.UnixNano(), 10))
	},
}
