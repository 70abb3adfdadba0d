package asp

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
)

// tender does what the hub has to do in sessions of its own accord: it accepts
// invitations of stand-ins, hands answers to those who asked, ends what timed
// out, and closes what it opened. It follows the journal, so that a session is
// tended by the node that owns its partition, whoever took the message.
type tender struct {
	b *Binding

	mu      sync.Mutex
	dirty   map[string]bool   // sessions to look at; false: being looked at
	seen    map[string]uint64 // of those: the newest record, in the journal
	agents  map[string]bool   // registered agents that the directory may lack
	names   map[string]bool   // agents that were exposed
	failed  map[string]bool   // sessions that could not be tended, to look at again
	waiting map[string][]chan struct{}
	wake    chan struct{}
	slots   chan struct{}
	runs    sync.WaitGroup
}

const (
	tenders    = 32
	sweepEvery = time.Minute
	maxSays    = 64 // how often the hub may lose the race for the head
)

func newTender(b *Binding) *tender {
	return &tender{b: b, dirty: map[string]bool{}, seen: map[string]uint64{}, agents: map[string]bool{}, names: map[string]bool{},
		failed: map[string]bool{}, waiting: map[string][]chan struct{}{}, wake: make(chan struct{}, 1), slots: make(chan struct{}, tenders)}
}

func (t *tender) start() {
	t.all()
	t.b.work.Go(t.run)
}

func (t *tender) signal() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

func (t *tender) enter(id string) { t.add(&t.agents, id) }

func (t *tender) expose(name string) { t.add(&t.names, name) }

func (t *tender) look(id string) { t.add(&t.dirty, id) }

func (t *tender) add(set *map[string]bool, v string) {
	t.mu.Lock()
	(*set)[v] = true
	t.mu.Unlock()
	t.signal()
}

// recorded is told of every record of the journal.
func (t *tender) recorded(r *journal.Record) {
	if r.Chain == nil {
		return
	}
	session := sessionOf(r.Chain.Name)
	if session == "" {
		return
	}
	t.mu.Lock()
	for _, w := range t.waiting[session] {
		close(w)
	}
	delete(t.waiting, session)
	t.mu.Unlock()
	// Of the sessions of other nodes, those count that are in use here and
	// those that may bring somebody in who waits here.
	if !t.mine(session) && t.b.store.inMemory(session) == nil && r.Chain.After != 0 &&
		r.Message != nil && r.Message.Act != string(protocol.Delegate) {
		return
	}
	t.mu.Lock()
	t.seen[session] = r.Position.Sequence
	t.mu.Unlock()
	t.look(session)
}

// changed gives a channel that is closed by the next record of a session.
func (t *tender) changed(session string) <-chan struct{} {
	w := make(chan struct{})
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting[session] = append(t.waiting[session], w)
	return w
}

// all has every live session looked at.
func (t *tender) all() {
	for _, id := range t.b.store.due(t.b.c.Now(), func(string) bool { return true }) {
		t.look(id)
	}
}

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

func (t *tender) mine(session string) bool {
	j := t.b.c.Journal
	return j.Owned(j.Partition(scope(session)))
}

func (t *tender) run() {
	second := time.NewTicker(time.Second)
	defer second.Stop()
	minute := time.NewTicker(sweepEvery)
	defer minute.Stop()
	defer t.runs.Wait()
	for {
		select {
		case <-t.wake:
			t.round()
		case <-second.C:
			for _, id := range t.b.store.due(t.b.c.Now(), t.mine) {
				t.look(id)
			}
			t.retry()
		case <-minute.C:
			t.b.keepBusy()
			t.b.forgetEvicted(t.b.ctx)
			if err := t.closeIdle(t.b.ctx); err != nil && t.b.ctx.Err() == nil {
				t.b.c.Logger.Warn("cannot close idle sessions", "error", err)
			}
		case <-t.b.ctx.Done():
			return
		}
	}
}

func (t *tender) round() {
	t.mu.Lock()
	agents, names := t.agents, t.names
	t.agents, t.names = map[string]bool{}, map[string]bool{}
	var sessions []string
	for id, due := range t.dirty {
		if due {
			t.dirty[id] = false
			sessions = append(sessions, id)
		}
	}
	t.mu.Unlock()
	ctx := t.b.ctx
	for name := range names {
		var err error
		if _, here := t.b.c.Hub.Directory().Agent(name); here {
			_, err = t.b.standIns.ensure(ctx, name)
		} else {
			err = t.b.standIns.withdraw(ctx, name)
		}
		if err != nil && ctx.Err() == nil {
			t.b.c.Logger.Error("cannot make a stand-in, or withdraw it", "agent", name, "error", err)
		}
	}
	for id := range agents {
		if err := t.b.enter(ctx, id); err != nil && ctx.Err() == nil {
			t.b.c.Logger.Warn("cannot take a registered agent into the directory", "agent", id, "error", err)
		}
	}
	for _, id := range sessions {
		select {
		case t.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		t.runs.Go(func() {
			defer func() { <-t.slots }()
			err := t.tend(ctx, id)
			t.mu.Lock()
			again := t.dirty[id]
			if !again {
				delete(t.dirty, id)
			}
			t.mu.Unlock()
			if err != nil && ctx.Err() == nil {
				t.b.c.Logger.Warn("cannot tend a session", "session", id, "error", err)
				t.mu.Lock()
				t.seen[id], t.failed[id] = math.MaxUint64, true
				t.mu.Unlock()
			}
			if again {
				t.signal()
			}
		})
	}
}

// retry looks again at the sessions that could not be tended.
func (t *tender) retry() {
	t.mu.Lock()
	failed := t.failed
	t.failed = map[string]bool{}
	t.mu.Unlock()
	for id := range failed {
		t.look(id)
	}
}

// tend does what is to be done in one session now.
func (t *tender) tend(ctx context.Context, id string) error {
	b := t.b
	t.mu.Lock()
	seen := t.seen[id]
	delete(t.seen, id)
	t.mu.Unlock()
	if seen > b.store.told(id) { // another node appended
		if err := b.server.Notify(ctx, id); err != nil {
			return err
		}
		if seen < math.MaxUint64 {
			b.store.tell(id, seen)
		}
	}
	ledger, err := b.server.Session(ctx, id, "")
	if errors.Is(err, protocol.ErrSessionNotFound) {
		return nil
	}
	if err != nil || !t.mine(id) {
		return err
	}
	var own []*protocol.Identity
	for _, p := range ledger.Participants {
		if i := b.standIns.of(p.AgentID); i != nil {
			own = append(own, i)
		}
	}
	if len(own) == 0 {
		return nil
	}
	for _, i := range own {
		if err := t.attend(ctx, ledger, i); err != nil && !isMoved(err) {
			return err
		}
	}
	return t.answers(ctx, ledger)
}

// isMoved: somebody else did it, or the session went on otherwise. The record
// of that brings the session here again.
func isMoved(err error) bool {
	return errors.Is(err, protocol.ErrTransition) || errors.Is(err, protocol.ErrSessionClosed) || errors.Is(err, protocol.ErrInvalidBody) || errors.Is(err, protocol.ErrChain)
}

// attend answers an invitation to a stand-in and introduces it.
func (t *tender) attend(ctx context.Context, l *protocol.Ledger, i *protocol.Identity) error {
	b := t.b
	switch l.State {
	case protocol.Invited:
		at := slices.IndexFunc(l.Items, func(x *protocol.Item) bool {
			return x.Kind == "invitation" && x.Status == "open" && x.For == i.ID()
		})
		if at < 0 {
			return nil
		}
		name, _ := b.standIns.name(i.ID())
		answer := protocol.Answer{ReferenceID: l.Items[at].ID}
		e, ok := b.c.Hub.Directory().Agent(name)
		// The address of a stand-in that an identity of the agent's own retired
		// leads to the agent still.
		if !ok || !e.ExposedIn(Protocol) && !b.spokeFirst(l, i) {
			answer.Code, answer.Reason = "unauthorized", "the agent is not here"
			return b.say(ctx, i, l.ID, "", wording{act: protocol.Reject, body: answer}, says{once: l.Head}, nil)
		}
		return b.say(ctx, i, l.ID, "", wording{act: protocol.Accept, body: answer}, says{once: l.Head}, nil)
	case protocol.Introduced:
		records, err := b.store.Records(ctx, l.ID, 0, 16)
		if err != nil {
			return err
		}
		for _, r := range records {
			if r.Sender == i.ID() && r.Kind == protocol.RecordMessage {
				if e, err := (protocol.Limits{}).Decode(r.Raw, r.Format); err == nil && bodyOf(e).InformType == introduction {
					return nil
				}
			}
		}
		card, err := i.Card().JSON()
		if err != nil {
			return err
		}
		object := protocol.ContextObject{Type: protocol.AgentCardContext, ID: "card-" + i.Public().ID()[:16], Version: 1, Data: card, Visibility: protocol.VisibleSession}
		return b.say(ctx, i, l.ID, "", wording{act: protocol.Inform, body: protocol.Information{InformType: introduction, Topic: introduction}},
			says{once: l.Head}, []protocol.ContextObject{object})
	}
	return nil
}

// spokeFirst: a stand-in that invited takes the counter-invitation.
func (b *Binding) spokeFirst(l *protocol.Ledger, i *protocol.Identity) bool {
	return l.Participants[0].AgentID == i.ID()
}

// answers hands to those who asked what came since.
func (t *tender) answers(ctx context.Context, l *protocol.Ledger) error {
	list, err := t.b.store.callsIn(ctx, l)
	if err != nil {
		return err
	}
	at := l.Head.Count
	for _, c := range list {
		at = min(at, c.Position)
	}
	for at < l.Head.Count {
		page, err := t.b.store.Records(ctx, l.ID, at, 64)
		if err != nil {
			return err
		}
		if len(page) == 0 {
			break
		}
		for _, r := range page {
			if r.Kind == protocol.RecordMessage && t.b.standIns.of(r.Sender) == nil {
				if list, err = t.answer(ctx, l.ID, r, list); err != nil {
					return err
				}
			}
			at++
		}
		t.b.store.handed(l.ID, list, at)
	}
	if !l.State.Terminal() {
		return nil
	}
	for _, c := range list {
		m := &parley.Message{Kind: parley.Failure,
			Error:  parley.Fail(parley.Unavailable, nil, "the session ended before the answer"),
			Origin: parley.Origin{Protocol: Protocol, Peer: c.Peer, Verdict: parley.Verdict{Assurance: parley.Session}}}
		if _, err = t.hand(ctx, l.ID, c, m, "end "+l.ID); err != nil {
			return err
		}
	}
	t.b.store.handed(l.ID, nil, at)
	return nil
}

// answer hands one message to who asked, if it is an answer; it gives what is
// still open.
func (t *tender) answer(ctx context.Context, session string, r *protocol.Record, list []call) ([]call, error) {
	e, err := (protocol.Limits{}).Decode(r.Raw, r.Format)
	if err != nil {
		return list, err
	}
	c, m := answered(list, e, r.Position)
	if c == nil {
		return list, nil
	}
	m.Schema = e.Version
	m.Sent, _ = protocol.ParseTimestamp(e.Timestamp)
	m.Trace.Foreign = map[string]string{foreignSession: session}
	m.Origin = parley.Origin{Protocol: Protocol, Peer: r.Sender, Raw: r.Raw, Received: r.Time,
		Verdict: parley.Verdict{Assurance: parley.Signed, Checks: []parley.Check{{Name: "session", OK: true, Detail: "verified when the session recorded it"}}}}
	over, err := t.hand(ctx, session, *c, m, r.MessageID)
	if over {
		list = slices.DeleteFunc(list, func(x call) bool { return x.Request == m.InReplyTo })
	}
	return list, err
}

// hand gives a reply to the hub, once. It reports whether nobody waits for another.
func (t *tender) hand(ctx context.Context, session string, c call, m *parley.Message, key string) (over bool, err error) {
	m.From, m.InReplyTo = c.To, c.Request
	key = "asp reply " + session + " " + key + " " + c.Request.String()
	_, err = t.b.c.Hub.Accept(ctx, hub.Submission{Message: m, Key: journal.Key{ID: key}})
	switch e := parley.AsError(err); {
	case err == nil, errors.As(err, new(*hub.Prior)):
		return m.Kind.Terminal(), nil
	case e.Retryable, e.Code == parley.Internal:
		return false, err
	case e.Code != parley.Conflict:
		t.b.c.Logger.Warn("an answer was refused", "session", session, "request", c.Request, "error", err)
	}
	return true, nil
}

// closeIdle closes sessions that the hub opened and nobody uses any more.
func (t *tender) closeIdle(ctx context.Context) error {
	b := t.b
	rows, err := b.opened.List(ctx, "")
	if err != nil {
		return err
	}
	for _, row := range rows {
		o := row.Value
		if !t.mine(o.Session) {
			continue
		}
		l, err := b.server.Session(ctx, o.Session, "")
		switch {
		case errors.Is(err, protocol.ErrSessionNotFound) || err == nil && l.State.Terminal():
		case err != nil:
			return err
		default:
			last, _ := protocol.ParseTimestamp(l.LastTimestamp)
			list, err := b.store.callsIn(ctx, l)
			if err != nil || len(list) > 0 || b.c.Now().Sub(last) < cmp.Or(b.c.Idle, 10*time.Minute) {
				continue
			}
			i := b.standIns.of(o.Speaker)
			if i == nil {
				continue
			}
			if err := b.say(ctx, i, o.Session, "", wording{act: protocol.Close, body: protocol.Closing{Reason: "idle"}}, says{}, nil); err != nil && !isMoved(err) {
				return err
			}
		}
		if err := b.opened.Delete(ctx, row.Key, row.Revision); err != nil && !errors.Is(err, journal.ErrConflict) {
			return err
		}
	}
	return nil
}
