package inspect

import (
	"net/http"
	"slices"
	"strings"

	"github.com/parley-hub/parley/internal/jsonx"
)

// secretHeaders are the headers whose values are secrets.
var secretHeaders = []string{"Authorization", "Proxy-Authorization", "Cookie", "X-Api-Key", "X-Session-Id",
	"Mcp-Session-Id", "A2a-Notification-Token"}

// secretMembers are the members of envelopes whose values are secrets, at any depth of objects.
var secretMembers = []string{"auth_token", "session_id", "token", "access_token", "refresh_token", "client_secret",
	"password", "api_key", "apiKey"}

const (
	leastSecret = 6 // characters: shorter ones stand in texts by chance
	maxSecrets  = 64
	maxNested   = 8
)

// secrets lists the secrets in a sample, the longest first: one may be a part of another.
func (s *Sample) secrets() (out []string) {
	add := func(text string) {
		if len(text) >= leastSecret && len(out) < maxSecrets && !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	for _, name := range secretHeaders {
		for _, value := range s.header[http.CanonicalHeaderKey(name)] {
			// The scheme is none: "Bearer".
			if _, rest, ok := strings.Cut(value, " "); ok {
				value = strings.TrimSpace(rest)
			}
			add(value)
		}
	}
	body := s.Body
	if s.members() == nil {
		body = firstLine(body)
	}
	secretsIn(body, 0, add)
	slices.SortStableFunc(out, func(a, b string) int { return len(b) - len(a) })
	return out
}

// secretsIn finds the secret members of a JSON object.
func secretsIn(v jsonx.Value, depth int, add func(string)) {
	if depth > maxNested {
		return
	}
	for name, value := range a2aMembers(v) {
		switch {
		case value.Kind() == '{':
			secretsIn(value, depth+1, add)
		case value.Kind() == '"' && slices.Contains(secretMembers, name):
			add(strings.Trim(string(value), `"`)) // as it stands in the body, with escapes
			add(Decoded(value))
		}
	}
}

// masking replaces secrets.
func masking(secrets []string) *strings.Replacer {
	var pairs []string
	for _, s := range secrets {
		pairs = append(pairs, s, "(secret)")
	}
	return strings.NewReplacer(pairs...)
}

// mask replaces secrets in every text of the report.
func (v *Report) mask(secrets []string) {
	if len(secrets) == 0 {
		return
	}
	r := masking(secrets)
	if r.Replace(string(v.SignedBytes)) != string(v.SignedBytes) {
		v.SignedBytes = nil // with a hole in them they prove nothing
	}
	for i := range v.Fields {
		v.Fields[i].Value = r.Replace(v.Fields[i].Value)
	}
	for i := range v.Signed {
		v.Signed[i].Text = r.Replace(v.Signed[i].Text)
	}
	for i := range v.Checks {
		v.Checks[i].Detail = r.Replace(v.Checks[i].Detail)
	}
	for i := range v.Differs {
		d := &v.Differs[i]
		d.Signed, d.Sent = r.Replace(d.Signed), r.Replace(d.Sent)
	}
	v.Sentence, v.Fix = r.Replace(v.Sentence), r.Replace(v.Fix)
}
