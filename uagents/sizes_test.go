package uagents

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley/internal/memhttp"
)

// TestSizes: an envelope at the limit of its sender is within the limit of the
// recipient: for requests, answers and mailboxes.
func TestSizes(t *testing.T) {
	you, me := seeded(t, "you"), seeded(t, "me")
	model := ModelOf[echoMessage]()
	// The text of the message has one MiB, as the default limit counts.
	full := model.Message(echoMessage{strings.Repeat("a", 1<<20-len(`{"message": ""}`))})
	agent := &Agent{Address: you.Address(), Identity: you, Handler: func(_ context.Context, r *Request) (Response,
		error) {
		return Answer(Message{Schema: r.SchemaDigest, Payload: r.Content.Payload}), nil
	}}
	net := memhttp.Hosts{"you.test": &Server{Resolve: Serve(agent), Log: quiet()}}
	client := &Client{Identity: me, HTTP: net.Client(), Resolver: Endpoints{you.Address(): {"http://you.test/submit"}}}
	reply, err := client.Ask(t.Context(), you.Address(), full)
	if err != nil || string(reply.Payload) != string(full.Payload) {
		t.Fatalf("%v", err)
	}

	limit := EnvelopeSize(1 << 20)
	for size, want := range map[int]int{limit: 400, limit + 1: 413} {
		if status, body := submit(net["you.test"], []byte(strings.Repeat(" ", size))); status != want {
			t.Errorf("%d bytes: %d %s", size, status, body)
		}
	}

	boxes := &MailboxServer{Store: &MemoryMailbox{}}
	net["box.test"] = boxes
	box := &MailboxClient{URL: "http://box.test", Identity: you, HTTP: net.Client(), Interval: time.Millisecond}
	if _, err := box.List(t.Context()); err != nil { // makes the mailbox
		t.Fatal(err)
	}
	const many = 20 // more than fit into one answer
	for i := range many {
		m := model.Message(echoMessage{fmt.Sprintf("%02d", i) + strings.Repeat("a", 1<<20-100)})
		e := signedAt(t, me, you.Address(), "", m, time.Now().Add(time.Minute))
		if rec := submitTo(boxes, "/v2/agents/mailbox/submit", encoded(t, e)); rec.Code != 200 {
			t.Fatal(rec.Code, rec.Body)
		}
	}
	got := 0
	for d, err := range box.Stream(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf(`{"message": "%02d`, got); !strings.HasPrefix(string(d.Content.Payload), want) {
			t.Fatalf("%.20s, want %s", d.Content.Payload, want)
		}
		if got++; got == many {
			break
		}
	}
}
