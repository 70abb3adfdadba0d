package recorder_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/fixedport"
	"github.com/parley-hub/parley/internal/recorder"
)

// client sends requests through RoundTrip, as package netguard does.
var client = &http.Client{Transport: transport{}}

type transport struct{}

func (transport) RoundTrip(r *http.Request) (*http.Response, error) {
	return recorder.RoundTrip(r, http.DefaultTransport.RoundTrip)
}

// observe makes a recorder with a clock that goes on by a second each time it is asked.
func observe(t *testing.T, c recorder.Content) (context.Context, *recorder.Recorder) {
	t.Helper()
	now := time.Unix(1000, 0)
	r := recorder.New(func() time.Time { now = now.Add(time.Second); return now })
	r.Routed("asp", c)
	return recorder.With(t.Context(), r), r
}

func do(t *testing.T, ctx context.Context, method, url, body string) (string, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "text/plain")
	r.Header.Set("X-Museum-Key", "sesame")
	resp, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

func serve(t *testing.T) (url, address string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/ok" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(w, "answer to "+r.URL.Path)
		if r.URL.Path == "/long" {
			_, _ = io.WriteString(w, strings.Repeat("x", 5000))
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, strings.TrimPrefix(s.URL, "http://")
}

func end(t *testing.T, r *recorder.Recorder) parley.Exchange {
	t.Helper()
	s, ok := r.End()
	if !ok {
		t.Fatal("nothing was seen")
	}
	return parley.Exchange(s)
}

func TestHTTP(t *testing.T) {
	url, address := serve(t)
	for path, status := range map[string]string{"/ok": "200 OK", "/busy": "503 Service Unavailable",
		"/long": "503 Service Unavailable"} {
		ctx, r := observe(t, recorder.Answers)
		got, err := do(t, ctx, "POST", url+path, "hello")
		if err != nil {
			t.Fatal(err)
		}
		x, digest := end(t, r), sha256.Sum256([]byte("hello"))
		if x.Protocol != "asp" || x.Address != address || x.Status != status || x.Size != 5 ||
			!bytes.Equal(x.Digest, digest[:]) || x.Sent != nil || x.Routed <= 0 || x.Written <= x.Routed ||
			x.Took <= x.Written || x.Started.IsZero() {
			t.Errorf("%s: %+v", path, x)
		}
		if want := got[:min(len(got), parley.MaxAnswer)]; string(x.Answer) != want {
			t.Errorf("%s: answer of %d bytes, want %d: %.40q", path, len(x.Answer), len(want), x.Answer)
		}
	}
}

// TestCarried: the recorded request is the one that carried the message.
func TestCarried(t *testing.T) {
	url, _ := serve(t)
	for name, c := range map[string]struct {
		do           func(ctx context.Context)
		status, gets string
		size         int
	}{
		"after a token": {func(ctx context.Context) {
			post(t, recorder.Aside(ctx), url+"/token")
			post(t, ctx, url+"/ok")
		}, "200 OK", "answer to /ok", 7},
		"before a question": {func(ctx context.Context) {
			post(t, ctx, url+"/ok")
			get(t, ctx, url+"/poll")
		}, "200 OK", "answer to /ok", 7},
		"again": {func(ctx context.Context) {
			post(t, ctx, url+"/busy")
			post(t, ctx, url+"/ok")
		}, "200 OK", "answer to /ok", 7},
		"no token": {func(ctx context.Context) { post(t, recorder.Aside(ctx), url+"/token") },
			"503 Service Unavailable", "answer to /token", 0},
		"no card": {func(ctx context.Context) { get(t, ctx, url+"/card") },
			"503 Service Unavailable", "answer to /card", 0},
		"nothing but a handshake": {func(ctx context.Context) { post(t, recorder.Aside(ctx), url+"/ok") }, "", "", 0},
		"in the background": {func(ctx context.Context) {
			post(t, recorder.Join(context.Background(), ctx), url+"/ok")
		}, "200 OK", "answer to /ok", 7},
	} {
		ctx, r := observe(t, recorder.Answers)
		c.do(ctx)
		if x := end(t, r); x.Status != c.status || string(x.Answer) != c.gets || x.Size != c.size ||
			(x.Digest != nil) != (c.size > 0) {
			t.Errorf("%s: %+v", name, x)
		}
	}
}

func post(t *testing.T, ctx context.Context, url string) {
	t.Helper()
	if _, err := do(t, ctx, "POST", url, "message"); err != nil {
		t.Error(err)
	}
}

func get(t *testing.T, ctx context.Context, url string) {
	t.Helper()
	if _, err := do(t, ctx, "GET", url, ""); err != nil {
		t.Error(err)
	}
}

// TestRefusedDial: the dialled address is known, and nothing left.
func TestRefusedDial(t *testing.T) {
	address := fixedport.Address(t)
	ctx, r := observe(t, recorder.All)
	if _, err := do(t, ctx, "POST", "http://"+address, "hello"); err == nil {
		t.Fatal("somebody answered")
	}
	if x := end(t, r); x.Address != address || x.Status != "" || x.Size != 0 || x.Digest != nil || x.Sent != nil ||
		x.Written != 0 {
		t.Errorf("%+v", x)
	}
}

// TestContent: what was sent and got is kept as far as the hub says, without secrets.
func TestContent(t *testing.T) {
	url, address := serve(t)
	send := func(c recorder.Content) parley.Exchange {
		t.Helper()
		ctx, r := observe(t, c)
		recorder.Hide(ctx, "swordfish", `to"ken`)
		if _, err := do(t, ctx, "POST", url+"/ok?k=swordfish", `{"auth":"to\"ken"}`); err != nil {
			t.Fatal(err)
		}
		return end(t, r)
	}
	if x := send(recorder.None); x.Answer != nil || x.Sent != nil || x.Digest == nil || x.Status != "200 OK" {
		t.Errorf("%+v", x)
	}
	want := "POST /ok?k=[masked] HTTP/1.1\r\nHost: " + address + "\r\nContent-Length: 18\r\n" +
		"Content-Type: text/plain\r\nX-Museum-Key: [masked]\r\n\r\n" + `{"auth":"[masked]"}`
	if x := send(recorder.All); string(x.Sent) != want {
		t.Errorf("%s\nwant\n%s", x.Sent, want)
	}
}

// TestStream: an answer that stays open is passed on at once; after the attempt nothing is added.
func TestStream(t *testing.T) {
	more := make(chan string)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for piece := range more {
			_, _ = io.WriteString(w, piece)
			w.(http.Flusher).Flush()
		}
		panic(http.ErrAbortHandler)
	}))
	defer s.Close()
	ctx, r := observe(t, recorder.Answers)
	req, err := http.NewRequestWithContext(ctx, "POST", s.URL, strings.NewReader("hello"))
	if err != nil {
		t.Fatal(err)
	}
	go func() { more <- "one" }()
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	read := func(n int) {
		t.Helper()
		if _, err := io.ReadFull(resp.Body, make([]byte, n)); err != nil {
			t.Fatal(err)
		}
	}
	read(3)
	if x, _ := r.Seen(); string(x.Answer) != "one" || x.Status != "200 OK" {
		t.Errorf("%+v", x)
	}
	more <- "two"
	read(3)
	x := end(t, r)
	more <- "three"
	read(5)
	if string(x.Answer) != "onetwo" {
		t.Errorf("answer %q", x.Answer)
	}
	close(more)
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("the broken stream ended well")
	}
	if x := end(t, r); string(x.Answer) != "onetwo" {
		t.Errorf("answer %q", x.Answer)
	}
}

func TestOtherTransports(t *testing.T) {
	ctx, r := observe(t, recorder.All)
	recorder.To(ctx, "host:1")
	if x, ok := r.Seen(); !ok || x.Address != "host:1" || x.Written != 0 {
		t.Errorf("%+v", x)
	}
	recorder.Sent(ctx, "", []byte("frame"))
	recorder.Sent(recorder.Aside(ctx), "", []byte("receipt"))
	recorder.Got(ctx, "runtime_error", []byte("too busy"))
	recorder.Got(ctx, "later", []byte("more"))
	digest := sha256.Sum256([]byte("frame"))
	if x := end(t, r); x.Address != "host:1" || x.Status != "runtime_error" || string(x.Answer) != "too busy" ||
		x.Size != 5 || !bytes.Equal(x.Digest, digest[:]) || string(x.Sent) != "frame" || x.Written == 0 {
		t.Errorf("%+v", x)
	}
	for _, f := range []func(){func() { recorder.Sent(t.Context(), "", nil) },
		func() { recorder.Got(t.Context(), "", nil) }, func() { recorder.Hide(t.Context(), "x") },
		func() { recorder.HideURL(t.Context(), "http://a/b") },
		func() { recorder.To(t.Context(), "") }, func() { recorder.Aside(t.Context()) }} {
		f() // without a recorder
	}
}

func BenchmarkRoundTrip(b *testing.B) {
	answer := &http.Response{StatusCode: 200, Body: http.NoBody}
	next := func(*http.Request) (*http.Response, error) { c := *answer; return &c, nil }
	body := bytes.Repeat([]byte("x"), 1024)
	for name, observed := range map[string]bool{"observed": true, "not": false} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				ctx := b.Context()
				var rec *recorder.Recorder
				if observed {
					rec = recorder.New(time.Now)
					ctx = recorder.With(ctx, rec)
					rec.Routed("asp", recorder.Answers)
				}
				r, err := http.NewRequestWithContext(ctx, "POST", "http://127.0.0.1/", bytes.NewReader(body))
				if err != nil {
					b.Fatal(err)
				}
				if _, err := recorder.RoundTrip(r, next); err != nil {
					b.Fatal(err)
				}
				if observed {
					rec.End()
				}
			}
		})
	}
}
