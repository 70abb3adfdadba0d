package connect

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/netguard"
)

// reader reads as a hub does that may call these addresses.
func reader(t *testing.T, allow ...string) *Reader {
	t.Helper()
	list, err := netguard.ParseAllow(allow)
	if err != nil {
		t.Fatal(err)
	}
	g := &netguard.Guard{Allow: list, Advice: netguard.HubAdvice}
	c := g.Client(netguard.Options{})
	t.Cleanup(c.CloseIdleConnections)
	return &Reader{Guard: g, Client: c}
}

// TestReadAsksTheGuard: the hub reads nothing at an address that it may not call, and says which setting allows it.
func TestReadAsksTheGuard(t *testing.T) {
	asked := make(chan string, 8)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked <- r.URL.Path }))
	t.Cleanup(s.Close)
	for _, way := range []struct{ protocol, flag string }{{"samvad", "samvad"}, {"a2a", "a2a"}, {"mcp", "mcp"}} {
		id, err := WayTo(way.protocol, "").Identity("x", Values{way.flag: s.URL})
		if err != nil {
			t.Fatal(err)
		}
		v, err := reader(t).Read(t.Context(), admin.NewAgent{Name: "x", Identities: []admin.NewIdentity{id}})
		if notes := strings.Join(v.Notes, "\n"); err != nil || !strings.Contains(notes, "network") ||
			!strings.Contains(notes, "127.0.0.0/8") {
			t.Errorf("%s: %v %s", way.protocol, err, notes)
		}
	}
	if len(asked) > 0 {
		t.Errorf("asked for %s", <-asked)
	}
}

// TestGuardedCard: a card that wants credentials is no reason to refuse an agent for which there are some. They come
// back to nobody.
func TestGuardedCard(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("the hub shows credentials")
		}
		w.WriteHeader(http.StatusUnauthorized)
	}))
	t.Cleanup(s.Close)
	id, err := WayTo("a2a", "").Identity("x", Values{"a2a": s.URL + "/guarded"})
	if err != nil {
		t.Fatal(err)
	}
	r := reader(t, "loopback")
	n := admin.NewAgent{Name: "x", Identities: []admin.NewIdentity{id}}
	if _, err := r.Read(t.Context(), n); parley.CodeOf(err) != parley.Unsupported ||
		!strings.Contains(parley.AsError(err).Text, "wants credentials") {
		t.Errorf("without credentials: %v", err)
	}
	if n.Identities[0].Credentials, err = Secrets("a2a", Values{"a2a-token": "secret"}); err != nil {
		t.Fatal(err)
	}
	v, err := r.Read(t.Context(), n)
	if err != nil || !strings.Contains(strings.Join(v.Notes, "\n"), "wants credentials too") {
		t.Errorf("%+v, %v", v.Notes, err)
	}
	if v.Agent.Identities[0].Credentials != nil || n.Identities[0].Credentials == nil {
		t.Error("the credentials came back, or went from the caller's agent")
	}
}

// TestWays: each way makes an identity of its example or refuses what is none, and its flags are explained.
func TestWays(t *testing.T) {
	for _, p := range Protocols {
		for _, w := range p.Ways {
			v := Values{"token-id": "sha-256:0"}
			for _, f := range w.Fields {
				if v[f.Flag] = f.Example; f.Text == "" || Help(f.Flag) == "" {
					t.Errorf("%s: no help for %s", p.Name, f.Flag)
				}
			}
			id, err := w.Identity("crew/scout", v)
			switch refused := p.Name == "uagents" || p.Name == "asp" || v["key"] != ""; {
			case refused: // of whose keys there is no example
			case err != nil || id.Protocol != p.Name || id.ID == "" && !w.Reads:
				t.Errorf("%s %q: %+v, %v", p.Name, w.Name, id, err)
			}
			if len(w.Fields) > 0 && !(p.Name == "samvad" && w.Name == "calls") {
				if _, err := w.Identity("x", Values{w.Fields[0].Flag: ":"}); parley.CodeOf(err) != parley.Malformed {
					t.Errorf("%s %q takes a colon: %v", p.Name, w.Name, err)
				}
			}
		}
	}
}

// TestPasteAGH: a peer whose user the configuration has needs no further user.
func TestPasteAGH(t *testing.T) {
	h := &Hub{Info: admin.Info{PublicURL: "https://hub.example"}, AGH: AGH{Listen: ":4222"}}
	id := admin.Identity{Protocol: "agh", ID: "ws_alpha/patch-worker.s1"}
	all := func() (s string) {
		for _, p := range h.Paste("patcher", []admin.Identity{id, {Protocol: "agh", ID: "x/y", StandIn: true}}) {
			s += p.Line + "\n"
		}
		return s
	}
	if s := all(); !strings.Contains(s, `[agh.users."patcher"]`) || !strings.Contains(s, "nats://hub.example:4222") {
		t.Error(s)
	}
	h.AGH.Listen = ""
	if s := all(); !strings.Contains(s, `agh = ":4222"`) {
		t.Errorf("a hub without a listener: %s", s)
	}
	h.AGH.Users = []AGHUser{{Name: "crew", Peers: []string{"patch-*"}, Workspaces: []string{"ws_alpha"}}}
	if s := all(); strings.Contains(s, "agh.users") || strings.Contains(s, "x/y") {
		t.Error(s)
	}
}
