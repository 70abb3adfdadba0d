package admin

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/spelling"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
)

// This file finds what a caller names. Wherever the API takes the id of a message, a dead letter or a conversation, it
// also takes the beginning of the id: at least 8 digits, as many as no other has. Where several ids begin so, or a name
// is unknown, the error says which ids or which name may be meant.

// shownCandidates bounds the ids in an error.
const shownCandidates = 5

// unresolved turns an error of the search for an id into one of the API.
func unresolved(err error, what, id string) error {
	var several *index.AmbiguousError
	switch {
	case errors.Is(err, index.ErrFilter):
		return parley.Refuse(parley.Malformed, "%s", strings.TrimPrefix(err.Error(), index.ErrFilter.Error()+": "))
	case errors.Is(err, index.ErrNotFound):
		return parley.Refuse(notFound, "no %s %.40q in the journal", what, id)
	case errors.As(err, &several):
		var ids []string
		for _, id := range several.IDs[:min(len(several.IDs), shownCandidates)] {
			ids = append(ids, id.String())
		}
		if len(several.IDs) > shownCandidates {
			ids = append(ids, "and more")
		}
		return parley.Refuse(parley.Conflict, "more than one %s begins with %.40q: %s; give more of the id", what, id,
			strings.Join(ids, ", "))
	}
	return err
}

// conversationID gives the conversation that a caller names: by a whole id, recorded or not, or by the beginning of a
// recorded one. "" gives the zero id.
func (a *Admin) conversationID(ctx context.Context, by Actor, s string) (id parley.ID, err error) {
	if id.UnmarshalText([]byte(s)) == nil {
		return id, nil
	}
	x, err := a.fresh(ctx, by)
	if err != nil {
		return id, err
	}
	c, err := x.Conversation(ctx, s)
	return c.ID, unresolved(err, "conversation", s)
}

// messageID is conversationID for messages.
func (a *Admin) messageID(ctx context.Context, by Actor, s string) (id parley.ID, err error) {
	if id.UnmarshalText([]byte(s)) == nil {
		return id, nil
	}
	x, err := a.fresh(ctx, by)
	if err != nil {
		return id, err
	}
	m, err := x.Message(ctx, s)
	return m.ID, unresolved(err, "message", s)
}

// findDead gives the dead letter that a caller names by its id, or the beginning of it, and by the recipient, which may
// be "" if there is only one.
func (a *Admin) findDead(s, to string) (journal.Delivery, error) {
	none := journal.Delivery{}
	low, high, err := index.Range(s)
	if err == nil {
		err = a.resolveNames(&to)
	}
	if err != nil {
		return none, unresolved(err, "dead letter", s)
	}
	if to != "" && low == high {
		if d, ok := a.c.Hub.Journal().Delivery(low, to); ok && d.State == parley.Dead {
			return d, nil
		}
		return none, parley.Refuse(notFound, "message %s is no dead letter to %.140q", low, to)
	}
	found := slices.DeleteFunc(a.c.Hub.Dead(), func(d journal.Delivery) bool {
		return to != "" && d.To != to || bytes.Compare(d.Message[:], low[:]) < 0 ||
			bytes.Compare(d.Message[:], high[:]) > 0
	})
	var ids []parley.ID
	for _, d := range found {
		ids = append(ids, d.Message)
	}
	slices.SortFunc(ids, func(x, y parley.ID) int { return bytes.Compare(x[:], y[:]) })
	switch ids = slices.Compact(ids); {
	case len(ids) == 0:
		return none, parley.Refuse(notFound, "message %.40s is no dead letter", s)
	case len(ids) > 1:
		return none, unresolved(&index.AmbiguousError{IDs: ids}, "dead letter", s)
	case len(found) == 1:
		return found[0], nil
	}
	return none, parley.Refuse(parley.Conflict,
		"message %s is a dead letter to %d recipients, %q among them: name one in to", ids[0], len(found), found[0].To)
}

// unknownAgent refuses a name that the directory does not have, with the name that may be meant: only for callers who
// may list the agents.
func (a *Admin) unknownAgent(by Actor, name string) *parley.Error {
	e := parley.Refuse(parley.UnknownAgent, "no agent %.140q here", name).With(parley.ByPolicy, parley.NoSuchAgent, "")
	if by.may(Observe) == nil {
		var known []string
		for _, entry := range a.c.Hub.Directory().All() {
			known = append(known, entry.Name)
		}
		e.Text += spelling.DidYouMean(name, known)
	}
	return e
}
