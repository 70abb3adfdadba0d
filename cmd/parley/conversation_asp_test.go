package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/uagents"
)

// aspConversation holds a session through a hub and exports it, through the
// command, in both formats.
func aspConversation(t *testing.T) (transcript, records []byte) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	n, err := node.Open(t.Context(), node.Config{Data: dir, Listen: node.Listen{HTTP: "127.0.0.1:0",
		Admin: "127.0.0.1:0"},
		ASP: node.ASP{Registration: "open"}})
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
	me, err := asp.GenerateIdentity("agent://anna.example/sales/anna", "org_anna")
	if err != nil {
		t.Fatal(err)
	}
	c := &asp.Client{Server: n.Addresses().HTTP, Identity: me,
		HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	if err := c.Register(t.Context(), me.Card(), nil); err != nil {
		t.Fatal(err)
	}
	s, err := c.Open(t.Context(), asp.Invitation{To: []string{n.AgentAddresses("weather")["asp"]}})
	if err != nil {
		t.Fatal(err)
	}
	for m, err := range s.Messages(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if m.State == asp.Introduced {
			break
		}
	}
	for i := range 3 {
		if _, err := s.Ask(t.Context(), asp.Question{QueryType: "talk",
			Parameters: map[string]string{"text": fmt.Sprint("question ", i)}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(t.Context(), "done"); err != nil {
		t.Fatal(err)
	}
	page, err := n.Admin().Conversations(t.Context(), admin.Actor{Name: "test", Role: admin.Read},
		index.ConversationFilter{})
	if err != nil || len(page.Conversations) != 1 {
		t.Fatal(page, err)
	}
	export := func(args ...string) []byte {
		t.Helper()
		path := filepath.Join(t.TempDir(), "export")
		var out, errs bytes.Buffer
		if code := run(append([]string{"conversation", "export", page.Conversations[0].ID.String(), "--data", dir,
			"--out", path}, args...), strings.NewReader(""), &out, &errs); code != 0 {
			t.Fatalf("export %v: exit %d: %s%s", args, code, &out, &errs)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	transcript, records = export(), export("--format", "hub")
	if !bytes.Equal(transcript, export("--format", "asp")) {
		t.Error("a conversation of ASP agents is not exported as its session by default")
	}
	if b := export("--format", "hub", "--digests"); bytes.Contains(b, []byte(`"raw"`)) ||
		bytes.Contains(b, []byte(`\"raw\"`)) || bytes.Contains(b, []byte("question 1")) {
		t.Errorf("an export of digests holds content: %s", b)
	}
	var errs bytes.Buffer
	for _, args := range [][]string{{"--format", "asp", "--digests"}, {"--format", "pdf"}} {
		if code := run(append([]string{"conversation", "export", page.Conversations[0].ID.String(), "--data", dir},
			args...), strings.NewReader(""), io.Discard, &errs); code != exitUsage {
			t.Errorf("%v: exit %d: %s", args, code, &errs)
		}
	}
	return transcript, records
}

// verifyFile runs `conversation verify` on a file.
func verifyFile(t *testing.T, b []byte, into any, args ...string) (int, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	code := run(append([]string{"conversation", "verify", path, "--json"}, args...), strings.NewReader(""), &out,
		io.Discard)
	if err := json.Unmarshal(out.Bytes(), into); err != nil {
		t.Fatalf("%q: %v", out.String(), err)
	}
	return code, out.String()
}

// TestConversationOfASP: a hub's export of an ASP conversation verifies without the hub,
// in both formats. A changed bit, and a message removed, moved, inserted or cut off at
// the end, are found, and the place is named (ASP-018, ASP-077, ASP-078).
func TestConversationOfASP(t *testing.T) {
	t.Parallel()
	transcript, records := aspConversation(t)

	var good aspTranscript
	if code, out := verifyFile(t, transcript, &good); code != 0 || !good.OK || !good.Signed || good.Messages < 9 ||
		good.State != "CLOSED" {
		t.Fatalf("exit %d: %s", code, out)
	}
	const first = 2 // line of record 0
	lines := strings.SplitAfter(string(transcript), "\n")
	count := int(good.Records)
	for name, c := range map[string]struct {
		edit func(l []string) []string
		want string // the place and the code of the first fault
	}{
		"one bit changed": {func(l []string) []string {
			b := []byte(l[first+4])
			b[strings.Index(l[first+4], "question")] ^= 1
			l[first+4] = string(b)
			return l
		}, "message at position 4: chain_mismatch"},
		"one bit of a signature changed": {func(l []string) []string {
			b := []byte(l[first+5])
			b[strings.Index(l[first+5], "ed25519:")+20] ^= 1
			l[first+5] = string(b)
			return l
		}, "message at position 5: chain_mismatch"},
		"one removed": {func(l []string) []string { return slices.Delete(l, first+4, first+5) },
			"message at position 4: chain_mismatch"},
		"one moved": {func(l []string) []string { l[first+4], l[first+6] = l[first+6], l[first+4]; return l },
			"message at position 4: chain_mismatch"},
		"one inserted": {func(l []string) []string { return slices.Insert(l, first+5, l[first+4]) },
			"message at position 5: chain_mismatch"},
		"tail cut": {func(l []string) []string { return slices.Delete(l, first+count-1, first+count) },
			fmt.Sprintf("end of the file: truncated (%d of %d records)", count-1, count)},
		"end cut": {func(l []string) []string { return l[:first+5] }, "end of the file: truncated"},
		"cut in a line": {func(l []string) []string { l[first+5] = l[first+5][:50]; return l[:first+6] },
			"end of the file: truncated"},
	} {
		t.Run("transcript, "+name, func(t *testing.T) {
			var v aspTranscript
			code, out := verifyFile(t, []byte(strings.Join(c.edit(slices.Clone(lines)), "")), &v)
			if code != exitFailed || v.OK || len(v.Faults) == 0 || !strings.HasPrefix(v.Faults[0], c.want) {
				t.Errorf("exit %d: %s", code, out)
			}
		})
	}

	t.Run("transcript, cut and sealed anew without the signature", func(t *testing.T) {
		var v aspTranscript
		code, out := verifyFile(t, []byte(unsignedASP(t, lines[:first+count-1])), &v)
		if code != exitFailed || v.OK || len(v.Faults) != 1 ||
			!strings.HasPrefix(v.Faults[0], "end of the file: no server signed it") {
			t.Errorf("exit %d: %s", code, out)
		}
	})

	v, code := verify(t, records)
	if code != 0 || !v.OK || v.Verified != int(good.Messages) {
		t.Fatalf("exit %d, of %d: %+v", code, good.Messages, v)
	}
	lines = strings.SplitAfter(string(records), "\n")
	// in the file, from 1
	at := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, `"act":"QUERY"`) }) + 1
	for name, c := range map[string]struct {
		edit func(l []string) []string
		want string
	}{
		"one bit changed": {func(l []string) []string {
			b := []byte(l[at-1])
			b[strings.Index(l[at-1], `"QUERY"`)+1] ^= 1
			l[at-1] = string(b)
			return l
		}, fmt.Sprintf("line %d was changed", at)},
		"one removed": {func(l []string) []string { return slices.Delete(l, at-1, at) },
			fmt.Sprintf("line number %d is missing", at-1)},
		"one moved": {func(l []string) []string {
			x := l[at-1]
			return slices.Insert(slices.Delete(l, at-1, at),
				at+2, x)
		}, fmt.Sprintf("line %d was moved: it is number %d", at+3, at-1)},
		"one inserted": {func(l []string) []string { return slices.Insert(l, at+1, l[at-1]) },
			fmt.Sprintf("line %d is a copy of line %d: it was inserted", at+2, at)},
		"tail cut": {func(l []string) []string { return l[:at] },
			"the last line of the export is missing: the file was cut off"},
	} {
		t.Run("records, "+name, func(t *testing.T) {
			v, code := verify(t, []byte(strings.Join(c.edit(slices.Clone(lines)), "")))
			if code != exitFailed || v.OK || !slices.Contains(v.Problems, c.want) {
				t.Errorf("exit %d, want %q: %q", code, c.want, v.Problems)
			}
		})
	}
}

// unsignedASP makes a complete transcript of the first lines of another, as an attacker
// can without the server's key: it names no server and has new seals.
func unsignedASP(t *testing.T, lines []string) string {
	t.Helper()
	seal := sha256.Sum256([]byte("asp-transcript\x00"))
	messages, head, state := 0, "", ""
	var out strings.Builder
	for i, l := range lines {
		from, to := strings.Index(l, `":`)+2, strings.LastIndex(l, `,"chain":"`)
		if to < 0 { // the line that begins the records
			out.WriteString(l)
			continue
		}
		object := l[from:to]
		if i == 0 {
			var h map[string]json.RawMessage
			if err := json.Unmarshal([]byte(object), &h); err != nil {
				t.Fatal(err)
			}
			delete(h, "server")
			delete(h, "serverKey")
			// The verifier knows the file by its first member.
			b, err := json.Marshal(h)
			if err != nil {
				t.Fatal(err)
			}
			object = `{"format":` + string(h["format"]) + `,"` +
				strings.TrimPrefix(strings.Replace(string(b), `"format":`+string(h["format"])+`,`, "", 1), `{"`)
		} else {
			var r struct {
				To      string `json:"to"`
				Message *struct {
					Integrity struct{ Hash string }
				} `json:"message"`
			}
			if err := json.Unmarshal([]byte(object), &r); err != nil {
				t.Fatal(err)
			}
			if r.Message != nil {
				messages, head = messages+1, r.Message.Integrity.Hash
			}
			state = r.To
		}
		seal = sha256.Sum256(append(seal[:], object...))
		fmt.Fprintf(&out, "%s%s,\"chain\":\"%x\"%s", l[:from], object, seal, l[to+len(`,"chain":"`)+65:])
	}
	fmt.Fprintf(&out, "],\n\"trailer\":{\"count\":%d,\"messages\":%d,\"head\":%q,\"state\":%q,\"chain\":\"%x\"}}\n",
		len(lines)-2, messages, head, state, seal)
	return out.String()
}

// TestVerifyOwnSignatures: messages of each protocol with signatures verify again from
// the file alone, and changed messages do not.
func TestVerifyOwnSignatures(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC().Truncate(time.Millisecond)
	me, err := uagents.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	u, err := uagents.NewEnvelope(me.Address(), me.Address(), uagents.NewSession(),
		uagents.Message{Schema: "model:" + strings.Repeat("a", 64), Payload: []byte(`{"text":"hello"}`)},
		now.Add(time.Minute))
	if err == nil {
		err = u.Sign(me)
	}
	if err != nil {
		t.Fatal(err)
	}
	uagent, err := u.Encode()
	if err != nil {
		t.Fatal(err)
	}
	peer, err := agh.IdentityFromSeed("worker", bytes.Repeat([]byte{3}, 32))
	if err != nil {
		t.Fatal(err)
	}
	e := &agh.Envelope{ID: "g1", WorkspaceID: "ws", Channel: "c", TS: now.Unix()}
	if err := e.SetContent(&agh.Greet{Card: &agh.Card{PeerID: peer.ID(), Capability: []string{"hello"}}}); err != nil {
		t.Fatal(err)
	}
	greet, err := peer.Sign(e)
	if err != nil {
		t.Fatal(err)
	}
	anna, err := asp.GenerateIdentity("agent://anna.example/sales/anna", "org_anna")
	if err != nil {
		t.Fatal(err)
	}
	session, err := asp.NewSessionID()
	if err != nil {
		t.Fatal(err)
	}
	card, err := anna.Card().JSON()
	if err != nil {
		t.Fatal(err)
	}
	keys := []admin.ExportKey{{KeyID: anna.Public().ID(), Algorithm: admin.AlgorithmASPCard, Public: card}}
	var said [2][]byte
	for i, f := range []asp.Format{asp.JSON, asp.MessagePack} {
		m, err := asp.Draft{SessionID: session, Time: now, Performative: asp.Inform,
			Body: asp.Information{Topic: "hello"}, Format: f}.Sign(anna)
		if err != nil {
			t.Fatal(err)
		}
		said[i] = m.Raw()
	}
	for name, c := range map[string]struct {
		protocol, peer string
		raw            []byte
		keys           []admin.ExportKey
	}{
		"uagents":            {"uagents", me.Address(), uagent, nil},
		"agh":                {"agh", "ws/" + peer.ID(), greet, nil},
		"asp":                {"asp", anna.ID(), said[0], keys},
		"asp in MessagePack": {"asp", anna.ID(), said[1], keys},
	} {
		t.Run(name, func(t *testing.T) {
			record := func(peer string, raw []byte) *admin.ExportRecord {
				return &admin.ExportRecord{Message: &admin.ExportMessage{Origin: admin.ExportOrigin{Protocol: c.protocol,
					Peer: peer, Received: now, Assurance: parley.Signed, Raw: raw, Keys: c.keys}}}
			}
			var good signatureChecks
			good.message(t.Context(), 1, record(c.peer, c.raw), "")
			if good.verified != 1 || len(good.problems)+len(good.reasons) > 0 {
				t.Errorf("as it was: %+v", good)
			}
			from, to := "hello", "jello"
			if c.protocol == "uagents" { // the payload is base64
				from, to = uagents.EncodePayload([]byte(`{"text":"hello"}`)),
					uagents.EncodePayload([]byte(`{"text":"jello"}`))
			}
			changed := bytes.Replace(c.raw, []byte(from), []byte(to), 1)
			if bytes.Equal(changed, c.raw) {
				t.Fatal("nothing was changed")
			}
			for what, r := range map[string]*admin.ExportRecord{"changed": record(c.peer, changed),
				"of another": record("somebody else", c.raw)} {
				var bad signatureChecks
				bad.message(t.Context(), 7, r, "")
				if bad.verified != 0 || len(bad.problems) != 1 ||
					!strings.HasPrefix(bad.problems[0], "line 7, message") {
					t.Errorf("%s: %+v", what, bad)
				}
			}
		})
	}
}
