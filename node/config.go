package node

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/policy"
)

// Config is the configuration of a hub, from a file (see [Load]) or from the program that
// embeds it. The zero value is a hub on disk in "parley-data" that listens nowhere.
//
// The zero value of a field means the value in its tag default; without that tag, what its
// comment says, and false means that it is not so. Durations are written "30s" and sizes
// "8MiB". The tag toml is the name in the file, by which comments refer to other fields;
// `parley config describe` prints the comments.
type Config struct {
	// data directory; versions with another data format cannot read it
	Data string `toml:"data" default:"\"parley-data\""`
	// name of this hub in the hops of messages; default: made at first start
	Name string `toml:"name"`
	// base URL under which agents reach this hub, behind a proxy too; it is in cards, callbacks and identities;
	// default: the first name of tls.acme, else the address of listen.http. CANNOT be changed without telling
	// every peer
	PublicURL string `toml:"public_url"`
	// what "accepted" promises: disk | replicated | memory
	Durability string `toml:"durability" default:"\"disk\""`
	// strict: a reply is recorded before it is sent; relaxed: it is sent at once
	Evidence string `toml:"evidence" default:"\"strict\""`
	// addresses of the listeners; the zero value listens nowhere
	Listen Listen `toml:"listen"`
	// storage of the journal; the zero value is a file in the data directory
	Engine Engine `toml:"engine"`
	// what the journal keeps besides messages
	Journal Journaling `toml:"journal"`
	// certificates; the zero value serves without TLS
	TLS TLS `toml:"tls"`
	// who callers are at protocols whose messages are not signed; the zero value knows the hub's own tokens alone
	Callers Callers `toml:"callers"`
	// addresses that the hub may call; the zero value allows public ones only
	Network Network `toml:"network"`
	// which messages are admitted
	Policy Policy `toml:"policy"`
	// least assurance of messages to some agents; the first that fits counts, policy.assurance for all others;
	// default: none
	Require []Require `toml:"require"`
	// how often agents may call others; the first that fits counts; default: none
	Limit []Pair `toml:"limit"`
	// who may call whom; without any rule every agent may call those that are exposed to it
	Allow []Allow `toml:"allow"`
	// jq programs for content that does not fit a skill; see docs/translation.md; default: none
	Map []Map `toml:"map"`
	// attempts, and how long callers wait
	Delivery Delivery `toml:"delivery"`
	// what agents may use at the most
	Limits Limits `toml:"limits"`
	// budget of all guests: callers and agents for whom no operator, configuration or key vouches
	Guests Guests `toml:"guests"`
	// the protocol SAMVAD
	SAMVAD SAMVAD `toml:"samvad"`
	// the protocol A2E
	A2E A2E `toml:"a2e"`
	// the protocol A2A
	A2A A2A `toml:"a2a"`
	// the protocol MCP
	MCP MCP `toml:"mcp"`
	// the protocol AGH Network; the zero value does not speak it
	AGH AGH `toml:"agh"`
	// the protocol of uAgents
	UAgents UAgents `toml:"uagents"`
	// the protocol ASP
	ASP ASP `toml:"asp"`
	// tables of protocols without a field here, see [Section]; nil: none
	Sections map[string]any `toml:"-"`
	// how an operator learns of problems; the zero value writes them to the log
	Alerts Alerts `toml:"alerts"`
	// how long content is kept; the zero value keeps all for ever
	Retention Retention `toml:"retention"`
	// debug | info | warn | error
	LogLevel string `toml:"log" default:"\"info\"" reload:"yes"`

	// agents by their directory names
	Agents map[string]Agent `toml:"agents"`

	// The following fields are for programs, not for the file.

	// version of the program, which the admin API shows; may be empty
	Version string `toml:"-"`
	// the clock; nil: time.Now
	Now func() time.Time `toml:"-"`
	// where the hub logs; nil: nowhere
	Log *slog.Logger `toml:"-"`
	// level of Log, which Reload sets to LogLevel; nil: the level is fixed
	Level *slog.LevelVar    `toml:"-"`
	lines fileLines         // of the file; [Load] sets them
	spans sdk.SpanProcessor // takes the traces in place of the exporter
	// reads the configuration again, for Reload; nil: there is no file
	Read func() (Config, error) `toml:"-"`
	// encrypts the private keys; nil: their files are protected by their mode alone, and a cluster refuses to start
	Passphrase []byte `toml:"-"`
	// cost of the passphrase, see [keyring.Options.WorkFactor]; 0: its default
	PassphraseWork int `toml:"-"`
	// gives the free bytes of the disk that holds a directory; nil: the system's, see journal.Config
	FreeSpace func(dir string) (uint64, error) `toml:"-"`
	// is told of long work at the start: what, and how much of it is done; nil: nobody is
	Progress func(what string, done, total uint64) `toml:"-"`
	// gets the secret of the first admin token, once; nil: nobody learns it
	FirstToken func(secret string) `toml:"-"`

	// opens the admin API also without listen.admin, for [Node.AdminHandler]
	AdminAPI bool `toml:"-"`

	// how long a client may take to send the header of a request; 0: 10 s
	HeaderTimeout time.Duration `toml:"-"`
	// and its body; 0: 1 min
	BodyTimeout time.Duration `toml:"-"`
}

// hasAdmin reports whether the hub has an admin API.
func (c *Config) hasAdmin() bool { return c.Listen.Admin != "" || c.AdminAPI }

// Listen holds the addresses of the listeners. "" switches a listener off.
type Listen struct {
	// protocols over HTTP, e.g. ":8080"; "" switches it off, but without a configuration file it is
	// 127.0.0.1:8080
	HTTP string `toml:"http"`
	// admin API and metrics; keep it on a loopback or private address, e.g. "127.0.0.1:9090"; "" switches it
	// off, but without a configuration file it is 127.0.0.1:9090
	Admin string `toml:"admin"`
	// NATS for AGH peers, e.g. "127.0.0.1:4222"; agh.users lists those that may connect; "" switches it off
	AGH string `toml:"agh"`
	// web origins whose pages may call the protocols from a browser, e.g. "https://app.example"; "*": any;
	// pages of other origins are refused. Default: none but pages of the hub's own names
	Origins []string `toml:"origins"`
	// host names besides localhost and addresses to which the admin listener answers, e.g. that of its
	// container; default: none
	Hosts []string `toml:"admin_hosts"`
}

// Engine chooses the storage of the journal.
type Engine struct {
	// an external NATS cluster instead of the embedded engine, e.g. "nats://n1:4222,nats://n2:4222"; default:
	// the embedded engine
	URL string `toml:"url"`
	// NATS credentials file; default: none
	Credentials string `toml:"credentials"`
	// prefix of the names of streams and subjects; the same for all hubs on one journal. CANNOT be changed
	// later
	Prefix string `toml:"prefix" default:"\"PARLEY\""`
	// copies of each stream on an external cluster: 1, 3 or 5; default: 3, or 1 where the server is alone
	Replicas int `toml:"replicas"`
	// every external server has sync_interval: always
	SyncAlways bool `toml:"sync_always"`
	// partitions of the journal, 1 to 256, each with its own order and dispatch; default: 1, on an external
	// cluster 8. CANNOT be changed once the journal is made
	Partitions int `toml:"partitions"`
	// file with the key that encrypts the embedded engine's data, 16 bytes or more, mode 0600; default: the
	// data is not encrypted. WITHOUT IT THE DATA IS LOST
	KeyFile string `toml:"key_file"`
	// free disk space below which the hub accepts no messages, e.g. "1GiB"; default: 256 MiB, or a tenth of a
	// small file system
	MinFree string `toml:"min_free"`
}

// TLS of the protocol listener, and the authorities that outbound calls trust.
type TLS struct {
	// certificate chain file (PEM) of the protocol listener; read again when it changes; default: no TLS, or
	// that of tls.acme
	Cert string `toml:"cert" reload:"yes"`
	// its private key file (PEM), mode 0600
	Key string `toml:"key" reload:"yes"`
	// host names for which certificates are fetched by ACME (TLS-ALPN-01: listen.http must be reached at port
	// 443); default: none; kept in the data directory. USING IT ACCEPTS THE AUTHORITY'S TERMS
	ACME []string `toml:"acme"`
	// e-mail address for the ACME authority; default: none
	Email string `toml:"acme_email"`
	// directory URL of the ACME authority
	Directory string `toml:"acme_directory" default:"\"https://acme-v02.api.letsencrypt.org/directory\""`
	// further authorities (PEM files) that outbound calls trust; default: the system's alone
	CA []string `toml:"ca"`
	// authorities (PEM files) of client certificates: the protocol listener asks for one, and callers.certificate
	// says whose it is; default: it asks for none
	ClientCA []string `toml:"client_ca"`
	// address prefixes of proxies before listen.http: the hub believes X-Forwarded-For and X-Forwarded-Proto
	// only from them; default: none
	Proxy []string `toml:"proxy" reload:"yes"`
}

// Network bounds the addresses that the hub may call.
type Network struct {
	// private addresses that the hub may call: prefixes, addresses, or "loopback"; default: none, so only
	// public ones
	Allow []string `toml:"allow" reload:"yes"`
}

// Policy of admission.
type Policy struct {
	// least assurance of messages: signed | session | unsigned
	Assurance string `toml:"assurance" default:"\"signed\"" reload:"yes"`
	// explicit: an agent appears in other protocols only where exposed; all: everywhere
	Expose string `toml:"expose" default:"\"explicit\"" reload:"yes"`
}

// Allow lets From call To.
type Allow struct {
	// pattern over directory names: * within a segment, ** for all the rest
	From string `toml:"from" reload:"yes"`
	// patterns; agent or agent.skill
	To []string `toml:"to" reload:"yes"`
}

// Require sets the least assurance of messages to some agents.
type Require struct {
	// patterns over directory names, as in allow.from
	To []string `toml:"to" reload:"yes"`
	// signed | session | unsigned
	Assurance string `toml:"assurance" reload:"yes"`
}

// Pair limits how often each agent that matches From may call each agent that matches To.
type Pair struct {
	// pattern over directory names of senders
	From string `toml:"from" reload:"yes"`
	// patterns; agent or agent.skill. Each pair of agents has its own count
	To []string `toml:"to" reload:"yes"`
	// messages a second, e.g. 0.1 for one in ten seconds
	Rate float64 `toml:"rate" reload:"yes"`
	// how many at once; default: twice the rate, at least 1
	Burst int `toml:"burst" reload:"yes"`
}

// Journaling says what the journal keeps besides messages.
type Journaling struct {
	// keep the bytes of each attempt as they left the hub, the first 64 KiB, with secrets masked; without it their
	// size and digest are kept. It about doubles what the journal keeps of a message that goes to an agent elsewhere
	Sent bool `toml:"sent" reload:"yes"`
}

// Delivery to agents.
type Delivery struct {
	// after an attempt of unknown outcome, for agents that do not deduplicate: at-most-once | at-least-once
	Outcome string `toml:"outcome" default:"\"at-most-once\""`
	// attempts before a message becomes a dead letter
	Tries int `toml:"tries" default:"12"`
	// how long the hub tries to deliver a message, at most
	For Duration `toml:"for" default:"\"24h\""`
	// how many conversations are delivered to one remote agent at once
	PerRecipient int `toml:"per_recipient" default:"64"`
	// how long a caller waits for its answer if it names no deadline
	Timeout Duration `toml:"timeout" default:"\"30s\""`
	// for hubs on one journal: how long a partition that moves to another hub waits for attempts in flight;
	// later ones end after it has moved
	HandOver Duration `toml:"hand_over" default:"\"5s\""`
	// how long a request without a deadline stays open if its sender waits on no connection: tasks, AGH work,
	// questions in ASP sessions; then the hub tells the sender that no answer came
	Patience Duration `toml:"patience" default:"\"2h\""`
}

// Limits bound the resources that agents can use.
type Limits struct {
	// messages a second of one verified sender; below zero: no limit
	SenderRate float64 `toml:"sender_rate" default:"1000.0" reload:"yes"`
	// messages a second of one unsigned sender
	UnknownRate float64 `toml:"unknown_rate" default:"20.0" reload:"yes"`
	// largest message, e.g. "4MiB"; default: 1 MiB for a request over HTTP, 8 MiB for the content of a message.
	// An envelope of uAgents may have a third more
	Body string `toml:"body"`
	// agents in the directory, at most
	Agents int `toml:"agents" default:"100000"`
	// refusals kept for parley refused
	Refusals int `toml:"refusals" default:"4096"`
	// connections of all listeners at once; default and maximum: the process's limit of file descriptors, less
	// a reserve for the journal
	Connections int `toml:"connections"`
	// bytes of large request bodies of enrolled agents in memory at once; more wait in their connections
	Bodies string `toml:"bodies" default:"\"256MiB\""`
}

// Guests is the budget that all guests share.
type Guests struct {
	// bytes that registrations, manifests and mailboxes of guests may hold in memory
	Memory string `toml:"memory" default:"\"16MiB\""`
	// bytes that may be recorded for guests in 24 hours; at once the share of 12 minutes
	Disk string `toml:"disk" default:"\"1GiB\""`
	// agents that registered themselves
	Registrations int `toml:"registrations" default:"4096"`
	// mailboxes of agents that registered themselves
	Mailboxes int `toml:"mailboxes" default:"1024"`
	// connections on which no enrolled agent has proved itself, half of them from one address; at most half of
	// limits.connections
	Connections int `toml:"connections" default:"256"`
	// bytes of large request bodies of guests in memory at once, or one body; more wait in their connections.
	// Guests at addresses of enrolled agents have as much of their own
	Bodies string `toml:"bodies" default:"\"1MiB\""`
	// requests a second from one address, twice as many at once; the answers to more wait, up to 10 s
	Requests float64 `toml:"requests" default:"100.0"`
	// part of the budget that one address, or /64 of IPv6, may use when the budget is scarce
	Share float64 `toml:"share" default:"0.25"`
}

// Alerts tell an operator of problems.
type Alerts struct {
	// URL to which alerts are posted as JSON; a private address needs network.allow. The log has them in any
	// case; default: to none
	Webhook string `toml:"webhook" reload:"yes"`
	// file with a secret for the header Authorization: Bearer of these requests; mode 0600; default: no such
	// header
	Token string `toml:"token_file" reload:"yes"`
	// alert when an agent has failed for so long
	Broken Duration `toml:"broken_after" default:"\"3m\"" reload:"yes"`
	// alert when this part of the disk is in use
	Disk float64 `toml:"disk" default:"0.8" reload:"yes"`
	// alert so long before a key or certificate ends
	Expiry Duration `toml:"key_expiry" default:"\"168h\"" reload:"yes"`
	// send the same alert about the same thing at most once in this time
	Every Duration `toml:"every" default:"\"1h\"" reload:"yes"`
}

// Agent of the configuration file.
type Agent struct {
	// its name for people; default: its directory name
	Title string `toml:"title" reload:"yes"`
	// what it does, for people; may be empty
	Description string `toml:"description" reload:"yes"`
	// protocols in which the hub stands in for it, or "all"; default: none, or all if policy.expose is "all"
	Expose []string `toml:"expose" reload:"yes"`
	// what the journal keeps of the content of its messages an hour after they are settled: full | headers | digest;
	// see docs/operations.md
	Record string `toml:"record" default:"\"full\"" reload:"yes"`
	// it reads its messages at the hub (parley listen)
	Inbox bool `toml:"inbox" reload:"yes"`
	// its skills; without any, those that it declares itself
	Skills []AgentSkill `toml:"skills"`
	// how messages to it are retried
	Delivery AgentDelivery `toml:"delivery"`
	// its SAMVAD identity
	SAMVAD *SAMVADAgent `toml:"samvad"`
	// its AGH identity
	AGH *AGHAgent `toml:"agh"`
	// its A2E token, or the A2E host that it is
	A2E *A2EAgent `toml:"a2e"`
	// its URL in A2A, and how callers reach it there
	A2A *A2AAgent `toml:"a2a"`
	// its MCP server, or how it calls the hub over MCP
	MCP *MCPAgent `toml:"mcp"`
	// its uAgents identity
	UAgents *UAgent `toml:"uagents"`
	// its ASP identity
	ASP      *ASPAgent      `toml:"asp"`
	Sections map[string]any `toml:"-"` // tables of protocols without a field here, see [AgentSection]
}

// AgentDelivery says how messages to one agent are retried.
type AgentDelivery struct {
	// attempts before a message to it becomes a dead letter; default: delivery.tries
	Tries int `toml:"tries" reload:"yes"`
	// how long the hub tries to deliver a message to it, at most; default: delivery.for
	Patience Duration `toml:"patience" reload:"yes"`
	// true: a message that cannot be delivered holds up the later ones of its conversation; false: they overtake it
	Ordered *bool `toml:"ordered" default:"true" reload:"yes"`
}

func (d AgentDelivery) retries() parley.Retries {
	return parley.Retries{Tries: d.Tries, Patience: d.Patience.Duration, Unordered: d.Ordered != nil && !*d.Ordered}
}

// Duration is a time.Duration that is written "30s".
type Duration struct{ time.Duration }

// UnmarshalText reads the form of time.ParseDuration.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	d.Duration = v
	return err
}

// MarshalText writes the form of time.Duration.String.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// checked are the parsed strings of a Config.
type checked struct {
	durability journal.Durability
	assurance  parley.Assurance
	allow      []netip.Prefix
	minFree    uint64
	body       int64
	rules      []policy.Rule
	mappings   []hub.Mapping
	least      []policy.Least
	limits     []policy.Limit
	proxies    []netip.Prefix
	level      slog.Level
	bodies     int64
	guests     policy.GuestConfig
	guestBody  int64
}

func (c *Config) check() (checked, error) {
	var k checked
	var err error
	if err := cmp.Or(
		oneOf("durability", c.Durability, "disk", "replicated", "memory"),
		oneOf("evidence", c.Evidence, "strict", "relaxed"),
		oneOf("policy.assurance", c.Policy.Assurance, "signed", "session", "unsigned"),
		oneOf("policy.expose", c.Policy.Expose, "explicit", "all"),
		oneOf("delivery.outcome", c.Delivery.Outcome, "at-most-once", "at-least-once"),
	); err != nil {
		return k, err
	}
	k.durability = journal.Durability(c.Durability)
	switch {
	case k.durability == "" && c.Engine.URL != "":
		k.durability = journal.Replicated
	case k.durability == "":
		k.durability = journal.Disk
	case k.durability == journal.Replicated && c.Engine.URL == "":
		return k, fmt.Errorf("durability = %q needs engine.url, a NATS cluster", c.Durability)
	case k.durability == journal.Memory && c.Engine.URL != "":
		return k, fmt.Errorf("durability = %q and engine.url exclude each other", c.Durability)
	}
	k.assurance = parley.Signed
	if c.Policy.Assurance != "" {
		if err := k.assurance.UnmarshalText([]byte(c.Policy.Assurance)); err != nil {
			return k, err
		}
	}
	if u := httpURL(c.PublicURL); c.PublicURL != "" && (u == nil || u.RawQuery != "" || u.User != nil) {
		return k, fmt.Errorf("public_url = %q: want http(s)://host[:port][/path]", c.PublicURL)
	}
	for _, l := range c.listeners() {
		if _, _, err := net.SplitHostPort(l.Address); l.Address != "" && err != nil {
			return k, fmt.Errorf("%s = %q: want host:port, or :port for all addresses of this machine", l.Key,
				l.Address)
		}
	}
	if c.Engine.Partitions < 0 || c.Engine.Partitions > 256 {
		return k, fmt.Errorf("engine.partitions = %d: want 1 to 256", c.Engine.Partitions)
	}
	if k.allow, err = c.Allowed(); err != nil {
		return k, err
	}
	if k.minFree, err = parseSize(c.Engine.MinFree); err != nil {
		return k, fmt.Errorf("engine.min_free: %w", err)
	}
	if k.body, err = sizeOr("limits.body", c.Limits.Body, 0); err != nil {
		return k, err
	}
	if k.bodies, err = sizeOr("limits.bodies", c.Limits.Bodies, 256<<20); err != nil {
		return k, err
	}
	if err := k.checkGuests(&c.Guests); err != nil {
		return k, err
	}
	for _, o := range c.Listen.Origins {
		if u, err := url.Parse(o); o != "*" && (err != nil || u.Scheme+"://"+u.Host != o) {
			return k, fmt.Errorf("listen.origins: %q: want scheme://host[:port], or \"*\"", o)
		}
	}
	if c.Limits.Connections < 0 {
		return k, fmt.Errorf("limits.connections = %d: want a number above zero", c.Limits.Connections)
	}
	if (c.TLS.Cert == "") != (c.TLS.Key == "") {
		return k, errors.New("tls.cert and tls.key go together")
	}
	if c.TLS.Cert != "" && len(c.TLS.ACME) > 0 {
		return k, errors.New("tls.cert and tls.acme exclude each other")
	}
	if k.proxies, err = netguard.ParseAllow(c.TLS.Proxy); err != nil {
		return k, fmt.Errorf("tls.proxy: %w", err)
	}
	if err := c.checkCallers(); err != nil {
		return k, err
	}
	if err := c.Alerts.check(); err != nil {
		return k, err
	}
	if err := c.Retention.check(); err != nil {
		return k, err
	}
	if c.LogLevel != "" {
		if err := k.level.UnmarshalText([]byte(c.LogLevel)); err != nil {
			return k, fmt.Errorf("log = %q: want debug, info, warn or error", c.LogLevel)
		}
	}
	// Empty tables, as in the file of parley init, are skipped.
	for i, a := range c.Allow {
		if a.From == "" && len(a.To) == 0 {
			continue
		}
		r := policy.Rule{From: a.From, To: a.To}
		r.File, r.Line = c.lines.line(fmt.Sprintf("allow[%d]", i))
		k.rules = append(k.rules, r)
	}
	for i, r := range c.Require {
		if len(r.To) == 0 && r.Assurance == "" {
			continue
		}
		l := policy.Least{To: r.To}
		l.File, l.Line = c.lines.line(fmt.Sprintf("require[%d]", i))
		if err := l.Assurance.UnmarshalText([]byte(r.Assurance)); err != nil {
			return k, fmt.Errorf("require %d: assurance = %q: want one of signed, session, unsigned", i+1, r.Assurance)
		}
		k.least = append(k.least, l)
	}
	for _, l := range c.Limit {
		if l.From == "" && len(l.To) == 0 && l.Rate == 0 {
			continue
		}
		r := policy.Rate{PerSecond: l.Rate, Burst: l.Burst}
		if r.Burst == 0 {
			r.Burst = rateOf(l.Rate).Burst
		}
		k.limits = append(k.limits, policy.Limit{From: l.From, To: l.To, Rate: r})
	}
	if _, err := policy.New(policy.Config{Allow: k.rules, Least: k.least, Limits: k.limits}); err != nil {
		return k, err
	}
	if k.mappings, err = c.Mappings(); err != nil {
		return k, err
	}
	for name, a := range c.Agents {
		if err := parley.CheckName(name); err != nil {
			return k, fmt.Errorf("agents: %w", err)
		}
		if err := a.Delivery.retries().Check(); err != nil {
			return k, fmt.Errorf("agents.%s.delivery: %s", name, parley.AsError(err).Text)
		}
		if err := oneOf("agents."+name+".record", a.Record, "full", "headers", "digest"); err != nil {
			return k, err
		}
		for i := range c.Agents[name].Skills {
			if _, err := c.Agents[name].Skills[i].spec(); err != nil {
				return k, fmt.Errorf("agents.%s.skills %d: %w", name, i+1, err)
			}
		}
	}
	return k, c.checkProtocols()
}

func (c *Config) checkProtocols() error {
	for _, p := range Protocols {
		if p.Check != nil {
			if err := p.Check(c); err != nil {
				return err
			}
		}
		for name, a := range c.Agents {
			if p.CheckAgent == nil {
				break
			}
			if err := p.CheckAgent(name, &a); err != nil {
				return err
			}
		}
	}
	return nil
}

// oneOf checks a key whose value is empty or one of a few words.
func oneOf(key, value string, words ...string) error {
	if value == "" || slices.Contains(words, value) {
		return nil
	}
	return fmt.Errorf("%s = %q: want one of %s", key, value, strings.Join(words, ", "))
}

// httpURL gives a URL with the scheme http or https and a host, nil for other text.
func httpURL(s string) *url.URL {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil
	}
	return u
}

// checkGuests reads the guests' budget.
func (k *checked) checkGuests(g *Guests) (err error) {
	if g.Registrations < 0 || g.Mailboxes < 0 || g.Connections < 0 || g.Requests < 0 || g.Share < 0 || g.Share > 1 {
		return errors.New("guests: want numbers above zero, and a share of at most 1")
	}
	k.guests = policy.GuestConfig{Registrations: g.Registrations, Mailboxes: g.Mailboxes, Requests: g.Requests,
		Share: g.Share}
	if k.guests.Memory, err = sizeOr("guests.memory", g.Memory, 0); err != nil {
		return err
	}
	if k.guests.Disk, err = sizeOr("guests.disk", g.Disk, 0); err != nil {
		return err
	}
	k.guestBody, err = sizeOr("guests.bodies", g.Bodies, 1<<20)
	return err
}

// sizeOr reads the size of a key, or gives otherwise if it is empty.
func sizeOr(key, s string, otherwise int64) (int64, error) {
	n, err := parseSize(s)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", key, err)
	}
	if n == 0 {
		return otherwise, nil
	}
	return int64(n), nil
}

func (a Alerts) check() error {
	if u := httpURL(a.Webhook); a.Webhook != "" && (u == nil || u.User != nil) {
		return fmt.Errorf("alerts.webhook = %q: want http(s)://host[:port]/path", a.Webhook)
	}
	if a.Disk < 0 || a.Disk > 1 {
		return fmt.Errorf("alerts.disk = %g: want a part between 0 and 1, such as 0.8", a.Disk)
	}
	return nil
}

// parseSize reads "8MiB", "500MB", "1024"; 0 for "".
func parseSize(s string) (uint64, error) {
	if s == "" {
		return 0, nil
	}
	digits := strings.TrimRight(s, "BKMGi")
	n, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
	f, ok := sizes[s[len(digits):]]
	if err != nil || !ok || n < 0 {
		return 0, fmt.Errorf("%q is no size: want e.g. \"8MiB\"", s)
	}
	return uint64(n * f), nil
}

var sizes = map[string]float64{"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 1 << 10, "MiB": 1 << 20,
	"GiB": 1 << 30}
