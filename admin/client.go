package admin

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/keyring"
)

// A Client calls the HTTP API of a hub. Its methods mirror those of [Admin].
// What the hub refuses is a [*parley.Error] with the API's code, text and
// reference; a hub that does not answer is an [*UnreachableError].
type Client struct {
	Base  string       // URL of the admin API: "http://127.0.0.1:9090"
	Token string       // secret of one of the hub's [Tokens]
	HTTP  *http.Client // nil: [http.DefaultClient]'s transport without a time limit; use contexts
}

// UnreachableError says that no hub answers, or not one that is understood.
type UnreachableError struct {
	Base string
	Err  error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("no hub answers at %s: %v", e.Base, e.Err)
}

// Unwrap gives the cause.
func (e *UnreachableError) Unwrap() error { return e.Err }

const maxAnswer = 64 << 20

func (c *Client) request(ctx context.Context, method, path string, query url.Values, body any) (*http.Request, error) {
	u := strings.TrimRight(c.Base, "/") + "/v1" + path
	if len(query) > 0 {
		u += "?" + query.Encode()
	}
	var r io.Reader
	if body != nil {
		b, err := jsonx.Encode(body)
		if err != nil {
			return nil, err
		}
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, u, r)
	if err != nil {
		return nil, &UnreachableError{c.Base, err}
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	return req, nil
}

func (c *Client) send(req *http.Request) (*http.Response, error) {
	h := c.HTTP
	if h == nil {
		h = http.DefaultClient
	}
	resp, err := h.Do(req)
	if err != nil {
		if ctx := req.Context(); ctx.Err() != nil {
			return nil, ctx.Err()
		}
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err
		}
		return nil, &UnreachableError{c.Base, err}
	}
	if resp.StatusCode < 300 || resp.StatusCode == http.StatusServiceUnavailable && strings.HasSuffix(req.URL.Path, "/v1/ready") {
		return resp, nil
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, &UnreachableError{c.Base, err}
	}
	var p problemBody
	if jsonx.Decode(b, &p) != nil || p.Error.Code == "" {
		return nil, &UnreachableError{c.Base, fmt.Errorf("%s: what answers is not a hub's admin API", resp.Status)}
	}
	e := &parley.Error{Code: p.Error.Code, Text: p.Error.Text, Ref: p.Error.Ref, Retryable: p.Error.Retryable}
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
		e.After = time.Duration(s) * time.Second
	}
	if resp.StatusCode == http.StatusUnauthorized {
		return nil, fmt.Errorf("%w: %w", ErrToken, e)
	}
	return nil, e
}

// ErrToken says that the hub does not know the client's token.
var ErrToken = errors.New("the hub does not accept the token")

func (c *Client) do(ctx context.Context, method, path string, query url.Values, body, out any) error {
	req, err := c.request(ctx, method, path, query, body)
	if err != nil {
		return err
	}
	return c.decode(req, out)
}

func (c *Client) decode(req *http.Request, out any) error {
	resp, err := c.send(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		if ctx := req.Context(); ctx.Err() != nil {
			return ctx.Err()
		}
		return &UnreachableError{c.Base, err}
	}
	if out == nil {
		return nil
	}
	if err := jsonx.Decode(b, out); err != nil {
		return &UnreachableError{c.Base, fmt.Errorf("the answer is not understood: %w", err)}
	}
	return nil
}

func agentPath(name, rest string) string { return "/agents/" + url.PathEscape(name) + rest }

// Info tells what the hub is and where it is reached.
func (c *Client) Info(ctx context.Context) (Info, error) {
	var v Info
	err := c.do(ctx, "GET", "/info", nil, nil, &v)
	return v, err
}

// Ready is nil while the hub takes messages.
func (c *Client) Ready(ctx context.Context) error {
	var v struct {
		Ready  bool   `json:"ready"`
		Reason string `json:"reason"`
	}
	if err := c.do(ctx, "GET", "/ready", nil, nil, &v); err != nil {
		return err
	}
	if !v.Ready {
		return parley.Fail(parley.Unavailable, nil, "the hub is not ready: %s", v.Reason)
	}
	return nil
}

// Stats tells how much is going on.
func (c *Client) Stats(ctx context.Context) (Stats, error) {
	var v Stats
	err := c.do(ctx, "GET", "/stats", nil, nil, &v)
	return v, err
}

// Agents lists the directory by name.
func (c *Client) Agents(ctx context.Context) ([]Agent, error) {
	var v agentList
	err := c.do(ctx, "GET", "/agents", nil, nil, &v)
	return v.Agents, err
}

// Agent gives one agent; with a wait, after it has sent something.
func (c *Client) Agent(ctx context.Context, name string, wait time.Duration) (Agent, error) {
	var v Agent
	q := url.Values{}
	if wait > 0 {
		q.Set("wait", wait.String())
	}
	err := c.do(ctx, "GET", agentPath(name, ""), q, nil, &v)
	return v, err
}

// AddAgent adds an agent, or replaces one that an operator added.
func (c *Client) AddAgent(ctx context.Context, n NewAgent) (Agent, error) {
	var v Agent
	err := c.do(ctx, "POST", "/agents", nil, n, &v)
	return v, err
}

// RemoveAgent takes an agent out, with its keys.
func (c *Client) RemoveAgent(ctx context.Context, name string) error {
	return c.do(ctx, "DELETE", agentPath(name, ""), nil, nil, nil)
}

// Pause holds deliveries to an agent back, or lets them go on.
func (c *Client) Pause(ctx context.Context, name string, paused bool) (Agent, error) {
	var v Agent
	path := "/resume"
	if paused {
		path = "/pause"
	}
	err := c.do(ctx, "POST", agentPath(name, path), nil, nil, &v)
	return v, err
}

// Expose sets the protocols in which the hub stands in for an agent.
func (c *Client) Expose(ctx context.Context, name string, protocols []string) (Agent, error) {
	var v Agent
	err := c.do(ctx, "POST", agentPath(name, "/expose"), nil, exposure{protocols}, &v)
	return v, err
}

// Link says that a further identity is this agent's.
func (c *Client) Link(ctx context.Context, name string, id NewIdentity) (Agent, error) {
	var v Agent
	err := c.do(ctx, "POST", agentPath(name, "/link"), nil, id, &v)
	return v, err
}

// Collect gives at most limit messages of an inbox, after at most wait.
func (c *Client) Collect(ctx context.Context, name string, limit int, wait time.Duration) ([]*Message, error) {
	var v messageList
	q := url.Values{}
	if wait > 0 {
		q.Set("wait", wait.String())
	}
	if limit > 0 {
		q.Set("max", strconv.Itoa(limit))
	}
	err := c.do(ctx, "GET", agentPath(name, "/inbox"), q, nil, &v)
	return v.Messages, err
}

func (c *Client) sending(ctx context.Context, s Send, mode string) (*http.Request, error) {
	q := url.Values{}
	if mode != "" {
		q.Set(mode, "true")
	}
	req, err := c.request(ctx, "POST", "/messages", q, s)
	if err == nil && s.IdempotencyKey != "" {
		req.Header.Set("Idempotency-Key", s.IdempotencyKey)
	}
	return req, err
}

// Send records a message and sets its delivery going.
func (c *Client) Send(ctx context.Context, s Send) (Receipt, error) {
	return c.post(ctx, s, "")
}

// Ask sends a request and waits for its terminal reply.
func (c *Client) Ask(ctx context.Context, s Send) (Receipt, error) {
	return c.post(ctx, s, "wait")
}

func (c *Client) post(ctx context.Context, s Send, mode string) (Receipt, error) {
	var v Receipt
	req, err := c.sending(ctx, s, mode)
	if err != nil {
		return v, err
	}
	err = c.decode(req, &v)
	return v, err
}

// Stream sends a request, tells accepted (which may be nil) when it is
// recorded, and yields its events as they come, last its terminal reply.
// Breaking off cancels it.
func (c *Client) Stream(ctx context.Context, s Send, accepted func(Receipt)) iter.Seq2[*Message, error] {
	return func(yield func(*Message, error) bool) {
		req, err := c.sending(ctx, s, "stream")
		if err != nil {
			yield(nil, err)
			return
		}
		for e, err := range c.events(req) {
			m := &Message{}
			switch {
			case err != nil:
			case e.name == "accepted":
				var r Receipt
				if err = jsonx.Decode(e.data, &r); err == nil {
					if accepted != nil {
						accepted(r)
					}
					continue
				}
			default:
				err = jsonx.Decode(e.data, m)
			}
			if err != nil {
				yield(nil, err)
				return
			}
			if !yield(m, nil) || e.name == "reply" {
				return
			}
		}
	}
}

// Inbox yields the messages of an inbox until ctx ends or the loop breaks off.
func (c *Client) Inbox(ctx context.Context, name string) iter.Seq2[*Message, error] {
	return func(yield func(*Message, error) bool) {
		req, err := c.request(ctx, "GET", agentPath(name, "/inbox"), nil, nil)
		if err != nil {
			yield(nil, err)
			return
		}
		req.Header.Set("Accept", "text/event-stream")
		for e, err := range c.events(req) {
			m := &Message{}
			if err == nil {
				err = jsonx.Decode(e.data, m)
			}
			if err != nil {
				yield(nil, err)
				return
			}
			if !yield(m, nil) {
				return
			}
		}
	}
}

type event struct {
	name string
	data []byte
}

// events reads server-sent events as this API writes them: one data line each.
// An event named error becomes an error.
func (c *Client) events(req *http.Request) iter.Seq2[event, error] {
	return func(yield func(event, error) bool) {
		resp, err := c.send(req)
		if err != nil {
			yield(event{}, err)
			return
		}
		defer resp.Body.Close()
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, maxAnswer)
		var e event
		for lines.Scan() {
			line := lines.Bytes()
			if v, found := bytes.CutPrefix(line, []byte("event: ")); found {
				e.name = string(v)
			} else if v, found := bytes.CutPrefix(line, []byte("data: ")); found {
				e.data = bytes.Clone(v)
			} else if len(line) == 0 && e.data != nil {
				if e.name == "error" {
					var p problemBody
					if err := jsonx.Decode(e.data, &p); err != nil {
						yield(event{}, &UnreachableError{c.Base, err})
						return
					}
					yield(event{}, &parley.Error{Code: p.Error.Code, Text: p.Error.Text, Ref: p.Error.Ref, Retryable: p.Error.Retryable})
					return
				}
				if !yield(e, nil) {
					return
				}
				e = event{}
			}
		}
		switch ctx := req.Context(); {
		case ctx.Err() != nil:
			yield(event{}, ctx.Err())
		case lines.Err() != nil:
			yield(event{}, &UnreachableError{c.Base, lines.Err()})
		default:
			yield(event{}, &UnreachableError{c.Base, io.ErrUnexpectedEOF})
		}
	}
}

// Dead lists dead letters, the oldest first.
func (c *Client) Dead(ctx context.Context, f DeadFilter) ([]DeadLetter, error) {
	q := url.Values{}
	for name, v := range map[string]string{"to": f.To, "from": f.From, "code": string(f.Code)} {
		if v != "" {
			q.Set(name, v)
		}
	}
	for name, t := range map[string]time.Time{"since": f.Since, "before": f.Before} {
		if !t.IsZero() {
			q.Set(name, t.Format(time.RFC3339Nano))
		}
	}
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	var v deadList
	err := c.do(ctx, "GET", "/dead", q, nil, &v)
	return v.Dead, err
}

func toQuery(to string) url.Values {
	if to == "" {
		return nil
	}
	return url.Values{"to": {to}}
}

// DeadLetter gives one with its message.
func (c *Client) DeadLetter(ctx context.Context, id parley.ID, to string) (DeadLetter, error) {
	var v DeadLetter
	err := c.do(ctx, "GET", "/dead/"+id.String(), toQuery(to), nil, &v)
	return v, err
}

// Retry revives a dead letter: same message, same ID.
func (c *Client) Retry(ctx context.Context, id parley.ID, to string) (DeadLetter, error) {
	var v DeadLetter
	err := c.do(ctx, "POST", "/dead/"+id.String()+"/retry", toQuery(to), nil, &v)
	return v, err
}

// Drop gives a dead letter up for good.
func (c *Client) Drop(ctx context.Context, id parley.ID, to, reason string) (DeadLetter, error) {
	var v DeadLetter
	err := c.do(ctx, "POST", "/dead/"+id.String()+"/drop", toQuery(to), map[string]string{"reason": reason}, &v)
	return v, err
}

// RetryAll revives the dead letters that a filter chooses.
func (c *Client) RetryAll(ctx context.Context, b Bulk) (BulkResult, error) {
	var v BulkResult
	err := c.do(ctx, "POST", "/dead/retry", nil, b, &v)
	return v, err
}

// DropAll gives the dead letters up that a filter chooses.
func (c *Client) DropAll(ctx context.Context, b Bulk) (BulkResult, error) {
	var v BulkResult
	err := c.do(ctx, "POST", "/dead/drop", nil, b, &v)
	return v, err
}

// Refused lists what the hub turned away, the newest first; all for n <= 0.
func (c *Client) Refused(ctx context.Context, n int) ([]Refusal, error) {
	var v refusalList
	err := c.do(ctx, "GET", "/refused", url.Values{"last": {strconv.Itoa(max(n, 0))}}, nil, &v)
	return v.Refused, err
}

// Refusal finds one by its reference.
func (c *Client) Refusal(ctx context.Context, ref string) (Refusal, error) {
	var v Refusal
	err := c.do(ctx, "GET", "/refused/"+url.PathEscape(ref), nil, nil, &v)
	return v, err
}

// Keys lists all keys; nothing secret is among it.
func (c *Client) Keys(ctx context.Context) (Keys, error) {
	var v Keys
	err := c.do(ctx, "GET", "/keys", nil, nil, &v)
	return v, err
}

// Enroll records the public key of one of an agent's identities.
func (c *Client) Enroll(ctx context.Context, e Enrolment) error {
	return c.do(ctx, "POST", "/keys", nil, e, nil)
}

// Unenroll forgets a public key of an agent.
func (c *Client) Unenroll(ctx context.Context, agent, protocol, keyID string) error {
	return c.do(ctx, "DELETE", "/keys", url.Values{"agent": {agent}, "protocol": {protocol}, "keyId": {keyID}}, nil, nil)
}

// NewKey makes a private key in the hub's keyring, or takes one in.
func (c *Client) NewKey(ctx context.Context, n NewKey) (keyring.Key, error) {
	var v keyring.Key
	err := c.do(ctx, "POST", "/keys/own", nil, n, &v)
	return v, err
}

// Passphrase changes the passphrase of the hub's keyring.
func (c *Client) Passphrase(ctx context.Context, p Passphrase) (Protected, error) {
	var v Protected
	err := c.do(ctx, "POST", "/keys/passphrase", nil, p, &v)
	return v, err
}

// Rotate replaces a key that the hub holds.
func (c *Client) Rotate(ctx context.Context, r Rotation) (keyring.Key, error) {
	var v keyring.Key
	err := c.do(ctx, "POST", "/keys/rotate", nil, r, &v)
	return v, err
}

// Reload makes the hub read its configuration anew.
func (c *Client) Reload(ctx context.Context) (Reloaded, error) {
	var v Reloaded
	err := c.do(ctx, "POST", "/reload", nil, nil, &v)
	return v, err
}

// Audit lists what operators did, the newest first; all for limit 0.
func (c *Client) Audit(ctx context.Context, limit int) ([]AuditEntry, error) {
	var v auditList
	err := c.do(ctx, "GET", "/audit", url.Values{"limit": {strconv.Itoa(limit)}}, nil, &v)
	return v.Audit, err
}
