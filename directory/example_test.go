package directory_test

import (
	"context"
	"fmt"
	"log"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
)

// Add an agent, get the change through a watcher, and find the agent by its address.
func Example() {
	ctx := context.Background()
	d, err := directory.Open(ctx, directory.Options{}) // without State: in memory
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	stop := d.Watch(func(c directory.Change) { fmt.Println("new:", c.New.Name) })
	defer stop()

	weather := parley.Agent{Name: "weather", Identities: []parley.Identity{
		{Protocol: "samvad", ID: "agent://weather.corp", URL: "https://weather.corp/samvad"}}}
	if _, err := d.Put(ctx, weather, directory.FromOperator); err != nil {
		log.Fatal(err)
	}
	e, err := d.Resolve("agent://weather.corp")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(e.Name, "speaks", e.Native())
	_, err = d.Resolve("nobody")
	fmt.Println(err)
	// Output:
	// new: weather
	// weather speaks [samvad]
	// no such agent: "nobody"
}
