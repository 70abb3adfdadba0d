package asp

import (
	"bytes"
	"cmp"
	"time"

	"github.com/google/uuid"

	"github.com/parley-hub/parley/internal/jsonx"
)

// A Draft is a message before it is signed. SessionID, Performative and Body are
// required; the comments name the defaults of the other fields.
type Draft struct {
	Version        string // Version
	MessageID      string // a new one
	SessionID      string
	SequenceNumber int64
	PreviousHash   string    // ZeroHash
	Time           time.Time // now; see [NextTimestamp]
	Recipient      *Party    // nil: all participants
	Performative   Performative
	MimeType       string // application/json
	Body           any    // becomes a JSON object
	Context        []ContextObject
	Constraints    *Constraints
	TrustScore     float64 // claimed by the sender
	AccessToken    string  // bound into the proof when set
	Format         Format  // JSON
}

// made marks a message that this process signed.
type made struct {
	by    *Identity
	input []byte
	proof Proof // without Until
}

// madeBy reports whether an identity with these keys signed e in this process, so
// that its hash, its signature and the signature of its proof are valid.
func (e *Envelope) madeBy(card *Card) bool {
	return e.made != nil && card.SigningKey.Equal(e.made.by.public) && card.ProofKey.Equal(e.made.by.proof) &&
		bytes.Equal(e.made.input, e.SigningInput())
}

// message is the wire form of a message, its members in the order of the
// documentation.
type message struct {
	Version        string       `json:"version"`
	MessageID      string       `json:"messageId"`
	SessionID      string       `json:"sessionId"`
	SequenceNumber int64        `json:"sequenceNumber"`
	Timestamp      string       `json:"timestamp"`
	Sender         Sender       `json:"sender"`
	Recipient      *Party       `json:"recipient,omitempty"`
	Performative   Performative `json:"performative"`
	Content        jsonx.Value  `json:"content"`
	Integrity      Integrity    `json:"integrity"`
	Constraints    *Constraints `json:"constraints,omitempty"`
}

// Sign makes the message: content hash, signature, proof. It does the checks of
// [Decode], and refuses a body that does not fit the performative.
func (d Draft) Sign(id *Identity) (*Envelope, error) {
	if d.Time.IsZero() {
		d.Time = time.Now()
	}
	if d.MessageID == "" {
		m, err := uuid.NewV7()
		if err != nil {
			return nil, err
		}
		d.MessageID = m.String()
	}
	content, err := d.content()
	if err != nil {
		return nil, err
	}
	hash, err := contentHash(content)
	if err != nil {
		return nil, atStep(err, 2)
	}
	proof, claims, err := id.messageProof(d.SessionID, d.AccessToken, d.Time)
	if err != nil {
		return nil, err
	}
	m := message{
		Version:        cmp.Or(d.Version, Version),
		MessageID:      d.MessageID,
		SessionID:      d.SessionID,
		SequenceNumber: d.SequenceNumber,
		Timestamp:      Timestamp(d.Time),
		Sender:         Sender{id.agentID, id.orgID, d.TrustScore, proof},
		Recipient:      d.Recipient,
		Performative:   d.Performative,
		Content:        content,
		Constraints:    d.Constraints,
	}
	m.Integrity = Integrity{Hash: hash, PreviousHash: cmp.Or(d.PreviousHash, ZeroHash)}
	input := signingInput(m.Version, m.SessionID, m.SequenceNumber, m.Timestamp, m.Sender.AgentID,
		string(m.Performative), m.Integrity.Hash, m.Integrity.PreviousHash)
	if m.Integrity.Signature, err = id.sign(input); err != nil {
		return nil, err
	}
	raw, err := jsonx.Encode(m)
	if err != nil {
		return nil, refuseCause("invalid_utf8", "", err).at(2)
	}
	if d.Format == MessagePack {
		if raw, err = jsonToMsgpack(raw); err != nil {
			return nil, err
		}
	}
	e, err := cmp.Or(d.Format, JSON).Decode(raw)
	if err != nil {
		return nil, err
	}
	if err := checkBody(e.Performative, e.body()); err != nil {
		return nil, err
	}
	e.made = &made{by: id, input: input, proof: claims}
	return e, nil
}

func (d *Draft) content() ([]byte, error) {
	body, err := jsonx.Encode(d.Body)
	if err != nil {
		return nil, err
	}
	return jsonx.Encode(struct {
		MimeType string          `json:"mimeType"`
		Body     jsonx.Value     `json:"body"`
		Context  []ContextObject `json:"context,omitzero"`
	}{cmp.Or(d.MimeType, "application/json"), body, d.Context})
}

// contentHash is [ContentHash] for content at depth 1.
func contentHash(content []byte) (string, error) {
	n, err := parseWithin(content, maxDepth-1)
	if err != nil {
		return "", err
	}
	return hashOf(appendCanonical(nil, n)), nil
}

// NextTimestamp gives the time of a message after a message of time previous: now,
// but at least one millisecond later, so that timestamps have the order of the
// links (project).
func NextTimestamp(now time.Time, previous string) time.Time {
	if t, ok := ParseTimestamp(previous); ok && !now.Truncate(time.Millisecond).After(t) {
		return t.Add(time.Millisecond)
	}
	return now
}

// NewSessionID makes a session id.
func NewSessionID() (string, error) {
	u, err := uuid.NewV7()
	return u.String(), err
}
