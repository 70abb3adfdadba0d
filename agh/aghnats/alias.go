package aghnats

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/parley-hub/parley/agh"
)

// Plain peers, which do not implement trust, refuse an envelope that names a
// verified handle. If the router verifies handles, plain peers therefore see a
// verified peer under a plain peer id, its alias: nickname.fingerprint. They get
// its messages unsigned, from the alias, with the handle and the digest of the
// original in ext. Their messages to the alias reach the peer under its handle.
// No other peer may speak as an alias. Between verified peers every envelope
// passes byte for byte.

// ExtHandle is the ext member of a message from an alias.
const ExtHandle = "parley.handle"

// Verified is the value of [ExtHandle].
type Verified struct {
	Handle string `json:"handle"` // of the verified signer
	Digest string `json:"digest"` // of the signed envelope, sha256:hex
}

// Alias gives the plain peer id of a verified handle; ok is false if the text is
// no handle, or if no peer id can begin with its nickname.
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

// inward replaces an alias by its handle in a plain peer's message to it. All
// other messages are unchanged.
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

// translateRoom gives the room of c and d if e names the room of a and b, else
// the room that e names.
func translateRoom(e *agh.Envelope, a, b, c, d string) (string, error) {
	named, err := agh.VerifiedDirectID(e.WorkspaceID, e.Channel, a, b)
	if err != nil || named != e.DirectID {
		return e.DirectID, err
	}
	return agh.VerifiedDirectID(e.WorkspaceID, e.Channel, c, d)
}

// outward gives data of e for the peer to ("": plain peers). For a plain peer, the
// alias replaces a verified sender; otherwise data is unchanged and aliased is
// false.
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
		return nil // peers on an operator's NATS receive the original
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

// aliasTaken refuses a sender that uses the alias of a verified peer.
func (g *Gateway) aliasTaken(e *agh.Envelope) error {
	if handle, ok := HandleOf(e.From); ok && g.Router.Verifier.Trust {
		return fmt.Errorf("aghnats: that peer id is for %s alone", handle)
	}
	return nil
}
