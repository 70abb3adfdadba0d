package flows

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/browser"
	"github.com/parley-hub/parley/journal/index"
)

// A choice is a filter in a URL, and what the API has for it.
type choice struct {
	query string
	want  func() ([]string, error)
}

// screen is a list whose filters are tried.
type screen struct {
	path  string
	shown string // JavaScript: the rows, as the API's are written
}

// chooses opens a list with each filter: it shows what the API has, which is something, and less than without a filter.
// A reload and going back give the same.
func (v *tab) chooses(s screen, all choice, list ...choice) {
	v.t.Helper()
	list = append([]choice{all}, list...)
	whole := 0
	for i, try := range list {
		n := v.agree(s, try, browser.Go(v.Origin()+s.path+"?"+try.query))
		if i == 0 {
			whole = n
		}
		if n == 0 || n >= whole && i > 0 {
			v.t.Errorf("%s has %d of %d rows: that shows nothing of what it does", try.query, n, whole)
		}
		if strings.Count(try.query, "&") > 1 { // going back reads the others again
			v.agree(s, try, browser.Reload())
		}
	}
	for i := len(list) - 2; i >= 0; i-- {
		v.agree(s, list[i], browser.Back())
	}
}

// agree opens a list, and gives the number of its rows, which are those that the API has before and after. Agents say
// something now and then: if that changes the list meanwhile, it is read anew.
func (v *tab) agree(s screen, try choice, open chromedp.Action) int {
	v.t.Helper()
	for {
		before, err := try.want()
		if err != nil {
			v.t.Fatal(err)
		}
		var got []string
		v.do(open, browser.Loaded(), browser.Eval(s.shown, &got))
		after, err := try.want()
		if err != nil {
			v.t.Fatal(err)
		}
		if slices.Equal(got, before) || slices.Equal(got, after) {
			return len(got)
		}
		if slices.Equal(before, after) {
			v.t.Errorf("%s?%s shows %q, the API has %q", s.path, try.query, got, after)
			return len(got)
		}
		open = browser.Reload()
	}
}

// rowsShown are the rows of a table by what they stand for.
const rowsShown = `[...document.querySelectorAll("#rows tr[data-row]")].map(r => r.dataset.row)`

// timeline are the rows of Messages that the API has for a filter.
func (c *console) timeline(query string, f admin.TimelineFilter) choice {
	return choice{query, func() (out []string, err error) {
		page, err := c.API.Timeline(c.t.Context(), f)
		for _, e := range page.Entries {
			if e.Message != nil {
				out = append(out, e.Message.ID.String())
			} else {
				out = append(out, e.Refusal.Ref)
			}
		}
		return out, err
	}}
}

// TestFlow03Filters: each filter of each list, and three together, show the rows that the API has for them. A reload
// and going back give the same.
func TestFlow03Filters(t *testing.T) {
	c := begin(t)
	c.trip()
	c.undeliverable()
	c.lose("planner", ledger, "the first")
	c.lose("weather", ledger, "the second")
	c.lose("planner", archive, "the third")
	dropped := c.lose("planner", archive, "the fourth")
	if _, err := c.API.Drop(t.Context(), dropped.String(), archive, "nobody needs it"); err != nil {
		t.Fatal(err)
	}
	c.keep("planner", "inn", "a room, please")
	c.keep("planner", "museum", "a guide, please")
	v := c.entered(browser.Look{}, admin.Operate)
	in := func(t *testing.T) *tab { return &tab{v.Page, &console{c.Stage, t}} }
	t.Run("agents", func(t *testing.T) { in(t).choosesAgents() })
	t.Run("undelivered", func(t *testing.T) { in(t).choosesUndelivered() })
	t.Run("conversations", func(t *testing.T) { in(t).choosesConversations() })
	t.Run("by hand", func(t *testing.T) { in(t).choosesByHand() })
	t.Run("messages", func(t *testing.T) { in(t).choosesMessages() })
}

func (v *tab) choosesMessages() {
	between := v.Clock.Now()
	v.Clock.Move(50 * time.Minute) // less than a session lasts without use
	v.ask("robot", "What do you carry?")
	only := func(query string, f index.Filter) choice { return v.timeline(query, admin.TimelineFilter{Filter: f}) }
	ago := v.Clock.Now().Add(-40 * time.Minute)
	early := between.UTC().Format(time.RFC3339Nano)
	list := []choice{
		only("text=angels", index.Filter{Text: "angels"}),
		only("agent=inn", index.Filter{Agent: "inn"}),
		only("from=planner", index.Filter{From: "planner"}),
		only("to=museum", index.Filter{To: "museum"}),
		only("protocol=agh", index.Filter{Protocol: "agh"}),
		only("via=a2a", index.Filter{Via: "a2a"}),
		only("state=waiting", index.Filter{State: parley.Waiting}),
		only("state=dead", index.Filter{State: parley.Dead}),
		only("state=dropped", index.Filter{State: parley.Dropped}),
		only("slow=10m", index.Filter{Slow: 10 * time.Minute}),
		only("since=40m", index.Filter{Since: ago}),
		only("since="+early, index.Filter{Since: between}),
		only("until="+early, index.Filter{Until: between}),
		only("from=planner&kind=request&to=inn", index.Filter{From: "planner", Kind: parley.Request, To: "inn"}),
		only("agent=robot&proof=signed&since=40m", index.Filter{Agent: "robot", Proof: index.ProvedSigned, Since: ago}),
		v.timeline("agent=museum&kind=request&show=waiting", admin.TimelineFilter{Filter: index.Filter{Agent: "museum",
			Kind: parley.Request}, Show: admin.ShowWaiting}),
	}
	for _, p := range []index.Proof{index.ProvedSigned, index.ProvedSession, index.ProvedRefused} {
		list = append(list, only("proof="+p.String(), index.Filter{Proof: p}))
	}
	for _, k := range []parley.Kind{parley.Request, parley.Response, parley.Failure, parley.Event, parley.Notice} {
		list = append(list, only("kind="+k.String(), index.Filter{Kind: k}))
	}
	for _, s := range []admin.Show{admin.ShowFailed, admin.ShowRefused, admin.ShowWaiting, admin.ShowSlow} {
		list = append(list, v.timeline("show="+string(s), admin.TimelineFilter{Show: s}))
	}
	v.chooses(screen{"/console/", rowsShown}, v.timeline("", admin.TimelineFilter{}), list...)
}

func (v *tab) choosesConversations() {
	page, err := v.API.Conversations(v.t.Context(), index.ConversationFilter{Limit: 10})
	if err != nil || page.Next == "" {
		v.t.Fatal("want more than ten conversations", err)
	}
	since := page.Conversations[9].Last
	at := since.UTC().Format(time.RFC3339Nano)
	of := func(query string, f index.ConversationFilter) choice {
		return choice{query, func() (out []string, err error) {
			page, err := v.API.Conversations(v.t.Context(), f)
			for _, c := range page.Conversations {
				out = append(out, c.ID.String())
			}
			return out, err
		}}
	}
	v.chooses(screen{"/console/conversations", rowsShown}, of("", index.ConversationFilter{}),
		of("agent=inn", index.ConversationFilter{Agent: "inn"}),
		of("open=1", index.ConversationFilter{Open: true}),
		of("failed=1", index.ConversationFilter{Failed: true}),
		of("since="+at, index.ConversationFilter{Since: since}),
		of("agent=planner&failed=1&since="+at, index.ConversationFilter{Agent: "planner", Failed: true, Since: since}))
}

func (v *tab) choosesAgents() {
	of := func(query string, f admin.AgentFilter) choice {
		f.Order = "trouble"
		return choice{query, func() (out []string, err error) {
			page, err := v.API.Agents(v.t.Context(), f)
			for _, a := range page.Agents {
				out = append(out, a.Name)
			}
			return out, err
		}}
	}
	v.chooses(screen{"/console/agents", rowsShown}, of("", admin.AgentFilter{}),
		of("q=never", admin.AgentFilter{Q: "never"}),
		of("state=trouble", admin.AgentFilter{State: "trouble"}),
		of("state=paused", admin.AgentFilter{State: "paused"}),
		of("protocol=samvad", admin.AgentFilter{Protocol: "samvad"}),
		of("standin=1", admin.AgentFilter{StandIn: true}),
		of("protocol=samvad&q=never&state=trouble",
			admin.AgentFilter{Protocol: "samvad", Q: "never", State: "trouble"}))
}

func (v *tab) choosesUndelivered() {
	of := func(query string, f admin.UndeliveredFilter) choice {
		return choice{query, func() (out []string, err error) {
			u, err := v.API.Undelivered(v.t.Context(), f)
			for _, g := range u.Groups {
				for _, m := range g.Newest {
					out = append(out, fmt.Sprintf("%s %s %s %d %s", u.Show, g.To, g.Problem.Code, g.Number, m.Message))
				}
			}
			return out, err
		}}
	}
	path := "/console/undelivered"
	groups := screen{path, `[...document.querySelectorAll("[data-group]")].flatMap(g =>
		[...g.querySelectorAll("tr[data-row]")].map(r =>
			[g.dataset.tab, g.dataset.group, g.dataset.code, g.dataset.number, r.dataset.row].join(" ")))`}
	v.chooses(groups, of("", admin.UndeliveredFilter{}),
		of("text=archive", admin.UndeliveredFilter{Text: "archive"}),
		of("to=ledger", admin.UndeliveredFilter{To: ledger}),
		of("from=weather", admin.UndeliveredFilter{From: "weather"}),
		of("code="+string(parley.Unavailable)+"&reason="+string(parley.ConnectionRefused),
			admin.UndeliveredFilter{Code: parley.Unavailable, Reason: parley.ConnectionRefused}),
		of("show=waiting", admin.UndeliveredFilter{Show: admin.ShowWaiting}),
		of("show=dropped", admin.UndeliveredFilter{Show: admin.ShowDropped}),
		of("from=planner&show=waiting&to=inn",
			admin.UndeliveredFilter{Show: admin.ShowWaiting, From: "planner", To: "inn"}))
	dead := func(query string, f admin.DeadFilter) choice {
		return choice{query, func() (out []string, err error) {
			list, err := v.API.Dead(v.t.Context(), f)
			for _, d := range list {
				out = append(out, d.Message.String())
			}
			return out, err
		}}
	}
	v.chooses(screen{path, rowsShown}, dead("view=list", admin.DeadFilter{}),
		dead("to=ledger&view=list", admin.DeadFilter{To: ledger}),
		dead("from=planner&to=ledger&view=list", admin.DeadFilter{From: "planner", To: ledger}))
}

// choosesByHand sets three filters by the controls above the list, and clears them, without a page load.
func (v *tab) choosesByHand() {
	until := v.Clock.Now() // what agents say meanwhile is not in the list
	of := func(query string, f index.Filter) choice {
		f.Until = until
		query += "until=" + url.QueryEscape(until.UTC().Format(time.RFC3339Nano))
		return v.timeline(query, admin.TimelineFilter{Filter: f})
	}
	steps := []choice{of("", index.Filter{}),
		of("proof=session&", index.Filter{Proof: index.ProvedSession}),
		of("kind=request&proof=session&", index.Filter{Proof: index.ProvedSession, Kind: parley.Request}),
		of("agent=planner&kind=request&proof=session&", index.Filter{Proof: index.ProvedSession, Kind: parley.Request,
			Agent: "planner"})}
	check := func(i int) {
		v.t.Helper()
		const sorted = `(q => { q.sort(); return q.toString(); })(new URLSearchParams(location.search))`
		want, err := steps[i].want()
		if err != nil {
			v.t.Fatal(err)
		}
		v.do(browser.Wait(fmt.Sprintf("%s === %q", sorted, steps[i].query)),
			browser.Wait(fmt.Sprintf("(%s).join() === %q", rowsShown, strings.Join(want, ","))))
	}
	open := func(menu string) {
		v.t.Helper()
		v.do(browser.Click(`[data-menu="`+menu+`"] summary`), browser.Has(`[data-menu="`+menu+`"][open]`))
	}
	v.to("/console/?" + steps[0].query)
	v.do(browser.Eval("window.loaded = 'once'", nil))
	open("proof")
	v.shot("messages-menu")
	v.do(browser.Click(`[data-menu="proof"] a[href*="proof=session"]`))
	check(1)
	open("kind")
	v.do(browser.Click(`[data-menu="kind"] a[href*="kind=request"]`))
	check(2)
	open("agent")
	v.do(browser.Type(`[data-menu="agent"] input[name="agent"]`, "planner"), browser.Press("Enter"))
	check(3)
	v.is("window.loaded === 'once'", "the page was not loaded again")
	for i := range 3 { // a step back loads the page anew
		v.do(browser.Eval("window.loaded = 'before'", nil), browser.Back(),
			browser.Wait("!window.loaded"), browser.Loaded())
		check(2 - i)
	}
	v.do(browser.Type("#q", "angels"), browser.Press("Enter"),
		browser.Wait(`new URLSearchParams(location.search).get("text") === "angels"`), browser.Has("#rows mark"))
}
