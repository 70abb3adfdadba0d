package uagents

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/parley-hub/parley/internal/netguard"
)

// A Client sends messages to agents (communication.py). Fields must not change
// once it is in use; it is safe for concurrent use.
type Client struct {
	Identity *Identity // signs messages
	User     string    // user1… address of an unsigned sender, when Identity is nil
	Resolver Resolver  // finds endpoints
	// HTTP dials the endpoints. Since any agent may choose its own, the default
	// reaches public addresses only and follows no redirects.
	HTTP         *http.Client
	Now          func() time.Time // nil: time.Now
	Timeout      time.Duration    // lifetime of a message; default 30 s, at most until the context ends
	MaxEndpoints int              // endpoints tried; default 10
	MaxResponse  int              // bytes of a response; default 1 MiB
	Random       func() float64   // from [0, 1), for choosing endpoints; nil: math/rand
	Header       http.Header      // sent with every envelope, besides the protocol's own

	once    sync.Once
	guarded *http.Client
}

// A Status says how a message was delivered.
type Status struct {
	Address  string // the target
	Endpoint string // the URL that took the envelope
	Session  string
	Envelope *Envelope // as sent
}

// A Reply is the answer to [Client.Ask].
type Reply struct {
	Message
	Envelope  *Envelope
	Assurance Assurance // the reference's sync answers are Unsigned
	Endpoint  string    // the URL that answered
}

func (c *Client) http() *http.Client {
	if c.HTTP != nil {
		return c.HTTP
	}
	c.once.Do(func() {
		c.guarded = netguard.Live(nil, netguard.ClientAdvice).Client(netguard.Options{
			Timeout: c.lifetime() + 5*time.Second, MaxRedirects: -1, MaxResponseBytes: int64(c.maxResponse()),
		})
	})
	return c.guarded
}

func (c *Client) lifetime() time.Duration { return cmp.Or(c.Timeout, 30*time.Second) }
func (c *Client) maxResponse() int        { return cmp.Or(c.MaxResponse, EnvelopeSize(1<<20)) }

// as is the client with another identity.
func (c *Client) as(id *Identity) *Client {
	return &Client{
		Identity: id, Resolver: c.Resolver, HTTP: c.http(), Now: c.Now, Timeout: c.Timeout,
		MaxEndpoints: c.MaxEndpoints, MaxResponse: c.MaxResponse, Random: c.Random, Header: c.Header,
	}
}

// Send sends a message in a new session. Success means that the agent's
// endpoint took it, not that the agent worked on it.
func (c *Client) Send(ctx context.Context, to string, m Message) (*Status, error) {
	return c.SendIn(ctx, "", to, m)
}

// SendIn is [Client.Send] in the given session.
func (c *Client) SendIn(ctx context.Context, session, to string, m Message) (*Status, error) {
	e, endpoints, err := c.prepare(ctx, session, to, m)
	if err != nil {
		return nil, err
	}
	return c.Forward(ctx, endpoints, e)
}

// Ask sends a message in a new session and waits for the answer in the HTTP
// response. The error is an [*Error]: ErrPeer, with the reply, when the answer
// is an ErrorMessage; ErrTimeout when that reports a timeout.
func (c *Client) Ask(ctx context.Context, to string, m Message) (*Reply, error) {
	return c.AskIn(ctx, "", to, m)
}

// AskIn is [Client.Ask] in the given session.
func (c *Client) AskIn(ctx context.Context, session, to string, m Message) (*Reply, error) {
	e, endpoints, err := c.prepare(ctx, session, to, m)
	if err != nil {
		return nil, err
	}
	return c.ForwardSync(ctx, endpoints, e)
}

// prepare makes and signs the envelope and resolves its endpoints.
func (c *Client) prepare(ctx context.Context, session, to string, m Message) (*Envelope, []Endpoint, error) {
	if m.err != nil {
		return nil, nil, m.err
	}
	sender := c.User
	if c.Identity != nil {
		sender = c.Identity.address
	} else if _, err := ParseUser(sender); err != nil {
		return nil, nil, ErrNoIdentity.Because(err)
	}
	if c.Resolver == nil {
		return nil, nil, ErrUnresolved.Because(errors.New("client has no resolver"))
	}
	address, endpoints, err := c.Resolver.Resolve(ctx, to)
	if err != nil {
		return nil, nil, AsError(err)
	}
	if address == "" || len(endpoints) == 0 {
		return nil, nil, ErrUnresolved
	}
	lifetime := c.lifetime()
	if d, ok := ctx.Deadline(); ok {
		lifetime = min(lifetime, time.Until(d)) // the context's clock need not be the client's
	}
	expires := clock(c.Now).Add(lifetime)
	// Whole seconds, rounded up, so that none of the lifetime is lost.
	e, err := NewEnvelope(sender, address, session, m, expires.Add(time.Second-1))
	if err != nil {
		return nil, nil, AsError(err)
	}
	if c.Identity != nil {
		if err := e.Sign(c.Identity); err != nil {
			return nil, nil, AsError(err)
		}
	}
	return e, endpoints, nil
}

// Forward posts an envelope unchanged: its [Envelope.Raw] text, when it has one. It
// tries the endpoints in weighted random order until one answers with status 200. The
// error is ErrUndelivered with the answer of each endpoint as its cause; it wraps
// ErrOutcomeUnknown where an endpoint may have taken the envelope, and ErrAnswerSize
// where one took it and answered more than MaxResponse.
func (c *Client) Forward(ctx context.Context, endpoints []Endpoint, e *Envelope) (*Status, error) {
	var endpoint string
	err := c.try(ctx, endpoints, e, false, func(url string, _ *http.Response, _ []byte) error {
		endpoint = url
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &Status{Address: e.Target, Endpoint: endpoint, Session: e.Session, Envelope: e}, nil
}

// ForwardSync is [Client.Forward] that waits for the answer. An answer counts when it
// comes from the target to the sender in the same session, with a valid signature or
// with none; an unsigned answer only without a redirect. UAG-057.
func (c *Client) ForwardSync(ctx context.Context, endpoints []Endpoint, e *Envelope) (*Reply, error) {
	var reply *Reply
	var ref string
	err := c.try(ctx, endpoints, e, true, func(url string, resp *http.Response, body []byte) (err error) {
		ref = refOf(resp)
		reply, err = c.readReply(url, resp, body, e)
		return err
	})
	if err != nil {
		return nil, err
	}
	if text, bad := reply.IsError(); bad {
		if text == ErrTimeout.Text {
			return reply, ErrTimeout
		}
		e := ErrPeer.Saying(text)
		e.Ref = ref
		return reply, e
	}
	return reply, nil
}

func (c *Client) readReply(url string, resp *http.Response, body []byte, asked *Envelope) (*Reply, error) {
	e, err := Decode(body)
	if err != nil {
		return nil, ErrResponse.Because(err)
	}
	if e.Sender != asked.Target || e.Target != asked.Sender || e.Session != asked.Session {
		return nil, ErrResponse.Because(errors.New("the envelope answers something else"))
	}
	r := &Reply{Envelope: e, Endpoint: url, Assurance: Unsigned}
	if e.Signature != nil {
		if err := e.VerifySignature(); err != nil {
			return nil, ErrResponse.Because(err)
		}
		r.Assurance = Signed
	} else if resp.Request != nil && resp.Request.URL.String() != url {
		return nil, ErrResponse.Because(errors.New("unsigned answer after a redirect"))
	}
	if !IsSchemaDigest(e.SchemaDigest) {
		return nil, ErrResponse.Because(ErrSchemaDigest)
	}
	if r.Message, err = e.Message(); err != nil {
		return nil, ErrResponse.Because(err)
	}
	return r, nil
}

// try posts to one endpoint after the other until done takes the response.
func (c *Client) try(ctx context.Context, endpoints []Endpoint, e *Envelope, sync bool,
	done func(url string, resp *http.Response, body []byte) error) error {
	body := e.raw
	if body == nil {
		var err error
		if body, err = e.Encode(); err != nil {
			return AsError(err)
		}
	}
	if !sync || e.Expires.IsNull() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.lifetime()+5*time.Second)
		defer cancel()
	}
	order := Choose(endpoints, cmp.Or(c.MaxEndpoints, 10), c.Random)
	if len(order) == 0 {
		return ErrUnresolved.Because(errors.New("no usable endpoint"))
	}
	var failures []error
	for _, url := range order {
		resp, answer, err := c.post(ctx, url, body, sync)
		switch {
		case resp != nil && resp.StatusCode != http.StatusOK:
			err = statusError(resp, answer)
		case err == nil:
			err = done(url, resp, answer)
		case errors.Is(err, ErrAnswerSize): // the agent has done its work
		case !netguard.NotSent(err):
			err = fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
		}
		if err == nil {
			return nil
		}
		failures = append(failures, fmt.Errorf("%s: %w", url, err))
		if ctx.Err() != nil || errors.Is(err, ErrAnswerSize) {
			break
		}
	}
	cause := errors.Join(failures...)
	if len(failures) > 0 && errors.Is(failures[len(failures)-1], ErrResponse) {
		return ErrResponse.Because(cause)
	}
	return ErrUndelivered.Because(cause)
}

func (c *Client) post(ctx context.Context, url string, body []byte, sync bool) (*http.Response, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	for k, v := range c.Header {
		req.Header[k] = v
	}
	req.Header.Set("Content-Type", "application/json")
	if sync {
		req.Header.Set(headerConnection, "sync")
	}
	return do(c.http(), req, c.maxResponse())
}

// do runs a request and reads a bounded body. When the body cannot be read, it gives
// the response with the error.
func do(c *http.Client, req *http.Request, max int) (*http.Response, []byte, error) {
	resp, err := netguard.Do(c, req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, int64(max)+1))
	if err != nil {
		return resp, nil, err
	}
	if len(b) > max {
		return resp, nil, ErrAnswerSize.Because(fmt.Errorf("response of more than %d bytes", max))
	}
	return resp, b, nil
}

// A StatusError is the refusal of an endpoint. The cause of ErrUndelivered holds one
// for every endpoint that answered.
type StatusError struct {
	Status int
	Detail string
	After  time.Duration // of Retry-After in seconds; 0: not given
	Ref    string        // of RefHeader, by which the agent's operator finds the refusal
}

func (e *StatusError) Error() string { return fmt.Sprintf("%d: %s", e.Status, e.Detail) }

func statusError(resp *http.Response, body []byte) error {
	e := &StatusError{Status: resp.StatusCode, Detail: detailOf(body), Ref: refOf(resp)}
	if n, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && n > 0 && n <= 86400 {
		e.After = time.Duration(n) * time.Second
	}
	return e
}

// refOf is the reference of an answer; "" if it has none, or none that a server of this package makes.
func refOf(resp *http.Response) string {
	if ref := resp.Header.Get(RefHeader); len(ref) <= 64 {
		return ref
	}
	return ""
}

// detailOf is the shortened text of an error response.
func detailOf(body []byte) string {
	text := string(body)
	if n, err := parse(body); err == nil {
		for _, name := range []string{"detail", "error"} {
			if s := n.get(name).str(); s != "" {
				text = s
				break
			}
		}
	}
	if r := []rune(text); len(r) > 200 {
		text = string(r[:200])
	}
	return text
}

// Choose draws at most max different usable endpoints, at random by weight, as the
// reference does. Usable are http and https URLs of weight 1 and more. random gives
// numbers from [0, 1); nil: math/rand.
func Choose(endpoints []Endpoint, max int, random func() float64) []string {
	var urls []string
	var weights []float64
	for _, e := range endpoints {
		if e.Weight >= 1 && usable(e.URL) {
			urls, weights = append(urls, e.URL), append(weights, float64(e.Weight))
		}
	}
	var out []string
	for len(urls) > 0 && len(out) < max {
		i := draw(weights, random)
		out = append(out, urls[i])
		urls, weights = slices.Delete(urls, i, i+1), slices.Delete(weights, i, i+1)
	}
	return out
}

// draw gives the index of a weight; there is at least one. random is as in [Choose].
func draw(weights []float64, random func() float64) int {
	if random == nil {
		random = rand.Float64
	}
	var total float64
	for _, w := range weights {
		total += w
	}
	at, last := random()*total, len(weights)-1
	for i, w := range weights[:last] {
		if at < w {
			return i
		}
		at -= w
	}
	return last
}

// usable reports whether an endpoint is an http or https URL with a host and
// without credentials.
func usable(s string) bool {
	if len(s) > 4000 {
		return false
	}
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil
}

// plainHTTP is the client for addresses that the operator configured.
func plainHTTP(c *http.Client) *http.Client {
	if c != nil {
		return c
	}
	return &http.Client{
		Timeout:       10 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
