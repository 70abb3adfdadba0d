package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"sync"
	"time"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/attack"
	"github.com/parley-hub/parley/node"
)

// GuestAttackers are the guests that attack a hub, in a process of their own.
type GuestAttackers struct {
	Hub      string            `json:"hub"`     // base URL of the protocols
	Admin    string            `json:"admin"`   // base URL of the admin API
	Agent    string            `json:"agent"`   // an enrolled agent that is attacked
	Targets  map[string]string `json:"targets"` // uAgents addresses of attacked agents, by name
	Duration time.Duration     `json:"duration"`
}

// attack runs the attackers and gives their report.
func (g *guests) attack(ctx context.Context) (out []GuestAttack, err error) {
	c := &GuestAttackers{Hub: g.at.HTTP, Admin: g.at.Admin, Agent: g.peers[0].Name(), Targets: map[string]string{},
		Duration: g.Duration}
	at, err := node.ReadAnnouncement(g.data)
	if err != nil {
		return nil, err
	}
	operator := &admin.Client{Base: at.Admin, Token: at.Token}
	for a, err := range operator.AllAgents(ctx, admin.AgentFilter{}) {
		if err == nil {
			a, err = operator.Agent(ctx, a.Name, 0)
		}
		if err != nil {
			return nil, err
		}
		c.Targets[a.Name] = a.Addresses["uagents"]
	}
	in, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	var report, errs bytes.Buffer
	p := exec.CommandContext(ctx, g.Attackers[0], g.Attackers[1:]...)
	p.Stdin, p.Stdout, p.Stderr = bytes.NewReader(in), &report, &errs
	if err := p.Run(); err != nil {
		return nil, fmt.Errorf("the attackers failed: %w: %.2000s", err, errs.Bytes())
	}
	return out, json.Unmarshal(report.Bytes(), &out)
}

// Run runs all attacks at once, until the time is over.
func (c *GuestAttackers) Run(ctx context.Context) ([]GuestAttack, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Duration)
	defer cancel()
	var attacks []*attack.Attack
	defer func() {
		for _, a := range attacks {
			a.Close()
		}
	}()
	// Each attack has connections of its own.
	guest := func(target string, clients int, pause time.Duration) (*attack.Attack, error) {
		a, err := attack.New(attack.Config{Hub: c.Hub, Admin: c.Admin, Target: c.Targets[target],
			Clients: clients, Pause: pause})
		if err == nil {
			attacks = append(attacks, a)
		}
		return a, err
	}
	list := guestAttacks(c.Agent)
	out := make([]GuestAttack, len(list))
	var running sync.WaitGroup
	defer running.Wait()
	for i, one := range list {
		a, err := guest(one.target, one.clients, one.pause)
		if err != nil {
			cancel()
			return nil, err
		}
		running.Go(func() {
			out[i] = GuestAttack{Name: one.name, Result: one.run(ctx, a)}
			if out[i].Err != nil {
				out[i].Error = out[i].Err.Error()
			}
		})
	}
	running.Wait()
	return out, nil
}

// guestAttack is one attack in the list.
type guestAttack struct {
	name    string
	target  string // directory name of the attacked agent
	clients int
	pause   time.Duration
	run     func(ctx context.Context, a *attack.Attack) attack.Result
}

// Sizes and pauses of the attacks. The pauses leave the attacks some 10 requests of 1 MB
// and 50 small ones a second each: the load and the hub share the machine.
const (
	large, medium, small = 900_000, 60_000, 20
	content              = 700_000 // makes an envelope of about 930,000 bytes
	largePause           = 100 * time.Millisecond
	smallPause           = 20 * time.Millisecond
	heldConnections      = 200 // of each shape, to the protocol listener
	heldByAdmin          = 50  // of each shape, to the admin listener
	heldClaims           = 400
)

// guestAttacks are all attacks; agent is an enrolled agent that has a stand-in at the
// hub.
func guestAttacks(agent string) []guestAttack {
	const hub = "parley" // the hub's own agent: it has a manifest
	type (
		ctx = context.Context
		by  = *attack.Attack
		res = attack.Result
	)
	connections := func(n int, admin bool) func(ctx, by) res {
		return func(c ctx, a by) res {
			results := make([]res, len(attack.Shapes))
			var all sync.WaitGroup
			for i, s := range attack.Shapes {
				all.Go(func() { results[i] = a.Connections(c, n, s, admin) })
			}
			all.Wait()
			for _, r := range results[1:] {
				results[0].Add(r)
			}
			return results[0]
		}
	}
	refused := func(size int) func(ctx, by) res {
		return func(c ctx, a by) res { return a.RefusedMessages(c, 0, size) }
	}
	return []guestAttack{
		{"registrations, 0.9 MB", hub, 1, largePause, func(c ctx, a by) res { return a.Registrations(c, 0, large) }},
		{"registrations, 60 kB", hub, 1, smallPause, func(c ctx, a by) res { return a.Registrations(c, 0, medium) }},
		{"registrations, wide", hub, 1, smallPause, func(c ctx, a by) res { return a.WideRegistrations(c, 0) }},
		{"batches of 15, 60 kB each", hub, 1, largePause, func(c ctx, a by) res { return a.Batches(c, 0, 15, medium) }},
		{"manifests, 0.9 MB", hub, 1, largePause, func(c ctx, a by) res { return a.Manifests(c, 0, large) }},
		{"manifests, 240 kB", hub, 1, smallPause, func(c ctx, a by) res { return a.Manifests(c, 0, 4*medium) }},
		{"connections, protocols", hub, 1, 0, connections(heldConnections, false)},
		{"connections, admin API", hub, 1, 0, connections(heldByAdmin, true)},
		{"claimed lengths", hub, 1, 0, func(c ctx, a by) res {
			return a.Claims(c, heldClaims, attack.ClaimPaths("/agents/"+agent)...)
		}},
		{"refused messages, 0.7 MB", hub, 1, largePause, refused(content)},
		{"refused messages, small", hub, 2, smallPause, refused(small)},
		{"messages, 0.7 MB", hub, 1, largePause, func(c ctx, a by) res { return a.Messages(c, 0, content) }},
		{"messages to an agent", agent, 2, smallPause, func(c ctx, a by) res { return a.Messages(c, 0, small) }},
		{"misleading manifests", hub, 1, largePause, func(c ctx, a by) res { return a.Mislead(c, 0) }},
		{"mailboxes", hub, 2, smallPause, func(c ctx, a by) res { return a.Mailboxes(c, 0) }},
		{"mailbox registrations", hub, 1, smallPause, func(c ctx, a by) res { return a.MailboxRegistrations(c, 0) }},
		{"messages to mailboxes", hub, 1, largePause, func(c ctx, a by) res { return a.FillMailboxes(c, 0, content) }},
		{"ASP agents", hub, 1, smallPause, func(c ctx, a by) res { return a.ASPAgents(c, 0) }},
		{"web pages", hub, 1, smallPause, func(c ctx, a by) res { return a.Pages(c, 0) }},
		{"repeats", hub, 1, largePause, func(c ctx, a by) res { return a.Repeats(c, 0) }},
	}
}
