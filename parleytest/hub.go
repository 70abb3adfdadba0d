package parleytest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
)

// A Hub is a running hub in memory, with all that a [node.Node] can do.
type Hub struct {
	*node.Node
	Clock *Clock

	t        testing.TB
	recorded log
}

// NewHub starts a hub, which ends with the test. The functions change its configuration,
// to add listeners for example: by default it has none, and keeps everything in memory.
func NewHub(t testing.TB, change ...func(*node.Config)) *Hub {
	t.Helper()
	h := &Hub{Clock: &Clock{}, t: t}
	c := node.Config{Durability: "memory", Now: h.Clock.Now}
	for _, f := range change {
		f(&c)
	}
	n, err := node.Open(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	h.Node = n
	unwatch := n.Hub().Journal().Watch(func(r *journal.Record) {
		if r.Message != nil && r.Refused == nil {
			h.recorded.add(r.Message)
		}
	})
	t.Cleanup(func() {
		unwatch()
		ctx, stop := context.WithTimeout(context.Background(), time.Minute)
		defer stop()
		if err := n.Close(ctx); err != nil {
			t.Errorf("parleytest: end the hub: %v", err)
		}
	})
	if err := n.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	return h
}

// Ask sends a request in the name of an agent, as a program of this process would, and
// gives its terminal reply. content is a [parley.Part], a string, which becomes text, or a
// value that becomes JSON. A request that the hub does not accept fails the test.
func (h *Hub) Ask(from, to, skill string, content any) *parley.Message {
	h.t.Helper()
	m, err := h.Hub().Ask(h.t.Context(), h.submission(parley.Request, from, to, skill, content))
	if err != nil {
		h.t.Fatalf("parleytest: %s asks %s: %v", from, to, err)
	}
	return m
}

// Refusal sends a request that the hub must refuse, and gives the refusal. See Ask.
func (h *Hub) Refusal(from, to, skill string, content any) *parley.Error {
	h.t.Helper()
	m, err := h.Hub().Ask(h.t.Context(), h.submission(parley.Request, from, to, skill, content))
	if err == nil {
		h.t.Fatalf("parleytest: the request of %s to %s was not refused, but answered with a %s", from, to, m.Kind)
	}
	return parley.AsError(err)
}

// Tell sends a notice, and gives it as it was recorded. See Ask.
func (h *Hub) Tell(from, to, skill string, content any) *parley.Message {
	h.t.Helper()
	m, err := h.Hub().Accept(h.t.Context(), h.submission(parley.Notice, from, to, skill, content))
	if err != nil {
		h.t.Fatalf("parleytest: %s tells %s: %v", from, to, err)
	}
	return m
}

func (h *Hub) submission(kind parley.Kind, from, to, skill string, content any) hub.Submission {
	h.t.Helper()
	p, err := part(content)
	if err != nil {
		h.t.Fatal(err)
	}
	return hub.Submission{Scope: "go " + from, Message: &parley.Message{Kind: kind, From: from, To: to, Skill: skill,
		Parts: []parley.Part{p}, Origin: parley.Origin{Protocol: "go", Peer: from,
			Verdict: parley.Verdict{Assurance: parley.Session}}}}
}

// part makes a part of the content of a message.
func part(content any) (parley.Part, error) {
	switch v := content.(type) {
	case parley.Part:
		return v, nil
	case string:
		return parley.Text(v), nil
	}
	return parley.JSON(content)
}

// Messages gives what the hub has recorded so far, in order.
func (h *Hub) Messages() []*parley.Message { return h.recorded.all() }

// Expect waits for a recorded message that is as wanted, and gives the first. It fails
// the test if there is none within 30 seconds.
func (h *Hub) Expect(w Want) *parley.Message {
	h.t.Helper()
	return expect(h.t, "the hub recorded", &h.recorded, w)
}

// patience is how long a test waits for a message; in a bubble it is over at once.
const patience = 30 * time.Second

func expect(t testing.TB, who string, l *log, w Want) *parley.Message {
	t.Helper()
	over := time.NewTimer(patience)
	defer over.Stop()
	for {
		list, more := l.wait()
		if i := slices.IndexFunc(list, func(m *parley.Message) bool { return w.Diff(m) == "" }); i >= 0 {
			return list[i]
		}
		select {
		case <-more:
		case <-over.C:
			t.Fatalf("parleytest: %s no message as wanted, but:%s", who, show(list, w))
		}
	}
}

// show lists messages, and how each differs from what was wanted.
func show(list []*parley.Message, w Want) string {
	var b strings.Builder
	for _, m := range list {
		fmt.Fprintf(&b, "\n%s from %s to %s, skill %q:\n\t%s", m.Kind, m.From, strings.Join(m.Recipients(), ", "), m.Skill,
			strings.ReplaceAll(w.Diff(m), "\n", "\n\t"))
	}
	if len(list) == 0 {
		return " nothing"
	}
	return b.String()
}
