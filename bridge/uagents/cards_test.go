package uagents_test

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/uagents"
)

// TestCards: a chat answer without text arrives: an interactive card is a metadata
// block. A chat answer without content is a failure.
func TestCards(t *testing.T) {
	w := newWorld(t, node.Config{})
	one := uagents.Metadata(map[string]string{"card_kind": "form", "card_payload": `{"fields":[]}`})
	two := uagents.Metadata(map[string]string{"card_kind": "detail"})
	formJSON, detailJSON := `{"card_kind":"form","card_payload":"{\"fields\":[]}"}`, `{"card_kind":"detail"}`
	answers := map[string][]uagents.Content{
		"card":      {one},
		"two cards": {one, two},
		"narrated":  {one, uagents.Text("Choose."), two, uagents.EndSession()},
		"nothing":   {},
		"goodbye":   {uagents.StartSession(), uagents.Metadata(map[string]string{}), uagents.EndSession()},
		"a stream":  {{Type: uagents.TypeStartStream, StreamID: "3f0d3f0c-5d1c-4c5e-9b8e-3f6f0c1d2e4b"}},
	}
	chats := func(_ context.Context, _ *uagents.Request, m *uagents.ChatMessage) (*uagents.ChatMessage, error) {
		if _, asked := answers[m.Text()]; !asked {
			return nil, nil
		}
		out := uagents.NewChat(time.Now(), answers[m.Text()]...)
		return &out, nil
	}
	asynchronous := w.nameOf(w.newPeer(uagents.ChatHandler(nil, chats)).Identity)
	// An agent that does not use this registry answers in the HTTP response.
	id := identity(t)
	s := &uagents.Server{Resolve: uagents.Serve(&uagents.Agent{Address: id.Address(), Identity: id,
		Handler: func(ctx context.Context, r *uagents.Request) (uagents.Response, error) {
			m, err := r.Chat()
			if err != nil {
				return uagents.Response{}, err
			}
			out, err := chats(ctx, r, m)
			return uagents.Answer(out.Message()), err
		}})}
	h := httptest.NewServer(s)
	t.Cleanup(func() {
		h.Close()
		if err := s.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	i, err := w.UAgents().Identity(id.Address(), h.URL+"/submit")
	if err == nil {
		a := parley.Agent{Name: "elsewhere", Identities: []parley.Identity{i}}
		_, err = w.Hub().Directory().Put(t.Context(), a, directory.FromOperator)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, agent := range []string{asynchronous, "elsewhere"} {
		for asked, want := range map[string][]parley.Part{
			"card": {{MediaType: "application/json", Data: []byte(formJSON)}},
			"two cards": {{MediaType: "application/json", Data: []byte(formJSON)},
				{MediaType: "application/json", Data: []byte(detailJSON)}},
			"narrated": {parley.Text("Choose."), {MediaType: "application/json", Name: "metadata",
				Data: []byte(formJSON)},
				{MediaType: "application/json", Name: "metadata", Data: []byte(detailJSON)}},
		} {
			r, err := w.ask("crew/echo", agent, "", parley.Text(asked))
			if err != nil || r.Kind != parley.Response {
				t.Fatalf("%s of %s: %+v, %v", asked, agent, r, err)
			}
			if len(r.Parts) != len(want) {
				t.Fatalf("%s of %s: %+v", asked, agent, r.Parts)
			}
			for i, p := range r.Parts {
				if p.MediaType != want[i].MediaType || p.Name != want[i].Name ||
					string(p.Data) != string(want[i].Data) {
					t.Errorf("%s of %s: part %d is %q %q %s", asked, agent, i, p.MediaType, p.Name, p.Data)
				}
			}
		}
		for _, asked := range []string{"nothing", "goodbye", "a stream"} {
			r, err := w.ask("crew/echo", agent, "", parley.Text(asked))
			if err != nil || r.Kind != parley.Failure || r.Error.Code != parley.HandlerFailed ||
				!strings.Contains(r.Error.Text, "no content") {
				t.Errorf("%s of %s: %+v, %v", asked, agent, r, err)
			}
		}
	}
}

// TestCardSelection: metadata beside the text of a chat reaches an agent of another
// protocol, and does not disturb a skill that takes text.
func TestCardSelection(t *testing.T) {
	w := newWorld(t, node.Config{})
	got := make(chan *parley.Message, 4)
	if err := w.Handle(parley.Agent{Name: "shop", Exposed: parley.Everywhere},
		parley.RawSkill("talk", func(_ context.Context, m *parley.Message, r parley.Replier) error {
			got <- m
			return r.Reply(parley.Text("ok"))
		}, parley.AsDefault())); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool {
		e, ok := w.Hub().Directory().Agent("shop")
		return ok && w.UAgents().Address(e) != ""
	})
	alice := w.newPeer(nil)
	selection := uagents.Metadata(map[string]string{"card_selection": `{"id":7}`})
	for _, content := range [][]uagents.Content{{uagents.Text("Continue"), selection}, {selection}} {
		m := uagents.NewChat(time.Now(), content...)
		if status, body, _ := w.post(w.envelope(alice.Identity, w.address("shop"), "", m.Message()),
			false); status != 200 {
			t.Fatal(status, body)
		}
		var r *parley.Message
		select {
		case r = <-got:
		case <-time.After(wait):
			t.Fatal("nothing arrived")
		}
		if p := r.Parts[len(r.Parts)-1]; len(r.Parts) != len(content) ||
			string(p.Data) != `{"card_selection":"{\"id\":7}"}` {
			t.Errorf("%+v", r.Parts)
		}
	}
	// A skill that takes {"text": …}.
	before := w.calls.Load()
	m := uagents.NewChat(time.Now(), selection, uagents.Text("hello"))
	e := w.envelope(alice.Identity, w.address("crew/echo"), "", m.Message())
	if status, body, _ := w.post(e, false); status != 200 {
		t.Fatal(status, body)
	}
	waitFor(t, func() bool { return w.calls.Load() == before+1 })
}

// TestDuplicateMembers: a chat message with duplicate member names is read as by Python,
// recorded unchanged, and sent on without the duplicates, which is a reported loss. An
// envelope with duplicate member names is refused.
func TestDuplicateMembers(t *testing.T) {
	w := newWorld(t, node.Config{})
	alice := w.newPeer(nil)
	session := uagents.NewSession()
	payload := `{"timestamp":"2026-01-02T03:04:05+00:00","msg_id":"` + session + `",` +
		`"content":[{"type":"text","text":"first","text":"last"}]}`
	m := uagents.Message{Schema: uagents.ChatMessageDigest, Payload: []byte(payload)}
	e := w.envelope(alice.Identity, w.address("crew/echo"), session, m)
	if status, body, _ := w.post(e, false); status != 200 {
		t.Fatal(status, body)
	}
	if a := alice.next(t); a.SchemaDigest != uagents.ChatAcknowledgementDigest {
		t.Fatalf("%s", a.Raw())
	}
	if c := chatText(t, alice.next(t)); c.Text() != "last" {
		t.Errorf("the answer is %q", c.Text())
	}
	r := w.recorded(w.nameOf(alice.Identity), "crew/echo").Message
	raw, err := uagents.Decode(r.Origin.Raw)
	if err != nil {
		t.Fatal(err)
	}
	if said, err := raw.Message(); err != nil || string(said.Payload) != payload {
		t.Errorf("recorded as %s, %v", said.Payload, err)
	}
	var lost []string
	ways := []bridge.Way{bridge.SAMVAD, bridge.Chat, bridge.Model, bridge.Inbox, bridge.Call, bridge.AGH, bridge.ASP}
	for _, way := range ways {
		for _, l := range bridge.Losses(way, r, "x") {
			lost = append(lost, l.Field)
		}
	}
	if got := strings.Count(strings.Join(lost, " "), "duplicate_members"); got != 7-2 { // not within the protocol
		t.Errorf("lost: %v", lost)
	}
	b, err := w.envelope(alice.Identity, w.address("crew/echo"), "", m).Encode()
	if err != nil {
		t.Fatal(err)
	}
	twice := strings.Replace(string(b), `"version":`, `"version":1,"version":`, 1)
	if status, body := w.postRaw("POST", "/submit", "application/json", twice); status == 200 {
		t.Errorf("an envelope that names a member twice: %d %s", status, body)
	}
}
