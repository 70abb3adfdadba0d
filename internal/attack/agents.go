package attack

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/uagents"
)

const pathCards = "/v1/asp/agents"

// ASPAgents registers n ASP agents, each with its own card.
func (a *Attack) ASPAgents(ctx context.Context, n int) Result {
	return a.flood(ctx, n, func(int) (*request, error) {
		r, _, err := a.card()
		return r, err
	})
}

// card renders the registration of a new ASP agent.
func (a *Attack) card() (*request, *asp.Identity, error) {
	name := strings.ReplaceAll(uagents.NewSession(), "-", "")
	id, err := asp.GenerateIdentity("agent://guest.example/guests/g"+name, "org_guest")
	if err != nil {
		return nil, nil, err
	}
	b, err := id.Card().JSON()
	if err != nil {
		return nil, nil, err
	}
	signature, err := id.SignCard(b)
	if err != nil {
		return nil, nil, err
	}
	proof, err := id.HTTPProof(http.MethodPost, strings.TrimSuffix(a.c.Hub, "/")+pathCards, "", time.Now())
	if err != nil {
		return nil, nil, err
	}
	r := post(pathCards, b)
	r.header = http.Header{"Asp-Card-Signature": {signature}, "Dpop": {proof}}
	return r, id, nil
}
