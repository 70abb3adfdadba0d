package agh

import (
	"bytes"

	"github.com/parley-hub/parley/internal/jsonx"
)

// Encode writes e as one compact JSON object in the order of the envelope
// page: to and proof always (null when unset), other unset members never,
// members of Unknown last. It encodes the fields, not Raw: forward a received
// message by its Raw bytes. The result is checked as [Decode] would check it,
// with handles and unknown members allowed.
func (e *Envelope) Encode() ([]byte, error) {
	_, b, err := e.marshal()
	if err != nil {
		return nil, err
	}
	if _, err := (&Decoder{Lenient: true, Handles: true}).Decode(b); err != nil {
		return nil, err
	}
	return b, nil
}

func (e *Envelope) marshal() (*lenientWire, []byte, error) {
	w := &lenientWire{Unknown: jsonx.Value(e.Unknown), wire: wire{Protocol: Protocol, ID: e.ID,
		WorkspaceID: e.WorkspaceID, Kind: string(e.Kind), Channel: e.Channel, Surface: ref(string(e.Surface)), ThreadID: ref(e.ThreadID),
		DirectID: ref(e.DirectID), From: e.From, To: ref(e.To), WorkID: ref(e.WorkID), ReplyTo: ref(e.ReplyTo),
		TraceID: ref(e.TraceID), CausationID: ref(e.CausationID), TS: e.TS, ExpiresAt: ref(e.ExpiresAt),
		Body: jsonx.Value(e.Body), Proof: jsonx.Value(e.Proof), Ext: jsonx.Value(e.Ext)}}
	if len(bytes.Trim(e.Ext, "{} \t\r\n")) == 0 { // an empty object, too, is left out
		w.Ext = nil
	}
	b, err := jsonx.Encode(w)
	if err != nil {
		return nil, nil, malformed(StepParse, "", "cannot be written as JSON").because(err)
	}
	return w, b, nil
}

// canonicalize gives the RFC 8785 form of b. It refuses a number beyond the
// IEEE 754 doubles, which has no such form.
func canonicalize(b []byte) ([]byte, error) {
	out, err := jsonx.Canonicalize(b)
	if err != nil {
		return nil, malformed(StepParse, "", "has no canonical form").because(err)
	}
	return out, nil
}
