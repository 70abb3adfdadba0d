package a2e

import (
	"strconv"
	"time"
)

// Complete writes the message anew as this package would send it: base members
// first (in the version of the message), then every member of its type in the order
// of the table, defaults
// filled in (also in nested objects), then the members that the type does not
// know. Numbers keep their literals. The message must have passed
// [Envelope.Check].
func (m *Envelope) Complete(now time.Time) []byte {
	dst := appendString([]byte(`{"a2e":`), m.Version)
	dst = appendString(append(dst, `,"type":`...), m.Type)
	if m.typ == nil || !m.typ.Bare {
		dst = append(dst, `,"id":`...)
		dst = appendString(dst, m.ID)
		dst = append(dst, `,"version":`...)
		dst = appendString(dst, m.Version)
		dst = append(dst, `,"ts":`...)
		if v := m.member("ts"); v != nil {
			dst = append(dst, v...)
		} else {
			dst = appendTime(dst, now)
		}
	}
	var fields []Field
	if m.typ != nil {
		fields = m.typ.Fields
	}
	dst = appendFields(dst, m.raw, m.ms, fields, now, func(name string) bool {
		switch name {
		case "a2e", "version", "id", "type", "ts":
			return false
		}
		return true
	})
	return append(dst, '}')
}

func appendFields(dst, raw []byte, ms []member, fields []Field, now time.Time, keep func(string) bool) []byte {
	at := make([]int32, len(fields))
	match(raw, ms, fields, at)
	for i := range fields {
		f := &fields[i]
		dst = append(dst, ',')
		dst = appendString(dst, f.Name)
		dst = append(dst, ':')
		if at[i] != 0 {
			dst = appendShape(dst, ms[at[i]-1].value.of(raw), &f.Shape, now)
		} else {
			dst = appendDefault(dst, f.Default, now)
		}
	}
	known := make(map[string]bool, len(ms))
	for i := range fields {
		known[fields[i].Name] = true
	}
	for i := len(ms) - 1; i >= 0; i-- { // the last of equal names
		name, _ := unquote(ms[i].name.of(raw))
		if known[name] || !keep(name) {
			continue
		}
		known[name] = true
		dst = append(dst, ',')
		dst = appendString(dst, name)
		dst = append(dst, ':')
		dst = appendASCII(dst, ms[i].value.of(raw))
	}
	return dst
}

func appendShape(dst, v []byte, s *Shape, now time.Time) []byte {
	switch {
	case s.also != "" && string(v) == s.also:
		return append(dst, "null"...)
	case s.Kind == Object && len(s.Model) > 0 && v[0] == '{':
		n := len(dst)
		dst = appendFields(dst, v, members(v), s.Model, now, func(string) bool { return true })
		if len(dst) == n {
			return append(dst, '{', '}')
		}
		dst[n] = '{' // in place of the first comma
		return append(dst, '}')
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
	switch def {
	case "":
		return append(dst, "null"...)
	case "now":
		return appendTime(dst, now)
	case "hex32":
		return appendString(dst, NewID())
	case "hex8":
		return appendString(dst, NewID()[:8])
	case "uuid":
		id := NewID()
		return appendString(dst, id[:8]+"-"+id[8:12]+"-"+id[12:16]+"-"+id[16:20]+"-"+id[20:])
	case "feedback":
		return appendString(dst, "b_"+strconv.FormatInt(now.UnixNano(), 10))
	}
	return append(dst, def...)
}
