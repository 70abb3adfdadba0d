package admin

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/journal"
)

// audit is the trail of operators' actions: kept in the journal's state, with a
// copy in memory.
type audit struct {
	state journal.State
	limit int

	mu      sync.Mutex
	entries map[string]AuditEntry
	last    time.Time // of the newest ID made here
}

func openAudit(ctx context.Context, s journal.State, limit int) (*audit, error) {
	t := &audit{state: s, limit: limit, entries: map[string]AuditEntry{}}
	if _, err := s.Watch(ctx, "", t.changed); err != nil {
		return nil, fmt.Errorf("read the audit trail: %w", err)
	}
	return t, nil
}

func (t *audit) changed(v journal.Value) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var e AuditEntry
	if v.Deleted || jsonx.Decode(v.Data, &e) != nil {
		delete(t.entries, v.Key)
		return
	}
	t.entries[v.Key] = e
}

func (t *audit) list(f AuditFilter) []AuditEntry {
	out := []AuditEntry{}
	t.mu.Lock()
	for _, e := range t.entries {
		if f.matches(&e) {
			out = append(out, e)
		}
	}
	t.mu.Unlock()
	slices.SortFunc(out, func(a, b AuditEntry) int { return strings.Compare(b.ID, a.ID) })
	if f.Limit > 0 && len(out) > f.Limit {
		out = out[:f.Limit]
	}
	return out
}

// id makes the next ID; it sorts behind all earlier ones, even if the clock was
// set back.
func (t *audit) id(now time.Time) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if next := t.last.Add(time.Millisecond); now.Before(next) {
		now = next
	}
	t.last = now
	id, err := parley.NewID(now, rand.Reader)
	return id.String(), err
}

// put records an entry, and deletes the oldest ones above the limit.
func (t *audit) put(ctx context.Context, e AuditEntry) error {
	b, err := jsonx.Encode(e)
	if err != nil {
		return err
	}
	if _, err := t.state.Put(ctx, e.ID, b, time.Time{}); err != nil {
		return err
	}
	t.mu.Lock()
	t.entries[e.ID] = e
	var old []string
	if n := len(t.entries) - t.limit; n > 0 {
		old = slices.Sorted(maps.Keys(t.entries))[:n]
		for _, id := range old {
			delete(t.entries, id)
		}
	}
	t.mu.Unlock()
	for _, id := range old {
		if err := t.state.Delete(ctx, id, 0); err != nil {
			return err
		}
	}
	return nil
}

// act does an operator's action with an entry in the audit trail: written before
// the action, and again with its outcome.
func (a *Admin) act(ctx context.Context, by Actor, role Role, action, target, detail string,
	f func(context.Context) error) error {
	_, err := actFor(a, ctx, by, role, action, target, detail, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, f(ctx)
	})
	return err
}

// actFor is act for an action with a result.
func actFor[T any](a *Admin, ctx context.Context, by Actor, role Role, action, target, detail string,
	f func(context.Context) (T, error)) (out T, err error) {
	if err := by.may(role); err != nil {
		return out, err
	}
	id, err := a.audit.id(a.c.Now())
	if err != nil {
		return out, parley.Refuse(parley.Internal, "internal error").Because(err)
	}
	e := AuditEntry{ID: id, Time: a.c.Now().UTC(), Hub: a.c.Hub.ID(), Actor: by.Name, Role: by.Role,
		Address: by.Address, Via: by.Via, Action: action, Target: clip(target), Detail: clip(detail),
		Outcome: "started"}
	if err := a.audit.put(ctx, e); err != nil {
		return out, parley.Fail(parley.Unavailable, err, "the audit trail cannot be written, so nothing was done")
	}
	out, err = f(ctx)
	e.Outcome = "done"
	if err != nil {
		e.Outcome = clip(parley.AsError(err).Text)
	}
	// The action is not undone if this fails: its entry keeps the outcome "started".
	if perr := a.audit.put(context.WithoutCancel(ctx), e); perr != nil {
		a.c.Logger.Error("cannot record the outcome of an operator's action", "action", action, "target", target,
			"error", perr)
	}
	a.c.Logger.Info("action of an operator", "actor", by.Name, "action", action, "target", target, "outcome", e.Outcome)
	return out, err
}

// Audit lists the actions of operators that a filter chooses, the newest first.
func (a *Admin) Audit(by Actor, f AuditFilter) ([]AuditEntry, error) {
	if err := by.may(Administer); err != nil {
		return nil, err
	}
	return a.audit.list(f), nil
}

func clip(s string) string {
	if len(s) > 512 {
		return strings.ToValidUTF8(s[:512], "") + "…"
	}
	return s
}
