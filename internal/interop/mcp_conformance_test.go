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
