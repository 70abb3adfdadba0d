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
	"sync/atomic"
	"testing"
	"time"
)

func serve(t testing.TB, h http.HandlerFunc) (url, host string) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL, strings.TrimPrefix(s.URL, "http://")
}

func TestRun(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	seen := map[string]int{}
	conns := map[string]bool{}
	url, host := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil || r.Method != "POST" || r.URL.Path != "/x" || r.Header.Get("X-Test") != "yes" {
			http.Error(w, "bad", http.StatusBadRequest)
			return
		}
		mu.Lock()
		seen[string(b)]++
		conns[r.RemoteAddr] = true
		mu.Unlock()
		fmt.Fprintf(w, "got %s", b)
	})
	res, err := Run(t.Context(), Config{
		URL: url, Connections: 4, Warmup: 10, Count: 100,
		Requests: func(i int) *Request {
			return NewRequest("POST", host, "/x", http.Header{"X-Test": {"yes"}}, fmt.Append(nil, i))
		},
		Check: func(status int, body []byte) error {
			if !strings.HasPrefix(string(body), "got ") {
				return fmt.Errorf("body %q", body)
			}
			return checkStatus(status, body)
		},
	})
	if err != nil || res.Requests != 100 || res.Failed != 0 || res.FirstError != nil {
		t.Fatalf("%+v, %v", res, err)
	}
	if res.Throughput <= 0 || res.P50 <= 0 || res.P50 > res.P90 || res.P90 > res.P99 || res.P99 > res.Max ||
		res.Elapsed < res.Max {
		t.Errorf("%+v", res)
	}
	if len(conns) > 4 {
		t.Errorf("%d connections", len(conns))
	}
	if len(seen) < 110 {
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
	url, host := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/chunked":
			io.WriteString(w, "one")
			w.(http.Flusher).Flush()
			io.WriteString(w, "two")
		case "/close":
			w.Header().Set("Connection", "close")
			io.WriteString(w, "onetwo")
		case "/hints":
			w.WriteHeader(http.StatusEarlyHints)
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
	for path, want := range map[string]string{"/": "onetwo", "/chunked": "onetwo", "/close": "onetwo",
		"/hints": "onetwo", "/none": "", "/raw": "onetwo"} {
		res, err := Run(t.Context(), Config{
			URL: url, Count: 5,
			Requests: func(int) *Request { return NewRequest("GET", host, path, nil, nil) },
			Check: func(_ int, body []byte) error {
				if string(body) != want {
					return fmt.Errorf("body %q", body)
				}
				return nil
			},
		})
		if err != nil || res.Requests != 5 {
			t.Errorf("%s: %+v, %v", path, res, err)
		}
	}
	res, err := Run(t.Context(), Config{URL: url, Count: 5, Requests: func(int) *Request {
		return NewRequest("HEAD",
			host, "/", nil, nil)
	}})
	if err != nil || res.Requests != 5 {
		t.Errorf("HEAD: %+v, %v", res, err)
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	url, host := serve(t, func(w http.ResponseWriter, r *http.Request) { http.Error(w, "no", http.StatusTeapot) })
	get := func(int) *Request { return NewRequest("GET", host, "/", nil, nil) }
	res, err := Run(t.Context(), Config{URL: url, Count: 3, Requests: get})
	if err != nil || res.Requests != 0 || res.Failed != 3 || res.FirstError == nil ||
		!strings.Contains(res.FirstError.Error(), "418") {
		t.Errorf("%+v, %v", res, err)
	}
	if _, err := Run(t.Context(), Config{URL: url, Warmup: 1, Count: 3, Requests: get}); err == nil {
		t.Error("a failed warm-up passes")
	}
	for _, c := range []Config{
		{},
		{URL: "https://127.0.0.1", Count: 1, Requests: get},
		{URL: url, Requests: get},
		{URL: url, Count: 1},
		{URL: "http://127.0.0.1:1", Count: 1, Requests: get},
	} {
		if _, err := Run(t.Context(), c); err == nil {
			t.Errorf("%+v passes", c)
		}
	}
	// Requests may run out.
	ok, _ := serve(t, func(http.ResponseWriter, *http.Request) {})
	res, err = Run(t.Context(), Config{URL: ok, Connections: 2, Duration: time.Hour, Requests: func(i int) *Request {
		if i < 7 {
			return get(i)
		}
		return nil
	}})
	if err != nil || res.Requests != 7 {
		t.Errorf("%+v, %v", res, err)
	}
	// The clock ends a run, too.
	res, err = Run(t.Context(), Config{URL: ok, Duration: time.Nanosecond, Requests: get})
	if err != nil || res.Requests > 1 {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	release := make(chan struct{})
	defer close(release)
	url, host := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	_, err := Run(ctx, Config{URL: url, Connections: 2, Count: 10,
		Requests: func(int) *Request { return NewRequest("GET", host, "/", nil, nil) }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
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
	return "http://" + l.Addr().String()
}

func TestMalformed(t *testing.T) {
	t.Parallel()
	for _, b := range []string{
		"", "x", "HTTP/1.1\r\n\r\n", "HTTP/1.0 200 OK\r\n\r\n", "HTTP/1.1 abc OK\r\n\r\n",
		"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcde\r\n0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n", "HTTP/1.1 100 Continue\r\n\r\n",
		"HTTP/1.1 200 OK\r\n" + strings.Repeat("x", 10000),
	} {
		res, err := Run(t.Context(), Config{URL: answer(t, b), Count: 2,
			Requests: func(int) *Request { return NewRequest("GET", "h", "/", nil, nil) }})
		if err != nil || res.Requests != 0 || res.Failed != 2 {
			t.Errorf("%.60q: %+v, %v", b, res, err)
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
	var n atomic.Int64
	url, host := serve(b, func(w http.ResponseWriter, r *http.Request) { n.Add(1) })
	req := NewRequest("POST", host, "/", nil, make([]byte, 1024))
	b.ReportAllocs()
	if _, err := Run(b.Context(), Config{URL: url, Count: b.N,
		Requests: func(int) *Request { return req }}); err != nil {
		b.Fatal(err)
	}
}

// A server may close a connection that brings nothing when it has many: the hub
// does, until a caller of their address has proved itself.
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
	get := NewRequest("GET", strings.TrimPrefix(s.URL, "http://"), "/", nil, nil)
	res, err := Run(t.Context(), Config{URL: s.URL, Connections: 3 * openAtOnce, Warmup: 1, Count: 1000,
		Requests: func(int) *Request { return get }})
	if err != nil || res.Requests != 1000 {
		t.Fatalf("%+v, %v", res, err)
	}
	mu.Lock()
	defer mu.Unlock()
	if most > openAtOnce {
		t.Errorf("%d connections were open that had brought nothing; want %d at most", most, openAtOnce)
	}
}
