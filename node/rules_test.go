package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
)

// The alert rules of packaging/ are tried on hubs that are in order, and on hubs with the problem of which each
// rule tells. The test evaluates the rules itself (promql, below); where promtool is on the PATH, Prometheus' own
// code evaluates them on the same scrapes.

// An alertRule is one rule of prometheus-rules.yaml.
type alertRule struct {
	Alert, Expr, For string
}

// wait is how long the expression must hold.
func (r alertRule) wait(t *testing.T) time.Duration {
	t.Helper()
	if r.For == "" {
		return 0
	}
	d, err := time.ParseDuration(r.For)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func alertRules(t *testing.T) (out []alertRule) {
	t.Helper()
	var file struct{ Groups []struct{ Rules []alertRule } }
	if err := yaml.Unmarshal([]byte(shipped(t, "prometheus-rules.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		out = append(out, g.Rules...)
	}
	if len(out) == 0 {
		t.Fatal("no rules")
	}
	return out
}

// A trialHub is a hub with a clock, a disk and a configuration file of the test.
type trialHub struct {
	*Node
	at, free   atomic.Int64
	unreadable atomic.Bool // the file
}

func (h *trialHub) pass(d time.Duration) { h.at.Add(int64(d)) }

func newTrialHub(t *testing.T) *trialHub {
	t.Helper()
	h := &trialHub{}
	h.at.Store(time.Date(2026, 4, 11, 10, 0, 0, 0, time.UTC).UnixNano())
	h.free.Store(math.MaxInt64)
	h.Node = running(t, Config{Durability: "disk", Data: filepath.Join(t.TempDir(), "data"),
		Delivery:  Delivery{Tries: 1},
		Now:       func() time.Time { return time.Unix(0, h.at.Load()).UTC() },
		FreeSpace: func(string) (uint64, error) { return uint64(h.free.Load()), nil },
		Read: func() (c Config, err error) {
			if h.unreadable.Load() {
				err = errors.New("nonsense = 1: unknown key")
			}
			return c, err
		}})
	return h
}

// failures are, by rule, how a hub gets the problem that the rule is for.
var failures = map[string]func(*testing.T, *trialHub){
	"ParleyDown": func(t *testing.T, h *trialHub) {
		if err := h.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	},
	"ParleyNotReady": func(_ *testing.T, h *trialHub) { h.down.Store(true) },
	"ParleyDeadLetters": func(t *testing.T, h *trialHub) {
		_, err := h.Admin().AddAgent(t.Context(), everything, admin.NewAgent{Name: "gone", Identities: []admin.NewIdentity{
			{Protocol: "samvad", ID: "agent://gone.test", URL: "http://127.0.0.1:1"}}}) // its address is not allowed
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{}, 1)
		defer h.Hub().Journal().Watch(func(r *journal.Record) {
			if slices.ContainsFunc(r.Steps, func(s journal.Step) bool { return s.State == parley.Dead }) {
				ended <- struct{}{}
			}
		})()
		_, err = h.Admin().Send(t.Context(), everything, admin.Send{To: "gone", Kind: parley.Notice, Text: new("hi")})
		if err != nil {
			t.Fatal(err)
		}
		<-ended
	},
	"ParleyAgentBroken": func(_ *testing.T, h *trialHub) {
		failing := map[string]hub.Condition{"bob": {State: hub.Unreachable, Since: h.c.Now(), Failures: 2,
			Err: parley.Fail(parley.Unavailable, nil, "the agent cannot be reached")}}
		h.alerts.failing = func() (map[string]hub.Condition, func(string) bool) {
			return failing, func(string) bool { return true }
		}
		h.pass(3 * time.Minute)
		h.alerts.check()
	},
	"ParleyBacklog": func(t *testing.T, h *trialHub) {
		if _, err := h.Admin().Pause(t.Context(), everything, "echo", true); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for range 64 {
			all.Go(func() {
				for range 157 {
					h.pass(100 * time.Millisecond) // below the rate limit
					_, err := h.Admin().Send(t.Context(), everything, admin.Send{To: "echo", Kind: parley.Notice,
						JSON: json.RawMessage(`{}`)})
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
	},
	"ParleyDiskFull": func(_ *testing.T, h *trialHub) {
		h.free.Store(1)
	},
	"ParleySlowAnswers": func(t *testing.T, h *trialHub) {
		err := h.Handle(parley.Agent{Name: "slow"}, parley.Skill("wait",
			func(context.Context, *parley.Message, map[string]any) (map[string]any, error) {
				h.pass(20 * time.Second)
				return nil, nil
			}))
		if err != nil {
			t.Fatal(err)
		}
		r, err := h.Admin().Ask(t.Context(), everything, admin.Send{To: "slow", JSON: json.RawMessage(`{}`)})
		if err != nil || r.Reply == nil {
			t.Fatal(r, err)
		}
	},
	"ParleyRefusals": func(_ *testing.T, h *trialHub) {
		for range 6001 {
			h.Hub().Refuse(hub.Refusal{Protocol: "samvad", Step: "signature", Code: parley.Unauthenticated})
		}
	},
	"ParleyReloadFailed": func(t *testing.T, h *trialHub) {
		h.unreadable.Store(true)
		if _, err := h.Reload(t.Context()); err == nil {
			t.Fatal("reloaded")
		}
	},
	"ParleyAlertsNotSent": func(t *testing.T, h *trialHub) {
		h.alerts.post = func(context.Context, Alert) error { return errors.New("no webhook answers") }
		ctx, stop := context.WithCancel(t.Context())
		stop() // no further tries
		h.alerts.send(ctx, Alert{Kind: alertDead})
	},
}

// TestAlertRules: every series of a rule is there from the start, no rule fires on a hub that is in order, and each
// fires on the problem of which it tells.
func TestAlertRules(t *testing.T) {
	t.Parallel()
	rules := alertRules(t)
	var trials []ruleTrial
	for _, rule := range rules {
		if failures[rule.Alert] == nil {
			t.Errorf("%s: no failing state tries it", rule.Alert)
			continue
		}
		h := newTrialHub(t)
		at := h.Addresses().Admin + "/metrics"
		before := scrape(t, at)
		now := scrape(t, at)
		for _, r := range rules {
			q := promql{before: before, now: now}
			if fires := q.eval(t, r.Expr); len(fires) > 0 {
				t.Errorf("%s fires on a hub that is in order: %v", r.Alert, fires)
			}
			for _, selector := range q.empty {
				t.Errorf("%s: a hub that has just started has no series %s", r.Alert, selector)
			}
		}
		failures[rule.Alert](t, h)
		failed := scrape(t, at)
		q := promql{before: now, now: failed}
		if fires := q.eval(t, rule.Expr); len(fires) == 0 {
			t.Errorf("%s does not fire: %s", rule.Alert, rule.Expr)
		}
		for _, s := range q.born {
			t.Errorf("%s: the series %s is new, so Prometheus sees no increase", rule.Alert, s)
		}
		trials = append(trials, ruleTrial{rule, now, failed})
	}
	for name := range failures {
		if !slices.ContainsFunc(rules, func(r alertRule) bool { return r.Alert == name }) {
			t.Errorf("there is no rule %s", name)
		}
	}
	t.Run("promtool", func(t *testing.T) { withPromtool(t, trials) })
}

// A ruleTrial is a rule with the scrapes of a hub before and after the hub got the problem.
type ruleTrial struct {
	alertRule
	before, failed []promSample
}

// withPromtool has Prometheus' promtool check the rules, and evaluate them on the trials. In a trial's time the hub
// is in order for twenty minutes. Then gauges have their failed values, and counters rise by the same number each
// minute. Rules fire once they have held for their time, not a minute before.
func withPromtool(t *testing.T, trials []ruleTrial) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not on the PATH: Debian's package prometheus has it")
	}
	file, err := filepath.Abs(filepath.Join("..", "packaging", "prometheus-rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	type object = map[string]any
	const before = 20
	var tests []object
	for _, c := range trials {
		end := before + 2*int(c.wait(t).Minutes()) + 1
		later := map[string]float64{}
		for _, s := range c.failed {
			later[s.series()] = s.value
		}
		var series []object
		for _, s := range c.before {
			if !strings.Contains(c.Expr, s.name) {
				continue
			}
			to, there := later[s.series()]
			values := fmt.Sprintf("%g+0x%d", s.value, before-1)
			switch {
			case !there:
			case s.counts():
				values += fmt.Sprintf(" %g+%gx%d", to, to-s.value, end)
			default:
				values += fmt.Sprintf(" %g+0x%d", to, end)
			}
			series = append(series, object{"series": s.series(), "values": values})
		}
		holds := func(minute int, fires bool) object {
			samples := []object{}
			if fires {
				samples = append(samples, object{"labels": "{}", "value": 1})
			}
			return object{"expr": fmt.Sprintf("group(ALERTS{alertname=%q, alertstate=\"firing\"})", c.Alert),
				"eval_time": fmt.Sprintf("%dm", minute), "exp_samples": samples}
		}
		at := before + int(c.wait(t).Minutes())
		tests = append(tests, object{"name": c.Alert, "interval": "1m", "input_series": series,
			"promql_expr_test": []object{holds(before-1, false), holds(at-1, false), holds(at, true)}})
	}
	b, err := yaml.Marshal(object{"rule_files": []string{file}, "evaluation_interval": "1m", "tests": tests})
	if err != nil {
		t.Fatal(err)
	}
	trial := filepath.Join(t.TempDir(), "trial.yaml")
	if err := os.WriteFile(trial, b, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"check", "rules", file}, {"test", "rules", trial}} {
		if out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// promSample is a sample of a scrape.
type promSample struct {
	name   string
	labels map[string]string
	value  float64
}

// series writes the series as Prometheus does, its labels sorted.
func (s promSample) series() string {
	var labels []string
	for _, name := range slices.Sorted(maps.Keys(s.labels)) {
		labels = append(labels, fmt.Sprintf("%s=%q", name, s.labels[name]))
	}
	return s.name + "{" + strings.Join(labels, ",") + "}"
}

// counts reports whether the sample is of a counter or a histogram.
func (s promSample) counts() bool {
	return regexp.MustCompile(`_(total|bucket|count|sum)$`).MatchString(s.name)
}

var (
	promLine  = regexp.MustCompile(`^([a-z_]+)(?:\{(.*)\})? (\S+)$`)
	promLabel = regexp.MustCompile(`([a-z_]+)="((?:[^"\\]|\\.)*)"`)
)

// scrape reads the metrics at a URL as Prometheus does, with its own series up and its label instance.
func scrape(t *testing.T, url string) (out []promSample) {
	t.Helper()
	up := promSample{name: "up", labels: map[string]string{"job": "parley", "instance": "hub"}}
	resp, err := http.Get(url)
	if err != nil {
		return []promSample{up}
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status, err)
	}
	up.value = 1
	out = append(out, up)
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		m := promLine.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("no sample: %s", line)
		}
		s := promSample{name: m[1], labels: map[string]string{"instance": "hub", "job": "parley"}}
		if s.value, err = strconv.ParseFloat(m[3], 64); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		for _, l := range promLabel.FindAllStringSubmatch(m[2], -1) {
			s.labels[l[1]] = l[2]
		}
		out = append(out, s)
	}
	return out
}

// promql evaluates the part of PromQL that the rules use: selectors with =, rate and increase, sum by,
// histogram_quantile, division, and one comparison with a number. Two scrapes stand for the series: a range reaches
// from before to now, and has both.
type promql struct {
	before, now []promSample
	empty       []string // selectors without a series
	born        []string // series of a range that only now have a sample

	t    *testing.T
	rest []string // tokens
}

var promToken = regexp.MustCompile(`[a-zA-Z_][a-zA-Z0-9_]*|"[^"]*"|[0-9.]+[smhd]?|==|[(){}\[\],=<>/]`)

// eval gives the samples for which an expression holds.
func (q *promql) eval(t *testing.T, expr string) []promSample {
	t.Helper()
	q.t, q.rest = t, promToken.FindAllString(expr, -1)
	left := q.ratio()
	op := q.next()
	want := q.number()
	if len(q.rest) > 0 {
		t.Fatalf("%s: the test does not know %q", expr, q.rest)
	}
	return slices.DeleteFunc(left, func(s promSample) bool {
		switch op {
		case "==":
			return s.value != want
		case ">":
			return !(s.value > want)
		case "<":
			return !(s.value < want)
		}
		t.Fatalf("%s: the test does not know %q", expr, op)
		return true
	})
}

func (q *promql) next() string {
	if len(q.rest) == 0 {
		q.t.Fatal("the expression ends too early")
	}
	token := q.rest[0]
	q.rest = q.rest[1:]
	return token
}

func (q *promql) accept(token string) bool {
	if len(q.rest) == 0 || q.rest[0] != token {
		return false
	}
	q.rest = q.rest[1:]
	return true
}

func (q *promql) want(tokens ...string) {
	q.t.Helper()
	for _, token := range tokens {
		if got := q.next(); got != token {
			q.t.Fatalf("%q in place of %q", got, token)
		}
	}
}

func (q *promql) number() float64 {
	q.t.Helper()
	v, err := strconv.ParseFloat(q.next(), 64)
	if err != nil {
		q.t.Fatal(err)
	}
	return v
}

// ratio is a vector, or one vector by another with the same labels.
func (q *promql) ratio() []promSample {
	left := q.vector()
	if !q.accept("/") {
		return left
	}
	by := map[string]float64{}
	for _, s := range q.vector() {
		s.name = ""
		by[s.series()] = s.value
	}
	var out []promSample
	for _, s := range left {
		s.name = ""
		if v, ok := by[s.series()]; ok {
			s.value /= v
			out = append(out, s)
		}
	}
	return out
}

func (q *promql) vector() []promSample {
	switch name := q.next(); name {
	case "sum":
		q.want("by", "(")
		var by []string
		for !q.accept(")") {
			by = append(by, q.next())
			q.accept(",")
		}
		q.want("(")
		v := q.vector()
		q.want(")")
		return sumBy(v, by)
	case "histogram_quantile":
		q.want("(")
		quantile := q.number()
		q.want(",")
		v := q.vector()
		q.want(")")
		return histogramQuantile(quantile, v)
	case "rate", "increase":
		q.want("(")
		out := q.increase(q.next(), name == "rate")
		q.want(")")
		return out
	default:
		match := q.matchers(name)
		return q.selected(q.now, match)
	}
}

// matchers reads the rest of a selector.
func (q *promql) matchers(name string) promSample {
	m := promSample{name: name, labels: map[string]string{}}
	if !q.accept("{") {
		return m
	}
	for !q.accept("}") {
		label := q.next()
		q.want("=")
		m.labels[label] = strings.Trim(q.next(), `"`)
		q.accept(",")
	}
	return m
}

func (q *promql) selected(all []promSample, m promSample) (out []promSample) {
	for _, s := range all {
		if s.name == m.name && !math.IsNaN(s.value) && s.has(m.labels) {
			out = append(out, s)
		}
	}
	if len(out) == 0 {
		q.empty = append(q.empty, m.series())
	}
	return out
}

func (s promSample) has(labels map[string]string) bool {
	for name, value := range labels {
		if s.labels[name] != value {
			return false
		}
	}
	return true
}

func (q *promql) increase(name string, perSecond bool) (out []promSample) {
	m := q.matchers(name)
	q.want("[")
	d, err := time.ParseDuration(q.next())
	if err != nil {
		q.t.Fatal(err)
	}
	q.want("]")
	was := map[string]float64{}
	for _, s := range q.selected(q.before, m) {
		was[s.series()] = s.value
	}
	for _, s := range q.selected(q.now, m) {
		first, ok := was[s.series()]
		if !ok {
			q.born = append(q.born, s.series())
			continue
		}
		s.value -= first
		if perSecond {
			s.value /= d.Seconds()
		}
		out = append(out, s)
	}
	return out
}

func sumBy(v []promSample, by []string) []promSample {
	sums := map[string]*promSample{}
	for _, s := range v {
		kept := map[string]string{}
		for _, name := range by {
			if s.labels[name] != "" {
				kept[name] = s.labels[name]
			}
		}
		key := promSample{labels: kept}.series()
		if sums[key] == nil {
			sums[key] = &promSample{labels: kept}
		}
		sums[key].value += s.value
	}
	var out []promSample
	for _, key := range slices.Sorted(maps.Keys(sums)) {
		out = append(out, *sums[key])
	}
	return out
}

// histogramQuantile interpolates within a bucket, for one histogram. It gives nothing if there were no observations:
// NaN holds for no comparison.
func histogramQuantile(quantile float64, buckets []promSample) []promSample {
	end := func(s promSample) float64 {
		v, err := strconv.ParseFloat(s.labels["le"], 64)
		if err != nil {
			return math.NaN()
		}
		return v
	}
	slices.SortFunc(buckets, func(a, b promSample) int { return int(math.Copysign(1, end(a)-end(b))) })
	if len(buckets) == 0 || buckets[len(buckets)-1].value == 0 {
		return nil
	}
	rank, below, from := quantile*buckets[len(buckets)-1].value, 0.0, 0.0
	for _, b := range buckets {
		if b.value >= rank {
			v := from
			if to := end(b); !math.IsInf(to, 1) {
				v += (to - from) * (rank - below) / (b.value - below)
			}
			return []promSample{{value: v}}
		}
		below, from = b.value, end(b)
	}
	return nil
}
