package inspect

import (
	"cmp"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/parley-hub/parley/internal/readable"
)

// computed are headers that curl makes itself.
var computed = []string{"Host", "Content-Length", "Transfer-Encoding", "Connection", "Accept-Encoding"}

// tokenChars are those of the name of a header.
const tokenChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~"

// curl writes the request as a curl command, with secrets masked; "" for what is no request that curl can make.
func (s *Sample) curl(mask *strings.Replacer) string {
	if !s.http || s.host == "" || !strings.HasPrefix(s.target, "/") {
		return ""
	}
	var headers []string
	names := make([]string, 0, len(s.header))
	for name := range s.header {
		if strings.Trim(name, tokenChars) != "" { // curl would read "@x: y" from a file
			return ""
		}
		if !slices.Contains(computed, http.CanonicalHeaderKey(name)) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if s.header.Get("Content-Type") == "" && len(s.Body) > 0 {
		headers = append(headers, readable.ShellWord("Content-Type:")) // curl would send that of a form
	}
	for _, name := range names {
		for _, value := range s.header[name] {
			line := name + ": " + mask.Replace(value)
			if value == "" {
				line = name + ";" // as curl writes a header without a value
			}
			headers = append(headers, readable.ShellWord(line))
		}
	}
	url := cmp.Or(s.scheme, schemeOf(s.host)) + "://" + s.host + mask.Replace(s.target)
	return readable.CurlCommand(s.method, url, headers, []byte(mask.Replace(string(s.Body))), "body")
}

// schemeOf guesses the scheme of a request whose text does not tell it.
func schemeOf(host string) string {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	if ip := net.ParseIP(name); name == "localhost" || ip != nil && (ip.IsLoopback() || ip.IsPrivate()) {
		return "http"
	}
	return "https"
}
