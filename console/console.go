package console

import (
	"crypto/sha256"
	"crypto/tls"
	"embed"
	"encoding/hex"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
)

// Config of a [Console]. Admin must be set.
type Config struct {
	Admin *admin.Admin

	// Public reports whether a request came in on a public address without TLS; such requests are refused. nil: none did.
	Public func(*http.Request) bool

	Now    func() time.Time // nil: time.Now
	Logger *slog.Logger     // nil: nothing is logged
}

// Console is the http.Handler of everything below /console/.
type Console struct {
	c     Config
	admin *admin.Admin
	log   *slog.Logger
	mux   *http.ServeMux
	hub   string // its id, which names the cookie
	pages *pages

	actions []string // see [Console.Actions]
}

// Base is the path of the console.
const Base = "/console/"

// policy is the Content-Security-Policy of every page.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

//go:embed static templates
var files embed.FS

// New makes the console of a hub.
func New(c Config) (*Console, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	v := &Console{c: c, admin: c.Admin, log: c.Logger, mux: http.NewServeMux(), hub: c.Admin.HubID()}
	var err error
	if v.pages, err = parsePages(v.static()); err != nil {
		return nil, err
	}
	v.routes()
	return v, nil
}

func (c *Console) routes() {
	c.mux.HandleFunc("GET "+Base+"enter", c.showEnter)
	c.mux.HandleFunc("POST "+Base+"enter", c.enter)
	c.post(Base+"leave", c.leave)
	c.mux.Handle("GET "+livePath, c.session(c.serveLive))
	c.mux.Handle("GET "+Base+"conversations/{id}/evidence", c.session(c.evidence))
	c.post(Base+"conversations/{id}/forget", c.forgetConversation)
	c.downloads()
	c.agentRoutes()
	c.undeliveredActions()
	c.post(workbenchPath, c.inspect)
	c.post(workbenchPath+"/send", c.send)
	c.post(workbenchPath+"/foresee", c.foresee)
	for path, s := range screens {
		c.mux.Handle("GET "+Base+path, c.screen(s))
	}
	c.mux.HandleFunc("GET "+Base, func(w http.ResponseWriter, r *http.Request) {
		c.fail(w, r, nil, parley.Refuse(parley.Unsupported, "the console has no page at %.100q", r.URL.Path),
			http.StatusNotFound)
	})
}

// post registers what a form orders.
func (c *Console) post(path string, do func(*request) error) {
	c.actions = append(c.actions, path)
	c.mux.Handle("POST "+path, c.action(do))
}

// Actions are the paths to which forms of a session are sent, as patterns of [http.ServeMux].
func (c *Console) Actions() []string { return slices.Clone(c.actions) }

// ServeHTTP implements http.Handler. The caller has checked the host name and the origin.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	// Not no-referrer: browsers would call the origin of a form null. The page with a link's secret has that.
	h.Set("Referrer-Policy", "same-origin")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	if c.c.Public != nil && c.c.Public(r) {
		c.fail(w, r, nil, parley.Refuse(parley.Forbidden, "on a public address the console needs TLS: put a proxy with "+
			"TLS before listen.admin and name it in tls.proxy, or listen on 127.0.0.1 and use an SSH tunnel"),
			http.StatusForbidden)
		return
	}
	c.mux.ServeHTTP(w, r)
}

// secure reports whether the browser speaks TLS with the hub, or with its trusted proxy.
func secure(r *http.Request) bool { return r.TLS != (*tls.ConnectionState)(nil) }

// static serves the embedded files below a path with their digest, so that browsers may cache them; it gives the path.
func (c *Console) static() (base string) {
	tree, err := fs.Sub(files, "static")
	if err != nil {
		panic(err) // the directory is embedded
	}
	sum := sha256.New()
	_ = fs.WalkDir(tree, ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			var b []byte
			if b, err = fs.ReadFile(tree, path); err == nil {
				sum.Write(b)
			}
		}
		return err
	})
	base = Base + "static/" + hex.EncodeToString(sum.Sum(nil))[:12] + "/"
	serve := http.StripPrefix(base, http.FileServerFS(tree))
	c.mux.HandleFunc("GET "+base, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/") {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
		serve.ServeHTTP(w, r)
	})
	return base
}

// A request is one request of a session.
type request struct {
	w       http.ResponseWriter
	r       *http.Request
	session admin.Session
	by      admin.Actor
	now     time.Time // of the hub's clock, one for the whole page

	stream  url.Values // of a page that is kept up to date; see [request.live]
	counted time.Time  // when a stream last counted
	open    openRows   // of a stream
	shown   shownRows  // of a stream
	rest    time.Time  // until then a stream is not looked at again
}

// A screen makes the content of a page.
type screen struct {
	name  string // of its template, and of the screen in the navigation
	title string
	data  func(c *Console, q *request) (any, error)
}

// screens are the pages by path below [Base].
var screens = map[string]screen{
	"{$}":                {"messages", "Messages", (*Console).messages},
	"conversations":      {"conversations", "Conversations", (*Console).conversations},
	"conversations/{id}": {"conversation", "Conversation", (*Console).conversation},
	"audit":              {"audit", "Audit", (*Console).audit},

	"agents":                   {"agents", "Agents", (*Console).agents},
	"agents/{name...}":         {"agents", "Agents", (*Console).agents},
	"agents/connect":           {"connect", "Connect an agent", (*Console).connect},
	"agents/connect/{name...}": {"connect", "Connect an agent", (*Console).checklist},
	"undelivered":              {"undelivered", "Undelivered", (*Console).undelivered},
	"workbench":                {"workbench", "Workbench", (*Console).workbench},
}

// screen serves a page to a session.
func (c *Console) screen(s screen) http.Handler {
	return c.session(func(q *request) {
		data, err := s.data(c, q)
		if to, ok := errors.AsType[*redirect](err); ok {
			http.Redirect(q.w, q.r, to.path, http.StatusSeeOther)
			return
		}
		if err != nil {
			c.fail(q.w, q.r, q, err, 0)
			return
		}
		c.render(q.w, q.r, q, s.name, s.title, data, http.StatusOK)
	})
}

// A redirect is the error of a screen whose content is at another address.
type redirect struct{ path string }

func (r *redirect) Error() string { return "see " + r.path }
