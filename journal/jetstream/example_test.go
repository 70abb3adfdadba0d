package jetstream_test

import (
	"context"
	"log"

	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/jetstream"
)

// Open the shared journal of several hubs on a NATS cluster.
func Example() {
	ctx := context.Background()
	s, err := jetstream.Open(ctx, jetstream.Config{
		URL:     "nats://n1.corp:4222,nats://n2.corp:4222,nats://n3.corp:4222",
		Options: []nats.Option{nats.UserCredentials("/etc/parley/hub.creds")},
	})
	if err != nil {
		log.Fatal(err)
	}
	j, err := journal.Open(ctx, journal.Config{Store: s, Node: "hub-1"})
	if err != nil {
		log.Fatal(err)
	}
	defer j.Close()
	log.Print(j.Promise())
}
