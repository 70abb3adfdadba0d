package a2e

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"io/fs"
	"net"
	"syscall"
	"time"

	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/netguard"
)

// link is one connection to a host. It passes received lines to [Client.received], and
// calls [Client.broken] when it fails.
type link interface {
	// send hands over one line, which ends with LF. [ErrOutcomeUnknown] means that the
	// host may have the line.
	send(ctx context.Context, line []byte) error
	// close ends the link, after a last line if there is one.
	close(last []byte)
	// end ends the link at once. down reports whether the link has ended.
	end()
	down() bool
	// remembers is told whether the host remembers the ids of requests.
	remembers(yes bool)
}

// attempts are the efforts to get one connection.
type attempts struct {
	done chan struct{}
	err  error // why the client gave up; set before done is closed
	last error // error of the last attempt; guarded by the client's mu
}

const (
	notYet  leaving = iota // no link took the line
	leaves                 // a link is about to take it
	hasLeft                // the host may have it
)

// leaving says whether the host may have a request.
type leaving uint8

// establishLocked starts to connect, unless an attempt is running.
func (c *Client) establishLocked(again bool) *attempts {
	if c.attempts == nil {
		c.attempts = &attempts{done: make(chan struct{})}
		go c.establish(c.attempts, again)
	}
	return c.attempts
}

// establish dials and shakes hands. A first connection fails at once; after a broken
// one, establish retries while a request waits.
func (c *Client) establish(a *attempts, again bool) {
	pause := c.limits.BackoffLo
	for {
		err := c.attempt()
		e, own := errors.AsType[*Error](err)
		hopeless := own && !e.Retryable && e.Step != "transport"
		c.mu.Lock()
		if err != nil && !hopeless && c.FailFast {
			c.failUnsentLocked(unreachable(err))
		}
		if err == nil || hopeless || !again || c.closed || !c.waitingLocked() {
			if err != nil {
				if !hopeless {
					e = unreachable(err)
				}
				a.err = e
				c.failAllLocked(e)
			}
			c.attempts = nil
			close(a.done)
			c.mu.Unlock()
			return
		}
		a.last = err
		c.mu.Unlock()
		c.Log.Debug("a2e: connecting", "err", err, "again_in", pause)
		select {
		case <-time.After(pause):
		case <-c.ctx.Done():
		}
		pause = min(2*pause, c.limits.BackoffHi)
	}
}

// attempt makes one connection: dial, handshake, and the requests in flight again.
func (c *Client) attempt() error {
	ctx, cancel := context.WithTimeout(c.ctx, c.limits.Handshake)
	defer cancel()
	l, err := c.dial(ctx)
	if err != nil {
		return err
	}
	if err := c.greet(ctx, l); err != nil {
		l.close(nil)
		return err
	}
	c.linked(true)
	return nil
}

// greet shakes hands over l, and makes it the connection of the client.
func (c *Client) greet(ctx context.Context, l link) error {
	caps := c.Capabilities
	if caps == nil {
		caps = capabilityNames
	}
	body := map[string]any{"agent_id": c.AgentID, "agent_caps": caps, "auth_token": c.Token}
	old := c.SessionID()
	if old != "" {
		body["session_id"] = old // an extension: resume that session
	}
	resp, err := c.askOver(ctx, l, Message{Type: "handshake/req", Body: body})
	if err != nil {
		return err
	}
	if resp.Type != "handshake/resp" || !resp.Bool("ok") {
		return &Error{Code: Unauthorized, Reason: clip(resp.Str("reason"), maxText), Text: "handshake refused",
			Step: "handshake"}
	}
	return c.adopt(l, resp, old)
}

func (c *Client) linked(up bool) {
	if c.OnLink != nil {
		c.OnLink(up)
	}
}

// adopt makes l the connection of the client.
func (c *Client) adopt(l link, resp *Envelope, old string) error {
	session, resume := resp.Str("session_id"), false
	var accepted []string
	for _, v := range resp.Values("accepted_caps") {
		var entry struct {
			Capability string `json:"capability"`
			Enabled    *bool  `json:"enabled"`
			Metadata   struct {
				Resume bool `json:"resume"`
			} `json:"metadata"`
		}
		if err := jsonx.Decode(v, &entry); err != nil {
			continue
		}
		if entry.Enabled == nil || *entry.Enabled {
			accepted = append(accepted, entry.Capability)
		}
		resume = resume || entry.Metadata.Resume
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || l.down() {
		return ErrClosed
	}
	resumed := old != "" && session == old && resume && c.resume
	c.session, c.accepted, c.resume = session, accepted, resume
	c.link = l
	l.remembers(resume)
	if resumed {
		c.againLocked(l)
		return nil
	}
	for _, p := range c.pending {
		p.lose(ErrOutcomeUnknown)
	}
	return nil
}

// reopened is called by a link that reached its host again, with the same session. A
// restarted host works on no earlier request; a host that still does knows the ids.
func (c *Client) reopened(l link) {
	c.mu.Lock()
	if c.link == l && c.resume {
		c.againLocked(l)
	}
	c.mu.Unlock()
	c.linked(true)
}

// againLocked sends again the requests that the host may have had before the connection
// broke. First a ping fetches the frames that the host kept, for the answer may be
// among them: the pong comes after them.
func (c *Client) againLocked(l link) {
	var calls []*call
	for _, p := range c.pending {
		if p.mayBeThere() {
			calls = append(calls, p)
		}
	}
	if calls == nil {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(c.ctx, c.limits.Handshake)
		defer cancel()
		if _, err := c.askOver(ctx, l, Message{Type: "ping"}); err != nil {
			c.Log.Debug("a2e: ping after coming back", "err", err)
		}
		for _, p := range calls {
			if !p.mayBeThere() {
				continue
			}
			// If sending fails, the link breaks and the next one sends the request
			// again.
			if err := l.send(c.ctx, p.now()); err != nil {
				c.Log.Debug("a2e: resend", "err", err)
			}
		}
	}()
}

// broken gives a link up and ends it: two links to one session would take the stream
// from each other.
func (c *Client) broken(l link, err error) {
	l.end()
	if c.unlink(l, err) {
		c.linked(false)
	}
}

// unlink removes l and reports whether it was the client's connection; the client goes
// on.
func (c *Client) unlink(l link, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pending {
		if p.over == l {
			p.fail(ErrClosed.Because(err))
		}
	}
	if c.link != l {
		return false
	}
	c.link = nil
	if c.closed {
		return false
	}
	c.Log.Debug("a2e: connection broken", "err", err)
	if !c.resume {
		for _, p := range c.pending {
			p.lose(ErrOutcomeUnknown.Because(err))
		}
	}
	if c.waitingLocked() {
		c.establishLocked(true)
	}
	return true
}

// unreached gives the reason why a request had not left when its time was over.
func (c *Client) unreached(ctx context.Context) error {
	cause := ctx.Err()
	if !errors.Is(cause, context.DeadlineExceeded) || context.Cause(ctx) == ErrTimeout {
		return waitError(ctx)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.attempts != nil && c.attempts.last != nil {
		cause = c.attempts.last
	}
	return unreachable(cause)
}

// unreachable says why a host cannot be reached, without addresses, so that the text
// may be passed on.
func unreachable(cause error) *Error {
	e := ErrUnreachable.Because(cause)
	if why := whyUnreachable(cause); why != "" {
		e.Text += ": " + why
	}
	return e
}

func whyUnreachable(err error) string {
	text := ""
	for own := (*Error)(nil); errors.As(err, &own); err = own.cause {
		text = own.Text
		if errors.Is(own, ErrClosed) {
			text = "it closed the connection"
		}
	}
	var dns *net.DNSError
	var certificate *tls.CertificateVerificationError
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "no route to it"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF), errors.Is(err,
		io.ErrUnexpectedEOF):
		return "it closed the connection"
	case errors.Is(err, fs.ErrNotExist):
		return "its socket or program does not exist"
	case errors.As(err, &dns) && dns.IsNotFound:
		return "its name is not known"
	case errors.As(err, &certificate):
		return "its certificate is not accepted"
	case errors.Is(err, netguard.ErrBlocked):
		return "its address is not allowed"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "no answer in time"
	}
	return text
}

func waitError(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return ErrTimeout.Because(ctx.Err())
	}
	return ctx.Err()
}

// waitingLocked reports whether any request still waits for its answer.
func (c *Client) waitingLocked() bool {
	for _, p := range c.pending {
		if p.open() {
			return true
		}
	}
	return false
}

func (c *Client) failAllLocked(err error) {
	for _, p := range c.pending {
		p.fail(err)
	}
}

// failUnsentLocked fails the requests that have not left.
func (c *Client) failUnsentLocked(err error) {
	for _, p := range c.pending {
		if !p.mayBeThere() {
			p.fail(err)
		}
	}
}
