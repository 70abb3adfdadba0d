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
// embeds it. The zero value is a hub on disk in "parley-data" that listens nowhere. The
// toml tags are the names in the file; the doc tags are what `parley config describe`
// prints.
type Config struct {
	Data       string         `toml:"data" default:"\"parley-data\"" doc:"data directory; versions with another data format cannot read it"`
	Name       string         `toml:"name" doc:"name of this hub in the hops of messages; default: made at first start"`
	PublicURL  string         `toml:"public_url" doc:"base URL under which agents reach this hub, behind a proxy too; it is in cards, callbacks and identities. CANNOT be changed without telling every peer"`
	Durability string         `toml:"durability" default:"\"disk\"" doc:"what \"accepted\" promises: disk | replicated | memory"`
	Evidence   string         `toml:"evidence" default:"\"strict\"" doc:"strict: a reply is recorded before it is sent; relaxed: it is sent at once"`
	Listen     Listen         `toml:"listen"`
	Engine     Engine         `toml:"engine"`
	TLS        TLS            `toml:"tls"`
	Network    Network        `toml:"network"`
	Policy     Policy         `toml:"policy"`
	Require    []Require      `toml:"require" doc:"least assurance of messages to some agents; the first that fits counts, policy.assurance for all others"`
	Limit      []Pair         `toml:"limit" doc:"how often agents may call others; the first that fits counts"`
	Allow      []Allow        `toml:"allow" doc:"who may call whom; without any rule every agent may call those that are exposed to it"`
	Map        []Map          `toml:"map" doc:"jq programs for content that does not fit a skill; see docs/translation.md"`
	Delivery   Delivery       `toml:"delivery"`
	Limits     Limits         `toml:"limits"`
	Guests     Guests         `toml:"guests" doc:"budget of all guests: callers and agents for whom no operator, configuration or key vouches"`
	SAMVAD     SAMVAD         `toml:"samvad"`
	A2E        A2E            `toml:"a2e"`
	AGH        AGH            `toml:"agh"`
	UAgents    UAgents        `toml:"uagents"`
	ASP        ASP            `toml:"asp"`
	Sections   map[string]any `toml:"-"` // tables of protocols without a field here, see [Section]
	Alerts     Alerts         `toml:"alerts"`
	Retention  Retention      `toml:"retention" doc:"how long content is kept"`
	LogLevel   string         `toml:"log" default:"\"info\"" reload:"yes" doc:"debug | info | warn | error"`

	Agents map[string]Agent `toml:"agents" doc:"agents by their directory names"`

	// The following fields are for programs, not for the file.

	Version string           `toml:"-"` // of the program, for the admin API
	Now     func() time.Time `toml:"-"`
	Log     *slog.Logger     `toml:"-"`
	// of Log; set when the configuration changes. Nil: the level is fixed
	Level *slog.LevelVar    `toml:"-"`
	spans sdk.SpanProcessor // takes the traces in place of the exporter
	// reads the configuration again, for Reload; nil: there is no file
	Read           func() (Config, error)                `toml:"-"`
	Passphrase     []byte                                `toml:"-"` // of the keyring
	PassphraseWork int                                   `toml:"-"` // see [keyring.Options.WorkFactor]
	FreeSpace      func(dir string) (uint64, error)      `toml:"-"` // see journal.Config
	Progress       func(what string, done, total uint64) `toml:"-"` // long work at start
	FirstToken     func(secret string)                   `toml:"-"` // gets the secret of a first admin token, once

	HeaderTimeout time.Duration `toml:"-"` // for a client to send the header of a request; 0: 10 s
	BodyTimeout   time.Duration `toml:"-"` // and its body; 0: 1 min
}

// Listen holds the addresses of the listeners. "" switches a listener off.
type Listen struct {
	HTTP  string `toml:"http" doc:"protocols over HTTP, e.g. \":8080\"; \"\" switches it off, but without a configuration file it is 127.0.0.1:8080"`
	Admin string `toml:"admin" doc:"admin API and metrics; keep it on a loopback or private address, e.g. \"127.0.0.1:9090\"; \"\" switches it off, but without a configuration file it is 127.0.0.1:9090"`
	AGH   string `toml:"agh" doc:"NATS for AGH peers, e.g. \"127.0.0.1:4222\"; agh.users lists those that may connect"`
	// Origins are web origins, "https://host[:port]".
	Origins []string `toml:"origins" doc:"web origins whose pages may call the protocols from a browser, e.g. \"https://app.example\"; \"*\": any; pages of other origins are refused"`
	Hosts   []string `toml:"admin_hosts" doc:"host names besides localhost and addresses to which the admin listener answers, e.g. that of its container"`
}

// Engine chooses the storage of the journal.
type Engine struct {
	URL         string `toml:"url" doc:"an external NATS cluster instead of the embedded engine, e.g. \"nats://n1:4222,nats://n2:4222\""`
	Credentials string `toml:"credentials" doc:"NATS credentials file"`
	Prefix      string `toml:"prefix" default:"\"PARLEY\"" doc:"prefix of the names of streams and subjects; the same for all hubs on one journal. CANNOT be changed later"`
	Replicas    int    `toml:"replicas" doc:"copies of each stream on an external cluster: 1, 3 or 5; default: 3, or 1 where the server is alone"`
	SyncAlways  bool   `toml:"sync_always" doc:"every external server has sync_interval: always"`
	Partitions  int    `toml:"partitions" doc:"partitions of the journal, 1 to 256, each with its own order and dispatch; default: 1, on an external cluster 8. CANNOT be changed once the journal is made"`
	KeyFile     string `toml:"key_file" doc:"file with the key that encrypts the embedded engine's data, 16 bytes or more, mode 0600. WITHOUT IT THE DATA IS LOST"`
	MinFree     string `toml:"min_free" doc:"free disk space below which the hub accepts no messages, e.g. \"1GiB\"; default: 256 MiB, or a tenth of a small file system"`
}

// TLS of the protocol listener, and the authorities that outbound calls trust.
type TLS struct {
	Cert      string   `toml:"cert" reload:"yes" doc:"certificate chain file (PEM) of the protocol listener; read again when it changes"`
	Key       string   `toml:"key" reload:"yes" doc:"its private key file (PEM), mode 0600"`
	ACME      []string `toml:"acme" doc:"host names for which certificates are fetched by ACME (TLS-ALPN-01: listen.http must be reached at port 443); kept in the data directory. USING IT ACCEPTS THE AUTHORITY'S TERMS"`
	Email     string   `toml:"acme_email" doc:"e-mail address for the ACME authority"`
	Directory string   `toml:"acme_directory" default:"\"https://acme-v02.api.letsencrypt.org/directory\"" doc:"directory URL of the ACME authority"`
	CA        []string `toml:"ca" doc:"further authorities (PEM files) that outbound calls trust"`
	Proxy     []string `toml:"proxy" reload:"yes" doc:"address prefixes of proxies before listen.http: the hub believes X-Forwarded-For and X-Forwarded-Proto only from them"`
}

// Network bounds the addresses that the hub may call.
type Network struct {
	Allow []string `toml:"allow" reload:"yes" doc:"private addresses that the hub may call: prefixes, addresses, or \"loopback\""`
}

// Policy of admission.
type Policy struct {
	Assurance string `toml:"assurance" default:"\"signed\"" reload:"yes" doc:"least assurance of messages: signed | session | unsigned"`
	Expose    string `toml:"expose" default:"\"explicit\"" reload:"yes" doc:"explicit: an agent appears in other protocols only where exposed; all: everywhere"`
}

// Allow lets From call To.
type Allow struct {
	From string   `toml:"from" reload:"yes" doc:"pattern over directory names: * within a segment, ** for all the rest"`
	To   []string `toml:"to" reload:"yes" doc:"patterns; agent or agent.skill"`
}

// Require sets the least assurance of messages to some agents.
type Require struct {
	To        []string `toml:"to" reload:"yes" doc:"patterns over directory names, as in allow.from"`
	Assurance string   `toml:"assurance" reload:"yes" doc:"signed | session | unsigned"`
}

// Pair limits how often each agent that matches From may call each agent that matches To.
type Pair struct {
	From  string   `toml:"from" reload:"yes" doc:"pattern over directory names of senders"`
	To    []string `toml:"to" reload:"yes" doc:"patterns; agent or agent.skill. Each pair of agents has its own count"`
	Rate  float64  `toml:"rate" reload:"yes" doc:"messages a second, e.g. 0.1 for one in ten seconds"`
	Burst int      `toml:"burst" reload:"yes" doc:"how many at once; default: twice the rate, at least 1"`
}

// Delivery to agents.
type Delivery struct {
	Outcome      string   `toml:"outcome" default:"\"at-most-once\"" doc:"after an attempt of unknown outcome, for agents that do not deduplicate: at-most-once | at-least-once"`
	Tries        int      `toml:"tries" default:"12" doc:"attempts before a message becomes a dead letter"`
	For          Duration `toml:"for" default:"\"24h\"" doc:"how long the hub tries to deliver a message, at most"`
	PerRecipient int      `toml:"per_recipient" default:"64" doc:"how many conversations are delivered to one remote agent at once"`
	Timeout      Duration `toml:"timeout" default:"\"30s\"" doc:"how long a caller waits for its answer if it names no deadline"`
	HandOver     Duration `toml:"hand_over" default:"\"5s\"" doc:"for hubs on one journal: how long a partition that moves to another hub waits for attempts in flight; later ones end after it has moved"`
	Patience     Duration `toml:"patience" default:"\"2h\"" doc:"how long a request without a deadline stays open if its sender waits on no connection: tasks, AGH work, questions in ASP sessions; then the hub tells the sender that no answer came"`
}

// Limits bound the resources that agents can use.
type Limits struct {
	SenderRate  float64 `toml:"sender_rate" default:"1000.0" reload:"yes" doc:"messages a second of one verified sender; below zero: no limit"`
	UnknownRate float64 `toml:"unknown_rate" default:"20.0" reload:"yes" doc:"messages a second of one unsigned sender"`
	Body        string  `toml:"body" doc:"largest message, e.g. \"4MiB\"; default: 1 MiB for a request over HTTP, 8 MiB for the content of a message. An envelope of uAgents may have a third more"`
	Agents      int     `toml:"agents" default:"100000" doc:"agents in the directory, at most"`
	Refusals    int     `toml:"refusals" default:"4096" doc:"refusals kept for parley refused"`
	Connections int     `toml:"connections" doc:"connections of all listeners at once; default and maximum: the process's limit of file descriptors, less a reserve for the journal"`
	Bodies      string  `toml:"bodies" default:"\"256MiB\"" doc:"bytes of large request bodies of enrolled agents in memory at once; more wait in their connections"`
}

// Guests is the budget that all guests share.
type Guests struct {
	Memory        string  `toml:"memory" default:"\"16MiB\"" doc:"bytes that registrations, manifests and mailboxes of guests may hold in memory"`
	Disk          string  `toml:"disk" default:"\"1GiB\"" doc:"bytes that may be recorded for guests in 24 hours; at once the share of 12 minutes"`
	Registrations int     `toml:"registrations" default:"4096" doc:"agents that registered themselves"`
	Mailboxes     int     `toml:"mailboxes" default:"1024" doc:"mailboxes of agents that registered themselves"`
	Connections   int     `toml:"connections" default:"256" doc:"connections on which no enrolled agent has proved itself, half of them from one address; at most half of limits.connections"`
	Bodies        string  `toml:"bodies" default:"\"1MiB\"" doc:"bytes of large request bodies of guests in memory at once, or one body; more wait in their connections. Guests at addresses of enrolled agents have as much of their own"`
	Requests      float64 `toml:"requests" default:"100.0" doc:"requests a second from one address, twice as many at once; the answers to more wait, up to 10 s"`
	Share         float64 `toml:"share" default:"0.25" doc:"part of the budget that one address, or /64 of IPv6, may use when the budget is scarce"`
}

// Alerts tell an operator of problems.
type Alerts struct {
	Webhook string   `toml:"webhook" reload:"yes" doc:"URL to which alerts are posted as JSON; a private address needs network.allow. The log has them in any case"`
	Token   string   `toml:"token_file" reload:"yes" doc:"file with a secret for the header Authorization: Bearer of these requests; mode 0600"`
	Broken  Duration `toml:"broken_after" default:"\"3m\"" reload:"yes" doc:"alert when an agent has failed for so long"`
	Disk    float64  `toml:"disk" default:"0.8" reload:"yes" doc:"alert when this part of the disk is in use"`
	Expiry  Duration `toml:"key_expiry" default:"\"168h\"" reload:"yes" doc:"alert so long before a key or certificate ends"`
	Every   Duration `toml:"every" default:"\"1h\"" reload:"yes" doc:"send the same alert about the same thing at most once in this time"`
}

// Agent of the configuration file.
type Agent struct {
	Title       string         `toml:"title" reload:"yes" doc:"for people"`
	Description string         `toml:"description" reload:"yes" doc:"for people"`
	Expose      []string       `toml:"expose" reload:"yes" doc:"protocols in which the hub stands in for it, or \"all\""`
	Delivery    AgentDelivery  `toml:"delivery" doc:"how messages to it are retried"`
	SAMVAD      *SAMVADAgent   `toml:"samvad" doc:"its SAMVAD identity"`
	AGH         *AGHAgent      `toml:"agh" doc:"its AGH identity"`
	A2E         *A2EAgent      `toml:"a2e" doc:"its A2E token, or the A2E host that it is"`
	UAgents     *UAgent        `toml:"uagents" doc:"its uAgents identity"`
	ASP         *ASPAgent      `toml:"asp" doc:"its ASP identity"`
	Sections    map[string]any `toml:"-"` // tables of protocols without a field here, see [AgentSection]
}

// AgentDelivery says how messages to one agent are retried.
type AgentDelivery struct {
	Tries    int      `toml:"tries" reload:"yes" doc:"attempts before a message to it becomes a dead letter; default: delivery.tries"`
	Patience Duration `toml:"patience" reload:"yes" doc:"how long the hub tries to deliver a message to it, at most; default: delivery.for"`
	Ordered  *bool    `toml:"ordered" default:"true" reload:"yes" doc:"true: a message that cannot be delivered holds up the later ones of its conversation; false: they overtake it"`
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
	for _, a := range c.Allow {
		if a.From == "" && len(a.To) == 0 {
			continue
		}
		k.rules = append(k.rules, policy.Rule{From: a.From, To: a.To})
	}
	for i, r := range c.Require {
		if len(r.To) == 0 && r.Assurance == "" {
			continue
		}
		l := policy.Least{To: r.To}
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
