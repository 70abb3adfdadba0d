package node

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
)

// Handler gives the endpoints of all protocols over HTTP, for a server of the program in
// place of listen.http, or beside it. [Config.PublicURL] must be the URL at which the
// server has them, with the base path: cards, callbacks and signatures use it. For the URL
// https://example.com/parley, each of these will do:
//
//	mux.Handle("/parley/", n.Handler())
//	mux.Handle("/parley/", http.StripPrefix("/parley", n.Handler()))
//
// Until Start, and once Close has let the callers that wait have their answers, it answers
// 503. Close waits for requests in it, so call it before the server's Shutdown.
//
// The hub bounds size, time and memory of bodies here as on its own listener, delays
// guests that ask too often, and refuses pages of foreign origins. What a server decides
// before its handler is for the program: how many connections there are
// (limits.connections and guests.connections count only the hub's listeners), TLS, and
// the header of a request. Set ReadHeaderTimeout to 10 s, IdleTimeout to 2 min and
// MaxHeaderBytes to 32 KiB as the hub does, and no ReadTimeout and WriteTimeout, which end
// streams. A middleware must let [http.ResponseController] through (Unwrap). Behind a proxy
// the hub finds the caller by tls.proxy.
func (n *Node) Handler() http.Handler {
	missing := ""
	if n.c.PublicURL == "" {
		missing = "set PublicURL in node.Config to the URL of this handler, such as https://example.com/parley"
	}
	return n.mounted(n.protocolHandler(), missing)
}

// AdminHandler gives the admin API and the metrics, for a server of the program; see
// [Node.Handler]. It needs [Config.AdminAPI] or listen.admin. Put it below a base path with
// http.StripPrefix, where those that have no token cannot reach it if that is possible. It
// answers only to localhost, IP addresses and the host names of listen.admin_hosts.
func (n *Node) AdminHandler() http.Handler {
	if n.admin == nil {
		return n.mounted(nil, "set AdminAPI in node.Config: the hub was opened without its admin API")
	}
	return n.mounted(n.door(n.admin, false), "")
}

// protocolHandler is what listen.http serves.
func (n *Node) protocolHandler() http.Handler { return n.door(n.tracer.receive(n.router()), true) }

// mounted makes a handler for a server that the node does not control. missing says what
// the configuration lacks; "": nothing.
func (n *Node) mounted(h http.Handler, missing string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		why := missing
		switch {
		case why != "":
		case !n.up.Load():
			why = "the hub is starting"
		case !n.mounts.enter():
			why = "the hub has stopped"
		default:
			defer n.mounts.leave()
			h.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = fmt.Fprintf(w, "{\"error\":%q}\n", why)
	})
}

// mounts counts the requests in handlers of other servers.
type mounts struct {
	mu     sync.Mutex
	closed bool
	busy   sync.WaitGroup
}

// enter reports whether a request may begin.
func (m *mounts) enter() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.busy.Add(1)
	}
	return !m.closed
}

func (m *mounts) leave() { m.busy.Done() }

// refuse lets no further request begin.
func (m *mounts) refuse() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
}

// wait waits for the requests that began, until ctx ends.
func (m *mounts) wait(ctx context.Context) error {
	idle := make(chan struct{})
	go func() { m.busy.Wait(); close(idle) }()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("requests in the handlers of other servers: %w", context.Cause(ctx))
	}
}

// belowBase gives a request as the bindings expect it: without the path of the public URL.
// A proxy has removed that also from the request line, http.StripPrefix from the URL alone,
// and others leave it.
func belowBase(base *url.URL, r *http.Request) *http.Request {
	inner, u := *r, *r.URL // as http.StripPrefix does: a stream holds the copies for long
	if path, ok := cutBase(r.URL.Path, base.Path); ok {
		raw, ok := cutBase(r.URL.RawPath, base.EscapedPath())
		if !ok && r.URL.RawPath != "" {
			return r // the base is spelt in another way
		}
		u.Path, u.RawPath = path, raw
	}
	if line, _, _ := strings.Cut(r.RequestURI, "?"); line == u.EscapedPath() {
		return r
	}
	inner.URL, inner.RequestURI = &u, u.RequestURI()
	return &inner
}

func cutBase(path, base string) (rest string, ok bool) {
	rest, ok = strings.CutPrefix(path, base)
	if !ok || base == "" || !strings.HasPrefix(rest, "/") {
		return "", false
	}
	return rest, true
}
