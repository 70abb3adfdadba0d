package asp

import (
	"bytes"
	"encoding/json"
	"maps"
	"time"
)

// A ContextObject is shared state that a message carries, "Context objects".
type ContextObject struct {
	Type       string          `json:"type"`
	ID         string          `json:"id"`
	Version    int64           `json:"version"`
	Data       json.RawMessage `json:"data"`
	TTL        *int64          `json:"ttl,omitempty"` // seconds; nil: no end
	Visibility Visibility      `json:"visibility,omitempty"`
}

// A Visibility says how long a context object lives.
type Visibility string

// The visibilities; empty means session.
const (
	VisibleSession    Visibility = "session"    // until the session ends
	VisibleTurn       Visibility = "turn"       // until another participant speaks
	VisiblePersistent Visibility = "persistent" // survives the session
)

// AgentCardContext is the type of a context object that holds an agent's card.
const AgentCardContext = "agent-card"

func isContextType(n *node) bool {
	switch n.str {
	case "schema-contract", AgentCardContext, "negotiation-state", "shared-knowledge",
		"execution-state", "trust-evidence", "economic-state", "custom":
		return n.kind == '"'
	}
	return false
}

func isVisibility(n *node) bool {
	switch Visibility(n.str) {
	case VisibleSession, VisibleTurn, VisiblePersistent:
		return n.kind == '"'
	}
	return false
}

// isShortID bounds the ids that the server keeps (project).
func isShortID(n *node) bool { return n.kind == '"' && n.str != "" && len(n.str) <= maxID }

const maxID = 256

var contextRules = []rule{
	{"type", true, isContextType},
	{"id", true, isShortID},
	{"version", true, isNatural},
	{"data", true, isObject},
	{"ttl", false, isNatural},
	{"visibility", false, isVisibility},
}

func checkContext(n *node, path string) error {
	if n.kind != '{' {
		return refuse("invalid_field", path)
	}
	return checkRules(n, path+".", contextRules)
}

func contextOf(n *node) ContextObject {
	c := ContextObject{Type: n.text("type"), ID: n.text("id"), Visibility: Visibility(n.text("visibility"))}
	c.Version, _ = n.get("version").integer()
	if v := n.get("data"); v != nil {
		c.Data = json.RawMessage(v.raw)
	}
	if ttl, ok := n.get("ttl").integer(); ok {
		c.TTL = &ttl
	}
	return c
}

// A contextResult is the outcome of one update.
type contextResult string

// The results (project).
const (
	contextApplied contextResult = "applied"
	contextNoop    contextResult = "noop"
	// ignored: the update has an older version, other data, another type, or is not the owner's
	contextConflict contextResult = "context_conflict"
)

// A ContextEntry is a context object in a session.
type ContextEntry struct {
	ContextObject
	Sender  string    `json:"sender"`
	Expires time.Time `json:"expires,omitzero"`
}

// A contextStore holds the context objects of one session by id, at most
// maxLiveContext; an update beyond that is a conflict.
type contextStore map[string]ContextEntry

// Apply stores o, which sender sent in a message with timestamp sent. An update
// must raise the version; the type of an id never changes; only the sender of an
// agent card may change it. ttl counts from sent (project).
func (s contextStore) Apply(o ContextObject, sender string, sent time.Time) contextResult {
	old, known := s[o.ID]
	switch {
	case !known && len(s) >= maxLiveContext:
		return contextConflict
	case !known:
	case old.Type != o.Type, o.Type == AgentCardContext && old.Sender != sender, o.Version < old.Version:
		return contextConflict
	case o.Version == old.Version:
		if sameJSON(old.Data, o.Data) {
			return contextNoop
		}
		return contextConflict
	}
	e := ContextEntry{ContextObject: o, Sender: sender}
	e.Data = bytes.Clone(o.Data)
	if o.TTL != nil {
		e.Expires = sent.Add(time.Duration(min(*o.TTL, maxTTL)) * time.Second)
	}
	s[o.ID] = e
	return contextApplied
}

// maxTTL keeps time arithmetic in range: some 136 years.
const maxTTL = 1<<32 - 1

func sameJSON(a, b []byte) bool {
	ca, err1 := Canonical(a)
	cb, err2 := Canonical(b)
	return err1 == nil && err2 == nil && bytes.Equal(ca, cb)
}

// expired reports whether sent + ttl has passed.
func (e *ContextEntry) expired(now time.Time) bool {
	return !e.Expires.IsZero() && !now.Before(e.Expires)
}

// Turn drops expired objects, and the objects of visibility turn from agents
// other than sender. The ledger calls it when it admits a message of sender.
func (s contextStore) Turn(sender string, now time.Time) {
	maps.DeleteFunc(s, func(_ string, e ContextEntry) bool {
		return e.Visibility == VisibleTurn && e.Sender != sender || e.expired(now)
	})
}

// End keeps only persistent objects: the session is over.
func (s contextStore) End() {
	maps.DeleteFunc(s, func(_ string, e ContextEntry) bool { return e.Visibility != VisiblePersistent })
}
