package uagents

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/parley-hub/parley/internal/jsonx"
)

// The digests of messages that the library knows (models.py, contrib/protocols).
const (
	ErrorMessageDigest         = "model:94cb082f79871c5e80a20637f935d233f0ce11a135d5a3a3c6071e81102a84d5"
	ChatMessageDigest          = "model:2601825997203ee07dbb9ff6e7c71ae7bdaf6a7c8b817361f2f88f4b29c68d0c"
	ChatAcknowledgementDigest  = "model:741eb75692abbeb43c131e364ad939af23f14e8288ba0ec3df130843ef79bd7f"
	ChatProtocolDigest         = "proto:30a801ed3a83f9a0ff0a9f1e6fe958cb91da1fc2218b153df7b6cbf87bd33d62"
	PaymentProtocolDigest      = "proto:8366fb54e20694cf49bae915893510a01782fc995b5d2bf7d7a5acfbc76dcb81"
	PaymentSellerDigest        = "proto:74bbe17d083d81bf3afb28af299aa285d3bf800ac264775923cdd3cb7b47d069"
	PaymentBuyerDigest         = "proto:0a80568ab5e6efbe55d6e5cf44ce879c061830f58c446772487cf91620b67c02"
	SubscriptionProtocolDigest = "proto:50b0a34e43c97222dd02376d8daebdb8f51954492330d722dbe5227f85a610f2"
)

// ErrorMessage may answer any message; it is never answered.
type ErrorMessage struct {
	Error string `json:"error"`
}

// ModelDoc implements [Documented].
func (ErrorMessage) ModelDoc() (string, string) { return "", "Error message model" }

// NewErrorMessage is an ErrorMessage with that text.
func NewErrorMessage(text string) Message {
	b, err := pyDefault.write(nil, object("error", strings.ToValidUTF8(text, "\ufffd")))
	return Message{Schema: ErrorMessageDigest, Payload: b, err: err}
}

// IsError reports whether the message is an ErrorMessage, and its text.
func (m Message) IsError() (string, bool) {
	if m.Schema != ErrorMessageDigest {
		return "", false
	}
	n, err := parse(m.Payload)
	if err != nil {
		return "", true
	}
	return n.get("error").str(), true
}

// Err says why the message could not be made; nil for a usable message.
func (m Message) Err() error { return m.err }

// AgentChatProtocol 0.3.0, which Agentverse and ASI:One speak.

// ChatMessage is one message of a chat.
type ChatMessage struct {
	Timestamp Timestamp `json:"timestamp"`
	MsgID     string    `json:"msg_id" schema:"format=uuid4"`
	Content   []Content `json:"content"`

	duplicate bool
}

// Duplicate reports whether the text named a member twice, at any depth. The last
// one counts, as in Python.
func (m *ChatMessage) Duplicate() bool { return m.duplicate }

// ChatAcknowledgement tells the sender of a ChatMessage that it arrived. A recipient
// acknowledges every ChatMessage, before it answers.
type ChatAcknowledgement struct {
	Timestamp         Timestamp          `json:"timestamp"`
	AcknowledgedMsgID string             `json:"acknowledged_msg_id" schema:"format=uuid4"`
	Metadata          *map[string]string `json:"metadata"`
}

// The kinds of content, in the order in which the decoder tries them.
const (
	TypeText         = "text"
	TypeResource     = "resource"
	TypeMetadata     = "metadata"
	TypeStartSession = "start-session"
	TypeEndSession   = "end-session"
	TypeStartStream  = "start-stream"
	TypeEndStream    = "end-stream"
)

// Content is one item of a chat message. Type says which fields count.
type Content struct {
	Type       string
	Text       string            // text
	ResourceID string            // resource: UUID v4
	Resources  []Resource        // resource
	List       bool              // resource: a single one is written as an array too
	Metadata   map[string]string // metadata
	StreamID   string            // start-stream, end-stream: UUID v4
}

// Resource points to something outside the message.
type Resource struct {
	URI      string            `json:"uri"`
	Metadata map[string]string `json:"metadata"`
}

// Text is a content of text, Markdown allowed.
func Text(s string) Content { return Content{Type: TypeText, Text: s} }

// Metadata is a content of names and values.
func Metadata(m map[string]string) Content { return Content{Type: TypeMetadata, Metadata: m} }

// ResourceOf is a content that points to one resource.
func ResourceOf(id string, r ...Resource) Content {
	return Content{Type: TypeResource, ResourceID: id, Resources: r}
}

// StartSession opens a chat; EndSession closes it.
func StartSession() Content { return Content{Type: TypeStartSession} }

// EndSession closes a chat.
func EndSession() Content { return Content{Type: TypeEndSession} }

// NewChat is a chat message of now with a fresh id.
func NewChat(now time.Time, content ...Content) ChatMessage {
	if content == nil {
		content = []Content{}
	}
	return ChatMessage{Timestamp: Timestamp{now.UTC(), false}, MsgID: uuid.NewString(), Content: content}
}

// Acknowledge is the acknowledgement of m. UAG-065.
func (m *ChatMessage) Acknowledge(now time.Time) ChatAcknowledgement {
	return ChatAcknowledgement{Timestamp: Timestamp{now.UTC(), false}, AcknowledgedMsgID: m.MsgID}
}

// Text is all text content in one string.
func (m *ChatMessage) Text() string {
	var s strings.Builder
	for _, c := range m.Content {
		if c.Type == TypeText {
			s.WriteString(c.Text)
		}
	}
	return s.String()
}

// Ends reports whether the message closes the chat.
func (m *ChatMessage) Ends() bool {
	return slices.ContainsFunc(m.Content, func(c Content) bool { return c.Type == TypeEndSession })
}

// Message encodes the chat message.
func (m ChatMessage) Message() Message {
	content, size := list(), 128
	for _, c := range m.Content {
		n, err := c.node()
		if err != nil {
			return Message{err: ErrContent.Because(err)}
		}
		content.vals = append(content.vals, n)
		size += 64 + len(c.Text)
	}
	return ModelOf[ChatMessage]().messageOf(&node{kind: '{', keys: []string{"timestamp", "msg_id", "content"},
		vals: []*node{str(m.Timestamp.String()), str(m.MsgID), content}}, size)
}

// Message encodes the acknowledgement.
func (a ChatAcknowledgement) Message() Message {
	metadata := null()
	if a.Metadata != nil {
		metadata = stringMap(*a.Metadata)
	}
	return ModelOf[ChatAcknowledgement]().messageOf(&node{kind: '{',
		keys: []string{"timestamp", "acknowledged_msg_id", "metadata"},
		vals: []*node{str(a.Timestamp.String()), str(a.AcknowledgedMsgID), metadata}}, 256)
}

// ChatProtocol is AgentChatProtocol 0.3.0.
func ChatProtocol() *Protocol {
	message, ack := ModelOf[ChatMessage](), ModelOf[ChatAcknowledgement]()
	return &Protocol{
		Name: "AgentChatProtocol", Version: "0.3.0",
		Interactions: []Interaction{{message, []*Model{ack}}, {ack, nil}},
	}
}

// UnionOf implements [Union]: the shapes of content, for the schema.
func (Content) UnionOf() []any {
	type TextContent struct {
		Type string `json:"type" schema:"enum=text"`
		Text string `json:"text"`
	}
	type ResourceContent struct {
		Type       string        `json:"type" schema:"enum=resource"`
		ResourceID string        `json:"resource_id" schema:"format=uuid4"`
		Resource   resourceUnion `json:"resource"`
	}
	type MetadataContent struct {
		Type     string            `json:"type" schema:"enum=metadata"`
		Metadata map[string]string `json:"metadata"`
	}
	type StartSessionContent struct {
		Type string `json:"type" schema:"enum=start-session"`
	}
	type EndSessionContent struct {
		Type string `json:"type" schema:"enum=end-session"`
	}
	type StartStreamContent struct {
		Type     string `json:"type" schema:"enum=start-stream"`
		StreamID string `json:"stream_id" schema:"format=uuid4"`
	}
	type EndStreamContent struct {
		Type     string `json:"type" schema:"enum=end-stream"`
		StreamID string `json:"stream_id" schema:"format=uuid4"`
	}
	return []any{TextContent{}, ResourceContent{}, MetadataContent{}, StartSessionContent{}, EndSessionContent{},
		StartStreamContent{}, EndStreamContent{}}
}

type resourceUnion struct{}

func (resourceUnion) UnionOf() []any { return []any{Resource{}, []Resource{}} }

// MarshalJSON writes exactly the keys of the content's type: any other key stops the
// reference agent.
func (c Content) MarshalJSON() ([]byte, error) {
	n, err := c.node()
	if err != nil {
		return nil, err
	}
	return pyCompact.write(nil, n)
}

func (c *Content) node() (*node, error) {
	n := object("type", c.Type)
	switch c.Type {
	case TypeText:
		n.set("text", str(c.Text))
	case TypeResource:
		n.set("resource_id", str(c.ResourceID))
		all := list()
		for _, r := range c.Resources {
			one := object("uri", r.URI)
			one.set("metadata", stringMap(r.Metadata))
			all.vals = append(all.vals, one)
		}
		if len(all.vals) == 1 && !c.List {
			n.set("resource", all.vals[0])
		} else {
			n.set("resource", all)
		}
	case TypeMetadata:
		n.set("metadata", stringMap(c.Metadata))
	case TypeStartStream, TypeEndStream:
		n.set("stream_id", str(c.StreamID))
	case TypeStartSession, TypeEndSession:
	default:
		return nil, fmt.Errorf("unknown content type %q", c.Type)
	}
	return n, nil
}

// UnmarshalJSON reads a content as [DecodeChatMessage] does.
func (c *Content) UnmarshalJSON(b []byte) error {
	n, err := parse(b)
	if err != nil {
		return err
	}
	*c, err = contentOf(n)
	return err
}

func stringMap(m map[string]string) *node {
	n := &node{kind: '{'}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		n.set(strings.ToValidUTF8(k, "\ufffd"), str(m[k]))
	}
	return n
}

// DecodeChatMessage reads the text of a ChatMessage. Like the reference it takes times
// in all forms of [ParseTimestamp], numbers in place of texts, a content without type
// (the first kind that fits), and of members with the same name the last. It refuses
// with ErrContent: unknown keys and types, which stop the reference's message loop, and
// a missing timestamp or msg_id, which the reference would make up.
func DecodeChatMessage(text []byte) (*ChatMessage, error) {
	m, duplicate, err := decodeChat(text, chatOf)
	if err != nil {
		return nil, err
	}
	m.duplicate = duplicate
	return m, nil
}

// DecodeChatAcknowledgement reads the text of a ChatAcknowledgement, as strictly as
// [DecodeChatMessage].
func DecodeChatAcknowledgement(text []byte) (*ChatAcknowledgement, error) {
	a, _, err := decodeChat(text, acknowledgementOf)
	return a, err
}

func decodeChat[T any](text []byte, of func(*node) (*T, error)) (m *T, duplicate bool, err error) {
	n, duplicate, err := parseChat(text)
	if err == nil {
		m, err = of(n)
	}
	if err != nil {
		return nil, false, ErrContent.Because(err)
	}
	return m, duplicate, nil
}

// strictOf gives the rules that the reference's class of a digest has beyond its
// schema; nil: none.
func strictOf(digest string) func(*node) error {
	switch digest {
	case ChatMessageDigest:
		return func(n *node) error { _, err := chatOf(n); return err }
	case ChatAcknowledgementDigest:
		return func(n *node) error { _, err := acknowledgementOf(n); return err }
	}
	return nil
}

// members checks that n is an object of these members; the names before "?" are required.
func members(n *node, names ...string) error {
	if n.kind != '{' {
		return &FieldError{[]string{"__root__"}, "expected dict", "type_error"}
	}
	required := true
	for _, name := range names {
		if name == "?" {
			required = false
		} else if required && n.get(name) == nil {
			return &FieldError{[]string{name}, "field required", "value_error.missing"}
		}
	}
	for _, k := range n.keys {
		if !slices.Contains(names, k) {
			return &FieldError{[]string{k}, "unexpected key", "type_error"}
		}
	}
	return nil
}

func chatOf(n *node) (*ChatMessage, error) {
	if err := members(n, "timestamp", "msg_id", "content"); err != nil {
		return nil, err
	}
	m := &ChatMessage{Content: []Content{}}
	var err error
	if m.Timestamp, err = datetimeOf(n, "timestamp"); err != nil {
		return nil, err
	}
	if m.MsgID, err = uuid4Of(n, "msg_id"); err != nil {
		return nil, err
	}
	content := n.get("content")
	if content.kind != '[' {
		return nil, &FieldError{[]string{"content"}, "value is not a valid list", "type_error.list"}
	}
	for i, one := range content.vals {
		c, err := contentOf(one)
		if err != nil {
			return nil, fmt.Errorf("content %d: %w", i, err)
		}
		m.Content = append(m.Content, c)
	}
	return m, nil
}

func acknowledgementOf(n *node) (*ChatAcknowledgement, error) {
	if err := members(n, "timestamp", "acknowledged_msg_id", "?", "metadata"); err != nil {
		return nil, err
	}
	a := &ChatAcknowledgement{}
	var err error
	if a.Timestamp, err = datetimeOf(n, "timestamp"); err != nil {
		return nil, err
	}
	if a.AcknowledgedMsgID, err = uuid4Of(n, "acknowledged_msg_id"); err != nil {
		return nil, err
	}
	if m := n.get("metadata"); m != nil && m.kind != 'n' {
		values, err := stringsOf(n, "metadata")
		if err != nil {
			return nil, err
		}
		a.Metadata = &values
	}
	return a, nil
}

func contentOf(n *node) (Content, error) {
	if n.kind != '{' {
		return Content{}, &FieldError{[]string{"content"}, "value is not a valid dict", "type_error.dict"}
	}
	types := []string{TypeText, TypeResource, TypeMetadata, TypeStartSession, TypeEndSession, TypeStartStream,
		TypeEndStream}
	if t := n.get("type"); t != nil {
		if !slices.Contains(types, t.str()) {
			return Content{}, &FieldError{[]string{"type"}, "unexpected value", "value_error.const"}
		}
		return contentAs(t.str(), n)
	}
	var last error
	for _, t := range types {
		c, err := contentAs(t, n)
		if err == nil {
			return c, nil
		}
		last = err
	}
	return Content{}, last
}

func contentAs(kind string, n *node) (Content, error) {
	c := Content{Type: kind}
	var err error
	switch kind {
	case TypeText:
		if err = members(n, "text", "?", "type"); err == nil {
			c.Text, err = stringOf(n, "text")
		}
	case TypeResource:
		if err = members(n, "resource_id", "resource", "?", "type"); err != nil {
			break
		}
		if c.ResourceID, err = uuid4Of(n, "resource_id"); err == nil {
			c.Resources, c.List, err = resourcesOf(n.get("resource"))
		}
	case TypeMetadata:
		if err = members(n, "metadata", "?", "type"); err == nil {
			c.Metadata, err = stringsOf(n, "metadata")
		}
	case TypeStartStream, TypeEndStream:
		if err = members(n, "stream_id", "?", "type"); err == nil {
			c.StreamID, err = uuid4Of(n, "stream_id")
		}
	default:
		err = members(n, "?", "type")
	}
	return c, err
}

func resourcesOf(n *node) ([]Resource, bool, error) {
	if n.kind != '[' {
		r, err := resourceOf(n)
		return []Resource{r}, false, err
	}
	all := []Resource{}
	for _, one := range n.vals {
		r, err := resourceOf(one)
		if err != nil {
			return nil, false, err
		}
		all = append(all, r)
	}
	return all, true, nil
}

// resourceOf reads a resource, the one object whose unknown keys are ignored.
func resourceOf(n *node) (r Resource, err error) {
	if n.kind != '{' {
		return r, &FieldError{[]string{"resource"}, "value is not a valid dict", "type_error.dict"}
	}
	if r.URI, err = stringOf(n, "uri"); err == nil {
		r.Metadata, err = stringsOf(n, "metadata")
	}
	return r, err
}

func stringOf(n *node, name string) (string, error) {
	if m := n.get(name); m != nil {
		if s, ok := asString(m); ok {
			return s, nil
		}
	}
	return "", &FieldError{[]string{name}, "str type expected", "type_error.str"}
}

func datetimeOf(n *node, name string) (Timestamp, error) {
	t, err := timestampOf(n.get(name))
	if err != nil {
		err = &FieldError{[]string{name}, "invalid datetime format", "value_error.datetime"}
	}
	return t, err
}

func uuid4Of(n *node, name string) (string, error) {
	u, ok := pyUUID(n.get(name))
	if !ok || pyUUIDVersion(u) != 4 {
		return "", &FieldError{[]string{name}, "value is not a valid uuid", "type_error.uuid"}
	}
	return uuidText(u), nil
}

func stringsOf(n *node, name string) (map[string]string, error) {
	m := n.get(name)
	if m == nil || m.kind != '{' {
		return nil, &FieldError{[]string{name}, "value is not a valid dict", "type_error.dict"}
	}
	out := make(map[string]string, len(m.keys))
	for _, k := range m.keys {
		s, err := stringOf(m, k)
		if err != nil {
			return nil, err
		}
		out[k] = s
	}
	return out, nil
}

// Bind decodes the message into v, ignoring unknown members. The error is
// ErrContent.
func (m Message) Bind(v any) error {
	if m.err != nil {
		return m.err
	}
	if len(m.Payload) == 0 {
		return ErrContent.Because(errors.New("message is empty"))
	}
	if err := jsonx.Decode(m.Payload, v); err != nil {
		return ErrContent.Because(err)
	}
	return nil
}

// ChatHandler makes a [Handler] of the chat protocol: it acknowledges every ChatMessage
// at once, then calls reply and sends its answer as another ChatMessage in the same
// session; nil means no answer. Acknowledgements get no reply. UAG-065.
func ChatHandler(
	now func() time.Time,
	reply func(ctx context.Context, r *Request, m *ChatMessage) (*ChatMessage, error),
) Handler {
	if now == nil {
		now = time.Now
	}
	return func(ctx context.Context, r *Request) (Response, error) {
		switch r.SchemaDigest {
		case ChatAcknowledgementDigest:
			return Response{}, nil
		case ChatMessageDigest:
		default:
			return Response{}, ErrUnknownModel
		}
		m, err := r.Chat()
		if err != nil {
			return Response{}, err
		}
		return Response{
			Message: m.Acknowledge(now()).Message(),
			After: func(ctx context.Context) {
				answer, err := reply(ctx, r, m)
				out := Message{}
				switch {
				case err != nil:
					out = r.server.messageOf(r, Message{}, err)
				case answer != nil:
					out = answer.Message()
				default:
					return
				}
				if err := r.Send(ctx, out); err != nil {
					r.server.log().
						Warn("uagents: chat answer not delivered", "to", r.Sender, "session", r.Session, "error", err)
				}
			},
		}, nil
	}
}
