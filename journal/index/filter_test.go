package index

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
)

// clocked is a journal whose clock a test moves.
type clocked struct {
	*journal.Journal
	*clock
}

func clockedJournal(t testing.TB, partitions int) *clocked {
	c := &clocked{clock: clockAt(time.Unix(1_700_000_000, 0))}
	c.Journal = openJournal(t, journal.Config{Store: testjournal.Memory(t), Node: "n1", Partitions: partitions,
		Now: c.Now})
	return c
}

func (c *clocked) append(t testing.TB, e journal.Entry) {
	t.Helper()
	if _, err := c.Append(t.Context(), e); err != nil && !errors.Is(err, journal.ErrConflict) {
		t.Fatal(err)
	}
}

// traffic appends random requests and notices, their attempts and their answers.
type traffic struct {
	*clocked
	n    uint64
	int  func(int) int
	open []journal.Entry // of messages with a delivery
}

func (k *traffic) pick(list ...string) string { return list[k.int(len(list))] }

func (k *traffic) origin() parley.Origin {
	return parley.Origin{Protocol: k.pick("samvad", "asp", "agh"),
		Verdict: parley.Verdict{Assurance: parley.Assurance(k.int(3))}}
}

func (k *traffic) step(t testing.TB) {
	k.move(time.Duration(k.int(4000)) * time.Millisecond)
	if k.int(3) == 0 || len(k.open) == 0 {
		k.begin(t)
		return
	}
	i := k.int(len(k.open))
	request := k.open[i]
	m, to := request.Message, request.Open[0].To
	s := journal.Step{Message: m.ID, To: to, State: parley.DeliveryState(1 + k.int(4))}
	if k.int(2) == 0 {
		s.Exchange = &parley.Exchange{Protocol: k.pick("mcp", "a2e", "asp")}
	}
	switch s.State {
	case parley.Delivering:
		d, _ := k.Delivery(m.ID, to)
		s.Attempt = d.Attempt + 1
	case parley.Answered:
		k.n++
		s.Reply = testID(k.n, 1)
		k.append(t, journal.Entry{Scope: request.Scope, Steps: []journal.Step{s}, Message: &parley.Message{ID: s.Reply,
			Kind: []parley.Kind{parley.Response, parley.Failure}[k.int(2)], From: to, To: m.From, InReplyTo: m.ID,
			Conversation: m.Conversation, Origin: k.origin(), Parts: []parley.Part{parley.Text("answer")}}})
		k.open = slices.Delete(k.open, i, i+1)
		return
	}
	if k.int(12) == 0 {
		s.State, s.Attempt, s.Error = parley.Dead, 0, parley.Refuse(parley.TimedOut, "late")
	}
	k.append(t, journal.Entry{Steps: []journal.Step{s}})
}

func (k *traffic) begin(t testing.TB) {
	k.n++
	m := &parley.Message{ID: testID(k.n, 1), Kind: []parley.Kind{parley.Request, parley.Notice}[k.int(2)],
		From: k.pick("a0", "a1", "a2"), To: k.pick("a3", "word1"), Conversation: testID(uint64(k.int(5)), 2),
		Origin: k.origin(), Parts: []parley.Part{parley.Text(k.pick("word1", "word2", "a0"))}}
	e := journal.Entry{Scope: fmt.Sprint("scope", k.int(5)), Message: m}
	if k.int(8) == 0 {
		e.Refused = parley.Refuse(parley.Forbidden, "no")
	} else {
		e.Open = []journal.Opening{{To: m.To, Attempt: k.int(2)}}
	}
	k.append(t, e)
	if e.Refused == nil {
		k.open = append(k.open, e)
	}
}

// filter draws a filter with few members set.
func (k *traffic) filter() Filter {
	f := Filter{Now: k.Now()}
	for range 1 + k.int(3) {
		switch k.int(13) {
		case 0:
			f.Proof = Proof(1 + k.int(4))
		case 1:
			f.Via = k.pick("mcp", "a2e", "asp", "none")
		case 2:
			f.Slow = []time.Duration{time.Millisecond, 700 * time.Millisecond, 2 * time.Second, 20 * time.Second}[k.int(4)]
		case 3:
			f.Waiting = true
		case 4:
			f.Text = k.pick("word1", "word2", "a0", "word9", testID(uint64(k.int(5)), 2).String()[:13],
				testID(1+uint64(k.int(int(k.n))), 1).String())
			f.NoWords = k.int(3) == 0
		case 5:
			f.Kind = []parley.Kind{parley.Request, parley.Cancel, parley.Failure}[k.int(3)]
		case 6:
			f.Protocol = k.pick("samvad", "asp", "none")
		case 7:
			f.Agent = k.pick("a0", "a3", "word1")
		case 8:
			f.State = parley.DeliveryState(1 + k.int(5))
		case 9:
			f.Failed = true
		case 10:
			f.Refused = true
		case 11:
			f.Since = k.Now().Add(-time.Duration(k.int(60)) * time.Second)
		case 12:
			f.Until, f.Oldest = k.Now().Add(-time.Duration(k.int(60))*time.Second), true
		}
	}
	return f
}

// TestMatchesEqualsQuery: a filter chooses the same messages in the file and by Matches, in lists,
// counts and selections, whatever index a query uses.
func TestMatchesEqualsQuery(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		k := &traffic{clocked: clockedJournal(t, rapid.IntRange(1, 3).Draw(rt, "partitions")),
			int: rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 2)).IntN}
		c := Config{Journal: k.Journal, Path: filepath.Join(t.TempDir(), "index.db"),
			batch: rapid.IntRange(1, 16).Draw(rt, "batch"), gather: time.Millisecond}
		x, err := Open(t.Context(), c)
		if err != nil {
			rt.Fatal(err)
		}
		defer x.Close()
		x.probe = rapid.SampledFrom([]int{1, 5, probeRows}).Draw(rt, "probe")
		for range rapid.IntRange(1, 80).Draw(rt, "steps") {
			k.step(t)
		}
		if err := x.Wait(t.Context()); err != nil {
			rt.Fatal(err)
		}
		if x.Stats().Rebuilds != 0 {
			rt.Fatal("the index was rebuilt")
		}
		every := all(t, x, Filter{})
		for range 20 {
			check(t, x, k.filter(), every)
		}
	})
}

func check(t testing.TB, x *Index, f Filter, every []Message) {
	t.Helper()
	var want, got, selected, some []parley.ID
	for i := range every {
		if some = append(some, every[i].ID); f.Matches(&every[i]) {
			want = append(want, every[i].ID)
		}
	}
	list := all(t, x, f)
	if f.Oldest {
		slices.Reverse(list)
	}
	for i := range list {
		got = append(got, list[i].ID)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v: %d messages, want %d\n%v\n%v", f, len(got), len(want), got, want)
	}
	f.Oldest = false
	n, more, err := x.Count(t.Context(), f, 3)
	if err != nil || n != min(3, len(want)) || more != (len(want) > 3) {
		t.Errorf("%+v: counted %d %v %v, want %d", f, n, more, err, len(want))
	}
	some = some[len(some)/2:]
	few, err := x.Select(t.Context(), f, some)
	if err != nil {
		t.Error(err)
	}
	for i := range few {
		selected = append(selected, few[i].ID)
	}
	want = slices.DeleteFunc(want, func(id parley.ID) bool { return !slices.Contains(some, id) })
	if !slices.Equal(selected, want) {
		t.Errorf("%+v: selected %v, want %v", f, selected, want)
	}
}

// TestAnswer: a request has the time until its terminal reply, and no other message has.
func TestAnswer(t *testing.T) {
	for _, restart := range []bool{false, true} {
		j := clockedJournal(t, 1)
		c := Config{Journal: j.Journal, Path: filepath.Join(t.TempDir(), "index.db")}
		k := &talk{t: t, j: j.Journal}
		id := k.request(1)
		if restart { // then the request is read from the file
			x, err := Open(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(x.Wait(t.Context()), x.Close()); err != nil {
				t.Fatal(err)
			}
		}
		x := openIndex(t, c)
		j.move(time.Second)
		k.about(id, parley.Message{Kind: parley.Event, From: "bob", To: "alice"})
		j.move(412 * time.Millisecond)
		k.about(id, parley.Message{Kind: parley.Response, From: "bob", To: "alice"})
		if err := x.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, m := range all(t, x, Filter{}) {
			if want := map[bool]string{true: "1.412s", false: "0s"}[m.ID == id]; m.Answer.String() != want {
				t.Errorf("%s was answered in %s, want %s", m.Kind, m.Answer, want)
			}
		}
	}
}

// TestViaChanges: a delivery that goes back to an earlier protocol is found once, by the last one.
func TestViaChanges(t *testing.T) {
	j := memoryJournal(t, 1)
	x := openIndex(t, Config{Journal: j})
	id := (&talk{t: t, j: j}).request(1)
	for i, protocol := range []string{"asp", "mcp", "asp", "mcp"} {
		for _, s := range []journal.Step{{State: parley.Waiting, Exchange: &parley.Exchange{Protocol: protocol}},
			{State: parley.Delivering, Attempt: i + 2}} {
			s.Message, s.To = id, "bob"
			if _, err := j.Append(t.Context(), journal.Entry{Steps: []journal.Step{s}}); err != nil {
				t.Fatal(err)
			}
		}
		if err := x.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, via := range []string{"asp", "mcp"} {
			if n := len(all(t, x, Filter{Via: via})); n != map[bool]int{true: 1}[via == protocol] {
				t.Errorf("after %s: %d messages went out by %s", protocol, n, via)
			}
		}
	}
	if x.Stats().Rebuilds != 0 {
		t.Error("the index was rebuilt")
	}
}

// TestCountLooksNoFurther: where no index has just the messages of a filter, a count ends after some rows, and says so.
func TestCountLooksNoFurther(t *testing.T) {
	j := memoryJournal(t, 1)
	x := openIndex(t, Config{Journal: j})
	x.looks = 5
	for i := range 10 { // 20 messages, of which each second is a request
		exchange(t, j, i)
	}
	if err := x.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	type result struct {
		n    int
		more bool
	}
	for _, c := range []struct {
		f    Filter
		want result
	}{
		{Filter{}, result{20, false}},                                           // no condition
		{Filter{Kind: parley.Request}, result{10, false}},                       // a list has just these
		{Filter{Failed: true}, result{0, false}},                                // as has an index
		{Filter{Kind: parley.Request, Since: time.Unix(1, 0)}, result{5, true}}, // all that it looks at
		{Filter{Kind: parley.Request, Protocol: "asp"}, result{0, false}},       // an empty list
		{Filter{Kind: parley.Request, From: "client-3"}, result{1, false}},      // a short one
		{Filter{Protocol: "samvad", Via: "mcp"}, result{0, false}},              // another
		{Filter{Kind: parley.Request, Proof: ProvedSession}, result{0, false}},  // another
		{Filter{Protocol: "samvad", Kind: parley.Response}, result{0, true}},    // there may be others
		{Filter{Text: "weather", Kind: parley.Response}, result{0, true}},       // of the words
		{Filter{Text: "client-3 weather"}, result{0, false}},                    // no message has both
		{Filter{Slow: time.Hour, Kind: parley.Request}, result{0, false}},       // two short indexes
	} {
		var got result
		var err error
		if got.n, got.more, err = x.Count(t.Context(), c.f, 0); err != nil || got != c.want {
			t.Errorf("%+v: %v, %v, want %v", c.f, got, err, c.want)
		}
	}
}
