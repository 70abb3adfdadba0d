package samvad

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/internal/sleep"
)

// Defaults of [Client]; those of the Python SDK.
const (
	DefaultCallTimeout  = 30 * time.Second
	DefaultFetchTimeout = 10 * time.Second // cards and task states
	DefaultStreamIdle   = 60 * time.Second
	DefaultPollEvery    = 500 * time.Millisecond
	DefaultMaxReply     = 8 << 20
)

// A Client calls agents: those of the TypeScript and Python SDKs, and the
// deployed ones whose dialect differs (digest §12). It sends every request
// once: to repeat one, call again, with a new nonce. Its fields must not
// change while it is in use; it is safe for concurrent use and must not be
// copied.
type Client struct {
	Identity Signer       // the sender
	HTTP     *http.Client // nil: a client of Guard. Redirects are not followed for messages
	Guard    Guard        // which addresses may be called; nil: the public internet
	Now      func() time.Time

	Timeout    time.Duration // of Ask and Send; 0 = [DefaultCallTimeout], less if the context ends sooner
	StreamIdle time.Duration // longest silence in a stream; 0 = [DefaultStreamIdle]
	PollEvery  time.Duration // between two looks at a task in Wait; 0 = [DefaultPollEvery]
	MaxReply   int64         // bytes of an answer, or of one event; 0 = [DefaultMaxReply]

	once       sync.Once
	get, calls *http.Client

	mu  sync.Mutex
	who map[string]resident // by base URL
}

// A resident is the agent at a base URL, by its card.
type resident struct {
	id    string
	until time.Time
}

// maxResidents is how many residents a client remembers.
const maxResidents = 1024

// A Call is a request to an agent.
type Call struct {
	URL   string // base URL of the agent; "" = the https origin of To
	To    string // the agent's identity; "" = the id of the card at URL, which the client remembers for a while
	Skill string

	Payload json.RawMessage // a JSON object; nil = {}

	TraceID      string // "" = a new one
	SpanID       string // "" = a new one
	ParentSpanID string
	Nonce        string // "" = a new one
	// Timestamp is now if zero. Repeat a call whose outcome is unknown with its
	// Nonce and Timestamp: an agent that got it refuses the second one.
	Timestamp       time.Time
	DelegationToken string
	Auth            *Auth
	CallbackURL     string      // Send only
	As              Signer      // signs in place of the client's Identity, of which it is another key; nil: none
	Header          http.Header // further headers of the request, which the signature does not cover; may be nil
}

func (c *Client) now() time.Time { return nowOf(c.Now) }

func (c *Client) init() {
	c.once.Do(func() {
		if c.HTTP != nil {
			c.get, c.calls = c.HTTP, withoutRedirects(c.HTTP)
			return
		}
		// Each exchange is bounded by its own context and reading bound.
		c.get = netguardOf(c.Guard, "Client.Guard").Client(netguard.Options{Timeout: -1, MaxResponseBytes: -1})
		c.calls = withoutRedirects(c.get)
	})
}

// baseURL reads the base URL of an agent: http or https, no query. A slash at
// its end is dropped, for the path would begin with two.
func baseURL(base string) (*url.URL, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, fmt.Errorf("samvad: base URL: %w", err)
	}
	if u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" ||
		u.User != nil {
		return nil, fmt.Errorf("samvad: base URL %q: want http(s)://host[:port][/path]", clip(base))
	}
	u.Path, u.RawPath, u.ForceQuery = strings.TrimRight(u.Path, "/"), strings.TrimRight(u.RawPath, "/"), false
	return u, nil
}

// Card fetches the card of the agent at a base URL.
func (c *Client) Card(ctx context.Context, base string) (*Card, error) {
	u, err := c.address(base)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, DefaultFetchTimeout)
	defer cancel()
	b, err := getCard(ctx, c.get, u.String()+cardPath)
	if err != nil {
		return nil, because(ErrCard, err)
	}
	return DecodeCard(b)
}

// resident gives the identity of the agent at a base URL: that of its card,
// which is remembered for its cardTTL, at most [DefaultMaxCardTTL].
func (c *Client) resident(ctx context.Context, base string) (string, error) {
	c.mu.Lock()
	r, known := c.who[base]
	c.mu.Unlock()
	if known && c.now().Before(r.until) {
		return r.id, nil
	}
	card, err := c.Card(ctx, base)
	if err != nil {
		return "", err
	}
	ttl := min(time.Duration(card.ttl())*time.Second, DefaultMaxCardTTL)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.who == nil || len(c.who) >= maxResidents {
		c.who = map[string]resident{} // an agent that is called again is looked up again
	}
	c.who[base] = resident{card.ID, c.now().Add(ttl)}
	return card.ID, nil
}

// moved forgets the agent at the URL of a refused call: another may be there now. It
// returns err.
func (c *Client) moved(call Call, err error) error {
	if err != nil && call.To == "" {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.who, call.URL)
	}
	return err
}

// address gives the base URL of an agent that may be called. The guard applies
// also when the HTTP client is the caller's own; that client then must check the
// addresses to which names resolve.
func (c *Client) address(base string) (*url.URL, error) {
	c.init()
	u, err := baseURL(base)
	if err != nil || c.HTTP != nil && c.Guard == nil {
		return u, err
	}
	if err := netguardOf(c.Guard, "Client.Guard").CheckURL(u); err != nil {
		return nil, clientError("address refused", err)
	}
	return u, nil
}

// Envelope gives the envelope and its body for a call, as [Client.Ask], [Client.Send]
// and [Client.Stream] send them, but unsigned.
func (c *Client) Envelope(call Call, mode Mode) (*Envelope, []byte, error) {
	if c.Identity == nil {
		return nil, nil, errors.New("samvad: client without an identity")
	}
	e := &Envelope{
		From: c.Identity.ID(), To: call.To, Skill: call.Skill, Mode: mode,
		Nonce: cmp.Or(call.Nonce, newID()), Timestamp: call.Timestamp,
		TraceID: cmp.Or(call.TraceID, newID()), SpanID: cmp.Or(call.SpanID, newID()), ParentSpanID: call.ParentSpanID,
		DelegationToken: call.DelegationToken, Auth: call.Auth, Payload: call.Payload,
	}
	if e.Timestamp.IsZero() {
		e.Timestamp = c.now()
	}
	e.Timestamp = e.Timestamp.UTC().Truncate(time.Millisecond)
	if mode == ModeAsync {
		e.CallbackURL = call.CallbackURL
	}
	b, err := e.Encode()
	if err != nil {
		return nil, nil, err
	}
	e.raw = b
	return e, b, nil
}

// Request gives the signed HTTP request for a call in a mode, without sending
// it. Call.To must be known or found at Call.URL.
func (c *Client) Request(ctx context.Context, call Call, mode Mode) (*http.Request, *Envelope, error) {
	if call.URL == "" {
		origin, err := AgentOrigin(call.To)
		if err != nil {
			return nil, nil, err
		}
		call.URL = origin
	}
	u, err := c.address(call.URL)
	if err != nil {
		return nil, nil, err
	}
	if call.To == "" {
		if call.To, err = c.resident(ctx, call.URL); err != nil {
			return nil, nil, err
		}
	}
	e, body, err := c.Envelope(call, mode)
	if err != nil {
		return nil, nil, err
	}
	path := map[Mode]string{ModeSync: pathMessage, ModeAsync: pathTask, ModeStream: pathStream}[mode]
	if path == "" {
		return nil, nil, fmt.Errorf("samvad: unknown mode %q", mode)
	}
	u.Path += path
	if u.RawPath != "" {
		u.RawPath += path
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, nil, fmt.Errorf("samvad: %w", err)
	}
	for k, v := range call.Header {
		req.Header[k] = v
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	if mode == ModeStream {
		req.Header.Set("Accept", "text/event-stream, application/json")
	}
	signer := c.Identity
	if call.As != nil {
		signer = call.As
	}
	sig, err := Sign(signer, http.MethodPost, req.URL.EscapedPath(), body, c.now())
	if err != nil {
		return nil, nil, err
	}
	sig.Set(req.Header)
	return req, e, nil
}

// Ask calls a skill and waits for its answer (mode sync). A refusal or failure that
// the agent reports is an [*Error] with its code; a failure on the way is one too
// (AGENT_UNAVAILABLE). If the agent may have served the request nevertheless, the
// error wraps [ErrOutcomeUnknown].
func (c *Client) Ask(ctx context.Context, call Call) (*Reply, error) {
	return exchange(ctx, c, call, ModeSync, decodeReply)
}

// Send hands a request to a skill without waiting (mode async) and gives the
// id of its task.
func (c *Client) Send(ctx context.Context, call Call) (taskID string, err error) {
	return exchange(ctx, c, call, ModeAsync, decodeAccepted)
}

// exchange sends a call and reads its answer.
func exchange[T any](ctx context.Context, c *Client, call Call, mode Mode,
	read func(status int, h http.Header, b []byte) (T, error)) (answer T, err error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.Timeout, DefaultCallTimeout))
	defer cancel()
	req, _, err := c.Request(ctx, call, mode)
	if err != nil {
		return answer, err
	}
	status, h, b, err := c.do(c.calls, req)
	if err != nil {
		return answer, settled(err)
	}
	answer, err = read(status, h, b)
	return answer, c.moved(call, settled(err))
}

func (c *Client) do(hc *http.Client, req *http.Request) (int, http.Header, []byte, error) {
	resp, err := netguard.Do(hc, req)
	if err != nil {
		return 0, nil, nil, transportError(err)
	}
	defer closeBody(resp.Body)
	b, err := c.body(resp)
	if err != nil {
		return 0, nil, nil, err
	}
	return resp.StatusCode, resp.Header, b, nil
}

func (c *Client) body(resp *http.Response) ([]byte, error) {
	b, err := netguard.ReadAll(resp.Body, cmp.Or(c.MaxReply, DefaultMaxReply))
	switch {
	case errors.Is(err, netguard.ErrTooLarge):
		return nil, answerTooLarge()
	case err != nil:
		return nil, transportError(err)
	}
	return b, nil
}

// Task looks at a task of the agent at a base URL. The error wraps
// [ErrNotFound] if the agent does not know it.
func (c *Client) Task(ctx context.Context, base, id string) (*Task, error) {
	u, err := c.address(base)
	if err != nil {
		return nil, err
	}
	if id == "" || len(id) > 512 {
		return nil, fmt.Errorf("samvad: task id %q", clip(id))
	}
	ctx, cancel := context.WithTimeout(ctx, DefaultFetchTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String()+pathTask+"/"+url.PathEscape(id), nil)
	if err != nil {
		return nil, fmt.Errorf("samvad: %w", err)
	}
	req.Header.Set("Accept", "application/json")
	status, h, b, err := c.do(c.get, req)
	if err != nil {
		return nil, err
	}
	return decodeTask(status, h, b)
}

// Wait polls a task until it is finished or ctx ends. A failed task is an
// error like that of [Client.Ask].
func (c *Client) Wait(ctx context.Context, base, id string) (*Task, error) {
	every := cmp.Or(c.PollEvery, DefaultPollEvery)
	for {
		t, err := c.Task(ctx, base, id)
		var e *Error
		switch {
		case err == nil && t.Status == TaskDone:
			return t, nil
		case err == nil && t.Status == TaskFailed:
			return t, t.Err
		case err != nil && !(errors.As(err, &e) && e.Retryable):
			return nil, err
		}
		if err := sleep.For(ctx, every); err != nil {
			return nil, clientError("The task was not finished in time.", because(ErrTimeout, err))
		}
	}
}

// An Event is one step of a streamed answer.
type Event struct {
	Chunk json.RawMessage // a piece of the result; nil in the last event and in reports of state
	// the last event came with this one and repeats Chunk as its result: the agent
	// does not stream (SAM-141)
	Again   bool
	State   string          // reported by the deployed agents in between ("processing")
	Done    bool            // the last event
	Result  json.RawMessage // of the last event: a JSON object
	TraceID string
	SpanID  string

	Replaced bool // in Chunk or Result U+FFFD stands for halves of surrogate pairs
}

// Stream calls a skill in mode stream. It yields the chunks and last an event with
// Done and the result, or an error. A stream that ends before its last event is
// complete is an error that wraps [ErrOutcomeUnknown]. Leaving the loop ends the
// call.
func (c *Client) Stream(ctx context.Context, call Call) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		idle := cmp.Or(c.StreamIdle, DefaultStreamIdle)
		timer := time.AfterFunc(idle, func() { cancel(ErrTimeout) })
		defer timer.Stop()
		req, _, err := c.Request(ctx, call, ModeStream)
		if err != nil {
			yield(Event{}, err)
			return
		}
		resp, err := netguard.Do(c.calls, req)
		if err != nil {
			yield(Event{}, settled(transportError(cmp.Or(context.Cause(ctx), err))))
			return
		}
		defer func() { _ = resp.Body.Close() }()
		media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
		if resp.StatusCode != http.StatusOK || media != "text/event-stream" {
			// Errors before the stream begins are plain JSON (SAM-144).
			var r *Reply
			b, err := c.body(resp)
			if err == nil {
				r, err = decodeReply(resp.StatusCode, resp.Header, b)
			}
			if err != nil {
				yield(Event{}, c.moved(call, settled(err)))
				return
			}
			yield(Event{Done: true, Result: r.Result, TraceID: r.TraceID, SpanID: r.SpanID, Replaced: r.Replaced}, nil)
			return
		}
		p := &sseParser{limit: int(cmp.Or(c.MaxReply, DefaultMaxReply))}
		var buf [16 << 10]byte
		var chunk *Event // waits for the event that arrived with it
		pass := func() bool {
			ev := chunk
			chunk = nil
			return ev == nil || yield(*ev, nil)
		}
		for {
			n, rerr := resp.Body.Read(buf[:])
			timer.Reset(idle)
			for ev, err := range p.feed(buf[:n]) {
				if chunk != nil {
					chunk.Again = ev.Done && bytes.Equal(chunk.Chunk, ev.Result)
				}
				if !pass() {
					return
				}
				if ev.Chunk != nil && !ev.Done {
					chunk = &ev
					continue
				}
				if err != nil {
					yield(Event{}, settled(err))
					return
				}
				if !yield(ev, nil) {
					return
				}
				if ev.Done {
					// The end of the stream follows, and with it the connection
					// is there for the next call.
					timer.Reset(streamEnd)
					for left := len(buf); rerr == nil && left > 0; left -= n {
						n, rerr = resp.Body.Read(buf[:left])
					}
					return
				}
			}
			if (rerr != nil || !p.within()) && !pass() {
				return
			}
			if rerr != nil {
				yield(Event{}, settled(p.end(cmp.Or(context.Cause(ctx), rerr))))
				return
			}
		}
	}
}

// streamEnd is how long Stream waits for the end of a stream after its last event.
const streamEnd = 50 * time.Millisecond

// answerTooLarge is the error for an answer over MaxReply. The agent has served the
// request, so that a repetition is no help.
func answerTooLarge() *Error {
	e := clientError("The agent's answer is too large.", ErrTooLarge)
	e.Retryable = false
	return e
}

func clientError(text string, cause error) *Error {
	return &Error{Code: CodeAgentUnavailable, Text: text, Step: StepClient, cause: cause, Retryable: true}
}

func transportError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	text, is := "The agent could not be reached.", ErrUnavailable
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrTimeout) {
		text, is = "The agent did not answer in time.", ErrTimeout
	}
	e := clientError(text, because(is, err))
	e.Retryable = !errors.Is(err, netguard.ErrBlocked)
	return e
}

// settled classifies the error of a request to a skill. Where the agent may
// have served the request, because it was sent and its answer did not arrive
// whole, the error wraps [ErrOutcomeUnknown] and is not retryable.
func settled(err error) error {
	if err == nil || errors.Is(err, ErrRemote) || netguard.NotSent(err) {
		return err
	}
	e := *AsError(err)
	e.Retryable = false
	if !errors.Is(err, ErrResponse) && !errors.Is(err, ErrTooLarge) { // then the agent did answer, though wrongly
		e.cause = because(ErrOutcomeUnknown, e.cause)
	}
	return &e
}
