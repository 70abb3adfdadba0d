package samvad_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/fixedport"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type world struct {
	*node.Node
	t      *testing.T
	base   string
	alice  *samvad.Identity
	client *samvad.Client
	calls  atomic.Int64
	slow   chan struct{} // closed to let the skill "slow" end
}

// newWorld is a hub over real sockets with an agent of every kind of skill,
// and alice, who is enrolled.
func newWorld(t *testing.T, c node.Config) *world {
	t.Helper()
	w := &world{t: t, slow: make(chan struct{})}
	var err error
	if w.alice, err = samvad.NewIdentity("agent://alice.test", "key-current"); err != nil {
		t.Fatal(err)
	}
	w.open(c)
	t.Cleanup(w.close)
	return w
}

func (w *world) open(c node.Config) {
	w.t.Helper()
	if c.Durability == "" {
		c.Durability = "memory"
	}
	c.Listen.HTTP = "127.0.0.1:0"
	c.Network.Allow = []string{"loopback"}
	n, err := node.Open(w.t.Context(), c)
	if err != nil {
		w.t.Fatal(err)
	}
	w.Node = n
	type text struct {
		Text string `json:"text"`
	}
	err = n.Handle(parley.Agent{Name: "crew/echo", Exposed: parley.Everywhere},
		parley.Skill("echo", func(_ context.Context, m *parley.Message, q text) (text,
			error) {
			w.calls.Add(1)
			return q, nil
		}),
		parley.RawSkill("fail", func(context.Context, *parley.Message,
			parley.Replier) error {
			return fmt.Errorf("secret: /etc/passwd")
		}),
		parley.RawSkill("pieces", func(_ context.Context, _ *parley.Message, r parley.Replier) error {
			for i := range 3 {
				if err := r.Chunk(parley.Part{MediaType: "application/json",
					Data: fmt.Appendf(nil, `{"piece":%d}`, i)}); err != nil {
					return err
				}
			}
			return r.Reply(parley.Text("done"))
		}),
		parley.RawSkill("slow", func(ctx context.Context, _ *parley.Message, r parley.Replier) error {
			w.calls.Add(1)
			select {
			case <-w.slow:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}),
		parley.RawSkill("sync", func(context.Context, *parley.Message, parley.Replier) error { return nil },
			parley.WithModes(parley.Sync)),
	)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := n.Handle(parley.Agent{Name: "hidden"}, parley.RawSkill("x",
		func(context.Context, *parley.Message, parley.Replier) error { return nil })); err != nil {
		w.t.Fatal(err)
	}
	w.enrol("alice", w.alice)
	if err := n.Start(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	w.base = n.Addresses().Local
	w.client = &samvad.Client{Identity: w.alice,
		HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, PollEvery: 5 * time.Millisecond}
}

func (w *world) close() {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	if err := w.Close(ctx); err != nil {
		w.t.Error(err)
	}
}

func (w *world) enrol(name string, id *samvad.Identity) {
	w.t.Helper()
	i, err := w.SAMVAD().Identity(id.ID(), "")
	if err != nil {
		w.t.Fatal(err)
	}
	if _, ok := w.Hub().Directory().Agent(name); !ok {
		if _, err := w.Hub().Directory().Put(w.t.Context(), parley.Agent{Name: name, Identities: []parley.Identity{i}},
			directory.FromOperator); err != nil {
			w.t.Fatal(err)
		}
	}
	if err := w.SAMVAD().Enroll(name, id.ID(), "", id.Public(), "test"); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) echo(skill string) samvad.Call {
	return samvad.Call{URL: w.base + "/agents/crew/echo", Skill: skill, Payload: []byte(`{"text":"hi","more":1.10}`)}
}

// post sends a request's bytes as they are and gives status, code and
// reference.
func (w *world) post(path string, h http.Header, body []byte) (int, string, string) {
	w.t.Helper()
	r, err := http.NewRequest(http.MethodPost, w.base+path, bytes.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header = h
	resp, err := w.client.HTTP.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	var e struct {
		Error struct{ Code, Message string }
	}
	if err := json.Unmarshal(b, &e); err != nil {
		w.t.Fatalf("not JSON: %s", b)
	}
	return resp.StatusCode, e.Error.Code, resp.Header.Get("Parley-Ref")
}

func (w *world) signed(id *samvad.Identity, call samvad.Call, mode samvad.Mode) (http.Header, []byte) {
	w.t.Helper()
	r, e, err := (&samvad.Client{Identity: id, HTTP: w.client.HTTP}).Request(w.t.Context(), call, mode)
	if err != nil {
		w.t.Fatal(err)
	}
	return r.Header, e.Raw()
}

const message = "/agents/crew/echo/agent/message"

func TestModes(t *testing.T) {
	w := newWorld(t, node.Config{})
	ctx := t.Context()
	t.Run("SAM-110 sync", func(t *testing.T) {
		call := w.echo("echo")
		call.TraceID = "trace of mine"
		r, err := w.client.Ask(ctx, call)
		if err != nil || string(r.Result) != `{"text":"hi"}` || r.TraceID != "trace of mine" || r.SpanID == "" {
			t.Fatalf("%+v, %v", r, err)
		}
	})
	t.Run("SAM-111 failure", func(t *testing.T) {
		h, b := w.signed(w.alice, w.echo("fail"), samvad.ModeSync)
		status, code, _ := w.post(message, h, b)
		if status != 500 || code != "AGENT_UNAVAILABLE" {
			t.Error(status, code)
		}
		_, err := w.client.Ask(ctx, w.echo("fail"))
		if err == nil || strings.Contains(samvad.AsError(err).Text, "passwd") {
			t.Error(err)
		}
	})
	t.Run("SAM-140 SAM-141 stream", func(t *testing.T) {
		var got []string
		for e, err := range w.client.Stream(ctx, w.echo("pieces")) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, string(e.Chunk)+string(e.Result))
		}
		if s := strings.Join(got, " "); s != `{"piece":0} {"piece":1} {"piece":2} {"text":"done"}` {
			t.Error(s)
		}
	})
	t.Run("SAM-120 SAM-121 task", func(t *testing.T) {
		id, err := w.client.Send(ctx, w.echo("slow"))
		if err != nil {
			t.Fatal(err)
		}
		task, err := w.client.Task(ctx, w.echo("").URL, id)
		if err != nil || task.Status.Finished() {
			t.Fatalf("%+v, %v", task, err)
		}
		close(w.slow)
		if task, err = w.client.Wait(ctx, w.echo("").URL, id); err != nil || task.Status != samvad.TaskDone ||
			string(task.Result) != "{}" {
			t.Fatalf("%+v, %v", task, err)
		}
		if id, err = w.client.Send(ctx, w.echo("fail")); err != nil {
			t.Fatal(err)
		}
		if _, err = w.client.Wait(ctx, w.echo("").URL, id); samvad.AsError(err).Code != samvad.CodeAgentUnavailable {
			t.Fatal(err)
		}
		if _, err := w.client.Task(ctx, w.base+"/agents/hidden", id); err == nil {
			t.Error("the task of another agent is shown")
		}
	})
	t.Run("SAM-090 a task whose payload does not fit fails", func(t *testing.T) {
		call := w.echo("echo")
		call.Payload = []byte(`{"text":7}`)
		id, err := w.client.Send(ctx, call)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = w.client.Wait(ctx, call.URL, id); samvad.AsError(err).Code != samvad.CodeSchemaInvalid {
			t.Fatal(err)
		}
	})
}

func TestWhatIsRefused(t *testing.T) {
	w := newWorld(t, node.Config{Allow: []node.Allow{{From: "alice", To: []string{"crew/echo.echo"}}}})
	eve, err := samvad.NewIdentity("agent://alice.test", "key-current")
	if err != nil {
		t.Fatal(err)
	}
	call := w.echo("echo")
	header, body := w.signed(w.alice, call, samvad.ModeSync)
	if status, code, _ := w.post(message, header, body); status != 200 {
		t.Fatal(status, code)
	}
	forged, forgedBody := w.signed(eve, call, samvad.ModeSync)
	forbidden, forbiddenBody := w.signed(w.alice, w.echo("sync"), samvad.ModeSync)
	unknown, unknownBody := w.signed(w.alice, w.echo("none"), samvad.ModeSync)
	mode, modeBody := w.signed(w.alice, w.echo("sync"), samvad.ModeStream)
	for _, c := range []struct {
		name, path string
		h          http.Header
		b          []byte
		status     int
		code       string
		step       string
	}{
		{"SAM-052 replay", message, header, body, 401, "REPLAY_DETECTED", "replay"},
		{"SAM-052 replay at another endpoint", "/agents/crew/echo/agent/task", header, body, 401,
			"REPLAY_DETECTED", "replay"},
		{"forged", message, forged, forgedBody, 401, "AUTH_FAILED", "signature"},
		{"SAM-035 another agent", "/agent/message", header, body, 400, "SCHEMA_INVALID", "recipient"},
		{"not exposed", "/agents/hidden/agent/message", header, body, 404, "", ""},
		{"no agent", "/agents/nobody/agent/message", header, body, 404, "", ""},
		{"not permitted", message, forbidden, forbiddenBody, 401, "AUTH_FAILED", "record"},
		{"not permitted is recorded too", message, forbidden, forbiddenBody, 401, "REPLAY_DETECTED", "replay"},
		{"SAM-082 unknown skill", message, unknown, unknownBody, 404, "SKILL_NOT_FOUND", "skill"},
		{"SAM-082 mode", "/agents/crew/echo/agent/stream", mode, modeBody, 400, "SCHEMA_INVALID", "skill"},
		{"SAM-033 no JSON", message, header, []byte("{"), 400, "SCHEMA_INVALID", "envelope"},
		{"SAM-039 media type", message, http.Header{"Content-Type": {"text/plain"}}, body, 415,
			"SCHEMA_INVALID", "transport"},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, code, ref := w.post(c.path, c.h, c.b)
			if status != c.status || c.code != "" && code != c.code {
				t.Errorf("HTTP %d %s, want %d %s", status, code, c.status, c.code)
			}
			f, ok := w.Hub().Explain(ref)
			if !ok || c.step != "" && f.Step != c.step || f.Cause == "" {
				t.Errorf("reference %q: %v %+v", ref, ok, f)
			}
		})
	}
	if n := w.calls.Load(); n != 1 {
		t.Errorf("the handler was called %d times", n)
	}
}

func TestConcurrentReplaysRunOnce(t *testing.T) {
	w := newWorld(t, node.Config{})
	h, b := w.signed(w.alice, w.echo("echo"), samvad.ModeSync)
	var wg sync.WaitGroup
	var ok, replayed atomic.Int64
	for range 32 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			switch status, code, _ := w.post(message, h.Clone(), b); {
			case status == 200:
				ok.Add(1)
			case code == "REPLAY_DETECTED":
				replayed.Add(1)
			}
		}()
	}
	wg.Wait()
	if ok.Load() != 1 || replayed.Load() != 31 || w.calls.Load() != 1 {
		t.Errorf("SAM-056: %d accepted, %d refused, %d calls", ok.Load(), replayed.Load(), w.calls.Load())
	}
}

func TestRestart(t *testing.T) {
	c := node.Config{Data: filepath.Join(t.TempDir(), "data"), Durability: "disk"}
	w := newWorld(t, c)
	id, err := w.client.Send(t.Context(), w.echo("echo"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.client.Wait(t.Context(), w.echo("").URL, id); err != nil {
		t.Fatal(err)
	}
	key := w.SAMVAD().Hosting().Key
	w.close()
	w.open(c)
	if w.SAMVAD().Hosting().Key != key {
		t.Error("the hub's key has changed")
	}
	if n := len(w.Hub().Directory().All()); n != 4 { // echo, hidden, alice, and the hub itself
		t.Errorf("%d agents after a restart", n)
	}
}

// SAM-057: a replay is refused after a restart.
func TestReplayAfterRestart(t *testing.T) {
	c := node.Config{Data: filepath.Join(t.TempDir(), "data"), Durability: "disk", PublicURL: "https://parley.test"}
	w := newWorld(t, c)
	call := w.echo("echo")
	card, err := w.client.Card(t.Context(), call.URL)
	if err != nil {
		t.Fatal(err)
	}
	call.To = card.ID
	h, b := w.signed(w.alice, call, samvad.ModeSync)
	if status, code, _ := w.post(message, h, b); status != 200 {
		t.Fatal(status, code)
	}
	w.close()
	w.open(c)
	if status, code, _ := w.post(message, h, b); status != 401 || code != "REPLAY_DETECTED" {
		t.Errorf("HTTP %d %s", status, code)
	}
	if n := w.calls.Load(); n != 1 {
		t.Errorf("the handler was called %d times", n)
	}
}

func TestHosting(t *testing.T) {
	w := newWorld(t, node.Config{SAMVAD: node.SAMVAD{Domain: "parley.test"}})
	get := func(host, path string) (int, *samvad.Card) {
		r, err := http.NewRequest(http.MethodGet, w.base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		resp, err := w.client.HTTP.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		c, _ := samvad.DecodeCard(b)
		return resp.StatusCode, c
	}
	_, byPath := get("", "/agents/crew/echo/.well-known/agent.json")
	if byPath == nil || !strings.HasPrefix(byPath.ID, "agent://crew-echo-") || byPath.URL != w.base+
		"/agents/crew/echo" {
		t.Fatalf("%+v", byPath)
	}
	label := strings.TrimSuffix(strings.TrimPrefix(byPath.ID, "agent://"), ".parley.test")
	if _, byHost := get(label+".parley.test", "/.well-known/agent.json"); byHost == nil || byHost.ID != byPath.ID {
		t.Errorf("by host: %+v", byHost)
	}
	if status, _ := get("nobody.parley.test", "/.well-known/agent.json"); status != 404 {
		t.Errorf("unknown sub-domain: %d", status)
	}
	if status, root := get("", "/.well-known/agent.json"); status != 200 || root == nil ||
		root.ID != "agent://parley.test" {
		t.Errorf("the hub's own card: %d %+v", status, root)
	}
	// SAM-022: signed for the bare path; SAM-023: two slashes are served, not
	// redirected.
	call := w.echo("echo")
	call.To = byPath.ID
	for path, signedPath := range map[string]string{message: "/agent/message",
		"/agents/crew/echo//agent/message": "/agents/crew/echo//agent/message"} {
		_, body, err := w.client.Envelope(call, samvad.ModeSync)
		if err != nil {
			t.Fatal(err)
		}
		sig, err := samvad.Sign(w.alice, http.MethodPost, signedPath, body, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		h := http.Header{"Content-Type": {"application/json; charset=utf-8"}}
		sig.Set(h)
		if status, code, _ := w.post(path, h, body); status != 200 {
			t.Errorf("%s signed as %s: HTTP %d %s", path, signedPath, status, code)
		}
	}
}

// Two senders that claim one identity with different keys are two agents, and neither
// can use the other's name.
func TestOneIdentityTwoKeys(t *testing.T) {
	w := newWorld(t, node.Config{Allow: []node.Allow{{From: "one", To: []string{"crew/echo"}}}})
	for _, name := range []string{"one", "two"} {
		id, err := samvad.NewIdentity("agent://client.local", "key-current")
		if err != nil {
			t.Fatal(err)
		}
		i := parley.Identity{Protocol: "samvad", ID: id.ID(), Key: name}
		if _, err := w.Hub().Directory().Put(t.Context(), parley.Agent{Name: name, Identities: []parley.Identity{i}},
			directory.FromOperator); err != nil {
			t.Fatal(err)
		}
		w.enrol(name, id)
		_, err = (&samvad.Client{Identity: id, HTTP: w.client.HTTP}).Ask(t.Context(), w.echo("echo"))
		if (err == nil) != (name == "one") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// agentElsewhere is a SAMVAD agent that trusts the hub's key.
func agentElsewhere(t *testing.T, w *world, handler samvad.Handler, wrap func(http.Handler) http.Handler,
	modes ...samvad.Mode) parley.Identity {
	t.Helper()
	id, err := samvad.NewIdentity("agent://elsewhere.test", "key-current")
	if err != nil {
		t.Fatal(err)
	}
	host := w.SAMVAD().Hosting()
	key, err := samvad.ParseKey(host.Key)
	if err != nil {
		t.Fatal(err)
	}
	card := &samvad.Card{ID: id.ID(), Name: "Elsewhere", Version: "1", Description: "x", URL: "http://elsewhere.test",
		PublicKeys: []samvad.CardKey{samvad.CardKeyOf(id, true)},
		RateLimit:  &samvad.RateLimit{RequestsPerMinute: 1e9, RequestsPerSender: 1e9},
		Skills: []samvad.Skill{{ID: "ask", Name: "Ask", Description: "x", InputSchema: []byte(`{"type":"object"}`),
			OutputSchema: []byte(`{"type":"object"}`),
			Modes:        append(modes, samvad.ModeSync), Trust: samvad.TrustPublic}}}
	var h http.Handler = &samvad.Server{Verifier: &samvad.Verifier{Keys: samvad.StaticKeys{host.Identity: {key}}},
		Agent: &samvad.Agent{Card: card.Complete(), Handler: handler, Limit: &samvad.RateLimit{}}}
	if wrap != nil {
		h = wrap(h)
	}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	identity, err := w.SAMVAD().Identity(id.ID(), s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return identity
}

func submission(to string) hub.Submission {
	return hub.Submission{Scope: "test", Message: &parley.Message{Kind: parley.Request, From: "operator", To: to,
		Skill:  "ask",
		Parts:  []parley.Part{{MediaType: "application/json", Data: []byte(`{"n":12345678901234567890.10}`)}},
		Trace:  parley.Trace{Foreign: map[string]string{"samvad.traceId": "t1", "samvad.spanId": "s1"}},
		Origin: parley.Origin{Protocol: "api", Peer: "operator", Verdict: parley.Verdict{Assurance: parley.Signed}}}}
}

func TestAnAgentElsewhere(t *testing.T) {
	w := newWorld(t, node.Config{Delivery: node.Delivery{Tries: 2}})
	var seen *samvad.Request
	mode := "ok"
	identity := agentElsewhere(t, w, func(_ context.Context, r *samvad.Request) (samvad.Response, error) {
		seen = r
		switch mode {
		case "refuse":
			return samvad.Response{}, &samvad.Error{Code: samvad.CodeSchemaInvalid, Text: "no"}
		case "busy":
			return samvad.Response{}, &samvad.Error{Code: samvad.CodeRateLimited, Text: "later", RetryAfter: time.Hour}
		}
		return samvad.Response{Result: []byte(`{"yes":1.50}`)}, nil
	}, nil)
	if _, err := w.Hub().Directory().Put(t.Context(), parley.Agent{Name: "elsewhere",
		Identities: []parley.Identity{identity}}, directory.FromOperator); err != nil {
		t.Fatal(err)
	}
	m, err := w.Hub().Ask(t.Context(), submission("elsewhere"))
	if err != nil || m.Kind != parley.Response || string(m.Parts[0].Data) != `{"yes":1.50}` {
		t.Fatalf("%+v, %v", m, err)
	}
	if string(seen.Payload) != `{"n":12345678901234567890.10}` || seen.TraceID != "t1" || seen.ParentSpanID != "s1" ||
		seen.SpanID == "s1" || seen.From != w.SAMVAD().Hosting().Identity {
		t.Errorf("SAM-153: %+v %s", seen.Envelope, seen.Payload)
	}
	mode = "refuse"
	if m, err = w.Hub().Ask(t.Context(), submission("elsewhere")); err != nil || m.Kind != parley.Failure ||
		m.Error.Code != parley.InvalidContent {
		t.Fatalf("%+v, %v", m, err)
	}
	mode = "busy"
	accepted, err := w.Hub().Accept(t.Context(), submission("elsewhere"))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the delivery is not postponed", func() bool {
		v, ok := w.Hub().Journal().Delivery(accepted.ID, "elsewhere")
		if !ok || v.State != parley.Waiting || v.Attempt != 1 {
			return false
		}
		if v.Tries() != 0 || time.Until(v.Next) < 50*time.Minute {
			t.Errorf("a postponed delivery: %+v", v)
		}
		return true
	})
	// Its skills are those of its card, and it is reached through the hub.
	r, err := w.client.Card(t.Context(), w.base+"/agents/elsewhere")
	if err != nil || r.Skill("ask") == nil || r.ID == identity.ID {
		t.Errorf("%+v, %v", r, err)
	}
}

// A skill is called in a mode that it offers.
func TestModesOfAnAgentElsewhere(t *testing.T) {
	w := newWorld(t, node.Config{})
	identity := agentElsewhere(t, w, func(_ context.Context, r *samvad.Request) (samvad.Response, error) {
		if err := r.Chunk([]byte(`{"piece":1}`)); err != nil {
			return samvad.Response{}, err
		}
		return samvad.Response{Result: fmt.Appendf(nil, `{"mode":%q}`, r.Endpoint)}, nil
	}, nil, samvad.ModeSync, samvad.ModeStream, samvad.ModeAsync)
	for _, mode := range []parley.Mode{parley.Sync, parley.Streaming, parley.Async} {
		name := "elsewhere-" + string(mode)
		identity.Key = name // the same agent under three names
		a := parley.Agent{Name: name, Identities: []parley.Identity{identity},
			Skills: []parley.SkillSpec{{ID: "ask", Modes: []parley.Mode{mode}}}}
		if _, err := w.Hub().Directory().Put(t.Context(), a, directory.FromOperator); err != nil {
			t.Fatal(err)
		}
		call, err := w.Hub().Begin(t.Context(), submission(name))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for m, err := range call.Stream(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if len(m.Parts) > 0 {
				got = append(got, string(m.Parts[0].Data))
			} else {
				got = append(got, fmt.Sprint(m.Error))
			}
		}
		want := fmt.Sprintf(`{"mode":%q}`, mode)
		if mode == parley.Streaming {
			want = `{"piece":1} ` + want
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%s: got %s, want %s", mode, s, want)
		}
	}
}

func TestAnAgentThatIsNotThere(t *testing.T) {
	w := newWorld(t, node.Config{})
	cut := agentElsewhere(t, w, nil, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			c, _, err := http.NewResponseController(rw).Hijack()
			if err == nil {
				c.Close()
			}
		})
	})
	for name, c := range map[string]struct {
		url     string
		code    parley.Code
		unknown bool
	}{
		"nobody listens":  {"http://" + fixedport.Address(t), parley.Unavailable, false},
		"private address": {"http://10.1.2.3", parley.Unavailable, false},
		"cut off":         {cut.URL, parley.Unavailable, true},
	} {
		t.Run(name, func(t *testing.T) {
			o := w.SAMVAD().Deliver(t.Context(), hub.Outbound{Message: submission("x").Message,
				Recipient: &directory.Entry{},
				Identity:  parley.Identity{Protocol: "samvad", ID: "agent://x.test", URL: c.url}})
			if o.Err == nil || o.Err.Code != c.code || o.Unknown != c.unknown {
				t.Errorf("%+v", o)
			}
			if name == "private address" && !strings.Contains(o.Err.Error(), "network") {
				t.Errorf("the refusal does not quote the line to add: %v", o.Err)
			}
		})
	}
}

// A stream that ends inside its last event: the agent may have served the
// request, so that neither the hub nor its caller repeats it.
func TestStreamThatEndsInsideItsLastEvent(t *testing.T) {
	w := newWorld(t, node.Config{})
	var calls atomic.Int64
	identity := agentElsewhere(t, w, nil, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				return // the card
			}
			calls.Add(1)
			rw.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(rw, "data: {\"chunk\":1,\"done\":false}\n\ndata: {\"done\":true,\"result\":{\"a\"")
		})
	})
	a := parley.Agent{Name: "elsewhere", Identities: []parley.Identity{identity},
		Skills: []parley.SkillSpec{{ID: "ask", Modes: []parley.Mode{parley.Streaming}}}}
	if _, err := w.Hub().Directory().Put(t.Context(), a, directory.FromOperator); err != nil {
		t.Fatal(err)
	}
	m, err := w.Hub().Ask(t.Context(), submission("elsewhere"))
	if err != nil || m.Kind != parley.Failure || m.Error.Code != parley.OutcomeUnknown || m.Error.Retryable {
		t.Errorf("the waiting caller got %+v, %v", m, err)
	}
	accepted, err := w.Hub().Accept(t.Context(), submission("elsewhere"))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is no dead letter", func() bool {
		d, ok := w.Hub().Journal().Delivery(accepted.ID, "elsewhere")
		return ok && d.State == parley.Dead && d.Error.Code == parley.OutcomeUnknown
	})
	if n := calls.Load(); n != 2 {
		t.Errorf("two requests were sent %d times", n)
	}
}

// TestKeyEnd: a nonce is remembered as long as its message is fresh (SAM-050), to
// the last moment.
func TestKeyEnd(t *testing.T) {
	const window = 20 * time.Minute // more than the journal remembers anyway
	c := newClock()
	w := newWorld(t, node.Config{Now: c.now, SAMVAD: node.SAMVAD{Window: node.Duration{Duration: window}}})
	call := w.echo("echo")
	card, err := w.client.Card(t.Context(), call.URL)
	if err != nil {
		t.Fatal(err)
	}
	call.To = card.ID
	r, e, err := (&samvad.Client{Identity: w.alice, HTTP: w.client.HTTP, Now: c.now}).Request(t.Context(), call,
		samvad.ModeSync)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		age    time.Duration
		status int
		code   string
	}{{0, 200, ""}, {time.Second, 401, "REPLAY_DETECTED"}, {window, 401, "REPLAY_DETECTED"},
		{window + time.Nanosecond, 401, "AUTH_FAILED"}, {window + bridge.ClockMargin, 401, "AUTH_FAILED"},
		{window + time.Hour, 401, "AUTH_FAILED"}} {
		c.to(e.Timestamp.Add(step.age))
		if status, code, _ := w.post(message, r.Header, e.Raw()); status != step.status || code != step.code {
			t.Errorf("at the age of %s: HTTP %d %s, want %d %s", step.age, status, code, step.status, step.code)
		}
	}
	if n := w.calls.Load(); n != 1 {
		t.Errorf("the handler was called %d times", n)
	}
}
