package parley

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestID(t *testing.T) {
	now := time.UnixMilli(1775901600123)
	id, err := NewID(now, bytes.NewReader(make([]byte, 16)))
	if err != nil || id.String() != "019d7bfb-e97b-7000-8000-000000000000" || !id.Time().Equal(now) {
		t.Fatalf("%s %v %v", id, id.Time(), err)
	}
	if back, err := ParseID(id.String()); err != nil || back != id {
		t.Fatalf("%s, %v", back, err)
	}
	for _, s := range []string{"", "x", strings.ToUpper(id.String()), id.String() +
		"0", strings.ReplaceAll(id.String(), "-", ""), "019d7bfb_e97b-7000-8000-000000000000"} {
		if _, err := ParseID(s); err == nil {
			t.Errorf("ParseID(%q) is taken", s)
		}
	}
	if _, err := NewID(now, bytes.NewReader(nil)); err == nil {
		t.Error("no randomness, and yet an id")
	}
	h := HashID(make([]byte, 32))
	if h.String() != "00000000-0000-8000-8000-000000000000" || !h.Time().IsZero() {
		t.Errorf("%s %v", h, h.Time())
	}
}

func TestNamesOfValues(t *testing.T) {
	var k Kind
	for _, want := range []Kind{Request, Event, Response, Failure, Notice, Cancel} {
		b, _ := want.MarshalText()
		if err := k.UnmarshalText(b); err != nil || k != want {
			t.Errorf("%s: %v, %v", b, k, err)
		}
	}
	if err := k.UnmarshalText([]byte("reqest")); err == nil {
		t.Error("an unknown kind is taken")
	}
	if !(Unsigned < Session && Session < Signed) {
		t.Error("the assurances are not ordered")
	}
	if Delivered.Settled(Request) || !Delivered.Settled(Notice) || !Answered.Settled(Request) ||
		Waiting.Settled(Notice) {
		t.Error("Settled")
	}
}

func TestCheckName(t *testing.T) {
	for _, s := range []string{"a", "weather", "crew/scout", "a.b-c_d", "guest/samvad/x-1"} {
		if err := CheckName(s); err != nil {
			t.Error(err)
		}
	}
	for _, s := range []string{"", "A", "a/", "/a", "a//b", "-a", "a-", "a b", "a__b", "é", strings.Repeat("a", 129)} {
		if CheckName(s) == nil {
			t.Errorf("%q is taken", s)
		}
	}
}

func TestText(t *testing.T) {
	j := func(s string) Part { return Part{MediaType: "application/json", Data: []byte(s)} }
	for _, c := range []struct {
		parts []Part
		want  string
	}{
		{nil, ""},
		{[]Part{Text("a"), Text("b")}, "a\nb"},
		{[]Part{j(`{"text":"x"}`)}, "x"},
		{[]Part{j(`{"message":"x"}`)}, "x"},
		{[]Part{j(`"x"`)}, "x"},
		{[]Part{j(`{"text":"x","more":1}`)}, ""},
		{[]Part{j(`{"text":7}`)}, ""},
		{[]Part{j(`{`)}, ""},
	} {
		if got := (&Message{Parts: c.parts}).Text(); got != c.want {
			t.Errorf("%q: %q, want %q", c.parts, got, c.want)
		}
	}
}

func TestErrors(t *testing.T) {
	cause := errors.New("disk on fire")
	e := Fail(Unavailable, cause, "not %s", "now")
	if !errors.Is(e, cause) || !errors.Is(e, &Error{Code: Unavailable}) || errors.Is(e, &Error{Code: Stale}) ||
		CodeOf(e) != Unavailable {
		t.Error(e)
	}
	if got := AsError(cause); got.Code != Internal || strings.Contains(got.Text, "fire") {
		t.Errorf("a private error tells %q", got.Text)
	}
	if AsError(context.DeadlineExceeded).Code != TimedOut || AsError(context.Canceled).Code != Cancelled ||
		AsError(nil) != nil || CodeOf(nil) != "" {
		t.Error("context errors")
	}
	b, err := json.Marshal(e)
	if err != nil || bytes.Contains(b, []byte("fire")) {
		t.Errorf("the cause travels: %s, %v", b, err)
	}
}

func TestSchemaOf(t *testing.T) {
	type inner struct {
		When time.Time `json:"when"`
	}
	type in struct {
		inner
		City   string         `json:"city" doc:"where"`
		Days   uint8          `json:"days,omitempty"`
		Tags   []string       `json:"tags,omitzero"`
		Next   *in            `json:"next,omitempty"`
		Blob   []byte         `json:"blob,omitempty"`
		Extra  map[string]any `json:"extra,omitempty"`
		hidden int
		Skip   int `json:"-"`
	}
	got := string(SchemaOf(reflect.TypeFor[in]()))
	want := `{"properties":{"blob":{"contentEncoding":"base64","type":"string"},"city":{"description":"where","type":"string"},"days":{"minimum":0,"type":"integer"},"extra":{"additionalProperties":{},"type":"object"},"next":{"anyOf":[{},{"type":"null"}]},"tags":{"items":{"type":"string"},"type":"array"},"when":{"format":"date-time","type":"string"}},"required":["when","city"],"type":"object"}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	_ = in{hidden: 1}
}

type recorder struct {
	progress []string
	parts    []Part
}

func (r *recorder) Attempt() int              { return 1 }
func (r *recorder) Progress(s string) error   { r.progress = append(r.progress, s); return nil }
func (r *recorder) Chunk(p Part) error        { return nil }
func (r *recorder) Reply(parts ...Part) error { r.parts = parts; return nil }

func TestTypedSkill(t *testing.T) {
	type query struct{ City string }
	s := Skill("forecast", func(ctx context.Context, m *Message, q query) (map[string]string, error) {
		if q.City == "" {
			return nil, Refuse(InvalidContent, "which city?")
		}
		return map[string]string{"for": q.City}, Progress(ctx, "looking")
	}, AsDefault(), WithModes(Sync), Describe("Forecast", "tells the weather"))
	a := Agent{Skills: []SkillSpec{s, RawSkill("raw", nil)}}
	if got, ok := a.SkillNamed(""); !ok || got.ID != "forecast" {
		t.Error("the default skill")
	}
	if _, ok := a.SkillNamed("none"); ok {
		t.Error("an unknown skill")
	}
	r := &recorder{}
	m := &Message{Parts: []Part{{MediaType: "application/json; charset=utf-8", Data: []byte(`{"City":"Bern"}`)}}}
	if err := s.Handler(t.Context(), m, r); err != nil || len(r.progress) != 1 ||
		string(r.parts[0].Data) != `{"for":"Bern"}` {
		t.Errorf("%v %+v", err, r)
	}
	if err := s.Handler(t.Context(), &Message{}, r); CodeOf(err) != InvalidContent {
		t.Errorf("no content: %v", err)
	}
	if err := Progress(t.Context(), "x"); !errors.Is(err, ErrNoReplier) {
		t.Error(err)
	}
}

func TestRecipients(t *testing.T) {
	m := Message{From: "a", To: "b", Audience: []string{"a", "b", "c"}}
	if got := m.Recipients(); !reflect.DeepEqual(got, []string{"b", "c"}) {
		t.Error(got)
	}
}

// Objects with a text are read by their first bytes where that is safe, and
// mean the same as by a JSON reader.
func TestOnlyTextOfObjects(t *testing.T) {
	for data, want := range map[string]string{
		`{"text":"plain – ä"}`:      "plain – ä",
		`{"message":"plain"}`:       "plain",
		`{"text":"a\"b\u00e4"}`:     `a"bä`,
		`{ "text": "spaced" }`:      "spaced",
		`{"text":"a","more":"b"}`:   "",
		`{"text":"a","text2":"b"}`:  "",
		`{"text":"a"}{"text":"b"}`:  "",
		"{\"text\":\"two\nlines\"}": "",
		`{"text":"}`:                "",
		`{"other":"a"}`:             "",
		"{\"text\":\"\xff\"}":       "\ufffd",
	} {
		got, ok := OnlyText(Part{MediaType: "application/json", Data: []byte(data)})
		if got != want || ok != (want != "") {
			t.Errorf("%s: %q, %v", data, got, ok)
		}
	}
}

func TestStated(t *testing.T) {
	network := Fail(Unavailable, nil, "away").With(ByNetwork, ConnectionRefused, "connection refused by 192.0.2.7:80")
	for _, c := range []struct {
		name   string
		err    *Error
		source Source
		reason Reason
	}{
		{"its own", network, ByNetwork, ConnectionRefused},
		{"of its cause", Refuse(OutcomeUnknown, "it may have it").Because(network), ByNetwork, ConnectionRefused},
		{"of a deeper cause", Refuse(Conflict, "no").Because(Fail(Unavailable, network, "no")), ByNetwork,
			ConnectionRefused},
		{"a rule, by its code", Refuse(Forbidden, "no"), ByPolicy, ""},
		{"a limit, by its code", Refuse(TooLarge, "no"), ByLimit, ""},
		{"the hub, by its code", Refuse(Internal, "no").Because(context.DeadlineExceeded), ByHub, ""},
		{"the recipient, by its code", Refuse(HandlerFailed, "no"), ByPeer, ""},
		{"the sender", Refuse(Cancelled, "no"), NotStated, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if e := c.err.Stated(); e.Source != c.source || e.Reason != c.reason || e.Code != c.err.Code {
				t.Errorf("%s %s, want %s %s", e.Source, e.Reason, c.source, c.reason)
			}
		})
	}
	if (*Error)(nil).Stated() != nil || (*Error)(nil).FromPeer() != nil {
		t.Error("nil becomes an error")
	}
}

func TestFromPeer(t *testing.T) {
	for code, reason := range map[Code]Reason{Unauthenticated: PeerForbids, Forbidden: PeerForbids,
		RateLimited: PeerRate, Unavailable: PeerBusy, Stale: PeerClock, InvalidContent: PeerContent,
		Unsupported: PeerUnsupported, UnknownSkill: PeerGone, TimedOut: PeerSilent, Cancelled: PeerCancelled,
		HandlerFailed: PeerFailed, Rejected: PeerRefused, Loop: PeerRefused} {
		if e := Refuse(code, "no").FromPeer(); e.Source != ByPeer || e.Reason != reason {
			t.Errorf("%s: %s %s, want %s", code, e.Source, e.Reason, reason)
		}
	}
	limit := Refuse(TooLarge, "no").With(ByLimit, BodySize, "")
	if limit.FromPeer() != limit {
		t.Error("an error of the hub becomes the peer's")
	}
	seen := map[Reason]bool{}
	for _, r := range Reasons() {
		if r == "" || seen[r] {
			t.Errorf("%q is listed twice", r)
		}
		seen[r] = true
	}
}
