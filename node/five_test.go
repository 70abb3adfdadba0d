package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/agh/aghnats"
	"github.com/parley-hub/parley/asp"
	a2ebridge "github.com/parley-hub/parley/bridge/a2e"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/samvad"
	"github.com/parley-hub/parley/uagents"
)

// five is a hub with a caller of each protocol on a socket of its own. Its agent "echo"
// is exposed everywhere.
type five struct {
	*Node
	t       *testing.T
	target  string // agent that the callers ask
	web     *http.Client
	samvad  *samvad.Client
	uagents *uagents.Client
	a2e     *a2e.Client
	agh     *agh.Client
	asp     *asp.Client
}

const fiveToken = "token-of-a2e-0123456789abcdef"

func fiveConfig() Config {
	return Config{Listen: Listen{HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0", AGH: "127.0.0.1:0"},
		Network: Network{Allow: []string{"loopback"}},
		Policy:  Policy{Assurance: "session"}, A2E: A2E{Listen: "127.0.0.1:0"}, ASP: ASP{Registration: "open"},
		AGH: AGH{Users: map[string]AGHUser{"alice": {Token: "ta", Peers: []string{"alice", "bob"},
			Workspaces: []string{"acme"}}},
			Workspaces: map[string]AGHWorkspace{"acme": {Channels: []string{"builders"}}}}}
}

func newFive(t *testing.T, c Config) *five {
	t.Helper()
	n := running(t, c)
	f := fiveAt(t, n, n.Addresses().Local, &a2e.Client{URL: n.Addresses().A2E, Token: fiveToken})
	f.agh = f.peer("alice", nil)
	return f
}

// fiveAt makes the callers of a hub at a URL, but for the one of AGH.
func fiveAt(t *testing.T, n *Node, base string, host *a2e.Client) *five {
	t.Helper()
	f := &five{Node: n, t: t, target: "echo", a2e: host,
		web: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	id, err := samvad.NewIdentity("agent://alice.test", "key-current")
	if err != nil {
		t.Fatal(err)
	}
	f.put("alice-samvad", parley.Identity{Protocol: "samvad", ID: id.ID()})
	if err := f.SAMVAD().Enroll("alice-samvad", id.ID(), "", id.Public(), "test"); err != nil {
		t.Fatal(err)
	}
	f.samvad = &samvad.Client{Identity: id, HTTP: f.web}
	u, err := uagents.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	f.put("alice-uagents", parley.Identity{Protocol: "uagents", ID: u.Address()})
	f.uagents = &uagents.Client{Identity: u, HTTP: f.web, Resolver: uagents.Almanac(base)}
	f.put("alice-a2e", parley.Identity{Protocol: "a2e", ID: a2ebridge.TokenID(fiveToken)})
	t.Cleanup(func() { f.a2e.Close() })
	a, err := asp.GenerateIdentity("agent://alice.example/test/alice", "org_alice")
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	f.asp = &asp.Client{Server: base, Identity: a, HTTP: &http.Client{Transport: tr}}
	card := a.Card()
	card.Name = a.ID()
	if err := f.asp.Register(t.Context(), card, nil); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *five) put(name string, id parley.Identity, more ...func(*parley.Agent)) {
	f.t.Helper()
	a := parley.Agent{Name: name, Identities: []parley.Identity{id}}
	for _, m := range more {
		m(&a)
	}
	if _, err := f.Hub().Directory().Put(f.t.Context(), a, directory.FromOperator); err != nil {
		f.t.Fatal(err)
	}
}

// peer joins AGH.
func (f *five) peer(id string, handle func(context.Context, *agh.Request)) *agh.Client {
	f.t.Helper()
	nc, err := nats.Connect(f.Addresses().AGH, nats.Token("ta"))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(nc.Close)
	if handle == nil {
		handle = func(context.Context, *agh.Request) {}
	}
	c := &agh.Client{Transport: &aghnats.Transport{Conn: nc}, WorkspaceID: "acme", Channel: "builders", PeerID: id,
		Handler: handle}
	ctx, stop := context.WithCancel(context.Background())
	f.t.Cleanup(stop)
	if err := c.Join(ctx); err != nil {
		f.t.Fatal(err)
	}
	f.until("the peer is known", func() bool {
		e, ok := f.Hub().Directory().Lookup("agh", "acme/"+id)
		return ok && !f.AGH().Holds(e, parley.Identity{Protocol: "agh", ID: "acme/" + id})
	})
	return c
}

func (f *five) until(what string, done func() bool) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			f.t.Fatal("timed out waiting until " + what)
		}
	}
}

func (f *five) at(agent, protocol string) string {
	f.t.Helper()
	a := f.AgentAddresses(agent)[protocol]
	if a == "" {
		f.t.Fatalf("%s has no address in %s", agent, protocol)
	}
	return a
}

// question is class Message(message: str), which most examples use.
type question struct {
	Message string `json:"message"`
}

func (question) ModelDoc() (string, string) { return "Message", "" }

// callBy has the caller of a protocol ask f.target. It gives "ok", or the refusal in the
// protocol's own terms.
func (f *five) callBy(ctx context.Context, protocol string) (string, error) {
	switch protocol {
	case "samvad":
		_, err := f.samvad.Ask(ctx, samvad.Call{URL: f.at(f.target, "samvad"), Skill: "say", Payload: []byte(`{"a":1}`)})
		var e *samvad.Error
		if errors.As(err, &e) {
			return fmt.Sprintf("HTTP %d %s %v", e.Status, e.Code, e.RetryAfter > 0), nil
		}
		return "ok", err
	case "uagents":
		r, err := f.uagents.Ask(ctx, f.at(f.target, "uagents"), uagents.ModelOf[question]().Message(question{"hello"}))
		if err != nil {
			var s *uagents.StatusError
			if errors.As(err, &s) {
				return fmt.Sprintf("HTTP %d", s.Status), nil
			}
			if text, said := strings.CutPrefix(err.Error(), "uagents: peer: "); said {
				return "ErrorMessage: " + text, nil
			}
			return "", err
		}
		if text, bad := r.IsError(); bad {
			return "ErrorMessage: " + text, nil
		}
		return "ok", nil
	case "a2e":
		_, err := f.a2e.CallTool(ctx, f.target+"__say", map[string]any{"a": 1}, nil)
		var e *a2e.Error
		if errors.As(err, &e) {
			return fmt.Sprint(e.Code, " ", e.Retryable), nil
		}
		return "ok", err
	case "agh":
		for _, err := range f.agh.Whois(ctx, f.target, "", false) {
			if err != nil {
				return "", err
			}
			break
		}
		end, err := f.agh.Ask(ctx, f.target, &agh.Say{Text: `{"a":1}`})
		if err != nil {
			return "", err
		}
		switch c := end.Envelope.Content().(type) {
		case *agh.Receipt:
			return fmt.Sprintf("receipt %s: %s", c.Status, c.Detail), nil
		case *agh.Trace:
			if c.State != agh.StateCompleted {
				return fmt.Sprintf("trace %s: %s", c.State, c.Message), nil
			}
		}
		return "ok", nil
	case "asp":
		var s *asp.Session
		var err error
		f.until("the agent has a stand-in", func() bool {
			s, err = f.asp.Open(ctx, asp.Invitation{To: []string{f.at(f.target, "asp")}, Purpose: "to test"})
			return !errors.Is(err, &asp.Error{Code: "agent_not_found"})
		})
		if err == nil {
			for m, merr := range s.Messages(ctx) {
				if err = merr; err != nil || m.State == asp.Introduced {
					break
				}
			}
		}
		var m *asp.Message
		if err == nil {
			m, err = s.Ask(ctx, asp.Question{QueryType: "say", Parameters: map[string]any{"a": 1}})
		}
		var e *asp.Error
		if errors.As(err, &e) {
			return fmt.Sprintf("HTTP %d %s", e.Status(), e.Code), nil
		}
		if err != nil {
			return "", err
		}
		var b struct {
			InformType, Code string
		}
		if err := json.Unmarshal(m.Body, &b); err != nil {
			return "", err
		}
		if m.Performative == asp.Reject {
			return "REJECT " + b.Code, nil
		}
		if b.InformType != "result" {
			return string(m.Body), nil
		}
		return "ok", nil
	}
	return "", fmt.Errorf("no protocol %q", protocol)
}

var fiveProtocols = []string{"samvad", "uagents", "a2e", "agh", "asp"}

// introduced waits until an ASP session can be used.
func introduced(ctx context.Context, t *testing.T, s *asp.Session) {
	t.Helper()
	for m, err := range s.Messages(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if m.State == asp.Introduced {
			return
		}
	}
}
