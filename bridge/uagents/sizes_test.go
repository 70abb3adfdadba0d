package uagents_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/uagents"
)

// TestSizesFit: agents may send back any content that the hub sends; larger content is
// refused before it is sent.
func TestSizesFit(t *testing.T) {
	const limit = 64 << 10
	w := newWorld(t, node.Config{Limits: node.Limits{Body: "64KiB"}})
	full := strings.Repeat("a", limit)
	grows := strings.Repeat("é", limit/2) // each é takes six bytes in a message's text

	bob := w.newPeer(uagents.ChatHandler(nil, func(_ context.Context, _ *uagents.Request,
		m *uagents.ChatMessage) (*uagents.ChatMessage, error) {
		answer := uagents.NewChat(time.Now(), uagents.Text(m.Text()), uagents.EndSession())
		return &answer, nil
	}))
	t.Run("content at the limit, to an agent and back", func(t *testing.T) {
		r, err := w.ask("crew/echo", w.nameOf(bob.Identity), "", parley.Text(full))
		if err != nil || r.Kind != parley.Response || r.Text() != full {
			t.Fatalf("%.200v, %v", r, err)
		}
		bob.next(t)
		bob.next(t) // the acknowledgement of its answer
	})
	t.Run("an envelope beyond the limit is not sent", func(t *testing.T) {
		r, err := w.ask("crew/echo", w.nameOf(bob.Identity), "", parley.Text(grows))
		if err != nil || r.Kind != parley.Failure || r.Error.Code != parley.TooLarge ||
			!strings.Contains(r.Error.Text, "limits.body") {
			t.Fatalf("%.200v, %v", r, err)
		}
		if len(bob.got) != 0 {
			t.Error("the envelope was sent")
		}
	})

	// The same from an agent: its question fits, in raw UTF-8; the answer of
	// crew/echo, with escapes, does not.
	echo, alice := w.address("crew/echo"), w.newPeer(nil)
	question := func(text string) uagents.Message {
		return uagents.Message{Schema: echoModel().Digest(), Payload: []byte(`{"text":"` + text + `"}`)}
	}
	t.Run("an answer at the limit, in the response and as an envelope", func(t *testing.T) {
		text := full[:limit-200]
		r, err := w.client(alice.Identity).Ask(t.Context(), echo, question(text))
		if err != nil || string(r.Payload) != `{"text": "`+text+`"}` {
			t.Fatalf("%v %.200v", err, r)
		}
		if status, body, _ := w.post(w.envelope(alice.Identity, echo, "", question(text)), false); status != 200 {
			t.Fatal(status, body)
		}
		if r := alice.next(t); string(r.Content.Payload) != `{"text": "`+text+`"}` {
			t.Fatalf("%.200s", r.Content.Payload)
		}
	})
	t.Run("an answer beyond the limit is an ErrorMessage", func(t *testing.T) {
		text := grows[:limit-200]
		_, err := w.client(alice.Identity).Ask(t.Context(), echo, question(text))
		if e := new(uagents.Error); !errors.As(err, &e) || e.Code != uagents.ErrPeer.Code ||
			!strings.Contains(e.Text, "too large") {
			t.Errorf("%v", err)
		}
		if status, body, _ := w.post(w.envelope(alice.Identity, echo, "", question(text)), false); status != 200 {
			t.Fatal(status, body)
		}
		if text, bad := alice.next(t).Content.IsError(); !bad || !strings.Contains(text, "too large") {
			t.Errorf("%.200q", text)
		}
	})
	t.Run("a body beyond the limit is refused", func(t *testing.T) {
		e := w.envelope(alice.Identity, echo, "", question(full+full))
		if status, body, _ := w.post(e, false); status != http.StatusRequestEntityTooLarge {
			t.Error(status, fmt.Sprintf("%.200s", body))
		}
	})
}
