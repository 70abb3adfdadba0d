package interop

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge/mcp"
	"github.com/parley-hub/parley/node"
)

// mcpSuites are the versions of the official conformance suite of MCP, and their packages. The requirements of a
// revision are only in the newer one.
var mcpSuites = map[string]string{
	"0.2.0-alpha.12": "@modelcontextprotocol/conformance",
	"0.1.16":         "conformance-0.1",
}

// mcpCheck is a check of the conformance suite. Status is SUCCESS, FAILURE, WARNING, SKIPPED or INFO.
type mcpCheck struct {
	Scenario                              string `json:"-"`
	ID, Description, Status, ErrorMessage string
}

// mcpConformance runs a command of the conformance suite, and gives its checks and what it printed. Passed is what
// the suite says: nothing that it scores has failed that the file of expected failures does not name, and all of
// these have.
func mcpConformance(t *testing.T, version string, command ...string) (checks []mcpCheck, out string, passed bool) {
	t.Helper()
	node := mcpNode(t, mcpFolder(t))
	if node == nil {
		t.Skip("PARLEY_MCP_SDKS has no conformance suite; setup.sh has said why")
	}
	suite := mcpSuites[version]
	node.version(t, suite, version)
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	defer stop()
	results := t.TempDir()
	args := append([]string{filepath.Join(node.modules, suite, "dist", "index.js")}, command...)
	c := exec.CommandContext(ctx, node.program, append(args, "-o", results)...)
	c.Dir = t.TempDir()
	b, err := c.CombinedOutput()
	var failed *exec.ExitError
	if err != nil && (!errors.As(err, &failed) || failed.ExitCode() != 1) {
		t.Fatalf("%v\n%s", err, b)
	}
	checks, readErr := mcpChecks(os.DirFS(results))
	if readErr != nil || len(checks) == 0 {
		t.Fatalf("the suite wrote %d checks: %v\n%s", len(checks), readErr, b)
	}
	return checks, string(bytes.TrimSpace(b)), err == nil
}

// TestMCPConformanceSuite runs the suite against a server that has none of its tools, without a hub.
func TestMCPConformanceSuite(t *testing.T) {
	for version := range mcpSuites {
		t.Run(version, func(t *testing.T) {
			node := mcpNode(t, mcpFolder(t))
			if node == nil {
				t.Skip("PARLEY_MCP_SDKS has no packages for Node; setup.sh has said why")
			}
			url := a2aServer(t, node.program, filepath.Join(nodeScripts(t, node.modules), "mcp_server.mjs"), "1", "http")
			known := filepath.Join(t.TempDir(), "known.yaml")
			if err := os.WriteFile(known, []byte("server:\n  - tools-call-image\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, x := range []struct {
				scenario, status string
				known, passed    bool
			}{
				{"tools-list", "SUCCESS", false, true},
				{"tools-call-image", "FAILURE", false, false},
				{"tools-call-image", "FAILURE", true, true},
				{"tools-list", "SUCCESS", true, true},
			} {
				command := []string{"server", "--url", url, "--scenario", x.scenario}
				if x.known {
					command = append(command, "--expected-failures", known)
				}
				checks, out, passed := mcpConformance(t, version, command...)
				if i := slices.IndexFunc(checks, func(c mcpCheck) bool { return c.ID == x.scenario }); i < 0 ||
					checks[i].Scenario != x.scenario || checks[i].Status != x.status || passed != x.passed {
					t.Errorf("%+v: passed %t, %+v\n%s", x, passed, checks, out)
				}
			}
		})
	}
}

// subject has the tools that the conformance suite calls by name, as far as an agent of a hub can have them. It waits
// for answers until released.
func subject(released <-chan struct{}) parley.Agent {
	var skills []parley.SkillSpec
	does := func(name string, f func(ctx context.Context, r parley.Replier) error) {
		skills = append(skills, skill(name,
			func(ctx context.Context, _ struct{}, r parley.Replier) error { return f(ctx, r) }))
	}
	gives := func(name string, parts ...parley.Part) {
		does(name, func(_ context.Context, r parley.Replier) error { return r.Reply(parts...) })
	}
	asks := func(name string, questions ...string) {
		does(name, func(_ context.Context, r parley.Replier) error {
			for _, schema := range questions {
				if err := askForm(released, r, "Please answer", schema); err != nil {
					return err
				}
			}
			return r.Reply(parley.Text("state-ok"))
		})
	}
	image := parley.Part{MediaType: "image/png", Data: []byte("\x89PNG\r\n\x1a\n")}
	gives("test_simple_text", parley.Text("This is a simple text response for testing."))
	gives("test_image_content", image)
	gives("test_audio_content", parley.Part{MediaType: "audio/wav", Data: []byte("RIFF\x04\x00\x00\x00WAVE")})
	gives("test_embedded_resource", parley.Part{MediaType: "text/csv", Name: "a.csv", Data: []byte("a,b\n")})
	gives("test_multiple_content_types", parley.Text("Multiple content types test:"), image,
		parley.Part{MediaType: "text/csv", Name: "a.csv", Data: []byte("a,b\n")})
	does("test_error_handling", func(context.Context, parley.Replier) error {
		return parley.Fail(parley.HandlerFailed, nil, "This tool intentionally returns an error for testing")
	})
	does("test_tool_with_progress", func(ctx context.Context, r parley.Replier) error {
		for _, text := range []string{"begun", "more", "half", "almost", "done"} {
			if err := r.Progress(text); err != nil {
				return err
			}
			pause(ctx)
		}
		return r.Reply(parley.Text("progress was made"))
	})
	skills = append(skills, skill("test_elicitation",
		func(_ context.Context, in message, r parley.Replier) error {
			if err := askForm(released, r, in.Message, `{"type":"object","properties":{"username":{"type":"string"},`+
				`"email":{"type":"string"}},"required":["username","email"]}`); err != nil {
				return err
			}
			return r.Reply(parley.Text("User response: accept"))
		}))
	asks("test_elicitation_sep1034_defaults", `{"type":"object","properties":{
		"name":{"type":"string","default":"John Doe"},"age":{"type":"integer","default":30},
		"score":{"type":"number","default":95.5},"verified":{"type":"boolean","default":true},
		"status":{"type":"string","enum":["active","inactive","pending"],"default":"active"}}}`)
	asks("test_elicitation_sep1330_enums", `{"type":"object","properties":{
		"untitledSingle":{"type":"string","enum":["option1","option2","option3"]},
		"titledSingle":{"type":"string","oneOf":[{"const":"value1","title":"First"},{"const":"value2","title":"Second"}]},
		"legacyEnum":{"type":"string","enum":["opt1","opt2"],"enumNames":["Option One","Option Two"]},
		"untitledMulti":{"type":"array","items":{"type":"string","enum":["option1","option2"]}},
		"titledMulti":{"type":"array","items":{"anyOf":[{"const":"value1","title":"First"},
			{"const":"value2","title":"Second"}]}}}}`)
	const name, ok = `{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}`,
		`{"type":"object","properties":{"ok":{"type":"boolean"}},"required":["ok"]}`
	asks("test_input_required_result_elicitation", name)
	asks("test_input_required_result_request_state", ok)
	asks("test_input_required_result_tampered_state", ok)
	asks("test_input_required_result_multi_round", name,
		`{"type":"object","properties":{"color":{"type":"string"}},"required":["color"]}`)
	asks("test_input_required_result_capabilities", ok)
	skills = append(skills, parley.RawSkill("json_schema_2020_12_tool",
		func(_ context.Context, _ *parley.Message, r parley.Replier) error { return r.Reply(parley.Text("ok")) },
		func(s *parley.SkillSpec) {
			s.Input = json.RawMessage(`{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object",
				"$defs":{"address":{"$anchor":"addressDef","type":"object","properties":{"street":{"type":"string"},
				"city":{"type":"string"}}}},"properties":{"name":{"type":"string"},"address":{"$ref":"#/$defs/address"},
				"contactMethod":{"type":"string","enum":["phone","email"]},"phone":{"type":"string"},
				"email":{"type":"string"}},"allOf":[{"anyOf":[{"required":["phone"]},{"required":["email"]}]}],
				"if":{"properties":{"contactMethod":{"const":"phone"}},"required":["contactMethod"]},
				"then":{"required":["phone"]},"else":{"required":["email"]},"additionalProperties":false}`)
		}))
	return parley.Agent{Name: "subject", Exposed: parley.Everywhere, Skills: skills}
}

type message struct {
	Message string `json:"message"`
}

// askForm asks the requester for what a schema says.
func askForm(released <-chan struct{}, r parley.Replier, text, schema string) error {
	answered := make(chan error, 1)
	go func() {
		_, err := r.(parley.Prompter).NeedInput(parley.Text(text), parley.Part{MediaType: "application/json",
			Data: []byte(schema)})
		answered <- err
	}()
	select {
	case err := <-answered:
		return err
	case <-released: // the suite leaves questions open
		return errors.New("nobody answers")
	}
}

// TestMCPConformanceServer runs the suite's requirements for servers against a hub (MCP-110). The suite has no token:
// the agent is open to guests.
func TestMCPConformanceServer(t *testing.T) {
	for _, revision := range []string{"2026-07-28", "2025-11-25"} {
		t.Run("MCP-110 "+revision, func(t *testing.T) {
			mcpFolder(t)
			released := make(chan struct{})
			n := hubWith(t, node.Config{MCP: node.MCP{Guests: []string{"subject"}}}, subject(released))
			t.Cleanup(func() { close(released) }) // before the hub ends
			mcpRequirements(t, revision, "server", "--url", n.Addresses().Local+mcp.Base+"/agents/subject")
		})
	}
}

// mcpRequirements fails the test unless the suite finds what a revision requires of a server or a client, but for what
// the revision's file of expected failures names. It gives what the suite printed.
func mcpRequirements(t *testing.T, revision, role string, args ...string) string {
	t.Helper()
	known, err := filepath.Abs("testdata/mcp-conformance-" + revision + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	checks, out, passed := mcpConformance(t, "0.2.0-alpha.12", append([]string{role, "--requirements", revision,
		"--expected-failures", known}, args...)...)
	_, total, _ := strings.Cut(out, "\nTotal: ")
	total, _, _ = strings.Cut(total, "\n")
	t.Log(total)
	if passed {
		return out
	}
	for _, c := range checks {
		if c.Status == "FAILURE" || c.Status == "WARNING" {
			t.Logf("%s:%s %s: %s", c.Scenario, c.ID, c.Status, c.ErrorMessage)
		}
	}
	t.Error(out[max(0, strings.LastIndex(out, "=== ")):])
	return out
}

// mcpResults is the end of a folder of results.
var mcpResults = regexp.MustCompile(`-\d{4}-\d\d-\d\dT[\d-]+Z$`)

// mcpChecks reads the folder of results, which has a folder for each scenario.
func mcpChecks(results fs.FS) ([]mcpCheck, error) {
	var out []mcpCheck
	return out, fs.WalkDir(results, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "checks.json" {
			return err
		}
		b, err := fs.ReadFile(results, path)
		if err != nil {
			return err
		}
		var checks []mcpCheck
		if err := json.Unmarshal(b, &checks); err != nil {
			return err
		}
		scenario := strings.TrimPrefix(strings.TrimSuffix(path, "/checks.json"), "server-")
		for _, c := range checks {
			c.Scenario = mcpResults.ReplaceAllString(scenario, "")
			out = append(out, c)
		}
		return nil
	})
}
