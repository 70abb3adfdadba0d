package aghnats

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/parley-hub/parley/agh"
)

// hubFixture is a gateway with three users: alice and bob in ws, eve in other.
type hubFixture struct {
	*Gateway
	refused chan error
}

func serve(t *testing.T, change func(*Gateway)) *hubFixture {
	t.Helper()
	f := &hubFixture{refused: make(chan error, 64)}
	f.Gateway = &Gateway{
		Router: &agh.Router{},
		Listen: "127.0.0.1:0",
		Users: []User{
			{Name: "alice", Token: "ta", Peers: []string{"alice", "alice2"}, Workspaces: []string{"ws"}},
			{Name: "bob", Password: "pb", Peers: []string{"bob.*"}, Workspaces: []string{"ws"}},
			{Name: "eve", Token: "te", Peers: []string{"eve", "bob.*"}, Workspaces: []string{"other"}},
			{Name: "mallory", Token: "tm", Peers: []string{"mallory", "bob.*"}, Workspaces: []string{"ws"}},
		},
		Refused: func(_, _ string, _ []byte, res agh.Result) { f.refused <- res.Err },
	}
	if change != nil {
		change(f.Gateway)
	}
	if err := f.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

func (f *hubFixture) connect(t *testing.T, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect("nats://"+f.Addr(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func (f *hubFixture) alice(t *testing.T) *nats.Conn   { return f.connect(t, nats.Token("ta")) }
func (f *hubFixture) bob(t *testing.T) *nats.Conn     { return f.connect(t, nats.UserInfo("bob", "pb")) }
func (f *hubFixture) eve(t *testing.T) *nats.Conn     { return f.connect(t, nats.Token("te")) }
func (f *hubFixture) mallory(t *testing.T) *nats.Conn { return f.connect(t, nats.Token("tm")) }

func (f *hubFixture) refusal(t *testing.T) error {
	t.Helper()
	select {
	case err := <-f.refused:
		return err
	case <-time.After(time.Minute):
		t.Fatal("nothing was refused")
		return nil
	}
}

// listen subscribes to subject, as any peer may try to.
func listen(t *testing.T, nc *nats.Conn, subject string) *nats.Subscription {
	t.Helper()
	sub, err := nc.SubscribeSync(subject)
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return sub
}

func next(t *testing.T, sub *nats.Subscription) *nats.Msg {
	t.Helper()
	m, err := sub.NextMsg(time.Minute)
	if err != nil {
		t.Fatalf("%s: %v", sub.Subject, err)
	}
	return m
}

// expectNone checks that no message waits on sub. The caller first receives a later
// message, so that an earlier one would have arrived.
func expectNone(t *testing.T, sub *nats.Subscription) {
	t.Helper()
	if n, _, err := sub.Pending(); err != nil || n != 0 {
		m, _ := sub.NextMsg(time.Second)
		t.Errorf("%s: received %s on %s", sub.Subject, m.Data, m.Subject)
	}
}

func greet(ws, peer string) []byte { return envelope(ws, "greet", peer, card(peer), "") }

func card(peer string) string {
	return `{"peer_card":{"peer_id":"` + peer +
		`","profiles_supported":["agh-network/v0"],"capabilities":[],"artifacts_supported":[],"trust_modes_supported":[]}}`
}

func envelope(ws, kind, from, body, more string) []byte {
	return fmt.Appendf(nil,
		`{"protocol":"agh-network/v0","id":%q,"workspace_id":%q,"kind":%q,"channel":"c","from":%q,"ts":%d,"body":%s,"proof":null%s}`+"\n",
		agh.NewID(), ws, kind, from, time.Now().Unix(), body, more)
}

const thread = `,"surface":"thread","thread_id":"thread_abc"`

func say(ws, from, to, text string) []byte {
	if to != "" {
		to = `,"to":"` + to + `"`
	}
	return envelope(ws, "say", from, `{"text":"`+text+`"}`, thread+to)
}

func publish(t *testing.T, nc *nats.Conn, subject string, data []byte) {
	t.Helper()
	if err := errors.Join(nc.Publish(subject, data), nc.Flush()); err != nil {
		t.Fatal(err)
	}
}

const cast = "agh.network.v0.ws.c.broadcast"

func peerSubject(t *testing.T, ws, peer string) string {
	t.Helper()
	s, err := agh.PeerSubject(ws, "c", peer)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// AGH-052, AGH-053, AGH-056, AGH-098: admitted messages reach the channel byte for
// byte on the ordinary subjects, and no other workspace.
func TestGatewayRelays(t *testing.T) {
	f := serve(t, nil)
	alice, bob, eve := f.alice(t), f.bob(t), f.eve(t)
	atBob, atEve := listen(t, bob, "agh.network.v0.ws.>"), listen(t, eve, "agh.network.v0.other.>")
	listen(t, eve, cast) // the server refuses this subscription
	toBob := listen(t, bob, peerSubject(t, "ws", "bob.1"))

	data := greet("ws", "alice")
	publish(t, alice, cast, data)
	if m := next(t, atBob); m.Subject != cast || string(m.Data) != string(data) {
		t.Fatalf("received %s on %s", m.Data, m.Subject)
	}
	atAlice := listen(t, alice, "agh.network.v0.ws.c.>")
	publish(t, bob, cast, greet("ws", "bob.1"))
	next(t, atAlice)
	next(t, atBob) // its own greeting, as on any NATS

	data = say("ws", "alice", "bob.1", "hello")
	publish(t, alice, peerSubject(t, "ws", "bob.1"), data)
	if m := next(t, toBob); string(m.Data) != string(data) {
		t.Fatalf("received %s", m.Data)
	}
	next(t, atBob)
	data = say("ws", "bob.1", "", "to all")
	publish(t, bob, cast, data)
	if m := next(t, atAlice); string(m.Data) != string(data) {
		t.Fatalf("received %s", m.Data) // and not the directed one before
	}
	publish(t, eve, "agh.network.v0.other.c.broadcast", greet("other", "eve"))
	if m := next(t, atEve); !strings.Contains(m.Subject, "other") {
		t.Errorf("another workspace received %s", m.Data)
	}
	expectNone(t, atEve)
}

// Digest §12 (4): a spoofed greet and an unsolicited whois answer reach no peer.
func TestGatewayRefusesSpoofing(t *testing.T) {
	f := serve(t, nil)
	alice, bob, mallory := f.alice(t), f.bob(t), f.mallory(t)
	atAlice := listen(t, alice, "agh.network.v0.ws.>")
	publish(t, bob, cast, greet("ws", "bob.1"))
	next(t, atAlice)

	answer := func(from, to, replyTo string) []byte {
		return envelope("ws", "whois", from, `{"type":"response",`+card(from)[1:], `,"to":"`+to+`","reply_to":"`+
			replyTo+`"`)
	}
	toAlice := peerSubject(t, "ws", "alice")
	for name, c := range map[string]struct {
		subject string
		data    []byte
		want    error
	}{
		"greet as another user's peer":  {cast, greet("ws", "alice"), agh.ErrForbidden},
		"greet as a peer that is taken": {cast, greet("ws", "bob.1"), agh.ErrForbidden},
		"say as another":                {cast, say("ws", "alice", "", "x"), agh.ErrForbidden},
		"unsolicited answer":            {toAlice, answer("mallory", "alice", "q"), agh.ErrUnsolicited},
		"answer as another":             {toAlice, answer("alice2", "alice", "q"), agh.ErrForbidden},
		"another workspace": {"agh.network.v0.other.c.broadcast", greet("other", "mallory"),
			agh.ErrForbidden},
		"AGH-057 subject and envelope":  {toAlice, say("ws", "mallory", "", "x"), agh.ErrSubject},
		"AGH-057 broadcast of directed": {cast, say("ws", "mallory", "alice", "x"), agh.ErrSubject},
		"AGH-057 other channel": {"agh.network.v0.ws.d.broadcast", say("ws", "mallory", "", "x"),
			agh.ErrSubject},
		"channel-only subject": {"agh.network.v0.c.broadcast", say("ws", "mallory", "", "x"),
			agh.ErrForbidden},
		"no peer and no broadcast":       {"agh.network.v0.ws.c", say("ws", "mallory", "", "x"), agh.ErrSubject},
		"something on the reply subject": {replyPrefix + "x", say("ws", "mallory", "", "x"), agh.ErrForbidden},
		"straight to the import":         {inPrefix + cast, say("ws", "alice", "", "x"), agh.ErrForbidden},
		"not an envelope":                {cast, []byte("{"), agh.ErrMalformed},
		"AGH-054 no such peer": {peerSubject(t, "ws", "nobody"), say("ws", "mallory", "nobody", "x"),
			agh.ErrNotTarget},
	} {
		publish(t, mallory, c.subject, c.data)
		if err := f.refusal(t); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	// The subjects between the accounts are not for peers.
	for _, subject := range []string{upPrefix + "x." + inPrefix + cast, toPrefix + "x." + toAlice,
		"_INBOX.x", "_R_.x"} {
		publish(t, mallory, subject, say("ws", "alice", "", "x"))
	}
	publish(t, mallory, cast, say("ws", "mallory", "", "last"))
	if m := next(t, atAlice); !strings.Contains(string(m.Data), "last") {
		t.Errorf("received %s", m.Data)
	}
	expectNone(t, atAlice)
}

// A whois by NATS request gets its answers on the reply subject, from a hosted peer
// and from a peer that answers with Respond. No other peer receives them.
func TestGatewayWhoisRequest(t *testing.T) {
	f := serve(t, nil)
	c, err := agh.NewCard("desk", "Desk", nil)
	if err != nil {
		t.Fatal(err)
	}
	alice, bob, mallory := f.alice(t), f.bob(t), f.mallory(t)
	spy, inboxes := listen(t, mallory, "agh.network.v0.ws.>"), listen(t, mallory, "_INBOX.>")
	if err := f.Host(&agh.Local{WorkspaceID: "ws", Channel: "c", Card: c}); err != nil {
		t.Fatal(err)
	}
	if m := next(t, spy); !strings.Contains(string(m.Data), `"peer_id":"desk"`) {
		t.Fatalf("a spy received %s on %s", m.Data, m.Subject)
	}
	ask := func(to string) []byte {
		return envelope("ws", "whois", "alice", `{"type":"request"}`, `,"to":"`+to+`"`)
	}
	m, err := alice.Request(peerSubject(t, "ws", "desk"), ask("desk"), 10*time.Second)
	if err != nil || !strings.Contains(string(m.Data), `"display_name":"Desk"`) {
		t.Fatalf("got %v, %v", m, err)
	}

	_, err = bob.Subscribe(peerSubject(t, "ws", "bob.1"), func(m *nats.Msg) {
		q, err := agh.Decode(m.Data)
		if err != nil {
			return
		}
		m.Respond(envelope("ws", "whois", "bob.1", `{"type":"response",`+card("bob.1")[1:],
			`,"to":"alice","reply_to":"`+q.ID+`"`))
	})
	if err := errors.Join(err, bob.Flush()); err != nil {
		t.Fatal(err)
	}
	publish(t, bob, cast, greet("ws", "bob.1"))
	next(t, spy)
	atAlice := listen(t, alice, peerSubject(t, "ws", "alice"))
	m, err = alice.Request(peerSubject(t, "ws", "bob.1"), ask("bob.1"), 10*time.Second)
	if err != nil || !strings.Contains(string(m.Data), `"from":"bob.1"`) {
		t.Fatalf("got %v, %v", m, err)
	}
	next(t, atAlice) // on its own subject too
	publish(t, alice, cast, say("ws", "alice", "", "last"))
	if m := next(t, spy); !strings.Contains(string(m.Data), "last") {
		t.Errorf("a spy received %s on %s", m.Data, m.Subject)
	}
	expectNone(t, inboxes)
}

// Digest §12 (5): no connection without credentials; each kind of them works.
func TestGatewayCredentials(t *testing.T) {
	kp, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	pub, err := kp.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	f := serve(t, func(g *Gateway) {
		g.Users = append(g.Users, User{Name: "key", NKey: pub, Peers: []string{"key"}, Workspaces: []string{"*"}})
	})
	url := "nats://" + f.Addr()
	for name, opts := range map[string][]nats.Option{
		"none":           nil,
		"wrong token":    {nats.Token("x")},
		"wrong password": {nats.UserInfo("bob", "x")},
		"wrong user":     {nats.UserInfo("alice", "pb")},
		"wrong nkey":     {nats.Nkey(pub, func([]byte) ([]byte, error) { return make([]byte, 64), nil })},
	} {
		if nc, err := nats.Connect(url, opts...); err == nil {
			nc.Close()
			t.Errorf("%s: let in", name)
		}
	}
	nc := f.connect(t, nats.Nkey(pub, kp.Sign))
	sub := listen(t, nc, "agh.network.v0.*.*.broadcast")
	publish(t, f.alice(t), cast, greet("ws", "alice"))
	publish(t, f.eve(t), "agh.network.v0.other.c.broadcast", greet("other", "eve"))
	next(t, sub)
	next(t, sub)
	if err := f.addUser(User{Name: "anyone", Anonymous: true, Peers: []string{"any.*"},
		Workspaces: []string{"ws"}}); err != nil {
		t.Fatal(err)
	}
	publish(t, f.connect(t), cast, greet("ws", "any.1"))
	for _, u := range []User{
		{}, {Name: "x"}, {Name: "x", Token: "t", Password: "p"}, {Name: "x", NKey: "U"}, {Name: "x", Token: "t"},
		{Name: "x", Token: "t", Peers: []string{"x"}, Workspaces: []string{"a.b"}},
		{Name: "alice", Token: "t", Peers: []string{"x"}, Workspaces: []string{"ws"}},
		{Name: "x", Token: "t", Peers: []string{"alice"}, Workspaces: []string{"*"}},
		{Name: "x", Anonymous: true, Peers: []string{"x"}, Workspaces: []string{"ws"}},
	} {
		if err := f.addUser(u); err == nil {
			t.Errorf("user %+v was let in", u)
		}
	}
}

// The hook is called once per validated message, before the message is republished
// or answered; the gateway does not deliver messages that the hook takes.
func TestGatewayAdmit(t *testing.T) {
	var mu sync.Mutex
	var log []string
	seen := map[string]bool{}
	var f *hubFixture
	taken := make(chan *agh.Envelope, 1)
	f = serve(t, func(g *Gateway) {
		g.Router.Admit = func(_ context.Context, a *agh.Admission) (agh.Decision, error) {
			mu.Lock()
			defer mu.Unlock()
			if seen[agh.ReplayKey(a.Envelope)] {
				return agh.Pass, agh.ErrReplay
			}
			seen[agh.ReplayKey(a.Envelope)] = true
			log = append(log, a.Principal+" "+string(a.Envelope.Kind))
			if s, ok := a.Envelope.Content().(*agh.Say); ok && s.Text == "mine" {
				taken <- a.Envelope
				return agh.Take, nil
			}
			if s, ok := a.Envelope.Content().(*agh.Say); ok && s.Text == "no" {
				return agh.Pass, errors.New("the disk is full")
			}
			return agh.Pass, nil
		}
	})
	alice, bob := f.alice(t), f.bob(t)
	atBob := listen(t, bob, "agh.network.v0.ws.>")
	data := greet("ws", "alice")
	publish(t, alice, cast, data)
	next(t, atBob)
	publish(t, alice, cast, data)
	if err := f.refusal(t); !errors.Is(err, agh.ErrReplay) {
		t.Errorf("got %v", err)
	}
	publish(t, alice, cast, []byte(`{}`))
	if err := f.refusal(t); !errors.Is(err, agh.ErrMalformed) {
		t.Errorf("got %v", err)
	}
	publish(t, alice, cast, say("ws", "alice", "", "no"))
	if err := f.refusal(t); agh.ReasonOf(err) != agh.ReasonInternal {
		t.Errorf("got %v", err)
	}
	publish(t, alice, cast, say("ws", "alice", "", "mine"))
	e := <-taken
	publish(t, alice, cast, say("ws", "alice", "", "last"))
	if m := next(t, atBob); !strings.Contains(string(m.Data), "last") {
		t.Errorf("received %s", m.Data)
	}
	if err := f.Publish(e); err != nil {
		t.Fatal(err)
	}
	if m := next(t, atBob); string(m.Data) != string(e.Raw()) {
		t.Errorf("received %s", m.Data)
	}
	mu.Lock()
	defer mu.Unlock()
	if want := "alice greet,alice say,alice say,alice say"; strings.Join(log, ",") != want {
		t.Errorf("admitted %v", log)
	}
}

// TestConnectionsOfOneUser: connections of one user subscribe at once, and all
// receive. The race detector finds unguarded state that the server shares between
// them.
func TestConnectionsOfOneUser(t *testing.T) {
	subject := peerSubject(t, "ws", "alice")
	for range 10 {
		f := serve(t, nil)
		conns, subs := make([]*nats.Conn, 8), make([]*nats.Subscription, 8)
		for i := range conns {
			conns[i] = f.alice(t)
		}
		begin := make(chan struct{})
		var subscribing sync.WaitGroup
		for i, nc := range conns {
			subscribing.Go(func() {
				<-begin
				var err error
				if subs[i], err = nc.SubscribeSync(subject); err == nil {
					err = nc.Flush()
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		close(begin)
		subscribing.Wait()
		if t.Failed() {
			return
		}
		publish(t, f.nc, toPrefix+f.Users[0].uid()+"."+subject, greet("ws", "bob.1"))
		for _, sub := range subs {
			next(t, sub)
		}
	}
}
