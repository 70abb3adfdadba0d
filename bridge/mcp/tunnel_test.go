package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/internal/memhttp"
)

// A tunnelWorld is a hub of which only the tunnels exist, and a server for its clients. It lives in a synctest bubble.
type tunnelWorld struct {
	t    *testing.T
	b    *Binding
	http *http.Client

	server *mcp.Server
	// session serves the tunnel of an attached server; nil: tunnels are those of clients.
	session func(context.Context, *tunnel) error
	hold    chan struct{} // ends the calls of the tool wait
	held    chan struct{} // gets a value for each of them

	mu        sync.Mutex
	seen      []caller // of the calls of the tool who
	cancelled []string
	revoke    context.CancelFunc
}

func inTunnelWorld(t *testing.T, test func(t *testing.T, w *tunnelWorld)) {
	synctest.Test(t, func(t *testing.T) {
		b := &Binding{c: Config{MaxBody: 1 << 20, MaxAnswer: 4 << 20, KeepAlive: 15 * time.Second,
			Logger: slog.New(slog.DiscardHandler)}}
		b.ctx, b.stop = context.WithCancel(t.Context())
		b.streaming, b.endStreams = context.WithCancel(b.ctx)
		w := &tunnelWorld{t: t, b: b, hold: make(chan struct{}), held: make(chan struct{}, maxOpenCalls)}
		w.server = mcp.NewServer(&mcp.Implementation{Name: "hub", Version: "1"}, nil)
		schema := json.RawMessage(`{"type":"object"}`)
		w.server.AddTool(&mcp.Tool{Name: "who", InputSchema: schema},
			func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.seen = append(w.seen, *callerOf(r))
				return said("hello"), nil
			})
		w.server.AddTool(&mcp.Tool{Name: "wait", InputSchema: schema},
			func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				w.held <- struct{}{}
				select {
				case <-w.hold:
					return said("done"), nil
				case <-ctx.Done():
					return said("cut off"), nil
				}
			})
		b.clients = &clients{b: b, server: w.server}
		var stop func()
		w.http, stop = memhttp.Client(w)
		defer stop()
		defer b.work.Wait()
		defer b.stop()
		test(t, w)
	})
}

func said(text string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}
}

// ServeHTTP is the door: everybody is the agent that the path names.
func (w *tunnelWorld) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	c := &caller{Caller: bridge.Caller{Name: strings.TrimPrefix(r.URL.Path, "/")}, endpoint: Base}
	c.During = func(ctx context.Context) (context.Context, func()) {
		valid, revoke := context.WithCancel(ctx)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.revoke = revoke
		return valid, revoke
	}
	if w.session != nil {
		w.b.serveTunnel(rw, r, c, w.b.c.MaxAnswer, &tunnel{b: w.b}, w.session)
		return
	}
	w.b.serveClient(rw, r, c, func(session, id string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.cancelled = append(w.cancelled, session+" "+id)
	})
}

func (w *tunnelWorld) dial(name string) (*websocket.Conn, *http.Response, error) {
	return websocket.Dial(w.t.Context(), "ws://hub/"+name, &websocket.DialOptions{HTTPClient: w.http})
}

func (w *tunnelWorld) open(name string) *peer {
	w.t.Helper()
	conn, _, err := w.dial(name)
	if err != nil {
		w.t.Fatal(err)
	}
	conn.SetReadLimit(8 << 20)
	w.t.Cleanup(func() { _ = conn.CloseNow() })
	return &peer{w.t, conn}
}

// A peer is the other end of a tunnel, as a transport of the SDK or by hand.
type peer struct {
	t    *testing.T
	conn *websocket.Conn
}

func (p *peer) Connect(context.Context) (mcp.Connection, error) { return p, nil }
func (p *peer) SessionID() string                               { return "" }
func (p *peer) Close() error                                    { return p.conn.CloseNow() }

func (p *peer) Read(ctx context.Context) (jsonrpc.Message, error) {
	_, data, err := p.conn.Read(ctx)
	if err != nil {
		return nil, err
	}
	return jsonrpc.DecodeMessage(data)
}

func (p *peer) Write(ctx context.Context, m jsonrpc.Message) error {
	data, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return err
	}
	return p.conn.Write(ctx, websocket.MessageText, data)
}

func (p *peer) say(text string) {
	p.t.Helper()
	if err := p.conn.Write(p.t.Context(), websocket.MessageText, []byte(text)); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) hear() string {
	p.t.Helper()
	kind, data, err := p.conn.Read(p.t.Context())
	if err != nil || kind != websocket.MessageText {
		p.t.Fatalf("read %v, %v", kind, err)
	}
	return string(data)
}

// initialize opens the session by hand.
func (p *peer) initialize() {
	p.t.Helper()
	p.say(`{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"2025-11-25",` +
		`"capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`)
	if got := p.hear(); !strings.Contains(got, `"protocolVersion":"2025-11-25"`) {
		p.t.Fatalf("initialized with %s", got)
	}
	p.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

// closed reads until the tunnel is closed.
func (p *peer) closed(code websocket.StatusCode) {
	p.t.Helper()
	for {
		_, data, err := p.conn.Read(p.t.Context())
		if err == nil {
			p.t.Errorf("before the end: %s", data)
			continue
		}
		if websocket.CloseStatus(err) != code {
			p.t.Errorf("closed: %v, want code %d", err, code)
		}
		return
	}
}

func TestTunnelOfClient(t *testing.T) {
	t.Parallel()
	inTunnelWorld(t, func(t *testing.T, w *tunnelWorld) {
		client := mcp.NewClient(&mcp.Implementation{Name: "c", Version: "1"}, nil)
		s, err := client.Connect(t.Context(), w.open("alice"), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for range 2 {
			r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "who"})
			if err != nil || r.Content[0].(*mcp.TextContent).Text != "hello" {
				t.Fatalf("result %+v, %v", r, err)
			}
		}
		one, two := w.seen[0], w.seen[1]
		if one.Name != "alice" || one.endpoint != Base || one.modern || one.session == "" || one.id == "" {
			t.Errorf("caller of the first call: %+v", one)
		}
		if one.session != two.session || one.id == two.id {
			t.Errorf("sessions %q and %q, ids %q and %q", one.session, two.session, one.id, two.id)
		}
		// An idle tunnel stays open.
		time.Sleep(time.Hour)
		if _, err := s.ListTools(t.Context(), nil); err != nil {
			t.Error(err)
		}
	})
}

func TestTunnelRefusesMessages(t *testing.T) {
	t.Parallel()
	inTunnelWorld(t, func(t *testing.T, w *tunnelWorld) {
		p := w.open("alice")
		for _, c := range []struct {
			name, in, id string
			code         int64
		}{
			{"MCP-028 a call before initialize has an error code", `{"jsonrpc":"2.0","id":7,"method":"tools/list"}`, "7",
				jsonrpc.CodeInvalidRequest},
			{"no JSON", `{"jsonrpc":`, "", jsonrpc.CodeParseError},
			{"no text", "", "", jsonrpc.CodeParseError},
			{"invalid UTF-8", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}", "1", jsonrpc.CodeParseError},
			{"a batch", `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, "", jsonrpc.CodeInvalidRequest},
			{"MCP-011 a duplicate member", `{"jsonrpc":"2.0","id":1,"method":"ping","method":"ping"}`, "1",
				jsonrpc.CodeInvalidRequest},
			{"MCP-011 a duplicate member inside", `{"jsonrpc":"2.0","id":"a","method":"ping","params":{"x":1,"x":1}}`,
				`"a"`, jsonrpc.CodeInvalidRequest},
			{"MCP-011 the wrong case", `{"jsonrpc":"2.0","id":1,"Method":"ping"}`, "1", jsonrpc.CodeInvalidRequest},
			{"MCP-011 two values", `{"jsonrpc":"2.0","id":1,"method":"ping"}{}`, "", jsonrpc.CodeInvalidRequest},
			{"no version", `{"id":1,"method":"ping"}`, "1", jsonrpc.CodeInvalidRequest},
			{"id null", `{"jsonrpc":"2.0","id":null,"method":"ping"}`, "", jsonrpc.CodeInvalidRequest},
			{"a fraction as id", `{"jsonrpc":"2.0","id":1.5,"method":"ping"}`, "", jsonrpc.CodeInvalidRequest},
			{"an id that a double cannot hold", `{"jsonrpc":"2.0","id":9007199254740993,"method":"ping"}`, "",
				jsonrpc.CodeInvalidRequest},
			{"an object as id", `{"jsonrpc":"2.0","id":{},"method":"ping"}`, "", jsonrpc.CodeInvalidRequest},
			{"params that are a list", `{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}`, "1",
				jsonrpc.CodeInvalidParams},
			{"a method that is no text", `{"jsonrpc":"2.0","id":1,"method":1}`, "1", jsonrpc.CodeInvalidRequest},
			{"a request with a result", `{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}`, "1",
				jsonrpc.CodeInvalidRequest},
			{"a response with result and error", `{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":""}}`,
				"1", jsonrpc.CodeInvalidRequest},
			{"nothing", `{"jsonrpc":"2.0","id":1}`, "1", jsonrpc.CodeInvalidRequest},
			{"an unknown method", `{"jsonrpc":"2.0","id":"x","method":"no/such"}`, `"x"`, jsonrpc.CodeMethodNotFound},
		} {
			p.say(c.in)
			var got struct {
				ID    json.RawMessage
				Error *jsonrpc.Error
			}
			heard := p.hear()
			if err := json.Unmarshal([]byte(heard), &got); err != nil || got.Error == nil {
				t.Errorf("%s: answered %s", c.name, heard)
				continue
			}
			if string(got.ID) != cmp.Or(c.id, "null") || got.Error.Code != c.code || got.Error.Message == "" {
				t.Errorf("%s: answered %s, want code %d for id %s", c.name, heard, c.code, cmp.Or(c.id, "null"))
			}
			if c.code == jsonrpc.CodeMethodNotFound {
				continue
			}
			if c.name == "no JSON" { // the session can still be opened
				p.initialize()
			}
		}
		p.say(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
		if got := p.hear(); got != `{"jsonrpc":"2.0","id":1,"result":{}}` {
			t.Errorf("afterwards a ping was answered %s", got)
		}
	})
}

func TestTunnelFrames(t *testing.T) {
	t.Parallel()
	t.Run("a binary frame ends it", func(t *testing.T) {
		t.Parallel()
		inTunnelWorld(t, func(t *testing.T, w *tunnelWorld) {
			p := w.open("alice")
			if err := p.conn.Write(t.Context(), websocket.MessageBinary, []byte(`{}`)); err != nil {
				t.Fatal(err)
			}
			p.closed(websocket.StatusUnsupportedData)
		})
	})
	t.Run("a frame that is too large ends it", func(t *testing.T) {
		t.Parallel()
		inTunnelWorld(t, func(t *testing.T, w *tunnelWorld) {
			p := w.open("alice")
			sent := make(chan error)
			go func() {
				sent <- p.conn.Write(t.Context(), websocket.MessageText, make([]byte, w.b.c.MaxBody+1))
			}()
			p.closed(websocket.StatusMessageTooBig)
			<-sent // it may have failed: the hub had closed
		})
	})
}

func TestTunnelCalls(t *testing.T) {
	t.Parallel()
	const wait = `{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"wait"}}`
	t.Run("MCP-032 a cancel reaches the call, MCP-033 and is not answered", func(t *testing.T) {
		t.Parallel()
		inTunnelWorld(t, func(t *testing.T, w *tunnelWorld) {
			p := w.open("alice")
			p.initialize()
			p.say(fmt.Sprintf(wait, `"c1"`))
			<-w.held
			p.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"other"}}`)
			p.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"c1"}}`)
			p.say(`{"jsonrpc":"2.0","id":2,"method":"ping"}`)
			if got := p.hear(); !strings.Contains(got, `"id":2,`) {
				t.Errorf("after the cancel came %s", got)
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if len(w.cancelled) != 1 || !strings.HasSuffix(w.cancelled[0], ` "c1"`) || w.cancelled[0][0] == ' ' {
				t.Errorf("cancelled: %q", w.cancelled)
			}
		})
	})
	t.Run("MCP-032 a lost tunnel cancels nothing", func(t *testing.T) {
		t.Parallel()
		inTunnelWorld(t, func(t *testing.T, w *tunnelWorld) {
			p := w.open("alice")
			p.initialize()
			p.say(fmt.Sprintf(wait, "1"))
			<-w.held
			_ = p.conn.CloseNow()
			w.b.work.Wait()
			if len(w.cancelled) > 0 {
				t.Errorf("cancelled: %q", w.cancelled)
			}
		})
	})
	t.Run("an id is used once at a time, and open calls are bounded", func(t *testing.T) {
		t.Parallel()
		inTunnelWorld(t, func(t *testing.T, w *tunnelWorld) {
			p := w.open("alice")
			p.initialize()
			for n := range maxOpenCalls {
				p.say(fmt.Sprintf(wait, fmt.Sprint(n)))
				<-w.held
			}
			p.say(fmt.Sprintf(wait, "3"))
			if got := p.hear(); !strings.Contains(got, fmt.Sprint(jsonrpc.CodeInvalidRequest)) {
				t.Errorf("the same id was answered %s", got)
			}
			p.say(fmt.Sprintf(wait, `"more"`))
			if got := p.hear(); !strings.Contains(got, fmt.Sprint(jsonrpc.CodeInternalError)) ||
				!strings.Contains(got, `"id":"more"`) {
				t.Errorf("one call more was answered %s", got)
			}
			close(w.hold)
			for range maxOpenCalls {
				if got := p.hear(); !strings.Contains(got, `"text":"done"`) {
					t.Errorf("answered %s", got)
				}
			}
			p.say(fmt.Sprintf(wait, "3"))
			if got := p.hear(); !strings.Contains(got, `"text":"done"`) {
				t.Errorf("afterwards a call was answered %s", got)
			}
		})
	})
}

func TestTunnelEnds(t *testing.T) {
	t.Parallel()
	const wait = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"wait"}}`
	t.Run("a hub that stops lets open calls be answered", func(t *testing.T) {
		t.Parallel()
		inTunnelWorld(t, func(t *testing.T, w *tunnelWorld) {
			p := w.open("alice")
			p.initialize()
			p.say(wait)
			<-w.held
			w.b.endStreams()
			synctest.Wait()
			close(w.hold)
			if got := p.hear(); !strings.Contains(got, `"text":"done"`) {
				t.Errorf("answered %s", got)
			}
			p.closed(websocket.StatusServiceRestart)
		})
	})
	t.Run("a hub that stops does not wait for long", func(t *testing.T) {
		t.Parallel()
		inTunnelWorld(t, func(t *testing.T, w *tunnelWorld) {
			p := w.open("alice")
			p.initialize()
			p.say(wait)
			<-w.held
			start := time.Now()
			w.b.endStreams()
			p.closed(websocket.StatusServiceRestart)
			if waited := time.Since(start); waited != tunnelDrain {
				t.Errorf("it waited %s", waited)
			}
		})
	})
	t.Run("revoked credentials end it", func(t *testing.T) {
		t.Parallel()
		inTunnelWorld(t, func(t *testing.T, w *tunnelWorld) {
			p := w.open("alice")
			p.initialize()
			w.mu.Lock()
			revoke := w.revoke
			w.mu.Unlock()
			revoke()
			p.closed(websocket.StatusPolicyViolation)
		})
	})
	t.Run("a dead peer ends it", func(t *testing.T) {
		t.Parallel()
		inTunnelWorld(t, func(t *testing.T, w *tunnelWorld) {
			w.open("alice") // reads nothing, so it answers no ping
			start := time.Now()
			w.b.work.Wait()
			if waited := time.Since(start); waited > 3*w.b.c.KeepAlive {
				t.Errorf("it stayed open for %s", waited)
			}
		})
	})
	t.Run("a newer tunnel takes its place", func(t *testing.T) {
		t.Parallel()
		inTunnelWorld(t, func(t *testing.T, w *tunnelWorld) {
			tunnels := make(chan *tunnel)
			w.session = func(ctx context.Context, t *tunnel) error {
				tunnels <- t
				<-ctx.Done() // as when the session is closed
				return ctx.Err()
			}
			p := w.open("files")
			(<-tunnels).replaced()
			p.closed(StatusReplaced)
		})
	})
}

// attached gives the hub's session with a server that a tunnel brings.
func (w *tunnelWorld) attached(p func() *peer) (*mcp.ClientSession, *peer) {
	w.t.Helper()
	sessions := make(chan *mcp.ClientSession, 1)
	w.session = func(ctx context.Context, t *tunnel) error {
		client := mcp.NewClient(&mcp.Implementation{Name: "hub", Version: "1"}, nil)
		s, err := client.Connect(ctx, t, nil)
		if err != nil {
			return err
		}
		sessions <- s
		return s.Wait()
	}
	other := p()
	return <-sessions, other
}

func TestTunnelOfServer(t *testing.T) {
	t.Parallel()
	t.Run("the hub calls its tools", func(t *testing.T) {
		t.Parallel()
		inTunnelWorld(t, func(t *testing.T, w *tunnelWorld) {
			server := mcp.NewServer(&mcp.Implementation{Name: "files", Version: "1"}, nil)
			server.AddTool(&mcp.Tool{Name: "read", InputSchema: json.RawMessage(`{"type":"object"}`)},
				func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
					r := said("content")
					r.StructuredContent = json.RawMessage(`{"n":12345678901234567890}`)
					return r, nil
				})
			s, _ := w.attached(func() *peer {
				p := w.open("files")
				if _, err := server.Connect(t.Context(), p, nil); err != nil {
					t.Fatal(err)
				}
				return p
			})
			r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "read"})
			if err != nil || r.Content[0].(*mcp.TextContent).Text != "content" {
				t.Fatalf("result %+v, %v", r, err)
			}
			if raw := r.Meta[rawMeta]; raw != `{"n":12345678901234567890}` {
				t.Errorf("the structured content is kept as %v", raw)
			}
			w.b.endStreams()
			if err := s.Wait(); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("a bad answer fails its call alone", func(t *testing.T) {
		t.Parallel()
		inTunnelWorld(t, func(t *testing.T, w *tunnelWorld) {
			// answer takes one request of the hub, and answers it.
			answer := func(p *peer, text string) (method string) {
				var r struct {
					ID     int64
					Method string
				}
				if err := json.Unmarshal([]byte(p.hear()), &r); err != nil {
					t.Error(err)
				}
				p.say(fmt.Sprintf(text, r.ID))
				return r.Method
			}
			s, p := w.attached(func() *peer {
				p := w.open("files")
				for answer(p, `{"jsonrpc":"2.0","id":%d,"error":{"code":-32601,"message":"unknown"}}`) != "server/discover" {
				}
				answer(p, `{"jsonrpc":"2.0","id":%d,"result":{"protocolVersion":"2025-11-25","capabilities":{},`+
					`"serverInfo":{"name":"files","version":"1"}}}`)
				p.hear() // notifications/initialized
				return p
			})
			for _, c := range []struct{ name, answer, want string }{
				{"a duplicate member", `{"jsonrpc":"2.0","id":%d,"result":{"content":[],"content":[]}}`, "duplicate"},
				{"result and error", `{"jsonrpc":"2.0","id":%d,"result":{},"error":{"code":-1,"message":""}}`,
					"result or an error"},
			} {
				done := make(chan error)
				go func() {
					_, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "read"})
					done <- err
				}()
				p.say("no JSON") // is dropped
				answer(p, c.answer)
				err := <-done
				e, ok := errors.AsType[*jsonrpc.Error](err)
				if !ok || e.Code != jsonrpc.CodeInternalError || !strings.Contains(e.Message, c.want) {
					t.Errorf("%s: %v", c.name, err)
				}
			}
			w.b.endStreams()
			p.closed(websocket.StatusServiceRestart)
		})
	})
}
