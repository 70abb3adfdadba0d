//go:build cluster

package cluster

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/pairs"
	"github.com/parley-hub/parley/journal"
)

// event is one event in the life of a message.
type event struct {
	at   time.Time
	what string
}

// traces hold the events of each message: agent events, and records of
// the journal.
type traces struct {
	byText  map[string][]event
	byID    map[parley.ID][]event
	called  map[parley.ID]string // the text of a message
	answers map[parley.ID]parley.ID
	hubs    []*hubNode // their logs belong to the trace
	printed int        // how many traces were printed
}

func newTraces(hubs []*hubNode) *traces {
	return &traces{hubs: hubs, byText: map[string][]event{}, byID: map[parley.ID][]event{},
		called: map[parley.ID]string{}, answers: map[parley.ID]parley.ID{}}
}

// seen notes an event that an agent saw.
func (s *traces) seen(text, what string, arguments ...any) {
	s.byText[text] = append(s.byText[text], event{time.Now(), fmt.Sprintf(what, arguments...)})
}

// recorded notes a record of the journal.
func (s *traces) recorded(r *journal.Record) {
	where := fmt.Sprintf("%s by %s, scope %q", r.Position, r.Node, r.Scope)
	if m := r.Message; m != nil {
		about := m.ID
		if !m.InReplyTo.IsZero() {
			about, s.answers[m.ID] = m.InReplyTo, m.InReplyTo
		}
		if text := pairs.Said(m); m.InReplyTo.IsZero() && text != "" {
			s.called[m.ID] = text
		}
		what := fmt.Sprintf("%s: %s %s %s from %s (%s) to %s, %.80q", where, m.Kind, m.State, m.ID, m.From,
			m.Origin.Protocol, m.To, pairs.Said(m))
		if m.Error != nil {
			what += fmt.Sprintf(", %v", m.Error)
		}
		if r.Refused != nil {
			what += fmt.Sprintf(", REFUSED: %v", r.Refused)
		}
		if !m.Deadline.IsZero() {
			what += ", deadline " + m.Deadline.Format(clock)
		}
		for _, o := range r.Open {
			what += fmt.Sprintf("; opens the delivery to %s, attempt %d, sync %v", o.To, o.Attempt, o.Sync)
		}
		s.byID[about] = append(s.byID[about], event{r.Time, what})
	}
	for _, step := range r.Steps {
		what := fmt.Sprintf("%s: the delivery of %s to %s is %s, attempt %d", where, step.Message, step.To, step.State,
			step.Attempt)
		if !step.Next.IsZero() {
			what += ", next " + step.Next.Format(clock)
		}
		if step.Error != nil {
			what += fmt.Sprintf(", %v", step.Error)
		}
		s.byID[step.Message] = append(s.byID[step.Message], event{r.Time, what})
	}
}

const clock = "15:04:05.000"

// maxTraces is how many messages get a trace: more would repeat them.
const maxTraces = 12

// of gives all events of the message with a text, in order.
func (s *traces) of(text string) string {
	var ids []parley.ID
	for id, t := range s.called {
		if t == text {
			ids = append(ids, id)
		}
	}
	return s.tell(text, slices.Clone(s.byText[text]), ids)
}

// ofID is of for a message, or an answer to one, with an ID.
func (s *traces) ofID(id parley.ID) string {
	if about, ok := s.answers[id]; ok {
		id = about
	}
	if text := s.called[id]; text != "" {
		return s.of(text)
	}
	return s.tell(id.String(), nil, []parley.ID{id})
}

func (s *traces) tell(name string, list []event, ids []parley.ID) string {
	if s.printed++; s.printed > maxTraces {
		return ""
	}
	for answer, to := range s.answers {
		if slices.Contains(ids, to) {
			ids = append(ids, answer)
		}
	}
	for _, id := range ids {
		list = append(list, s.byID[id]...)
	}
	slices.SortStableFunc(list, func(a, b event) int { return a.at.Compare(b.at) })
	var b strings.Builder
	fmt.Fprintf(&b, "\n  trace of %q:", name)
	for _, e := range list {
		fmt.Fprintf(&b, "\n    %s %s", e.at.UTC().Format(clock), e.what)
	}
	for _, h := range s.hubs {
		for line := range strings.Lines(h.wrote(1 << 20)) {
			if slices.ContainsFunc(ids, func(id parley.ID) bool { return strings.Contains(line, id.String()) }) {
				fmt.Fprintf(&b, "\n    %s wrote: %s", h.name, strings.TrimSpace(line))
			}
		}
	}
	return b.String()
}
