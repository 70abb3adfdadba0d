package console_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/parley-hub/parley/node"
)

// A hub with an admin listener has the console at /console/. The link lets one browser in.
func Example() {
	dir, err := os.MkdirTemp("", "parley-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	n, err := node.Open(ctx, node.Config{Data: dir, Listen: node.Listen{Admin: "127.0.0.1:0"}})
	if err != nil {
		log.Fatal(err)
	}
	defer n.Close(ctx)
	if err := n.Start(ctx); err != nil {
		log.Fatal(err)
	}
	link, err := n.ConsoleLink()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(strings.Contains(link, "/console/enter?once="))
	// Output: true
}
