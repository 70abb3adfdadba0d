package a2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/a2e/a2etest"
	"github.com/parley-hub/parley/bridge"

	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
)

// TestContracts: what the hub keeps for its A2E agents keeps the contracts of package a2e.
func TestContracts(t *testing.T) {
	open := func() *journal.Journal {
		j, err := journal.Open(t.Context(), journal.Config{Store: testjournal.Memory(t)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := j.Close(); err != nil {
				t.Error(err)
			}
		})
		return j
	}
	if err := a2etest.TestRelay(func() (first, second protocol.Relay) {
		j := open()
		one := func(name string) *sessionStore {
			s := newSessionStore(j, time.Now, slog.New(slog.DiscardHandler))
			s.node = name
			s.session = func(string) (*protocol.Session, bool) { return nil, false }
			s.known = func(string) bool { return true }
			s.aliveElsewhere = func(node string) bool { return node != name }
			return s
		}
		return one("first"), one("second")
	}); err != nil {
		t.Error(err)
	}
	if err := a2etest.TestMemories(func() protocol.Memories { return newMemory(open(), time.Now) }); err != nil {
		t.Error(err)
	}
}

// TestTakeOver: an agent that returns at another node gets every undelivered frame, in
// order, once. Answers to requests at the first node follow the agent, and lines that
// the agent sends to the first node are passed on.
func TestTakeOver(t *testing.T) {
	j, err := journal.Open(t.Context(), journal.Config{Store: testjournal.Memory(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	type hubNode struct {
		sessions *sessionStore
		host     *protocol.Host
		http     *httptest.Server
	}
	release := make(chan struct{})
	open := func(name string) *hubNode {
		n := &hubNode{sessions: newSessionStore(j, time.Now, slog.New(slog.DiscardHandler))}
		n.sessions.node = name
		box := &protocol.Toolbox{}
		box.Add(protocol.ToolDefinition{Name: "count"}, func(ctx context.Context, c *protocol.ToolCall) (any, error) {
			for i := range 20 {
				if err := c.Status(ctx, fmt.Sprint("step ", i)); err != nil {
					return nil, err
				}
			}
			return map[string]int{"n": 20}, nil
		})
		box.Add(protocol.ToolDefinition{Name: "late"}, func(context.Context, *protocol.ToolCall) (any, error) {
			<-release
			return nil, nil
		})
		n.host = &protocol.Host{Auth: protocol.StaticTokens{"alice": "token-a"}, Store: n.sessions,
			Capabilities: map[string]protocol.Provider{"tools": protocol.ServeTools(box)}}
		n.sessions.session = n.host.Session
		n.sessions.aliveElsewhere = func(node string) bool { return node != name }
		stop, err := n.sessions.watch(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(stop)
		n.sessions.known = func(agent string) bool { return agent == "alice" }
		n.http = httptest.NewServer(n.host)
		return n
	}
	first, second := open("first"), open("second")
	defer first.http.Close()
	defer second.http.Close()
	post := func(n *hubNode, session, path, body string) string {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.http.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Session-Id", session)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var b strings.Builder
		buf := make([]byte, 4096)
		for {
			k, err := resp.Body.Read(buf)
			b.Write(buf[:k])
			if err != nil {
				break
			}
		}
		return b.String()
	}
	session := strings.Split(post(first, "", "/session", ""), `"`)[3]
	// The agent is not attached at the first node: all frames wait there.
	post(first, session, "/send", `{"type":"handshake/req","id":"h","auth_token":"token-a"}`)
	post(first, session, "/send", `{"type":"tool/call/req","id":"late","tool_name":"late","arguments":{}}`)
	post(first, session, "/send", `{"type":"tool/call/req","id":"c","tool_name":"count","arguments":{}}`)
	old, _ := first.host.Session(session)
	k := first.sessions.own(session)
	until := time.Now().Add(10 * time.Second)
	for {
		k.mu.Lock()
		done := len(k.rec.Frames) == 22
		k.mu.Unlock()
		if done {
			break
		}
		if time.Now().After(until) {
			t.Fatal("the frames were not recorded")
		}
	}

	// The agent returns at the second node.
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, second.http.URL+"/stream", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Session-Id", session)
	resp, err := http.DefaultClient.Do(r)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp, err)
	}
	defer resp.Body.Close()
	var got []string
	buf := make([]byte, 0, 1<<20)
	read := func(frames int) {
		t.Helper()
		for strings.Count(string(buf), "data: ") < frames || !strings.HasSuffix(string(buf), "\n\n") {
			n, err := resp.Body.Read(buf[len(buf):cap(buf)])
			if err != nil {
				t.Fatal(err)
			}
			buf = buf[:len(buf)+n]
		}
	}
	read(22)
	for line := range strings.Lines(string(buf)) {
		if text, ok := strings.CutPrefix(line, "data: "); ok {
			switch {
			case strings.Contains(text, "handshake/resp"):
				got = append(got, "hello")
			case strings.Contains(text, "tool/call/resp"):
				got = append(got, "answer")
			default:
				got = append(got, text[strings.Index(text, "step "):][:7])
			}
		}
	}
	want := []string{"hello"}
	for i := range 20 {
		want = append(want, (fmt.Sprint("step ", i) + `"`)[:7])
	}
	want = append(want, "answer")
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}

	// The first node learns of the move, ends its request, and forwards the answer.
	close(release)
	buf = buf[:0]
	read(1)
	if got := string(buf); !strings.Contains(got, `"req_id":"late"`) || strings.Contains(got, sessionKey(session)) {
		t.Errorf("%s", got)
	}
	select {
	case <-old.Done():
	case <-time.After(time.Minute):
		t.Fatal("the first node holds the session still")
	}
	if err := first.sessions.Append(t.Context(), session, 99, []byte("{}")); !errors.Is(err, protocol.ErrMoved) {
		t.Error(err)
	}
	// Lines that the agent sends to the first node are passed on, and the session
	// stays.
	buf = buf[:0]
	post(first, session, "/send", `{"type":"ping","id":"p1"}`+"\n"+`{"type":"ping","id":"p2"}`)
	read(2)
	if got := string(buf); !strings.Contains(got, `"req_id":"p1"`) ||
		strings.Index(got, `"req_id":"p2"`) < strings.Index(got, `"req_id":"p1"`) {
		t.Errorf("%s", got)
	}
	if _, here := first.host.Session(session); here {
		t.Error("the session moved to where its agent only sends")
	}
	// The second node continues.
	if s, ok := second.host.Session(session); !ok || s.Identity().Name != "alice" {
		t.Error("the session is gone")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_ = second.host.Shutdown(ctx)
	_ = first.host.Shutdown(ctx)
	second.sessions.shut(ctx)
	first.sessions.shut(ctx)
	http.DefaultClient.CloseIdleConnections()
}

// An inbox call hands out no messages in the last part of its time, in which its caller
// may have given up already.
func TestInboxEndsBeforeItIsGivenUp(t *testing.T) {
	for left, want := range map[time.Duration]time.Duration{
		time.Minute: 57 * time.Second, 12 * time.Second: 9 * time.Second, 4 * time.Second: 3 * time.Second,
		0: time.Millisecond, -time.Second: time.Millisecond,
	} {
		if got := handOutTime(left); got != want {
			t.Errorf("of %s it hands out for %s, want %s", left, got, want)
		}
	}
}

// A2E-055: an id is remembered for the time that sessions remember it, and while
// its request may be in flight.
func TestKeyEnd(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		seen, deadline, want time.Duration
	}{
		{0, 0, 5 * time.Minute}, {0, time.Minute, 5 * time.Minute}, {0, time.Hour, time.Hour},
		{10 * time.Minute, time.Minute, 10 * time.Minute}, {time.Minute, 2 * time.Minute, 2 * time.Minute},
	} {
		b := &Binding{c: Config{Now: func() time.Time { return now }, Limits: protocol.Limits{SeenFor: c.seen}}}
		m := &parley.Message{}
		if c.deadline > 0 {
			m.Deadline = now.Add(c.deadline)
		}
		if got := b.keyEnd(m).Sub(now); got != c.want+bridge.ClockMargin {
			t.Errorf("%+v: remembered for %s", c, got)
		}
	}
}
