package a2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
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

// Select applies a query as the reference does (A2E §6.18): without Query all
// tools but the deferred ones, Kind and Tags unused; with Query every tool,
// deferred or not, that has all Tags and whose name, description or a tag
// contains the text, all regardless of case.
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
		all := true
		for _, want := range q.Tags {
			all = all && slices.ContainsFunc(t.Tags, func(tag string) bool { return strings.EqualFold(tag, want) })
		}
		hit := strings.Contains(strings.ToLower(t.Name), text) ||
			strings.Contains(strings.ToLower(t.Description), text) ||
			slices.ContainsFunc(t.Tags, func(tag string) bool { return strings.Contains(strings.ToLower(tag), text) })
		if all && hit {
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
	Streaming bool            // whether the agent asked for events
}

// ToolResult is the member data of a tool/call/resp (A2E §6.14). Success is
// false for a failure that the tool itself describes in Error and ErrorCode.
type ToolResult struct {
	Success    bool
	ToolName   string // the called name when empty
	Data       any    // what encodes as JSON; anything but an object is wrapped as {"value": …}
	Summary    any
	Truncated  bool
	ExitCode   *int   // taken from the member exit_code of Data when nil
	Error      string // null on the wire when empty
	ErrorCode  string
	DurationMS int64 // measured when 0
	Events     []json.RawMessage
	// an extension, which agents that do not know it pass over: a JSON object, or nil for none
	Metadata json.RawMessage
}

// Tools is the capability "tools". An error of Call that is an [*Error] goes to
// the agent as it is; any other becomes tool_error without its text.
type Tools interface {
	// List gives all tools that the agent may see; the query is applied to it
	// by [ServeTools].
	List(ctx context.Context, r *Request) ([]ToolDefinition, error)
	// Call runs one, [ErrUnknownTool] if there is none of that name.
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
			if list[i].Version == "" {
				list[i].Version = "1.0.0"
			}
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
	if res.ToolName == "" {
		res.ToolName = call.Name
	}
	if res.DurationMS == 0 {
		res.DurationMS = time.Since(r.Received).Milliseconds()
	}
	data, _ := res.Data.(json.RawMessage)
	b, err := appendToolResult(append(r.head("tool/call/resp", 256+len(data)), `,"data":`...), res)
	if err != nil {
		return Response{}, &Error{Code: ToolError, Text: "the result of the tool is not JSON", Step: "handler",
			Capability: "tools", cause: err}
	}
	b = append(b, `,"created_at":`...)
	return Response{Body: wholeFrame(append(appendTime(b, r.h.Now()), '}'))}, nil
}

// failedAs gives errors that are not in the protocol's words the given code.
func failedAs(err error, code Code, text, capability string) error {
	var e *Error
	if errors.As(err, &e) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return err
	}
	return &Error{Code: code, Text: text, Step: "handler", Capability: capability, cause: err}
}

func appendValue(dst []byte, v any) ([]byte, error) {
	raw, err := valueOf(v)
	if err != nil {
		return dst, err
	}
	return appendASCII(dst, raw), nil
}

// valueOf gives checked JSON for anything that encodes.
func valueOf(v any) (json.RawMessage, error) {
	var raw json.RawMessage
	switch x := v.(type) {
	case nil:
		return json.RawMessage("null"), nil
	case json.RawMessage:
		if x == nil {
			return json.RawMessage("null"), nil
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

func appendToolResult(dst []byte, res ToolResult) ([]byte, error) {
	data, err := valueOf(res.Data)
	if err != nil {
		return nil, err
	}
	data = trimLine(data)
	dst = append(dst, `{"success":`...)
	dst = strconv.AppendBool(dst, res.Success)
	dst = append(dst, `,"tool_name":`...)
	dst = appendString(dst, res.ToolName)
	dst = append(dst, `,"data":`...)
	if data[0] == '{' || data[0] == 'n' {
		dst = appendASCII(dst, data)
	} else {
		dst = append(appendASCII(append(dst, `{"value":`...), data), '}')
	}
	dst = append(dst, `,"summary":`...)
	dst, err = appendValue(dst, res.Summary)
	if err != nil {
		return nil, err
	}
	dst = append(dst, `,"truncated":`...)
	dst = strconv.AppendBool(dst, res.Truncated)
	dst = append(dst, `,"exit_code":`...)
	if res.ExitCode != nil {
		dst = strconv.AppendInt(dst, int64(*res.ExitCode), 10)
	} else {
		dst = append(dst, exitCodeOf(data)...)
	}
	dst = append(dst, `,"error":`...)
	dst = appendNullable(dst, res.Error)
	dst = append(dst, `,"error_code":`...)
	dst = appendNullable(dst, res.ErrorCode)
	dst = append(dst, `,"duration_ms":`...)
	dst = strconv.AppendInt(dst, res.DurationMS, 10)
	dst = append(dst, `,"events":[`...)
	for i, e := range res.Events {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst, err = appendValue(dst, e)
		if err != nil {
			return nil, err
		}
	}
	dst = append(dst, ']')
	dst, err = appendResultMetadata(dst, res.Metadata)
	if err != nil {
		return nil, err
	}
	return append(dst, '}'), nil
}

// exitCodeOf finds the exit code that a command gives among its data.
func exitCodeOf(data json.RawMessage) []byte {
	exit := []byte("null")
	if data[0] != '{' || !bytes.Contains(data, []byte(`exit_code`)) {
		return exit
	}
	for _, m := range members(data) {
		if v := m.value.of(data); m.is(data, "exit_code") && isNumber(v[0]) && integral(v) {
			exit = v
		}
	}
	return exit
}

// appendResultMetadata adds the member metadata where there is some.
func appendResultMetadata(dst []byte, v json.RawMessage) ([]byte, error) {
	if v == nil {
		return dst, nil
	}
	return appendValue(append(dst, `,"metadata":`...), v)
}

func appendNullable(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, "null"...)
	}
	return appendString(dst, s)
}

// toolResultOf reads what appendToolResult writes. Members of unknown names
// are passed over, null ones are as absent.
func toolResultOf(data json.RawMessage) (res ToolResult, err error) {
	if jsonx.Kind(data) != '{' {
		return res, ErrSchema
	}
	bad := func(name string) error {
		e := *ErrSchema
		e.Text, e.Step = "data."+name+" of the result is of a wrong type", "peer"
		return &e
	}
	res.Data, res.Summary = json.RawMessage(nil), json.RawMessage(nil)
	var few [fewMembers]member
	for _, m := range membersInto(few[:0], data) {
		name, v := m.name.of(data), m.value.of(data)
		name = name[1 : len(name)-1]
		ok := true
		switch string(name) {
		case "data":
			res.Data = json.RawMessage(v)
		case "summary":
			res.Summary = json.RawMessage(v)
		}
		if v[0] == 'n' {
			continue
		}
		switch string(name) {
		case "success":
			res.Success, ok = v[0] == 't', v[0] == 't' || v[0] == 'f'
		case "truncated":
			res.Truncated, ok = v[0] == 't', v[0] == 't' || v[0] == 'f'
		case "tool_name":
			res.ToolName, ok = stringOf(v)
		case "error":
			res.Error, ok = stringOf(v)
		case "error_code":
			res.ErrorCode, ok = stringOf(v)
		case "exit_code":
			n := int(intOf(v))
			res.ExitCode, ok = &n, isNumber(v[0]) && integral(v)
		case "duration_ms":
			res.DurationMS, ok = intOf(v), isNumber(v[0])
		case "events":
			ok = v[0] == '['
			if ok {
				elements(v, func(_ int, e []byte) bool {
					res.Events = append(res.Events, json.RawMessage(e))
					return true
				})
			}
		}
		if !ok {
			return ToolResult{}, bad(string(name))
		}
	}
	return res, nil
}

// stringOf reads a checked JSON value that should be a string.
func stringOf(v []byte) (s string, ok bool) {
	if v[0] != '"' {
		return "", false
	}
	s, _ = unquote(v)
	return s, true
}

// ToolFunc runs a tool: what it returns is the data of a successful
// [ToolResult], or a ToolResult itself.
type ToolFunc func(ctx context.Context, c *ToolCall) (any, error)

// Toolbox is a set of tools in this process. The zero value is empty. It is
// safe for concurrent use.
type Toolbox struct {
	mu    sync.RWMutex
	list  []ToolDefinition
	funcs map[string]ToolFunc
}

// Add puts a tool in, in place of one of the same name.
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
