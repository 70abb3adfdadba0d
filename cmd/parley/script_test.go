package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
)

// Most tests wait for programs, so more tests run at once than there are processors.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	testscript.Main(m, map[string]func(){"parley": main})
}

// TestScripts runs the stories of testdata/script, each against a hub of its own on
// $WORK/parley-data, the default of the commands. A further testscript command is "code N
// command…", which expects the exit code N; "peer" starts an agent.
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup:               func(e *testscript.Env) error { return startHub(e) },
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"code": wantCode, "dies": waitDead,
			"conversation": onlyConversation, "spoil": spoil, "peer": runPeer, "bearer": useToken,
			"booker": addBooker, "recorded": lastRecorded, "answered": waitAnswered,
			"secret": writeSecret, "task": lastTask},
	})
}

func wantCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N command…")
	}
	want, err := strconv.Atoi(args[0])
	if err != nil {
		ts.Fatalf("usage: code N command…")
	}
	got := 0
	var exit *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// addBooker adds an agent that asks back.
func addBooker(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: booker")
	}
	ts.Check(ts.Value(hubKey{}).(*node.Node).Handle(parley.Agent{Name: "booker"}, parley.RawSkill("book",
		func(ctx context.Context, m *parley.Message, r parley.Replier) error {
			where, err := r.(parley.Prompter).NeedInput(parley.Text("where to?"))
			if err != nil {
				return err
			}
			return r.Reply(parley.Text(m.Text() + " to " + where.Text()))
		}, parley.AsDefault())))
}

// lastRecorded sets a variable to the id of the message that the last command recorded.
func lastRecorded(ts *testscript.TestScript, neg bool, args []string) {
	found := regexp.MustCompile(`recorded as ([0-9a-f-]{36})`).FindStringSubmatch(ts.ReadFile("stdout"))
	if neg || len(args) != 1 || found == nil {
		ts.Fatalf("usage: recorded VARIABLE, after a command that recorded a message")
	}
	ts.Setenv(args[0], found[1])
}

// waitAnswered waits until a request to an agent has its answer.
func waitAnswered(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: answered MESSAGE AGENT")
	}
	id, err := parley.ParseID(args[0])
	ts.Check(err)
	j := ts.Value(hubKey{}).(*node.Node).Hub().Journal()
	changed := make(chan struct{}, 1)
	defer j.Watch(func(*journal.Record) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})()
	limit := time.After(time.Minute)
	for {
		if _, open := j.Delivery(id, args[1]); !open {
			return
		}
		select {
		case <-changed:
		case <-limit:
			ts.Fatalf("%s has no answer", id)
		}
	}
}

// useToken makes the commands use the token that the last one showed; $BEARER keeps its secret.
func useToken(ts *testscript.TestScript, _ bool, _ []string) {
	secret := regexp.MustCompile(`parley_[A-Za-z0-9_-]{32}`).FindString(ts.ReadFile("stdout"))
	if secret == "" {
		ts.Fatalf("the last command showed no token")
	}
	ts.Setenv("BEARER", secret)
	ts.Setenv(tokenEnv, secret)
}

// writeSecret writes $BEARER into a file.
func writeSecret(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: secret FILE, after bearer")
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(ts.Getenv("BEARER")), 0o600))
}

// lastTask sets $TASK to the id of the A2A task that the last command showed as JSON.
func lastTask(ts *testscript.TestScript, neg bool, args []string) {
	var task struct{ ID string }
	if err := json.Unmarshal([]byte(ts.ReadFile("stdout")), &task); neg || len(args) != 0 || err != nil || task.ID == "" {
		ts.Fatalf("usage: task, after a command that showed a task as JSON")
	}
	ts.Setenv("TASK", task.ID)
}

type hubKey struct{}

// waitDead sends a notice that no binding can deliver, and waits until it is a dead
// letter; $DEAD is its id.
func waitDead(ts *testscript.TestScript, _ bool, args []string) {
	n := ts.Value(hubKey{}).(*node.Node)
	dead := make(chan parley.ID, 16)
	stop := watchDead(n, dead)
	defer stop()
	text := "hello"
	r, err := n.Admin().Send(context.Background(), admin.Actor{Name: "test", Role: admin.Administer,
		Speak: []string{"**"}},
		admin.Send{To: args[0], Kind: parley.Notice, Text: &text})
	ts.Check(err)
	for id := range dead {
		if id == r.ID {
			break
		}
	}
	ts.Setenv("DEAD", r.ID.String())
}

func startHub(e *testscript.Env) error {
	ctx := context.Background()
	data := filepath.Join(e.WorkDir, "parley-data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	observer := `{"name":"watch","role":"observe","token":"observer-token-0123456789"}`
	if err := os.WriteFile(filepath.Join(data, admin.TokenFile), []byte(observer), 0o600); err != nil {
		return err
	}
	n, err := node.Open(ctx, node.Config{
		Data: data, Listen: node.Listen{HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0", AGH: "127.0.0.1:0"},
		AGH:    node.AGH{Users: aghUsers()},
		Policy: node.Policy{Assurance: "session"}, Network: node.Network{Allow: []string{"loopback"}},
		Delivery: node.Delivery{Tries: 1}, ASP: node.ASP{Registration: "open"},
	})
	if err != nil {
		return err
	}
	e.Defer(func() { _ = n.Close(context.Background()) })
	type query struct {
		City string `json:"city"`
	}
	err = n.Handle(parley.Agent{Name: "weather", Title: "Weather", Exposed: parley.Everywhere},
		parley.Skill("forecast", func(ctx context.Context, _ *parley.Message, q query) (map[string]any, error) {
			if q.City == "Atlantis" {
				return nil, parley.Refuse(parley.Rejected, "no such city")
			}
			if err := parley.Progress(ctx, "looking out"); err != nil {
				return nil, err
			}
			return map[string]any{"celsius": 21, "city": q.City}, nil
		}))
	if err != nil {
		return err
	}
	museum, err := startAgent(n.SAMVAD().Hosting().Identity, n.SAMVAD().Hosting().Key)
	if err != nil {
		return err
	}
	e.Defer(museum.Close)
	if err := n.Start(ctx); err != nil {
		return err
	}
	e.Values[hubKey{}] = n
	e.Setenv("MUSEUM", museum.URL)
	running := peers{}
	e.Values[peersKey{}] = running
	e.Defer(func() {
		for _, stop := range running {
			stop()
		}
	})
	e.Setenv("HTTP", n.Addresses().HTTP)
	e.Setenv("NATS", n.Addresses().AGH)
	e.Setenv("ADMIN", n.Addresses().Admin)
	e.Setenv("HOME", e.WorkDir)
	e.Setenv("NOTHING", filepath.Join(e.WorkDir, "nothing"))
	return nil
}

// startAgent serves a SAMVAD agent that trusts the hub.
func startAgent(hubID, hubKey string) (*httptest.Server, error) {
	key, err := samvad.ParseKey(hubKey)
	if err != nil {
		return nil, err
	}
	me, err := samvad.IdentityFromSeed("agent://museum.test", "key-current", make([]byte, 32))
	if err != nil {
		return nil, err
	}
	s := httptest.NewUnstartedServer(nil)
	card := &samvad.Card{ID: me.ID(), Name: "Museum", Version: "1.0.0", Description: "Knows what is on show.",
		URL:        "http://" + s.Listener.Addr().String(),
		PublicKeys: []samvad.CardKey{samvad.CardKeyOf(me, true)},
		Skills: []samvad.Skill{{ID: "exhibitions", Name: "Exhibitions", Description: "What is on show.",
			InputSchema:  []byte(`{"type":"object"}`),
			OutputSchema: []byte(`{"type":"object"}`), Modes: []samvad.Mode{samvad.ModeSync},
			Trust: samvad.TrustPublic}}}
	s.Config.Handler = &samvad.Server{
		Verifier: &samvad.Verifier{Keys: samvad.StaticKeys{hubID: {key}}},
		Agent: &samvad.Agent{Card: card.Complete(), Identity: me,
			Handler: func(context.Context, *samvad.Request) (samvad.Response, error) {
				b, err := json.Marshal(map[string]string{"show": "angels"})
				return samvad.Response{Result: b}, err
			}},
	}
	s.Start()
	return s, nil
}

func watchDead(n *node.Node, dead chan<- parley.ID) (stop func()) {
	return n.Hub().Journal().Watch(func(r *journal.Record) {
		for _, s := range r.Steps {
			if s.State == parley.Dead {
				dead <- s.Message
			}
		}
	})
}
