package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/internal/bench/floor"
	"github.com/parley-hub/parley/internal/bench/load"
	"github.com/parley-hub/parley/node"
)

// AGHDecode measures how long reading and checking one say of Payload bytes takes, on
// one core: the median of many runs, each so short that other work on the machine
// rarely disturbs it.
func AGHDecode(c Config) (time.Duration, error) {
	c.defaults()
	raw, err := aghSay("peer-0", "work_0", c.Payload).Encode()
	if err != nil {
		return 0, err
	}
	v := agh.Verifier{}
	const runs, rounds = 501, 100
	took := make([]time.Duration, runs)
	for i := range took {
		start := time.Now()
		for range rounds {
			if _, err := v.Verify(context.Background(), raw); err != nil {
				return 0, err
			}
		}
		took[i] = time.Since(start) / rounds
	}
	slices.Sort(took)
	return took[runs/2], nil
}

// AGH measures work that AGH peers give to a Go handler over NATS, from the
// directed say to the trace that completes it, next to a bare NATS request
// and reply with two appends.
func AGH(ctx context.Context, c Config, each func(Row)) error {
	return c.compare(ctx, floor.AGH, c.agh, each)
}

// aghSay gives work in a thread of its sender's own, because the messages of one
// conversation are handled one after the other.
func aghSay(from, work string, size int) *agh.Envelope {
	e := &agh.Envelope{ID: agh.NewID(), WorkspaceID: "acme", Channel: "bench", Surface: agh.SurfaceThread,
		ThreadID: "thread_" + from, From: from, To: "echo", WorkID: work, TS: time.Now().Unix()}
	if err := e.SetContent(&agh.Say{Text: filler(size, 420), Intent: "request"}); err != nil {
		return e // cannot fail for a text of one letter
	}
	return e
}

// aghPeer is a peer that gives work and waits for its end. It shares the hub's cores,
// so it checks nothing that it receives.
type aghPeer struct {
	nc      *nats.Conn
	id      string
	ended   chan string // work ids
	subject string
	size    int // bytes of its messages
}

func (c *Config) agh(ctx context.Context, storage floor.Storage, connections int) (f Figures, err error) {
	users := map[string]node.AGHUser{} // one for each peer, as peers elsewhere have
	for i := range connections {
		id := fmt.Sprintf("peer-%d", i)
		users[id] = node.AGHUser{Token: id, Peers: []string{id}, Workspaces: []string{"acme"}}
	}
	hub := node.Config{Listen: node.Listen{AGH: "127.0.0.1:0"}, Policy: node.Policy{Assurance: "session"},
		AGH: node.AGH{Users: users, Workspaces: map[string]node.AGHWorkspace{"acme": {Channels: []string{"bench"}}}}}
	err = c.withHub(ctx, storage, hub, func(_ string, n *node.Node) error {
		if err := c.addEcho(n, nil); err != nil {
			return err
		}
		if err := n.Start(ctx); err != nil {
			return err
		}
		peers := make([]*aghPeer, connections)
		for i := range peers {
			var err error
			if peers[i], err = joinBench(n.AGH().Addr(), fmt.Sprintf("peer-%d", i), c.Payload); err != nil {
				return err
			}
			defer peers[i].nc.Close()
		}
		stop := c.profiled(fmt.Sprintf("agh-%s-%d", storage, connections))
		r := load.Do(ctx, connections, time.Second/2, c.Duration, func(ctx context.Context, w, i int) error {
			return peers[w].exchange(ctx, i)
		})
		stop()
		f, err = figures(r)
		return err
	})
	return f, err
}

func joinBench(addr, id string, size int) (*aghPeer, error) {
	nc, err := nats.Connect("nats://"+addr, nats.Token(id))
	if err != nil {
		return nil, err
	}
	p := &aghPeer{nc: nc, id: id, ended: make(chan string, 16), size: size}
	own, err := agh.PeerSubject("acme", "bench", id)
	if err != nil {
		return nil, err
	}
	if p.subject, err = agh.PeerSubject("acme", "bench", "echo"); err != nil {
		return nil, err
	}
	terminal, work := []byte(`"state":"completed"`), []byte(`"work_id":"`)
	_, err = nc.Subscribe(own, func(m *nats.Msg) {
		if !bytes.Contains(m.Data, terminal) {
			return
		}
		if _, rest, ok := bytes.Cut(m.Data, work); ok {
			if id, _, ok := bytes.Cut(rest, []byte{'"'}); ok {
				p.ended <- string(id)
			}
		}
	})
	if err != nil {
		return nil, err
	}
	card, err := agh.NewCard(id, "", nil)
	if err != nil {
		return nil, err
	}
	e := &agh.Envelope{ID: agh.NewID(), WorkspaceID: "acme", Channel: "bench", From: id, TS: time.Now().Unix()}
	if err := e.SetContent(&agh.Greet{Card: card}); err != nil {
		return nil, err
	}
	return p, errors.Join(p.publish("agh.network.v0.acme.bench.broadcast", e), nc.Flush())
}

func (p *aghPeer) publish(subject string, e *agh.Envelope) error {
	b, err := e.Encode()
	if err != nil {
		return err
	}
	return p.nc.Publish(subject, b)
}

func (p *aghPeer) exchange(ctx context.Context, i int) error {
	work := "work_" + strconv.Itoa(i)
	if err := p.publish(p.subject, aghSay(p.id, work, p.size)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		select {
		case w := <-p.ended:
			if w == work {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
