package a2a

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/parley-hub/parley/bridge"
)

// The wire versions.
const (
	V1  = "1.0"
	V03 = "0.3"
)

// ExtensionURI names Parley's extension: it carries what A2A has no member for (docs/a2a.md).
const ExtensionURI = "https://github.com/parley-hub/parley/a2a/v1"

// A call is what a transport knows about the request that it hands to [service], in the
// context.
type call struct {
	agent   string // directory name of the addressed agent, which is exposed
	caller  bridge.Caller
	version string // V1 or V03
	body    []byte // the request's body exactly as it came; nil where it has none, or over gRPC
	// params are the method's parameters in the JSON of version: strictly valid, with the known
	// members in camelCase; nil over gRPC. In both versions the literal of a data part is at
	// message.parts[i].data, in 0.3 within its object. File parts differ: 1.0 has raw or url,
	// 0.3 has file. The transport has put the same literal into the part: protocol.Data has a
	// json.RawMessage, over gRPC what the SDK decoded.
	params     json.RawMessage
	header     http.Header
	remote     string   // network address
	extensions []string // URIs in A2A-Extensions
}

type callKey struct{}

func withCall(ctx context.Context, c *call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

// callOf gives the call of a context; nil outside one.
func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}
