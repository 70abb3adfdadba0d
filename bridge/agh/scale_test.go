package agh_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/node"
)

func greeting(t testing.TB, workspace, channel, peer string) (string, []byte) {
	t.Helper()
	card, err := agh.NewCard(peer, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	e := &agh.Envelope{ID: agh.NewID(), WorkspaceID: workspace, Channel: channel, From: peer, TS: time.Now().Unix()}
	return written(t, e, &agh.Greet{Card: card})
}

// 10,000 peers in 1,000 channels greet. All are known, and a message to a channel is
// delivered to its ten members only.
func TestManyPeers(t *testing.T) {
	peers, channels := 10_000, 1_000
	if testing.Short() {
		peers, channels = 1_000, 100
	}
	w := newWorld(t, func(c *node.Config) {
		c.AGH.Users = map[string]node.AGHUser{}
		for i := range 4 { // one user may fill a quarter of the presence, and speak as 4,096 peers
			c.AGH.Users[fmt.Sprint(i)] = node.AGHUser{Token: fmt.Sprint(i), Peers: []string{fmt.Sprintf("p%d-*", i)},
				Workspaces: []string{"acme"}}
		}
	})
	before := w.Hub().Directory().Len()
	var conns []*nats.Conn
	for i := range 4 {
		conns = append(conns, w.connect(fmt.Sprint(i)))
	}
	for i := range peers {
		subject, b := greeting(t, "acme", fmt.Sprintf("c%d", i%channels), fmt.Sprintf("p%d-%d", i%4, i))
		if err := conns[i%4].Publish(subject, b); err != nil {
			t.Fatal(err)
		}
	}
	w.until("all are known", func() bool { return w.Hub().Directory().Len() == before+peers+channels })
	said := &agh.Envelope{ID: agh.NewID(), WorkspaceID: "acme", Channel: "c7", Surface: agh.SurfaceThread,
		ThreadID: "thread_abc", From: "p3-7", TS: time.Now().Unix()}
	if err := said.SetContent(&agh.Say{Text: "seven"}); err != nil {
		t.Fatal(err)
	}
	b, err := said.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := conns[3].Publish("agh.network.v0.acme.c7.broadcast", b); err != nil {
		t.Fatal(err)
	}
	w.until("the notice is recorded", func() bool { return len(w.messages(parley.Notice)) == 1 })
	if to := w.messages(parley.Notice)[0].Recipients(); len(to) != 10 { // the channel itself, and nine others
		t.Errorf("%d recipients: %q", len(to), to)
	}
}

// On an operator's NATS the hub is one more peer, and messages are unsigned.
func TestOperatorsNATS(t *testing.T) {
	s, err := server.NewServer(&server.Options{ServerName: "operator", Host: "127.0.0.1", Port: server.RANDOM_PORT,
		NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server does not get ready")
	}
	w := newWorld(t, func(c *node.Config) {
		c.Listen.AGH, c.AGH.URL, c.AGH.Users, c.Policy.Assurance = "", s.ClientURL(), nil, "unsigned"
	})
	nc, err := nats.Connect(s.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	alice := &agh.Client{Transport: transport(nc), WorkspaceID: "acme", Channel: "builders", PeerID: "alice"}
	if err := alice.Join(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.here("acme", "alice")
	p := &peer{Client: alice, nc: nc}
	end, err := p.meets(t, "crew__weather").Ask(t.Context(), "crew__weather", &agh.Say{Text: `{"city":"Bern"}`})
	if err != nil || end.State != agh.StateCompleted {
		t.Fatalf("%+v, %v", end, err)
	}
}
