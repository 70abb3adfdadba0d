package a2a

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"io"
	"iter"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
)

// service is the protocol's methods, for all transports: of the agent and for the caller
// that the context's call names. Errors are a2a.Error with a sentinel of the SDK, or
// parley.Error; toError of errors.go makes the wire's form of both.
type service struct{ b *Binding }

var _ a2asrv.RequestHandler = service{}

// keyLife is how long a messageId is remembered. Of a caller that has sent more messages than
// the journal keeps such keys for, it is the journal's usual window.
const keyLife = 24 * time.Hour

// SendMessage implements a2asrv.RequestHandler.
func (s service) SendMessage(ctx context.Context, r *protocol.SendMessageRequest) (protocol.SendMessageResult, error) {
	f, err := s.b.send(ctx, r, false)
	if err != nil {
		return nil, err
	}
	defer f.end()
	config := r.Config
	if config == nil {
		config = &protocol.SendMessageConfig{}
	}
	if config.ReturnImmediately {
		return cut(f.task, config.HistoryLength), nil
	}
	waiting, cancel := s.b.bounded(ctx, s.b.c.Wait)
	defer cancel()
	for !f.settled() {
		err := f.next(waiting, callOf(ctx))
		switch {
		case ctx.Err() != nil:
			return nil, parley.AsError(ctx.Err()) // the client is gone; the task goes on
		case err != nil: // its time is up (rule A2A-025), or the hub stops
			return cut(f.task, config.HistoryLength), nil
		}
	}
	if reply := f.reply; reply != nil && reply.Kind == parley.Response && r.Message.TaskID == "" &&
		s.b.settingsOf(callOf(ctx).agent).Message {
		m := f.progress.fromAgent(reply)
		m.TaskID = ""
		return m, nil
	}
	return cut(f.task, config.HistoryLength), nil
}

// SendStreamingMessage implements a2asrv.RequestHandler. An error comes first or not at all.
// The stream ends when the task ends or waits for its client.
func (s service) SendStreamingMessage(ctx context.Context, r *protocol.SendMessageRequest) iter.Seq2[protocol.Event,
	error] {
	return func(yield func(protocol.Event, error) bool) {
		f, err := s.b.send(ctx, r, true)
		if err != nil {
			yield(nil, err)
			return
		}
		defer f.end()
		var history *int
		if r.Config != nil {
			history = r.Config.HistoryLength
		}
		f.stream(ctx, history, f.settled, yield)
	}
}

// scope is where the order and the replay keys of a caller's messages to an agent are kept.
func scope(agent, caller string) string { return Protocol + " " + agent + "\n" + caller }

// send records a message, and gives the task that it belongs to, followed from before it was
// recorded. A message that was recorded before gives its task again.
func (b *Binding) send(ctx context.Context, r *protocol.SendMessageRequest, streams bool) (*follower, error) {
	c := callOf(ctx)
	m, err := toMessage(c, r, b.c.Now())
	if err != nil {
		return nil, err
	}
	if m.ID, err = parley.NewID(b.c.Now(), b.random()); err != nil {
		return nil, parley.Refuse(parley.Internal, "internal error").Because(err)
	}
	if streams {
		m.Trace.Foreign[foreignStream] = "true"
	}
	if m.Kind == parley.Input {
		return b.sendInput(ctx, c, r, m, streams)
	}
	if m.Skill == "" {
		m.Skill = b.skillOf(c.agent, m.Parts)
	}
	contextID := r.Message.ContextID
	if contextID == "" { // rule A2A-022: one that can be told again from the record
		sum := sha256.Sum256(append([]byte("a2a context "), m.ID[:]...))
		contextID = parley.HashID(sum[:]).String()
	}
	m.Trace.Foreign[foreignContext] = contextID
	var hook *protocol.PushConfig
	if r.Config != nil && r.Config.PushConfig != nil {
		p := *r.Config.PushConfig
		hook = &p
		if err := b.checkHook(hook); err != nil {
			return nil, err
		}
		if _, seen := b.c.Journal.Seen(scope(c.agent, c.caller.Name), m.Trace.Foreign[foreignMessage]); seen {
			hook = nil // it was set with the first
		}
	}
	f := b.follow(m.ID, streams)
	if hook != nil {
		hook.TaskID = protocol.TaskID(m.ID.String())
		if err := b.webhooks.put(ctx, c, m.ID, hook); err != nil {
			f.end()
			return nil, err
		}
	}
	_, err = b.accept(ctx, c, m, contextID, &f.since)
	if err != nil {
		f.end()
		if hook != nil {
			b.webhooks.drop(m.ID)
		}
		return b.refused(ctx, c, r, err, streams)
	}
	// The watch was called with the request before it was accepted.
	if err := f.next(ctx, c); err != nil {
		f.end()
		return nil, err
	}
	return f, nil
}

// accept records a message with its replay key.
func (b *Binding) accept(ctx context.Context, c *call, m *parley.Message, contextID string, at *journal.Position) (
	*parley.Message, error) {
	s := hub.Submission{Message: m, Scope: scope(c.agent, c.caller.Name), Foreign: contextID, At: at,
		Key: journal.Key{ID: m.Trace.Foreign[foreignMessage], Sender: c.caller.Name, Until: b.c.Now().Add(keyLife)}}
	hops := m.Hops
	recorded, err := b.c.Hub.Accept(ctx, s)
	if errors.Is(err, journal.ErrBusy) {
		s.Key.Until, m.Hops = time.Time{}, hops
		recorded, err = b.c.Hub.Accept(ctx, s)
	}
	return recorded, err
}

// sendInput records more about an open task of the caller.
func (b *Binding) sendInput(ctx context.Context, c *call, r *protocol.SendMessageRequest, m *parley.Message,
	streams bool) (*follower, error) {
	f, err := b.open(ctx, c, r.Message.TaskID, streams)
	if err != nil {
		return nil, err
	}
	prior, seen := b.c.Journal.Seen(scope(c.agent, c.caller.Name), m.Trace.Foreign[foreignMessage])
	switch {
	case r.Message.ContextID != "" && r.Message.ContextID != f.progress.context: // rule A2A-023
		err = invalidParams("message.contextId", "the task is of another context")
	case !seen && f.progress.state.Terminal(): // rule A2A-024
		err = errEnded()
	}
	if err != nil || seen {
		f.end()
		if err == nil {
			return b.replayed(ctx, c, r, prior, streams)
		}
		return nil, err
	}
	m.InReplyTo = f.id
	m.Trace.Foreign[foreignContext] = f.progress.context
	if r.Config != nil && r.Config.PushConfig != nil {
		hook := *r.Config.PushConfig
		hook.TaskID = r.Message.TaskID
		if err := b.setHook(ctx, c, f.id, &hook); err != nil {
			f.end()
			return nil, err
		}
	}
	if _, err := b.accept(ctx, c, m, "", &f.since); err != nil {
		f.end()
		if parley.CodeOf(err) == parley.Conflict {
			return nil, errEnded() // meanwhile
		}
		return b.refused(ctx, c, r, err, streams)
	}
	for f.last < f.since.Sequence { // the watch was called with it
		if err := f.next(ctx, c); err != nil {
			f.end()
			return nil, err
		}
	}
	return f, nil
}

// errEnded refuses what only a task that goes on takes. Transports add to it, so each has its own.
func errEnded() error {
	return protocol.NewError(protocol.ErrUnsupportedOperation, "the task has ended; send a message without taskId")
}

// refused answers a message that the hub did not accept.
func (b *Binding) refused(ctx context.Context, c *call, r *protocol.SendMessageRequest, err error, streams bool) (
	*follower, error) {
	if prior, ok := errors.AsType[*hub.Prior](err); ok {
		return b.replayed(ctx, c, r, &prior.Of, streams)
	}
	return nil, err
}

// replayed answers a message whose id was recorded before: the same content gives the task of
// the first, or its refusal (rule A2A-021).
func (b *Binding) replayed(ctx context.Context, c *call, r *protocol.SendMessageRequest, prior *journal.Prior,
	streams bool) (*follower, error) {
	first, err := b.c.Journal.Read(ctx, prior.Position)
	if err != nil {
		return nil, parley.AsError(err)
	}
	// Erased content, and that of refused guests, cannot be compared: the id decides alone.
	raw, _ := rawOf(c, r)
	if recorded := first.Message.Origin.Raw; recorded != nil && !sameContent(sentMessage(recorded), sentMessage(raw)) {
		return nil, invalidParams("message.messageId", "another message had it")
	}
	if first.Refused != nil {
		return nil, first.Refused
	}
	id := first.Message.ID
	if first.Message.Kind == parley.Input {
		id = first.Message.InReplyTo
	}
	f, err := b.open(ctx, c, protocol.TaskID(id.String()), streams)
	if err == nil {
		f.since = prior.Position
	}
	return f, err
}

// skillOf chooses the skill of a message that names none: the one whose schema its one data part
// fits; "", the default skill, if that does not choose.
func (b *Binding) skillOf(agent string, parts []parley.Part) string {
	e, ok := b.c.Hub.Directory().Agent(agent)
	if !ok || len(parts) != 1 || !parts[0].IsJSON() {
		return ""
	}
	found := ""
	for _, s := range e.Skills {
		if len(s.Input) == 0 || hub.CheckContent(s.Input, parts[0].Data) != nil {
			continue
		}
		if found != "" {
			return ""
		}
		found = s.ID
	}
	return found
}

// random is the source of random bytes.
func (b *Binding) random() io.Reader {
	if b.c.Rand != nil {
		return b.c.Rand
	}
	return rand.Reader
}

// bounded gives a context that ends after a time, and when the binding closes.
func (b *Binding) bounded(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, d)
	stop := context.AfterFunc(b.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}
