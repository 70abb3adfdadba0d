package journal

import (
	"context"
	"errors"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// engineless is a connection to a server that has no engine, whose part the test
// plays.
func engineless(t *testing.T) *nats.Conn {
	t.Helper()
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
	t.Cleanup(nc.Close)
	return nc
}

// plays gives the engine's answers to what is asked on a subject; "": none.
func plays(t *testing.T, nc *nats.Conn, subject string, answer func() string) {
	t.Helper()
	if _, err := nc.Subscribe(subject, func(m *nats.Msg) {
		if a := answer(); a != "" {
			if err := m.Respond([]byte(a)); err != nil {
				t.Error(err)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// TestAskedAgain: a stream without a leader answers nobody, or another server says
// that there is none; who asks it is answered when it has one.
func TestAskedAgain(t *testing.T) {
	nc := engineless(t)
	const there = `{"message":{"subject":"s","seq":7,"data":"eA=="}}`
	for stream, answers := range map[string][]string{
		"SILENT":     {"", there},
		"LEADERLESS": {`{"error":{"code":503,"err_code":10008,"description":"JetStream system temporarily unavailable"}}`, there},
	} {
		asked := 0
		plays(t, nc, "$JS.API.STREAM.MSG.GET."+stream, func() string {
			asked++
			return answers[min(asked, len(answers))-1]
		})
		m, err := (&link{nc: nc}).get(t.Context(), stream, 7, "")
		if err != nil || m.seq != 7 || string(m.data) != "x" {
			t.Fatalf("%s: %+v, %v", stream, m, err)
		}
	}
}

// TestPagesAskedAgain: where no replica hands out pages just now, they are asked
// for again.
func TestPagesAskedAgain(t *testing.T) {
	nc := engineless(t)
	asked := 0
	if _, err := nc.Subscribe("$JS.API.DIRECT.GET.S", func(m *nats.Msg) {
		out := nats.NewMsg(m.Reply)
		switch asked++; asked {
		case 1:
			out.Header.Set("Status", "503")
		case 2:
			out.Header.Set("Nats-Sequence", "1")
			out.Header.Set("Nats-Subject", "s")
			out.Data = []byte("x")
			if err := m.RespondMsg(out); err != nil {
				t.Error(err)
			}
			out = nats.NewMsg(m.Reply)
			fallthrough
		default:
			out.Header.Set("Status", "204")
		}
		if err := m.RespondMsg(out); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	var got []uint64
	err := (&link{nc: nc}).pages(t.Context(), "S", 1, 1, func(s *stored) bool { got = append(got, s.seq); return true })
	if err != nil || len(got) != 1 || got[0] != 1 {
		t.Errorf("%v, %v", got, err)
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
