package console

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
)

// This file keeps Agents, Undelivered and a conversation up to date. The first two are looked at every two seconds:
// most of what they show changes without a message.

// A liveRow is an element of a page that is pushed when its key changes. The key has no ages: the page counts them on.
type liveRow struct {
	id, key, name string // name of the template
	data          any
	part          bool // no row of a table: in a push these come after all of those, or the browser would drop them
}

// shownRows are the keys of the rows that a page has, by id.
type shownRows map[string]string

// shownMost bounds the rows that a stream knows of.
const shownMost = 1000

// digest is of all rows. A page's stream says with it which rows the page has.
func digest(rows []liveRow) string {
	h := fnv.New64a()
	for i := range rows {
		fmt.Fprintf(h, "%s %s\n", rows[i].id, rows[i].key)
	}
	return strconv.FormatUint(h.Sum64(), 36)
}

// pushRows pushes the rows that are new or differ from those of the page.
func (c *Console) pushRows(q *request, page string, rows []liveRow, out *pushes) error {
	if q.shown == nil {
		q.shown = shownRows{}
		if digest(rows) == q.r.URL.Query().Get("have") {
			for i := range rows {
				q.shown[rows[i].id] = rows[i].key
			}
		}
	}
	for i := range rows {
		r := &rows[i]
		if key, ok := q.shown[r.id]; ok && key == r.key || !ok && len(q.shown) >= shownMost {
			continue
		}
		html, err := c.part(page, r.name, r.data)
		if err != nil {
			return err
		}
		if q.shown[r.id] = r.key; r.part {
			out.element(r.id, html)
		} else {
			out.row(r.id, html)
		}
	}
	return nil
}

// pushParts pushes parts of a page that are there once: pairs of a template's name and its data.
func (c *Console) pushParts(page string, out *pushes, parts ...any) error {
	for i := 0; i+1 < len(parts); i += 2 {
		name := parts[i].(string)
		html, err := c.part(page, name, parts[i+1])
		if err != nil {
			return err
		}
		out.element(name, html)
	}
	return nil
}

func (a *Agents) liveRows() (out []liveRow) {
	for i := range a.Rows {
		out = append(out, a.Rows[i].live())
	}
	return out
}

func (r *AgentRow) live() liveRow {
	key := *r
	key.Heard.Now, key.Oldest.Now, key.Start.Now = time.Time{}, time.Time{}, time.Time{}
	return liveRow{r.ID, fmt.Sprintf("%+v", key), "row", r, false}
}

// agentsSince pushes the changes of the list and of the chosen agent since the page was made.
func (c *Console) agentsSince(q *request, _ time.Time, out *pushes) error {
	return c.agentsTick(q, out)
}

// agentsTick pushes the changes of the list and of the chosen agent. The bar counts rows that are new on this page.
func (c *Console) agentsTick(q *request, out *pushes) error {
	data, err := c.agents(q)
	if err != nil {
		return unlessGone(err) // the chosen one may have been removed
	}
	v := data.(*Agents)
	rows := v.liveRows()
	here := map[string]bool{}
	for i := range rows {
		here[rows[i].id] = true
	}
	for id := range q.shown { // they may have moved to another page of the list
		if name := strings.TrimPrefix(id, "a-"); !here[id] {
			a, err := c.admin.Agent(q.r.Context(), q.by, name, 0)
			if err != nil {
				delete(q.shown, id) // removed
				continue
			}
			u := q.r.URL.Query()
			_, query, err := agentFilter(u)
			if err != nil {
				return err
			}
			r := agentRow(&a, q.now, u.Get("m"), query)
			rows = append(rows, r.live())
		}
	}
	if err := c.pushRows(q, "agents", rows, out); err != nil {
		return err
	}
	parts := []any{"about", v.Heading, "show", v.Filters.Show}
	if d := v.Detail; d != nil {
		parts = append(parts, "trouble", d, "backlog", d, "bindings", d)
	}
	return c.pushParts("agents", out, parts...)
}

// ID is the id of the group's element.
func (g Cause) ID() string {
	sum := sha256.Sum256([]byte(strings.Join([]string{string(g.Tab), g.To, string(g.Problem.Code),
		string(g.Problem.Reason)}, "\x00")))
	return "g-" + hex.EncodeToString(sum[:6])
}

// liveRows are the rows of groups, and of each group the parts that change.
func (u *Undelivered) liveRows() (out []liveRow) {
	for i := range u.Groups {
		g := &u.Groups[i]
		out = append(out, liveRow{g.ID() + "-n", fmt.Sprint(g.Number), "number", g, true},
			liveRow{g.ID() + "-when", fmt.Sprint(g.Number == 1, g.First.At, g.Last.At), "when", g, true})
		for j := range g.Rows {
			r := &g.Rows[j]
			out = append(out, liveRow{r.ID, fmt.Sprint(r.Tries, r.Code, r.Answer, r.When.At, r.Next.At, r.Selected,
				len(r.Attempts)), "row", r, false})
		}
	}
	return out
}

// undeliveredSince pushes the changes of the groups since the page was made.
func (c *Console) undeliveredSince(q *request, made time.Time, out *pushes) error {
	return c.pushUndelivered(q, made, out)
}

// undeliveredTick pushes the changes of the groups.
func (c *Console) undeliveredTick(q *request, out *pushes) error {
	return c.pushUndelivered(q, time.Time{}, out)
}

// pushUndelivered pushes the changes of the groups. A group that is not on the page is only counted in its bar: one
// that the stream does not know, or that began after the page was made.
func (c *Console) pushUndelivered(q *request, made time.Time, out *pushes) error {
	f, query, err := undeliveredFilter(q.r.URL.Query(), q.now)
	if err != nil {
		return err
	}
	v, err := c.undeliveredPage(q, f, query)
	if err != nil {
		return err
	}
	var rows []liveRow
	for _, r := range v.liveRows() {
		id, isNumber := strings.CutSuffix(r.id, "-n")
		_, known := q.shown[r.id]
		if isNumber && !known && (made.IsZero() || r.data.(*Cause).First.At.After(made)) {
			out.element(id+"-new", fmt.Appendf(nil, `<i id="%s-new" data-row="%[1]s"></i>`, id))
		}
		rows = append(rows, r)
	}
	if err := c.pushRows(q, "undelivered", rows, out); err != nil {
		return err
	}
	return c.pushParts("undelivered", out, "about", v.About, "show", v.Filters.Show)
}

// oneConversation is the filter of the page of a conversation.
func oneConversation(q *request) (f admin.TimelineFilter, err error) {
	f.Conversation, err = parley.ParseID(q.r.URL.Query().Get("id"))
	return f, err
}

// have is what a page has of a conversation; "": that is not known.
func (v *ConversationView) have() string {
	if v.View != "sequence" {
		return ""
	}
	return digest([]liveRow{{id: "picture", key: string(v.SVG)}})
}

// conversationSince pushes the conversation, unless the page has it so.
func (c *Console) conversationSince(q *request, _ time.Time, out *pushes) error {
	return c.pushConversation(q, q.r.URL.Query().Get("have"), out)
}

// conversationNews pushes the parts of the conversation that changed.
func (c *Console) conversationNews(q *request, _ *admin.Batch, out *pushes) error {
	return c.pushConversation(q, "", out)
}

func (c *Console) pushConversation(q *request, have string, out *pushes) error {
	q.r.SetPathValue("id", q.r.URL.Query().Get("id"))
	data, err := c.conversation(q)
	if err != nil {
		return unlessGone(err) // it may have been forgotten
	}
	v, ok := data.(*ConversationView)
	if !ok || v.Sequence == nil || have != "" && have == v.have() {
		return nil
	}
	parts := []any{"signs", v, "log", v}
	if v.View == "sequence" {
		parts = append(parts, "picture", v)
	}
	if v.Chosen != nil {
		parts = append(parts, "side", v.Chosen)
	}
	return c.pushParts("conversation", out, parts...)
}
