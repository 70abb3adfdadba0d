package attack

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/parley-hub/parley/uagents"
)

// envelope renders a signed envelope in a new session.
func envelope(from *uagents.Identity, to, schema string, payload *string, expires time.Time) ([]byte, error) {
	e := &uagents.Envelope{Version: "1", Sender: from.Address(), Target: to, Session: uagents.NewSession(),
		SchemaDigest: schema, Payload: payload, Expires: uagents.Uint(uint64(expires.Unix()))}
	if err := e.Sign(from); err != nil {
		return nil, err
	}
	return e.Encode()
}

// submission is the request that posts an envelope; with sync the sender waits for the
// answer.
func submission(envelope []byte, sync bool) *request {
	r := post(pathSubmit, envelope)
	if sync {
		r.header = http.Header{"X-Uagents-Connection": {"sync"}}
	}
	return r
}

// chatPayload is the payload of a chat message of size bytes. more may add a member that
// no chat message has.
func chatPayload(size int, more string) *string {
	text := fmt.Sprintf(`{"timestamp":%q,"msg_id":%q,"content":[{"type":"text","text":%q}]%s}`,
		time.Now().UTC().Format(time.RFC3339), uagents.NewSession(), strings.Repeat("x", max(1, size)), more)
	encoded := uagents.EncodePayload([]byte(text))
	return &encoded
}

const unknownMember = `,"more":1`

// RefusedMessages sends the target n envelopes with size bytes of content that the hub
// refuses, for each reason in turn. Each is correctly signed by a self-made key.
func (a *Attack) RefusedMessages(ctx context.Context, n, size int) Result {
	reasons := reasonsOf(size)
	return a.floodBy(ctx, n, usesOfKey, func(i int, id *uagents.Identity) (*request, error) {
		why := reasons[i%len(reasons)]
		b, err := envelope(id, a.c.Target, uagents.ChatMessageDigest, why.content, time.Now().Add(why.expires))
		return post(pathSubmit, b), err
	})
}

// A reason for which the hub refuses a chat message.
type reason struct {
	name    string
	content *string
	expires time.Duration // from now
}

func reasonsOf(size int) []reason {
	good, unfit := chatPayload(size, ""), chatPayload(size, unknownMember)
	return []reason{
		{"expired", good, -time.Hour},
		{"unfit content", unfit, time.Minute},
		{"expires too far ahead", good, 72 * time.Hour},
		{"fits no skill", good, time.Minute},
	}
}

// Messages sends the target n valid messages with size bytes of content: requests
// that the target publishes, else chat messages.
func (a *Attack) Messages(ctx context.Context, n, size int) Result {
	schema, content := a.taken(ctx, size)
	return a.floodBy(ctx, n, usesOfKey, func(_ int, id *uagents.Identity) (*request, error) {
		b, err := envelope(id, a.c.Target, schema, content, time.Now().Add(time.Minute))
		return post(pathSubmit, b), err
	})
}

// taken gives content that the target accepts.
func (a *Attack) taken(ctx context.Context, size int) (schema string, payload *string) {
	p, err := a.Published(ctx)
	if err != nil {
		return uagents.ChatMessageDigest, chatPayload(size, "")
	}
	encoded := uagents.EncodePayload(fmt.Appendf(nil, `{"padding":%q}`, strings.Repeat("x", max(1, size))))
	return p.Request, &encoded
}

// An Envelope that the hub refuses, to be sent again.
type Envelope struct {
	Name string
	Sync bool // the sender waits for the answer
	Body []byte
}

// RefusedEnvelopes makes two envelopes for each reason for which the hub refuses: from
// a sender that waits for the answer, and from one that does not.
func (a *Attack) RefusedEnvelopes() ([]Envelope, error) {
	id, err := uagents.NewIdentity()
	if err != nil {
		return nil, err
	}
	var out []Envelope
	for _, why := range reasonsOf(20) {
		for _, sync := range []bool{false, true} {
			b, err := envelope(id, a.c.Target, uagents.ChatMessageDigest, why.content, time.Now().Add(why.expires))
			if err != nil {
				return nil, err
			}
			name := why.name
			if sync {
				name += ", synchronous"
			}
			out = append(out, Envelope{name, sync, b})
		}
	}
	return out, nil
}

// Answer sends an envelope and gives the hub's answer: the status, and the text or
// the content of the answering envelope, without parts that differ each time, such
// as session and signature.
func (a *Attack) Answer(ctx context.Context, e Envelope) (status int, text string, err error) {
	status, b, err := a.do(ctx, a.webs[0], submission(e.Body, e.Sync))
	if err != nil {
		return 0, "", err
	}
	if answer, err := uagents.Decode(b); err == nil {
		if m, err := answer.Message(); err == nil {
			return status, m.Schema + " " + string(m.Payload), nil
		}
	}
	return status, string(b), nil
}

// Repeats sends refused envelopes, each of them twice, n times. A second answer that
// differs from the first counts as changed.
func (a *Attack) Repeats(ctx context.Context, n int) Result {
	return a.each(ctx, n, func(web *http.Client, i int, t *tally) error {
		all, err := a.RefusedEnvelopes()
		if err != nil {
			return err
		}
		for _, e := range all {
			var said [2]string
			var status [2]int
			for i := range said {
				status[i], said[i], err = a.Answer(ctx, e)
				if ctx.Err() != nil {
					return nil
				}
				t.count(len(e.Body), status[i], err)
				if err != nil {
					break
				}
			}
			if err == nil && !isLater(status[0]) && !isLater(status[1]) &&
				(status[0] != status[1] || said[0] != said[1]) {
				t.add(func(r *Result) { r.Changed++ })
			}
		}
		return nil
	})
}

// Mailboxes makes n mailboxes, each with the token of a self-made key.
func (a *Attack) Mailboxes(ctx context.Context, n int) Result {
	return a.floodBy(ctx, n, 1, func(_ int, id *uagents.Identity) (*request, error) { return a.mailbox(id) })
}

// mailbox asks for the messages in the mailbox of a key.
func (a *Attack) mailbox(id *uagents.Identity) (*request, error) {
	token, err := id.NewToken(time.Now(), uagents.TokenLifetime)
	return &request{method: http.MethodGet, path: "/v2/agents/" + id.Address() + "/mailbox",
		header: http.Header{"Authorization": {"Agent " + token}}}, err
}

// mailboxed is a registration with this hub's mailbox as its endpoint.
func (a *Attack) mailboxed(id *uagents.Identity) (*request, error) {
	here := []uagents.Endpoint{{URL: strings.TrimSuffix(a.c.Hub, "/") + pathMailbox, Weight: 1}}
	return registering(id, here, chat, nil)
}

// MailboxRegistrations registers n self-made keys, each with this hub's mailbox
// as its endpoint.
func (a *Attack) MailboxRegistrations(ctx context.Context, n int) Result {
	return a.floodBy(ctx, n, 1, func(_ int, id *uagents.Identity) (*request, error) { return a.mailboxed(id) })
}

// boxesToFill is the number of mailboxes that one attack fills.
const boxesToFill = 4

// FillMailboxes makes a few mailboxes and fills them with n envelopes of
// another self-made key, each with size bytes of content.
func (a *Attack) FillMailboxes(ctx context.Context, n, size int) Result {
	var t tally
	var to []string
	for i := range boxesToFill {
		id, err := uagents.NewIdentity()
		if err != nil {
			return Result{Err: err}
		}
		r, err := a.mailboxed(id)
		if err != nil {
			return Result{Err: err}
		}
		a.send(ctx, a.webs[i%len(a.webs)], r, &t)
		to = append(to, id.Address())
	}
	content := chatPayload(size, "")
	filled := a.floodBy(ctx, n, usesOfKey, func(i int, id *uagents.Identity) (*request, error) {
		b, err := envelope(id, to[i%len(to)], uagents.ChatMessageDigest, content, time.Now().Add(5*time.Minute))
		return post(pathMailbox, b), err
	})
	t.r.Add(filled)
	return t.r
}

// items counts the messages in the mailbox of a key.
func (a *Attack) items(ctx context.Context, id *uagents.Identity) (int, error) {
	r, err := a.mailbox(id)
	if err != nil {
		return 0, err
	}
	b, err := a.ask(ctx, r)
	if err != nil {
		return 0, fmt.Errorf("attack: the mailbox: %w", err)
	}
	var list []json.RawMessage
	err = json.Unmarshal(b, &list)
	return len(list), err
}
