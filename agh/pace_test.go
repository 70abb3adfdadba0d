package agh

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// floods sends n messages of one kind that are alike but for their ids, and
// gives how many were accepted, and how many messages that caused.
func floods(t *testing.T, r *Router, n int, in Inbound, text string, change ...any) (accepted, published int) {
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

// One peer asks and greets all others only so often; the others may meanwhile,
// and it may say what is for one peer.
func TestBroadcastsOfOnePeer(t *testing.T) {
	t.Parallel()
	question := with(greetText, "kind", "whois", "body", js(`{"type":"request"}`))
	for name, text := range map[string]string{"whois": question, "greet": greetText} {
		now := time.Unix(1776366000, 0)
		r := node(t, func() time.Time { return now }, "bob", "carol")
		accepted, published := floods(t, r, 1000, Inbound{}, text)
		if accepted != 30 || published > 60 {
			t.Errorf("%s: %d of 1,000 were accepted at once, with %d answers", name, accepted, published)
		}
		if accepted, _ := floods(t, r, 1, Inbound{}, with(question, "from", "dave")); accepted != 1 {
			t.Errorf("%s: another peer may not ask", name)
		}
		if accepted, _ := floods(t, r, 40, Inbound{}, question, "to", "bob"); accepted != 40 {
			t.Errorf("%s: %d of 40 questions to one peer", name, accepted)
		}
		now = now.Add(time.Second)
		if accepted, _ := floods(t, r, 1000, Inbound{}, text); accepted != 5 {
			t.Errorf("%s: %d a second", name, accepted)
		}
		r.Broadcasts = -1
		if accepted, _ := floods(t, r, 100, Inbound{}, text); accepted != 100 {
			t.Errorf("%s: %d of 100 without a limit", name, accepted)
		}
	}
}

// A question that many hosted peers answer costs as much as several.
func TestAnswersOfHostedPeersAreBounded(t *testing.T) {
	t.Parallel()
	hosted := make([]string, 1000)
	for i := range hosted {
		hosted[i] = fmt.Sprint("peer-", i)
	}
	r := node(t, nil, hosted...)
	question := with(greetText, "kind", "whois", "body", js(`{"type":"request"}`))
	if accepted, published := floods(t, r, 100, Inbound{}, question); accepted != 2 || published != 2000 {
		t.Errorf("%d questions, %d answers", accepted, published)
	}
}

// Peers of an anonymous user share what forty peers have.
func TestBroadcastsOfAnonymousPeers(t *testing.T) {
	t.Parallel()
	question := with(greetText, "kind", "whois", "body", js(`{"type":"request"}`))
	ask := func(in Inbound) (all int) {
		r := node(t, nil, "bob")
		for i := range 100 {
			n, _ := floods(t, r, 30, in, question, "from", fmt.Sprint("made-up-", i))
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

// What is remembered of peers is bounded, however many there are.
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
