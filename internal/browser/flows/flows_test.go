package flows

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/browser"
	"github.com/parley-hub/parley/internal/browser/stage"
)

// chromium is the browser of all tests; nil: none is installed.
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

// console is a hub whose console a test looks at.
type console struct {
	*stage.Stage
	t testing.TB
}

// begin starts a hub with its agents. Nothing was said yet.
func begin(t testing.TB) *console {
	t.Helper()
	if chromium == nil {
		t.Skip(browser.ErrMissing)
	}
	s, err := stage.Open(context.Background(), stage.Config{Data: t.TempDir(),
		Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError}))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return &console{s, t}
}

// trip has everything said that the stage knows: a trip over all protocols, and a forged request.
func (c *console) trip() (ref string) {
	c.t.Helper()
	if err := c.Trip(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	ref, err := c.Forge(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	return ref
}

// tab is a tab of a test, which fails with each of its steps.
type tab struct {
	*browser.Page
	*console
}

// tab opens an empty tab of a browser that was never here.
func (c *console) tab(look browser.Look) *tab {
	c.t.Helper()
	p, err := chromium.Open(c.Origin(), look)
	if err != nil {
		c.t.Fatal(err)
	}
	v := &tab{p, c}
	c.t.Cleanup(func() {
		if c.t.Failed() {
			v.shot("failed-" + strings.ReplaceAll(c.t.Name(), "/", "-"))
		}
		for _, problem := range p.Problems() {
			c.t.Errorf("the page is not as it has to be: %s", problem)
		}
		p.Close()
	})
	return v
}

// entered opens a tab with a session.
func (c *console) entered(look browser.Look, role admin.Role) *tab {
	c.t.Helper()
	v := c.tab(look)
	v.do(browser.Go(v.link(role)), browser.ClickTo("main form button", "/console/"))
	return v
}

// link makes a link that lets one browser in.
func (c *console) link(role admin.Role) string {
	c.t.Helper()
	l, err := c.Link(c.t.Context(), role)
	if err != nil {
		c.t.Fatal(err)
	}
	return l
}

func (v *tab) do(actions ...chromedp.Action) {
	v.t.Helper()
	if err := v.Do(actions...); err != nil {
		v.t.Fatal(err)
	}
}

// to opens a page of the console by its path and parameters.
func (v *tab) to(path string) {
	v.t.Helper()
	v.do(browser.Go(v.Origin()+path), browser.Loaded())
}

// texts reads the text of each element.
func (v *tab) texts(selector string) (s []string) {
	v.t.Helper()
	v.do(browser.Texts(selector, &s))
	return s
}

// text is the text of all such elements.
func (v *tab) text(selector string) string {
	v.t.Helper()
	return strings.Join(v.texts(selector), " ")
}

// says fails unless an element has each of the texts.
func (v *tab) says(selector string, want ...string) {
	v.t.Helper()
	got := v.text(selector)
	for _, w := range want {
		if !strings.Contains(got, w) {
			v.t.Errorf("%s says %.400q, want %q in it", selector, got, w)
		}
	}
}

// is fails unless a JavaScript expression is true.
func (v *tab) is(expression, what string) {
	v.t.Helper()
	var ok bool
	v.do(browser.Eval("!!("+expression+")", &ok))
	if !ok {
		v.t.Errorf("%s: %s is false", what, expression)
	}
}

// shot keeps a screenshot of what is visible.
func (v *tab) shot(name string) {
	v.t.Helper()
	if err := v.Shot(name, false); err != nil {
		v.t.Errorf("screenshot %s: %v", name, err)
	}
}
