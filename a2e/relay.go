package a2e

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"time"
	"unicode/utf8"
)

// movedFor bounds how long this host may still execute requests of a session that
// moved; their own deadlines end them earlier.
const movedFor = time.Hour

// Take serves lines that the agent sent to another host. It waits while the agent has
// too many frames to read.
func (s *Session) Take(ctx context.Context, lines []byte) error {
	for line := range bytes.SplitSeq(lines, []byte{'\n'}) {
		line = trimLine(line)
		if len(line) == 0 {
			continue
		}
		if err := s.waitRoom(ctx); err != nil {
			return err
		}
		s.receive(bytes.Clone(line), false)
	}
	return nil
}

// Pass queues a frame that another host made for the agent.
func (s *Session) Pass(frame []byte) error { return s.send(frame) }

// Move drops a session that another host owns now. Its transport ends. Its requests
// continue here, and their frames are passed on.
func (s *Session) Move() {
	s.storeMu.Lock()
	defer s.storeMu.Unlock()
	s.moveLocked()
}

// moveLocked is Move, with storeMu held.
func (s *Session) moveLocked() {
	if s.moved {
		return
	}
	s.mu.Lock()
	s.moved = true
	if s.state == StateClosed {
		s.mu.Unlock()
		return
	}
	s.keep = true
	if s.out.stream != nil {
		close(s.out.stream.gone)
		s.out.stream = nil
	}
	unread := s.out.takeReturned()
	left := s.out.takeAll()
	s.leavesLocked()
	s.mu.Unlock()
	s.h.moves(s)
	for _, f := range left {
		if err := s.forwardLocked(f); err != nil {
			s.h.Log.Warn("a2e: a frame did not follow its session", "identity", s.Identity().Name, "err", err)
		}
	}
	if len(unread) > 0 {
		go tell(unread, false) // the callbacks may query the session
	}
	s.drain(movedFor, true)
}

// forwardLocked passes a frame on; storeMu is held.
func (s *Session) forwardLocked(f outFrame) error {
	if f.returned != nil {
		go f.returned(false) // this host does not learn whether the agent reads the frame
	}
	relay, ok := s.h.Store.(Relay)
	if !ok {
		return ErrMoved
	}
	return relay.Forward(context.WithoutCancel(s.ctx), s.id, f.seq, f.line)
}

// movedOn reports whether an error of the store means that the session moved and that
// its frames can follow; storeMu is held.
func (s *Session) movedOn(err error) bool {
	_, ok := s.h.Store.(Relay)
	return ok && errors.Is(err, ErrMoved)
}

// moves removes a moved session from those that can be found.
func (h *Host) moves(s *Session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sessions[s.id] == s {
		delete(h.sessions, s.id)
	}
	h.moved[s] = struct{}{}
}

// sendElsewhere passes lines of a session on to the host that has it; done is false if
// no other host has it, and then the body is unread.
func (h *Host) sendElsewhere(w http.ResponseWriter, r *http.Request) (done bool) {
	id := r.Header.Get(sessionHeader)
	relay, ok := h.Store.(Relay)
	if _, here := h.Session(id); !ok || here || len(id) != 32 {
		return false
	}
	who, elsewhere, err := relay.Elsewhere(r.Context(), id)
	if err != nil {
		WriteError(w, ErrNotLoaded.Because(err))
		return true
	}
	if !elsewhere {
		return false
	}
	if h.Authenticated != nil {
		h.Authenticated(r.Context(), who)
	}
	body, err := readBody(r, h.limits.Frame, 64<<10, func(int) bool { return true })
	if !takeBody(w, body, err) {
		return true
	}
	err = relay.Send(r.Context(), id, body)
	if errors.Is(err, ErrTooLarge) {
		var s *Session
		s, err = h.find(r.Context(), id, transportHTTP)
		if err == nil {
			err = s.Take(r.Context(), body)
		}
	}
	if err != nil {
		WriteError(w, ErrNotLoaded.Because(err))
		return true
	}
	writeJSON(w, `{"ok":true}`)
	return true
}

// takeBody reports whether a body can be used, and otherwise refuses the request.
func takeBody(w http.ResponseWriter, body []byte, err error) bool {
	switch {
	case err != nil && errors.Is(err, ErrBusy):
		writeFull(w)
	case err != nil && errors.Is(err, ErrTooLarge):
		writeDetail(w, http.StatusRequestEntityTooLarge, "Body too large")
	case err != nil:
		writeDetail(w, http.StatusBadRequest, "Body not readable")
	case !utf8.Valid(body):
		writeDetail(w, http.StatusBadRequest, "Body is not UTF-8")
	default:
		return true
	}
	return false
}
