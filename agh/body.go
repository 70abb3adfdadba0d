package agh

import (
	"encoding/json"
	"strings"

	"github.com/parley-hub/parley/internal/jsonx"
)

// Greet is the body of a greet, by which a peer announces itself (message kinds
// page, "greet").
type Greet struct {
	Card    *Card
	Summary string
}

// WhoisType tells a request from a response.
type WhoisType string

// The types of a whois.
const (
	WhoisRequest  WhoisType = "request"
	WhoisResponse WhoisType = "response"
)

// Whois is the body of a whois. A request has an optional Query, a response
// has a Card.
type Whois struct {
	Type  WhoisType
	Query string
	Card  *Card
}

// Say is the body of a say. Artifacts are any JSON values.
type Say struct {
	Text      string            `json:"text"`
	Intent    string            `json:"intent,omitzero"`
	Artifacts []json.RawMessage `json:"artifacts,omitzero"`
}

// Transfer is the body of a capability message, which hands over one capability.
type Transfer struct {
	Capability Capability
}

// ReceiptStatus is the outcome that a receipt reports of a message.
type ReceiptStatus string

// The statuses.
const (
	StatusAccepted    ReceiptStatus = "accepted"
	StatusRejected    ReceiptStatus = "rejected"
	StatusDuplicate   ReceiptStatus = "duplicate"
	StatusExpired     ReceiptStatus = "expired"
	StatusUnsupported ReceiptStatus = "unsupported"
	StatusCanceled    ReceiptStatus = "canceled"
)

// Receipt is the body of a receipt. Reason is forbidden with accepted,
// optional with canceled and required with every other status.
type Receipt struct {
	ForID  string
	Status ReceiptStatus
	Reason Reason
	Detail string
}

// Trace is the body of a trace: a step in the life of a piece of work. Result
// is any JSON value (the pages ask for an object, the reference for none).
type Trace struct {
	State        WorkState         `json:"state"`
	Message      string            `json:"message,omitzero"`
	Result       json.RawMessage   `json:"result,omitzero"`
	ArtifactRefs []json.RawMessage `json:"artifact_refs,omitzero"`
}

// The JSON shapes of the other bodies. Members that the pages do not name are
// ignored: bodies grow.
type (
	greetWire struct {
		Card    jsonx.Value `json:"peer_card"`
		Summary *string     `json:"summary,omitzero"`
	}
	whoisWire struct {
		Type  WhoisType   `json:"type"`
		Query *string     `json:"query,omitzero"`
		Card  jsonx.Value `json:"peer_card,omitzero"`
	}
	transferWire struct {
		Capability jsonx.Value `json:"capability"`
	}
	receiptWire struct {
		ForID  string        `json:"for_id"`
		Status ReceiptStatus `json:"status"`
		Reason *Reason       `json:"reason_code,omitzero"`
		Detail *string       `json:"detail,omitzero"`
	}
)

// body is step 5: the body by kind.
func (d *Decoder) body(p *parsed) error {
	switch p.Kind {
	case KindGreet:
		return d.greet(p)
	case KindWhois:
		return d.whois(p)
	case KindSay:
		return say(p)
	case KindCapability:
		return transfer(p)
	case KindReceipt:
		return receipt(p)
	case KindTrace:
		return trace(p)
	}
	return nil
}

func (d *Decoder) greet(p *parsed) error {
	var w greetWire
	if err := shape(p, &w); err != nil {
		return err
	}
	card, err := d.card(w.Card, p.From)
	if err != nil {
		return err
	}
	p.content = &Greet{Card: card, Summary: deref(w.Summary)}
	return nil
}

func (d *Decoder) whois(p *parsed) error {
	var w whoisWire
	if err := shape(p, &w); err != nil {
		return err
	}
	c := &Whois{Type: w.Type, Query: deref(w.Query)}
	switch w.Type {
	case WhoisRequest:
		if !jsonx.IsNull(w.Card) {
			return malformed(StepBody, "body.peer_card", "must be absent in a request")
		}
	case WhoisResponse:
		if p.ReplyTo == "" {
			return malformed(StepBody, "reply_to", "is required in a whois response")
		}
		var err error
		c.Card, err = d.card(w.Card, p.From)
		if err != nil {
			return err
		}
	default:
		return malformed(StepBody, "body.type", "must be request or response")
	}
	p.content = c
	return nil
}

func say(p *parsed) error {
	var c Say
	if err := shape(p, &c); err != nil {
		return err
	}
	if blank(c.Text) {
		return malformed(StepBody, "body.text", "must not be blank")
	}
	p.content = &c
	return nil
}

func trace(p *parsed) error {
	var c Trace
	if err := shape(p, &c); err != nil {
		return err
	}
	if !c.State.known() {
		return malformed(StepBody, "body.state", "is not a work state")
	}
	p.content = &c
	return nil
}

func transfer(p *parsed) error {
	var w transferWire
	if err := shape(p, &w); err != nil {
		return err
	}
	if len(w.Capability) == 0 || w.Capability.Kind() != '{' {
		return malformed(StepBody, "body.capability", "must be an object")
	}
	c, claimed, err := decodeCapability(w.Capability)
	if err != nil {
		return err
	}
	digest, err := c.Digest()
	if err != nil {
		return err
	}
	switch {
	case claimed == "":
		return malformed(StepBody, "body.capability.digest", "is required")
	case claimed != digest:
		return refuse(ErrDigest, StepBody, "body.capability.digest", "does not match the capability")
	}
	p.content = &Transfer{Capability: *c}
	return nil
}

func receipt(p *parsed) error {
	var w receiptWire
	if err := shape(p, &w); err != nil {
		return err
	}
	c := &Receipt{ForID: strings.TrimSpace(w.ForID), Status: w.Status, Detail: deref(w.Detail)}
	if w.Reason != nil {
		c.Reason = *w.Reason
		if !c.Reason.known() {
			return malformed(StepBody, "body.reason_code", "is not in the registry")
		}
	}
	switch c.Status {
	case StatusAccepted:
		if c.Reason != "" {
			return malformed(StepBody, "body.reason_code", "must be absent when accepted")
		}
	case StatusRejected, StatusDuplicate, StatusExpired, StatusUnsupported:
		if c.Reason == "" {
			return malformed(StepBody, "body.reason_code", "is required")
		}
	case StatusCanceled:
	default:
		return malformed(StepBody, "body.status", "is not a receipt status")
	}
	if blank(c.ForID) {
		return malformed(StepBody, "body.for_id", "must not be blank")
	}
	p.content = c
	return nil
}

func shape(p *parsed, v any) error {
	if err := jsonx.Decode(p.Body, v); err != nil {
		return malformed(StepBody, "body", "has not the shape of its kind").because(err)
	}
	return nil
}

func blank(s string) bool { return strings.TrimSpace(s) == "" }

// SetContent sets kind and body of e from a pointer to one of the six body
// types. It does not validate; [Envelope.Encode] does.
func (e *Envelope) SetContent(content any) error {
	var kind Kind
	body := content
	switch c := content.(type) {
	case *Greet:
		kind, body = KindGreet, greetWire{Card: c.Card.encode(), Summary: ref(c.Summary)}
	case *Whois:
		w := whoisWire{Type: c.Type, Query: ref(c.Query)}
		if c.Card != nil {
			w.Card = c.Card.encode()
		}
		kind, body = KindWhois, w
	case *Transfer:
		v, err := c.Capability.encode()
		if err != nil {
			return err
		}
		kind, body = KindCapability, transferWire{Capability: v}
	case *Say:
		kind = KindSay
	case *Receipt:
		kind, body = KindReceipt, receiptWire{c.ForID, c.Status, ref(c.Reason), ref(c.Detail)}
	case *Trace:
		kind = KindTrace
	default:
		return malformed(StepBody, "body", "is none of the six body types")
	}
	b, err := jsonx.Encode(body)
	if err != nil {
		return malformed(StepBody, "body", "cannot be written as JSON").because(err)
	}
	e.Kind, e.Body, e.content = kind, b, content
	return nil
}

// ref is nil for the zero value, which is left out then.
func ref[T comparable](v T) *T {
	if v == *new(T) {
		return nil
	}
	return &v
}
