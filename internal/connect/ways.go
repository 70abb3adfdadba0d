package connect

import (
	"encoding/json"
	"strings"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/bridge/peerauth"
	"github.com/parley-hub/parley/internal/readable"
)

// Way, Field and Values describe an agent that joins, for the command line and the console.
type (
	Way    = admin.JoinWay
	Field  = admin.JoinField
	Values = admin.JoinValues
)

// Joins are the protocols as the admin API tells them to the console.
func Joins() (out []admin.Join) {
	for _, p := range Protocols {
		out = append(out, admin.Join{Protocol: p.Name, Ways: p.Ways, Shown: Shown(p.Name), NewToken: p.NewToken,
			Secrets: func(v Values) (admin.Secret, error) { return Secrets(p.Name, v) }})
	}
	return out
}

// Help is the line that explains a flag.
func Help(flag string) string {
	for _, p := range Protocols {
		for _, w := range p.Ways {
			for _, f := range append(w.Fields, Shown(p.Name)...) {
				if f.Flag == flag {
					return f.Text
				}
			}
		}
	}
	return ""
}

// WayTo finds a way of a protocol by its name.
func WayTo(protocol, name string) *Way {
	p := named(protocol)
	if p == nil {
		return nil
	}
	for i := range p.Ways {
		if p.Ways[i].Name == name {
			return &p.Ways[i]
		}
	}
	return nil
}

// flags writes flags with the values that are set.
func flags(v Values, names ...string) string {
	var out []string
	for _, n := range names {
		if v[n] != "" {
			out = append(out, readable.ShellWords("--"+n, v[n]))
		}
	}
	return strings.Join(out, " ")
}

// Shown are the fields of what the hub shows to an agent elsewhere.
func Shown(protocol string) []Field {
	p := protocol + "-"
	return []Field{
		{Flag: p + "token", Label: "Bearer token", Type: "password",
			Text: "the bearer token that the hub shows to the agent"},
		{Flag: p + "api-key", Label: "API key", Type: "password", Text: "the API key that the hub shows to it"},
		{Flag: p + "api-key-header", Label: "Header of the API key", Text: "header that has the API key (default X-API-Key)"},
		{Flag: p + "token-url", Label: "OAuth: token endpoint", Type: "url",
			Text: "token endpoint for OAuth 2.0 client credentials"},
		{Flag: p + "client-id", Label: "OAuth: client id", Text: "the hub's id at the token endpoint"},
		{Flag: p + "client-secret", Label: "OAuth: client secret", Type: "password",
			Text: "the hub's secret at the token endpoint"},
	}
}

// Secrets makes the credentials of the values of [Shown]; nil: none are set.
func Secrets(protocol string, v Values) (admin.Secret, error) {
	at := func(name string) string { return v[protocol+"-"+name] }
	c := peerauth.Text{Token: at("token"), APIKey: at("api-key"), Header: at("api-key-header"), TokenURL: at("token-url"),
		ClientID: at("client-id"), ClientSecret: at("client-secret")}
	given := false
	for _, f := range Shown(protocol) {
		given = given || v[f.Flag] != ""
	}
	if !given {
		return nil, nil
	}
	b, err := json.Marshal(c)
	if err == nil {
		_, err = peerauth.Parse(b)
	}
	if err != nil {
		return nil, malformed("what the hub shows to the agent: %s", err)
	}
	return b, nil
}
