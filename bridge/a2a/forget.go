package a2a

import (
	"context"

	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
)

// Forget implements hub.Forgetter: it removes what the binding keeps of calls of agents elsewhere,
// and the webhooks of an agent's tasks, as their client or their agent, and of tasks whose request
// was erased. Tasks themselves are records.
func (b *Binding) Forget(ctx context.Context, f hub.Forgetting) (int, error) {
	n, err := b.forgetCalls(ctx, f)
	if err != nil {
		return n, err
	}
	hooks, err := b.hooks.Sweep(ctx, "", func(r *journal.Row[hookRow]) journal.Fate {
		task, _, ok := parseHookKey(r.Key)
		if !ok || f.Message(task) || f.Agent != "" && (r.Value.Caller == f.Agent || r.Value.Agent == f.Agent) {
			return journal.Remove
		}
		return journal.Keep
	})
	return n + hooks, err
}

var _ hub.Forgetter = (*Binding)(nil)
