package a2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Clients without a token make a host hold less than 16 MiB with the default limits,
// whatever their addresses. Not parallel: the test measures the memory of the whole
// process.
func TestMemoryWithoutHandshake(t *testing.T) {
	const clients, most = 1000, 16 << 20
	host := func() *Host {
		h := testHost()
		h.Limits.PendingPerRemote, h.Limits.SessionsPerMinute = clients, 1<<20 // in place of as many addresses
		return h
	}
	measure := func(t *testing.T, attack func()) {
		t.Helper()
		before := inUse()
		attack()
		grown := inUse() - before
		t.Logf("%d clients without a token make the host hold %.1f MiB", clients, float64(grown)/(1<<20))
		if grown > most {
			t.Errorf("%d MiB, want at most %d", grown>>20, most>>20)
		}
	}
	t.Run("connections that begin a long message", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := host()
			part := []byte(strings.Repeat("x", 60<<10))
			var conns []net.Conn
			measure(t, func() {
				for range clients {
					ours, theirs := net.Pipe()
					conns = append(conns, ours)
					go func() { _ = h.ServeConn(context.Background(), theirs) }()
					go func() { _, _ = io.Copy(io.Discard, ours) }()
					_, _ = ours.Write(part) // fails if the session gave way
				}
				synctest.Wait()
			})
			if h.held > h.limits.HandshakeBytes {
				t.Errorf("%d bytes are counted", h.held)
			}
			for _, c := range conns {
				_ = c.Close()
			}
			synctest.Wait()
			if _, pending := h.Health(); pending != 0 || h.held != 0 {
				t.Errorf("%d sessions and %d bytes are left", pending, h.held)
			}
		})
	})
	t.Run("answers that are not read", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := host()
			var pings strings.Builder
			for i := 0; pings.Len() < 60<<10; i++ {
				fmt.Fprintf(&pings, `{"type":"ping","id":"%d"}`+"\n", i)
			}
			measure(t, func() {
				for range clients {
					id := newHTTPSession(t, h, "")
					for range 16 {
						post(h, id, pings.String())
					}
				}
			})
			shut(t, h)
		})
	})
	t.Run("bodies that do not end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := host()
			part := []byte(strings.Repeat("x", 60<<10))
			var ends []*io.PipeWriter
			measure(t, func() {
				for range clients {
					id := newHTTPSession(t, h, "")
					body, end := io.Pipe()
					ends = append(ends, end)
					r := httptest.NewRequest("POST", "/send", body)
					r.ContentLength = 64 << 10
					r.Header.Set(sessionHeader, id)
					go func() {
						h.ServeHTTP(&deadlines{httptest.NewRecorder(), body}, r)
						_ = body.Close()
					}()
					_, _ = end.Write(part)
				}
				synctest.Wait()
			})
			for _, end := range ends {
				_ = end.Close()
			}
			shut(t, h)
		})
	})
}

// deadlines ends the reading of a body at a deadline, as a connection does.
type deadlines struct {
	*httptest.ResponseRecorder
	body *io.PipeReader
}

func (d *deadlines) SetReadDeadline(time.Time) error {
	return d.body.CloseWithError(os.ErrDeadlineExceeded)
}

// inUse gives the memory of heap and stacks that cannot be collected.
func inUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

func shut(t *testing.T, h *Host) {
	t.Helper()
	if err := h.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

// Sessions without a handshake keep no agent out: the oldest of them gives way, but no
// session of a permitted agent.
func TestPendingSessionsGiveWay(t *testing.T) {
	bubble(t, "at the limit of those without a handshake", func(t *testing.T) {
		h := testHost()
		h.Limits.Pending, h.Limits.PendingPerRemote = 3, 100
		agent := newHTTPSession(t, h, "test-token-a")
		var ids []string
		for range 5 {
			ids = append(ids, newHTTPSession(t, h, ""))
		}
		for i, id := range ids {
			if code := post(h, id, `{"type":"ping","id":"p"}`).Code; (code == http.StatusOK) != (i >= 2) {
				t.Errorf("session %d of 5, with three places: %d", i, code)
			}
		}
		if code := post(h, agent, `{"type":"ping","id":"p"}`).Code; code != http.StatusOK {
			t.Errorf("the agent's own session: %d", code)
		}
		shut(t, h)
	})
	bubble(t, "at the limit of all", func(t *testing.T) {
		h := testHost()
		h.Limits.Sessions, h.Limits.PendingPerRemote = 2, 100
		newHTTPSession(t, h, "test-token-a")
		silent := newHTTPSession(t, h, "")
		agent := newHTTPSession(t, h, "test-token-b")
		if code := post(h, silent, "").Code; code != http.StatusNotFound {
			t.Errorf("the one that gave way: %d", code)
		}
		if code := post(h, agent, `{"type":"ping","id":"p"}`).Code; code != http.StatusOK {
			t.Errorf("the agent's session: %d", code)
		}
		if sessions, pending := h.Health(); sessions != 2 || pending != 0 {
			t.Errorf("%d sessions, %d without a handshake", sessions, pending)
		}
		shut(t, h)
	})
	bubble(t, "a connection that gave way ends", func(t *testing.T) {
		h := testHost()
		h.Limits.Pending = 1
		first := connect(t, h)
		synctest.Wait()
		second := connect(t, h)
		if f := first.next(); f != nil {
			t.Errorf("the first one goes on: %v", f)
		}
		second.handshake("test-token-a")
	})
}

// Authenticated is called for the requests, streams and connections of sessions whose
// handshake succeeded, including streams opened before, and for no others.
func TestAuthenticatedHook(t *testing.T) {
	type key struct{}
	newHost := func() (h *Host, heard func() []string) {
		var mu sync.Mutex
		var names []string
		h = testHost()
		h.Authenticated = func(ctx context.Context, id Identity) {
			mu.Lock()
			defer mu.Unlock()
			names = append(names, fmt.Sprint(ctx.Value(key{}), " ", id.Name))
		}
		return h, func() []string {
			mu.Lock()
			defer mu.Unlock()
			out := slices.Compact(names)
			names = nil
			return out
		}
	}
	named := func(r *http.Request, name, session string) *http.Request {
		r.Header.Set(sessionHeader, session)
		return r.WithContext(context.WithValue(r.Context(), key{}, name))
	}
	bubble(t, "over HTTP", func(t *testing.T) {
		h, heard := newHost()
		id := newHTTPSession(t, h, "")
		go h.ServeHTTP(httptest.NewRecorder(), named(httptest.NewRequest("GET", "/stream", nil), "stream", id))
		synctest.Wait()
		say := func(name, body string) {
			r := httptest.NewRequest("POST", "/send", strings.NewReader(body))
			h.ServeHTTP(httptest.NewRecorder(), named(r, name, id))
		}
		say("wrong", `{"type":"handshake/req","id":"1","agent_caps":[],"auth_token":"wrong"}`)
		say("ping", `{"type":"ping","id":"2"}`)
		if got := heard(); len(got) > 0 {
			t.Errorf("before the handshake: %q", got)
		}
		say("right", `{"type":"handshake/req","id":"3","agent_caps":[],"auth_token":"test-token-a"}`)
		if got := heard(); !slices.Equal(got, []string{"stream agent-a", "right agent-a"}) {
			t.Errorf("at the handshake: %q", got)
		}
		say("later", `{"type":"ping","id":"4"}`)
		if got := heard(); !slices.Equal(got, []string{"later agent-a"}) {
			t.Errorf("after the handshake: %q", got)
		}
		shut(t, h)
	})
	bubble(t, "over a connection", func(t *testing.T) {
		h, heard := newHost()
		ours, theirs := net.Pipe()
		go func() { _ = h.ServeConn(context.WithValue(context.Background(), key{}, "conn"), theirs) }()
		go func() { _, _ = io.Copy(io.Discard, ours) }()
		send := func(line string) {
			if _, err := io.WriteString(ours, line+"\n"); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		send(`{"type":"handshake/req","id":"1","agent_caps":[],"auth_token":"wrong"}`)
		if got := heard(); len(got) > 0 {
			t.Errorf("before the handshake: %q", got)
		}
		send(`{"type":"handshake/req","id":"2","agent_caps":[],"auth_token":"test-token-b"}`)
		if got := heard(); !slices.Equal(got, []string{"conn agent-b"}) {
			t.Errorf("after the handshake: %q", got)
		}
		_ = ours.Close()
		shut(t, h)
	})
}

// An address counts once, however it is written.
func TestOneAddress(t *testing.T) {
	t.Parallel()
	if a, b := remoteOf("[::ffff:192.0.2.1]:1"), remoteOf("192.0.2.1:2"); a != b {
		t.Errorf("%q and %q", a, b)
	}
	if got := remoteOf("stdio"); got != "stdio" {
		t.Errorf("not an address: %q", got)
	}
}
