package asp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/parley-hub/parley/internal/jsonx"
)

func exported(t *testing.T, w *world, id string) []byte {
	t.Helper()
	var buf bytes.Buffer
	if err := w.WriteTranscript(t.Context(), id, &buf); err != nil {
		t.Fatal(err)
	}
	report, err := VerifyTranscript(bytes.NewReader(buf.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if !report.Signed || report.SessionID != id || report.Server != "agent://hub.example/ops/hub" {
		t.Fatalf("report %+v", report)
	}
	return buf.Bytes()
}

// placeOf gives the record, header (-1) or trailer (the count) at an offset.
func placeOf(b []byte, offset int) int64 {
	line := bytes.Count(b[:offset], []byte("\n"))
	return max(int64(line)-2, -1)
}

func TestTranscriptBitFlips(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.conversing()
	w.say(id, w.alice, Close, Closing{})
	b := exported(t, w, id)
	for offset := 0; offset < len(b); offset += 7 { // 7 and 8 have no common divisor: all bits take part
		bit := byte(1) << (offset % 8)
		changed := bytes.Clone(b)
		changed[offset] ^= bit
		report, err := VerifyTranscript(bytes.NewReader(changed))
		if !errors.Is(err, ErrTranscript) {
			t.Fatalf("byte %d (%q): %v", offset, b[offset], err)
		}
		want, got := placeOf(b, offset), report.Faults[0].Position
		if b[offset] == '\n' || changed[offset] == '\n' { // the change joins or splits lines
			continue
		}
		if want >= int64(report.Records) { // the line that ends the records, and the trailer
			want = report.Records
		}
		if got != want {
			t.Fatalf("byte %d of record %d: named %v", offset, want, report.Faults[0])
		}
	}
}

func TestTranscriptSurgery(t *testing.T) {
	t.Parallel()
	// ASP-018, ASP-078; the report names the place.
	w := newWorld(t)
	id := w.conversing()
	for i := range 5 {
		w.say(id, w.alice, Inform, inform(fmt.Sprint(i)))
	}
	if err := w.CloseSession(t.Context(), id, aliceID, "enough"); err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(exported(t, w, id)), "\n")
	const first = 2 // line of record 0
	for name, c := range map[string]struct {
		edit func([]string) []string
		at   int64
	}{
		"removed":       {func(l []string) []string { return slices.Delete(l, first+4, first+5) }, 4},
		"moved":         {func(l []string) []string { l[first+3], l[first+4] = l[first+4], l[first+3]; return l }, 3},
		"inserted":      {func(l []string) []string { return slices.Insert(l, first+4, l[first+2]) }, 4},
		"tail removed":  {func(l []string) []string { return slices.Delete(l, first+8, first+9) }, 8},
		"cut":           {func(l []string) []string { return l[:first+6] }, 6},
		"cut in a line": {func(l []string) []string { l[first+6] = l[first+6][:40]; return l[:first+7] }, 6},
		"no trailer":    {func(l []string) []string { return l[:first+10] }, 9},
		"appended":      {func(l []string) []string { return append(l, "\n") }, 9},
		"empty":         {func([]string) []string { return nil }, -1},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Join(c.edit(slices.Clone(lines)), "")
			report, err := VerifyTranscript(strings.NewReader(text))
			if !errors.Is(err, ErrTranscript) || report.Faults[0].Position != c.at {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestTranscriptForgedWhole(t *testing.T) {
	t.Parallel()
	// A forger that seals everything again still fails at the server's signature,
	// and at those of the agents.
	w := newWorld(t)
	id := w.conversing()
	b := exported(t, w, id)
	other := newWorld(t, func(s *Server) { s.Identity = testIdentity(t, "agent://hub.example/ops/hub", "org_false") })
	forged := exported(t, other, other.conversing())
	v := TranscriptVerifier{ServerKey: w.Identity.Public().Signing}
	if _, err := v.Verify(t.Context(), bytes.NewReader(b)); err != nil {
		t.Error(err)
	}
	if _, err := v.Verify(t.Context(), bytes.NewReader(forged)); !errors.Is(err, ErrTranscript) {
		t.Errorf("got %v", err)
	}
	v = TranscriptVerifier{Keys: StaticKeys{aliceID: {w.alice.Identity.Public()}}}
	if report, err := v.Verify(t.Context(), bytes.NewReader(b)); !errors.Is(err, ErrTranscript) ||
		report.Faults[0].Code != "key_unknown" {
		t.Errorf("got %v", err)
	}
}

func TestTranscriptOfOddSpelling(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.conversing()
	for _, change := range [][2]string{{`"topic":`, `"topic" :` + "\t"}, {`"topic":`, "\"topic\":\r\n"},
		{`"topic":"x"`, `"t\u006fpic":"\u0078"`}} {
		e := w.sign(w.alice, w.draft(id, w.alice, Inform, inform("x")))
		raw := strings.Replace(string(e.Raw()), change[0], change[1], 1)
		if _, err := w.Ingest(t.Context(), []byte(raw), Transport{}, id); err != nil {
			t.Fatal(err)
		}
		if b := exported(t, w, id); !strings.ContainsAny(raw, "\n") && !bytes.Contains(b, []byte(raw)) {
			t.Error("not exported as received")
		}
	}
	deep := strings.Repeat(`{"d":`, 59) + "1" + strings.Repeat("}", 59)
	w.say(id, w.alice, Observe, jsonx.Value(deep))
	exported(t, w, id)
}

// endless is a reader of a transcript without end.
type endless struct {
	head io.Reader
	n    int
}

func (e *endless) Read(p []byte) (int, error) {
	if n, err := e.head.Read(p); err == nil {
		return n, nil
	}
	e.n += len(p)
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func TestTranscriptLinesAreBounded(t *testing.T) {
	t.Parallel()
	r := &endless{head: strings.NewReader(`{"header":`)}
	if _, err := VerifyTranscript(r); !errors.Is(err, ErrTranscript) || r.n > 64<<20 {
		t.Errorf("read %d bytes: %v", r.n, err)
	}
}

func TestChainReportsForks(t *testing.T) {
	t.Parallel()
	// ASP-021.
	id := testIdentity(t, aliceID, "o")
	c := &Chain{Keys: StaticKeys{aliceID: {id.Public()}}}
	session, _ := NewSessionID()
	hash := ZeroHash
	var last *Envelope
	for i := range 2 {
		e, err := Draft{SessionID: session, SequenceNumber: int64(i), PreviousHash: hash, Performative: Observe,
			Body: map[string]int{"i": i}}.Sign(id)
		if err != nil {
			t.Fatal(err)
		}
		if f, err := c.Add(t.Context(), e.Raw(), JSON); err != nil || !f.OK() {
			t.Fatal(f, err)
		}
		last, hash = e, e.Integrity.Hash
	}
	fork, err := Draft{SessionID: session, SequenceNumber: 2, PreviousHash: last.Integrity.PreviousHash,
		Performative: Observe, Body: map[string]int{"i": 9}}.Sign(id)
	if err != nil {
		t.Fatal(err)
	}
	f, err := c.Add(t.Context(), fork.Raw(), JSON)
	if err != nil || !slices.Equal(f.Codes, []string{"chain_mismatch"}) || f.Detail != "fork" {
		t.Errorf("%+v, %v", f, err)
	}
	if f, _ := c.Add(t.Context(), []byte("{"), JSON); f.OK() || f.Envelope != nil {
		t.Errorf("%+v", f)
	}
}

// In a transcript that was saved as other JSON, the only fault is that the server's seal
// cannot be compared. Other changes are reported, too.
func TestTranscriptRewritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.conversing()
	for i := range 5 {
		w.say(id, w.alice, Inform, Information{InformType: "status", Topic: fmt.Sprint("step ", i),
			Data: map[string]any{"n": 12.50, "big": 1e21, "text": "Grüße <&>"}})
	}
	if err := w.CloseSession(t.Context(), id, aliceID, "enough"); err != nil {
		t.Fatal(err)
	}
	original := exported(t, w, id)
	whole, err := VerifyTranscript(bytes.NewReader(original))
	if err != nil {
		t.Fatal(err)
	}
	saved := func(save func(any) ([]byte, error)) string {
		var v any // members in alphabetical order
		if err := json.Unmarshal(original, &v); err != nil {
			t.Fatal(err)
		}
		b, err := save(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	indented := saved(func(v any) ([]byte, error) { return json.MarshalIndent(v, "", "\t") })
	for name, text := range map[string]string{
		"indented": indented, "on one line": saved(json.Marshal), "with a BOM": "\ufeff" + indented,
		"other line ends": strings.ReplaceAll(string(original), "\n", "\r\n"),
	} {
		r, err := VerifyTranscript(strings.NewReader(text))
		if !errors.Is(err, ErrTranscript) || !r.Rewritten || r.Signed || len(r.Faults) != 1 ||
			r.Faults[0].Code != "rewritten" {
			t.Errorf("%s: %v", name, r.Faults)
		}
		if r.Messages != whole.Messages || r.Records != whole.Records || r.Head != whole.Head ||
			r.State != whole.State || r.SessionID != id {
			t.Errorf("%s: %+v, want %+v", name, r, whole)
		}
	}
	for name, c := range map[string]struct{ old, by, code string }{
		"content":   {`"step 3"`, `"step 4"`, "hash_mismatch"},
		"signature": {`"signature": "ed25519:`, `"signature": "ed25519:00`, "bad_signature"},
		"sequence":  {`"sequenceNumber": 3`, `"sequenceNumber": 4`, "sequence_gap"},
		"reason":    {`"state": "CLOSED"`, `"state": "FAILED"`, "bad_signature"},
	} {
		changed := strings.Replace(indented, c.old, c.by, 1)
		if changed == indented {
			t.Fatalf("%s: nothing was changed", name)
		}
		r, _ := VerifyTranscript(strings.NewReader(changed))
		if !slices.ContainsFunc(r.Faults, func(f TranscriptFault) bool { return f.Code == c.code }) ||
			len(r.Faults) > 6 {
			t.Errorf("%s: %v, want %s", name, r.Faults, c.code)
		}
	}
}
