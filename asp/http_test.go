package asp

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/parley-hub/parley/internal/jsonx"
)

// sendable makes the next message for a transport with c's token.
func (w *world) sendable(session string, c *Client, p Performative, body any) *Envelope {
	w.t.Helper()
	token, err := c.access(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	d := w.draft(session, c, p, body)
	d.AccessToken = token
	return w.sign(c, d)
}

func TestEndpoints(t *testing.T) {
	t.Parallel()
	// ASP-066: the eight endpoints.
	w := newWorld(t)
	const base = "/v1/asp/sessions"
	id, _ := NewSessionID()
	token, err := w.alice.access(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d := w.draft(id, w.alice, Propose, invitation("inv"))
	d.Recipient, d.AccessToken = &Party{bobID, "org_widgets"}, token
	inv := w.sign(w.alice, d)

	expect := func(name string, resp *http.Response, body []byte, status int, part string) {
		t.Helper()
		if resp.StatusCode != status || !bytes.Contains(body, []byte(part)) {
			t.Errorf("%s: %d %s, want %d with %s", name, resp.StatusCode, body, status, part)
		}
	}
	resp, body := w.request(w.alice, "POST", base, string(JSON), inv.Raw())
	expect("create", resp, body, 201, `"state":"INVITED"`)
	resp, body = w.request(w.alice, "POST", base, "application/json", inv.Raw())
	expect("create again", resp, body, 200, inv.MessageID)
	resp, body = w.request(w.bob, "POST", base+"/"+id+"/messages", string(JSON),
		w.sendable(id, w.bob, Accept, Answer{ReferenceID: "inv"}).Raw())
	expect("send", resp, body, 202, `"position":1,"state":"INTRODUCED"`)
	resp, body = w.request(w.bob, "GET", base+"/"+id, "", nil)
	expect("session", resp, body, 200, `"lastSequence":1`)
	resp, body = w.request(w.carol, "GET", base+"/"+id, "", nil)
	expect("foreign session", resp, body, 403, "not_participant")
	resp, body = w.request(w.bob, "GET", base, "", nil)
	expect("sessions", resp, body, 200, id)
	resp, body = w.request(w.bob, "GET", base+"/"+id+"/messages?since_sequence=0", "", nil)
	expect("since", resp, body, 200, `"positions":[1]`)
	resp, body = w.request(w.bob, "GET", base+"/"+id+"/messages/"+inv.MessageID, "", nil)
	expect("message", resp, body, 200, inv.MessageID)
	resp, body = w.request(w.bob, "GET", base+"/"+id+"/messages/"+w.uuid(), "", nil)
	expect("no message", resp, body, 404, "message_not_found")
	for name, path := range map[string]string{"escaped": url.PathEscape(aliceID), "as it is": aliceID,
		"bare name": "procurement"} {
		resp, body = w.request(w.bob, "GET", "/v1/asp/agents/"+path+"/card", "", nil)
		if name == "as it is" && resp.StatusCode == 301 {
			continue
		}
		expect("card "+name, resp, body, 200, `"trustLevel":0`)
	}
	resp, body = w.request(w.bob, "GET", "/v1/asp/discover?capability=negotiate.compute&min_trust=0", "", nil)
	expect("discover", resp, body, 200, carolID)
	resp, body = w.request(w.bob, "GET", "/v1/asp/discover?capability=negotiate.compute&min_trust=1", "", nil)
	expect("discover trusted", resp, body, 200, `"agents":[]`)
	resp, body = w.request(w.bob, "GET", "/v1/asp/discover", "", nil)
	expect("discover nothing", resp, body, 422, "capability")
	resp, body = w.request(w.bob, "GET", "/.well-known/asp-agent.json", "", nil)
	expect("well-known", resp, body, 200, "agent://hub.example/ops/hub")
	resp, body = w.request(w.bob, "PUT", base+"/"+id, "", nil)
	expect("method", resp, body, 405, "bad_method")
	resp, body = w.request(w.bob, "GET", "/v1/asp/other", "", nil)
	expect("path", resp, body, 404, "not_found")
	resp, body = w.request(w.alice, "POST", base+"/"+id+"/messages", "text/plain", inv.Raw())
	expect("type", resp, body, 415, "format_mismatch")
	resp, body = w.request(w.alice, "POST", base+"/"+id+"/messages", string(JSON), bytes.Repeat([]byte(" "), 1<<20+1))
	expect("ASP-048 frame", resp, body, 413, "message_too_large")
	resp, body = w.request(w.bob, "DELETE", base+"/"+id, string(JSON), w.sendable(id, w.bob, Observe, struct{}{}).Raw())
	expect("delete with another message", resp, body, 422, "performative")
	resp, body = w.request(w.bob, "DELETE", base+"/"+id, string(JSON), w.sendable(id, w.bob, Close, Closing{}).Raw())
	expect("delete with CLOSE", resp, body, 202, `"state":"CLOSED"`)
	other := w.conversing()
	resp, body = w.request(w.carol, "DELETE", base+"/"+other, "", nil)
	expect("foreign delete", resp, body, 403, "not_participant")
	resp, body = w.request(w.alice, "DELETE", base+"/"+other, "", nil)
	expect("delete", resp, body, 204, "")
	resp, body = w.request(w.alice, "DELETE", base+"/"+other, "", nil)
	expect("delete again", resp, body, 409, "session_closed")
	ex := w.executing()
	dispute := `{"disputeId":"d","sessionId":"` + ex + `","commitmentId":"c1","filedBy":"` + aliceID +
		`","filedAgainst":"` + bobID + `","reason":"fulfillment-mismatch","severity":3,"evidence":{"n":1}}`
	resp, body = w.request(w.bob, "POST", base+"/"+ex+"/disputes", "application/json", []byte(dispute))
	expect("dispute in another's name", resp, body, 403, "sender_mismatch")
	resp, body = w.request(w.alice, "POST", base+"/"+ex+"/disputes", "application/json", []byte(dispute))
	expect("dispute", resp, body, 201, "d")
}

func TestPaging(t *testing.T) {
	t.Parallel()
	// ASP-067.
	w := newWorld(t)
	id := w.conversing()
	for i := range 250 {
		w.say(id, w.alice, Inform, inform(fmt.Sprint(i)))
	}
	for query, want := range map[string]int{"": 50, "?limit=7": 7, "?limit=1000": 200, "?cursor=200&limit=200": 53,
		"?since_sequence=251": 1} {
		_, body := w.request(w.bob, "GET", "/v1/asp/sessions/"+id+"/messages"+query, "", nil)
		var page struct {
			Messages []jsonx.Value `json:"messages"`
			Next     string        `json:"nextCursor"`
		}
		if err := jsonx.Decode(body, &page); err != nil || len(page.Messages) != want {
			t.Errorf("%s: %d messages, %v", query, len(page.Messages), err)
		}
		if (page.Next == "") != (want == 53 || want == 1) {
			t.Errorf("%s: next %q", query, page.Next)
		}
	}
	for _, query := range []string{"?limit=0", "?limit=x", "?cursor=x", "?since_sequence=-7",
		"?cursor=x&since_sequence=0"} {
		if resp, body := w.request(w.bob, "GET", "/v1/asp/sessions/"+id+"/messages"+query,
			"", nil); resp.StatusCode != 422 {
			t.Errorf("%s: %d %s", query, resp.StatusCode, body)
		}
	}
}

func TestAuthentication(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.conversing()
	path := "/v1/asp/sessions/" + id
	set := func(name, value string) func(*http.Request) {
		return func(r *http.Request) {
			r.Header.Del(name)
			if value != "" {
				r.Header.Set(name, value)
			}
		}
	}
	token, err := w.alice.access(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	proof := func(method, u, token string) string {
		p, err := w.alice.Identity.HTTPProof(method, u, token, w.clock.now())
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	message, err := w.alice.Identity.MessageProof(id, token, w.clock.now())
	if err != nil {
		t.Fatal(err)
	}
	used := proof("GET", w.http.URL+path, token)
	if resp, body := w.request(w.alice, "GET", path, "", nil, set("DPoP", used)); resp.StatusCode != 200 {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	for _, c := range []struct {
		name, reason string
		change       func(*http.Request)
	}{
		{"ASP-068 no Authorization", "auth_required", set("Authorization", "")},
		{"ASP-068 no DPoP", "auth_required", set("DPoP", "")},
		{"ASP-068 Bearer", "auth_required", set("Authorization", "Bearer "+token)},
		{"two proofs", "auth_required", func(r *http.Request) { r.Header.Add("DPoP", "x") }},
		{"forged token", "token_invalid", set("Authorization", "DPoP "+token[:len(token)-2]+"AA")},
		{"ASP-037 message proof for a request", "dpop_htm_mismatch", set("DPoP", message)},
		{"other method", "dpop_htm_mismatch", set("DPoP", proof("POST", w.http.URL+path, token))},
		{"other URL", "dpop_htu_mismatch", set("DPoP", proof("GET", w.http.URL+path+"/messages", token))},
		{"ASP-039 other token", "dpop_ath_mismatch", set("DPoP", proof("GET", w.http.URL+path, "other"))},
		{"ASP-039 no token", "dpop_ath_mismatch", set("DPoP", proof("GET", w.http.URL+path, ""))},
		{"ASP-035 replayed", "dpop_jti_replayed", set("DPoP", used)},
	} {
		resp, body := w.request(w.alice, "GET", path, "", nil, c.change)
		if resp.StatusCode != 401 || reason(t, body) != c.reason {
			t.Errorf("%s: %d %s", c.name, resp.StatusCode, body)
		}
	}
	t.Run("ASP-034 token of another", func(t *testing.T) {
		resp, body := w.request(w.bob, "GET", path, "", nil, set("Authorization", "DPoP "+token))
		if reason(t, body) != "dpop_key_mismatch" {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
	})
	t.Run("ASP-069 Asp-Session-Id", func(t *testing.T) {
		if resp, _ := w.request(w.alice, "GET", path, "", nil, set("Asp-Session-Id", id)); resp.StatusCode != 200 {
			t.Error(resp.StatusCode)
		}
		if resp, body := w.request(w.alice, "GET", path, "", nil, set("Asp-Session-Id", w.uuid())); reason(t,
			body) != "session_mismatch" {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
	})
	t.Run("expiry", func(t *testing.T) {
		w.clock.add(time.Hour)
		resp, body := w.request(w.alice, "GET", path, "", nil, set("Authorization", "DPoP "+token))
		if reason(t, body) != "token_expired" {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
	})
	t.Run("the token endpoint needs a proof", func(t *testing.T) {
		for name, p := range map[string]string{"none": "", "another agent's": func() string {
			p, _ := w.bob.Identity.HTTPProof("POST", w.http.URL+"/oauth/token", "", w.clock.now())
			return p
		}()} {
			req, _ := http.NewRequest("POST", w.http.URL+"/oauth/token",
				strings.NewReader(`{"grant_type":"client_credentials","client_id":"`+aliceID+`"}`))
			req.Header.Set("DPoP", p)
			if resp, body := w.do(req); resp.StatusCode != 401 {
				t.Errorf("%s: %d %s", name, resp.StatusCode, body)
			}
		}
	})
}

func TestEventStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.conversing()
	read := func(last string, n int) []event {
		token, err := w.bob.access(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		resp, err := w.bob.start(ctx, "GET", "/v1/asp/sessions/"+id+"/events", "", nil, token,
			http.Header{"Last-Event-Id": {last}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		var out []event
		_ = readEvents(resp.Body, func(ev event) error {
			out = append(out, ev)
			return stop(len(out) < n)
		})
		return out
	}
	events := read("", 6)
	kinds := ""
	for _, ev := range events {
		kinds += fmt.Sprintf("%s %d;", ev.kind, ev.id)
	}
	if kinds != "message 0;session_state -1;message 1;session_state -1;message 2;session_state -1;" {
		t.Errorf("events %s", kinds)
	}
	if events = read("1", 1); events[0].id != 2 {
		t.Errorf("resumed at %+v", events[0])
	}
	e := w.sign(w.alice, w.draft(id, w.alice, Inform, inform("lines")))
	raw := bytes.Replace(e.Raw(), []byte(`,"performative"`), []byte(",\r\n \n\"performative\""), 1)
	if _, err := w.Ingest(t.Context(), raw, Transport{}, id); err != nil {
		t.Fatal(err)
	}
	got, err := w.bob.envelopeOf(read("2", 1)[0])
	if err != nil || got.MessageID != e.MessageID {
		t.Errorf("%v, %v", got, err)
	}
	if err := w.CloseSession(t.Context(), id, "", "by the operator"); err != nil {
		t.Fatal(err)
	}
	if events = read("3", 99); len(events) != 1 || events[0].kind != "session_state" || events[0].id != 4 {
		t.Errorf("the stream of a session that is over: %+v", events)
	}
	token, _ := w.carol.access(t.Context())
	if _, err := w.carol.start(t.Context(), "GET", "/v1/asp/sessions/"+id+"/events", "", nil, token, nil); !isCode(err,
		"not_participant") {
		t.Errorf("got %v", err)
	}
}

// A server that shuts down ends its streams; the peers reconnect and resume.
func TestEndStreams(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.conversing()
	token, err := w.bob.access(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	socket := w.dial(t, id)
	w.auth(t, socket, w.alice, id, nil)
	for _, path := range []string{"/v1/asp/sessions/" + id + "/events", "/v1/asp/agents/" + w.bob.Identity.ID() +
		"/inbox"} {
		resp, err := w.bob.start(t.Context(), "GET", path, "", nil, token, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		defer func() {
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}()
	}
	w.EndStreams()
	if _, _, err := socket.conn.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusGoingAway {
		t.Errorf("the socket ends with %v", err)
	}
}

// wsPeer is a WebSocket client that sends and reads frames.
type wsPeer struct {
	t    *testing.T
	conn *websocket.Conn
}

func (w *world) dial(t *testing.T, session string) *wsPeer {
	t.Helper()
	conn, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(w.http.URL, "http")+"/v1/asp/sessions/"+session+
		"/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	conn.SetReadLimit(2 << 20)
	t.Cleanup(func() { _ = conn.CloseNow() })
	return &wsPeer{t, conn}
}

func (p *wsPeer) write(v any) {
	p.t.Helper()
	b, err := jsonx.Encode(v)
	if err == nil {
		err = p.conn.Write(p.t.Context(), websocket.MessageText, b)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

type anyFrame struct {
	Type           string         `json:"type"`
	SessionID      string         `json:"sessionId"`
	State          State          `json:"state"`
	Previous       any            `json:"previous"`
	Participants   []string       `json:"participants"`
	LastSequence   *int64         `json:"lastSequence"`
	Envelope       jsonx.Value    `json:"envelope"`
	MessageID      string         `json:"messageId"`
	SequenceNumber *int64         `json:"sequenceNumber"`
	Timestamp      string         `json:"timestamp"`
	AgentID        string         `json:"agentId"`
	Score          float64        `json:"score"`
	Code           string         `json:"code"`
	Message        string         `json:"message"`
	Details        map[string]any `json:"details"`
}

// read gives the next frame of one of the types; others are skipped.
func (p *wsPeer) read(kinds ...string) anyFrame {
	p.t.Helper()
	for {
		kind, b, err := p.conn.Read(p.t.Context())
		if err != nil {
			p.t.Fatalf("waiting for %v: %v", kinds, err)
		}
		if kind == websocket.MessageBinary {
			return anyFrame{Type: "binary", Envelope: b}
		}
		var f anyFrame
		if err := jsonx.DecodeKnown(b, &f); err != nil {
			p.t.Fatalf("frame %s: %v", b, err)
		}
		for _, k := range kinds {
			if f.Type == k {
				return f
			}
		}
	}
}

func (p *wsPeer) closed() websocket.StatusCode {
	for {
		if _, _, err := p.conn.Read(p.t.Context()); err != nil {
			return websocket.CloseStatus(err)
		}
	}
}

func (w *world) auth(t *testing.T, p *wsPeer, c *Client, session string, last *int64) anyFrame {
	t.Helper()
	token, err := c.access(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	proof, err := c.Identity.MessageProof(session, token, w.clock.now())
	if err != nil {
		t.Fatal(err)
	}
	p.write(map[string]any{"type": "auth", "token": token, "dpopProof": proof, "lastSequence": last})
	return p.read("auth_ok")
}

func TestWebSocket(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.conversing()
	alice, bob := w.dial(t, id), w.dial(t, id)
	if ok := w.auth(t, alice, w.alice, id, nil); ok.SessionID != id || ok.State != Conversing ||
		len(ok.Participants) != 2 || *ok.LastSequence != 2 {
		t.Errorf("auth_ok %+v", ok)
	}
	zero := int64(0)
	w.auth(t, bob, w.bob, id, &zero)
	// ASP-071: message, ack, session_state, heartbeat.
	if m := bob.read("message"); m.Envelope == nil {
		t.Errorf("resume gives %+v", m)
	}
	if f := bob.read("session_state"); f.State != Introduced || f.Previous != "INVITED" || f.Timestamp == "" {
		t.Errorf("session_state %+v", f)
	}
	alice.write(map[string]string{"type": "pong"})
	e := w.sendable(id, w.alice, Inform, inform("hello"))
	alice.write(map[string]any{"type": "send", "envelope": jsonx.Value(e.Raw())})
	if ack := alice.read("ack", "error"); ack.MessageID != e.MessageID || *ack.SequenceNumber != e.SequenceNumber {
		t.Errorf("ack %+v", ack)
	}
	for { // ASP-072: all participants get the message, also the sender
		if m := bob.read("message"); bytes.Contains(m.Envelope, []byte(e.MessageID)) {
			break
		}
	}
	alice.read("message")
	// Bad frames get an error frame; the connection stays open.
	for bad, code := range map[string]string{`{"type":"what"}`: "invalid_field", `{`: "malformed_json",
		`{"type":"send","envelope":{"a":1,"a":2}}`: "duplicate_key", `{"type":"send"}`: "malformed_json"} {
		if err := alice.conn.Write(t.Context(), websocket.MessageText, []byte(bad)); err != nil {
			t.Fatal(err)
		}
		if f := alice.read("error"); f.Code != code || f.Message == "" {
			t.Errorf("%s: %+v", bad, f)
		}
	}
	if err := alice.conn.Write(t.Context(), websocket.MessageBinary, []byte{0x80}); err != nil {
		t.Fatal(err)
	}
	if f := alice.read("error"); f.Code != "format_mismatch" {
		t.Errorf("ASP-074 binary: %+v", f)
	}
	// A message without messageId gets one.
	e = w.sendable(id, w.alice, Inform, inform("no id"))
	bare := bytes.Replace(e.Raw(), []byte(`"messageId":"`+e.MessageID+`",`), nil, 1)
	alice.write(map[string]any{"type": "send", "envelope": jsonx.Value(bare)})
	if ack := alice.read("ack", "error"); !ValidUUID(ack.MessageID) || ack.MessageID == e.MessageID {
		t.Errorf("ack %+v", ack)
	}
	if err := w.SetTrust(t.Context(), bobID, TrustComponents{IdentityVerification: 50}); err != nil {
		t.Fatal(err)
	}
	if f := alice.read("trust_update"); f.AgentID != bobID || f.Score != 10 || f.Previous != 0.0 {
		t.Errorf("trust_update %+v", f)
	}
	if err := w.CloseSession(t.Context(), id, aliceID, ""); err != nil {
		t.Fatal(err)
	}
	if f := alice.read("session_state"); f.State != Closed || f.Previous != "CONVERSING" {
		t.Errorf("session_state %+v", f)
	}
	if code := alice.closed(); code != closeSession {
		t.Errorf("closed with %d", code)
	}
}

func TestWebSocketHeartbeat(t *testing.T) {
	t.Parallel()
	// ASP-071: heartbeats; a peer that misses two pongs is disconnected.
	w := newWorld(t, func(s *Server) { s.Heartbeat = 5 * time.Millisecond })
	id := w.conversing()
	p := w.dial(t, id)
	w.auth(t, p, w.alice, id, nil)
	if f := p.read("heartbeat"); f.State != Conversing || f.Timestamp == "" {
		t.Errorf("heartbeat %+v", f)
	}
	if code := p.closed(); code != closeNoPong {
		t.Errorf("closed with %d", code)
	}
}

func TestWebSocketAuthentication(t *testing.T) {
	t.Parallel()
	// ASP-070.
	w := newWorld(t)
	id := w.conversing()
	token, err := w.alice.access(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	proof := func(f func() (string, error)) string {
		p, err := f()
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	// refused: an error frame, then close code 4001.
	refused := func(name, code string, p *wsPeer) {
		t.Helper()
		if f := p.read("error", "auth_ok", "message"); f.Type != "error" || f.Code != code || f.Message == "" {
			t.Errorf("%s: %+v, want %s", name, f, code)
		}
		if got := p.closed(); got != 4001 {
			t.Errorf("%s: closed with %d", name, got)
		}
	}
	wsURL := "ws" + strings.TrimPrefix(w.http.URL, "http") + "/v1/asp/sessions/" + id + "/ws"
	good := proof(func() (string, error) { return w.alice.Identity.HTTPProof("GET", wsURL, token, w.clock.now()) })
	for name, c := range map[string]struct {
		code  string
		frame any
	}{
		"not auth": {"auth_required", map[string]string{"type": "pong"}},
		"a message": {"auth_required", map[string]any{"type": "send",
			"envelope": jsonx.Value(w.sendable(id, w.alice, Inform, inform("hello")).Raw())}},
		"no proof": {"dpop_malformed", map[string]string{"type": "auth", "token": token}},
		"no token": {"token_invalid", map[string]string{"type": "auth", "dpopProof": good}},
		"too large": {"auth_required", map[string]string{"type": "auth", "token": token,
			"dpopProof": strings.Repeat("x", maxAuthFrame)}},
		"other session": {"dpop_htu_mismatch", map[string]string{"type": "auth", "token": token,
			"dpopProof": proof(func() (string, error) {
				return w.alice.Identity.MessageProof(w.uuid(), token,
					w.clock.now())
			})}},
	} {
		p := w.dial(t, id)
		p.write(c.frame)
		refused(name, c.code, p)
	}
	if got := w.head(id).Count; got != 3 {
		t.Errorf("%d records: a message was taken before auth", got)
	}
	p := w.dial(t, id)
	p.write(map[string]string{"type": "auth", "token": token, "dpopProof": good})
	p.read("auth_ok")
	again := w.dial(t, id)
	again.write(map[string]string{"type": "auth", "token": token, "dpopProof": good})
	refused("replayed", "dpop_jti_replayed", again)
	stranger := w.dial(t, id)
	token, _ = w.carol.access(t.Context())
	stranger.write(map[string]string{"type": "auth", "token": token,
		"dpopProof": proof(func() (string, error) { return w.carol.Identity.MessageProof(id, token, w.clock.now()) })})
	refused("stranger", "not_participant", stranger)

	t.Run("silent", func(t *testing.T) {
		w := newWorld(t, func(s *Server) { s.AuthWait = time.Millisecond })
		p := w.dial(t, w.conversing())
		refused("silent", "auth_required", p)
	})
}

// Close codes 4008 and 4009 (project).
func TestWebSocketLimits(t *testing.T) {
	t.Parallel()
	taken := 0
	w := newWorld(t, func(s *Server) {
		s.Admit = func(_ context.Context, r *Request) error {
			if r.Sender.AgentID != aliceID {
				return nil
			}
			if taken++; taken > 4 {
				return Refuse("rate_limited", "")
			}
			return nil
		}
	})
	id := w.conversing() // two messages of alice
	p := w.dial(t, id)
	w.auth(t, p, w.alice, id, nil)
	large := func(n int) { // without white space, which the frame's reader might drop
		p.write(map[string]any{"type": "send", "envelope": map[string]string{"x": strings.Repeat("x", n)}})
		if f := p.read("error"); f.Code != "message_too_large" {
			t.Errorf("%d bytes: %+v", n, f)
		}
	}
	large(1 << 20) // a little too large: the connection stays open
	e := w.sendable(id, w.alice, Inform, inform("still here"))
	p.write(map[string]any{"type": "send", "envelope": jsonx.Value(e.Raw())})
	if ack := p.read("ack", "error"); ack.MessageID != e.MessageID {
		t.Fatalf("%+v", ack)
	}
	large(1<<20 + maxAround)
	if code := p.closed(); code != 4009 {
		t.Errorf("a frame too large: closed with %d", code)
	}
	p = w.dial(t, id)
	w.auth(t, p, w.alice, id, nil)
	for i := range 2 {
		e := w.sendable(id, w.alice, Inform, inform(fmt.Sprint(i)))
		p.write(map[string]any{"type": "send", "envelope": jsonx.Value(e.Raw())})
		if f := p.read("ack", "error"); (f.Type == "error") != (i == 1) || i == 1 && f.Code != "rate_limited" {
			t.Fatalf("message %d: %+v", i, f)
		}
	}
	if code := p.closed(); code != 4008 {
		t.Errorf("too many messages: closed with %d", code)
	}
}

func TestWebSocketMessagePack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, _ := NewSessionID()
	d := w.draft(id, w.alice, Propose, invitation("inv"))
	d.Recipient, d.Format = &Party{bobID, "org_widgets"}, MessagePack
	if _, err := w.ingest(w.sign(w.alice, d)); err != nil {
		t.Fatal(err)
	}
	p := w.dial(t, id)
	from := int64(-1)
	w.auth(t, p, w.bob, id, &from)
	f := p.read("message")
	if f.Type != "binary" {
		t.Fatalf("got %+v", f)
	}
	if e, err := DecodeMsgpack(f.Envelope); err != nil || e.checkHash() != nil {
		t.Errorf("%v", err)
	}
	e := w.sendable(id, w.bob, Accept, Answer{ReferenceID: "inv"})
	if err := p.conn.Write(t.Context(), websocket.MessageBinary, e.Raw()); err != nil {
		t.Fatal(err)
	}
	if ack := p.read("ack", "error"); ack.Type == "error" {
		t.Errorf("%+v", ack)
	}
}
