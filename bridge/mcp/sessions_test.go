package mcp

import (
	"bufio"
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley/policy"
)

const listen = `"notifications":{"toolsListChanged":true}`

// MCP-006, MCP-007: sessions end by DELETE and by their idle time, and each caller has so many at once.
func TestMCP006SessionsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newDoorWorld(t, func(c *Config) { c.Sessions, c.Guests, c.Idle = 2, []string{"crew/*"}, 10*time.Minute })
		refused := func(what string, a ask) {
			t.Helper()
			r := w.do(a)
			if got := replyOf(t, r); r.StatusCode != 429 || r.Header.Get("Retry-After") != "10" || got.Error == nil ||
				!strings.Contains(got.Error.Message, "open at once") || r.Header.Get("Mcp-Session-Id") != "" {
				t.Errorf("%s: %d %+v", what, r.StatusCode, got.Error)
			}
		}
		first := w.begin("alice")
		if len(first) < 20 {
			t.Errorf("the session %q can be guessed", first)
		}
		stream, cancel := w.stream(t, modernAsk("subscriptions/listen", listen))
		if got := line(t, bufio.NewScanner(stream.Body)); got != "event: message" {
			t.Errorf("the subscription begins with %q", got)
		}
		refused("a third session", ask{token: "alice", body: initialize})
		refused("a third subscription", modernAsk("subscriptions/listen", listen))
		refused("a tunnel", ask{method: "GET", path: "/mcp/connect", token: "alice"})
		w.begin("bob")
		if r := w.do(modernAsk("tools/list", "")); r.StatusCode != 200 {
			t.Errorf("another request: %d", r.StatusCode)
		}

		cancel() // the subscription ends
		synctest.Wait()
		w.begin("alice")
		refused("a third session again", ask{token: "alice", body: initialize})
		if r := w.do(with(ask{method: "DELETE", token: "alice"}, "Mcp-Session-Id", first)); r.StatusCode != 204 {
			t.Errorf("DELETE: %d", r.StatusCode)
		}
		if r := w.do(legacyAsk("alice", first, `{"jsonrpc":"2.0","id":2,"method":"ping"}`)); r.StatusCode != 404 {
			t.Errorf("the ended session: %d", r.StatusCode)
		}
		synctest.Wait()
		w.begin("alice")
		time.Sleep(11 * time.Minute)
		synctest.Wait() // all are idle
		for range 2 {
			w.begin("alice")
		}
		// An initialize that fails keeps nothing.
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		for range 5 {
			r := w.do(ask{token: "alice", body: strings.Replace(initialize, `"capabilities":{}`, `"capabilities":7`, 1)})
			if got := replyOf(t, r); got.Error == nil || got.Error.Code == 0 {
				t.Errorf("a bad initialize: %d %+v", r.StatusCode, got.Error)
			}
			synctest.Wait()
		}
		w.begin("alice")
	})
}

// MCP-006: guests are counted by their source, and all of them together.
func TestMCP006SessionsOfGuests(t *testing.T) {
	t.Parallel()
	w := newDoorWorld(t, func(c *Config) { c.Sessions, c.Guests = 2, []string{"crew/*"} })
	from := func(source string) ask {
		return ask{body: initialize, ctx: policy.WithCaller(context.Background(), policy.NewCaller(source, nil))}
	}
	open := func(source string) int { return w.do(from(source)).StatusCode }
	for i := range guestShare {
		source := fmt.Sprintf("192.0.2.%d", i)
		for n, want := range []int{200, 200, 429} {
			if got := open(source); got != want {
				t.Fatalf("session %d of %s: %d", n+1, source, got)
			}
		}
	}
	if got := open("192.0.2.99"); got != 429 {
		t.Errorf("a session of one more source: %d", got)
	}
	w.begin("alice")
}

// A revoked token and the end of the hub end streams, but not calls.
func TestStreamsEnd(t *testing.T) {
	t.Parallel()
	for _, revoke := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w := newDoorWorld(t)
			end := w.EndStreams
			if revoke {
				w.callers.revoked, end = context.WithCancel(t.Context())
			}
			session := w.begin("alice")
			get, _ := w.stream(t, with(ask{method: "GET", token: "alice"}, "Mcp-Session-Id", session))
			sub, _ := w.stream(t, modernAsk("subscriptions/listen", listen))
			call, _ := w.stream(t, modernAsk("tools/call", `"name":"slow"`))
			end()
			ended := time.Now()
			for name, r := range map[string]*bufio.Scanner{"stream": bufio.NewScanner(get.Body),
				"subscription": bufio.NewScanner(sub.Body)} {
				for r.Scan() {
				}
				if after := time.Since(ended); after != 0 {
					t.Errorf("the %s went on for %s", name, after)
				}
			}
			w.slow <- struct{}{}
			got := ""
			for s := bufio.NewScanner(call.Body); s.Scan(); {
				got += s.Text()
			}
			if !strings.Contains(got, "late") {
				t.Errorf("the call got %q", got)
			}
			if revoke {
				return
			}
			for name, a := range map[string]ask{"session": {token: "alice", body: initialize},
				"stream": with(ask{method: "GET", token: "alice"}, "Mcp-Session-Id", session),
				"tunnel": {method: "GET", path: "/mcp/connect", token: "alice"}} {
				if r := w.do(a); r.StatusCode != 503 || r.Header.Get("Retry-After") == "" {
					t.Errorf("a new %s: %d", name, r.StatusCode)
				}
			}
		})
	}
}
