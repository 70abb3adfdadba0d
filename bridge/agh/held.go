package agh

import (
	"errors"
	"slices"
	"sync"
	"time"

	protocol "github.com/parley-hub/parley/agh"
)

// held is what peers said to one that this hub does not know, while another of
// those that share the journal may have it, or get it: a peer that is there
// greets once an interval, and for so long what is for it is kept. Questions for
// all are kept as long, for the hubs of whose peers this one hears meanwhile.
type held struct {
	within time.Duration
	refuse func(heldMessage) // what nobody could hear in time

	mu        sync.Mutex
	closed    bool
	byPlace   map[place][]*heldMessage
	bySender  map[string]int // messages in byPlace
	count     int
	bytes     int
	questions []*question // in the order in which they came
}

// heldMessage was not taken yet: it goes through all checks when its time comes.
type heldMessage struct {
	user  string
	res   protocol.Result
	again func()
	timer *time.Timer
}

// question is a whois that was taken, or an answer to one.
type question struct {
	e     *protocol.Envelope
	until time.Time
	nodes []string // to whose peers it was brought
}

// Bounds: beyond them what is for a peer that is not known is refused at once,
// and the oldest question is forgotten.
const (
	maxHeld      = 1 << 12
	maxHeldEach  = 1 << 8 // of one user
	maxHeldBytes = 16 << 20
	maxQuestions = 1 << 10
)

// keep holds a message back, unless there is no room for it.
func (h *held) keep(to place, m heldMessage) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	size := len(m.res.Envelope.Raw())
	if h.closed || h.count >= maxHeld || h.bySender[m.user] >= maxHeldEach || h.bytes+size > maxHeldBytes {
		return false
	}
	if h.byPlace == nil {
		h.byPlace, h.bySender = map[place][]*heldMessage{}, map[string]int{}
	}
	x := &m
	h.byPlace[to] = append(h.byPlace[to], x)
	h.bySender[m.user]++
	h.count++
	h.bytes += size
	x.timer = time.AfterFunc(h.within, func() {
		if h.take(to, x) != nil {
			h.refuse(*x)
		}
	})
	return true
}

// take takes out what is held for a peer, or of it only one.
func (h *held) take(to place, only *heldMessage) (out []*heldMessage) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byPlace[to] == nil {
		return nil
	}
	h.byPlace[to] = slices.DeleteFunc(h.byPlace[to], func(m *heldMessage) bool {
		if only != nil && m != only {
			return false
		}
		m.timer.Stop()
		h.count--
		h.bytes -= len(m.res.Envelope.Raw())
		if h.bySender[m.user]--; h.bySender[m.user] == 0 {
			delete(h.bySender, m.user)
		}
		out = append(out, m)
		return true
	})
	if len(h.byPlace[to]) == 0 {
		delete(h.byPlace, to)
	}
	return out
}

// ask keeps a question.
func (h *held) ask(e *protocol.Envelope, now time.Time) *question {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.expire(now)
	q := &question{e, now.Add(h.within), nil}
	if len(e.Raw()) <= maxGreet && !h.closed {
		if len(h.questions) >= maxQuestions {
			h.questions = h.questions[1:]
		}
		h.questions = append(h.questions, q)
	}
	return q
}

// unasked gives those of nodes to whose peers a question is to be brought still.
func (h *held) unasked(q *question, nodes []string) (out []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, node := range nodes {
		if !slices.Contains(q.nodes, node) {
			q.nodes, out = append(q.nodes, node), append(out, node)
		}
	}
	return out
}

// asked gives what was asked in a channel and is for a peer of another hub: what
// is for that peer, and what is for all and was not brought there.
func (h *held) asked(at place, node string, now time.Time) (out []*protocol.Envelope) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.expire(now)
	h.questions = slices.DeleteFunc(h.questions, func(q *question) bool {
		if q.e.WorkspaceID != at.workspaceID || q.e.Channel != at.channel || q.e.To != "" && q.e.To != at.peer || slices.Contains(q.nodes, node) {
			return false
		}
		q.nodes = append(q.nodes, node)
		out = append(out, q.e)
		return q.e.To != ""
	})
	return out
}

// expire forgets old questions; h.mu is held.
func (h *held) expire(now time.Time) {
	for len(h.questions) > 0 && !now.Before(h.questions[0].until) {
		h.questions = h.questions[1:]
	}
}

// close forgets everything.
func (h *held) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for _, list := range h.byPlace {
		for _, m := range list {
			m.timer.Stop()
		}
	}
	h.byPlace, h.bySender, h.questions = nil, nil, nil
}

// hold keeps a message for a peer that nobody here knows, for when it is heard
// of.
func (b *Binding) hold(user string, res protocol.Result, again func()) bool {
	e := res.Envelope
	if e == nil || !errors.Is(res.Err, protocol.ErrNotTarget) {
		return false
	}
	to := place{e.WorkspaceID, e.Channel, e.To}
	if !b.held.keep(to, heldMessage{user: user, res: res, again: again}) {
		return false
	}
	if b.reachable(e.WorkspaceID, e.Channel, e.To) || b.router.Hosts(e.WorkspaceID, e.Channel, e.To) {
		b.wakeHeld(to) // since it was looked for
	}
	return true
}

// wakeHeld lets go on what waits for a peer that is known now.
func (b *Binding) wakeHeld(to place) {
	if list := b.held.take(to, nil); len(list) > 0 {
		b.work.Go(func() {
			for _, m := range list {
				m.again()
			}
		})
	}
}

// heardElsewhere lets what waits for a peer of another hub go there.
func (b *Binding) heardElsewhere(r peerRecord) {
	at := place{r.Workspace, r.Channel, r.Peer}
	b.wakeHeld(at)
	if r.Node == b.members.node || b.now().Sub(r.Seen) >= 2*b.interval() {
		return
	}
	for _, e := range b.held.asked(at, r.Node, b.now()) {
		b.work.Go(func() {
			if err := b.handOff(e, member{place: place{e.WorkspaceID, e.Channel, e.To}, node: r.Node}); err != nil {
				b.c.Logger.Warn("a whois did not reach another hub", "workspace", e.WorkspaceID, "peer", e.From, "error", err)
			}
		})
	}
}

// refuseHeld is told of what nobody could hear in time.
func (b *Binding) refuseHeld(m heldMessage) {
	e := m.res.Envelope
	subject, err := e.Subject()
	if err != nil {
		subject = e.Channel // it came on one, and has one
	}
	b.refused(m.user, subject, e.Raw(), m.res)
}
