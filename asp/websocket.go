package asp

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/parley-hub/parley/internal/jsonx"
)

// The WebSocket binding, transports/websocket.

// maxUnproved bounds the WebSockets that are not authenticated yet; with their
// first frame, they hold 8 MiB at most.
const maxUnproved = 512

// proves registers a WebSocket that is not authenticated yet. It does so before the
// handshake ends, so that the list has the order of the connections. When there are
// too many, it cuts off the oldest: an agent with a key authenticates at once.
func (s *Server) proves(k *socket) (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.streams.unproved) >= maxUnproved {
		s.streams.unproved[0].cutOff() // without a close frame: the peer may not read
		s.streams.unproved = s.streams.unproved[1:]
	}
	s.streams.unproved = append(s.streams.unproved, k)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.streams.unproved = slices.DeleteFunc(s.streams.unproved, func(o *socket) bool { return o == k })
	}
}

// Close codes of the WebSocket binding; 4001 is the vendor's.
const (
	closeAuth      websocket.StatusCode = 4001
	closeRate      websocket.StatusCode = 4008
	closeTooLarge  websocket.StatusCode = 4009
	closeSession   websocket.StatusCode = 4010
	closeNoPong    websocket.StatusCode = 4011
	maxMissedPongs                      = 2
)

// socketFrame is a frame from a peer.
type socketFrame struct {
	Type         string      `json:"type"`
	Token        string      `json:"token"`
	Proof        string      `json:"dpopProof"`
	LastSequence *int64      `json:"lastSequence"`
	Envelope     jsonx.Value `json:"envelope"`
}

type socket struct {
	s       *Server
	r       *http.Request
	conn    *websocket.Conn
	session string
	cutOff  context.CancelFunc // ends the connection, also before it is open
	caller  *caller
	format  Format
	missed  atomic.Int64 // heartbeats since the last pong
}

func (s *Server) serveWebSocket(w http.ResponseWriter, r *http.Request, _ *caller, args []string) error {
	ctx, cutOff := context.WithCancel(r.Context())
	defer cutOff()
	k := &socket{s: s, r: r, session: args[0], cutOff: cutOff}
	proved := s.proves(k)
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		proved()
		return nil // the HTTP answer was written
	}
	defer func() { _ = conn.CloseNow() }()
	conn.SetReadLimit(-1) // socket.next bounds frames, and closes with the binding's own code
	k.conn = conn
	k.run(ctx, proved)
	return nil
}

// run serves the connection; proved is called once the peer is authenticated.
func (k *socket) run(ctx context.Context, proved func()) {
	ledger, from, err := k.auth(ctx)
	proved()
	var done func()
	if err == nil {
		done, err = k.s.stream(k.caller.agent.ID)
	}
	if err != nil {
		code := closeAuth
		if errors.Is(err, ErrFull) {
			code = closeRate
		}
		k.fail(ctx, err)
		_ = k.conn.Close(code, asError(err).Code)
		return
	}
	defer done()
	ids := []string{}
	for _, p := range ledger.Participants {
		ids = append(ids, p.AgentID)
	}
	k.format = ledger.Format
	ok := map[string]any{"sessionId": k.session, "state": ledger.State, "participants": ids,
		"lastSequence": ledger.Head.Count - 1}
	if err := k.write(ctx, plain("auth_ok", ok)); err != nil {
		return
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	read := make(chan struct{})
	go func() {
		defer close(read)
		cancel(k.read(ctx))
	}()
	err = k.s.follow(ctx, k.session, k.caller.agent.ID, from, socketSink{k, ctx})
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	var c closing
	switch {
	case errors.As(err, &c):
		_ = k.conn.Close(c.code, "")
	case err == nil:
		_ = k.conn.Close(closeSession, "session_closed")
	case errors.As(err, new(*Error)):
		k.fail(ctx, err)
		_ = k.conn.Close(closeAuth, asError(err).Code)
	}
	_ = k.conn.CloseNow()
	<-read
}

// socketSink writes frames as they are emitted.
type socketSink struct {
	k   *socket
	ctx context.Context
}

func (o socketSink) emit(f *frame) error {
	if f.kind == "heartbeat" && o.k.missed.Add(1) > maxMissedPongs {
		return closing{closeNoPong}
	}
	return o.k.write(o.ctx, f)
}

func (o socketSink) flush() error { return nil }

// closing ends a connection with a code.
type closing struct{ code websocket.StatusCode }

func (c closing) Error() string { return "asp: closing with " + strconv.Itoa(int(c.code)) }

// Bounds of the first frame, and of the part of a frame around its message.
const (
	maxAuthFrame = 16 << 10
	maxAround    = 64 << 10
)

// next reads a frame of at most limit bytes.
func (k *socket) next(ctx context.Context, limit int) (websocket.MessageType, []byte, error) {
	kind, r, err := k.conn.Reader(ctx)
	if err != nil {
		return 0, nil, err
	}
	b, err := io.ReadAll(io.LimitReader(r, int64(limit)+1))
	if err == nil && len(b) > limit {
		err = refuse("message_too_large", "").at(1)
	}
	return kind, b, err
}

// first reads the frame that must authenticate. The end of a read's context would
// cut the connection off without an error frame, so a timer refuses a silent peer.
func (k *socket) first(ctx context.Context) (websocket.MessageType, []byte, error) {
	told := make(chan struct{})
	timer := time.AfterFunc(cmp.Or(k.s.AuthWait, 10*time.Second), func() {
		defer close(told)
		_ = k.fail(ctx, refuse("auth_required", ""))
		_ = k.conn.Close(closeAuth, "auth_required")
	})
	kind, b, err := k.next(ctx, maxAuthFrame)
	if !timer.Stop() {
		<-told
		err = errors.Join(context.DeadlineExceeded, err)
	}
	return kind, b, err
}

// auth takes the first frame, which must authenticate.
func (k *socket) auth(ctx context.Context) (*Ledger, int64, error) {
	kind, b, err := k.first(ctx)
	if err != nil {
		return nil, 0, refuseCause("auth_required", "", err)
	}
	var f socketFrame
	if kind != websocket.MessageText || jsonx.Decode(b, &f) != nil || f.Type != "auth" {
		return nil, 0, refuse("auth_required", "")
	}
	if k.caller, err = k.admit(f); err != nil {
		return nil, 0, err
	}
	ledger, err := k.s.Session(ctx, k.session, k.caller.agent.ID)
	if err != nil {
		return nil, 0, err
	}
	from := ledger.Head.Count
	if f.LastSequence != nil {
		from = max(*f.LastSequence+1, 0)
	}
	return ledger, from, nil
}

// admit accepts a proof for the session, or a proof for the request with any of the
// schemes that its URL may have.
func (k *socket) admit(f socketFrame) (*caller, error) {
	url := k.s.url(k.r)
	var refusal error
	for _, try := range [...][2]string{{messageMethod, messageURL(k.session)}, {"GET", url},
		{"GET", "ws" + url[len("http"):]}} {
		c, err := k.s.admitToken(k.r, f.Token, f.Proof, try[0], try[1], k.s.store)
		switch codeName(err) {
		case "dpop_htm_mismatch":
			if refusal == nil {
				refusal = err
			}
		case "dpop_htu_mismatch":
			refusal = err // the proof's method is right
		default:
			return c, err
		}
	}
	return nil, refusal
}

func codeName(err error) string {
	if err == nil {
		return ""
	}
	return asError(err).Code
}

func (k *socket) read(ctx context.Context) error {
	for {
		// The limit leaves room around the message: a message that is a little too
		// large is refused, and the connection stays open.
		kind, b, err := k.next(ctx, maxMessage+maxAround)
		if errors.Is(err, ErrTooLarge) {
			_ = k.refuse(ctx, nil, err)
			return closing{closeTooLarge}
		}
		if err != nil {
			return context.Canceled // the peer is gone
		}
		if err := k.take(ctx, kind, b); err != nil {
			return err
		}
	}
}

// take handles one frame. It answers a bad frame with an error frame; the connection
// stays open.
func (k *socket) take(ctx context.Context, kind websocket.MessageType, b []byte) error {
	if kind == websocket.MessageBinary {
		if k.format != MessagePack {
			return k.refuse(ctx, b, refuse("format_mismatch", "").at(3))
		}
		return k.ingest(ctx, b, MessagePack)
	}
	var f socketFrame
	if err := jsonx.Decode(b, &f); err != nil {
		return k.refuse(ctx, b, refuseCause(jsonCode(b, err), "", err))
	}
	switch f.Type {
	case "pong":
		k.missed.Store(0)
		return nil
	case "send":
		return k.ingest(ctx, withMessageID(f.Envelope), JSON)
	}
	return k.refuse(ctx, b, refuse("invalid_field", "type"))
}

// refuse reports the refusal of frame b to the server's hook and to the peer.
func (k *socket) refuse(ctx context.Context, b []byte, err error) error {
	return k.fail(ctx, k.s.refused(ctx, k.caller.agent.ID, k.session, b, err))
}

func (k *socket) ingest(ctx context.Context, raw []byte, f Format) error {
	t := Transport{Format: f, Agent: k.caller.agent.ID, AccessToken: k.caller.token}
	receipt, err := k.s.Ingest(ctx, raw, t, k.session)
	if err != nil {
		if failed := k.fail(ctx, err); !errors.Is(err, ErrRateLimited) {
			return failed
		}
		return closing{closeRate}
	}
	ack := map[string]any{"messageId": receipt.MessageID, "sequenceNumber": receipt.SequenceNumber}
	return k.write(ctx, plain("ack", ack))
}

// withMessageID adds a messageId to a message without one: the member is not
// signed, and peers leave it to the server (project).
func withMessageID(raw []byte) []byte {
	id, err := NewSessionID() // any UUID v7 will do
	if err != nil {
		return raw
	}
	return withMember(raw, "messageId", id)
}

func (k *socket) fail(ctx context.Context, err error) error {
	e := asError(err)
	fields := map[string]any{"code": e.Code, "message": e.Text}
	if len(e.Details) > 0 {
		fields["details"] = e.Details
	}
	if e.Reference != "" {
		fields["reference"] = e.Reference
	}
	return k.write(ctx, plain("error", fields))
}

func (k *socket) write(ctx context.Context, f *frame) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(k.s.WriteWait, 30*time.Second))
	defer cancel()
	if f.record != nil && k.format == MessagePack {
		b, err := k.s.deliver(k.r, f.record)
		if err != nil {
			return err
		}
		return k.conn.Write(ctx, websocket.MessageBinary, b)
	}
	b, err := k.s.encode(k.r, f, f.kind)
	if err != nil {
		return err
	}
	return k.conn.Write(ctx, websocket.MessageText, b)
}
