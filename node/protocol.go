package node

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/keyring"
)

// Protocols are the protocols of a hub. A protocol is added by a line here, one in the list of cmd/parley (its
// flags and sender) and one in internal/inspect; [bridge.Protocols], its row of the loss table, comes with its
// translation.
//
// Everything else iterates over this list: the keys of the configuration file and their checks, warnings about
// listeners, the default assurance, bindings, addresses, labels of metrics, and what the admin API does for a protocol.
var Protocols = []*Protocol{&samvadProtocol, &uagentsProtocol, &a2eProtocol, &aghProtocol, &aspProtocol, &a2aProtocol,
	&mcpProtocol}

// A Protocol is one protocol as a node sees it before it is opened. Only Name, Section, Agent and Open must be set.
type Protocol struct {
	Name string // in messages, and of the table in the configuration: "samvad"

	// Section gives the pointer to the protocol's table of a configuration: a struct whose fields have toml tags,
	// and comments, or in another package doc tags.
	Section func(*Config) any
	// Agent gives the address of an agent's pointer to its table of the protocol; the pointer is nil without a
	// table.
	Agent func(*Agent) any
	// Files gives the relative paths in both tables. The loader makes them relative to the configuration file.
	Files func(*Config) []*string
	// Check finds mistakes in the protocol's table, CheckAgent in an agent's table. The error names the key.
	Check      func(*Config) error
	CheckAgent func(name string, a *Agent) error
	// Listeners gives the protocol's listeners in the configuration, without listen.http.
	Listeners func(*Config) []Listener
	// AgentID gives an agent's id in the protocol, "" if its table names none.
	AgentID func(*Agent) string

	// Export writes an identity of an agent, as its table of the protocol has it.
	Export func(t *AgentText, a *admin.Agent, i admin.Identity)

	// Skew is the difference of clocks from which on messages are refused; nil: clocks do not matter.
	Skew func(*Config) time.Duration
	// Address is the part of an agent's table that holds its address: "samvad.url"; "" for none. Enable are the settings
	// that switch the protocol on, if it can be off.
	Address, Enable string

	// Assurance is the least assurance of messages while policy.assurance is not set; 0: signed.
	Assurance parley.Assurance
	// HubAgent says that the hub itself is an agent in this protocol.
	HubAgent bool

	// Open makes the binding.
	Open func(context.Context, *Node) (*Binding, error)
}

// A Listener is a TCP address of the configuration.
type Listener struct {
	Key     string // of the configuration
	Address string // "": none
	Secure  bool   // speaks TLS
	Advice  string // how to protect a listener without TLS
}

// A Binding is an open protocol. Every field may be unset.
type Binding struct {
	Hub hub.Binding // nil: the configuration switches the protocol off
	// Agent reads an agent of the configuration, which may have no table of the protocol. It changes no state of the
	// hub: Enrolment does, once all agents have been read.
	Agent func(name string, a *Agent) (Enrolment, error)
	// Gone is told of an agent that the configuration no longer has.
	Gone func(name string)
	// Reloaded is told that the configuration was read again, with its policy and agents.
	Reloaded func()
	// EndStreams ends streams, which would hold up the shutdown of the HTTP listener. It does not wait for their ends.
	EndStreams func()
	Listener   net.Listener // the protocol's own listener; the node closes it
	Serve      func() error // serves Listener until that is closed; nil: the binding does, or there is none
	Domain     string       // whose sub-domains are hosts of this hub; "": none
	Addresses  func(*Addresses)
	Info       func(*admin.Info)
	Admin      admin.Protocol // without its name
}

// An Enrolment is the identity in an agent's table, and the steps to enrol it. Every field may be
// unset.
type Enrolment struct {
	Identity parley.Identity
	Keys     []keyring.Enrolled          // public keys that the table vouches for and the keyring lacks
	Before   func(*parley.Agent) error   // before the directory has the agent
	Files    bool                        // the table names files: a reload repeats the steps even if it is as before
	After    func(context.Context) error // once it has
}

// Section gives the table of a protocol that has no field of its own in [Config].
func Section[T any](c *Config, protocol string) *T {
	return entry[T](&c.Sections, protocol)
}

// AgentSection gives the table of a protocol that has no field of its own in [Agent].
func AgentSection[T any](a *Agent, protocol string) **T {
	return entry[*T](&a.Sections, protocol)
}

func entry[T any](sections *map[string]any, protocol string) *T {
	if *sections == nil {
		*sections = map[string]any{}
	}
	s, ok := (*sections)[protocol].(*T)
	if !ok {
		s = new(T)
		(*sections)[protocol] = s
	}
	return s
}

// switchedOff is a protocol that the node does not speak: named reports whether an agent has a table of it.
func switchedOff(protocol string, named func(*Agent) bool) *Binding {
	return &Binding{Agent: func(name string, a *Agent) (e Enrolment, err error) {
		if named(a) {
			err = fmt.Errorf("agents.%s.%s: %[2]s.off is set", name, protocol)
		}
		return e, err
	}}
}

// openProtocols makes the bindings.
func (n *Node) openProtocols(ctx context.Context) error {
	for _, p := range Protocols {
		b, err := p.Open(ctx, n)
		if err != nil {
			return err
		}
		b.Admin.Name = p.Name
		n.bindings = append(n.bindings, b)
		if b.Hub == nil {
			continue
		}
		if err := n.hub.Bind(b.Hub); err != nil {
			return err
		}
	}
	return nil
}

// bindingOf gives the binding of a type, or nil if the node has none.
func bindingOf[T any](n *Node) (b T) {
	for _, o := range n.bindings {
		if b, ok := o.Hub.(T); ok {
			return b
		}
	}
	return b
}

// ProtocolNamed gives a protocol of the list; for another name one with nothing but the name.
func ProtocolNamed(name string) *Protocol {
	if i := slices.IndexFunc(Protocols, func(p *Protocol) bool { return p.Name == name }); i >= 0 {
		return Protocols[i]
	}
	return &Protocol{Name: name}
}

// ClockLimit is the difference of clocks from which on messages are refused; 0: clocks do not matter.
func (p *Protocol) ClockLimit(c *Config) time.Duration {
	if p.Skew == nil {
		return 0
	}
	return p.Skew(c)
}
