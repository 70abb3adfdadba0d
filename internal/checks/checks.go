// Package checks runs the checks of the packages that help tests of own implementations
// of an interface (samvadtest, asptest …). It holds the checks of what several protocols
// have: replay memories and tables of keys.
package checks

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// A Check is one rule of a contract.
type Check struct {
	Name string // the rule in words
	Run  func(ctx context.Context) error
}

// limit bounds one check: an implementation that hangs fails it.
const limit = time.Minute

// Run runs the checks, and gives the failures of all, each with its name.
func Run(list ...Check) error {
	var failures []error
	for _, c := range list {
		ctx, stop := context.WithTimeout(context.Background(), limit)
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		var err error
		select {
		case err = <-done:
		case <-ctx.Done():
			err = errors.New("no result within a minute")
		}
		stop()
		if err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", c.Name, err))
		}
	}
	return errors.Join(failures...)
}

// Together calls f from n goroutines at once, with the numbers from 0 on.
func Together(n int, f func(i int) error) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = f(i) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// Memory is the part that the replay memories of all protocols have.
type Memory interface {
	Seen(ctx context.Context, key string, until time.Time) (fresh bool, err error)
}

// knower is a memory that can look a key up without remembering it.
type knower interface {
	Known(ctx context.Context, key string) (bool, error)
}

// CheckMemory checks replay memories. open gives an empty one each time; keys gives keys
// in the form of the protocol, a different one for each number.
func CheckMemory(open func() Memory, key func(i int) string) error {
	want := func(ctx context.Context, m Memory, key string, until time.Time, want bool) error {
		fresh, err := m.Seen(ctx, key, until)
		if err != nil || fresh != want {
			return fmt.Errorf("Seen(%q) gave fresh=%v, %v; want fresh=%v", key, fresh, err, want)
		}
		return nil
	}
	known := func(ctx context.Context, m Memory, key string, want bool) error {
		k, ok := m.(knower)
		if !ok {
			return nil
		}
		got, err := k.Known(ctx, key)
		if err != nil || got != want {
			return fmt.Errorf("Known(%q) gave %v, %v; want %v", key, got, err, want)
		}
		return nil
	}
	later := func() time.Time { return time.Now().Add(time.Hour) }
	return Run(
		Check{"a key is fresh once", func(ctx context.Context) error {
			m := open()
			for i := range 3 {
				for turn := range 3 {
					if err := want(ctx, m, key(i), later(), turn == 0); err != nil {
						return err
					}
				}
			}
			return nil
		}},
		Check{"a look-up changes nothing", func(ctx context.Context) error {
			m := open()
			return errors.Join(known(ctx, m, key(0), false), known(ctx, m, key(0), false),
				want(ctx, m, key(0), later(), true), known(ctx, m, key(0), true), known(ctx, m, key(1), false))
		}},
		Check{"a later duplicate does not shorten the time", func(ctx context.Context) error {
			m := open()
			return errors.Join(want(ctx, m, key(0), later(), true), want(ctx, m, key(0), time.Now(), false),
				want(ctx, m, key(0), later(), false))
		}},
		Check{"of concurrent calls with one key exactly one is fresh", func(ctx context.Context) error {
			m := open()
			for round := range 20 {
				var fresh atomic.Int64
				if err := Together(8, func(int) error {
					ok, err := m.Seen(ctx, key(round), later())
					if ok {
						fresh.Add(1)
					}
					return err
				}); err != nil {
					return err
				}
				if n := fresh.Load(); n != 1 {
					return fmt.Errorf("%d of 8 calls were fresh", n)
				}
			}
			return nil
		}},
		Check{"many keys are kept apart", func(ctx context.Context) error {
			m := open()
			for _, fresh := range []bool{true, false} {
				for i := range 500 {
					if err := want(ctx, m, key(i), later(), fresh); err != nil {
						return err
					}
				}
			}
			return nil
		}},
		Check{"a call whose context has ended is not fresh twice", func(ctx context.Context) error {
			m := open()
			over, stop := context.WithCancel(ctx)
			stop()
			first, err := m.Seen(over, key(0), later())
			if err != nil && first {
				return errors.New("Seen gave fresh and an error")
			}
			again, err := m.Seen(ctx, key(0), later())
			if err != nil || first && again {
				return fmt.Errorf("the key was fresh again: %v, %v", again, err)
			}
			return nil
		}},
	)
}
