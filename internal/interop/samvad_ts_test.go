package interop

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
)

// typescript gives a folder with the scripts, from which they find the SDK.
func typescript(t *testing.T) string {
	t.Helper()
	sdk := os.Getenv("PARLEY_NODE_SDK")
	if sdk == "" {
		t.Skip("PARLEY_NODE_SDK names no folder with the SAMVAD SDK for TypeScript; internal/interop/setup.sh makes one")
	}
	modules, err := filepath.Abs(filepath.Join(sdk, "node_modules"))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(modules, "@samvad-protocol/sdk/package.json"))
	if err != nil {
		t.Fatalf("PARLEY_NODE_SDK=%s has no SAMVAD SDK; internal/interop/setup.sh makes such a folder: %v", sdk, err)
	}
	var sdkPackage struct{ Version string }
	if err := json.Unmarshal(raw, &sdkPackage); err != nil || sdkPackage.Version != "0.7.0" {
		t.Fatalf("PARLEY_NODE_SDK=%s has version %q of the SAMVAD SDK, want 0.7.0: %v", sdk, sdkPackage.Version, err)
	}
	if _, err := exec.LookPath("node"); err != nil {
		t.Fatal(err)
	}
	return nodeScripts(t, modules)
}

// tsAnswer is the output of a script about a call.
type tsAnswer struct {
	Key    string
	Result json.RawMessage
	Chunks []json.RawMessage
	Error  *struct{ Code, Message string }
}

type tsCall struct{ what, skill, payload, origin string }

// tsCaller is a client of the SDK with keys of its own.
type tsCaller struct{ scripts, keys string }

func newTSCaller(t *testing.T, scripts string, n *node.Node, name, id string) tsCaller {
	t.Helper()
	c := tsCaller{scripts: scripts, keys: t.TempDir()}
	var a tsAnswer
	if err := json.Unmarshal(c.run(t, "key", c.keys), &a); err != nil {
		t.Fatal(err)
	}
	enrol(t, n, name, id, "", a.Key)
	return c
}

func (c tsCaller) run(t *testing.T, args ...string) json.RawMessage {
	t.Helper()
	return output(t, "node", append([]string{filepath.Join(c.scripts, "samvad_client.mjs")}, args...)...)
}

func (c tsCaller) call(t *testing.T, url string, call tsCall) tsAnswer {
	t.Helper()
	out := c.run(t, call.what, c.keys, url, call.skill, call.payload, call.origin)
	t.Logf("%s", bytes.TrimSpace(out))
	var a tsAnswer
	if err := json.Unmarshal(out, &a); err != nil {
		t.Fatal(err)
	}
	return a
}

// forecaster is an agent that streams a chunk before its result.
func forecaster(t *testing.T, n *node.Node) {
	t.Helper()
	forecast := parley.Skill("forecast",
		func(ctx context.Context, m *parley.Message, q city) (weather, error) {
			if m.Origin.Verdict.Assurance != parley.Signed {
				return weather{}, parley.Refuse(parley.Forbidden, "who are you?")
			}
			if err := parley.Chunk(ctx, parley.Text("looking")); err != nil {
				return weather{}, err
			}
			return weather{q.City, 21}, nil
		})
	forecast.Input = json.RawMessage(`{"type":"object","required":["city"],
		"properties":{"city":{"type":"string","maxLength":20}}}`)
	err := n.Handle(parley.Agent{Name: "weather", Title: "Weather", Exposed: parley.Everywhere}, forecast,
		parley.Skill("at once", func(_ context.Context, _ *parley.Message, q city) (weather, error) {
			return weather{q.City, 7}, nil
		}),
		parley.RawSkill("fail", func(context.Context, *parley.Message, parley.Replier) error {
			return errors.New("a secret")
		}))
	if err != nil {
		t.Fatal(err)
	}
}

// TestTypeScriptClients calls an agent of the hub with the two unmodified clients of
// the TypeScript SDK (SAM-161): that of Node, and that of browsers in a page of another
// origin, which sends a preflight first.
func TestTypeScriptClients(t *testing.T) {
	scripts := typescript(t)
	const page = "https://app.example"
	// SAM-160: the hub answers the preflight of pages of this origin.
	n, err := node.Open(t.Context(), node.Config{Data: filepath.Join(t.TempDir(), "data"),
		Listen:  node.Listen{HTTP: "127.0.0.1:0", Origins: []string{page}},
		Network: node.Network{Allow: []string{"loopback"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	forecaster(t, n)
	// The clients' default identities.
	inNode := newTSCaller(t, scripts, n, "ts-node", "agent://client.local")
	inBrowser := newTSCaller(t, scripts, n, "ts-browser", "agent://browser.key-current")
	unknown := tsCaller{scripts: scripts, keys: t.TempDir()}
	unknown.run(t, "key", unknown.keys)
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	url := n.Addresses().HTTP + "/agents/weather"
	for _, client := range []struct {
		name   string
		caller tsCaller
		origin string
	}{{"node", inNode, ""}, {"browser", inBrowser, page}} {
		t.Run(client.name, func(t *testing.T) {
			call := func(t *testing.T, what, skill, payload string) tsAnswer {
				t.Helper()
				return client.caller.call(t, url, tsCall{what, skill, payload, client.origin})
			}
			result := func(t *testing.T, raw json.RawMessage, want weather) {
				t.Helper()
				var got weather
				if err := json.Unmarshal(raw, &got); err != nil || got != want {
					t.Errorf("result %s, want %+v: %v", raw, want, err)
				}
			}
			refused := func(t *testing.T, a tsAnswer, code samvad.Code, text string) {
				t.Helper()
				if a.Error == nil || a.Error.Code != string(code) || !strings.Contains(a.Error.Message, text) {
					t.Errorf("got %+v, want %s with %q", a, code, text)
				}
			}
			t.Run("SAM-110 sync", func(t *testing.T) {
				result(t, call(t, "call", "forecast", `{"city":"Zürich"}`).Result, weather{"Zürich", 21})
			})
			t.Run("SAM-120 SAM-121 async", func(t *testing.T) {
				result(t, call(t, "task", "forecast", `{"city":"Bern"}`).Result, weather{"Bern", 21})
			})
			// The clients yield chunks and drop the final event.
			t.Run("SAM-140 SAM-141 stream", func(t *testing.T) {
				a := call(t, "stream", "forecast", `{"city":"Genf"}`)
				if a.Error != nil || len(a.Chunks) == 0 || !bytes.Contains(a.Chunks[0], []byte("looking")) {
					t.Errorf("%+v", a)
				}
			})
			t.Run("SAM-141 stream of a skill without chunks", func(t *testing.T) {
				a := call(t, "stream", "at once", `{"city":"Genf"}`)
				if a.Error != nil || len(a.Chunks) != 1 {
					t.Fatalf("%+v", a)
				}
				result(t, a.Chunks[0], weather{"Genf", 7})
			})
			// The error names the constraint in the words of the specification (§10).
			t.Run("SAM-090 content that does not fit", func(t *testing.T) {
				for _, what := range []string{"call", "task"} {
					refused(t, call(t, what, "forecast", `{"city":"Llanfairpwllgwyngyllgogerychwyrndrobwll"}`),
						samvad.CodeSchemaInvalid, "Field 'city' exceeds maxLength of 20")
				}
			})
			// JavaScript escapes half of a surrogate pair in a text that was cut within
			// a character.
			t.Run("a text cut within a character", func(t *testing.T) {
				a := call(t, "call", "forecast", `{"city":"cut \ud83d"}`)
				result(t, a.Result, weather{"cut \ufffd", 21})
			})
			t.Run("SAM-082 a skill that is unknown", func(t *testing.T) {
				refused(t, call(t, "call", "nothing", `{}`), samvad.CodeSkillNotFound, "skill")
			})
			t.Run("SAM-111 a handler that fails", func(t *testing.T) {
				a := call(t, "call", "fail", `{}`)
				refused(t, a, samvad.CodeAgentUnavailable, "")
				if a.Error != nil && strings.Contains(a.Error.Message, "secret") {
					t.Errorf("%+v", a.Error)
				}
			})
			t.Run("SAM-070 a key that nobody enrolled", func(t *testing.T) {
				refused(t, unknown.call(t, url, tsCall{"call", "forecast", `{"city":"Bern"}`, client.origin}),
					samvad.CodeAuthFailed, "")
			})
		})
	}
	t.Run("SAM-160 a page of an origin that is not configured", func(t *testing.T) {
		a := inBrowser.call(t, url, tsCall{"call", "forecast", `{"city":"Bern"}`, "https://other.example"})
		if a.Error == nil || !strings.Contains(a.Error.Message, "CORS") {
			t.Errorf("%+v", a)
		}
	})
}

// TestTypeScriptServer calls an agent of the unmodified TypeScript SDK through
// the hub, whose key that agent trusts (SAM-161).
func TestTypeScriptServer(t *testing.T) {
	scripts := typescript(t)
	n := start(t)
	hosting := n.SAMVAD().Hosting()
	at := serveScript(t, "node", filepath.Join(scripts, "samvad_server.mjs"), hosting.Identity, hosting.Key)
	enrol(t, n, "scripter", at.ID, at.URL, at.Key)
	caller, err := samvad.NewIdentity("agent://caller.test", "key-current")
	if err != nil {
		t.Fatal(err)
	}
	enrol(t, n, "caller", caller.ID(), "", base64.StdEncoding.EncodeToString(caller.Public()))
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	client := &samvad.Client{Identity: caller, HTTP: &http.Client{Timeout: 30 * time.Second},
		PollEvery: 20 * time.Millisecond}
	t.Cleanup(client.HTTP.CloseIdleConnections)
	call := samvad.Call{URL: n.Addresses().HTTP + "/agents/scripter", Skill: "repeat",
		Payload: []byte(`{"text":"ha","times":3}`)}
	right := func(t *testing.T, result []byte) {
		t.Helper()
		if want := `{"text":"hahaha","sender":"` + hosting.Identity + `"}`; !jsonEqual(result, want) {
			t.Errorf("got %s, want %s", result, want)
		}
	}
	t.Run("sync", func(t *testing.T) {
		r, err := client.Ask(t.Context(), call)
		if err != nil {
			t.Fatal(err)
		}
		right(t, r.Result)
	})
	t.Run("async", func(t *testing.T) {
		id, err := client.Send(t.Context(), call)
		if err != nil {
			t.Fatal(err)
		}
		task, err := client.Wait(t.Context(), call.URL, id)
		if err != nil {
			t.Fatal(err)
		}
		right(t, task.Result)
	})
	t.Run("stream", func(t *testing.T) {
		done := false
		for e, err := range client.Stream(t.Context(), call) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Done {
				done = true
				right(t, e.Result)
			}
		}
		if !done {
			t.Error("the stream did not end")
		}
	})
	// The agent takes the escape of half a character; in its answer U+FFFD replaces it,
	// which the delivery lists as a loss.
	t.Run("a text cut within a character", func(t *testing.T) {
		call := call
		call.Payload = []byte(`{"text":"cut \ud83d"}`)
		r, err := client.Ask(t.Context(), call)
		if err != nil {
			t.Fatal(err)
		}
		if want := `{"text":"cut ` + "\ufffd" + `","sender":"` + hosting.Identity + `"}`; !jsonEqual(r.Result, want) {
			t.Errorf("got %s, want %s", r.Result, want)
		}
	})
	t.Run("a handler that fails", func(t *testing.T) {
		call := call
		call.Skill = "fail"
		_, err := client.Ask(t.Context(), call)
		var e *samvad.Error
		if !errors.As(err, &e) || e.Code != samvad.CodeAgentUnavailable {
			t.Errorf("%v", err)
		}
	})
	t.Run("content that does not fit", func(t *testing.T) {
		call := call
		call.Payload = []byte(`{"text":7}`)
		_, err := client.Ask(t.Context(), call)
		var e *samvad.Error
		if !errors.As(err, &e) || e.Code != samvad.CodeSchemaInvalid || !strings.Contains(e.Text, "text") {
			t.Errorf("%v", err)
		}
	})
	t.Run("SAM-071 the key is another", func(t *testing.T) {
		other, err := samvad.NewIdentity(caller.ID(), "key-current")
		if err != nil {
			t.Fatal(err)
		}
		impostor := &samvad.Client{Identity: other, HTTP: client.HTTP}
		_, err = impostor.Ask(t.Context(), call)
		var e *samvad.Error
		if !errors.As(err, &e) || e.Code != samvad.CodeAuthFailed {
			t.Errorf("%v", err)
		}
	})
}
