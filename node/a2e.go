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
	bridge "github.com/parley-hub/parley/bridge/a2e"
)

// A2E says how A2E agents reach the hub, and which hosts serve what it does not
// serve itself.
type A2E struct {
	Listen    string   `toml:"listen" doc:"address for A2E over TCP (NDJSON), e.g. \"127.0.0.1:7333\"; \"\": over HTTP only"`
	TLS       bool     `toml:"tls" doc:"speak TLS on a2e.listen, with the certificate of [tls]"`
	Path      string   `toml:"path" default:"\"/a2e\"" doc:"base path of the A2E endpoints on listen.http"`
	Strict    bool     `toml:"strict" doc:"agents may use only the capabilities that they negotiated; SDK agents do not keep to them"`
	Sessions  int      `toml:"sessions_per_minute" default:"240" doc:"new sessions from one address in a minute"`
	Tools     int      `toml:"tools" default:"20" doc:"skills that are listed as tools one by one; where there are more, agents find them with parley_find"`
	Providers []string `toml:"providers" doc:"\"capability=agent\": requests of the capability (env, proc, planning, …, or the namespace of types that agent and host agreed on) are passed to that agent, which has the URL of an A2E host"`
}

// A2EAgent is what an agent is in A2E: one that connects with a token, or a
// host that the hub attaches to.
type A2EAgent struct {
	TokenFile string `toml:"token_file" doc:"file with the agent's token, or with the one to show to the host at url; mode 0600"`
	URL       string `toml:"url" doc:"URL of an A2E host, whose tools become the agent's skills: http(s)://, tcp://, tls:// or unix://"`
}

// A2E is the node's A2E binding.
func (n *Node) A2E() *bridge.Binding { return n.a2e }

func (n *Node) bindA2E() error {
	c := n.c.A2E
	providers := map[string]string{}
	for _, p := range c.Providers {
		capability, agent, ok := strings.Cut(p, "=")
		if !ok || capability == "" || agent == "" || providers[capability] != "" {
			return fmt.Errorf("a2e.providers: %q: want \"capability=agent\", each capability once", p)
		}
		providers[capability] = agent
	}
	bc := bridge.Config{Hub: n.hub, Keys: n.keys, Journal: n.journal, Guard: n.guard, RootCAs: n.rootCAs, PublicURL: n.c.PublicURL, Path: c.Path,
		Strict: c.Strict, Tools: c.Tools, Providers: providers, Now: n.c.Now, Logger: n.log}
	if c.Sessions > 0 {
		bc.Limits.SessionsPerMinute, bc.Limits.PendingPerRemote = c.Sessions, max(32, c.Sessions/8)
	}
	if c.TLS {
		if n.c.TLS.Cert == "" {
			return errors.New("a2e.tls needs tls.cert and tls.key")
		}
		bc.TLS = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if n.certs == nil {
				return nil, errors.New("the hub is starting")
			}
			return n.certs.get(hello)
		}}
	}
	if c.Listen != "" {
		var err error
		if n.a2eListen, err = net.Listen("tcp", c.Listen); err != nil {
			return fmt.Errorf("a2e.listen = %q: %w; choose another address, or stop what uses it", c.Listen, err)
		}
		bc.Listen, bc.ConnContext = n.conns.listen(n.a2eListen), withConn
	}
	var err error
	if n.a2e, err = bridge.New(bc); err != nil {
		return err
	}
	return n.hub.Bind(n.a2e)
}

// endA2E ends the streams of agents, which would hold the HTTP listener up.
func (n *Node) endA2E() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	n.a2e.Stop(ctx)
}

// a2eIdentity is what the configuration says of an agent in A2E. Nothing
// changes but what the hub shows to a host.
func (n *Node) a2eIdentity(name string, a *A2EAgent) (parley.Identity, error) {
	token := ""
	if a.TokenFile != "" {
		path := a.TokenFile
		b, err := secretFile(path)
		if err != nil {
			return parley.Identity{}, fmt.Errorf("token_file: %w", err)
		}
		if token = string(b); token == "" {
			return parley.Identity{}, fmt.Errorf("token_file: %s is empty", filepath.Base(path))
		}
	}
	if a.URL == "" && token == "" {
		return parley.Identity{}, errors.New("want a token_file, for an agent that connects, or the url of a host")
	}
	id, err := n.a2e.Identity(token, a.URL)
	if err == nil && a.URL != "" {
		n.a2e.SetToken(name, token)
	}
	return id, err
}

// a2eSkills keeps what hosts have told: an entry of the configuration that
// is put anew has the skills that its host had.
func (n *Node) a2eSkills(a parley.Agent) []parley.SkillSpec {
	e, ok := n.directory.Agent(a.Name)
	if !ok || len(a.Skills) > 0 {
		return a.Skills
	}
	for _, i := range a.Identities {
		if i.Protocol == bridge.Protocol && i.URL != "" && slices.Contains(e.Identities, i) {
			return e.Skills
		}
	}
	return a.Skills
}
