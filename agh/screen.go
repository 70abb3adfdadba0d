package agh

import (
	"regexp"
	"strings"

	"github.com/parley-hub/parley/internal/jsonx"
)

// looksSecret reports whether the AGH daemon would silently drop e because it
// seems to hold a secret. The daemon searches body, members of proof and values
// of ext for suspicious member names and for phrases such as "token=…". No page
// asks for it, so that received messages are not screened; [Router.Screen] keeps
// such messages from being sent.
func looksSecret(e *Envelope) bool {
	for _, b := range [][]byte{e.Body, e.Proof, e.Ext} {
		var v any
		if len(b) > 0 && jsonx.Decode(b, &v) == nil && secretIn(v, string(b) == string(e.Ext)) {
			return true
		}
	}
	return false
}

// secretIn walks v; top leaves out the member names of v itself.
func secretIn(v any, top bool) bool {
	switch v := v.(type) {
	case string:
		return secretText.MatchString(v)
	case []any:
		for _, x := range v {
			if secretIn(x, false) {
				return true
			}
		}
	case map[string]any:
		for k, x := range v {
			if !top && secretName(k) && x != nil && x != "" || secretIn(x, false) {
				return true
			}
		}
	}
	return false
}

func secretName(name string) bool {
	name = strings.NewReplacer("_", "", "-", "", ".", "").Replace(strings.ToLower(name))
	if strings.Contains(name, "hash") {
		return false
	}
	switch name {
	case "apikey", "accesstoken", "refreshtoken", "mcpauthtoken", "oauthcode", "authorizationcode", "codeverifier",
		"pkceverifier",
		"secretbinding", "clientsecret", "authorization", "password", "secret", "token", "claimtoken":
		return true
	}
	return false
}

var secretText = regexp.MustCompile(`(?i)\bbearer\s+[a-z0-9._~+/=-]+|\bagh_claim_[a-z0-9_-]+|\b([a-z0-9_-]*_)?(api[_-]?key|token|secret|password|authorization|access[_-]?token|client[_-]?secret)\b["']?\s*[=:]\s*\S`)
