package main

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/parley-hub/parley/admin"
	bridge "github.com/parley-hub/parley/bridge/a2e"
)

// meetA2E makes the identity of an A2E agent: with "new", one that connects with
// a token that is made here and shown once; with a URL, a host.
func meetA2E(s adding) (id admin.NewIdentity, token string, err error) {
	switch s.a2e {
	case "new":
		if token, err = bridge.NewToken(); err != nil {
			return id, "", err
		}
		return admin.NewIdentity{Protocol: bridge.Protocol, ID: bridge.TokenID(token)}, token, nil
	}
	u, err := url.Parse(s.a2e)
	if err != nil || u.Host == "" && u.Scheme != "unix" || !slices.Contains([]string{"http", "https", "tcp", "tls", "unix"}, u.Scheme) {
		return id, "", usage("--a2e %q: want new, for an agent that connects to the hub, or the URL of a host (http(s)://, tcp://, tls://, unix://)", s.a2e)
	}
	return admin.NewIdentity{Protocol: bridge.Protocol, ID: s.a2e, URL: s.a2e}, "", nil
}

// pasteA2E are the lines that connect an agent of the Python SDK to the hub.
func pasteA2E(hub, path, token string) []paste {
	if token == "" {
		return nil
	}
	if path == "" {
		path = bridge.DefaultPath
	}
	base := strings.TrimRight(hub, "/") + path
	return []paste{
		{"so that it connects over HTTP; the token is shown this once", "Python",
			fmt.Sprintf("client = A2EClient(transport=HTTPTransport(%q, logger), logger=logger, auth_token=%q)", base, token)},
		{"or, to start its host as a child process", "Python",
			fmt.Sprintf("client = A2EClient(transport=SubprocessTransport([\"parley\", \"a2e\", \"stdio\", \"--url\", %q], logger), logger=logger, auth_token=%q)", strings.TrimRight(hub, "/"), token)},
	}
}
