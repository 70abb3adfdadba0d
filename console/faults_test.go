package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/parley-hub/parley/admin"
)

// TestFaultsAdviseTheReader: the advice of a code alone is for senders of messages, and is left out.
func TestFaultsAdviseTheReader(t *testing.T) {
	b := open(t, nil)
	w := b.entered(b.token("looker", admin.Read))
	for name, c := range map[string]struct {
		method, path string
		form         url.Values
		status       int
		advised      bool
	}{
		"no such page":             {"GET", "/console/nowhere", nil, http.StatusNotFound, false},
		"a form of another origin": {"POST", "/console/leave", url.Values{"form": {"x"}}, http.StatusForbidden, false},
		"a filter that is none":    {"GET", "/console/?since=tomorrow", nil, http.StatusBadRequest, false},
		"a role that is too low":   {"GET", "/console/audit", nil, http.StatusForbidden, true},
	} {
		status, page := w.do(c.method, c.path, c.form)
		if status != c.status || strings.Contains(page, "What helps") != c.advised {
			t.Errorf("%s: %d, advised %t", name, status, !c.advised)
		}
	}
}

// TestLinkSaysBothRoles: the page of a link has the console's word for a role, and that of its token.
func TestLinkSaysBothRoles(t *testing.T) {
	b := open(t, nil)
	for role, want := range map[admin.Role]string{admin.Read: "viewer (its token’s role is read)",
		admin.Operate:    "operator (its token’s role is operate)",
		admin.Administer: "admin (its token’s role is administer)"} {
		_, page := b.browser().do("GET", b.link(b.token("of-"+string(role), role)), nil)
		has(t, page, want)
	}
}
