package interop

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// withToken shows a bearer token.
type withToken struct{ token string }

func (w withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+w.token)
	return http.DefaultTransport.RoundTrip(r)
}

// goMCP is a client of the Go SDK that takes the steps of python/mcp_client.py.
type goMCP struct {
	session *mcp.ClientSession
	mu      sync.Mutex // of out, answer and cancel
	out     *json.Encoder
	answer  map[string]any // of the step
	cancel  context.CancelFunc
	changed chan struct{}
}

func (g *goMCP) say(what map[string]any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	_ = g.out.Encode(what) // an error: the test has ended
}

// mcpGoConnect has a client of the Go SDK connect until the test ends.
func mcpGoConnect(t *testing.T, version, url, token string) *mcpClient {
	t.Helper()
	steps, in := io.Pipe()
	seen, out := io.Pipe()
	g := &goMCP{out: json.NewEncoder(out), changed: make(chan struct{}, 1)}
	client := mcp.NewClient(&mcp.Implementation{Name: "mcp_client", Version: "1"}, &mcp.ClientOptions{
		ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			g.say(map[string]any{"asked": r.Params.Message, "schema": r.Params.RequestedSchema})
			g.mu.Lock()
			defer g.mu.Unlock()
			action, _ := g.answer["action"].(string)
			content, _ := g.answer["content"].(map[string]any)
			return &mcp.ElicitResult{Action: action, Content: content}, nil
		},
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			g.say(map[string]any{"progress": r.Params.Progress, "message": r.Params.Message})
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.cancel != nil {
				g.cancel()
			}
		},
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) {
			select {
			case g.changed <- struct{}{}:
			default:
			}
		},
	})
	var err error
	g.session, err = client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: url,
		HTTPClient: &http.Client{Transport: withToken{token}}}, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		d := json.NewDecoder(steps)
		for {
			var step map[string]any
			if d.Decode(&step) != nil {
				return
			}
			saw, err := g.do(t.Context(), step)
			if fault, ok := errors.AsType[*jsonrpc.Error](err); ok {
				saw = map[string]any{"failed": map[string]any{"code": fault.Code, "message": fault.Message}}
			} else if err != nil {
				_ = out.CloseWithError(err)
				return
			}
			saw["done"] = step["do"]
			g.say(saw)
		}
	})
	t.Cleanup(func() {
		_ = g.session.Close() // the hub may have ended it
		in.Close()
		seen.Close()
		work.Wait()
	})
	c := &mcpClient{in: json.NewEncoder(in), out: bufio.NewScanner(seen)}
	c.out.Buffer(nil, 16<<20)
	c.first = mcpSaw{Connected: g.session.InitializeResult().ProtocolVersion}
	return c
}

func (g *goMCP) do(ctx context.Context, step map[string]any) (map[string]any, error) {
	switch step["do"] {
	case "list":
		tools := []*mcp.Tool{}
		for tool, err := range g.session.Tools(ctx, nil) {
			if err != nil {
				return nil, err
			}
			tools = append(tools, tool)
		}
		return map[string]any{"tools": tools}, nil
	case "call":
		p := &mcp.CallToolParams{Arguments: step["arguments"]}
		p.Name, _ = step["name"].(string)
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		if step["cancel"] == true || step["progress"] == true {
			p.SetProgressToken("p")
		}
		g.mu.Lock()
		g.answer, _ = step["answer"].(map[string]any)
		if g.cancel = nil; step["cancel"] == true {
			g.cancel = cancel
		}
		g.mu.Unlock()
		r, err := g.session.CallTool(ctx, p)
		if ctx.Err() != nil {
			return map[string]any{"cancelled": true}, nil
		} else if err != nil {
			return nil, err
		}
		return map[string]any{"content": r.Content, "structured": r.StructuredContent, "error": r.IsError,
			"meta": r.Meta}, nil
	case "read":
		uri, _ := step["uri"].(string)
		r, err := g.session.ReadResource(ctx, &mcp.ReadResourceParams{URI: uri})
		if err != nil {
			return nil, err
		}
		return map[string]any{"contents": r.Contents}, nil
	case "watch":
		g.say(map[string]any{"watching": true})
		select {
		case <-g.changed:
			return map[string]any{}, nil
		case <-time.After(time.Minute):
			return nil, errors.New("the list of tools does not change")
		}
	}
	return nil, errors.New("no such step")
}
