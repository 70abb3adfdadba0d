package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
	"github.com/parley-hub/parley/uagents"
)

func (a *app) demoCommand() *cobra.Command {
	var once bool
	var listen string
	c := &cobra.Command{
		Use:   "demo",
		Short: "Watch signed messages being verified, recorded, delivered and answered",
		Long: `Start a hub on the embedded engine and six small agents, each of which speaks one
protocol only, over sockets of their own; let them talk with Go handlers in the
hub's process, plan a trip together, and be asked by an MCP client; show each step as it happens, with the
protocol it came by, how sure its sender is and where it went; then keep serving
until interrupted. Nothing outside a temporary directory (or --data) is touched.`,
		Example: `  parley demo
  parley demo --once     # exit 0 when everything was verified and answered, else 1
  parley demo --once --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.demo(cmd.Context(), once, listen)
		},
	}
	c.Flags().BoolVar(&once, "once", false, "end after the conversation; the exit code says whether all went well")
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "address for the protocols over HTTP")
	return c
}

// demo is the state of the conversation.
type demo struct {
	a    *app
	node *node.Node
	http *http.Client
	mu   sync.Mutex
	step int
	bad  int

	// The agents for the trip, once their scenes have made them.
	guide  *uagents.Client
	baker  *asp.Client
	mason  *agh.Client
	robot  *a2e.Client
	inn    bool     // the A2A agent is there
	leaves []func() // end them; called from the last to the first
}

// stepReport is one line of the demo.
type stepReport struct {
	Step     int      `json:"step"`
	What     string   `json:"what"`
	OK       bool     `json:"ok"`
	Detail   []string `json:"detail,omitempty"`
	Duration float64  `json:"milliseconds"`
}

func (a *app) demo(ctx context.Context, once bool, listen string) error {
	data := a.data
	if data == "" {
		dir, err := os.MkdirTemp("", "parley-demo-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		data = dir
	}
	logger, err := a.logger("error", new(slog.LevelVar))
	if err != nil {
		return err
	}
	c := node.Config{
		Data: data, Durability: "disk", Log: logger,
		Listen:  node.Listen{HTTP: listen, Admin: "127.0.0.1:0"},
		Policy:  node.Policy{Assurance: "session"},         // AGH peers prove only their connection
		Network: node.Network{Allow: []string{"loopback"}}, // the demo's agents are on this machine
	}
	for _, p := range protocols {
		if p.demoConfig != nil {
			p.demoConfig(&c)
		}
	}
	n, err := node.Open(ctx, c)
	if err != nil {
		return openError(err)
	}
	d := &demo{a: a, node: n, http: &http.Client{Timeout: 20 * time.Second}}
	defer n.Close(context.WithoutCancel(ctx)) // a second Close has no effect
	museum, err := startMuseum(n)
	if err != nil {
		return err
	}
	defer museum.stop()
	traveller, err := samvad.NewIdentity("agent://traveller.example", "key-current")
	if err != nil {
		return err
	}
	if err := d.introduce(ctx, traveller, museum); err != nil {
		return err
	}
	if err := n.Start(ctx); err != nil {
		return err
	}
	stop := n.Hub().Journal().Watch(d.recorded)
	defer stop()
	if !a.json {
		at := n.Addresses()
		link, err := n.ConsoleLink()
		if err != nil {
			return err
		}
		a.tell("Parley %s: hub %s\n  protocols  %s\n  admin      %s\n  data       %s\n  promise    %s\n  console    %s\n\n",
			version, at.Hub, at.HTTP, at.Admin, data, n.Hub().Journal().Promise(), link)
	}
	d.conversation(ctx, traveller)
	if d.bad > 0 {
		if a.json {
			return &exitError{exitFailed, nil}
		}
		return fmt.Errorf("%d of %d steps did not go as they should", d.bad, d.step)
	}
	if !a.json {
		a.tell("All %d steps verified.\n", d.step)
	}
	if once {
		return n.Close(context.WithoutCancel(ctx))
	}
	if !a.json {
		fmt.Fprintf(a.out, `
The hub keeps serving. In another terminal:

  go run ./cmd/parley send --data %[1]s --to weather '{"city":"Bern"}'
  go run ./cmd/parley refused --data %[1]s
  go run ./cmd/parley agents --data %[1]s

Ctrl-C ends it.
`, data)
	}
	return n.Wait(ctx)
}

// museum is a SAMVAD agent elsewhere: its own key, its own socket.
type museum struct {
	url, id string
	key     ed25519.PublicKey
	stop    func()
}

// startMuseum starts the museum, which trusts the hub's key as if an operator had
// enrolled it.
func startMuseum(n *node.Node) (*museum, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	base := "http://" + l.Addr().String()
	identity, err := samvad.NewIdentity("agent://museum.example", "key-current")
	if err != nil {
		return nil, err
	}
	host := n.SAMVAD().Hosting()
	key, err := samvad.ParseKey(host.Key)
	if err != nil {
		return nil, err
	}
	card := &samvad.Card{
		ID: identity.ID(), Name: "Museum", Version: "1.0.0", Description: "Knows what is on show.", URL: base,
		PublicKeys: []samvad.CardKey{samvad.CardKeyOf(identity, true)},
		Skills: []samvad.Skill{{ID: "exhibitions", Name: "Exhibitions", Description: "What is on show in a city.",
			InputSchema:  []byte(`{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}`),
			OutputSchema: []byte(`{"type":"object"}`), Modes: []samvad.Mode{samvad.ModeSync},
			Trust: samvad.TrustPublic}},
	}
	server := &samvad.Server{
		Verifier: &samvad.Verifier{Keys: samvad.StaticKeys{host.Identity: {key}}},
		Agent: &samvad.Agent{Card: card.Complete(), Identity: identity,
			Handler: func(_ context.Context, r *samvad.Request) (samvad.Response, error) {
				var q struct{ City string }
				if err := json.Unmarshal(r.Payload, &q); err != nil {
					return samvad.Response{}, samvad.ErrPayload
				}
				b, err := json.Marshal(map[string]string{"city": q.City, "show": "Paul Klee, angels"})
				return samvad.Response{Result: b}, err
			}},
	}
	s := &http.Server{Handler: server, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = s.Serve(l) }() // ends with Close
	return &museum{url: base, id: identity.ID(), key: identity.Public(), stop: func() { _ = s.Close() }}, nil
}

type weatherQuery struct {
	City string `json:"city" doc:"where"`
}

type weatherAnswer struct {
	City    string  `json:"city"`
	Celsius float64 `json:"celsius"`
}

// introduce puts the three agents into the directory, as an operator and a program would.
func (d *demo) introduce(ctx context.Context, traveller *samvad.Identity, m *museum) error {
	n := d.node
	err := n.Handle(parley.Agent{Name: "weather", Title: "Weather", Description: "Tells the weather.",
		Exposed: parley.Everywhere},
		parley.Skill("forecast", func(_ context.Context, m *parley.Message, q weatherQuery) (weatherAnswer, error) {
			if m.Origin.Verdict.Assurance < parley.Session {
				return weatherAnswer{}, parley.Refuse(parley.Unauthenticated, "who are you?")
			}
			return weatherAnswer{q.City, 21}, nil
		}, parley.Describe("Forecast", "The temperature in a city, in degrees Celsius.")))
	if err != nil {
		return err
	}
	err = n.Handle(parley.Agent{Name: "planner", Title: "Planner", Exposed: parley.Everywhere},
		parley.Skill("plan", func(ctx context.Context, m *parley.Message, q weatherQuery) (map[string]any, error) {
			part, err := parley.JSON(q)
			if err != nil {
				return nil, err
			}
			// The planner asks two colleagues: one in this process, one elsewhere.
			weather, err := d.plannerAsks(ctx, "weather", "forecast", part, m)
			if err != nil {
				return nil, err
			}
			show, err := d.plannerAsks(ctx, "museum", "exhibitions", part, m)
			if err != nil {
				return nil, err
			}
			return map[string]any{"weather": json.RawMessage(weather.Parts[0].Data),
				"museum": json.RawMessage(show.Parts[0].Data)}, nil
		}, parley.Describe("Plan", "A day in a city.")))
	if err != nil {
		return err
	}
	for _, e := range []struct {
		name, id, url string
		key           ed25519.PublicKey
	}{{"traveller", traveller.ID(), "", traveller.Public()}, {"museum", m.id, m.url, m.key}} {
		id, err := n.SAMVAD().Identity(e.id, e.url)
		if err != nil {
			return err
		}
		if _, err := n.Hub().Directory().Put(ctx, parley.Agent{Name: e.name, Identities: []parley.Identity{id}},
			directory.FromOperator); err != nil {
			return err
		}
		if err := n.SAMVAD().Enroll(e.name, e.id, "", e.key, "demo"); err != nil {
			return err
		}
	}
	return nil
}

// plannerAsks lets the planner ask another agent through the hub; about is the message
// that causes it, or nil. The answer is no failure and has a part.
func (d *demo) plannerAsks(ctx context.Context, to, skill string, p parley.Part, about *parley.Message) (
	*parley.Message, error) {
	m := &parley.Message{Kind: parley.Request, From: "planner", To: to, Skill: skill, Parts: []parley.Part{p},
		Origin: parley.Origin{Protocol: "go", Peer: "planner", Verdict: parley.Verdict{Assurance: parley.Session}}}
	if about != nil {
		m.Deadline, m.Trace = about.Deadline, about.Trace
	}
	reply, err := d.node.Hub().Ask(ctx, hub.Submission{Scope: "go planner", Message: m})
	switch {
	case err != nil:
		return nil, err
	case reply.Kind == parley.Failure:
		return nil, reply.Error
	case len(reply.Parts) == 0:
		return nil, errors.New("the answer is empty")
	}
	return reply, nil
}

// plannerAsked shows an agent's answer to the planner, and checks that it is text.
func (d *demo) plannerAsked(ctx context.Context, to, skill, question, text string) ([]string, error) {
	reply, err := d.plannerAsks(ctx, to, skill, parley.Text(question), nil)
	if err != nil {
		return nil, err
	}
	return []string{reply.Kind.String() + "  " + reply.Text()},
		want(reply.Text() == text, "the answer is not the agent's")
}

// agent gives the directory's entry of the agent with an id in a protocol, or with a
// name if protocol is "".
func (d *demo) agent(protocol, id string) (e *directory.Entry, err error) {
	dir := d.node.Hub().Directory()
	e, ok := dir.Lookup(protocol, id)
	if protocol == "" {
		e, ok = dir.Agent(id)
	}
	if !ok {
		return nil, fmt.Errorf("%s is not in the directory", id)
	}
	return e, nil
}

// conversation plays the scenes: each protocol by itself, the trip, and an assistant.
func (d *demo) conversation(ctx context.Context, traveller *samvad.Identity) {
	defer func() {
		for _, leave := range slices.Backward(d.leaves) {
			leave()
		}
	}()
	base := d.node.Addresses().HTTP
	client := &samvad.Client{Identity: traveller, HTTP: d.http}
	weather := samvad.Call{URL: base + "/agents/weather", Skill: "forecast", Payload: []byte(`{"city":"Bern"}`)}

	var captured *http.Request
	var body []byte
	d.scene("traveller asks weather: SAMVAD over HTTP, signed → a Go handler", func() ([]string, error) {
		r, e, err := client.Request(ctx, weather, samvad.ModeSync)
		if err != nil {
			return nil, err
		}
		captured, body = r, e.Raw()
		status, answer, _, err := d.post(ctx, r, body)
		if err != nil {
			return nil, err
		}
		return []string{fmt.Sprintf("HTTP %d  %s", status, answer)},
			want(status == 200 && strings.Contains(answer, `"celsius":21`), "the answer is not the weather's")
	})
	d.scene("traveller asks planner, which asks weather (Go) and museum (SAMVAD elsewhere, called by the hub, signed)",
		func() ([]string, error) {
			r, err := client.Ask(ctx, samvad.Call{URL: base + "/agents/planner", Skill: "plan",
				Payload: []byte(`{"city":"Bern"}`)})
			if err != nil {
				return nil, err
			}
			return []string{string(r.Result)}, want(strings.Contains(string(r.Result), "Klee"),
				"the museum's answer is missing")
		})
	d.scene("traveller asks in mode stream", func() ([]string, error) {
		var lines []string
		done := false
		for e, err := range client.Stream(ctx, weather) {
			if err != nil {
				return lines, err
			}
			if e.Done {
				done = true
				lines = append(lines, "final  "+string(e.Result))
			} else {
				lines = append(lines, "chunk  "+string(e.Chunk))
			}
		}
		return lines, want(done, "the stream did not end")
	})
	d.scene("traveller leaves a task and fetches its result", func() ([]string, error) {
		id, err := client.Send(ctx, weather)
		if err != nil {
			return nil, err
		}
		client := &samvad.Client{Identity: traveller, HTTP: d.http, PollEvery: 20 * time.Millisecond}
		t, err := client.Wait(ctx, weather.URL, id)
		if err != nil {
			return nil, err
		}
		return []string{"task " + id[:8] + "…  " + string(t.Status) + "  " + string(t.Result)},
			want(t.Status == samvad.TaskDone, "the task is not done")
	})
	for _, p := range protocols {
		if p.demo != nil {
			p.demo(d, ctx)
		}
	}
	d.tripScenes(ctx, client)
	d.mcpScenes(ctx)
	d.scene("an attacker replays the first request: refused, and explained", func() ([]string, error) {
		if captured == nil {
			return nil, errors.New("there is nothing to replay")
		}
		return d.refusal(ctx, captured, body, 401, "REPLAY_DETECTED")
	})
	d.scene("an attacker forges a request in traveller's name: refused, and explained", func() ([]string, error) {
		forger, err := samvad.NewIdentity(traveller.ID(), "key-current")
		if err != nil {
			return nil, err
		}
		r, e, err := (&samvad.Client{Identity: forger, HTTP: d.http}).Request(ctx, weather, samvad.ModeSync)
		if err != nil {
			return nil, err
		}
		return d.refusal(ctx, r, e.Raw(), 401, "AUTH_FAILED")
	})
}

func want(ok bool, text string) error {
	if ok {
		return nil
	}
	return errors.New(text)
}

// refusal sends a request that must be refused, and looks up the refusal's reference.
func (d *demo) refusal(ctx context.Context, r *http.Request, body []byte, status int, code string) ([]string, error) {
	got, answer, ref, err := d.post(ctx, r, body)
	if err != nil {
		return nil, err
	}
	lines := []string{fmt.Sprintf("HTTP %d  %s", got, answer)}
	f, ok := d.node.Hub().Explain(ref)
	if ok {
		lines = append(lines, fmt.Sprintf("parley explain %s: step %q, %s", ref, f.Step, f.Cause))
	}
	return lines, want(got == status && strings.Contains(answer, code) && ok, "it was not refused as it should be")
}

// post sends a signed request's exact bytes.
func (d *demo) post(ctx context.Context, r *http.Request, body []byte) (status int, answer, ref string, err error) {
	r = r.Clone(ctx)
	r.Body = io.NopCloser(bytes.NewReader(body))
	resp, err := d.http.Do(r)
	if err != nil {
		return 0, "", "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return resp.StatusCode, strings.TrimSpace(string(b)), resp.Header.Get("Parley-Ref"), err
}

func (d *demo) scene(what string, f func() ([]string, error)) {
	d.mu.Lock()
	d.step++
	if !d.a.json {
		d.a.tell("%d. %s\n", d.step, what)
	}
	d.mu.Unlock()
	start := time.Now()
	lines, err := f()
	took := time.Since(start)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.bad++
		lines = append(lines, "FAILED: "+err.Error())
	}
	if d.a.json {
		_ = d.a.print(stepReport{d.step, what, err == nil, lines, float64(took.Microseconds()) / 1000}, "")
		return
	}
	for _, l := range lines {
		d.a.tell("   %s\n", l)
	}
	mark := "ok"
	if err != nil {
		mark = "FAILED"
	}
	d.a.tell("   %s, %.1f ms\n\n", mark, float64(took.Microseconds())/1000)
}

// recordedEvent is a part of a record in the form of --json.
type recordedEvent struct {
	Recorded  string               `json:"recorded"` // position in the journal
	Time      time.Time            `json:"time"`
	Kind      parley.Kind          `json:"kind,omitzero"`
	From      string               `json:"from,omitempty"`
	To        string               `json:"to"`
	In        string               `json:"in,omitempty"`  // protocol by which the message came
	Out       string               `json:"out,omitempty"` // protocol in which the message is delivered
	Assurance string               `json:"assurance,omitempty"`
	State     parley.DeliveryState `json:"state,omitzero"` // of a delivery
	Losses    []string             `json:"losses,omitempty"`
}

// recorded shows a record as soon as it is on disk.
func (d *demo) recorded(r *journal.Record) {
	var events []recordedEvent
	if m := r.Message; m != nil {
		events = append(events, recordedEvent{Recorded: r.Position.String(), Time: r.Time, Kind: m.Kind, From: m.From,
			To: m.To, In: m.Origin.Protocol, Out: d.spoken(m.To),
			Assurance: m.Origin.Verdict.Assurance.String()})
	}
	for _, s := range r.Steps {
		e := recordedEvent{Recorded: r.Position.String(), Time: r.Time, To: s.To, Out: d.spoken(s.To), State: s.State}
		for _, l := range s.Losses {
			e.Losses = append(e.Losses, l.String())
		}
		events = append(events, e)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range events {
		switch {
		case d.a.json:
			_ = d.a.print(e, "")
		case e.Kind != 0:
			d.a.tell("   %s  %-5s %-8s %s (%s, %s) → %s (%s)\n", e.Time.UTC().Format("15:04:05.000"),
				e.Recorded, e.Kind, e.From, e.In, e.Assurance, e.To, e.Out)
		default:
			d.a.tell("   %s  %-5s delivery to %s (%s): %s\n", e.Time.UTC().Format("15:04:05.000"),
				e.Recorded, e.To, e.Out, e.State)
			for _, l := range e.Losses {
				d.a.tell("                         lost: %s\n", l)
			}
		}
	}
}

// spoken is the protocol in which an agent gets its messages.
func (d *demo) spoken(name string) string {
	e, ok := d.node.Hub().Directory().Agent(name)
	if !ok {
		return "-"
	}
	if native := e.Native(); len(native) > 0 {
		return native[0]
	}
	return "go"
}
