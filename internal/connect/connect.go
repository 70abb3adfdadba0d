// Package connect knows how agents of each protocol join a hub: the fields that describe one, what an agent says of
// itself where the hub can read that, and the lines to enter at the agent's side.
package connect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/internal/readable"
)

// Protocols are all protocols, in the order of the tables. One is added by a line here.
var Protocols = []Protocol{samvadProtocol, uagentsProtocol, a2eProtocol, aghProtocol, aspProtocol, a2aProtocol,
	mcpProtocol}

// A Protocol is a protocol's part of this package. NewToken and Read may be unset.
type Protocol struct {
	Name string
	Ways []Way
	// NewToken makes a token for a way that needs one.
	NewToken func() (token, id string, err error)
	// Paste gives the lines for an agent with this identity of its own.
	Paste func(h *Hub, name string, id admin.Identity) []admin.Paste
	// Read completes an identity, and the agent, with what the agent says at its URL. Nothing but notes says that it
	// could not be read; an error says that something else is there.
	Read func(ctx context.Context, r *Reader, n *admin.NewAgent, id *admin.NewIdentity, note Note) error
}

// A Note adds a sentence for the operator.
type Note func(format string, args ...any)

// A Hub is what the lines need to know of a hub.
type Hub struct {
	Info    admin.Info
	A2EPath string
	AGH     AGH
}

// AGH is what peers of AGH need to know of a hub.
type AGH struct {
	URL, Listen string // of the NATS server that the hub uses; else where it listens itself, "" for nowhere
	Users       []AGHUser
}

// An AGHUser may speak as these peers, in these workspaces: entries that end in * stand for all with that beginning.
type AGHUser struct {
	Name              string
	Peers, Workspaces []string
}

// Paste gives the lines for an agent of the directory: of all its own identities.
func (h *Hub) Paste(name string, identities []admin.Identity) (out []admin.Paste) {
	for _, i := range identities {
		if p := named(i.Protocol); p != nil && p.Paste != nil && !i.StandIn {
			out = append(out, p.Paste(h, name, i)...)
		}
	}
	return out
}

func named(protocol string) *Protocol {
	if i := slices.IndexFunc(Protocols, func(p Protocol) bool { return p.Name == protocol }); i >= 0 {
		return &Protocols[i]
	}
	return nil
}

// A Reader reads what agents say of themselves.
type Reader struct {
	Guard   *netguard.Guard
	Client  *http.Client // that calls only what the guard allows
	Version string       // of this program
}

// wait bounds the reading of one document.
const wait = 20 * time.Second

// Read completes an agent that is to be added with what it says of itself. Members that are set stay as they are.
func (r *Reader) Read(ctx context.Context, n admin.NewAgent) (admin.AgentReading, error) {
	out := admin.AgentReading{Notes: []string{}}
	note := func(format string, args ...any) { out.Notes = append(out.Notes, fmt.Sprintf(format, args...)) }
	n.Identities = slices.Clone(n.Identities)
	for i := range n.Identities {
		id := &n.Identities[i]
		if p := named(id.Protocol); p != nil && p.Read != nil {
			if err := p.Read(ctx, r, &n, id, note); err != nil {
				return admin.AgentReading{}, err
			}
		}
	}
	for i := range n.Identities {
		n.Identities[i].Credentials = nil
	}
	out.Agent = n
	return out, nil
}

func refuse(code parley.Code, format string, args ...any) error {
	return parley.Refuse(code, format, args...)
}

// malformed says that a field is not as it has to be.
func malformed(format string, args ...any) error { return refuse(parley.Malformed, format, args...) }

// unread says why something could not be read.
func unread(err error) string {
	if blocked, ok := errors.AsType[*netguard.BlockedError](err); ok {
		return blocked.Error()
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return short(op.Error(), 200)
	}
	for next := err; next != nil; next = errors.Unwrap(next) {
		err = next
	}
	return short(err.Error(), 200)
}

// WebURL parses an http or https URL with a host.
func webURL(s string) (u *url.URL, ok bool) {
	u, err := url.Parse(s)
	return u, err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
}

// origin is the scheme and host of a URL.
func origin(at string) string {
	scheme, rest, _ := strings.Cut(at, "://")
	host, _, _ := strings.Cut(rest, "/")
	return strings.ToLower(scheme + "://" + host)
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Texts for people.
var (
	clean  = readable.Clean
	short  = readable.Short
	plural = readable.Plural
)
