package node

import (
	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// watchSettled closes done when a message's delivery is settled or delivered.
func watchSettled(n *Node, id parley.ID, done chan struct{}) (stop func()) {
	var over bool
	return n.Hub().Journal().Watch(func(r *journal.Record) {
		for _, s := range r.Steps {
			if s.Message == id && s.State >= parley.Delivered && !over {
				over = true
				close(done)
			}
		}
	})
}
