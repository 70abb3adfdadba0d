package inspect

import (
	"context"
	"fmt"
	"maps"
	"mime"
	"regexp"
	"slices"
	"strings"

	"github.com/parley-hub/parley/internal/jsonx"
)

// Revisions of MCP.
const (
	mcpModern = "2026-07-28" // the first without sessions
	mcpLatest = mcpModern
)

var mcpLegacy = []string{"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"}

// mcpMethods are the methods and notifications, and what they do.
var mcpMethods = map[string]string{
	"initialize": "open a session (before " + mcpModern + ")", "ping": "see whether the other side is there (before " +
		mcpModern + ")",
	"server/discover": "read what the server can do, and its revisions", "tools/list": "list the tools",
	"tools/call": "call a tool", "resources/list": "list the resources", "resources/read": "read a resource",
	"resources/templates/list": "list forms of resources", "resources/subscribe": "be told of changes of a resource",
	"resources/unsubscribe": "be told no more", "prompts/list": "list the prompts", "prompts/get": "fetch a prompt",
	"completion/complete": "complete an argument", "logging/setLevel": "set which log lines come",
	"subscriptions/listen":   "open a stream of changes",
	"sampling/createMessage": "the server asks for the client's model",
	"elicitation/create":     "the server asks the user", "roots/list": "the server asks for the client's directories",
	"tasks/get": "read a task", "tasks/cancel": "cancel a task", "tasks/update": "answer a task's question",
	"tasks/result": "fetch a task's result", "tasks/list": "list tasks",
	"notifications/initialized":            "the session is open",
	"notifications/cancelled":              "the sender no longer wants the answer",
	"notifications/progress":               "how far a call is",
	"notifications/message":                "a log line of the server",
	"notifications/tools/list_changed":     "the list of tools changed",
	"notifications/resources/list_changed": "the list of resources changed",
	"notifications/resources/updated":      "a resource changed",
	"notifications/prompts/list_changed":   "the list of prompts changed",
	"notifications/roots/list_changed":     "the client's directories changed",
	"notifications/elicitation/complete":   "the user did what a URL asked",
}

// mcpNames are the methods whose header Mcp-Name has this member of params.
var mcpNames = map[string]string{"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}

var mcpErrors = map[string]string{
	"-32700": "the request is no JSON", "-32600": "it is no request of JSON-RPC 2.0", "-32601": "the method is unknown",
	"-32602": "a parameter is missing or wrong, or the caller has no such tool or resource",
	"-32603": "the server failed",
	"-32002": "no such resource (before " + mcpModern + ")",
	"-32020": "a header and the body differ, or a header is missing",
	"-32021": "the server needs a capability that the client does not declare",
	"-32022": "the server does not speak this revision: error.data.supported lists those that it speaks",
	"-32042": "the user has to open a URL first", "0": "an error without a code, as some SDKs send it",
}

var mcpMeanings = map[string]string{
	"jsonrpc": "always 2.0", "id": "the sender's, for the answer", "method": "its name", "params": "of the method",
	"result": "of the method", "error": "why it failed",
}

// mcpResults are members by which a result of MCP is told from others.
var mcpResults = []string{"tools", "content", "resultType", "protocolVersion", "resources", "resourceTemplates",
	"contents", "prompts", "supportedVersions", "serverInfo", "structuredContent"}

// isMCPResponse reports whether a JSON-RPC response is of MCP.
func isMCPResponse(s *Sample, m map[string]jsonx.Value) bool {
	if s.header.Get("MCP-Protocol-Version") != "" || s.header.Get("Mcp-Session-Id") != "" {
		return true
	}
	result := a2aMembers(m["result"])
	code := Decoded(a2aMembers(m["error"])["code"])
	return slices.ContainsFunc(mcpResults, func(name string) bool { return result[name] != nil }) ||
		slices.Contains([]string{"-32020", "-32021", "-32022", "-32042"}, code)
}

func recognisesMCP(s *Sample) bool {
	m := s.members()
	switch {
	case s.header.Get("MCP-Protocol-Version") != "" || s.header.Get("Mcp-Session-Id") != "":
		return true
	case m["jsonrpc"] == nil:
		return false
	case m["method"] != nil:
		return mcpMethods[Decoded(m["method"])] != ""
	}
	return isMCPResponse(s, m)
}

// mcpInspection is the inspection of one message.
type mcpInspection struct {
	*Report
	s    *Sample
	form string
}

func inspectMCP(_ context.Context, s *Sample, _ Options) (*Report, error) {
	v := &mcpInspection{newReport(), s, "response"}
	var m map[string]jsonx.Value
	if err := jsonx.Decode(s.Body, &m); err != nil {
		v.fail("json", err.Error(), "It is not one JSON object with each member once, in UTF-8.",
			"A hub answers -32700 or -32600. Lists of messages (batches) are no part of MCP any more.")
		return v.Report, nil
	}
	v.pass("json")
	if m["method"] != nil {
		v.form = "request"
		if m["id"] == nil {
			v.form = "notification"
		}
	} else if m["result"] == nil && m["error"] == nil {
		v.fail("form", "", "It has no method, result or error, so it is no message of MCP.", "")
		return v.Report, nil
	}
	v.ok("form", v.form)
	v.Version = s.header.Get("MCP-Protocol-Version")
	for _, name := range slices.Sorted(maps.Keys(m)) {
		meaning := mcpMeanings[name]
		if meaning == "" {
			meaning = "not a member of JSON-RPC; it is refused or ignored"
		}
		v.field(name, Decoded(m[name]), meaning)
	}
	if Decoded(m["jsonrpc"]) != "2.0" {
		v.fail("jsonrpc", string(m["jsonrpc"]), `jsonrpc is not "2.0".`, "")
	}
	if id := m["id"]; id != nil && id.Kind() != '"' && (id.Kind() != '0' || strings.ContainsAny(string(id), ".eE")) {
		v.fail("id", string(id), "Its id is neither a string nor a whole number.", "")
	}
	if v.form == "response" {
		v.response(m)
	} else {
		v.request(m)
	}
	v.skip("MCP has none: the caller's token or certificate vouches for a message", "signature")
	if v.Sentence == "" {
		v.Sentence = fmt.Sprintf("It is a well-formed %s of MCP. MCP messages have no signatures, so it proves nothing "+
			"about its sender.", v.form)
	}
	return v.Report, nil
}

func (v *mcpInspection) request(m map[string]jsonx.Value) {
	method := Decoded(m["method"])
	switch what := mcpMethods[method]; {
	case what == "":
		v.fail("method", method, "The method "+method+" is unknown.", "")
		return
	case v.form == "notification" && !strings.HasPrefix(method, "notifications/"):
		v.fail("id", "", "It has no id, so it is a notification, which is not answered.", "Give it an id.")
	case v.form == "request" && strings.HasPrefix(method, "notifications/"):
		v.fail("id", "", "A notification has no id.", "")
	default:
		v.ok("method", method+": "+what)
	}
	params := a2aMembers(m["params"])
	v.revision(method, params)
	switch method {
	case "tools/call":
		if v.need("params", params, "name") {
			v.toolName("params.name", Decoded(params["name"]))
		}
		if a := params["arguments"]; a != nil && a.Kind() != '{' {
			v.fail("params.arguments", string(a), "The arguments are no JSON object.", "")
		}
	case "initialize":
		v.need("params", params, "protocolVersion")
	case "resources/read":
		v.need("params", params, "uri")
	case "notifications/cancelled":
		if params["requestId"] == nil {
			v.fail("params.requestId", "", "It does not name the request that it cancels.", "")
		}
	}
}

// revision checks the parts of a request that say in which revision of the protocol it is.
func (v *mcpInspection) revision(method string, params map[string]jsonx.Value) {
	const prefix = "io.modelcontextprotocol/"
	meta := a2aMembers(params["_meta"])
	inside, header := Decoded(meta[prefix+"protocolVersion"]), v.s.header.Get("MCP-Protocol-Version")
	if v.s.http {
		if t, _, err := mime.ParseMediaType(v.s.header.Get("Content-Type")); v.s.method == "POST" && (err != nil ||
			t != "application/json") {
			v.fail("content type", v.s.header.Get("Content-Type"), "Its Content-Type is not application/json.", "")
		}
		if accept := v.s.header.Get("Accept"); v.s.method == "POST" && !strings.Contains(accept, "*/*") &&
			(!strings.Contains(accept, "application/json") || !strings.Contains(accept, "text/event-stream")) {
			v.fail("accept", accept, "It does not accept both JSON and event streams.",
				"Send Accept: application/json, text/event-stream.")
		}
	}
	version := header
	if inside != "" {
		version = inside
	}
	if version < mcpModern {
		switch {
		case version != "" && !slices.Contains(mcpLegacy, version):
			v.fail("revision", version, "MCP has no revision "+clean(version)+".", "The newest is "+mcpLatest+".")
		case version != "":
			v.ok("revision", version)
		case v.s.http && method != "initialize":
			v.skip("it does not say its revision: servers read it as 2025-03-26", "revision")
		}
		return
	}
	switch {
	case v.s.http && header != inside:
		v.fail("revision", header, fmt.Sprintf("The header MCP-Protocol-Version says %q, and _meta says %q.", clean(header),
			clean(inside)), "They must be equal.")
	case meta[prefix+"clientCapabilities"].Kind() != '{' && v.form == "request":
		v.fail("params._meta", "", "Its _meta has no "+prefix+"clientCapabilities, which each request "+
			"of "+mcpModern+" needs.", "An empty object will do.")
	default:
		v.ok("revision", version)
	}
	if !v.s.http {
		return
	}
	for _, h := range [][2]string{{"Mcp-Method", method}, {"Mcp-Name", Decoded(params[mcpNames[method]])}} {
		got := v.s.header.Get(h[0])
		if h[1] != "" && got != h[1] && !strings.HasPrefix(got, "=?base64?") {
			v.fail(strings.ToLower(h[0]), got, fmt.Sprintf("The header %s says %q, and the body %q.", h[0], clean(got),
				clean(h[1])), "Send it as the body has it; servers answer -32020.")
		}
	}
}

func (v *mcpInspection) response(m map[string]jsonx.Value) {
	if e := a2aMembers(m["error"]); e != nil {
		code := Decoded(e["code"])
		meaning := mcpErrors[code]
		if meaning == "" {
			meaning = "a code of the server's own"
		}
		v.fail("error", code+" "+Decoded(e["message"]), "The server refused: "+meaning+".", "")
		return
	}
	result := a2aMembers(m["result"])
	if result == nil {
		v.fail("result", string(m["result"]), "The result is no JSON object.", "")
		return
	}
	if t := Decoded(result["resultType"]); t != "" && t != "complete" && t != "input_required" {
		v.skip("the kind "+clean(t)+" is of an extension", "result type")
	} else if t == "input_required" {
		v.ok("result type", "the server asks for input: the client calls again with inputResponses and requestState")
	}
	if result["tools"] != nil {
		v.tools(a2aList(result["tools"]))
	}
	if result["content"] == nil {
		return
	}
	for i, item := range a2aList(result["content"]) {
		at := fmt.Sprintf("result.content[%d]", i)
		v.need(at, a2aMembers(item), "type")
	}
	if Decoded(result["isError"]) == "true" {
		v.fail("isError", "", "The tool failed; the content says why.", "")
	} else if result["structuredContent"] != nil {
		v.field("structuredContent", Decoded(result["structuredContent"]), "the result as JSON, beside its text")
	}
}

// tools checks the tools of a list.
func (v *mcpInspection) tools(list []jsonx.Value) {
	seen := map[string]bool{}
	for i, item := range list {
		tool, at := a2aMembers(item), fmt.Sprintf("result.tools[%d]", i)
		if !v.need(at, tool, "name") {
			continue
		}
		name := Decoded(tool["name"])
		if seen[name] {
			v.fail(at+".name", name, "Two tools are named "+clean(name)+".", "")
		}
		seen[name] = true
		v.toolName(at+".name", name)
		if schema := a2aMembers(tool["inputSchema"]); Decoded(schema["type"]) != "object" {
			v.fail(at+".inputSchema", string(tool["inputSchema"]), "The input schema of "+clean(name)+" is not of type object.",
				"Clients refuse the whole list for it.")
		}
		v.field("tool "+clean(name), short(Decoded(tool["description"]), 200), "untrusted text of the server")
	}
	v.ok("tools", plural(len(list), "tool", "tools"))
}

var mcpToolName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

func (v *mcpInspection) toolName(at, name string) {
	if !mcpToolName.MatchString(name) {
		v.fail(at, name, "Some clients refuse the name "+short(name, 100)+": it is not of 1 to 64 letters, digits, _ "+
			"and -.", "")
	}
}

// need fails unless a member is a string that is not empty.
func (v *mcpInspection) need(at string, m map[string]jsonx.Value, name string) bool {
	if m[name].Kind() == '"' && Decoded(m[name]) != "" {
		return true
	}
	v.fail(at+"."+name, string(m[name]), "It has no "+at+"."+name+", or it is no string.", "")
	return false
}
