package agh

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	protocol "github.com/parley-hub/parley/agh"
)

// The connector runs beside a stock AGH daemon and joins its sessions to a hub; it is
// a client of the hub, and no part of the binding.

// Connector joins the sessions of a stock AGH daemon, whose own NATS takes no
// connections, to a hub. It runs beside the daemon, reads timelines by the
// daemon's HTTP API, and posts into the daemon as one of its sessions, the bridge
// session.
//
// Every other session of the channel is a peer at the hub. Its thread messages go
// to the hub's channel; its messages to the bridge session go to the peer at the
// hub that they answer: by work, by reply_to, else the peer that spoke to the
// session last. Messages between the daemon's own sessions stay there.
type Connector struct {
	Daemon      string // base URL of the API, http://localhost:2123
	WorkspaceID string
	Channel     string
	Session     string // the bridge session, by which the hub's peers speak in the daemon

	// Transport leads to the hub.
	Transport protocol.Transport
	HTTP      *http.Client  // nil: one with a timeout of 10 s
	Every     time.Duration // between two polls of the timelines; 0: 2 s
	Now       func() time.Time
	Log       *slog.Logger // problems; nil discards
	// Did gets a line for each action of the connector; nil discards. Many
	// goroutines call it.
	Did func(line string)

	since time.Time

	mu    sync.Mutex
	self  string                      // peer id of the bridge session
	peers map[string]*protocol.Client // the daemon's peers at the hub
	from  recent[string, origin]      // by "work …", "id …", "peer …"
	seen  recent[string, struct{}]    // messages of the daemon
}

// origin is the hub's peer, and its conversation, behind a message in the daemon.
type origin struct {
	peer string
	at   protocol.Container
}

const maxRemembered = 1 << 14 // of each kind; the oldest is dropped first

// The daemon's answers, with the members that the connector reads.
type (
	daemonPeer struct {
		SessionID   *string `json:"session_id"`
		PeerID      string  `json:"peer_id"`
		DisplayName string  `json:"display_name"`
		Channel     string  `json:"channel"`
		Local       bool    `json:"local"`
	}
	daemonMessage struct {
		MessageID   string          `json:"message_id"`
		Surface     string          `json:"surface"`
		ThreadID    string          `json:"thread_id"`
		Kind        string          `json:"kind"`
		PeerFrom    string          `json:"peer_from"`
		PeerTo      string          `json:"peer_to"`
		WorkID      string          `json:"work_id"`
		ReplyTo     string          `json:"reply_to"`
		TraceID     string          `json:"trace_id"`
		CausationID string          `json:"causation_id"`
		Body        json.RawMessage `json:"body"`
		Timestamp   *time.Time      `json:"timestamp"`
	}
)

// Run connects until ctx is done. It fails at once if the daemon does not know
// the session; later failures of either side are retried.
func (c *Connector) Run(ctx context.Context) error {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.HTTP == nil {
		c.HTTP = &http.Client{Timeout: 10 * time.Second}
	}
	c.peers = map[string]*protocol.Client{}
	c.from, c.seen = recent[string, origin]{max: maxRemembered}, recent[string, struct{}]{max: maxRemembered}
	c.since = c.Now().Truncate(time.Second)
	if err := c.poll(ctx); err != nil {
		return fmt.Errorf("cannot read workspace %q of the daemon "+
			"(`agh workspace list` shows the ids of its workspaces): %w", c.WorkspaceID, err)
	}
	if c.me() == "" {
		return fmt.Errorf("the daemon has no session %q in channel %s; `agh session list` shows its sessions",
			c.Session, c.Channel)
	}
	tick := time.NewTicker(cmp.Or(c.Every, 2*time.Second))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := c.poll(ctx); err != nil && ctx.Err() == nil {
				c.Log.Warn("the daemon could not be read", "error", err)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *Connector) did(format string, args ...any) {
	if c.Did != nil {
		c.Did(fmt.Sprintf(format, args...))
	}
}

// me is the peer id of the session, "" before it is known.
func (c *Connector) me() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.self
}

// poll reads peers and timelines once.
func (c *Connector) poll(ctx context.Context) error {
	var answer struct {
		Peers []daemonPeer `json:"peers"`
	}
	if err := c.get(ctx, "/peers?channel="+url.QueryEscape(c.Channel), &answer); err != nil {
		return err
	}
	// Our own session first: the connector posts to the others as this session.
	here := slices.DeleteFunc(answer.Peers, func(p daemonPeer) bool { return p.Channel != c.Channel || !p.Local })
	own := func(p daemonPeer) bool { return p.SessionID != nil && *p.SessionID == c.Session }
	if i := slices.IndexFunc(here, own); i >= 0 {
		c.mu.Lock()
		begins := c.self != here[i].PeerID
		c.self = here[i].PeerID
		c.mu.Unlock()
		if begins {
			c.did("the hub's peers speak in %s/%s of the daemon as %s", c.WorkspaceID, c.Channel, here[i].PeerID)
		}
	}
	self := c.me()
	if self == "" {
		return nil
	}
	for _, p := range here {
		if own(p) {
			continue
		}
		if err := c.join(ctx, p); err != nil {
			return err
		}
	}
	base := "/channels/" + url.PathEscape(c.Channel)
	var threads struct {
		Threads []struct {
			ThreadID string `json:"thread_id"`
		} `json:"threads"`
	}
	var directs struct {
		Directs []struct {
			DirectID string `json:"direct_id"`
			PeerA    string `json:"peer_a"`
			PeerB    string `json:"peer_b"`
		} `json:"directs"`
	}
	if err := errors.Join(c.get(ctx, base+"/threads", &threads), c.get(ctx, base+"/directs", &directs)); err != nil {
		return err
	}
	var errs []error
	for _, t := range threads.Threads {
		errs = append(errs, c.timeline(ctx, base+"/threads/"+url.PathEscape(t.ThreadID)))
	}
	for _, d := range directs.Directs {
		if d.PeerA == self || d.PeerB == self {
			errs = append(errs, c.timeline(ctx, base+"/directs/"+url.PathEscape(d.DirectID)))
		}
	}
	return errors.Join(errs...)
}

// join makes a peer of the daemon a peer of the hub's channel.
func (c *Connector) join(ctx context.Context, p daemonPeer) error {
	c.mu.Lock()
	_, ok := c.peers[p.PeerID]
	c.mu.Unlock()
	if ok || !protocol.ValidPeerID(p.PeerID) {
		return nil
	}
	client := &protocol.Client{Transport: c.Transport, WorkspaceID: c.WorkspaceID, Channel: c.Channel, PeerID: p.PeerID,
		DisplayName: p.DisplayName,
		Handler: func(ctx context.Context, r *protocol.Request) {
			if err := c.toDaemon(ctx, p.PeerID, r.Envelope); err != nil {
				c.Log.Warn("a message did not get into the daemon", "from", r.Envelope.From, "to", p.PeerID,
					"error", err)
			}
		}}
	if err := client.Join(ctx); err != nil {
		return fmt.Errorf("join the hub as %s: %w", p.PeerID, err)
	}
	c.mu.Lock()
	c.peers[p.PeerID] = client
	c.mu.Unlock()
	c.did("%s of the daemon is a peer at the hub", p.PeerID)
	return nil
}

// toDaemon posts in the daemon the message of a hub's peer to one of the daemon's
// sessions, or to all.
func (c *Connector) toDaemon(ctx context.Context, peer string, e *protocol.Envelope) error {
	c.mu.Lock()
	_, own := c.peers[e.From]
	c.mu.Unlock()
	if own {
		return nil // sent by a peer of this daemon
	}
	o := origin{e.From, e.Container()}
	if e.To != "" {
		c.remember("peer "+peer, o)
		if e.WorkID != "" {
			c.remember("work "+e.WorkID, o)
		}
	}
	c.remember("id "+e.ID, o)
	stated := &protocol.Envelope{Ext: e.Ext}
	if err := stated.SetExt("parley.from", map[string]string{"peer": e.From, "id": e.ID}); err != nil {
		return err
	}
	send := map[string]any{"session_id": c.Session, "channel": c.Channel, "kind": e.Kind, "surface": e.Surface,
		"body": e.Body, "id": e.ID, "ext": stated.Ext}
	for name, value := range map[string]string{"thread_id": e.ThreadID, "to": e.To, "work_id": e.WorkID,
		"reply_to": e.ReplyTo, "trace_id": e.TraceID, "causation_id": e.CausationID} {
		if value != "" {
			send[name] = value
		}
	}
	if e.Surface == protocol.SurfaceDirect {
		room, err := protocol.DirectID(c.WorkspaceID, c.Channel, c.me(), e.To)
		if err != nil {
			return err
		}
		send["direct_id"] = room
	}
	if e.ExpiresAt != 0 {
		send["expires_at"] = e.ExpiresAt
	}
	b, err := json.Marshal(send)
	if err == nil {
		err = c.call(ctx, http.MethodPost, "/send", b, nil)
	}
	if err == nil {
		c.did("to the daemon: %s of %s for %s", e.Kind, e.From, cmp.Or(e.To, "all"))
	}
	return err
}

// timeline sends the new messages of one conversation to the hub.
func (c *Connector) timeline(ctx context.Context, path string) error {
	var answer struct {
		Messages []daemonMessage `json:"messages"`
	}
	if err := c.get(ctx, path+"/messages", &answer); err != nil {
		return err
	}
	for _, m := range answer.Messages {
		c.mu.Lock()
		client := c.peers[m.PeerFrom]
		_, known := c.seen.byKey[m.MessageID]
		c.mu.Unlock()
		if client == nil || known || m.Timestamp == nil || m.Timestamp.Before(c.since) {
			continue
		}
		if err := c.toHub(ctx, client, m); err != nil {
			c.Log.Warn("a message of the daemon did not get to the hub", "id", m.MessageID, "error", err)
			var e *protocol.Error
			if !errors.As(err, &e) || e.Retryable {
				continue // the next poll tries again
			}
		}
		c.mu.Lock()
		c.seen.add(m.MessageID, struct{}{})
		c.mu.Unlock()
	}
	return nil
}

func (c *Connector) toHub(ctx context.Context, client *protocol.Client, m daemonMessage) error {
	e := &protocol.Envelope{ID: m.MessageID, Kind: protocol.Kind(m.Kind), Surface: protocol.SurfaceThread,
		ThreadID: m.ThreadID, WorkID: m.WorkID,
		ReplyTo: m.ReplyTo, TraceID: m.TraceID, CausationID: m.CausationID, Body: m.Body}
	switch {
	case m.Surface == string(protocol.SurfaceThread) && m.PeerTo == "":
	case m.PeerTo == c.me():
		o, ok := c.originOf(m)
		if !ok {
			return nil // for the bridge session itself
		}
		e.To, e.Surface, e.ThreadID = o.peer, o.at.Surface, ""
		if e.Surface == protocol.SurfaceThread {
			e.ThreadID = o.at.ID
		}
		e.ReplyTo = cmp.Or(e.ReplyTo, e.CausationID)
	default:
		return nil // between sessions of the daemon
	}
	_, err := client.Send(ctx, e)
	if err == nil {
		c.did("to the hub: %s of %s for %s", e.Kind, m.PeerFrom, cmp.Or(e.To, "all"))
	}
	return err
}

// originOf finds the hub's peer that a message to the bridge session is for.
func (c *Connector) originOf(m daemonMessage) (origin, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range []string{"work " + m.WorkID, "id " + m.ReplyTo, "peer " + m.PeerFrom} {
		if o, ok := c.from.byKey[key]; ok {
			return o, true
		}
	}
	return origin{}, false
}

func (c *Connector) remember(key string, o origin) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.from.add(key, o)
}

func (c *Connector) get(ctx context.Context, path string, answer any) error {
	return c.call(ctx, http.MethodGet, path, nil, answer)
}

func (c *Connector) call(ctx context.Context, method, path string, body []byte, answer any) error {
	r, err := http.NewRequestWithContext(ctx, method, c.Daemon+"/api/workspaces/"+url.PathEscape(c.WorkspaceID)+
		"/network"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.HTTP.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	switch {
	case err != nil:
		return err
	case resp.StatusCode/100 != 2:
		return fmt.Errorf("the daemon answers HTTP %d to %s %s: %.200s", resp.StatusCode, method, path, b)
	case answer == nil:
		return nil
	}
	if err := json.Unmarshal(b, answer); err != nil {
		return fmt.Errorf("the daemon's answer to %s %s: %w", method, path, err)
	}
	return nil
}
