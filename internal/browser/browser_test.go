package browser_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/parley-hub/parley/internal/browser"
)

// chromium is the browser of the tests of this package.
var chromium *browser.Browser

func TestMain(m *testing.M) {
	var err error
	chromium, err = browser.Start()
	if err != nil && !errors.Is(err, browser.ErrMissing) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if chromium != nil {
		chromium.Close()
	}
	os.Exit(code)
}

// open opens a page of a server that has one document, under a strict policy.
func open(t *testing.T, look browser.Look, document string) (*browser.Page, string) {
	t.Helper()
	if chromium == nil {
		t.Skip(browser.ErrMissing)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; connect-src *; img-src *")
		switch r.URL.Path {
		case "/":
			fmt.Fprintf(w, "<!doctype html><html lang=en><title>t</title><link rel=icon href=/icon><main>%s</main>", document)
		case "/icon":
			w.Header().Set("Content-Type", "image/svg+xml")
			fmt.Fprint(w, `<svg xmlns="http://www.w3.org/2000/svg"/>`)
		case "/fails.js":
			w.Header().Set("Content-Type", "text/javascript")
			fmt.Fprint(w, "throw new Error('it fails')")
		case "/says.js":
			w.Header().Set("Content-Type", "text/javascript")
			fmt.Fprint(w, "console.error('it says so')")
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	p, err := chromium.Open(s.URL, look)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	if err := p.Do(browser.Go(s.URL + "/")); err != nil {
		t.Fatal(err)
	}
	return p, s.URL
}

func TestProblems(t *testing.T) {
	for name, try := range map[string]struct{ document, want string }{
		"nothing":            {"<h1>Well</h1>", ""},
		"another origin":     {`<img src="http://127.0.0.1:1/x.png" alt="">`, "left the origin: http://127.0.0.1:1/x.png"},
		"an inline script":   {`<script>document.title = "broken into"</script>`, "Content Security Policy"},
		"an inline style":    {`<p style="color: red">red</p>`, "Content Security Policy"},
		"a script that ends": {`<script src="/fails.js"></script>`, "it fails"},
		"a console error":    {`<script src="/says.js"></script>`, "it says so"},
		"a missing part":     {`<script src="/none.js"></script>`, "HTTP 404"},
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := open(t, browser.Look{}, try.document)
			if err := p.Do(browser.Wait("document.readyState === 'complete'")); err != nil {
				t.Fatal(err)
			}
			got := strings.Join(p.Problems(), "\n")
			if try.want == "" && got != "" || !strings.Contains(got, try.want) {
				t.Errorf("problems %q, want %q", got, try.want)
			}
		})
	}
}

func TestLook(t *testing.T) {
	media := func(q string) string { return fmt.Sprintf("matchMedia(%q).matches", q) }
	for name, try := range map[string]struct {
		look browser.Look
		true []string
	}{
		"plain": {browser.Look{}, []string{media("(prefers-color-scheme: light)"), media("(forced-colors: none)"),
			media("(prefers-reduced-motion)"), "innerWidth === 1440 && innerHeight === 900"}},
		"dark, narrow, moving": {browser.Look{Dark: true, Width: 360, Moving: true},
			[]string{media("(prefers-color-scheme: dark)"), "innerWidth === 360", "!" + media("(prefers-reduced-motion)")}},
		"forced colours": {browser.Look{ForcedColors: true}, []string{media("(forced-colors: active)")}},
		"text of 200 %":  {browser.Look{Zoom: 2}, []string{"innerWidth === 720", "devicePixelRatio === 2"}},
		"without script": {browser.Look{NoScript: true}, []string{"document.querySelector('noscript p')"}},
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := open(t, try.look, "<noscript><p>none</p></noscript>")
			for _, condition := range try.true {
				var ok bool
				if err := p.Do(browser.Eval("!!("+condition+")", &ok)); err != nil || !ok {
					t.Errorf("%s: %t, %v", condition, ok, err)
				}
			}
		})
	}
}

// TestAxe: it finds what is wrong, and leaves the page's policy as it is.
func TestAxe(t *testing.T) {
	for name, try := range map[string]struct {
		document string
		want     []string
	}{
		"well":    {`<h1>Well</h1><label>Name <input></label>`, nil},
		"no name": {`<h1>Not well</h1><input><img src="/icon">`, []string{"image-alt", "label"}},
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := open(t, browser.Look{}, try.document)
			found, err := p.Axe()
			if errors.Is(err, browser.ErrNoAxe) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, v := range found {
				got = append(got, v.ID)
			}
			slices.Sort(got)
			if !slices.Equal(got, try.want) {
				t.Errorf("violations %v, want %v", found, try.want)
			}
			if problems := p.Problems(); len(problems) > 0 {
				t.Errorf("axe-core made the page break its policy: %q", problems)
			}
		})
	}
}
