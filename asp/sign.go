package asp

import (
	"bytes"
	"strconv"
	"time"
	"unicode/utf8"

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

// made says that a message was signed in this process, by whom, and what.
type made struct {
	by    *Identity
	input []byte
	proof Proof // without Until
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
	d.Version, d.PreviousHash = or(d.Version, Version), or(d.PreviousHash, ZeroHash)
	e, input, err := d.write(id)
	if err != nil {
		return nil, err
	}
	if len(e.raw) > (Limits{}).message() {
		return nil, refuse("message_too_large", "").at(1)
	}
	if err := e.check(Limits{}); err != nil {
		return nil, atStep(err, 3)
	}
	if err := checkBody(e.Performative, e.body()); err != nil {
		return nil, err
	}
	proof := e.made
	if d.Format == MessagePack {
		if e, err = DecodeMsgpack(appendMsgpack(nil, e.root)); err != nil {
			return nil, err
		}
	}
	proof.by, proof.input = id, input
	e.made = proof
	return e, nil
}

// write signs the message and writes it, in the order of the documentation,
// with the tree that [Decode] would make of it.
func (d *Draft) write(id *Identity) (e *Envelope, input []byte, err error) {
	body, err := encodeBody(d.Body)
	if err != nil {
		return nil, nil, err
	}
	proof, claims, err := id.messageProof(d.SessionID, d.AccessToken, d.Time)
	if err != nil {
		return nil, nil, err
	}
	size := 2048 + len(body) + len(proof)
	for i := range d.Context {
		size += 256 + len(d.Context[i].Data)
	}
	w := &writer{b: make([]byte, 0, size)}
	e = &Envelope{format: JSON, Version: d.Version, MessageID: d.MessageID, hasMessage: true, SessionID: d.SessionID, SequenceNumber: d.SequenceNumber,
		Timestamp: Timestamp(d.Time), Recipient: d.Recipient, Performative: d.Performative, made: &made{proof: claims}}
	root := w.open(11)
	root.string("version", d.Version)
	root.string("messageId", d.MessageID)
	root.string("sessionId", d.SessionID)
	root.number("sequenceNumber", strconv.AppendInt(nil, d.SequenceNumber, 10))
	root.string("timestamp", e.Timestamp)
	sender := root.object("sender", 4)
	sender.string("agentId", id.agentID)
	sender.string("orgId", id.orgID)
	e.score = sender.number("trustScore", appendNumber(nil, d.TrustScore))
	sender.string("dpopProof", proof)
	sender.close()
	if r := d.Recipient; r != nil {
		to := root.object("recipient", 2)
		to.string("agentId", r.AgentID)
		to.string("orgId", r.OrgID)
		to.close()
	}
	root.string("performative", string(d.Performative))
	root.name("content")
	from := len(w.b)
	if err := d.content(w, body); err != nil {
		return nil, nil, err
	}
	content, err := parseWithin(w.b[from:len(w.b):len(w.b)], maxDepth-1)
	if err != nil {
		return nil, nil, atStep(err, 2)
	}
	root.value(*content)
	e.Sender = Sender{AgentID: id.agentID, OrgID: id.orgID, TrustScore: d.TrustScore, DPoPProof: proof}
	e.fillContent(content)
	e.Integrity = Integrity{Hash: hashOf(e.content), PreviousHash: d.PreviousHash}
	input = e.SigningInput()
	if e.Integrity.Signature, err = id.sign(input); err != nil {
		return nil, nil, err
	}
	integrity := root.object("integrity", 3)
	integrity.string("hash", e.Integrity.Hash)
	integrity.string("previousHash", e.Integrity.PreviousHash)
	integrity.string("signature", e.Integrity.Signature)
	integrity.close()
	if d.Constraints != nil {
		b, err := jsonx.Encode(d.Constraints)
		if err != nil {
			return nil, nil, err
		}
		n, err := parseWithin(b, maxDepth-1)
		if err != nil {
			return nil, nil, err
		}
		root.name("constraints")
		w.b = append(w.b, b...)
		root.value(*n)
		e.Constraints = constraintsOf(n)
	}
	root.close()
	e.raw, e.json, e.root = w.b, w.b, &root.n
	if !utf8.Valid(e.raw) {
		return nil, nil, refuse("invalid_utf8", "").at(2)
	}
	return e, input, nil
}

// content writes the content as [Draft] has it.
func (d *Draft) content(w *writer, body []byte) (err error) {
	w.b = append(jsonx.AppendText(append(w.b, `{"mimeType":`...), or(d.MimeType, "application/json")), `,"body":`...)
	w.b = append(w.b, body...)
	if d.Context != nil {
		w.b = append(w.b, `,"context":[`...)
		for i := range d.Context {
			o := &d.Context[i]
			if i > 0 {
				w.b = append(w.b, ',')
			}
			w.b = append(jsonx.AppendText(append(w.b, `{"type":`...), o.Type), `,"id":`...)
			w.b = append(jsonx.AppendText(w.b, o.ID), `,"version":`...)
			w.b = append(strconv.AppendInt(w.b, o.Version, 10), `,"data":`...)
			if o.Data == nil {
				w.b = append(w.b, "null"...)
			} else if w.b, err = jsonx.AppendCompact(w.b, o.Data); err != nil {
				return err
			}
			if o.TTL != nil {
				w.b = strconv.AppendInt(append(w.b, `,"ttl":`...), *o.TTL, 10)
			}
			if o.Visibility != "" {
				w.b = jsonx.AppendText(append(w.b, `,"visibility":`...), string(o.Visibility))
			}
			w.b = append(w.b, '}')
		}
		w.b = append(w.b, ']')
	}
	w.b = append(w.b, '}')
	return nil
}

// writer writes JSON, and the tree of what it writes.
type writer struct{ b []byte }

// members is an object that is being written.
type members struct {
	w    *writer
	in   *members // nil: it is the document
	from int
	n    node
}

func (w *writer) open(size int) *members {
	m := &members{w: w, from: len(w.b), n: node{kind: '{', names: make([]name, 0, size), kids: make([]node, 0, size)}}
	w.b = append(w.b, '{')
	return m
}

// name writes the name of a member; its value is to be written behind, and
// given to value.
func (m *members) name(s string) {
	if len(m.n.names) > 0 {
		m.w.b = append(m.w.b, ',')
	}
	m.w.b = append(jsonx.AppendText(m.w.b, s), ':')
	m.n.names = append(m.n.names, name{text: s, raw: s})
}

func (m *members) value(n node) { m.n.kids = append(m.n.kids, n) }

func (m *members) string(name, s string) {
	m.name(name)
	from := len(m.w.b)
	m.w.b = jsonx.AppendText(m.w.b, s)
	m.value(node{kind: '"', raw: m.w.b[from:], str: s})
}

// number writes a number, and tells where it is.
func (m *members) number(name string, lit []byte) span {
	m.name(name)
	from := len(m.w.b)
	m.w.b = append(m.w.b, lit...)
	m.value(node{kind: '0', raw: m.w.b[from:]})
	return span{from, len(m.w.b)}
}

// object begins an object that is a member.
func (m *members) object(name string, size int) *members {
	m.name(name)
	o := m.w.open(size)
	o.in = m
	return o
}

func (m *members) close() {
	m.w.b = append(m.w.b, '}')
	m.n.raw = m.w.b[m.from:]
	if m.in != nil {
		m.in.value(m.n)
	}
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
