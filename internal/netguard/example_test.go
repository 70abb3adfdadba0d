package netguard_test

import (
	"errors"
	"fmt"
	"log"

	"github.com/parley-hub/parley/internal/netguard"
)

func Example() {
	allow, err := netguard.ParseAllow([]string{"10.20.0.0/16"})
	if err != nil {
		log.Fatal(err)
	}
	client := (&netguard.Guard{Allow: allow, Advice: netguard.HubAdvice}).Client(netguard.Options{})
	_, err = client.Get("http://169.254.169.254/latest/meta-data")
	if blocked, ok := errors.AsType[*netguard.BlockedError](err); ok {
		fmt.Println(blocked.Range.Name)
		fmt.Println(blocked)
	}
	// Output:
	// link-local
	// address 169.254.169.254 is in the link-local range 169.254.0.0/16; to allow it add to parley.toml: [network] allow = ["169.254.169.254/32"]
}
