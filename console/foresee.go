package console

import (
	"net/http"
	"slices"
	"strings"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
)

// This file shows below the form of the workbench how the hub would treat its message. It sends nothing.

// A Look shows how the hub would treat the message of the form.
type Look struct {
	Problem *admin.Problem // why nothing can be said
	*admin.Foreseen
	State Sign
	There []lossLine
	Back  []lossLine
	Curl  string
}

// A lossLine is what has one fate for one reason.
type lossLine struct{ Fate, What, Why string }

// foresee answers the form while it is filled in, with the part of the page that shows the [Look]; without a script,
// with the whole page.
func (c *Console) foresee(q *request) error {
	f, s, err := composed(q.r.PostForm)
	look := &Look{}
	status := http.StatusOK
	if err == nil {
		var v admin.Foreseen
		if v, err = c.admin.Foresee(q.r.Context(), q.by, s); err == nil {
			look.fill(&v)
			s.IdempotencyKey = ""
			look.Curl = curlOf(q, s)
		}
	}
	if err != nil {
		look.Problem, status = problemOf(err)
	}
	if q.r.Header.Get("HX-Request") != "" {
		b, err := c.part("workbench", "foreseen", look)
		if err != nil {
			return err
		}
		q.w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = q.w.Write(b) // if it fails, the browser is gone
		return nil
	}
	v := c.bench(q)
	v.Compose.Look, v.Compose.Key = look, q.r.PostForm.Get("key") // nothing was sent under it
	if f.Kind == "" {
		f.Kind = parley.Request.String()
	}
	c.compose(q, &v.Compose, f)
	c.render(q.w, q.r, q, "workbench", "Workbench", v, status)
	return nil
}

func (l *Look) fill(v *admin.Foreseen) {
	l.Foreseen, l.There, l.Back = v, lossLines(v.There), lossLines(v.Back)
	if v.Recipient != nil {
		l.State = agentSigns[v.Recipient.State]
	}
}

// lossLines puts together what has one reason.
func lossLines(list []admin.ForeseenLoss) (out []lossLine) {
	for _, l := range list {
		i := slices.IndexFunc(out, func(o lossLine) bool { return o.Fate == l.Fate && o.Why == l.Why })
		if i < 0 {
			out = append(out, lossLine{l.Fate, l.What, l.Why})
			continue
		}
		if !slices.Contains(strings.Split(out[i].What, "; "), l.What) {
			out[i].What += "; " + l.What
		}
	}
	return out
}
