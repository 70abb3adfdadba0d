package asp

import (
	"math"
	"slices"
)

// took looks at the sessions of a partition of which this node has become the
// owner: what was said in them since the one before left, nobody has seen to.
func (t *tender) took(partition int) {
	j := t.b.c.Journal
	for id, participants := range t.b.store.live() {
		if j.Partition(scope(id)) != partition || !slices.ContainsFunc(participants, func(p string) bool { return t.b.standIns.of(p) != nil }) {
			continue // in sessions of others there is nothing to be done
		}
		t.b.store.forget(id) // of its calls, some are settled
		t.mu.Lock()
		t.seen[id] = math.MaxUint64 // it may be further than is known here
		t.mu.Unlock()
		t.look(id)
	}
}

// live are the sessions that are not over, as far as this node knows, with who
// takes part.
func (s *store) live() map[string][]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string][]string{}
	for id, m := range s.summaries {
		if !m.over {
			out[id] = m.participants[:len(m.participants):len(m.participants)]
		}
	}
	return out
}
