package a2a

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/jwks"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/policy"
)

// cardHub is a hub with the agent crew/weather, which is exposed in A2A.
type cardHub struct {
	*Binding
	dir  *directory.Directory
	keys *keyring.Ring
	now  time.Time
}

// cardCallers knows callers by two schemes.
type cardCallers []bridge.CallerScheme

func (c cardCallers) Schemes() []bridge.CallerScheme { return c }
func (cardCallers) Identify(context.Context, string, http.Header, *tls.ConnectionState, string) (bridge.Caller, error) {
	return bridge.Caller{}, errors.New("not asked")
}

func newCardHub(t *testing.T, change func(*Config)) *cardHub {
	t.Helper()
	h := &cardHub{now: time.Unix(1767225600, 0).UTC()}
	now := func() time.Time { return h.now }
	j, err := journal.Open(t.Context(), journal.Config{Store: testjournal.Memory(t), Now: now})
	if err != nil {
		t.Fatal(err)
	}
	if h.keys, err = keyring.Open(keyring.Options{Now: now}); err != nil {
		t.Fatal(err)
	}
	if h.dir, err = directory.Open(t.Context(), directory.Options{Now: now}); err != nil {
		t.Fatal(err)
	}
	p, err := policy.New(policy.Config{Hub: "hub", Now: now,
		Allow: []policy.Rule{{From: "crew/**", To: []string{"**"}}, {From: "other", To: []string{"crew/weather.today"}}}})
	if err != nil {
		t.Fatal(err)
	}
	hb, err := hub.New(hub.Config{ID: "hub", Secret: make([]byte, 32), Journal: j, Directory: h.dir, Policy: p, Now: now,
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Hub: hb, Keys: h.keys, Journal: j, PublicURL: "https://hub.example/parley", Now: now,
		Callers: cardCallers{{Name: "parley", Bearer: true}, {Name: "corp", OpenID: "https://login.example/.well-known/x"},
			{Name: "certificate", MTLS: true}},
		Allow: func() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} }}
	if change != nil {
		change(&c)
	}
	if h.Binding, err = New(c); err != nil {
		t.Fatal(err)
	}
	h.put(t, weather())
	t.Cleanup(func() {
		if h.cards.trust.http != nil {
			h.cards.trust.http.CloseIdleConnections()
		}
		for _, err := range []error{h.Close(), hb.Close(context.Background()), h.keys.Close(), j.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
		h.dir.Close()
	})
	return h
}

func (h *cardHub) put(t *testing.T, a parley.Agent) {
	t.Helper()
	if _, err := h.dir.Put(t.Context(), a, directory.FromOperator); err != nil {
		t.Fatal(err)
	}
}

func weather() parley.Agent {
	return parley.Agent{Name: "crew/weather", Title: "Wetter <Süd>", Description: "Says the weather.",
		Exposed: []string{"a2a"}, Skills: []parley.SkillSpec{
			{ID: "today", Description: "today's weather", Input: json.RawMessage(
				`{"type":"object","required":["place"],"properties":` +
					`{"place":{"type":"string","default":""},"days":{"minimum":0}}}`),
				Output: json.RawMessage(`{"type":"object","required":[],"additionalProperties":{}}`)},
			{ID: "say", Input: json.RawMessage(`{"type":"string"}`)},
			{ID: "any", Name: "Anything"},
			{ID: "inner", Access: parley.Authenticated, Input: json.RawMessage(`{"type":"object"}`)},
		}}
}

// get serves the card of an agent.
func (h *cardHub) get(agent string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, Base+agent+CardPath, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.serveCard(w, r, agent)
	return w
}

// hubKeys gives the keys that the hub publishes.
func (h *cardHub) hubKeys(t *testing.T) jwks.Set {
	t.Helper()
	w := httptest.NewRecorder()
	h.serveKeys(w, httptest.NewRequest(http.MethodGet, JWKSPath, nil))
	set, err := jwks.Parse(w.Body.Bytes())
	if err != nil || w.Header().Get("Access-Control-Allow-Origin") != "*" {
		t.Fatalf("%v: %s", err, w.Body)
	}
	return set
}

// A2A-005, A2A-006, A2A-007: both forms are what the SDK's parsers read, with public URLs. No
// extension is required, so no client lacks one (A2A-101).
func TestCardForms(t *testing.T) {
	h := newCardHub(t, func(c *Config) { c.GRPC = "grpc.hub.example:443" })
	pure, hybrid := h.get("crew/weather", "A2A-Version", "1.0"), h.get("crew/weather")
	var card protocol.AgentCard
	if err := jsonx.DecodeKnown(pure.Body.Bytes(), new(map[string]any)); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(pure.Body.Bytes(), &card); err != nil {
		t.Fatal(err)
	}
	if card.Name != "Wetter <Süd>" || card.Version != "1" || len(card.Skills) != 3 {
		t.Errorf("card: %+v", card)
	}
	const at = "https://hub.example/parley/a2a/crew/weather"
	var ways []string
	for _, i := range card.SupportedInterfaces {
		ways = append(ways, fmt.Sprint(i.ProtocolBinding, " ", i.ProtocolVersion, " ", i.URL, " ", i.Tenant))
	}
	want := []string{"JSONRPC 1.0 " + at + " ", "HTTP+JSON 1.0 " + at + " ", "JSONRPC 0.3 " + at + " ",
		"GRPC 1.0 grpc.hub.example:443 crew/weather"}
	if !slices.Equal(ways, want) {
		t.Errorf("interfaces: %q", ways)
	}
	if c := card.Capabilities; !c.Streaming || !c.PushNotifications || !c.ExtendedAgentCard || len(c.Extensions) != 1 ||
		c.Extensions[0].URI != ExtensionURI || c.Extensions[0].Required {
		t.Errorf("capabilities: %+v", c)
	}
	schemas, _ := card.Capabilities.Extensions[0].Params["skills"].(map[string]any)
	if len(schemas) != 2 || schemas["today"] == nil || schemas["inner"] != nil {
		t.Errorf("schemas: %v", schemas)
	}
	modes := map[string][2]string{}
	for _, s := range card.Skills {
		modes[s.ID] = [2]string{strings.Join(s.InputModes, " "), strings.Join(s.OutputModes, " ")}
		if s.Name == "" || s.Description == "" || len(s.Tags) == 0 {
			t.Errorf("skill %+v has an empty required member", s)
		}
	}
	const both, only = "text/plain application/json", "application/json"
	for id, want := range map[string][2]string{"today": {both, only}, "say": {both, both}, "any": {both, both}} {
		if modes[id] != want {
			t.Errorf("skill %s: modes %q", id, modes[id])
		}
	}
	if len(card.SecuritySchemes) != 3 || len(card.SecurityRequirements) != 3 {
		t.Errorf("security: %v %v", card.SecuritySchemes, card.SecurityRequirements)
	}

	for name, body := range map[string][]byte{"pure": pure.Body.Bytes(), "hybrid": hybrid.Body.Bytes()} {
		parsed, err := a2av0.NewAgentCardParser()(body)
		if err != nil || len(parsed.SecuritySchemes) != 3 || len(parsed.SupportedInterfaces) != 4 {
			t.Errorf("%s, by the SDK's parser: %v, %+v", name, err, parsed)
		}
	}
	old := map[string]any{}
	if err := json.Unmarshal(hybrid.Body.Bytes(), &old); err != nil || old["url"] != at ||
		old["protocolVersion"] != "0.3" ||
		old["preferredTransport"] != "JSONRPC" || old["supportsAuthenticatedExtendedCard"] != true || old["security"] == nil {
		t.Errorf("hybrid: %v %s", err, hybrid.Body)
	}
	if bytes.Contains(pure.Body.Bytes(), []byte("preferredTransport")) {
		t.Errorf("pure: %s", pure.Body)
	}
	for _, form := range []CardForm{Pure, Hybrid} {
		h.c.CardForm = form
		for _, version := range []string{"", "1.0"} {
			if got := bytes.Contains(h.get("crew/weather", "A2A-Version", version).Body.Bytes(),
				[]byte("preferredTransport")); got != (form == Hybrid) {
				t.Errorf("card form %q, version %q: hybrid is %v", form, version, got)
			}
		}
	}
}

// A card never has empty required members, whatever the agent lacks.
func TestCardOfABareAgent(t *testing.T) {
	h := newCardHub(t, func(c *Config) { c.Callers = nil })
	h.put(t, parley.Agent{Name: "bare", Exposed: parley.Everywhere})
	h.put(t, parley.Agent{Name: "shy", Exposed: parley.Everywhere,
		Skills: []parley.SkillSpec{{ID: "x", Access: parley.TrustedPeers}}})
	for agent, skill := range map[string]string{"bare": "message", "shy": "extended-card"} {
		var c protocol.AgentCard
		if err := json.Unmarshal(h.get(agent, "A2A-Version", "1.0").Body.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		if c.Name != agent || c.Description != agent || len(c.Skills) != 1 || c.Skills[0].ID != skill ||
			c.Capabilities.ExtendedAgentCard || c.SecuritySchemes != nil || c.SecurityRequirements != nil {
			t.Errorf("card: %+v", c)
		}
	}
}

// An agent that is open to guests has schemes and no requirement; one that is not exposed
// has no card.
func TestCardFollowsSettings(t *testing.T) {
	h := newCardHub(t, nil)
	before := h.get("crew/weather")
	h.SetAgent("crew/weather", AgentSettings{Guests: true})
	after := h.get("crew/weather")
	if strings.Contains(after.Body.String(), "securityRequirements") ||
		!strings.Contains(after.Body.String(), `"parley"`) ||
		before.Header().Get("ETag") == after.Header().Get("ETag") {
		t.Errorf("open to guests: %s", after.Body)
	}
	a := weather()
	a.Description = "other"
	h.put(t, a)
	if !strings.Contains(h.get("crew/weather").Body.String(), `"other"`) {
		t.Error("the card is old after a change of the directory")
	}
	a.Exposed = []string{"samvad"}
	h.put(t, a)
	for _, name := range []string{"crew/weather", "nobody"} {
		if w := h.get(name); w.Code != http.StatusNotFound {
			t.Errorf("%s: %d", name, w.Code)
		}
	}
}

// A2A-004, and hole 10: caching, HEAD, origins.
func TestCardHTTP(t *testing.T) {
	h := newCardHub(t, nil)
	w := h.get("crew/weather", "Origin", "https://evil.example")
	tag := w.Header().Get("ETag")
	for name, want := range map[string]string{"Vary": "A2A-Version", "Cache-Control": "public, max-age=300",
		"Access-Control-Allow-Origin": "*", "Access-Control-Allow-Credentials": "", "Content-Type": "application/json"} {
		if got := w.Header().Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if again := h.get("crew/weather"); again.Header().Get("ETag") != tag || tag == "" {
		t.Errorf("the tag changes: %s", tag)
	}
	for given, code := range map[string]int{tag: 304, "W/" + tag: 304, `"x", ` + tag: 304, "*": 304, `"x"`: 200} {
		w := h.get("crew/weather", "If-None-Match", given)
		if w.Code != code || (w.Body.Len() == 0) != (code == 304) || w.Header().Get("ETag") != tag {
			t.Errorf("If-None-Match %s: %d with %d bytes", given, w.Code, w.Body.Len())
		}
	}
	if other := h.get("crew/weather", "If-None-Match", tag, "A2A-Version", "1.0"); other.Code != 200 {
		t.Errorf("the tag of the other form: %d", other.Code)
	}
	for method, code := range map[string]int{"HEAD": 200, "OPTIONS": 204, "POST": 405, "DELETE": 405} {
		w := httptest.NewRecorder()
		h.serveCard(w, httptest.NewRequest(method, Base+"crew/weather"+CardPath, nil), "crew/weather")
		if w.Code != code || method != "POST" && method != "DELETE" && w.Body.Len() > 0 {
			t.Errorf("%s: %d %q", method, w.Code, w.Body)
		}
	}
	for version, pure := range map[string]bool{"1.0": true, "1.0.7": true, "0.3": false, "9.9": false, "": false} {
		r := httptest.NewRequest(http.MethodGet, "/?A2A-Version="+version, nil)
		if h.wantsPure(r) != pure {
			t.Errorf("query %q: pure is %v", version, !pure)
		}
	}
	r := httptest.NewRequest(http.MethodGet, "/?A2A-Version=1.0", nil)
	r.Header.Set("A2A-Version", "0.3")
	if h.wantsPure(r) {
		t.Error("the query wins over the header")
	}
}

// A2A-100: the extended card shows what policy lets the caller use.
func TestExtendedCard(t *testing.T) {
	h := newCardHub(t, nil)
	ask := func(c bridge.Caller) (*protocol.AgentCard, error) {
		ctx := withCall(t.Context(), &call{agent: "crew/weather", caller: c})
		return service{h.Binding}.GetExtendedAgentCard(ctx, nil)
	}
	for name, want := range map[string]string{"crew/bob": "today say any inner", "other": "today",
		"third": "extended-card"} {
		c, err := ask(bridge.Caller{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, s := range c.Skills {
			ids = append(ids, s.ID)
		}
		if got := strings.Join(ids, " "); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
		raw, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if v, err := VerifyCard(raw, byKid(h.hubKeys(t))); err != nil || !v.Valid() {
			t.Errorf("signature: %v", err)
		}
	}
	if _, err := ask(bridge.Caller{Name: "guest/a2a/x", Guest: true}); parley.AsError(err).Code != parley.Unauthenticated {
		t.Errorf("a guest: %v", err)
	}
	h.c.Callers = nil
	if _, err := ask(bridge.Caller{Name: "crew/bob"}); !errors.Is(err, protocol.ErrUnsupportedOperation) {
		t.Errorf("not declared: %v", err)
	}
}

// The memory for cards is bounded; all are served.
func TestCardsInMemory(t *testing.T) {
	h := newCardHub(t, nil)
	e, _ := h.dir.Agent("crew/weather")
	for i := range maxMadeCards + 10 {
		one := *e
		one.Name = "a" + strings.Repeat("b", i%100) + string(rune('a'+i/100))
		if _, err := h.publicCard(&one); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(h.cards.made); n > maxMadeCards || n < 1000 {
		t.Errorf("%d cards", n)
	}
}
