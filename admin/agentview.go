package admin

import (
	"time"

	"github.com/parley-hub/parley"
)

// This file has the types by which the API shows an agent: the state of each of its identities, where it came from, and
// who may call it.

// AgentBinding is one identity of an agent with its state. By each identity of its own, messages get to the agent another
// way, so each has a state of its own. A stand-in answers as long as the hub does.
type AgentBinding struct {
	Protocol string `json:"protocol"` // "api" for an inbox, "go" for handlers in a hub's process
	ID       string `json:"id"`
	URL      string `json:"url,omitzero"`
	StandIn  bool   `json:"standIn,omitzero"`
	AgentState
	Text string `json:"text,omitzero"` // a few words: "connected", "mailbox", "answers for it"
	// Heard is the last sign of life on the way: the agent called, fetched its messages, or greeted.
	Heard  time.Time `json:"heard,omitzero"`
	Losses []string  `json:"losses,omitzero"` // of a stand-in: what its callers say, or would be told, and is lost
}

// Place is a place in the configuration file.
type Place struct {
	File string `json:"file,omitzero"`
	Line int    `json:"line,omitzero"`
}

// AgentOrigin says where an agent came from. Agents of the configuration file have a place.
type AgentOrigin struct {
	Place
	By   string    `json:"by,omitzero"` // the operator's token; missing: not known any more
	At   time.Time `json:"at,omitzero"`
	Text string    `json:"text"` // for people: "parley.toml, line 88"
}

// Rule lets From call To. Both are patterns over directory names.
type Rule struct {
	Number int      `json:"number"` // in the order of the file, from 1
	From   string   `json:"from"`
	To     []string `json:"to"`
	Place
}

// Callers says who may call an agent.
type Callers struct {
	Open  bool    `json:"open,omitzero"` // the hub has no rules: whoever finds the agent may call it
	Rules []Rule  `json:"rules,omitzero"`
	Least []Least `json:"least,omitzero"` // by protocol in which it is reached
}

// Least is the least assurance of messages by one protocol.
type Least struct {
	Protocol  string           `json:"protocol"`
	Assurance parley.Assurance `json:"assurance"`
	Place                      // of the rule that says so; missing: a default
}

// Admission names the rule that lets a message pass, by the rules in force now. They may have changed since.
type Admission struct {
	To   string `json:"to"`
	Rule *Rule  `json:"rule,omitzero"`
	Text string `json:"text"` // "would be admitted by rule 4, parley.toml, line 41"
}

// AgentCounts counts the agents that each filter alone chooses, up to [CountLimit].
type AgentCounts struct {
	All      int `json:"all"`
	Trouble  int `json:"trouble"`
	StandIns int `json:"standIns"`
	Guests   int `json:"guests"`
}

// CountLimit is the largest count of a list: it means so many or more.
const CountLimit = 10_000

// Preview says what a change would do, before it is made. Nothing has been changed.
type Preview struct {
	Agent   string   `json:"agent"`
	Text    []string `json:"text"`    // sentences
	Command string   `json:"command"` // that makes the change
}
