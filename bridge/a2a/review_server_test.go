package a2a

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	pb1 "github.com/a2aproject/a2a-go/v2/a2apb/v1"
	"github.com/go-jose/go-jose/v4"
	"google.golang.org/grpc/codes"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/policy"
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

// A2A-080: the extended card of a client of 0.3 is signed in the form that the client gets, which is that of
// the public card.
func TestExtendedCardOf03(t *testing.T) {
	h := newCardHub(t, nil)
	ctx := withCall(t.Context(), &call{agent: "crew/weather", caller: bridge.Caller{Name: "crew/bob"}, version: V03})
	m := methods[V03]["agent/getAuthenticatedExtendedCard"]
	result, err := m.call(ctx, h.methods, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	card := []byte(encoded(t, result))
	var doc struct {
		Schemes    map[string]map[string]json.RawMessage `json:"securitySchemes"`
		Signatures []protocol.AgentCardSignature         `json:"signatures"`
	}
	if err := json.Unmarshal(card, &doc); err != nil {
		t.Fatal(err)
	}
	key := h.hubKeys(t)[0].Key
	for name, form := range map[string][]byte{"literal": literalReading(t, card), "python": pythonReading(t, card)} {
		holds := func(s protocol.AgentCardSignature) bool {
			jws, err := jose.ParseSignedCompact(s.Protected+"."+base64.RawURLEncoding.EncodeToString(form)+"."+s.Signature,
				[]jose.SignatureAlgorithm{jose.EdDSA})
			if err != nil {
				t.Fatal(err)
			}
			_, err = jws.Verify(key)
			return err == nil
		}
		if !slices.ContainsFunc(doc.Signatures, holds) {
			t.Errorf("no signature holds for the %s reading of %s", name, card)
		}
	}
	for name, scheme := range doc.Schemes {
		for _, member := range nestedSchemes {
			if scheme[member] != nil {
				t.Errorf("scheme %s repeats itself in %s", name, member)
			}
		}
	}
}

// The history has the message as its client sent it: the digits of its numbers, and members in either
// spelling (rule A2A-010).
func TestHistoryHasWhatWasSent(t *testing.T) {
	w := newWorld(t)
	w.handle("echo", echo)
	part := func(media string) string {
		return `{"message":{"messageId":"m1","role":"ROLE_USER","parts":[{"data":{"n":12345678901234567890}},
			{"raw":"aGk","` + media + `":"image/png","filename":"a.png"},{"text":"x","filename":"b"}]}}`
	}
	ctx := w.as("alice", "echo")
	c := callOf(ctx)
	c.params = json.RawMessage(part("mediaType"))
	c.body = fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":%s}`, part("media_type"))
	result, err := methods[V1]["SendMessage"].call(ctx, w.node.methods, c.params, false)
	w.must(err)
	sent := result.(event1).Task.History[0].Parts
	if text := encoded(t, sent[0]); !strings.Contains(text, "12345678901234567890") {
		t.Errorf("the data is %s", text)
	}
	if p := sent[1]; p.MediaType != "image/png" || p.Raw == nil || *p.Raw != "aGk=" || p.Filename != "a.png" {
		t.Errorf("the file is %s", encoded(t, p))
	}
	if p := sent[2]; p.Text == nil || p.Filename != "b" {
		t.Errorf("the text is %s", encoded(t, p))
	}
}

// overflow is what push does when the queues about a task are full.
func (w *world) overflow(task parley.ID) {
	w.node.live.mu.RLock()
	defer w.node.live.mu.RUnlock()
	for s := w.node.live.of[task]; s != nil; s = s.next {
		s.mu.Lock()
		s.lost, s.queue = true, nil
		s.mu.Unlock()
	}
}

// A2A-020, A2A-025: a client is told of its message, and of the end of its task, although more was recorded about
// the task at once than a queue holds.
func TestMoreThanAQueueHolds(t *testing.T) {
	w := newWorld(t)
	inputs := make(chan struct{})
	w.handle("fast", func(ctx context.Context, m *parley.Message, r parley.Replier) error {
		if string(m.Parts[0].Data) == "ask" {
			if _, err := r.(parley.Prompter).NeedInput(parley.Text("more?")); err != nil {
				return err
			}
			<-inputs
			return r.Reply(parley.Text("done"))
		}
		w.overflow(m.ID)
		return r.Reply(parley.Text("done"))
	})
	if got := w.task("alice", "fast", say("m1", "x", "")); shortly(got) != "task COMPLETED [done]" {
		t.Errorf("a message that waits: %s", shortly(got))
	}
	asked := w.task("alice", "fast", say("m2", "ask", ""))
	defer w.j.Watch(func(r *journal.Record) {
		if m := r.Message; m != nil && (m.Kind == parley.Request || m.Kind == parley.Input) {
			w.overflow(cmp.Or(m.InReplyTo, m.ID))
		}
	})()
	if got := w.task("alice", "fast", immediately(say("m3", "x", ""))); got.History[0].ID != "m3" {
		t.Errorf("a message: %+v", got)
	}
	got := w.task("alice", "fast", immediately(say("m4", "y", `,"taskId":"`+string(asked.ID)+`"`)))
	if shortly(got) != "task WORKING" || len(got.History) != 3 {
		t.Errorf("an input: %s, %v", shortly(got), got.History)
	}
	close(inputs)
	w.eventually("the task does not end", func() bool {
		got, err := w.get("alice", "fast", asked.ID)
		return err == nil && got.Status.State.Terminal()
	})
}

// The artifacts of an answer do not replace each other, whatever an agent elsewhere named them, after pieces were
// told too.
func TestArtifactsOfOneName(t *testing.T) {
	artifacts := func(ids ...protocol.ArtifactID) *parley.Message {
		m := &parley.Message{Kind: parley.Response}
		var k kept
		for _, id := range ids {
			m.Parts = append(m.Parts, parley.Text("of "+string(id)+fmt.Sprint(len(m.Parts))))
			k.Artifacts = append(k.Artifacts, keptArtifact{ID: id, Parts: 1})
		}
		m.Extensions = k.extensions()
		return m
	}
	for _, c := range []struct {
		ids  []protocol.ArtifactID
		want string // the pieces are replaced
	}{
		{[]protocol.ArtifactID{"log", resultID}, "task COMPLETED [of result1] [of log0]"},
		{[]protocol.ArtifactID{"log", "log"}, "task COMPLETED [of log0+of log1]"},
		{[]protocol.ArtifactID{"log", "other"}, "task COMPLETED [of log0] [of other1]"},
	} {
		p, task := begin(&parley.Message{Kind: parley.Request}, time.Time{})
		piece := piece("piece")
		p.add(task, &piece, time.Time{})
		p.add(task, artifacts(c.ids...), time.Time{})
		if got := shortly(task); got != c.want {
			t.Errorf("%v: %s, want %s", c.ids, got, c.want)
		}
	}
}

// session makes every caller bob, in a session.
type session struct{ fakeCallers }

func (session) Identify(context.Context, string, http.Header, *tls.ConnectionState, string) (bridge.Caller, error) {
	return bridge.Caller{Name: "bob", Peer: "token bob", Verdict: parley.Verdict{Assurance: parley.Session}}, nil
}

// A stream of gRPC that the hub ends before the task has ended does not end as one that is complete.
func TestEndStreamsOfGRPC(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Callers = session{} })
	g := make(gate, 1)
	w.handle("slow", g.handler)
	c := pb1.NewA2AServiceClient((&serving{Binding: w.node.Binding}).dial(t))
	s, err := c.SendStreamingMessage(t.Context(), hello("slow"))
	w.must(err)
	first, err := s.Recv()
	w.must(err)
	w.node.EndStreams()
	for err == nil {
		_, err = s.Recv()
	}
	if code, info, _ := refused(t, err); code != codes.Unavailable || info.GetReason() != "UNAVAILABLE" {
		t.Errorf("the stream ends with %v", err)
	}
	g <- "reply done"
	w.eventually("the task does not end", func() bool {
		got, err := w.get("bob", "slow", protocol.TaskID(first.GetTask().GetId()))
		return err == nil && got.Status.State.Terminal()
	})
}

// What a guest may do over gRPC is counted by its address, as over HTTP: no guest uses up what others have.
func TestSourceOfAGRPCGuest(t *testing.T) {
	t.Parallel()
	w := newServing(t)
	for address, want := range map[string]string{"192.0.2.7": "192.0.2.7", "2001:db8::7": "2001:db8::/64"} {
		ctx := grpcpeer.NewContext(t.Context(), &grpcpeer.Peer{Addr: &net.TCPAddr{IP: net.ParseIP(address), Port: 99}})
		ctx, err := w.admitGRPC(ctx, "/lf.a2a.v1.A2AService/SendMessage", hello("alice"))
		if err != nil {
			t.Fatal(err)
		}
		if got := policy.SourceOf(ctx); got != want {
			t.Errorf("the source of %s is %q", address, got)
		}
	}
}

// A guest has the streams of its source, as it may have many addresses.
func TestStreamsOfASource(t *testing.T) {
	t.Parallel()
	w := newServing(t, func(c *Config) { c.Streams = 1 })
	open := func(address string, inside func()) int {
		w.fake.events = func(context.Context) eventSeq {
			return func(yield func(protocol.Event, error) bool) {
				yield(taskIn(protocol.TaskStateWorking), nil)
				inside()
			}
		}
		ctx := policy.WithCaller(t.Context(), policy.NewCaller(policy.Source(address), nil))
		r := httptest.NewRequestWithContext(ctx, "POST", "/a2a/alice", strings.NewReader(subscribe1))
		r.RemoteAddr = net.JoinHostPort(address, "99")
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set(protocol.SvcParamVersion, V1)
		rec := httptest.NewRecorder()
		w.ServeHTTP(rec, r)
		return rec.Code
	}
	open("2001:db8::1", func() {
		for address, want := range map[string]int{"2001:db8::2": 429, "2001:db8:0:1::1": 200, "192.0.2.7": 200} {
			if got := open(address, func() {}); got != want {
				t.Errorf("%s: status %d, want %d", address, got, want)
			}
		}
	})
	if n := len(w.opened.open); n != 0 {
		t.Errorf("%d callers are kept", n)
	}
}
