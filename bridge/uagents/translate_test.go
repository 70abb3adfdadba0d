package uagents

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/uagents"
)

type forecastRequest struct {
	City     string `json:"city"`
	DaysLeft int    `json:"days_left,omitempty"`
}

// ModelDoc implements protocol.Documented.
func (forecastRequest) ModelDoc() (string, string) { return "ForecastRequest", "" }

// TestDerived: a skill has the model of a class of its name.
func TestDerived(t *testing.T) {
	k := parley.SkillSpec{ID: "forecast",
		Input: json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"},"days_left":{"type":"integer"}},"required":["city"]}`)}
	got := derived(k, k.Input, "Request")
	if want := protocol.ModelOf[forecastRequest](); got == nil || got.Digest() != want.Digest() {
		t.Errorf("%v is not %v", got, want.Digest())
	}
	own := json.RawMessage(`{"title":"Own","type":"object","properties":{}}`)
	if m := derived(k, own, "Request"); m == nil || m.Name() != "Own" {
		t.Error("a schema with its own title is changed")
	}
	for _, raw := range []string{"", "true", "{"} {
		if derived(k, json.RawMessage(raw), "Request") != nil {
			t.Errorf("%q makes a model", raw)
		}
	}
	for id, want := range map[string]string{"weather_report": "WeatherReport", "userID": "UserID", "a.b-c": "ABC"} {
		if got := className(id); got != want {
			t.Errorf("className(%q) = %q", id, got)
		}
	}
	for name, want := range map[string]string{"userID": "Userid", "snake_case_name": "Snake Case Name", "f2x": "F2X"} {
		if got := protocol.FieldTitle(name); got != want {
			t.Errorf("fieldTitle(%q) = %q", name, got)
		}
	}
}

// TestChat: the content of a chat message survives both translations. UAG-064.
func TestChat(t *testing.T) {
	id, err := parley.ParseID("018f8fad-5bd9-7b46-8f16-570867728950")
	if err != nil {
		t.Fatal(err)
	}
	m := &parley.Message{ID: id, Act: "inform", Extensions: map[string]json.RawMessage{"asp": nil},
		Parts: []parley.Part{
			parley.Text("hello"),
			{MediaType: "application/json", Data: []byte(`{"text": "only"}`)},
			{MediaType: "application/json", Data: []byte(`{"a": 1, "b": 2}`)},
			{MediaType: "image/png", Data: []byte{1, 2, 3}, Name: "dot.png"},
			{URI: "https://example.com/x", MediaType: "text/html", Digest: "sha-256=:AAAA:"},
		}}
	out, losses := toChat(m, "bob", time.Unix(1767225600, 0), true)
	if out.Err() != nil || len(losses) != 1 {
		t.Fatal(out.Err(), losses)
	}
	again, _ := toChat(m, "bob", time.Unix(1767225600, 0), true)
	a, err := protocol.DecodeChatMessage(out.Payload)
	if err != nil {
		t.Fatal(err)
	}
	b, err := protocol.DecodeChatMessage(again.Payload)
	if err != nil || a.MsgID != b.MsgID || !a.Ends() {
		t.Error("a retry is another chat message")
	}
	parts, extension, err := toParts(out.Schema, out.Payload)
	if err != nil || len(parts) != 5 {
		t.Fatal(parts, err)
	}
	if string(parts[0].Data) != "hello" || string(parts[1].Data) != "only" || string(parts[2].Data) != `{"a":1,"b":2}` {
		t.Errorf("%s", parts)
	}
	if p := parts[3]; string(p.Data) != "\x01\x02\x03" || p.MediaType != "image/png" || p.Name != "dot.png" {
		t.Errorf("%+v", p)
	}
	if p := parts[4]; p.URI != "https://example.com/x" || p.Digest != "sha-256=:AAAA:" {
		t.Errorf("%+v", p)
	}
	if !strings.Contains(string(extension), `"end_session":true`) {
		t.Errorf("%s", extension)
	}
}

// TestObject: text becomes the object of a model, by the rule of toObject.
func TestObject(t *testing.T) {
	model := protocol.ModelOf[forecastRequest]()
	for _, c := range []struct {
		part parley.Part
		want string
	}{
		{parley.Text("Bern"), `{"city": "Bern"}`},
		{parley.Text(`{"city":"Bern"}`), `{"city": "Bern"}`},
		{parley.Part{MediaType: "application/json", Data: []byte(`{"city":"Zürich"}`)}, `{"city": "Z\u00fcrich"}`},
		{parley.Part{MediaType: "application/json", Data: []byte(`{"text":"Bern"}`)}, `{"city": "Bern"}`},
		{parley.Part{MediaType: "application/json", Data: []byte(`{"town":"Bern","n":1}`)}, ""},
		{parley.Part{MediaType: "application/json", Data: []byte(`[1]`)}, ""},
	} {
		got, err := toObject(&parley.Message{Parts: []parley.Part{c.part}}, model)
		if string(got) != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %s, %v", c.part.Data, got, err)
		}
	}
}

// TestFailures: every code has a text, and no cause is sent.
func TestFailures(t *testing.T) {
	secret := protocol.ErrBusy
	for _, code := range []parley.Code{parley.Malformed, parley.TooLarge, parley.Unauthenticated, parley.Stale,
		parley.Forbidden, parley.UnknownAgent, parley.UnknownSkill,
		parley.InvalidContent, parley.RateLimited, parley.Unavailable, parley.NoSpace, parley.TimedOut,
		parley.HandlerFailed, parley.Internal} {
		e := parley.Refuse(code, "told").Because(secret)
		if got := toError(e); got.Text == "" || got.Status() < 400 {
			t.Errorf("%s: %+v", code, got)
		}
		if failureText(e) == "" || strings.Contains(failureText(e), secret.Text) {
			t.Errorf("%s: %q", code, failureText(e))
		}
	}
}

func FuzzParts(f *testing.F) {
	f.Add([]byte(`{"timestamp":"2026-01-02T03:04:05+00:00","msg_id":"0f8fad5b-d9cb-469f-a165-70867728950e","content":[{"type":"text","text":"x"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		parts, _, err := toParts(protocol.ChatMessageDigest, b)
		if err != nil {
			return
		}
		if out, _ := toChat(&parley.Message{Parts: parts}, "bob", time.Unix(0, 0), false); out.Err() != nil {
			t.Error(out.Err())
		}
	})
}
