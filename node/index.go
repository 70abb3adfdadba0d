package node

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
)

// IndexFile is the index of messages, in the data directory. It may be removed while no
// hub runs; the next start makes it again.
const IndexFile = "index.db"

// openIndex begins to index the journal, for the admin API, the tasks of A2A and the calls of MCP.
func (n *Node) openIndex(ctx context.Context) error {
	if !n.c.hasAdmin() && n.c.A2A.Off && n.c.MCP.Off {
		return nil
	}
	c := index.Config{Journal: n.journal, Log: n.log, Progress: progressOf(n.c.Progress, "making the index"),
		NoText: n.c.Engine.KeyFile != ""} // the text of an encrypted journal must not be here in clear
	if n.k.durability != journal.Memory {
		c.Path = filepath.Join(n.c.Data, IndexFile)
	}
	var err error
	if n.index, err = index.Open(ctx, c); err != nil {
		return fmt.Errorf("open the index of messages: %w", err)
	}
	return nil
}
