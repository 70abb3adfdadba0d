package node

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	bridge "github.com/parley-hub/parley/bridge/samvad"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/samvad"
)

var samvadProtocol = Protocol{
	Name:    bridge.Protocol,
	Section: func(c *Config) any { return &c.SAMVAD },
	Agent:   func(a *Agent) any { return &a.SAMVAD },
	Files: func(c *Config) []*string {
		files := []*string{&c.SAMVAD.TokensFile}
		for _, a := range c.Agents {
			if a.SAMVAD != nil {
				files = append(files, &a.SAMVAD.TokenFile)
			}
		}
		return files
	},
	CheckAgent: func(name string, a *Agent) error {
		if a.SAMVAD != nil && a.SAMVAD.URL != "" && httpURL(a.SAMVAD.URL) == nil {
			return fmt.Errorf("agents.%s.samvad.url = %q: want http(s)://host[:port][/path]", name, a.SAMVAD.URL)
		}
		return nil
	},
	AgentID: func(a *Agent) string {
		if a.SAMVAD == nil {
			return ""
		}
		return a.SAMVAD.ID
	},
	Export: func(t *AgentText, _ *admin.Agent, i admin.Identity) {
		t.Line("samvad.id", i.ID)
		t.Line("samvad.url", i.URL)
		first := true
		for _, k := range t.Keys {
			switch {
			case k.Purpose != bridge.Protocol:
			case !first:
				t.Note("A further key: parley keys enroll %s --key %s --key-id %s", k.Agent,
					base64.StdEncoding.EncodeToString(k.Public), k.KeyID)
			default:
				first = false
				t.Line("samvad.key", base64.StdEncoding.EncodeToString(k.Public))
				if k.KeyID != keyring.Fingerprint(k.Algorithm, k.Public) {
					t.Line("samvad.kid", k.KeyID)
				}
			}
		}
	},
	HubAgent: true,
	Address:  "samvad.url",
	Skew:     samvadSkew,
	Open:     openSAMVAD,
}

// SAMVAD configures SAMVAD.
type SAMVAD struct {
	// accept the body signatures of protocol 1.1
	Legacy bool `toml:"legacy"`
	// host agents at sub-domains of this, besides paths; default: none
	Domain string `toml:"domain"`
	// how old a message may be
	Window Duration `toml:"window" default:"\"5m\""`

	// file with the bearer tokens that skills with access authenticated accept, one a line, mode 0600; without
	// it they refuse every caller. Remote agents check tokens themselves
	TokensFile string `toml:"tokens_file"`
	// language-model tokens that one sender may cost one agent of this hub in a UTC day, as its handlers report
	// them; 0: no limit. The count survives a restart; a killed hub loses its last second
	TokensPerDay int `toml:"tokens_per_day"`
	// skills whose payloads are not scanned for prompt injection: patterns, agent or agent.skill; default: none
	Unscanned []string `toml:"unscanned"`
	// public skills that take unsigned requests of skill and payload alone, as some deployed agents send them:
	// patterns, agent or agent.skill; none by default. They need policy.assurance = "unsigned", or such a rule
	// of require for the agent
	Lightweight []string `toml:"lightweight"`
}

// SAMVADAgent is an agent's identity in SAMVAD.
type SAMVADAgent struct {
	// agent://host; default: that of the URL
	ID string `toml:"id" reload:"yes"`
	// base URL of the agent
	URL string `toml:"url" reload:"yes"`
	// its public key, base64; without it the key comes from its card
	Key string `toml:"key" reload:"yes"`
	// id of the key; default: any
	KID string `toml:"kid" reload:"yes"`

	// file with the bearer token for its authenticated skills, which callers without a token of their own then
	// reach; default: none
	TokenFile string `toml:"token_file" reload:"yes"`
	// give calls without a delegation one by the hub: for the one skill, 15 minutes, without further delegation
	Delegate bool `toml:"delegate" reload:"yes"`
}

// SAMVAD is the node's SAMVAD binding.
func (n *Node) SAMVAD() *bridge.Binding { return bindingOf[*bridge.Binding](n) }

func openSAMVAD(_ context.Context, n *Node) (*Binding, error) {
	c := n.c.SAMVAD
	tokens, err := c.tokens()
	if err != nil {
		return nil, err
	}
	b, err := bridge.New(bridge.Config{Hub: n.hub, Keys: n.keys, Journal: n.journal, Allow: n.guard.Prefixes,
		RootCAs: n.rootCAs, PublicURL: n.c.PublicURL, Domain: c.Domain, Legacy: c.Legacy, Origins: n.c.Listen.Origins,
		Window: c.Window.Duration, MaxBody: n.k.body, Transport: n.tracer.transport, Now: n.c.Now, Logger: n.log,
		Tokens: tokens, TokensPerDay: c.TokensPerDay, Unscanned: c.Unscanned, Lightweight: c.Lightweight})
	if err != nil {
		return nil, err
	}
	return &Binding{
		Hub:    b,
		Agent:  func(name string, a *Agent) (Enrolment, error) { return enrolSAMVAD(b, name, a.SAMVAD) },
		Domain: c.Domain,
		Info:   func(i *admin.Info) { i.SAMVAD = admin.Hosting(b.Hosting()) },
		Admin:  admin.Protocol{Masked: b.Masked},
	}, nil
}

func enrolSAMVAD(b *bridge.Binding, name string, s *SAMVADAgent) (e Enrolment, err error) {
	var calls bridge.Credentials
	var key []byte
	if s != nil {
		if e.Identity, err = b.Identity(s.ID, s.URL); err != nil {
			return e, fmt.Errorf("agents.%s.samvad: %w", name, err)
		}
		if calls, err = s.credentials(); err != nil {
			return e, fmt.Errorf("agents.%s.samvad.%w", name, err)
		}
		if key, err = base64.StdEncoding.DecodeString(s.Key); err != nil {
			return e, fmt.Errorf("agents.%s.samvad.key: not base64: %w", name, err)
		}
	}
	if len(key) > 0 {
		if k, known := b.Enrolment(name, e.Identity.ID, s.KID, key, "configuration"); !known {
			e.Keys = []keyring.Enrolled{k}
		}
	}
	e.Before = func(*parley.Agent) error {
		if len(key) > 0 {
			if err := b.Enroll(name, e.Identity.ID, s.KID, key, "configuration"); err != nil {
				return fmt.Errorf("agents.%s.samvad.key: %w", name, err)
			}
		}
		b.SetCredentials(name, calls) // none, if the table was removed
		return nil
	}
	return e, nil
}

// tokens reads the bearer tokens that authenticated skills accept.
func (s SAMVAD) tokens() ([]string, error) {
	if s.TokensFile == "" {
		return nil, nil
	}
	b, err := secretFile(s.TokensFile)
	if err != nil {
		return nil, fmt.Errorf("samvad.tokens_file: %w", err)
	}
	tokens := strings.Fields(string(b))
	if len(tokens) == 0 {
		return nil, fmt.Errorf("samvad.tokens_file: %s holds no token", s.TokensFile)
	}
	return tokens, nil
}

// credentials reads the token and delegation for calls of the agent.
func (s *SAMVADAgent) credentials() (c bridge.Credentials, err error) {
	c.Delegate = s.Delegate
	if s.TokenFile == "" {
		return c, nil
	}
	b, err := secretFile(s.TokenFile)
	switch {
	case err != nil:
		return c, fmt.Errorf("token_file: %w", err)
	case len(b) == 0 || len(strings.Fields(string(b))) != 1:
		return c, fmt.Errorf("token_file: %s must hold one token", s.TokenFile)
	}
	c.Token = string(b)
	return c, nil
}

// samvadSkew is the difference of clocks from which on the hub or the agent refuses messages: those of the one that is
// ahead lie in the future for the other.
func samvadSkew(c *Config) time.Duration {
	return min(cmp.Or(c.SAMVAD.Window.Duration, samvad.DefaultWindow), samvad.DefaultSkew)
}
