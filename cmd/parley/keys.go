package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/samvad"
)

func (a *app) keysCommand() *cobra.Command {
	list := a.keysListCommand()
	return group("keys", "Make, list and enrol keys",
		`  parley keys
  parley keys new --protocol samvad --id agent://me --out me.json
  parley keys enroll weather --key BASE64`,
		list.RunE, append([]*cobra.Command{a.keysNew(), list, a.keysShow(), a.keysImport(), a.keysEnroll(),
			a.keysUnenroll(), a.keysRotate(), a.keysPassphrase(), a.keysExport()},
			a.ofProtocols(func(p *protocol) func(*app) *cobra.Command { return p.keys })...)...)
}

// ring opens the keyring of the data directory.
func (a *app) ring() (*keyring.Ring, error) {
	c, err := a.located(a.data != "")
	if err != nil {
		return nil, err
	}
	if c.Engine.URL != "" {
		return nil, errors.New("the keys of a cluster are in its shared state\n        start " +
			"one of its hubs, and name its admin listener with --admin")
	}
	dir := filepath.Join(c.Data, "keys")
	exists, err := keyring.Exists(dir)
	if err != nil {
		return nil, err
	}
	if !exists {
		return nil, fmt.Errorf("no keyring in %s\n        `parley serve --data %[1]s` makes "+
			"one at its first start; name another directory with --data", c.Data)
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

// running gives the hub through which keys are changed: the one named by --admin, or
// one that is announced in the data directory and answers. It gives nil if keys are
// changed in files.
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
	_, err = hub.Info(ctx)
	if _, away := errors.AsType[*admin.UnreachableError](err); away && a.admin == "" {
		return nil, nil // the announced hub was killed
	}
	return hub, a.hubError(err)
}

// A keeper reads and changes keys: the running hub, which applies a change at once, or
// else the keyring of the data directory.
type keeper interface {
	Keys(context.Context) (admin.Keys, error)
	NewKey(context.Context, admin.NewKey) (keyring.Key, error)
	Enroll(context.Context, admin.Enrolment) error
	Unenroll(ctx context.Context, agent, protocol, keyID string) error
	Rotate(context.Context, admin.Rotation) (keyring.Key, error)
	Passphrase(context.Context, admin.Passphrase) (admin.Protected, error)
}

func (a *app) keeper(ctx context.Context) (keeper, error) {
	hub, err := a.running(ctx)
	if err != nil {
		return nil, err
	}
	if hub != nil {
		return hub, nil
	}
	r, err := a.ring()
	if err != nil {
		return nil, err
	}
	return keyFile{r}, nil
}

// secretKeeper is keeper for a command that sends it a secret.
func (a *app) secretKeeper(ctx context.Context) (keeper, error) {
	k, err := a.keeper(ctx)
	if hub, ok := k.(*admin.Client); ok {
		return k, keepsSecret(hub.Base)
	}
	return k, err
}

// keepsSecret refuses an address to which a secret would travel in clear text.
func keepsSecret(base string) error {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "https" && !netguard.OnThisMachine(u.Hostname()) {
		return usage("the secret would travel to %s in clear text\n        run this on the hub's machine, or name "+
			"an https address with --admin", base)
	}
	return nil
}

// keyFile is the keyring of a hub that does not run.
type keyFile struct{ r *keyring.Ring }

func (f keyFile) Keys(context.Context) (admin.Keys, error) {
	return admin.Keys{Own: f.r.List(), Enrolled: f.r.AllEnrolled()}, nil
}

func (f keyFile) NewKey(_ context.Context, n admin.NewKey) (keyring.Key, error) {
	return admin.MakeKey(f.r, n, "parley keys")
}

func (f keyFile) Enroll(_ context.Context, e admin.Enrolment) error {
	k, err := samvad.ParseKey(e.PublicKey)
	if err == nil {
		_, err = f.r.Enroll(keyring.Enrolled{Agent: e.Agent, Purpose: e.Protocol, KeyID: e.KeyID,
			Algorithm: keyring.Ed25519, Public: k.Public, By: "keys enroll", Note: e.ID})
	}
	return err
}

func (f keyFile) Unenroll(_ context.Context, agent, protocol, keyID string) error {
	return withKeyHint(keyID, f.r.Unenroll(agent, protocol, keyID))
}

func (f keyFile) Rotate(_ context.Context, n admin.Rotation) (keyring.Key, error) {
	overlap, err := time.ParseDuration(n.Overlap)
	if err != nil {
		return keyring.Key{}, err
	}
	k, err := admin.ReplaceKey(f.r, n.Owner, n.Purpose, "parley keys", overlap)
	return k, withKeyHint(n.Owner, err)
}

func (f keyFile) Passphrase(_ context.Context, p admin.Passphrase) (admin.Protected, error) {
	return admin.ChangePassphrase(f.r, p)
}

func withKeyHint(name string, err error) error {
	if errors.Is(err, keyring.ErrNotFound) {
		return noKey(name)
	}
	return err
}

func (a *app) allKeys(ctx context.Context) (admin.Keys, error) {
	k, err := a.keeper(ctx)
	if err != nil {
		return admin.Keys{}, err
	}
	list, err := k.Keys(ctx)
	return list, a.hubError(err)
}

func (a *app) keysListCommand() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the hub's own keys and the enrolled keys of agents",
		Example: "  parley keys list --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			k, err := a.allKeys(cmd.Context())
			if err != nil {
				return err
			}
			if a.json {
				return a.print(k, "")
			}
			titles := []string{"KIND", "OF", "FOR", "KEY ID", "FINGERPRINT", "STATE", "SINCE", "LAST USED", "BY"}
			return printList(a, shownKeys(k), "no keys yet", titles, func(v *shownKey) []string {
				return []string{v.kind, v.owner, v.purpose, v.id, keyring.Fingerprint(v.algorithm, v.public), v.state,
					a.when(v.created), a.when(v.used), v.by}
			})
		},
	}
}

// shownKey is a key of the hub or an enrolled one, as commands show it.
type shownKey struct {
	kind, owner, purpose, id string
	algorithm                keyring.Algorithm
	public                   []byte
	state, validity          string // validity: the times until which it signs and is published
	created                  time.Time
	used                     time.Time
	by                       string
	active                   bool // find by the owner's name gives this key
	json                     any
}

func shownKeys(k admin.Keys) (out []shownKey) {
	for i, v := range k.Own {
		out = append(out, shownKey{"own", v.Owner, v.Purpose, v.ID, v.Algorithm, v.Public, string(v.State),
			validity(&v), v.Created, v.Used, v.By, v.State == keyring.Active, &k.Own[i]})
	}
	for i, v := range k.Enrolled {
		out = append(out, shownKey{"enrolled", v.Agent, v.Purpose, v.KeyID, v.Algorithm, v.Public, "trusted", "",
			v.Created, v.Used, v.By, true, &k.Enrolled[i]})
	}
	return out
}

// find gives the key with an id, or the newest key of an owner; the hub's own key rather
// than an enrolled one.
func (a *app) find(ctx context.Context, name, purpose string) (found shownKey, err error) {
	k, err := a.allKeys(ctx)
	if err != nil {
		return found, err
	}
	for _, v := range shownKeys(k) {
		if (v.id == name || v.owner == name && (purpose == "" || v.purpose == purpose) && v.active) &&
			(found.kind == "" || found.kind == v.kind) {
			found = v
		}
	}
	if found.kind == "" {
		return found, noKey(name)
	}
	return found, nil
}

func (a *app) keysShow() *cobra.Command {
	return &cobra.Command{
		Use: "show KEY-ID|OWNER", Short: "Show a key, never its secret", Args: cobra.ExactArgs(1),
		Example: "  parley keys show hub",
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := a.find(cmd.Context(), args[0], "")
			if err != nil {
				return err
			}
			return a.verdict(true, k.json, func() error {
				line := a.labels(12, 400)
				line("id", "%s", k.id)
				line("of", "%s for %s", k.owner, k.purpose)
				made := "enrolled"
				if k.kind == "own" {
					line("state", "%s%s", k.state, k.validity)
					made = "made"
				}
				line(made, "%s by %s", a.when(k.created), k.by)
				if k.kind == "own" {
					line("last used", "%s", a.when(k.used))
				}
				line("algorithm", "%s", k.algorithm)
				line("public key", "%s", base64.StdEncoding.EncodeToString(k.public))
				line("fingerprint", "%s", keyring.Fingerprint(k.algorithm, k.public))
				return nil
			})
		},
	}
}

// validity gives the times until which a key of the hub signs and is published.
func validity(k *keyring.Key) string {
	switch {
	case k.State == keyring.Next:
		return "; signs from " + stamp(k.Turn)
	case !k.Turn.IsZero():
		return "; signs until " + stamp(k.Turn) + ", withdrawn at " + stamp(k.Until)
	case !k.Until.IsZero():
		return " until " + stamp(k.Until)
	}
	return ""
}

const keysListed = "`parley keys` lists them"

func noKey(name string) error {
	return fmt.Errorf("no key or owner %q; "+keysListed, name)
}

func (a *app) keysNew() *cobra.Command {
	var protocol, id, out, kid, owner string
	c := &cobra.Command{
		Use: "new", Short: "Make a key in a file, for your agent, or in the hub's keyring",
		Long: `Make a private key. --out writes it to a file of mode 0600 that the SDKs read: NAME.json
for the TypeScript SDK, NAME.key for the Python SDK. --owner makes it in the hub's
keyring instead: the running hub does it, in a cluster any of its hubs; if no hub runs,
the key goes into the data directory.`,
		Example: `  parley keys new --protocol samvad --id agent://me --out me.json
  parley keys new --owner weather --protocol samvad`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if protocol != "samvad" {
				return usage("--protocol %q: this command makes only keys for samvad", protocol)
			}
			if (out == "") == (owner == "") {
				return usage("say where to store the key: --out FILE, or --owner AGENT for the hub's keyring")
			}
			if owner != "" {
				return a.newKey(cmd.Context(), admin.NewKey{Owner: owner, Purpose: protocol, Algorithm: keyring.Ed25519,
					Note: id}, "made")
			}
			return a.keysNewFile(out, id, kid)
		},
	}
	f := c.Flags()
	f.StringVar(&protocol, "protocol", "samvad", "protocol of the key")
	f.StringVar(&id, "id", "", "identity of the key's owner: agent://HOST")
	f.StringVar(&out, "out", "", "file to write: NAME.json or NAME.key")
	f.StringVar(&kid, "key-id", "", "id of the key (default: the file's name)")
	f.StringVar(&owner, "owner", "", "owner of the key in the hub's keyring: an agent, or hub")
	return c
}

func (a *app) keysNewFile(out, id, kid string) error {
	if id == "" {
		return usage("say whose key it is: --id agent://HOST")
	}
	dir, ext := filepath.Dir(out), filepath.Ext(out)
	name := strings.TrimSuffix(filepath.Base(out), ext)
	if ext != ".json" && ext != ".key" {
		return usage("--out %s: want NAME.json (TypeScript SDK) or NAME.key (Python SDK)", out)
	}
	kid = cmp.Or(kid, name)
	if kid != name {
		return usage("the SDKs find a key by its file's name: --out %s", filepath.Join(dir, kid+ext))
	}
	if _, err := os.Lstat(out); err == nil {
		return fmt.Errorf("%s is there already, and is not overwritten", out)
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
		"identity    %s\nkey id      %s\npublic key  %s\nprivate key in %s; keep it secret\n\nadd it at a hub: "+
			"parley agents add NAME --id %s --key %s\n", id, kid, public, out, id, public)
}

// newKey makes a private key in the hub's keyring, or imports one, and shows its public
// key.
func (a *app) newKey(ctx context.Context, n admin.NewKey, what string) error {
	keeper, err := a.secretKeeper(ctx)
	if err != nil {
		return err
	}
	k, err := keeper.NewKey(ctx, n)
	if err != nil {
		return a.hubError(err)
	}
	return a.keyMade(k, what)
}

func (a *app) keyMade(k keyring.Key, what string) error {
	return a.print(k, "key %s of %s for %s is %s\npublic key  %s\n", k.ID, clean(k.Owner), clean(k.Purpose), what,
		base64.StdEncoding.EncodeToString(k.Public))
}

func (a *app) keysImport() *cobra.Command {
	var owner, protocol, id string
	c := &cobra.Command{
		Use: "import FILE", Short: "Import an SDK's private key into the hub's keyring", Args: cobra.ExactArgs(1),
		Long: `Import a private key (NAME.json or NAME.key) into the hub's keyring, so that the hub can
sign with it. The running hub does it, in a cluster any hub for all of them; if no hub
runs, the key goes into the data directory.`,
		Example: "  parley keys import .samvad/keys/key-current.json --owner weather --id agent://weather.corp",
		RunE: func(cmd *cobra.Command, args []string) error {
			if owner == "" || id == "" {
				return usage("say whose key it is: --owner AGENT and --id agent://HOST")
			}
			if protocol != "samvad" {
				return usage("--protocol %q: this command imports only keys for samvad", protocol)
			}
			me, err := samvad.LoadIdentity(args[0], id)
			if err != nil {
				return &exitError{exitUsage, err}
			}
			return a.newKey(cmd.Context(), admin.NewKey{Owner: owner, Purpose: protocol, Algorithm: keyring.Ed25519,
				Seed: me.Seed(), Note: id + " " + me.KID()}, "imported")
		},
	}
	f := c.Flags()
	f.StringVar(&owner, "owner", "", "owner of the key: an agent, or hub")
	f.StringVar(&protocol, "protocol", "samvad", "protocol of the key")
	f.StringVar(&id, "id", "", "identity of the key's owner: agent://HOST")
	return c
}

func (a *app) keysEnroll() *cobra.Command {
	var e admin.Enrolment
	c := &cobra.Command{
		Use: "enroll AGENT", Short: "Enrol the public key of an agent", Args: cobra.ExactArgs(1),
		Long: `Enrol a public key: the hub then accepts messages signed by it as the agent's. A running
hub knows it at once, a stopped one at its next start.`,
		Example: "  parley keys enroll weather --key 0EqyMnQrtKs6E2i9RhXk5tAiSrcaAWuvhSCjMsl3hzc=",
		RunE: func(cmd *cobra.Command, args []string) error {
			e.Agent = args[0]
			if e.PublicKey == "" {
				return usage("say which key: --key BASE64, which its owner prints with `parley keys export-public`")
			}
			if err := knownProtocol(e.Protocol); err != nil {
				return err
			}
			k, err := samvad.ParseKey(e.PublicKey)
			if err != nil {
				return usage("--key: want the base64 of an Ed25519 public key, 32 bytes: %w", err)
			}
			keeper, err := a.keeper(cmd.Context())
			if err != nil {
				return err
			}
			if err := keeper.Enroll(cmd.Context(), e); err != nil {
				return a.hubError(err)
			}
			finger := keyring.Fingerprint(keyring.Ed25519, k.Public)
			return a.print(map[string]string{"agent": e.Agent, "fingerprint": finger}, "key %s is enrolled as %s's\n",
				finger, e.Agent)
		},
	}
	f := c.Flags()
	f.StringVar(&e.PublicKey, "key", "", "the public key, base64")
	f.StringVar(&e.Protocol, "protocol", "samvad", "protocol of the key")
	f.StringVar(&e.ID, "id", "", "the agent's identity that it proves (default: the one in that protocol)")
	f.StringVar(&e.KeyID, "key-id", "", "id of the key (default: any)")
	a.dryRun(c, func(ctx context.Context, hub *admin.Client, args []string) (admin.Preview, error) {
		e.Agent = args[0]
		return hub.PreviewEnroll(ctx, e)
	})
	return c
}

func (a *app) keysUnenroll() *cobra.Command {
	var protocol string
	c := &cobra.Command{
		Use: "unenroll AGENT KEY-ID", Short: "Remove an enrolled public key of an agent", Args: cobra.ExactArgs(2),
		Example: "  parley keys unenroll weather key-current",
		RunE: func(cmd *cobra.Command, args []string) error {
			keeper, err := a.keeper(cmd.Context())
			if err != nil {
				return err
			}
			if err := keeper.Unenroll(cmd.Context(), args[0], protocol, args[1]); err != nil {
				return a.hubError(err, keysListed)
			}
			return a.print(map[string]string{"agent": args[0], "unenrolled": args[1]}, "key %s is no longer %s's\n",
				clean(args[1]), clean(args[0]))
		},
	}
	c.Flags().StringVar(&protocol, "protocol", "samvad", "protocol of the key")
	return c
}

func (a *app) keysRotate() *cobra.Command {
	var protocol string
	var overlap time.Duration
	c := &cobra.Command{
		Use: "rotate OWNER", Short: "Replace a key of the hub; both stay valid for a while", Args: cobra.ExactArgs(1),
		Long: `Replace a key that the hub holds, its own or an agent's. A running hub needs no restart;
after a restart the replacement continues.

A SAMVAD key is replaced in phases:

  1. At once: the cards list both keys, and the old one signs. Peers that read cards
     learn the new key when they read them again. Peers with a raw key
     (agent.trust_peer(…)) need the new one: give it to them at any time before
     phase 3, because the hub repeats a request that fails with one key with the
     other. "parley doctor" lists the agents that do not accept the new key yet.
  2. After the overlap: the new key signs. Cards list the old one for another hour.
  3. Then the old key is withdrawn: it is on no card and signs nothing.

In other protocols an identity has one key: there the new key signs at once, and
messages signed by the old one stay valid for the overlap.

--overlap 0s ends the old key at once. During a replacement the published new key takes
its place.`,
		Example: `  parley keys rotate hub --dry-run
  parley keys rotate hub --overlap 168h
  parley doctor
  parley keys`,
		RunE: func(cmd *cobra.Command, args []string) error {
			keeper, err := a.keeper(cmd.Context())
			if err != nil {
				return err
			}
			k, err := keeper.Rotate(cmd.Context(), admin.Rotation{Owner: args[0], Purpose: protocol,
				Overlap: overlap.String()})
			if err != nil {
				return a.hubError(err, keysListed)
			}
			switch {
			case k.State == keyring.Next:
				err = a.keyMade(k, "new, and published beside the old one")
				if err != nil || a.json {
					return err
				}
				return a.print(nil, "the old key signs until %s, and is withdrawn at %s\n`parley doctor` lists the "+
					"agents that do not accept the new key yet\n",
					stamp(k.Turn), stamp(k.Turn.Add(admin.OldKeyPublished)))
			case overlap > 0:
				return a.keyMade(k, "new; the old one is valid for "+overlap.String())
			}
			return a.keyMade(k, "the key that signs now; the old one is no longer valid")
		},
	}
	c.Flags().StringVar(&protocol, "protocol", "samvad", "protocol of the key")
	c.Flags().DurationVar(&overlap, "overlap", 7*24*time.Hour,
		"how long both keys are valid before only the new one signs")
	a.dryRun(c, func(ctx context.Context, hub *admin.Client, args []string) (admin.Preview, error) {
		return hub.PreviewRotate(ctx, admin.Rotation{Owner: args[0], Purpose: protocol, Overlap: overlap.String()})
	})
	return c
}

func (a *app) keysPassphrase() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use: "passphrase", Short: "Change the passphrase of the hub's keyring, or of a cluster's",
		Long: `Change the passphrase of the keyring: all keys are encrypted again under the new
passphrase, which is the text of a file (without its last line end; - is the standard
input). The current one is read from PARLEY_PASSPHRASE or PARLEY_PASSPHRASE_FILE. The
keyring of a single machine without a passphrase becomes encrypted. The running hub does
it, in a cluster any hub for all of them; if no hub runs, it happens in the data directory.

From then on every start needs the new passphrase: set it for all hubs. After a crash
during the change, the old passphrase or the new one opens the keyring: the old one if the
change is not recorded, else the new one.

The other hubs of a cluster keep their keys in memory. They change no keys, and learn of
no changes, until you restart them, one after another.

Anyone who had the old passphrase may have the keys: replace them afterwards ("parley keys
rotate"). Backups open with the passphrase of their time.`,
		Example: "  PARLEY_PASSPHRASE_FILE=old.txt parley keys passphrase --new-file new.txt",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return usage("name the file with the new passphrase: --new-file FILE, or - for the standard input")
			}
			next, err := a.input(fileArg([]string{file}))
			if err != nil {
				return err
			}
			if next = bytes.TrimRight(next, "\r\n"); len(next) == 0 {
				return usage("--new-file %s: the passphrase is empty", file)
			}
			current, err := a.passphrase()
			if err != nil {
				return err
			}
			keeper, err := a.secretKeeper(cmd.Context())
			if err != nil {
				return err
			}
			v, err := keeper.Passphrase(cmd.Context(), admin.Passphrase{Current: string(current), New: string(next)})
			if err != nil {
				return a.hubError(err)
			}
			text := "the passphrase of the keyring is changed\nevery start of a hub needs it: set " +
				"PARLEY_PASSPHRASE_FILE or PARLEY_PASSPHRASE\n"
			if v.Backup != "" {
				text += "the old keyring is in " + clean(v.Backup) +
					"; delete it when the hub has started with the new passphrase\n"
			}
			return a.print(v, "%s", text)
		},
	}
	c.Flags().StringVar(&file, "new-file", "", "file with the new passphrase, or -")
	return c
}

func (a *app) keysExport() *cobra.Command {
	var protocol, file string
	c := &cobra.Command{
		Use: "export-public [KEY-ID|OWNER]", Short: "Print a public key in base64, to be enrolled elsewhere",
		Args: cobra.MaximumNArgs(1),
		Example: `  parley keys export-public hub
  parley keys export-public --file me.json`,
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
				k, err := a.find(cmd.Context(), args[0], protocol)
				if err != nil {
					return err
				}
				public = k.public
			}
			text := base64.StdEncoding.EncodeToString(public)
			return a.print(map[string]string{"publicKey": text}, "%s\n", text)
		},
	}
	c.Flags().StringVar(&protocol, "protocol", "", "protocol of the key, if its owner has several")
	c.Flags().StringVar(&file, "file", "", "read the key file of an SDK in place of the hub's keyring")
	return c
}
