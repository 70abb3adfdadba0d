package mcp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/memhttp"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/policy"
)

// attachedWorld is a hub with the binding, and a network on which every host is one handler.
type attachedWorld struct {
	t    testing.TB
	dir  *directory.Directory
	j    *journal.Journal
	c    Config
	log  *serverLog
	b    *Binding
	hub  *hub.Hub
	told atomic.Int32 // older tunnels, of a newer one
	off  func()       // ends this run of the hub
}

// serverLog keeps lines of the log.
type serverLog struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *serverLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *serverLog) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

func newAttachedWorld(t testing.TB, network http.Handler, edit ...func(*Config)) *attachedWorld {
	t.Helper()
	w := &attachedWorld{t: t, log: &serverLog{}}
	var err error
	w.j, err = journal.Open(context.Background(), journal.Config{Store: testjournal.Memory(t)})
	w.must(err)
	w.dir, err = directory.Open(context.Background(), directory.Options{})
	w.must(err)
	keys, err := keyring.Open(keyring.Options{})
	w.must(err)
	w.c = Config{Keys: keys, Journal: w.j, PublicURL: "https://hub.test",
		Logger: slog.New(slog.NewTextHandler(w.log, nil))}
	stop := func() {}
	if network != nil {
		var client *http.Client
		client, stop = memhttp.Client(network)
		w.c.Transport = func(http.RoundTripper) http.RoundTripper { return client.Transport }
	}
	for _, f := range edit {
		f(&w.c)
	}
	w.start()
	t.Cleanup(func() {
		w.off()
		stop()
		w.must(w.j.Close())
	})
	return w
}

func (w *attachedWorld) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// start runs the hub on the world's journal.
func (w *attachedWorld) start() {
	w.t.Helper()
	p, err := policy.New(policy.Config{Hub: "here", Assurance: map[string]parley.Assurance{"": parley.Session}})
	w.must(err)
	retry := delivery.Retry{First: time.Second, Longest: time.Second, Tries: 3}
	w.hub, err = hub.New(hub.Config{ID: "here", Secret: bytes.Repeat([]byte("s"), 32), Journal: w.j, Directory: w.dir,
		Policy: p, Delivery: delivery.Config{Retry: retry}})
	w.must(err)
	x, err := index.Open(context.Background(), index.Config{Journal: w.j})
	w.must(err)
	c := w.c
	c.Hub, c.Index = w.hub, x
	w.b, err = New(c)
	w.must(err)
	w.must(w.hub.Bind(w.b))
	w.must(w.b.Start(context.Background()))
	w.hub.Start()
	h, b := w.hub, w.b
	w.off = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		w.must(errors.Join(h.Close(ctx), b.Close(), x.Close()))
	})
}

// enrol adds the agent "tools" with an identity.
func (w *attachedWorld) enrol(id parley.Identity) parley.Identity {
	w.t.Helper()
	_, err := w.dir.Put(context.Background(), parley.Agent{Name: "tools", Exposed: parley.Everywhere,
		Identities: []parley.Identity{id}}, directory.FromOperator)
	w.must(err)
	return id
}

func (w *attachedWorld) enrolAt(address string) parley.Identity {
	w.t.Helper()
	id, err := IdentityAt(address)
	w.must(err)
	return w.enrol(id)
}

// tunnel attaches a server to the agent "tools". ended gets what join returned.
func (w *attachedWorld) tunnel(s *mcp.Server) (ended chan error, stop func()) {
	w.t.Helper()
	far, near := mcp.NewInMemoryTransports()
	ctx, cancel := context.WithCancel(context.Background())
	session, err := s.Connect(ctx, far, nil)
	w.must(err)
	ended = make(chan error, 1)
	go func() { ended <- w.b.servers.join(ctx, "tools", &toldTransport{near, w}) }()
	return ended, func() {
		cancel()
		_ = session.Close() // the hub may have ended it
	}
}

// A toldTransport counts that it was told of a newer one.
type toldTransport struct {
	mcp.Transport
	w *attachedWorld
}

func (t *toldTransport) replaced() { t.w.told.Add(1) }

// call calls a tool of the agent "tools".
func (w *attachedWorld) call(ctx context.Context, tool, arguments string, edit ...func(*serverCall)) (*serverAnswer,
	error) {
	w.t.Helper()
	e, _ := w.dir.Agent("tools")
	id, _ := serverOf(e)
	c := serverCall{agent: "tools", identity: id,
		params: &mcp.CallToolParams{Name: tool, Arguments: json.RawMessage(arguments)}}
	for _, f := range edit {
		f(&c)
	}
	return w.b.servers.call(ctx, c)
}

// skills are the ids of the skills of the agent "tools", with their descriptions.
func (w *attachedWorld) skills() string {
	e, _ := w.dir.Agent("tools")
	var out []string
	for _, s := range e.Skills {
		out = append(out, s.ID+"="+s.Description)
	}
	return strings.Join(out, " ")
}

func addServerTool(s *mcp.Server, name, description string, h mcp.ToolHandler) {
	s.AddTool(&mcp.Tool{Name: name, Description: description, InputSchema: json.RawMessage(`{"type":"object"}`)}, h)
}

// echoTool answers with its arguments.
func echoTool(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(r.Params.Arguments)}},
		StructuredContent: r.Params.Arguments}, nil
}

// hostMap is a network whose handlers are set later.
type hostMap struct {
	mu sync.Mutex
	of map[string]http.Handler
}

func (a *hostMap) set(host string, h http.Handler) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of == nil {
		a.of = map[string]http.Handler{}
	}
	a.of[host] = h
}

func (a *hostMap) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	h := a.of[r.Host]
	a.mu.Unlock()
	if h == nil {
		h = http.NotFoundHandler()
	}
	h.ServeHTTP(w, r)
}

// serveTools serves a server over HTTP, stateless for the modern revision or with sessions.
func serveTools(s *mcp.Server, stateless bool) http.Handler {
	return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, &mcp.StreamableHTTPOptions{
		Stateless: stateless, PropagateRequestCancellation: stateless})
}

// eachEra runs a test with a server attached over HTTP, in each era, and by a tunnel.
func eachEra(t *testing.T, test func(t *testing.T, w *attachedWorld, s *mcp.Server, attach func())) {
	byTunnel := func(w *attachedWorld, _ *hostMap, s *mcp.Server) {
		w.enrol(IdentityOfTunnel("tools"))
		_, stop := w.tunnel(s)
		w.t.Cleanup(stop)
	}
	for _, x := range []struct {
		name     string
		versions []string // of the server; nil: all
		attach   func(*attachedWorld, *hostMap, *mcp.Server)
	}{
		{"modern", nil, func(w *attachedWorld, hosts *hostMap, s *mcp.Server) {
			hosts.set("server.test", serveTools(s, true))
			w.enrolAt("http://server.test/mcp")
		}},
		{"legacy", nil, func(w *attachedWorld, hosts *hostMap, s *mcp.Server) {
			hosts.set("server.test", serveTools(s, false))
			w.enrolAt("http://server.test/mcp")
		}},
		{"tunnel", nil, byTunnel},
		{"legacy tunnel", []string{"2025-06-18"}, byTunnel},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				hosts := &hostMap{}
				w := newAttachedWorld(t, hosts)
				s := mcp.NewServer(&mcp.Implementation{Name: "far", Title: "Far tools", Version: "3"},
					&mcp.ServerOptions{Instructions: "be kind", SupportedProtocolVersions: x.versions})
				test(t, w, s, func() {
					x.attach(w, hosts, s)
					synctest.Wait()
				})
			})
		})
	}
}

// A scriptedServer answers calls of its tool "act" as a test says.
type scriptedServer struct {
	legacy bool   // it knows no revision without sessions
	info   string // serverInfo of a legacy one; "": {"name":"far","version":"1"}
	act    func(w http.ResponseWriter, r *http.Request, id string)
	list   func(cursor string) string // result of tools/list
}

const actTool = `{"resultType":"complete","tools":[{"name":"act","inputSchema":{"type":"object"}}]}`

func answerResult(w http.ResponseWriter, id, result string) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result)
}

const doneResult = `{"resultType":"complete","content":[{"type":"text","text":"done"}]}`

func (s scriptedServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	id := string(jsonx.Member(body, "id"))
	switch textOf(jsonx.Member(body, "method")) {
	case "server/discover":
		if s.legacy {
			http.NotFound(w, r)
			return
		}
		answerResult(w, id, `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}`)
	case "initialize":
		answerResult(w, id, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},`+
			`"serverInfo":`+cmp.Or(s.info, `{"name":"far","version":"1"}`)+`}`)
	case "tools/list":
		if s.list != nil {
			answerResult(w, id, s.list(textOf(jsonx.Member(jsonx.Member(body, "params"), "cursor"))))
			return
		}
		answerResult(w, id, actTool)
	case "tools/call":
		s.act(w, r, id)
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

func serverEvents(w http.ResponseWriter, data ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, d := range data {
		fmt.Fprintf(w, "data: %s\n\n", d)
	}
}

// The hub names itself to servers, also in a program that states no version.
func TestClientInfo(t *testing.T) {
	t.Parallel()
	eachEra(t, func(t *testing.T, w *attachedWorld, s *mcp.Server, attach func()) {
		addServerTool(s, "who", "", func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			named := r.Params.Meta[mcp.MetaKeyClientInfo]
			if named == nil { // a handshake revision
				named = r.Session.InitializeParams().ClientInfo
			}
			text, err := json.Marshal(named)
			return says(string(text)).CallToolResult, err
		})
		attach()
		got, err := w.call(t.Context(), "who", `{}`)
		w.must(err)
		var named mcp.Implementation
		w.must(json.Unmarshal([]byte(texts(got.CallToolResult)), &named))
		if named.Name != "parley" || named.Version == "" {
			t.Errorf("%+v", named)
		}
	})
}

// A server that cannot be reached when its agent is enrolled is tried again.
func TestServerIsReachedLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hosts := &hostMap{}
		w := newAttachedWorld(t, hosts)
		w.enrolAt("http://server.test/mcp")
		time.Sleep(time.Hour)
		if w.skills() != "" || w.log.count("cannot reach an MCP server") != 1 {
			t.Errorf("skills %q; the same failure is logged once: %s", w.skills(), w.log.b.String())
		}
		s := mcp.NewServer(&mcp.Implementation{Name: "far"}, nil)
		addServerTool(s, "echo", "", echoTool)
		hosts.set("server.test", serveTools(s, true))
		time.Sleep(aheadLongest)
		synctest.Wait()
		if got := w.skills(); got != "echo=" {
			t.Errorf("skills %q", got)
		}

		link := w.b.servers.known("tools").link
		w.b.SetAgent("tools", AgentSettings{Repeatable: []string{"echo"}})
		synctest.Wait()
		if w.b.servers.known("tools").link != link {
			t.Error("settings that say nothing of the connection end it")
		}
		w.b.SetAgent("tools", AgentSettings{Elicitation: true})
		synctest.Wait()
		if now := w.b.servers.known("tools").link; now == nil || now == link || link.ctx.Err() == nil {
			t.Error("the connection does not follow the settings")
		}
	})
}

// MCP-075: what a server says of itself and of its tools' effects decides nothing: the hub does the same with one that
// says the opposite.
func TestBoastsDecideNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ info, annotations string }{
		"modest": {`{"name":"far","version":"1"}`, `{"readOnlyHint":false,"destructiveHint":true,"idempotentHint":false}`},
		"silent": {`{"name":"","version":""}`, `{}`},
		"boastful": {`{"name":"alice","version":"1"}`,
			`{"readOnlyHint":true,"destructiveHint":false,"idempotentHint":true,"openWorldHint":false}`},
		"as a hub":  {`{"name":"parley","title":"Parley","version":"1.2.3"}`, `{"readOnlyHint":true,"idempotentHint":true}`},
		"as itself": {`{"name":"tools","version":"1"}`, `{"idempotentHint":true}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				hosts := &hostMap{}
				var mu sync.Mutex
				calls := 0
				script := scriptedServer{legacy: true, info: c.info, list: func(string) string {
					return `{"tools":[{"name":"act","inputSchema":{"type":"object"},"annotations":` + c.annotations + `}]}`
				}, act: func(http.ResponseWriter, *http.Request, string) {
					mu.Lock()
					calls++
					mu.Unlock()
					panic(http.ErrAbortHandler)
				}}
				hosts.set("server.test", script)
				w := newAttachedWorld(t, hosts, func(c *Config) { c.Version = "1.2.3" })
				_, err := w.dir.Put(t.Context(), parley.Agent{Name: "alice", Title: "Alice"}, directory.FromOperator)
				w.must(err)
				w.enrolAt("http://server.test/mcp")
				synctest.Wait()

				// A client is shown the hub's hints, under the name of the directory.
				who := &caller{Caller: bridge.Caller{Name: "alice"}, endpoint: Base}
				shown := w.b.clients.tools(who, true)
				i := slices.IndexFunc(shown, func(t *mcp.Tool) bool { return t.Name == "tools__act" })
				if i < 0 || !reflect.DeepEqual(shown[i].Annotations, foreignHints) {
					t.Error(encoded(t, shown))
				}
				for agent, want := range map[string]bool{"alice": true, "parley": false, "tools": true, "far": false} {
					if _, ok := w.dir.Agent(agent); ok != want {
						t.Errorf("the directory has %s: %v", agent, ok)
					}
				}
				if e, _ := w.dir.Agent("alice"); e.Title != "Alice" || len(e.Skills) > 0 {
					t.Errorf("alice is %+v", e.Agent)
				}

				// A call whose outcome is unknown is not repeated, whatever the tool says of repeats.
				var answers []*parley.Message
				defer w.j.Watch(func(r *journal.Record) {
					if m := r.Message; m != nil && m.Kind.Terminal() {
						mu.Lock()
						defer mu.Unlock()
						answers = append(answers, m)
					}
				})()
				_, err = w.hub.Accept(t.Context(), hub.Submission{Scope: "scope", Message: &parley.Message{
					Kind: parley.Request, From: "alice", To: "tools", Skill: "act",
					Parts:  []parley.Part{{MediaType: "application/json", Data: []byte("{}")}},
					Origin: parley.Origin{Protocol: "api", Peer: "alice", Verdict: parley.Verdict{Assurance: parley.Session}}}})
				w.must(err)
				time.Sleep(time.Minute)
				synctest.Wait()
				mu.Lock()
				defer mu.Unlock()
				if len(answers) != 1 || answers[0].From != "tools" || answers[0].Error == nil ||
					answers[0].Error.Code != parley.OutcomeUnknown || calls != 1 {
					t.Errorf("%d calls, answers %s", calls, encoded(t, answers))
				}
			})
		})
	}
}

func TestForgetServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newAttachedWorld(t, &hostMap{})
		ctx := t.Context()
		id := w.enrol(IdentityOfTunnel("tools"))
		w.must(w.b.servers.offer(ctx, "tools", id, directory.Card{}, []ToolText{{Name: "a"}}))
		w.must(w.b.servers.offer(ctx, "gone", id, directory.Card{}, []ToolText{{Name: "a"}}))
		for agent, want := range map[string]int{"tools": 0, "gone": 1, "": 0} {
			if n, err := w.b.servers.forget(ctx, hub.Forgetting{Agent: agent}); n != want || err != nil {
				t.Errorf("%q: %d, %v", agent, n, err)
			}
		}
		if len(w.b.servers.approvedTools("tools", id)) != 1 {
			t.Error("the pinned tools of an enrolled server were forgotten")
		}
		if len(w.b.servers.approvedTools("gone", id)) != 0 {
			t.Error("the tools of a forgotten agent stay")
		}
	})
}
