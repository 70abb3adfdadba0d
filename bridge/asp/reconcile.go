package asp

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
)

// reconciler does the hub's own work in sessions: it accepts the invitations of
// stand-ins, submits answers to the hub, applies timeouts, and closes idle sessions. For
// example, when an INFORM that answers a QUERY of the hub is recorded in a session, the
// journal notifies the reconciler, which queues the session, and a worker submits the
// reply. Only the node that owns the session's partition does so, also for messages that
// other nodes recorded.
type reconciler struct {
	b *Binding

	mu       sync.Mutex
	queued   map[string]bool   // sessions to reconcile
	running  map[string]bool   // sessions with a worker
	newest   map[string]uint64 // sequence of the newest record of a session, if another node appended it
	agents   map[string]bool   // registered agents that the directory may lack
	standIns map[string]bool   // agents whose stand-in may have to change
	failed   map[string]bool   // sessions to retry
	waiting  map[string][]chan struct{}
	wake     chan struct{}
	workers  chan struct{}
	runs     sync.WaitGroup
}

const (
	maxWorkers  = 32
	sweepEvery  = time.Minute
	maxAttempts = 64 // at signing for the head of a session
)

func newReconciler(b *Binding) *reconciler {
	return &reconciler{b: b, queued: map[string]bool{}, running: map[string]bool{}, newest: map[string]uint64{},
		agents: map[string]bool{}, standIns: map[string]bool{},
		failed: map[string]bool{}, waiting: map[string][]chan struct{}{}, wake: make(chan struct{}, 1),
		workers: make(chan struct{}, maxWorkers)}
}

func (t *reconciler) start() {
	t.enqueueDue()
	t.b.work.Go(t.run)
}

func (t *reconciler) signal() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

func (t *reconciler) enqueueAgent(id string) { t.add(&t.agents, id) }

func (t *reconciler) enqueueStandIn(name string) { t.add(&t.standIns, name) }

func (t *reconciler) enqueue(id string) { t.add(&t.queued, id) }

func (t *reconciler) add(set *map[string]bool, v string) {
	t.mu.Lock()
	(*set)[v] = true
	t.mu.Unlock()
	t.signal()
}

// recorded is called with every record of the journal.
func (t *reconciler) recorded(r *journal.Record) {
	if r.Chain == nil {
		return
	}
	session := sessionOf(r.Chain.Name)
	if session == "" {
		return
	}
	c := t.b.store.inMemory(session)
	// A session of another node matters here if it is in memory, or if the record
	// adds an agent that may wait for the session at this node.
	matters := c != nil || t.owns(session) || r.Chain.After == 0 || r.Message == nil ||
		r.Message.Act == string(protocol.Delegate)
	t.mu.Lock()
	for _, w := range t.waiting[session] {
		close(w)
	}
	delete(t.waiting, session)
	if matters {
		t.newest[session] = r.Position.Sequence
	}
	t.mu.Unlock()
	if matters && (c == nil || !c.appending.Load()) {
		t.enqueue(session)
	}
}

// appended queues a session after this node appended a record; sequence 0: the append
// failed. The server has notified the readers.
func (t *reconciler) appended(session string, sequence uint64) {
	t.mu.Lock()
	if t.newest[session] == sequence {
		delete(t.newest, session)
	}
	t.mu.Unlock()
	t.enqueue(session)
}

// changed gives a channel that the next record of a session closes.
func (t *reconciler) changed(session string) <-chan struct{} {
	w := make(chan struct{})
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting[session] = append(t.waiting[session], w)
	return w
}

// enqueueDue queues every live session that may need work.
func (t *reconciler) enqueueDue() {
	for _, id := range t.b.store.due(t.b.c.Now(), func(string) bool { return true }) {
		t.enqueue(id)
	}
}

// partitionOwned queues the sessions of a partition that this node owns from now on: no
// node has handled the messages recorded since the previous owner left.
func (t *reconciler) partitionOwned(partition int) {
	j := t.b.c.Journal
	for id, participants := range t.b.store.live() {
		if j.Partition(scope(id)) != partition || !slices.ContainsFunc(participants,
			func(p string) bool { return t.b.standIns.of(p) != nil }) {
			continue // the hub takes no part in it
		}
		t.b.store.forget(id) // its calls in memory are outdated
		t.mu.Lock()
		t.newest[id] = math.MaxUint64 // newer than any record known here
		t.mu.Unlock()
		t.enqueue(id)
	}
}

func (t *reconciler) owns(session string) bool {
	j := t.b.c.Journal
	return j.Owned(j.Partition(scope(session)))
}

func (t *reconciler) run() {
	second := time.NewTicker(time.Second)
	defer second.Stop()
	minute := time.NewTicker(sweepEvery)
	defer minute.Stop()
	defer t.runs.Wait()
	for {
		select {
		case <-t.wake:
			t.dispatch()
		case <-second.C:
			for _, id := range t.b.store.due(t.b.c.Now(), t.owns) {
				t.enqueue(id)
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

func (t *reconciler) dispatch() {
	t.mu.Lock()
	agents, names := t.agents, t.standIns
	t.agents, t.standIns = map[string]bool{}, map[string]bool{}
	var sessions []string
	for id := range t.queued {
		if !t.running[id] {
			delete(t.queued, id)
			t.running[id] = true
			sessions = append(sessions, id)
		}
	}
	t.mu.Unlock()
	ctx := t.b.ctx
	var here []string
	for name := range names {
		if _, ok := t.b.c.Hub.Directory().Agent(name); ok {
			here = append(here, name)
		} else if err := t.b.standIns.withdraw(ctx, name); err != nil && ctx.Err() == nil {
			t.b.c.Logger.Error("cannot withdraw a stand-in", "agent", name, "error", err)
		}
	}
	if err := t.b.standIns.ensureAll(ctx, here, func(int) {}); err != nil && ctx.Err() == nil {
		t.b.c.Logger.Error("cannot make stand-ins", "agents", len(here), "error", err)
	}
	for id := range agents {
		if err := t.b.enter(ctx, id); err != nil && ctx.Err() == nil {
			t.b.c.Logger.Warn("cannot take a registered agent into the directory", "agent", id, "error", err)
		}
	}
	for _, id := range sessions {
		select {
		case t.workers <- struct{}{}:
		case <-ctx.Done():
			return
		}
		t.runs.Go(func() {
			defer func() { <-t.workers }()
			err := t.reconcile(ctx, id)
			t.mu.Lock()
			delete(t.running, id)
			if err != nil && ctx.Err() == nil {
				t.b.c.Logger.Warn("cannot reconcile a session", "session", id, "error", err)
				t.newest[id], t.failed[id] = math.MaxUint64, true
			}
			t.mu.Unlock()
			t.signal() // the session may be queued again
		})
	}
}

// retry queues the sessions that failed.
func (t *reconciler) retry() {
	t.mu.Lock()
	maps.Copy(t.queued, t.failed)
	clear(t.failed)
	t.mu.Unlock()
	t.signal()
}

// reconcile does the hub's work in one session.
func (t *reconciler) reconcile(ctx context.Context, id string) error {
	b := t.b
	t.mu.Lock()
	_, news := t.newest[id]
	delete(t.newest, id)
	t.mu.Unlock()
	if news {
		if err := b.server.Notify(ctx, id); err != nil {
			return err
		}
	}
	ledger, err := b.server.Session(ctx, id, "")
	if errors.Is(err, protocol.ErrSessionNotFound) {
		return nil
	}
	if err != nil || !t.owns(id) {
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
		if err := t.join(ctx, ledger, i); err != nil && !isMoved(err) {
			return err
		}
	}
	return t.deliverAnswers(ctx, ledger)
}

// isMoved reports that another record was appended meanwhile. That record queues the
// session again.
func isMoved(err error) bool {
	return errors.Is(err, protocol.ErrTransition) || errors.Is(err, protocol.ErrSessionClosed) ||
		errors.Is(err, protocol.ErrInvalidBody) || errors.Is(err, protocol.ErrChain)
}

// join answers the invitation of a stand-in. Its ACCEPT has its card: a message for the card alone would take the head
// of the session, and the inviter's next message would be refused.
func (t *reconciler) join(ctx context.Context, l *protocol.Ledger, i *protocol.Identity) error {
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
		act, answer := protocol.Accept, protocol.Answer{ReferenceID: l.Items[at].ID}
		card, err := cardObject(i)
		if err != nil {
			return err
		}
		objects := []protocol.ContextObject{card}
		e, ok := b.c.Hub.Directory().Agent(name)
		// A stand-in stays reachable after its agent got its own ASP identity.
		if !ok || !e.ExposedIn(Protocol) && !b.spokeFirst(l, i) {
			act, answer.Code, answer.Reason = protocol.Reject, "unauthorized", "the agent is not here"
			objects = nil
		}
		return b.send(ctx, i, l.ID, "", speechAct{act: act, body: answer}, ownMessage{onlyAt: l.Head}, objects)
	case protocol.Introduced:
		return t.returnIntroduction(ctx, l, i)
	}
	return nil
}

// returnIntroduction sends an introduction of a stand-in, once, if another participant sent one: that agent may wait
// for it, although it has the stand-in's card already.
func (t *reconciler) returnIntroduction(ctx context.Context, l *protocol.Ledger, i *protocol.Identity) error {
	records, err := t.b.store.Records(ctx, l.ID, 0, 16)
	if err != nil {
		return err
	}
	due := false
	for _, r := range records {
		if r.Kind != protocol.RecordMessage {
			continue
		}
		if e, err := r.Format.Decode(r.Raw); err != nil || e.BodyText("informType") != introduction {
			continue
		}
		if r.Sender == i.ID() {
			return nil
		}
		due = true
	}
	if !due {
		return nil
	}
	card, err := cardObject(i)
	if err != nil {
		return err
	}
	return t.b.send(ctx, i, l.ID, "", speechAct{act: protocol.Inform,
		body: protocol.Information{InformType: introduction, Topic: introduction}},
		ownMessage{onlyAt: l.Head}, []protocol.ContextObject{card})
}

// spokeFirst reports whether a stand-in opened the session: it accepts the
// counter-invitation then.
func (b *Binding) spokeFirst(l *protocol.Ledger, i *protocol.Identity) bool {
	return l.Participants[0].AgentID == i.ID()
}

// deliverAnswers submits the replies to the calls of a session.
func (t *reconciler) deliverAnswers(ctx context.Context, l *protocol.Ledger) error {
	for {
		list, _, err := t.b.store.answers(ctx, l)
		if err != nil || len(list) == 0 {
			return err
		}
		through, settled := int64(-1), []parley.ID(nil)
		for _, a := range list {
			over := slices.Contains(settled, a.reply.InReplyTo)
			if !over {
				if over, err = t.submitReply(ctx, l.ID, a); err != nil {
					break
				}
			}
			through = a.position
			if over {
				settled = append(settled, a.reply.InReplyTo)
			}
		}
		t.b.store.delivered(l.ID, through, settled)
		if err != nil {
			return err
		}
	}
}

// submitReply submits a reply to the hub, once; over reports that the call is settled.
func (t *reconciler) submitReply(ctx context.Context, session string, a answer) (over bool, err error) {
	key := "asp reply " + session + " " + a.message + " " + a.reply.InReplyTo.String()
	_, err = t.b.c.Hub.Accept(ctx, hub.Submission{Message: &a.reply, Key: journal.Key{ID: key}})
	switch e := parley.AsError(err); {
	case err == nil, errors.As(err, new(*hub.Prior)):
		return a.reply.Kind.Terminal(), nil
	case e.Retryable, e.Code == parley.Internal, ctx.Err() != nil:
		return false, err
	case e.Code != parley.Conflict:
		t.b.c.Logger.Warn("an answer was refused", "session", session, "request", a.reply.InReplyTo, "error", err)
	}
	return true, nil
}

// closeIdle closes idle sessions that the hub opened.
func (t *reconciler) closeIdle(ctx context.Context) error {
	b := t.b
	rows, err := b.opened.List(ctx, "")
	if err != nil {
		return err
	}
	for _, row := range rows {
		o := row.Value
		if !t.owns(o.Session) {
			continue
		}
		l, err := b.server.Session(ctx, o.Session, "")
		switch {
		case errors.Is(err, protocol.ErrSessionNotFound) || err == nil && l.State.Terminal():
		case err != nil:
			return err
		default:
			last, _ := protocol.ParseTimestamp(l.LastTimestamp)
			_, open, err := b.store.answers(ctx, l)
			if err != nil || open > 0 || b.c.Now().Sub(last) < cmp.Or(b.c.Idle, 10*time.Minute) {
				continue
			}
			i := b.standIns.of(o.Speaker)
			if i == nil {
				continue
			}
			if err := b.send(ctx, i, o.Session, "", speechAct{act: protocol.Close,
				body: protocol.Closing{Reason: "idle"}}, ownMessage{}, nil); err != nil && !isMoved(err) {
				return err
			}
		}
		if err := b.opened.Delete(ctx, row.Key, row.Revision); err != nil && !errors.Is(err, journal.ErrConflict) {
			return err
		}
	}
	return nil
}
