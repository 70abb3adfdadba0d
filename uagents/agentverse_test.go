package uagents

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley/internal/memhttp"
	"github.com/parley-hub/parley/internal/sleep"
)

const someProtocol = "proto:abababababababababababababababababababababababababababababababab"

func registration(t testing.TB, id *Identity, at time.Time, url string) []byte {
	t.Helper()
	a := NewRegistration(id, false, []Endpoint{{url, 1}}, []string{someProtocol})
	if err := a.Sign(id, at); err != nil {
		t.Fatal(err)
	}
	b, err := a.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func statusUpdate(t testing.TB, id *Identity, at time.Time, active bool) []byte {
	t.Helper()
	a := NewStatus(id, false, active)
	if err := a.Sign(id, at); err != nil {
		t.Fatal(err)
	}
	b, err := a.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// UAG-071: the forms of a boolean, as the reference coerces them.
func TestStatusForms(t *testing.T) {
	for text, want := range map[string]string{
		"true": "true", "false": "false", "1": "true", "0": "false", "1.0": "true", "0.0": "false",
		`"True"`: "true", `"yes"`: "true", `"OFF"`: "false", "2": "!", `"x"`: "!", "null": "!", "[]": "!",
	} {
		a, err := decodeAttestation([]byte(`{"agent_address":"x","is_active":`+text+`}`), true)
		got := "!"
		if err == nil {
			got = fmt.Sprint(*a.Active)
		}
		same(t, text, got, want)
	}
}

func TestAlmanac(t *testing.T) {
	me, you := seeded(t, "me"), seeded(t, "you")
	now := time.Unix(1_800_000_000, 0)
	var changes []Record
	clock := func() time.Time { return now }
	store := &MemoryAlmanac{Now: clock}
	s := &AlmanacServer{Store: store, Now: clock,
		Changed: func(_ context.Context, r Record) { changes = append(changes, r) }}
	post := func(path string, body []byte) int {
		t.Helper()
		rec := request(s, "POST", "/v1/almanac"+path, body, "Content-Type", "application/json")
		if rec.Code >= 400 {
			var e struct{ Detail string }
			if err := json.Unmarshal(rec.Body.Bytes(), &e); err != nil || e.Detail == "" {
				t.Errorf("%d without detail: %s", rec.Code, rec.Body)
			}
		}
		return rec.Code
	}
	get := func(id *Identity, query string) (int, map[string]any) {
		rec := request(s, "GET", "/v1/almanac/agents/"+id.Address()+query, nil)
		var v map[string]any
		_ = json.Unmarshal(rec.Body.Bytes(), &v)
		return rec.Code, v
	}
	endpoint := func() string {
		_, v := get(me, "")
		return v["endpoints"].([]any)[0].(map[string]any)["url"].(string)
	}
	want := func(t *testing.T, got, want int) {
		t.Helper()
		if got != want {
			t.Errorf("status %d, want %d", got, want)
		}
	}
	t.Run("UAG-070 record with expiry, unknown 404", func(t *testing.T) {
		code, _ := get(me, "")
		want(t, code, 404)
		want(t, post("/agents", registration(t, me, now, "http://one/submit")), 200)
		code, v := get(me, "?prefix=agent")
		want(t, code, 200)
		if v["status"] != "active" || v["address"] != me.Address() || v["expiry"] != "2027-01-15T11:00:00+00:00" ||
			v["type"] != "custom" {
			t.Errorf("%v", v)
		}
		code, _ = get(me, "?prefix=test-agent")
		want(t, code, 404)
		code, _ = get(me, "?prefix=other")
		want(t, code, 404)
	})
	t.Run("UAG-069 tampered, unsigned, stale, from the future, older", func(t *testing.T) {
		now = now.Add(time.Minute)
		for name, b := range map[string][]byte{
			"tampered": []byte(strings.Replace(string(registration(t, me, now, "http://two/submit")),
				"two", "evil", 1)),
			"other key": func() []byte {
				a := NewRegistration(me, false, []Endpoint{{"http://evil/submit", 1}}, nil)
				if err := a.Sign(you, now); err != nil {
					t.Fatal(err)
				}
				b, _ := a.Encode()
				return b
			}(),
			"unsigned": []byte(fmt.Sprintf(`{"agent_identifier":%q,"protocols":[],"endpoints":[],"timestamp":%d}`,
				me.Address(), now.Unix())),
			"stale":       registration(t, me, now.Add(-6*time.Minute), "http://two/submit"),
			"future":      registration(t, me, now.Add(31*time.Second), "http://two/submit"),
			"older":       registration(t, me, now.Add(-2*time.Minute), "http://two/submit"),
			"same second": registration(t, me, now.Add(-time.Minute), "http://two/submit"),
			"file URL":    registration(t, me, now, "file:///etc/passwd"),
			"no shape":    []byte(`{}`),
			"not JSON":    []byte(`{`),
			"many": []byte(`{"agent_identifier":"x","protocols":[` + strings.Repeat(`"p",`, 300) +
				`"p"],"endpoints":[]}`),
			"bad protocol": []byte(strings.Replace(string(registration(t, me, now, "http://two/submit")),
				"proto:", "Proto:", 1)),
		} {
			if code := post("/agents", b); code < 400 || code >= 500 {
				t.Errorf("%s: %d", name, code)
			}
		}
		same(t, "endpoint", endpoint(), "http://one/submit")
	})
	t.Run("a repeated request is accepted without effect", func(t *testing.T) {
		b := registration(t, me, now, "http://two/submit")
		before := len(changes)
		want(t, post("/agents", b), 200)
		want(t, post("/agents", b), 200)
		if len(changes) != before+1 {
			t.Errorf("%d changes", len(changes)-before)
		}
		same(t, "endpoint", endpoint(), "http://two/submit")
	})
	t.Run("UAG-071 status", func(t *testing.T) {
		path := "/agents/" + me.Address() + "/status"
		want(t, post(path, statusUpdate(t, me, now, false)), 200)
		if _, v := get(me, ""); v["status"] != "offline" {
			t.Errorf("%v", v)
		}
		// is_active is signed.
		flipped := strings.Replace(string(statusUpdate(t, me, now.Add(time.Second), false)),
			`"is_active":false`, `"is_active":true`, 1)
		want(t, post(path, []byte(flipped)), 400)
		want(t, post(path, statusUpdate(t, me, now.Add(-time.Second), true)), 400)
		want(t, post("/agents/"+you.Address()+"/status", statusUpdate(t, me, now.Add(time.Second), true)), 403)
		want(t, post("/agents/"+you.Address()+"/status", statusUpdate(t, you, now, true)), 404)
		want(t, post(path, statusUpdate(t, me, now.Add(time.Second), true)), 200)
		if _, v := get(me, ""); v["status"] != "active" {
			t.Errorf("%v", v)
		}
	})
	t.Run("UAG-072 batch", func(t *testing.T) {
		batch := func(parts ...[]byte) []byte {
			var all []json.RawMessage
			for _, p := range parts {
				all = append(all, p)
			}
			b, err := json.Marshal(map[string]any{"attestations": all})
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		bad := registration(t, me, now.Add(-time.Hour), "http://x/submit")
		rec := submitTo(s, "/v1/almanac/agents/batch", batch(registration(t, you, now, "http://you/submit"), bad))
		var v struct {
			Results []struct {
				Success bool
				Detail  string
			}
		}
		if err := json.Unmarshal(rec.Body.Bytes(), &v); err != nil || rec.Code != 200 || !v.Results[0].Success ||
			v.Results[1].Success || v.Results[1].Detail == "" {
			t.Errorf("%d %s", rec.Code, rec.Body)
		}
		if rec := submitTo(s, "/v1/almanac/agents/batch", batch(bad)); rec.Code != 400 {
			t.Errorf("%d", rec.Code)
		}
		want(t, post("/agents/batch", []byte(`{}`)), 422)
		want(t, post("/agents/batch", batch(make([][]byte, 101)...)), 413)
	})
	t.Run("search, manifests and domains", func(t *testing.T) {
		rec := submitTo(s, "/v1/almanac/search", []byte(`{"text":"`+strings.TrimPrefix(someProtocol, "proto:")+`"}`))
		var found []map[string]any
		if err := json.Unmarshal(rec.Body.Bytes(), &found); err != nil || len(found) != 2 || found[0]["status"] == nil {
			t.Errorf("%d %s", rec.Code, rec.Body)
		}
		if rec := submitTo(s, "/v1/almanac/search", []byte(`{"text":"x"}`)); rec.Body.String() != "[]" {
			t.Errorf("%s", rec.Body)
		}
		want(t, post("/search", []byte(`{}`)), 422)
		m, err := ChatProtocol().Manifest("")
		if err != nil {
			t.Fatal(err)
		}
		b, err := m.JSON()
		if err != nil {
			t.Fatal(err)
		}
		want(t, post("/manifests", b), 200)
		want(t, post("/manifests", []byte(strings.Replace(string(b), "hat Message", "hot Message", 1))), 200)
		want(t, post("/manifests", []byte(strings.Replace(string(b), `"Text Content"`, `"Test"`, 1))), 200)
		// UAG-062: a schema under the digest of another.
		want(t, post("/manifests", []byte(strings.Replace(string(b), `"title": "ChatMessage"`, `"title": "Other"`, 1))),
			422)
		want(t, post("/manifests", []byte(`[]`)), 422)
		if rec := request(s, "GET", "/v1/almanac/manifests/protocols/"+ChatProtocolDigest, nil); rec.Code != 200 {
			t.Errorf("%d", rec.Code)
		}
		store.SetDomain("agent", Domain{Name: "my.agent", Agents: []DomainAgent{{me.Address(), 1}}})
		if rec := request(s, "GET", "/v1/almanac/domains/my.agent?prefix=agent", nil); rec.Code != 200 ||
			!strings.Contains(rec.Body.String(), me.Address()) {
			t.Errorf("%d %s", rec.Code, rec.Body)
		}
		if rec := request(s, "GET", "/v1/almanac/domains/other", nil); rec.Code != 404 {
			t.Errorf("%d", rec.Code)
		}
		if rec := request(s, "GET", "/v1/almanac/nothing", nil); rec.Code != 404 {
			t.Errorf("%d", rec.Code)
		}
	})
	t.Run("records expire", func(t *testing.T) {
		now = now.Add(3*time.Hour + time.Second)
		code, _ := get(me, "")
		want(t, code, 404)
		rec := submitTo(s, "/v1/almanac/search", []byte(`{"text":"`+someProtocol+`"}`))
		if rec.Body.String() != "[]" {
			t.Errorf("%s", rec.Body)
		}
	})
	t.Run("UAG-068 a name in the identifier gives no name", func(t *testing.T) {
		a := NewRegistration(me, false, []Endpoint{{"http://x/submit", 1}}, nil)
		a.Identifier = "agent://taken.agent/" + me.Address()
		a.Protocols = []string{}
		if err := a.Sign(me, now); err != nil {
			t.Fatal(err)
		}
		if err := s.Register(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		if rec := request(s, "GET", "/v1/almanac/domains/taken.agent", nil); rec.Code != 404 {
			t.Errorf("%d", rec.Code)
		}
	})
	t.Run("the registry is bounded, and may be told to refuse", func(t *testing.T) {
		full := &AlmanacServer{Now: s.Now, Store: &MemoryAlmanac{Max: 1, MaxManifests: 1, Now: s.Now}}
		for i, id := range []*Identity{me, you} {
			rec := submitTo(full, "/v1/almanac/agents", registration(t, id, now, "http://x/submit"))
			if want := []int{200, 507}[i]; rec.Code != want {
				t.Errorf("%d, want %d", rec.Code, want)
			}
		}
		now = now.Add(4 * time.Hour)
		if rec := submitTo(full, "/v1/almanac/agents", registration(t, you, now, "http://x/submit")); rec.Code != 200 {
			t.Errorf("expired records take room: %d", rec.Code)
		}
		for _, p := range []*Protocol{ChatProtocol(), PaymentProtocol()} {
			m, err := p.Manifest("")
			if err != nil {
				t.Fatal(err)
			}
			if err := full.Store.PutManifest(t.Context(), m); err != nil {
				t.Error(err)
			}
		}
		if m, _ := full.Store.Manifest(t.Context(), ChatProtocolDigest); m != nil {
			t.Error("manifests are not bounded")
		}
		closed := &AlmanacServer{Store: &MemoryAlmanac{Now: s.Now}, Now: s.Now, Allow: func(context.Context, *Attestation,
			string) error {
			return ErrForbidden
		}}
		if rec := submitTo(closed, "/v1/almanac/agents", registration(t, you, now,
			"http://x/submit")); rec.Code != 403 {
			t.Errorf("%d", rec.Code)
		}
	})
}

// UAG-078, both sides of this package: register, resolve, exchange.
func TestRegistrar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		me, you := seeded(t, "me"), seeded(t, "you")
		almanac := &AlmanacServer{Store: &MemoryAlmanac{}}
		var down atomic.Bool
		down.Store(true)
		net := memhttp.Hosts{
			"hub": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if down.Load() {
					w.WriteHeader(503)
					return
				}
				almanac.ServeHTTP(w, r)
			}),
			"you": &Server{Resolve: Serve(echoAgent(you))},
		}
		var failures atomic.Int32
		r := &Registrar{
			Identity: you, URL: "http://hub", HTTP: net.Client(), Endpoints: []Endpoint{{"http://you/submit", 1}},
			Protocols: []string{ChatProtocolDigest}, Metadata: []byte(`{"geolocation":{"latitude":"1.5"}}`),
			Report: func(error) { failures.Add(1) },
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Run(ctx) }()
		_ = sleep.For(t.Context(), 65*time.Second)
		if n := failures.Load(); n != 1 {
			t.Fatalf("%d failures", n)
		}
		down.Store(false)
		_ = sleep.For(t.Context(), 65*time.Second)
		c := &Client{Identity: me, HTTP: net.Client(), Resolver: &AlmanacResolver{URL: "http://hub",
			HTTP: net.Client()}}
		reply, err := c.Ask(t.Context(), you.Identifier(false), hello())
		if err != nil || string(reply.Payload) != `{"text": "echo: hello"}` {
			t.Fatalf("%v", err)
		}
		// Refreshed long after the first record would have expired.
		_ = sleep.For(t.Context(), 10*time.Hour)
		if _, err := c.Ask(t.Context(), you.Address(), hello()); err != nil {
			t.Error(err)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if rec := request(almanac, "GET", "/v1/almanac/agents/"+you.Address(),
			nil); !strings.Contains(rec.Body.String(), `"offline"`) {
			t.Errorf("%s", rec.Body)
		}
		for _, e := range [][]Endpoint{nil, {{"http://x", 0}}, {{"mailto:x", 1}}} { // UAG-079
			bad := *r
			bad.Endpoints = e
			if err := bad.Register(t.Context()); !errors.Is(err, ErrAttestation) {
				t.Errorf("%v: %v", e, err)
			}
		}
	})
}

func TestMailbox(t *testing.T) {
	me, you, other := seeded(t, "me"), seeded(t, "you"), seeded(t, "other")
	now := time.Unix(1_800_000_000, 0)
	clock := func() time.Time { return now }
	store := &MemoryMailbox{Now: clock}
	s := &MailboxServer{Store: store, Now: clock, Models: Models(ModelOf[echoMessage]())}
	box := "/v2/agents/" + you.Address() + "/mailbox"
	token := func(id *Identity) string {
		tok, err := id.NewToken(now, TokenLifetime)
		if err != nil {
			t.Fatal(err)
		}
		return "Agent " + tok
	}
	list := func(query string) []map[string]any {
		t.Helper()
		rec := request(s, "GET", box+query, nil, "Authorization", token(you))
		var v []map[string]any
		if err := json.Unmarshal(rec.Body.Bytes(), &v); err != nil || rec.Code != 200 {
			t.Fatalf("%d %s", rec.Code, rec.Body)
		}
		return v
	}
	put := func(m Message, expires time.Duration) (int, string) {
		rec := submitTo(s, "/v2/agents/mailbox/submit", encoded(t,
			signedAt(t, me, you.Address(), "", m, now.Add(expires))))
		return rec.Code, rec.Body.String()
	}
	code, body := put(hello(), time.Minute)
	wantError(t, code, body, ErrUnknownAgent) // no mailbox yet
	if got := list(""); len(got) != 0 {
		t.Fatalf("%v", got)
	}
	t.Run("UAG-073 tokens", func(t *testing.T) {
		old, err := you.NewToken(now.Add(-2*time.Hour), TokenLifetime)
		if err != nil {
			t.Fatal(err)
		}
		long, err := you.NewToken(now, 48*time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		early, err := you.NewToken(now.Add(time.Minute), TokenLifetime)
		if err != nil {
			t.Fatal(err)
		}
		for header, want := range map[string]int{
			"": 401, "Bearer x": 401, "Agent x": 401, "Agent attr:x:y": 401, token(other): 403,
			"Agent " + old: 401, "Agent " + long: 401, "Agent " + early: 401, token(you): 200,
		} {
			for _, method := range []string{"GET", "DELETE"} {
				path := box
				if method == "DELETE" {
					path += "/" + NewSession()
					if want == 200 {
						want = 404
					}
				}
				if rec := request(s, method, path, nil, "Authorization", header); rec.Code != want {
					t.Errorf("%s %q: %d, want %d", method, header, rec.Code, want)
				}
			}
		}
		if rec := request(s, "GET", "/v2/agents/nobody/mailbox", nil, "Authorization", token(you)); rec.Code != 404 {
			t.Errorf("%d", rec.Code)
		}
	})
	t.Run("UAG-074 order, fields and deletion", func(t *testing.T) {
		for _, text := range []string{"1", "2", "3"} {
			if code, body := put(ModelOf[echoMessage]().Message(echoMessage{text}), time.Minute); code != 200 ||
				body != "{}" {
				t.Fatalf("%d %s", code, body)
			}
		}
		items := list("?limit=100&offset=0")
		if len(items) != 3 {
			t.Fatalf("%d items", len(items))
		}
		for i, item := range items {
			for _, k := range []string{"uuid", "envelope", "received_at", "expires_at"} {
				if item[k] == nil {
					t.Errorf("no %s", k)
				}
			}
			b, err := json.Marshal(item["envelope"])
			if err != nil {
				t.Fatal(err)
			}
			e, err := Decode(b)
			if err != nil || e.VerifySignature() != nil {
				t.Fatalf("envelope %s: %v", b, err)
			}
			m, err := e.Message()
			if want := fmt.Sprintf(`{"message": "%d"}`, i+1); err != nil || string(m.Payload) != want {
				t.Errorf("%s, want %s", m.Payload, want)
			}
		}
		if got := list("?limit=1&offset=1"); len(got) != 1 || got[0]["uuid"] != items[1]["uuid"] {
			t.Errorf("%v", got)
		}
		first := box + "/" + items[0]["uuid"].(string)
		if rec := request(s, "GET", first, nil, "Authorization", token(you)); rec.Code != 200 {
			t.Errorf("%d", rec.Code)
		}
		for _, want := range []int{200, 404} {
			if rec := request(s, "DELETE", first, nil, "Authorization", token(you)); rec.Code != want {
				t.Errorf("%d, want %d", rec.Code, want)
			}
		}
		if got := list(""); len(got) != 2 || got[0]["uuid"] != items[1]["uuid"] {
			t.Errorf("%v", got)
		}
	})
	t.Run("UAG-076 another server over the same store has them", func(t *testing.T) {
		again := &MailboxServer{Store: store, Now: clock}
		rec := request(again, "GET", box, nil, "Authorization", token(you))
		if rec.Code != 200 || strings.Count(rec.Body.String(), "uuid") != 2 {
			t.Errorf("%d %s", rec.Code, rec.Body)
		}
	})
	t.Run("UAG-075 verified before it is stored", func(t *testing.T) {
		forged := signedAt(t, me, you.Address(), "", hello(), now.Add(time.Minute))
		forged.Session = NewSession()
		rec := submitTo(s, "/v2/agents/mailbox/submit", encoded(t, forged))
		wantError(t, rec.Code, rec.Body.String(), ErrSignature)
		code, body := put(Message{Schema: ModelOf[echoMessage]().Digest(), Payload: []byte(`{"message":{}}`)},
			time.Minute)
		wantError(t, code, body, ErrContent)
		code, body = put(hello(), -time.Minute)
		wantError(t, code, body, ErrStale)
		rec = submitTo(s, "/v2/agents/mailbox/submit", encoded(t,
			signedAt(t, me, you.Address(), "", hello(), now.Add(time.Minute))), syncHeader, "sync")
		wantError(t, rec.Code, rec.Body.String(), ErrMailboxSync)
		if len(list("")) != 2 {
			t.Error("a refused envelope was stored")
		}
	})
	t.Run("a duplicate is not stored again, even after deletion", func(t *testing.T) {
		b := encoded(t, signedAt(t, me, you.Address(), "", hello(), now.Add(time.Minute)))
		for range 2 {
			if rec := submitTo(s, "/v2/agents/mailbox/submit", b); rec.Code != 200 || rec.Body.String() != "{}" {
				t.Errorf("%d %s", rec.Code, rec.Body)
			}
		}
		items := list("")
		if len(items) != 3 {
			t.Fatalf("%d items", len(items))
		}
		request(s, "DELETE", box+"/"+items[2]["uuid"].(string), nil, "Authorization", token(you))
		submitTo(s, "/v2/agents/mailbox/submit", b)
		if len(list("")) != 2 {
			t.Error("a deleted item was stored again")
		}
	})
	t.Run("UAG-075 dropped at expiry", func(t *testing.T) {
		now = now.Add(61 * time.Second)
		if got := list(""); len(got) != 0 || store.bytes != 0 {
			t.Errorf("%d items, %d bytes", len(got), store.bytes)
		}
	})
	t.Run("bounded", func(t *testing.T) {
		small := &MemoryMailbox{MaxBoxes: 1, MaxItems: 1, Now: clock}
		s := &MailboxServer{Store: small, Now: clock}
		for id, want := range map[*Identity]int{you: 200} {
			if rec := request(s, "GET", "/v2/agents/"+id.Address()+"/mailbox", nil,
				"Authorization", token(id)); rec.Code != want {
				t.Errorf("%d", rec.Code)
			}
		}
		if rec := request(s, "GET", "/v2/agents/"+other.Address()+"/mailbox", nil,
			"Authorization", token(other)); rec.Code != 507 {
			t.Errorf("%d", rec.Code)
		}
		b := encoded(t, signedAt(t, me, you.Address(), "", hello(), now.Add(time.Minute)))
		submitTo(s, "/v2/agents/mailbox/submit", b)
		second := encoded(t, signedAt(t, me, you.Address(), "", hello(), now.Add(2*time.Minute)))
		if rec := submitTo(s, "/v2/agents/mailbox/submit", second); rec.Code != 507 {
			t.Errorf("%d %s", rec.Code, rec.Body)
		}
		if rec := submitTo(s, "/v2/agents/mailbox/submit", b); rec.Code != 200 {
			t.Errorf("a duplicate: %d", rec.Code)
		}
		// An envelope that was refused for want of room may come again.
		now = now.Add(61 * time.Second)
		if rec := submitTo(s, "/v2/agents/mailbox/submit", second); rec.Code != 200 {
			t.Errorf("%d %s", rec.Code, rec.Body)
		}
		if err := small.Remove(t.Context(), you.Address()); err != nil || small.bytes != 0 {
			t.Errorf("%v, %d bytes", err, small.bytes)
		}
	})
}

// UAG-077, the client loop.
func TestMailboxClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		me, you := seeded(t, "me"), seeded(t, "you")
		store := &MemoryMailbox{}
		boxes := &MailboxServer{Store: store}
		failDelete := 1
		net := memhttp.Hosts{"hub": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == "DELETE" && failDelete > 0 {
				failDelete--
				w.WriteHeader(500)
				return
			}
			boxes.ServeHTTP(w, r)
		})}
		mailbox := &MailboxClient{Identity: you, URL: "http://hub", HTTP: net.Client()}
		sender := &Client{Identity: me, HTTP: net.Client(),
			Resolver: Endpoints{you.Address(): {"http://hub/v2/agents/mailbox/submit"}}}
		if items, err := mailbox.List(t.Context()); err != nil || len(items) != 0 {
			t.Fatal(items, err)
		}
		for _, text := range []string{"1", "2"} {
			if _, err := sender.Send(t.Context(), you.Address(),
				ModelOf[echoMessage]().Message(echoMessage{text})); err != nil {
				t.Fatal(err)
			}
		}
		// An envelope that fails the agent's own verification, put into the store directly.
		forged := signed(t, me, you.Address(), hello())
		forged.Session = NewSession()
		if _, err := store.Put(t.Context(), you.Address(), "k", time.Now().Add(time.Hour), MailboxItem{
			UUID: NewSession(), Envelope: encoded(t, forged), ReceivedAt: time.Now(),
			ExpiresAt: time.Now().Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		var got []string
		failures := 0
		for d, err := range mailbox.Stream(t.Context()) {
			if err != nil {
				failures++
			} else {
				got = append(got, string(d.Content.Payload))
			}
			if len(got) == 2 && failures == 2 {
				break
			}
			if len(got) > 2 || failures > 2 {
				t.Fatalf("%d items and %d errors", len(got), failures)
			}
		}
		// The item whose deletion failed is not yielded again.
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		for d, err := range mailbox.Stream(ctx) {
			if err == nil {
				got = append(got, string(d.Content.Payload))
			}
		}
		if fmt.Sprint(got) != `[{"message": "1"} {"message": "2"}]` {
			t.Errorf("%v", got)
		}
	})
}

// UAG-080.
func TestIdentityServer(t *testing.T) {
	you, other := seeded(t, "you"), seeded(t, "other")
	now := time.Unix(1_800_000_000, 0)
	var events []string
	s := &IdentityServer{
		Store: &MemoryProfiles{},
		Now:   func() time.Time { return now },
		User: func(_ context.Context, bearer, team string) (string, error) {
			if !strings.HasPrefix(bearer, "token-") {
				return "", ErrUnauthorized
			}
			return bearer[6:] + team, nil
		},
		Proved: func(_ context.Context, user, address string) error {
			events = append(events, "proved "+user)
			return nil
		},
		MaxUser: 3,
	}
	do := func(method, path, user string, body string) (int, map[string]any) {
		rec := request(s, method, path, []byte(body), "Content-Type", "application/json", "Authorization", "Bearer "+
			user)
		var v map[string]any
		_ = json.Unmarshal(rec.Body.Bytes(), &v)
		if rec.Code >= 400 && v["detail"] == nil {
			t.Errorf("%d without detail", rec.Code)
		}
		return rec.Code, v
	}
	challenge := func(id *Identity) string {
		t.Helper()
		code, v := do("GET", "/v2/identity/"+id.Address()+"/challenge", "token-ann", "")
		if code != 200 {
			t.Fatal(code, v)
		}
		return v["challenge"].(string)
	}
	proof := func(id *Identity, address, text string) string {
		sig, err := id.Sign([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf(`{"address":%q,"challenge":%q,"challenge_response":%q}`, address, text, sig)
	}
	want := func(code int, _ map[string]any) func(int) {
		return func(want int) {
			t.Helper()
			if code != want {
				t.Errorf("status %d, want %d", code, want)
			}
		}
	}
	register := fmt.Sprintf(`{"address":%q,"name":"n","agent_type":"mailbox","profile":{"description":""}}`,
		you.Address())

	want(do("GET", "/v2/identity/"+you.Address()+"/challenge", "x", ""))(401)
	want(do("GET", "/v2/identity/nobody/challenge", "token-ann", ""))(400)
	want(do("POST", "/v2/agents", "token-ann", register))(403)
	c := challenge(you)
	want(do("POST", "/v2/identity", "token-eve", proof(you, you.Address(), c)))(401) // another user's
	want(do("POST", "/v2/identity", "token-ann", proof(you, you.Address(), c)))(200)
	want(do("POST", "/v2/identity", "token-ann", proof(you, you.Address(), c)))(401) // single use
	want(do("POST", "/v2/identity", "token-ann", proof(you, you.Address(), "made up")))(401)
	c = challenge(you)
	want(do("POST", "/v2/identity", "token-ann", proof(other, you.Address(), c)))(401)
	want(do("POST", "/v2/identity", "token-ann", proof(you, you.Address(), c)))(401) // the failed attempt used the challenge up
	c = challenge(you)
	now = now.Add(6 * time.Minute)
	want(do("POST", "/v2/identity", "token-ann", proof(you, you.Address(), c)))(401) // too late
	want(do("POST", "/v2/agents", "token-ann", register))(403)                       // the first proof has expired too
	want(do("POST", "/v2/identity", "token-ann", proof(you, you.Address(), challenge(you))))(200)
	want(do("POST", "/v2/agents", "token-eve", register))(403)
	want(do("POST", "/v2/agents", "token-ann", register))(200)
	want(do("POST", "/v2/agents", "token-ann", strings.Replace(register, `"n"`, `""`, 1)))(422)
	want(do("POST", "/v2/agents", "token-ann", strings.Replace(register, `"n"`, `5`, 1)))(422)
	want(do("POST", "/v2/agents", "token-ann", `{`))(400)
	want(do("POST", "/v2/agents/interactions", "", `{}`))(200)
	want(do("DELETE", "/v2/agents/"+you.Address(), "token-ann", ""))(200)
	if fmt.Sprint(events) != "[proved ann proved ann]" {
		t.Errorf("%v", events)
	}
	for range 3 {
		challenge(other)
	}
	want(do("GET", "/v2/identity/"+other.Address()+"/challenge", "token-ann", ""))(503)
	want(do("GET", "/v2/identity/"+other.Address()+"/challenge", "token-bob", ""))(200)
	zero := &IdentityServer{Store: &MemoryProfiles{}}
	if rec := request(zero, "GET", "/v2/identity/"+you.Address()+"/challenge", nil,
		"Authorization", "Bearer x"); rec.Code != 401 {
		t.Errorf("%d", rec.Code)
	}
}
