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
	x := said{Summary: &admin.Summary{ID: idOf(n), Time: after(ms), Kind: kind, From: from, To: to, Assurance: parley.Signed,
		Protocol: "samvad", Deliveries: list}}
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
		x.Protocol, x.Assurance, x.Skill, x.Preview, x.took = protocol, proof, skill, say, took
	}
}

func lossy(d index.Delivery, losses ...string) index.Delivery {
	d.Losses = losses
	return d
}

// rich is a conversation with everything that a diagram can show.
func rich() history {
	ms := time.Millisecond
	quote := lossy(to(merchant, step(3, parley.Delivering, 1, ""), step(415, parley.Answered, 1, "")), "Extensions.samvad: …")
	contract := lossy(to(notary, step(787, parley.Delivering, 1, ""), step(999, parley.Waiting, 1, parley.Unavailable),
		step(2000, parley.Delivering, 2, ""), step(2003, parley.Waiting, 2, parley.Unavailable),
		step(4009, parley.Delivering, 3, ""), step(4057, parley.Delivered, 3, ""), step(5999, parley.Answered, 3, "")),
		"Extensions.samvad.auth: credentials end at the hub")
	pick := lossy(to(picker, step(6904, parley.Delivering, 1, ""), step(6950, parley.Delivered, 1, ""), step(10337, parley.Answered, 1, "")),
		"Event.Kind: SAMVAD streams chunks, no states")
	dispatch := to(mason, step(1753546, parley.Delivering, 1, ""), step(1753550, parley.Waiting, 1, parley.Unavailable))
	dispatch.Next = after(1_795_000)
	dispatch.Error = &index.Reason{Code: parley.Unavailable, Text: "no such peer connected"}
	list := []said{
		entry(1, 0, parley.Request, buyer, merchant, saying("samvad", parley.Signed, "quote", `{"sku":"flour-550","kg":40}`, 2900*time.Microsecond), quote),
		entry(2, 415, parley.Response, merchant, buyer, saying("uagents", parley.Signed, "", `{"chf":71.20,"lot":"M-2231"}`, 1600*time.Microsecond),
			done(buyer, 416, parley.Delivered)),
		entry(3, 784, parley.Request, buyer, notary, func(x *said) {
			saying("samvad", parley.Signed, "contract", `{"type":"purchase","sku":"flour-550","kg":40}`, 3400*time.Microsecond)(x)
			x.attempts = map[string][]attempt{notary: {
				{1, &parley.Exchange{Protocol: "asp", Status: "503", Took: 212 * ms, Routed: ms, Written: 2 * ms}},
				{2, &parley.Exchange{Protocol: "asp", Status: "connection refused", Took: 3 * ms, Routed: ms, Written: 2 * ms}},
				{3, &parley.Exchange{Protocol: "asp", Status: "201", Took: 48 * ms, Routed: ms, Written: 2 * ms}}}}
		}, contract),
		entry(4, 5999, parley.Response, notary, buyer, func(x *said) {
			saying("asp", parley.Signed, "", `{"referenceId":"01a20457"}`, 2200*time.Microsecond)(x)
			x.Act, x.InReplyTo = "ACCEPT", idOf(3)
		}, done(buyer, 6001, parley.Delivered)),
		{refusal: &admin.Refusal{Ref: "qx3xtzmnablkaz7d", Time: after(6284), Source: "203.0.113.9", Claim: buyer, Step: "signature",
			Text: "signature does not verify", Assurance: parley.Unsigned, Protocol: "samvad"}},
		entry(5, 6902, parley.Request, buyer, picker, saying("samvad", parley.Signed, "pick", `{"bin":"Ä-17","kg":40}`, 2400*time.Microsecond), pick),
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
		entry(21, 1753546, parley.Notice, buyer, mason, saying("samvad", parley.Signed, "dispatch", "Abfahrt 06:00, Rampe 3 🚚", 2*ms), dispatch))...)
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
