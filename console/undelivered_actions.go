package console

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/readable"
)

// This file retries and drops the dead letters of one cause. A dialog counts the effects; the action then has
// exactly these effects, or none.

// undeliveredActions are the forms of the screen.
func (c *Console) undeliveredActions() {
	c.post(undeliveredPath+"/retry", func(q *request) error { return c.changeDead(q, true) })
	c.post(undeliveredPath+"/drop", func(q *request) error { return c.changeDead(q, false) })
	c.post(undeliveredPath+"/stop", c.stopJob)
	// A dialog that comes back is at the address of its form; links of that page lead here.
	c.mux.Handle("GET "+undeliveredPath+"/{action}", c.session(func(q *request) {
		http.Redirect(q.w, q.r, undeliveredPath+"?"+q.r.URL.RawQuery, http.StatusSeeOther)
	}))
}

// An Ask is the dialog of an action on the dead letters of one cause.
type Ask struct {
	Retry  bool
	Number int    // counted
	To     string // the recipient
	Text   string // the effects
	Group  []Pair // that the form keeps
	Leave  string // address of the page without the dialog

	Since, Rate, Why, Typed string // fields
	Unknown                 int    // that their recipient may have had
	Consent                 bool

	Command string
	Recent  string   // the cause struck just now
	Others  []string // causes that the action would touch, too: it is not offered
	Fault   string   // why the form came back
}

// groupParams choose the dead letters of a dialog.
var groupParams = []string{"to", "from", "code", "reason"}

// askBulk counts the effects of an action, and makes its dialog. URL parameters and form fields have the same names.
func (c *Console) askBulk(q *request, retry bool, v url.Values) (*Ask, error) {
	f, err := deadFilter(v, q.now)
	a := &Ask{Retry: retry, To: f.To, Why: v.Get("why"), Rate: v.Get("rate"), Typed: v.Get("typed"), Since: v.Get("since"),
		Consent: v.Get("unknown") != ""}
	if err != nil {
		a.Fault = parley.AsError(err).Text
	}
	r, err := c.bulk(retry)(q.r.Context(), q.by, admin.Bulk{Filter: f, DryRun: true})
	if err != nil {
		return nil, err
	}
	a.Number, a.Text, a.Unknown = r.Matched, r.Text, r.Unknown
	group := url.Values{}
	for _, name := range groupParams {
		if s := v.Get(name); s != "" {
			group.Set(name, s)
			a.Group = append(a.Group, Pair{name, s})
		}
	}
	a.Leave = undeliveredPath + with(group)
	if a.Fault == "" {
		a.Since = fieldTime(cmp.Or(f.Since, r.Oldest))
	}
	a.Command = deadCommand(retry, f, &r, v)
	u, err := c.causes(q, f)
	if err != nil {
		return nil, err
	}
	for i := range u.Groups {
		g := &u.Groups[i]
		if len(u.Groups) > 1 {
			a.Others = append(a.Others, causeWords(g))
			continue
		}
		a.To = g.To
		if age := q.now.Sub(g.Last); age < recent {
			a.Recent = "A message to " + g.To + " was given up for the same reason " + agoWords(age) + "."
		}
	}
	a.Others = a.Others[:min(len(a.Others), 5)]
	return a, nil
}

// bulk is the call of an action.
func (c *Console) bulk(retry bool) func(ctx context.Context, by admin.Actor, b admin.Bulk) (admin.BulkResult, error) {
	if retry {
		return c.admin.RetryAll
	}
	return c.admin.DropAll
}

// causes are those of the dead letters that a filter chooses.
func (c *Console) causes(q *request, f admin.DeadFilter) (admin.Undelivered, error) {
	return c.admin.Undelivered(q.r.Context(), q.by, admin.UndeliveredFilter{To: f.To, From: f.From, Code: f.Code,
		Reason: f.Reason, Since: f.Since})
}

func causeWords(g *admin.UndeliveredGroup) string {
	return fmt.Sprintf("%d to %s: %s", g.Number, g.To, strings.Join(slices.DeleteFunc([]string{string(g.Problem.Code),
		string(g.Problem.Reason)}, func(s string) bool { return s == "" }), ", "))
}

func agoWords(d time.Duration) string {
	if s := ago(d); s != "now" {
		return s + " ago"
	}
	return "just now"
}

// deadFilter reads the filter for dead letters. With an error, it is complete except for Since.
func deadFilter(v url.Values, now time.Time) (f admin.DeadFilter, err error) {
	f = admin.DeadFilter{To: v.Get("to"), From: v.Get("from"), Code: parley.Code(v.Get("code")),
		Reason: parley.Reason(v.Get("reason"))}
	since := v.Get("since")
	if since == "" {
		return f, nil
	}
	for _, layout := range []string{fieldLayout, "2006-01-02 15:04", "2006-01-02"} {
		if t, err := time.Parse(layout, since); err == nil {
			f.Since = t
			return f, nil
		}
	}
	if f.Since, err = momentOf(since, now); err != nil {
		return f, parley.Refuse(parley.Malformed, "“given up since” is %.40q: want a time such as 2026-11-20 15:04, in UTC, "+
			"or how long ago, such as 2h", since)
	}
	f.Since = f.Since.Truncate(time.Second) // as the field shows it
	return f, nil
}

const fieldLayout = "2006-01-02 15:04:05"

func fieldTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(fieldLayout)
}

// bulkOf reads the action of a form.
func bulkOf(retry bool, v url.Values, now time.Time) (b admin.Bulk, err error) {
	if b.Filter, err = deadFilter(v, now); err != nil {
		return b, err
	}
	if b.Expect, err = strconv.Atoi(v.Get("expect")); err != nil || b.Expect < 1 {
		return b, parley.Refuse(parley.Malformed, "the form has no count of its dead letters; nothing was done: "+
			"open the dialog again")
	}
	b.Reason = v.Get("why")
	if !retry {
		typed := strings.ReplaceAll(v.Get("typed"), ",", "")
		switch {
		case b.Reason == "":
			return b, parley.Refuse(parley.Malformed, "a reason is needed: say why these messages are no longer needed")
		case typed != strconv.Itoa(b.Expect):
			return b, parley.Refuse(parley.Malformed, "the number is %s, not %.20q; nothing was dropped",
				grouped(int64(b.Expect)), v.Get("typed"))
		}
		return b, nil
	}
	b.Unknown = v.Get("unknown") != ""
	if v.Get("one") != "" {
		b.Filter.Limit, b.Expect = 1, 1
		return b, nil
	}
	if rate := v.Get("rate"); rate != "" {
		if b.Rate, err = strconv.ParseFloat(rate, 64); err != nil || b.Rate <= 0 || math.IsNaN(b.Rate) {
			return b, parley.Refuse(parley.Malformed, "“at most a second” is %.20q: want a number such as 5, or nothing "+
				"for all at once", rate)
		}
	}
	return b, nil
}

// mayTryAgain are the codes of errors after which the dialog comes back.
var mayTryAgain = []parley.Code{parley.Conflict, parley.Malformed, parley.TooLarge, parley.Unavailable}

// changeDead does the action of a form, or shows its dialog again.
func (c *Console) changeDead(q *request, retry bool) error {
	v, err := known(q.r.PostForm, append([]string{"since", "rate", "why", "typed", "expect", "unknown", "one"},
		groupParams...)...)
	if err != nil {
		return err
	}
	r, err := c.ordered(q, retry, v)
	switch {
	case err != nil && slices.Contains(mayTryAgain, parley.CodeOf(err)):
		return c.askAgain(q, retry, v, err)
	case err != nil:
		return err
	case len(r.Failed) > 0:
		out, err := c.undeliveredPage(q, admin.UndeliveredFilter{}, url.Values{})
		if err != nil {
			return err
		}
		out.Done, out.Failed = actionWords(retry, r.Done), r.Failed
		c.render(q.w, q.r, q, "undelivered", "Undelivered", out, http.StatusOK)
		return nil
	case r.Job != nil:
		http.Redirect(q.w, q.r, undeliveredPath+"#jobs", http.StatusSeeOther)
		return nil
	}
	name := map[bool]string{true: "retried", false: "dropped"}[retry]
	http.Redirect(q.w, q.r, fmt.Sprintf("%s?%s=%d#done", undeliveredPath, name, r.Done), http.StatusSeeOther)
	return nil
}

// ordered does the action of a form.
func (c *Console) ordered(q *request, retry bool, v url.Values) (r admin.BulkResult, err error) {
	b, err := bulkOf(retry, v, q.now)
	if err != nil {
		return r, err
	}
	u, err := c.causes(q, b.Filter)
	if err != nil {
		return r, err
	}
	if len(u.Groups) > 1 {
		return r, parley.Refuse(parley.Conflict, "these dead letters have %d causes; nothing was done: choose one cause",
			len(u.Groups))
	}
	return c.bulk(retry)(q.r.Context(), q.by, b)
}

// askAgain shows the dialog with the typed values, a new count, and the reason why nothing was done.
func (c *Console) askAgain(q *request, retry bool, v url.Values, why error) error {
	group := url.Values{}
	for _, name := range groupParams {
		group.Set(name, v.Get(name))
	}
	f, query, err := undeliveredFilter(group, q.now)
	if err != nil {
		return err
	}
	out, err := c.undeliveredPage(q, f, query)
	if err != nil {
		return err
	}
	if out.Ask, err = c.askBulk(q, retry, v); err != nil {
		return err
	}
	e := parley.AsError(why)
	out.Ask.Fault = e.Text
	c.render(q.w, q.r, q, "undelivered", "Undelivered", out, admin.StatusOf(e))
	return nil
}

// doneWords describes the effect of an action, from the address to which it led.
func doneWords(u url.Values) string {
	for _, name := range []string{"retried", "dropped"} {
		if n, err := strconv.ParseUint(u.Get(name), 10, 31); err == nil {
			return actionWords(name == "retried", int(n))
		}
	}
	return ""
}

func actionWords(retry bool, n int) string {
	out := plural(n, "message is", "messages are")
	if retry {
		return out + " queued again. Each is tried once; those that arrive are under “Recovered today”."
	}
	return out + " dropped. The content stays in the record."
}

// deadCommand is the command that does the same.
func deadCommand(retry bool, f admin.DeadFilter, r *admin.BulkResult, v url.Values) string {
	var b strings.Builder
	b.WriteString("parley dead " + map[bool]string{true: "retry", false: "drop"}[retry])
	flag := func(name, value string) {
		if value != "" {
			b.WriteString(" --" + name + " " + readable.ShellWord(value))
		}
	}
	flag("to", f.To)
	flag("from", f.From)
	flag("code", string(f.Code))
	flag("cause", string(f.Reason))
	if !f.Since.IsZero() {
		flag("since", f.Since.UTC().Format(time.RFC3339))
	}
	flag("expect", strconv.Itoa(r.Matched))
	if retry {
		if r.Unknown > 0 {
			b.WriteString(" --unknown")
		}
		flag("rate", v.Get("rate"))
	}
	flag("reason", v.Get("why"))
	return b.String()
}

// A JobRow is a retry that goes on in the hub, or ended lately.
type JobRow struct {
	admin.Job
	Running bool
	What    string
	When    Moment
}

// shownJobs is how long a job is shown that has ended.
const shownJobs = time.Hour

func (c *Console) jobRows(q *request) (out []JobRow, err error) {
	list, err := c.admin.Jobs(q.by)
	for _, j := range list {
		r := JobRow{Job: j, Running: j.Ended.IsZero(), When: Moment{j.Started, q.now}}
		if !r.Running && q.now.Sub(j.Ended) >= shownJobs {
			continue
		}
		r.What = "retry of " + plural(j.Matched, "message", "messages")
		if j.Filter.To != "" {
			r.What += " to " + cut(j.Filter.To, nameBytes)
		}
		r.What += fmt.Sprintf(", at most %g a second", j.Rate)
		out = append(out, r)
	}
	return out, err
}

// Running reports whether a job goes on: the page looks again.
func (u *Undelivered) Running() bool {
	return slices.ContainsFunc(u.Jobs, func(j JobRow) bool { return j.Running })
}

// stopJob ends a paced retry.
func (c *Console) stopJob(q *request) error {
	if _, err := c.admin.StopJob(q.r.Context(), q.by, q.r.PostFormValue("job")); err != nil {
		return err
	}
	http.Redirect(q.w, q.r, undeliveredPath+"#jobs", http.StatusSeeOther)
	return nil
}
