package inspect

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/parley-hub/parley/internal/httpsig"
	"github.com/parley-hub/parley/internal/jsonx"
)

// A Sample is a pasted message.
type Sample struct {
	form   string // "HTTP request", "curl command", "JSON request", "HAR", "envelope"
	http   bool   // method, target and headers are known
	method string
	scheme string
	host   string
	target string // path and query as sent
	header http.Header
	Body   []byte
}

// path is the target without the query, still escaped.
func (s *Sample) path() string {
	p, _, _ := strings.Cut(s.target, "?")
	return p
}

func (s *Sample) query() string {
	_, q, _ := strings.Cut(s.target, "?")
	return q
}

// members gives the members of the body; nil if it is no JSON object.
func (s *Sample) members() map[string]jsonx.Value {
	var members map[string]jsonx.Value
	if jsonx.Decode(s.Body, &members) != nil {
		return nil
	}
	return members
}

// Has reports whether the body is a JSON object with all these members.
func (s *Sample) Has(names ...string) bool {
	members := s.members()
	return !slices.ContainsFunc(names, func(name string) bool { return members[name] == nil })
}

// Read recognises the form in which a message was pasted.
func Read(raw []byte) (*Sample, error) {
	text := bytes.TrimLeft(raw, " \t\r\n")
	switch {
	case len(text) == 0:
		return nil, errors.New("there is nothing to inspect: the input is empty")
	case bytes.HasPrefix(text, []byte("curl ")) || bytes.HasPrefix(text, []byte("$ curl ")):
		return curlSample(string(bytes.TrimPrefix(text, []byte("$ "))))
	case text[0] == '{' || text[0] == '[':
		return jsonSample(raw, text)
	}
	return httpSample(text)
}

// httpSample parses the text of an HTTP/1 request. It is lenient, because the text was
// pasted: lines may end with LF alone, and an editor may have added a line end after the
// body.
func httpSample(text []byte) (*Sample, error) {
	head, body := text, []byte(nil)
	for _, gap := range []string{"\r\n\r\n", "\n\n"} {
		if i := bytes.Index(text, []byte(gap)); i >= 0 && i <= len(head) {
			head, body = text[:i], text[i+len(gap):]
		}
	}
	lines := strings.Split(strings.ReplaceAll(string(head), "\r\n", "\n"), "\n")
	parts := strings.Fields(lines[0])
	if len(parts) < 2 || len(parts) > 3 || parts[0] != strings.ToUpper(parts[0]) || len(parts) == 3 &&
		!strings.HasPrefix(parts[2], "HTTP/") {
		return nil, fmt.Errorf("the input is neither JSON, nor a curl command, nor an HTTP request: its first line "+
			"is %q", short(lines[0], 80))
	}
	s := &Sample{form: "HTTP request", http: true, method: parts[0], header: http.Header{}, Body: body}
	for i, line := range lines[1:] {
		name, value, ok := strings.Cut(line, ":")
		if !ok || name == "" || strings.ContainsAny(name, " \t") {
			return nil, fmt.Errorf("line %d of the request is not a header: %q", i+2, short(line, 80))
		}
		s.header.Add(name, strings.TrimSpace(value))
	}
	if n, err := strconv.Atoi(s.header.Get("Content-Length")); err == nil && n >= 0 && n < len(body) &&
		len(bytes.Trim(body[n:], "\r\n")) == 0 {
		s.Body = body[:n]
	} else if err != nil {
		s.Body = withoutLineEnd(s, body)
	}
	return s, s.aim(parts[1])
}

// withoutLineEnd removes a line end that an editor added, if the digest matches without
// it.
func withoutLineEnd(s *Sample, body []byte) []byte {
	for _, end := range []string{"\r\n", "\n"} {
		if b, ok := bytes.CutSuffix(body, []byte(end)); ok && digestFits(s.header, b) && !digestFits(s.header, body) {
			return b
		}
	}
	return body
}

// aim sets the target of a request: a path, or a whole URL.
func (s *Sample) aim(target string) error {
	s.target, s.host = target, s.header.Get("Host")
	if strings.HasPrefix(target, "/") {
		return nil
	}
	u, err := url.Parse(target)
	if err != nil || u.Host == "" {
		return fmt.Errorf("the target of the request is neither a path nor a URL: %q", short(target, 80))
	}
	s.scheme = u.Scheme
	s.host = cmp.Or(s.host, u.Host)
	if s.target = u.EscapedPath(); s.target == "" {
		s.target = "/"
	}
	if u.RawQuery != "" {
		s.target += "?" + u.RawQuery
	}
	return nil
}

// jsonSample reads a request described in JSON, an entry of a HAR file, or a
// bare envelope.
func jsonSample(raw, text []byte) (*Sample, error) {
	envelope := &Sample{form: "bare envelope", header: http.Header{}, Body: bytes.TrimRight(raw, "\r\n")}
	var members map[string]jsonx.Value
	if err := jsonx.Decode(text, &members); err != nil {
		return envelope, nil // the inspector reports the fault
	}
	if log := members["log"]; log != nil {
		var har struct {
			Entries []struct {
				Request jsonx.Value `json:"request"`
			} `json:"entries"`
		}
		if err := jsonx.Decode(log, &har); err != nil || len(har.Entries) == 0 {
			return nil, errors.New("the HAR file has no entry that could be read")
		}
		return requestSample("HAR file, first of "+plural(len(har.Entries), "entry", "entries"), har.Entries[0].Request)
	}
	if r := members["request"]; r != nil && members["method"] == nil {
		return requestSample("entry of a HAR file", r)
	}
	if members["method"] != nil && (members["target"] != nil || members["path"] != nil || members["url"] != nil) {
		return requestSample("JSON request", text)
	}
	return envelope, nil
}

func requestSample(form string, raw []byte) (*Sample, error) {
	var r struct {
		Method   string      `json:"method"`
		Target   string      `json:"target"`
		Path     string      `json:"path"`
		URL      string      `json:"url"`
		Headers  jsonx.Value `json:"headers"`
		Body     jsonx.Value `json:"body"`
		PostData *struct {
			Text string `json:"text"`
		} `json:"postData"`
	}
	if err := jsonx.Decode(raw, &r); err != nil {
		return nil, fmt.Errorf("the request in JSON cannot be read: %w", err)
	}
	s := &Sample{form: form, http: true, method: strings.ToUpper(r.Method), header: http.Header{}}
	var text string
	switch {
	case r.PostData != nil:
		s.Body = []byte(r.PostData.Text)
	case jsonx.IsNull(r.Body):
	case jsonx.Decode(r.Body, &text) == nil:
		s.Body = []byte(text)
	default:
		// The body is JSON, not a text with JSON: take its bytes as they are here.
		s.Body = r.Body
	}
	if err := readHeaders(s.header, r.Headers); err != nil {
		return nil, err
	}
	return s, s.aim(cmp.Or(r.Target, r.Path, r.URL))
}

// readHeaders reads {"name": "value" | ["value", …]}, [["name", "value"], …] or [{"name":
// …, "value": …}, …].
func readHeaders(h http.Header, raw jsonx.Value) error {
	if jsonx.IsNull(raw) {
		return nil
	}
	var object map[string]jsonx.Value
	if jsonx.Decode(raw, &object) == nil {
		for name, v := range object {
			var one string
			var many []string
			if jsonx.Decode(v, &one) == nil {
				many = []string{one}
			} else if err := jsonx.Decode(v, &many); err != nil {
				return fmt.Errorf("header %q is neither a text nor a list of texts", short(name, 60))
			}
			for _, s := range many {
				h.Add(name, s)
			}
		}
		return nil
	}
	var pairs [][2]string
	if jsonx.Decode(raw, &pairs) == nil {
		for _, p := range pairs {
			h.Add(p[0], p[1])
		}
		return nil
	}
	var list []struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	if err := jsonx.Decode(raw, &list); err != nil {
		return errors.New("the headers are neither an object nor a list of names and values")
	}
	for _, v := range list {
		if !strings.HasPrefix(v.Name, ":") { // HTTP/2 has method and path as headers
			h.Add(v.Name, v.Value)
		}
	}
	return nil
}

// digestFits reports whether the digest is that of the body.
func digestFits(h http.Header, body []byte) bool {
	return httpsig.CheckDigest(h.Get("Content-Digest"), body) == nil
}
