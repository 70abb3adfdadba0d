package admin

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// This file issues, lists and revokes tokens while the hub runs; tokenfile.go does so in
// the data directory of a hub that does not.

// issue adds a token to the state, so that every hub there knows it, and gives it with
// its secret, which is stored nowhere.
func (t *Tokens) issue(ctx context.Context, n NewToken, rnd io.Reader) (Token, error) {
	token, err := n.token(t.now(), rnd)
	if err != nil {
		return Token{}, err
	}
	one, err := newTokens(token)
	if err != nil {
		return Token{}, parley.Refuse(parley.Malformed, "%s", err)
	}
	if err := t.create(ctx, one.list[0]); errors.Is(err, journal.ErrExists) {
		return Token{}, parley.Refuse(parley.Conflict,
			"another token is named %q; revoke that one first, or choose another name", n.Name).Because(err)
	} else if err != nil {
		return Token{}, err
	}
	t.copied()
	return token, nil
}

// revoke removes a token from the state, so that every hub there refuses it. Without
// force it refuses to remove the last one that may administer, apart from the hubs' own.
func (t *Tokens) revoke(ctx context.Context, name string, force bool) error {
	if name == localToken {
		return parley.Refuse(parley.Conflict, "token %q is made by each start of the hub, for the commands on its machine",
			name)
	}
	t.revoking.Lock()
	defer t.revoking.Unlock()
	all := t.All()
	i := slices.IndexFunc(all, func(k Token) bool { return k.Name == name })
	if i < 0 {
		return parley.Refuse(notFound, "no token is named %.64q; `parley tokens` lists them", name)
	}
	if !force && all[i].lastOf(all, t.now()) {
		return lastToken(name)
	}
	if err := t.remove(ctx, name); err != nil {
		return err
	}
	t.copied()
	return nil
}

// lastOf reports whether only this token may administer, of those with which an operator
// comes in.
func (t *Token) lastOf(all []Token, now time.Time) bool {
	may := func(k Token) bool { return k.Role == Administer && !k.Expired(now) && k.Name != localToken }
	return may(*t) && !slices.ContainsFunc(all, func(k Token) bool { return may(k) && k.Name != t.Name })
}

func lastToken(name string) error {
	return parley.Refuse(parley.Conflict, "token %q is the last one that may administer: without it only the commands on "+
		"the hub's machine may; issue another one first (parley tokens add NAME --role administer), or use --force", name)
}

// remove removes a token from the state.
func (t *Tokens) remove(ctx context.Context, name string) error {
	if err := t.state.Delete(ctx, name, 0); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	// Its revision stays until the watcher comes to the deletion: an earlier change that is
	// reported late must not bring the token back.
	t.replace(name)
	return nil
}

// copied brings the copy in the file up to date. If that fails, the change is in force all
// the same.
func (t *Tokens) copied() {
	if err := t.copy(); err != nil {
		t.log.Error("cannot write the copy of the admin tokens", "dir", t.dir, "error", err)
	}
}

// NewToken describes a token to issue.
type NewToken struct {
	Name    string    `json:"name"`
	Role    Role      `json:"role,omitzero"`
	Agent   string    `json:"agent,omitzero"` // in place of a role: the agent for which it speaks at protocols
	Speak   []string  `json:"speak,omitzero"`
	Expires time.Time `json:"expires,omitzero"` // zero: never
}

// Tokens lists the tokens, without their hashes.
func (a *Admin) Tokens(by Actor) ([]Token, error) {
	if err := by.may(Administer); err != nil {
		return nil, err
	}
	return a.c.Tokens.All(), nil
}

// token makes the token, with a fresh secret.
func (n *NewToken) token(now time.Time, rnd io.Reader) (Token, error) {
	t := Token{Name: n.Name, Role: n.Role, Agent: n.Agent, Speak: n.Speak, Created: now.UTC().Truncate(time.Second),
		Expires: n.Expires.UTC()}
	if t.Expired(now) {
		return Token{}, parley.Refuse(parley.Malformed, "the token would have expired already, at %s",
			t.Expires.Format(time.RFC3339))
	}
	var err error
	t.Secret, err = newSecret(rnd)
	return t, err
}

// IssueToken issues a token, in force at once at every hub of the journal, and gives it
// with its secret.
func (a *Admin) IssueToken(ctx context.Context, by Actor, n NewToken) (Token, error) {
	detail := "role " + string(n.Role)
	if n.Agent != "" {
		detail = "agent " + n.Agent
	}
	if len(n.Speak) > 0 {
		detail += ", speaks as " + strings.Join(n.Speak, ", ")
	}
	if !n.Expires.IsZero() {
		detail += ", until " + n.Expires.UTC().Format(time.RFC3339)
	}
	return actFor(a, ctx, by, Administer, "token.issue", n.Name, detail, func(ctx context.Context) (Token, error) {
		return a.c.Tokens.issue(ctx, n, rand.Reader)
	})
}

// RevokeToken revokes a token, at every hub of the journal, and ends the calls that run
// on it. The last token that may administer needs force.
func (a *Admin) RevokeToken(ctx context.Context, by Actor, name string, force bool) error {
	// The caller may revoke its own token, which ends its context.
	ctx = context.WithoutCancel(ctx)
	return a.act(ctx, by, Administer, "token.revoke", name, "", func(ctx context.Context) error {
		return a.c.Tokens.revoke(ctx, name, force)
	})
}
