package a2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley/internal/jsonx"
)

// The test binary is also the child process of the tests below.
func TestMain(m *testing.M) {
	switch os.Getenv("A2E_CHILD") {
	case "host":
		fmt.Println("A2E_SUBPROCESS_HOST_READY") // a banner, as hosts print
		fmt.Print("some log line\r\n\r\n")
		if err := testHost().ServeStdio(context.Background(), os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	case "ignores EOF", "ignores SIGTERM": // the first ends on SIGTERM, the second only on SIGKILL
		if os.Getenv("A2E_CHILD") == "ignores SIGTERM" {
			signal.Ignore(syscall.SIGTERM)
		}
		ready := os.NewFile(3, "ready")
		_, _ = ready.WriteString("!")
		_ = ready.Close()
		select {}
	}
	os.Exit(m.Run())
}

func child(mode string) func() *exec.Cmd {
	return func() *exec.Cmd {
		cmd := exec.Command(os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), "A2E_CHILD="+mode)
		return cmd
	}
}

// pipeTo gives a Dial to a host in this process, and cut breaks the newest connection.
func pipeTo(t testing.TB, h *Host) (dial func(context.Context) (io.ReadWriteCloser, error), cut func()) {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		_ = h.Shutdown(ctx) // at once
	})
	var mu sync.Mutex
	var last net.Conn
	return func(context.Context) (io.ReadWriteCloser, error) {
			ours, theirs := net.Pipe()
			mu.Lock()
			defer mu.Unlock()
			last = theirs
			go func() { _ = h.ServeConn(ctx, theirs) }()
			return ours, nil
		}, func() {
			mu.Lock()
			defer mu.Unlock()
			_ = last.Close()
		}
}

// exercise checks a client over any transport.
func exercise(t *testing.T, c *Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.Connect(ctx); err != nil {
		t.Fatalf("connect: %v", err)
	}
	if !isHex32(c.SessionID()) || !slices.Contains(c.Accepted(), "tools") {
		t.Errorf("session %q, accepted %v", c.SessionID(), c.Accepted())
	}
	if _, err := c.Ping(ctx); err != nil {
		t.Errorf("ping: %v", err)
	}
	tools, err := c.Tools(ctx, ToolQuery{Query: "echo"})
	if err != nil || len(tools) != 1 || tools[0].Name != "echo" {
		t.Errorf("tools %v, %v", tools, err)
	}
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			var kinds []EventKind
			res, err := c.CallTool(ctx, "stream", nil, func(e Event) {
				if e.Seq != int64(len(kinds)) {
					t.Errorf("seq %d, want %d", e.Seq, len(kinds))
				}
				kinds = append(kinds, e.Kind)
			})
			if err != nil || !res.Success || !slices.Equal(kinds,
				[]EventKind{KindProgress, KindLog, KindArtifact, KindStatus}) {
				t.Errorf("%d: %v %v %v", i, kinds, res, err)
			}
		})
	}
	wg.Wait()
	res, err := c.CallTool(ctx, "echo", map[string]any{"text": json.RawMessage(`1.50`)}, nil)
	if v, _ := res.Data.(json.RawMessage); err != nil || string(v) != `{"echo":1.50}` {
		t.Errorf("got %s, %v", res.Data, err)
	}
	_, err = c.CallTool(ctx, "nope", nil, nil)
	if !errors.Is(err, ErrUnknownTool) {
		t.Errorf("got %v", err)
	}
	_, err = c.Ask(ctx, Message{Type: "foo/bar/req"})
	if !NotSupported(err) {
		t.Errorf("got %v", err)
	}
	short, stop := context.WithTimeout(ctx, 20*time.Millisecond)
	defer stop()
	if _, err := c.Ask(short, Message{Type: "tool/call/req",
		Body: json.RawMessage(`{"tool_name":"slow","arguments":{"secs":0.2}}`)}); !errors.Is(err, ErrTimeout) {
		t.Errorf("got %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.Ping(ctx); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestClientTransports(t *testing.T) {
	t.Run("pipe", func(t *testing.T) {
		dial, _ := pipeTo(t, testHost())
		exercise(t, &Client{Dial: dial, Token: "test-token-a", AgentID: "agent-a"})
	})
	t.Run("HTTP with a prefix", func(t *testing.T) {
		h := testHost()
		srv := httptest.NewServer(http.StripPrefix("/a2e", h))
		defer srv.Close()
		exercise(t, &Client{URL: srv.URL + "/a2e/", HTTP: srv.Client(), Token: "test-token-a"})
		_ = h.Shutdown(t.Context())
	})
	t.Run("TCP", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		serve(t, testHost(), l)
		exercise(t, &Client{URL: "tcp://" + l.Addr().String(), Token: "test-token-a"})
	})
	t.Run("unix socket", func(t *testing.T) {
		path := t.TempDir() + "/s"
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		serve(t, testHost(), l)
		exercise(t, &Client{URL: "unix://" + path, Token: "test-token-a"})
	})
	t.Run("TLS", func(t *testing.T) {
		srv := httptest.NewTLSServer(nil) // for its certificate
		defer srv.Close()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		h := testHost()
		h.TLS = &tls.Config{Certificates: srv.TLS.Certificates}
		serve(t, h, l)
		roots := x509.NewCertPool()
		roots.AddCert(srv.Certificate())
		exercise(t, &Client{URL: "tls://" + l.Addr().String(),
			TLS: &tls.Config{RootCAs: roots, ServerName: "example.com"}, Token: "test-token-a"})
		if err := (&Client{URL: "tls://" + l.Addr().String(), Token: "test-token-a"}).Connect(t.Context()); err == nil {
			t.Error("an unknown certificate was accepted")
		}
	})
	t.Run("A2E-102 child process behind a banner and log lines", func(t *testing.T) {
		exercise(t, &Client{Command: child("host"), Token: "test-token-a"})
	})
	for mode, want := range map[string]syscall.Signal{"ignores EOF": syscall.SIGTERM, "ignores SIGTERM": syscall.SIGKILL} {
		t.Run("A2E-102 a child that does not end is ended: "+mode, func(t *testing.T) {
			ready, theirs, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = ready.Close() }()
			var cmd *exec.Cmd
			c := &Client{Limits: ClientLimits{Exit: 20 * time.Millisecond, Term: 20 * time.Millisecond},
				Command: func() *exec.Cmd {
					cmd = child(mode)()
					cmd.ExtraFiles = []*os.File{theirs}
					return cmd
				}}
			ctx, cancel := context.WithCancel(t.Context())
			connected := make(chan error, 1)
			go func() { connected <- c.Connect(ctx) }()
			if _, err := io.ReadFull(ready, make([]byte, 1)); err != nil { // it runs, and ignores what it ignores
				t.Fatal(err)
			}
			cancel()
			if err := <-connected; err == nil {
				t.Error("connected to a child that says nothing")
			}
			_ = c.Close()
			_ = theirs.Close()
			if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() ||
				status.Signal() != want {
				t.Errorf("ended with %v, want %v", cmd.ProcessState, want)
			}
		})
	}
	t.Run("A2E-102 a child has 3 s, and 2 s after SIGTERM", func(t *testing.T) {
		if l := (ClientLimits{}).filled(); l.Exit != 3*time.Second || l.Term != 2*time.Second {
			t.Errorf("%v and %v", l.Exit, l.Term)
		}
	})
	t.Run("strict by default: no loopback over HTTP, no unknown scheme", func(t *testing.T) {
		srv := httptest.NewServer(testHost())
		defer srv.Close()
		for _, u := range []string{srv.URL, "ftp://x", "::", ""} {
			if err := (&Client{URL: u, Token: "test-token-a"}).Connect(t.Context()); err == nil {
				t.Errorf("%q was dialled", u)
			}
		}
	})
	t.Run("wrong token", func(t *testing.T) {
		dial, _ := pipeTo(t, testHost())
		err := (&Client{Dial: dial, Token: "SECRET"}).Connect(t.Context())
		var e *Error
		if !errors.As(err, &e) || e.Code != Unauthorized || e.Reason != "auth_failed" ||
			strings.Contains(err.Error(), "SECRET") {
			t.Errorf("got %v", err)
		}
	})
}

func serve(t *testing.T, h *Host, l net.Listener) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
}

// TestClientGuard: the default client reaches no private address, and its error says how a program allows one.
func TestClientGuard(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	defer srv.Close()
	c := &Client{URL: srv.URL}
	defer c.Close()
	if err := c.Connect(t.Context()); err == nil || !strings.Contains(err.Error(), "set Client.HTTP") ||
		strings.Contains(err.Error(), "parley.toml") {
		t.Error(err)
	}
}

func TestClientCorrelation(t *testing.T) {
	// The vectors of correlation.json hold the rest of A2E-059 and A2E-060.
	bubble(t, "A2E-059 every event is delivered, an unknown response type completes the call", func(t *testing.T) {
		c := scriptedHost(t, func(id string) []string {
			var out []string
			for _, seq := range []int{0, 1, 1, 5} {
				out = append(out, fmt.Sprintf(`{"type":"x/new/event","req_id":%q,"seq":%d}`, id, seq))
			}
			return append(out, fmt.Sprintf(`{"type":"never/heard","req_id":%q,"n":1.0}`, id),
				fmt.Sprintf(`{"type":"x/new/event","req_id":%q}`, id))
		})
		var seqs []int64
		for e, err := range c.Stream(t.Context(), Message{Type: "x/new/req"}) {
			switch {
			case err != nil:
				t.Error(err)
			case e.Final:
				if e.Type != "never/heard" || string(e.Get("n")) != "1.0" {
					t.Errorf("got %s", e.Raw())
				}
			default:
				seqs = append(seqs, e.Seq)
			}
		}
		if !slices.Equal(seqs, []int64{0, 1, 1, 5}) {
			t.Errorf("got %v", seqs)
		}
	})
	bubble(t, "A2E-060 errors keep what they say", func(t *testing.T) {
		c := scriptedHost(t, func(id string) []string {
			return []string{fmt.Sprintf(`{"type":"error","req_id":%q,"code":"new_code","message":"m","detail":{"n":1.0,"reason":"r"},"retryable":true,"capability_name":"tools"}`, id)}
		})
		_, err := c.Ask(t.Context(), Message{Type: "ping"})
		var e *Error
		if !errors.As(err, &e) || e.Code != "new_code" || e.Text != "m" || !e.Retryable ||
			string(e.Detail) != `{"n":1.0,"reason":"r"}` || e.Reason != "r" || e.Capability != "tools" {
			t.Errorf("got %+v", err)
		}
	})
	bubble(t, "three ways to say unknown type", func(t *testing.T) {
		for _, body := range []string{`"code":"parse_error","message":"Unknown type foo"`, `"code":"unknown_type"`,
			`"code":"invalid_message","detail":{"reason":"unknown_type"}`} {
			c := scriptedHost(t,
				func(id string) []string { return []string{fmt.Sprintf(`{"type":"error","req_id":%q,%s}`, id, body)} })
			if _, err := c.Ask(t.Context(), Message{Type: "foo"}); !NotSupported(err) {
				t.Errorf("%s: %v", body, err)
			}
		}
	})
	bubble(t, "a slow reader of events loses its own call only", func(t *testing.T) {
		c := scriptedHost(t, func(id string) []string {
			var out []string
			for range 50 {
				out = append(out, fmt.Sprintf(`{"type":"tool/event","req_id":%q}`, id))
			}
			return append(out, fmt.Sprintf(`{"type":"pong","req_id":%q}`, id))
		})
		c.Limits.Events = 10
		var last error
		for _, err := range c.Stream(t.Context(), Message{Type: "ping"}) {
			synctest.Wait() // all else has arrived meanwhile
			last = err
		}
		if !errors.Is(last, ErrFull) {
			t.Errorf("got %v", last)
		}
	})
	bubble(t, "pushes and pings of the host", func(t *testing.T) {
		pushed := make(chan *Envelope, 10)
		pong := make(chan string, 1)
		c := &Client{OnPush: func(m *Envelope) { pushed <- m },
			Dial: func(context.Context) (io.ReadWriteCloser, error) {
				ours, theirs := net.Pipe()
				go func() {
					r := NewReader(theirs)
					m, err := r.ReadMessage(nil)
					if err != nil {
						return
					}
					_, _ = fmt.Fprintf(theirs, `{"type":"handshake/resp","req_id":%q}`+"\n"+
						`{"type":"env/state/push","episode_id":"e","step_id":1,"event_type":"x"}`+"\n"+
						`{"type":"ping","id":"hp"}`+"\n", m.ID)
					if m, err = r.ReadMessage(nil); err == nil {
						pong <- m.Type + " " + m.ReqID
					}
				}()
				return ours, nil
			}}
		if err := c.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		if m := <-pushed; m.Type != "env/state/push" {
			t.Errorf("got %s", m.Raw())
		}
		if got := <-pong; got != "pong hp" {
			t.Errorf("got %s", got)
		}
		_ = c.Close()
	})
	bubble(t, "Push reaches agents that negotiated something", func(t *testing.T) {
		h := testHost()
		dial, _ := pipeTo(t, h)
		pushed := make(chan *Envelope, 1)
		c := &Client{Dial: dial, Token: "test-token-a", OnPush: func(m *Envelope) { pushed <- m }}
		if err := c.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		s, _ := h.Session(c.SessionID())
		if err := s.Push(t.Context(), Message{Type: "inbox/push", Body: map[string]any{"n": 1}}); err != nil {
			t.Fatal(err)
		}
		if m := <-pushed; m.Type != "inbox/push" || m.Int("n") != 1 {
			t.Errorf("got %s", m.Raw())
		}
		_ = c.Close()
		bare := connect(t, h)
		bare.send(`{"type":"handshake/req","id":"h","auth_token":"test-token-b"}`)
		s, _ = h.Session(bare.next().str("session_id"))
		if err := s.Push(t.Context(), Message{Type: "inbox/push"}); err == nil {
			t.Error("pushed to an agent that negotiated nothing")
		}
	})
}

func TestClientReconnects(t *testing.T) {
	bubble(t, "a broken stream: the request goes on, is served once, and events come once", func(t *testing.T) {
		h := testHost()
		var served atomic.Int64
		box := &Toolbox{}
		box.Add(ToolDefinition{Name: "long"}, func(ctx context.Context, c *ToolCall) (any, error) {
			served.Add(1)
			for i := range 10 {
				_ = c.Progress(ctx, i*10, "")
				if err := sleep(ctx, 1); err != nil {
					return nil, err
				}
			}
			return map[string]any{"ok": true}, nil
		})
		h.Capabilities["tools"] = ServeTools(box)
		dial, cut := pipeTo(t, h)
		c := &Client{Dial: dial, Token: "test-token-a"}
		defer func() { _ = c.Close() }()
		go func() {
			for range 3 {
				_ = sleep(t.Context(), 2.5)
				cut()
			}
		}()
		var seqs []int64
		res, err := c.CallTool(t.Context(), "long", nil, func(e Event) { seqs = append(seqs, e.Seq) })
		if err != nil || !res.Success || served.Load() != 1 {
			t.Errorf("%v %v, served %d", res, err, served.Load())
		}
		if !slices.Equal(seqs, []int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) {
			t.Errorf("events %v", seqs)
		}
	})
	bubble(t, "a host that remembers nothing: the outcome is unknown, and nothing is repeated", func(t *testing.T) {
		dials, requests := 0, 0
		c := &Client{Dial: func(context.Context) (io.ReadWriteCloser, error) {
			ours, theirs := net.Pipe()
			dials++
			go func() {
				r := NewReader(theirs)
				m, err := r.ReadMessage(nil)
				if err != nil {
					return
				}
				_, _ = fmt.Fprintf(theirs,
					`{"type":"handshake/resp","req_id":%q,"accepted_caps":[{"capability":"tools"}]}`+"\n", m.ID)
				if _, err = r.ReadMessage(nil); err == nil {
					requests++
				}
				_ = theirs.Close()
			}()
			return ours, nil
		}}
		defer func() { _ = c.Close() }()
		if _, err := c.CallTool(t.Context(), "x", nil, nil); !errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("got %v", err)
		}
		if _, err := c.CallTool(t.Context(), "x", nil, nil); !errors.Is(err, ErrOutcomeUnknown) { // on a new connection
			t.Errorf("got %v", err)
		}
		synctest.Wait()
		if requests != 2 || dials != 2 {
			t.Errorf("%d requests over %d connections", requests, dials)
		}
	})
	bubble(t, "a connection that broke before it took the request: the next one takes it", func(t *testing.T) {
		dial, _ := pipeTo(t, testHost())
		dials := 0
		c := &Client{Token: "test-token-a", Dial: func(ctx context.Context) (io.ReadWriteCloser, error) {
			if dials++; dials > 1 {
				return dial(ctx)
			}
			ours, theirs := net.Pipe()
			go func() {
				if m, err := NewReader(theirs).ReadMessage(nil); err == nil {
					_, _ = fmt.Fprintf(theirs,
						`{"type":"handshake/resp","req_id":%q,"ok":true,"accepted_caps":[{"capability":"tools"}]}`+
							"\n", m.ID)
				}
				_ = theirs.Close()
			}()
			return &lateReadError{ours, make(chan struct{})}, nil
		}}
		defer func() { _ = c.Close() }()
		if err := c.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := c.CallTool(t.Context(), "counter", nil, nil); err != nil || dials != 2 {
			t.Errorf("%v over %d connections", err, dials)
		}
	})
	bubble(t, "the host forgot the session: the outcome is unknown", func(t *testing.T) {
		first, second := testHost(), testHost()
		dial1, cut := pipeTo(t, first)
		dial2, _ := pipeTo(t, second)
		n := 0
		c := &Client{Token: "test-token-a", Dial: func(ctx context.Context) (io.ReadWriteCloser, error) {
			if n++; n == 1 {
				return dial1(ctx)
			}
			return dial2(ctx)
		}}
		defer func() { _ = c.Close() }()
		go func() {
			_ = sleep(t.Context(), 1)
			cut()
		}()
		if _, err := c.CallTool(t.Context(), "slow", map[string]any{"secs": 5}, nil); !errors.Is(err,
			ErrOutcomeUnknown) {
			t.Errorf("got %v", err)
		}
		if _, err := c.Ping(t.Context()); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
	bubble(t, "a store resumes the session at another host", func(t *testing.T) {
		shared := &testStore{}
		var served atomic.Int64
		makeHost := func() *Host {
			h := testHost()
			h.Store = &testStoreView{testStore: shared}
			h.Memory = shared
			box := &Toolbox{}
			box.Add(ToolDefinition{Name: "once"}, func(ctx context.Context, c *ToolCall) (any, error) {
				served.Add(1)
				return map[string]any{"ok": true}, sleep(ctx, 2)
			})
			h.Capabilities["tools"] = ServeTools(box)
			return h
		}
		first, second := makeHost(), makeHost()
		dial1, cut := pipeTo(t, first)
		dial2, _ := pipeTo(t, second)
		n := 0
		c := &Client{Token: "test-token-a", Dial: func(ctx context.Context) (io.ReadWriteCloser, error) {
			if n++; n == 1 {
				return dial1(ctx)
			}
			_ = sleep(ctx, 5) // the answer is in the store by now
			return dial2(ctx)
		}}
		defer func() { _ = c.Close() }()
		go func() {
			_ = sleep(t.Context(), 1)
			cut()
		}()
		res, err := c.CallTool(t.Context(), "once", nil, nil)
		if err != nil || !res.Success || served.Load() != 1 {
			t.Errorf("%+v, %v, served %d", res, err, served.Load())
		}
		// The first host's epoch is over: its appends are refused, and it drops the
		// session.
		s, ok := first.Session(c.SessionID())
		if ok {
			_ = s.send([]byte(`{}`))
			if state, _ := s.State(); state != StateClosed {
				t.Errorf("the first host holds on: %v", state)
			}
		}
	})
	t.Run("HTTP: the host is killed, and another goes on with its sessions", func(t *testing.T) {
		shared := &testStore{}
		begun := make(chan int, 4)
		makeHost := func(n int) *Host {
			h := testHost()
			h.Store = &testStoreView{testStore: shared}
			box := &Toolbox{}
			box.Add(ToolDefinition{Name: "which"}, func(ctx context.Context, _ *ToolCall) (any, error) {
				if begun <- n; n == 1 {
					<-ctx.Done() // still running when the host is killed
					return nil, ctx.Err()
				}
				return n, nil
			})
			h.Capabilities["tools"] = ServeTools(box)
			return h
		}
		first, second := makeHost(1), makeHost(2)
		var host atomic.Pointer[Host]
		host.Store(first)
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
			r *http.Request) {
			host.Load().ServeHTTP(w, r)
		}))
		defer srv.Close()
		c := &Client{URL: srv.URL, HTTP: srv.Client(), Token: "test-token-a",
			Limits: ClientLimits{BackoffLo: time.Millisecond}}
		type outcome struct {
			res ToolResult
			err error
		}
		answered := make(chan outcome, 1)
		go func() {
			res, err := c.CallTool(t.Context(), "which", nil, nil)
			answered <- outcome{res, err}
		}()
		if n := <-begun; n != 1 {
			t.Fatalf("host %d began", n)
		}
		host.Store(second)
		srv.CloseClientConnections()
		got := <-answered
		if v, _ := got.res.Data.(json.RawMessage); got.err != nil || string(v) != `{"value":2}` {
			t.Errorf("%s, %v", got.res.Data, got.err)
		}
		_ = c.Close()
		for _, h := range []*Host{first, second} {
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // the killed host's request never ends
			_ = h.Shutdown(ctx)
		}
	})
	t.Run("HTTP: a stream that breaks, over and over", func(t *testing.T) {
		h := testHost()
		var cut atomic.Pointer[context.CancelFunc]
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/stream" {
				ctx, cancel := context.WithCancel(r.Context())
				cut.Store(&cancel)
				defer cancel()
				r = r.WithContext(ctx)
			}
			h.ServeHTTP(w, r)
		}))
		defer srv.Close()
		c := &Client{URL: srv.URL, HTTP: srv.Client(), Token: "test-token-a",
			Limits: ClientLimits{BackoffLo: time.Millisecond}}
		for i := range 30 {
			res, err := c.CallTool(t.Context(), "counter", nil, func(Event) {})
			if v, _ := res.Data.(json.RawMessage); err != nil || string(v) != fmt.Sprintf(`{"count":%d}`, i+1) {
				t.Fatalf("%d: %s, %v", i, res.Data, err)
			}
			if i%3 == 0 {
				(*cut.Load())()
			}
		}
		_ = c.Close()
		_ = h.Shutdown(t.Context())
	})
}

// lateReadError is a broken connection that fails its reads only after a failed write.
type lateReadError struct {
	net.Conn
	wrote chan struct{}
}

func (m *lateReadError) Read(b []byte) (int, error) {
	n, err := m.Conn.Read(b)
	if err != nil {
		<-m.wrote
	}
	return n, err
}

func (m *lateReadError) Write(b []byte) (int, error) {
	n, err := m.Conn.Write(b)
	if err != nil {
		close(m.wrote)
	}
	return n, err
}

// testStore is a [Store] and [Memory] that hosts share, each through its own view; the
// host that loaded a session last owns it.
type testStore struct {
	mu    sync.Mutex
	rec   map[string]*SessionRecord
	owner map[string]*testStoreView
	seen  map[string]bool
}

type testStoreView struct{ *testStore }

var errFenced = errors.New("owned by another host")

func (s *testStoreView) Open(_ context.Context, r SessionRecord) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rec == nil {
		s.rec, s.owner = map[string]*SessionRecord{}, map[string]*testStoreView{}
	}
	if s.owner[r.ID] == nil {
		s.owner[r.ID] = s
	}
	if s.owner[r.ID] != s {
		return errFenced
	}
	if old := s.rec[r.ID]; old != nil {
		r.Undelivered = old.Undelivered
	}
	s.rec[r.ID] = &r
	return nil
}

func (s *testStoreView) Append(_ context.Context, id string, seq uint64, line []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.rec[id]
	if r == nil || s.owner[id] != s || seq != r.LastSeq+1 {
		return errFenced
	}
	r.LastSeq = seq
	r.Undelivered = append(r.Undelivered, StoredFrame{seq, line})
	return nil
}

func (s *testStoreView) Delivered(_ context.Context, id string, seq uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.rec[id]; r != nil {
		r.Undelivered = slices.DeleteFunc(r.Undelivered, func(f StoredFrame) bool { return f.Seq <= seq })
	}
	return nil
}

func (s *testStoreView) Load(_ context.Context, id string) (SessionRecord, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.rec[id]; r != nil {
		s.owner[id] = s
		return *r, true, nil
	}
	return SessionRecord{}, false, nil
}

func (s *testStoreView) Close(_ context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owner[id] != s {
		return errFenced
	}
	delete(s.rec, id)
	return nil
}

func (s *testStore) Seen(_ context.Context, key string, _ time.Time) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil {
		s.seen = map[string]bool{}
	}
	if s.seen[key] {
		return false, nil
	}
	s.seen[key] = true
	return true, nil
}

// A2E-049: the traffic of an unmodified SDK agent, byte for byte where it matters: a
// session without headers, the stream and the handshake at the same time, GET with a
// Content-Type, its default capabilities, no Last-Event-ID, and a shutdown after which
// it waits for the end of the stream. The same lines over stdio.
func TestSDKAgent(t *testing.T) {
	lines := []string{
		`{"type":"handshake/req","id":"11111111111111111111111111111111","version":"1.0","ts":1716123456.789,"agent_id":"3f9a01bc","agent_caps":["streaming","artifacts"],"auth_token":"test-token-a"}`,
		`{"type":"tool/call/req","id":"44444444444444444444444444444444","version":"1.0","ts":1795180317.5699654,"session_id":"33333333333333333333333333333333","tool_name":"stream","arguments":{},"correlation_id":"5f5f5f5f","streaming":true,"timeout":60}`,
	}
	bye := `{"type":"shutdown","id":"88888888888888888888888888888888","version":"1.0","ts":1716123460.0,"timeout":10}`
	want := []string{"handshake/resp", "tool/event", "tool/event", "tool/event", "tool/event", "tool/call/resp"}
	t.Run("A2E-049 HTTP", func(t *testing.T) {
		srv := httptest.NewServer(testHost())
		defer srv.Close()
		do := func(method, path, session, body string) *http.Response {
			req, err := http.NewRequest(method, srv.URL+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			if session != "" {
				req.Header.Set("X-Session-Id", session)
				req.Header.Set("Accept", "text/event-stream")
				req.Header.Set("Content-Type", "text/plain")
			}
			req.Header.Set("Accept-Encoding", "gzip, deflate")
			resp, err := srv.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			return resp
		}
		resp := do("POST", "/session", "", "")
		b, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		session := parseFrame(t, b).str("session_id")
		stream := do("GET", "/stream", session, "")
		if stream.Header.Get("Content-Encoding") != "" || !slices.Equal(stream.TransferEncoding, []string{"chunked"}) {
			t.Errorf("stream is %v, %v", stream.Header, stream.TransferEncoding)
		}
		for _, line := range append(lines, bye) {
			if resp := do("POST", "/send", session, line); resp.StatusCode != 200 {
				t.Errorf("send: %d", resp.StatusCode)
			}
		}
		body, err := io.ReadAll(stream.Body) // ends by itself, and in order
		if err != nil {
			t.Errorf("stream: %v", err)
		}
		var got []string
		for _, f := range sseFrames(t, streamed{stream.Header.Get("Content-Type"), body}) {
			got = append(got, f.str("type"))
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %v", got)
		}
		if resp := do("GET", "/stream", session, ""); resp.StatusCode != 404 {
			t.Errorf("again: %d", resp.StatusCode)
		}
	})
	t.Run("A2E-049 stdio", func(t *testing.T) {
		var out strings.Builder
		if err := testHost().ServeStdio(t.Context(), strings.NewReader(strings.Join(append(lines, bye), "\n")+"\n"),
			&out); err != nil {
			t.Fatal(err)
		}
		var got []string
		for line := range strings.Lines(out.String()) {
			got = append(got, parseFrame(t, []byte(line)).str("type"))
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %v", got)
		}
	})
}

func TestEvents(t *testing.T) {
	long := strings.Repeat("x", 100)
	for _, c := range []struct {
		name, contentType, body string
		want                    []string
		err                     error
	}{
		{"CR alone ends a line", "text/event-stream", "data: a\r\rdata: b\r\n\r\ndata: c", []string{"a", "b", "c"},
			io.EOF},
		{"line breaks of Unicode do not", "text/event-stream", "data: \"a\u0085b\u2028c\"\n\n",
			[]string{"\"a\u0085b\u2028c\""}, io.EOF},
		{"text is UTF-8", "text/plain", "data: é\n\n", []string{"é"}, io.EOF},
		{"or as its charset says", "text/event-stream; charset=ISO-8859-1", "data: \xe9\x85\n\n", []string{"é\u0085"},
			io.EOF},
		{"another charset is refused", "text/event-stream; charset=utf-16", "data: a\n\n", nil, errContentType},
		{"so is what is no text", "image/png", "data: a\n\n", nil, errContentType},
		{"too long: dropped, and the next is read", "text/event-stream", "data: " + long +
			"\n\ndata: b\n\n", []string{"b"}, io.EOF},
		{"also over several lines", "text/event-stream", strings.Repeat("data: "+long[:10]+"\n", 10) +
			"\ndata: b\n\n", []string{"b"}, io.EOF},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			dropped := 0
			err := readEvents(strings.NewReader(c.body), c.contentType, 64, func() {},
				func(b []byte) { got = append(got, string(b)) }, func([]byte) { dropped++ })
			if !errors.Is(err, c.err) || !slices.Equal(got, c.want) {
				t.Errorf("%q, %v", got, err)
			}
			if want := strings.Count(c.name, "too long") + strings.Count(c.name, "several"); dropped != want {
				t.Errorf("%d dropped, want %d", dropped, want)
			}
		})
	}
}

// TestPeerError: only the malformed members of an error frame are dropped.
func TestPeerError(t *testing.T) {
	for name, c := range map[string]struct {
		members string
		want    Error
	}{
		"retryable is no boolean": {`"code":"tool_error","message":"m","retryable":"yes","capability_name":"tools"`,
			Error{Code: ToolError, Text: "m", Capability: "tools"}},
		"message is no text": {`"code":"tool_error","message":5,"retryable":true`,
			Error{Code: ToolError, Retryable: true}},
		"capability_name is no text": {`"code":"timeout","capability_name":[]`, Error{Code: Timeout}},
		"detail is no object": {`"code":"x_own","detail":[1],"retryable":true`,
			Error{Code: "x_own", Retryable: true}},
		"no code": {`"message":"m","retryable":true`,
			Error{Code: RuntimeError, Text: "m", Retryable: true}},
		"code is no text": {`"code":7,"message":"m"`, Error{Code: RuntimeError, Text: "m"}},
		"all is well, with a reason ": {`"code":"a","message":"m","detail":{"reason":"r"},"retryable":true`,
			Error{Code: "a", Text: "m", Reason: "r", Retryable: true}},
	} {
		bubble(t, name, func(t *testing.T) {
			client := scriptedHost(t, func(id string) []string {
				return []string{fmt.Sprintf(`{"type":"error","id":"e","req_id":%q,%s}`, id, c.members)}
			})
			_, err := client.Ask(t.Context(), Message{Type: "ping"})
			var e *Error
			if !errors.As(err, &e) {
				t.Fatal(err)
			}
			got := Error{Code: e.Code, Text: e.Text, Reason: e.Reason, Retryable: e.Retryable, Capability: e.Capability}
			if !reflect.DeepEqual(got, c.want) || jsonx.Kind(e.Detail) != '{' {
				t.Errorf("%+v, detail %s, want %+v", got, e.Detail, c.want)
			}
		})
	}
}

// TestHostRequests: a client without OnPush refuses the host's requests with a code,
// and does not answer other messages (A2E §5.2, §6).
func TestHostRequests(t *testing.T) {
	frames := map[string]string{
		`{"type":"mcp/sample/req","id":"h1","messages":[]}`:                                    "error mcp_sampling_refused",
		`{"type":"mcp/root/list/req","id":"h2"}`:                                               "error mcp_capability_missing",
		`{"type":"foo/bar","id":"h3"}`:                                                         "error invalid_message",
		`{"type":"ping","id":"h4"}`:                                                            "pong ",
		`{"type":"env/state/push","id":"h5","episode_id":"e","step_id":1,"event_type":"x"}`:    "",
		`{"type":"mcp/server/push","id":"h6","method":"notifications/tools/list_changed"}`:     "",
		`{"type":"foo/push","id":"h7"}`:                                                        "",
		`{"type":"foo/event","id":"h8","req_id":"none"}`:                                       "",
		`{"type":"error","id":"h9","code":"x"}`:                                                "",
		`{"type":"mcp/sample/req","id":"h10","req_id":"none","role":"assistant","content":{}}`: "",
		`{"type":"shutdown","id":"h11"}`:                                                       "",
	}
	for line, want := range frames {
		for _, takes := range []bool{false, true} {
			bubble(t, fmt.Sprint(line, " taken: ", takes), func(t *testing.T) {
				ours, theirs := net.Pipe()
				var pushed []string
				client := &Client{Dial: func(context.Context) (io.ReadWriteCloser, error) { return ours, nil }}
				if takes {
					client.OnPush = func(m *Envelope) { pushed = append(pushed, m.ID) }
				}
				t.Cleanup(func() { _ = client.Close() })
				got := ""
				go func() {
					in := NewReader(theirs)
					for {
						m, err := in.ReadMessage(nil)
						if err != nil {
							return
						}
						switch m.Type {
						case "handshake/req":
							_, _ = fmt.Fprintf(theirs, `{"type":"handshake/resp","req_id":%q}`+"\n%s\n", m.ID, line)
						case "error", "pong":
							got += m.Type + " " + m.Str("code")
							if !strings.Contains(line, `"id":"`+m.ReqID+`"`) {
								t.Errorf("about %q", m.ReqID)
							}
						}
					}
				}()
				if err := client.Connect(t.Context()); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				m, err := Decode([]byte(line))
				if err != nil {
					t.Fatal(err)
				}
				switch {
				case takes && (m.Class == ClassPush || m.Class == ClassRequest && m.Type != "ping" || m.ReqID == ""):
					if m.Type != "ping" && (got != "" || !slices.Equal(pushed, []string{m.ID})) {
						t.Errorf("answered %q, handed over %v", got, pushed)
					}
				case got != want:
					t.Errorf("answered %q, want %q", got, want)
				}
			})
		}
	}
}
