package samvad

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
)

// Cards of agents elsewhere are fetched when somebody asks for them here. Two
// hubs at which an agent is said to be at the other would ask each other for
// ever: so a hub that fetches a card says which hubs have been asked for it,
// as messages do, and one that is among them fetches no more.

// The hops are in the context because the protocol's client and server, which know
// none, and net/http lie between the request and the fetch.
type cardHops struct{}

// asked is the context in which a request of a stranger is served.
func asked(r *http.Request) context.Context {
	hops := bridge.HopsIn(r.Header.Get(bridge.ProvenanceHeader))
	if len(hops) == 0 {
		return r.Context()
	}
	return context.WithValue(r.Context(), cardHops{}, hops)
}

// mayFetch reports whether another hub may be asked, and gives the context in
// which that is done.
func (b *Binding) mayFetch(ctx context.Context) (context.Context, bool) {
	hops, _ := ctx.Value(cardHops{}).([]string)
	if slices.Contains(hops, b.c.Hub.ID()) || len(hops) >= parley.MaxHops {
		return ctx, false
	}
	return context.WithValue(ctx, cardHops{}, append(slices.Clone(hops), b.c.Hub.ID())), true
}

// telling says the hops of its context.
type telling struct{ http.RoundTripper }

func (t telling) RoundTrip(r *http.Request) (*http.Response, error) {
	if hops, ok := r.Context().Value(cardHops{}).([]string); ok && r.Method == http.MethodGet {
		r = r.Clone(r.Context())
		r.Header.Set(bridge.ProvenanceHeader, `card; hops="`+strings.Join(hops, " ")+`"`)
	}
	return t.RoundTripper.RoundTrip(r)
}
