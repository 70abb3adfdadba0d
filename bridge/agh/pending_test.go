package agh

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	protocol "github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
)

// whoisTo gives a decoded whois request to one peer, or to all.
func whoisTo(t *testing.T, id, to string, expires time.Time) *protocol.Envelope {
	t.Helper()
	e := &protocol.Envelope{ID: id, WorkspaceID: "w", Channel: "c", From: "alice", To: to, TS: time.Now().Unix()}
	if !expires.IsZero() {
		e.ExpiresAt = expires.Unix()
	}
	if err := e.SetContent(&protocol.Whois{Type: protocol.WhoisRequest}); err != nil {
		t.Fatal(err)
	}
	b, err := e.Encode()
	if err == nil {
		e, err = protocol.Decode(b)
	}
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestHeldInVain: messages for a peer that does not connect are refused after one
// greet interval. The held messages are bounded, for each user and in all.
func TestHeldInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := make(chan string, 2*maxPending)
		h := &pending{within: 30 * time.Second, refuse: func(m pendingMessage) { refused <- m.res.Envelope.ID }}
		message := func(user, id string) pendingMessage {
			return pendingMessage{user: user, res: protocol.Result{Envelope: whoisTo(t, id, "bob", time.Time{})},
				again: func() {}}
		}
		bob, carol := peerAddress{"w", "c", "bob"}, peerAddress{"w", "c", "carol"}
		if !h.add(bob, message("alice", "msg_1")) || !h.add(carol, message("alice", "msg_2")) {
			t.Fatal("there is no room")
		}
		if list := h.take(carol, nil); len(list) != 1 || list[0].res.Envelope.ID != "msg_2" {
			t.Errorf("for carol there is %v", list)
		}
		time.Sleep(30*time.Second - time.Nanosecond)
		synctest.Wait()
		if len(refused) > 0 {
			t.Errorf("%s was refused before its time", <-refused)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if len(refused) != 1 || <-refused != "msg_1" || h.count != 0 || h.bytes != 0 ||
			len(h.byAddress)+len(h.bySender) != 0 {
			t.Errorf("not refused, or kept after: %+v", h)
		}
		for n := range maxPending + maxPendingEach {
			user := fmt.Sprint("user", n/(maxPendingEach+1))
			if kept, room := h.add(bob, message(user, fmt.Sprint("msg_", n))),
				n%(maxPendingEach+1) < maxPendingEach && n < maxPending+maxPending/maxPendingEach; kept != room {
				t.Fatalf("the message %d of all: kept %v, room %v", n, kept, room)
			}
		}
		h.close()
		if h.add(bob, message("alice", "msg_3")) {
			t.Error("kept by a hub that stops")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(refused) > 0 {
			t.Error("refused by a hub that has stopped")
		}
	})
}

// TestQuestionsForNewPeers: an undirected whois is sent to each hub once, a directed
// one to its peer's hub, and neither after it has expired.
func TestQuestionsForNewPeers(t *testing.T) {
	h := &pending{within: 30 * time.Second}
	now := time.Now()
	for id, to := range map[string]string{"msg_all": "", "msg_bob": "bob"} {
		q := h.addWhois(whoisTo(t, id, to, time.Time{}), now)
		if to == "" {
			if out := h.notSentTo(q, []string{"one", "two"}); len(out) != 2 {
				t.Errorf("sent to %q", out)
			}
			if out := h.notSentTo(q, []string{"two"}); len(out) != 0 {
				t.Errorf("sent to %q again", out)
			}
		}
	}
	for _, c := range []struct {
		peer, node string
		after      time.Duration
		want       []string
	}{
		{"carol", "two", 0, nil},
		{"carol", "three", 0, []string{"msg_all"}},
		{"carol", "three", 0, nil},
		{"bob", "two", 0, []string{"msg_bob"}},
		{"bob", "two", 0, nil},
		{"bob", "four", 30 * time.Second, nil},
	} {
		var got []string
		for _, e := range h.whoisFor(peerAddress{"w", "c", c.peer}, c.node, now.Add(c.after)) {
			got = append(got, e.ID)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s at %s after %s: %q, want %q", c.peer, c.node, c.after, got, c.want)
		}
	}
	if len(h.whois) > 0 {
		t.Error("an expired whois is kept")
	}
	for n := range maxWhois + 1 {
		h.addWhois(whoisTo(t, fmt.Sprint("msg_", n), "", time.Time{}), now)
	}
	if len(h.whois) != maxWhois || h.whois[0].e.ID != "msg_1" {
		t.Errorf("%d whois are kept", len(h.whois))
	}
}

// TestOwedUntilItIsOver: an expired hand-off for an absent peer is dropped from any
// place in the queue, and not published.
func TestOwedUntilItIsOver(t *testing.T) {
	j, err := journal.Open(t.Context(), journal.Config{Store: testjournal.Memory(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	}()
	now := time.Now()
	b := &Binding{c: Config{Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return now }},
		ctx:      t.Context(),
		handoffs: journal.NewTable[handoff](j, "agh.handoffs", 0)}
	bob := member{peerAddress: peerAddress{"w", "c", "bob"}, node: "two"}
	for _, e := range []*protocol.Envelope{whoisTo(t, "msg_long", "bob", time.Time{}),
		whoisTo(t, "msg_short", "bob", now.Add(time.Minute)), whoisTo(t, "msg_far", "bob", now.Add(time.Hour))} {
		if err := b.handOff(e, bob.node, bob.peer); err != nil {
			t.Fatal(err)
		}
	}
	o := &handoffQueue{byPeer: map[peerAddress][]queuedHandoff{}}
	for row, err := range b.handoffs.Range(t.Context(), "two/") {
		if err != nil {
			t.Fatal(err)
		}
		if row.Until.After(now.Add(handoffTTL)) {
			t.Errorf("kept for %s", row.Until.Sub(now))
		}
		o.byPeer[bob.peerAddress] = append(o.byPeer[bob.peerAddress], queuedHandoff{row: row})
		o.waiting++
	}
	for _, c := range []struct {
		after     time.Duration
		listens   bool
		out, kept int
		left      bool
	}{
		{59 * time.Second, false, 0, 3, true},
		{time.Minute, false, 0, 2, true},
		{time.Minute, true, 2, 0, true},
		{time.Minute, true, 0, 0, false},
	} {
		// expires_at has whole seconds.
		out, left := o.due(bob.peerAddress, c.listens, now.Truncate(time.Second).Add(c.after))
		if len(out) != c.out || o.waiting != c.kept || len(o.byPeer[bob.peerAddress]) != c.kept || left != c.left {
			t.Errorf("after %s: %d are published, %d wait, left %v; want %+v", c.after, len(out), o.waiting, left, c)
		}
	}
	if len(o.byPeer) > 0 {
		t.Error("a peer without hand-offs is still in the queue")
	}
}
