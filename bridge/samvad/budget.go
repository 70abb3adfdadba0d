package samvad

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/journal"
	protocol "github.com/parley-hub/parley/samvad"
)

// budget keeps what senders used up of their tokens a day in the journal's
// state, so that a restart gives nobody a new budget, and so that all nodes
// count together. Each process writes sums of its own alone, and adds those of
// the others, earlier ones of this node among them, to its limiter.
//
// It writes at once, then at most once a second for each agent and sender: a
// process that is killed forgets what was used up in its last second, one that
// is stopped nothing.
type budget struct {
	state   journal.State
	limiter *protocol.Limiter
	now     func() time.Time
	self    string // of this process

	mu    sync.Mutex
	day   string
	spent map[spender]int64 // by this process on that day
	dirty map[spender]bool  // not in the state yet
	seen  map[string]int64  // of the sums of others what is counted, by key
	wake  chan struct{}
}

type spender struct{ Agent, Sender string }

// spending is a sum as it is kept.
type spending struct {
	Agent  string `json:"agent"`
	Sender string `json:"sender"`
	Tokens int64  `json:"tokens"`
}

const (
	bucketTokens = "samvad-tokens"
	budgetEvery  = time.Second
	// As many as the limiter counts; those beyond are counted in memory alone.
	maxSpenders = protocol.DefaultMaxSenders
)

func newBudget(s journal.State, l *protocol.Limiter, now func() time.Time) *budget {
	b := &budget{state: s, limiter: l, now: now, self: rand.Text(), wake: make(chan struct{}, 1)}
	l.Spent = b.record
	return b
}

// today begins a new day when it is one. The caller holds the lock.
func (b *budget) today(now time.Time) string {
	if day := now.UTC().Format(time.DateOnly); day != b.day {
		b.day, b.spent, b.dirty, b.seen = day, map[spender]int64{}, map[spender]bool{}, map[string]int64{}
	}
	return b.day
}

// record notes what a sender used up in this process.
func (b *budget) record(agent, sender string, tokens int, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.today(now)
	s := spender{agent, sender}
	if _, ok := b.spent[s]; !ok && len(b.spent) >= maxSpenders {
		return
	}
	b.spent[s] += int64(tokens)
	b.dirty[s] = true
	b.poke()
}

func (b *budget) poke() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// start counts what others used up today, and goes on to do so.
func (b *budget) start(ctx context.Context) (stop func(), err error) {
	stop, err = b.state.Watch(ctx, "", b.other)
	if err != nil {
		return nil, fmt.Errorf("read what senders used up: %w", err)
	}
	return stop, nil
}

// other counts what another process wrote.
func (b *budget) other(v journal.Value) {
	day, rest, _ := strings.Cut(v.Key, "/")
	var s spending
	if v.Deleted || strings.HasPrefix(rest, b.self+"/") || json.Unmarshal(v.Data, &s) != nil {
		return
	}
	now := b.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.today(now) != day || len(b.seen) >= maxSpenders && b.seen[v.Key] == 0 {
		return
	}
	if more := s.Tokens - b.seen[v.Key]; more > 0 {
		b.seen[v.Key] = s.Tokens
		b.limiter.Count(s.Agent, s.Sender, int(more), now)
	}
}

// run keeps what is used up until ctx ends.
func (b *budget) run(ctx context.Context, failed func(error)) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-b.wake:
		case <-ctx.Done():
			return
		}
		if err := b.flush(ctx); err != nil && ctx.Err() == nil {
			failed(err)
		}
		pause.Reset(budgetEvery)
		select {
		case <-pause.C:
		case <-ctx.Done():
			return
		}
	}
}

// flush writes what is not in the state yet. What cannot be written is tried
// again with the next.
func (b *budget) flush(ctx context.Context) error {
	b.mu.Lock()
	day, changed := b.day, b.dirty
	b.dirty = map[spender]bool{}
	b.mu.Unlock()
	for s := range changed {
		if err := b.put(ctx, day, s); err != nil {
			b.mu.Lock()
			if b.day == day {
				for s := range changed {
					b.dirty[s] = true
				}
				b.poke()
			}
			b.mu.Unlock()
			return fmt.Errorf("keep what %s used up of %s: %w", s.Sender, s.Agent, err)
		}
	}
	return nil
}

func (b *budget) put(ctx context.Context, day string, s spender) error {
	b.mu.Lock()
	sum, current := b.spent[s], b.day == day
	b.mu.Unlock()
	if !current {
		return nil // a new day
	}
	midnight, err := time.Parse(time.DateOnly, day)
	if err != nil {
		return err
	}
	v, err := jsonx.Encode(spending{s.Agent, s.Sender, sum})
	if err != nil {
		return err
	}
	name := sha256.Sum256([]byte(s.Agent + "\n" + s.Sender))
	_, err = b.state.Put(ctx, day+"/"+b.self+"/"+hex.EncodeToString(name[:16]), v, midnight.AddDate(0, 0, 1))
	return err
}
