package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/hub"
)

// foresee says what would become of a message. The exit code says whether the hub would take it.
func (a *app) foresee(ctx context.Context, hub *admin.Client, s admin.Send) error {
	v, err := hub.Foresee(ctx, s)
	if err != nil {
		return a.sendError(s.To, err)
	}
	if a.json {
		if err := a.print(v, ""); err != nil {
			return err
		}
	} else {
		a.showForeseen(&v)
	}
	switch {
	case v.Accepted:
		return nil
	case a.json:
		return &exitError{exitRefused, nil}
	}
	return &exitError{exitRefused, problemError(v.Refusal, "would be refused: "+cause(v.To, v.Refusal, ""))}
}

// showForeseen writes for people what is foreseen, without the refusal.
func (a *app) showForeseen(v *admin.Foreseen) {
	to := clean(v.To)
	if v.Skill != "" {
		to += ", skill " + clean(v.Skill)
	}
	if v.Accepted {
		fmt.Fprintf(a.out, "the hub would record this %s from %s to %s\n", v.Kind, clean(v.From), to)
	}
	for _, m := range v.Misfits {
		at := "its content"
		if m.At != "" {
			at = clean(m.At)
		}
		a.hang("  ", 2, "", at+": "+clean(m.Why))
	}
	if s := v.Recipient; s != nil {
		words := a.stateWords(s)
		if s.State == hub.Ready {
			words = "is ready"
		}
		switch v.By {
		case "", "api", "go":
		default:
			words += "; the hub speaks " + v.By + " with it"
		}
		a.hang("  ", 2, "", clean(v.To)+" "+words)
	}
	if v.Text != "" {
		a.hang("  ", 2, "", v.Text)
	}
	if len(v.Fitted) == 1 && v.Fitted[0].JSON != nil {
		a.hang("  ", 2, "", "the content becomes "+short(string(v.Fitted[0].JSON), 200))
	}
	a.showLosses("on the way there", v.There)
	a.showLosses("on the way back", v.Back)
}

// showLosses writes foretold losses below a heading; those that have one reason in one line.
func (a *app) showLosses(heading string, list []admin.ForeseenLoss) {
	for i := 0; i < len(list); {
		l, what := list[i], []string{}
		for ; i < len(list) && list[i].Why == l.Why && list[i].Fate == l.Fate; i++ {
			what = append(what, clean(list[i].What))
		}
		fate := l.Fate
		if fate == "absent" {
			fate = "never said"
		}
		if heading != "" {
			fmt.Fprintln(a.out, heading)
			heading = ""
		}
		a.hang("  ", 2, "", fmt.Sprintf("%s: %s (%s)", fate, strings.Join(what, "; "), clean(l.Why)))
	}
}
