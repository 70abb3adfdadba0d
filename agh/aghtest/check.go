package aghtest

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/internal/checks"
)

// Each error of these functions names every rule that was broken. The clock of a memory
// must be that of the system.

// TestMemory checks memories; open gives an empty one each time.
func TestMemory(open func() agh.Memory) error {
	return checks.CheckMemory(func() checks.Memory { return open() }, func(i int) string {
		return agh.ReplayKey(&agh.Envelope{WorkspaceID: Workspace, From: "alice", ID: fmt.Sprint("message-", i)})
	})
}

// TestKeys checks a table of pinned keys that pins the given handles or nicknames.
func TestKeys(k agh.Keys, pinned ...string) error {
	one := func(ctx context.Context, id string) error {
		list, err := k.Keys(ctx, id)
		if err != nil || len(list) == 0 {
			return fmt.Errorf("%s has %d keys, %w", id, len(list), err)
		}
		for _, key := range list {
			if _, err := agh.PublicKey(base64.RawURLEncoding.EncodeToString(key)); err != nil {
				return fmt.Errorf("a key of %s: %w", id, err)
			}
		}
		return nil
	}
	return checks.Run(
		checks.Check{Name: "each pinned id has acceptable keys", Run: func(ctx context.Context) error {
			for _, id := range pinned {
				if err := one(ctx, id); err != nil {
					return err
				}
			}
			return nil
		}},
		checks.Check{Name: "an id that is not pinned has no keys, and no error", Run: func(ctx context.Context) error {
			if list, err := k.Keys(ctx, "never-pinned"); err != nil || len(list) > 0 {
				return fmt.Errorf("it has %d keys, %w", len(list), err)
			}
			return nil
		}},
		checks.Check{Name: "calls may be concurrent", Run: func(ctx context.Context) error {
			return checks.Together(8*len(pinned), func(i int) error { return one(ctx, pinned[i%len(pinned)]) })
		}},
	)
}

// TestWorks checks stores of work; open gives an empty one each time.
func TestWorks(open func() agh.Works) error {
	say := func(workspace, work string) *agh.Envelope {
		return &agh.Envelope{WorkspaceID: workspace, Channel: Channel, Kind: agh.KindSay, Surface: agh.SurfaceDirect,
			From: "alice", To: "bob", WorkID: work, ID: agh.NewID()}
	}
	work := func(state agh.WorkState) agh.Work {
		return agh.Work{WorkspaceID: Workspace, WorkID: "work_1", Initiator: "alice", Target: "bob", State: state,
			Updated: time.Unix(1767225600, 0).UTC()}
	}
	set := func(ctx context.Context, s agh.Works, want bool, w agh.Work) error {
		got, err := s.Update(ctx, say(w.WorkspaceID, w.WorkID), func(_ agh.Work, exists bool) (agh.Work, error) {
			if exists != want {
				return agh.Work{}, fmt.Errorf("step is told exists=%v, want %v", exists, want)
			}
			return w, nil
		})
		if err == nil && got.State != w.State {
			err = fmt.Errorf("Update gives %+v, want %+v", got, w)
		}
		return err
	}
	has := func(ctx context.Context, s agh.Works, w agh.Work) error {
		got, ok, err := s.Work(ctx, w.WorkspaceID, w.WorkID)
		got.Updated = got.Updated.UTC()
		if err != nil || !ok || got != w {
			return fmt.Errorf("the work is %+v, %v, %w; want %+v", got, ok, err, w)
		}
		return nil
	}
	missing := func(ctx context.Context, s agh.Works, workspace, id string) error {
		if got, ok, err := s.Work(ctx, workspace, id); ok || err != nil {
			return fmt.Errorf("work %s of %s is %+v, %w", id, workspace, got, err)
		}
		return nil
	}
	return checks.Run(
		checks.Check{Name: "work is kept as the last step gave it", Run: func(ctx context.Context) error {
			s := open()
			submitted, closed := work(agh.StateSubmitted), work(agh.StateCompleted)
			return errors.Join(missing(ctx, s, Workspace, "work_1"), set(ctx, s, false, submitted), has(ctx, s, submitted),
				set(ctx, s, true, closed), has(ctx, s, closed))
		}},
		checks.Check{Name: "workspaces and works are kept apart", Run: func(ctx context.Context) error {
			s := open()
			return errors.Join(set(ctx, s, false, work(agh.StateSubmitted)), missing(ctx, s, "other", "work_1"),
				missing(ctx, s, Workspace, "work_2"))
		}},
		checks.Check{Name: "a step that fails stores nothing", Run: func(ctx context.Context) error {
			s, refused, submitted := open(), errors.New("refused"), work(agh.StateSubmitted)
			fail := func(agh.Work, bool) (agh.Work, error) { return work(agh.StateFailed), refused }
			_, first := s.Update(ctx, say(Workspace, "work_1"), fail)
			err := errors.Join(missing(ctx, s, Workspace, "work_1"), set(ctx, s, false, submitted))
			_, second := s.Update(ctx, say(Workspace, "work_1"), fail)
			if !errors.Is(first, refused) || !errors.Is(second, refused) {
				err = errors.Join(err, fmt.Errorf("Update gives %w and %w, want the error of step", first, second))
			}
			return errors.Join(err, has(ctx, s, submitted))
		}},
		checks.Check{Name: "of concurrent updates exactly one opens the work", Run: func(ctx context.Context) error {
			s, late := open(), errors.New("another call was first")
			var opened atomic.Int64
			if err := checks.Together(16, func(int) error {
				_, err := s.Update(ctx, say(Workspace, "work_1"), func(w agh.Work, exists bool) (agh.Work, error) {
					if exists {
						return w, late
					}
					return work(agh.StateSubmitted), nil
				})
				if err == nil {
					opened.Add(1)
				} else if !errors.Is(err, late) {
					return err
				}
				return nil
			}); err != nil {
				return err
			}
			if n := opened.Load(); n != 1 {
				return fmt.Errorf("%d have opened it", n)
			}
			return has(ctx, s, work(agh.StateSubmitted))
		}},
	)
}

// TestTransport checks a transport by messages on a subject from one connection to
// another, which may be the same. Nobody else may use the subject.
func TestTransport(from, to agh.Transport, subject string) error {
	const count = 100
	// listen gives a queue of what arrives on the subject.
	listen := func(ctx context.Context, subject string) (<-chan agh.Message, func() error, error) {
		got, busy := make(chan agh.Message, 2*count), &atomic.Bool{}
		stop, err := to.Subscribe(ctx, subject, func(m agh.Message) {
			if !busy.CompareAndSwap(false, true) {
				m.Subject = "two calls of handle at once"
			}
			got <- m
			busy.Store(false)
		})
		return got, stop, err
	}
	next := func(ctx context.Context, got <-chan agh.Message, want agh.Message) error {
		select {
		case m := <-got:
			if m.Subject != want.Subject || m.Reply != want.Reply || string(m.Data) != string(want.Data) {
				return fmt.Errorf("got %q, reply %q, %.80q; want %q, reply %q, %.80q", m.Subject, m.Reply, m.Data, want.Subject,
					want.Reply, want.Data)
			}
			return nil
		case <-ctx.Done():
			return fmt.Errorf("%.80q did not arrive", want.Data)
		}
	}
	return checks.Run(
		checks.Check{Name: "messages arrive whole and in order, one call at a time", Run: func(ctx context.Context) error {
			got, stop, err := listen(ctx, subject)
			if err != nil {
				return err
			}
			var sent []agh.Message
			for i := range count {
				sent = append(sent, agh.Message{Subject: subject, Data: fmt.Appendf(nil, "%d \x00\xff", i)})
			}
			sent = append(sent, agh.Message{Subject: subject, Reply: subject, Data: make([]byte, 256<<10)})
			for _, m := range sent {
				if err := from.Publish(ctx, m.Subject, m.Reply, m.Data); err != nil {
					return err
				}
			}
			for _, m := range sent {
				if err := next(ctx, got, m); err != nil {
					return errors.Join(err, stop())
				}
			}
			return stop()
		}},
		checks.Check{Name: "each subscription gets each message, until it is stopped", Run: func(ctx context.Context) error {
			a, stopA, err := listen(ctx, subject)
			if err != nil {
				return err
			}
			b, stopB, err := listen(ctx, subject)
			if err != nil {
				return err
			}
			first, second := agh.Message{Subject: subject, Data: []byte("1")}, agh.Message{Subject: subject, Data: []byte("2")}
			err = errors.Join(from.Publish(ctx, subject, "", first.Data), next(ctx, a, first), next(ctx, b, first), stopA(),
				from.Publish(ctx, subject, "", second.Data), next(ctx, b, second), stopB())
			select {
			case m := <-a:
				err = errors.Join(err, fmt.Errorf("%q arrived after stop", m.Data))
			case <-time.After(50 * time.Millisecond): // it would have arrived with the other's
			}
			return err
		}},
		checks.Check{Name: "a reconnection can be asked for", Run: func(context.Context) error {
			if r, ok := to.(agh.Reconnecter); ok {
				r.OnReconnect(func() {})
			}
			return nil
		}},
	)
}
