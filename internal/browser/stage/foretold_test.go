package stage_test

import (
	"context"
	"slices"
	"testing"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/browser/stage"
	"github.com/parley-hub/parley/journal/index"
)

// TestForetoldIsRecorded: what a message to an agent of each protocol is told to lose is what its delivery reports
// then.
func TestForetoldIsRecorded(t *testing.T) {
	ctx := context.Background()
	s, err := stage.Open(ctx, stage.Config{Data: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	says, more := "what is on?", `{"text":"in Bern"}`
	for to, protocol := range map[string]string{"museum": "samvad", "guide": "uagents", "robot": "a2e", "mason": "agh",
		"baker": "asp", "inn": "a2a", "assistant": "mcp"} {
		parts := []admin.Part{{Name: "question", Text: &says}}
		if protocol != "mcp" { // whose tools take one
			parts = append(parts, admin.Part{Name: "where", MediaType: "application/vnd.place+json", JSON: []byte(more)})
		}
		m := admin.Send{From: "planner", To: to, Parts: parts, Timeout: "20s"}
		f, err := s.API.Foresee(ctx, m)
		if err != nil || !f.Accepted || f.By != protocol {
			t.Fatalf("%s: %+v, %v", to, f, err)
		}
		var told []string
		for _, l := range f.There {
			if l.Fate != "lost" {
				t.Errorf("%s: %+v", to, l)
			}
			told = append(told, l.What+": "+l.Why)
		}
		r, err := s.API.Ask(ctx, m)
		if err != nil || r.Reply == nil || r.Reply.Error != nil && to != "assistant" { // it has nothing to say
			t.Fatalf("%s: %+v, %v", to, r.Reply, err)
		}
		sent, err := s.API.Message(ctx, r.ID.String(), false)
		if err != nil {
			t.Fatal(err)
		}
		if got := sent.Deliveries[0].Losses; !slices.Equal(told, got) {
			t.Errorf("%s: foretold %q, recorded %q", to, told, got)
		}
		if len(told) == 0 && !slices.Contains([]string{"a2e", "a2a", "mcp"}, protocol) {
			t.Errorf("%s loses nothing: the message is no test", to)
		}
	}
	if page, err := s.API.Messages(ctx, index.Filter{To: "museum"}); err != nil || len(page.Messages) != 1 {
		t.Errorf("%d messages to the museum, %v", len(page.Messages), err)
	}
}
