package aghnats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parley-hub/parley/agh"
)

// Two clients of the gateway find each other and work together through it.
func TestClientsThroughGateway(t *testing.T) {
	f := serve(t, nil)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	worker := &agh.Client{Transport: &Transport{Conn: f.bob(t)}, WorkspaceID: "ws", Channel: "c", PeerID: "bob.1",
		Handler: func(ctx context.Context, r *agh.Request) {
			if r.Envelope.WorkID != "" {
				r.Receipt(ctx, agh.StatusAccepted, "", "")
				r.Trace(ctx, &agh.Trace{State: agh.StateCompleted, Message: "done"})
			}
		}}
	alice := f.alice(t)
	boss := &agh.Client{Transport: &Transport{Conn: alice}, WorkspaceID: "ws", Channel: "c", PeerID: "alice"}
	greetings := listen(t, alice, cast)
	if err := errors.Join(boss.Join(ctx), worker.Join(ctx)); err != nil {
		t.Fatal(err)
	}
	for !strings.Contains(string(next(t, greetings).Data), `"from":"bob.1"`) {
	}
	for v, err := range boss.Whois(ctx, "bob.1", "", false) {
		if err != nil {
			t.Fatal(err)
		}
		if v.Envelope.From != "bob.1" {
			t.Errorf("found %s", v.Envelope.From)
		}
		break
	}
	ev, err := boss.Ask(ctx, "bob.1", &agh.Say{Text: "Run the tests."})
	if err != nil || ev.State != agh.StateCompleted {
		t.Fatalf("%+v, %v", ev, err)
	}
	// The hub knows the work too, and refuses messages after its end.
	late := fmt.Appendf(nil,
		`{"protocol":"agh-network/v0","id":"late","workspace_id":"ws","kind":"trace","channel":"c","surface":"direct","direct_id":%q,"from":"bob.1","to":"alice","work_id":%q,"ts":%d,"body":{"state":"failed"},"proof":null}`,
		ev.Envelope.DirectID, ev.Envelope.WorkID, time.Now().Unix())
	publish(t, f.bob(t), peerSubject(t, "ws", "alice"), late)
	if err := f.refusal(t); !errors.Is(err, agh.ErrWorkClosed) {
		t.Errorf("got %v", err)
	}
}

// Hosted peers greet on joining and on every interval.
func TestHostedPeersGreet(t *testing.T) {
	var h hosted
	now := time.Unix(1776366000, 0)
	for i := range 10000 {
		h.add(&agh.Local{WorkspaceID: "ws", Channel: fmt.Sprint("c", i%1000),
			Card: &agh.Card{PeerID: fmt.Sprint("p", i)}}, now.Add(time.Duration(i)*time.Millisecond))
	}
	due := func(after time.Duration) int { return len(h.due(now.Add(after), now.Add(after+30*time.Second))) }
	if n := due(-time.Second); n != 0 {
		t.Errorf("%d too early", n)
	}
	if n := due(4999 * time.Millisecond); n != 5000 {
		t.Errorf("%d of the first half", n)
	}
	h.remove("ws", "c0", "p9000")
	if n := due(10 * time.Second); n != 4999 {
		t.Errorf("%d of the second", n)
	}
	if n := due(35 * time.Second); n != 5000 || len(h.byKey) != 9999 {
		t.Errorf("%d again, %d hosted", n, len(h.byKey))
	}

	f := serve(t, func(g *Gateway) { g.Interval = time.Hour })
	atAlice := listen(t, f.alice(t), cast)
	c, err := agh.NewCard("desk", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Host(&agh.Local{WorkspaceID: "ws", Channel: "c", Card: c}); err != nil {
		t.Fatal(err)
	}
	next(t, atAlice)
	f.beat(time.Now().Add(time.Minute))
	f.beat(time.Now().Add(2 * time.Hour))
	next(t, atAlice)
	expectNone(t, atAlice)
	f.Unhost("ws", "c", "desk")
	f.beat(time.Now().Add(4 * time.Hour))
	publish(t, f.alice(t), cast, greet("ws", "alice"))
	if m := next(t, atAlice); !strings.Contains(string(m.Data), `"from":"alice"`) {
		t.Errorf("received %s", m.Data)
	}
}

// Hosted peers receive messages, answer them, and send messages to peers.
func TestHostedPeersTalk(t *testing.T) {
	type heard struct{ peer, text string }
	got := make(chan heard, 8)
	events := make(chan agh.PeerEvent, 8)
	f := serve(t, func(g *Gateway) {
		g.Admitted = func(_ context.Context, _ string, res agh.Result) {
			for _, e := range res.Events {
				events <- e
			}
			if s, ok := res.Envelope.Content().(*agh.Say); ok {
				for _, peer := range res.Deliver {
					got <- heard{peer, s.Text}
				}
			}
		}
	})
	for _, p := range []string{"desk", "door"} {
		c, err := agh.NewCard(p, "", nil)
		if err == nil {
			err = f.Host(&agh.Local{WorkspaceID: "ws", Channel: "c", Card: c})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	alice := f.alice(t)
	toAlice := listen(t, alice, peerSubject(t, "ws", "alice"))
	publish(t, alice, cast, greet("ws", "alice"))
	if e := <-events; e.PeerID != "alice" || !e.Joined {
		t.Errorf("%+v", e)
	}
	publish(t, alice, peerSubject(t, "ws", "desk"), say("ws", "alice", "desk", "hello"))
	if h := <-got; h != (heard{"desk", "hello"}) {
		t.Errorf("%+v", h)
	}
	send := func(to, text string) error {
		e := &agh.Envelope{WorkspaceID: "ws", Channel: "c", From: "desk", To: to, Surface: agh.SurfaceDirect}
		if err := e.SetContent(&agh.Say{Text: text}); err != nil {
			return err
		}
		out, err := f.Router.Prepare(t.Context(), e)
		if err != nil {
			return err
		}
		return f.Publish(out.Envelope)
	}
	if err := send("alice", "to you"); err != nil {
		t.Fatal(err)
	}
	if m := next(t, toAlice); !strings.Contains(string(m.Data), "to you") {
		t.Errorf("received %s", m.Data)
	}
	expectNone(t, toAlice)
	if err := send("nobody", "x"); !errors.Is(err, agh.ErrNotTarget) {
		t.Errorf("got %v", err)
	}
}

func operator(t *testing.T, js bool) string {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true,
		JetStream: js, StoreDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("no server")
	}
	return s.ClientURL()
}

// AGH-058 on an operator's NATS, where the hub is a peer among others.
func TestGatewayJoins(t *testing.T) {
	url := operator(t, false)
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	all := listen(t, nc, "agh.network.v0.>")
	got := make(chan string, 8)
	g := &Gateway{URL: url, Admitted: func(_ context.Context, _ string, res agh.Result) {
		for _, peer := range res.Deliver {
			got <- peer + " " + res.Envelope.From
		}
	}}
	if err := g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	c, err := agh.NewCard("desk", "Desk", nil)
	if err == nil {
		err = g.Host(&agh.Local{WorkspaceID: "ws", Channel: "c", Card: c})
	}
	if err != nil {
		t.Fatal(err)
	}
	if m := next(t, all); !strings.Contains(string(m.Data), `"from":"desk"`) {
		t.Errorf("received %s", m.Data)
	}
	publish(t, nc, peerSubject(t, "ws", "desk"), say("ws", "alice", "desk", "hello"))
	if s := <-got; s != "desk alice" {
		t.Error(s)
	}
	m, err := nc.Request(cast, envelope("ws", "whois", "alice", `{"type":"request"}`, ""), 10*time.Second)
	if err != nil || !strings.Contains(string(m.Data), `"display_name":"Desk"`) {
		t.Errorf("%v, %v", m, err)
	}
	if g.Addr() != "" {
		t.Error("a joined gateway serves")
	}
	g.Unhost("ws", "c", "desk")
	if len(g.hosted.subs) != 0 {
		t.Errorf("still subscribed to %v", g.hosted.subs)
	}
}

// The optional JetStream profile: stored messages are checked like live ones, and a
// redelivered message keeps its id and is a duplicate.
func TestGatewayReadsStream(t *testing.T) {
	url := operator(t, true)
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: streamName,
		Subjects: []string{agh.SubjectPrefix + ".>"}}); err != nil {
		t.Fatal(err)
	}
	data := say("ws", "alice", "", "stored")
	for _, b := range [][]byte{data, data, []byte("{}"), say("ws", "alice", "", "again")} {
		publish(t, nc, cast, b)
	}
	outcomes := make(chan string, 16)
	tries := 0
	g := &Gateway{URL: url, Durable: "parley-desk-c", Workers: 1, Router: &agh.Router{},
		Refused: func(_, _ string, _ []byte, res agh.Result) { outcomes <- string(res.Outcome) }}
	seen := map[string]bool{}
	g.Router.Admit = func(_ context.Context, a *agh.Admission) (agh.Decision, error) {
		if a.Envelope.Content().(*agh.Say).Text == "again" {
			if tries++; tries == 1 {
				return agh.Pass, errors.New("not now")
			}
		}
		if seen[a.Envelope.ID] {
			return agh.Pass, agh.ErrReplay
		}
		seen[a.Envelope.ID] = true
		outcomes <- "accepted"
		return agh.Pass, nil
	}
	if err := g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	var got []string
	for range 5 {
		got = append(got, <-outcomes)
	}
	if want := []string{"accepted", "duplicate", "rejected", "rejected", "accepted"}; !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	s, err := js.Stream(t.Context(), streamName)
	if err != nil || s.CachedInfo().State.Msgs != 4 {
		t.Errorf("%+v, %v", s, err)
	}
}

// Digest §12 (13): one user can take only so many ids, and claims expire.
func TestClaimsAreBounded(t *testing.T) {
	var c claims
	now := time.Unix(1776366000, 0)
	for i := range 3 {
		k := claimKey{"ws", fmt.Sprint("p", i)}
		if err := c.may(k, "m", 2, now); (err != nil) != (i == 2) {
			t.Errorf("%d: %v", i, err)
		} else if err == nil {
			c.take(k, "m", now.Add(time.Minute))
		}
	}
	k := claimKey{"ws", "p0"}
	if err := c.may(k, "b", 2, now); err != errTaken {
		t.Error(err)
	}
	if err := c.may(claimKey{"ws", "b"}, "b", 2, now); err != nil {
		t.Error(err)
	}
	now = now.Add(time.Minute)
	if err := c.may(k, "b", 2, now); err != nil || len(c.byKey) != 0 || len(c.count) != 0 {
		t.Error(err, c.byKey, c.count)
	}
	c.take(k, "b", now.Add(time.Minute))
	if c.holder(k, now) != "b" || c.holder(claimKey{"ws", "p1"}, now) != "" {
		t.Error("holders")
	}
}

// BenchmarkGatewayRelay sends one say from a peer through the hub to another peer.
func BenchmarkGatewayRelay(b *testing.B) {
	g := &Gateway{Listen: "127.0.0.1:0", Users: []User{
		{Name: "a", Token: "a", Peers: []string{"a"}, Workspaces: []string{"ws"}},
		{Name: "b", Token: "b", Peers: []string{"b"}, Workspaces: []string{"ws"}}}}
	if err := g.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	defer g.Close()
	var conns [2]*nats.Conn
	for i, token := range []string{"a", "b"} {
		nc, err := nats.Connect("nats://"+g.Addr(), nats.Token(token))
		if err != nil {
			b.Fatal(err)
		}
		defer nc.Close()
		conns[i] = nc
	}
	heard := make(chan *nats.Msg, 4096)
	if _, err := conns[1].ChanSubscribe(cast, heard); err != nil {
		b.Fatal(err)
	}
	if err := conns[1].Flush(); err != nil {
		b.Fatal(err)
	}
	for _, window := range []int{1, 256} {
		b.Run(fmt.Sprint("window=", window), func(b *testing.B) {
			open := 0
			for b.Loop() {
				if err := conns[0].Publish(cast, say("ws", "a", "", strings.Repeat("x", 700))); err != nil {
					b.Fatal(err)
				}
				if open++; open == window {
					<-heard
					open--
				}
			}
			for ; open > 0; open-- {
				<-heard
			}
		})
	}
}

// BenchmarkAddUser measures the cost of an account for each user.
func BenchmarkAddUser(b *testing.B) {
	g := &Gateway{Listen: "127.0.0.1:0"}
	if err := g.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	defer g.Close()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if err := g.addUser(User{Name: fmt.Sprint("u", i), Token: fmt.Sprint("t", i),
			Peers: []string{fmt.Sprint("p", i)}, Workspaces: []string{"ws"}}); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzGatewaySubject(f *testing.F) {
	f.Add("agh-up.x.agh-in.agh.network.v0.ws.c.broadcast", []byte("{}"))
	g := &Gateway{Router: &agh.Router{Relay: true},
		users: map[string]*account{"x": {user: User{Name: "x", Token: "t", Peers: []string{"x"},
			Workspaces: []string{"ws"}}, uid: "x"}},
		workers: []chan job{make(chan job, 1)}, ctx: context.Background()}
	f.Fuzz(func(t *testing.T, subject string, data []byte) {
		g.up(&nats.Msg{Subject: subject, Data: data})
		select {
		case j := <-g.workers[0]:
			if res := g.Router.Receive(g.ctx, agh.Inbound{Raw: j.data, Subject: j.subject,
				May: func(e *agh.Envelope) error { return g.may(j.user, e) }}); res.Outcome == agh.Accepted &&
				res.Envelope.From != "x" {
				t.Fatalf("spoofed: %s", data)
			}
		default:
		}
	})
}

func Example() {
	g := &Gateway{
		Listen: "127.0.0.1:0",
		Users:  []User{{Name: "ops", Token: "secret", Peers: []string{"ops.*"}, Workspaces: []string{"ws_alpha"}}},
		Router: &agh.Router{Admit: func(_ context.Context, a *agh.Admission) (agh.Decision, error) {
			fmt.Println(a.Principal, "sent", a.Envelope.Kind, "as", a.Envelope.From) // record it here
			return agh.Pass, nil
		}},
	}
	if err := g.Start(context.Background()); err != nil {
		fmt.Println(err)
		return
	}
	defer g.Close()

	nc, err := nats.Connect("nats://"+g.Addr(), nats.Token("secret"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer nc.Close()
	heard, err := nc.SubscribeSync("agh.network.v0.ws_alpha.builders.broadcast")
	if err != nil {
		fmt.Println(err)
		return
	}
	peer := &agh.Client{Transport: &Transport{Conn: nc}, WorkspaceID: "ws_alpha", Channel: "builders",
		PeerID: "ops.session-42"}
	if err := peer.Join(context.Background()); err != nil {
		fmt.Println(err)
		return
	}
	m, err := heard.NextMsg(10 * time.Second)
	if err != nil {
		fmt.Println(err)
		return
	}
	e, err := agh.Decode(m.Data)
	fmt.Println(e.Kind, e.From, err)
	// Output:
	// ops sent greet as ops.session-42
	// greet ops.session-42 <nil>
}

var _ agh.Reconnecter = (*Transport)(nil)
