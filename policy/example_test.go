package policy_test

import (
	"fmt"
	"log"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/policy"
)

// Allow only the agents of the crew to call one skill of an agent.
func Example() {
	p, err := policy.New(policy.Config{
		Hub:   "home",
		Allow: []policy.Rule{{From: "crew/*", To: []string{"weather.forecast"}}},
	})
	if err != nil {
		log.Fatal(err)
	}
	weather := policy.Recipient{Agent: &parley.Agent{Name: "weather"}, Native: []string{"samvad"}}
	for _, from := range []string{"crew/scout", "visitor"} {
		m := &parley.Message{Kind: parley.Request, From: from, To: "weather", Skill: "forecast"}
		m.Origin.Protocol, m.Origin.Verdict.Assurance = "samvad", parley.Signed
		if refusal := p.Admit(m, []policy.Recipient{weather}); refusal != nil {
			fmt.Println(from, "is refused:", refusal.Text)
		} else {
			fmt.Println(from, "may pass")
		}
	}
	// Output:
	// crew/scout may pass
	// visitor is refused: agent "visitor" may not call "weather"
}
