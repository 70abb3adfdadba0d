package hub

import (
	"context"
	"sync"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// requestCache holds the newest recorded requests, so that a reply soon after needs no
// read of the journal. The messages must not be changed.
type requestCache struct {
	mu    sync.Mutex
	known map[parley.ID]cachedRequest
	ring  []parley.ID // in the order they came
	next  int
}

type cachedRequest struct {
	message *parley.Message
	scope   string
	at      journal.Position
}

const (
	maxCached      = 1024
	maxCachedBytes = 64 << 10 // of a message's Origin.Raw
)

func (r *requestCache) note(m *parley.Message, scope string, at journal.Position) {
	if m.Kind != parley.Request || len(m.Origin.Raw) > maxCachedBytes {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known == nil {
		r.known, r.ring = make(map[parley.ID]cachedRequest, maxCached), make([]parley.ID, maxCached)
	}
	delete(r.known, r.ring[r.next])
	r.ring[r.next] = m.ID
	r.next = (r.next + 1) % maxCached
	r.known[m.ID] = cachedRequest{m, scope, at}
}

// request gives the request recorded at a position, and its scope.
func (h *Hub) request(ctx context.Context, id parley.ID, at journal.Position) (*parley.Message, string, error) {
	h.recent.mu.Lock()
	k, ok := h.recent.known[id]
	h.recent.mu.Unlock()
	if ok && k.at == at {
		return k.message, k.scope, nil
	}
	r, err := h.c.Journal.Read(ctx, at)
	if err != nil {
		return nil, "", err
	}
	return r.Message, r.Scope, nil
}
