package a2etest_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/a2e/a2etest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestHost: a host answers later in a bubble, and leaves no goroutine behind.
func TestHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := a2etest.NewHost(t)
		h.Tool("slow", func(ctx context.Context, c *a2e.ToolCall) (any, error) {
			err := c.Progress(ctx, 50, "half")
			time.Sleep(10 * time.Second)
			return c.Arguments, err
		})
		over := a2etest.Connect(t, h.Host, a2etest.Token)
		web := &a2e.Client{URL: "https://host.test", Token: a2etest.Token, HTTP: h.HTTP()}
		defer web.Close()
		for _, agent := range []*a2e.Client{over, web} {
			begun, events := time.Now(), 0
			result, err := agent.CallTool(t.Context(), "slow", map[string]int{"n": 1}, func(a2e.Event) { events++ })
			if err != nil || !result.Success || events != 1 || time.Since(begun) != 10*time.Second {
				t.Errorf("%+v, %v with %d events after %v", result, err, events, time.Since(begun))
			}
		}
		if got := len(h.Calls()); got != 2 {
			t.Errorf("%d calls arrived", got)
		}
		if err := a2etest.Connect(t, h.Host, "wrong").Connect(t.Context()); !errors.Is(err, a2e.ErrUnknownKey) {
			t.Errorf("with another token: %v", err)
		}
	})
}

// shared is what the relays of two hosts share; the host that loaded a session last owns
// it.
type shared struct {
	mu    sync.Mutex
	rec   map[string]*a2e.SessionRecord
	owner map[string]*relay
}

type relay struct {
	*shared
	fault string
}

func newRelays(fault string) (first, second *relay) {
	s := &shared{rec: map[string]*a2e.SessionRecord{}, owner: map[string]*relay{}}
	return &relay{s, fault}, &relay{s, fault}
}

// own gives a session that this host owns.
func (s *relay) own(id string) (*a2e.SessionRecord, error) {
	if s.owner[id] != s && s.fault != "no fence" {
		return nil, a2e.ErrMoved
	}
	return s.rec[id], nil
}

func (s *relay) Open(_ context.Context, r a2e.SessionRecord) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owner[r.ID] == nil {
		s.owner[r.ID] = s
	}
	old, err := s.own(r.ID)
	if err != nil {
		return err
	}
	if old != nil && s.fault != "opens anew" {
		r.Undelivered = old.Undelivered
	}
	s.rec[r.ID] = &r
	return nil
}

func (s *relay) Append(_ context.Context, id string, seq uint64, line []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.own(id)
	if err != nil {
		return err
	}
	r.LastSeq = seq
	r.Undelivered = append(r.Undelivered, a2e.StoredFrame{Seq: seq, Line: line})
	return nil
}

func (s *relay) Delivered(_ context.Context, id string, seq uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.own(id)
	if err != nil {
		return err
	}
	if s.fault == "forgets one more" {
		seq++
	}
	r.Undelivered = slices.DeleteFunc(r.Undelivered, func(f a2e.StoredFrame) bool { return f.Seq <= seq })
	return nil
}

func (s *relay) Load(_ context.Context, id string) (a2e.SessionRecord, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.rec[id]
	if r == nil {
		return a2e.SessionRecord{}, false, nil
	}
	s.owner[id] = s
	out := *r
	out.Undelivered = slices.Clone(r.Undelivered)
	if s.fault == "newest first" {
		slices.Reverse(out.Undelivered)
	}
	return out, true, nil
}

func (s *relay) Close(_ context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fault != "keeps the closed" {
		delete(s.rec, id)
	}
	return nil
}

func (s *relay) Elsewhere(_ context.Context, id string) (a2e.Identity, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.rec[id]; r != nil && s.owner[id] != s && s.fault != "sees itself alone" {
		return r.Identity, true, nil
	}
	return a2e.Identity{}, false, nil
}

func (*relay) Send(context.Context, string, []byte) error            { return nil }
func (*relay) Forward(context.Context, string, uint64, []byte) error { return nil }
func (*relay) Held(string)                                           {}

// The following types are implementations with one fault each.
type (
	memory struct {
		mu    sync.Mutex
		seen  map[string]bool
		fault string
	}
	auth struct {
		a2e.StaticTokens
		fault string
	}
	tools struct {
		a2e.Toolbox
		fault string
	}
	skills   struct{ fault string }
	agents   struct{ fault string }
	provider struct{ fault string }
	memories struct {
		a2e.MemoryStore
		fault string
	}
)

func (m *memory) Seen(_ context.Context, key string, _ time.Time) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.seen[key]
	m.seen[key] = m.fault == ""
	return !known, nil
}

func (a auth) Authenticate(ctx context.Context, c a2e.Credentials) (a2e.Identity, error) {
	switch {
	case a.fault == "compares a part":
		c.Token = strings.TrimSuffix(c.Token, "x")
	case a.fault == "believes the name" && c.AgentID != "":
		return a2e.Identity{Name: c.AgentID}, nil
	}
	return a.StaticTokens.Authenticate(ctx, c)
}

func (x *tools) List(ctx context.Context, r *a2e.Request) ([]a2e.ToolDefinition, error) {
	list, err := x.Toolbox.List(ctx, r)
	if x.fault == "lists twice" {
		list = append(list, list...)
	}
	return list, err
}

func (x *tools) Call(ctx context.Context, c *a2e.ToolCall) (a2e.ToolResult, error) {
	r, err := x.Toolbox.Call(ctx, c)
	if x.fault == "no sentinel" && err != nil {
		return r, errors.New("no row")
	}
	return r, err
}

func (skills) Discover(context.Context, *a2e.Request) ([]a2e.SkillDefinition, error) {
	return []a2e.SkillDefinition{{Name: "sum"}}, nil
}

func (s skills) Call(_ context.Context, c *a2e.SkillCall) (a2e.SkillResult, error) {
	if c.Name == "sum" || s.fault != "" {
		return a2e.SkillResult{Success: true}, nil
	}
	return a2e.SkillResult{}, a2e.ErrUnknownSkill
}

func (agents) Spawn(_ context.Context, _ *a2e.Request, s a2e.Spawn) (string, string, error) {
	return "id of " + s.Name, a2e.StatusReady, nil
}

func (agents) Delegate(context.Context, *a2e.Request, a2e.Delegation) (bool, string, error) {
	return true, a2e.StatusRunning, nil
}

func (a agents) Await(context.Context, *a2e.Request, string) (a2e.Outcome, error) {
	if a.fault != "" {
		return a2e.Outcome{Status: "done"}, nil
	}
	return a2e.Outcome{Status: a2e.StatusCompleted}, nil
}

func (agents) List(context.Context, *a2e.Request) ([]json.RawMessage, error) {
	return []json.RawMessage{json.RawMessage(`{"name":"worker"}`)}, nil
}

func (agents) Terminate(context.Context, *a2e.Request, string) (bool, error) { return true, nil }

func (p provider) Serve(context.Context, *a2e.Request) (a2e.Response, error) {
	if p.fault == "serves all" {
		return a2e.Response{Type: "check/unknown/resp", Body: struct{}{}}, nil
	}
	return a2e.Response{}, a2e.ErrUnknownType
}

func (p provider) Describe() any {
	if p.fault == "describes a list" {
		return []string{}
	}
	return map[string]string{"version": "1"}
}

func (m *memories) Retrieve(ctx context.Context, r *a2e.Request, id string, q a2e.MemoryQuery) ([]a2e.MemoryEntry,
	error) {
	switch m.fault {
	case "no tags":
		q.Tags = nil
	case "no limit":
		q.Limit = 1000
	case "no sentinel":
		list, err := m.MemoryStore.Retrieve(ctx, r, id, q)
		if err != nil {
			err = errors.New("no row")
		}
		return list, err
	}
	return m.MemoryStore.Retrieve(ctx, r, id, q)
}

func (m *memories) Forget(ctx context.Context, r *a2e.Request, id string, q a2e.MemoryQuery) (int, error) {
	n, err := m.MemoryStore.Forget(ctx, r, id, q)
	if m.fault == "forgets all" && err == nil {
		q.Keys, q.Tags = nil, []string{"red", "blue"}
		_, err = m.MemoryStore.Forget(ctx, r, id, q)
	}
	return n, err
}

// TestChecks: good implementations pass, and each fault is found.
func TestChecks(t *testing.T) {
	known := a2e.StaticTokens{"alice": "a secret", "bob": "another"}
	for name, c := range map[string]struct {
		check  func(fault string) error
		faults map[string]string // and the rule that finds it
	}{
		"Memory": {func(f string) error {
			return a2etest.TestMemory(func() a2e.Memory { return &memory{fault: f, seen: map[string]bool{}} })
		}, map[string]string{"forgets": "a key is fresh once"}},
		"Authenticator": {func(f string) error { return a2etest.TestAuthenticator(auth{known, f}, known) },
			map[string]string{"compares a part": "all other secrets", "believes the name": "whatever its agent_id"}},
		"Tools": {func(f string) error {
			x := &tools{fault: f}
			x.Add(a2e.ToolDefinition{Name: "forecast"}, func(context.Context, *a2e.ToolCall) (any, error) { return 1, nil })
			return a2etest.TestTools(x)
		}, map[string]string{"lists twice": "a name of its own", "no sentinel": "unknown tool"}},
		"Skills": {func(f string) error { return a2etest.TestSkills(skills{f}) },
			map[string]string{"runs anything": "unknown skill"}},
		"MultiAgent": {func(f string) error { return a2etest.TestMultiAgent(agents{f}, "worker") },
			map[string]string{"a status of its own": "status \"done\" is unknown"}},
		"Provider": {func(f string) error { return a2etest.TestProvider(provider{f}) },
			map[string]string{"serves all": "ErrUnknownType", "describes a list": "JSON object"}},
		"Memories": {func(f string) error {
			return a2etest.TestMemories(func() a2e.Memories { return &memories{fault: f} })
		}, map[string]string{"no tags": "by key, tag", "no limit": "the limit", "no sentinel": "ErrMemoryNotFound",
			"forgets all": "nothing else"}},
		"Store and Relay": {func(f string) error {
			return a2etest.TestRelay(func() (first, second a2e.Relay) { return newRelays(f) })
		}, map[string]string{"opens anew": "a later handshake", "forgets one more": "undelivered frames",
			"newest first": "in order", "keeps the closed": "a closed session", "sees itself alone": "elsewhere",
			"no fence": "ErrMoved"}},
	} {
		if err := c.check(""); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for fault, rule := range c.faults {
			if err := c.check(fault); err == nil || !strings.Contains(err.Error(), rule) {
				t.Errorf("%s, %s: %v, want the rule %q", name, fault, err, rule)
			}
		}
	}
}
