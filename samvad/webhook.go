package samvad

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/internal/sleep"
)

// Defaults of [Webhook].
const (
	DefaultWebhookTimeout  = 10 * time.Second
	DefaultWebhookAttempts = 5
	DefaultWebhookBackoff  = time.Second
)

// A Webhook sends the outcome of tasks to callback URLs (SAMVAD 1.2 §8.1): on success
// and on failure, signed when there is a signer, repeated with growing pauses, never
// following a redirect, never to an internal address (SAM-131). The zero value is
// ready; it must not be copied.
type Webhook struct {
	HTTP     *http.Client // nil: a client of Guard
	Guard    Guard
	Now      func() time.Time
	Timeout  time.Duration // of one attempt; 0 = [DefaultWebhookTimeout]
	Attempts int           // 0 = [DefaultWebhookAttempts]
	Backoff  time.Duration // before the second attempt, then doubling; 0 = [DefaultWebhookBackoff]

	once sync.Once
	http *http.Client
}

func (h *Webhook) client() *http.Client {
	h.once.Do(func() {
		if h.HTTP != nil {
			h.http = withoutRedirects(h.HTTP)
			return
		}
		h.http = netguardOf(h.Guard, "Webhook.Guard").
			Client(netguard.Options{Timeout: cmp.Or(h.Timeout, DefaultWebhookTimeout), MaxRedirects: -1})
	})
	return h.http
}

func withoutRedirects(c *http.Client) *http.Client {
	d := *c
	d.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &d
}

// Send delivers a reply. It returns when the receiver took it (any 2xx), when
// it refused for good (a redirect or another 4xx than 408 and 429), or when
// the attempts are used up. The signer may be nil.
func (h *Webhook) Send(ctx context.Context, s Signer, callback string, r *Reply) error {
	pause := cmp.Or(h.Backoff, DefaultWebhookBackoff)
	for n := 1; ; n++ {
		again, after, err := h.Once(ctx, s, callback, r)
		if err == nil || !again || n >= cmp.Or(h.Attempts, DefaultWebhookAttempts) {
			return err
		}
		pause = max(pause, min(after, time.Minute))
		if ended := sleep.For(ctx, pause); ended != nil {
			return errors.Join(ended, err)
		}
		pause *= 2
	}
}

// Once makes one attempt, for callers that keep replies and retry themselves: again
// says whether a later attempt may succeed, and after gives the pause that the
// receiver asked for, if any. The signer may be nil.
func (h *Webhook) Once(ctx context.Context, s Signer, callback string, r *Reply) (again bool, after time.Duration,
	err error) {
	if err := CheckCallback(callback, h.Guard); err != nil {
		return false, 0, err
	}
	body, err := r.Encode()
	if err != nil {
		return false, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(h.Timeout, DefaultWebhookTimeout))
	defer cancel()
	u, err := url.Parse(callback)
	if err != nil {
		return false, 0, because(ErrCallback, err)
	}
	u.Fragment = ""
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(body))
	if err != nil {
		return false, 0, because(ErrCallback, err)
	}
	req.Header.Set("Content-Type", "application/json")
	if s != nil {
		sig, err := Sign(s, http.MethodPost, cmp.Or(u.EscapedPath(), "/"), body, nowOf(h.Now))
		if err != nil {
			return false, 0, err
		}
		sig.Set(req.Header)
	}
	resp, err := h.client().Do(req)
	if err != nil {
		return !errors.Is(err, netguard.ErrBlocked), 0, because(ErrUnavailable, err)
	}
	defer closeBody(resp.Body)
	code := resp.StatusCode
	if code/100 == 2 {
		return false, 0, nil
	}
	again = code/100 == 5 || code == http.StatusTooManyRequests || code == http.StatusRequestTimeout
	return again, retryAfter(resp.Header), because(ErrUnavailable, fmt.Errorf("webhook: status %d", code))
}

// CheckCallback decides whether a callback URL may be used (SAMVAD 1.2 §8.2,
// SAM-130): absolute, https, no user information, and a host that the guard does not
// know to be internal. The address it resolves to is checked again when the webhook
// is sent. The error wraps [ErrCallback].
func CheckCallback(callback string, g Guard) error {
	if len(callback) > 2048 {
		return because(ErrCallback, errors.New("longer than 2048 bytes"))
	}
	u, err := url.Parse(callback)
	if err != nil {
		return because(ErrCallback, err)
	}
	if u.Scheme != "https" || u.Host == "" || u.Opaque != "" {
		return because(ErrCallback, fmt.Errorf("not an absolute https URL"))
	}
	if err := netguardOf(g, "Webhook.Guard").CheckURL(u); err != nil {
		return because(ErrCallback, err)
	}
	return nil
}
