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

// event is something that happened to what was said.
type event struct {
	at   time.Time
	what string
}

// stories tell what became of each message: what the agents saw of it, and
// what the journal holds about it.
type stories struct {
	byText  map[string][]event
	byID    map[parley.ID][]event
	called  map[parley.ID]string // by which text a message is known
	answers map[parley.ID]parley.ID
	hubs    []*hubNode // what they wrote about it is part of it
	told    int        // of how many it was told
}

func newStories(hubs []*hubNode) *stories {
	return &stories{hubs: hubs, byText: map[string][]event{}, byID: map[parley.ID][]event{},
		called: map[parley.ID]string{}, answers: map[parley.ID]parley.ID{}}
}

// saw notes what an agent said or heard.
func (s *stories) saw(text, what string, arguments ...any) {
	s.byText[text] = append(s.byText[text], event{time.Now(), fmt.Sprintf(what, arguments...)})
}

// recorded notes a record of the journal.
func (s *stories) recorded(r *journal.Record) {
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

// mostTold is of how many messages the story is told: the rest is more of the
// same.
const mostTold = 12

// of tells all that is known of a message by its text, in order.
func (s *stories) of(text string) string {
	var ids []parley.ID
	for id, t := range s.called {
		if t == text {
			ids = append(ids, id)
		}
	}
	return s.tell(text, slices.Clone(s.byText[text]), ids)
}

// ofID is of for a message, or an answer to one, that is known by its ID.
func (s *stories) ofID(id parley.ID) string {
	if about, ok := s.answers[id]; ok {
		id = about
	}
	if text := s.called[id]; text != "" {
		return s.of(text)
	}
	return s.tell(id.String(), nil, []parley.ID{id})
}

func (s *stories) tell(name string, list []event, ids []parley.ID) string {
	if s.told++; s.told > mostTold {
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
	fmt.Fprintf(&b, "\n  the story of %q:", name)
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
