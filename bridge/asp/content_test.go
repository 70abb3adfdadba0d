package asp

import (
	"bytes"
	"testing"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/internal/jsonx"
)

// The hub refuses an unknown queryType.
func TestSkillOfQuery(t *testing.T) {
	skilled := &directory.Entry{Agent: parley.Agent{Name: "box",
		Skills: []parley.SkillSpec{{ID: "open"}, {ID: "shut"}}}}
	for _, c := range []struct {
		act   protocol.Performative
		body  string
		entry *directory.Entry
		want  string
	}{
		{protocol.Query, `{"queryId":"q","queryType":"open"}`, skilled, "open"},
		{protocol.Query, `{"queryId":"q","queryType":"information","subject":"shut"}`, skilled, "shut"},
		{protocol.Query, `{"queryId":"q","queryType":"lock"}`, skilled, "lock"},
		{protocol.Query, `{"queryId":"q","queryType":"message"}`, skilled, ""},
		{protocol.Delegate, `{"targetAgent":"agent://a.example/b/c","scope":"the whole house"}`, skilled, ""},
		{protocol.Query, `{"queryId":"q","queryType":"lock"}`, &directory.Entry{}, ""},
	} {
		e := signedAs(t, c.act, "", jsonx.Value(c.body))
		if got := skillOf(e, c.entry.Skills); got != c.want {
			t.Errorf("%s: %q, want %q", c.body, got, c.want)
		}
	}
}

// Text and bytes travel under their mimeType, both ways.
func TestMimeTypes(t *testing.T) {
	file := parley.Part{MediaType: "image/png", Name: "map.png", Data: []byte("\x00\xff~?>")}
	for name, c := range map[string]struct {
		part parley.Part
		mime string
	}{
		"text": {parley.Text("Grüße"), "text/plain"}, "bytes": {file, "application/octet-stream"},
		"object": {parley.Part{MediaType: "application/json", Data: []byte(`{"text":"x"}`)}, "application/json"},
	} {
		for _, kind := range []parley.Kind{parley.Request, parley.Response, parley.Notice} {
			w, err := toSpeechAct(&parley.Message{ID: parley.ID{1}, Kind: kind,
				Skill: "open", Parts: []parley.Part{c.part}}, "q", "bob")
			if err != nil {
				t.Fatal(err)
			}
			body, err := jsonx.Encode(w.body)
			if err != nil {
				t.Fatal(err)
			}
			e := signedAs(t, w.act, w.mimeType, jsonx.Value(body))
			if e.Content.MimeType != c.mime {
				t.Errorf("%s: mimeType %s, want %s", name, e.Content.MimeType, c.mime)
			}
			parts := informParts(e)
			if kind == parley.Request {
				parts = requestParts(e)
			}
			if name == "object" { // text in JSON is text in the hub
				parts[0].MediaType, parts[0].Data = c.part.MediaType, c.part.Data
			}
			if len(parts) != 1 || parts[0].MediaType != c.part.MediaType || parts[0].Name != c.part.Name ||
				!bytes.Equal(parts[0].Data, c.part.Data) {
				t.Errorf("%s %s: %+v", name, body, parts)
			}
		}
	}
	// Other forms that peers may use: beside queryId, in the body of another performative, padded.
	for _, c := range []struct {
		act        protocol.Performative
		mime, body string
		media, say string
	}{
		{protocol.Query, "text/plain", `{"queryId":"q","queryType":"open","text":"door"}`, "text/plain", "door"},
		{protocol.Query, "application/octet-stream",
			`{"queryId":"q","queryType":"open","data":"aGk=","mediaType":"image/x"}`, "image/x", "hi"},
		{protocol.Query, "text/plain", `{"queryId":"q","queryType":"open","parameters":{"city":"Bern"}}`,
			"application/json", `{"city":"Bern"}`},
		{protocol.Query, "application/msgpack", `{"queryId":"q","queryType":"open","parameters":{"city":"Bern"}}`,
			"application/json", `{"city":"Bern"}`},
		{protocol.Observe, "text/plain", `{"text":"rain"}`, "text/plain", "rain"},
		{protocol.Observe, "application/octet-stream", `{"data":"aGk"}`, "application/octet-stream", "hi"},
		{protocol.Observe, "application/octet-stream", `{"data":"?"}`, "application/json", `{"data":"?"}`},
	} {
		e := signedAs(t, c.act, c.mime, jsonx.Value(c.body))
		parts := wholeBody(e)
		if c.act == protocol.Query {
			parts = requestParts(e)
		}
		media := map[bool]string{true: "text/plain", false: parts[0].MediaType}[parts[0].IsText()]
		if len(parts) != 1 || media != c.media || string(parts[0].Data) != c.say {
			t.Errorf("%s %s: %s %q", c.mime, c.body, media, parts[0].Data)
		}
	}
}
