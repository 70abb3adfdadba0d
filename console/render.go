package console

import (
	"bytes"
	"cmp"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"strings"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
)

// pages are the parsed templates by the name of their screen.
type pages struct {
	static string // path of the static files
	by     map[string]*template.Template
}

// parsePages parses the templates: a page is layout.html, parts.html and lists.html with the file of its screen.
func parsePages(static string) (*pages, error) {
	tree, err := fs.Sub(files, "templates")
	if err != nil {
		return nil, err
	}
	shared, err := template.New("").Funcs(functions).ParseFS(tree, "layout.html", "parts.html", "lists.html")
	if err != nil {
		return nil, err
	}
	p := &pages{static: static, by: map[string]*template.Template{}}
	names, err := fs.Glob(tree, "*.html")
	if err != nil {
		return nil, err
	}
	for _, file := range names {
		name := strings.TrimSuffix(path.Base(file), ".html")
		if name == "layout" || name == "parts" || name == "lists" {
			continue
		}
		t, err := shared.Clone()
		if err == nil {
			t, err = t.ParseFS(tree, file)
		}
		if err != nil {
			return nil, fmt.Errorf("template %s: %w", file, err)
		}
		p.by[name] = t
	}
	return p, nil
}

// A Page is what every template gets.
type Page struct {
	Title  string
	Screen string // name of the template
	Static string
	Theme  string // light, dark, or "" for the browser's choice
	Hub    string
	Base   string
	Form   string // the session's token for forms
	By     *admin.Actor
	Frame  *Frame // nil without a session
	Stream string // address of the page's live updates
	At     int32  // hash of the page's address; 0 for the answer to a form
	Now    Moment
	Data   any
}

// Has reports whether the console has a screen at a path below its base.
func (p Page) Has(path string) bool {
	_, ok := screens[path]
	return ok
}

// render writes a page. Without a request of a session it has no frame.
func (c *Console) render(w http.ResponseWriter, r *http.Request, q *request, name, title string, data any, status int) {
	p := Page{Title: title, Screen: name, Static: c.pages.static, Hub: c.hub, Base: Base, Data: data, Theme: themeOf(r)}
	p.Now = Moment{c.c.Now(), c.c.Now()}
	if q != nil {
		p.By, p.Form, p.Now = &q.by, q.session.Form, Moment{q.now, q.now}
		p.Frame, p.Stream = c.frame(q), streamOf(q)
		if r.Method == http.MethodGet {
			p.At = addressHash(r.RequestURI)
		}
	}
	var b bytes.Buffer
	if err := c.pages.by[name].ExecuteTemplate(&b, "layout", p); err != nil {
		c.log.Error("cannot make a page of the console", "page", name, "error", err)
		http.Error(w, "internal error", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(visible(b.Bytes())) // if it fails, the browser is gone
}

// addressHash is a hash of an address, which live.js computes too. The address itself may have texts that do not belong
// into the page.
func addressHash(s string) (h int32) {
	s = strings.TrimSuffix(s, "?")
	for i := range len(s) {
		h = h*31 + int32(s[i])
	}
	return h
}

// part writes one template without the layout, for a live stream or a part of a page.
func (c *Console) part(page, name string, data any) ([]byte, error) {
	var b bytes.Buffer
	err := c.pages.by[page].ExecuteTemplate(&b, name, data)
	return visible(b.Bytes()), err
}

// themeOf is the theme that the browser keeps in a cookie.
func themeOf(r *http.Request) string {
	k, err := r.Cookie("parley-theme")
	if err != nil || k.Value != "light" && k.Value != "dark" {
		return ""
	}
	return k.Value
}

// A Fault is an error as a page shows it.
type Fault struct {
	admin.Problem
	Enter bool // there is no session
}

// fail writes the page of an error. status 0: that of its code.
func (c *Console) fail(w http.ResponseWriter, r *http.Request, q *request, err error, status int) {
	e := parley.AsError(err)
	p := admin.ProblemOf(e)
	status = cmp.Or(status, admin.StatusOf(e))
	if status >= 500 {
		c.log.Error("a page of the console failed", "path", r.URL.Path, "error", err)
	}
	enter := q == nil && e.Code == parley.Unauthenticated
	if e.Reason == "" && status < 500 {
		p.Advice = "" // that of a code alone is for senders of messages
	}
	c.render(w, r, q, "fault", "Not done", Fault{p, enter}, status)
}
