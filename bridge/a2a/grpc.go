package a2a

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	grpc03 "github.com/a2aproject/a2a-go/v2/a2agrpc/v0"
	grpc1 "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/source"
	"github.com/parley-hub/parley/policy"
)

// gRPC (A2A 1.0, section 10). One server has all agents. A request names its agent by
// tenant, as the agent's card says; else by the metadata parley-agent; else the host names
// it, as it does for cards.
//
// The service of each version is a package of protocol buffers of its own. So a request
// without A2A-Version has the version of its service.

// agentKey is the metadata that names an agent: requests of 0.3 have no tenant.
const agentKey = "parley-agent"

// services are the versions by the beginning of a method's full name.
var services = map[string]string{"/lf.a2a.v1.": V1, "/a2a.v1.": V03}

// GRPC makes a server for the agents. The caller serves its listener, and stops it.
func (b *Binding) GRPC(opts ...grpc.ServerOption) *grpc.Server {
	all := []grpc.ServerOption{grpc.MaxRecvMsgSize(int(b.c.MaxBody)), grpc.MaxConcurrentStreams(uint32(b.c.Streams)),
		grpc.MaxHeaderListSize(32 << 10), grpc.ChainUnaryInterceptor(b.unaryGRPC),
		grpc.ChainStreamInterceptor(b.streamGRPC)}
	s := grpc.NewServer(append(all, opts...)...)
	h := grpcMethods{b, b.methods}
	grpc1.NewHandler(h).RegisterWith(s)
	grpc03.NewHandler(h).RegisterWith(s)
	return s
}

func (b *Binding) unaryGRPC(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (
	answer any, err error) {
	defer b.recoverGRPC(ctx, &err)
	ctx, err = b.admitGRPC(ctx, info.FullMethod, request)
	if err != nil {
		return nil, err
	}
	answer, err = handle(ctx, request)
	return answer, b.grpcFailure(ctx, "decode", err)
}

// A callStream is a stream of gRPC whose caller is admitted when its request comes.
type callStream struct {
	grpc.ServerStream
	b      *Binding
	method string
	ctx    context.Context
	done   []func()
}

func (s *callStream) Context() context.Context { return s.ctx }

func (s *callStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	ctx, err := s.b.admitGRPC(s.ctx, s.method, m)
	if err != nil {
		return err
	}
	release, err := s.b.opened.take(ctx, &callOf(ctx).caller)
	if err != nil {
		return s.b.grpcFailure(ctx, "admit", err)
	}
	s.done = append(s.done, release)
	ctx, cancel, err := s.b.streamContext(ctx, &callOf(ctx).caller)
	if err != nil {
		return s.b.grpcFailure(s.ctx, "admit", err)
	}
	s.done = append(s.done, cancel)
	s.ctx = ctx
	return nil
}

func (b *Binding) streamGRPC(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	handle grpc.StreamHandler) (err error) {
	s := &callStream{ServerStream: stream, b: b, method: info.FullMethod, ctx: stream.Context()}
	defer func() {
		for _, f := range s.done {
			f()
		}
	}()
	defer b.recoverGRPC(s.ctx, &err)
	err = handle(server, s)
	return b.grpcFailure(s.ctx, "decode", err)
}

// recoverGRPC makes a panic an internal error: gRPC would end the process.
func (b *Binding) recoverGRPC(ctx context.Context, err *error) {
	if p := recover(); p != nil {
		*err = b.grpcFailure(ctx, "admit", fmt.Errorf("panic: %v", p))
	}
}

// admitGRPC finds the agent, the version and the caller of a request. Its errors are those
// of gRPC.
func (b *Binding) admitGRPC(ctx context.Context, method string, request any) (context.Context, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	c := &call{agent: agentGRPC(b, md, request), header: http.Header{}}
	for k, v := range md {
		if !strings.HasPrefix(k, ":") && !strings.HasSuffix(k, "-bin") {
			c.header[http.CanonicalHeaderKey(k)] = v
		}
	}
	c.extensions = namedExtensions(append(slices.Clone(md.Get(protocol.SvcParamExtensions)),
		md.Get("X-"+protocol.SvcParamExtensions)...))
	var state *tls.ConnectionState
	if p, ok := grpcpeer.FromContext(ctx); ok {
		if p.Addr != nil {
			c.remote = p.Addr.String()
		}
		if t, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			state = &t.State
		}
	}
	for prefix, v := range services {
		if strings.HasPrefix(method, prefix) {
			c.version = v
		}
	}
	if policy.SourceOf(ctx) == "" { // gRPC's server sets no source
		ctx = policy.WithCaller(ctx, policy.NewCaller(policy.Source(c.remote), nil))
	}
	ctx = withCall(ctx, c)
	named := md.Get(protocol.SvcParamVersion)
	if strings.Join(named, "") == "" {
		named = []string{c.version}
	}
	if _, err := chosenVersion(named, nil, c.version); err != nil {
		return nil, b.grpcFailure(ctx, "decode", err)
	}
	if !b.serves(c.agent) {
		return nil, b.grpcFailure(ctx, "decode", errNoEndpoint)
	}
	var err error
	if c.caller, err = b.identify(ctx, c.agent, c.header, state, c.remote); err != nil {
		return nil, b.grpcFailure(ctx, "verify", err)
	}
	if err := keepData(request); err != nil {
		return nil, b.grpcFailure(ctx, "decode", err)
	}
	return ctx, nil
}

func agentGRPC(b *Binding, md metadata.MD, request any) string {
	if t, ok := request.(interface{ GetTenant() string }); ok && t.GetTenant() != "" {
		return t.GetTenant()
	}
	if named := md.Get(agentKey); len(named) == 1 {
		return named[0]
	}
	host := ""
	if a := md.Get(":authority"); len(a) == 1 {
		host = a[0]
	}
	return b.byHost(host)
}

// grpcFailure makes gRPC's form of an error, with a reference. It leaves what has that form
// already. The SDK's own errors hold internal texts: their code alone is told.
func (b *Binding) grpcFailure(ctx context.Context, step string, err error) error {
	if err == nil {
		return nil
	}
	if s, ok := status.FromError(err); ok {
		if slices.ContainsFunc(s.Details(), func(d any) bool {
			i, ok := d.(*errdetails.ErrorInfo)
			return ok && i.GetDomain() == protocol.ProtocolDomain
		}) {
			return err
		}
		switch cause := errors.New(s.Message()); s.Code() {
		case codes.InvalidArgument:
			err = protocol.ErrInvalidParams
		case codes.Unimplemented:
			err = protocol.ErrMethodNotFound
		case codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.ResourceExhausted:
			return err // the client is gone, or sent too much
		default:
			err = cause
		}
	}
	r := hub.Refusal{Step: step}
	if c := callOf(ctx); c != nil {
		r.Source, r.To, r.Claim, r.Verdict = source.Host(c.remote), c.agent, c.caller.Name, c.caller.Verdict
	}
	f := toError(err)
	b.note(f, r)
	return f.grpcError()
}

// grpcMethods gives errors in gRPC's form, which the SDK leaves as they are.
type grpcMethods struct {
	b    *Binding
	next a2asrv.RequestHandler
}

var _ a2asrv.RequestHandler = grpcMethods{}

func told[Q, R any](b *Binding, ctx context.Context, q Q, do func(context.Context, Q) (R, error)) (R, error) {
	r, err := do(ctx, q)
	return r, b.grpcFailure(ctx, "admit", err)
}

func toldEach(b *Binding, ctx context.Context, seq eventSeq) eventSeq {
	return func(yield func(protocol.Event, error) bool) {
		for e, err := range seq {
			if err == nil {
				e, err = plainEvent(e)
			}
			if err != nil {
				err = endedBy(ctx, err)
			}
			if !yield(e, b.grpcFailure(ctx, "admit", err)) {
				return
			}
		}
		if err := endedBy(ctx, nil); err != nil { // else the stream would look complete to the client
			yield(nil, b.grpcFailure(ctx, "stream", err))
		}
	}
}

// SendMessage implements a2asrv.RequestHandler.
func (h grpcMethods) SendMessage(ctx context.Context, r *protocol.SendMessageRequest) (
	protocol.SendMessageResult, error) {
	return told(h.b, ctx, r, func(ctx context.Context, r *protocol.SendMessageRequest) (
		protocol.SendMessageResult, error) {
		e, err := h.next.SendMessage(ctx, r)
		if err != nil {
			return nil, err
		}
		out, err := plainEvent(e)
		if err != nil {
			return nil, err
		}
		result, ok := out.(protocol.SendMessageResult)
		if !ok {
			return nil, fmt.Errorf("a result of type %T", out)
		}
		return result, nil
	})
}

// plainly makes the task of a method plain.
func plainly[Q any](do func(context.Context, Q) (*protocol.Task, error)) func(context.Context, Q) (
	*protocol.Task, error) {
	return func(ctx context.Context, q Q) (*protocol.Task, error) {
		t, err := do(ctx, q)
		if err != nil {
			return nil, err
		}
		return plainTask(t)
	}
}

// SendStreamingMessage implements a2asrv.RequestHandler.
func (h grpcMethods) SendStreamingMessage(ctx context.Context, r *protocol.SendMessageRequest) eventSeq {
	return toldEach(h.b, ctx, h.next.SendStreamingMessage(ctx, r))
}

// GetTask implements a2asrv.RequestHandler.
func (h grpcMethods) GetTask(ctx context.Context, r *protocol.GetTaskRequest) (*protocol.Task, error) {
	return told(h.b, ctx, r, plainly(h.next.GetTask))
}

// ListTasks implements a2asrv.RequestHandler.
func (h grpcMethods) ListTasks(ctx context.Context, r *protocol.ListTasksRequest) (*protocol.ListTasksResponse, error) {
	return told(h.b, ctx, r, func(ctx context.Context, r *protocol.ListTasksRequest) (*protocol.ListTasksResponse, error) {
		found, err := h.next.ListTasks(ctx, r)
		if err != nil {
			return nil, err
		}
		out := *found
		out.Tasks = make([]*protocol.Task, len(found.Tasks))
		for i, t := range found.Tasks {
			if out.Tasks[i], err = plainTask(t); err != nil {
				return nil, err
			}
		}
		return &out, nil
	})
}

// CancelTask implements a2asrv.RequestHandler.
func (h grpcMethods) CancelTask(ctx context.Context, r *protocol.CancelTaskRequest) (*protocol.Task, error) {
	return told(h.b, ctx, r, plainly(h.next.CancelTask))
}

// SubscribeToTask implements a2asrv.RequestHandler.
func (h grpcMethods) SubscribeToTask(ctx context.Context, r *protocol.SubscribeToTaskRequest) eventSeq {
	return toldEach(h.b, ctx, h.next.SubscribeToTask(ctx, r))
}

// CreateTaskPushConfig implements a2asrv.RequestHandler.
func (h grpcMethods) CreateTaskPushConfig(ctx context.Context, r *protocol.PushConfig) (*protocol.PushConfig, error) {
	return told(h.b, ctx, r, h.next.CreateTaskPushConfig)
}

// GetTaskPushConfig implements a2asrv.RequestHandler.
func (h grpcMethods) GetTaskPushConfig(ctx context.Context, r *protocol.GetTaskPushConfigRequest) (
	*protocol.PushConfig, error) {
	return told(h.b, ctx, r, h.next.GetTaskPushConfig)
}

// ListTaskPushConfigs implements a2asrv.RequestHandler.
func (h grpcMethods) ListTaskPushConfigs(ctx context.Context, r *protocol.ListTaskPushConfigRequest) (
	*protocol.ListTaskPushConfigResponse, error) {
	return told(h.b, ctx, r, h.next.ListTaskPushConfigs)
}

// DeleteTaskPushConfig implements a2asrv.RequestHandler.
func (h grpcMethods) DeleteTaskPushConfig(ctx context.Context, r *protocol.DeleteTaskPushConfigRequest) error {
	return h.b.grpcFailure(ctx, "admit", h.next.DeleteTaskPushConfig(ctx, r))
}

// GetExtendedAgentCard implements a2asrv.RequestHandler.
func (h grpcMethods) GetExtendedAgentCard(ctx context.Context, r *protocol.GetExtendedAgentCardRequest) (
	*protocol.AgentCard, error) {
	return told(h.b, ctx, r, h.next.GetExtendedAgentCard)
}
