package asp

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/vmihailenco/msgpack/v5/msgpcode"

	"github.com/parley-hub/parley/internal/jsonx"
)

// A Format is the serialization of a session, fixed by its invitation.
type Format string

// The two formats, by their content type.
const (
	JSON        Format = "application/asp+json"
	MessagePack Format = "application/asp+msgpack"
)

// An Envelope is one message, made by [Decode], [DecodeMsgpack] or [Draft.Sign].
// It is immutable, because its bytes are signed.
type Envelope struct {
	Version        string
	MessageID      string
	SessionID      string
	SequenceNumber int64
	Timestamp      string
	Sender         Sender
	Recipient      *Party // nil: to all participants
	Performative   Performative
	Content        Content
	Integrity      Integrity
	Constraints    *Constraints

	// Note is for the program that embeds the server: [Server.Say] passes it to the
	// hooks and the Store. It is not encoded.
	Note any

	format   Format
	raw      []byte // as received
	json     []byte // raw, or its JSON form when raw is MessagePack
	root     *node
	score    span // where raw holds sender.trustScore
	content  []byte
	bodySpan span
	made     *made
}

type span struct{ from, to int }

// A Sender is the agent that sends a message. TrustScore is its own claim: it is
// not signed, and nothing relies on it.
type Sender struct {
	AgentID    string  `json:"agentId"`
	OrgID      string  `json:"orgId"`
	TrustScore float64 `json:"trustScore"`
	DPoPProof  string  `json:"dpopProof"`
}

// A Party is an agent and its organization. OrgID is empty for a recipient given
// as a bare URI.
type Party struct {
	AgentID string `json:"agentId"`
	OrgID   string `json:"orgId"`
}

// Content is the part of a message that integrity.hash covers.
type Content struct {
	MimeType string
	Body     json.RawMessage // a JSON object, as written
	Context  []ContextObject
}

// Integrity is the hash of the content, the link and the signature.
type Integrity struct {
	Hash         string `json:"hash"`
	PreviousHash string `json:"previousHash"`
	Signature    string `json:"signature"`
}

// Constraints are the sender's wishes for the answer. They are advisory and not
// signed, so nothing may depend on them.
type Constraints struct {
	MaxResponseTimeMs    int64          `json:"maxResponseTimeMs,omitzero"`
	MaxTokenBudget       int64          `json:"maxTokenBudget,omitzero"`
	RequiredTrustScore   float64        `json:"requiredTrustScore,omitzero"`
	AllowedPerformatives []Performative `json:"allowedPerformatives,omitempty"`
}

// Decode reads one message in JSON: size, syntax, schema and grammar,
// version, size of the body, in this order (steps 1 to 5 of [Verifier]).
func Decode(b []byte) (*Envelope, error) { return JSON.Decode(b) }

// DecodeMsgpack reads one message in MessagePack under the same rules.
func DecodeMsgpack(b []byte) (*Envelope, error) { return MessagePack.Decode(b) }

// Decode is [Decode] or [DecodeMsgpack].
func (f Format) Decode(b []byte) (*Envelope, error) {
	if len(b) > maxMessage {
		return nil, refuse("message_too_large", "").at(1)
	}
	e, err := parseEnvelope(b, f)
	if err != nil {
		return nil, atStep(err, 2)
	}
	if err := e.check(); err != nil {
		return nil, atStep(err, 3)
	}
	return e, nil
}

// parseEnvelope does step 2 and reads the members of the right type;
// [Envelope.check] does the rest. A [Chain] checks hash, link and signature first,
// so it needs the fields also of messages that the schema refuses.
func parseEnvelope(b []byte, f Format) (*Envelope, error) {
	e := &Envelope{format: f, raw: b, json: b}
	if f == MessagePack {
		text, score, err := msgpackToJSON(b)
		if err != nil {
			return nil, err
		}
		e.json, e.score = text, score
	}
	root, err := parseJSON(e.json)
	if err != nil {
		return nil, err
	}
	if root.kind != '{' {
		return nil, refuse("malformed_json", "")
	}
	e.root = root
	e.fill()
	return e, nil
}

func (e *Envelope) fill() {
	r := e.root
	e.Version, e.MessageID, e.SessionID = r.text("version"), r.text("messageId"), r.text("sessionId")
	e.SequenceNumber, _ = r.get("sequenceNumber").integer()
	e.Timestamp, e.Performative = r.text("timestamp"), Performative(r.text("performative"))
	e.fillSender(r.get("sender"))
	if v := r.get("recipient"); v != nil {
		e.Recipient = &Party{AgentID: cmp.Or(v.str, v.text("agentId")), OrgID: v.text("orgId")}
	}
	e.fillContent(r.get("content"))
	v := r.get("integrity")
	e.Integrity = Integrity{v.text("hash"), v.text("previousHash"), v.text("signature")}
	e.Constraints = constraintsOf(r.get("constraints"))
}

// text gives the string member called s, or "".
func (n *node) text(s string) string {
	if v := n.get(s); v != nil {
		return v.str
	}
	return ""
}

func (e *Envelope) fillSender(v *node) {
	e.Sender = Sender{AgentID: v.text("agentId"), OrgID: v.text("orgId"), DPoPProof: v.text("dpopProof")}
	if s := v.get("trustScore"); s != nil && s.kind == '0' {
		e.Sender.TrustScore = s.number()
		if e.format != MessagePack {
			from := cap(e.json) - cap(s.raw) // s.raw is a slice of e.json
			e.score = span{from, from + len(s.raw)}
		}
	}
}

func (e *Envelope) fillContent(v *node) {
	if v == nil {
		return
	}
	e.Content.MimeType = v.text("mimeType")
	if b := v.get("body"); b != nil {
		e.Content.Body = json.RawMessage(b.raw)
	}
	for c := range v.get("context").elements() {
		e.Content.Context = append(e.Content.Context, contextOf(c))
	}
	e.content, e.bodySpan = canonicalContent(v)
}

// canonicalContent gives the canonical form of content and the position of body in
// it.
func canonicalContent(n *node) (out []byte, body span) {
	out = make([]byte, 0, len(n.raw)+16)
	if n.kind != '{' {
		return appendCanonical(out, n), body
	}
	out = append(out, '{')
	for i, at := range n.sorted(nil) {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(jsonx.AppendText(out, n.names[at].text), ':')
		from := len(out)
		out = appendCanonical(out, &n.kids[at])
		if n.names[at].raw == "body" {
			body = span{from, len(out)}
		}
	}
	return append(out, '}'), body
}

func constraintsOf(v *node) *Constraints {
	if v == nil {
		return nil
	}
	c := new(Constraints)
	c.MaxResponseTimeMs, _ = v.get("maxResponseTimeMs").integer()
	c.MaxTokenBudget, _ = v.get("maxTokenBudget").integer()
	if score := v.get("requiredTrustScore"); score != nil {
		c.RequiredTrustScore = score.number()
	}
	for act := range v.get("allowedPerformatives").elements() {
		c.AllowedPerformatives = append(c.AllowedPerformatives, Performative(act.str))
	}
	return c
}

// A rule is one row of the schema: a member, and the check of its value.
type rule struct {
	name     string
	required bool
	ok       func(*node) bool
}

func isString(n *node) bool  { return n.kind == '"' }
func isFilled(n *node) bool  { return n.kind == '"' && n.str != "" }
func isObject(n *node) bool  { return n.kind == '{' }
func isArray(n *node) bool   { return n.kind == '[' }
func isNatural(n *node) bool { i, ok := n.integer(); return ok && i >= 0 }
func isScore(n *node) bool   { return n.kind == '0' && n.number() >= 0 && n.number() <= 100 }
func isUUID(n *node) bool    { return n.kind == '"' && ValidUUID(n.str) }
func isAgent(n *node) bool   { return n.kind == '"' && ValidAgentID(n.str) }
func isHash(n *node) bool    { return n.kind == '"' && validHash(n.str) }
func isSig(n *node) bool     { return n.kind == '"' && validSignature(n.str) }
func isVersion(n *node) bool { return n.kind == '"' && versionForm(n.str) }
func isTime(n *node) bool    { _, ok := ParseTimestamp(n.str); return n.kind == '"' && ok }
func isAct(n *node) bool     { return n.kind == '"' && Performative(n.str).Valid() }
func isActs(n *node) bool {
	return isArray(n) && !slices.ContainsFunc(n.kids, func(k node) bool { return !isAct(&k) })
}
func isPartyForm(n *node) bool { return n.kind == '{' || isAgent(n) }

func isMime(n *node) bool {
	switch n.str {
	case "application/json", "application/msgpack", "text/plain", "application/octet-stream", "application/asp+json":
		return n.kind == '"'
	}
	return false
}

// The schema of "Field reference". The first row that fails is the reported fault.
var (
	topRules = []rule{
		{"version", true, isVersion},
		{"messageId", true, isUUID},
		{"sessionId", true, isUUID},
		{"sequenceNumber", true, isNatural},
		{"timestamp", true, isTime},
		{"sender", true, isObject},
		{"recipient", false, isPartyForm},
		{"performative", true, isAct},
		{"content", true, isObject},
		{"integrity", true, isObject},
		{"constraints", false, isObject},
	}
	senderRules = []rule{
		{"agentId", true, isAgent},
		{"orgId", true, isFilled},
		{"trustScore", true, isScore},
		{"dpopProof", true, isString},
	}
	partyRules = []rule{
		{"agentId", true, isAgent},
		{"orgId", true, isFilled},
	}
	contentRules = []rule{
		{"mimeType", true, isMime},
		{"body", true, isObject},
		{"context", false, isArray},
	}
	integrityRules = []rule{
		{"hash", true, isHash},
		{"previousHash", true, isHash},
		{"signature", true, isSig},
	}
	constraintRules = []rule{
		{"maxResponseTimeMs", false, isNatural},
		{"maxTokenBudget", false, isNatural},
		{"requiredTrustScore", false, isScore},
		{"allowedPerformatives", false, isActs},
	}
)

// checkRules applies rules to object n at path prefix.
func checkRules(n *node, prefix string, rules []rule) error {
	for _, r := range rules {
		switch v := n.get(r.name); {
		case v == nil && r.required:
			return refuse("missing_field", prefix+r.name)
		case v != nil && !r.ok(v):
			return refuse("invalid_field", prefix+r.name)
		}
	}
	return nil
}

// check is steps 3 to 5: schema and grammar, version, size of the body.
func (e *Envelope) check() error {
	if err := checkRules(e.root, "", topRules); err != nil {
		return err
	}
	for _, part := range []struct {
		name  string
		rules []rule
	}{
		{"sender", senderRules}, {"recipient", partyRules}, {"content", contentRules},
		{"integrity", integrityRules}, {"constraints", constraintRules},
	} {
		if n := e.root.get(part.name); n != nil && n.kind == '{' {
			if err := checkRules(n, part.name+".", part.rules); err != nil {
				return err
			}
		}
	}
	if c := e.root.get("content").get("context"); c != nil {
		if len(c.kids) > maxContext {
			return refuse("invalid_field", "content.context")
		}
		for i := range c.kids {
			if err := checkContext(&c.kids[i], "content.context["+strconv.Itoa(i)+"]"); err != nil {
				return err
			}
		}
	}
	if !supportedVersion(e.Version) {
		return refuse("unsupported_version", "version").at(4)
	}
	if e.bodySpan.to-e.bodySpan.from > maxBody {
		return refuse("body_too_large", "content.body").at(5)
	}
	return nil
}

// Raw gives the message's bytes as received or signed. They must not be changed.
func (e *Envelope) Raw() []byte { return e.raw }

// Format is the serialization of [Envelope.Raw].
func (e *Envelope) Format() Format { return e.format }

// JSON gives the message as JSON: Raw itself unless that is MessagePack.
func (e *Envelope) JSON() []byte { return e.json }

// CanonicalContent gives the bytes that the content hash covers.
func (e *Envelope) CanonicalContent() []byte { return e.content }

// Digest is the SHA-256 of the canonical form of the whole message. Unlike
// integrity.hash it covers messageId, orgId, trustScore, the proof, the
// recipient, constraints and unknown members (project).
func (e *Envelope) Digest() string {
	return hashOf(appendCanonical(make([]byte, 0, len(e.json)+64), e.root))
}

// SigningInput gives the bytes that integrity.signature covers: eight strings
// joined by NUL, "Integrity chain: signature".
func (e *Envelope) SigningInput() []byte {
	return signingInput(e.Version, e.SessionID, e.SequenceNumber, e.Timestamp, e.Sender.AgentID,
		string(e.Performative), e.Integrity.Hash, e.Integrity.PreviousHash)
}

func signingInput(version, session string, sequence int64, timestamp, agent, performative, hash,
	previous string) []byte {
	return []byte(strings.Join([]string{version, session, strconv.FormatInt(sequence, 10), timestamp, agent,
		performative, hash, previous}, "\x00"))
}

// IsInvitation reports whether e is a PROPOSE of type session-invitation.
func (e *Envelope) IsInvitation() bool {
	return e.Performative == Propose && e.subtype() == "session-invitation"
}

// body gives the parsed content.body, or nil.
func (e *Envelope) body() *node { return e.root.get("content").get("body") }

// BodyText gives the string member of content.body called name, or "".
func (e *Envelope) BodyText(name string) string { return e.body().text(name) }

// BodyMember gives the bytes of the member of content.body called name, nil if
// there is none. They must not be changed.
func (e *Envelope) BodyMember(name string) json.RawMessage {
	if m := e.body().get(name); m != nil {
		return json.RawMessage(m.raw[:len(m.raw):len(m.raw)])
	}
	return nil
}

// subtype is body.type of a PROPOSE and body.informType of an INFORM.
func (e *Envelope) subtype() string {
	switch e.Performative {
	case Propose:
		return e.BodyText("type")
	case Inform:
		return e.BodyText("informType")
	}
	return ""
}

// Interim reports whether an answer to a QUERY is an acknowledgement or a progress
// report: an ACCEPT, or an INFORM whose informType is not that of a result. The
// protocol leaves informType open; these are the usual words.
func (e *Envelope) Interim() bool {
	if e.Performative == Accept {
		return true
	}
	switch e.subtype() {
	case "accepted", "progress", "status", "working", "chunk", "partial":
		return e.Performative == Inform
	}
	return false
}

// Reference is the id to which the body refers: referenceId, or an alias from
// other pages. It is empty if the body has none.
func (e *Envelope) Reference() string {
	if v := referenceOf(e.body(), e.Performative); v != nil {
		return v.str
	}
	return ""
}

// withTrustScore gives the message of a record with sender.trustScore replaced by
// the server's score; all other bytes stay. The member is not signed, and
// recipients should not see the sender's claim.
func (r *Record) withTrustScore(score float64) []byte {
	if r.ScoreTo <= r.ScoreFrom || r.ScoreTo > len(r.Raw) {
		return r.Raw
	}
	value := appendNumber(nil, score)
	if r.Format == MessagePack {
		value = binary.BigEndian.AppendUint64([]byte{msgpcode.Double}, math.Float64bits(score))
	}
	return slices.Concat(r.Raw[:r.ScoreFrom], value, r.Raw[r.ScoreTo:])
}

// String is for logs: identifiers only.
func (e *Envelope) String() string {
	return fmt.Sprintf("%s %s #%d from %s", e.Performative, e.MessageID, e.SequenceNumber, e.Sender.AgentID)
}
