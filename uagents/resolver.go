package uagents

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// A Resolver finds an agent's address and endpoints. The destination is an
// identifier: address, name or prefix://name/address. The error is
// ErrUnresolved when there is no such agent.
type Resolver interface {
	Resolve(ctx context.Context, destination string) (address string, endpoints []Endpoint, err error)
}

// Endpoints is a [Resolver] of fixed URLs by address.
type Endpoints map[string][]string

// Resolve implements [Resolver].
func (r Endpoints) Resolve(_ context.Context, destination string) (string, []Endpoint, error) {
	id, err := resolveAddress(destination)
	if err != nil {
		return "", nil, err
	}
	var out []Endpoint
	for _, url := range r[id.Address] {
		out = append(out, Endpoint{url, 1})
	}
	if len(out) == 0 {
		return "", nil, ErrUnresolved
	}
	return id.Address, out, nil
}

// FirstOf asks one resolver after the other.
func FirstOf(resolvers ...Resolver) Resolver { return firstOf(resolvers) }

type firstOf []Resolver

func (f firstOf) Resolve(ctx context.Context, destination string) (string, []Endpoint, error) {
	var failures []error
	for _, r := range f {
		address, endpoints, err := r.Resolve(ctx, destination)
		if err == nil {
			return address, endpoints, nil
		}
		failures = append(failures, err)
	}
	return "", nil, ErrUnresolved.Because(errors.Join(failures...))
}

// An AlmanacResolver asks the HTTP API of a registry (resolver.py). It does
// not ask the ledger.
type AlmanacResolver struct {
	URL    string           // of the registry: the hub's, or https://agentverse.ai
	HTTP   *http.Client     // nil: 10 s, no redirects
	Now    func() time.Time // nil: time.Now
	Random func() float64   // for names with several agents; nil: math/rand
}

// Almanac is the resolver of the registry at that URL.
func Almanac(url string) *AlmanacResolver { return &AlmanacResolver{URL: url} }

// apiURL appends the API's path and the parts to the registry's base URL, which may
// end with the path already.
func apiURL(base, api string, parts ...string) string {
	base = strings.TrimSuffix(base, "/")
	if !strings.HasSuffix(base, api) {
		base += api
	}
	for _, p := range parts {
		base += "/" + url.PathEscape(p)
	}
	return base
}

const almanacAPI = "/v1/almanac"

// Resolve implements [Resolver].
func (r *AlmanacResolver) Resolve(ctx context.Context, destination string) (string, []Endpoint, error) {
	id := ParseIdentifier(destination)
	if !id.Valid() {
		return "", nil, ErrAddress.Because(errors.New("unknown identifier prefix")) // UAG-008
	}
	if id.Address == "" {
		if id.Name == "" {
			return "", nil, ErrUnresolved
		}
		address, err := r.byName(ctx, id)
		if err != nil {
			return "", nil, err
		}
		id.Address = address
	}
	if _, err := ParseAddress(id.Address); err != nil {
		return "", nil, err
	}
	n, err := r.get(ctx, id.Prefix, "agents", id.Address)
	if err != nil {
		return "", nil, err
	}
	expiry, err := timestampOf(n.get("expiry"))
	if err != nil || expiry.Before(clock(r.Now)) {
		return "", nil, ErrUnresolved.Because(errors.New("the registry's record has no expiry or is past it"))
	}
	var out []Endpoint
	if list := n.get("endpoints"); list != nil && list.kind == '[' {
		for _, e := range list.vals {
			weight, ok := asFloat(e.get("weight"))
			if ok && weight >= 1 && weight < 1<<53 {
				out = append(out, Endpoint{e.get("url").str(), int64(weight)})
			}
		}
	}
	if len(out) == 0 {
		return "", nil, ErrUnresolved.Because(errors.New("the agent has no endpoints"))
	}
	return id.Address, out, nil
}

func orNull(n *node) *node {
	if n == nil {
		return null()
	}
	return n
}

// byName finds the agents of a domain name and draws one by weight.
func (r *AlmanacResolver) byName(ctx context.Context, id Identifier) (string, error) {
	n, err := r.get(ctx, id.Prefix, "domains", id.Name)
	if err != nil {
		return "", err
	}
	var addresses []string
	var weights []float64
	if agents := n.get("assigned_agents"); agents != nil {
		for _, a := range agents.vals {
			if w, ok := asFloat(a.get("weight")); ok && w > 0 {
				addresses, weights = append(addresses, a.get("address").str()), append(weights, w)
			}
		}
	}
	if len(addresses) == 0 {
		return "", ErrUnresolved
	}
	return addresses[draw(weights, r.Random)], nil
}

func (r *AlmanacResolver) get(ctx context.Context, prefix string, parts ...string) (*node, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	u := apiURL(r.URL, almanacAPI, parts...)
	if prefix != "" {
		u += "?prefix=" + url.QueryEscape(prefix)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return nil, ErrUnresolved.Because(err)
	}
	resp, body, err := do(plainHTTP(r.HTTP), req, 1<<20)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%d: %s", resp.StatusCode, detailOf(body))
	}
	if err != nil {
		return nil, ErrUnresolved.Because(err)
	}
	n, err := parse(body)
	if err != nil {
		return nil, ErrUnresolved.Because(err)
	}
	return n, nil
}
