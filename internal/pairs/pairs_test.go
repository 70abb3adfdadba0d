package pairs

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
)

// waysOut are the ways by which the hub reaches the peers.
var waysOut = map[string]bridge.Way{"samvad": bridge.SAMVAD, "uagents": bridge.Chat, "a2e": bridge.Inbox,
	"agh": bridge.AGH, "asp": bridge.ASP, "a2a": bridge.A2A, "mcp": bridge.MCPServer}

// crosses reports whether an aspect passes from one protocol to another, by the table
// of traits.
func crosses(from, to string, a bridge.Aspect) bool {
	f := bridge.Look(from, waysOut[to], a).Fate
	return f == bridge.Survives || f == bridge.As
}

// trait lists what a protocol can express.
type trait struct {
	assurance parley.Assurance // of what its peers send
	pieces    bridge.Aspect    // how a responder sends pieces ahead of the answer
	cancels   bool             // a requester can withdraw its question
	cancelled bool             // a responder hears of a withdrawal
	native    bool             // between two of its agents the envelope passes unchanged
	deadline  bool             // a responder sees the deadline
	repeat    bool             // a responder deduplicates
	latest    bool             // of pieces that follow each other fast, the latest counts
	again     bool             // a restart of the hub ends the work of a responder, and the hub asks it again
}

var traits = map[string]trait{
	"samvad":  {assurance: parley.Signed, pieces: bridge.Chunk},
	"uagents": {assurance: parley.Signed, native: true},
	"a2e": {assurance: parley.Session, pieces: bridge.Working, cancels: true, cancelled: true, deadline: true,
		repeat: true},
	"agh": {assurance: parley.Session, pieces: bridge.Working, cancels: true, cancelled: true, deadline: true,
		native: true, repeat: true},
	"asp": {assurance: parley.Signed, pieces: bridge.Chunk, cancels: true, cancelled: true, deadline: true,
		native: true, repeat: true},
	"a2a": {assurance: parley.Session, pieces: bridge.Working, cancels: true, cancelled: true, deadline: true},
	"mcp": {assurance: parley.Session, pieces: bridge.Working, cancels: true, cancelled: true, deadline: true,
		repeat: true, latest: true, again: true},
}

// pair is a requester and a responder.
type pair struct {
	w              *testNode
	from, to, away Peer
	asks, asked    trait
	native         bool // the envelope passes unchanged
}

// aspect is one property that is tested between two peers.
type aspect struct {
	name string
	test func(*pair, *testing.T)
}

// TestPairs has every protocol ask every other through one node, each by a socket of
// its own.
func TestPairs(t *testing.T) {
	t.Parallel()
	aspects := []aspect{{"success", (*pair).success}, {"failure", (*pair).failure}, {"events", (*pair).events},
		{"notice", (*pair).notice},
		{"cancel", (*pair).cancel}, {"away", (*pair).absent}}
	if !testing.Short() { // these take time
		aspects = append(aspects, aspect{"timeout", (*pair).timeout}, aspect{"oversized", (*pair).oversized})
	}
	tryPairs(t, func(*pair, map[string]node.Agent) {}, aspects)
}

// TestPairsUnexposed is TestPairs at the default exposure: the requester is exposed
// nowhere, the responder only where it is called.
func TestPairsUnexposed(t *testing.T) {
	t.Parallel()
	expose := func(p *pair, agents map[string]node.Agent) {
		agents[p.from.Name()] = node.Agent{}
		for _, to := range []Peer{p.to, p.away} {
			agents[to.Name()] = node.Agent{Expose: []string{p.from.Protocol()}}
		}
	}
	tryPairs(t, expose, []aspect{{"success", (*pair).success}, {"failure", (*pair).failure}, {"events", (*pair).events},
		{"notice", (*pair).notice}, {"cancel", (*pair).cancel}, {"away", (*pair).absent}})
}

// tryPairs tests the aspects between all protocols. expose sets where the agents of a
// pair are exposed, if not everywhere.
func tryPairs(t *testing.T, expose func(*pair, map[string]node.Agent), aspects []aspect) {
	var all []Peer
	var list []*pair
	config := node.Config{Limits: node.Limits{Body: "1MiB"}, Agents: map[string]node.Agent{}}
	for _, from := range Protocols {
		for _, to := range Protocols {
			p := &pair{asks: traits[from], asked: traits[to]}
			p.native = from == to && p.asks.native
			name := from + "-" + to
			p.from, p.to, p.away = newPeer(t, from, name+"-from"), newPeer(t, to, name+"-to"),
				newPeer(t, to, name+"-away")
			list, all = append(list, p), append(all, p.from, p.to, p.away)
			expose(p, config.Agents)
		}
	}
	w := newTestNode(t, config, all...)
	for _, p := range list {
		p.w = w
		w.join(t, p.from, p.to)
	}
	for _, p := range list {
		t.Run(p.from.Protocol()+"->"+p.to.Protocol(), func(t *testing.T) {
			t.Parallel()
			p.leave(t) // long before it is asked, yet not as long as AGH keeps a peer that does not greet
			for _, a := range aspects {
				t.Run(a.name, func(t *testing.T) {
					asked := p.to
					if a.name == "away" {
						asked = p.away
					}
					w.explain(t, p.from, asked)
					a.test(p, t)
				})
			}
		})
	}
}

func (p *pair) success(t *testing.T) {
	a, err := p.from.Ask(patient(t), Question{To: p.to, Text: "say hello"})
	if err != nil || a.Text != "hello" {
		t.Fatalf("%+v, %v", a, err)
	}
	h := hears(t, p.to, "say hello")
	m := p.w.said(t, p.from, p.to, "say hello")
	if m.Origin.Protocol != p.from.Protocol() || m.Origin.Verdict.Assurance != p.asks.assurance {
		t.Errorf("recorded as %s of %s", m.Origin.Verdict.Assurance, m.Origin.Protocol)
	}
	if carried := bridge.Look(p.from.Protocol(), waysOut[p.to.Protocol()],
		bridge.Trace).Fate != bridge.Absent; carried && len(m.Trace.Parent) != 55 {
		t.Errorf("traceparent %q", m.Trace.Parent)
	}
	if m.Kind == parley.Request && m.Deadline.IsZero() {
		t.Error("a request without a deadline")
	}
	if p.native {
		if string(h.Raw) != string(m.Origin.Raw) {
			t.Errorf("the envelope did not travel as it was:\n%s\n%s", m.Origin.Raw, h.Raw)
		}
		return
	}
	for _, want := range []string{m.ID.String(), p.from.Protocol(), m.Origin.Verdict.Assurance.String()} {
		if !strings.Contains(h.Provenance, want) {
			t.Errorf("provenance lacks %q: %s", want, h.Provenance)
		}
	}
	until := m.Deadline
	if p.to.Protocol() == "agh" && !m.Expires.IsZero() && m.Expires.Before(until) {
		until = m.Expires // it has one member for both
	}
	if p.asked.deadline && h.Deadline.Sub(until).Abs() > 2*time.Second {
		t.Errorf("deadline %s, want %s", h.Deadline, until)
	}
	if h.Trace == "" && crosses(p.from.Protocol(), p.to.Protocol(), bridge.Trace) {
		t.Error("no trace id reached the recipient")
	}
}

func (p *pair) failure(t *testing.T) {
	a, err := p.from.Ask(patient(t), Question{To: p.to, Text: "fail for a reason"})
	var f *Failure
	if !errors.As(err, &f) {
		t.Fatalf("%+v, %v", a, err)
	}
	if f.Text == "" {
		t.Error("the failure says nothing")
	}
}

func (p *pair) events(t *testing.T) {
	through := crosses(p.to.Protocol(), p.from.Protocol(), p.asked.pieces)
	// Chunks are parts of the answer: where the latest piece counts, they are joined.
	merged := through && (p.asked.latest || p.asks.latest && p.asked.pieces == bridge.Working)
	text := "count 3"
	if merged {
		text = "begin count 3" // it goes on when the requester has had a piece
	}
	var got []string
	a, err := p.from.Ask(patient(t), Question{To: p.to, Text: text, Events: func(s string) {
		if merged && s == "begun" {
			p.to.(Worker).Release()
		}
		got = append(got, s)
	}})
	if err != nil || a.Text != "counted 3" {
		t.Fatalf("%+v, %v", a, err)
	}
	got = slices.DeleteFunc(got, func(s string) bool { return !strings.HasPrefix(s, "piece") })
	all := []string{"piece 1", "piece 2", "piece 3"}
	switch {
	case merged:
		left := all
		for _, s := range got {
			i := slices.Index(left, s)
			if i < 0 {
				t.Fatalf("pieces %q", got)
			}
			left = left[i+1:]
		}
		// The answer may overtake a piece of the responder. To the requester, none is behind the latest.
		if !p.asked.latest && len(left) > 0 {
			t.Errorf("pieces %q, without the latest", got)
		}
	case through && !slices.Equal(got, all):
		t.Errorf("pieces %q", got)
	}
	p.reported(t, text)
}

// waysBack are the ways by which a requester gets events and answers.
var waysBack = map[string]bridge.Way{"samvad": bridge.SAMVAD, "uagents": bridge.Chat, "a2e": bridge.Call,
	"agh": bridge.AGH, "asp": bridge.ASP, "a2a": bridge.A2A, "mcp": bridge.MCPClient}

// reported checks the losses of an answered question's events by the loss table: each
// is in the event's own delivery, or in that of the question.
func (p *pair) reported(t *testing.T, text string) {
	t.Helper()
	m := p.w.said(t, p.from, p.to, text)
	if p.native || m.Kind != parley.Request {
		return
	}
	answered := p.w.settled(t, m.ID, parley.Answered)
	p.w.mu.Lock()
	records := slices.Clone(p.w.records)
	p.w.mu.Unlock()
	for _, r := range records {
		if slices.ContainsFunc(r.Steps, func(s journal.Step) bool {
			return s.Message == m.ID &&
				s.State == parley.Answered
		}) {
			return
		}
		if r.Message == nil || r.Message.Kind != parley.Event || r.Message.InReplyTo != m.ID {
			continue
		}
		want := bridge.Losses(waysBack[p.from.Protocol()], r.Message, p.from.Name())
		in := answered
		if len(r.Open) > 0 {
			in = p.w.settled(t, r.Message.ID, parley.Delivered)
		} else {
			want = bridge.OfReply(parley.Event, want)
		}
		for _, l := range want {
			if !slices.Contains(in.Losses, l) {
				t.Errorf("%q is lost of an event, and not reported with %s: %q", l, in, in.Losses)
			}
		}
	}
}

func (p *pair) notice(t *testing.T) {
	if err := p.from.Tell(patient(t), p.to, "note this"); err != nil {
		t.Fatal(err)
	}
	hears(t, p.to, "note this")
}

func (p *pair) cancel(t *testing.T) {
	ctx, stop := context.WithCancel(patient(t))
	defer stop()
	done := make(chan error, 1)
	go func() {
		ask := p.from.Ask
		if d, ok := p.from.(*a2ePeer); ok {
			ask = d.Delegated
		}
		_, err := ask(ctx, Question{To: p.to, Text: "hold", Events: func(string) {}})
		done <- err
	}()
	hears(t, p.to, "hold")
	stop()
	var f *Failure
	if err := <-done; !errors.Is(err, context.Canceled) || errors.As(err, &f) {
		t.Errorf("the question ended with %v", err)
	}
	if !p.asks.cancels {
		return
	}
	if p.asked.cancelled {
		next(t, p.to, "that it was cancelled", func(h Heard) bool { return h.Cancel })
	}
}

// patience is how long a requester waits for an answer that does not come.
const patience = 3 * time.Second

// timeout: when the requester stops waiting, so does the hub.
func (p *pair) timeout(t *testing.T) {
	ctx, stop := context.WithTimeout(patient(t), patience)
	defer stop()
	a, err := p.from.Ask(ctx, Question{To: p.to, Text: "hold on"})
	if err == nil {
		t.Fatalf("%+v", a)
	}
	// The hub waits as long as a requester's connection. Other requesters set a limit
	// on delivery, which is shorter than the hub's own patience.
	m := p.w.said(t, p.from, p.to, "hold on")
	if from := p.from.Protocol(); from == "samvad" || from == "a2e" {
		p.w.settled(t, m.ID, parley.Answered, parley.Abandoned)
	} else if m.Kind == parley.Request && m.Deadline.IsZero() {
		t.Error("a request that never ends")
	}
}

// oversized: the hub refuses a message above its limit to the sender, and delivers
// nothing.
func (p *pair) oversized(t *testing.T) {
	text := "say " + strings.Repeat("x", 2<<20)
	a, err := p.from.Ask(patient(t), Question{To: p.to, Text: text})
	var f *Failure
	if !errors.As(err, &f) {
		t.Fatalf("%d bytes were answered with %d, %v", len(text), len(a.Text), err)
	}
	// The next message to arrive is the next that is sent.
	if err := p.from.Tell(patient(t), p.to, "note that"); err != nil {
		t.Fatal(err)
	}
	next(t, p.to, "the next message", func(h Heard) bool {
		if len(h.Text) > 1<<20 {
			t.Error("the refused message arrived")
		}
		return h.Text == "note that"
	})
}

// absent: an agent is away and comes back. A requester that can wait gets its answer
// then. One that waits on a connection to an unreachable agent gets an error, and an
// answer when it asks again.
func (p *pair) absent(t *testing.T) {
	ask := func() error {
		a, err := p.from.Ask(patient(t), Question{To: p.away, Text: "say welcome"})
		if err == nil && a.Text != "welcome" {
			err = errors.New(a.Text)
		}
		return err
	}
	if p.told() {
		if err := ask(); err == nil {
			t.Error("an agent that is away was reached")
		}
		p.back(t)
		if err := ask(); err != nil {
			t.Error(err)
		}
		return
	}
	done := make(chan error, 1)
	go func() { done <- ask() }()
	p.w.record(t, "a message to the absent agent", func(r *journal.Record) bool {
		m := r.Message
		return m != nil && m.From == p.from.Name() && slices.Contains(m.Recipients(), p.away.Name())
	})
	p.back(t)
	hears(t, p.away, "say welcome")
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// told reports whether the requester waits on a connection and the responder is reached
// by one.
func (p *pair) told() bool {
	from, to := p.from.Protocol(), p.away.Protocol()
	return (from == "samvad" || from == "a2e") && (to == "samvad" || to == "uagents" || to == "a2a" || to == "mcp")
}

func (p *pair) back(t *testing.T) {
	t.Helper()
	if err := p.away.Join(patient(t), At(p.w.Node), false); err != nil {
		t.Fatal(err)
	}
}

// leave makes the absent agent known to the hub, and away.
func (p *pair) leave(t *testing.T) {
	t.Helper()
	gone, ok := p.away.(*aghPeer)
	if !ok {
		if err := p.away.Join(patient(t), At(p.w.Node), true); err != nil {
			t.Fatal(err)
		}
		return
	}
	// A peer must have been heard once to be known.
	p.back(t)
	if from, ok := p.from.(*aghPeer); ok {
		c, err := from.peer()
		if err == nil {
			err = from.meet(patient(t), c, gone.Name())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	gone.Leave()
}
