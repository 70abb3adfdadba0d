package a2a

import (
	"context"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
)

// A handover joins a follower to the attempt that waits for it.
type handover struct {
	pauses chan struct{} // closed when the agent waits for input, or its call has ended
	done   chan struct{} // closed when there is an outcome

	mu   sync.Mutex
	left bool
	out  *hub.Outcome
}

// attend makes the attempt wait for an outcome.
func (f *taskFollower) attend() {
	f.hand = &handover{pauses: make(chan struct{}), done: make(chan struct{})}
}

// pause tells the attempt not to wait for the end of the task. One goroutine calls it.
func (h *handover) pause() {
	select {
	case <-h.pauses:
	default:
		close(h.pauses)
	}
}

// give hands an outcome to the attempt; false: it does not wait any more.
func (f *taskFollower) give(out hub.Outcome) bool {
	h := f.hand
	if h == nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.left || h.out != nil {
		return false
	}
	h.out = &out
	close(h.done)
	return true
}

// leave ends the attempt: with the outcome if there is one, else the task goes on without
// it, and its row is written.
func (f *taskFollower) leave(ctx context.Context) hub.Outcome {
	f.mu.Lock()
	kept := f.kept
	f.mu.Unlock()
	f.hand.mu.Lock()
	out := f.hand.out
	f.hand.mu.Unlock()
	if out == nil && !kept {
		if err := f.keep(ctx); err != nil {
			// The agent has the request. It is followed, and lost only if the hub ends before
			// its answer.
			f.b.c.Logger.Error("cannot record the task of a request elsewhere", "message", f.id, "agent", f.w.To, "error", err)
		}
	}
	f.hand.mu.Lock()
	defer f.hand.mu.Unlock()
	f.hand.left = true
	if out := f.hand.out; out != nil {
		if out.Answered {
			f.expectEnd()
		}
		return *out
	}
	return hub.Outcome{}
}

// await is the attempt's side of a stream.
func (f *taskFollower) await(ctx context.Context, waits bool) hub.Outcome {
	h := f.hand
	begun := f.begun
	var timer <-chan time.Time
	for {
		select {
		case <-h.done:
			return f.leave(ctx)
		case <-h.pauses:
			return f.leave(ctx)
		case <-begun:
			begun = nil
			t := time.NewTimer(f.b.patience)
			defer t.Stop()
			timer = t.C
		case <-timer:
			return f.leave(ctx)
		case <-ctx.Done():
			out := f.leave(context.WithoutCancel(ctx))
			if out.Answered || out.Err != nil {
				return out
			}
			if waits { // its caller is gone
				f.stop()
				f.b.abandonSent(f.p, f.id, f.task())
			} // else the agent may still name the task: settled and cancel see to it
			return hub.Outcome{Err: parley.AsError(ctx.Err()), Unknown: true}
		}
	}
}

// abandonSent abandons the task of a request, if it has one, and removes its row. If the agent does
// not answer, the row stays for a later cancel.
func (b *Binding) abandonSent(p *peer, id parley.ID, task string) {
	b.spawn(func() {
		if task == "" || b.tellAbandoned(p, task) {
			b.dropRow(b.ctx, id)
		}
	})
}

// abandon tells an agent that nobody waits for a task any more.
func (b *Binding) abandon(p *peer, task string) {
	b.spawn(func() { b.tellAbandoned(p, task) })
}

// tellAbandoned reports whether the agent answered.
func (b *Binding) tellAbandoned(p *peer, task string) bool {
	ctx, cancel := context.WithTimeout(b.ctx, cardTimeout)
	defer cancel()
	err := b.cancelTask(ctx, p, task)
	if err != nil {
		b.c.Logger.Info("a task that nobody waits for is not cancelled", "agent", p.name, "error", err)
	}
	return err == nil || failedCall(p.name, err).Err == nil
}
