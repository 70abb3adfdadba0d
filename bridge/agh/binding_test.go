package agh_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/agh"
	bridge "github.com/parley-hub/parley/bridge/agh"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a whole node with NATS peers over real sockets.
type world struct {
	*node.Node
	t      *testing.T
	config node.Config

	mu      sync.Mutex
	records []*journal.Record
	notices chan *parley.Message
	block   chan struct{}
}

func configuration() node.Config {
	return node.Config{Durability: "memory", Listen: node.Listen{AGH: "127.0.0.1:0"},
		Policy: node.Policy{Assurance: "session"},
		AGH: node.AGH{
			Users: map[string]node.AGHUser{
				"alice": {Token: "ta", Peers: []string{"alice"}, Workspaces: []string{"acme"}},
				"bob":   {Token: "tb", Peers: []string{"bob", "bob.*"}, Workspaces: []string{"acme"}},
				"carol": {Token: "tc", Peers: []string{"carol"}, Workspaces: []string{"acme"}},
				"eve":   {Token: "te", Peers: []string{"*"}, Workspaces: []string{"other"}},
			},
			Workspaces: map[string]node.AGHWorkspace{"acme": {Channels: []string{"builders"}}},
		}}
}

func newWorld(t *testing.T, change func(*node.Config)) *world {
	t.Helper()
	w := &world{t: t, config: configuration(), notices: make(chan *parley.Message, 64), block: make(chan struct{})}
	if change != nil {
		change(&w.config)
	}
	w.open()
	t.Cleanup(func() { w.stop() })
	return w
}

type query struct {
	City string `json:"city"`
}

func (w *world) open() {
	w.t.Helper()
	n, err := node.Open(w.t.Context(), w.config)
	if err != nil {
		w.t.Fatal(err)
	}
	w.Node = n
	err = n.Handle(parley.Agent{Name: "crew/weather", Title: "Weather", Exposed: []string{"agh"}},
		parley.Skill("forecast", func(ctx context.Context, m *parley.Message, q query) (map[string]any, error) {
			if q.City == "nowhere" {
				return nil, parley.Refuse(parley.HandlerFailed, "there is no such peerAddress")
			}
			if q.City == "slow" {
				if err := parley.Progress(ctx, "looking"); err != nil {
					return nil, err
				}
				select {
				case <-w.block:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			return map[string]any{"city": q.City, "celsius": 21}, nil
		}, parley.AsDefault()),
		parley.RawSkill("hear", func(_ context.Context, m *parley.Message,
			r parley.Replier) error {
			w.notices <- m
			return nil
		}))
	if err != nil {
		w.t.Fatal(err)
	}
	if err := n.Handle(parley.Agent{Name: "listener", Exposed: []string{"agh"}},
		parley.RawSkill("hear", func(_ context.Context, m *parley.Message, r parley.Replier) error {
			w.notices <- m
			return r.Reply(parley.Text("heard"))
		})); err != nil {
		w.t.Fatal(err)
	}
	if err := n.Handle(parley.Agent{Name: "hidden"}, parley.RawSkill("x",
		func(context.Context, *parley.Message, parley.Replier) error { return nil })); err != nil {
		w.t.Fatal(err)
	}
	n.Hub().Journal().Watch(func(r *journal.Record) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.records = append(w.records, r)
	})
	if err := n.Start(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := w.Close(ctx); err != nil {
		w.t.Error(err)
	}
}

// peer is an AGH peer of the protocol package on a connection of its own.
type peer struct {
	*agh.Client
	nc   *nats.Conn
	got  chan *agh.Request
	stop context.CancelFunc
}

func (w *world) connect(token string) *nats.Conn {
	w.t.Helper()
	nc, err := nats.Connect("nats://"+w.AGH().Addr(), nats.Token(token), nats.RetryOnFailedConnect(false))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(nc.Close)
	return nc
}

func (w *world) join(token, workspace, id string) *peer {
	w.t.Helper()
	p := &peer{nc: w.connect(token), got: make(chan *agh.Request, 64)}
	ctx, stop := context.WithCancel(w.t.Context())
	p.stop = stop
	w.t.Cleanup(stop)
	p.Client = &agh.Client{Transport: transport(p.nc), WorkspaceID: workspace, Channel: "builders", PeerID: id,
		Handler: func(_ context.Context, r *agh.Request) { p.got <- r }}
	if err := p.Join(ctx); err != nil {
		w.t.Fatal(err)
	}
	w.here(workspace, id)
	return p
}

// meets finds other peers by whois, without waiting for their next greeting.
func (p *peer) meets(t *testing.T, ids ...string) *peer {
	t.Helper()
	for _, id := range ids {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		found := false
		for v, err := range p.Whois(ctx, id, "", false) {
			if err != nil {
				t.Fatal(err)
			}
			found = v.Envelope.From == id
			break
		}
		if !found {
			t.Fatalf("%s does not find %s", p.PeerID, id)
		}
	}
	return p
}

// here waits until the hub knows a peer.
func (w *world) here(workspace, id string) {
	w.t.Helper()
	w.until("the peer "+id+" is known", func() bool {
		e, ok := w.Hub().Directory().Lookup("agh", workspace+"/"+id)
		return ok && !w.AGH().Holds(e, bridge.Identity(workspace, id))
	})
}

func (w *world) until(what string, done func() bool) {
	w.t.Helper()
	limit := time.After(time.Minute)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-limit:
			w.t.Fatal("waited in vain until " + what)
		case <-tick.C:
		}
	}
}

// written sets the content of an envelope and gives its subject and bytes, without
// the checks of a client.
func written(t testing.TB, e *agh.Envelope, content any) (subject string, raw []byte) {
	t.Helper()
	err := e.SetContent(content)
	if err == nil {
		raw, err = e.Encode()
	}
	if err == nil {
		subject, err = e.Subject()
	}
	if err != nil {
		t.Fatal(err)
	}
	return subject, raw
}

func (p *peer) next(t *testing.T) *agh.Envelope {
	t.Helper()
	select {
	case r := <-p.got:
		return r.Envelope
	case <-time.After(time.Minute):
		t.Fatalf("%s received nothing", p.PeerID)
		return nil
	}
}

func (p *peer) expectNone(t *testing.T) {
	t.Helper()
	select {
	case r := <-p.got:
		t.Fatalf("%s received %s", p.PeerID, r.Envelope.Raw())
	default:
	}
}

func text(t *testing.T, e *agh.Envelope) string {
	t.Helper()
	s, ok := e.Content().(*agh.Say)
	if !ok {
		t.Fatalf("not a say: %s", e.Raw())
	}
	return s.Text
}

func (w *world) messages(kind parley.Kind) []*parley.Message {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []*parley.Message
	for _, r := range w.records {
		if r.Message != nil && r.Message.Kind == kind && r.Refused == nil {
			out = append(out, r.Message)
		}
	}
	return out
}

// A directed say that begins work reaches a Go handler; receipt, trace and say
// come back (AGH-070, AGH-077).
func TestRequestIn(t *testing.T) {
	w := newWorld(t, nil)
	alice := w.join("ta", "acme", "alice").meets(t, "crew__weather")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var kinds []string
	for ev, err := range alice.Stream(ctx, "crew__weather", &agh.Say{Text: `{"city":"Bern"}`, Intent: "forecast"}) {
		if err != nil {
			t.Fatal(err)
		}
		switch c := ev.Envelope.Content().(type) {
		case *agh.Receipt:
			kinds = append(kinds, "receipt "+string(c.Status))
		case *agh.Say:
			kinds = append(kinds, "say "+c.Text)
		case *agh.Trace:
			kinds = append(kinds, "trace "+string(c.State)+" "+string(c.Result))
		}
		var stated struct{ From, Protocol string }
		if v := ev.Envelope.ExtValue(bridge.ExtParley); v != nil {
			if err := json.Unmarshal(v, &stated); err != nil || stated.From != "crew/weather" ||
				stated.Protocol != "go" {
				t.Errorf("provenance %s, %v", v, err)
			}
		} else if ev.Envelope.Kind != agh.KindReceipt {
			t.Errorf("no provenance in %s", ev.Envelope.Raw())
		}
	}
	want := []string{"receipt accepted", `say {"celsius":21,"city":"Bern"}`,
		`trace completed {"celsius":21,"city":"Bern"}`}
	if !slices.Equal(kinds, want) {
		t.Errorf("%q, want %q", kinds, want)
	}
	m := w.messages(parley.Request)[0]
	if m.From != "guest/agh/acme/alice" || m.To != "crew/weather" || m.Skill != "forecast" ||
		m.Origin.Verdict.Assurance != parley.Session || m.Act != "forecast" {
		t.Errorf("%+v", m)
	}
	if _, err := alice.Ask(ctx, "hidden", &agh.Say{Text: "x"}); err == nil {
		t.Error("an agent that is not exposed was found")
	}
}

func TestFailureAndRefusal(t *testing.T) {
	w := newWorld(t, nil)
	alice := w.join("ta", "acme", "alice").meets(t, "crew__weather")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	end, err := alice.Ask(ctx, "crew__weather", &agh.Say{Text: `{"city":"nowhere"}`})
	if err != nil {
		t.Fatal(err)
	}
	if c, ok := end.Envelope.Content().(*agh.Trace); !ok || c.State != agh.StateFailed ||
		c.Message != "there is no such peerAddress" {
		t.Errorf("%s", end.Envelope.Raw())
	}
	end, err = alice.Ask(ctx, "crew__weather", &agh.Say{Text: "forecast",
		Artifacts: []json.RawMessage{json.RawMessage(`{"town":"Bern"}`)}})
	if err != nil {
		t.Fatal(err)
	}
	if c, ok := end.Envelope.Content().(*agh.Receipt); !ok || c.Status != agh.StatusRejected ||
		!strings.Contains(c.Detail, "reference ") {
		t.Errorf("%s", end.Envelope.Raw())
	} else if ref := c.Detail[strings.Index(c.Detail, "reference ")+10 : len(c.Detail)-1]; ref == "" {
		t.Error("no reference")
	} else if f, ok := w.Hub().Explain(ref); !ok || f.Code != parley.InvalidContent {
		t.Errorf("%+v %v", f, ok)
	}
}

// AGH-053, AGH-055, AGH-056: threads reach the channel, rooms their two peers, and
// neither another workspace. Each message is one append, with a delivery per member.
func TestTalk(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob, carol, eve := w.join("ta", "acme", "alice"), w.join("tb", "acme", "bob"), w.join("tc", "acme", "carol"),
		w.join("te", "other", "alice")
	said, err := alice.Say(t.Context(), "", &agh.Say{Text: "good morning", Intent: "notice"})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []*peer{bob, carol} {
		e := p.next(t)
		if text(t, e) != "good morning" || string(e.Raw()) != string(said.Raw()) {
			t.Errorf("AGH-098 not as it was sent: %s", e.Raw())
		}
	}
	if m := <-w.notices; m.Text() != "good morning" || m.From != "guest/agh/acme/alice" {
		t.Errorf("%+v", m)
	}
	w.mu.Lock()
	for _, r := range w.records {
		if r.Message != nil && r.Message.Text() == "good morning" {
			var to []string
			for _, o := range r.Open {
				to = append(to, o.To)
			}
			if !slices.Equal(to, []string{"agh/acme/builders", "crew/weather", "guest/agh/acme/bob",
				"guest/agh/acme/carol", "listener"}) {
				t.Errorf("deliveries to %q", to)
			}
		}
	}
	w.mu.Unlock()
	if _, err := bob.meets(t, "alice").Direct(t.Context(), "alice", &agh.Say{Text: "between us"}); err != nil {
		t.Fatal(err)
	}
	if e := alice.next(t); text(t, e) != "between us" {
		t.Errorf("%s", e.Raw())
	}
	if _, err := bob.Say(t.Context(), said.ThreadID, &agh.Say{Text: "the last word"}); err != nil {
		t.Fatal(err)
	}
	if e := carol.next(t); text(t, e) != "the last word" {
		t.Errorf("a third peer received a message of the room: %s", e.Raw())
	}
	alice.next(t)
	eve.expectNone(t)
	thread := map[parley.ID]bool{}
	for _, m := range w.messages(parley.Notice) {
		if m.Text() != "between us" {
			thread[m.Conversation] = true
		}
	}
	if len(thread) != 1 {
		t.Errorf("a thread is %d conversations", len(thread))
	}
}

// Work between two peers passes through and is recorded.
func TestWorkBetweenPeers(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join("ta", "acme", "alice"), w.join("tb", "acme", "bob")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		r := <-bob.got
		done <- r.Trace(ctx, &agh.Trace{State: agh.StateCompleted,
			Message: "built", Result: json.RawMessage(`{"ok":true}`)})
	}()
	end, err := alice.meets(t, "bob").Ask(ctx, "bob", &agh.Say{Text: "build it"})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if end.State != agh.StateCompleted {
		t.Errorf("%+v", end)
	}
}

// A request from this process reaches a peer as directed work; its receipt and
// traces come back as events and response.
func TestRequestOut(t *testing.T) {
	w := newWorld(t, nil)
	bob := w.join("tb", "acme", "bob")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ask := func(from, content string) *hub.Call {
		c, err := w.Hub().Begin(ctx, hub.Submission{Scope: "go test",
			Message: &parley.Message{Kind: parley.Request, From: from, To: "guest/agh/acme/bob",
				Parts: []parley.Part{parley.Text(content)}, Origin: parley.Origin{Protocol: "go", Peer: from}}})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	t.Run("completed", func(t *testing.T) {
		c := ask("listener", "build it")
		var said sync.WaitGroup
		said.Go(func() {
			r := <-bob.got
			e := r.Envelope
			if e.From != "listener" || e.Surface != agh.SurfaceDirect || e.WorkID == "" {
				t.Errorf("%s", e.Raw())
			}
			for _, body := range []any{&agh.Receipt{ForID: e.ID, Status: agh.StatusAccepted},
				&agh.Trace{State: agh.StateWorking, Message: "at it"},
				&agh.Trace{State: agh.StateCompleted, Result: json.RawMessage(`{"built":1.10}`)}} {
				out := &agh.Envelope{To: e.From, Surface: e.Surface, WorkID: e.WorkID, ReplyTo: e.ID}
				if err := out.SetContent(body); err != nil {
					t.Error(err)
				}
				if _, err := bob.Send(ctx, out); err != nil {
					t.Error(err)
				}
			}
		})
		var got []string
		for m, err := range c.Stream(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			if got = append(got, m.Kind.String()+" "+m.State.String()); m.Kind == parley.Response &&
				string(m.Parts[0].Data) != `{"built":1.10}` {
				t.Errorf("%s", m.Parts[0].Data)
			}
		}
		if !slices.Equal(got, []string{"event accepted", "event working", "response none"}) {
			t.Errorf("%q", got)
		}
		said.Wait() // the reply can arrive before its sender's call returns
	})
	t.Run("failed", func(t *testing.T) {
		c := ask("hidden", "build it") // not exposed: the hub speaks for the agent
		var said sync.WaitGroup
		said.Go(func() {
			r := <-bob.got
			if r.Envelope.From != bridge.Self {
				t.Errorf("%s", r.Envelope.Raw())
			}
			if err := r.Trace(ctx, &agh.Trace{State: agh.StateFailed, Message: "no bricks"}); err != nil {
				t.Error(err)
			}
		})
		m, err := c.Reply(ctx)
		if err != nil || m.Kind != parley.Failure || !strings.Contains(m.Error.Text, "no bricks") ||
			m.Error.Source != parley.ByPeer || m.Error.Reason != parley.PeerFailed {
			t.Errorf("%+v, %v", m, err)
		}
		said.Wait()
	})
	for reason, want := range map[agh.Reason]parley.Reason{agh.ReasonBusy: parley.PeerBusy,
		agh.ReasonVerificationFailed: parley.KeyUnknown} {
		t.Run("refused as "+string(reason), func(t *testing.T) {
			c := ask("listener", "build it")
			var said sync.WaitGroup
			said.Go(func() {
				e := (<-bob.got).Envelope
				out := &agh.Envelope{To: e.From, Surface: e.Surface, WorkID: e.WorkID, ReplyTo: e.ID}
				err := out.SetContent(&agh.Receipt{ForID: e.ID, Status: agh.StatusRejected, Reason: reason, Detail: "not now"})
				if err == nil {
					_, err = bob.Send(ctx, out)
				}
				if err != nil {
					t.Error(err)
				}
			})
			m, err := c.Reply(ctx)
			if err != nil || m.Kind != parley.Failure || m.Error.Source != parley.ByPeer || m.Error.Reason != want ||
				!strings.Contains(m.Error.Detail, "not now") {
				t.Errorf("%+v, %v", m, err)
			}
			said.Wait()
		})
	}
	t.Run("cancelled", func(t *testing.T) {
		m, err := w.Hub().Accept(ctx, hub.Submission{Scope: "go test",
			Message: &parley.Message{Kind: parley.Request, From: "listener", To: "guest/agh/acme/bob",
				Parts:  []parley.Part{parley.Text("build it")},
				Origin: parley.Origin{Protocol: "go", Peer: "listener"}}})
		if err != nil {
			t.Fatal(err)
		}
		e := bob.next(t)
		w.until("the request is delivered", func() bool {
			d, ok := w.Hub().Journal().Delivery(m.ID, m.To)
			return ok && d.State == parley.Delivered
		})
		if _, err := w.Hub().Accept(ctx, hub.Submission{Scope: "go test",
			Message: &parley.Message{Kind: parley.Cancel, From: "listener", To: m.To, InReplyTo: m.ID,
				Origin: parley.Origin{Protocol: "go", Peer: "listener"}}}); err != nil {
			t.Fatal(err)
		}
		c := bob.next(t)
		if r, ok := c.Content().(*agh.Receipt); !ok || r.Status != agh.StatusCanceled || c.WorkID != e.WorkID {
			t.Errorf("%s", c.Raw())
		}
	})
}

// A receipt "canceled" from the requester ends the handler's work.
func TestCancelIn(t *testing.T) {
	w := newWorld(t, nil)
	alice := w.join("ta", "acme", "alice").meets(t, "crew__weather")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for ev, err := range alice.Stream(ctx, "crew__weather", &agh.Say{Text: `{"city":"slow"}`}) {
		if err != nil {
			t.Fatal(err)
		}
		if c, ok := ev.Envelope.Content().(*agh.Trace); ok && c.State == agh.StateWorking {
			out := &agh.Envelope{To: "crew__weather", Surface: ev.Envelope.Surface, WorkID: ev.Envelope.WorkID}
			if err := out.SetContent(&agh.Receipt{ForID: ev.Envelope.ReplyTo, Status: agh.StatusCanceled}); err != nil {
				t.Fatal(err)
			}
			if _, err := alice.Send(ctx, out); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	w.until("the handler's failure is recorded", func() bool {
		fs := w.messages(parley.Failure)
		return len(fs) == 1 && fs[0].Error.Code == parley.Cancelled
	})
}

// AGH-034, AGH-035: a replay is not delivered again, not even after a restart. A peer
// that greets again gets the messages that it missed, unless expired.
func TestAwayReplayRestart(t *testing.T) {
	w := newWorld(t, func(c *node.Config) { c.Durability, c.Data = "disk", t.TempDir() })
	alice, bob := w.join("ta", "acme", "alice"), w.join("tb", "acme", "bob")
	said, err := alice.meets(t, "bob").Say(t.Context(), "", &agh.Say{Text: "one"})
	if err != nil {
		t.Fatal(err)
	}
	bob.next(t)
	bob.stop()
	bob.nc.Close()
	e, _ := w.Hub().Directory().Lookup("agh", "acme/bob")
	w.until("bob is away", func() bool { return w.AGH().Holds(e, bridge.Identity("acme", "bob")) })
	for _, s := range []string{"two", "three"} {
		if _, err := alice.Say(t.Context(), said.ThreadID, &agh.Say{Text: s}); err != nil {
			t.Fatal(err)
		}
	}
	direct, err := alice.Direct(t.Context(), "bob", &agh.Say{Text: "for you"})
	if err != nil {
		t.Fatal(err)
	}
	w.until("all is recorded", func() bool { return len(w.messages(parley.Notice)) == 4 })
	alice.stop()
	alice.nc.Close()
	w.stop()
	w.open()

	back := w.join("tb", "acme", "bob")
	var got []string
	for range 3 {
		got = append(got, text(t, back.next(t)))
	}
	slices.Sort(got)
	if !slices.Equal(got, []string{"for you", "three", "two"}) {
		t.Errorf("%q", got)
	}
	again := w.connect("ta")
	subject, err := direct.Subject()
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Publish(subject, direct.Raw()); err != nil {
		t.Fatal(err)
	}
	// AGH-035: the same id from another sender is another message.
	other := w.connect("tc")
	if err := other.Publish(subject,
		[]byte(strings.Replace(strings.Replace(string(direct.Raw()), `"from":"alice"`, `"from":"carol"`, 1),
			direct.DirectID, room(t, "carol", "bob"), 1))); err != nil {
		t.Fatal(err)
	}
	if e := back.next(t); e.From != "carol" || e.ID != direct.ID {
		t.Errorf("%s", e.Raw())
	}
	back.expectNone(t)
}

func room(t *testing.T, a, b string) string {
	t.Helper()
	id, err := agh.DirectID("acme", "builders", a, b)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// A spoofed greet or an unsolicited answer reaches no peer and changes nothing.
func TestSpoofing(t *testing.T) {
	w := newWorld(t, nil)
	bob := w.join("tb", "acme", "bob")
	eve, carol := w.connect("te"), w.connect("tc")
	sub, err := bob.nc.SubscribeSync("agh.network.v0.acme.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := bob.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	card := func(id string) string {
		return fmt.Sprintf(`{"peer_id":%q,"display_name":"EVIL","profiles_supported":[],"capabilities":[],"artifacts_supported":[],"trust_modes_supported":[]}`, id)
	}
	publish := func(nc *nats.Conn, subject, kind, from, to, body, more string) {
		t.Helper()
		if to != "" {
			to = fmt.Sprintf(`,"to":%q`, to)
		}
		if err := nc.Publish(subject, fmt.Appendf(nil,
			`{"protocol":"agh-network/v0","id":%q,"workspace_id":"acme","kind":%q,"channel":"builders","from":%q%s,"ts":%d,"body":%s%s}`,
			agh.NewID(), kind, from, to, time.Now().Unix(), body, more)); err != nil {
			t.Fatal(err)
		}
	}
	const cast = "agh.network.v0.acme.builders.broadcast"
	own, err := agh.PeerSubject("acme", "builders", "bob")
	if err != nil {
		t.Fatal(err)
	}
	publish(carol, cast, "greet", "bob", "", `{"peer_card":`+card("bob")+`}`, "")
	publish(carol, cast, "greet", "listener", "", `{"peer_card":`+card("listener")+`}`, "")
	publish(eve, cast, "greet", "carol", "", `{"peer_card":`+card("carol")+`}`, "")
	publish(carol, own, "whois", "carol", "bob", `{"type":"response","peer_card":`+card("carol")+
		`}`, `,"reply_to":"never asked"`)
	publish(carol, own, "say", "alice", "bob", `{"text":"I am alice"}`, `,"surface":"thread","thread_id":"thread_abc"`)
	w.until("all is refused", func() bool { return len(w.Hub().Refused(10)) == 5 })
	publish(carol, cast, "say", "carol", "", `{"text":"honest"}`, `,"surface":"thread","thread_id":"thread_abc"`)
	if text(t, bob.next(t)) != "honest" {
		t.Error("another message arrived first")
	}
	for {
		m, err := sub.NextMsg(10 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(m.Data), "EVIL") || strings.Contains(string(m.Data), "I am alice") {
			t.Fatalf("reached a peer: %s", m.Data)
		}
		if strings.Contains(string(m.Data), "honest") {
			break
		}
	}
	if e, ok := w.Hub().Directory().Lookup("agh", "acme/bob"); !ok || e.Title == "EVIL" {
		t.Errorf("%+v", e)
	}
	if _, err := nats.Connect("nats://"+w.AGH().Addr(), nats.Token("wrong")); err == nil {
		t.Error("a wrong token was accepted")
	}
}

// A notice to a channel reaches all its members.
func TestNoticeToChannel(t *testing.T) {
	w := newWorld(t, nil)
	bob := w.join("tb", "acme", "bob")
	if _, err := w.Hub().Accept(t.Context(), hub.Submission{Scope: "api",
		Message: &parley.Message{Kind: parley.Notice, From: "operator", To: "agh/acme/builders",
			Parts:  []parley.Part{parley.Text("dinner is ready")},
			Origin: parley.Origin{Protocol: "api", Peer: "operator"}}}); err != nil {
		t.Fatal(err)
	}
	e := bob.next(t)
	if text(t, e) != "dinner is ready" || e.From != bridge.Self || e.To != "" || e.Surface != agh.SurfaceThread {
		t.Errorf("%s", e.Raw())
	}
	// An answer in the thread has the same conversation.
	said, err := bob.Say(t.Context(), e.ThreadID, &agh.Say{Text: "coming"})
	if err != nil {
		t.Fatal(err)
	}
	for m := range w.notices {
		if m.Text() == "dinner is ready" {
			continue // the message's deliveries to agents of the channel
		}
		if m.Text() != "coming" || m.Trace.Foreign["agh.id"] != said.ID || m.InReplyTo != (parley.ID{}) {
			t.Errorf("%+v", m)
		}
		break
	}
}

// Open work stays open over a restart of the hub: the handler is called afterwards,
// and the requester can still cancel the work.
func TestOpenWorkOverRestart(t *testing.T) {
	w := newWorld(t, func(c *node.Config) { c.Durability, c.Data = "disk", t.TempDir() })
	alice := w.join("ta", "acme", "alice").meets(t, "crew__weather")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := w.Hub().Pause(ctx, "crew/weather", true); err != nil { // so that the request waits over the restart
		t.Fatal(err)
	}
	var say *agh.Envelope
	for ev, err := range alice.Stream(ctx, "crew__weather", &agh.Say{Text: `{"city":"slow"}`}) {
		if err != nil {
			t.Fatal(err)
		}
		say = ev.Envelope
		break
	}
	alice.stop()
	alice.nc.Close()
	w.stop()
	w.open()
	if err := w.Hub().Pause(ctx, "crew/weather", false); err != nil {
		t.Fatal(err)
	}
	again := w.join("ta", "acme", "alice")
	out := &agh.Envelope{ID: agh.NewID(), WorkspaceID: "acme", Channel: "builders", Surface: say.Surface,
		DirectID: say.DirectID, From: "alice", To: "crew__weather",
		WorkID: say.WorkID, TS: time.Now().Unix()}
	if err := again.nc.Publish(written(t, out, &agh.Receipt{ForID: say.ReplyTo,
		Status: agh.StatusCanceled})); err != nil {
		t.Fatal(err)
	}
	w.until("the cancellation is recorded", func() bool { return len(w.messages(parley.Cancel)) == 1 })
}
