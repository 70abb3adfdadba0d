package bridge

import (
	"slices"
	"testing"
)

// Callers lose what they can say and the agent cannot be told, and what the agent can say and they cannot be told;
// nothing that one of them has no word for.
func TestCallersLose(t *testing.T) {
	for _, c := range []struct {
		protocol  string
		native    []Way
		lost, not []string
	}{
		{"samvad", []Way{AGH},
			[]string{"Event: working", "Event: needs input", "Other recipients", "Tokens and delegation"},
			[]string{"Cancel", "Cost, budget and other constraints", "Plain text"}},
		{"asp", []Way{AGH}, []string{"Cost, budget and other constraints", "Context objects", "Tokens and delegation"},
			[]string{"Event: working", "Cancel"}},
		{"a2a", []Way{SAMVAD}, []string{"Cancel", "Input: more about an open request"}, []string{"Event: working"}},
		{"agh", []Way{Chat, Model}, []string{"More than one part (uAgents model)", "Other recipients", "Cancel"},
			[]string{"More than one part"}},
		{"mcp", nil, []string{"The name of a part"}, []string{"Other recipients", "Tokens and delegation",
			"Members of the sender's protocol alone"}},
		{"samvad", nil, []string{"Event: working"}, []string{"Cancel", "Tokens and delegation"}},
	} {
		got := CallersLose(c.protocol, c.native...)
		for _, want := range c.lost {
			if !slices.Contains(got, want) {
				t.Errorf("%s callers of %v: %q is not listed: %q", c.protocol, c.native, want, got)
			}
		}
		for _, not := range c.not {
			if slices.Contains(got, not) {
				t.Errorf("%s callers of %v: %q is listed", c.protocol, c.native, not)
			}
		}
	}
}
