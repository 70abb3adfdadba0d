package uagents

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Running handlers: while the sender waits, or in the background.

// room reserves room for a request; nil: there is none.
func (s *Server) room(sync bool) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return nil
	}
	places := s.queued
	if sync {
		places = s.waiting
	}
	select {
	case places <- struct{}{}:
		s.running.Add(1)
		return func() {
			<-places
			s.running.Done()
		}
	default:
		return nil
	}
}

// deadline is the time until a waiting sender gives up.
func (s *Server) deadline(req *Request) time.Duration {
	wait := cmp.Or(s.Wait, defaultWait)
	if at, ok := req.ExpiresAt(); ok && req.Expires != "0" {
		wait = min(wait, at.Sub(s.now()))
	}
	return max(0, wait)
}

type outcome struct {
	response Response
	err      error
}

// answer runs the handler while the sender waits.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, req *Request) {
	ctx, cancel := context.WithTimeout(r.Context(), s.deadline(req))
	defer cancel()
	done := make(chan outcome)
	go func() {
		defer req.release()
		response, err := s.handle(ctx, req)
		select {
		case done <- outcome{response, err}:
		case <-ctx.Done():
			// Too late for the HTTP response: the answer is sent as an envelope.
			if err != nil {
				return
			}
			s.deliver(context.WithoutCancel(ctx), req, response)
			return
		}
		if err == nil && response.After != nil {
			s.after(context.WithoutCancel(ctx), req, response.After)
		}
	}()
	var m Message
	select {
	case o := <-done:
		for k, v := range o.response.Header {
			w.Header()[k] = v
		}
		if e := o.response.Envelope; e != nil && o.err == nil {
			s.writeEnvelope(w, req, e)
			return
		}
		m = s.messageOf(req, o.response.Message, o.err)
	case <-ctx.Done():
		m = NewErrorMessage(ErrTimeout.Text)
	}
	if m.Schema == "" {
		m = NewErrorMessage(ErrTimeout.Text) // no answer will come
	}
	if req.SchemaDigest == ErrorMessageDigest && m.Schema == ErrorMessageDigest {
		writeBody(w, http.StatusOK, []byte("{}"))
		return
	}
	s.writeAnswer(w, req, m)
}

// messageOf turns a handler's result into the message to send. A message without
// schema means none.
func (s *Server) messageOf(req *Request, m Message, err error) Message {
	if err == nil {
		err = m.err
	}
	if err == nil {
		return m
	}
	var e *Error
	if !errors.As(err, &e) {
		e = ErrHandler.Because(err)
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		e = ErrTimeout
	}
	s.log().Warn("uagents: handler failed", "target", req.Target, "session", req.Session, "error", err)
	return NewErrorMessage(e.Text)
}

// handle runs the handler; a panic becomes an error.
func (s *Server) handle(ctx context.Context, req *Request) (resp Response, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = ErrHandler.Because(fmt.Errorf("panic: %v", p))
		}
	}()
	if req.Handler == nil {
		return Response{}, ErrUnknownModel
	}
	return req.Handler(ctx, req)
}

// enqueue runs the handler in the background. Messages of one session are handled in
// order, sessions in parallel.
func (s *Server) enqueue(req *Request) {
	if req.Handler == nil {
		req.release()
		return
	}
	run := func() {
		defer req.release()
		ctx, cancel := context.WithTimeout(context.Background(), cmp.Or(s.HandlerTime, 5*time.Minute))
		defer cancel()
		response, err := s.handle(ctx, req)
		m := s.messageOf(req, response.Message, err)
		response.Message = m
		if err != nil {
			response.After = nil
		}
		s.deliver(ctx, req, response)
	}
	key := req.Sender + " " + req.Target + " " + req.Session
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, busy := s.lanes[key]; busy {
		s.lanes[key] = append(s.lanes[key], run)
		return
	}
	s.lanes[key] = nil
	go func() {
		for {
			run()
			s.mu.Lock()
			waiting := s.lanes[key]
			if len(waiting) == 0 {
				delete(s.lanes, key)
				s.mu.Unlock()
				return
			}
			run, s.lanes[key] = waiting[0], waiting[1:]
			s.mu.Unlock()
		}
	}()
}

// deliver sends a response that no HTTP exchange waits for.
func (s *Server) deliver(ctx context.Context, req *Request, response Response) {
	if response.Schema != "" || response.Message.err != nil {
		if err := s.send(ctx, req, response.Message); err != nil {
			s.log().Warn("uagents: answer not delivered", "to", req.Sender, "session", req.Session, "error", err)
		}
	}
	if response.After != nil {
		s.after(ctx, req, response.After)
	}
}

// after runs [Response.After] with its own time limit.
func (s *Server) after(ctx context.Context, req *Request, f func(context.Context)) {
	defer func() {
		if p := recover(); p != nil {
			s.log().Error("uagents: panic after an answer", "target", req.Target, "panic", p)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(s.HandlerTime, 5*time.Minute))
	defer cancel()
	f(ctx)
}

// send posts a message to the sender of req. An ErrorMessage is never answered
// with another (UAG-067), and an unsigned sender has no address for an answer.
func (s *Server) send(ctx context.Context, req *Request, m Message) error {
	switch {
	case m.err != nil:
		return m.err
	case m.Schema == ErrorMessageDigest && req.SchemaDigest == ErrorMessageDigest:
		return nil
	case IsUser(req.Sender):
		return ErrUnresolved.Because(errors.New("an unsigned sender cannot be reached"))
	case s.Client == nil || req.Agent.Identity == nil:
		return ErrUndelivered.Because(errors.New("server has no client or the agent no identity"))
	}
	c := s.Client.as(req.Agent.Identity)
	_, err := c.SendIn(ctx, req.Session, req.Sender, m)
	return err
}

// Shutdown refuses new envelopes, answers probes with not-ready, and waits for
// the running handlers.
func (s *Server) Shutdown(ctx context.Context) error {
	s.start()
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		s.running.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Server) isDraining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}
