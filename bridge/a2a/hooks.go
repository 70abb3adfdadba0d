package a2a

import (
	"context"
	"crypto/cipher"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"golang.org/x/crypto/chacha20poly1305"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/internal/sleep"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/policy"
)

// webhooks keeps the push notification configurations of tasks.
type webhooks struct {
	b     *Binding
	guard *netguard.Guard
	seal  cipher.AEAD
	// resolve finds the addresses of a host.
	resolve func(ctx context.Context, network, host string) ([]netip.Addr, error)

	mu    sync.RWMutex
	open  map[parley.ID][]string // ids of the configurations of tasks that have not ended, sorted
	ended []parley.ID            // tasks that ended; their configurations are to expire
	wake  chan struct{}          // has a token while ended has entries
}

func newWebhooks(b *Binding, guard *netguard.Guard) (*webhooks, error) {
	key, err := b.c.Keys.Secret("a2a push", chacha20poly1305.KeySize)
	if err != nil {
		return nil, err
	}
	seal, err := chacha20poly1305.NewX(key)
	if err != nil {
		return nil, err
	}
	return &webhooks{b: b, guard: guard, seal: seal, resolve: net.DefaultResolver.LookupNetIP,
		open: map[parley.ID][]string{}, wake: make(chan struct{}, 1)}, nil
}

// start reads the configurations, and lets those expire whose task ended while no hub ran.
func (w *webhooks) start(ctx context.Context) error {
	stop, err := w.b.hooks.Follow(ctx, w.changed)
	if err != nil {
		return err
	}
	w.b.stops = append(w.b.stops, stop, w.b.c.Journal.Watch(w.recorded))
	for _, row := range w.b.hooks.All() {
		task, _, ok := parseHookKey(row.Key)
		// A younger one may be of a request that another hub is about to record.
		if ok && row.Until.IsZero() && w.b.c.Now().Sub(row.Value.Made) > time.Minute && w.over(task, row.Value.Agent) {
			w.end(task)
		}
	}
	w.b.work.Go(w.expire)
	return nil
}

// over reports whether a task has ended, or was never recorded.
func (w *webhooks) over(task parley.ID, agent string) bool {
	v, open := w.b.c.Journal.Delivery(task, agent)
	return !open || v.State == parley.Dead
}

func (w *webhooks) changed(before, after journal.Row[hookRow]) {
	key := after.Key
	if key == "" {
		key = before.Key
	}
	task, id, ok := parseHookKey(key)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := w.open[task]
	i, is := slices.BinarySearch(ids, id)
	switch live := after.Revision != 0 && after.Until.IsZero(); {
	case live && !is:
		w.open[task] = slices.Insert(slices.Clone(ids), i, id)
	case !live && is && len(ids) == 1:
		delete(w.open, task)
	case !live && is:
		w.open[task] = slices.Delete(slices.Clone(ids), i, i+1)
	}
}

// of names the configurations of a task that has not ended. The caller must not change the list.
func (w *webhooks) of(task parley.ID) []string {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.open[task]
}

// recorded gets every record of the journal.
func (w *webhooks) recorded(r *journal.Record) {
	if m := r.Message; m != nil && m.Kind.Terminal() && r.Refused == nil && len(w.of(m.InReplyTo)) > 0 {
		w.end(m.InReplyTo)
	}
}

// end notes that a task has ended.
func (w *webhooks) end(task parley.ID) {
	w.mu.Lock()
	if !slices.Contains(w.ended, task) {
		w.ended = append(w.ended, task)
	}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// hookRest is how long the configuration of a task that has ended is kept: longer than its last
// notification is tried.
const hookRest = 72 * time.Hour

// pause before a failed change of the state is repeated.
const pause = time.Second

// expire gives the configurations of ended tasks their end.
func (w *webhooks) expire() {
	for {
		w.mu.Lock()
		ended := w.ended
		w.ended = nil
		w.mu.Unlock()
		for i, task := range ended {
			if err := w.expireOf(task); err != nil {
				for _, again := range ended[i:] {
					w.end(again)
				}
				w.b.c.Logger.Warn("cannot end the webhooks of a task; trying again", "task", task, "error", err)
				if sleep.For(w.b.ctx, pause) != nil {
					return
				}
				break
			}
		}
		select {
		case <-w.wake:
		case <-w.b.ctx.Done():
			return
		}
	}
}

func (w *webhooks) expireOf(task parley.ID) error {
	for _, id := range w.of(task) {
		_, err := w.b.hooks.Change(w.b.ctx, hookKey(task, id), func(r *journal.Row[hookRow]) (bool, error) {
			if r.Revision == 0 || !r.Until.IsZero() {
				return false, nil
			}
			r.Until = w.b.c.Now().Add(hookRest)
			return true, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// put sets a configuration, which passed checkHook, and gives it an id if it has none.
func (w *webhooks) put(ctx context.Context, c *call, task parley.ID, p *protocol.PushConfig) error {
	if p.ID == "" {
		id, err := parley.NewID(w.b.c.Now(), w.b.random())
		if err != nil {
			return parley.Refuse(parley.Internal, "internal error").Because(err)
		}
		p.ID = id.String()
	}
	key := hookKey(task, p.ID)
	row := hookRow{Caller: c.caller.Name, Agent: c.agent, URL: p.URL, Version: c.version, Made: w.b.c.Now().UTC()}
	secrets := hookSecrets{Token: p.Token}
	if p.Auth != nil {
		row.Scheme, secrets.Credentials = p.Auth.Scheme, p.Auth.Credentials
	}
	plain, err := jsonx.Encode(secrets)
	if err != nil {
		return invalidParams("token", "it is not valid UTF-8")
	}
	nonce := make([]byte, w.seal.NonceSize(), w.seal.NonceSize()+len(plain)+w.seal.Overhead())
	if _, err := w.b.random().Read(nonce); err != nil {
		return parley.Refuse(parley.Internal, "internal error").Because(err)
	}
	row.Sealed = w.seal.Seal(nonce, nonce, plain, []byte(key))
	if c.caller.Guest {
		if err := w.b.c.Hub.Guests().Write(policy.SourceOf(ctx), len(row.URL)+len(row.Sealed)+512); err != nil {
			return err
		}
	}
	before := w.b.hooks.Known(key)
	if _, err := w.b.hooks.Put(ctx, key, row, time.Time{}); err != nil {
		return unrecorded(err)
	}
	// Counted after it is there, so that calls at the same time cannot exceed the limit together.
	if before.Revision == 0 && len(w.of(task)) > w.b.c.Webhooks {
		if err := w.b.hooks.Delete(ctx, key, 0); err != nil {
			return unrecorded(err)
		}
		return parley.Refuse(parley.RateLimited, "a task has at most %d webhooks", w.b.c.Webhooks).
			With(parley.ByLimit, "", "")
	}
	return nil
}

func unrecorded(err error) error {
	return parley.Fail(parley.Unavailable, err, "the webhook cannot be recorded now; try again").
		With(parley.ByHub, parley.HubStorage, "")
}

// hookWait bounds the look-up of a webhook's host, and the removal of its configuration.
const hookWait = 5 * time.Second

// drop removes the configurations of a request that was not recorded.
func (w *webhooks) drop(task parley.ID) {
	ctx, cancel := context.WithTimeout(w.b.ctx, hookWait)
	defer cancel()
	for _, id := range w.of(task) {
		if err := w.b.hooks.Delete(ctx, hookKey(task, id), 0); err != nil {
			w.b.c.Logger.Warn("cannot remove the webhook of a request that was not recorded", "task", task, "error", err)
			w.end(task)
		}
	}
}

// config gives a row in the form of the protocol, with its secrets: only its owner gets it.
func (w *webhooks) config(row journal.Row[hookRow]) (*protocol.PushConfig, error) {
	task, id, _ := parseHookKey(row.Key)
	s, err := w.secrets(row)
	if err != nil {
		return nil, err
	}
	p := &protocol.PushConfig{TaskID: protocol.TaskID(task.String()), ID: id, URL: row.Value.URL, Token: s.Token}
	if row.Value.Scheme != "" {
		p.Auth = &protocol.PushAuthInfo{Scheme: row.Value.Scheme, Credentials: s.Credentials}
	}
	return p, nil
}

func (w *webhooks) secrets(row journal.Row[hookRow]) (s hookSecrets, err error) {
	sealed, n := row.Value.Sealed, w.seal.NonceSize()
	if len(sealed) < n {
		return s, fmt.Errorf("the secrets of webhook %s are cut", row.Key)
	}
	plain, err := w.seal.Open(nil, sealed[:n], sealed[n:], []byte(row.Key))
	if err != nil {
		return s, fmt.Errorf("the secrets of webhook %s: %w", row.Key, err)
	}
	return s, json.Unmarshal(plain, &s)
}

// hookID is the form of a configuration's id: it is part of the name of its deliveries.
var hookID = regexp.MustCompile(`^[A-Za-z0-9._:@=+~-]{1,128}$`)

// Bounds of a configuration, in bytes.
const (
	maxHookURL    = 2 << 10
	maxHookSecret = 4 << 10
)

// checkHook checks a configuration (rules A2A-050 and A2A-052), and writes its scheme in the
// usual way.
func (b *Binding) checkHook(p *protocol.PushConfig) error {
	if p.ID != "" && !hookID.MatchString(p.ID) {
		return invalidParams("taskPushNotificationConfig.id", "want 1 to 128 letters, digits and . _ : @ = + ~ -")
	}
	if !headerValue(p.Token) {
		return invalidParams("taskPushNotificationConfig.token", "it cannot be the value of a header")
	}
	if a := p.Auth; a != nil {
		scheme := ""
		for _, s := range []string{"Bearer", "Basic"} {
			if strings.EqualFold(a.Scheme, s) {
				scheme = s
			}
		}
		if scheme == "" {
			return invalidParams("taskPushNotificationConfig.authentication.scheme", "want Bearer or Basic")
		}
		if !headerValue(a.Credentials) {
			return invalidParams("taskPushNotificationConfig.authentication.credentials", "it cannot be the value of a header")
		}
		p.Auth = &protocol.PushAuthInfo{Scheme: scheme, Credentials: a.Credentials}
	}
	return b.webhooks.checkURL(p.URL)
}

// headerValue reports whether a text can be the value of a header.
func headerValue(s string) bool {
	return len(s) <= maxHookSecret && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}

// checkURL checks the address of a webhook, all that its host resolves to included. The
// connection is checked again when it is made.
func (w *webhooks) checkURL(text string) error {
	const field = "taskPushNotificationConfig.url"
	if text == "" {
		return invalidParams(field, "it is required")
	}
	u, err := url.Parse(text)
	if err != nil || len(text) > maxHookURL {
		return invalidParams(field, "it is not a URL of at most %d bytes", maxHookURL)
	}
	plain := strings.EqualFold(u.Scheme, "http") && w.b.c.PlainPush
	if !plain && !strings.EqualFold(u.Scheme, "https") {
		return invalidParams(field, "want https")
	}
	if w.guard.CheckURL(u) != nil { // its text is for the operator
		return invalidParams(field, "the hub does not call this address")
	}
	ctx, cancel := context.WithTimeout(w.b.ctx, hookWait)
	defer cancel()
	addresses, err := w.resolve(ctx, "ip", u.Hostname())
	if err != nil || len(addresses) == 0 {
		return invalidParams(field, "its host has no address")
	}
	for _, a := range addresses {
		a = a.Unmap()
		if w.guard.CheckAddr(a) != nil {
			return invalidParams(field, "the hub does not call this address")
		}
		if plain && !slices.ContainsFunc(w.guard.Prefixes(), func(p netip.Prefix) bool { return p.Contains(a) }) {
			return invalidParams(field, "want https")
		}
	}
	return nil
}
