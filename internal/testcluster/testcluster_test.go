package testcluster

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// TestCluster: a stream with three replicas survives the loss of its leader, and a
// server that comes back serves again.
func TestCluster(t *testing.T) {
	c := Start(t, 3)
	nc, err := nats.Connect(strings.Join(c.URLs, ","), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	stream, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "s", Subjects: []string{"s"}, Replicas: 3})
	if err != nil {
		t.Fatal(err)
	}
	var last uint64
	publish := func() {
		t.Helper()
		for {
			// What a server took with it when it went is answered by nobody.
			try, stop := context.WithTimeout(ctx, time.Second/2)
			ack, err := js.Publish(try, "s", []byte("x"))
			stop()
			if err == nil {
				if ack.Sequence <= last {
					t.Fatalf("sequence %d after %d", ack.Sequence, last)
				}
				last = ack.Sequence
				return
			}
			if ctx.Err() != nil {
				t.Fatal(err)
			}
		}
	}
	publish()
	leader := 0
	for c.Server(leader).Name() != stream.CachedInfo().Cluster.Leader {
		leader++
	}
	c.Kill(leader)
	if c.Server(leader) != nil {
		t.Errorf("server %d is there after it was killed", leader)
	}
	publish()
	c.Restart(leader)
	publish()
}

// TestSingle: one server is no cluster, but serves.
func TestSingle(t *testing.T) {
	c := Start(t, 1)
	nc, err := nats.Connect(c.URLs[0])
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if nc.ConnectedClusterName() != "" {
		t.Error("a single server names a cluster")
	}
}
