package stage_test

import (
	"context"
	"testing"
	"time"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/browser/stage"
	"github.com/parley-hub/parley/journal/index"
)

// TestTrip: the trip goes over all protocols, in one trace for each plan, on a hub whose clock shows another day.
func TestTrip(t *testing.T) {
	ctx := context.Background()
	s, err := stage.Open(ctx, stage.Config{Data: t.TempDir(), Begin: time.Date(2026, 11, 22, 14, 30, 0, 0, time.UTC)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Trip(ctx); err != nil {
		t.Fatal(err)
	}
	ref, err := s.Forge(ctx)
	if err != nil {
		t.Fatal(err)
	}
	page, err := s.API.Messages(ctx, index.Filter{Limit: 500})
	if err != nil {
		t.Fatal(err)
	}
	protocols := map[string]bool{}
	for _, m := range page.Messages {
		if !protocols[m.Protocol] && m.Protocol != "go" {
			inspected(t, s, m.ID.String(), m.Protocol)
		}
		protocols[m.Protocol] = true
		if y, mo, d := m.Time.UTC().Date(); y != 2026 || mo != 11 || d != 22 {
			t.Errorf("a message is of %v", m.Time)
		}
	}
	for _, p := range []string{"samvad", "uagents", "a2e", "agh", "asp", "a2a", "mcp", "go"} {
		if !protocols[p] {
			t.Errorf("no message came by %s", p)
		}
	}
	inspected(t, s, ref, "samvad")
	if _, err := s.Link(ctx, admin.Operate); err != nil {
		t.Fatal(err)
	}
}

// inspected lets the hub explain what an id or a reference names.
func inspected(t *testing.T, s *stage.Stage, name, protocol string) {
	t.Helper()
	v, err := s.API.Inspect(context.Background(), admin.Inspection{Input: []byte(name + "\n")})
	if err != nil || v.Protocol != protocol || v.Sentence == "" || len(v.Checks) == 0 ||
		(v.Message == nil) == (v.Refusal == nil) {
		t.Errorf("%s of %s: %+v, %v", name, protocol, v, err)
	}
}
