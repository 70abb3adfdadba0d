package bridge

import (
	"strconv"
	"strings"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/jsonx"
)

// HopsIn reads, of a value of [ProvenanceHeader] that came with a message, the
// hubs that it passed. Nobody proves them, and nobody needs to: who names a hub
// too many has its own message refused, and who names none gets no further than
// one without the header.
func HopsIn(header string) []string {
	_, rest, ok := strings.Cut(header, `; hops="`)
	if !ok {
		return nil
	}
	q, err := strconv.QuotedPrefix(`"` + rest)
	if err != nil {
		return nil
	}
	s, err := strconv.Unquote(q)
	if err != nil {
		return nil
	}
	return bounded(strings.Fields(s))
}

// HopsOf is HopsIn for provenance that is a JSON object, with the member
// "hops".
func HopsOf(provenance []byte) []string {
	var hops []string
	if v := jsonx.Member(provenance, "hops"); v == nil || jsonx.Decode(v, &hops) != nil {
		return nil
	}
	return bounded(hops)
}

// bounded keeps as many as it takes to see that there are too many.
func bounded(hops []string) []string {
	hops = hops[:min(len(hops), parley.MaxHops+1)]
	for i, h := range hops {
		hops[i] = h[:min(len(h), 128)]
	}
	if len(hops) == 0 {
		return nil
	}
	return hops
}
