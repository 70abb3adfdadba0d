package a2a

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	pb03 "github.com/a2aproject/a2a-go/a2apb"
	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	pb1 "github.com/a2aproject/a2a-go/v2/a2apb/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/policy"
)

// dial serves gRPC in memory.
func (w *serving) dial(t *testing.T) *grpc.ClientConn {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	s := w.GRPC()
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	c, err := grpc.NewClient("passthrough:///hub.example", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return c
}

// refused gives code, ErrorInfo and the field of BadRequest.
func refused(t *testing.T, err error) (code codes.Code, info *errdetails.ErrorInfo, field string) {
	t.Helper()
	s, _ := status.FromError(err)
	info = &errdetails.ErrorInfo{}
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			info = d
		case *errdetails.BadRequest:
			field = d.GetFieldViolations()[0].GetField()
		}
	}
	return s.Code(), info, field
}

func hello(tenant string) *pb1.SendMessageRequest {
	return &pb1.SendMessageRequest{Tenant: tenant, Message: &pb1.Message{MessageId: "m1", Role: pb1.Role_ROLE_USER,
		Parts: []*pb1.Part{{Content: &pb1.Part_Text{Text: "hi"}}}}}
}

// TestGRPC: both versions, of one server for all agents.
func TestGRPC(t *testing.T) {
	t.Parallel()
	w := newServing(t, func(c *Config) { c.Callers, c.Root = fakeCallers{}, "alice" })
	w.fake.task = fullTask()
	w.fake.result = w.fake.task
	w.fake.events = yields(nil, w.fake.task, update(protocol.TaskStateWorking), wirePiece(true))
	conn := w.dial(t)
	new1, old := pb1.NewA2AServiceClient(conn), pb03.NewA2AServiceClient(conn)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer bob", "a2a-version", "1.0",
		"a2a-extensions", ExtensionURI)
	r, err := new1.SendMessage(ctx, hello("crew/echo"))
	if err != nil {
		t.Fatal(err)
	}
	if c := w.fake.call; c.agent != "crew/echo" || c.caller.Name != "bob" || c.version != V1 || c.params != nil ||
		len(c.extensions) != 1 || c.remote == "" || c.header.Get("A2a-Version") != V1 {
		t.Errorf("call %+v", c)
	}
	parts := r.GetTask().GetHistory()[0].GetParts()
	if n := parts[3].GetData().GetStructValue().GetFields()["n"].GetNumberValue(); n != 12345678901234567890 {
		t.Errorf("data %v", parts[3])
	}
	if parts[4].GetText() != "[1.10]" || parts[4].GetMediaType() != "application/json" {
		t.Errorf("data that is no object: %v", parts[4])
	}
	if _, ok := w.fake.task.History[0].Parts[4].Data().(json.RawMessage); !ok {
		t.Error("the task of the methods was changed")
	}
	listed := hello("alice")
	list, err := structpb.NewList([]any{1, "a"})
	if err != nil {
		t.Fatal(err)
	}
	listed.Message.Parts[0].Content = &pb1.Part_Data{Data: structpb.NewListValue(list)}
	if _, err := new1.SendMessage(ctx, listed); err != nil {
		t.Fatal(err)
	}
	if m, ok := w.fake.request.(*protocol.SendMessageRequest); !ok || m.Message.Parts[0].Text() != `[1,"a"]` ||
		m.Message.Parts[0].MediaType != "application/json" {
		t.Errorf("a list came in as %+v", w.fake.request)
	}
	listed.Message.Parts[0].Content = &pb1.Part_Data{}
	if _, err := new1.SendMessage(ctx, listed); status.Code(err) != codes.InvalidArgument {
		t.Errorf("data without a value: %v", err)
	}
	// Methods whose request the SDK hands on without tenant, and streams.
	if _, err := new1.CancelTask(ctx, &pb1.CancelTaskRequest{Tenant: "crew/echo", Id: "T"}); err != nil ||
		w.fake.call.agent != "crew/echo" {
		t.Errorf("%+v, %v", w.fake.call, err)
	}
	s, err := new1.SubscribeToTask(ctx, &pb1.SubscribeToTaskRequest{Tenant: "crew/echo", Id: "T"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if _, err = s.Recv(); err != nil {
			t.Fatalf("event %d: %v", i, err)
		}
	}
	if _, err := s.Recv(); !errors.Is(err, io.EOF) || w.fake.call.agent != "crew/echo" {
		t.Errorf("%+v, %v", w.fake.call, err)
	}
	if _, err := new1.ListTasks(ctx, &pb1.ListTasksRequest{}); err != nil || w.fake.call.agent != "alice" {
		t.Errorf("without tenant: %+v, %v", w.fake.call, err)
	}
	ctx = metadata.AppendToOutgoingContext(t.Context(), agentKey, "crew/echo")
	if _, err := old.GetTask(ctx, &pb03.GetTaskRequest{Name: "tasks/T"}); err != nil || w.fake.call.version != V03 ||
		w.fake.call.agent != "crew/echo" || !w.fake.call.caller.Guest {
		t.Errorf("0.3: %+v, %v", w.fake.call, err)
	}
}

// TestGRPCErrors: they come from the same table, with a reference and without internal texts.
func TestGRPCErrors(t *testing.T) {
	t.Parallel()
	w := newServing(t, func(c *Config) { c.Callers, c.Streams = fakeCallers{}, 1 })
	conn := w.dial(t)
	c := pb1.NewA2AServiceClient(conn)
	with := func(pairs ...string) context.Context { return metadata.AppendToOutgoingContext(t.Context(), pairs...) }
	send := func(ctx context.Context, r *pb1.SendMessageRequest) error {
		_, err := c.SendMessage(ctx, r)
		return err
	}
	noParts, boss := hello("alice"), hello("alice")
	noParts.Message.Parts, boss.Message.Role = nil, pb1.Role_ROLE_AGENT
	two := hello("alice")
	two.Message.Parts[0].Content = nil
	for name, x := range map[string]struct {
		ctx    context.Context
		r      *pb1.SendMessageRequest
		err    error
		code   codes.Code
		reason string
		field  string
	}{
		"unknown agent": {with(), hello("nobody"), nil, codes.NotFound, "NOT_FOUND", ""},
		"not exposed":   {with(), hello("hidden"), nil, codes.NotFound, "NOT_FOUND", ""},
		"no agent":      {with(), hello(""), nil, codes.NotFound, "NOT_FOUND", ""},
		"version": {with("a2a-version", "9.9"), hello("alice"), nil, codes.Unimplemented,
			"VERSION_NOT_SUPPORTED", ""},
		"version of 0.3": {with("a2a-version", "0.3"), hello("alice"), nil, codes.Unimplemented,
			"VERSION_NOT_SUPPORTED", ""},
		"guest": {with(), hello("closed"), nil, codes.Unauthenticated, "UNAUTHENTICATED", ""},
		"wrong token": {with("authorization", "Bearer x"), hello("alice"), nil, codes.Unauthenticated,
			"UNAUTHENTICATED", ""},
		"issuer is away": {with("authorization", "Bearer wait"), hello("alice"), nil, codes.Unavailable,
			"UNAVAILABLE", ""},
		"no message": {with(), &pb1.SendMessageRequest{Tenant: "alice"}, nil, codes.InvalidArgument,
			"INVALID_PARAMS", ""},
		"no parts":     {with(), noParts, nil, codes.InvalidArgument, "INVALID_PARAMS", "message.parts"},
		"role":         {with(), boss, nil, codes.InvalidArgument, "INVALID_PARAMS", "message.role"},
		"empty part":   {with(), two, nil, codes.InvalidArgument, "INVALID_PARAMS", ""},
		"unknown task": {with(), hello("alice"), protocol.ErrTaskNotFound, codes.NotFound, "TASK_NOT_FOUND", ""},
		"internal":     {with(), hello("alice"), errors.New("secret"), codes.Internal, "INTERNAL_ERROR", ""},
		"status of another": {with(), hello("alice"),
			status.Error(codes.Internal, "secret"), codes.Internal, "INTERNAL_ERROR", ""},
	} {
		w.fake.err = x.err
		err := send(x.ctx, x.r)
		code, info, field := refused(t, err)
		if code != x.code || info.GetReason() != x.reason || x.field != "" && field != x.field {
			t.Errorf("%s: %v %v %q", name, err, info, field)
			continue
		}
		if _, ok := w.hub.Explain(info.GetMetadata()["ref"]); !ok || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, %v", name, err, info)
		}
	}
	w.fake.err = nil
	// A panic ends the request alone.
	w.fake.events = func(context.Context) eventSeq { panic("secret") }
	s, err := c.SubscribeToTask(with(), &pb1.SubscribeToTaskRequest{Tenant: "alice", Id: "T"})
	if err == nil {
		_, err = s.Recv()
	}
	if code, _, _ := refused(t, err); code != codes.Internal || strings.Contains(err.Error(), "secret") {
		t.Errorf("panic: %v", err)
	}
	// One stream is open; EndStreams ends it.
	w.fake.events = func(ctx context.Context) eventSeq {
		return func(yield func(protocol.Event, error) bool) {
			yield(w.fake.task, nil)
			<-ctx.Done()
			yield(nil, ctx.Err())
		}
	}
	s, err = c.SubscribeToTask(with(), &pb1.SubscribeToTaskRequest{Tenant: "alice", Id: "T"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = s.Recv(); err != nil {
		t.Fatal(err)
	}
	second := status.Code(func() error {
		s, err := pb1.NewA2AServiceClient(w.dial(t)).SubscribeToTask(with(),
			&pb1.SubscribeToTaskRequest{Tenant: "alice", Id: "T"})
		if err == nil {
			_, err = s.Recv()
		}
		return err
	}())
	if second != codes.ResourceExhausted {
		t.Errorf("second stream: %v", second)
	}
	w.EndStreams()
	if _, err := s.Recv(); err == nil {
		t.Error("the stream goes on")
	}
}

// session makes every caller bob, in a session.
type session struct{ fakeCallers }

func (session) Identify(context.Context, string, http.Header, *tls.ConnectionState, string) (bridge.Caller, error) {
	return bridge.Caller{Name: "bob", Peer: "token bob", Verdict: parley.Verdict{Assurance: parley.Session}}, nil
}

// A gRPC stream that the hub ends before the task's end is not complete: it ends with an error.
func TestEndStreamsOfGRPC(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Callers = session{} })
	g := make(gate, 1)
	w.handle("slow", g.handler)
	c := pb1.NewA2AServiceClient((&serving{Binding: w.node.Binding}).dial(t))
	s, err := c.SendStreamingMessage(t.Context(), hello("slow"))
	w.must(err)
	first, err := s.Recv()
	w.must(err)
	w.node.EndStreams()
	for err == nil {
		_, err = s.Recv()
	}
	if code, info, _ := refused(t, err); code != codes.Unavailable || info.GetReason() != "UNAVAILABLE" {
		t.Errorf("the stream ends with %v", err)
	}
	g <- "reply done"
	w.eventually("the task does not end", func() bool {
		got, err := w.get("bob", "slow", protocol.TaskID(first.GetTask().GetId()))
		return err == nil && got.Status.State.Terminal()
	})
}

// A gRPC guest is counted by its source, as an HTTP guest is.
func TestSourceOfAGRPCGuest(t *testing.T) {
	t.Parallel()
	w := newServing(t)
	for address, want := range map[string]string{"192.0.2.7": "192.0.2.7", "2001:db8::7": "2001:db8::/64"} {
		ctx := grpcpeer.NewContext(t.Context(), &grpcpeer.Peer{Addr: &net.TCPAddr{IP: net.ParseIP(address), Port: 99}})
		ctx, err := w.admitGRPC(ctx, "/lf.a2a.v1.A2AService/SendMessage", hello("alice"))
		if err != nil {
			t.Fatal(err)
		}
		if got := policy.SourceOf(ctx); got != want {
			t.Errorf("the source of %s is %q", address, got)
		}
	}
}
