package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/policy"
)

// The files of testdata/golden are what commands write on a terminal of 80 columns, with colours and without. A changed
// layout is accepted with
//
//	go test ./cmd/parley -run Golden -update
var update = flag.Bool("update", false, "write the golden files anew")

const goldenWidth = 80

// checkGolden compares the output of a command, which every caller writes on two terminals: one with colours, named
// NAME.colour, in which an escape is ␛, and one without.
func checkGolden(t *testing.T, name string, write func(*app) int) {
	t.Helper()
	for _, colour := range []bool{false, true} {
		var out, errs bytes.Buffer
		code := write(&app{in: strings.NewReader(""), out: &out, errs: &errs, now: func() time.Time { return goldenNow },
			screen: screen{width: goldenWidth, colour: colour}})
		if code != exitOK || errs.Len() > 0 {
			t.Fatalf("%s: exit code %d\n%s", name, code, &errs)
		}
		got := out.String()
		bare := regexp.MustCompile("\x1b\\[[0-9;]*m").ReplaceAllString(got, "")
		if has := bare != got; has != colour {
			t.Errorf("%s: has colours: %t, want %t", name, has, colour)
		}
		if regexp.MustCompile(`map\[|&\{|%!`).MatchString(bare) {
			t.Errorf("%s: shows a structure of Go", name)
		}
		for line := range strings.Lines(bare) {
			if line = strings.TrimSuffix(line, "\n"); cells(line) > goldenWidth || strings.HasSuffix(line, " ") {
				t.Errorf("%s: a line of %d columns: %q", name, cells(line), line)
			}
		}
		file := filepath.Join("testdata", "golden", name+".txt")
		if colour {
			file = filepath.Join("testdata", "golden", name+".colour.txt")
		}
		got = strings.ReplaceAll(got, "\x1b", "␛")
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-want +got; `go test ./cmd/parley -run Golden -update` accepts it):\n%s", file, diff)
		}
	}
}

// goldenNow is the time at which the commands run.
var goldenNow = time.Date(2026, 11, 20, 15, 0, 0, 0, time.UTC)

// goldenHub is a hub in memory whose clock stands still, unless it is moved, and whose ids are always the same.
type goldenHub struct {
	mu    sync.Mutex
	time  time.Time
	rnd   *rand.ChaCha8
	data  string
	admin *admin.Admin
	dead  chan parley.ID
}

func (g *goldenHub) now() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.time
}

func (g *goldenHub) pass(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.time = g.time.Add(d)
}

func (g *goldenHub) Read(b []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.rnd.Read(b)
}

func openGolden(t *testing.T) *goldenHub {
	t.Helper()
	ctx := context.Background()
	g := &goldenHub{time: goldenNow.Add(-26 * time.Hour), rnd: rand.NewChaCha8([32]byte{}), data: t.TempDir(),
		dead: make(chan parley.ID, 16)}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	j, err := journal.Open(ctx, journal.Config{Store: testjournal.Memory(t), Node: "hub", Now: g.now})
	check(err)
	dir, err := directory.Open(ctx, directory.Options{Now: g.now})
	check(err)
	p, err := policy.New(policy.Config{Hub: "hub", Assurance: map[string]parley.Assurance{"": parley.Session}})
	check(err)
	h, err := hub.New(hub.Config{ID: "hub", Secret: make([]byte, 32), Journal: j, Directory: dir, Policy: p, Now: g.now,
		Rand: g, Delivery: delivery.Config{Retry: delivery.Retry{Tries: 1}}})
	check(err)
	x, err := index.Open(ctx, index.Config{Journal: j})
	check(err)
	keys, err := keyring.Open(keyring.Options{})
	check(err)
	check(os.WriteFile(filepath.Join(g.data, admin.TokenFile),
		[]byte(`{"name":"golden","role":"administer","token":"golden-token-0123456789","speak":["**"]}`), 0o600))
	tokens, err := admin.ReadTokens(g.data)
	check(err)
	g.admin, err = admin.New(admin.Config{Hub: h, Keys: keys, Tokens: tokens, Index: x, Ready: j.Healthy,
		Metrics: http.NotFoundHandler(), Now: g.now, Info: func() admin.Info { return admin.Info{Hub: "hub"} },
		Protocols: []admin.Protocol{{Name: "samvad"}, {Name: "uagents"}, {Name: "agh"}, {Name: "asp"}}})
	check(err)
	stop := j.Watch(func(r *journal.Record) {
		for _, s := range r.Steps {
			if s.State == parley.Dead {
				g.dead <- s.Message
			}
		}
	})
	check(h.Handle(parley.Agent{Name: "weather", Title: "Weather", Exposed: parley.Everywhere, Skills: []parley.SkillSpec{
		parley.Skill("forecast", func(ctx context.Context, _ *parley.Message, q struct {
			City string `json:"city"`
		}) (map[string]any, error) {
			g.pass(1200 * time.Millisecond)
			if q.City == "Atlantis" {
				return nil, parley.Refuse(parley.Rejected, "no such city on the map of this planet: is %q spelt rightly?",
					q.City)
			}
			return map[string]any{"city": q.City, "celsius": 21}, parley.Progress(ctx, "looking out of the window")
		})}}))
	h.Start()
	server := httptest.NewServer(g.admin)
	at, err := json.Marshal(node.Announcement{Addresses: node.Addresses{Admin: server.URL},
		Token: "golden-token-0123456789"})
	check(err)
	check(os.WriteFile(filepath.Join(g.data, node.AddressFile), at, 0o600))
	t.Cleanup(func() {
		server.Close()
		stop()
		check(h.Close(ctx))
		check(x.Close())
		check(j.Close())
	})
	return g
}

// run is a command of the golden files.
func (g *goldenHub) run(args ...string) func(*app) int {
	return func(a *app) int { return a.run(append(args, "--data", g.data)) }
}

// TestGolden: agents, conversations, explanations and dead letters on a terminal. Names that are too long, a letter
// that is two columns wide, and a text that tries to control the terminal are among them.
func TestGolden(t *testing.T) {
	t.Parallel()
	g := openGolden(t)
	ctx := context.Background()
	by := admin.Actor{Name: "golden", Role: admin.Administer, Speak: []string{"**"}}
	const long = "crew/north/an-agent-with-a-name-that-nobody-would-ever-type"
	for _, n := range []admin.NewAgent{
		{Name: "planner", Inbox: true, Title: "Planner", Description: "Plans a day in a city: where to go, what to see, " +
			"and what to wear, by the weather that is expected and the exhibitions that are on."},
		{Name: long, Identities: []admin.NewIdentity{{Protocol: "agh", ID: "acme/north"}}},
		{Name: "museum", Identities: []admin.NewIdentity{{Protocol: "samvad", ID: "agent://museum.example",
			URL: "https://museum.example"}}, Expose: []string{"all"},
			Skills: []admin.Skill{{ID: "exhibitions", Description: "Knows what is on show."}}},
	} {
		if _, err := g.admin.AddAgent(ctx, by, n); err != nil {
			t.Fatal(err)
		}
		g.pass(time.Hour)
	}
	if _, err := g.admin.Pause(ctx, by, "museum", true); err != nil {
		t.Fatal(err)
	}
	g.pass(22 * time.Hour)
	ask := func(city, conversation string) admin.Receipt {
		t.Helper()
		question, err := json.Marshal(map[string]string{"city": city})
		if err != nil {
			t.Fatal(err)
		}
		r, err := g.admin.Ask(ctx, by, admin.Send{From: "planner", To: "weather", Skill: "forecast", JSON: question,
			Conversation: conversation})
		if err != nil {
			t.Fatal(err)
		}
		g.pass(7 * time.Minute)
		return r
	}
	first := ask("Bern", "")
	talk := first.Conversation.String()
	ask("東京 is where I go, and \u202emore\u202c than that is \x1b[31mnot\x1b[0m said here, whoever may ask", talk)
	ask("Atlantis", talk)
	text := "are you there?"
	lost, err := g.admin.Send(ctx, by, admin.Send{From: "planner", To: long, Kind: parley.Notice, Text: &text,
		Conversation: talk})
	if err != nil {
		t.Fatal(err)
	}
	if id := <-g.dead; id != lost.ID {
		t.Fatalf("%s is dead, want %s", id, lost.ID)
	}
	g.pass(3 * time.Minute)
	if _, err := g.admin.Send(ctx, by, admin.Send{From: "planner", To: "museum", Text: &text,
		Conversation: talk}); err != nil {
		t.Fatal(err)
	}
	g.pass(90 * time.Second)
	_, err = g.admin.Send(ctx, by, admin.Send{From: "planner", To: "wether", Text: &text})
	ref := parley.AsError(err).Ref

	checkGolden(t, "agents", g.run("agents"))
	checkGolden(t, "agents-utc", g.run("agents", "--utc"))
	checkGolden(t, "agents-show", g.run("agents", "show", "planner"))
	checkGolden(t, "conversation-list", g.run("conversation"))
	checkGolden(t, "conversation-show", g.run("conversation", "show", talk))
	checkGolden(t, "conversation-show-utc", g.run("conversation", "show", talk, "--steps", "--utc"))
	checkGolden(t, "explain-refused", g.run("explain", ref))
	checkGolden(t, "explain-message", g.run("explain", first.ID.String()))
	checkGolden(t, "dead", g.run("dead"))
	checkGolden(t, "dead-show", g.run("dead", "show", lost.ID.String()))
	checkGolden(t, "refused", g.run("refused"))
}

// TestGoldenDemo: the demo on a terminal. Its hub, agents and attackers are real: what differs from run to run (times,
// addresses, ids) is replaced in the plain output, which is then laid out as on a terminal. Only the scenes whose order
// is the same in every run are kept.
func TestGoldenDemo(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	if code := run([]string{"demo", "--once"}, strings.NewReader(""), &out, &errs); code != exitOK || errs.Len() > 0 {
		t.Fatalf("exit code %d\n%s\n%s", code, &errs, &out)
	}
	text := out.String()
	for _, r := range [][2]string{
		{`^Parley \S+:`, "Parley VERSION:"}, {`\d\d:\d\d:\d\d\.\d{3}`, "12:00:00.000"}, {`\d+\.\d ms`, "1.0 ms"},
		{`127\.0\.0\.1:\d+`, "127.0.0.1:8080"},
		{`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`, "01a2b3c4-d5e6-7f80-9000-0123456789ab"},
		{`hub-[0-9a-f]{10}`, "hub-0123456789"}, {`/\S*/parley-demo-\d+`, "/tmp/parley-demo-1"},
		{`agent1q[a-z0-9]+(-[0-9a-f]{8})?`, "agent1q" + strings.Repeat("x", 50) + "-01234567"},
		{`explain [a-z2-7]{16}`, "explain abcdefghijklmnop"}, {`once=[\w-]{43}`, "once=" + strings.Repeat("x", 43)},
	} {
		text = regexp.MustCompile(r[0]).ReplaceAllString(text, r[1])
	}
	scenes := strings.SplitAfter(text, "\n\n")
	var kept []string
	for _, s := range scenes {
		number, _, _ := strings.Cut(s, ". ")
		switch number {
		case "1", "2", "6":
		case "29", "30": // deliveries of earlier scenes may end in these
			s = regexp.MustCompile(`(?m)^   12:00:00.*\n`).ReplaceAllString(s, "")
		default:
			if s != scenes[0] && s != scenes[len(scenes)-1] {
				continue
			}
		}
		kept = append(kept, s)
	}
	if len(kept) != 7 {
		t.Fatalf("%d scenes\n%s", len(kept), text)
	}
	checkGolden(t, "demo", func(a *app) int {
		a.tell("%s", strings.Join(kept, ""))
		return exitOK
	})
}

// TestPlainWithoutTerminal: where the output is no terminal, nothing is shortened or coloured, ids and times are exact,
// and JSON is the same as on a terminal.
func TestPlainWithoutTerminal(t *testing.T) {
	t.Parallel()
	g := openGolden(t)
	ctx := context.Background()
	by := admin.Actor{Name: "golden", Role: admin.Administer, Speak: []string{"**"}}
	r, err := g.admin.Ask(ctx, by, admin.Send{To: "weather", Skill: "forecast", JSON: []byte(`{"city":"Bern"}`)})
	if err != nil {
		t.Fatal(err)
	}
	output := func(s screen, args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		a := &app{in: strings.NewReader(""), out: &out, errs: &errs, now: func() time.Time { return goldenNow },
			screen: s}
		if code := g.run(args...)(a); code != exitOK {
			t.Fatalf("exit code %d: %s", code, &errs)
		}
		return out.String()
	}
	if screenOf(io.Discard, os.Getenv) != (screen{}) {
		t.Error("what is no file is a terminal")
	}
	plainly := output(screen{}, "conversation", "show", r.Conversation.String())
	for _, want := range []string{r.ID.String(), "2026-11-19 13:00:00.000Z", "operator → weather"} {
		if !strings.Contains(plainly, want) {
			t.Errorf("no %q in\n%s", want, plainly)
		}
	}
	if strings.Contains(plainly, "\x1b") || strings.Contains(plainly, " ago") {
		t.Errorf("not plain:\n%s", plainly)
	}
	small := screen{width: 40, colour: true}
	if a, b := output(screen{}, "agents", "--json"), output(small, "agents", "--json"); a != b {
		t.Errorf("JSON differs:\n%s\n%s", a, b)
	}
	if s := output(screen{}, "agents", "--color", "always"); !strings.Contains(s, "\x1b[") {
		t.Errorf("--color always: %q", s)
	}
	if s := output(small, "agents", "--color", "never"); strings.Contains(s, "\x1b") {
		t.Errorf("--color never: %q", s)
	}
}
