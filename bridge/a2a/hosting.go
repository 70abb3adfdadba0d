package a2a

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/parley-hub/parley"
)

// IdentityAt is the identity of an A2A agent elsewhere: its URL, which is the base below
// which its card is (…/.well-known/agent-card.json). The URL of the card itself will do
// too. A2A names agents by nothing else.
func IdentityAt(address string) (parley.Identity, error) {
	u, err := url.Parse(strings.TrimSuffix(strings.TrimRight(address, "/"), CardPath))
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return parley.Identity{}, fmt.Errorf("url = %q: want http(s)://host[:port][/path], the URL below which the "+
			"agent's card is", address)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return parley.Identity{}, fmt.Errorf("url = %q: want no user, query or fragment; credentials have settings of "+
			"their own", address)
	}
	u.Host = strings.ToLower(u.Host)
	base := strings.TrimRight(u.String(), "/")
	return parley.Identity{Protocol: Protocol, ID: base, URL: base}, nil
}

// IdentityOfCaller is the identity of an agent that calls the hub over A2A and has no URL.
func IdentityOfCaller(name string) parley.Identity {
	return parley.Identity{Protocol: Protocol, ID: callerID + name}
}

const callerID = "caller "

// IsCaller reports whether an identity is that of an agent without a URL.
func IsCaller(id string) bool { return strings.HasPrefix(id, callerID) }
