package samvad

import (
	"context"
	"encoding/json"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
)

// Forget implements hub.Forgetter: what tasks ended with, of the agent
// or of its requests, goes before its time, and who polls finds no such task.
// One that still runs stays.
func (b *Binding) Forget(ctx context.Context, f hub.Forgetting) (n int, err error) {
	b.outcomes.Lock()
	defer b.outcomes.Unlock()
	hosted := ""
	if f.Agent != "" {
		hosted = b.id(f.Agent)
	}
	is := func(id string) bool { return id != "" && id == hosted || f.Is(Protocol, id) }
	var gone []string
	for v, err := range b.state().Range(ctx, "") {
		if err != nil {
			return n, err
		}
		var t task
		if json.Unmarshal(v.Data, &t) != nil {
			continue
		}
		wanted := f.Agent != "" && t.Status.Finished() && (t.To == f.Agent || is(t.Agent) || is(t.From))
		if id, err := parley.ParseID(v.Key); err == nil && f.Message(id) {
			// Its request is settled, though its outcome may not be kept yet.
			b.take(id)
			wanted = true
		}
		if wanted {
			gone = append(gone, v.Key)
		}
	}
	for _, key := range gone {
		if err := b.state().Delete(ctx, key, 0); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}
