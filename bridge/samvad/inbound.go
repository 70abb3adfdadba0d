package samvad

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	protocol "github.com/parley-hub/parley/samvad"
)

// resolve finds the hosted agent of a request by its base path, else by its
// host.
func (b *Binding) resolve(r *http.Request, prefix string) *protocol.Agent {
	prefix = strings.TrimPrefix(prefix, b.public.Path)
	name, ok := strings.CutPrefix(prefix, "/agents/")
	if !ok {
		if prefix != "" {
			return nil
		}
		name = b.byHost(r.Host)
	}
	return b.standIn(cardContext(r), name)
}

func (b *Binding) byHost(host string) string {
	if b.c.Domain == "" {
		return Root
	}
	bare, _, err := net.SplitHostPort(host)
	if err != nil {
		bare = host
	}
	l, ok := strings.CutSuffix(strings.ToLower(bare), "."+b.c.Domain)
	if !ok {
		return Root
	}
	if _, ok := b.c.Hub.Directory().Agent(l); ok {
		return l
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.labels[l]
}

// name of an agent that is hosted: the last part of what the card says.
func (b *Binding) agentName(a *protocol.Agent) string {
	if rest, ok := strings.CutPrefix(a.Card.URL, b.public.String()+"/agents/"); ok {
		return rest
	}
	return Root
}

// sender finds the directory name of a proved sender.
func (b *Binding) sender(r *protocol.Request) string {
	if r.Verdict.Assurance != protocol.Signed {
		return directory.Stranger(Protocol, r.From, hostOf(r.Remote))
	}
	if name, ok := strings.CutPrefix(r.Verdict.KeySource, enrolledSource); ok {
		return name
	}
	if e, ok := b.c.Hub.Directory().Lookup(Protocol, r.From); ok {
		return e.Name
	}
	return directory.Stranger(Protocol, r.From, "")
}

// plain takes the skill out of a message where it only says: this is talk.
func (b *Binding) dropTalk(m *parley.Message) {
	if m.Skill != talk {
		return
	}
	if e, ok := b.c.Hub.Directory().Agent(m.To); ok && hasTalk(e) {
		m.Skill = ""
	}
}

// record makes a request durable: the protocol's server calls it once for each
// request whose signature is in order.
func (b *Binding) record(ctx context.Context, r *protocol.Request, refusal *protocol.Error) error {
	from, to := b.sender(r), b.agentName(r.Agent)
	now := b.c.Now()
	s := hub.Submission{
		Message: toMessage(r, from, to, now),
		Scope:   scope(r.To),
		Key:     journal.Key{ID: key(r.Envelope), Sender: from, Until: bridge.KeyEnd(r.Until(cmp.Or(b.c.Window, 300*time.Second)))},
		Foreign: r.TraceID,
		Fits:    true, // the server has validated the payload
	}
	b.dropTalk(s.Message)
	var exceeded error
	if refusal == nil && r.Delegation != nil && r.Delegation.MaxDepth <= 1 && b.leadsElsewhere(to) {
		// To call on is to delegate further.
		exceeded = protocol.ErrDelegationExceeded
		refusal = protocol.AsError(exceeded)
	}
	if r.Verdict.Assurance != protocol.Signed || r.Auth != nil && r.Auth.Token != "" {
		b.tokens.replace(s.Message, r.Envelope, refusal == nil && b.leadsElsewhere(to))
	}
	if refusal != nil {
		s.Refused = toRefusal(refusal)
	}
	var err error
	if r.Endpoint == protocol.ModeAsync {
		var m *parley.Message
		if m, err = b.c.Hub.Accept(ctx, s); err == nil {
			r.State = m
		}
	} else {
		if s.Message.Deadline = now.Add(protocol.DefaultSyncTimeout); r.Endpoint == protocol.ModeStream {
			s.Message.Deadline = now.Add(protocol.DefaultTaskTimeout)
		}
		var call *hub.Call
		if call, err = b.c.Hub.Begin(ctx, s); err == nil {
			r.State = call
		}
	}
	if err == nil {
		return nil
	}
	var prior *hub.Prior
	if errors.As(err, &prior) {
		return protocol.ErrReplay
	}
	if refusal != nil {
		if parley.CodeOf(err) == s.Refused.Code {
			return exceeded // it is recorded as refused; the server tells why
		}
	}
	return toError(parley.AsError(err))
}

// handle waits for the answer to a request that was recorded.
func (b *Binding) handle(ctx context.Context, r *protocol.Request) (protocol.Response, error) {
	call, ok := r.State.(*hub.Call)
	if !ok {
		return protocol.Response{}, protocol.ErrUnavailable
	}
	var reply *parley.Message
	var err error
	if r.Endpoint == protocol.ModeStream {
		for m, serr := range call.Stream(ctx) {
			if serr != nil {
				err = serr
				break
			}
			if m.Kind == parley.Event {
				if m.State == parley.NoState && len(m.Parts) > 0 {
					v, cerr := toResult(m.Parts)
					if cerr == nil && r.Chunk(v) != nil {
						break // the client is gone; that cancels the call
					}
				}
				continue
			}
			reply = m
		}
	} else {
		reply, err = call.Reply(ctx)
	}
	switch {
	case err != nil:
		return protocol.Response{}, toError(parley.AsError(err))
	case reply == nil:
		return protocol.Response{}, protocol.ErrUnavailable
	case reply.Kind == parley.Failure:
		return protocol.Response{Tokens: reply.Tokens()}, toError(reply.Error)
	}
	result, err := toResult(reply.Parts)
	if err != nil {
		return protocol.Response{}, fmt.Errorf("the result of %s is not JSON: %w", reply.From, err)
	}
	return protocol.Response{Result: result, SpanID: reply.ID.String(), Tokens: reply.Tokens()}, nil
}

// refused notes what the server turned away, for `parley refused`.
func (b *Binding) noteRefusal(r *http.Request, c protocol.Claim, e *protocol.Error) string {
	f := hub.Refusal{
		Protocol: Protocol, Source: hostOf(r.RemoteAddr), Claim: c.From, To: cmp.Or(c.Agent, c.Endpoint), Step: string(e.Step),
		Code: stepCode(e), Text: e.Text, Cause: e.Error(), Size: c.Size,
	}
	if e.Verdict != nil {
		f.Verdict = verdict(e.Verdict)
	}
	return b.c.Hub.Refuse(f)
}

// token checks the bearer token of a request to an authenticated skill.
func (b *Binding) checkToken(_ context.Context, r *protocol.Request) error {
	given, known := sha256.Sum256([]byte(r.Auth.Token)), 0
	for _, t := range b.c.Tokens {
		want := sha256.Sum256([]byte(t))
		known |= subtle.ConstantTimeCompare(given[:], want[:])
	}
	if known == 0 {
		return fmt.Errorf("none of the %d tokens in samvad.tokens_file", len(b.c.Tokens))
	}
	return nil
}

func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}
