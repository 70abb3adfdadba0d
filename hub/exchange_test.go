package hub

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/recorder"
	"github.com/parley-hub/parley/journal"
)

// watchSteps gives the steps of a hub's deliveries as they are recorded, without those that begin an
// attempt.
func watchSteps(t *testing.T, h *Hub) func(parley.DeliveryState) journal.Step {
	t.Helper()
	steps := make(chan journal.Step, 100)
	t.Cleanup(h.Journal().Watch(func(r *journal.Record) {
		for _, s := range r.Steps {
			if s.State != parley.Delivering {
				steps <- s
			}
		}
	}))
	return func(want parley.DeliveryState) journal.Step {
		t.Helper()
		select {
		case s := <-steps:
			if s.State != want {
				t.Fatalf("%v, want it %v", s, want)
			}
			return s
		case <-time.After(time.Minute):
			t.Fatalf("no step %v", want)
			return journal.Step{}
		}
	}
}

// TestExchanges: the step that ends an attempt has its exchange, whatever becomes of the attempt.
func TestExchanges(t *testing.T) {
	var next Outcome
	w := &wire{name: "asp", deliver: func(ctx context.Context, o Outbound) Outcome {
		recorder.Sent(ctx, "192.0.2.7:1", []byte("frame "+o.Message.Text()))
		recorder.Got(ctx, "busy", []byte("not now"))
		return next
	}}
	h := start(t, nil, w)
	h.agent(t, "away", parley.Identity{Protocol: "asp", ID: "x"})
	step := watchSteps(t, h)
	check := func(s journal.Step, answer string) {
		t.Helper()
		x := s.Exchange
		if x == nil {
			t.Fatalf("%v without an exchange", s)
		}
		if x.Protocol != "asp" || x.Address != "192.0.2.7:1" || x.Status != "busy" || x.Size != len("frame hello") ||
			len(x.Digest) != 32 || x.Sent != nil || string(x.Answer) != answer || x.Started.IsZero() || x.Routed <= 0 ||
			x.Written < x.Routed || x.Took < x.Written {
			t.Errorf("%v: %+v", s, x)
		}
	}
	send := func(k parley.Kind, o Outcome) {
		t.Helper()
		s := ask("away", "", "hello")
		s.Message.Kind, next = k, o
		if _, err := h.Accept(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	send(parley.Notice, Outcome{})
	check(step(parley.Delivered), "not now")
	send(parley.Request, Outcome{Answered: true, Parts: []parley.Part{parley.Text("yes")}})
	check(step(parley.Answered), "") // it is recorded as the reply
	send(parley.Request, Outcome{Answered: true, Failure: parley.Refuse(parley.Rejected, "no")})
	check(step(parley.Answered), "not now")
	send(parley.Notice, Outcome{Err: parley.Refuse(parley.Forbidden, "no")})
	check(step(parley.Dead), "not now")
	send(parley.Notice, Outcome{Err: parley.Fail(parley.Unavailable, nil, "not now")})
	check(step(parley.Waiting), "not now")
	check(step(parley.Waiting), "not now")
	check(step(parley.Dead), "not now")
	send(parley.Request, Outcome{Err: parley.Fail(parley.Unavailable, nil, "not now"), Wait: time.Hour})
	if s := step(parley.Waiting); !s.Postponed {
		t.Errorf("%v is not postponed", s)
	} else {
		check(s, "not now")
	}
}

// TestExchangeOfCallers: a caller that waits gets the failure; its attempt is recorded with the exchange.
func TestExchangeOfCallers(t *testing.T) {
	w := &wire{name: "asp", deliver: func(ctx context.Context, o Outbound) Outcome {
		recorder.Sent(ctx, "", []byte("frame"))
		return Outcome{Err: parley.Fail(parley.Unavailable, nil, "not now"), Unknown: true}
	}}
	h := start(t, nil, w)
	h.agent(t, "away", parley.Identity{Protocol: "asp", ID: "x"})
	if err := h.Handle(echo("echo")); err != nil {
		t.Fatal(err)
	}
	step := watchSteps(t, h)
	for to, protocol := range map[string]string{"away": "asp", "echo": "go"} {
		if _, err := h.Ask(t.Context(), ask(to, "", "hello")); err != nil {
			t.Fatal(err)
		}
		if s := step(parley.Answered); s.Exchange == nil || s.Exchange.Protocol != protocol || s.Exchange.Took <= 0 ||
			(s.Exchange.Size > 0) != (protocol == "asp") {
			t.Errorf("%v: %+v", s, s.Exchange)
		}
	}
}

// TestExchangeBeforeOutcome: an answer that comes by another way during the attempt settles the delivery. Its step has
// the exchange and the losses, because the outcome of the attempt is not recorded any more.
func TestExchangeBeforeOutcome(t *testing.T) {
	sent, goOn := make(chan parley.ID), make(chan struct{})
	lost := []parley.Loss{{Field: "Parts.Name", Reason: "text has no name there"}}
	w := &wire{name: "asp", deliver: func(ctx context.Context, o Outbound) Outcome {
		o.Loses(ctx, lost)
		recorder.Sent(ctx, "192.0.2.7:1", []byte("frame"))
		sent <- o.Message.ID
		<-goOn
		return Outcome{Losses: lost}
	}}
	h := start(t, nil, w)
	h.agent(t, "away", parley.Identity{Protocol: "asp", ID: "x"})
	step := watchSteps(t, h)
	if _, err := h.Accept(t.Context(), ask("away", "", "hello")); err != nil {
		t.Fatal(err)
	}
	reply := Submission{Scope: "test away", Message: &parley.Message{Kind: parley.Response, From: "away",
		InReplyTo: <-sent, Origin: parley.Origin{Protocol: "asp"}}}
	if _, err := h.Accept(t.Context(), reply); err != nil {
		t.Fatal(err)
	}
	close(goOn)
	if s := step(parley.Answered); s.Exchange == nil || s.Exchange.Address != "192.0.2.7:1" || s.Exchange.Size != 5 ||
		!slices.Equal(s.Losses, lost) {
		t.Errorf("%v: %+v, lost %v", s, s.Exchange, s.Losses)
	}
}

// TestExchangeContent: what was sent is recorded only if the hub is told so, and nothing of agents that record less.
func TestExchangeContent(t *testing.T) {
	var all bool
	w := &wire{name: "asp", deliver: func(ctx context.Context, o Outbound) Outcome {
		recorder.Sent(ctx, "192.0.2.7:1", []byte("frame"))
		recorder.Got(ctx, "busy", []byte("not now"))
		return Outcome{}
	}}
	h := start(t, func(c *Config) { c.Sent = func() bool { return all } }, w)
	step := watchSteps(t, h)
	for _, record := range []parley.Recording{parley.RecordFull, parley.RecordHeaders, parley.RecordDigest} {
		h.agent(t, "of-"+string(record), parley.Identity{Protocol: "asp", ID: "x" + string(record)})
		if err := h.Directory().Record(t.Context(), "of-"+string(record), record); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		from, to     string
		all          bool
		sent, answer string
	}{
		{"of-full", "of-full", false, "", "not now"},
		{"of-full", "of-full", true, "frame", "not now"},
		{"of-full", "of-headers", true, "", ""},
		{"of-digest", "of-full", true, "", ""},
	} {
		all = c.all
		s := ask(c.to, "", "hello")
		s.Message.Kind, s.Message.From = parley.Notice, c.from
		if _, err := h.Accept(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		x := step(parley.Delivered).Exchange
		if x == nil || string(x.Sent) != c.sent || string(x.Answer) != c.answer || len(x.Digest) != 32 || x.Status != "busy" {
			t.Errorf("%+v: %+v", c, x)
		}
	}
}

// TestExchangeOfStoppedHub: an attempt that the end of the hub cuts short is recorded with its exchange.
func TestExchangeOfStoppedHub(t *testing.T) {
	begun := make(chan struct{})
	w := &wire{name: "asp", can: Capabilities{Deduplicates: true},
		deliver: func(ctx context.Context, o Outbound) Outcome {
			recorder.Sent(ctx, "192.0.2.7:1", []byte("frame"))
			close(begun)
			<-ctx.Done()
			return Outcome{Err: parley.AsError(ctx.Err()), Unknown: true}
		}}
	h := start(t, nil, w)
	h.agent(t, "away", parley.Identity{Protocol: "asp", ID: "x"})
	step := watchSteps(t, h)
	s := ask("away", "", "hello")
	s.Message.Kind = parley.Notice
	if _, err := h.Accept(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	<-begun
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.Close(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if s := step(parley.Waiting); !s.Postponed || s.Exchange == nil || s.Exchange.Address != "192.0.2.7:1" {
		t.Errorf("%v: %+v", s, s.Exchange)
	}
}

// TestTimesOfReceipt: a message says how long it took to be verified and admitted.
func TestTimesOfReceipt(t *testing.T) {
	var mu sync.Mutex
	now := time.Unix(1000, 0)
	h := start(t, func(c *Config) {
		c.Now = func() time.Time {
			mu.Lock()
			defer mu.Unlock()
			now = now.Add(time.Millisecond)
			return now
		}
	})
	if err := h.Handle(echo("echo")); err != nil {
		t.Fatal(err)
	}
	for name, received := range map[string]time.Time{"by a binding": h.Now().Add(-time.Second), "by the hub": {}} {
		for _, begin := range []bool{false, true} {
			s := ask("echo", "", "hello")
			s.Message.Origin.Received = received
			var err error
			if begin {
				_, err = h.Ask(t.Context(), s)
			} else {
				_, err = h.Accept(t.Context(), s)
			}
			if err != nil {
				t.Fatal(err)
			}
			o := s.Message.Origin
			if checked := !received.IsZero(); (o.Verified > time.Second) != checked || !checked && o.Verified != 0 ||
				o.Admitted <= o.Verified {
				t.Errorf("%s, waiting %v: verified %v, admitted %v", name, begin, o.Verified, o.Admitted)
			}
		}
	}
}
