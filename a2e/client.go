package a2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/parley-hub/parley/internal/netguard"
)

// Client is an agent's side of A2E: it connects to a host on first use, keeps
// requests apart by their ids, and comes back after a broken connection. Set
// its fields before the first use; its methods are safe for concurrent use.
//
// A request that is under way when the connection breaks is sent again, with
// its id, only to a host that says that it remembers ids and resumes sessions,
// as [Host] does; otherwise it fails with [ErrOutcomeUnknown]. So nothing is
// executed twice, and nothing is lost without a word.
type Client struct {
	// URL of the host: http://, https:// (HTTP + SSE, any path is the prefix),
	// tcp://host:port, tls://host:port or unix:///path.
	URL string
	// Dial opens a byte stream instead of URL.
	Dial func(ctx context.Context) (io.ReadWriteCloser, error)
	// Command makes the child process to talk to instead of URL (A2E §7.2). Each
	// connection starts a new one. Nothing else ever starts a process.
	Command func() *exec.Cmd

	AgentID string // free, stable if wanted; empty is legal
	Token   string // the secret that proves who the agent is

	// Capabilities to ask for. Nil means all of A2E §6.15.
	Capabilities []string

	// HTTP makes the requests of http and https URLs. Nil means a client that
	// refuses private and loopback addresses, as for URLs from elsewhere: set
	// it, for example to http.DefaultClient, for a host of one's own. A Timeout
	// in it also cuts the stream, which is then opened again.
	HTTP *http.Client
	// TLS configures tls:// URLs.
	TLS *tls.Config

	// Registry knows the message types. Nil means all of A2E §6.
	Registry *Registry

	// OnPush gets messages that belong to no request of this client, one after
	// the other: pushes, and requests of the host such as mcp/sample/req, which it
	// answers with Send. Without it pushes are dropped and counted, and requests
	// refused.
	OnPush func(m *Envelope)

	// FailFast lets a request for which there is no connection fail with the first
	// attempt to make one. Otherwise it waits through an outage of a host to which
	// there was one, for as long as its context allows.
	FailFast bool

	// OnLink is called after each handshake and when a stream that broke is open
	// again (up), and when the connection or the stream is lost. It must not wait.
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
	attempts *attempts // under way; nil when there is none
	hello    *call     // the handshake under way, over helloOn
	helloOn  link
	closed   bool
	ctx      context.Context
	cancel   context.CancelFunc
	session  string
	resume   bool
	accepted []string
	parallel int64
	due      time.Time   // when timer fires; zero when it will not
	timer    *time.Timer // for the deadlines of calls whose context has none
	pushes   chan *Envelope
	dropped  int64

	responding atomic.Bool
}

// ClientLimits bound a client. Zero means the default that is named with each
// field.
type ClientLimits struct {
	Frame     int           // bytes of one message: 4 MiB
	Handshake time.Duration // wait for its answer: 30 s
	Request   time.Duration // deadline of requests whose context has none: 300 s
	Requests  int           // under way at once: 4,096
	Events    int           // of one request that wait for its reader: 1,024
	Pushes    int           // that wait for OnPush: 1,024; more are dropped and counted
	BackoffLo time.Duration // before the first attempt to come back: 1 s, doubling
	BackoffHi time.Duration // up to: 30 s
	Tries     int           // of one POST: 3
	Exit      time.Duration // a child process may take to end by itself: 3 s
	Term      time.Duration // and after SIGTERM: 2 s
}

func (l ClientLimits) filled() ClientLimits {
	orInt(&l.Frame, DefaultMaxFrame)
	l.Frame = min(l.Frame, HardMaxFrame)
	orTime(&l.Handshake, 30*time.Second)
	orTime(&l.Request, 300*time.Second)
	orInt(&l.Requests, 4096)
	orInt(&l.Events, 1024)
	orInt(&l.Pushes, 1024)
	orTime(&l.BackoffLo, time.Second)
	orTime(&l.BackoffHi, 30*time.Second)
	orInt(&l.Tries, 3)
	orTime(&l.Exit, 3*time.Second)
	orTime(&l.Term, 2*time.Second)
	return l
}

// link is one connection to a host. What it receives it gives to
// [Client.received]; when it is down for good it calls [Client.broken].
type link interface {
	// send hands one line over, which ends with LF. An error that is
	// [ErrOutcomeUnknown] says that the host may have it.
	send(ctx context.Context, line []byte) error
	// close ends the link; with an orderly end it has been told shutdown.
	close(orderly bool)
}

// attempts are the efforts to get one connection.
type attempts struct {
	done chan struct{}
	err  error // why they were given up; set before done is closed
	last error // why the last one failed; guarded by the client's mu
}

// call is one request under way.
type call struct {
	id       string
	line     []byte        // with its end
	timeout  int           // where in line the seconds stand that it is given, up to the last brace; 0: it has none
	until    time.Time     // with timeout: when its caller gives it up
	deadline time.Time     // zero: the context of the caller has one
	wake     chan struct{} // holds one token when the state below has changed

	mu     sync.Mutex
	left   leaving
	doubt  error // with leaving: a connection broke meanwhile on which it may have left
	events []*Envelope
	final  *Envelope
	err    error
	seen   map[string]struct{} // ids of events
}

// leaving is whether the host may have a request.
type leaving uint8

const (
	notYet  leaving = iota // no link took the line
	leaves                 // a link is about to take it
	hasLeft                // the host may have it
)

func (c *Client) init() {
	c.once.Do(func() {
		c.types, c.limits = c.Registry, c.Limits.filled()
		if c.types == nil {
			c.types = builtin()
		}
		if c.Log == nil {
			c.Log = slog.New(slog.DiscardHandler)
		}
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

// Connect opens the connection and shakes hands. Other methods do so by
// themselves; Connect reports at once what is wrong.
func (c *Client) Connect(ctx context.Context) error {
	c.init()
	_, err := c.await(ctx, nil)
	return err
}

// SessionID is the session that the host gave; empty before the handshake. It
// is a secret in HTTP mode.
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

// Remembers reports whether the host says that it remembers the ids of requests
// and resumes sessions, so that a request can be sent again with its id.
func (c *Client) Remembers() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.resume
}

// Dropped counts messages that were ignored: malformed, about no request under
// way, or pushed faster than OnPush took them.
func (c *Client) Dropped() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dropped
}

// await waits for a link that has shaken hands; for the call p, if there is
// one, no longer than that is open.
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

// unreached is why a request has not left when its time is over.
func (c *Client) unreached(ctx context.Context) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return ctx.Err()
	}
	cause := ctx.Err()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.attempts != nil && c.attempts.last != nil {
		cause = c.attempts.last
	}
	return unreachable(cause)
}

// unreachable says why a host cannot be reached, in words that may be passed on:
// without addresses.
func unreachable(cause error) *Error {
	e := ErrUnreachable.Because(cause)
	if why := whyUnreachable(cause); why != "" {
		e.Text += ": " + why
	}
	return e
}

func whyUnreachable(err error) string {
	text := ""
	for own := (*Error)(nil); errors.As(err, &own); err = own.cause {
		if text = own.Text; errors.Is(own, ErrClosed) {
			text = "it closed the connection"
		}
	}
	var dns *net.DNSError
	var certificate *tls.CertificateVerificationError
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "no route to it"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "it closed the connection"
	case errors.Is(err, fs.ErrNotExist):
		return "its socket or program does not exist"
	case errors.As(err, &dns) && dns.IsNotFound:
		return "its name is not known"
	case errors.As(err, &certificate):
		return "its certificate is not accepted"
	case errors.Is(err, netguard.ErrBlocked):
		return "its address is not allowed"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "no answer in time"
	}
	return text
}

func waitError(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return ErrTimeout.Because(ctx.Err())
	}
	return ctx.Err()
}

// establishLocked begins to dial, unless that is under way.
func (c *Client) establishLocked(again bool) *attempts {
	if c.attempts == nil {
		c.attempts = &attempts{done: make(chan struct{})}
		go c.establish(c.attempts, again)
	}
	return c.attempts
}

// establish dials and shakes hands. A first connection fails at once; after
// one that broke it goes on trying while a request waits.
func (c *Client) establish(a *attempts, again bool) {
	pause := c.limits.BackoffLo
	for {
		err := c.attempt()
		var e *Error
		hopeless := errors.As(err, &e) && !e.Retryable && e.Step != "transport"
		c.mu.Lock()
		if err != nil && !hopeless && c.FailFast {
			c.failUnsentLocked(unreachable(err))
		}
		if err == nil || hopeless || !again || c.closed || !c.waitingLocked() {
			if err != nil {
				if !hopeless {
					e = unreachable(err)
				}
				a.err = e
				c.failAllLocked(e)
			}
			c.attempts = nil
			close(a.done)
			c.mu.Unlock()
			return
		}
		a.last = err
		c.mu.Unlock()
		c.Log.Debug("a2e: connecting", "err", err, "again_in", pause)
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-c.ctx.Done():
			t.Stop()
		}
		pause = min(2*pause, c.limits.BackoffHi)
	}
}

// waitingLocked reports whether any request still waits for its answer.
func (c *Client) waitingLocked() bool {
	for _, p := range c.pending {
		if p.open() {
			return true
		}
	}
	return false
}

func (c *Client) failAllLocked(err error) {
	for _, p := range c.pending {
		p.fail(err)
	}
}

// failUnsentLocked fails what no host can have.
func (c *Client) failUnsentLocked(err error) {
	for _, p := range c.pending {
		if !p.mayBeThere() {
			p.fail(err)
		}
	}
}

// attempt makes one connection: dial, handshake, and what was under way again.
func (c *Client) attempt() error {
	ctx, cancel := context.WithTimeout(c.ctx, c.limits.Handshake)
	defer cancel()
	l, err := c.dial(ctx)
	if err != nil {
		return err
	}
	c.mu.Lock()
	old := c.session
	c.mu.Unlock()
	caps := c.Capabilities
	if caps == nil {
		caps = capabilityNames
	}
	body := map[string]any{"agent_id": c.AgentID, "agent_caps": caps, "auth_token": c.Token}
	if old != "" {
		body["session_id"] = old // an extension: go on with that session
	}
	id := NewID()
	line, err := Message{Type: "handshake/req", ID: id, Body: body}.Encode(c.Now())
	var hello *call
	if err == nil {
		hello, _, err = c.file(ctx, id, line, 0)
	}
	if err != nil {
		l.close(false)
		return err
	}
	defer c.drop(hello)
	c.mu.Lock()
	c.hello, c.helloOn = hello, l
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.hello, c.helloOn = nil, nil
	}()
	if err := l.send(ctx, hello.line); err != nil {
		l.close(false)
		return err
	}
	resp, err := c.wait(ctx, hello, nil)
	if err != nil {
		l.close(false)
		return err
	}
	if resp.Type != "handshake/resp" || !resp.Bool("ok") {
		l.close(false)
		return &Error{Code: Unauthorized, Reason: clip(resp.Str("reason"), maxText), Text: "handshake refused", Step: "handshake"}
	}
	if err := c.adopt(l, resp, old); err != nil {
		return err
	}
	c.linked(true)
	return nil
}

func (c *Client) linked(up bool) {
	if c.OnLink != nil {
		c.OnLink(up)
	}
}

// adopt makes l the connection of the client.
func (c *Client) adopt(l link, resp *Envelope, old string) error {
	session, resume := resp.Str("session_id"), false
	var accepted []string
	for _, v := range resp.Values("accepted_caps") {
		var entry struct {
			Capability string `json:"capability"`
			Enabled    *bool  `json:"enabled"`
			Metadata   struct {
				Resume bool `json:"resume"`
			} `json:"metadata"`
		}
		if err := decodeLoose(v, &entry); err != nil {
			continue
		}
		if entry.Enabled == nil || *entry.Enabled {
			accepted = append(accepted, entry.Capability)
		}
		resume = resume || entry.Metadata.Resume
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		l.close(false)
		return ErrClosed
	}
	if d, ok := l.(interface{ down() bool }); ok && d.down() {
		return ErrClosed
	}
	resumed := old != "" && session == old && resume && c.resume
	c.session, c.accepted, c.resume = session, accepted, resume
	c.parallel = resp.Int("max_parallel")
	c.link = l
	if h, ok := l.(interface{ remembers(bool) }); ok {
		h.remembers(resume)
	}
	if resumed {
		c.againLocked(l)
		return nil
	}
	for _, p := range c.pending {
		p.lose(ErrOutcomeUnknown)
	}
	return nil
}

// reopened is called by a link whose host was away and is back, with the same
// session. If the host had ended meanwhile, nobody is at work there on what it
// was asked before; one that still is knows the ids.
func (c *Client) reopened(l link) {
	c.mu.Lock()
	if c.link == l && c.resume {
		c.againLocked(l)
	}
	c.mu.Unlock()
	c.linked(true)
}

// againLocked sends what the host may have had before the connection broke, as
// soon as all that it had kept has been read, for the answer may be among that:
// a pong comes after it.
func (c *Client) againLocked(l link) {
	var calls []*call
	for _, p := range c.pending {
		if p.mayBeThere() {
			calls = append(calls, p)
		}
	}
	if calls == nil {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(c.ctx, c.limits.Handshake)
		defer cancel()
		c.ping(ctx, l)
		for _, p := range calls {
			if p.mayBeThere() {
				c.resend(l, p)
			}
		}
	}()
}

// ping waits until l has brought the answer to a ping, or never will.
func (c *Client) ping(ctx context.Context, l link) {
	id := NewID()
	line, err := Message{Type: "ping", ID: id}.Encode(c.Now())
	if err != nil {
		return
	}
	p, _, err := c.file(ctx, id, line, 0)
	if err != nil {
		return
	}
	defer c.drop(p)
	if err = l.send(ctx, p.line); err == nil {
		_, err = c.wait(ctx, p, nil)
	}
	if err != nil {
		c.Log.Debug("a2e: ping after coming back", "err", err)
	}
}

func (c *Client) resend(l link, p *call) {
	// A failure breaks the link, which brings this here again.
	if err := l.send(c.ctx, p.now()); err != nil {
		c.Log.Debug("a2e: resend", "err", err)
	}
}

// broken is called by a link that is down.
func (c *Client) broken(l link, err error) {
	if c.unlink(l, err) {
		c.linked(false)
	}
}

// unlink reports whether l was the connection of the client, which goes on.
func (c *Client) unlink(l link, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.helloOn == l {
		c.hello.fail(ErrClosed.Because(err))
	}
	if c.link != l {
		return false
	}
	c.link = nil
	if c.closed {
		return false
	}
	c.Log.Debug("a2e: connection broken", "err", err)
	if !c.resume {
		for _, p := range c.pending {
			p.lose(ErrOutcomeUnknown.Because(err))
		}
	}
	if c.waitingLocked() {
		c.establishLocked(true)
	}
	return true
}

// received takes one line from a link.
func (c *Client) received(l link, line []byte) {
	m, e := c.types.decode(line, DefaultMaxDepth)
	if m == nil || e != nil && m.ReqID == "" {
		c.drops()
		return
	}
	c.mu.Lock()
	p, resume := c.pending[m.ReqID], c.resume
	c.mu.Unlock()
	switch {
	case m.ReqID != "" && p != nil:
		if e != nil && m.Class == ClassEvent || m.Class == ClassEvent && m.check() != nil {
			c.drops()
			return
		}
		p.take(m, e, c.limits.Events, resume)
	case m.Type == "ping" && m.Class == ClassRequest:
		pong, err := Message{Type: "pong", Body: map[string]any{"req_id": m.ID, "uptime_seconds": 0.0}}.Encode(c.Now())
		if err != nil {
			c.drops()
			return
		}
		c.respond(l, pong)
	case c.pushes != nil && (m.ReqID == "" || m.Class == ClassPush):
		select {
		case c.pushes <- m:
		default:
			c.drops()
		}
	case e == nil && m.Class == ClassRequest && m.Type != "shutdown":
		refusal := unknownType(m)
		switch m.Type {
		case "mcp/sample/req":
			refusal = &Error{Code: MCPSamplingRefused, Text: "this agent does not sample for hosts", ReqID: m.ID, Capability: "mcp"}
		case "mcp/root/list/req":
			refusal = &Error{Code: MCPCapabilityMissing, Text: "this agent has no roots", ReqID: m.ID, Capability: "mcp"}
		}
		c.respond(l, appendError(nil, refusal, NewID(), c.Now()))
	default:
		c.drops()
	}
}

// respond answers a message of the host; one at a time, others are dropped.
func (c *Client) respond(l link, line []byte) {
	if !c.responding.CompareAndSwap(false, true) {
		c.drops()
		return
	}
	go func() {
		defer c.responding.Store(false)
		_ = l.send(c.ctx, append(line, '\n')) // a host that is gone needs no answer
	}()
}

// tooLarge takes the beginning of a message over the limit. If that was an
// answer, its request fails: nobody else would tell its caller.
func (c *Client) tooLarge(head []byte) {
	typ, reqID := headOf(head)
	c.mu.Lock()
	p := c.pending[reqID]
	c.mu.Unlock()
	if p == nil || ClassOf(typ, true) != ClassResponse {
		c.drops()
		return
	}
	p.fail(ErrAnswerTooLarge.about(reqID))
}

func (c *Client) drops() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropped++
}

// take files a message about this call: the first that is no event ends it. A
// host that resumes sessions writes again what it wrote last, also before the
// new handshake is known here: of its events each id counts once. Other hosts
// repeat nothing, and need not give each event an id of its own.
func (p *call) take(m *Envelope, e *Error, limit int, resumes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.final != nil || p.err != nil {
		return
	}
	switch {
	case m.Class == ClassEvent:
		if resumes && m.base[baseID] != 0 {
			if _, dup := p.seen[m.ID]; dup {
				return
			}
			if p.seen == nil {
				p.seen = map[string]struct{}{}
			}
			if len(p.seen) < 4*limit {
				p.seen[m.ID] = struct{}{}
			}
		}
		if len(p.events) >= limit {
			p.err = ErrFull
			break
		}
		p.events = append(p.events, m)
	case m.Type == "error":
		p.err = peerError(m)
	case e != nil:
		p.err = e
	default:
		if e := m.check(); e != nil {
			e.Step = "peer"
			p.err = e
			break
		}
		p.final = m
	}
	p.poke()
}

func (p *call) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *call) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.final == nil && p.err == nil {
		p.err = err
		p.poke()
	}
}

// lose fails a call that a host may have which will not answer it.
func (p *call) lose(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.final != nil || p.err != nil:
	case p.left == hasLeft:
		p.err = err
		p.poke()
	case p.left == leaves:
		p.doubt = err // whether it left is known when the link says so
	}
}

// begin notes that a link is about to take the line: one that breaks meanwhile
// must know.
func (p *call) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left, p.doubt = leaves, nil
}

// sent notes whether it left.
func (p *call) sent(left bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left = hasLeft; !left {
		p.left, p.doubt = notYet, nil
	}
	if p.doubt != nil && p.final == nil && p.err == nil {
		p.err = p.doubt
		p.poke()
	}
}

// now is the line as it is to be sent now: a host that takes it later than it
// was written must not work on it, or answer it, beyond the time when its
// caller has gone.
func (p *call) now() []byte {
	if p.timeout == 0 {
		return p.line
	}
	left := strconv.AppendInt(make([]byte, 0, 20), seconds(p.until), 10)
	if said := p.line[p.timeout : len(p.line)-2]; bytes.Equal(said, left) {
		return p.line
	}
	return append(append(bytes.Clone(p.line[:p.timeout]), left...), "}\n"...)
}

// seconds is how many are left until t, at least one.
func seconds(t time.Time) int64 { return max(1, int64(time.Until(t)/time.Second)) }

func (p *call) mayBeThere() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.left != notYet && p.final == nil && p.err == nil
}

func (p *call) open() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.final == nil && p.err == nil && p.doubt == nil
}

func (p *call) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// file notes a request as under way, and gives the link for it if there is one.
// The line is taken over.
func (c *Client) file(ctx context.Context, id string, line []byte, timeout int) (*call, link, error) {
	if len(line) > c.limits.Frame {
		return nil, nil, ErrTooLarge
	}
	p := &call{id: id, line: append(line, '\n'), wake: make(chan struct{}, 1)}
	if until, ok := ctx.Deadline(); !ok {
		p.deadline = time.Now().Add(c.limits.Request)
	} else {
		p.timeout, p.until = timeout, until
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil, nil, ErrClosed
	case len(c.pending) >= c.limits.Requests:
		return nil, nil, ErrBusy
	case c.pending[id] != nil:
		return nil, nil, ErrReplay
	}
	c.pending[id] = p
	if !p.deadline.IsZero() && (c.due.IsZero() || p.deadline.Before(c.due)) {
		c.wakeAtLocked(p.deadline)
	}
	return p, c.link, nil
}

// wakeAtLocked sets the one timer of all deadlines: one for each call costs
// more than the rest of its bookkeeping.
func (c *Client) wakeAtLocked(due time.Time) {
	c.due = due
	if c.timer == nil {
		c.timer = time.AfterFunc(time.Until(due), c.overdue)
	} else {
		c.timer.Reset(time.Until(due))
	}
}

// overdue fails the calls whose deadline has passed.
func (c *Client) overdue() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	var next time.Time
	for _, p := range c.pending {
		switch {
		case p.deadline.IsZero():
		case !now.Before(p.deadline):
			p.fail(ErrTimeout)
		case next.IsZero() || p.deadline.Before(next):
			next = p.deadline
		}
	}
	c.due = time.Time{}
	if !next.IsZero() && !c.closed {
		c.wakeAtLocked(next)
	}
}

func (c *Client) drop(p *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pending, p.id)
}

// wait gives the final frame; events go to each in order, until it says stop.
func (c *Client) wait(ctx context.Context, p *call, each func(*Envelope) bool) (*Envelope, error) {
	for {
		p.mu.Lock()
		events := p.events
		p.events = nil
		final, err := p.final, p.err
		p.mu.Unlock()
		for _, m := range events {
			if each != nil && !each(m) {
				return nil, errStopped
			}
		}
		switch {
		case final != nil:
			return final, nil
		case err != nil:
			return nil, err
		}
		select {
		case <-p.wake:
		case <-ctx.Done():
			return nil, waitError(ctx)
		}
	}
}

var errStopped = errors.New("a2e: stopped by the caller")

// ask sends a request and waits for its final frame; events go to each in
// order, until it says stop.
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

// exchange is ask for a request that has been written; timeout is where in it
// its time stands, which the context gave, if it does.
func (c *Client) exchange(ctx context.Context, id string, line []byte, timeout int, each func(*Envelope) bool) (*Envelope, error) {
	p, l, err := c.file(ctx, id, line, timeout)
	if err != nil {
		return nil, err
	}
	defer c.drop(p)
	for {
		if l == nil {
			if l, err = c.await(ctx, p); err != nil {
				return nil, err
			}
		}
		p.begin()
		err = l.send(ctx, p.now())
		left := err == nil || errors.Is(err, ErrOutcomeUnknown)
		if p.sent(left); left {
			break // on doubt, the answer or the broken link tells
		}
		if ctx.Err() != nil {
			return nil, c.unreached(ctx)
		}
		if errors.Is(err, ErrTooLarge) || errors.Is(err, ErrFull) {
			return nil, err
		}
		c.broken(l, err) // it never left: the next link takes it
		l = nil
	}
	return c.wait(ctx, p, each)
}

// Ask sends a request and gives its response. A failure that the host reports
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
	e := Event{Envelope: m, Kind: EventKind(m.Str("kind")), Seq: m.Int("seq"), Data: m.Get("data")}
	if e.Kind == "" {
		e.Kind = KindStatus
	}
	return e
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

// Close says shutdown, ends the connection and, if there is one, the child
// process, and fails what is under way with [ErrClosed].
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
	if c.timer != nil {
		c.timer.Stop()
	}
	c.mu.Unlock()
	if l != nil {
		ctx, cancel := context.WithTimeout(c.ctx, 5*time.Second)
		if line, err := (Message{Type: "shutdown", Body: map[string]any{"timeout": 10}}).Encode(c.Now()); err == nil {
			_ = l.send(ctx, append(line, '\n'))
		}
		cancel()
		l.close(true)
	}
	c.cancel()
	if connecting != nil { // a child process that has not answered yet ends too
		<-connecting.done
	}
	return nil
}

// Tools lists the host's tools.
func (c *Client) Tools(ctx context.Context, q ToolQuery) ([]ToolDefinition, error) {
	if q.Tags == nil {
		q.Tags = []string{}
	}
	m, err := c.Ask(ctx, Message{Type: "tool/list/req", Body: q})
	if err != nil {
		return nil, err
	}
	var out []ToolDefinition
	if err := decodeLoose(m.Get("tools"), &out); err != nil {
		return nil, ErrSchema.Because(err)
	}
	return out, nil
}

// CallTool calls a tool. The result says whether the tool succeeded; an error
// says that there is none. onEvent, which may be nil, gets the events first.
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
	line := appendHead(make([]byte, 0, 2*headSize+len(args)), "tool/call/req", id, c.Now())
	line = appendString(append(line, `,"session_id":`...), c.SessionID())
	line = appendString(append(line, `,"tool_name":`...), name)
	line = appendASCII(append(line, `,"arguments":`...), args)
	line = appendString(append(line, `,"correlation_id":`...), id[:8])
	line = strconv.AppendBool(append(line, `,"streaming":`...), onEvent != nil)
	line = append(line, `,"timeout":`...)
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
