package admin

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/journal"
)

// localToken is the name of the token that each start of a hub makes for the
// commands on its own machine; see [Tokens.AddLocal].
const localToken = "local"

// A Token lets its bearer in. Exactly one of Hash and Secret is set; neither in lists.
type Token struct {
	Name    string    `json:"name"`           // for the audit trail; unique
	Role    Role      `json:"role,omitzero"`  // register, observe, read, operate or administer; "" with an agent
	Agent   string    `json:"agent,omitzero"` // for which the bearer speaks at protocols, and does nothing else; "": none
	Hash    string    `json:"hash,omitzero"`  // "sha256:" and the SHA-256 of the secret in base64url
	Secret  string    `json:"token,omitzero"` // the secret in clear: 16 characters or more
	Speak   []string  `json:"speak,omitzero"`
	Created time.Time `json:"created,omitzero"`
	Expires time.Time `json:"expires,omitzero"` // refused from then on; zero: never
	Used    time.Time `json:"used,omitzero"`    // last, recorded at most once an hour; zero: never

	// Only in lines of the file: Kept names the state of which the line is a copy,
	// Removed asks for the token's removal from the state.
	Kept    string `json:"kept,omitzero"`
	Removed bool   `json:"removed,omitzero"`
}

// Tokens are those of a hub, or of all hubs of a cluster. Make them with
// [OpenTokens] or [ReadTokens].
type Tokens struct {
	mu    sync.RWMutex
	list  []Token
	clear []string // names of those that came with their secret

	state     journal.State // nil: the tokens are from a list or a file alone
	id        string        // of the state
	dir       string        // of the file; "": none
	now       func() time.Time
	log       *slog.Logger
	stop      func()
	revisions map[string]uint64         // of those in the state; under mu
	opened    bool                      // changes are copied into the file; under mu
	used      map[string]time.Time      // last, by name; under mu
	noted     map[string]time.Time      // when the last use was last written to the state; under mu
	calls     map[*runningCall]struct{} // under mu
	notes     sync.WaitGroup            // writers of last uses
	revoking  sync.Mutex                // one at a time, so that the last administering token stays
}

const (
	maxTokens    = 1000
	maxTokenFile = 1 << 20
	hashPrefix   = "sha256:"
)

func emptyTokens() *Tokens {
	return &Tokens{now: time.Now, revisions: map[string]uint64{}, used: map[string]time.Time{},
		noted: map[string]time.Time{}, calls: map[*runningCall]struct{}{}}
}

// newTokens checks a list of tokens, and keeps only hashes of their secrets.
func newTokens(list ...Token) (*Tokens, error) {
	if len(list) > maxTokens {
		return nil, fmt.Errorf("%d tokens, more than the %d allowed", len(list), maxTokens)
	}
	out := emptyTokens()
	names := map[string]bool{}
	for i, t := range list {
		switch {
		case t.Name == "" || len(t.Name) > 64 || strings.ContainsAny(t.Name, "\r\n"):
			return nil, fmt.Errorf("token %d: want a name of 1 to 64 characters", i+1)
		case names[t.Name]:
			return nil, fmt.Errorf("two tokens are named %q", t.Name)
		case t.Name == localToken:
			return nil, fmt.Errorf("token %q: the hub itself makes the token of that name; choose another name", t.Name)
		case t.Agent != "" && (t.Role != "" || len(t.Speak) > 0):
			return nil, fmt.Errorf("token %q: it speaks for agent %q at protocols alone: it has no role, nor other agents",
				t.Name, t.Agent)
		case t.Agent != "" && (parley.CheckName(t.Agent) != nil || strings.HasPrefix(t.Agent, "guest/")):
			return nil, fmt.Errorf("token %q: %.140q cannot be the name of an agent", t.Name, t.Agent)
		case t.Agent != "":
		case t.Role.level() == 0:
			return nil, fmt.Errorf("token %q: role %q is not register, observe, read, operate or administer", t.Name,
				t.Role)
		}
		names[t.Name] = true
		known, err := t.hashed()
		if err != nil {
			return nil, fmt.Errorf("token %q: %w", t.Name, err)
		}
		if t.Secret != "" {
			out.clear = append(out.clear, t.Name)
		}
		out.list = append(out.list, known)
	}
	return out, nil
}

// hashed replaces the secret by its hash. A plain hash is enough for 24 random
// bytes: they cannot be guessed.
func (t Token) hashed() (Token, error) {
	switch hash, ok := strings.CutPrefix(t.Hash, hashPrefix); {
	case t.Removed:
	case t.Hash != "" && t.Secret != "":
		return t, errors.New("want the hash or the secret, not both")
	case t.Hash != "":
		b, err := base64.RawURLEncoding.Strict().DecodeString(strings.TrimRight(hash, "="))
		if !ok || err != nil || len(b) != sha256.Size {
			return t, errors.New(`the hash must be "sha256:" and 32 bytes in base64url`)
		}
		t.Hash = strings.TrimRight(t.Hash, "=")
	case len(t.Secret) < 16 || len(t.Secret) > 512 || strings.ContainsAny(t.Secret, " \t\r\n"):
		return t, errors.New("the secret must have 16 to 512 characters without spaces")
	default:
		t.Hash, t.Secret = hashOf(t.Secret), ""
	}
	return t, nil
}

func hashOf(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hashPrefix + base64.RawURLEncoding.EncodeToString(sum[:])
}

// OpenTokens gives the tokens in the state of that id, and follows changes that other
// hubs make there. If dir is set, it adopts new lines of the token file in that data
// directory; see [Tokens.Reread]. If there is neither a token nor a file, and rnd is set,
// it makes a first token, which permits everything, and gives its secret, which is stored
// nowhere.
func OpenTokens(ctx context.Context, state journal.State, id, dir string, now func() time.Time, rnd io.Reader,
	log *slog.Logger) (t *Tokens, first string, err error) {
	t = emptyTokens()
	t.state, t.id, t.dir, t.now, t.log = state, id, dir, now, log
	if t.stop, err = state.Watch(ctx, "", t.stateChanged); err != nil {
		return nil, "", fmt.Errorf("read the admin tokens: %w", err)
	}
	defer func(stop func()) {
		if err != nil {
			stop()
		}
	}(t.stop)
	err = t.Reread(ctx)
	absent := dir == "" || errors.Is(err, os.ErrNotExist)
	if err != nil && !absent {
		return nil, "", err
	}
	if absent && len(t.All()) == 0 && rnd != nil {
		if first, err = t.begin(ctx, now(), rnd); err != nil {
			return nil, "", fmt.Errorf("make the admin token: %w", err)
		}
	}
	t.mu.Lock()
	t.opened = true
	t.mu.Unlock()
	return t, first, t.copy()
}

// begin makes the first token, unless another hub of the cluster does so at the same time.
func (t *Tokens) begin(ctx context.Context, now time.Time, rnd io.Reader) (secret string, err error) {
	token, secret, err := firstToken(now, rnd)
	if err != nil {
		return "", err
	}
	if err = t.create(ctx, token); errors.Is(err, journal.ErrExists) {
		return "", nil
	}
	return secret, err
}

// Close stops following other hubs.
func (t *Tokens) Close() {
	t.stop()
	t.notes.Wait()
}

// stateChanged is called for each change of the state.
func (t *Tokens) stateChanged(v journal.Value) {
	changed, err := t.apply(v)
	t.mu.RLock()
	opened := t.opened
	t.mu.RUnlock()
	if err == nil && changed && opened {
		err = t.copy()
	}
	if err != nil {
		t.log.Error("cannot apply a change of the admin tokens", "token", v.Key, "error", err)
	}
}

// apply makes a value of the state the token of that name.
func (t *Tokens) apply(v journal.Value) (changed bool, err error) {
	var fresh []Token
	if !v.Deleted {
		var token Token
		if err := jsonx.Decode(v.Data, &token); err != nil {
			return false, err
		}
		one, err := newTokens(token)
		if err != nil {
			return false, err
		}
		fresh = one.list
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if v.Revision <= t.revisions[v.Key] {
		return false, nil
	}
	if v.Deleted {
		delete(t.revisions, v.Key)
	} else {
		t.revisions[v.Key] = v.Revision
	}
	t.replace(v.Key, fresh...)
	return true, nil
}

// replace puts fresh in the place of the token of that name, and ends the calls that
// it no longer permits; t.mu is held.
func (t *Tokens) replace(name string, fresh ...Token) {
	t.list = slices.DeleteFunc(slices.Clone(t.list), func(k Token) bool { return k.Name == name })
	t.list = append(t.list, fresh...)
	if len(fresh) == 0 {
		delete(t.used, name)
		delete(t.noted, name)
	}
	slices.SortStableFunc(t.list, func(a, b Token) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
	for c := range t.calls {
		if c.by.Name == name && !slices.ContainsFunc(fresh, c.permits) {
			c.end(parley.Refuse(parley.Unauthenticated, "token %q was revoked", name))
		}
	}
}

// create puts a token into the state, or fails with [journal.ErrExists].
func (t *Tokens) create(ctx context.Context, token Token) error {
	if len(t.All()) >= maxTokens {
		return fmt.Errorf("there are %d tokens already", maxTokens)
	}
	return t.put(token, func(b []byte) (uint64, error) { return t.state.Create(ctx, token.Name, b, time.Time{}) })
}

// put has write put a token into the state.
func (t *Tokens) put(token Token, write func([]byte) (revision uint64, err error)) error {
	b, err := jsonx.Encode(token)
	if err != nil {
		return err
	}
	revision, err := write(b)
	if err == nil {
		_, err = t.apply(journal.Value{Key: token.Name, Data: b, Revision: revision})
	}
	return err
}

// firstToken makes a token that permits everything, and its secret.
func firstToken(now time.Time, rnd io.Reader) (t Token, secret string, err error) {
	secret, err = newSecret(rnd)
	return Token{Name: "admin", Role: Administer, Hash: hashOf(secret), Speak: []string{"**"},
		Created: now.UTC().Truncate(time.Second)}, secret, err
}

func newSecret(rnd io.Reader) (string, error) {
	var b [24]byte
	if _, err := io.ReadFull(rnd, b[:]); err != nil {
		return "", fmt.Errorf("make an admin token: %w", err)
	}
	return "parley_" + base64.RawURLEncoding.EncodeToString(b[:]), nil
}

// AddLocal adds the token for commands on the hub's own machine, which permits
// everything, and gives its secret. It must be called before the tokens are used.
func (t *Tokens) AddLocal(now time.Time, rnd io.Reader) (secret string, err error) {
	if secret, err = newSecret(rnd); err != nil {
		return "", err
	}
	t.list = append(t.list, Token{Name: localToken, Role: Administer, Hash: hashOf(secret), Speak: []string{"**"},
		Created: now})
	return secret, nil
}

// All gives the tokens without their hashes.
func (t *Tokens) All() []Token {
	t.mu.RLock()
	defer t.mu.RUnlock()
	out := make([]Token, 0, len(t.list))
	for _, k := range t.list {
		if !k.Removed {
			k.Kept, k.Hash = "", ""
			if used := t.used[k.Name]; used.After(k.Used) {
				k.Used = used
			}
			out = append(out, k)
		}
	}
	return out
}

// Account gives the name of the account whose token has the role [Register], or tells the
// bearer why there is none.
func (t *Tokens) Account(secret string) (name, why string) {
	by, err := t.find(secret)
	switch {
	case err == nil && by.Role == Register:
		return by.Name, ""
	case err != nil && by.Name != "":
		return "", parley.AsError(err).Text
	}
	return "", "The hub does not know this token; its operator issues one: parley tokens add NAME --role register"
}

// find gives the actor of a secret, and notes the use of its token. With an expired token
// it gives the actor and an error.
func (t *Tokens) find(secret string) (Actor, error) {
	v, err := t.lookup(secret)
	if v.Agent != "" {
		return Actor{}, parley.Refuse(parley.Unauthenticated,
			"token %q speaks for agent %q at protocols alone; it opens no admin API", v.Name, v.Agent)
	}
	by := Actor{Name: v.Name, Role: v.Role, Speak: v.Speak, hash: v.Hash, expires: v.Expires}
	if err == nil {
		t.noteUse(v, t.now())
	}
	return by, err
}

// Agent gives the bearer of a secret and the agent for which its token speaks, and notes the
// token's use. A token of the admin API speaks for none. The error says too much for a
// stranger; with one, the bearer has the token's name alone, if the hub knows the secret.
func (t *Tokens) Agent(secret string) (by Actor, agent string, err error) {
	v, err := t.lookup(secret)
	if err == nil && v.Agent == "" {
		err = parley.Refuse(parley.Unauthenticated, "token %q is one of the admin API; `parley tokens add NAME --agent "+
			"AGENT` issues one for an agent", v.Name)
	}
	if err != nil {
		return Actor{Name: v.Name}, "", err
	}
	t.noteUse(v, t.now())
	return Actor{Name: v.Name, agent: v.Agent, hash: v.Hash, expires: v.Expires}, v.Agent, nil
}

// lookup gives the token with a secret. It compares all hashes, each in constant time, so
// that its duration reveals nothing about them. With an expired token it gives that and an
// error.
func (t *Tokens) lookup(secret string) (Token, error) {
	got := []byte(hashOf(secret))
	t.mu.RLock()
	defer t.mu.RUnlock()
	found := -1
	for i := range t.list {
		if subtle.ConstantTimeCompare(got, []byte(t.list[i].Hash)) == 1 {
			found = i
		}
	}
	if found < 0 {
		return Token{}, parley.Refuse(parley.Unauthenticated, "the hub does not know this token")
	}
	v := t.list[found]
	if v.Expired(t.now()) {
		return v, expired(v.Name, v.Expires)
	}
	return v, nil
}

// Expired reports whether the token is refused because its time is over.
func (t *Token) Expired(now time.Time) bool { return !t.Expires.IsZero() && !now.Before(t.Expires) }

func expired(name string, at time.Time) *parley.Error {
	return parley.Refuse(parley.Unauthenticated, "token %q expired at %s; its operator issues another: "+
		"parley tokens add", name, at.UTC().Format(time.RFC3339))
}
