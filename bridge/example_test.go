package bridge_test

import (
	"fmt"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
)

// What a message to several agents keeps and loses on its way to a SAMVAD agent.
func Example() {
	fmt.Println(bridge.Look("agh", bridge.SAMVAD, "text").Fate)
	m := &parley.Message{Kind: parley.Notice, From: "ann", To: "bob", Audience: []string{"bob", "carol"},
		Parts: []parley.Part{parley.Text("hello")}, Origin: parley.Origin{Protocol: "agh"}}
	for _, loss := range bridge.Losses(bridge.SAMVAD, m, "bob") {
		fmt.Println(loss.Field, "-", loss.Reason)
	}
	// Output:
	// as
	// Audience - SAMVAD has one recipient
}
