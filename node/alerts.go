package node

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/internal/sleep"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/keyring"
)

// An Alert tells an operator of a problem, in the log and as the JSON body of a
// POST to alerts.webhook.
type Alert struct {
	Version int       `json:"version"` // of this form: 1
	Kind    string    `json:"kind"`    // dead_letter, agent_broken, agent_recovered, disk, disk_recovered or expiry
	Hub     string    `json:"hub"`
	Time    time.Time `json:"time"`
	About   string    `json:"about"`             // the agent, key, file or directory
	Text    string    `json:"text"`              // for people
	Fix     string    `json:"fix,omitempty"`     // the command or setting that helps
	Count   int       `json:"count"`             // occurrences since the last alert of this kind about the same thing
	Skipped int       `json:"skipped,omitempty"` // alerts left out since the last one because there were too many
}

// Kinds of alerts.
const (
	alertDead      = "dead_letter"
	alertBroken    = "agent_broken"
	alertRecovered = "agent_recovered"
	alertDisk      = "disk"
	alertDiskFine  = "disk_recovered"
	alertExpiry    = "expiry"
)

// Outcomes of alerts.
const (
	alertSent     = "sent"
	alertFailed   = "failed"
	alertLogged   = "logged"   // there is no webhook
	alertSkipped  = "skipped"  // too many at once
	alertRepeated = "repeated" // told recently
)

const (
	alertTick    = 30 * time.Second
	maxAlertKeys = 4096
	alertQueue   = 256
	alertTries   = 4
)

// alerts watches for problems that an operator must solve. Alerts go out through neither
// the journal nor the hub's deliveries, since these may be broken.
type alerts struct {
	n       *Node
	now     func() time.Time
	failing func() (list map[string]hub.Condition, here func(name string) bool)
	post    func(ctx context.Context, a Alert) error
	limit   *rate.Limiter
	queue   chan Alert
	stop    context.CancelFunc
	done    sync.WaitGroup

	mu       sync.Mutex
	agents   map[string]time.Time // with an open alert, and since when they fail
	told     map[alertKey]*toldAlert
	skipped  int
	diskFull bool
}

type alertKey struct{ kind, about, detail string }

type toldAlert struct {
	at    time.Time
	count int // since at
}

func newAlerts(n *Node) *alerts {
	a := &alerts{n: n, now: n.c.Now, limit: rate.NewLimiter(rate.Every(10*time.Second), 20),
		queue: make(chan Alert, alertQueue), agents: map[string]time.Time{}, told: map[alertKey]*toldAlert{}}
	a.post = a.webhook
	a.failing = func() (map[string]hub.Condition, func(string) bool) { return n.hub.Failing() }
	return a
}

// start begins to check and to send alerts.
func (a *alerts) start() {
	ctx, stop := context.WithCancel(context.Background())
	a.stop = stop
	a.done.Go(func() {
		a.check()
		every(ctx, alertTick, a.check)
	})
	a.done.Go(func() {
		for {
			select {
			case v := <-a.queue:
				a.send(ctx, v)
			case <-ctx.Done():
				return
			}
		}
	})
}

func (a *alerts) close() {
	if a.stop != nil {
		a.stop()
		a.done.Wait()
	}
}

// config is the current configuration, with the defaults filled in.
func (a *alerts) config() Alerts {
	c := a.n.live.Load().Alerts
	c.Broken.Duration = cmp.Or(c.Broken.Duration, 3*time.Minute)
	c.Disk = cmp.Or(c.Disk, .8)
	c.Expiry.Duration = cmp.Or(c.Expiry.Duration, 7*24*time.Hour)
	c.Every.Duration = cmp.Or(c.Every.Duration, time.Hour)
	return c
}

// broken counts the agents with an open alert.
func (a *alerts) broken() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.agents)
}

// checkAgents tells of agents that have failed for long, if this hub tried them, and of
// those that do not fail any more.
func (a *alerts) checkAgents(after time.Duration) (list []Alert) {
	failing, here := a.failing()
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, c := range failing {
		if _, told := a.agents[name]; told || !here(name) || c.Failures < 2 || a.now().Sub(c.Since) < after {
			continue
		}
		a.agents[name] = c.Since
		list = append(list, Alert{Kind: alertBroken, About: name, Fix: "parley doctor " + name,
			Text: fmt.Sprintf("%s has failed %d times since %s: %s", name, c.Failures,
				c.Since.UTC().Format(time.RFC3339), cmp.Or(c.Err.Detail, c.Err.Text, string(c.Err.Code)))})
	}
	for name, since := range a.agents {
		if _, ok := failing[name]; ok {
			continue
		}
		delete(a.agents, name)
		if _, ok := a.n.directory.Agent(name); ok {
			list = append(list, Alert{Kind: alertRecovered, About: name, Text: fmt.Sprintf(
				"%s does not fail any more; it had failed since %s", name, since.UTC().Format(time.RFC3339))})
		}
	}
	return list
}

// recorded notes dead letters; the journal calls it.
func (a *alerts) recorded(r *journal.Record) {
	for i := range r.Steps {
		if s := &r.Steps[i]; s.State == parley.Dead {
			why := "no reason was recorded"
			if s.Error != nil {
				why = string(s.Error.Code) + ": " + cmp.Or(s.Error.Detail, s.Error.Text)
			}
			a.tell(Alert{Kind: alertDead, About: s.To,
				Text: fmt.Sprintf("message %s to %s was given up: %s", s.Message, s.To, why),
				Fix:  "parley dead --to " + s.To}, codeLabel(s.Error))
		}
	}
}

// check looks at states that cause no event: agents that have failed for long, the
// disk, and keys that are about to expire.
func (a *alerts) check() {
	c, now := a.config(), a.now()
	list := a.checkAgents(c.Broken.Duration)
	a.mu.Lock()
	if free, total, ok := a.n.disk(); ok && total > 0 {
		used := 1 - float64(free)/float64(total)
		switch {
		case used >= c.Disk && !a.diskFull:
			a.diskFull = true
			list = append(list, Alert{Kind: alertDisk, About: a.n.c.Data,
				Text: fmt.Sprintf("the disk is %.0f %% full; nothing more is accepted when less than %d MiB are free",
					100*used, a.n.c.MinFree(total)>>20),
				Fix: "make room, or engine.min_free"})
		case used < c.Disk-.02 && a.diskFull: // a margin, so that alerts do not alternate at the limit
			a.diskFull = false
			list = append(list, Alert{Kind: alertDiskFine, About: a.n.c.Data,
				Text: fmt.Sprintf("the disk is %.0f %% full", 100*used)})
		}
	}
	a.mu.Unlock()
	for _, v := range list {
		a.tell(v, "")
	}
	for _, k := range a.n.keys.List() {
		if k.State == keyring.Retiring && k.Until.After(now) && k.Until.Sub(now) <= c.Expiry.Duration {
			a.tell(Alert{Kind: alertExpiry, About: k.Owner + " " + k.Purpose,
				Fix: "see that every peer has the new key: parley keys show " + k.Owner,
				Text: fmt.Sprintf("the old %s key of %s ends on %s", k.Purpose, k.Owner,
					k.Until.UTC().Format(time.RFC3339))}, k.ID)
		}
	}
	if at, ok := a.n.certs.ends(); ok && at.Sub(now) <= c.Expiry.Duration {
		a.tell(Alert{Kind: alertExpiry, About: "certificate",
			Fix:  "replace the file of tls.cert; the hub takes it up by itself",
			Text: fmt.Sprintf("the certificate of the protocol listener ends on %s", at.UTC().Format(time.RFC3339))},
			"")
	}
}

// tell logs an alert and queues it for the webhook, unless it told the same alert
// recently. It never waits.
func (a *alerts) tell(v Alert, detail string) {
	every := a.config().Every.Duration
	v.Version, v.Hub, v.Time, v.Count = 1, a.n.hub.ID(), a.now(), 1
	key := alertKey{v.Kind, v.About, detail}
	a.mu.Lock()
	t := a.told[key]
	once := v.Kind == alertRecovered || v.Kind == alertDiskFine // these end an earlier alert
	if t != nil && !once && v.Time.Sub(t.at) < every {
		t.count++
		a.mu.Unlock()
		a.n.metrics.alerts.WithLabelValues(v.Kind, alertRepeated).Inc()
		return
	}
	if t == nil {
		if len(a.told) >= maxAlertKeys {
			clear(a.told) // some alerts are repeated, which is better than none
		}
		t = &toldAlert{}
		a.told[key] = t
	}
	v.Count += t.count
	t.at, t.count = v.Time, 0
	allowed := a.limit.AllowN(v.Time, 1)
	if allowed {
		v.Skipped, a.skipped = a.skipped, 0
	} else {
		a.skipped++
	}
	a.mu.Unlock()
	a.n.log.Warn("alert", "kind", v.Kind, "about", v.About, "text", v.Text, "fix", v.Fix, "count", v.Count)
	outcome := alertSkipped
	switch {
	case a.config().Webhook == "":
		outcome = alertLogged
	case allowed:
		select {
		case a.queue <- v:
			return
		default:
		}
	}
	a.n.metrics.alerts.WithLabelValues(v.Kind, outcome).Inc()
}

// send posts an alert, with a few retries.
func (a *alerts) send(ctx context.Context, v Alert) {
	pause := time.Second
	for try := 1; ; try++ {
		err := a.post(ctx, v)
		if err == nil {
			a.n.metrics.alerts.WithLabelValues(v.Kind, alertSent).Inc()
			return
		}
		if try == alertTries || ctx.Err() != nil {
			a.n.metrics.alerts.WithLabelValues(v.Kind, alertFailed).Inc()
			a.n.log.Error("an alert could not be posted to alerts.webhook", "kind", v.Kind, "about", v.About, "tries",
				try, "error", err)
			return
		}
		_ = sleep.For(ctx, pause) // the next attempt reports why ctx ended
		pause *= 5
	}
}

// webhook posts one alert, through the guard like every call of the hub.
func (a *alerts) webhook(ctx context.Context, v Alert) error {
	c := a.config()
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.Webhook, bytes.NewReader(b))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "parley")
	if c.Token != "" {
		token, err := secretFile(c.Token)
		if err != nil {
			return fmt.Errorf("alerts.token_file: %w", err)
		}
		r.Header.Set("Authorization", "Bearer "+string(token))
	}
	client := a.n.guard.Client(netguard.Options{MaxRedirects: -1, RootCAs: a.n.rootCAs, MaxResponseBytes: 64 << 10})
	defer client.CloseIdleConnections()
	resp, err := client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("the webhook answered %s", resp.Status)
	}
	return nil
}
