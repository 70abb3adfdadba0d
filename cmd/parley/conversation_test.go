package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
)

// onlyConversation sets a variable to the id of the only conversation.
func onlyConversation(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: conversation VARIABLE")
	}
	n := ts.Value(hubKey{}).(*node.Node)
	page, err := n.Admin().Conversations(context.Background(), admin.Actor{Name: "test", Role: admin.Read},
		index.ConversationFilter{})
	ts.Check(err)
	if len(page.Conversations) != 1 {
		ts.Fatalf("there are %d conversations", len(page.Conversations))
	}
	ts.Setenv(args[0], page.Conversations[0].ID.String())
}

// spoil changes the second line of an export.
func spoil(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: spoil FROM TO")
	}
	lines := strings.Split(ts.ReadFile(args[0]), "\n")
	lines[1] = strings.Replace(lines[1], `"from":"operator"`, `"from":"opperator"`, 1)
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(strings.Join(lines, "\n")), 0o600))
}

// signedExport exports a conversation with a message that a SAMVAD client signed.
func signedExport(t *testing.T, auth *samvad.Auth) []byte {
	t.Helper()
	me, err := samvad.IdentityFromSeed("agent://client.test", "key-current", bytes.Repeat([]byte{7}, 32))
	if err != nil {
		t.Fatal(err)
	}
	n, err := node.Open(t.Context(), node.Config{
		Durability: "memory", Listen: node.Listen{HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"},
		Network: node.Network{Allow: []string{"loopback"}},
		Agents: map[string]node.Agent{"client": {SAMVAD: &node.SAMVADAgent{ID: me.ID(),
			Key: base64.StdEncoding.EncodeToString(me.Public()), KID: me.KID()}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	err = n.Handle(parley.Agent{Name: "weather", Exposed: parley.Everywhere},
		parley.RawSkill("talk", func(_ context.Context, m *parley.Message, r parley.Replier) error {
			return r.Reply(m.Parts...)
		}))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := &samvad.Client{Identity: me, HTTP: &http.Client{}}
	call := samvad.Call{URL: n.Addresses().HTTP + "/agents/weather", Skill: "talk", Auth: auth,
		Payload: []byte(`{"text":"hello"}`)}
	if _, err := c.Ask(t.Context(), call); err != nil {
		t.Fatal(err)
	}
	by := admin.Actor{Name: "test", Role: admin.Read}
	page, err := n.Admin().Conversations(t.Context(), by, index.ConversationFilter{})
	if err != nil || len(page.Conversations) != 1 {
		t.Fatal(page, err)
	}
	var out bytes.Buffer
	if err := n.Admin().Export(t.Context(), by, page.Conversations[0].ID.String(), true, &out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func verify(t *testing.T, file []byte, args ...string) (verification, int) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "export.jsonl")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	code := run(append([]string{"conversation", "verify", path, "--json"}, args...), strings.NewReader(""), &out,
		io.Discard)
	var v verification
	if err := json.Unmarshal(out.Bytes(), &v); err != nil {
		t.Fatalf("%q: %v", out.String(), err)
	}
	return v, code
}

// TestVerifySignedExport: the message's own signature is verified again from the file
// alone.
func TestVerifySignedExport(t *testing.T) {
	t.Parallel()
	file := signedExport(t, nil)
	v, code := verify(t, file)
	if code != 0 || !v.OK || v.Messages != 2 || v.Verified != 1 || v.KeyGiven {
		t.Fatalf("exit %d, %+v", code, v)
	}
	if v, code := verify(t, file, "--key", base64.StdEncoding.EncodeToString(make([]byte, 32))); code != 1 ||
		v.KeyGiven || len(v.Problems) != 1 {
		t.Errorf("with another key: exit %d, %+v", code, v)
	}
	if v, code = verify(t, file, "--key", v.Key); code != 0 || !v.KeyGiven {
		t.Errorf("with the hub's key: exit %d, %+v", code, v)
	}
}

// TestVerifyAgain: faults of a message's own signature, in a file whose chain is good.
func TestVerifyAgain(t *testing.T) {
	t.Parallel()
	file := signedExport(t, nil)
	for name, c := range map[string]struct {
		change  func(*admin.ExportMessage)
		reason  string
		problem bool
	}{
		"as it was": {func(*admin.ExportMessage) {}, "", false},
		"envelope changed": {func(m *admin.ExportMessage) {
			m.Origin.Raw = bytes.Replace(m.Origin.Raw, []byte("hello"), []byte("jello"), 1)
		}, "", true},
		"to another path": {func(m *admin.ExportMessage) { m.To = "elsewhere" }, "", true},
		"another key": {func(m *admin.ExportMessage) { m.Origin.Keys[0].Public = bytes.Repeat([]byte{9}, 32) },
			"", true},
		"no key": {func(m *admin.ExportMessage) { m.Origin.Keys = nil },
			"the hub had no enrolled key of the sender: it verified the message with a key that it fetched", false},
		"key of other name": {func(m *admin.ExportMessage) { m.Origin.Keys[0].KeyID = "other" },
			"the key that signed it is no longer enrolled", false},
		"digest only": {func(m *admin.ExportMessage) { m.Origin.Raw = nil },
			"the envelope is not in the file, only its digest", false},
		"no headers": {func(m *admin.ExportMessage) { m.Origin.Header = nil },
			"the signature's headers are not in the file", false},
		"other protocol": {func(m *admin.ExportMessage) { m.Origin.Protocol = "a2e" },
			"messages of a2e have no signature of their own", false},
		"no card": {func(m *admin.ExportMessage) { m.Origin.Protocol = "asp" },
			"the sender's card is not in the file: it was no longer registered with the hub", false},
		"no envelope of it": {func(m *admin.ExportMessage) { m.Origin.Protocol = "uagents" }, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			var v signatureChecks
			_, err := admin.VerifyExport(bytes.NewReader(file),
				func(h *admin.ExportHeader, line int, r *admin.ExportRecord) {
					if r.Message == nil || r.Message.Origin.Protocol != "samvad" {
						return
					}
					c.change(r.Message)
					v.message(t.Context(), line, r, h.Base)
				})
			if err != nil {
				t.Fatal(err)
			}
			if (len(v.problems) > 0) != c.problem || c.reason != "" && v.reasons[c.reason] != 1 ||
				c.reason == "" && !c.problem && v.verified != 1 {
				t.Errorf("%+v", v)
			}
		})
	}
}

// TestVerifyReplacedToken: a message whose token the hub replaced is neither
// verified nor forged. Its signature and the signed digest hold; only the hub
// attests the bytes of its body.
func TestVerifyReplacedToken(t *testing.T) {
	t.Parallel()
	file := signedExport(t, &samvad.Auth{Scheme: "bearer", Token: "aeiou-0123456789"})
	v, code := verify(t, file)
	if code != 0 || !v.OK || v.Messages != 2 || v.Attested != 1 || v.Verified != 0 || len(v.Problems) != 0 {
		t.Fatalf("exit %d, %+v", code, v)
	}
	var text bytes.Buffer
	code = run([]string{"conversation", "verify", "-"}, bytes.NewReader(file), &text, io.Discard)
	if code != 0 || !strings.Contains(text.String(), "\nattested      1 message: ") {
		t.Errorf("exit %d:\n%s", code, text.String())
	}
	changed := bytes.Replace(file, []byte(`"from":"client"`), []byte(`"from":"clienf"`), 1)
	if v, code := verify(t, changed); code != 1 || v.OK {
		t.Errorf("a changed file: exit %d, %+v", code, v)
	}
	for name, c := range map[string]struct {
		change   func(*admin.ExportMessage)
		attested bool
	}{
		"as it was": {func(*admin.ExportMessage) {}, true},
		// The chain of the export shows it; the signature cannot.
		"body changed": {func(m *admin.ExportMessage) {
			m.Origin.Raw = bytes.Replace(m.Origin.Raw, []byte("hello"), []byte("jello"), 1)
		}, true},
		"to another path": {func(m *admin.ExportMessage) { m.To = "elsewhere" }, false},
		"another digest": {func(m *admin.ExportMessage) {
			m.Origin.Header["Content-Digest"] = "sha-256=:" + strings.Repeat("A", 43) + "=:"
		}, false},
		"another key": {func(m *admin.ExportMessage) { m.Origin.Keys[0].Public = bytes.Repeat([]byte{9}, 32) }, false},
		"not said":    {func(m *admin.ExportMessage) { delete(m.Extensions, "samvad") }, false},
		"a token is there": {func(m *admin.ExportMessage) {
			m.Origin.Raw = bytes.Replace(m.Origin.Raw, []byte("hmac-sha256:"), nil, 1)
		}, false},
		"another extension": {func(m *admin.ExportMessage) { m.Extensions["samvad"] = `{"auth":true}` }, false},
	} {
		t.Run(name, func(t *testing.T) {
			var v signatureChecks
			_, err := admin.VerifyExport(bytes.NewReader(file),
				func(h *admin.ExportHeader, line int, r *admin.ExportRecord) {
					if r.Message == nil || r.Message.Origin.Protocol != "samvad" {
						return
					}
					c.change(r.Message)
					v.message(t.Context(), line, r, h.Base)
				})
			if err != nil {
				t.Fatal(err)
			}
			if v.verified != 0 || (v.attested == 1) != c.attested || (len(v.problems) == 1) == c.attested {
				t.Errorf("%+v", v)
			}
		})
	}
}

// TestTail follows a hub as its command does.
func TestTail(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	n, err := node.Open(t.Context(), node.Config{Data: dir, Listen: node.Listen{Admin: "127.0.0.1:0"},
		Policy: node.Policy{Assurance: "session"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	err = n.Handle(parley.Agent{Name: "weather"}, parley.RawSkill("talk",
		func(_ context.Context, m *parley.Message, r parley.Replier) error {
			if m.Text() == "bad" {
				return parley.Refuse(parley.Rejected, "no such city")
			}
			return r.Reply(parley.Text("sunny"))
		}))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"--count", "6"}, []string{"operator → weather  request", "sunny", "to weather: answered", "request",
			"rejected: no such city", "to weather: answered"}},
		{[]string{"--failed", "--count", "1"}, []string{"error  session, go"}},
		{[]string{"--agent", "weather", "--text", "sunny", "--json", "--count", "1"}, []string{`"event":"message"`}},
	} {
		var out bytes.Buffer
		started := make(chan struct{})
		code := make(chan int)
		go func() {
			code <- run(append([]string{"tail", "--data", dir}, c.args...), strings.NewReader(""), &out,
				&starting{started: started})
		}()
		if !strings.Contains(strings.Join(c.args, " "), "--json") {
			<-started
		}
		for done := false; !done; {
			for _, text := range []string{"good", "bad"} {
				if _, err := n.Admin().Ask(t.Context(), admin.Actor{Name: "test", Role: admin.Operate},
					admin.Send{To: "weather", Text: &text}); err != nil {
					t.Fatal(err)
				}
			}
			// With --json no line shows that tail has started: send messages until it
			// ends.
			if strings.Contains(strings.Join(c.args, " "), "--json") {
				select {
				case got := <-code:
					done = true
					go func() { code <- got }()
				default:
				}
			} else {
				done = true
			}
		}
		if got := <-code; got != exitOK {
			t.Errorf("tail %q: exit %d", c.args, got)
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != len(c.want) {
			t.Errorf("tail %q wrote %q", c.args, lines)
			continue
		}
		for i, want := range c.want {
			if !strings.Contains(lines[i], want) {
				t.Errorf("tail %q: line %d is %q, want %q", c.args, i+1, lines[i], want)
			}
		}
	}
}

// starting is a standard error that signals the first write.
type starting struct {
	once    sync.Once
	started chan struct{}
}

func (s *starting) Write(b []byte) (int, error) {
	s.once.Do(func() { close(s.started) })
	return len(b), nil
}
