package bridge

import (
	"fmt"
	"net/url"
	"strings"
)

// PublicURL parses the base URL under which agents reach a hub, and removes a slash
// at its end. Without a text it is http://127.0.0.1.
func PublicURL(text string) (*url.URL, error) {
	if text == "" {
		text = "http://127.0.0.1"
	}
	u, err := url.Parse(strings.TrimRight(text, "/"))
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("public_url %q: want http(s)://host[:port][/path]", text)
	}
	return u, nil
}
