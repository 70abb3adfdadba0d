package asp

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/recorder"
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
	switch o.Message.Kind {
	case parley.Cancel:
		w := speechAct{act: protocol.Withdraw, body: protocol.Answer{ReferenceID: o.Message.InReplyTo.String(),
			Reason: "cancelled"}}
		return b.addToQuery(ctx, o, i, w, nil)
	case parley.Input:
		w, err := toSpeechAct(o.Message, o.Message.InReplyTo.String(), o.Recipient.Name)
		if err != nil {
			return hub.Outcome{Err: parley.Refuse(parley.InvalidContent, "the content is not JSON: %v", err)}
		}
		object, err := evidence(o.Message, b.c.Hub.ID())
		if err != nil {
			return hub.Outcome{Err: parley.AsError(err)}
		}
		return b.addToQuery(ctx, o, i, w, []protocol.ContextObject{object})
	}
	session, out := b.sessionFor(ctx, o, i)
	if session == "" {
		return out
	}
	w, err := toSpeechAct(o.Message, "", o.Recipient.Name)
	if err != nil {
		return hub.Outcome{Err: parley.Refuse(parley.InvalidContent, "the content is not JSON: %v", err),
			Losses: w.losses}
	}
	o.Loses(ctx, w.losses)
	w.constraints = remainingTime(o.Message, b.c.Now())
	object, err := evidence(o.Message, b.c.Hub.ID())
	if err != nil {
		return hub.Outcome{Err: parley.AsError(err)}
	}
	s := ownMessage{message: o.Message.ID}
	if o.Message.Kind == parley.Request {
		s.callee = callee{To: o.Recipient.Name, Peer: o.Identity.ID}
	}
	if err := b.send(ctx, i, session, o.Message.ID.String(), w, s, []protocol.ContextObject{object}); err != nil {
		return b.failed(err, w.losses)
	}
	return hub.Outcome{Losses: w.losses}
}

// failed is the outcome of a message that the session refused.
func (b *Binding) failed(err error, losses []parley.Loss) hub.Outcome {
	var e *protocol.Error
	switch {
	case errors.Is(err, protocol.ErrSessionClosed), errors.Is(err, protocol.ErrChain):
		return hub.Outcome{Err: parley.Fail(parley.Unavailable, err, "the session ended or is too busy").
			With(parley.ByPeer, parley.PeerBusy, ""), Wait: time.Second, Losses: losses}
	case errors.Is(err, protocol.ErrTransition):
		return hub.Outcome{Err: parley.Fail(parley.Conflict, err, "the state of the session does not allow it"),
			Losses: losses}
	case errors.As(err, &e):
		out := &parley.Error{Code: refusalCode(e), Text: "the session refused it: " + e.Text, Retryable: e.Retryable}
		return hub.Outcome{Err: out.Because(err).Stated(), Losses: losses}
	}
	return hub.Outcome{Err: parley.Fail(parley.Unavailable, err, "the session could not be reached").
		With(parley.ByHub, parley.HubStorage, ""), Losses: losses}
}

// reply sends an event or a terminal reply in the session of its request.
func (b *Binding) reply(ctx context.Context, o hub.Outbound) hub.Outcome {
	message := o.Message.ID.String()
	asked, err := requestRecord(o.Request)
	if err != nil {
		return hub.Outcome{Err: parley.AsError(err)}
	}
	if _, err := b.store.Message(ctx, asked.Session, message); err == nil {
		return hub.Outcome{Losses: bridge.Losses(bridge.ASP, o.Message, o.Recipient.Name)}
	}
	a, out := b.planReply(ctx, o, asked)
	if a.speaker == nil {
		return out
	}
	object, err := evidence(o.Message, b.c.Hub.ID())
	if err != nil {
		return hub.Outcome{Err: parley.AsError(err)}
	}
	if a.accept != nil {
		err := b.send(recorder.Aside(ctx), a.speaker, a.session, "", *a.accept, ownMessage{}, nil)
		if err != nil && !isMoved(err) {
			return b.failed(err, a.message.losses)
		}
	}
	if err := b.send(ctx, a.speaker, a.session, message, a.message, ownMessage{message: o.Message.ID},
		[]protocol.ContextObject{object}); err != nil {
		return b.failed(err, a.message.losses)
	}
	return hub.Outcome{Losses: a.message.losses}
}

// answerSpeaker is the identity with which the hub sends an agent's answer: the stand-in
// in the session, even if the agent has its own ASP identity by now.
func (b *Binding) answerSpeaker(ctx context.Context, l *protocol.Ledger, name string) (*protocol.Identity, error) {
	if i := b.standIns.of(b.standIns.id(name)); i != nil && slices.ContainsFunc(l.Participants,
		func(p protocol.Participant) bool { return p.AgentID == i.ID() }) {
		return i, nil
	}
	return b.standIns.speaker(ctx, name)
}

// replyPlan is the plan for an event or a terminal reply in the session of its request:
// accept, if set, goes first.
type replyPlan struct {
	session string
	speaker *protocol.Identity
	message speechAct
	accept  *speechAct
}

// planReply plans a reply. Without a speaker, the outcome says why no reply is sent.
func (b *Binding) planReply(ctx context.Context, o hub.Outbound, asked *protocol.Record) (replyPlan, hub.Outcome) {
	l, err := b.server.Session(ctx, asked.Session, "")
	gone := errors.Is(err, protocol.ErrSessionNotFound)
	if err != nil && !gone {
		return replyPlan{}, hub.Outcome{Err: parley.AsError(err)}
	}
	item := &protocol.Item{} // stays empty if the session dropped it
	if !gone {
		for _, x := range slices.Backward(l.Items) { // the newest are answered most often
			if x.MessageID == asked.MessageID {
				item = x
				break
			}
		}
	}
	delegated, open := o.Request.Act == string(protocol.Delegate), item.Status == "open"
	reference := item.ID
	if delegated && !open || reference == "" {
		e, err := asked.Format.Decode(asked.Raw)
		if err != nil {
			return replyPlan{}, hub.Outcome{Err: parley.AsError(err)}
		}
		reference = cmp.Or(e.BodyText("queryId"), asked.MessageID)
	}
	w, err := toSpeechAct(o.Message, reference, o.Recipient.Name)
	switch {
	case err != nil:
		return replyPlan{}, hub.Outcome{Err: parley.Refuse(parley.InvalidContent, "the content is not JSON: %v", err)}
	case gone || l.State.Terminal():
		return replyPlan{}, hub.Outcome{Losses: append(w.losses,
			parley.Loss{Field: "Kind", Reason: "the session ended before the reply"})}
	case item.Status == "withdrawn":
		return replyPlan{}, hub.Outcome{Losses: append(w.losses,
			parley.Loss{Field: "Kind", Reason: "the requester withdrew it"})}
	}
	a := replyPlan{session: asked.Session, message: w}
	if a.speaker, err = b.answerSpeaker(ctx, l, o.Message.From); err != nil {
		return replyPlan{}, hub.Outcome{Err: parley.AsError(err)}
	}
	conversing := l.State == protocol.Conversing && open
	if f := o.Message.Error; o.Message.Kind == parley.Failure && conversing && isRefusal(f.Code) {
		reason := cmp.Or(f.Text, string(f.Code))
		if f.Ref != "" {
			reason += " (reference " + f.Ref + ")" // a REJECT has no other place for it
		}
		a.message.act, a.message.body = protocol.Reject, protocol.Answer{ReferenceID: reference,
			Code: rejection(f.Code), Reason: reason}
	} else if delegated && conversing && o.Message.Kind != parley.Failure {
		a.accept = &speechAct{act: protocol.Accept, body: protocol.Answer{ReferenceID: reference}}
	}
	return a, hub.Outcome{}
}

// addToQuery says something about a QUERY of the hub in its session: that it is withdrawn,
// or more about it.
func (b *Binding) addToQuery(ctx context.Context, o hub.Outbound, i *protocol.Identity, w speechAct,
	objects []protocol.ContextObject) hub.Outcome {
	session := b.sessionOfRequest(ctx, o.Message.Conversation, i.ID(), o.Identity.ID, o.Message.InReplyTo)
	if session == "" {
		return hub.Outcome{Losses: []parley.Loss{{Field: "Kind",
			Reason: "there is no session any more in which it could be said"}}}
	}
	err := b.send(ctx, i, session, o.Message.ID.String(), w, ownMessage{message: o.Message.ID}, objects)
	if err != nil && !isMoved(err) {
		return b.failed(err, w.losses)
	}
	if err != nil {
		return hub.Outcome{Losses: []parley.Loss{{Field: "Kind",
			Reason: "the state of the session does not allow it"}}}
	}
	return hub.Outcome{Losses: w.losses}
}

// sessionOfRequest finds the session in which a stand-in sent a request of the hub to
// an agent; "" where there is none.
func (b *Binding) sessionOfRequest(ctx context.Context, conversation parley.ID, speaker, peer string,
	request parley.ID) string {
	sessions := []string{b.store.liveSession(conversation, speaker, peer)}
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

// sessionFor gives a session that takes messages. Without one the outcome says why.
func (b *Binding) sessionFor(ctx context.Context, o hub.Outbound, i *protocol.Identity) (string, hub.Outcome) {
	unavailable := func(err error, s parley.Source, why parley.Reason, text string) hub.Outcome {
		return hub.Outcome{Err: parley.Fail(parley.Unavailable, err, "%s", text).With(s, why, "")}
	}
	session, key, err := b.findSession(ctx, o, i)
	var refusal *protocol.Error
	switch {
	case errors.Is(err, protocol.ErrNotFound), codeIs(err, "agent_not_found"):
		return "", unavailable(err, parley.ByNetwork, parley.NoAddress, "the agent is not registered with this hub")
	case errors.As(err, &refusal):
		return "", b.failed(err, nil)
	case err != nil:
		return "", unavailable(err, parley.ByHub, parley.HubStorage, "the session cannot be opened just now")
	}
	if l, err := b.server.Session(ctx, session, ""); err == nil && l.State != protocol.Invited && !l.State.Terminal() {
		return session, hub.Outcome{} // the usual case
	}
	deadline := time.NewTimer(cmp.Or(b.c.Answer, 20*time.Second))
	defer deadline.Stop()
	for {
		changed := b.reconciler.changed(session)
		l, err := b.server.Session(ctx, session, "")
		switch {
		case err != nil:
			return "", unavailable(err, parley.ByHub, parley.HubStorage, "the session cannot be read just now")
		case l.State.Terminal():
			if key != "" {
				b.dropOpened(ctx, key, session)
			}
			if declined(l) && o.Message.Kind == parley.Request {
				return "", hub.Outcome{Answered: true, Failure: parley.Refuse(parley.Rejected,
					"the agent declined the session").FromPeer()}
			}
			return "", unavailable(nil, parley.ByPeer, parley.PeerCancelled,
				strings.TrimSuffix("the session is over: "+cmp.Or(l.Reason, string(l.State)), ": "))
		case l.State != protocol.Invited:
			return session, hub.Outcome{}
		}
		select {
		case <-changed:
		case <-deadline.C:
			out := unavailable(nil, parley.ByNetwork, parley.NotConnected, "the agent has not answered the invitation yet")
			out.Wait = time.Second
			return "", out
		case <-ctx.Done():
			return "", unavailable(ctx.Err(), parley.ByNetwork, parley.NotConnected,
				"the agent has not answered the invitation yet")
		}
	}
}

// findSession finds or opens the session for a message: the session of its conversation,
// or else a session that the hub opened for the two agents. Requests and plain notices
// share one such session while it is free. A notice with a performative has a session
// for its conversation, because a proposal, for example, excludes other messages. key is
// the row of the session in the table.
func (b *Binding) findSession(ctx context.Context, o hub.Outbound, i *protocol.Identity) (session, key string,
	err error) {
	peer := o.Identity.ID
	if session := b.store.liveSession(o.Message.Conversation, i.ID(), peer); session != "" {
		return session, "", nil
	}
	common, own := openedKey(i.ID(), peer, parley.ID{}), openedKey(i.ID(), peer, o.Message.Conversation)
	defer b.opening.lock(common)()
	if session, err = b.openedFor(ctx, own); err != nil {
		return "", "", err
	}
	key = common
	if session != "" || o.Message.Kind == parley.Notice && protocol.Performative(o.Message.Act).Valid() {
		key = own
	}
	for range 4 { // worst case: over, then busy and over, then opened by another node
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
		case key == common && !l.State.Terminal() && l.State != protocol.Invited && l.State != protocol.Introduced &&
			l.State != protocol.Conversing:
			key = own
		default:
			return session, key, nil
		}
	}
	return "", "", parley.Refuse(parley.Unavailable, "the session is opened and ended elsewhere just now")
}

// declined reports whether the invitation to a session was rejected.
func declined(l *protocol.Ledger) bool {
	return slices.ContainsFunc(l.Items, func(x *protocol.Item) bool {
		return x.Kind == "invitation" && x.Status == "rejected"
	})
}

// opened is a session that the hub opened for a stand-in.
type opened struct {
	Session string `json:"session"`
	Speaker string `json:"speaker"` // agent URIs
	Peer    string `json:"peer"`
}

func openedKey(speaker, peer string, conversation parley.ID) string {
	sum := sha256.Sum256([]byte(speaker + "\n" + peer + "\n" + conversation.String()))
	return hex.EncodeToString(sum[:16])
}

// openedFor gives the session in the row of a key, or "".
func (b *Binding) openedFor(ctx context.Context, key string) (string, error) {
	row, err := b.opened.Get(ctx, key)
	return row.Value.Session, err
}

// dropOpened forgets a session that is over. If that fails, the next message for the
// session tries again.
func (b *Binding) dropOpened(ctx context.Context, key, session string) {
	row, err := b.opened.Get(ctx, key)
	if err == nil && row.Revision != 0 && row.Value.Session == session {
		_ = b.opened.Delete(ctx, key, row.Revision)
	}
}

// requestRecord gives the session's record of a request.
func requestRecord(request *parley.Message) (*protocol.Record, error) {
	x, err := recordOf(request)
	if err != nil {
		return nil, parley.Refuse(parley.Conflict, "the request came in no session").Because(err)
	}
	return &x.Record, nil
}

// ownMessage is the Note of an envelope that the hub itself sends.
type ownMessage struct {
	message parley.ID     // the hub's message in the envelope; zero: none
	callee  callee        // the recipient, if the message is a request
	onlyAt  protocol.Head // send it only while this is the head; zero: always
}

// ownMessageOf gives the note of a message that the hub itself sent; false for a message
// of an agent, and for a record without a message.
func ownMessageOf(r *protocol.Request) (s ownMessage, ok bool) {
	if r == nil {
		return ownMessage{}, false
	}
	s, ok = r.Note.(ownMessage)
	return s, ok
}

// send signs a message of a stand-in for the head of a session and records it. It does
// not repeat a messageID that the session has; "" makes a new id.
func (b *Binding) send(ctx context.Context, i *protocol.Identity, session, messageID string, w speechAct, s ownMessage,
	objects []protocol.ContextObject) error {
	defer b.sending.lock(session)()
	for range maxAttempts {
		l, err := b.server.Session(ctx, session, i.ID())
		switch {
		case err != nil:
			return err
		case s.onlyAt.Count > 0 && l.Head != s.onlyAt:
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
			Time: protocol.NextTimestamp(b.c.Now(), l.LastTimestamp), Performative: w.act, MimeType: w.mimeType,
			Body: w.body, Context: objects, Constraints: w.constraints, Format: l.Format}
		for _, p := range l.Participants {
			switch {
			case p.AgentID == i.ID():
				d.SequenceNumber = p.Next
			case len(l.Participants) == 2:
				d.Recipient = &protocol.Party{AgentID: p.AgentID, OrgID: p.OrgID}
			}
		}
		e, err := d.Sign(i)
		if err != nil {
			return err
		}
		e.Note = s
		recorder.Sent(ctx, "", e.Raw()) // the peer has the session from the hub
		_, err = b.server.Say(ctx, e)
		if refusal, ok := errors.AsType[*protocol.Error](err); ok {
			recorder.Got(ctx, refusal.Code, nil)
		}
		if !errors.Is(err, protocol.ErrChain) && !errors.Is(err, protocol.ErrSequenceGap) &&
			!errors.Is(err, protocol.ErrEquivocation) {
			return err
		}
		if err := b.server.Notify(ctx, session); err != nil {
			return err
		}
	}
	return protocol.ErrChain
}

// invite opens a session of a stand-in with an agent. The invitation has the stand-in's card, so that no message for
// the card alone takes the head of the session.
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
	own, err := cardObject(i)
	if err != nil {
		return err
	}
	body := protocol.Proposal{ProposalID: id, Type: "session-invitation", Subject: cmp.Or(purpose, "session"),
		Terms: map[string]any{"format": protocol.JSON}}
	e, err := protocol.Draft{SessionID: session, Time: b.c.Now(),
		Recipient: &protocol.Party{AgentID: peer, OrgID: card.OrgID}, Performative: protocol.Propose,
		Body: body, Context: []protocol.ContextObject{own}}.Sign(i)
	if err != nil {
		return err
	}
	e.Note = ownMessage{}
	_, err = b.server.Say(ctx, e)
	return err
}

func codeIs(err error, code string) bool {
	var e *protocol.Error
	return errors.As(err, &e) && e.Code == code
}
