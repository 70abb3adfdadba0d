package interop

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/node"
)

const (
	annToken = "ann-token-0123456789abcdef"
	eveToken = "eve-token-0123456789abcdef"
)

// withAccounts gives a hub the accounts ann and eve.
func withAccounts(t *testing.T) func(*node.Config) {
	return func(c *node.Config) {
		tokens := `{"name":"ann","role":"register","token":"` + annToken + `"}` + "\n" +
			`{"name":"eve","role":"register","token":"` + eveToken + `"}` + "\n" +
			`{"name":"root","role":"administer","token":"root-token-0123456789abcdef"}` + "\n"
		if err := os.WriteFile(filepath.Join(c.Data, admin.TokenFile), []byte(tokens), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// core is an unmodified agent of uagents-core alone.
func (h *uagentsHub) core(python, seed string) *pyAgent {
	h.t.Helper()
	a := &pyAgent{t: h.t, more: make(chan struct{}, 1)}
	script, err := filepath.Abs("python/uagents_account.py")
	if err != nil {
		h.t.Fatal(err)
	}
	a.cmd = exec.Command(python, script, "--hub", h.Addresses().Local, "--seed", seed)
	a.cmd.Dir = h.t.TempDir() // the library writes a log there
	a.cmd.Stderr = h.t.Output()
	if a.in, err = a.cmd.StdinPipe(); err != nil {
		h.t.Fatal(err)
	}
	out, err := a.cmd.StdoutPipe()
	if err == nil {
		err = a.cmd.Start()
	}
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(a.kill)
	a.reading.Go(func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			var e map[string]any
			if json.Unmarshal(s.Bytes(), &e) != nil {
				fmt.Fprintf(h.t.Output(), "%s: %s\n", seed, s.Text())
				continue
			}
			a.mu.Lock()
			a.events = append(a.events, e)
			a.mu.Unlock()
			select {
			case a.more <- struct{}{}:
			default:
			}
		}
	})
	a.Address = a.wait("ready")["address"].(string)
	return a
}

// call sends JSON and gives the status with the answer.
func (h *uagentsHub) call(method, url, token string, body any) (int, string) {
	h.t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		h.t.Fatal(err)
	}
	r, err := http.NewRequest(method, url, bytes.NewReader(b))
	if err != nil {
		h.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		h.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return resp.StatusCode, string(answer)
}

// found is an agent in the result of a search.
type found struct {
	Address, Name, Status, Type, Readme string
	Prompts                             []string `json:"starter_prompts"`
	Banner                              string   `json:"banner_href"`
}

// TestUAgentsAccount: uagents-core registers a chat agent at the hub as it does at
// Agentverse; it is found, shown, reached, and changed by its account alone.
func TestUAgentsAccount(t *testing.T) {
	python, ok := uagentsPython(t)
	if !ok {
		return
	}
	h := newUAgentsHub(t, withAccounts(t))
	bob := h.core(python, "account-bob")

	register := map[string]any{"do": "register", "token": "no-token-of-this-hub", "name": "Weather Bob",
		"description": "Forecasts for Bern",
		"readme":      "# Bob\nKnows the **Aare**.", "starter_prompts": []string{"Will it rain?"},
		"banner_url": "https://bob.example/banner.png",
		"metadata":   map[string]any{"is_public": "True", "tags": []string{"rain"}}}
	bob.do(register)
	if e := bob.wait("refused"); !strings.Contains(fmt.Sprint(e["error"]), "parley tokens add") {
		t.Fatal(e)
	}
	register["token"] = annToken
	bob.do(register)
	bob.wait("registered")

	t.Run("a chat through the proxy of the hub", func(t *testing.T) {
		e, ok := h.Hub().Directory().Lookup("uagents", bob.Address)
		if !ok || e.Title != "Weather Bob" || e.Description != "Forecasts for Bern" {
			t.Fatalf("%+v", e)
		}
		r, err := h.ask(e.Name, "", parley.Text("hello"))
		if err != nil || r.Kind != parley.Response || r.Text() != "core heard hello" {
			t.Fatalf("%+v, %v", r, err)
		}
		bob.wait("ack")
		alice := h.agent(python, "account-alice")
		alice.do(map[string]any{"do": "chat", "to": bob.Address, "text": "good morning"})
		if e := alice.wait("chat"); e["text"] != "core heard good morning" || e["sender"] != bob.Address {
			t.Fatal(e)
		}
		bob.do(map[string]any{"do": "send", "to": h.echo(), "text": "from core"})
		for e := bob.wait("chat"); e["text"] != "from core"; { // echo's answer, after those to earlier messages
			e = bob.wait("chat")
		}
	})
	t.Run("search finds it, and what the hub stands in for", func(t *testing.T) {
		for text, want := range map[string]string{"address:" + bob.Address: bob.Address, "bern forecasts": bob.Address,
			"aare": bob.Address,
			"rain": bob.Address, "echo": h.echo(), "zurich": ""} {
			status, answer := h.call("POST", h.Addresses().Local+
				"/v1/search/agents", "", map[string]any{"search_text": text})
			var result struct {
				Agents []found
				Total  int
			}
			if err := json.Unmarshal([]byte(answer), &result); err != nil || status != 200 {
				t.Fatal(status, answer, err)
			}
			i := slices.IndexFunc(result.Agents, func(a found) bool { return a.Address == want })
			if want == "" {
				if result.Total != 0 {
					t.Errorf("%q finds %s", text, answer)
				}
				continue
			}
			if i < 0 {
				t.Errorf("%q does not find it: %s", text, answer)
				continue
			}
			if a := result.Agents[i]; want == bob.Address &&
				(a.Name != "Weather Bob" || a.Status != "active" || a.Type != "proxy" ||
					a.Readme != "# Bob\nKnows the **Aare**." || len(a.Prompts) != 1 ||
					a.Banner != "https://bob.example/banner.png") {
				t.Errorf("%q: %+v", text, a)
			}
		}
	})
	t.Run("the library's own check finds nothing amiss", func(t *testing.T) {
		bob.do(map[string]any{"do": "check"})
		text := bob.wait("check")["text"].(string)
		for _, want := range []string{"Available at", "Status is active", "Chat protocol supported", "Readme present",
			"Aare", "Address: " + bob.Address} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in:\n%s", want, text)
			}
		}
		for _, bad := range []string{"Failed to", "Mismatched", "missing"} {
			if strings.Contains(text, bad) {
				t.Errorf("%q in:\n%s", bad, text)
			}
		}
	})
	t.Run("again, by its account alone", func(t *testing.T) {
		register["token"], register["readme"] = annToken, "# Bob\nKnows the Rhine now."
		bob.do(register)
		bob.wait("registered")
		e, _ := h.Hub().Directory().Lookup("uagents", bob.Address)
		if p := h.Hub().Profile(e); p == nil || p.Account != "ann" || !strings.Contains(p.Readme, "Rhine") {
			t.Errorf("%+v", p)
		}
		bob.do(map[string]any{"do": "batch", "token": eveToken, "names": []string{"Eve's"}})
		if e := bob.wait("batch"); e["ok"] != false {
			t.Error(e)
		}
		bob.do(map[string]any{"do": "batch", "token": annToken, "names": []string{"Batch Bob"}})
		if e := bob.wait("batch"); e["ok"] != true {
			t.Error(e)
		}
		at := h.Addresses().Local + "/v2/agents/" + bob.Address
		if status, answer := h.call("GET", at, annToken, nil); status != 200 || !strings.Contains(answer, "Batch Bob") {
			t.Error(status, answer)
		}
		for _, method := range []string{"GET", "PUT", "DELETE"} {
			if status, answer := h.call(method, at, eveToken, map[string]any{"name": "Eve's"}); status != 404 &&
				status != 403 {
				t.Error(method, status, answer)
			}
		}
	})
	t.Run("it outlives the hub, and goes when its account says so", func(t *testing.T) {
		h.close()
		h.open()
		if status, answer := h.call("GET", h.Addresses().Local+"/v1/almanac/agents/"+bob.Address,
			"", nil); status != 200 {
			t.Error(status, answer)
		}
		at := h.Addresses().Local + "/v2/agents/" + bob.Address
		if status, answer := h.call("DELETE", at, annToken, nil); status != 200 {
			t.Error(status, answer)
		}
		if status, answer := h.call("GET", h.Addresses().Local+"/v1/almanac/agents/"+bob.Address,
			"", nil); status != 404 {
			t.Error(status, answer)
		}
	})
}

// TestUAgentsConnect: the button "connect" of the inspector, which tells an agent
// to register its mailbox for an account.
func TestUAgentsConnect(t *testing.T) {
	python, ok := uagentsPython(t)
	if !ok {
		return
	}
	h := newUAgentsHub(t, withAccounts(t))
	carol := h.agent(python, "connect-carol", "--mailbox")
	own := "http://127.0.0.1:" + carol.cmd.Args[slices.Index(carol.cmd.Args, "--port")+1]
	connect := func(path, token string) string {
		t.Helper()
		status, answer := h.call("POST", own+path, "", map[string]any{"user_token": token, "agent_type": "mailbox"})
		if status != 200 {
			t.Fatal(status, answer)
		}
		return answer
	}
	if answer := connect("/connect", "no-token-of-this-hub"); !strings.Contains(answer, "parley tokens add") {
		t.Error(answer)
	}
	if answer := connect("/connect", annToken); !strings.Contains(answer, `"success": true`) {
		t.Fatal(answer)
	}
	e, ok := h.Hub().Directory().Lookup("uagents", carol.Address)
	if p := h.Hub().Profile(e); !ok || e.Title != "peer-connect-carol" || p == nil || p.Account != "ann" {
		t.Fatalf("%+v %+v", e, p)
	}
	r, err := h.ask(e.Name, "", parley.Text("to the mailbox"))
	if err != nil || r.Kind != parley.Response || r.Text() != "you said to the mailbox" {
		t.Fatalf("%+v, %v", r, err)
	}
	if answer := connect("/disconnect", eveToken); strings.Contains(answer, `"success": true`) {
		t.Error(answer)
	}
	if answer := connect("/disconnect", annToken); !strings.Contains(answer, `"success": true`) {
		t.Error(answer)
	}
	if e, ok = h.Hub().Directory().Lookup("uagents", carol.Address); !ok || h.Hub().Profile(e) != nil {
		t.Error("it did not go back to its own registration")
	}
}
