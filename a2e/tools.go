package a2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley/internal/jsonx"
)

// ToolParameter is one parameter of a tool (A2E §6.14).
type ToolParameter struct {
	Name        string                   `json:"name"`
	Type        string                   `json:"type"`
	Description string                   `json:"description"`
	Required    bool                     `json:"required"`
	Enum        *[]string                `json:"enum"`
	Properties  map[string]ToolParameter `json:"properties,omitempty"`
}

// ToolDefinition describes a tool (A2E §6.14). Version is "1.0.0" when empty.
// A tool with DeferLoading is listed only on demand.
type ToolDefinition struct {
	Name             string          `json:"name"`
	Description      string          `json:"description"`
	InputParameters  []ToolParameter `json:"input_parameters"`
	OutputParameters []ToolParameter `json:"output_parameters"`
	Streaming        bool            `json:"streaming"`
	Idempotent       bool            `json:"idempotent"`
	Tags             []string        `json:"tags"`
	Version          string          `json:"version"`
	Toolkit          *string         `json:"toolkit"`
	DeferLoading     bool            `json:"defer_loading"`
}

// ToolQuery are the members of tool/list/req.
type ToolQuery struct {
	Kind            string   `json:"filter_kind"`
	Tags            []string `json:"filter_tags"`
	Query           string   `json:"query"`
	IncludeDeferred bool     `json:"include_deferred"`
}

// Select applies a query as the reference does (A2E §6.18): without Query all tools but
// the deferred ones, whatever Kind and Tags are; with Query every tool, deferred or
// not, that has all Tags and whose name, description or a tag contains the text,
// regardless of case.
func (q ToolQuery) Select(tools []ToolDefinition) []ToolDefinition {
	out := []ToolDefinition{}
	text := strings.ToLower(q.Query)
	for _, t := range tools {
		if q.Query == "" {
			if !t.DeferLoading || q.IncludeDeferred {
				out = append(out, t)
			}
			continue
		}
		missing := func(want string) bool {
			return !slices.ContainsFunc(t.Tags, func(tag string) bool { return strings.EqualFold(tag, want) })
		}
		hit := strings.Contains(strings.ToLower(t.Name), text) ||
			strings.Contains(strings.ToLower(t.Description), text) ||
			slices.ContainsFunc(t.Tags, func(tag string) bool { return strings.Contains(strings.ToLower(tag), text) })
		if hit && !slices.ContainsFunc(q.Tags, missing) {
			out = append(out, t)
		}
	}
	return out
}

// ToolCall is a tool/call/req.
type ToolCall struct {
	*Request
	Name      string
	Arguments json.RawMessage // a JSON object as the agent wrote it
	Streaming bool            // whether the agent requested events
}

// ToolResult is the member data of a tool/call/resp (A2E §6.14). Success is false for a
// failure that the tool itself describes in Error and ErrorCode.
type ToolResult struct {
	Success    bool
	ToolName   string // the called name when empty
	Data       any    // encodes as JSON; anything but an object is wrapped as {"value": …}
	Summary    any
	Truncated  bool
	ExitCode   *int   // taken from the member exit_code of Data when nil
	Error      string // null on the wire when empty
	ErrorCode  string
	DurationMS int64 // measured when 0
	Events     []json.RawMessage
	// an extension, which other agents ignore: a JSON object, or nil for none
	Metadata json.RawMessage
}

// Tools is the capability "tools". An [*Error] from Call goes to the agent unchanged;
// any other error becomes tool_error without its text.
type Tools interface {
	// List gives all tools that the agent may see; [ServeTools] applies the query.
	List(ctx context.Context, r *Request) ([]ToolDefinition, error)
	// Call runs a tool; [ErrUnknownTool] if the name is unknown.
	Call(ctx context.Context, c *ToolCall) (ToolResult, error)
}

// ServeTools makes the provider of the capability "tools".
func ServeTools(t Tools) Provider { return toolProvider{t} }

type toolProvider struct{ tools Tools }

func (p toolProvider) Serve(ctx context.Context, r *Request) (Response, error) {
	switch r.Type {
	case "tool/list/req":
		all, err := p.tools.List(ctx, r)
		if err != nil {
			return Response{}, err
		}
		q := ToolQuery{Kind: r.Str("filter_kind"), Tags: r.Strings("filter_tags"), Query: r.Str("query"),
			IncludeDeferred: r.Bool("include_deferred")}
		list := q.Select(all)
		for i := range list {
			list[i].Version = cmp.Or(list[i].Version, "1.0.0")
		}
		return Response{Body: map[string]any{"tools": list}}, nil
	case "tool/call/req":
		return p.call(ctx, r)
	}
	return Response{}, ErrUnknownType
}

func (p toolProvider) call(ctx context.Context, r *Request) (Response, error) {
	call := &ToolCall{Request: r, Name: r.Str("tool_name"), Arguments: r.Get("arguments"),
		Streaming: r.Bool("streaming")}
	res, err := p.tools.Call(ctx, call)
	if err != nil {
		return Response{}, failedAs(err, ToolError, "the tool failed", "tools")
	}
	res.ToolName = cmp.Or(res.ToolName, call.Name)
	data, _ := res.Data.(json.RawMessage)
	f, err := r.appendResult(r.head("tool/call/resp", 256+len(data)).name("data"), res, true)
	if err != nil {
		return Response{}, &Error{Code: ToolError, Text: "the result of the tool is not JSON", Step: "handler",
			Capability: "tools", cause: err}
	}
	return Response{Body: wholeFrame(append(f.time("created_at", r.h.Now()), '}'))}, nil
}

// failedAs gives an error the code, unless it is an [*Error] or the end of a context.
func failedAs(err error, code Code, text, capability string) error {
	_, coded := errors.AsType[*Error](err)
	if coded || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return err
	}
	return &Error{Code: code, Text: text, Step: "handler", Capability: capability, cause: err}
}

// valueOf gives checked JSON for any value that encodes.
func valueOf(v any) (json.RawMessage, error) {
	var raw json.RawMessage
	switch x := v.(type) {
	case nil:
		return null, nil
	case json.RawMessage:
		if x == nil {
			return null, nil
		}
		raw = x
	default:
		b, err := jsonx.Encode(v)
		return json.RawMessage(b), err
	}
	if fault := checkJSON(raw, DefaultMaxDepth); fault != "" {
		return nil, errors.New("a2e: not JSON: " + fault)
	}
	return raw, nil
}

// appendResult writes the member data of a tool/call/resp or of a skill/call/resp.
func (r *Request) appendResult(f encoder, res ToolResult, tool bool) (encoder, error) {
	data, err := valueOf(res.Data)
	if err != nil {
		return nil, err
	}
	summary, err := valueOf(res.Summary)
	if err != nil {
		return nil, err
	}
	data = trimLine(data)
	f = append(f, '{').flag("success", res.Success)
	if tool {
		f = f.text("tool_name", res.ToolName)
	}
	if tool && data[0] != '{' && data[0] != 'n' {
		f = append(append(f.name("data"), '{').json("value", data), '}')
	} else {
		f = f.json("data", data)
	}
	f = f.json("summary", summary).flag("truncated", res.Truncated)
	switch {
	case res.ExitCode != nil:
		f = f.number("exit_code", int64(*res.ExitCode))
	case tool:
		f = f.json("exit_code", exitCodeOf(data))
	}
	ms := cmp.Or(res.DurationMS, time.Since(r.Received).Milliseconds())
	f = f.nullable("error", res.Error).nullable("error_code", res.ErrorCode).number("duration_ms", ms)
	f = append(f.name("events"), '[')
	for i, e := range res.Events {
		if i > 0 {
			f = append(f, ',')
		}
		v, err := valueOf(e)
		if err != nil {
			return nil, err
		}
		f = appendASCII(f, v)
	}
	f = append(f, ']')
	if res.Metadata != nil {
		metadata, err := valueOf(res.Metadata)
		if err != nil {
			return nil, err
		}
		f = f.json("metadata", metadata)
	}
	return append(f, '}'), nil
}

// exitCodeOf finds the exit code in the data of a command.
func exitCodeOf(data json.RawMessage) []byte {
	exit := []byte(null)
	if data[0] != '{' || !bytes.Contains(data, []byte(`exit_code`)) {
		return exit
	}
	if v := lookup(data, members(data), "exit_code"); v != nil && isNumber(v[0]) && integral(v) {
		exit = v
	}
	return exit
}

// toolResultOf reads the data that appendResult writes. Members of unknown names are
// ignored, null means absent.
func toolResultOf(data json.RawMessage) (ToolResult, error) {
	if jsonx.Kind(data) != '{' {
		return ToolResult{}, ErrSchema
	}
	m := &Envelope{raw: data}
	m.ms = membersInto(m.inline[:0], data)
	res := ToolResult{Success: m.Bool("success"), ToolName: m.Str("tool_name"), Data: m.Get("data"),
		Summary: m.Get("summary"), Truncated: m.Bool("truncated"), Error: m.Str("error"), ErrorCode: m.Str("error_code"),
		DurationMS: m.Int("duration_ms"), Events: m.Values("events")}
	if v := m.Get("exit_code"); len(v) > 0 && isNumber(v[0]) {
		code := int(intOf(v))
		res.ExitCode = &code
	}
	return res, nil
}

// ToolFunc runs a tool: it returns the data of a successful [ToolResult], or a
// ToolResult itself.
type ToolFunc func(ctx context.Context, c *ToolCall) (any, error)

// Toolbox is a set of tools in this process. The zero value is empty. It is
// safe for concurrent use.
type Toolbox struct {
	mu    sync.RWMutex
	list  []ToolDefinition
	funcs map[string]ToolFunc
}

// Add adds a tool; it replaces one of the same name.
func (t *Toolbox) Add(def ToolDefinition, f ToolFunc) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.funcs == nil {
		t.funcs = map[string]ToolFunc{}
	}
	t.list = slices.Clone(t.list)
	if i := slices.IndexFunc(t.list, func(d ToolDefinition) bool { return d.Name == def.Name }); i >= 0 {
		t.list[i] = def
	} else {
		t.list = append(t.list, def)
	}
	t.funcs[def.Name] = f
}

// List gives all tools in the order in which they were added.
func (t *Toolbox) List(context.Context, *Request) ([]ToolDefinition, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.list, nil
}

// Call runs a tool.
func (t *Toolbox) Call(ctx context.Context, c *ToolCall) (ToolResult, error) {
	t.mu.RLock()
	f := t.funcs[c.Name]
	t.mu.RUnlock()
	if f == nil {
		return ToolResult{}, ErrUnknownTool
	}
	v, err := f(ctx, c)
	if err != nil {
		return ToolResult{}, err
	}
	if res, ok := v.(ToolResult); ok {
		return res, nil
	}
	return ToolResult{Success: true, Data: v}, nil
}
