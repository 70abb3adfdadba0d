package samvad

import (
	"context"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
)

// Forget implements hub.Forgetter: it removes the finished tasks of an agent or of
// its requests before their time, so that polls find none. Tasks that still run
// stay, unless their request is forgotten.
func (b *Binding) Forget(ctx context.Context, f hub.Forgetting) (int, error) {
	standIn := ""
	if f.Agent != "" {
		standIn = b.standInID(f.Agent)
	}
	is := func(id string) bool { return id != "" && id == standIn || f.Is(Protocol, id) }
	return b.tasks.Sweep(ctx, "", func(r *journal.Row[task]) journal.Fate {
		t := &r.Value
		if id, err := parley.ParseID(r.Key); err == nil && f.Message(id) {
			b.running.Delete(id)
			return journal.Remove
		}
		if f.Agent != "" && t.Status.Finished() && (t.To == f.Agent || is(t.Agent) || is(t.From)) {
			return journal.Remove
		}
		return journal.Keep
	})
}
