package bridge

import (
	"strconv"
	"strings"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/jsonx"
)

// HopsIn reads the hubs that a message passed from its [ProvenanceHeader]. They need
// no proof: a sender that adds hubs has its own message refused, and one that leaves
// them out gains nothing over a message without the header.
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

// HopsOf is HopsIn for provenance that is a JSON object, with the member "hops".
func HopsOf(provenance []byte) []string {
	var hops []string
	if v := jsonx.Member(provenance, "hops"); v == nil || jsonx.Decode(v, &hops) != nil {
		return nil
	}
	return bounded(hops)
}

// bounded keeps at most one hop more than a message may have: that suffices to
// refuse it.
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
