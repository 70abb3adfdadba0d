package asp_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/internal/testcluster"
	"github.com/parley-hub/parley/node"
)

var (
	messageIDs = regexp.MustCompile(`"messageId":"([^"]+)"`)
	topics     = regexp.MustCompile(`"topic":"(\d+ of agent \d)"`)
)

// TestTwoNodes: four agents send 1,000 messages of one session concurrently, through
// two hubs on a JetStream cluster of three servers. The result is one unbroken chain
// that has every acknowledged message once (ASP-028).
func TestTwoNodes(t *testing.T) {
	t.Parallel()
	cluster := testcluster.Start(t, 3)
	urls := strings.Join(cluster.URLs, ",")
	engine := func(name string) node.Config {
		return node.Config{Name: name, Data: t.TempDir() + "/data", Durability: "replicated",
			Passphrase: []byte("a passphrase"), PassphraseWork: 4,
			Engine: node.Engine{URL: urls, Replicas: 3, Partitions: 2},
			// Each node has its own keyring here, and so its own domain of
			// stand-ins.
			ASP: node.ASP{Domain: name + ".example"}, Guests: node.Guests{Disk: "100GiB"}}
	}
	a, b := newWorld(t, engine("a")), newWorld(t, engine("b"))
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	defer stop()

	each := 100
	if testing.Short() {
		each = 40
	}
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
			// The first message brings the session to CONVERSING, the second adds
			// the other agents.
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
					// The sender retries if it lost the race too often.
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
	for _, w := range []*world{a, b} { // both have the same log
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
		ids, said := map[string]int{}, map[string]int{}
		for _, m := range messageIDs.FindAllStringSubmatch(out.String(), -1) {
			ids[m[1]]++
		}
		for _, m := range topics.FindAllStringSubmatch(out.String(), -1) {
			said[m[1]]++
		}
		for id := range acknowledged {
			if ids[id] != 1 {
				t.Errorf("message %s is there %d times", id, ids[id])
			}
		}
		if len(said) != 4*each { // no more, not even unacknowledged messages
			t.Errorf("%d messages in the session, want %d", len(said), 4*each)
		}
		for what, n := range said {
			if n != 1 {
				t.Errorf("%q was sent %d times", what, n)
			}
		}
		if len(acknowledged) != 4*each {
			t.Errorf("%d acknowledged", len(acknowledged))
		}
		t.Logf("%d messages, %d acknowledged concurrently", r.Messages, len(acknowledged))
	}
}
