package agh

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/parley-hub/parley/internal/jsonx"
)

// Protocol is the protocol literal of every envelope.
const Protocol = "agh-network/v0"

// Kind is the kind of a message. There are six; "direct" is not one of them.
type Kind string

// The kinds (envelope page, "Fields").
const (
	KindGreet      Kind = "greet"
	KindWhois      Kind = "whois"
	KindSay        Kind = "say"
	KindCapability Kind = "capability"
	KindReceipt    Kind = "receipt"
	KindTrace      Kind = "trace"
)

func (k Kind) known() bool { return k.discovery() || k.conversation() }

// discovery kinds carry no conversation members.
func (k Kind) discovery() bool { return k == KindGreet || k == KindWhois }

func (k Kind) conversation() bool {
	return k == KindSay || k == KindCapability || k == KindReceipt || k == KindTrace
}

// Surface is the sort of conversation that an envelope belongs to.
type Surface string

// The surfaces (envelope page, "Conversation surface fields").
const (
	SurfaceThread Surface = "thread" // public, N to N, visible to the channel
	SurfaceDirect Surface = "direct" // a room of exactly two peers
)

// Envelope is one AGH message. Absent and null members are zero values.
// An Envelope that came from [Decode] is read-only by convention: its Raw
// bytes do not follow changes of the fields.
type Envelope struct {
	ID          string
	WorkspaceID string
	Kind        Kind
	Channel     string
	Surface     Surface
	ThreadID    string
	DirectID    string
	From        string
	To          string // "" is a broadcast
	WorkID      string
	ReplyTo     string
	TraceID     string
	CausationID string
	TS          int64 // Unix seconds
	ExpiresAt   int64 // Unix seconds; 0 is none
	Body        json.RawMessage
	Proof       json.RawMessage // a JSON object or nil
	Ext         json.RawMessage // a JSON object or nil
	Unknown     json.RawMessage // members outside the page, as one object; lenient mode only

	// Note belongs to the embedder. A [Router] passes it to its Works; it is not
	// encoded.
	Note any

	content any
	raw     []byte
	expired bool // expires_at was 0, which ExpiresAt cannot express
}

// Raw gives the bytes that were decoded, nil for an envelope made here. They
// are shared: do not change them.
func (e *Envelope) Raw() []byte { return e.raw }

// Content is the parsed body: *[Greet], *[Whois], *[Say], *[Transfer],
// *[Receipt] or *[Trace] by kind. It is nil until Decode or SetContent.
func (e *Envelope) Content() any { return e.content }

// Container identifies the conversation of an envelope. Work is bound to one.
type Container struct {
	Channel string
	Surface Surface
	ID      string // thread_id or direct_id
}

// Container gives the conversation that e belongs to; zero but for the channel
// on greet and whois.
func (e *Envelope) Container() Container {
	c := Container{Channel: e.Channel, Surface: e.Surface, ID: e.ThreadID}
	if e.Surface == SurfaceDirect {
		c.ID = e.DirectID
	}
	return c
}

// Answer begins a message about e, from the recipient of e to its sender, in the
// same conversation, work and trace. Very long ids of e are left out, because an
// envelope may not have room for several.
func (e *Envelope) Answer() *Envelope {
	id, trace := e.ID, e.TraceID
	if len(id) > maxEcho {
		id = ""
	}
	if len(trace) > maxEcho {
		trace = ""
	}
	return &Envelope{WorkspaceID: e.WorkspaceID, Channel: e.Channel, Surface: e.Surface, ThreadID: e.ThreadID,
		DirectID: e.DirectID, From: e.To, To: e.From, WorkID: e.WorkID, ReplyTo: id, CausationID: id, TraceID: trace}
}

// maxEcho is the longest id that an answer repeats, in bytes: an envelope has
// room for several.
const maxEcho = 128 << 10

// ExtValue gives the raw value of one ext member, nil if absent. It is a part of
// Ext.
func (e *Envelope) ExtValue(key string) json.RawMessage {
	if len(e.Ext) == 0 {
		return nil
	}
	return json.RawMessage(jsonx.Member(e.Ext, key))
}

// SetExt sets one ext member to the JSON of v. Keys should be namespaced
// (envelope page, "Extension rules").
func (e *Envelope) SetExt(key string, v any) error {
	members := map[string]any{}
	if len(e.Ext) > 0 {
		var others map[string]jsonx.Value
		if err := jsonx.Decode(e.Ext, &others); err != nil {
			return malformed(StepParse, "ext", "must be an object").because(err)
		}
		for name, other := range others {
			members[name] = other
		}
	}
	members[key] = v
	b, err := jsonx.Encode(members)
	if err != nil {
		return malformed(StepParse, "ext", "cannot be written as JSON").because(err)
	}
	e.Ext = b
	return nil
}

// Decoder reads envelopes. The zero value is strict.
type Decoder struct {
	// Lenient keeps members that the envelope page does not name (in Unknown,
	// and in Raw) instead of refusing them. interaction_id, a member of an
	// older draft, is refused all the same.
	Lenient bool
	// Handles admits verified handles (nickname@fingerprint, RFC 004 §3) where
	// a Peer ID stands. [Verifier] sets it when trust is on.
	Handles bool
	Limits  Limits
}

// Decode reads one envelope strictly and checks everything that needs neither
// a clock nor a key: JSON, fields, surface and body. Errors are [*Error].
// The bytes are kept, not copied.
func Decode(b []byte) (*Envelope, error) { return (&Decoder{}).Decode(b) }

// Decode is the method form of [Decode].
func (d *Decoder) Decode(b []byte) (*Envelope, error) { return d.check(d.parse(b)) }

// written is Decode for the output of marshal: the JSON is valid, and w has its
// members. Decoding the hub's three answers to a request again would take 4 percent
// of the time for the request.
func (d *Decoder) written(w *lenientWire, b []byte) (*Envelope, error) {
	if len(b) > d.Limits.envelope() || len(w.Unknown) > 0 || jsonx.TooDeep(b, d.Limits.Depth) {
		return d.Decode(b)
	}
	return d.check(w.read(b))
}

func (d *Decoder) check(p *parsed, err error) (*Envelope, error) {
	if err = p.pass(err, d.fields, d.surface, d.body); err != nil {
		return nil, err
	}
	return p.Envelope, nil
}

// pass takes p through steps until one refuses it; err is the error of the step
// before.
func (p *parsed) pass(err error, steps ...func(*parsed) error) error {
	for _, step := range steps {
		if err != nil {
			return err
		}
		err = step(p)
	}
	return err
}

// wire is the JSON shape, in the order of the envelope page. Optional strings are
// pointers, because null means absent but "" does not.
type wire struct {
	Protocol    string      `json:"protocol"`
	ID          string      `json:"id"`
	WorkspaceID string      `json:"workspace_id"`
	Kind        string      `json:"kind"`
	Channel     string      `json:"channel"`
	Surface     *string     `json:"surface,omitzero"`
	ThreadID    *string     `json:"thread_id,omitzero"`
	DirectID    *string     `json:"direct_id,omitzero"`
	From        string      `json:"from"`
	To          *string     `json:"to"`
	WorkID      *string     `json:"work_id,omitzero"`
	ReplyTo     *string     `json:"reply_to,omitzero"`
	TraceID     *string     `json:"trace_id,omitzero"`
	CausationID *string     `json:"causation_id,omitzero"`
	TS          int64       `json:"ts"`
	ExpiresAt   *int64      `json:"expires_at,omitzero"`
	Body        jsonx.Value `json:"body"`
	Proof       jsonx.Value `json:"proof"`
	Ext         jsonx.Value `json:"ext,omitzero"`
}

type lenientWire struct {
	wire
	Unknown jsonx.Value `json:",embed"`
}

// present marks the optional members that have a value, since the surface rules
// speak of presence.
type present struct{ surface, threadID, directID, to, workID, replyTo bool }

// parsed is an Envelope on its way through the checks.
type parsed struct {
	*Envelope
	protocol string
	has      present
}

// parse is step 1. Its envelope is for the next steps only; if one fails, the
// envelope may be incomplete.
func (d *Decoder) parse(b []byte) (*parsed, error) {
	if most := d.Limits.envelope(); len(b) > most {
		return nil, refuse(ErrTooLarge, StepParse, "",
			fmt.Sprintf("the envelope has %d bytes; at most %d are allowed", len(b), most))
	}
	if d.Limits.Depth > 0 {
		if err := jsonx.Valid(b, d.Limits.Depth); err != nil {
			return nil, unreadable(err)
		}
	}
	var w lenientWire
	var err error
	if d.Lenient {
		err = jsonx.Decode(b, &w)
	} else {
		err = jsonx.DecodeKnown(b, &w.wire)
	}
	if err != nil {
		return nil, unreadable(err)
	}
	if t := bytes.TrimLeft(b, " \t\r\n"); t[0] != '{' {
		return nil, malformed(StepParse, "", "must be a JSON object")
	}
	if len(w.Unknown) > 0 {
		var m map[string]jsonx.Value
		if err := jsonx.Decode(w.Unknown, &m); err != nil {
			return nil, unreadable(err)
		}
		if _, ok := m["interaction_id"]; ok {
			return nil, malformed(StepParse, "interaction_id", "is a member of an older draft")
		}
		for name := range m {
			if knownFold(name) {
				return nil, malformed(StepParse, "", "a member name differs only in case from a known one")
			}
		}
	}
	return w.read(b)
}

// read makes an envelope of w, which was decoded from b.
func (w *lenientWire) read(b []byte) (*parsed, error) {
	e := &Envelope{
		ID: strings.TrimSpace(w.ID), WorkspaceID: strings.TrimSpace(w.WorkspaceID), Kind: Kind(w.Kind),
		Channel: w.Channel, Surface: Surface(deref(w.Surface)), ThreadID: strings.TrimSpace(deref(w.ThreadID)),
		DirectID: deref(w.DirectID), From: w.From, To: deref(w.To), WorkID: deref(w.WorkID),
		ReplyTo: strings.TrimSpace(deref(w.ReplyTo)), TraceID: strings.TrimSpace(deref(w.TraceID)),
		CausationID: strings.TrimSpace(deref(w.CausationID)), TS: w.TS, Body: json.RawMessage(w.Body), raw: b,
	}
	if w.ExpiresAt != nil {
		e.ExpiresAt, e.expired = *w.ExpiresAt, *w.ExpiresAt == 0
	}
	if len(w.Unknown) > 2 {
		e.Unknown = json.RawMessage(w.Unknown)
	}
	p := &parsed{Envelope: e, protocol: w.Protocol, has: present{
		w.Surface != nil, w.ThreadID != nil, w.DirectID != nil, w.To != nil, w.WorkID != nil, w.ReplyTo != nil}}
	var err error
	e.Proof, err = object(w.Proof, "proof")
	if err != nil {
		return p, err
	}
	e.Ext, err = object(w.Ext, "ext")
	if err != nil {
		return p, err
	}
	for _, m := range []struct {
		name string
		s    *string
	}{{"reply_to", w.ReplyTo}, {"trace_id", w.TraceID}, {"causation_id", w.CausationID}} {
		if m.s != nil && *m.s == "" {
			return p, malformed(StepFields, m.name, "must not be empty, or null")
		}
	}
	return p, nil
}

// unreadable says which member is wrong, and how. A member name is the sender's
// text, so that the error quotes a bounded part of it.
func unreadable(err error) *Error {
	const most = 64
	field, text := "", "must be one JSON object"
	var j *jsonx.Error
	if errors.As(err, &j) {
		field = strings.ReplaceAll(strings.TrimPrefix(j.Pointer, "/"), "/", ".")
		field = strings.NewReplacer("~1", "/", "~0", "~").Replace(field)
		if len(field) > most {
			field = strings.ToValidUTF8(field[:most], "") + "…"
		}
		switch {
		case errors.Is(err, jsonx.ErrUnknown) && field == "interaction_id":
			text = "is a member of an older draft"
		case errors.Is(err, jsonx.ErrUnknown) && knownFold(field):
			text = "is no member of an envelope: names are compared with case"
		case errors.Is(err, jsonx.ErrUnknown):
			text = "is no member of an envelope; put it into ext"
		case errors.Is(err, jsonx.ErrDuplicate):
			text = "is given more than once"
		case errors.Is(err, jsonx.ErrType) && field != "":
			text = "has the wrong type: " + wantedType(field)
		case errors.Is(err, jsonx.ErrType):
		default:
			text = j.Is.Error()
			if j.Offset > 0 {
				text += " at byte " + strconv.FormatInt(j.Offset, 10)
			}
		}
	}
	return malformed(StepParse, field, text).because(err)
}

// wantedType names the type that a member must have.
func wantedType(member string) string {
	switch member {
	case "ts", "expires_at":
		return "want an integer of Unix seconds, without fraction and exponent"
	case "body", "proof", "ext":
		return "want an object"
	}
	return "want a string"
}

func object(v jsonx.Value, name string) (json.RawMessage, error) {
	switch {
	case jsonx.IsNull(v):
		return nil, nil
	case v.Kind() != '{':
		return nil, malformed(StepParse, name, "must be an object or null")
	}
	return json.RawMessage(v), nil
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// knownFold reports whether name is a known member written in another case:
// the reference decoder would take it for the member itself.
func knownFold(name string) bool {
	return slices.ContainsFunc(memberNames, func(k string) bool { return strings.EqualFold(k, name) })
}

var memberNames = []string{"protocol", "id", "workspace_id", "kind", "channel", "surface", "thread_id",
	"direct_id", "from", "to",
	"work_id", "reply_to", "trace_id", "causation_id", "ts", "expires_at", "body", "proof", "ext", "interaction_id"}
