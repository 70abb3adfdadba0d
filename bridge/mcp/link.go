package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/time/rate"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge/peerauth"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/sleep"
)

// A link is one connection to a server.
type link struct {
	s        *servers
	v        *server
	identity parley.Identity
	tunnel   bool
	replaced func()        // tells the other end of a tunnel that a newer one took its place; nil: it is not told
	elicits  bool          // the hub told the server that it may ask
	asks     *rate.Limiter // requests of the server
	wire     *wire         // nil: a tunnel

	credentials peerauth.Credentials // of the settings when the link was made

	ctx    context.Context // ends with the link
	cancel context.CancelFunc
	once   sync.Once

	conn    mcp.Connection // of the session
	session *mcp.ClientSession

	mu      sync.Mutex
	calls   map[string]*ongoing // by progress token
	last    uint64              // token
	retired bool                // it ends with its last call
	offered map[string]bool     // tools that the server lists
	read    time.Time           // when it did
	rereads bool                // they are to be read again
}

func (s *servers) newLink(v *server, id parley.Identity) *link {
	set := s.b.settingsOf(v.agent)
	l := &link{s: s, v: v, identity: id, elicits: set.Elicitation, credentials: set.Credentials,
		calls: map[string]*ongoing{}, asks: rate.NewLimiter(10, asksAtOnce)}
	l.ctx, l.cancel = context.WithCancel(context.Background()) // end takes leave of the server before
	return l
}

// A linkTransport notes the connection that the SDK makes. That of a tunnel is filtered; that of HTTP is by its wire.
type linkTransport struct {
	mcp.Transport
	l *link
}

func (t *linkTransport) Connect(ctx context.Context) (mcp.Connection, error) {
	c, err := t.Transport.Connect(ctx)
	if err != nil {
		return nil, err
	}
	if t.l.tunnel {
		c = &tunnelFilter{c, t.l}
	}
	t.l.mu.Lock()
	t.l.conn = c
	t.l.mu.Unlock()
	return c, nil
}

// open opens the session, and reads the tools.
func (l *link) open(ctx context.Context, t mcp.Transport) error {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	caps := &mcp.ClientCapabilities{}
	if l.elicits {
		caps.Elicitation = &mcp.ElicitationCapabilities{Form: &mcp.FormElicitationCapabilities{}}
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "parley", Title: "Parley", Version: l.s.b.c.Version},
		&mcp.ClientOptions{Capabilities: caps, MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true},
			ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { l.listChanged() }})
	client.AddSendingMiddleware(probe)
	client.AddReceivingMiddleware(l.answer)
	opened := &ongoing{}
	unblock := context.AfterFunc(ctx, l.disconnect) // of what the SDK does without a bound
	session, err := safely(func() (*mcp.ClientSession, error) {
		return client.Connect(withOngoing(ctx, opened), &linkTransport{t, l}, nil)
	})
	if err != nil {
		unblock()
		if fault := cmp.Or(opened.fault(), transportFault(err)); fault != nil {
			err = fault
		}
		return fmt.Errorf("cannot connect: %w", err)
	}
	l.mu.Lock()
	l.session = session
	l.mu.Unlock()
	if !l.s.b.spawn(func() {
		defer l.end()
		defer context.AfterFunc(l.s.b.ctx, l.end)()
		_ = session.Wait() // each call tells its own error
	}) || l.ctx.Err() != nil {
		unblock()
		_ = session.Close() // it has no calls
		return errEnded
	}
	if err := l.readTools(ctx); err != nil {
		unblock()
		return err
	}
	if !unblock() {
		return context.Cause(ctx)
	}
	return nil
}

// probe bounds the request that finds out the server's revision: servers that do not know it may be silent. It notes
// the answer of a server that wants credentials: that says what to do, should the handshake fail too.
func probe(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, r mcp.Request) (mcp.Result, error) {
		if method != "server/discover" {
			return next(ctx, method, r)
		}
		ctx, cancel := context.WithTimeout(ctx, probeTime)
		defer cancel()
		res, err := next(ctx, method, r)
		if s, ok := errors.AsType[*serverStatus](err); ok &&
			(s.status == http.StatusUnauthorized || s.status == http.StatusForbidden) {
			ongoingOf(ctx).fail(s)
		}
		return res, err
	}
}

// safely makes an error of a panic of the SDK that the server's answer brought about.
func safely[T any](f func() (T, error)) (v T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errMalformed, p)
		}
	}()
	return f()
}

// disconnect ends the connection, if there is one.
func (l *link) disconnect() {
	l.mu.Lock()
	c := l.conn
	l.mu.Unlock()
	if c != nil {
		_ = c.Close() // the server may be gone
	}
}

// end ends the link. Calls in progress fail.
func (l *link) end() {
	l.once.Do(func() {
		l.v.drop(l)
		l.mu.Lock()
		calls := slices.Collect(maps.Values(l.calls))
		l.mu.Unlock()
		for _, o := range calls {
			o.fail(errEnded)
		}
		l.disconnect()
		l.cancel()
		l.mu.Lock()
		session := l.session
		l.mu.Unlock()
		if session != nil {
			_ = session.Close() // it ended with its connection
		}
		if l.wire != nil {
			l.wire.peer.CloseIdleConnections()
		}
	})
}

// errEnded is the cause of errors about a call whose connection ended.
var errEnded = errors.New("the connection to the server ended")

// retire ends the link as soon as it has no calls.
func (l *link) retire() {
	l.mu.Lock()
	l.retired = true
	idle := len(l.calls) == 0
	l.mu.Unlock()
	if idle {
		l.end()
	}
}

// listChanged reads the tools again, some time later.
func (l *link) listChanged() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rereads || l.session == nil {
		return
	}
	l.rereads = true
	wait := time.Until(l.read.Add(rereadEvery))
	if !l.s.b.spawn(func() {
		if sleep.For(l.ctx, wait) != nil {
			return
		}
		l.mu.Lock()
		l.rereads = false
		l.mu.Unlock()
		ctx, cancel := context.WithTimeout(l.ctx, connectTime)
		defer cancel()
		if err := l.readTools(ctx); err != nil && l.ctx.Err() == nil {
			l.s.b.c.Logger.Warn("cannot read the changed tools of an MCP server", "agent", l.v.agent, "error", err)
		}
	}) {
		l.rereads = false
	}
}

// A tunnelFilter is the connection of a tunnel as the SDK may read it: with sound messages only.
type tunnelFilter struct {
	mcp.Connection
	l *link
}

// Write implements mcp.Connection.
func (f *tunnelFilter) Write(ctx context.Context, m jsonrpc.Message) error {
	if r, ok := m.(*jsonrpc.Request); ok && r.IsCall() {
		if o := ongoingOf(ctx); o != nil {
			o.sent.Store(true)
		}
	}
	return f.Connection.Write(ctx, m)
}

// Read implements mcp.Connection.
func (f *tunnelFilter) Read(ctx context.Context) (jsonrpc.Message, error) {
	for {
		m, err := f.Connection.Read(ctx)
		if err != nil {
			return nil, err
		}
		if r, ok := m.(*jsonrpc.Response); ok && r.Error == nil {
			if r.Result, err = rawResult(r.Result); err != nil {
				m = &jsonrpc.Response{ID: r.ID, Error: &lostError{true, fmt.Errorf("%w: %w", errMalformed, err)}}
			}
		}
		if m, err = f.l.receive(m, nil); m != nil || err != nil {
			return m, err
		}
	}
}

// callMeta is the member of _meta, of a server's request to the hub, that has the progress token of the call to which
// the request belongs. The hub writes it when the request comes in on the stream of that call.
const callMeta = "hub.parley/call"

// receive takes a message of the server. It returns nil if the SDK is not to see it. o is the call on whose stream it
// came; nil: not known.
func (l *link) receive(m jsonrpc.Message, o *ongoing) (jsonrpc.Message, error) {
	r, ok := m.(*jsonrpc.Request)
	if !ok {
		return m, nil
	}
	switch {
	case r.IsCall():
		if !l.asks.Allow() {
			return nil, errFlood
		}
		if r.Method == "elicitation/create" {
			var token string
			if o != nil {
				token = o.token
			}
			r.Params = markCall(r.Params, token)
		}
		return r, nil
	case r.Method == "notifications/progress":
		l.progressed(r.Params)
	case r.Method == "notifications/tools/list_changed":
		l.mu.Lock()
		defer l.mu.Unlock()
		if !l.rereads {
			return r, nil
		}
	case r.Method == "notifications/cancelled":
		if l.asks.Allow() {
			return r, nil
		}
	}
	return nil, nil
}

// markCall sets callMeta, or removes it for an empty token. It gives nil for params that are malformed: the request is
// refused.
func markCall(params json.RawMessage, token string) json.RawMessage {
	params, err := strictObject(params)
	var members, meta map[string]jsonx.Value
	if err != nil || jsonx.Decode(params, &members) != nil {
		return nil
	}
	if v := members["_meta"]; !jsonx.IsNull(v) && jsonx.Decode(v, &meta) != nil {
		return nil
	}
	if meta == nil {
		meta = map[string]jsonx.Value{}
	}
	delete(meta, callMeta)
	if token != "" {
		meta[callMeta] = jsonx.AppendText(nil, token)
	}
	members["_meta"], _ = jsonx.Encode(meta) // what was decoded can be encoded
	params, _ = jsonx.Encode(members)
	return params
}

// progressed passes progress to its call.
func (l *link) progressed(params json.RawMessage) {
	params, err := strictObject(params)
	var p mcp.ProgressNotificationParams
	if err != nil || json.Unmarshal(params, &p) != nil {
		return
	}
	token, _ := p.ProgressToken.(string)
	l.mu.Lock()
	o := l.calls[token]
	l.mu.Unlock()
	if o == nil {
		return
	}
	if o.events.Add(1) > maxEvents {
		o.fail(errFlood)
		return
	}
	select { // the latest one counts
	case <-o.progress:
	default:
	}
	select {
	case o.progress <- &p:
	default:
	}
}

// answer answers the server's requests: it gets nothing but what the operator allows it to ask.
func (l *link) answer(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, r mcp.Request) (mcp.Result, error) {
		switch {
		case method == "ping", strings.HasPrefix(method, "notifications/"):
			return next(ctx, method, r)
		case method == "elicitation/create":
			p, ok := r.GetParams().(*mcp.ElicitParams)
			if !ok || p == nil {
				return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "params are missing"}
			}
			token, _ := p.Meta[callMeta].(string)
			delete(p.Meta, callMeta)
			res, err := l.callFor(token).ask(ctx, p)
			if err != nil {
				return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: err.Error()}
			}
			return res, nil
		}
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "this client does not offer " + method}
	}
}

// callFor is the call to which a server's question belongs: the one with the token; without one, the only call that
// may be asked. nil: none.
func (l *link) callFor(token string) *ongoing {
	l.mu.Lock()
	defer l.mu.Unlock()
	if token != "" {
		return l.calls[token]
	}
	var found *ongoing
	for _, o := range l.calls {
		if o.elicit == nil {
			continue
		}
		if found != nil {
			return nil
		}
		found = o
	}
	return found
}
