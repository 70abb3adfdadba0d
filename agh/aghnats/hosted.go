package aghnats

import (
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley/agh"
)

// hosted schedules the greetings of hosted peers.
type hosted struct {
	mu    sync.Mutex
	byKey map[hostKey]*greeting
	subs  map[string]*subscription
}

type hostKey struct{ workspaceID, channel, peerID string }

type greeting struct {
	local *agh.Local
	at    time.Time // of the next
}

type subscription struct {
	sub *nats.Subscription
	n   int
}

func (h *hosted) add(l *agh.Local, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byKey == nil {
		h.byKey = map[hostKey]*greeting{}
	}
	h.byKey[hostKey{l.WorkspaceID, l.Channel, l.Card.PeerID}] = &greeting{l, at}
}

func (h *hosted) remove(workspaceID, channel, peerID string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := hostKey{workspaceID, channel, peerID}
	if h.byKey[k] == nil {
		return
	}
	delete(h.byKey, k)
	broadcast, _ := agh.BroadcastSubject(workspaceID, channel)
	peer, _ := agh.VerifiedPeerSubject(workspaceID, channel, peerID)
	for _, subject := range []string{broadcast, peer} {
		if s := h.subs[subject]; s != nil {
			s.n--
			if s.n == 0 {
				s.sub.Unsubscribe() // fails only if closed already
				delete(h.subs, subject)
			}
		}
	}
}

// due returns the peers whose greeting is due by a time and schedules their next one.
func (h *hosted) due(by, next time.Time) []*agh.Local {
	h.mu.Lock()
	defer h.mu.Unlock()
	var ls []*agh.Local
	for _, g := range h.byKey {
		if !g.at.After(by) {
			ls = append(ls, g.local)
			g.at = next
		}
	}
	return ls
}

// subscribe counts the users of a subject.
func (h *hosted) subscribe(subject string, sub func() (*nats.Subscription, error)) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.subs[subject]; s != nil {
		s.n++
		return nil
	}
	s, err := sub()
	if err != nil {
		return err
	}
	if h.subs == nil {
		h.subs = map[string]*subscription{}
	}
	h.subs[subject] = &subscription{s, 1}
	return nil
}
