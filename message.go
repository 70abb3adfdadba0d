package parley

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"strings"
	"time"
)

// Kind is what a message expects of its recipients.
type Kind uint8

const (
	Request  Kind = iota + 1 // one terminal reply is expected: a Response or a Failure
	Event                    // reports on a request, before its terminal reply; numbered
	Response                 // terminal: the request was answered
	Failure                  // terminal: the request was not answered, Message.Error says why
	Notice                   // no reply is expected
	Cancel                   // the sender of a request no longer wants its answer
	Input                    // more from the sender of a request that is open; numbered. It answers NeedsInput
)

var kindNames = [...]string{Request: "request", Event: "event", Response: "response", Failure: "error",
	Notice: "notice", Cancel: "cancel", Input: "input"}

func (k Kind) String() string { return name(kindNames[:], int(k)) }

// Terminal reports whether a message of this kind ends a request.
func (k Kind) Terminal() bool { return k == Response || k == Failure }

func (k Kind) MarshalText() ([]byte, error)      { return []byte(k.String()), nil }
func (k *Kind) UnmarshalText(b []byte) error     { return parse(kindNames[:], "kind", b, k) }
func (s State) MarshalText() ([]byte, error)     { return []byte(s.String()), nil }
func (s *State) UnmarshalText(b []byte) error    { return parse(stateNames[:], "state", b, s) }
func (a Assurance) MarshalText() ([]byte, error) { return []byte(a.String()), nil }
func (a *Assurance) UnmarshalText(b []byte) error {
	return parse(assuranceNames[:], "assurance", b, a)
}

// State is the state of a request that an Event reports. An event without a state
// carries a chunk of the result, an artifact or a line of log.
type State uint8

const (
	NoState    State = iota
	Accepted         // the recipient has the request and will work on it
	Working          // work is going on
	NeedsInput       // the recipient waits for an Input from the sender
)

var stateNames = [...]string{NoState: "none", Accepted: "accepted", Working: "working", NeedsInput: "needs-input"}

func (s State) String() string { return name(stateNames[:], int(s)) }

// Assurance is the proof of a message's sender. The levels are ordered: compare them
// with <.
type Assurance uint8

const (
	Unsigned Assurance = iota // nothing: the name is a claim
	// the connection was authenticated (a token, a NATS user), the message itself is not signed
	Session
	Signed // the message itself is signed by a key known for its sender
)

var assuranceNames = [...]string{Unsigned: "unsigned", Session: "session", Signed: "signed"}

func (a Assurance) String() string { return name(assuranceNames[:], int(a)) }

func name(names []string, i int) string {
	if i < len(names) && names[i] != "" {
		return names[i]
	}
	return fmt.Sprintf("unknown(%d)", i)
}

func parse[T ~uint8](names []string, what string, b []byte, v *T) error {
	for i, n := range names {
		if n != "" && n == string(b) {
			*v = T(i)
			return nil
		}
	}
	return fmt.Errorf("unknown %s %q", what, b)
}

// MaxHops is how many hubs a message may pass. A call from handler to handler within a hub
// counts as one.
const MaxHops = 8

// A Message goes from one agent to others, in the hub's own terms. A recorded message
// does not change any more; share it freely.
type Message struct {
	ID   ID
	Kind Kind

	State  State  // of an Event
	Number int    // of an Event or an Input: 1, 2, … per request and kind
	Error  *Error // of a Failure; Code and Text travel, the cause does not

	From     string   // directory name of the sender
	To       string   // the recipient that should act; may be empty when Audience is not
	Audience []string // the members of the conversation when the message was recorded

	Conversation ID // set by the hub
	InReplyTo    ID // the request that an Event, Input, Response, Failure or Cancel is about

	Skill  string // the recipient's operation; "": its default skill
	Act    string // the speech act: a performative, a say-intent
	Schema string // names the schema of the content, as the sender's protocol does

	Parts []Part

	Sent     time.Time // by the sender's clock
	Expires  time.Time // after this it must not be delivered any more; zero: never
	Deadline time.Time // when the sender stops waiting for the answer; zero: not stated

	Trace Trace
	// ids of the hubs that passed it, the oldest first; at most MaxHops. A call by a handler has the
	// hops of the message that the handler works on, and its hub once more.
	Hops []string

	// Extensions holds, under a protocol's name, the members that have no field
	// here: one JSON object each. So a message that leaves in the protocol it came
	// from loses nothing.
	Extensions map[string]json.RawMessage

	Origin Origin
}

// A Part is one piece of content: bytes, or a URI with the digest of its target.
type Part struct {
	MediaType string // of Data, e.g. "application/json", "text/plain; charset=utf-8"
	Name      string // a file name or label; may be empty
	Data      []byte // may be a part of Origin.Raw; not to be changed
	URI       string // in place of Data
	Digest    string // of the URI's target: RFC 9530 form, "sha-256=:…:"
}

// Trace ties messages of one activity together over all hops.
type Trace struct {
	Parent  string            // W3C traceparent
	State   string            // W3C tracestate
	Foreign map[string]string // a protocol's own ids, e.g. "samvad.traceId"
}

// Origin is how a message reached this hub.
type Origin struct {
	// "samvad", "uagents", "a2e", "agh", "asp", "a2a", "mcp"; "go" for a handler, "api" for the plain HTTP way in
	Protocol string
	Peer     string            // the identity in that protocol, or the network address of one that has none
	Address  string            // network address of the peer, if it has one
	Raw      []byte            // the envelope exactly as received; nil for protocol "go"
	Header   map[string]string // of the transport: an allow-list, canonical names
	Received time.Time
	Verified time.Duration // from Received until every check was made; 0: not known
	Admitted time.Duration // from Received until the message was admitted; 0: not known
	Verdict  Verdict
}

// A Verdict is the result of verification, check by check in order. It says nothing of
// permission.
type Verdict struct {
	Checks    []Check
	KeyID     string // the key that proved it, as the protocol names keys
	Assurance Assurance
}

// A Check is one step of verification.
type Check struct {
	Name   string // "digest", "signature", "freshness", …
	OK     bool
	Detail string // for the operator; never sent
}

// JSON makes a part of media type application/json from a Go value.
func JSON(v any) (Part, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return Part{}, err
	}
	return Part{MediaType: "application/json", Data: b}, nil
}

// Text makes a part of plain text.
func Text(s string) Part {
	return Part{MediaType: "text/plain; charset=utf-8", Data: []byte(s)}
}

// IsJSON reports whether the part is JSON by its media type: application/json
// or a type with the suffix +json (RFC 6839 §3.1).
func (p Part) IsJSON() bool {
	t, _, err := mime.ParseMediaType(p.MediaType)
	return err == nil && (t == "application/json" || strings.HasSuffix(t, "+json"))
}

// IsText reports whether the part is plain text by its media type.
func (p Part) IsText() bool {
	t, _, err := mime.ParseMediaType(p.MediaType)
	return err == nil && t == "text/plain"
}

// MainJSON is the index of the first JSON part, or -1: the part that stands for all
// where only one JSON value can go. A JSON part that has a name and follows another
// part is an attachment, and does not count.
func MainJSON(parts []Part) int {
	for i, p := range parts {
		if p.IsJSON() && (i == 0 || p.Name == "") {
			return i
		}
	}
	return -1
}

// ErrNoJSON is the error of [Message.Bind] for a message without a JSON part.
var ErrNoJSON = errors.New("the message has no JSON part")

// Bind reads the message's first JSON part into v, by the rules of
// encoding/json. It returns [ErrNoJSON] when there is none.
func (m *Message) Bind(v any) error {
	for _, p := range m.Parts {
		if p.IsJSON() {
			return json.Unmarshal(p.Data, v)
		}
	}
	return ErrNoJSON
}

// Text is the message's plain text: its text parts, one a line; where there
// are none, the "text" or "message" of a JSON part that has nothing else.
func (m *Message) Text() string {
	var texts []string
	for _, p := range m.Parts {
		if p.IsText() {
			texts = append(texts, string(p.Data))
		}
	}
	if len(texts) > 0 {
		return strings.Join(texts, "\n")
	}
	for _, p := range m.Parts {
		if s, ok := OnlyText(p); ok {
			return s
		}
	}
	return ""
}

// OnlyText gives the text of a part that is text, a JSON string, or a JSON
// object whose only member is a string named "text" or "message".
func OnlyText(p Part) (string, bool) {
	if p.IsText() {
		return string(p.Data), true
	}
	if !p.IsJSON() {
		return "", false
	}
	var s string
	if len(p.Data) > 0 && p.Data[0] == '"' {
		if json.Unmarshal(p.Data, &s) != nil {
			return "", false
		}
		return s, true
	}
	var o map[string]json.RawMessage
	if json.Unmarshal(p.Data, &o) != nil || len(o) != 1 {
		return "", false
	}
	for _, k := range []string{"text", "message"} {
		if v, ok := o[k]; ok && len(v) > 0 && v[0] == '"' && json.Unmarshal(v, &s) == nil {
			return s, true
		}
	}
	return "", false
}

// ContentSize is the size of the message's content: the bytes of all its parts.
func (m *Message) ContentSize() (n int) {
	for _, p := range m.Parts {
		n += len(p.Data)
	}
	return n
}

// Recipients are the agents that get the message: To, then the rest of the Audience in
// its order, without From.
func (m *Message) Recipients() []string {
	var out []string
	if m.To != "" {
		out = append(out, m.To)
	}
	for _, a := range m.Audience {
		if a != m.From && a != m.To {
			out = append(out, a)
		}
	}
	return out
}

// An Envelope is a message in the form of one protocol, as it is on the wire.
// The envelope types of the protocol packages satisfy it.
type Envelope interface {
	Raw() []byte // the exact bytes; not to be changed
}
