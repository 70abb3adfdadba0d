package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/parley-hub/parley/bridge/mcp"
	"github.com/parley-hub/parley/internal/supervise"
)

// An mcpHub is the hub's end of tunnels. Each tunnel is served by the next script; after the last one the caller is
// unknown.
type mcpHub struct {
	*httptest.Server
	paths   chan string
	scripts chan func(*websocket.Conn)
}

func newMCPHub(t *testing.T, scripts ...func(*websocket.Conn)) *mcpHub {
	h := &mcpHub{paths: make(chan string, len(scripts)+1), scripts: make(chan func(*websocket.Conn), len(scripts))}
	for _, s := range scripts {
		h.scripts <- s
	}
	close(h.scripts)
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.paths <- r.URL.Path + " " + r.Header.Get("Authorization")
		script, ok := <-h.scripts
		if !ok {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.CloseNow()
		script(conn)
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *mcpHub) to(t *testing.T, path string) mcpTunnelTo {
	u, err := url.Parse(h.URL)
	if err != nil {
		t.Fatal(err)
	}
	return mcpTunnelTo{url: u.JoinPath(path), token: "secret"}
}

// echoes sends a message, and wants it back from the server.
func echoes(t *testing.T, c *websocket.Conn, message string) {
	if err := c.Write(context.Background(), websocket.MessageText, []byte(message)); err != nil {
		t.Error(err)
	}
	if _, b, err := c.Read(context.Background()); string(b) != message || err != nil {
		t.Errorf("back came %q, %v", b, err)
	}
}

// hangsUp wants the tunnel to be closed, with a reason.
func hangsUp(t *testing.T, code websocket.StatusCode, reason string) func(*websocket.Conn) {
	return func(c *websocket.Conn) {
		_, b, err := c.Read(context.Background())
		var e websocket.CloseError
		if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Reason, reason) {
			t.Errorf("read %q, %v, want code %d for %q", b, err, code, reason)
		}
	}
}

func TestMCPAttach(t *testing.T) {
	t.Parallel()
	ends := func(code websocket.StatusCode) func(*websocket.Conn) {
		return func(c *websocket.Conn) {
			echoes(t, c, `{"jsonrpc":"2.0","id":1,"method":"ping"}`)
			if err := c.Close(code, "bye"); err != nil {
				t.Error(err)
			}
		}
	}
	for _, c := range []struct {
		name    string
		server  []string
		scripts []func(*websocket.Conn)
		pauses  int
		error   string
	}{
		{"a lost tunnel is opened again, until the token is refused", []string{"cat"},
			[]func(*websocket.Conn){ends(websocket.StatusServiceRestart), ends(websocket.StatusServiceRestart)}, 2,
			"--token-file"},
		{"MCP-080 a server that ends is started again", []string{"sh", "-c", "exit 3"},
			[]func(*websocket.Conn){hangsUp(t, websocket.StatusInternalError, "exit status 3"),
				hangsUp(t, websocket.StatusInternalError, "exit status 3")}, 2, "--token-file"},
		{"a newer tunnel ends the command", []string{"cat"}, []func(*websocket.Conn){ends(mcp.StatusReplaced)}, 0,
			"another `parley mcp attach files`"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			hub := newMCPHub(t, c.scripts...)
			var pauses []time.Duration
			m := &mcpAttachment{name: "files", to: hub.to(t, "/mcp/attach/files"),
				server: supervise.Command{Args: c.server}, log: slog.New(slog.DiscardHandler),
				now:   func() time.Time { return time.Unix(0, 0) },
				sleep: func(_ context.Context, d time.Duration) error { pauses = append(pauses, d); return nil }}
			err := m.run(t.Context())
			e, ok := errors.AsType[*exitError](err)
			if !ok || e.code != exitRefused || !strings.Contains(err.Error(), c.error) {
				t.Errorf("it ended with %v, want %q", err, c.error)
			}
			if len(pauses) != c.pauses {
				t.Errorf("pauses: %v, want %d", pauses, c.pauses)
			}
			for i, p := range pauses {
				if longest := attachPause << i; p < longest/2 || p >= longest {
					t.Errorf("pause %d is %s", i, p)
				}
			}
			close(hub.paths)
			for p := range hub.paths {
				if p != "/mcp/attach/files Bearer secret" {
					t.Errorf("request of %q", p)
				}
			}
		})
	}
	t.Run("an interrupt ends the tunnel and the command", func(t *testing.T) {
		t.Parallel()
		ctx, interrupt := context.WithCancel(t.Context())
		hub := newMCPHub(t, func(c *websocket.Conn) {
			echoes(t, c, `{"a":1}`)
			interrupt()
			hangsUp(t, websocket.StatusGoingAway, "")(c)
		})
		m := &mcpAttachment{name: "files", to: hub.to(t, "/mcp/attach/files"),
			server: supervise.Command{Args: []string{"cat"}}, log: slog.New(slog.DiscardHandler), now: time.Now}
		if err := m.run(ctx); err != nil {
			t.Error(err)
		}
	})
}

func TestListedEnvironment(t *testing.T) {
	t.Parallel()
	here := func(key string) (string, bool) { return "here", key == "SET" }
	for _, c := range []struct {
		list, want []string
		error      string
	}{
		{nil, nil, ""},
		{[]string{"A=1", "SET", "B=", "C=x=y"}, []string{"A=1", "SET=here", "B=", "C=x=y"}, ""},
		{[]string{"UNSET"}, nil, "not set here"},
		{[]string{"A=1", "A=2"}, nil, "twice"},
		{[]string{"=1"}, nil, "KEY"},
	} {
		env, err := listedEnvironment(c.list, here)
		if !slices.Equal(env, c.want) || (err == nil) != (c.error == "") ||
			err != nil && !strings.Contains(err.Error(), c.error) {
			t.Errorf("%q: %q, %v", c.list, env, err)
		}
	}
}

func TestMCPStdio(t *testing.T) {
	t.Parallel()
	t.Run("MCP-081 lines become messages, and messages lines", func(t *testing.T) {
		t.Parallel()
		hub := newMCPHub(t, func(c *websocket.Conn) {
			for _, want := range []string{`{"id":1,"method":"a"}`, `{"method":"b"}`} {
				if _, b, err := c.Read(context.Background()); string(b) != want || err != nil {
					t.Errorf("heard %q, %v; want %q", b, err, want)
				}
			}
			for _, m := range []string{`{"method":"c"}`, "{\n\"id\":1,\n\"result\":{}}"} {
				if err := c.Write(context.Background(), websocket.MessageText, []byte(m)); err != nil {
					t.Error(err)
				}
			}
			hangsUp(t, websocket.StatusNormalClosure, "")(c)
		})
		var out bytes.Buffer
		a := &app{in: strings.NewReader("{\"id\":1,\"method\":\"a\"}\n\n {\"method\":\"b\"}\r\n"), out: &out}
		if err := a.mcpStdio(t.Context(), hub.to(t, "/mcp/connect")); err != nil {
			t.Error(err)
		}
		if want := "{\"method\":\"c\"}\n{\"id\":1,\"result\":{}}\n"; out.String() != want {
			t.Errorf("wrote %q, want %q", out.String(), want)
		}
	})
	for _, c := range []struct {
		name    string
		scripts []func(*websocket.Conn)
		code    int
		error   string
	}{
		{"a lost hub has an exit code", []func(*websocket.Conn){func(c *websocket.Conn) { _ = c.CloseNow() }},
			exitUnreachable, "cannot be resumed"},
		{"a hub that stops says so", []func(*websocket.Conn){func(c *websocket.Conn) {
			_ = c.Close(websocket.StatusServiceRestart, "the hub stops")
		}}, exitUnreachable, "the hub stops"},
		{"an unknown caller is told what to do", nil, exitRefused, "--token-file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			in, open, err := os.Pipe() // an input that does not end
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			defer open.Close()
			a := &app{in: in, out: io.Discard}
			err = a.mcpStdio(t.Context(), newMCPHub(t, c.scripts...).to(t, "/mcp/connect"))
			if e, ok := errors.AsType[*exitError](err); !ok || e.code != c.code || !strings.Contains(err.Error(), c.error) {
				t.Errorf("it ended with %v, want code %d and %q", err, c.code, c.error)
			}
		})
	}
}
