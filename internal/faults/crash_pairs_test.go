package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/pairs"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
)

// TestCrashPairsAtMostOnce kills the hub at random moments while an agent of each
// protocol talks to one of each protocol, all over sockets of their own. No
// acknowledged message is lost; a message has one effect at recipients that
// deduplicate, elsewhere at most one for each recorded attempt, and at most one in all
// with at-most-once; and every conversation ends.
func TestCrashPairsAtMostOnce(t *testing.T) {
	t.Parallel()
	rounds, seed := crashChoices(t, much(t, 2, 5, 5))
	newTalk(t, "at-most-once").run(t, rounds, rand.New(rand.NewPCG(seed, 3)))
}

// TestCrashPairsAtLeastOnce is the same with at-least-once.
func TestCrashPairsAtLeastOnce(t *testing.T) {
	t.Parallel()
	rounds, seed := crashChoices(t, much(t, 1, 3, 3))
	newTalk(t, "at-least-once").run(t, rounds, rand.New(rand.NewPCG(seed, 4)))
}

// talk is the traffic and its outcome.
type talk struct {
	outcome  string
	path     string // of the configuration
	at       pairs.Place
	from, to []pairs.Peer

	mu    sync.Mutex
	acked map[string]bool           // texts of the messages that their senders know to be accepted
	heard map[string]map[string]int // how often a message was heard, by its text and by the id that the recipient sees
	more  chan struct{}             // closed by the next acknowledgement
}

// patience is how long a request stays open if its answer was lost with a hub. It
// bounds the end of the test.
const patience = 20 * time.Second

func newTalk(t *testing.T, outcome string) *talk {
	x := &talk{outcome: outcome, acked: map[string]bool{}, heard: map[string]map[string]int{},
		more: make(chan struct{})}
	for _, p := range pairs.Protocols {
		for side, list := range map[string]*[]pairs.Peer{"-from": &x.from, "-to": &x.to} {
			peer, err := pairs.New(p, p+side)
			if err != nil {
				t.Fatal(err)
			}
			*list = append(*list, peer)
		}
	}
	dir := t.TempDir()
	c := node.Config{Data: filepath.Join(dir, "data"), Name: "hub-under-test",
		Delivery: node.Delivery{Outcome: outcome, Patience: node.Duration{Duration: patience}},
		Listen: node.Listen{HTTP: fmt.Sprintf("127.0.0.1:%d", fixedPort(t)),
			AGH: fmt.Sprintf("127.0.0.1:%d", fixedPort(t))}}
	if err := pairs.Configure(&c, dir, x.all()...); err != nil {
		t.Fatal(err)
	}
	x.path, x.at = writeConfig(t, dir, c), pairs.Place{HTTP: "http://" + c.Listen.HTTP, AGH: "nats://" + c.Listen.AGH,
		Token: pairs.Announced(c.Data)}
	return x
}

func (x *talk) all() []pairs.Peer { return append(append([]pairs.Peer{}, x.from...), x.to...) }

func (x *talk) leave() {
	var leaving sync.WaitGroup
	for _, p := range x.all() {
		leaving.Go(p.Leave)
	}
	leaving.Wait()
}

func (x *talk) run(t *testing.T, rounds int, rnd *rand.Rand) {
	args := []string{program(t, "cmd/parley"), "serve", "--json", "--log", "error", "--config", x.path}
	p := launch(t, args...)
	defer x.leave()
	for _, peer := range x.all() {
		if err := peer.Join(t.Context(), x.at, false); err != nil {
			t.Fatalf("%s joins: %v\n%s", peer.Name(), err, p.errs)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var speaking, hearing sync.WaitGroup
	defer hearing.Wait()
	for _, peer := range x.to {
		hearing.Go(func() { x.hear(ctx, peer) })
	}
	talking, silence := context.WithCancel(ctx)
	defer speaking.Wait()
	defer silence()
	for _, from := range x.from {
		for _, to := range x.to {
			speaking.Go(func() { x.speak(talking, from, to) })
		}
	}
	start := time.Now()
	for round := range rounds {
		x.progress(t) // the traffic continues
		moment := time.NewTimer(time.Duration(rnd.IntN(600)) * time.Millisecond)
		<-moment.C
		if round == rounds-1 {
			silence() // messages in flight are cut off, and no new ones begin
		}
		p.kill()
		if round < rounds-1 {
			p = launch(t, args...)
		}
		t.Logf("killed %d times after %s", round+1, time.Since(start).Round(time.Millisecond))
	}
	speaking.Wait()
	x.settle(t)
	t.Logf("settled after %s", time.Since(start).Round(time.Millisecond))
	cancel()
}

// speak sends one message after the other, every fourth as a question.
func (x *talk) speak(ctx context.Context, from, to pairs.Peer) {
	for n := 0; ctx.Err() == nil; n++ {
		text := fmt.Sprintf("note %s %s %d", from.Name(), to.Name(), n)
		ask := n%4 == 3
		one, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
		var err error
		if ask {
			_, err = from.Ask(one, pairs.Question{To: to, Text: text})
		} else {
			err = from.Tell(one, to, text)
		}
		cancel()
		// AGH has no acknowledgement of a say: it is published, or lost with the hub.
		// Only an answer shows that it was accepted.
		if err == nil && (from.Protocol() != "agh" || ask) {
			x.mu.Lock()
			x.acked[text] = true
			close(x.more)
			x.more = make(chan struct{})
			x.mu.Unlock()
		}
		pause := time.NewTimer(20 * time.Millisecond)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		pause.Stop()
	}
}

// progress waits for the next acknowledgement.
func (x *talk) progress(t *testing.T) {
	t.Helper()
	x.mu.Lock()
	more := x.more
	x.mu.Unlock()
	patient := time.NewTimer(readyWithin)
	defer patient.Stop()
	select {
	case <-more:
	case <-patient.C:
		t.Fatal("no message is acknowledged any more")
	}
}

func (x *talk) hear(ctx context.Context, p pairs.Peer) {
	for {
		select {
		case h := <-p.Heard():
			x.mu.Lock()
			if x.heard[h.Text] == nil {
				x.heard[h.Text] = map[string]int{}
			}
			x.heard[h.Text][h.ID]++
			x.mu.Unlock()
		case <-ctx.Done():
			return
		}
	}
}

// journalState is the part of the journal that concerns the traffic.
type journalState struct {
	mu       sync.Mutex
	at       map[journal.Position]bool
	messages map[string][]*parley.Message // by text
	attempts map[parley.ID]int
	ended    map[parley.ID]string // why a delivery was given up, or how its request failed
	arrived  map[parley.ID]bool   // its delivery is recorded as made
	history  map[parley.ID][]string
}

func (b *journalState) take(r *journal.Record) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.at[r.Position] {
		return
	}
	b.at[r.Position] = true
	if m := r.Message; m != nil && r.Refused == nil && m.InReplyTo.IsZero() &&
		(m.Kind == parley.Request || m.Kind == parley.Notice) {
		// The hub's own messages in an ASP session are left out.
		if text := pairs.Said(m); strings.HasPrefix(text, "note ") && m.Trace.Foreign["asp.says"] == "" {
			b.messages[text] = append(b.messages[text], m)
		}
	}
	for _, o := range r.Open {
		id := r.Message.ID
		b.attempts[id] = max(b.attempts[id], o.Attempt)
		b.history[id] = append(b.history[id], fmt.Sprintf("%s opened to %s, attempt %d", r.Time.Format("05.000"), o.To,
			o.Attempt))
	}
	for _, s := range r.Steps {
		b.attempts[s.Message] = max(b.attempts[s.Message], s.Attempt)
		if s.State > parley.Delivered && s.Error != nil {
			b.ended[s.Message] = s.Error.Error()
		}
		b.arrived[s.Message] = b.arrived[s.Message] || s.State == parley.Delivered
		b.history[s.Message] = append(b.history[s.Message], fmt.Sprintf("%s to %s: %s, attempt %d, %v",
			r.Time.Format("05.000"), s.To, s.State, s.Attempt, s.Error))
	}
}

// settle lets a hub finish its open work, and compares the journal with the
// acknowledged and heard messages.
func (x *talk) settle(t *testing.T) {
	c, err := node.Load(x.path)
	if err != nil {
		t.Fatal(err)
	}
	n, err := node.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		x.leave()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), readyWithin)
		defer cancel()
		if err := n.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	j := n.Hub().Journal()
	b := &journalState{at: map[journal.Position]bool{},
		messages: map[string][]*parley.Message{}, attempts: map[parley.ID]int{},
		ended:   map[parley.ID]string{},
		arrived: map[parley.ID]bool{}, history: map[parley.ID][]string{}}
	defer j.Watch(b.take)()
	for p := range j.Partitions() {
		for r, err := range j.Records(t.Context(), p, journal.From{}) {
			if err != nil {
				t.Fatal(err)
			}
			b.take(r)
		}
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	var open []journal.Delivery
	var unheard []string
	err = eventually(t.Context(), patience+readyWithin, func() (bool, error) {
		open = j.Deliveries(journal.Filter{States: []parley.DeliveryState{parley.Waiting, parley.Delivering,
			parley.Delivered}})
		n := 0
		for _, d := range open {
			if !d.State.Settled(d.Kind) {
				open[n] = d
				n++
			}
		}
		open = open[:n]
		unheard = x.unheard(b)
		return n == 0 && len(unheard) == 0, nil
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		t.Errorf("%v: %d deliveries are not settled, %d messages that were taken were neither heard nor given up", err,
			len(open), len(unheard))
	}
	for _, d := range open[:min(len(open), 10)] {
		t.Errorf("%s %s from %s to %s is %s:\n  %s", d.Kind, d.Message, d.From, d.To, d.State,
			strings.Join(b.history[d.Message], "\n  "))
	}
	for _, text := range unheard[:min(len(unheard), 10)] {
		t.Errorf("%q was never heard, and not given up:\n  %s", text,
			strings.Join(b.history[b.messages[text][0].ID], "\n  "))
	}
	x.verify(t, b)
}

// unheard gives the acknowledged messages that were neither heard nor given up.
func (x *talk) unheard(b *journalState) (out []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	for text := range x.acked {
		list := b.messages[text]
		if len(list) == 0 || len(x.heard[text]) > 0 || b.ended[list[0].ID] != "" {
			continue
		}
		// NATS has no acknowledgement: a message to an AGH peer whose connection has
		// just broken counts as sent, and is not heard.
		if b.arrived[list[0].ID] && strings.Contains(text, " agh-to ") {
			continue
		}
		out = append(out, text)
	}
	return out
}

// verify reports lost messages, and messages with too many effects.
func (x *talk) verify(t *testing.T, b *journalState) {
	x.mu.Lock()
	defer x.mu.Unlock()
	lost, given, missed, twice := 0, 0, 0, 0
	for text := range x.acked {
		list := b.messages[text]
		switch {
		case len(list) == 0:
			lost++
			t.Errorf("%q was taken and is not in the journal", text)
		case len(list) > 1:
			t.Errorf("%q is recorded as %d messages", text, len(list))
		case len(x.heard[text]) == 0 && b.ended[list[0].ID] != "":
			given++
		case len(x.heard[text]) == 0:
			missed++
		}
	}
	for text, by := range x.heard {
		if !strings.HasPrefix(text, "note ") {
			continue // a withdrawal of a question
		}
		list := b.messages[text]
		if len(list) == 0 {
			t.Errorf("%q was heard and is not in the journal", text)
			continue
		}
		n := 0
		for _, times := range by {
			n += times
		}
		if n == 1 {
			continue
		}
		twice++
		m := list[0]
		to, _, _ := strings.Cut(strings.Fields(text)[2], "-")
		switch {
		case to != "samvad" && to != "uagents" && to != "a2a": // they deduplicate by id
			if len(by) != 1 {
				t.Errorf("%q came to %s under %d ids: %v\n  %s", text, to, len(by), by,
					strings.Join(b.history[m.ID], "\n  "))
			}
		case x.outcome == "at-most-once" || n > b.attempts[m.ID]:
			t.Errorf("%q came to %s %d times; %d attempts are recorded:\n  %s", text, to, n, b.attempts[m.ID],
				strings.Join(b.history[m.ID], "\n  "))
		}
	}
	t.Logf("%d taken, %d lost, %d given up with a reason, %d published to an AGH peer that was not there; %d heard, %d of them more than once", len(x.acked), lost, given, missed, len(x.heard), twice)
	if len(x.acked) == 0 || len(x.heard) == 0 {
		t.Error("nothing was said")
	}
}
