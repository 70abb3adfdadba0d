package asp

import (
	"slices"
	"time"
)

// Bodies per performative. Some required members are the vendor's, some the
// project's; unknown members are always accepted.

// referenceNames are the members that may hold the reference of a body; this
// package writes the first.
var referenceNames = []string{"referenceId", "proposalId", "commitmentId", "inReplyTo"}

// referenceOf gives the member that refers to another message: referenceId, or an
// alias. The proposalId of a PROPOSE or COUNTER and the commitmentId of a COMMIT name
// the message itself, so they are no references.
func referenceOf(body *node, p Performative) *node {
	for _, name := range referenceNames {
		if (p == Propose || p == Counter) && name == "proposalId" || p == Commit && name == "commitmentId" {
			continue
		}
		if v := body.get(name); v != nil {
			return v
		}
	}
	return nil
}

// rejectionCodes are the codes of REJECT and of INFORM with informType error
// (specification/error-codes).
var rejectionCodes = []string{"insufficient_trust_score", "unauthorized", "schema_unsupported", "budget_exceeded",
	"capacity_unavailable", "policy_violation", "timeout", "duplicate", "escalation_required", "unspecified"}

func isRejection(n *node) bool { return n.kind == '"' && slices.Contains(rejectionCodes, n.str) }
func isAny(n *node) bool       { return n.kind != 'n' }
func isObjects(n *node) bool {
	return isArray(n) && !slices.ContainsFunc(n.kids, func(k node) bool { return k.kind != '{' })
}

func isInstant(n *node) bool {
	_, err := time.Parse(time.RFC3339, n.str)
	return n.kind == '"' && err == nil
}

func isProposalType(n *node) bool {
	switch n.str {
	case "service-agreement", "data-exchange", "session-invitation", "resource-allocation":
		return n.kind == '"'
	}
	return false
}

func isFormat(n *node) bool {
	return n.kind == '"' && (Format(n.str) == JSON || Format(n.str) == MessagePack)
}

func isDuration(n *node) bool { i, ok := n.integer(); return ok && i > 0 }

// reference stands in the table below for referenceId or an alias of it.
const reference = "referenceId"

var bodyRules = map[Performative][]rule{
	Propose: {
		{"proposalId", true, isShortID},
		{"type", true, isProposalType},
		{"subject", true, isString},
		{"terms", true, isObject},
		{"validUntil", false, isInstant},
	},
	Accept: {{reference, true, isShortID}},
	Reject: {{reference, true, isShortID}, {"code", false, isRejection}, {"reason", false, isString}},
	Counter: {
		{reference, true, isShortID},
		{"proposalId", true, isShortID},
		{"terms", true, isObject},
		{"validUntil", false, isInstant},
	},
	Inform: {{"informType", false, isString}, {"topic", false, isString}, {"data", false, isObject}},
	Query: {
		{"queryId", true, isShortID},
		{"queryType", true, isString},
		{"subject", false, isAny},
		{"parameters", false, isObject},
	},
	Clarify: {{reference, true, isShortID}},
	Commit: {
		{"commitmentId", true, isShortID},
		{"terms", true, isObject},
		{"deadline", false, isInstant},
		{"escrow", false, isObject},
	},
	Delegate: {
		{"targetAgent", true, isAgent},
		{"scope", true, isAny},
		{"delegationId", false, isShortID},
	},
	Escalate: {{"reason", true, isString}},
	Withdraw: {{reference, true, isShortID}, {"reason", false, isString}},
	Observe:  {},
	Close:    {},
}

var invitationRules = []rule{
	{"schemas", false, isArray},
	{"proposedDuration", false, isDuration},
	{"maxResponseTimeMs", false, isNatural},
	{"format", false, isFormat},
}

var commitTermsRules = []rule{
	{"obligations", false, isObjects},
	{"penalties", false, isObject},
}

// CheckBody reports whether body, a JSON object, fits performative p. The
// error is invalid_body with the member's path inside the body.
func CheckBody(p Performative, body []byte) error {
	n, err := parseJSON(body)
	if err != nil {
		return err
	}
	return checkBody(p, n)
}

func checkBody(p Performative, n *node) error {
	rules, ok := bodyRules[p]
	if !ok || n == nil || n.kind != '{' {
		return refuse("invalid_body", "")
	}
	if err := checkMembers(n, "", rules, p); err != nil {
		return err
	}
	switch {
	case p == Propose && n.text("type") == "session-invitation":
		return checkMembers(n.get("terms"), "terms.", invitationRules, p)
	case p == Commit:
		return checkMembers(n.get("terms"), "terms.", commitTermsRules, p)
	case p == Inform && n.text("informType") == "error":
		return checkMembers(n, "", []rule{{"code", false, isRejection}}, p)
	}
	return nil
}

func checkMembers(n *node, prefix string, rules []rule, p Performative) error {
	for _, r := range rules {
		v := n.get(r.name)
		if r.name == reference {
			v = referenceOf(n, p)
		}
		if v == nil && r.required || v != nil && !r.ok(v) {
			return refuse("invalid_body", prefix+r.name)
		}
	}
	return nil
}

// A Proposal is the body of a PROPOSE, and of a COUNTER when ReferenceID names
// the proposal that it answers. An empty ProposalID is filled in.
type Proposal struct {
	ReferenceID string `json:"referenceId,omitempty"`
	ProposalID  string `json:"proposalId,omitempty"`
	Type        string `json:"type,omitempty"` // service-agreement, data-exchange, resource-allocation
	Subject     string `json:"subject,omitempty"`
	Terms       any    `json:"terms"` // an object
	ValidUntil  string `json:"validUntil,omitempty"`
}

// An Answer is the body of ACCEPT, REJECT, CLARIFY and WITHDRAW.
type Answer struct {
	ReferenceID string `json:"referenceId,omitempty"`
	Code        string `json:"code,omitempty"`   // REJECT: one of rejectionCodes
	Reason      string `json:"reason,omitempty"` // REJECT, WITHDRAW
	Question    string `json:"question,omitempty"`
	Answer      string `json:"answer,omitempty"`
}

// Information is the body of an INFORM.
type Information struct {
	InformType  string `json:"informType,omitempty"`
	Topic       string `json:"topic,omitempty"`
	Data        any    `json:"data,omitempty"` // an object
	Code        string `json:"code,omitempty"` // informType error
	ReferenceID string `json:"referenceId,omitempty"`
}

// A Question is the body of a QUERY. An empty QueryID is filled in.
type Question struct {
	QueryID    string `json:"queryId,omitempty"`
	QueryType  string `json:"queryType"`
	Subject    string `json:"subject,omitempty"`
	Parameters any    `json:"parameters,omitempty"` // an object
}

// A Clarification is the body of a CLARIFY: a question about the item or message that
// ReferenceID names, or the answer to one.
type Clarification struct {
	ReferenceID string `json:"referenceId,omitempty"`
	Question    string `json:"question,omitempty"`
	Answer      string `json:"answer,omitempty"`
}

// A Promise is the body of a COMMIT. An empty CommitmentID is filled in.
type Promise struct {
	CommitmentID string `json:"commitmentId,omitempty"`
	Terms        Terms  `json:"terms"`
	Deadline     string `json:"deadline,omitempty"`
	Escrow       any    `json:"escrow,omitempty"` // recorded only: nothing here moves money
}

// Terms of a [Promise].
type Terms struct {
	Obligations []Obligation   `json:"obligations"`
	Penalties   map[string]any `json:"penalties,omitempty"`
}

// An Obligation is one duty of one party.
type Obligation struct {
	Party              string `json:"party"`
	Action             string `json:"action"`
	Deadline           string `json:"deadline,omitempty"`
	VerificationMethod string `json:"verificationMethod,omitempty"`
}

// A Delegation is the body of a DELEGATE: it brings TargetAgent into the
// session.
type Delegation struct {
	TargetAgent  string `json:"targetAgent"`
	Scope        string `json:"scope"`
	Authority    string `json:"authority,omitempty"`
	Protocol     string `json:"protocol,omitempty"`
	DelegationID string `json:"delegationId,omitempty"`
}

// A Closing is the body of a CLOSE.
type Closing struct {
	Reason  string `json:"reason,omitempty"`
	Summary string `json:"summary,omitempty"`
}
