package console_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/node"
)

// clock is a clock that a test moves.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// bench is a hub with its console on a socket.
type bench struct {
	t     *testing.T
	node  *node.Node
	clock *clock
	base  string
	api   *admin.Client // may do everything
}

func open(t *testing.T, change func(*node.Config)) *bench {
	t.Helper()
	b := &bench{t: t, clock: &clock{t: time.Now()}}
	var secret string
	c := node.Config{Data: t.TempDir(), Durability: "memory", Log: slog.New(slog.DiscardHandler), Now: b.clock.now,
		Listen: node.Listen{Admin: "127.0.0.1:0"}, FirstToken: func(s string) { secret = s }}
	if change != nil {
		change(&c)
	}
	ctx := context.Background()
	n, err := node.Open(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close(context.Background()) })
	if err := n.Start(ctx); err != nil {
		t.Fatal(err)
	}
	b.node, b.base = n, n.Addresses().Admin
	b.api = &admin.Client{Base: b.base, Token: secret}
	return b
}

// browser is an http.Client that keeps cookies, and follows redirects.
type browser struct {
	*bench
	http *http.Client
}

func (b *bench) browser() *browser {
	jar, err := cookiejar.New(nil)
	if err != nil {
		b.t.Fatal(err)
	}
	return &browser{b, &http.Client{Jar: jar}}
}

// do makes a request, and gives the status and the body.
func (w *browser) do(method, path string, form url.Values, header ...string) (int, string) {
	w.t.Helper()
	r, err := http.NewRequest(method, w.base+path, strings.NewReader(form.Encode()))
	if err != nil {
		w.t.Fatal(err)
	}
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", w.base)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	res, err := w.http.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

// link makes a link with the rights of a token.
func (b *bench) link(token string) string {
	b.t.Helper()
	l, err := (&admin.Client{Base: b.base, Token: token}).ConsoleLink(context.Background())
	if err != nil {
		b.t.Fatal(err)
	}
	return l.Path
}

// token issues a token with a role.
func (b *bench) token(name string, role admin.Role) string {
	b.t.Helper()
	v, err := b.api.IssueToken(context.Background(), admin.NewToken{Name: name, Role: role})
	if err != nil {
		b.t.Fatal(err)
	}
	return v.Secret
}

func (w *browser) enter(link string) (int, string) {
	w.t.Helper()
	return w.do("POST", "/console/enter", url.Values{"once": {strings.TrimPrefix(link, "/console/enter?once=")}})
}

// entered is a browser with a session of a token.
func (b *bench) entered(token string) *browser {
	b.t.Helper()
	w := b.browser()
	status, body := w.enter(b.link(token))
	if status != http.StatusOK || !strings.Contains(body, `data-screen="messages"`) {
		b.t.Fatalf("enter: %d %s", status, body)
	}
	return w
}

func TestLinkWorksOnce(t *testing.T) {
	b := open(t, nil)
	ops := b.token("ops-laptop", admin.Operate)
	link := b.link(ops)
	w := b.browser()
	for range 3 { // programs that preview links
		if status, body := w.do("GET", link, nil); status != 200 || !strings.Contains(body, "Enter as ops-laptop") {
			t.Fatalf("the link: %d %s", status, body)
		}
	}
	if status, _ := w.do("GET", "/console/", nil); status != http.StatusUnauthorized {
		t.Fatalf("GET alone let a browser in: %d", status)
	}
	if status, body := w.enter(link + "A"); status != http.StatusUnauthorized ||
		!strings.Contains(body, "parley console") {
		t.Fatalf("an altered link: %d %s", status, body)
	}
	// A page with the policy no-referrer has forms of the origin null; what they lead to is asked for without an origin.
	w.http.CheckRedirect = func(r *http.Request, _ []*http.Request) error { r.Header.Del("Origin"); return nil }
	status, body := w.do("POST", "/console/enter", url.Values{"once": {strings.TrimPrefix(link, "/console/enter?once=")}},
		"Origin", "null")
	if status != 200 || !strings.Contains(body, "ops-laptop · operator") {
		t.Fatalf("the first use: %d %s", status, body)
	}
	if status, _ := b.browser().enter(link); status != http.StatusUnauthorized {
		t.Fatalf("the second use: %d", status)
	}
	late := b.link(ops)
	b.clock.move(10 * time.Minute)
	if status, _ := b.browser().enter(late); status != http.StatusUnauthorized {
		t.Fatalf("after ten minutes: %d", status)
	}
}

func TestSessionEnds(t *testing.T) {
	b := open(t, nil)
	ops := b.token("ops", admin.Operate)
	see := func(w *browser) int { status, _ := w.do("GET", "/console/", nil); return status }
	idle := b.entered(ops)
	b.clock.move(59 * time.Minute)
	if got := see(idle); got != 200 {
		t.Fatalf("after 59 minutes: %d", got)
	}
	b.clock.move(time.Hour)
	if got := see(idle); got != http.StatusUnauthorized {
		t.Fatalf("after an hour without use: %d", got)
	}
	busy := b.entered(ops)
	for range 23 {
		b.clock.move(30 * time.Minute)
		if got := see(busy); got != 200 {
			t.Fatalf("in use: %d", got)
		}
	}
	b.clock.move(30 * time.Minute)
	if got := see(busy); got != http.StatusUnauthorized {
		t.Fatalf("after 12 hours: %d", got)
	}
	revoked := b.entered(ops)
	if err := b.api.RevokeToken(context.Background(), "ops", false); err != nil {
		t.Fatal(err)
	}
	if got := see(revoked); got != http.StatusUnauthorized {
		t.Fatalf("after the token was revoked: %d", got)
	}
}

var formToken = regexp.MustCompile(`name="form" value="([^"]+)"`)

func TestFormsOfOthersAreRefused(t *testing.T) {
	b := open(t, nil)
	w := b.entered(b.token("ops", admin.Operate))
	_, page := w.do("GET", "/console/", nil)
	form := formToken.FindStringSubmatch(page)[1]
	for name, try := range map[string]struct {
		form   string
		header []string
	}{
		"no token":       {"", nil},
		"another token":  {strings.Repeat("A", len(form)), nil},
		"another origin": {form, []string{"Origin", "https://evil.example"}},
		"another site":   {form, []string{"Sec-Fetch-Site", "cross-site"}},
		"no origin":      {form, []string{"Origin", "null"}},
	} {
		status, _ := w.do("POST", "/console/leave", url.Values{"form": {try.form}}, try.header...)
		if status != http.StatusForbidden {
			t.Errorf("%s: %d", name, status)
		}
	}
	if status, _ := w.do("POST", "/console/leave", url.Values{"form": {form}}); status != 200 {
		t.Fatalf("the page's own form: %d", status)
	}
	if status, _ := w.do("GET", "/console/", nil); status != http.StatusUnauthorized {
		t.Fatal("the session goes on after leaving")
	}
}

// TestLinksFromElsewhere: a link in a chat leads to its page, but no other request of a foreign page is answered.
func TestLinksFromElsewhere(t *testing.T) {
	b := open(t, nil)
	w := b.entered(b.token("ops", admin.Read))
	follow := []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}
	for name, try := range map[string]struct {
		path   string
		header []string
		want   int
	}{
		"a link":            {"/console/", follow, 200},
		"the way in":        {"/", follow, 200},
		"an iframe":         {"/console/", append(slices.Clone(follow[:5]), "iframe"), 403},
		"a script's fetch":  {"/console/", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"}, 403},
		"a link to the API": {"/v1/health", follow, 403},
	} {
		if status, _ := w.do("GET", try.path, nil, try.header...); status != try.want {
			t.Errorf("%s: %d, want %d", name, status, try.want)
		}
	}
}

func TestPagesLoadNothingFromElsewhere(t *testing.T) {
	b := open(t, nil)
	w := b.entered(b.token("ops", admin.Read))
	res, err := w.http.Get(b.base + "/console/")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	const want = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; " +
		"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
	if got := res.Header.Get("Content-Security-Policy"); got != want {
		t.Errorf("policy %q", got)
	}
	page := string(body)
	for _, bad := range []string{"<script>", " style=", " onclick", "javascript:", `src="http`, `href="http`} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	total := 0
	for _, m := range regexp.MustCompile(`(?:src|href)="(/console/static/[^"]+)"`).FindAllStringSubmatch(page, -1) {
		status, file := w.do("GET", m[1], nil)
		if status != 200 {
			t.Errorf("%s: %d", m[1], status)
		}
		total += len(file)
	}
	if total == 0 || total >= 120_000 {
		t.Errorf("the files of a page have %d bytes, want less than 120 KB", total)
	}
}
