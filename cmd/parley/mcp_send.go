package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	bridge "github.com/parley-hub/parley/bridge/mcp"
	"github.com/parley-hub/parley/internal/netguard"
)

// mcpShown shows a token to one server, and keeps the last HTTP status, which the SDK does not give.
type mcpShown struct {
	a2aCredentials
	transport http.RoundTripper
	lost      error // why the last request had no answer
}

// RoundTrip implements http.RoundTripper.
func (s *mcpShown) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.token != "" && originOf(r.URL.String()) == s.origin {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+s.token)
	}
	resp, err := s.transport.RoundTrip(r)
	if s.lost = err; err != nil {
		return nil, err
	}
	s.status, s.ref = resp.StatusCode, resp.Header.Get("Parley-Ref")
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") { // the SDK bounds events
		b, err := netguard.ReadAll(resp.Body, maxMCPAnswer)
		resp.Body.Close()
		if err != nil {
			return nil, err
		}
		resp.Body = io.NopCloser(bytes.NewReader(b))
	}
	return resp, nil
}

// Bounds of what a command reads from a server.
const (
	maxMCPTools  = 1000
	maxMCPAnswer = 4 << 20
)

// openMCP opens a session with a server.
func openMCP(ctx context.Context, at string, transport http.RoundTripper, token string,
	progress func(*mcp.ProgressNotificationParams)) (*mcp.ClientSession, *mcpShown, error) {
	shown := &mcpShown{a2aCredentials: a2aCredentials{origin: originOf(at), token: token}, transport: transport}
	o := &mcp.ClientOptions{Capabilities: &mcp.ClientCapabilities{}}
	if progress != nil {
		o.ProgressNotificationHandler = func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			progress(r.Params)
		}
	}
	c := directHTTP()
	c.Transport = shown
	session, err := mcp.NewClient(&mcp.Implementation{Name: "parley", Version: cmp.Or(version, "dev")}, o).Connect(ctx,
		&mcp.StreamableClientTransport{Endpoint: at, HTTPClient: c, DisableStandaloneSSE: true, MaxRetries: -1,
			MaxEventSize: maxMCPAnswer}, nil)
	return session, shown, err
}

// sendMCP calls a tool of an MCP server, such as a hub.
func (a *app) sendMCP(ctx context.Context, s sending, raw []byte, isJSON bool) error {
	switch {
	case s.url == "":
		return usage("say which server: --url URL, its MCP endpoint, such as http://HUB%s/agents/NAME", bridge.Base)
	case s.from != "" || s.to != "" || s.as != "" || s.keyFile != "":
		return usage("--from and --to are for messages through a hub, --key and --as for protocols with keys: an MCP " +
			"client shows a token, --token-file FILE")
	case s.kind != "request":
		return usage("--kind %q: an MCP client sends requests only", s.kind)
	case s.conversation != "":
		return usage("--conversation: give it to the tool parley_ask, as its argument")
	case s.noWait:
		return usage("--no-wait: an MCP client waits; a call that takes long gives a handle for the tool parley_result")
	case s.wait <= 0:
		return usage("--wait %s: want more than nothing", s.wait)
	}
	i, err := bridge.IdentityAt(s.url)
	if err != nil {
		return usage("--url %q: want http(s)://HOST[:PORT]/PATH, the URL of the server's MCP endpoint", s.url)
	}
	arguments, err := mcpArguments(raw, isJSON && !s.text)
	if err != nil {
		return err
	}
	token := ""
	if s.tokenFile != "" {
		if token, err = secretIn(s.tokenFile); err != nil {
			return usage("--token-file: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.wait)
	defer cancel()
	var progress func(*mcp.ProgressNotificationParams)
	if s.stream {
		progress = func(p *mcp.ProgressNotificationParams) { fmt.Fprintf(a.errs, "    %s\n", short(p.Message, 400)) }
	}
	session, shown, err := openMCP(ctx, i.URL, http.DefaultTransport, token, progress)
	if err != nil {
		return shown.failed(err, "is the server running, and is --url its MCP endpoint? That of a hub is http://HUB"+
			bridge.Base+", or http://HUB"+bridge.Base+"/agents/NAME for one agent")
	}
	defer session.Close()
	tool, err := mcpTool(ctx, session, s.skill)
	if err != nil {
		return shown.failed(err, "")
	}
	p := &mcp.CallToolParams{Name: tool, Arguments: arguments}
	if s.key != "" {
		p.Meta = mcp.Meta{"hub.parley/idempotencyKey": s.key}
	}
	if s.stream {
		p.SetProgressToken("1")
	}
	r, err := session.CallTool(ctx, p)
	if err != nil {
		failed, advice := *shown, "" // of the call: the list is another request
		if names, e := mcpToolNames(ctx, session); e == nil && !slices.Contains(names, tool) {
			advice = "say which tool: --skill NAME; it has " + someOf(names)
		}
		return failed.failed(err, advice)
	}
	text := cmp.Or(mcpText(r.Content), "(an empty answer)")
	if !r.IsError {
		return a.print(r, "%s\n", clean(text))
	}
	if !a.json {
		return &exitError{exitRefused, atHub(clean(text), "")}
	}
	if err := a.print(r, ""); err != nil {
		return err
	}
	return &exitError{exitRefused, nil}
}

// mcpArguments makes the arguments of a tool: an object as it is, a text as the argument "text", and any other value as
// the argument "content".
func mcpArguments(raw []byte, isJSON bool) (any, error) {
	switch v := bytes.TrimSpace(raw); {
	case len(v) == 0:
		return map[string]any{}, nil
	case isJSON && v[0] == '{':
		return json.RawMessage(v), nil
	case isJSON:
		return map[string]any{"content": json.RawMessage(v)}, nil
	}
	return map[string]any{"text": string(raw)}, nil
}

// mcpTool is the tool to call: the one that is named, or the only one besides the hub's own.
func mcpTool(ctx context.Context, session *mcp.ClientSession, named string) (string, error) {
	if named != "" {
		return named, nil
	}
	names, err := mcpToolNames(ctx, session)
	switch {
	case err != nil:
		return "", err
	case len(names) == 1:
		return names[0], nil
	}
	return "", usage("say which tool: --skill NAME; it has %s", someOf(names))
}

// mcpToolNames lists the tools of a server, without those of a hub itself.
func mcpToolNames(ctx context.Context, session *mcp.ClientSession) (names []string, err error) {
	for t, err := range session.Tools(ctx, nil) {
		if err != nil {
			return nil, err
		}
		if !strings.HasPrefix(t.Name, "parley_") && len(names) < maxMCPTools {
			names = append(names, short(t.Name, 128))
		}
	}
	slices.Sort(names)
	return names, nil
}

func someOf(names []string) string {
	return cmp.Or(strings.Join(names[:min(len(names), 20)], ", "), "none")
}

// failed gives an error its exit code and advice.
func (s *mcpShown) failed(err error, advice string) error {
	if _, ok := errors.AsType[*exitError](err); ok {
		return err
	}
	wire, answered := errors.AsType[*jsonrpc.Error](err)
	switch {
	case slices.Contains([]int{http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests}, s.status):
		return s.explain(errors.New(clean(err.Error())))
	case s.lost != nil && !errors.Is(err, context.DeadlineExceeded): // the SDK hides it
		advice = cmp.Or(advice, "the server may have the call")
		return &exitError{exitUnreachable, fmt.Errorf("%w\n        %s", s.lost, advice)}
	case answered:
		text := clean(fmt.Sprintf("%s (%d)", wire.Message, wire.Code))
		if advice != "" {
			text += "\n        " + clean(advice)
		}
		return &exitError{exitRefused, atHub(text, s.ref)}
	case errors.Is(err, context.DeadlineExceeded):
		return &exitError{exitUnreachable, fmt.Errorf("%w\n        no answer came in time: wait longer (--wait)", err)}
	}
	if advice != "" {
		err = fmt.Errorf("%w\n        %s", err, advice)
	}
	return &exitError{exitUnreachable, err}
}

// mcpText is the content of a result, for people.
func mcpText(list []mcp.Content) string {
	var out []string
	for _, c := range list {
		switch v := c.(type) {
		case *mcp.TextContent:
			out = append(out, v.Text)
		case *mcp.ImageContent:
			out = append(out, fmt.Sprintf("[%s, %d bytes]", cmp.Or(v.MIMEType, "an image"), len(v.Data)))
		case *mcp.AudioContent:
			out = append(out, fmt.Sprintf("[%s, %d bytes]", cmp.Or(v.MIMEType, "audio"), len(v.Data)))
		case *mcp.ResourceLink:
			out = append(out, fmt.Sprintf("[%s at %s]", cmp.Or(v.Name, "a resource"), v.URI))
		case *mcp.EmbeddedResource:
			if r := v.Resource; r != nil && r.Text != "" {
				out = append(out, r.Text)
			} else if r != nil {
				out = append(out, fmt.Sprintf("[%s, %d bytes]", cmp.Or(r.MIMEType, "a resource"), len(r.Blob)))
			}
		}
	}
	return strings.Join(out, "\n")
}
