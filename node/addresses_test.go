package node

import (
	"fmt"
	"testing"
)

// TestAddressesAreATable: a program that prints the addresses shows a table, and nothing of Go.
func TestAddressesAreATable(t *testing.T) {
	t.Parallel()
	a := Addresses{Hub: "hub-1", HTTP: "http://127.0.0.1:8080", Local: "http://127.0.0.1:8080",
		Admin: "http://127.0.0.1:9090", Agents: map[string]map[string]string{"weather": {"samvad": "http://127.0.0.1:8080/agents/weather",
			"agh": "local/weather"}, "me": {"api": "me"}}}
	const want = `hub hub-1
  protocols  http://127.0.0.1:8080
  admin      http://127.0.0.1:9090
  me         api     me
  weather    agh     local/weather
             samvad  http://127.0.0.1:8080/agents/weather`
	if got := fmt.Sprint(a); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := fmt.Sprint(Addresses{Hub: "hub-1"}); got != "hub hub-1" {
		t.Errorf("%q", got)
	}
	// The announcement holds a token, which is not printed.
	if got := fmt.Sprint(Announcement{Addresses: a, Token: "secret"}); got != want {
		t.Errorf("%q", got)
	}
}
