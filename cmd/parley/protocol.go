package main

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/node"
)

// protocols are those of [node.Protocols], as the command line knows them. A protocol is added by a line here and one
// there. The commands iterate over the list: `agents add`, `inspect`, `verify`, `send`, `demo`, `keys`, `bench`,
// `conversation verify`, and those of one protocol alone.
var protocols = []*protocol{&samvadProtocol, &uagentsProtocol, &a2eProtocol, &aghProtocol, &aspProtocol}

// A protocol holds one protocol's part of the commands. All but name may be unset.
type protocol struct {
	name string

	add adding // by `agents add`
	// checkID says whether the flag --id is an identity.
	checkID func(id string) error

	// recognises tells whether a sample is of the protocol, however broken.
	recognises func(*sample) bool
	// inspect explains a sample. It fails only if the keys or cards for it are unusable.
	inspect func(context.Context, *sample, inspecting) (*inspection, error)
	// keyless says that `verify` needs no key of the sender: its address names the key.
	keyless bool
	// unsigned says why `verify` has nothing to verify; "": it has.
	unsigned string
	advice   map[string]string // by the check of the protocol that failed, for `explain`

	// checkHub and checkAgent are the checks of `doctor` of the hub and of the way to an agent.
	checkHub   func(*doctor, context.Context)
	checkAgent func(d *doctor, ctx context.Context, agent string)

	// verifyExported verifies a message of an export with the keys in it. A reason says why it cannot be verified.
	verifyExported func(v *signatureChecks, ctx context.Context, m *admin.ExportMessage, base string) (reason string,
		err error)
	// attested says that of a message which verifies the hub alone vouches for a part.
	attested func(*admin.ExportMessage) bool

	// send speaks the protocol directly, for `send --protocol`, with flags of its own.
	sendFlags func(*cobra.Command, *sending)
	send      func(a *app, ctx context.Context, s sending, content []byte, isJSON bool) error

	// demoConfig lets the demo's agent in, and demo plays its scenes.
	demoConfig func(*node.Config)
	demo       func(*demo, context.Context)

	// Commands: of the protocol alone, and those below keys and bench.
	command, keys, bench func(*app) *cobra.Command
}

// adding is how `agents add` makes an agent's identity in a protocol.
type adding struct {
	// how says it in errors: "--samvad URL".
	how string
	// flags declares the flags, which adder reads once they are parsed.
	flags func(*cobra.Command) adder
	// help are examples, one a line.
	help string
}

// An adder makes identities of the values of its flags. hint, absent and hub may be unset.
type adder struct {
	given func() bool // one of the flags
	// identity makes the identity. It may add to what is known of the agent, and notes for the operator.
	identity func(ctx context.Context, a *app, n *admin.NewAgent, out *added) (admin.NewIdentity, error)
	// paste gives the lines to enter at the agent's side, once the hub has the agent.
	paste func(a *app, info admin.Info, name string, id admin.NewIdentity) ([]paste, error)

	hub    func(admin.Hosting) string // facts about the hub for the agent's operator
	hint   string                     // shown last
	absent string                     // asked when nothing came within --wait
}

// protocolNamed gives a protocol of the list, or nil.
func protocolNamed(name string) *protocol {
	if i := slices.IndexFunc(protocols, func(p *protocol) bool { return p.name == name }); i >= 0 {
		return protocols[i]
	}
	return nil
}

// protocolNames lists the protocols for a sentence: "samvad, uagents or asp".
func protocolNames(conjunction string) string {
	var names []string
	for _, p := range protocols {
		names = append(names, p.name)
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " " + conjunction + " " + names[last]
}

// knownProtocol says whether a flag names a protocol.
func knownProtocol(name string) error {
	if protocolNamed(name) == nil {
		return usage("--protocol %q: want %s", name, protocolNames("or"))
	}
	return nil
}

// ofProtocols makes the commands that protocols have of one kind.
func (a *app) ofProtocols(kind func(*protocol) func(*app) *cobra.Command) (out []*cobra.Command) {
	for _, p := range protocols {
		if command := kind(p); command != nil {
			out = append(out, command(a))
		}
	}
	return out
}

// waysToAdd are the flags of `agents add` that say how an agent is reached.
func waysToAdd() string {
	var ways []string
	for _, p := range protocols {
		if p.add.how != "" {
			ways = append(ways, p.add.how)
		}
	}
	return strings.Join(append(ways, "or --inbox"), ", ")
}
