//go:build cluster

package cluster

import (
	"context"
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

// A world is agents who speak with each other through several hubs on one
// cluster of servers.
type world struct {
	*talk
	t        *testing.T
	servers  *testcluster.Processes
	hubs     []*hubNode
	from, to []pairs.Peer // who asks, and who is asked
	engine   node.Engine
	outcome  string // the setting of delivery.outcome
	web      *http.Client
	begun    time.Time

	quiet, deaf, leave func() // end what the agents do; they may be called again
}

// newWorld starts the hubs and makes two agents of each protocol. What a hub's
// configuration has of its own is set by each, which may be nil.
func newWorld(t *testing.T, servers *testcluster.Processes, hubs int, protocols []string,
	patience time.Duration, each func(hub int, c *node.Config),
) *world {
	t.Helper()
	w := &world{
		t: t, servers: servers, begun: time.Now(), web: &http.Client{Transport: &http.Transport{}},
		engine:  node.Engine{URL: strings.Join(servers.URLs, ","), Prefix: "PAIRS", Replicas: 3, Partitions: 4},
		outcome: os.Getenv("PARLEY_CLUSTER_OUTCOME"), // at-least-once: another setting of delivery.outcome
	}
	for _, p := range protocols {
		w.from, w.to = append(w.from, newPeer(t, p, p+"-from")), append(w.to, newPeer(t, p, p+"-to"))
	}
	w.hubs = newNodes(t, hubs, node.Config{Durability: "replicated", Engine: w.engine,
		Delivery: node.Delivery{Outcome: w.outcome, Patience: node.Duration{Duration: patience}}}, each, w.peers()...)
	w.talk = &talk{said: map[string]outcomeOf{}, heard: map[string]map[string]int{},
		at: map[pairs.Peer]*hubNode{}, stories: newStories(w.hubs)}
	w.quiet, w.deaf = func() {}, func() {}
	w.leave = sync.OnceFunc(func() {
		var leaving sync.WaitGroup
		for _, p := range w.peers() {
			leaving.Go(p.Leave)
		}
		leaving.Wait()
	})
	t.Cleanup(func() {
		w.quiet()
		w.deaf()
		w.leave()
		w.web.CloseIdleConnections()
	})
	all(t, w.hubs, (*hubNode).start)
	w.phase("the hubs are ready")
	return w
}

func (w *world) peers() []pairs.Peer { return append(append([]pairs.Peer(nil), w.from...), w.to...) }

func (w *world) phase(what string) {
	w.t.Logf("after %s %s", time.Since(w.begun).Round(100*time.Millisecond), what)
}

// join brings the agents to hubs: those of each protocol to the two that at names.
func (w *world) join(at func(i int) (from, to *hubNode)) {
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

// begin has everybody who asks speak with everybody who is asked, and, where tells
// is set, only tell the first of them something: so there is always somebody who
// waits for the hub and for nobody else.
func (w *world) begin(tells bool) {
	hearing, deaf := context.WithCancel(context.Background())
	talking, quiet := context.WithCancel(context.Background())
	var ears, mouths sync.WaitGroup
	w.deaf = func() { deaf(); ears.Wait() }
	w.quiet = func() { quiet(); mouths.Wait() }
	for _, p := range w.to {
		ears.Go(func() { w.listen(hearing, p) })
	}
	for _, f := range w.from {
		for _, g := range w.to {
			mouths.Go(func() { w.speak(talking, f, g) })
		}
		if tells {
			mouths.Go(func() { w.tell(talking, f, w.to[0]) })
		}
	}
}

// end waits until all is delivered that is to be, ends the hubs, and holds what
// was said and heard against the journal.
func (w *world) end() {
	t := w.t
	t.Helper()
	w.quiet()
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
	w.hearTheRest(t, w.dead(t, w.hubs[0], w.web))
	w.phase("everything is heard")
	w.leave()
	w.deaf()
	all(t, w.hubs, (*hubNode).stop)
	w.verify(t, w.engine, w.outcome, w.to)
}
