package console

import (
	"net/url"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/journal/index"
)

// Conversations is the content of the list.
type Conversations struct {
	Filters Filters
	Rows    []ConversationRow
	Page    Place
	Empty   *Empty
}

// ConversationRow is a conversation in the list.
type ConversationRow struct {
	ID            string // of the element
	Conversation  parley.ID
	When          Moment // of the last message
	Took          time.Duration
	Agents        []string // at most shownAgents
	More          int      // further agents
	Messages      int
	Open, Failed  int
	Say           string
	Hidden, Chose bool
	Link          string
}

// Micro is the time of the last message as a number.
func (r *ConversationRow) Micro() int64 { return r.When.At.UnixMicro() }

// shownAgents is the number of agents that a row names.
const shownAgents = 4

// conversationFilter reads the filter of the list.
func conversationFilter(u url.Values, now time.Time) (f index.ConversationFilter, q url.Values, err error) {
	if q, err = known(u, "agent", "open", "failed", "since", "before", "m"); err != nil {
		return f, q, err
	}
	f = index.ConversationFilter{Agent: q.Get("agent"), Open: q.Get("open") != "", Failed: q.Get("failed") != "",
		Cursor: q.Get("before"), Limit: pageRows}
	if v := q.Get("since"); v != "" {
		if f.Since, err = momentOf(v, now); err != nil {
			return f, q, parley.Refuse(parley.Malformed, "the filter since=%.40q has a wrong value: %s", v, err)
		}
	}
	return f, q, nil
}

// conversations is the list of conversations.
func (c *Console) conversations(q *request) (any, error) {
	f, query, err := conversationFilter(q.r.URL.Query(), q.now)
	if err != nil {
		return nil, err
	}
	page, err := c.admin.Conversations(q.r.Context(), q.by, f)
	if err != nil {
		return nil, err
	}
	out := &Conversations{Filters: c.conversationFilters(q, query)}
	for i := range page.Conversations {
		out.Rows = append(out.Rows, conversationRow(q, &page.Conversations[i], query.Get("m")))
	}
	out.Page = pageOf(query, len(out.Rows), "", page.Next)
	q.live("conversations", query)
	if len(out.Rows) == 0 && f.Cursor == "" {
		out.Empty, err = c.noConversations(q, query)
	}
	return out, err
}

func conversationRow(q *request, v *admin.ConversationInfo, chosen string) ConversationRow {
	n := min(len(v.Agents), shownAgents)
	return ConversationRow{ID: "c-" + v.ID.String(), Conversation: v.ID, When: Moment{v.Last, q.now},
		Took: v.Last.Sub(v.First), Agents: v.Agents[:n], More: len(v.Agents) - n, Messages: v.Messages, Open: v.Open,
		Failed: v.Failed, Say: first(v.Preview, 2*sayRunes), Hidden: !q.by.May(admin.Read),
		Chose: chosen == v.ID.String(), Link: Base + "conversations/" + v.ID.String()}
}

func (c *Console) conversationFilters(q *request, query url.Values) Filters {
	f := Filters{Q: query, Chips: chips(query, "since", "agent")}
	for _, s := range [][2]string{{"", "All"}, {"open", "Open"}, {"failed", "With failures"}} {
		link := with(query, "open", "", "failed", "")
		on := query.Get("open") == "" && query.Get("failed") == ""
		if s[0] != "" {
			link, on = with(query, "open", "", "failed", "", s[0], "1"), query.Get(s[0]) != ""
		}
		f.Show = append(f.Show, Choice{Label: s[1], Name: s[0], Link: link, On: on,
			Key: keyTo(s[0] == "failed", s[0] == "", query.Get("failed") != "")})
	}
	f.Menus = []Menu{agentMenu(query, "agent", "Agent", c.agentNames(q)), menu(query, "since", "Time", spans...)}
	return f
}

// noConversations says which filters hide the conversations.
func (c *Console) noConversations(q *request, query url.Values) (*Empty, error) {
	all, err := c.admin.Conversations(q.r.Context(), q.by, index.ConversationFilter{Limit: 1})
	if err != nil {
		return nil, err
	}
	e := &Empty{New: len(all.Conversations) == 0, All: with(nil)}
	for _, name := range []string{"agent", "open", "failed", "since"} {
		if v := query.Get(name); v != "" && !e.New {
			e.Hiding = append(e.Hiding, Choice{Name: name, Label: filterWords(name, v), Link: with(query, name, "")})
		}
	}
	return e, nil
}

// conversationNews are all messages: each may change its conversation.
func conversationNews(q *request) (admin.TimelineFilter, error) {
	_, _, err := conversationFilter(q.r.URL.Query(), q.now)
	return admin.TimelineFilter{}, err
}

// conversationsSince pushes the conversations with messages since the page was made.
func (c *Console) conversationsSince(q *request, made time.Time, out *pushes) error {
	made = made.Add(-time.Second)
	return c.pushConversations(q, out, func(v *admin.ConversationInfo) bool { return !v.Last.Before(made) })
}

// conversationsNews pushes the conversations of a batch.
func (c *Console) conversationsNews(q *request, b *admin.Batch, out *pushes) error {
	is := map[parley.ID]bool{}
	for _, e := range b.Entries {
		if e.Message != nil {
			is[e.Message.Conversation] = true
		}
	}
	return c.pushConversations(q, out, func(v *admin.ConversationInfo) bool { return is[v.ID] })
}

// pushConversations pushes the newest conversations that are wanted, the oldest first.
func (c *Console) pushConversations(q *request, out *pushes, want func(*admin.ConversationInfo) bool) error {
	f, query, err := conversationFilter(q.r.URL.Query(), q.now)
	if err != nil {
		return err
	}
	f.Cursor = ""
	page, err := c.admin.Conversations(q.r.Context(), q.by, f)
	if err != nil {
		return err
	}
	for i := len(page.Conversations) - 1; i >= 0; i-- {
		v := &page.Conversations[i]
		if !want(v) {
			continue
		}
		r := conversationRow(q, v, query.Get("m"))
		html, err := c.part("conversations", "row", &r)
		if err != nil {
			return err
		}
		out.row(r.ID, html)
	}
	return nil
}
