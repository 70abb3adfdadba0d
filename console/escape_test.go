package console_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"golang.org/x/net/html"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/pairs"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/node"
)

// hostile is what a guest may write anywhere: markup, ends of attributes and of raw text, control characters, and marks
// that change the direction of what stands beside them.
const hostile = "PWN\"><img src=x onerror=window.pwned=1>\u202e\u0007<pwn-tag pwn-attr=1 onload=window.pwned=1>" +
	"<script>window.pwned=1</script>" +
	"' onfocus='window.pwned=1' </pre></textarea></title></svg><!-- {{.}} &lt;b&gt; javascript:window.pwned=1 " +
	"\u202egnp\u202a\u202b\u202c\u202d\u2066\u2067\u2068\u2069\u200e\u200f\u061c\u0007\u001b[31m\u0085\u007f end"

// harmless takes its place on the pages to compare with.
const harmless = "PWN a sentence that nobody minds"

// mebibyte is a name of 1 MiB.
func mebibyte(words string) string {
	return beginning(strings.Repeat(words, 1<<20/len(words)+1), 1<<20)
}

// beginning is at most n bytes of a text.
func beginning(s string, n int) string { return strings.ToValidUTF8(s[:min(len(s), n)], "") }

// An abused hub is one at which every string that an agent may choose has the same words.
type abused struct {
	*bench
	words string
	peers []pairs.Peer
}

// abuse has agents of all protocols say words as senders and as recipients, in their cards, and in requests that the
// hub refuses.
// The hub's own agent and the cards have at most title bytes of them.
func abuse(t *testing.T, words string, title int) *abused {
	t.Helper()
	a := &abused{words: words}
	for _, p := range pairs.Protocols {
		peer, err := pairs.New(p, "peer-"+p)
		if err != nil {
			t.Fatal(err)
		}
		pairs.Titled(peer, beginning(words, title))
		a.peers = append(a.peers, peer)
	}
	a.bench = open(t, func(c *node.Config) {
		if err := pairs.Configure(c, t.TempDir(), a.peers...); err != nil {
			t.Fatal(err)
		}
	})
	say := func(_ context.Context, m *parley.Message, r parley.Replier) error {
		if strings.HasPrefix(pairs.Said(m), "fail ") {
			e := parley.Refuse(parley.Rejected, "%s", words)
			e.Detail = words
			return e
		}
		return errors.Join(r.Progress(words), r.Reply(parley.Part{MediaType: "text/plain; charset=utf-8", Name: words,
			Data: []byte(words)}))
	}
	own := beginning(words, title)
	if err := a.node.Handle(parley.Agent{Name: "worker", Title: own, Description: own, Exposed: parley.Everywhere},
		parley.RawSkill("talk", say, parley.AsDefault(), parley.Describe(own, own))); err != nil {
		t.Fatal(err)
	}
	for _, p := range a.peers {
		if err := p.Join(t.Context(), pairs.At(a.node), false); err != nil {
			t.Fatal(p.Name(), err)
		}
		t.Cleanup(p.Leave)
	}
	return a
}

// speak has every peer ask, and be asked by an operator.
func (a *abused) speak() {
	a.t.Helper()
	for _, p := range a.peers {
		for _, text := range []string{a.words, "fail " + a.words} {
			_, err := p.Ask(a.t.Context(), pairs.Question{To: named{name: "worker"}, Text: text})
			if failure := (*pairs.Failure)(nil); err != nil && !errors.As(err, &failure) {
				a.t.Errorf("%s asks: %v", p.Name(), err)
			}
		}
		for _, verb := range []string{"say ", "fail ", "cry "} {
			said := verb + a.words
			r, err := a.api.Ask(a.t.Context(), admin.Send{To: p.Name(), Text: &said, Timeout: "60s"})
			if err != nil {
				a.t.Errorf("%s is asked to %s: %v", p.Name(), verb, err)
			} else if r.Reply != nil && (r.Reply.Kind == parley.Failure) != (verb == "fail ") &&
				(len(a.words) < 1<<20 || r.Reply.Error.Code == "") { // what is that long may be refused with a code
				a.t.Errorf("%s is asked to %s: %+v", p.Name(), verb, r.Reply.Error)
			}
		}
	}
}

// claim makes requests that the hub refuses, with the words wherever a request may have them.
func (a *abused) claim() {
	a.t.Helper()
	at := a.node.Addresses()
	w := a.words
	object := func(v map[string]any) string {
		b, err := json.Marshal(v)
		if err != nil {
			a.t.Fatal(err)
		}
		return string(b)
	}
	a.post(at.HTTP+"/agents/worker/agent/message", object(map[string]any{"from": w, "to": w, "skill": w, "mode": "sync",
		"nonce": "nonce-0001", "timestamp": a.clock.now().UTC().Format(time.RFC3339), "traceId": w, "spanId": w,
		"payload": map[string]string{w: w}}), "Signature-Input", "x="+url.QueryEscape(w))
	a.post(at.HTTP+"/submit", object(map[string]any{"version": 1, "sender": w, "target": w,
		"session": "11111111-2222-4333-8444-555555555555", "schema_digest": w, "payload": w, "signature": w}))
	var session struct {
		ID string `json:"session_id"`
	}
	if err := json.Unmarshal(a.post(at.HTTP+"/a2e/session", ""), &session); err != nil {
		a.t.Fatal(err)
	}
	a.post(at.HTTP+"/a2e/send", object(map[string]any{"type": "handshake/req", "id": "1", "ts": 1, "agent_id": w,
		"agent_caps": []string{w}, "auth_token": "wrong"}), "X-Session-Id", session.ID)
	conn, err := nats.Connect(at.AGH, nats.Token("pairs-peers-token"))
	if err != nil {
		a.t.Fatal(err)
	}
	defer conn.Close()
	said := beginning(w, int(conn.MaxPayload())/64) // four times, with escapes
	if err := errors.Join(conn.Publish("agh.network.v0."+pairs.Workspace+"."+pairs.Channel+".broadcast",
		[]byte(object(map[string]any{"protocol": "agh-network/v0", "id": said, "workspace_id": pairs.Workspace,
			"kind": said, "channel": pairs.Channel, "from": said, "ts": 1, "body": map[string]string{"text": said}}))),
		conn.Flush()); err != nil {
		a.t.Fatal(err)
	}
	a.post(at.HTTP+"/v1/asp/sessions", object(map[string]any{"version": "asp/1.0", "messageId": w, "sessionId": w,
		"sender": map[string]any{"agentId": w, "orgId": w}, "performative": w}), "Authorization", "DPoP "+url.QueryEscape(w))
	for _, path := range []string{"/a2a/worker", "/mcp/worker"} {
		a.post(at.HTTP+path, object(map[string]any{"jsonrpc": "2.0", "id": w, "method": w, "params": map[string]any{w: w,
			"name": w, "message": map[string]any{"messageId": w, "contextId": w, "taskId": w, "role": w}}}),
			"Authorization", "Bearer "+url.QueryEscape(w), "A2A-Version", "1.0")
	}
	a.post(at.HTTP+"/a2a/"+url.PathEscape(w), "{}", "Origin", "https://evil.example/"+url.QueryEscape(w))
}

func (a *abused) post(to, body string, header ...string) []byte {
	a.t.Helper()
	r, err := http.NewRequestWithContext(a.t.Context(), http.MethodPost, to, strings.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		a.t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode >= 500 && res.StatusCode != http.StatusServiceUnavailable {
		a.t.Errorf("%.100q: HTTP %d", to, res.StatusCode)
	}
	var b bytes.Buffer
	if _, err := b.ReadFrom(res.Body); err != nil {
		a.t.Fatal(err)
	}
	return b.Bytes()
}

// dead leaves a message at an agent whose server answers nothing but the words.
func (a *abused) dead() {
	a.t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnprocessableEntity)
		_ = json.NewEncoder(w).Encode(map[string]any{"status": "error", "error": map[string]any{"code": "SCHEMA_INVALID",
			"message": a.words}})
	}))
	a.t.Cleanup(server.Close)
	for name, at := range map[string]string{"broken": server.URL, "gone": "http://127.0.0.1:1"} {
		if _, err := a.api.AddAgent(a.t.Context(), admin.NewAgent{Name: name, Title: a.words, Description: a.words,
			Identities: []admin.NewIdentity{{Protocol: "samvad", ID: "agent://" + name + ".example", URL: at}}}); err != nil {
			a.t.Log("the hub takes no such agent: ", err)
		}
	}
	a.tell(admin.Send{To: "gone", Skill: "talk", Text: &a.words})
	_, err := a.api.Ask(a.t.Context(), admin.Send{To: "broken", Skill: "talk", Text: &a.words, Timeout: "60s"})
	if err != nil {
		a.t.Error(err)
	}
}

// stream reads the rows that a page gets by its stream, until something of each protocol was refused.
func (a *abused) stream(e *events) (rows []string) {
	a.t.Helper()
	missing := slices.Clone(pairs.Protocols)
	for len(missing) > 0 {
		name, data, ok := e.next()
		if !ok {
			a.t.Fatalf("the stream ended after %d events, and nothing was refused of %q: %v", len(rows), missing, e.body.Err())
		}
		if rows = append(rows, data); name != "row" && !strings.Contains(data, "data-row=") {
			continue
		}
		for _, m := range rowKey.FindAllStringSubmatch(data, -1) {
			if r, err := a.api.Refusal(a.t.Context(), m[1]); err == nil {
				missing = slices.DeleteFunc(missing, func(p string) bool { return p == r.Protocol })
			}
		}
	}
	return rows
}

var rowKey = regexp.MustCompile(`data-row="([^"]+)"`)

// pages are the pages that show what the agents said.
func (a *abused) pages(w *browser) map[string]string {
	a.t.Helper()
	out := map[string]string{}
	get := func(path string) {
		status, page := w.do("GET", path, nil)
		if out[path] = page; status >= 500 {
			a.t.Errorf("%s: HTTP %d", path, status)
		}
	}
	q := "?" + url.Values{"text": {beginning(a.words, 900)}, "agent": {beginning(a.words, 900)},
		"to": {beginning(a.words, 900)}, "skill": {beginning(a.words, 900)}}.Encode()
	for _, path := range []string{"", "?show=failed", "?show=refused", "?text=PWN", "conversations", "agents",
		"agents/connect",
		"undelivered", "undelivered?show=waiting", "undelivered?show=recovered", "undelivered?show=dropped", "workbench",
		"audit", q, "conversations" + q, "agents" + q, "undelivered" + q, "workbench" + q} {
		get("/console/" + path)
	}
	agents, err := a.api.Agents(a.t.Context(), admin.AgentFilter{})
	if err != nil {
		a.t.Fatal(err)
	}
	for _, v := range agents.Agents {
		get("/console/agents/" + v.Name)
		get("/console/agents/connect/" + v.Name)
	}
	refusals, err := a.api.Refused(a.t.Context(), 0)
	if err != nil {
		a.t.Fatal(err)
	}
	for _, r := range refusals {
		get("/console/?m=" + r.Ref)
		get("/console/conversations/" + r.Ref)
		get("/console/workbench?inspect=" + r.Ref)
	}
	messages, err := a.api.Messages(a.t.Context(), index.Filter{Limit: 500})
	if err != nil {
		a.t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, m := range messages.Messages {
		sort := fmt.Sprint(m.Kind, m.From, m.To)
		if seen[sort] {
			continue // the same words at the same places
		}
		seen[sort] = true
		at := "/console/conversations/" + m.Conversation.String()
		if get(at + "?m=" + m.ID.String()); m.Kind != parley.Event {
			get(at + "?view=proof&m=" + m.ID.String())
			get("/console/workbench?inspect=" + m.ID.String())
		}
		if m.Kind == parley.Request {
			get(at + "?view=table&extent=trace&events=1")
		} else {
			get(at + "?view=content&m=" + m.ID.String())
		}
	}
	form := formToken.FindStringSubmatch(out["/console/workbench"])[1]
	for i, pasted := range []string{a.words, `{"from":"a","skill":` + quoted(a.words) + `,"to":` + quoted(a.words) +
		`,"mode":"sync","nonce":"n","timestamp":"t","traceId":"t","spanId":"s","payload":{}}`,
		"POST /agent/message HTTP/1.1\nX-A: " + strings.Join(strings.Fields(a.words), " ") + "\n\n{}"} {
		_, out[fmt.Sprint("inspect ", i)] = w.do("POST", "/console/workbench", url.Values{"form": {form}, "input": {pasted},
			"at": {beginning(a.words, 900)}})
		_, out[fmt.Sprint("vector ", i)] = w.do("POST", "/console/workbench/vector", url.Values{"form": {form},
			"input": {"PWN"}, "at": {beginning(a.words, 900)}})
	}
	_, out["send"] = w.do("POST", "/console/workbench/send", url.Values{"form": {form}, "to": {a.words},
		"skill":   {a.words},
		"content": {a.words}, "kind": {"request"}, "wait": {"1"}, "key": {"k"}})
	return out
}

func quoted(s string) string {
	b, _ := json.Marshal(s) // every string can be encoded
	return string(b)
}

// parts are the names of the elements and attributes of a page: "a", "a href". It fails for what no page may have.
func parts(t *testing.T, path, page string) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	bad := func(format string, v ...any) { t.Errorf("%s: %s", path, fmt.Sprintf(format, v...)) }
	if i := strings.IndexFunc(page, unsafeRune); i >= 0 || !utf8.ValidString(page) {
		bad("a raw %U", []rune(page[max(i, 0):])[0])
	}
	doc, err := html.Parse(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	for n := range doc.Descendants() {
		if strings.ContainsFunc(n.Data, unsafeRune) {
			bad("a text has control characters or direction marks: %.80q", n.Data)
		}
		if n.Type == html.CommentNode {
			bad("a comment %.80q", n.Data)
		}
		if n.Type != html.ElementNode {
			continue
		}
		out[n.Data] = true
		if (n.Data == "script" || n.Data == "style") && n.FirstChild != nil {
			bad("an element %s with a content", n.Data)
		}
		for _, v := range n.Attr {
			out[n.Data+" "+v.Key] = true
			switch {
			case strings.HasPrefix(v.Key, "on"), v.Key == "style", v.Key == "srcdoc":
				bad("an attribute %s=%.80q", v.Key, v.Val)
			case strings.ContainsFunc(v.Val, unsafeRune):
				bad("%s=%.80q has control characters or direction marks", v.Key, v.Val)
			case slices.Contains([]string{"href", "src", "action", "formaction", "data-stream"}, v.Key):
				if v.Val != "" && !strings.HasPrefix(v.Val, "/console/") && v.Val[0] != '?' && v.Val[0] != '#' {
					bad("a link leads to %.80q", v.Val)
				}
			}
		}
	}
	return out
}

// unsafeRune is a character that is never in a page as it is.
func unsafeRune(r rune) bool {
	switch {
	case r == '\n', r == '\t', r == '\r':
		return false
	case r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069, r == 0x200e, r == 0x200f, r == 0x061c:
		return true
	}
	return unicode.IsControl(r)
}

// everything has all said and claimed, and gives every page and the rows of a stream.
func (a *abused) everything() map[string]string {
	a.t.Helper()
	w := a.entered(a.token("ops "+a.words[:3], admin.Administer))
	a.speak()
	a.dead()
	e := w.live(w.page("/console/"))
	a.claim()
	var rows []string
	if len(a.words) < 1<<20 { // of what is that long, a protocol may refuse to read the beginning
		rows = a.stream(e)
	}
	pages := a.pages(w)
	for i, row := range rows {
		pages[fmt.Sprint("row ", i)] = "<table>" + row + "</table>"
	}
	return pages
}

// TestContentIsEscaped: whatever agents of the seven protocols say, in any place, the pages have the elements and the
// attributes that they have with harmless words.
func TestContentIsEscaped(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for path, page := range abuse(t, harmless, 1<<20).everything() {
		maps.Copy(known, parts(t, path, page))
	}
	a := abuse(t, hostile, 1<<20)
	shown := map[string]int{}
	for path, page := range a.everything() {
		for part := range parts(t, path, page) {
			if !known[part] {
				t.Errorf("%s has %q, which it has not with harmless words", path, part)
			}
		}
		if strings.Contains(page, "PWN") {
			kind, _, _ := strings.Cut(strings.TrimPrefix(path, "/console/"), "?")
			kind, _, _ = strings.Cut(kind, "/")
			kind, _, _ = strings.Cut(kind, " ")
			shown[kind]++
		}
	}
	t.Log("pages with the words: ", shown)
	for _, kind := range []string{"", "conversations", "agents", "undelivered", "workbench", "inspect", "send", "row"} {
		if shown[kind] == 0 {
			t.Errorf("no page %q shows what the agents said: the test proves nothing of it", kind)
		}
	}
}

// TestNamesOfAMebibyte: a name that long is refused with a code, or shown cut.
func TestNamesOfAMebibyte(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a minute with the race detector")
	}
	t.Parallel()
	largest := 0
	for path, page := range abuse(t, mebibyte(hostile), 512).everything() {
		parts(t, path, page)
		if largest = max(largest, len(page)); len(page) > 1<<20 { // some texts of 64 KiB, with escapes
			t.Errorf("%s has %d bytes", path, len(page))
		}
	}
	t.Log("the largest page has ", largest, " bytes")
}
