package attack

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-hub/parley/uagents"
)

func newAttack(t *testing.T, h http.Handler) *Attack {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	a, err := New(Config{Hub: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

func TestOnlyLoopback(t *testing.T) {
	for _, c := range []Config{
		{}, {Hub: "http://192.0.2.1:80"}, {Hub: "http://hub.example"}, {Hub: "https://127.0.0.1:1"},
		{Hub: "http://127.0.0.1:1", Admin: "http://192.0.2.1:80"},
	} {
		if _, err := New(c); !errors.Is(err, ErrNotLoopback) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestCounts: a flood ends after n requests and counts refusals apart from answers that
// ask to try later.
func TestCounts(t *testing.T) {
	answers := []int{200, 201, 400, 403, 413, 429, 503, 507}
	var n atomic.Int64
	a := newAttack(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(answers[int(n.Add(1)-1)%len(answers)])
	}))
	r := a.flood(t.Context(), 2*len(answers), func(int) (*request, error) { return post("/", []byte("12345")), nil })
	if r.Sent != 16 || r.Taken != 4 || r.Refused != 6 || r.Later != 6 || r.Broken != 0 || r.Err != nil ||
		r.Bytes != 80 || r.Status[413] != 2 {
		t.Error(r)
	}
	var sum Result
	sum.Add(r)
	sum.Add(r)
	if sum.Sent != 32 || sum.Later != 12 || sum.Status[413] != 4 {
		t.Error(sum)
	}
}

// TestEnds: an attack without a number ends with its context.
func TestEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var n atomic.Int64
	a := newAttack(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if n.Add(1) == 10 {
			cancel()
		}
	}))
	some := func(int) (*request, error) { return post("/", nil), nil }
	if r := a.flood(ctx, 0, some); r.Sent == 0 || r.Err != nil {
		t.Error(r)
	}
	failed := errors.New("no more")
	none := func(int) (*request, error) { return nil, failed }
	if r := a.flood(t.Context(), 0, none); r.Sent != 0 || !errors.Is(r.Err, failed) {
		t.Error(r)
	}
}

// openAlmanac accepts every registration and manifest.
type openAlmanac struct{ uagents.AlmanacStore }

func (openAlmanac) Update(_ context.Context, _, _ string,
	change func(*uagents.Record) (*uagents.Record, error)) error {
	_, err := change(nil)
	return err
}

func (openAlmanac) PutManifest(context.Context, *uagents.Manifest) error { return nil }

// openMailbox has an empty mailbox for every agent.
type openMailbox struct{ uagents.MailboxStore }

func (openMailbox) Has(context.Context, string) (bool, error) { return true, nil }

func (openMailbox) List(context.Context, string, int, int, time.Time) ([]uagents.MailboxItem, error) {
	return nil, nil
}

// TestGenuine: a server without limits accepts the signed requests of the attacks.
func TestGenuine(t *testing.T) {
	almanac := &uagents.AlmanacServer{Store: openAlmanac{}}
	boxes := &uagents.MailboxServer{Store: openMailbox{}, Verifier: &uagents.Verifier{}, Models: uagents.Models()}
	mux := http.NewServeMux()
	mux.Handle("/v1/almanac/", almanac)
	mux.Handle("/v2/agents/", boxes)
	a := newAttack(t, mux)
	for name, attack := range map[string]func() Result{
		"registrations": func() Result { return a.Registrations(t.Context(), 3, 10_000) },
		"wide":          func() Result { return a.WideRegistrations(t.Context(), 3) },
		"batches":       func() Result { return a.Batches(t.Context(), 2, 3, 1000) },
		"manifests":     func() Result { return a.Manifests(t.Context(), 3, 10_000) },
		"mailboxes":     func() Result { return a.Mailboxes(t.Context(), 3) },
	} {
		if r := attack(); r.Taken != r.Sent || r.Sent < 2 || r.Err != nil {
			t.Errorf("%s: %s", name, r)
		}
	}
}

// TestHeld: a connection counts as held if it lasts to the end, and as broken if
// the hub closes it.
func TestHeld(t *testing.T) {
	listen := func(each func(net.Conn)) *Attack {
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
				each(c)
			}
		}()
		a, err := New(Config{Hub: "http://" + l.Addr().String(), Reopen: 1})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	const n = 5
	ctx, cancel := context.WithCancel(t.Context())
	var came atomic.Int64
	kept := make(chan net.Conn, n)
	a := listen(func(c net.Conn) {
		kept <- c
		go func() {
			if _, err := c.Read(make([]byte, 1)); err == nil && came.Add(1) == n { // all are counted as sent
				cancel()
			}
		}()
	})
	if r := a.Connections(ctx, n, Header, false); r.Taken != n || r.Sent != n || r.Err != nil {
		t.Error(r)
	}
	ctx, cancel = context.WithCancel(t.Context())
	var closed atomic.Int64
	a = listen(func(c net.Conn) {
		c.Close()
		if closed.Add(1) == 10*n {
			cancel()
		}
	})
	if r := a.Claims(ctx, n, "/submit"); r.Broken < n || r.Sent < 9*n {
		t.Error(r)
	}
}

func TestRename(t *testing.T) {
	const before = `{"version":"1.0","metadata":{"name":"a","digest":"d"},"models":[],"interactions":[]}`
	m, err := uagents.ParseManifest([]byte(before))
	if err != nil {
		t.Fatal(err)
	}
	other, err := uagents.ParseManifest(Rename([]byte(before), `b "c"`))
	if err != nil || other.Name() != `b "c"` || other.Digest() != m.Digest() {
		t.Errorf("%v, %v", other, err)
	}
}
