package uagents

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"time"

	"github.com/parley-hub/parley/internal/sleep"
)

// A MailboxClient fetches the envelopes in the mailbox of an agent that cannot listen
// (mailbox.py).
type MailboxClient struct {
	Identity *Identity
	URL      string       // of the Agentverse or hub
	HTTP     *http.Client // nil: 10 s, no redirects
	// Verifier checks the fetched envelopes; its Self should be the agent. nil: a
	// zero Verifier with the identity's address as Self.
	Verifier *Verifier
	Interval time.Duration    // between polls; default 1 s
	Limit    int              // items of one poll; default 100
	MaxBody  int              // bytes of one poll; default 16 MiB
	Now      func() time.Time // nil: time.Now

	own     *Verifier
	token   string
	renewAt time.Time
}

// A StoredEnvelope is one item of a mailbox.
type StoredEnvelope struct {
	UUID       string // v4
	Envelope   *Envelope
	ReceivedAt time.Time
	ExpiresAt  time.Time
}

// A Delivery is a verified item of a mailbox.
type Delivery struct {
	*Verified
	Stored StoredEnvelope
}

const agentsAPI = "/v2/agents"

// Stream polls until ctx ends and yields the items, in order. An item is deleted
// after the loop's body, so that a crash repeats the item and does not lose it; items
// that fail verification, and duplicates, are deleted and not yielded. After an error,
// which is yielded too, polling goes on. Use one Stream at a time.
func (c *MailboxClient) Stream(ctx context.Context) iter.Seq2[*Delivery, error] {
	return func(yield func(*Delivery, error) bool) {
		if c.Identity == nil {
			yield(nil, ErrNoIdentity)
			return
		}
		v := c.Verifier
		if v == nil {
			// One Verifier for all Streams: it remembers the yielded messages.
			if c.own == nil {
				c.own = &Verifier{Self: c.Identity.address, Now: c.Now}
			}
			v = c.own
		}
		for {
			items, err := c.List(ctx)
			if err != nil && ctx.Err() == nil && !yield(nil, err) {
				return
			}
			for _, item := range items {
				verified, err := c.verify(ctx, v, item)
				if err == nil && !yield(&Delivery{verified, item}, nil) {
					// The body has seen the item and ended the loop. When Delete
					// fails, the item comes again, as after a crash.
					_ = c.Delete(context.WithoutCancel(ctx), item.UUID)
					return
				}
				if err != nil && !errors.Is(err, ErrReplay) {
					if !yield(nil, err) {
						return
					}
					if AsError(err).Retryable {
						continue // not the item's fault
					}
				}
				if err := c.Delete(ctx, item.UUID); err != nil && ctx.Err() == nil && !yield(nil, err) {
					return
				}
			}
			if sleep.For(ctx, cmp.Or(c.Interval, time.Second)) != nil {
				return
			}
		}
	}
}

func (c *MailboxClient) verify(ctx context.Context, v *Verifier, item StoredEnvelope) (*Verified, error) {
	if item.Envelope == nil {
		return nil, ErrShape
	}
	return v.Verify(ctx, item.Envelope.Raw())
}

// List fetches the waiting messages, oldest first. A mailbox that does not exist yet is
// empty. An item without an envelope has a nil Envelope.
func (c *MailboxClient) List(ctx context.Context) ([]StoredEnvelope, error) {
	url := apiURL(c.URL, agentsAPI, c.Identity.address, "mailbox")
	url += fmt.Sprintf("?limit=%d&offset=0", cmp.Or(c.Limit, 100))
	resp, body, err := c.do(ctx, http.MethodGet, url)
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode == http.StatusNotFound:
		return nil, nil
	case resp.StatusCode != http.StatusOK:
		return nil, ErrUndelivered.Because(fmt.Errorf("%d: %s", resp.StatusCode, detailOf(body)))
	}
	n, err := parse(body)
	if err != nil || n.kind != '[' {
		return nil, ErrResponse.Because(err)
	}
	var out []StoredEnvelope
	for _, one := range n.vals {
		item, err := storedOf(one)
		if err != nil {
			return nil, ErrResponse.Because(err)
		}
		out = append(out, item)
	}
	return out, nil
}

func storedOf(n *node) (StoredEnvelope, error) {
	item := StoredEnvelope{}
	u, ok := pyUUID(n.get("uuid"))
	if !ok {
		return item, errors.New("item has no uuid")
	}
	item.UUID = uuidText(u)
	b, err := pyCompact.write(nil, orNull(n.get("envelope")))
	if err != nil {
		return item, err
	}
	if item.Envelope, err = Decode(b); err != nil {
		item.Envelope = nil
	}
	received, err := timestampOf(n.get("received_at"))
	if err != nil {
		return item, err
	}
	expires, err := timestampOf(n.get("expires_at"))
	if err != nil {
		return item, err
	}
	item.ReceivedAt, item.ExpiresAt = received.Time, expires.Time
	return item, nil
}

// Delete removes an item. A missing item is no error.
func (c *MailboxClient) Delete(ctx context.Context, uuid string) error {
	resp, body, err := c.do(ctx, http.MethodDelete, apiURL(c.URL, agentsAPI, c.Identity.address, "mailbox", uuid))
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 && resp.StatusCode != http.StatusNotFound {
		return ErrUndelivered.Because(fmt.Errorf("%d: %s", resp.StatusCode, detailOf(body)))
	}
	return nil
}

func (c *MailboxClient) do(ctx context.Context, method, url string) (*http.Response, []byte, error) {
	now := clock(c.Now)
	if c.token == "" || !now.Before(c.renewAt) {
		token, err := c.Identity.NewToken(now, TokenLifetime)
		if err != nil {
			return nil, nil, err
		}
		c.token, c.renewAt = token, now.Add(TokenLifetime-10*time.Second)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Authorization", "Agent "+c.token)
	resp, body, err := do(plainHTTP(c.HTTP), req, cmp.Or(c.MaxBody, 16<<20))
	if err != nil {
		return nil, nil, ErrUndelivered.Because(err)
	}
	return resp, body, nil
}
