package console

import (
	"context"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
)

// This file is the screen Conversation: what happened, and can it be proved?

// historyPage is how many messages a page of a conversation has.
const historyPage = 200

// A ConversationView is what the template gets.
type ConversationView struct {
	Info    admin.ConversationInfo
	Title   string
	View    string // sequence, table, proof or content
	Query   url.Values
	Trace   []admin.ConversationInfo // the conversations of the trace, if it is shown
	More    bool                     // the trace has others
	Before  int                      // messages before this page
	Shown   int                      // messages on this page
	Earlier string                   // address of the page before; "": this is the first
	Later   string
	Failed  int // attempts of this page
	Waiting int
	Lost    int
	Folded  int // events that are folded, or would be

	Sequence *Sequence
	SVG      template.HTML
	Chosen   *Chosen
	Refusal  *admin.Refusal // that is chosen, or alone
	Evidence string         // address of the file; "": the actor may not have it
	Forget   *ForgetQuestion

	now time.Time
}

// IsTrace reports whether the whole trace is shown.
func (v *ConversationView) IsTrace() bool { return v.Query.Get("extent") == "trace" }

// Is reports whether a parameter has a value.
func (v *ConversationView) Is(name, value string) bool { return v.Query.Get(name) == value }

// Link is the address of this page with other values of parameters; "" removes one.
func (v *ConversationView) Link(pairs ...string) string {
	q := url.Values{}
	for k := range v.Query {
		q.Set(k, v.Query.Get(k))
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		if q.Del(pairs[i]); pairs[i+1] != "" {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	return Base + "conversations/" + v.Info.ID.String() + strings.TrimSuffix("?"+q.Encode(), "?")
}

// First and Last are the time of the conversation.
func (v *ConversationView) First() Moment { return Moment{v.Info.First, v.now} }
func (v *ConversationView) Last() Moment  { return Moment{v.Info.Last, v.now} }

// conversationParams are the parameters of the screen; others are dropped from its links.
var conversationParams = []string{"view", "extent", "only", "events", "refusals", "m", "page"}

// conversation is the screen.
func (c *Console) conversation(q *request) (any, error) {
	ctx, id := q.r.Context(), q.r.PathValue("id")
	v := &ConversationView{Query: url.Values{}, now: q.now}
	for _, k := range conversationParams {
		if s := q.r.URL.Query().Get(k); s != "" {
			v.Query.Set(k, s)
		}
	}
	if v.View = v.Query.Get("view"); !slices.Contains([]string{"table", "proof", "content"}, v.View) {
		v.View = "sequence"
		v.Query.Del("view")
	}
	list, err := c.historyOf(ctx, q.by, id, v)
	if err != nil {
		if code := parley.AsError(err).Code; code == "not_found" || code == parley.Malformed {
			return c.named(ctx, q.by, id, v, err)
		}
		return nil, err
	}
	if err := c.fill(ctx, q, v, list); err != nil {
		return nil, err
	}
	return v, c.askForget(q, v)
}

// named finds the page of an id that is not a conversation's: that of the message's conversation, or of the refusal.
func (c *Console) named(ctx context.Context, by admin.Actor, id string, v *ConversationView,
	unknown error) (any, error) {
	if m, err := c.admin.Message(ctx, by, id, false); err == nil && !m.Conversation.IsZero() {
		return nil, &redirect{Base + "conversations/" + m.Conversation.String() + "?m=" + m.ID.String()}
	}
	if r, err := c.admin.Refusal(by, id); err == nil {
		v.Refusal, v.Title = &r, "Refusal "+r.Ref
		return v, nil
	}
	e := *parley.AsError(unknown)
	e.Text = fmt.Sprintf("nothing here has the id or reference %.40q", id)
	e.Detail = "Give the first 8 digits or more of the id of a conversation or a message, or the reference that a " +
		"refused sender " +
		"got. Retention removes messages; the hub keeps the latest refusals, in memory only."
	return nil, &e
}

// historyOf asks admin for the page of messages and fills in what is known of the whole.
func (c *Console) historyOf(ctx context.Context, by admin.Actor, id string,
	v *ConversationView) (list []admin.HistoryEntry, err error) {
	page, m := v.Query.Get("page"), v.Query.Get("m")
	var one admin.Conversation
	if page == "" && m != "" && !v.IsTrace() {
		one, err = c.admin.ConversationAround(ctx, by, id, m, historyPage)
	}
	if one.ID.IsZero() { // the chosen one is a refusal, is of another conversation, or is gone
		one, err = c.admin.Conversation(ctx, by, id, page, historyPage)
	}
	if err != nil {
		return nil, err
	}
	v.Info = one.ConversationInfo
	list, next, before, previous := one.History, one.Next, one.Before, one.Previous
	if v.IsTrace() {
		t, err := c.admin.Trace(ctx, by, one.ID.String(), page, historyPage)
		if err != nil {
			return nil, err
		}
		v.Trace, v.More = t.Conversations, t.More
		list, next, before, previous = t.History, t.Next, t.Before, t.Previous
	}
	v.Before, v.Shown = before, len(list)
	if next != "" {
		v.Later = v.Link("page", next, "m", "")
	}
	if before > 0 {
		v.Earlier = v.Link("page", previous, "m", "")
	}
	return list, nil
}

// fill makes the parts of the page.
func (c *Console) fill(ctx context.Context, q *request, v *ConversationView, list []admin.HistoryEntry) error {
	v.Title = titleOf(v.Info.Agents)
	if q.by.May(admin.Read) {
		v.Evidence = Base + "conversations/" + v.Info.ID.String() + "/evidence"
	}
	h := history{hub: c.hub, now: q.now, start: v.Info.First, first: v.Before == 0, events: v.Is("events", "1"),
		failed: v.Is("only", "failed"), link: func(id string) string { return v.Link("m", id) }}
	if v.IsTrace() && len(v.Trace) > 0 {
		h.start = v.Trace[0].First
	}
	for i := range list {
		e := &list[i]
		h.said = append(h.said, said{Summary: &e.Summary, times: e.Times, attempts: e.Attempts,
			erased: e.Erased, removed: e.Removed, untold: untold(e), lost: len(e.Losses)})
		if x := &h.said[i]; x.untold != "" {
			x.lost = 0
		}
	}
	if err := c.missing(ctx, q.by, v, &h); err != nil {
		return err
	}
	if v.Query.Get("refusals") != "0" {
		refusals, err := c.admin.RefusalsAround(ctx, q.by, v.Info.ID.String())
		if err != nil {
			return err
		}
		h.said = merged(h.said, refusals, v.Before == 0, v.Later == "")
	}
	v.count(h.said)
	if err := c.choose(ctx, q, v, &h); err != nil {
		return err
	}
	if v.View == "sequence" || v.View == "table" {
		v.Sequence = sequenceOf(h)
		if v.View == "sequence" {
			v.SVG = draw(v.Sequence)
		}
		q.live("conversation", v.Query)
		q.stream.Set("id", v.Info.ID.String())
		q.stream.Set("have", v.have())
	}
	return nil
}

// titleOf names a conversation by its agents.
func titleOf(agents []string) string {
	switch n := len(agents); {
	case n == 0:
		return "Conversation"
	case n <= 2:
		return strings.Join(agents, ", ")
	default:
		return agents[0] + ", " + agents[1] + " and " + fmt.Sprint(n-2) + " more"
	}
}

// untold says why an event goes to no recipient; "": it goes to one, or the record does not say.
func untold(e *admin.HistoryEntry) string {
	for _, l := range e.Losses {
		// A protocol without a word for a state, or for pieces of a result, loses the whole event.
		if field, text, _ := strings.Cut(l, ": "); field == "Event.State" || field == "Event.Kind" {
			return text
		}
	}
	return ""
}

// missing describes the gap before the first message that the hub has.
func (c *Console) missing(ctx context.Context, by admin.Actor, v *ConversationView, h *history) error {
	if v.Before > 0 {
		h.gaps = append(h.gaps, plural(v.Before, "earlier message is", "earlier messages are")+" on the pages before")
		return nil
	}
	have, asked := map[parley.ID]bool{}, 0
	for i := range h.said {
		x := &h.said[i]
		if have[x.ID] = true; x.InReplyTo.IsZero() || have[x.InReplyTo] || asked == 3 {
			continue
		}
		have[x.InReplyTo] = true
		asked++
		_, err := c.admin.Message(ctx, by, x.InReplyTo.String(), false)
		if err != nil && parley.AsError(err).Code == "not_found" {
			h.gaps = append(h.gaps, "begins later: request "+short8(x.InReplyTo)+"… was removed")
		} else if err != nil {
			return err
		}
	}
	return nil
}

// merged puts refusals among the messages of a page, by time.
func merged(list []said, refusals []admin.Refusal, first, last bool) []said {
	for i := range refusals {
		r := &refusals[i]
		if len(list) == 0 || !first && r.Time.Before(list[0].at()) || !last && r.Time.After(list[len(list)-1].at()) {
			continue
		}
		list = append(list, said{refusal: r})
	}
	slices.SortStableFunc(list, func(a, b said) int { return a.at().Compare(b.at()) })
	return list
}

// count counts the numbers in the title.
func (v *ConversationView) count(list []said) {
	run := 0
	for i := range list {
		x := &list[i]
		if run++; i == 0 || !list[i-1].folds(x) {
			run = 1
		}
		if run == foldFrom {
			v.Folded += foldFrom
		} else if run > foldFrom {
			v.Folded++
		}
		if x.refusal != nil {
			continue
		}
		for j := range x.Deliveries {
			d := &x.Deliveries[j]
			_, failed := x.tries(d)
			v.Failed += failed
			v.Lost += len(d.Losses)
			if d.State == parley.Waiting {
				v.Waiting++
			}
		}
	}
}

// choose finds the message beside the diagram: the one of the address, else the first that failed, else the first.
func (c *Console) choose(ctx context.Context, q *request, v *ConversationView, h *history) error {
	m := v.Query.Get("m")
	for i := range h.said {
		x := &h.said[i]
		if r := x.refusal; r != nil && m == r.Ref {
			v.Refusal, h.chosen = r, r.Ref
			return nil
		}
	}
	if m == "" {
		for i := range h.said {
			if x := &h.said[i]; x.refusal == nil && (m == "" || x.bad()) {
				if m = x.id(); x.bad() {
					break
				}
			}
		}
	}
	if m == "" {
		return nil
	}
	r, err := c.admin.Message(ctx, q.by, m, true)
	if err != nil && v.Query.Get("m") == "" {
		return err
	}
	if err != nil { // of an address that is old
		v.Query.Del("m")
		return c.choose(ctx, q, v, h)
	}
	h.chosen = r.ID.String()
	v.Chosen, err = c.chosen(ctx, q, &r)
	if err == nil && v.View == "proof" {
		v.Chosen.Signed, err = c.signedBytes(q, h.chosen)
	}
	return err
}

// evidence sends a conversation as the file that proves itself.
func (c *Console) evidence(q *request) {
	ctx := q.r.Context()
	v, err := c.admin.Conversation(ctx, q.by, q.r.PathValue("id"), "", 1)
	if err != nil {
		c.fail(q.w, q.r, q, err, 0)
		return
	}
	w := &attachment{w: q.w, name: "conversation-" + v.ID.String() + ".jsonl"}
	if err := c.admin.Export(ctx, q.by, v.ID.String(), q.r.URL.Query().Get("content") != "false", w); err != nil {
		if !w.begun {
			c.fail(q.w, q.r, q, err, 0)
			return
		}
		// The missing last line shows that the file is incomplete.
		c.log.Warn("an export broke off", "conversation", v.ID, "error", err)
		panic(http.ErrAbortHandler)
	}
}

// attachment is a file that begins with its first byte, so that an error before that is a page.
type attachment struct {
	w     http.ResponseWriter
	name  string
	begun bool
}

func (a *attachment) Write(b []byte) (int, error) {
	if !a.begun {
		a.begun = true
		h := a.w.Header()
		h.Set("Content-Type", "application/jsonl")
		h.Set("Content-Disposition", `attachment; filename="`+a.name+`"`)
	}
	return a.w.Write(b)
}
