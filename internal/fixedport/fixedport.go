// Package fixedport finds ports for listeners that are opened later, or shut and opened again, such as those of a hub
// that a test kills and starts again, and ports at which nobody listens.
//
//	port, err := fixedport.Take()
package fixedport

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// The range is below the ports that systems give out themselves.
const first, last = 15000, 30999

// Take gives a port of 127.0.0.1 that is free, and that no later Take gives: not of this process, and on systems that
// have all of 127.0.0.0/8 not of any other, as long as this process lives. It does not listen on the port. A program
// that listens on all addresses cannot have it.
func Take() (int, error) {
	mu.Lock()
	defer mu.Unlock()
	for range 500 {
		port := first + rand.IntN(last-first+1)
		if _, ok := taken[port]; ok {
			continue
		}
		mark, err := net.Listen("tcp", at("127.0.0.2", port)) // this is how other processes know
		if err != nil && hasMarks() {
			continue
		}
		if free(at("127.0.0.1", port)) {
			taken[port] = mark
			return port, nil
		}
		if mark != nil {
			_ = mark.Close() // nothing was accepted
		}
	}
	return 0, errors.New("fixedport: no port is free")
}

// Address is Take for a test: 127.0.0.1 and the port. Until the test listens there, connections are refused.
func Address(t interface {
	Helper()
	Fatal(args ...any)
}) string {
	t.Helper()
	port, err := Take()
	if err != nil {
		t.Fatal(err)
	}
	return at("127.0.0.1", port)
}

var (
	mu    sync.Mutex
	taken = map[int]net.Listener{} // the marks, which stay open; nil where there are none
)

// hasMarks reports whether listeners at 127.0.0.2 can say what is taken.
var hasMarks = sync.OnceValue(func() bool { return free(at("127.0.0.2", 0)) })

func at(host string, port int) string { return fmt.Sprintf("%s:%d", host, port) }

func free(address string) bool {
	l, err := net.Listen("tcp", address)
	return err == nil && l.Close() == nil
}
