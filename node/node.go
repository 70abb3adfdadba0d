package node

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/logbound"
	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/policy"
)

// A Node is a hub with everything that belongs to it.
type Node struct {
	c         Config
	k         checked
	log       *slog.Logger
	journal   *journal.Journal
	keys      *keyring.Ring
	directory *directory.Directory
	hub       *hub.Hub
	guard     *netguard.Guard
	bindings  []*Binding // in the order of Protocols; Hub is nil for one that is switched off
	started   []hub.Service
	admin     *admin.Admin
	index     *index.Index
	name      string // of the hub, in hops
	policy    *policy.Policy
	guests    *policy.Guests
	conns     *conns
	bodies    [3]*bodies    // of enrolled agents, of guests at their addresses, of other guests
	hurry     chan struct{} // closed when the node stops: delayed answers are sent at once
	rootCAs   *x509.CertPool
	certs     *certificates // of the protocol listener, if they come from files
	metrics   *metrics
	alerts    *alerts
	eraser    *eraser
	tracer    *tracer
	tokens    *admin.Tokens
	finder    *callerFinder
	local     string // secret of the token for local commands, until it is announced

	read Config // the configuration at the start, without defaults

	// A reload may change these.
	live    atomic.Pointer[Config]
	proxies atomic.Pointer[[]netip.Prefix]
	reloads reloading

	draining  atomic.Bool
	down      atomic.Bool // a listener failed
	up        atomic.Bool // listeners serve
	stopWatch func()

	mounts                  mounts
	http, adminHTTP         *http.Server
	httpListen, adminListen net.Listener
	begun                   time.Time // opened
	serving                 sync.WaitGroup
	failed                  chan error
	closing                 sync.Once
	closeErr                error
}

// Open takes the data directory and assembles a hub. Close must be called if
// it succeeds.
func Open(ctx context.Context, c Config) (*Node, error) {
	n := &Node{c: c, log: c.Log, failed: make(chan error, 2+len(Protocols)), hurry: make(chan struct{})}
	if err := n.open(ctx); err != nil {
		return nil, errors.Join(err, n.Close(context.WithoutCancel(ctx)))
	}
	return n, nil
}

// takesNothing reports whether an error comes from a journal that cannot record at the
// moment. Log lines for such errors are limited.
func takesNothing(err error) bool {
	return errors.Is(err, journal.ErrBusy) || errors.Is(err, journal.ErrUnknown) || errors.Is(err, journal.ErrNoSpace)
}

func (n *Node) open(ctx context.Context) (err error) {
	if n.k, err = n.c.check(); err != nil {
		return err
	}
	n.read = n.c
	n.live.Store(&n.read)
	if n.log == nil {
		n.log = slog.New(slog.DiscardHandler)
	}
	n.log = logbound.New(n.log, takesNothing)
	n.c.Data = cmp.Or(n.c.Data, DefaultData)
	if n.c.Now == nil {
		n.c.Now = time.Now
	}
	n.begun = n.c.Now()
	n.reloads.at = n.begun
	n.proxies.Store(&n.k.proxies)
	if n.c.Level != nil && n.c.LogLevel != "" {
		n.c.Level.Set(n.k.level)
	}
	n.guard = &netguard.Guard{Allow: n.k.allow, Advice: netguard.HubAdvice}
	n.k.guests.Now = n.c.Now
	n.guests = policy.NewGuests(n.k.guests)
	n.conns = newConns(n.c.Limits.Connections, cmp.Or(n.c.Guests.Connections, 256), n.isProxy)
	n.bodies = [3]*bodies{newBodies(n.k.bodies), newBodies(n.k.guestBody), newBodies(n.k.guestBody)}
	if n.rootCAs, err = n.c.Roots(); err != nil {
		return err
	}
	if n.tracer, err = openTracer(ctx, &n.c); err != nil {
		return err
	}
	if err := n.openJournal(ctx); err != nil {
		return err
	}
	if err := n.openKeys(); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{n.openHub, n.listen, n.openTokens, n.openIndex, n.openProtocols,
		n.openAdmin, n.putAgents, n.registerHubAgent} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// openHub opens directory, policy and hub.
func (n *Node) openHub(ctx context.Context) error {
	secret, err := n.shared(ctx, "conversations", 32)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(append([]byte("hub name\x00"), secret...))
	n.name = cmp.Or(n.c.Name, "hub-"+hex.EncodeToString(sum[:5]))
	n.directory, err = directory.Open(ctx, directory.Options{State: n.journal.State("agents"),
		Agents: n.c.Limits.Agents, Guests: n.c.Guests.Registrations, Now: n.c.Now, Log: n.log})
	if err != nil {
		return err
	}
	if n.policy, err = policy.New(n.policyConfig(&n.c, n.k)); err != nil {
		return err
	}
	n.alerts, n.metrics = newAlerts(n), newMetrics(n)
	n.eraser = newEraser(n)
	d := n.c.Delivery
	n.hub, err = hub.New(hub.Config{ID: n.name, Secret: secret, Journal: n.journal, Directory: n.directory,
		Policy: n.policy, Guests: n.guests, Observer: observer{n},
		Delivery: delivery.Config{AtLeastOnce: d.Outcome == "at-least-once", PerRecipient: d.PerRecipient,
			HandOver: d.HandOver.Duration, Retry: delivery.Retry{Tries: d.Tries, For: d.For.Duration}},
		Sent:    func() bool { return n.live.Load().Journal.Sent },
		Timeout: d.Timeout.Duration, LongTimeout: d.Patience.Duration, Relaxed: n.c.Evidence == "relaxed",
		Refusals: n.c.Limits.Refusals, Now: n.c.Now, Logger: n.log, Progress: n.c.Progress})
	if err != nil {
		return err
	}
	n.hub.SetMappings(n.k.mappings)
	n.stopWatch = n.journal.Watch(func(r *journal.Record) {
		n.metrics.recorded(r)
		n.alerts.recorded(r)
	})
	return nil
}

func rateOf(perSecond float64) policy.Rate {
	if perSecond == 0 {
		return policy.Rate{}
	}
	return policy.Rate{PerSecond: perSecond, Burst: max(1, int(2*perSecond))}
}

// shared gives random bytes that all hubs on one journal share; the first hub draws them.
func (n *Node) shared(ctx context.Context, name string, size int) ([]byte, error) {
	s := n.journal.State("hub")
	for range 3 {
		v, err := s.Get(ctx, name)
		if err == nil {
			return v.Data, nil
		}
		if !errors.Is(err, journal.ErrNotFound) {
			return nil, fmt.Errorf("read the hub's secrets: %w", err)
		}
		b := make([]byte, size)
		if _, err := rand.Read(b); err != nil {
			return nil, err
		}
		if _, err := s.Create(ctx, name, b, time.Time{}); err == nil {
			return b, nil
		} else if !errors.Is(err, journal.ErrExists) {
			return nil, fmt.Errorf("keep the hub's secrets: %w", err)
		}
	}
	return nil, errors.New("the hub's secrets change while they are read")
}

// listen opens the listeners before anything is served, so that a port in use is an early
// error.
func (n *Node) listen(context.Context) error {
	open := func(key, address string) (net.Listener, error) {
		if address == "" {
			return nil, nil
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			return nil, fmt.Errorf("listen.%s = %q: %w; choose another address, or stop the program that uses it", key, address,
				err)
		}
		return n.conns.listen(l), nil
	}
	var err error
	if n.httpListen, err = open("http", n.c.Listen.HTTP); err != nil {
		return err
	}
	if n.adminListen, err = open("admin", n.c.Listen.Admin); err != nil {
		return err
	}
	if n.c.PublicURL == "" && n.httpListen != nil && len(n.c.TLS.ACME) > 0 {
		n.c.PublicURL = "https://" + n.c.TLS.ACME[0]
	}
	if n.c.PublicURL == "" && n.httpListen != nil {
		n.c.PublicURL = localURL(n.httpListen.Addr(), n.c.secure())
	}
	return nil
}

// localURL is the URL of a listener on this machine.
func localURL(a net.Addr, secure bool) string {
	host, port, err := net.SplitHostPort(a.String())
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	scheme := "http"
	if secure {
		scheme = "https"
	}
	return (&url.URL{Scheme: scheme, Host: net.JoinHostPort(host, port)}).String()
}

// openAdmin makes the admin API, if the configuration wants it.
func (n *Node) openAdmin(ctx context.Context) error {
	if !n.c.hasAdmin() {
		return nil
	}
	var protocols []admin.Protocol
	for _, b := range n.bindings {
		protocols = append(protocols, b.Admin)
	}
	var err error
	n.admin, err = admin.New(admin.Config{Hub: n.hub, Index: n.index, Keys: n.keys, Tokens: n.tokens, Now: n.c.Now,
		Logger: n.log, Info: n.info, Ready: n.Ready, Reload: n.Reload, Metrics: n.metrics.handler(),
		Line: n.line, Losses: callersLose, Workbench: n.workbench(),
		Backup: n.backup, Forget: n.eraser.forget, Hosts: n.c.Listen.Hosts, Protocols: protocols})
	if err != nil {
		return err
	}
	return n.openConsole()
}

// Hub is the node's hub, for programs that send messages.
func (n *Node) Hub() *hub.Hub { return n.hub }

// Keys is the node's keyring.
func (n *Node) Keys() *keyring.Ring { return n.keys }

// Admin is the node's admin API, or nil without listen.admin and [Config.AdminAPI].
func (n *Node) Admin() *admin.Admin { return n.admin }

func (n *Node) info() admin.Info {
	i := admin.Info{Hub: n.hub.ID(), Version: n.c.Version, Started: n.begun, PublicURL: n.c.PublicURL,
		Promise: n.journal.Promise(), Data: n.c.Data, Addresses: map[string]string{}, Guests: n.guestBudget(),
		Warnings: n.c.Exposures()}
	var at Addresses
	for _, b := range n.bindings {
		if b.Info != nil {
			b.Info(&i)
		}
		if b.Addresses != nil {
			b.Addresses(&at)
		}
	}
	for name, listener := range map[string]string{"agh": at.AGH, "a2e": at.A2E, "a2a": at.A2A} {
		if _, address, ok := strings.Cut(listener, "://"); ok {
			i.Addresses[name] = address
		}
	}
	for name, l := range map[string]net.Listener{"http": n.httpListen, "admin": n.adminListen} {
		if l != nil {
			i.Addresses[name] = l.Addr().String()
		}
	}
	return i
}
