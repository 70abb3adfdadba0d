package aghnats

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// A connection that does not authenticate is closed.
func TestSilentConnection(t *testing.T) {
	f := serve(t, func(g *Gateway) { g.AuthWait = 20 * time.Millisecond })
	silent, err := net.Dial("tcp", f.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	said, _ := io.ReadAll(silent) // the error depends on how the server closes it
	if !strings.Contains(string(said), "Authentication Timeout") {
		t.Errorf("it received %q", said)
	}
}

// MaxConns bounds the connections; the gateway's own does not count.
func TestConnectionsAreBounded(t *testing.T) {
	f := serve(t, func(g *Gateway) { g.MaxConns = 2 })
	f.alice(t)
	f.bob(t)
	if nc, err := nats.Connect("nats://"+f.Addr(), nats.Token("te")); err == nil {
		nc.Close()
		t.Error("a third connection succeeded with MaxConns 2")
	}
}
