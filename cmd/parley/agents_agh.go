package main

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/agh"
	bridge "github.com/parley-hub/parley/bridge/agh"
	"github.com/parley-hub/parley/node"
)

// meetAGH makes the identity of an AGH peer: WORKSPACE/PEER.
func meetAGH(s adding) (admin.NewIdentity, error) {
	workspace, peer, ok := strings.Cut(s.agh, "/")
	_, _, handle := agh.SplitHandle(peer)
	if !ok || !agh.ValidWorkspaceID(workspace) || !agh.ValidPeerID(peer) && !handle {
		return admin.NewIdentity{}, usage("--agh %q: want WORKSPACE/PEER, for example ws_alpha/patch-worker.s1; a peer is lower-case letters, digits, dots, - and _, or a verified handle nickname@fingerprint", s.agh)
	}
	id := bridge.Identity(workspace, peer)
	return admin.NewIdentity{Protocol: id.Protocol, ID: id.ID}, nil
}

// pasteAGH are the lines that let the peer in, unless the configuration has a
// user that may speak as it, and what it connects with.
func pasteAGH(c *node.Config, name, public, id string) ([]paste, error) {
	workspace, peer, _ := strings.Cut(id, "/")
	user, proof := "", "token=open(\"TOKEN-FILE\").read().strip()"
	for n, u := range c.AGH.Users {
		if matches(u.Workspaces, workspace) && matches(u.Peers, peer) && (user == "" || n < user) {
			user = n
		}
	}
	var out []paste
	if user == "" && c.AGH.URL == "" {
		var b [24]byte
		rand.Read(b[:]) // never fails
		user = strings.NewReplacer("/", "-").Replace(name)
		out = append(out,
			paste{"in the hub's configuration, then `parley reload` or a restart", "TOML", fmt.Sprintf("[agh.users.%q]\ntoken_file = %q\npeers = [%q]\nworkspaces = [%q]", user, user+".token", peer, workspace)},
			paste{"once, beside it, and where the peer runs", "sh", fmt.Sprintf("umask 077; printf %%s %s > %s.token", hex.EncodeToString(b[:]), user)})
		proof = fmt.Sprintf("token=open(%q).read()", user+".token")
	}
	at := c.AGH.URL
	if at == "" {
		host, port, err := net.SplitHostPort(c.Listen.AGH)
		if err != nil { // it serves no peers yet
			host, port = "", "4222"
			out = append(out, paste{"in the hub's configuration, under [listen]", "TOML", `agh = ":4222"`})
		}
		if u, err := url.Parse(public); host == "" && err == nil && u.Hostname() != "" {
			host = u.Hostname()
		}
		at = "nats://" + net.JoinHostPort(host, port)
	}
	subject, err := agh.VerifiedPeerSubject(workspace, "CHANNEL", peer)
	if err != nil { // CHANNEL stands for the channel, whose grammar it has not
		subject, err = agh.VerifiedPeerSubject(workspace, "channel", peer)
		subject = strings.Replace(subject, ".channel.", ".CHANNEL.", 1)
	}
	if err != nil {
		return nil, err
	}
	return append(out,
		paste{"so that it connects, as the user " + user, "Python", fmt.Sprintf("nc = await nats.connect(%q, %s)", at, proof)},
		paste{"to hear the channel, and what is for it alone", "Python", fmt.Sprintf("await nc.subscribe(\"agh.network.v0.%s.CHANNEL.broadcast\", cb=heard); await nc.subscribe(%q, cb=heard)", workspace, subject)}), nil
}

// matches reports whether an entry of list is s, or a prefix of it with *.
func matches(list []string, s string) bool {
	for _, l := range list {
		if prefix, wild := strings.CutSuffix(l, "*"); l == s || wild && strings.HasPrefix(s, prefix) {
			return true
		}
	}
	return false
}
