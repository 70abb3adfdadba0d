package asp

import (
	"bytes"
	"cmp"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/coder/websocket"

	"github.com/parley-hub/parley/internal/jsonx"
	stream "github.com/parley-hub/parley/internal/sse"
)

// Server-sent events: the events of a session and the inbox of an agent.

// sse writes server-sent events. It is the [sink] of one request.
type sse struct {
	s   *Server
	r   *http.Request
	out *stream.Writer
	b   []byte // events not written yet
}

func startSSE(s *Server, w http.ResponseWriter, r *http.Request) *sse {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	out := stream.Start(w, "text/event-stream", stream.Options{Stall: cmp.Or(s.WriteWait, 30*time.Second)})
	return &sse{s: s, r: r, out: out}
}

// Bytes of events that are buffered for one write, and of the buffer that a waiting
// stream keeps.
const (
	maxUnwritten = 64 << 10
	maxKept      = 8 << 10
)

// add adds an event. A line break in the JSON, which is white space there, starts
// another data line.
func (e *sse) add(kind string, id int64, data []byte) error {
	e.b = append(append(append(e.b, "event: "...), kind...), '\n')
	if id >= 0 {
		e.b = append(strconv.AppendInt(append(e.b, "id: "...), id, 10), '\n')
	}
	if bytes.IndexByte(data, '\n') >= 0 || bytes.IndexByte(data, '\r') >= 0 {
		data = bytes.ReplaceAll(data, []byte("\r"), []byte("\n"))
		data = bytes.ReplaceAll(data, []byte("\n"), []byte("\ndata: "))
	}
	e.b = append(append(append(e.b, "data: "...), data...), "\n\n"...)
	if len(e.b) < maxUnwritten {
		return nil
	}
	return e.flush()
}

func (e *sse) emit(f *frame) error {
	data, err := e.s.encode(e.r, f, "")
	if err != nil {
		return err
	}
	return e.add(f.kind, f.position, data)
}

func (e *sse) flush() error {
	if len(e.b) == 0 {
		return nil
	}
	err := e.out.Write(e.b)
	e.b = e.b[:0]
	if cap(e.b) > maxKept {
		e.b = nil
	}
	return err
}

// event writes one event and those emitted before it.
func (e *sse) event(kind string, id int64, data []byte) error {
	if err := e.add(kind, id, data); err != nil {
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

// endSSE sends the reason for which a stream ends, if the peer is still connected.
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

// serveInbox sends an agent the invitations and delegations to sessions in which it
// has not sent a message yet. A new stream begins with the open ones.
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
	beat := time.NewTicker(cmp.Or(s.Heartbeat, 30*time.Second))
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
	wake    chan struct{} // closed when the agent is added to a session
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
	i.streams--
	if i.streams == 0 {
		delete(s.inboxes, agent)
	}
}

func (s *Server) wakes(i *inbox) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return i.wake
}
