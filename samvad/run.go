package samvad

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/parley-hub/parley/internal/jsonx"
)

// Running a skill in the modes sync and async; stream is in sse.go.

// run calls the skill. Whatever it does, the process lives on.
func (s *Server) run(ctx context.Context, req *Request) (resp Response, e *Error) {
	defer func() {
		if p := recover(); p != nil {
			resp, e = Response{}, failure(because(ErrUnavailable, fmt.Errorf("skill panicked: %v", p)))
		}
	}()
	if req.Agent.Handler == nil {
		return Response{}, failure(because(ErrUnavailable, errors.New("agent without a handler")))
	}
	resp, err := req.Agent.Handler(ctx, req)
	if resp.Tokens > 0 {
		s.limiter().Record(req.Agent.id(), req.From, resp.Tokens, s.now())
	}
	if err != nil {
		return Response{}, failure(err)
	}
	if isNull(resp.Result) {
		resp.Result = json.RawMessage("{}")
	}
	if kindOf(resp.Result) != '{' {
		return Response{}, failure(
			because(ErrUnavailable, errors.New("skill answered with something else than an object")),
		)
	}
	resp.SpanID = cmp.Or(resp.SpanID, newID())
	return resp, nil
}

func failure(err error) *Error {
	e := *AsError(err)
	if e.Step == "" {
		e.Step = StepHandler
	}
	return &e
}

// enter takes one of the places for handlers at work.
func (s *Server) enter() bool {
	if s.running.Add(1) > int64(cmp.Or(s.MaxRunning, DefaultMaxRunning)) {
		s.running.Add(-1)
		return false
	}
	return true
}

func (s *Server) leave() { s.running.Add(-1) }

func (s *Server) serveSync(w http.ResponseWriter, r *http.Request, req *Request) {
	ctx, cancel := context.WithTimeout(r.Context(), cmp.Or(s.SyncTimeout, DefaultSyncTimeout))
	defer cancel()
	reply := &Reply{TraceID: req.TraceID, SpanID: newID()}
	if !s.enter() {
		reply.Err = refuse(ErrBusy, "", nil)
		writeReply(w, reply.Err.HTTPStatus(), reply)
		return
	}
	type outcome struct {
		resp Response
		err  *Error
	}
	var o outcome
	if s.Inline {
		o.resp, o.err = s.run(ctx, req)
		s.leave()
	} else {
		done := make(chan outcome, 1)
		go func() {
			defer s.leave()
			resp, err := s.run(ctx, req)
			done <- outcome{resp, err}
		}()
		select {
		case o = <-done:
		case <-ctx.Done():
			// The skill had its time, or nobody waits any more. One that ends
			// together with its context may still have the better answer.
			select {
			case o = <-done:
			default:
				o.err = failure(because(ErrTimeout, context.Cause(ctx)))
			}
		}
	}
	status := http.StatusOK
	reply.Result = o.resp.Result
	if o.err != nil {
		reply.Err, status = o.err, o.err.HTTPStatus()
		setRetryAfter(w.Header(), o.err)
	} else {
		reply.SpanID = o.resp.SpanID
	}
	writeReply(w, status, reply)
}

func (s *Server) serveAsync(w http.ResponseWriter, r *http.Request, req *Request, claim Claim, refusal *Error) {
	fail := func(err error) {
		e := failure(err)
		e.TraceID = req.TraceID
		s.refuse(w, r, claim, e)
	}
	if s.Accept != nil && refusal == nil {
		id, err := s.Accept(r.Context(), req)
		if err != nil {
			fail(err)
			return
		}
		s.accepted(w, id)
		return
	}
	t := Task{
		ID:          newID(),
		Agent:       req.Agent.id(),
		Status:      TaskPending,
		TraceID:     req.TraceID,
		CallbackURL: req.CallbackURL,
	}
	req.TaskID = t.ID
	s.mu.Lock()
	if s.closed || !s.enter() {
		s.mu.Unlock()
		fail(ErrBusy)
		return
	}
	s.wg.Add(1)
	s.mu.Unlock()
	if err := s.tasks().Put(r.Context(), t); err != nil {
		s.leave()
		s.wg.Done()
		fail(err)
		return
	}
	go s.work(context.WithoutCancel(r.Context()), req, t, refusal)
	s.accepted(w, t.ID)
}

func (s *Server) accepted(w http.ResponseWriter, id string) {
	b, err := jsonx.Encode(struct {
		TaskID string `json:"taskId"`
		Status string `json:"status"`
	}{id, "accepted"})
	if err != nil {
		WriteError(w, err)
		return
	}
	writeJSON(w, http.StatusAccepted, b)
}

// work runs a task to its end and tells the callback.
func (s *Server) work(ctx context.Context, req *Request, t Task, refusal *Error) {
	defer s.wg.Done()
	defer s.leave()
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(s.TaskTimeout, DefaultTaskTimeout))
	defer cancel()
	defer context.AfterFunc(s.base, cancel)()

	// The state of the task is written even when its time is over.
	store := context.WithoutCancel(ctx)
	var mu sync.Mutex
	put := func(change func()) error {
		mu.Lock()
		defer mu.Unlock()
		if t.Status.Finished() {
			return nil
		}
		change()
		return s.tasks().Put(store, t)
	}
	req.progress = func(p float64) error {
		if !(p >= 0 && p <= 1) {
			return fmt.Errorf("samvad: progress %v is not between 0 and 1", p)
		}
		return put(func() { t.Progress = &p })
	}
	reply := &Reply{TraceID: req.TraceID, SpanID: newID(), Err: refusal}
	if refusal == nil {
		zero := 0.0
		err := put(func() { t.Status, t.Progress = TaskRunning, &zero })
		if err == nil {
			var resp Response
			resp, reply.Err = s.run(ctx, req)
			if reply.Err == nil {
				reply.Result, reply.SpanID = resp.Result, resp.SpanID
			}
		} else {
			reply.Err = failure(because(ErrUnavailable, err))
		}
	}
	one := 1.0
	err := put(func() {
		t.Status, t.Err = TaskFailed, reply.Err
		if reply.Err == nil {
			t.Status, t.Result, t.Progress = TaskDone, reply.Result, &one
		}
	})
	if err != nil {
		// The store refused the result: say so, if it takes that at least.
		reply.Err = failure(because(ErrUnavailable, err))
		mu.Lock()
		t.Status, t.Result, t.Err = TaskFailed, nil, reply.Err
		_ = s.tasks().Put(store, t)
		mu.Unlock()
	}
	if req.CallbackURL == "" {
		return
	}
	if s.Callback != nil {
		s.Callback(ctx, req, reply)
		return
	}
	// The receiver can poll: a webhook that cannot be delivered is lost.
	_ = s.webhook().Send(ctx, req.Agent.Identity, req.CallbackURL, reply)
}
