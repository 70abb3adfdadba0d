package asp

import (
	"fmt"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
)

// connection says how many calls and streams of an agent are open, and when it last called:
// [hub.Capabilities.Connection].
func (b *Binding) connection(_ *directory.Entry, id parley.Identity) hub.Connection {
	c := b.heard.of(id.ID)
	out := hub.Connection{Heard: c.last}
	if c.open > 0 {
		out.Text = fmt.Sprintf("%d calls or streams open", c.open)
	}
	return out
}
