package interop

import (
	"bytes"
	"cmp"
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge/a2a"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
)

// A tckKit is one version of the compatibility kit of A2A.
type tckKit struct {
	version  string
	env      string // names a checkout
	branch   string
	form     string // of the hub's card
	command  func(url string) []string
	alone    func(url, check string) []string // of one check; nil: the kit uses no id twice
	setups   map[string]tckSetup              // that checks need, by a part of their name
	expected map[string]string                // why checks do not pass, by a part of their name
}

// A tckSetup is how the hub is set up for a check.
type tckSetup struct {
	message bool // the agent answers with a Message
	token   bool // the kit has a token of the hub
}

// tckNeeds are the transports and the webhooks' host for the kit of 1.0.
var tckNeeds = []string{"--transport=jsonrpc,http_json", "--webhook-host=127.0.0.1"}

var tckKits = []tckKit{
	{version: "1.0", env: "PARLEY_TCK", branch: "1.0-dev", form: "1.0",
		command: func(host string) []string {
			return []string{"run_tck.py", "--sut-host", host, tckNeeds[0], "--", tckNeeds[1]}
		},
		alone: func(host, check string) []string {
			return append([]string{"-m", "pytest", "--sut-host=" + host, check}, tckNeeds...)
		},
		setups: map[string]tckSetup{"TestMessageResponse": {message: true}, "CARD-EXT-": {token: true}},
		expected: map[string]string{"TestHistoryOrdering": tckOneID, "TestHistoryContent": tckOneID,
			"test_last_modified_present": tckNoTime}},
	{version: "0.3", env: "PARLEY_TCK_03", branch: "0.3.x", form: "hybrid",
		command: func(host string) []string {
			return []string{"run_tck.py", "--sut-url", host + "/a2a/tck", "--category", "mandatory", "--transports", "jsonrpc"}
		}},
}

const tckOneID = "optional (SHOULD): the check sends three messages with one `messageId` and other content to " +
	"one task; " +
	"the hub refuses the second"

const tckNoTime = "optional (MAY): cards have an `ETag`; the hubs of a cluster make each card of the directory, " +
	"and share no " +
	"time at which it changed"

const tckIntroduction = `# The A2A compatibility kit

Written by ` + "`internal/interop/tck.sh`" + ` from a run of the official kit (github.com/a2aproject/a2a-tck) against an
agent of the hub that is open to guests. The kit's agent acts on fixed message ids; it exists in the tests only.
`

const tckAlone = `
In one run the kit uses the same message id for messages with other content, and over both transports; the hub
refuses the second. It also cancels the task that later checks want open. So the checks that did not
pass in the common run, %d, ran again, each in a run of its own, and what follows is what they then gave. Of these,
` + "`TestMessageResponse`" + ` ran against an agent with ` + "`reply = \"message\"`" + `, because the others want a task; and the checks
` + "`CARD-EXT-…`" + ` ran through a proxy that adds a token of the hub, because the extended card is for callers that the hub
knows, and the kit cannot send credentials. The kit's webhook at example.com has the address 127.0.0.1 in these runs.
`

// TestA2AKit runs the official compatibility kit against an agent of the hub (A2A-111), where
// PARLEY_TCK and PARLEY_TCK_03 name checkouts of its branches, and PARLEY_TCK_PYTHON a Python
// with their requirements; tck.sh does all three. PARLEY_TCK_REPORT names the page to write.
func TestA2AKit(t *testing.T) {
	tckNames(t)
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
	at := k.hub(t, tckSetup{})
	command := k.command(at)
	cases, out := tckRun(t, python, dir, command)
	again := 0
	if k.alone != nil {
		setups := map[tckSetup]string{{}: at}
		for i, x := range cases {
			state, _ := x.state()
			if state == "passed" || state == "skipped" {
				continue
			}
			setup := k.setup(x.name())
			if setups[setup] == "" {
				setups[setup] = k.hub(t, setup)
			}
			one, out := tckRun(t, python, dir, k.alone(setups[setup], x.node()))
			if len(one) != 1 || one[0].name() != x.name() {
				t.Fatalf("%s alone: %d checks\n%s", x.name(), len(one), out)
			}
			cases[i] = one[0]
			again++
		}
	}
	counts := map[string]int{}
	fmt.Fprintf(page, "\n## %s\n\nCommit %s of the branch `%s`:\n\n"+
		"<!-- docs: foreign internal/interop/a2a_tck_test.go -->\n```sh\npython %s\n```\n", k.version,
		strings.TrimSpace(string(commit)), k.branch, strings.ReplaceAll(strings.Join(command, " "), at,
			"http://HUB"))
	var rows []string
	skips := map[string]int{} // by reason
	for _, x := range cases {
		state, why := x.state()
		explained := k.explain(x.name())
		if explained != "" && x.Skipped != nil {
			state = "skipped"
		}
		counts[state]++
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
	if again > 0 {
		fmt.Fprintf(page, tckAlone, again)
	}
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

// tckRun runs a command of the kit in its folder, and gives its checks and what it printed.
func tckRun(t *testing.T, python, dir string, command []string) ([]tckCase, []byte) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Minute)
	defer stop()
	report := filepath.Join(t.TempDir(), "parley.xml")
	written := filepath.Join(dir, "reports", "junitreport.xml")
	if err := os.Remove(written); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	c := exec.CommandContext(ctx, python, command...)
	c.Dir = dir
	c.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "PYTEST_ADDOPTS=--junitxml="+report)
	out, failed := c.CombinedOutput() // with failures of the kit it is no success; the report says which
	b, err := os.ReadFile(written)
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
	return cases, out
}

// setup gives the hub that a check needs.
func (k *tckKit) setup(name string) tckSetup {
	for part, s := range k.setups {
		if strings.Contains(name, part) {
			return s
		}
	}
	return tckSetup{}
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

// node is the check's address in pytest.
func (c *tckCase) node() string {
	path, class := c.Class, ""
	if i := strings.LastIndexByte(path, '.'); strings.HasPrefix(path[i+1:], "Test") {
		path, class = path[:i], "::"+path[i+1:]
	}
	return strings.ReplaceAll(path, ".", "/") + ".py" + class + "::" + c.Name
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
		strings.HasPrefix(c.Skipped.Message, "Follow-up send_message failed") ||
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

// hub starts a hub with the kit's agent, which is open to guests, and has its card at the root. It
// gives the URL for the kit.
func (k *tckKit) hub(t *testing.T, setup tckSetup) string {
	c := node.Config{Data: filepath.Join(t.TempDir(), "data"), Durability: "memory",
		Listen:  node.Listen{HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"},
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
		// The kit leaves questions of its agent open.
		for _, d := range n.Hub().Journal().Deliveries(journal.Filter{To: "tck"}) {
			_, err := n.Hub().Accept(ctx, hub.Submission{Scope: "test", Message: &parley.Message{Kind: parley.Cancel,
				From: d.From, To: d.To, InReplyTo: d.Message, Origin: parley.Origin{Protocol: "a2a", Peer: d.From}}})
			if err != nil {
				t.Error(err)
			}
		}
		if err := n.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	skill := parley.RawSkill("tck", tckAgent, parley.Describe("Compatibility kit", "Acts on the ids of messages."))
	if err := n.Handle(parley.Agent{Name: "tck", Title: "Compatibility kit", Version: "1.0.0",
		Description: "Acts on the ids of messages.", Exposed: []string{"a2a"}}, skill); err != nil {
		t.Fatal(err)
	}
	n.A2A().SetAgent("tck", a2a.AgentSettings{Guests: true, Message: setup.message})
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if setup.token {
		return tckProxy(t, n.Addresses().HTTP, a2aCaller(t, n, "kit"))
	}
	return n.Addresses().HTTP
}

// tckProxy starts a proxy that adds a token, and gives its URL. The cards name it too.
func tckProxy(t *testing.T, hub, token string) string {
	t.Helper()
	at, err := url.Parse(hub)
	if err != nil {
		t.Fatal(err)
	}
	var s *httptest.Server
	proxy := &httputil.ReverseProxy{FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(at)
			r.Out.Header.Set("Authorization", "Bearer "+token)
		},
		ModifyResponse: func(r *http.Response) error {
			if !strings.HasSuffix(r.Request.URL.Path, a2a.CardPath) {
				return nil
			}
			card, err := io.ReadAll(r.Body)
			if err != nil {
				return err
			}
			card = bytes.ReplaceAll(card, []byte(hub), []byte(s.URL))
			r.Body = io.NopCloser(bytes.NewReader(card))
			r.ContentLength = int64(len(card))
			r.Header.Set("Content-Length", strconv.Itoa(len(card)))
			return nil
		}}
	s = httptest.NewServer(proxy)
	t.Cleanup(s.Close)
	return s.URL
}

// tckNames has every name resolve to 127.0.0.1 until the test ends: the kit registers webhooks at
// example.com, which the hub looks up.
func tckNames(t *testing.T) {
	t.Helper()
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	before := net.DefaultResolver
	t.Cleanup(func() {
		net.DefaultResolver = before
		l.Close()
	})
	go func() {
		b := make([]byte, 1<<10)
		for {
			n, from, err := l.ReadFrom(b)
			if err != nil {
				return // closed
			}
			var m dnsmessage.Message
			if m.Unpack(b[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			m.Response, m.Additionals = true, nil
			if q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 60},
					Body: &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}}}}
			}
			if out, err := m.Pack(); err == nil {
				_, _ = l.WriteTo(out, from) // the resolver asks again
			}
		}
	}()
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", l.LocalAddr().String())
	}}
}

// tckAgent does what the kit's scenarios want of a message with an id.
func tckAgent(ctx context.Context, m *parley.Message, r parley.Replier) error {
	id := m.Trace.Foreign["a2a.messageId"]
	starts := func(prefix string) bool { return strings.HasPrefix(id, prefix) }
	file := parley.Part{MediaType: "text/plain", Name: "output.txt", Data: []byte("file")}
	if starts("tck-stream") {
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
	case !starts("tck-"): // those of 0.3, which continues, cancels and reads open tasks
		for {
			if _, err := r.(parley.Prompter).NeedInput(parley.Text("What else?")); err != nil {
				return err
			}
		}
	}
	return r.Reply(parley.Text("Hello from TCK"))
}
