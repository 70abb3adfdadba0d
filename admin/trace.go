package admin

import (
	"context"
	"slices"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal/index"
)

// A Trace is the conversations that share a trace with one, with a page of their messages, the oldest
// first: one activity of an agent that asks others is several conversations.
type Trace struct {
	Conversation  parley.ID          `json:"conversation"`
	Conversations []ConversationInfo `json:"conversations"` // in the order of their first messages; at most 100
	More          bool               `json:"more,omitzero"` // there are other conversations, or may be
	History       []HistoryEntry     `json:"history"`
	Next          string             `json:"next,omitzero"`
	Before        int                `json:"before,omitzero"`   // messages before this page
	Previous      string             `json:"previous,omitzero"` // cursor of the page before; "" is that of the first page
}

// Trace gives the trace of a conversation, found by its id or at least the first 8 digits of it, with the page
// of messages behind cursor.
func (a *Admin) Trace(ctx context.Context, by Actor, id, cursor string, limit int) (Trace, error) {
	x, c, err := a.conversation(ctx, by, id)
	if err != nil {
		return Trace{}, err
	}
	t, err := x.Trace(ctx, c.ID, cursor, limit)
	if err != nil {
		return Trace{}, unresolved(err, "conversation", id)
	}
	history, err := a.history(ctx, by, t.Messages)
	if err != nil {
		return Trace{}, err
	}
	return Trace{c.ID, viewAll(by, t.Conversations, viewConversation), t.More, history, t.Next, t.Before, t.Previous}, nil
}

// conversation finds a conversation by its id, or the beginning of it.
func (a *Admin) conversation(ctx context.Context, by Actor, id string) (*index.Index, index.Conversation, error) {
	x, err := a.fresh(ctx, by)
	if err != nil {
		return nil, index.Conversation{}, err
	}
	c, err := x.Conversation(ctx, id)
	return x, c, unresolved(err, "conversation", id)
}

// viewHistory gives a conversation with a page of its messages.
func (a *Admin) viewHistory(ctx context.Context, by Actor, c index.Conversation,
	page index.Page) (Conversation, error) {
	history, err := a.history(ctx, by, page.Messages)
	if err != nil {
		return Conversation{}, err
	}
	return Conversation{viewConversation(by, c), history, page.Next, page.Before, page.Previous}, nil
}

// ConversationAround is [Admin.Conversation] with the page that has a message, which is named by its id, or by at
// least the first 8 digits of it. The pages begin with the conversation.
func (a *Admin) ConversationAround(ctx context.Context, by Actor, id, message string, limit int) (Conversation, error) {
	x, c, err := a.conversation(ctx, by, id)
	if err != nil {
		return Conversation{}, err
	}
	m, err := a.messageID(ctx, by, message)
	if err != nil {
		return Conversation{}, err
	}
	page, err := x.HistoryAround(ctx, c.ID, m, limit)
	if err != nil {
		return Conversation{}, unresolved(err, "message of this conversation", message)
	}
	return a.viewHistory(ctx, by, c, page)
}

const (
	aroundConversation = time.Minute // before its first and after its last message
	maxAround          = 100
)

// RefusalsAround lists the refusals, at most the 100 newest, that claim a name of a conversation's agents within
// its time: from a minute before its first message to a minute after its last, or to now while a delivery is
// open. They were not recorded, and may not belong to it.
func (a *Admin) RefusalsAround(ctx context.Context, by Actor, id string) ([]Refusal, error) {
	_, c, err := a.conversation(ctx, by, id)
	if err != nil {
		return nil, err
	}
	out := []Refusal{}
	for _, r := range a.c.Hub.Refused(0) {
		if r.Message.IsZero() && a.around(&c, &r) && len(out) < maxAround {
			out = append(out, a.viewRefusal(by, r))
		}
	}
	return out, nil
}

func (a *Admin) around(c *index.Conversation, r *hub.Refusal) bool {
	if r.Time.Before(c.First.Add(-aroundConversation)) ||
		c.Open == 0 && r.Time.After(c.Last.Add(aroundConversation)) {
		return false
	}
	return slices.ContainsFunc(c.Agents, func(name string) bool { return a.claims(r, name) })
}
