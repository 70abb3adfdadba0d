package asp

import (
	"context"
	"slices"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/asp"
)

// callee is the recipient of a request that the hub sends as a QUERY. It is stored in
// the record of the QUERY.
type callee struct {
	To   string `json:"to"` // directory name
	Peer string `json:"peer"`
}

// call is a request of the hub that waits in a session for its answer. Calls and
// answers are derived from the session's log alone, so they are the same on all nodes
// and after a restart.
type call struct {
	callee
	Request  parley.ID `json:"request"`
	Position int64     `json:"position"`          // answers are at or after this position
	Answered int64     `json:"answered,omitzero"` // position of the last answer; 0: none yet
}

// answer is a reply to a call, not yet submitted to the hub.
type answer struct {
	position int64  // of its record in the session
	message  string // its id in the session
	bare     bool   // the answer does not name its call
	reply    parley.Message
}

// answered is an answer with its call. The pointer is valid until calls are added or
// removed.
type answered struct {
	call *call
	answer
}

// answerIn finds the answer in a record, and its call, or nil: the call that the record
// refers to, or, for an INFORM without a reference, the sender's oldest. The caller
// holds c.mu.
func (s *store) answerIn(c *chain, r *protocol.Record) *answered {
	if len(c.calls) == 0 || r.Kind != protocol.RecordMessage || s.b.standIns.of(r.Sender) != nil {
		return nil
	}
	var e *protocol.Envelope
	if r.Request != nil {
		e = r.Request.Envelope
	} else {
		e, _ = r.Format.Decode(r.Raw) // valid: the ledger has decoded it
	}
	bare := e.Performative == protocol.Inform && e.Reference() == ""
	id, _ := parley.ParseID(e.Reference())
	i := slices.IndexFunc(c.calls, func(x call) bool {
		about := x.Request == id || bare && x.Peer == r.Sender && x.Position <= r.Position
		return about && (x.Answered == 0 || r.Position <= x.Answered)
	})
	m := replyOf(e)
	if i < 0 || m == nil {
		return nil
	}
	x := &c.calls[i]
	m.From, m.InReplyTo, m.Schema = x.To, x.Request, e.Version
	m.Sent, _ = protocol.ParseTimestamp(e.Timestamp)
	m.Trace.Foreign = map[string]string{foreignSession: c.id}
	m.Origin = parley.Origin{Protocol: Protocol, Peer: r.Sender, Raw: r.Raw, Received: r.Time,
		Verdict: parley.Verdict{Assurance: parley.Signed, Checks: []parley.Check{{Name: "session", OK: true,
			Detail: "verified when the session recorded it"}}}}
	return &answered{x, answer{r.Position, r.MessageID, bare, *m}}
}

// trackCalls adds the call that a record opens, or marks the call that it answers. The
// node that owns the session also keeps the answer in memory, unless earlier records
// must be read first, or there are too many answers. The caller holds c.mu.
func (s *store) trackCalls(c *chain, r *protocol.Record, id parley.ID, asks callee, a *answered) {
	if len(c.calls) == 0 ||
		c.looked == r.Position && len(c.answers) < recentRecords && s.b.reconciler.owns(c.id) {
		c.looked = r.Position + 1
	}
	if asks.To != "" {
		c.calls = append(c.calls, call{callee: asks, Request: id, Position: r.Position})
		return
	}
	if a == nil {
		return
	}
	if c.looked > r.Position {
		c.answers = append(c.answers, a.answer)
	}
	if a.reply.Kind.Terminal() {
		a.call.Answered = r.Position
	}
	if a.bare { // the next call must not get this answer after that call is settled
		for i := range c.calls {
			if y := &c.calls[i]; y != a.call && y.Peer == r.Sender && y.Answered == 0 {
				y.Position = r.Position + 1
			}
		}
	}
}

// dropSettledCalls forgets calls whose requests are settled, and the answers to them.
// The caller holds c.mu.
func (s *store) dropSettledCalls(ctx context.Context, c *chain) error {
	if len(c.calls) == 0 {
		return nil
	}
	// The requests may lie in other partitions.
	if err := s.j.CatchUp(ctx); err != nil {
		return err
	}
	settled := func(request parley.ID, to string) bool {
		_, open := s.j.Delivery(request, to)
		return !open
	}
	c.calls = slices.DeleteFunc(c.calls, func(x call) bool { return settled(x.Request, x.To) })
	c.answers = slices.DeleteFunc(c.answers, func(x answer) bool { return settled(x.reply.InReplyTo, x.reply.From) })
	return nil
}

// answers gives the answers in a session that were not submitted to the hub yet, the
// oldest first, and the number of open calls. Answers recorded since the session was
// loaded are in memory; for others it reads the records again.
func (s *store) answers(ctx context.Context, l *protocol.Ledger) (list []answer, open int, err error) {
	c, err := s.ready(ctx, l.ID)
	if err != nil {
		return nil, 0, err
	}
	defer c.mu.Unlock()
	if c.ledger.Head.Count < l.Head.Count {
		if err := s.load(ctx, c); err != nil {
			return nil, 0, err
		}
	}
	for len(c.calls) > 0 && c.looked < int64(len(c.entries)) && len(c.answers) < recentRecords {
		r, err := s.record(ctx, c, c.looked)
		if err != nil {
			return nil, 0, err
		}
		if a := s.answerIn(c, r); a != nil {
			c.answers = append(c.answers, a.answer)
		}
		c.looked++
	}
	if len(c.answers) == 0 && c.ledger.State.Terminal() {
		for _, x := range c.calls {
			c.answers = append(c.answers, answer{position: c.looked, message: "end " + c.id,
				reply: parley.Message{Kind: parley.Failure, From: x.To, InReplyTo: x.Request,
					Error: parley.Fail(parley.Unavailable, nil, "the session ended before the answer").
						With(parley.ByPeer, parley.PeerCancelled, "the session ended before the answer"),
					Origin: parley.Origin{Protocol: Protocol, Peer: x.Peer,
						Verdict: parley.Verdict{Assurance: parley.Session}}}})
		}
	}
	return slices.Clone(c.answers), len(c.calls), nil
}

// delivered forgets the answers up to a position, which the hub has, and the settled
// calls.
func (s *store) delivered(session string, through int64, settled []parley.ID) {
	c := s.inMemory(session)
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = slices.DeleteFunc(c.calls, func(x call) bool { return slices.Contains(settled, x.Request) })
	c.answers = slices.DeleteFunc(c.answers, func(x answer) bool {
		return x.position <= through || slices.Contains(settled, x.reply.InReplyTo)
	})
}
