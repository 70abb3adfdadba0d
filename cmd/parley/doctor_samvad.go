package main

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley/admin"
	bridge "github.com/parley-hub/parley/bridge/samvad"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
)

// doctorSkill is the skill that the doctor requests to check whether an agent accepts a
// signature.
const doctorSkill = "parley.doctor"

// samvadHub checks the hub as an agent of SAMVAD.
func (d *doctor) samvadHub(ctx context.Context) {
	d.public(ctx)
	d.rotation(ctx)
}

// public checks the hub at its public URL.
func (d *doctor) public(ctx context.Context) {
	base := d.c.PublicURL
	switch {
	case base == "" && (d.hub == nil || d.info.PublicURL == ""):
		d.skip("public_url", "not set: peers reach the hub at its listener only")
		return
	case d.hub == nil:
		d.skip("public_url", "no hub runs, so nothing answers there")
		return
	case base == "":
		base = d.info.PublicURL
	}
	card := d.card(ctx, "public_url", base, nil)
	if card == nil {
		return
	}
	if slices.ContainsFunc(card.PublicKeys, func(k samvad.CardKey) bool {
		return k.Active && k.Key == d.info.SAMVAD.Key
	}) {
		d.ok("public_url key", "the card there has this hub's key")
		return
	}
	d.failed("public_url key", "public_url, or the proxy in front of the hub: another hub or program answers there",
		errors.New("the card there does not have this hub's key"))
}

// samvadAddress checks the card, the key and a signed request at an agent's base URL.
func (d *doctor) samvadAddress(ctx context.Context, at wayPoint) {
	setting := at.setting + ", or `parley agents add " + at.name + " --samvad URL`"
	card := d.card(ctx, setting, at.address, d.guard)
	if card == nil {
		return
	}
	if at.id != "" && card.ID != at.id {
		d.failed("card", "agents."+at.name+".samvad.id, or `parley agents add "+at.name+" --id "+clean(card.ID)+"`",
			fmt.Errorf("the card says %s, the hub knows it as %s", card.ID, at.id))
	}
	d.key(at.name, card, d.enrolled(ctx, at.name))
	if !d.noSend {
		d.roundTrip(ctx, at.name, at.address, card)
	}
}

// enrolled gives an agent's SAMVAD keys, of the running hub, else of the configuration.
func (d *doctor) enrolled(ctx context.Context, name string) (keys []string) {
	if a := d.c.Agents[name]; a.SAMVAD != nil && a.SAMVAD.Key != "" {
		keys = append(keys, a.SAMVAD.Key)
	}
	if d.hub == nil {
		return keys
	}
	if mine, err := d.hub.AgentKeys(ctx, name); err == nil {
		for _, e := range mine.Enrolled {
			if e.Purpose == bridge.Protocol {
				keys = append(keys, base64.StdEncoding.EncodeToString(e.Public))
			}
		}
	}
	return keys
}

// samvadWay is the way to an agent with a table of SAMVAD.
func samvadWay(_ *node.Config, a *node.Agent) *hub.Way {
	switch {
	case a.SAMVAD == nil:
		return nil
	case a.SAMVAD.URL == "":
		return &hub.Way{ID: a.SAMVAD.ID, How: "it calls the hub; the hub cannot call it"}
	}
	return &hub.Way{ID: a.SAMVAD.ID, How: "the hub calls it", Addresses: []string{a.SAMVAD.URL}}
}

// samvadSkew is the difference of clocks from which on the hub or the agent refuses messages: those of the one that is
// ahead lie in the future for the other.
func samvadSkew(c *node.Config) time.Duration {
	return min(cmp.Or(c.SAMVAD.Window.Duration, samvad.DefaultWindow), samvad.DefaultSkew)
}

// card checks the way to a base URL, fetches the card there, and compares the peer's
// clock. It gives nil if a step failed.
func (d *doctor) card(ctx context.Context, setting, base string, guard *netguard.Guard) *samvad.Card {
	ctx, cancel := context.WithTimeout(ctx, doctorWait)
	defer cancel()
	u := d.reach(ctx, setting, base, guard)
	if u == nil {
		return nil
	}
	ends := func(fix string, err error) *samvad.Card {
		d.failed("card", fix, err)
		return nil
	}
	at := strings.TrimRight(u.String(), "/") + "/.well-known/agent.json"
	sent := d.now()
	resp, err := d.get(ctx, http.MethodGet, at, nil)
	if err != nil {
		return ends(setting, err)
	}
	defer resp.Body.Close()
	d.dateSkew(bridge.Protocol, samvadSkew(&d.c), resp, sent)
	b, err := netguard.ReadAll(resp.Body, 1<<20)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s", at, resp.Status)
	}
	if err != nil {
		return ends(setting+": the base URL, to which /.well-known/agent.json is added", err)
	}
	card, err := samvad.DecodeCard(b)
	if err != nil {
		return ends("the agent's card, see `parley inspect`", err)
	}
	d.ok("card", "%s, %s", card.ID, plural(len(card.Skills), "skill", "skills"))
	return card
}

func (d *doctor) key(name string, card *samvad.Card, enrolled []string) {
	if len(enrolled) == 0 {
		d.skip("key", "none is enrolled for %s: its card alone proves its messages, if the card is at the https "+
			"origin of its identity", name)
		return
	}
	active := ""
	for _, k := range card.PublicKeys {
		if k.Active && slices.Contains(enrolled, k.Key) {
			d.ok("key", "the enrolled key is the card's %s", clean(k.KID))
			return
		}
		if k.Active && active == "" {
			active = k.Key
		}
	}
	if active == "" {
		d.failed("key", "the agent's card: its publicKeys", errors.New("the card has no active key"))
		return
	}
	d.failed("key", "if the agent's operator confirms it: parley keys enroll "+name+" --key "+clean(active),
		errors.New("the enrolled key is not in the card: the agent has a new one, or something else answers there"))
}

// hubKeys opens the keyring for a check, and gives the identity as which the hub signs.
func (d *doctor) hubKeys(check string) (ring *keyring.Ring, identity string) {
	identity = d.info.SAMVAD.Identity
	if identity == "" && d.c.PublicURL != "" {
		if u, err := url.Parse(d.c.PublicURL); err == nil {
			identity = "agent://" + u.Host
		}
	}
	if identity == "" {
		d.skip(check, "the hub has no identity before it runs; set public_url, or start it")
		return nil, ""
	}
	if d.c.Engine.URL != "" {
		d.skip(check, "no signed request was sent: only the hubs of a cluster have its private keys, and they give "+
			"them to no command; "+
			"`parley send --to AGENT TEXT` has a hub send a signed message, and shows its outcome")
		return nil, ""
	}
	ring, err := d.a.ring()
	if err != nil {
		d.skip(check, "the hub's key is not at hand: %s", short(err.Error(), 200))
		return nil, ""
	}
	return ring, identity
}

// roundTrip sends a signed request for a skill that no agent has, and another with
// the hub's next key if that is being replaced.
func (d *doctor) roundTrip(ctx context.Context, name, base string, card *samvad.Card) {
	ring, identity := d.hubKeys("signed round trip")
	if ring == nil {
		return
	}
	defer ring.Close()
	signer, err := bridge.SignerOf(ring, identity)
	if err != nil {
		d.failed("signed round trip", "parley init makes the hub's keys", err)
		return
	}
	d.tryKey(ctx, "signed round trip", name, base, card.ID, signer)
	if next := bridge.NextOf(ring, identity); next != nil {
		d.tryKey(ctx, "next key", name, base, card.ID, next)
	}
}

// rotation tries every SAMVAD agent with the hub's next key, if that is being replaced:
// the report names agents that do not accept it before it signs.
func (d *doctor) rotation(ctx context.Context) {
	if d.noSend || d.hub == nil || d.info.SAMVAD.Next == "" {
		return
	}
	ring, identity := d.hubKeys("next key")
	if ring == nil {
		return
	}
	defer ring.Close()
	next := bridge.NextOf(ring, identity)
	if next == nil {
		return // the next key now signs
	}
	for a, err := range d.hub.AllAgents(ctx, admin.AgentFilter{}) {
		if err != nil {
			d.failed("next key", "parley agents", err)
			return
		}
		for _, i := range a.Identities {
			if i.Protocol == bridge.Protocol && !i.StandIn && i.URL != "" {
				d.tryKey(ctx, "next key", a.Name, i.URL, i.ID, next)
			}
		}
	}
}

// tryKey sends a signed request for a skill that no agent has, in the form of a
// check: an agent refuses the skill only after it has accepted the key.
func (d *doctor) tryKey(ctx context.Context, check, name, base, to string, signer samvad.Signer) {
	client := &samvad.Client{Identity: signer, Guard: d.guard, Timeout: 20 * time.Second, Now: d.now,
		HTTP: d.guard.Client(netguard.Options{Timeout: 20 * time.Second, MaxRedirects: -1, RootCAs: d.roots})}
	_, err := client.Ask(ctx, samvad.Call{URL: base, To: to, Skill: doctorSkill})
	e := samvad.AsError(err)
	switch {
	case err == nil || errors.Is(err, samvad.ErrRemote) && e.Code == samvad.CodeSkillNotFound:
		d.ok(check, "%s accepts what %s signs", name, signer.ID())
	case errors.Is(err, samvad.ErrRemote) && e.Code == samvad.CodeAuthFailed:
		d.failed(check, fmt.Sprintf("at %s: agent.trust_peer(%q, %q)", name, signer.ID(),
			base64.StdEncoding.EncodeToString(signer.Public())),
			fmt.Errorf("%s does not accept this key of the hub (AUTH_FAILED)", name))
	case errors.Is(err, samvad.ErrRemote) && e.Code == samvad.CodeTimestampExpired:
		d.failed(check, "set the clocks: timedatectl set-ntp true", err)
	case errors.Is(err, samvad.ErrRemote):
		d.ok(check, "%s answered %s, after it had accepted the signature or without looking at it", name, e.Code)
	default:
		d.failed(check, "agents."+name+".samvad.url; see the agent's log", err)
	}
}
