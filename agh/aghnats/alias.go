package aghnats

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/parley-hub/parley/agh"
)

// Peers that know nothing of trust refuse an envelope in which a verified
// handle stands. Where the router verifies handles, such peers therefore meet a
// verified one under a plain peer id, its alias: nickname.fingerprint. What it
// says reaches them unsigned, from its alias, with the handle and the digest
// of the original in ext; what they say to the alias reaches it under its
// handle. Nobody else may speak as an alias. Between verified peers every
// envelope passes byte for byte.

// ExtHandle is the ext member of a message from an alias.
const ExtHandle = "parley.handle"

// Verified is the value of [ExtHandle].
type Verified struct {
	Handle string `json:"handle"` // whose signature was verified
	Digest string `json:"digest"` // of the signed envelope, sha256:hex
}

// Alias gives the plain peer id of a verified handle; ok is false for what is
// no handle, or one whose nickname no peer id can begin with.
func Alias(handle string) (id string, ok bool) {
	nickname, fingerprint, ok := agh.SplitHandle(handle)
	id = nickname + "." + fingerprint
	return id, ok && agh.ValidPeerID(id)
}

// HandleOf gives the handle that a plain peer id is the alias of.
func HandleOf(id string) (handle string, ok bool) {
	i := strings.LastIndexByte(id, '.')
	if i < 0 {
		return "", false
	}
	handle = id[:i] + "@" + id[i+1:]
	_, _, ok = agh.SplitHandle(handle)
	return handle, ok
}

// inward puts the handle in the place of its alias in what a plain peer says
// to it. Everything else stays as it is.
func (g *Gateway) inward(j job) job {
	if !g.Router.Verifier.Trust || !strings.Contains(j.subject, ".peer.") {
		return j
	}
	e, err := (&agh.Decoder{Lenient: g.Router.Verifier.Lenient, Handles: true,
		Limits: g.Router.Verifier.Limits}).Decode(j.data)
	if err != nil || e.Proof != nil || e.CheckSubject(j.subject) != nil {
		return j // the router says why
	}
	handle, ok := HandleOf(e.To)
	if !ok {
		return j
	}
	c := *e
	c.To = handle
	if c.Surface == agh.SurfaceDirect {
		c.DirectID, err = translateRoom(e, e.From, e.To, e.From, handle)
		if err != nil {
			return j
		}
	}
	b, err := c.Encode()
	if err != nil {
		return j
	}
	subject, err := c.Subject()
	if err != nil {
		return j
	}
	j.data, j.subject = b, subject
	return j
}

// translateRoom gives the room of c and d where e names that of a and b, and
// what e names where it does not.
func translateRoom(e *agh.Envelope, a, b, c, d string) (string, error) {
	named, err := agh.VerifiedDirectID(e.WorkspaceID, e.Channel, a, b)
	if err != nil || named != e.DirectID {
		return e.DirectID, err
	}
	return agh.VerifiedDirectID(e.WorkspaceID, e.Channel, c, d)
}

// outward gives data of e as it reaches the peer to ("": plain peers). To a plain
// peer a verified handle speaks as its alias; aliased is false for any other data,
// which stays as it is.
func (g *Gateway) outward(e *agh.Envelope, data []byte, to string) (_ []byte, aliased bool, err error) {
	alias, ok := Alias(e.From)
	if _, _, verified := agh.SplitHandle(to); !ok || verified || !g.Router.Verifier.Trust {
		return data, false, nil
	}
	c := *e
	c.From, c.Proof = alias, nil
	if c.Surface == agh.SurfaceDirect {
		c.DirectID, err = translateRoom(e, e.From, e.To, alias, e.To)
		if err != nil {
			return nil, false, err
		}
	}
	ofAlias := func(card agh.Card) *agh.Card {
		card.PeerID = alias
		return &card
	}
	switch content := e.Content().(type) {
	case *agh.Greet:
		err = c.SetContent(&agh.Greet{Card: ofAlias(*content.Card), Summary: content.Summary})
	case *agh.Whois:
		if content.Card != nil {
			err = c.SetContent(&agh.Whois{Type: content.Type, Query: content.Query, Card: ofAlias(*content.Card)})
		}
	}
	if err == nil {
		sum := sha256.Sum256(e.Raw())
		err = c.SetExt(ExtHandle, Verified{Handle: e.From, Digest: "sha256:" + hex.EncodeToString(sum[:])})
	}
	if err == nil {
		data, err = c.Encode()
	}
	return data, true, err
}

// publishAliased publishes a verified peer's broadcast to the plain peers of
// its channel, to each user once.
func (g *Gateway) publishAliased(e *agh.Envelope, subject string) error {
	if g.server == nil {
		return nil // who shares an operator's NATS hears the original
	}
	b, aliased, err := g.outward(e, nil, "")
	if err != nil || !aliased {
		return err
	}
	told := map[string]bool{}
	for _, p := range g.Router.Peers(e.WorkspaceID, e.Channel) {
		if _, _, verified := agh.SplitHandle(p.Card.PeerID); verified || p.State == agh.PresenceLocal {
			continue
		}
		a := g.owner(e.WorkspaceID, p.Card.PeerID)
		if a == nil || told[a.uid] {
			continue
		}
		told[a.uid] = true
		if err := g.nc.Publish(toPrefix+a.uid+"."+subject, b); err != nil {
			return err
		}
	}
	return nil
}

// aliasTaken refuses who would speak as somebody's alias.
func (g *Gateway) aliasTaken(e *agh.Envelope) error {
	if handle, ok := HandleOf(e.From); ok && g.Router.Verifier.Trust {
		return fmt.Errorf("aghnats: that peer id is for %s alone", handle)
	}
	return nil
}
