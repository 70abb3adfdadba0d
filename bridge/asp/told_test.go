package asp_test

import (
	"context"
	"testing"
	"time"

	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/internal/testcluster"
	"github.com/parley-hub/parley/node"
)

// TestReadersAreTold: a record of one hub reaches the readers of the session at another
// hub, also if that hub has loaded the record for another reason before it wakes them.
func TestReadersAreTold(t *testing.T) {
	t.Parallel()
	url := testcluster.Start(t, 1).URLs[0]
	engine := func(name string) node.Config {
		return node.Config{Name: name, Data: t.TempDir() + "/data", Durability: "replicated",
			Passphrase: []byte("a passphrase"), PassphraseWork: 4,
			Engine: node.Engine{URL: url, Replicas: 1, Partitions: 2},
			ASP:    node.ASP{Domain: name + ".example"}}
	}
	a, b := newWorld(t, engine("a")), newWorld(t, engine("b"))
	ctx, stop := context.WithCancel(a.ctx())
	defer stop()
	alice, bob := a.client("alice"), b.client("bob")
	s, err := alice.Open(ctx, asp.Invitation{To: []string{bob.Identity.ID()}})
	if err != nil {
		t.Fatal(err)
	}
	var bs *asp.Session
	for inv, err := range bob.Invitations(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if bs, err = bob.Join(ctx, inv.SessionID); err != nil {
			t.Fatal(err)
		}
		break
	}
	heard := make(chan *asp.Message, 16)
	reading := make(chan error, 1)
	go func() {
		for m, err := range bs.Messages(ctx) {
			if err != nil {
				reading <- err
				return
			}
			select {
			case heard <- m:
			case <-ctx.Done():
			}
		}
		reading <- nil
	}()
	next := func() *asp.Message {
		t.Helper()
		select {
		case m := <-heard:
			return m
		case err := <-reading:
			t.Fatal("bob's stream ended: ", err)
		case <-ctx.Done():
			t.Fatal("bob got no message")
		}
		return nil
	}
	invitation := next()
	if _, err := bs.Send(ctx, asp.Accept, asp.Answer{}, asp.InReplyTo(invitation)); err != nil {
		t.Fatal(err)
	}
	wait(t, s, asp.Introduced)
	for range 3 {
		release := b.ASP().HoldReconciler()
		e, err := s.Send(ctx, asp.Inform, asp.Information{Topic: "news"})
		if err != nil {
			t.Fatal(err)
		}
		look := time.NewTicker(5 * time.Millisecond)
		for !b.ASP().Queued(s.ID()) {
			select {
			case <-look.C:
			case <-ctx.Done():
				t.Fatal("the journal did not notify b")
			}
		}
		look.Stop()
		if err := b.ASP().ReadAhead(ctx, s.ID()); err != nil {
			t.Fatal(err)
		}
		release()
		for next().MessageID != e.MessageID {
		}
	}
	stop()
	<-reading
}
