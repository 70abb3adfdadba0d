package admin

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
)

// Info describes a hub and its addresses.
type Info struct {
	Hub       string            `json:"hub"`     // id of the hub, as in the hops of messages
	Version   string            `json:"version"` // of the program
	Promise   string            `json:"promise"` // the meaning of "accepted" here, as a sentence
	Now       time.Time         `json:"now"`     // the hub's clock
	Started   time.Time         `json:"started,omitzero"`
	Data      string            `json:"data,omitzero"` // the data directory
	PublicURL string            `json:"publicUrl,omitzero"`
	Addresses map[string]string `json:"addresses,omitzero"` // of listeners: "http", "agh", "a2e", "a2a" (gRPC), "admin"
	SAMVAD    Hosting           `json:"samvad,omitzero"`
	Guests    *GuestBudget      `json:"guests,omitzero"`
	Warnings  []string          `json:"warnings,omitzero"` // settings that the operator should change
}

// GuestBudget is the use and the limits of guests together: callers and agents
// for which no operator, configuration or key vouches. Memory and disk are in bytes.
type GuestBudget struct {
	Memory           int64 `json:"memory"`
	MaxMemory        int64 `json:"maxMemory"`
	Disk             int64 `json:"disk"`    // that may be recorded now
	MaxDisk          int64 `json:"maxDisk"` // in 24 hours
	Registrations    int   `json:"registrations"`
	MaxRegistrations int   `json:"maxRegistrations"`
	Mailboxes        int   `json:"mailboxes"`
	MaxMailboxes     int   `json:"maxMailboxes"`
	Manifests        int   `json:"manifests"`

	Connections       int     `json:"connections"`
	MaxConnections    int     `json:"maxConnections"`
	AllConnections    int     `json:"allConnections"` // with those of enrolled agents
	MaxAllConnections int     `json:"maxAllConnections"`
	Requests          float64 `json:"requests"` // a second from one address
	Share             float64 `json:"share"`    // of one address

	// Since the start.
	Written            uint64 `json:"written"` // bytes
	Refused            uint64 `json:"refused"`
	Evicted            uint64 `json:"evicted"`
	Delayed            uint64 `json:"delayed"`
	ConnectionsRefused uint64 `json:"connectionsRefused"`
	ConnectionsEvicted uint64 `json:"connectionsEvicted"`
}

// Hosting is the hub's own identity in a protocol, for the configuration of
// agents elsewhere.
type Hosting struct {
	Identity string `json:"identity"`  // of the hub as a caller
	KeyID    string `json:"keyId"`     // of the key that signs
	Key      string `json:"publicKey"` // base64, to be enrolled at agents that trust keys
	Base     string `json:"base"`      // base URL; agents are at Base/agents/NAME

	Next string `json:"nextPublicKey,omitempty"` // base64, of the key that follows; only while it is being replaced
}

// Identity is an agent's id in one protocol.
type Identity struct {
	Protocol string `json:"protocol"`
	ID       string `json:"id"`
	URL      string `json:"url,omitzero"`
	Key      string `json:"key,omitzero"` // fingerprint of its key, if several agents claim the same id
	StandIn  bool   `json:"standIn,omitzero"`
}

// Skill is one operation of an agent.
type Skill struct {
	ID          string          `json:"id"`
	Name        string          `json:"name,omitzero"`
	Description string          `json:"description,omitzero"`
	Input       json.RawMessage `json:"input,omitzero"`  // JSON Schema
	Output      json.RawMessage `json:"output,omitzero"` // JSON Schema
	Modes       []parley.Mode   `json:"modes,omitzero"`
	Access      parley.Access   `json:"access,omitzero"`
	Peers       []string        `json:"peers,omitzero"`
	Default     bool            `json:"default,omitzero"`
}

// Agent is an agent as the hub knows it.
type Agent struct {
	Name        string           `json:"name"`
	Title       string           `json:"title,omitzero"`
	Description string           `json:"description,omitzero"`
	Version     string           `json:"version,omitzero"`
	Source      directory.Source `json:"source"` // config, code, operator or agent
	Added       time.Time        `json:"added"`
	Paused      bool             `json:"paused"`
	Record      parley.Recording `json:"record,omitzero"` // of the content of its messages; missing: full
	Inbox       bool             `json:"inbox"`           // its messages are read through this API
	Native      []string         `json:"native"`
	Exposed     []string         `json:"exposed"`
	Identities  []Identity       `json:"identities"`
	Skills      []Skill          `json:"skills"`
	Learned     string           `json:"learned,omitzero"` // protocol in which the agent itself declared its skills
	Seen        *Seen            `json:"seen,omitzero"`    // the last message from it since the hub started
	Waiting     *Waiting         `json:"waiting,omitzero"` // missing in the answer to a change

	AgentState
	Bindings []AgentBinding `json:"bindings"` // the state of each identity
	Origin   AgentOrigin    `json:"origin"`
	Callers  *Callers       `json:"callers,omitzero"` // who may call it; only in the answer for one agent

	Delivery *AgentDelivery `json:"delivery,omitzero"`

	Profile *hub.Profile `json:"profile,omitzero"` // published by its owner; only in the answer for one agent

	Addresses map[string]string `json:"addresses,omitzero"` // by protocol; only in the answer for one agent
}

// AgentFilter chooses agents of the directory, and a page of them.
type AgentFilter struct {
	// Filter is a text in the name, the title or the id of an identity, in upper or lower case. With * it is a pattern
	// for one of them as a whole; each * stands for any text. "": all agents.
	Filter string
	// Q is a text in the name, the title, an id or URL, a skill, or the id or fingerprint of a key, in upper or lower
	// case.
	Q        string
	State    string // "trouble": those in trouble; or a [hub.AgentState]
	Protocol string // those that speak it themselves
	StandIn  bool   // those with a stand-in
	Guest    bool   // those for whom nobody vouches
	// CallableBy chooses those that this agent may send to through this API.
	CallableBy string
	Order      string // "": by name; "trouble": those in trouble first, the worst state first, then by name

	Cursor string // Next of the previous page
	Limit  int    // 0: 100; at most [index.MaxLimit]
}

// AgentPage is a page of agents; Next is the cursor of the following page, "" for the last one.
type AgentPage struct {
	Agents []Agent `json:"agents"`
	Next   string  `json:"next,omitzero"`
	More   int     `json:"more,omitzero"` // number of agents behind this page

	Counts     *AgentCounts `json:"counts,omitzero"` // only in the order "trouble"
	HeardSince time.Time    `json:"heardSince"`      // the hub's start: who is not seen sent nothing since then
}

// Seen is the last message that an agent sent.
type Seen struct {
	Time      time.Time        `json:"time"`
	Message   parley.ID        `json:"message"`
	Protocol  string           `json:"protocol"`
	Assurance parley.Assurance `json:"assurance"`
	Count     uint64           `json:"count"` // messages since the hub started
}

// Waiting counts the pending deliveries to an agent.
type Waiting struct {
	Open   int       `json:"open"` // not settled
	Dead   int       `json:"dead"`
	Oldest time.Time `json:"oldest,omitzero"` // of the open ones

	Expires time.Time `json:"expires,omitzero"` // the first of the open ones; missing: none does
}

// NewAgent adds an agent. Inbox makes it one that reads its messages here; the
// public keys of identities are enrolled in the keyring.
type NewAgent struct {
	Name        string        `json:"name"`
	Title       string        `json:"title,omitzero"`
	Description string        `json:"description,omitzero"`
	Identities  []NewIdentity `json:"identities,omitzero"`
	Skills      []Skill       `json:"skills,omitzero"`
	Expose      []string      `json:"expose,omitzero"`
	Inbox       bool          `json:"inbox,omitzero"`

	Delivery *DeliveryChange `json:"delivery,omitzero"` // missing: that of the agent that is replaced, or the hub's

	Record parley.Recording `json:"record,omitzero"` // what the journal keeps of the content of its messages
}

// NewIdentity is an identity with the key that proves it.
type NewIdentity struct {
	Protocol  string `json:"protocol"`
	ID        string `json:"id"`
	URL       string `json:"url,omitzero"`
	PublicKey string `json:"publicKey,omitzero"` // base64 or the protocol's own form; empty: nothing is enrolled
	KeyID     string `json:"keyId,omitzero"`     // empty: the key answers to any

	Card json.RawMessage `json:"card,omitzero"` // ASP: the agent's card, which holds its keys

	// A2A and MCP: what the hub shows to the agent, in the form of the protocol's binding. The hub keeps it sealed and
	// never gives it back.
	Credentials Secret `json:"credentials,omitzero"`
}

// Secret is a JSON value that is sent to the hub alone. Printed or logged, it shows nothing.
type Secret []byte

// MarshalJSON gives the value, for the request to the hub.
func (s Secret) MarshalJSON() ([]byte, error) { return json.RawMessage(s).MarshalJSON() }

// UnmarshalJSON takes the value.
func (s *Secret) UnmarshalJSON(b []byte) error {
	*s = bytes.Clone(b)
	return nil
}

// Format implements fmt.Formatter for every verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "(secret)") }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue("(secret)") }

// Part is one piece of content; exactly one of Text, JSON, Data and URI is set.
type Part struct {
	MediaType string          `json:"mediaType,omitzero"`
	Name      string          `json:"name,omitzero"`
	Text      *string         `json:"text,omitzero"`
	JSON      json.RawMessage `json:"json,omitzero"`
	Data      []byte          `json:"data,omitzero"` // base64
	URI       string          `json:"uri,omitzero"`
	Digest    string          `json:"digest,omitzero"`
}

// Problem is an error as it stands in JSON.
type Problem struct {
	Code      parley.Code `json:"code"`
	Text      string      `json:"text"`
	Ref       string      `json:"ref,omitzero"` // for `parley explain`
	Retryable bool        `json:"retryable,omitzero"`

	Source parley.Source `json:"source,omitzero"` // who refused or failed: policy, limit, hub, peer or network
	Reason parley.Reason `json:"reason,omitzero"`
	Detail string        `json:"detail,omitzero"`
	Advice string        `json:"advice,omitzero"` // what an operator can do; see [Advise]
}

// Message is a message of the hub.
type Message struct {
	ID           parley.ID       `json:"id"`
	Kind         parley.Kind     `json:"kind"`
	State        parley.State    `json:"state,omitzero"`  // of an event
	Number       int             `json:"number,omitzero"` // of an event or an input
	Error        *Problem        `json:"error,omitzero"`  // of an error
	From         string          `json:"from"`
	To           string          `json:"to,omitzero"`
	Audience     []string        `json:"audience,omitzero"`
	Conversation parley.ID       `json:"conversation"`
	InReplyTo    parley.ID       `json:"inReplyTo,omitzero"`
	Skill        string          `json:"skill,omitzero"`
	Act          string          `json:"act,omitzero"`
	Schema       string          `json:"schema,omitzero"`
	Parts        []Part          `json:"parts"`
	Sent         time.Time       `json:"sent,omitzero"`
	Received     time.Time       `json:"received,omitzero"`
	Expires      time.Time       `json:"expires,omitzero"`
	Deadline     time.Time       `json:"deadline,omitzero"`
	Attempt      int             `json:"attempt,omitzero"` // in an inbox: the number of this delivery
	Origin       Origin          `json:"origin"`
	Hops         []string        `json:"hops,omitzero"`
	Extensions   json.RawMessage `json:"extensions,omitzero"`
}

// Origin is how a message reached the hub, without the bytes.
type Origin struct {
	Protocol  string           `json:"protocol"`
	Peer      string           `json:"peer,omitzero"`
	Assurance parley.Assurance `json:"assurance"`
	KeyID     string           `json:"keyId,omitzero"`
	Checks    []Check          `json:"checks,omitzero"`
}

// Check is one step of a verification.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail,omitzero"`
}

// Send is a message to be sent. Text, JSON and Parts exclude each other.
type Send struct {
	From         string          `json:"from,omitzero"` // default: the token's only agent, or "operator"
	To           string          `json:"to,omitzero"`   // not for replies: they go to the requester
	Audience     []string        `json:"audience,omitzero"`
	Kind         parley.Kind     `json:"kind,omitzero"`  // default: request, or response with InReplyTo
	State        parley.State    `json:"state,omitzero"` // of an event
	Skill        string          `json:"skill,omitzero"`
	Act          string          `json:"act,omitzero"`
	Text         *string         `json:"text,omitzero"`
	JSON         json.RawMessage `json:"json,omitzero"`
	Parts        []Part          `json:"parts,omitzero"`
	Error        *Problem        `json:"error,omitzero"`        // of kind error
	InReplyTo    string          `json:"inReplyTo,omitzero"`    // the request: an id, or the beginning of it
	Conversation string          `json:"conversation,omitzero"` // an id, or the beginning of a recorded one
	Deadline     time.Time       `json:"deadline,omitzero"`
	// From now, in place of Deadline: "30s". It says how long the sender waits, so it sets no deadline while the
	// recipient is paused.
	Timeout string    `json:"timeout,omitzero"`
	Expires time.Time `json:"expires,omitzero"`

	IdempotencyKey string `json:"-"` // a header: the same key again gives the first answer
}

// Receipt names the recorded message, and has its reply if the caller waited.
type Receipt struct {
	ID           parley.ID `json:"id"`
	Conversation parley.ID `json:"conversation"`
	Replayed     bool      `json:"replayed,omitzero"` // the idempotency key had been used for this message before

	Recipient *AgentState `json:"recipient,omitzero"` // when the message was recorded; missing: ready, or several
	// Deadline says how long a request waits for a paused recipient at most. No reply is waited for then.
	Deadline time.Time `json:"deadline,omitzero"`
	Reply    *Message  `json:"reply,omitzero"`
}

// Paused reports whether the message waits at the hub until its recipient is resumed.
func (r *Receipt) Paused() bool { return r.Recipient != nil && r.Recipient.State == hub.Paused }

// DeadLetter is a delivery that was given up.
type DeadLetter struct {
	Message      parley.ID   `json:"message"`
	To           string      `json:"to"`
	From         string      `json:"from"`
	Kind         parley.Kind `json:"kind"`
	Conversation parley.ID   `json:"conversation"`
	Attempts     int         `json:"attempts"`
	Tries        int         `json:"tries"` // attempts without those that were postponed
	Reason       Problem     `json:"reason"`
	Changed      time.Time   `json:"changed"`
	Losses       []string    `json:"losses,omitzero"` // members that the translation could not carry
	Position     string      `json:"position"`
	Cursor       string      `json:"cursor,omitzero"`  // its place in a list; see [DeadFilter]
	Content      *Message    `json:"content,omitzero"` // only in the answer for one dead letter

	Recipient *AgentState `json:"recipient,omitzero"` // now; missing: ready

	// Only in the answer for one dead letter: its attempts, and how many are left out after the first ten.
	History []Attempt `json:"history,omitzero"`
	Omitted int       `json:"omitted,omitzero"`
}

// NoReason chooses what has an error without a reason, in the filters of what was not delivered.
const NoReason parley.Reason = "none"

// DeadFilter chooses dead letters; a zero field chooses all.
type DeadFilter struct {
	To     string        `json:"to,omitzero"`
	From   string        `json:"from,omitzero"`
	Code   parley.Code   `json:"code,omitzero"`
	Reason parley.Reason `json:"reason,omitzero"` // or NoReason
	Since  time.Time     `json:"since,omitzero"`  // given up at or after
	Before time.Time     `json:"before,omitzero"` // given up before
	Cursor string        `json:"cursor,omitzero"` // of a dead letter: those behind it
	Limit  int           `json:"limit,omitzero"`  // at most so many, the oldest first; 0 and above 10,000 mean 10,000
}

func (f DeadFilter) empty() bool {
	f.Limit = 0
	return f == DeadFilter{}
}

// Refusal is a message or request that the hub refused.
type Refusal struct {
	Ref       string           `json:"ref"`
	Time      time.Time        `json:"time"`
	Protocol  string           `json:"protocol"`
	Source    string           `json:"source,omitzero"`
	Claim     string           `json:"claim,omitzero"`
	To        string           `json:"to,omitzero"`    // as the message names it
	Agent     string           `json:"agent,omitzero"` // the agent of the directory that To is, if it is one
	Step      string           `json:"step"`
	Code      parley.Code      `json:"code"`
	Text      string           `json:"text"`
	Cause     string           `json:"cause,omitzero"`
	By        parley.Source    `json:"by,omitzero"` // policy, limit or hub; peer for an agent's answer
	Reason    parley.Reason    `json:"reason,omitzero"`
	Detail    string           `json:"detail,omitzero"`
	Advice    string           `json:"advice,omitzero"`
	Size      int              `json:"size"`
	Assurance parley.Assurance `json:"assurance"`
	KeyID     string           `json:"keyId,omitzero"`
	Checks    []Check          `json:"checks,omitzero"`
}

// AuditEntry is one action of an operator.
type AuditEntry struct {
	ID      string    `json:"id"` // sorts by time
	Time    time.Time `json:"time"`
	Hub     string    `json:"hub,omitzero"` // the hub at which the operator acted
	Actor   string    `json:"actor"`        // name of the token
	Role    Role      `json:"role"`
	Address string    `json:"address,omitzero"`
	Via     string    `json:"via,omitzero"` // "console": by a browser
	Action  string    `json:"action"`       // "agent.pause", "dead.drop", …
	Target  string    `json:"target,omitzero"`
	Detail  string    `json:"detail,omitzero"`
	Outcome string    `json:"outcome"` // "started", "done", or the error's text
}

// AuditFilter chooses entries of the audit trail; a zero field chooses all.
type AuditFilter struct {
	By     string    // name of the token
	Action string    // "dead.drop", or "dead" for all that begin so
	Target string    // what was changed: the name of an agent, a token …
	Since  time.Time // done at or after
	Limit  int       // at most so many, the newest
}

func (f *AuditFilter) matches(e *AuditEntry) bool {
	return (f.By == "" || f.By == e.Actor) && (f.Target == "" || f.Target == e.Target) && !e.Time.Before(f.Since) &&
		(f.Action == "" || f.Action == e.Action || strings.HasPrefix(e.Action, f.Action+"."))
}

// Stats of the moment.
type Stats struct {
	Now        time.Time        `json:"now"`
	Agents     int              `json:"agents"`
	Waiting    int              `json:"waiting"` // callers waiting for an answer
	Refused    uint64           `json:"refused"` // since the start
	Lanes      int              `json:"lanes"`   // (recipient, conversation) pairs with something to deliver
	Active     int              `json:"active"`  // running attempts
	HeldBytes  int64            `json:"heldBytes"`
	Open       int              `json:"open"` // deliveries not settled
	Dead       int              `json:"dead"`
	Records    uint64           `json:"records"`
	Bytes      uint64           `json:"bytes"`
	Free       uint64           `json:"free"` // bytes free in the data directory; 0: not known
	Healthy    bool             `json:"healthy"`
	Reason     string           `json:"reason,omitzero"`
	Index      *index.Stats     `json:"index,omitzero"` // missing where the hub keeps none
	Partitions []PartitionStats `json:"partitions"`
}

// PartitionStats of the journal.
type PartitionStats struct {
	Partition int    `json:"partition"`
	Records   uint64 `json:"records"`
	Bytes     uint64 `json:"bytes"`
	Open      int    `json:"open"`
	Dead      int    `json:"dead"`
	Keys      int    `json:"keys"`
	LongKeys  int    `json:"longKeys"`
	Queued    int    `json:"queued"`
	Appended  uint64 `json:"appended"`
	Replays   uint64 `json:"replays"`
	Owned     bool   `json:"owned"`
}

// apiProtocol is the protocol of messages that enter here, and the protocol of the
// identity that marks an agent as one with an inbox.
const apiProtocol = "api"

// Inbox is the identity of an agent that reads its messages here.
func Inbox(agent string) parley.Identity { return parley.Identity{Protocol: apiProtocol, ID: agent} }

// viewAll gives an actor's view of each element of a list. It is never nil: JSON has [] for an empty one.
func viewAll[T, V any](by Actor, list []T, view func(Actor, T) V) []V {
	out := make([]V, len(list))
	for i, v := range list {
		out[i] = view(by, v)
	}
	return out
}

func problem(e *parley.Error) *Problem {
	if e == nil {
		return nil
	}
	return &Problem{Code: e.Code, Text: e.Text, Ref: e.Ref, Retryable: e.Retryable, Source: e.Source, Reason: e.Reason,
		Detail: e.Detail}
}

// error is the reverse of problem.
func (p Problem) error() *parley.Error {
	return &parley.Error{Code: p.Code, Text: p.Text, Ref: p.Ref, Retryable: p.Retryable, Source: p.Source,
		Reason: p.Reason, Detail: p.Detail}
}

func viewChecks(checks []parley.Check) []Check {
	out := make([]Check, len(checks))
	for i, c := range checks {
		out[i] = Check(c)
	}
	return out
}

func viewMessage(by Actor, m *parley.Message) *Message {
	v := &Message{ID: m.ID, Kind: m.Kind, State: m.State, Number: m.Number, Error: problem(m.Error), From: m.From,
		To: m.To, Audience: m.Audience, Conversation: m.Conversation, InReplyTo: m.InReplyTo, Skill: m.Skill,
		Act: m.Act, Schema: m.Schema, Parts: []Part{}, Sent: m.Sent, Received: m.Origin.Received, Expires: m.Expires,
		Deadline: m.Deadline, Hops: m.Hops,
		Origin: Origin{Protocol: m.Origin.Protocol, Peer: m.Origin.Peer, Assurance: m.Origin.Verdict.Assurance,
			KeyID: m.Origin.Verdict.KeyID, Checks: viewChecks(m.Origin.Verdict.Checks)}}
	for _, p := range m.Parts {
		v.Parts = append(v.Parts, viewPart(p))
	}
	if len(m.Extensions) > 0 {
		if b, err := jsonx.Encode(m.Extensions); err == nil {
			v.Extensions = b
		}
	}
	return forActor(by, v)
}

func viewPart(p parley.Part) Part {
	v := Part{MediaType: p.MediaType, Name: p.Name, URI: p.URI, Digest: p.Digest}
	switch {
	case p.URI != "":
	case p.IsJSON() && jsonx.Valid(p.Data, 0) == nil:
		v.JSON = p.Data
	case p.IsText() && utf8.Valid(p.Data):
		s := string(p.Data)
		v.Text = &s
	default:
		v.Data = p.Data
		if v.Data == nil {
			v.Data = []byte{}
		}
	}
	return v
}

// count tells how many of its arguments are true.
func count(set ...bool) (n int) {
	for _, is := range set {
		if is {
			n++
		}
	}
	return n
}

// part is the reverse of viewPart.
func (p Part) part() (parley.Part, error) {
	if count(p.Text != nil, p.JSON != nil, p.Data != nil, p.URI != "") != 1 {
		return parley.Part{}, parley.Refuse(parley.Malformed, "a part has exactly one of text, json, data and uri")
	}
	out := parley.Part{MediaType: p.MediaType, Name: p.Name, URI: p.URI, Digest: p.Digest}
	def := ""
	switch {
	case p.Text != nil:
		out.Data, def = []byte(*p.Text), "text/plain; charset=utf-8"
	case p.JSON != nil:
		out.Data, def = p.JSON, "application/json"
	case p.Data != nil:
		out.Data, def = p.Data, "application/octet-stream"
	}
	if out.MediaType = cmp.Or(out.MediaType, def); out.MediaType != "" {
		if _, _, err := mime.ParseMediaType(out.MediaType); err != nil {
			return parley.Part{}, parley.Refuse(parley.Malformed, "%.100q is not a media type", out.MediaType)
		}
	}
	return out, nil
}

func viewSkill(s parley.SkillSpec) Skill {
	return Skill{ID: s.ID, Name: s.Name, Description: s.Description, Input: s.Input, Output: s.Output,
		Modes: s.Modes, Access: s.Access, Peers: s.Peers, Default: s.Default}
}

func (s Skill) spec() parley.SkillSpec {
	return parley.SkillSpec{ID: s.ID, Name: s.Name, Description: s.Description, Input: s.Input, Output: s.Output,
		Modes: s.Modes, Access: s.Access, Peers: s.Peers, Default: s.Default}
}

func viewAgent(e *directory.Entry) Agent {
	v := Agent{Name: e.Name, Title: e.Title, Description: e.Description, Version: e.Version, Source: e.Source,
		Added: e.Added, Paused: e.Paused, Record: e.Record, Learned: e.Learned,
		Inbox: hasInbox(e), Native: append([]string{}, e.Native()...),
		Exposed: append([]string{}, e.Exposed...), Identities: []Identity{}, Skills: []Skill{}}
	for _, i := range e.Identities {
		v.Identities = append(v.Identities, Identity(i))
	}
	for _, s := range e.Skills {
		v.Skills = append(v.Skills, viewSkill(s))
	}
	return v
}

func hasInbox(e *directory.Entry) bool {
	i, ok := e.Identity(apiProtocol)
	return ok && !i.StandIn
}

func (a *Admin) viewRefusal(by Actor, r hub.Refusal) Refusal {
	v := Refusal{Ref: r.Ref, Time: r.Time, Protocol: r.Protocol, Source: r.Source, Claim: r.Claim, To: r.To,
		Step: r.Step, Code: r.Code, Text: r.Text, Cause: r.Cause, By: r.By, Reason: r.Reason, Detail: r.Detail,
		Size: r.Size, Assurance: r.Verdict.Assurance, KeyID: r.Verdict.KeyID, Checks: viewChecks(r.Verdict.Checks)}
	if e, err := a.c.Hub.Directory().Resolve(r.To); err == nil {
		v.Agent = e.Name
	}
	v.Advice = Advise(Problem{Code: r.Code, Source: r.By, Reason: r.Reason},
		At{Protocol: r.Protocol, Agent: r.To, Sender: r.Claim, Step: r.Step, Checks: v.Checks})
	return *forActor(by, &v)
}

func (a *Admin) viewDead(by Actor, d journal.Delivery) DeadLetter {
	v := DeadLetter{Message: d.Message, To: d.To, From: d.From, Kind: d.Kind, Conversation: d.Conversation,
		Attempts: d.Attempt, Tries: d.Tries(), Changed: d.Changed, Position: d.Position.String(),
		Reason: Problem{Code: parley.Internal, Text: "no reason was recorded"}, Recipient: a.notReady(by, d.To)}
	if d.Error != nil {
		v.Reason = *problem(d.Error)
	}
	a.advise(&v.Reason, d.To, d.From)
	for _, l := range d.Losses {
		v.Losses = append(v.Losses, l.String())
	}
	return *forActor(by, &v)
}

// Reloaded names the keys of the configuration file that a reload found changed.
type Reloaded struct {
	Changed []string `json:"changed"` // now in force
	Restart []string `json:"restart"` // changed since the start; they need a restart
}
