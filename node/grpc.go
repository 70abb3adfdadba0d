package node

import (
	"context"
	"net"
	"sync"

	"google.golang.org/grpc/stats"
)

// grpcConns are the bounded connections of a gRPC listener. As with HTTP, a proved caller vouches for
// its connection, and a connection with a request in flight is not closed to make room. gRPC gives a
// request only the address of its connection, so they are found by address.
type grpcConns struct {
	net.Listener // of conns

	mu   sync.Mutex
	open map[string]*conn // by the caller's address
}

func (s *conns) listenGRPC(l net.Listener) *grpcConns {
	return &grpcConns{Listener: s.listen(l), open: map[string]*conn{}}
}

// Accept implements net.Listener.
func (g *grpcConns) Accept() (net.Conn, error) {
	c, err := g.Listener.Accept()
	if err != nil {
		return nil, err
	}
	bound := c.(*conn)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open[bound.RemoteAddr().String()] = bound
	return &grpcConn{bound, g}, nil
}

type grpcConn struct {
	*conn
	of *grpcConns
}

// Close implements net.Conn.
func (c *grpcConn) Close() error {
	at := c.RemoteAddr().String()
	c.of.mu.Lock()
	if c.of.open[at] == c.conn {
		delete(c.of.open, at)
	}
	c.of.mu.Unlock()
	return c.conn.Close()
}

var _ stats.Handler = (*grpcConns)(nil)

// TagConn implements stats.Handler.
func (g *grpcConns) TagConn(ctx context.Context, info *stats.ConnTagInfo) context.Context {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c := g.open[info.RemoteAddr.String()]; c != nil {
		return withConn(ctx, c)
	}
	return ctx
}

// HandleConn implements stats.Handler.
func (g *grpcConns) HandleConn(context.Context, stats.ConnStats) {}

// TagRPC implements stats.Handler.
func (g *grpcConns) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (g *grpcConns) HandleRPC(ctx context.Context, s stats.RPCStats) {
	c, _ := ctx.Value(connKey{}).(*conn)
	switch s.(type) {
	case *stats.Begin:
		c.count(1, 0)
	case *stats.End:
		c.count(-1, 0)
	}
}
