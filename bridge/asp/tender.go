package asp

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/bridge"
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

func (t *tender) enter(id string)    { t.add(&t.agents, id) }
func (t *tender) expose(name string) { t.add(&t.names, name) }
func (t *tender) look(id string)     { t.add(&t.dirty, id) }

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

// asked finds the request of a QUERY or DELEGATE that a WITHDRAW takes back.
func (b *Binding) asked(ctx context.Context, c *chain, req *protocol.Request) (id parley.ID, to string, ok bool) {
	ref := req.Reference()
	for _, x := range req.Before.Items {
		if x.ID != ref && x.MessageID != ref {
			continue
		}
		mid, err := parley.ParseID(x.MessageID)
		at, known := c.ids[mid]
		if err != nil || !known {
			return id, "", false
		}
		r, err := b.c.Journal.Read(ctx, journal.Position{Partition: b.c.Journal.Partition(scope(c.id)), Sequence: c.at[at].seq})
		if err != nil || r.Message.Kind != parley.Request {
			return id, "", false
		}
		_, open := b.c.Journal.Delivery(r.Message.ID, r.Message.To)
		return r.Message.ID, r.Message.To, open
	}
	return id, "", false
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

// opened is a session that the hub opened for somebody.
type opened struct {
	Session string `json:"session"`
	Speaker string `json:"speaker"` // agent URIs
	Peer    string `json:"peer"`
}

func openedKey(speaker, peer string, conversation parley.ID) string {
	sum := sha256.Sum256([]byte(speaker + "\n" + peer + "\n" + conversation.String()))
	return hex.EncodeToString(sum[:16])
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

// says is the Note of an envelope by which the hub itself speaks.
type says struct {
	message parley.ID     // of the hub's that the envelope says; zero: none
	asks    callee        // of whom, if that is a request
	once    protocol.Head // say it only as long as this is the head; zero: always
}

// saidByHub gives the note of a message of the hub itself; false for a message of
// an agent, and for a record without a message.
func saidByHub(r *protocol.Request) (s says, ok bool) {
	if r == nil {
		return says{}, false
	}
	s, ok = r.Note.(says)
	return s, ok
}

// say signs a message of a stand-in for the head of a session and records it.
// messageID is its id; one that is there already was said before. "" makes one.
func (b *Binding) say(ctx context.Context, i *protocol.Identity, session, messageID string, w wording, s says, objects []protocol.ContextObject) error {
	defer b.saying.lock(session)()
	for range maxSays {
		l, err := b.server.Session(ctx, session, i.ID())
		switch {
		case err != nil:
			return err
		case s.once.Count > 0 && l.Head != s.once:
			return protocol.ErrChain
		}
		if messageID != "" {
			if _, err := b.store.Message(ctx, session, messageID); err == nil {
				return nil
			} else if !errors.Is(err, protocol.ErrNotFound) {
				return err
			}
		}
		d := protocol.Draft{Version: l.Version, MessageID: messageID, SessionID: session, PreviousHash: l.Head.Hash,
			Time: protocol.NextTimestamp(b.c.Now(), l.LastTimestamp), Performative: w.act, MimeType: w.mimeType, Body: w.body, Context: objects,
			Constraints: w.constraints, Format: l.Format}
		for _, p := range l.Participants {
			if p.AgentID == i.ID() {
				d.SequenceNumber = p.Next
			}
		}
		if len(l.Participants) == 2 {
			for _, p := range l.Participants {
				if p.AgentID != i.ID() {
					d.Recipient = &protocol.Party{AgentID: p.AgentID, OrgID: p.OrgID}
				}
			}
		}
		e, err := d.Sign(i)
		if err != nil {
			return err
		}
		e.Note = s
		_, err = b.server.Say(ctx, e)
		if !errors.Is(err, protocol.ErrChain) && !errors.Is(err, protocol.ErrSequenceGap) && !errors.Is(err, protocol.ErrEquivocation) {
			return err
		}
		if err := b.server.Notify(ctx, session); err != nil {
			return err
		}
	}
	return protocol.ErrChain
}

// invite opens a session of a stand-in with an agent.
func (b *Binding) invite(ctx context.Context, i *protocol.Identity, peer, session, purpose string) error {
	a, err := b.store.Agent(ctx, peer)
	if err != nil {
		return err
	}
	card, err := a.Card()
	if err != nil {
		return err
	}
	id, err := protocol.NewSessionID()
	if err != nil {
		return err
	}
	body := protocol.Proposal{ProposalID: id, Type: "session-invitation", Subject: cmp.Or(purpose, "session"), Terms: map[string]any{"format": protocol.JSON}}
	e, err := protocol.Draft{SessionID: session, Time: b.c.Now(), Recipient: &protocol.Party{AgentID: peer, OrgID: card.OrgID}, Performative: protocol.Propose, Body: body}.Sign(i)
	if err != nil {
		return err
	}
	e.Note = says{}
	_, err = b.server.Say(ctx, e)
	return err
}

// Deliver implements hub.Binding.
func (b *Binding) Deliver(ctx context.Context, o hub.Outbound) hub.Outcome {
	switch o.Message.Kind {
	case parley.Event, parley.Response, parley.Failure:
		return b.reply(ctx, o)
	}
	i, err := b.standIns.speaker(ctx, o.Message.From)
	if err != nil {
		return hub.Outcome{Err: parley.AsError(err)}
	}
	if o.Message.Kind == parley.Cancel {
		return b.withdraw(ctx, o, i)
	}
	session, out := b.sessionFor(ctx, o, i)
	if session == "" {
		return out
	}
	w, err := words(o.Message, "", o.Recipient.Name)
	if err != nil {
		return hub.Outcome{Err: parley.Refuse(parley.InvalidContent, "the content is not JSON: %v", err), Losses: w.losses}
	}
	w.constraints = remaining(o.Message, b.c.Now())
	object, err := evidence(o.Message, b.c.Hub.ID())
	if err != nil {
		return hub.Outcome{Err: parley.AsError(err)}
	}
	s := says{message: o.Message.ID}
	if o.Message.Kind == parley.Request {
		s.asks = callee{To: o.Recipient.Name, Peer: o.Identity.ID}
	}
	if err := b.say(ctx, i, session, o.Message.ID.String(), w, s, []protocol.ContextObject{object}); err != nil {
		return b.failed(err, w.losses)
	}
	return hub.Outcome{Losses: w.losses}
}

// failed says why a message could not be said.
func (b *Binding) failed(err error, losses []parley.Loss) hub.Outcome {
	var e *protocol.Error
	switch {
	case errors.Is(err, protocol.ErrSessionClosed), errors.Is(err, protocol.ErrChain):
		return hub.Outcome{Err: parley.Fail(parley.Unavailable, err, "the session ended or is too busy"), Wait: time.Second, Losses: losses}
	case errors.Is(err, protocol.ErrTransition):
		return hub.Outcome{Err: parley.Fail(parley.Conflict, err, "the state of the session does not allow it"), Losses: losses}
	case errors.As(err, &e):
		out := &parley.Error{Code: refusalCode(e), Text: "the session refused it: " + e.Text, Retryable: e.Retryable}
		return hub.Outcome{Err: out.Because(err), Losses: losses}
	}
	return hub.Outcome{Err: parley.Fail(parley.Unavailable, err, "the session could not be reached"), Losses: losses}
}

// asking is a message of a session that is a request of the hub's.
type asking struct {
	session, message string
	act              protocol.Performative
	reference        string // by which answers refer to it
}

// askedBy gives what a request came as.
func (b *Binding) askedBy(request *parley.Message) (asking, error) {
	if x, ok := b.askings.of(request.ID); ok {
		return x, nil
	}
	x, err := recordOf(request)
	if err != nil {
		return asking{}, parley.Refuse(parley.Conflict, "the request came in no session").Because(err)
	}
	e, err := (protocol.Limits{}).Decode(x.Record.Raw, x.Record.Format)
	if err != nil {
		return asking{}, err
	}
	return askingOf(e, bodyOf(e)), nil
}

func askingOf(e *protocol.Envelope, b body) asking {
	return asking{e.SessionID, e.MessageID, e.Performative, cmp.Or(b.QueryID, e.MessageID)}
}

// askings remembers the newest requests, so that few are read again when their
// answers come.
type askings struct {
	mu    sync.Mutex
	known map[parley.ID]asking
	ring  []parley.ID
	next  int
}

const maxAskings = 1024

func (a *askings) note(id parley.ID, x asking) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.known == nil {
		a.known, a.ring = map[parley.ID]asking{}, make([]parley.ID, maxAskings)
	}
	delete(a.known, a.ring[a.next])
	a.ring[a.next], a.known[id] = id, x
	a.next = (a.next + 1) % maxAskings
}

func (a *askings) of(id parley.ID) (asking, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	x, ok := a.known[id]
	return x, ok
}

// answering is how an event or a terminal reply is said in the session of its
// request. With accept, a message that says no more than that goes before it.
type answering struct {
	session string
	speaker *protocol.Identity
	words   wording
	accept  *wording
}

// answering words a reply; without words the outcome says why it is not said.
func (b *Binding) answering(ctx context.Context, o hub.Outbound) (answering, hub.Outcome) {
	asked, err := b.askedBy(o.Request)
	if err != nil {
		return answering{}, hub.Outcome{Err: parley.AsError(err)}
	}
	reference := asked.reference
	l, err := b.server.Session(ctx, asked.session, "")
	gone := errors.Is(err, protocol.ErrSessionNotFound)
	if err != nil && !gone {
		return answering{}, hub.Outcome{Err: parley.AsError(err)}
	}
	item := &protocol.Item{} // it is forgotten
	if !gone {
		for _, x := range slices.Backward(l.Items) { // most are new
			if x.MessageID == asked.message {
				item = x
				break
			}
		}
	}
	open := item.Status == "open"
	if asked.act == protocol.Delegate && open {
		reference = item.ID
	}
	w, err := words(o.Message, reference, o.Recipient.Name)
	switch {
	case err != nil:
		return answering{}, hub.Outcome{Err: parley.Refuse(parley.InvalidContent, "the content is not JSON: %v", err)}
	case gone || l.State.Terminal():
		return answering{}, hub.Outcome{Losses: append(w.losses, parley.Loss{Field: "Kind", Reason: "the session ended before the reply"})}
	case item.Status == "withdrawn":
		return answering{}, hub.Outcome{Losses: append(w.losses, parley.Loss{Field: "Kind", Reason: "the asker withdrew it"})}
	}
	a := answering{session: asked.session, words: w}
	if a.speaker, err = b.answerer(ctx, l, o.Message.From); err != nil {
		return answering{}, hub.Outcome{Err: parley.AsError(err)}
	}
	conversing := l.State == protocol.Conversing && open
	if f := o.Message.Error; o.Message.Kind == parley.Failure && conversing && refuses(f.Code) {
		a.words.act, a.words.body = protocol.Reject, protocol.Answer{ReferenceID: reference, Code: rejection(f.Code), Reason: cmp.Or(f.Text, string(f.Code))}
	} else if asked.act == protocol.Delegate && conversing && o.Message.Kind != parley.Failure {
		a.accept = &wording{act: protocol.Accept, body: protocol.Answer{ReferenceID: reference}}
	}
	return a, hub.Outcome{}
}

// reply says an event or a terminal reply in the session of its request.
func (b *Binding) reply(ctx context.Context, o hub.Outbound) hub.Outcome {
	message := o.Message.ID.String()
	if asked, err := b.askedBy(o.Request); err == nil {
		if _, err := b.store.Message(ctx, asked.session, message); err == nil {
			return hub.Outcome{Losses: bridge.Losses(bridge.ASP, o.Message, o.Recipient.Name)}
		}
	}
	a, out := b.answering(ctx, o)
	if a.speaker == nil {
		return out
	}
	object, err := evidence(o.Message, b.c.Hub.ID())
	if err != nil {
		return hub.Outcome{Err: parley.AsError(err)}
	}
	if a.accept != nil {
		if err := b.say(ctx, a.speaker, a.session, "", *a.accept, says{}, nil); err != nil && !isMoved(err) {
			return b.failed(err, a.words.losses)
		}
	}
	if err := b.say(ctx, a.speaker, a.session, message, a.words, says{message: o.Message.ID}, []protocol.ContextObject{object}); err != nil {
		return b.failed(err, a.words.losses)
	}
	return hub.Outcome{Losses: a.words.losses}
}

// answerer is the identity as which the hub says in a session what an agent
// answered: the stand-in that was asked there, though an identity of the agent's
// own may have retired it since.
func (b *Binding) answerer(ctx context.Context, l *protocol.Ledger, name string) (*protocol.Identity, error) {
	if i := b.standIns.of(b.standIns.id(name)); i != nil && slices.ContainsFunc(l.Participants, func(p protocol.Participant) bool { return p.AgentID == i.ID() }) {
		return i, nil
	}
	return b.standIns.speaker(ctx, name)
}

// withdraw takes a QUERY of the hub's back.
func (b *Binding) withdraw(ctx context.Context, o hub.Outbound, i *protocol.Identity) hub.Outcome {
	session := b.saidIn(ctx, o.Message.Conversation, i.ID(), o.Identity.ID, o.Message.InReplyTo)
	if session == "" {
		return hub.Outcome{Losses: []parley.Loss{{Field: "Kind", Reason: "there is no session any more in which it could be withdrawn"}}}
	}
	w := wording{act: protocol.Withdraw, body: protocol.Answer{ReferenceID: o.Message.InReplyTo.String(), Reason: "cancelled"}}
	err := b.say(ctx, i, session, o.Message.ID.String(), w, says{message: o.Message.ID}, nil)
	if err != nil && !isMoved(err) {
		return b.failed(err, nil)
	}
	if err != nil {
		return hub.Outcome{Losses: []parley.Loss{{Field: "Kind", Reason: "the state of the session does not allow to withdraw it"}}}
	}
	return hub.Outcome{}
}

// openedFor gives the session that is noted under a key, or "".
func (b *Binding) openedFor(ctx context.Context, key string) (string, error) {
	row, err := b.opened.Get(ctx, key)
	return row.Value.Session, err
}

// dropOpened forgets a session that is over. Where that fails, it is found to
// be over again next time.
func (b *Binding) dropOpened(ctx context.Context, key, session string) {
	row, err := b.opened.Get(ctx, key)
	if err == nil && row.Revision != 0 && row.Value.Session == session {
		_ = b.opened.Delete(ctx, key, row.Revision)
	}
}

// saidIn finds the session in which one agent said a request of the hub's to
// another; "" where there is none.
func (b *Binding) saidIn(ctx context.Context, conversation parley.ID, speaker, peer string, request parley.ID) string {
	sessions := []string{b.store.between(conversation, speaker, peer)}
	for _, c := range []parley.ID{conversation, {}} {
		if session, err := b.openedFor(ctx, openedKey(speaker, peer, c)); err == nil {
			sessions = append(sessions, session)
		}
	}
	for _, session := range sessions {
		if session != "" {
			if _, err := b.store.Message(ctx, session, request.String()); err == nil {
				return session
			}
		}
	}
	return ""
}

// declined reports whether a session is over because its invitation was
// rejected.
func declined(l *protocol.Ledger) bool {
	return slices.ContainsFunc(l.Items, func(x *protocol.Item) bool { return x.Kind == "invitation" && x.Status == "rejected" })
}

// place finds the session for a message, or opens it: the session that its
// conversation is, or else one that the hub keeps for the two agents. A speech
// act has a session of its conversation, for what it begins there excludes other
// talk; what is plainly asked and told shares one session of the two, as long as
// that one is free for it. key is where the session is noted.
func (b *Binding) place(ctx context.Context, o hub.Outbound, i *protocol.Identity) (session, key string, err error) {
	peer := o.Identity.ID
	if session := b.store.between(o.Message.Conversation, i.ID(), peer); session != "" {
		return session, "", nil
	}
	common, own := openedKey(i.ID(), peer, parley.ID{}), openedKey(i.ID(), peer, o.Message.Conversation)
	defer b.places.lock(common)()
	if session, err = b.openedFor(ctx, own); err != nil {
		return "", "", err
	}
	key = common
	if session != "" || o.Message.Kind == parley.Notice && protocol.Performative(o.Message.Act).Valid() {
		key = own
	}
	for range 4 { // over; busy, and over; opened by another node
		if session, err = b.openedFor(ctx, key); err != nil {
			return "", "", err
		}
		if session == "" {
			if session, err = protocol.NewSessionID(); err != nil {
				return "", "", err
			}
			_, err = b.opened.Replace(ctx, journal.Row[opened]{Key: key, Value: opened{session, i.ID(), peer}})
			if errors.Is(err, journal.ErrConflict) {
				continue
			}
			if err != nil {
				return "", "", err
			}
		}
		l, err := b.server.Session(ctx, session, "")
		switch {
		case errors.Is(err, protocol.ErrSessionNotFound):
			if err := b.invite(ctx, i, peer, session, o.Message.Skill); err != nil {
				b.dropOpened(ctx, key, session)
				return "", "", err
			}
			return session, key, nil
		case err != nil:
			return "", "", err
		case l.State.Terminal() && !declined(l):
			b.dropOpened(ctx, key, session)
		case key == common && !l.State.Terminal() && l.State != protocol.Invited && l.State != protocol.Introduced && l.State != protocol.Conversing:
			key = own
		default:
			return session, key, nil
		}
	}
	return "", "", parley.Refuse(parley.Unavailable, "the session is opened and ended elsewhere just now")
}

// sessionFor gives a session in which a message can be said. Without one the
// outcome says why.
func (b *Binding) sessionFor(ctx context.Context, o hub.Outbound, i *protocol.Identity) (string, hub.Outcome) {
	unavailable := func(err error, text string) hub.Outcome {
		return hub.Outcome{Err: parley.Fail(parley.Unavailable, err, "%s", text)}
	}
	session, key, err := b.place(ctx, o, i)
	var refusal *protocol.Error
	switch {
	case errors.Is(err, protocol.ErrNotFound), codeIs(err, "agent_not_found"):
		return "", unavailable(err, "the agent is not registered with this hub")
	case errors.As(err, &refusal):
		return "", b.failed(err, nil)
	case err != nil:
		return "", unavailable(err, "the session cannot be opened just now")
	}
	if l, err := b.server.Session(ctx, session, ""); err == nil && l.State != protocol.Invited && !l.State.Terminal() {
		return session, hub.Outcome{} // as it mostly is
	}
	deadline := time.NewTimer(cmp.Or(b.c.Answer, 20*time.Second))
	defer deadline.Stop()
	for {
		changed := b.tender.changed(session)
		l, err := b.server.Session(ctx, session, "")
		switch {
		case err != nil:
			return "", unavailable(err, "the session cannot be read just now")
		case l.State.Terminal():
			if key != "" {
				b.dropOpened(ctx, key, session)
			}
			if declined(l) && o.Message.Kind == parley.Request {
				return "", hub.Outcome{Answered: true, Failure: parley.Refuse(parley.Rejected, "the agent declined the session")}
			}
			return "", unavailable(nil, strings.TrimSuffix("the session is over: "+cmp.Or(l.Reason, string(l.State)), ": "))
		case l.State != protocol.Invited:
			return session, hub.Outcome{}
		}
		select {
		case <-changed:
		case <-deadline.C:
			out := unavailable(nil, "the agent has not answered the invitation yet")
			out.Wait = time.Second
			return "", out
		case <-ctx.Done():
			return "", unavailable(ctx.Err(), "the agent has not answered the invitation yet")
		}
	}
}

func codeIs(err error, code string) bool {
	var e *protocol.Error
	return errors.As(err, &e) && e.Code == code
}
