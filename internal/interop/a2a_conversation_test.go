package interop

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2aclient/agentcard"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/bridge/a2a"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/node"
)

// TestA2AConversation has an A2A client ask an A2A agent, which asks a uAgent, which asks
// another A2A agent. Each is a process of its own of an unmodified SDK, and knows only its own
// protocol. The journal shows one trace, and the exported conversations verify.
func TestA2AConversation(t *testing.T) {
	sdk := a2aSDKs(t)[0]
	p, _ := uagentsPython(t)
	// With a collector of traces, each incoming request begins a trace if it has none.
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(collector.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	n, err := node.Open(t.Context(), node.Config{Data: filepath.Join(t.TempDir(), "data"), Durability: "disk",
		Listen: node.Listen{HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"}, Policy: node.Policy{Assurance: "session"},
		Network: node.Network{Allow: []string{"loopback"}}})
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
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), conversationWait)
	defer stop()
	defer func() {
		if t.Failed() {
			showJournal(t, n)
		}
	}()
	elsewhere := func(name, url string) {
		t.Helper()
		id, err := a2a.IdentityAt(url)
		if err == nil {
			_, err = n.Hub().Directory().Put(ctx, parley.Agent{Name: name, Exposed: parley.Everywhere,
				Identities: []parley.Identity{id}}, directory.FromOperator)
		}
		if err != nil {
			t.Fatal(err)
		}
		eventually(ctx, t, "the hub reads the card of "+name, func() bool {
			e, ok := n.Hub().Directory().Agent(name)
			return ok && len(e.Skills) == 1
		})
	}

	// The agents start, the last one first.
	elsewhere("scout", a2aServer(t, sdk.server...))
	asked := ""
	eventually(ctx, t, "the scout has a stand-in among the uAgents", func() bool {
		if e, ok := n.Hub().Directory().Agent("scout"); ok {
			asked = n.UAgents().Address(e)
		}
		return asked != ""
	})
	guide := (&uagentsHub{Node: n, t: t}).agent(p, "guide", "--ask", asked)
	e, ok := n.Hub().Directory().Lookup("uagents", guide.Address)
	if !ok {
		t.Fatal("the guide is not in the directory")
	}
	if err := n.Hub().Directory().Expose(ctx, e.Name, parley.Everywhere); err != nil {
		t.Fatal(err)
	}
	operator := admin.Actor{Name: "test", Role: admin.Administer}
	token, err := n.Admin().IssueToken(ctx, operator, admin.NewToken{Name: "planner", Agent: "planner"})
	if err != nil {
		t.Fatal(err)
	}
	elsewhere("planner", a2aServer(t, append(sdk.server[:len(sdk.server):len(sdk.server)], n.A2A().AgentURL(e.Name),
		token.Secret)...))

	web := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(web.CloseIdleConnections)
	card, err := agentcard.NewResolver(web).Resolve(ctx, n.A2A().AgentURL("planner"))
	if err != nil {
		t.Fatal(err)
	}
	credentials := a2aclient.NewInMemoryCredentialsStore()
	credentials.Set("s", "parley", a2aclient.AuthCredential(a2aCaller(t, n, "traveller")))
	c, err := a2aclient.NewFromCard(ctx, card, a2aclient.WithJSONRPCTransport(web),
		a2aclient.WithCallInterceptors(&a2aclient.AuthInterceptor{Service: credentials}))
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.SendMessage(a2aclient.AttachSessionID(ctx, "s"), &protocol.SendMessageRequest{
		Message: protocol.NewMessage(protocol.MessageRoleUser, protocol.NewTextPart("relay say Where to?"))})
	if err != nil {
		t.Fatal(err)
	}
	const want = "Where to? > a2a > uagents < uagents < a2a"
	if task, ok := r.(*protocol.Task); !ok || goText(task) != want {
		t.Fatalf("the answer is %+v, want %q", r, want)
	}
	requests := checkJournal(ctx, t, n, []hop{
		{from: "traveller", to: "planner", protocol: "a2a", answered: "a2a", asked: parley.Session, answer: parley.Session},
		{from: "planner", to: e.Name, protocol: "a2a", answered: "uagents", asked: parley.Session, answer: parley.Signed},
		{from: e.Name, to: "scout", protocol: "uagents", answered: "a2a", asked: parley.Signed, answer: parley.Session}})
	for key, m := range requests {
		var file bytes.Buffer
		err := n.Admin().Export(ctx, operator, m.Conversation.String(), true, &file)
		if err != nil {
			t.Errorf("export the conversation of %s: %v", key, err)
			continue
		}
		if r, err := admin.VerifyExport(&file, nil); err != nil || !r.OK() {
			t.Errorf("the export of the conversation of %s: %+v, %v", key, r, err)
		}
	}
}
