package samvad_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"

	"github.com/parley-hub/parley/samvad"
)

// A sender, and its key as the receiver enrols it.
func sender() (*samvad.Identity, samvad.Key) {
	me, err := samvad.NewIdentity("agent://client.local", "key-current")
	if err != nil {
		panic(err)
	}
	return me, me.Key()
}

// Loopback is called only if it is allowed.
var loopback = samvad.AllowPrefixes(netip.MustParsePrefix("127.0.0.0/8"))

// Verify one SAMVAD request in an http.Handler.
func ExampleVerifier() {
	me, key := sender()
	v := &samvad.Verifier{
		Self: "agent://weather.corp",
		Keys: samvad.FirstOf(samvad.StaticKeys{"agent://client.local": {key}}, &samvad.CardStore{}),
	} // Memory nil: bounded, in process; bring your own to share it between replicas
	mux := http.NewServeMux()
	mux.HandleFunc("POST /agent/message", func(w http.ResponseWriter, r *http.Request) {
		req, err := v.Verify(r) // size, envelope, freshness, replay, digest, signature; r.Body stays readable
		if err != nil {
			slog.Warn("refused", "why", err, "verdict", samvad.VerdictOf(err))
			samvad.WriteError(w, err) // coded, generic
			return
		}
		fmt.Println("asked by", req.From, "for", req.Skill, "with", req.Verdict.KeyID)
		samvad.WriteResult(w, req, map[string]any{"celsius": 21})
	})
	srv := httptest.NewServer(mux)
	defer srv.Close()

	c := &samvad.Client{Identity: me, Guard: loopback, HTTP: srv.Client()}
	reply, err := c.Ask(context.Background(), samvad.Call{URL: srv.URL, To: "agent://weather.corp", Skill: "forecast"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(string(reply.Result))
	// Output:
	// asked by agent://client.local for forecast with key-current
	// {"celsius":21}
}

// weather serves the agent agent://weather.corp to one sender.
func weather(key samvad.Key) *httptest.Server {
	self, err := samvad.NewIdentity("agent://weather.corp", "weather-1")
	if err != nil {
		panic(err)
	}
	return httptest.NewServer(&samvad.Server{Verifier: &samvad.Verifier{Keys: samvad.StaticKeys{"agent://client.local": {key}}},
		Agent: &samvad.Agent{Identity: self, Card: (&samvad.Card{ID: self.ID(), Name: "Weather", URL: "https://weather.corp",
			PublicKeys: []samvad.CardKey{samvad.CardKeyOf(self, true)},
			Skills: []samvad.Skill{{ID: "forecast", Name: "Forecast", Trust: samvad.TrustPublic,
				Modes: []samvad.Mode{samvad.ModeSync, samvad.ModeStream}}}}).Complete(),
			Handler: func(_ context.Context, req *samvad.Request) (samvad.Response, error) {
				return samvad.Response{Result: []byte(`{"celsius":21}`)}, req.Chunk([]byte(`"asking the station"`))
			}}})
}

// Call an agent and wait for its answer.
func ExampleClient_Ask() {
	me, key := sender()
	agent := weather(key)
	defer agent.Close()
	c := &samvad.Client{Identity: me, Guard: loopback} // without Guard it calls public addresses only
	reply, err := c.Ask(context.Background(), samvad.Call{URL: agent.URL, Skill: "forecast",
		Payload: []byte(`{"city":"Bern"}`)})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(string(reply.Result))
	// Output: {"celsius":21}
}

// Read an answer piece by piece.
func ExampleClient_Stream() {
	me, key := sender()
	agent := weather(key)
	defer agent.Close()
	c := &samvad.Client{Identity: me, Guard: loopback}
	for event, err := range c.Stream(context.Background(), samvad.Call{URL: agent.URL, Skill: "forecast"}) {
		switch {
		case err != nil: // also a stream that breaks off
			fmt.Println(err)
		case event.Done:
			fmt.Printf("result: %s\n", event.Result)
		default:
			fmt.Printf("chunk: %s\n", event.Chunk)
		}
	}
	// Output:
	// chunk: "asking the station"
	// result: {"celsius":21}
}

// Serve an agent, all seven endpoints.
func ExampleServer() {
	me, key := sender()
	self, err := samvad.NewIdentity("agent://weather.corp", "weather-1")
	if err != nil {
		fmt.Println(err)
		return
	}
	agent := &samvad.Agent{
		Identity: self,
		Card: &samvad.Card{
			ID: self.ID(), Name: "Weather", Description: "Knows the weather.", URL: "https://weather.corp",
			PublicKeys: []samvad.CardKey{samvad.CardKeyOf(self, true)},
			Skills: []samvad.Skill{{
				ID: "forecast", Name: "Forecast", Description: "Temperature of a city.",
				Modes: []samvad.Mode{samvad.ModeSync, samvad.ModeStream}, Trust: samvad.TrustPublic,
				InputSchema: []byte(`{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}`),
			}},
		},
		Handler: func(_ context.Context, req *samvad.Request) (samvad.Response, error) {
			if err := req.Chunk([]byte(`"asking the station"`)); err != nil { // a stream's client sees it
				return samvad.Response{}, err
			}
			return samvad.Response{Result: []byte(`{"celsius":21.0}`)}, nil
		},
	}
	if err := agent.Check(); err != nil {
		fmt.Println(err)
		return
	}
	server := &samvad.Server{Agent: agent, Verifier: &samvad.Verifier{Keys: samvad.StaticKeys{me.ID(): {key}}}}
	srv := httptest.NewServer(server)
	defer srv.Close()

	c := &samvad.Client{Identity: me, Guard: loopback, HTTP: srv.Client()}
	for event, err := range c.Stream(context.Background(), samvad.Call{URL: srv.URL,
		Skill: "forecast", Payload: []byte(`{"city":"Bern"}`)}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		if event.Done {
			fmt.Printf("result: %s\n", event.Result)
		} else {
			fmt.Printf("chunk: %s\n", event.Chunk)
		}
	}
	// Output:
	// chunk: "asking the station"
	// result: {"celsius":21.0}
}

// A failure is an *Error with a code; its text may be shown, its cause is for the
// log.
func ExampleError() {
	me, _ := sender()
	v := &samvad.Verifier{Self: "agent://weather.corp"} // knows no sender
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := v.Verify(r); err != nil {
			samvad.WriteError(w, err)
		}
	}))
	defer srv.Close()
	c := &samvad.Client{Identity: me, Guard: loopback, HTTP: srv.Client()}
	_, err := c.Ask(context.Background(), samvad.Call{URL: srv.URL, To: "agent://weather.corp", Skill: "forecast"})
	var e *samvad.Error
	if errors.As(err, &e) {
		fmt.Println(e.Code, e.Text, e.Retryable)
	}
	// Output:
	// AUTH_FAILED Authentication failed. false
}
