package a2e

import (
	"context"
	"crypto/rand"
	"slices"
	"time"

	"github.com/parley-hub/parley/journal"
)

// Open calls of agents that wait for messages or results, at all hubs on the journal.
// The messages are in inbox.go.

// openCall is a call of an agent, at this hub or at another: parley_inbox, or
// multi_agent/await. While open it is announced in the journal's state, so that every
// hub continues deliveries to the agent.
type openCall struct {
	Agent string    `json:"agent"`
	Node  string    `json:"node"`
	Since time.Time `json:"since"`
	Max   int       `json:"max"` // messages that the call takes; 0: it awaits a result

	id        string
	until     time.Time // at another hub: the end of the call at the latest
	r         *reader   // nil: at another hub, or no inbox call
	left      int       // of Max, as far as this hub knows
	size      int       // bytes of the messages that the call has
	announced bool      // the call is, or may be, in the state

	ending    bool          // the call takes no more messages
	recording int           // messages that this hub is recording for the call
	recorded  chan struct{} // closed when recording is 0; set by settle
}

// announceTime is the longest time until other hubs know of a new hub.
const announceTime = 10 * time.Second

// begin adds a call of this hub. It gets no message before it is offered.
func (x *inboxes) begin(agent string, r *reader) *openCall {
	a := &openCall{Agent: agent, Node: x.node, Since: x.b.c.Now().Round(0).UTC(), id: x.run + rand.Text()[:12], r: r}
	x.add(a)
	return a
}

// offer announces a call to all hubs, which may send it up to most messages; none if it
// awaits a result.
func (x *inboxes) offer(ctx context.Context, a *openCall, most, size int, wait time.Duration) {
	x.mu.Lock()
	a.Max, a.left, a.size, a.announced = most, most, size, true
	announced := *a
	x.mu.Unlock()
	x.resumeDeliveries(a.Agent)
	_, err := x.announced.Put(ctx, a.id, announced, x.b.c.Now().Add(wait+time.Minute))
	if err != nil && ctx.Err() == nil {
		x.b.c.Logger.Warn("other hubs do not learn that an A2E agent calls for its messages", "agent", a.Agent,
			"error", err)
	}
}

// settle lets a call of this hub take no more messages, and waits until those that are being recorded for it are
// recorded. The next call then finds them at its begin, and has room for fewer others. A message that is recorded after
// the end of its call goes to the next call beyond that call's room.
func (x *inboxes) settle(ctx context.Context, a *openCall) {
	x.mu.Lock()
	a.ending = true
	if a.recording == 0 {
		x.mu.Unlock()
		return
	}
	recorded := make(chan struct{})
	a.recorded = recorded
	x.mu.Unlock()
	select {
	case <-recorded:
	case <-ctx.Done():
	}
}

// end removes a call of this hub.
func (x *inboxes) end(a *openCall) {
	x.drop(a.id)
	x.mu.Lock()
	defer x.mu.Unlock()
	if a.r != nil {
		for _, m := range a.r.queue {
			if !x.taken[m.Key] {
				x.freeLocked(m)
			}
		}
	}
	if !a.announced || x.closed {
		return // the row expires
	}
	x.b.work.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := x.announced.Delete(ctx, a.id, 0); err != nil {
			x.b.c.Logger.Warn("other hubs do not learn that a call of an A2E agent ended", "agent", a.Agent,
				"error", err)
		}
	})
}

func (x *inboxes) add(a *openCall) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.byID[a.id] != nil {
		return
	}
	x.byID[a.id] = a
	x.calls[a.Agent] = append(slices.DeleteFunc(x.calls[a.Agent], func(o *openCall) bool {
		if x.lives(o) {
			return false
		}
		delete(x.byID, o.id)
		return true
	}), a)
}

func (x *inboxes) drop(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	a := x.byID[id]
	if a == nil {
		return
	}
	delete(x.byID, id)
	x.calls[a.Agent] = slices.DeleteFunc(x.calls[a.Agent], func(o *openCall) bool { return o == a })
	if len(x.calls[a.Agent]) == 0 {
		delete(x.calls, a.Agent)
		x.noteEnded(a.Agent, x.b.c.Now())
	}
}

// resumeDeliveries continues deliveries to an agent.
func (x *inboxes) resumeDeliveries(agent string) {
	x.mu.Lock()
	if next := x.next[agent]; next != nil {
		close(next)
		delete(x.next, agent)
	}
	x.mu.Unlock()
	x.b.c.Hub.Kick(agent) // asks for Binding.holds
}

// watchCalls follows the calls at other hubs.
func (x *inboxes) watchCalls(ctx context.Context) (stop func(), err error) {
	return x.announced.Watch(ctx, "", func(row journal.Row[openCall]) {
		a := row.Value
		switch {
		case row.Revision == 0:
			x.drop(row.Key)
		case a.Node == x.node: // or of this hub before its restart
		default:
			a.id, a.until, a.left, a.announced = row.Key, row.Until, a.Max, true
			x.add(&a)
			x.resumeDeliveries(a.Agent)
		}
	})
}

// lives reports whether the hub of a call is alive.
func (x *inboxes) lives(a *openCall) bool {
	now := x.b.c.Now()
	return a.Node == x.node || now.Before(a.until) &&
		(now.Sub(a.Since) < announceTime || x.b.c.Journal.LivesElsewhere(a.Node, a.Since))
}

// hasRoom reports whether a call takes another message. A message that does not fit
// ends the call, and goes to the next.
func (x *inboxes) hasRoom(a *openCall) bool { return !a.ending && a.left > 0 && a.size <= x.room }

// hasCall reports whether an agent has a call that takes a message or a result.
func (x *inboxes) hasCall(agent string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.ContainsFunc(x.calls[agent], func(a *openCall) bool {
		return (x.hasRoom(a) || a.announced && a.Max == 0) && x.lives(a)
	})
}

// reserve picks an open call of an agent for a message, preferably one here whose agent
// is connected. The caller records the message, and then calls noteRecorded. Without a call, next is closed at the next
// call.
func (x *inboxes) reserve(agent string, size int) (best *openCall, next <-chan struct{}) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, a := range x.calls[agent] {
		if !x.hasRoom(a) || !x.lives(a) {
			continue
		}
		if a.r != nil && !a.r.disconnected() {
			best = a
			break
		}
		if best == nil || a.r == nil {
			best = a // the latest elsewhere: the agent is most likely there
		}
	}
	if best == nil {
		if x.next[agent] == nil {
			x.next[agent] = make(chan struct{})
		}
		return nil, x.next[agent]
	}
	best.left--
	best.size += size
	best.recording++
	return best, nil
}

// noteRecorded notes that a message for which a call was reserved is recorded, or cannot be.
func (x *inboxes) noteRecorded(a *openCall) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if a.recording--; a.recording == 0 && a.recorded != nil {
		close(a.recorded)
		a.recorded = nil
	}
}

// unreserve undoes reserve.
func (x *inboxes) unreserve(a *openCall, size int) {
	x.mu.Lock()
	a.left++
	a.size -= size
	x.mu.Unlock()
	x.b.c.Hub.Kick(a.Agent)
}
