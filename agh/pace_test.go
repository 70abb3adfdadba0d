package agh

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// flood sends n messages that differ only in their ids. It returns the number of
// accepted messages, and of messages published for them.
func flood(t *testing.T, r *Router, n int, in Inbound, text string, change ...any) (accepted, published int) {
	t.Helper()
	for range n {
		in.Raw = []byte(with(text, append([]any{"id", NewID()}, change...)...))
		res := r.Receive(context.Background(), in)
		switch {
		case res.Outcome == Accepted:
			accepted++
		case !errors.Is(res.Err, ErrRate) || len(res.Published) > 0 || res.Relay:
			t.Fatalf("%+v", res)
		}
		published += len(res.Published)
	}
	return accepted, published
}

// The broadcasts of one peer are limited. Other peers' broadcasts and the peer's
// directed messages are not affected.
func TestBroadcastsOfOnePeer(t *testing.T) {
	t.Parallel()
	question := with(greetText, "kind", "whois", "body", js(`{"type":"request"}`))
	for name, text := range map[string]string{"whois": question, "greet": greetText} {
		now := time.Unix(1776366000, 0)
		r := node(t, func() time.Time { return now }, "bob", "carol")
		accepted, published := flood(t, r, 1000, Inbound{}, text)
		if accepted != 30 || published > 60 {
			t.Errorf("%s: %d of 1,000 were accepted at once, with %d answers", name, accepted, published)
		}
		if accepted, _ := flood(t, r, 1, Inbound{}, with(question, "from", "dave")); accepted != 1 {
			t.Errorf("%s: another peer may not ask", name)
		}
		if accepted, _ := flood(t, r, 40, Inbound{}, question, "to", "bob"); accepted != 40 {
			t.Errorf("%s: %d of 40 questions to one peer", name, accepted)
		}
		now = now.Add(time.Second)
		if accepted, _ := flood(t, r, 1000, Inbound{}, text); accepted != 5 {
			t.Errorf("%s: %d a second", name, accepted)
		}
		r.Broadcasts = -1
		if accepted, _ := flood(t, r, 100, Inbound{}, text); accepted != 100 {
			t.Errorf("%s: %d of 100 without a limit", name, accepted)
		}
	}
}

// A whois request that many hosted peers answer counts as several broadcasts.
func TestAnswersOfHostedPeersAreBounded(t *testing.T) {
	t.Parallel()
	hosted := make([]string, 1000)
	for i := range hosted {
		hosted[i] = fmt.Sprint("peer-", i)
	}
	r := node(t, nil, hosted...)
	question := with(greetText, "kind", "whois", "body", js(`{"type":"request"}`))
	if accepted, published := flood(t, r, 100, Inbound{}, question); accepted != 2 || published != 2000 {
		t.Errorf("%d questions, %d answers", accepted, published)
	}
}

// The peers of an anonymous user share the limit of forty peers.
func TestBroadcastsOfAnonymousPeers(t *testing.T) {
	t.Parallel()
	question := with(greetText, "kind", "whois", "body", js(`{"type":"request"}`))
	ask := func(in Inbound) (all int) {
		r := node(t, nil, "bob")
		for i := range 100 {
			n, _ := flood(t, r, 30, in, question, "from", fmt.Sprint("made-up-", i))
			all += n
		}
		return all
	}
	if n := ask(Inbound{Principal: "anonymous", Anonymous: true}); n != 1200 {
		t.Errorf("%d questions of 100 made up peers", n)
	}
	if n := ask(Inbound{Principal: "known"}); n != 3000 {
		t.Errorf("%d questions of 100 peers of a user", n)
	}
}

// The memory for limits is bounded for any number of peers.
func TestPacesAreBounded(t *testing.T) {
	t.Parallel()
	var p paces
	now := time.Unix(1776366000, 0)
	for i := range maxPaces + 100 {
		now = now.Add(time.Millisecond)
		p.allow(paceKey{principal: fmt.Sprint(i)}, 5, 1, now)
	}
	if n := len(p.by); n > maxPaces {
		t.Errorf("%d, of at most %d", n, maxPaces)
	}
}
