package console

import (
	"crypto/subtle"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
)

// cookie names the cookie after the hub: cookies ignore ports, and two hubs may share a machine.
func (c *Console) cookie() string { return "parley-" + c.hub }

// session serves a request of a session. A browser without one is told how to get one.
func (c *Console) session(serve func(*request)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var v admin.Session
		k, err := r.Cookie(c.cookie())
		if err == nil {
			// A page that updates itself needs no user in front of it.
			v, err = c.admin.Sessions().Find(k.Value, r.URL.Path != livePath && r.Header.Get("Parley-Live") == "")
		} else {
			err = parley.Refuse(parley.Unauthenticated, "this browser has no session")
		}
		if err != nil {
			c.fail(w, r, nil, err, http.StatusUnauthorized)
			return
		}
		ctx, end := c.admin.Sessions().During(r.Context(), v)
		defer end()
		serve(&request{w: w, r: r.WithContext(ctx), session: v, by: v.By, now: c.c.Now()})
	})
}

// maxForm bounds the body of a form: a content of 4 MiB and its escapes.
const maxForm = 16 << 20

// action serves a form that changes something: it comes from a page of this origin and has the session's token.
func (c *Console) action(do func(*request) error) http.Handler {
	return c.session(func(q *request) {
		q.r.Body = http.MaxBytesReader(q.w, q.r.Body, maxForm)
		if err := q.r.ParseForm(); err != nil {
			c.fail(q.w, q.r, q, parley.Refuse(parley.TooLarge, "the form has more than %d bytes, or is malformed", maxForm), 0)
			return
		}
		if !sameOrigin(q.r) || subtle.ConstantTimeCompare([]byte(q.r.PostFormValue("form")), []byte(q.session.Form)) != 1 {
			c.fail(q.w, q.r, q, parley.Refuse(parley.Forbidden,
				"this form is not of this session; go back, reload the page and try again"), 0)
			return
		}
		if err := do(q); err != nil {
			c.fail(q.w, q.r, q, err, 0)
		}
	})
}

// sameOrigin reports whether a page of this origin sent a form. Browsers say so in one of two headers.
func sameOrigin(r *http.Request) bool {
	if r.Header.Get("Sec-Fetch-Site") == "same-origin" {
		return true
	}
	u, err := url.Parse(r.Header.Get("Origin"))
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host)
}

// showEnter shows the name and role of a link. It does not use the link up: programs that preview links open it too.
func (c *Console) showEnter(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Referrer-Policy", "no-referrer")
	once := r.URL.Query().Get("once")
	by, err := c.admin.Sessions().Invited(once)
	if err != nil {
		c.fail(w, r, nil, err, http.StatusUnauthorized)
		return
	}
	c.render(w, r, nil, "enter", "Enter", map[string]any{"Name": by.Name, "Role": by.Role, "Once": once}, http.StatusOK)
}

// enter begins a session.
func (c *Console) enter(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 4096)
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	secret, v, err := c.admin.Sessions().Enter(r.PostFormValue("once"), host)
	if err != nil {
		c.fail(w, r, nil, err, http.StatusUnauthorized)
		return
	}
	http.SetCookie(w, &http.Cookie{Name: c.cookie(), Value: secret, Path: strings.TrimSuffix(Base, "/"), HttpOnly: true,
		SameSite: http.SameSiteLaxMode, Secure: secure(r), MaxAge: int(v.Expires.Sub(c.c.Now()).Seconds())})
	http.Redirect(w, r, Base, http.StatusSeeOther)
}

// leave ends a session.
func (c *Console) leave(q *request) error {
	if k, err := q.r.Cookie(c.cookie()); err == nil {
		c.admin.Sessions().End(k.Value)
	}
	http.SetCookie(q.w, &http.Cookie{Name: c.cookie(), Path: strings.TrimSuffix(Base, "/"), HttpOnly: true,
		SameSite: http.SameSiteLaxMode, Secure: secure(q.r), MaxAge: -1})
	c.fail(q.w, q.r, nil, parley.Refuse(parley.Unauthenticated, "the session has ended"), http.StatusOK)
	return nil
}
