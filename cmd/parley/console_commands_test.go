package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/console"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
)

// ordered are the commands of what the console's forms order. "": a browser's session, which is no thing of the hub.
var ordered = map[string]string{
	"/console/leave": "", "/console/enter": "",
	"/console/agents/pause":              "parley agents pause",
	"/console/agents/resume":             "parley agents resume",
	"/console/agents/expose":             "parley agents expose",
	"/console/agents/link":               "parley agents link",
	"/console/agents/enroll":             "parley keys enroll",
	"/console/agents/rotate":             "parley keys rotate",
	"/console/agents/remove":             "parley agents remove",
	"/console/agents/connect":            "parley agents add",
	"/console/conversations/{id}/forget": "parley forget",
	"/console/undelivered/retry":         "parley dead retry",
	"/console/undelivered/drop":          "parley dead drop",
	"/console/undelivered/stop":          "parley dead jobs",
	"/console/workbench":                 "parley inspect",
	"/console/workbench/send":            "parley send",
	"/console/workbench/foresee":         "parley send",
	"/console/workbench/vector":          "parley inspect",
}

// TestConsoleNamesCommands: every form, dialog and file of the console names the command that does the same, and all
// commands that it names exist, with their flags.
func TestConsoleNamesCommands(t *testing.T) {
	t.Parallel()
	n, secret := busyHub(t)
	w := &reader{t: t, base: n.Addresses().Admin, seen: map[string]bool{}, forms: map[string]bool{}}
	w.actions = http.NewServeMux()
	c, err := console.New(console.Config{Admin: n.Admin()})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range append(c.Actions(), "/console/enter") {
		if _, ok := ordered[p]; !ok {
			t.Errorf("the form %s has no command in this test", p)
		}
		w.actions.Handle(p, http.NotFoundHandler())
	}
	w.enter(secret)
	w.todo = append(w.todo, // pages to which forms of dialogs lead
		"/console/agents/caller?ask=expose&p=agh", "/console/agents/caller?ask=link&in=agh&id=telex:x",
		"/console/agents/caller?ask=enroll&in=samvad&key=O2onvM62pC1io6jQKm8Nc2UyFXcd4kOmOsBIoYtZ2ik%3D",
		"/console/agents/caller?ask=rotate&in=asp&overlap=48h", "/console/workbench?to=box",
		"/console/agents/connect/caller", "/console/nowhere",
	)
	w.crawl()
	for p, command := range ordered {
		if command != "" && !w.forms[p] {
			t.Errorf("no page has the form %s", p)
		}
	}
	if len(w.seen) < 30 {
		t.Errorf("only %d pages were looked at", len(w.seen))
	}
}

// busyHub is a hub that has something of everything that the console shows.
func busyHub(t *testing.T) (*node.Node, string) {
	t.Helper()
	ctx := t.Context()
	var secret string
	n, err := node.Open(ctx, node.Config{Data: t.TempDir(), Durability: "memory", Log: slog.New(slog.DiscardHandler),
		Listen: node.Listen{HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"}, FirstToken: func(s string) { secret = s }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close(context.Background()) })
	if err := n.Start(ctx); err != nil {
		t.Fatal(err)
	}
	api := &admin.Client{Base: n.Addresses().Admin, Token: secret}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err = api.AddAgent(ctx, admin.NewAgent{Name: "box", Inbox: true, Skills: []admin.Skill{{ID: "do"}}})
	check(err)
	_, err = api.AddAgent(ctx, admin.NewAgent{Name: "held", Inbox: true})
	check(err)
	_, err = api.PauseFor(ctx, "held", "month end")
	check(err)
	_, err = n.Admin().Connect(ctx, admin.Actor{Name: "test", Role: admin.Administer}, admin.NewAgent{Name: "caller",
		Expose: []string{"asp"}, Identities: []admin.NewIdentity{{Protocol: "samvad", ID: "agent://caller.example",
			PublicKey: "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="}}})
	check(err)
	hello := "hello"
	for range 3 {
		id, err := parley.NewID(time.Now(), rand.Reader)
		check(err)
		m := parley.Message{ID: id, Conversation: id, Kind: parley.Request, From: "caller", To: "box", Skill: "do",
			Parts: []parley.Part{parley.Text(hello)}}
		_, err = n.Hub().Journal().Append(ctx, journal.Entry{Scope: "box", Message: &m,
			Open: []journal.Opening{{To: "box", Attempt: 1}}})
		check(err)
		_, err = n.Hub().Journal().Append(ctx, journal.Entry{Steps: []journal.Step{{Message: id, To: "box",
			State: parley.Dead, Error: parley.Refuse(parley.Unavailable, "gone").With(parley.ByNetwork, parley.NoAnswer, "")}}})
		check(err)
	}
	_, err = api.Send(ctx, admin.Send{To: "held", Kind: parley.Notice, Text: &hello})
	check(err)
	_, err = api.Send(ctx, admin.Send{To: "nobody", Text: &hello}) // a refusal
	if err == nil {
		t.Fatal("nobody got a message")
	}
	_, err = api.RetryAll(ctx, admin.Bulk{Filter: admin.DeadFilter{To: "box"}, Rate: 0.01}) // a job that goes on
	check(err)
	_, err = api.Undelivered(ctx, admin.UndeliveredFilter{Show: admin.ShowDropped}) // waits for the index
	check(err)
	return n, secret
}

// reader reads all pages that a session finds.
type reader struct {
	t       *testing.T
	base    string
	http    http.Client
	actions *http.ServeMux
	todo    []string
	seen    map[string]bool // shapes of addresses
	forms   map[string]bool // patterns of forms that were found
	page    string
}

func (w *reader) enter(token string) {
	w.t.Helper()
	l, err := (&admin.Client{Base: w.base, Token: token}).ConsoleLink(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	w.http.Jar, _ = cookiejar.New(nil)
	w.todo = []string{"/console/"}
	w.page = l.Path
	w.read(l.Path)
	at, _ := url.Parse(l.Path)
	r, err := http.NewRequestWithContext(w.t.Context(), "POST", w.base+"/console/enter",
		strings.NewReader(url.Values{"once": {at.Query().Get("once")}}.Encode()))
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Origin", w.base)
	res, err := w.http.Do(r)
	if err != nil || res.StatusCode != http.StatusOK {
		w.t.Fatal(res, err)
	}
	res.Body.Close()
}

// crawl reads each page once: pages that differ in an id, a filter or a chosen row only count as one.
func (w *reader) crawl() {
	for len(w.todo) > 0 {
		w.page = w.todo[0]
		if w.todo = w.todo[1:]; len(w.seen) > 400 {
			w.t.Fatal("there is no end of pages")
		}
		w.read(w.page)
	}
}

var (
	digits  = regexp.MustCompile(`[0-9a-f]{8}(-?[0-9a-f]+)*`)
	telling = []string{"ask", "show", "view", "retry", "drop"} // parameters that change which forms a page has
)

// shape is an address without what makes no other page.
func shape(u *url.URL) string {
	out := []string{digits.ReplaceAllString(u.Path, "ID")}
	q := u.Query()
	for k := range q {
		if slices.Contains(telling, k) {
			out = append(out, k+"="+q.Get(k))
		}
	}
	slices.Sort(out[1:])
	return strings.Join(out, " ")
}

func (w *reader) read(path string) {
	w.t.Helper()
	res, err := w.http.Get(w.base + path)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode >= 500 {
		w.t.Fatalf("%s: %s, %v", path, res.Status, err)
	}
	root, err := html.Parse(strings.NewReader(string(body)))
	if err != nil {
		w.t.Fatal(err)
	}
	for n := range root.Descendants() {
		if n.Type == html.ElementNode {
			w.look(res.Request.URL, n)
		}
	}
}

// look looks at one element.
func (w *reader) look(at *url.URL, n *html.Node) {
	fail := func(format string, v ...any) {
		w.t.Helper()
		w.t.Errorf("%s: %s", w.page, fmt.Sprintf(format, v...))
	}
	switch n.Data {
	case "code", "pre":
		for line := range strings.Lines(text(n)) {
			if err := checkCommand(strings.TrimSpace(line)); err != nil {
				fail("%s: %v", line, err)
			}
		}
	case "a":
		w.follow(at, n)
		if _, file := attr(n, "download"); file && !names(n, "parley ") {
			fail("the file %s has no command", text(n))
		}
	case "form":
		if method, _ := attr(n, "method"); method == "post" { // else it is a filter, whose page is the address
			w.posts(at, n, "action", fail)
		}
	case "button":
		if _, own := attr(n, "formaction"); own {
			w.posts(at, n, "formaction", fail)
		}
		kind, _ := attr(n, "type")
		_, copies := attr(n, "data-copy")
		_, theme := attr(n, "data-theme-toggle")
		_, live := attr(n, "data-live")
		_, off := attr(n, "disabled")
		if kind == "submit" && within(n, func(p *html.Node) bool { return p.Data == "form" }) == nil ||
			kind != "submit" && !copies && !theme && !live && !off {
			fail("the button %q has no form", text(n))
		}
	}
	if role, _ := attr(n, "role"); role == "dialog" {
		if id, _ := attr(within(n, func(p *html.Node) bool { return hasClass(p, "scrim") }), "id"); id != "keys" &&
			!names(n, "parley ") {
			fail("the dialog %s names no command", id)
		}
	}
	if n.Data == "main" {
		screen, _ := attr(n, "data-screen")
		if screen != "fault" && screen != "enter" && !names(n, "parley ") {
			fail("the page names no command")
		}
	}
}

// posts notes to which form an element posts, and looks for its command.
func (w *reader) posts(at *url.URL, n *html.Node, attribute string, fail func(string, ...any)) {
	action, _ := attr(n, attribute)
	u, err := at.Parse(action)
	if err != nil {
		fail("the form %s: %v", action, err)
		return
	}
	r, _ := http.NewRequestWithContext(w.t.Context(), "POST", u.Path, nil)
	_, pattern := w.actions.Handler(r)
	if w.forms[pattern] = true; pattern == "" || !names(n, ordered[pattern]) {
		fail("the form %s (%s) does not name %q", action, pattern, ordered[pattern])
	}
}

// follow remembers the page of a link.
func (w *reader) follow(at *url.URL, n *html.Node) {
	href, ok := attr(n, "href")
	u, err := at.Parse(href)
	if _, file := attr(n, "download"); !ok || err != nil || file || u.Host != at.Host ||
		!strings.HasPrefix(u.Path, "/console/") {
		return
	}
	if s := shape(u); !w.seen[s] {
		w.seen[s] = true
		w.todo = append(w.todo, u.RequestURI())
	}
}

// names reports whether the place of an element names a command: the form, the dialog, the section.
func names(n *html.Node, command string) bool {
	if command == "" {
		return true
	}
	place := within(n, func(p *html.Node) bool {
		role, _ := attr(p, "role")
		return slices.Contains([]string{"section", "aside", "header", "main"}, p.Data) || role == "dialog" ||
			hasClass(p, "job") || p.Data == "form" && code(p, command)
	})
	return place != nil && code(place, command)
}

func code(n *html.Node, command string) bool {
	for c := range n.Descendants() {
		if (c.Data == "code" || c.Data == "pre") && strings.HasPrefix(strings.TrimSpace(text(c)), command) {
			return true
		}
	}
	return false
}

// within is the element itself or the first around it that is as wanted.
func within(n *html.Node, wanted func(*html.Node) bool) *html.Node {
	for ; n != nil; n = n.Parent {
		if n.Type == html.ElementNode && wanted(n) {
			return n
		}
	}
	return nil
}

func attr(n *html.Node, name string) (string, bool) {
	if n != nil {
		for _, a := range n.Attr {
			if a.Key == name {
				return a.Val, true
			}
		}
	}
	return "", false
}

func hasClass(n *html.Node, class string) bool {
	s, _ := attr(n, "class")
	return slices.Contains(strings.Fields(s), class)
}

func text(n *html.Node) string {
	var b strings.Builder
	for c := range n.Descendants() {
		if c.Type == html.TextNode {
			b.WriteString(c.Data)
		}
	}
	return b.String()
}
