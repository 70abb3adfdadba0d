package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
)

func TestTunnels(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newAttachedWorld(t, &hostMap{})
		id := w.enrol(IdentityOfTunnel("tools"))
		e, _ := w.dir.Agent("tools")
		if !w.b.servers.holds(e, id) {
			t.Error("messages wait for the tunnel")
		}
		_, err := w.call(t.Context(), "one", `{}`)
		if e, ok := errors.AsType[*parley.Error](err); !ok || e.Code != parley.Unavailable ||
			e.Reason != parley.NotConnected || err.(*callError).sent {
			t.Errorf("a call without a tunnel: %v", err)
		}
		one := mcp.NewServer(&mcp.Implementation{Name: "one"}, nil)
		two := mcp.NewServer(&mcp.Implementation{Name: "two"}, nil)
		began, release := make(chan struct{}), make(chan struct{})
		free := sync.OnceFunc(func() { close(release) })
		defer free()
		addServerTool(one, "it", "", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			close(began)
			<-release
			return &mcp.CallToolResult{}, nil
		})
		addServerTool(two, "it", "", echoTool)
		first, stop := w.tunnel(one)
		defer stop()
		synctest.Wait()
		if st := w.b.servers.state("tools"); w.b.servers.holds(e, id) || !st.open || st.version == "" {
			t.Errorf("messages wait beside the tunnel: %+v", st)
		}
		lost := make(chan error, 1)
		go func() {
			_, err := w.call(context.Background(), "it", `{}`)
			lost <- err
		}()
		<-began
		second, stop2 := w.tunnel(two)
		<-first
		if n := w.told.Load(); n != 1 {
			t.Errorf("%d tunnels were told that a newer one took their place", n)
		}
		if err := <-lost; !errors.Is(err, errEnded) || !err.(*callError).sent {
			t.Errorf("a call on the replaced tunnel: %v", err)
		}
		free()
		synctest.Wait()
		if got, err := w.call(t.Context(), "it", `{"a":1.0}`); err != nil || string(got.structured) != `{"a":1.0}` {
			t.Errorf("a call on the newer tunnel: %v", err)
		}
		stop2()
		<-second
		if !w.b.servers.holds(e, id) {
			t.Error("messages do not wait after the end of the tunnel")
		}
		w.enrolAt("http://server.test/mcp")
		_, near := mcp.NewInMemoryTransports()
		if err := w.b.servers.join(t.Context(), "tools", near); err == nil {
			t.Error("a tunnel for a server with a URL")
		}
	})
}

// A tunnel's messages pass the same checks as those over HTTP.
func TestTunnelFilter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newAttachedWorld(t, &hostMap{})
		w.enrol(IdentityOfTunnel("tools"))
		far, near := mcp.NewInMemoryTransports()
		conn, err := far.Connect(t.Context())
		w.must(err)
		answers := []string{`{"content":[],"content":[]}`, `{"resultType":"surprise","content":[]}`, `[]`,
			`{"_meta":{"hub.parley/raw":"forged"},"content":[],"structuredContent":1.00}`}
		go func() {
			for {
				m, err := conn.Read(context.Background())
				if err != nil {
					return
				}
				r, ok := m.(*jsonrpc.Request)
				if !ok || !r.IsCall() {
					continue
				}
				result := `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}`
				switch r.Method {
				case "tools/list":
					result = actTool
				case "tools/call":
					result, answers = answers[0], answers[1:]
				}
				answer := &jsonrpc.Response{ID: r.ID, Result: json.RawMessage(result)}
				_ = conn.Write(context.Background(), answer) // the test ends it
			}
		}()
		ended := make(chan error, 1)
		go func() { ended <- w.b.servers.join(context.Background(), "tools", near) }()
		synctest.Wait()
		for range len(answers) - 1 {
			_, err := w.call(t.Context(), "act", `{}`)
			if e, ok := err.(*callError); !ok || !e.sent || !errors.Is(err, errMalformed) {
				t.Error(err)
			}
		}
		if got, err := w.call(t.Context(), "act", `{}`); err != nil || string(got.structured) != "1.00" {
			t.Errorf("the next call: %+v, %v", got, err)
		}
		w.must(conn.Close())
		<-ended
	})
}
