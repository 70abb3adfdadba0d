package floor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley/internal/bench/load"
)

// MCPPath is the path of the floor's endpoint, and that of the hub's endpoint of the agent "echo".
const MCPPath = "/mcp/agents/echo"

// mcpRevision is the revision of MCP without sessions: a call is one request.
const mcpRevision = "2026-07-28"

// MCPRequest renders call number i of the tool "echo" with a body of size bytes: clients of the hub and of the floor
// send the same.
func MCPRequest(host, token string, i, size int) []byte {
	body := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"echo","_meta":`+
		`{"io.modelcontextprotocol/protocolVersion":"`+mcpRevision+`","io.modelcontextprotocol/clientCapabilities":{}},`+
		`"arguments":{"text":"`, i)
	const end = `"}}}`
	for len(body)+len(end) < size {
		body = append(body, 'x')
	}
	body = append(body, end...)
	return load.NewRequest(http.MethodPost, host, MCPPath, http.Header{
		"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
		"Mcp-Protocol-Version": {mcpRevision}, "Mcp-Method": {"tools/call"}, "Mcp-Name": {"echo"},
		"Authorization": {"Bearer " + token},
	}, body)
}

// MCP is the floor of a tool call: the handler of the official SDK, as it comes, with a tool that answers with one
// small object, and appends the call and the result.
func MCP(ctx context.Context, c Config) (load.Result, error) {
	return c.withAppender(func(a *Appender) (load.Result, error) {
		s := mcp.NewServer(&mcp.Implementation{Name: "floor", Version: "1.0.0"},
			&mcp.ServerOptions{Capabilities: &mcp.ServerCapabilities{}})
		s.AddTool(&mcp.Tool{Name: "echo", InputSchema: json.RawMessage(`{"type":"object"}`)},
			func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				const reply = `{"ok":true}`
				if err := a.Append(ctx, r.Params.Arguments); err != nil {
					return nil, err
				}
				if err := a.Append(ctx, []byte(reply)); err != nil {
					return nil, err
				}
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: reply}},
					StructuredContent: json.RawMessage(reply)}, nil
			})
		tools := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s },
			&mcp.StreamableHTTPOptions{Stateless: true, PropagateRequestCancellation: true})
		return c.post(ctx, forCallers(MCPPath, tools), func(host string, i int) []byte {
			return MCPRequest(host, token, i, c.Payload)
		}, MCPAnswered)
	})
}

// MCPAnswered refuses an answer that is not the event with a tool's result.
func MCPAnswered(status int, body []byte) error {
	var answer struct {
		Result struct {
			Structured *struct {
				OK bool `json:"ok"`
			} `json:"structuredContent"`
		} `json:"result"`
	}
	_, data, _ := bytes.Cut(body, []byte("data: "))
	data, _, _ = bytes.Cut(data, []byte("\n"))
	if err := json.Unmarshal(data, &answer); err != nil || status != http.StatusOK ||
		answer.Result.Structured == nil || !answer.Result.Structured.OK {
		return fmt.Errorf("HTTP %d: %.300q", status, body)
	}
	return nil
}
