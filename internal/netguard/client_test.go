package netguard

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
)

// dns answers every question for an IPv4 address with the next of addrs, the
// last one for ever.
func dns(addrs ...string) *net.Resolver {
	var asked atomic.Int32
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go func() {
			defer server.Close()
			for {
				var size [2]byte
				if _, err := io.ReadFull(server, size[:]); err != nil {
					return
				}
				q := make([]byte, binary.BigEndian.Uint16(size[:]))
				if _, err := io.ReadFull(server, q); err != nil {
					return
				}
				end := 12
				for q[end] != 0 {
					end += int(q[end]) + 1
				}
				isA := binary.BigEndian.Uint16(q[end+1:]) == 1
				end += 5
				a := append([]byte{0, 0, q[0], q[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, q[12:end]...)
				if isA {
					i := min(int(asked.Add(1)), len(addrs)) - 1
					a[9] = 1
					ip := netip.MustParseAddr(addrs[i]).As4()
					a = append(append(a, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4), ip[:]...)
				}
				binary.BigEndian.PutUint16(a, uint16(len(a)-2))
				if _, err := server.Write(a); err != nil {
					return
				}
			}
		}()
		return client, nil
	}}
}

func serve(t *testing.T, h http.HandlerFunc) (base, port string) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return s.URL, u.Port()
}

func get(t *testing.T, c *http.Client, url string) (string, error) {
	t.Helper()
	r, err := c.Get(url)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return string(b), err
}

// A name is judged by the address of the connection, each time.
func TestResolvedAddress(t *testing.T) {
	t.Parallel()
	var hits atomic.Int32
	_, port := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		hits.Add(1)
		w.Header().Set("Connection", "close")
		io.WriteString(w, "inside")
	})
	target := "http://rebind.example:" + port + "/"

	_, err := get(t, (*Guard)(nil).Client(Options{resolver: dns("127.0.0.1")}), target)
	b, ok := errors.AsType[*BlockedError](err)
	if !ok || b.Host != "rebind.example" || b.Addr.String() != "127.0.0.1" || b.Range.Name != "loopback" {
		t.Errorf("got %v", err)
	}
	if hits.Load() != 0 {
		t.Error("the server was reached")
	}

	// The first answer is allowed, the second is not.
	c := guard(t, "127.0.0.1").Client(Options{resolver: dns("127.0.0.1", "127.0.0.2")})
	if got, err := get(t, c, target); err != nil || got != "inside" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := get(t, c, target); !errors.Is(err, ErrBlocked) {
		t.Errorf("got %v", err)
	}

	// An internal name must not lead outside the list, even to public addresses.
	_, err = get(t, guard(t, "10.0.0.0/8").Client(Options{resolver: dns("8.8.8.8")}), "http://svc.internal/")
	b, ok = errors.AsType[*BlockedError](err)
	if !ok || b.Addr.String() != "8.8.8.8" || !strings.Contains(err.Error(), "as a name of a private network must be") {
		t.Errorf("got %v", err)
	}
	if got, err := get(t, guard(t, "126.0.0.0/7").Client(Options{resolver: dns("127.0.0.1")}), "http://svc.internal:"+
		port+"/"); err != nil || got != "inside" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestClientChecksURL(t *testing.T) {
	t.Parallel()
	base, _ := serve(t, func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })
	if _, err := get(t, (*Guard)(nil).Client(Options{}), base); !errors.Is(err, ErrBlocked) {
		t.Errorf("got %v", err)
	}
	c := guard(t, "loopback").Client(Options{})
	r, err := c.Post(base, "text/plain", strings.NewReader("echo"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if b, err := io.ReadAll(r.Body); err != nil || string(b) != "echo" {
		t.Errorf("got %q, %v", b, err)
	}
	if _, err := get(t, c, strings.Replace(base, "//", "//user@", 1)); !errors.Is(err, ErrURL) {
		t.Errorf("got %v", err)
	}
	c.CloseIdleConnections()
}

// SAM-076: no redirect to another origin.
func TestRedirects(t *testing.T) {
	t.Parallel()
	other, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "other") })
	base, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/same":
			http.Redirect(w, r, "/end", http.StatusFound)
		case "/other":
			http.Redirect(w, r, other, http.StatusFound)
		case "/meta":
			http.Redirect(w, r, "http://169.254.169.254/", http.StatusTemporaryRedirect)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		default:
			io.WriteString(w, "end")
		}
	})
	c := guard(t, "loopback").Client(Options{})
	if got, err := get(t, c, base+"/same"); err != nil || got != "end" {
		t.Errorf("got %q, %v", got, err)
	}
	for _, p := range []string{"/other", "/meta", "/loop"} {
		if _, err := get(t, c, base+p); !errors.Is(err, ErrRedirect) {
			t.Errorf("%s: got %v", p, err)
		}
	}
	r, err := guard(t, "loopback").Client(Options{MaxRedirects: -1}).Get(base + "/other")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusFound {
		t.Errorf("got %s", r.Status)
	}
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"http://a.example/x", "HTTP://A.example:80/y", true},
		{"https://a.example", "https://a.example:443", true},
		{"http://a.example", "https://a.example", false},
		{"http://a.example", "http://a.example:8080", false},
		{"http://a.example", "http://b.example", false},
	} {
		a, _ := url.Parse(c.a)
		b, _ := url.Parse(c.b)
		if (Origin(a) == Origin(b)) != c.same {
			t.Errorf("%s and %s", Origin(a), Origin(b))
		}
	}
}

func TestResponseBound(t *testing.T) {
	t.Parallel()
	base, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/chunked" {
			w.(http.Flusher).Flush()
		}
		io.WriteString(w, strings.Repeat("x", 1000))
	})
	for _, p := range []string{"/", "/chunked"} {
		if _, err := get(t, guard(t, "loopback").Client(Options{MaxResponseBytes: 999}), base+p); !errors.Is(err,
			ErrTooLarge) {
			t.Errorf("%s: got %v", p, err)
		}
		for _, n := range []int64{1000, 0, -1} {
			if got, err := get(t, guard(t, "loopback").Client(Options{MaxResponseBytes: n}), base+p); err != nil ||
				len(got) != 1000 {
				t.Errorf("%s with %d: got %d bytes, %v", p, n, len(got), err)
			}
		}
	}
}

// HTTP_PROXY of the environment has no effect.
func TestProxy(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	_, port := serve(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.URL.String()) })
	target := "http://a.example:" + port + "/x"
	if got, err := get(t, guard(t, "loopback").Client(Options{resolver: dns("127.0.0.1")}), target); err != nil ||
		got != "/x" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestUpgradeKeepsWriter(t *testing.T) {
	t.Parallel()
	base, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		c, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n")
		b := make([]byte, 4)
		if _, err := io.ReadFull(rw, b); err == nil {
			c.Write(b)
		}
	})
	req, err := http.NewRequest("GET", base, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Connection", "upgrade")
	req.Header.Set("Upgrade", "echo")
	r, err := guard(t, "loopback").Client(Options{Timeout: -1}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	rw, ok := r.Body.(io.ReadWriteCloser)
	if !ok {
		t.Fatalf("body is %T", r.Body)
	}
	defer rw.Close()
	io.WriteString(rw, "ping")
	if b, err := io.ReadAll(rw); err != nil || string(b) != "ping" {
		t.Errorf("got %q, %v", b, err)
	}
}

func TestDialContext(t *testing.T) {
	t.Parallel()
	base, port := serve(t, func(http.ResponseWriter, *http.Request) {})
	addr := strings.TrimPrefix(base, "http://")
	ctx := t.Context()
	if _, err := (*Guard)(nil).DialContext(ctx, "tcp", addr); !errors.Is(err, ErrBlocked) {
		t.Errorf("got %v", err)
	}
	g := guard(t, "loopback")
	c, err := g.DialContext(ctx, "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	for _, bad := range [][2]string{{"udp", addr}, {"unix", "/x"}, {"tcp", "nonsense"}, {"tcp", "127.1:" + port},
		{"tcp", "a b:1"}} {
		if c, err := g.DialContext(ctx, bad[0], bad[1]); err == nil {
			c.Close()
			t.Errorf("%v is dialled", bad)
		}
	}
	if err := g.checkDial(host{}, "udp4", "127.0.0.1:1"); err == nil {
		t.Error("UDP passes")
	}
	if err := g.checkDial(host{}, "tcp4", "127.0.0.1"); err == nil {
		t.Error("an address without port passes")
	}
}

func TestReadAll(t *testing.T) {
	t.Parallel()
	in := bytes.Repeat([]byte("x"), 1000)
	for _, n := range []int64{1000, 1001, math.MaxInt64} {
		if b, err := ReadAll(bytes.NewReader(in), n); err != nil || !bytes.Equal(b, in) {
			t.Errorf("%d: %d bytes, %v", n, len(b), err)
		}
		if b, err := ReadAll(iotest.OneByteReader(bytes.NewReader(in)), n); err != nil || !bytes.Equal(b, in) {
			t.Errorf("%d: %d bytes, %v", n, len(b), err)
		}
	}
	for _, n := range []int64{999, 0, -1} {
		if b, err := ReadAll(bytes.NewReader(in), n); !errors.Is(err, ErrTooLarge) || b != nil {
			t.Errorf("%d: %d bytes, %v", n, len(b), err)
		}
	}
	if _, err := ReadAll(iotest.ErrReader(io.ErrUnexpectedEOF), 10); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
}
