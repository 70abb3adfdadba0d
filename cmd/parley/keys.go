package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/samvad"
)

func (a *app) keysCommand() *cobra.Command {
	return group("keys", "Make, list and enrol keys",
		"  parley keys\n  parley keys new --protocol samvad --id agent://me --out me.json\n  parley keys enroll weather --key BASE64",
		func(cmd *cobra.Command, _ []string) error { return a.keysList(cmd.Context()) },
		a.keysNew(), a.keysListCommand(), a.keysShow(), a.keysImport(), a.keysEnroll(), a.keysUnenroll(), a.keysRotate(), a.keysExport(), a.keysUAgents(), a.keysASP())
}

// ring opens the keyring of the data directory.
func (a *app) ring() (*keyring.Ring, error) {
	c, err := a.located(a.data != "")
	if err != nil {
		return nil, err
	}
	if c.Engine.URL != "" {
		return nil, &exitError{exitFailed, errors.New("the keys of a cluster are in its shared state\n        run one of its hubs, and name its admin listener with --admin")}
	}
	dir := filepath.Join(c.Data, "keys")
	exists, err := keyring.Exists(dir)
	if err != nil {
		return nil, err
	}
	if !exists {
		return nil, &exitError{exitFailed, fmt.Errorf("no keyring in %s\n        `parley serve --data %[1]s` makes one at its first start; name another directory with --data", c.Data)}
	}
	passphrase, err := a.passphrase()
	if err != nil {
		return nil, err
	}
	r, err := keyring.Open(keyring.Options{Dir: dir, Passphrase: passphrase})
	if errors.Is(err, keyring.ErrEncrypted) {
		err = fmt.Errorf("%w\n        set PARLEY_PASSPHRASE_FILE to the file with its passphrase", err)
	}
	return r, err
}

// running tells whether keys are changed through a hub rather than in its
// files: when one was named, or one has announced itself in the data
// directory and still answers.
func (a *app) running(ctx context.Context) (*admin.Client, error) {
	if a.admin == "" {
		c, err := a.located(a.data != "")
		if err != nil {
			return nil, err
		}
		if at, err := announced(c.Data); err != nil || at.Admin == "" {
			return nil, err
		}
	}
	hub, err := a.hub()
	if err != nil {
		return nil, err
	}
	var away *admin.UnreachableError
	if _, err := hub.Info(ctx); errors.As(err, &away) && a.admin == "" {
		return nil, nil // what announced itself was ended without a farewell
	} else if err != nil {
		return nil, a.hubError(err)
	}
	return hub, nil
}

// allKeys are those of the running hub, else those of its files.
func (a *app) allKeys(ctx context.Context) (admin.Keys, error) {
	hub, err := a.running(ctx)
	if err != nil {
		return admin.Keys{}, err
	}
	if hub != nil {
		k, err := hub.Keys(ctx)
		return k, a.hubError(err)
	}
	r, err := a.ring()
	if err != nil {
		return admin.Keys{}, err
	}
	return admin.Keys{Own: r.List(), Enrolled: r.AllEnrolled()}, nil
}

func (a *app) keysListCommand() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the keys that the hub holds, and those that it knows of others", Args: cobra.NoArgs,
		Example: "  parley keys list --json",
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.keysList(cmd.Context()) },
	}
}

func (a *app) keysList(ctx context.Context) error {
	k, err := a.allKeys(ctx)
	if err != nil {
		return err
	}
	if a.json {
		return a.print(k, "")
	}
	var rows [][]string
	for _, v := range k.Own {
		rows = append(rows, []string{"own", v.Owner, v.Purpose, v.ID, keyring.Fingerprint(v.Algorithm, v.Public), string(v.State), stamp(v.Created), stamp(v.Used), v.By})
	}
	for _, v := range k.Enrolled {
		rows = append(rows, []string{"enrolled", v.Agent, v.Purpose, v.KeyID, keyring.Fingerprint(v.Algorithm, v.Public), "trusted", stamp(v.Created), "", v.By})
	}
	if len(rows) == 0 {
		return a.print(nil, "no keys yet\n")
	}
	return a.table([]string{"KIND", "OF", "FOR", "KEY ID", "FINGERPRINT", "STATE", "SINCE", "LAST USED", "BY"}, rows)
}

// find gives the key of an id, or the newest of an owner.
func find(k admin.Keys, name, purpose string) (own *keyring.Key, enrolled *keyring.Enrolled) {
	for i, v := range k.Own {
		if v.ID == name || v.Owner == name && (purpose == "" || v.Purpose == purpose) && v.State == keyring.Active {
			own = &k.Own[i]
		}
	}
	for i, v := range k.Enrolled {
		if v.KeyID == name || v.Agent == name && (purpose == "" || v.Purpose == purpose) {
			enrolled = &k.Enrolled[i]
		}
	}
	return own, enrolled
}

func (a *app) keysShow() *cobra.Command {
	return &cobra.Command{
		Use: "show KEY-ID|OWNER", Short: "Show a key, never its secret", Args: cobra.ExactArgs(1),
		Example: "  parley keys show hub",
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := a.allKeys(cmd.Context())
			if err != nil {
				return err
			}
			own, enrolled := find(k, args[0], "")
			switch {
			case own != nil:
				until := ""
				switch {
				case own.State == keyring.Next:
					until = "; signs from " + stamp(own.Turn)
				case !own.Turn.IsZero():
					until = "; signs until " + stamp(own.Turn) + ", withdrawn at " + stamp(own.Until)
				case !own.Until.IsZero():
					until = " until " + stamp(own.Until)
				}
				return a.print(own, "id           %s\nof           %s for %s\nstate        %s%s\nmade         %s by %s\nlast used    %s\nalgorithm    %s\npublic key   %s\nfingerprint  %s\n",
					own.ID, own.Owner, own.Purpose, own.State, until, stamp(own.Created), own.By, stamp(own.Used), own.Algorithm,
					base64.StdEncoding.EncodeToString(own.Public), keyring.Fingerprint(own.Algorithm, own.Public))
			case enrolled != nil:
				return a.print(enrolled, "id           %s\nof           %s for %s\nenrolled     %s by %s\nalgorithm    %s\npublic key   %s\nfingerprint  %s\n",
					enrolled.KeyID, enrolled.Agent, enrolled.Purpose, stamp(enrolled.Created), clean(enrolled.By), enrolled.Algorithm,
					base64.StdEncoding.EncodeToString(enrolled.Public), keyring.Fingerprint(enrolled.Algorithm, enrolled.Public))
			}
			return noKey(args[0])
		},
	}
}

const keysListed = "`parley keys` lists them"

func noKey(name string) error {
	return &exitError{exitFailed, fmt.Errorf("no key or owner %q; "+keysListed, name)}
}

func (a *app) keysNew() *cobra.Command {
	var protocol, id, out, kid, owner string
	c := &cobra.Command{
		Use: "new", Short: "Make a key: in a file for an agent of yours, or in the hub's keyring", Args: cobra.NoArgs,
		Long: `Make a private key. With --out it is written to a file that the SDKs read, mode
0600: NAME.json as the TypeScript SDK has it, NAME.key as the Python SDK has it.
With --owner it is made in the keyring of the data directory instead; the hub
must not run meanwhile.`,
		Example: "  parley keys new --protocol samvad --id agent://me --out me.json\n  parley keys new --owner weather --protocol samvad",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if protocol != "samvad" {
				return usage("--protocol %q: samvad is what keys can be made for", protocol)
			}
			if (out == "") == (owner == "") {
				return usage("say where the key goes: --out FILE, or --owner AGENT for the hub's keyring")
			}
			if owner != "" {
				return a.keysNewInRing(cmd.Context(), keyring.New{Owner: owner, Purpose: protocol, Algorithm: keyring.Ed25519, By: "keys new", Note: id})
			}
			return a.keysNewFile(out, id, kid)
		},
	}
	f := c.Flags()
	f.StringVar(&protocol, "protocol", "samvad", "protocol that the key is for")
	f.StringVar(&id, "id", "", "identity that the key is for: agent://HOST")
	f.StringVar(&out, "out", "", "file to write: NAME.json or NAME.key")
	f.StringVar(&kid, "key-id", "", "id of the key (default: the file's name)")
	f.StringVar(&owner, "owner", "", "agent, or hub, whose key it is in the hub's keyring")
	return c
}

func (a *app) keysNewFile(out, id, kid string) error {
	if id == "" {
		return usage("say for whom: --id agent://HOST")
	}
	dir, ext := filepath.Dir(out), filepath.Ext(out)
	name := strings.TrimSuffix(filepath.Base(out), ext)
	if ext != ".json" && ext != ".key" {
		return usage("--out %s: want NAME.json (TypeScript SDK) or NAME.key (Python SDK)", out)
	}
	if kid == "" {
		kid = name
	}
	if kid != name {
		return usage("the SDKs find a key by its file's name: --out %s", filepath.Join(dir, kid+ext))
	}
	if _, err := os.Lstat(out); err == nil {
		return &exitError{exitFailed, fmt.Errorf("%s is there already, and is not overwritten", out)}
	}
	me, err := samvad.NewIdentity(id, kid)
	if err != nil {
		return usage("--id %q: want agent://HOST or agent://HOST:PORT: %w", id, err)
	}
	save := me.SaveTS
	if ext == ".key" {
		save = me.SavePython
	}
	if err := save(dir); err != nil {
		return err
	}
	public := base64.StdEncoding.EncodeToString(me.Public())
	return a.print(map[string]string{"id": id, "keyId": kid, "publicKey": public, "file": out},
		"identity    %s\nkey id      %s\npublic key  %s\nprivate key in %s; keep it\n\nlet a hub know it: parley agents add NAME --id %s --key %s\n", id, kid, public, out, id, public)
}

// ringAlone opens the keyring when no hub has it open.
func (a *app) ringAlone(ctx context.Context) (*keyring.Ring, error) {
	hub, err := a.running(ctx)
	if err != nil {
		return nil, err
	}
	if hub != nil {
		return nil, &exitError{exitFailed, fmt.Errorf("a hub runs on this keyring (%s)\n        stop it first: it would not see the new key", hub.Base)}
	}
	return a.ring()
}

func (a *app) keysNewInRing(ctx context.Context, n keyring.New) error {
	r, err := a.ringAlone(ctx)
	if err != nil {
		return err
	}
	made, err := r.Create(n)
	if errors.Is(err, keyring.ErrExists) {
		return &exitError{exitFailed, fmt.Errorf("%s has a key for %s already\n        `parley keys rotate %[1]s` replaces it", n.Owner, n.Purpose)}
	}
	if err != nil {
		return err
	}
	return a.keyMade(made[0], "made")
}

func (a *app) keyMade(k keyring.Key, what string) error {
	return a.print(k, "key %s of %s for %s is %s\npublic key  %s\n", k.ID, clean(k.Owner), clean(k.Purpose), what, base64.StdEncoding.EncodeToString(k.Public))
}

func (a *app) keysImport() *cobra.Command {
	var owner, protocol, id string
	c := &cobra.Command{
		Use: "import FILE", Short: "Take a private key of an SDK's file into the hub's keyring", Args: cobra.ExactArgs(1),
		Long:    "Take a private key (NAME.json or NAME.key) into the keyring of the data directory,\nso that the hub can speak with it. The hub must not run meanwhile.",
		Example: "  parley keys import .samvad/keys/key-current.json --owner weather --id agent://weather.corp",
		RunE: func(cmd *cobra.Command, args []string) error {
			if owner == "" || id == "" {
				return usage("say whose key it is: --owner AGENT and --id agent://HOST")
			}
			if protocol != "samvad" {
				return usage("--protocol %q: samvad is what keys can be imported for", protocol)
			}
			me, err := samvad.LoadIdentity(args[0], id)
			if err != nil {
				return &exitError{exitUsage, err}
			}
			r, err := a.ringAlone(cmd.Context())
			if err != nil {
				return err
			}
			k, err := r.Import(keyring.New{Owner: owner, Purpose: protocol, Algorithm: keyring.Ed25519, Seed: me.Seed(), By: "keys import", Note: id + " " + me.KID()})
			if errors.Is(err, keyring.ErrExists) {
				return &exitError{exitFailed, fmt.Errorf("%s has a key for %s already", owner, protocol)}
			}
			if err != nil {
				return err
			}
			return a.keyMade(k, "imported")
		},
	}
	f := c.Flags()
	f.StringVar(&owner, "owner", "", "agent, or hub, whose key it is")
	f.StringVar(&protocol, "protocol", "samvad", "protocol that the key is for")
	f.StringVar(&id, "id", "", "identity that the key is for: agent://HOST")
	return c
}

func (a *app) keysEnroll() *cobra.Command {
	var e admin.Enrolment
	c := &cobra.Command{
		Use: "enroll AGENT", Short: "Vouch for the public key of an agent", Args: cobra.ExactArgs(1),
		Long: `Say that messages signed by this key are the agent's. Where a hub runs it knows
at once, else at its next start.`,
		Example: "  parley keys enroll weather --key 0EqyMnQrtKs6E2i9RhXk5tAiSrcaAWuvhSCjMsl3hzc=",
		RunE: func(cmd *cobra.Command, args []string) error {
			e.Agent = args[0]
			if e.PublicKey == "" {
				return usage("say which key: --key BASE64, as its owner gives it (`parley keys export-public` prints one's own)")
			}
			if err := knownProtocol(e.Protocol); err != nil {
				return err
			}
			k, err := samvad.ParseKey(e.PublicKey)
			if err != nil {
				return usage("--key: want the base64 of an Ed25519 public key, 32 bytes: %w", err)
			}
			hub, err := a.running(cmd.Context())
			if err != nil {
				return err
			}
			if hub != nil {
				if err := hub.Enroll(cmd.Context(), e); err != nil {
					return a.hubError(err)
				}
			} else {
				r, err := a.ring()
				if err != nil {
					return err
				}
				if _, err := r.Enroll(keyring.Enrolled{Agent: e.Agent, Purpose: e.Protocol, KeyID: e.KeyID, Algorithm: keyring.Ed25519, Public: k.Public, By: "keys enroll", Note: e.ID}); err != nil {
					return err
				}
			}
			finger := keyring.Fingerprint(keyring.Ed25519, k.Public)
			return a.print(map[string]string{"agent": e.Agent, "fingerprint": finger}, "key %s is enrolled as %s's\n", finger, e.Agent)
		},
	}
	f := c.Flags()
	f.StringVar(&e.PublicKey, "key", "", "the public key, base64")
	f.StringVar(&e.Protocol, "protocol", "samvad", "protocol that the key is for")
	f.StringVar(&e.ID, "id", "", "identity that it proves (default: the agent's in that protocol)")
	f.StringVar(&e.KeyID, "key-id", "", "id of the key (default: it answers to any)")
	return c
}

func (a *app) keysUnenroll() *cobra.Command {
	var protocol string
	c := &cobra.Command{
		Use: "unenroll AGENT KEY-ID", Short: "Forget a public key of an agent", Args: cobra.ExactArgs(2),
		Example: "  parley keys unenroll weather key-current",
		RunE: func(cmd *cobra.Command, args []string) error {
			hub, err := a.running(cmd.Context())
			if err != nil {
				return err
			}
			if hub != nil {
				if err := hub.Unenroll(cmd.Context(), args[0], protocol, args[1]); err != nil {
					return a.hubError(err, keysListed)
				}
			} else {
				r, err := a.ring()
				if err != nil {
					return err
				}
				if err := r.Unenroll(args[0], protocol, args[1]); errors.Is(err, keyring.ErrNotFound) {
					return noKey(args[1])
				} else if err != nil {
					return err
				}
			}
			return a.print(map[string]string{"agent": args[0], "unenrolled": args[1]}, "key %s is no longer %s's\n", clean(args[1]), clean(args[0]))
		},
	}
	c.Flags().StringVar(&protocol, "protocol", "samvad", "protocol that the key is for")
	return c
}

func (a *app) keysRotate() *cobra.Command {
	var protocol string
	var overlap time.Duration
	c := &cobra.Command{
		Use: "rotate OWNER", Short: "Replace a key of the hub; both are valid for a while", Args: cobra.ExactArgs(1),
		Long: `Replace the key of an agent, or of the hub itself, that the hub holds. A hub
that runs needs no restart, and one that is restarted goes on where it was.

The hub's key for SAMVAD is replaced in phases:

  1. At once the cards show both keys, the old one signs. Peers that read cards
     know the new one as soon as they read them again. Give it to those that
     were given a raw key (agent.trust_peer(…)): they may exchange it when they
     like, for the hub repeats a request that is refused as not proved with the
     other key. "parley doctor" tries each agent with the new key and lists
     those that do not accept it yet.
  2. When the overlap is over, the new key signs. Cards show the old one for
     another hour.
  3. Then the old key is withdrawn: it is on no card, and signs nothing.

Keys for other protocols are one to an identity: there the new one signs at
once, and what the old one signed stays valid for the overlap.

With --overlap 0s the old key ends at once; in the middle of a replacement the
new key that is published already takes its place.`,
		Example: "  parley keys rotate hub --overlap 168h\n  parley doctor\n  parley keys",
		RunE: func(cmd *cobra.Command, args []string) error {
			hub, err := a.running(cmd.Context())
			if err != nil {
				return err
			}
			var k keyring.Key
			if hub != nil {
				if k, err = hub.Rotate(cmd.Context(), admin.Rotation{Owner: args[0], Purpose: protocol, Overlap: overlap.String()}); err != nil {
					return a.hubError(err, keysListed)
				}
			} else {
				r, err := a.ring()
				if err != nil {
					return err
				}
				if k, err = admin.Replace(r, args[0], protocol, overlap); errors.Is(err, keyring.ErrNotFound) {
					return noKey(args[0])
				} else if err != nil {
					return err
				}
			}
			switch {
			case k.State == keyring.Next:
				err = a.keyMade(k, "new, and published beside the old one")
				if err != nil || a.json {
					return err
				}
				return a.print(nil, "the old one signs until %s, and is withdrawn at %s\n`parley doctor` lists the agents that do not accept the new one yet\n",
					stamp(k.Turn), stamp(k.Turn.Add(admin.Withdrawn)))
			case overlap > 0:
				return a.keyMade(k, "new; the old one is valid for "+overlap.String())
			}
			return a.keyMade(k, "what signs now; the old one has ended")
		},
	}
	c.Flags().StringVar(&protocol, "protocol", "samvad", "protocol that the key is for")
	c.Flags().DurationVar(&overlap, "overlap", 7*24*time.Hour, "how long both keys are valid before the new one signs alone")
	return c
}

func (a *app) keysExport() *cobra.Command {
	var protocol, file string
	c := &cobra.Command{
		Use: "export-public [KEY-ID|OWNER]", Short: "Print a public key in base64, for others to enrol", Args: cobra.MaximumNArgs(1),
		Example: "  parley keys export-public hub\n  parley keys export-public --file me.json",
		RunE: func(cmd *cobra.Command, args []string) error {
			if (file == "") == (len(args) == 0) {
				return usage("say which key: an id, an owner such as hub, or --file KEYFILE")
			}
			var public []byte
			if file != "" {
				me, err := samvad.LoadIdentity(file, "agent://localhost")
				if err != nil {
					return &exitError{exitUsage, err}
				}
				public = me.Public()
			} else {
				k, err := a.allKeys(cmd.Context())
				if err != nil {
					return err
				}
				own, enrolled := find(k, args[0], protocol)
				switch {
				case own != nil:
					public = own.Public
				case enrolled != nil:
					public = enrolled.Public
				default:
					return noKey(args[0])
				}
			}
			text := base64.StdEncoding.EncodeToString(public)
			return a.print(map[string]string{"publicKey": text}, "%s\n", text)
		},
	}
	c.Flags().StringVar(&protocol, "protocol", "", "of an owner with keys for several protocols")
	c.Flags().StringVar(&file, "file", "", "key file of an SDK, in place of the hub's keyring")
	return c
}
