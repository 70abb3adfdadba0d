package hub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/policy"
)

// handle registers an agent with one skill, "do".
func (h *Hub) handle(t *testing.T, name string, f parley.Handler) {
	t.Helper()
	if err := h.Handle(parley.Agent{Name: name, Exposed: parley.Everywhere,
		Skills: []parley.SkillSpec{parley.RawSkill("do", f)}}); err != nil {
		t.Fatal(err)
	}
}

// forward makes a handler that asks the next agent, and answers with its answer.
func forward(to string) parley.Handler {
	return func(ctx context.Context, m *parley.Message, r parley.Replier) error {
		parts, err := parley.Ask[[]parley.Part](ctx, to, "do", m.Parts)
		if err != nil {
			return err
		}
		return r.Reply(parts...)
	}
}

func answerText(text string) parley.Handler {
	return func(_ context.Context, _ *parley.Message, r parley.Replier) error { return r.Reply(parley.Text(text)) }
}

// recorded gives the messages of the journal, the oldest first.
func (h *Hub) recorded(t *testing.T, kinds ...parley.Kind) (out []*parley.Message) {
	t.Helper()
	for r, err := range h.Journal().Records(t.Context(), 0, journal.From{}) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Message != nil && slices.Contains(kinds, r.Message.Kind) {
			out = append(out, r.Message)
		}
	}
	return out
}

// atOnce fails if time passes while f runs: in a bubble it passes only when all wait for it.
func atOnce(t *testing.T, f func()) {
	t.Helper()
	began := time.Now()
	f()
	if d := time.Since(began); d > 0 {
		t.Errorf("it took %s: something waited for its deadline", d)
	}
}

func code(want parley.Code, err error) error {
	var e *parley.Error
	if want == "" && err == nil || errors.As(err, &e) && e.Code == want {
		return nil
	}
	return fmt.Errorf("got %v, want code %q", err, want)
}

// A request of a handler belongs to the request that the handler works on.
func TestCallInherits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, nil)
		h.handle(t, "planner", func(ctx context.Context, m *parley.Message, r parley.Replier) error {
			short, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			if err := parley.Tell(ctx, "weather", "do", map[string]int{"n": 1}); err != nil {
				return err
			}
			if _, err := parley.Ask[string](short, "weather", "do", nil); err != nil {
				return err
			}
			return forward("weather")(ctx, m, r)
		})
		h.handle(t, "weather", answerText("21"))
		s := ask("planner", "do", "Bern?")
		s.Message.Trace = parley.Trace{Parent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", State: "a=b",
			Foreign: map[string]string{"samvad.traceId": "t1"}}
		s.Message.Hops = []string{"there"}
		reply, err := h.Ask(t.Context(), s)
		if err != nil || reply.Text() != "21" {
			t.Fatalf("%v, %v", reply, err)
		}
		outer := s.Message
		got := h.recorded(t, parley.Request, parley.Notice)
		if len(got) != 4 {
			t.Fatalf("%d messages", len(got))
		}
		for i, m := range got[1:] {
			if m.From != "planner" || m.To != "weather" || m.Conversation != outer.Conversation ||
				m.Trace.Parent != outer.Trace.Parent || m.Trace.State != "a=b" || m.Trace.Foreign["samvad.traceId"] != "t1" ||
				!slices.Equal(m.Hops, []string{"there", "here", "here"}) || m.Origin.Protocol != "go" ||
				m.Origin.Peer != "planner" || m.Origin.Verdict.Assurance != parley.Session || len(m.Origin.Verdict.Checks) > 0 {
				t.Errorf("message %d: %+v", i, m)
			}
		}
		if want := got[2].Sent.Add(2 * time.Second); !got[2].Deadline.Equal(want) || !got[3].Deadline.Equal(outer.Deadline) ||
			!got[1].Deadline.IsZero() {
			t.Errorf("deadlines %s, %s; want %s, %s", got[2].Deadline, got[3].Deadline, want, outer.Deadline)
		}
		if got[1].Kind != parley.Notice || string(got[1].Parts[0].Data) != `{"n":1}` {
			t.Errorf("%+v", got[1])
		}
	})
}

// Handlers that call each other in a circle end at the hop limit, at once, also if each
// agent has room for one call.
func TestCallsInACircle(t *testing.T) {
	for _, c := range []struct {
		name  string
		calls int
		next  map[string]string
	}{
		{"two agents", 1024, map[string]string{"a": "b", "b": "a"}},
		{"two agents with room for one call", 1, map[string]string{"a": "b", "b": "a"}},
		{"an agent that calls itself", 1, map[string]string{"a": "a"}},
		{"three agents", 1, map[string]string{"a": "b", "b": "c", "c": "a"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := start(t, func(x *Config) { x.HandlerCalls = c.calls })
				for from, to := range c.next {
					h.handle(t, from, forward(to))
				}
				atOnce(t, func() {
					m, err := h.Ask(t.Context(), ask("a", "do", "x"))
					if err != nil || m.Error == nil || m.Error.Code != parley.Loop ||
						!strings.Contains(m.Error.Text, "parley.MaxHops") {
						t.Fatalf("%+v, %v", m, err)
					}
				})
				if n := len(h.recorded(t, parley.Request)); n != parley.MaxHops {
					t.Errorf("%d requests", n)
				}
				if s := h.Stats(); s.Waiting != 0 || s.Delivery.Active != 0 || len(h.asking) != 0 {
					t.Errorf("left: %+v, %d", s, len(h.asking))
				}
			})
		})
	}
}

// A call back to an agent that waits for it runs at once; other messages of the
// conversation wait for their turn.
func TestCallBack(t *testing.T) {
	for _, calls := range []int{1, 1024} {
		synctest.Test(t, func(t *testing.T) {
			h := start(t, func(x *Config) { x.HandlerCalls = calls })
			var order []string
			h.handle(t, "a", func(ctx context.Context, m *parley.Message, r parley.Replier) error {
				order = append(order, m.Text())
				switch m.Text() {
				case "first":
					if _, err := h.Accept(ctx, ask("a", "do", "second")); err != nil {
						return err
					}
					return forward("b")(ctx, m, r)
				case "back":
					return r.Reply(parley.Text("done"))
				}
				return r.Reply(m.Parts...)
			})
			h.handle(t, "b", func(ctx context.Context, m *parley.Message, r parley.Replier) error {
				synctest.Wait() // "second" stays in its lane
				order = append(order, "b")
				text, err := parley.Ask[string](ctx, "a", "do", "back")
				if err != nil {
					return err
				}
				return r.Reply(parley.Text(text))
			})
			atOnce(t, func() {
				if m, err := h.Ask(t.Context(), ask("a", "do", "first")); err != nil || m.Text() != "done" {
					t.Fatalf("%+v, %v", m, err)
				}
				synctest.Wait()
			})
			if got := strings.Join(order, " "); got != "first b back second" {
				t.Errorf("order: %s", got)
			}
		})
	}
}

// Two requests of one conversation whose handlers call each other's agent end, too.
func TestCallsCross(t *testing.T) {
	for _, calls := range []int{1, 1024} {
		synctest.Test(t, func(t *testing.T) {
			h := start(t, func(x *Config) { x.HandlerCalls = calls })
			conversation := parley.HashID([]byte("one conversation"))
			both := make(chan struct{}, 2)
			cross := func(to string) parley.Handler {
				return func(ctx context.Context, m *parley.Message, r parley.Replier) error {
					if m.Text() != "outer" {
						return r.Reply(parley.Text("inner"))
					}
					both <- struct{}{}
					for len(both) < 2 {
						synctest.Wait()
					}
					text, err := parley.Ask[string](ctx, to, "do", "inner")
					if err != nil {
						return err
					}
					return r.Reply(parley.Text(text))
				}
			}
			h.handle(t, "a", cross("b"))
			h.handle(t, "b", cross("a"))
			atOnce(t, func() {
				answers := make(chan string, 2)
				for _, to := range []string{"a", "b"} {
					s := ask(to, "do", "outer")
					s.Message.Conversation = conversation
					go func() {
						m, err := h.Ask(t.Context(), s)
						answers <- fmt.Sprintf("%s %v", m.Text(), err)
					}()
				}
				for range 2 {
					if got := <-answers; got != "inner <nil>" {
						t.Error(got)
					}
				}
			})
		})
	}
}

// What a handler tells an agent before it asks it comes first.
func TestTellComesBeforeAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, nil)
		var got []string
		h.handle(t, "log", func(ctx context.Context, m *parley.Message, r parley.Replier) error {
			time.Sleep(time.Millisecond)
			got = append(got, m.Text())
			return r.Reply()
		})
		h.handle(t, "a", func(ctx context.Context, _ *parley.Message, r parley.Replier) error {
			for i := range 3 {
				if err := parley.Tell(ctx, "log", "do", fmt.Sprint("told ", i)); err != nil {
					return err
				}
			}
			if _, err := parley.Ask[struct{}](ctx, "log", "do", "asked"); err != nil {
				return err
			}
			return r.Reply()
		})
		if m, err := h.Ask(t.Context(), ask("a", "do", "x")); err != nil || m.Kind != parley.Response {
			t.Fatalf("%+v, %v", m, err)
		}
		if want := []string{"told 0", "told 1", "told 2", "asked"}; !slices.Equal(got, want) {
			t.Error(got)
		}
	})
}

// When the handler's context ends, what it asked for ends too, also if it waited in its lane before.
func TestCallIsCancelled(t *testing.T) {
	for _, queued := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			h := start(t, nil)
			ended, working, free := make(chan error, 1), make(chan struct{}), make(chan struct{})
			h.handle(t, "slow", func(ctx context.Context, m *parley.Message, r parley.Replier) error {
				if m.Text() == "busy" {
					<-free
					return r.Reply()
				}
				close(working)
				<-ctx.Done()
				ended <- ctx.Err()
				return ctx.Err()
			})
			h.handle(t, "a", func(ctx context.Context, m *parley.Message, r parley.Replier) error {
				if queued {
					if err := parley.Tell(ctx, "slow", "do", "busy"); err != nil {
						return err
					}
				}
				return forward("slow")(ctx, m, r)
			})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			outer := make(chan *parley.Message, 1)
			go func() {
				m, err := h.Ask(ctx, ask("a", "do", "x"))
				if err != nil {
					t.Error(err)
				}
				outer <- m
			}()
			synctest.Wait()
			close(free)
			<-working
			atOnce(t, func() {
				cancel()
				if err := <-ended; !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				if m := <-outer; m == nil || m.Error == nil || m.Error.Code != parley.Cancelled {
					t.Errorf("%+v", m)
				}
				synctest.Wait()
			})
			if open := h.Journal().Deliveries(journal.Filter{}); len(open) > 0 {
				t.Errorf("open deliveries: %+v", open)
			}
		})
	}
}

func TestStreamInAHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, nil)
		if err := h.Handle(echo("echo")); err != nil {
			t.Fatal(err)
		}
		left := make(chan error, 1)
		h.handle(t, "endless", func(ctx context.Context, _ *parley.Message, r parley.Replier) error {
			for {
				if err := r.Progress("still"); err != nil {
					left <- ctx.Err()
					return err
				}
			}
		})
		h.handle(t, "a", func(ctx context.Context, _ *parley.Message, r parley.Replier) error {
			var got []string
			for u, err := range parley.Stream[string](ctx, "echo", "steps", "x") {
				if err != nil {
					return err
				}
				if u.Event != nil {
					got = append(got, u.Event.Text())
				} else {
					got = append(got, "= "+u.Result)
				}
			}
			for u, err := range parley.Stream[string](ctx, "endless", "do", "x") {
				if err != nil || u.Event == nil {
					return fmt.Errorf("%v, %w", u, err)
				}
				break
			}
			for _, err := range parley.Stream[string](ctx, "echo", "refuse", "x") {
				if err := code(parley.Rejected, err); err != nil {
					return err
				}
			}
			return r.Reply(parley.Text(strings.Join(got, ", ")))
		})
		m, err := h.Ask(t.Context(), ask("a", "do", "x"))
		if err != nil || m.Kind != parley.Response {
			t.Fatalf("%+v, %v", m, err)
		}
		if m.Text() != "piece 0, piece 1, piece 2, nearly, = done" {
			t.Error(m.Text())
		}
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// Policy and content rules count for handlers as for any sender, and the recipient's
// errors come back.
func TestCallErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := policy.New(policy.Config{Hub: "here", Assurance: map[string]parley.Assurance{"": parley.Session},
			Allow: []policy.Rule{{From: "alice", To: []string{"*"}}, {From: "a", To: []string{"echo"}}}})
		if err != nil {
			t.Fatal(err)
		}
		h := start(t, func(c *Config) { c.Policy = p })
		if err := h.Handle(echo("echo")); err != nil {
			t.Fatal(err)
		}
		h.handle(t, "vault", answerText("secret"))
		var late context.Context
		h.handle(t, "a", func(ctx context.Context, _ *parley.Message, r parley.Replier) error {
			for _, c := range []struct {
				to, skill string
				content   any
				code      parley.Code
			}{
				{"vault", "do", nil, parley.Forbidden},
				{"nobody", "do", nil, parley.UnknownAgent},
				{"echo", "none", nil, parley.UnknownSkill},
				{"echo", "typed", map[string]int{"City": 7}, parley.InvalidContent},
				{"echo", "refuse", "x", parley.Rejected},
				{"echo", "panic", "x", parley.HandlerFailed},
				{"echo", "", "x", ""},
			} {
				_, err := parley.Ask[string](ctx, c.to, c.skill, c.content)
				if err := code(c.code, err); err != nil {
					t.Errorf("%s.%s: %v", c.to, c.skill, err)
				}
			}
			if err := code(parley.Forbidden, parley.Tell(ctx, "vault", "do", "x")); err != nil {
				t.Error(err)
			}
			if n, err := parley.Ask[int](ctx, "echo", "typed", "Bern"); err == nil || !strings.Contains(err.Error(), "int") {
				t.Errorf("an answer of another type: %d, %v", n, err)
			}
			late = context.WithoutCancel(ctx)
			return r.Reply()
		})
		if _, err := h.Ask(t.Context(), ask("a", "do", "x")); err != nil {
			t.Fatal(err)
		}
		if _, err := parley.Ask[string](late, "echo", "", "x"); code(parley.Conflict, err) != nil {
			t.Errorf("after the handler's return: %v", err)
		}
	})
}

// A program speaks for its own agents, and for no other.
func TestAs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, nil, &wire{name: "wire"})
		h.handle(t, "weather", answerText("21"))
		h.handle(t, "planner", forward("weather"))
		h.agent(t, "quiet")
		h.agent(t, "distant", parley.Identity{Protocol: "wire", ID: "distant"})
		for agent, want := range map[string]parley.Code{"planner": "", "quiet": "", "distant": parley.Forbidden,
			"nobody": parley.Forbidden} {
			text, err := parley.Ask[string](h.As(t.Context(), agent), "weather", "do", "Bern")
			if err := code(want, err); err != nil || want == "" && text != "21" {
				t.Errorf("as %s: %q, %v", agent, text, err)
			}
		}
		got := h.recorded(t, parley.Request)
		if len(got) != 2 || got[0].Conversation == got[1].Conversation || len(got[0].Hops) != 1 {
			t.Errorf("%+v", got)
		}
		h.handle(t, "other", func(ctx context.Context, m *parley.Message, r parley.Replier) error {
			return forward("weather")(h.As(ctx, "planner"), m, r)
		})
		if m, err := h.Ask(t.Context(), ask("other", "do", "x")); err != nil || m.Text() != "21" {
			t.Fatalf("%+v, %v", m, err)
		}
		if got = h.recorded(t, parley.Request); got[3].From != "planner" || got[3].Conversation != got[2].Conversation ||
			len(got[3].Hops) != 2 {
			t.Errorf("%+v", got[3])
		}
	})
}

// A guest's connection stays a guest's, although a handler that works for it sends messages in its
// context; the guests' budget pays for them.
func TestCallForAGuest(t *testing.T) {
	h := start(t, nil, &wire{name: "wire"})
	h.handle(t, "weather", answerText("21"))
	h.handle(t, "b", forward("weather"))
	h.handle(t, "a", forward("b"))
	s := ask("a", "do", "x")
	s.Message.From = "guest/wire/x"
	s.Message.Origin.Protocol, s.Message.Origin.Address = "wire", "192.0.2.7:99"
	vouched := false
	c := policy.NewCaller("192.0.2.7", func() { vouched = true })
	m, err := h.Ask(policy.WithCaller(t.Context(), c), s)
	if err != nil || m.Text() != "21" {
		t.Fatalf("%+v, %v", m, err)
	}
	if vouched || c.Vouched() {
		t.Error("a guest's connection is taken for an enrolled agent's")
	}
	if got, want := h.Guests().Stats().Written, int64(3*recordBytes); int64(got) < want {
		t.Errorf("charged %d bytes to guests, want %d and more", got, want)
	}
}
