//go:build cluster

package cluster

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley/internal/pairs"
	"github.com/parley-hub/parley/internal/testcluster"
)

// How long something is frozen, and the longest silence that may follow.
const (
	frozenFor = 15 * time.Second
	silenceAt = 10 * time.Second
)

// TestTwoHubs has agents talk through two hubs on three servers. A change by an
// operator at one hub is known at the other at once. Then packets between a hub and its
// server are lost, each server and each hub is killed and frozen in turn, and two
// servers are killed, so that no quorum is left, and run again.
func TestTwoHubs(t *testing.T) {
	rounds, protocols := 1, pairs.Protocols
	servers, killedHubs, frozenHubs := []int{0, 1, 2}, []int{0, 1}, []int{0, 1}
	killed := servers
	if s := os.Getenv("PARLEY_CLUSTER_ROUNDS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal("PARLEY_CLUSTER_ROUNDS: ", err)
		}
		rounds = n
	}
	if testing.Short() {
		// TestNodeAndServerKilled kills a hub and a server.
		protocols, killed, killedHubs = []string{"samvad", "uagents", "asp"}, nil, nil
		servers, frozenHubs = servers[2:], frozenHubs[:1]
	}
	r := newRecorder(t)
	cluster := testcluster.StartProcesses(t, 3)
	proxies, each := newProxies(t, cluster, 2)
	w := newTestbed(r, cluster, 2, protocols, 25*time.Second, each)
	w.agentsAreKnown(w.hubs[0], w.hubs[1])
	w.agentsAreKnown(w.hubs[1], w.hubs[0])
	w.phase("agents are known")

	w.join(func(i int) (from, to *hubNode) { return w.hubs[i%2], w.hubs[(i+1)%2] })
	w.begin(true)
	w.everyPairAnswers(r, "at the start", w.from, w.to)
	for range rounds {
		w.lose(w.hubs[0], proxies[0], toServer, toHub)
		w.lose(w.hubs[1], proxies[1], toServer)
		w.lose(w.hubs[0], proxies[0], toHub)
		for _, i := range killed {
			w.outage(fmt.Sprintf("server %d is killed", i), w.hubs, 0, func() error {
				w.servers.Kill(i)
				w.awaitTraffic(r)
				return w.servers.Restart(i)
			})
		}
		for _, i := range servers {
			w.outage(fmt.Sprintf("server %d is frozen", i), w.hubs, silenceAt, func() error {
				return w.whileFrozen(func() error { return w.servers.Freeze(i) },
					func() error { return w.servers.Thaw(i) })
			})
		}
		for _, i := range killedHubs {
			h := w.hubs[i]
			w.outage(h.name+" is killed", w.others(h), 0, func() error {
				h.kill()
				w.awaitTraffic(r)
				return h.start()
			})
		}
		for _, i := range frozenHubs {
			h := w.hubs[i]
			w.outage(h.name+" is frozen", w.others(h), silenceAt,
				func() error { return w.whileFrozen(h.freeze, h.thaw) })
		}
		w.noQuorum()
	}
	w.end()
}

// others are all hubs but one.
func (w *testbed) others(h *hubNode) []*hubNode {
	return slices.DeleteFunc(slices.Clone(w.hubs), func(x *hubNode) bool { return x == h })
}

// whileFrozen lets the agents talk for a while between freeze and thaw.
func (w *testbed) whileFrozen(freeze, thaw func() error) error {
	if err := freeze(); err != nil {
		return err
	}
	pause := time.NewTimer(frozenFor)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-w.t.Context().Done():
	}
	return thaw()
}

// outage runs happen, which causes an outage and ends it, and waits until every pair
// has answers again. It measures how long the senders at some hubs had no
// acknowledgement: it may be most, or anything if most is 0.
func (w *testbed) outage(what string, hubs []*hubNode, most time.Duration, happen func() error) {
	w.t.Helper()
	begun := time.Now()
	if err := happen(); err != nil {
		w.t.Fatalf("%s: %v", what, err)
	}
	w.phase(what + ", and no more")
	w.everyPairAnswers(w.t, "after "+what, w.from, w.to)
	w.phase("all pairs have answered")
	for _, h := range hubs {
		all, one, pair := w.silence(h, begun, time.Now())
		w.t.Logf("%s: silence at %s for %.1f s, of %s for %.1f s", what, h.name, all.Seconds(), pair, one.Seconds())
		if most > 0 && all > most {
			w.t.Errorf("%s: the agents at %s had no acknowledgement for %s", what, h.name, all)
		}
	}
}

// silence is the longest time between two acknowledgements at a hub, and that of one
// pair there.
func (x *talk) silence(h *hubNode, begun, ended time.Time) (all, one time.Duration, pair string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	last, longest := map[string]time.Time{}, map[string]time.Duration{}
	took := func(of string, when time.Time) {
		since := last[of]
		if since.Before(begun) {
			since = begun
		}
		longest[of], last[of] = max(longest[of], when.Sub(since)), when
	}
	for _, a := range x.acks {
		if a.hub == h && a.when.After(begun) {
			took("", a.when)
			took(a.pair, a.when)
		}
	}
	took("", ended)
	all = longest[""]
	delete(longest, "")
	for of, d := range longest {
		if d > one {
			one, pair = d, of
		}
	}
	return all, one, pair
}

// retryLater matches the errors by which a hub says that it cannot record now.
var retryLater = regexp.MustCompile(`(?i)unavailable|busy`)

// noQuorum kills two of three servers: until they run again, nothing is acknowledged,
// and each sender gets an error that says so.
func (w *testbed) noQuorum() {
	t := w.t
	t.Helper()
	w.servers.Kill(0)
	w.servers.Kill(1)
	lost := time.Now()
	w.phase("no quorum is left")
	var missing []string
	if !until(t.Context(), func() bool {
		missing = nil
		for _, f := range w.from {
			if _, told := w.since(f, lost); len(told) == 0 {
				missing = append(missing, f.Name())
			}
		}
		return len(missing) == 0
	}) {
		t.Errorf("without a quorum, no error told these senders to come back: %v", missing)
	}
	for _, f := range w.from {
		acknowledged, told := w.since(f, lost)
		for _, text := range acknowledged {
			t.Errorf("%q was acknowledged without a quorum", text)
		}
		for text, err := range told {
			if !retryLater.MatchString(err.Error()) {
				t.Errorf("%q: its sender is not told to come back: %v", text, err)
			}
		}
	}
	w.phase("all senders are told to come back")
	w.outage("the quorum is gone", w.hubs, 0, func() error {
		all(t, []int{0, 1}, w.servers.Restart)
		return nil
	})
}

// since gives, of the messages that an agent began to send after a time, the
// acknowledged ones and the errors of the others.
func (x *talk) since(from pairs.Peer, begun time.Time) (acknowledged []string, told map[string]error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	told = map[string]error{}
	for text, o := range x.said {
		switch {
		case strings.Fields(text)[1] != from.Name() || o.begun.Before(begun):
		case o.acknowledged:
			acknowledged = append(acknowledged, text)
		case o.took < patience: // else its sender left before an answer
			told[text] = o.err
		}
	}
	return acknowledged, told
}
