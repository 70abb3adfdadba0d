package a2a

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/internal/source"
	"github.com/parley-hub/parley/policy"
)

// ServeHTTP serves the cards and endpoints of all exposed agents:
//
//	GET  /.well-known/agent-card.json             card of one agent, chosen by host or Config.Root
//	GET  /a2a/NAME/.well-known/agent-card.json    card
//	GET  /a2a/.well-known/jwks.json               keys that sign the cards
//	POST /a2a/NAME                                JSON-RPC, 1.0 and 0.3 (rpc.go)
//	     /a2a/NAME/message:send, …                HTTP+JSON, 1.0 (rest.go)
//
// The path is below the public URL.
func (b *Binding) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &exchange{b: b, w: w, r: r, id: nullID}
	if r.URL.Path == JWKSPath {
		b.serveKeys(w, r)
		return
	}
	if agent, ok := b.cardOf(r); ok {
		x.serveCard(agent)
		return
	}
	if x.cors() {
		return
	}
	route, allow := b.route(r)
	x.agent = route.agent
	switch {
	case route.agent == "":
		x.fail("decode", errNoEndpoint)
	case len(allow) > 0:
		w.Header().Set("Allow", strings.Join(allow, ", "))
		x.fail("decode", errMethod)
	case route.endpoint != nil:
		x.serveREST(route)
	default:
		x.rpc = true
		x.serveRPC()
	}
}

// An exchange is one HTTP request and its answer.
type exchange struct {
	b *Binding
	w http.ResponseWriter
	r *http.Request

	agent  string
	caller bridge.Caller
	size   int // bytes of the body

	rpc    bool            // JSON-RPC
	id     json.RawMessage // of the request: a literal
	silent bool            // a notification: it gets no result
}

// A route is where a request goes.
type route struct {
	agent    string    // "": nowhere
	endpoint *endpoint // of REST; nil: JSON-RPC
	task     string    // from the path
	config   string
}

// route finds the agent and the endpoint of a request. allow lists the HTTP methods of the
// endpoint if that of the request is none. An agent's name may have slashes, so the end of
// the path says which endpoint it is.
func (b *Binding) route(r *http.Request) (to route, allow []string) {
	path, ok := strings.CutPrefix(r.URL.Path, Base)
	if r.Method == http.MethodPost {
		path = strings.TrimSuffix(path, "/") // clients join the URL of the card and an empty path
	}
	if !ok || !cleanPath(r) {
		return route{}, nil
	}
	segments := strings.Split(path, "/")
	for i := range endpoints {
		e := &endpoints[i]
		candidate, ok := e.match(segments)
		if !ok || !b.serves(candidate.agent) {
			continue
		}
		if r.Method == e.method {
			return candidate, nil
		}
		to = candidate
		allow = append(allow, e.method)
	}
	switch {
	case b.serves(path) && r.Method == http.MethodPost:
		return route{agent: path}, nil
	case b.serves(path):
		return route{agent: path}, append(allow, http.MethodPost)
	}
	return to, allow
}

// cleanPath reports whether a path has one reading: no empty segments, dots or escaped
// separators.
func cleanPath(r *http.Request) bool {
	path := strings.TrimPrefix(r.URL.Path, "/")
	if r.Method == http.MethodPost {
		path = strings.TrimSuffix(path, "/")
	}
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "" || segment == "." || segment == ".." {
			return false
		}
	}
	raw := strings.ToLower(r.URL.RawPath)
	return !strings.Contains(raw, "%2f") && !strings.Contains(raw, "%5c")
}

// exposes reports whether an agent is one of A2A: exposed in it, or elsewhere and known by
// its card.
func (b *Binding) exposes(e *directory.Entry) bool {
	return e.ExposedIn(Protocol) || slices.Contains(e.Native(), Protocol)
}

// serves reports whether there is such an agent at an endpoint.
func (b *Binding) serves(name string) bool {
	e, ok := b.c.Hub.Directory().Agent(name)
	return ok && b.exposes(e)
}

// cardOf finds the agent whose card is at the request's URL; "" for a card that is not here.
func (b *Binding) cardOf(r *http.Request) (agent string, ok bool) {
	if r.URL.Path == CardPath {
		agent = b.byHost(r.Host)
	} else {
		path, below := strings.CutPrefix(r.URL.Path, Base)
		name, card := strings.CutSuffix(path, CardPath)
		if !below || !card {
			return "", false
		}
		if cleanPath(r) {
			agent = name
		}
	}
	if !b.serves(agent) {
		agent = ""
	}
	return agent, true
}

// byHost is the agent whose card is at the root of a host: that of a sub-domain, or the
// root agent.
func (b *Binding) byHost(host string) string {
	if b.c.Domain == "" {
		return b.c.Root
	}
	label, ok := strings.CutSuffix(strings.ToLower(source.Host(host)), "."+b.c.Domain)
	if !ok {
		return b.c.Root
	}
	if _, ok := b.c.Hub.Directory().Agent(label); ok {
		return label
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.labels[label]
}

// relabel keeps the labels of sub-domains with the directory.
func (b *Binding) relabel(ch directory.Change) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ch.Old != nil {
		delete(b.labels, bridge.HostLabel(ch.Old.Name))
	}
	if ch.New != nil {
		b.labels[bridge.HostLabel(ch.New.Name)] = ch.New.Name
	}
}

// serveCard hands a request for a card on. Pages of all origins may read cards, without
// credentials.
func (x *exchange) serveCard(agent string) {
	h := x.w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Expose-Headers", "ETag, "+refHeader)
	x.agent = agent
	switch {
	case x.preflight():
		x.allow("GET, HEAD")
	case agent == "":
		x.fail("decode", errNoEndpoint)
	case x.r.Method != http.MethodGet && x.r.Method != http.MethodHead:
		h.Set("Allow", "GET, HEAD")
		x.fail("decode", errMethod)
	default:
		x.b.serveCard(x.w, x.r, agent)
	}
}

func (x *exchange) preflight() bool {
	return x.r.Method == http.MethodOptions && x.r.Header.Get("Origin") != "" &&
		x.r.Header.Get("Access-Control-Request-Method") != ""
}

func (x *exchange) allow(methods string) {
	h := x.w.Header()
	h.Set("Access-Control-Allow-Methods", methods)
	h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, A2A-Version, A2A-Extensions, "+
		"X-A2A-Extensions, If-None-Match, Last-Event-ID")
	h.Set("Access-Control-Max-Age", "600")
	x.w.WriteHeader(http.StatusNoContent)
}

// cors answers preflights of endpoints and marks answers for the pages of Config.Origins.
func (x *exchange) cors() (done bool) {
	if len(x.b.c.Origins) == 0 {
		return false
	}
	h := x.w.Header()
	h.Add("Vary", "Origin")
	origin := x.r.Header.Get("Origin")
	switch {
	case origin == "":
		return false
	case slices.Contains(x.b.c.Origins, "*"):
		h.Set("Access-Control-Allow-Origin", "*")
	case slices.Contains(x.b.c.Origins, origin):
		h.Set("Access-Control-Allow-Origin", origin)
	default:
		return false
	}
	h.Set("Access-Control-Expose-Headers", "Retry-After, WWW-Authenticate, A2A-Extensions, X-A2A-Extensions, "+refHeader)
	if !x.preflight() {
		return false
	}
	x.allow("GET, POST, DELETE")
	return true
}

var versionForm = regexp.MustCompile(`^([0-9]{1,4}\.[0-9]{1,4})(\.[0-9]{1,4})?$`)

// chosenVersion is the wire version that a request names, Major.Minor (rules A2A-001 and
// A2A-002): in the header, else in the query; 0.3 where neither does. It must be one of
// supported.
func chosenVersion(named, queried []string, supported ...string) (string, error) {
	said := strings.TrimSpace(strings.Join(named, ","))
	if said == "" {
		said = strings.TrimSpace(strings.Join(queried, ","))
	}
	v := V03
	if said != "" {
		v = ""
		if m := versionForm.FindStringSubmatch(said); m != nil {
			v = m[1]
		}
	}
	if slices.Contains(supported, v) {
		return v, nil
	}
	return "", protocol.NewError(protocol.ErrVersionNotSupported, "supported versions: "+strings.Join(supported, ", ")).
		WithErrorInfoMeta(map[string]string{"supportedVersions": strings.Join(supported, ",")})
}

func (x *exchange) version(supported ...string) (string, error) {
	var queried []string
	if x.r.URL.RawQuery != "" {
		queried = x.r.URL.Query()[protocol.SvcParamVersion]
	}
	return chosenVersion(x.r.Header.Values(protocol.SvcParamVersion), queried, supported...)
}

// mediaType checks the type of the body before it is read (rule A2A-012).
func (x *exchange) mediaType() error {
	values := x.r.Header.Values("Content-Type")
	if len(values) != 1 {
		return errMediaType
	}
	if values[0] == "application/json" {
		return nil
	}
	t, params, err := mime.ParseMediaType(values[0])
	if err != nil || t != "application/json" && t != "application/a2a+json" {
		return errMediaType
	}
	if c, ok := params["charset"]; ok && !strings.EqualFold(c, "utf-8") {
		return errMediaType
	}
	return nil
}

// body reads the request's body.
func (x *exchange) body() ([]byte, error) {
	limit := x.b.c.MaxBody
	tooLarge := parley.Refuse(parley.TooLarge, "the request is larger than %d bytes", limit).
		With(parley.ByLimit, parley.BodySize, "")
	if x.r.ContentLength > limit {
		return nil, tooLarge
	}
	body, err := netguard.ReadAll(x.r.Body, limit)
	x.size = len(body)
	switch _, outer := errors.AsType[*http.MaxBytesError](err); {
	case errors.Is(err, netguard.ErrTooLarge) || outer:
		return nil, tooLarge.Because(err)
	case err != nil:
		return nil, protocol.NewError(protocol.ErrParseError, "the body could not be read")
	}
	return body, nil
}

// identify finds the caller, who must be one that the agent takes.
func (b *Binding) identify(ctx context.Context, agent string, h http.Header, t *tls.ConnectionState, remote string) (
	bridge.Caller, error) {
	c := bridge.Caller{Name: directory.GuestName(Protocol, source.Host(remote), ""), Guest: true}
	if b.c.Callers != nil {
		var err error
		if c, err = b.c.Callers.Identify(ctx, Protocol, h, t, remote); err != nil {
			return bridge.Caller{}, err
		}
	}
	if !c.Guest {
		policy.Vouch(ctx)
		return c, nil
	}
	if !b.opensToGuests(agent) {
		return c, parley.Refuse(parley.Unauthenticated, "the agent takes callers with credentials only")
	}
	return c, nil
}

// newCall makes the call that [service] finds in the context.
func (x *exchange) newCall(version string, body []byte) *call {
	h := x.r.Header
	return &call{agent: x.agent, caller: x.caller, version: version, body: body, header: h, remote: x.r.RemoteAddr,
		extensions: namedExtensions(append(h.Values(protocol.SvcParamExtensions),
			h.Values("X-"+protocol.SvcParamExtensions)...))}
}

// maxExtensions bounds the extensions that one request names.
const maxExtensions = 32

// namedExtensions reads the lists of A2A-Extensions.
func namedExtensions(lists []string) (out []string) {
	for _, list := range lists {
		for uri := range strings.SplitSeq(list, ",") {
			if uri = strings.TrimSpace(uri); uri != "" && !slices.Contains(out, uri) && len(out) < maxExtensions {
				out = append(out, uri)
			}
		}
	}
	return out
}

// activate tells the caller which of its extensions count.
func (x *exchange) activate(c *call) {
	name := protocol.SvcParamExtensions
	if c.version == V03 {
		name = "X-" + name
	}
	if slices.Contains(c.extensions, ExtensionURI) {
		x.w.Header().Set(name, ExtensionURI)
	}
}

// note keeps a refusal for operators, and gives the failure its reference. One that the hub
// has recorded has a reference already.
func (b *Binding) note(f *failure, r hub.Refusal) {
	if f.cause == &internalCause {
		b.c.Logger.Error("an A2A request failed", "agent", r.To, "error", f.err)
	}
	if f.ref != "" {
		return
	}
	r.Protocol, r.Code, r.Text = Protocol, f.parleyCode(), f.text
	if f.err != nil {
		r.Cause = f.err.Error()
	}
	f.ref = b.c.Hub.Refuse(r.Because(f.err))
}

// noted makes the failure of an error, with a reference.
func (x *exchange) noted(step string, err error) *failure {
	f := toError(err)
	x.b.note(f, hub.Refusal{Source: source.Host(x.r.RemoteAddr), Claim: x.caller.Name, To: x.agent, Step: step,
		Size: x.size, Verdict: x.caller.Verdict})
	return f
}

// fail answers an error. step is where it arose: "decode", "verify" or "admit".
func (x *exchange) fail(step string, err error) {
	if x.r.Context().Err() != nil {
		return // the caller is gone
	}
	f := x.noted(step, err)
	f.headers(x.w.Header())
	switch {
	case f.http == http.StatusUnauthorized:
		x.w.Header().Set("WWW-Authenticate", challenge(x.r.Header))
		x.write(f.http, f.restBody())
	case !x.rpc || f.rpc == 0:
		x.write(f.http, f.restBody())
	default: // of a notification too: what is not done is said (the kit of 0.3 wants it)
		x.answer(rpcAnswer{Version: "2.0", ID: x.id, Error: f.rpcBody()})
	}
}

// challenge is WWW-Authenticate (rule A2A-061, RFC 6750).
func challenge(h http.Header) string {
	if h.Get("Authorization") != "" {
		return `Bearer realm="parley", error="invalid_token"`
	}
	return `Bearer realm="parley"`
}

// write answers with JSON.
func (x *exchange) write(status int, v any) {
	b, err := encodeJSON(v)
	if err != nil {
		f := x.noted("encode", err)
		status = f.http
		if b, err = encodeJSON(f.restBody()); err != nil {
			b = []byte("{}")
		}
	}
	h := x.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(b)))
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	x.w.WriteHeader(status)
	_, _ = x.w.Write(b) // an error: the caller is gone
}

// encodeJSON writes compact JSON on one line, without HTML escapes.
func encodeJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
