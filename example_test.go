package parley_test

import (
	"context"
	"fmt"
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
