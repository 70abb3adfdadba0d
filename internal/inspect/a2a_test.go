package inspect

import (
	"crypto/ed25519"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/parley-hub/parley/internal/jsonx"
)

const goodCard = `{"name":"Lab","description":"Answers.","version":"1","capabilities":{},
"supportedInterfaces":[{"url":"https://lab.example/a2a","protocolBinding":"JSONRPC","protocolVersion":"1.0"}],
"defaultInputModes":["text/plain"],"defaultOutputModes":["text/plain"],
"skills":[{"id":"echo","name":"Echo","description":"Echoes.","tags":["echo"]}]}`

// TestInspectA2A: cards, requests, responses, tasks and events of both versions are recognised,
// and each mistake is explained by one sentence.
func TestInspectA2A(t *testing.T) {
	t.Parallel()
	without := func(text, part, in string) string {
		if !strings.Contains(text, part) {
			t.Fatalf("no %s in %s", part, text)
		}
		return strings.Replace(text, part, in, 1)
	}
	send := `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"messageId":"m1","role":"ROLE_USER",` +
		`"parts":[{"text":"hi"}]}}}`
	old := `{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"kind":"message","messageId":"m1",` +
		`"role":"user","parts":[{"kind":"text","text":"hi"}]}}}`
	post := func(header, body string) string {
		return "POST /a2a/weather HTTP/1.1\nHost: hub.example\nContent-Type: application/json\n" + header + "\n\n" + body
	}
	for _, c := range []struct{ sample, form, sentence, fix string }{
		{goodCard, "agent card", "It is a well-formed agent card of A2A 1.0.", ""},
		{without(goodCard, `"tags":["echo"]`, `"tags":[]`), "agent card", "A skill has no tags.", "At least one"},
		{without(goodCard, `"description":"Answers."`, `"description":""`), "agent card", "It has no description", ""},
		{without(goodCard, "https://lab", "http://lab"), "agent card", "It names a URL without TLS", "https"},
		{without(goodCard, `"JSONRPC"`, `"SOAP"`), "agent card", `The binding "SOAP" is none of`, "skip"},
		{without(goodCard, `"skills":[{"id":"echo","name":"Echo","description":"Echoes.","tags":["echo"]}]`,
			`"skills":[]`), "agent card", "It lists no skill.", ""},
		{`{"name":"Lab","description":"x","version":"1","capabilities":{},"url":"https://lab.example",` +
			`"preferredTransport":"JSONRPC","protocolVersion":"0.3.0","defaultInputModes":["text/plain"],` +
			`"defaultOutputModes":["text/plain"],"skills":[{"id":"a","name":"A","description":"a","tags":["a"]}]}`,
			"agent card", "It is a well-formed agent card of A2A 0.3.", ""},
		{send, "JSON-RPC request", "It is a well-formed JSON-RPC request of A2A 1.0.", ""},
		{old, "JSON-RPC request", "It is a well-formed JSON-RPC request of A2A 0.3.", ""},
		{post("A2A-Version: 1.0", send), "JSON-RPC request", "It is a well-formed", ""},
		{post("A2A-Version: 1.0.7", send), "JSON-RPC request", "It is a well-formed", ""},
		{post("", old), "JSON-RPC request", "It is a well-formed JSON-RPC request of A2A 0.3.", ""},
		{post("X: y", send), "JSON-RPC request", "It has no header A2A-Version, so it is read as 0.3", "A2A-Version: 1.0"},
		{post("A2A-Version: 9.9", send), "JSON-RPC request", "The version 9.9 is none", ""},
		{post("A2A-Version: 0.3", send), "JSON-RPC request", "The header says 0.3, but the words are of 1.0.", ""},
		{without(send, "ROLE_USER", "ROLE_AGENT"), "JSON-RPC request", "A client speaks as the agent.", "ROLE_USER"},
		{without(send, "ROLE_USER", "user"), "JSON-RPC request", `The role "user" is none of A2A 1.0.`, "ROLE_USER"},
		{without(send, `"messageId":"m1",`, ""), "JSON-RPC request", "It has no message.messageId", ""},
		{without(send, `messageId`, "message_id"), "JSON-RPC request",
			"It writes message_id where A2A writes messageId.", ""},
		{without(send, `{"text":"hi"}`, `{"kind":"text","text":"hi"}`), "JSON-RPC request", "A part names its kind", "text"},
		{without(send, `{"text":"hi"}`, `{"text":"hi","raw":"aGk="}`), "JSON-RPC request", "A part has not exactly one", ""},
		{without(send, `{"text":"hi"}`, `{"raw":"a-_k"}`), "JSON-RPC request", "The bytes of a part are not base64.", ""},
		{without(send, `"hi"`, `7`), "JSON-RPC request", "The text of a part is not a string.", "data"},
		{without(send, `"m1"`, `7`), "JSON-RPC request", "message.messageId is not a string.", ""},
		{without(send, `[{"text":"hi"}]`, `[]`), "JSON-RPC request", "It has no parts.", ""},
		{without(send, `SendMessage`, `message/post`), "JSON-RPC request", "The method message/post is unknown.", ""},
		{without(send, `"id":1,`, ``), "JSON-RPC request", "It has no id, so it is a notification", ""},
		{without(old, `{"kind":"text","text":"hi"}`, `{"text":"hi"}`), "JSON-RPC request", "A part names no kind.", "kind"},
		{`{"jsonrpc":"2.0","id":1,"method":"CreateTaskPushNotificationConfig","params":{"taskId":"t",` +
			`"url":"http://h.example"}}`, "JSON-RPC request", "The webhook is not at an https:// URL.", "plain_push"},
		{`{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"no","data":[{"reason":"TASK_NOT_FOUND",` +
			`"metadata":{"ref":"abc"}}]}}`, "JSON-RPC response", "The agent refused: no such task", ""},
		{`{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"no","data":{"ref":"abc"}}}`, "JSON-RPC response",
			"error.data is not a list.", ""},
		{`{"jsonrpc":"2.0","id":1,"result":{"task":{"id":"T","contextId":"C","status":{"state":"TASK_STATE_COMPLETED"},` +
			`"artifacts":[{"artifactId":"A","parts":[{"data":7}]}]}}}`, "JSON-RPC response", "It is a well-formed", ""},
		{`{"id":"T","contextId":"C","status":{"state":"completed"}}`, "task", "The state completed is not in the words of " +
			"A2A 1.0.", "TASK_STATE_COMPLETED"},
		{`{"id":"T","contextId":"C","status":{"state":"TASK_STATE_COMPLETED"},"artifacts":{}}`, "task",
			"task.artifacts is not a list.", ""},
		{`{"id":"T","contextId":"C","status":{"state":"TASK_STATE_LOST"}}`, "task", `The state "TASK_STATE_LOST" is unknown.`,
			""},
		{`{"statusUpdate":{"taskId":"T","contextId":"C","status":{"state":"TASK_STATE_WORKING"}}}`, "stream event",
			"It is a well-formed stream event", ""},
		{`{"kind":"status-update","taskId":"T","contextId":"C","status":{"state":"working"}}`, "stream event",
			"The status update does not say whether it is final.", ""},
		{post("A2A-Notification-Token: x", `{"artifactUpdate":{"taskId":"T","contextId":"C","artifact":{"artifactId":"A",`+
			`"parts":[{"url":"https://x.example/y"}]}}}`), "webhook", "It is a well-formed webhook", ""},
		{`{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":"x"}]}`, "message", "It is a well-formed message", ""},
		{`{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"x"}]},"configuration":{"blocking":true}}`,
			"request to send a message", "blocking is of 0.3.", "returnImmediately"},
		{post("A2A-Version: 1.0", `{"jsonrpc":"2.0","jsonrpc":"2.0","id":1}`), "", "It is not one JSON object", "-32700"},
	} {
		s, err := Read([]byte(c.sample))
		if err != nil {
			t.Fatalf("%s: %v", c.sample, err)
		}
		for _, p := range Protocols {
			if p.Recognises(s) {
				if p.Name != "a2a" {
					t.Errorf("%s: taken for %s", c.sample, p.Name)
				}
				break
			}
		}
		v, err := inspectA2A(t.Context(), s, Options{Now: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		form := ""
		for _, check := range v.Checks {
			if check.Name == "form" {
				form = check.Detail
			}
		}
		if form != c.form || !strings.HasPrefix(v.Sentence, c.sentence) || !strings.Contains(v.Fix, c.fix) {
			t.Errorf("%s\n%s: %s %s\nwant %s: %s %s", c.sample, form, v.Sentence, v.Fix, c.form, c.sentence, c.fix)
		}
	}
}

// TestInspectA2ASignature: --key tells the key that signed a card from another one.
func TestInspectA2ASignature(t *testing.T) {
	t.Parallel()
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: key},
		new(jose.SignerOptions).WithHeader("kid", "k1"))
	if err != nil {
		t.Fatal(err)
	}
	form, err := jsonx.Canonicalize([]byte(goodCard))
	if err != nil {
		t.Fatal(err)
	}
	jws, err := signer.Sign(form)
	if err != nil {
		t.Fatal(err)
	}
	compact, err := jws.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(compact, ".")
	card := strings.TrimSuffix(goodCard, "}") + `,"signatures":[{"protected":"` + parts[0] + `","signature":"` + parts[2] +
		`"}]}`
	other := ed25519.NewKeyFromSeed([]byte(strings.Repeat("x", ed25519.SeedSize)))
	for _, c := range []struct {
		card     string
		key      ed25519.PrivateKey
		sentence string
	}{
		{card, key, "It is a well-formed agent card of A2A 1.0."},
		{card, other, "None of these keys signed the card"},
		{strings.Replace(card, "Answers.", "Lies.", 1), key, "None of these keys signed the card"},
	} {
		s, err := Read([]byte(c.card))
		if err != nil {
			t.Fatal(err)
		}
		public := base64.StdEncoding.EncodeToString(c.key.Public().(ed25519.PublicKey))
		v, err := inspectA2A(t.Context(), s, Options{Now: time.Now(), Keys: []string{public}})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(v.Sentence, c.sentence) {
			t.Errorf("%s, want %s", v.Sentence, c.sentence)
		}
	}
}
