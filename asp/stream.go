package asp

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/parley-hub/parley/internal/jsonx"
)

// Streams: server-sent events and WebSocket, transports/websocket. Both read the
// log from the peer's position and wait at its end. So a slow peer has no queue,
// and a reconnecting peer continues at its position.

// A frame goes to a peer. fields are the members of the WebSocket frame of this
// kind.
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
	unproved    []*socket // not authenticated yet, oldest first
}

// stream reserves a connection of an agent.
func (s *Server) stream(agent string) (done func(), err error) {
	guests := 0
	if s.Guest != nil && s.Guest(agent) {
		guests = 1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	most := cmp.Or(s.MaxStreams, 10_000)
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

// EndStreams ends all streams, so that an HTTP server can shut down without waiting
// for their readers. Peers reconnect and resume.
func (s *Server) EndStreams() {
	s.init()
	s.endOnce.Do(func() { close(s.ended) })
}

// echoWait bounds the time for which a stream may keep its agent's own message, to
// send it together with the next. The agent has the receipt already.
const echoWait = 25 * time.Millisecond

// watcher is a stream that waits for records of a session. Server.mu protects all
// fields but wake.
type watcher struct {
	agent   string
	wake    chan struct{} // has a token when there are new records
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

// sink takes the frames of a stream. Emitted frames reach the peer with the next
// flush at the latest.
type sink interface {
	emit(*frame) error
	flush() error
}

// follow emits the records of a session from position from on, until the session is
// over, ctx ends or out fails.
func (s *Server) follow(ctx context.Context, session, agent string, from int64, out sink) error {
	l := s.acquire(session)
	defer s.release(l)
	w, done := s.watch(l, agent)
	defer done()
	heartbeat := time.NewTicker(cmp.Or(s.Heartbeat, 30*time.Second))
	defer heartbeat.Stop()
	epoch, scores := int64(-1), make(map[string]float64)
	for {
		ledger, err := s.look(ctx, l, "")
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
		var due <-chan time.Time
		if !ledger.Deadline.IsZero() {
			due = time.After(max(ledger.Deadline.Sub(s.now()), time.Millisecond))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ended:
			return closing{websocket.StatusGoingAway}
		case <-w.wake:
		case <-due:
		case <-heartbeat.C:
			s.authenticated(ctx, agent)
			beat := map[string]any{"timestamp": Timestamp(s.now()), "state": ledger.State}
			if err := out.emit(plain("heartbeat", beat)); err != nil {
				return err
			}
		}
	}
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

// emitScores emits changed scores, and ends the stream of a removed agent.
func (s *Server) emitScores(ctx context.Context, ledger *Ledger, agent string, scores map[string]float64, tell bool,
	emit func(*frame) error) error {
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
			update := map[string]any{"agentId": p.AgentID, "score": a.Score(), "previous": before}
			if err := emit(plain("trust_update", update)); err != nil {
				return err
			}
		}
	}
	return nil
}

// encode gives the members of f, with kind as "type" unless it is empty.
func (s *Server) encode(r *http.Request, f *frame, kind string) ([]byte, error) {
	fields := make(map[string]any, len(f.fields)+1)
	maps.Copy(fields, f.fields)
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
	// The message is appended as it is: an encoder would change its spelling.
	b = b[:len(b)-1]
	if len(fields) > 0 {
		b = append(b, ',')
	}
	b = append(append(b, `"envelope":`...), text...)
	return append(b, '}'), nil
}
