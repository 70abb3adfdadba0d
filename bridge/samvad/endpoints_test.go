package samvad_test

import (
	"context"
	"io"
	"net/http"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
)

// get reads a document of the hub.
func (w *world) get(path string) (*http.Response, []byte) {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, w.base+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	resp, err := w.client.HTTP.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp, b
}

// The hub's own documents fit the published schemas.
func TestDocuments(t *testing.T) {
	w := newWorld(t, node.Config{})
	t.Run("SAM-002 SAM-003 cards", func(t *testing.T) {
		for _, path := range []string{"/agents/crew/echo", ""} {
			resp, b := w.get(path + "/.well-known/agent.json")
			if err := samvad.CardDocument.Validate(b); err != nil || resp.StatusCode != http.StatusOK {
				t.Errorf("%q: %d, %v: %s", path, resp.StatusCode, err, b)
			}
			if got := resp.Header.Get("Cache-Control"); got != "public, max-age=300" {
				t.Errorf("%q: Cache-Control %q", path, got)
			}
			c, err := samvad.DecodeCard(b)
			if err != nil || c.Auth == nil || c.RateLimit == nil || c.CardTTL == nil || c.Endpoints == nil ||
				c.Specializations == nil || c.Models == nil {
				t.Errorf("%q: %+v, %v", path, c, err)
			}
		}
	})
	t.Run("SAM-121 a task that waits for its agent is pending", func(t *testing.T) {
		if err := w.Hub().Pause(t.Context(), "crew/echo", true); err != nil {
			t.Fatal(err)
		}
		id, err := w.client.Send(t.Context(), w.echo("echo"))
		if err != nil {
			t.Fatal(err)
		}
		const tasks = "/agents/crew/echo/agent/task/"
		resp, b := w.get(tasks + id)
		if want := `{"taskId":"` + id + `","status":"pending"}`; string(b) != want || resp.StatusCode != http.StatusOK {
			t.Errorf("%d %s, want %s", resp.StatusCode, b, want)
		}
		if err := samvad.TaskDocument.Validate(b); err != nil {
			t.Error(err)
		}
		if err := w.Hub().Pause(t.Context(), "crew/echo", false); err != nil {
			t.Fatal(err)
		}
		if _, err := w.client.Wait(t.Context(), w.echo("").URL, id); err != nil {
			t.Fatal(err)
		}
		resp, b = w.get(tasks + id)
		if want := `{"taskId":"` + id + `","status":"done","result":{"text":"hi"}}`; string(b) != want ||
			resp.StatusCode != http.StatusOK {
			t.Errorf("%d %s, want %s", resp.StatusCode, b, want)
		}
		if err := samvad.TaskDocument.Validate(b); err != nil {
			t.Error(err)
		}
	})
	t.Run("SAM-123 SAM-112 an unknown task", func(t *testing.T) {
		for _, id := range []string{"undefined", "0fee0f28-2388-4b15-8b71-627360e15b60",
			"AaIBgyRqeE6_jJj9Y3Zfa5rjV4n9espmTdaEinm3BEM"} {
			resp, b := w.get("/agents/crew/echo/agent/task/" + id)
			if err := samvad.ResponseDocument.Validate(b); err != nil || resp.StatusCode != http.StatusNotFound {
				t.Errorf("%s: %d, %v: %s", id, resp.StatusCode, err, b)
			}
		}
	})
}

// SAM-143: a client that leaves its stream ends the skill that serves it, at a
// handler of the hub and at an agent elsewhere.
func TestDisconnectCancelsTheWork(t *testing.T) {
	w := newWorld(t, node.Config{})
	begun, ended := make(chan struct{}, 2), make(chan error, 2)
	work := func(ctx context.Context) error {
		begun <- struct{}{}
		<-ctx.Done()
		ended <- ctx.Err()
		return ctx.Err()
	}
	if err := w.Handle(parley.Agent{Name: "worker", Exposed: parley.Everywhere},
		parley.RawSkill("ask", func(ctx context.Context, _ *parley.Message,
			_ parley.Replier) error {
			return work(ctx)
		})); err != nil {
		t.Fatal(err)
	}
	w.agentElsewhereNamed("elsewhere", func(ctx context.Context, _ *samvad.Request) (samvad.Response, error) {
		return samvad.Response{}, work(ctx)
	}, samvad.ModeStream)
	for _, agent := range []string{"worker", "elsewhere"} {
		t.Run(agent, func(t *testing.T) {
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			left := make(chan struct{})
			go func() {
				defer close(left)
				for _, err := range w.client.Stream(ctx, samvad.Call{URL: w.base + "/agents/" + agent, Skill: "ask"}) {
					if err != nil {
						return
					}
				}
			}()
			<-begun
			leave()
			<-left
			if err := <-ended; err == nil {
				t.Error("the work was not cancelled")
			}
		})
	}
}

// SAM-160 at the hub: browsers may call where an operator says so.
func TestCORS(t *testing.T) {
	for _, on := range []bool{true, false} {
		var origins []string
		if on {
			origins = []string{"https://app.test"}
		}
		w := newWorld(t, node.Config{Listen: node.Listen{Origins: origins}})
		r, err := http.NewRequestWithContext(t.Context(), http.MethodOptions, w.base+message, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Origin", "https://app.test")
		r.Header.Set("Access-Control-Request-Method", http.MethodPost)
		r.Header.Set("Access-Control-Request-Headers", "content-type,content-digest,signature-input,signature")
		resp, err := w.client.HTTP.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		got := resp.Header.Get("Access-Control-Allow-Headers")
		if on && (resp.StatusCode != http.StatusNoContent ||
			resp.Header.Get("Access-Control-Allow-Origin") != "https://app.test" ||
			got != "Content-Type, Content-Digest, Signature-Input, Signature") {
			t.Errorf("%d %v", resp.StatusCode, resp.Header)
		}
		if !on && (resp.StatusCode == http.StatusNoContent || resp.Header.Get("Access-Control-Allow-Origin") != "" ||
			got != "") {
			t.Errorf("off: %d %v", resp.StatusCode, resp.Header)
		}
	}
}
