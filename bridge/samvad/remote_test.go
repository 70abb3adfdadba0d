package samvad_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
)

// limited is an agent elsewhere that takes two requests a minute of one sender, as
// its card says, and more of all together.
func limited(t *testing.T, w *world, c *clock) (calls *atomic.Int64) {
	t.Helper()
	host := w.SAMVAD().Hosting()
	key, err := samvad.ParseKey(host.Key)
	if err != nil {
		t.Fatal(err)
	}
	id := identity(t, "agent://limited.test")
	calls = new(atomic.Int64)
	card := &samvad.Card{ID: id.ID(), Name: "Limited", Version: "7", Description: "x", URL: "http://limited.test",
		Specializations: []string{"museums"}, Models: []samvad.Model{{Provider: "p", Model: "m"}},
		PublicKeys: []samvad.CardKey{samvad.CardKeyOf(id, true)},
		RateLimit:  &samvad.RateLimit{RequestsPerMinute: 5, RequestsPerSender: 2},
		Skills: []samvad.Skill{{ID: "ask", Name: "Ask", Description: "x", Modes: []samvad.Mode{samvad.ModeSync},
			Trust: samvad.TrustPublic}}}
	s := &samvad.Server{Verifier: &samvad.Verifier{Keys: samvad.StaticKeys{host.Identity: {key}}, Now: c.now},
		Agent: &samvad.Agent{Card: card.Complete(), Handler: func(context.Context, *samvad.Request) (samvad.Response,
			error) {
			return samvad.Response{Result: []byte(`{}`)}, nil
		}}}
	at := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			calls.Add(1)
		}
		s.ServeHTTP(rw, r)
	}))
	t.Cleanup(at.Close)
	i, err := w.SAMVAD().Identity(id.ID(), at.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Hub().Directory().Put(t.Context(), parley.Agent{Name: "limited", Identities: []parley.Identity{i}},
		directory.FromOperator); err != nil {
		t.Fatal(err)
	}
	return calls
}

// Requests beyond the limit on an agent's card wait here, so that the agent refuses
// none; they go when the minute is over.
func TestTrafficIsShapedByTheCard(t *testing.T) {
	c := newClock()
	w := newWorld(t, node.Config{Now: c.now})
	calls := limited(t, w, c)
	deliver := func() hub.Outcome {
		t.Helper()
		e, ok := w.Hub().Directory().Agent("limited")
		if !ok {
			t.Fatal("the agent is gone")
		}
		id, _ := e.Identity("samvad")
		return w.SAMVAD().Deliver(t.Context(), hub.Outbound{Message: submission("limited").Message, Recipient: e,
			Identity: id, Attempt: 1})
	}
	for range 2 {
		if o := deliver(); o.Err != nil || !o.Answered {
			t.Fatalf("%+v", o)
		}
	}
	for range 3 {
		o := deliver()
		if o.Err == nil || o.Err.Code != parley.RateLimited || !o.Err.Retryable || o.Wait <= 0 ||
			o.Wait > time.Minute || o.Unknown {
			t.Errorf("beyond the limit: %+v", o)
		}
	}
	if n := calls.Load(); n != 2 {
		t.Errorf("the agent was asked %d times", n)
	}
	c.to(c.now().Add(time.Minute))
	if o := deliver(); o.Err != nil || calls.Load() != 3 {
		t.Errorf("after a minute: %+v, %d calls", o, calls.Load())
	}
}

// Cards show the limits that hold here: the hub's own, and those of an agent elsewhere,
// which its callers share; the rest comes from the agent's own card.
func TestCardsSayWhatIsTrue(t *testing.T) {
	c := newClock()
	w := newWorld(t, node.Config{Now: c.now, Limits: node.Limits{SenderRate: 3}})
	limited(t, w, c)
	here, err := w.client.Card(t.Context(), w.base+"/agents/crew/echo")
	if err != nil || here.RateLimit.RequestsPerSender != 180 || here.RateLimit.RequestsPerMinute <= 180 {
		t.Errorf("%+v, %v", here.RateLimit, err)
	}
	there, err := w.client.Card(t.Context(), w.base+"/agents/limited")
	if err != nil || *there.RateLimit != (samvad.RateLimit{RequestsPerMinute: 2, RequestsPerSender: 2}) ||
		!slices.Equal(there.Specializations, []string{"museums"}) ||
		!slices.Equal(there.Models, []samvad.Model{{Provider: "p", Model: "m"}}) ||
		there.Version != "7" || there.Name != "Limited" {
		t.Errorf("%+v, %v", there, err)
	}
}
