package jetstream

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley/journal/store"
)

// permissions are those of docs/operations.md.
func permissions(prefix string, streams ...string) *server.Permissions {
	publish := []string{
		"$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.INFO." + prefix + "_STATE",
		"$JS.API.STREAM.UPDATE.KV_" + prefix + "_state",
		prefix + ".log.>", "$KV." + prefix + "_state.>", "$KV." + prefix + "_remains.>",
	}
	for _, s := range streams {
		publish = append(publish,
			"$JS.API.STREAM.CREATE."+s, "$JS.API.STREAM.INFO."+s, "$JS.API.STREAM.PURGE."+s,
			"$JS.API.STREAM.MSG.GET."+s, "$JS.API.STREAM.MSG.DELETE."+s, "$JS.API.DIRECT.GET."+s,
			"$JS.API.CONSUMER.CREATE."+s+".*", "$JS.API.CONSUMER.MSG.NEXT."+s+".*")
	}
	return &server.Permissions{
		Publish:   &server.SubjectPermission{Allow: publish},
		Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
	}
}

// TestPermissions: the permissions in the documentation suffice for every method of
// the store.
func TestPermissions(t *testing.T) {
	srv, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(),
		Users: []*server.User{{
			Username: "hub", Password: "p",
			Permissions: permissions("P", "P_LOG_0", "P_LOG_1", "KV_P_remains", "KV_P_state"),
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	if !srv.ReadyForConnections(time.Minute) {
		t.Fatal("the server is not ready")
	}
	log := &lines{Handler: slog.DiscardHandler}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	s, err := Open(ctx, Config{
		URL: srv.ClientURL(), Prefix: "P", Log: slog.New(log), Options: []nats.Option{nats.UserInfo("hub", "p")},
	})
	if err != nil {
		t.Fatal(err)
	}
	steps := []func() error{
		func() error { return s.Init(ctx, store.Meta{Partitions: 2, Restoring: true}) },
		func() error { return s.Skip(ctx, 0, 5) },
		func() error { return s.Append(ctx, 0, 5, []store.Record{{Data: []byte("a")}, {Data: []byte("b")}}) },
		func() error { return s.Append(ctx, 0, 7, []store.Record{{Sequence: 10, Tag: "x", Data: []byte("c")}}) },
		func() error { return s.Init(ctx, store.Meta{Partitions: 2}) },
		func() error { _, err := s.Meta(ctx); return err },
		func() error { return s.Replace(ctx, 0, []store.Record{{Sequence: 10}}) },
		func() error { return s.Read(ctx, 0, 1, endless, func(store.Record) bool { return true }) },
		func() error { _, err := s.Tagged(ctx, 0, "x"); return err },
		func() error { return s.Remove(ctx, 0, 7) },
		func() error { _, err := s.Span(ctx, 0); return err },
		func() error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			if err := s.Follow(ctx, 0, 0, func(store.Record) { cancel() }); !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		},
		func() error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			if err := s.FollowState(ctx, 0, cancel, func(string, store.Value) {}); !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		},
		func() error { _, err := s.Put(ctx, "s", store.Value{Key: "k", Until: time.Now()}, nil); return err },
		func() error { _, err := s.Get(ctx, "s", "k"); return err },
		func() error { return s.Range(ctx, "s", "", func(store.Value) bool { return true }) },
		func() error { return s.Scrub(ctx, time.Now().Add(time.Hour)) },
		func() error { _, err := s.Delete(ctx, "s", "k", nil); return err },
		s.Healthy, s.Close,
	}
	for i, step := range steps {
		if err := step(); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
	log.mu.Lock()
	defer log.mu.Unlock()
	if slices.Contains(log.text, "the NATS servers do not answer; they are asked again") {
		t.Errorf("log: %q", log.text)
	}
}
