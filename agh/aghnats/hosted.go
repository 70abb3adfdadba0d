package aghnats

import (
	"crypto/sha256"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley/agh"
)

// hosted schedules the greetings of hosted peers. All intervals are equal, so that
// the queue is always in the order of time.
type hosted struct {
	mu    sync.Mutex
	queue []*greeting // next first
	byKey map[hostKey]*greeting
	subs  map[string]*subscription
}

type hostKey struct{ workspaceID, channel, peerID string }

type greeting struct {
	local *agh.Local
	at    time.Time
	gone  bool
}

type subscription struct {
	sub *nats.Subscription
	n   int
}

func keyOf(l *agh.Local) hostKey { return hostKey{l.WorkspaceID, l.Channel, l.Card.PeerID} }

func (h *hosted) add(l *agh.Local, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if old := h.byKey[keyOf(l)]; old != nil {
		old.gone = true
	}
	if h.byKey == nil {
		h.byKey = map[hostKey]*greeting{}
	}
	g := &greeting{local: l, at: at}
	h.byKey[keyOf(l)] = g
	h.queue = append(h.queue, g)
}

func (h *hosted) remove(workspaceID, channel, peerID string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := hostKey{workspaceID, channel, peerID}
	g := h.byKey[k]
	if g == nil {
		return
	}
	g.gone = true
	delete(h.byKey, k)
	broadcast, _ := agh.BroadcastSubject(workspaceID, channel)
	peer, _ := agh.VerifiedPeerSubject(workspaceID, channel, peerID)
	for _, subject := range []string{broadcast, peer} {
		if s := h.subs[subject]; s != nil {
			s.n--
			if s.n == 0 {
				s.sub.Unsubscribe() // fails only when closed, which is as good
				delete(h.subs, subject)
			}
		}
	}
}

// due returns the peers whose greeting is due and queues their next one.
func (h *hosted) due(now time.Time, interval time.Duration) []*agh.Local {
	h.mu.Lock()
	defer h.mu.Unlock()
	var ls []*agh.Local
	for len(h.queue) > 0 && !h.queue[0].at.After(now) {
		g := h.queue[0]
		h.queue[0] = nil
		h.queue = h.queue[1:]
		if g.gone {
			continue
		}
		ls = append(ls, g.local)
		g.at = now.Add(interval)
		h.queue = append(h.queue, g)
	}
	return ls
}

func (h *hosted) all(do func(*agh.Local)) {
	h.mu.Lock()
	var ls []*agh.Local
	for _, g := range h.byKey {
		ls = append(ls, g.local)
	}
	h.mu.Unlock()
	for _, l := range ls {
		do(l)
	}
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

// replies remembers the NATS reply subjects of questions, so that an answer
// is published there too. It is bounded: the oldest goes.
type replies struct {
	mu    sync.Mutex
	byKey map[replyKey]reply
	order []replyKey
}

type replyKey struct {
	hostKey          // the asker
	id      [16]byte // hash of the question's id, which may be long
}

func questionKey(e *agh.Envelope, asker, id string) replyKey {
	sum := sha256.Sum256([]byte(id))
	return replyKey{hostKey{e.WorkspaceID, e.Channel, asker}, [16]byte(sum[:16])}
}

type reply struct {
	subject string
	until   time.Time
}

const (
	replyTime  = time.Minute
	maxReplies = 1 << 16
)

func (r *replies) note(e *agh.Envelope, subject string, now time.Time) {
	k := questionKey(e, e.From, e.ID)
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.order) > 0 && (len(r.order) >= maxReplies || !now.Before(r.byKey[r.order[0]].until)) {
		delete(r.byKey, r.order[0])
		r.order = r.order[1:]
	}
	if r.byKey == nil {
		r.byKey = map[replyKey]reply{}
	}
	if _, ok := r.byKey[k]; !ok {
		r.order = append(r.order, k)
	}
	r.byKey[k] = reply{subject, now.Add(replyTime)}
}

// find returns the reply subject of the request that e answers, "" if it has none.
func (r *replies) find(e *agh.Envelope, now time.Time) string {
	return r.get(questionKey(e, e.To, e.ReplyTo), now)
}

// has reports whether a request has a reply subject.
func (r *replies) has(e *agh.Envelope, now time.Time) bool {
	return r.get(questionKey(e, e.From, e.ID), now) != ""
}

func (r *replies) get(k replyKey, now time.Time) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if found, ok := r.byKey[k]; ok && now.Before(found.until) {
		return found.subject
	}
	return ""
}
