package a2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// absentStore fails its first loads.
type absentStore struct {
	testStoreView
	fails atomic.Int64 // loads that still fail
}

func (s *absentStore) Load(ctx context.Context, id string) (SessionRecord, bool, error) {
	if s.fails.Add(-1) >= 0 {
		return SessionRecord{}, false, errors.New("the store has no leader")
	}
	return s.testStoreView.Load(ctx, id)
}

// TestSessionIsNotLeftBehind: an agent that begins another session loses the frames of
// the old one, so the client does it only if the host reports that the session is gone.
func TestSessionIsNotLeftBehind(t *testing.T) {
	t.Run("a host that cannot look sessions up just now", func(t *testing.T) {
		shared := &testStore{}
		begun := make(chan struct{}, 1)
		makeHost := func(s Store, tool func(ctx context.Context) (any, error)) *Host {
			h := testHost()
			h.Store = s
			box := &Toolbox{}
			box.Add(ToolDefinition{Name: "work"}, func(ctx context.Context, _ *ToolCall) (any,
				error) {
				return tool(ctx)
			})
			h.Capabilities["tools"] = ServeTools(box)
			return h
		}
		absent := &absentStore{testStoreView: testStoreView{shared}}
		absent.fails.Store(3)
		first := makeHost(&testStoreView{shared}, func(ctx context.Context) (any, error) {
			begun <- struct{}{}
			<-ctx.Done() // still running when the host is killed
			return nil, ctx.Err()
		})
		second := makeHost(absent, func(context.Context) (any, error) { return 2, nil })
		var host atomic.Pointer[Host]
		host.Store(first)
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
			r *http.Request) {
			host.Load().ServeHTTP(w, r)
		}))
		defer srv.Close()
		c := &Client{URL: srv.URL, HTTP: srv.Client(), Token: "test-token-a",
			Limits: ClientLimits{BackoffLo: time.Millisecond}}
		if err := c.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		session := c.SessionID()
		answered := make(chan error, 1)
		go func() {
			res, err := c.CallTool(t.Context(), "work", nil, nil)
			if v, _ := res.Data.(json.RawMessage); err == nil && string(v) != `{"value":2}` {
				err = fmt.Errorf("answered with %s", v)
			}
			answered <- err
		}()
		<-begun
		host.Store(second)
		srv.CloseClientConnections()
		if err := <-answered; err != nil || c.SessionID() != session {
			t.Errorf("%v, and the session is another: %v", err, c.SessionID() != session)
		}
		_ = c.Close()
		for _, h := range []*Host{first, second} {
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // the killed host's request never ends
			_ = h.Shutdown(ctx)
		}
	})
	for name, disturb := range map[string]func(r *http.Request) (*http.Response, error){
		"a host that is not reached when it is asked for it": func(*http.Request) (*http.Response, error) {
			return nil, &net.OpError{Op: "dial", Err: errors.New("refused")}
		},
		"a host that is busy when it is asked for it": func(r *http.Request) (*http.Response, error) {
			return reply(r, http.StatusServiceUnavailable), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := testHost()
			srv := httptest.NewServer(h)
			defer srv.Close()
			var broken, opened atomic.Int64
			web := &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
				switch {
				case r.URL.Path == "/session":
					opened.Add(1)
				case r.URL.Path == "/stream" && broken.CompareAndSwap(1, 2):
					return reply(r, http.StatusNotFound), nil // the link gives up
				case r.URL.Path == "/send" && r.ContentLength == 0 && broken.CompareAndSwap(2, 3):
					return disturb(r)
				}
				return srv.Client().Transport.RoundTrip(r)
			})}
			c := &Client{URL: srv.URL, HTTP: web, Token: "test-token-a",
				Limits: ClientLimits{BackoffLo: time.Millisecond}}
			if _, err := c.CallTool(t.Context(), "counter", nil, nil); err != nil {
				t.Fatal(err)
			}
			session := c.SessionID()
			broken.Store(1)
			srv.CloseClientConnections()
			// The first of these may go through before the link knows that it is down.
			for broken.Load() < 3 {
				if _, err := c.CallTool(t.Context(), "counter", nil, nil); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := c.CallTool(t.Context(), "counter", nil, nil); err != nil || c.SessionID() != session ||
				opened.Load() != 1 {
				t.Errorf("%v; %d sessions were opened", err, opened.Load())
			}
			_ = c.Close()
			_ = h.Shutdown(t.Context())
		})
	}
}

// The caller leaves while the connection for its call is made: the call is not sent.
func TestCallerLeavesBeforeItsCallIsSent(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	c := &Client{HTTP: &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string,
		string) (net.Conn, error) {
		leave()
		return nil, ctx.Err()
	}}}}
	c.init()
	linkCtx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	l := &httpLink{ending: ending{c: c, ended: make(chan struct{}), release: cancel}, http: c.HTTP, ctx: linkCtx,
		base: "http://host.test", closing: make(chan struct{}), read: make(chan struct{})}
	if err := l.send(ctx, []byte("{}\n")); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	_ = c.Close()
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func reply(r *http.Request, status int) *http.Response {
	return &http.Response{StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{}, Request: r,
		Body: io.NopCloser(strings.NewReader(""))}
}

// A call that is sent again carries the time that its caller still waits: a host must
// not execute it, or send events, without a reader.
func TestResentCallHasTheTimeLeft(t *testing.T) {
	bubble(t, "over a connection that broke", func(t *testing.T) {
		var timeouts []int64
		calls := 0
		c := &Client{Token: "test-token-a", Dial: func(context.Context) (io.ReadWriteCloser, error) {
			calls++
			last := calls == 2
			ours, theirs := net.Pipe()
			go func() {
				defer theirs.Close()
				r := NewReader(theirs)
				for {
					m, err := r.ReadMessage(nil)
					if err != nil {
						return
					}
					switch m.Type {
					case "handshake/req":
						_, _ = fmt.Fprintf(theirs,
							`{"type":"handshake/resp","id":"h","req_id":%q,"session_id":"s","ok":true,"accepted_caps":[{"capability":"tools","metadata":{"resume":true}}],"max_parallel":4}`+"\n", m.ID)
					case "ping":
						_, _ = fmt.Fprintf(theirs, `{"type":"pong","id":"p","req_id":%q,"uptime_seconds":1.0}`+
							"\n", m.ID)
					case "tool/call/req":
						timeouts = append(timeouts, m.Int("timeout"))
						if !last {
							_ = sleep(t.Context(), 12)
							return
						}
						_, _ = fmt.Fprintf(theirs,
							`{"type":"tool/call/resp","id":"r","req_id":%q,"data":{"success":true,"tool_name":"x","data":1,"duration_ms":1}}`+"\n", m.ID)
					}
				}
			}()
			return ours, nil
		}}
		defer func() { _ = c.Close() }()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if _, err := c.CallTool(ctx, "x", nil, nil); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(timeouts, []int64{30, 18}) {
			t.Errorf("the host was given %v seconds", timeouts)
		}
	})
}

// slowStore loads a session slowly.
type slowStore struct {
	testStoreView
	loads  atomic.Int64
	answer chan struct{}
}

func (s *slowStore) Load(ctx context.Context, id string) (SessionRecord, bool, error) {
	s.loads.Add(1)
	<-s.answer
	return s.testStoreView.Load(ctx, id)
}

// TestSessionIsTakenOverOnce: the stream and the requests of a returning agent arrive
// at the same time. Each of several take-overs would end the one before, and lose the
// session's record of requests.
func TestSessionIsTakenOverOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowStore{testStoreView: testStoreView{&testStore{}}, answer: make(chan struct{})}
		id := NewID()
		if err := store.Open(t.Context(), SessionRecord{ID: id, Identity: Identity{Name: "agent-a"}}); err != nil {
			t.Fatal(err)
		}
		h := testHost()
		h.Store = store
		found := make(chan *Session, 4)
		for range cap(found) {
			go func() {
				s, err := h.find(t.Context(), id, transportHTTP)
				if err != nil {
					t.Error(err)
				}
				found <- s
			}()
		}
		synctest.Wait()
		gone, leave := context.WithCancel(t.Context())
		leave()
		if _, err := h.find(gone, id, transportHTTP); !errors.Is(err, ErrNotLoaded) {
			t.Errorf("caller that did not wait: %v", err)
		}
		close(store.answer)
		first := <-found
		for range cap(found) - 1 {
			if s := <-found; s != first || s == nil {
				t.Errorf("%p and %p", first, s)
			}
		}
		if n := store.loads.Load(); n != 1 {
			t.Errorf("taken over %d times", n)
		}
		if err := h.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A connection that the client gives up ends: two connections to one session would take
// its stream from each other for ever.
func TestGivenUpConnectionEnds(t *testing.T) {
	bubble(t, "a host that is busy for longer than a POST may take", func(t *testing.T) {
		var mu sync.Mutex
		lines := make(chan string, 8)
		open, refused := 0, false
		c := &Client{URL: "http://host.test", HTTP: &http.Client{Transport: transport(func(r *http.Request) (*http.Response,
			error) {
			resp := reply(r, http.StatusOK)
			mu.Lock()
			defer mu.Unlock()
			switch r.URL.Path {
			case "/session":
				resp.Body = io.NopCloser(strings.NewReader(`{"session_id":"s"}`))
			case "/stream":
				body, out := io.Pipe()
				resp.Body = body
				resp.Header.Set("Content-Type", "text/event-stream; charset=utf-8")
				open++
				go func() {
					for r.Context().Err() == nil {
						select {
						case line := <-lines:
							_, _ = io.WriteString(out, "data: "+line+"\n\n")
						case <-r.Context().Done():
						}
					}
					mu.Lock()
					defer mu.Unlock()
					open--
					_ = out.CloseWithError(r.Context().Err())
				}()
			case "/send":
				m, err := NewReader(r.Body).ReadMessage(nil)
				if err != nil { // no message: asks for the session
					return resp, nil
				}
				switch {
				case m.Type == "handshake/req":
					lines <- fmt.Sprintf(`{"type":"handshake/resp","id":"h","req_id":%q,"session_id":"s","ok":true}`, m.ID)
				case m.Type == "ping" && !refused:
					refused, resp.StatusCode = true, http.StatusTooManyRequests
					resp.Header.Set("Retry-After", "60")
				case m.Type == "ping":
					lines <- fmt.Sprintf(`{"type":"pong","id":"p","req_id":%q}`, m.ID)
				}
			}
			return resp, nil
		})}}
		if _, err := c.Ask(t.Context(), Message{Type: "ping"}); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		if open != 1 {
			t.Errorf("%d streams are open, want 1", open)
		}
		mu.Unlock()
		_ = c.Close()
	})
}
