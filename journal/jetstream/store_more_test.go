package jetstream

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parley-hub/parley/internal/testcluster"
	"github.com/parley-hub/parley/journal/store"
)

// client is a second connection, besides the store's.
func client(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func open(t *testing.T, cfg Config) *Store {
	t.Helper()
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestRefusals: Open or Meta refuses a server that lacks a feature, and a stream of
// another program.
func TestRefusals(t *testing.T) {
	t.Parallel()
	small, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(),
		MaxPayload: 64 << 10,
	})
	if err != nil {
		t.Fatal(err)
	}
	small.Start()
	t.Cleanup(func() { small.Shutdown(); small.WaitForShutdown() })
	if !small.ReadyForConnections(time.Minute) {
		t.Fatal("the server is not ready")
	}
	says := func(err error, want ...string) {
		t.Helper()
		for _, w := range want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%v, want %q", err, w)
			}
		}
	}
	_, err = Open(t.Context(), Config{URL: small.ClientURL(), MaxPayload: 1 << 20})
	says(err, "65536", "1048576", "max_payload")
	_, err = Open(t.Context(), Config{URL: small.ClientURL(), Prefix: "a.b"})
	says(err, "a.b")
	_, err = Open(t.Context(), Config{URL: small.ClientURL(), Durability: "some"})
	says(err, "some")
	_, err = Open(t.Context(), Config{URL: "nats://user:secret@127.0.0.1:1"})
	says(err, "cannot connect", "127.0.0.1:1")
	if strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
	if got := open(t, Config{URL: small.ClientURL()}).MaxRecord(); got != 60<<10 {
		t.Errorf("largest record %d", got)
	}

	js := client(t, small.ClientURL())
	for prefix, c := range map[string]struct {
		stream jetstream.StreamConfig
		meta   error
		init   error
		text   string
	}{
		"A": {
			jetstream.StreamConfig{Name: "KV_A_state", Subjects: []string{"$KV.A_state.>"}},
			store.ErrForeign, store.ErrForeign, "another Prefix",
		},
		"B": {
			jetstream.StreamConfig{
				Name: "B_STATE", Subjects: []string{"B.state.>"}, Metadata: map[string]string{metaOutdated: "1"},
			},
			store.ErrFormat, store.ErrFormat, "take a backup with that release",
		},
		"C": {
			jetstream.StreamConfig{Name: "C_STATE", Subjects: []string{"C.state.>"}},
			store.ErrForeign, store.ErrForeign, "another Prefix",
		},
		"D": {
			jetstream.StreamConfig{Name: "D_LOG_0", Subjects: []string{"else"}},
			store.ErrNotFound, store.ErrForeign, "D_LOG_0",
		},
	} {
		if _, err := js.CreateStream(t.Context(), c.stream); err != nil {
			t.Fatal(err)
		}
		s := open(t, Config{URL: small.ClientURL(), Prefix: prefix, goneAfter: time.Second})
		if _, err := s.Meta(t.Context()); !errors.Is(err, c.meta) {
			t.Errorf("%s: %v, want %v", prefix, err, c.meta)
		}
		err := s.Init(t.Context(), store.Meta{Partitions: 1})
		if !errors.Is(err, c.init) {
			t.Errorf("%s: %v, want %v", prefix, err, c.init)
		}
		says(err, c.text)
	}
}

// TestHalfMade: a journal whose creation was interrupted does not exist yet, and Init
// completes it. A missing stream of a complete journal is not created again, because
// that would hide the loss.
func TestHalfMade(t *testing.T) {
	url := testcluster.Start(t, 1).URLs[0]
	js := client(t, url)
	s := open(t, Config{URL: url, goneAfter: time.Millisecond})
	m := store.Meta{Format: 2, Partitions: 2}
	if _, err := js.CreateStream(t.Context(), s.streams(m)[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Meta(t.Context()); !errors.Is(err, store.ErrNotFound) {
		t.Fatal(err)
	}
	if err := s.Init(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Meta(t.Context()); err != nil || got != m {
		t.Fatal(got, err)
	}
	if list := s.streams(m); list[len(list)-1].Name != s.stateStream() {
		t.Errorf("the last stream made is %s", list[len(list)-1].Name)
	}
	if err := js.DeleteStream(t.Context(), s.logStream(1)); err != nil {
		t.Fatal(err)
	}
	_, err := s.Meta(t.Context())
	if !errors.Is(err, store.ErrCorrupt) || !strings.Contains(err.Error(), "PARLEY_LOG_1 is gone") {
		t.Fatal(err)
	}
	if _, err := js.Stream(t.Context(), s.logStream(1)); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Fatal(err)
	}
}

// TestFindAsksTheLeader: a stream is missing only if the cluster's leader does not list
// it: other servers may lag behind.
func TestFindAsksTheLeader(t *testing.T) {
	const (
		missing = `{"error":{"code":404,"err_code":10059,"description":"stream not found"}}`
		there   = `{"total":1,"offset":0,"limit":1024,"streams":["S"]}`
		nowhere = `{"total":0,"offset":0,"limit":1024,"streams":null}`
	)
	for name, c := range map[string]struct {
		infos, names []string // the last one repeats
		want         error
	}{
		"server lags":          {[]string{missing, `{"config":{"name":"S"}}`}, []string{there}, nil},
		"missing":              {[]string{missing}, []string{nowhere}, jetstream.ErrStreamNotFound},
		"server lags, removed": {[]string{missing}, []string{there, nowhere}, jetstream.ErrStreamNotFound},
		"missing, late leader": {[]string{missing}, []string{noLeader, "", nowhere}, jetstream.ErrStreamNotFound},
		"not permitted": {[]string{`{"error":{"code":500,"err_code":10000}}`}, nil,
			&jetstream.APIError{ErrorCode: 10000}},
		"server never catches up": {[]string{missing}, []string{there}, store.ErrBusy},
		"late leader":             {[]string{noLeader, `{"config":{"name":"S"}}`}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newStage(t)
			x.plays(apiInfo+"S", func(n int, _ *nats.Msg) string { return c.infos[min(n, len(c.infos))-1] })
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			x.plays(apiNames, func(n int, _ *nats.Msg) string {
				if name == "server never catches up" && n == 3 {
					cancel()
				}
				return c.names[min(n, len(c.names))-1]
			})
			info, err := x.find(ctx, x.config("S", "s."), 0)
			if !errors.Is(err, c.want) || c.want == nil && info.Config.Name != "S" {
				t.Errorf("%+v, %v, want %v", info, err, c.want)
			}
		})
	}
}

// TestErased: reads, Span, Tagged and a later follower find erased records at their
// positions, the first and the last too.
func TestErased(t *testing.T) {
	t.Parallel()
	url := testcluster.Start(t, 1).URLs[0]
	s, js := open(t, Config{URL: url}), client(t, url)
	if err := s.Init(t.Context(), store.Meta{Partitions: 1}); err != nil {
		t.Fatal(err)
	}
	const n = 600
	records := make([]store.Record, n)
	want := make([]string, n)
	for i := range records {
		records[i].Data = []byte("secret")
		want[i] = "secret"
	}
	records[n-1].Tag = "a.b"
	if err := s.Append(t.Context(), 0, 0, records); err != nil {
		t.Fatal(err)
	}
	var erased []store.Record
	for i := range n {
		if i < 3 || i >= n-3 || i%7 == 0 {
			erased = append(erased, store.Record{Sequence: uint64(i + 1), Data: []byte("erased")})
			want[i] = "erased"
		}
	}
	rand.Shuffle(len(erased), func(i, k int) { erased[i], erased[k] = erased[k], erased[i] })
	for range 2 { // Replace is idempotent
		if err := s.Replace(t.Context(), 0, erased); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Replace(t.Context(), 0, []store.Record{{Sequence: n + 1}}); !errors.Is(err, store.ErrNotFound) {
		t.Error(err)
	}
	check := func(from uint64) {
		t.Helper()
		var got []string
		seq := from
		if err := s.Read(t.Context(), 0, 1, endless, func(r store.Record) bool {
			if r.Sequence != seq || (r.Tag != "") != (seq == n) {
				t.Errorf("record %d %q at %d", r.Sequence, r.Tag, seq)
			}
			seq++
			got = append(got, string(r.Data))
			return true
		}); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want[from-1:]) {
			t.Errorf("read %q", got)
		}
		span, err := s.Span(t.Context(), 0)
		if err != nil || span.First != from || span.Last != n || span.Records != n-from+1 {
			t.Errorf("%+v, %v", span, err)
		}
		r, err := s.Tagged(t.Context(), 0, "a.b")
		if err != nil || r.Sequence != n || string(r.Data) != "erased" || r.Tag != "a.b" {
			t.Errorf("tagged %+v, %v", r, err)
		}
		for _, after := range []uint64{0, n - 2} {
			ctx, cancel := context.WithCancel(t.Context())
			var told []string
			err := s.Follow(ctx, 0, after, func(r store.Record) {
				told = append(told, string(r.Data))
				if r.Sequence == n {
					cancel()
				}
			})
			cancel()
			if !errors.Is(err, context.Canceled) || !slices.Equal(told, want[max(after+1, from)-1:]) {
				t.Errorf("followed %q, %v", told, err)
			}
		}
	}
	check(1)
	remains, err := js.Stream(t.Context(), s.remainsStream())
	if err != nil {
		t.Fatal(err)
	}
	left := func() uint64 {
		t.Helper()
		info, err := remains.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return info.State.Msgs
	}
	if got := left(); got != uint64(len(erased))+2 { // the first record and the tag's newest have one each
		t.Errorf("%d remains of %d", got, len(erased))
	}
	if err := s.Remove(t.Context(), 0, 301); err != nil {
		t.Fatal(err)
	}
	check(301)
	kept := uint64(2)
	for _, r := range erased {
		if r.Sequence > 300 {
			kept++
		}
	}
	if got := left(); got != kept {
		t.Errorf("%d remains, want %d", got, kept)
	}
}

// TestWritersTakeTurns: of several writers of one partition, each group is stored whole,
// directly after the record that its writer expected.
func TestWritersTakeTurns(t *testing.T) {
	t.Parallel()
	urls := testcluster.Start(t, 1).URLs
	first := open(t, Config{URL: urls[0]})
	if err := first.Init(t.Context(), store.Meta{Partitions: 1}); err != nil {
		t.Fatal(err)
	}
	const writers, groups = 4, 25
	var wg sync.WaitGroup
	for w := range writers {
		s := open(t, Config{URL: urls[0]})
		if s.run == first.run {
			t.Fatal("two stores have the same run mark: each would claim the other's records")
		}
		wg.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(w)))
			for g := 0; g < groups; {
				span, err := s.Span(t.Context(), 0)
				if err != nil {
					t.Error(err)
					return
				}
				group := make([]store.Record, 1+random.IntN(5))
				for i := range group {
					group[i].Data = []byte{byte(w), byte(g), byte(i), byte(len(group)), byte(span.Last >> 8),
						byte(span.Last)}
				}
				err = s.Append(t.Context(), 0, span.Last, group)
				if err == nil {
					g++
				} else if !errors.Is(err, store.ErrConflict) {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	next := map[byte]byte{}
	var i byte
	if err := first.Read(t.Context(), 0, 1, endless, func(r store.Record) bool {
		w, g, of, after := r.Data[0], r.Data[1], r.Data[3], uint64(r.Data[4])<<8|uint64(r.Data[5])
		if g != next[w] || r.Data[2] != i || r.Sequence != after+uint64(i)+1 {
			t.Fatalf("record %d is %v, want record %d of group %d", r.Sequence, r.Data, i, next[w])
		}
		if i++; i == of {
			i = 0
			next[w]++
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
	for w := range byte(writers) {
		if next[w] != groups {
			t.Errorf("writer %d: %d groups", w, next[w])
		}
	}
}

// TestHealthy: a store is unhealthy while the servers do not answer, and finds their
// return by a request of its own.
func TestHealthy(t *testing.T) {
	t.Parallel()
	x := newStage(t)
	log := &lines{Handler: slog.DiscardHandler}
	x.outage.log = slog.New(log)
	if err := x.Healthy(); err != nil {
		t.Fatal(err)
	}
	x.plays(apiInfo+"S", func(int, *nats.Msg) string { return "" })
	if _, err := x.tail(t.Context(), "S"); !errors.Is(err, store.ErrBusy) {
		t.Fatal(err)
	}
	if err := x.Healthy(); !errors.Is(err, store.ErrBusy) {
		t.Fatal(err)
	}
	answered := make(chan struct{}, 100)
	x.plays(apiInfo+x.stateStream(), func(int, *nats.Msg) string { answered <- struct{}{}; return `{}` })
	_ = x.Healthy() // sends a request, which is answered now
	<-answered
	for x.Healthy() != nil {
		<-answered
	}
	if len(log.text) != 2 {
		t.Errorf("log: %q", log.text)
	}
}
