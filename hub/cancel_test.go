package hub

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/policy"
)

// A cancelled request ends at once where its recipient has nothing to confirm: it was never sent,
// its attempt is in flight, or it runs here. An agent that has it is told, and answers.
func TestCancelEndsTheRequest(t *testing.T) {
	for name, c := range map[string]struct {
		holds   bool
		deliver func(context.Context, Outbound) Outcome
		ended   bool
		told    int
	}{
		"held back": {holds: true, ended: true},
		"in flight": {ended: true, told: 1, deliver: func(ctx context.Context, o Outbound) Outcome {
			if o.Message.Kind == parley.Cancel {
				return Outcome{}
			}
			<-ctx.Done()
			// A binding that does not tell a cancelled call from a lost connection.
			return Outcome{Err: parley.Fail(parley.Unavailable, nil, "connection lost"), Unknown: true}
		}},
		"delivered": {told: 1, deliver: func(context.Context, Outbound) Outcome { return Outcome{} }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				requests, cancels := 0, 0
				holds := c.holds
				w := &wire{name: "wire", can: Capabilities{
					Holds: func(*directory.Entry, parley.Identity) bool { return holds }},
					deliver: func(ctx context.Context, o Outbound) Outcome {
						if o.Message.Kind == parley.Cancel {
							cancels++
						} else {
							requests++
						}
						return c.deliver(ctx, o)
					}}
				h := start(t, nil, w)
				h.agent(t, "bob", parley.Identity{Protocol: "wire", ID: "bob"})
				m, err := h.Accept(t.Context(), ask("bob", "", "?"))
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if _, err := h.Accept(t.Context(), Submission{Scope: "x", Message: &parley.Message{Kind: parley.Cancel,
					From: "alice", To: "bob", InReplyTo: m.ID}}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				failures := h.recorded(t, parley.Failure)
				if ended := len(failures) == 1 && failures[0].Error.Code == parley.Cancelled; ended != c.ended {
					t.Errorf("failures %v", failures)
				}
				if _, open := h.Journal().Delivery(m.ID, "bob"); open == c.ended {
					t.Errorf("the request is open: %v", open)
				}
				holds = false
				h.Kick("bob")
				synctest.Wait()
				if requests > 1 || c.holds && requests > 0 || cancels != c.told {
					t.Errorf("the agent got %d requests and %d cancels", requests, cancels)
				}
			})
		})
	}
}

// An atRecord does something when a message is about to be recorded.
type atRecord struct {
	Observer
	f func(m *parley.Message)
}

func (o atRecord) Record(ctx context.Context, m *parley.Message) (context.Context, func(error)) {
	o.f(m)
	return ctx, nil
}

func (o atRecord) Attempt(ctx context.Context, _ *delivery.Attempt, _ string) (context.Context,
	func(delivery.Result)) {
	return ctx, nil
}

// A cancelled request ends too where its first attempt begins while the cancel is recorded, and
// gets through.
func TestCancelBesideTheFirstAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h *Hub
		holds := true
		w := &wire{name: "wire", can: Capabilities{Holds: func(*directory.Entry, parley.Identity) bool { return holds }},
			deliver: func(ctx context.Context, _ Outbound) Outcome {
				<-ctx.Done() // the agent has it already
				return Outcome{}
			}}
		h = start(t, func(c *Config) {
			c.Observer = atRecord{f: func(m *parley.Message) {
				if m.Kind == parley.Cancel {
					holds = false
					h.Kick("bob")
					synctest.Wait()
				}
			}}
		}, w)
		h.agent(t, "bob", parley.Identity{Protocol: "wire", ID: "bob"})
		m, err := h.Accept(t.Context(), ask("bob", "", "?"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.Accept(t.Context(), Submission{Scope: "x", Message: &parley.Message{Kind: parley.Cancel,
			From: "alice", To: "bob", InReplyTo: m.ID}}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := w.calls.Load(); n != 1 {
			t.Fatalf("%d attempts", n)
		}
		failures := h.recorded(t, parley.Failure)
		if len(failures) != 1 || failures[0].Error.Code != parley.Cancelled {
			t.Errorf("failures %v", failures)
		}
	})
}

// Cancels count like other messages of their sender: each is a record, and its request may stay open.
func TestCancelsAreLimited(t *testing.T) {
	for _, c := range []struct {
		name      string
		assurance parley.Assurance
		disk      int64
		want      parley.Reason
	}{
		{name: "rate", want: parley.UnknownRate},
		{name: "guests", assurance: parley.Signed, disk: 120 << 14, want: parley.GuestBudget},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &wire{name: "wire", deliver: func(context.Context, Outbound) Outcome { return Outcome{} }}
				h := start(t, func(o *Config) {
					p, err := policy.New(policy.Config{Hub: "here", Assurance: map[string]parley.Assurance{
						"": parley.Unsigned}})
					if err != nil {
						t.Fatal(err)
					}
					o.Policy, o.Guests = p, policy.NewGuests(policy.GuestConfig{Disk: c.disk})
				}, w)
				h.agent(t, "bob", parley.Identity{Protocol: "wire", ID: "bob"})
				origin := parley.Origin{Protocol: "wire", Peer: "one", Verdict: parley.Verdict{Assurance: c.assurance}}
				request := ask("bob", "", "?")
				request.Message.From, request.Message.Origin = "guest/wire/one", origin
				m, err := h.Accept(t.Context(), request)
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				for range 150 {
					if _, err = h.Accept(t.Context(), Submission{Scope: "x", Message: &parley.Message{Kind: parley.Cancel,
						From: m.From, To: "bob", InReplyTo: m.ID, Origin: origin}}); err != nil {
						break
					}
					synctest.Wait()
				}
				if e := parley.AsError(err); err == nil || e.Code != parley.RateLimited || e.Reason != c.want || !e.Retryable {
					t.Errorf("%v, want a refusal by %s", err, c.want)
				}
			})
		})
	}
}
