package hub

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
)

// A Way is how messages get to an agent by one of its identities, and what the hub sees of it at the moment; `parley
// doctor` shows it. Of a uAgent with a mailbox, for example, ID is the address, How says that the agent fetches its
// messages from its mailbox at this hub, and Findings say until when it is registered, and when it last fetched.
type Way struct {
	Protocol string `json:"protocol"`
	ID       string `json:"id"`
	How      string `json:"how,omitzero"` // a clause for people: "the hub calls it"
	// Addresses are those that the hub calls, the first choice first; none if the agent connects, or fetches its
	// messages.
	Addresses []string  `json:"addresses,omitzero"`
	Findings  []Finding `json:"findings,omitzero"` // in the order of the way
}

// A Finding is one check of a way.
type Finding struct {
	Check  string       `json:"check"` // what was checked: "connection"
	State  FindingState `json:"state"`
	Detail string       `json:"detail,omitzero"`
	Fix    string       `json:"fix,omitzero"` // the setting or command that fixes it
}

// FindingState is the outcome of a check.
type FindingState string

// The outcomes of a check. A warning is about something that delays messages, or that may be meant; a failed check
// needs a fix.
const (
	FindingOK      FindingState = "ok"
	FindingWarning FindingState = "warning"
	FindingFailed  FindingState = "failed"
	FindingSkipped FindingState = "skipped"
)

// OK adds a check that found no fault.
func (w *Way) OK(check, format string, args ...any) { w.add(FindingOK, check, "", format, args) }

// Warn adds a check with a warning; fix may be "".
func (w *Way) Warn(check, fix, format string, args ...any) {
	w.add(FindingWarning, check, fix, format, args)
}

// Fail adds a check that failed, with the setting or command that fixes it.
func (w *Way) Fail(check, fix, format string, args ...any) {
	w.add(FindingFailed, check, fix, format, args)
}

// Skip adds a check that could not be made.
func (w *Way) Skip(check, format string, args ...any) { w.add(FindingSkipped, check, "", format, args) }

func (w *Way) add(s FindingState, check, fix, format string, args []any) {
	w.Findings = append(w.Findings, Finding{Check: check, State: s, Detail: fmt.Sprintf(format, args...), Fix: fix})
}

// Heard adds the last sign of life of an agent: a warning if it was longer ago than within, since the agent's messages
// wait meanwhile. did says what the sign is: "fetched its messages". The zero at means none since the hub started.
func (w *Way) Heard(check, fix, did string, at, now time.Time, within time.Duration) {
	switch {
	case at.IsZero():
		w.Warn(check, fix, "it has not %s since the hub started; its messages wait", did)
	case now.Sub(at) > within:
		w.Warn(check, fix, "it last %s at %s; its messages wait", did, Stamp(at))
	default:
		w.OK(check, "it last %s at %s", did, Stamp(at))
	}
}

// Stamp writes a time for a [Finding].
func Stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// Ways gives the ways to an agent: its handler or its inbox, and one for each identity of its own.
func (h *Hub) Ways(ctx context.Context, e *directory.Entry) []Way {
	ways := []Way{}
	l, box := h.here(e.Name)
	switch {
	case l != nil:
		w := Way{Protocol: "go", ID: e.Name, How: "its handlers run in the hub's process"}
		if running := len(l.calls); running == cap(l.calls) {
			w.Warn("handlers", "", "%d calls run, the most at once; further messages wait", running)
		} else {
			w.OK("handlers", "%d of at most %d calls run", running, cap(l.calls))
		}
		ways = append(ways, w)
	case e.Source == directory.FromCode && !slices.ContainsFunc(e.Identities, func(i parley.Identity) bool {
		return !i.StandIn
	}):
		w := Way{Protocol: "go", ID: e.Name, How: "its handlers run in a hub's process"}
		w.Fail("handlers", "register them with Handle before the hub starts, or remove the agent: parley agents remove "+
			e.Name, "this hub's process has none")
		ways = append(ways, w)
	}
	for _, i := range e.Identities {
		if i.StandIn {
			continue
		}
		w := Way{Protocol: i.Protocol, ID: i.ID}
		switch b := h.bindings[i.Protocol]; {
		case b != nil && b.can.Way != nil:
			w = b.can.Way(ctx, e, i)
			w.Protocol, w.ID = i.Protocol, i.ID
		case b != nil:
		case box != nil:
			w.How = "its messages are read from its inbox"
			box.way(&w, h.c.Now())
		default:
			w.Fail("protocol", "", "this hub does not speak %s", i.Protocol)
		}
		ways = append(ways, w)
	}
	return ways
}
