package admin

import (
	"bytes"
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
	"github.com/parley-hub/parley/policy"
)

// Role is what a token may do; each role includes those before it.
type Role string

// The roles.
const (
	Register   Role = "register"   // nothing here; its bearer has an account, in which it registers agents (uAgents)
	Observe    Role = "observe"    // see agents, messages, refusals, public keys and statistics, but no content
	Read       Role = "read"       // and content, exports of it and the search in it
	Operate    Role = "operate"    // and send, read inboxes, pause and resume, retry and drop dead letters
	Administer Role = "administer" // and change agents and keys, and see the audit trail
)

func (r Role) level() int {
	switch r {
	case Register:
		return 1
	case Observe:
		return 2
	case Read:
		return 3
	case Operate:
		return 4
	case Administer:
		return 5
	}
	return 0
}

// Operator is the agent as which a token speaks unless it says otherwise.
const Operator = "operator"

// An Actor is on whose behalf something is done.
type Actor struct {
	Name    string // of the token
	Role    Role
	Speak   []string // agents as which it may speak: patterns as in [policy.Match]; nil: Operator
	Address string   // network address, for the audit trail
}

// may refuses what the actor's role does not include.
func (a Actor) may(r Role) error {
	if a.Role.level() >= r.level() {
		return nil
	}
	return parley.Refuse(parley.Forbidden, "token %q has the role %q; this needs %q", a.Name, a.Role, r)
}

// speaker gives the agent as which the actor speaks.
func (a Actor) speaker(name string) (string, error) {
	patterns := a.Speak
	if len(patterns) == 0 {
		patterns = []string{Operator}
	}
	if name == "" {
		name = Operator
		if len(patterns) == 1 && parley.CheckName(patterns[0]) == nil {
			name = patterns[0]
		}
	}
	if err := parley.CheckName(name); err != nil {
		return "", err
	}
	for _, p := range patterns {
		if policy.Match(p, name) {
			return name, nil
		}
	}
	return "", parley.Refuse(parley.Forbidden, "token %q may not speak as %q; it may as %s", a.Name, name,
		strings.Join(patterns, ", "))
}

// TokenFile holds the tokens, in the data directory: one JSON object a line,
// mode 0600. It holds hashes of the secrets. To add a token, add a line with its
// secret in "token": the hub replaces that by the hash when it starts.
const TokenFile = "admin-tokens.jsonl"

// LocalToken is the name of the token that each start of a hub makes for the
// commands on its own machine; see [Tokens.AddLocal].
const LocalToken = "local"

// A Token lets its bearer in. Exactly one of Hash and Secret is set.
type Token struct {
	Name    string    `json:"name"`           // for the audit trail; unique
	Role    Role      `json:"role"`           // register, observe, read, operate or administer
	Hash    string    `json:"hash,omitzero"`  // "sha256:" and the SHA-256 of the secret in base64url
	Secret  string    `json:"token,omitzero"` // the secret in clear: 16 characters or more
	Speak   []string  `json:"speak,omitzero"`
	Created time.Time `json:"created,omitzero"`
}

// Tokens are those of one hub. Make them with [OpenTokens], [ReadTokens] or
// [NewTokens].
type Tokens struct {
	mu    sync.RWMutex
	list  []knownToken
	clear []string // names of those that came with their secret
}

// knownToken has its hash twice: in the form of the file, and to compare with.
type knownToken struct {
	Token
	sum [sha256.Size]byte
}

const (
	maxTokens    = 1000
	maxTokenFile = 1 << 20
	hashPrefix   = "sha256:"
)

// NewTokens checks a list of tokens, and keeps only hashes of their secrets.
func NewTokens(list ...Token) (*Tokens, error) {
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
		case t.Name == LocalToken:
			return nil, fmt.Errorf("token %q: the hub itself makes the token of that name; choose another name", t.Name)
		case t.Role.level() == 0:
			return nil, fmt.Errorf("token %q: role %q is not register, observe, read, operate or administer", t.Name, t.Role)
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

// hashed puts the hash of the secret in its place. A plain hash is enough for
// what is drawn at random: nobody can try all of 24 bytes.
func (t Token) hashed() (knownToken, error) {
	k := knownToken{Token: t}
	switch hash, ok := strings.CutPrefix(t.Hash, hashPrefix); {
	case t.Hash != "" && t.Secret != "":
		return k, errors.New("want the hash or the secret, not both")
	case t.Hash != "":
		b, err := base64.RawURLEncoding.Strict().DecodeString(strings.TrimRight(hash, "="))
		if !ok || err != nil || len(b) != sha256.Size {
			return k, errors.New(`the hash must be "sha256:" and 32 bytes in base64url`)
		}
		k.sum = [sha256.Size]byte(b)
	case len(t.Secret) < 16 || len(t.Secret) > 512 || strings.ContainsAny(t.Secret, " \t\r\n"):
		return k, errors.New("the secret must have 16 to 512 characters without spaces")
	default:
		k.sum, k.Secret = sha256.Sum256([]byte(t.Secret)), ""
	}
	k.Hash = hashPrefix + base64.RawURLEncoding.EncodeToString(k.sum[:])
	return k, nil
}

// OpenTokens gives the tokens of a data directory to a hub that starts. Where
// there is no file yet it makes one with a first token, and gives that token's
// secret; see [MakeTokens]. Secrets that stand in the file in clear are replaced
// by their hashes. With an empty dir the first token is only in memory.
func OpenTokens(dir string, now time.Time, rnd io.Reader, log *slog.Logger) (t *Tokens, first string, err error) {
	if dir == "" {
		token, err := firstToken(now, rnd)
		if err != nil {
			return nil, "", err
		}
		t, err = NewTokens(token)
		return t, token.Secret, err
	}
	if first, err = MakeTokens(dir, now, rnd); err != nil {
		return nil, "", err
	}
	t, err = readHashed(dir, log)
	return t, first, err
}

// readHashed reads the tokens of a data directory, and replaces the secrets that
// stand in the file by their hashes.
func readHashed(dir string, log *slog.Logger) (*Tokens, error) {
	t, err := ReadTokens(dir)
	if err != nil || len(t.clear) == 0 {
		return t, err
	}
	path := filepath.Join(dir, TokenFile)
	if err := t.write(path); err != nil {
		// The tokens are good, so the hub need not stop for this.
		log.Error("cannot replace the secrets of admin tokens by their hashes", "file", path, "tokens", t.clear, "error", err)
		return t, nil
	}
	log.Info("replaced the secrets of admin tokens by their hashes", "file", path, "tokens", t.clear)
	t.clear = nil
	return t, nil
}

// MakeTokens makes the token file of a data directory where there is none, with
// a first token, "admin", that may do everything and speak as any agent. It
// gives the token's secret, which nothing keeps, or "" where there is a file.
func MakeTokens(dir string, now time.Time, rnd io.Reader) (secret string, err error) {
	path := filepath.Join(dir, TokenFile)
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	first, err := firstToken(now, rnd)
	if err != nil {
		return "", err
	}
	t, err := NewTokens(first)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make the admin token: %w", err)
	}
	if err := t.write(path); err != nil {
		return "", fmt.Errorf("make the admin token: %w", err)
	}
	return first.Secret, nil
}

func firstToken(now time.Time, rnd io.Reader) (Token, error) {
	secret, err := newSecret(rnd)
	return Token{Name: "admin", Role: Administer, Secret: secret, Speak: []string{"**"},
		Created: now.UTC().Truncate(time.Second)}, err
}

func newSecret(rnd io.Reader) (string, error) {
	var b [24]byte
	if _, err := io.ReadFull(rnd, b[:]); err != nil {
		return "", fmt.Errorf("make an admin token: %w", err)
	}
	return "parley_" + base64.RawURLEncoding.EncodeToString(b[:]), nil
}

func (t *Tokens) write(path string) error {
	var b []byte
	for _, k := range t.list {
		line, err := jsonx.Encode(k.Token)
		if err != nil {
			return err
		}
		b = append(append(b, line...), '\n')
	}
	return atomicfile.Replace(path, b)
}

// AddLocal adds the token of the commands on the hub's own machine, which may do
// everything, and gives its secret. It must be called before the tokens are
// used.
func (t *Tokens) AddLocal(now time.Time, rnd io.Reader) (secret string, err error) {
	if secret, err = newSecret(rnd); err != nil {
		return "", err
	}
	k, err := Token{Name: LocalToken, Role: Administer, Secret: secret, Speak: []string{"**"}, Created: now}.hashed()
	if err != nil {
		return "", err
	}
	t.list = append(t.list, k)
	return secret, nil
}

// Reread takes up the file of a data directory. The local token stays. After an
// error all tokens stay what they were.
func (t *Tokens) Reread(dir string, log *slog.Logger) error {
	read, err := readHashed(dir, log)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range t.list {
		if k.Name == LocalToken {
			read.list = append(read.list, k)
		}
	}
	t.list = read.list
	return nil
}

// Issue adds a token with a fresh secret to the file of a data directory, and
// gives the secret. Nothing keeps that.
func Issue(dir string, token Token, rnd io.Reader) (secret string, err error) {
	t, err := ReadTokens(dir)
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("%w; `parley init` makes it", err)
	}
	if err != nil {
		return "", err
	}
	if token.Secret, err = newSecret(rnd); err != nil {
		return "", err
	}
	if t, err = NewTokens(append(t.All(), token)...); err != nil {
		return "", err
	}
	return token.Secret, t.write(filepath.Join(dir, TokenFile))
}

// Withdraw takes a token out of the file of a data directory.
func Withdraw(dir, name string) error {
	t, err := ReadTokens(dir)
	if err != nil {
		return err
	}
	left := slices.DeleteFunc(slices.Clone(t.list), func(k knownToken) bool { return k.Name == name })
	if len(left) == len(t.list) {
		return fmt.Errorf("no token is named %q; `parley tokens` lists them", name)
	}
	return (&Tokens{list: left}).write(filepath.Join(dir, TokenFile))
}

// All gives the tokens without their secrets.
func (t *Tokens) All() []Token {
	t.mu.RLock()
	defer t.mu.RUnlock()
	out := make([]Token, len(t.list))
	for i, k := range t.list {
		out[i] = k.Token
	}
	return out
}

// Account gives the name of the account whose token has the role [Register].
func (t *Tokens) Account(secret string) (name string, ok bool) {
	by, ok := t.find(secret)
	return by.Name, ok && by.Role == Register
}

// Clear names the tokens whose secrets stand in the file in clear.
func (t *Tokens) Clear() []string { return t.clear }

// ReadTokens reads the tokens of a data directory and changes nothing; the error
// matches [os.ErrNotExist] where there is no file. A file that others may read
// is refused.
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
	t, err := NewTokens(list...)
	if err != nil {
		return nil, fmt.Errorf("admin tokens: %s: %w", path, err)
	}
	return t, nil
}

// find gives the actor of a secret. All hashes are compared, each in constant
// time, so that the time tells nothing about any of them.
func (t *Tokens) find(secret string) (Actor, bool) {
	got := sha256.Sum256([]byte(secret))
	t.mu.RLock()
	defer t.mu.RUnlock()
	found := -1
	for i := range t.list {
		if subtle.ConstantTimeCompare(got[:], t.list[i].sum[:]) == 1 {
			found = i
		}
	}
	if found < 0 {
		return Actor{}, false
	}
	v := &t.list[found]
	return Actor{Name: v.Name, Role: v.Role, Speak: v.Speak}, true
}
