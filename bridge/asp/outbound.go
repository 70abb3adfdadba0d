package asp

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
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

// declined reports whether a session is over because its invitation was
// rejected.
func declined(l *protocol.Ledger) bool {
	return slices.ContainsFunc(l.Items, func(x *protocol.Item) bool { return x.Kind == "invitation" && x.Status == "rejected" })
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

func codeIs(err error, code string) bool {
	var e *protocol.Error
	return errors.As(err, &e) && e.Code == code
}
