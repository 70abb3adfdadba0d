package pairs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/parleytest"
	"github.com/parley-hub/parley/samvad"
)

// front is an address that stays while the hub behind it moves from one address to
// another. While no hub is there, it closes new connections.
type front struct {
	l    net.Listener
	work sync.WaitGroup

	mu     sync.Mutex
	behind string
	conns  map[net.Conn]bool
}

func newFront(t *testing.T) *front {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &front{l: l, conns: map[net.Conn]bool{}}
	f.work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			f.work.Go(func() { f.serve(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		f.lead("")
		f.work.Wait()
	})
	return f
}

func (f *front) serve(c net.Conn) {
	defer c.Close()
	f.mu.Lock()
	behind := f.behind
	f.mu.Unlock()
	if behind == "" {
		return
	}
	hub, err := net.Dial("tcp", behind)
	if err != nil {
		return
	}
	defer hub.Close()
	f.mu.Lock()
	if f.behind != behind {
		f.mu.Unlock()
		return
	}
	f.conns[c], f.conns[hub] = true, true
	f.mu.Unlock()
	f.work.Go(func() {
		_, _ = io.Copy(hub, c) // the end of either side ends both
		hub.Close()
	})
	_, _ = io.Copy(c, hub)
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.conns, c)
	delete(f.conns, hub)
}

// lead puts another hub behind the address, or none, and closes the connections to the
// last one.
func (f *front) lead(to string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.behind = to
	for c := range f.conns {
		c.Close()
	}
	clear(f.conns)
}

// longTestNode is a testNode whose hub can be stopped and started again while the clock is
// put forward. The peers only see that the hub was away.
type longTestNode struct {
	*testNode
	clock     parleytest.Clock
	http, agh *front
	from, to  map[string]Worker // by protocol
}

func newLongTestNode(t *testing.T, modes ...samvad.Mode) *longTestNode {
	t.Helper()
	w := &longTestNode{http: newFront(t), agh: newFront(t), from: map[string]Worker{}, to: map[string]Worker{}}
	var all []Peer
	for _, p := range Protocols {
		from, to := newPeer(t, p, p+"-from"), newPeer(t, p, p+"-to")
		if p, ok := to.(*samvadPeer); ok {
			p.card.Skills[0].Modes = modes
		}
		w.from[p], w.to[p] = from.(Worker), to.(Worker)
		all = append(all, from, to)
	}
	c := node.Config{Data: filepath.Join(t.TempDir(), "data"), Durability: "disk", PublicURL: "http://" +
		w.http.l.Addr().String(), Now: w.clock.Now,
		ASP: node.ASP{Conversing: node.Duration{Duration: 24 * time.Hour}},
		MCP: node.MCP{Wait: node.Duration{Duration: time.Second}}} // then its clients get a handle
	w.testNode = newTestNode(t, c, all...)
	w.lead()
	for _, p := range all {
		if err := p.Join(patient(t), w.place(), false); err != nil {
			t.Fatalf("%s joins: %v", p.Name(), err)
		}
	}
	return w
}

func (w *longTestNode) place() Place {
	return Place{HTTP: "http://" + w.http.l.Addr().String(), AGH: "nats://" + w.agh.l.Addr().String(), Now: w.clock.Now,
		Token: At(w.Node).Token}
}

func (w *longTestNode) lead() {
	a := w.Addresses()
	w.http.lead(strings.TrimPrefix(a.Local, "http://"))
	w.agh.lead(strings.TrimPrefix(a.AGH, "nats://"))
}

// away stops the hub, puts the clock forward, and starts the hub again on the same
// directory. Exchanges in flight are cut off.
func (w *longTestNode) away(t *testing.T, pass time.Duration) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	stop()
	if err := w.Close(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	w.http.lead("")
	w.agh.lead("")
	w.clock.Advance(pass)
	w.open(t)
	w.lead()
	// Idle connections are closed: the next message must not go into a dead one, for
	// which some protocols have no second attempt.
	for _, p := range w.peers {
		p.(interface{ hangUp() }).hangUp()
	}
}

// commission is a question that one peer has asked another.
type commission struct {
	from, to string // protocols
	text     string
	cancel   context.CancelFunc
	taken    chan struct{}
	done     chan struct{}
	answer   Answer
	err      error
}

func (c *commission) String() string { return c.from + " to " + c.to }

// ask sends a question for each of some pairs, and waits until every responder has
// heard it and the hub has recorded the delivery.
func (w *longTestNode) ask(t *testing.T, verb string, patience time.Duration,
	pairs func(from, to string) bool) []*commission {
	t.Helper()
	var all []*commission
	for _, from := range Protocols {
		for _, to := range Protocols {
			if !pairs(from, to) {
				continue
			}
			ctx, cancel := context.WithCancel(patient(t))
			c := &commission{from: from, to: to, text: verb + " " + from + "-" + to, cancel: cancel,
				taken: make(chan struct{}), done: make(chan struct{})}
			all = append(all, c)
			go func() {
				defer close(c.done)
				c.answer, c.err = w.from[from].Commission(ctx,
					Question{To: w.to[to], Text: c.text, Patience: patience, Taken: func() { close(c.taken) }})
			}()
		}
	}
	for _, c := range all {
		select {
		case <-c.taken:
		case <-c.done:
			select {
			case <-c.taken:
			default:
				t.Fatalf("%s: %q was not taken: %+v, %v", c, c.text, c.answer, c.err)
			}
		case <-patient(t).Done():
			t.Fatalf("%s: %q was never taken", c, c.text)
		}
	}
	w.heard(t, all)
	for _, c := range all {
		if !(c.from == "asp" && c.to == "asp") { // they read the session
			m := w.said(t, w.from[c.from], w.to[c.to], c.text)
			w.settled(t, m.ID, parley.Delivered)
		}
	}
	return all
}

// heard waits until every responder has heard its questions, in any order.
func (w *longTestNode) heard(t *testing.T, list []*commission) {
	t.Helper()
	heard := map[string]map[string]bool{}
	for _, c := range list {
		if heard[c.to] == nil {
			heard[c.to] = map[string]bool{}
		}
		for !heard[c.to][c.text] {
			heard[c.to][next(t, w.to[c.to], fmt.Sprintf("%q", c.text),
				func(h Heard) bool { return h.Text != "" }).Text] = true
		}
	}
}

// resumed waits until the responders whose work ended with the hub have heard that, and are asked again.
func (w *longTestNode) resumed(t *testing.T, list []*commission) {
	t.Helper()
	w.heard(t, slices.DeleteFunc(slices.Clone(list), func(c *commission) bool { return !traits[c.to].again }))
}

func (c *commission) wait(t *testing.T) (Answer, error) {
	t.Helper()
	select {
	case <-c.done:
	case <-patient(t).Done():
		t.Fatalf("%s: %q has no outcome", c, c.text)
	}
	return c.answer, c.err
}

// byTheHub reports whether the hub itself keeps a request of a pair. Where it passes on
// the envelopes of one protocol, the request is the two agents' alone.
func byTheHub(from, to string) bool { return from != to || !traits[from].native }

// TestLongWork has all pairs do work of over an hour, while the hub is stopped and
// started again: answers and withdrawals arrive, and the responder learns when the
// requester waits no more.
func TestLongWork(t *testing.T) {
	t.Parallel()
	w := newLongTestNode(t, samvad.ModeSync, samvad.ModeAsync, samvad.ModeStream)
	every := func(string, string) bool { return true }

	t.Run("answered", func(t *testing.T) {
		list := w.ask(t, "later say", 3*time.Hour, every)
		w.away(t, 61*time.Minute)
		w.resumed(t, list)
		for _, p := range w.to {
			p.Release()
		}
		for _, c := range list {
			if a, err := c.wait(t); err != nil || a.Text != c.from+"-"+c.to {
				t.Errorf("%s: %+v, %v", c, a, err)
			}
		}
	})

	t.Run("failed by the responder", func(t *testing.T) {
		list := w.ask(t, "later fail", 3*time.Hour, every)
		w.away(t, 10*time.Minute)
		w.resumed(t, list)
		for _, p := range w.to {
			p.Release()
		}
		for _, c := range list {
			a, err := c.wait(t)
			var f *Failure
			if !errors.As(err, &f) || f.Text == "" {
				t.Errorf("%s: %+v, %v", c, a, err)
			}
		}
	})

	t.Run("withdrawn by the requester", func(t *testing.T) {
		list := w.ask(t, "hold", 3*time.Hour, func(from, to string) bool {
			return traits[from].cancels &&
				traits[to].cancelled
		})
		w.away(t, 10*time.Minute)
		w.resumed(t, list)
		for _, c := range list {
			c.cancel()
		}
		heard := map[string]int{}
		for _, c := range list {
			if a, err := c.wait(t); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %+v, %v", c, a, err)
			}
			if byTheHub(c.from, c.to) {
				asked := w.said(t, w.from[c.from], w.to[c.to], c.text).ID
				r := w.record(t, c.String()+": the cancel", func(r *journal.Record) bool {
					return r.Message != nil && r.Message.Kind == parley.Cancel && r.Message.InReplyTo == asked
				})
				w.settled(t, r.Message.ID, parley.Delivered)
			}
			next(t, w.to[c.to], fmt.Sprintf("that one more than %d are taken back", heard[c.to]),
				func(h Heard) bool { return h.Cancel })
			heard[c.to]++
		}
	})

	t.Run("expired", func(t *testing.T) {
		// Another text than in the part before: ask waits for the delivery of the first request with a text.
		list := w.ask(t, "hold on", 30*time.Minute, byTheHub)
		w.away(t, 3*time.Hour)
		told := map[string]int{}
		for _, c := range list {
			a, err := c.wait(t)
			var f *Failure
			if !errors.As(err, &f) {
				t.Errorf("%s: %+v, %v", c, a, err)
			}
			if traits[c.to].cancelled {
				told[c.to]++
			}
		}
		for to, n := range told {
			for i := range n {
				next(t, w.to[to], fmt.Sprintf("that the time of %d requests of %d is up", i+1, n),
					func(h Heard) bool { return h.Cancel })
			}
		}
	})

	w.nothingOpen(t)
}

// TestStreamCutOff has every protocol ask a SAMVAD agent that answers only by streams,
// and an A2E agent by a tool call. The hub restarts when each requester has had a
// piece. The requester gets an error; the agent notices that its stream has no reader,
// and is asked a second time only if the requester asks again.
func TestStreamCutOff(t *testing.T) {
	t.Parallel()
	w := newLongTestNode(t, samvad.ModeStream)
	to := w.to["samvad"]
	type outcome struct {
		answer Answer
		err    error
	}
	asked := map[string]chan outcome{}
	for _, from := range Protocols {
		done, begun := make(chan outcome, 1), make(chan struct{}, 1)
		asked[from] = done
		go func() {
			a, err := w.from[from].Ask(patient(t), Question{To: to, Text: "begin say " + from, Events: func(s string) {
				if s == "begun" {
					begun <- struct{}{}
				}
			}})
			done <- outcome{a, err}
		}()
		hears(t, to, "begin say "+from)
		if crosses("samvad", from, bridge.Chunk) {
			select {
			case <-begun:
			case <-patient(t).Done():
				t.Fatalf("%s never saw the first piece", from)
			}
		}
	}
	w.away(t, time.Minute)
	for range Protocols {
		next(t, to, "that a stream is not read any more", func(h Heard) bool { return h.Cancel })
	}
	for _, from := range Protocols {
		select {
		case o := <-asked[from]:
			if o.err == nil {
				t.Errorf("%s: %+v", from, o.answer)
			}
			// A requester that waits on a connection may see that break instead.
			if f := new(Failure); from != "samvad" && !errors.As(o.err, &f) &&
				!errors.Is(o.err, a2e.ErrOutcomeUnknown) {
				t.Errorf("%s: %v", from, o.err)
			}
		case <-patient(t).Done():
			t.Errorf("%s was never told", from)
		}
		ask := w.from[from].Commission
		if from == "samvad" {
			ask = w.from[from].Ask // its card offers no tasks
		}
		a, err := ask(patient(t), Question{To: to, Text: "say again", Events: func(string) {}})
		if err != nil || a.Text != "again" {
			t.Errorf("%s asks again: %+v, %v", from, a, err)
		}
	}
	for len(to.Heard()) > 0 {
		if h := <-to.Heard(); h.Text != "say again" && !h.Cancel {
			t.Errorf("done twice: %q", h.Text)
		}
	}
	w.nothingOpen(t)
}

// nothingOpen checks that every request has ended.
func (w *longTestNode) nothingOpen(t *testing.T) {
	t.Helper()
	for _, d := range w.Hub().Journal().Deliveries(journal.Filter{States: []parley.DeliveryState{parley.Waiting,
		parley.Delivering, parley.Delivered}}) {
		if d.Kind == parley.Request {
			t.Errorf("a request is still open: %+v", d)
		}
	}
}
