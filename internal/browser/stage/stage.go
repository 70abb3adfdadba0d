// Package stage is a hub with agents of all seven protocols, for the tests and pictures of the console.
//
//	s, err := stage.Open(ctx, stage.Config{Data: dir, Begin: begin})
//	err = s.Trip(ctx)               // a conversation of eight agents, in seven protocols and Go
//	ref, err := s.Forge(ctx)        // a request with the wrong key, which the hub refuses
//	link, err := s.Link(ctx, admin.Operate)
//
// The agents know their hub as any agent does: by its address. What they say is the same every time.
package stage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/pairs"
	"github.com/parley-hub/parley/node"
)

// Config of a stage.
type Config struct {
	Data  string    // an empty directory, for the hub and its agents
	Begin time.Time // the hub's clock shows this time when it is opened, and goes on from there; zero: now
	Log   *slog.Logger
}

// A Stage is a running hub with its agents.
type Stage struct {
	Node  *node.Node
	API   *admin.Client // with the role admin
	Clock *Clock

	peers  map[string]pairs.Peer
	shop   *shop
	tokens map[admin.Role]string // of Link
}

// A Clock goes on from a chosen time. It can be moved ahead.
type Clock struct {
	mu    sync.Mutex
	ahead time.Duration
}

// Now is the time.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.ahead)
}

// Move moves the clock ahead.
func (c *Clock) Move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead += d
}

// cast are the agents with a socket of their own, by name.
var cast = map[string]string{"traveller": "samvad", "museum": "samvad", "guide": "uagents", "robot": "a2e",
	"mason": "agh", "baker": "asp", "inn": "a2a", "assistant": "mcp"}

// Open starts the hub, and its agents join it.
func Open(ctx context.Context, c Config) (*Stage, error) {
	s := &Stage{Clock: &Clock{}, peers: map[string]pairs.Peer{}, tokens: map[admin.Role]string{}}
	if !c.Begin.IsZero() {
		s.Clock.ahead = time.Until(c.Begin)
	}
	log := c.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	var secret string
	n := node.Config{Data: filepath.Join(c.Data, "hub"), Name: "hub-bern", Durability: "disk", Version: "0.9.0", Log: log,
		Now: s.Clock.Now, FirstToken: func(token string) { secret = token }}
	var all []pairs.Peer
	for name, protocol := range cast {
		p, err := pairs.New(protocol, name)
		if err != nil {
			return nil, err
		}
		pairs.Scripted(p, lines[name])
		s.peers[name] = p
		all = append(all, p)
	}
	agents := filepath.Join(c.Data, "agents")
	err := os.MkdirAll(agents, 0o700)
	if err == nil {
		err = pairs.Configure(&n, agents, all...)
	}
	if err == nil {
		s.shop, err = newShop(&n)
	}
	if err == nil {
		s.Node, err = node.Open(ctx, n)
	}
	if err == nil {
		err = errors.Join(s.handle(), s.shop.open(s.Node, s.Clock.Now))
	}
	if err == nil {
		err = s.Node.Start(ctx)
	}
	if err == nil {
		s.API = &admin.Client{Base: s.Node.Addresses().Admin, Token: secret}
		err = s.join(ctx, log)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Stage) join(ctx context.Context, log *slog.Logger) error {
	at := pairs.At(s.Node)
	at.Now, at.Log = s.Clock.Now, log
	for name, p := range s.peers {
		if err := p.Join(ctx, at, false); err != nil {
			return fmt.Errorf("%s joins: %w", name, err)
		}
	}
	return nil
}

// Close ends the agents and the hub.
func (s *Stage) Close() error {
	var leaving sync.WaitGroup
	for _, p := range s.peers {
		leaving.Go(p.Leave)
	}
	leaving.Wait()
	if s.shop != nil {
		s.shop.close()
	}
	if s.Node == nil {
		return nil
	}
	return s.Node.Close(context.Background())
}

// Origin is where the console is.
func (s *Stage) Origin() string { return s.Node.Addresses().Admin }

// Link makes a link that lets one browser in with a role: as ops-laptop, with the role operate.
func (s *Stage) Link(ctx context.Context, role admin.Role) (string, error) {
	if s.tokens[role] == "" {
		name := "ops-laptop"
		if role != admin.Operate {
			name = "laptop of the " + string(role)
		}
		t, err := s.API.IssueToken(ctx, admin.NewToken{Name: name, Role: role})
		if err != nil {
			return "", err
		}
		s.tokens[role] = t.Secret
	}
	l, err := (&admin.Client{Base: s.API.Base, Token: s.tokens[role]}).ConsoleLink(ctx)
	return s.API.Base + l.Path, err
}
