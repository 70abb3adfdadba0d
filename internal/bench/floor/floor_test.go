package floor

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley/internal/bench/load"
)

func TestFloors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		path     string
		measure  func(context.Context, Config) (load.Result, error)
		storage  Storage
		requests int // at once
	}{
		{"samvad", Samvad, Memory, 8}, {"samvad", Samvad, Disk, 1}, {"samvad", Samvad, Disk, 32},
		{"uagents", UAgents, Memory, 2}, {"agh", AGH, Memory, 2}, {"a2a", A2A, Memory, 2}, {"a2a", A2A, Disk, 4},
		{"mcp", MCP, Memory, 2}, {"mcp", MCP, Disk, 4},
	} {
		t.Run(fmt.Sprint(c.path, c.storage, c.requests), func(t *testing.T) {
			t.Parallel()
			res, err := c.measure(t.Context(), Config{Storage: c.storage, Connections: c.requests, Payload: 1 << 10,
				Duration: 20 * time.Millisecond, Dir: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			if res.Requests < c.requests || res.Throughput <= 0 || res.P50 <= 0 || res.P99 < res.P50 {
				t.Errorf("%+v", res)
			}
		})
	}
	good := Config{Storage: Memory, Connections: 1, Payload: 1 << 10, Duration: time.Millisecond}
	for what, spoil := range map[string]func(*Config){
		"storage":     func(c *Config) { c.Storage = "tape" },
		"payload":     func(c *Config) { c.Payload = 10 },
		"connections": func(c *Config) { c.Connections = -1 },
		"duration":    func(c *Config) { c.Duration = 0 },
		"directory":   func(c *Config) { c.Dir = "/does/not/exist" },
	} {
		c := good
		spoil(&c)
		if _, err := Samvad(t.Context(), c); err == nil {
			t.Errorf("%s: %+v is measured", what, c)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Samvad(ctx, good); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// The floor does the work that it claims: bad requests are refused.
func TestHandlerRefuses(t *testing.T) {
	t.Parallel()
	seed := sha256.Sum256([]byte("floor"))
	key := ed25519.NewKeyFromSeed(seed[:])
	a := newAppender(nil)
	h := &handler{appender: a, maxBody: 2000, verify: func(base, sig []byte) bool {
		return ed25519.Verify(key.Public().(ed25519.PublicKey), base, sig)
	}}
	good := payload(1, 1024)
	if len(good) != 1024 {
		t.Fatalf("%d bytes", len(good))
	}
	do := func(body []byte, change func(*http.Request)) int {
		digest := contentDigest(body)
		r := httptest.NewRequest("POST", path, bytes.NewReader(body))
		r.Header.Set("Content-Digest", digest)
		r.Header.Set("Signature", base64.StdEncoding.EncodeToString(ed25519.Sign(key,
			signatureBase("POST", path, digest))))
		change(r)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	for name, c := range map[string]struct {
		body   []byte
		change func(*http.Request)
		want   int
	}{
		"good":      {good, func(*http.Request) {}, 200},
		"digest":    {good, func(r *http.Request) { r.Header.Set("Content-Digest", contentDigest([]byte("x"))) }, 400},
		"signature": {good, func(r *http.Request) { r.URL.Path = "/other" }, 401},
		"not JSON":  {[]byte("{"), func(*http.Request) {}, 400},
		"too large": {payload(1, 3000), func(*http.Request) {}, 400},
		"no length": {good, func(r *http.Request) { r.ContentLength = -1 }, 400},
	} {
		if got := do(c.body, c.change); got != c.want {
			t.Errorf("%s: status %d, want %d", name, got, c.want)
		}
	}
}

// recorder is a file that keeps each write, and whose sync waits for the test.
type recorder struct {
	writes []string
	synced int // of writes
	begun  chan bool
	goOn   chan error
}

func (r *recorder) Write(b []byte) (int, error) {
	r.writes = append(r.writes, string(b))
	return len(b), nil
}

func (r *recorder) Sync() error {
	r.begun <- true
	err := <-r.goOn
	if err == nil {
		r.synced = len(r.writes)
	}
	return err
}

func (r *recorder) Close() error { return nil }

// A lone record is written at once; records that arrive during its sync are written and
// synced together. No append returns before its sync.
func TestAppenderGroups(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &recorder{begun: make(chan bool), goOn: make(chan error)}
		a := newAppender(f)
		answers := make(chan error, 10)
		say := func(text string) { answers <- a.Append(t.Context(), []byte(text)) }
		go say("first")
		<-f.begun
		for _, text := range []string{"b", "c", "d"} {
			go say(text)
			synctest.Wait()
		}
		if len(f.writes) != 1 || f.writes[0] != "\x00\x00\x00\x05first" || len(answers) != 0 {
			t.Errorf("written %q, %d answered", f.writes, len(answers))
		}
		f.goOn <- nil
		<-f.begun
		synctest.Wait()
		if len(f.writes) != 2 || f.writes[1] != "\x00\x00\x00\x01b\x00\x00\x00\x01c\x00\x00\x00\x01d" ||
			len(answers) != 1 {
			t.Errorf("written %q, %d answered", f.writes, len(answers))
		}
		f.goOn <- nil
		synctest.Wait()
		if f.synced != 2 || len(answers) != 4 {
			t.Errorf("%d writes are synced, %d answered", f.synced, len(answers))
		}
		for range 4 {
			if err := <-answers; err != nil {
				t.Error(err)
			}
		}

		// A record that failed to sync, and all after it, are refused.
		broken := errors.New("broken")
		go say("lost")
		<-f.begun
		f.goOn <- broken
		if err := <-answers; !errors.Is(err, broken) {
			t.Errorf("a sync failed: %v", err)
		}
		if err := a.Append(t.Context(), []byte("after")); !errors.Is(err, broken) || len(f.writes) != 3 {
			t.Errorf("after it: %v, %q", err, f.writes)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		if err := a.Append(t.Context(), nil); !errors.Is(err, errClosed) {
			t.Errorf("closed: %v", err)
		}
	})
}

func TestAppenderBounds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ size, records, together int }{{1, groupMax + 1, groupMax}, {groupBytes, 2, 1}} {
		synctest.Test(t, func(t *testing.T) {
			f := &recorder{begun: make(chan bool), goOn: make(chan error)}
			a := newAppender(f)
			var appends sync.WaitGroup
			say := func(size int) {
				appends.Go(func() {
					if err := a.Append(t.Context(), make([]byte, size)); err != nil {
						t.Error(err)
					}
				})
			}
			say(0)
			<-f.begun
			for range c.records {
				say(c.size)
			}
			synctest.Wait()
			f.goOn <- nil
			<-f.begun
			f.goOn <- nil
			<-f.begun
			if got := len(f.writes[1]) / (4 + c.size); len(f.writes) != 3 || got != c.together {
				t.Errorf("%d writes, %d records of %d bytes together", len(f.writes), got, c.size)
			}
			f.goOn <- nil
			appends.Wait()
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAppenderFile(t *testing.T) {
	t.Parallel()
	for _, s := range []Storage{Memory, Disk} {
		dir := t.TempDir()
		a, err := NewAppender(s, dir)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() {
				if err := a.Append(t.Context(), fmt.Appendf(nil, "%03d", i)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if s == Memory {
			if len(a.kept) != 200 {
				t.Errorf("%d are kept", len(a.kept))
			}
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, "records"))
		if err != nil || len(b) != 200*7 {
			t.Fatalf("%d bytes, %v", len(b), err)
		}
		seen := map[string]bool{}
		for ; len(b) > 0; b = b[7:] {
			seen[string(b[4:7])] = true
		}
		if len(seen) != 200 {
			t.Errorf("%d records", len(seen))
		}
	}
}

// go test ./internal/bench/floor -bench . -benchtime 1x
func BenchmarkFloor(b *testing.B) {
	for name, measure := range map[string]func(context.Context, Config) (load.Result, error){"samvad": Samvad,
		"uagents": UAgents} {
		for _, storage := range []Storage{Memory, Disk} {
			for _, n := range []int{1, 64, 256} {
				b.Run(fmt.Sprintf("%s/%s/%d", name, storage, n), func(b *testing.B) {
					res, err := measure(b.Context(), Config{Storage: storage, Connections: n, Payload: 1 << 10,
						Duration: 3 * time.Second, Dir: b.TempDir()})
					if err != nil {
						b.Fatal(err)
					}
					b.ReportMetric(res.Throughput, "msg/s")
					b.ReportMetric(float64(res.P50)/float64(time.Microsecond), "p50-µs")
					b.ReportMetric(float64(res.P99)/float64(time.Microsecond), "p99-µs")
					b.ReportMetric(float64(res.CPUPerRequest)/float64(time.Microsecond), "cpu-µs")
				})
			}
		}
	}
}

// The program and its peers do every act of a plan, exchange after exchange, and refuse
// a wrong signature.
func TestServe(t *testing.T) {
	t.Parallel()
	all := []Scheme{Ed25519, P256, Secp256k1}
	plan := Plan{Peers: 2, Payload: 1 << 10, Storage: Memory, Dir: t.TempDir(), Steps: []Step{
		{Do: In, With: all}, {Do: Append}, {Do: Out, With: all}, {Do: Push}, {Do: FromBus}, {Do: ToBus}, {Do: Call},
		{Do: Append}, {Do: Answer},
	}}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	places, served := make(chan Place, 1), make(chan error, 1)
	go func() {
		served <- Serve(ctx, plan, func(at Place) error { places <- at; return nil })
	}()
	var at Place
	select {
	case at = <-places:
	case err := <-served:
		t.Fatal(err)
	}
	peers, err := Connect(ctx, plan, at)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		for i := range plan.Peers {
			if err := peers.Exchange(ctx, i); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := post(ctx, peers.web, at.HTTP+"/in/1", []byte(`{"id":"other"}`), ""); err != nil {
		t.Fatal(err)
	}
	if err := <-served; err == nil || !strings.Contains(err.Error(), "does not verify") {
		t.Errorf("got %v", err)
	}
	peers.Close()
}
