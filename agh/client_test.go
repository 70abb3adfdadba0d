package agh

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// bus is a Transport in process that behaves like NATS: each subscription has its
// own queue, and publishers receive their own messages.
type bus struct {
	mu     sync.Mutex
	subs   map[string][]chan Message
	log    []string // kind and sender of everything published
	back   []func()
	broken bool
}

func (b *bus) Publish(_ context.Context, subject, reply string, data []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.broken {
		return errors.New("bus: cut off")
	}
	if e, err := (&Decoder{Handles: true}).Decode(data); err == nil {
		b.log = append(b.log, fmt.Sprintf("%s %s", e.Kind, e.From))
	}
	for _, q := range b.subs[subject] {
		q <- Message{Subject: subject, Reply: reply, Data: data}
	}
	return nil
}

func (b *bus) Subscribe(ctx context.Context, subject string, handle func(Message)) (func() error, error) {
	q := make(chan Message, 1024)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.subs == nil {
		b.subs = map[string][]chan Message{}
	}
	b.subs[subject] = append(b.subs[subject], q)
	go func() {
		for {
			select {
			case m := <-q:
				handle(m)
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() error {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.subs[subject] = slices.DeleteFunc(b.subs[subject], func(c chan Message) bool { return c == q })
		return nil
	}, nil
}

func (b *bus) OnReconnect(f func()) { b.back = append(b.back, f) }

func (b *bus) published(what string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, l := range b.log {
		if l == what {
			n++
		}
	}
	return n
}

func join(t testing.TB, ctx context.Context, b *bus, id string, handler func(context.Context, *Request)) *Client {
	t.Helper()
	c := &Client{Transport: b, WorkspaceID: "ws", Channel: "c", PeerID: id, Handler: handler}
	if err := c.Join(ctx); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestClient(t *testing.T) {
	t.Run("AGH-058 joining", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			b := &bus{}
			join(t, ctx, b, "alice", nil)
			own, _ := PeerSubject("ws", "c", "alice")
			if len(b.subs["agh.network.v0.ws.c.broadcast"]) != 1 || len(b.subs[own]) != 1 || len(b.subs) != 2 {
				t.Errorf("subscribed %v", b.subs)
			}
			if n := b.published("greet alice"); n != 1 {
				t.Errorf("%d greetings after joining", n)
			}
			<-time.After(61 * time.Second)
			synctest.Wait()
			if n := b.published("greet alice"); n != 3 {
				t.Errorf("%d greetings after two intervals", n)
			}
			b.back[0]()
			if n := b.published("greet alice"); n != 4 {
				t.Errorf("%d greetings after a reconnection", n)
			}
			stop()
			synctest.Wait()
			if len(b.subs[own]) != 0 {
				t.Error("still subscribed")
			}
		})
	})
	t.Run("say, direct, work and whois", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer func() { stop(); synctest.Wait() }()
			b := &bus{}
			heard := make(chan string, 16)
			hear := func(who string) func(context.Context, *Request) {
				return func(ctx context.Context, r *Request) {
					s, ok := r.Envelope.Content().(*Say)
					if !ok {
						return
					}
					if r.Envelope.WorkID == "" {
						heard <- who + " " + string(r.Envelope.Surface) + " " + s.Text
						return
					}
					steps := []error{r.Receipt(ctx, StatusAccepted, "", ""), r.Trace(ctx, &Trace{State: StateWorking})}
					if s.Text == "refuse" {
						steps = []error{r.Receipt(ctx, StatusRejected, ReasonBusy, "later")}
					} else {
						steps = append(steps, r.Say(ctx, &Say{Text: "here"}),
							r.Trace(ctx, &Trace{State: StateCompleted, Result: []byte(`{"n":1.50}`)}))
					}
					if err := errors.Join(steps...); err != nil {
						t.Error(err)
					}
				}
			}
			boss := join(t, ctx, b, "boss", nil)
			bobs := []Capability{{ID: "build", Summary: "Build.", Outcome: "A page."}}
			bob := &Client{Transport: b, WorkspaceID: "ws", Channel: "c", PeerID: "bob", Catalog: bobs,
				Handler: hear("bob")}
			if _, err := bob.Say(ctx, "", &Say{Text: "x"}); !errors.Is(err, ErrClosed) {
				t.Errorf("before joining: %v", err)
			}
			if err := bob.Join(ctx); err != nil {
				t.Fatal(err)
			}
			join(t, ctx, b, "carol", hear("carol"))
			synctest.Wait()
			if len(boss.Peers()) != 3 {
				t.Errorf("%+v", boss.Peers())
			}

			if _, err := boss.Say(ctx, "", &Say{Text: "all"}); err != nil {
				t.Fatal(err)
			}
			if _, err := boss.Direct(ctx, "bob", &Say{Text: "you"}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			got := []string{<-heard, <-heard, <-heard}
			slices.Sort(got)
			if want := []string{"bob direct you", "bob thread all", "carol thread all"}; !slices.Equal(got, want) {
				t.Errorf("received %v", got)
			}

			var states []string
			for ev, err := range boss.Stream(ctx, "bob", &Say{Text: "build", Intent: "request"}) {
				if err != nil {
					t.Fatal(err)
				}
				states = append(states, string(ev.Envelope.Kind)+" "+string(ev.State))
			}
			if want := "receipt submitted,trace working,say working,trace completed"; strings.Join(states,
				",") != want {
				t.Errorf("events %v", states)
			}
			if ev, err := boss.Ask(ctx, "bob", &Say{Text: "refuse"}); err != nil || ev.State != StateFailed ||
				ev.Envelope.Kind != KindReceipt {
				t.Errorf("%+v, %v", ev, err)
			}
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			if _, err := boss.Ask(short, "boss", &Say{Text: "x"}); !errors.Is(err, ErrMalformed) {
				t.Errorf("asking oneself: %v", err)
			}
			if _, err := boss.Direct(ctx, "dave", &Say{Text: "x"}); !errors.Is(err, ErrNotTarget) {
				t.Errorf("absent: %v", err)
			}
			var found []string
			for v, err := range boss.Whois(short, "", "build", true) {
				if err != nil {
					t.Fatal(err)
				}
				catalog, err := CatalogOf(v.Envelope)
				if err != nil || len(catalog) != 1 || catalog[0].Outcome != "A page." {
					t.Errorf("%+v, %v", catalog, err)
				}
				found = append(found, v.Envelope.From)
			}
			if !slices.Equal(found, []string{"bob"}) {
				t.Errorf("found %v", found)
			}
			for range boss.Whois(ctx, "carol", "", false) {
				break
			}
			b.broken = true
			if _, err := boss.Say(ctx, "", &Say{Text: "x"}); err == nil {
				t.Error("a broken transport went unnoticed")
			}
		})
	})
	t.Run("verified peers", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer func() { stop(); synctest.Wait() }()
			b := &bus{}
			verdicts := make(chan Verdict, 1)
			a := &Client{Transport: b, WorkspaceID: "ws", Channel: "c", Identity: testIdentity(t, 1)}
			c := &Client{Transport: b, WorkspaceID: "ws", Channel: "c", Identity: testIdentity(t, 2),
				Handler: func(_ context.Context, r *Request) { verdicts <- r.Verdict }}
			if err := errors.Join(a.Join(ctx), c.Join(ctx)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if _, err := a.Direct(ctx, c.ID(), &Say{Text: "signed"}); err != nil {
				t.Fatal(err)
			}
			if v := <-verdicts; !v.Verified || v.Handle != a.ID() {
				t.Errorf("%+v", v)
			}
		})
	})
}
