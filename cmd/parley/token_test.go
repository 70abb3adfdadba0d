package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/parley-hub/parley/admin"
)

// TestServeShowsTheFirstToken: the first start shows the admin token, once and not in the
// log; no file holds it, and commands need no token.
func TestServeShowsTheFirstToken(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	shown := regexp.MustCompile(`(?m)^admin token  (parley_[A-Za-z0-9_-]{32})$`)
	token := ""
	for start := range 2 {
		c, _, at, log := p.serve("--data", "data", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
		if start > 0 {
			if _, err := (&admin.Client{Base: at, Token: token}).Info(p.ctx); err != nil {
				t.Errorf("the token of the first start: %v", err)
			}
		}
		if out, code := p.run("agents", "--data", "data"); code != 0 {
			t.Errorf("start %d: without a token: %s", start, out)
		}
		if err := c.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if err := c.Wait(); err != nil {
			t.Error(err, log())
		}
		all := shown.FindAllStringSubmatch(log(), -1)
		if want := 1 - start; len(all) != want || strings.Count(log(), "parley_") != want {
			t.Fatalf("start %d: the token is shown %d times, want %d:\n%s", start, len(all), want, log())
		}
		if start == 0 {
			token = all[0][1]
		}
	}
	b, err := os.ReadFile(filepath.Join(p.dir, "data", admin.TokenFile))
	if err != nil || strings.Contains(string(b), token) {
		t.Errorf("%s %v", b, err)
	}
	left, err := filepath.Glob(filepath.Join(p.dir, "data", "*"))
	if err != nil || slices.ContainsFunc(left, func(f string) bool { return strings.Contains(f, "hub.json") }) {
		t.Error(left, err)
	}
}
