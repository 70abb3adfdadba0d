package peerauth_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"

	"github.com/parley-hub/parley/bridge/peerauth"
)

// The agent gets its token; the origin to which it sends the client does not.
func Example() {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		fmt.Printf("elsewhere: %q\n", r.Header.Get("Authorization"))
	}))
	defer elsewhere.Close()
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Printf("agent: %q\n", r.Header.Get("Authorization"))
		http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
	}))
	defer agent.Close()

	at, err := url.Parse(agent.URL)
	if err != nil {
		log.Fatal(err)
	}
	c := peerauth.NewClient(at, peerauth.Credentials{Token: "s3cret"}, peerauth.Config{
		Allow: func() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} }})
	defer c.CloseIdleConnections()
	resp, err := (&http.Client{Transport: c}).Get(agent.URL + "/mcp")
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	// Output:
	// agent: "Bearer s3cret"
	// elsewhere: ""
}
