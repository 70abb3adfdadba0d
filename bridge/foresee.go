package bridge

import (
	"math/big"
	"slices"

	"github.com/parley-hub/parley"
)

// A Prospect is the fate of one aspect of a message that is not sent yet, or of its answers.
type Prospect struct {
	Field string // of parley.Message, as a Loss names it
	Title string // of the aspect; "" in a loss of [Losses]
	Fate  Fate   // Lost, Refused, or of an answer Absent: the agent's protocol does not say it
	Why   string
}

// Foresee lists what a message loses on a way to a recipient, and what of its content the way refuses.
func Foresee(way Way, m *parley.Message, recipient string) (out []Prospect) {
	for i := range m.Parts {
		refused := refusals(way, &m.Parts[i])
		if len(refused) == 0 && rows[Several].Out[way].Fate == Lost {
			out = nil // of several parts one goes, and this one can
			break
		}
		out = append(out, refused...)
	}
	if e := rows[Several].Out[way]; len(m.Parts) > 1 && e.Fate == Refused {
		out = append(out, Prospect{rows[Several].Field, rows[Several].Title, Refused, e.How})
	}
	for _, l := range Losses(way, m, recipient) {
		out = append(out, Prospect{Field: l.Field, Fate: Lost, Why: l.Reason})
	}
	return slices.Compact(out)
}

// refusals lists why a way does not take a part.
func refusals(way Way, p *parley.Part) (out []Prospect) {
	aspects := []Aspect{contentAspect(p)}
	if isPlain(p) && isJSON(p) && hasNumber(p.Data, inexact) {
		aspects = append(aspects, Numbers)
	}
	for _, a := range aspects {
		if e := rows[a].Out[way]; e.Fate == Refused {
			out = append(out, Prospect{rows[a].Field, rows[a].Title, Refused, e.How})
		}
	}
	return out
}

// inexact reports whether a number is a whole one that a 64-bit float cannot hold.
func inexact(literal []byte, decimal bool) bool {
	if decimal || len(literal) <= 15 {
		return false
	}
	n, ok := new(big.Int).SetString(string(literal), 10)
	if !ok {
		return false
	}
	_, accuracy := new(big.Float).SetInt(n).Float64()
	return accuracy != big.Exact
}

// contentAspect is what a part is.
func contentAspect(p *parley.Part) Aspect {
	switch {
	case p.URI != "":
		return Link
	case isJSON(p) && len(p.Data) > 0 && p.Data[0] == '{':
		return Object
	case isJSON(p):
		return OtherJSON
	case p.IsText():
		return Text
	}
	return Bytes
}

// ForeseeAnswers lists, of what only events and answers have, what the protocol of the agent that is asked cannot say,
// and what is lost on the ways back to the sender; none if the sender reads the answers at the hub. Agents in the hub's
// process, and those that read an inbox, say everything: their protocol is "".
func ForeseeAnswers(protocol string, back ...Way) (out []Prospect) {
	for _, a := range answerAspects {
		r := rows[a]
		if _, says := r.In[protocol]; protocol != "" && !says {
			out = append(out, Prospect{r.Field, r.Title, Absent, "its protocol does not say it"})
			continue
		}
		for _, w := range back {
			e := r.Out[w]
			if protocol != "" {
				e = Look(protocol, w, a)
			}
			if e.Fate == Lost {
				out = append(out, Prospect{r.Field, r.Title, Lost, e.How})
				break
			}
		}
	}
	return out
}
