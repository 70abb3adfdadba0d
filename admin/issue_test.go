package admin

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
)

// hand is a clock that a test moves.
type hand struct {
	mu sync.Mutex
	at time.Time
}

func (h *hand) now() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.at
}

func (h *hand) move(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at = h.at.Add(d)
}

// tokenBench is a bench whose tokens are in a state, with the clock of the tokens.
func tokenBench(t *testing.T) (b *bench, clock *hand, s journal.State, dir string) {
	t.Helper()
	clock, s, dir = &hand{at: fixed()}, state(t), t.TempDir()
	tokens, first, err := OpenTokens(t.Context(), s, "a state", dir, clock.now, rand.Reader, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tokens.Close)
	b = open(t, func(c *Config) { c.Tokens, c.Now = tokens, clock.now })
	b.client = b.as(first)
	return b, clock, s, dir
}

// TestIssueAndRevoke: a token that is issued through the API is in force at once, at a
// second hub on the same state too, and so is its end. Only the hash of its secret is
// kept. The audit trail names both actions.
func TestIssueAndRevoke(t *testing.T) {
	b, clock, s, dir := tokenBench(t)
	other, _ := openTokens(t, s, t.TempDir(), slog.New(slog.DiscardHandler))
	issued, err := b.client.IssueToken(t.Context(), NewToken{Name: "ann/1", Role: Operate, Speak: []string{"bot"},
		Expires: clock.now().Add(time.Hour)})
	if err != nil || len(issued.Secret) < 32 {
		t.Fatal(issued, err)
	}
	ann := b.as(issued.Secret)
	if _, err := ann.Info(t.Context()); err != nil {
		t.Error(err)
	}
	within(t, "the other hub to know the token", func() bool {
		by, err := other.find(issued.Secret)
		return err == nil && by.Name == "ann/1" && by.Role == Operate && slices.Equal(by.Speak, []string{"bot"})
	})
	code(t, errorOf(ann.IssueToken(t.Context(), NewToken{Name: "more", Role: Observe})), parley.Forbidden)
	code(t, errorOf(ann.Tokens(t.Context())), parley.Forbidden)
	code(t, ann.RevokeToken(t.Context(), "admin", true), parley.Forbidden)
	for want, n := range map[parley.Code]NewToken{
		parley.Conflict:  {Name: "ann/1", Role: Observe},
		parley.Malformed: {Name: "late", Role: Observe, Expires: clock.now()},
	} {
		code(t, errorOf(b.client.IssueToken(t.Context(), n)), want)
	}
	for _, n := range []NewToken{{Name: "x", Role: "king"}, {Name: localToken, Role: Observe}, {Role: Observe}} {
		code(t, errorOf(b.client.IssueToken(t.Context(), n)), parley.Malformed)
	}
	list, err := b.client.Tokens(t.Context())
	i := slices.IndexFunc(list, func(k Token) bool { return k.Name == "ann/1" })
	if err != nil || i < 0 || list[i].Hash != "" || list[i].Secret != "" || !list[i].Used.Equal(fixed()) ||
		!list[i].Expires.Equal(fixed().Add(time.Hour)) {
		t.Errorf("%+v %v", list, err)
	}
	kept, err := os.ReadFile(filepath.Join(dir, TokenFile))
	if err != nil || strings.Contains(string(kept), issued.Secret) || !strings.Contains(string(kept), `"ann/1"`) {
		t.Errorf("%s %v", kept, err)
	}

	if err := b.client.RevokeToken(t.Context(), "ann/1", false); err != nil {
		t.Fatal(err)
	}
	if _, err := ann.Info(t.Context()); !errors.Is(err, ErrToken) {
		t.Errorf("a revoked token: %v", err)
	}
	within(t, "the other hub to refuse the token", func() bool { _, err := other.find(issued.Secret); return err != nil })
	code(t, b.client.RevokeToken(t.Context(), "ann/1", false), notFound)
	audit, err := b.client.Audit(t.Context(), AuditFilter{Action: "token", Target: "ann/1"})
	if err != nil || len(audit) != 4 || audit[3].Action != "token.issue" || audit[3].Outcome != "done" ||
		audit[3].Actor != "admin" ||
		!strings.Contains(audit[3].Detail, "role operate, speaks as bot, until 2026-04-11T11:") ||
		audit[1].Action != "token.revoke" || audit[1].Outcome != "done" {
		t.Errorf("%+v %v", audit, err)
	}
}

// TestAuditFilter: each filter of the audit trail chooses entries, and all together.
func TestAuditFilter(t *testing.T) {
	b, clock, _, _ := tokenBench(t)
	for _, name := range []string{"a", "b"} {
		if _, err := b.client.IssueToken(t.Context(), NewToken{Name: name, Role: Administer}); err != nil {
			t.Fatal(err)
		}
		clock.move(time.Minute)
	}
	if err := b.client.RevokeToken(t.Context(), "a", false); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		f    AuditFilter
		want int
	}{
		"all":         {AuditFilter{}, 3},
		"limit":       {AuditFilter{Limit: 2}, 2},
		"action":      {AuditFilter{Action: "token.issue"}, 2},
		"group":       {AuditFilter{Action: "token"}, 3},
		"half a word": {AuditFilter{Action: "tok"}, 0},
		"by":          {AuditFilter{By: "admin"}, 3},
		"by another":  {AuditFilter{By: "a"}, 0},
		"target":      {AuditFilter{Target: "a"}, 2},
		"since":       {AuditFilter{Since: fixed().Add(time.Minute)}, 2},
		"together":    {AuditFilter{By: "admin", Action: "token", Target: "a", Since: fixed().Add(time.Minute)}, 1},
	} {
		if list, err := b.client.Audit(t.Context(), c.f); err != nil || len(list) != c.want {
			t.Errorf("%s: %d entries, want %d, %v", name, len(list), c.want, err)
		}
	}
}

// TestLastAdministrator: the last token that may administer stays unless force is given.
// An expired one and the hub's own do not count.
func TestLastAdministrator(t *testing.T) {
	b, clock, _, dir := tokenBench(t)
	if _, err := b.admin.c.Tokens.AddLocal(clock.now(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	second, err := b.client.IssueToken(t.Context(), NewToken{Name: "second", Role: Administer,
		Expires: clock.now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	clock.move(2 * time.Hour)
	err = b.client.RevokeToken(t.Context(), "admin", false)
	if e := code(t, err, parley.Conflict); !strings.Contains(e.Text, "the last one that may administer") {
		t.Errorf("%v", err)
	}
	if err := RevokeToken(dir, "admin", false, clock.now()); err == nil {
		t.Error("the last token was revoked in the file")
	}
	clock.move(-2 * time.Hour)
	if err := b.client.RevokeToken(t.Context(), "admin", false); err != nil {
		t.Errorf("one of two, its own: %v", err)
	}
	code(t, b.as(second.Secret).RevokeToken(t.Context(), localToken, true), parley.Conflict)
	if err := b.as(second.Secret).RevokeToken(t.Context(), "second", true); err != nil {
		t.Errorf("the last one with force: %v", err)
	}
}

// TestExpiry: an expired token is refused with a text that says so and when, in an account
// of uAgents too.
func TestExpiry(t *testing.T) {
	b, clock, _, _ := tokenBench(t)
	for _, role := range []Role{Observe, Register} {
		issued, err := b.client.IssueToken(t.Context(), NewToken{Name: string(role), Role: role,
			Expires: clock.now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		clock.move(time.Hour)
		want := `token "` + string(role) + `" expired at 2026-04-11T`
		if _, err := b.as(issued.Secret).Info(t.Context()); !errors.Is(err, ErrToken) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v", err)
		}
		if name, why := b.admin.c.Tokens.Account(issued.Secret); name != "" || !strings.Contains(why, want) {
			t.Errorf("%q %q", name, why)
		}
		clock.move(-time.Second)
		if name, why := b.admin.c.Tokens.Account(issued.Secret); (name != "") != (role == Register) {
			t.Errorf("a second before: %q %q", name, why)
		}
	}
}

// TestLastUse: the state learns of a token's use at most once an hour, other hubs from there.
func TestLastUse(t *testing.T) {
	s, clock := state(t), &hand{at: fixed()}
	start := func() *Tokens {
		tokens, _, err := OpenTokens(t.Context(), s, "a state", t.TempDir(), clock.now, rand.Reader,
			slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(tokens.Close)
		return tokens
	}
	one, two := start(), start()
	k, err := one.issue(t.Context(), NewToken{Name: "ann", Role: Observe}, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	used := func(tokens *Tokens) time.Duration {
		for _, v := range tokens.All() {
			if v.Name == "ann" && !v.Used.IsZero() {
				return v.Used.Sub(fixed())
			}
		}
		return -1
	}
	for _, step := range []struct{ at, here, there time.Duration }{
		{time.Minute, time.Minute, time.Minute},
		{2 * time.Minute, 2 * time.Minute, time.Minute},
		{time.Hour, time.Hour, time.Minute},
		{time.Hour + time.Minute, time.Hour + time.Minute, time.Hour + time.Minute},
	} {
		clock.move(fixed().Add(step.at).Sub(clock.now()))
		if _, err := one.find(k.Secret); err != nil {
			t.Fatal(err)
		}
		one.notes.Wait()
		if got := used(one); got != step.here {
			t.Errorf("at %s the hub says %s", step.at, got)
		}
		v, err := s.Get(t.Context(), "ann")
		if err != nil {
			t.Fatal(err)
		}
		within(t, "the other hub to know", func() bool {
			two.mu.RLock()
			defer two.mu.RUnlock()
			return two.revisions["ann"] == v.Revision
		})
		if got := used(two); got != step.there {
			t.Errorf("at %s the other hub says %s, want %s", step.at, got, step.there)
		}
	}
}

// TestTokenOfAnAgent: it speaks for its agent at every hub of the state until it is revoked or
// expires, and opens no admin API; a token of the admin API speaks for no agent.
func TestTokenOfAnAgent(t *testing.T) {
	b, clock, s, dir := tokenBench(t)
	other, _ := openTokens(t, s, t.TempDir(), slog.New(slog.DiscardHandler))
	issued, err := b.client.IssueToken(t.Context(), NewToken{Name: "scout", Agent: "crew/scout",
		Expires: clock.now().Add(time.Hour)})
	if err != nil || issued.Role != "" || issued.Agent != "crew/scout" {
		t.Fatal(issued, err)
	}
	here := b.admin.c.Tokens
	if name, agent, err := here.Agent(issued.Secret); err != nil || name.Name != "scout" || agent != "crew/scout" {
		t.Error(name, agent, err)
	}
	within(t, "the other hub to know the token", func() bool {
		_, agent, err := other.Agent(issued.Secret)
		return err == nil && agent == "crew/scout"
	})
	if _, err := b.as(issued.Secret).Info(t.Context()); !errors.Is(err, ErrToken) {
		t.Errorf("the admin API: %v", err)
	}
	if name, why := here.Account(issued.Secret); name != "" || strings.Contains(why, "scout") {
		t.Errorf("an account: %q %q", name, why)
	}
	reader, err := b.client.IssueToken(t.Context(), NewToken{Name: "reader", Role: Administer})
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{reader.Secret, "parley_unknown-unknown-unknown-unk", ""} {
		if _, agent, err := here.Agent(secret); parley.AsError(err).Code != parley.Unauthenticated || agent != "" {
			t.Errorf("%q speaks for %q: %v", secret, agent, err)
		}
	}
	all := here.All()
	if i := slices.IndexFunc(all, func(k Token) bool { return k.Name == "reader" }); !all[i].Used.IsZero() {
		t.Error("a use that was refused counts as one")
	}
	for _, n := range []NewToken{{Name: "x", Agent: "crew/scout", Role: Observe}, {Name: "x", Agent: "Crew"},
		{Name: "x", Agent: "crew/scout", Speak: []string{"bot"}}, {Name: "x", Agent: "guest/a2a/x"}, {Name: "x"}} {
		code(t, errorOf(b.client.IssueToken(t.Context(), n)), parley.Malformed)
	}
	kept, err := os.ReadFile(filepath.Join(dir, TokenFile))
	if err != nil || strings.Contains(string(kept), issued.Secret) ||
		!strings.Contains(string(kept), `"agent":"crew/scout"`) {
		t.Errorf("%s %v", kept, err)
	}
	audit, err := b.client.Audit(t.Context(), AuditFilter{Action: "token", Target: "scout"})
	if err != nil || len(audit) != 1 || !strings.HasPrefix(audit[0].Detail, "agent crew/scout, until ") {
		t.Errorf("%+v %v", audit, err)
	}
	clock.move(time.Hour)
	if _, _, err := here.Agent(issued.Secret); err == nil {
		t.Error("an expired token speaks for its agent")
	}
	clock.move(-time.Minute)
	if err := b.client.RevokeToken(t.Context(), "scout", false); err != nil {
		t.Fatal(err)
	}
	if _, _, err := here.Agent(issued.Secret); err == nil {
		t.Error("a revoked token speaks for its agent")
	}
	within(t, "the other hub to refuse the token", func() bool {
		_, _, err := other.Agent(issued.Secret)
		return err != nil
	})
}

// TestRevokedStreams: to revoke a token ends what runs on it, with the reason; its expiry
// does so too.
func TestRevokedStreams(t *testing.T) {
	for name, end := range map[string]func(*bench, context.Context) error{
		"was revoked": func(b *bench, ctx context.Context) error { return b.client.RevokeToken(ctx, "ann", false) },
		"expired at":  func(*bench, context.Context) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			b, clock, _, _ := tokenBench(t)
			n := NewToken{Name: "ann", Role: Observe}
			if name == "expired at" {
				n.Expires = clock.now().Add(2 * time.Second)
			}
			k, err := b.client.IssueToken(t.Context(), n)
			if err != nil {
				t.Fatal(err)
			}
			for _, err := range b.as(k.Secret).Tail(t.Context(), index.Filter{}, func() {
				if err := end(b, t.Context()); err != nil {
					t.Error(err)
				}
			}) {
				if e := code(t, err, parley.Unauthenticated); !strings.Contains(e.Text, name) {
					t.Errorf("%v", err)
				}
			}
			b.admin.c.Tokens.mu.RLock()
			left := len(b.admin.c.Tokens.calls)
			b.admin.c.Tokens.mu.RUnlock()
			if left > 1 { // the last call may be ending
				t.Errorf("%d calls are still followed", left)
			}
		})
	}
}

// TestTokenBody: a caller cannot choose the secret of a token.
func TestTokenBody(t *testing.T) {
	b, _, _, _ := tokenBench(t)
	req, err := b.client.request(t.Context(), http.MethodPost, "/tokens", nil,
		map[string]string{"name": "a", "role": "observe", "token": "0123456789abcdef"})
	if err != nil {
		t.Fatal(err)
	}
	code(t, errorOf(b.client.send(req)), parley.Malformed)
}

// within waits until a change at one hub has reached another, or the test's time is up.
func within(t *testing.T, what string, reached func() bool) {
	t.Helper()
	for !reached() {
		if t.Context().Err() != nil {
			t.Fatal("waited for", what)
		}
		runtime.Gosched()
	}
}
