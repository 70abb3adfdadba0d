package jetstream

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parley-hub/parley/journal/store"
)

// A stage is a NATS server without JetStream; the test answers the API's requests.
type stage struct {
	*Store
	t  *testing.T
	nc *nats.Conn

	mu    sync.Mutex
	calls []string // marks of the published messages
}

func newStage(t *testing.T) *stage {
	t.Helper()
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true,
		NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	if !srv.ReadyForConnections(time.Minute) {
		t.Fatal("the server is not ready")
	}
	nc, err := nats.Connect(srv.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	x := &stage{t: t, nc: nc}
	x.plays("$JS.API.INFO", func(int, *nats.Msg) string { return `{"memory":0}` })
	x.Store, err = Open(t.Context(), Config{
		URL: srv.ClientURL(), Prefix: "P", MaxPayload: 1000,
		Timeout: 2 * time.Second, answerWithin: 100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	return x
}

// plays sets the servers' answers on a subject; "" is no answer.
func (x *stage) plays(subject string, answer func(n int, m *nats.Msg) string) {
	x.t.Helper()
	n := 0
	if _, err := x.nc.Subscribe(subject, func(m *nats.Msg) {
		x.mu.Lock()
		if c := m.Header.Get(headerCall); c != "" {
			x.calls = append(x.calls, c)
		}
		x.mu.Unlock()
		if m.Reply == "" {
			return
		}
		n++
		if a := answer(n, m); a != "" {
			if err := m.Respond([]byte(a)); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
				x.t.Error(err)
			}
		}
	}); err != nil {
		x.t.Fatal(err)
	}
	if err := x.nc.Flush(); err != nil {
		x.t.Fatal(err)
	}
}

const (
	wrongLast  = `{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 6"}}`
	noLeader   = `{"error":{"code":503,"err_code":10008,"description":"JetStream system temporarily unavailable"}}`
	incomplete = `{"error":{"code":400,"err_code":10176,"description":"atomic publish batch is incomplete"}}`
	full       = `{"error":{"code":500,"err_code":10047,"description":"insufficient storage resources available"}}`
	none       = `{"error":{"code":404,"err_code":10037,"description":"no message found"}}`
)

func ack(seq uint64) string { return fmt.Sprintf(`{"stream":"S","seq":%d}`, seq) }

// holds is the answer with a stored message, which may have a call's header.
func holds(subject string, seq uint64, headers ...string) string {
	h := "NATS/1.0\r\n" + strings.Join(headers, "\r\n") + "\r\n\r\n"
	return fmt.Sprintf(`{"message":{"subject":%q,"seq":%d,"hdrs":%q,"data":"eA=="}}`,
		subject, seq, base64.StdEncoding.EncodeToString([]byte(h)))
}

// TestAppendAgain: if the answer to an append is lost, the store repeats the append, or
// reads the record at its position, to learn the outcome.
func TestAppendAgain(t *testing.T) {
	t.Parallel()
	own := func(x *stage) string {
		x.mu.Lock()
		defer x.mu.Unlock()
		return holds("P.log.0.r", 6, headerCall+": "+x.calls[0])
	}
	another := func(*stage) string { return holds("P.log.0.r", 6, headerCall+": another") }
	for name, c := range map[string]struct {
		acks []string // the last one repeats
		at6  []func(*stage) string
		want error
	}{
		"acknowledged":                {acks: []string{ack(7)}},
		"another was first":           {acks: []string{wrongLast}, want: store.ErrConflict},
		"the answer was lost":         {acks: []string{"", wrongLast}, at6: []func(*stage) string{own}},
		"answer lost, record late":    {acks: []string{"", wrongLast}, at6: []func(*stage) string{nil, own}},
		"request lost":                {acks: []string{"", wrongLast, ack(7)}, at6: []func(*stage) string{nil}},
		"lost, another was first":     {[]string{"", wrongLast}, []func(*stage) string{another}, store.ErrConflict},
		"the leader changed":          {acks: []string{incomplete, ack(7)}},
		"no leader yet":               {acks: []string{noLeader, ack(7)}},
		"never answered":              {acks: []string{""}, want: store.ErrUnknown},
		"no leader":                   {acks: []string{noLeader}, want: store.ErrBusy},
		"full":                        {acks: []string{full}, want: store.ErrNoSpace},
		"answer lost, then full":      {acks: []string{"", full}, want: store.ErrUnknown},
		"stored at another position":  {acks: []string{ack(9)}, want: store.ErrCorrupt},
		"answer lost, then no leader": {acks: []string{"", noLeader}, want: store.ErrUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newStage(t)
			batches := map[string]bool{}
			x.plays("P.log.0.>", func(n int, m *nats.Msg) string {
				if b := m.Header.Get(headerBatch); batches[b] {
					t.Errorf("batch ID %s is used twice", b)
				} else {
					batches[b] = true
				}
				return c.acks[min(n, len(c.acks))-1]
			})
			x.plays(apiGet+"P_LOG_0", func(n int, _ *nats.Msg) string {
				if len(c.at6) == 0 {
					t.Error("the store reads the record although the outcome is known")
					return none
				}
				if at := c.at6[min(n, len(c.at6))-1]; at != nil {
					return at(x)
				}
				return none
			})
			err := x.Append(t.Context(), 0, 5, []store.Record{{Data: []byte("a")}, {Data: []byte("b")}})
			if !errors.Is(err, c.want) || c.want == nil && x.lastReported("P_LOG_0") != 7 {
				t.Fatalf("%v, want %v", err, c.want)
			}
			x.mu.Lock()
			defer x.mu.Unlock()
			for _, call := range x.calls {
				if call != x.calls[0] {
					t.Errorf("the attempts have different call marks: %q", x.calls)
				}
			}
		})
	}
}

// TestNobodyTakesIt: if no stream has the subject, the error says that nothing was
// recorded.
func TestNobodyTakesIt(t *testing.T) {
	x := newStage(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err := x.Append(ctx, 0, 0, []store.Record{{Data: []byte("a")}})
	if !errors.Is(err, store.ErrBusy) || errors.Is(err, store.ErrUnknown) {
		t.Error(err)
	}
}

// TestPutAgain: if the answer to a Put is lost, the store repeats it, or reads the key's
// last value, to learn the outcome.
func TestPutAgain(t *testing.T) {
	const subject = "$KV.P_state.s.k"
	own := func(x *stage) string {
		x.mu.Lock()
		defer x.mu.Unlock()
		if len(x.calls) == 0 {
			return none
		}
		return holds(subject, 9, headerCall+": "+x.calls[0], jetstream.ExpectedLastSubjSeqHeader+": 4")
	}
	is := func(seq uint64, headers ...string) func(*stage) string {
		return func(*stage) string { return holds(subject, seq, headers...) }
	}
	four, zero := uint64(8), uint64(0)
	for name, c := range map[string]struct {
		expect *uint64
		acks   []string
		last   func(*stage) string // the key's last message
		seq    uint64
		want   error
	}{
		"acknowledged":        {&four, []string{ack(9)}, nil, 9, nil},
		"the answer was lost": {&four, []string{"", wrongLast}, own, 9, nil},
		"lost, another was first": {&four, []string{"", wrongLast}, is(7, jetstream.ExpectedLastSubjSeqHeader+": 4"),
			0, store.ErrConflict},
		"answer lost, replaced": {&four, []string{"", wrongLast}, is(10, jetstream.ExpectedLastSubjSeqHeader+": 9"),
			0, store.ErrUnknown},
		"another was first":               {&four, []string{wrongLast}, is(7), 0, store.ErrConflict},
		"create, key exists":              {&zero, []string{wrongLast}, is(7), 0, store.ErrConflict},
		"create, key was deleted":         {&zero, []string{wrongLast, ack(9)}, is(7, headerOperation+": DEL"), 9, nil},
		"unconditional":                   {nil, []string{ack(9)}, is(7), 9, nil},
		"unconditional, concurrent write": {nil, []string{wrongLast, ack(9)}, is(7), 9, nil},
		"unconditional, answer lost":      {nil, []string{"", wrongLast}, own, 9, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newStage(t)
			x.plays(subject, func(n int, m *nats.Msg) string {
				if (name == "unconditional" || name == "unconditional, concurrent write") &&
					m.Header.Get(jetstream.ExpectedLastSubjSeqHeader) != "7" {
					t.Errorf("the Put expects revision %s, want 7", m.Header.Get(jetstream.ExpectedLastSubjSeqHeader))
				}
				return c.acks[min(n, len(c.acks))-1]
			})
			x.plays(apiGet+x.stateStream(), func(int, *nats.Msg) string { return c.last(x) })
			rev, err := x.Put(t.Context(), "s", store.Value{Key: "k"}, c.expect)
			if !errors.Is(err, c.want) || c.want == nil && rev != valueRevision(c.seq) {
				t.Fatalf("%d, %v, want %d, %v", rev, err, valueRevision(c.seq), c.want)
			}
		})
	}
}

// TestAskedAgain: a request is repeated while a stream has no leader, whether no server
// answers or a server reports the missing leader.
func TestAskedAgain(t *testing.T) {
	for name, first := range map[string]string{"silent": "", "leaderless": noLeader} {
		answers := []string{first, holds("s", 7)}
		t.Run(name, func(t *testing.T) {
			x := newStage(t)
			x.plays(apiGet+"S", func(n int, _ *nats.Msg) string { return answers[min(n, len(answers))-1] })
			m, err := x.readFromLeader(t.Context(), "S", get{Seq: 7})
			if err != nil || m.Seq != 7 || string(m.Data) != "x" {
				t.Fatalf("%+v, %v", m, err)
			}
		})
	}
}

// TestLeaderIsBehind: if a new leader lags behind a sequence that was reported before,
// the store waits for it.
func TestLeaderIsBehind(t *testing.T) {
	t.Parallel()
	x := newStage(t)
	x.report("P_LOG_0", 7)
	x.plays(apiInfo+"P_LOG_0", func(n int, _ *nats.Msg) string {
		return fmt.Sprintf(`{"state":{"first_seq":1,"last_seq":%d,"messages":%d}}`, min(4+n, 7), min(4+n, 7))
	})
	x.plays(apiGet+x.remainsStream(), func(int, *nats.Msg) string { return none })
	if span, err := x.Span(t.Context(), 0); err != nil || span.Last != 7 {
		t.Errorf("%+v, %v", span, err)
	}
	x.report("P_LOG_0", 8) // the leader never gets message 8
	if span, err := x.Span(t.Context(), 0); !errors.Is(err, store.ErrBusy) {
		t.Errorf("%+v, %v", span, err)
	}
}

// TestHeadOfABehindLeader: the head of a chain is read although a new leader lags behind
// it.
func TestHeadOfABehindLeader(t *testing.T) {
	t.Parallel()
	x := newStage(t)
	x.plays(apiGet+x.remainsStream(), func(int, *nats.Msg) string { return none })
	x.plays(apiDirect+"P_LOG_0", func(_ int, m *nats.Msg) string {
		a := nats.NewMsg(m.Reply)
		a.Header.Set("Status", "404")
		if err := x.nc.PublishMsg(a); err != nil {
			t.Error(err)
		}
		return ""
	})
	var has atomic.Int64 // the leader's last sequence
	has.Store(7)
	x.plays(apiInfo+"P_LOG_0", func(int, *nats.Msg) string {
		return fmt.Sprintf(`{"state":{"first_seq":1,"last_seq":%d,"messages":7}}`, has.Add(1)-1)
	})
	x.plays(apiGet+"P_LOG_0", func(int, *nats.Msg) string {
		if has.Load() < 7 {
			return none
		}
		return holds("P.log.0.r", 7)
	})
	head, err := x.Tagged(t.Context(), 0, "chain")
	if err != nil || head.Sequence != 7 {
		t.Fatalf("%+v, %v", head, err)
	}
	for _, leader := range []int64{7, 5} {
		has.Store(leader)
		found := false
		err := x.Read(t.Context(), 0, 7, 7, func(r store.Record) bool { found = r.Sequence == 7; return true })
		if err != nil || !found {
			t.Errorf("with a leader at %d: read %v, %v", leader, found, err)
		}
	}
}

// TestLagging: the store waits for a server that lags behind the leader, both for stored
// and for erased messages.
func TestLagging(t *testing.T) {
	x := newStage(t)
	x.plays(apiInfo+"S", func(int, *nats.Msg) string { return `{"state":{"first_seq":1,"last_seq":7,"messages":7}}` })
	x.plays(apiGet+"S", func(int, *nats.Msg) string { return holds("s", 7) })
	asked, has := 0, false
	if _, err := x.nc.Subscribe(apiDirect+"S", func(m *nats.Msg) {
		if asked++; asked%3 == 0 {
			has = !has
		}
		a := nats.NewMsg(m.Reply)
		a.Header.Set("Status", "404")
		if has {
			a.Header = nats.Header{"Nats-Subject": {"s"}, "Nats-Sequence": {"7"}, "Nats-Last-Sequence": {"0"}}
		}
		end := nats.NewMsg(m.Reply)
		end.Header = nats.Header{"Status": {"204"}, "Nats-Last-Sequence": {"7"}}
		if err := errors.Join(x.nc.PublishMsg(a), x.nc.PublishMsg(end)); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := x.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := x.waitFresh(t.Context(), "S"); err != nil || asked != 3 {
		t.Errorf("%v, %d requests for a message that is not stored yet, want 3", err, asked)
	}
	if err := x.waitAbsent(t.Context(), "S", 7, 8); err != nil || asked != 6 {
		t.Errorf("%v, %d requests for a message that is not erased yet, want 3", err, asked-3)
	}
}

// TestPagesAskedAgain: a page is requested again while no replica answers. If a message
// of a page is lost, the store reads it from the leader.
func TestPagesAskedAgain(t *testing.T) {
	x := newStage(t)
	asked := make(chan string, 10)
	n := 0
	if _, err := x.nc.Subscribe(apiDirect+"P_LOG_0", func(m *nats.Msg) {
		asked <- string(m.Data)
		say := func(status string, seq, before int) {
			a := nats.NewMsg(m.Reply)
			if status != "" {
				a.Header.Set("Status", status)
			} else {
				a.Header.Set("Nats-Subject", "P.log.0.r")
				a.Header.Set("Nats-Sequence", fmt.Sprint(seq))
			}
			a.Header.Set("Nats-Last-Sequence", fmt.Sprint(before))
			if err := x.nc.PublishMsg(a); err != nil {
				t.Error(err)
			}
		}
		switch n++; n {
		case 1: // no answer
		case 2:
			say("", 1, 0)
			say("", 2, 1) // the page is incomplete: the leader has 3
		case 3:
			say("", 5, 4) // the first message of the page is lost
		case 4:
			say("", 4, 0)
			say("", 6, 5) // 5 is lost: the leader has it
		case 5:
			say("", 6, 0)
			say("204", 0, 7) // the last message is lost: the leader has it
		default:
			say("404", 0, 0)
		}
	}); err != nil {
		t.Fatal(err)
	}
	x.plays(apiInfo+"P_LOG_0", func(int, *nats.Msg) string {
		return `{"state":{"first_seq":1,"last_seq":7,"messages":7}}`
	})
	x.plays(apiGet+"P_LOG_0", func(_ int, m *nats.Msg) string {
		var which get
		if err := json.Unmarshal(m.Data, &which); err != nil {
			t.Error(err)
		}
		return holds("P.log.0.r", which.Seq)
	})
	var got []uint64
	if err := x.Read(t.Context(), 0, 1, endless, func(r store.Record) bool {
		got = append(got, r.Sequence)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(got) != "[1 2 3 4 5 6 7]" {
		t.Errorf("read %v", got)
	}
	for _, from := range []string{`"seq":1,`, `"seq":1,`, `"seq":4,`, `"seq":4,`, `"seq":6,`} {
		if a := <-asked; !strings.Contains(a, from) {
			t.Errorf("the page starts at %s, want %s", a, from)
		}
	}
}

// TestOutage: an outage gives one log line when it begins, one a minute while it lasts,
// and one when it ends.
func TestOutage(t *testing.T) {
	log := &lines{Handler: slog.NewTextHandler(io.Discard, nil)}
	now := time.Unix(1e9, 0)
	o := &outage{log: slog.New(log), now: func() time.Time { return now }, lastAnswer: now}
	o.answered()
	for range 180 {
		now = now.Add(time.Second)
		o.begin(nats.ErrTimeout)
	}
	if !o.since.Equal(time.Unix(1e9+1, 0)) || o.why == nil {
		t.Errorf("since %v: %v", o.since, o.why)
	}
	for range 20 { // short outages
		o.answered()
		o.begin(nats.ErrTimeout)
	}
	o.answered()
	if !o.since.IsZero() || o.why != nil {
		t.Errorf("since %v: %v", o.since, o.why)
	}
	const silent, back = "the NATS servers do not answer; they are asked again", "the NATS servers answer again"
	if want := []string{silent, silent, silent, back}; fmt.Sprint(log.text) != fmt.Sprint(want) {
		t.Errorf("log: %q", log.text)
	}
	if o.begin(nats.ErrTimeout) {
		t.Error("the connection is left although a server answered just now")
	}
	now = now.Add(leaveAfter)
	if !o.begin(nats.ErrTimeout) || o.begin(nats.ErrTimeout) {
		t.Error("begin must return true once per outage")
	}
}
