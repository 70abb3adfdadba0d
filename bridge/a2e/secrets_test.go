package a2e_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-hub/parley/node"
)

// holding names the files below a directory that contain a text.
func holding(t *testing.T, dir, text string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(text)) {
			out = append(out, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestSessionIDIsNotStored: over HTTP the session's id is a bearer secret. Agents
// write it into their requests, some of them twice, and the hub into its greeting;
// neither the journal nor the state of the session holds it. The greeting that the
// agent reads after a restart of the hub names it all the same.
func TestSessionIDIsNotStored(t *testing.T) {
	config := node.Config{Data: filepath.Join(t.TempDir(), "data"), Durability: "disk"}
	w := newWorld(t, config)
	agent := newRaw(t, w.Addresses().Local+"/a2e")
	agent.send(t, `{"type":"handshake/req","id":"h","auth_token":"`+tokenBob+`","agent_caps":["tools"]}`)
	agent.send(t, `{"type":"tool/call/req","id":"c1","session_id":"`+agent.session+
		`","session_id":"`+agent.session+`\ud800","session_id":"`+agent.session+
		`","tool_name":"crew-echo__echo","arguments":{"text":"heliotrope"}}`)
	eventually(t, func() bool {
		return w.calls.Load() == 1 &&
			len(w.Hub().Journal().Deliveries(openTo("crew/echo"))) == 0
	})
	w.close()
	for _, secret := range []string{agent.session, tokenBob} {
		if found := holding(t, config.Data, secret); len(found) > 0 {
			t.Errorf("%s is in %v", secret, found)
		}
	}
	if len(holding(t, config.Data, "heliotrope")) == 0 {
		t.Error("the content is nowhere either: the search sees nothing")
	}
	w.open(config)
	agent.base = w.Addresses().Local + "/a2e"
	stream := agent.stream(t)
	if m := stream.next(t, "handshake/resp"); !strings.Contains(m.line, `"session_id":"`+agent.session+`"`) {
		t.Errorf("the agent reads %s", m.line)
	}
	if m := stream.next(t, "tool/call/resp"); m.ReqID != "c1" || !strings.Contains(m.line, "heliotrope") {
		t.Errorf("the agent reads %s", m.line)
	}
	stream.close()
}
