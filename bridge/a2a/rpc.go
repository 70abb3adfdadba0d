package a2a

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parley-hub/parley/internal/jsonx"
)

// JSON-RPC 2.0 over HTTP (A2A 1.0, section 9; 0.3, section 3.2.1). Errors of JSON-RPC come
// with HTTP status 200. Errors of HTTP (401, 403, 404, 413, 429, 503) come with their status
// and the body that REST has.
//
// A notification is answered 204: its method ran, and there is nothing to say. 202 would
// promise an answer by another way.

// rpcAnswer is a response object. Result is encoded already; nil in an error.
type rpcAnswer struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *rpcError       `json:"error,omitempty"`
}

// maxRequestID bounds the id of a request: each event of a stream repeats it.
const maxRequestID = 1 << 10

func (x *exchange) serveRPC() {
	version, err := x.version(V1, V03)
	if err != nil {
		x.id = peekID(x.r.Body)
		x.fail("decode", err)
		return
	}
	if err := x.mediaType(); err != nil {
		x.fail("decode", err)
		return
	}
	if x.caller, err = x.b.identify(x.r.Context(), x.agent, x.r.Header, x.r.TLS, x.r.RemoteAddr); err != nil {
		x.fail("verify", err)
		return
	}
	body, err := x.body()
	if err != nil {
		x.fail("decode", err)
		return
	}
	m, params, err := x.parse(body, methods[version])
	if err != nil {
		x.fail("decode", err)
		return
	}
	c := x.newCall(version, body)
	c.params = params
	x.activate(c)
	x.run(c, m)
}

// run runs a method, and answers.
func (x *exchange) run(c *call, m *method) {
	ctx := withCall(x.r.Context(), c)
	if m.stream != nil && !x.silent {
		x.stream(c, m)
		return
	}
	result, err := m.call(ctx, x.b.methods, c.params, x.silent)
	switch {
	case err != nil:
		x.fail("admit", err)
	case x.silent:
		x.w.WriteHeader(http.StatusNoContent)
	case x.rpc:
		encoded, err := encodeJSON(result)
		if err != nil {
			x.fail("encode", err)
			return
		}
		x.answer(rpcAnswer{Version: "2.0", ID: x.id, Result: encoded})
	default:
		x.write(http.StatusOK, result)
	}
}

// answer writes a response object.
func (x *exchange) answer(a rpcAnswer) { x.write(http.StatusOK, a) }

// notStrict is the error for a text that is no strict JSON.
func notStrict(err error) error {
	e, ok := errors.AsType[*jsonx.Error](err)
	if !ok {
		return protocol.ErrParseError
	}
	if e.Pointer != "" {
		return faulty(protocol.ErrParseError, fieldPath(e.Pointer), "%s", e.Is.Error())
	}
	return protocol.NewError(protocol.ErrParseError, e.Is.Error())
}

// misspelt is the error for a member whose name differs in case from a known one.
func misspelt(err error) error {
	if e, ok := errors.AsType[*spellingError](err); ok {
		return faulty(protocol.ErrInvalidRequest, e.field, "%s", e.text)
	}
	return protocol.ErrInvalidRequest
}

func invalidRequest(format string, args ...any) error {
	return faulty(protocol.ErrInvalidRequest, "", format, args...)
}

// parse reads a request object and finds its method. It sets the id as soon as it is known.
func (x *exchange) parse(body []byte, known map[string]*method) (*method, json.RawMessage, error) {
	if err := jsonx.Valid(body, maxDepth); err != nil {
		return nil, nil, notStrict(err)
	}
	switch jsonx.Kind(body) {
	case '{':
	case '[':
		return nil, nil, invalidRequest("batches are not supported")
	default:
		return nil, nil, invalidRequest("a request is an object")
	}
	var version, id, name, params jsonx.Value
	var wrong error
	jsonx.Members(body, func(member string, v jsonx.Value) bool {
		switch member {
		case "jsonrpc":
			version = v
		case "id":
			id = v
		case "method":
			name = v
		case "params":
			params = v
		default:
			for _, exact := range []string{"jsonrpc", "id", "method", "params"} {
				if strings.EqualFold(member, exact) {
					wrong = faulty(protocol.ErrInvalidRequest, exact, "the member is spelt %q", exact)
				}
			}
		}
		return true
	})
	if id != nil {
		if !validID(id) {
			return nil, nil, invalidRequest("an id is a string or a number")
		}
		x.id = json.RawMessage(id)
	}
	switch {
	case wrong != nil:
		return nil, nil, wrong
	case jsonx.Kind(version) != '"' || unquoted(version) != "2.0":
		return nil, nil, faulty(protocol.ErrInvalidRequest, "jsonrpc", `want "2.0"`)
	case jsonx.Kind(name) != '"' || unquoted(name) == "":
		return nil, nil, faulty(protocol.ErrInvalidRequest, "method", "want a name")
	}
	x.silent = id == nil
	m := known[unquoted(name)]
	if m == nil {
		return nil, nil, protocol.ErrMethodNotFound
	}
	switch kind := jsonx.Kind(params); {
	case kind == '{':
		exact, err := canonical(params, m.shape)
		if err != nil {
			return nil, nil, misspelt(err)
		}
		return m, exact, nil
	case kind == 0 || kind == 'n':
		if m.bare {
			return m, nil, nil
		}
		return nil, nil, invalidParams("params", "missing")
	case kind == '[':
		return nil, nil, invalidParams("params", "want an object")
	}
	return nil, nil, faulty(protocol.ErrInvalidRequest, "params", "want an object")
}

func unquoted(v jsonx.Value) string {
	s, _ := jsonx.Unquote(v)
	return s
}

// validID reports whether an id may be echoed: JSON-RPC allows strings, numbers and null.
func validID(id jsonx.Value) bool {
	k := jsonx.Kind(id)
	return (k == '"' || k == '0' || k == 'n') && len(id) <= maxRequestID
}

// peekID reads the id of a request whose version is not supported, from the beginning of
// its body; null if it cannot be read.
func peekID(body io.Reader) json.RawMessage {
	b, err := io.ReadAll(io.LimitReader(body, 64<<10))
	id := nullID
	if err != nil {
		return id
	}
	jsonx.Members(b, func(name string, v jsonx.Value) bool {
		if name != "id" {
			return true
		}
		if jsonx.Valid(v, 1) == nil && validID(v) {
			id = json.RawMessage(v)
		}
		return false
	})
	return id
}
