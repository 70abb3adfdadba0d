package asp

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/internal/jsonx"
)

func signed(t testing.TB, act protocol.Performative, body any) *protocol.Envelope {
	t.Helper()
	return signedAs(t, act, "", body)
}

func signedAs(t testing.TB, act protocol.Performative, mimeType string, body any) *protocol.Envelope {
	t.Helper()
	id, err := protocol.GenerateIdentity("agent://a.example/x/y", "org_a")
	if err != nil {
		t.Fatal(err)
	}
	session, err := protocol.NewSessionID()
	if err != nil {
		t.Fatal(err)
	}
	e, err := protocol.Draft{SessionID: session, Performative: act, MimeType: mimeType, Body: body}.Sign(id)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestReplies(t *testing.T) {
	for _, c := range []struct {
		act   protocol.Performative
		body  string
		kind  parley.Kind
		state parley.State
		text  string
		code  parley.Code
	}{
		{protocol.Inform, `{"informType":"result","referenceId":"q","data":{"text":"yes"}}`, parley.Response, 0,
			"yes", ""},
		{protocol.Inform, `{"informType":"result","data":{"result":42}}`, parley.Response, 0, "", ""},
		{protocol.Inform, `{"topic":"yes"}`, parley.Response, 0, "yes", ""},
		{protocol.Inform, `{"informType":"progress","topic":"half"}`, parley.Event, parley.Working, "half", ""},
		{protocol.Inform, `{"informType":"accepted"}`, parley.Event, parley.Accepted, "", ""},
		{protocol.Inform, `{"informType":"chunk","data":{"text":"a"}}`, parley.Event, 0, "a", ""},
		{protocol.Inform, `{"informType":"error","code":"timeout","topic":"late"}`, parley.Failure, 0,
			"", parley.TimedOut},
		{protocol.Inform, `{"informType":"error","code":"unspecified"}`, parley.Failure, 0, "", parley.HandlerFailed},
		{protocol.Reject, `{"referenceId":"q","code":"unauthorized","reason":"no"}`, parley.Failure, 0,
			"", parley.Forbidden},
		{protocol.Clarify, `{"referenceId":"q","question":"which?"}`, parley.Event, parley.NeedsInput, "which?", ""},
		{protocol.Accept, `{"referenceId":"q"}`, parley.Event, parley.Accepted, "", ""},
		{protocol.Inform, `{"informType":"introduction"}`, 0, 0, "", ""},
		{protocol.Observe, `{"topic":"x"}`, 0, 0, "", ""},
	} {
		e := signed(t, c.act, jsonx.Value(c.body))
		m := replyOf(e)
		if c.kind == 0 {
			if m != nil {
				t.Errorf("%s %s: %+v", c.act, c.body, m)
			}
			continue
		}
		if m == nil || m.Kind != c.kind || m.State != c.state || m.Text() != c.text ||
			m.Error != nil && m.Error.Code != c.code || (m.Error == nil) != (c.code == "") {
			t.Errorf("%s %s: %+v", c.act, c.body, m)
		}
	}
}

// TestRejectionsHaveReasons looks at every rejection code of the protocol.
func TestRejectionsHaveReasons(t *testing.T) {
	if _, ok := bridge.PeerReasons[Protocol]["unspecified"]; !ok || len(bridge.PeerReasons[Protocol]) != len(meanings)+1 {
		t.Errorf("%d reasons for %d codes", len(bridge.PeerReasons[Protocol]), len(meanings)+1)
	}
	for code := range meanings {
		want := bridge.PeerReasons[Protocol][code]
		for act, body := range map[protocol.Performative]string{
			protocol.Reject: `{"referenceId":"q","code":"` + code + `","reason":"not so"}`,
			protocol.Inform: `{"informType":"error","code":"` + code + `","topic":"not so"}`,
		} {
			m := replyOf(signed(t, act, jsonx.Value(body)))
			if m == nil || m.Error == nil || want == "" || m.Error.Source != parley.ByPeer || m.Error.Reason != want ||
				m.Error.Detail != "it answered "+code+": not so" {
				t.Errorf("%s %s: %+v, want %s", act, code, m, want)
			}
		}
	}
	e := replyOf(signed(t, protocol.Reject, jsonx.Value(`{"referenceId":"q","code":"unspecified"}`))).Error
	if e.Reason != parley.PeerRefused {
		t.Errorf("unspecified: %+v", e)
	}
}

func TestWords(t *testing.T) {
	part, err := parley.JSON([]int{1})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		m    parley.Message
		act  protocol.Performative
		body string
	}{
		{parley.Message{Kind: parley.Request, Skill: "s", Parts: []parley.Part{part}}, protocol.Query,
			`{"queryType":"s","parameters":{"result":[1]}}`},
		{parley.Message{Kind: parley.Response, Parts: []parley.Part{parley.Text("x")}}, protocol.Inform,
			`{"informType":"result","data":{"text":"x"},"referenceId":"q"}`},
		{parley.Message{Kind: parley.Failure, Error: parley.Refuse(parley.HandlerFailed, "no")}, protocol.Inform,
			`{"informType":"error","topic":"no","code":"unspecified","referenceId":"q"}`},
		{parley.Message{Kind: parley.Notice, Act: "COMMIT", Parts: []parley.Part{{MediaType: "application/json",
			Data: []byte(`{"commitmentId":"c","terms":{}}`)}}}, protocol.Commit, `{"commitmentId":"c","terms":{}}`},
		{parley.Message{Kind: parley.Notice, Act: "say", Parts: []parley.Part{parley.Text("x")}}, protocol.Inform,
			`{"informType":"message","topic":"say","data":{"text":"x"},"referenceId":"q"}`},
	} {
		w, err := toSpeechAct(&c.m, "q", "bob")
		if err != nil || w.act != c.act {
			t.Errorf("%+v: %s %v", c.m, w.act, err)
			continue
		}
		got, err := jsonx.Encode(w.body)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != c.body {
			t.Errorf("%s\nwant %s", got, c.body)
		}
	}
}

// FuzzReply: the translation of any body ends, and its content is JSON or text.
func FuzzReply(f *testing.F) {
	f.Add([]byte(`{"informType":"result","data":{"result":[1]}}`))
	f.Add([]byte(`{"informType":7,"data":"x","topic":[]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if jsonx.Value(b).Kind() != '{' || jsonx.Valid(b, 60) != nil {
			return
		}
		id, err := protocol.GenerateIdentity("agent://a.example/x/y", "org_a")
		if err != nil {
			t.Fatal(err)
		}
		e, err := protocol.Draft{SessionID: "019cc8aa-0001-7def-8a12-000000000001", Performative: protocol.Inform,
			Body: jsonx.Value(b)}.Sign(id)
		if err != nil {
			return // not a body of INFORM
		}
		m := replyOf(e)
		if m == nil {
			return
		}
		for _, p := range m.Parts {
			if p.IsJSON() && !json.Valid(p.Data) {
				t.Errorf("%q", p.Data)
			}
		}
	})
}

// TestExtension: the extension of a message survives encoding and decoding.
func TestExtension(t *testing.T) {
	at := time.Date(2026, 11, 22, 10, 11, 12, 345678901, time.UTC)
	plain := protocol.Record{Session: "019cc8aa-0001-7def-8a12-000000000001", Position: 7, Kind: protocol.RecordMessage,
		Time: at, From: protocol.Introduced, To: protocol.Conversing,
		Format: protocol.MessagePack, MessageID: "019cc8aa-0001-7def-8a12-000000000002",
		Sender: "agent://a.example/b/c", Sequence: 3, Signature: "ed25519:00", Digest: "sha256:11",
		ScoreFrom: 12, ScoreTo: 13, Proof: "thumb \"\u2028\x01é\"", ProofUntil: at.Add(time.Minute)}
	closing, disputed, empty := plain, plain, protocol.Record{Kind: protocol.RecordMessage}
	closing.Kind, closing.By, closing.Reason = protocol.RecordClose, "agent://a.example/b/c", "enough"
	disputed.Dispute = &protocol.Dispute{DisputeID: "d", Reason: "r"}
	who := []protocol.Participant{{AgentID: "agent://a.example/b/c", OrgID: "o", KeyID: "k", Next: 1}}
	for name, x := range map[string]extension{"plain": {Record: plain}, "closing": {Record: closing},
		"disputed": {Record: disputed}, "empty": {Record: empty},
		"joined": {Record: plain, Joined: who}, "context": {Record: plain,
			unmapped: unmapped{Context: []string{"custom x"}}}, "subject": {Record: plain,
			unmapped: unmapped{Subject: "s"}},
		"constraints": {Record: plain, unmapped: unmapped{Constraints: &protocol.Constraints{MaxTokenBudget: 5}}}} {
		b, err := jsonx.Encode(x)
		if err != nil {
			t.Fatal(name, err)
		}
		read, err := recordOf(&parley.Message{Extensions: map[string]json.RawMessage{Protocol: json.RawMessage(b)}})
		if err != nil {
			t.Fatalf("%s: %s: %v", name, b, err)
		}
		if !reflect.DeepEqual(*read, x) {
			t.Errorf("%s: read\n%+v\nwant\n%+v", name, *read, x)
		}
	}
	bad := extension{Record: plain}
	bad.Record.Proof = "\xff"
	if b, err := encodeExtension(&bad.Record, nil, false, callee{}); err == nil {
		t.Errorf("%s has a text that is none", b[Protocol])
	}
}
