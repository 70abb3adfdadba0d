package a2a

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/bridge/peerauth"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/internal/recorder"
)

// A RemoteCard is the card of an agent elsewhere.
type RemoteCard struct {
	Card      *protocol.AgentCard
	Raw       []byte                   // as received
	URL       string                   // where it was found
	Interface *protocol.AgentInterface // that the hub calls
	Version   string                   // of that interface: V1 or V03
	Skills    []parley.SkillSpec       // texts bounded; A2A has no schemas
	Signed    bool                     // by a key that the hub knows
	// Unproved is why the card must not be used: its signature does not hold, or is
	// missing where there was one. nil: use it.
	Unproved error

	etag  string
	fresh time.Duration // by its headers
}

const (
	maxRemoteCard  = 512 << 10 // bytes
	maxRemoteDepth = 32
	maxSkills      = 256
	maxName        = 200  // bytes of a name, an id or a version
	maxText        = 4096 // bytes of a description, with tags and examples

	cardLifetime = time.Hour // of a card whose headers name none
	minLifetime  = time.Minute
	maxLifetime  = 24 * time.Hour
	cardRetry    = time.Minute      // after a card could not be read
	cardAgain    = 10 * time.Second // between reads because a call failed
	cardTimeout  = 10 * time.Second
)

// errNoCard is the cause of errors about an answer that is not an agent card.
var errNoCard = errors.New("not an agent card")

// errSame says that a card did not change.
var errSame = errors.New("the card did not change")

// ReadCard reads the card of an agent elsewhere: at the URL, if that is the URL of a
// card, else below it, else at the root of its origin. Credentials go to that origin
// alone.
func (b *Binding) ReadCard(ctx context.Context, at string, c peerauth.Credentials) (*RemoteCard, error) {
	p, err := b.newPeer("", at)
	if err != nil {
		return nil, err
	}
	if err := c.Check(); err != nil {
		return nil, err
	}
	n := b.connect(p, c)
	defer n.close()
	return b.fetchCard(ctx, p, n, nil)
}

// fetchCard reads a card at each place where it may be. have is the card before, for
// a conditional request; nil: none.
func (b *Binding) fetchCard(ctx context.Context, p *peer, n *connection, have *RemoteCard) (*RemoteCard, error) {
	var places []string
	if have != nil {
		places = append(places, have.URL)
	}
	base := strings.TrimSuffix(p.url.String(), "/")
	root := (&url.URL{Scheme: p.url.Scheme, Host: p.url.Host}).String()
	for _, place := range []string{p.url.String(), base + CardPath, root + CardPath} {
		if !slices.Contains(places, place) {
			places = append(places, place)
		}
	}
	var told error
	for _, place := range places {
		card, err := b.readCardAt(ctx, p, n, place, have)
		if err == nil || errors.Is(err, errSame) {
			return card, err
		}
		status, answered := errors.AsType[*statusError](err)
		noCard := errors.Is(err, errNoCard)
		if told == nil || noCard && place != p.url.String() { // a document at a card's place says more
			told = err
		}
		if !noCard && !(answered && (place == p.url.String() || status.moved())) {
			break // the origin cannot be reached, or refuses the hub: another path is no help
		}
	}
	return nil, fmt.Errorf("read the card of %s: %w", p.url.Redacted(), told)
}

// readCardAt reads a card at one place.
func (b *Binding) readCardAt(ctx context.Context, p *peer, n *connection, place string, have *RemoteCard) (
	*RemoteCard, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, place, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "application/json")
	r.Header.Set(protocol.SvcParamVersion, V1)
	if have != nil && have.etag != "" && have.URL == place {
		r.Header.Set("If-None-Match", have.etag)
	}
	resp, err := n.cards(r)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusNotModified && have != nil {
		_ = resp.Body.Close()
		same := *have
		same.fresh = freshness(resp.Header)
		return &same, errSame
	}
	if resp.StatusCode != http.StatusOK {
		return nil, readStatus(resp)
	}
	defer resp.Body.Close()
	raw, err := netguard.ReadAll(resp.Body, maxRemoteCard)
	if err != nil {
		if errors.Is(err, netguard.ErrTooLarge) {
			return nil, fmt.Errorf("%w: %w", errNoCard, err)
		}
		return nil, err
	}
	proved, unproved := raw, error(nil)
	if b.checkCard != nil {
		if proved, unproved = b.checkCard(ctx, p.name, place, raw); unproved != nil {
			proved = raw // for people
		}
	}
	card, err := parseCard(proved)
	if err != nil {
		return nil, err
	}
	// checkCard removes the signatures if a known key made them, and changes no other card.
	card.Raw, card.Unproved, card.Signed = raw, unproved, !bytes.Equal(proved, raw)
	card.URL, card.etag, card.fresh = place, resp.Header.Get("ETag"), freshness(resp.Header)
	if len(card.etag) > maxName {
		card.etag = ""
	}
	return card, nil
}

// freshness is how long a card may be used without asking again (RFC 9111, section 4.2).
func freshness(h http.Header) time.Duration {
	fresh := cardLifetime
	for _, d := range strings.Split(strings.Join(h.Values("Cache-Control"), ","), ",") {
		name, value, _ := strings.Cut(strings.ToLower(strings.TrimSpace(d)), "=")
		switch name {
		case "max-age":
			if n, err := strconv.Atoi(strings.Trim(value, `"`)); err == nil && n >= 0 {
				fresh = time.Duration(min(n, int(maxLifetime/time.Second))) * time.Second
			}
		case "no-store", "no-cache":
			return minLifetime
		}
	}
	return max(fresh, minLifetime)
}

// parseCard reads a card of either version.
func parseCard(raw []byte) (*RemoteCard, error) {
	if err := jsonx.Valid(raw, maxRemoteDepth); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoCard, err)
	}
	card, err := a2av0.NewAgentCardParser()(raw)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoCard, err)
	}
	if card.Name = clipped(card.Name, maxName); card.Name == "" {
		return nil, fmt.Errorf("%w: it has no name", errNoCard)
	}
	if u := text(jsonx.Member(raw, "url")); u != "" && jsonx.Member(raw, "supportedInterfaces") == nil &&
		text(jsonx.Member(raw, "preferredTransport")) == "" { // 0.3: JSON-RPC is the default
		card.SupportedInterfaces = append([]*protocol.AgentInterface{{URL: u,
			ProtocolBinding: protocol.TransportProtocolJSONRPC,
			ProtocolVersion: protocol.ProtocolVersion(cmp.Or(text(jsonx.Member(raw, "protocolVersion")), V03))}},
			card.SupportedInterfaces...)
	}
	c := &RemoteCard{Card: card, Raw: raw}
	if c.Interface, c.Version = choose(card.SupportedInterfaces); c.Interface == nil {
		return nil, fmt.Errorf("%w: it lists no interface that the hub speaks: JSONRPC or HTTP+JSON in %s or %s",
			errNoCard, V1, V03)
	}
	card.Description, card.Version = clipped(card.Description, maxText), clipped(card.Version, maxName)
	c.Skills = skillsOf(card.Skills)
	return c, nil
}

// spoken are the interfaces that the hub speaks, the preferred ones first. HTTP+JSON of 0.3
// comes last: servers differ in its paths and forms, and the SDK speaks one of them.
var spoken = []struct {
	version  string
	bindings []protocol.TransportProtocol
}{
	{V1, []protocol.TransportProtocol{protocol.TransportProtocolJSONRPC, protocol.TransportProtocolHTTPJSON}},
	{V03, []protocol.TransportProtocol{protocol.TransportProtocolJSONRPC}},
	{V03, []protocol.TransportProtocol{protocol.TransportProtocolHTTPJSON}},
}

// choose gives the interface to call: of the newest version, the first that the hub speaks
// (rule A2A-070).
func choose(listed []*protocol.AgentInterface) (*protocol.AgentInterface, string) {
	for _, s := range spoken {
		for _, i := range listed {
			if i == nil || !slices.Contains(s.bindings, i.ProtocolBinding) {
				continue
			}
			if v := string(i.ProtocolVersion); v != s.version && !strings.HasPrefix(v, s.version+".") {
				continue
			}
			u, err := url.Parse(i.URL)
			if err != nil || u.Host == "" || u.User != nil || u.Scheme != "http" && u.Scheme != "https" {
				continue
			}
			return i, s.version
		}
	}
	return nil, ""
}

// skillsOf gives the skills of a card as the directory has them, the first of each id.
func skillsOf(skills []protocol.AgentSkill) []parley.SkillSpec {
	var out []parley.SkillSpec
	known := map[string]bool{}
	for _, s := range skills {
		id := clipped(s.ID, maxName)
		if id == "" || known[id] || len(out) == maxSkills {
			continue
		}
		known[id] = true
		text := s.Description
		if len(s.Tags) > 0 {
			text += "\nTags: " + strings.Join(s.Tags, ", ")
		}
		for _, e := range s.Examples {
			text += "\nExample: " + e
		}
		out = append(out, parley.SkillSpec{ID: id, Name: clipped(s.Name, maxName),
			Description: clipped(strings.TrimSpace(text), maxText)})
	}
	return out
}

// extension finds Parley's extension on a card, and one that callers must know and the
// hub does not.
func (c *RemoteCard) extension() (ours bool, unknown string) {
	for _, e := range c.Card.Capabilities.Extensions {
		switch {
		case e.URI == ExtensionURI:
			ours = true
		case e.Required && unknown == "":
			unknown = clipped(e.URI, maxName)
		}
	}
	return ours, unknown
}

// A peer is an agent elsewhere.
type peer struct {
	name string // in the directory; "": only its card is read
	at   string // its URL as enrolled
	url  *url.URL

	polls   chan struct{} // bounds polls at once
	streams chan struct{} // bounds open streams

	tasks int // requests that it works on; guarded by Binding.outMu

	mu      sync.Mutex
	conn    *connection   // nil: to be made
	changes int           // of the credentials
	card    *RemoteCard   // nil: it has not been read
	err     error         // why the last read failed
	until   time.Time     // it is not read again before
	asked   time.Time     // of the last read
	read    chan struct{} // closed at the end of the read in flight; nil where there is none
	called  time.Time     // the last call that it answered
	failed  error         // of the last call, if it got no answer
}

const (
	// maxTasks is how many requests of this hub one agent may work on at once; further
	// ones wait.
	maxTasks    = 1024
	maxStreams  = 64 // open at one agent; further tasks are polled
	pollsAtOnce = 8  // at one agent
	readsAtOnce = 8  // of cards, in the background
)

func (b *Binding) newPeer(name, at string) (*peer, error) {
	u, err := url.Parse(at)
	if err != nil || u.Host == "" || u.User != nil || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("url %q: want http(s)://host[:port][/path]", at)
	}
	u.Fragment, u.RawFragment = "", ""
	return &peer{name: name, at: at, url: u, polls: make(chan struct{}, pollsAtOnce),
		streams: make(chan struct{}, maxStreams)}, nil
}

// peerOf gives the peer of an agent elsewhere.
func (b *Binding) peerOf(name, at string) (*peer, error) {
	b.outMu.Lock()
	defer b.outMu.Unlock()
	for _, p := range b.peers[name] {
		if p.at == at {
			return p, nil
		}
	}
	p, err := b.newPeer(name, at)
	if err == nil {
		b.peers[name] = append(b.peers[name], p)
	}
	return p, err
}

// disconnect makes the next call of an agent use its present credentials, and its present
// card.
func (b *Binding) disconnect(name string) {
	b.outMu.Lock()
	peers := slices.Clone(b.peers[name])
	b.outMu.Unlock()
	for _, p := range peers {
		p.mu.Lock()
		if p.conn != nil {
			p.conn.close()
		}
		p.conn, p.until = nil, time.Time{}
		p.changes++
		p.mu.Unlock()
	}
}

// closePeers gives up the idle connections to all agents.
func (b *Binding) closePeers() {
	b.outMu.Lock()
	peers := slices.Concat(slices.Collect(maps.Values(b.peers))...)
	b.outMu.Unlock()
	for _, p := range peers {
		p.mu.Lock()
		if p.conn != nil {
			p.conn.close()
		}
		p.mu.Unlock()
	}
}

func (b *Binding) connectionOf(p *peer) *connection {
	for {
		p.mu.Lock()
		conn, since := p.conn, p.changes
		p.mu.Unlock()
		if conn != nil {
			return conn
		}
		c := b.credentialsFor(p)
		p.mu.Lock()
		if p.conn == nil && p.changes == since { // else they may have changed meanwhile
			p.conn = b.connect(p, c)
		}
		p.mu.Unlock()
	}
}

// cardOf gives the card of a peer. It waits for the first one; later it gives the one it
// has and reads a new one in the background when that is due. again asks for one now:
// a call failed as it does when the agent has moved.
func (b *Binding) peerCard(ctx context.Context, p *peer, again bool) (*RemoteCard, error) {
	now := b.c.Now()
	p.mu.Lock()
	due := !now.Before(p.until) || (again || p.card == nil) && now.Sub(p.asked) >= cardAgain
	if p.card == nil && p.err != nil {
		// The agent may have come back: a read costs no more than the call that would follow.
		reason, _ := bridge.NetworkFault(p.err)
		due = due || reason != ""
	}
	if due && p.read == nil && b.ctx.Err() == nil {
		p.read, p.asked = make(chan struct{}), now
		if !b.spawn(func() { b.refresh(recorder.Join(b.ctx, ctx), p) }) {
			p.read = nil
		}
	}
	card, read, err := p.card, p.read, p.err
	p.mu.Unlock()
	if card != nil && !again || read == nil {
		if card == nil {
			return nil, cmp.Or(err, b.ctx.Err())
		}
		return card, nil
	}
	select {
	case <-read:
	case <-ctx.Done():
		return card, ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.card == nil {
		return nil, p.err
	}
	return p.card, nil
}

// refresh reads the card of a peer. Without a new one the one before stays.
func (b *Binding) refresh(ctx context.Context, p *peer) {
	ctx, cancel := context.WithTimeout(ctx, 3*cardTimeout)
	defer cancel()
	p.mu.Lock()
	have := p.card
	p.mu.Unlock()
	card, err := b.fetchCard(ctx, p, b.connectionOf(p), have)
	same := errors.Is(err, errSame) || err == nil && have != nil && bytes.Equal(card.Raw, have.Raw)
	if errors.Is(err, errSame) {
		err = nil
	}
	if err == nil && card.Unproved != nil {
		card, err = nil, fmt.Errorf("the card of %q is not used: %w", p.name, card.Unproved)
	}
	if err != nil && b.ctx.Err() == nil {
		b.c.Logger.Warn("cannot read an agent's card", "agent", p.name, "url", p.url.Redacted(), "error", err)
	}
	p.mu.Lock()
	p.err = err
	if err == nil {
		p.card, p.until = card, b.c.Now().Add(card.fresh)
	} else {
		p.until = b.c.Now().Add(cardRetry)
	}
	close(p.read)
	p.read = nil
	p.mu.Unlock()
	if err == nil && !same {
		b.learn(ctx, p.name, card)
	}
}

// spawn runs work in the background; false: the binding is closing.
func (b *Binding) spawn(work func()) bool {
	b.outMu.Lock()
	defer b.outMu.Unlock()
	if b.ctx.Err() != nil {
		return false
	}
	b.work.Go(work)
	return true
}

// learn takes what a card says of its agent into the directory, unless the operator
// wrote the agent's skills.
func (b *Binding) learn(ctx context.Context, name string, card *RemoteCard) {
	d := b.c.Hub.Directory()
	says := directory.Card{Title: card.Card.Name, Description: card.Card.Description, Version: card.Card.Version}
	if e, ok := d.Agent(name); !ok || e.Card == says && reflect.DeepEqual(e.Skills, card.Skills) {
		return
	}
	err := d.LearnCard(ctx, name, Protocol, says, card.Skills)
	if err != nil && !errors.Is(err, directory.ErrUnknown) && b.ctx.Err() == nil {
		b.c.Logger.Error("cannot record what an agent's card says", "agent", name, "error", err)
	}
}

// readAhead reads the cards of agents that are new or have another URL, so that their
// skills are known before the first call.
func (b *Binding) readAhead(ch directory.Change) {
	if ch.New == nil {
		if ch.Old != nil {
			b.outMu.Lock()
			delete(b.peers, ch.Old.Name)
			b.outMu.Unlock()
			b.forgetAgent(ch.Old)
		}
		return
	}
	at := addressOf(ch.New)
	if at == "" || ch.Old != nil && addressOf(ch.Old) == at {
		return
	}
	p, err := b.peerOf(ch.New.Name, at)
	if err != nil {
		return // the first call says so
	}
	b.spawn(func() {
		select {
		case b.reads <- struct{}{}:
			defer func() { <-b.reads }()
			_, _ = b.peerCard(b.ctx, p, false) // logged, and told by the first call
		case <-b.ctx.Done():
		}
	})
}

// forgetAgent removes the stored credentials of an agent that is no longer here.
func (b *Binding) forgetAgent(e *directory.Entry) {
	if addressOf(e) == "" || !b.secrets.Has(e.Name) {
		return
	}
	b.spawn(func() {
		if err := b.ForgetCredentials(b.ctx, e.Name); err != nil && b.ctx.Err() == nil {
			b.c.Logger.Error("the credentials of a removed agent stay", "agent", e.Name, "error", err)
		}
	})
}

// addressOf is the URL of an A2A agent elsewhere; "" for other agents.
func addressOf(e *directory.Entry) string {
	for _, i := range e.Identities {
		if i.Protocol == Protocol && !i.StandIn {
			return i.URL
		}
	}
	return ""
}

// A remote is a peer with its card, ready to be called.
type remote struct {
	*RemoteCard
	peer      *peer
	transport a2aclient.Transport
	declares  bool // Parley's extension
}

// remoteOf makes a peer ready to be called.
func (b *Binding) remoteOf(ctx context.Context, p *peer, again bool) (*remote, error) {
	card, err := b.peerCard(ctx, p, again)
	if err != nil {
		return nil, err
	}
	r := &remote{RemoteCard: card, peer: p}
	client := &http.Client{Transport: &wire{b.connectionOf(p), b.c.MaxAnswer},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	u, err := url.Parse(card.Interface.URL)
	if err != nil {
		return nil, err
	}
	rest := card.Interface.ProtocolBinding == protocol.TransportProtocolHTTPJSON
	switch {
	case rest && card.Version == V1:
		r.transport = a2aclient.NewRESTTransport(u, client)
	case rest:
		r.transport, err = a2av0.NewRESTTransport(a2av0.RESTTransportConfig{URL: u.String(), Client: client})
	case card.Version == V1:
		r.transport = a2aclient.NewJSONRPCTransport(u.String(), client)
	default:
		r.transport = a2av0.NewJSONRPCTransport(a2av0.JSONRPCTransportConfig{URL: u.String(), Client: client})
	}
	r.declares, _ = card.extension()
	return r, err
}

// params are the service parameters of every request.
func (r *remote) params() a2aclient.ServiceParams {
	p := a2aclient.ServiceParams{strings.ToLower(protocol.SvcParamVersion): {r.Version}}
	if r.declares {
		p[strings.ToLower(protocol.SvcParamExtensions)] = []string{ExtensionURI}
	}
	return p
}

// noCard is the error for an agent whose card cannot be had.
func noCard(agent string, err error) *parley.Error {
	e := bridge.Unreachable(parley.Fail(parley.Unavailable, err, "the card of %q cannot be read now", agent), err)
	if e.Source != parley.NotStated {
		return e
	}
	if status, ok := errors.AsType[*statusError](err); ok {
		return bridge.Answered(e, Protocol, status.text, strconv.Itoa(status.status))
	}
	return bridge.NotUnderstood(e, err)
}
