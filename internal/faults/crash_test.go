package faults

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
)

// TestCrashServe kills `parley serve` under load, again and again. Its
// recipient is a SAMVAD agent elsewhere, which does not deduplicate: it
// must never see a message twice.
func TestCrashServe(t *testing.T) {
	t.Parallel()
	c := newCrash(t, 1)
	c.args = func(config string) []string {
		return []string{program(t, "cmd/parley"), "serve", "--json", "--log", "warn", "--config", config}
	}
	c.targets = []target{{agent: "remote", skill: "echo"}}
	c.run(t)
	for id, n := range c.remote.seen() {
		if n > 1 {
			t.Errorf("the SAMVAD agent got message %s %d times", id, n)
		}
	}
}

// TestCrashHandlers does the same to a hub with handlers in its own process. After a
// crash they see a message again, with the number of the attempt.
func TestCrashHandlers(t *testing.T) {
	t.Parallel()
	c := newCrash(t, 2)
	c.trace = filepath.Join(c.dir, "trace")
	c.args = func(config string) []string {
		return []string{program(t, "internal/testhub"), "-config", config, "-trace", c.trace}
	}
	c.targets = []target{{agent: "worker", skill: "slow", local: true}, {agent: "worker", skill: "echo", local: true},
		{agent: "remote", skill: "echo"}}
	c.run(t)
}

// target is one skill that the load calls.
type target struct {
	agent, skill string
	local        bool // a handler in the hub's process, called again after a crash
	base, id     string
}

// acked is a request that was acknowledged.
type acked struct {
	*shot
	target target
	status int
	task   string
}

type crash struct {
	dir, data, trace, config string
	args                     func(config string) []string
	targets                  []target
	senders                  []*samvad.Identity
	traces                   []string // one conversation for each sender and target
	remote                   *remote
	client                   *http.Client
	rounds                   int
	seed                     uint64
	rnd                      *rand.Rand

	mu    sync.Mutex
	acked []acked
	sent  int
}

// crashChoices gives the number of kills and the seed of their moments.
func crashChoices(t *testing.T, usual int) (rounds int, seed uint64) {
	t.Helper()
	rounds, seed = usual, rand.Uint64()
	if s := os.Getenv("PARLEY_CRASH_ROUNDS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			t.Fatalf("PARLEY_CRASH_ROUNDS=%q: want a number", s)
		}
		rounds = n
	}
	if s := os.Getenv("PARLEY_CRASH_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("PARLEY_CRASH_SEED=%q: want a number", s)
		}
		seed = n
	}
	t.Logf("PARLEY_CRASH_SEED=%d", seed)
	return rounds, seed
}

func newCrash(t *testing.T, stream uint64) *crash {
	t.Helper()
	c := &crash{dir: t.TempDir(), client: newClient(t)}
	c.rounds, c.seed = crashChoices(t, much(t, 6, 20, 20))
	c.rnd = rand.New(rand.NewPCG(c.seed, stream))
	c.data = filepath.Join(c.dir, "data")
	for i := range 3 {
		c.senders = append(c.senders, newIdentity(t, fmt.Sprintf("agent://sender%d.test", i)))
	}
	for i := range 4 {
		c.traces = append(c.traces, fmt.Sprintf("trace-%d-%d", stream, i))
	}
	jitter := rand.New(rand.NewPCG(c.seed, stream+100))
	var mu sync.Mutex
	c.remote = startRemote(t, func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return time.Duration(jitter.IntN(15)) * time.Millisecond
	})
	port := fixedPort(t)
	agents := enrolled(c.senders...)
	agents["remote"] = c.remote.agent()
	c.config = writeConfig(t, c.dir, node.Config{
		Data: c.data, Name: "hub-under-test",
		Listen:  node.Listen{HTTP: fmt.Sprintf("127.0.0.1:%d", port)},
		Network: node.Network{Allow: []string{"loopback"}},
		Limits:  node.Limits{SenderRate: -1},
		Agents:  agents,
	})
	return c
}

func (c *crash) run(t *testing.T) {
	p := launch(t, c.args(c.config)...)
	for i := range c.targets {
		tg := &c.targets[i]
		tg.base = p.at.HTTP + "/agents/" + tg.agent
		tg.id = cardID(t, c.client, tg.base)
	}
	hub := "agent://" + p.at.HTTP[len("http://"):]
	c.remote.trust(t, c.client, hub, c.targets[0].base)
	checked := 0
	for round := range c.rounds {
		c.load(t, round, time.Duration(30+c.rnd.IntN(500))*time.Millisecond, p)
		start := time.Now()
		p = launch(t, c.args(c.config)...)
		ready := time.Since(start)
		c.mu.Lock()
		fresh := c.acked[checked:]
		checked = len(c.acked)
		c.mu.Unlock()
		c.replay(t, fresh)
		c.probe(t)
		c.tasks(t, fresh)
		if t.Failed() {
			t.Fatalf("round %d of %d failed; the hub said:\n%s", round+1, c.rounds, p.errs)
		}
		t.Logf("round %d: %d acknowledged, ready again after %s", round+1, len(fresh), ready.Round(time.Millisecond))
	}
	p.kill()
	c.verify(t)
	c.settle(t)
}

// settle starts the hub once more, in this process, and waits until it has settled all
// deliveries that the crashes left open.
func (c *crash) settle(t *testing.T) {
	config, err := node.Load(c.config)
	if err != nil {
		t.Fatal(err)
	}
	n, err := node.Open(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	echo := func(_ context.Context, m *parley.Message, r parley.Replier) error { return r.Reply(m.Parts...) }
	if err := n.Handle(parley.Agent{Name: "worker", Exposed: parley.Everywhere}, parley.RawSkill("echo", echo),
		parley.RawSkill("slow", echo)); err != nil {
		t.Fatal(err)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	var open []journal.Delivery
	err = eventually(t.Context(), 30*time.Second, func() (bool, error) {
		open = nil
		for _, d := range n.Hub().Journal().Deliveries(journal.Filter{States: []parley.DeliveryState{parley.Waiting,
			parley.Delivering, parley.Delivered}}) {
			if !d.State.Settled(d.Kind) {
				open = append(open, d)
			}
		}
		return len(open) == 0, nil
	})
	if err != nil {
		t.Errorf("%v; %d deliveries are not settled, e.g. that of %s to %s: %s", err, len(open), open[0].Message,
			open[0].To, open[0].State)
	}
}

// load sends requests of all kinds and kills the hub amid them.
func (c *crash) load(t *testing.T, round int, after time.Duration, p *process) {
	ctx, cancel := context.WithCancel(t.Context())
	var workers sync.WaitGroup
	n := 6
	if round%2 == 1 {
		n = 32 // enough at once for the journal to commit them in groups
	}
	seeds := make([]uint64, n)
	for i := range seeds {
		seeds[i] = c.rnd.Uint64()
	}
	for i := range n {
		workers.Go(func() {
			rnd := rand.New(rand.NewPCG(seeds[i], 0))
			for k := 0; ctx.Err() == nil; k++ {
				tg := c.targets[rnd.IntN(len(c.targets))]
				mode := []samvad.Mode{samvad.ModeSync, samvad.ModeSync, samvad.ModeAsync}[rnd.IntN(3)]
				payload := fmt.Sprintf(`{"n":"%d-%d-%d","ms":%d}`, round, i, k, rnd.IntN(20))
				s, err := sign(c.senders[rnd.IntN(len(c.senders))], tg.base, mode,
					samvad.Call{To: tg.id, Skill: tg.skill, Payload: []byte(payload),
						TraceID: c.traces[rnd.IntN(len(c.traces))]})
				if err != nil {
					t.Error(err)
					return
				}
				a, err := s.post(ctx, c.client)
				c.mu.Lock()
				c.sent++
				if err == nil && (a.status == http.StatusOK || a.status == http.StatusAccepted) {
					c.acked = append(c.acked, acked{s, tg, a.status, a.task()})
				}
				c.mu.Unlock()
				if err != nil {
					return // the hub is gone
				}
				if a.status != http.StatusOK && a.status != http.StatusAccepted &&
					a.code() != samvad.CodeAgentUnavailable {
					t.Errorf("%s %s of %s: %s", mode, tg.skill, tg.agent, a)
					return
				}
			}
		})
	}
	moment := time.NewTimer(after)
	<-moment.C
	p.kill()
	cancel()
	workers.Wait()
	c.client.CloseIdleConnections()
}

// replay sends acknowledged requests again: each must be refused.
func (c *crash) replay(t *testing.T, fresh []acked) {
	for i := range fresh {
		// The most recent acknowledgements matter most.
		if i < len(fresh)-20 && i%50 != 0 {
			continue
		}
		a, err := fresh[i].post(t.Context(), c.client)
		if err != nil {
			t.Error(err)
			return
		}
		if a.status != http.StatusUnauthorized || a.code() != samvad.CodeReplayDetected {
			t.Errorf("request %s was acknowledged with %d before the crash; repeated: %s", fresh[i].nonce,
				fresh[i].status, a)
		}
	}
}

// probe asks a question in each conversation: none may be stuck.
func (c *crash) probe(t *testing.T) {
	var asking sync.WaitGroup
	for i, tg := range c.targets {
		for k, trace := range c.traces {
			asking.Go(func() {
				s, err := sign(c.senders[(i+k)%len(c.senders)], tg.base, samvad.ModeSync,
					samvad.Call{To: tg.id, Skill: tg.skill, Payload: []byte(`{"ms":0}`), TraceID: trace})
				if err != nil {
					t.Error(err)
					return
				}
				a, err := s.post(t.Context(), c.client)
				if err != nil {
					t.Errorf("conversation %s with %s: %v", trace, tg.agent, err)
				} else if a.status != http.StatusOK {
					t.Errorf("conversation %s with %s: %s", trace, tg.agent, a)
				}
			})
		}
	}
	asking.Wait()
}

// tasks waits until the tasks acknowledged before the crash have ended.
func (c *crash) tasks(t *testing.T, fresh []acked) {
	for _, a := range fresh {
		if a.task == "" {
			continue
		}
		var status string
		var code samvad.Code
		err := eventually(t.Context(), 20*time.Second, func() (ok bool, err error) {
			status, code, err = taskState(t.Context(), c.client, a.target.base, a.task)
			return status == "done" || status == "failed", err
		})
		switch {
		case err != nil:
			t.Errorf("task %s of %s is %q after the restart: %v", a.nonce, a.target.agent, status, err)
			return
		case status == "failed" && code != samvad.CodeAgentUnavailable:
			t.Errorf("task %s of %s failed with %s", a.nonce, a.target.agent, code)
		case status == "failed" && a.target.local:
			t.Errorf("task %s of a handler, which recognises repeats, was given up", a.nonce)
		}
	}
}

// verify reads the journal after the last kill.
func (c *crash) verify(t *testing.T) {
	j, err := journal.Open(t.Context(), journal.Config{Store: testjournal.Disk(t, filepath.Join(c.data, "journal")),
		Node: "hub-under-test"})
	if err != nil {
		t.Fatalf("open the journal after the last crash: %v", err)
	}
	defer func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	}()
	requests := map[string][]parley.ID{} // by sender and nonce
	kinds := map[parley.ID]*parley.Message{}
	attempts := map[parley.ID]int{}
	replies := map[parley.ID][]*parley.Message{}
	records := 0
	for r, err := range j.Records(t.Context(), 0, journal.From{}) {
		if err != nil {
			t.Fatal(err)
		}
		records++
		if m := r.Message; m != nil && r.Refused == nil {
			switch {
			case m.Kind == parley.Request && m.Origin.Protocol == "samvad":
				e, err := samvad.Decode(m.Origin.Raw)
				if err != nil {
					t.Fatalf("record %s: %v", r.Position, err)
				}
				key := e.From + " " + e.Nonce
				requests[key] = append(requests[key], m.ID)
				kinds[m.ID] = m
			case m.Kind.Terminal():
				replies[m.InReplyTo] = append(replies[m.InReplyTo], m)
			}
		}
		for _, o := range r.Open {
			attempts[r.Message.ID] = max(attempts[r.Message.ID], o.Attempt)
		}
		for _, s := range r.Steps {
			if s.State == parley.Delivering {
				attempts[s.Message] = max(attempts[s.Message], s.Attempt)
			}
		}
	}
	for key, ids := range requests {
		if len(ids) != 1 {
			t.Errorf("%s is recorded %d times", key, len(ids))
		}
	}
	for id, list := range replies {
		if len(list) != 1 {
			t.Errorf("message %s has %d terminal replies", id, len(list))
		}
	}
	lost, tasks := 0, 0
	for _, a := range c.acked {
		ids := requests[a.from.ID()+" "+a.nonce]
		if len(ids) == 0 {
			lost++
			t.Errorf("%s to %s was acknowledged with %d and is not in the journal", a.nonce, a.target.agent, a.status)
			continue
		}
		list := replies[ids[0]]
		if len(list) == 0 {
			t.Errorf("%s to %s was acknowledged with %d; no reply is recorded", a.nonce, a.target.agent, a.status)
		} else if a.status == http.StatusOK && list[0].Kind != parley.Response {
			t.Errorf("%s to %s was answered with 200; the journal has %v", a.nonce, a.target.agent, list[0].Error)
		}
		if a.task != "" {
			tasks++
		}
	}
	repeated := c.calls(t, kinds, attempts)
	for id, n := range c.remote.seen() {
		m, err := parley.ParseID(id)
		if err != nil || kinds[m] == nil {
			t.Errorf("the SAMVAD agent got message %s, which is not in the journal", id)
		} else if n > attempts[m] {
			t.Errorf("the SAMVAD agent got message %s %d times, %d attempts are recorded", id, n, attempts[m])
		}
	}
	t.Logf("%d rounds: %d sent, %d acknowledged (%d tasks), %d lost, %d records, %d messages handled more than once",
		c.rounds, c.sent, len(c.acked), tasks, lost, records, repeated)
}

// calls compares the handlers' trace with the recorded attempts.
func (c *crash) calls(t *testing.T, kinds map[parley.ID]*parley.Message, attempts map[parley.ID]int) (repeated int) {
	if c.trace == "" {
		return 0
	}
	f, err := os.Open(c.trace)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	calls := map[parley.ID]map[int]int{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var id, skill string
		var attempt int
		if _, err := fmt.Sscan(lines.Text(), &id, &attempt, &skill); err != nil {
			t.Fatalf("trace line %q: %v", lines.Text(), err)
		}
		m, err := parley.ParseID(id)
		if err != nil {
			t.Fatal(err)
		}
		if calls[m] == nil {
			calls[m] = map[int]int{}
		}
		calls[m][attempt]++
	}
	for id, by := range calls {
		if kinds[id] == nil {
			t.Errorf("a handler saw message %s, which is not in the journal", id)
		}
		for attempt, n := range by {
			if n > 1 || attempt > attempts[id] {
				t.Errorf("a handler saw attempt %d of message %s %d times; %d attempts are recorded", attempt, id, n,
					attempts[id])
			}
		}
		if len(by) > 1 {
			repeated++
		}
	}
	if len(calls) == 0 {
		t.Error("the handlers left no trace")
	}
	return repeated
}
