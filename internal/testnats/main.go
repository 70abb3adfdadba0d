// Command testnats is a NATS server with JetStream for tests that kill it: the
// real server in a process of its own.
//
// It writes one line, "ready", when it serves clients and has caught up with its
// cluster. It ends when its standard input does, so that it outlives no test.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "testnats:", err)
		os.Exit(1)
	}
}

// patience is how long a server may take to find its cluster.
const patience = 2 * time.Minute

func run() error {
	name := flag.String("name", "", "of the server")
	dir := flag.String("dir", "", "directory of its streams")
	port := flag.Int("port", 0, "for clients")
	route := flag.Int("route", 0, "port for the other servers")
	routes := flag.String("routes", "", "URLs of all servers of the cluster, by commas")
	flag.Parse()
	const host = "127.0.0.1"
	o := &server.Options{
		ServerName: *name, Host: host, Port: *port, NoSigs: true, MaxPayload: 8 << 20,
		JetStream: true, StoreDir: *dir, JetStreamMaxStore: 1 << 40, JetStreamMaxMemory: 1 << 40,
		// Clients use only the given address, not those of other servers.
		Cluster: server.ClusterOpts{Name: "test", Host: host, Port: *route, NoAdvertise: true},
	}
	for _, r := range strings.Split(*routes, ",") {
		u, err := url.Parse(r)
		if err != nil {
			return err
		}
		o.Routes = append(o.Routes, u)
	}
	s, err := server.NewServer(o)
	if err != nil {
		return err
	}
	s.Start()
	defer s.WaitForShutdown()
	defer s.Shutdown()
	if !s.ReadyForConnections(patience) {
		return errors.New("it does not listen")
	}
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for !s.JetStreamIsCurrent() || !led(s) {
		select {
		case <-look.C:
		case <-ctx.Done():
			return errors.New("it has not caught up with its cluster")
		}
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// led reports whether the cluster has a leader.
func led(s *server.Server) bool {
	z, err := s.Jsz(&server.JSzOptions{})
	return err == nil && z.Meta != nil && z.Meta.Leader != ""
}
