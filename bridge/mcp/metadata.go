package mcp

import (
	"net/http"

	"github.com/parley-hub/parley/internal/jsonx"
)

// Protected resource metadata (RFC 9728): it tells clients which issuers' tokens the hub takes (rule MCP-012).

// resource is the canonical URI of an endpoint: the audience of its tokens (RFC 8707).
func (b *Binding) resource(path string) string { return b.public.String() + path }

type resourceMetadata struct {
	Resource string   `json:"resource"`
	Name     string   `json:"resource_name"`
	Issuers  []string `json:"authorization_servers,omitempty"`
	Methods  []string `json:"bearer_methods_supported"`
}

func (x *httpExchange) serveMetadata() {
	if x.r.Method != http.MethodGet && x.r.Method != http.MethodHead {
		x.refuseMethod("GET, HEAD")
		return
	}
	m := resourceMetadata{Resource: x.b.resource(x.to.path), Name: "Parley", Methods: []string{"header"}}
	if x.b.c.Callers != nil {
		for _, s := range x.b.c.Callers.Schemes() {
			if s.Issuer != "" {
				m.Issuers = append(m.Issuers, s.Issuer)
			}
		}
	}
	body, err := jsonx.Encode(m)
	if err != nil {
		x.fail("encode", err)
		return
	}
	x.write(http.StatusOK, body)
}

// challenge is WWW-Authenticate (RFC 6750, RFC 9728 section 5.1). The hub has no scopes.
func (x *httpExchange) challenge() string {
	s := `Bearer realm="parley", resource_metadata="` + x.b.resource(MetadataPath+x.to.path) + `"`
	if x.r.Header.Get("Authorization") != "" {
		s += `, error="invalid_token"`
	}
	return s
}
