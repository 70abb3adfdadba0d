//go:build cluster

package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/pairs"
	"github.com/parley-hub/parley/internal/testcluster"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/jetstream"
	"github.com/parley-hub/parley/node"
)

// TestNodeAndServerKilled has agents of all seven protocols ask and tell agents of all
// seven across three hubs on a JetStream cluster of three servers, kills a hub and a
// server at once and runs them again: no acknowledged message is lost, no recipient
// without deduplication gets a message twice without a recorded second attempt, and
// every conversation ends.
func TestNodeAndServerKilled(t *testing.T) {
	// Requesters are at the first and the second hub, responders at the third, so that
	// every message crosses from one hub to another.
	victims := []int{2, 0}
	if testing.Short() {
		victims = victims[:1]
	}
	w := newTestbed(newRecorder(t), testcluster.StartProcesses(t, 3), 3, pairs.Protocols, patience, nil)
	w.join(func(i int) (from, to *hubNode) { return w.hubs[i%2], w.hubs[2] })
	w.begin(false)
	w.everyPairAnswers(w.t, "at the start", w.from, w.to)
	w.phase("all pairs have answered")
	for i, v := range victims {
		w.servers.Kill(i)
		w.hubs[v].kill()
		w.awaitTraffic(w.t)
		w.phase("killed, and it goes on")
		all(t, []func() error{w.hubs[v].start, func() error { return w.servers.Restart(i) }},
			func(f func() error) error { return f() })
		w.phase("restarted")
		w.everyPairAnswers(w.t, fmt.Sprintf("after %s and server %d were killed", w.hubs[v].name, i), w.from, w.to)
		w.phase("all pairs have answered")
	}
	w.end()
}

// patience is how long a question stays open if it sets no limit itself.
const patience = 20 * time.Second

func newPeer(t *testing.T, protocol, name string) pairs.Peer {
	t.Helper()
	p, err := pairs.New(protocol, name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// sendResult is how a message ended for its sender.
type sendResult struct {
	acknowledged bool // the hub acknowledged it, so it is recorded
	answered     bool
	err          error
	begun        time.Time
	took         time.Duration
}

// talk is the traffic between the agents and its outcome.
type talk struct {
	mu    sync.Mutex
	said  map[string]sendResult
	heard map[string]map[string]int // by text: how often, by the id that the recipient saw
	acks  []ack                     // in order
	at    map[pairs.Peer]*hubNode   // the hub of each peer

	traces *traces
}

// ack is an acknowledgement: its time, hub and pair.
type ack struct {
	when time.Time
	hub  *hubNode
	pair string
}

// tellFirst is the first number of the senders that only tell.
const tellFirst = 1_000_001 // its remainder by three is two, as of every note

// speak asks and tells in turn, with a new text each time.
func (x *talk) speak(ctx context.Context, from, to pairs.Peer) { x.say(ctx, from, to, 0, 1) }

// tell only tells: it waits for the hub alone, not for a responder.
func (x *talk) tell(ctx context.Context, from, to pairs.Peer) { x.say(ctx, from, to, tellFirst, 3) }

func (x *talk) say(ctx context.Context, from, to pairs.Peer, first, step int) {
	for n := first; ctx.Err() == nil; n += step {
		one, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		text, o := fmt.Sprintf("say %s %s %d", from.Name(), to.Name(), n), sendResult{}
		if n%3 == 2 {
			text = "note" + strings.TrimPrefix(text, "say")
		}
		begun := time.Now()
		x.event(text, "%s begins to say it", from.Name())
		if n%3 == 2 {
			o.err = from.Tell(one, to, text)
			// AGH does not acknowledge a message that gives no work.
			o.acknowledged = o.err == nil && from.Protocol() != "agh"
		} else {
			var a pairs.Answer
			a, o.err = from.Ask(one, pairs.Question{To: to, Text: text})
			if want := strings.TrimPrefix(text, "say "); o.err == nil && a.Text != want {
				o.err = fmt.Errorf("answered with %q", a.Text)
			}
			o.acknowledged, o.answered = o.err == nil, o.err == nil
		}
		cancel()
		x.event(text, "%s is done with it: acknowledged %v, answered %v, %v", from.Name(), o.acknowledged, o.answered,
			o.err)
		o.begun, o.took = begun, time.Since(begun)
		x.mu.Lock()
		x.said[text] = o
		if o.acknowledged {
			x.acks = append(x.acks, ack{time.Now(), x.at[from], from.Name() + " " + to.Name()})
		}
		x.mu.Unlock()
		pause := time.NewTimer(200 * time.Millisecond)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		pause.Stop()
	}
}

func (x *talk) event(text, what string, arguments ...any) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.traces.seen(text, what, arguments...)
}

func (x *talk) listen(ctx context.Context, p pairs.Peer) {
	for {
		select {
		case h := <-p.Heard():
			x.event(h.Text, "%s hears it as %q, attempt %d, cancel %v", p.Name(), h.ID, h.Attempt, h.Cancel)
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

// answers counts the answered questions by pair.
func (x *talk) answers() map[string]int {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := map[string]int{}
	for text, o := range x.said {
		if f := strings.Fields(text); o.answered {
			out[f[1]+" "+f[2]]++
		}
	}
	return out
}

// everyPairAnswers waits until every pair has two more answers than at the call: the
// question of the second was asked after the call.
func (x *talk) everyPairAnswers(t testing.TB, when string, from, to []pairs.Peer) {
	t.Helper()
	before := x.answers()
	var missing []string
	if until(t.Context(), func() bool {
		now := x.answers()
		missing = nil
		for _, f := range from {
			for _, g := range to {
				if pair := f.Name() + " " + g.Name(); now[pair] < before[pair]+2 {
					missing = append(missing, pair)
				}
			}
		}
		return len(missing) == 0
	}) {
		return
	}
	for _, pair := range missing {
		t.Errorf("%s: no answer, %s: %v", pair, when, x.lastError(pair))
	}
}

func (x *talk) lastError(pair string) (err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	last := -1
	for text, o := range x.said {
		var n int
		if _, scan := fmt.Sscanf(text[strings.LastIndexByte(text, ' '):], "%d", &n); scan == nil &&
			strings.Contains(text, " "+pair+" ") && o.err != nil && n > last {
			last, err = n, fmt.Errorf("%s: %w", text, o.err)
		}
	}
	return err
}

// awaitTraffic waits until 25 more messages have ended, with or without success.
func (x *talk) awaitTraffic(t testing.TB) {
	t.Helper()
	count := func() int {
		x.mu.Lock()
		defer x.mu.Unlock()
		return len(x.said)
	}
	before := count()
	if !until(t.Context(), func() bool { return count() > before+25 }) {
		t.Error("no message has ended any more")
	}
}

// textPattern matches the texts that agents send in this test.
var textPattern = regexp.MustCompile(`(say|note) [a-z0-9]+-from [a-z0-9]+-to [0-9]+`)

// dead gives the texts of the dead letters.
func (x *talk) dead(t testing.TB, h *hubNode, web *http.Client) map[string]bool {
	t.Helper()
	c := h.operator(web)
	list, err := c.Dead(t.Context(), admin.DeadFilter{})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, d := range list {
		d, err := c.DeadLetter(t.Context(), d.Message.String(), d.To)
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(d.Content)
		if err != nil {
			t.Fatal(err)
		}
		out[textPattern.FindString(string(b))] = true
	}
	return out
}

// unheard gives the acknowledged messages that have not arrived.
func (x *talk) unheard(except map[string]bool) (out []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for text, o := range x.said {
		if o.acknowledged && !except[text] && len(x.heard[text]) == 0 {
			out = append(out, text)
		}
	}
	return out
}

// awaitUnheard waits for messages that are still in an inbox. A message that was given
// up never arrives, so the wait ends when nothing has arrived for longer than an agent
// takes to look again.
func (x *talk) awaitUnheard(t testing.TB, dead map[string]bool) {
	const silence = 40 * time.Second
	last, since := -1, time.Now()
	until(t.Context(), func() bool {
		left := len(x.unheard(dead))
		if left != last {
			last, since = left, time.Now()
		}
		return left == 0 || time.Since(since) > silence
	})
}

// verify compares acknowledged and received messages with the journal.
func (x *talk) verify(t testing.TB, engine node.Engine, outcome string, to []pairs.Peer) {
	j, err := journal.Open(t.Context(), journal.Config{Store: testjournal.Cluster(t,
		jetstream.Config{URL: engine.URL, Prefix: engine.Prefix, Replicas: engine.Replicas}), Node: "checker"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	}()
	messages := map[string][]*parley.Message{}  // by text
	requests := map[parley.ID]*parley.Message{} // accepted ones
	attempts := map[parley.ID]int{}             // recorded ones
	ended := map[parley.ID]*parley.Error{}      // why the delivery was given up
	begun := map[parley.ID]*journal.Record{}    // the record that begins the last attempt
	unknown := 0
	// The outcome of an attempt is unknown where its hub was killed or frozen
	// meanwhile, or where the requester left, which breaks it off.
	judge := func(id parley.ID, e *parley.Error, r *journal.Record) {
		if e == nil || e.Code != parley.OutcomeUnknown {
			return
		}
		unknown++
		by := begun[id]
		i := slices.IndexFunc(x.traces.hubs, func(h *hubNode) bool { return by != nil && h.name == by.Node })
		left := x.said[x.traces.called[id]]
		if left.err != nil && left.took >= patience {
			return
		}
		if i < 0 || !x.traces.hubs[i].interrupted(by.Time, r.Time) {
			t.Errorf("%s has a false outcome_unknown: %v%s", id, e, x.traces.ofID(id))
		}
	}
	settled, dead, replies := map[parley.ID]bool{}, map[parley.ID]bool{}, map[parley.ID]int{}
	for p := range j.Partitions() {
		for r, err := range j.Records(t.Context(), p, journal.From{}) {
			if err != nil {
				t.Fatal(err)
			}
			x.traces.recorded(r)
			if m := r.Message; m != nil && r.Refused == nil {
				text := pairs.Said(m)
				switch {
				case m.Kind.Terminal():
					replies[m.InReplyTo]++
					judge(m.InReplyTo, m.Error, r)
				case (m.Kind == parley.Request || m.Kind == parley.Notice) && m.InReplyTo.IsZero() &&
					m.Trace.Foreign["asp.says"] == "":
					if strings.HasPrefix(text, "say ") || strings.HasPrefix(text, "note ") {
						messages[text] = append(messages[text], m)
					}
					if m.Kind == parley.Request {
						requests[m.ID] = m
					}
				}
			}
			for _, o := range r.Open {
				attempts[r.Message.ID] = max(attempts[r.Message.ID], o.Attempt)
				if o.Attempt > 0 {
					begun[r.Message.ID] = r
				}
			}
			for _, s := range r.Steps {
				attempts[s.Message] = max(attempts[s.Message], s.Attempt)
				if s.State == parley.Delivering {
					begun[s.Message] = r
				}
				judge(s.Message, s.Error, r)
				if s.State.Settled(parley.Request) || s.State == parley.Dead {
					settled[s.Message] = true
				}
				if s.State == parley.Dead {
					dead[s.Message] = true
				}
				if s.State > parley.Delivered && s.Error != nil {
					ended[s.Message] = s.Error
				}
			}
		}
	}
	if open := j.Deliveries(journal.Filter{States: []parley.DeliveryState{parley.Waiting, parley.Delivering,
		parley.Delivered}}); len(open) > 0 {
		t.Errorf("%d deliveries are not settled", len(open))
		for _, d := range open[:min(len(open), 40)] {
			t.Errorf("%s %s from %s to %s: %s, attempt %d, next %s, deadline %s, node %s, %v", d.Kind, d.Message,
				d.From, d.To, d.State, d.Attempt, d.Next, d.Deadline, d.Node, d.Error)
			t.Log(x.traces.ofID(d.Message))
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	acked, answered, failed, excused, twice := 0, 0, 0, 0, 0
	for text, o := range x.said {
		list := messages[text]
		if o.answered {
			answered++
		}
		if o.err != nil {
			failed++
		}
		if len(list) > 1 {
			t.Errorf("%q is recorded %d times%s", text, len(list), x.traces.of(text))
		}
		if !o.acknowledged {
			continue
		}
		acked++
		switch {
		case len(list) == 0:
			t.Errorf("%q was acknowledged and is not in the journal%s", text, x.traces.of(text))
		case len(x.heard[text]) > 0:
		case ended[list[0].ID] != nil && !o.answered:
			excused++
			t.Logf("%q was acknowledged and not heard: %s", text, ended[list[0].ID])
		default:
			t.Errorf("%q was acknowledged, never heard, and not given up%s", text, x.traces.of(text))
		}
	}
	for id, m := range requests {
		if !settled[id] && m.Origin.Protocol != "asp" {
			t.Errorf("the request %q of %s was never ended%s", pairs.Said(m), m.From, x.traces.ofID(id))
		}
		// A recipient may answer although its delivery was given up, and its sender
		// told so.
		most := 1
		if dead[id] {
			most = 2
		}
		if replies[id] > most {
			t.Errorf("%q has %d terminal replies%s", pairs.Said(m), replies[id], x.traces.ofID(id))
		}
	}
	for text, by := range x.heard {
		f := strings.Fields(text)
		at := -1
		if len(f) == 4 {
			at = slices.IndexFunc(to, func(p pairs.Peer) bool { return p.Name() == f[2] })
		}
		if at < 0 {
			continue // a withdrawal of a question
		}
		list, n := messages[text], 0
		for _, times := range by {
			n += times
		}
		if len(list) == 0 {
			t.Errorf("%q was heard and is not in the journal%s", text, x.traces.of(text))
			continue
		}
		if n == 1 {
			continue
		}
		twice++
		switch protocol, recorded := to[at].Protocol(), attempts[list[0].ID]; {
		case protocol != "samvad" && protocol != "uagents" && protocol != "a2a": // they deduplicate by id
			if len(by) > 1 {
				t.Errorf("%q came to %s under %d ids%s", text, protocol, len(by), x.traces.of(text))
			}
		case outcome != "at-least-once":
			t.Errorf("%q came to %s %d times%s", text, protocol, n, x.traces.of(text))
		case n > recorded:
			t.Errorf("%q came to %s %d times; %d attempts are recorded%s", text, protocol, n, recorded,
				x.traces.of(text))
		}
	}
	t.Logf("%d said, %d acknowledged, %d answered, %d failed; %d acknowledged ones were given up with a reason, %d were heard more than once; %d records of an unknown outcome",
		len(x.said), acked, answered, failed, excused, twice, unknown)
	for what, n := range x.failures() {
		t.Logf("%d times %s", n, what)
	}
	x.slowest(t)
}

// slow is long enough that the sender may have waited for an event that does not come
// by itself.
const slow = 10 * time.Second

// slowest logs the traces of the slow messages, the slowest first.
func (x *talk) slowest(t testing.TB) {
	var long []string
	for text, o := range x.said {
		if o.took >= slow {
			long = append(long, text)
		}
	}
	slices.SortFunc(long, func(a, b string) int {
		return cmp.Or(cmp.Compare(x.said[b].took, x.said[a].took),
			cmp.Compare(a, b))
	})
	for _, text := range long {
		t.Logf("%q took %s, %v%s", text, x.said[text].took.Round(100*time.Millisecond), x.said[text].err,
			x.traces.of(text))
	}
}

// failures counts the errors of the senders by pair.
func (x *talk) failures() map[string]int {
	out := map[string]int{}
	for text, o := range x.said {
		if o.err == nil {
			continue
		}
		var f *pairs.Failure
		kind := "error "
		if errors.As(o.err, &f) {
			kind = "failure "
		}
		w := strings.Fields(text)
		out[kind+w[1]+" "+w[2]+": "+fmt.Sprintf("%.90s", o.err.Error())]++
	}
	return out
}
