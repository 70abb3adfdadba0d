package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/agh/aghnats"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/uagents"
)

// peers are the agents that a script starts with "peer KIND ARGS…", and stops with "peer stop KIND".
type peers map[string]func()

type peersKey struct{}

// runPeer is the testscript command peer.
func runPeer(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: peer KIND ARGS… or peer stop KIND")
	}
	running := ts.Value(peersKey{}).(peers)
	if args[0] == "stop" {
		running[args[1]]()
		delete(running, args[1])
		return
	}
	start := map[string]func(*testscript.TestScript, []string) (stop func()){
		"uagent": startUAgent, "mailbox": startMailbox, "a2e-agent": startA2EAgent, "a2e-host": startA2EHost,
		"agh": startAGHPeer,
	}[args[0]]
	if start == nil {
		ts.Fatalf("no peer %s", args[0])
	}
	running[args[0]] = start(ts, args[1:])
}

// uagent makes a uAgent, whose address is in a variable.
func uagent(ts *testscript.TestScript, variable string) *uagents.Identity {
	id, err := uagents.IdentityFromSeed(variable, 0)
	ts.Check(err)
	ts.Setenv(variable, id.Address())
	return id
}

// startUAgent serves the uAgent $BOB at $ENDPOINT. No server serves $EVE.
func startUAgent(ts *testscript.TestScript, _ []string) (stop func()) {
	id := uagent(ts, "BOB")
	uagent(ts, "EVE")
	s := httptest.NewServer(&uagents.Server{Verifier: &uagents.Verifier{},
		Resolve: func(_ context.Context, address string) (*uagents.Agent, error) {
			if address != id.Address() {
				return nil, nil
			}
			return &uagents.Agent{Identity: id}, nil
		}})
	ts.Setenv("ENDPOINT", s.URL+"/submit")
	return s.Close
}

// startMailbox registers the uAgent $CARL with a mailbox at the hub; with "read" it also lists its messages.
func startMailbox(ts *testscript.TestScript, args []string) (stop func()) {
	id, hub := uagent(ts, "CARL"), ts.Getenv("HTTP")
	r := &uagents.Registrar{Identity: id, URL: hub, Endpoints: []uagents.Endpoint{
		{URL: hub + "/v2/agents/mailbox/submit", Weight: 1}}}
	ts.Check(r.Register(context.Background()))
	if len(args) > 0 {
		_, err := (&uagents.MailboxClient{Identity: id, URL: hub}).List(context.Background())
		ts.Check(err)
	}
	return func() {}
}

// startA2EAgent connects to the hub with the token that `agents add --a2e new` printed into a file.
func startA2EAgent(ts *testscript.TestScript, args []string) (stop func()) {
	token := regexp.MustCompile(`auth_token=\W*([0-9a-f]{64})`).FindStringSubmatch(ts.ReadFile(args[0]))
	if token == nil {
		ts.Fatalf("no token in %s", args[0])
	}
	c := &a2e.Client{URL: ts.Getenv("HTTP") + "/a2e", Token: token[1], HTTP: &http.Client{}}
	ts.Check(c.Connect(context.Background()))
	return func() { ts.Check(c.Close()) }
}

// startA2EHost serves a host with one tool at $HOST; with an argument, only to that token, and right.toml and
// wrong.toml are configurations with it and with another.
func startA2EHost(ts *testscript.TestScript, args []string) (stop func()) {
	tools := &a2e.Toolbox{}
	tools.Add(a2e.ToolDefinition{Name: "echo", Description: "echoes"},
		func(_ context.Context, c *a2e.ToolCall) (any, error) { return c.Arguments, nil })
	h := &a2e.Host{Capabilities: map[string]a2e.Provider{"tools": a2e.ServeTools(tools)}}
	if len(args) > 0 {
		h.Auth = a2e.StaticTokens{"hub": args[0]}
	} else {
		h.Auth = a2e.Anonymous("guest")
	}
	s := httptest.NewServer(h)
	ts.Setenv("HOST", s.URL)
	for name, token := range map[string]string{"right": strings.Join(args, ""), "wrong": "another-token-0123456789"} {
		write := func(name, text string) { ts.Check(os.WriteFile(ts.MkAbs(name), []byte(text), 0o600)) }
		write(name+".token", token)
		write(name+".toml", fmt.Sprintf("data = \"nodata\"\n[network]\nallow = [\"loopback\"]\n[agents.host.a2e]\n"+
			"url = %q\ntoken_file = %q\n", s.URL, name+".token"))
	}
	return func() {
		s.CloseClientConnections()
		s.Close()
	}
}

// startAGHPeer joins a channel of the hub's NATS: WORKSPACE CHANNEL PEER.
func startAGHPeer(ts *testscript.TestScript, args []string) (stop func()) {
	nc, err := nats.Connect(ts.Getenv("NATS"), nats.Token(aghToken))
	ts.Check(err)
	ctx, cancel := context.WithCancel(context.Background())
	c := &agh.Client{Transport: &aghnats.Transport{Conn: nc}, WorkspaceID: args[0], Channel: args[1], PeerID: args[2],
		Handler: func(context.Context, *agh.Request) {}}
	ts.Check(c.Join(ctx))
	ts.Check(nc.Flush())
	return func() {
		cancel()
		nc.Close()
	}
}

const aghToken = "patcher-token-0123456789"

// aghUsers are the users of the scripts' hub.
func aghUsers() map[string]node.AGHUser {
	return map[string]node.AGHUser{"patcher": {Token: aghToken, Peers: []string{"patch.*"},
		Workspaces: []string{"ws_alpha"}}}
}
