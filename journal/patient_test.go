package journal

import (
	"context"
	"errors"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// TestAskedAgain: a stream without a leader answers nobody; who asks it is
// answered when it has one.
func TestAskedAgain(t *testing.T) {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	nc, err := nats.Connect("", nats.InProcessServer(s))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	asked := 0
	if _, err := nc.Subscribe("$JS.API.STREAM.MSG.GET.S", func(m *nats.Msg) {
		if asked++; asked < 2 {
			return
		}
		if err := m.Respond([]byte(`{"message":{"subject":"s","seq":7,"data":"eA=="}}`)); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	m, err := (&link{nc: nc}).get(t.Context(), "S", 7, "")
	if err != nil || m.seq != 7 || string(m.data) != "x" {
		t.Fatalf("%+v, %v", m, err)
	}
}

// TestPatiently: a cluster that has not settled is asked again, what it refuses
// is refused.
func TestPatiently(t *testing.T) {
	j := &Journal{}
	if err := j.cfg.complete(); err != nil {
		t.Fatal(err)
	}
	j.cfg.reopenEvery = 1
	refused := errors.New("refused")
	for _, c := range []struct {
		name    string
		answers []error
		want    error
	}{
		{"at once", []error{nil}, nil},
		{"no answer", []error{context.DeadlineExceeded, nats.ErrNoResponders, nil}, nil},
		{"no leader, no place", []error{&jetstream.APIError{Code: 503, ErrorCode: 10008}, &jetstream.APIError{Code: 400, ErrorCode: noPlace}, nil}, nil},
		{"refused", []error{nats.ErrTimeout, refused, nil}, refused},
		{"switched off", []error{jetstream.ErrJetStreamNotEnabled, nil}, jetstream.ErrJetStreamNotEnabled},
	} {
		n := 0
		err := j.patiently(t.Context(), c.name, func(context.Context) error {
			n++
			return c.answers[n-1]
		})
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}
