package connect

import (
	"encoding/json"
	"strings"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/bridge/peerauth"
)

// A Way is a way in which agents of a protocol join: the hub calls them, for example, or they call the hub.
type Way struct {
	Name   string // "": the protocol's first
	Title  string
	Fields []Field
	// Identity makes the identity of an agent of that name from the fields' values. The hub has not read anything yet.
	Identity func(name string, v Values) (admin.NewIdentity, error)
	// Command are the flags of `parley agents add` for the values.
	Command func(v Values) string

	Token bool // the agent gets a new token of the protocol, which Values has as its digest in "token-id"
	Shows bool // the hub may show credentials to the agent
	Reads bool // the hub reads what the agent says of itself
}

// A Field is one value that describes an agent: a flag of `parley agents add`, or an input of a form.
type Field struct {
	Flag    string
	Label   string
	Text    string // one line: what it is; the help of the flag
	Example string
	Type    string // of the input: "url", "password", or "area" for several lines; "": text
	Must    bool
}

// Values are the values of fields by flag.
type Values map[string]string

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
			out = append(out, "--"+n+" "+v[n])
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
