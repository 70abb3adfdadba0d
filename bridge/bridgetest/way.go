package bridgetest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley/hub"
)

// WantFinding checks one finding of the only way to an agent: its state, and that its detail and fix contain the texts.
// It gives the way.
func WantFinding(t testing.TB, h *hub.Hub, agent, check string, state hub.FindingState, texts ...string) hub.Way {
	t.Helper()
	e, ok := h.Directory().Agent(agent)
	if !ok {
		t.Fatalf("no agent %s", agent)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ways := h.Ways(ctx, e)
	if len(ways) != 1 {
		t.Fatalf("the ways to %s: %+v", agent, ways)
	}
	for _, f := range ways[0].Findings {
		if f.Check != check {
			continue
		}
		for _, text := range texts {
			if f.State != state || !strings.Contains(f.Detail+" -> "+f.Fix, text) {
				t.Errorf("%s of %s: %+v, want %s with %q", check, agent, f, state, text)
			}
		}
		return ways[0]
	}
	t.Errorf("%s of %s is not checked: %+v", check, agent, ways[0])
	return ways[0]
}
