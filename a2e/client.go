package a2e

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-hub/parley/internal/jsonx"
)

// Client is an agent's side of A2E: it connects to a host on first use, keeps
// requests apart by their ids, and comes back after a broken connection. Set
// its fields before the first use; its methods are safe for concurrent use.
//
// A request that is in flight when the connection breaks is sent again, with its id,
// only to a host that announces that it remembers ids and resumes sessions, as [Host]
// does; otherwise it fails with [ErrOutcomeUnknown]. So no request is executed twice,
// and each has an outcome.
type Client struct {
	// URL of the host: http://, https:// (HTTP + SSE, any path is the prefix),
	// tcp://host:port, tls://host:port or unix:///path.
	URL string
	// Dial opens a byte stream instead of URL.
	Dial func(ctx context.Context) (io.ReadWriteCloser, error)
	// Command makes the child process to talk to instead of URL (A2E §7.2). Each
	// connection starts a new process. The client starts no other.
	Command func() *exec.Cmd

	AgentID string // free, stable if wanted; may be empty
	Token   string // the secret that proves who the agent is

	// Capabilities to ask for. Nil means all of A2E §6.15.
	Capabilities []string

	// HTTP makes the requests of http and https URLs. Nil means a client that refuses
	// private and loopback addresses, as for URLs from elsewhere: set
	// http.DefaultClient, for example, for your own host. Its Timeout, if set, also
	// cuts the stream, which is then opened again.
	HTTP *http.Client
	// TLS configures tls:// URLs.
	TLS *tls.Config

	// Registry knows the message types. Nil means all of A2E §6.
	Registry *Registry

	// OnPush gets messages that belong to no request of this client, one after another:
	// pushes, and the host's requests such as mcp/sample/req, which OnPush answers with
	// Send. Without it the client drops pushes and refuses requests.
	OnPush func(m *Envelope)

	// FailFast makes a request without a connection fail with the first attempt to
	// connect. Otherwise the request waits, as long as its context allows, through an
	// outage of a host that was connected before.
	FailFast bool

	// OnLink is called after each handshake and when a broken stream is open again
	// (up), and when the connection or the stream is lost. It must not wait.
	OnLink func(up bool)

	Limits ClientLimits
	Log    *slog.Logger
	Now    func() time.Time

	once   sync.Once
	types  *Registry
	limits ClientLimits

	mu       sync.Mutex
	pending  map[string]*call
	link     link
	attempts *attempts // in flight; nil when there is none
	closed   bool
	ctx      context.Context
	cancel   context.CancelFunc
	session  string
	resume   bool
	accepted []string
	pushes   chan *Envelope

	responding atomic.Bool
}

func (c *Client) init() {
	c.once.Do(func() {
		c.types, c.limits = cmp.Or(c.Registry, builtin()), c.Limits.filled()
		c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
		if c.Now == nil {
			c.Now = time.Now
		}
		c.pending = map[string]*call{}
		c.ctx, c.cancel = context.WithCancel(context.Background())
		if c.OnPush != nil {
			c.pushes = make(chan *Envelope, c.limits.Pushes)
			go func() {
				for {
					select {
					case m := <-c.pushes:
						c.OnPush(m)
					case <-c.ctx.Done():
						return
					}
				}
			}()
		}
	})
}

// Connect opens the connection and shakes hands, and reports errors at once. Other
// methods connect by themselves.
func (c *Client) Connect(ctx context.Context) error {
	c.init()
	_, err := c.await(ctx, nil)
	return err
}

// SessionID gives the id of the session; empty before the handshake. The id is a secret
// in HTTP mode.
func (c *Client) SessionID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session
}

// Accepted are the capabilities that the host agreed to.
func (c *Client) Accepted() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.accepted)
}

// Remembers reports whether the host announces that it remembers the ids of requests
// and resumes sessions, so that a request can be sent again with its id.
func (c *Client) Remembers() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.resume
}

// await waits for a link that has shaken hands; with a call p, only while p is open.
func (c *Client) await(ctx context.Context, p *call) (link, error) {
	var changed chan struct{}
	if p != nil {
		changed = p.wake
	}
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return nil, ErrClosed
		}
		if c.link != nil {
			l := c.link
			c.mu.Unlock()
			return l, nil
		}
		a := c.establishLocked(c.session != "")
		c.mu.Unlock()
		select {
		case <-a.done:
			if a.err != nil {
				return nil, a.err
			}
		case <-changed:
			if err := p.failure(); err != nil {
				return nil, err
			}
		case <-ctx.Done():
			return nil, c.unreached(ctx)
		}
	}
}

// received takes one line from a link.
func (c *Client) received(l link, line []byte) {
	m, e := c.types.decode(line, DefaultMaxDepth)
	if m == nil || e != nil && m.ReqID == "" {
		return
	}
	c.mu.Lock()
	p, resume := c.pending[m.ReqID], c.resume
	c.mu.Unlock()
	switch {
	case m.ReqID != "" && p != nil:
		if e != nil && m.Class == ClassEvent || m.Class == ClassEvent && m.check() != nil {
			return
		}
		p.take(m, e, c.limits.Events, resume)
	case m.Type == "ping" && m.Class == ClassRequest:
		pong, err := Message{Type: "pong", Body: map[string]any{"req_id": m.ID, "uptime_seconds": 0.0}}.Encode(c.Now())
		if err != nil {
			return
		}
		c.respond(l, pong)
	case c.pushes != nil && (m.ReqID == "" || m.Class == ClassPush):
		select {
		case c.pushes <- m:
		default: // OnPush is too slow
		}
	case e == nil && m.Class == ClassRequest && m.Type != "shutdown":
		refusal := unknownType(m)
		switch m.Type {
		case "mcp/sample/req":
			refusal = &Error{Code: MCPSamplingRefused, Text: "this agent does not sample for hosts", ReqID: m.ID,
				Capability: "mcp"}
		case "mcp/root/list/req":
			refusal = &Error{Code: MCPCapabilityMissing, Text: "this agent has no roots", ReqID: m.ID,
				Capability: "mcp"}
		}
		c.respond(l, errorFrame(refusal, c.Now()))
	}
}

// respond answers a message of the host, one at a time; further messages are dropped.
func (c *Client) respond(l link, line []byte) {
	if !c.responding.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer c.responding.Store(false)
		_ = l.send(c.ctx, append(line, '\n')) // a host that is gone needs no answer
	}()
}

// tooLarge takes the beginning of a message over the limit. If the message was an
// answer, its request fails; otherwise its caller would wait in vain.
func (c *Client) tooLarge(head []byte) {
	typ, reqID := headOf(head)
	c.mu.Lock()
	p := c.pending[reqID]
	c.mu.Unlock()
	if p != nil && classOf(typ, true) == ClassResponse {
		p.fail(ErrAnswerTooLarge.about(reqID))
	}
}

// ask sends a request and waits for its final frame; each gets the events in order,
// until it returns false.
func (c *Client) ask(ctx context.Context, m Message, each func(*Envelope) bool) (*Envelope, error) {
	c.init()
	if m.ID == "" {
		m.ID = NewID()
	}
	line, err := m.Encode(c.Now())
	if err != nil {
		return nil, err
	}
	return c.exchange(ctx, m.ID, line, 0, each)
}

// Ask sends a request and gives its response. If the host reports a failure, the error
// is an [*Error] with its code, retryable and detail.
func (c *Client) Ask(ctx context.Context, m Message) (*Envelope, error) {
	return c.ask(ctx, m, nil)
}

// Event is one step of a request: an event, or at last its response, for which
// Final is true and Kind is empty.
type Event struct {
	*Envelope
	Kind  EventKind
	Seq   int64
	Data  json.RawMessage
	Final bool
}

func eventOf(m *Envelope) Event {
	return Event{Envelope: m, Kind: cmp.Or(EventKind(m.Str("kind")), KindStatus), Seq: m.Int("seq"), Data: m.Get("data")}
}

// Stream sends a request and gives its events in order of arrival, then its
// response. An error ends it. Breaking off stops listening; the protocol has
// no way to stop the host (A2E §8.5).
func (c *Client) Stream(ctx context.Context, m Message) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		final, err := c.ask(ctx, m, func(m *Envelope) bool { return yield(eventOf(m), nil) })
		switch {
		case errors.Is(err, errStopped):
		case err != nil:
			yield(Event{}, err)
		default:
			yield(Event{Envelope: final, Data: final.Get("data"), Final: true}, nil)
		}
	}
}

// Send sends a message that expects no answer.
func (c *Client) Send(ctx context.Context, m Message) error {
	c.init()
	line, err := m.Encode(c.Now())
	if err != nil {
		return err
	}
	l, err := c.await(ctx, nil)
	if err != nil {
		return err
	}
	return l.send(ctx, append(line, '\n'))
}

// Ping measures a round trip; it waits 5 s if ctx has no deadline.
func (c *Client) Ping(ctx context.Context) (time.Duration, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
	}
	start := time.Now()
	_, err := c.ask(ctx, Message{Type: "ping"}, nil)
	return time.Since(start), err
}

// Close sends shutdown, ends the connection and, if there is one, the child process,
// and fails requests in flight with [ErrClosed].
func (c *Client) Close() error {
	c.init()
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	l, connecting := c.link, c.attempts
	c.link = nil
	c.failAllLocked(ErrClosed)
	c.mu.Unlock()
	if l != nil {
		f := appendHead(nil, "shutdown", NewID(), c.Now()).number("timeout", 10)
		l.close(append(f, "}\n"...))
	}
	c.cancel()
	if connecting != nil { // a child process that has not answered yet ends too
		<-connecting.done
	}
	return nil
}

// Tools lists the host's tools.
func (c *Client) Tools(ctx context.Context, q ToolQuery) ([]ToolDefinition, error) {
	m, err := c.Ask(ctx, Message{Type: "tool/list/req", Body: q})
	if err != nil {
		return nil, err
	}
	var out []ToolDefinition
	if err := jsonx.Decode(m.Get("tools"), &out); err != nil {
		return nil, ErrSchema.Because(err)
	}
	return out, nil
}

// CallTool calls a tool. The result says whether the tool succeeded; an error means
// that there is no result. onEvent, which may be nil, gets the events first.
func (c *Client) CallTool(ctx context.Context, name string, arguments any, onEvent func(Event)) (ToolResult, error) {
	args, err := bodyOf(arguments)
	if err != nil {
		return ToolResult{}, err
	}
	if args == nil {
		args = json.RawMessage("{}")
	}
	c.init()
	timeout := int64(60)
	if d, ok := ctx.Deadline(); ok {
		timeout = seconds(d)
	}
	id := NewID()
	line := appendHead(make([]byte, 0, 2*headSize+len(args)), "tool/call/req", id, c.Now()).
		text("session_id", c.SessionID()).text("tool_name", name).json("arguments", args).
		text("correlation_id", id[:8]).flag("streaming", onEvent != nil).name("timeout")
	at := len(line)
	line = strconv.AppendInt(line, timeout, 10)
	var each func(*Envelope) bool
	if onEvent != nil {
		each = func(m *Envelope) bool {
			onEvent(eventOf(m))
			return true
		}
	}
	m, err := c.exchange(ctx, id, append(line, '}'), at, each)
	if err != nil {
		return ToolResult{}, err
	}
	return toolResultOf(m.Get("data"))
}
