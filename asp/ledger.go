package asp

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"time"
)

// A Head is the end of a session's log. Messages of the same content have the same
// hash; Count distinguishes their heads.
type Head struct {
	Hash  string `json:"hash"`  // of the last message; empty before the first
	Count int64  `json:"count"` // records so far: the position of the next
}

// A Ledger is the state of a session, kept besides its log. Its size is bounded. It
// is immutable: each record has a new ledger.
type Ledger struct {
	ID            string                  `json:"sessionId"`
	Version       string                  `json:"version"`
	Format        Format                  `json:"format"`
	State         State                   `json:"state"`
	Before        State                   `json:"before,omitempty"` // the state before an escalation
	Head          Head                    `json:"head"`
	Messages      int64                   `json:"messages"`
	LastTimestamp string                  `json:"lastTimestamp"`
	Participants  []Participant           `json:"participants"`
	Items         []*Item                 `json:"items,omitempty"`
	Commitments   []Commitment            `json:"commitments,omitempty"`
	Context       map[string]ContextEntry `json:"context,omitempty"`
	Opened        time.Time               `json:"opened"`
	Deadline      time.Time               `json:"deadline,omitzero"` // when the state times out
	Ends          time.Time               `json:"ends,omitzero"`     // the proposedDuration of the invitation
	// MaxResponseMs is the invitation's limit for answers.
	MaxResponseMs int64  `json:"maxResponseTimeMs,omitzero"`
	Reason        string `json:"reason,omitempty"` // why it ended, if not by a message
}

// A Participant is an agent in a session. KeyID pins its keys, which do not change
// during a session.
type Participant struct {
	AgentID string `json:"agentId"`
	OrgID   string `json:"orgId"`
	KeyID   string `json:"keyId"`
	Next    int64  `json:"next"`   // its next sequenceNumber
	Joined  int64  `json:"joined"` // the position of the record that added it
}

// An Item is an invitation, proposal, query, commitment or delegation, to which
// messages can refer.
type Item struct {
	ID         string    `json:"id"`
	MessageID  string    `json:"messageId"`
	Kind       string    `json:"kind"` // invitation, proposal, query, commitment, delegation
	By         string    `json:"by"`
	For        string    `json:"for,omitempty"` // invitation, delegation: the agent that may answer
	ValidUntil time.Time `json:"validUntil,omitzero"`
	Status     string    `json:"status"` // open, accepted, rejected, countered, withdrawn
}

// A Commitment is made by a COMMIT, concepts/commitments.
type Commitment struct {
	ID         string           `json:"commitmentId"`
	By         string           `json:"by"`
	AcceptedBy string           `json:"acceptedBy,omitempty"`
	Status     CommitmentStatus `json:"status"`
	Deadline   time.Time        `json:"deadline,omitzero"`
	Hash       string           `json:"hash"` // content hash of the COMMIT
}

// A CommitmentStatus is a stage of a commitment. Accepted is binding.
type CommitmentStatus string

// The stages; those after Accepted are the project's.
const (
	Proposed  CommitmentStatus = "Proposed"
	Accepted  CommitmentStatus = "Accepted"
	Fulfilled CommitmentStatus = "Fulfilled" // by an INFORM of informType fulfillment
	Breached  CommitmentStatus = "Breached"
	Disputed  CommitmentStatus = "Disputed"
	Withdrawn CommitmentStatus = "Withdrawn"
	Rejected  CommitmentStatus = "Rejected"
)

// A Dispute is a record about an accepted commitment, concepts/disputes.
type Dispute struct {
	DisputeID    string          `json:"disputeId"`
	SessionID    string          `json:"sessionId"`
	CommitmentID string          `json:"commitmentId"`
	FiledBy      string          `json:"filedBy"`
	FiledAgainst string          `json:"filedAgainst"`
	Reason       string          `json:"reason"`   // e.g. fulfillment-mismatch
	Severity     int64           `json:"severity"` // 1 to 5 (project)
	Evidence     json.RawMessage `json:"evidence,omitzero"`
}

// Bounds of a ledger (project).
const (
	maxItems        = 128
	maxCommitments  = 64
	maxParticipants = 64
	maxLiveContext  = 128
)

func (l *Ledger) participant(agent string) *Participant {
	if i := slices.IndexFunc(l.Participants, func(p Participant) bool { return p.AgentID == agent }); i >= 0 {
		return &l.Participants[i]
	}
	return nil
}

// item finds the newest item whose own id or message id is ref.
func (l *Ledger) item(ref string) *Item {
	for _, i := range slices.Backward(l.Items) {
		if i.ID == ref || i.MessageID == ref {
			return i
		}
	}
	return nil
}

// edit replaces an item by a copy and returns the copy: earlier ledgers share the
// original.
func (l *Ledger) edit(i int) *Item {
	l.Items = slices.Clone(l.Items)
	changed := *l.Items[i]
	l.Items[i] = &changed
	return &changed
}

func (l *Ledger) commitment(id string) *Commitment {
	for i := len(l.Commitments) - 1; i >= 0; i-- {
		if l.Commitments[i].ID == id {
			return &l.Commitments[i]
		}
	}
	return nil
}

// copy gives a ledger that can be changed without touching l.
func (l *Ledger) copy() *Ledger {
	n := *l
	n.Participants = slices.Clone(l.Participants)
	return &n
}

// openLedger starts a session with its invitation.
func openLedger(e *Envelope, from, to Participant, now time.Time) *Ledger {
	from.Next, to.Next = 0, 0 // until the invitation is admitted
	l := &Ledger{ID: e.SessionID, Version: e.Version, Format: e.format, State: Idle, Head: Head{Hash: ZeroHash},
		Opened: now, Participants: []Participant{from, to}}
	terms := e.body().get("terms")
	if ms, ok := terms.get("proposedDuration").integer(); ok && ms < int64(maxTTL)*1000 {
		l.Ends = now.Add(time.Duration(ms) * time.Millisecond)
	}
	l.MaxResponseMs, _ = terms.get("maxResponseTimeMs").integer()
	return l
}

// admit is steps 16 and 17: it gives the ledger after e. Link and counters have
// been checked.
func (l *Ledger) admit(e *Envelope, joins *Participant, now time.Time, timeouts Timeouts) (*Ledger, error) {
	next, err := Next(l.State, e.event(), l.Before)
	if err != nil {
		return nil, atStep(err, 16)
	}
	if err := checkBody(e.Performative, e.body()); err != nil {
		return nil, liveBody(err)
	}
	n := l.copy()
	if err := n.effect(e, joins, now); err != nil {
		return nil, err
	}
	if next == Escalated && l.State != Escalated {
		n.Before = l.State
	}
	n.State = next
	n.Messages++
	n.LastTimestamp = e.Timestamp
	n.Head = Head{Hash: e.Integrity.Hash, Count: l.Head.Count + 1}
	n.participant(e.Sender.AgentID).Next = e.SequenceNumber + 1
	n.applyContext(e, now)
	idle := next == Introduced || next == Conversing || next == Invited && e.Performative == Counter
	if next != l.State || idle {
		n.Deadline = n.timesOut(next, now, timeouts)
	}
	if n.State.Terminal() {
		n.end()
	}
	return n, nil
}

// timesOut gives the time at which the session ends or changes by itself.
func (l *Ledger) timesOut(s State, now time.Time, timeouts Timeouts) time.Time {
	var deadline time.Time
	for i := range l.Commitments {
		if l.Commitments[i].Status == Accepted {
			deadline = l.Commitments[i].Deadline
		}
	}
	t := timeouts.after(s, now, deadline)
	if !l.Ends.IsZero() && !t.IsZero() && l.Ends.Before(t) {
		return l.Ends
	}
	return t
}

// end drops the parts that do not outlive a session.
func (l *Ledger) end() {
	l.Deadline = time.Time{}
	l.Context = maps.Clone(l.Context)
	contextStore(l.Context).End()
	l.settleCommitments(Proposed, Withdrawn)
}

func (l *Ledger) settleCommitments(from, to CommitmentStatus) {
	l.Commitments = slices.Clone(l.Commitments)
	for i := range l.Commitments {
		if l.Commitments[i].Status == from {
			l.Commitments[i].Status = to
		}
	}
}

func (l *Ledger) applyContext(e *Envelope, now time.Time) {
	if len(l.Context) == 0 && len(e.Content.Context) == 0 {
		return
	}
	s := contextStore(maps.Clone(l.Context))
	if s == nil {
		s = contextStore{}
	}
	s.Turn(e.Sender.AgentID, now)
	sent, _ := ParseTimestamp(e.Timestamp)
	for _, o := range e.Content.Context {
		s.Apply(o, e.Sender.AgentID, sent)
	}
	l.Context = s
}

func wrongRole() error { return refuse("invalid_transition", "performative").at(16) }

func wrongBody(member string) error { return refuse("invalid_body", "content.body."+member).at(17) }

// effect applies e to items, commitments and participants. It enforces the rules
// for senders (project): the author of an item does not answer it, only the author
// withdraws it, and only the agent that an invitation or delegation names answers
// it.
func (l *Ledger) effect(e *Envelope, joins *Participant, now time.Time) error {
	body := e.body()
	sender := e.Sender.AgentID
	switch e.Performative {
	case Propose:
		item := Item{ID: body.text("proposalId"), Kind: "proposal", ValidUntil: instant(body.text("validUntil"))}
		if e.IsInvitation() {
			item.Kind, item.For = "invitation", l.Participants[1].AgentID
		}
		return l.addItem(e, item, "proposalId")
	case Query:
		return l.addItem(e, Item{ID: body.text("queryId"), Kind: "query"}, "queryId")
	case Accept, Reject, Counter:
		return l.answer(e, now)
	case Withdraw:
		item := l.open(e.Reference())
		switch {
		case item == nil && l.item(e.Reference()) == nil:
			return wrongBody(reference)
		case item == nil || item.By != sender, l.State == Agreeing && item.Kind != "commitment",
			l.State == Invited && item.Kind != "invitation":
			return wrongRole()
		}
		item.Status = "withdrawn"
		if item.Kind == "commitment" {
			l.setCommitment(item.ID, Withdrawn, "")
		}
	case Commit:
		id := body.text("commitmentId")
		if err := l.addItem(e, Item{ID: id, Kind: "commitment"}, "commitmentId"); err != nil {
			return err
		}
		l.addCommitment(Commitment{ID: id, By: sender, Status: Proposed, Hash: e.Integrity.Hash,
			Deadline: commitDeadline(body)})
	case Delegate:
		return l.delegate(e, joins)
	case Inform:
		if body.text("informType") == "fulfillment" {
			for _, name := range []string{e.Reference(), body.text("topic")} {
				if c := l.commitment(name); c != nil && c.Status == Accepted {
					l.setCommitment(name, Fulfilled, "")
				}
			}
		}
	}
	return nil
}

func instant(s string) time.Time {
	t, _ := time.Parse(time.RFC3339, s)
	return t
}

// commitDeadline is the deadline of the whole, or the last of the obligations.
func commitDeadline(body *node) time.Time {
	if t := instant(body.text("deadline")); !t.IsZero() {
		return t
	}
	var last time.Time
	for obligation := range body.get("terms").get("obligations").elements() {
		if t := instant(obligation.text("deadline")); t.After(last) {
			last = t
		}
	}
	return last
}

// addItem opens an item. Its id must be new among the items in the ledger. When the
// ledger is full, the oldest settled item is dropped, or else the oldest.
func (l *Ledger) addItem(e *Envelope, item Item, member string) error {
	for _, known := range l.Items {
		if known.ID == item.ID {
			return wrongBody(member)
		}
	}
	items := append(make([]*Item, 0, len(l.Items)+1), l.Items...) // earlier ledgers keep their own
	if len(items) >= maxItems {
		settled := slices.IndexFunc(items, func(i *Item) bool { return i.Status != "open" })
		items = slices.Delete(items, max(settled, 0), max(settled, 0)+1)
	}
	item.MessageID, item.By, item.Status = e.MessageID, e.Sender.AgentID, "open"
	l.Items = append(items, &item)
	return nil
}

// open gives a changeable copy of the open item that ref names, or nil.
func (l *Ledger) open(ref string) *Item {
	i := l.item(ref)
	if i == nil || i.Status != "open" {
		return nil
	}
	return l.edit(slices.Index(l.Items, i))
}

func (l *Ledger) answer(e *Envelope, now time.Time) error {
	sender, ref := e.Sender.AgentID, e.Reference()
	item := l.open(ref)
	if item == nil && l.item(ref) == nil {
		// The target identifies a delegation without an id.
		at := -1
		for i, it := range l.Items {
			if it.Kind == "delegation" && it.For == sender && it.Status == "open" && it.ID == it.MessageID {
				at = i
			}
		}
		if at < 0 {
			return wrongBody(reference)
		}
		item = l.edit(at)
	}
	switch {
	case item == nil, item.By == sender, item.For != "" && item.For != sender,
		l.State == Agreeing && item.Kind != "commitment",
		l.State == Invited && item.Kind != "invitation",
		l.State == Conversing && item.Kind == "commitment":
		return wrongRole()
	case e.Performative == Accept && !item.ValidUntil.IsZero() && now.After(item.ValidUntil):
		return refuse("timeout", "content.body."+reference).at(16)
	}
	kind, by, id := item.Kind, item.By, item.ID
	switch e.Performative {
	case Accept:
		item.Status = "accepted"
		l.setCommitment(id, Accepted, sender)
	case Reject:
		item.Status = "rejected"
		l.setCommitment(id, Rejected, "")
	case Counter:
		item.Status = "countered"
		l.setCommitment(id, Rejected, "")
		body := e.body()
		if f := body.get("terms").text("format"); kind == "invitation" && f != "" && Format(f) != l.Format {
			return refuse("format_mismatch", "content.body.terms.format").at(17)
		}
		next := Item{ID: body.text("proposalId"), Kind: "proposal", ValidUntil: instant(body.text("validUntil"))}
		if kind == "invitation" { // the roles swap
			next.Kind, next.For = "invitation", by
		}
		return l.addItem(e, next, "proposalId")
	}
	return nil
}

func (l *Ledger) addCommitment(c Commitment) {
	list := slices.Clone(l.Commitments)
	if len(list) >= maxCommitments {
		list = slices.Delete(list, 0, 1)
	}
	l.Commitments = append(list, c)
}

func (l *Ledger) setCommitment(id string, to CommitmentStatus, by string) {
	if l.commitment(id) == nil {
		return
	}
	l.Commitments = slices.Clone(l.Commitments)
	c := l.commitment(id)
	c.Status = to
	if by != "" {
		c.AcceptedBy = by
	}
}

func (l *Ledger) delegate(e *Envelope, joins *Participant) error {
	body := e.body()
	target := body.text("targetAgent")
	if target == e.Sender.AgentID {
		return wrongBody("targetAgent")
	}
	item := Item{ID: cmp.Or(body.text("delegationId"), e.MessageID), Kind: "delegation", For: target}
	if err := l.addItem(e, item, "delegationId"); err != nil {
		return err
	}
	if l.participant(target) != nil {
		return nil
	}
	if joins == nil {
		return wrongBody("targetAgent")
	}
	if len(l.Participants) >= maxParticipants {
		return refuse("capacity_unavailable", "content.body.targetAgent").at(17)
	}
	joined := *joins
	joined.Next, joined.Joined = 0, l.Head.Count
	l.Participants = append(l.Participants, joined)
	return nil
}

// timeout gives the ledger after its deadline.
func (l *Ledger) timeout(now time.Time, timeouts Timeouts) (*Ledger, string) {
	n := l.copy()
	reason := "timeout in " + string(l.State)
	n.State, _ = Next(l.State, eventTimeout, l.Before)
	if !l.Ends.IsZero() && !now.Before(l.Ends) {
		n.State, reason = Failed, "proposedDuration is over"
	}
	switch l.State {
	case Agreeing:
		n.settleCommitments(Proposed, Rejected)
		for i := range n.Items {
			if n.Items[i].Kind == "commitment" && n.Items[i].Status == "open" {
				n.edit(i).Status = "rejected"
			}
		}
	case Executing:
		n.settleCommitments(Accepted, Breached)
	}
	n.Head.Count++
	if n.State.Terminal() {
		n.Reason = reason
		n.end()
	} else {
		n.Deadline = n.timesOut(n.State, now, timeouts)
	}
	return n, reason
}

// dispute gives the ledger after d.
func (l *Ledger) dispute(d *Dispute) (*Ledger, error) {
	c := l.commitment(d.CommitmentID)
	switch {
	case l.participant(d.FiledBy) == nil:
		return nil, refuse("not_participant", "filedBy")
	case l.participant(d.FiledAgainst) == nil || d.FiledAgainst == d.FiledBy:
		return nil, refuse("invalid_field", "filedAgainst")
	case c == nil || c.AcceptedBy == "" || c.Status == Disputed:
		return nil, refuse("invalid_field", "commitmentId")
	case d.Reason == "" || len(d.Reason) > maxID:
		return nil, refuse("invalid_field", "reason")
	case d.Severity < 1 || d.Severity > 5:
		return nil, refuse("invalid_field", "severity")
	}
	n := l.copy()
	n.setCommitment(d.CommitmentID, Disputed, "")
	n.Head.Count++
	return n, nil
}

// Replay gives the ledger after r, the record that follows l; l is nil for the
// record that opened a session. joined are the participants that r added. It is
// for a Store that derives ledgers from its log. It verifies nothing: the log holds
// verified messages.
func (l *Ledger) Replay(r *Record, joined []Participant, timeouts Timeouts) (*Ledger, error) {
	if l == nil && r.Kind != RecordMessage {
		return nil, refuse("session_not_found", "")
	}
	switch r.Kind {
	case RecordMessage:
		e, err := r.Format.Decode(r.Raw)
		if err != nil {
			return nil, err
		}
		if l == nil {
			if len(joined) != 2 {
				return nil, refuse("invalid_field", "participants")
			}
			return openLedger(e, joined[0], joined[1], r.Time).admit(e, nil, r.Time, timeouts)
		}
		var joins *Participant
		if len(joined) > 0 {
			joins = &joined[0]
		}
		return l.admit(e, joins, r.Time, timeouts)
	case RecordTimeout:
		n, _ := l.timeout(r.Time, timeouts)
		n.State = r.To
		return n, nil
	case RecordClose:
		return l.closed(r.Reason), nil
	case RecordDispute:
		return l.dispute(r.Dispute)
	}
	return nil, refuse("invalid_field", "kind")
}

// closed gives the ledger after the session ended without a message.
func (l *Ledger) closed(reason string) *Ledger {
	n := l.copy()
	n.State, n.Reason = Closed, cmp.Or(reason, "closed without a message")
	n.Head.Count++
	n.end()
	return n
}
