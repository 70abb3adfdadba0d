package node

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/disk"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/keyring"
)

// alertingNode makes a node whose alerts go to a list in place of a webhook, by a clock
// that the test moves.
func alertingNode(t *testing.T, c Config) (n *Node, told func() []Alert, clock func(time.Duration)) {
	t.Helper()
	var now atomic.Int64
	now.Store(time.Date(2026, 4, 11, 10, 0, 0, 0, time.UTC).UnixNano())
	c.Now = func() time.Time { return time.Unix(0, now.Load()).UTC() }
	c.Alerts.Webhook = "https://alerts.test/"
	n, err := Open(context.Background(), func() Config { c.Durability = or(c.Durability, "memory"); return c }())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	told = func() []Alert {
		var out []Alert
		for {
			select {
			case a := <-n.alerts.queue:
				out = append(out, a)
			default:
				return out
			}
		}
	}
	return n, told, func(d time.Duration) { now.Add(int64(d)) }
}

func or(a, b string) string {
	if a == "" {
		return b
	}
	return a
}

// TestAgentBrokenAndRecovered: an alert when an agent has failed for alerts.broken_after and this hub tried it more
// than once, and one when it does not fail any more. What failing is, package hub decides.
func TestAgentBrokenAndRecovered(t *testing.T) {
	n, told, pass := alertingNode(t, Config{})
	ctx, a := t.Context(), n.alerts
	failing, elsewhere := map[string]hub.Condition{}, map[string]bool{}
	a.failing = func() (map[string]hub.Condition, func(string) bool) {
		return failing, func(name string) bool { return !elsewhere[name] }
	}
	for _, name := range []string{"bob", "carol", "dave", "erin"} {
		if _, err := n.directory.Put(ctx, parley.Agent{Name: name}, directory.FromOperator); err != nil {
			t.Fatal(err)
		}
		failing[name] = hub.Condition{State: hub.Unreachable, Since: n.c.Now(), Failures: 2,
			Err: parley.Fail(parley.Unavailable, nil, "the agent cannot be reached").With(parley.ByNetwork,
				parley.ConnectionRefused, "connection refused by 192.0.2.7:80")}
	}
	elsewhere["carol"] = true // another hub tries it, and tells of it
	erin := failing["erin"]
	erin.Failures = 1
	failing["erin"] = erin
	pass(2 * time.Minute)
	a.check()
	if list := told(); len(list) != 0 {
		t.Errorf("after two minutes: %+v", list)
	}
	delete(failing, "dave")
	pass(time.Minute)
	a.check()
	a.check()
	list := told()
	if len(list) != 1 || list[0].Kind != alertBroken || list[0].About != "bob" || list[0].Version != 1 ||
		list[0].Hub == "" ||
		!strings.Contains(list[0].Text, "failed 2 times since 2026-04-11T10:00:00Z: connection refused by 192.0.2.7") ||
		list[0].Fix != "parley doctor bob" {
		t.Errorf("%+v", list)
	}
	if a.broken() != 1 || value(t, n, "parley_agents", "state", "broken") != 1 {
		t.Error("no metric says so")
	}
	clear(failing)
	a.check()
	if list := told(); len(list) != 1 || list[0].Kind != alertRecovered || list[0].About != "bob" || a.broken() != 0 {
		t.Errorf("%+v", list)
	}
	// A removed agent has not recovered.
	failing["dave"] = hub.Condition{State: hub.Unreachable, Since: n.c.Now().Add(-time.Hour), Failures: 2,
		Err: parley.Fail(parley.Unavailable, nil, "x")}
	a.check()
	if err := n.directory.Remove(ctx, "dave"); err != nil {
		t.Fatal(err)
	}
	clear(failing)
	a.check()
	if list := told(); len(list) != 1 || list[0].Kind != alertBroken || a.broken() != 0 {
		t.Errorf("%+v", list)
	}
}

// TestFailingAgentIsCounted: a real agent that cannot be reached is counted as failing.
func TestFailingAgentIsCounted(t *testing.T) {
	n := running(t, Config{Network: Network{Allow: []string{"loopback"}}, Delivery: Delivery{Tries: 1}})
	fail(t, n)
	if got := value(t, n, "parley_agents", "state", "failing"); got != 1 {
		t.Errorf("%g agents are failing, want 1", got)
	}
	if list, here := n.alerts.failing(); list["far"].State != hub.Unreachable || !here("far") {
		t.Errorf("the alerts see %+v", list)
	}
}

// fail adds an agent that cannot be reached, and waits for its first dead letter.
func fail(t *testing.T, n *Node) {
	t.Helper()
	ctx := t.Context()
	if _, err := n.directory.Put(ctx, parley.Agent{Name: "far", Identities: []parley.Identity{{Protocol: "samvad",
		ID: "agent://far.test", URL: "http://127.0.0.1:1"}}}, directory.FromOperator); err != nil {
		t.Fatal(err)
	}
	dead := make(chan struct{}, 1)
	defer n.journal.Watch(func(r *journal.Record) {
		for i := range r.Steps {
			if r.Steps[i].State == parley.Dead {
				dead <- struct{}{}
			}
		}
	})()
	if _, err := n.hub.Accept(ctx, hub.Submission{Scope: "test", Message: &parley.Message{Kind: parley.Notice, From: "x",
		To: "far", Parts: []parley.Part{parley.Text("hi")}, Origin: parley.Origin{Protocol: "api",
			Verdict: parley.Verdict{Assurance: parley.Signed}}}}); err != nil {
		t.Fatal(err)
	}
	<-dead
}

// TestDeadLettersAreToldOnceAnHour: more letters for the same reason and agent are
// counted meanwhile.
func TestDeadLettersAreToldOnceAnHour(t *testing.T) {
	n, told, pass := alertingNode(t, Config{})
	dead := func(to string, code parley.Code) {
		n.alerts.recorded(&journal.Record{Steps: []journal.Step{{To: to, State: parley.Dead,
			Error: parley.Refuse(code, "why")}}})
	}
	for range 5 {
		dead("bob", parley.Unavailable)
	}
	dead("bob", parley.OutcomeUnknown)
	dead("carol", parley.Unavailable)
	if list := told(); len(list) != 3 || list[0].Count != 1 || list[0].Fix != "parley dead --to bob" ||
		!strings.Contains(list[0].Text, "unavailable: why") {
		t.Errorf("%+v", list)
	}
	pass(time.Hour)
	dead("bob", parley.Unavailable)
	if list := told(); len(list) != 1 || list[0].Count != 5 {
		t.Errorf("%+v", list)
	}
}

func TestAlertsAreRateLimited(t *testing.T) {
	n, told, pass := alertingNode(t, Config{})
	for i := range 100 {
		n.alerts.tell(Alert{Kind: alertDead, About: time.Duration(i).String()}, "")
	}
	if list := told(); len(list) != 20 {
		t.Errorf("%d at once", len(list))
	}
	pass(time.Minute)
	n.alerts.tell(Alert{Kind: alertDead, About: "later"}, "")
	if list := told(); len(list) != 1 || list[0].Skipped != 80 {
		t.Errorf("%+v", list)
	}
	if got := value(t, n, "parley_alerts_total", "kind", alertDead, "outcome", "skipped"); got != 80 {
		t.Errorf("%g", got)
	}
}

func TestDiskAlert(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	var free atomic.Uint64
	_, total, err := disk.Space(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	free.Store(total / 2)
	n, told, _ := alertingNode(t, Config{Durability: "disk", Data: dir,
		FreeSpace: func(string) (uint64, error) { return free.Load(), nil }})
	n.alerts.check()
	free.Store(total / 10)
	n.alerts.check()
	n.alerts.check()
	free.Store(total*2/10 + total/100)
	n.alerts.check() // a little more space is not enough
	free.Store(total / 2)
	n.alerts.check()
	var kinds []string
	for _, a := range told() {
		kinds = append(kinds, a.Kind)
	}
	if !slices.Equal(kinds, []string{alertDisk, alertDiskFine}) {
		t.Error(kinds)
	}
}

func TestExpiryAlert(t *testing.T) {
	n, told, pass := alertingNode(t, Config{})
	if _, err := n.keys.Ensure(keyring.New{Owner: keyring.Hub, Purpose: "samvad", Algorithm: keyring.Ed25519,
		By: "test"}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.keys.Rotate(keyring.Hub, "samvad", "test", 10*24*time.Hour); err != nil {
		t.Fatal(err)
	}
	n.alerts.check()
	if list := told(); len(list) != 0 {
		t.Errorf("%+v", list)
	}
	pass(4 * 24 * time.Hour)
	n.alerts.check()
	n.alerts.check()
	if list := told(); len(list) != 1 || list[0].Kind != alertExpiry || list[0].About != "hub samvad" {
		t.Errorf("%+v", list)
	}
}

// TestAlertIsTriedAgain: with pauses, and a last attempt.
func TestAlertIsTriedAgain(t *testing.T) {
	n, _, _ := alertingNode(t, Config{})
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var at []time.Duration
		fails := 2
		a := n.alertsForTest(func(context.Context, Alert) error {
			at = append(at, time.Since(start))
			if len(at) <= fails {
				return errors.New("no")
			}
			return nil
		})
		a.send(context.Background(), Alert{Kind: alertDead})
		if !slices.Equal(at, []time.Duration{0, time.Second, 6 * time.Second}) {
			t.Error(at)
		}
		at, fails, start = nil, 100, time.Now()
		a.send(context.Background(), Alert{Kind: alertDead})
		if len(at) != alertTries {
			t.Error(at)
		}
	})
	if value(t, n, "parley_alerts_total", "kind", alertDead, "outcome", alertSent) != 1 ||
		value(t, n, "parley_alerts_total", "kind", alertDead, "outcome", alertFailed) != 1 {
		t.Error("no metric says so")
	}
}

// alertsForTest makes alerts that call post in place of the webhook.
func (n *Node) alertsForTest(post func(context.Context, Alert) error) *alerts {
	a := newAlerts(n)
	a.post = post
	return a
}

// TestWebhook: a dead letter of a real hub arrives as JSON, with the token, if
// network.allow permits the address; otherwise the hub does not send it.
func TestWebhook(t *testing.T) {
	got := make(chan Alert, 4)
	var once sync.Once
	var header http.Header
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var a Alert
		if err := json.NewDecoder(r.Body).Decode(&a); err != nil {
			t.Error(err)
		}
		once.Do(func() { header = r.Header.Clone() })
		got <- a
	}))
	defer s.Close()
	token := put(t, filepath.Join(t.TempDir(), "token"), []byte("secret\n"))
	n := running(t, Config{Alerts: Alerts{Webhook: s.URL, Token: token}, Network: Network{Allow: []string{"loopback"}}})
	n.alerts.tell(Alert{Kind: alertDead, About: "bob", Text: "given up"}, "")
	if a := <-got; a.Kind != alertDead || a.About != "bob" || a.Hub != n.Hub().ID() || a.Version != 1 {
		t.Errorf("%+v", a)
	}
	if header.Get("Authorization") != "Bearer secret" || header.Get("Content-Type") != "application/json" {
		t.Error(header)
	}
	m := running(t, Config{})
	c := Config{Alerts: Alerts{Webhook: s.URL}}
	m.live.Store(&c)
	if err := m.alerts.webhook(context.Background(), Alert{}); err == nil || !strings.Contains(err.Error(), "allow") {
		t.Error(err)
	}
}

// TestStateOutlivesARestart: an agent that could not be reached is so after the hub was started again.
func TestStateOutlivesARestart(t *testing.T) {
	ctx := t.Context()
	c := Config{Data: filepath.Join(t.TempDir(), "data"), Network: Network{Allow: []string{"loopback"}},
		Delivery: Delivery{Tries: 1}}
	open := func() *Node {
		t.Helper()
		n, err := Open(ctx, c)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Start(ctx); err != nil {
			t.Fatal(err)
		}
		return n
	}
	state := func(n *Node) hub.Condition {
		t.Helper()
		e, ok := n.directory.Agent("far")
		if !ok {
			t.Fatal("the agent is gone")
		}
		return n.hub.Condition(e)
	}
	n := open()
	fail(t, n)
	before := state(n)
	if err := n.Close(ctx); err != nil {
		t.Fatal(err)
	}
	n = open()
	defer func() {
		if err := n.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	after := state(n)
	if before.State != hub.Unreachable || after.State != hub.Unreachable || !after.Since.Equal(before.Since) ||
		after.Failures != 1 || after.Err.Code != before.Err.Code {
		t.Errorf("before %+v, after the restart %+v", before, after)
	}
}
