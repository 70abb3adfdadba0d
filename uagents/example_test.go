package uagents_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/parley-hub/parley/uagents"
)

type WeatherQuery struct {
	City string `json:"city"`
}

type WeatherReport struct {
	Celsius float64 `json:"celsius"`
}

// weather is an agent behind an HTTP server.
func weather() (agent *httptest.Server, address string) {
	id, err := uagents.IdentityFromSeed("weather agent of the examples", 0)
	if err != nil {
		log.Fatal(err)
	}
	query, report := uagents.ModelOf[WeatherQuery](), uagents.ModelOf[WeatherReport]()
	agent = httptest.NewServer(&uagents.Server{
		Resolve: uagents.Serve(&uagents.Agent{
			Address: id.Address(),
			Models:  uagents.Models(query),
			Handler: func(_ context.Context, r *uagents.Request) (uagents.Response, error) {
				var q WeatherQuery
				if err := r.Content.Bind(&q); err != nil {
					return uagents.Response{}, err
				}
				return uagents.Answer(report.Message(WeatherReport{21.5})), nil
			},
		}),
	})
	return agent, id.Address()
}

// Send a message to an agent and wait for its answer.
func Example() {
	agent, address := weather()
	defer agent.Close()

	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()
	me, err := uagents.IdentityFromSeed("alice recovery phrase", 0)
	if err != nil {
		log.Fatal(err)
	}
	c := &uagents.Client{Identity: me, Resolver: uagents.Endpoints{address: {agent.URL + "/submit"}}}
	c.HTTP = http.DefaultClient // the example runs on loopback, which the default refuses

	model := uagents.ModelOf[WeatherQuery]() // schema digest as the Python library computes it
	reply, err := c.Ask(ctx, address, model.Message(WeatherQuery{"Bern"}))
	var e *uagents.Error
	switch {
	case errors.As(err, &e):
		log.Fatalf("%s (retry: %v)", e.Text, e.Retryable)
	case err != nil:
		log.Fatal(err)
	}
	fmt.Println(reply.Assurance, string(reply.Payload)) // sync answers of the reference are unsigned
	// Output: unsigned {"celsius": 21.5}
}

// Verify an envelope in any http.Handler.
func ExampleVerifier() {
	me, err := uagents.IdentityFromSeed("alice recovery phrase", 0)
	if err != nil {
		log.Fatal(err)
	}
	v := &uagents.Verifier{Self: me.Address()} // strict; remembers digests, bounded
	http.HandleFunc("POST /inbox", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			uagents.WriteError(w, uagents.ErrTooLarge)
			return
		}
		verified, err := v.Verify(r.Context(), body)
		if err != nil && !errors.Is(err, uagents.ErrReplay) {
			uagents.WriteError(w, err) // coded, in the reference's words
			return
		}
		if err == nil {
			log.Print(verified.Sender, " says ", string(verified.Content.Payload))
		}
		fmt.Fprint(w, "{}")
	})
	_, err = v.Verify(context.Background(), []byte(`{"message": "hello"}`))
	fmt.Println(uagents.AsError(err).Text)
	// Output: contents do not match envelope schema
}

// Check one envelope: it counts once.
func ExampleVerifier_Verify() {
	alice, err := uagents.IdentityFromSeed("alice recovery phrase", 0)
	if err != nil {
		log.Fatal(err)
	}
	const me = "agent1qvg94auggu6jhg3ccfwpjvlkp0n9zglupzqjcnlup6qj09u96lwvvnvhwr4"
	e, err := uagents.NewEnvelope(alice.Address(), me, "", uagents.ModelOf[WeatherQuery]().Message(WeatherQuery{"Bern"}),
		time.Now().Add(time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	if err := e.Sign(alice); err != nil {
		log.Fatal(err)
	}
	text, err := e.Encode()
	if err != nil {
		log.Fatal(err)
	}

	v := &uagents.Verifier{Self: me} // one for all envelopes: it remembers their digests
	for range 2 {
		m, err := v.Verify(context.Background(), text)
		fmt.Println(m.Sender == alice.Address(), string(m.Content.Payload), errors.Is(err, uagents.ErrReplay))
	}
	// Output:
	// true {"city": "Bern"} false
	// true {"city": "Bern"} true
}

// Declare a model and its digest from a Go struct.
func ExampleModelOf() {
	type Message struct {
		Message string `json:"message"`
	}
	m := uagents.ModelOf[Message]()
	fmt.Println(m.Digest())
	fmt.Println(string(m.Message(Message{"hé"}).Payload))
	// Output:
	// model:29f75d79d429d3b533c9a956e3592ce146cd77443f6788ba81cb4e6f7f957e05
	// {"message": "h\u00e9"}
}

// Chat with an agent of ASI:One or Agentverse.
func ExampleChatHandler() {
	id, err := uagents.IdentityFromSeed("chat agent of the examples", 0)
	if err != nil {
		log.Fatal(err)
	}
	server := &uagents.Server{
		Resolve: uagents.Serve(&uagents.Agent{
			Address: id.Address(), Identity: id,
			Handler: uagents.ChatHandler(nil, func(_ context.Context, r *uagents.Request,
				m *uagents.ChatMessage) (*uagents.ChatMessage, error) {
				answer := uagents.NewChat(time.Now(), uagents.Text("you said "+m.Text()), uagents.EndSession())
				return &answer, nil
			}),
		}),
		Client: &uagents.Client{Resolver: uagents.Almanac("https://agentverse.ai")}, // for the answers
	}
	srv := httptest.NewServer(server) // in a program: http.ListenAndServe(":8000", server)
	defer srv.Close()
	fmt.Println(id.Identifier(false))
	// Output: agent://agent1qvg94auggu6jhg3ccfwpjvlkp0n9zglupzqjcnlup6qj09u96lwvvnvhwr4
}
