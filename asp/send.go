package asp

import (
	"cmp"

	"github.com/parley-hub/parley/internal/jsonx"
)

// A SendOption is something about one message.
type SendOption func(*pending)

// InReplyTo refers to m: by the id of its proposal, query, commitment or
// delegation, or else by its messageId.
func InReplyTo(m *Message) SendOption {
	return func(p *pending) { p.setMember(reference, m.ownID()) }
}

// To names who should act. Everybody in the session sees the message.
func To(agent string) SendOption { return func(p *pending) { p.To = &Party{AgentID: agent} } }

// WithContext attaches context objects.
func WithContext(objects ...ContextObject) SendOption {
	return func(p *pending) { p.Ctx = objects }
}

// WithConstraints says what answer is wished for.
func WithConstraints(c Constraints) SendOption { return func(p *pending) { p.Wishes = &c } }

// ownIDs are the members of bodies by which others refer to a message. A DELEGATE may
// lack it.
var ownIDs = map[Performative]string{
	Propose:  "proposalId",
	Counter:  "proposalId",
	Query:    "queryId",
	Commit:   "commitmentId",
	Delegate: "delegationId",
}

// ownID is what others refer to e by.
func (e *Envelope) ownID() string {
	if name := ownIDs[e.Performative]; name != "" {
		return cmp.Or(e.body().text(name), e.MessageID)
	}
	return e.MessageID
}

// setMember adds a member to the body unless it is there.
func (p *pending) setMember(name, value string) {
	p.Body = withMember(p.Body, name, value)
}

// withMember gives a JSON object with a member before the others, unless it has one of
// that name. Other bytes are given as they are.
func withMember(object []byte, name, value string) []byte {
	n, err := parseJSON(object)
	if err != nil || n.kind != '{' || n.get(name) != nil {
		return object
	}
	b := jsonx.AppendText(append(jsonx.AppendText([]byte{'{'}, name), ':'), value)
	if len(n.names) > 0 {
		b = append(b, ',')
	}
	return append(b, n.raw[1:]...)
}
