package aghnats

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"github.com/parley-hub/parley/agh"
)

// User may connect with its credentials and speak as some peers.
// Exactly one of Token, Password (with Name as the user), NKey and Anonymous
// is set.
type User struct {
	Name      string
	Token     string
	Password  string
	NKey      string // public user key, U…
	Anonymous bool   // for connections without credentials; at most one user
	// Peers are the Peer IDs or handles that the user may speak as; an entry
	// that ends in * allows every id with that prefix. An id that several users
	// may take belongs to the user that greeted with it, until the peer is gone.
	Peers []string
	// Workspaces that the user may see and speak in; "*" alone means all. The
	// server refuses the user's publications and subscriptions in others.
	Workspaces []string
	MaxPeers   int // ids that the user may speak as at once; 0 means 4096
}

func (u *User) check() error {
	set := 0
	for _, on := range []bool{u.Token != "", u.Password != "", u.NKey != "", u.Anonymous} {
		if on {
			set++
		}
	}
	switch {
	case u.Name == "":
		return errors.New("aghnats: a user needs a name")
	case set != 1:
		return fmt.Errorf("aghnats: user %s needs exactly one of token, password, nkey and anonymous", u.Name)
	case u.NKey != "" && !nkeys.IsValidPublicUserKey(u.NKey):
		return fmt.Errorf("aghnats: user %s: nkey is no public user key", u.Name)
	case len(u.Peers) == 0 || len(u.Workspaces) == 0:
		return fmt.Errorf("aghnats: user %s needs peers and workspaces", u.Name)
	}
	for _, w := range u.Workspaces {
		if w == "*" && len(u.Workspaces) == 1 {
			continue
		}
		if !agh.ValidWorkspaceID(w) || strings.ContainsAny(w, "${}") {
			return fmt.Errorf("aghnats: user %s: workspace %q cannot be part of a subject", u.Name, w)
		}
	}
	return nil
}

// May reports whether u may speak as a peer in a workspace, unless another user lists the peer exactly.
func (u *User) May(workspaceID, peer string) bool {
	return len(u.Workspaces) > 0 && u.sees(workspaceID) && u.speaksAs(peer)
}

// speaksAs reports whether u may use a peer id.
func (u *User) speaksAs(peer string) bool {
	return slices.ContainsFunc(u.Peers, func(p string) bool {
		prefix, wild := strings.CutSuffix(p, "*")
		return p == peer || wild && strings.HasPrefix(peer, prefix)
	})
}

func (u *User) sees(workspaceID string) bool {
	return u.Workspaces[0] == "*" || slices.Contains(u.Workspaces, workspaceID)
}

// uid names the user in subjects and accounts.
func (u *User) uid() string {
	sum := sha256.Sum256([]byte(u.Name))
	return hex.EncodeToString(sum[:8])
}

// authenticator is the gateway as its NATS server sees it.
type authenticator Gateway

// Check implements [server.Authentication].
func (g *authenticator) Check(c server.ClientAuthentication) bool {
	if c.Kind() != server.CLIENT {
		return false
	}
	o := c.GetOpts()
	g.mu.RLock()
	defer g.mu.RUnlock()
	if o.Username == g.hubUser && same(o.Password, g.hubPassword) {
		account := g.hub
		if a := g.users[o.Name]; a != nil {
			account = a.account
		}
		c.RegisterUser(&server.User{Username: g.hubUser, Account: account})
		return true
	}
	a := g.proofs[proofOf(o)]
	if a == nil || o.JWT != "" || a.user.NKey != "" && !signed(a.user.NKey, o.Sig, c.GetNonce()) {
		return false
	}
	c.RegisterUser(&server.User{Username: a.user.Name, Account: a.account, Permissions: a.user.permissions()})
	return true
}

// proofOf gives the key of a user by its credentials: a hash of the secret ones,
// so that the time of a look-up reveals nothing.
func proofOf(o *server.ClientOpts) string {
	kind, text := "anonymous", ""
	switch {
	case o.Token != "":
		kind, text = "token", o.Token
	case o.Nkey != "":
		kind, text = "nkey", o.Nkey
	case o.Username != "" || o.Password != "":
		kind, text = "password", o.Username+"\x00"+o.Password
	}
	sum := sha256.Sum256([]byte(text))
	return kind + string(sum[:])
}

func (u *User) proof() string {
	o := &server.ClientOpts{Token: u.Token, Nkey: u.NKey}
	if u.Password != "" {
		o.Username, o.Password = u.Name, u.Password
	}
	return proofOf(o)
}

// same compares secrets of any lengths in constant time.
func same(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

func signed(key, sig string, nonce []byte) bool {
	if len(nonce) == 0 {
		return false
	}
	raw, err := base64.RawURLEncoding.DecodeString(sig)
	if err != nil {
		raw, err = base64.StdEncoding.DecodeString(sig)
		if err != nil {
			return false
		}
	}
	pub, err := nkeys.FromPublicKey(key)
	return err == nil && pub.Verify(nonce, raw) == nil
}
