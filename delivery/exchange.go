package delivery

import (
	"context"
	"errors"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/recorder"
	"github.com/parley-hub/parley/journal"
)

// The step that ends an attempt has its exchange: what it sent, and what came back at once. The
// answer is left out where it became the reply, which is recorded with that step.

// observe makes the recorder of an attempt that begins.
func (d *Dispatcher) observe(ctx context.Context, it *item) (context.Context, *recorder.Recorder) {
	rec := recorder.New(d.c.Now)
	d.mu.Lock()
	it.recorder = rec
	d.mu.Unlock()
	return recorder.With(ctx, rec), rec
}

// observed is the exchange of an attempt with a result; nil: none was made.
func observed(rec *recorder.Recorder, r *Result) *parley.Exchange {
	seen, ok := rec.End()
	if !ok {
		return nil
	}
	x := parley.Exchange(seen)
	if r.Err == nil && r.Reply != nil && r.Reply.Message.Error == nil {
		x.Answer = nil
	}
	return &x
}

// Exchange gives the exchange so far of the attempt whose outcome is not recorded yet; nil: there
// is none. It is for an answer that comes by another way, and is recorded before that outcome.
func (d *Dispatcher) Exchange(m *parley.Message, to string) *parley.Exchange {
	rec := d.recorderOf(deliveryKey{m.ID, to}, m.Conversation)
	if rec == nil {
		return nil
	}
	seen, ok := rec.Seen()
	if !ok {
		return nil
	}
	x := parley.Exchange(seen)
	return &x
}

// Losses gives the losses of the attempt whose outcome is not recorded yet; see [Dispatcher.Exchange].
func (d *Dispatcher) Losses(m *parley.Message, to string) (out []parley.Loss) {
	for _, l := range d.recorderOf(deliveryKey{m.ID, to}, m.Conversation).Losses() {
		out = append(out, parley.Loss(l))
	}
	return out
}

func (d *Dispatcher) recorderOf(key deliveryKey, conversation parley.ID) *recorder.Recorder {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, k := range lanesOf(key.to, key.id, conversation) {
		l := d.lanes[k]
		if l == nil {
			continue
		}
		for _, it := range l.items {
			if it.inTurn && it.key() == key {
				return it.recorder
			}
		}
	}
	return nil
}

// record appends the outcome of an attempt. What was sent and what came back are left out if they
// make the record too large.
func (d *Dispatcher) record(ctx context.Context, e *journal.Entry) (journal.Position, error) {
	at, err := d.c.Log.Append(ctx, *e)
	x := e.Steps[0].Exchange
	if !errors.Is(err, journal.ErrTooLarge) || x == nil || len(x.Sent)+len(x.Answer) == 0 {
		return at, err
	}
	less := *x
	less.Sent, less.Answer = nil, nil
	e.Steps[0].Exchange = &less
	return d.c.Log.Append(ctx, *e)
}
