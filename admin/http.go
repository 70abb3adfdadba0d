package admin

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"io"
	"maps"
	"math"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/source"
	"github.com/parley-hub/parley/policy"
)

// openAPI describes the HTTP API: an OpenAPI 3.0 document in JSON.
//
//go:embed openapi.json
var openAPI []byte

// notFound is the API's code for a missing path, dead letter, refusal or key. The
// hub's vocabulary has no code for these.
const notFound parley.Code = "not_found"

// statuses of error codes.
var statuses = map[parley.Code]int{
	parley.Malformed: 400, parley.TooLarge: 413, parley.Unauthenticated: 403, parley.Stale: 400, parley.Replayed: 409,
	parley.Forbidden: 403, parley.UnknownAgent: 404, parley.UnknownSkill: 404, parley.InvalidContent: 422,
	parley.Unsupported: 422, parley.RateLimited: 429, parley.Loop: 409, parley.Conflict: 409, parley.Unavailable: 503,
	parley.NoSpace: 507, parley.TimedOut: 504, parley.Cancelled: 409, parley.Rejected: 422, parley.HandlerFailed: 502,
	parley.OutcomeUnknown: 502, parley.Internal: 500, notFound: 404,
}

// IsCode reports whether a code is one of the hub's vocabulary.
func IsCode(c parley.Code) bool { return statuses[c] != 0 && c != notFound }

// Codes is the hub's vocabulary of error codes, sorted.
func Codes() []parley.Code {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(statuses)), func(c parley.Code) bool { return !IsCode(c) })
}

// call is one request and its caller.
type call struct {
	w      http.ResponseWriter
	r      *http.Request
	by     Actor
	status int // of the answer, unless there is an error

	conversation func(string) (parley.ID, error) // finds one by its id, or the beginning of it
}

// ended gives the refusal if the caller's token expired or was revoked during the call.
func (c *call) ended() error {
	if e, ok := errors.AsType[*parley.Error](context.Cause(c.r.Context())); ok {
		return e
	}
	return nil
}

// handler gives the body of the answer; nil: the handler has answered itself.
type handler func(*Admin, *call) (any, error)

// methods are the endpoints of a path by HTTP method.
type methods map[string]endpoint

// endpoint is one method of a path: the lowest role that may call it ("" needs no
// token), and its handler.
type endpoint struct {
	role Role
	do   handler
}

func (a *Admin) routes() *http.ServeMux {
	m := http.NewServeMux()
	for path, of := range table() {
		m.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { a.serve(of, w, r) })
	}
	// Monitors look here by custom.
	for path, h := range map[string]handler{"/health": getHealth, "/ready": getReady} {
		m.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			a.serve(methods{"GET": {"", h}, "HEAD": {"", h}}, w, r)
		})
	}
	m.Handle("GET /metrics", a.c.Metrics)
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
	switch {
	case a.console != nil && isConsole(r):
		a.console.ServeHTTP(w, r)
	case a.console != nil && r.URL.Path == "/" && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		http.Redirect(w, r, consolePath, http.StatusSeeOther)
	default:
		a.mux.ServeHTTP(w, r)
	}
}

// consolePath is below which the console is.
const consolePath = "/console/"

func isConsole(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, consolePath) }

// ServeConsole has the handler of package console serve its paths, and / leads there. Call it before requests come.
func (a *Admin) ServeConsole(h http.Handler) { a.console = h }

// navigates reports whether a reader follows a link to the console from a page of another site. It changes nothing, and
// the other page sees nothing of the answer.
func navigates(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.Header.Get("Sec-Fetch-Mode") == "navigate" &&
		r.Header.Get("Sec-Fetch-Dest") == "document" && (isConsole(r) || r.URL.Path == "/")
}

// sameOrigin refuses requests that a browser makes for a page of another origin,
// and requests to a host name that is not this hub's.
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
		if navigates(r) {
			return nil
		}
		return parley.Refuse(parley.Forbidden, "the admin API does not answer pages of other origins")
	}
	if len(r.Header["Origin"]) == 0 || enters(r) {
		return nil
	}
	u, err := url.Parse(r.Header.Get("Origin"))
	if err != nil || len(r.Header["Origin"]) > 1 || u.Host == "" || !strings.EqualFold(u.Host, r.Host) {
		return parley.Refuse(parley.Forbidden, "the admin API does not answer pages of other origins")
	}
	return nil
}

// turnAway records the refusal of an unauthenticated caller.
func (a *Admin) turnAway(r *http.Request, step string, e *parley.Error) *parley.Error {
	c := *e
	c.Ref = a.c.Hub.Refuse(hub.Refusal{Protocol: apiProtocol, Source: source.Host(r.RemoteAddr), Step: step, Code: e.Code,
		Text: e.Text, Cause: r.Method + " " + r.URL.Path, Size: int(max(0, min(r.ContentLength, math.MaxInt32)))})
	return &c
}

func (a *Admin) serve(of methods, w http.ResponseWriter, r *http.Request) {
	ep, found := of[r.Method]
	if !found {
		allow := slices.Sorted(maps.Keys(of))
		w.Header().Set("Allow", strings.Join(allow, ", "))
		writeBody(w, http.StatusMethodNotAllowed, bodyOf(parley.Refuse(parley.Unsupported,
			"this path takes %s", strings.Join(allow, " and "))))
		return
	}
	c := &call{w: w, r: r, status: http.StatusOK}
	if ep.role != "" {
		by, err := a.Authenticate(r)
		if err != nil {
			e := a.turnAway(r, "token", parley.AsError(err))
			w.Header().Set("WWW-Authenticate", `Bearer realm="parley"`)
			writeBody(w, http.StatusUnauthorized, bodyOf(e))
			return
		}
		policy.Vouch(r.Context())
		if err := by.may(ep.role); err != nil {
			writeProblem(w, err)
			return
		}
		c.by = by
		ctx, end := a.c.Tokens.During(r.Context(), by)
		defer end()
		r = r.WithContext(ctx)
		c.r = r
	}
	c.conversation = func(s string) (parley.ID, error) { return a.conversationID(r.Context(), c.by, s) }
	r.Body = http.MaxBytesReader(w, r.Body, a.c.MaxBody)
	res, err := ep.do(a, c)
	if ended := c.ended(); err != nil && ended != nil {
		err = ended
	}
	switch {
	case err != nil:
		e := parley.AsError(err)
		if e.Ref == "" && statusOf(e) >= 500 && e.Code != parley.TimedOut {
			a.c.Logger.Error("a call of the admin API failed", "method", r.Method, "path", r.URL.Path, "error", err)
			noted := *e
			noted.Ref = a.c.Hub.Refuse(hub.Refusal{Protocol: apiProtocol, Source: source.Host(r.RemoteAddr), Claim: c.by.Name,
				Step: "admin", Code: e.Code, Text: e.Text, Cause: err.Error()}.Because(e))
			e = &noted
		}
		writeProblem(w, e)
	case res != nil:
		if err := writeBody(w, c.status, res); err != nil {
			a.c.Logger.Debug("cannot send an answer of the admin API", "path", r.URL.Path, "error", err)
		}
	}
}

// Authenticate gives the actor of a request.
func (a *Admin) Authenticate(r *http.Request) (Actor, error) {
	values := r.Header.Values("Authorization")
	if len(values) != 1 {
		return Actor{}, parley.Refuse(parley.Unauthenticated, "send the header Authorization: Bearer TOKEN, once")
	}
	scheme, secret, found := strings.Cut(values[0], " ")
	if !found || !strings.EqualFold(scheme, "bearer") {
		return Actor{}, parley.Refuse(parley.Unauthenticated, "send the header Authorization: Bearer TOKEN")
	}
	by, err := a.c.Tokens.find(strings.TrimSpace(secret))
	if err != nil {
		return Actor{}, err
	}
	by.Address = source.Host(r.RemoteAddr)
	return by, nil
}

// enters reports whether a browser uses a link to the console up. The page that it comes from names no origin, so that
// the link's secret is in no header; the secret itself shows that the reader has the link.
func enters(r *http.Request) bool {
	return r.Method == http.MethodPost && r.URL.Path == consolePath+"enter" && r.Header.Get("Origin") == "null"
}

// ProblemOf gives an error as the API shows it.
func ProblemOf(e *parley.Error) Problem { return bodyOf(e).Error }

// StatusOf gives the HTTP status of an error.
func StatusOf(e *parley.Error) int { return statusOf(e) }

type problemBody struct {
	Error Problem `json:"error"`
}

// bodyOf is the body of an answer with an error of the hub or the API.
func bodyOf(e *parley.Error) problemBody {
	p := *problem(e.Stated())
	p.Advice = Advise(p, At{Protocol: apiProtocol})
	return problemBody{p}
}

func statusOf(e *parley.Error) int { return cmp.Or(statuses[e.Code], http.StatusInternalServerError) }

func writeProblem(w http.ResponseWriter, err error) {
	e := parley.AsError(err)
	if e.After > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64(math.Ceil(e.After.Seconds())), 10))
	}
	// If the write fails, the caller is gone.
	_ = writeBody(w, statusOf(e), bodyOf(e))
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

// body decodes the JSON body into v. If mayBeEmpty, an empty body leaves v as it is.
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
		return parley.Refuse(parley.Malformed, "the body does not fit the request: %s", detail(err)).Because(err)
	}
	return nil
}

func detail(err error) string {
	if e, ok := errors.AsType[*jsonx.Error](err); ok {
		return e.Error()
	}
	return "malformed JSON"
}
