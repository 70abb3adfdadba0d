package stage

import (
	"context"
	"fmt"
	"net/http"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/pairs"
	"github.com/parley-hub/parley/samvad"
)

// lines are what the agents answer.
var lines = map[string]func(string) (string, bool){
	"museum": says("Paul Klee, angels, until 6 pm"),
	"guide":  says("Walk down to the river, then left"),
	"robot":  says("packed: two bags, 87 percent charged"),
	"mason":  says("built: a shelter of 4 m, 96 stones"),
	"baker":  says("baked: 12 loaves, ready at 06:00"),
	"inn":    says("two beds, a room with a view"),
}

func says(text string) func(string) (string, bool) {
	return func(string) (string, bool) { return text, true }
}

// hosted is an agent in the hub's process, as others address it.
type hosted struct {
	pairs.Peer
	name string
}

func (h hosted) Name() string { return h.name }

type city struct {
	City string `json:"city" doc:"where"`
}

// handle puts the agents of this process into the hub.
func (s *Stage) handle() error {
	err := s.Node.Handle(parley.Agent{Name: "weather", Title: "Weather", Description: "Tells the weather.",
		Exposed: parley.Everywhere},
		parley.Skill("forecast", func(_ context.Context, _ *parley.Message, q city) (map[string]any, error) {
			return map[string]any{"city": q.City, "celsius": 21}, nil
		}, parley.Describe("Forecast", "The temperature in a city, in degrees Celsius.")))
	if err != nil {
		return err
	}
	return s.Node.Handle(parley.Agent{Name: "planner", Title: "Planner", Exposed: parley.Everywhere},
		parley.RawSkill("talk", s.plan, parley.AsDefault()))
}

// asked are the agents that the planner asks for a trip, in this order.
var asked = []struct{ to, skill, text string }{
	{"weather", "forecast", ""}, {"museum", "talk", "What is on show in Bern?"}, {"guide", "chat", "How do we get there?"},
	{"robot", "talk", "Pack for two days in Bern"}, {"mason", "talk", "A shelter for the night before"},
	{"baker", "talk", "Bread for two"}, {"inn", "talk", "Two beds for tonight"},
}

// plan asks seven agents in the trace of the message that asked for the plan.
func (s *Stage) plan(ctx context.Context, m *parley.Message, r parley.Replier) error {
	for _, q := range asked {
		part := parley.Text(q.text)
		if q.text == "" {
			var err error
			if part, err = parley.JSON(city{"Bern"}); err != nil {
				return err
			}
		}
		if err := r.Progress("asking " + q.to); err != nil {
			return err
		}
		reply, err := s.Node.Hub().Ask(ctx, hub.Submission{Scope: "go planner", Message: &parley.Message{
			Kind: parley.Request, From: "planner", To: q.to, Skill: q.skill, Parts: []parley.Part{part}, Trace: m.Trace,
			Deadline: m.Deadline,
			Origin:   parley.Origin{Protocol: "go", Peer: "planner", Verdict: parley.Verdict{Assurance: parley.Session}}}})
		if err != nil {
			return fmt.Errorf("asking %s: %w", q.to, err)
		}
		if reply.Kind == parley.Failure {
			return fmt.Errorf("asking %s: %w", q.to, reply.Error)
		}
	}
	return r.Reply(parley.Text("A day in Bern: angels, bread, a room with a view"))
}

// Trip has the traveller ask the planner for a trip, who asks everybody, and some of them ask each other.
func (s *Stage) Trip(ctx context.Context) error {
	to := func(name string) pairs.Peer {
		if p, ok := s.peers[name]; ok {
			return p
		}
		return hosted{name: name}
	}
	for _, q := range []struct{ from, to, text string }{
		{"traveller", "robot", "Pack for two days in Bern"}, {"robot", "guide", "Where to?"},
		{"guide", "mason", "A shelter, please"}, {"mason", "baker", "Bread for two"}, {"baker", "inn", "Two beds"},
		{"baker", "museum", "An evening out"}, {"assistant", "planner", "Plan a day in Bern"},
		{"traveller", "planner", "Plan a day in Bern"},
	} {
		if _, err := s.peers[q.from].Ask(ctx, pairs.Question{To: to(q.to), Text: q.text}); err != nil {
			return fmt.Errorf("%s asks %s: %w", q.from, q.to, err)
		}
	}
	return nil
}

// Ask has one of the agents with a socket of its own ask another.
func (s *Stage) Ask(ctx context.Context, from, to, text string) (string, error) {
	peer, ok := s.peers[to]
	if !ok {
		peer = hosted{name: to}
	}
	a, err := s.peers[from].Ask(ctx, pairs.Question{To: peer, Text: text})
	return a.Text, err
}

// Forge sends a request in the traveller's name, signed with another key, and gives the reference of its refusal.
func (s *Stage) Forge(ctx context.Context) (ref string, err error) {
	forger, err := samvad.NewIdentity("agent://traveller.example", "key-current")
	if err != nil {
		return "", err
	}
	r, _, err := (&samvad.Client{Identity: forger, HTTP: http.DefaultClient, Now: s.Clock.Now}).Request(ctx, samvad.Call{
		URL: s.Node.Addresses().HTTP + "/agents/weather", Skill: "forecast", Payload: []byte(`{"city":"Bern"}`)},
		samvad.ModeSync)
	if err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	if ref = res.Header.Get("Parley-Ref"); res.StatusCode != http.StatusUnauthorized || ref == "" {
		return "", fmt.Errorf("the forged request got HTTP %d, reference %q", res.StatusCode, ref)
	}
	return ref, nil
}

// Send sends as an operator does, without waiting for an answer.
func (s *Stage) Send(ctx context.Context, to, skill, text string) (admin.Receipt, error) {
	return s.API.Send(ctx, admin.Send{From: "planner", To: to, Skill: skill, Text: &text, Timeout: "1h"})
}
