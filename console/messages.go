package console

import (
	"cmp"
	"net/url"

	"golang.org/x/sync/errgroup"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
)

// pageRows is the number of rows of a page.
const pageRows = 100

// Messages is the content of the screen.
type Messages struct {
	Filters Filters
	Rows    []Row
	Page    Place
	Empty   *Empty
	Since   Moment       // from which refusals are in memory
	Chosen  *Explanation // of a refusal that is on another page
}

// messages is the screen Messages.
func (c *Console) messages(q *request) (any, error) {
	f, query, err := timelineFilter(q.r.URL.Query(), q.now)
	if err != nil {
		return nil, err
	}
	var page admin.TimelinePage
	var counts admin.Counts
	both, ctx := errgroup.WithContext(q.r.Context())
	both.Go(func() (err error) {
		page, err = c.admin.Timeline(ctx, q.by, f)
		return err
	})
	both.Go(func() (err error) {
		counts, err = c.admin.Counts(ctx, q.by, f)
		return err
	})
	if err := both.Wait(); err != nil {
		return nil, err
	}
	out := &Messages{Since: Moment{page.RefusalsSince, q.now}}
	l := c.list(q, &f, query)
	for i := range page.Entries {
		out.Rows = append(out.Rows, l.row(&page.Entries[i]))
	}
	out.Filters = c.messageFilters(q, query, &counts)
	out.Filters.NoWords = page.NoWords
	out.Page = pageOf(query, len(out.Rows), countWords(*shownCount(&counts, f.Show)), page.Older)
	q.live("messages", query)
	if len(out.Rows) == 0 && f.Before == "" {
		out.Empty, err = c.nothing(q, f, query)
	}
	out.Chosen = c.chosenRefusal(q, l.chosen, out.Rows)
	return out, err
}

func (c *Console) list(q *request, f *admin.TimelineFilter, query url.Values) *list {
	return &list{now: q.now, slow: cmp.Or(f.Slow, admin.DefaultSlow), chosen: query.Get("m"), query: query,
		read: q.by.May(admin.Read)}
}

// chosenRefusal explains the chosen refusal, unless its row is on the page.
func (c *Console) chosenRefusal(q *request, ref string, rows []Row) *Explanation {
	if ref == "" {
		return nil
	}
	for i := range rows {
		if rows[i].Selected {
			return nil
		}
	}
	if _, err := parley.ParseID(ref); err == nil {
		return nil // a message, on another page
	}
	f, err := c.admin.Refusal(q.by, ref)
	if err != nil {
		return nil // it is no longer kept
	}
	return explanation(&f, q.now)
}

var searchMessages = Search{Name: "text", Label: "Search content, names, ids", Hint: "Search content, names, ids, refs"}

// messageFilters are those above Messages.
func (c *Console) messageFilters(q *request, query url.Values, n *admin.Counts) Filters {
	f := Filters{Search: &searchMessages, Text: query.Get("text"), Q: query, Show: showChoices(query, n)}
	f.Chips = chips(query, "since", "until", "agent", "from", "to", "protocol", "via", "proof", "kind", "state", "slow",
		"trace")
	f.Menus = []Menu{agentMenu(query, "agent", "Agent", c.agentNames(q)),
		menu(query, "protocol", "Protocol", protocolChoices()...), menu(query, "proof", "Proof", proofChoices...),
		menu(query, "kind", "Kind", kindChoices()...), menu(query, "since", "Time", spans...)}
	return f
}

// agentNames are suggestions where a name is written.
func (c *Console) agentNames(q *request) []string {
	names, err := c.admin.AgentNames(q.by, 100)
	if err != nil {
		return nil // a name can be written without them
	}
	return names
}

func shownCount(n *admin.Counts, s admin.Show) *admin.Count {
	switch s {
	case admin.ShowFailed:
		return &n.Failed
	case admin.ShowRefused:
		return &n.Refused
	case admin.ShowWaiting:
		return &n.Waiting
	case admin.ShowSlow:
		return &n.Slow
	}
	return &n.All
}

// Place is the place of a page in its list.
type Place struct {
	Shown  int
	Total  string // "10,000+"
	Older  string // address of the next page; ""
	Newest string // address of the first page; ""

	Next, First string // the same of a list that has the oldest first
}

func pageOf(q url.Values, n int, total, older string) Place {
	p := Place{Shown: n, Total: total}
	if older != "" {
		p.Older = with(q, "before", older)
	}
	if q.Get("before") != "" {
		p.Newest = with(q)
	}
	return p
}

// Empty is what a list says that has no rows.
type Empty struct {
	New    bool   // nothing was ever recorded
	Total  string // of all entries
	Hiding []Choice
	All    string // address of the list without filters
}

// nothing says which filters hide the messages.
func (c *Console) nothing(q *request, f admin.TimelineFilter, query url.Values) (*Empty, error) {
	all, err := c.admin.Counts(q.r.Context(), q.by, admin.TimelineFilter{})
	if err != nil {
		return nil, err
	}
	e := &Empty{New: all.All.Number == 0, Total: countWords(all.All), All: with(nil)}
	if e.New {
		return e, nil
	}
	hiding, err := c.admin.Hidden(q.r.Context(), q.by, f)
	if err != nil {
		return nil, err
	}
	for _, h := range hiding {
		if v := query.Get(h.Member); v != "" {
			e.Hiding = append(e.Hiding, Choice{Name: h.Member, Label: filterWords(h.Member, v),
				Count: countWords(h.Without), Link: with(query, h.Member, "")})
		}
	}
	return e, nil
}
