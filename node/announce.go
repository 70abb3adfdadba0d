package node

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/atomicfile"
	"github.com/parley-hub/parley/internal/disk"
	"github.com/parley-hub/parley/journal"
)

// AddressFile is where a running hub writes its [Announcement], in the data directory and
// with mode 0600. It exists while the hub runs, and is in no backup.
const AddressFile = "hub.json"

// An Announcement gives commands on the hub's machine the hub's address and a token.
type Announcement struct {
	Addresses
	Token string `json:"token,omitempty"` // lets its bearer do everything until the hub ends
}

const maxAnnouncement = 16 << 20

// ReadAnnouncement reads the announcement of the hub of a data directory. The error
// matches [os.ErrNotExist] where no hub runs. A file that other users may read is
// refused.
func ReadAnnouncement(dir string) (Announcement, error) {
	var a Announcement
	path := filepath.Join(dir, AddressFile)
	f, err := os.Open(path)
	if err != nil {
		return a, err
	}
	defer f.Close()
	i, err := f.Stat()
	if err != nil {
		return a, err
	}
	if disk.OthersMay(i) {
		return a, fmt.Errorf("others can read %s, which holds a token; run: chmod 600 %[1]s, and start the hub again",
			path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxAnnouncement))
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(b, &a); err != nil {
		return a, fmt.Errorf("%s is damaged (%w); start the hub again, or remove the file if none runs", path, err)
	}
	return a, nil
}

// announces reports whether local commands find the hub by its data directory. A hub in
// memory has none.
func (n *Node) announces() bool { return n.adminListen != nil && n.k.durability != journal.Memory }

// tokenDir is the directory of the token file; "" for a hub in memory.
func (n *Node) tokenDir() string {
	if n.k.durability == journal.Memory {
		return ""
	}
	return n.c.Data
}

// openTokens gives the tokens of the admin API, of accounts and of callers, with a fresh one
// for local commands. A hub without admin API makes none.
func (n *Node) openTokens(ctx context.Context) error {
	rnd := rand.Reader
	if !n.c.hasAdmin() {
		rnd = nil
	}
	id, err := n.shared(ctx, "admin tokens", 8)
	if err != nil {
		return err
	}
	tokens, first, err := admin.OpenTokens(ctx, n.journal.State("admin-tokens"), hex.EncodeToString(id), n.tokenDir(),
		n.c.Now, rnd, n.log)
	if err != nil {
		return err
	}
	n.tokens = tokens
	if first != "" && n.c.FirstToken != nil {
		n.c.FirstToken(first)
	}
	if n.announces() {
		if n.local, err = tokens.AddLocal(n.c.Now(), rand.Reader); err != nil {
			return err
		}
	}
	return n.openCallers()
}

func (n *Node) announce() error {
	if !n.announces() {
		return nil
	}
	at := n.Addresses()
	at.Agents, at.Count = nil, 0 // they change while the hub runs
	b, err := json.MarshalIndent(Announcement{at, n.local}, "", "  ")
	if err != nil {
		return err
	}
	n.local = ""
	if err := atomicfile.Replace(filepath.Join(n.c.Data, AddressFile), append(b, '\n')); err != nil {
		return fmt.Errorf("announce the hub to the commands on this machine: %w", err)
	}
	return nil
}

// retract removes the announcement.
func (n *Node) retract() {
	if !n.announces() {
		return
	}
	err := os.Remove(filepath.Join(n.c.Data, AddressFile))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		n.log.Warn("cannot remove the hub's announcement, whose token is no longer good", "error", err)
	}
}
