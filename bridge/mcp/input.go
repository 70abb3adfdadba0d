package mcp

import (
	"cmp"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/bridge/follow"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/journal"
)

// Questions of agents, which clients answer by elicitation. The result of the call has the question, and a state that
// the client gives back with the answer, in a call that is the same otherwise. Clients of the handshake revisions are
// asked by the SDK, which then calls again, once.

// abilities are what the hub knows of a client: what it declares counts.
type abilities struct {
	modern    bool // results and inputs have the form of 2026-07-28
	form, url bool // modes of elicitation that it offers now
	choices   bool // a form may have titled choices, and several of them, as since 2025-11-25
}

// abilitiesOf reads what a client declared: in each request since 2026-07-28, before it at the start of the session.
func abilitiesOf(t *toolCall) (c abilities) {
	var declared *mcp.ElicitationCapabilities
	if v, _ := t.params.Meta[mcp.MetaKeyProtocolVersion].(string); v >= statelessRevision {
		c.modern, c.choices = true, true
		var capabilities mcp.ClientCapabilities
		b, err := json.Marshal(t.params.Meta[mcp.MetaKeyClientCapabilities])
		if err == nil && json.Unmarshal(b, &capabilities) == nil {
			declared = capabilities.Elicitation
		}
	} else if p := t.session.InitializeParams(); p != nil {
		c.choices = p.ProtocolVersion >= "2025-11-25"
		if p.Capabilities != nil && p.ProtocolVersion < statelessRevision &&
			t.params.RequestState == "" { // else the SDK does not ask the client
			declared = p.Capabilities.Elicitation
		}
	}
	if declared != nil {
		c.url = declared.URL != nil
		c.form = declared.Form != nil || !c.url
	}
	return c
}

// authRequired is the act of an event with which an agent asks for an authorization.
const authRequired = "auth-required"

const (
	inputName   = "input"  // of the one question of a result
	answerName  = "answer" // of the member of a form that asks for text
	maxQuestion = 1000     // characters
	stateLife   = 10 * time.Minute
)

// question gives the result that asks the client for input.
func (e *clientCall) question() (*mcp.CallToolResult, error) {
	m := e.asked.Message
	auth, link := m.Act == authRequired || asksSecret(m), linkOf(m)
	message := fmt.Sprintf("Agent %q asks: %s", m.From, shownText(questionOf(m, e.can.choices), maxQuestion))
	ask := &mcp.ElicitParams{Mode: "form", Message: message, RequestedSchema: formOf(m, e.can.choices)}
	switch {
	case auth && e.can.url && link != "":
		ask = &mcp.ElicitParams{Mode: "url", Message: message, URL: link, ElicitationID: m.ID.String()}
	case auth || !e.can.form:
		return e.untold(message, auth, link), nil
	}
	state, err := e.seal()
	if err != nil {
		return nil, err
	}
	if !e.can.modern {
		e.b.calls.asks(e)
	}
	return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{inputName: ask}, RequestState: state}, nil
}

// untold is the question as text, for a client that cannot be asked, with what to do.
func (e *clientCall) untold(message string, auth bool, link string) *mcp.CallToolResult {
	then := fmt.Sprintf("Then call %s with {\"id\": %q} for the answer.", toolResult, e.id)
	var todo string
	switch {
	case auth && link != "":
		todo = fmt.Sprintf("It needs an authorization. The user must open %s and decide there; give no password or token "+
			"to a tool. ", bridge.Shorten(link, maxQuestion))
	case auth:
		todo = "It needs an authorization. The user must give it to the agent itself; give no password or token to a tool. "
	default:
		at := ""
		if e.t.caller.agent != "" {
			at = " of the hub's endpoint " + e.b.public.JoinPath(Base).String()
		}
		todo = fmt.Sprintf("Answer with the tool %s%s: {\"agent\": %q, \"in_reply_to\": %q, \"content\": …}. ", toolSend,
			at, e.to, e.id)
	}
	r := &mcp.CallToolResult{IsError: true, Content: oneText("%s\n%s%s", message, todo, then)}
	e.name(r)
	return r
}

// questionOf gives the text of a question; the schema of a form is no text.
func questionOf(m *parley.Message, choices bool) string {
	asks := *m
	asks.Parts = nil
	for _, p := range m.Parts {
		if formSchema(&p, choices) == nil {
			asks.Parts = append(asks.Parts, p)
		}
	}
	asks.State = parley.NoState
	if t := strings.TrimSpace(eventText(&asks)); t != "" {
		return t
	}
	return "it needs more input"
}

// linkOf gives the web address of a question; "" if it has none. The hub does not open it.
func linkOf(m *parley.Message) string {
	for _, p := range m.Parts {
		u, err := url.Parse(p.URI)
		if err == nil && u.Host != "" && u.User == nil && (u.Scheme == "https" || u.Scheme == "http") {
			return p.URI
		}
	}
	return ""
}

// textForm asks for one text.
var textForm = json.RawMessage(`{"type":"object","properties":{"` + answerName +
	`":{"type":"string"}},"required":["` + answerName + `"]}`)

// formOf gives the schema of the answer to a question: the question's own if a form can ask for it.
func formOf(m *parley.Message, choices bool) json.RawMessage {
	for i := range m.Parts {
		if s := formSchema(&m.Parts[i], choices); s != nil {
			return s
		}
	}
	return textForm
}

// asksSecret reports whether the schema of a question marks a secret, which no form may ask for.
func asksSecret(m *parley.Message) bool {
	for _, p := range m.Parts {
		var s struct {
			Properties map[string]struct {
				Format    string `json:"format"`
				WriteOnly bool   `json:"writeOnly"`
			} `json:"properties"`
		}
		if !p.IsJSON() || json.Unmarshal(p.Data, &s) != nil {
			continue
		}
		for _, property := range s.Properties {
			if property.WriteOnly || property.Format == "password" {
				return true
			}
		}
	}
	return false
}

// Bounds of a form.
const (
	maxFields  = 32
	maxChoices = 100
	maxLabel   = 300 // characters
)

// formField is a property of a form: a primitive value or some choices, with the keywords that elicitation knows.
type formField struct {
	Type        string          `json:"type"`
	Title       string          `json:"title,omitzero"`
	Description string          `json:"description,omitzero"`
	Format      string          `json:"format,omitzero"`
	MinLength   *int            `json:"minLength,omitzero"`
	MaxLength   *int            `json:"maxLength,omitzero"`
	Minimum     json.RawMessage `json:"minimum,omitzero"`
	Maximum     json.RawMessage `json:"maximum,omitzero"`
	Enum        []string        `json:"enum,omitzero"`
	EnumNames   []string        `json:"enumNames,omitzero"`
	OneOf       []formChoice    `json:"oneOf,omitzero"`
	Items       *formItems      `json:"items,omitzero"`
	MinItems    *int            `json:"minItems,omitzero"`
	MaxItems    *int            `json:"maxItems,omitzero"`
	Default     json.RawMessage `json:"default,omitzero"`
}

type formChoice struct {
	Const string `json:"const"`
	Title string `json:"title"`
}

// formItems are the choices of which an answer has several.
type formItems struct {
	Type  string       `json:"type,omitzero"`
	Enum  []string     `json:"enum,omitzero"`
	AnyOf []formChoice `json:"anyOf,omitzero"`
}

// formFormats are those that elicitation knows.
var formFormats = map[string]bool{"": true, "email": true, "uri": true, "date": true, "date-time": true}

// fit gives a field the form that clients know; false: there is none.
func (f *formField) fit(choices bool) bool {
	f.Title, f.Description = shownText(f.Title, maxLabel), shownText(f.Description, maxLabel)
	switch {
	case !formFormats[f.Format]:
		return false
	case f.Type == "array":
		return choices && f.Enum == nil && f.OneOf == nil && f.Items.fit() && count(f.MinItems) && count(f.MaxItems)
	}
	f.Items, f.MinItems, f.MaxItems = nil, nil, nil
	switch f.Type {
	case "string":
	case "number", "integer", "boolean":
		return f.Enum == nil && f.EnumNames == nil && f.OneOf == nil
	default:
		return false
	}
	if f.EnumNames != nil && len(f.EnumNames) != len(f.Enum) || f.Enum != nil && f.OneOf != nil ||
		f.OneOf != nil && !titled(f.OneOf) {
		return false
	}
	if !choices { // the same in the words of 2025-06-18
		for _, c := range f.OneOf {
			f.Enum, f.EnumNames = append(f.Enum, c.Const), append(f.EnumNames, c.Title)
		}
		f.OneOf = nil
	}
	for i, name := range f.EnumNames {
		f.EnumNames[i] = shownText(name, maxLabel)
	}
	return len(f.Enum) <= maxChoices && !slices.ContainsFunc(f.Enum, unfitChoice)
}

func (x *formItems) fit() bool {
	switch {
	case x == nil || x.Type != "" && x.Type != "string":
		return false
	case x.AnyOf != nil:
		x.Type = ""
		return x.Enum == nil && titled(x.AnyOf)
	}
	x.Type = "string"
	return len(x.Enum) > 0 && len(x.Enum) <= maxChoices && !slices.ContainsFunc(x.Enum, unfitChoice)
}

func count(n *int) bool { return n == nil || *n >= 0 }

// titled gives choices their titles, and reports whether they are choices.
func titled(choices []formChoice) bool {
	seen := map[string]bool{"": true} // clients refuse an empty value
	for i, c := range choices {
		if i == maxChoices || seen[c.Const] || unfitChoice(c.Const) {
			return false
		}
		seen[c.Const] = true
		choices[i].Title = cmp.Or(shownText(c.Title, maxLabel), c.Const)
	}
	return len(choices) > 0
}

// unfitChoice reports whether a value cannot be shown: it is given back as it is, so it is neither cleaned nor cut.
func unfitChoice(value string) bool { return shownText(value, maxLabel) != value }

// formSchema gives a part's JSON Schema in the form of elicitation: a flat object of primitive values and choices; nil:
// it is no such schema, or has choices for which the client's revision has no form.
func formSchema(p *parley.Part, choices bool) json.RawMessage {
	if !p.IsJSON() || p.URI != "" {
		return nil
	}
	var s struct {
		Type       string               `json:"type"`
		Properties map[string]formField `json:"properties"`
		Required   []string             `json:"required,omitempty"`
	}
	if jsonx.Decode(p.Data, &s) != nil || s.Type != "object" || len(s.Properties) == 0 || len(s.Properties) > maxFields {
		return nil
	}
	for name, f := range s.Properties {
		if len(name) > maxLabel || !f.fit(choices) {
			return nil
		}
		s.Properties[name] = f
	}
	for _, name := range s.Required {
		if _, ok := s.Properties[name]; !ok {
			return nil
		}
	}
	b, err := json.Marshal(s)
	if err != nil {
		return nil
	}
	return b
}

// resume continues the call whose question the client answers. A state that was used before, or by a call at the same
// time, changes nothing: the call waits for the answer of the same request (rule MCP-042).
func (e *clientCall) resume(ctx context.Context) (*mcp.CallToolResult, error) {
	s, ok := e.unseal(e.t.params.RequestState)
	if !ok || !e.b.c.Now().Before(s.expires) {
		return nil, badParams("requestState: the hub did not give it for this call, or it has expired; call again without it")
	}
	switch err := e.open(ctx, s.request); {
	case errors.Is(err, follow.ErrNotFound):
		return nil, badParams("requestState: its request was erased; call again without it")
	case err != nil:
		return nil, err
	case e.withdrawn(ctx), e.asked == nil || e.asked.Position.Sequence != s.question:
		return nil, nil
	}
	response, ok := e.t.params.InputResponses[inputName]
	if !ok {
		return e.question() // rule MCP-041: a missing answer is asked again
	}
	r, ok := response.(*mcp.ElicitResult)
	if !ok {
		return nil, badParams("inputResponses." + inputName + ": it is no answer to an elicitation")
	}
	if r.Action == "" && e.b.streaming.Err() != nil { // the hub stops, and ended the question
		e.asked = nil
		return nil, nil
	}
	key := journal.Key{ID: fmt.Sprintf("question %s %d", s.request, s.question), Sender: e.t.caller.Name,
		Until: bridge.KeyEnd(s.expires)}
	var err error
	switch r.Action {
	case "accept":
		err = e.input(ctx, r, key)
	case "decline", "cancel":
		if err = e.cancel(context.WithoutCancel(ctx), key); err == nil {
			result := failedResult(parley.Refuse(parley.Cancelled, "the request was cancelled: the user did not answer the "+
				"question of agent %q (%s)", e.to, r.Action))
			e.name(result)
			return result, nil
		}
	default:
		err = badParams("inputResponses." + inputName + ".action: want accept, decline or cancel")
	}
	if _, used := errors.AsType[*hub.Prior](err); !used && err != nil && parley.CodeOf(err) != parley.Conflict {
		return nil, err
	}
	e.asked = nil // also by an earlier answer, or the request has ended meanwhile: then its records come
	return nil, nil
}

// input records the answer to a question.
func (e *clientCall) input(ctx context.Context, r *mcp.ElicitResult, key journal.Key) error {
	question := e.asked.Message
	m := e.from(parley.Input)
	m.To, m.InReplyTo = e.to, e.id
	content := "inputResponses." + inputName + ".content"
	switch form := formOf(question, e.can.choices); {
	case question.Act == authRequired || asksSecret(question):
		m.Parts = []parley.Part{parley.Text("The user agreed to open the address.")}
	case string(form) == string(textForm):
		answer, ok := r.Content[answerName].(string)
		if !ok {
			return badParams(content + "." + answerName + ": want a text")
		}
		m.Parts = []parley.Part{parley.Text(answer)}
	default:
		b, err := json.Marshal(r.Content)
		if err != nil {
			return badParams(content + ": want an object")
		}
		if err := hub.CheckContent(form, b); err != nil {
			return badParams(content + ": " + err.Error())
		}
		m.Parts = []parley.Part{jsonPart(b)}
	}
	_, err := e.b.c.Hub.Accept(context.WithoutCancel(ctx), hub.Submission{Message: m, Scope: callScope(m.To, m.From),
		Key: key})
	return err
}

// A callState is what a client carries from a question to its answer, sealed.
type callState struct {
	request  parley.ID
	question uint64 // sequence of the event
	expires  time.Time
}

const stateSize = 16 + 8 + 8

// seal gives the state of the open question, bound to the caller, the tool and the arguments.
func (e *clientCall) seal() (string, error) {
	aead, err := e.aead()
	if err != nil {
		return "", err
	}
	b := make([]byte, aead.NonceSize(), aead.NonceSize()+stateSize+aead.Overhead())
	if _, err := io.ReadFull(e.b.c.Rand, b); err != nil {
		return "", parley.Refuse(parley.Internal, "internal error").Because(err)
	}
	plain := append(make([]byte, 0, stateSize), e.id[:]...)
	plain = binary.BigEndian.AppendUint64(plain, e.asked.Position.Sequence)
	plain = binary.BigEndian.AppendUint64(plain, uint64(e.b.c.Now().Add(stateLife).Unix()))
	return base64.RawURLEncoding.EncodeToString(aead.Seal(b, b, plain, e.bound())), nil
}

// unseal reads a state that a client gave; false: the hub did not make it for this call.
func (e *clientCall) unseal(text string) (s callState, ok bool) {
	aead, err := e.aead()
	if err != nil {
		return s, false
	}
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(b) != aead.NonceSize()+stateSize+aead.Overhead() {
		return s, false
	}
	plain, err := aead.Open(nil, b[:aead.NonceSize()], b[aead.NonceSize():], e.bound())
	if err != nil {
		return s, false
	}
	copy(s.request[:], plain)
	s.question = binary.BigEndian.Uint64(plain[16:])
	s.expires = time.Unix(int64(binary.BigEndian.Uint64(plain[24:])), 0)
	return s, true
}

// bound is what a state is bound to.
func (e *clientCall) bound() []byte { return []byte(e.t.caller.user() + "\n" + argumentsDigest(e.t)) }

func (e *clientCall) aead() (cipher.AEAD, error) {
	key, err := e.b.c.Keys.Secret("mcp state", 32)
	if err != nil {
		return nil, parley.Refuse(parley.Internal, "internal error").Because(err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, parley.Refuse(parley.Internal, "internal error").Because(err)
	}
	return cipher.NewGCM(block)
}
