package hub

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/internal/jqmap"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
)

func program(t *testing.T, source string) *jqmap.Program {
	t.Helper()
	p, err := jqmap.Compile(source)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestMappings(t *testing.T) {
	w := &wire{name: "wire", deliver: func(_ context.Context,
		o Outbound) Outcome {
		return Outcome{Answered: true, Parts: o.Message.Parts}
	}}
	h := start(t, nil, w)
	schema := []byte(`{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},` +
		`"required":["city","days"]}`)
	_, err := h.Directory().Put(t.Context(), parley.Agent{Name: "weather", Exposed: parley.Everywhere,
		Identities: []parley.Identity{{Protocol: "wire", ID: "weather"}},
		Skills: []parley.SkillSpec{{ID: "forecast", Input: schema, Default: true}, {ID: "free"},
			{ID: "told", Output: schema}}}, directory.FromOperator)
	if err != nil {
		t.Fatal(err)
	}
	endless := program(t, `def f: f; f`)
	endless.Time = 5 * time.Millisecond
	for _, c := range []struct {
		name, skill, content string
		maps                 []Mapping
		want                 string
		code                 parley.Code
	}{
		{"without", "forecast", `{"text":"Bern","n":1}`, nil, "", parley.InvalidContent},
		{"mapped", "forecast", `{"text":"Bern","n":1}`, []Mapping{{"weather", "forecast", false,
			program(t, `{city: .text, days: .n}`)}}, `{"city":"Bern","days":1}`, ""},
		{"of the default skill", "", `{"text":"Bern","n":1}`,
			[]Mapping{{"weather", "forecast", false, program(t, `{city: .text, days: .n}`)}},
			`{"city":"Bern","days":1}`, ""},
		{"what fits stays", "forecast", `{"city":"Zug", "days":2}`,
			[]Mapping{{"weather", "forecast", false, program(t, `{city: "other", days: 0}`)}},
			`{"city":"Zug", "days":2}`, ""},
		{"without a schema it is always applied", "free", `{"a":1}`,
			[]Mapping{{"weather", "free", false, program(t, `.a`)}}, `1`, ""},
		{"of another skill", "forecast", `{"a":1}`, []Mapping{{"weather", "free", false, program(t, `.a`)}},
			"", parley.InvalidContent},
		{"makes what does not fit", "forecast", `{"a":1}`, []Mapping{{"weather", "forecast", false,
			program(t, `{city: 1}`)}}, "", parley.InvalidContent},
		{"fails", "forecast", `{"a":1}`, []Mapping{{"weather", "forecast", false, program(t, `.a.b`)}},
			"", parley.InvalidContent},
		{"takes too long", "forecast", `{"a":1}`, []Mapping{{"weather", "forecast", false, endless}},
			"", parley.TooLarge},
		{"knows the sender", "free", `{}`, []Mapping{{"weather", "free", false, program(t, `$message.from`)}},
			`"alice"`, ""},
		{"of the answer", "told", `{"c":"Bern"}`, []Mapping{{"weather", "told", true,
			program(t, `{city: .c, days: 3}`)}}, `{"city":"Bern","days":3}`, ""},
		{"an answer that fits stays", "told", `{"city":"Bern","days":4}`,
			[]Mapping{{"weather", "told", true, program(t, `1`)}}, `{"city":"Bern","days":4}`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			h.SetMappings(c.maps)
			s := ask("weather", c.skill, "")
			s.Message.Parts = []parley.Part{{MediaType: "application/json", Data: []byte(c.content)}}
			m, err := h.Ask(t.Context(), s)
			switch {
			case c.code != "":
				if parley.CodeOf(err) != c.code || strings.Contains(parley.AsError(err).Text, "jq") {
					t.Errorf("%+v, %v; want %s", m, err, c.code)
				}
			case err != nil || m.Kind != parley.Response || string(m.Parts[0].Data) != c.want:
				t.Errorf("%+v, %v; want %s", m, err, c.want)
			}
		})
	}
	t.Run("an answer that cannot be mapped is a failure", func(t *testing.T) {
		h.SetMappings([]Mapping{{"weather", "told", true, program(t, `.c.d`)}})
		s := ask("weather", "told", "")
		s.Message.Parts = []parley.Part{{MediaType: "application/json", Data: []byte(`{"c":"Bern"}`)}}
		m, err := h.Ask(t.Context(), s)
		if err != nil || m.Kind != parley.Failure || m.Error.Code != parley.InvalidContent || len(m.Parts) != 0 {
			t.Errorf("%+v, %v", m, err)
		}
	})
}

// losses of every reply, for callers of a lossy protocol.
func losses(reply, _ *parley.Message) []parley.Loss {
	return []parley.Loss{{Field: "Lost." + reply.Kind.String(), Reason: "it is so"}}
}

// TestLossesOfReplies: the losses of events and replies without a delivery of their
// own are recorded with the delivery of their request.
func TestLossesOfReplies(t *testing.T) {
	far := &wire{name: "far", deliver: func(_ context.Context, o Outbound) Outcome {
		for range 3 {
			if err := o.Event(parley.Working); err != nil {
				t.Error(err)
			}
		}
		return Outcome{Answered: true, Parts: []parley.Part{parley.Text("yes")},
			Losses: []parley.Loss{{Field: "Act", Reason: "none"}}}
	}}
	near := &wire{name: "near", can: Capabilities{ReplyLosses: losses}}
	own := make(chan []parley.Loss, 16)
	h := start(t, nil, far, near)
	j := h.Journal()
	stop := j.Watch(func(r *journal.Record) {
		for _, s := range r.Steps {
			if s.State == parley.Answered {
				own <- s.Losses
			}
		}
	})
	defer stop()
	h.agent(t, "bob", parley.Identity{Protocol: "far", ID: "bob"})
	s := ask("bob", "", "?")
	s.Message.Origin.Protocol = "near"
	if m, err := h.Ask(t.Context(), s); err != nil || m.Text() != "yes" {
		t.Fatalf("%+v, %v", m, err)
	}
	got := <-own
	fields := map[string]int{}
	for _, l := range got {
		fields[l.Field]++
	}
	if len(got) != 3 || fields["Act"] != 1 || fields["Lost.event"] != 1 || fields["Lost.response"] != 1 {
		t.Errorf("%v", got)
	}

	// An answer that comes later, by itself.
	far.deliver = func(context.Context, Outbound) Outcome {
		return Outcome{Losses: []parley.Loss{{Field: "Act", Reason: "none"}}}
	}
	s = ask("bob", "", "?")
	s.Message.Origin.Protocol = "near"
	id, err := parley.NewID(time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s.Message.ID = id
	done := make(chan error, 1)
	go func() {
		_, err := h.Ask(t.Context(), s)
		done <- err
	}()
	for v, _ := j.Delivery(id, "bob"); v.State != parley.Delivered; v, _ = j.Delivery(id, "bob") {
		wait(t, h)
	}
	if _, err := h.Accept(t.Context(), Submission{Message: &parley.Message{Kind: parley.Response,
		From: "bob", InReplyTo: id,
		Origin: parley.Origin{Protocol: "far", Verdict: parley.Verdict{Assurance: parley.Session}}}}); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := <-own; len(got) != 2 || got[0].Field != "Act" || got[1].Field != "Lost.response" {
		t.Errorf("%v", got)
	}
}

// TestLossesOfEventsOutlastTheHub: the hub ends between an event and the answer; the
// event's losses are recorded with the answer nevertheless, or with the failure of a
// request without an answer.
func TestLossesOfEventsOutlastTheHub(t *testing.T) {
	dir := t.TempDir()
	reopen := func() *journal.Journal {
		j, err := journal.Open(t.Context(), journal.Config{Store: testjournal.Disk(t, dir)})
		if err != nil {
			t.Fatal(err)
		}
		return j
	}
	far := func() *wire {
		return &wire{name: "far", deliver: func(_ context.Context, o Outbound) Outcome {
			if err := o.Event(parley.Working); err != nil {
				t.Error(err)
			}
			return Outcome{Losses: []parley.Loss{{Field: "Act", Reason: "none"}}}
		}}
	}
	j := reopen()
	begin := func() *Hub {
		h := start(t, func(c *Config) { c.Journal = j }, far(),
			&wire{name: "near", can: Capabilities{ReplyLosses: losses}})
		h.agent(t, "bob", parley.Identity{Protocol: "far", ID: "bob"})
		return h
	}
	h := begin()
	var asked [2]parley.ID
	for i := range asked {
		s := ask("bob", "", "?")
		s.Message.Origin.Protocol, s.Message.Deadline = "near", time.Now().Add(time.Hour)
		m, err := h.Accept(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		asked[i] = m.ID
		until(t, func() bool { v, ok := j.Delivery(m.ID, "bob"); return ok && v.State == parley.Delivered })
	}
	end := func() {
		if err := h.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	}
	end()
	j = reopen()
	h = begin()
	defer end()
	ended := make(chan journal.Step, 4)
	defer j.Watch(func(r *journal.Record) {
		for _, s := range r.Steps {
			ended <- s
		}
	})()
	if _, err := h.Accept(t.Context(), Submission{Message: &parley.Message{Kind: parley.Response,
		From: "bob", InReplyTo: asked[0],
		Origin: parley.Origin{Protocol: "far", Verdict: parley.Verdict{Assurance: parley.Session}}}}); err != nil {
		t.Fatal(err)
	}
	v, _ := j.Delivery(asked[1], "bob")
	h.endOverdue(asked[1], "bob", v.Position)
	for i, last := range []string{"response", "error"} {
		s := <-ended
		var fields []string
		for _, l := range s.Losses {
			fields = append(fields, l.Field)
		}
		slices.Sort(fields)
		if want := []string{"Act", "Lost." + last, "Lost.event"}; s.Message != asked[i] || s.State != parley.Answered ||
			!slices.Equal(fields, slices.Sorted(slices.Values(want))) {
			t.Errorf("%s lost %v, want %v", s, fields, want)
		}
	}
}

// TestEventsWithoutWords: an event that the requester's protocol cannot carry is
// recorded, is not delivered, and is a loss of its request.
func TestEventsWithoutWords(t *testing.T) {
	noEvents := func(*parley.Message) bool { return false }
	can := Capabilities{CarriesReplies: true, CarriesEvent: noEvents, ReplyLosses: losses}
	near := &wire{name: "near", can: can, deliver: func(_ context.Context, o Outbound) Outcome {
		if o.Message.Kind != parley.Response {
			t.Errorf("it is delivered: %s", o.Message.Kind)
		}
		return Outcome{}
	}}
	h := start(t, nil, near, &wire{name: "far", deliver: func(_ context.Context, o Outbound) Outcome {
		if err := o.Event(parley.Working); err != nil {
			t.Error(err)
		}
		return Outcome{Answered: true, Parts: []parley.Part{parley.Text("yes")}}
	}})
	h.agent(t, "alice", parley.Identity{Protocol: "near", ID: "alice"})
	h.agent(t, "bob", parley.Identity{Protocol: "far", ID: "bob"})
	type said struct {
		kind   parley.Kind
		opened int
		losses []parley.Loss
	}
	records := make(chan said, 16)
	defer h.Journal().Watch(func(r *journal.Record) {
		if r.Message != nil && !r.Message.InReplyTo.IsZero() {
			s := said{r.Message.Kind, len(r.Open), r.Losses}
			for _, step := range r.Steps {
				s.losses = append(s.losses, step.Losses...)
			}
			records <- s
		}
	})()
	s := ask("bob", "", "?")
	s.Message.Origin.Protocol = "near"
	m, err := h.Accept(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	lost := parley.Loss{Field: "Lost.event", Reason: "it is so"}
	if e := <-records; e.kind != parley.Event || e.opened != 0 || !slices.Equal(e.losses, []parley.Loss{lost}) {
		t.Errorf("%+v", e)
	}
	if r := <-records; r.kind != parley.Response || r.opened != 1 || !slices.Equal(r.losses, []parley.Loss{lost}) {
		t.Errorf("%+v", r)
	}
	until(t, func() bool {
		_, open := h.Journal().Delivery(m.ID, "bob")
		return !open && len(h.Journal().Deliveries(journal.Filter{})) == 0
	})
}
