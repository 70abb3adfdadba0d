package console

import (
	"net/url"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
)

// Audit is the content of the list of operators' actions.
type Audit struct {
	Filters Filters
	Rows    []AuditRow
	By      string // filters that are written
	Target  string
	Page    Place
	Empty   *Empty
}

// AuditRow is one action.
type AuditRow struct {
	admin.AuditEntry
	When Moment
	Bad  bool // it failed
}

// Who is the token, and how it came in: "ops-laptop via console".
func (r *AuditRow) Who() string {
	if r.Via == "" {
		return r.Actor
	}
	return r.Actor + " via " + r.Via
}

// auditFilter reads the filter of the list.
func auditFilter(query url.Values, now time.Time) (f admin.AuditFilter, err error) {
	f = admin.AuditFilter{By: query.Get("by"), Action: query.Get("action"), Target: query.Get("target")}
	if v := query.Get("since"); v != "" {
		if f.Since, err = momentOf(v, now); err != nil {
			return f, parley.Refuse(parley.Malformed, "the filter since=%.40q has a wrong value: %s", v, err)
		}
	}
	return f, nil
}

// audit is the list of operators' actions.
func (c *Console) audit(q *request) (any, error) {
	query, err := known(q.r.URL.Query(), "by", "action", "target", "since", "before")
	if err != nil {
		return nil, err
	}
	f, err := auditFilter(query, q.now)
	if err != nil {
		return nil, err
	}
	list, err := c.admin.Audit(q.by, f)
	if err != nil {
		return nil, err
	}
	out := &Audit{By: f.By, Target: f.Target}
	total := grouped(int64(len(list)))
	if before := query.Get("before"); before != "" { // ids sort by time
		for len(list) > 0 && list[0].ID >= before {
			list = list[1:]
		}
	}
	older := ""
	if len(list) > pageRows {
		list = list[:pageRows]
		older = list[pageRows-1].ID
	}
	for _, e := range list {
		out.Rows = append(out.Rows, AuditRow{e, Moment{e.Time, q.now}, e.Outcome != "done" && e.Outcome != "started"})
	}
	out.Filters = auditFilters(query)
	out.Page = pageOf(query, len(out.Rows), total, older)
	if len(out.Rows) == 0 {
		out.Empty, err = c.noAudit(q, query)
	}
	return out, err
}

// auditActions are the choices of the menu: all actions that begin so.
var auditActions = [][2]string{{"agent", "agents"}, {"key", "keys"}, {"token", "tokens"}, {"dead", "dead letters"},
	{"forget", "forgotten content"}, {"config", "configuration"}}

func auditFilters(query url.Values) Filters {
	return Filters{Q: query, Chips: chips(query, "since", "by", "action", "target"), Menus: []Menu{
		agentMenu(query, "by", "By", nil), agentMenu(query, "target", "Target", nil),
		menu(query, "action", "Action", auditActions...), menu(query, "since", "Time", spans...)}}
}

// noAudit says which filters hide the actions.
func (c *Console) noAudit(q *request, query url.Values) (*Empty, error) {
	all, err := c.admin.Audit(q.by, admin.AuditFilter{})
	if err != nil {
		return nil, err
	}
	e := &Empty{New: len(all) == 0, Total: grouped(int64(len(all))), All: with(nil)}
	if e.New {
		return e, nil
	}
	e.Hiding, err = hiding(query, []string{"by", "action", "target", "since"}, filterWords,
		func(without url.Values) (string, error) {
			f, err := auditFilter(without, q.now)
			if err != nil {
				return "", err
			}
			rest, err := c.admin.Audit(q.by, f)
			return grouped(int64(len(rest))), err
		})
	return e, err
}
