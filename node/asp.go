package node

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	protocol "github.com/parley-hub/parley/asp"
	bridge "github.com/parley-hub/parley/bridge/asp"
	samvadbridge "github.com/parley-hub/parley/bridge/samvad"
)

var aspProtocol = Protocol{
	Name:    bridge.Protocol,
	Section: func(c *Config) any { return &c.ASP },
	Agent:   func(a *Agent) any { return &a.ASP },
	Files: func(c *Config) (files []*string) {
		for _, a := range c.Agents {
			if a.ASP != nil {
				files = append(files, &a.ASP.Card)
			}
		}
		return files
	},
	Check: func(c *Config) error { return oneOf("asp.registration", c.ASP.Registration, "closed", "open") },
	CheckAgent: func(name string, a *Agent) error {
		if a.ASP == nil || a.ASP.Trust == nil {
			return nil
		}
		t := a.ASP.Trust
		for _, part := range []float64{t.Identity, t.History, t.Commitments, t.Consistency, t.Quality, t.Security,
			t.Economic, t.Peers} {
			if !(part >= 0 && part <= 100) {
				return fmt.Errorf("agents.%s.asp.trust: %v: want numbers from 0 to 100", name, part)
			}
		}
		return nil
	},
	AgentID: func(a *Agent) string {
		if a.ASP == nil {
			return ""
		}
		return a.ASP.ID
	},
	Export: func(t *AgentText, a *admin.Agent, i admin.Identity) {
		t.Line("asp.id", i.ID)
		t.Note("Its card, which holds its public keys; without it the agent registers itself: asp.card = \"%s.card.json\"",
			strings.ReplaceAll(a.Name, "/", "-"))
	},
	HubAgent: true,
	Enable:   "asp.off = false",
	Skew:     func(*Config) time.Duration { return protocol.MaxSkew },
	Open:     openASP,
}

// ASP configures ASP.
type ASP struct {
	// do not speak ASP
	Off bool `toml:"off"`
	// which agents may register: closed = those that the operator adds; open = any that proves the keys of its
	// card
	Registration string `toml:"registration" default:"\"closed\""`
	// organization of the stand-ins
	Organization string `toml:"organization" default:"\"org_parley\""`
	// domain of the stand-ins' agent URIs; default: the host of public_url. CHANGING IT MAKES THEM OTHER AGENTS
	Domain string `toml:"domain"`
	// protocols in which the hub stands in for agents that register themselves; default: none
	Expose []string `toml:"expose"`
	// trust score, as computed here, that an agent needs to invite others, 0 to 100; 0: any agent may
	MinTrust float64 `toml:"min_trust"`
	// after which the hub closes an idle session that it opened for an agent
	Idle Duration `toml:"idle" default:"\"10m\""`
	// after which a session without messages fails
	Conversing Duration `toml:"conversing" default:"\"1h\""`
}

// ASPAgent is an agent's identity in ASP.
type ASPAgent struct {
	// agent://domain/department/name; default: that of the card
	ID string `toml:"id"`
	// file with its card, which holds its two public keys; without it the agent registers itself
	Card string `toml:"card"`

	// values that you vouch for; the hub computes the trust score from them. They stay when the table is
	// removed
	Trust *ASPTrust `toml:"trust"`
}

// ASPTrust are the values that the operator vouches for, each 0 to 100.
type ASPTrust struct {
	// its identity was verified; weighs 20 of 100
	Identity float64 `toml:"identity"`
	// its communication so far; weighs 15
	History float64 `toml:"history"`
	// commitments that it kept; weighs 20
	Commitments float64 `toml:"commitments"`
	// how consistently it behaves; weighs 10
	Consistency float64 `toml:"consistency"`
	// quality of its answers; weighs 10
	Quality float64 `toml:"quality"`
	// how well it is secured; weighs 10
	Security float64 `toml:"security"`
	// economic reliability; weighs 10
	Economic float64 `toml:"economic"`
	// endorsements by other agents; weighs 5
	Peers float64 `toml:"peers"`
}

// ASP is the node's ASP binding, or nil where it is switched off.
func (n *Node) ASP() *bridge.Binding { return bindingOf[*bridge.Binding](n) }

func openASP(ctx context.Context, n *Node) (*Binding, error) {
	c := n.c.ASP
	if c.Off {
		return switchedOff(bridge.Protocol, func(a *Agent) bool { return a.ASP != nil }), nil
	}
	key, err := n.shared(ctx, "asp tokens", 32)
	if err != nil {
		return nil, err
	}
	b, err := bridge.New(bridge.Config{Hub: n.hub, Keys: n.keys, Journal: n.journal, TokenKey: key,
		PublicURL: n.c.PublicURL, Root: samvadbridge.Root, Domain: c.Domain, Organization: c.Organization,
		Open: c.Registration == "open", Expose: c.Expose, MinTrust: c.MinTrust, Idle: c.Idle.Duration,
		Timeouts:  protocol.Timeouts{Conversing: c.Conversing.Duration},
		MaxAgents: n.c.Limits.Agents, Now: n.c.Now, Logger: n.log})
	if err != nil {
		return nil, err
	}
	return &Binding{
		Hub:        b,
		Agent:      func(name string, a *Agent) (Enrolment, error) { return enrolASP(b, name, a.ASP) },
		EndStreams: b.EndStreams,
		Admin:      aspAdmin(b),
	}, nil
}

func enrolASP(b *bridge.Binding, name string, a *ASPAgent) (e Enrolment, err error) {
	if a == nil {
		return e, nil
	}
	id, card, err := a.card()
	if err == nil {
		e.Identity, err = b.Identity(id)
	}
	if err != nil {
		return e, fmt.Errorf("agents.%s.asp: %w", name, err)
	}
	uri := e.Identity.ID
	e.After = func(ctx context.Context) error {
		if card != nil {
			if _, err := b.Enroll(ctx, card); err != nil {
				return fmt.Errorf("agents.%s.asp.card: %w", name, err)
			}
		}
		if a.Trust != nil {
			if err := b.SetTrust(ctx, uri, a.Trust.components()); err != nil {
				return fmt.Errorf("agents.%s.asp.trust: %w", name, err)
			}
		}
		return nil
	}
	return e, nil
}

// card reads the agent's card, if the table names one, and gives the agent's id.
func (a *ASPAgent) card() (id string, card []byte, err error) {
	if a.Card == "" {
		return a.ID, nil, nil
	}
	if card, err = os.ReadFile(a.Card); err != nil {
		return "", nil, fmt.Errorf("card: %w", err)
	}
	c, err := protocol.ParseCard(card)
	if err != nil {
		return "", nil, fmt.Errorf("card: %w", err)
	}
	if a.ID != "" && a.ID != c.AgentID {
		return "", nil, fmt.Errorf("id %q is not the card's, %q", a.ID, c.AgentID)
	}
	return c.AgentID, card, nil
}

// components are the parts of a trust score.
func (t *ASPTrust) components() protocol.TrustComponents {
	return protocol.TrustComponents{IdentityVerification: t.Identity, CommunicationHistory: t.History,
		CommitmentFulfillment: t.Commitments, BehavioralConsistency: t.Consistency, ResponseQuality: t.Quality,
		SecurityPosture: t.Security, EconomicReliability: t.Economic, PeerEndorsements: t.Peers}
}

// aspAdmin gives the operators' actions on the binding: verify messages again by the cards of their time,
// export sessions as transcripts, and register cards.
func aspAdmin(b *bridge.Binding) admin.Protocol {
	return admin.Protocol{
		SenderKeys: func(ctx context.Context, m *parley.Message) ([]admin.ExportKey, error) {
			key, card, err := b.CardAt(ctx, m.Origin.Peer, m.Origin.Received)
			if err != nil || card == nil {
				return nil, err
			}
			return []admin.ExportKey{{KeyID: key, Algorithm: admin.AlgorithmASPCard, Public: card, By: "asp registry"}},
				nil
		},
		Transcript: func(m *parley.Message) (session string, own bool, write func(context.Context, io.Writer) error) {
			if session, own = b.SessionOf(m); session == "" {
				return "", false, nil
			}
			return session, own, func(ctx context.Context, w io.Writer) error {
				return b.Server().WriteTranscript(ctx, session, w)
			}
		},
		EnrollCard: func(ctx context.Context, id admin.NewIdentity) error {
			card, err := protocol.ParseCard(id.Card)
			if err != nil {
				return err
			}
			if card.AgentID != id.ID {
				return fmt.Errorf("it is the card of %s", card.AgentID)
			}
			_, err = b.Enroll(ctx, id.Card)
			return err
		},
	}
}
