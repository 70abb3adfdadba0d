package node

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/fixedport"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/samvad"
)

// guarded is a SAMVAD agent of another host, with a skill that takes one token.
type guarded struct {
	address string
	card    *samvad.Card
	mu      sync.Mutex
	seen    []string // tokens
}

func (g *guarded) serve(t *testing.T, n *Node, token string) {
	t.Helper()
	host := n.SAMVAD().Hosting()
	key, err := samvad.ParseKey(host.Key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", g.address)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: &samvad.Server{Verifier: &samvad.Verifier{Keys: samvad.StaticKeys{host.Identity: {key}}},
		Agent: &samvad.Agent{Card: g.card.Complete(), Limit: &samvad.RateLimit{},
			Handler: func(context.Context, *samvad.Request) (samvad.Response, error) {
				return samvad.Response{Result: []byte(`{"ok":true}`)}, nil
			},
			Token: func(_ context.Context, r *samvad.Request) error {
				g.mu.Lock()
				defer g.mu.Unlock()
				if g.seen = append(g.seen, r.Auth.Token); r.Auth.Token != token {
					return fmt.Errorf("another token")
				}
				return nil
			}}}}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
}

func (g *guarded) tokens() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.seen)
}

// TestBearerTokensAreNotStored sends tokens to a skill of this hub and, through it, to an
// agent elsewhere that starts only after a restart of the hub. The agent gets the token;
// the data directory, a backup, exports and the admin API do not have it.
func TestBearerTokensAreNotStored(t *testing.T) {
	const (
		written = `t\u006fken-\/quincunx-aeiou-0123456789` // in the sender's spelling
		token   = "token-/quincunx-aeiou-0123456789"
		secret  = "quincunx" // part of both
		marker  = "heliotrope"
		// The bytes before the marker occur only here: compression, which looks back for
		// four bytes, leaves the marker whole.
		content = `{"text":"look: ` + marker + `"}`
	)
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := Config{Data: t.TempDir(), Durability: "disk", PublicURL: "https://parley.test",
		SAMVAD: SAMVAD{TokensFile: file}, Network: Network{Allow: []string{"loopback"}}}
	alice, err := samvad.NewIdentity("agent://alice.test", "key-current")
	if err != nil {
		t.Fatal(err)
	}
	open := func() *Node {
		t.Helper()
		n := running(t, c)
		skill := parley.RawSkill("open", func(context.Context, *parley.Message, parley.Replier) error { return nil },
			parley.WithAccess(parley.Authenticated))
		if err := n.Handle(parley.Agent{Name: "vault", Exposed: parley.Everywhere}, skill); err != nil {
			t.Fatal(err)
		}
		return n
	}
	n := open()
	put := func(a parley.Agent) {
		t.Helper()
		if _, err := n.Hub().Directory().Put(t.Context(), a, directory.FromOperator); err != nil {
			t.Fatal(err)
		}
	}
	put(parley.Agent{Name: "alice", Identities: []parley.Identity{{Protocol: "samvad", ID: alice.ID()}}})
	if err := n.SAMVAD().Enroll("alice", alice.ID(), "", alice.Public(), "test"); err != nil {
		t.Fatal(err)
	}
	far, err := samvad.NewIdentity("agent://far.test", "key-current")
	if err != nil {
		t.Fatal(err)
	}
	address := fixedport.Address(t) // the agent does not run yet
	g := &guarded{address: address, card: &samvad.Card{ID: far.ID(),
		Name: "Far", Version: "1", Description: "x",
		URL: "http://" + address, PublicKeys: []samvad.CardKey{samvad.CardKeyOf(far, true)},
		Skills: []samvad.Skill{{ID: "open", Name: "Open", Description: "x",
			InputSchema: []byte(`{"type":"object"}`), OutputSchema: []byte(`{"type":"object"}`),
			Modes: []samvad.Mode{samvad.ModeSync, samvad.ModeAsync}, Trust: samvad.TrustAuthenticated}}}}
	put(parley.Agent{Name: "far", Exposed: parley.Everywhere,
		Identities: []parley.Identity{{Protocol: "samvad", ID: far.ID(), URL: g.card.URL}},
		Skills: []parley.SkillSpec{{ID: "open", Access: parley.Authenticated,
			Modes: []parley.Mode{parley.Sync, parley.Async}}}})

	// send has alice ask for the skill "open", with the token in the sender's spelling.
	web := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	send := func(agent string, mode samvad.Mode, payload string) {
		t.Helper()
		e := &samvad.Envelope{From: alice.ID(), To: "agent://" + agent + ".parley.test", Skill: "open", Mode: mode,
			Nonce: "nonce-" + agent + "-" + string(mode), Timestamp: time.Now(), TraceID: "trace-" + agent,
			SpanID: "span",
			Auth:   &samvad.Auth{Scheme: "bearer", Token: "TOKEN"}, Payload: []byte(payload)}
		b, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		b = bytes.Replace(b, []byte("TOKEN"), []byte(written), 1)
		path := "/agents/" + agent + "/agent/message"
		if mode == samvad.ModeAsync {
			path = "/agents/" + agent + "/agent/task"
		}
		signature, err := samvad.Sign(alice, http.MethodPost, path, b, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.Addresses().Local+path, bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		signature.Set(r.Header)
		resp, err := web.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode/100 != 2 {
			t.Fatalf("%s: HTTP %d", agent, resp.StatusCode)
		}
	}
	until := func(what string, done func() bool) {
		t.Helper()
		(&five{Node: n, t: t}).until(what, done)
	}
	delivery := func() (journal.Delivery, bool) {
		all := n.journal.Deliveries(journal.Filter{To: "far"})
		if len(all) != 1 {
			return journal.Delivery{}, false
		}
		return all[0], true
	}
	send("vault", samvad.ModeSync, content)
	send("far", samvad.ModeAsync, content)
	until("the first attempt failed", func() bool {
		d, ok := delivery()
		return ok && d.State == parley.Waiting && d.Attempt > 0
	})
	if err := n.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.Listen = Listen{}
	n = open()
	g.serve(t, n, token)
	until("the request is settled", func() bool { _, open := delivery(); return !open })
	send("far", samvad.ModeSync, content)
	if seen := g.tokens(); !slices.Equal(seen, []string{token, token}) {
		t.Errorf("the agent elsewhere had the tokens %q", seen)
	}

	holds := func(where string, b []byte, want bool) {
		t.Helper()
		if mentions(b, secret, 3) {
			t.Errorf("%s holds the token", where)
		}
		if want && !mentions(b, marker, 3) {
			t.Errorf("%s does not hold the content either: the search sees nothing", where)
		}
	}
	var out bytes.Buffer
	if _, err := n.Admin().Backup(t.Context(), everything, &out); err != nil {
		t.Fatal(err)
	}
	holds("the backup", out.Bytes(), true)
	page, err := n.Admin().Conversations(t.Context(), everything, index.ConversationFilter{})
	if err != nil || len(page.Conversations) != 2 {
		t.Fatalf("%+v %v", page, err)
	}
	for _, conversation := range page.Conversations {
		out.Reset()
		if err := n.Admin().Export(t.Context(), everything, conversation.ID.String(), true, &out); err != nil {
			t.Fatal(err)
		}
		holds("an export", out.Bytes(), true)
		if bytes.Contains(out.Bytes(), []byte("sealed")) {
			t.Error("an export holds the sealed token")
		}
		history, err := n.Admin().Conversation(t.Context(), everything, conversation.ID.String(), "", 100)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range history.History {
			v, err := n.Admin().Message(t.Context(), everything, m.ID.String(), true)
			if err != nil {
				t.Fatal(err)
			}
			b, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			holds("the admin API", b, m.Kind == parley.Request)
			if bytes.Contains(b, []byte("sealed")) {
				t.Error("the admin API shows the sealed token")
			}
		}
	}
	if found := (&five{Node: n, t: t}).kept(secret); len(found) > 0 {
		t.Errorf("the state holds the token: %v", found)
	}
	if err := n.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if found := mentioned(t, c.Data, secret); len(found) > 0 {
		t.Errorf("the token is in %v", found)
	}
	where := strings.Join(mentioned(t, c.Data, marker), " ")
	for _, part := range []string{"journal/", "index.db"} {
		if !strings.Contains(where, part) {
			t.Errorf("the content is not in %s either, only in %v: the search sees nothing", part, where)
		}
	}
}

// TestSecretsOfEarlierRecordsAreNotShown: records of an earlier version hold a token, or
// the id of an A2E session, in clear. The admin API and exports show neither.
func TestSecretsOfEarlierRecordsAreNotShown(t *testing.T) {
	n := running(t, Config{Durability: "disk", Data: t.TempDir()})
	for protocol, c := range map[string]struct{ raw, extension, digest string }{
		"samvad": {`{"skill":"say","payload":{"text":"heliotrope"},"auth":{"scheme":"bearer","token":"quincunx"}}`,
			`{"auth":true}`, "hmac-sha256:"},
		"a2e": {`{"type":"tool/call/req","session_id":"quincunx","arguments":{"text":"heliotrope"}}`,
			`{}`, "sha256:"},
	} {
		m := &parley.Message{Kind: parley.Request, From: "alice", To: "echo", Skill: "say",
			Parts:      []parley.Part{{MediaType: "application/json", Data: []byte(`{"text":"heliotrope"}`)}},
			Extensions: map[string]json.RawMessage{protocol: json.RawMessage(c.extension)},
			Origin: parley.Origin{Protocol: protocol, Peer: "alice", Raw: []byte(c.raw),
				Verdict: parley.Verdict{Assurance: parley.Signed}}}
		reply, err := n.Hub().Ask(t.Context(), hub.Submission{Scope: "test", Message: m})
		if err != nil {
			t.Fatal(err)
		}
		v, err := n.Admin().Message(t.Context(), everything, reply.InReplyTo.String(), true)
		if err != nil {
			t.Fatal(err)
		}
		shown, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var exported bytes.Buffer
		if err := n.Admin().Export(t.Context(), everything, reply.Conversation.String(), true, &exported); err != nil {
			t.Fatal(err)
		}
		for where, b := range map[string][]byte{"the admin API": shown, "the export": exported.Bytes()} {
			if mentions(b, "quincunx", 2) || !mentions(b, "heliotrope", 2) || !mentions(b, c.digest, 2) {
				t.Errorf("%s shows %s", where, b)
			}
		}
	}
}
