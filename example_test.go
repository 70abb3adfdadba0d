package parley_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log"

	"github.com/parley-hub/parley"
)

// Make a skill of a function; the hub refuses content that does not fit its schema.
func ExampleSkill() {
	type query struct {
		City string `json:"city"`
	}
	type answer struct {
		Celsius float64 `json:"celsius"`
	}
	forecast := parley.Skill("forecast", func(_ context.Context, m *parley.Message, q query) (answer, error) {
		if q.City == "" {
			return answer{}, parley.Refuse(parley.InvalidContent, "which city?")
		}
		return answer{21}, nil
	}, parley.Describe("Forecast", "Tells how warm it will be."))
	fmt.Println(forecast.ID, string(forecast.Input))
	// Output: forecast {"properties":{"city":{"type":"string"}},"required":["city"],"type":"object"}
}

// Read the content of a message.
func ExampleMessage_Bind() {
	p, err := parley.JSON(map[string]string{"city": "Bern"})
	if err != nil {
		log.Fatal(err)
	}
	m := &parley.Message{Kind: parley.Request, From: "ann", To: "weather", Parts: []parley.Part{p}}
	var q struct{ City string }
	if err := m.Bind(&q); err != nil {
		log.Fatal(err)
	}
	fmt.Println(m.From, "asks", m.To, "about", q.City)
	// Output: ann asks weather about Bern
}

// lookup answers requests from a map: a Caller for tests of handlers.
type lookup map[string]string

func (l lookup) Ask(_ context.Context, m *parley.Message) (*parley.Message, error) {
	text, ok := l[m.To]
	if !ok {
		return nil, parley.Refuse(parley.UnknownAgent, "no agent %q here", m.To)
	}
	return &parley.Message{Kind: parley.Response, Parts: []parley.Part{parley.Text(text)}}, nil
}

func (l lookup) Stream(ctx context.Context, m *parley.Message) iter.Seq2[*parley.Message, error] {
	return func(yield func(*parley.Message, error) bool) { yield(l.Ask(ctx, m)) }
}

func (lookup) Tell(context.Context, *parley.Message) error { return nil }

// Try a function that calls other agents, without a hub. In a handler the context of its
// call has the caller already.
func ExampleAsk() {
	plan := func(ctx context.Context, city string) (string, error) {
		weather, err := parley.Ask[string](ctx, "weather", "forecast", city)
		if err != nil {
			return "", err
		}
		return "in " + city + " it is " + weather, nil
	}
	fmt.Println(plan(parley.WithCaller(context.Background(), lookup{"weather": "sunny"}), "Bern"))
	_, err := plan(parley.WithCaller(context.Background(), lookup{}), "Bern")
	fmt.Println(parley.CodeOf(err))
	_, err = plan(context.Background(), "Bern")
	fmt.Println(errors.Is(err, parley.ErrNoCaller))
	// Output:
	// in Bern it is sunny <nil>
	// unknown_agent
	// true
}
