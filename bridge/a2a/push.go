package a2a

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/httpsig"
	"github.com/parley-hub/parley/internal/recorder"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/keyring"
)

// CreateTaskPushConfig implements a2asrv.RequestHandler: it sets a configuration, in place of one
// with its id.
func (s service) CreateTaskPushConfig(ctx context.Context, r *protocol.PushConfig) (*protocol.PushConfig, error) {
	c := callOf(ctx)
	m, err := s.b.known(ctx, c, r.TaskID)
	if err != nil {
		return nil, err
	}
	p := *r
	if err := s.b.setHook(ctx, c, m.ID, &p); err != nil {
		return nil, err
	}
	p.Tenant = ""
	return &p, nil
}

// setHook checks and sets a configuration of a recorded task.
func (b *Binding) setHook(ctx context.Context, c *call, task parley.ID, p *protocol.PushConfig) error {
	if err := b.checkHook(p); err != nil {
		return err
	}
	if err := b.webhooks.put(ctx, c, task, p); err != nil {
		return err
	}
	if b.webhooks.over(task, c.agent) {
		b.webhooks.end(task)
	}
	return nil
}

// GetTaskPushConfig implements a2asrv.RequestHandler. In 0.3 the id may be left out.
func (s service) GetTaskPushConfig(ctx context.Context, r *protocol.GetTaskPushConfigRequest) (*protocol.PushConfig,
	error) {
	all, err := s.hooksOf(ctx, r.TaskID)
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		if p.ID == r.ID || r.ID == "" && callOf(ctx).version == V03 {
			return p, nil
		}
	}
	return nil, protocol.ErrTaskNotFound // rule A2A-053
}

// ListTaskPushConfigs implements a2asrv.RequestHandler. There is one page.
func (s service) ListTaskPushConfigs(ctx context.Context, r *protocol.ListTaskPushConfigRequest) (
	*protocol.ListTaskPushConfigResponse, error) {
	switch {
	case r.PageSize < 0:
		return nil, invalidParams("pageSize", "it is negative")
	case r.PageToken != "":
		return nil, invalidParams("pageToken", "it is not one that this hub gave")
	}
	all, err := s.hooksOf(ctx, r.TaskID)
	if err != nil {
		return nil, err
	}
	return &protocol.ListTaskPushConfigResponse{Configs: all}, nil
}

// hooksOf gives the configurations of a task of the caller.
func (s service) hooksOf(ctx context.Context, task protocol.TaskID) ([]*protocol.PushConfig, error) {
	m, err := s.b.known(ctx, callOf(ctx), task)
	if err != nil {
		return nil, err
	}
	rows, err := s.b.hooks.List(ctx, m.ID.String()+"/")
	if err != nil {
		return nil, parley.Fail(parley.Unavailable, err, "the webhooks cannot be read now")
	}
	out := []*protocol.PushConfig{}
	for _, row := range rows {
		p, err := s.b.webhooks.config(row)
		if err != nil {
			return nil, parley.Refuse(parley.Internal, "internal error").Because(err)
		}
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *protocol.PushConfig) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}

// DeleteTaskPushConfig implements a2asrv.RequestHandler. An unknown configuration is no error.
func (s service) DeleteTaskPushConfig(ctx context.Context, r *protocol.DeleteTaskPushConfigRequest) error {
	m, err := s.b.known(ctx, callOf(ctx), r.TaskID)
	if err != nil || !hookID.MatchString(r.ID) {
		return err
	}
	if err := s.b.hooks.Delete(ctx, hookKey(m.ID, r.ID), 0); err != nil {
		return parley.Fail(parley.Unavailable, err, "the webhook cannot be removed now; try again")
	}
	return nil
}

// callsBack names the webhooks that an event or a reply of a task goes to.
func (b *Binding) callsBack(request, _ *parley.Message) []string { return b.webhooks.of(request.ID) }

// Pauses between two attempts of a webhook. They double, and half of each depends on the
// message, so that a receiver that is up again does not get all at once.
const (
	firstPause   = time.Second
	longestPause = 15 * time.Minute
)

func hookPause(id parley.ID, attempt int) time.Duration {
	p := min(firstPause<<min(max(attempt-1, 0), 20), longestPause)
	return p/2 + p/2*time.Duration(id[len(id)-1])/255
}

// notify makes one attempt to tell a webhook of a task about an event or a reply. The updates
// of one record are one request each; after a failure all of them are sent again.
func (b *Binding) notify(ctx context.Context, o hub.Outbound) hub.Outcome {
	row, err := b.hooks.Last(ctx, hookKey(o.Request.ID, o.Callback))
	switch {
	case err != nil:
		return hub.Outcome{Err: parley.Fail(parley.Unavailable, err, "the webhook cannot be read").
			With(parley.ByHub, parley.HubStorage, ""), Wait: pause}
	case row.Revision == 0:
		return hub.Outcome{Err: parley.Refuse(parley.Cancelled, "the webhook was removed")}
	}
	secrets, err := b.webhooks.secrets(row)
	if err != nil {
		return hub.Outcome{Err: parley.Refuse(parley.Internal, "the secrets of the webhook cannot be read").Because(err)}
	}
	u, err := url.Parse(row.Value.URL)
	if err != nil || u.Scheme == "http" && !b.c.PlainPush {
		return hub.Outcome{Err: parley.Refuse(parley.Forbidden, "the webhook is not called without TLS")}
	}
	bodies, media, err := b.notifications(ctx, row.Value.Version, o)
	if err != nil {
		return hub.Outcome{Err: parley.AsError(err), Wait: pause}
	}
	recorder.Hide(ctx, secrets.Credentials, secrets.Token)
	recorder.HideURL(ctx, row.Value.URL)
	for _, body := range bodies {
		if again, after, err := b.post(ctx, u, &row.Value, secrets, media, body); err != nil && again {
			e := parley.Fail(parley.Unavailable, nil, "the webhook at %.200s did not take the update", u.Host)
			return hub.Outcome{Err: hookError(e, err), Wait: max(after, hookPause(o.Message.ID, o.Attempt))}
		} else if err != nil {
			e := parley.Refuse(parley.Rejected, "the webhook at %.200s is not called again", u.Host)
			return hub.Outcome{Err: hookError(e, err)}
		}
	}
	return hub.Outcome{Losses: replyLosses(o.Message, o.Request)}
}

func hookError(e *parley.Error, err error) *parley.Error {
	e = bridge.Unreachable(e.Because(err), err)
	if e.Source == parley.NotStated {
		e = bridge.Answered(e, Protocol, err.Error())
	}
	return e
}

// notifications makes the bodies that tell about a record: a StreamResponse for each update
// (A2A 1.0, section 4.3.3), or the task as it then was, for a client of 0.3.
func (b *Binding) notifications(ctx context.Context, version string, o hub.Outbound) (
	bodies [][]byte, media string, err error) {
	if version == V03 {
		t, err := b.taskAt(ctx, o)
		if err != nil {
			return nil, "", err
		}
		body, err := json.Marshal(a2av0.FromV1Task(cut(t, nil)))
		return [][]byte{body}, "application/json", err
	}
	p, _ := begin(o.Request, time.Time{})
	if p.pieces, err = b.piecesBefore(ctx, o); err != nil {
		return nil, "", err
	}
	for _, e := range p.events(o.Message, o.Message.Sent) {
		body, err := json.Marshal(protocol.StreamResponse{Event: e})
		if err != nil {
			return nil, "", err
		}
		bodies = append(bodies, body)
	}
	return bodies, "application/a2a+json", nil
}

// taskAt makes the task from the records up to a message about it.
func (b *Binding) taskAt(ctx context.Context, o hub.Outbound) (*protocol.Task, error) {
	c := &call{agent: o.Request.To}
	c.caller.Name = o.Request.From
	m, err := b.find(ctx, c, protocol.TaskID(o.Request.ID.String()))
	if err != nil {
		return nil, err
	}
	f := &follower{b: b, until: o.Message.ID}
	err = f.load(ctx, m, true, nil)
	return f.task, err
}

// piecesBefore reports whether pieces of the result were recorded before a message.
func (b *Binding) piecesBefore(ctx context.Context, o hub.Outbound) (bool, error) {
	m := o.Message
	if piece := m.Kind == parley.Event && m.State == parley.NoState; !piece && len(keptOf(m).Artifacts) == 0 {
		return false, nil // it makes no difference
	}
	if err := b.requests.Indexed(ctx); err != nil {
		return false, err
	}
	filter := index.Filter{InReplyTo: o.Request.ID, Kind: parley.Event, Oldest: true}
	for {
		page, err := b.c.Index.Messages(ctx, filter)
		if err != nil {
			return false, parley.Fail(parley.Unavailable, err, "the index cannot be read now")
		}
		for i := range page.Messages {
			switch about := &page.Messages[i]; {
			case about.ID == m.ID:
				return false, nil
			case about.State == parley.NoState && about.Size > 0:
				return true, nil
			}
		}
		if filter.Cursor = page.Next; filter.Cursor == "" {
			return false, nil
		}
	}
}

// maxHookAnswer bounds what is read of the answer of a webhook; nothing in it counts.
const maxHookAnswer = 64 << 10

// post sends one body. again: it may be sent again, after a time that the receiver states.
func (b *Binding) post(ctx context.Context, u *url.URL, h *hookRow, secrets hookSecrets, media string, body []byte) (
	again bool, after time.Duration, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(body))
	if err != nil {
		return false, 0, err
	}
	r.Header.Set("Content-Type", media)
	if h.Version != V03 {
		r.Header.Set("A2A-Version", h.Version)
	}
	if h.Scheme != "" && secrets.Credentials != "" {
		r.Header.Set("Authorization", h.Scheme+" "+secrets.Credentials)
	}
	if secrets.Token != "" { // the SDKs for Python and JavaScript read the first, that for Go the second
		r.Header.Set("X-A2A-Notification-Token", secrets.Token)
		r.Header.Set("A2A-Notification-Token", secrets.Token)
	}
	if err := b.sign(r, body); err != nil {
		return true, 0, err
	}
	resp, err := b.hookClient.Do(r)
	if err != nil {
		if call, ok := errors.AsType[*url.Error](err); ok {
			err = call.Err // without the URL: it may be a secret of the receiver
		}
		return true, 0, err
	}
	defer func() { _ = resp.Body.Close() }()                             // nothing in it counts
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxHookAnswer)) // so that the connection is kept
	s := resp.StatusCode
	if s >= 200 && s < 300 {
		return false, 0, nil
	}
	if n, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && n > 0 {
		after = min(time.Duration(n)*time.Second, longestPause)
	}
	again = s >= 500 || s == http.StatusRequestTimeout || s == http.StatusTooEarly || s == http.StatusTooManyRequests
	return again, after, fmt.Errorf("status %d", s)
}

// signedComponents are what the signature of a notification covers.
const signedComponents = `("@method" "@target-uri" "content-type" "content-digest")`

// sign signs a notification with the hub's key for A2A, by HTTP Message Signatures (RFC 9421)
// over a Content-Digest (RFC 9530): alg ed25519, keyid the key's in the keyring. A2A itself has
// no signature for notifications.
func (b *Binding) sign(r *http.Request, body []byte) error {
	key, err := b.c.Keys.Ensure(hubKey)
	if err != nil {
		return err
	}
	r.Header.Set("Content-Digest", httpsig.Digest(body))
	params := fmt.Sprintf(`%s;created=%d;keyid=%q;alg="ed25519";tag="a2a-notification"`, signedComponents,
		b.c.Now().Unix(), key.ID())
	m := httpsig.Message{Method: r.Method, Scheme: r.URL.Scheme, Authority: r.URL.Host, Path: r.URL.EscapedPath(),
		RawQuery: r.URL.RawQuery, Header: r.Header}
	parsed, err := httpsig.Parse("parley="+params, "parley=::")
	if err != nil || len(parsed) != 1 {
		return fmt.Errorf("a2a: the parameters of a signature: %w", err)
	}
	base, err := m.AppendBase(nil, &parsed[0])
	if err != nil {
		return err
	}
	signature, err := key.Sign(base)
	if err != nil {
		return err
	}
	r.Header.Set("Signature-Input", "parley="+params)
	r.Header.Set("Signature", "parley=:"+base64.StdEncoding.EncodeToString(signature)+":")
	return nil
}

// hubKey is the key with which the hub signs in A2A.
var hubKey = keyring.New{Owner: keyring.Hub, Purpose: Protocol, Algorithm: keyring.Ed25519, By: "parley"}

// lossWay is the form in which A2A carries messages, in the loss table.
const lossWay bridge.Way = Protocol

// replyLosses are what an A2A client cannot be told of a reply.
func replyLosses(reply, _ *parley.Message) []parley.Loss {
	if lossWay.Protocol() == "" {
		return nil // the table does not have it
	}
	return bridge.OfReply(reply.Kind, bridge.Losses(lossWay, reply, reply.To))
}
