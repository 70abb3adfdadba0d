package admin

import (
	"fmt"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/journal"
)

// A page of 100 of 1,000 agents, with 100,000 open deliveries to them.
func BenchmarkAgents(b *testing.B) {
	x := open(b, nil)
	ctx, j := b.Context(), x.hub.Journal()
	root := Actor{Name: "root", Role: Administer}
	for i := range 1000 {
		name := fmt.Sprintf("agent-%04d", i)
		a := parley.Agent{Name: name, Exposed: parley.Everywhere, Identities: []parley.Identity{Inbox(name)}}
		if _, err := x.hub.Directory().Put(ctx, a, directory.FromConfig); err != nil {
			b.Fatal(err)
		}
	}
	var batch []journal.Opening
	for i := range 1000 {
		batch = append(batch, journal.Opening{To: fmt.Sprintf("agent-%04d", i)})
	}
	for i := range 100 {
		m := &parley.Message{ID: parley.ID{1, byte(i)}, Kind: parley.Notice, From: "a",
			Parts: []parley.Part{parley.Text("x")}}
		if _, err := j.Append(ctx, journal.Entry{Scope: "s", Message: m, Open: batch}); err != nil {
			b.Fatal(err)
		}
	}
	for _, order := range []string{"name", "trouble"} {
		b.Run(order, func(b *testing.B) {
			for b.Loop() {
				page, err := x.admin.Agents(ctx, root, AgentFilter{Order: order})
				if err != nil || len(page.Agents) != 100 || page.Agents[50].Waiting.Open != 100 {
					b.Fatal(len(page.Agents), err)
				}
			}
		})
	}
}
