package agh_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley/agh"
	bridge "github.com/parley-hub/parley/bridge/agh"
	"github.com/parley-hub/parley/node"
)

// daemon simulates the local API of a stock AGH daemon with two sessions: coder, and
// the connector's bridge session.
type daemon struct {
	mu       sync.Mutex
	sent     chan map[string]any
	messages map[string][]map[string]any // by path of the conversation
}

func (d *daemon) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const base = "/api/workspaces/acme/network"
	d.mu.Lock()
	defer d.mu.Unlock()
	var answer any
	switch path := r.URL.Path; path {
	case base + "/peers":
		answer = map[string]any{"peers": []map[string]any{
			{"session_id": "s-1", "peer_id": "coder.s-1", "display_name": "Coder", "channel": "builders",
				"local": true},
			{"session_id": "s-2", "peer_id": "bridge.s-2", "channel": "builders", "local": true},
			{"session_id": "s-3", "peer_id": "other.s-3", "channel": "elsewhere", "local": true}}}
	case base + "/channels/builders/threads":
		answer = map[string]any{"threads": []map[string]any{{"thread_id": "thread_abc"}}}
	case base + "/channels/builders/directs":
		answer = map[string]any{"directs": []map[string]any{{"direct_id": "direct_1", "peer_a": "bridge.s-2",
			"peer_b": "coder.s-1"}}}
	case base + "/channels/builders/threads/thread_abc/messages", base + "/channels/builders/directs/direct_1/messages":
		answer = map[string]any{"messages": d.messages[path[len(base):]]}
	case base + "/send":
		var m map[string]any
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		d.sent <- m
		answer = map[string]any{"message": m}
	default:
		w.WriteHeader(http.StatusNotFound)
		return
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func (d *daemon) says(path string, m map[string]any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m["timestamp"] = time.Now()
	d.messages[path] = append(d.messages[path], m)
}

// The sessions of a stock daemon are peers at the hub: talk in threads both
// ways, and work that a hub peer gives to a session, to its end.
func TestConnector(t *testing.T) {
	w := newWorld(t, func(c *node.Config) {
		c.AGH.Users["daemon"] = node.AGHUser{Token: "td", Peers: []string{"coder.*"}, Workspaces: []string{"acme"}}
	})
	d := &daemon{sent: make(chan map[string]any, 16), messages: map[string][]map[string]any{}}
	s := httptest.NewServer(d)
	defer s.Close()
	defer http.DefaultClient.CloseIdleConnections()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	c := &bridge.Connector{Daemon: s.URL, WorkspaceID: "acme", Channel: "builders", Session: "s-2",
		Transport: transport(w.connect("td")), HTTP: client, Every: 5 * time.Millisecond}
	var did lines
	c.Did = did.add
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	alice := w.join("ta", "acme", "alice")
	w.here("acme", "coder.s-1")
	alice.meets(t, "coder.s-1")

	const thread, room = "/channels/builders/threads/thread_abc/messages",
		"/channels/builders/directs/direct_1/messages"
	d.says(thread, map[string]any{"message_id": "msg-1", "surface": "thread", "thread_id": "thread_abc", "kind": "say",
		"peer_from": "coder.s-1", "body": map[string]any{"text": "from the daemon"}})
	if e := alice.next(t); e.From != "coder.s-1" || text(t, e) != "from the daemon" || e.ThreadID != "thread_abc" {
		t.Errorf("%s", e.Raw())
	}
	if _, err := alice.Say(t.Context(), "thread_abc", &agh.Say{Text: "to the daemon"}); err != nil {
		t.Fatal(err)
	}
	if m := <-d.sent; m["session_id"] != "s-2" || m["thread_id"] != "thread_abc" || m["to"] != nil {
		t.Errorf("%v", m)
	}
	go func() {
		m := <-d.sent
		if m["to"] != "coder.s-1" || m["work_id"] == nil || m["surface"] != "direct" {
			t.Errorf("%v", m)
		}
		d.says(room, map[string]any{"message_id": "msg-2", "surface": "direct", "direct_id": "direct_1",
			"kind": "trace", "peer_from": "coder.s-1", "peer_to": "bridge.s-2",
			"work_id": m["work_id"], "reply_to": m["id"], "body": map[string]any{"state": "completed",
				"result": map[string]any{"ok": true}}})
	}()
	ask, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	end, err := alice.Ask(ask, "coder.s-1", &agh.Say{Text: "build it"})
	if err != nil || end.State != agh.StateCompleted {
		t.Errorf("%+v, %v", end, err)
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for _, want := range []string{
		"the hub's peers speak in acme/builders of the daemon as bridge.s-2",
		"coder.s-1 of the daemon is a peer at the hub",
		"to the hub: say of coder.s-1 for all", "to the daemon: say of alice for all",
		"to the daemon: say of alice for coder.s-1", "to the hub: trace of coder.s-1 for alice",
	} {
		if !did.has(want) {
			t.Errorf("the connector has no line %q: %q", want, did.list)
		}
	}
	wrong := &bridge.Connector{Daemon: s.URL, WorkspaceID: "acme", Channel: "builders", Session: "s-9",
		Transport: transport(w.connect("td")), HTTP: client}
	ctx, stop = context.WithCancel(t.Context())
	defer stop()
	d.mu.Lock()
	d.messages = map[string][]map[string]any{}
	d.mu.Unlock()
	if err := wrong.Run(ctx); err == nil || !strings.Contains(err.Error(), "agh session list") {
		t.Errorf("a session that does not exist: %v", err)
	}
	elsewhere := &bridge.Connector{Daemon: s.URL + "/none", WorkspaceID: "acme", Channel: "builders", Session: "s-2",
		HTTP: client}
	if err := elsewhere.Run(ctx); err == nil || !strings.Contains(err.Error(), "agh workspace list") {
		t.Errorf("a workspace that does not exist: %v", err)
	}
}

// lines collects the lines of [bridge.Connector.Did].
type lines struct {
	mu   sync.Mutex
	list []string
}

func (l *lines) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, line)
}

func (l *lines) has(line string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Contains(l.list, line)
}
