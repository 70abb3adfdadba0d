package a2a

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/jsonx"
)

// Parts come back as they were sent, with metadata and number literals.
func TestPartsRoundTrip(t *testing.T) {
	for _, c := range []struct{ wire, media, data, back string }{
		{`{"text":"hi"}`, plainText, "hi", ""},
		{`{"text":"# hi","mediaType":"text/markdown"}`, "text/markdown", "# hi", ""},
		{`{"text":"{\"n\":1.10}","mediaType":"application/json"}`, plainJSON, `{"n":1.10}`, `{"data":{"n":1.1}}`},
		{`{"data":{"a":[1,2.5,"x",null,true]}}`, plainJSON, `{"a":[1,2.5,"x",null,true]}`, ""},
		{`{"data":12345678901234567890}`, plainJSON, "12345678901234567890",
			`{"text":"12345678901234567890","mediaType":"application/json"}`},
		{`{"data":{"n":0.1000000000000000055511151231257827}}`, plainJSON, `{"n":0.1000000000000000055511151231257827}`,
			`{"text":"{\"n\":0.1000000000000000055511151231257827}","mediaType":"application/json"}`},
		{`{"data":{"a":1},"mediaType":"application/x+json"}`, "application/x+json", `{"a":1}`, ""},
		{`{"data":[1],"metadata":{"k":"v"}}`, plainJSON, "[1]", ""},
		{`{"raw":"AAEC"}`, octetStream, "\x00\x01\x02", `{"raw":"AAEC","mediaType":"application/octet-stream"}`},
		{`{"raw":"aGk=","filename":"a.txt","mediaType":"text/plain"}`, "text/plain", "hi", ""},
		{`{"url":"https://example.com/x","mediaType":"image/png","filename":"x.png","metadata":{"` + ExtensionURI +
			`":{"digest":"sha-256=:AA==:"},"k":1}}`, "image/png", "", ""},
	} {
		var p protocol.Part
		if err := json.Unmarshal([]byte(c.wire), &p); err != nil {
			t.Fatal(err)
		}
		got, err := toPart("x", &p, jsonx.Value(c.wire))
		if err != nil || got.MediaType != c.media || string(got.Data) != c.data {
			t.Errorf("%s becomes %q %s, %v", c.wire, got.MediaType, got.Data, err)
			continue
		}
		if c.back == "" {
			c.back = c.wire
		}
		k := map[string]keptPart{"0": {without(memberAt(jsonx.Value(c.wire), "metadata"), ExtensionURI)}}
		back := fromParts([]parley.Part{got}, k)
		if !sameContent(jsonx.Value(encoded(t, back[0])), jsonx.Value(c.back)) {
			t.Errorf("%s comes back as %s, want %s", c.wire, encoded(t, back[0]), c.back)
		}
	}
	// A data part of 0.3 that wraps other JSON.
	p := &protocol.Part{Content: protocol.Data{Value: float64(7)}}
	got, err := toPart("x", p, jsonx.Value(`{"kind":"data","data":{"value":7.0},"metadata":{"data_part_compat":true}}`))
	if err != nil || string(got.Data) != "7.0" {
		t.Errorf("wrapped data becomes %s, %v", got.Data, err)
	}
}

func TestKeepsNumbers(t *testing.T) {
	for literal, want := range map[string]bool{"0": true, "-0": true, "1.50": true, "1e3": true, "1000": true, "0.1": true,
		"9007199254740993": false, "9007199254740992": true, "1e400": false, "1e-400": false, "0e999999": true,
		"123456789012345680000": true, "123456789012345678901": false, `"9007199254740993"`: true,
		`{"a\"":[1,9007199254740993]}`: false} {
		if got := keepsNumbers([]byte(literal)); got != want {
			t.Errorf("%s: %v", literal, got)
		}
	}
}

// What an A2A agent said of its artifacts goes to an A2A client; the first takes the place of pieces.
func TestArtifactsOfAnAnswer(t *testing.T) {
	m := &parley.Message{Kind: parley.Response, Parts: []parley.Part{parley.Text("a"), parley.Text("b"), parley.Text("c")},
		Extensions: map[string]json.RawMessage{Protocol: json.RawMessage(`{"artifacts":[{"artifactId":"x","name":"one",
		"metadata":{"k":1},"parts":1},{"artifactId":"y","description":"two","parts":2}]}`)}}
	tell := func(pieces bool, m *parley.Message) string {
		p := progress{pieces: pieces}
		var out []string
		for _, e := range p.events(m, time.Time{}) {
			out = append(out, shortly(e))
		}
		return strings.Join(out, "; ")
	}
	if got := tell(false, m); got != "x append=false last=true a; y append=false last=true b+c; COMPLETED" {
		t.Errorf("told %s", got)
	}
	if got := tell(true, m); got != "result append=false last=true a; y append=false last=true b+c; COMPLETED" {
		t.Errorf("after pieces, told %s", got)
	}
	p := progress{}
	a := p.artifacts(m)
	if a[0].Name != "one" || a[0].Metadata["k"] != 1.0 || a[1].Description != "two" {
		t.Errorf("artifacts %+v", a)
	}
	for _, wrong := range []string{`{"artifacts":[{"artifactId":"x","parts":2}]}`, `{"artifacts":[{"artifactId":"x",
		"parts":-1},{"artifactId":"y","parts":4}]}`, `{"artifacts":[{"parts":3}]}`, `[]`} {
		m.Extensions[Protocol] = json.RawMessage(wrong)
		if got := tell(false, m); got != "result append=false last=true a+b+c; COMPLETED" {
			t.Errorf("with %s, told %s", wrong, got)
		}
	}
	if got := tell(false, &parley.Message{Kind: parley.Response}); got != "COMPLETED" {
		t.Errorf("without parts, told %s", got)
	}
}

func TestStatesOfATask(t *testing.T) {
	for _, c := range []struct {
		m    parley.Message
		want []string
	}{
		{parley.Message{Kind: parley.Event, State: parley.Accepted}, []string{"SUBMITTED"}},
		{parley.Message{Kind: parley.Event, State: parley.Accepted, Parts: []parley.Part{parley.Text("ok")}},
			[]string{"SUBMITTED ok"}},
		{parley.Message{Kind: parley.Event, State: parley.NeedsInput, Act: authRequired}, // A2A-090
			[]string{"AUTH_REQUIRED"}},
		{parley.Message{Kind: parley.Event, State: parley.NeedsInput}, []string{"INPUT_REQUIRED"}},
		{parley.Message{Kind: parley.Event}, nil},
		{parley.Message{Kind: parley.Input}, nil},
		{parley.Message{Kind: parley.Cancel}, nil},
		{parley.Message{Kind: parley.Failure, Error: parley.Refuse(parley.Cancelled, "x")}, []string{"CANCELED x"}},
		{parley.Message{Kind: parley.Failure, Error: parley.Refuse(parley.Forbidden, "x")}, []string{"REJECTED x"}},
		{parley.Message{Kind: parley.Failure, Error: parley.Refuse(parley.TimedOut, "x")}, []string{"FAILED x"}},
		{parley.Message{Kind: parley.Failure}, []string{"FAILED "}},
	} {
		p := progress{state: protocol.TaskStateSubmitted}
		var got []string
		for _, e := range p.events(&c.m, time.Time{}) {
			got = append(got, shortly(e))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v %v: %q, want %q", c.m.Kind, c.m.State, got, c.want)
		}
	}
	p := progress{state: protocol.TaskStateCanceled}
	if got := p.events(&parley.Message{Kind: parley.Response}, time.Time{}); got != nil {
		t.Errorf("after the end: %v", got)
	}
}

// The extension carries what A2A has no member for; what a client claims widens no right (A2A-062), and
// hops through this hub are a loop (A2A-063).
func TestExtensionOfAMessage(t *testing.T) {
	w := newWorld(t)
	w.handle("echo", func(_ context.Context, m *parley.Message, r parley.Replier) error {
		return r.Reply(parley.Text(fmt.Sprint(m.From, m.Act, m.Schema, m.Hops, m.Origin.Verdict.Assurance)))
	})
	extended := func(id, x string) string { return say(id, "x", `,"metadata":{"`+ExtensionURI+`":`+x+`}`) }
	got := w.task("alice", "echo", extended("m1",
		`{"act":"ask","schema":"s","hops":["far"],"sender":"bob","assurance":"signed"}`))
	if text := got.Artifacts[0].Parts[0].Text(); text != "aliceasks[far here] session" {
		t.Errorf("the agent got %s", text)
	}
	if _, err := w.send("alice", "echo", extended("m2", `{"hops":["far","here"]}`)); parley.CodeOf(err) != parley.Loop {
		t.Errorf("a loop: %v", err)
	}
}

// A2A-091: a task that waits for input which never comes ends at its deadline.
func TestInputThatNeverComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		g := make(gate, 1)
		w.handle("slow", g.handler)
		g <- "ask where?"
		id := w.task("alice", "slow", say("m1", "x", "")).ID
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		if got, err := w.get("alice", "slow", id); err != nil || got.Status.State != protocol.TaskStateFailed {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// A2A-073: the hub follows tasks by streams and polls. It gives agents no webhook, so there is
// none to call.
func TestAgentsGetNoWebhook(t *testing.T) {
	for _, version := range []string{V1, V03} {
		r, err := toSend(&parley.Message{Kind: parley.Request, Parts: []parley.Part{parley.Text("hi")}},
			sendForm{version: version, immediately: true})
		if err != nil || r.Config == nil || r.Config.PushConfig != nil {
			t.Errorf("%s: %+v, %v", version, r, err)
		}
	}
}
