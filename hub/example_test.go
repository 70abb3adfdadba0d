package hub_test

import (
	"context"
	"fmt"
	"log"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/sqlite"
	"github.com/parley-hub/parley/policy"
)

// Put a hub together by hand, and ask an agent of this process. Package node does
// that from a configuration, with all protocols.
func Example() {
	ctx := context.Background()
	s, err := sqlite.Open(ctx, sqlite.Config{Memory: true})
	if err != nil {
		log.Fatal(err)
	}
	j, err := journal.Open(ctx, journal.Config{Store: s})
	if err != nil {
		log.Fatal(err)
	}
	defer j.Close()
	d, err := directory.Open(ctx, directory.Options{State: j.State("agents")})
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	p, err := policy.New(policy.Config{Hub: "home"})
	if err != nil {
		log.Fatal(err)
	}
	h, err := hub.New(hub.Config{ID: "home", Secret: make([]byte, 32), Journal: j, Directory: d, Policy: p})
	if err != nil {
		log.Fatal(err)
	}
	defer h.Close(ctx)

	greet := parley.Skill("greet", func(_ context.Context, m *parley.Message, name string) (string, error) {
		return "hello " + name + ", from " + m.To, nil
	})
	if err := h.Handle(parley.Agent{Name: "greeter", Skills: []parley.SkillSpec{greet}}); err != nil {
		log.Fatal(err)
	}
	h.Start()
	answer, err := h.Ask(ctx, hub.Submission{Scope: "go ann", Message: &parley.Message{
		Kind: parley.Request, From: "ann", To: "greeter", Parts: []parley.Part{parley.Text("Ann")},
		Origin: parley.Origin{Protocol: "go"},
	}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(answer.Kind, answer.Text())
	// Output: response hello Ann, from greeter
}
