package node

import (
	"context"
	"strings"
	"testing"

	pb "github.com/a2aproject/a2a-go/v2/a2apb/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/parley-hub/parley"
)

// The connection of a proved gRPC caller is no guest's, and one with a stream at work stays.
func TestGRPCConnections(t *testing.T) {
	n := running(t, Config{A2A: A2A{GRPC: "127.0.0.1:0"}})
	release := make(chan struct{})
	t.Cleanup(func() { close(release) }) // a hub that closes waits for handlers
	err := n.Handle(parley.Agent{Name: "slow", Exposed: parley.Everywhere},
		parley.RawSkill("say", func(context.Context, *parley.Message, parley.Replier) error {
			<-release
			return nil
		}))
	if err != nil {
		t.Fatal(err)
	}
	dial := func() (pb.A2AServiceClient, *conn) {
		t.Helper()
		before := map[*conn]bool{}
		for _, c := range allConns(n.conns) {
			before[c] = true
		}
		c, err := grpc.NewClient(strings.TrimPrefix(n.Addresses().A2A, "grpc://"),
			grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		client := pb.NewA2AServiceClient(c)
		// It has no credentials: the answer shows that the connection is there.
		if _, err := client.ListTasks(t.Context(), &pb.ListTasksRequest{Tenant: "slow"}); err == nil {
			t.Fatal("a guest lists tasks")
		}
		for _, c := range allConns(n.conns) {
			if !before[c] {
				return client, c
			}
		}
		t.Fatal("no connection")
		return nil, nil
	}
	guest := func(c *conn) bool {
		n.conns.mu.Lock()
		defer n.conns.mu.Unlock()
		return c.list != n.conns.vouched
	}
	client, connection := dial()
	if !guest(connection) {
		t.Error("the connection of a guest is vouched for")
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+caller(t, n, "slow", "alice").token)
	stream, err := client.SendStreamingMessage(ctx, &pb.SendMessageRequest{Tenant: "slow", Message: &pb.Message{
		MessageId: "m", Role: pb.Role_ROLE_USER, Parts: []*pb.Part{{Content: &pb.Part_Text{Text: "hi"}}}}})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	if guest(connection) {
		t.Error("the connection of a proved caller is a guest's")
	}
	n.conns.mu.Lock()
	busy := connection.busy
	n.conns.mu.Unlock()
	if busy != 1 {
		t.Errorf("%d requests are at work", busy)
	}
}

func allConns(s *conns) (out []*conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for e := s.guest.Front(); e != nil; e = e.Next() {
		out = append(out, e.Value.(*conn))
	}
	for e := s.neighbor.Front(); e != nil; e = e.Next() {
		out = append(out, e.Value.(*conn))
	}
	return out
}
