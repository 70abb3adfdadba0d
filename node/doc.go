// Package node assembles a hub: journal, keyring, directory, policy, delivery,
// the bindings of the protocols and the listeners, out of one [Config]. The
// command parley is a thin user of it, and so is any program that embeds a
// hub:
//
//	n, err := node.Open(ctx, node.Config{Data: "data", Listen: node.Listen{HTTP: ":8080"}})
//	n.Handle(parley.Agent{Name: "weather", Exposed: parley.Everywhere}, parley.Skill("forecast", forecast))
//	err = n.Run(ctx)
//
// Open takes the data directory and reads it; nothing is served or delivered before Start
// (or Run, which is Start, waiting, and Close).
package node
