package aghnats

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// A connection that does not say who it is is cut.
func TestSilentConnection(t *testing.T) {
	f := serve(t, func(g *Gateway) { g.AuthWait = 20 * time.Millisecond })
	silent, err := net.Dial("tcp", f.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	said, _ := io.ReadAll(silent) // cut in one way or another
	if !strings.Contains(string(said), "Authentication Timeout") {
		t.Errorf("it heard %q", said)
	}
}

// There are so many connections and no more; the gateway's own does not count.
func TestConnectionsAreBounded(t *testing.T) {
	f := serve(t, func(g *Gateway) { g.MaxConns = 2 })
	f.alice(t)
	f.bob(t)
	if nc, err := nats.Connect("nats://"+f.Addr(), nats.Token("te")); err == nil {
		nc.Close()
		t.Error("a third connection, where two may be")
	}
}
