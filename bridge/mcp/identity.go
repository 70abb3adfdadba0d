package mcp

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/parley-hub/parley"
)

// IdentityAt is the identity of an attached server that is reached over HTTP: the URL of its endpoint.
func IdentityAt(address string) (parley.Identity, error) {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return parley.Identity{}, fmt.Errorf("url = %q: want http(s)://host[:port][/path], the URL of the server's MCP "+
			"endpoint", address)
	case u.User != nil || u.Fragment != "":
		return parley.Identity{}, fmt.Errorf("url = %q: want no user or fragment; credentials have settings of their own",
			address)
	}
	u.Host = strings.ToLower(u.Host)
	return parley.Identity{Protocol: Protocol, ID: u.String(), URL: u.String()}, nil
}

// IdentityOfTunnel is the identity of a server that "parley mcp attach" joins to the hub under a directory name.
func IdentityOfTunnel(name string) parley.Identity {
	return parley.Identity{Protocol: Protocol, ID: tunnelID + name}
}

// IdentityOfCaller is the identity of an agent that calls the hub over MCP, and reads its messages by parley_inbox.
func IdentityOfCaller(name string) parley.Identity {
	return parley.Identity{Protocol: Protocol, ID: callerID + name}
}

const (
	tunnelID = "attached "
	callerID = "caller "
)

// IsTunnel reports whether an identity is that of a server that "parley mcp attach" joins to the hub.
func IsTunnel(id string) bool { return strings.HasPrefix(id, tunnelID) }

// IsCaller reports whether an identity is that of an agent that calls the hub.
func IsCaller(id string) bool { return strings.HasPrefix(id, callerID) }
