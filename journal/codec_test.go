package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/parley-hub/parley"
)

func sampleID(n byte) (id parley.ID) {
	for i := range id {
		id[i] = n + byte(i)
	}
	return id
}

// sample is a record with every field set and an envelope of about size bytes.
func sample(size int) *logRecord {
	raw := []byte(`{"version":"1","body":{"city":"Bern","note":"` + strings.Repeat("x", max(0, size-80)) +
		`"},"ext":{"a":1}}`)
	body := raw[bytes.Index(raw, []byte(`{"city"`)) : len(raw)-len(`,"ext":{"a":1}}`)]
	ext := raw[len(raw)-len(`{"a":1}}`) : len(raw)-1]
	at := time.Date(2026, 11, 20, 12, 0, 0, 123456789, time.UTC)
	return &logRecord{
		run: 77, number: 3, key: hash16{1, 2, 3},
		Record: &Record{
			Time: at, Node: "hub-a", Scope: "agent://weather.corp", Keyed: true, Until: at.Add(time.Hour),
			Message: &parley.Message{
				ID: sampleID(1), Kind: parley.Request, State: parley.Working, Number: 4, From: "alice", To: "weather",
				Audience: []string{"alice", "weather", ""}, Conversation: sampleID(2), InReplyTo: sampleID(3),
				Error: &parley.Error{Code: parley.TimedOut, Text: "late", Retryable: true, After: time.Second,
					Ref: "r1"},
				Skill: "forecast", Act: "query", Schema: "model:abc",
				Parts: []parley.Part{
					{MediaType: "application/json", Data: body},
					{MediaType: "text/plain", Name: "n", Data: []byte("not in the envelope")},
					{MediaType: "text/plain", Data: []byte{}},
					{URI: "https://example.org/x", Digest: "sha-256=:abc:"},
				},
				Sent: at.Add(-time.Second), Expires: at.Add(time.Minute), Deadline: at.Add(30 * time.Second),
				Trace: parley.Trace{Parent: "00-aa-bb-01", State: "x=y",
					Foreign: map[string]string{"samvad.traceId": "t", "a": "b"}},
				Hops:       []string{"h1", "h2"},
				Extensions: map[string]json.RawMessage{"samvad": ext, "agh": json.RawMessage(`{"z":0}`)},
				Origin: parley.Origin{Protocol: "samvad", Peer: "agent://alice", Address: "10.0.0.1:55", Raw: raw,
					Header: map[string]string{"Content-Type": "application/json", "Date": "x"}, Received: at,
					Verified: time.Millisecond, Admitted: 2 * time.Millisecond,
					Verdict: parley.Verdict{KeyID: "k1", Assurance: parley.Signed, Checks: []parley.Check{
						{Name: "digest", OK: true}, {Name: "signature", OK: true, Detail: "ed25519"},
						{Name: "freshness"}}}},
			},
			Open: []Opening{{To: "weather", Attempt: 1, Sync: true}, {To: "bob", NotBefore: at.Add(time.Minute)}},
			Steps: []Step{{Message: sampleID(9), To: "alice", State: parley.Waiting, Attempt: 2, Next: at,
				Postponed: true, Reply: sampleID(4), Error: &parley.Error{Code: parley.Unavailable},
				Losses: []parley.Loss{{Field: "Deadline", Reason: "none"}},
				Exchange: &parley.Exchange{Protocol: "asp", Address: "10.0.0.2:443", Status: "503 Service Unavailable",
					Started: at, Routed: time.Microsecond, Written: time.Millisecond, Took: time.Second, Size: 1871,
					Digest: []byte{1, 2}, Sent: []byte("POST / HTTP/1.1"), Answer: []byte("busy")}}},
			Losses:  []parley.Loss{{Field: "Event.State", Reason: "no word"}, {Field: "Event.Parts", Reason: ""}},
			Refused: &parley.Error{Code: parley.Forbidden, Text: "no"},
			Chain:   &ChainLink{Name: "session", After: 12},
		},
	}
}

var codecOptions = cmp.Options{cmp.AllowUnexported(logRecord{}), cmpopts.IgnoreUnexported(parley.Error{})}

func TestCodecRoundTrip(t *testing.T) {
	for name, r := range map[string]*logRecord{
		"all":   sample(1024),
		"empty": {Record: &Record{}},
		"steps": {Record: &Record{Steps: []Step{{Message: sampleID(1), To: "x", State: parley.Dead}}}},
		"first": {Record: &Record{Chain: &ChainLink{Name: "", After: 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			b := encode(r)
			got, err := decode(b)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(r, got, codecOptions); d != "" {
				t.Fatal(d)
			}
			if again := encode(got); !bytes.Equal(again, b) {
				t.Fatal("encoding the decoded record gives other bytes")
			}
		})
	}
}

func TestCodecStoresEnvelopeOnce(t *testing.T) {
	r := sample(4096)
	b := encode(r)
	if n := bytes.Count(b, []byte(`"city"`)); n != 1 {
		t.Fatalf("the body is stored %d times", n)
	}
	got, err := decode(b)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := within(got.Message.Origin.Raw, got.Message.Parts[0].Data); !ok {
		t.Fatal("the decoded part is a copy: want a slice of the envelope")
	}
	if _, ok := within(got.Message.Origin.Raw, got.Message.Extensions["samvad"]); !ok {
		t.Fatal("the decoded extension is a copy: want a slice of the envelope")
	}
}

func TestCodecLaterReleases(t *testing.T) {
	b := encode(sample(200))
	later := bytes.Clone(b)
	later[2] = recordVersion + 1
	if _, err := decode(later); !errors.Is(err, errRecordVersion) {
		t.Fatalf("an unknown version: %v", err)
	}
	// Unknown fields of every type, which a later release may add.
	r := &logRecord{Record: &Record{Scope: "s"}}
	var c coder
	text(&c, 5, &r.Scope)
	at, list := time.Unix(5, 6), []string{"x"}
	c.putNumber(50, 7)
	c.putText(51, "new")
	c.time(52, &at)
	one(&c, 53, &list, func(c *coder, list *[]string) { c.texts(1, list) })
	c.putText(2, "known, behind the others")
	r.Node = "known, behind the others"
	grown := append([]byte{magic0, magic1, recordVersion, byte(len(c.b)), 0, 0, 0}, c.b...)
	got, err := decode(grown)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(r, got, codecOptions); d != "" {
		t.Fatal(d)
	}
}

func TestCodecRefusesCuts(t *testing.T) {
	b := encode(sample(300))
	for n := range len(b) {
		if _, err := decode(b[:n]); err == nil {
			t.Fatalf("a record cut after %d of %d bytes was decoded", n, len(b))
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(encode(sample(200)))
	f.Add(encode(&logRecord{Record: &Record{}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decode(b)
		if err != nil {
			return
		}
		again, err := decode(encode(r))
		if err != nil {
			t.Fatalf("a decoded record, encoded again, cannot be decoded: %v", err)
		}
		if d := cmp.Diff(r, again, codecOptions, cmpopts.EquateEmpty()); d != "" {
			t.Fatal(d)
		}
	})
}

// usual is a typical record: a signed request of 1 KiB.
func usual() *logRecord {
	r := sample(1024)
	m := r.Message
	m.Error, m.Extensions, m.Audience, m.Hops, m.Trace.Foreign = nil, nil, nil, nil, nil
	m.Parts = m.Parts[:1]
	r.Open, r.Steps, r.Refused, r.Chain = r.Open[:1], nil, nil, nil
	return r
}

func BenchmarkEncode1KiB(b *testing.B) {
	r := usual()
	b.ReportAllocs()
	for b.Loop() {
		encode(r)
	}
}

func BenchmarkDecode1KiB(b *testing.B) {
	data := encode(usual())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := decode(data); err != nil {
			b.Fatal(err)
		}
	}
}
