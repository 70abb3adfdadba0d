package agh

import (
	"testing"
	"time"
)

// TestMemberOfAnotherHub: a hub delivers its waiting messages once it learns that a
// peer is connected to another hub. Before, the peer was unknown, away, or at a
// third hub.
func TestMemberOfAnotherHub(t *testing.T) {
	m := &members{node: "here", limit: 10, byAddress: map[peerAddress]*member{}, byPeer: map[[2]string][]*member{},
		byChannel: map[[2]string]map[string]bool{}}
	now := time.Date(2027, 3, 4, 12, 0, 0, 0, time.UTC)
	at := peerAddress{"w", "c", "p"}
	for _, c := range []struct {
		name, node string
		before     func()
		back       bool
	}{
		{"not known", "there", func() {}, true},
		{"there still", "there", func() {}, false},
		{"something waits", "there", func() { m.markAway(at) }, true},
		{"somewhere else", "elsewhere", func() { m.byAddress[at].away = false }, true},
	} {
		c.before()
		now = now.Add(time.Second)
		if back := m.note(peerRecord{Workspace: at.workspaceID, Channel: at.channel, Peer: at.peer,
			Name: "w/p", Node: c.node, Seen: now}); back != c.back {
			t.Errorf("%s: back %v, want %v", c.name, back, c.back)
		}
	}
}
