package main

import (
	"fmt"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
)

// attempts describes the attempts of a delivery, one a line: number, time, protocol and address, result,
// duration, and what followed.
func (a *app) attempts(list []admin.Attempt, omitted int) (out []string) {
	for i := range list {
		x := &list[i]
		if i > 0 && omitted > 0 && x.Number > list[i-1].Number+omitted {
			out = append(out, fmt.Sprintf("… %s left out", plural(omitted, "attempt", "attempts")))
		}
		out = append(out, a.attempt(x))
	}
	return out
}

func (a *app) attempt(x *admin.Attempt) string {
	line := fmt.Sprintf("%d at %s", x.Number, a.when(x.Begun))
	if x.Protocol != "" {
		line += " " + short(x.Protocol, 12)
	}
	if x.Address != "" {
		line += " " + short(x.Address, 60)
	}
	result := x.State.String()
	switch {
	case x.State == parley.Delivering:
		result = "no outcome is recorded"
	case x.Status != "":
		result = short(x.Status, 60)
	case x.Error != nil:
		result = string(x.Error.Code)
	}
	line += ": " + result
	if x.Took > 0 {
		line += " after " + time.Duration(x.Took).Round(time.Millisecond/10).String()
	}
	if x.Size > 0 {
		line += fmt.Sprintf(", %s sent", plural(x.Size, "byte", "bytes"))
	}
	switch {
	case x.State == parley.Waiting && x.Postponed:
		line += "; postponed"
	case x.State != parley.Delivering && result != x.State.String():
		line += "; " + x.State.String()
	}
	if !x.Next.IsZero() {
		line += ", next not before " + a.when(x.Next)
	}
	if x.Answer != "" && x.Error != nil {
		line += "; it said " + short(x.Answer, 120)
	}
	return line
}
