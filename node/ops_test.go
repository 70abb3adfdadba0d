package node

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/hub"
)

var everything = admin.Actor{Name: "test", Role: admin.Administer, Speak: []string{"**"}}

// running starts a hub in memory with an agent "echo" of its own.
func running(t *testing.T, c Config) *Node {
	t.Helper()
	ctx := context.Background()
	if c.Durability == "" {
		c.Durability = "memory"
	}
	if c.Listen.Admin == "" && !c.AdminAPI {
		c.Listen.HTTP, c.Listen.Admin = "127.0.0.1:0", "127.0.0.1:0"
	}
	n, err := Open(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	err = n.Handle(parley.Agent{Name: "echo", Exposed: parley.Everywhere},
		parley.Skill("say", func(_ context.Context, _ *parley.Message, v map[string]any) (map[string]any, error) {
			if v["fail"] != nil {
				return nil, parley.Refuse(parley.Rejected, "as was asked for")
			}
			return v, nil
		}))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Start(ctx); err != nil {
		t.Fatal(err)
	}
	return n
}

func ask(t *testing.T, n *Node, body string) (admin.Receipt, error) {
	t.Helper()
	return n.Admin().Ask(context.Background(), everything, admin.Send{To: "echo", JSON: json.RawMessage(body)})
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	http.DefaultClient.CloseIdleConnections()
	return resp.StatusCode, string(b)
}

// value reads one sample of the node's registry.
func value(t *testing.T, n *Node, name string, labels ...string) float64 {
	t.Helper()
	families, err := n.metrics.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.Metric {
			if matches(m, labels) {
				switch {
				case m.Counter != nil:
					return m.Counter.GetValue()
				case m.Gauge != nil:
					return m.Gauge.GetValue()
				case m.Histogram != nil:
					return float64(m.Histogram.GetSampleCount())
				}
			}
		}
	}
	return 0
}

func matches(m *dto.Metric, labels []string) bool {
	for i := 0; i < len(labels); i += 2 {
		if !slices.ContainsFunc(m.Label, func(l *dto.LabelPair) bool {
			return l.GetName() == labels[i] &&
				l.GetValue() == labels[i+1]
		}) {
			return false
		}
	}
	return true
}

func TestMetrics(t *testing.T) {
	n := running(t, Config{})
	for range 3 {
		if _, err := ask(t, n, `{"a":1}`); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := ask(t, n, `{"fail":1}`); err != nil || r.Reply == nil || r.Reply.Error == nil {
		t.Fatalf("%+v, %v", r, err)
	}
	n.Hub().Refuse(hub.Refusal{Protocol: "samvad", Step: "signature", Code: parley.Unauthenticated})
	for _, c := range []struct {
		name   string
		labels []string
		want   float64
	}{
		{"parley_messages_total", []string{"protocol", "api", "kind", "request", "outcome", "accepted"}, 4},
		{"parley_messages_total", []string{"protocol", "go", "kind", "response"}, 3},
		{"parley_messages_total", []string{"protocol", "go", "kind", "error"}, 1},
		{"parley_attempts_total", []string{"protocol", "go", "kind", "request", "outcome", "answered"}, 4},
		{"parley_delivery_states_total", []string{"state", "answered"}, 4},
		{"parley_handler_calls_total", []string{"outcome", "ok"}, 3},
		{"parley_handler_calls_total", []string{"outcome", "failed"}, 1},
		{"parley_handlers_active", nil, 0},
		{"parley_answer_seconds", nil, 4},
		{"parley_attempt_seconds", []string{"protocol", "go"}, 4},
		{"parley_refusals_total", []string{"protocol", "samvad", "step", "signature", "code", "unauthenticated"}, 1},
		{"parley_ready", nil, 1},
		{"parley_deliveries_open", nil, 0},
		{"parley_journal_reopened_total", nil, 0},
	} {
		if got := value(t, n, c.name, c.labels...); got != c.want {
			t.Errorf("%s%v = %g, want %g", c.name, c.labels, got, c.want)
		}
	}
	status, text := get(t, n.Addresses().Admin+"/metrics")
	for _, want := range []string{"go_goroutines", "process_open_fds", "parley_build_info{",
		"# HELP parley_messages_total"} {
		if status != 200 || !strings.Contains(text, want) {
			t.Errorf("%d: %q is missing", status, want)
		}
	}
}

// TestMetricsStayFew: guests cannot make series.
func TestMetricsStayFew(t *testing.T) {
	n := running(t, Config{})
	count := func() int {
		families, err := n.metrics.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		sum := 0
		for _, f := range families {
			sum += len(f.Metric)
		}
		return sum
	}
	before := count()
	for i := range 2000 {
		n.Hub().Refuse(hub.Refusal{Protocol: "samvad", Source: strings.Repeat("1", i%60), Claim: "x", Step: "s" +
			strings.Repeat("t", i), Code: "c"})
	}
	if after := count(); after-before > 513 {
		t.Errorf("%d series, %d before", after, before)
	}
}

func TestHealthAndReadiness(t *testing.T) {
	n := running(t, Config{})
	base := n.Addresses().Admin
	for _, path := range []string{"/health", "/ready", "/v1/health", "/v1/ready"} {
		if status, text := get(t, base+path); status != 200 {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	n.draining.Store(true)
	if status, _ := get(t, base+"/ready"); status != 503 {
		t.Errorf("draining, and ready: %d", status)
	}
	if status, _ := get(t, base+"/health"); status != 200 {
		t.Errorf("draining, and not alive: %d", status)
	}
	n.draining.Store(false)
	n.down.Store(true)
	if status, _ := get(t, base+"/ready"); status != 503 {
		t.Errorf("a listener is down, and ready: %d", status)
	}
	n.down.Store(false)
}

// TestDrainTellsItsProgress: attempts in flight end, and the log counts them.
func TestDrainTellsItsProgress(t *testing.T) {
	var log logBuffer
	n := running(t, Config{Log: slog.New(slog.NewTextHandler(&log, nil)),
		Durability: "disk", Data: filepath.Join(t.TempDir(), "data")})
	at, err := ReadAnnouncement(n.c.Data)
	if err != nil {
		t.Fatal(err)
	}
	client := &admin.Client{Base: at.Admin, Token: at.Token}
	begun, release := make(chan struct{}), make(chan struct{})
	err = n.Handle(parley.Agent{Name: "slow", Exposed: parley.Everywhere},
		parley.Skill("wait", func(context.Context, *parley.Message, map[string]any) (map[string]any, error) {
			close(begun)
			<-release
			return map[string]any{"done": true}, nil
		}))
	if err != nil {
		t.Fatal(err)
	}
	type result struct {
		r   admin.Receipt
		err error
	}
	done := make(chan result, 1)
	go func() {
		r, err := client.Ask(context.Background(), admin.Send{To: "slow", JSON: json.RawMessage(`{}`)})
		done <- result{r, err}
	}()
	<-begun
	if s := n.Hub().Stats(); s.Delivery.Active != 1 {
		t.Fatalf("%+v", s)
	}
	closed := make(chan error, 1)
	go func() { closed <- n.Close(context.Background()) }()
	close(release)
	if v := <-done; v.err != nil || v.r.Reply == nil || v.r.Reply.Error != nil {
		t.Errorf("%+v", v)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "stopping: new messages are refused") {
		t.Error(log.String())
	}
}

func TestPauseAndResumeThroughTheAPI(t *testing.T) {
	n := running(t, Config{})
	ctx := context.Background()
	if _, err := n.Admin().Pause(ctx, everything, "echo", true); err != nil {
		t.Fatal(err)
	}
	text := "first"
	r, err := n.Admin().Send(ctx, everything, admin.Send{To: "echo", Kind: parley.Notice, Text: &text, Skill: "say"})
	if err != nil {
		text = `{"text":"first"}`
		if r, err = n.Admin().Send(ctx, everything, admin.Send{To: "echo", Kind: parley.Notice,
			JSON: json.RawMessage(text), Skill: "say"}); err != nil {
			t.Fatal(err)
		}
	}
	if v, ok := n.Hub().Journal().Delivery(r.ID, "echo"); !ok || v.State != parley.Waiting {
		t.Errorf("paused: %+v", v)
	}
	if got := value(t, n, "parley_agents", "state", "paused"); got != 1 {
		t.Errorf("%g paused", got)
	}
	settled := make(chan struct{})
	stop := watchSettled(n, r.ID, settled)
	defer stop()
	if _, err := n.Admin().Pause(ctx, everything, "echo", false); err != nil {
		t.Fatal(err)
	}
	<-settled
}

// TestDashboardAndRules: every metric of the shipped files exists.
func TestDashboardAndRules(t *testing.T) {
	n := running(t, Config{Durability: "disk", Data: filepath.Join(t.TempDir(), "data")})
	if _, err := ask(t, n, `{"a":1}`); err != nil {
		t.Fatal(err)
	}
	n.Hub().Refuse(hub.Refusal{Protocol: "samvad", Step: "signature", Code: parley.Unauthenticated})
	families, err := n.metrics.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, f := range families {
		known[f.GetName()] = true
		if f.GetType() == dto.MetricType_HISTOGRAM {
			for _, end := range []string{"_bucket", "_sum", "_count"} {
				known[f.GetName()+end] = true
			}
		}
	}
	used := map[string]bool{}
	name := regexp.MustCompile(`\b(?:parley|go|process)_[a-z0-9_]+`)
	for _, file := range []string{"grafana-dashboard.json", "prometheus-rules.yaml"} {
		b, err := os.ReadFile(filepath.Join("..", "packaging", file))
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(file, ".json") {
			var d struct {
				Title  string
				Panels []struct {
					Title, Type string
					Targets     []struct{ Expr string }
				}
			}
			if err := json.Unmarshal(b, &d); err != nil || d.Title == "" || len(d.Panels) < 10 {
				t.Fatalf("%s: %+v, %v", file, d, err)
			}
			for _, p := range d.Panels {
				if p.Title == "" || p.Type != "row" && len(p.Targets) == 0 {
					t.Errorf("%s: a panel shows nothing: %+v", file, p)
				}
			}
		}
		for _, m := range name.FindAllString(string(b), -1) {
			used[m] = true
			if !known[m] {
				t.Errorf("%s asks for %s, which there is not", file, m)
			}
		}
	}
	for _, f := range families {
		if m := f.GetName(); strings.HasPrefix(m, "parley_") && !used[m] && !used[m+"_bucket"] &&
			!slices.Contains([]string{"parley_replay_keys", "parley_start_time_seconds", "parley_journal_owned",
				"parley_config_reload_seconds"}, m) {
			t.Errorf("nothing shows %s", m)
		}
	}
}
