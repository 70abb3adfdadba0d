package mcp

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/store"
)

// slowStore holds one append after armed is set, until it is released.
type slowStore struct {
	store.Store
	armed   atomic.Bool
	release chan struct{}
}

func (s *slowStore) Append(ctx context.Context, partition int, after uint64, records []store.Record) error {
	if s.armed.CompareAndSwap(true, false) {
		<-s.release
	}
	return s.Store.Append(ctx, partition, after, records)
}

// The answer of a server waits until the progress before it is recorded: so the last step of the delivery has the
// losses of all events.
func TestAnswerBehindProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &slowStore{Store: testjournal.Memory(t), release: make(chan struct{})}
		answer := make(chan struct{})
		w := newOutWorld(t, outConfig{store: s}, func(_ context.Context, c serverCall) (*serverAnswer, error) {
			c.sent()
			s.armed.Store(true)
			c.progress(&mcp.ProgressNotificationParams{Message: "half"})
			<-answer
			return says("done"), nil
		})
		var end journal.Step
		w.j.Watch(func(r *journal.Record) {
			for _, s := range r.Steps {
				if s.State == parley.Answered {
					end = s
				}
			}
		})
		request := asks("read", file("a"))
		request.Message.Origin.Protocol = Protocol
		request.Message.Trace.Foreign = map[string]string{foreignProgress: "no"}
		m := w.send(request)
		synctest.Wait() // the record of the event is under way
		close(answer)
		synctest.Wait()
		close(s.release)
		synctest.Wait()
		if got := w.said(m.ID); got != "working half | response done" {
			t.Fatal(got)
		}
		if !slices.ContainsFunc(end.Losses, func(l parley.Loss) bool { return l.Field == "Event.Kind" }) {
			t.Errorf("the last step has the losses %q", end.Losses)
		}
	})
}
