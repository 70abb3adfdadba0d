package asp

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"golang.org/x/text/unicode/norm"
	"pgregory.net/rapid"

	"github.com/parley-hub/parley/internal/jsonx"
)

// model is an independent model of the canonical form: a value tree that shares no code
// with the package and is written by other means (big decimals, runes to UTF-16, fmt).
type model struct {
	kind  string
	text  string
	num   float64
	kids  []*model
	names []string
}

func drawModel(t *rapid.T, depth int) *model {
	kinds := []string{"string", "number", "true", "false", "null"}
	if depth > 0 {
		kinds = append(kinds, "object", "array", "object")
	}
	m := &model{kind: rapid.SampledFrom(kinds).Draw(t, "kind")}
	switch m.kind {
	case "string":
		m.text = drawString(t)
	case "number":
		m.num = drawNumber(t)
	case "array":
		for range rapid.IntRange(0, 4).Draw(t, "len") {
			m.kids = append(m.kids, drawModel(t, depth-1))
		}
	case "object":
		for range rapid.IntRange(0, 5).Draw(t, "len") {
			name := drawString(t)
			if slices.ContainsFunc(m.names,
				func(n string) bool { return norm.NFC.String(n) == norm.NFC.String(name) }) {
				continue
			}
			m.names = append(m.names, name)
			m.kids = append(m.kids, drawModel(t, depth-1))
		}
	}
	return m
}

func drawString(t *rapid.T) string {
	pool := []rune{'a', 'b', 'é', 'e', '\u0301', '\u0323', 'A', '"', '\\', '\n', 0x1f, 0x7f, 0x2028, '<', '&', 0xac00,
		0x1100, 0x1161,
		0xfb33, 0xe000, 0xffff, 0x1f600, 0x10000, 0x10ffff, 0xd7ff, '/', 0x212b}
	return string(rapid.SliceOfN(rapid.SampledFrom(pool), 0, 6).Draw(t, "string"))
}

func drawNumber(t *rapid.T) float64 {
	switch rapid.IntRange(0, 3).Draw(t, "range") {
	case 0:
		return float64(rapid.Int64Range(-1<<53, 1<<53).Draw(t, "int"))
	case 1:
		return float64(rapid.Int64Range(-1_000_000, 1_000_000).Draw(t, "cents")) / 100
	default:
		f := rapid.Float64().Draw(t, "float")
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return 0
		}
		return f
	}
}

// write writes the model in a loose form: blanks, escapes, other forms of numbers.
func (m *model) write(t *rapid.T, b *strings.Builder) {
	blank := func() { b.WriteString(rapid.SampledFrom([]string{"", "", " ", "\n\t"}).Draw(t, "blank")) }
	blank()
	switch m.kind {
	case "string":
		writeLoose(t, b, m.text)
	case "number":
		b.WriteString(strconv.FormatFloat(m.num, rapid.SampledFrom([]byte{'e', 'g', 'E'}).Draw(t, "form"), -1, 64))
	case "array":
		b.WriteByte('[')
		for i, k := range m.kids {
			if i > 0 {
				b.WriteByte(',')
			}
			k.write(t, b)
		}
		b.WriteByte(']')
	case "object":
		b.WriteByte('{')
		for i, k := range m.kids {
			if i > 0 {
				b.WriteByte(',')
			}
			blank()
			writeLoose(t, b, m.names[i])
			blank()
			b.WriteByte(':')
			k.write(t, b)
		}
		b.WriteByte('}')
	default:
		b.WriteString(m.kind)
	}
	blank()
}

func writeLoose(t *rapid.T, b *strings.Builder, s string) {
	b.WriteByte('"')
	for _, r := range s {
		if r < 0x20 || r == '"' || r == '\\' || rapid.IntRange(0, 4).Draw(t, "escape") == 0 {
			for _, u := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(b, "\\u%04X", u)
			}
			continue
		}
		b.WriteRune(r)
	}
	b.WriteByte('"')
}

// canonical applies the rules of the digest in their order.
func (m *model) canonical() string {
	switch m.kind {
	case "string":
		return modelString(m.text)
	case "number":
		return modelNumber(m.num)
	case "array":
		var parts []string
		for _, k := range m.kids {
			parts = append(parts, k.canonical())
		}
		return "[" + strings.Join(parts, ",") + "]"
	case "object":
		type member struct {
			units []uint16
			text  string
		}
		var members []member
		for i, k := range m.kids {
			name := norm.NFC.String(m.names[i])
			members = append(members, member{utf16.Encode([]rune(name)), modelString(name) + ":" + k.canonical()})
		}
		slices.SortFunc(members, func(a, b member) int { return slices.Compare(a.units, b.units) })
		var parts []string
		for _, m := range members {
			parts = append(parts, m.text)
		}
		return "{" + strings.Join(parts, ",") + "}"
	}
	return m.kind
}

func modelString(s string) string {
	named := map[rune]string{'"': `\"`, '\\': `\\`, '\b': `\b`, '\t': `\t`, '\n': `\n`, '\f': `\f`, '\r': `\r`}
	out := `"`
	for _, r := range norm.NFC.String(s) {
		switch {
		case named[r] != "":
			out += named[r]
		case r < 0x20:
			out += fmt.Sprintf(`\u%04x`, r)
		default:
			out += string(r)
		}
	}
	return out + `"`
}

// modelNumber follows ECMA-262 Number::toString: digits k, exponent n.
func modelNumber(f float64) string {
	if f == 0 {
		return "0"
	}
	sign := ""
	if f < 0 {
		sign, f = "-", -f
	}
	mantissa, exp, _ := strings.Cut(strconv.FormatFloat(f, 'e', -1, 64), "e")
	digits := strings.Replace(mantissa, ".", "", 1)
	e, _ := strconv.Atoi(exp)
	k, n := len(digits), e+1
	switch {
	case k <= n && n <= 21:
		return sign + digits + strings.Repeat("0", n-k)
	case 0 < n && n <= 21:
		return sign + digits[:n] + "." + digits[n:]
	case -6 < n && n <= 0:
		return sign + "0." + strings.Repeat("0", -n) + digits
	}
	s := fmt.Sprintf("e%+d", n-1)
	if k > 1 {
		return sign + digits[:1] + "." + digits[1:] + s
	}
	return sign + digits + s
}

func TestCanonicalModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := drawModel(t, 4)
		var loose strings.Builder
		m.write(t, &loose)
		got, err := Canonical([]byte(loose.String()))
		if err != nil || string(got) != m.canonical() {
			t.Fatalf("%s\ngot  %s, %v\nwant %s", loose.String(), got, err, m.canonical())
		}
		packed, err := jsonToMsgpack([]byte(loose.String()))
		if err != nil {
			t.Fatal(err)
		}
		text, err := msgpackAsJSON(packed) // ASP-050
		if err != nil {
			t.Fatalf("%s as %x: %v", loose.String(), packed, err)
		}
		if back, err := Canonical(text); err != nil || !bytes.Equal(back, got) {
			t.Fatalf("through MessagePack %s, %v; want %s", back, err, got)
		}
	})
}

// Integers: accepted exactly when the decimal literal equals the shortest
// form of its double (big arithmetic decides).
func TestIntegerExactness(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		lit := strconv.FormatUint(rapid.Uint64Min(1).Draw(t, "n"),
			10) + strings.Repeat("0", rapid.IntRange(0, 30).Draw(t, "zeros"))
		lit += rapid.SampledFrom([]string{"", ".0", "e0", ".000"}).Draw(t, "tail")
		f, err := strconv.ParseFloat(lit, 64)
		if err != nil {
			t.Fatal(err)
		}
		literal, _ := new(big.Rat).SetString(lit)
		short, _ := new(big.Rat).SetString(modelNumber(f))
		_, err = Canonical([]byte(lit))
		if want := literal.Cmp(short) == 0; want != (err == nil) || err != nil && codeOf(err) != "number_precision" {
			t.Fatalf("%s (shortest %s): %v", lit, modelNumber(f), err)
		}
	})
}

// The state machine as a whole: no event leaves a terminal state, and a refusal changes
// nothing.
func TestStateMachineWalk(t *testing.T) {
	t.Parallel()
	events := []string{"PROPOSE:session-invitation", "PROPOSE", "ACCEPT", "REJECT", "COUNTER", "INFORM",
		"INFORM:introduction",
		"INFORM:escalation-resolved", "QUERY", "CLARIFY", "COMMIT", "DELEGATE", "ESCALATE", "WITHDRAW", "OBSERVE",
		"CLOSE", "@timeout", "FULFILL", ""}
	rapid.Check(t, func(t *rapid.T) {
		state, before := Idle, Idle
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			event := rapid.SampledFrom(events).Draw(t, "event")
			next, err := Next(state, event, before)
			switch {
			case err != nil && next != state:
				t.Fatalf("%s in %s: refused, yet %s", event, state, next)
			case state.Terminal() && codeOf(err) != "session_closed":
				t.Fatalf("%s in %s: %v", event, state, err)
			case err == nil && (event == "FULFILL" || event == ""):
				t.Fatalf("%q taken in %s", event, state)
			case err == nil && state != Idle && event == eventInvitation:
				t.Fatal("a second invitation")
			}
			if err != nil {
				continue
			}
			if next == Escalated && state != Escalated {
				before = state
			}
			if next == resume {
				t.Fatal("resume is no state")
			}
			state = next
		}
	})
}

func FuzzCanonical(f *testing.F) {
	for _, s := range []string{`{"b":1,"a":[1e2,"\u00e9"]}`, `{"é":1,"é":2}`, `"\ud800"`, `1e400`, `9007199254740993`,
		`-0.0`, "[[[[]]]]"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Canonical(b)
		if err != nil {
			if e := asError(err); codes[e.Code].status == 0 {
				t.Fatalf("unlisted code %q", e.Code)
			}
			return
		}
		again, err := Canonical(c)
		if err != nil || !bytes.Equal(c, again) {
			t.Fatalf("not idempotent: %q, %q, %v", c, again, err)
		}
		if jsonx.Valid(b, maxDepth) != nil {
			t.Fatal("accepted input that jsonx refuses")
		}
	})
}

// Decode of a signed message gives the envelope that Sign made.
func TestSignedIsWhatDecodes(t *testing.T) {
	id := testIdentity(t, aliceID, "org \"acme\" \u00e9")
	ttl := int64(60)
	rapid.Check(t, func(t *rapid.T) {
		d := Draft{SessionID: "019cc8aa-0001-7def-8a12-000000000001", Performative: Inform,
			SequenceNumber: rapid.Int64Range(0, 1<<53).Draw(t, "sequence"),
			Time:           time.UnixMilli(rapid.Int64Range(0, 4e12).Draw(t, "time")),
			TrustScore:     rapid.Float64Range(0, 100).Draw(t, "score"),
			Format:         rapid.SampledFrom([]Format{"", JSON, MessagePack}).Draw(t, "format"),
			Body: map[string]any{"topic": drawString(t),
				"more": map[string]any{drawString(t): []float64{drawNumber(t)}}, "text": jsonx.Value(" \"a\\/\\u0062\" ")}}
		if rapid.Bool().Draw(t, "recipient") {
			d.Recipient = &Party{AgentID: bobID, OrgID: "org" + drawString(t)}
		}
		if rapid.Bool().Draw(t, "constraints") {
			d.Constraints = &Constraints{MaxResponseTimeMs: 5, RequiredTrustScore: 0.5,
				AllowedPerformatives: []Performative{Inform}}
		}
		for i := range rapid.IntRange(0, 3).Draw(t, "objects") {
			o := ContextObject{Type: "custom", ID: fmt.Sprint(i), Version: int64(i),
				Data: json.RawMessage(` { "a" : [1, "x"] } `)}
			if i == 1 {
				o.TTL, o.Visibility = &ttl, VisibleTurn
			}
			d.Context = append(d.Context, o)
		}
		e, err := d.Sign(id)
		if err != nil {
			if asError(err).Code == "duplicate_key" || asError(err).Code == "number_precision" {
				return // the drawn value is no content
			}
			t.Fatal(err)
		}
		got, err := e.format.Decode(e.Raw())
		if err != nil {
			t.Fatalf("%s: %v", e.Raw(), err)
		}
		if !got.signedBy(id.public) || got.checkHash() != nil {
			t.Fatalf("%s: hash or signature does not hold", e.Raw())
		}
		if got.Digest() != e.Digest() || !bytes.Equal(got.content, e.content) || got.bodySpan != e.bodySpan ||
			got.score != e.score {
			t.Fatalf("%s: another digest, content or position", e.Raw())
		}
		e.made, e.root, got.root = nil, nil, nil
		if !reflect.DeepEqual(got, e) {
			t.Fatalf("read\n%+v\nsigned\n%+v", got, e)
		}
	})
}

// FuzzSyntax: the one-pass parser accepts the same input as jsonx, and gives the same
// values.
func FuzzSyntax(f *testing.F) {
	for _, s := range []string{`{"a":[1,-0.5e+3,"x\u00e9\ud83d\ude00",true,false,null,{}],"b":{"c":[]}}`, `"\ud83d"`,
		`"\ud83dx"`, `"\udc00\ud800"`, `{"a":1,"\u0061":2}`,
		`[1,]`, `[,1]`, `{"a":1,}`, `{"a" 1}`, `{a:1}`, `01`, `-`, `1.`, `.5`, `1e`, `+1`, `"\x"`, "\"\t\"", "\"\xff\"",
		"\xef\xbb\xbf1", " \n1\t ", `1 2`, `tru`, `nul`, `"`, `"\`, `"\u12`, `[`, `{`, `{"a"`, ``,
		strings.Repeat("[", 64) + strings.Repeat("]", 64), strings.Repeat("[", 65) + strings.Repeat("]", 65),
		`1e999`, `9007199254740993`, `{"\u0065\u0301":1,"\u00e9":2}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, depth := range []int{maxDepth, 3} {
			p := newParser(b, depth)
			n, ok := p.document()
			if want := jsonx.Valid(b, depth); ok != (want == nil) {
				t.Fatalf("%q, %d deep: read %t, jsonx says %v", b, depth, ok, want)
			}
			var v any
			if ok && p.fault == "" && n.kind == '"' {
				if err := jsonx.Decode(b, &v); err != nil || v != n.str {
					t.Fatalf("%q: read %q, jsonx reads %q (%v)", b, n.str, v, err)
				}
			}
		}
	})
}

func FuzzMsgpack(f *testing.F) {
	for _, s := range [][]byte{{0x80}, {0xc1}, {0xdf, 0xff, 0xff, 0xff, 0xff},
		{0x81, 0xa1, 'a', 0xcb, 0x7f, 0xf8, 0, 0, 0, 0, 0, 0}, {0xc4, 2, 0, 1}, bytes.Repeat([]byte{0x91}, 70)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		text, err := msgpackAsJSON(b)
		if err != nil {
			return
		}
		c, err := Canonical(text)
		if err != nil {
			return
		}
		packed, err := jsonToMsgpack(text)
		if err != nil {
			t.Fatal(err)
		}
		back, err := msgpackAsJSON(packed)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := Canonical(back); err != nil || !bytes.Equal(again, c) {
			t.Fatalf("%s became %s, %v", c, again, err)
		}
	})
}

func FuzzDecode(f *testing.F) {
	id, err := IdentityFromSeed(aliceID, "org_acme", bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{0x11}, 32))
	if err != nil {
		f.Fatal(err)
	}
	for _, d := range []Draft{
		{Performative: Observe, Body: map[string]any{"n": 1}},
		{Performative: Inform, Body: inform("é"), Context: []ContextObject{{Type: "custom", ID: "x",
			Data: json.RawMessage("{}")}}, Constraints: &Constraints{MaxTokenBudget: 1}},
	} {
		d.SessionID = "019cc8aa-0001-7def-8a12-000000000001"
		e, err := d.Sign(id)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(e.Raw(), false)
		f.Add(packed(e.root), true)
	}
	f.Fuzz(func(t *testing.T, b []byte, binary bool) {
		format := JSON
		if binary {
			format = MessagePack
		}
		e, err := format.Decode(b)
		if err != nil {
			asError(err).Status()
			return
		}
		if !bytes.Equal(e.Raw(), b) {
			t.Fatal("the bytes changed")
		}
		if whole, err := Canonical(e.JSON()); err != nil || hashOf(whole) != e.Digest() {
			t.Fatalf("digest: %v", err)
		}
		o, err := DecodeMsgpack(packed(e.root))
		if err != nil || o.Digest() != e.Digest() || o.Integrity != e.Integrity {
			t.Fatalf("as MessagePack: %v", err)
		}
		r := &Record{Raw: b, Format: format, ScoreFrom: e.score.from, ScoreTo: e.score.to}
		changed, err := format.Decode(r.withTrustScore(12.5))
		if err != nil || changed.Sender.TrustScore != 12.5 ||
			!bytes.Equal(changed.CanonicalContent(), e.CanonicalContent()) {
			t.Fatalf("with another score: %v", err)
		}
	})
}

func FuzzProof(f *testing.F) {
	id, err := IdentityFromSeed(aliceID, "org_acme", bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{0x11}, 32))
	if err != nil {
		f.Fatal(err)
	}
	now := time.Unix(1772893800, 0)
	p, err := id.MessageProof("019cc8aa-0001-7def-8a12-000000000001", "", now)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(p)
	f.Add("..")
	f.Add(base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + ".e30.")
	f.Fuzz(func(t *testing.T, s string) {
		got, err := checkProof(s, proofClaims{Method: messageMethod,
			URL: messageURL("019cc8aa-0001-7def-8a12-000000000001"), Now: now})
		if err == nil && got.JTI == "" {
			t.Fatal("a proof without jti")
		}
		if err != nil && !strings.HasPrefix(codeOf(err), "dpop_") {
			t.Fatalf("code %q", codeOf(err))
		}
	})
}

func FuzzTranscript(f *testing.F) {
	w := newWorld(f)
	id := w.conversing()
	var buf bytes.Buffer
	if err := w.WriteTranscript(f.Context(), id, &buf); err != nil {
		f.Fatal(err)
	}
	f.Add(buf.Bytes())
	f.Add([]byte("{\"header\":{},\"chain\":\"\"}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		report, err := VerifyTranscript(bytes.NewReader(b))
		if err == nil && (!report.Signed || !bytes.Equal(b, buf.Bytes())) && report.Messages > 0 &&
			report.SessionID == id && len(b) == buf.Len() {
			t.Fatalf("another transcript of the same session verifies: %+v", report)
		}
	})
}

// FuzzServer sends bytes into sessions in several states: the server records only signed
// messages.
func FuzzServer(f *testing.F) {
	w := newWorld(f)
	ids := []string{w.invite(), w.conversing(), w.executing()}
	closed := w.conversing()
	w.say(closed, w.alice, Close, Closing{})
	ids = append(ids, closed)
	for i, id := range ids {
		f.Add(uint8(i), w.sign(w.alice, w.draft(id, w.alice, Inform, inform("x"))).Raw())
	}
	f.Add(uint8(0), []byte("{}"))
	f.Fuzz(func(t *testing.T, which uint8, b []byte) {
		id := ids[int(which)%len(ids)]
		before := w.head(id)
		_, err := w.Ingest(t.Context(), b, Transport{}, id)
		if after := w.head(id); err != nil && after != before {
			t.Fatalf("refused with %v, yet the head moved", err)
		} else if err == nil {
			e, decodeErr := Decode(b)
			if decodeErr != nil || !e.signedBy(w.alice.Identity.public) && !e.signedBy(w.bob.Identity.public) {
				t.Fatal("recorded without a signature")
			}
		}
	})
}

// The checks without a parser accept the forms that a parser accepts and writes
// unchanged.
func TestFormsAreExact(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	likeTime := func(s string) {
		want, err := time.Parse(timeLayout, s)
		ok := len(s) == len(timeLayout) && err == nil && want.Format(timeLayout) == s
		if got, is := ParseTimestamp(s); is != ok || is && (!got.Equal(want) || got.Location() != time.UTC) {
			t.Fatalf("%q is read as %v, %t; want %v, %t", s, got, is, want, ok)
		}
	}
	like64 := func(s string) {
		want, err := b64.DecodeString(s)
		ok := err == nil && !strings.ContainsAny(s, "\r\n")
		if got, is := decode64(s); is != ok || is && !bytes.Equal(got, want) {
			t.Fatalf("%q is read as %x, %t; want %x, %t", s, got, is, want, ok)
		}
	}
	uuid := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	hash := regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	likeForms := func(s string) {
		if ok := len(s) == 36 && uuid.MatchString(s); ValidUUID(s) != ok {
			t.Fatalf("%q: %t", s, !ok)
		}
		if ok := len(s) == len(ZeroHash) && hash.MatchString(s); validHash(s) != ok {
			t.Fatalf("%q: %t", s, !ok)
		}
	}
	const other, behind = "0123456789:-TZ.,abfgAF\n\r_ /\x00\xff", "0A\n=\r"
	changed := func(s string) string {
		b := []byte(s)
		for range random.IntN(3) {
			i := random.IntN(len(b))
			switch random.IntN(3) {
			case 0:
				b[i] = other[random.IntN(len(other))]
			case 1:
				b = append(b[:i], b[i+1:]...)
			default:
				b = append(b, behind[random.IntN(len(behind))])
			}
			if len(b) == 0 {
				break
			}
		}
		return string(b)
	}
	for _, s := range []string{"", "2026-02-29T00:00:00.000Z", "2024-02-29T23:59:59.999Z", "2100-02-29T00:00:00.000Z",
		"0000-02-29T00:00:00.000Z", "2026-13-01T00:00:00.000Z", "2026-00-01T00:00:00.000Z",
		"2026-01-00T00:00:00.000Z", "2026-04-31T00:00:00.000Z", "2026-01-32T00:00:00.000Z", "2026-01-01T24:00:00.000Z",
		"2026-01-01T00:60:00.000Z", "2026-12-31T23:59:60.000Z", "9999-12-31T23:59:59.999Z",
		"2026-01-01t00:00:00.000Z", "2026-01-01T00:00:00,000Z", "2026-01-01T00:00:00.000z", "2026-01-01 00:00:00.000Z",
		"+026-01-01T00:00:00.000Z", "2026-01-01T00:00:00.00 Z"} {
		likeTime(s)
	}
	at := func() time.Time {
		return time.Unix(random.Int64N(253402300800+62167219200)-62167219200,
			random.Int64N(1e9)).In(time.FixedZone("", random.IntN(7200)))
	}
	for range 50000 {
		when := at()
		s := Timestamp(when)
		if want := when.UTC().Format(timeLayout); s != want {
			t.Fatalf("%v is written %q, want %q", when, s, want)
		}
		likeTime(s)
		likeTime(changed(s))
		like64(changed(b64.EncodeToString([]byte(s)[:1+random.IntN(23)])))
		likeForms(changed("019cc8aa-0001-7def-8a12-0123456789ab"))
		likeForms(changed(ZeroHash))
	}
	for _, when := range []time.Time{{}, time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC),
		time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)} {
		if got, want := Timestamp(when), when.UTC().Format(timeLayout); got != want {
			t.Errorf("%v is written %q, want %q", when, got, want)
		}
	}
	sum := sha256.Sum256([]byte("token"))
	for ath, want := range map[string]bool{"sha256:" + hex.EncodeToString(sum[:]): true,
		b64.EncodeToString(sum[:]): true, "": false, "sha256:": false,
		hex.EncodeToString(sum[:]): false, "sha256:" + strings.ToUpper(hex.EncodeToString(sum[:])): false,
		base64.StdEncoding.EncodeToString(sum[:]): false} {
		if athMatches(ath, "token") != want {
			t.Errorf("%q: %t", ath, !want)
		}
	}
}

// Successive ledgers share their items, and no ledger has the items of another successor
// of the same ledger.
func TestLedgersShareItems(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type version struct {
			ledger *Ledger
			want   []Item
		}
		all := []version{{ledger: &Ledger{}}}
		next := 0
		for range rapid.IntRange(1, 400).Draw(t, "steps") {
			// Most follow the newest.
			v := all[len(all)-1-min(rapid.IntRange(0, 40).Draw(t, "back")/30*rapid.IntRange(0, 3).Draw(t, "far"),
				len(all)-1)]
			l, want := v.ledger.copy(), slices.Clone(v.want)
			switch kind := rapid.IntRange(0, 20).Draw(t, "kind"); {
			case kind == 0 && len(want) > 0:
				i := rapid.IntRange(0, len(want)-1).Draw(t, "settled")
				l.edit(i).Status, want[i].Status = "accepted", "accepted"
			case kind == 1 && len(want) > 0:
				i := rapid.IntRange(0, len(want)-1).Draw(t, "repeated")
				if err := l.addItem(&Envelope{}, Item{ID: want[i].ID}, "queryId"); err == nil {
					t.Fatalf("%q is taken twice", want[i].ID)
				}
				continue
			default:
				next++
				item := Item{ID: fmt.Sprint("i", next), MessageID: "m"}
				if err := l.addItem(&Envelope{MessageID: "m"}, item, "queryId"); err != nil {
					t.Fatal(err)
				}
				item.Status = "open"
				if len(want) == maxItems {
					at := max(slices.IndexFunc(want, func(i Item) bool { return i.Status != "open" }), 0)
					want = slices.Delete(want, at, at+1)
				}
				want = append(want, item)
			}
			all = append(all, version{l, want})
		}
		for n, v := range all {
			var got []Item
			for _, i := range v.ledger.Items {
				got = append(got, *i)
			}
			if !slices.Equal(got, v.want) {
				t.Fatalf("ledger %d of %d has\n%v, want\n%v", n, len(all), got, v.want)
			}
		}
	})
}
