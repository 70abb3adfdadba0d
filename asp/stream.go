package asp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/parley-hub/parley/internal/jsonx"
)

// Streams: server-sent events and WebSocket, transports/websocket. Both read
// the log from where the peer is and wait when they are at its end: nothing is
// queued for a slow peer, and one that comes back goes on where it was.

// A frame goes to a peer. Fields are those of the WebSocket frame of that
// type; envelope is raw.
type frame struct {
	kind     string
	position int64 // -1: none
	fields   map[string]any
	record   *Record // of kind message
}

func plain(kind string, fields map[string]any) *frame {
	return &frame{kind: kind, position: -1, fields: fields}
}

// streams counts connections. Under Server.mu.
type streams struct {
	all, guests int
	unproved    []*socket // that have not said yet who they are, oldest first
}

// stream reserves a connection of an agent.
func (s *Server) stream(agent string) (done func(), err error) {
	guests := 0
	if s.Guest != nil && s.Guest(agent) {
		guests = 1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	most := or(s.MaxStreams, 10_000)
	if s.streams.all >= most || guests > 0 && s.streams.guests >= max(1, most/4) {
		return nil, refuse("capacity_unavailable", "")
	}
	s.streams.all++
	s.streams.guests += guests
	return func() {
		s.mu.Lock()
		s.streams.all--
		s.streams.guests -= guests
		s.mu.Unlock()
	}, nil
}

// maxUnproved WebSockets wait for their first frame at once; with the frame,
// they hold 8 MiB at most.
const maxUnproved = 512

// proves notes a WebSocket that is to say who it is. The oldest of too many
// gives way: an agent that has a key proves itself at once.
func (s *Server) proves(k *socket) (done func()) {
	s.mu.Lock()
	var oldest *socket
	if len(s.streams.unproved) >= maxUnproved {
		oldest, s.streams.unproved = s.streams.unproved[0], s.streams.unproved[1:]
	}
	s.streams.unproved = append(s.streams.unproved, k)
	s.mu.Unlock()
	if oldest != nil {
		_ = oldest.conn.CloseNow() // without a word: it may not read
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.streams.unproved = slices.DeleteFunc(s.streams.unproved, func(o *socket) bool { return o == k })
	}
}

// EndStreams ends all streams, so that an HTTP server that shuts down need not
// wait for those who read them. Peers come back with what they read last.
func (s *Server) EndStreams() {
	s.init()
	s.endOnce.Do(func() { close(s.ended) })
}

// echoWait is how long a stream may keep its agent's own message, which that
// knows to be recorded, to bring it together with what follows.
const echoWait = 25 * time.Millisecond

// watcher is a stream that waits for news of a session. All but wake is under
// Server.mu.
type watcher struct {
	agent   string
	wake    chan struct{} // has a token when there is something new
	timer   *time.Timer   // of later
	pending bool
}

func (w *watcher) now() {
	if w.pending {
		w.pending = false
		w.timer.Stop()
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *watcher) later(mu *sync.Mutex) {
	if w.pending {
		return
	}
	w.pending = true
	if w.timer != nil {
		w.timer.Reset(echoWait)
		return
	}
	w.timer = time.AfterFunc(echoWait, func() {
		mu.Lock()
		defer mu.Unlock()
		if w.pending {
			w.now()
		}
	})
}

func (s *Server) watch(l *liveSession, agent string) (w *watcher, done func()) {
	w = &watcher{agent: agent, wake: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	l.watchers = append(l.watchers, w)
	return w, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		at := slices.Index(l.watchers, w)
		l.watchers = slices.Delete(l.watchers, at, at+1)
		if w.pending {
			w.pending = false
			w.timer.Stop()
		}
	}
}

// sink takes the frames of a stream. What was emitted reaches the peer with the
// next flush at the latest.
type sink interface {
	emit(*frame) error
	flush() error
}

// follow emits what happens in a session from position from on, until it is
// over, ctx ends or out fails.
func (s *Server) follow(ctx context.Context, session, agent string, from int64, out sink) error {
	l := s.acquire(session)
	defer s.release(l)
	w, done := s.watch(l, agent)
	defer done()
	heartbeat := time.NewTicker(or(s.Heartbeat, 30*time.Second))
	defer heartbeat.Stop()
	var alarm alarm
	defer alarm.stop()
	epoch, scores := int64(-1), make(map[string]float64)
	for {
		ledger, err := s.look(ctx, l, session)
		if err != nil {
			return err
		}
		for from < ledger.Head.Count {
			records, err := s.store.Records(ctx, session, from, 64)
			if err != nil {
				return err
			}
			if len(records) == 0 {
				break
			}
			for _, r := range records {
				if err := emitRecord(r, out.emit); err != nil {
					return err
				}
				from = r.Position + 1
			}
		}
		if now := s.scores.Load(); now != epoch {
			if err := s.emitScores(ctx, ledger, agent, scores, epoch >= 0, out.emit); err != nil {
				return err
			}
			epoch = now
		}
		if err := out.flush(); err != nil {
			return err
		}
		if ledger.State.Terminal() && from >= ledger.Head.Count {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ended:
			return closing{websocket.StatusGoingAway}
		case <-w.wake:
		case <-alarm.at(ledger.Deadline, s.now()):
			alarm.stop()
		case <-heartbeat.C:
			s.authenticated(ctx, agent)
			if err := out.emit(plain("heartbeat", map[string]any{"timestamp": Timestamp(s.now()), "state": ledger.State})); err != nil {
				return err
			}
		}
	}
}

// alarm is a timer for a time that moves on often: it is not set anew when that
// is later, and may go off too early.
type alarm struct {
	timer *time.Timer
	due   time.Time
}

// at gives a channel on which something comes at t or before; nil for none.
func (a *alarm) at(t, now time.Time) <-chan time.Time {
	switch {
	case t.IsZero():
		return nil
	case a.timer == nil || t.Before(a.due):
		a.stop()
		a.timer, a.due = time.NewTimer(max(t.Sub(now), time.Millisecond)), t
	}
	return a.timer.C
}

func (a *alarm) stop() {
	if a.timer != nil {
		a.timer.Stop()
		a.timer = nil
	}
}

func (s *Server) look(ctx context.Context, l *liveSession, session string) (*Ledger, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ledger, err := s.load(ctx, session, l, false)
	if err == nil && ledger == nil {
		err = refuse("session_not_found", "")
	}
	return ledger, err
}

func emitRecord(r *Record, emit func(*frame) error) error {
	if r.Kind == RecordMessage {
		if err := emit(&frame{kind: "message", position: r.Position, record: r}); err != nil {
			return err
		}
	}
	if r.From == r.To {
		return nil
	}
	f := plain("session_state", map[string]any{"state": r.To, "previous": r.From, "timestamp": Timestamp(r.Time)})
	if r.Kind != RecordMessage {
		f.position = r.Position
	}
	return emit(f)
}

// emitScores tells of scores that changed, and ends the stream of an agent
// that was removed.
func (s *Server) emitScores(ctx context.Context, ledger *Ledger, agent string, scores map[string]float64, tell bool, emit func(*frame) error) error {
	for _, p := range ledger.Participants {
		a, err := s.store.Agent(ctx, p.AgentID)
		if err != nil {
			return err
		}
		if a.Removed && p.AgentID == agent {
			return refuse("token_invalid", "")
		}
		before, known := scores[p.AgentID]
		scores[p.AgentID] = a.Score()
		if tell && known && before != a.Score() {
			if err := emit(plain("trust_update", map[string]any{"agentId": p.AgentID, "score": a.Score(), "previous": before})); err != nil {
				return err
			}
		}
	}
	return nil
}

// encode gives the members of f, with kind as "type" unless it is empty.
func (s *Server) encode(r *http.Request, f *frame, kind string) ([]byte, error) {
	fields := make(map[string]any, len(f.fields)+2)
	for k, v := range f.fields {
		fields[k] = v
	}
	if kind != "" {
		fields["type"] = kind
	}
	b, err := jsonx.Encode(fields)
	if err != nil || f.record == nil {
		return b, err
	}
	text, err := s.deliverJSON(r, f.record)
	if err != nil {
		return nil, err
	}
	// An encoder would spell the message anew: it goes in as it is.
	b = b[:len(b)-1]
	if len(fields) > 0 {
		b = append(b, ',')
	}
	b = append(append(b, `"envelope":`...), text...)
	return append(b, '}'), nil
}

// sse writes server-sent events. It is a [sink] for what one request brought.
type sse struct {
	s    *Server
	r    *http.Request
	w    http.ResponseWriter
	ctl  *http.ResponseController
	wait time.Duration
	b    []byte // events that are not written yet
}

func startSSE(s *Server, w http.ResponseWriter, r *http.Request) *sse {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	e := &sse{s: s, r: r, w: w, ctl: http.NewResponseController(w), wait: or(s.WriteWait, 30*time.Second)}
	_ = e.ctl.Flush()
	return e
}

// Bytes of events that are kept to be written together, and of the memory for
// them that a stream keeps while it waits.
const (
	maxUnwritten = 64 << 10
	maxKept      = 8 << 10
)

// begin begins an event, of which the data follows.
func (e *sse) begin(kind string, id int64) {
	e.b = append(append(append(e.b, "event: "...), kind...), '\n')
	if id >= 0 {
		e.b = append(strconv.AppendInt(append(e.b, "id: "...), id, 10), '\n')
	}
	e.b = append(e.b, "data: "...)
}

// data adds data to an event. Line breaks in JSON are white space; each starts a
// line of its own here.
func (e *sse) data(b []byte) {
	if bytes.IndexByte(b, '\n') < 0 && bytes.IndexByte(b, '\r') < 0 {
		e.b = append(e.b, b...)
		return
	}
	for {
		at := bytes.IndexAny(b, "\r\n")
		if at < 0 {
			e.b = append(e.b, b...)
			return
		}
		e.b = append(append(e.b, b[:at]...), "\ndata: "...)
		b = b[at+1:]
	}
}

// end ends an event.
func (e *sse) end() error {
	e.b = append(e.b, "\n\n"...)
	if len(e.b) < maxUnwritten {
		return nil
	}
	return e.flush()
}

func (e *sse) emit(f *frame) error {
	e.begin(f.kind, f.position)
	data, err := e.s.encode(e.r, f, "")
	if err != nil {
		return err
	}
	e.data(data)
	return e.end()
}

func (e *sse) flush() error {
	if len(e.b) == 0 {
		return nil
	}
	_ = e.ctl.SetWriteDeadline(time.Now().Add(e.wait)) // not all writers have one
	_, err := e.w.Write(e.b)
	if e.b = e.b[:0]; cap(e.b) > maxKept {
		e.b = nil
	}
	if err != nil {
		return err
	}
	return e.ctl.Flush()
}

// event writes one event, and what was emitted before.
func (e *sse) event(kind string, id int64, data []byte) error {
	e.begin(kind, id)
	e.data(data)
	if err := e.end(); err != nil {
		return err
	}
	return e.flush()
}

func (s *Server) serveEvents(w http.ResponseWriter, r *http.Request, c *caller, args []string) error {
	from, err := since(r.URL.Query())
	if err != nil {
		return err
	}
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		n, err := strconv.ParseInt(last, 10, 64)
		if err != nil || n < 0 || n > 1<<53 {
			return refuse("invalid_field", "Last-Event-ID")
		}
		from = n + 1
	}
	if _, err := s.Session(r.Context(), args[0], c.agent.ID); err != nil {
		return err
	}
	done, err := s.stream(c.agent.ID)
	if err != nil {
		return err
	}
	defer done()
	out := startSSE(s, w, r)
	s.endSSE(r, out, s.follow(r.Context(), args[0], c.agent.ID, from, out))
	return nil
}

// endSSE says why a stream ends, if the peer is still there to hear it.
func (s *Server) endSSE(r *http.Request, out *sse, err error) {
	var e *Error
	if r.Context().Err() != nil || !errors.As(err, &e) {
		return
	}
	e = s.refused(r.Context(), "", "", nil, err)
	if b, err := jsonx.Encode(wireError(e)); err == nil {
		_ = out.event("error", -1, b)
	}
}

// serveInbox tells an agent of sessions that it was brought into and has not
// yet spoken in: invitations and delegations. A new stream begins with those
// that are open.
func (s *Server) serveInbox(w http.ResponseWriter, r *http.Request, c *caller, args []string) error {
	if args[0] != c.agent.ID {
		return refuse("not_participant", "")
	}
	done, err := s.stream(c.agent.ID)
	if err != nil {
		return err
	}
	defer done()
	out := startSSE(s, w, r)
	s.endSSE(r, out, s.followInbox(r, c.agent.ID, out))
	return nil
}

func (s *Server) followInbox(r *http.Request, agent string, out *sse) error {
	ctx := r.Context()
	beat := time.NewTicker(or(s.Heartbeat, 30*time.Second))
	defer beat.Stop()
	told := make(map[string]bool)
	in := s.enterInbox(agent)
	defer s.leaveInbox(agent, in)
	for {
		wake, after := s.wakes(in), ""
		page, err := s.store.Ledgers(ctx, LedgerQuery{Participant: agent, Live: true}, "", pageMax)
		for err == nil && len(page) > 0 {
			for _, l := range page {
				p := l.participant(agent)
				if p == nil || p.Next > 0 || told[l.ID] || !l.Deadline.IsZero() && !s.now().Before(l.Deadline) {
					continue
				}
				if len(told) < 1<<16 {
					told[l.ID] = true
				}
				if err := s.emitJoin(r, l, p, out); err != nil {
					return err
				}
			}
			after = page[len(page)-1].ID
			page, err = s.store.Ledgers(ctx, LedgerQuery{Participant: agent, Live: true}, after, pageMax)
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ended:
			return closing{websocket.StatusGoingAway}
		case <-wake:
		case <-beat.C:
			s.authenticated(ctx, agent)
			b, err := jsonx.Encode(map[string]any{"timestamp": Timestamp(s.now())})
			if err != nil {
				return err
			}
			if err := out.event("heartbeat", -1, b); err != nil {
				return err
			}
		}
	}
}

func (s *Server) emitJoin(r *http.Request, l *Ledger, p *Participant, out *sse) error {
	records, err := s.store.Records(r.Context(), l.ID, p.Joined, 1)
	if err != nil || len(records) == 0 || records[0].Kind != RecordMessage {
		return err
	}
	b, err := s.encode(r, &frame{record: records[0]}, "")
	if err != nil {
		return err
	}
	return out.event("message", -1, b)
}

// inbox wakes the inbox streams of one agent. Under Server.mu.
type inbox struct {
	wake    chan struct{} // closed when the agent is brought into a session
	streams int
}

func (s *Server) enterInbox(agent string) *inbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.inboxes[agent]
	if i == nil {
		i = &inbox{wake: make(chan struct{})}
		s.inboxes[agent] = i
	}
	i.streams++
	return i
}

func (s *Server) leaveInbox(agent string, i *inbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i.streams--; i.streams == 0 {
		delete(s.inboxes, agent)
	}
}

func (s *Server) wakes(i *inbox) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return i.wake
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

// socketFrame is what a peer may send.
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
	caller  *caller
	format  Format
	missed  atomic.Int64 // heartbeats since the last pong
}

func (s *Server) serveWebSocket(w http.ResponseWriter, r *http.Request, _ *caller, args []string) error {
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return nil // the answer was written
	}
	defer func() { _ = conn.CloseNow() }()
	conn.SetReadLimit(-1) // socket.next bounds frames, and closes with the binding's own code
	k := &socket{s: s, r: r, conn: conn, session: args[0]}
	k.run(r.Context())
	return nil
}

func (k *socket) run(ctx context.Context) {
	proved := k.s.proves(k)
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
	err = k.write(ctx, plain("auth_ok", map[string]any{"sessionId": k.session, "state": ledger.State, "participants": ids, "lastSequence": ledger.Head.Count - 1}))
	if err != nil {
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

// Bounds of the frame of a peer that is not known yet, and of what a frame may
// have around its message.
const (
	maxAuthFrame = 16 << 10
	maxAround    = 64 << 10
)

// next reads one frame of at most limit bytes.
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

// first reads the frame that must authenticate. A read whose context ends
// would cut the connection off, so that a peer which says nothing is told so
// and let go beside it.
func (k *socket) first(ctx context.Context) (websocket.MessageType, []byte, error) {
	told := make(chan struct{})
	timer := time.AfterFunc(or(k.s.AuthWait, 10*time.Second), func() {
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

// admit takes a proof for the session, or one for the request under any of
// the schemes that its URL may have been written with.
func (k *socket) admit(f socketFrame) (*caller, error) {
	url := k.s.url(k.r)
	var refusal error
	for _, try := range [...][2]string{{MessageMethod, MessageURL(k.session)}, {"GET", url}, {"GET", "ws" + url[len("http"):]}} {
		c, err := k.s.admitToken(k.r, f.Token, f.Proof, try[0], try[1], k.s.store)
		switch codeName(err) {
		case "dpop_htm_mismatch":
			if refusal == nil {
				refusal = err
			}
		case "dpop_htu_mismatch":
			refusal = err // its method is right
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
		// A little above the limit of a message: what is only a little too
		// large is refused, and the connection goes on.
		kind, b, err := k.next(ctx, k.s.Limits.message()+maxAround)
		if errors.Is(err, ErrTooLarge) {
			_ = k.fail(ctx, k.s.refused(ctx, k.caller.agent.ID, k.session, nil, err))
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

// take handles one frame. What is wrong with it is answered; the connection
// goes on.
func (k *socket) take(ctx context.Context, kind websocket.MessageType, b []byte) error {
	if kind == websocket.MessageBinary {
		if k.format != MessagePack {
			return k.fail(ctx, k.s.refused(ctx, k.caller.agent.ID, k.session, b, refuse("format_mismatch", "").at(3)))
		}
		return k.ingest(ctx, b, MessagePack)
	}
	var f socketFrame
	if err := jsonx.Decode(b, &f); err != nil {
		return k.fail(ctx, k.s.refused(ctx, k.caller.agent.ID, k.session, b, refuseCause(jsonCode(b, err), "", err)))
	}
	switch f.Type {
	case "pong":
		k.missed.Store(0)
		return nil
	case "send":
		return k.ingest(ctx, withMessageID(f.Envelope), JSON)
	}
	return k.fail(ctx, k.s.refused(ctx, k.caller.agent.ID, k.session, b, refuse("invalid_field", "type")))
}

func (k *socket) ingest(ctx context.Context, raw []byte, f Format) error {
	receipt, err := k.s.Ingest(ctx, raw, Transport{Format: f, Agent: k.caller.agent.ID, AccessToken: k.caller.token}, k.session)
	if err != nil {
		if errors.Is(err, ErrRateLimited) {
			_ = k.fail(ctx, err)
			return closing{closeRate}
		}
		return k.fail(ctx, err)
	}
	return k.write(ctx, plain("ack", map[string]any{"messageId": receipt.MessageID, "sequenceNumber": receipt.SequenceNumber}))
}

// withMessageID gives a message without messageId a new one: the member is
// not signed, and peers leave it to the server (project).
func withMessageID(raw []byte) []byte {
	n, err := parseJSON(raw)
	if err != nil || n.kind != '{' || n.get("messageId") != nil || len(n.names) == 0 {
		return raw
	}
	id, err := NewSessionID() // any UUID v7 will do
	if err != nil {
		return raw
	}
	open := bytes.IndexByte(raw, '{') + 1
	return append([]byte(`{"messageId":"`+id+`",`), raw[open:]...)
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
	ctx, cancel := context.WithTimeout(ctx, or(k.s.WriteWait, 30*time.Second))
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
