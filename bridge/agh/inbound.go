package agh

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
)

// From the wire to the hub: the router has checked a message, admit records it and
// the hub delivers it. A refused message gets its reason here.

// admit records a validated message, which the hub then delivers; see
// agh.Router.Admit.
func (b *Binding) admit(ctx context.Context, a *protocol.Admission) (protocol.Decision, error) {
	e := a.Envelope
	if e.Kind == protocol.KindGreet || e.Kind == protocol.KindWhois {
		if _, there := b.remoteHub(e.WorkspaceID, e.Channel, e.To); there && b.c.URL == "" {
			return protocol.Take, b.consumeKey(ctx, a) // the recipient's hub publishes it
		}
		return protocol.Pass, b.consumeKey(ctx, a)
	}
	guest, at := b.anonymous[a.Principal], peerAddress{e.WorkspaceID, e.Channel, e.From}
	from, err := b.introduceSender(ctx, at, nil, guest)
	forwarded := a.Forwarder != ""
	if err == nil && forwarded {
		b.members.note(peerRecord{Workspace: at.workspaceID, Channel: at.channel, Peer: at.peer, Name: from,
			Node: a.Forwarder, Seen: b.now(), Guest: guest})
	} else if err == nil {
		_, err = b.members.noteSeen(ctx, at, from, guest, nil, false, b.now())
	}
	if errors.As(err, new(*parley.Error)) { // the guests' budget is used up
		return protocol.Pass, b.refuse(ctx, e, err)
	}
	if err != nil {
		return protocol.Pass, protocol.Refuse(protocol.ErrBusy, "", err)
	}
	if x, ok := b.hostingHub(e.WorkspaceID, e.Channel, e.To); ok {
		return b.forward(ctx, a, x)
	}
	m := toMessage(e, a.Verdict, a.Principal, b.now())
	m.From = from
	s := hub.Submission{Message: m, Scope: scope(e.WorkspaceID), Vouched: !guest,
		Key: journal.Key{ID: key(e), Sender: from, Until: bridge.KeyEnd(a.Until)}}
	if forwarded {
		if s.Scope, err = b.ownScope(s.Scope, s.Key.ID); errors.Is(err, protocol.ErrReplay) {
			return protocol.Pass, err
		} else if err != nil {
			return protocol.Pass, b.refuse(ctx, e, err)
		}
	}
	if a.Refused != nil {
		m.To = b.nameOf(e.WorkspaceID, e.Channel, e.To)
		s.Refused = parley.Refuse(parley.Conflict, "%s", a.Refused).Because(a.Refused)
		if _, err := b.c.Hub.Accept(ctx, s); isPrior(err) {
			return protocol.Pass, protocol.ErrReplay
		}
		return protocol.Pass, nil // the router says why
	}
	m.Expires = a.Until
	if agent := b.agentAt(e.WorkspaceID, e.Channel, e.To); agent != "" {
		return b.admitToAgent(ctx, a, s, agent)
	}
	if _, seen := b.c.Journal.Seen(s.Scope, s.Key.ID); seen {
		return protocol.Pass, protocol.ErrReplay
	}
	if m.ID, err = parley.NewID(b.now(), rand.Reader); err != nil {
		return protocol.Pass, protocol.Refuse(protocol.ErrBusy, "", err)
	}
	b.cache(m.ID, e) // Deliver reads it soon
	m.Conversation = b.conversation(e)
	if err := b.noteThread(ctx, m.Conversation, e); err != nil {
		return protocol.Pass, protocol.Refuse(protocol.ErrBusy, "", err)
	}
	switch {
	case e.To == "" && (e.Kind == protocol.KindReceipt || e.Kind == protocol.KindTrace):
		// The message changes the work and has no recipient.
		return protocol.Take, b.consumeKey(ctx, a)
	case e.To == "":
		m.To = ChannelName(e.WorkspaceID, e.Channel)
		m.Audience = b.audience(m, e.WorkspaceID, e.Channel)
	case e.Surface == protocol.SurfaceDirect && !e.InRoom(e.To):
		// The room of other peers, or of none: no recipient (AGH-055).
		s.Refused = parley.Refuse(parley.Forbidden, "the direct room is not that of the two peers")
	default:
		if m.To, err = b.introduce(ctx, e.WorkspaceID, e.Channel, e.To, nil, guest); err != nil {
			return protocol.Pass, protocol.Refuse(protocol.ErrBusy, "", err)
		}
	}
	if e.Kind == protocol.KindSay || e.Kind == protocol.KindCapability {
		if _, err := a.Advance(ctx); err != nil {
			return protocol.Pass, err
		}
	}
	return b.submit(ctx, e, s)
}

// admitToAgent admits a message to a stand-in.
func (b *Binding) admitToAgent(ctx context.Context, a *protocol.Admission, s hub.Submission,
	agent string) (protocol.Decision, error) {
	e, m := a.Envelope, s.Message
	m.To = agent
	l, linked, err := b.works.linked(ctx, e.WorkspaceID, e.WorkID)
	if err != nil {
		return protocol.Pass, protocol.Refuse(protocol.ErrBusy, "", err)
	}
	talk := e.Kind == protocol.KindSay || e.Kind == protocol.KindCapability
	adds := linked && talk && l.Target == agent && l.Opened != s.Key.ID
	switch {
	case linked && l.Target == m.From: // the peer works on a request of the hub
		s.Scope, m.To, m.Expires = l.Scope, "", time.Time{}
	case adds: // to its own request
		s.Scope, m.Kind, m.InReplyTo = l.Scope, parley.Input, l.Request
	}
	if _, seen := b.c.Journal.Seen(s.Scope, s.Key.ID); seen {
		return protocol.Pass, protocol.ErrReplay
	}
	if e.Surface == protocol.SurfaceDirect && !e.InRoom(e.To) {
		s.Refused = parley.Refuse(parley.Forbidden, "the direct room is not that of the two peers")
		return b.submit(ctx, e, s)
	}
	switch {
	case linked && l.Target == m.From:
		if !b.answer(m, e, l) {
			return protocol.Take, b.consumeKey(ctx, a)
		}
		if say, ok := e.Content().(*protocol.Say); ok {
			if err := b.works.setLastText(ctx, e.WorkspaceID, e.WorkID, []byte(say.Text)); err != nil {
				return protocol.Pass, protocol.Refuse(protocol.ErrBusy, "", err)
			}
		}
		return b.submit(ctx, e, s)
	case linked && !talk && cancels(e):
		m.Kind, m.InReplyTo, m.Expires = parley.Cancel, l.Request, time.Time{}
		return b.submit(ctx, e, s)
	case !talk:
		return protocol.Take, b.consumeKey(ctx, a) // receipts of an agent's messages are not delivered to it
	}
	m.Conversation = b.conversation(e)
	m.Skill = skillWanted(e, func(id string) bool {
		entry, ok := b.c.Hub.Directory().Agent(agent)
		return ok && id != "" && slices.ContainsFunc(entry.Skills, func(s parley.SkillSpec) bool { return s.ID == id })
	})
	// If the hub stopped after it opened the work and before it recorded the request,
	// the peer sends the request again.
	if e.WorkID != "" && (a.Work == nil || linked && l.Opened == s.Key.ID) {
		m.ID = l.Request
		if !linked {
			if m.ID, err = parley.NewID(b.now(), rand.Reader); err != nil {
				return protocol.Pass, protocol.Refuse(protocol.ErrBusy, "", err)
			}
		}
		m.Kind = parley.Request
		b.cache(m.ID, e)
		e.Note = &link{Request: m.ID, Scope: s.Scope, Target: agent, Opened: s.Key.ID}
		b.expectReceipt(m.ID, e)
	}
	if err := b.noteThread(ctx, m.Conversation, e); err != nil {
		return protocol.Pass, protocol.Refuse(protocol.ErrBusy, "", err)
	}
	if _, err := a.Advance(ctx); err != nil {
		return protocol.Pass, err
	}
	return b.submit(ctx, e, s)
}

// answer makes m an event or the reply of the hub's request that e is about. It
// returns false if e has no news.
func (b *Binding) answer(m *parley.Message, e *protocol.Envelope, l link) bool {
	m.InReplyTo, m.Kind = l.Request, parley.Event
	switch c := e.Content().(type) {
	case *protocol.Receipt:
		switch c.Status {
		case protocol.StatusAccepted:
			m.State = parley.Accepted
		case protocol.StatusDuplicate:
			return false
		default:
			m.Kind, m.Error = parley.Failure, toFailure(e)
		}
	case *protocol.Trace:
		switch c.State {
		case protocol.StateWorking:
			m.State = parley.Working
		case protocol.StateNeedsInput:
			m.State = parley.NeedsInput
		case protocol.StateCompleted:
			m.Kind = parley.Response
			if len(m.Parts) == 0 && len(l.Text) > 0 {
				m.Parts = []parley.Part{parley.Text(string(l.Text))}
			}
		default:
			m.Kind, m.Error = parley.Failure, toFailure(e)
		}
	}
	return true
}

func cancels(e *protocol.Envelope) bool {
	switch c := e.Content().(type) {
	case *protocol.Receipt:
		return c.Status == protocol.StatusCanceled
	case *protocol.Trace:
		return c.State == protocol.StateCanceled
	}
	return false
}

// submit hands a message to the hub.
func (b *Binding) submit(ctx context.Context, e *protocol.Envelope, s hub.Submission) (protocol.Decision, error) {
	var err error
	if !s.Vouched && !b.hubCounts(s.Message) {
		err = b.charge(ctx, recordBytes+2*len(e.Raw()))
	}
	if err == nil {
		_, err = b.c.Hub.Accept(ctx, s)
	}
	if err == nil {
		return protocol.Take, nil
	}
	if s.Message.Kind == parley.Input { // "rejected" would end the work
		return protocol.Pass, b.refuseAs(e, err, protocol.StatusUnsupported)
	}
	return protocol.Pass, b.refuse(ctx, e, err)
}

// refuse turns the hub's error into the protocol's, and rejects work with a
// receipt.
func (b *Binding) refuse(_ context.Context, e *protocol.Envelope, err error) error {
	return b.refuseAs(e, err, protocol.StatusRejected)
}

func (b *Binding) refuseAs(e *protocol.Envelope, err error, status protocol.ReceiptStatus) error {
	if isPrior(err) {
		return protocol.ErrReplay
	}
	perr, to := parley.AsError(err), e.Channel
	if e.To != "" {
		to = e.WorkspaceID + "/" + e.To
	}
	ref := b.c.Hub.Refuse(hub.Refusal{Protocol: Protocol, Claim: e.WorkspaceID + "/" + e.From, To: to,
		Step: "admit", Code: perr.Code, Text: perr.Text, Cause: perr.Error(), Size: len(e.Raw())}.Because(perr))
	b.rejectWork(e, perr, ref, status)
	sentinel := protocol.ErrForbidden
	if perr.Retryable {
		sentinel = protocol.ErrBusy
	}
	return protocol.Refuse(sentinel, perr.Text, perr)
}

// rejectWork answers refused work with a receipt, in the name of its recipient.
func (b *Binding) rejectWork(e *protocol.Envelope, why *parley.Error, ref string, status protocol.ReceiptStatus) {
	if e.WorkID == "" || e.To == "" || e.To == e.From || len(e.ID) > maxFor ||
		e.Kind != protocol.KindSay && e.Kind != protocol.KindCapability {
		return
	}
	reason, ok := refused[why.Code]
	switch {
	case why.Code == parley.Conflict:
		reason = protocol.ReasonWorkClosed
	case !ok:
		reason = protocol.ReasonBusy
	}
	b.work.Go(func() { // the sender can be reached only after this message
		out := answerTo(e, protocol.NewID())
		out.TS = b.now().Unix()
		err := errors.Join(
			out.SetContent(&protocol.Receipt{ForID: e.ID, Status: status, Reason: reason,
				Detail: why.Text + " (reference " + ref + ")"}),
			out.SetExt(ExtParley, map[string]string{"code": string(why.Code), "ref": ref}))
		if err == nil {
			err = b.send(b.ctx, 1, out)
		}
		if errors.Is(err, protocol.ErrWorkUnknown) || errors.Is(err, protocol.ErrForbidden) ||
			errors.Is(err, protocol.ErrWorkClosed) {
			err = b.publish(out) // the work is not open, or its recipient is no stand-in
		}
		if err != nil {
			b.c.Logger.Debug("a refusal was not told", "error", err)
		}
	})
}

func isPrior(err error) bool {
	var prior *hub.Prior
	return errors.As(err, &prior)
}

// consumeKey consumes the replay key of a message that is not recorded.
func (b *Binding) consumeKey(ctx context.Context, a *protocol.Admission) error {
	fresh, err := b.memory.Seen(ctx, protocol.ReplayKey(a.Envelope), bridge.KeyEnd(a.Until))
	if err == nil && !fresh {
		return protocol.ErrReplay
	}
	return err
}

// scope of a message: its workspace.
func scope(workspaceID string) string { return Protocol + " " + workspaceID }

// key of a message within its scope. A long id counts by its hash.
func key(e *protocol.Envelope) string {
	if len(e.ID) <= maxForeign {
		return e.From + "\x00" + e.ID
	}
	return e.From + "\x01" + shortened(e.ID) // no peer id has either character
}

// conversation gives the conversation of a container: a thread's is for the whole
// channel, a room's for its two peers. A peer cannot enter either by guessing ids:
// the server restricts workspaces, and a room's id is derived from its peers.
func (b *Binding) conversation(e *protocol.Envelope) parley.ID {
	return b.c.Hub.Conversation(Protocol, scope(e.WorkspaceID), container{e.WorkspaceID, e.Container()}.foreign())
}

// audience lists the recipients of a message to a channel: its members, here or
// away, and its stand-ins.
func (b *Binding) audience(m *parley.Message, workspaceID, channel string) []string {
	return b.c.Hub.Hearers(m, slices.DeleteFunc(b.inChannel(workspaceID, channel),
		func(n string) bool { return n == m.From }))
}

// reachable reports whether a message to a peer can be delivered, now or when the
// peer is back.
func (b *Binding) reachable(workspaceID, channel, peer string) bool {
	if _, ok := b.members.at(workspaceID, channel, peer); ok {
		return true
	}
	if _, ok := b.hostingHub(workspaceID, channel, peer); ok {
		return true
	}
	return b.c.URL == "" && b.gateway.Listens(workspaceID, channel, peer)
}

// admitted is called for every accepted message: a greeting makes its sender a
// member, a whois goes to other hubs, and a request is acknowledged.
func (b *Binding) admitted(ctx context.Context, principal string, res protocol.Result) {
	e := res.Envelope
	if g, ok := e.Content().(*protocol.Greet); ok && e.To == "" {
		if err := b.greeted(ctx, e, g.Card, b.anonymous[principal], len(res.Events) > 0); err != nil {
			level := slog.LevelWarn
			if b.anonymous[principal] {
				level = slog.LevelDebug // an attacker can cause any number
			}
			b.c.Logger.Log(ctx, level, "a peer that greeted is not kept",
				"workspace", e.WorkspaceID, "peer", e.From, "user", principal, "error", err)
		}
		return
	}
	if w, ok := e.Content().(*protocol.Whois); ok && b.c.URL == "" {
		if err := b.forwardWhois(e, w); err != nil {
			b.c.Logger.Warn("a whois did not reach another hub", "workspace", e.WorkspaceID, "peer", e.From,
				"error", err)
		}
		return
	}
	b.acknowledge(e)
}

// refused is called for every message that the gateway did not accept.
func (b *Binding) refused(user, subject string, raw []byte, res protocol.Result) {
	if e := res.Envelope; e != nil {
		if l, ok := e.Note.(*link); ok {
			b.release(l.Request)
		}
	}
	var told *parley.Error
	if errors.As(res.Err, &told) || errors.Is(res.Err, protocol.ErrReplay) {
		return // recorded already, or a duplicate
	}
	f := hub.Refusal{Protocol: Protocol, Source: user, To: subject, Step: "decode", Code: parley.Malformed,
		Cause: fmt.Sprint(res.Err), Size: len(raw)}
	var e *protocol.Error
	if errors.As(res.Err, &e) {
		f.Step, f.Text, f.Code = string(e.Step), said(e), codeOf(e)
	}
	if res.Envelope != nil {
		f.Claim, f.Verdict = res.Envelope.WorkspaceID+"/"+res.Envelope.From, verdict(res.Verdict, user)
	}
	ref := b.c.Hub.Refuse(f)
	if errors.Is(res.Err, protocol.ErrNotTarget) && user != "" {
		b.rejectWork(res.Envelope, parley.Refuse(parley.UnknownAgent, "no peer %q is in the channel", res.Envelope.To),
			ref, protocol.StatusRejected)
	}
}

// said is the text of a refusal with the member that it is about, unless the sender named that.
func said(e *protocol.Error) string {
	if e.Step == protocol.StepParse {
		return e.Text
	}
	return strings.TrimSpace(e.Field + " " + e.Text)
}

func codeOf(e *protocol.Error) parley.Code {
	switch {
	case errors.Is(e, protocol.ErrTooLarge):
		return parley.TooLarge
	case errors.Is(e, protocol.ErrStale):
		return parley.Stale
	case errors.Is(e, protocol.ErrForbidden), errors.Is(e, protocol.ErrPrivileged),
		errors.Is(e, protocol.ErrUnsolicited):
		return parley.Forbidden
	case errors.Is(e, protocol.ErrSignature), errors.Is(e, protocol.ErrUnknownKey):
		return parley.Unauthenticated
	case errors.Is(e, protocol.ErrNotTarget):
		return parley.UnknownAgent
	case errors.Is(e, protocol.ErrBusy):
		return parley.Unavailable
	case errors.Is(e, protocol.ErrRate):
		return parley.RateLimited
	case e.Step == protocol.StepLifecycle:
		return parley.Conflict
	}
	return parley.Malformed
}
