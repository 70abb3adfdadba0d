package main

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/node"
)

// configName is the default configuration file.
const configName = "parley.toml"

func (a *app) initCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "init [DIR]",
		Short: "Make a configuration file, the hub's keys and an admin token",
		Long: `Prepare a directory for a hub (default: the current one): make a configuration file
that explains every key, a data directory with the hub's keys, and a first admin token,
which is shown once. Existing files stay as they are: a second run changes nothing.`,
		Example: `  parley init
  parley init /etc/parley --data /var/lib/parley`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return a.init(argument(args)) },
	}
}

// made is one item of init.
type made struct {
	What string `json:"what"`
	Path string `json:"path"`
	New  bool   `json:"new"`
}

func (a *app) init(dir string) error {
	path := cmp.Or(a.config, filepath.Join(dir, configName))
	data := cmp.Or(a.data, node.DefaultData)
	var list []made
	cluster := false // a cluster's keys are in the shared state
	_, err := os.Lstat(path)
	fresh := errors.Is(err, os.ErrNotExist)
	if err != nil && !fresh {
		return err
	}
	if !fresh {
		c, err := node.Load(path)
		if err != nil {
			return &exitError{exitUsage, err}
		}
		cluster = c.Engine.URL != ""
		if a.data == "" && c.Data != "" {
			data = c.Data
		} else if a.data != "" && c.Data != "" && abs(a.data) != abs(c.Data) {
			return usage("%s has data = %q; leave out --data, or change the file", path, c.Data)
		}
	}
	// Paths in the file are relative to it, those of flags to the current directory.
	inFile := abs(data)
	if fresh && a.data == "" {
		inFile, data = data, filepath.Join(filepath.Dir(path), data)
	}
	if fresh {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := writeNew(path, []byte(node.Template(map[string]string{"data": inFile, "listen.http": "127.0.0.1:8080",
			"listen.admin": defaultAdmin}))); err != nil {
			return err
		}
	}
	list = append(list, made{"configuration", path, fresh})

	passphrase, err := a.passphrase()
	if err != nil {
		return err
	}
	keys := filepath.Join(data, "keys")
	had, err := keyring.Exists(keys)
	if err != nil {
		return err
	}
	if !had && !cluster {
		if err := os.MkdirAll(data, 0o700); err != nil {
			return err
		}
		ring, err := keyring.Open(keyring.Options{Dir: keys, Passphrase: passphrase})
		if err != nil {
			return err
		}
		_, err = ring.Ensure(keyring.New{Owner: keyring.Hub, Purpose: "samvad", Algorithm: keyring.Ed25519,
			By: "parley init"})
		if err := errors.Join(err, ring.Close()); err != nil {
			return err
		}
	}
	if !cluster {
		list = append(list, made{"keys", filepath.Join(keys, keyring.FileName), !had})
	}

	token, err := admin.MakeTokenFile(data, time.Now(), rand.Reader)
	if err != nil {
		return err
	}
	if _, err := admin.ReadTokens(data); err != nil {
		return err
	}
	list = append(list, made{"admin token", filepath.Join(data, admin.TokenFile), token != ""})
	return a.initialised(path, data, list, token)
}

// initialised shows the items of init. The token is shown here and stored nowhere; it is
// "" if the hub already had tokens.
func (a *app) initialised(path, data string, list []made, token string) error {
	if a.json {
		return a.print(struct {
			Made  []made `json:"made"`
			Token string `json:"token,omitzero"`
		}{list, token}, "")
	}
	changed := false
	for _, m := range list {
		state := "was there"
		if m.New {
			state, changed = "made", true
		}
		fmt.Fprintf(a.out, "%-9s  %-13s  %s\n", state, m.What, m.Path)
	}
	if !changed {
		fmt.Fprintln(a.out, "nothing was changed")
		return nil
	}
	if token != "" {
		fmt.Fprintf(a.out, "\n%s", firstToken(token))
	}
	fmt.Fprintf(a.out, `
The keys are the hub's identity: keep them secret, and back up %s. Without them
every peer must learn a new identity.

Next:
  parley config check %[2]s
  parley serve --config %[2]s
  parley doctor --config %[2]s
`, data, shellWord(path))
	return nil
}

// firstToken shows the secret of the first admin token.
func firstToken(secret string) string {
	return "admin token  " + secret + `
To control this hub from another machine, set ` + tokenEnv + ` to this token there. It permits
everything, is shown only now, and is not stored. Commands on the hub's machine need
no token.
`
}

// writeNew writes a file that must not exist yet.
func writeNew(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}

func abs(path string) string {
	if a, err := filepath.Abs(path); err == nil {
		return a
	}
	return path
}

// shellWord quotes a path for a shell if it needs quotes.
func shellWord(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
			strings.ContainsRune("._-/+=:@%", r))
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
