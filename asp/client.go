package asp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley/internal/jsonx"
)

// A Client speaks for one agent with one server. Its fields must not change
// after the first use; it is safe for concurrent use.
//
// Server comes from the operator, never from a message. The client never fetches
// a URL that a message or card names.
type Client struct {
	Server   string // scheme and host, e.g. "https://hub.example"
	Identity *Identity
	Store    ClientStore      // heads of sessions; nil: in memory only
	HTTP     *http.Client     // nil: a client that follows no redirects
	Now      func() time.Time // nil: time.Now

	once    sync.Once
	store   ClientStore
	http    *http.Client
	mu      sync.Mutex
	token   string
	expires time.Time
}

// A ClientStore keeps one small document per session. Load gives ErrNotFound for
// an unknown session.
type ClientStore interface {
	Load(ctx context.Context, session string) ([]byte, error)
	Save(ctx context.Context, session string, b []byte) error
}

// Dir keeps the documents as files of mode 0600 in a directory, which it creates
// when needed. Save replaces the whole file and syncs it.
func Dir(path string) ClientStore { return dirStore(path) }

type dirStore string

func (d dirStore) Load(_ context.Context, session string) ([]byte, error) {
	if !ValidUUID(session) {
		return nil, ErrNotFound
	}
	b, err := os.ReadFile(filepath.Join(string(d), session+".json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, ErrNotFound
	}
	return b, err
}

func (d dirStore) Save(_ context.Context, session string, b []byte) error {
	if !ValidUUID(session) {
		return refuse("invalid_field", "sessionId")
	}
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(string(d), "."+session+"-*") // of mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(string(d), session+".json"))
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

type mapStore struct{ m sync.Map }

func (s *mapStore) Load(_ context.Context, session string) ([]byte, error) {
	if b, ok := s.m.Load(session); ok {
		return b.([]byte), nil
	}
	return nil, ErrNotFound
}

func (s *mapStore) Save(_ context.Context, session string, b []byte) error {
	s.m.Store(session, bytes.Clone(b))
	return nil
}

func (c *Client) init() {
	c.once.Do(func() {
		c.store, c.http = c.Store, c.HTTP
		if c.store == nil {
			c.store = new(mapStore)
		}
		if c.http == nil {
			c.http = &http.Client{
				CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			}
		}
	})
}

func (c *Client) now() time.Time { return clock(c.Now)() }

func (c *Client) url(path string) string { return strings.TrimSuffix(c.Server, "/") + path }

// maxAnswer bounds the bytes read of one answer.
const maxAnswer = 16 << 20

// call sends one request and reads the answer. A status of 400 or above becomes
// an *Error with the server's code.
func (c *Client) call(ctx context.Context, method, path, contentType string, body []byte, token string,
	header http.Header) ([]byte, error) {
	resp, err := c.start(ctx, method, path, contentType, body, token, header)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("asp: answer of %s: %w", path, err)
	}
	return b, nil
}

func (c *Client) start(ctx context.Context, method, path, contentType string, body []byte, token string,
	header http.Header) (*http.Response, error) {
	c.init()
	req, err := http.NewRequestWithContext(ctx, method, c.url(path), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, header)
	htu, _, _ := strings.Cut(c.url(path), "?")
	proof, err := c.Identity.HTTPProof(method, htu, token, c.now())
	if err != nil {
		return nil, err
	}
	req.Header.Set("DPoP", proof)
	if token != "" {
		req.Header.Set("Authorization", "DPoP "+token)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer func() { _ = resp.Body.Close() }()
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	return nil, remoteError(resp, b)
}

// remoteError reads the vendor's error object.
func remoteError(resp *http.Response, b []byte) error {
	var v struct {
		Error struct {
			Code    string         `json:"code"`
			Message string         `json:"message"`
			Details map[string]any `json:"details"`
		} `json:"error"`
	}
	if err := jsonx.Decode(b, &v); err != nil || v.Error.Code == "" {
		return fmt.Errorf("asp: %s answers %s", resp.Request.URL.Path, resp.Status)
	}
	e := &Error{Code: v.Error.Code, Text: v.Error.Message, Details: v.Error.Details,
		Reference: resp.Header.Get("Parley-Ref")}
	if reason, ok := v.Error.Details["reason"].(string); ok {
		e.Code = reason
	}
	e.Path, _ = v.Error.Details["path"].(string)
	e.Retryable = codes[e.Code].retry || resp.StatusCode >= 500
	return e
}

// access gives a token that does not expire soon.
func (c *Client) access(ctx context.Context) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.token != "" && c.now().Before(c.expires) {
		return c.token, nil
	}
	body, err := jsonx.Encode(map[string]string{"grant_type": "client_credentials", "client_id": c.Identity.ID()})
	if err != nil {
		return "", err
	}
	b, err := c.call(ctx, "POST", "/oauth/token", "application/json", body, "", nil)
	if err != nil {
		return "", err
	}
	var t struct {
		Token   string `json:"access_token"`
		Expires int64  `json:"expires_in"`
	}
	if err := jsonx.Decode(b, &t); err != nil || t.Token == "" {
		return "", errors.New("asp: the server gave no access token")
	}
	c.token = t.Token
	c.expires = c.now().Add(time.Duration(t.Expires) * time.Second * 9 / 10)
	return c.token, nil
}

// forget drops a token that the server no longer accepts.
func (c *Client) forget(token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.token == token {
		c.token = ""
	}
}

func tokenRefused(err error) bool {
	return errors.Is(err, &Error{Code: "token_expired"}) || errors.Is(err, &Error{Code: "token_invalid"})
}

// get does an authenticated GET.
func (c *Client) get(ctx context.Context, path string) ([]byte, error) {
	for again := false; ; again = true {
		token, err := c.access(ctx)
		if err != nil {
			return nil, err
		}
		b, err := c.call(ctx, "GET", path, "", nil, token, nil)
		if again || !tokenRefused(err) {
			return b, err
		}
		c.forget(token)
	}
}

// Register registers the client's agent, or replaces its card. When the keys
// change, previous is the identity with the registered keys; otherwise nil.
func (c *Client) Register(ctx context.Context, card *Card, previous *Identity) error {
	b, err := card.JSON()
	if err != nil {
		return err
	}
	sig, err := c.Identity.SignCard(b)
	if err != nil {
		return err
	}
	h := http.Header{headerCardSignature: {sig}}
	if previous != nil {
		if sig, err = previous.SignCard(b); err != nil {
			return err
		}
		h.Set(headerPreviousSignature, sig)
	}
	_, err = c.call(ctx, "POST", "/v1/asp/agents", "application/json", b, "", h)
	return err
}

// Card fetches the card of an agent.
func (c *Client) Card(ctx context.Context, agentID string) (*Card, error) {
	b, err := c.get(ctx, "/v1/asp/agents/"+url.PathEscape(agentID)+"/card")
	if err != nil {
		return nil, err
	}
	card, err := ParseCard(b)
	if err == nil && card.AgentID != agentID {
		return nil, refuse("card_mismatch", "agentId")
	}
	return card, err
}

// Discover lists agents with a capability and at least a trust score.
func (c *Client) Discover(ctx context.Context, capability string, minTrust int) ([]*Card, error) {
	var cards []*Card
	for cursor := ""; ; {
		q := url.Values{"capability": {capability}, "min_trust": {strconv.Itoa(minTrust)}, "cursor": {cursor}}
		b, err := c.get(ctx, "/v1/asp/discover?"+q.Encode())
		if err != nil {
			return nil, err
		}
		var page struct {
			Agents []jsonx.Value `json:"agents"`
			Next   string        `json:"nextCursor"`
		}
		if err := jsonx.Decode(b, &page); err != nil {
			return nil, err
		}
		for _, raw := range page.Agents {
			card, err := ParseCard(raw)
			if err != nil {
				return nil, err
			}
			cards = append(cards, card)
		}
		cursor = page.Next
		if cursor == "" || len(cards) >= 10_000 {
			return cards, nil
		}
	}
}

// An Invite is a session to which the agent was added, and in which it has not
// sent a message yet.
type Invite struct {
	SessionID string
	From      string
	Message   *Envelope // the invitation, or the DELEGATE
}

// Invitations waits for invitations; the open ones come first. It reconnects
// after a broken connection until ctx or the loop ends.
func (c *Client) Invitations(ctx context.Context) iter.Seq2[*Invite, error] {
	return func(yield func(*Invite, error) bool) {
		told := make(map[string]bool)
		path := "/v1/asp/agents/" + url.PathEscape(c.Identity.ID()) + "/inbox"
		c.stream(ctx, path, func() string { return "" }, func(ev event) error {
			if ev.kind != "message" {
				return nil
			}
			e, err := c.envelopeOf(ev)
			if err != nil {
				return stop(yield(nil, err))
			}
			if told[e.SessionID] {
				return nil
			}
			if len(told) < 1<<16 {
				told[e.SessionID] = true
			}
			return stop(yield(&Invite{e.SessionID, e.Sender.AgentID, e}, nil))
		}, func(err error) { yield(nil, err) })
	}
}

func (c *Client) envelopeOf(ev event) (*Envelope, error) {
	var f struct {
		Envelope jsonx.Value `json:"envelope"`
	}
	if err := jsonx.Decode(ev.data, &f); err != nil {
		return nil, err
	}
	return Decode(f.Envelope)
}

// errStop ends a stream when its reader stops or its session is over.
var errStop = errors.New("asp: the stream is done")

func stop(goOn bool) error {
	if goOn {
		return nil
	}
	return errStop
}

// An event of an event stream.
type event struct {
	kind string
	id   int64 // -1: none
	data []byte
}

// stream reads an event stream and reconnects when it breaks. The pause doubles
// with each failure, up to 30 s. After a stream that opened it is at most 1 s, and
// 100 ms if the stream lasted 1 s. last gives the Last-Event-ID. A permanent
// refusal goes to fail and ends the loop.
func (c *Client) stream(ctx context.Context, path string, last func() string, take func(event) error,
	fail func(error)) {
	const first, again = 100 * time.Millisecond, time.Second
	for wait := first; ; wait = min(2*wait, 30*time.Second) {
		opened, err := c.streamOnce(ctx, path, last(), take)
		var e *Error
		switch {
		case errors.Is(err, errStop):
			return
		case ctx.Err() != nil:
			fail(ctx.Err())
			return
		case errors.As(err, &e) && !e.Retryable:
			fail(err)
			return
		}
		switch {
		case opened.IsZero():
		case c.now().Sub(opened) >= again:
			wait = first
		default:
			wait = min(wait, again)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// streamOnce reads one stream to its end; opened is zero if it did not open.
func (c *Client) streamOnce(ctx context.Context, path, last string, take func(event) error) (opened time.Time,
	err error) {
	token, err := c.access(ctx)
	if err != nil {
		return opened, err
	}
	h := http.Header{"Accept": {"text/event-stream"}}
	if last != "" {
		h.Set("Last-Event-ID", last)
	}
	resp, err := c.start(ctx, "GET", path, "", nil, token, h)
	if tokenRefused(err) {
		c.forget(token)
	}
	if err != nil {
		return opened, err
	}
	defer func() { _ = resp.Body.Close() }()
	return c.now(), readEvents(resp.Body, take)
}

// readEvents reads server-sent events of at most 4 MiB each.
func readEvents(r io.Reader, take func(event) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), 4<<20)
	ev := event{id: -1}
	size := 0
	for lines.Scan() {
		line := lines.Text()
		size += len(line)
		if size > 4<<20 {
			return errors.New("asp: an event is too large")
		}
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "event":
			ev.kind = value
		case "id":
			if id, err := strconv.ParseInt(value, 10, 64); err == nil {
				ev.id = id
			}
		case "data":
			if ev.data != nil {
				ev.data = append(ev.data, '\n')
			}
			ev.data = append(ev.data, value...)
		}
		if line != "" {
			continue
		}
		if ev.data != nil {
			if err := take(ev); err != nil {
				return err
			}
		}
		ev, size = event{id: -1}, 0
	}
	return lines.Err()
}
