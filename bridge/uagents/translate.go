package uagents

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/jsonx"
	protocol "github.com/parley-hub/parley/uagents"
)

// Protocol is this protocol's short name.
const Protocol = "uagents"

// foreignSession is the key of an envelope's session in parley.Trace.Foreign.
const foreignSession = "uagents.session"

// mediaJSON is the media type of a message of a model other than the chat's.
const mediaJSON = "application/json"

// class is the kind of an envelope, by its schema digest.
type class int

const (
	other class = iota
	chat
	acknowledgement
	failure
)

func classOf(schema string) class {
	switch schema {
	case protocol.ChatMessageDigest:
		return chat
	case protocol.ChatAcknowledgementDigest:
		return acknowledgement
	case protocol.ErrorMessageDigest:
		return failure
	}
	return other
}

// toMessage translates a verified envelope without its content. from and to are
// directory names.
func toMessage(r *protocol.Request, kind parley.Kind, from, to string, received time.Time) *parley.Message {
	m := &parley.Message{
		Kind:   kind,
		From:   from,
		To:     to,
		Schema: r.SchemaDigest,
		Sent:   received,
		Hops:   bridge.HopsIn(r.Header.Get(bridge.ProvenanceHeader)),
		Trace:  parley.Trace{Foreign: map[string]string{foreignSession: r.Session}},
		Origin: parley.Origin{
			Protocol: Protocol,
			Peer:     r.Sender,
			Address:  r.Remote,
			Raw:      r.Raw(),
			Received: received,
			Verdict:  verdict(&r.Verdict),
		},
	}
	if at, ok := r.ExpiresAt(); ok {
		m.Expires = at
	}
	return m
}

func verdict(v *protocol.Verdict) parley.Verdict {
	out := parley.Verdict{KeyID: v.Key, Checks: make([]parley.Check, len(v.Checks))}
	if v.Assurance == protocol.Signed {
		out.Assurance = parley.Signed
	}
	for i, c := range v.Checks {
		out.Checks[i] = parley.Check{Name: c.Name, OK: c.OK}
	}
	return out
}

// toParts gives the content of an envelope: text, resources and metadata of a chat, the
// unchanged JSON of any other message. The rest of a chat message (streams, id) is in the
// extension.
func toParts(schema string, payload []byte) (parts []parley.Part, extension json.RawMessage, err error) {
	if classOf(schema) != chat {
		return []parley.Part{{MediaType: mediaJSON, Data: payload}}, nil, nil
	}
	m, err := protocol.DecodeChatMessage(payload)
	if err != nil {
		return nil, nil, err
	}
	return chatParts(m)
}

// partsOf is toParts of a request, which decodes a chat message only once.
func partsOf(r *protocol.Request) (parts []parley.Part, extension json.RawMessage, err error) {
	if classOf(r.SchemaDigest) != chat {
		return toParts(r.SchemaDigest, r.Content.Payload)
	}
	c, err := r.Chat()
	if err != nil {
		return nil, nil, err
	}
	return chatParts(c)
}

// answersNothing is the failure of a chat message without content as an answer.
func answersNothing() *parley.Error {
	return bridge.NotUnderstood(parley.Refuse(parley.HandlerFailed,
		"the agent answered with a chat message that has no content"), nil)
}

// chatParts is toParts of a chat message.
func chatParts(m *protocol.ChatMessage) (parts []parley.Part, extension json.RawMessage, err error) {
	x := chatExtension{MsgID: m.MsgID, Ends: m.Ends(), Duplicate: m.Duplicate()}
	var blocks []parley.Part
	for _, c := range m.Content {
		switch c.Type {
		case protocol.TypeText:
			parts = append(parts, parley.Text(c.Text))
		case protocol.TypeResource:
			for _, r := range c.Resources {
				parts = append(parts, resourcePart(r))
			}
		case protocol.TypeMetadata:
			if len(c.Metadata) == 0 {
				continue
			}
			b, err := jsonx.Encode(c.Metadata)
			if err != nil {
				return nil, nil, err
			}
			blocks = append(blocks, parley.Part{MediaType: mediaJSON, Data: b})
		case protocol.TypeStartSession:
			x.Starts = true
		case protocol.TypeStartStream, protocol.TypeEndStream:
			x.Streams = append(x.Streams, c.Type+" "+c.StreamID)
		}
	}
	attached := len(parts) > 0
	for _, b := range blocks {
		if attached {
			b.Name = metadataName
		}
		parts = append(parts, b)
	}
	extension, err = jsonx.Encode(x)
	return parts, extension, err
}

// metadataName is the name of a metadata block beside text or resources, as an
// attachment.
const metadataName = "metadata"

// chatExtension are the members of a chat message that have no field in the hub's message.
type chatExtension struct {
	MsgID   string   `json:"msg_id"`
	Starts  bool     `json:"start_session,omitzero"`
	Ends    bool     `json:"end_session,omitzero"`
	Streams []string `json:"streams,omitempty"`
	// Duplicate: a member name occurred twice; only the last value counts.
	Duplicate bool `json:"duplicate_members,omitzero"`
}

// Keys of a resource's metadata, as Agentverse's own tools use them.
const (
	metaType   = "mime_type"
	metaName   = "name"
	metaDigest = "digest"
)

func resourcePart(r protocol.Resource) parley.Part {
	p := parley.Part{URI: r.URI, MediaType: cmp.Or(r.Metadata[metaType], "application/octet-stream"),
		Name: r.Metadata[metaName], Digest: r.Metadata[metaDigest]}
	if rest, ok := strings.CutPrefix(r.URI, "data:"); ok {
		if head, data, ok := strings.Cut(rest, ","); ok {
			if media, ok := strings.CutSuffix(head, ";base64"); ok {
				if b, err := base64.StdEncoding.DecodeString(data); err == nil {
					p.URI, p.Data, p.MediaType = "", b, cmp.Or(media, p.MediaType)
				}
			}
		}
	}
	return p
}

// toChat translates a message for a recipient (of the directory) into a chat message.
// Data that is neither text nor JSON becomes a resource with a data: URI.
func toChat(m *parley.Message, recipient string, now time.Time, ends bool) (protocol.Message, []parley.Loss) {
	var content []protocol.Content
	for _, p := range m.Parts {
		switch text, ok := parley.OnlyText(p); {
		case ok:
			content = append(content, protocol.Text(text))
		case p.IsJSON():
			content = append(content, protocol.Text(compact(p.Data)))
		default:
			content = append(content, resourceOf(p))
		}
	}
	if ends {
		content = append(content, protocol.EndSession())
	}
	c := protocol.NewChat(now, content...)
	// The id is derived, so that a retry is the same chat message.
	c.MsgID = messageID(m.ID)
	return c.Message(), bridge.Losses(bridge.Chat, m, recipient)
}

// messageID derives the id of a chat message, a version 4 UUID, from a message's ID.
func messageID(id parley.ID) string {
	u := uuid.NewSHA1(uuid.NameSpaceOID, id[:])
	u[6] = u[6]&0x0f | 0x40
	return u.String()
}

func resourceOf(p parley.Part) protocol.Content {
	meta := map[string]string{}
	for k, v := range map[string]string{metaType: p.MediaType, metaName: p.Name, metaDigest: p.Digest} {
		if v != "" {
			meta[k] = v
		}
	}
	uri := p.URI
	if uri == "" {
		uri = "data:" + p.MediaType + ";base64," + base64.StdEncoding.EncodeToString(p.Data)
	}
	return protocol.ResourceOf(uuid.NewString(), protocol.Resource{URI: uri, Metadata: meta})
}

func compact(b []byte) string {
	var out bytes.Buffer
	if json.Compact(&out, b) != nil {
		return string(b)
	}
	return out.String()
}

// replyLosses are the losses of a reply in an HTTP response, which carries one answer, and
// no event except the acknowledgement of a chat message.
func replyLosses(reply, request *parley.Message) []parley.Loss {
	if reply.Origin.Protocol == Protocol && reply.Kind.Terminal() && len(reply.Origin.Raw) > 0 {
		return nil // another agent's answer is passed on unchanged
	}
	way := bridge.Model
	if (reply.Kind != parley.Event || reply.State == parley.Accepted) && classOf(request.Schema) == chat {
		way = bridge.Chat
	}
	return bridge.OfReply(reply.Kind, bridge.Losses(way, reply, request.From))
}

// toError translates a failure for an HTTP answer.
func toError(e *parley.Error) *protocol.Error {
	switch e.Code {
	case parley.UnknownAgent:
		return protocol.ErrUnknownAgent.Because(e)
	case parley.Unauthenticated:
		return protocol.ErrVerifiedOnly.Because(e)
	case parley.Stale:
		return protocol.ErrStale.Because(e)
	case parley.TooLarge:
		return protocol.ErrTooLarge.Because(e)
	case parley.TimedOut:
		return protocol.ErrTimeout.Because(e)
	case parley.InvalidContent:
		return protocol.ErrContent.Saying(e.Text).Because(e)
	case parley.UnknownSkill:
		return protocol.ErrUnknownModel.Saying(e.Text).Because(e)
	case parley.Forbidden:
		return protocol.ErrVerifiedOnly.Saying("You are not allowed to access this handler.").Because(e)
	case parley.RateLimited:
		out := protocol.ErrRate.Saying(e.Text).Because(e)
		out.After = e.After
		return out
	case parley.Unavailable, parley.NoSpace:
		out := protocol.ErrBusy.Because(e)
		out.After = e.After
		return out
	}
	return protocol.ErrHandler.Saying(e.Text).Because(e)
}

// toRefusal translates a refusal of the server for the hub.
func toRefusal(e *protocol.Error) *parley.Error {
	return parley.Refuse(refusalCode(e), "%s", e.Text).Because(e)
}

func refusalCode(e *protocol.Error) parley.Code {
	switch {
	case errors.Is(e, protocol.ErrStale), errors.Is(e, protocol.ErrHorizon):
		return parley.Stale
	case errors.Is(e, protocol.ErrUnknownAgent), errors.Is(e, protocol.ErrNotFound):
		return parley.UnknownAgent
	case errors.Is(e, protocol.ErrContent):
		return parley.InvalidContent
	case errors.Is(e, protocol.ErrUnknownModel):
		return parley.UnknownSkill
	case errors.Is(e, protocol.ErrTooLarge):
		return parley.TooLarge
	case errors.Is(e, protocol.ErrRate):
		return parley.RateLimited
	case errors.Is(e, protocol.ErrBusy):
		return parley.Unavailable
	case errors.Is(e, protocol.ErrUnsigned), errors.Is(e, protocol.ErrSignature), errors.Is(e, protocol.ErrText),
		errors.Is(e, protocol.ErrPadding),
		errors.Is(e, protocol.ErrAddress), errors.Is(e, protocol.ErrSignatureText),
		errors.Is(e, protocol.ErrUserAddress), errors.Is(e, protocol.ErrVerifiedOnly):
		return parley.Unauthenticated
	case errors.Is(e, protocol.ErrMailboxSync):
		return parley.Unsupported
	case errors.Is(e, protocol.ErrHandler):
		return parley.Internal
	}
	return parley.Malformed
}

// failureText is the text of an ErrorMessage for a failure.
func failureText(e *parley.Error) string {
	switch {
	case e == nil:
		return "the agent failed"
	case e.Code == parley.TimedOut:
		return protocol.ErrTimeout.Text
	case e.Code == parley.Unauthenticated:
		return protocol.ErrVerifiedOnly.Text
	case e.Text == "":
		return string(e.Code)
	}
	return e.Text
}

// problem translates the hub's refusal. A waiting sender gets it in an ErrorMessage,
// unless a retry may succeed.
func problem(err error) error {
	out := toError(parley.AsError(err))
	if out.Retryable {
		return out
	}
	return protocol.ErrorAnswer{Err: out}
}

// answerTo translates the outcome of a submission for the server. A duplicate of a
// refused envelope gets the same answer as the first.
func answerTo(err error) (prior bool, _ error) {
	var p *hub.Prior
	switch {
	case err == nil:
		return false, nil
	case !errors.As(err, &p):
		return false, problem(err)
	case p.Refused == nil:
		return true, nil
	}
	if first := firstRefusal(p.Refused); first != nil {
		return false, first
	}
	return false, problem(p.Refused)
}

// firstRefusal gives a recorded refusal of the protocol's own checks as the server
// answered it; nil if the hub refused.
func firstRefusal(e *parley.Error) error {
	for _, check := range []struct {
		err      *protocol.Error
		answered bool // in an ErrorMessage, to a waiting sender
	}{
		{protocol.ErrStale, true}, {protocol.ErrContent, true}, {protocol.ErrVerifiedOnly, true},
		{protocol.ErrHorizon, false}, {protocol.ErrAmbiguous, false}, {protocol.ErrSchemaDigest, false},
		{protocol.ErrPayload, false}, {protocol.ErrUnknownAgent, false},
	} {
		if e.Code != refusalCode(check.err) || e.Text != check.err.Text &&
			!strings.HasPrefix(e.Text, check.err.Text+": ") {
			continue
		}
		if first := check.err.Saying(e.Text); check.answered {
			return protocol.ErrorAnswer{Err: first}
		} else {
			return first
		}
	}
	return nil
}

// peerFailure is the failure in an ErrorMessage.
func peerFailure(m protocol.Message) *parley.Error {
	text, _ := m.IsError()
	switch text {
	case protocol.ErrTimeout.Text:
		return bridge.Answered(parley.Refuse(parley.TimedOut, "the agent did not answer in time"), Protocol, text)
	case protocol.ErrVerifiedOnly.Text:
		return bridge.Answered(parley.Refuse(parley.Unauthenticated, "the agent answered: %s", text), Protocol, text)
	}
	if r := []rune(text); len(r) > 500 {
		text = string(r[:500]) + "…"
	}
	return bridge.Answered(parley.Refuse(parley.HandlerFailed, "the agent answered: %s", text), Protocol, text)
}

// signer is the sender of a signed request, whose registration counts; "" if unsigned.
func signer(r *protocol.Request) string {
	if r.Verdict.Assurance != protocol.Signed {
		return ""
	}
	return r.Sender
}

// outcome translates the error of an attempt for the hub.
func outcome(err error) hub.Outcome {
	if err == nil {
		return hub.Outcome{}
	}
	e := protocol.AsError(err)
	var refused *protocol.StatusError
	if errors.As(err, &refused) && refused.Status == http.StatusTooManyRequests {
		return hub.Outcome{Err: answered(parley.Fail(parley.RateLimited, err, "the agent asks to come back later"), refused),
			Wait: max(refused.After, time.Second)}
	}
	switch {
	case errors.Is(e, protocol.ErrFull), errors.Is(e, protocol.ErrBusy), errors.Is(e, protocol.ErrRate):
		full := parley.Fail(parley.Unavailable, err, "the agent's mailbox is full").
			With(parley.ByLimit, parley.MailboxFull, "")
		return hub.Outcome{Err: full, Wait: max(e.After, 5*time.Second)}
	case errors.Is(err, protocol.ErrAnswerSize):
		return hub.Outcome{Answered: true, Failure: bridge.AnswerTooLarge(parley.Refuse(parley.HandlerFailed,
			"the agent's answer is too large").Because(err), "limits.body allows")}
	case errors.Is(e, protocol.ErrTimeout):
		return hub.Outcome{Err: bridge.Unreachable(
			parley.Fail(parley.TimedOut, err, "the agent did not answer in time"), err), Unknown: true}
	case errors.Is(e, protocol.ErrResponse):
		return hub.Outcome{Err: bridge.NotUnderstood(
			parley.Refuse(parley.Unavailable, "the agent answered something else").Because(err), err)}
	case errors.Is(e, protocol.ErrUnresolved):
		return hub.Outcome{Err: bridge.Unreachable(parley.Fail(parley.Unavailable, err, "the agent cannot be reached").
			With(parley.ByNetwork, parley.NoAddress, ""), err)}
	}
	if !errors.Is(e, protocol.ErrUndelivered) { // nothing was sent
		return hub.Outcome{Err: parley.Fail(parley.Unavailable, err, "the hub could not send the envelope").
			With(parley.ByHub, parley.HubStorage, "")}
	}
	out := hub.Outcome{
		Err:     bridge.Unreachable(parley.Fail(parley.Unavailable, err, "the agent cannot be reached"), err),
		Unknown: errors.Is(err, protocol.ErrOutcomeUnknown),
	}
	if refused != nil && !out.Unknown {
		out.Err = answered(parley.Fail(parley.Unavailable, err, "the agent's endpoint refused the envelope with status %d",
			refused.Status), refused)
	}
	return out
}

// answered adds the answer of an endpoint to an error.
func answered(e *parley.Error, by *protocol.StatusError) *parley.Error {
	return bridge.Answered(e, Protocol, by.Detail, strconv.Itoa(by.Status))
}
