package policy

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley"
)

// TestForeseeUsesNoRate: foreseeing often takes nothing from the rates, and says when they are used up.
func TestForeseeUsesNoRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := Recipient{Agent: &parley.Agent{Name: "weather"}, Native: []string{"samvad"}}
		p, err := New(Config{SenderRate: Rate{1, 3}, Limits: []Limit{{From: "a", To: []string{"weather"}, Rate: Rate{1, 2}}}})
		if err != nil {
			t.Fatal(err)
		}
		m := message("a", "weather", parley.Signed)
		for range 10 {
			if err := p.Foresee(m, to); err != nil {
				t.Fatalf("nothing was sent yet: %v", err)
			}
		}
		for i := range 2 {
			if err := p.Admit(m, []Recipient{to}); err != nil {
				t.Fatalf("message %d: %v", i, err)
			}
		}
		if err := p.Foresee(m, to); err == nil || err.Reason != parley.PairRate || err.After <= 0 {
			t.Errorf("the rate of the pair is used up: %v", err)
		}
		other := message("a", "other", parley.Signed)
		if err := p.Foresee(other, Recipient{Agent: &parley.Agent{Name: "other"}, Native: []string{"samvad"}}); err != nil {
			t.Errorf("another recipient: %v", err)
		}
		time.Sleep(time.Second) // of the test's clock
		if err := p.Foresee(m, to); err != nil {
			t.Errorf("a second later: %v", err)
		}
		if err := p.Foresee(message("a", "hidden", parley.Signed),
			Recipient{Agent: &parley.Agent{Name: "hidden"}}); err == nil || err.Reason != parley.NotExposed {
			t.Errorf("an agent that is not exposed: %v", err)
		}
	})
}
