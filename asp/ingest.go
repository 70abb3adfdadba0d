package asp

import (
	"cmp"
	"context"
	"errors"
	"time"
)

// Ingest takes a message through the steps of [Verifier] to its record and receipt.

// Ingest takes one message: it does all steps of [Verifier] in order and records
// the message, or gives an [*Error] and changes nothing. session is the session
// that the transport names; empty if it names none.
func (s *Server) Ingest(ctx context.Context, raw []byte, t Transport, session string) (*Receipt, error) {
	s.init()
	var receipt *Receipt
	e, err := cmp.Or(t.Format, JSON).Decode(raw)
	if err == nil {
		receipt, err = s.ingest(ctx, e, t, session)
	}
	if err != nil {
		return nil, s.report(ctx, &Refusal{Agent: t.Agent, Session: session, To: recipientOf(e), Raw: raw}, err)
	}
	return receipt, nil
}

// recipientOf is the agent that a message names as its recipient; "": it names none, or could not be read.
func recipientOf(e *Envelope) string {
	if e == nil || e.Recipient == nil {
		return ""
	}
	return e.Recipient.AgentID
}

// Say takes a message that [Draft.Sign] made in this process, with keys that the
// program holds. It is Ingest without the checks of hash and signatures, which
// Sign has just computed.
func (s *Server) Say(ctx context.Context, e *Envelope) (*Receipt, error) {
	s.init()
	receipt, err := s.ingest(ctx, e, Transport{Format: e.format, Agent: e.Sender.AgentID}, e.SessionID)
	if err != nil {
		return nil, s.report(ctx, &Refusal{Agent: e.Sender.AgentID, Session: e.SessionID, To: recipientOf(e), Raw: e.raw,
			Note: e.Note}, err)
	}
	return receipt, nil
}

func (s *Server) ingest(ctx context.Context, e *Envelope, t Transport, session string) (*Receipt, error) {
	now := s.now()
	if t.Agent != "" && t.Agent != e.Sender.AgentID {
		return nil, refuse("sender_mismatch", "sender.agentId").at(6)
	}
	if session != "" && session != e.SessionID {
		return nil, refuse("session_mismatch", "sessionId").at(6)
	}
	agent, err := s.agent(ctx, e.Sender.AgentID)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil, refuseCause("internal", "", err).at(6)
	}
	var card *Card
	var key Key
	if agent != nil {
		if card, err = agent.Card(); err != nil {
			return nil, refuseCause("internal", "", err).at(6)
		}
		if card.OrgID != e.Sender.OrgID {
			return nil, refuse("sender_mismatch", "sender.orgId").at(6)
		}
		key = card.Key()
	}
	l := s.acquire(e.SessionID)
	defer s.release(l)
	if err := s.checkMember(ctx, e, l); err != nil {
		return nil, err
	}
	// Checks that need no session run without its lock.
	made := card != nil && e.madeBy(card)
	if !made {
		if err := e.checkSigned(key, card != nil); err != nil {
			return nil, err
		}
	}
	proof, proofErr := e.checkProof(key, t.AccessToken, now, window{}, made)
	digest := e.Digest()

	l.mu.Lock()
	defer l.mu.Unlock()
	for try := range maxTries {
		receipt, err := s.sequence(ctx, e, agent, l, proof, proofErr, digest, now, try > 0)
		if errors.Is(err, ErrConflict) || try == 0 && mayBeStale(err) {
			continue
		}
		return receipt, err
	}
	return nil, refuse("chain_mismatch", "integrity.previousHash").at(14)
}

// maxTries bounds the retries of one message because another server appended
// meanwhile.
const maxTries = 8

// mayBeStale reports whether an outdated ledger may have caused a refusal. Another
// server on the same Store may have appended, or this server without getting the
// Store's answer; a replayed proof may then be that of the message itself.
func mayBeStale(err error) bool {
	return errors.Is(err, ErrReplay) || errors.Is(err, ErrChain) || errors.Is(err, ErrSequenceGap) ||
		errors.Is(err, ErrTransition) || errors.Is(err, ErrInvalidBody)
}

// checkMember is step 7.
func (s *Server) checkMember(ctx context.Context, e *Envelope, l *liveSession) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	ledger, err := s.loadFor(ctx, l, e.Sender.AgentID)
	switch {
	case err != nil:
		return atStep(asError(err), 7)
	case ledger == nil && !e.IsInvitation():
		return refuse("session_not_found", "sessionId").at(7)
	case ledger != nil && ledger.participant(e.Sender.AgentID) == nil:
		return refuse("not_participant", "sender.agentId").at(7)
	}
	return nil
}

// sequence is steps 10 to 18 and the append, under the lock of the session.
func (s *Server) sequence(ctx context.Context, e *Envelope, agent *Agent, l *liveSession, proof *Proof,
	proofErr error, digest string, now time.Time, fresh bool) (*Receipt, error) {
	ledger, err := s.load(ctx, l, fresh)
	if err != nil {
		return nil, err
	}
	req := &Request{Envelope: e, Agent: agent, Before: ledger}
	if ledger != nil {
		switch old, err := s.store.Message(ctx, e.SessionID, e.MessageID); {
		case err == nil && old.Signature == e.Integrity.Signature: // a duplicate
			return &Receipt{old.MessageID, old.Sequence, old.Position, ledger.State, true}, nil
		case err != nil && !errors.Is(err, ErrNotFound):
			return nil, err
		}
	}
	if proofErr != nil {
		return nil, proofErr
	}
	if err := s.checkPosition(ctx, e, ledger); err != nil {
		return nil, err
	}
	if err := e.checkTime(now); err != nil {
		return nil, err
	}
	after, err := s.judge(ctx, e, agent, ledger, now)
	if err != nil {
		return nil, err
	}
	req.After, req.Position = after, after.Head.Count-1
	if s.Admit != nil || s.Store != nil {
		req.Verdict = signedVerdict(agent.keyID, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18)
	}
	if s.Admit != nil {
		if err := s.Admit(ctx, req); err != nil {
			return nil, atStep(asError(err), 18)
		}
	}
	r := &Record{Kind: RecordMessage, Raw: e.raw, Format: e.format, MessageID: e.MessageID, Sender: e.Sender.AgentID,
		Sequence: e.SequenceNumber, Signature: e.Integrity.Signature, Digest: digest,
		Proof: proof.ReplayKey(), ProofUntil: proof.Until, Request: req, ScoreFrom: e.score.from, ScoreTo: e.score.to}
	err = s.append(ctx, l, after, r, now)
	r.Request = nil // the record may stay in memory
	if err != nil {
		if errors.Is(err, ErrReplay) {
			return nil, refuse("dpop_jti_replayed", "sender.dpopProof").at(11)
		}
		return nil, err
	}
	return &Receipt{e.MessageID, e.SequenceNumber, r.Position, after.State, false}, nil
}

// checkPosition is steps 12 to 14. The sender is an authenticated participant, so
// the refusal may contain the head.
func (s *Server) checkPosition(ctx context.Context, e *Envelope, ledger *Ledger) error {
	next, head, count := int64(0), ZeroHash, int64(0)
	if ledger != nil {
		next, head, count = ledger.participant(e.Sender.AgentID).Next, ledger.Head.Hash, ledger.Head.Count
	}
	with := func(e *Error) error {
		e.Details = map[string]any{"head": head, "lastSequence": count - 1, "nextSequenceNumber": next}
		return e
	}
	switch {
	case e.SequenceNumber < next:
		return with(refuse("equivocation", "sequenceNumber").at(12))
	case e.SequenceNumber > next:
		return with(refuse("sequence_gap", "sequenceNumber").at(12))
	}
	if ledger != nil {
		if _, err := s.store.Message(ctx, e.SessionID, e.MessageID); err == nil {
			return refuse("duplicate_message_id", "messageId").at(13)
		} else if !errors.Is(err, ErrNotFound) {
			return err
		}
	}
	if e.Integrity.PreviousHash != head {
		return with(refuse("chain_mismatch", "integrity.previousHash").at(14))
	}
	return nil
}

// judge is steps 16 to 18: it gives the ledger after e.
func (s *Server) judge(ctx context.Context, e *Envelope, agent *Agent, ledger *Ledger, now time.Time) (*Ledger, error) {
	card := agent.card
	var joins *Participant
	if ledger == nil {
		if e.Recipient == nil {
			return nil, refuse("missing_field", "recipient").at(17)
		}
		to, err := s.join(ctx, e.Recipient.AgentID, "recipient.agentId")
		if err != nil {
			return nil, err
		}
		if to.AgentID == e.Sender.AgentID {
			return nil, refuse("invalid_field", "recipient.agentId").at(17)
		}
		if err := checkBody(e.Performative, e.body()); err != nil {
			return nil, liveBody(err)
		}
		if f := e.body().get("terms").text("format"); f != "" && Format(f) != e.format {
			return nil, refuse("format_mismatch", "content.body.terms.format").at(17)
		}
		ledger = openLedger(e, Participant{AgentID: agent.ID, OrgID: card.OrgID, KeyID: agent.keyID}, *to, now)
	} else {
		switch {
		case e.format != ledger.Format:
			return nil, refuse("format_mismatch", "").at(3)
		case e.Version != ledger.Version:
			return nil, refuse("unsupported_version", "version").at(4)
		case ledger.participant(agent.ID).KeyID != agent.keyID:
			return nil, refuse("key_unknown", "sender.agentId").at(9)
		}
	}
	if e.Performative == Delegate && !ledger.State.Terminal() && e.body() != nil {
		if target := e.body().text("targetAgent"); ledger.participant(target) == nil && ValidAgentID(target) {
			var err error
			if joins, err = s.join(ctx, target, "content.body.targetAgent"); err != nil {
				return nil, err
			}
		}
	}
	after, err := ledger.admit(e, joins, now, s.Timeouts)
	if err != nil {
		return nil, err
	}
	if err := s.checkSubject(ctx, e, ledger); err != nil {
		return nil, err
	}
	if err := checkOwnCard(e, card); err != nil {
		return nil, err
	}
	return after, s.gate(e, agent, now)
}

// checkSubject refuses a CLARIFY that refers to no item, commitment or message of the
// session.
func (s *Server) checkSubject(ctx context.Context, e *Envelope, l *Ledger) error {
	about := e.Reference()
	if e.Performative != Clarify || l.item(about) != nil || l.commitment(about) != nil {
		return nil
	}
	_, err := s.store.Message(ctx, e.SessionID, about)
	if errors.Is(err, ErrNotFound) {
		return wrongBody(reference)
	}
	return err
}

// join finds an agent that a message brings into a session.
func (s *Server) join(ctx context.Context, id, path string) (*Participant, error) {
	a, err := s.agent(ctx, id)
	if errors.Is(err, ErrNotFound) {
		return nil, refuse("agent_not_found", path).at(17)
	}
	if err != nil {
		return nil, err
	}
	card, err := a.Card()
	if err != nil {
		return nil, err
	}
	return &Participant{AgentID: id, OrgID: card.OrgID, KeyID: a.keyID}, nil
}

// checkOwnCard refuses a card in a message if its keys are not the registered keys
// of the sender.
func checkOwnCard(e *Envelope, card *Card) error {
	for _, o := range e.Content.Context {
		if o.Type != AgentCardContext {
			continue
		}
		n, err := parseJSON(o.Data)
		if err != nil || n.text("agentId") != "" && n.text("agentId") != e.Sender.AgentID {
			continue
		}
		shown, err := cardOf(n)
		if err != nil || !shown.SigningKey.Equal(card.SigningKey) || !shown.ProofKey.Equal(card.ProofKey) {
			return refuseCause("card_mismatch", "content.context", err).at(17)
		}
	}
	return nil
}
