package node

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/asp"
	a2ebridge "github.com/parley-hub/parley/bridge/a2e"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/samvad"
)

// gallery adds an agent without an identity in the five protocols, which has a stand-in in each.
// It gives their addresses.
func (f *five) gallery() map[string]string {
	f.t.Helper()
	if _, err := f.Hub().Directory().Put(f.t.Context(), parley.Agent{Name: "gallery", Exposed: parley.Everywhere,
		Skills:     []parley.SkillSpec{{ID: "say", Default: true}},
		Identities: []parley.Identity{{Protocol: "other", ID: "gallery"}}}, directory.FromOperator); err != nil {
		f.t.Fatal(err)
	}
	return f.addresses("gallery")
}

// link gives the gallery an identity of its own.
func (f *five) link(id admin.NewIdentity) {
	f.t.Helper()
	v, err := f.Admin().Link(f.t.Context(), everything, "gallery", id)
	if err != nil || !slices.Contains(v.Native, id.Protocol) {
		f.t.Fatalf("%+v, %v", v, err)
	}
}

// A message to the address of a retired stand-in reaches the agent at its own identity,
// over sockets.
func TestLinkForwardsTheAddressOfAStandIn(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	t.Run("samvad", func(t *testing.T) {
		f := newFive(t, fiveConfig())
		old := f.gallery()["samvad"]
		before, err := f.samvad.Card(ctx, old)
		if err != nil {
			t.Fatal(err)
		}
		id, err := samvad.NewIdentity("agent://gallery.test", "key-current")
		if err != nil {
			t.Fatal(err)
		}
		hub := f.SAMVAD().Hosting()
		key, err := samvad.ParseKey(hub.Key)
		if err != nil {
			t.Fatal(err)
		}
		card := &samvad.Card{ID: id.ID(), Name: "Gallery", Version: "1", Description: "x", URL: "http://gallery.test",
			PublicKeys: []samvad.CardKey{samvad.CardKeyOf(id, true)},
			Skills: []samvad.Skill{{ID: "say", Name: "Say", Description: "x", InputSchema: []byte(`{"type":"object"}`),
				OutputSchema: []byte(`{"type":"object"}`),
				Modes:        []samvad.Mode{samvad.ModeSync}, Trust: samvad.TrustPublic}}}
		s := httptest.NewServer(&samvad.Server{Verifier: &samvad.Verifier{Keys: samvad.StaticKeys{hub.Identity: {key}}},
			Agent: &samvad.Agent{Card: card.Complete(), Limit: &samvad.RateLimit{},
				Handler: func(context.Context, *samvad.Request) (samvad.Response, error) {
					return samvad.Response{Result: []byte(`{"by":"itself"}`)}, nil
				}}})
		defer s.Close()
		f.link(admin.NewIdentity{Protocol: "samvad", ID: id.ID(), URL: s.URL})
		r, err := f.samvad.Ask(ctx, samvad.Call{URL: old, To: before.ID, Skill: "say"})
		if err != nil || string(r.Result) != `{"by":"itself"}` {
			t.Errorf("%+v, %v", r, err)
		}
	})
	t.Run("a2e", func(t *testing.T) {
		f := newFive(t, fiveConfig())
		old := f.gallery()["a2e"]
		const token = "token-of-the-gallery-0123456789"
		f.link(admin.NewIdentity{Protocol: "a2e", ID: a2ebridge.TokenID(token)})
		if at := f.addresses("gallery")["a2e"]; at != old {
			t.Errorf("it was reached at %s, and is at %s", old, at)
		}
		itself := &a2e.Client{URL: f.Addresses().A2E, Token: token}
		defer itself.Close()
		served := make(chan error, 1)
		go func() {
			ask := make(chan string, 1)
			reading, read := context.WithCancel(ctx)
			defer read()
			go func() {
				select {
				case id := <-ask:
					_, err := itself.CallTool(ctx, "parley_reply",
						map[string]any{"id": id, "content": map[string]any{"by": "itself"}}, nil)
					served <- err
				case <-ctx.Done():
					served <- ctx.Err()
				}
				read()
			}()
			// the call ends when reading does
			_, _ = itself.CallTool(reading, "parley_inbox", map[string]any{"wait": 30, "max": 1}, func(e a2e.Event) {
				var m struct{ ID string }
				if json.Unmarshal(e.Data, &m) == nil && m.ID != "" {
					ask <- m.ID
				}
			})
		}()
		r, err := f.a2e.CallTool(ctx, "gallery__say", map[string]any{"a": 1}, nil)
		if b, merr := json.Marshal(r.Data); err != nil || merr != nil || !strings.Contains(string(b), "itself") {
			t.Errorf("%+v, %v, %v", r, err, merr)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	t.Run("asp", func(t *testing.T) {
		f := newFive(t, fiveConfig())
		old := f.gallery()["asp"]
		f.until("the stand-in is registered", func() bool { _, err := f.asp.Card(ctx, old); return err == nil })
		id, err := asp.GenerateIdentity("agent://gallery.example/test/gallery", "org_gallery")
		if err != nil {
			t.Fatal(err)
		}
		itself := &asp.Client{Server: f.Addresses().Local, Identity: id, HTTP: f.web}
		card := id.Card()
		card.Name = id.ID()
		if err := itself.Register(ctx, card, nil); err != nil {
			t.Fatal(err)
		}
		if guest, ok := f.Hub().Directory().Lookup("asp", id.ID()); ok { // a separate agent until the identities are linked
			if err := f.Hub().Directory().Remove(ctx, guest.Name); err != nil {
				t.Fatal(err)
			}
		}
		f.link(admin.NewIdentity{Protocol: "asp", ID: id.ID()})
		serving, stop := context.WithCancel(ctx)
		served := make(chan error, 1)
		go func() {
			served <- func() error {
				for inv, err := range itself.Invitations(serving) {
					if err != nil {
						return err
					}
					s, err := itself.Join(serving, inv.SessionID)
					if err != nil {
						return err
					}
					for m, err := range s.Messages(serving) {
						switch {
						case err != nil:
							return err
						case m.IsInvitation():
							_, err = s.Send(serving, asp.Accept, asp.Answer{}, asp.InReplyTo(m))
						case m.Performative == asp.Query:
							_, err = s.Send(serving, asp.Inform,
								asp.Information{InformType: "result", Data: map[string]string{"by": "itself"}},
								asp.InReplyTo(m))
						}
						if err != nil {
							return err
						}
					}
				}
				return nil
			}()
		}()
		s, err := f.asp.Open(ctx, asp.Invitation{To: []string{old}, Purpose: "to test"})
		if err != nil {
			t.Fatal(err)
		}
		for m, err := range s.Messages(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			if m.State == asp.Introduced || m.State.Terminal() {
				break
			}
		}
		m, err := s.Ask(ctx, asp.Question{QueryType: "say", Parameters: map[string]any{"a": 1}})
		if err != nil || !strings.Contains(string(m.Body), "itself") {
			t.Errorf("%+v, %v", m, err)
		}
		stop()
		if err := <-served; serving.Err() == nil {
			t.Error(err)
		}
	})
}
