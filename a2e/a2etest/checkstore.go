package a2etest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/internal/checks"
)

// record is the session of a check.
func record(id string) a2e.SessionRecord {
	return a2e.SessionRecord{ID: id, Identity: a2e.Identity{Name: "alice", Capabilities: []string{"tools"}},
		AgentID: "claimed", Accepted: []string{"tools"}, Opened: time.Unix(1767225600, 0).UTC()}
}

func frame(id string, seq uint64) string {
	return fmt.Sprintf(`{"type":"tool/event","id":"%s-%d"}`, id, seq)
}

// opened records a session with n frames.
func opened(ctx context.Context, s a2e.Store, id string, n uint64) error {
	errs := []error{s.Open(ctx, record(id))}
	for seq := uint64(1); seq <= n; seq++ {
		errs = append(errs, s.Append(ctx, id, seq, []byte(frame(id, seq))))
	}
	return errors.Join(errs...)
}

// loads checks what Load gives of a session with last frames, of which those up to
// delivered may be gone.
func loads(ctx context.Context, s a2e.Store, want a2e.SessionRecord, last, delivered uint64) error {
	got, found, err := s.Load(ctx, want.ID)
	if err != nil || !found {
		return fmt.Errorf("session %s is not found: %w", want.ID, err)
	}
	if got.ID != want.ID || got.Identity.Name != want.Identity.Name || got.AgentID != want.AgentID ||
		!slices.Equal(got.Identity.Capabilities, want.Identity.Capabilities) ||
		!slices.Equal(got.Accepted, want.Accepted) || !got.Opened.Equal(want.Opened) || got.LastSeq != last {
		return fmt.Errorf("session %s is %+v, want %+v with LastSeq %d", want.ID, got, want, last)
	}
	left := slices.DeleteFunc(slices.Clone(got.Undelivered), func(f a2e.StoredFrame) bool { return f.Seq <= delivered })
	for i, f := range left {
		if f.Seq != delivered+uint64(i)+1 || string(f.Line) != frame(want.ID, f.Seq) {
			return fmt.Errorf("frame %d of session %s is %d: %s", i, want.ID, f.Seq, f.Line)
		}
	}
	if uint64(len(left)) != last-delivered {
		return fmt.Errorf("session %s has %d undelivered frames, want %d", want.ID, len(left), last-delivered)
	}
	return nil
}

func gone(ctx context.Context, s a2e.Store, id string) error {
	if r, found, err := s.Load(ctx, id); found || err != nil {
		return fmt.Errorf("session %s is %+v, %w; want none", id, r, err)
	}
	return nil
}

// TestStore checks stores of sessions; open gives an empty one each time. The error names
// each rule that was broken.
func TestStore(open func() a2e.Store) error {
	return checks.Run(
		checks.Check{Name: "an unknown session is not found", Run: func(ctx context.Context) error {
			return gone(ctx, open(), "s1")
		}},
		checks.Check{Name: "a session keeps its undelivered frames in order", Run: func(ctx context.Context) error {
			s := open()
			return errors.Join(opened(ctx, s, "s1", 5), loads(ctx, s, record("s1"), 5, 0),
				s.Delivered(ctx, "s1", 3), loads(ctx, s, record("s1"), 5, 3),
				s.Delivered(ctx, "s1", 5), loads(ctx, s, record("s1"), 5, 5))
		}},
		checks.Check{Name: "a later handshake changes a session, not its frames", Run: func(ctx context.Context) error {
			s, changed := open(), record("s1")
			changed.Accepted = []string{"tools", "memory"}
			err := opened(ctx, s, "s1", 2)
			again := changed
			again.LastSeq = 2
			return errors.Join(err, s.Open(ctx, again), loads(ctx, s, changed, 2, 0))
		}},
		checks.Check{Name: "sessions are kept apart", Run: func(ctx context.Context) error {
			s := open()
			return errors.Join(opened(ctx, s, "s1", 2), opened(ctx, s, "s2", 1), s.Delivered(ctx, "s2", 1),
				loads(ctx, s, record("s1"), 2, 0), loads(ctx, s, record("s2"), 1, 1))
		}},
		checks.Check{Name: "a closed session is gone", Run: func(ctx context.Context) error {
			s := open()
			return errors.Join(opened(ctx, s, "s1", 2), opened(ctx, s, "s2", 1), s.Close(ctx, "s1"), gone(ctx, s, "s1"),
				loads(ctx, s, record("s2"), 1, 0))
		}},
		checks.Check{Name: "sessions may be used concurrently", Run: func(ctx context.Context) error {
			s := open()
			return checks.Together(16, func(i int) error {
				id := fmt.Sprint("s", i)
				return errors.Join(opened(ctx, s, id, 3), loads(ctx, s, record(id), 3, 0))
			})
		}},
	)
}

// TestRelay checks relays, also as stores. open gives those of two hosts that share their
// sessions, which are none each time. The error names each rule that was broken.
func TestRelay(open func() (first, second a2e.Relay)) error {
	return errors.Join(TestStore(func() a2e.Store { first, _ := open(); return first }), checks.Run(
		checks.Check{Name: "another host's session is elsewhere, with its identity", Run: func(ctx context.Context) error {
			first, second := open()
			if err := opened(ctx, first, "s1", 1); err != nil {
				return err
			}
			who, elsewhere, err := second.Elsewhere(ctx, "s1")
			if err != nil || !elsewhere || who.Name != "alice" {
				return fmt.Errorf("Elsewhere gives %+v, %v, %w", who, elsewhere, err)
			}
			if _, elsewhere, err = second.Elsewhere(ctx, "unknown"); err != nil || elsewhere {
				return fmt.Errorf("an unknown session is elsewhere: %w", err)
			}
			return nil
		}},
		checks.Check{Name: "a session that was loaded is ErrMoved for the host before", Run: func(ctx context.Context) error {
			first, second := open()
			if err := errors.Join(opened(ctx, first, "s1", 2), loads(ctx, second, record("s1"), 2, 0)); err != nil {
				return err
			}
			second.Held("s1")
			for what, err := range map[string]error{"Append": first.Append(ctx, "s1", 3, []byte(frame("s1", 3))),
				"Delivered": first.Delivered(ctx, "s1", 1)} {
				if !errors.Is(err, a2e.ErrMoved) {
					return fmt.Errorf("%s of the host before gives %w, want ErrMoved", what, err)
				}
			}
			return second.Append(ctx, "s1", 3, []byte(frame("s1", 3)))
		}},
	))
}
