//go:build cluster

package cluster

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/testcluster"
	"github.com/parley-hub/parley/node"
)

const (
	leftWithin  = 10 * time.Second // until a hub leaves a silent server
	mostLines   = 20               // in a hub's log, about one silent server
	knownWithin = 5 * time.Second  // the docs promise a second on a machine that is not loaded
)

// newProxies gives each hub a proxy of its own to every server.
func newProxies(
	t *testing.T, servers *testcluster.Processes, hubs int,
) (proxies [][]*proxy, each func(hub int, c *node.Config)) {
	t.Helper()
	proxies = make([][]*proxy, hubs)
	for i := range proxies {
		for _, server := range servers.URLs {
			proxies[i] = append(proxies[i], newProxy(t, server))
		}
	}
	return proxies, func(hub int, c *node.Config) {
		var urls []string
		for _, w := range proxies[hub] {
			urls = append(urls, w.url())
		}
		c.Engine.URL = strings.Join(urls, ",")
	}
}

// lose drops packets between a hub and its current server in some directions: the hub
// leaves that server, and writes little about it.
func (w *testbed) lose(h *hubNode, proxies []*proxy, lost ...direction) {
	t := w.t
	t.Helper()
	what := h.name + " loses what it sends"
	switch {
	case len(lost) == 2:
		what = h.name + " and its server lose everything"
	case lost[0] == toHub:
		what = h.name + " loses what it is sent"
	}
	logged := h.lines()
	w.outage(what, []*hubNode{h}, silenceAt, func() error {
		at := inUse(t, proxies)
		others := slices.DeleteFunc(slices.Clone(proxies), func(y *proxy) bool { return y == at })
		before, begun := arrived(others), time.Now()
		at.cut(lost...)
		defer at.mend()
		if !until(t.Context(), func() bool { return arrived(others) > before }) {
			return errors.New("the hub does not leave its server")
		}
		took := time.Since(begun)
		t.Logf("%s: it leaves after %.1f s", what, took.Seconds())
		if took > leftWithin {
			t.Errorf("%s: it leaves after %s", what, took)
		}
		w.everyPairAnswers(t, "while "+what, w.from, w.to)
		return nil
	})
	n := h.lines() - logged
	t.Logf("%s: %d lines in its log", what, n)
	if n > mostLines {
		t.Errorf("%s: %d lines in its log", what, n)
	}
}

// lines counts what the node has written to its log.
func (h *hubNode) lines() int { return strings.Count(h.wrote(1<<20), "\n") }

// arrived is how many bytes have come back through some proxies.
func arrived(proxies []*proxy) (n int64) {
	for _, w := range proxies {
		n += w.arrived.Load()
	}
	return n
}

// inUse is the proxy through which bytes come back.
func inUse(t testing.TB, proxies []*proxy) (at *proxy) {
	t.Helper()
	before := make([]int64, len(proxies))
	for i, w := range proxies {
		before[i] = w.arrived.Load()
	}
	if !until(t.Context(), func() bool {
		i := slices.IndexFunc(proxies, func(w *proxy) bool { return w.arrived.Load() > before[slices.Index(proxies, w)] })
		if i >= 0 {
			at = proxies[i]
		}
		return i >= 0
	}) {
		t.Fatal("the hub talks to no server")
	}
	return at
}

// agentsAreKnown adds, changes and removes an agent at one hub, and measures how soon
// the other hub knows.
func (w *testbed) agentsAreKnown(here, there *hubNode) {
	t := w.t
	t.Helper()
	ctx, name := t.Context(), "box-of-"+here.name
	one, other := here.operator(w.web), there.operator(w.web)
	for _, x := range []struct {
		what string
		do   func() error
		so   func(a admin.Agent, err error) bool
	}{
		{"added", func() error {
			_, err := one.AddAgent(ctx, admin.NewAgent{Name: name, Inbox: true})
			return err
		}, func(_ admin.Agent, err error) bool { return err == nil }},
		{"changed", func() error {
			_, err := one.Pause(ctx, name, true)
			return err
		}, func(a admin.Agent, err error) bool { return err == nil && a.Paused }},
		{"exposed", func() error {
			_, err := one.Expose(ctx, name, []string{"samvad"})
			return err
		}, func(a admin.Agent, err error) bool { return err == nil && slices.Contains(a.Exposed, "samvad") }},
		{"removed", func() error { return one.RemoveAgent(ctx, name) },
			func(_ admin.Agent, err error) bool { return parley.CodeOf(err) == parley.UnknownAgent }},
	} {
		if err := x.do(); err != nil {
			t.Fatalf("%s at %s: %v", x.what, here.name, err)
		}
		begun := time.Now()
		known := false
		for !known && time.Since(begun) < knownWithin { // until looks every 100 ms
			known = x.so(other.Agent(ctx, name, 0))
		}
		took := time.Since(begun)
		t.Logf("%s at %s: known at %s after %d ms", x.what, here.name, there.name, took.Milliseconds())
		if !known {
			t.Errorf("%s at %s: not known at %s within %s", x.what, here.name, there.name, knownWithin)
		}
	}
}
