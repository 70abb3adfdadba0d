package flows

import (
	"context"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/browser"
	"github.com/parley-hub/parley/samvad"
)

// harbour is an agent of SAMVAD that does not know the hub's key yet.
type harbour struct {
	id     *samvad.Identity
	url    string
	trusts atomic.Pointer[samvad.Server] // of the key that it trusts
}

// harbour opens the agent at an address of its own. It takes its own key for the hub's.
func (c *console) harbour() *harbour {
	c.t.Helper()
	id, err := samvad.NewIdentity("agent://harbour.example", "key-current")
	if err != nil {
		c.t.Fatal(err)
	}
	h := &harbour{id: id}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.trusts.Load().ServeHTTP(w, r)
	}))
	c.t.Cleanup(s.Close)
	h.url = s.URL
	h.trust(c, id.Public())
	return h
}

// trust has the agent take what a key signs as the hub's.
func (h *harbour) trust(c *console, public []byte) {
	c.t.Helper()
	key, err := samvad.ParseKey(base64.StdEncoding.EncodeToString(public))
	if err != nil {
		c.t.Fatal(err)
	}
	info, err := c.API.Info(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	key.KID = info.SAMVAD.KeyID
	card := (&samvad.Card{ID: h.id.ID(), Name: "Harbour", Version: "1.0.0", Description: "Knows the ships.", URL: h.url,
		PublicKeys: []samvad.CardKey{samvad.CardKeyOf(h.id, true)},
		Skills: []samvad.Skill{{ID: "ships", Name: "Ships", Description: "Lists the ships.",
			InputSchema: []byte(`{"type":"object"}`), OutputSchema: []byte(`{"type":"object"}`),
			Modes: []samvad.Mode{samvad.ModeSync}, Trust: samvad.TrustPublic}}}).Complete()
	h.trusts.Store(&samvad.Server{Verifier: &samvad.Verifier{Keys: samvad.StaticKeys{info.SAMVAD.Identity: {key}}},
		Agent: &samvad.Agent{Card: card, Identity: h.id, Handler: func(context.Context, *samvad.Request) (
			samvad.Response, error) {
			return samvad.Response{Result: []byte(`{"ships":["Gull"]}`)}, nil
		}}})
}

// step waits until a step of the checklist is in a state.
func (v *tab) step(name, state string) {
	v.t.Helper()
	v.do(browser.Has(`#stepper [data-step="` + name + `"][data-state="` + state + `"]`))
}

// TestFlow09Connect: an agent of SAMVAD is connected by the form. It trusts a wrong key for the hub: the fifth step
// says so, with the line that mends it. When it trusts the right one and has called and answered, all seven steps have
// turned, on the page that was open all the time.
func TestFlow09Connect(t *testing.T) {
	c := begin(t)
	h := c.harbour()
	v := c.entered(browser.Look{}, admin.Administer)
	v.to("/console/agents/connect")
	v.do(browser.ClickTo(`#add nav a[href$="protocol=a2a"]`, "/console/agents/connect?protocol=a2a"),
		browser.Has(`#add input[name="a2a"]`),
		browser.ClickTo(`#add nav a[href$="protocol=samvad"]`, "/console/agents/connect?protocol=samvad"))
	v.do(browser.Type(`#add input[name="name"]`, "harbour"), browser.Type(`#add input[name="samvad"]`, h.url),
		browser.Type(`#add input[name="expose"]`, "all"), browser.Click("#add button.go"), browser.Has("[data-read]"))
	v.says("#add", "Is this the agent?", "was taken from its card", "ships", "agents add harbour --samvad "+h.url)
	v.is(`document.querySelector('#add input[name="id"]').value === "agent://harbour.example"`, "the card's identity")
	v.shot("connect-card")
	v.do(browser.ClickTo("#add button.go", "/console/agents/connect/harbour"))
	for _, done := range []string{"protocol", "address", "reached", "card"} {
		v.step(done, "done")
	}
	v.step("hub key", "failed")
	v.says(`[data-step="hub key"]`, "does not accept this key", "agent.trust_peer(")
	v.says("aside", "agent.trust_peer(", "agent.trustPeer(", "samvad.Client")
	v.shot("connect-wrong-key")

	info, err := c.API.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	key, err := base64.StdEncoding.DecodeString(info.SAMVAD.Key)
	if err != nil {
		t.Fatal(err)
	}
	h.trust(c, key)
	me := &samvad.Client{Identity: h.id, HTTP: &http.Client{}}
	if _, err := me.Ask(t.Context(), samvad.Call{URL: info.SAMVAD.Base + "/agents/museum", Skill: "talk",
		Payload: []byte(`{"text":"say hello"}`)}); err != nil {
		t.Fatal(err)
	}
	v.step("first message", "done")
	v.step("hub key", "done")
	if _, err := c.API.Send(t.Context(), admin.Send{To: "harbour", Skill: "ships", JSON: []byte(`{}`),
		Timeout: "20s"}); err != nil {
		t.Fatal(err)
	}
	v.do(browser.Has(`#stepper[data-checklist="done"]`))
	v.is(`document.querySelectorAll('#stepper [data-state="done"]').length === 7`, "all seven steps turned")
	v.shot("connect-done")
}
