package mcp

import (
	"encoding/json"
	"slices"
	"testing"
)

// MCP-012: the protected resource metadata is served, and named to callers without credentials.
func TestMCP012Metadata(t *testing.T) {
	t.Parallel()
	w := newDoorWorld(t, func(c *Config) { c.PublicURL = "https://hub.test/base/" })
	for path, resource := range map[string]string{
		"/mcp":                  "https://hub.test/base/mcp",
		"/mcp/agents/crew/echo": "https://hub.test/base/mcp/agents/crew/echo",
		"/base/mcp":             "https://hub.test/base/mcp",
		"/mcp/agents/hidden":    "",
		"/mcp/attach/tunnel":    "",
		"/mcp/connect":          "",
		"":                      "",
	} {
		r := w.do(ask{method: "GET", path: MetadataPath + path})
		var doc struct {
			Resource string
			Issuers  []string `json:"authorization_servers"`
			Methods  []string `json:"bearer_methods_supported"`
		}
		if err := json.NewDecoder(r.Body).Decode(&doc); err != nil {
			t.Fatal(err)
		}
		switch {
		case resource == "" && r.StatusCode != 404:
			t.Errorf("%s: %d", path, r.StatusCode)
		case resource == "":
		case r.StatusCode != 200 || doc.Resource != resource || !slices.Equal(doc.Issuers, []string{"https://login.test"}) ||
			!slices.Equal(doc.Methods, []string{"header"}):
			t.Errorf("%s: %d %+v", path, r.StatusCode, doc)
		}
	}
	if r := w.do(ask{path: MetadataPath + "/mcp"}); r.StatusCode != 405 || r.Header.Get("Allow") != "GET, HEAD" {
		t.Errorf("POST: %d", r.StatusCode)
	}
	if r := w.do(ask{method: "GET", path: MetadataPath + "/mcp", host: "evil.example"}); r.StatusCode != 403 {
		t.Errorf("another host: %d", r.StatusCode)
	}
	want := `Bearer realm="parley", ` +
		`resource_metadata="https://hub.test/base/.well-known/oauth-protected-resource/mcp/agents/crew/echo"`
	r := w.do(ask{path: "/mcp/agents/crew/echo"})
	if got := r.Header.Get("WWW-Authenticate"); r.StatusCode != 401 || got != want {
		t.Errorf("%d, challenge %s", r.StatusCode, got)
	}
}
