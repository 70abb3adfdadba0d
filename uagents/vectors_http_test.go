package uagents

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The models of the reference agent that answered the vectors.
type (
	echoMessage struct {
		Message string `json:"message"`
	}
	echoResponse struct {
		Text string `json:"text"`
	}
	echoSilent struct {
		X int `json:"x"`
	}
	echoOpen struct {
		Q string `json:"q"`
	}
	restEcho struct {
		Text string `json:"text"`
	}
	restResult struct {
		Text string `json:"text"`
		N    int    `json:"n"`
	}
)

func (echoMessage) ModelDoc() (string, string)  { return "Message", "" }
func (echoResponse) ModelDoc() (string, string) { return "Response", "" }
func (echoSilent) ModelDoc() (string, string)   { return "Silent", "" }
func (echoOpen) ModelDoc() (string, string)     { return "Open", "" }

func seeded(t testing.TB, seed string) *Identity {
	t.Helper()
	id, err := IdentityFromSeed(seed, 0)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// echoAgent behaves like the agent in the description of the vectors.
func echoAgent(id *Identity) *Agent {
	message, silent, open, response := ModelOf[echoMessage](), ModelOf[echoSilent](), ModelOf[echoOpen](),
		ModelOf[echoResponse]()
	chat := ChatHandler(nil, func(context.Context, *Request, *ChatMessage) (*ChatMessage, error) { return nil, nil })
	return &Agent{
		Address:  id.Address(),
		Models:   Models(message, silent, open),
		Unsigned: func(digest string) bool { return digest == open.Digest() },
		Handler: func(ctx context.Context, r *Request) (Response, error) {
			switch r.SchemaDigest {
			case message.Digest():
				var m echoMessage
				if err := r.Content.Bind(&m); err != nil {
					return Response{}, err
				}
				return Answer(response.Message(echoResponse{"echo: " + m.Message})), nil
			case open.Digest():
				var m echoOpen
				if err := r.Content.Bind(&m); err != nil {
					return Response{}, err
				}
				return Answer(response.Message(echoResponse{"open: " + m.Q})), nil
			case silent.Digest():
				<-ctx.Done()
				return Response{}, ctx.Err()
			case ChatMessageDigest, ChatAcknowledgementDigest:
				return chat(ctx, r)
			}
			return Response{}, nil // unknown: no answer
		},
	}
}

func restRoutes() []Route {
	return []Route{
		{Method: "GET", Path: "/rest/get", Response: ModelOf[restResult](),
			Handler: func(context.Context, *http.Request, []byte) (any, error) { return restResult{"hi", 1}, nil }},
		{Method: "GET", Path: "/rest/bad", Response: ModelOf[restResult](),
			Handler: func(context.Context, *http.Request, []byte) (any, error) { return map[string]any{"x": 1}, nil }},
		{Method: "POST", Path: "/rest/echo", Request: ModelOf[restEcho](), Response: ModelOf[restResult](),
			Handler: func(_ context.Context, _ *http.Request, body []byte) (any, error) {
				var m restEcho
				if err := json.Unmarshal(body, &m); err != nil {
					return nil, err
				}
				return restResult{m.Text, len([]rune(m.Text))}, nil
			}},
	}
}

// resigner moves envelopes in time and signs them again, as the README of the vectors
// asks: the same original gives the same copy.
type resigner struct {
	byAddress map[string]*Identity
	done      map[string]string
}

func (r *resigner) rewrite(t testing.TB, body string) string {
	if again, ok := r.done[body]; ok {
		return again
	}
	e, err := Decode([]byte(body))
	if err != nil {
		return body
	}
	// The signer, if its seed is known.
	var signer *Identity
	if e.Signature != nil {
		d, err := e.Digest()
		if err != nil {
			return body
		}
		for _, id := range r.byAddress {
			if VerifyDigest(id.Address(), d, *e.Signature) == nil {
				signer = id
			}
		}
		if signer == nil {
			return body // a broken signature stays broken
		}
	}
	if at, ok := e.ExpiresAt(); ok && at.Unix() > 1e9 {
		e.Expires = Uint(uint64(time.Now().Add(20 * time.Second).Unix()))
	}
	if signer != nil {
		d, err := e.Digest()
		if err != nil {
			t.Fatal(err)
		}
		sig, err := signer.SignDigest(d)
		if err != nil {
			t.Fatal(err)
		}
		e.Signature = &sig
	}
	b, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	r.done[body] = string(b)
	return string(b)
}

// UAG-037, UAG-038, UAG-039, UAG-040, UAG-041, UAG-042, UAG-043,
// UAG-044, UAG-045, UAG-046, UAG-047, UAG-048, UAG-049, UAG-050,
// UAG-051, UAG-052, UAG-053, UAG-054, UAG-055, UAG-056. The cases run in order against one server, on a
// simulated clock. Where the digest asks for more than the reference does (§5, §11), the
// test derives the expected answer from the request, not from the case.
func vectorHTTP(t *testing.T, f vectorFile) {
	found := make([]recorder, len(f.Cases))
	synctest.Test(t, func(t *testing.T) {
		ids := map[string]*Identity{}
		re := &resigner{byAddress: map[string]*Identity{}, done: map[string]string{}}
		for _, who := range []string{"target_seed", "alice_seed", "bob_seed"} {
			seed, ok := f.Keys[who].(string)
			if !ok {
				t.Fatalf("no %s", who)
			}
			id := seeded(t, seed)
			ids[who], re.byAddress[id.Address()] = id, id
		}
		target := ids["target_seed"]
		var info *AgentInfo
		s := &Server{
			Resolve: Serve(echoAgent(target)),
			Log:     quiet(),
			Routes:  restRoutes(),
			Info:    func(context.Context, string) (*AgentInfo, error) { return info, nil },
		}
		for i, c := range f.Cases {
			found[i].TB = t
			found[i].run(func(t testing.TB) {
				known(t, c.Input, "method", "path", "headers", "body")
				known(t, c.Expect, "status", "headers", "body", "note", "response_envelope", "key_order",
					"body_uses_spaces", "response_payload_text")
				if field[string](t, c.Input, "path") == "/agent_info" && c.Expect["body"] != nil {
					if text := field[string](t, c.Expect, "body"); text != "" {
						info = infoOf(t, text)
					}
				}
				runHTTP(t, s, re, c)
			})
		}
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
	// A synctest bubble cannot have subtests, so the results are reported here.
	for i, c := range f.Cases {
		t.Run(c.Name, func(t *testing.T) {
			for _, failure := range found[i].failures {
				t.Error(failure)
			}
		})
	}
}

// A recorder keeps the failures of one case, so that the cases after it run.
type recorder struct {
	testing.TB
	failures []string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *recorder) Error(args ...any) { r.failures = append(r.failures, fmt.Sprint(args...)) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Fatal(args ...any) {
	r.Error(args...)
	runtime.Goexit()
}

func (r *recorder) run(f func(testing.TB)) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				r.Errorf("panic: %v", p)
			}
		}()
		f(r)
	}()
	<-done
}

func infoOf(t testing.TB, text string) *AgentInfo {
	t.Helper()
	n, err := parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	info := &AgentInfo{Address: n.get("address").str(), Type: n.get("agent_type").str(), Prefix: n.get("prefix").str()}
	port, _ := asInteger(n.get("port"))
	info.Port = int(port.Int64())
	for _, e := range n.get("endpoints").vals {
		w, _ := asInteger(e.get("weight"))
		info.Endpoints = append(info.Endpoints, Endpoint{e.get("url").str(), w.Int64()})
	}
	for _, p := range n.get("protocols").vals {
		info.Protocols = append(info.Protocols, p.str())
	}
	return info
}

// wanted is the expected answer of our server.
type wanted struct {
	status int
	errors string // text of the JSON error, when the digest lists it
	any    bool   // some JSON error, text free
	answer string // message text of the answer, when not that of the vector
	fails  string // the answer is an ErrorMessage that begins so
}

// expectedAnswer gives the answer that the digest asks for, and reports whether it
// departs from the reference's answer.
func expectedAnswer(t testing.TB, c vectorCase, method, path, contentType, body string, sync bool) (w wanted,
	departs bool) {
	status := field[int](t, c.Expect, "status")
	onSubmit := strings.Split(path, "?")[0] == "/submit"
	if !onSubmit {
		return w, false
	}
	switch method {
	case "OPTIONS", "HEAD", "GET":
		return w, false
	case "POST":
	default:
		return wanted{status: 405, any: true}, true
	}
	if contentType == "" {
		return wanted{status: 400, errors: "missing header: content-type"}, true // UAG-040
	}
	if status == 500 {
		return wanted{status: 400, any: true}, true // UAG-020, UAG-049
	}
	e, err := Decode([]byte(body))
	if err != nil || status != 200 {
		return w, false
	}
	if IsUser(e.Sender) {
		if _, err := ParseUser(e.Sender); err != nil {
			return wanted{status: 400, any: true}, true // UAG-010
		}
	}
	if at, ok := e.ExpiresAt(); ok && at.Before(time.Now()) && !sync {
		return wanted{status: 400, errors: "Envelope has expired"}, true // UAG-035
	}
	m := ModelOf[echoMessage]()
	if !sync || e.SchemaDigest != m.Digest() {
		return w, false
	}
	text, err := e.Message()
	if err != nil {
		t.Fatal(err)
	}
	if m.Validate(text.Payload) != nil {
		return wanted{status: 200, fails: "Message does not conform to expected schema"}, true // UAG-066
	}
	if at, ok := e.ExpiresAt(); ok && at.After(time.Now()) && !IsUser(e.Sender) {
		var v echoMessage
		if err := text.Bind(&v); err != nil {
			t.Fatal(err)
		}
		b, err := MessageJSON([]byte(`{"text":` + string(pyString(nil, "echo: "+v.Message)) + `}`))
		if err != nil {
			t.Fatal(err)
		}
		return wanted{status: 200, answer: string(b)}, true
	}
	return w, false
}

func runHTTP(t testing.TB, s *Server, re *resigner, c vectorCase) {
	method, path := field[string](t, c.Input, "method"), field[string](t, c.Input, "path")
	var body string
	if b := field[*string](t, c.Input, "body"); b != nil {
		body = re.rewrite(t, *b)
	} else if method == "POST" && field[int](t, c.Expect, "status") == 500 {
		body = strings.Repeat("[", 100_000) // as the case's note says
	}
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.RemoteAddr = "127.0.0.1:40000"
	r.Header = http.Header{}
	sync := false
	for _, h := range field[[][2]string](t, c.Input, "headers") {
		r.Header.Add(h[0], h[1])
		sync = sync || strings.EqualFold(h[0], headerConnection) && h[1] == "sync"
	}
	began := time.Now()
	rec := httptest.NewRecorder()
	s.ServeHTTP(rec, r)
	got := rec.Body.String()

	check := func(good bool, format string, args ...any) {
		t.Helper()
		if !good {
			t.Errorf(format+"\nbody %.300s", append(args, got)...)
		}
	}
	headers := field[map[string]string](t, c.Expect, "headers")
	for name, value := range headers {
		if strings.HasPrefix(name, "access-control-") || strings.HasPrefix(name, "x-uagents-") {
			check(rec.Header().Get(name) == value, "header %s is %q, want %q", name, rec.Header().Get(name), value)
		}
	}
	w, departs := expectedAnswer(t, c, method, path, r.Header.Get("Content-Type"), body, sync)
	if departs {
		check(rec.Code == w.status, "status %d, want %d", rec.Code, w.status)
	} else {
		check(rec.Code == field[int](t, c.Expect, "status"), "status %d", rec.Code)
	}
	if rec.Code >= 400 && method != "HEAD" { // UAG-050
		n, err := parse(rec.Body.Bytes())
		check(err == nil && (n.get("error").str() != "" || n.get("loc") != nil), "no JSON error: %v", err)
	}
	if w.errors != "" {
		check(errorText(got) == w.errors, "error %q, want %q", errorText(got), w.errors)
		return
	}
	if w.any {
		return
	}
	if c.Expect["response_envelope"] != nil {
		checkAnswer(t, check, c, w, got, body)
		// UAG-052: no later than the expiry.
		check(time.Since(began) <= 30*time.Second, "took %v", time.Since(began))
		return
	}
	expected := field[string](t, c.Expect, "body")
	switch text := errorText(expected); {
	case method == "HEAD": // net/http drops the body
	case strings.Contains(expected, `"__root__"`):
		n, err := parse([]byte(got))
		check(err == nil && n.get("type").str() == "value_error.jsondecode" && len(n.get("loc").vals) == 1 &&
			n.get("loc").vals[0].str() == "__root__", "not a JSON decode error")
	case text != "" && !listedText(text):
		// Free text of the reference: our text may differ.
	default:
		check(got == expected, "want %s", expected)
	}
}

// listedText reports whether the digest lists a text (§5, §6.3).
func listedText(text string) bool {
	return slices.Contains([]string{
		"not found", "missing header: content-type", "invalid content-type", "empty or invalid payload",
		"contents do not match envelope schema", "Envelope signature is missing", "Signature verification failed",
		"Unable to decode value", "Unable to convert value", "Unable to decode agent address",
		"Unable to decode signature",
		"unable to route envelope", "forbidden", "No request body found",
		"Handler response does not match response schema.",
	}, text)
}

func errorText(body string) string {
	n, err := parse([]byte(body))
	if err != nil {
		return ""
	}
	return n.get("error").str()
}

// checkAnswer compares the envelope of a sync answer.
func checkAnswer(t testing.TB, check func(bool, string, ...any), c vectorCase, w wanted, got, sent string) {
	e, err := Decode([]byte(got))
	check(err == nil, "no envelope: %v", err)
	if err != nil {
		return
	}
	question, err := Decode([]byte(sent))
	if err != nil {
		t.Fatal(err)
	}
	model := field[map[string]any](t, c.Expect, "response_envelope")
	// UAG-051
	check(e.Sender == question.Target && e.Target == question.Sender && e.Session == question.Session,
		"not an answer to this")
	check(e.Version == "1" && e.Expires.IsNull() && e.Nonce.IsNull() && e.ProtocolDigest == nil,
		"members that should be null")
	n, err := parse([]byte(got))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range model {
		member := n.get(name)
		check(member != nil, "no member %s", name)
		if value == nil && member != nil {
			check(member.kind == 'n', "%s is not null", name)
		}
	}
	keys := field[[]string](t, c.Expect, "key_order")
	check(strings.Join(n.keys, " ") == strings.Join(keys, " "), "keys %v, want %v", n.keys, keys)
	check(strings.Contains(got, `": `) == field[bool](t, c.Expect, "body_uses_spaces"), "separators")
	m, err := e.Message()
	check(err == nil, "payload: %v", err)
	text := string(m.Payload)
	switch {
	case w.fails != "":
		said, bad := m.IsError()
		check(bad && strings.HasPrefix(said, w.fails), "answer %q, want %q", said, w.fails)
	case w.answer != "":
		check(text == w.answer, "answer %s, want %s", text, w.answer)
	case m.Schema == ChatAcknowledgementDigest:
		check(m.Schema == model["schema_digest"], "schema %s", m.Schema)
		a, err := DecodeChatAcknowledgement(m.Payload)
		check(err == nil, "%v", err)
		asked, err := question.Message()
		if err != nil {
			t.Fatal(err)
		}
		chat, err := DecodeChatMessage(asked.Payload)
		if err != nil {
			t.Fatal(err)
		}
		check(a.AcknowledgedMsgID == chat.MsgID && a.Metadata == nil, "acknowledges something else")
	default:
		check(m.Schema == model["schema_digest"], "schema %s, want %v", m.Schema, model["schema_digest"])
		check(text == field[string](t, c.Expect, "response_payload_text"), "answer %s", text)
	}
}
