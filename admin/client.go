package admin

import (
	"bufio"
	"bytes"
	"cmp"
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
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/keyring"
)

// A Client calls the HTTP API of a hub. Its methods mirror those of [Admin].
// A refusal is a [*parley.Error] with the API's code, text and reference; if no
// hub answers, the error is an [*UnreachableError].
type Client struct {
	Base  string       // URL of the admin API: "http://127.0.0.1:9090"
	Token string       // secret of one of the hub's [Tokens]
	HTTP  *http.Client // nil: [http.DefaultClient]'s transport without a time limit; use contexts
}

// UnreachableError is the error when no hub answers, or another program does.
type UnreachableError struct {
	Base string
	Err  error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("no hub answers at %s: %v", e.Base, e.Err)
}

// Unwrap gives the cause.
func (e *UnreachableError) Unwrap() error { return e.Err }

// unreachable is the error of a call without an answer: the context's error, if the context
// has ended.
func (c *Client) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return &UnreachableError{c.Base, err}
}

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
	resp, err := cmp.Or(c.HTTP, http.DefaultClient).Do(req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err
		}
		return nil, c.unreachable(req.Context(), err)
	}
	if resp.StatusCode < 300 || resp.StatusCode == http.StatusServiceUnavailable &&
		strings.HasSuffix(req.URL.Path, "/v1/ready") {
		return resp, nil
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, &UnreachableError{c.Base, err}
	}
	var p problemBody
	if jsonx.Decode(b, &p) != nil || p.Error.Code == "" {
		return nil, &UnreachableError{c.Base, fmt.Errorf("%s: the server there is not a hub's admin API", resp.Status)}
	}
	e := p.Error.error()
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
		e.After = time.Duration(s) * time.Second
	}
	if resp.StatusCode == http.StatusUnauthorized {
		return nil, fmt.Errorf("%w: %w", ErrToken, e)
	}
	return nil, e
}

// ErrToken is the error for a token that the hub does not know, or that has expired.
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
		return c.unreachable(req.Context(), err)
	}
	if out == nil {
		return nil
	}
	if err := jsonx.Decode(b, out); err != nil {
		return &UnreachableError{c.Base, fmt.Errorf("the answer is not understood: %w", err)}
	}
	return nil
}

// fetch makes a call and gives its answer.
func fetch[T any](c *Client, ctx context.Context, method, path string, query url.Values, body any) (T, error) {
	var v T
	err := c.do(ctx, method, path, query, body, &v)
	return v, err
}

// fetchList makes a call and gives the list in its answer.
func fetchList[T any](c *Client, ctx context.Context, path string, query url.Values, name string) ([]T, error) {
	v, err := fetch[map[string][]T](c, ctx, "GET", path, query, nil)
	return v[name], err
}

func agentPath(name, rest string) string { return "/agents/" + url.PathEscape(name) + rest }

func jobPath(id string) string { return "/jobs/" + url.PathEscape(id) }

func deadPath(id, rest string) string { return "/dead/" + url.PathEscape(id) + rest }

// Info describes the hub and its addresses.
func (c *Client) Info(ctx context.Context) (Info, error) {
	return fetch[Info](c, ctx, "GET", "/info", nil, nil)
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

// Stats counts agents, records and deliveries.
func (c *Client) Stats(ctx context.Context) (Stats, error) {
	return fetch[Stats](c, ctx, "GET", "/stats", nil, nil)
}

// Agents lists agents of the directory, by name.
func (c *Client) Agents(ctx context.Context, f AgentFilter) (AgentPage, error) {
	f.Limit = max(f.Limit, 0)
	return fetch[AgentPage](c, ctx, "GET", "/agents", values(agentParams(&f)...), nil)
}

// AllAgents yields the agents from f.Cursor on, and reads page after page of f.Limit agents. An error ends it.
func (c *Client) AllAgents(ctx context.Context, f AgentFilter) iter.Seq2[Agent, error] {
	return func(yield func(Agent, error) bool) {
		for {
			page, err := c.Agents(ctx, f)
			if err != nil {
				yield(Agent{}, err)
				return
			}
			for _, v := range page.Agents {
				if !yield(v, nil) {
					return
				}
			}
			if f.Cursor = page.Next; f.Cursor == "" {
				return
			}
		}
	}
}

// Agent gives one agent; with a wait, after it has sent something.
func (c *Client) Agent(ctx context.Context, name string, wait time.Duration) (Agent, error) {
	wait = max(wait, 0)
	return fetch[Agent](c, ctx, "GET", agentPath(name, ""), values(param{"wait", &wait}), nil)
}

// Ways says how messages get to an agent, and what the hub sees of that at the moment.
func (c *Client) Ways(ctx context.Context, name string) ([]hub.Way, error) {
	var v struct {
		Ways []hub.Way `json:"ways"`
	}
	err := c.do(ctx, "GET", agentPath(name, "/ways"), nil, nil, &v)
	return v.Ways, err
}

// AddAgent adds an agent, or replaces one that an operator added.
func (c *Client) AddAgent(ctx context.Context, n NewAgent) (Agent, error) {
	return fetch[Agent](c, ctx, "POST", "/agents", nil, n)
}

// RemoveAgent removes an agent, its keys and its tokens.
func (c *Client) RemoveAgent(ctx context.Context, name string) error {
	return c.do(ctx, "DELETE", agentPath(name, ""), nil, nil, nil)
}

// Pause holds deliveries to an agent back, or lets them go on.
func (c *Client) Pause(ctx context.Context, name string, paused bool) (Agent, error) {
	path := "/resume"
	if paused {
		path = "/pause"
	}
	return fetch[Agent](c, ctx, "POST", agentPath(name, path), nil, nil)
}

// Expose sets the protocols in which the hub stands in for an agent.
func (c *Client) Expose(ctx context.Context, name string, protocols []string) (Agent, error) {
	return fetch[Agent](c, ctx, "POST", agentPath(name, "/expose"), nil, exposure{protocols})
}

// PreviewExpose says what Expose would do.
func (c *Client) PreviewExpose(ctx context.Context, name string, protocols []string) (Preview, error) {
	return fetch[Preview](c, ctx, "POST", agentPath(name, "/expose/preview"), nil, exposure{protocols})
}

// PreviewLink says what Link would do.
func (c *Client) PreviewLink(ctx context.Context, name string, id NewIdentity) (Preview, error) {
	return fetch[Preview](c, ctx, "POST", agentPath(name, "/link/preview"), nil, id)
}

// PreviewEnroll says what Enroll would do.
func (c *Client) PreviewEnroll(ctx context.Context, e Enrolment) (Preview, error) {
	return fetch[Preview](c, ctx, "POST", "/keys/enroll/preview", nil, e)
}

// PreviewRotate says what Rotate would do.
func (c *Client) PreviewRotate(ctx context.Context, r Rotation) (Preview, error) {
	return fetch[Preview](c, ctx, "POST", "/keys/rotate/preview", nil, r)
}

// AgentState gives the state of an agent.
func (c *Client) AgentState(ctx context.Context, name string) (AgentState, error) {
	return fetch[AgentState](c, ctx, "GET", agentPath(name, "/state"), nil, nil)
}

// SetDelivery sets how messages to an agent are retried.
func (c *Client) SetDelivery(ctx context.Context, name string, d DeliveryChange) (Agent, error) {
	return fetch[Agent](c, ctx, "POST", agentPath(name, "/delivery"), nil, d)
}

// Record sets what the journal keeps of the content of an agent's messages.
func (c *Client) Record(ctx context.Context, name string, r parley.Recording) (Agent, error) {
	return fetch[Agent](c, ctx, "POST", agentPath(name, "/record"), nil, recording{r})
}

// Link gives an agent a further native identity, and enrols its key.
func (c *Client) Link(ctx context.Context, name string, id NewIdentity) (Agent, error) {
	return fetch[Agent](c, ctx, "POST", agentPath(name, "/link"), nil, id)
}

// Collect gives at most limit messages of an inbox, after at most wait.
func (c *Client) Collect(ctx context.Context, name string, limit int, wait time.Duration) ([]*Message, error) {
	wait, limit = max(wait, 0), max(limit, 0)
	q := values(param{"wait", &wait}, param{"max", &limit})
	return fetchList[*Message](c, ctx, agentPath(name, "/inbox"), q, "messages")
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

// Send records a message and starts its delivery.
func (c *Client) Send(ctx context.Context, s Send) (Receipt, error) {
	return c.post(ctx, s, "")
}

// Ask sends a request and waits for its terminal reply.
func (c *Client) Ask(ctx context.Context, s Send) (Receipt, error) {
	return c.post(ctx, s, "wait")
}

func (c *Client) post(ctx context.Context, s Send, mode string) (v Receipt, err error) {
	req, err := c.sending(ctx, s, mode)
	if err == nil {
		err = c.decode(req, &v)
	}
	return v, err
}

// Stream sends a request, calls accepted (which may be nil) when it is recorded,
// and yields its events as they come, last its terminal reply. A loop that
// breaks off cancels the request.
func (c *Client) Stream(ctx context.Context, s Send, accepted func(Receipt)) iter.Seq2[*Message, error] {
	return decoded(c.events(c.sending(ctx, s, "stream")), func(e event) (m *Message, last bool, err error) {
		if e.name != "accepted" {
			err = jsonx.Decode(e.data, &m)
			return m, e.name == "reply", err
		}
		var r Receipt
		if err := jsonx.Decode(e.data, &r); err != nil {
			return nil, false, err
		}
		if accepted != nil {
			accepted(r)
		}
		return nil, r.Paused(), errPassedOver
	})
}

// Inbox yields the messages of an inbox until ctx ends or the loop breaks off.
func (c *Client) Inbox(ctx context.Context, name string) iter.Seq2[*Message, error] {
	return decoded(c.events(c.request(ctx, "GET", agentPath(name, "/inbox"), nil, nil)),
		func(e event) (m *Message, last bool, err error) {
			err = jsonx.Decode(e.data, &m)
			return m, false, err
		})
}

type event struct {
	name string
	data []byte
}

// errPassedOver says that an event is not for the caller.
var errPassedOver = errors.New("passed over")

// decoded yields the events that of decodes, up to the one that of reports as the last.
func decoded[T any](events iter.Seq2[event, error], of func(event) (v T, last bool, err error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for e, err := range events {
			var v T
			last := false
			if err == nil {
				v, last, err = of(e)
			}
			passedOver := errors.Is(err, errPassedOver)
			if !passedOver && (!yield(v, err) || err != nil) || last {
				return
			}
		}
	}
}

// events reads server-sent events as this API writes them: one data line each.
// An event named error becomes an error.
func (c *Client) events(req *http.Request, err error) iter.Seq2[event, error] {
	return func(yield func(event, error) bool) {
		if err != nil {
			yield(event{}, err)
			return
		}
		req.Header.Set("Accept", "text/event-stream")
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
					yield(event{}, p.Error.error())
					return
				}
				if !yield(e, nil) {
					return
				}
				e = event{}
			}
		}
		yield(event{}, c.unreachable(req.Context(), cmp.Or(lines.Err(), io.ErrUnexpectedEOF)))
	}
}

// Dead lists dead letters, the oldest first.
func (c *Client) Dead(ctx context.Context, f DeadFilter) ([]DeadLetter, error) {
	f.Limit = max(f.Limit, 0)
	return fetchList[DeadLetter](c, ctx, "/dead", values(deadParams(&f)...), "dead")
}

// DeadLetter gives a dead letter with its message. The id may be the beginning of one.
func (c *Client) DeadLetter(ctx context.Context, id, to string) (DeadLetter, error) {
	return fetch[DeadLetter](c, ctx, "GET", deadPath(id, ""), values(param{"to", &to}), nil)
}

// Retry revives a dead letter: same message, same ID.
func (c *Client) Retry(ctx context.Context, id, to string) (DeadLetter, error) {
	return fetch[DeadLetter](c, ctx, "POST", deadPath(id, "/retry"), values(param{"to", &to}), nil)
}

// Drop gives a dead letter up for good.
func (c *Client) Drop(ctx context.Context, id, to, reason string) (DeadLetter, error) {
	return fetch[DeadLetter](c, ctx, "POST", deadPath(id, "/drop"), values(param{"to", &to}),
		map[string]string{"reason": reason})
}

// RetryAll revives the dead letters that a filter chooses.
func (c *Client) RetryAll(ctx context.Context, b Bulk) (BulkResult, error) {
	return fetch[BulkResult](c, ctx, "POST", "/dead/retry", nil, b)
}

// DropAll gives the dead letters up that a filter chooses.
func (c *Client) DropAll(ctx context.Context, b Bulk) (BulkResult, error) {
	return fetch[BulkResult](c, ctx, "POST", "/dead/drop", nil, b)
}

// Refused lists refusals, the newest first; all for n <= 0.
func (c *Client) Refused(ctx context.Context, n int) ([]Refusal, error) {
	return fetchList[Refusal](c, ctx, "/refused", url.Values{"last": {strconv.Itoa(max(n, 0))}}, "refused")
}

// Refusal finds a refusal by its reference.
func (c *Client) Refusal(ctx context.Context, ref string) (Refusal, error) {
	return fetch[Refusal](c, ctx, "GET", "/refused/"+url.PathEscape(ref), nil, nil)
}

// Keys lists all keys, without secrets.
func (c *Client) Keys(ctx context.Context) (Keys, error) {
	return fetch[Keys](c, ctx, "GET", "/keys", nil, nil)
}

// AgentKeys lists the keys of one agent, without secrets.
func (c *Client) AgentKeys(ctx context.Context, agent string) (Keys, error) {
	return fetch[Keys](c, ctx, "GET", "/keys", values(param{"agent", &agent}), nil)
}

// Enroll records the public key of one of an agent's identities.
func (c *Client) Enroll(ctx context.Context, e Enrolment) error {
	return c.do(ctx, "POST", "/keys", nil, e, nil)
}

// Unenroll forgets a public key of an agent.
func (c *Client) Unenroll(ctx context.Context, agent, protocol, keyID string) error {
	return c.do(ctx, "DELETE", "/keys", url.Values{"agent": {agent}, "protocol": {protocol}, "keyId": {keyID}}, nil,
		nil)
}

// NewKey makes a private key in the hub's keyring, or stores a given one.
func (c *Client) NewKey(ctx context.Context, n NewKey) (keyring.Key, error) {
	return fetch[keyring.Key](c, ctx, "POST", "/keys/own", nil, n)
}

// Passphrase changes the passphrase of the hub's keyring.
func (c *Client) Passphrase(ctx context.Context, p Passphrase) (Protected, error) {
	return fetch[Protected](c, ctx, "POST", "/keys/passphrase", nil, p)
}

// Rotate replaces a key that the hub holds.
func (c *Client) Rotate(ctx context.Context, r Rotation) (keyring.Key, error) {
	return fetch[keyring.Key](c, ctx, "POST", "/keys/rotate", nil, r)
}

// Reload makes the hub read its configuration again.
func (c *Client) Reload(ctx context.Context) (Reloaded, error) {
	return fetch[Reloaded](c, ctx, "POST", "/reload", nil, nil)
}

// Audit lists the actions of operators that a filter chooses, the newest first.
func (c *Client) Audit(ctx context.Context, f AuditFilter) ([]AuditEntry, error) {
	q := values(auditParams(&f)...)
	q.Set("limit", strconv.Itoa(f.Limit)) // without it the hub would take its default
	return fetchList[AuditEntry](c, ctx, "/audit", q, "audit")
}

// Tokens lists the tokens, without their hashes.
func (c *Client) Tokens(ctx context.Context) ([]Token, error) {
	return fetchList[Token](c, ctx, "/tokens", nil, "tokens")
}

// IssueToken issues a token, and gives it with its secret.
func (c *Client) IssueToken(ctx context.Context, n NewToken) (Token, error) {
	return fetch[Token](c, ctx, "POST", "/tokens", nil, n)
}

// ConsoleLink makes a link that lets a browser into the console, once.
func (c *Client) ConsoleLink(ctx context.Context) (Link, error) {
	return fetch[Link](c, ctx, "POST", "/console/links", nil, nil)
}

// RevokeToken revokes a token, and ends the calls that run on it.
func (c *Client) RevokeToken(ctx context.Context, name string, force bool) error {
	return c.do(ctx, "DELETE", "/tokens/"+url.PathEscape(name), values(param{"force", &force}), nil, nil)
}

// Messages lists messages of the journal, the newest first.
func (c *Client) Messages(ctx context.Context, f index.Filter) (MessagePage, error) {
	return fetch[MessagePage](c, ctx, "GET", "/messages", values(pageParams(&f)...), nil)
}

// Message finds a message by its id, or by at least the first 8 digits of it.
func (c *Client) Message(ctx context.Context, id string, raw bool) (Recorded, error) {
	return fetch[Recorded](c, ctx, "GET", "/messages/"+url.PathEscape(id), values(param{"raw", &raw}), nil)
}

// Conversations lists conversations, the one with the newest message first.
func (c *Client) Conversations(ctx context.Context, f index.ConversationFilter) (ConversationPage, error) {
	return fetch[ConversationPage](c, ctx, "GET", "/conversations", values(conversationParams(&f)...), nil)
}

// Conversation finds a conversation by its id, or by at least the first 8 digits of it,
// with the page of its messages behind cursor.
func (c *Client) Conversation(ctx context.Context, id, cursor string, limit int) (Conversation, error) {
	q := values(param{"cursor", &cursor}, param{"limit", &limit})
	return fetch[Conversation](c, ctx, "GET", "/conversations/"+url.PathEscape(id), q, nil)
}

// Tail yields the events from now on, until ctx ends, the loop breaks off or the hub
// sends Dropped. Started, if not nil, is called once no later event can be missed.
func (c *Client) Tail(ctx context.Context, f index.Filter, started func()) iter.Seq2[Event, error] {
	return decoded(c.events(c.request(ctx, "GET", "/events", values(messageParams(&f)...), nil)),
		func(e event) (v Event, last bool, err error) {
			switch e.name {
			case "message":
				err = jsonx.Decode(e.data, &v.Message)
			case "delivery":
				err = jsonx.Decode(e.data, &v.Delivery)
			case "refused":
				err = jsonx.Decode(e.data, &v.Refusal)
			case "dropped":
				last, err = true, jsonx.Decode(e.data, &v.Dropped)
			case "started":
				if started != nil {
					started()
				}
				err = errPassedOver
			default: // of a later version
				err = errPassedOver
			}
			return v, last, err
		})
}

// Export writes a conversation as a file that proves itself; see
// [VerifyExport]. Without content it has digests in place of bytes.
func (c *Client) Export(ctx context.Context, id string, content bool, w io.Writer) error {
	q := url.Values{}
	if !content {
		q.Set("content", "false")
	}
	return c.export(ctx, id, q, w)
}

// Transcript writes the one session in which a conversation was held, in the
// transcript format of its protocol: only asp has one.
func (c *Client) Transcript(ctx context.Context, id, protocol string, w io.Writer) error {
	return c.export(ctx, id, url.Values{"format": {protocol}}, w)
}

func (c *Client) export(ctx context.Context, id string, q url.Values, w io.Writer) error {
	body, err := c.download(ctx, "/conversations/"+url.PathEscape(id)+"/export", q)
	if err != nil {
		return err
	}
	defer body.Close()
	if _, err := io.Copy(w, body); err != nil {
		return c.unreachable(ctx, err)
	}
	return nil
}

// Backup streams a backup while the hub makes it. The caller closes and checks it: see
// [journal.CheckBackup].
func (c *Client) Backup(ctx context.Context) (io.ReadCloser, error) {
	return c.download(ctx, "/backup", nil)
}

func (c *Client) download(ctx context.Context, path string, q url.Values) (io.ReadCloser, error) {
	req, err := c.request(ctx, "GET", path, q, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.send(req)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// Forget erases the content of an agent's messages, or of a conversation's.
func (c *Client) Forget(ctx context.Context, f Forget) (Forgotten, error) {
	return fetch[Forgotten](c, ctx, "POST", "/forget", nil, f)
}

// Erasures lists the erasures, each with its reason and author.
func (c *Client) Erasures(ctx context.Context) ([]Erasure, error) {
	return fetchList[Erasure](c, ctx, "/erasures", nil, "erasures")
}
