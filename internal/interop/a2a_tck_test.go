package interop

import (
	"cmp"
	"context"
	"encoding/xml"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge/a2a"
	"github.com/parley-hub/parley/node"
)

// A tckKit is one version of the compatibility kit of A2A.
type tckKit struct {
	version  string
	env      string // names a checkout
	branch   string
	form     string // of the hub's card
	command  func(url string) []string
	expected map[string]string // why checks do not pass, by a part of their name
}

var tckKits = []tckKit{
	{version: "1.0", env: "PARLEY_TCK", branch: "1.0-dev", form: "1.0",
		command: func(host string) []string {
			return []string{"run_tck.py", "--sut-host", host, "--transport", "jsonrpc,http_json", "--",
				"--webhook-host=127.0.0.1"}
		}},
	{version: "0.3", env: "PARLEY_TCK_03", branch: "0.3.x", form: "hybrid",
		command: func(host string) []string {
			return []string{"run_tck.py", "--sut-url", host + "/a2a/tck", "--category", "mandatory", "--transports", "jsonrpc"}
		}},
}

const tckIntroduction = `# The A2A compatibility kit

Written by ` + "`internal/interop/tck.sh`" + ` from a run of the official kit (github.com/a2aproject/a2a-tck) against an agent
of the hub that is open to guests. The kit's agent acts on fixed message ids; it exists in the tests only.
`

// TestA2AKit runs the official compatibility kit against an agent of the hub (A2A-111), where
// PARLEY_TCK and PARLEY_TCK_03 name checkouts of its branches, and PARLEY_TCK_PYTHON a Python
// with their requirements; tck.sh does all three. PARLEY_TCK_REPORT names the page to write.
func TestA2AKit(t *testing.T) {
	var page strings.Builder
	page.WriteString(tckIntroduction)
	ran := false
	for _, kit := range tckKits {
		t.Run(kit.version, func(t *testing.T) {
			checkout := os.Getenv(kit.env)
			if checkout == "" {
				t.Skipf("%s names no checkout of a2a-tck, branch %s; internal/interop/tck.sh takes one", kit.env, kit.branch)
			}
			ran = true
			kit.run(t, checkout, &page)
		})
	}
	if path := os.Getenv("PARLEY_TCK_REPORT"); path != "" && ran {
		if err := os.WriteFile(path, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func (k *tckKit) run(t *testing.T, checkout string, page *strings.Builder) {
	python, err := exec.LookPath(cmp.Or(os.Getenv("PARLEY_TCK_PYTHON"), "python3"))
	if err != nil {
		t.Fatal(err)
	}
	// The kit writes into its folder.
	dir := filepath.Join(t.TempDir(), "kit")
	if err := os.CopyFS(dir, os.DirFS(checkout)); err != nil {
		t.Fatal(err)
	}
	commit, err := exec.Command("git", "-C", checkout, "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		t.Fatalf("%s is no checkout: %v", checkout, err)
	}
	n := k.hub(t)
	command := k.command(n.Addresses().HTTP)
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Minute)
	defer stop()
	report := filepath.Join(dir, "parley.xml")
	c := exec.CommandContext(ctx, python, command...)
	c.Dir = dir
	c.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "PYTEST_ADDOPTS=--junitxml="+report)
	out, failed := c.CombinedOutput() // with failures of the kit it is no success; the report says which
	b, err := os.ReadFile(filepath.Join(dir, "reports", "junitreport.xml"))
	if os.IsNotExist(err) {
		b, err = os.ReadFile(report)
	}
	if err != nil {
		t.Fatalf("the kit wrote no report: %v, %v\n%s", err, failed, out)
	}
	cases, err := tckCases(b)
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	fmt.Fprintf(page, "\n## %s\n\nCommit %s of the branch `%s`:\n\n```sh\npython %s\n```\n", k.version,
		strings.TrimSpace(string(commit)), k.branch, strings.ReplaceAll(strings.Join(command, " "), n.Addresses().HTTP,
			"http://HUB"))
	var rows []string
	skips := map[string]int{} // by reason
	for _, x := range cases {
		state, why := x.state()
		counts[state]++
		explained := k.explain(x.name())
		switch {
		case state == "skipped":
			skips[cell(cmp.Or(explained, why))]++
		case state != "passed":
			rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |", cell(x.name()), state, cell(cmp.Or(explained, why))))
		}
		if state == "failed" && explained == "" {
			t.Errorf("%s failed: %s", x.name(), why)
		}
	}
	slices.Sort(rows)
	fmt.Fprintf(page, "\n%d passed, %d failed, %d skipped, %d failed as the kit expects of optional checks.\n",
		counts["passed"], counts["failed"], counts["skipped"], counts["optional"])
	if len(rows) > 0 {
		fmt.Fprintf(page, "\n| Check | State | Why |\n|---|---|---|\n%s\n", strings.Join(rows, "\n"))
	}
	if len(skips) > 0 {
		page.WriteString("\n| Skipped | Why |\n|---:|---|\n")
	}
	for _, why := range slices.Sorted(maps.Keys(skips)) {
		fmt.Fprintf(page, "| %d | %s |\n", skips[why], why)
	}
	t.Logf("%s: %v", k.version, counts)
	if counts["passed"] == 0 {
		t.Errorf("nothing passed:\n%s", out)
	}
}

// explain gives the reason for which a check does not pass.
func (k *tckKit) explain(name string) string {
	for end, why := range k.expected {
		if strings.Contains(name, end) {
			return why
		}
	}
	return ""
}

// A tckCase is one check of the kit, in the form of JUnit.
type tckCase struct {
	Class   string `xml:"classname,attr"`
	Name    string `xml:"name,attr"`
	Failure *struct {
		Message string `xml:"message,attr"`
	} `xml:"failure"`
	Error *struct {
		Message string `xml:"message,attr"`
	} `xml:"error"`
	Skipped *struct {
		Type    string `xml:"type,attr"`
		Message string `xml:"message,attr"`
	} `xml:"skipped"`
}

// name is the check's class and name.
func (c *tckCase) name() string {
	return c.Class[strings.LastIndexByte(c.Class, '.')+1:] + "." + c.Name
}

// cell makes a text one of a table.
func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

// state gives passed, failed, skipped or optional, and the kit's words.
func (c *tckCase) state() (state, why string) {
	line := func(s string) string {
		first, _, _ := strings.Cut(s, "\n")
		return first
	}
	switch {
	case c.Failure != nil:
		return "failed", line(c.Failure.Message)
	case c.Error != nil:
		return "failed", line(c.Error.Message)
	case c.Skipped != nil && c.Skipped.Type == "pytest.xfail":
		return "optional", line(c.Skipped.Message)
	case c.Skipped != nil && (strings.HasPrefix(c.Skipped.Message, "Expected task state") ||
		strings.HasPrefix(c.Skipped.Message, "Streaming call failed")):
		return "failed", line(c.Skipped.Message) // the kit skips what the agent made impossible
	case c.Skipped != nil:
		return "skipped", line(c.Skipped.Message)
	}
	return "passed", ""
}

func tckCases(report []byte) ([]tckCase, error) {
	var suites struct {
		Suites []struct {
			Cases []tckCase `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(report, &suites); err != nil {
		return nil, err
	}
	var out []tckCase
	for _, s := range suites.Suites {
		out = append(out, s.Cases...)
	}
	return out, nil
}

// hub starts a hub with the kit's agent, which is open to guests, and has its card at the root.
func (k *tckKit) hub(t *testing.T) *node.Node {
	c := node.Config{Data: filepath.Join(t.TempDir(), "data"), Durability: "memory",
		Listen:  node.Listen{HTTP: "127.0.0.1:0"},
		Policy:  node.Policy{Assurance: "unsigned"},
		Network: node.Network{Allow: []string{"loopback"}},
		Limits:  node.Limits{SenderRate: -1},
		A2A:     node.A2A{Root: "tck", Card: k.form, PlainPush: true}}
	n, err := node.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), time.Minute)
		defer stop()
		if err := n.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	skill := parley.RawSkill("tck", tckAgent, parley.Describe("Compatibility kit", "Acts on the ids of messages."))
	if err := n.Handle(parley.Agent{Name: "tck", Title: "Compatibility kit", Version: "1.0.0",
		Description: "Acts on the ids of messages.", Exposed: []string{"a2a"}}, skill); err != nil {
		t.Fatal(err)
	}
	n.A2A().SetAgent("tck", a2a.AgentSettings{Guests: true})
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return n
}

// tckAgent does what the kit's scenarios want of a message with an id.
func tckAgent(ctx context.Context, m *parley.Message, r parley.Replier) error {
	id := m.Trace.Foreign["a2a.messageId"]
	starts := func(prefix string) bool { return strings.HasPrefix(id, prefix) }
	file := parley.Part{MediaType: "text/plain", Name: "output.txt", Data: []byte("file")}
	if starts("tck-stream") || starts("test-resubscribe-message-id") {
		if err := r.Progress("working"); err != nil {
			return err
		}
	}
	switch {
	case starts("tck-artifact-text"):
		return r.Reply(parley.Text("Generated text content"))
	case starts("tck-artifact-file-url"):
		file.Data, file.URI = nil, "https://example.com/output.txt"
		return r.Reply(file)
	case starts("tck-artifact-file"), starts("tck-stream-artifact-file"):
		return r.Reply(file)
	case starts("tck-artifact-data"):
		return r.Reply(parley.Part{MediaType: "application/json", Data: []byte(`{"key":"value","count":42}`)})
	case starts("tck-message-response"):
		return r.Reply(parley.Text("Direct message response"))
	case starts("tck-input-required"):
		answer, err := r.(parley.Prompter).NeedInput(parley.Text("What else?"))
		if err != nil {
			return err
		}
		return r.Reply(answer.Parts...)
	case starts("tck-reject-task"):
		return parley.Refuse(parley.Rejected, "rejected")
	case starts("tck-stream-001"):
		return r.Reply(parley.Text("Stream hello from TCK"))
	case starts("tck-stream-003"):
		return r.Reply(parley.Text("Stream task lifecycle"))
	case starts("tck-stream-ordering-001"):
		return r.Reply(parley.Text("Ordered output"))
	case starts("tck-stream-artifact-text"):
		return r.Reply(parley.Text("Streamed text content"))
	case starts("tck-stream-artifact-chunked"):
		if err := r.Chunk(parley.Text("chunk-1 ")); err != nil {
			return err
		}
		return r.Reply(parley.Text("chunk-1 "), parley.Text("chunk-2"))
	case starts("test-resubscribe-message-id"), !starts("tck-"):
		// The kit wants time to look at the task: twice its streaming timeout of two seconds. The
		// checks of 0.3 have other ids, and continue, cancel and read open tasks.
		open := time.NewTimer(tckOpen)
		defer open.Stop()
		select {
		case <-open.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return r.Reply(parley.Text("Hello from TCK"))
}

// tckOpen is how long the kit's agent keeps a task open.
const tckOpen = 5 * time.Second
