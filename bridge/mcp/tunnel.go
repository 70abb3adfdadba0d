package mcp

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/recorder"
)

// Bounds of a tunnel.
const (
	maxOpenCalls = 256              // of the peer, without an answer
	tunnelWrite  = 30 * time.Second // for the peer to take a message
	tunnelDrain  = 2 * time.Second  // for open calls to be answered when the hub stops
)

// StatusReplaced is the close code of a tunnel whose agent has a newer one.
const StatusReplaced websocket.StatusCode = 4001

// errReplaced ends a tunnel whose agent has a newer one.
var errReplaced = &tunnelEnd{StatusReplaced, "a newer tunnel of this agent took its place"}

// A tunnelEnd is why the hub ends a tunnel. The text goes to the peer.
type tunnelEnd struct {
	code websocket.StatusCode
	text string
}

func (e *tunnelEnd) Error() string { return e.text }

var (
	errTunnelDone    = &tunnelEnd{websocket.StatusNormalClosure, ""}
	errTunnelRestart = &tunnelEnd{websocket.StatusServiceRestart, "the hub stops; connect again"}
	errTunnelRevoked = &tunnelEnd{websocket.StatusPolicyViolation, "the credentials hold no longer"}
	errTunnelBinary  = &tunnelEnd{websocket.StatusUnsupportedData, "messages are text frames"}
	errTunnelSilent  = errors.New("the peer does not answer pings")
	errTunnelLost    = errors.New("the connection is lost")
)

// serveConnect is the tunnel of a client: a session over WebSocket, with one JSON-RPC message in each text frame. The
// door has checked Host, Origin and the caller.
func (b *Binding) serveConnect(w http.ResponseWriter, r *http.Request, c *caller) {
	b.serveClient(w, r, c, b.calls.cancelled)
}

func (b *Binding) serveClient(w http.ResponseWriter, r *http.Request, c *caller, cancel func(session, id string)) {
	t := &tunnel{b: b, caller: c, cancel: cancel}
	b.serveTunnel(w, r, c, b.c.MaxBody, t, func(ctx context.Context, t *tunnel) error {
		session, err := b.clients.server.Connect(ctx, t, nil)
		if err != nil {
			return err
		}
		return session.Wait()
	})
}

// serveAttach is the tunnel of an attached server: the hub is the client on it. The door has checked Host, Origin and
// the caller, and that it is the agent whose server it brings.
func (b *Binding) serveAttach(w http.ResponseWriter, r *http.Request, c *caller, agent string) {
	b.serveTunnel(w, r, c, b.c.MaxAnswer, &tunnel{b: b}, func(ctx context.Context, t *tunnel) error {
		return b.servers.join(ctx, agent, t)
	})
}

// serveTunnel serves a tunnel until its session or its connection ends, the credentials are revoked, or the hub stops.
func (b *Binding) serveTunnel(w http.ResponseWriter, r *http.Request, c *caller, limit int64, t *tunnel,
	session func(context.Context, *tunnel) error) {
	// Close waits for a tunnel, which the server of HTTP does not know once it is hijacked.
	done := make(chan struct{})
	if !b.spawn(func() {
		defer close(done)
		b.runTunnel(w, r, c, limit, t, session)
	}) {
		http.Error(w, "the hub stops", http.StatusServiceUnavailable)
		return
	}
	<-done
}

func (b *Binding) runTunnel(w http.ResponseWriter, r *http.Request, c *caller, limit int64, t *tunnel,
	session func(context.Context, *tunnel) error) {
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true}) // the door checked Origin
	if err != nil {
		return // the answer was written
	}
	defer func() { _ = ws.CloseNow() }()
	ws.SetReadLimit(limit)
	ctx, end := context.WithCancelCause(b.ctx)
	defer end(nil)
	t.address = r.RemoteAddr
	t.ws, t.id, t.end, t.open = ws, rand.Text(), end, map[jsonrpc.ID]bool{}
	valid := ctx
	if c.During != nil {
		var release func()
		valid, release = c.During(ctx)
		defer release()
	}
	ended := make(chan error, 1)
	go func() { ended <- session(valid, t) }()
	pinged := make(chan struct{})
	go func() {
		defer close(pinged)
		t.ping(ctx)
	}()
	select {
	case err = <-ended:
		ended <- nil // for the wait below
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
	case <-valid.Done():
		if err = context.Cause(ctx); err == nil {
			err = errTunnelRevoked
		}
	case <-b.streaming.Done():
		t.drain(ctx)
		err = errTunnelRestart
	}
	end(err)
	t.close(err)
	<-ended
	<-pinged
	if t.caller == nil {
		b.c.Logger.Info("the tunnel of an attached server ended", "agent", c.Name, "reason", context.Cause(ctx))
	}
}

// A tunnel is a WebSocket as transport of one session of MCP.
type tunnel struct {
	b      *Binding
	caller *caller                  // who calls; nil: the peer is an attached server
	cancel func(session, id string) // cancels a call of the caller
	ws     *websocket.Conn
	id     string
	end    context.CancelCauseFunc

	address string // of the peer

	mu      sync.Mutex
	open    map[jsonrpc.ID]bool // calls of the peer without an answer; true: cancelled, and gets none
	pending int                 // open calls, and those whose answer is being written
	settled chan struct{}       // closed when pending becomes 0; nil: nobody waits for it
}

// Connect implements mcp.Transport.
func (t *tunnel) Connect(context.Context) (mcp.Connection, error) { return t, nil }

// SessionID implements mcp.Connection.
func (t *tunnel) SessionID() string { return t.id }

// replaced ends the tunnel because its agent has a newer one.
func (t *tunnel) replaced() { t.end(errReplaced) }

// Close implements mcp.Connection. It does not wait for the peer: the SDK calls it with a lock held.
func (t *tunnel) Close() error {
	t.end(errTunnelDone)
	return nil
}

// close ends the WebSocket, which unblocks Read.
func (t *tunnel) close(why error) {
	var e *tunnelEnd
	switch {
	case errors.As(why, &e):
	case errors.Is(why, errTunnelSilent), errors.Is(why, errTunnelLost):
		return // the peer takes no close frame
	case why == nil:
		e = errTunnelDone
	case errors.Is(why, context.Canceled):
		e = errTunnelRestart
	default:
		e = &tunnelEnd{websocket.StatusInternalError, ""}
		t.b.c.Logger.Warn("a tunnel ended", "session", t.id, "error", why)
	}
	_ = t.ws.Close(e.code, e.text) // the peer may be gone
	_ = t.ws.CloseNow()
}

// ping keeps the tunnel open, and ends it when the peer is gone.
func (t *tunnel) ping(ctx context.Context) {
	tick := time.NewTicker(t.b.c.KeepAlive)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		wait, cancel := context.WithTimeout(ctx, 2*t.b.c.KeepAlive)
		err := t.ws.Ping(wait)
		cancel()
		if err != nil && ctx.Err() == nil {
			t.end(errTunnelSilent)
			_ = t.ws.CloseNow()
			return
		}
	}
}

// drain waits a moment until the peer's calls are answered.
func (t *tunnel) drain(ctx context.Context) {
	t.mu.Lock()
	if t.pending == 0 {
		t.mu.Unlock()
		return
	}
	settled := make(chan struct{})
	t.settled = settled
	t.mu.Unlock()
	timer := time.NewTimer(tunnelDrain)
	defer timer.Stop()
	select {
	case <-settled:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Read implements mcp.Connection. It answers what is no message of JSON-RPC itself, and goes on.
func (t *tunnel) Read(context.Context) (jsonrpc.Message, error) {
	for {
		kind, data, err := t.ws.Read(context.Background()) // until close
		if err != nil {
			t.end(fmt.Errorf("%w: %w", errTunnelLost, err))
			return nil, io.EOF
		}
		if kind != websocket.MessageText {
			t.end(errTunnelBinary)
			return nil, io.EOF
		}
		m, id, refusal := parseMessage(data)
		if refusal == nil {
			if m, refusal, err = t.take(m, id, data); err != nil {
				return nil, err
			}
		}
		switch {
		case refusal == nil:
			return m, nil
		case t.caller != nil:
			if err := t.refuse(id, refusal); err != nil {
				return nil, err
			}
		default:
			t.b.c.Logger.Warn("an attached server sent a bad message", "session", t.id, "error", refusal)
			if m = failedAnswer(id, refusal); m != nil {
				return m, nil
			}
		}
	}
}

// take looks at a message before the SDK does.
func (t *tunnel) take(m jsonrpc.Message, id jsonx.Value, data []byte) (jsonrpc.Message, *jsonrpc.Error, error) {
	r, ok := m.(*jsonrpc.Request)
	if !ok {
		if t.caller != nil {
			return m, nil, nil
		}
		raw, err := withRaw(data)
		if err == nil {
			m, err = jsonrpc.DecodeMessage(raw)
		}
		if err != nil {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: err.Error()}, nil
		}
		return m, nil, nil
	}
	if r.IsCall() {
		if refusal := t.opened(r.ID); refusal != nil {
			return nil, refusal, nil
		}
	}
	if t.caller == nil {
		return r, nil, nil
	}
	c := *t.caller
	c.session, c.id = t.id, string(id)
	r.Extra = &mcp.RequestExtra{TokenInfo: c.tokenInfo()}
	if r.Method == "notifications/cancelled" {
		t.cancelled(r.Params)
	}
	return r, nil, nil
}

// opened notes a call of the peer.
func (t *tunnel) opened(id jsonrpc.ID) *jsonrpc.Error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, known := t.open[id]; known {
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "the id of an open request was used again"}
	}
	if len(t.open) >= maxOpenCalls {
		return &jsonrpc.Error{Code: jsonrpc.CodeInternalError,
			Message: fmt.Sprintf("%d requests are open; wait for answers", maxOpenCalls)}
	}
	t.open[id] = false
	t.pending++
	return nil
}

// cancelled passes a cancel of the peer on. The cancelled call gets no answer.
func (t *tunnel) cancelled(params json.RawMessage) {
	var p struct {
		RequestID jsonx.Value `json:"requestId"`
	}
	if jsonx.Decode(params, &p) != nil {
		return // the SDK refuses it
	}
	id, ok := messageID(p.RequestID)
	if !ok {
		return
	}
	t.mu.Lock()
	_, open := t.open[id]
	if open {
		t.open[id] = true
	}
	t.mu.Unlock()
	if open {
		t.cancel(t.id, string(exactID(p.RequestID)))
	}
}

// Write implements mcp.Connection.
func (t *tunnel) Write(ctx context.Context, m jsonrpc.Message) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if r, ok := m.(*jsonrpc.Response); ok {
		// The peer may use the id again as soon as it has the answer.
		t.mu.Lock()
		cancelled, open := t.open[r.ID]
		delete(t.open, r.ID)
		t.mu.Unlock()
		if open {
			defer t.answered()
		}
		if cancelled {
			return nil
		}
		if r.Error != nil {
			r = &jsonrpc.Response{ID: r.ID, Error: outsideError(r.Error)}
			m = r
		}
	}
	data, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return err
	}
	if r, ok := m.(*jsonrpc.Request); ok && t.caller == nil && r.Method == "tools/call" {
		recorder.Sent(ctx, t.address, data)
	}
	return t.write(data)
}

// answered notes that a call of the peer is done.
func (t *tunnel) answered() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pending--; t.pending == 0 && t.settled != nil {
		close(t.settled)
		t.settled = nil
	}
}

// refuse answers a message that does not reach the SDK.
func (t *tunnel) refuse(id jsonx.Value, e *jsonrpc.Error) error {
	data, err := rpcErrorBody(id, e.Code, e.Message, nil)
	if err != nil {
		return err
	}
	return t.write(data)
}

// write sends a message. It does not end with the context of a call: an unfinished frame would end the whole tunnel.
func (t *tunnel) write(data []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), tunnelWrite)
	defer cancel()
	return t.ws.Write(ctx, websocket.MessageText, data)
}

// outsideError is an error of the SDK or of a handler as peers may see it.
func outsideError(err error) *jsonrpc.Error {
	if e, ok := errors.AsType[*jsonrpc.Error](err); ok && e.Code != 0 {
		return e
	}
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest,
		Message: "the request cannot be served: the session must be initialized, and the parameters valid"}
}

// failedAnswer is an answer that cannot be read, as an error for its call; nil: it is no answer.
func failedAnswer(id jsonx.Value, e *jsonrpc.Error) jsonrpc.Message {
	if call, ok := messageID(id); ok {
		return &jsonrpc.Response{ID: call, Error: &jsonrpc.Error{Code: jsonrpc.CodeInternalError,
			Message: "the answer cannot be read: " + e.Message}}
	}
	return nil
}

// parseMessage parses one message of JSON-RPC strictly. id is in its one form, also that of a bad message; nil: none.
func parseMessage(data []byte) (m jsonrpc.Message, id jsonx.Value, refusal *jsonrpc.Error) {
	w, bad := readWire(data)
	if bad != nil {
		if in := map[string]jsonx.Value{}; w.id == nil && jsonx.Tolerable(data) {
			knownMembers(data, in, []string{"id"})
			w.id = exactID(in["id"])
		}
		return nil, w.id, &jsonrpc.Error{Code: bad.rpc, Message: bad.text}
	}
	m, err := jsonrpc.DecodeMessage(w.body)
	if err != nil {
		return nil, w.id, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "no message of JSON-RPC 2.0"}
	}
	return m, w.id, nil
}

// messageID gives an id as the SDK has it.
func messageID(id jsonx.Value) (jsonrpc.ID, bool) {
	var v any
	switch id = exactID(id); jsonx.Kind(id) {
	case '"':
		v = wireText(id)
	case '0':
		n, err := strconv.ParseInt(string(id), 10, 64)
		if err != nil {
			return jsonrpc.ID{}, false
		}
		v = float64(n)
	default:
		return jsonrpc.ID{}, false
	}
	made, err := jsonrpc.MakeID(v)
	return made, err == nil
}
