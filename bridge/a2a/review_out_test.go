package a2a

import (
	"crypto/rand"
	"net/http"
	"slices"
	"testing"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parley-hub/parley"
)

// A2A-071: the operator gave an agent another URL while it worked on a request. The hub
// tells the former address that the task is not needed, without the agent's credentials.
func TestCredentialsStayAwayFromAFormerAddress(t *testing.T) {
	told := make(chan struct{})
	former := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, echoWork, func(a *agentElsewhere) {
		a.wrap = func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer close(told)
				h.ServeHTTP(w, r)
			})
		}
	})
	present := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, echoWork, nil)
	c := newCaller(t, callerConfig{})
	c.add("elsewhere", present.URL)
	c.SetAgent("elsewhere", AgentSettings{Credentials: Credentials{Token: "secret"}})
	id, err := parley.NewID(time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	until := time.Now().Add(time.Hour)
	if _, err := c.sent.Put(t.Context(), id.String(), sentRequest{To: "elsewhere", URL: former.URL, Task: "T",
		Until: until}, until); err != nil {
		t.Fatal(err)
	}
	c.giveUp(id)
	<-told
	if got := former.seen("Authorization"); !slices.Equal(got, []string{""}) {
		t.Errorf("the former address got %q", got)
	}
	c.ask("elsewhere", parley.Text("hi"))
	if got := present.seen("Authorization"); !slices.Equal(got, []string{"Bearer secret"}) {
		t.Errorf("the present address got %q", got)
	}
}
