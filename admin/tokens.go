package admin

import (
	"bytes"
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
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/atomicfile"
	"github.com/parley-hub/parley/internal/disk"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/policy"
)

// Role is the set of actions that a token permits; each role includes those before it.
type Role string

// The roles.
const (
	// no call of this API; its bearer has an account in which it registers agents (uAgents)
	Register   Role = "register"
	Observe    Role = "observe"    // see agents, messages, refusals, public keys and statistics, but no content
	Read       Role = "read"       // and content, exports of it and the search in it
	Operate    Role = "operate"    // and send, read inboxes, pause and resume, retry and drop dead letters
	Administer Role = "administer" // and change agents and keys, and see the audit trail
)

// level grows with what a role permits; 0: no role.
func (r Role) level() int {
	return 1 + slices.Index([]Role{Register, Observe, Read, Operate, Administer}, r)
}

// operatorAgent is the agent for which a token sends by default.
const operatorAgent = "operator"

// An Actor is the operator on whose behalf a method works.
type Actor struct {
	Name    string // of the token
	Role    Role
	Speak   []string // agents as which it may speak: patterns as in [policy.Match]; nil: "operator"
	Address string   // network address, for the audit trail
}

// may refuses an action that the actor's role does not include.
func (a Actor) may(r Role) error {
	if a.Role.level() >= r.level() {
		return nil
	}
	return parley.Refuse(parley.Forbidden, "token %q has the role %q; this needs %q", a.Name, a.Role, r)
}

// speaker gives the agent for which the actor sends.
func (a Actor) speaker(name string) (string, error) {
	patterns := a.Speak
	if len(patterns) == 0 {
		patterns = []string{operatorAgent}
	}
	if name == "" {
		name = operatorAgent
		if len(patterns) == 1 && parley.CheckName(patterns[0]) == nil {
			name = patterns[0]
		}
	}
	if err := parley.CheckName(name); err != nil {
		return "", err
	}
	if slices.ContainsFunc(patterns, func(p string) bool { return policy.Match(p, name) }) {
		return name, nil
	}
	return "", parley.Refuse(parley.Forbidden, "token %q may not speak as %q; it may as %s", a.Name, name,
		strings.Join(patterns, ", "))
}

// TokenFile is a copy of the tokens, in the data directory: one JSON object a
// line, mode 0600. It holds hashes of the secrets. To add a token, add a line with
// its secret in "token": a hub that starts or reloads its configuration moves it
// into the state, where the tokens of all hubs of a cluster are.
const TokenFile = "admin-tokens.jsonl"

// localToken is the name of the token that each start of a hub makes for the
// commands on its own machine; see [Tokens.AddLocal].
const localToken = "local"

// A Token lets its bearer in. Exactly one of Hash and Secret is set.
type Token struct {
	Name    string    `json:"name"`           // for the audit trail; unique
	Role    Role      `json:"role"`           // register, observe, read, operate or administer
	Hash    string    `json:"hash,omitzero"`  // "sha256:" and the SHA-256 of the secret in base64url
	Secret  string    `json:"token,omitzero"` // the secret in clear: 16 characters or more
	Speak   []string  `json:"speak,omitzero"`
	Created time.Time `json:"created,omitzero"`

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
	log       *slog.Logger
	stop      func()
	revisions map[string]uint64 // of those in the state; under mu
	opened    bool              // changes are copied into the file; under mu
}

const (
	maxTokens    = 1000
	maxTokenFile = 1 << 20
	hashPrefix   = "sha256:"
)

// newTokens checks a list of tokens, and keeps only hashes of their secrets.
func newTokens(list ...Token) (*Tokens, error) {
	if len(list) > maxTokens {
		return nil, fmt.Errorf("%d tokens, more than the %d allowed", len(list), maxTokens)
	}
	out := &Tokens{}
	names := map[string]bool{}
	for i, t := range list {
		switch {
		case t.Name == "" || len(t.Name) > 64 || strings.ContainsAny(t.Name, "\r\n"):
			return nil, fmt.Errorf("token %d: want a name of 1 to 64 characters", i+1)
		case names[t.Name]:
			return nil, fmt.Errorf("two tokens are named %q", t.Name)
		case t.Name == localToken:
			return nil, fmt.Errorf("token %q: the hub itself makes the token of that name; choose another name", t.Name)
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
func OpenTokens(ctx context.Context, state journal.State, id, dir string, now time.Time, rnd io.Reader,
	log *slog.Logger) (
	t *Tokens, first string, err error) {
	t = &Tokens{state: state, id: id, dir: dir, log: log, revisions: map[string]uint64{}}
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
		if first, err = t.begin(ctx, now, rnd); err != nil {
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
func (t *Tokens) Close() { t.stop() }

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
	t.list = slices.DeleteFunc(slices.Clone(t.list), func(k Token) bool { return k.Name == v.Key })
	if v.Deleted {
		delete(t.revisions, v.Key)
		return true, nil
	}
	t.revisions[v.Key] = v.Revision
	t.list = append(t.list, fresh...)
	slices.SortStableFunc(t.list, func(a, b Token) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
	return true, nil
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

// adopt moves a token of the file into the state. If another token has its name, it gets
// a new name: each hub of a cluster once had a first token of the same name.
func (t *Tokens) adopt(ctx context.Context, token Token) error {
	name := token.Name
	for n := 2; ; n++ {
		err := t.create(ctx, token)
		if !errors.Is(err, journal.ErrExists) {
			if err == nil && token.Name != name {
				t.log.Warn("an admin token has another name now: there is one of its name", "was", name, "is",
					token.Name)
			}
			return err
		}
		v, err := t.state.Get(ctx, token.Name)
		if errors.Is(err, journal.ErrNotFound) {
			continue // it was removed meanwhile
		}
		var old Token
		if err == nil {
			err = jsonx.Decode(v.Data, &old)
		}
		if err != nil {
			return err
		}
		if old.Hash == token.Hash {
			// Its role, or the agents for which it may send, may have changed.
			return t.put(token, func(b []byte) (uint64, error) {
				return t.state.Put(ctx, token.Name, b, time.Time{})
			})
		}
		token.Name = fmt.Sprintf("%s-%d", name, n)
	}
}

// Reread adopts new lines of the token file in the data directory, which a person
// or `parley tokens` wrote. It replaces secrets by their hashes. The error matches
// [os.ErrNotExist] if there is no file; on any error all tokens stay as they were.
func (t *Tokens) Reread(ctx context.Context) error {
	if t.dir == "" {
		return nil
	}
	read, unlock, err := lockTokens(t.dir)
	defer unlock()
	if err != nil {
		return err
	}
	for _, k := range read.list {
		switch {
		case k.Kept == t.id:
		case k.Removed:
			if err := t.state.Delete(ctx, k.Name, 0); err != nil {
				return fmt.Errorf("remove admin token %q: %w", k.Name, err)
			}
			t.mu.Lock()
			t.list = slices.DeleteFunc(slices.Clone(t.list), func(o Token) bool { return o.Name == k.Name })
			t.mu.Unlock()
		default:
			k.Kept = ""
			if err := t.adopt(ctx, k); err != nil {
				return fmt.Errorf("add admin token %q: %w", k.Name, err)
			}
		}
	}
	path := filepath.Join(t.dir, TokenFile)
	if err := t.write(nil); err != nil {
		// The tokens are valid, so the hub can go on.
		t.log.Error("cannot write the admin tokens", "file", path, "in clear", read.clear, "error", err)
	} else if len(read.clear) > 0 {
		t.log.Info("replaced the secrets of admin tokens by their hashes", "file", path, "tokens", read.clear)
	}
	return nil
}

// copy brings the copy in the file up to date. New lines there stay.
func (t *Tokens) copy() error {
	if t.dir == "" {
		return nil
	}
	if err := os.MkdirAll(t.dir, 0o700); err != nil {
		return err
	}
	read, unlock, err := lockTokens(t.dir)
	defer unlock()
	switch {
	case errors.Is(err, os.ErrNotExist):
		read = &Tokens{}
	case err != nil:
		return err
	}
	fresh := slices.DeleteFunc(read.list, func(k Token) bool { return k.Kept == t.id })
	return t.write(fresh)
}

// write makes the file a copy of the tokens, followed by its new lines.
func (t *Tokens) write(fresh []Token) error {
	t.mu.RLock()
	lines := slices.DeleteFunc(slices.Clone(t.list), func(k Token) bool { return k.Name == localToken })
	t.mu.RUnlock()
	for i := range lines {
		lines[i].Kept = t.id
	}
	lines = slices.DeleteFunc(lines, func(k Token) bool { // the new line of that name replaces it
		return slices.ContainsFunc(fresh, func(f Token) bool { return f.Name == k.Name })
	})
	return writeTokens(t.dir, append(lines, fresh...))
}

// MakeTokenFile makes the token file of a data directory where there is none, with
// a first token, "admin", that may do everything and speak as any agent. It
// gives the token's secret, which is stored nowhere, or "" if there is a file.
func MakeTokenFile(dir string, now time.Time, rnd io.Reader) (secret string, err error) {
	if _, err := os.Lstat(filepath.Join(dir, TokenFile)); !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	first, secret, err := firstToken(now, rnd)
	if err != nil {
		return "", err
	}
	if err := writeTokens(dir, []Token{first}); err != nil {
		return "", fmt.Errorf("make the admin token: %w", err)
	}
	return secret, nil
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

func writeTokens(dir string, list []Token) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var b []byte
	for _, k := range list {
		line, err := jsonx.Encode(k)
		if err != nil {
			return err
		}
		b = append(append(b, line...), '\n')
	}
	return atomicfile.Replace(filepath.Join(dir, TokenFile), b)
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

// IssueToken adds a token with a fresh secret to the file of a data directory, and
// gives the secret, which is stored nowhere. A running hub knows the token after
// [Tokens.Reread].
func IssueToken(dir string, token Token, rnd io.Reader) (secret string, err error) {
	t, unlock, err := lockTokens(dir)
	defer unlock()
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("%w; `parley init` makes it", err)
	}
	if err != nil {
		return "", err
	}
	if token.Secret, err = newSecret(rnd); err != nil {
		return "", err
	}
	if t, err = newTokens(append([]Token{token}, t.list...)...); err != nil {
		return "", err
	}
	return token.Secret, writeTokens(dir, append(t.list[1:], t.list[0]))
}

// RemoveToken marks a token as removed in the file of a data directory. A running
// hub, and every hub of its cluster, refuses it after [Tokens.Reread].
func RemoveToken(dir, name string) error {
	t, unlock, err := lockTokens(dir)
	defer unlock()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(t.list, func(k Token) bool { return k.Name == name && !k.Removed })
	if i < 0 {
		return fmt.Errorf("no token is named %q; `parley tokens` lists them", name)
	}
	if k := &t.list[i]; k.Kept != "" {
		k.Kept, k.Removed = "", true
	} else {
		t.list = slices.Delete(t.list, i, i+1) // no hub has it yet
	}
	return writeTokens(dir, t.list)
}

// All gives the tokens without their secrets.
func (t *Tokens) All() []Token {
	t.mu.RLock()
	defer t.mu.RUnlock()
	out := make([]Token, 0, len(t.list))
	for _, k := range t.list {
		if !k.Removed {
			k.Kept = ""
			out = append(out, k)
		}
	}
	return out
}

// Account gives the name of the account whose token has the role [Register].
func (t *Tokens) Account(secret string) (name string, ok bool) {
	by, ok := t.find(secret)
	return by.Name, ok && by.Role == Register
}

// Clear names the tokens whose secrets are in the file in clear text.
func (t *Tokens) Clear() []string { return t.clear }

// ReadTokens reads the tokens of a data directory and changes nothing. The error
// matches [os.ErrNotExist] if there is no file. A file that other users may read is
// refused.
func ReadTokens(dir string) (*Tokens, error) {
	path := filepath.Join(dir, TokenFile)
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("admin tokens: %w", err)
	}
	defer f.Close()
	i, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("admin tokens: %w", err)
	}
	if disk.OthersMay(i) {
		return nil, fmt.Errorf("admin tokens: others can read %s; run: chmod 600 %s", path, path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxTokenFile+1))
	if err != nil {
		return nil, fmt.Errorf("admin tokens: %w", err)
	}
	if len(b) > maxTokenFile {
		return nil, fmt.Errorf("admin tokens: %s has more than %d bytes", path, maxTokenFile)
	}
	var list []Token
	for n, line := range bytes.Split(b, []byte("\n")) {
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var t Token
		if err := jsonx.DecodeKnown(line, &t); err != nil {
			return nil, fmt.Errorf("admin tokens: %s, line %d: %w", path, n+1, err)
		}
		list = append(list, t)
	}
	t, err := newTokens(list...)
	if err != nil {
		return nil, fmt.Errorf("admin tokens: %s: %w", path, err)
	}
	return t, nil
}

// lockTokens is [ReadTokens] under a lock, for callers that write the file
// afterwards: a running hub copies changes of other hubs into it at any moment, and
// a line that a command added meanwhile would be lost. Other callers of lockTokens
// wait until unlock, which is never nil.
func lockTokens(dir string) (t *Tokens, unlock func(), err error) {
	if _, err := os.Stat(dir); err != nil { // to lock it would make a file of that name
		return nil, func() {}, fmt.Errorf("admin tokens: %w", err)
	}
	lock, err := disk.Wait(dir)
	if err != nil {
		return nil, func() {}, fmt.Errorf("admin tokens: %w", err)
	}
	t, err = ReadTokens(dir)
	return t, func() { lock.Close() }, err
}

// find gives the actor of a secret. It compares all hashes, each in constant time,
// so that its duration reveals nothing about them.
func (t *Tokens) find(secret string) (Actor, bool) {
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
		return Actor{}, false
	}
	v := &t.list[found]
	return Actor{Name: v.Name, Role: v.Role, Speak: v.Speak}, true
}
