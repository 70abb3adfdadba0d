package mcp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/internal/source"
	"github.com/parley-hub/parley/policy"
)

// door has the HTTP endpoints of clients: what comes in is checked here, before the SDK sees it.
type door struct {
	b        *Binding
	server   func() *mcp.Server
	sessions *sessions

	stateless http.Handler // of the revisions without sessions
	stateful  http.Handler
}

func newDoor(b *Binding) *door {
	d := &door{b: b, server: func() *mcp.Server { return b.clients.server }, sessions: newSessions(b)}
	get := func(*http.Request) *mcp.Server { return d.server() }
	// The door has checked the host, and bounded the body.
	options := mcp.StreamableHTTPOptions{DisableLocalhostProtection: true, MaxRequestBodyBytes: -1}
	withToken := auth.RequireBearerToken(tokenOfCaller, &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})
	stateless, stateful := options, options
	stateless.Stateless, stateless.PropagateRequestCancellation = true, true
	stateful.SessionTimeout = b.c.Idle
	d.stateless = withToken(mcp.NewStreamableHTTPHandler(get, &stateless))
	d.stateful = withToken(mcp.NewStreamableHTTPHandler(get, &stateful))
	return d
}

func (d *door) close() { d.sessions.close() }

// callerKey is the context value with the caller of a request: net/http and the SDK hand on nothing else.
type callerKey struct{}

// placeholder stands for the caller's credentials, which the SDK does not see.
const placeholder = "Bearer of-the-door"

func tokenOfCaller(ctx context.Context, _ string, _ *http.Request) (*auth.TokenInfo, error) {
	c, ok := ctx.Value(callerKey{}).(*caller)
	if !ok {
		return nil, auth.ErrInvalidToken
	}
	return c.tokenInfo(), nil
}

// ServeHTTP serves the endpoints of clients and of tunnels:
//
//	     /mcp, /mcp/agents/NAME                              Streamable HTTP
//	GET  /mcp/connect, /mcp/connect/agents/NAME              tunnel of a client (WebSocket, "parley mcp stdio")
//	GET  /mcp/attach/NAME                                    tunnel of a server (WebSocket, "parley mcp attach")
//	GET  /.well-known/oauth-protected-resource/mcp[/…]       protected resource metadata (RFC 9728)
//
// The path is below the public URL.
func (b *Binding) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &httpExchange{b: b, w: w, r: r}
	switch x.to = b.route(r); {
	case !b.knowsHost(r):
		x.fail("origin", parley.Refuse(parley.Forbidden,
			"the hub is not known under the host of this request; the operator can allow it with mcp.hosts"))
	case !b.knowsOrigin(r):
		x.fail("origin", parley.Refuse(parley.Forbidden,
			"pages of this origin may not call the hub; the operator can allow it with listen.origins"))
	case x.cors():
	case x.to.kind == nowhere:
		x.fail("decode", parley.Refuse(parley.UnknownAgent, "no such agent or endpoint"))
	case x.to.kind == toMetadata:
		x.serveMetadata()
	default:
		x.serve()
	}
}

// An httpExchange is one HTTP request and its answer.
type httpExchange struct {
	b *Binding
	w http.ResponseWriter
	r *http.Request

	to     route
	caller caller
	size   int         // bytes of the body
	id     jsonx.Value // of the message; nil: not known, or none
	ref    string      // of its refusal
	after  int64       // seconds until it may be made again
}

type routeKind int

const (
	nowhere routeKind = iota
	toEndpoint
	toConnect
	toAttach
	toMetadata
)

// A route is where a request goes.
type route struct {
	kind  routeKind
	path  string // of the endpoint
	agent string // whose endpoint or server it is; "": all agents
}

// route finds the endpoint of a request. An agent's name may have slashes.
func (b *Binding) route(r *http.Request) route {
	path := r.URL.Path
	raw := strings.ToLower(r.URL.RawPath)
	if strings.Contains(raw, "%2f") || strings.Contains(raw, "%5c") {
		return route{}
	}
	kind := toEndpoint
	if rest, ok := strings.CutPrefix(path, MetadataPath); ok {
		kind, path = toMetadata, rest
		// Clients that know RFC 9728 alone put the path of the public URL after it.
		if below, ok := strings.CutPrefix(rest, b.public.Path); ok && strings.HasPrefix(below, Base) {
			path = below
		}
	}
	rest, ok := strings.CutPrefix(path, Base)
	if !ok {
		return route{}
	}
	if agent, ok := strings.CutPrefix(rest, "/attach/"); ok && kind == toEndpoint {
		if _, known := b.c.Hub.Directory().Agent(agent); !known {
			return route{}
		}
		return route{toAttach, path, agent}
	}
	if below, ok := strings.CutPrefix(rest, "/connect"); ok && kind == toEndpoint {
		kind, rest = toConnect, below
	}
	if rest == "" {
		return route{kind, Base, ""}
	}
	agent, ok := strings.CutPrefix(rest, agentsPath)
	if !ok || !b.exposes(agent) {
		return route{}
	}
	return route{kind, Base + agentsPath + agent, agent}
}

const agentsPath = "/agents/"

// exposes reports whether clients may have an endpoint of an agent.
func (b *Binding) exposes(name string) bool {
	e, ok := b.c.Hub.Directory().Agent(name)
	return ok && (e.ExposedIn(Protocol) || slices.Contains(e.Native(), Protocol))
}

// knowsHost reports whether a request names the hub as the operator does. Else a page could reach the hub under its own
// name (DNS rebinding).
func (b *Binding) knowsHost(r *http.Request) bool {
	host := strings.ToLower(r.Host)
	name := hostName(host)
	switch {
	case name == "":
		return false
	case name == hostName(strings.ToLower(b.public.Host)):
		return true
	case slices.ContainsFunc(b.c.Hosts, func(h string) bool {
		h = strings.ToLower(h)
		return h == host || h == name || strings.Trim(h, "[]") == name
	}):
		return true
	}
	return isLoopback(name) && overLoopback(r)
}

// hostName is a host without its port.
func hostName(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.TrimSuffix(strings.Trim(host, "[]"), ".")
}

func isLoopback(name string) bool {
	a, err := netip.ParseAddr(name)
	return name == "localhost" || err == nil && a.Unmap().IsLoopback()
}

// overLoopback reports whether a request came from this machine.
func overLoopback(r *http.Request) bool {
	a, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && isLoopback(hostName(a.String()))
}

// knowsOrigin reports whether a request comes from no page, or from one that may call.
func (b *Binding) knowsOrigin(r *http.Request) bool {
	origins := r.Header["Origin"]
	if len(origins) != 1 {
		return len(origins) == 0
	}
	if slices.Contains(b.c.Origins, "*") || slices.Contains(b.c.Origins, origins[0]) {
		return true
	}
	u, err := url.Parse(origins[0])
	if err != nil || u.Host == "" {
		return false
	}
	return originOf(u) == originOf(b.public) ||
		isLoopback(hostName(strings.ToLower(u.Host))) && isLoopback(b.public.Hostname()) && overLoopback(r)
}

// originOf is the origin of a URL, without the usual port.
func originOf(u *url.URL) string {
	host := strings.ToLower(u.Host)
	switch u.Scheme {
	case "http":
		host = strings.TrimSuffix(host, ":80")
	case "https":
		host = strings.TrimSuffix(host, ":443")
	}
	return u.Scheme + "://" + host
}

// cors marks the answer for the page that calls, and answers preflights. The origin may call.
func (x *httpExchange) cors() (done bool) {
	h := x.w.Header()
	h.Add("Vary", "Origin")
	origin := x.r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", sessionHeader+", Retry-After, WWW-Authenticate, "+refHeader)
	if x.r.Method != http.MethodOptions || x.r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE")
	h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Accept, MCP-Protocol-Version, Mcp-Session-Id, "+
		"Mcp-Method, Mcp-Name, Last-Event-ID")
	h.Set("Access-Control-Max-Age", "600")
	x.w.WriteHeader(http.StatusNoContent)
	return true
}

// identify finds the caller, who must be one that the endpoint takes.
func (x *httpExchange) identify() error {
	b, r := x.b, x.r
	c := bridge.Caller{Name: directory.GuestName(Protocol, source.Host(r.RemoteAddr), ""), Guest: true}
	if b.c.Callers != nil {
		var err error
		ctx := bridge.ForResource(r.Context(), b.resource(Base), b.resource(x.to.path))
		if c, err = b.c.Callers.Identify(ctx, Protocol, r.Header, r.TLS, r.RemoteAddr); err != nil {
			return err
		}
	}
	x.caller = caller{Caller: c, endpoint: x.to.path, agent: x.to.agent, remote: r.RemoteAddr}
	switch {
	case !c.Guest:
		policy.Vouch(r.Context())
	case x.to.kind == toAttach || !b.takesGuests(x.to.agent):
		return parley.Refuse(parley.Unauthenticated, "the hub takes callers with credentials only here")
	}
	return nil
}

// takesGuests reports whether callers without credentials may use the endpoint of an agent, or of all.
func (b *Binding) takesGuests(agent string) bool {
	if agent != "" {
		return b.opensToGuests(agent)
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	if len(b.c.Guests) > 0 {
		return true
	}
	for _, s := range b.settings {
		if s.Guests {
			return true
		}
	}
	return false
}

func (x *httpExchange) serve() {
	if err := x.identify(); err != nil {
		x.fail("verify", err)
		return
	}
	if x.to.kind == toConnect || x.to.kind == toAttach {
		x.serveTunnel()
		return
	}
	version := x.r.Header.Get("Mcp-Protocol-Version")
	session := x.r.Header.Get(sessionHeader)
	switch method := x.r.Method; {
	case method == http.MethodPost:
		x.servePost(session)
	case (method != http.MethodGet && method != http.MethodDelete) || session == "" || version >= statelessRevision:
		allow := "POST"
		if session != "" && version < statelessRevision {
			allow = "GET, POST, DELETE"
		}
		x.refuseMethod(allow)
	case version != "" && !slices.Contains(wireRevisions, version):
		x.fail("decode", refuseVersion(version))
	default:
		x.serveSession(session)
	}
}

func (x *httpExchange) refuseMethod(allow string) {
	x.w.Header().Set("Allow", allow)
	e := refuseRequest("this HTTP method is not allowed here")
	e.http, e.code = http.StatusMethodNotAllowed, parley.Unsupported
	x.fail("decode", e)
}

// serveTunnel hands a tunnel on.
func (x *httpExchange) serveTunnel() {
	agent := x.to.agent
	if x.r.Method != http.MethodGet {
		x.refuseMethod("GET")
		return
	}
	if x.to.kind == toAttach {
		if x.caller.Name != agent {
			x.fail("admit", parley.Refuse(parley.UnknownAgent, "no such agent or endpoint"))
			return
		}
		e, _ := x.b.c.Hub.Directory().Agent(agent)
		if id, ok := e.Identity(Protocol); !ok || !IsTunnel(id.ID) {
			x.fail("admit", parley.Refuse(parley.Forbidden, "the agent %q has no attached MCP server; "+
				"the operator enrols it with mcp.attached", agent))
			return
		}
	}
	done, err := x.b.door.sessions.take(x.r.Context(), &x.caller)
	if err != nil {
		x.fail("admit", err)
		return
	}
	defer done()
	ctx, end := x.b.streamContext(x.r.Context(), &x.caller)
	defer end()
	r := x.r.WithContext(ctx)
	if x.to.kind == toAttach {
		x.b.serveAttach(x.w, r, &x.caller, agent)
		return
	}
	x.b.serveConnect(x.w, r, &x.caller)
}

// serveSession serves the stream of a session, or ends the session.
func (x *httpExchange) serveSession(id string) {
	s := x.b.door.sessions.of(id, &x.caller)
	switch {
	case s == nil:
		x.fail("decode", noSession())
		return
	case x.r.Method == http.MethodDelete:
		// Closing waits for calls; they go on, and their answers are kept.
		if x.b.door.sessions.remove(id); !x.b.spawn(func() { _ = s.Close() }) {
			x.fail("admit", errHubStopping)
			return
		}
		x.w.WriteHeader(http.StatusNoContent)
		return
	case !accepts(x.r.Header, "text/event-stream"):
		x.fail("decode", refuseRequest("Accept: want text/event-stream"))
		return
	case x.b.streaming.Err() != nil:
		x.fail("admit", errHubStopping)
		return
	case x.r.Header.Get("Last-Event-ID") != "":
		x.fail("decode", refuseRequest("Last-Event-ID: streams are not resumed; parley_result gives the answer of a call"))
		return
	}
	x.caller.session = id
	ctx, end := x.b.streamContext(x.r.Context(), &x.caller)
	defer end()
	x.forward(ctx, x.b.door.stateful, nil, func(*httpReply) (func(), error) { return nil, nil })
}

// noSession is the error for a session that is unknown, or another caller's. It has no id: then clients see that the
// session is gone.
func noSession() *wireError {
	return &wireError{http: http.StatusNotFound, rpc: -32600, code: parley.Conflict,
		text: "no such session; begin one with initialize"}
}

// accepts reports whether the client takes a media type.
func accepts(h http.Header, want string) bool {
	kind, _, _ := strings.Cut(want, "/")
	for _, list := range h.Values("Accept") {
		for one := range strings.SplitSeq(list, ",") {
			t, _, _ := strings.Cut(one, ";")
			switch strings.ToLower(strings.TrimSpace(t)) {
			case want, kind + "/*", "*/*":
				return true
			}
		}
	}
	return false
}

// servePost serves a message.
func (x *httpExchange) servePost(session string) {
	if !isJSON(x.r.Header.Values("Content-Type")) {
		e := refuseRequest("Content-Type: want application/json")
		e.http, e.code = http.StatusUnsupportedMediaType, parley.Unsupported
		x.fail("decode", e)
		return
	}
	if !accepts(x.r.Header, "application/json") || !accepts(x.r.Header, "text/event-stream") {
		x.fail("decode", refuseRequest("Accept: want application/json and text/event-stream"))
		return
	}
	body, err := x.readBody()
	if err != nil {
		x.fail("decode", err)
		return
	}
	m, bad := readWire(body)
	x.id = m.id
	if bad != nil {
		x.fail("decode", bad)
		return
	}
	isModern, bad := m.checkVersion(x.r.Header)
	if bad != nil {
		x.fail("decode", bad)
		return
	}
	x.caller.id = string(m.id)
	if isModern {
		x.serveModern(m)
		return
	}
	x.serveLegacy(m, session)
}

// isJSON reports whether the values of Content-Type say that a body is JSON.
func isJSON(types []string) bool {
	if len(types) != 1 {
		return false
	}
	t, params, err := mime.ParseMediaType(types[0])
	charset, named := params["charset"]
	return err == nil && t == "application/json" && (!named || strings.EqualFold(charset, "utf-8"))
}

// maxHead is how much of a body that is too large is searched for its id.
const maxHead = 2 << 10

// readBody reads the request's body. The refusal of one that is too large has its id, if that comes early: without it
// clients take the refusal for the end of the connection.
func (x *httpExchange) readBody() ([]byte, error) {
	limit := x.b.c.MaxBody
	tooLarge := parley.Refuse(parley.TooLarge, "the request is larger than %d bytes", limit).
		With(parley.ByLimit, parley.BodySize, "")
	var head []byte
	if x.r.ContentLength < 0 || x.r.ContentLength > limit {
		head, _ = io.ReadAll(io.LimitReader(x.r.Body, maxHead)) // an error comes again
	}
	if x.r.ContentLength > limit {
		x.id = idOf(head)
		return nil, tooLarge
	}
	body, err := netguard.ReadAll(io.MultiReader(bytes.NewReader(head), x.r.Body), limit)
	x.size = len(body)
	switch _, outer := errors.AsType[*http.MaxBytesError](err); {
	case errors.Is(err, netguard.ErrTooLarge) || outer:
		x.id = idOf(head)
		return nil, tooLarge.Because(err)
	case err != nil:
		e := refuseRequest("the body could not be read")
		e.err = err
		return nil, e
	}
	return body, nil
}

// serveModern serves a message of the revisions without sessions.
func (x *httpExchange) serveModern(m *wireMessage) {
	x.r.Header = x.r.Header.Clone()
	if err := m.checkModern(x.r.Header); err != nil {
		x.fail("decode", err)
		return
	}
	if !m.call() { // nothing is kept between requests that it could be about
		x.w.WriteHeader(http.StatusAccepted)
		return
	}
	x.caller.modern = true
	ctx, listens := x.r.Context(), m.method == "subscriptions/listen"
	if listens {
		var end func()
		ctx, end = x.b.streamContext(ctx, &x.caller)
		defer end()
	}
	x.forward(ctx, x.b.door.stateless, m, func(*httpReply) (func(), error) {
		if !listens {
			return nil, nil
		}
		return x.b.door.sessions.take(x.r.Context(), &x.caller)
	})
}

// serveLegacy serves a message of the handshake revisions.
func (x *httpExchange) serveLegacy(m *wireMessage, id string) {
	sessions := x.b.door.sessions
	s := sessions.of(id, &x.caller)
	begins := m.call() && m.method == "initialize"
	switch {
	case id != "" && s == nil:
		x.id = nil
		x.fail("decode", noSession())
		return
	case begins && s != nil:
		x.fail("decode", refuseRequest("the session is initialized already"))
		return
	case !begins && s == nil:
		x.fail("decode", refuseRequest("the first request is initialize; its answer has the header Mcp-Session-Id, "+
			"which the others repeat"))
		return
	}
	if err := m.checkLegacy(); err != nil {
		x.fail("decode", err)
		return
	}
	if _, known := wireMethods[m.method]; !m.call() && m.method != "" && !known {
		x.w.WriteHeader(http.StatusAccepted) // JSON-RPC has no answer for it
		return
	}
	x.caller.session = id
	if cancelled := m.cancels(); cancelled != "" {
		x.b.calls.cancelled(id, cancelled)
		s.cancel(cancelled)
	}
	x.forward(x.r.Context(), x.b.door.stateful, m, func(p *httpReply) (func(), error) {
		switch {
		case begins:
			done, err := sessions.take(x.r.Context(), &x.caller)
			kept := false
			p.opened = func(id string) {
				kept = true
				sessions.add(id, &x.caller, x.b.door.server(), done)
			}
			return func() {
				if !kept {
					done()
				}
			}, err
		case m.call():
			s.began(x.caller.id, p)
			return func() { s.ended(x.caller.id, p) }, nil
		}
		return nil, nil
	})
}

// forward hands a request to a handler of the SDK. prepare gives what ends with the answer.
func (x *httpExchange) forward(ctx context.Context, to http.Handler, m *wireMessage,
	prepare func(*httpReply) (end func(), err error)) {
	ctx, cancel := context.WithCancel(context.WithValue(ctx, callerKey{}, &x.caller))
	defer cancel()
	p := newHTTPReply(x, cancel)
	end, err := prepare(p)
	if err != nil {
		x.fail("admit", err)
		return
	}
	if end != nil {
		defer end()
	}
	defer p.finish()
	if m != nil && m.call() && m.method != "initialize" {
		p.waitsForEvents()
	}
	r := x.r.WithContext(ctx)
	r.Header = x.r.Header.Clone()
	r.Header.Set("Authorization", placeholder)
	for _, secret := range []string{"Cookie", "Proxy-Authorization"} {
		r.Header.Del(secret)
	}
	if m != nil {
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(m.body)), int64(len(m.body))
	}
	to.ServeHTTP(p, r)
}
