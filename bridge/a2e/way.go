package a2e

import (
	"context"
	"crypto/x509"
	"errors"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
)

// What the hub sees of the way to an agent, for `parley doctor`: [hub.Capabilities.Way].

// pingWait bounds the ping of a host.
const pingWait = 5 * time.Second

func (b *Binding) way(ctx context.Context, e *directory.Entry, id parley.Identity) hub.Way {
	if id.URL != "" {
		return b.hosts.way(ctx, e.Name, id.URL)
	}
	w := hub.Way{How: "it connects to the hub with its token"}
	fix := "start the agent with the host " + b.Base() + " and its token; if the token is lost, remove the agent, and " +
		"`parley agents add " + e.Name + " --a2e new` makes another"
	s, err := b.sessions.latest(ctx, e.Name, b.host)
	switch {
	case err != nil:
		w.Skip("connection", "the sessions cannot be read: %v", err)
	case s.opened.IsZero():
		w.Fail("connection", fix, "it has no session, so it did not connect with a valid token in the last %s", sessionTTL)
	case s.attached:
		w.OK("connection", "connected here, with a session since %s; last heard of at %s", hub.Stamp(s.opened),
			hub.Stamp(s.heard))
	case s.node != "":
		w.OK("connection", "its session of %s is at the hub %s", hub.Stamp(s.opened), s.node)
	default:
		w.Warn("connection", fix, "it is not connected; its session of %s waits for it, and so do its messages",
			hub.Stamp(s.opened))
	}
	const call = "let the agent call the tool parley_inbox, which returns its messages"
	waiting := len(b.c.Journal.Deliveries(journal.Filter{To: e.Name,
		States: []parley.DeliveryState{parley.Waiting, parley.Delivering}}))
	switch calls := b.inboxes.hasCall(e.Name); {
	case calls:
		w.OK("inbox", "it calls parley_inbox, so it gets messages at once")
	case waiting > 0:
		w.Warn("inbox", call, "it does not call parley_inbox; messages that wait for that: %d", waiting)
	default:
		w.Skip("inbox", "it does not call parley_inbox just now; a message would wait until it does")
	}
	return w
}

// sessionSeen is what the hubs know of an agent's session.
type sessionSeen struct {
	opened   time.Time // zero: there is none
	attached bool      // to a transport, at this hub
	heard    time.Time // if attached
	node     string    // another hub, which has the session and is alive
}

// latest gives an agent's session: one that is attached here, else at another hub, else the latest.
func (t *sessionStore) latest(ctx context.Context, agent string, host *protocol.Host) (best sessionSeen, err error) {
	for _, s := range host.Sessions() {
		if _, attached := s.State(); !attached || s.Identity().Name != agent || s.Heard().Before(best.heard) {
			continue
		}
		best = sessionSeen{opened: s.Opened(), attached: true, heard: s.Heard()}
	}
	if best.attached {
		return best, nil
	}
	for row, err := range t.rows.Range(ctx, "") {
		if err != nil {
			return best, err
		}
		r := row.Value
		if r.Agent != agent {
			continue
		}
		node := ""
		if r.Node != t.node && t.aliveElsewhere(r.Node) {
			node = r.Node
		}
		if best.node == "" && (node != "" || r.Opened.After(best.opened)) {
			best = sessionSeen{opened: r.Opened, node: node}
		}
	}
	return best, nil
}

// way pings a host over the connection that the hub uses.
func (h *hosts) way(ctx context.Context, agent, at string) hub.Way {
	w := hub.Way{How: "the hub connects to its host"}
	setting := "agents." + agent + ".a2e.url, or remove the agent and add it again with --a2e URL"
	if u, err := url.Parse(at); err == nil && u.Scheme != "unix" {
		w.Addresses = []string{at}
	}
	a := h.get(agent)
	if a == nil {
		w.Fail("connection", setting, "the hub has not attached to %s; its log says why", at)
		return w
	}
	ctx, cancel := context.WithTimeout(ctx, pingWait)
	defer cancel()
	took, err := a.client.Ping(ctx)
	if err != nil && !protocol.NotSupported(err) {
		w.Fail("connection", hostFix(err, agent, setting), "%s", failureText(err))
		return w
	}
	w.OK("connection", "the host answered a ping in %s", took.Round(10*time.Microsecond))
	e, ok := h.b.c.Hub.Directory().Agent(agent)
	var served []string
	for capability, name := range h.b.c.Providers {
		if name == agent {
			served = append(served, capability)
		}
	}
	slices.Sort(served)
	switch {
	case ok && len(e.Skills) > 0:
		w.OK("tools", "%d, which are its skills", len(e.Skills))
	case len(served) > 0:
		w.OK("tools", "none; it serves %s (a2e.providers)", strings.Join(served, ", "))
	default:
		w.Warn("tools", "let the host offer tools, or name it in a2e.providers", "the host lists none, so the agent "+
			"has no skills")
	}
	return w
}

// hostFix names the setting for the error of a connection to a host.
func hostFix(err error, agent, setting string) string {
	_, unknown := errors.AsType[x509.UnknownAuthorityError](err)
	switch {
	case unknown:
		return "tls.ca: add the certificate of the host's authority"
	case errors.Is(err, protocol.ErrUnknownKey), errors.Is(err, protocol.ErrUnauthorized):
		return "agents." + agent + ".a2e.token_file: the token that the host accepts"
	}
	return setting + "; is the host running?"
}

// failureText is the text of an error with its cause.
func failureText(err error) string {
	text := err.Error()
	if e, ok := errors.AsType[*protocol.Error](err); ok {
		text = e.Text
		if cause := e.Unwrap(); cause != nil {
			text += ": " + cause.Error()
		}
	}
	return bridge.Shorten(text, 300)
}
