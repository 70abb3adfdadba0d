package admin

import (
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
)

// bury records a message with an attempt and the steps that follow it.
func (b *bench) bury(m parley.Message, steps ...journal.Step) parley.ID {
	b.t.Helper()
	id, err := parley.NewID(time.Now(), rand.Reader)
	if err != nil {
		b.t.Fatal(err)
	}
	m.ID, m.Conversation, m.Origin.Protocol = id, id, "samvad"
	m.Parts = []parley.Part{{MediaType: "text/plain", Data: []byte("hello " + m.To)}}
	j := b.hub.Journal()
	if _, err := j.Append(b.t.Context(), journal.Entry{Scope: m.To, Message: &m,
		Open: []journal.Opening{{To: m.To, Attempt: 1}}}); err != nil {
		b.t.Fatal(err)
	}
	for _, s := range steps {
		s.Message, s.To = id, m.To
		if _, err := j.Append(b.t.Context(), journal.Entry{Steps: []journal.Step{s}}); err != nil {
			b.t.Fatal(err)
		}
	}
	return id
}

// Errors and steps of the tests.
var (
	refusedIt = parley.Fail(parley.Unavailable, nil, "connection refused by 192.0.2.7:443").
			With(parley.ByNetwork, parley.ConnectionRefused, "")
	unknownIt = parley.Refuse(parley.OutcomeUnknown, "the hub was stopped").With(parley.ByHub, parley.HubStops, "")

	diesOfRefusal = journal.Step{State: parley.Dead, Error: refusedIt}
	diesOfUnknown = journal.Step{State: parley.Dead, Error: unknownIt}
)

// shapes are the groups of an answer in short.
func shapes(u Undelivered) (out []string) {
	for _, g := range u.Groups {
		out = append(out, fmt.Sprintf("%s %s %s %d/%d", g.To, g.Problem.Code, g.Problem.Reason, g.Number, len(g.Newest)))
	}
	return out
}

func TestUndelivered(t *testing.T) {
	b := open(t, nil)
	ctx, begun := t.Context(), time.Now()
	if _, err := b.client.AddAgent(ctx, NewAgent{Name: "far", Identities: []NewIdentity{{Protocol: "agh",
		ID: "far"}}}); err != nil {
		t.Fatal(err)
	}
	notice := func(from, to string) parley.Message { return parley.Message{Kind: parley.Notice, From: from, To: to} }
	late := parley.Message{Kind: parley.Request, From: "bob", To: "far", Skill: "post",
		Deadline: time.Now().Add(-time.Hour)}
	b.bury(late, diesOfRefusal)
	var far []parley.ID
	for range 4 {
		far = append(far, b.bury(notice("bob", "far"), diesOfRefusal))
	}
	b.bury(notice("eve", "near"), diesOfUnknown)
	again := []journal.Step{{State: parley.Delivering, Attempt: 2}, {State: parley.Delivered}}
	b.bury(notice("bob", "museum"), append([]journal.Step{{State: parley.Waiting, Error: refusedIt,
		Next: time.Now().Add(time.Hour)}}, again...)...) // not yet: the hub makes no attempt of its own
	b.bury(notice("bob", "far"), diesOfRefusal, journal.Step{State: parley.Dropped})
	if _, err := b.client.PauseFor(ctx, "far", "they move house"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.client.Send(ctx, Send{To: "far", Kind: parley.Notice, Text: text("hello far")}); err != nil {
		t.Fatal(err)
	}

	get := func(f UndeliveredFilter) Undelivered {
		t.Helper()
		u, err := b.client.Undelivered(ctx, f)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	if err := b.admin.c.Index.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	u := get(UndeliveredFilter{})
	want := UndeliveredCounts{Dead: Count{Number: 6}, Waiting: Count{Number: 1}, Recovered: Count{Number: 1},
		Dropped: Count{Number: 1}}
	if u.Counts != want || u.Show != ShowDead || u.More {
		t.Errorf("%+v", u)
	}
	if got := shapes(u); !slices.Equal(got, []string{"near outcome_unknown hub_stops 1/1",
		"far unavailable connection_refused 5/3"}) {
		t.Fatalf("groups %q", got)
	}
	g := u.Groups[1]
	newest := []parley.ID{g.Newest[0].Message, g.Newest[1].Message, g.Newest[2].Message}
	if !slices.Equal(newest, []parley.ID{far[3], far[2], far[1]}) || g.Expired != 1 || g.First.Before(begun) ||
		g.Last.Before(g.First) || g.Attempts != 1 || g.Recipient == nil || g.Recipient.State != hub.Paused {
		t.Errorf("%+v", g)
	}
	if !strings.Contains(g.Problem.Text, "192.0.2.7") || !strings.Contains(g.Problem.Advice, "`parley doctor far`") ||
		!strings.Contains(g.Newest[0].Preview, "hello far") || g.Newest[0].State != parley.Dead {
		t.Errorf("%+v", g)
	}
	for name, c := range map[string]struct {
		f    UndeliveredFilter
		want string
	}{
		"waiting":   {UndeliveredFilter{Show: ShowWaiting}, "far   1/1"},
		"recovered": {UndeliveredFilter{Show: ShowRecovered}, "museum unavailable connection_refused 1/1"},
		"dropped":   {UndeliveredFilter{Show: ShowDropped}, "far unavailable connection_refused 1/1"},
		"from":      {UndeliveredFilter{From: "eve"}, "near outcome_unknown hub_stops 1/1"},
		"to":        {UndeliveredFilter{To: "near"}, "near outcome_unknown hub_stops 1/1"},
		"code":      {UndeliveredFilter{Code: parley.OutcomeUnknown}, "near outcome_unknown hub_stops 1/1"},
		"reason":    {UndeliveredFilter{Reason: parley.HubStops}, "near outcome_unknown hub_stops 1/1"},
		"text":      {UndeliveredFilter{Text: "REFUSED by"}, "far unavailable connection_refused 5/3"},
		"limit":     {UndeliveredFilter{Limit: 1}, "near outcome_unknown hub_stops 1/1"},
	} {
		if got := shapes(get(c.f)); !slices.Equal(got, []string{c.want}) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if u = get(UndeliveredFilter{Limit: 1}); !u.More {
		t.Error("a second group is not told")
	}
	if u = get(UndeliveredFilter{Show: ShowRecovered, Since: time.Now().Add(time.Hour)}); len(u.Groups) > 0 ||
		u.Counts != (UndeliveredCounts{}) {
		t.Errorf("since later: %+v", u)
	}
	r := get(UndeliveredFilter{Show: ShowRecovered}).Groups[0]
	if m := r.Newest[0]; r.Attempts != 2 || m.State != parley.Delivered || m.Kind != parley.Notice || m.From != "bob" ||
		!r.First.Before(r.Last) || !strings.Contains(r.Problem.Text, "192.0.2.7") {
		t.Errorf("recovered: %+v", r)
	}
	_, err := b.client.Undelivered(ctx, UndeliveredFilter{Show: "lost"})
	code(t, err, parley.Malformed)
	watch := b.as(observerToken)
	if u, err = watch.Undelivered(ctx, UndeliveredFilter{}); err != nil || len(u.Groups) != 2 ||
		u.Groups[1].Problem.Text != "" || u.Groups[1].Newest[0].Preview != "" || u.Groups[1].Problem.Advice == "" ||
		u.Groups[1].Recipient.PausedWhy != "" {
		t.Errorf("an observer sees %+v, %v", u, err)
	}
}

// A delivery has recovered when its recipient has the message. Its group counts those answered with a failure.
func TestRecoveredAndAnsweredWithAFailure(t *testing.T) {
	b := open(t, nil)
	refusal := parley.Refuse(parley.Rejected, "no").With(parley.ByPeer, "", "")
	away := journal.Step{State: parley.Waiting, Error: refusedIt, Next: time.Now().Add(time.Hour)}
	again := journal.Step{State: parley.Delivering, Attempt: 2}
	for i, end := range [][]journal.Step{
		{{State: parley.Answered, Reply: parley.ID{1}}},
		{{State: parley.Answered, Reply: parley.ID{2}, Error: refusal}},
		{{State: parley.Delivered}, {State: parley.Answered, Reply: parley.ID{3}, Error: refusal}},
		{{State: parley.Delivered}},
	} {
		b.bury(parley.Message{Kind: parley.Request, From: "bob", To: "museum", Skill: fmt.Sprint("do-", i)},
			append([]journal.Step{away, again}, end...)...)
	}
	u, err := b.client.Undelivered(t.Context(), UndeliveredFilter{Show: ShowRecovered})
	if err != nil || len(u.Groups) != 1 || u.Groups[0].Number != 4 || u.Groups[0].Failed != 2 ||
		u.Groups[0].Problem.Code != parley.Unavailable {
		t.Errorf("%+v, %v", u, err)
	}
}

// Deliveries recovered stay for a day.
func TestUndeliveredForADay(t *testing.T) {
	now := time.Now()
	b := open(t, func(c *Config) { c.Now = func() time.Time { return now } })
	b.bury(parley.Message{Kind: parley.Notice, From: "bob", To: "far"}, diesOfRefusal, journal.Step{State: parley.Dropped})
	count := func() int {
		u, err := b.client.Undelivered(t.Context(), UndeliveredFilter{Show: ShowDropped})
		if err != nil {
			t.Fatal(err)
		}
		return u.Counts.Dropped.Number
	}
	before := count()
	now = now.Add(23 * time.Hour)
	within := count()
	now = now.Add(2 * time.Hour)
	if after := count(); before != 1 || within != 1 || after != 0 {
		t.Errorf("%d at once, %d within a day, %d later", before, within, after)
	}
}

func TestPauseWithAReason(t *testing.T) {
	b, ctx, begun := open(t, nil), t.Context(), time.Now()
	v, err := b.as(operatorToken).PauseFor(ctx, "weather", "they move house")
	if err != nil || v.PausedBy != "op" || v.PausedWhy != "they move house" || v.Since.Before(begun) {
		t.Errorf("%+v, %v", v.AgentState, err)
	}
	since := v.Since
	if v, err = b.client.Pause(ctx, "weather", true); err != nil || v.PausedBy != "root" || v.PausedWhy != "" ||
		!v.Since.Equal(since) {
		t.Errorf("paused again: %+v, %v", v.AgentState, err)
	}
	if v, err = b.client.Pause(ctx, "weather", false); err != nil || v.PausedBy != "" || !v.Since.IsZero() {
		t.Errorf("resumed: %+v, %v", v.AgentState, err)
	}
	_, err = b.client.PauseFor(ctx, "weather", strings.Repeat("x", maxReason+1))
	code(t, err, parley.TooLarge)
	_, err = b.as(viewerToken).PauseFor(ctx, "weather", "")
	code(t, err, parley.Forbidden)
	list, err := b.client.Audit(ctx, AuditFilter{Action: "agent.pause"})
	if err != nil || len(list) != 2 || list[1].Detail != "they move house" || list[1].Actor != "op" {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestRemovalPreview(t *testing.T) {
	b, _, _, _ := tokenBench(t)
	ctx := t.Context()
	if _, err := b.client.AddAgent(ctx, NewAgent{Name: "far", Identities: []NewIdentity{{Protocol: "agh",
		ID: "far"}}}); err != nil {
		t.Fatal(err)
	}
	operator, err := b.client.IssueToken(ctx, NewToken{Name: "op", Role: Operate})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.client.IssueToken(ctx, NewToken{Name: "of-far", Agent: "far"}); err != nil {
		t.Fatal(err)
	}
	b.bury(parley.Message{Kind: parley.Notice, From: "bob", To: "far"}, diesOfRefusal)
	if _, err := b.client.Pause(ctx, "far", true); err != nil {
		t.Fatal(err)
	}
	if _, err := b.client.Send(ctx, Send{To: "far", Kind: parley.Notice, Text: text("hello")}); err != nil {
		t.Fatal(err)
	}
	r, err := b.client.RemovalPreview(ctx, "far")
	if err != nil || r.Waiting != 1 || r.Dead != 1 || !slices.Equal(r.Tokens, []string{"of-far"}) || !r.DryRun ||
		r.Text != "far is no longer known here. 1 token goes. 1 message becomes a dead letter." {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := b.client.Agent(ctx, "far", 0); err != nil {
		t.Errorf("the preview removed it: %v", err)
	}
	if err := b.client.RemoveAgent(ctx, "far"); err != nil {
		t.Fatal(err)
	}
	if list := b.admin.tokensOf("far"); len(list) > 0 {
		t.Errorf("tokens %q are left", list)
	}
	_, err = b.client.RemovalPreview(ctx, "far")
	code(t, err, parley.UnknownAgent)
	_, err = b.client.RemovalPreview(ctx, "weather")
	code(t, err, parley.Forbidden) // it comes from the program
	_, err = b.as(operator.Secret).RemovalPreview(ctx, "weather")
	code(t, err, parley.Forbidden)
}

// TestNoReasonIsChosen: dead letters without a reason are apart from those of the same code that have one.
func TestNoReasonIsChosen(t *testing.T) {
	b, ctx := open(t, nil), t.Context()
	if _, err := b.client.AddAgent(ctx, NewAgent{Name: "far", Identities: []NewIdentity{{Protocol: "agh",
		ID: "far"}}}); err != nil {
		t.Fatal(err)
	}
	b.bury(parley.Message{Kind: parley.Notice, From: "bob", To: "far"}, diesOfRefusal)
	bare := b.bury(parley.Message{Kind: parley.Notice, From: "bob", To: "far"}, journal.Step{State: parley.Dead,
		Error: parley.Refuse(parley.Unavailable, "it says no more")})
	f := DeadFilter{Code: parley.Unavailable, Reason: NoReason}
	list, err := b.client.Dead(ctx, f)
	if err != nil || len(list) != 1 || list[0].Message != bare {
		t.Errorf("%+v, %v", list, err)
	}
	u, err := b.client.Undelivered(ctx, UndeliveredFilter{Code: parley.Unavailable, Reason: NoReason})
	if err != nil || !slices.Equal(shapes(u), []string{"far unavailable  1/1"}) {
		t.Errorf("%q, %v", shapes(u), err)
	}
	r, err := b.client.DropAll(ctx, Bulk{Filter: f, Expect: 1})
	if err != nil || r.Done != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}

// Of many open deliveries the answer is given again for a moment, which it says; what an operator changes is seen at
// once.
func TestUndeliveredOfMany(t *testing.T) {
	now := time.Now()
	b := open(t, func(c *Config) { c.Now = func() time.Time { return now } })
	var all []journal.Opening
	for i := range openFew / 10 {
		all = append(all, journal.Opening{To: fmt.Sprintf("far-%d", i), NotBefore: now.Add(time.Hour)})
	}
	for i := range 10 {
		m := &parley.Message{ID: parley.ID{1, byte(i)}, Kind: parley.Notice, From: "bob"}
		if _, err := b.hub.Journal().Append(t.Context(), journal.Entry{Scope: "s", Message: m, Open: all}); err != nil {
			t.Fatal(err)
		}
	}
	dead := func(want int, asOf time.Time) {
		t.Helper()
		u, err := b.client.Undelivered(t.Context(), UndeliveredFilter{})
		if err != nil || u.Counts.Dead.Number != want || u.Counts.Waiting.Number != maxCount || !u.AsOf.Equal(asOf) {
			t.Errorf("%d dead, %d waiting, as of %s, want %d, as of %s: %v", u.Counts.Dead.Number, u.Counts.Waiting.Number,
				u.AsOf, want, asOf, err)
		}
	}
	first := b.bury(parley.Message{Kind: parley.Notice, From: "bob", To: "near"}, diesOfRefusal)
	dead(1, time.Time{})
	counted := now
	b.bury(parley.Message{Kind: parley.Notice, From: "bob", To: "near"}, diesOfRefusal)
	now = now.Add(time.Second - 1)
	dead(1, counted)
	if _, err := b.client.Drop(t.Context(), first.String(), "near", "sold"); err != nil {
		t.Fatal(err)
	}
	dead(1, time.Time{})
	b.bury(parley.Message{Kind: parley.Notice, From: "bob", To: "near"}, diesOfRefusal)
	now = now.Add(time.Second)
	dead(2, time.Time{})
}
