package interop

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/asp"
	bridge "github.com/parley-hub/parley/bridge/a2e"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
)

// conversationWait bounds the whole conversation: five processes of Python on a
// loaded machine take their time to start.
const conversationWait = 5 * time.Minute

// hop is one question of the conversation and its answer, in the journal.
type hop struct {
	from, to           string
	protocol, answered string // in which protocol it was asked, and answered
	asked, answer      parley.Assurance
}

// TestConversation passes one question through all protocols: an ASP client asks a
// uAgent, which asks a peer on NATS, which asks an agent of the A2E SDK, which asks an
// agent of the SAMVAD SDK; each is a process of its own and knows only its own
// protocol. The journal shows one trace with the proof at each step. Without the A2E
// SDK, which is in no registry, the peer on NATS asks the SAMVAD agent itself.
func TestConversation(t *testing.T) {
	p := python(t)
	if _, ok := uagentsPython(t); !ok {
		t.Fatal("no uagents")
	}
	a2ePython := a2eInterpreter(t)
	if a2ePython == "" {
		t.Log("without an agent of the A2E SDK: no interpreter has it")
	}
	// A collector of traces: with one, each incoming request begins a trace.
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request) {
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(collector.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)

	n, err := node.Open(t.Context(), node.Config{Data: filepath.Join(t.TempDir(), "data"), Durability: "disk",
		Listen:  node.Listen{HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0", AGH: "127.0.0.1:0"},
		Policy:  node.Policy{Assurance: "session"}, // proof by a connection is enough
		Network: node.Network{Allow: []string{"loopback"}},
		AGH: node.AGH{Users: map[string]node.AGHUser{"mason": {Token: "secret", Peers: []string{"mason"},
			Workspaces: []string{"acme"}}},
			Workspaces: map[string]node.AGHWorkspace{"acme": {Channels: []string{"builders"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), time.Minute)
		defer stop()
		if err := n.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	ctx, stop := context.WithTimeout(t.Context(), conversationWait)
	defer stop()
	defer func() {
		if t.Failed() {
			showJournal(t, n)
		}
	}()

	// The operator adds agents that cannot register themselves.
	hosting := n.SAMVAD().Hosting()
	at := serve(t, p, hosting.Identity, hosting.Key)
	enrol(t, n, "scribe", at.ID, at.URL, at.Key)
	token, err := bridge.NewToken()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Hub().Directory().Put(ctx, parley.Agent{Name: "robot", Exposed: parley.Everywhere,
		Identities: []parley.Identity{{Protocol: "a2e", ID: bridge.TokenID(token)}}},
		directory.FromOperator); err != nil {
		t.Fatal(err)
	}
	me, err := asp.GenerateIdentity("agent://guest.example/test/client", "org_guest")
	if err != nil {
		t.Fatal(err)
	}
	card, err := me.Card().JSON()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.ASP().Enroll(ctx, card); err != nil {
		t.Fatal(err)
	}
	if err := n.Start(ctx); err != nil {
		t.Fatal(err)
	}

	// The agents start, the last one first.
	const mason, masonPeer = "guest/agh/acme/mason", "mason"
	hops := []hop{{from: "robot", to: "scribe", protocol: "a2e", answered: "samvad", asked: parley.Session,
		answer: parley.Session}}
	last, down, up := "scribe", "", ""
	var robot *relay
	if a2ePython != "" {
		robot = startRelay(t, a2ePython, n.Addresses().Local+"/a2e", token, "scribe")
		hops = append(hops, hop{from: mason, to: "robot", protocol: "agh", answered: "a2e", asked: parley.Session,
			answer: parley.Session})
		last, down, up = "robot", " > a2e", " < a2e"
	} else {
		hops[0].from, hops[0].protocol = mason, "agh"
	}
	peer := startAGH(t, p, n, "--workspace", "acme", "--peer", masonPeer, "--token", "secret", "--ask", last)
	peer.wait("ready", func(e aghEvent) bool { return e.Event == "ready" })
	for done := false; !done; { // stand-ins are made in the background
		peer.do(`{"do":"whois","to":"` + last + `","query":""}`)
		done = peer.wait("whois", func(e aghEvent) bool { return e.Event == "whois" }).Answers
	}
	peer.do(`{"do":"greet"}`)
	asked := ""
	eventually(ctx, t, "mason has a stand-in among the uAgents", func() bool {
		if n.Hub().Directory().Expose(ctx, mason, parley.Everywhere) != nil {
			return false // it is not known yet
		}
		if e, ok := n.Hub().Directory().Agent(mason); ok {
			asked = n.UAgents().Address(e)
		}
		return asked != ""
	})
	guide := (&uagentsHub{Node: n, t: t}).agent(p, "guide", "--ask", asked)
	e, ok := n.Hub().Directory().Lookup("uagents", guide.Address)
	if !ok {
		t.Fatal("the guide is not in the directory")
	}
	guideName := e.Name
	if err := n.Hub().Directory().Expose(ctx, guideName, parley.Everywhere); err != nil {
		t.Fatal(err)
	}
	guest, ok := n.Hub().Directory().Lookup("asp", me.ID())
	if !ok {
		t.Fatal("the guest is not in the directory")
	}
	hops = append(hops, hop{from: guideName, to: mason, protocol: "uagents", answered: "agh", asked: parley.Signed,
		answer: parley.Session},
		hop{from: guest.Name, to: guideName, protocol: "asp", answered: "uagents", asked: parley.Signed,
			answer: parley.Signed})

	client := &asp.Client{Server: n.Addresses().HTTP, Identity: me, HTTP: &http.Client{}}
	t.Cleanup(client.HTTP.CloseIdleConnections)
	var s *asp.Session
	eventually(ctx, t, "the guide's stand-in takes the invitation", func() bool {
		e, ok := n.Hub().Directory().Agent(guideName)
		if !ok || n.ASP().Address(e) == "" {
			return false
		}
		s, err = client.Open(ctx, asp.Invitation{To: []string{n.ASP().Address(e)}, Purpose: "a trip"})
		return err == nil
	})
	for m, err := range s.Messages(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if m.State == asp.Introduced {
			break
		}
	}
	answer := ask(ctx, t, s, "Where to?")
	down, up = "Where to? > uagents > nats"+down, up+" < nats < uagents"
	if !strings.Contains(answer, down) || !strings.Contains(answer, up) {
		t.Fatalf("the answer is %s, want %q and %q in it", answer, down, up)
	}
	if robot != nil {
		robot.check(ctx, mason, strings.TrimSuffix(down, " > a2e"))
	}
	if err := s.Close(ctx, "thank you"); err != nil {
		t.Fatal(err)
	}
	var transcript bytes.Buffer
	if r, err := s.Export(ctx, &transcript); err != nil || len(r.Faults) > 0 {
		t.Errorf("the transcript of the session: %+v, %v", r, err)
	}
	checkJournal(ctx, t, n, hops)
}

// ask asks in a session, and waits for the result, after acceptance and progress.
func ask(ctx context.Context, t *testing.T, s *asp.Session, text string) string {
	t.Helper()
	e, err := s.Send(ctx, asp.Query, asp.Question{QueryID: "q-1", QueryType: "message",
		Parameters: map[string]string{"text": text}})
	if err != nil {
		t.Fatal(err)
	}
	for m, err := range s.Messages(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if ref := m.Reference(); ref != "q-1" && ref != e.MessageID {
			continue
		}
		var b struct {
			InformType string          `json:"informType"`
			Data       json.RawMessage `json:"data"`
		}
		if err := json.Unmarshal(m.Body, &b); err != nil || m.Performative != asp.Inform || b.InformType == "error" {
			t.Fatalf("%s %s, %v", m.Performative, m.Body, err)
		}
		if b.InformType == "result" {
			var v struct{ Text string }
			if err := json.Unmarshal(b.Data, &v); err != nil {
				t.Fatalf("%s: %v", b.Data, err)
			}
			return v.Text
		}
	}
	t.Fatal("the session ended without an answer")
	return ""
}

// checkJournal finds all questions and answers, and no other question, in one trace. It gives
// the questions by "FROM → TO".
func checkJournal(ctx context.Context, t *testing.T, n *node.Node, hops []hop) map[string]*parley.Message {
	t.Helper()
	requests, replies := map[string]*parley.Message{}, map[parley.ID]*parley.Message{}
	conversations := map[parley.ID]bool{}
	j := n.Hub().Journal()
	for part := range j.Partitions() {
		for r, err := range j.Records(ctx, part, journal.From{}) {
			if err != nil {
				t.Fatal(err)
			}
			m := r.Message
			if m == nil {
				continue
			}
			if r.Refused != nil {
				t.Errorf("%s from %s to %s was refused: %v", m.Kind, m.From, m.To, r.Refused)
				continue
			}
			switch key := m.From + " → " + m.To; {
			case m.Kind == parley.Request && requests[key] != nil:
				t.Errorf("%s twice", key)
			case m.Kind == parley.Request:
				requests[key] = m
				conversations[m.Conversation] = true
			case m.Kind.Terminal():
				replies[m.InReplyTo] = m
			}
		}
	}
	if len(requests) != len(hops) {
		t.Errorf("%d requests are recorded, want %d", len(requests), len(hops))
	}
	trace := func(m *parley.Message) string {
		if len(m.Trace.Parent) != 55 {
			return "none"
		}
		return m.Trace.Parent[3:35]
	}
	first := ""
	for _, h := range hops {
		key := h.from + " → " + h.to
		q := requests[key]
		if q == nil {
			t.Errorf("%s is not recorded", key)
			continue
		}
		a := replies[q.ID]
		if a == nil || a.Kind != parley.Response {
			t.Errorf("%s was not answered: %+v", key, a)
			continue
		}
		if first == "" {
			first = trace(q)
		}
		t.Logf("%s: %s %s, answered %s %s, trace %s", key, q.Origin.Protocol, q.Origin.Verdict.Assurance,
			a.Origin.Protocol, a.Origin.Verdict.Assurance, trace(q))
		if q.Origin.Protocol != h.protocol || a.Origin.Protocol != h.answered ||
			q.Origin.Verdict.Assurance != h.asked || a.Origin.Verdict.Assurance != h.answer {
			t.Errorf("%s: %+v, answered %+v", key, q.Origin.Verdict, a.Origin.Verdict)
		}
		if trace(q) != first || trace(a) != first || first == "none" {
			t.Errorf("%s: trace %s, of the answer %s, want %s", key, trace(q), trace(a), first)
		}
		if !a.Origin.Received.IsZero() && a.Origin.Received.Before(q.Origin.Received) {
			t.Errorf("%s was answered before it was asked", key)
		}
	}
	if q := requests[hops[0].from+" → "+hops[0].to]; q == nil || hops[0].answered != "samvad" {
		return requests
	} else if a := replies[q.ID]; a != nil && a.Trace.Foreign["samvad.traceId"] != first {
		t.Errorf("the SAMVAD agent answered in trace %q, want %q", a.Trace.Foreign["samvad.traceId"], first)
	}
	return requests
}

// showJournal logs the records of the conversation.
func showJournal(t *testing.T, n *node.Node) {
	j := n.Hub().Journal()
	for part := range j.Partitions() {
		for r, err := range j.Records(t.Context(), part, journal.From{}) {
			if err != nil {
				t.Log(err)
				return
			}
			if m := r.Message; m != nil {
				t.Logf("%s %s %s from %s to %s: %.300q %v refused %v", m.Origin.Received.Format("05.000"),
					m.Origin.Protocol, m.Kind, m.From, m.To, m.Text(), m.Error, r.Refused)
			}
		}
	}
}

// eventually polls ok until it is true.
func eventually(ctx context.Context, t *testing.T, what string, ok func() bool) {
	t.Helper()
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		if ok() {
			tick.Stop()
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("never: %s", what)
		}
	}
}

// relay is an agent of the A2E SDK that forwards one request.
type relay struct {
	t     *testing.T
	lines chan string
	end   chan error
	errs  *bytes.Buffer
}

func startRelay(t *testing.T, python, url, token, ask string) *relay {
	t.Helper()
	c := exec.Command(python, filepath.Join("python", "a2e_relay.py"), url, token, ask)
	c.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	r := &relay{t: t, lines: make(chan string, 8), end: make(chan error, 1), errs: &bytes.Buffer{}}
	c.Stderr = r.errs
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			r.lines <- lines.Text()
		}
		close(r.lines)
		r.end <- c.Wait()
	}()
	t.Cleanup(func() {
		_ = c.Process.Kill() // it may have ended
		<-done
	})
	return r
}

// check waits for the process to end, and checks its output.
func (r *relay) check(ctx context.Context, from, heard string) {
	r.t.Helper()
	var seen []string
	for {
		select {
		case line, ok := <-r.lines:
			if ok {
				seen = append(seen, line)
				continue
			}
			err := <-r.end
			var got struct {
				Heard, From string
				Replied     bool
			}
			if len(seen) == 2 && err == nil {
				err = json.Unmarshal([]byte(seen[1]), &got)
			}
			if err != nil || !got.Replied || got.From != from || got.Heard != heard {
				r.t.Errorf("the A2E agent: %v\n%s\n%s", err, strings.Join(seen, "\n"), r.errs)
			}
			return
		case <-ctx.Done():
			r.t.Fatalf("the A2E agent does not end; it wrote %q", seen)
		}
	}
}
