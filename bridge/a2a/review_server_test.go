package a2a

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
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
