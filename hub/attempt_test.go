package hub

import (
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
)

// TestRepeatable: an attempt of unknown outcome is repeated where the agent deduplicates, or the binding resumes the
// message, whichever of them the binding says.
func TestRepeatable(t *testing.T) {
	t.Parallel()
	sent := parley.HashID([]byte("sent"))
	resumes := func(m parley.ID) bool { return m == sent }
	bob := func(e *directory.Entry, _ parley.Identity) bool { return e.Name == "bob" }
	for _, c := range []struct {
		name    string
		can     Capabilities
		to      string
		message parley.ID
		want    bool
	}{
		{"neither", Capabilities{}, "bob", sent, false},
		{"all deduplicate", Capabilities{Deduplicates: true}, "carol", parley.ID{}, true},
		{"resumes", Capabilities{Resumes: resumes}, "carol", sent, true},
		{"resumes others", Capabilities{Resumes: resumes}, "carol", parley.ID{}, false},
		{"this agent", Capabilities{DeduplicatesFor: bob, Resumes: resumes}, "bob", parley.ID{}, true},
		{"another agent", Capabilities{DeduplicatesFor: bob, Deduplicates: true}, "carol", parley.ID{}, false},
		{"another agent, resumes", Capabilities{DeduplicatesFor: bob, Resumes: resumes}, "carol", sent, true},
		{"another agent, another message", Capabilities{DeduplicatesFor: bob, Resumes: resumes}, "carol", parley.ID{},
			false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := start(t, nil, &wire{name: "wire", can: c.can})
			h.agent(t, c.to, parley.Identity{Protocol: "wire", ID: c.to})
			if got := (*transport)(h).Repeatable(c.message, c.to); got != c.want {
				t.Error(got)
			}
		})
	}
}
