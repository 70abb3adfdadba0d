package console

import (
	"cmp"
	"net/url"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
)

// This file is the screen Undelivered: messages that were not delivered, by cause. The actions of operators are in
// undelivered_actions.go.

// undeliveredPath is the path of the screen.
const undeliveredPath = Base + "undelivered"

const (
	shownDead      = 100              // rows of the flat list
	shownCauses    = 33               // groups; each has three rows at most
	shownRecovered = 10               // recovered groups below the dead letters
	recent         = 10 * time.Minute // a cause that struck within it is hardly mended
	idDigits       = 8                // of an id, at least
)

// Undelivered is the content of the screen.
type Undelivered struct {
	Tab       admin.Show
	Filters   Filters
	About     string
	AsOf      Moment // zero: the numbers are of now
	List      bool   // a flat list in place of groups
	Groups    []Cause
	Recovered []Cause // below the dead letters
	More      bool    // there are more groups
	Rows      []DeadRow
	Page      Place
	Chosen    *DeadRow // that none of the groups shows
	Toggle    string   // address of the list, or of the groups
	Jobs      []JobRow
	Ask       *Ask
	Done      string   // effect of the last action
	Failed    []string // its failures
	Empty     *Empty
	Others    string // numbers of the other tabs, if nothing is dead
}

// Noun is what a tab has.
func (u *Undelivered) Noun() string {
	if u.Tab == admin.ShowDead {
		return "dead letter"
	}
	return "message"
}

// A Cause is a group: deliveries to one recipient that failed for one reason.
type Cause struct {
	admin.UndeliveredGroup
	Tab         admin.Show
	First, Last Moment
	Between     time.Duration
	Rows        []DeadRow
	Retry, Drop string // addresses of the dialogs; ""
	Label       string // number in the buttons; "" for one, and if they mean more than the filter chooses
	Key         bool   // the key r leads to Retry
	Rest        int    // messages that it does not show
	All         string // address of all its messages
	Now         string // state of the recipient
}

// A DeadRow is one delivery.
type DeadRow struct {
	ID       string // of the element
	Message  parley.ID
	When     Moment
	From, To string
	Proof    Proof // "" where it is not known
	Kind     string
	What     string
	Say      string
	Hidden   bool
	Tries    int
	Code     string
	Answer   string // the last
	Class    string // of it
	Next     Moment
	Link     string
	Conv     string // its place in the conversation; "" if that is not known
	Selected bool
	Attempts []TryRow // of the chosen one
	Omitted  int      // attempts after the first ten
}

// A TryRow is one attempt.
type TryRow struct {
	Number      int
	At          Moment
	Address     string
	Text, Class string
	Took        string
	Then        string
	Given       bool // given up
	Answer      string
}

// undeliveredParams are the parameters that hide rows, in the order of their chips.
var undeliveredParams = []string{"text", "to", "from", "code", "reason", "since"}

// undeliveredFilter reads the filter of the screen.
func undeliveredFilter(u url.Values, now time.Time) (f admin.UndeliveredFilter, q url.Values, err error) {
	if q, err = known(u, append([]string{"show", "view", "m", "cursor"}, undeliveredParams...)...); err != nil {
		return f, q, err
	}
	f = admin.UndeliveredFilter{Show: admin.Show(q.Get("show")), Text: q.Get("text"), To: q.Get("to"), From: q.Get("from"),
		Code: parley.Code(q.Get("code")), Reason: parley.Reason(q.Get("reason")), Limit: shownCauses}
	if v := q.Get("since"); v != "" {
		if f.Since, err = momentOf(v, now); err != nil {
			return f, q, parley.Refuse(parley.Malformed, "the filter since=%.40q has a wrong value: %s", v, err)
		}
	}
	return f, q, nil
}

// undelivered is the screen.
func (c *Console) undelivered(q *request) (any, error) {
	u := q.r.URL.Query()
	f, query, err := undeliveredFilter(u, q.now)
	if err != nil {
		return nil, err
	}
	// Without scripts a dialog is open if the address ends with its name.
	for _, action := range []string{"retry", "drop"} {
		if u.Get(action) != "" {
			u.Del(action)
			u.Set("ask", action)
			return nil, &redirect{undeliveredPath + "?" + u.Encode() + "#" + action}
		}
	}
	out, err := c.undeliveredPage(q, f, query)
	if err != nil {
		return nil, err
	}
	out.Done = doneWords(u)
	if action := u.Get("ask"); action == "retry" || action == "drop" {
		out.Ask, err = c.askBulk(q, action == "retry", u)
	}
	return out, err
}

// undeliveredPage is the page without a dialog.
func (c *Console) undeliveredPage(q *request, f admin.UndeliveredFilter, query url.Values) (*Undelivered, error) {
	all, err := c.admin.Undelivered(q.r.Context(), q.by, f)
	if err != nil {
		return nil, err
	}
	out := &Undelivered{Tab: all.Show, About: aboutUndelivered(&all), AsOf: Moment{all.AsOf, q.now}, More: all.More}
	out.Filters = c.undeliveredFilters(q, query, &all)
	out.List = query.Get("view") == "list" && out.Tab == admin.ShowDead
	l := &deadRows{c: c, q: q, query: query, tab: out.Tab, f: f}
	l.chosen, l.chosenTo, _ = strings.Cut(query.Get("m"), "/")
	if out.List {
		err = l.list(out)
	} else {
		err = l.groups(out, &all)
	}
	if err != nil {
		return nil, err
	}
	if out.Chosen, err = l.elsewhere(); err != nil {
		return nil, err
	}
	if out.Jobs, err = c.jobRows(q); err != nil {
		return nil, err
	}
	if len(out.Groups) == 0 && len(out.Rows) == 0 {
		err = c.noneUndelivered(q, out, f, query, &all.Counts)
	}
	q.live("undelivered", query)
	q.stream.Set("have", digest(out.liveRows()))
	return out, err
}

// aboutUndelivered says what a tab has.
func aboutUndelivered(u *admin.Undelivered) string {
	switch n := u.Counts; {
	case u.Show == admin.ShowWaiting && n.Waiting.Number > 0:
		return "These wait for their next attempt, or for their recipient."
	case u.Show == admin.ShowRecovered && n.Recovered.Number > 0:
		return "These reached their recipient within the last day, after failures."
	case u.Show == admin.ShowDropped && n.Dropped.Number > 0:
		return "An operator dropped these within the last day. Their content stays in the record."
	case u.Show != admin.ShowDead || n.Dead.Number == 0:
		return ""
	case n.Dead.Number == 1:
		return "1 dead letter. Mend its cause, then retry it."
	case len(u.Groups) == 1 && !u.More:
		return countWords(n.Dead) + " dead letters have 1 cause. Mend it, then retry the group."
	default:
		causes := grouped(int64(len(u.Groups)))
		if u.More {
			causes += "+"
		}
		return countWords(n.Dead) + " dead letters have " + causes + " causes. Mend the cause, then retry the group."
	}
}

// undeliveredTabs are the tabs in their order.
var undeliveredTabs = []struct {
	show  admin.Show
	label string
	count func(*admin.UndeliveredCounts) admin.Count
}{
	{admin.ShowDead, "Dead", func(n *admin.UndeliveredCounts) admin.Count { return n.Dead }},
	{admin.ShowWaiting, "Waiting", func(n *admin.UndeliveredCounts) admin.Count { return n.Waiting }},
	{admin.ShowRecovered, "Recovered today", func(n *admin.UndeliveredCounts) admin.Count { return n.Recovered }},
	{admin.ShowDropped, "Dropped", func(n *admin.UndeliveredCounts) admin.Count { return n.Dropped }},
}

func (c *Console) undeliveredFilters(q *request, query url.Values, u *admin.Undelivered) Filters {
	f := Filters{Text: query.Get("text"), Q: query, Chips: chips(query, undeliveredParams[1:]...)}
	if q.by.May(admin.Read) {
		f.Search = &Search{Name: "text", Label: "Search recipients, senders, texts of errors",
			Hint: "Recipient, sender, text of the error"}
	}
	for _, t := range undeliveredTabs {
		v := Choice{Label: t.label, Name: string(t.show), Link: with(query, "show", string(t.show), "view", ""),
			Count: countWords(t.count(&u.Counts)), On: t.show == u.Show}
		if t.show == admin.ShowDead {
			v.Link = with(query, "show", "")
		}
		f.Show = append(f.Show, v)
	}
	agents := c.agentNames(q)
	var codes []string
	seen := map[parley.Code]bool{"": true}
	for i := range u.Groups {
		if code := u.Groups[i].Problem.Code; !seen[code] {
			seen[code], codes = true, append(codes, string(code))
		}
	}
	f.Menus = []Menu{agentMenu(query, "to", "To", agents), agentMenu(query, "from", "From", agents),
		agentMenu(query, "code", "Code", codes), menu(query, "since", "Time", spans...)}
	return f
}

// deadRows makes the rows of a page.
type deadRows struct {
	c                *Console
	q                *request
	query            url.Values
	tab              admin.Show
	f                admin.UndeliveredFilter
	chosen, chosenTo string // id of the chosen message or its beginning; its recipient, or "" for the first row
	found            bool   // the chosen one has its row
}

// groups makes the groups of a page.
func (l *deadRows) groups(out *Undelivered, all *admin.Undelivered) error {
	out.Toggle = with(l.query, "view", "list")
	key := -1
	for i := range all.Groups {
		g, err := l.group(&all.Groups[i], l.tab)
		if err != nil {
			return err
		}
		for j := range g.Rows {
			if g.Rows[j].Selected {
				key = i
			}
		}
		out.Groups = append(out.Groups, g)
	}
	if len(out.Groups) > 0 {
		out.Groups[max(key, 0)].Key = true
	}
	if l.tab != admin.ShowDead || all.Counts.Recovered.Number == 0 {
		return nil
	}
	f := l.f
	f.Show, f.Limit = admin.ShowRecovered, shownRecovered
	recovered, err := l.c.admin.Undelivered(l.q.r.Context(), l.q.by, f)
	if err != nil {
		return err
	}
	for i := range recovered.Groups {
		g, err := l.group(&recovered.Groups[i], admin.ShowRecovered)
		if err != nil {
			return err
		}
		g.Rows = nil
		out.Recovered = append(out.Recovered, g)
	}
	return nil
}

func (l *deadRows) group(g *admin.UndeliveredGroup, tab admin.Show) (Cause, error) {
	v := Cause{UndeliveredGroup: *g, Tab: tab, First: Moment{g.First, l.q.now}, Last: Moment{g.Last, l.q.now},
		Between: g.Last.Sub(g.First), Rest: g.Number - len(g.Newest), Now: recipientWords(g.Recipient)}
	for i := range g.Newest {
		m := &g.Newest[i]
		r := l.row(&m.DeadLetter, tab)
		r.Proof, r.What, r.Say = proofOf(m.Assurance), cmp.Or(m.Skill, m.Act), first(m.Preview, sayRunes)
		r.Hidden = !l.q.by.May(admin.Read)
		if !m.Next.IsZero() {
			r.Next = Moment{m.Next, l.q.now}
		}
		if err := l.attempts(&r); err != nil {
			return v, err
		}
		v.Rows = append(v.Rows, r)
	}
	of := l.of(g)
	switch tab {
	case admin.ShowDead:
		v.Retry, v.Drop = "?retry=1&"+of.Encode(), "?drop=1&"+of.Encode()
		if l.f.Text == "" && g.Number > 1 { // actions have no filter by text: they would mean more
			v.Label = grouped(int64(g.Number))
		}
		v.All = with(of, "view", "list")
	case admin.ShowWaiting:
		v.All = Base + with(url.Values{"to": {g.To}}, "show", "waiting")
	case admin.ShowRecovered:
		v.All = Base + with(url.Values{"to": {g.To}}, "since", g.First.UTC().Format(time.RFC3339))
	default:
		v.All = Base + with(url.Values{"to": {g.To}}, "state", parley.Dropped.String())
	}
	return v, nil
}

// of are the parameters that choose a group, as far as actions know them.
func (l *deadRows) of(g *admin.UndeliveredGroup) url.Values {
	out := url.Values{"to": {g.To}}
	for name, v := range map[string]string{"code": string(g.Problem.Code),
		"reason": string(cmp.Or(g.Problem.Reason, admin.NoReason)), "from": l.f.From} {
		if v != "" {
			out.Set(name, v)
		}
	}
	if !l.f.Since.IsZero() {
		out.Set("since", l.f.Since.UTC().Format(time.RFC3339Nano))
	}
	return out
}

// recipientWords describes the state of a recipient that messages do not reach.
func recipientWords(s *admin.AgentState) string {
	if s == nil {
		return ""
	}
	out := cmp.Or(agentSigns[s.State].Word, string(s.State))
	if s.PausedBy != "" {
		out += " by " + s.PausedBy
	}
	if s.PausedWhy != "" {
		out += ": " + s.PausedWhy
	}
	return out
}

// row makes the row of a delivery.
func (l *deadRows) row(d *admin.DeadLetter, tab admin.Show) DeadRow {
	id := d.Message.String()
	r := DeadRow{ID: "d-" + id + "-" + url.PathEscape(d.To), Message: d.Message, When: Moment{d.Changed, l.q.now},
		From: d.From, To: d.To, Kind: d.Kind.String(), Tries: d.Tries, Code: string(d.Reason.Code),
		Answer: first(cmp.Or(d.Reason.Detail, d.Reason.Text, string(d.Reason.Reason), string(d.Reason.Code)), 200)}
	if !d.Conversation.IsZero() {
		r.Conv = Base + "conversations/" + d.Conversation.String() + "?m=" + id
	}
	if r.Link, r.Class = r.Conv, "sub"; tab == admin.ShowDead {
		r.Class = "bad"
		r.Link = with(l.query, "cursor", l.query.Get("cursor"), "m", id+"/"+d.To)
		r.Selected = !l.found && len(l.chosen) >= idDigits && strings.HasPrefix(id, l.chosen) &&
			(l.chosenTo == "" || l.chosenTo == d.To)
		l.found = l.found || r.Selected
	}
	return r
}

// attempts adds those of the chosen message.
func (l *deadRows) attempts(r *DeadRow) error {
	if !r.Selected {
		return nil
	}
	d, err := l.c.admin.DeadLetter(l.q.r.Context(), l.q.by, r.Message.String(), r.To)
	if err != nil {
		return unlessGone(err) // it may have been retried or dropped just now
	}
	r.tried(&d, l.q.now)
	return nil
}

// unlessGone is the error of a search for a dead letter; nil if there is none, or more than one.
func unlessGone(err error) error {
	if admin.StatusOf(parley.AsError(err)) < 500 {
		return nil
	}
	return err
}

// tried fills the table of attempts.
func (r *DeadRow) tried(d *admin.DeadLetter, now time.Time) {
	r.Omitted = d.Omitted
	for i := range d.History {
		a := &d.History[i]
		t := TryRow{Number: a.Number, At: Moment{a.Begun, now}, Address: a.Address, Text: a.Status, Class: "bad",
			Took: took(cmp.Or(time.Duration(a.Took), a.Ended.Sub(a.Begun))), Answer: a.Answer}
		if e := a.Error; e != nil {
			t.Text = cmp.Or(t.Text, e.Detail, e.Text, string(e.Reason), string(e.Code))
		}
		pause := ""
		if a.Next.After(a.Ended) {
			pause = ago(a.Next.Sub(a.Ended))
		}
		switch {
		case a.State == parley.Dead:
			t.Then, t.Given = "given up", true
		case a.Postponed:
			t.Class, t.Text, t.Then = "waiting", cmp.Or(t.Text, "later")+" · does not count", "postponed "+pause
		case a.State == parley.Waiting && pause != "":
			t.Then = "paused " + pause
		case a.State == parley.Delivering && i+1 < len(d.History):
			t.Class, t.Text, t.Took = "waiting", "the hub stopped during it", ""
		case a.State == parley.Delivering:
			t.Class, t.Text, t.Took = "waiting", "in flight", ""
		}
		t.Text = cmp.Or(t.Text, a.State.String())
		r.Attempts = append(r.Attempts, t)
	}
}

// list makes the flat list of dead letters.
func (l *deadRows) list(out *Undelivered) error {
	out.Toggle = with(l.query, "view", "")
	f := admin.DeadFilter{To: l.f.To, From: l.f.From, Code: l.f.Code, Reason: l.f.Reason, Since: l.f.Since,
		Cursor: l.query.Get("cursor")}
	if l.f.Text == "" {
		f.Limit = shownDead + 1
	}
	all, err := l.c.admin.Dead(l.q.by, f)
	if err != nil {
		return err
	}
	if f.Cursor != "" {
		out.Page.First = with(l.query)
	}
	text, cursor := strings.ToLower(l.f.Text), ""
	for i := range all {
		d := &all[i]
		if !strings.Contains(strings.ToLower(strings.Join([]string{d.To, d.From, d.Reason.Text, d.Reason.Detail}, "\n")),
			text) {
			continue
		}
		if len(out.Rows) == shownDead {
			out.Page.Next = with(l.query, "cursor", cursor)
			break
		}
		cursor = d.Cursor
		r := l.row(d, admin.ShowDead)
		if err := l.attempts(&r); err != nil {
			return err
		}
		out.Rows = append(out.Rows, r)
	}
	out.Page.Shown = len(out.Rows)
	for _, t := range out.Filters.Show {
		if t.On {
			out.Page.Total = t.Count
		}
	}
	return nil
}

// elsewhere gives the chosen message if no row of the page has it.
func (l *deadRows) elsewhere() (*DeadRow, error) {
	if l.found || l.chosen == "" || l.tab != admin.ShowDead {
		return nil, nil
	}
	d, err := l.c.admin.DeadLetter(l.q.r.Context(), l.q.by, l.chosen, l.chosenTo)
	if err != nil {
		return nil, unlessGone(err)
	}
	r := l.row(&d, admin.ShowDead)
	r.tried(&d, l.q.now)
	return &r, nil
}

// noneUndelivered says why a tab is empty: it names the filters that hide its rows.
func (c *Console) noneUndelivered(q *request, out *Undelivered, f admin.UndeliveredFilter, query url.Values,
	n *admin.UndeliveredCounts) error {
	count := func(f admin.UndeliveredFilter) (string, bool, error) {
		u, err := c.admin.Undelivered(q.r.Context(), q.by, f)
		for _, t := range undeliveredTabs {
			if t.show == out.Tab {
				n := t.count(&u.Counts)
				return countWords(n), n.Number > 0, err
			}
		}
		return "", false, err
	}
	total, some, err := count(admin.UndeliveredFilter{Show: f.Show, Limit: 1})
	if err != nil {
		return err
	}
	out.Empty = &Empty{New: !some, Total: total, All: with(url.Values{"show": {string(out.Tab)}})}
	if !some {
		var others []string
		for _, t := range undeliveredTabs[1:] {
			if v := t.count(n); v.Number > 0 && t.show != out.Tab {
				others = append(others, countWords(v)+" "+strings.ToLower(t.label))
			}
		}
		out.Others = strings.Join(others, ", ")
		return nil
	}
	out.Empty.Hiding, err = hiding(query, undeliveredParams, filterWords, func(without url.Values) (string, error) {
		f, _, err := undeliveredFilter(without, q.now)
		if err != nil {
			return "", err
		}
		f.Limit = 1
		number, _, err := count(f)
		return number, err
	})
	return err
}
