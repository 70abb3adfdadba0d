package agh

import (
	"bytes"
	"encoding/json"
	"errors"

	"github.com/parley-hub/parley/internal/jsonx"
)

// Encode writes e as one compact JSON object in the order of the envelope
// page: to and proof always (null when unset), other unset members never,
// members of Unknown last. It writes the fields, not Raw: to pass on a
// received message, pass on its Raw bytes. The result is checked as [Decode]
// would check it, with handles and unknown members allowed.
func (e *Envelope) Encode() ([]byte, error) {
	b, err := e.marshal()
	if err != nil {
		return nil, err
	}
	if _, err := (&Decoder{Lenient: true, Handles: true}).Decode(b); err != nil {
		return nil, err
	}
	return b, nil
}

// marshal writes member by member: an encoder that works by reflection takes
// several times as long, and a hub writes three of these for each it reads.
func (e *Envelope) marshal() ([]byte, error) {
	w := newWriter(512 + len(e.Body) + len(e.Ext) + len(e.Proof) + len(e.Unknown))
	w.String("protocol", Protocol)
	w.String("id", e.ID)
	w.String("workspace_id", e.WorkspaceID)
	w.String("kind", string(e.Kind))
	w.String("channel", e.Channel)
	w.Optional("surface", string(e.Surface))
	w.Optional("thread_id", e.ThreadID)
	w.Optional("direct_id", e.DirectID)
	w.String("from", e.From)
	if e.To == "" {
		w.Raw("to", nil)
	} else {
		w.String("to", e.To)
	}
	w.Optional("work_id", e.WorkID)
	w.Optional("reply_to", e.ReplyTo)
	w.Optional("trace_id", e.TraceID)
	w.Optional("causation_id", e.CausationID)
	w.Int("ts", e.TS)
	if e.ExpiresAt != 0 {
		w.Int("expires_at", e.ExpiresAt)
	}
	w.value("body", e.Body, e.madeBody)
	w.Raw("proof", e.Proof)
	if !emptyObject(e.Ext) {
		w.value("ext", e.Ext, e.madeExt)
	}
	b, err := w.End()
	if err == nil && len(e.Unknown) > 0 {
		b, err = embed(b, e.Unknown)
	}
	if err != nil {
		return nil, malformed(StepParse, "", "cannot be written as JSON").because(err)
	}
	return b, nil
}

// same reports whether a value is the very one that this package wrote, and
// therefore valid JSON.
func same(v, made json.RawMessage) bool {
	return len(v) > 0 && len(v) == len(made) && &v[0] == &made[0]
}

// writer writes one JSON object.
type writer struct{ jsonx.Object }

func newWriter(size int) writer { return writer{jsonx.AppendObject(make([]byte, 0, size))} }

// value writes v, as it is if it was made here.
func (w *writer) value(name string, v, made json.RawMessage) {
	if same(v, made) {
		w.Append(name, func(b []byte) ([]byte, error) { return append(b, v...), nil })
		return
	}
	w.Raw(name, v)
}

// list writes an array of values; nothing for nil.
func (w *writer) list(name string, vs []json.RawMessage) {
	if vs == nil {
		return
	}
	w.Append(name, func(b []byte) (_ []byte, err error) {
		b = append(b, '[')
		for i, v := range vs {
			if i > 0 {
				b = append(b, ',')
			}
			if len(v) == 0 {
				v = json.RawMessage("null")
			}
			b, err = jsonx.AppendCompact(b, v)
			if err != nil {
				return nil, err
			}
		}
		return append(b, ']'), nil
	})
}

// embed adds members to an object that was written, which has none of them.
func embed(object []byte, members json.RawMessage) ([]byte, error) {
	more, err := jsonx.AppendCompact(nil, members)
	switch {
	case err != nil:
		return nil, err
	case more[0] != '{':
		return nil, errors.New("unknown members must be an object")
	case len(more) == len("{}"):
		return object, nil
	}
	object = append(append(object[:len(object)-1], ','), more[1:]...)
	return object, jsonx.Valid(object, 0)
}

func emptyObject(b json.RawMessage) bool {
	return len(bytes.Trim(b, "{} \t\r\n")) == 0
}

// canonicalize gives the RFC 8785 form of b. A number beyond the IEEE 754
// doubles, which has no such form, is refused.
func canonicalize(b []byte) ([]byte, error) {
	out, err := jsonx.Canonicalize(b)
	if err != nil {
		return nil, malformed(StepParse, "", "has no canonical form").because(err)
	}
	return out, nil
}
