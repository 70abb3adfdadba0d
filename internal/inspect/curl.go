package inspect

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// curlSample reads a curl command as browsers and people write it.
func curlSample(text string) (*Sample, error) {
	args, err := splitShell(text)
	if err != nil {
		return nil, err
	}
	s := &Sample{form: "curl command", http: true, header: http.Header{}}
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
				k, val, colon := strings.Cut(v, ":")
				if name, empty := strings.CutSuffix(k, ";"); !colon && empty {
					s.header.Add(strings.TrimSpace(name), "")
				} else if val = strings.TrimSpace(val); val != "" { // "Name:" has curl leave the header out
					s.header.Add(strings.TrimSpace(k), val)
				}
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
	s.Body = []byte(strings.Join(data, "&"))
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
