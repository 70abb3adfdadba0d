package fixedport

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// Ports are of one process alone, and of one Take.
func TestTake(t *testing.T) {
	const n = 500 // without marks, some of 16,000 would be taken twice
	if os.Getenv("FIXEDPORT_TAKE") != "" {
		for range n {
			port, err := Take()
			if err != nil {
				t.Fatal(err)
			}
			fmt.Println("port", port)
		}
		return
	}
	if !hasMarks() {
		t.Skip("this system has one loopback address alone")
	}
	seen := map[int]bool{}
	for range n {
		port, err := Take()
		if err != nil || seen[port] {
			t.Fatal(port, err)
		}
		seen[port] = true
	}
	other := exec.Command(os.Args[0], "-test.run=^TestTake$")
	other.Env = append(os.Environ(), "FIXEDPORT_TAKE=1")
	out, err := other.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	found := 0
	for line := range strings.Lines(string(out)) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), "port "); ok {
			port, err := strconv.Atoi(text)
			if err != nil || seen[port] {
				t.Errorf("both have %s: %v", text, err)
			}
			found++
		}
	}
	if found != n {
		t.Errorf("%d ports", found)
	}
	// A port is free to listen on, again and again.
	for range 2 {
		for port := range seen {
			l, err := net.Listen("tcp", at("127.0.0.1", port))
			if err != nil {
				t.Fatal(err)
			}
			l.Close()
			break
		}
	}
}
