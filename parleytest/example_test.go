package parleytest_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/parleytest"
)

// In a program, t is that of the test.
var t *testing.T

// TestExamples runs the examples, which need a test.
func TestExamples(real *testing.T) {
	for name, example := range map[string]func(){"Ask": ExampleHub_Ask, "Agent": ExampleHub_Agent,
		"Expect": ExampleHub_Expect} {
		real.Run(name, func(real *testing.T) {
			synctest.Test(real, func(real *testing.T) {
				t = real
				example()
			})
		})
	}
}

type (
	Query  struct{ City string }
	Answer struct{ Celsius float64 }
)

// forecast is the code under test.
func forecast(_ context.Context, _ *parley.Message, q Query) (Answer, error) {
	if q.City == "Atlantis" {
		return Answer{}, parley.Refuse(parley.Rejected, "no such city")
	}
	return Answer{21}, nil
}

// Test your agent: ask it, and check the answer.
func ExampleHub_Ask() {
	hub := parleytest.NewHub(t)
	if err := hub.Handle(parley.Agent{Name: "weather"}, parley.Skill("forecast", forecast)); err != nil {
		t.Fatal(err)
	}
	m := hub.Ask("ann", "weather", "forecast", Query{"Bern"})
	parleytest.Check(t, m, parleytest.Want{Kind: parley.Response, From: "weather", JSON: `{"Celsius": 21}`})
	m = hub.Ask("ann", "weather", "forecast", Query{"Atlantis"})
	parleytest.Check(t, m, parleytest.Want{Kind: parley.Failure, Code: parley.Rejected, Text: "no such city"})
}

// Script the agents that yours talks to: here one that is busy at first.
func ExampleHub_Agent() {
	hub := parleytest.NewHub(t)
	weather := hub.Agent(parley.Agent{Name: "weather"},
		parleytest.Refuse(parley.Rejected, "later"), parleytest.Reply(Answer{21}))
	parleytest.Check(t, hub.Ask("ann", "weather", "", "Bern?"), parleytest.Want{Code: parley.Rejected, Text: "later"})
	parleytest.Check(t, hub.Ask("ann", "weather", "", "Bern?"), parleytest.Want{JSON: `{"Celsius": 21}`})
	if got := weather.Received(); len(got) != 2 || got[0].Text() != "Bern?" {
		t.Errorf("the agent received %v", got)
	}
}

// Wait for what happens later.
func ExampleHub_Expect() {
	hub := parleytest.NewHub(t)
	log := hub.Agent(parley.Agent{Name: "log"})
	hub.Tell("ann", "log", "", "The build is green.")
	log.Expect(parleytest.Want{Kind: parley.Notice, From: "ann", Text: "The build is green."})
	hub.Expect(parleytest.Want{To: "log", Protocol: "go", Least: parley.Session})
}
