package asp_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/node"
)

// borrowed gives message e with the proof of message from: the signature does not cover
// the proof.
func borrowed(t *testing.T, e, from *asp.Envelope) []byte {
	t.Helper()
	raw := strings.Replace(string(e.Raw()), e.Sender.DPoPProof, from.Sender.DPoPProof, 1)
	if raw == string(e.Raw()) {
		t.Fatal("the proof was not replaced")
	}
	return []byte(raw)
}

// TestProofIsUsedOnce: the hub refuses the replay of a proof, also after a restart
// (ASP-035, ASP-079). A refused message does not use up its proof (ASP-040).
func TestProofIsUsedOnce(t *testing.T) {
	c := node.Config{Data: t.TempDir() + "/data", Durability: "disk"}
	w := newWorld(t, c)
	alice := w.client("alice")
	ctx := w.ctx()
	s, err := alice.Open(ctx, asp.Invitation{To: []string{w.echoID()}})
	if err != nil {
		t.Fatal(err)
	}
	wait(t, s, asp.Introduced)
	used, err := s.Send(ctx, asp.Inform, asp.Information{Topic: "hello"})
	if err != nil {
		t.Fatal(err)
	}
	try := func(when string) {
		t.Helper()
		server := w.ASP().Server()
		l, err := server.Session(ctx, s.ID(), "")
		if err != nil {
			t.Fatal(err)
		}
		next := int64(-1)
		for _, p := range l.Participants {
			if p.AgentID == alice.Identity.ID() {
				next = p.Next
			}
		}
		e, err := asp.Draft{SessionID: s.ID(), SequenceNumber: next, PreviousHash: l.Head.Hash,
			Performative: asp.Inform, Body: asp.Information{Topic: when}}.Sign(alice.Identity)
		if err != nil {
			t.Fatal(err)
		}
		from := asp.Transport{Agent: alice.Identity.ID()}
		if _, err := server.Ingest(ctx, borrowed(t, e, used), from, s.ID()); err == nil ||
			!strings.Contains(err.Error(), "dpop_jti_replayed") {
			t.Errorf("%s: a proof served twice: %v", when, err)
		}
		if r, err := server.Ingest(ctx, e.Raw(), from, s.ID()); err != nil || r.Duplicate || r.SequenceNumber != next {
			t.Errorf("%s: the message with its own proof: %+v %v", when, r, err)
		}
	}
	try("in one process")
	w.close()
	w.open(c)
	try("after a restart")
}

// TestNothingIsFetched: the hub never fetches a URL in a card or message (§13: SSRF).
func TestNothingIsFetched(t *testing.T) {
	var hits atomic.Int64
	trap := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hits.Add(1) }))
	defer trap.Close()
	w := newWorld(t, node.Config{Network: node.Network{Allow: []string{"loopback"}}})
	id, err := asp.GenerateIdentity("agent://trap.example/test/trap", "org_trap")
	if err != nil {
		t.Fatal(err)
	}
	alice := w.plain(id)
	card := id.Card()
	card.Endpoints = map[string]string{"asp": trap.URL, "card": trap.URL + "/card"}
	ctx := w.ctx()
	if err := alice.Register(ctx, card, nil); err != nil {
		t.Fatal(err)
	}
	s, err := alice.Open(ctx, asp.Invitation{To: []string{w.echoID()}})
	if err != nil {
		t.Fatal(err)
	}
	wait(t, s, asp.Introduced)
	m, err := s.Ask(ctx, asp.Question{QueryType: "echo", Parameters: map[string]string{"text": trap.URL}})
	if err != nil || !strings.Contains(string(m.Body), trap.URL) {
		t.Fatal(m, err)
	}
	points, err := json.Marshal(map[string]any{"informType": "result", "topic": "big",
		"data": map[string]string{"fullResultUri": trap.URL + "/result", "fullResultHash": "sha256:" +
			strings.Repeat("0", 64)}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Send(ctx, asp.Inform, json.RawMessage(points)); err != nil {
		t.Fatal(err)
	}
	select {
	case n := <-w.notices: // the agent gets the message unchanged
		if !strings.Contains(string(n.Parts[0].Data), trap.URL) {
			t.Errorf("%s", n.Parts[0].Data)
		}
	case <-ctx.Done():
		t.Fatal("the notice did not arrive")
	}
	if err := s.Close(ctx, "done"); err != nil {
		t.Fatal(err)
	}
	if n := hits.Load(); n != 0 {
		t.Errorf("%d requests were made", n)
	}
}
