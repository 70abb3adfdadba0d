package load

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

func serve(t testing.TB, h http.HandlerFunc) (host string) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func conns(t testing.TB, address string, callers int) *Conns {
	c := NewConns(address, callers)
	t.Cleanup(c.Close)
	return c
}

// Each request of a list is sent once, over as many connections as there are callers,
// until the list is empty.
func TestLoop(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	seen, from := map[string]int{}, map[string]bool{}
	host := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil || r.Method != "POST" || r.URL.Path != "/x" || r.Header.Get("X-Test") != "yes" {
			http.Error(w, "bad", http.StatusBadRequest)
			return
		}
		mu.Lock()
		seen[string(b)]++
		from[r.RemoteAddr] = true
		mu.Unlock()
		fmt.Fprintf(w, "got %s", b)
	})
	c := conns(t, host, 4)
	const requests = 100
	res := Do(t.Context(), 4, 0, time.Hour, func(ctx context.Context, caller, i int) error {
		if i >= requests {
			return ErrEnd
		}
		text := fmt.Append(nil, i)
		status, body, err := c.Exchange(ctx, caller,
			NewRequest("POST", host, "/x", http.Header{"X-Test": {"yes"}}, text))
		if err == nil && (status != http.StatusOK || string(body) != "got "+string(text)) {
			err = fmt.Errorf("HTTP %d: %q", status, body)
		}
		return err
	})
	if res.Requests != requests-4 || res.Failed != 0 || res.FirstError != nil { // the first of each caller warms up
		t.Fatalf("%+v", res)
	}
	if res.Throughput <= 0 || res.P50 <= 0 || res.P50 > res.P99 || res.Elapsed < res.P99 {
		t.Errorf("%+v", res)
	}
	if len(from) > 4 {
		t.Errorf("%d connections", len(from))
	}
	if len(seen) != requests {
		t.Errorf("%d different requests", len(seen))
	}
	for b, n := range seen {
		if n != 1 {
			t.Errorf("request %s came %d times", b, n)
		}
	}
}

func TestShapesOfResponses(t *testing.T) {
	t.Parallel()
	host := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/chunked":
			io.WriteString(w, "one")
			w.(http.Flusher).Flush()
			io.WriteString(w, "two")
		case "/close":
			w.Header().Set("Connection", "close")
			io.WriteString(w, "onetwo")
		case "/none":
			w.WriteHeader(http.StatusNoContent)
		case "/raw":
			c, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				return
			}
			io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\nonetwo")
			c.Close()
		default:
			io.WriteString(w, "onetwo")
		}
	})
	for path, want := range map[string]string{"/": "onetwo", "/chunked": "onetwo", "/close": "onetwo", "/none": "",
		"/raw": "onetwo"} {
		c := conns(t, host, 1)
		for range 3 {
			_, body, err := c.Exchange(t.Context(), 0, NewRequest("GET", host, path, nil, nil))
			if err != nil || string(body) != want {
				t.Errorf("%s: %q, %v", path, body, err)
			}
		}
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	teapot := errors.New("a teapot")
	res := Do(t.Context(), 2, 0, 0, func(context.Context, int, int) error { return teapot })
	if res.Requests != 0 || res.Failed != 2 || !errors.Is(res.FirstError, teapot) {
		t.Errorf("%+v", res)
	}
	if _, _, err := conns(t, "127.0.0.1:1", 1).Exchange(t.Context(), 0, nil); err == nil {
		t.Error("an exchange succeeded without a server")
	}
	// The clock ends a loop, and each worker has made one exchange.
	res = Do(t.Context(), 3, 0, 0, func(context.Context, int, int) error { return nil })
	if res.Requests != 3 {
		t.Errorf("%+v", res)
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	release := make(chan struct{})
	defer close(release)
	host := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	c := conns(t, host, 2)
	res := Do(ctx, 2, time.Hour, time.Hour, func(ctx context.Context, caller, _ int) error {
		_, _, err := c.Exchange(ctx, caller, NewRequest("GET", host, "/", nil, nil))
		return err
	})
	if res.Requests != 0 {
		t.Errorf("%+v", res)
	}
}

// answer gives each connection the same bytes.
func answer(t testing.TB, b string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					io.WriteString(c, b)
				}
			}()
		}
	}()
	return l.Addr().String()
}

// A malformed answer is an error, and the next exchange has a new connection.
func TestMalformed(t *testing.T) {
	t.Parallel()
	for _, b := range []string{
		"", "x", "HTTP/1.1\r\n\r\n", "HTTP/1.1 abc OK\r\n\r\n", "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcde\r\n0\r\n\r\n",
	} {
		c := conns(t, answer(t, b), 1)
		for range 2 {
			if status, body, err := c.Exchange(t.Context(), 0, NewRequest("GET", "h", "/", nil, nil)); err == nil {
				t.Errorf("%q: %d %q", b, status, body)
			}
		}
	}
}

func TestQuantile(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		n    int
		q    float64
		want time.Duration
	}{{1, 0.5, 1}, {2, 0.5, 1}, {3, 0.5, 2}, {100, 0.5, 50}, {100, 0.99, 99}, {100, 1, 100}, {1000, 0.99, 990},
		{10, 0.99, 10}} {
		var all []time.Duration
		for i := range c.n {
			all = append(all, time.Duration(i+1))
		}
		if got := Quantile(all, c.q); got != c.want {
			t.Errorf("%v of %d: %d, want %d", c.q, c.n, got, c.want)
		}
	}
}

func BenchmarkExchange(b *testing.B) {
	host := serve(b, func(http.ResponseWriter, *http.Request) {})
	c, req := conns(b, host, 1), NewRequest("POST", host, "/", nil, make([]byte, 1024))
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := c.Exchange(b.Context(), 0, req); err != nil {
			b.Fatal(err)
		}
	}
}

// A server may close connections that send nothing when it has many: the hub does,
// until a caller from their address has proved its identity.
func TestConnectionsBringSomethingFirst(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	most, silent := 0, map[net.Conn]bool{}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s.Config.ConnState = func(c net.Conn, state http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		if state == http.StateNew {
			silent[c] = true
		} else {
			delete(silent, c)
		}
		most = max(most, len(silent))
	}
	s.Start()
	defer s.Close()
	host := strings.TrimPrefix(s.URL, "http://")
	const callers = 3 * openAtOnce
	c, get := conns(t, host, callers), NewRequest("GET", host, "/", nil, nil)
	res := Do(t.Context(), callers, 0, 0, func(ctx context.Context, caller, _ int) error {
		_, _, err := c.Exchange(ctx, caller, get)
		return err
	})
	if res.Requests != callers {
		t.Fatalf("%+v", res)
	}
	mu.Lock()
	defer mu.Unlock()
	if most > openAtOnce {
		t.Errorf("%d connections were open that had brought nothing; want %d at most", most, openAtOnce)
	}
}
