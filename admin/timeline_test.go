package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
)

// forge makes the hub refuse a request that claims to be an agent.
func (b *bench) forge(claim string) string {
	return b.hub.Refuse(hub.Refusal{Protocol: "samvad", Source: "192.0.2.7", Claim: claim, To: "weather",
		Step: "signature", Code: parley.Unauthenticated, Text: "no", Cause: "the signature is wrong"})
}

// told names the entries of a page: the kind of a message, or the claim of a refusal.
func told(list []TimelineEntry) string {
	var out []string
	for _, e := range list {
		switch {
		case e.Message == nil:
			out = append(out, "?"+e.Refusal.Claim)
		case e.Folded > 0:
			out = append(out, fmt.Sprintf("%s×%d", e.Message.Kind, e.Folded))
		case e.Refusal != nil:
			out = append(out, e.Message.Kind.String()+"!")
		default:
			out = append(out, e.Message.Kind.String())
		}
	}
	return strings.Join(out, " ")
}

func (b *bench) timeline(f TimelineFilter) TimelinePage {
	b.t.Helper()
	page, err := b.client.Timeline(b.t.Context(), f)
	if err != nil {
		b.t.Fatalf("%+v: %v", f, err)
	}
	return page
}

// mixed has messages and refusals in turn.
func mixed(t *testing.T) *bench {
	b := open(t, nil)
	b.forge("agent://one")
	b.ask("Bern")
	b.forge("operator")
	b.ask("Atlantis")
	b.forge("agent://two")
	return b
}

func TestTimelineFilters(t *testing.T) {
	b := mixed(t)
	forged := b.timeline(TimelineFilter{}).Entries[0].Refusal.Ref
	conversation := b.timeline(TimelineFilter{}).Entries[1].Message.Conversation
	for name, c := range map[string]struct {
		f    TimelineFilter
		want string
	}{
		"all":      {TimelineFilter{}, "?agent://two error request ?operator response event request ?agent://one"},
		"failed":   {TimelineFilter{Show: ShowFailed}, "?agent://two error ?operator ?agent://one"},
		"refused":  {TimelineFilter{Show: ShowRefused}, "?agent://two ?operator ?agent://one"},
		"waiting":  {TimelineFilter{Show: ShowWaiting}, ""},
		"slow":     {TimelineFilter{Show: ShowSlow}, ""},
		"slow=1ns": {TimelineFilter{Show: ShowSlow, Filter: index.Filter{Slow: 1}}, "request request"},
		"proof": {TimelineFilter{Filter: index.Filter{Proof: index.ProvedRefused}},
			"?agent://two ?operator ?agent://one"},
		"session": {TimelineFilter{Filter: index.Filter{Proof: index.ProvedSession}},
			"error request response event request"},
		"from": {TimelineFilter{Filter: index.Filter{From: "operator"}}, "request ?operator request"},
		"to": {TimelineFilter{Filter: index.Filter{To: "weather", Protocol: "samvad"}},
			"?agent://two ?operator ?agent://one"},
		"kind":  {TimelineFilter{Filter: index.Filter{Kind: parley.Event}}, "event"},
		"words": {TimelineFilter{Filter: index.Filter{Text: "celsius"}}, "response"},
		"reason": {TimelineFilter{Filter: index.Filter{Text: "the Signature"}},
			"?agent://two ?operator ?agent://one"},
		"reference": {TimelineFilter{Filter: index.Filter{Text: forged}}, "?agent://two"},
		"id":        {TimelineFilter{Filter: index.Filter{Text: conversation.String()}}, "error request"},
		"name": {TimelineFilter{Filter: index.Filter{Text: "operator"}},
			"error request ?operator response event request"},
		"future": {TimelineFilter{Filter: index.Filter{Since: time.Now().Add(time.Hour)}}, ""},
	} {
		page := b.timeline(c.f)
		if got := told(page.Entries); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		// Any size of page gives the same, in both directions.
		for _, size := range []int{1, 3} {
			f := c.f
			f.Limit = size
			var list []TimelineEntry
			for {
				page := b.timeline(f)
				list = append(list, page.Entries...)
				if f.Before = page.Older; f.Before == "" {
					break
				}
			}
			if got := told(list); got != c.want {
				t.Errorf("%s, pages of %d: %q, want %q", name, size, got, c.want)
			}
			if len(list) == 0 {
				continue
			}
			f.Before, f.After = "", list[len(list)-1].Cursor
			back := list[len(list)-1:]
			for more := true; more; {
				page := b.timeline(f)
				back = append(slices.Clone(page.Entries), back...)
				f.After, more = page.Newer, page.More
			}
			if got := told(back); got != c.want {
				t.Errorf("%s, pages of %d after the first: %q, want %q", name, size, got, c.want)
			}
		}
	}
	for _, bad := range []TimelineFilter{{Before: "?"}, {After: "."}, {Before: "1", After: "1"}} {
		_, err := b.client.Timeline(t.Context(), bad)
		code(t, err, parley.Malformed)
	}
	for _, bad := range []string{"show=odd", "proof=none", "slow=fast"} {
		if resp, err := b.raw("/v1/timeline?" + bad); err != nil || resp.StatusCode != 400 {
			t.Errorf("%s: %v %v", bad, resp, err)
		}
	}
}

// TestTimelineGrows: entries that come while a caller reads page after page change no page behind.
func TestTimelineGrows(t *testing.T) {
	b := mixed(t)
	want := told(b.timeline(TimelineFilter{}).Entries)
	var list []TimelineEntry
	f := TimelineFilter{}
	f.Limit = 2
	for {
		page := b.timeline(f)
		list = append(list, page.Entries...)
		if f.Before = page.Older; f.Before == "" {
			break
		}
		b.ask("Thun")
		b.forge("agent://late")
	}
	if got := told(list); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	page := b.timeline(TimelineFilter{After: list[0].Cursor})
	if got := told(page.Entries); !strings.HasPrefix(got, "?agent://late response event request ?agent://late") ||
		strings.Contains(got, "error") {
		t.Errorf("after the first page: %q", got)
	}
}

// said records events of a request: "w" is work, "f" one that a recipient did not take.
func (b *bench) said(id parley.ID, states ...parley.State) {
	b.t.Helper()
	for i, s := range states {
		e := journal.Entry{Scope: "fold", Message: &parley.Message{ID: parley.HashID([]byte(fmt.Sprint(id, i))),
			Kind: parley.Event, State: s, Number: i + 1, From: "weather", To: "operator", InReplyTo: id,
			Origin: parley.Origin{Protocol: "go"}}}
		if _, err := b.hub.Journal().Append(b.t.Context(), e); err != nil {
			b.t.Fatal(err)
		}
	}
}

func TestTimelineFolds(t *testing.T) {
	b := open(t, nil)
	one, two := parley.HashID([]byte("1")), parley.HashID([]byte("2"))
	w, n := parley.Working, parley.NeedsInput
	b.said(one, w, w, n, w, w, w, w)
	b.said(two, w, w)
	b.forge("x")
	b.said(parley.HashID([]byte("3")), w, w, w)
	page := b.timeline(TimelineFilter{})
	const want = "event×3 ?x event event event×4 event event event"
	if got := told(page.Entries); got != want {
		t.Fatalf("%q, want %q", got, want)
	}
	e := page.Entries[4]
	if e.Message.Number != 7 || e.First.IsZero() || e.First.After(e.Message.Time) {
		t.Errorf("the fold is %+v", e)
	}
	// A page ends with a fold, and the next begins behind it.
	f := TimelineFilter{}
	f.Limit = 5
	first := b.timeline(f)
	if f.Before = first.Older; told(append(first.Entries, b.timeline(f).Entries...)) != want {
		t.Errorf("%q and %q", told(first.Entries), told(b.timeline(f).Entries))
	}
}

// TestFoldKeepsFailures: an event that failed, or that cannot be delivered now, is no part of a fold.
func TestFoldKeepsFailures(t *testing.T) {
	event := func(change func(*index.Message)) row {
		m := &index.Message{Kind: parley.Event, State: parley.Working}
		change(m)
		return row{message: m}
	}
	quiet := event(func(*index.Message) {})
	for name, loud := range map[string]row{
		"failed": event(func(m *index.Message) { m.Failed = true }),
		"waits": event(func(m *index.Message) {
			m.Deliveries = []index.Delivery{{State: parley.Waiting, Error: &index.Reason{}}}
		}),
		"refusal": {refusal: &hub.Refusal{}},
	} {
		if got := len(fold([]row{quiet, quiet, loud, quiet, quiet, quiet})); got != 4 {
			t.Errorf("%s: %d entries, want 4", name, got)
		}
		if got := len(fold([]row{loud, loud, loud})); got != 3 {
			t.Errorf("%s: %d entries of three, want 3", name, got)
		}
	}
}

// TestRecordedRefusalOnce: a refused message that was recorded is one entry, with its reference.
func TestRecordedRefusalOnce(t *testing.T) {
	b := open(t, nil)
	_, err := b.client.Send(t.Context(), Send{To: "weather", Skill: "nothing", Text: text("x"), IdempotencyKey: "k"})
	var e *parley.Error
	if !errors.As(err, &e) || e.Ref == "" {
		t.Fatal(err)
	}
	page := b.timeline(TimelineFilter{Show: ShowRefused})
	if told(page.Entries) != "request!" || page.Entries[0].Refusal.Ref != e.Ref || !page.Entries[0].Message.Refused {
		t.Errorf("%s %+v", told(page.Entries), page.Entries)
	}
	n, err := b.client.Counts(t.Context(), TimelineFilter{})
	if err != nil || n.Refused != (Count{Number: 1}) || n.All.Number != 1 {
		t.Errorf("%+v %v", n, err)
	}
	// Without a key it is not recorded: another refusal.
	if _, err := b.client.Send(t.Context(), Send{To: "weather", Skill: "nothing", Text: text("x")}); err == nil {
		t.Fatal("not refused")
	}
	if got := told(b.timeline(TimelineFilter{Show: ShowRefused}).Entries); got != "?operator request!" {
		t.Error(got)
	}
}

func TestCounts(t *testing.T) {
	b := mixed(t)
	got, err := b.client.Counts(t.Context(), TimelineFilter{Show: ShowFailed})
	want := Counts{All: Count{Number: 8}, Failed: Count{Number: 4}, Refused: Count{Number: 3}}
	if err != nil || got != want {
		t.Errorf("%+v %v, want %+v", got, err, want)
	}
	f := TimelineFilter{Show: ShowWaiting}
	f.Agent, f.Proof, f.Limit = "weather", index.ProvedSigned, 3
	hidden, err := b.client.Hidden(t.Context(), f)
	if want := []Hiding{{"agent", Count{}}, {"proof", Count{}}, {"show", Count{}}}; err != nil ||
		!slices.Equal(hidden, want) {
		t.Errorf("%+v %v, want %+v", hidden, err, want)
	}
	f.Show = ""
	f.Proof = index.ProvedSession
	f.From = "nobody"
	hidden, err = b.client.Hidden(t.Context(), f)
	if want := []Hiding{{"agent", Count{}}, {"from", Count{Number: 5}}, {"proof", Count{}}}; err != nil ||
		!slices.Equal(hidden, want) {
		t.Errorf("%+v %v, want %+v", hidden, err, want)
	}
}

// TestTimelineOfObserver: an observer finds ids and names, not words, and sees no content.
func TestTimelineOfObserver(t *testing.T) {
	b := mixed(t)
	for text, want := range map[string]string{"celsius": "", "the signature": "", "operator": "error request ?operator " +
		"response event request", "agent://two": "?agent://two"} {
		page, err := b.as(observerToken).Timeline(t.Context(), TimelineFilter{Filter: index.Filter{Text: text}})
		if err != nil || told(page.Entries) != want || !page.NoWords {
			t.Errorf("%s: %q %v, want %q", text, told(page.Entries), err, want)
		}
		for _, e := range page.Entries {
			if e.Message != nil && e.Message.Preview+e.Message.Snippet != "" || e.Refusal != nil && e.Refusal.Cause != "" {
				t.Errorf("%s: an observer sees %+v", text, e)
			}
		}
	}
}

// TestTimelineWithoutText: the index of an encrypted journal finds ids and names, and says that it has no
// words.
func TestTimelineWithoutText(t *testing.T) {
	b := open(t, func(c *Config) {
		x, err := index.Open(context.Background(), index.Config{Journal: c.Hub.Journal(), NoText: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = x.Close() })
		c.Index = x
	})
	r := b.ask("Bern")
	for text, want := range map[string]string{"celsius": "", "operator": "response event request",
		r.ID.String()[:23]: "request"} {
		page := b.timeline(TimelineFilter{Filter: index.Filter{Text: text}})
		if told(page.Entries) != want || !page.NoWords {
			t.Errorf("%s: %q, want %q", text, told(page.Entries), want)
		}
	}
}

// TestRefusalsSince: a page says from when on the hub has refusals, after a start and after the ring was
// overwritten.
func TestRefusalsSince(t *testing.T) {
	started := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	b := open(t, func(c *Config) { c.Info = func() Info { return Info{Started: started} } })
	if page := b.timeline(TimelineFilter{}); !page.RefusalsSince.Equal(started) || len(page.Entries) > 0 {
		t.Errorf("after a start: %+v", page)
	}
	for range 8192 {
		b.forge("x")
	}
	f := TimelineFilter{}
	f.Limit = 1
	if page := b.timeline(f); !page.RefusalsSince.After(started) {
		t.Errorf("after many refusals: %+v", page.RefusalsSince)
	}
}

func TestTrace(t *testing.T) {
	b := open(t, nil)
	var want []parley.ID
	for i, c := range []string{"a", "b", "a", "c"} {
		id := parley.HashID(fmt.Append(nil, "m", i))
		m := &parley.Message{ID: id, Kind: parley.Notice, From: "operator", To: "weather",
			Conversation: parley.HashID([]byte(c)), Origin: parley.Origin{Protocol: "go"},
			Trace: parley.Trace{Parent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}}
		if c == "c" {
			m.Trace = parley.Trace{}
		} else {
			want = append(want, id)
		}
		if _, err := b.hub.Journal().Append(t.Context(), journal.Entry{Scope: "s", Message: m}); err != nil {
			t.Fatal(err)
		}
	}
	id := parley.HashID([]byte("a")).String()
	v, err := b.client.Trace(t.Context(), id[:13], "", 2)
	if err != nil || len(v.Conversations) != 2 || v.More || len(v.History) != 2 || v.Next == "" {
		t.Fatalf("%+v %v", v, err)
	}
	rest, err := b.client.Trace(t.Context(), id, v.Next, 2)
	if err != nil || rest.Before != 2 || len(rest.History) != 1 {
		t.Fatalf("%+v %v", rest, err)
	}
	for i, m := range append(v.History, rest.History...) {
		if m.ID != want[i] {
			t.Errorf("message %d is %s, want %s", i, m.ID, want[i])
		}
	}
	around, err := b.client.ConversationAround(t.Context(), id, want[2].String(), 1)
	if err != nil || around.Before != 1 || len(around.History) != 1 || around.History[0].ID != want[2] {
		t.Errorf("%+v %v", around, err)
	}
	_, err = b.client.ConversationAround(t.Context(), id, want[1].String(), 1)
	code(t, err, notFound)
	b.forge("operator")
	b.forge("agent://else")
	list, err := b.client.RefusalsAround(t.Context(), id)
	if err != nil || len(list) != 1 || list[0].Claim != "operator" {
		t.Errorf("%+v %v", list, err)
	}
	_, err = b.client.RefusalsAround(t.Context(), "00000000")
	code(t, err, notFound)
}

// TestRefusalsAround: a refusal belongs to the time of a conversation, which goes on while a delivery is
// open.
func TestRefusalsAround(t *testing.T) {
	b := open(t, nil)
	first := time.Unix(1000, 0)
	c := index.Conversation{First: first, Last: first.Add(time.Hour), Agents: []string{"operator"}}
	for _, open := range []int{0, 1} {
		c.Open = open
		for at, want := range map[time.Duration]bool{-2 * time.Minute: false, 0: true, time.Hour: true,
			2 * time.Hour: open > 0} {
			if got := b.admin.around(&c, &hub.Refusal{Claim: "operator", Time: first.Add(at)}); got != want {
				t.Errorf("%d open, after %s: %v", open, at, got)
			}
		}
	}
}

// TestRefusalNamesItsAgent: a refused message names its recipient as its protocol does; the hub knows whom that is.
func TestRefusalNamesItsAgent(t *testing.T) {
	b := open(t, nil)
	if _, err := b.hub.Directory().Put(t.Context(), parley.Agent{Name: "box", Identities: []parley.Identity{
		{Protocol: "samvad", ID: "agent://box.test"}}}, directory.FromConfig); err != nil {
		t.Fatal(err)
	}
	refuse := func(to string) string {
		return b.hub.Refuse(hub.Refusal{Protocol: "samvad", Claim: "x", To: to, Step: "signature",
			Code: parley.Unauthenticated})
	}
	for to, want := range map[string]string{"agent://box.test": "box", "box": "box", "agent://else.test": "", "": ""} {
		r, err := b.client.Refusal(t.Context(), refuse(to))
		if err != nil || r.Agent != want || r.To != to {
			t.Errorf("to %q: agent %q, to %q, %v", to, r.Agent, r.To, err)
		}
	}
	// Both spellings are found by the name.
	for _, f := range []index.Filter{{To: "box"}, {Agent: "box"}} {
		if page := b.timeline(TimelineFilter{Filter: f}); len(page.Entries) != 2 {
			t.Errorf("%+v: %d entries", f, len(page.Entries))
		}
	}
}
