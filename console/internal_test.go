package console

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/journal/index"
)

// TestPushesAreFew: however much changes, a page gets at most four pushes a second, with the newest 200 rows, and
// learns how many it missed.
func TestPushesAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var times []time.Time
		var got []string
		p := newPushes(func(b []byte) error {
			times, got = append(times, time.Now()), append(got, string(b))
			return nil
		})
		begin := time.Now()
		for i := 0; time.Since(begin) < 10*time.Second; i++ {
			for j := range 3 {
				p.row(fmt.Sprint(i, " ", j), fmt.Appendf(nil, `<tr id="%d-%d"></tr>`, i, j))
			}
			if err := p.flush(); err != nil {
				t.Fatal(err)
			}
			select {
			case <-p.due():
				if err := p.flush(); err != nil {
					t.Fatal(err)
				}
			case <-time.After(time.Millisecond):
			}
		}
		if n := len(times); n < 35 || n > 41 {
			t.Errorf("%d pushes in 10 s", n)
		}
		for i := 1; i < len(times); i++ {
			if d := times[i].Sub(times[i-1]); d < pushEvery {
				t.Errorf("two pushes within %s", d)
			}
		}
		last := got[len(got)-1]
		if n := strings.Count(last, "<tr"); n != pushMost {
			t.Errorf("a push has %d rows", n)
		}
		if !strings.Contains(last, "too fast to show: ") || p.lost == 0 {
			t.Error("the page does not learn what it missed")
		}
	})
}

// TestPushesCoalesce: an element that changes again is written once, and not if it is as before.
func TestPushesCoalesce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		p := newPushes(func(b []byte) error { got = append(got, string(b)); return nil })
		push := func() {
			t.Helper()
			if err := p.flush(); err != nil {
				t.Fatal(err)
			}
		}
		p.row("a", []byte("one"))
		push()
		p.row("a", []byte("two"))
		p.row("a", []byte("three"))
		p.element("health", []byte("well"))
		push()
		if len(got) != 1 {
			t.Fatalf("two pushes at once: %q", got)
		}
		<-p.due()
		push()
		p.element("health", []byte("well"))
		time.Sleep(time.Second)
		push()
		want := []string{"event: html\ndata: one\ndata: \n\n", "event: html\ndata: three\ndata: well\ndata: \n\n"}
		if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
			t.Errorf("%q, want %q", got, want)
		}
		p.missed(1204)
		time.Sleep(time.Second)
		push()
		if len(got) != 3 || !strings.Contains(got[2], "too fast to show: 1,204 missed") {
			t.Errorf("%q", got)
		}
	})
}

// TestEventKeepsItsLines: no data of a guest ends a line of the stream.
func TestEventKeepsItsLines(t *testing.T) {
	got := string(event("html", []byte("a\r\nb\rc\nevent: end")))
	if want := "event: html\ndata: a\ndata: b\ndata: c\ndata: event: end\n\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestStreamAsksForItsSession: within a minute after the session's end the stream ends, and says so.
func TestStreamAsksForItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, asked, ticks := time.Now(), 0, 0
		var got []string
		s := &stream{out: newPushes(func(b []byte) error { got = append(got, string(b)); return nil }),
			start: func() error { return nil }, news: func(*admin.Batch) error { return nil },
			tick: func() error { ticks++; return nil },
			session: func() error {
				if asked++; asked == 3 {
					return parley.Refuse(parley.Unauthenticated, "the session is over")
				}
				return nil
			}}
		s.run(t.Context(), make(chan admin.Batch))
		if d := time.Since(begin); d != 3*time.Minute || ticks < 80 {
			t.Errorf("the stream ended after %s, %d ticks", d, ticks)
		}
		if len(got) != 1 || got[0] != "event: end\ndata: the session is over\n\n" {
			t.Errorf("%q", got)
		}
	})
}

// TestStreamEndsWithoutAWord: when the hub stops or the reader leaves, nothing tells the page that it is over.
func TestStreamEndsWithoutAWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nothing := func() error { return nil }
		s := &stream{out: newPushes(func([]byte) error { t.Error("something was written"); return nil }), start: nothing,
			tick: nothing, session: nothing, news: func(*admin.Batch) error { return nil }}
		news := make(chan admin.Batch)
		close(news)
		s.run(t.Context(), news)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		s.run(ctx, make(chan admin.Batch))
	})
}

// sample is an entry of a list.
func sample(i int, now time.Time) *admin.TimelineEntry {
	v := admin.Summary{Kind: parley.Request, From: "guest/asp/bakery.example-shop-baker-d46b123f", To: "weather",
		Skill: "forecast", Protocol: "samvad", Time: now, Conversation: parley.ID{1}, ID: parley.ID{byte(i)}, Size: 100,
		Preview: `{"sku":"flour-550","bin":"Ä-17"}`}
	v.Deliveries = append(v.Deliveries, index.Delivery{To: "weather", State: parley.Answered, Attempts: 1})
	return &admin.TimelineEntry{Message: &v}
}

// BenchmarkNews measures what a page of Messages costs the hub at 1,000 messages a second: four batches of 250, as
// [admin.Admin.Watch] gives them. The bound is 20 ms, 2 % of a core; admin's BenchmarkWatch is the other part.
func BenchmarkNews(b *testing.B) {
	c := &Console{}
	var err error
	if c.pages, err = parsePages("/console/static/"); err != nil {
		b.Fatal(err)
	}
	now := time.Now()
	batch := admin.Batch{Missed: 50}
	for i := range 200 {
		batch.Entries = append(batch.Entries, *sample(i, now))
	}
	q := &request{r: httptest.NewRequest("GET", livePath+"?screen=messages", nil), by: admin.Actor{Role: admin.Read},
		now: now, counted: now, open: openRows{}}
	size := 0
	for b.Loop() {
		for range 4 {
			out := newPushes(func(b []byte) error { size = len(b); return nil })
			out.missed(batch.Missed)
			if err := errors.Join(c.messagesNews(q, &batch, out), out.flush()); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(size)/1e3, "KB/push")
}

// BenchmarkMessages measures the template of a page with 100 rows.
func BenchmarkMessages(b *testing.B) {
	p, err := parsePages("/console/static/")
	if err != nil {
		b.Fatal(err)
	}
	now := time.Now()
	l := &list{now: now, slow: admin.DefaultSlow, read: true}
	m := &Messages{Filters: Filters{Search: &searchMessages, Show: showChoices(nil, &admin.Counts{}),
		Menus: []Menu{menu(nil, "protocol", "Protocol", protocolChoices()...)}}}
	for i := range pageRows {
		m.Rows = append(m.Rows, l.row(sample(i, now)))
	}
	page := Page{Title: "Messages", Screen: "messages", By: &admin.Actor{}, Frame: &Frame{}, Data: m}
	n := 0
	for b.Loop() {
		var w bytes.Buffer
		if err := p.by["messages"].ExecuteTemplate(&w, "layout", page); err != nil {
			b.Fatal(err)
		}
		n = len(visible(w.Bytes()))
	}
	b.ReportMetric(float64(n)/1e3, "KB")
}

// TestIndexBehind: a list says that it lacks the newest messages, unless the index is only at work.
func TestIndexBehind(t *testing.T) {
	p, err := parsePages("/console/static/")
	if err != nil {
		t.Fatal(err)
	}
	for lag, want := range map[uint64]string{4210: "The index is 4,210 records behind.", 12: ""} {
		var b bytes.Buffer
		if err := p.by["messages"].ExecuteTemplate(&b, "behind", lag); err != nil {
			t.Fatal(err)
		}
		if got := b.String(); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%d records: %s", lag, got)
		}
	}
}

// TestWaitingRows: a row says the one thing to know about its state.
func TestWaitingRows(t *testing.T) {
	now := time.Date(2026, 11, 22, 14, 31, 0, 0, time.UTC)
	next := now.Add(67 * time.Second)
	l := &list{now: now, slow: admin.DefaultSlow, read: true}
	busy := &index.Reason{Code: parley.Unavailable, Source: parley.ByPeer}
	for name, c := range map[string]struct {
		kind  parley.Kind
		d     index.Delivery
		state string
		note  string
		tries int
	}{
		"the next attempt": {parley.Notice, index.Delivery{State: parley.Waiting, Next: next, Attempts: 2}, "waiting",
			"next 14:32:07", 2},
		"the peer's wish": {parley.Notice, index.Delivery{State: parley.Waiting, Next: next, Attempts: 3, Postponed: 1,
			Error: busy}, "waiting", "peer says 14:32:07", 2},
		"a dead letter": {parley.Request, index.Delivery{State: parley.Dead, Attempts: 8, Error: busy}, "dead",
			"unavailable", 8},
		"an event that nobody is told": {parley.Event, index.Delivery{State: parley.Delivered, Attempts: 1,
			Losses: []string{"Kind: multi_agent has no events"}}, "delivered", "not told", 1},
		"nothing to add": {parley.Notice, index.Delivery{State: parley.Delivered, Attempts: 1}, "delivered", "", 1},
	} {
		m := admin.Summary{Kind: c.kind, To: "b"}
		c.d.To = "b"
		m.Deliveries = []index.Delivery{c.d}
		r := l.row(&admin.TimelineEntry{Message: &m})
		if r.State.Word != c.state || r.Note != c.note || r.Tries != c.tries {
			t.Errorf("%s: %s, %q, %d tries", name, r.State.Word, r.Note, r.Tries)
		}
	}
	m := admin.Summary{Kind: parley.Notice}
	m.Deliveries = []index.Delivery{{To: "a", State: parley.Delivered}, {To: "b", State: parley.Dead},
		{To: "c", State: parley.Delivered}}
	if r := l.row(&admin.TimelineEntry{Message: &m}); r.To != "b" || r.More != 2 || r.State.Word != "dead" ||
		r.Note != "1 of 3" {
		t.Errorf("several recipients: %+v", r)
	}
}

// TestOpenRowsAreKept: however many new rows a batch has, a page gets the changes of the rows that it shows as open.
func TestOpenRowsAreKept(t *testing.T) {
	entry := func(n byte, s parley.DeliveryState) admin.TimelineEntry {
		m := &admin.Summary{ID: parley.ID{n}, Kind: parley.Request}
		m.Deliveries = []index.Delivery{{State: s}}
		return admin.TimelineEntry{Message: m}
	}
	o := openRows{}
	first := entry(1, parley.Delivering)
	o.note(&first)
	var batch []admin.TimelineEntry
	for i := range 100 {
		batch = append(batch, entry(byte(200-i), parley.Answered))
	}
	batch = append(batch, entry(1, parley.Answered))
	got, missed := o.choose(batch)
	if len(got) != newMost+1 || missed != 100-newMost {
		t.Fatalf("%d rows, %d missed", len(got), missed)
	}
	if got[0].Message.ID != (parley.ID{1}) || got[newMost].Message.ID != (parley.ID{200}) {
		t.Error("not the open row and the newest ones, the oldest first")
	}
	if o.note(got[0]); len(o) != 0 {
		t.Error("a settled row counts as open")
	}
}

func TestAuditSaysHowItCameIn(t *testing.T) {
	for via, want := range map[string]string{"console": "ops-laptop via console", "": "ops-laptop"} {
		r := AuditRow{AuditEntry: admin.AuditEntry{Actor: "ops-laptop", Via: via}}
		if got := r.Who(); got != want {
			t.Errorf("via %q: %q", via, got)
		}
	}
}
