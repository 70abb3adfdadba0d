package doctor

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/samvad"
)

// protocol is SAMVAD's name.
const protocol = "samvad"

// Skill is the skill that the doctor requests to check whether an agent accepts a
// signature.
const Skill = "parley.doctor"

// SAMVADAddress checks the card, the key and a signed request at an agent's base URL.
func (d *Doctor) SAMVADAddress(ctx context.Context, at WayPoint) {
	setting := at.Setting + ", or `parley agents add " + at.Name + " --samvad URL`"
	card := d.SAMVADCard(ctx, setting, at.Address, d.Guard)
	if card == nil {
		return
	}
	if at.ID != "" && card.ID != at.ID {
		d.Failed("card", "agents."+at.Name+".samvad.id, or `parley agents add "+at.Name+" --id "+clean(card.ID)+"`",
			fmt.Errorf("the card says %s, the hub knows it as %s", card.ID, at.ID))
	}
	d.Key(at.Name, card, d.Enrolled(ctx, at.Name))
	if !d.NoSend {
		d.RoundTrip(ctx, at.Name, at.Address, card)
	}
}

// SAMVADCard checks the way to a base URL, fetches the card there, and compares the peer's
// clock. It gives nil if a step failed.
func (d *Doctor) SAMVADCard(ctx context.Context, setting, base string, guard *netguard.Guard) *samvad.Card {
	ctx, cancel := context.WithTimeout(ctx, Wait)
	defer cancel()
	u := d.Reach(ctx, setting, base, guard)
	if u == nil {
		return nil
	}
	ends := func(fix string, err error) *samvad.Card {
		d.Failed("card", fix, err)
		return nil
	}
	at := strings.TrimRight(u.String(), "/") + "/.well-known/agent.json"
	sent := d.Now()
	resp, err := d.Get(ctx, http.MethodGet, at, nil, guard)
	if err != nil {
		return ends(setting, err)
	}
	defer resp.Body.Close()
	d.CompareDate(protocol, d.Skew(protocol), resp, sent)
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
	d.OK("card", "%s, %s", card.ID, plural(len(card.Skills), "skill", "skills"))
	return card
}

// Key compares the keys of an agent that are enrolled with those of its card.
func (d *Doctor) Key(name string, card *samvad.Card, enrolled []string) {
	if len(enrolled) == 0 {
		d.Skip("key", "none is enrolled for %s: its card alone proves its messages, if the card is at the https "+
			"origin of its identity", name)
		return
	}
	active := ""
	for _, k := range card.PublicKeys {
		if k.Active && slices.Contains(enrolled, k.Key) {
			d.OK("key", "the enrolled key is the card's %s", clean(k.KID))
			return
		}
		if k.Active && active == "" {
			active = k.Key
		}
	}
	if active == "" {
		d.Failed("key", "the agent's card: its publicKeys", errors.New("the card has no active key"))
		return
	}
	d.Failed("key", "if the agent's operator confirms it: parley keys enroll "+name+" --key "+clean(active),
		errors.New("the enrolled key is not in the card: the agent has a new one, or something else answers there"))
}

// RoundTrip sends a signed request for a skill that no agent has, and another with
// the hub's next key if that is being replaced.
func (d *Doctor) RoundTrip(ctx context.Context, name, base string, card *samvad.Card) {
	const check = "signed round trip"
	signer, next, done := d.Signers(check)
	if done == nil {
		return
	}
	defer done()
	d.TryKey(ctx, check, name, base, card.ID, signer)
	if next != nil {
		d.TryKey(ctx, "next key", name, base, card.ID, next)
	}
}

// TryKey sends a signed request for a skill that no agent has, in the form of a
// check: an agent refuses the skill only after it has accepted the key.
func (d *Doctor) TryKey(ctx context.Context, check, name, base, to string, signer samvad.Signer) {
	client := &samvad.Client{Identity: signer, Guard: d.Guard, Timeout: 20 * time.Second, Now: d.Now,
		HTTP: d.Guard.Client(netguard.Options{Timeout: 20 * time.Second, MaxRedirects: -1, RootCAs: d.Roots})}
	_, err := client.Ask(ctx, samvad.Call{URL: base, To: to, Skill: Skill})
	e := samvad.AsError(err)
	switch {
	case err == nil || errors.Is(err, samvad.ErrRemote) && e.Code == samvad.CodeSkillNotFound:
		d.OK(check, "%s accepts what %s signs", name, signer.ID())
	case errors.Is(err, samvad.ErrRemote) && e.Code == samvad.CodeAuthFailed:
		d.Failed(check, fmt.Sprintf("at %s: agent.trust_peer(%q, %q)", name, signer.ID(),
			base64.StdEncoding.EncodeToString(signer.Public())),
			fmt.Errorf("%s does not accept this key of the hub (AUTH_FAILED)", name))
	case errors.Is(err, samvad.ErrRemote) && e.Code == samvad.CodeTimestampExpired:
		d.Failed(check, "set the clocks: timedatectl set-ntp true", err)
	case errors.Is(err, samvad.ErrRemote):
		d.OK(check, "%s answered %s, after it had accepted the signature or without looking at it", name, e.Code)
	default:
		d.Failed(check, "agents."+name+".samvad.url; see the agent's log", err)
	}
}
