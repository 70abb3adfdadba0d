package admin

import (
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/sqlite"
)

func TestStatus(t *testing.T) {
	now := time.Now()
	b := open(t, func(c *Config) { c.Now = func() time.Time { return now } })
	ctx := t.Context()
	get := func() Status {
		t.Helper()
		s, err := b.as(observerToken).Status(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := get()
	if s.Hub != "hub-test" || s.Version != "test" || s.Accepted != "in memory" || s.Alarm || s.Health.Number != 1 ||
		s.Agents.Number != 1 || s.Dead.Number != 0 || !s.Oldest.IsZero() {
		t.Errorf("%+v", s)
	}
	if _, err := b.client.AddAgent(ctx, NewAgent{Name: "far", Identities: []NewIdentity{{Protocol: "agh",
		ID: "far"}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.client.Pause(ctx, "far", true); err != nil {
		t.Fatal(err)
	}
	first, err := b.client.Send(ctx, Send{To: "far", Kind: parley.Notice, Text: text("hello")})
	if err != nil {
		t.Fatal(err)
	}
	b.bury(parley.Message{Kind: parley.Notice, From: "bob", To: "near"}, diesOfRefusal)
	b.hub.Refuse(hub.Refusal{Protocol: "samvad", Code: parley.Malformed})
	b.hub.Refuse(hub.Refusal{Protocol: "samvad", Code: parley.Malformed, Time: time.Now().Add(-2 * time.Minute)})
	if s := get(); s.Dead.Number != 0 {
		t.Errorf("within a second: %+v", s)
	}
	now = now.Add(statusFor)
	s = get()
	if s.Dead.Number != 1 || !s.Dead.Alarm || !strings.Contains(s.Dead.Text, "parley dead list") || !s.Alarm ||
		s.Paused.Number != 1 || s.Paused.Alarm || s.Waiting.Number != 1 || s.Refused.Number != 1 || s.Refused.Alarm ||
		s.Agents.Number != 2 || !s.Oldest.Equal(first.ID.Time()) {
		t.Errorf("%+v", s)
	}
	if _, err := b.client.DropAll(ctx, Bulk{All: true}); err != nil {
		t.Fatal(err)
	}
	now = now.Add(statusFor)
	if s = get(); s.Alarm || s.Dead.Number != 0 {
		t.Errorf("after the drop: %+v", s)
	}
}

// Of agents that fail those count as an alarm that no further attempt will reach.
func TestStatusOfAgentsNotReached(t *testing.T) {
	b, ctx := open(t, nil), t.Context()
	if _, err := b.client.AddAgent(ctx, NewAgent{Name: "far", Identities: []NewIdentity{{Protocol: "telex",
		ID: "far"}}}); err != nil {
		t.Fatal(err)
	}
	r, err := b.client.Send(ctx, Send{To: "far", Kind: parley.Notice, Text: text("hello")})
	if err != nil {
		t.Fatal(err)
	}
	for id := range b.settled {
		if id == r.ID {
			break
		}
	}
	g := b.admin.notReached()
	if g.Number != 1 || !g.Alarm || !strings.HasPrefix(g.Text, "far: ") {
		t.Errorf("%+v", g)
	}
}

// The more deliveries are open, the more seldom all of them are looked at.
func TestStatusLooksForTheOldestSeldom(t *testing.T) {
	b := open(t, nil)
	now := time.Now()
	wait := func() parley.ID {
		return b.bury(parley.Message{Kind: parley.Notice, From: "bob", To: "far"},
			journal.Step{State: parley.Waiting, Error: refusedIt, Next: now.Add(time.Hour)})
	}
	if got := b.admin.oldestWaiting(now, 0); !got.IsZero() {
		t.Errorf("nothing waits, the oldest is %s", got)
	}
	id := wait()
	if got := b.admin.oldestWaiting(now, 10*oldestStep); !got.Equal(id.Time()) {
		t.Errorf("the oldest is %s, want %s", got, id.Time())
	}
	if _, err := b.hub.Journal().Append(t.Context(), journal.Entry{Steps: []journal.Step{{Message: id, To: "far",
		State: parley.Dead, Error: refusedIt}}}); err != nil {
		t.Fatal(err)
	}
	if got := b.admin.oldestWaiting(now.Add(10*time.Second), 10*oldestStep); !got.Equal(id.Time()) {
		t.Errorf("it looked again after 10 s: %s", got)
	}
	if got := b.admin.oldestWaiting(now.Add(11*time.Second), 10*oldestStep); !got.IsZero() {
		t.Errorf("nothing waits, the oldest is %s", got)
	}
}

func TestAccepted(t *testing.T) {
	disk, err := sqlite.Open(t.Context(), sqlite.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	memory := testjournal.Memory(t)
	defer memory.Close()
	for promise, want := range map[string]string{disk.Promise(): "on disk", memory.Promise(): "in memory",
		"Accepted means magic.": "Accepted means magic."} {
		if got := accepted(promise); got != want {
			t.Errorf("%q: %q, want %q", promise, got, want)
		}
	}
}
