package journal

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// waits is a log that tells when a start waits for something.
type waits struct {
	slog.Handler
	once sync.Once
	told chan struct{}
}

func newWaits() *waits { return &waits{Handler: slog.DiscardHandler, told: make(chan struct{})} }

func (w *waits) Enabled(context.Context, slog.Level) bool { return true }

func (w *waits) Handle(_ context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "waiting for the NATS servers") {
		w.once.Do(func() { close(w.told) })
	}
	return nil
}

// halfMade makes the streams of a journal but for one.
func halfMade(t *testing.T, url, prefix, but string) (js jetstream.JetStream, left jetstream.StreamConfig) {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	j := &Journal{cfg: Config{URL: url, Replicas: 1, Window: time.Minute}, prefix: prefix, partitions: 2}
	for _, c := range j.streams() {
		if c.Name == but {
			left = c.StreamConfig
		} else if _, err := js.CreateStream(t.Context(), c.StreamConfig); err != nil {
			t.Fatal(err)
		}
	}
	return js, left
}

// TestStreamsBeingMade: a hub that starts while another makes the streams waits
// for those that are not there yet.
func TestStreamsBeingMade(t *testing.T) {
	s := natsServer(t, nil)
	for _, missing := range []string{"LOG_1", "CHECKPOINT"} {
		t.Run(missing, func(t *testing.T) {
			prefix := "P-" + missing
			js, left := halfMade(t, s.ClientURL(), prefix, prefix+"_"+missing)
			log := newWaits()
			opened := make(chan error, 1)
			go func() {
				j, err := Open(t.Context(), Config{URL: s.ClientURL(), Prefix: prefix, Window: time.Minute, Log: slog.New(log), goneAfter: time.Hour, reopenEvery: time.Millisecond})
				if err == nil {
					err = j.Close()
				}
				opened <- err
			}()
			select {
			case <-log.told:
			case err := <-opened:
				t.Fatalf("it did not wait: %v", err)
			}
			if _, err := js.CreateStream(t.Context(), left); err != nil {
				t.Fatal(err)
			}
			if err := <-opened; err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestStreamGone: a stream of a journal that does not come back is not made
// anew, for that would hide the loss.
func TestStreamGone(t *testing.T) {
	s := natsServer(t, nil)
	js, left := halfMade(t, s.ClientURL(), "P", "P_LOG_1")
	_, err := Open(t.Context(), Config{URL: s.ClientURL(), Prefix: "P", Window: time.Minute, goneAfter: 10 * time.Millisecond, reopenEvery: time.Millisecond})
	if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "P_LOG_1 is gone") {
		t.Fatal(err)
	}
	if _, err := js.Stream(t.Context(), left.Name); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Fatal(err)
	}
}

// TestStateStreamIsLast: by it other hubs see that a journal is there.
func TestStateStreamIsLast(t *testing.T) {
	j := &Journal{cfg: Config{URL: "shared"}, prefix: "P", partitions: 3}
	list := j.streams()
	if last := list[len(list)-1].Name; last != j.stateStream() {
		t.Errorf("the last stream made is %s", last)
	}
}

// TestFindAsksTheLeader: that a stream is not there is believed only of the
// leader of the servers, which names the streams that were decided on.
func TestFindAsksTheLeader(t *testing.T) {
	nc := engineless(t)
	plays(t, nc, "$JS.API.STREAM.INFO.*", func() string { return `{"error":{"code":404,"err_code":10059,"description":"stream not found"}}` })
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	l := &link{nc: nc, js: js}
	var mu sync.Mutex
	names := ""
	plays(t, nc, "$JS.API.STREAM.NAMES", func() string {
		mu.Lock()
		defer mu.Unlock()
		return names
	})
	for _, c := range []struct {
		names string
		want  error
	}{
		{`{"total":1,"offset":0,"limit":1024,"streams":["S"]}`, errNotYet},
		{`{"total":0,"offset":0,"limit":1024,"streams":null}`, jetstream.ErrStreamNotFound},
		{`{"error":{"code":503,"err_code":10008,"description":"no leader"}}`, &jetstream.APIError{ErrorCode: 10008}},
	} {
		mu.Lock()
		names = c.names
		mu.Unlock()
		if _, err := l.find(t.Context(), "S", "s.>"); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.names, err, c.want)
		}
	}
}
