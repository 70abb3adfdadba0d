package bridge

import (
	"slices"
	"strings"
)

// answerAspects are those of events and answers alone; requestAspects those of what a caller says alone. Messages both
// ways can have the others.
var (
	answerAspects = []Aspect{Response, Failure, Code, Retry, Accepted, Detail, EventAct, Working, NeedsInput, Chunk}

	requestAspects = []Aspect{Request, Input, Notice, Cancel, Skill, Deadline, Credentials, Budget, Context}
)

// CallersLose lists what callers of a protocol lose at the stand-in of an agent that is reached by native ways: what they
// can say and the agent does not find, and what the agent can say and they are not told. Without native ways the agent is
// in the hub's process, or reads its inbox: it finds all that there is, and can say everything. Each aspect has its title
// in the table, with the ways if it is not lost on all.
func CallersLose(protocol string, native ...Way) []string {
	var back []Way
	for _, w := range Ways {
		if w.Protocol == protocol && w.Way != MCPServer { // a server makes no requests
			back = append(back, w.Way)
		}
	}
	from := ""
	if len(native) > 0 {
		from = native[0].Protocol()
	}
	var out []string
	for _, r := range Table {
		var lostBy []Way
		if !slices.Contains(answerAspects, r.Aspect) {
			lostBy = lostOn(native, func(w Way) Entry { return Look(protocol, w, r.Aspect) })
		}
		ways := native
		if len(lostBy) == 0 && !slices.Contains(requestAspects, r.Aspect) {
			ways = back
			lostBy = lostOn(back, func(w Way) Entry {
				if from != "" {
					return Look(from, w, r.Aspect)
				}
				if r.Aspect == Extra || r.Aspect == Surrogates { // of a protocol's own
					return Entry{}
				}
				return r.Out[w]
			})
		}
		switch {
		case len(lostBy) == 0:
		case len(lostBy) == len(ways):
			out = append(out, r.Title)
		default:
			out = append(out, r.Title+" ("+titlesOf(lostBy)+")")
		}
	}
	return out
}

// lostOn gives the ways on which an aspect is lost.
func lostOn(ways []Way, look func(Way) Entry) (out []Way) {
	for _, w := range ways {
		if look(w).Fate == Lost {
			out = append(out, w)
		}
	}
	return out
}

func titlesOf(ways []Way) string {
	var out []string
	for _, w := range Ways {
		if slices.Contains(ways, w.Way) {
			out = append(out, w.Title)
		}
	}
	return strings.Join(out, ", ")
}
