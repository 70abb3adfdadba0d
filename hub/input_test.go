package hub

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/policy"
)

// booker asks where to, then which day, and answers with both.
func booker(_ context.Context, _ *parley.Message, r parley.Replier) error {
	p, ok := r.(parley.Prompter)
	if !ok {
		return errors.New("no prompter")
	}
	where, err := p.NeedInput(parley.Text("where to?"))
	if err != nil {
		return err
	}
	when, err := p.NeedInput(parley.Text("when?"))
	if err != nil {
		return err
	}
	return r.Reply(parley.Text(where.Text() + " " + when.Text()))
}

// A handler asks, the requester's inputs answer it, and both are numbered.
func TestInputToAHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, nil)
		h.handle(t, "booker", booker)
		h.handle(t, "planner", func(ctx context.Context, _ *parley.Message, r parley.Replier) error {
			answers := []string{"Bern", "Monday"}
			for u, err := range parley.Stream[string](ctx, "booker", "do", "a trip") {
				switch {
				case err != nil:
					return err
				case u.Event != nil:
					if u.Event.State != parley.NeedsInput {
						t.Errorf("event %v", u.Event.State)
					}
					if err := parley.Answer(ctx, u.Event, answers[u.Event.Number-1]); err != nil {
						return err
					}
				default:
					return r.Reply(parley.Text(u.Result))
				}
			}
			return nil
		})
		atOnce(t, func() {
			reply, err := h.Ask(t.Context(), ask("planner", "do", "a trip"))
			if err != nil || reply.Text() != "Bern Monday" {
				t.Fatalf("%v, %v", reply, err)
			}
		})
		for i, m := range h.recorded(t, parley.Input) {
			if m.Number != i+1 || m.From != "planner" || m.To != "booker" || m.InReplyTo.IsZero() {
				t.Errorf("input %d: %+v", i, m)
			}
		}
		wait(t, h)
		if n := len(h.inputs) + len(h.numbers); n > 0 {
			t.Errorf("%d entries are left of a request that ended", n)
		}
	})
}

// An agent behind a binding gets an input with its request. Only the requester of an open
// request may send one.
func TestInputToABinding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []Outbound
		w := &wire{name: "samvad", deliver: func(_ context.Context, o Outbound) Outcome {
			got = append(got, o)
			return Outcome{}
		}}
		h := start(t, nil, w)
		h.agent(t, "far", parley.Identity{Protocol: "samvad", ID: "agent://far"})
		request, err := h.Accept(t.Context(), ask("far", "do", "a trip"))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		origin := parley.Origin{Protocol: "samvad"}
		more := func(from string) error {
			_, err := h.Accept(t.Context(), Submission{Scope: "x", Message: &parley.Message{Kind: parley.Input, From: from,
				To: "far", InReplyTo: request.ID, Parts: []parley.Part{parley.Text("Bern")}, Origin: origin}})
			return err
		}
		if err := code(parley.Conflict, more("other")); err != nil {
			t.Error(err)
		}
		if err := code(parley.Unauthenticated, more(request.From)); err != nil {
			t.Errorf("without the assurance that the agent wants: %v", err)
		}
		origin.Verdict.Assurance = parley.Session
		if err := more(request.From); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(got) != 2 || got[1].Message.Kind != parley.Input || got[1].Request.ID != request.ID ||
			got[1].Message.Conversation != request.Conversation {
			t.Fatalf("delivered: %+v", got)
		}
		if _, err := h.Accept(t.Context(), Submission{Message: &parley.Message{Kind: parley.Response, From: "far",
			InReplyTo: request.ID}}); err != nil {
			t.Fatal(err)
		}
		if err := code(parley.Conflict, more(request.From)); err != nil {
			t.Errorf("after the answer: %v", err)
		}
	})
}

// What a handler does not read is bounded: then further input is refused, not dropped.
func TestUnreadInputs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, nil)
		read := make(chan struct{})
		h.handle(t, "booker", func(_ context.Context, _ *parley.Message, r parley.Replier) error {
			<-read
			more, err := r.(parley.Prompter).NeedInput(parley.Text("more?"))
			if err != nil {
				return err
			}
			return r.Reply(more.Parts...)
		})
		request, err := h.Accept(t.Context(), ask("booker", "do", "a trip"))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		add := func(size int) error {
			_, err := h.Accept(t.Context(), Submission{Message: &parley.Message{Kind: parley.Input, From: request.From,
				To: "booker", InReplyTo: request.ID, Parts: []parley.Part{parley.Text(string(make([]byte, size)))},
				Origin: parley.Origin{Protocol: "api"}}})
			return err
		}
		for range 2 {
			if err := add(maxInputBytes - 1); err != nil {
				t.Error(err)
			}
		}
		if err := code(parley.Unavailable, add(1)); err != nil {
			t.Error(err)
		}
		close(read)
		synctest.Wait()
		if n := len(h.inputs); n > 0 {
			t.Errorf("%d queues are left", n)
		}
	})
}

// No accepted input is lost, however many are recorded at the same time.
func TestInputsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := make(chan struct{})
		h := start(t, func(c *Config) {
			c.Observer = atRecord{f: func(m *parley.Message) {
				if m.Kind == parley.Input {
					<-begin // all have passed the checks
				}
			}}
		})
		read := make(chan struct{})
		got := 0
		h.handle(t, "booker", func(ctx context.Context, _ *parley.Message, r parley.Replier) error {
			<-read
			for {
				if _, err := r.(parley.Prompter).NeedInput(parley.Text("more?")); err != nil {
					return err
				}
				got++
			}
		})
		request, err := h.Accept(t.Context(), ask("booker", "do", "a trip"))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		accepted := make(chan bool, 4)
		for range cap(accepted) {
			go func() {
				_, err := h.Accept(context.Background(), Submission{Message: &parley.Message{Kind: parley.Input,
					From: request.From, To: "booker", InReplyTo: request.ID,
					Parts:  []parley.Part{parley.Text(string(make([]byte, maxInputBytes-1)))},
					Origin: parley.Origin{Protocol: "api"}}})
				if err != nil && parley.CodeOf(err) != parley.Unavailable {
					t.Error(err)
				}
				accepted <- err == nil
			}()
		}
		synctest.Wait()
		close(begin)
		want := 0
		for range cap(accepted) {
			if <-accepted {
				want++
			}
		}
		close(read)
		synctest.Wait()
		if got != want || want != 2 {
			t.Errorf("%d inputs were accepted, and the handler got %d", want, got)
		}
	})
}

// An input to a request that ends while it is admitted is refused, and leaves nothing in memory.
func TestInputBesideTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		atInput := func() {}
		h := start(t, func(c *Config) {
			p, err := policy.New(policy.Config{Hub: "here", Assurance: map[string]parley.Assurance{"": parley.Session},
				Now: func() time.Time { atInput(); return time.Now() }})
			if err != nil {
				t.Fatal(err)
			}
			c.Policy = p
		})
		answer := make(chan struct{})
		h.handle(t, "booker", func(_ context.Context, _ *parley.Message, r parley.Replier) error {
			<-answer
			return r.Reply()
		})
		request, err := h.Accept(t.Context(), ask("booker", "do", "a trip"))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		atInput = func() { close(answer); synctest.Wait() }
		_, err = h.Accept(t.Context(), Submission{Message: &parley.Message{Kind: parley.Input, From: request.From,
			To: "booker", InReplyTo: request.ID, Origin: parley.Origin{Protocol: "api"}}})
		if err := code(parley.Conflict, err); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if n := len(h.inputs) + len(h.numbers); n > 0 || len(h.recorded(t, parley.Input)) > 0 {
			t.Errorf("%d entries are left of a request that ended", n)
		}
	})
}

// What is added before the handler begins waits for it.
func TestEarlyInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, nil)
		begin := make(chan struct{})
		h.handle(t, "booker", func(_ context.Context, m *parley.Message, r parley.Replier) error {
			<-begin
			more, err := r.(parley.Prompter).NeedInput(parley.Text("more?"))
			if err != nil {
				return err
			}
			return r.Reply(parley.Text(m.Text() + " " + more.Text()))
		})
		conversation := parley.HashID(make([]byte, 16)) // one lane: the second request waits for the first
		var requests []*parley.Message
		for _, text := range []string{"one", "two"} {
			s := ask("booker", "do", text)
			s.Message.Conversation = conversation
			m, err := h.Accept(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			requests = append(requests, m)
		}
		synctest.Wait()
		for _, m := range requests {
			if _, err := h.Accept(t.Context(), Submission{Message: &parley.Message{Kind: parley.Input, From: m.From,
				To: "booker", InReplyTo: m.ID, Parts: []parley.Part{parley.Text("and more")},
				Origin: parley.Origin{Protocol: "api"}}}); err != nil {
				t.Error(err)
			}
		}
		close(begin)
		synctest.Wait()
		var answers []string
		for _, m := range h.recorded(t, parley.Response) {
			answers = append(answers, m.Text())
		}
		if want := []string{"one and more", "two and more"}; !slices.Equal(answers, want) {
			t.Errorf("answers %q, want %q", answers, want)
		}
		if n := len(h.inputs) + len(h.numbers); n > 0 {
			t.Errorf("%d entries are left of requests that ended", n)
		}
	})
}

// An input that cannot be delivered while its request is open is not delivered later: its
// delivery says so, and is no dead letter.
func TestLateInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := false
		var got []parley.Kind
		w := &wire{name: "samvad", deliver: func(_ context.Context, o Outbound) Outcome {
			if away {
				return Outcome{Err: parley.Fail(parley.Unavailable, nil, "away"), Wait: time.Second}
			}
			got = append(got, o.Message.Kind)
			return Outcome{}
		}}
		h := start(t, nil, w)
		h.agent(t, "far", parley.Identity{Protocol: "samvad", ID: "agent://far"})
		request, err := h.Accept(t.Context(), ask("far", "do", "a trip"))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		away = true
		more, err := h.Accept(t.Context(), Submission{Message: &parley.Message{Kind: parley.Input, From: request.From,
			To: "far", InReplyTo: request.ID, Parts: []parley.Part{parley.Text("Bern")},
			Origin: parley.Origin{Protocol: "api"}}})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, err := h.Accept(t.Context(), Submission{Message: &parley.Message{Kind: parley.Response, From: "far",
			InReplyTo: request.ID}}); err != nil {
			t.Fatal(err)
		}
		away = false
		time.Sleep(time.Minute) // of the bubble's clock
		synctest.Wait()
		var last journal.Step
		for p := range h.Journal().Partitions() {
			for r, err := range h.Journal().Records(t.Context(), p, journal.From{}) {
				if err != nil {
					t.Fatal(err)
				}
				for _, s := range r.Steps {
					if s.Message == more.ID {
						last = s
					}
				}
			}
		}
		if last.State != parley.Delivered || len(last.Losses) != 1 || len(got) != 1 {
			t.Errorf("%+v; delivered %v", last, got)
		}
	})
}
