package asp

import (
	"cmp"

	"github.com/parley-hub/parley/internal/jsonx"
)

// A SendOption changes one message.
type SendOption func(*pending)

// InReplyTo refers to m, by the id of its proposal, query, commitment or
// delegation, or else by its messageId.
func InReplyTo(m *Message) SendOption {
	return func(p *pending) { p.setMember(reference, m.ownID()) }
}

// To names the recipient that should act. All participants see the message.
func To(agent string) SendOption { return func(p *pending) { p.To = &Party{AgentID: agent} } }

// WithContext attaches context objects.
func WithContext(objects ...ContextObject) SendOption {
	return func(p *pending) { p.Ctx = objects }
}

// WithConstraints attaches wishes for the answer.
func WithConstraints(c Constraints) SendOption { return func(p *pending) { p.Wishes = &c } }

// ownIDs are the members of bodies with the id by which other messages refer to a
// message. A DELEGATE may lack it.
var ownIDs = map[Performative]string{
	Propose:  "proposalId",
	Counter:  "proposalId",
	Query:    "queryId",
	Commit:   "commitmentId",
	Delegate: "delegationId",
}

// ownID is the id by which other messages refer to e.
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

// withMember adds a member at the start of a JSON object, unless the object has it.
// It returns bytes that are no object unchanged.
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
