package node

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley/policy"
)

// patience bounds the wait for events that must happen at once.
const patience = 20 * time.Second

func dialHub(t *testing.T, n *Node) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", n.httpListen.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return c
}

// getCard asks for a card over a connection.
func getCard(c net.Conn) (*http.Response, error) {
	if _, err := io.WriteString(c, "GET /agents/echo/.well-known/agent.json HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return nil, err
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err == nil {
		_, err = io.Copy(io.Discard, r.Body)
	}
	return r, err
}

// Connections that are idle, or brought only a part of a request, give way to new ones of
// the same source; a connection of an enrolled agent does not.
func TestGuestConnectionsGiveWay(t *testing.T) {
	n := running(t, Config{Guests: Guests{Connections: 8}}) // four of one source, 16 beside enrolled agents
	enrolled := dialHub(t, n)
	if r, err := getCard(enrolled); err != nil || r.StatusCode != http.StatusOK {
		t.Fatal(r, err)
	}
	n.conns.mu.Lock()
	c := n.conns.guest.Back().Value.(*conn)
	n.conns.mu.Unlock()
	policy.Vouch(withConn(t.Context(), c))
	for i := range 24 {
		c := dialHub(t, n)
		if _, err := io.WriteString(c, []string{"", "POST /submit HTTP/1.1\r\nX: ",
			"POST /submit HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"}[i%3]); err != nil {
			t.Fatal(err)
		}
		// Once a later connection's request is answered, the hub has accepted this one.
		if r, err := getCard(enrolled); err != nil || r.StatusCode != http.StatusOK {
			t.Fatal(r, err)
		}
	}
	if r, err := getCard(dialHub(t, n)); err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("a new connection: %v, %v", r, err)
	}
	if r, err := getCard(enrolled); err != nil || r.StatusCode != http.StatusOK {
		t.Errorf("the enrolled agent's connection: %v, %v", r, err)
	}
	if s := n.conns.snapshot(); s.Guests > 16 || s.Evicted < 8 {
		t.Errorf("%+v", s)
	}
}

// A request whose connection is at work is not cut off for others; a connection for which
// there is no room is closed at once.
func TestConnectionsAtWorkStay(t *testing.T) {
	s := newConns(0, 8, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	bound := s.listen(l)
	accepted := make(chan *conn, 16)
	go func() {
		for {
			c, err := bound.Accept()
			if err != nil {
				close(accepted)
				return
			}
			accepted <- c.(*conn)
		}
	}()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	var open []*conn
	for range 4 {
		dial()
		c := <-accepted
		c.count(+1, +1)
		c.count(0, -1)
		open = append(open, c)
	}
	// the hub may close it before Dial returns
	if refused, err := net.Dial("tcp", l.Addr().String()); err == nil {
		if _, err := refused.Read(make([]byte, 1)); err == nil {
			t.Error("a connection beyond the bound was served")
		}
		_ = refused.Close()
	}
	open[0].count(-1, 0)
	dial()
	if c := <-accepted; c == nil || s.snapshot().Evicted != 1 {
		t.Error("an idle connection did not give way")
	}
	policy.Vouch(withConn(t.Context(), open[1]))
	// An address of an enrolled agent may have more connections.
	for range 8 {
		dial()
		open = append(open, <-accepted)
	}
	if s.snapshot().Evicted != 1 || s.snapshot().Open != 12 {
		t.Errorf("%+v", s.snapshot())
	}
	for _, c := range open {
		if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	}
	if s := s.snapshot(); s.Open != 1 {
		t.Errorf("%+v", s)
	}
}

// A request refused before its body has arrived is answered at once.
func TestEarlyRefusal(t *testing.T) {
	n := running(t, Config{BodyTimeout: time.Hour})
	for _, path := range []string{"/agents/nobody/agent/message", "/nowhere", "/v1/almanac/nowhere"} {
		c := dialHub(t, n)
		if _, err := fmt.Fprintf(c,
			"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{",
			path); err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(c)
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", path, resp.Status)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		if _, err := r.ReadByte(); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the connection is kept", path)
		}
	}
	// A refused request whose body has arrived keeps its connection.
	c := dialHub(t, n)
	r := bufio.NewReader(c)
	for range 2 {
		if _, err := io.WriteString(c, "POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
	}
}

// Web pages of other origins cannot change anything; agents, and pages of listed origins,
// can.
func TestForeignPages(t *testing.T) {
	for _, c := range []struct {
		name, method, host string
		header             map[string]string
		foreign            bool
	}{
		{"an agent", "POST", "hub.example", nil, false},
		{"an agent at a name that is not known", "POST", "elsewhere.example", nil, false},
		{"a page elsewhere", "POST", "127.0.0.1:8080", map[string]string{"Origin": "https://evil.example",
			"Sec-Fetch-Site": "cross-site"}, true},
		{"a page elsewhere, in an old browser", "POST", "127.0.0.1:8080",
			map[string]string{"Origin": "https://evil.example"}, true},
		{"a sandboxed page", "POST", "127.0.0.1:8080", map[string]string{"Origin": "null"}, true},
		{"a form without origin", "POST", "127.0.0.1:8080", map[string]string{"Sec-Fetch-Site": "cross-site"}, true},
		{"a page of a sub-domain", "POST", "hub.example", map[string]string{"Origin": "https://a.hub.example",
			"Sec-Fetch-Site": "same-site"}, true},
		{"a page whose name leads here", "POST", "evil.example",
			map[string]string{"Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"}, true},
		{"DELETE from elsewhere", "DELETE", "hub.example", map[string]string{"Origin": "https://evil.example"}, true},
		{"its own page", "POST", "hub.example", map[string]string{"Origin": "https://hub.example",
			"Sec-Fetch-Site": "same-origin"}, false},
		{"its own page at an address", "POST", "127.0.0.1:8080", map[string]string{"Origin": "http://127.0.0.1:8080"},
			false},
		{"a listed origin", "POST", "hub.example", map[string]string{"Origin": "https://app.example",
			"Sec-Fetch-Site": "cross-site"}, false},
		{"reading from elsewhere", "GET", "hub.example", map[string]string{"Origin": "https://evil.example"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := &Node{c: Config{PublicURL: "https://hub.example",
				Listen: Listen{Origins: []string{"https://app.example"}}}}
			r := httptest.NewRequest(c.method, "http://"+c.host+"/submit", strings.NewReader("{}"))
			for k, v := range c.header {
				r.Header.Set(k, v)
			}
			if got := n.foreign(r); got != c.foreign {
				t.Errorf("foreign: %v", got)
			}
		})
	}
	n := running(t, Config{})
	r, err := http.NewRequestWithContext(t.Context(), "POST", n.Addresses().HTTP+"/submit", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Origin", "https://evil.example")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, ok := n.hub.Explain(resp.Header.Get("Parley-Ref")); resp.StatusCode != http.StatusForbidden || !ok {
		t.Errorf("%s, ref %q", resp.Status, resp.Header.Get("Parley-Ref"))
	}
}

// Listeners that other machines reach without TLS are named.
func TestExposures(t *testing.T) {
	for _, c := range []struct {
		config Config
		want   int
	}{
		{Config{Listen: Listen{HTTP: "127.0.0.1:8080", Admin: "localhost:9090", AGH: "[::1]:4222"}}, 0},
		{Config{Listen: Listen{HTTP: ":8080"}}, 1},
		{Config{Listen: Listen{HTTP: "0.0.0.0:8080", Admin: "192.0.2.1:9090"}}, 2},
		{Config{Listen: Listen{HTTP: ":8080"}, TLS: TLS{Cert: "c", Key: "k"}}, 0},
		{Config{Listen: Listen{HTTP: ":8080"}, TLS: TLS{Proxy: []string{"10.0.0.0/8"}}}, 0},
		{Config{A2E: A2E{Listen: ":7333"}, Listen: Listen{AGH: ":4222"}}, 2},
		{Config{A2E: A2E{Listen: ":7333", TLS: true}}, 0},
	} {
		if got := c.config.Exposures(); len(got) != c.want {
			t.Errorf("%+v: %q", c.config.Listen, got)
		}
	}
}

// The answer to a source over its pace waits, unless the node ends meanwhile.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hurry := make(chan struct{})
		d := &door{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), within: time.Minute,
			hurry:  hurry,
			guests: policy.NewGuests(policy.GuestConfig{Requests: 0.05}), all: newBodies(1), few: newBodies(1)}
		serve := func() { d.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)) }
		began := time.Now()
		serve()
		if took := time.Since(began); took < 9*time.Second || took > 11*time.Second {
			t.Errorf("the answer waited %s", took)
		}
		began = time.Now()
		go serve()
		synctest.Wait()
		close(hurry)
		synctest.Wait()
		if took := time.Since(began); took != 0 {
			t.Errorf("at the end of the node it waited %s", took)
		}
	})
}
