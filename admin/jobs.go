package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/sleep"
	"github.com/parley-hub/parley/journal"
)

// This file runs retries that a rate makes slow: they outlive the request that began them.

const (
	maxJobs  = 4 // running at once
	keepJobs = 20
	jobsEnd  = 2 * time.Second // until jobs have recorded their end, when the hub stops
)

// A Job is a retry of many dead letters that goes on in the hub. It ends with the last of them, or with the
// token that began it, or when the hub stops. The hub keeps the last 20 in memory; the audit trail has
// the outcome of each.
type Job struct {
	ID      string     `json:"id"`
	Action  string     `json:"action"` // as in the audit trail
	By      string     `json:"by"`     // name of the token
	Filter  DeadFilter `json:"filter"`
	Reason  string     `json:"reason,omitzero"`
	Rate    float64    `json:"rate"` // a second
	Started time.Time  `json:"started"`
	Ended   time.Time  `json:"ended,omitzero"` // missing: it runs
	Outcome string     `json:"outcome"`        // "running", "done", or why it ended early

	Matched int      `json:"matched"`
	Tried   int      `json:"tried"`           // so far
	Done    int      `json:"done"`            // queued for their attempt
	Failed  []string `json:"failed,omitzero"` // at most 20, one sentence each
}

// work changes dead letters one after the other.
type work struct {
	list   []journal.Delivery
	change func(context.Context, parley.ID, string) error
	rate   float64 // a second; 0: at once

	mu          sync.Mutex
	tried, done int
	failed      []string
}

func (w *work) run(ctx context.Context) error {
	for i := range w.list {
		if i > 0 && w.rate > 0 {
			if sleep.For(ctx, time.Duration(float64(time.Second)/w.rate)) != nil {
				break
			}
		}
		if ctx.Err() != nil {
			break
		}
		w.one(ctx, &w.list[i])
	}
	tried, _, _ := w.progress()
	if err := context.Cause(ctx); err != nil && tried < len(w.list) {
		if e, ok := errors.AsType[*parley.Error](err); ok && w.rate > 0 {
			return parley.Refuse(e.Code, "ended after %d of %d: %s", tried, len(w.list), e.Text).Because(err)
		}
		return err
	}
	return nil
}

func (w *work) one(ctx context.Context, d *journal.Delivery) {
	err := w.change(ctx, d.Message, d.To)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch w.tried++; {
	case err == nil:
		w.done++
	case len(w.failed) < maxFailed:
		w.failed = append(w.failed, fmt.Sprintf("%s to %s: %s", d.Message, d.To, parley.AsError(err).Text))
	}
}

func (w *work) progress() (tried, done int, failed []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tried, w.done, slices.Clone(w.failed)
}

// jobs are those that run, and the last that ended.
type jobs struct {
	mu      sync.Mutex
	list    []*runningJob // the newest last
	last    int
	running sync.WaitGroup
	stopped bool
}

type runningJob struct {
	Job
	work *work
	end  context.CancelCauseFunc
}

// view gives a job with its progress; jobs.mu is held.
func (j *runningJob) view() *Job {
	v := j.Job
	v.Tried, v.Done, v.Failed = j.work.progress()
	return &v
}

// start runs act, which does the work with its entries in the audit trail. It returns when the first entry is recorded.
func (q *jobs) start(a *Admin, by Actor, b *Bulk, w *work, act func(context.Context) error) (*Job, error) {
	ctx, end := context.WithCancelCause(context.Background())
	j := &runningJob{work: w, end: end, Job: Job{Action: "dead.retry", By: by.Name, Filter: b.Filter, Reason: b.Reason,
		Rate: b.Rate, Started: a.c.Now().UTC(), Outcome: "running", Matched: len(w.list)}}
	if err := q.add(j); err != nil {
		return nil, err
	}
	release := func() {}
	if by.hash != "" { // a program that uses this package may have no tokens
		ctx, release = a.c.Tokens.During(ctx, by)
	}
	begun, ended := make(chan struct{}), make(chan error, 1)
	change := w.change
	w.change = func(ctx context.Context, id parley.ID, to string) error {
		select {
		case <-begun:
		default:
			close(begun)
		}
		return change(ctx, id, to)
	}
	q.running.Go(func() {
		defer release()
		err := act(ctx)
		q.mu.Lock()
		if j.Ended, j.Outcome = a.c.Now().UTC(), "done"; err != nil {
			j.Outcome = parley.AsError(err).Text
		}
		q.mu.Unlock()
		end(nil)
		ended <- err
	})
	select {
	case <-begun:
	case err := <-ended:
		if tried, _, _ := w.progress(); err != nil && tried == 0 {
			return nil, err
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return j.view(), nil
}

// add takes a job up, and forgets the oldest that ended.
func (q *jobs) add(j *runningJob) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	running := 0
	for _, v := range q.list {
		if v.Ended.IsZero() {
			running++
		}
	}
	switch {
	case q.stopped:
		return errHubStops()
	case running >= maxJobs:
		return parley.Fail(parley.Unavailable, nil, "%d paced retries run already, the limit; wait until one ends, or stop "+
			"one", running)
	}
	q.last++
	j.ID = strconv.Itoa(q.last)
	q.list = append(q.list, j)
	if len(q.list) > keepJobs {
		i := slices.IndexFunc(q.list, func(v *runningJob) bool { return !v.Ended.IsZero() })
		q.list = slices.Delete(q.list, i, i+1)
	}
	return nil
}

func errHubStops() *parley.Error {
	return parley.Refuse(parley.Unavailable, "the hub stops").With(parley.ByHub, parley.HubStops, "")
}

// stop ends all jobs, and waits until they have recorded that, but not long.
func (q *jobs) stop() {
	q.mu.Lock()
	q.stopped = true
	for _, j := range q.list {
		j.end(errHubStops())
	}
	q.mu.Unlock()
	ended := make(chan struct{})
	go func() { q.running.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(jobsEnd):
	}
}

// Jobs lists the paced retries that run, and the last that ended: the newest first.
func (a *Admin) Jobs(by Actor) ([]Job, error) {
	if err := by.may(Observe); err != nil {
		return nil, err
	}
	a.jobs.mu.Lock()
	defer a.jobs.mu.Unlock()
	out := []Job{}
	for _, j := range slices.Backward(a.jobs.list) {
		out = append(out, *forActor(by, j.view()))
	}
	return out, nil
}

// Job gives a paced retry by its id.
func (a *Admin) Job(by Actor, id string) (Job, error) {
	list, err := a.Jobs(by)
	if err != nil {
		return Job{}, err
	}
	i := slices.IndexFunc(list, func(j Job) bool { return j.ID == id })
	if i < 0 {
		return Job{}, parley.Refuse(notFound, "no job %.40q; the hub keeps the last %d in memory only", id, keepJobs)
	}
	return list[i], nil
}

// StopJob ends a paced retry. What it has retried stays retried.
func (a *Admin) StopJob(ctx context.Context, by Actor, id string) (Job, error) {
	if err := by.may(Operate); err != nil {
		return Job{}, err
	}
	if _, err := a.Job(by, id); err != nil {
		return Job{}, err
	}
	err := a.act(ctx, by, Operate, "job.stop", id, "", func(context.Context) error {
		a.jobs.mu.Lock()
		defer a.jobs.mu.Unlock()
		for _, j := range a.jobs.list {
			if j.ID == id {
				j.end(parley.Refuse(parley.Cancelled, "stopped by %s", by.Name))
			}
		}
		return nil
	})
	if err != nil {
		return Job{}, err
	}
	return a.Job(by, id)
}

// withoutContent removes the operator's words about messages, and texts of errors.
func (j *Job) withoutContent() { j.Reason, j.Failed = "", nil }

func getJob(a *Admin, c *call) (any, error) {
	if err := c.params(); err != nil {
		return nil, err
	}
	return a.Job(c.by, c.r.PathValue("id"))
}

func deleteJob(a *Admin, c *call) (any, error) {
	return a.StopJob(c.r.Context(), c.by, c.r.PathValue("id"))
}

// Jobs lists the paced retries that run, and the last that ended: the newest first.
func (c *Client) Jobs(ctx context.Context) ([]Job, error) {
	return fetchList[Job](c, ctx, "/jobs", nil, "jobs")
}

// Job gives a paced retry by its id.
func (c *Client) Job(ctx context.Context, id string) (Job, error) {
	return fetch[Job](c, ctx, "GET", jobPath(id), nil, nil)
}

// StopJob ends a paced retry. What it has retried stays retried.
func (c *Client) StopJob(ctx context.Context, id string) (Job, error) {
	return fetch[Job](c, ctx, "DELETE", jobPath(id), nil, nil)
}
