package pairs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2aclient/agentcard"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	"github.com/parley-hub/parley/node"
)

// a2aPeer is an agent of the official Go SDK, unmodified: its server behind a card, and its
// client with a token of the hub.
type a2aPeer struct {
	common
	door *door
	card *protocol.AgentCard

	agents sync.Map // *a2aclient.Client by the name of the agent, at the joined hub
}

// a2aExtension is the URI of Parley's extension, under which a message has its provenance.
const a2aExtension = "https://github.com/parley-hub/parley/a2a/v1"

// a2aScheme is the security scheme of the hub's cards for tokens of the hub.
const a2aScheme protocol.SecuritySchemeName = "parley"

func newA2A(name string) (Peer, error) {
	d, err := newDoor()
	if err != nil {
		return nil, err
	}
	p := &a2aPeer{common: newCommon("a2a", name), door: d}
	text := []string{"text/plain"}
	p.card = &protocol.AgentCard{Name: name, Description: "Does what it is told.", Version: "1.0.0",
		Capabilities:      protocol.AgentCapabilities{Streaming: true},
		DefaultInputModes: text, DefaultOutputModes: text,
		SupportedInterfaces: []*protocol.AgentInterface{
			protocol.NewAgentInterface("http://"+d.addr+"/rpc", protocol.TransportProtocolJSONRPC)},
		Skills: []protocol.AgentSkill{{ID: "talk", Name: "Talk", Description: "Does what the text says.",
			Tags: []string{"test"}}}}
	return p, nil
}

func (p *a2aPeer) Agent(string) (node.Agent, error) {
	return node.Agent{A2A: &node.A2AAgent{URL: "http://" + p.door.addr}}, nil
}

func (p *a2aPeer) Join(ctx context.Context, at Place, away bool) error {
	p.Leave()
	life := p.begin(at)
	p.agents.Clear()
	if err := p.enlist(ctx, at); err != nil || away {
		return err
	}
	if p.title != "" {
		p.card.Name, p.card.Description = p.title, p.title
		s := &p.card.Skills[0]
		s.Name, s.Description, s.Tags = p.title, p.title, []string{p.title}
	}
	h := a2asrv.NewHandler(a2aExecutor{p, life}, a2asrv.WithLogger(cmp.Or(at.Log, slog.Default())))
	mux := http.NewServeMux()
	mux.Handle(a2asrv.WellKnownAgentCardPath, a2asrv.NewStaticAgentCardHandler(p.card))
	mux.Handle("/rpc", a2asrv.NewJSONRPCHandler(h))
	return p.door.open(mux)
}

func (p *a2aPeer) Leave() {
	p.door.shut()
	p.end()
}

// a2aExecutor is the agent that the SDK's server runs.
type a2aExecutor struct {
	*a2aPeer
	life context.Context
}

// Execute implements a2asrv.AgentExecutor.
func (x a2aExecutor) Execute(ctx context.Context, e *a2asrv.ExecutorContext) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) {
		p, text := x.a2aPeer, a2aText(e.Message.Parts)
		p.hear(a2aHeard(e.Message, text))
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		defer context.AfterFunc(x.life, stop)()
		over := false // the task has ended, or the server wants no more of it
		say := func(v protocol.Event) error {
			wanted := yield(v, nil)
			status, ok := v.(*protocol.TaskStatusUpdateEvent)
			if over = !wanted || ok && status.Status.State.Terminal(); !wanted {
				return errCancelled
			}
			return nil
		}
		defer func() {
			if !over {
				yield(nil, errCancelled) // else the server waits for the end of the task for ever
			}
		}()
		status := func(s protocol.TaskState) func(string) error {
			return func(text string) error {
				m := protocol.NewMessageForTask(protocol.MessageRoleAgent, e, protocol.NewTextPart(text))
				return say(protocol.NewStatusUpdateEvent(e, s, m))
			}
		}
		if e.StoredTask == nil && say(protocol.NewSubmittedTask(e, e.Message)) != nil {
			return
		}
		_ = p.respond(ctx, text, responder{ // on failure the requester gets no answer
			piece: status(protocol.TaskStateWorking),
			fail:  status(protocol.TaskStateFailed),
			complete: func(text string) error {
				a := protocol.NewArtifactEvent(e, protocol.NewTextPart(text))
				a.LastChunk = true
				if err := say(a); err != nil {
					return err
				}
				return say(protocol.NewStatusUpdateEvent(e, protocol.TaskStateCompleted, nil))
			},
		})
	}
}

// Cancel implements a2asrv.AgentExecutor.
func (x a2aExecutor) Cancel(_ context.Context, e *a2asrv.ExecutorContext) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) {
		x.hear(Heard{ID: string(e.TaskID), Cancel: true})
		yield(protocol.NewStatusUpdateEvent(e, protocol.TaskStateCanceled, nil), nil)
	}
}

// a2aHeard is a message to the peer, with what the hub states of it.
func a2aHeard(m *protocol.Message, text string) Heard {
	h := Heard{ID: m.ID, Text: text}
	b, err := json.Marshal(m.Metadata[a2aExtension])
	var stated struct {
		Trace    string
		Deadline time.Time
	}
	if err == nil && json.Unmarshal(b, &stated) == nil {
		h.Provenance, h.Trace, h.Deadline = string(b), stated.Trace, stated.Deadline
	}
	return h
}

// a2aText is the text of parts, each on a line of its own.
func a2aText(parts protocol.ContentParts) string {
	var texts []string
	for _, x := range parts {
		text := x.Text()
		if text == "" {
			if b, err := json.Marshal(x.Data()); err == nil {
				text, _ = textOf(b) // a part that holds no text says nothing
			}
		}
		if text != "" {
			texts = append(texts, text)
		}
	}
	return strings.Join(texts, "\n")
}

// client gives the client of an agent, made of the card that the hub has for it.
func (p *a2aPeer) client(ctx context.Context, to Peer) (*a2aclient.Client, error) {
	if c, ok := p.agents.Load(to.Name()); ok {
		return c.(*a2aclient.Client), nil
	}
	at, web := p.place()
	card, err := agentcard.NewResolver(web).Resolve(ctx, at.HTTP+"/a2a/"+to.Name())
	if err != nil {
		return nil, a2aFailure(err)
	}
	credentials := a2aclient.NewInMemoryCredentialsStore()
	credentials.Set(a2aSession, a2aScheme, a2aclient.AuthCredential(p.credential()))
	c, err := a2aclient.NewFromCard(ctx, card, a2aclient.WithJSONRPCTransport(web), a2aclient.WithRESTTransport(web),
		a2aclient.WithCallInterceptors(&a2aclient.AuthInterceptor{Service: credentials}))
	if err == nil {
		p.agents.Store(to.Name(), c)
	}
	return c, err
}

const a2aSession a2aclient.SessionID = "the hub"

// a2aContext adds the peer's credentials and a new trace to its calls.
func a2aContext(ctx context.Context) context.Context {
	return a2aclient.AttachServiceParams(a2aclient.AttachSessionID(ctx, a2aSession),
		a2aclient.ServiceParams{"traceparent": {newTraceParent()}})
}

// a2aTask is what a requester knows of a task.
type a2aTask struct {
	protocol.Task
	events func(string) // gets every piece; may be nil
}

// take applies a result or an event of a stream.
func (t *a2aTask) take(e protocol.Event) {
	piece := func(parts protocol.ContentParts) {
		if text := a2aText(parts); text != "" && t.events != nil {
			t.events(text)
		}
	}
	switch e := e.(type) {
	case *protocol.Task:
		t.Task = *e
	case *protocol.Message:
		t.Status.State = protocol.TaskStateCompleted
		t.Artifacts = []*protocol.Artifact{{Parts: e.Parts}}
	case *protocol.TaskStatusUpdateEvent:
		t.Status = e.Status
		if m := e.Status.Message; m != nil && !e.Status.State.Terminal() {
			piece(m.Parts)
		}
	case *protocol.TaskArtifactUpdateEvent:
		if !e.LastChunk {
			piece(e.Artifact.Parts)
		}
		for i, a := range t.Artifacts {
			if a.ID == e.Artifact.ID {
				whole := *e.Artifact
				if e.Append {
					whole.Parts = append(append(protocol.ContentParts{}, a.Parts...), whole.Parts...)
				}
				t.Artifacts[i] = &whole
				return
			}
		}
		t.Artifacts = append(t.Artifacts, e.Artifact)
	}
}

// answer is the end of the task.
func (t *a2aTask) answer() (Answer, error) {
	if t.Status.State != protocol.TaskStateCompleted {
		f := &Failure{Text: string(t.Status.State), Refused: t.Status.State == protocol.TaskStateRejected}
		if t.Status.Message != nil {
			f.Text = cmp.Or(a2aText(t.Status.Message.Parts), f.Text)
		}
		return Answer{}, f
	}
	var parts protocol.ContentParts
	for _, a := range t.Artifacts {
		parts = append(parts, a.Parts...)
	}
	return Answer{Text: a2aText(parts)}, nil
}

// follow subscribes to the task until it ends. To this SDK's client a refusal is a stream
// without events: then the task is read.
func (t *a2aTask) follow(ctx context.Context, c *a2aclient.Client) error {
	for !t.Status.State.Terminal() {
		some := false
		for e, err := range c.SubscribeToTask(ctx, &protocol.SubscribeToTaskRequest{ID: t.ID}) {
			if err != nil {
				return err
			}
			some = true
			t.take(e)
		}
		if !some {
			now, err := c.GetTask(ctx, &protocol.GetTaskRequest{ID: t.ID})
			if err != nil {
				return err
			}
			if t.take(now); !t.Status.State.Terminal() {
				pause(ctx)
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// cancel asks for the end of the task, again until the hub answers: a connection from before the hub's
// restart may break, and a cancel is idempotent.
func (t *a2aTask) cancel(ctx context.Context, c *a2aclient.Client) error {
	for {
		_, err := c.CancelTask(ctx, &protocol.CancelTaskRequest{ID: t.ID})
		var f *Failure
		switch {
		case errors.Is(err, protocol.ErrTaskNotCancelable): // it has ended
			return nil
		case err == nil || ctx.Err() != nil || errors.As(a2aFailure(err), &f):
			return err
		}
		pause(ctx)
	}
}

// persist follows the task, again and again while the hub is away.
func (t *a2aTask) persist(ctx context.Context, c *a2aclient.Client) error {
	for {
		err := t.follow(ctx, c)
		var f *Failure
		if err == nil || ctx.Err() != nil || errors.As(a2aFailure(err), &f) {
			return err
		}
		pause(ctx)
	}
}

// Ask reads a stream if the requester wants events; else it makes a blocking call.
func (p *a2aPeer) Ask(ctx context.Context, q Question) (Answer, error) {
	return p.ask(ctx, q, func(ctx context.Context, c *a2aclient.Client, r *protocol.SendMessageRequest, t *a2aTask) error {
		if q.Events == nil {
			v, err := c.SendMessage(ctx, r)
			if err == nil {
				q.taken()
				t.take(v)
				err = t.follow(ctx, c)
			}
			return err
		}
		// A question is sent even if ctx ends, so that its task can be cancelled.
		sending, stop := context.WithCancel(context.WithoutCancel(ctx))
		defer stop()
		begin := time.AfterFunc(20*time.Second, stop)
		defer begin.Stop()
		for e, err := range c.SendStreamingMessage(sending, r) {
			if err != nil && t.ID == "" {
				return err
			} else if err != nil {
				break // ctx has ended, or the hub is away
			}
			if t.ID == "" {
				q.taken()
				begin.Stop()
				defer context.AfterFunc(ctx, stop)()
			}
			t.take(e)
		}
		if t.ID == "" { // refused, or taken at the last moment: the same message again tells
			v, err := c.SendMessage(sending, r)
			if err != nil {
				return err
			}
			q.taken()
			t.take(v)
		}
		return t.persist(ctx, c)
	})
}

// ask sends a question in the way of send, and cancels the task when ctx ends.
func (p *a2aPeer) ask(ctx context.Context, q Question,
	send func(context.Context, *a2aclient.Client, *protocol.SendMessageRequest, *a2aTask) error) (Answer, error) {
	c, err := p.client(ctx, q.To)
	if err != nil {
		return Answer{}, err
	}
	t, r := &a2aTask{events: q.Events}, a2aRequest(q.Text)
	if q.Patience > 0 {
		r.Message.SetMeta(a2aExtension, map[string]any{"deadline": p.now().Add(q.Patience).UTC().Format(time.RFC3339Nano)})
	}
	err = send(a2aContext(ctx), c, r, t)
	switch {
	case err == nil:
		return t.answer()
	case ctx.Err() == nil:
		return Answer{}, a2aFailure(err)
	}
	if t.ID != "" {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 60*time.Second)
		defer cancel()
		if err := t.cancel(a2aContext(end), c); err != nil {
			return Answer{}, fmt.Errorf("pairs: cancel the task: %w", err)
		}
	}
	return Answer{}, context.Cause(ctx)
}

func a2aRequest(text string) *protocol.SendMessageRequest {
	return &protocol.SendMessageRequest{Message: protocol.NewMessage(protocol.MessageRoleUser, protocol.NewTextPart(text))}
}

// Tell leaves a task and does not read its result: A2A has no notices.
func (p *a2aPeer) Tell(ctx context.Context, to Peer, text string) error {
	c, err := p.client(ctx, to)
	if err != nil {
		return err
	}
	r := a2aRequest(text)
	r.Config = &protocol.SendMessageConfig{ReturnImmediately: true}
	_, err = c.SendMessage(a2aContext(ctx), r)
	return a2aFailure(err)
}

// a2aFailure tells the hub's refusals from a hub that is away. The SDK gives an HTTP status
// as text alone.
func a2aFailure(err error) error {
	var e *protocol.Error
	var card *agentcard.ErrStatusNotOK
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e), strings.Contains(err.Error(), "unexpected HTTP status: 4"),
		errors.As(err, &card) && card.StatusCode < http.StatusInternalServerError:
		return &Failure{Text: err.Error(), Refused: true}
	}
	return err
}
