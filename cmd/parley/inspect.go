package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/internal/jsonx"
)

// inspecting holds the inputs besides the sample.
type inspecting struct {
	keys []string  // public keys, base64
	card []byte    // the sender's card
	self string    // the identity of the expected recipient
	now  time.Time // the time to judge freshness by
}

// sample is a pasted message.
type sample struct {
	form   string // "HTTP request", "curl command", "JSON request", "HAR", "envelope"
	http   bool   // method, target and headers are known
	method string
	scheme string
	host   string
	target string // path and query as sent
	header http.Header
	body   []byte
}

// path is the target without the query, still escaped.
func (s *sample) path() string {
	p, _, _ := strings.Cut(s.target, "?")
	return p
}

func (s *sample) query() string {
	_, q, _ := strings.Cut(s.target, "?")
	return q
}

// members gives the members of the body; nil if it is no JSON object.
func (s *sample) members() map[string]jsonx.Value {
	var members map[string]jsonx.Value
	if jsonx.Decode(s.body, &members) != nil {
		return nil
	}
	return members
}

// has reports whether the body is a JSON object with all these members.
func (s *sample) has(names ...string) bool {
	members := s.members()
	return !slices.ContainsFunc(names, func(name string) bool { return members[name] == nil })
}

// inspection is the explanation of a sample.
type inspection struct {
	Protocol string          `json:"protocol"`
	Form     string          `json:"form"`
	Fields   []inspectField  `json:"fields"`
	Signed   []inspectSigned `json:"signed"`
	Checks   []inspectCheck  `json:"checks"`
	Verified bool            `json:"verified"` // every check was made, and none failed
	Sentence string          `json:"sentence"` // why it fails, or what it proves
	Fix      string          `json:"fix,omitempty"`
}

type inspectField struct {
	Name    string `json:"name"`
	Value   string `json:"value"`
	Meaning string `json:"meaning"`
}

// inspectSigned is one step on the way to the signed bytes.
type inspectSigned struct {
	Step string `json:"step"`
	Text string `json:"text"`
}

// The states of a check.
const (
	checkOK      = "ok"
	checkFailed  = "failed"
	checkSkipped = "not made" // an input for the check is missing
)

type inspectCheck struct {
	Name   string `json:"name"`
	State  string `json:"state"`
	Detail string `json:"detail,omitempty"`
}

// fail adds a check that failed; the first one gives the sentence and the fix.
func (v *inspection) fail(name, detail, sentence, fix string) {
	v.Checks = append(v.Checks, inspectCheck{name, checkFailed, detail})
	if v.Sentence == "" {
		v.Sentence, v.Fix = sentence, fix
	}
}

// ok adds a check that holds.
func (v *inspection) ok(name, detail string) {
	v.Checks = append(v.Checks, inspectCheck{name, checkOK, detail})
}

// pass adds checks that hold, without details.
func (v *inspection) pass(names ...string) {
	for _, name := range names {
		v.ok(name, "")
	}
}

// skip adds checks that were not made.
func (v *inspection) skip(why string, names ...string) {
	for _, name := range names {
		v.Checks = append(v.Checks, inspectCheck{name, checkSkipped, why})
	}
}

// field adds a field.
func (v *inspection) field(name, value, meaning string) {
	v.Fields = append(v.Fields, inspectField{name, value, meaning})
}

// members adds the members of an envelope, those with a meaning in its order, then the
// others with the meaning other, unless that is "".
func (v *inspection) members(members map[string]jsonx.Value, meanings []meaning, text func(jsonx.Value) string,
	other string) {
	for _, m := range meanings {
		if value, ok := members[m.name]; ok {
			v.field(m.name, text(value), m.meaning)
			delete(members, m.name)
		}
	}
	if other == "" {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		v.field(name, string(members[name]), other)
	}
}

// A meaning is what a member of an envelope means.
type meaning struct{ name, meaning string }

// decoded is the text of a JSON string, and any other JSON as it stands.
func decoded(v jsonx.Value) string {
	var s string
	if v.Kind() == '"' && jsonx.Decode(v, &s) == nil {
		return s
	}
	return string(v)
}

// unquoted is JSON as it stands, without quotes around it.
func unquoted(v jsonx.Value) string { return strings.Trim(string(v), `"`) }

// newInspection makes an empty inspection, whose lists are [] in JSON.
func newInspection() *inspection {
	return &inspection{Fields: []inspectField{}, Signed: []inspectSigned{}, Checks: []inspectCheck{}}
}

// inspectFlags are the flags of inspect and verify.
type inspectFlags struct {
	keys                      []string
	card, self, protocol, now string
}

func (f *inspectFlags) register(c *cobra.Command) {
	c.Flags().StringArrayVar(&f.keys, "key", nil, "public key of the sender, base64 (more than once for several)")
	c.Flags().StringVar(&f.card, "card", "", "file with the sender's card, for its keys")
	c.Flags().StringVar(&f.self, "self", "", "identity that the message should be addressed to")
	c.Flags().StringVar(&f.protocol, "protocol", "", "protocol (default: as recognised)")
	c.Flags().StringVar(&f.now, "now", "", "judge freshness at this time, e.g. 2026-11-20T15:04:05Z (default: now)")
}

func (a *app) inspectCommand() *cobra.Command {
	var f inspectFlags
	c := &cobra.Command{
		Use:   "inspect [FILE|-]",
		Short: "Explain any message: its protocol, its fields, its signed bytes, why it fails",
		Long: `Read a message from FILE or the standard input and explain it: which protocol
it is of, what each field means, how the signed bytes come about, and each check
in order. It may be the text of an HTTP request, a curl command, JSON with
method, target, headers and body, an entry of a HAR file, or a bare envelope.
Nothing is sent anywhere.`,
		Example: "  parley inspect request.http --key BASE64\n  pbpaste | parley inspect -\n  parley inspect " +
			"message.json --card card.json --json",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			v, err := a.inspection(cmd.Context(), args, f)
			if err != nil {
				return err
			}
			return a.verdict(true, v, func() error { return a.showInspection(v, true) })
		},
	}
	f.register(c)
	return c
}

// inspection reads a sample, finds its protocol and inspects it.
func (a *app) inspection(ctx context.Context, args []string, f inspectFlags) (*inspection, error) {
	o := inspecting{keys: f.keys, self: f.self, now: a.now()}
	var err error
	if f.now != "" {
		if o.now, err = time.Parse(time.RFC3339Nano, f.now); err != nil {
			return nil, usage("--now %q: want a time such as 2026-11-20T15:04:05Z", f.now)
		}
	}
	if f.card != "" {
		if o.card, err = os.ReadFile(f.card); err != nil {
			return nil, &exitError{exitUsage, err}
		}
	}
	raw, err := a.input(fileArg(args))
	if err != nil {
		return nil, err
	}
	s, err := readSample(raw)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, p := range protocols {
		if p.inspect == nil {
			continue
		}
		names = append(names, p.name)
		if f.protocol == p.name || f.protocol == "" && p.recognises(s) {
			v, err := p.inspect(ctx, s, o)
			if err != nil {
				return nil, &exitError{exitUsage, err}
			}
			v.Protocol, v.Form = p.name, s.form
			return v, nil
		}
	}
	if f.protocol != "" {
		return nil, usage("--protocol %q: want one of %s", f.protocol, strings.Join(names, ", "))
	}
	return nil, fmt.Errorf("this %s is of none of the protocols that can be inspected (%s); "+
		"--protocol insists on one", s.form, strings.Join(names, ", "))
}

func (a *app) showInspection(v *inspection, all bool) error {
	if all {
		fmt.Fprintf(a.out, "%s, from %s\n", v.Protocol, v.Form)
		if len(v.Fields) > 0 {
			fmt.Fprintln(a.out)
			var rows [][]string
			for _, f := range v.Fields {
				rows = append(rows, []string{f.Name, short(f.Value, 60), f.Meaning})
			}
			if err := a.table([]string{"FIELD", "VALUE", "MEANING"}, rows, nil); err != nil {
				return err
			}
		}
		for i, s := range v.Signed {
			if i == 0 {
				fmt.Fprintf(a.out, "\nhow the signed bytes come about\n")
			}
			fmt.Fprintf(a.out, "  %d. %s\n", i+1, s.Step)
			for line := range strings.Lines(clean(s.Text)) {
				fmt.Fprintf(a.out, "     | %s\n", strings.TrimSuffix(line, "\n"))
			}
		}
		fmt.Fprintf(a.out, "\nchecks, in order\n")
	}
	for _, c := range v.Checks {
		fmt.Fprintf(a.out, "  %-8s %-10s %s\n", c.State, c.Name, short(c.Detail, 200))
	}
	text := "\n" + clean(v.Sentence) + "\n"
	if v.Fix != "" {
		text += clean(v.Fix) + "\n"
	}
	_, err := io.WriteString(a.out, text)
	return err
}

// readSample recognises the form in which a message was pasted.
func readSample(raw []byte) (*sample, error) {
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
func httpSample(text []byte) (*sample, error) {
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
	s := &sample{form: "HTTP request", http: true, method: parts[0], header: http.Header{}, body: body}
	for i, line := range lines[1:] {
		name, value, ok := strings.Cut(line, ":")
		if !ok || name == "" || strings.ContainsAny(name, " \t") {
			return nil, fmt.Errorf("line %d of the request is not a header: %q", i+2, short(line, 80))
		}
		s.header.Add(name, strings.TrimSpace(value))
	}
	if n, err := strconv.Atoi(s.header.Get("Content-Length")); err == nil && n >= 0 && n < len(body) &&
		len(bytes.Trim(body[n:], "\r\n")) == 0 {
		s.body = body[:n]
	} else if err != nil {
		s.body = withoutLineEnd(s, body)
	}
	return s, s.aim(parts[1])
}

// withoutLineEnd removes a line end that an editor added, if the digest matches without
// it.
func withoutLineEnd(s *sample, body []byte) []byte {
	for _, end := range []string{"\r\n", "\n"} {
		if b, ok := bytes.CutSuffix(body, []byte(end)); ok && digestFits(s.header, b) && !digestFits(s.header, body) {
			return b
		}
	}
	return body
}

// aim sets the target of a request: a path, or a whole URL.
func (s *sample) aim(target string) error {
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
func jsonSample(raw, text []byte) (*sample, error) {
	envelope := &sample{form: "bare envelope", header: http.Header{}, body: bytes.TrimRight(raw, "\r\n")}
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

func requestSample(form string, raw []byte) (*sample, error) {
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
	s := &sample{form: form, http: true, method: strings.ToUpper(r.Method), header: http.Header{}}
	var text string
	switch {
	case r.PostData != nil:
		s.body = []byte(r.PostData.Text)
	case jsonx.IsNull(r.Body):
	case jsonx.Decode(r.Body, &text) == nil:
		s.body = []byte(text)
	default:
		// The body is JSON, not a text with JSON: take its bytes as they are here.
		s.body = r.Body
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

// curlSample reads a curl command as browsers and people write it.
func curlSample(text string) (*sample, error) {
	args, err := splitShell(text)
	if err != nil {
		return nil, err
	}
	s := &sample{form: "curl command", http: true, header: http.Header{}}
	var target string
	var data []string
	posts := false
	for i := 1; i < len(args); i++ {
		arg := args[i]
		name, glued := arg, ""
		if strings.HasPrefix(arg, "--") {
			if n, v, ok := strings.Cut(arg, "="); ok {
				name, glued = n, v
			}
		} else if len(arg) > 2 && arg[0] == '-' && strings.IndexByte("XHdu", arg[1]) >= 0 {
			name, glued = arg[:2], arg[2:]
		}
		take := func() (string, error) {
			if glued != "" {
				return glued, nil
			}
			if i++; i >= len(args) {
				return "", fmt.Errorf("the curl command ends after %s", arg)
			}
			return args[i], nil
		}
		var v string
		switch name {
		case "-X", "--request":
			s.method, err = take()
		case "-H", "--header":
			if v, err = take(); err == nil {
				k, val, _ := strings.Cut(v, ":")
				s.header.Add(strings.TrimSpace(k), strings.TrimSpace(val))
			}
		case "-d", "--data", "--data-raw", "--data-binary", "--data-ascii", "--json":
			if v, err = take(); err == nil {
				if strings.HasPrefix(v, "@") && name != "--data-raw" {
					return nil, fmt.Errorf("the body is in the file %s: paste its content into the command", v[1:])
				}
				data, posts = append(data, v), true
				if name == "--json" && s.header.Get("Content-Type") == "" {
					s.header.Set("Content-Type", "application/json")
				}
			}
		case "--url":
			target, err = take()
		case "-u", "--user", "-o", "--output", "-A", "--user-agent", "-e", "--referer", "-b", "--cookie", "--cacert",
			"--cert", "--key", "-m", "--max-time", "--connect-timeout", "--resolve", "-w", "--write-out":
			_, err = take()
		default:
			if !strings.HasPrefix(arg, "-") {
				target = arg
			}
		}
		if err != nil {
			return nil, err
		}
	}
	if target == "" {
		return nil, errors.New("the curl command has no URL")
	}
	if !strings.Contains(target, "://") {
		target = "http://" + target
	}
	s.body = []byte(strings.Join(data, "&"))
	if s.method == "" {
		s.method = "GET"
		if posts {
			s.method = "POST"
		}
	}
	return s, s.aim(target)
}

// splitShell divides a command as a POSIX shell does, without expansions. It knows both
// kinds of quotes, $'…', and line continuations.
func splitShell(text string) ([]string, error) {
	var out []string
	var b strings.Builder
	in := false
	flush := func() {
		if in {
			out = append(out, b.String())
		}
		b.Reset()
		in = false
	}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			flush()
		case c == '\\':
			if i++; i < len(text) && text[i] == '\r' && i+1 < len(text) {
				i++
			}
			if i < len(text) && text[i] != '\n' {
				b.WriteByte(text[i])
				in = true
			}
		case c == '\'' || c == '$' && i+1 < len(text) && text[i+1] == '\'':
			escapes := c == '$'
			if escapes {
				i++
			}
			end := i + 1
			for end < len(text) && text[end] != '\'' {
				if escapes && text[end] == '\\' {
					end++
				}
				end++
			}
			if end >= len(text) {
				return nil, errors.New("the curl command has a quote that does not end")
			}
			s := text[i+1 : end]
			if escapes {
				var err error
				if s, err = unescape(s); err != nil {
					return nil, err
				}
			}
			b.WriteString(s)
			in, i = true, end
		case c == '"':
			end := i + 1
			for end < len(text) && text[end] != '"' {
				if text[end] == '\\' && end+1 < len(text) && strings.IndexByte("\\\"$`\n", text[end+1]) >= 0 {
					end++
					if text[end] != '\n' {
						b.WriteByte(text[end])
					}
				} else {
					b.WriteByte(text[end])
				}
				end++
			}
			if end >= len(text) {
				return nil, errors.New("the curl command has a quote that does not end")
			}
			in, i = true, end
		default:
			b.WriteByte(c)
			in = true
		}
	}
	flush()
	return out, nil
}

// unescape reads the escapes of $'…'.
func unescape(s string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			continue
		}
		if i++; i >= len(s) {
			break
		}
		digits := func(n int) error {
			if i+n >= len(s) {
				return errors.New("the curl command has an escape that does not end")
			}
			v, err := strconv.ParseUint(s[i+1:i+1+n], 16, 32)
			if err != nil {
				return errors.New("the curl command has an escape that is not hexadecimal")
			}
			if n == 2 {
				b.WriteByte(byte(v))
			} else {
				b.WriteRune(rune(v))
			}
			i += n
			return nil
		}
		var err error
		switch c := s[i]; c {
		case 'n':
			b.WriteByte('\n')
		case 'r':
			b.WriteByte('\r')
		case 't':
			b.WriteByte('\t')
		case 'u':
			err = digits(4)
		case 'x':
			err = digits(2)
		default:
			b.WriteByte(c)
		}
		if err != nil {
			return "", err
		}
	}
	return b.String(), nil
}
