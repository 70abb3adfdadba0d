package asp_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/node"
)

// TestTwoNodes: a session of four agents with 1,000 messages, sent by all of
// them at once through two hubs on one JetStream server, ends with one
// unbroken chain that holds every acknowledged message once (ASP-028).
func TestTwoNodes(t *testing.T) {
	nats, err := server.NewServer(&server.Options{ServerName: "one", Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(),
		NoSigs: true, NoLog: true, JetStreamMaxStore: 1 << 40, JetStreamMaxMemory: 1 << 40})
	if err != nil {
		t.Fatal(err)
	}
	nats.Start()
	t.Cleanup(func() { nats.Shutdown(); nats.WaitForShutdown() })
	if !nats.ReadyForConnections(20 * time.Second) {
		t.Fatal("the NATS server is not ready")
	}
	engine := func(name string) node.Config {
		return node.Config{Name: name, Data: t.TempDir() + "/data", Durability: "replicated", Engine: node.Engine{URL: nats.ClientURL(), Replicas: 1, Partitions: 2},
			// The nodes have keyrings of their own here, so that each stands
			// in under a domain of its own.
			ASP: node.ASP{Domain: name + ".example"}}
	}
	a, b := newWorld(t, engine("a")), newWorld(t, engine("b"))
	ctx, stop := context.WithTimeout(t.Context(), 100*time.Second)
	defer stop()

	const each = 250
	var clients []*asp.Client
	for i, w := range []*world{a, b, a, b} {
		clients = append(clients, w.client(fmt.Sprintf("agent%d", i)))
	}
	to := make([]string, 3)
	for i, c := range clients[1:] {
		to[i] = c.Identity.ID()
	}
	first, err := clients[0].Open(ctx, asp.Invitation{To: to})
	if err != nil {
		t.Fatal(err)
	}
	sessions := []*asp.Session{first}
	for i, c := range clients[1:] {
		var s *asp.Session
		for inv, err := range c.Invitations(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			if s, err = c.Join(ctx, inv.SessionID); err != nil {
				t.Fatal(err)
			}
			break
		}
		if s == nil {
			t.Fatal(i, "was not invited", ctx.Err())
		}
		if i == 0 {
			for m, err := range s.Messages(ctx) {
				if err != nil {
					t.Fatal(err)
				}
				if _, err := s.Send(ctx, asp.Accept, asp.Answer{}, asp.InReplyTo(m)); err != nil {
					t.Fatal(err)
				}
				break
			}
			wait(t, first, asp.Introduced)
			// The first message brings the session to CONVERSING, the second
			// brings the others in.
			for range 2 {
				if _, err := first.Send(ctx, asp.Inform, asp.Information{Topic: "hello"}); err != nil {
					t.Fatal(err)
				}
			}
		}
		sessions = append(sessions, s)
	}
	var mu sync.Mutex
	acknowledged := map[string]bool{}
	var wg sync.WaitGroup
	for i, s := range sessions {
		wg.Go(func() {
			for n := range each {
				body := asp.Information{Topic: fmt.Sprintf("%d of agent %d", n, i)}
				var e *asp.Envelope
				for {
					var err error
					if e, err = s.Send(ctx, asp.Inform, body); err == nil {
						break
					}
					// Who lost the race too often tries again.
					if !errors.Is(err, asp.ErrChain) || ctx.Err() != nil {
						t.Error(i, n, err)
						return
					}
				}
				mu.Lock()
				acknowledged[e.MessageID] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for _, w := range []*world{a, b} { // both tell the same
		if err := w.ASP().Server().Notify(ctx, first.ID()); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := w.ASP().Server().WriteTranscript(ctx, first.ID(), &out); err != nil {
			t.Fatal(err)
		}
		r, err := asp.VerifyTranscript(strings.NewReader(out.String()))
		if err != nil || r.State != asp.Conversing {
			t.Fatal(r, err)
		}
		text := out.String()
		for id := range acknowledged {
			if n := strings.Count(text, `"messageId":"`+id+`"`); n != 1 {
				t.Errorf("message %s is there %d times", id, n)
			}
		}
		if len(acknowledged) != 4*each {
			t.Errorf("%d acknowledged", len(acknowledged))
		}
		t.Logf("%d messages, %d acknowledged concurrently", r.Messages, len(acknowledged))
	}
}
