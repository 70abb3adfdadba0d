package agh_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/agh/aghtest"
)

// published counts what was published, by kind and sender.
func published(b *aghtest.Bus, kind agh.Kind, from string) (n int) {
	for _, m := range b.Published() {
		if e, err := (&agh.Decoder{Handles: true}).Decode(m.Data); err == nil && e.Kind == kind && e.From == from {
			n++
		}
	}
	return n
}

func join(t testing.TB, ctx context.Context, b *aghtest.Bus, id string,
	handler func(context.Context, *agh.Request)) *agh.Client {
	t.Helper()
	c := &agh.Client{Transport: b, WorkspaceID: "ws", Channel: "c", PeerID: id, Handler: handler}
	if err := c.Join(ctx); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestClient(t *testing.T) {
	t.Run("AGH-058 joining", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			b := &aghtest.Bus{}
			join(t, ctx, b, "alice", nil)
			own, _ := agh.PeerSubject("ws", "c", "alice")
			if got := b.Subjects(); !slices.Equal(got, []string{"agh.network.v0.ws.c.broadcast", own}) {
				t.Errorf("subscribed %v", got)
			}
			if n := published(b, agh.KindGreet, "alice"); n != 1 {
				t.Errorf("%d greetings after joining", n)
			}
			<-time.After(61 * time.Second)
			synctest.Wait()
			if n := published(b, agh.KindGreet, "alice"); n != 3 {
				t.Errorf("%d greetings after two intervals", n)
			}
			b.Reconnect()
			if n := published(b, agh.KindGreet, "alice"); n != 4 {
				t.Errorf("%d greetings after a reconnection", n)
			}
			stop()
			synctest.Wait()
			if len(b.Subjects()) != 0 {
				t.Error("still subscribed")
			}
		})
	})
	t.Run("say, direct, work and whois", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer func() { stop(); synctest.Wait() }()
			b := &aghtest.Bus{}
			heard := make(chan string, 16)
			hear := func(who string) func(context.Context, *agh.Request) {
				return func(ctx context.Context, r *agh.Request) {
					s, ok := r.Envelope.Content().(*agh.Say)
					if !ok {
						return
					}
					if r.Envelope.WorkID == "" {
						heard <- who + " " + string(r.Envelope.Surface) + " " + s.Text
						return
					}
					steps := []error{r.Receipt(ctx, agh.StatusAccepted, "", ""),
						r.Trace(ctx, &agh.Trace{State: agh.StateWorking})}
					if s.Text == "refuse" {
						steps = []error{r.Receipt(ctx, agh.StatusRejected, agh.ReasonBusy, "later")}
					} else {
						steps = append(steps, r.Say(ctx, &agh.Say{Text: "here"}),
							r.Trace(ctx, &agh.Trace{State: agh.StateCompleted, Result: []byte(`{"n":1.50}`)}))
					}
					if err := errors.Join(steps...); err != nil {
						t.Error(err)
					}
				}
			}
			boss := join(t, ctx, b, "boss", nil)
			bobs := []agh.Capability{{ID: "build", Summary: "Build.", Outcome: "A page."}}
			bob := &agh.Client{Transport: b, WorkspaceID: "ws", Channel: "c", PeerID: "bob", Catalog: bobs,
				Handler: hear("bob")}
			if _, err := bob.Say(ctx, "", &agh.Say{Text: "x"}); !errors.Is(err, agh.ErrClosed) {
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

			if _, err := boss.Say(ctx, "", &agh.Say{Text: "all"}); err != nil {
				t.Fatal(err)
			}
			if _, err := boss.Direct(ctx, "bob", &agh.Say{Text: "you"}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			got := []string{<-heard, <-heard, <-heard}
			slices.Sort(got)
			if want := []string{"bob direct you", "bob thread all", "carol thread all"}; !slices.Equal(got, want) {
				t.Errorf("received %v", got)
			}

			var states []string
			for ev, err := range boss.Stream(ctx, "bob", &agh.Say{Text: "build", Intent: "request"}) {
				if err != nil {
					t.Fatal(err)
				}
				states = append(states, string(ev.Envelope.Kind)+" "+string(ev.State))
			}
			if want := "receipt submitted,trace working,say working,trace completed"; strings.Join(states,
				",") != want {
				t.Errorf("events %v", states)
			}
			if ev, err := boss.Ask(ctx, "bob", &agh.Say{Text: "refuse"}); err != nil || ev.State != agh.StateFailed ||
				ev.Envelope.Kind != agh.KindReceipt {
				t.Errorf("%+v, %v", ev, err)
			}
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			if _, err := boss.Ask(short, "boss", &agh.Say{Text: "x"}); !errors.Is(err, agh.ErrMalformed) {
				t.Errorf("asking oneself: %v", err)
			}
			if _, err := boss.Direct(ctx, "dave", &agh.Say{Text: "x"}); !errors.Is(err, agh.ErrNotTarget) {
				t.Errorf("absent: %v", err)
			}
			var found []string
			for v, err := range boss.Whois(short, "", "build", true) {
				if err != nil {
					t.Fatal(err)
				}
				catalog, err := agh.CatalogOf(v.Envelope)
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
			b.Cut()
			if _, err := boss.Say(ctx, "", &agh.Say{Text: "x"}); err == nil {
				t.Error("a broken transport went unnoticed")
			}
		})
	})
	t.Run("verified peers", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer func() { stop(); synctest.Wait() }()
			b := &aghtest.Bus{}
			verdicts := make(chan agh.Verdict, 1)
			var ids [2]*agh.Identity
			for i := range ids {
				var err error
				if ids[i], err = agh.NewIdentity("patch-worker"); err != nil {
					t.Fatal(err)
				}
			}
			a := &agh.Client{Transport: b, WorkspaceID: "ws", Channel: "c", Identity: ids[0]}
			c := &agh.Client{Transport: b, WorkspaceID: "ws", Channel: "c", Identity: ids[1],
				Handler: func(_ context.Context, r *agh.Request) { verdicts <- r.Verdict }}
			if err := errors.Join(a.Join(ctx), c.Join(ctx)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if _, err := a.Direct(ctx, c.ID(), &agh.Say{Text: "signed"}); err != nil {
				t.Fatal(err)
			}
			if v := <-verdicts; !v.Verified || v.Handle != a.ID() {
				t.Errorf("%+v", v)
			}
		})
	})
}
