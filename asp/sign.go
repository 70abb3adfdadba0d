package asp

import (
	"bytes"
	"time"

	"github.com/google/uuid"

	"github.com/parley-hub/parley/internal/jsonx"
)

// A Draft is a message before it is signed. SessionID, Performative and Body
// are needed; the rest has the defaults named.
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
	TrustScore     float64 // what the sender says of itself
	AccessToken    string  // bound into the proof when set
	Format         Format  // JSON
}

// wire is the envelope as it is written, in the order of the documentation.
type wire struct {
	Version        string       `json:"version"`
	MessageID      string       `json:"messageId"`
	SessionID      string       `json:"sessionId"`
	SequenceNumber int64        `json:"sequenceNumber"`
	Timestamp      string       `json:"timestamp"`
	Sender         wireSender   `json:"sender"`
	Recipient      *Party       `json:"recipient,omitempty"`
	Performative   Performative `json:"performative"`
	Content        jsonx.Value  `json:"content"`
	Integrity      wireProof    `json:"integrity"`
	Constraints    *Constraints `json:"constraints,omitempty"`
}

type wireSender struct {
	AgentID    string  `json:"agentId"`
	OrgID      string  `json:"orgId"`
	TrustScore float64 `json:"trustScore"`
	DPoPProof  string  `json:"dpopProof"`
}

type wireContent struct {
	MimeType string           `json:"mimeType"`
	Body     any              `json:"body"`
	Context  *[]ContextObject `json:"context,omitempty"`
}

type wireProof struct {
	Hash         string `json:"hash"`
	PreviousHash string `json:"previousHash"`
	Signature    string `json:"signature"`
}

// made says that a message was signed in this process, by whom, and what.
type made struct {
	by    *Identity
	input []byte
}

// madeBy reports whether e is what an identity with these keys signed in this
// process: then its hash, its signature and that of its proof hold.
func (e *Envelope) madeBy(card *Card) bool {
	return e.made != nil && card.SigningKey.Equal(e.made.by.public) && card.ProofKey.Equal(e.made.by.proof) && bytes.Equal(e.made.input, e.SigningInput())
}

// Sign makes the message: content hash, signature, proof. The result has
// passed the checks of [Decode]; a body that does not fit the performative is
// refused too.
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
	c := wireContent{MimeType: or(d.MimeType, "application/json"), Body: d.Body}
	if d.Context != nil {
		c.Context = &d.Context
	}
	content, err := jsonx.Encode(c)
	if err != nil {
		return nil, err
	}
	hash, err := ContentHash(content)
	if err != nil {
		return nil, err
	}
	w := wire{
		Version: or(d.Version, Version), MessageID: d.MessageID, SessionID: d.SessionID,
		SequenceNumber: d.SequenceNumber, Timestamp: Timestamp(d.Time), Recipient: d.Recipient,
		Performative: d.Performative, Content: content, Constraints: d.Constraints,
		Integrity: wireProof{Hash: hash, PreviousHash: or(d.PreviousHash, ZeroHash)},
		Sender:    wireSender{AgentID: id.agentID, OrgID: id.orgID, TrustScore: d.TrustScore},
	}
	input := signingInput(w.Version, w.SessionID, w.SequenceNumber, w.Timestamp, id.agentID, string(w.Performative), hash, w.Integrity.PreviousHash)
	if w.Integrity.Signature, err = id.sign(input); err != nil {
		return nil, err
	}
	if w.Sender.DPoPProof, err = id.MessageProof(d.SessionID, d.AccessToken, d.Time); err != nil {
		return nil, err
	}
	b, err := jsonx.Encode(w)
	if err != nil {
		return nil, err
	}
	e, err := Decode(b)
	if err != nil {
		return nil, err
	}
	if err := checkBody(e.Performative, e.body()); err != nil {
		return nil, err
	}
	if d.Format == MessagePack {
		if e, err = DecodeMsgpack(appendMsgpack(nil, e.root)); err != nil {
			return nil, err
		}
	}
	e.made = &made{id, input}
	return e, nil
}

// NextTimestamp gives the time of a message that follows one of time
// previous: now, but at least one millisecond later, so that the order by
// time agrees with the links (project).
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
