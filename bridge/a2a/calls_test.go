package a2a

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"github.com/a2aproject/a2a-go/v2/a2asrv/taskstore"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/store"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/policy"
)

// requesters is a protocol for tests whose callers are told by the journal.
type requesters struct {
	name    string
	streams bool
}

func (r requesters) Protocol() string { return r.name }
func (r requesters) Capabilities() hub.Capabilities {
	return hub.Capabilities{Streams: func(*parley.Message) bool { return r.streams }}
}
func (r requesters) Deliver(context.Context, hub.Outbound) hub.Outcome { return hub.Outcome{} }

// caller is a hub that calls agents elsewhere.
type caller struct {
	t    *testing.T
	hub  *hub.Hub
	j    *journal.Journal
	dir  *directory.Directory
	ring *keyring.Ring
	*Binding

	mu      sync.Mutex
	records []*parley.Message
	changed chan struct{}
	once    sync.Once
}

// disk is the place of a journal that outlives its hub; "" is memory.
type callerConfig struct {
	disk  string
	ring  *keyring.Ring
	allow []netip.Prefix // nil: loopback
	edit  func(*Binding)
	max   int64
}

func newCaller(t *testing.T, cc callerConfig) *caller {
	t.Helper()
	open := testjournal.Memory
	if cc.disk != "" {
		open = func(t testing.TB) store.Store { return testjournal.Disk(t, cc.disk) }
	}
	j, err := journal.Open(t.Context(), journal.Config{Store: open(t)})
	if err != nil {
		t.Fatal(err)
	}
	d, err := directory.Open(t.Context(), directory.Options{State: j.State("agents")})
	if err != nil {
		t.Fatal(err)
	}
	p, err := policy.New(policy.Config{Hub: "here", Assurance: map[string]parley.Assurance{"": parley.Unsigned}})
	if err != nil {
		t.Fatal(err)
	}
	if cc.ring == nil {
		if cc.ring, err = keyring.Open(keyring.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	h, err := hub.New(hub.Config{ID: "here", Secret: make([]byte, 32), Journal: j, Directory: d, Policy: p,
		Delivery: delivery.Config{Retry: delivery.Retry{First: time.Millisecond, Longest: time.Millisecond, Tries: 4}}})
	if err != nil {
		t.Fatal(err)
	}
	if cc.allow == nil {
		cc.allow = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	}
	b, err := New(Config{Hub: h, Keys: cc.ring, Journal: j, PublicURL: "http://hub.test", MaxAnswer: cc.max,
		Allow: func() []netip.Prefix { return cc.allow }, Logger: slog.New(slog.NewTextHandler(logWriter{t}, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if cc.edit != nil {
		cc.edit(b)
	}
	c := &caller{t: t, hub: h, j: j, dir: d, ring: cc.ring, Binding: b, changed: make(chan struct{}, 1)}
	for _, x := range []hub.Binding{b, requesters{"reader", true}, requesters{"quiet", false}} {
		if err := h.Bind(x); err != nil {
			t.Fatal(err)
		}
	}
	j.Watch(func(r *journal.Record) {
		if r.Message == nil {
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.records = append(c.records, r.Message)
		select {
		case c.changed <- struct{}{}:
		default:
		}
	})
	if err := b.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.Start()
	t.Cleanup(c.close)
	return c
}

type logWriter struct{ t *testing.T }

func (w logWriter) Write(b []byte) (int, error) {
	if testing.Verbose() {
		fmt.Print(string(b))
	}
	return len(b), nil
}

func (c *caller) close() {
	c.once.Do(func() {
		ctx, stop := context.WithTimeout(context.Background(), time.Minute)
		defer stop()
		c.hub.Close(ctx)
		if err := c.Binding.Close(); err != nil {
			c.t.Error(err)
		}
		c.dir.Close()
		if err := c.j.Close(); err != nil {
			c.t.Error(err)
		}
	})
}

// add enrols an agent elsewhere.
func (c *caller) add(name, at string) {
	c.t.Helper()
	id, err := IdentityAt(at)
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.dir.Put(c.t.Context(), parley.Agent{Name: name, Identities: []parley.Identity{id},
		Exposed: parley.Everywhere}, directory.FromOperator); err != nil {
		c.t.Fatal(err)
	}
}

func submission(by, to string, parts ...parley.Part) hub.Submission {
	return hub.Submission{Scope: by + " " + to, Foreign: "thread", Message: &parley.Message{Kind: parley.Request,
		From: "alice", To: to, Parts: parts, Origin: parley.Origin{Protocol: by, Peer: "alice"}}}
}

// ask waits for the answer on a connection.
func (c *caller) ask(to string, parts ...parley.Part) *parley.Message {
	c.t.Helper()
	ctx, stop := context.WithTimeout(c.t.Context(), time.Minute)
	defer stop()
	m, err := c.hub.Ask(ctx, submission("quiet", to, parts...))
	if err != nil {
		c.t.Fatal(err)
	}
	return m
}

// send records a request and gives its id.
func (c *caller) send(by, to string, parts ...parley.Part) *parley.Message {
	c.t.Helper()
	m, err := c.hub.Accept(c.t.Context(), submission(by, to, parts...))
	if err != nil {
		c.t.Fatal(err)
	}
	return m
}

// about adds an input or a cancel to a request.
func (c *caller) about(kind parley.Kind, request *parley.Message, parts ...parley.Part) *parley.Message {
	c.t.Helper()
	m, err := c.hub.Accept(c.t.Context(), hub.Submission{Scope: "quiet " + request.To, Message: &parley.Message{
		Kind: kind, From: request.From, To: request.To, InReplyTo: request.ID, Parts: parts,
		Origin: parley.Origin{Protocol: request.Origin.Protocol, Peer: "alice"}}})
	if err != nil {
		c.t.Fatal(err)
	}
	return m
}

// until waits until the agent's messages about a request satisfy ok, and gives them.
func (c *caller) until(request parley.ID, what string, ok func([]*parley.Message) bool) []*parley.Message {
	c.t.Helper()
	late := time.After(time.Minute)
	for {
		c.mu.Lock()
		var got []*parley.Message
		for _, m := range c.records {
			if m.InReplyTo == request && (m.Kind == parley.Event || m.Kind.Terminal()) {
				got = append(got, m)
			}
		}
		c.mu.Unlock()
		if ok(got) {
			return got
		}
		select {
		case <-c.changed:
		case <-late:
			c.t.Fatalf("%s: %s", what, said(got))
		}
	}
}

// answered waits for the answer of a request, and gives all that the agent said.
func (c *caller) answered(request parley.ID) []*parley.Message {
	c.t.Helper()
	return c.until(request, "no answer", func(m []*parley.Message) bool {
		return len(m) > 0 && m[len(m)-1].Kind.Terminal()
	})
}

// said writes messages shortly.
func said(messages []*parley.Message) string {
	var out []string
	for _, m := range messages {
		s := m.Kind.String()
		if m.Kind == parley.Event {
			s = m.State.String()
		}
		for _, p := range m.Parts {
			s += " " + string(p.Data) + p.URI
		}
		if m.Error != nil {
			s += " " + string(m.Error.Code) + " " + m.Error.Text
		}
		out = append(out, s)
	}
	return strings.Join(out, " | ")
}

// work is what an agent of the SDK does with a message.
type work func(ctx context.Context, x *a2asrv.ExecutorContext, yield func(protocol.Event) bool)

// Execute implements a2asrv.AgentExecutor.
func (w work) Execute(ctx context.Context, x *a2asrv.ExecutorContext) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) {
		w(ctx, x, func(e protocol.Event) bool { return yield(e, nil) })
	}
}

// Cancel implements a2asrv.AgentExecutor.
func (w work) Cancel(_ context.Context, x *a2asrv.ExecutorContext) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) {
		yield(protocol.NewStatusUpdateEvent(x, protocol.TaskStateCanceled, nil), nil)
	}
}

// agentElsewhere is an agent that the SDK serves.
type agentElsewhere struct {
	URL  string
	card protocol.AgentCard

	mu       sync.Mutex
	requests []*http.Request // all but those for the card
	cards    int
	wrap     func(http.Handler) http.Handler
}

// wires are the forms in which agents of tests are served.
var wires = []struct {
	name, version string
	binding       protocol.TransportProtocol
}{
	{"JSON-RPC 1.0", V1, protocol.TransportProtocolJSONRPC},
	{"HTTP+JSON 1.0", V1, protocol.TransportProtocolHTTPJSON},
	{"JSON-RPC 0.3", V03, protocol.TransportProtocolJSONRPC},
	{"HTTP+JSON 0.3", V03, protocol.TransportProtocolHTTPJSON},
}

func serveAgent(t *testing.T, version string, binding protocol.TransportProtocol, w work,
	edit func(*agentElsewhere)) *agentElsewhere {
	t.Helper()
	a := &agentElsewhere{card: protocol.AgentCard{Name: "Elsewhere", Description: "An agent", Version: "7",
		Capabilities:      protocol.AgentCapabilities{Streaming: true},
		DefaultInputModes: []string{"text/plain"}, DefaultOutputModes: []string{"text/plain"},
		Skills: []protocol.AgentSkill{{ID: "do", Name: "Do", Description: "Does it", Tags: []string{"work"},
			Examples: []string{"do this"}}}}}
	life, end := context.WithCancel(context.Background())
	t.Cleanup(end)
	working := work(func(ctx context.Context, x *a2asrv.ExecutorContext, yield func(protocol.Event) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(life, cancel)()
		more := true
		w(ctx, x, func(e protocol.Event) bool { more = more && yield(e); return more })
		if life.Err() != nil && more { // the SDK's server waits for an end
			yield(protocol.NewStatusUpdateEvent(x, protocol.TaskStateFailed, nil))
		}
	})
	h := a2asrv.NewHandler(working, a2asrv.WithTaskStore(taskstore.NewInMemory(&taskstore.InMemoryStoreConfig{
		Authenticator: func(context.Context) (string, error) { return "hub", nil }})))
	var endpoint http.Handler
	switch {
	case version == V1 && binding == protocol.TransportProtocolJSONRPC:
		endpoint = a2asrv.NewJSONRPCHandler(h)
	case version == V1:
		endpoint = a2asrv.NewRESTHandler(h)
	case binding == protocol.TransportProtocolJSONRPC:
		endpoint = a2av0.NewJSONRPCHandler(h)
	default:
		endpoint = a2av0.NewRESTHandler(h)
	}
	a.wrap = func(h http.Handler) http.Handler { return h }
	mux := http.NewServeMux()
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	a.URL = s.URL
	a.card.SupportedInterfaces = []*protocol.AgentInterface{{URL: s.URL + "/rpc", ProtocolBinding: binding,
		ProtocolVersion: protocol.ProtocolVersion(version)}}
	if edit != nil {
		edit(a)
	}
	served := http.StripPrefix("/rpc", a.wrap(endpoint))
	mux.HandleFunc("/rpc/", func(w http.ResponseWriter, r *http.Request) { a.note(r); served.ServeHTTP(w, r) })
	mux.HandleFunc("/rpc", func(w http.ResponseWriter, r *http.Request) { a.note(r); served.ServeHTTP(w, r) })
	mux.HandleFunc(CardPath, func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		a.cards++
		card := a.card
		a.mu.Unlock()
		producer := a2asrv.AgentCardProducer(a2av0.NewStaticAgentCardProducer(&card))
		if version == V1 {
			a2asrv.NewStaticAgentCardHandler(&card).ServeHTTP(w, r)
			return
		}
		a2asrv.NewAgentCardHandler(producer).ServeHTTP(w, r)
	})
	return a
}

func (a *agentElsewhere) note(r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests = append(a.requests, r.Clone(context.Background()))
}

// seen gives a header of all requests, the values once each.
func (a *agentElsewhere) seen(name string) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []string
	for _, r := range a.requests {
		if v := r.Header.Get(name); !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}

func (a *agentElsewhere) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.requests)
}

func agentText(x *a2asrv.ExecutorContext, text string) *protocol.Message {
	return protocol.NewMessageForTask(protocol.MessageRoleAgent, x, protocol.NewTextPart(text))
}

// echoWork is an agent that answers with what it got, as a task with two artifacts.
func echoWork(_ context.Context, x *a2asrv.ExecutorContext, yield func(protocol.Event) bool) {
	if !yield(protocol.NewSubmittedTask(x, x.Message)) ||
		!yield(protocol.NewStatusUpdateEvent(x, protocol.TaskStateWorking, agentText(x, "working"))) {
		return
	}
	first := protocol.NewArtifactEvent(x, x.Message.Parts...)
	first.Artifact.Name, first.Artifact.Description = "echo", "what came"
	if yield(first) && yield(protocol.NewArtifactEvent(x, protocol.NewTextPart("second"))) {
		yield(protocol.NewStatusUpdateEvent(x, protocol.TaskStateCompleted, nil))
	}
}

// A2A-070, A2A-110: each wire version and binding of the SDK's servers; the answer is the
// parts of all artifacts in order, and the ids and names of the artifacts are kept.
func TestCallsOverEachWire(t *testing.T) {
	for _, wire := range wires {
		t.Run(wire.name, func(t *testing.T) {
			a := serveAgent(t, wire.version, wire.binding, echoWork, nil)
			c := newCaller(t, callerConfig{})
			c.add("elsewhere", a.URL)
			doc := parley.Part{MediaType: "application/json", Data: []byte(`{"b":1.5,"a":["x",true]}`)}
			file := parley.Part{MediaType: "image/png", Name: "p.png", Data: []byte("\x89PNG")}
			link := parley.Part{MediaType: "text/html", URI: "https://example.com/x"}
			for _, by := range []string{"waiting", "quiet", "reader"} {
				parts := []parley.Part{parley.Text("hi"), doc, file, link}
				var answer *parley.Message
				if by == "waiting" {
					answer = c.ask("elsewhere", parts...)
				} else {
					all := c.answered(c.send(by, "elsewhere", parts...).ID)
					answer = all[len(all)-1]
					if got := said(all[:len(all)-1]); by == "reader" &&
						!strings.HasPrefix(got, "working working | none hi | none ") {
						t.Errorf("%s: events %q", by, got)
					}
				}
				if answer.Kind != parley.Response || len(answer.Parts) != 5 {
					t.Fatalf("%s: %s", by, said([]*parley.Message{answer}))
				}
				for i, want := range append(parts, parley.Text("second")) {
					got := answer.Parts[i]
					if want.IsJSON() {
						if !sameJSON(got.Data, want.Data) || !got.IsJSON() {
							t.Errorf("%s: part %d: %s %s", by, i, got.MediaType, got.Data)
						}
						continue
					}
					if string(got.Data) != string(want.Data) || got.MediaType != want.MediaType || got.URI != want.URI ||
						got.Name != want.Name {
						t.Errorf("%s: part %d: %+v, want %+v", by, i, got, want)
					}
				}
				var x kept
				if err := json.Unmarshal(answer.Extensions[Protocol], &x); err != nil || len(x.Artifacts) != 2 ||
					x.Artifacts[0].Name != "echo" || x.Artifacts[0].Description != "what came" ||
					x.Artifacts[0].Parts != 4 || x.Artifacts[1].ID == "" {
					t.Errorf("%s: %+v, %v", by, x, err)
				}
				if answer.Origin.Protocol != Protocol || answer.Origin.Verdict.Assurance != parley.Session ||
					answer.From != "elsewhere" {
					t.Errorf("%+v", answer.Origin)
				}
			}
			if got := a.seen(protocol.SvcParamVersion); !slices.Equal(got, []string{wire.version}) {
				t.Errorf("A2A-Version %q", got)
			}
		})
	}
}

func sameJSON(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && fmt.Sprint(x) == fmt.Sprint(y)
}

// readAll reads a request's body, and puts it back.
func readAll(t *testing.T, r *http.Request) []byte {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Error(err)
	}
	r.Body = io.NopCloser(bytes.NewReader(b))
	return b
}

// The agent is called in the trace of the message, in whichever way that is sent.
func TestCallsNameTheTrace(t *testing.T) {
	a := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, echoWork, nil)
	c := newCaller(t, callerConfig{})
	c.add("elsewhere", a.URL)
	trace := parley.Trace{Parent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", State: "vendor=1"}
	for _, by := range []string{"quiet", "reader", "notice"} {
		s := submission("quiet", "elsewhere", parley.Text("hi"))
		if by == "reader" {
			s = submission(by, "elsewhere", parley.Text("hi"))
		}
		s.Message.Trace = trace
		if by == "notice" {
			s.Message.Kind = parley.Notice
		}
		before := a.count()
		m, err := c.hub.Accept(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		if by == "notice" {
			eventuallyCalls(t, a, before+1)
		} else {
			c.answered(m.ID)
		}
	}
	s := submission("quiet", "elsewhere", parley.Text("hi"))
	s.Message.Trace = trace
	if _, err := c.hub.Ask(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"traceparent": trace.Parent, "tracestate": trace.State} {
		if got := a.seen(name); !slices.Equal(got, []string{want}) {
			t.Errorf("%s: %q", name, got)
		}
	}
}
