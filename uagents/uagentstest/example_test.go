package uagentstest_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/parley-hub/parley/uagents"
	"github.com/parley-hub/parley/uagents/uagentstest"
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

type Question struct {
	City string `json:"city"`
}

// The model of the questions and answers, and a question.
var (
	model = uagents.ModelOf[Question]()
	bern  = model.Message(Question{"Bern"})
)

// handler is the code under test.
func handler(self string) http.Handler {
	return &uagents.Server{Log: slog.New(slog.DiscardHandler), Resolve: uagents.Serve(&uagents.Agent{Address: self,
		Handler: func(_ context.Context, r *uagents.Request) (uagents.Response, error) {
			return uagents.Answer(r.Content), nil
		}})}
}

// Your handler takes the genuine envelope and none of the forgeries.
func ExamplePeer_Forgeries() {
	alice, me := uagentstest.NewPeer(t, "alice"), uagentstest.NewPeer(t, "me")
	h := handler(me.Address())
	for _, f := range alice.Forgeries(me.Address(), bern) {
		w, r := httptest.NewRecorder(), httptest.NewRequest("POST", "/submit", bytes.NewReader(f.Envelope))
		r.Header.Set("Content-Type", "application/json")
		h.ServeHTTP(w, r) // a duplicate is answered with 200, too
		if f.Err != uagents.ErrReplay && (w.Code == http.StatusOK) != (f.Err == nil) {
			t.Errorf("an envelope %s: %d %s", f.Name, w.Code, w.Body)
		}
	}
}

// Call your agent without a socket.
func ExamplePeer_Client() {
	alice, me := uagentstest.NewPeer(t, "alice"), uagentstest.NewPeer(t, "me")
	client := alice.Client(handler(me.Address()))
	reply, err := client.Ask(t.Context(), me.Address(), bern)
	if err != nil || string(reply.Payload) != `{"city": "Bern"}` {
		t.Errorf("%+v, %v", reply, err)
	}
}

// Test a program that calls an agent: the peer is the agent.
func ExamplePeer_HTTP() {
	me, weather := uagentstest.NewPeer(t, "me"), uagentstest.NewPeer(t, "weather")
	weather.Handle(func(context.Context, *uagents.Request) (uagents.Response, error) {
		return uagents.Answer(bern), nil
	})
	// Your program's client:
	client := &uagents.Client{Identity: me.Identity, HTTP: weather.HTTP(), Resolver: weather.Resolver()}
	_, err := client.Ask(t.Context(), weather.Address(), bern)
	if got := weather.Received(); err != nil || len(got) != 1 || got[0].Sender != me.Address() {
		t.Errorf("the agent received %v: %v", got, err)
	}
}

// Check an own store. Here it is the one of package uagents.
func ExampleTestMailboxStore() {
	err := uagentstest.TestMailboxStore(func() uagents.MailboxStore { return &uagents.MemoryMailbox{} })
	fmt.Println(err)
	// Output: <nil>
}
