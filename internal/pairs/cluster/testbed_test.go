//go:build cluster

package cluster

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley/internal/pairs"
	"github.com/parley-hub/parley/internal/testcluster"
	"github.com/parley-hub/parley/node"
)

// A testbed is a set of agents that talk to each other through several hubs on one
// cluster of servers.
type testbed struct {
	*talk
	t        *recorder
	servers  *testcluster.Processes
	hubs     []*hubNode
	from, to []pairs.Peer // requesters and responders
	engine   node.Engine
	outcome  string // the setting of delivery.outcome
	web      *http.Client
	begun    time.Time

	stopTalking, stopListening, leave func() // end the activity of the agents; may be called again
}

// A recorder is a test that says last what failed: the logs of the hubs come before.
type recorder struct {
	*testing.T
	mu     sync.Mutex
	failed []string
}

func newRecorder(t *testing.T) *recorder {
	r := &recorder{T: t}
	t.Cleanup(func() { // after all others
		for _, f := range r.failed[:min(len(r.failed), 12)] {
			t.Log("failed: ", f)
		}
	})
	return r
}

func (r *recorder) note(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	text, _, _ = strings.Cut(text, "\n")
	r.failed = append(r.failed, fmt.Sprintf("%.300s", text))
}

func (r *recorder) Error(args ...any) {
	r.Helper()
	r.note(fmt.Sprint(args...))
	r.T.Error(args...)
}

func (r *recorder) Errorf(format string, args ...any) {
	r.Helper()
	r.note(fmt.Sprintf(format, args...))
	r.T.Errorf(format, args...)
}

func (r *recorder) Fatal(args ...any) {
	r.Helper()
	r.note(fmt.Sprint(args...))
	r.T.Fatal(args...)
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Helper()
	r.note(fmt.Sprintf(format, args...))
	r.T.Fatalf(format, args...)
}

// newTestbed starts the hubs and makes two agents of each protocol. each, which may be
// nil, changes the configuration of one hub.
func newTestbed(t *recorder, servers *testcluster.Processes, hubs int, protocols []string,
	patience time.Duration, each func(hub int, c *node.Config),
) *testbed {
	t.Helper()
	w := &testbed{
		t: t, servers: servers, begun: time.Now(), web: &http.Client{Transport: &http.Transport{}},
		engine:  node.Engine{URL: strings.Join(servers.URLs, ","), Prefix: "PAIRS", Replicas: 3, Partitions: 4},
		outcome: os.Getenv("PARLEY_CLUSTER_OUTCOME"), // at-least-once: another setting of delivery.outcome
	}
	for _, p := range protocols {
		w.from, w.to = append(w.from, newPeer(t.T, p, p+"-from")), append(w.to, newPeer(t.T, p, p+"-to"))
	}
	w.hubs = newNodes(t.T, hubs, node.Config{Durability: "replicated", Engine: w.engine,
		Delivery: node.Delivery{Outcome: w.outcome, Patience: node.Duration{Duration: patience}}}, each, w.peers()...)
	w.talk = &talk{said: map[string]sendResult{}, heard: map[string]map[string]int{},
		at: map[pairs.Peer]*hubNode{}, traces: newTraces(w.hubs)}
	w.stopTalking, w.stopListening = func() {}, func() {}
	w.leave = sync.OnceFunc(func() {
		var leaving sync.WaitGroup
		for _, p := range w.peers() {
			leaving.Go(p.Leave)
		}
		leaving.Wait()
	})
	t.Cleanup(func() {
		w.stopTalking()
		w.stopListening()
		w.leave()
		w.web.CloseIdleConnections()
	})
	all(t, w.hubs, (*hubNode).start)
	w.phase("the hubs are ready")
	return w
}

func (w *testbed) peers() []pairs.Peer { return append(append([]pairs.Peer(nil), w.from...), w.to...) }

func (w *testbed) phase(what string) {
	w.t.Logf("after %s %s", time.Since(w.begun).Round(100*time.Millisecond), what)
}

// join brings the agents to hubs: the two of each protocol to the hubs that at
// returns.
func (w *testbed) join(at func(i int) (from, to *hubNode)) {
	w.t.Helper()
	for i := range w.from {
		w.at[w.from[i]], w.at[w.to[i]] = at(i)
	}
	for p, h := range w.at {
		if err := p.Join(w.t.Context(), h.place(), false); err != nil {
			w.t.Fatalf("%s joins %s: %v", p.Name(), h.name, err)
		}
	}
}

// begin has every requester talk to every responder. With tells it also has every
// requester only tell the first responder: so some senders always wait for the hub
// alone.
func (w *testbed) begin(tells bool) {
	listening, stopListening := context.WithCancel(context.Background())
	talking, stopTalking := context.WithCancel(context.Background())
	var listeners, talkers sync.WaitGroup
	w.stopListening = func() { stopListening(); listeners.Wait() }
	w.stopTalking = func() { stopTalking(); talkers.Wait() }
	for _, p := range w.to {
		listeners.Go(func() { w.listen(listening, p) })
	}
	for _, f := range w.from {
		for _, g := range w.to {
			talkers.Go(func() { w.speak(talking, f, g) })
		}
		if tells {
			talkers.Go(func() { w.tell(talking, f, w.to[0]) })
		}
	}
}

// end waits until all deliveries have settled, ends the hubs, and compares the traffic
// with the journal.
func (w *testbed) end() {
	t := w.t
	t.Helper()
	w.stopTalking()
	w.phase("quiet")
	for _, h := range w.hubs {
		c := h.operator(w.web)
		open, err := -1, error(nil)
		if !until(t.Context(), func() bool {
			s, e := c.Stats(t.Context())
			open, err = s.Open, e
			return e == nil && s.Open == 0
		}) {
			t.Errorf("%s: %d deliveries are not settled, %v", h.name, open, err)
		}
	}
	w.phase("every delivery is settled")
	w.awaitUnheard(t, w.dead(t, w.hubs[0], w.web))
	w.phase("everything is heard")
	w.leave()
	w.stopListening()
	all(t, w.hubs, (*hubNode).stop)
	w.verify(t, w.engine, w.outcome, w.to)
}
