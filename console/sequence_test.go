package console

import (
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/journal/index"
)

var update = flag.Bool("update", false, "write the golden files")

var day = time.Date(2026, 11, 22, 14, 2, 7, 118e6, time.UTC)

func after(ms int) time.Time { return day.Add(time.Duration(ms) * time.Millisecond) }

func idOf(n int) parley.ID { return parley.ID{0x01, 0xa2, 0x04, 0x57, 14: byte(n >> 8), 15: byte(n)} }

// step is a step of a delivery: its time in ms, state, attempt and code.
func step(ms int, s parley.DeliveryState, attempt int, code parley.Code) index.Step {
	return index.Step{Time: after(ms), State: s, Attempt: attempt, Code: code}
}

// to is a delivery with these steps.
func to(name string, steps ...index.Step) index.Delivery {
	last := steps[len(steps)-1]
	return index.Delivery{To: name, State: last.State, Attempts: last.Attempt, Steps: steps, Opened: steps[0].Time}
}

// done is a delivery at the first attempt.
func done(name string, ms int, s parley.DeliveryState) index.Delivery {
	return to(name, step(ms, parley.Delivering, 1, ""), step(ms+3, s, 1, ""))
}

// entry makes a message.
func entry(n, ms int, kind parley.Kind, from, to string, change func(*said), list ...index.Delivery) said {
	x := said{Summary: &admin.Summary{ID: idOf(n), Time: after(ms), Kind: kind, From: from, To: to,
		Assurance: parley.Signed,
		Protocol:  "samvad", Deliveries: list}}
	if change != nil {
		change(&x)
	}
	return x
}

func historyOf(list ...said) history {
	return history{hub: "hub-5f0c", now: after(1_754_000), start: list[0].at(), said: list, first: true,
		link: func(id string) string { return "?m=" + id }}
}

const (
	buyer    = "acme/buyer"
	notary   = "legal/notary"
	picker   = "warehouse/picker-3"
	mason    = "plant-7/mason"
	merchant = "guest/uagents/agent1qw6tjrs7ul3lvk8ntshl7sl9laer2ewq0v7ux2wkm97cd9hw6nuxgly0np-1feedd34"
)

func saying(protocol string, proof parley.Assurance, skill, say string, took time.Duration) func(*said) {
	return func(x *said) {
		x.Protocol, x.Assurance, x.Skill, x.Preview = protocol, proof, skill, say
		if took > 0 {
			x.times = admin.Times{Received: x.Time.Add(-took), Recorded: x.Time}
		}
	}
}

func lossy(d index.Delivery, losses ...string) index.Delivery {
	d.Losses = losses
	return d
}

func dur(d time.Duration) admin.Duration { return admin.Duration(d) }

// rich is a conversation with everything that a diagram can show.
func rich() history {
	ms := time.Millisecond
	quote := lossy(to(merchant, step(3, parley.Delivering, 1, ""), step(415, parley.Answered, 1, "")),
		"Extensions.samvad: …")
	contract := lossy(to(notary, step(787, parley.Delivering, 1, ""), step(999, parley.Waiting, 1, parley.Unavailable),
		step(2000, parley.Delivering, 2, ""), step(2003, parley.Waiting, 2, parley.Unavailable),
		step(4009, parley.Delivering, 3, ""), step(4057, parley.Delivered, 3, ""), step(5999, parley.Answered, 3, "")),
		"Extensions.samvad.auth: credentials end at the hub")
	pick := lossy(to(picker, step(6904, parley.Delivering, 1, ""), step(6950, parley.Delivered, 1, ""),
		step(10337, parley.Answered, 1, "")),
		"Event.Kind: SAMVAD streams chunks, no states")
	dispatch := to(mason, step(1753546, parley.Delivering, 1, ""), step(1753550, parley.Waiting, 1, parley.Unavailable))
	dispatch.Next = after(1_795_000)
	dispatch.Error = &index.Reason{Code: parley.Unavailable, Text: "no such peer connected"}
	list := []said{
		entry(1, 0, parley.Request, buyer, merchant, saying("samvad", parley.Signed, "quote",
			`{"sku":"flour-550","kg":40}`, 2900*time.Microsecond), quote),
		entry(2, 415, parley.Response, merchant, buyer, saying("uagents", parley.Signed, "",
			`{"chf":71.20,"lot":"M-2231"}`, 1600*time.Microsecond),
			done(buyer, 416, parley.Delivered)),
		entry(3, 784, parley.Request, buyer, notary, func(x *said) {
			saying("samvad", parley.Signed, "contract", `{"type":"purchase","sku":"flour-550","kg":40}`,
				3400*time.Microsecond)(x)
			x.attempts = map[string][]admin.Attempt{notary: {
				{Number: 1, Protocol: "asp", Status: "503", Took: dur(212 * ms), Routed: dur(ms), Written: dur(2 * ms)},
				{Number: 2, Protocol: "asp", Status: "connection refused", Took: dur(3 * ms), Routed: dur(ms),
					Written: dur(2 * ms)},
				{Number: 3, Protocol: "asp", Status: "201", Took: dur(48 * ms), Routed: dur(ms), Written: dur(2 * ms)}}}
		}, contract),
		entry(4, 5999, parley.Response, notary, buyer, func(x *said) {
			saying("asp", parley.Signed, "", `{"referenceId":"01a20457"}`, 2200*time.Microsecond)(x)
			x.Act, x.InReplyTo = "ACCEPT", idOf(3)
		}, done(buyer, 6001, parley.Delivered)),
		{refusal: &admin.Refusal{Ref: "qx3xtzmnablkaz7d", Time: after(6284), Source: "203.0.113.9",
			Claim: buyer, Step: "signature",
			Text: "signature does not verify", Assurance: parley.Unsigned, Protocol: "samvad"}},
		entry(5, 6902, parley.Request, buyer, picker, saying("samvad", parley.Signed, "pick",
			`{"bin":"Ä-17","kg":40}`, 2400*time.Microsecond), pick),
	}
	list[1].InReplyTo = idOf(1)
	for n := range 14 {
		list = append(list, entry(6+n, 7138+n*246, parley.Event, picker, buyer, func(x *said) {
			saying("a2e", parley.Session, "", strconv.Itoa(n*7)+" percent · 東側の棚", 0)(x)
			x.State, x.InReplyTo, x.untold = parley.Working, idOf(5), "SAMVAD streams chunks, no states"
		}))
	}
	return historyOf(append(list,
		entry(20, 10337, parley.Response, picker, buyer, func(x *said) {
			saying("a2e", parley.Session, "", `{"picked":40,"pallet":"P-0093"}`, 1800*time.Microsecond)(x)
			x.InReplyTo = idOf(5)
		}),
		entry(21, 1753546, parley.Notice, buyer, mason, saying("samvad", parley.Signed, "dispatch",
			"Abfahrt 06:00, Rampe 3 🚚", 2*ms), dispatch))...)
}

// element is an element of a diagram.
type element struct {
	name string
	data map[string]string
	text string
}

// parse reads a diagram as XML.
func parse(t testing.TB, svg string) (out []element) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(svg))
	var open []int
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatalf("not XML: %v\n%s", err, svg)
		}
		switch v := token.(type) {
		case xml.StartElement:
			e := element{name: v.Name.Local, data: map[string]string{}}
			for _, a := range v.Attr {
				e.data[a.Name.Local] = a.Value
			}
			open = append(open, len(out))
			out = append(out, e)
		case xml.EndElement:
			open = open[:len(open)-1]
		case xml.CharData:
			if len(open) > 0 {
				out[open[len(open)-1]].text += string(v)
			}
		}
	}
}

// rowsOf are the rows of a diagram.
func rowsOf(all []element) (out []element) {
	for _, e := range all {
		if e.data["data-row"] != "" {
			out = append(out, e)
		}
	}
	return out
}

func TestRichSequence(t *testing.T) {
	h := rich()
	h.chosen = idOf(3).String()
	got := string(draw(sequenceOf(h)))
	parse(t, got)
	const golden = "testdata/sequence.svg"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the diagram differs from %s; go test ./console -run TestRichSequence -update writes it anew", golden)
	}
}

// drawnRows are the rows of the diagram of a history.
func drawnRows(t testing.TB, h history) []element {
	return rowsOf(parse(t, string(draw(sequenceOf(h)))))
}

// A rowCase is an entry, and what its row has.
type rowCase struct {
	x    said
	want map[string]string
	text []string // that the row has
	not  []string
}

func asked(d index.Delivery) said { return entry(1, 0, parley.Request, "a", "b", nil, d) }

func waiting(d index.Delivery, next int) index.Delivery {
	d.Next = after(next)
	return d
}

func failed(d index.Delivery, text string) index.Delivery {
	d.Error = &index.Reason{Code: parley.Unavailable, Text: text}
	return d
}

// rowCases are the rules for one row of the diagram.
var rowCases = map[string]rowCase{
	"delivered and answered": {asked(done("b", 1, parley.Answered)),
		map[string]string{"data-beads": "8", "data-attempts": "1", "data-failed": "0",
			"data-state": "answered"}, nil, []string{"num1"}},
	"delivered, not answered": {asked(done("b", 1, parley.Delivered)), map[string]string{"data-beads": "7",
		"data-state": "delivered"}, nil, nil},
	"a notice is settled with its delivery": {entry(1, 0, parley.Notice, "a", "b", nil, done("b", 1,
		parley.Delivered)),
		map[string]string{"data-beads": "8"}, nil, nil},
	"recorded, not tried": {asked(to("b", step(0, parley.Waiting, 0, ""))),
		map[string]string{"data-beads": "4", "data-attempts": "0", "data-state": "waiting"},
		[]string{"not tried yet", "#i-clock"}, nil},
	"in flight": {asked(to("b", step(0, parley.Delivering, 1, ""))),
		map[string]string{"data-beads": "4", "data-attempts": "1", "data-failed": "0",
			"data-state": "delivering"}, []string{"num1 pend"}, nil},
	"failed once, waits": {asked(waiting(failed(to("b", step(0, parley.Delivering, 1, ""), step(212,
		parley.Waiting, 1, parley.Unavailable)),
		"503"), 1_795_000)),
		map[string]string{"data-beads": "4", "data-attempts": "1", "data-failed": "1", "data-state": "waiting"},
		[]string{"503 after 212 ms", "next 14:32:02, in 41 s", "#i-x"}, nil},
	"the pause between attempts": {asked(to("b", step(0, parley.Delivering, 1, ""), step(100,
		parley.Waiting, 1, parley.Unavailable),
		step(2100, parley.Delivering, 2, ""), step(2200, parley.Delivered, 2, ""))),
		map[string]string{"data-attempts": "2", "data-failed": "1", "data-beads": "7"},
		[]string{"unavailable after 100 ms", "paused 2.0 s"}, nil},
	"given up": {asked(failed(to("b", step(0, parley.Delivering, 1, ""), step(3, parley.Dead, 1,
		parley.Unavailable)), "refused")),
		map[string]string{"data-state": "dead", "data-failed": "1"},
		[]string{"refused after 3.0 ms, given up"}, nil},
	"expired without an attempt": {asked(failed(to("b", step(0, parley.Waiting, 0, ""), step(9,
		parley.Expired, 0, parley.Stale)), "too late")),
		map[string]string{"data-state": "expired"}, []string{"expired: too late", "#i-x"}, nil},
	"losses of the way, not of the answer": {asked(lossy(done("b", 1, parley.Answered), "Schema: no place",
		"Reply.Name: no place", "Event.Kind: no word")),
		map[string]string{"data-lost": "1"}, []string{"1 lost"}, nil},
	"an event that nobody is told": {entry(1, 0, parley.Event, "b", "a",
		func(x *said) { x.untold = "no word for progress" }),
		map[string]string{"data-untold": "1", "data-state": "untold", "data-beads": "4"},
		[]string{"not told to a: no word for progress", "#i-loss"}, nil},
	"an answer without a delivery": {entry(1, 0, parley.Response, "b", "a", nil),
		map[string]string{"data-beads": "5", "data-untold": "0"}, []string{"own"}, []string{"#i-loss"}},
	"refused, but recorded": {entry(1, 0, parley.Request, "a", "b", func(x *said) {
		x.Refused, x.Failed, x.Error = true, true, &index.Reason{Code: parley.Forbidden, Text: "not exposed"}
	}), map[string]string{"data-state": "refused"}, []string{"#i-refused", "not admitted: not exposed",
		"recorded, not delivered"}, nil},
	"refused before it was recorded": {said{refusal: &admin.Refusal{Ref: "qx3xtzmn", Time: day,
		Source: "203.0.113.9", Claim: "a", Step: "signature",
		Text: "does not verify"}}, map[string]string{"data-row": "refusal", "data-id": "qx3xtzmn",
		"data-state": "refused", "data-beads": "1"},
		[]string{"never recorded", "203.0.113.9", "claims a", "ref qx3xtzmn"}, nil},
	"an exchange tells how far an attempt came": {func() said {
		x := asked(waiting(to("b", step(0, parley.Delivering, 1, ""), step(5, parley.Waiting, 1,
			parley.Unavailable)), 1_795_000))
		x.attempts = map[string][]admin.Attempt{"b": {{Number: 1, Status: "no route", Routed: 1, Took: 7e6}}}
		return x
	}(), map[string]string{"data-beads": "5"}, []string{"no route after 7.0 ms"}, nil},
	"erased": {entry(1, 0, parley.Notice, "a", "b", func(x *said) {
		x.erased = &admin.Erasure{What: "agent", By: "ops", Begun: day}
	}, done("b", 1, parley.Delivered)), map[string]string{"data-beads": "8"},
		[]string{"erased 22 Nov 2026, 14:02"}, nil},
	"removed": {entry(1, 0, parley.Notice, "a", "b", func(x *said) { x.removed = true }, done("b", 1,
		parley.Delivered)),
		map[string]string{"data-beads": "8"}, []string{"removed by retention"}, nil},
}

func TestRowsOfSequence(t *testing.T) {
	for name, c := range rowCases {
		t.Run(name, func(t *testing.T) {
			svg := string(draw(sequenceOf(historyOf(entry(9, 0, parley.Notice, "a", "b", nil, done("b", 0,
				parley.Delivered)), c.x))))
			rows := rowsOf(parse(t, svg))
			for k, v := range c.want {
				if got := rows[1].data[k]; got != v {
					t.Errorf("%s is %q, want %q", k, got, v)
				}
			}
			row := svg[strings.LastIndex(svg, "<a "):]
			for _, s := range c.text {
				if !strings.Contains(row, s) {
					t.Errorf("the row has no %q:\n%s", s, row)
				}
			}
			for _, s := range c.not {
				if strings.Contains(row, s) {
					t.Errorf("the row has %q:\n%s", s, row)
				}
			}
			if rows[1].data["href"] == "" || !strings.Contains(row, "<desc id=\"d-"+rows[1].data["data-id"]) {
				t.Errorf("the row is no link with a sentence: %v", rows[1].data)
			}
		})
	}
}

// TestSessionIsNotVerified: the word is for signatures alone.
func TestSessionIsNotVerified(t *testing.T) {
	for _, a := range []parley.Assurance{parley.Unsigned, parley.Session, parley.Signed} {
		x := entry(1, 0, parley.Notice, "a", "b", func(x *said) { x.Assurance = a }, done("b", 0, parley.Delivered))
		svg := string(draw(sequenceOf(historyOf(x))))
		row := svg[strings.Index(svg, "<a "):strings.Index(svg, "</a>")]
		if got, want := strings.Contains(row, "verified"), a == parley.Signed; got != want {
			t.Errorf("%s: verified is said: %v", a, got)
		}
	}
}

func TestFolding(t *testing.T) {
	event := func(n, ms int, change func(*said), list ...index.Delivery) said {
		return entry(n, ms, parley.Event, "b", "a", func(x *said) {
			x.State, x.InReplyTo = parley.Working, idOf(1)
			if change != nil {
				change(x)
			}
		}, list...)
	}
	ask := entry(1, 0, parley.Request, "a", "b", nil, done("b", 1, parley.Delivered))
	failing := to("a", step(0, parley.Delivering, 1, ""), step(5, parley.Waiting, 1, parley.Unavailable))
	for name, c := range map[string]struct {
		list  []said
		all   bool
		kinds string // of the rows
	}{
		"two are not folded": {[]said{ask, event(2, 10, nil), event(3, 20, nil)}, false,
			"message message message"},
		"three are": {[]said{ask, event(2, 10, nil), event(3, 20, nil), event(4, 30, nil)},
			false, "message events"},
		"unless all are wanted": {[]said{ask, event(2, 10, nil), event(3, 20, nil), event(4, 30, nil)}, true,
			"message message message message"},
		"another state ends them": {[]said{event(2, 10, nil), event(3, 20,
			func(x *said) { x.State = parley.NeedsInput }), event(4, 30, nil)}, false, "message message message"},
		"another request ends them": {[]said{event(2, 10, nil), event(3, 20,
			func(x *said) { x.InReplyTo = idOf(7) }), event(4, 30, nil)}, false,
			"message message message"},
		"a failure is never folded": {[]said{event(2, 10, nil), event(3, 20, nil, failing), event(4, 30, nil),
			event(5, 40, nil), event(6, 50, nil)}, false,
			"message message events"},
		"what is between them stays": {[]said{event(2, 10, nil), event(3, 20, nil), ask, event(4, 30, nil)},
			false, "message message message message"},
	} {
		t.Run(name, func(t *testing.T) {
			h := historyOf(c.list...)
			h.events = c.all
			var kinds []string
			folded := 0
			for _, r := range drawnRows(t, h) {
				kinds = append(kinds, r.data["data-row"])
				n, _ := strconv.Atoi(r.data["data-folded"])
				folded += max(n, 1)
			}
			if got := strings.Join(kinds, " "); got != c.kinds || folded != len(c.list) {
				t.Errorf("rows %q for %d entries, want %q for %d", got, folded, c.kinds, len(c.list))
			}
		})
	}
}

// TestNothingIsHidden: silence, entries that a filter hides, and what was removed have rows of their own.
func TestNothingIsHidden(t *testing.T) {
	say := func(n, ms int, list ...index.Delivery) said {
		return entry(n, ms, parley.Notice, "a", "b", nil, list...)
	}
	ok := func(ms int) index.Delivery { return done("b", ms, parley.Delivered) }
	bad := to("b", step(0, parley.Delivering, 1, ""), step(5, parley.Dead, 1, parley.Unavailable))
	pills := func(h history) (out []string) {
		for _, r := range sequenceOf(h).Rows {
			if r.Kind == SilenceRow || r.Kind == GapRow {
				out = append(out, string(r.Kind)+": "+r.Text)
			} else {
				out = append(out, r.ID[len(r.ID)-1:])
			}
		}
		return out
	}
	quiet := historyOf(say(1, 0, ok(0)), say(2, 60_000, ok(0)), say(3, 121_000, ok(0)))
	filtered := historyOf(say(1, 0, ok(0)), say(2, 1000, bad), say(3, 200_000, ok(0)), say(4, 200_001, ok(0)))
	filtered.failed = true
	removed := historyOf(say(1, 0, ok(0)))
	removed.gaps = []string{"begins later: request 01a20457… was removed"}
	for name, c := range map[string]struct {
		h    history
		want []string
	}{
		"more than a minute of silence": {quiet, []string{"1", "2", "silence: 1 min 1 s of silence", "3"}},
		"a filter": {filtered, []string{"gap: 1 entry that did not fail is not shown", "2",
			"gap: 2 entries that did not fail are not shown"}},
		"removed": {removed, []string{"gap: begins later: request 01a20457… was removed", "1"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := strings.Join(pills(c.h), "\n"); got != strings.Join(c.want, "\n") {
				t.Errorf("rows\n%s\nwant\n%s", got, strings.Join(c.want, "\n"))
			}
		})
	}
}

func TestLanes(t *testing.T) {
	var star, many []said
	for i := range 14 {
		name := "agent-" + string(rune('a'+i))
		for n := range 15 - i {
			x := entry(100*i+n, 1000*i+n, parley.Notice, "start", name, nil, done(name, 0, parley.Delivered))
			if many = append(many, x); i < 4 {
				star = append(star, x)
			}
		}
	}
	names := func(s *Sequence) (left, right []string) {
		for i, l := range s.Lanes {
			if i < s.Left {
				left = append(left, l.Name)
			} else {
				right = append(right, l.Name)
			}
		}
		return left, right
	}
	s := sequenceOf(historyOf(star...))
	left, right := names(s)
	if got := strings.Join(left, " ") + " | " + strings.Join(right,
		" "); got != "agent-d start | agent-a agent-b agent-c" {
		t.Errorf("lanes %q: the initiator is left, the busiest are beside the hub", got)
	}
	s = sequenceOf(historyOf(many...))
	if n := len(s.Lanes); n != maxLanes {
		t.Fatalf("%d lanes", n)
	}
	others := s.Lanes[maxLanes-1]
	if others.Name != "others" || len(others.Agents) != 8 {
		t.Errorf("the last lane is %v", others)
	}
	for _, r := range s.Rows {
		if r.From < 0 || r.From >= maxLanes || r.Wires[0].To < 0 || r.Wires[0].To >= maxLanes {
			t.Fatalf("a row without a lane: %+v", r)
		}
	}
}

// TestTurns: a wire to a lane on the sender's side, or to who takes a message by itself, turns at the seventh bead.
func TestTurns(t *testing.T) {
	ask := entry(1, 0, parley.Request, "a", "b", nil, done("b", 0, parley.Answered))
	plain := sequenceOf(historyOf(ask))
	handler := ask
	d := done("b", 0, parley.Answered)
	d.Protocol = "go"
	m := *ask.Summary
	m.Deliveries = []index.Delivery{d}
	handler.Summary = &m
	own := sequenceOf(historyOf(handler))
	self := sequenceOf(historyOf(entry(1, 0, parley.Request, "a", "a", nil, done("a", 0, parley.Answered))))
	for name, c := range map[string]struct {
		s     *Sequence
		turns bool
	}{"across": {plain, false}, "a handler": {own, true}, "itself": {self, true}} {
		x := &svg{s: c.s}
		x.layout()
		if got := x.tracks(&c.s.Rows[0])[0].dy > 0; got != c.turns {
			t.Errorf("%s: turns: %v", name, got)
		}
	}
}

// TestManyAttempts: all are counted, the first and the last are drawn.
func TestManyAttempts(t *testing.T) {
	var steps []index.Step
	for n := range 40 {
		steps = append(steps, step(1000*n, parley.Delivering, n+1, ""), step(1000*n+5, parley.Waiting, n+1,
			parley.Unavailable))
	}
	svg := string(draw(sequenceOf(historyOf(entry(1, 0, parley.Notice, "a", "b", nil, to("b", steps...))))))
	r := rowsOf(parse(t, svg))[0]
	if r.data["data-attempts"] != "40" || r.data["data-failed"] != "40" {
		t.Errorf("%v", r.data)
	}
	if n := strings.Count(svg, "num1 s-bad"); n != mostTracks || !strings.Contains(svg,
		"28 attempts before it not drawn") || !strings.Contains(svg, ">40<") {
		t.Errorf("%d rings", n)
	}
}

// TestTextsOfGuests: no text of a guest is markup, hides, or is long.
func TestTextsOfGuests(t *testing.T) {
	evil := `</text><script>alert(1)</script>" onload="x" <b>&amp;` + "\x00\x1b[31m\u202emoc.live\u200b\xff\n"
	long := strings.Repeat("語<", 350_000)
	for name, text := range map[string]string{"markup": evil, "1 MB": long} {
		x := entry(1, 0, parley.Failure, text, text+"/"+text, func(x *said) {
			x.Skill, x.Act, x.Preview, x.Protocol, x.untold = text, text, text, text, text
			x.Error = &index.Reason{Code: parley.Code(text), Text: text, Detail: text}
		}, lossy(done(text, 0, parley.Delivered), text))
		bad := to(text+"2", step(0, parley.Delivering, 1, ""), step(5, parley.Waiting, 1, parley.Code(text)))
		bad.Error = &index.Reason{Code: parley.Code(text), Text: text}
		h := historyOf(x, entry(2, 10, parley.Request, "b", text, func(x *said) { x.Skill = text }, bad),
			said{refusal: &admin.Refusal{Ref: text, Time: after(11), Source: text, Claim: text, Step: text,
				Text: text}})
		h.hub, h.gaps = text, []string{text}
		svg := string(draw(sequenceOf(h)))
		all := parse(t, svg)
		if len(svg) > 60_000 {
			t.Errorf("%s: %d bytes", name, len(svg))
		}
		for _, e := range all {
			switch e.name {
			case "svg", "rect", "line", "g", "path", "a", "desc", "text", "tspan", "circle", "title", "use":
			default:
				t.Errorf("%s: an element %q", name, e.name)
			}
			for k := range e.data {
				if strings.HasPrefix(k, "on") || k == "style" {
					t.Errorf("%s: an attribute %q", name, k)
				}
			}
		}
		if strings.ContainsFunc(svg, hidden) {
			t.Errorf("%s: characters that hide", name)
		}
	}
}

// TestTextsDoNotOverlap: what is written in the hub's column has a line for itself, and ends before the duration.
func TestTextsDoNotOverlap(t *testing.T) {
	wide := strings.Repeat("Mm語", 40)
	h := rich()
	for i := range h.said {
		if s := h.said[i].Summary; s != nil {
			s.Skill, s.Preview = wide, wide
		}
	}
	for _, h := range []history{rich(), h} {
		s := sequenceOf(h)
		d := &svg{s: s}
		d.layout()
		type box struct{ x, y, end float64 }
		var boxes []box
		for _, e := range parse(t, string(draw(s))) {
			char := map[string]float64{"ms": charSmall, "sm f-bad": charSmall, "sm f-loss": charSmall,
				"gapt": charSmall}[e.data["class"]]
			x, _ := strconv.ParseFloat(e.data["x"], 64)
			y, _ := strconv.ParseFloat(e.data["y"], 64)
			if e.name != "text" || char == 0 || y < firstRow {
				continue
			}
			b := box{x, y, x + cells(e.text)*char}
			switch e.data["text-anchor"] {
			case "end":
				b.x, b.end = x-(b.end-x), x
			case "middle":
				b.x, b.end = x-(b.end-x)/2, x+(b.end-x)/2
			}
			for _, o := range boxes {
				if o.y-b.y < 10 && b.y-o.y < 10 && o.x < b.end && b.x < o.end {
					t.Errorf("%q overlaps another text at %v", e.text, o)
				}
			}
			boxes = append(boxes, b)
		}
		if len(boxes) < 8 {
			t.Errorf("only %d texts", len(boxes))
		}
	}
}

func TestWork(t *testing.T) {
	s := sequenceOf(rich())
	var got []string
	for _, w := range s.Work {
		got = append(got, s.Lanes[w.Lane].Name+" "+w.Label)
	}
	if want := "412 ms, notary 1.9 s, picker-3 3.4 s"; !strings.HasSuffix(strings.Join(got, ", "), want) ||
		len(got) != 3 {
		t.Errorf("at work: %v", got)
	}
}

// page200 is a page with 200 rows.
func page200() history {
	h := rich()
	var list []said
	for i := range 200 {
		x := h.said[i%6]
		if x.refusal == nil {
			m := *x.Summary
			m.ID, m.Time = idOf(1000+i), after(i*100)
			x.Summary = &m
		}
		list = append(list, x)
	}
	return historyOf(list...)
}

func BenchmarkSequence(b *testing.B) {
	h := page200()
	b.ReportAllocs()
	for b.Loop() {
		draw(sequenceOf(h))
	}
}
