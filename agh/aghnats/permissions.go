package aghnats

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/parley-hub/parley/agh"
)

// permissions are the subjects that a user's connections may publish and subscribe
// to: its workspaces, the reply subjects of relayed whois requests, and its own
// inboxes. The server refuses any other with a permissions violation, as every
// NATS server does. A user of all workspaces is not restricted: it receives only
// the subjects that its account imports.
func (u *User) permissions() *server.Permissions {
	// Even the user's own wildcard subscriptions do not receive its publications.
	p := &server.Permissions{Subscribe: &server.SubjectPermission{Deny: []string{inPrefix + ">"}}}
	if u.Workspaces[0] == "*" {
		return p
	}
	p.Publish = &server.SubjectPermission{Allow: []string{replyPrefix + ">"}}
	p.Subscribe.Allow = []string{"_INBOX.>"}
	for _, w := range u.Workspaces {
		// The server checks a mapped subject after the mapping.
		p.Publish.Allow = append(p.Publish.Allow, inPrefix+below(w))
		p.Subscribe.Allow = append(p.Subscribe.Allow, below(w))
	}
	return p
}

// below are the subjects of a workspace, "*" of all.
func below(workspace string) string {
	if workspace == "*" {
		return agh.SubjectPrefix + ".>"
	}
	return agh.SubjectPrefix + "." + workspace + ".>"
}

// violations is the server's log. It keeps the permissions violations: refusals
// that the hub does not learn of otherwise. When the queue is full, further ones
// are dropped.
type violations chan string

// maxViolations bounds the violations that wait to be reported.
const maxViolations = 64

// Errorf implements [server.Logger].
func (v violations) Errorf(format string, args ...any) {
	if !strings.Contains(format, " Violation - Subject ") {
		return
	}
	select {
	case v <- fmt.Sprintf(format, args...):
	default:
	}
}

// Noticef implements [server.Logger].
func (violations) Noticef(string, ...any) {}

// Warnf implements [server.Logger].
func (violations) Warnf(string, ...any) {}

// Fatalf implements [server.Logger].
func (violations) Fatalf(string, ...any) {}

// Debugf implements [server.Logger].
func (violations) Debugf(string, ...any) {}

// Tracef implements [server.Logger].
func (violations) Tracef(string, ...any) {}

// tell passes violations to [Gateway.Refused] until the gateway closes.
func (v violations) tell(g *Gateway) {
	for {
		select {
		case line := <-v:
			g.violated(line)
		case <-g.ctx.Done():
			return
		}
	}
}

// violated parses a line of the log: … cid:7 - Publish Violation - Subject "x".
func (g *Gateway) violated(line string) {
	if g.Refused == nil {
		return
	}
	text := "the server lets nobody but the users of a workspace publish there"
	if strings.Contains(line, "Subscription Violation") {
		text = "the server lets nobody but the users of a workspace listen there"
	}
	_, quoted, _ := strings.Cut(line, " Violation - Subject ")
	subject := quoted
	if q, err := strconv.QuotedPrefix(quoted); err == nil {
		if s, err := strconv.Unquote(q); err == nil {
			subject = s
		}
	}
	g.Refused(g.connectedAs(line), subject, nil,
		agh.Result{Outcome: agh.Refused, Err: agh.Refuse(agh.ErrForbidden, text, errors.New(line))})
}

// connectedAs gives the user of the connection that a log line names, "" if the
// connection is closed.
func (g *Gateway) connectedAs(line string) string {
	_, rest, _ := strings.Cut(line, " - cid:")
	id, _, _ := strings.Cut(rest, " ")
	cid, err := strconv.ParseUint(id, 10, 64)
	if err != nil {
		return ""
	}
	conns, err := g.server.Connz(&server.ConnzOptions{CID: cid, Username: true})
	if err != nil || len(conns.Conns) == 0 {
		return ""
	}
	g.mu.RLock()
	defer g.mu.RUnlock()
	if a := g.users[strings.TrimPrefix(conns.Conns[0].Account, "AGH-")]; a != nil {
		return a.user.Name
	}
	return ""
}
