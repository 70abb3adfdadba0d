package main

import (
	"context"
	"slices"
	"strings"

	exam "github.com/parley-hub/parley/internal/doctor"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/node"
)

// protocols are the command line's parts of [node.Protocols]. A protocol is added by a line here, one there, one in
// [inspect.Protocols] and one in [connect.Protocols]. The commands iterate over the list: `agents add`, `verify`,
// `send`, `demo`, `keys`, `bench`, `conversation verify`, and the protocols' own commands.
var protocols = []*protocol{&samvadProtocol, &uagentsProtocol, &a2eProtocol, &aghProtocol, &aspProtocol,
	&a2aProtocol, &mcpProtocol}

// A protocol holds one protocol's part of the commands. Every field but name may be unset.
type protocol struct {
	name string

	add adding // by `agents add`
	// checkID refuses a flag --id that is no identity of the protocol.
	checkID func(id string) error

	// keyless says that `verify` needs no key of the sender: its address names the key.
	keyless bool
	// unsigned says why `verify` cannot verify a message; "": it can.
	unsigned string

	// checkHub is `doctor`'s check of the hub, and checkAddress that of an address which the hub calls to reach an
	// agent; nil: only the network is checked.
	checkHub     func(*doctor, context.Context)
	checkAddress func(*doctor, context.Context, exam.WayPoint)
	// way gives the way to an agent of the configuration, for `doctor` while no hub runs; nil: the agent has no table.
	way func(*node.Config, *node.Agent) *hub.Way
	// verifyExported verifies a message of an export with the keys in it. A reason says why it cannot be verified.
	verifyExported func(v *signatureChecks, ctx context.Context, m *admin.ExportMessage, base string) (reason string,
		err error)
	// attested reports whether the hub alone vouches for a part of a verified message.
	attested func(*admin.ExportMessage) bool

	// send speaks the protocol directly, for `send --protocol`, with flags of its own.
	sendFlags func(*cobra.Command, *sending)
	send      func(a *app, ctx context.Context, s sending, content []byte, isJSON bool) error

	// demoConfig permits the demo's agent, and demo plays its scenes.
	demoConfig func(*node.Config)
	demo       func(*demo, context.Context)

	// The protocol's own command, and its commands below keys and bench.
	command, keys, bench func(*app) *cobra.Command
}

// adding is how `agents add` makes an agent's identity in a protocol.
type adding struct {
	// how is the flag's text in errors: "--samvad URL".
	how string
	// flags declares the flags, which adder reads once they are parsed.
	flags func(*cobra.Command) adder
	// help are examples, one a line.
	help string
}

// An adder makes identities of the values of its flags. token, hint, absent and hub may be unset.
type adder struct {
	given func() bool // one of the flags
	// identity makes the identity of the agent of that name. The hub then reads what the agent says of itself.
	identity func(name string) (admin.NewIdentity, error)
	token    func() string // the new token of the agent, which the hub does not know

	hub    func(admin.Hosting) string // facts about the hub for the agent's operator
	hint   string                     // shown last
	absent string                     // the question if no message came within --wait
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

// knownProtocol refuses a flag that names no protocol.
func knownProtocol(name string) error {
	if protocolNamed(name) == nil {
		return usage("--protocol %q: want %s", name, protocolNames("or"))
	}
	return nil
}

// ofProtocols makes the protocols' commands of one kind.
func (a *app) ofProtocols(kind func(*protocol) func(*app) *cobra.Command) (out []*cobra.Command) {
	for _, p := range protocols {
		if command := kind(p); command != nil {
			out = append(out, command(a))
		}
	}
	return out
}

// waysToAdd lists the flags of `agents add` that give an agent an identity or an inbox.
func waysToAdd() string {
	var ways []string
	for _, p := range protocols {
		if p.add.how != "" {
			ways = append(ways, p.add.how)
		}
	}
	return strings.Join(append(ways, "or --inbox"), ", ")
}
