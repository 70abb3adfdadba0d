package admin

import (
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley"
)

// Role is the set of actions that a token permits; each role includes those before it.
type Role string

// The roles.
const (
	// no call of this API; its bearer has an account in which it registers agents (uAgents)
	Register   Role = "register"
	Observe    Role = "observe"    // see agents, messages, refusals, public keys and statistics, but no content
	Read       Role = "read"       // and content, exports of it and the search in it
	Operate    Role = "operate"    // and send, read inboxes, pause and resume, retry and drop dead letters
	Administer Role = "administer" // and change agents, keys and tokens, and see the audit trail
)

// level grows with what a role permits; 0: no role.
func (r Role) level() int {
	return 1 + slices.Index([]Role{Register, Observe, Read, Operate, Administer}, r)
}

// operatorAgent is the agent for which a token sends by default.
const operatorAgent = "operator"

// An Actor is the operator on whose behalf a method works.
type Actor struct {
	Name    string // of the token
	Role    Role
	Speak   []string // agents as which it may speak: patterns as in [policy.Match]; nil: "operator"
	Address string   // network address, for the audit trail
	Via     string   // "console" for a browser's session; "" for the API

	agent   string    // for which the token speaks at protocols; "": none
	hash    string    // of the token
	expires time.Time // the token; zero: never
}

// May reports whether the actor's role includes another, so that a page can say what it offers. Every method of [Admin]
// checks it again.
func (a Actor) May(r Role) bool { return a.may(r) == nil }

// may refuses an action that the actor's role does not include.
func (a Actor) may(r Role) error {
	if a.Role.level() >= r.level() {
		return nil
	}
	return parley.Refuse(parley.Forbidden, "token %q has the role %q; this needs %q", a.Name, a.Role, r).
		With(parley.ByPolicy, parley.RoleLow, "")
}

// speaker gives the agent for which the actor sends.
func (a Actor) speaker(name string) (string, error) {
	patterns := a.speaks()
	if name == "" {
		name = operatorAgent
		if len(patterns) == 1 && parley.CheckName(patterns[0]) == nil {
			name = patterns[0]
		}
	}
	if err := parley.CheckName(name); err != nil {
		return "", err
	}
	if a.speaksAs(name) {
		return name, nil
	}
	return "", parley.Refuse(parley.Forbidden, "token %q may not speak as %q; it may as %s", a.Name, name,
		strings.Join(patterns, ", "))
}
