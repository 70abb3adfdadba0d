package asp

import (
	"context"
	"slices"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/asp"
)

// callee is the recipient of a request that the hub sends as a QUERY. The record of
// the QUERY has it.
type callee struct {
	To   string `json:"to"` // directory name
	Peer string `json:"peer"`
}

// call is a request of the hub that waits in a session for its answer. Calls and their
// answers follow from the session's log alone, so they are the same on all nodes and
// after a restart.
type call struct {
	callee
	Request  parley.ID `json:"request"`
	Position int64     `json:"position"`          // from where to look for answers
	Answered int64     `json:"answered,omitzero"` // position of the last answer; 0: none yet
}

// answered finds the call that a message answers, and the reply in it: the call that
// the message refers to, or, for an INFORM without a reference, the sender's oldest.
func answered(list []call, e *protocol.Envelope, at int64) (*call, *parley.Message) {
	bare := e.Performative == protocol.Inform && e.Reference() == ""
	id, _ := parley.ParseID(e.Reference())
	for i := range list {
		c := &list[i]
		about := c.Request == id || bare && c.Peer == e.Sender.AgentID && c.Position <= at
		if about && (c.Answered == 0 || at <= c.Answered) {
			if m := replyOf(e); m != nil {
				return c, m
			}
			break
		}
	}
	return nil, nil
}

// trackCalls notes the call that a record opens or answers. The caller holds c.mu.
func (s *store) trackCalls(c *chain, r *protocol.Record, id parley.ID, asks callee) {
	switch {
	case asks.To != "":
		c.calls = append(c.calls, call{callee: asks, Request: id, Position: r.Position})
		return
	case len(c.calls) == 0 || r.Kind != protocol.RecordMessage || s.b.standIns.of(r.Sender) != nil:
		return
	}
	var e *protocol.Envelope
	if r.Request != nil {
		e = r.Request.Envelope
	} else {
		e, _ = r.Format.Decode(r.Raw) // the ledger has read it
	}
	x, m := answered(c.calls, e, r.Position)
	if x == nil {
		return
	}
	if m.Kind.Terminal() {
		x.Answered = r.Position
	}
	if e.Reference() == "" { // when that call is over, this does not answer the next
		for i := range c.calls {
			if y := &c.calls[i]; y != x && y.Peer == r.Sender && y.Answered == 0 {
				y.Position = r.Position + 1
			}
		}
	}
}

// dropSettledCalls forgets calls whose requests are settled. The caller holds c.mu.
func (s *store) dropSettledCalls(ctx context.Context, c *chain) error {
	if len(c.calls) == 0 {
		return nil
	}
	// The requests may lie in other partitions.
	if err := s.j.CatchUp(ctx); err != nil {
		return err
	}
	c.calls = slices.DeleteFunc(c.calls, func(x call) bool {
		_, open := s.j.Delivery(x.Request, x.To)
		return !open
	})
	return nil
}

// openCalls lists the calls of a session, the oldest first.
func (s *store) openCalls(ctx context.Context, l *protocol.Ledger) ([]call, error) {
	c, err := s.ready(ctx, l.ID)
	if err != nil {
		return nil, err
	}
	defer c.mu.Unlock()
	if c.ledger.Head.Count < l.Head.Count {
		err = s.load(ctx, c)
	}
	return slices.Clone(c.calls), err
}

// answersDelivered notes that the hub has the answers before a position, and that the
// calls left wait for more.
func (s *store) answersDelivered(session string, left []call, at int64) {
	c := s.inMemory(session)
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = slices.DeleteFunc(c.calls, func(x call) bool {
		return x.Position < at && !slices.ContainsFunc(left, func(y call) bool { return x.Request == y.Request })
	})
	for i := range c.calls {
		c.calls[i].Position = max(c.calls[i].Position, at)
	}
}
