package main

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/uagents"
)

func (a *app) keysUAgents() *cobra.Command {
	var seedFile, keyFile, out, owner string
	var index int
	c := &cobra.Command{
		Use: "uagents", Short: "Make a uAgents key, or derive one from a seed, and show its address",
		Long: `Make a uAgents key and show its address. With --seed-file the key is the one that
the Python library derives from that seed phrase (the file's text without its
last line end; - is the standard input), with --key one that is there already.
With --out the private key is written to a file (64 hexadecimal digits, mode
0600), with --owner into the hub's keyring, as the key of an agent's stand-in: add
the agent afterwards.`,
		Example: `  parley keys uagents --out me.key
  parley keys uagents --seed-file seed.txt
  printf 'my seed phrase' | parley keys uagents --seed-file - --owner weather`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if seedFile != "" && keyFile != "" {
				return usage("--seed-file and --key: give one of them")
			}
			var me *uagents.Identity
			var err error
			switch {
			case seedFile != "":
				var seed []byte
				if seed, err = a.input(fileArg([]string{seedFile})); err != nil {
					return err
				}
				text := strings.TrimSuffix(strings.TrimSuffix(string(seed), "\n"), "\r")
				if text == "" {
					return usage("--seed-file %s: the seed is empty", seedFile)
				}
				me, err = uagents.IdentityFromSeed(text, index)
			case keyFile != "":
				me, err = uagentsKey(keyFile)
			case out == "" && owner == "":
				return usage("say where the new key goes (--out FILE or --owner AGENT), or which key to show " +
					"(--seed-file, --key)")
			default:
				me, err = uagents.NewIdentity()
			}
			if err != nil {
				return &exitError{exitUsage, err}
			}
			if out != "" {
				if err := writeNew(out, fmt.Appendf(nil, "%x\n", me.PrivateKey())); err != nil {
					return err
				}
			}
			if owner != "" {
				keeper, err := a.secretKeeper(cmd.Context())
				if err != nil {
					return err
				}
				_, err = keeper.NewKey(cmd.Context(), admin.NewKey{Owner: owner, Purpose: "uagents",
					Algorithm: keyring.Secp256k1, Seed: me.PrivateKey()})
				if err != nil {
					return a.hubError(err)
				}
			}
			return a.print(map[string]string{"address": me.Address(), "publicKey": hex.EncodeToString(me.Public()),
				"file": out, "owner": owner},
				"address     %s\npublic key  %x\n", me.Address(), me.Public())
		},
	}
	f := c.Flags()
	f.StringVar(&seedFile, "seed-file", "", "file with a seed phrase, or -")
	f.IntVar(&index, "index", 0, "with --seed-file: which key of the seed, 0 to 255 (agents use 0)")
	f.StringVar(&keyFile, "key", "", "file with a private key: 64 hexadecimal digits, or private_keys.json")
	f.StringVar(&out, "out", "", "file to write the private key to")
	f.StringVar(&owner, "owner", "", "agent whose stand-in speaks with the key")
	return c
}
