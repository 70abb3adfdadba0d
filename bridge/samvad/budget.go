package samvad

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley/internal/sleep"
	"github.com/parley-hub/parley/journal"
	protocol "github.com/parley-hub/parley/samvad"
)

// budget records how many tokens each sender used today, so that the limit holds over
// restarts and for all nodes together. Each process writes only its own sums, and
// adds those of other processes, and of earlier ones of this node, to its limiter.
//
// It writes the first tokens of a sender at once, then at most once a second: a
// killed process loses the tokens of its last second, a stopped one none.
type budget struct {
	table   *journal.Table[spending]
	limiter *protocol.Limiter
	now     func() time.Time
	self    string // names this process

	mu    sync.Mutex
	day   time.Time         // its start, in UTC
	spent map[spender]int64 // tokens that this process counted on that day
	dirty map[spender]bool  // not in the table yet
	wake  chan struct{}
}

type spender struct{ Agent, Sender string }

const (
	budgetEvery = time.Second
	// Further senders are counted in memory only.
	maxSpenders = protocol.DefaultMaxSenders
)

func newBudget(t *journal.Table[spending], l *protocol.Limiter, now func() time.Time) *budget {
	b := &budget{table: t, limiter: l, now: now, self: rand.Text(), wake: make(chan struct{}, 1)}
	l.Spent = b.record
	return b
}

func dayOf(t time.Time) time.Time { return t.UTC().Truncate(24 * time.Hour) }

// record adds tokens that a sender used in this process.
func (b *budget) record(agent, sender string, tokens int, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if day := dayOf(now); !day.Equal(b.day) {
		b.day, b.spent, b.dirty = day, map[spender]int64{}, map[spender]bool{}
	}
	s := spender{agent, sender}
	if _, ok := b.spent[s]; !ok && len(b.spent) >= maxSpenders {
		return
	}
	b.spent[s] += int64(tokens)
	b.markDirty(s)
}

// markDirty has run write a sum. The caller holds the lock.
func (b *budget) markDirty(s spender) {
	b.dirty[s] = true
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// start counts the tokens of other processes, now and as they write them.
func (b *budget) start(ctx context.Context) (stop func(), err error) {
	stop, err = b.table.Follow(ctx, b.countOthers)
	if err != nil {
		return nil, fmt.Errorf("read the tokens that senders used: %w", err)
	}
	return stop, nil
}

// countOthers counts the tokens that another process added to its sum of today.
func (b *budget) countOthers(before, after journal.Row[spending]) {
	day, rest, _ := strings.Cut(after.Key, "/")
	more, now := after.Value.Tokens-before.Value.Tokens, b.now()
	if more > 0 && day == dayOf(now).Format(time.DateOnly) && !strings.HasPrefix(rest, b.self+"/") {
		b.limiter.Count(after.Value.Agent, after.Value.Sender, int(more), now)
	}
}

// run records tokens until ctx ends.
func (b *budget) run(ctx context.Context, failed func(error)) {
	for {
		select {
		case <-b.wake:
		case <-ctx.Done():
			return
		}
		if err := b.flush(ctx); err != nil && ctx.Err() == nil {
			failed(err)
		}
		if sleep.For(ctx, budgetEvery) != nil {
			return
		}
	}
}

// flush writes the sums that changed. If that fails, they count as changed again.
func (b *budget) flush(ctx context.Context) error {
	b.mu.Lock()
	day, sums := b.day, map[spender]int64{}
	for s := range b.dirty {
		sums[s] = b.spent[s]
	}
	clear(b.dirty)
	b.mu.Unlock()
	for s, sum := range sums {
		name := sha256.Sum256([]byte(s.Agent + "\n" + s.Sender))
		key := day.Format(time.DateOnly) + "/" + b.self + "/" + hex.EncodeToString(name[:16])
		_, err := b.table.Put(ctx, key, spending{s.Agent, s.Sender, sum}, day.Add(24*time.Hour))
		if err == nil {
			continue
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.day.Equal(day) {
			for s := range sums {
				b.markDirty(s)
			}
		}
		return fmt.Errorf("record the tokens of %s at %s: %w", s.Sender, s.Agent, err)
	}
	return nil
}
