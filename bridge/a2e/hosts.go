package a2e

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/internal/netguard"
)

// hosts are the A2E hosts that the hub attaches to: agents of the directory
// with the URL of a host. Their tools are the agents' skills.
type hosts struct {
	b *Binding

	mu     sync.Mutex
	byName map[string]*attachment
	tokens map[string]string
	closed bool
	open   bool // the hub has started
}

// attachment is one host.
type attachment struct {
	agent, url string
	client     *protocol.Client
	stop       context.CancelFunc
	ended      chan struct{}
	changed    chan struct{} // holds one token when the connection came or went

	mu      sync.Mutex
	learned bool  // the host has answered since the hub started
	err     error // the last error, if the host did not answer
}

// Intervals at which a host is asked for its tools: until it answers, and from then on.
// A change of its connection triggers a request at once.
const (
	hostFirst   = time.Second
	hostLongest = 10 * time.Second
	hostEvery   = 10 * time.Minute
	hostWait    = 30 * time.Second
)

func newHosts(b *Binding) *hosts {
	return &hosts{b: b, byName: map[string]*attachment{}, tokens: map[string]string{}}
}

func (h *hosts) setToken(agent, token string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tokens[agent] = token
}

// start attaches to the hosts of the directory.
func (h *hosts) start() {
	h.mu.Lock()
	h.open = true
	h.mu.Unlock()
	for _, e := range h.b.c.Hub.Directory().All() {
		h.changed(directory.Change{New: e})
	}
}

func hostURL(e *directory.Entry) string {
	if e == nil {
		return ""
	}
	for _, i := range e.Identities {
		if i.Protocol == Protocol && !i.StandIn && i.URL != "" {
			return i.URL
		}
	}
	return ""
}

// changed follows the directory.
func (h *hosts) changed(c directory.Change) {
	name, at := cmp.Or(c.New, c.Old).Name, hostURL(c.New)
	h.mu.Lock()
	defer h.mu.Unlock()
	a := h.byName[name]
	if h.closed || !h.open || a != nil && a.url == at || a == nil && at == "" {
		return
	}
	if a != nil {
		delete(h.byName, name)
		a.stop()
	}
	if at == "" {
		return
	}
	client, err := h.client(name, at)
	if err != nil {
		h.b.c.Logger.Error("an A2E host cannot be attached to", "agent", name, "url", at, "error", err)
		return
	}
	ctx, stop := context.WithCancel(h.b.ctx)
	a = &attachment{agent: name, url: at, client: client, stop: stop, ended: make(chan struct{}),
		changed: make(chan struct{}, 1)}
	client.OnLink = func(bool) { wake(a.changed) }
	h.byName[name] = a
	go h.follow(ctx, a)
}

// client makes a client to a host. Addresses go through the guard, whatever the
// transport.
func (h *hosts) client(name, at string) (*protocol.Client, error) {
	u, err := url.Parse(at)
	if err != nil {
		return nil, err
	}
	c := &protocol.Client{URL: at, AgentID: h.b.c.Hub.ID(), Token: h.tokens[name], Log: h.b.c.Logger, Now: h.b.c.Now,
		FailFast: true} // the hub has retries of its own
	guard := netguard.Live(h.b.c.Allow, netguard.HubAdvice)
	switch u.Scheme {
	case "http", "https":
		c.HTTP = guard.Client(netguard.Options{Timeout: -1, MaxRedirects: -1, MaxResponseBytes: -1,
			RootCAs: h.b.c.RootCAs})
	case "tcp":
		c.Dial = func(ctx context.Context) (io.ReadWriteCloser, error) { return guard.DialContext(ctx, "tcp", u.Host) }
	case "tls":
		c.Dial = func(ctx context.Context) (io.ReadWriteCloser, error) {
			raw, err := guard.DialContext(ctx, "tcp", u.Host)
			if err != nil {
				return nil, err
			}
			secure := tls.Client(raw, &tls.Config{ServerName: u.Hostname(), RootCAs: h.b.c.RootCAs,
				MinVersion: tls.VersionTLS12})
			if err := secure.HandshakeContext(ctx); err != nil {
				return nil, errors.Join(err, raw.Close())
			}
			return secure, nil
		}
	case "unix": // dialled by the client: there is no address to guard
	default:
		return nil, fmt.Errorf("scheme %q: want http, https, tcp, tls or unix", u.Scheme)
	}
	return c, nil
}

// address is where the host listens, without a secret that its URL may hold.
func (a *attachment) address() string {
	u, err := url.Parse(a.url)
	if err != nil {
		return ""
	}
	return cmp.Or(u.Host, u.Path)
}

// follow learns the host's tools, and refreshes them from time to time.
func (h *hosts) follow(ctx context.Context, a *attachment) {
	defer close(a.ended)
	defer func() { _ = a.client.Close() }() // the host may be gone
	pause := hostFirst
	for {
		asked := time.Now()
		wait := hostEvery
		if err := h.learn(ctx, a); err != nil && ctx.Err() == nil {
			level := slog.LevelWarn
			if a.failed(err) { // the same failure is logged once
				level = slog.LevelDebug
			}
			h.b.c.Logger.Log(ctx, level, "cannot ask an A2E host for its tools", "agent", a.agent, "url", a.url,
				"error", err)
			wait = pause
			pause = min(2*pause, hostLongest)
		} else {
			pause = hostFirst
		}
		select {
		case <-time.After(wait):
		case <-a.changed:
			select { // at most once a second, however often the connection changes
			case <-time.After(time.Until(asked.Add(hostFirst))):
			case <-ctx.Done():
			}
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// failed records a failed request for the tools, and reports whether the last one
// failed in the same way.
func (a *attachment) failed(err error) (again bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	again = a.err != nil && a.err.Error() == err.Error()
	a.err = err
	return again
}

// ambiguous is the error for a request that names none of the host's tools.
func (a *attachment) ambiguous(skills []parley.SkillSpec) *parley.Error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case len(skills) > 0:
		names := make([]string, 0, len(skills))
		for _, s := range skills {
			names = append(names, s.ID)
		}
		return parley.Refuse(parley.UnknownSkill, "the host of %q has several tools; name one: %s", a.agent,
			bridge.Shorten(strings.Join(names, ", "), 200))
	case a.learned:
		return parley.Refuse(parley.UnknownSkill, "the host of %q has no tools", a.agent)
	case a.err != nil:
		refused, why, _ := fromError(a.err)
		why = cmp.Or(why, refused)
		return parley.Fail(parley.Unavailable, a.err,
			"the host of %q has not been reached yet, so that its tools are not known: %s", a.agent, why.Text).
			With(why.Source, why.Reason, why.Detail)
	}
	return parley.Fail(parley.Unavailable, nil,
		"the host of %q has not been reached yet, so that its tools are not known; try again in a moment", a.agent).
		With(parley.ByNetwork, parley.NotConnected, "")
}

func (h *hosts) learn(ctx context.Context, a *attachment) error {
	wait, cancel := context.WithTimeout(ctx, hostWait)
	defer cancel()
	if err := a.client.Connect(wait); err != nil {
		return err
	}
	select {
	case <-a.changed: // by this connection: later changes are new
	default:
	}
	list, err := a.client.Tools(wait, protocol.ToolQuery{IncludeDeferred: true})
	if err != nil && !protocol.NotSupported(err) {
		return err
	}
	a.mu.Lock()
	a.learned, a.err = true, nil
	a.mu.Unlock()
	if err != nil {
		return nil // a provider of other capabilities
	}
	d := h.b.c.Hub.Directory()
	e, ok := d.Agent(a.agent)
	if !ok || hostURL(e) != a.url {
		return nil
	}
	skills := make([]parley.SkillSpec, 0, len(list))
	for _, t := range list {
		s, err := toSkill(t)
		if err != nil || slices.ContainsFunc(skills, func(o parley.SkillSpec) bool { return o.ID == s.ID }) {
			h.b.c.Logger.Warn("a tool of an A2E host is left out", "agent", a.agent, "tool", bridge.Shorten(t.Name, 64),
				"error", err)
			continue
		}
		if len(skills) < 1000 {
			skills = append(skills, s)
		}
	}
	if reflect.DeepEqual(skills, e.Skills) || len(skills) == 0 && len(e.Skills) == 0 {
		return nil
	}
	next := e.Agent
	next.Skills = skills
	_, err = d.Put(ctx, next, e.Source)
	return err
}

func (h *hosts) close() {
	h.mu.Lock()
	h.closed = true
	all := slices.Collect(maps.Values(h.byName))
	h.mu.Unlock()
	for _, a := range all {
		a.stop()
		<-a.ended
	}
}

func (h *hosts) get(agent string) *attachment {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.byName[agent]
}

// remembers reports whether a host says that it executes a repeated id once.
func (h *hosts) remembers(agent string) bool {
	a := h.get(agent)
	return a != nil && a.client.Remembers()
}

// hostProvider is the provider of a capability that a host serves: one of the protocol,
// or one that agent and host agreed on. Its requests go to that host unchanged, through
// the hub like all others.
type hostProvider struct {
	b          *Binding
	capability string
	agent      string
}

// Serve implements a2e.Provider.
func (p hostProvider) Serve(ctx context.Context, r *protocol.Request) (protocol.Response, error) {
	switch r.Type {
	case "mcp/sample/req", "mcp/root/list/req": // hosts send them, agents answer (A2E §6)
		return protocol.Response{}, protocol.ErrUnknownType
	}
	body, err := bodyOf(r.Envelope)
	if err != nil {
		return protocol.Response{}, protocol.ErrSchema.Because(err)
	}
	m := p.b.request(r, parley.Request)
	m.To, m.Skill, m.Parts = p.agent, r.Type, []parley.Part{jsonPart(body)}
	if m.Extensions, err = (extension{Type: r.Type}).in(); err != nil {
		return protocol.Response{}, err
	}
	reply, err := p.b.call(ctx, r, m, true, func(e *parley.Message) error {
		kind, data := toEvent(e)
		return r.Event(ctx, kind, data)
	})
	if e, ok := errors.AsType[*protocol.Error](err); ok && e.Reason == string(parley.Unsupported) {
		err = protocol.ErrUnknownType.Because(e) // the host's answer
	}
	if err != nil {
		return protocol.Response{}, err
	}
	out := protocol.Response{Type: extensionOf(reply).Type}
	if len(reply.Parts) == 1 {
		out.Body = json.RawMessage(reply.Parts[0].Data)
	}
	return out, nil
}

// Describe implements a2e.Describer.
func (p hostProvider) Describe() any { return map[string]string{"provider": p.agent} }
