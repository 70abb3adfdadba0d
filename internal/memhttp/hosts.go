package memhttp

import (
	"fmt"
	"net/http"
	"net/http/httptest"
)

// Hosts is a network without connections: each host is a handler, which runs while the
// client waits. Answers arrive whole, so it carries no streams; see [Client].
type Hosts map[string]http.Handler

// RoundTrip implements [http.RoundTripper].
func (h Hosts) RoundTrip(r *http.Request) (*http.Response, error) {
	to := h[r.URL.Host]
	if to == nil {
		return nil, fmt.Errorf("no host %s", r.URL.Host)
	}
	in := r.Clone(r.Context())
	in.RemoteAddr, in.RequestURI, in.Host = source.String(), r.URL.RequestURI(), r.URL.Host
	if in.Body == nil {
		in.Body = http.NoBody
	}
	rec := httptest.NewRecorder()
	to.ServeHTTP(rec, in)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	resp := rec.Result()
	resp.Request = r
	return resp, nil
}

// Client gives a client of the hosts that follows no redirects.
func (h Hosts) Client() *http.Client { return &http.Client{Transport: h, CheckRedirect: stay} }

func stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
