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

const (
	alertTick    = 30 * time.Second
	maxFailing   = 4096 // failing agents that are watched
	maxAlertKeys = 4096
	alertQueue   = 256
	alertTries   = 4
)

// alerts watches for problems that an operator must solve. Alerts go out through neither
// the journal nor the hub's deliveries, since these may be broken.
type alerts struct {
	n     *Node
	now   func() time.Time
	post  func(ctx context.Context, a Alert) error
	limit *rate.Limiter
	queue chan Alert
	stop  context.CancelFunc
	done  sync.WaitGroup

	mu       sync.Mutex
	peers    map[string]*failingPeer
	told     map[alertKey]*toldAlert
	skipped  int
	diskFull bool
}

type failingPeer struct {
	since    time.Time
	failures int
	reason   string
	told     bool
}

type alertKey struct{ kind, about, detail string }

type toldAlert struct {
	at    time.Time
	count int // since at
}

func newAlerts(n *Node) *alerts {
	a := &alerts{n: n, now: n.c.Now, limit: rate.NewLimiter(rate.Every(10*time.Second), 20),
		queue: make(chan Alert, alertQueue), peers: map[string]*failingPeer{}, told: map[alertKey]*toldAlert{}}
	a.post = a.webhook
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

// attempted notes the outcome of each attempt.
func (a *alerts) attempted(to string, err *parley.Error, postponed bool) {
	switch {
	case err == nil:
		a.mu.Lock()
		p := a.peers[to]
		delete(a.peers, to)
		a.mu.Unlock()
		if p != nil && p.told {
			a.tell(Alert{Kind: alertRecovered, About: to,
				Text: fmt.Sprintf("%s takes messages again; it had failed since %s", to,
					p.since.UTC().Format(time.RFC3339))}, "")
		}
	case postponed || !err.Retryable && err.Code != parley.Unavailable && err.Code != parley.TimedOut &&
		err.Code != parley.OutcomeUnknown:
		// The recipient answers: it is busy, or refuses this message.
	default:
		a.mu.Lock()
		defer a.mu.Unlock()
		p := a.peers[to]
		if p == nil {
			if len(a.peers) >= maxFailing {
				return
			}
			p = &failingPeer{since: a.now()}
			a.peers[to] = p
		}
		p.failures++
		p.reason = err.Text
	}
}

// broken counts the agents with an open alert.
func (a *alerts) broken() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, p := range a.peers {
		if p.told {
			n++
		}
	}
	return n
}

// recorded notes dead letters; the journal calls it.
func (a *alerts) recorded(r *journal.Record) {
	for i := range r.Steps {
		if s := &r.Steps[i]; s.State == parley.Dead {
			why := "no reason was recorded"
			if s.Error != nil {
				why = string(s.Error.Code) + ": " + s.Error.Text
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
	var list []Alert
	a.mu.Lock()
	for name, p := range a.peers {
		if !p.told && p.failures > 1 && now.Sub(p.since) >= c.Broken.Duration {
			p.told = true
			list = append(list, Alert{Kind: alertBroken, About: name, Fix: "parley doctor " + name,
				Text: fmt.Sprintf("%s has failed %d times since %s: %s", name, p.failures,
					p.since.UTC().Format(time.RFC3339), p.reason)})
		}
	}
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
		a.n.metrics.alerts.WithLabelValues(v.Kind, "repeated").Inc()
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
	outcome := "skipped"
	switch {
	case a.config().Webhook == "":
		outcome = "logged"
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
			a.n.metrics.alerts.WithLabelValues(v.Kind, "sent").Inc()
			return
		}
		if try == alertTries || ctx.Err() != nil {
			a.n.metrics.alerts.WithLabelValues(v.Kind, "failed").Inc()
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
