package samvadtest

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/parley-hub/parley/internal/checks"
	"github.com/parley-hub/parley/samvad"
)

// TestMemory checks memories; open gives an empty one each time. The error names each
// rule that was broken. The clock of the memory must be that of the system.
func TestMemory(open func() samvad.Memory) error {
	return checks.CheckMemory(func() checks.Memory { return open() },
		func(i int) string { return fmt.Sprintf("agent://weather.test\nagent://alice.test\nnonce-%d", i) })
}

// TestKeys checks a source of keys that knows the given agents, and also as a
// [samvad.Refresher] if it is one. The error names each rule that was broken.
func TestKeys(k samvad.Keys, known ...string) error {
	const unknown = "agent://unknown.invalid"
	find := func(look func(ctx context.Context, id string) ([]samvad.Key, error)) []checks.Check {
		one := func(ctx context.Context, id string) error {
			list, err := look(ctx, id)
			if err != nil || len(list) == 0 {
				return fmt.Errorf("%s has %d keys: %w", id, len(list), err)
			}
			for _, key := range list {
				if _, err := samvad.ParseKey(base64.StdEncoding.EncodeToString(key.Public)); err != nil {
					return fmt.Errorf("key %q of %s: %w", key.KID, id, err)
				}
			}
			return nil
		}
		return []checks.Check{
			{Name: "each known agent has acceptable keys", Run: func(ctx context.Context) error {
				for _, id := range known {
					if err := one(ctx, id); err != nil {
						return err
					}
				}
				return nil
			}},
			{Name: "an unknown agent has no keys", Run: func(ctx context.Context) error {
				list, err := look(ctx, unknown)
				if len(list) > 0 || err != nil && !errors.Is(err, samvad.ErrUnknownKey) {
					return fmt.Errorf("%s has %d keys, %w; want none, and no error but ErrUnknownKey", unknown, len(list), err)
				}
				return nil
			}},
			{Name: "calls may be concurrent", Run: func(ctx context.Context) error {
				return checks.Together(8*len(known), func(i int) error { return one(ctx, known[i%len(known)]) })
			}},
		}
	}
	list := find(k.Keys)
	if r, ok := k.(samvad.Refresher); ok {
		for _, c := range find(r.Refresh) {
			list = append(list, checks.Check{Name: "refreshed: " + c.Name, Run: c.Run})
		}
	}
	return checks.Run(list...)
}

// TestTasks checks stores of tasks; open gives an empty one each time. The error names
// each rule that was broken.
func TestTasks(open func() samvad.Tasks) error {
	const agent = "agent://weather.test"
	same := func(ctx context.Context, s samvad.Tasks, want samvad.Task) error {
		got, err := s.Get(ctx, want.Agent, want.ID)
		if err != nil {
			return fmt.Errorf("get task %s: %w", want.ID, err)
		}
		a, err := got.Encode()
		if err != nil {
			return err
		}
		b, err := want.Encode()
		if err != nil {
			return err
		}
		if !bytes.Equal(a, b) || got.Agent != want.Agent || got.TraceID != want.TraceID {
			return fmt.Errorf("task %s is %s of %s, trace %s; want %s of %s, trace %s", want.ID, a, got.Agent, got.TraceID,
				b, want.Agent, want.TraceID)
		}
		return nil
	}
	put := func(ctx context.Context, s samvad.Tasks, t samvad.Task) error {
		if err := s.Put(ctx, t); err != nil {
			return fmt.Errorf("put task %s: %w", t.ID, err)
		}
		return same(ctx, s, t)
	}
	pending := samvad.Task{ID: "task-1", Agent: agent, Status: samvad.TaskPending, TraceID: "trace-1"}
	done := pending
	done.Status, done.Progress, done.Result = samvad.TaskDone, new(1.0), json.RawMessage(`{"n":9007199254740993}`)
	missing := func(ctx context.Context, s samvad.Tasks, agent, id string) error {
		if t, err := s.Get(ctx, agent, id); !errors.Is(err, samvad.ErrNotFound) {
			return fmt.Errorf("task %q of %s is %q, %w; want ErrNotFound", id, agent, t.ID, err)
		}
		return nil
	}
	return checks.Run(
		checks.Check{Name: "a task is kept as it was put last", Run: func(ctx context.Context) error {
			s := open()
			running := pending
			running.Status, running.Progress = samvad.TaskRunning, new(0.25)
			return errors.Join(put(ctx, s, pending), put(ctx, s, running), put(ctx, s, done), same(ctx, s, done))
		}},
		checks.Check{Name: "a failure keeps its code and text", Run: func(ctx context.Context) error {
			failed := pending
			failed.Status, failed.Err = samvad.TaskFailed, &samvad.Error{Code: samvad.CodeAgentUnavailable, Text: "closed"}
			return put(ctx, open(), failed)
		}},
		checks.Check{Name: "an unknown task is ErrNotFound", Run: func(ctx context.Context) error {
			return missing(ctx, open(), agent, "task-1")
		}},
		checks.Check{Name: "a task of another agent is ErrNotFound", Run: func(ctx context.Context) error {
			s := open()
			return errors.Join(put(ctx, s, pending), missing(ctx, s, "agent://other.test", pending.ID))
		}},
		checks.Check{Name: "calls may be concurrent", Run: func(ctx context.Context) error {
			s := open()
			return checks.Together(32, func(i int) error {
				t := done
				t.ID = fmt.Sprintf("task-%d", i)
				return put(ctx, s, t)
			})
		}},
	)
}

// TestSigner checks a signer, and its current key if it is a [samvad.RollingSigner]. The
// error names each rule that was broken.
func TestSigner(s samvad.Signer) error {
	verifies := func(s samvad.Signer, text string) error {
		sig, err := s.Sign([]byte(text))
		if err != nil {
			return err
		}
		if !ed25519.Verify(s.Public(), []byte(text), sig) {
			return fmt.Errorf("the signature of %d bytes does not verify with Public", len(text))
		}
		return nil
	}
	one := func(s samvad.Signer) []checks.Check {
		return []checks.Check{
			{Name: "ID is an agent's identity", Run: func(context.Context) error { return samvad.CheckAgent(s.ID()) }},
			{Name: "Public is an acceptable key", Run: func(context.Context) error {
				_, err := samvad.ParseKey(base64.StdEncoding.EncodeToString(s.Public()))
				return err
			}},
			{Name: "signatures verify", Run: func(context.Context) error {
				return errors.Join(verifies(s, ""), verifies(s, "a message"), verifies(s, string(make([]byte, 64<<10))))
			}},
			{Name: "KID can be in a signature", Run: func(context.Context) error {
				_, err := samvad.Sign(s, "POST", "/agent/message", []byte("{}"), time.Unix(1767225600, 0))
				return err
			}},
			{Name: "calls may be concurrent", Run: func(context.Context) error {
				return checks.Together(16, func(i int) error { return verifies(s, fmt.Sprint("message ", i)) })
			}},
		}
	}
	list := one(s)
	if r, ok := s.(samvad.RollingSigner); ok {
		list = append(list, checks.Check{Name: "Current has the same ID", Run: func(context.Context) error {
			c := r.Current()
			if c == nil || c.ID() != s.ID() {
				return errors.New("it has not")
			}
			return checks.Run(one(c)...)
		}})
	}
	return checks.Run(list...)
}
