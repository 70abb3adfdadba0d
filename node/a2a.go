package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	bridge "github.com/parley-hub/parley/bridge/a2a"
	"github.com/parley-hub/parley/bridge/peerauth"
	"github.com/parley-hub/parley/policy"
)

var a2aProtocol = Protocol{
	Name:    bridge.Protocol,
	Section: func(c *Config) any { return &c.A2A },
	Agent:   func(a *Agent) any { return &a.A2A },
	Files: peerFiles(func(a *Agent) *PeerCredentials {
		if a.A2A == nil {
			return nil
		}
		return &a.A2A.PeerCredentials
	}),
	Check:      func(c *Config) error { return c.A2A.check() },
	CheckAgent: func(name string, a *Agent) error { return a.A2A.check(name) },
	Listeners: func(c *Config) []Listener {
		return []Listener{{"a2a.grpc", c.A2A.GRPC, c.A2A.TLS, "tokens can be read on the way; set a2a.tls"}}
	},
	AgentID: func(a *Agent) string {
		if a.A2A == nil || a.A2A.URL == "" {
			return ""
		}
		i, err := bridge.IdentityAt(a.A2A.URL)
		if err != nil {
			return "" // CheckAgent says so
		}
		return i.ID
	},
	Export: func(t *AgentText, _ *admin.Agent, i admin.Identity) {
		if bridge.IsCaller(i.ID) {
			t.text.WriteString("a2a.calls = true\n")
			return
		}
		t.Line("a2a.url", i.ID)
		t.Note("If the agent wants a token, put it into a file of mode 0600, and name the file: a2a.token_file = \"…\"")
	},
	Assurance: parley.Session, // A2A has no signatures; a token or a certificate proves the session
	HubAgent:  true,
	Address:   "a2a.url",
	Open:      openA2A,
}

// A2A configures A2A.
type A2A struct {
	// do not speak A2A
	Off bool `toml:"off"`
	// agent whose card is at the root of public_url's host too, where clients look that know only the host;
	// default: none
	Root string `toml:"root"`
	// agents have their cards at sub-domains of this too, such as weather.agents.corp; default: at paths alone
	Domain string `toml:"domain"`
	// form of cards: negotiated = 1.0 alone for clients that ask for 1.0, with the members of 0.3 for all others |
	// 1.0 | hybrid = always with the members of 0.3
	Card string `toml:"card" default:"\"negotiated\""`
	// agents that callers without credentials may call over A2A, whatever policy.assurance and [[require]] say: names
	// or patterns, such as "weather" or "public/*"; default: those with guests in their table
	Guests []string `toml:"guests"`
	// how long a blocking call waits; then its answer is the task as it is
	Wait Duration `toml:"wait" default:"\"60s\""`
	// streams that one caller may have open at once; guests of one source address count as one caller
	Streams int `toml:"streams" default:"256"`
	// webhooks of one task
	Webhooks int `toml:"webhooks" default:"8"`
	// webhooks may be at http:// URLs too, if network.allow has their address
	PlainPush bool `toml:"plain_push"`
	// largest answer of an agent elsewhere, and largest event of its stream
	MaxAnswer string `toml:"max_answer" default:"\"4MiB\""`
	// address for A2A over gRPC, e.g. "127.0.0.1:50051"; "": over HTTP only
	GRPC string `toml:"grpc"`
	// where clients reach a2a.grpc, HOST:PORT, as cards say it; default: the host of public_url with that port
	GRPCAddress string `toml:"grpc_address"`
	// speak TLS on a2a.grpc, with the certificate of [tls]
	TLS bool `toml:"tls"`
}

// A2AAgent is an agent's identity in A2A, or how callers reach an agent of the hub there.
type A2AAgent struct {
	// URL below which its card is, for an agent elsewhere; it is the agent's identity
	URL string `toml:"url" reload:"yes"`
	// it calls the hub, with a token or certificate, and has no URL
	Calls bool `toml:"calls" reload:"yes"`

	PeerCredentials
	// accept its card although it was signed before and is not now
	AcceptUnsignedCard bool `toml:"accept_unsigned_card" reload:"yes"`

	// what callers get that wait for an answer: task | message, if the answer comes in time
	Reply string `toml:"reply" default:"\"task\"" reload:"yes"`
	// callers without credentials may call it over A2A, whatever policy.assurance and [[require]] say
	Guests bool `toml:"guests" reload:"yes"`
}

func (c *A2A) check() error {
	if err := oneOf("a2a.card", c.Card, "negotiated", "1.0", "hybrid"); err != nil {
		return err
	}
	if c.Streams < 0 || c.Webhooks < 0 || c.Wait.Duration < 0 {
		return errors.New("a2a: want streams, webhooks and wait above zero")
	}
	if c.GRPCAddress != "" {
		if _, _, err := net.SplitHostPort(c.GRPCAddress); err != nil || c.GRPC == "" {
			return fmt.Errorf("a2a.grpc_address = %q: want host:port, beside a2a.grpc", c.GRPCAddress)
		}
	}
	if c.Root != "" {
		if err := parley.CheckName(c.Root); err != nil {
			return fmt.Errorf("a2a.root: %w", err)
		}
	}
	_, err := sizeOr("a2a.max_answer", c.MaxAnswer, 0)
	return err
}

func (a *A2AAgent) check(name string) error {
	if a == nil {
		return nil
	}
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("agents.%s.a2a.%s", name, fmt.Sprintf(format, args...))
	}
	if a.URL != "" {
		if _, err := bridge.IdentityAt(a.URL); err != nil {
			return refuse("%s", err)
		}
	}
	if err := oneOf("agents."+name+".a2a.reply", a.Reply, "task", "message"); err != nil {
		return err
	}
	switch {
	case a.URL != "" && a.Calls:
		return refuse("calls: an agent with a url calls as well; leave calls out")
	case a.URL == "" && (a.hasCredentials() || a.AcceptUnsignedCard):
		return refuse("url: credentials are for calls of an agent elsewhere, so its url is needed")
	case a.URL != "" && (a.Guests || a.Reply != ""):
		return refuse("url: guests and reply are for agents that A2A clients call at the hub, and this one is elsewhere")
	}
	if err := a.checkCredentials(); err != nil {
		return refuse("%s", err)
	}
	return nil
}

// settings reads the files of an agent's table.
func (a *A2AAgent) settings() (s bridge.AgentSettings, err error) {
	s = bridge.AgentSettings{Message: a.Reply == "message", Guests: a.Guests, Unsigned: a.AcceptUnsignedCard}
	s.Credentials, err = a.readCredentials()
	return s, err
}

// a2aGuests are the rules that let callers without credentials reach agents that are open to guests in A2A.
func (c *Config) a2aGuests() []policy.Least {
	return c.guestRules(bridge.Protocol, c.A2A.Guests, func(a *Agent) bool { return a.A2A != nil && a.A2A.Guests })
}

// A2A is the node's A2A binding, or nil where it is switched off.
func (n *Node) A2A() *bridge.Binding { return bindingOf[*bridge.Binding](n) }

func openA2A(_ context.Context, n *Node) (*Binding, error) {
	c := n.c.A2A
	if c.Off {
		return switchedOff(bridge.Protocol, func(a *Agent) bool { return a.A2A != nil }), nil
	}
	answer, err := sizeOr("a2a.max_answer", c.MaxAnswer, 0)
	if err != nil {
		return nil, err
	}
	form := bridge.CardForm(c.Card)
	if c.Card == "negotiated" {
		form = bridge.Negotiated
	}
	bc := bridge.Config{Hub: n.hub, Keys: n.keys, Journal: n.journal, Index: n.index, Callers: n.callers(),
		Allow: n.guard.Prefixes, RootCAs: n.rootCAs, Transport: n.tracer.transport, PublicURL: n.c.PublicURL,
		Domain: c.Domain, Root: c.Root, Guests: c.Guests, CardForm: form, Origins: n.c.Listen.Origins,
		MaxBody: n.k.body, MaxAnswer: answer, Wait: c.Wait.Duration,
		Streams: c.Streams, Webhooks: c.Webhooks, PlainPush: c.PlainPush, Now: n.c.Now, Logger: n.log}
	out := &Binding{Domain: c.Domain}
	out.Admin.Credentials = credentialStore(func(ctx context.Context, agent string, c peerauth.Credentials) error {
		return n.A2A().StoreCredentials(ctx, agent, c)
	})
	if c.GRPC != "" {
		l, err := net.Listen("tcp", c.GRPC)
		if err != nil {
			return nil, fmt.Errorf("a2a.grpc = %q: %w; choose another address, or stop the program that uses it",
				c.GRPC, err)
		}
		out.Listener = l
		bc.GRPC = c.grpcAddress(n.c.PublicURL, l.Addr())
		out.Addresses = func(a *Addresses) { a.A2A = "grpc://" + l.Addr().String() }
	}
	b, err := bridge.New(bc)
	if err == nil {
		out.EndStreams = b.EndStreams
	}
	if err == nil && out.Listener != nil {
		err = n.serveGRPC(b, out)
	}
	if err != nil {
		if out.Listener != nil {
			err = errors.Join(err, out.Listener.Close())
		}
		return nil, err
	}
	out.Hub = b
	out.Agent = func(name string, a *Agent) (Enrolment, error) { return enrolA2A(b, name, a.A2A) }
	out.Gone = func(name string) { b.SetAgent(name, bridge.AgentSettings{}) }
	return out, nil
}

// grpcAddress is where clients reach the gRPC listener.
func (c *A2A) grpcAddress(public string, l net.Addr) string {
	if c.GRPCAddress != "" {
		return c.GRPCAddress
	}
	host, port, err := net.SplitHostPort(l.String())
	if u, bad := url.Parse(public); err == nil && bad == nil && u.Hostname() != "" {
		host = u.Hostname()
	}
	return net.JoinHostPort(host, port)
}

// serveGRPC lets the binding serve the gRPC listener.
func (n *Node) serveGRPC(b *bridge.Binding, out *Binding) error {
	var options []grpc.ServerOption
	if n.c.A2A.TLS {
		if n.c.TLS.Cert == "" {
			return errors.New("a2a.tls needs tls.cert and tls.key")
		}
		t, err := n.c.askForCertificates(&tls.Config{MinVersion: tls.VersionTLS12,
			GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
				if n.certs == nil {
					return nil, errors.New("the hub is starting")
				}
				return n.certs.get(hello)
			}})
		if err != nil {
			return err
		}
		options = append(options, grpc.Creds(credentials.NewTLS(t)))
	}
	l := n.conns.listenGRPC(out.Listener)
	s := b.GRPC(append(options, grpc.StatsHandler(l))...)
	out.Serve = func() error { return s.Serve(l) }
	end := out.EndStreams
	out.EndStreams = func() {
		end()
		stopped := make(chan struct{})
		go func() { s.GracefulStop(); close(stopped) }()
		go func() {
			t := time.NewTimer(20 * time.Second)
			defer t.Stop()
			select {
			case <-stopped:
			case <-t.C:
				s.Stop()
			}
		}()
	}
	return nil
}

func enrolA2A(b *bridge.Binding, name string, a *A2AAgent) (e Enrolment, err error) {
	var settings bridge.AgentSettings
	if a != nil {
		switch {
		case a.URL != "":
			e.Identity, err = bridge.IdentityAt(a.URL)
		case a.Calls:
			e.Identity = bridge.IdentityOfCaller(name)
		}
		if err == nil {
			settings, err = a.settings()
		}
		if err != nil {
			return e, fmt.Errorf("agents.%s.a2a.%w", name, err)
		}
		e.Files = a.namesFiles()
	}
	e.Before = func(*parley.Agent) error {
		b.SetAgent(name, settings) // none, if the table was removed
		return nil
	}
	return e, nil
}
