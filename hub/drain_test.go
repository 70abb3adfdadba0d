package hub

import (
	"context"
	"testing"

	"github.com/parley-hub/parley"
)

// TestDrain: while the hub drains, agents answer waiting callers, and ask others for
// that; further callers are refused, and messages without a caller are recorded.
func TestDrain(t *testing.T) {
	for name, answered := range map[string]bool{"the agent answers": true, "the drain ends before": false} {
		t.Run(name, func(t *testing.T) {
			asked := make(chan parley.ID, 1)
			slow := &wire{name: "slow", can: Capabilities{Deduplicates: true, CarriesReplies: true},
				deliver: func(_ context.Context, o Outbound) Outcome {
					asked <- o.Message.ID
					return Outcome{}
				}}
			h := start(t, nil, slow)
			h.agent(t, "bob", parley.Identity{Protocol: "slow", ID: "bob"})
			if err := h.Handle(echo("echo")); err != nil {
				t.Fatal(err)
			}
			heard := make(chan string, 1)
			go func() {
				reply, err := h.Ask(t.Context(), ask("bob", "", "well?"))
				if err != nil {
					heard <- string(parley.CodeOf(err))
					return
				}
				heard <- reply.Text()
			}()
			id := <-asked
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			drained := make(chan struct{})
			go func() { defer close(drained); h.Drain(ctx) }()
			for {
				if _, err := h.Ask(t.Context(), ask("echo", "echo", "new")); parley.CodeOf(err) == parley.Unavailable {
					break
				} else if err != nil {
					t.Fatal(err)
				}
			}
			left := ask("echo", "echo", "left")
			left.Message.Kind = parley.Notice
			if _, err := h.Accept(t.Context(), left); err != nil {
				t.Errorf("a notice: %v", err)
			}
			from := func(s Submission) Submission {
				s.Message.From, s.Message.Origin.Peer = "bob", "bob"
				return s
			}
			if reply, err := h.Ask(t.Context(), from(ask("echo", "echo", "help"))); err != nil ||
				reply.Text() != "help" {
				t.Errorf("an agent for which a caller waits asks another: %v, %v", reply, err)
			}
			select {
			case <-drained:
				t.Error("drained while a caller waits")
			default:
			}
			want := string(parley.Unavailable)
			if answered {
				want = "42"
				s := from(ask("", "", "42"))
				s.Message.Kind, s.Message.InReplyTo = parley.Response, id
				if _, err := h.Accept(t.Context(), s); err != nil {
					t.Fatal(err)
				}
			} else {
				cancel()
			}
			<-drained
			if got := <-heard; got != want {
				t.Errorf("the caller got %q, want %q", got, want)
			}
		})
	}
}
