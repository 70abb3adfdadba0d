package samvadtest_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/parley-hub/parley/samvad"
	"github.com/parley-hub/parley/samvad/samvadtest"
)

// In a program, t is that of the test.
var t *testing.T

// TestExamples runs the examples, which need a test.
func TestExamples(real *testing.T) {
	t = real
	ExamplePeer_Forgeries()
	ExamplePeer_Client()
	ExamplePeer_HTTP()
}

// handler is the code under test.
func handler(keys samvad.Keys) http.Handler {
	v := &samvad.Verifier{Self: "agent://weather.test", Keys: keys}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req, err := v.Verify(r)
		if err != nil {
			samvad.WriteError(w, err)
			return
		}
		samvad.WriteResult(w, req, map[string]any{"celsius": 21})
	})
}

// Your handler takes the genuine request and none of the forgeries.
func ExamplePeer_Forgeries() {
	alice := samvadtest.NewPeer(t, "agent://alice.test")
	h := handler(alice.Keys())
	for _, f := range alice.Forgeries("agent://weather.test", "forecast", `{"city":"Bern"}`) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, f.Request)
		if accepted := w.Code == http.StatusOK; accepted != (f.Err == nil) {
			t.Errorf("a request %s: %d %s", f.Name, w.Code, w.Body)
		}
	}
}

// Call your agent without a socket.
func ExamplePeer_Client() {
	alice := samvadtest.NewPeer(t, "agent://alice.test")
	client := alice.Client(handler(alice.Keys()))
	reply, err := client.Ask(t.Context(), samvad.Call{To: "agent://weather.test", Skill: "forecast"})
	if err != nil || string(reply.Result) != `{"celsius":21}` {
		t.Errorf("%+v, %v", reply, err)
	}
}

// Test a program that calls an agent: the peer is the agent.
func ExamplePeer_HTTP() {
	me, weather := samvadtest.NewPeer(t, "agent://me.test"), samvadtest.NewPeer(t, "agent://weather.test")
	weather.Skill("forecast", func(context.Context, *samvad.Request) (samvad.Response, error) {
		return samvad.Response{Result: []byte(`{"celsius":21}`)}, nil
	})
	client := &samvad.Client{Identity: me, HTTP: weather.HTTP(me.Keys())} // your program's client
	_, err := client.Ask(t.Context(), samvad.Call{URL: "http://weather.test", Skill: "forecast"})
	if got := weather.Received(); err != nil || len(got) != 1 || got[0].From != me.ID() {
		t.Errorf("the agent received %v: %v", got, err)
	}
}

// Check an own memory. Here it is the one of package samvad.
func ExampleTestMemory() {
	err := samvadtest.TestMemory(func() samvad.Memory { return samvad.NewMemory(0, nil) })
	fmt.Println(err)
	// Output: <nil>
}
