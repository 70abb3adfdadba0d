package node

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	a2ebridge "github.com/parley-hub/parley/bridge/a2e"
	aghbridge "github.com/parley-hub/parley/bridge/agh"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/uagents"
)

// manyAgents is how many agents a hub must bear at least: see docs/scale.md.
const manyAgents = 10_000

// crowd is a hub on disk with all protocols and many agents, which are exposed in all of them. One in ten stands in the
// configuration, the others are stored; one in five speaks each protocol.
type crowd struct {
	tb     testing.TB
	c      Config
	agents int
	keys   []keyring.Enrolled // of the stored agents
	lines  atomic.Int64       // logged above debug
}

func newCrowd(tb testing.TB, agents int) *crowd {
	tb.Helper()
	w := &crowd{tb: tb, agents: agents, c: fiveConfig()}
	w.c.Data, w.c.Durability, w.c.PublicURL = filepath.Join(tb.TempDir(), "data"), "disk", "http://hub.test"
	w.c.Policy.Expose, w.c.Agents = "all", map[string]Agent{}
	w.c.Log = slog.New(&lineCounter{Handler: slog.DiscardHandler, lines: &w.lines})
	return w
}

// lineCounter counts the log's lines above debug.
type lineCounter struct {
	slog.Handler
	lines *atomic.Int64
}

func (h *lineCounter) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }

func (h *lineCounter) Handle(context.Context, slog.Record) error {
	h.lines.Add(1)
	return nil
}

func (h *lineCounter) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h *lineCounter) WithGroup(string) slog.Handler { return h }

// fill stores the agents, as a hub does to which operators added them, and writes the others' tables.
func (w *crowd) fill() {
	w.tb.Helper()
	n := w.open()
	state := n.journal.State("agents")
	var work errgroup.Group
	work.SetLimit(128)
	for i := range w.agents {
		id := w.identity(i)
		if i%10 == 0 {
			continue
		}
		name := fmt.Sprintf("team-%d/agent-%d", i%100, i)
		if id.Protocol == "samvad" {
			w.keys = append(w.keys, keyring.Enrolled{Agent: name, Purpose: "samvad", Algorithm: keyring.Ed25519,
				Public: publicKey(w.tb), Note: id.ID})
		}
		work.Go(func() error {
			b, err := json.Marshal(directory.Entry{Source: directory.FromOperator, Added: time.Unix(int64(i), 0).UTC(),
				Agent: parley.Agent{Name: name, Title: fmt.Sprint("Agent ", i), Exposed: parley.Everywhere,
					Identities: []parley.Identity{id}}})
			if err == nil {
				_, err = state.Create(w.tb.Context(), name, b, time.Time{})
			}
			return err
		})
	}
	if err := work.Wait(); err != nil {
		w.tb.Fatal(err)
	}
	if err := n.keys.EnrollAll(w.keys...); err != nil {
		w.tb.Fatal(err)
	}
	w.close(n)
}

// identity makes the identity of an agent. One in ten gets its table of the configuration, too.
func (w *crowd) identity(i int) (id parley.Identity) {
	w.tb.Helper()
	id.Protocol = []string{"samvad", "uagents", "a2e", "asp", "agh"}[i/10%5]
	a := Agent{}
	switch id.Protocol {
	case "samvad":
		id.ID, id.URL = fmt.Sprintf("agent://agent-%d.example", i), fmt.Sprintf("https://agent-%d.example", i)
		a.SAMVAD = &SAMVADAgent{URL: id.URL, Key: base64.StdEncoding.EncodeToString(publicKey(w.tb))}
	case "uagents":
		u, err := uagents.NewIdentity()
		if err != nil {
			w.tb.Fatal(err)
		}
		id.ID = u.Address()
		a.UAgents = &UAgent{Address: id.ID}
	case "a2e":
		token := fmt.Sprintf("token-%032d", i)
		id.ID = a2ebridge.TokenID(token)
		a.A2E = &A2EAgent{TokenFile: filepath.Join(filepath.Dir(w.c.Data), fmt.Sprint("token-", i))}
		if i%10 == 0 {
			if err := os.WriteFile(a.A2E.TokenFile, []byte(token), 0o600); err != nil {
				w.tb.Fatal(err)
			}
		}
	case "asp":
		id.ID = fmt.Sprintf("agent://example.org/test/agent-%d", i)
		a.ASP = &ASPAgent{ID: id.ID}
	case "agh":
		id = aghbridge.Identity("acme", fmt.Sprintf("peer-%d", i))
		a.AGH = &AGHAgent{Workspace: "acme", Peer: fmt.Sprintf("peer-%d", i)}
	}
	if i%10 == 0 {
		w.c.Agents[fmt.Sprintf("config/agent-%d", i)] = a
	}
	return id
}

func publicKey(tb testing.TB) []byte {
	tb.Helper()
	key, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

func (w *crowd) open() *Node {
	w.tb.Helper()
	n, err := Open(w.tb.Context(), w.c)
	if err != nil {
		w.tb.Fatal(err)
	}
	return n
}

func (w *crowd) start() *Node {
	w.tb.Helper()
	n := w.open()
	if err := n.Start(w.tb.Context()); err != nil {
		w.tb.Fatal(err)
	}
	return n
}

func (w *crowd) close(n *Node) {
	w.tb.Helper()
	if err := n.Close(context.WithoutCancel(w.tb.Context())); err != nil {
		w.tb.Fatal(err)
	}
}

// revision makes a change of the journal's state, and gives its number.
func (w *crowd) revision(n *Node) uint64 {
	w.tb.Helper()
	r, err := n.journal.State("probe").Put(w.tb.Context(), "probe", []byte("x"), time.Time{})
	if err != nil {
		w.tb.Fatal(err)
	}
	return r
}

// changed counts the agents' values in the journal's state that changed since a revision.
func (w *crowd) changed(n *Node, since uint64) (count int) {
	w.tb.Helper()
	for _, bucket := range []string{"agents", "asp-agents", "agh.members", "agh.hostings"} {
		for v, err := range n.journal.State(bucket).Range(w.tb.Context(), "") {
			if err != nil {
				w.tb.Fatal(err)
			}
			if v.Revision > since {
				count++
			}
		}
	}
	return count
}

// bytesInUse is the memory that the program uses after collections.
func bytesInUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // pool entries survive the first collection
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

func allocated() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.TotalAlloc)
}

// A hub with ten thousand agents: stand-ins are made in few writes; the next start makes and writes nothing, and its
// cost grows with the number of agents, not with its square.
func TestTenThousandAgents(t *testing.T) {
	w := newCrowd(t, manyAgents)
	if testing.Short() {
		w.agents = 1000
	}
	n := w.start()
	empty, routines := bytesInUse(), runtime.NumGoroutine()
	w.close(n)
	w.fill()

	n = w.open()
	before, lines := w.revision(n), w.lines.Load()
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	agents := int64(w.agents)
	// Three stand-ins of a stored agent are noted in its entry, and one is registered. The store may also have moved
	// old values.
	if writes := int64(w.revision(n) - before); writes > 6*agents {
		t.Errorf("the first start wrote %d values for %d agents", writes, agents)
	}
	if changed := w.changed(n, before); changed < int(agents)*3/2 {
		t.Errorf("the first start changed only %d values for %d agents", changed, agents)
	}
	if logged := w.lines.Load() - lines; logged > 20 {
		t.Errorf("the first start logged %d lines for %d agents", logged, agents)
	}
	if got := n.Addresses().Count; got != w.agents+2 { // and the hub itself, and a channel of AGH
		t.Errorf("%d agents are announced, of %d", got, agents)
	}
	if at := n.AgentAddresses("team-1/agent-1"); len(at) != len(fiveProtocols)+2 {
		t.Errorf("an agent's addresses: %v", at)
	}
	if at := n.AgentAddresses("config/agent-10"); len(at) != len(fiveProtocols)+2 {
		t.Errorf("the addresses of an agent of the configuration: %v", at)
	}
	file, err := os.Stat(filepath.Join(w.c.Data, AddressFile))
	if err != nil || file.Size() > 4096 {
		t.Errorf("the announcement has %d bytes: %v", file.Size(), err)
	}
	before, lines = w.revision(n), w.lines.Load()
	w.close(n)
	ring, err := os.Stat(filepath.Join(w.c.Data, "keys", keyring.FileName))
	if err != nil {
		t.Fatal(err)
	}

	spent := allocated()
	n = w.start()
	defer func() { w.close(n) }()
	if spent = (allocated() - spent) / agents; spent > 100<<10 {
		t.Errorf("a start allocates %d bytes for each agent", spent)
	}
	if changed := w.changed(n, before); changed > 0 {
		t.Errorf("a start without changes changed %d values of agents", changed)
	}
	if logged := w.lines.Load() - lines; logged > 20 {
		t.Errorf("a start without changes logged %d lines", logged)
	}
	if now, err := os.Stat(filepath.Join(w.c.Data, "keys", keyring.FileName)); err != nil || !os.SameFile(ring, now) {
		t.Errorf("a start without changes replaced the keyring: %v", err)
	}
	within, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	eventually(within, t, func() bool { // those of the start end, the agents have none
		return runtime.NumGoroutine()-routines <= 50
	})
	for f := (admin.AgentFilter{Limit: 1000}); ; { // a listing must leave nothing behind
		page, err := n.Admin().Agents(t.Context(), everything, f)
		if err != nil {
			t.Fatal(err)
		}
		if f.Cursor = page.Next; f.Cursor == "" {
			break
		}
	}
	each := (bytesInUse() - empty) / agents
	t.Logf("%d agents: %d bytes in use and %d allocated at a start for each", agents, each, spent)
	if each > 20<<10 {
		t.Errorf("an agent takes %d bytes of memory", each)
	}
}

// BenchmarkTenThousandAgents reports how long a hub takes from its start until its addresses are announced: with the
// stand-ins to be made for all agents, and at the next start.
//
//	go test ./node -run '^$' -bench TenThousandAgents -benchtime 1x
func BenchmarkTenThousandAgents(b *testing.B) {
	for b.Loop() {
		w := newCrowd(b, manyAgents)
		n := w.start()
		empty := bytesInUse()
		w.close(n)
		w.fill()
		for _, name := range []string{"s/first-start", "s/start"} {
			began := time.Now()
			n := w.start()
			b.ReportMetric(time.Since(began).Seconds(), name)
			b.ReportMetric(float64(bytesInUse()-empty)/manyAgents, "heap-B/agent")
			began = time.Now()
			if _, err := n.Admin().Agents(b.Context(), everything, admin.AgentFilter{Filter: "agent-999*"}); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(time.Since(began).Seconds()*1000, "ms/list")
			w.close(n)
		}
	}
}
