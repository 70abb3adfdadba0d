package samvad

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/parley-hub/parley/internal/jsonx"
)

// The checks that follow signature and limits, in the order of §6. They have no
// effect; [Server.Handle] comes after them.

// check evaluates everything that follows the limits and has no effect. The
// first failure is the refusal.
func (s *Server) check(ctx context.Context, req *Request) *Error {
	for _, c := range [...]struct {
		step Step
		do   func(context.Context, *Request) error
	}{
		{StepDelegation, s.checkDelegation},
		{StepInjection, s.checkInjection},
		{StepSkill, checkSkill},
		{StepTrust, checkTrust},
		{StepCallback, s.checkCallback},
		{StepPayload, checkPayload},
	} {
		if err := c.do(ctx, req); err != nil {
			verdict := req.Verdict
			e := req.fail(c.step, err)
			// The sender is proved; it is the request that is refused.
			e.Verdict.Assurance = verdict.Assurance
			req.Verdict.Assurance = verdict.Assurance
			return e
		}
	}
	return nil
}

func (s *Server) checkDelegation(ctx context.Context, req *Request) error {
	if !req.Delegated() {
		return nil
	}
	v := s.verifier
	d, err := VerifyDelegation(ctx, req.DelegationToken, v.Keys, v.now())
	if err != nil {
		return err
	}
	if err := d.Allows(req.From, req.Envelope.Skill); err != nil {
		return err
	}
	req.Delegation = d
	req.pass(StepDelegation)
	return nil
}

func (s *Server) checkInjection(_ context.Context, req *Request) error {
	if req.Agent.Skills[req.Envelope.Skill].NoScan {
		return nil
	}
	if scanPayload(req.Envelope.Payload) {
		return ErrInjection
	}
	req.pass(StepInjection)
	return nil
}

func checkSkill(_ context.Context, req *Request) error {
	if req.Skill == nil {
		return ErrSkillNotFound
	}
	if !req.Skill.Offers(req.Endpoint) {
		return because(ErrMode, fmt.Errorf("%s", req.Endpoint))
	}
	req.pass(StepSkill)
	return nil
}

func checkTrust(ctx context.Context, req *Request) error {
	switch req.Skill.Trust {
	case TrustPublic:
	case TrustAuthenticated:
		if req.Auth == nil || req.Auth.Scheme != "bearer" || req.Auth.Token == "" {
			return because(ErrTrust, errors.New("no bearer token"))
		}
		if req.Agent.Token != nil {
			if err := req.Agent.Token(ctx, req); err != nil {
				return because(ErrTrust, err)
			}
		}
	case TrustPeers:
		if !slices.Contains(req.Skill.AllowedPeers, req.From) {
			return because(ErrTrust, errors.New("not among the allowed peers"))
		}
	default:
		return because(ErrTrust, fmt.Errorf("unknown tier %q", req.Skill.Trust))
	}
	req.pass(StepTrust)
	return nil
}

func (s *Server) checkCallback(_ context.Context, req *Request) error {
	if req.Endpoint != ModeAsync || !req.HasCallback() {
		return nil
	}
	if err := CheckCallback(req.CallbackURL, s.webhook.Guard); err != nil {
		return err
	}
	req.pass(StepCallback)
	return nil
}

func checkPayload(_ context.Context, req *Request) error {
	schema, err := req.Agent.schemas[req.Skill.ID]()
	if err != nil {
		return because(ErrUnavailable, err)
	}
	p, err := schema.Apply(req.Payload)
	if err != nil {
		return err
	}
	req.Payload = p
	req.pass(StepPayload)
	return nil
}

// lightweight recognises an unsigned body of the SDK extension (§8.3): none
// of the members of an envelope that prove anything, no signature header, and
// a public skill that allows it (SAM-078).
func (a *Agent) lightweight(in *Incoming, mode Mode, now time.Time) (*Verified, bool) {
	if !a.light || signedHeaders(in.Header) {
		return nil, false
	}
	var w struct {
		Skill   string          `json:"skill"`
		TraceID string          `json:"traceId"`
		Payload json.RawMessage `json:"payload"`

		From      json.RawMessage `json:"from"`
		Nonce     json.RawMessage `json:"nonce"`
		Timestamp json.RawMessage `json:"timestamp"`
		Signature json.RawMessage `json:"signature"`
	}
	if jsonx.Decode(in.Body, &w) != nil || w.From != nil || w.Nonce != nil || w.Timestamp != nil ||
		w.Signature != nil ||
		!a.Skills[w.Skill].Lightweight {
		return nil, false
	}
	s := a.Card.Skill(w.Skill)
	if s == nil || s.Trust != TrustPublic || !isNull(w.Payload) && kindOf(w.Payload) != '{' {
		return nil, false
	}
	m := &Verified{Envelope: &Envelope{
		From: Anonymous, To: a.id(), Skill: w.Skill, Mode: mode, Nonce: newID(), Timestamp: now,
		TraceID: cmp.Or(w.TraceID, newID()), SpanID: newID(), raw: in.Body,
	}}
	if !isNull(w.Payload) {
		m.Payload = share(in.Body, w.Payload)
	}
	m.Verdict.Assurance = Unsigned
	m.Verdict.Checks = m.checks[:0]
	m.pass(StepEnvelope)
	return m, true
}
