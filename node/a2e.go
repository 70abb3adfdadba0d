package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	bridge "github.com/parley-hub/parley/bridge/a2e"
)

var a2eProtocol = Protocol{
	Name:    bridge.Protocol,
	Section: func(c *Config) any { return &c.A2E },
	Agent:   func(a *Agent) any { return &a.A2E },
	Files: func(c *Config) (files []*string) {
		for _, a := range c.Agents {
			if a.A2E != nil {
				files = append(files, &a.A2E.TokenFile)
			}
		}
		return files
	},
	Listeners: func(c *Config) []Listener {
		return []Listener{{"a2e.listen", c.A2E.Listen, c.A2E.TLS, "tokens can be read on the way; set a2e.tls"}}
	},
	Export: func(t *AgentText, a *admin.Agent, i admin.Identity) {
		if i.URL != "" {
			t.Line("a2e.url", i.URL)
			t.Note("If the host wants a token, put it into a file of mode 0600, and name the file: a2e.token_file = \"…\"")
			return
		}
		t.Note("Put the token that the agent shows into this file, mode 0600: the hub has only a hash of it.")
		t.Line("a2e.token_file", strings.ReplaceAll(a.Name, "/", "-")+".token")
	},
	Assurance: parley.Session, // A2E has no signatures; a token proves the session
	Address:   "a2e.url",
	Open:      openA2E,
}

// A2E configures the hub's A2E endpoints, and the hosts that serve other capabilities.
type A2E struct {
	// address for A2E over TCP (NDJSON), e.g. "127.0.0.1:7333"; "": over HTTP only
	Listen string `toml:"listen"`
	// speak TLS on a2e.listen, with the certificate of [tls]
	TLS bool `toml:"tls"`
	// base path of the A2E endpoints on listen.http
	Path string `toml:"path" default:"\"/a2e\""`
	// refuse capabilities that an agent did not negotiate; SDK agents use such ones
	Strict bool `toml:"strict"`
	// new sessions from one address in a minute
	Sessions int `toml:"sessions_per_minute" default:"240"`
	// how many skills are listed as tools; if there are more, agents find them with parley_find
	Tools int `toml:"tools" default:"20"`
	// "capability=agent": requests of the capability (env, proc, planning, …, or the namespace of types that
	// agent and host agreed on) are passed to that agent, which has the URL of an A2E host; default: none
	Providers []string `toml:"providers"`
}

// A2EAgent makes an agent an A2E client, which connects with a token, or an A2E host, to
// which the hub connects.
type A2EAgent struct {
	// file with the token that the agent shows, or that the hub shows to the host at url; mode 0600; default:
	// none, for a host without one
	TokenFile string `toml:"token_file"`
	// URL of an A2E host, whose tools become the agent's skills: http(s)://, tcp://, tls:// or unix://;
	// default: none, for an agent that connects
	URL string `toml:"url"`
}

// A2E is the node's A2E binding.
func (n *Node) A2E() *bridge.Binding { return bindingOf[*bridge.Binding](n) }

func openA2E(_ context.Context, n *Node) (*Binding, error) {
	c := n.c.A2E
	providers := map[string]string{}
	for _, p := range c.Providers {
		capability, agent, ok := strings.Cut(p, "=")
		if !ok || capability == "" || agent == "" || providers[capability] != "" {
			return nil, fmt.Errorf("a2e.providers: %q: want \"capability=agent\", each capability once", p)
		}
		providers[capability] = agent
	}
	bc := bridge.Config{Hub: n.hub, Keys: n.keys, Journal: n.journal, Allow: n.guard.Prefixes, RootCAs: n.rootCAs,
		PublicURL: n.c.PublicURL, Path: c.Path, Strict: c.Strict, Tools: c.Tools, Providers: providers,
		Now: n.c.Now, Logger: n.log}
	if c.Sessions > 0 {
		bc.Limits.SessionsPerMinute, bc.Limits.PendingPerRemote = c.Sessions, max(32, c.Sessions/8)
	}
	if c.TLS {
		if n.c.TLS.Cert == "" {
			return nil, errors.New("a2e.tls needs tls.cert and tls.key")
		}
		bc.TLS = &tls.Config{MinVersion: tls.VersionTLS12,
			GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
				if n.certs == nil {
					return nil, errors.New("the hub is starting")
				}
				return n.certs.get(hello)
			}}
	}
	out := &Binding{Admin: admin.Protocol{Masked: bridge.Masked}}
	if c.Listen != "" {
		l, err := net.Listen("tcp", c.Listen)
		if err != nil {
			return nil, fmt.Errorf("a2e.listen = %q: %w; choose another address, or stop the program that uses it",
				c.Listen, err)
		}
		bc.Listen, bc.ConnContext, out.Listener = n.conns.listen(l), withConn, l
		out.Addresses = func(a *Addresses) { a.A2E = "tcp://" + l.Addr().String() }
	}
	b, err := bridge.New(bc)
	if err != nil {
		if out.Listener != nil {
			err = errors.Join(err, out.Listener.Close())
		}
		return nil, err
	}
	out.Hub = b
	out.Agent = func(name string, a *Agent) (Enrolment, error) { return n.enrolA2E(b, name, a.A2E) }
	out.EndStreams = func() {
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			b.Stop(ctx)
		}()
	}
	return out, nil
}

func (n *Node) enrolA2E(b *bridge.Binding, name string, a *A2EAgent) (e Enrolment, err error) {
	if a == nil {
		return e, nil
	}
	token, err := a.token()
	if err == nil {
		e.Identity, err = b.Identity(token, a.URL)
	}
	if err != nil {
		return e, fmt.Errorf("agents.%s.a2e: %w", name, err)
	}
	if a.URL != "" {
		b.SetToken(name, token) // at once: the token in the file may change while the configuration does not
		e.Before = n.keepSkills
	}
	return e, nil
}

// token is the token that the agent shows to the hub, or the hub to a host; "" for a host
// without one.
func (a *A2EAgent) token() (string, error) {
	if a.TokenFile == "" {
		if a.URL == "" {
			return "", errors.New("want a token_file, for an agent that connects, or the url of a host")
		}
		return "", nil
	}
	b, err := secretFile(a.TokenFile)
	if err != nil {
		return "", fmt.Errorf("token_file: %w", err)
	}
	if len(b) == 0 {
		return "", fmt.Errorf("token_file: %s is empty", filepath.Base(a.TokenFile))
	}
	return string(b), nil
}

// keepSkills gives an agent the skills that its host listed before.
func (n *Node) keepSkills(a *parley.Agent) error {
	e, ok := n.directory.Agent(a.Name)
	if ok && len(a.Skills) == 0 && slices.ContainsFunc(a.Identities, func(i parley.Identity) bool {
		return i.Protocol == bridge.Protocol && slices.Contains(e.Identities, i)
	}) {
		a.Skills = e.Skills
	}
	return nil
}
