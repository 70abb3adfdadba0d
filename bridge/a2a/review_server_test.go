package a2a

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/go-jose/go-jose/v4"

	"github.com/parley-hub/parley/bridge"
)

// A2A-052: the record of a message has no secret of its webhook, whatever it came by; the rest is as it came.
func TestRecordHasNoSecretOfAWebhook(t *testing.T) {
	w := newWorld(t)
	w.remote()
	const members = `"token":"tok\u0031-secret","authentication":{"scheme":"Bearer","credentials":"cred-secret"}`
	for i, c := range []struct{ name, body string }{
		{"JSON-RPC", `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":%s}`},
		{"REST", `%s`},
		{"gRPC", ``},
	} {
		for j, spelling := range []string{"taskPushNotificationConfig", "task_push_notification_config",
			"pushNotificationConfig", "push_notification_config"} {
			message := say(fmt.Sprint(i, j), "tok1-secret as such", "")
			ctx, r := w.sending("alice", "remote", configured(message, `"returnImmediately":true,
				"taskPushNotificationConfig":{"url":"`+hookBase+`",`+members+`}`))
			call := callOf(ctx)
			if call.body = nil; c.body != "" {
				call.body = fmt.Appendf(nil, c.body, configured(message, `"returnImmediately":true,"`+spelling+
					`":{"url":"`+hookBase+`",`+members+`}`))
			} else {
				call.params = nil
			}
			result, err := checked{service{w.node.Binding}}.SendMessage(ctx, r)
			w.must(err)
			w.must(w.node.indexed(ctx))
			m, err := w.node.index.Message(t.Context(), string(result.(*protocol.Task).ID))
			w.must(err)
			record, err := w.j.Read(t.Context(), m.Position)
			w.must(err)
			raw := record.Message.Origin.Raw
			if bytes.Contains(raw, []byte("cred-secret")) || bytes.Count(raw, []byte("-secret")) != 1 ||
				!json.Valid(raw) || !bytes.Contains(raw, []byte(hookBase)) {
				t.Errorf("%s, %s: recorded %s", c.name, spelling, raw)
			}
			all, err := service{w.node.Binding}.hooksOf(ctx, result.(*protocol.Task).ID)
			w.must(err)
			if len(all) != 1 || all[0].Token != "tok1-secret" || all[0].Auth.Credentials != "cred-secret" {
				t.Errorf("%s, %s: the webhook is %+v", c.name, spelling, all)
			}
		}
	}
}

// A2A-080: the extended card of a client of 0.3 is signed in the form that the client gets, which is that of
// the public card.
func TestExtendedCardOf03(t *testing.T) {
	h := newCardHub(t, nil)
	ctx := withCall(t.Context(), &call{agent: "crew/weather", caller: bridge.Caller{Name: "crew/bob"}, version: V03})
	m := methods[V03]["agent/getAuthenticatedExtendedCard"]
	result, err := m.call(ctx, h.methods, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	card := []byte(encoded(t, result))
	var doc struct {
		Schemes    map[string]map[string]json.RawMessage `json:"securitySchemes"`
		Signatures []protocol.AgentCardSignature         `json:"signatures"`
	}
	if err := json.Unmarshal(card, &doc); err != nil {
		t.Fatal(err)
	}
	key := h.hubKeys(t)[0].Key
	for name, form := range map[string][]byte{"literal": literalReading(t, card), "python": pythonReading(t, card)} {
		holds := func(s protocol.AgentCardSignature) bool {
			jws, err := jose.ParseSignedCompact(s.Protected+"."+base64.RawURLEncoding.EncodeToString(form)+"."+s.Signature,
				[]jose.SignatureAlgorithm{jose.EdDSA})
			if err != nil {
				t.Fatal(err)
			}
			_, err = jws.Verify(key)
			return err == nil
		}
		if !slices.ContainsFunc(doc.Signatures, holds) {
			t.Errorf("no signature holds for the %s reading of %s", name, card)
		}
	}
	for name, scheme := range doc.Schemes {
		for _, member := range nestedSchemes {
			if scheme[member] != nil {
				t.Errorf("scheme %s repeats itself in %s", name, member)
			}
		}
	}
}

// The history has the message as its client sent it: the digits of its numbers, and members in either
// spelling (rule A2A-010).
func TestHistoryHasWhatWasSent(t *testing.T) {
	w := newWorld(t)
	w.handle("echo", echo)
	part := func(media string) string {
		return `{"message":{"messageId":"m1","role":"ROLE_USER","parts":[{"data":{"n":12345678901234567890}},
			{"raw":"aGk","` + media + `":"image/png","filename":"a.png"},{"text":"x","filename":"b"}]}}`
	}
	ctx := w.as("alice", "echo")
	c := callOf(ctx)
	c.params = json.RawMessage(part("mediaType"))
	c.body = fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":%s}`, part("media_type"))
	result, err := methods[V1]["SendMessage"].call(ctx, w.node.methods, c.params, false)
	w.must(err)
	sent := result.(event1).Task.History[0].Parts
	if text := encoded(t, sent[0]); !strings.Contains(text, "12345678901234567890") {
		t.Errorf("the data is %s", text)
	}
	if p := sent[1]; p.MediaType != "image/png" || p.Raw == nil || *p.Raw != "aGk=" || p.Filename != "a.png" {
		t.Errorf("the file is %s", encoded(t, p))
	}
	if p := sent[2]; p.Text == nil || p.Filename != "b" {
		t.Errorf("the text is %s", encoded(t, p))
	}
}
