package a2etest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/internal/checks"
)

// Each error of these functions names every rule that was broken.

// TestMemory checks memories; open gives an empty one each time. Its clock must be that
// of the system.
func TestMemory(open func() a2e.Memory) error {
	return checks.CheckMemory(func() checks.Memory { return open() },
		func(i int) string { return fmt.Sprint("agent request-", i) })
}

// TestAuthenticator checks an authenticator that knows the given names and secrets.
func TestAuthenticator(a a2e.Authenticator, known a2e.StaticTokens) error {
	one := func(ctx context.Context, name, token, claimed string) error {
		id, err := a.Authenticate(ctx, a2e.Credentials{AgentID: claimed, Token: token})
		if err != nil || id.Name != name {
			return fmt.Errorf("the secret of %q is that of %q, %w", name, id.Name, err)
		}
		return nil
	}
	all := func(f func(name, token string) error) error {
		var errs []error
		for name, token := range known {
			errs = append(errs, f(name, token))
		}
		return errors.Join(errs...)
	}
	return checks.Run(
		checks.Check{Name: "each secret is that of its agent, whatever its agent_id", Run: func(ctx context.Context) error {
			return all(func(name, token string) error {
				return errors.Join(one(ctx, name, token, ""), one(ctx, name, token, a2e.NewID()))
			})
		}},
		checks.Check{Name: "all other secrets are refused", Run: func(ctx context.Context) error {
			return all(func(name, token string) error {
				for _, wrong := range []string{"", token + "x", token[:len(token)-1], name, "unknown"} {
					if id, err := a.Authenticate(ctx, a2e.Credentials{AgentID: name, Token: wrong}); err == nil {
						return fmt.Errorf("%q enters as %q with the secret %q", name, id.Name, wrong)
					}
				}
				return nil
			})
		}},
		checks.Check{Name: "calls may be concurrent", Run: func(ctx context.Context) error {
			return checks.Together(8, func(int) error {
				return all(func(name, token string) error { return one(ctx, name, token, "") })
			})
		}},
	)
}

// The agents of the host of a check, and their secrets.
var tokens = a2e.StaticTokens{"alice": "secret of alice", "bob": "secret of bob"}

// serve runs f with two agents of a host with one capability.
func serve(capability string, p a2e.Provider, f func(alice, bob *a2e.Client) error) error {
	h := &a2e.Host{Auth: tokens, Capabilities: map[string]a2e.Provider{capability: p}}
	defer shut(h)
	alice, leave := connect(h, tokens["alice"])
	defer leave()
	bob, leave := connect(h, tokens["bob"])
	defer leave()
	return f(alice, bob)
}

// object is the body of a message.
type object = map[string]any

// TestProvider checks a provider as the capability of a name of its own: what it does
// with types that it does not serve, and how it describes itself if it is a
// [a2e.Describer].
func TestProvider(p a2e.Provider) error {
	return checks.Run(
		checks.Check{Name: "a type that it does not serve is ErrUnknownType", Run: func(ctx context.Context) error {
			return serve("check", p, func(alice, _ *a2e.Client) error {
				if _, err := alice.Ask(ctx, a2e.Message{Type: "check/unknown/req"}); !errors.Is(err, a2e.ErrUnknownType) {
					return fmt.Errorf("it gives %w", err)
				}
				return nil
			})
		}},
		checks.Check{Name: "its description is a JSON object", Run: func(context.Context) error {
			d, ok := p.(a2e.Describer)
			if !ok {
				return nil
			}
			b, err := json.Marshal(d.Describe())
			var members map[string]any
			if err == nil {
				err = json.Unmarshal(b, &members)
			}
			if err != nil || members == nil {
				return fmt.Errorf("it is %s, %w", b, err)
			}
			return nil
		}},
	)
}

// listed reads the names of the definitions in an answer; each must have its own.
func listed(m *a2e.Envelope, member string) ([]string, error) {
	var names []string
	for _, v := range m.Values(member) {
		var d struct{ Name string }
		if err := json.Unmarshal(v, &d); err != nil {
			return nil, err
		}
		if d.Name == "" || slices.Contains(names, d.Name) {
			return nil, fmt.Errorf("the name %q is empty, or is there twice", d.Name)
		}
		names = append(names, d.Name)
	}
	return names, nil
}

// offers checks what [a2e.Tools] and [a2e.Skills] have in common.
func offers(capability string, p a2e.Provider, list a2e.Message, member string, call func(name string) a2e.Message,
	unknown error) []checks.Check {
	get := func(ctx context.Context, c *a2e.Client) ([]string, error) {
		m, err := c.Ask(ctx, list)
		if err != nil {
			return nil, err
		}
		return listed(m, member)
	}
	return []checks.Check{
		{Name: "each has a name of its own", Run: func(ctx context.Context) error {
			return serve(capability, p, func(alice, _ *a2e.Client) error { _, err := get(ctx, alice); return err })
		}},
		{Name: "an unknown name is " + unknown.Error(), Run: func(ctx context.Context) error {
			return serve(capability, p, func(alice, _ *a2e.Client) error {
				for _, name := range []string{"no-such-name", ""} {
					if _, err := alice.Ask(ctx, call(name)); !errors.Is(err, unknown) {
						return fmt.Errorf("the name %q gives %w", name, err)
					}
				}
				return nil
			})
		}},
		{Name: "lists may be asked for concurrently", Run: func(ctx context.Context) error {
			return serve(capability, p, func(alice, bob *a2e.Client) error {
				return checks.Together(8, func(i int) error { _, err := get(ctx, []*a2e.Client{alice, bob}[i%2]); return err })
			})
		}},
	}
}

// TestTools checks tools. It calls none of them.
func TestTools(t a2e.Tools) error {
	return checks.Run(offers("tools", a2e.ServeTools(t), a2e.Message{Type: "tool/list/req",
		Body: object{"include_deferred": true}}, "tools", func(name string) a2e.Message {
		return a2e.Message{Type: "tool/call/req", Body: object{"tool_name": name, "arguments": object{}}}
	}, a2e.ErrUnknownTool)...)
}

// TestSkills checks skills. It calls none of them.
func TestSkills(s a2e.Skills) error {
	return checks.Run(offers("skill", a2e.ServeSkills(s), a2e.Message{Type: "skill/discover/req"}, "skills",
		func(name string) a2e.Message {
			return a2e.Message{Type: "skill/call/req", Body: object{"name": name}}
		}, a2e.ErrUnknownSkill)...)
}

// TestMultiAgent checks that a subagent of the given name takes work and ends it.
func TestMultiAgent(m a2e.MultiAgent, name string) error {
	states := []string{a2e.StatusReady, a2e.StatusRunning, a2e.StatusCompleted, a2e.StatusFailed, a2e.StatusTerminated}
	return checks.Run(checks.Check{Name: "a subagent is spawned, works, is listed, and is terminated",
		Run: func(ctx context.Context) error {
			return serve("multi_agent", a2e.ServeMultiAgent(m), func(alice, _ *a2e.Client) error {
				ask := func(typ string, body object) (*a2e.Envelope, error) {
					r, err := alice.Ask(ctx, a2e.Message{Type: "multi_agent/" + typ, Body: body})
					if err != nil {
						return nil, fmt.Errorf("%s: %w", typ, err)
					}
					if s := r.Str("status"); s != "" && !slices.Contains(states, s) {
						return nil, fmt.Errorf("%s: the status %q is unknown", typ, s)
					}
					return r, nil
				}
				r, err := ask("spawn", object{"name": name})
				if err != nil {
					return err
				}
				id := r.Str("subagent_id")
				if id == "" {
					return errors.New("spawn: the subagent has no id")
				}
				r, err = ask("delegate", object{"subagent_id": id, "task_name": "check", "instruction": "Say hello."})
				if err != nil || !r.Bool("accepted") {
					return fmt.Errorf("delegate: the work is not accepted: %w", err)
				}
				for status := a2e.StatusRunning; status == a2e.StatusRunning || status == a2e.StatusReady; {
					if r, err = ask("await", object{"subagent_id": id}); err != nil {
						return err
					}
					status = r.Str("status")
				}
				if r, err = ask("list", object{}); err != nil || len(r.Values("subagents")) == 0 {
					return fmt.Errorf("list: the subagent is not there: %w", err)
				}
				if r, err = ask("terminate", object{"subagent_id": id}); err != nil || !r.Bool("success") {
					return fmt.Errorf("terminate: no success: %w", err)
				}
				return nil
			})
		}})
}

// TestMemories checks memories of agents; open gives an empty one each time.
func TestMemories(open func() a2e.Memories) error {
	entry := func(key, tier string, tags ...string) object {
		return object{"key": object{"k": key}, "content": "content of " + key, "tier": tier, "tags": tags}
	}
	type memory struct {
		c  *a2e.Client
		id string
	}
	ask := func(ctx context.Context, m memory, typ string, body object) (*a2e.Envelope, error) {
		body["memory_id"] = m.id
		return m.c.Ask(ctx, a2e.Message{Type: "memory/" + typ + "/req", Body: body})
	}
	found := func(ctx context.Context, m memory, q object, want ...string) error {
		r, err := ask(ctx, m, "retrieve", q)
		if err != nil {
			return err
		}
		var got []string
		for _, v := range r.Values("entries") {
			var e struct {
				Key     struct{ K string }
				Content string
			}
			if err := json.Unmarshal(v, &e); err != nil {
				return err
			}
			if e.Content != "content of "+e.Key.K {
				return fmt.Errorf("the entry %s has the content %q", e.Key.K, e.Content)
			}
			got = append(got, e.Key.K)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("retrieve with %v gives %q, want %q", q, got, want)
		}
		return nil
	}
	// filled runs f with a memory of alice's that has four entries.
	filled := func(ctx context.Context, f func(m memory, bob *a2e.Client) error) error {
		return serve("memory", a2e.ServeMemories(open()), func(alice, bob *a2e.Client) error {
			r, err := alice.Ask(ctx, a2e.Message{Type: "memory/init/req", Body: object{"namespace": "check"}})
			if err != nil {
				return err
			}
			m := memory{alice, r.Str("memory_id")}
			r, err = ask(ctx, m, "store", object{"entries": []object{entry("a", a2e.TierEpisodic, "red"),
				entry("b", a2e.TierEpisodic, "blue"), {"key": "no object", "content": "x", "tier": a2e.TierEpisodic},
				entry("c", a2e.TierSemantic, "red"), entry("d", a2e.TierWorking)}})
			if err != nil {
				return err
			}
			if n := len(r.Values("stored")); n != 4 || len(r.Values("errors")) != 1 {
				return fmt.Errorf("of four good entries %d are stored, with the errors %s", n, r.Get("errors"))
			}
			return f(m, bob)
		})
	}
	return checks.Run(
		checks.Check{Name: "entries are found by key, tag and tier", Run: func(ctx context.Context) error {
			return filled(ctx, func(m memory, _ *a2e.Client) error {
				return errors.Join(found(ctx, m, object{}, "a", "b", "c", "d"),
					found(ctx, m, object{"keys": []object{{"k": "b"}}}, "b"),
					found(ctx, m, object{"tags": []string{"red"}}, "a", "c"),
					found(ctx, m, object{"tier": a2e.TierEpisodic}, "a", "b"),
					found(ctx, m, object{"tags": []string{"red"}, "tier": a2e.TierSemantic}, "c"))
			})
		}},
		checks.Check{Name: "the limit holds", Run: func(ctx context.Context) error {
			return filled(ctx, func(m memory, _ *a2e.Client) error {
				r, err := ask(ctx, m, "retrieve", object{"limit": 2})
				if err == nil && len(r.Values("entries")) != 2 {
					err = fmt.Errorf("there are %d entries", len(r.Values("entries")))
				}
				return err
			})
		}},
		checks.Check{Name: "a key holds its last entry", Run: func(ctx context.Context) error {
			return filled(ctx, func(m memory, _ *a2e.Client) error {
				_, err := ask(ctx, m, "store", object{"entries": []object{entry("a", a2e.TierEpisodic, "green")}})
				return errors.Join(err, found(ctx, m, object{"keys": []object{{"k": "a"}}}, "a"),
					found(ctx, m, object{"tags": []string{"green"}}, "a"))
			})
		}},
		checks.Check{Name: "what is forgotten is gone, and nothing else", Run: func(ctx context.Context) error {
			return filled(ctx, func(m memory, _ *a2e.Client) error {
				r, err := ask(ctx, m, "forget", object{"keys": []object{{"k": "a"}}, "tier": a2e.TierEpisodic})
				if err != nil || r.Int("deleted") != 1 {
					return fmt.Errorf("it is not deleted: %w", err)
				}
				return found(ctx, m, object{}, "b", "c", "d")
			})
		}},
		checks.Check{Name: "a memory_id of another agent, or of none, is ErrMemoryNotFound",
			Run: func(ctx context.Context) error {
				return filled(ctx, func(m memory, bob *a2e.Client) error {
					for _, other := range []memory{{bob, m.id}, {m.c, "unknown"}} {
						for typ, body := range map[string]object{"retrieve": {}, "store": {"entries": []object{entry("x",
							a2e.TierEpisodic)}}, "forget": {"keys": []object{{"k": "a"}}}} {
							if _, err := ask(ctx, other, typ, body); !errors.Is(err, a2e.ErrMemoryNotFound) {
								return fmt.Errorf("%s gives %w", typ, err)
							}
						}
					}
					return found(ctx, m, object{}, "a", "b", "c", "d")
				})
			}},
	)
}
