package admin

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/policy"
)

// The tokens of the tests.
const (
	rootToken     = "root-token-0123456789"
	operatorToken = "operator-token-0123456789"
	viewerToken   = "viewer-token-0123456789"
	observerToken = "observer-token-0123456789"
)

// bench is a hub in memory with its admin API on a socket.
type bench struct {
	t       testing.TB
	admin   *Admin
	hub     *hub.Hub
	keys    *keyring.Ring
	server  *httptest.Server
	client  *Client        // administer, any agent
	settled chan parley.ID // messages that became dead letters
}

func open(t testing.TB, change func(*Config)) *bench {
	t.Helper()
	b := openInside(t, change)
	b.server = httptest.NewServer(b.admin)
	b.client = b.as(rootToken)
	t.Cleanup(func() {
		b.server.CloseClientConnections()
		b.server.Close()
	})
	return b
}

// openInside is open without a socket.
func openInside(t testing.TB, change func(*Config)) *bench {
	t.Helper()
	ctx := context.Background()
	j, err := journal.Open(ctx, journal.Config{Store: testjournal.Memory(t), Node: "test"})
	if err != nil {
		t.Fatal(err)
	}
	dir, err := directory.Open(ctx, directory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := policy.New(policy.Config{Hub: "hub-test", Assurance: map[string]parley.Assurance{"": parley.Session}})
	if err != nil {
		t.Fatal(err)
	}
	h, err := hub.New(hub.Config{ID: "hub-test", Secret: make([]byte, 32), Journal: j, Directory: dir, Policy: p,
		Delivery: delivery.Config{Retry: delivery.Retry{Tries: 3, First: time.Millisecond, Longest: time.Millisecond}}})
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, hub: h, settled: make(chan parley.ID, 64)}
	if b.keys, err = keyring.Open(keyring.Options{}); err != nil {
		t.Fatal(err)
	}
	tokens, err := newTokens(Token{Name: "root", Role: Administer, Secret: rootToken, Speak: []string{"**"}},
		Token{Name: "op", Role: Operate, Secret: operatorToken, Speak: []string{"bot"}},
		Token{Name: "viewer", Role: Read, Secret: viewerToken},
		Token{Name: "watch", Role: Observe, Secret: observerToken})
	if err != nil {
		t.Fatal(err)
	}
	x, err := index.Open(ctx, index.Config{Journal: j})
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Hub: h, Keys: b.keys, Tokens: tokens, Index: x, Ready: j.Healthy, Metrics: http.NotFoundHandler(),
		Protocols: []Protocol{{Name: "samvad"}, {Name: "agh"}, {Name: "asp"}},
		Info:      func() Info { return Info{Hub: h.ID(), Promise: j.Promise(), Version: "test"} }}
	if change != nil {
		change(&c)
	}
	if b.admin, err = New(c); err != nil {
		t.Fatal(err)
	}
	stop := j.Watch(func(r *journal.Record) {
		for _, s := range r.Steps {
			if s.State == parley.Dead {
				b.settled <- s.Message
			}
		}
	})
	if err := h.Handle(parley.Agent{Name: "weather", Skills: []parley.SkillSpec{
		parley.Skill("forecast", func(ctx context.Context, _ *parley.Message, q struct {
			City string `json:"city"`
		}) (map[string]any, error) {
			if q.City == "Atlantis" {
				return nil, parley.Refuse(parley.Rejected, "no such city")
			}
			if err := parley.Progress(ctx, "looking out of the window"); err != nil {
				return nil, err
			}
			return map[string]any{"city": q.City, "celsius": 21}, nil
		})}}); err != nil {
		t.Fatal(err)
	}
	h.Start()
	t.Cleanup(func() {
		stop()
		if err := h.Close(ctx); err != nil {
			t.Error(err)
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// as gives a client with a token, all of whose exchanges are checked against
// the OpenAPI document.
func (b *bench) as(token string) *Client {
	return &Client{Base: b.server.URL, Token: token, HTTP: &http.Client{Transport: &checked{t: b.t,
		doc: document(b.t)}}}
}

func document(t testing.TB) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(openAPI)
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(context.Background()); err != nil {
		t.Fatal(err)
	}
	return doc
}

// checked is a transport that validates requests and responses.
type checked struct {
	t   testing.TB
	doc *openapi3.T
}

func (c *checked) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	route, params := match(c.doc, r)
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil || route == nil {
		if err == nil && resp.StatusCode != http.StatusNotFound && resp.StatusCode != http.StatusMethodNotAllowed &&
			resp.StatusCode != http.StatusForbidden {
			c.t.Errorf("%s %s is answered with %d and is not documented", r.Method, r.URL, resp.StatusCode)
		}
		return resp, err
	}
	in := &openapi3filter.RequestValidationInput{Request: r.Clone(r.Context()), PathParams: params, Route: route,
		Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc,
			IncludeResponseStatus: true}}
	in.Request.Body = io.NopCloser(bytes.NewReader(body))
	if resp.StatusCode < 400 {
		if err := openapi3filter.ValidateRequest(r.Context(), in); err != nil {
			c.t.Errorf("%s %s: the request is not as documented: %v", r.Method, r.URL, err)
		}
	}
	switch t := resp.Header.Get("Content-Type"); {
	case strings.HasPrefix(t, "text/event-stream"), t == exportMediaType:
		return resp, nil // a stream: its media type is documented, the client reads its events or lines
	}
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	resp.Body = io.NopCloser(bytes.NewReader(answer))
	out := &openapi3filter.ResponseValidationInput{RequestValidationInput: in, Status: resp.StatusCode,
		Header: resp.Header, Options: in.Options}
	out.SetBodyBytes(answer)
	if err := openapi3filter.ValidateResponse(r.Context(), out); err != nil {
		c.t.Errorf("%s %s: the answer %s is not as documented: %v", r.Method, r.URL, answer, err)
	}
	return resp, nil
}

// match finds a request's operation by its escaped path, in which an agent's
// name is one segment.
func match(doc *openapi3.T, r *http.Request) (*routers.Route, map[string]string) {
	got := strings.Split(r.URL.EscapedPath(), "/")
	var route *routers.Route
	var found map[string]string
	for path, item := range doc.Paths.Map() {
		want := strings.Split(path, "/")
		if len(want) != len(got) || item.GetOperation(r.Method) == nil {
			continue
		}
		params := map[string]string{}
		fits := true
		for i := range want {
			if strings.HasPrefix(want[i], "{") {
				v, err := url.PathUnescape(got[i])
				fits = fits && err == nil
				params[strings.Trim(want[i], "{}")] = v
			} else {
				fits = fits && want[i] == got[i]
			}
		}
		if fits && (route == nil || len(params) < len(found)) {
			route, found = &routers.Route{Spec: doc, Path: path, PathItem: item, Method: r.Method,
				Operation: item.GetOperation(r.Method)}, params
		}
	}
	return route, found
}

func code(t *testing.T, err error, want parley.Code) *parley.Error {
	t.Helper()
	var e *parley.Error
	if !errors.As(err, &e) || e.Code != want {
		t.Fatalf("got %v, want the code %s", err, want)
	}
	return e
}

func text(s string) *string { return &s }

func TestEveryRouteIsDocumented(t *testing.T) {
	doc := document(t)
	documented := map[string]bool{}
	for path, item := range doc.Paths.Map() {
		for method := range item.Operations() {
			documented[method+" "+path] = true
		}
	}
	for route, of := range table() {
		for method, ep := range of {
			if !documented[method+" "+route] {
				t.Errorf("%s %s is not in openapi.json", method, route)
			}
			delete(documented, method+" "+route)
			item := doc.Paths.Find(route)
			if item == nil {
				continue
			}
			o := item.GetOperation(method)
			if open := o != nil && o.Security != nil && len(*o.Security) == 0; open != (ep.role == "") {
				t.Errorf("%s %s: whether it needs a token is documented wrongly", method, route)
			}
			if want := "Needs the role " + string(ep.role) + "."; ep.role != "" &&
				!strings.HasPrefix(o.Description, want) {
				t.Errorf("%s %s: its description does not begin with %q", method, route, want)
			}
		}
	}
	for rest := range documented {
		t.Errorf("%s is documented and does not exist", rest)
	}
}

func TestInfoStatsHealth(t *testing.T) {
	b, ctx := open(t, nil), context.Background()
	i, err := b.client.Info(ctx)
	if err != nil || i.Hub != "hub-test" || i.Version != "test" || i.Promise == "" {
		t.Fatalf("info: %+v, %v", i, err)
	}
	s, err := b.client.Stats(ctx)
	if err != nil || s.Agents != 1 || !s.Healthy || len(s.Partitions) != 1 {
		t.Fatalf("stats: %+v, %v", s, err)
	}
	if err := b.client.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	stranger := b.as("")
	for _, path := range []string{"/health", "/ready", "/openapi.json"} {
		if err := stranger.do(ctx, "GET", path, nil, nil, nil); err != nil {
			t.Errorf("%s without a token: %v", path, err)
		}
	}
}

func TestAgents(t *testing.T) {
	b, ctx := open(t, nil), context.Background()
	key := base64.StdEncoding.EncodeToString(ed25519Key(1))
	v, err := b.client.AddAgent(ctx, NewAgent{Name: "crew/scout", Title: "Scout", Expose: []string{"samvad"},
		Identities: []NewIdentity{{Protocol: "samvad", ID: "agent://scout.test", URL: "https://scout.test",
			PublicKey: key}},
		Skills: []Skill{{ID: "look", Input: []byte(`{"type":"object"}`), Modes: []parley.Mode{parley.Sync}}}})
	if err != nil {
		t.Fatal(err)
	}
	if v.Source != directory.FromOperator || len(v.Identities) != 1 || v.Identities[0].ID != "agent://scout.test" {
		t.Fatalf("added %+v", v)
	}
	// A name with a slash is one segment of the path.
	if v, err = b.client.Agent(ctx, "crew/scout", 0); err != nil || v.Title != "Scout" || v.Waiting == nil {
		t.Fatalf("show: %+v, %v", v, err)
	}
	page, err := b.client.Agents(ctx, AgentFilter{})
	if err != nil || len(page.Agents) != 2 || page.Agents[0].Name != "crew/scout" || page.Next != "" || page.More != 0 {
		t.Fatalf("list: %+v, %v", page, err)
	}
	if v, err = b.client.Pause(ctx, "crew/scout", true); err != nil || !v.Paused {
		t.Fatalf("pause: %+v, %v", v, err)
	}
	if v, err = b.client.Pause(ctx, "crew/scout", false); err != nil || v.Paused {
		t.Fatalf("resume: %+v, %v", v, err)
	}
	if v, err = b.client.Expose(ctx, "crew/scout", []string{"agh", "asp"}); err != nil ||
		!slices.Equal(v.Exposed, []string{"agh", "asp"}) {
		t.Fatalf("expose: %+v, %v", v, err)
	}
	_, err = b.client.Expose(ctx, "crew/scout", []string{"telex"})
	code(t, err, parley.Malformed)
	if v, err = b.client.Link(ctx, "crew/scout", NewIdentity{Protocol: "agh", ID: "scout"}); err != nil ||
		len(v.Identities) != 2 {
		t.Fatalf("link: %+v, %v", v, err)
	}
	_, err = b.client.AddAgent(ctx, NewAgent{Name: "thief", Identities: []NewIdentity{{Protocol: "agh", ID: "scout"}}})
	code(t, err, parley.Conflict)
	if got := b.keys.Enrolled("thief", "agh"); len(got) != 0 {
		t.Errorf("keys were enrolled for an agent that was refused: %v", got)
	}
	// With a key of its own, another agent may claim the same id.
	other, err := b.client.AddAgent(ctx, NewAgent{Name: "double", Identities: []NewIdentity{{Protocol: "samvad",
		ID: "agent://scout.test", PublicKey: base64.StdEncoding.EncodeToString(ed25519Key(2))}}})
	if err != nil || other.Identities[0].Key == "" {
		t.Fatalf("double: %+v, %v", other, err)
	}
	_, err = b.client.AddAgent(ctx, NewAgent{Name: "Bad Name", Inbox: true})
	code(t, err, parley.Malformed)
	_, err = b.client.AddAgent(ctx, NewAgent{Name: "nowhere"})
	code(t, err, parley.Malformed)
	_, err = b.client.AddAgent(ctx, NewAgent{Name: "weather", Inbox: true})
	code(t, err, parley.Conflict) // a program registered this agent
	_, err = b.client.Agent(ctx, "nobody", 0)
	code(t, err, parley.UnknownAgent)

	if err := b.client.RemoveAgent(ctx, "crew/scout"); err != nil {
		t.Fatal(err)
	}
	if got := b.keys.Enrolled("crew/scout", "samvad"); len(got) != 0 {
		t.Errorf("the keys of a removed agent are still enrolled: %v", got)
	}
	code(t, b.client.RemoveAgent(ctx, "weather"), parley.Forbidden)
	code(t, b.client.RemoveAgent(ctx, "crew/scout"), parley.UnknownAgent)

	audit, err := b.client.Audit(ctx, AuditFilter{})
	if err != nil {
		t.Fatal(err)
	}
	var actions []string
	for _, e := range slices.Backward(audit) {
		if e.Actor != "root" || e.Address == "" || e.Outcome == "started" {
			t.Errorf("entry of the audit trail: %+v", e)
		}
		actions = append(actions, e.Action)
	}
	want := []string{"agent.add", "agent.pause", "agent.resume", "agent.expose", "agent.link", "agent.add", "agent.add",
		"agent.add", "agent.remove", "agent.remove", "agent.remove"}
	if !slices.Equal(actions, want) {
		t.Errorf("audit trail %v, want %v", actions, want)
	}
}

func TestAsk(t *testing.T) {
	b, ctx := open(t, nil), context.Background()
	r, err := b.client.Ask(ctx, Send{To: "weather", JSON: []byte(`{"city":"Bern"}`)})
	if err != nil {
		t.Fatal(err)
	}
	if r.Reply == nil || r.Reply.Kind != parley.Response ||
		string(r.Reply.Parts[0].JSON) != `{"celsius":21,"city":"Bern"}` || r.Reply.InReplyTo != r.ID {
		t.Fatalf("answer %+v", r.Reply)
	}
	if r, err = b.client.Ask(ctx, Send{To: "weather", Text: text("Rome")}); err != nil ||
		!strings.Contains(string(r.Reply.Parts[0].JSON), "Rome") {
		t.Fatalf("text to a skill with one string member: %+v, %v", r, err)
	}
	if r, err = b.client.Ask(ctx, Send{To: "weather", Text: text("Atlantis")}); err != nil ||
		r.Reply.Kind != parley.Failure || r.Reply.Error.Code != parley.Rejected {
		t.Fatalf("a refusal of the agent: %+v, %v", r, err)
	}
	_, err = b.client.Ask(ctx, Send{To: "weather", JSON: []byte(`{"town":"Bern"}`)})
	e := code(t, err, parley.InvalidContent)
	f, err := b.client.Refusal(ctx, e.Ref)
	if err != nil || f.Step != "admit" || f.Protocol != "api" || f.To != "weather" {
		t.Fatalf("the refusal behind %q: %+v, %v", e.Ref, f, err)
	}
	list, err := b.client.Refused(ctx, 1)
	if err != nil || len(list) != 1 || list[0].Ref != e.Ref {
		t.Fatalf("refused: %+v, %v", list, err)
	}
	_, err = b.client.Refusal(ctx, "unknown")
	code(t, err, notFound)
	_, err = b.client.Ask(ctx, Send{To: "nobody", Text: text("x")})
	code(t, err, parley.UnknownAgent)
	for name, s := range map[string]Send{
		"no recipient":     {Text: text("x")},
		"two contents":     {To: "weather", Text: text("x"), JSON: []byte("1")},
		"response at all":  {To: "weather", Kind: parley.Response},
		"timeout":          {To: "weather", Timeout: "soon"},
		"empty part":       {To: "weather", Parts: []Part{{}}},
		"state":            {To: "weather", State: parley.Working},
		"error in request": {To: "weather", Error: &Problem{Text: "x"}},
		"from":             {To: "weather", From: "No Name"},
		"media type":       {To: "weather", Parts: []Part{{MediaType: "///", Text: text("x")}}},
	} {
		_, err := b.client.Send(ctx, s)
		if e := code(t, err, parley.Malformed); e.Text == "" {
			t.Errorf("%s: no text", name)
		}
	}
}

func TestStream(t *testing.T) {
	b, ctx := open(t, nil), context.Background()
	var accepted Receipt
	var kinds []string
	for m, err := range b.client.Stream(ctx, Send{To: "weather", Text: text("Bern")},
		func(r Receipt) { accepted = r }) {
		if err != nil {
			t.Fatal(err)
		}
		if m.InReplyTo != accepted.ID {
			t.Errorf("%s is about %s, not %s", m.Kind, m.InReplyTo, accepted.ID)
		}
		kinds = append(kinds, m.Kind.String()+" "+m.State.String())
	}
	if want := []string{"event working", "response none"}; !slices.Equal(kinds, want) {
		t.Fatalf("events %v, want %v", kinds, want)
	}
	// A message refused before it is recorded gets a status, not a stream.
	for _, err := range b.client.Stream(ctx, Send{To: "nobody", Text: text("x")}, nil) {
		code(t, err, parley.UnknownAgent)
	}
}

func TestIdempotency(t *testing.T) {
	b, ctx := open(t, nil), context.Background()
	s := Send{To: "weather", Text: text("Bern"), IdempotencyKey: "k1"}
	first, err := b.client.Ask(ctx, s)
	if err != nil || first.Replayed {
		t.Fatalf("%+v, %v", first, err)
	}
	again, err := b.client.Ask(ctx, s)
	if err != nil || !again.Replayed || again.ID != first.ID || again.Reply == nil || again.Reply.ID != first.Reply.ID {
		t.Fatalf("the same again: %+v, %v", again, err)
	}
	s.Text = text("Rome")
	_, err = b.client.Ask(ctx, s)
	code(t, err, parley.Conflict)
	s.IdempotencyKey = "k2"
	if other, err := b.client.Ask(ctx, s); err != nil || other.Replayed {
		t.Fatalf("another key: %+v, %v", other, err)
	}
}

func TestInbox(t *testing.T) {
	b := open(t, nil)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := b.client.AddAgent(ctx, NewAgent{Name: "crew/bob", Inbox: true}); err != nil {
		t.Fatal(err)
	}
	// Messages wait while no reader is there, and come in order.
	var sent []parley.ID
	for i := range 3 {
		r, err := b.client.Send(ctx, Send{To: "crew/bob", Kind: parley.Notice, Text: text(fmt.Sprint(i)),
			Conversation: parley.HashID([]byte("0123456789abcdef")).String()})
		if err != nil {
			t.Fatal(err)
		}
		sent = append(sent, r.ID)
	}
	var got []parley.ID
	for len(got) < 3 {
		list, err := b.client.Collect(ctx, "crew/bob", 2, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if len(list) > 2 {
			t.Fatalf("%d messages, more than the 2 asked for", len(list))
		}
		for _, m := range list {
			got = append(got, m.ID)
			if m.Attempt < 1 || m.Origin.Protocol != "api" || m.Origin.Peer != "root" ||
				m.Origin.Assurance != parley.Session {
				t.Errorf("message %+v", m)
			}
		}
	}
	if !slices.Equal(got, sent) {
		t.Fatalf("read %v, sent %v", got, sent)
	}

	// A request is answered with inReplyTo; its sender waits for that.
	answered := make(chan error, 1)
	go func() {
		for m, err := range b.client.Inbox(ctx, "crew/bob") {
			if err != nil {
				answered <- err
				return
			}
			if _, err := b.client.Send(ctx, Send{From: "crew/bob", Kind: parley.Event, State: parley.Working,
				InReplyTo: m.ID.String(), Text: text("on it")}); err != nil {
				answered <- err
				return
			}
			_, err = b.client.Send(ctx, Send{From: "crew/bob", InReplyTo: m.ID.String(), JSON: []byte(`{"done":true}`)})
			answered <- err
			return
		}
	}()
	var kinds []string
	for m, err := range b.client.Stream(ctx, Send{To: "crew/bob", Text: text("do it"), Timeout: "15s"}, nil) {
		if err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, m.Kind.String())
	}
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	if want := []string{"event", "response"}; !slices.Equal(kinds, want) {
		t.Fatalf("got %v, want %v", kinds, want)
	}
	_, err := b.client.Send(ctx, Send{From: "crew/bob", InReplyTo: sent[0].String(), Text: text("?")})
	code(t, err, parley.Conflict) // a notice has no reply

	// Its sender may add to a request until it is answered.
	request, err := b.client.Send(ctx, Send{To: "crew/bob", Text: text("a trip")})
	if err != nil {
		t.Fatal(err)
	}
	more := Send{To: "crew/bob", Kind: parley.Input, InReplyTo: request.ID.String()[:18], Text: text("to Bern"),
		IdempotencyKey: "more"}
	first, err := b.client.Send(ctx, more)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := b.client.Send(ctx, more); err != nil || again.ID != first.ID || !again.Replayed {
		t.Fatalf("the same again: %+v, %v", again, err)
	}
	var list []*Message
	for len(list) < 2 {
		some, err := b.client.Collect(ctx, "crew/bob", 2, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, some...)
	}
	if len(list) != 2 || list[1].ID != first.ID || list[1].Kind != parley.Input || list[1].Number != 1 ||
		list[1].InReplyTo != request.ID || list[1].Conversation != request.Conversation {
		t.Fatalf("%+v", list)
	}
	if page, err := b.client.Messages(ctx, index.Filter{Kind: parley.Input}); err != nil || len(page.Messages) != 1 ||
		page.Messages[0].ID != first.ID {
		t.Fatalf("messages of kind input: %+v, %v", page, err)
	}
	_, err = b.client.Send(ctx, Send{To: "crew/bob", Kind: parley.Input, Text: text("?")})
	code(t, err, parley.Malformed)
	if _, err := b.client.Send(ctx, Send{From: "crew/bob", InReplyTo: request.ID.String(),
		Text: text("done")}); err != nil {
		t.Fatal(err)
	}
	more.IdempotencyKey = ""
	_, err = b.client.Send(ctx, more)
	code(t, err, parley.Conflict)

	v, err := b.client.Agent(ctx, "crew/bob", 0)
	if err != nil || v.Seen == nil || v.Seen.Assurance != parley.Session || v.Seen.Count != 3 {
		t.Fatalf("last heard of: %+v, %v", v.Seen, err)
	}
	_, err = b.client.Collect(ctx, "weather", 1, 0)
	code(t, err, parley.Conflict) // weather has no inbox
	if err := b.client.RemoveAgent(ctx, "crew/bob"); err != nil {
		t.Fatal(err)
	}
	if _, err = b.client.AddAgent(ctx, NewAgent{Name: "crew/bob", Identities: []NewIdentity{{Protocol: "agh",
		ID: "bob"}}}); err != nil {
		t.Fatal("the name of a removed inbox is not free: ", err)
	}
}

// The ways to an agent: a handler, an inbox without and with a reader, and a protocol that this hub does not speak.
func TestWays(t *testing.T) {
	b := open(t, nil)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ways := func(name string) hub.Way {
		t.Helper()
		list, err := b.as(observerToken).Ways(ctx, name)
		if err != nil || len(list) != 1 || len(list[0].Findings) != 1 {
			t.Fatalf("%s: %+v, %v", name, list, err)
		}
		return list[0]
	}
	if w := ways("weather"); w.Protocol != "go" || w.Findings[0].State != hub.FindingOK {
		t.Errorf("%+v", w)
	}
	if _, err := b.client.AddAgent(ctx, NewAgent{Name: "bob", Inbox: true}); err != nil {
		t.Fatal(err)
	}
	if w := ways("bob"); w.Protocol != "api" || w.Findings[0].State != hub.FindingWarning ||
		!strings.Contains(w.Findings[0].Detail, "has not had a reader") || w.Findings[0].Fix != "parley listen bob" {
		t.Errorf("without a reader: %+v", w)
	}
	reading, stop := context.WithCancel(ctx)
	if _, err := b.hub.Read(reading, "bob"); err != nil {
		t.Fatal(err)
	}
	if w := ways("bob"); w.Findings[0].State != hub.FindingOK || !strings.Contains(w.Findings[0].Detail, "1 read") {
		t.Errorf("with a reader: %+v", w)
	}
	stop()
	if _, err := b.client.AddAgent(ctx, NewAgent{Name: "peer", Identities: []NewIdentity{{Protocol: "agh",
		ID: "ws/peer"}}}); err != nil {
		t.Fatal(err)
	}
	if w := ways("peer"); w.Findings[0].State != hub.FindingFailed || w.ID != "ws/peer" {
		t.Errorf("no binding: %+v", w)
	}
	_, err := b.client.Ways(ctx, "nobody")
	code(t, err, parley.UnknownAgent)
}

// A message that a reader took and could not use is given to the next one.
func TestInboxGivesBack(t *testing.T) {
	b := open(t, nil)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	by := Actor{Name: "root", Role: Administer, Speak: []string{"**"}}
	if _, err := b.admin.AddAgent(ctx, by, NewAgent{Name: "bob", Inbox: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.admin.Send(ctx, by, Send{To: "bob", Kind: parley.Notice, Text: text("keep me")}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for m, err := range b.admin.Inbox(ctx, by, "bob") {
			if err != nil || *m.Parts[0].Text != "keep me" {
				t.Fatalf("%+v, %v", m, err)
			}
			break
		}
	}
	list, err := b.admin.Collect(ctx, by, "bob", 1, time.Minute)
	if err != nil || len(list) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
}

// An inbox has the agent's name, also where the request names the agent by an id in a protocol.
func TestInboxByIdentity(t *testing.T) {
	b := open(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := b.client.AddAgent(ctx, NewAgent{Name: "bob", Inbox: true}); err != nil {
		t.Fatal(err)
	}
	standIn := parley.Identity{Protocol: "samvad", ID: "bob-of-the-hub", StandIn: true}
	if err := b.hub.Directory().Link(ctx, "bob", standIn); err != nil {
		t.Fatal(err)
	}
	if _, err := b.client.Send(ctx, Send{To: "bob", Kind: parley.Notice, Text: text("keep me")}); err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequestWithContext(ctx, "GET", "http://127.0.0.1/v1/agents/bob-of-the-hub/inbox?wait=10s", nil)
	r.Header.Set("Authorization", "Bearer "+rootToken)
	w := &broken{httptest.NewRecorder()}
	b.admin.ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Fatalf("status %d, want 200", w.Code)
	}
	for m, err := range b.client.Inbox(ctx, "bob-of-the-hub") {
		if err != nil || *m.Parts[0].Text != "keep me" {
			t.Fatalf("%+v, %v; want the message whose answer could not be written", m, err)
		}
		break
	}
}

// broken is the connection of a caller that has disconnected.
type broken struct{ *httptest.ResponseRecorder }

func (broken) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestAgentWait(t *testing.T) {
	b := open(t, nil)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := b.client.AddAgent(ctx, NewAgent{Name: "bob", Inbox: true}); err != nil {
		t.Fatal(err)
	}
	type result struct {
		v   Agent
		err error
	}
	done := make(chan result, 1)
	go func() {
		v, err := b.client.Agent(ctx, "bob", 15*time.Second)
		done <- result{v, err}
	}()
	for {
		if _, err := b.client.Send(ctx, Send{From: "bob", To: "weather", Kind: parley.Notice, Skill: "forecast",
			Text: text("Bern")}); err != nil {
			t.Fatal(err)
		}
		select {
		case r := <-done:
			if r.err != nil || r.v.Seen == nil || r.v.Seen.Protocol != "api" {
				t.Fatalf("%+v, %v", r.v.Seen, r.err)
			}
			return
		default: // the caller may not have begun to wait yet
		}
	}
}

func TestDeadLetters(t *testing.T) {
	b := open(t, nil)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	// There is no binding for AGH, so nothing reaches this agent.
	if _, err := b.client.AddAgent(ctx, NewAgent{Name: "far", Identities: []NewIdentity{{Protocol: "agh",
		ID: "far"}}}); err != nil {
		t.Fatal(err)
	}
	var ids []parley.ID
	post := func() {
		r, err := b.client.Send(ctx, Send{To: "far", Kind: parley.Notice, Text: text("hello")})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, r.ID)
		<-b.settled
	}
	for range 3 {
		post()
	}
	list, err := b.client.Dead(ctx, DeadFilter{To: "far", Since: time.Now().Add(-time.Hour)})
	if err != nil || len(list) != 3 || list[0].Message != ids[0] || list[0].Reason.Code != parley.Unavailable ||
		list[0].Attempts != 3 {
		t.Fatalf("%+v, %v", list, err)
	}
	for name, f := range map[string]DeadFilter{"to": {To: "weather"}, "from": {From: "x"}, "code": {Code: parley.Loop},
		"since": {Since: time.Now().Add(time.Hour)}, "before": {Before: time.Now().Add(-time.Hour)}} {
		if list, err := b.client.Dead(ctx, f); err != nil || len(list) != 0 {
			t.Errorf("filter %s: %+v, %v", name, list, err)
		}
	}
	d, err := b.client.DeadLetter(ctx, ids[0].String(), "")
	if err != nil || d.Content == nil || *d.Content.Parts[0].Text != "hello" {
		t.Fatalf("%+v, %v", d, err)
	}
	if _, err := b.client.Retry(ctx, ids[0].String(), "far"); err != nil {
		t.Fatal(err)
	}
	if got := <-b.settled; got != ids[0] {
		t.Fatalf("%s died again, want %s", got, ids[0])
	}
	if _, err := b.client.Drop(ctx, ids[0].String(), "", "of no use"); err != nil {
		t.Fatal(err)
	}
	_, err = b.client.Drop(ctx, ids[0].String(), "", "")
	code(t, err, notFound)

	_, err = b.client.DropAll(ctx, Bulk{})
	code(t, err, parley.Malformed)
	r, err := b.client.RetryAll(ctx, Bulk{Filter: DeadFilter{To: "far"}, DryRun: true})
	if err != nil || r.Matched != 2 || r.Done != 0 || !r.DryRun {
		t.Fatalf("%+v, %v", r, err)
	}
	if r, err = b.client.RetryAll(ctx, Bulk{Filter: DeadFilter{To: "far"}}); err != nil || r.Done != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	<-b.settled
	<-b.settled
	if r, err = b.client.DropAll(ctx, Bulk{All: true, Reason: "cleaning"}); err != nil || r.Done != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	if list, err := b.client.Dead(ctx, DeadFilter{}); err != nil || len(list) != 0 {
		t.Fatalf("%+v, %v", list, err)
	}
}

func TestKeys(t *testing.T) {
	b, ctx := open(t, nil), context.Background()
	if _, err := b.client.AddAgent(ctx, NewAgent{Name: "bob", Identities: []NewIdentity{{Protocol: "samvad",
		ID: "agent://bob"}}}); err != nil {
		t.Fatal(err)
	}
	key := base64.StdEncoding.EncodeToString(ed25519Key(3))
	if err := b.client.Enroll(ctx, Enrolment{Agent: "bob", NewIdentity: NewIdentity{Protocol: "samvad", PublicKey: key,
		KeyID: "k1"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.keys.Ensure(keyring.New{Owner: "hub", Purpose: "samvad", Algorithm: keyring.Ed25519}); err != nil {
		t.Fatal(err)
	}
	k, err := b.client.Keys(ctx)
	if err != nil || len(k.Own) != 1 || len(k.Enrolled) != 1 || k.Enrolled[0].KeyID != "k1" ||
		k.Enrolled[0].By != "root" || k.Enrolled[0].Note != "agent://bob" {
		t.Fatalf("%+v, %v", k, err)
	}
	// The last use of an enrolled key is the newest message that it proved.
	if _, err := b.client.Expose(ctx, "weather", []string{"samvad"}); err != nil {
		t.Fatal(err)
	}
	said := func(kid string) time.Time {
		t.Helper()
		id, err := parley.NewID(time.Now(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		r, err := b.hub.Accept(ctx, hub.Submission{Scope: "s", Message: &parley.Message{ID: id, Kind: parley.Notice,
			From: "bob", To: "weather", Skill: "forecast",
			Parts: []parley.Part{{MediaType: "application/json", Data: []byte(`{"city":"Bern"}`)}},
			Origin: parley.Origin{Protocol: "samvad", Peer: "agent://bob",
				Verdict: parley.Verdict{Assurance: parley.Signed, KeyID: kid}}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := b.admin.c.Index.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		m, err := b.client.Message(ctx, r.ID.String(), false)
		if err != nil {
			t.Fatal(err)
		}
		return m.Time
	}
	used := func(want map[string]time.Time) {
		t.Helper()
		k, err := b.client.Keys(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range k.Enrolled {
			if !e.Used.Equal(want[e.KeyID]) {
				t.Errorf("key %s was used %v, want %v", e.KeyID, e.Used, want[e.KeyID])
			}
		}
	}
	used(nil)
	one := said("k1")
	used(map[string]time.Time{"k1": one})
	if err := b.client.Enroll(ctx, Enrolment{Agent: "bob", NewIdentity: NewIdentity{Protocol: "samvad",
		PublicKey: base64.StdEncoding.EncodeToString(ed25519Key(4)), KeyID: "k2"}}); err != nil {
		t.Fatal(err)
	}
	two := said("k2")
	used(map[string]time.Time{"k1": one, "k2": two})
	fresh, err := b.client.Rotate(ctx, Rotation{Owner: "hub", Purpose: "samvad", Overlap: "1h"})
	if err != nil || fresh.ID == k.Own[0].ID || fresh.State != keyring.Next || fresh.Turn.IsZero() ||
		fresh.By != "root" {
		t.Fatalf("%+v, %v", fresh, err)
	}
	_, err = b.client.Rotate(ctx, Rotation{Owner: "hub", Purpose: "samvad", Overlap: "1h"})
	code(t, err, parley.Conflict)
	_, err = b.client.Rotate(ctx, Rotation{Owner: "nobody", Purpose: "samvad"})
	code(t, err, notFound)
	code(t, b.client.Enroll(ctx, Enrolment{Agent: "weather", NewIdentity: NewIdentity{Protocol: "samvad",
		PublicKey: key}}), parley.Conflict)
	code(t, b.client.Enroll(ctx, Enrolment{Agent: "bob", NewIdentity: NewIdentity{Protocol: "samvad", PublicKey: "%"}}),
		parley.Malformed)
	code(t, b.client.Enroll(ctx, Enrolment{Agent: "bob", NewIdentity: NewIdentity{Protocol: "samvad",
		PublicKey: base64.StdEncoding.EncodeToString(make([]byte, 32))}}), parley.Malformed)
	if err := b.client.Unenroll(ctx, "bob", "samvad", "k1"); err != nil {
		t.Fatal(err)
	}
	code(t, b.client.Unenroll(ctx, "bob", "samvad", "k1"), notFound)

	seed := bytes.Repeat([]byte{7}, 32)
	own, err := b.client.NewKey(ctx, NewKey{Owner: "bob", Purpose: "samvad", Algorithm: keyring.Ed25519, Seed: seed,
		Note: "n"})
	if err != nil || own.Owner != "bob" || own.By != "root" || own.Note != "n" ||
		!bytes.Equal(own.Public, ed25519Key(7)) {
		t.Errorf("%+v, %v", own, err)
	}
	_, err = b.client.NewKey(ctx, NewKey{Owner: "bob", Purpose: "samvad", Algorithm: keyring.Ed25519})
	code(t, err, parley.Conflict)
	_, err = b.client.NewKey(ctx, NewKey{Owner: "eve", Purpose: "samvad", Algorithm: keyring.Ed25519, Seed: seed[1:]})
	code(t, err, parley.Malformed)
	_, err = b.client.Passphrase(ctx, Passphrase{New: "x"}) // of a keyring in memory
	code(t, err, parley.Malformed)
	for _, c := range []*Client{b.as(viewerToken), b.as(operatorToken)} {
		_, err = c.NewKey(ctx, NewKey{Owner: "eve", Purpose: "samvad", Algorithm: keyring.Ed25519})
		code(t, err, parley.Forbidden)
		_, err = c.Passphrase(ctx, Passphrase{New: "x"})
		code(t, err, parley.Forbidden)
	}
}

func TestPassphrase(t *testing.T) {
	b, ctx := open(t, nil), context.Background()
	r, err := keyring.Open(keyring.Options{Dir: filepath.Join(t.TempDir(), "keys")})
	if err != nil {
		t.Fatal(err)
	}
	b.admin.c.Keys = r
	v, err := b.client.Passphrase(ctx, Passphrase{New: "secret words"})
	if err != nil || v.Backup == "" {
		t.Errorf("%+v, %v", v, err)
	}
	for _, p := range []Passphrase{{New: "other"}, {Current: "guess", New: "other"}} {
		_, err := b.client.Passphrase(ctx, p)
		code(t, err, parley.Conflict)
	}
	list, err := b.client.Audit(ctx, AuditFilter{})
	if err != nil || len(list) != 3 || list[2].Action != "key.passphrase" || list[2].Outcome != "done" ||
		strings.Contains(fmt.Sprint(list), "secret words") {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestRoles(t *testing.T) {
	b, ctx := open(t, nil), context.Background()
	if _, err := b.client.AddAgent(ctx, NewAgent{Name: "bot", Inbox: true}); err != nil {
		t.Fatal(err)
	}
	viewer, operator := b.as(viewerToken), b.as(operatorToken)
	if _, err := viewer.Agents(ctx, AgentFilter{}); err != nil {
		t.Fatal(err)
	}
	_, err := viewer.Send(ctx, Send{To: "weather", Text: text("Bern")})
	code(t, err, parley.Forbidden)
	_, err = viewer.Pause(ctx, "bot", true)
	code(t, err, parley.Forbidden)
	_, err = viewer.Collect(ctx, "bot", 1, 0)
	code(t, err, parley.Forbidden)
	_, err = viewer.DropAll(ctx, Bulk{All: true})
	code(t, err, parley.Forbidden)

	// An operator speaks as the agents of its token, by default the only one.
	r, err := operator.Ask(ctx, Send{To: "weather", Text: text("Bern")})
	if err != nil || r.Reply.To != "bot" {
		t.Fatalf("%+v, %v", r.Reply, err)
	}
	_, err = operator.Send(ctx, Send{From: "weather", To: "bot", Text: text("lies")})
	code(t, err, parley.Forbidden)
	_, err = operator.AddAgent(ctx, NewAgent{Name: "x", Inbox: true})
	code(t, err, parley.Forbidden)
	code(t, operator.RemoveAgent(ctx, "bot"), parley.Forbidden)
	_, err = operator.Audit(ctx, AuditFilter{})
	code(t, err, parley.Forbidden)
	_, err = operator.Rotate(ctx, Rotation{Owner: "hub", Purpose: "samvad"})
	code(t, err, parley.Forbidden)

	if _, err := b.as("not-a-token-of-this-hub").Info(ctx); !errors.Is(err, ErrToken) {
		t.Fatalf("a wrong token: %v", err)
	}
	list, err := viewer.Refused(ctx, 1)
	if err != nil || len(list) != 1 || list[0].Step != "token" {
		t.Fatalf("a wrong token is noted: %+v, %v", list, err)
	}
}

func TestBrowsersAndBounds(t *testing.T) {
	b := open(t, func(c *Config) { c.MaxBody = 1000; c.Hosts = []string{"hub.corp"} })
	host := strings.TrimPrefix(b.server.URL, "http://")
	for name, c := range map[string]struct {
		host, path, method, body string
		header                   map[string]string
		want                     int
		says                     string
	}{
		"plain": {want: 200},
		"same origin": {header: map[string]string{"Origin": "http://" + host,
			"Sec-Fetch-Site": "same-origin"}, want: 200},
		"localhost":       {host: "localhost:9090", want: 200},
		"IPv6":            {host: "[::1]:9090", want: 200},
		"configured host": {host: "hub.corp:9090", want: 200},
		"rebound name":    {host: "evil.example:9090", want: 403, says: "host name"},
		"no host":         {host: "evil.example.", want: 403, says: "host name"},
		"other origin": {header: map[string]string{"Origin": "https://evil.example"}, want: 403,
			says: "other origins"},
		"null origin": {header: map[string]string{"Origin": "null"}, want: 403, says: "other origins"},
		"other site": {header: map[string]string{"Sec-Fetch-Site": "cross-site"}, want: 403,
			says: "other origins"},
		"two tokens": {header: map[string]string{"Authorization": "Basic " + rootToken}, want: 401,
			says: "Bearer"},
		"unknown path":      {path: "/v1/nothing", want: 404, says: "not_found"},
		"outside":           {path: "/", want: 404, says: "not_found"},
		"wrong method":      {path: "/v1/info", method: "PUT", want: 405, says: "GET"},
		"unknown parameter": {path: "/v1/dead?tp=x", want: 400, says: "unknown parameter"},
		"doubled parameter": {path: "/v1/dead?to=x&to=y", want: 400, says: "twice"},
		"bad number":        {path: "/v1/refused?last=many", want: 400, says: "number"},
		"bad id":            {path: "/v1/dead/123", want: 400, says: "at least its first 8 digits"},
		"bad wait":          {path: "/v1/agents/weather?wait=soon", want: 400, says: "duration"},
		"unknown member": {path: "/v1/messages", method: "POST", body: `{"to":"weather","tu":1}`, want: 400,
			says: "unknown member"},
		"duplicate member": {path: "/v1/messages", method: "POST", body: `{"to":"weather","to":"x"}`, want: 400,
			says: "duplicate"},
		"no JSON": {path: "/v1/messages", method: "POST", body: `to=weather`, want: 400,
			says: "malformed"},
		"too large": {path: "/v1/messages", method: "POST", body: `{"to":"` + strings.Repeat("x", 1000) +
			`"}`, want: 413, says: "1000 bytes"},
		"no body":                {path: "/v1/messages", method: "POST", want: 400},
		"name that needs escape": {path: "/v1/agents/crew/scout", want: 404, says: "not_found"},
	} {
		t.Run(name, func(t *testing.T) {
			method, path := "GET", "/v1/info"
			if c.method != "" {
				method = c.method
			}
			if c.path != "" {
				path = c.path
			}
			r, err := http.NewRequest(method, b.server.URL+path, strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer "+rootToken)
			if c.body != "" {
				r.Header.Set("Content-Type", "application/json")
			}
			for k, v := range c.header {
				r.Header.Set(k, v)
			}
			if c.host != "" {
				r.Host = c.host
			}
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			answer, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != c.want || !strings.Contains(string(answer), c.says) {
				t.Fatalf("%d %s, want %d with %q", resp.StatusCode, answer, c.want, c.says)
			}
			if resp.Header.Get("Content-Type") != "application/json" || resp.StatusCode >= 400 &&
				!strings.HasPrefix(string(answer), `{"error":{"code":`) {
				t.Errorf("not an answer of the API: %s %s", resp.Header.Get("Content-Type"), answer)
			}
		})
	}
}

func TestWaitersAreBounded(t *testing.T) {
	b := open(t, func(c *Config) { c.Waiters = 1 })
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	leave, err := b.admin.enter()
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.client.Ask(ctx, Send{To: "weather", Text: text("Bern")})
	if e := code(t, err, parley.Unavailable); !e.Retryable {
		t.Errorf("%v should be worth a repeat", e)
	}
	leave()
	if _, err := b.client.Ask(ctx, Send{To: "weather", Text: text("Bern")}); err != nil {
		t.Fatal(err)
	}
}

func TestAuditIsBounded(t *testing.T) {
	b, ctx := open(t, func(c *Config) { c.Audit = 3 }), context.Background()
	for i := range 5 {
		if _, err := b.client.Pause(ctx, "weather", i%2 == 0); err != nil {
			t.Fatal(err)
		}
	}
	list, err := b.client.Audit(ctx, AuditFilter{})
	if err != nil || len(list) != 3 || list[0].Action != "agent.pause" {
		t.Fatalf("%+v, %v", list, err)
	}
	kept := 0
	for _, err := range b.hub.Journal().State("audit").Range(ctx, "") {
		if err != nil {
			t.Fatal(err)
		}
		kept++
	}
	if kept != 3 {
		t.Errorf("%d entries are kept, want 3", kept)
	}
}

// TestIssue: a token is issued and removed in the file, and a hub that rereads the file
// applies that. The role register has an account and no access to this API.
func TestIssue(t *testing.T) {
	dir := t.TempDir()
	quiet := slog.New(slog.DiscardHandler)
	_, err := IssueToken(dir, NewToken{Name: "ann", Role: Register}, fixed(), rand.Reader)
	if !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("without a file: %v", err)
	}
	tokens, first := openTokens(t, state(t), dir, quiet)
	local, err := tokens.AddLocal(time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	issued, err := IssueToken(dir, NewToken{Name: "ann", Role: Register}, fixed(), rand.Reader)
	secret := issued.Secret
	if err != nil || len(secret) < 32 {
		t.Fatal(secret, err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, TokenFile)); err != nil || strings.Contains(string(b), secret) {
		t.Errorf("%s %v", b, err)
	}
	for _, again := range []NewToken{{Name: "ann", Role: Register}, {Name: "x", Role: "nothing"},
		{Name: localToken, Role: Register}} {
		if _, err := IssueToken(dir, again, fixed(), rand.Reader); err == nil {
			t.Errorf("%+v was issued", again)
		}
	}
	account := func(secret, want string) {
		t.Helper()
		if got, why := tokens.Account(secret); got != want || (why == "") != (want != "") {
			t.Errorf("%q %q, want %q", got, why, want)
		}
	}
	account(secret, "")
	if err := tokens.Reread(t.Context()); err != nil {
		t.Fatal(err)
	}
	account(secret, "ann")
	account(first, "")
	account(local, "")
	for _, s := range []string{first, local} {
		if by, err := tokens.find(s); err != nil || by.may(Administer) != nil {
			t.Errorf("%+v", by)
		}
	}
	if by, err := tokens.find(secret); err != nil || by.may(Observe) == nil {
		t.Errorf("%+v may observe", by)
	}
	whole, err := os.ReadFile(filepath.Join(dir, TokenFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range [][]byte{[]byte("{"), whole} {
		// Lock: the tokens may be updating their copy in the file.
		_, unlock, _ := lockTokens(dir) // the content does not matter
		err := os.WriteFile(filepath.Join(dir, TokenFile), b, 0o600)
		unlock()
		if err != nil {
			t.Fatal(err)
		}
		if err := tokens.Reread(t.Context()); (err == nil) != (len(b) > 1) {
			t.Errorf("%.20s: %v", b, err)
		}
		account(secret, "ann")
	}
	if err := RevokeToken(dir, "nobody", false, time.Now()); err == nil {
		t.Error("an unknown token was removed without an error")
	}
	if err := RevokeToken(dir, "ann", false, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := tokens.Reread(t.Context()); err != nil {
		t.Fatal(err)
	}
	account(secret, "")
	if all := tokens.All(); len(all) != 2 || all[0].Name != "admin" || all[1].Name != localToken {
		t.Errorf("%+v", all)
	}
}

// state gives the state of a journal in memory.
func state(t *testing.T) journal.State {
	t.Helper()
	j, err := journal.Open(t.Context(), journal.Config{Store: testjournal.Memory(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	return j.State("admin-tokens")
}

func fixed() time.Time { return time.Date(2026, 4, 11, 10, 0, 0, 0, time.UTC) }

func openTokens(t *testing.T, s journal.State, dir string, log *slog.Logger) (*Tokens, string) {
	t.Helper()
	tokens, first, err := OpenTokens(t.Context(), s, "a state", dir, fixed, rand.Reader, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tokens.Close)
	return tokens, first
}

// TestTokensOfACluster: hubs that share a state share their tokens. Each hub adopts the
// lines of its file once, so a token removed at one hub does not come back from another
// hub's file.
func TestTokensOfACluster(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	s, one, two := state(t), t.TempDir(), t.TempDir()
	firsts := make([]string, 2)
	for i, dir := range []string{one, two} { // from an earlier release, in which each hub had its own tokens
		var err error
		if firsts[i], err = MakeTokenFile(dir, time.Time{}, rand.Reader); err != nil {
			t.Fatal(err)
		}
	}
	a, again := openTokens(t, s, one, quiet)
	b, andAgain := openTokens(t, s, two, quiet)
	if again != "" || andAgain != "" {
		t.Error("another first token was made")
	}
	known := func(tokens *Tokens, secret, want string) {
		t.Helper()
		for { // a change at one hub takes a moment to reach the others
			by, err := tokens.find(secret)
			if by.Name == want && (err == nil) == (want != "") {
				return
			}
			if t.Context().Err() != nil {
				t.Fatalf("%+v, want %q", by, want)
			}
			runtime.Gosched()
		}
	}
	for _, tokens := range []*Tokens{a, b} {
		known(tokens, firsts[0], "admin")
		known(tokens, firsts[1], "admin-2")
	}
	issued, err := IssueToken(one, NewToken{Name: "ann", Role: Operate}, fixed(), rand.Reader)
	secret := issued.Secret
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Reread(t.Context()); err != nil {
		t.Fatal(err)
	}
	known(a, secret, "ann")
	known(b, secret, "ann")
	b.Close() // the hub does not run while the token is removed
	if err := RevokeToken(one, "ann", false, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := a.Reread(t.Context()); err != nil {
		t.Fatal(err)
	}
	b, _ = openTokens(t, s, two, quiet)
	known(a, secret, "")
	known(b, secret, "")
	for _, dir := range []string{one, two} {
		read, err := ReadTokens(dir)
		if err != nil || len(read.All()) != 2 {
			t.Errorf("%+v, %v", read, err)
		}
	}
	// With another journal the hub adopts the tokens of its file again.
	moved, first, err := OpenTokens(t.Context(), state(t), "another state", one, fixed, rand.Reader, quiet)
	if err != nil || first != "" {
		t.Fatal(first, err)
	}
	defer moved.Close()
	known(moved, firsts[0], "admin")
	known(moved, secret, "")
}

// TestTokenFileOfTwo: a command adds lines to the file while a running hub copies changes
// of other hubs into it; no line is lost.
func TestTokenFileOfTwo(t *testing.T) {
	s, dir := state(t), t.TempDir()
	tokens, _ := openTokens(t, s, dir, slog.New(slog.DiscardHandler))
	other, _ := openTokens(t, s, t.TempDir(), slog.New(slog.DiscardHandler))
	const n = 20
	lost := n
	var changes sync.WaitGroup
	changes.Go(func() {
		for i := range n {
			token, _, err := firstToken(time.Time{}, rand.Reader)
			token.Name = fmt.Sprintf("other-%d", i)
			if err := errors.Join(err, other.create(t.Context(), token)); err != nil {
				t.Error(err)
			}
		}
	})
	for i := range n {
		if _, err := IssueToken(dir, NewToken{Name: fmt.Sprintf("command-%d", i), Role: Observe}, fixed(),
			rand.Reader); err != nil {
			t.Error(err)
		}
	}
	changes.Wait()
	if err := tokens.Reread(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, token := range tokens.All() {
		if strings.HasPrefix(token.Name, "command-") {
			lost--
		}
	}
	if lost > 0 {
		t.Errorf("%d tokens of the command are lost", lost)
	}
}

func TestTokens(t *testing.T) {
	dir := t.TempDir()
	quiet := slog.New(slog.DiscardHandler)
	kept := state(t)
	tokens, secret := openTokens(t, kept, dir, quiet)
	if by, err := tokens.find(secret); err != nil || by.Name != "admin" || by.Role != Administer || len(secret) < 32 {
		t.Fatalf("the first token %q is that of %+v", secret, by)
	}
	path := filepath.Join(dir, TokenFile)
	if i, err := os.Stat(path); err != nil || i.Mode().Perm() != 0o600 {
		t.Fatalf("token file: %v, %v", i, err)
	}
	made, err := os.ReadFile(path)
	if err != nil || bytes.Contains(made, []byte(secret)) || !bytes.Contains(made,
		[]byte(`"created":"2026-04-11T10:`)) {
		t.Fatalf("the file keeps the secret, or not when it was made: %s %v", made, err)
	}
	again, none := openTokens(t, kept, dir, quiet)
	if none != "" {
		t.Fatalf("another token at the second start: %q", none)
	}
	if by, err := again.find(secret); err != nil || by.Name != "admin" {
		t.Fatal("the first token is not known at the second start")
	}
	// In a directory of its own: the stores above may be updating their copy.
	open := t.TempDir()
	if err := os.WriteFile(filepath.Join(open, TokenFile), made, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(open, TokenFile), 0o644); err != nil { // whatever the umask is
		t.Fatal(err)
	}
	if _, _, err := OpenTokens(t.Context(), kept, "a state", open, fixed, rand.Reader, quiet); err == nil ||
		!strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a file that others can read: %v", err)
	}
	hash := base64.RawURLEncoding.EncodeToString(make([]byte, 32))
	for name, content := range map[string]string{
		"garbage": "{",
		"role":    `{"name":"a","role":"king","token":"0123456789abcdef"}`,
		"short":   `{"name":"a","role":"read","token":"short"}`,
		"twice": `{"name":"a","role":"read","token":"0123456789abcdef"}` + "\n" +
			`{"name":"a","role":"read","token":"0123456789abcdeg"}`,
		"member":       `{"name":"a","role":"read","token":"0123456789abcdef","rule":1}`,
		"no name":      `{"role":"read","token":"0123456789abcdef"}`,
		"has space":    `{"name":"a","role":"read","token":"0123456789 abcdef"}`,
		"no secret":    `{"name":"a","role":"read"}`,
		"the hub's":    `{"name":"local","role":"read","token":"0123456789abcdef"}`,
		"both":         `{"name":"a","role":"read","token":"0123456789abcdef","hash":"sha256:` + hash + `"}`,
		"another hash": `{"name":"a","role":"read","hash":"sha512:` + hash + `"}`,
		"short hash":   `{"name":"a","role":"read","hash":"sha256:` + hash[:40] + `"}`,
	} {
		_, unlock, _ := lockTokens(dir) // the tokens may be updating their copy in the file
		err := os.WriteFile(path, []byte(content), 0o600)
		unlock()
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := OpenTokens(t.Context(), kept, "a state", dir, fixed, rand.Reader, quiet); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	memory, other := openTokens(t, state(t), "", quiet)
	if other == secret {
		t.Fatalf("tokens in memory: %q", other)
	}
	if by, err := memory.find(other); err != nil || by.Role != Administer {
		t.Fatalf("the token in memory is that of %+v", by)
	}
	if _, err := ReadTokens(t.TempDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// TestClearSecretsAreReplaced: a hub that starts accepts lines with a secret in clear,
// and replaces the secrets by hashes; ReadTokens changes nothing.
func TestClearSecretsAreReplaced(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, TokenFile)
	before := `{"name":"old","role":"operate","token":"the-old-secret-0123","speak":["bot"]}` + "\n\n" +
		`{"name":"new","role":"read","hash":"sha256:` + base64.RawURLEncoding.EncodeToString(make([]byte, 32)) + `"}` +
		"\n"
	if err := os.WriteFile(path, []byte(before), 0o600); err != nil {
		t.Fatal(err)
	}
	read, err := ReadTokens(dir)
	if err != nil || !slices.Equal(read.Clear(), []string{"old"}) {
		t.Fatalf("%v, %v", read, err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != before {
		t.Fatalf("reading changed the file: %s %v", b, err)
	}
	var log bytes.Buffer
	kept := state(t)
	for start := range 2 {
		opened, first := openTokens(t, kept, dir, slog.New(slog.NewTextHandler(&log, nil)))
		if first != "" || len(opened.Clear()) > 0 {
			t.Fatalf("start %d: %v %q", start, opened, first)
		}
		by, err := opened.find("the-old-secret-0123")
		if err != nil || by.Name != "old" || by.Role != Operate || !slices.Equal(by.Speak, []string{"bot"}) {
			t.Errorf("start %d: the token is that of %+v", start, by)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil || bytes.Contains(b, []byte("the-old-secret")) || bytes.Count(b, []byte("sha256:")) != 2 {
		t.Errorf("%s %v", b, err)
	}
	if i, err := os.Stat(path); err != nil || i.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", i, err)
	}
	if strings.Count(log.String(), "replaced the secrets") != 1 || strings.Contains(log.String(), "the-old-secret") {
		t.Error(log.String())
	}
}

func TestClientWithoutHub(t *testing.T) {
	var away *UnreachableError
	if _, err := (&Client{Base: "http://127.0.0.1:1"}).Info(context.Background()); !errors.As(err, &away) {
		t.Fatalf("nothing listens: %v", err)
	}
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	if _, err := (&Client{Base: s.URL}).Info(context.Background()); !errors.As(err, &away) {
		t.Fatalf("something else listens: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := (&Client{Base: s.URL}).Info(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("a call that was given up: %v", err)
	}
}

func FuzzSend(f *testing.F) {
	f.Add([]byte(`{"to":"weather","text":"Bern"}`))
	f.Add([]byte(`{"to":"weather","parts":[{"data":"AAA="},{"json":1e400}],"kind":"event",` +
		`"inReplyTo":"00000000-0000-0000-0000-000000000001"}`))
	by := Actor{Name: "root", Role: Administer, Speak: []string{"**"}}
	f.Fuzz(func(t *testing.T, b []byte) {
		var s Send
		c := &call{r: httptest.NewRequest("POST", "/v1/messages", bytes.NewReader(b))}
		c.r.Header.Set("Content-Type", "application/json")
		if c.body(&s, false) != nil {
			return
		}
		if parts, err := s.content(); err == nil {
			for _, p := range parts {
				if v := viewPart(p); v.Text == nil && v.JSON == nil && v.Data == nil && v.URI == "" {
					t.Fatalf("a part without content: %+v", p)
				}
			}
		}
		_, _ = by.speaker(s.From)
	})
}

// ed25519Key makes the public key of the seed whose bytes are all n.
func ed25519Key(n byte) []byte {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{n}, ed25519.SeedSize)).Public().(ed25519.PublicKey)
}

// Credentials are for one address of an agent: linking another identity neither shows them there, nor loses them.
func TestLinkedCredentials(t *testing.T) {
	b := open(t, nil)
	kept := map[string]string{}
	b.admin.c.Protocols = append(b.admin.c.Protocols, Protocol{Name: "a2a",
		Credentials: func(s Secret) (func(context.Context, string) error, error) {
			return func(_ context.Context, agent string) error {
				kept[agent] = string(s)
				return nil
			}, nil
		}})
	one := NewIdentity{Protocol: "a2a", ID: "https://one", URL: "https://one", Credentials: Secret(`"1"`)}
	caller := NewIdentity{Protocol: "a2a", ID: "caller lab"}
	two := NewIdentity{Protocol: "a2a", ID: "https://two", URL: "https://two", Credentials: Secret(`"2"`)}
	ctx, by := t.Context(), Actor{Name: "test", Role: Administer}
	if _, err := b.admin.AddAgent(ctx, by, NewAgent{Name: "lab", Identities: []NewIdentity{one, two}}); err == nil ||
		kept["lab"] != "" {
		t.Errorf("credentials for two addresses: %v, kept %s", err, kept["lab"])
	}
	if _, err := b.admin.AddAgent(ctx, by, NewAgent{Name: "lab", Identities: []NewIdentity{one, caller}}); err != nil ||
		kept["lab"] != `"1"` {
		t.Errorf("beside an identity without an address: %v, kept %s", err, kept["lab"])
	}
	if _, err := b.admin.Link(ctx, by, "lab", caller); err != nil || kept["lab"] != `"1"` {
		t.Errorf("an identity without an address: %v, kept %s", err, kept["lab"])
	}
	_, err := b.admin.Link(ctx, by, "lab", two)
	code(t, err, parley.Conflict)
	if kept["lab"] != `"1"` {
		t.Errorf("kept %s after a link that was refused", kept["lab"])
	}
	one.URL = "https://moved"
	if _, err := b.admin.Link(ctx, by, "lab", one); err != nil || kept["lab"] != `"1"` {
		t.Errorf("the address moves, with credentials: %v, kept %s", err, kept["lab"])
	}
}
