package journal

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// TestAppendIsReadBack: an append returns when its record is known here, also
// where that takes longer than the engine's answer may.
func TestAppendIsReadBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &Journal{cfg: Config{Timeout: 10 * time.Second, Log: slog.New(slog.DiscardHandler)}}
		j.ctx, j.cancel = context.WithCancel(t.Context())
		defer j.cancel()
		m := newStateMachine(j)
		stored := func() *op {
			o := &op{seq: 5, msgs: []*outgoing{{}}, done: make(chan struct{})}
			go m.writer.await(o)
			return o
		}
		ended := func(o *op) bool {
			synctest.Wait()
			select {
			case <-o.done:
				return true
			default:
				return false
			}
		}
		o := stored()
		time.Sleep(25 * time.Second)
		if ended(o) {
			t.Fatal("it returned before its record was known")
		}
		m.moveTo(4)
		if ended(o) {
			t.Fatal("it returned before its own record was known")
		}
		m.moveTo(5)
		if !ended(o) || o.err != nil {
			t.Errorf("it did not return when its record was known: %v", o.err)
		}
		if !ended(stored()) {
			t.Error("it waits for what is known")
		}
	})
}
