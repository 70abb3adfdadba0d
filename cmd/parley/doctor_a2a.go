package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/parley-hub/parley/internal/connect"
	exam "github.com/parley-hub/parley/internal/doctor"

	wire "github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	bridge "github.com/parley-hub/parley/bridge/a2a"
	"github.com/parley-hub/parley/internal/netguard"
)

// a2aHub checks that agents which are exposed in A2A have their cards at the public URL, for
// clients of each version.
func (d *doctor) a2aHub(ctx context.Context) {
	if d.hub == nil {
		return // nothing answers, and SAMVAD's check says so
	}
	base := d.Info.PublicURL
	if base == "" || d.c.A2A.Off {
		return
	}
	for a, err := range d.hub.AllAgents(ctx, admin.AgentFilter{}) {
		if err != nil {
			d.Failed("a2a card", "parley agents", err)
			return
		}
		if !(&parley.Agent{Exposed: a.Exposed}).ExposedIn(bridge.Protocol) {
			continue
		}
		if a, err = d.hub.Agent(ctx, a.Name, 0); err != nil { // lists are without addresses
			d.Failed("a2a card", "parley agents", err)
			return
		}
		at := a.Addresses[bridge.Protocol]
		if !strings.HasPrefix(at, strings.TrimRight(base, "/")+bridge.Base) {
			continue
		}
		d.a2aCards(ctx, "public_url, or the proxy in front of the hub", at, nil)
		return // one shows whether the way is right
	}
}

// a2aAddress checks the card of an agent elsewhere. The card is below the URL that is the agent's id; a running hub
// gives the URL of the interface that it calls, which may be another one.
func (d *doctor) a2aAddress(ctx context.Context, at exam.WayPoint) {
	base := at.Address
	if i, err := bridge.IdentityAt(at.ID); err == nil {
		base = i.URL
	}
	if originOf(at.Address) != originOf(base) && d.Reach(ctx, "the agent's card, which names this URL", at.Address,
		d.Guard) == nil {
		return
	}
	d.a2aCards(ctx, at.Setting+", or remove the agent and add it again with --a2a URL", base, d.Guard)
}

// a2aCards checks the way to an agent, and the card that clients of each version get.
func (d *doctor) a2aCards(ctx context.Context, setting, base string, guard *netguard.Guard) {
	ctx, cancel := context.WithTimeout(ctx, exam.Wait)
	defer cancel()
	if d.Reach(ctx, setting, base, guard) == nil {
		return
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: d.Roots}, DisableKeepAlives: true}
	versions := map[string]bool{}
	for _, version := range []string{bridge.V1, ""} {
		asked := "A2A-Version " + version
		if version == "" {
			asked = "no version, as clients of " + bridge.V03 + " do"
		}
		card, raw, err := connect.ReadA2ACard(ctx, transport, base, version)
		if refused, ok := errors.AsType[*connect.NotACard](err); ok && refused.Guarded && guard != nil {
			d.Skip("a2a card", "it wants credentials: the hub shows them, the doctor does not")
			return
		} else if ok {
			d.Failed("a2a card", setting, refused)
			return
		}
		if err != nil {
			d.Failed("a2a card", setting, err)
			return
		}
		for _, v := range connect.A2AVersions(card) {
			versions[v] = true
		}
		d.OK("a2a card", "asked with %s: %s, %s, A2A %s, %s", asked, clean(card.Name), plural(len(card.Skills), "skill",
			"skills"), strings.Join(connect.A2AVersions(card), " and "), connect.A2ASigned(ctx, transport, base, raw))
		if version == bridge.V1 {
			d.a2aInterfaces(base, card)
		}
	}
	if !versions[bridge.V1] && !versions[bridge.V03] {
		d.Failed("a2a version", "the agent needs a newer SDK", fmt.Errorf("its card lists no interface of %s or %s",
			bridge.V1, bridge.V03))
	}
}

// a2aInterfaces looks for interfaces that the hub does not call: its credentials are for the
// card's origin alone.
func (d *doctor) a2aInterfaces(base string, card *wire.AgentCard) {
	origin := originOf(base)
	for _, i := range card.SupportedInterfaces {
		if i.ProtocolBinding != wire.TransportProtocolGRPC && originOf(i.URL) != origin {
			d.Warn("a2a interface", "", "%s is at another origin than the card: credentials are not shown there", clean(i.URL))
		}
	}
}

func originOf(at string) string {
	scheme, rest, _ := strings.Cut(at, "://")
	host, _, _ := strings.Cut(rest, "/")
	return strings.ToLower(scheme + "://" + host)
}
