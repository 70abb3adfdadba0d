// Package samvad joins SAMVAD to the hub: it hosts agents of the directory as
// SAMVAD agents, each under a base path (and a sub-domain where one is
// configured), and calls SAMVAD agents elsewhere for those who speak another
// protocol.
//
// # Hosting
//
// An agent named crew/scout is served under /agents/crew/scout; its card says
// which identity to address. The hub itself is the agent at the root, so that
// peers who fetch cards find the key with which the hub signs.
//
// # Scope and replay
//
// The scope of a message is the addressed agent; the replay key is sender and
// nonce within it. The journal's record is the reservation: a request whose
// nonce was recorded before is answered REPLAY_DETECTED, whatever else it is.
package samvad

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/policy"
	protocol "github.com/parley-hub/parley/samvad"
)

// Config of a Binding. Hub, Keys and Journal must be set.
type Config struct {
	Hub     *hub.Hub
	Keys    *keyring.Ring
	Journal *journal.Journal

	Guard     *netguard.Guard // outbound addresses
	RootCAs   *x509.CertPool  // trusted by outbound calls; nil: the system's
	PublicURL string          // base URL under which agents reach the hub
	Domain    string          // agents are hosted at its sub-domains too; "": paths only

	Legacy    bool                                      // accept protocol 1.1
	Origins   []string                                  // web origins whose pages may call; "*": any
	Transport func(http.RoundTripper) http.RoundTripper // around outbound calls; nil: nothing
	Window    time.Duration                             // how old a message may be; 0: 300 s
	MaxBody   int64                                     // 0: 1 MiB

	Tokens       []string // bearer tokens that authenticated skills of agents here accept; none: such skills refuse everybody
	TokensPerDay int      // that a sender may have an agent here use up in a UTC day; 0: no limit
	Unscanned    []string // skills whose payloads are not scanned for injection: patterns over agent or agent.skill
	Lightweight  []string // public skills that unsigned requests may call: patterns of the same kind; none by default

	Now    func() time.Time
	Logger *slog.Logger
}

// Binding is the hub's SAMVAD side. It is an http.Handler for the protocol
// listener, and a hub.Binding.
type Binding struct {
	c         Config
	public    *url.URL
	server    *protocol.Server
	keys      *keyIndex
	client    *protocol.Client
	identity  identity
	stopWatch func()
	taskKey   []byte
	tokens    *tokens
	slots     chan struct{} // bounds the background jobs
	work      sync.WaitGroup
	ctx       context.Context
	stop      context.CancelFunc

	budget *budget // nil where there is none

	tasks   *journal.Table[task] // by message, and those that the server refused
	tasksMu sync.Mutex
	running map[parley.ID]bool // tasks that are not finished, by message

	remoteTasks *journal.Table[remoteTask] // by message
	remoteMu    sync.Mutex
	followed    map[parley.ID]*remoteTask // tasks elsewhere that this node polls, by message
	peers       map[string]*peerTasks     // by directory name
	owned       chan struct{}             // has a token when there may be more to follow

	mu     sync.RWMutex
	hosted map[string]*protocol.Agent // by directory name; made when first asked for
	shown  string                     // the hub's keys and limits that are on their cards

	remotes map[string]*remote // cards of agents elsewhere, by directory name
	pace    pacer

	credentials map[string]Credentials // of agents elsewhere, by directory name
	labels      map[string]string      // names of agents by DNS label
}

// Root is the directory name of the agent that is served at the root: the hub
// itself.
const Root = "parley"

// New makes a binding.
func New(c Config) (*Binding, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	public, err := bridge.PublicURL(c.PublicURL)
	if err != nil {
		return nil, err
	}
	b := &Binding{c: c, public: public, hosted: map[string]*protocol.Agent{}, remotes: map[string]*remote{}, credentials: map[string]Credentials{}, pace: pacer{now: c.Now}, labels: map[string]string{},
		tasks: journal.NewTable[task](c.Journal, "samvad-tasks", 0), running: map[parley.ID]bool{},
		remoteTasks: journal.NewTable[remoteTask](c.Journal, "samvad-outgoing", 0), followed: map[parley.ID]*remoteTask{},
		peers: map[string]*peerTasks{}, owned: make(chan struct{}, 1)}
	b.keys = newKeyIndex(c.Keys, c.Hub.Directory())
	var guard protocol.Guard
	if c.Guard != nil {
		guard = c.Guard.Prefixes
	}
	cards := &protocol.CardStore{Guard: guard, Now: c.Now}
	if c.RootCAs != nil {
		cards.HTTP = c.Guard.Client(netguard.Options{Timeout: protocol.DefaultCardTimeout, MaxRedirects: 3, RootCAs: c.RootCAs})
	}
	if b.identity, err = newIdentity(c.Keys, "agent://"+public.Host); err != nil {
		return nil, err
	}
	b.client = &protocol.Client{Identity: b.identity, Guard: guard, Now: c.Now,
		HTTP: c.Guard.Client(netguard.Options{Timeout: -1, MaxResponseBytes: -1, RootCAs: c.RootCAs})}
	if c.Transport != nil {
		b.client.HTTP.Transport = c.Transport(b.client.HTTP.Transport)
	}
	b.client.HTTP.Transport = telling{b.client.HTTP.Transport}
	b.slots = make(chan struct{}, 32)
	b.ctx, b.stop = context.WithCancel(context.Background())
	if b.taskKey, err = c.Keys.Secret("samvad tasks", 32); err != nil {
		return nil, err
	}
	if b.tokens, err = newTokens(c.Keys); err != nil {
		return nil, err
	}
	verifier := &protocol.Verifier{
		Keys:   protocol.FirstOf(b.keys, cards),
		Memory: memory{c.Journal},
		Now:    c.Now,
		Limits: protocol.Limits{MaxBody: c.MaxBody, Window: c.Window},
		Prefix: public.Path,
		Legacy: c.Legacy,
	}
	b.server = &protocol.Server{
		Resolve:  b.resolve,
		Verifier: verifier,
		Record:   b.record,
		Refused:  b.refused,
		Accept:   b.accept,
		Inline:   true, // a call returns when its context ends
		// What was recorded must be run: the hub has bounds of its own.
		MaxRunning: math.MaxInt,
		Limiter:    &protocol.Limiter{},
		Tasks:      (*taskStore)(b),
		Webhook: &protocol.Webhook{Guard: guard, Now: c.Now,
			HTTP: c.Guard.Client(netguard.Options{Timeout: protocol.DefaultWebhookTimeout, MaxRedirects: -1, RootCAs: c.RootCAs})},
	}
	if c.TokensPerDay > 0 {
		b.budget = newBudget(journal.NewTable[spending](c.Journal, "samvad-tokens", 0), b.server.Limiter, c.Now)
	}
	b.server.CORS = c.Origins
	b.stopWatch = c.Hub.Directory().Watch(func(ch directory.Change) {
		b.keys.update(ch)
		b.mu.Lock()
		defer b.mu.Unlock()
		if ch.Old != nil {
			delete(b.hosted, ch.Old.Name)
			delete(b.remotes, ch.Old.Name)
			delete(b.labels, label(ch.Old.Name))
		}
		if ch.New == nil && ch.Old != nil {
			delete(b.credentials, ch.Old.Name)
		}
		if ch.New != nil {
			delete(b.hosted, ch.New.Name)
			b.labels[label(ch.New.Name)] = ch.New.Name
		}
	})
	for _, e := range c.Hub.Directory().All() {
		b.labels[label(e.Name)] = e.Name
	}
	return b, nil
}

// Close ends what runs in the background.
func (b *Binding) Close() error {
	b.stopWatch()
	b.mu.Lock() // nothing begins after it
	b.stop()
	b.mu.Unlock()
	b.work.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := b.server.Close(ctx)
	if b.budget != nil {
		err = errors.Join(err, b.budget.flush(ctx))
	}
	return err
}

// Protocol implements hub.Binding.
func (b *Binding) Protocol() string { return Protocol }

// Capabilities implements hub.Binding. Agents refuse a repeated nonce without
// repeating their answer, so they do not deduplicate. Callers wait on their
// connection, poll their task or are called back, so nothing carries replies.
func (b *Binding) Capabilities() hub.Capabilities {
	return hub.Capabilities{
		Resumes:     b.resumes,
		CallsBack:   callsBack,
		ReplyLosses: b.replyLosses,
		Address:     b.AgentURL,
	}
}

// ServeHTTP serves the seven endpoints of every hosted agent.
func (b *Binding) ServeHTTP(w http.ResponseWriter, r *http.Request) { b.server.ServeHTTP(w, r) }

// Identity makes the directory's identity of a SAMVAD agent elsewhere. Without
// an id it is that of the URL's host.
func (b *Binding) Identity(id, base string) (parley.Identity, error) {
	if base != "" {
		u, err := url.Parse(base)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return parley.Identity{}, fmt.Errorf("url %q: want http(s)://host[:port][/path]", base)
		}
		if id == "" {
			id = "agent://" + u.Host
		}
	}
	if err := protocol.CheckAgent(id); err != nil {
		return parley.Identity{}, fmt.Errorf("id %q: %w", id, err)
	}
	return parley.Identity{Protocol: Protocol, ID: id, URL: base}, nil
}

// Enroll vouches for an agent's public key. The agent's directory entry says
// which SAMVAD identity it has.
func (b *Binding) Enroll(agent, id, kid string, public []byte, by string) error {
	for _, e := range b.c.Keys.Enrolled(agent, Protocol) {
		if string(e.Public) == string(public) && e.KeyID == or(kid, e.KeyID) {
			return nil
		}
	}
	_, err := b.c.Keys.Enroll(keyring.Enrolled{Agent: agent, Purpose: Protocol, KeyID: kid, Algorithm: keyring.Ed25519, Public: public, By: by, Note: id})
	return err
}

func or[T comparable](v, other T) T {
	var zero T
	if v == zero {
		return other
	}
	return v
}

// AgentURL is the base URL under which an agent is hosted; "" where it is not.
func (b *Binding) AgentURL(e *directory.Entry) string {
	if !b.hosts(e) {
		return ""
	}
	if e.Name == Root {
		return b.public.String()
	}
	return b.public.String() + "/agents/" + e.Name
}

// Serves implements hub.HTTPBinding: SAMVAD's endpoints have fixed ends under
// any base path.
func (b *Binding) Serves(r *http.Request) bool {
	p := r.URL.Path
	return strings.Contains(p, "/agent/") || strings.HasSuffix(p, "/.well-known/agent.json")
}

// hosts: an agent appears where it was exposed, and in its own protocol.
func (b *Binding) hosts(e *directory.Entry) bool {
	return e.ExposedIn(Protocol) || slices.Contains(e.Native(), Protocol)
}

// id is the identity under which an agent is hosted.
func (b *Binding) id(name string) string {
	host := or(b.c.Domain, b.public.Host)
	if name == Root {
		return "agent://" + host
	}
	bare, port, err := net.SplitHostPort(host)
	if err != nil {
		bare, port = host, ""
	}
	if ip := net.ParseIP(strings.Trim(bare, "[]")); ip != nil {
		// A label before an address is no host name.
		if ip.IsLoopback() {
			bare = "localhost"
		} else {
			bare = strings.NewReplacer(".", "-", ":", "-").Replace(ip.String()) + ".parley.local"
		}
	}
	if port != "" {
		bare = net.JoinHostPort(bare, port)
	}
	return "agent://" + label(name) + "." + bare
}

// label makes a DNS label of a directory name. Names that are no labels get a
// piece of their hash, so that two never meet.
func label(name string) string {
	l := strings.NewReplacer("/", "-", ".", "-", "_", "-").Replace(name)
	if l == name && len(l) <= 63 {
		return l
	}
	sum := sha256.Sum256([]byte(name))
	return l[:min(len(l), 54)] + "-" + hex.EncodeToString(sum[:4])
}

// resolve finds the hosted agent of a request by its base path, else by its
// host.
func (b *Binding) resolve(r *http.Request, prefix string) *protocol.Agent {
	prefix = strings.TrimPrefix(prefix, b.public.Path)
	name, ok := strings.CutPrefix(prefix, "/agents/")
	if !ok {
		if prefix != "" {
			return nil
		}
		name = b.byHost(r.Host)
	}
	return b.agent(asked(r), name)
}

func (b *Binding) byHost(host string) string {
	if b.c.Domain == "" {
		return Root
	}
	bare, _, err := net.SplitHostPort(host)
	if err != nil {
		bare = host
	}
	l, ok := strings.CutSuffix(strings.ToLower(bare), "."+b.c.Domain)
	if !ok {
		return Root
	}
	if _, ok := b.c.Hub.Directory().Agent(l); ok {
		return l
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.labels[l]
}

// agent gives the hosted form of a directory agent, or nil.
func (b *Binding) agent(ctx context.Context, name string) *protocol.Agent {
	keys := fmt.Sprint(b.c.Hub.SenderRate().PerSecond, " ", b.c.Keys.Valid(keyring.Hub, Protocol))
	b.mu.RLock()
	a, same := b.hosted[name], b.shown == keys
	b.mu.RUnlock()
	if a != nil && same {
		return a
	}
	e, ok := b.c.Hub.Directory().Agent(name)
	if !ok || !b.hosts(e) {
		return nil
	}
	a = &protocol.Agent{Card: b.card(ctx, e), Handler: b.handle, Identity: b.client.Identity, Skills: map[string]protocol.SkillOptions{},
		Limit: &protocol.RateLimit{TokensPerSenderPerDay: b.c.TokensPerDay}}
	if !elsewhere(e) { // an agent elsewhere judges the tokens itself
		a.Token = b.token
	}
	for _, k := range a.Card.Skills {
		a.Skills[k.ID] = protocol.SkillOptions{NoScan: named(b.c.Unscanned, name, k.ID), Lightweight: named(b.c.Lightweight, name, k.ID)}
	}
	if len(a.Card.Skills) == 0 {
		return nil // nothing is known of it that could be called
	}
	if err := a.Check(); err != nil {
		b.c.Logger.Warn("an agent cannot be hosted in SAMVAD", "agent", name, "error", err)
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shown != keys {
		b.shown = keys
		clear(b.hosted)
	}
	b.hosted[name] = a
	return a
}

// card makes the card of a hosted agent. The skills of an agent elsewhere that
// nobody declared are those of its own card.
func (b *Binding) card(ctx context.Context, e *directory.Entry) *protocol.Card {
	ttl := protocol.DefaultCardTTL
	c := &protocol.Card{
		ID:          b.id(e.Name),
		Name:        clip(or(e.Title, e.Name), 100),
		Version:     or(e.Version, "1.0.0"),
		Description: clip(or(e.Description, e.Name+", through Parley"), 500),
		URL:         b.AgentURL(e),
		PublicKeys:  b.identity.cardKeys(),
		RateLimit:   b.limits(),
		CardTTL:     &ttl,
	}
	for _, k := range e.Skills {
		c.Skills = append(c.Skills, skill(k))
	}
	wait, all := time.Duration(0), len(e.Skills) == 0
	if all {
		wait = protocol.DefaultFetchTimeout // there is nothing to show without it
	}
	if remote := b.remoteCard(ctx, e, wait, all); remote != nil {
		if all {
			c.Skills, c.Name, c.Description, c.Version = remote.Skills, remote.Name, remote.Description, remote.Version
		}
		c.Specializations, c.Models = remote.Specializations, remote.Models
		c.RateLimit = behind(c.RateLimit, remote.RateLimit)
	}
	if talks(e) {
		c.Skills = append(c.Skills, talkSkill())
	}
	return c.Complete()
}

// unlimited is what a card says where the hub has no limit: the schema wants a
// number, and one that is above zero.
const unlimited = 1_000_000_000

// limits are those of agents here: the hub's, of each proved sender. It has none
// of all senders together.
func (b *Binding) limits() *protocol.RateLimit {
	l := &protocol.RateLimit{RequestsPerMinute: unlimited, RequestsPerSender: unlimited, TokensPerSenderPerDay: b.c.TokensPerDay}
	if r := b.c.Hub.SenderRate().PerSecond; r > 0 {
		l.RequestsPerSender = max(1, min(int(60*r), unlimited))
	}
	return l
}

// behind are the limits of an agent elsewhere as callers meet them here: what it
// takes of one sender they share.
func behind(here, there *protocol.RateLimit) *protocol.RateLimit {
	if there == nil {
		return here
	}
	l := *here
	if n := shared(there); n > 0 {
		l.RequestsPerMinute, l.RequestsPerSender = min(l.RequestsPerMinute, n), min(l.RequestsPerSender, n)
	}
	if n := there.TokensPerSenderPerDay; n > 0 && (l.TokensPerSenderPerDay == 0 || n < l.TokensPerSenderPerDay) {
		l.TokensPerSenderPerDay = n
	}
	return &l
}

// elsewhere reports whether calls to an agent are calls to a SAMVAD agent of
// another host.
func elsewhere(e *directory.Entry) bool {
	i, ok := e.Identity(Protocol)
	return ok && !i.StandIn && e.Source != directory.FromCode
}

// leads reports whether calls to an agent of the directory lead elsewhere.
func (b *Binding) leads(name string) bool {
	e, ok := b.c.Hub.Directory().Agent(name)
	return ok && elsewhere(e)
}

// named reports whether an operator's patterns mean a skill, or all of its
// agent.
func named(patterns []string, agent, skill string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		return policy.Match(pattern, agent) || policy.Match(pattern, agent+"."+skill)
	})
}

// token checks the bearer token of a request to an authenticated skill.
func (b *Binding) token(_ context.Context, r *protocol.Request) error {
	given, known := sha256.Sum256([]byte(r.Auth.Token)), 0
	for _, t := range b.c.Tokens {
		want := sha256.Sum256([]byte(t))
		known |= subtle.ConstantTimeCompare(given[:], want[:])
	}
	if known == 0 {
		return fmt.Errorf("none of the %d tokens in samvad.tokens_file", len(b.c.Tokens))
	}
	return nil
}

func clip(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

func skill(s parley.SkillSpec) protocol.Skill {
	out := protocol.Skill{
		ID: s.ID, Name: clip(or(s.Name, s.ID), 100), Description: clip(or(s.Description, s.ID), 500),
		InputSchema: json.RawMessage(s.Input), OutputSchema: json.RawMessage(s.Output),
		Trust: protocol.Trust(or(s.Access, parley.Public)), AllowedPeers: s.Peers,
	}
	if len(out.InputSchema) == 0 {
		out.InputSchema = json.RawMessage(`{"type":"object"}`)
	}
	if len(out.OutputSchema) == 0 {
		out.OutputSchema = json.RawMessage(`{"type":"object"}`)
	}
	modes := s.Modes
	if len(modes) == 0 {
		modes = []parley.Mode{parley.Sync, parley.Async, parley.Stream}
	}
	for _, m := range modes {
		out.Modes = append(out.Modes, protocol.Mode(m))
	}
	return out
}

// name of an agent that is hosted: the last part of what the card says.
func (b *Binding) nameOf(a *protocol.Agent) string {
	if rest, ok := strings.CutPrefix(a.Card.URL, b.public.String()+"/agents/"); ok {
		return rest
	}
	return Root
}

// sender finds the directory name of a proved sender.
func (b *Binding) sender(r *protocol.Request) string {
	if r.Verdict.Assurance != protocol.Signed {
		return directory.Stranger(Protocol, r.From, hostOf(r.Remote))
	}
	if name, ok := strings.CutPrefix(r.Verdict.KeySource, enrolledSource); ok {
		return name
	}
	if e, ok := b.c.Hub.Directory().Lookup(Protocol, r.From); ok {
		return e.Name
	}
	return directory.Stranger(Protocol, r.From, "")
}

// record makes a request durable: the protocol's server calls it once for each
// request whose signature is in order.
func (b *Binding) record(ctx context.Context, r *protocol.Request, refusal *protocol.Error) error {
	from, to := b.sender(r), b.nameOf(r.Agent)
	now := b.c.Now()
	s := hub.Submission{
		Message: toMessage(r, from, to, now),
		Scope:   scope(r.To),
		Key:     journal.Key{ID: key(r.Envelope), Sender: from, Until: bridge.KeyEnd(r.Until(or(b.c.Window, 300*time.Second)))},
		Foreign: r.TraceID,
		Fits:    true, // the server has validated the payload
	}
	b.plain(s.Message)
	var exceeded error
	if refusal == nil && r.Delegation != nil && r.Delegation.MaxDepth <= 1 && b.leads(to) {
		// To call on is to delegate further.
		exceeded = protocol.ErrDelegationExceeded
		refusal = protocol.AsError(exceeded)
	}
	if r.Verdict.Assurance != protocol.Signed || r.Auth != nil && r.Auth.Token != "" {
		b.tokens.replace(s.Message, r.Envelope, refusal == nil && b.leads(to))
	}
	if refusal != nil {
		s.Refused = toRefusal(refusal)
	}
	var err error
	if r.Endpoint == protocol.ModeAsync {
		var m *parley.Message
		if m, err = b.c.Hub.Accept(ctx, s); err == nil {
			r.State = m
		}
	} else {
		if s.Message.Deadline = now.Add(protocol.DefaultSyncTimeout); r.Endpoint == protocol.ModeStream {
			s.Message.Deadline = now.Add(protocol.DefaultTaskTimeout)
		}
		var call *hub.Call
		if call, err = b.c.Hub.Begin(ctx, s); err == nil {
			r.State = call
		}
	}
	if err == nil {
		return nil
	}
	var prior *hub.Prior
	if errors.As(err, &prior) {
		return protocol.ErrReplay
	}
	if refusal != nil {
		if parley.CodeOf(err) == s.Refused.Code {
			return exceeded // it is recorded as refused; the server tells why
		}
	}
	return toError(parley.AsError(err))
}

// scope of a message: the addressed agent.
func scope(to string) string { return Protocol + " " + to }

// key of a message within its scope: its sender and nonce.
func key(e *protocol.Envelope) string { return e.From + "\n" + e.Nonce }

// handle waits for the answer to a request that was recorded.
func (b *Binding) handle(ctx context.Context, r *protocol.Request) (protocol.Response, error) {
	call, ok := r.State.(*hub.Call)
	if !ok {
		return protocol.Response{}, protocol.ErrUnavailable
	}
	var reply *parley.Message
	var err error
	if r.Endpoint == protocol.ModeStream {
		for m, serr := range call.Stream(ctx) {
			if serr != nil {
				err = serr
				break
			}
			if m.Kind == parley.Event {
				if m.State == parley.NoState && len(m.Parts) > 0 {
					v, cerr := toResult(m.Parts)
					if cerr == nil && r.Chunk(json.RawMessage(v)) != nil {
						break // the client is gone; that cancels the call
					}
				}
				continue
			}
			reply = m
		}
	} else {
		reply, err = call.Reply(ctx)
	}
	switch {
	case err != nil:
		return protocol.Response{}, toError(parley.AsError(err))
	case reply == nil:
		return protocol.Response{}, protocol.ErrUnavailable
	case reply.Kind == parley.Failure:
		return protocol.Response{Tokens: reply.Tokens()}, toError(reply.Error)
	}
	result, err := toResult(reply.Parts)
	if err != nil {
		return protocol.Response{}, fmt.Errorf("the result of %s is not JSON: %w", reply.From, err)
	}
	return protocol.Response{Result: json.RawMessage(result), SpanID: reply.ID.String(), Tokens: reply.Tokens()}, nil
}

// refused notes what the server turned away, for `parley refused`.
func (b *Binding) refused(r *http.Request, c protocol.Claim, e *protocol.Error) string {
	f := hub.Refusal{
		Protocol: Protocol, Source: hostOf(r.RemoteAddr), Claim: c.From, To: or(c.Agent, c.Endpoint), Step: string(e.Step),
		Code: stepCode(e), Text: e.Text, Cause: e.Error(), Size: c.Size,
	}
	if e.Verdict != nil {
		f.Verdict = verdict(e.Verdict)
	}
	return b.c.Hub.Refuse(f)
}

func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}

func stepCode(e *protocol.Error) parley.Code {
	switch {
	case errors.Is(e, protocol.ErrStale):
		return parley.Stale
	case errors.Is(e, protocol.ErrTooLarge):
		return parley.TooLarge
	case errors.Is(e, protocol.ErrNotFound):
		return parley.UnknownAgent
	case errors.Is(e, protocol.ErrMalformed), errors.Is(e, protocol.ErrMediaType), errors.Is(e, protocol.ErrRecipient), errors.Is(e, protocol.ErrMethod):
		return parley.Malformed
	case e.Code == protocol.CodeAuthFailed && !errors.Is(e, protocol.ErrTrust):
		return parley.Unauthenticated
	case e.Code == protocol.CodeAgentUnavailable:
		return parley.Unavailable
	}
	return toRefusal(e).Code
}

// Deliver calls a SAMVAD agent elsewhere, as the hub.
func (b *Binding) Deliver(ctx context.Context, o hub.Outbound) hub.Outcome {
	m := o.Message
	if o.Request != nil && m.Kind.Terminal() && o.Request.Origin.Protocol == Protocol {
		return b.callBack(ctx, o)
	}
	losses := bridge.Losses(bridge.SAMVAD, m, o.Recipient.Name)
	if m.Kind == parley.Cancel {
		b.cancelRemoteTask(m.InReplyTo)
		return hub.Outcome{Losses: losses}
	}
	var before *remoteTask
	if m.Kind == parley.Request && o.Attempt > 1 {
		row, err := b.remoteTasks.Get(ctx, m.ID.String())
		if err != nil {
			return hub.Outcome{Err: parley.Fail(parley.Unavailable, err, "how the request was sent before cannot be read"), Wait: pause}
		}
		if row.Value.Task != "" { // the agent has it: it remains to poll
			b.follow(m.ID, &row.Value)
			return hub.Outcome{Losses: losses}
		}
		if row.Revision != 0 {
			before = &row.Value
		}
	}
	call, err := callOf(m, &o.Recipient.Agent, o.Identity)
	if err != nil {
		return hub.Outcome{Err: parley.Refuse(parley.InvalidContent, "the content is not JSON: %v", err)}
	}
	if call.Skill == "" {
		// An agent that is just coming up must not be asked for no skill at all:
		// that it would refuse for good.
		if call.Skill = b.defaultSkill(b.cardOf(ctx, o.Recipient.Name)); call.Skill == "" {
			return hub.Outcome{Err: parley.Fail(parley.Unavailable, nil, "the message names no skill, and the card of %q, which would, cannot be read now", o.Recipient.Name)}
		}
	}
	if before != nil { // how it was sent is to be found out, whatever the limits
		return b.attempt(ctx, o, call, before, losses)
	}
	return b.paced(ctx, o, func() hub.Outcome { return b.attempt(ctx, o, call, nil, losses) })
}

// attempt makes a call once; see [Binding.sendTask] for before.
func (b *Binding) attempt(ctx context.Context, o hub.Outbound, call protocol.Call, before *remoteTask, losses []parley.Loss) hub.Outcome {
	m := o.Message
	switch m.Kind {
	case parley.Request:
		if err := b.passOn(ctx, m, o.Recipient.Name, &call); err != nil {
			return hub.Outcome{Answered: true, Failure: err, Losses: losses}
		}
		mode := b.mode(ctx, o, call.Skill)
		if before != nil || mode == protocol.ModeAsync && !o.Waits {
			out := b.sendTask(ctx, o, call, before)
			out.Losses = losses
			return out
		}
		var reply *protocol.Reply
		err := b.identity.withAnyKey(&call, func() (err error) { reply, err = b.ask(ctx, o, mode, call); return err })
		if err != nil {
			a := fromError(err)
			return hub.Outcome{Answered: a.failure != nil, Failure: a.failure, Err: a.err, Wait: a.wait, Unknown: a.unknown, Losses: losses}
		}
		return hub.Outcome{Answered: true, Parts: []parley.Part{{MediaType: "application/json", Data: reply.Result}}, Losses: losses,
			Reply: &parley.Message{
				Origin:     remoteOrigin(o.Identity.ID),
				Extensions: answered(reply.Replaced),
				Trace:      parley.Trace{Parent: m.Trace.Parent, Foreign: map[string]string{foreignTrace: reply.TraceID, foreignSpan: reply.SpanID}},
			}}
	default:
		// What expects no answer goes as a task without a callback.
		err := b.identity.withAnyKey(&call, func() error { _, err := b.client.Send(ctx, call); return err })
		if err != nil {
			a := fromError(err)
			return hub.Outcome{Err: or(a.err, a.failure), Wait: a.wait, Unknown: a.unknown, Losses: losses}
		}
		return hub.Outcome{Losses: losses}
	}
}

// Credentials are what calls of an agent elsewhere carry by configuration, where
// their sender brought none. They are in no record.
type Credentials struct {
	Token    string // bearer token for authenticated skills; "": none
	Delegate bool   // a delegation token of the hub's own
}

// SetCredentials says what calls of an agent carry, until the agent is removed.
func (b *Binding) SetCredentials(agent string, c Credentials) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c == (Credentials{}) {
		delete(b.credentials, agent)
		return
	}
	b.credentials[agent] = c
}

// passOn has a call to another SAMVAD agent carry what the sender said of its
// right to it: its token, for the agent to judge, and its delegation, issued
// anew by the hub for this one skill, one level less and no longer (SAM-105).
// What the sender did not bring is the operator's, if that is configured.
func (b *Binding) passOn(ctx context.Context, m *parley.Message, to string, call *protocol.Call) *parley.Error {
	var e *protocol.Envelope // nil: of another protocol, or of version 1.1, which knows neither
	if m.Origin.Protocol == Protocol {
		e, _ = protocol.Decode(m.Origin.Raw)
	}
	delegation := ""
	if e != nil {
		token, refused := b.tokens.tokenOf(m, e)
		if refused != nil {
			return refused
		}
		if token != "" {
			call.Auth = &protocol.Auth{Scheme: e.Auth.Scheme, Token: token}
		}
		delegation = e.DelegationToken
	}
	b.mu.RLock()
	own := b.credentials[to]
	b.mu.RUnlock()
	if call.Auth == nil && own.Token != "" {
		call.Auth = &protocol.Auth{Scheme: "bearer", Token: own.Token}
	}
	now := b.c.Now()
	var d *protocol.Delegation
	var err error
	switch {
	case delegation != "":
		if d, err = protocol.VerifyDelegation(ctx, delegation, b.server.Verifier.Keys, now); err == nil {
			d, err = d.Narrow(b.identity.ID(), []string{call.Skill})
		}
	case own.Delegate:
		d = &protocol.Delegation{Subject: b.identity.ID(), Scope: []string{call.Skill}, MaxDepth: 1}
	default:
		return nil
	}
	if err == nil {
		call.DelegationToken, err = d.Issue(b.identity, now)
	}
	if err != nil {
		return parley.Refuse(parley.Forbidden, "the delegation does not reach to %q any more", m.To).Because(err)
	}
	return nil
}

// ask calls a skill and waits for its answer. The chunks of a stream become
// events; a task is polled.
func (b *Binding) ask(ctx context.Context, o hub.Outbound, mode protocol.Mode, call protocol.Call) (*protocol.Reply, error) {
	switch mode {
	case protocol.ModeStream:
		var last protocol.Event
		replaced := false // in what was passed on
		for e, err := range b.client.Stream(ctx, call) {
			if err != nil {
				return nil, err
			}
			replaced = replaced || e.Replaced
			if last = e; e.Done || e.Again || jsonx.IsNull(jsonx.Value(e.Chunk)) || o.Event == nil {
				continue // the answer is no piece ahead of itself
			}
			if err := o.Event(parley.NoState, parley.Part{MediaType: "application/json", Data: e.Chunk}); err != nil {
				return nil, err
			}
		}
		if !last.Done {
			return nil, protocol.ErrResponse
		}
		return &protocol.Reply{TraceID: last.TraceID, SpanID: last.SpanID, Result: last.Result, Replaced: replaced}, nil
	case protocol.ModeAsync:
		base := call.URL
		if base == "" {
			var err error
			if base, err = protocol.AgentOrigin(call.To); err != nil {
				return nil, err
			}
		}
		id, err := b.client.Send(ctx, call)
		if err != nil {
			return nil, err
		}
		t, err := b.client.Wait(ctx, base, id)
		if err != nil {
			return nil, err
		}
		return &protocol.Reply{TraceID: call.TraceID, Result: t.Result, Replaced: t.Replaced}, nil
	}
	return b.client.Ask(ctx, call)
}

// mode finds out how a skill elsewhere may be called, as the directory says,
// else as its card does. Who waits on a connection is answered by one: by a
// stream where it sees events as they come, else at once. For who does not, it
// is a task, which outlasts connections; but a stream for who sees events,
// where the skill names that before tasks.
func (b *Binding) mode(ctx context.Context, o hub.Outbound, skill string) protocol.Mode {
	var modes []protocol.Mode
	if s, ok := o.Recipient.SkillNamed(skill); ok {
		for _, m := range s.Modes {
			modes = append(modes, protocol.Mode(m))
		}
	} else if c := b.cardOf(ctx, o.Recipient.Name); c != nil {
		if s := c.Skill(skill); s != nil {
			modes = s.Modes
		}
	}
	stream, task := slices.Index(modes, protocol.ModeStream), slices.Index(modes, protocol.ModeAsync)
	switch {
	case o.Streams && stream >= 0 && (o.Waits || task < 0 || stream < task):
		return protocol.ModeStream
	case !o.Waits && task >= 0:
		return protocol.ModeAsync
	}
	for _, m := range []protocol.Mode{protocol.ModeSync, protocol.ModeStream, protocol.ModeAsync} {
		if slices.Contains(modes, m) {
			return m
		}
	}
	return protocol.ModeSync
}

var (
	_ hub.Service     = (*Binding)(nil)
	_ hub.HTTPBinding = (*Binding)(nil)
	_ hub.Forgetter   = (*Binding)(nil)
)
