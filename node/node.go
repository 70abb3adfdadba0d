package node

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/asp"
	a2ebridge "github.com/parley-hub/parley/bridge/a2e"
	aghbridge "github.com/parley-hub/parley/bridge/agh"
	aspbridge "github.com/parley-hub/parley/bridge/asp"
	bridge "github.com/parley-hub/parley/bridge/samvad"
	uagentsbridge "github.com/parley-hub/parley/bridge/uagents"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/disk"
	"github.com/parley-hub/parley/internal/logbound"
	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/journal/jetstream"
	"github.com/parley-hub/parley/journal/sqlite"
	"github.com/parley-hub/parley/journal/store"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/policy"
)

// Logger is *slog.Logger.
type Logger = *slog.Logger

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
	samvad    *bridge.Binding
	a2e       *a2ebridge.Binding
	a2eListen net.Listener
	agh       *aghbridge.Binding
	uagents   *uagentsbridge.Binding
	asp       *aspbridge.Binding
	started   []hub.Service
	admin     *admin.Admin
	index     *index.Index
	name      string // of the hub, in hops
	policy    *policy.Policy
	guests    *policy.Guests
	conns     *conns
	aghConns  int           // of listen.agh, which NATS accepts by itself
	bodies    [3]*bodies    // of enrolled agents, of guests at their addresses, of other guests
	hurry     chan struct{} // closed when the node is to end: no answer waits any more
	rootCAs   *x509.CertPool
	certs     *certificates // of the protocol listener, where they come from files
	metrics   *metrics
	alerts    *alerts
	eraser    *eraser
	tracer    *tracer
	tokens    *admin.Tokens
	local     string // secret of the token for local commands, until it is announced
	startTime time.Time

	read Config // as it was read at the start, without defaults

	// What a reload may change.
	live    atomic.Pointer[Config]
	proxies atomic.Pointer[[]netip.Prefix]
	reloads reloading

	draining  atomic.Bool
	down      atomic.Bool // a listener failed
	up        atomic.Bool // listeners serve
	stopWatch func()

	http, adminHTTP         *http.Server
	httpListen, adminListen net.Listener
	begun                   time.Time
	serving                 sync.WaitGroup
	failed                  chan error
	closing                 sync.Once
	closeErr                error
}

// Open takes the data directory and assembles a hub. Close must be called if
// it succeeds.
func Open(ctx context.Context, c Config) (*Node, error) {
	n := &Node{c: c, log: c.Log, failed: make(chan error, 2), hurry: make(chan struct{})}
	if err := n.open(ctx); err != nil {
		return nil, errors.Join(err, n.Close(context.WithoutCancel(ctx)))
	}
	return n, nil
}

// takesNothing reports whether an error is of a journal that records nothing at
// the moment: what the log says of it again and again is bounded.
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
	if n.c.Data == "" {
		n.c.Data = DefaultData
	}
	if n.c.Now == nil {
		n.c.Now = time.Now
	}
	n.begun = n.c.Now()
	n.startTime = n.c.Now()
	n.reloads.at = n.startTime
	n.proxies.Store(&n.k.proxies)
	if n.c.Level != nil && n.c.LogLevel != "" {
		n.c.Level.Set(n.k.level)
	}
	n.guard = &netguard.Guard{Allow: n.k.allow}
	n.k.guests.Now = n.c.Now
	n.guests = policy.NewGuests(n.k.guests)
	n.conns = newConns(n.c.Limits.Connections, cmp.Or(n.c.Guests.Connections, 256), n.isProxy)
	n.aghConns = n.conns.spare(n.c.Listen.AGH)
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
	for _, step := range []func(context.Context) error{n.openHub, n.listen, n.bind, n.configured, n.itself} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// itself makes the hub an agent too: whoever asks it learns which agents it
// hosts, and its card at the root tells peers the key with which it signs.
func (n *Node) itself(context.Context) error {
	type agent struct {
		Name        string            `json:"name"`
		Description string            `json:"description,omitempty"`
		Addresses   map[string]string `json:"addresses" doc:"by protocol"`
	}
	list := func(_ context.Context, m *parley.Message, _ struct{}) (map[string][]agent, error) {
		out := []agent{}
		for name, at := range n.Addresses().Agents {
			e, ok := n.directory.Agent(name)
			if !ok || at[m.Origin.Protocol] == "" {
				continue // it is not for those of this protocol
			}
			out = append(out, agent{name, e.Description, map[string]string{m.Origin.Protocol: at[m.Origin.Protocol]}})
		}
		slices.SortFunc(out, func(a, b agent) int { return strings.Compare(a.Name, b.Name) })
		return map[string][]agent{"agents": out}, nil
	}
	return n.hub.Handle(parley.Agent{Name: bridge.Root, Title: "Parley", Description: "The hub itself.", Exposed: []string{bridge.Protocol, uagentsbridge.Protocol, aspbridge.Protocol},
		Skills: []parley.SkillSpec{parley.Skill("agents", list, parley.Describe("Agents", "Lists the agents that this hub hosts."))}})
}

// options of connections to an external engine.
// open opens what holds the journal: a file in dir, in memory where dir is empty,
// or the cluster that e names.
func (e *Engine) open(ctx context.Context, dir, name string, now func() time.Time, log *slog.Logger) (store.Store, error) {
	if e.URL == "" {
		return sqlite.Open(ctx, sqlite.Config{Dir: dir, Memory: dir == "", Now: now, Log: log})
	}
	c := jetstream.Config{URL: e.URL, Prefix: e.Prefix, Replicas: e.Replicas, SyncReplicated: e.SyncAlways, Name: name, Now: now, Log: log}
	if e.Credentials != "" {
		c.Options = append(c.Options, nats.UserCredentials(e.Credentials))
	}
	return jetstream.Open(ctx, c)
}

func (n *Node) openJournal(ctx context.Context) error {
	e := n.c.Engine
	jc := journal.Config{Partitions: e.Partitions, MinFree: n.k.minFree, Node: n.c.Name, Now: n.c.Now, Log: n.log}
	if n.c.Progress != nil {
		jc.Progress = func(done, total uint64) { n.c.Progress("reading the journal", done, total) }
	}
	if e.KeyFile != "" {
		key, err := secretFile(e.KeyFile)
		if err != nil {
			return fmt.Errorf("engine.key_file: %w", err)
		}
		jc.Key = key
	}
	dir := ""
	if e.URL == "" && n.k.durability != journal.Memory {
		if err := ours(n.c.Data); err != nil {
			return err
		}
		if err := os.MkdirAll(n.c.Data, 0o700); err != nil {
			return fmt.Errorf("make the data directory: %w", err)
		}
		dir = filepath.Join(n.c.Data, "journal")
		if err := lost(n.c.Data, dir); err != nil {
			return err
		}
	}
	if n.c.FreeSpace != nil {
		jc.FreeSpace = func() (uint64, error) { return n.c.FreeSpace(dir) }
	}
	var err error
	if jc.Store, err = e.open(ctx, dir, n.c.Name, n.c.Now, n.log); err != nil {
		return fmt.Errorf("open the journal: %w", err)
	}
	if n.journal, err = journal.Open(ctx, jc); err != nil {
		return fmt.Errorf("open the journal: %w", err)
	}
	return nil
}

// lost refuses to make a new journal where there was one: the index was made of it.
func lost(data, dir string) error {
	missing := func(path string) bool {
		_, err := os.Stat(path)
		return errors.Is(err, os.ErrNotExist)
	}
	file := filepath.Join(dir, sqlite.FileName)
	if index := filepath.Join(data, "index.db"); missing(file) && !missing(index) && missing(filepath.Join(dir, "journal.json")) {
		return fmt.Errorf("open the journal: %w: %s is missing; restore a backup, or remove %s, too, to begin anew", journal.ErrCorrupt, file, index)
	}
	return nil
}

// ours refuses a directory that holds something else, before it is touched.
func ours(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the data directory: %w", err)
	}
	for _, e := range entries {
		if slices.Contains([]string{"journal", "keys", AddressFile, admin.TokenFile, "parley.toml"}, e.Name()) {
			return nil
		}
	}
	return fmt.Errorf("%w: %s holds %s and nothing of Parley's; choose an empty directory with --data", journal.ErrForeign, dir, entries[0].Name())
}

// secretFile reads a file that only its owner may read.
func secretFile(path string) ([]byte, error) {
	i, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if disk.OthersMay(i) {
		return nil, fmt.Errorf("%s is readable by others: run chmod 600 %s", path, path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return []byte(strings.TrimSpace(string(b))), nil
}

// openHub makes directory, policy and hub.
func (n *Node) openHub(ctx context.Context) error {
	secret, err := n.shared(ctx, "conversations", 32)
	if err != nil {
		return err
	}
	name := n.c.Name
	if name == "" {
		sum := sha256.Sum256(append([]byte("hub name\x00"), secret...))
		name = "hub-" + hex.EncodeToString(sum[:5])
	}
	n.directory, err = directory.Open(ctx, directory.Options{State: n.journal.State("agents"), Agents: n.c.Limits.Agents,
		Guests: n.c.Guests.Registrations, Now: n.c.Now, Log: n.log})
	if err != nil {
		return err
	}
	n.name = name
	if n.policy, err = policy.New(n.policyConfig(&n.c, n.k)); err != nil {
		return err
	}
	n.alerts, n.metrics = newAlerts(n), newMetrics(n)
	n.eraser = newEraser(n)
	d := n.c.Delivery
	n.hub, err = hub.New(hub.Config{ID: name, Secret: secret, Journal: n.journal, Directory: n.directory, Policy: n.policy, Guests: n.guests, Observer: observer{n},
		Delivery: delivery.Config{AtLeastOnce: d.Outcome == "at-least-once", PerRecipient: d.PerRecipient, HandOver: d.HandOver.Duration,
			Retry: delivery.Retry{Tries: d.Tries, For: d.For.Duration}},
		Timeout: d.Timeout.Duration, LongTimeout: d.Patience.Duration, Relaxed: n.c.Evidence == "relaxed", Refusals: n.c.Limits.Refusals, Now: n.c.Now, Logger: n.log})
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

// shared gives random bytes that all hubs on one journal have in common,
// drawn by the first of them.
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

// listen takes the addresses, so that a port in use is known before anything
// is served.
func (n *Node) listen(context.Context) error {
	open := func(key, address string) (net.Listener, error) {
		if address == "" {
			return nil, nil
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			return nil, fmt.Errorf("listen.%s = %q: %w; choose another address, or stop what uses it", key, address, err)
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

// localURL is how this machine reaches a listener.
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

// bind makes the protocols' bindings and the admin API.
func (n *Node) bind(ctx context.Context) error {
	roots := n.rootCAs
	tokens, err := n.c.SAMVAD.tokens()
	if err != nil {
		return err
	}
	n.samvad, err = bridge.New(bridge.Config{Hub: n.hub, Keys: n.keys, Journal: n.journal, Guard: n.guard, RootCAs: roots,
		PublicURL: n.c.PublicURL, Domain: n.c.SAMVAD.Domain, Legacy: n.c.SAMVAD.Legacy, Origins: n.c.Listen.Origins,
		Window: n.c.SAMVAD.Window.Duration, MaxBody: n.k.body, Transport: n.tracer.transport, Now: n.c.Now, Logger: n.log,
		Tokens: tokens, TokensPerDay: n.c.SAMVAD.TokensPerDay, Unscanned: n.c.SAMVAD.Unscanned, Lightweight: n.c.SAMVAD.Lightweight})
	if err != nil {
		return err
	}
	if err := n.hub.Bind(n.samvad); err != nil {
		return err
	}
	if err := n.bindAGH(); err != nil {
		return err
	}
	if err := n.openTokens(ctx); err != nil {
		return err
	}
	if err := n.bindUAgents(roots); err != nil {
		return err
	}
	if err := n.bindASP(ctx); err != nil {
		return err
	}
	if err := n.bindA2E(); err != nil {
		return err
	}
	if n.adminListen == nil {
		return nil
	}
	if err := n.openIndex(ctx); err != nil {
		return err
	}
	n.admin, err = admin.New(admin.Config{Hub: n.hub, Index: n.index, Keys: n.keys, Tokens: n.tokens, Now: n.c.Now, Logger: n.log, Info: n.info,
		Ready: n.Ready, Reload: n.Reload, Metrics: n.metrics.handler(), Backup: n.backup, Forget: n.eraser.forget, Hosts: n.c.Listen.Hosts,
		SenderKeys: n.senderKeys, Transcript: n.transcript, EnrollCard: n.enrollCard, Masked: n.masked})
	return err
}

// masked gives a message as operators and exports see it: without secrets of its
// sender.
func (n *Node) masked(m *parley.Message) *parley.Message {
	switch m.Origin.Protocol {
	case bridge.Protocol:
		return n.samvad.Masked(m)
	case a2ebridge.Protocol:
		return a2ebridge.Masked(m)
	}
	return m
}

// configured puts the agents of the configuration into the directory.
func (n *Node) configured(ctx context.Context) error {
	entries, err := n.entries(&n.c)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := n.putConfigured(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// A configuredAgent is what the configuration says of an agent, checked.
type configuredAgent struct {
	agent parley.Agent
	id    string // its identity in SAMVAD
	kid   string
	key   []byte // its key in SAMVAD; nil: none is enrolled
	calls bridge.Credentials
	card  []byte // in ASP; nil: none is registered
	asp   string // its agent URI
	trust *asp.TrustComponents
}

// entries checks the agents of a configuration and changes nothing.
func (n *Node) entries(c *Config) ([]configuredAgent, error) {
	var out []configuredAgent
	for _, name := range slices.Sorted(maps.Keys(c.Agents)) {
		a := c.Agents[name]
		e := configuredAgent{agent: parley.Agent{Name: name, Title: a.Title, Description: a.Description, Exposed: exposed(c, a.Expose)}}
		if s := a.SAMVAD; s != nil {
			id, err := n.samvad.Identity(s.ID, s.URL)
			if err != nil {
				return nil, fmt.Errorf("agents.%s.samvad: %w", name, err)
			}
			e.agent.Identities, e.id, e.kid = append(e.agent.Identities, id), id.ID, s.KID
			if e.calls, err = s.credentials(); err != nil {
				return nil, fmt.Errorf("agents.%s.samvad.%w", name, err)
			}
			if s.Key != "" {
				if e.key, err = base64.StdEncoding.DecodeString(s.Key); err != nil {
					return nil, fmt.Errorf("agents.%s.samvad.key: not base64: %w", name, err)
				}
			}
		}
		if u := a.UAgents; u != nil {
			id, err := n.uagents.Identity(u.Address, u.Endpoint)
			if err != nil {
				return nil, fmt.Errorf("agents.%s.uagents: %w", name, err)
			}
			e.agent.Identities = append(e.agent.Identities, id)
		}
		if x := a.A2E; x != nil {
			id, err := n.a2eIdentity(name, x)
			if err != nil {
				return nil, fmt.Errorf("agents.%s.a2e: %w", name, err)
			}
			e.agent.Identities = append(e.agent.Identities, id)
		}
		if s := a.ASP; s != nil {
			id, card, err := n.aspIdentity(s)
			if err != nil {
				return nil, fmt.Errorf("agents.%s.asp: %w", name, err)
			}
			e.agent.Identities, e.card, e.asp, e.trust = append(e.agent.Identities, id), card, id.ID, s.Trust.components()
		}
		if g := a.AGH; g != nil {
			id, err := g.identity()
			if err != nil {
				return nil, fmt.Errorf("agents.%s.agh: %w", name, err)
			}
			e.agent.Identities = append(e.agent.Identities, id)
		}
		out = append(out, e)
	}
	return out, nil
}

func (n *Node) putConfigured(ctx context.Context, e configuredAgent) error {
	if e.key != nil {
		if err := n.samvad.Enroll(e.agent.Name, e.id, e.kid, e.key, "configuration"); err != nil {
			return fmt.Errorf("agents.%s.samvad.key: %w", e.agent.Name, err)
		}
	}
	n.samvad.SetCredentials(e.agent.Name, e.calls)
	e.agent.Skills = n.a2eSkills(e.agent)
	if _, err := n.directory.Put(ctx, e.agent, directory.FromConfig); err != nil {
		return fmt.Errorf("agents.%s: %w", e.agent.Name, err)
	}
	if e.card != nil {
		if _, err := n.asp.Enroll(ctx, e.card); err != nil {
			return fmt.Errorf("agents.%s.asp.card: %w", e.agent.Name, err)
		}
	}
	if e.trust != nil {
		if err := n.asp.SetTrust(ctx, e.asp, *e.trust); err != nil {
			return fmt.Errorf("agents.%s.asp.trust: %w", e.agent.Name, err)
		}
	}
	return nil
}

func (n *Node) exposed(own []string) []string { return exposed(n.live.Load(), own) }

func exposed(c *Config, own []string) []string {
	if len(own) == 0 && c.Policy.Expose == "all" {
		return parley.Everywhere
	}
	return own
}

// Handle registers an agent of this process with its skills.
func (n *Node) Handle(a parley.Agent, skills ...parley.SkillSpec) error {
	a.Skills = append(slices.Clone(a.Skills), skills...)
	a.Exposed = n.exposed(a.Exposed)
	return n.hub.Handle(a)
}

// Hub is the node's hub, for programs that send themselves.
func (n *Node) Hub() *hub.Hub { return n.hub }

// Keys is the node's keyring.
func (n *Node) Keys() *keyring.Ring { return n.keys }

// SAMVAD is the node's SAMVAD binding.
func (n *Node) SAMVAD() *bridge.Binding { return n.samvad }

// Admin is the node's admin API, or nil without listen.admin.
func (n *Node) Admin() *admin.Admin { return n.admin }

// Addresses are where a hub can be reached.
type Addresses struct {
	HTTP   string                       `json:"http,omitempty"`   // base URL of the protocols, as peers know it
	Local  string                       `json:"local,omitempty"`  // the same, as this machine reaches it
	Admin  string                       `json:"admin,omitempty"`  // base URL of the admin API
	AGH    string                       `json:"agh,omitempty"`    // NATS for AGH peers
	A2E    string                       `json:"a2e,omitempty"`    // NDJSON over TCP for A2E agents
	Hub    string                       `json:"hub"`              // the hub's own id
	Agents map[string]map[string]string `json:"agents,omitempty"` // name → protocol → address
}

// Addresses tells where the hub and its agents are reached.
func (n *Node) Addresses() Addresses {
	a := Addresses{Hub: n.hub.ID(), Agents: map[string]map[string]string{}}
	if n.httpListen != nil {
		a.HTTP, a.Local = n.c.PublicURL, localURL(n.httpListen.Addr(), n.c.secure())
	}
	if n.adminListen != nil {
		a.Admin = localURL(n.adminListen.Addr(), false)
	}
	if n.a2eListen != nil {
		a.A2E = "tcp://" + n.a2eListen.Addr().String()
	}
	if n.agh != nil && n.agh.Addr() != "" {
		a.AGH = "nats://" + n.agh.Addr()
	}
	for _, e := range n.directory.All() {
		if at := n.hub.Addresses(e); len(at) > 0 {
			a.Agents[e.Name] = at
		}
	}
	return a
}

func (n *Node) info() admin.Info {
	i := admin.Info{Hub: n.hub.ID(), Version: n.c.Version, Started: n.begun, PublicURL: n.c.PublicURL, Promise: n.journal.Promise(), Data: n.c.Data,
		Addresses: map[string]string{}, SAMVAD: n.samvad.Hosting(), Guests: n.guestBudget(), Warnings: n.c.Exposures()}
	for name, l := range map[string]net.Listener{"http": n.httpListen, "admin": n.adminListen} {
		if l != nil {
			i.Addresses[name] = l.Addr().String()
		}
	}
	return i
}

// Start begins to deliver and to serve.
func (n *Node) Start(ctx context.Context) error {
	for _, b := range n.hub.Bindings() {
		if s, ok := b.(hub.Service); ok {
			if err := s.Start(ctx); err != nil {
				return fmt.Errorf("start %s: %w", b.Protocol(), err)
			}
			n.started = append(n.started, s)
		}
	}
	n.hub.Start()
	if n.httpListen != nil {
		n.http = n.server(n.door(n.tracer.receive(n.router()), true))
		n.http.RegisterOnShutdown(n.endA2E)
		if n.asp != nil {
			n.http.RegisterOnShutdown(n.asp.EndStreams)
		}
		var err error
		if n.http.TLSConfig, err = n.tlsConfig(); err != nil {
			return err
		}
		if n.http.TLSConfig != nil {
			n.httpListen = tls.NewListener(n.httpListen, n.http.TLSConfig)
		}
		n.serve(n.http, n.httpListen)
	}
	if n.adminListen != nil {
		n.adminHTTP = n.server(n.door(n.admin, false))
		n.adminHTTP.RegisterOnShutdown(n.admin.EndStreams)
		n.serve(n.adminHTTP, n.adminListen)
	}
	for _, w := range n.c.Exposures() {
		n.log.Warn(w)
	}
	n.alerts.start()
	n.eraser.start()
	n.up.Store(true)
	return n.announce()
}

// router gives each request to the binding whose endpoint it is.
func (n *Node) router() http.Handler {
	var bindings []hub.HTTPBinding
	for _, b := range n.hub.Bindings() {
		if hb, ok := b.(hub.HTTPBinding); ok {
			bindings = append(bindings, hb)
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, b := range bindings {
			if b.Serves(r) {
				b.ServeHTTP(w, r)
				return
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"error":"no such endpoint"}`+"\n")
	})
}

// server bounds what a slow or idle client can hold.
func (n *Node) server(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ConnContext: withConn, ReadHeaderTimeout: cmp.Or(n.c.HeaderTimeout, 10*time.Second),
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10, ErrorLog: slog.NewLogLogger(n.log.Handler(), slog.LevelDebug)}
}

func (n *Node) serve(s *http.Server, l net.Listener) {
	n.serving.Add(1)
	go func() {
		defer n.serving.Done()
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			n.down.Store(true)
			n.failed <- err
		}
	}()
}

// Ready is nil while the hub takes messages: it serves, its journal is in
// order, and it is not being stopped.
func (n *Node) Ready() error {
	switch {
	case n.draining.Load():
		return parley.Fail(parley.Unavailable, nil, "the hub is stopping")
	case !n.up.Load():
		return parley.Fail(parley.Unavailable, nil, "the hub is starting")
	case n.down.Load():
		return parley.Fail(parley.Unavailable, nil, "a listener has failed")
	}
	return n.journal.Healthy()
}

// disk tells how full the journal's disk is; false where it is elsewhere.
func (n *Node) disk() (free, total uint64, ok bool) {
	if n.c.Engine.URL != "" || n.k.durability == journal.Memory {
		return 0, 0, false
	}
	free, total, err := disk.Space(n.c.Data)
	if err != nil {
		return 0, 0, false
	}
	if n.c.FreeSpace != nil {
		if free, err = n.c.FreeSpace(n.c.Data); err != nil {
			return 0, 0, false
		}
	}
	return min(free, total), total, true
}

// progress says in the log, now and then, what the end waits for.
func (n *Node) progress(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(time.Second)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				s := n.hub.Stats()
				n.log.Info("draining", "attempts", s.Delivery.Active, "callers", s.Waiting)
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() { cancel(); <-done }
}

// Run serves until ctx ends, then drains and closes.
func (n *Node) Run(ctx context.Context) error {
	if err := n.Start(ctx); err != nil {
		return errors.Join(err, n.Close(context.WithoutCancel(ctx)))
	}
	return n.Wait(ctx)
}

// Wait waits until ctx ends or a listener fails, then drains and closes.
func (n *Node) Wait(ctx context.Context) error {
	var err error
	select {
	case <-ctx.Done():
	case err = <-n.failed:
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	return errors.Join(err, n.Close(drain))
}

// beforeEnd gives a context that ends before ctx: what is left is for the rest.
func beforeEnd(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, end.Add(-min(time.Until(end)/3, 10*time.Second)))
}

// Close refuses new work and lets agents answer the callers that wait, then stops
// serving, lets what is at work end, and closes the journal. It takes until ctx
// ends at the most: callers that still wait before that are told so.
func (n *Node) Close(ctx context.Context) error {
	n.closing.Do(func() {
		var errs []error
		n.draining.Store(true)
		if n.hub != nil && n.up.Load() {
			s := n.hub.Stats()
			n.log.Info("stopping: nothing new is taken, what is under way may end", "attempts", s.Delivery.Active, "callers", s.Waiting)
			stop := n.progress(ctx)
			defer stop()
			// The listeners stay: an agent may have to come back to answer.
			drain, cancel := beforeEnd(ctx)
			n.hub.Drain(drain)
			cancel()
		}
		close(n.hurry)
		for _, s := range []*http.Server{n.http, n.adminHTTP} {
			if s == nil {
				continue
			}
			if err := s.Shutdown(ctx); err != nil {
				errs = append(errs, err, s.Close())
			}
		}
		for _, l := range []io.Closer{n.httpListen, n.adminListen, n.a2eListen} {
			if l, ok := l.(net.Listener); ok && l != nil {
				if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
					errs = append(errs, err)
				}
			}
		}
		n.serving.Wait()
		if n.eraser != nil {
			n.eraser.close()
		}
		if n.hub != nil {
			errs = append(errs, n.hub.Close(ctx))
		}
		if n.stopWatch != nil {
			n.stopWatch()
			n.alerts.close()
		}
		for _, s := range n.started {
			errs = append(errs, s.Close())
		}
		if n.directory != nil {
			n.directory.Close()
		}
		n.retract() // before another hub can take the directory and announce itself
		if n.tokens != nil {
			n.tokens.Close()
		}
		if n.keys != nil {
			errs = append(errs, n.keys.Close())
		}
		if n.index != nil {
			errs = append(errs, n.index.Close())
		}
		if n.journal != nil {
			errs = append(errs, n.journal.Close())
		}
		if err := n.tracer.close(ctx); err != nil {
			n.log.Warn("the last traces are lost", "error", err)
		}
		n.closeErr = errors.Join(errs...)
	})
	return n.closeErr
}
