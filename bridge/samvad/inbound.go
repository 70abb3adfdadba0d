package samvad

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/source"
	"github.com/parley-hub/parley/journal"
	protocol "github.com/parley-hub/parley/samvad"
)

// resolve finds the stand-in of a request by its base path, else by its host.
func (b *Binding) resolve(r *http.Request, prefix string) *protocol.Agent {
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
	l, ok := strings.CutSuffix(strings.ToLower(source.Host(host)), "."+b.c.Domain)
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

// agentName gives the directory name of a stand-in: the last part of its URL.
func (b *Binding) agentName(a *protocol.Agent) string {
	if rest, ok := strings.CutPrefix(a.Card.URL, b.public.String()+"/agents/"); ok {
		return rest
	}
	return Root
}

// sender finds the directory name of a proved sender.
func (b *Binding) sender(r *protocol.Request) string {
	if r.Verdict.Assurance != protocol.Signed {
		return directory.GuestName(Protocol, r.From, source.Host(r.Remote))
	}
	if name, ok := strings.CutPrefix(r.Verdict.KeySource, enrolledSource); ok {
		return name
	}
	if e, ok := b.c.Hub.Directory().Lookup(Protocol, r.From); ok {
		return e.Name
	}
	return directory.GuestName(Protocol, r.From, "")
}

// dropTalk removes the skill talk from a message: in SAMVAD it stands for no skill.
func (b *Binding) dropTalk(m *parley.Message) {
	if m.Skill != talk {
		return
	}
	if e, ok := b.c.Hub.Directory().Agent(m.To); ok && hasTalk(e) {
		m.Skill = ""
	}
}

// handle records a request with a valid signature and gives its answer: a sync
// request in one call of the hub.
func (b *Binding) handle(ctx context.Context, r *protocol.Request, refusal *protocol.Error) (
	protocol.Response, error) {
	now := b.c.Now()
	s, exceeded := b.submission(r, refusal, now)
	var reply *parley.Message
	var err error
	switch r.Endpoint {
	case protocol.ModeAsync:
		var m *parley.Message
		if m, err = b.c.Hub.Accept(ctx, s); err == nil {
			return protocol.Response{}, b.startTask(ctx, r, m)
		}
	case protocol.ModeStream:
		s.Message.Deadline = now.Add(protocol.DefaultTaskTimeout)
		reply, err = b.stream(ctx, r, s)
	default:
		s.Message.Deadline = now.Add(protocol.DefaultSyncTimeout)
		var at journal.Position
		s.At = &at
		reply, err = b.c.Hub.Ask(ctx, s)
		if !at.IsZero() {
			r.Accept("")
		}
	}
	var prior *hub.Prior
	switch {
	case errors.As(err, &prior):
		return protocol.Response{}, protocol.ErrReplay
	case err != nil && s.Refused != nil && parley.CodeOf(err) == s.Refused.Code:
		return protocol.Response{}, exceeded // recorded as refused; the server answers its own refusal
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

// submission makes the message of a request. exceeded is the binding's own refusal.
func (b *Binding) submission(r *protocol.Request, refusal *protocol.Error, now time.Time) (
	s hub.Submission, exceeded error) {
	from, to := b.sender(r), b.agentName(r.Agent)
	s = hub.Submission{
		Message: toMessage(r, from, to, now),
		Scope:   scope(r.To),
		Key: journal.Key{ID: key(r.Envelope), Sender: from,
			Until: bridge.KeyEnd(r.Until(cmp.Or(b.c.Window, protocol.DefaultWindow)))},
		Foreign: r.TraceID,
		Fits:    true, // the server has validated the payload
	}
	b.dropTalk(s.Message)
	elsewhere := b.leadsElsewhere(to)
	if refusal == nil && r.Delegation != nil && r.Delegation.MaxDepth <= 1 && elsewhere {
		// The hub would delegate further.
		exceeded = protocol.ErrDelegationExceeded
		refusal = protocol.AsError(exceeded)
	}
	if r.Verdict.Assurance != protocol.Signed || r.Auth != nil && r.Auth.Token != "" {
		b.tokens.replace(s.Message, r.Envelope, refusal == nil && elsewhere)
	}
	if refusal != nil {
		s.Refused = toRefusal(refusal)
	}
	return s, exceeded
}

// stream records a stream request, sends the pieces of its answer, and gives its
// terminal reply; nil where the client is gone.
func (b *Binding) stream(ctx context.Context, r *protocol.Request, s hub.Submission) (
	reply *parley.Message, err error) {
	call, err := b.c.Hub.Begin(ctx, s)
	if err != nil {
		return nil, err
	}
	r.Accept("")
	for m, err := range call.Stream(ctx) {
		switch {
		case err != nil:
			return nil, err
		case m.Kind != parley.Event:
			reply = m
		case m.State == parley.NoState && len(m.Parts) > 0:
			piece, err := toResult(m.Parts)
			if err == nil && r.Chunk(piece) != nil {
				return nil, nil // that cancels the call
			}
		}
	}
	return reply, nil
}

// noteRefusal notes a request that the server refused, for `parley refused`.
func (b *Binding) noteRefusal(r *http.Request, c protocol.Claim, e *protocol.Error) string {
	f := hub.Refusal{
		Protocol: Protocol, Source: source.Host(r.RemoteAddr), Claim: c.From, To: cmp.Or(c.Agent, c.Endpoint),
		Step: string(e.Step),
		Code: stepCode(e), Text: e.Text, Cause: e.Error(), Size: c.Size,
	}
	if e.Verdict != nil {
		f.Verdict = verdict(e.Verdict)
	}
	return b.c.Hub.Refuse(f.Because(e))
}

// checkToken checks the bearer token of a request to an authenticated skill.
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
