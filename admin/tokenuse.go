package admin

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// This file follows the use of tokens: when each was used last, and which calls run on it.

// noteEvery is how often the last use of a token is recorded, at most.
const noteEvery = time.Hour

// noteUse notes the use of a token: always in memory, and in the state if it has not been
// recorded for noteEvery.
func (t *Tokens) noteUse(v Token, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.used[v.Name] = now.UTC().Truncate(time.Second)
	revision := t.revisions[v.Name]
	if revision == 0 || now.Sub(v.Used) < noteEvery || now.Sub(t.noted[v.Name]) < noteEvery {
		return
	}
	v.Used = t.used[v.Name]
	t.noted[v.Name] = now
	t.notes.Go(func() {
		// A caller must not wait for this, as while a cluster has no quorum.
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		err := t.put(v, func(b []byte) (uint64, error) {
			return t.state.Update(ctx, v.Name, b, time.Time{}, revision)
		})
		if err == nil {
			err = t.copy()
		}
		if err != nil && !errors.Is(err, journal.ErrConflict) { // a conflict: another hub has recorded a use, or revoked it
			t.log.Warn("cannot record when an admin token was used last", "token", v.Name, "error", err)
		}
	})
}

// A runningCall is a call that goes on while its token permits it.
type runningCall struct {
	by  Actor
	end context.CancelCauseFunc
}

// permits reports whether a token still permits all that it did when the call began.
func (c *runningCall) permits(t Token) bool {
	return t.Hash == c.by.hash && t.Role == c.by.Role && t.Agent == c.by.agent && slices.Equal(t.Speak, c.by.Speak)
}

// During gives a context for a call of an actor. It ends when the actor's token expires,
// is revoked or changes; its cause is then the refusal. The caller must call end.
func (t *Tokens) During(ctx context.Context, by Actor) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	c := &runningCall{by, cancel}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.ContainsFunc(t.list, c.permits) { // it was revoked since it was found
		cancel(parley.Refuse(parley.Unauthenticated, "token %q was revoked", by.Name))
	}
	t.calls[c] = struct{}{}
	stop := func() bool { return true }
	if !by.expires.IsZero() {
		stop = time.AfterFunc(by.expires.Sub(t.now()), func() { cancel(expired(by.Name, by.expires)) }).Stop
	}
	return ctx, func() {
		stop()
		cancel(nil)
		t.mu.Lock()
		delete(t.calls, c)
		t.mu.Unlock()
	}
}

// still refuses an actor whose token expired, was revoked or changed since it was found.
func (t *Tokens) still(by Actor) error {
	if !by.expires.IsZero() && !t.now().Before(by.expires) {
		return expired(by.Name, by.expires)
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if !slices.ContainsFunc(t.list, (&runningCall{by: by}).permits) {
		return parley.Refuse(parley.Unauthenticated, "token %q was revoked", by.Name)
	}
	return nil
}

// local gives the actor of the token for commands on the hub's machine.
func (t *Tokens) local() (Actor, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	i := slices.IndexFunc(t.list, func(k Token) bool { return k.Name == localToken })
	if i < 0 {
		return Actor{}, false
	}
	v := t.list[i]
	return Actor{Name: v.Name, Role: v.Role, Speak: v.Speak, hash: v.Hash, expires: v.Expires}, true
}
