package uagents_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/uagents"
)

const (
	ann   = "ann-token-0123456789abcdef"
	eve   = "eve-token-0123456789abcdef"
	watch = "watch-token-0123456789abcdef"
)

// withAccounts is a hub with the accounts ann and eve.
func withAccounts(t *testing.T) node.Config {
	t.Helper()
	c := node.Config{Data: t.TempDir(), Durability: "disk"}
	c.UAgents.Direct = true // so that the registry shows the agents' own endpoints
	var lines string
	for _, s := range []string{ann, eve, watch} {
		name, _, _ := strings.Cut(s, "-")
		role := admin.Register
		if s == watch {
			role = admin.Observe
		}
		lines += fmt.Sprintf("{\"name\":%q,\"role\":%q,\"token\":%q}\n", name, role, s)
	}
	if err := os.WriteFile(filepath.Join(c.Data, admin.TokenFile), []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

// api calls the hub's Agentverse and gives status and answer.
func (w *world) api(method, path, token string, body any) (int, string) {
	w.t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		w.t.Fatal(err)
	}
	r, err := http.NewRequest(method, w.base+path, bytes.NewReader(b))
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if token != "" {
		r.Header.Set("Authorization", token)
	}
	resp, err := w.http.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, string(answer)
}

// wants calls the API as an account and checks the status.
func (w *world) wants(want int, method, path, token string, body any) string {
	w.t.Helper()
	status, answer := w.api(method, path, "Bearer "+token, body)
	if status != want {
		w.t.Errorf("%s %s: %d %.300s, want %d", method, path, status, answer, want)
	}
	return answer
}

// prove shows the hub that the account holds the agent's key.
func (w *world) prove(token string, id *uagents.Identity) {
	w.t.Helper()
	var c struct{ Challenge string }
	if err := json.Unmarshal([]byte(w.wants(200, "GET", "/v2/identity/"+id.Address()+"/challenge", token, nil)),
		&c); err != nil {
		w.t.Fatal(err)
	}
	sig, err := id.Sign([]byte(c.Challenge))
	if err != nil {
		w.t.Fatal(err)
	}
	w.wants(200, "POST", "/v2/identity", token, map[string]any{"address": id.Address(), "challenge": c.Challenge,
		"challenge_response": sig})
}

type registration map[string]any

func registrationOf(id *uagents.Identity, name string) registration {
	return registration{"address": id.Address(), "name": name,
		"agent_type": "uagent", "protocols": []string{uagents.ChatProtocolDigest},
		"endpoints": []map[string]any{{"url": "http://127.0.0.1:9/submit", "weight": 1}},
		"profile": map[string]any{"description": "About " + name, "readme": "# " + name,
			"starter_prompts": []string{"Hello?"}}}
}

// found gives the names that a search finds.
func (w *world) found(text string) (names []string) {
	w.t.Helper()
	status, answer := w.api("POST", "/v1/search/agents", "", map[string]any{"search_text": text})
	var v struct{ Agents []struct{ Name string } }
	if err := json.Unmarshal([]byte(answer), &v); err != nil || status != 200 {
		w.t.Fatal(status, answer, err)
	}
	for _, a := range v.Agents {
		names = append(names, a.Name)
	}
	return names
}

func (w *world) endpoints(id *uagents.Identity) string {
	w.t.Helper()
	status, answer := w.api("GET", "/v1/almanac/agents/"+id.Address(), "", nil)
	var v struct{ Endpoints []struct{ URL string } }
	if err := json.Unmarshal([]byte(answer), &v); err != nil || status != 200 && status != 404 {
		w.t.Fatal(status, answer, err)
	}
	return fmt.Sprint(v.Endpoints)
}

// TestAccounts: an account registers, shows and changes the agents whose keys it
// proved to hold, and no others.
func TestAccounts(t *testing.T) {
	w := newWorld(t, withAccounts(t))
	bob := identity(t)
	at := "/v2/agents/" + bob.Address()

	for _, token := range []string{"", "Bearer nobody-0123456789abcdef", "Bearer " + watch, "Basic " + ann} {
		for _, c := range [][2]string{{"GET", "/v2/agents"}, {"POST", "/v2/agents"}, {"POST", "/v2/agents/batch"},
			{"GET", at}, {"PUT", at},
			{"DELETE", at}, {"GET", "/v2/identity/" + bob.Address() + "/challenge"}, {"POST", "/v2/identity"}} {
			if status, answer := w.api(c[0], c[1], token, registrationOf(bob, "Bob")); status != 401 ||
				!strings.Contains(answer, "detail") {
				t.Errorf("%s %s with %q: %d %s", c[0], c[1], token, status, answer)
			}
		}
	}
	w.wants(404, "GET", at, ann, nil)
	w.wants(403, "POST", "/v2/agents", ann, registrationOf(bob, "Bob"))
	w.wants(403, "POST", "/v2/agents/batch", ann, map[string]any{"agents": []registration{registrationOf(bob, "Bob")}})
	if got := w.found("bob"); len(got) > 0 {
		t.Fatal(got)
	}

	w.prove(ann, bob)
	w.wants(403, "POST", "/v2/agents", eve, registrationOf(bob, "Eve's"))
	w.wants(200, "POST", "/v2/agents", ann, registrationOf(bob, "Bob"))
	if got := fmt.Sprint(w.found("about bob"), w.found("hello bob")); got != "[Bob] []" {
		t.Error(got)
	}
	e, ok := w.Hub().Directory().Lookup("uagents", bob.Address())
	if !ok || e.Title != "Bob" || e.Description != "About Bob" || e.Source != directory.FromGuest {
		t.Fatalf("%+v", e)
	}
	if p := w.Hub().Profile(e); p == nil || p.Account != "ann" || p.Readme != "# Bob" || len(p.Prompts) != 1 {
		t.Errorf("%+v", p)
	}

	t.Run("its own agents only", func(t *testing.T) {
		w.wants(200, "PUT", at, ann, map[string]any{"name": "Bobby", "readme": nil})
		w.wants(404, "GET", at, eve, nil)
		for _, method := range []string{"PUT", "DELETE"} {
			w.wants(403, method, at, eve, map[string]any{"name": "Eve's"})
		}
		w.wants(403, "POST", "/v2/agents", eve, registrationOf(bob, "Eve's"))
		if got := w.wants(200, "GET", "/v2/agents", ann, nil); !strings.Contains(got, `"Bobby"`) ||
			!strings.Contains(got, `"# Bob"`) {
			t.Error(got)
		}
		if got := w.wants(200, "GET", "/v2/agents", eve, nil); got != "[]" {
			t.Error(got)
		}
		// The last account that proved the key has the agent.
		w.prove(eve, bob)
		w.wants(200, "POST", "/v2/agents", eve, registrationOf(bob, "Eve's"))
		w.wants(403, "PUT", at, ann, map[string]any{"name": "Ann's"})
		w.prove(ann, bob)
		w.wants(200, "PUT", at, ann, map[string]any{"name": "Bob"})
		w.wants(200, "GET", at, ann, nil)
	})
	t.Run("an agent asks about itself", func(t *testing.T) {
		for id, want := range map[*uagents.Identity]int{bob: 200, identity(t): 403} {
			token, err := id.NewToken(time.Now(), time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			if status, answer := w.api("GET", at, "Agent "+token, nil); status != want {
				t.Error(status, answer)
			}
		}
	})
	t.Run("a registration signed by the agent outweighs its account", func(t *testing.T) {
		w.register(bob, "http://127.0.0.1:10/submit")
		signed := w.endpoints(bob)
		w.wants(200, "POST", "/v2/agents", ann, registrationOf(bob, "Bob"))
		if got := w.endpoints(bob); got != signed {
			t.Errorf("%s, want %s", got, signed)
		}
		w.wants(200, "DELETE", at, ann, nil)
		if got := w.endpoints(bob); got != signed {
			t.Errorf("%s, want %s", got, signed)
		}
		if e, ok := w.Hub().Directory().Lookup("uagents", bob.Address()); !ok || e.Title != "" ||
			w.Hub().Profile(e) != nil {
			t.Errorf("%+v", e)
		}
		w.wants(403, "DELETE", at, eve, nil)
	})
}

// TestAccountBounds: malformed profiles are refused, and so are profiles beyond the room
// of an account.
func TestAccountBounds(t *testing.T) {
	w := newWorld(t, withAccounts(t))
	id := identity(t)
	w.prove(ann, id)
	change := func(name string, value any) registration {
		r := registrationOf(id, "Bob")
		if about, ok := r["profile"].(map[string]any); ok && strings.HasPrefix(name, "profile.") {
			about[strings.TrimPrefix(name, "profile.")] = value
		} else {
			r[name] = value
		}
		return r
	}
	for _, c := range []struct {
		name  string
		value any
		want  int
	}{
		{"name", "", 422}, {"name", strings.Repeat("ü", 33), 422}, {"name", 5, 422},
		{"handle", strings.Repeat("h", 41), 422},
		{"address", "agent1nobody", 400}, {"url", "file:///etc/passwd", 422},
		{"profile.description", strings.Repeat("d", 301), 422},
		{"profile.readme", strings.Repeat("r", 80001), 422}, {"profile.banner_url", "javascript:alert(1)", 422},
		{"profile.starter_prompts", "one", 422}, {"profile.starter_prompts", make([]string, 51), 422},
		{"profile", "text", 422},
		{"protocols", []string{"chat"}, 422}, {"endpoints", []string{"http://a"}, 422}, {"metadata", []string{}, 422},
		{"metadata", map[string]string{"m": strings.Repeat("m", 16<<10)}, 422},
		{"extra", strings.Repeat("x", 512<<10), 413},
		{"endpoints", []map[string]any{{"url": "gopher://a", "weight": 1}}, 422},
		{"endpoints", make([]map[string]any, 21), 422},
		{"name", strings.Repeat("ü", 32), 200}, {"profile.readme", strings.Repeat("漢", 80000), 200},
		{"handle", "bob", 200},
		{"profile.avatar_url", "data:image/png;base64,AAAA", 200}, {"metadata", nil, 200},
		{"extra", "unknown members are free", 200},
	} {
		t.Run(fmt.Sprintf("%s %.20v", c.name, c.value), func(t *testing.T) {
			w.t = t
			if got := w.wants(c.want, "POST", "/v2/agents", ann, change(c.name, c.value)); c.want >= 400 &&
				!strings.Contains(got, `"detail"`) {
				t.Error(got)
			}
		})
	}
	w.t = t
	w.wants(200, "POST", "/v2/agents", ann, change("handle", "bob"))
	other := identity(t)
	w.prove(eve, other)
	taken := registrationOf(other, "Other")
	taken["handle"] = "bob"
	w.wants(409, "POST", "/v2/agents", eve, taken)
	hidden := registrationOf(other, "Hidden")
	hidden["metadata"] = map[string]string{"is_public": "False"}
	w.wants(200, "POST", "/v2/agents", eve, hidden)
	if got := w.found("hidden"); len(got) > 0 {
		t.Error(got)
	}

	var batch []registration
	for i := range 100 { // with the agent above, one more than the limit
		id := identity(t)
		w.prove(ann, id)
		batch = append(batch, registrationOf(id, fmt.Sprint("No ", i)))
		if len(batch) == 50 {
			w.wants(200, "POST", "/v2/agents/batch", ann, map[string]any{"agents": batch[:49]})
			batch = batch[49:]
		}
	}
	w.wants(507, "POST", "/v2/agents/batch", ann, map[string]any{"agents": batch})
	if got := len(w.found("no")); got != 30 { // one page of 99
		t.Errorf("%d found", got)
	}
	bad := []registration{registrationOf(id, "Bob again"), {"address": id.Address()}}
	if got := w.wants(422, "POST", "/v2/agents/batch", ann, map[string]any{"agents": bad}); !strings.Contains(got,
		"agents[1]") || len(w.found("again")) > 0 {
		t.Errorf("%s %v", got, w.found("again"))
	}
}

// TestAccountLasts: profiles outlive a restart of the hub and the agent's own
// registration; when the operator removes an agent, its profile goes too.
func TestAccountLasts(t *testing.T) {
	c := withAccounts(t)
	c.UAgents.Closed = true
	w := newWorld(t, c)
	bob := identity(t)
	w.prove(ann, bob)
	w.wants(200, "POST", "/v2/agents", ann, registrationOf(bob, "Bob"))
	account := w.endpoints(bob)
	w.register(bob, "http://127.0.0.1:10/submit") // its account vouches for it
	w.close()
	c.Now = func() time.Time { return time.Now().Add(4 * time.Hour) }
	w.open(c)
	if got := w.endpoints(bob); got != account || got == "[]" {
		t.Errorf("%s, want %s", got, account)
	}
	if got := fmt.Sprint(w.found("bob")); got != "[Bob]" {
		t.Error(got)
	}
	if err := w.Hub().Directory().Remove(t.Context(), w.nameOf(bob)); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return len(w.found("bob")) == 0 && w.endpoints(bob) == "[]" })
	w.wants(404, "GET", "/v2/agents/"+bob.Address(), ann, nil)
}
