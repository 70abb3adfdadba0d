package uagents

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/parley-hub/parley/internal/jsonx"
)

// A Route is a REST endpoint of an agent. Two agents of one server may have the same
// method and path: the header X-Uagents-Address then names the agent.
type Route struct {
	Address  string // the agent
	Method   string // GET or POST
	Path     string
	Request  *Model // of the body of a POST; nil: anything
	Response *Model // of the answer; nil: anything
	// Handler gets the body of the request and gives a value for JSON.
	Handler func(ctx context.Context, r *http.Request, body []byte) (any, error)
}

// AgentInfo is the answer to GET /agent_info.
type AgentInfo struct {
	Address   string
	Endpoints []Endpoint
	Protocols []string // digests
	Type      string   // mailbox, proxy or custom; default custom
	Metadata  json.RawMessage
	Prefix    string // agent or test-agent; empty: agent
	Port      int
}

// serveREST answers requests for other paths than /submit. It reports false when no
// route matches the request.
func (s *Server) serveREST(w http.ResponseWriter, r *http.Request) bool {
	switch {
	case r.URL.Path == "/agent_info" && r.Method == http.MethodGet && s.Info != nil:
		s.serveInfo(w, r)
		return true
	case r.URL.Path == "/messages" && r.Method == http.MethodGet,
		(r.URL.Path == "/connect" || r.URL.Path == "/disconnect") && r.Method == http.MethodPost:
		if s.Local == nil || !isLocal(r) {
			s.refuse(w, r, &Refusal{Err: ErrForbidden})
			return true
		}
		// A web page may not read these: no wildcard origin.
		for _, h := range []string{"Origin", "Methods", "Headers", "Credentials"} {
			w.Header().Del("Access-Control-Allow-" + h)
		}
		s.Local.ServeHTTP(w, r)
		return true
	}
	var found []Route
	for _, route := range s.Routes {
		if route.Method == r.Method && route.Path == r.URL.Path && route.Path != "/submit" {
			found = append(found, route)
		}
	}
	if len(found) == 0 {
		return false
	}
	route := found[0]
	if len(found) > 1 {
		address := r.Header.Get(headerAddress)
		if address == "" {
			n := object("error", "missing header: x-uagents-address")
			n.set("message", str("Multiple handlers found for REST endpoint."))
			writeJSON(w, http.StatusBadRequest, n)
			return true
		}
		route = Route{}
		for _, one := range found {
			if one.Address == address {
				route = one
			}
		}
		if route.Handler == nil {
			s.refuse(w, r, &Refusal{Err: ErrNotFound})
			return true
		}
	}
	s.serveRoute(w, r, route)
	return true
}

func (s *Server) serveRoute(w http.ResponseWriter, r *http.Request, route Route) {
	body, err := readBody(w, r, s.verifier.Limits.body())
	if err != nil {
		s.refuse(w, r, &Refusal{Err: AsError(err), Size: len(body)})
		return
	}
	if r.Method == http.MethodPost && route.Request != nil {
		if len(body) == 0 {
			writeJSON(w, http.StatusBadRequest, object("error", "No request body found"))
			return
		}
		if err := route.Request.Validate(body); err != nil {
			writeJSON(w, http.StatusBadRequest, fieldNode(err))
			return
		}
	}
	mismatch := object("error", "Handler response does not match response schema.")
	v, err := s.runRoute(r, route, body)
	if err != nil {
		s.log().Warn("uagents: REST handler failed", "path", route.Path, "error", err)
		var e *Error
		if errors.As(err, &e) {
			WriteError(w, e)
			return
		}
		writeJSON(w, http.StatusInternalServerError, mismatch)
		return
	}
	b, err := jsonx.Encode(v)
	if err == nil && route.Response != nil {
		err = route.Response.Validate(b)
	}
	if err == nil {
		b, err = MessageJSON(b)
	}
	if err != nil {
		s.log().Warn("uagents: REST response does not fit", "path", route.Path, "error", err)
		writeJSON(w, http.StatusInternalServerError, mismatch)
		return
	}
	writeBody(w, http.StatusOK, b)
}

func (s *Server) runRoute(r *http.Request, route Route, body []byte) (v any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = errors.New("panic in REST handler")
			s.log().Error("uagents: panic in REST handler", "path", route.Path, "panic", p)
		}
	}()
	ctx, cancel := context.WithTimeout(r.Context(), cmp.Or(s.Wait, defaultWait))
	defer cancel()
	return route.Handler(ctx, r, body)
}

// fieldNode is the last validation error as the reference writes it.
func fieldNode(err error) *node {
	var f *FieldError
	if !errors.As(err, &f) {
		return object("error", AsError(err).Text)
	}
	loc := list()
	for _, l := range f.Loc {
		if i, err := strconv.Atoi(l); err == nil {
			loc.vals = append(loc.vals, number(int64(i)))
		} else {
			loc.vals = append(loc.vals, str(l))
		}
	}
	n := &node{kind: '{'}
	n.set("loc", loc)
	n.set("msg", str(f.Msg))
	n.set("type", str(f.Type))
	return n
}

func (s *Server) serveInfo(w http.ResponseWriter, r *http.Request) {
	info, err := s.Info(r.Context(), r.Header.Get(headerAddress))
	if err == nil && info == nil {
		err = ErrNotFound
	}
	if err != nil {
		s.refuse(w, r, &Refusal{Err: AsError(err)})
		return
	}
	n := object("address", info.Address)
	n.set("endpoints", endpointsNode(info.Endpoints))
	n.set("protocols", texts(info.Protocols))
	n.set("agent_type", str(cmp.Or(info.Type, "custom")))
	n.set("metadata", &node{kind: '{'})
	if !jsonx.IsNull(jsonx.Value(info.Metadata)) {
		m, err := parse(info.Metadata)
		if err != nil {
			s.refuse(w, r, &Refusal{Err: errInternal.Because(err)})
			return
		}
		n.set("metadata", m)
	}
	n.set("prefix", str(cmp.Or(info.Prefix, "agent")))
	n.set("port", number(int64(info.Port)))
	writeJSON(w, http.StatusOK, n)
}

// endpointsNode leaves out endpoints with weights below 1, because the reference
// divides by the weights. UAG-079.
func endpointsNode(endpoints []Endpoint) *node {
	out := list()
	for _, e := range endpoints {
		if e.Weight >= 1 {
			out.vals = append(out.vals, endpointNode(e))
		}
	}
	return out
}
