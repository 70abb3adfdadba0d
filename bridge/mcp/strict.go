package mcp

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/internal/jsonx"
)

// Strict reading of messages (rules MCP-003, 004 and 011), for the door and the tunnels. The SDK takes repeated and
// misspelt members; so it only gets messages that were read here and written anew.

// statelessRevision is the first revision without sessions.
const statelessRevision = "2026-07-28"

// wireRevisions are those that the hub speaks.
var wireRevisions = []string{statelessRevision, "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}

// Members of _meta that belong to the protocol.
const (
	metaRevision     = "io.modelcontextprotocol/protocolVersion"
	metaCapabilities = "io.modelcontextprotocol/clientCapabilities"
)

var (
	envelopeMembers = []string{"jsonrpc", "id", "method", "params", "result", "error"}
	metaMembers     = []string{metaRevision, metaCapabilities, "io.modelcontextprotocol/clientInfo",
		"io.modelcontextprotocol/logLevel", "progressToken", "hub.parley/idempotencyKey", "hub.parley/hops", "traceparent",
		"tracestate", "baggage"}
)

const (
	maxWireDepth = 128       // nesting of a message
	maxWireID    = 1 << 10   // bytes of an id or progress token: each answer repeats it
	maxExact     = 1<<53 - 1 // the SDK reads numbers of ids as doubles
)

// A wireMethod is a method of clients.
type wireMethod struct {
	notification bool
	needsParams  bool
	name         string // the member of params that the header Mcp-Name repeats
	until        string // first revision without it
	since        string // first revision with it
}

var wireMethods = map[string]wireMethod{
	"initialize":                       {needsParams: true, until: statelessRevision},
	"ping":                             {until: statelessRevision},
	"server/discover":                  {since: statelessRevision},
	"tools/list":                       {},
	"tools/call":                       {needsParams: true, name: "name"},
	"resources/list":                   {},
	"resources/templates/list":         {},
	"resources/read":                   {needsParams: true, name: "uri"},
	"resources/subscribe":              {needsParams: true, until: statelessRevision},
	"resources/unsubscribe":            {needsParams: true, until: statelessRevision},
	"subscriptions/listen":             {needsParams: true, since: statelessRevision},
	"prompts/list":                     {},
	"prompts/get":                      {needsParams: true, name: "name"},
	"completion/complete":              {needsParams: true},
	"logging/setLevel":                 {needsParams: true, until: statelessRevision},
	"notifications/initialized":        {notification: true},
	"notifications/cancelled":          {notification: true},
	"notifications/progress":           {notification: true, needsParams: true},
	"notifications/roots/list_changed": {notification: true},
}

// in reports whether a revision has the method.
func (m *wireMethod) in(version string) bool {
	return version >= m.since && (m.until == "" || version < m.until)
}

// A wireMessage is one JSON-RPC message of a client.
type wireMessage struct {
	body   []byte      // written anew, with the members of JSON-RPC alone
	id     jsonx.Value // in its one form; nil: a notification
	method string      // "": a response
	params jsonx.Value // an object; nil: none

	meta    jsonx.Value // _meta, an object; nil: none
	claims  bool        // _meta has a version
	version string      // of _meta; "": none, or no string
}

// call reports whether a message is a request that is answered.
func (m *wireMessage) call() bool { return m.method != "" && m.id != nil }

// A wireError is an error as a client gets it. Its text is safe to send.
type wireError struct {
	http int
	rpc  int64 // JSON-RPC code
	code parley.Code
	text string
	data any   // of the error object; nil: what operators ask for
	err  error // for operators
}

func (e *wireError) Error() string { return e.text }

func refuseRequest(format string, args ...any) *wireError {
	return &wireError{http: http.StatusBadRequest, rpc: jsonrpc.CodeInvalidRequest, code: parley.Malformed,
		text: fmt.Sprintf(format, args...)}
}

func refuseParams(format string, args ...any) *wireError {
	e := refuseRequest(format, args...)
	e.rpc = jsonrpc.CodeInvalidParams
	return e
}

func refuseHeader(format string, args ...any) *wireError {
	e := refuseRequest(format, args...)
	e.rpc = mcp.CodeHeaderMismatch
	return e
}

func refuseVersion(requested string) *wireError {
	return &wireError{http: http.StatusBadRequest, rpc: mcp.CodeUnsupportedProtocolVersion, code: parley.Unsupported,
		text: "this version of the protocol is not supported",
		data: mcp.UnsupportedProtocolVersionData{Supported: wireRevisions, Requested: bridge.Shorten(requested, 64)}}
}

func refuseCall(method string) *wireError {
	return &wireError{http: http.StatusNotFound, rpc: jsonrpc.CodeMethodNotFound, code: parley.Unsupported,
		text: fmt.Sprintf("unknown method %q", bridge.Shorten(method, 64))}
}

// readWire reads a message. With an error, the message has the id as far as it is known.
func readWire(body []byte) (*wireMessage, *wireError) {
	m := &wireMessage{}
	if err := jsonx.Valid(body, maxWireDepth); err != nil {
		return m, notStrict(err)
	}
	switch jsonx.Kind(body) {
	case '{':
	case '[':
		return m, refuseRequest("batches are not supported")
	default:
		return m, refuseRequest("a message is an object")
	}
	in := map[string]jsonx.Value{}
	misspelt := knownMembers(body, in, envelopeMembers)
	if id, ok := in["id"]; ok {
		if m.id = exactID(id); m.id == nil {
			return m, refuseRequest("id: want a string of at most %d bytes, or an integer of at most 53 bits", maxWireID)
		}
	}
	switch {
	case misspelt != "":
		return m, refuseRequest("the member is spelt %q", misspelt)
	case !isWireText(in["jsonrpc"]) || wireText(in["jsonrpc"]) != "2.0":
		return m, refuseRequest(`jsonrpc: want "2.0"`)
	case in["method"] == nil:
		return m, m.readResponse(in)
	case !isWireText(in["method"]) || wireText(in["method"]) == "":
		return m, refuseRequest("method: want a name")
	case in["result"] != nil || in["error"] != nil:
		return m, refuseRequest("a message has a method, or else a result or an error")
	}
	m.method = wireText(in["method"])
	if p := in["params"]; !jsonx.IsNull(p) {
		if jsonx.Kind(p) != '{' {
			return m, refuseParams("params: want an object")
		}
		m.params = p
		if err := m.readMeta(); err != nil {
			return m, err
		}
	}
	m.write("method", jsonx.AppendString, m.method)
	return m, nil
}

// notStrict is the error for a text that is no strict JSON.
func notStrict(err error) *wireError {
	e := refuseRequest("not strict JSON")
	e.err = err
	strict, ok := errors.AsType[*jsonx.Error](err)
	if ok {
		e.text = strict.Is.Error()
	}
	if !ok || !slices.Contains([]error{jsonx.ErrDuplicate, jsonx.ErrDepth, jsonx.ErrTrailing}, strict.Is) {
		e.rpc = jsonrpc.CodeParseError
	}
	return e
}

// knownMembers reads the known members of an object. misspelt is the right name of one that differs in case.
func knownMembers(object jsonx.Value, in map[string]jsonx.Value, known []string) (misspelt string) {
	jsonx.Members(object, func(name string, v jsonx.Value) bool {
		if slices.Contains(known, name) {
			in[name] = v
			return true
		}
		for _, k := range known {
			if strings.EqualFold(name, k) {
				misspelt = k
			}
		}
		return true
	})
	return misspelt
}

// readMeta reads _meta, as far as the hub decides by it.
func (m *wireMessage) readMeta() *wireError {
	in := map[string]jsonx.Value{}
	if misspelt := knownMembers(m.params, in, []string{"_meta"}); misspelt != "" {
		return refuseRequest("the member is spelt %q", misspelt)
	}
	m.meta = in["_meta"]
	if m.meta == nil {
		return nil
	}
	if jsonx.Kind(m.meta) != '{' {
		return refuseParams("_meta: want an object")
	}
	clear(in)
	if misspelt := knownMembers(m.meta, in, metaMembers); misspelt != "" {
		return refuseRequest("the member is spelt %q", misspelt)
	}
	if t := in["progressToken"]; t != nil && (!isWireText(t) && jsonx.Kind(t) != '0' || len(t) > maxWireID) {
		return refuseParams("progressToken: want a string or a number, of at most %d bytes", maxWireID)
	}
	if v := in[metaRevision]; v != nil {
		m.claims = true
		if isWireText(v) {
			m.version = wireText(v)
		}
	}
	return nil
}

// readResponse reads the answer of a client to a request of the hub.
func (m *wireMessage) readResponse(in map[string]jsonx.Value) *wireError {
	result, fault := in["result"], in["error"]
	if m.id == nil || (result == nil) == (fault == nil) {
		return refuseRequest("a message has a method, or else an id with a result or an error")
	}
	if result != nil {
		m.write("result", asIs, string(result))
		return nil
	}
	e := map[string]jsonx.Value{}
	if jsonx.Kind(fault) == '{' {
		knownMembers(fault, e, []string{"code", "message", "data"})
	}
	code := exactID(e["code"])
	if code == nil || isWireText(code) || !isWireText(e["message"]) {
		return refuseRequest("error: want an object with code and message")
	}
	out := append(append([]byte(`{"code":`), code...), `,"message":`...)
	out = append(out, e["message"]...)
	if e["data"] != nil {
		out = append(append(out, `,"data":`...), e["data"]...)
	}
	m.write("error", asIs, string(append(out, '}')))
	return nil
}

func asIs(b []byte, s string) ([]byte, error) { return append(b, s...), nil }

// write writes the message anew, with a member besides id and params.
func (m *wireMessage) write(name string, form func([]byte, string) ([]byte, error), value string) {
	b := append(make([]byte, 0, len(m.params)+len(value)+len(m.id)+64), `{"jsonrpc":"2.0"`...)
	if m.id != nil {
		b = append(append(b, `,"id":`...), m.id...)
	}
	b, _ = form(append(b, `,"`+name+`":`...), value) // it was read from strict JSON: it is UTF-8
	if m.params != nil {
		b = append(append(b, `,"params":`...), m.params...)
	}
	m.body = append(b, '}')
}

func isWireText(v jsonx.Value) bool { return jsonx.Kind(v) == '"' }

func wireText(v jsonx.Value) string {
	s, _ := jsonx.Unquote(v)
	return s
}

// exactID gives an id in its one form: texts that differ in escapes are one id. It is nil for anything else than a
// string or an integer.
func exactID(v jsonx.Value) jsonx.Value {
	if len(v) > maxWireID {
		return nil
	}
	switch jsonx.Kind(v) {
	case '"':
		b, err := jsonx.AppendString(nil, wireText(v))
		if err == nil {
			return b
		}
	case '0':
		if n, err := strconv.ParseInt(string(v), 10, 64); err == nil && n >= -maxExact && n <= maxExact {
			return strconv.AppendInt(nil, n, 10)
		}
	}
	return nil
}

// idOf gives the id of a message of which only the beginning is there; nil: none is found.
func idOf(head []byte) (id jsonx.Value) {
	jsonx.Places(head, func(name, value jsonx.Place) bool {
		if text, _ := jsonx.Unquote(name.Of(head)); text != "id" {
			return true
		}
		if value.To < len(head) { // else it may go on
			id = exactID(value.Of(head))
		}
		return false
	})
	return id
}

// cancels gives the id of the request that a message of a client cancels, as caller.id has it; "": none.
func (m *wireMessage) cancels() string {
	if m.method != "notifications/cancelled" {
		return ""
	}
	in := map[string]jsonx.Value{}
	knownMembers(m.params, in, []string{"requestId"})
	return string(exactID(in["requestId"]))
}

var versionForm = regexp.MustCompile(`^[0-9]{4}-[0-9]{2}-[0-9]{2}$`)

// checkVersion checks the header MCP-Protocol-Version against the body, and says which era the message is of.
func (m *wireMessage) checkVersion(h http.Header) (isModern bool, _ *wireError) {
	named := slices.Compact(slices.Clone(h.Values("Mcp-Protocol-Version")))
	said := ""
	if len(named) > 0 {
		said = named[0]
	}
	switch {
	case len(named) > 1:
		return false, refuseHeader("the header MCP-Protocol-Version is there more than once")
	case said == "" && m.call() && m.claims:
		return true, refuseHeader("the header MCP-Protocol-Version is required")
	case said == "":
		return false, nil
	}
	isModern = versionForm.MatchString(said) && said >= statelessRevision
	switch {
	case m.call() && m.version != "" && m.version != said:
		return isModern, refuseHeader("the header MCP-Protocol-Version and _meta name different versions")
	case m.call() && isModern && m.version == "":
		return true, refuseParams("_meta: want %q", metaRevision)
	case !slices.Contains(wireRevisions, said):
		return isModern, refuseVersion(said)
	}
	return isModern, nil
}

// checkModern checks a message of the revisions without sessions (rules MCP-003 and MCP-004).
func (m *wireMessage) checkModern(h http.Header) *wireError {
	if m.method == "" {
		return refuseRequest("this version of the protocol has no responses of clients")
	}
	known, ok := wireMethods[m.method]
	if m.call() && (!ok || known.notification || !known.in(statelessRevision)) {
		return refuseCall(m.method)
	}
	switch said := h.Values("Mcp-Method"); {
	case len(said) == 0:
		return refuseHeader("the header Mcp-Method is required")
	case len(said) > 1 || said[0] != m.method:
		return refuseHeader("the header Mcp-Method differs from the method")
	}
	if !m.call() {
		return nil
	}
	in := map[string]jsonx.Value{}
	knownMembers(m.meta, in, metaMembers)
	if jsonx.Kind(in[metaCapabilities]) != '{' {
		return refuseParams("_meta: want %q, an object", metaCapabilities)
	}
	if err := m.checkParams(known); err != nil || known.name == "" {
		return err
	}
	said := h.Values("Mcp-Name")
	if len(said) != 1 {
		return refuseHeader("the header Mcp-Name is required, once")
	}
	name, ok := headerText(said[0])
	clear(in)
	knownMembers(m.params, in, []string{known.name})
	if !ok || !isWireText(in[known.name]) || name != wireText(in[known.name]) {
		return refuseHeader("the header Mcp-Name differs from params.%s", known.name)
	}
	h.Set("Mcp-Name", name) // the SDK compares it as it is
	return nil
}

// checkLegacy checks a message of the handshake revisions.
func (m *wireMessage) checkLegacy() *wireError {
	if !m.call() {
		return nil
	}
	known, ok := wireMethods[m.method]
	if !ok || known.notification || known.since != "" {
		e := refuseCall(m.method)
		e.http = http.StatusOK // 404 would say that the session is gone
		return e
	}
	return m.checkParams(known)
}

func (m *wireMessage) checkParams(known wireMethod) *wireError {
	if known.needsParams && m.params == nil {
		return refuseParams("params: missing")
	}
	return nil
}

// headerText decodes a header's value: text that is not plain ASCII is in base64.
func headerText(v string) (string, bool) {
	inner, ok := strings.CutPrefix(v, "=?base64?")
	if !ok {
		return v, true
	}
	if inner, ok = strings.CutSuffix(inner, "?="); !ok {
		return v, true
	}
	b, err := base64.StdEncoding.DecodeString(inner)
	return string(b), err == nil
}

// rpcErrorBody is the body of an error response.
func rpcErrorBody(id jsonx.Value, code int64, text string, data any) ([]byte, error) {
	type object struct {
		Code    int64  `json:"code"`
		Message string `json:"message"`
		Data    any    `json:"data,omitempty"`
	}
	if id == nil {
		id = jsonx.Value("null")
	}
	return jsonx.Encode(struct {
		Version string      `json:"jsonrpc"`
		ID      jsonx.Value `json:"id"`
		Error   object      `json:"error"`
	}{"2.0", id, object{code, text, data}})
}
