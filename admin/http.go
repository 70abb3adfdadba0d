package admin

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/policy"
)

//go:embed openapi.json
var openAPI []byte

// OpenAPI is the description of the HTTP API, an OpenAPI 3.0 document in JSON.
func OpenAPI() []byte { return slices.Clone(openAPI) }

// notFound is the API's code for what has no code in the hub's vocabulary: a
// path, a dead letter, a refusal or a key that is not there.
const notFound parley.Code = "not_found"

// statuses of error codes.
var statuses = map[parley.Code]int{
	parley.Malformed: 400, parley.TooLarge: 413, parley.Unauthenticated: 403, parley.Stale: 400, parley.Replayed: 409,
	parley.Forbidden: 403, parley.UnknownAgent: 404, parley.UnknownSkill: 404, parley.InvalidContent: 422, parley.Unsupported: 422,
	parley.RateLimited: 429, parley.Loop: 409, parley.Conflict: 409, parley.Unavailable: 503, parley.NoSpace: 507,
	parley.TimedOut: 504, parley.Cancelled: 409, parley.Rejected: 422, parley.HandlerFailed: 502, parley.OutcomeUnknown: 502,
	parley.Internal: 500, notFound: 404,
}

// call is one request under way.
type call struct {
	w  http.ResponseWriter
	r  *http.Request
	by Actor
}

// answer is what a handler gives: a body with its status, or nothing when it
// has answered itself.
type answer struct {
	status int
	body   any
}

func ok(v any) *answer { return &answer{http.StatusOK, v} }

type handler func(*Admin, *call) (*answer, error)

// route is one path.
type route struct {
	path    string
	methods map[string]endpoint
}

// endpoint is what a method does, and the least role that may call it; "" needs
// no token.
type endpoint struct {
	role Role
	do   handler
}

func table() []route {
	return []route{
		{"/v1/health", map[string]endpoint{"GET": {"", getHealth}}},
		{"/v1/ready", map[string]endpoint{"GET": {"", getReady}}},
		{"/v1/openapi.json", map[string]endpoint{"GET": {"", getOpenAPI}}},
		{"/v1/info", map[string]endpoint{"GET": {Observe, getInfo}}},
		{"/v1/stats", map[string]endpoint{"GET": {Observe, getStats}}},
		{"/v1/agents", map[string]endpoint{"GET": {Observe, getAgents}, "POST": {Administer, postAgents}}},
		{"/v1/agents/{name}", map[string]endpoint{"GET": {Observe, getAgent}, "DELETE": {Administer, deleteAgent}}},
		{"/v1/agents/{name}/pause", map[string]endpoint{"POST": {Operate, postPause}}},
		{"/v1/agents/{name}/resume", map[string]endpoint{"POST": {Operate, postResume}}},
		{"/v1/agents/{name}/expose", map[string]endpoint{"POST": {Administer, postExpose}}},
		{"/v1/agents/{name}/link", map[string]endpoint{"POST": {Administer, postLink}}},
		{"/v1/agents/{name}/inbox", map[string]endpoint{"GET": {Operate, getInbox}}},
		{"/v1/messages", map[string]endpoint{"GET": {Observe, getMessages}, "POST": {Operate, postMessages}}},
		{"/v1/messages/{id}", map[string]endpoint{"GET": {Observe, getMessage}}},
		{"/v1/conversations", map[string]endpoint{"GET": {Observe, getConversations}}},
		{"/v1/conversations/{id}", map[string]endpoint{"GET": {Observe, getConversation}}},
		{"/v1/conversations/{id}/export", map[string]endpoint{"GET": {Read, getExport}}},
		{"/v1/events", map[string]endpoint{"GET": {Observe, getEvents}}},
		{"/v1/dead", map[string]endpoint{"GET": {Observe, getDead}}},
		{"/v1/dead/retry", map[string]endpoint{"POST": {Operate, postRetryAll}}},
		{"/v1/dead/drop", map[string]endpoint{"POST": {Operate, postDropAll}}},
		{"/v1/dead/{id}", map[string]endpoint{"GET": {Observe, getDeadLetter}}},
		{"/v1/dead/{id}/retry", map[string]endpoint{"POST": {Operate, postRetry}}},
		{"/v1/dead/{id}/drop", map[string]endpoint{"POST": {Operate, postDrop}}},
		{"/v1/refused", map[string]endpoint{"GET": {Observe, getRefused}}},
		{"/v1/refused/{ref}", map[string]endpoint{"GET": {Observe, getRefusal}}},
		{"/v1/keys", map[string]endpoint{"GET": {Observe, getKeys}, "POST": {Administer, postKeys},
			"DELETE": {Administer, deleteKeys}}},
		{"/v1/keys/own", map[string]endpoint{"POST": {Administer, postOwnKey}}},
		{"/v1/keys/passphrase", map[string]endpoint{"POST": {Administer, postPassphrase}}},
		{"/v1/keys/rotate", map[string]endpoint{"POST": {Administer, postRotate}}},
		{"/v1/reload", map[string]endpoint{"POST": {Administer, postReload}}},
		{"/v1/audit", map[string]endpoint{"GET": {Administer, getAudit}}},
		{"/v1/backup", map[string]endpoint{"GET": {Administer, getBackup}}},
		{"/v1/forget", map[string]endpoint{"POST": {Administer, postForget}}},
		{"/v1/erasures", map[string]endpoint{"GET": {Observe, getErasures}}},
	}
}

func (a *Admin) routes() *http.ServeMux {
	m := http.NewServeMux()
	for _, rt := range table() {
		m.HandleFunc(rt.path, func(w http.ResponseWriter, r *http.Request) { a.serve(rt, w, r) })
	}
	// Where monitors look by custom.
	for path, h := range map[string]handler{"/health": getHealth, "/ready": getReady} {
		m.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			a.serve(route{path, map[string]endpoint{"GET": {"", h}, "HEAD": {"", h}}}, w, r)
		})
	}
	if a.c.Metrics != nil {
		m.Handle("GET /metrics", a.c.Metrics)
	}
	m.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeProblem(w, parley.Refuse(notFound, "no such path; /v1/openapi.json describes those there are"))
	})
	return m
}

// ServeHTTP serves the HTTP API.
func (a *Admin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	if err := a.sameOrigin(r); err != nil {
		writeProblem(w, a.turnAway(r, "origin", err))
		return
	}
	a.mux.ServeHTTP(w, r)
}

// sameOrigin refuses what a browser sends for a page of another origin, and
// what was sent to a name that is not this hub's.
func (a *Admin) sameOrigin(r *http.Request) *parley.Error {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if _, err := netip.ParseAddr(host); err != nil && host != "localhost" && !slices.Contains(a.c.Hosts, host) {
		return parley.Refuse(parley.Forbidden, "the admin API does not answer to the host name %.100q", r.Host)
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
	default:
		return parley.Refuse(parley.Forbidden, "the admin API does not answer pages of other origins")
	}
	if len(r.Header["Origin"]) == 0 {
		return nil
	}
	u, err := url.Parse(r.Header.Get("Origin"))
	if err != nil || len(r.Header["Origin"]) > 1 || u.Host == "" || !strings.EqualFold(u.Host, r.Host) {
		return parley.Refuse(parley.Forbidden, "the admin API does not answer pages of other origins")
	}
	return nil
}

// turnAway notes a refusal of somebody who is not known.
func (a *Admin) turnAway(r *http.Request, step string, e *parley.Error) *parley.Error {
	c := *e
	c.Ref = a.c.Hub.Refuse(hub.Refusal{Protocol: apiProtocol, Source: sourceOf(r), Step: step, Code: e.Code, Text: e.Text,
		Cause: r.Method + " " + r.URL.Path, Size: int(max(0, min(r.ContentLength, math.MaxInt32)))})
	return &c
}

func sourceOf(r *http.Request) string {
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		return host
	}
	return r.RemoteAddr
}

func (a *Admin) serve(rt route, w http.ResponseWriter, r *http.Request) {
	ep, found := rt.methods[r.Method]
	if !found {
		allow := []string{}
		for m := range rt.methods {
			allow = append(allow, m)
		}
		slices.Sort(allow)
		w.Header().Set("Allow", strings.Join(allow, ", "))
		writeBody(w, http.StatusMethodNotAllowed, problemBody{*problem(parley.Refuse(parley.Unsupported, "this path takes %s", strings.Join(allow, " and ")))})
		return
	}
	c := &call{w: w, r: r}
	if ep.role != "" {
		by, err := a.Authenticate(r)
		if err != nil {
			e := a.turnAway(r, "token", parley.AsError(err))
			w.Header().Set("WWW-Authenticate", `Bearer realm="parley"`)
			writeBody(w, http.StatusUnauthorized, problemBody{*problem(e)})
			return
		}
		policy.Vouch(r.Context())
		if err := by.may(ep.role); err != nil {
			writeProblem(w, err)
			return
		}
		c.by = by
	}
	r.Body = http.MaxBytesReader(w, r.Body, a.c.MaxBody)
	res, err := ep.do(a, c)
	switch {
	case err != nil:
		e := parley.AsError(err)
		if e.Ref == "" && statusOf(e) >= 500 && e.Code != parley.TimedOut {
			a.c.Logger.Error("the admin API failed", "method", r.Method, "path", r.URL.Path, "error", err)
			noted := *e
			noted.Ref = a.c.Hub.Refuse(hub.Refusal{Protocol: apiProtocol, Source: sourceOf(r), Claim: c.by.Name, Step: "admin", Code: e.Code, Text: e.Text, Cause: err.Error()})
			e = &noted
		}
		writeProblem(w, e)
	case res != nil:
		if err := writeBody(w, res.status, res.body); err != nil {
			a.c.Logger.Debug("an answer of the admin API did not arrive", "path", r.URL.Path, "error", err)
		}
	}
}

// Authenticate tells on whose behalf a request is made.
func (a *Admin) Authenticate(r *http.Request) (Actor, error) {
	values := r.Header.Values("Authorization")
	if len(values) != 1 {
		return Actor{}, parley.Refuse(parley.Unauthenticated, "send the header Authorization: Bearer TOKEN, once")
	}
	scheme, secret, found := strings.Cut(values[0], " ")
	if !found || !strings.EqualFold(scheme, "bearer") {
		return Actor{}, parley.Refuse(parley.Unauthenticated, "send the header Authorization: Bearer TOKEN")
	}
	by, found := a.c.Tokens.find(strings.TrimSpace(secret))
	if !found {
		return Actor{}, parley.Refuse(parley.Unauthenticated, "the hub does not know this token")
	}
	by.Address = sourceOf(r)
	return by, nil
}

type problemBody struct {
	Error Problem `json:"error"`
}

func statusOf(e *parley.Error) int {
	if s := statuses[e.Code]; s != 0 {
		return s
	}
	return http.StatusInternalServerError
}

func writeProblem(w http.ResponseWriter, err error) {
	e := parley.AsError(err)
	if e.After > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64(math.Ceil(e.After.Seconds())), 10))
	}
	// A failed write means that nobody is left to tell.
	_ = writeBody(w, statusOf(e), problemBody{*problem(e)})
}

func writeBody(w http.ResponseWriter, status int, v any) error {
	b, err := jsonx.Encode(v)
	if err != nil {
		status, b = http.StatusInternalServerError, []byte(`{"error":{"code":"internal","text":"internal error"}}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)+1))
	w.WriteHeader(status)
	_, werr := w.Write(append(b, '\n'))
	return errors.Join(err, werr)
}

// body reads a JSON body; an empty one is allowed where there is nothing that
// must be said.
func (c *call) body(v any, mayBeEmpty bool) error {
	b, err := io.ReadAll(c.r.Body)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return parley.Refuse(parley.TooLarge, "the body has more than %d bytes", large.Limit)
	case err != nil:
		return parley.Refuse(parley.Malformed, "the body could not be read").Because(err)
	case len(b) == 0 && mayBeEmpty:
		return nil
	}
	if t, _, err := mime.ParseMediaType(c.r.Header.Get("Content-Type")); err != nil || t != "application/json" {
		return parley.Refuse(parley.Malformed, "send JSON with the header Content-Type: application/json")
	}
	if err := jsonx.DecodeKnown(b, v); err != nil {
		return parley.Refuse(parley.Malformed, "the body is not what is wanted: %s", detail(err)).Because(err)
	}
	return nil
}

func detail(err error) string {
	var e *jsonx.Error
	if errors.As(err, &e) {
		return e.Error()
	}
	return "malformed JSON"
}

// query reads parameters, each at most once, and refuses unknown ones.
func (c *call) query(known ...string) (url.Values, error) {
	q, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		return nil, parley.Refuse(parley.Malformed, "the query is malformed")
	}
	for name, values := range q {
		if !slices.Contains(known, name) {
			return nil, parley.Refuse(parley.Malformed, "unknown parameter %.40q; known: %s", name, strings.Join(known, ", "))
		}
		if len(values) > 1 {
			return nil, parley.Refuse(parley.Malformed, "parameter %q is there twice", name)
		}
	}
	return q, nil
}

func number(q url.Values, name string, def int) (int, error) {
	s := q.Get(name)
	if s == "" {
		return def, nil
	}
	n, err := strconv.ParseUint(s, 10, 24)
	if err != nil {
		return 0, parley.Refuse(parley.Malformed, "%s=%.20q is not a number", name, s)
	}
	return int(n), nil
}

func duration(q url.Values, name string) (time.Duration, error) {
	s := q.Get(name)
	if s == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, parley.Refuse(parley.Malformed, "%s=%.20q is not a duration such as 30s", name, s)
	}
	return d, nil
}

func flag(q url.Values, name string) (bool, error) {
	switch q.Get(name) {
	case "":
		return false, nil
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, parley.Refuse(parley.Malformed, "%s is true or false", name)
}

func moment(q url.Values, name string) (time.Time, error) {
	s := q.Get(name)
	if s == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}, parley.Refuse(parley.Malformed, "%s=%.40q is not a time such as 2026-11-20T15:04:05Z", name, s)
	}
	return t, nil
}

func when(t time.Time) string {
	if t.IsZero() {
		return "ever"
	}
	return t.UTC().Format(time.RFC3339)
}

func getHealth(*Admin, *call) (*answer, error) {
	return ok(map[string]string{"status": "ok"}), nil
}

func getReady(a *Admin, c *call) (*answer, error) {
	err := a.Ready()
	if err == nil {
		return ok(map[string]any{"ready": true}), nil
	}
	body := map[string]any{"ready": false}
	if _, stranger := a.Authenticate(c.r); stranger == nil {
		body["reason"] = err.Error()
	}
	return &answer{http.StatusServiceUnavailable, body}, nil
}

func postReload(a *Admin, c *call) (*answer, error) {
	if err := c.body(&struct{}{}, true); err != nil {
		return nil, err
	}
	return reply(a.Reload(c.r.Context(), c.by))
}

func getOpenAPI(_ *Admin, c *call) (*answer, error) {
	c.w.Header().Set("Content-Type", "application/json")
	// A failed write means that nobody is left to tell.
	_, _ = c.w.Write(openAPI)
	return nil, nil
}

func getInfo(a *Admin, c *call) (*answer, error) { return reply(a.Info(c.by)) }

func getStats(a *Admin, c *call) (*answer, error) { return reply(a.Stats(c.by)) }

func reply[T any](v T, err error) (*answer, error) {
	if err != nil {
		return nil, err
	}
	return ok(v), nil
}

type agentList struct {
	Agents []Agent `json:"agents"`
}

func getAgents(a *Admin, c *call) (*answer, error) {
	list, err := a.Agents(c.by)
	return reply(agentList{list}, err)
}

func postAgents(a *Admin, c *call) (*answer, error) {
	var n NewAgent
	if err := c.body(&n, false); err != nil {
		return nil, err
	}
	v, err := a.AddAgent(c.r.Context(), c.by, n)
	if err != nil {
		return nil, err
	}
	return &answer{http.StatusCreated, v}, nil
}

func getAgent(a *Admin, c *call) (*answer, error) {
	q, err := c.query("wait")
	if err != nil {
		return nil, err
	}
	wait, err := duration(q, "wait")
	if err != nil {
		return nil, err
	}
	return reply(a.Agent(c.r.Context(), c.by, c.r.PathValue("name"), wait))
}

func deleteAgent(a *Admin, c *call) (*answer, error) {
	if err := a.RemoveAgent(c.r.Context(), c.by, c.r.PathValue("name")); err != nil {
		return nil, err
	}
	return ok(map[string]string{"removed": c.r.PathValue("name")}), nil
}

func postPause(a *Admin, c *call) (*answer, error) {
	return reply(a.Pause(c.r.Context(), c.by, c.r.PathValue("name"), true))
}

func postResume(a *Admin, c *call) (*answer, error) {
	return reply(a.Pause(c.r.Context(), c.by, c.r.PathValue("name"), false))
}

type exposure struct {
	Protocols []string `json:"protocols"`
}

func postExpose(a *Admin, c *call) (*answer, error) {
	var e exposure
	if err := c.body(&e, false); err != nil {
		return nil, err
	}
	return reply(a.Expose(c.r.Context(), c.by, c.r.PathValue("name"), e.Protocols))
}

func postLink(a *Admin, c *call) (*answer, error) {
	var i NewIdentity
	if err := c.body(&i, false); err != nil {
		return nil, err
	}
	return reply(a.Link(c.r.Context(), c.by, c.r.PathValue("name"), i))
}

type messageList struct {
	Messages []*Message `json:"messages"`
}

func getInbox(a *Admin, c *call) (*answer, error) {
	q, err := c.query("wait", "max")
	if err != nil {
		return nil, err
	}
	wait, err := duration(q, "wait")
	if err != nil {
		return nil, err
	}
	limit, err := number(q, "max", 0)
	if err != nil {
		return nil, err
	}
	name, ctx := c.r.PathValue("name"), c.r.Context()
	if strings.Contains(c.r.Header.Get("Accept"), "text/event-stream") {
		if err := a.mayRead(c.by, name); err != nil {
			return nil, err
		}
		s := newSSE(c)
		defer s.close()
		for m, err := range a.Inbox(ctx, c.by, name) {
			if err != nil {
				s.fail(err)
				break
			}
			if s.send("message", m.ID.String(), m) != nil {
				break
			}
		}
		return nil, nil
	}
	list, err := a.collect(ctx, c.by, name, limit, wait)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil || writeBody(c.w, http.StatusOK, messageList{a.showAttempts(c.by, list)}) != nil {
		a.box(name).back(list)
	}
	return nil, nil
}

func postMessages(a *Admin, c *call) (*answer, error) {
	q, err := c.query("wait", "stream")
	if err != nil {
		return nil, err
	}
	wait, err := flag(q, "wait")
	if err != nil {
		return nil, err
	}
	stream, err := flag(q, "stream")
	if err != nil {
		return nil, err
	}
	var s Send
	if err := c.body(&s, false); err != nil {
		return nil, err
	}
	if keys := c.r.Header.Values("Idempotency-Key"); len(keys) > 1 {
		return nil, parley.Refuse(parley.Malformed, "the header Idempotency-Key is there twice")
	} else if len(keys) == 1 {
		if keys[0] == "" {
			return nil, parley.Refuse(parley.Malformed, "the header Idempotency-Key is empty")
		}
		s.IdempotencyKey = keys[0]
	}
	ctx := c.r.Context()
	if stream {
		return nil, a.stream(ctx, c, s)
	}
	var r Receipt
	if wait {
		r, err = a.Ask(ctx, c.by, s)
	} else {
		r, err = a.Send(ctx, c.by, s)
	}
	if err != nil {
		return nil, err
	}
	if r.Reply == nil {
		return &answer{http.StatusAccepted, r}, nil
	}
	return ok(r), nil
}

// stream answers with server-sent events: accepted, event…, reply; or error.
// What is refused before it is recorded is answered with its status.
func (a *Admin) stream(ctx context.Context, c *call, s Send) error {
	var out *sse
	defer func() {
		if out != nil {
			out.close()
		}
	}()
	for m, err := range a.Stream(ctx, c.by, s, func(r Receipt) {
		out = newSSE(c)
		// If nobody is there any more, the first event finds that out.
		_ = out.send("accepted", "", r)
	}) {
		switch {
		case err != nil && out == nil:
			return err
		case err != nil:
			out.fail(err)
			return nil
		}
		name := "event"
		if m.Kind.Terminal() {
			name = "reply"
		}
		if out.send(name, m.ID.String(), m) != nil {
			return nil
		}
	}
	return nil
}

func getDead(a *Admin, c *call) (*answer, error) {
	q, err := c.query("to", "from", "code", "since", "before", "limit")
	if err != nil {
		return nil, err
	}
	f := DeadFilter{To: q.Get("to"), From: q.Get("from"), Code: parley.Code(q.Get("code"))}
	if f.Since, err = moment(q, "since"); err != nil {
		return nil, err
	}
	if f.Before, err = moment(q, "before"); err != nil {
		return nil, err
	}
	if f.Limit, err = number(q, "limit", 1000); err != nil {
		return nil, err
	}
	list, err := a.Dead(c.by, f)
	return reply(deadList{list}, err)
}

type deadList struct {
	Dead []DeadLetter `json:"dead"`
}

// dead gives the id and the recipient that a request names.
func (c *call) dead() (parley.ID, string, error) {
	q, err := c.query("to")
	if err != nil {
		return parley.ID{}, "", err
	}
	id, err := parley.ParseID(c.r.PathValue("id"))
	if err != nil {
		return id, "", parley.Refuse(parley.Malformed, "%.40q is not the id of a message", c.r.PathValue("id"))
	}
	return id, q.Get("to"), nil
}

func getDeadLetter(a *Admin, c *call) (*answer, error) {
	id, to, err := c.dead()
	if err != nil {
		return nil, err
	}
	return reply(a.DeadLetter(c.r.Context(), c.by, id, to))
}

func postRetry(a *Admin, c *call) (*answer, error) {
	id, to, err := c.dead()
	if err != nil {
		return nil, err
	}
	return reply(a.Retry(c.r.Context(), c.by, id, to))
}

func postDrop(a *Admin, c *call) (*answer, error) {
	id, to, err := c.dead()
	if err != nil {
		return nil, err
	}
	var why struct {
		Reason string `json:"reason,omitzero"`
	}
	if err := c.body(&why, true); err != nil {
		return nil, err
	}
	return reply(a.Drop(c.r.Context(), c.by, id, to, why.Reason))
}

func postRetryAll(a *Admin, c *call) (*answer, error) {
	var b Bulk
	if err := c.body(&b, false); err != nil {
		return nil, err
	}
	return reply(a.RetryAll(c.r.Context(), c.by, b))
}

func postDropAll(a *Admin, c *call) (*answer, error) {
	var b Bulk
	if err := c.body(&b, false); err != nil {
		return nil, err
	}
	return reply(a.DropAll(c.r.Context(), c.by, b))
}

func getRefused(a *Admin, c *call) (*answer, error) {
	q, err := c.query("last")
	if err != nil {
		return nil, err
	}
	n, err := number(q, "last", 100)
	if err != nil {
		return nil, err
	}
	list, err := a.Refused(c.by, n)
	return reply(refusalList{list}, err)
}

type refusalList struct {
	Refused []Refusal `json:"refused"`
}

func getRefusal(a *Admin, c *call) (*answer, error) {
	return reply(a.Refusal(c.by, c.r.PathValue("ref")))
}

func getKeys(a *Admin, c *call) (*answer, error) { return reply(a.Keys(c.by)) }

func postKeys(a *Admin, c *call) (*answer, error) {
	var e Enrolment
	if err := c.body(&e, false); err != nil {
		return nil, err
	}
	if err := a.Enroll(c.r.Context(), c.by, e); err != nil {
		return nil, err
	}
	return &answer{http.StatusCreated, map[string]string{"enrolled": e.Agent}}, nil
}

func deleteKeys(a *Admin, c *call) (*answer, error) {
	q, err := c.query("agent", "protocol", "keyId")
	if err != nil {
		return nil, err
	}
	if err := a.Unenroll(c.r.Context(), c.by, q.Get("agent"), q.Get("protocol"), q.Get("keyId")); err != nil {
		return nil, err
	}
	return ok(map[string]string{"unenrolled": q.Get("agent")}), nil
}

func postOwnKey(a *Admin, c *call) (*answer, error) {
	var n NewKey
	if err := c.body(&n, false); err != nil {
		return nil, err
	}
	k, err := a.NewKey(c.r.Context(), c.by, n)
	if err != nil {
		return nil, err
	}
	return &answer{http.StatusCreated, k}, nil
}

func postPassphrase(a *Admin, c *call) (*answer, error) {
	var p Passphrase
	if err := c.body(&p, false); err != nil {
		return nil, err
	}
	return reply(a.Passphrase(c.r.Context(), c.by, p))
}

func postRotate(a *Admin, c *call) (*answer, error) {
	var r Rotation
	if err := c.body(&r, false); err != nil {
		return nil, err
	}
	return reply(a.Rotate(c.r.Context(), c.by, r))
}

type auditList struct {
	Audit []AuditEntry `json:"audit"`
}

func getAudit(a *Admin, c *call) (*answer, error) {
	q, err := c.query("limit")
	if err != nil {
		return nil, err
	}
	n, err := number(q, "limit", 100)
	if err != nil {
		return nil, err
	}
	list, err := a.Audit(c.by, n)
	return reply(auditList{list}, err)
}

// sse writes server-sent events. While there is nothing to say it sends
// comments, so that both sides notice when the other is gone.
type sse struct {
	c     *call
	write chan func() error
	done  chan error
	end   chan struct{}
}

const (
	sseBeat  = 15 * time.Second
	sseWrite = 30 * time.Second // a reader that takes nothing for so long is gone
)

func newSSE(c *call) *sse {
	c.w.Header().Set("Content-Type", "text/event-stream")
	c.w.WriteHeader(http.StatusOK)
	s := &sse{c: c, write: make(chan func() error), done: make(chan error), end: make(chan struct{})}
	// Writers that cannot flush deliver the head with the first event.
	_ = http.NewResponseController(c.w).Flush()
	go s.run()
	return s
}

// run is the only one who writes.
func (s *sse) run() {
	beat := time.NewTicker(sseBeat)
	defer beat.Stop()
	out := http.NewResponseController(s.c.w)
	for {
		select {
		case f := <-s.write:
			// Writers that know no deadline do without.
			_ = out.SetWriteDeadline(time.Now().Add(sseWrite))
			err := f()
			if err == nil {
				err = out.Flush()
			}
			s.done <- err
		case <-beat.C:
			_ = out.SetWriteDeadline(time.Now().Add(sseWrite))
			if _, err := io.WriteString(s.c.w, ": \n\n"); err == nil {
				_ = out.Flush()
			}
		case <-s.end:
			close(s.done)
			return
		}
	}
}

func (s *sse) send(event, id string, v any) error {
	b, err := jsonx.Encode(v)
	if err != nil {
		return err
	}
	s.write <- func() error {
		if id != "" {
			id = "id: " + id + "\n"
		}
		_, err := fmt.Fprintf(s.c.w, "event: %s\n%sdata: %s\n\n", event, id, b)
		return err
	}
	return <-s.done
}

func (s *sse) fail(err error) {
	// Nobody is left to tell if this fails.
	_ = s.send("error", "", problemBody{*problem(parley.AsError(err))})
}

// close waits until nothing writes any more.
func (s *sse) close() {
	close(s.end)
	<-s.done
}
