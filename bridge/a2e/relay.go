package a2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	protocol "github.com/parley-hub/parley/a2e"

	"github.com/parley-hub/parley/journal"
)

// Hubs on one journal relay, through its state, lines from an agent and frames for it
// to the hub that has the session. A key is the session's, the direction, and the
// order:
//
//	5f…/in/01800000000000000000-000001-…

const (
	fromAgent = "in"
	forAgent  = "out"
	movedKey  = "held" // another node has the session

	relayTTL = 24 * time.Hour // while no hub has the session
	moveTTL  = time.Minute
)

var _ protocol.Relay = (*sessionStore)(nil)

// watch receives what other nodes relay.
func (t *sessionStore) watch(ctx context.Context) (stop func(), err error) {
	return t.relays.Watch(ctx, "", func(v journal.Value) {
		if key, _, ok := strings.Cut(v.Key, "/"); ok && !v.Deleted {
			t.mu.Lock()
			id := t.ids[key]
			t.mu.Unlock()
			if id != "" {
				t.Held(id)
			}
		}
	})
}

// Elsewhere implements a2e.Relay.
func (t *sessionStore) Elsewhere(ctx context.Context, id string) (who protocol.Identity, elsewhere bool, err error) {
	row, err := t.rows.Get(ctx, sessionKey(id))
	if err != nil || row.Revision == 0 || !t.known(row.Value.Agent) || !t.aliveElsewhere(row.Value.Node) {
		return who, false, err
	}
	return row.Value.identity(), true, nil
}

// Send implements a2e.Relay.
func (t *sessionStore) Send(ctx context.Context, id string, lines []byte) error {
	key := sessionKey(id)
	list := strings.Split(string(lines), "\n")
	for i, line := range list {
		list[i] = string(renameSession([]byte(line), id, key))
	}
	err := t.relay(ctx, key, fromAgent, []byte(strings.Join(list, "\n")))
	if errors.Is(err, journal.ErrTooLarge) {
		return protocol.ErrTooLarge
	}
	return err
}

// Forward implements a2e.Relay.
func (t *sessionStore) Forward(ctx context.Context, id string, seq uint64, frame []byte) error {
	key := sessionKey(id)
	if k := t.own(id); k != nil {
		k.mu.Lock()
		known, lost := seq > 0 && seq <= k.known, k.lost != nil
		k.mu.Unlock()
		if known {
			return nil
		}
		if seq == 0 && lost {
			t.drop(id, k)
		}
	}
	return t.relay(ctx, key, forAgent, renameSession(frame, id, key))
}

// relay records data for the node that has a session, or will have it.
func (t *sessionStore) relay(ctx context.Context, key, direction string, data []byte) error {
	now := t.now()
	_, err := t.relays.Put(ctx, key+"/"+direction+"/"+t.order.key(now), data, now.Add(relayTTL))
	return err
}

// relayed lists the data below a prefix in the order in which it was relayed.
func (t *sessionStore) relayed(ctx context.Context, prefix string) (list []journal.Value, err error) {
	for v, err := range t.relays.Range(ctx, prefix) {
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	slices.SortFunc(list, func(a, b journal.Value) int { return strings.Compare(a.Key, b.Key) })
	return list, nil
}

// drop removes a session that another node has.
func (t *sessionStore) drop(id string, k *ownSession) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sessions[id] == k {
		delete(t.sessions, id)
		delete(t.ids, k.key)
	}
}

// announceMove tells the node that had a session that this one has it.
func (t *sessionStore) announceMove(ctx context.Context, key string) {
	if _, err := t.relays.Put(ctx, key+"/"+movedKey, []byte(t.node), t.now().Add(moveTTL)); err != nil {
		t.log.Warn("another hub hears later that an A2E session moved here", "error", err)
	}
}

// Held implements a2e.Relay: it receives the data relayed for a session, one call at a
// time.
func (t *sessionStore) Held(id string) {
	k := t.own(id)
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.more = true
	if k.receiving {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	k.receiving = true
	t.work.Go(func() {
		for {
			k.mu.Lock()
			k.receiving = k.more
			if !k.more {
				k.mu.Unlock()
				return
			}
			k.more = false
			k.mu.Unlock()
			if err := t.receive(t.life, k, id); err != nil && t.life.Err() == nil {
				t.log.Warn("relayed data for an A2E session waits", "agent", k.rec.Agent, "error", err)
			}
		}
	})
}

// receive gives a session the data relayed for it, or drops the session if another node
// has it.
func (t *sessionStore) receive(ctx context.Context, k *ownSession, id string) error {
	s, ok := t.session(id)
	if !ok {
		return nil // another node will have the session, or its record expires
	}
	row, err := t.rows.Get(ctx, k.key)
	if err == nil && row.Revision == 0 {
		err = fmt.Errorf("the session is not recorded: %w", journal.ErrNotFound)
	}
	if err != nil {
		return err
	}
	k.mu.Lock()
	moved := row.Value.Epoch != k.rec.Epoch || k.lost != nil
	if moved && k.lost == nil {
		k.lost = protocol.ErrMoved
	}
	k.mu.Unlock()
	if moved {
		s.Move()
		t.drop(id, k)
		return nil
	}
	list, err := t.relayed(ctx, k.key+"/")
	if err != nil {
		return err
	}
	for _, v := range list {
		_, rest, _ := strings.Cut(v.Key, "/")
		switch direction, _, _ := strings.Cut(rest, "/"); direction {
		case fromAgent:
			for line := range strings.SplitSeq(string(v.Data), "\n") {
				if err := s.Take(ctx, renameSession([]byte(line), k.key, id)); err != nil {
					return err
				}
			}
		case forAgent:
			if err := s.Pass(renameSession(v.Data, k.key, id)); err != nil {
				return err
			}
		default:
			continue // the record expires
		}
		if err := t.relays.Delete(ctx, v.Key, 0); err != nil {
			return err
		}
	}
	return nil
}
