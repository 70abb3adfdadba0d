package agh_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/policy"
)

func withAnonymous(c *node.Config) {
	c.AGH.Users["open"] = node.AGHUser{Anonymous: true, Peers: []string{"made-up.*"}, Workspaces: []string{"acme"}}
}

// inThread makes a say in a thread of the channel, to one peer or to all.
func inThread(t *testing.T, from, to, text string) (subject string, raw []byte) {
	t.Helper()
	return written(t, &agh.Envelope{ID: agh.NewID(), WorkspaceID: "acme", Channel: "builders", From: from, To: to,
		Surface: agh.SurfaceThread, ThreadID: "thread_abc", TS: time.Now().Unix()}, &agh.Say{Text: text})
}

// Peers of an anonymous user are guests. Peers of a user with credentials are not,
// even if the directory does not know them.
func TestPeersOfAnonymousUsersAreGuests(t *testing.T) {
	w := newWorld(t, withAnonymous)
	say := func(nc *nats.Conn, from string) {
		t.Helper()
		subject, raw := inThread(t, from, "listener", "hello")
		if err := nc.Publish(subject, raw); err != nil {
			t.Fatal(err)
		}
		if m := <-w.notices; !strings.HasSuffix(m.From, "/"+from) {
			t.Fatalf("from %s", m.From)
		}
	}
	say(w.connect("ta"), "alice")
	if n := w.Hub().Guests().Stats().Written; n != 0 {
		t.Errorf("%d bytes of the guests' budget for the user alice", n)
	}
	open, err := nats.Connect("nats://" + w.AGH().Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(open.Close)
	say(open, "made-up.1")
	if n := w.Hub().Guests().Stats().Written; n < 3<<10 {
		t.Errorf("%d bytes of the guests' budget for an anonymous peer", n)
	}
}

// A guest is evicted to make room for another: its waiting messages become dead
// letters, and it may come back.
func TestGuestGivesWay(t *testing.T) {
	w := newWorld(t, withAnonymous)
	nc, err := nats.Connect("nats://" + w.AGH().Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	say := func() *parley.Message {
		t.Helper()
		subject, raw := inThread(t, "made-up.1", "listener", "hello")
		if err := nc.Publish(subject, raw); err != nil {
			t.Fatal(err)
		}
		return <-w.notices
	}
	guest := say().From
	notice := &parley.Message{Kind: parley.Notice, From: "listener", To: guest,
		Parts:  []parley.Part{parley.Text("wait")},
		Origin: parley.Origin{Protocol: "api", Peer: "listener"}}
	waiting, err := w.Hub().Accept(t.Context(), hub.Submission{Scope: "go", Message: notice})
	if err != nil {
		t.Fatal(err)
	}
	g := w.Hub().Guests()
	if n := g.Stats().Registrations; n != 1 {
		t.Errorf("%d registrations of guests", n)
	}
	for i := range g.Stats().Limits.Registrations {
		if err := g.Keep(policy.GuestEntry{Kind: policy.Registration, Key: fmt.Sprint("test/", i)}); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok := w.Hub().Directory().Agent(guest); ok {
		t.Error("the evicted guest is still in the directory")
	}
	w.until("the waiting message is a dead letter", func() bool {
		dead := journal.Filter{To: guest, States: []parley.DeliveryState{parley.Dead}}
		for _, d := range w.Hub().Journal().Deliveries(dead) {
			if d.Message == waiting.ID {
				return true
			}
		}
		return false
	})
	if again := say().From; again != guest {
		t.Errorf("the guest came back as %s", again)
	}
}

// A peer that floods a channel with whois requests is refused, and the operator sees
// the refusals.
func TestFloodOfQuestions(t *testing.T) {
	w := newWorld(t, func(c *node.Config) { c.AGH.Broadcasts = 1 })
	heard, err := w.connect("tb").SubscribeSync("agh.network.v0.acme.builders.broadcast")
	if err != nil {
		t.Fatal(err)
	}
	alice := w.connect("ta")
	for range 200 {
		e := &agh.Envelope{ID: agh.NewID(), WorkspaceID: "acme", Channel: "builders", From: "alice",
			TS: time.Now().Unix()}
		subject, raw := written(t, e, &agh.Whois{Type: agh.WhoisRequest})
		if err := alice.Publish(subject, raw); err != nil {
			t.Fatal(err)
		}
	}
	limited := func() (n int) {
		for _, r := range w.Hub().Refused(1000) {
			if r.Code == parley.RateLimited && r.Claim == "acme/alice" {
				n++
			}
		}
		return n
	}
	w.until("most of the questions are refused", func() bool { return limited() >= 150 })
	subject, raw := inThread(t, "alice", "", "that was all")
	if err := alice.Publish(subject, raw); err != nil {
		t.Fatal(err)
	}
	for n := 0; ; n++ {
		m, err := heard.NextMsg(time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(m.Data), "that was all") {
			if n > 50 {
				t.Errorf("%d messages reached the channel", n)
			}
			return
		}
	}
}
