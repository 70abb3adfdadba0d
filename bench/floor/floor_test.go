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
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestFloors(t *testing.T) {
	t.Parallel()
	for _, r := range []Row{
		{"samvad", Memory, 1, 1}, {"samvad", Memory, 2, 8}, {"samvad", Disk, 1, 1}, {"samvad", Disk, 2, 32}, {"uagents", Memory, 1, 2},
	} {
		t.Run(fmt.Sprint(r), func(t *testing.T) {
			t.Parallel()
			res, err := r.Measure(t.Context(), Config{Count: 100, Dir: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			if res.Requests != 100 || res.Throughput <= 0 || res.P50 <= 0 || res.P99 < res.P50 {
				t.Errorf("%+v", res)
			}
		})
	}
	for _, c := range []Config{{Storage: "tape"}, {Appends: 3}, {Payload: 10}, {Connections: -1}, {Dir: "/does/not/exist"}} {
		c.Count = 1
		if _, err := Samvad(t.Context(), c); err == nil {
			t.Errorf("%+v is measured", c)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Samvad(ctx, Config{Count: 1}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := Table(t.Context(), &out, []Row{{"samvad", Memory, 1, 2}}, Config{Count: 10}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "per second") || !strings.Contains(lines[1], "samvad") {
		t.Errorf("%s", out.String())
	}
	if err := Table(t.Context(), &out, []Row{{Path: "fax"}}, Config{Count: 10}); err == nil {
		t.Error("there is no such path")
	}
	if n := len(Rows()); n != 15 {
		t.Errorf("%d rows", n)
	}
}

// The floor does the work that it claims: what is wrong is refused.
func TestHandlerRefuses(t *testing.T) {
	t.Parallel()
	seed := sha256.Sum256([]byte("floor"))
	key := ed25519.NewKeyFromSeed(seed[:])
	a := startAppender(t, Memory)
	h := &handler{appender: a, appends: 1, maxBody: 2000, verify: func(base, sig []byte) bool {
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
		r.Header.Set("Signature", base64.StdEncoding.EncodeToString(ed25519.Sign(key, signatureBase("POST", path, digest))))
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

func startAppender(t testing.TB, s Storage) *appender {
	t.Helper()
	e, err := startEngine(t.Context(), s, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.stop)
	a, err := newAppender(e.conn, s)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Records that wait together go as one batch, a lone one goes at once, and
// each is there exactly once.
func TestAppender(t *testing.T) {
	t.Parallel()
	for _, s := range []Storage{Memory, Disk} {
		t.Run(string(s), func(t *testing.T) {
			t.Parallel()
			a := startAppender(t, s)
			var wg sync.WaitGroup
			for i := range 200 {
				wg.Go(func() {
					if err := a.append(t.Context(), fmt.Sprint(i), fmt.Append(nil, i)); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			js, err := jetstream.New(a.conn)
			if err != nil {
				t.Fatal(err)
			}
			st, err := js.Stream(t.Context(), stream)
			if err != nil {
				t.Fatal(err)
			}
			seen, batched := map[string]bool{}, 0
			for i := range uint64(200) {
				m, err := st.GetMsg(t.Context(), i+1)
				if err != nil {
					t.Fatal(err)
				}
				seen[string(m.Data)] = true
				if m.Header.Get("Nats-Batch-Id") != "" {
					batched++
				}
			}
			if len(seen) != 200 || a.count != 0 || len(a.flying) != 0 || len(a.waiting) != 0 {
				t.Errorf("%d records, %d under way", len(seen), a.count)
			}
			if (batched > 0) != (s == Disk) {
				t.Errorf("%d in batches", batched)
			}
		})
	}
}

func TestAppenderErrors(t *testing.T) {
	t.Parallel()
	a := startAppender(t, Disk)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.append(ctx, "1", nil); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	// Acknowledgements come in order: after this one nothing is under way.
	if err := a.append(t.Context(), "2", nil); err != nil {
		t.Fatal(err)
	}
	for _, m := range []*nats.Msg{
		{Subject: "elsewhere"}, {Subject: a.inbox + "zzz"}, {Subject: a.inbox + "!"},
	} {
		a.acknowledged(m) // changes nothing
	}
	f, b := &flight{records: make([]*record, 1)}, &flight{records: make([]*record, 2), batch: true}
	for _, c := range []struct {
		data string
		f    *flight
		ok   bool
	}{
		{`{"stream":"FLOOR","seq":1}`, f, true},
		{`{"stream":"FLOOR","seq":2,"batch":"1","count":2}`, b, true},
		{`{"stream":"FLOOR","seq":2,"batch":"1","count":1}`, b, false},
		{`{"error":{"code":400,"err_code":10201},"stream":"FLOOR","seq":0}`, b, false},
		{`{"error":{"code":503,"err_code":10077},"stream":"FLOOR","seq":0}`, f, false},
		{``, f, false},
	} {
		if err := ackError(&nats.Msg{Data: []byte(c.data)}, c.f); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.data, err)
		}
	}
	if err := ackError(&nats.Msg{Header: nats.Header{"Status": {"503"}}}, f); err == nil {
		t.Error("no responders passes")
	}
	a.conn.Close()
	if err := a.append(t.Context(), "3", nil); err == nil {
		t.Error("a closed connection passes")
	}
	if err := a.append(t.Context(), "4", nil); err == nil {
		t.Error("a closed connection passes twice")
	}
	if a.count != 0 || len(a.flying) != 0 {
		t.Errorf("%d under way", a.count)
	}
	big := &record{data: make([]byte, batchBytes)}
	if n := (&appender{waiting: []*record{big, big}}).fitting(); n != 1 {
		t.Errorf("%d fit", n)
	}
}

// go test ./bench/floor -bench . -benchtime 20000x
func BenchmarkFloor(b *testing.B) {
	for _, r := range Rows() {
		b.Run(fmt.Sprintf("%s/%s/%d/%d", r.Path, r.Storage, r.Appends, r.Connections), func(b *testing.B) {
			res, err := r.Measure(b.Context(), Config{Count: b.N, Dir: b.TempDir()})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(res.Throughput, "msg/s")
			b.ReportMetric(float64(res.P50)/float64(time.Microsecond), "p50-µs")
			b.ReportMetric(float64(res.P99)/float64(time.Microsecond), "p99-µs")
			b.ReportMetric(float64(res.CPUPerMessage)/float64(time.Microsecond), "cpu-µs")
		})
	}
}

// Every act of a plan is done by the program and its peers, exchange after
// exchange, and what is signed otherwise is refused.
func TestServe(t *testing.T) {
	t.Parallel()
	all := []Scheme{Ed25519, P256, Secp256k1}
	plan := Plan{Peers: 2, Payload: 1 << 10, Storage: Memory, Dir: t.TempDir(), Steps: []Step{
		{Do: In, With: all}, {Do: Append}, {Do: Out, With: all}, {Do: Push}, {Do: FromBus}, {Do: ToBus}, {Do: Call}, {Do: Append}, {Do: Answer},
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
