package admin

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal/index"
)

// marker is a word that only content holds.
const marker = "quincunx"

// quotingBinding fails every delivery, with an error that quotes the content.
type quotingBinding struct{}

func (quotingBinding) Protocol() string               { return "agh" }
func (quotingBinding) Capabilities() hub.Capabilities { return hub.Capabilities{Deduplicates: true} }
func (quotingBinding) Deliver(context.Context, hub.Outbound) hub.Outcome {
	return hub.Outcome{Err: &parley.Error{Code: parley.Unavailable, Text: "the agent says " + marker, Retryable: true},
		Losses: []parley.Loss{{Field: "Parts", Reason: "not " + marker}}}
}

// benchOfThree is a bench with an agent that echoes, an inbox, and an agent that cannot
// be reached.
func benchOfThree(t *testing.T) *bench {
	t.Helper()
	b := open(t, func(c *Config) {
		withTools(c, quotingBinding{}.Protocol())
		if err := c.Hub.Bind(quotingBinding{}); err != nil {
			t.Fatal(err)
		}
		say := func(ctx context.Context, _ *parley.Message, q struct {
			Say  string `json:"say"`
			Fail bool   `json:"fail,omitempty"`
		}) (map[string]string, error) {
			if q.Fail {
				return nil, parley.Refuse(parley.Rejected, "no such %s", q.Say)
			}
			return map[string]string{"said": q.Say}, parley.Progress(ctx, "I hear "+q.Say)
		}
		parrot := parley.Agent{Name: "parrot", Skills: []parley.SkillSpec{parley.Skill("say", say)}}
		if err := c.Hub.Handle(parrot); err != nil {
			t.Fatal(err)
		}
	})
	far := NewIdentity{Protocol: quotingBinding{}.Protocol(), ID: "far"}
	for _, n := range []NewAgent{{Name: "box", Inbox: true}, {Name: "far", Identities: []NewIdentity{far}}} {
		if _, err := b.client.AddAgent(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// traffic holds messages with the marker in them.
type traffic struct {
	kinds         map[parley.Kind]bool
	messages      []string
	conversations []string
	dead          string
	refused       string
}

// talk records messages of every kind with the marker in content, envelope, header,
// extension and checks, a dead letter, and a refusal.
func (b *bench) talk() traffic {
	b.t.Helper()
	ctx := b.t.Context()
	for _, s := range []Send{
		{To: "parrot", JSON: []byte(`{"say":"` + marker + `"}`)},
		{To: "parrot", JSON: []byte(`{"say":"` + marker + `","fail":true}`)},
		{To: "box", Kind: parley.Notice, Text: text(marker)},
	} {
		f := b.client.Ask
		if s.Kind == parley.Notice {
			f = b.client.Send
		}
		if _, err := f(ctx, s); err != nil {
			b.t.Fatal(err)
		}
	}
	dead, err := b.client.Send(ctx, Send{To: "far", Kind: parley.Notice, Text: text(marker)})
	if err != nil {
		b.t.Fatal(err)
	}
	<-b.settled
	checks := []parley.Check{{Name: "digest", OK: true, Detail: "over " + marker}}
	_, err = b.hub.Accept(ctx, hub.Submission{Scope: "raw", Message: &parley.Message{
		Kind: parley.Notice, From: "operator", To: "box",
		Parts:      []parley.Part{{MediaType: "text/plain", Data: []byte(marker)}},
		Extensions: map[string]json.RawMessage{"api": json.RawMessage(`{"note":"` + marker + `"}`)},
		Origin: parley.Origin{Protocol: apiProtocol, Peer: "root", Raw: []byte(`{"text":"` + marker + `"}`),
			Header:  map[string]string{"Subject": marker},
			Verdict: parley.Verdict{Assurance: parley.Session, Checks: checks}}}})
	if err != nil {
		b.t.Fatal(err)
	}
	out := traffic{kinds: map[parley.Kind]bool{}, dead: dead.ID.String()}
	page, err := b.client.Messages(ctx, index.Filter{})
	if err != nil {
		b.t.Fatal(err)
	}
	for _, m := range page.Messages {
		out.kinds[m.Kind] = true
		out.messages = append(out.messages, m.ID.String())
		if c := m.Conversation.String(); !slices.Contains(out.conversations, c) {
			out.conversations = append(out.conversations, c)
		}
	}
	out.refused = b.hub.Refuse(hub.Refusal{Protocol: apiProtocol, Step: "admit", Code: parley.InvalidContent,
		Text: "no " + marker, Cause: marker + " is no city", Verdict: parley.Verdict{Checks: checks}})
	return out
}

// get makes a request with a token, and gives the answer and its body.
func (b *bench) get(token, path string) (*http.Response, string) {
	b.t.Helper()
	resp := b.begin(token, path)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return resp, string(body)
}

func (b *bench) begin(token, path string) *http.Response {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), "GET", b.server.URL+path, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	return resp
}

// until reads a stream until it has shown all the words.
func until(t *testing.T, stream *bufio.Reader, words []string) string {
	t.Helper()
	body := ""
	for slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(body, w) }) {
		line, err := stream.ReadString('\n')
		if err != nil {
			t.Fatalf("%v after\n%s", err, body)
		}
		body += line
	}
	return body
}

// errorOf gives the error of a call and drops its result.
func errorOf[T any](_ T, err error) error { return err }

var base64s = regexp.MustCompile(`[A-Za-z0-9+/]{12,}=*`)

// shows reports whether a body has the marker, in clear or in base64.
func shows(body string) bool {
	for _, s := range base64s.FindAllString(body, -1) {
		if b, err := base64.StdEncoding.DecodeString(s); err == nil && strings.Contains(string(b), marker) {
			return true
		}
	}
	return strings.Contains(body, marker)
}

// TestObserverSeesNoContent: no answer to a token with the role observe shows content,
// where the role read sees it.
func TestObserverSeesNoContent(t *testing.T) {
	b := benchOfThree(t)
	tokens := map[Role]string{Observe: observerToken, Read: viewerToken}
	streams := map[string]map[Role]*bufio.Reader{"/v1/events": {}, "/v1/watch": {}}
	for route, readers := range streams {
		for role, token := range tokens {
			resp := b.begin(token, route)
			defer resp.Body.Close()
			readers[role] = bufio.NewReader(resp.Body)
			if line, err := readers[role].ReadString('\n'); err != nil || line != "event: started\n" {
				t.Fatalf("%s: %q %v", role, line, err)
			}
		}
	}
	said := b.talk()
	for _, k := range []parley.Kind{parley.Request, parley.Event, parley.Response, parley.Failure, parley.Notice} {
		if !said.kinds[k] {
			t.Fatalf("no message of kind %s was recorded", k)
		}
	}
	// Values for the paths and queries of routes, and the routes that show content.
	export := "/v1/conversations/{id}/export"
	values := map[string][]string{
		"/v1/agents/{name}": {"box", "far", "parrot"}, "/v1/agents/{name}/inbox": {"box"},
		"/v1/agents/{name}/state": {"box", "far", "parrot"}, "/v1/agents/{name}/ways": {"box", "far", "parrot"},
		"/v1/agents/{name}/tools": {"far"},
		"/v1/messages/{id}":       said.messages, "/v1/conversations/{id}": said.conversations, export: said.conversations,
		"/v1/conversations/{id}/trace": said.conversations, "/v1/conversations/{id}/refused": said.conversations,
		"/v1/dead/{id}": {said.dead}, "/v1/refused/{ref}": {said.refused},
		"/v1/agents/{name}/removal": {"far"}, "/v1/jobs/{id}": {"1"}, "/v1/checklists/{name}": {"far"},
	}
	b.admin.checks.of["far"] = &checklist{agent: "far", begun: time.Now(), ends: time.Now().Add(time.Hour)}
	job := &runningJob{work: &work{failed: []string{marker}}, Job: Job{Reason: marker, Ended: time.Now(), Outcome: "done"},
		end: func(error) {}}
	if err := b.admin.jobs.add(job); err != nil {
		t.Fatal(err)
	}
	queries := map[string]string{"/v1/messages/{id}": "?raw=true", export: "?content=false"}
	known := []string{"/v1/messages", "/v1/messages/{id}", "/v1/conversations", "/v1/conversations/{id}", export,
		"/v1/conversations/{id}/trace", "/v1/timeline", "/v1/watch", "/v1/events", "/v1/dead",
		"/v1/dead/{id}", "/v1/refused", "/v1/refused/{ref}",
		"/v1/undelivered", "/v1/jobs", "/v1/jobs/{id}"}
	parameter := regexp.MustCompile(`\{.*\}`)
	for route, of := range table() {
		if _, found := of["GET"]; !found {
			continue
		}
		paths := []string{route}
		if parameter.MatchString(route) {
			paths = nil
			for _, v := range values[route] {
				path := parameter.ReplaceAllString(route, v)
				paths = append(paths, path)
				if q := queries[route]; q != "" {
					paths = append(paths, path+q)
				}
			}
			if len(paths) == 0 {
				t.Errorf("%s: add values for its parameter", route)
			}
		}
		seen := map[Role]bool{}
		for role, token := range tokens {
			for _, path := range paths {
				var body string
				status := http.StatusOK
				if readers := streams[route]; readers != nil {
					body = until(t, readers[role], append(slices.Clone(said.messages), said.refused, `"state":"dead"`))
				} else {
					var resp *http.Response
					resp, body = b.get(token, path)
					status = resp.StatusCode
				}
				if status != http.StatusOK && status != http.StatusForbidden {
					t.Errorf("%s as %s: %d %s", path, role, status, body)
				}
				if shows(body) {
					seen[role] = true
					if role == Observe {
						t.Errorf("%s shows content to an observer: %s", path, body)
					}
				}
			}
		}
		if slices.Contains(known, route) && !seen[Read] {
			t.Errorf("%s shows no content to the role read: this test cannot fail there", route)
		}
	}
	for _, path := range []string{"/v1/messages?q=" + marker, "/v1/events?q=" + marker,
		"/v1/undelivered?q=" + marker} {
		if resp, body := b.get(observerToken, path); resp.StatusCode != http.StatusForbidden {
			t.Errorf("an observer may search content: %s: %d %s", path, resp.StatusCode, body)
		}
	}
	// The Go interface, which the console uses, hides the same.
	by := Actor{Name: "watch", Role: Observe}
	id := said.conversations[0]
	for name, err := range map[string]error{
		"export":     b.admin.Export(t.Context(), by, id, false, io.Discard),
		"transcript": b.admin.Transcript(t.Context(), by, id, "asp", io.Discard),
		"search":     errorOf(b.admin.Messages(t.Context(), by, index.Filter{Text: marker})),
		"inbox":      errorOf(b.admin.Collect(t.Context(), by, "box", 1, 0)),
		"audit":      errorOf(b.admin.Audit(by, AuditFilter{})),
	} {
		var e *parley.Error
		if !errors.As(err, &e) || e.Code != parley.Forbidden {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, err := range b.admin.Tail(t.Context(), by, index.Filter{Text: marker}, nil) {
		code(t, err, parley.Forbidden)
	}
}

// TestEveryRouteNeedsItsRole: a role below that of a route is refused before the request
// is read.
func TestEveryRouteNeedsItsRole(t *testing.T) {
	b := open(t, nil)
	roles := []struct {
		role  Role
		token string
	}{{"", "a token of nobody at all"}, {Observe, observerToken}, {Read, viewerToken}, {Operate, operatorToken}}
	for route, of := range table() {
		for method, ep := range of {
			for _, v := range roles {
				if v.role.level() >= ep.role.level() {
					break
				}
				want := http.StatusForbidden
				if v.role == "" {
					want = http.StatusUnauthorized
				}
				req, err := http.NewRequestWithContext(t.Context(), method, b.server.URL+route, strings.NewReader("{"))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Authorization", "Bearer "+v.token)
				resp, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if resp.StatusCode != want {
					t.Errorf("%s %s as %q: %d, want %d", method, route, v.role, resp.StatusCode, want)
				}
			}
		}
	}
}

// TestViewsWithoutContent lists the fields of each view that an observer sees. A new
// field must be added here, or removed in withoutContent.
func TestViewsWithoutContent(t *testing.T) {
	message := "Act Audience Error.Advice Error.Code Error.Reason Error.Ref From Hops Origin.Checks.Name Origin.KeyID " +
		"Origin.Peer Origin.Protocol " +
		"Schema Skill To"
	summary := "Act Deliveries.Error.Code Deliveries.Error.Reason Deliveries.Protocol Deliveries.Steps.Code " +
		"Deliveries.To Error.Code Error.Reason From Protocol Skill To Trace"
	for _, c := range []struct {
		view view
		left string
	}{
		{&Message{}, message},
		{&Summary{}, summary},
		{&Recorded{}, "Admissions.Rule.From Admissions.Rule.Place.File Admissions.Rule.To Admissions.Text Admissions.To " +
			"Advice Erased.By Erased.Name Erased.Reason Erased.What Node RawDigest"},
		{&HistoryEntry{}, "Erased.By Erased.Name Erased.Reason Erased.What"},
		{&ConversationInfo{}, "Agents"},
		{&DeliveryNews{}, "Error.Code Error.Reason To"},
		{&DeadLetter{}, "Cursor From Position Reason.Advice Reason.Code Reason.Reason Reason.Ref Recipient.PausedBy " +
			"Recipient.Reason.Advice " +
			"Recipient.Reason.Code Recipient.Reason.Reason Recipient.Reason.Ref Recipient.State To"},
		{&UndeliveredMessage{}, "Act Protocol Skill"},
		{&UndeliveredGroup{}, "Problem.Advice Problem.Code Problem.Reason Problem.Ref Recipient.PausedBy " +
			"Recipient.Reason.Advice Recipient.Reason.Code Recipient.Reason.Reason Recipient.Reason.Ref Recipient.State To"},
		{&Job{}, "Action By Filter.Code Filter.Cursor Filter.From Filter.Reason Filter.To ID Outcome"},
		{&Attempt{}, "Address Digest Error.Advice Error.Code Error.Reason Error.Ref Protocol Status"},
		{&AgentState{}, "PausedBy Reason.Advice Reason.Code Reason.Reason Reason.Ref State"},
		{&Refusal{}, "Advice Agent Checks.Name Claim Code KeyID Protocol Reason Ref Source Step To"},
	} {
		v := reflect.ValueOf(c.view).Elem()
		fill(v)
		// Nested views have rows of their own.
		switch v := c.view.(type) {
		case *Recorded:
			v.Summary, v.Content, v.Recipients, v.Course = Summary{}, nil, nil, Course{}
		case *HistoryEntry:
			v.Summary, v.Course = Summary{}, Course{}
		case *DeadLetter:
			v.Content, v.History = nil, nil
		case *UndeliveredMessage:
			v.DeadLetter = DeadLetter{}
		case *UndeliveredGroup:
			v.Newest = nil
		}
		full := marked(v, "")
		c.view.withoutContent()
		left := marked(v, "")
		slices.Sort(left)
		if got := strings.Join(slices.Compact(left), " "); got != c.left {
			t.Errorf("of %T is left\n%s, want\n%s", c.view, got, c.left)
		}
		if len(full) <= len(left) {
			t.Errorf("%T: nothing was taken out of %v", c.view, full)
		}
	}
}

// fill puts the marker into all texts and bytes of a value.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(marker)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i))
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte(marker))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		e := reflect.New(v.Type().Elem()).Elem()
		fill(e)
		v.SetMapIndex(reflect.ValueOf(marker).Convert(v.Type().Key()), e)
	}
}

// marked names the fields of a value that hold the marker.
func marked(v reflect.Value, path string) (out []string) {
	switch v.Kind() {
	case reflect.String:
		if v.String() == marker {
			return []string{path}
		}
	case reflect.Pointer:
		if !v.IsNil() {
			return marked(v.Elem(), path)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				out = append(out, marked(v.Field(i), strings.TrimPrefix(path+"."+f.Name, "."))...)
			}
		}
	case reflect.Slice, reflect.Map:
		if v.Len() > 0 && (v.Kind() == reflect.Map || v.Type().Elem().Kind() == reflect.Uint8) {
			return []string{path}
		}
		for i := range v.Len() {
			out = append(out, marked(v.Index(i), path)...)
		}
	}
	return out
}
