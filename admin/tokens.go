package admin

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/policy"
)

// Role is what a token may do; each role includes those before it.
type Role string

// The roles.
const (
	Read       Role = "read"       // see agents, dead letters, refusals, keys (never private ones) and statistics
	Operate    Role = "operate"    // and send, read inboxes, pause and resume, retry and drop dead letters
	Administer Role = "administer" // and change agents and keys, and see the audit trail
)

func (r Role) level() int {
	switch r {
	case Read:
		return 1
	case Operate:
		return 2
	case Administer:
		return 3
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
	return "", parley.Refuse(parley.Forbidden, "token %q may not speak as %q; it may as %s", a.Name, name, strings.Join(patterns, ", "))
}

// TokenFile holds the tokens, in the data directory: one JSON object a line,
// mode 0600.
const TokenFile = "admin-tokens.jsonl"

// A Token lets its bearer in.
type Token struct {
	Name    string    `json:"name"`  // for the audit trail; unique
	Role    Role      `json:"role"`  // read, operate or administer
	Token   string    `json:"token"` // the secret: 16 characters or more
	Speak   []string  `json:"speak,omitzero"`
	Created time.Time `json:"created,omitzero"`
}

// Tokens are those of one hub. Make them with [LoadTokens] or [NewTokens].
type Tokens struct{ list []Token }

const (
	maxTokens    = 1000
	maxTokenFile = 1 << 20
)

// NewTokens checks a list of tokens.
func NewTokens(list ...Token) (*Tokens, error) {
	if len(list) > maxTokens {
		return nil, fmt.Errorf("%d tokens, more than the %d allowed", len(list), maxTokens)
	}
	names := map[string]bool{}
	for i, t := range list {
		switch {
		case t.Name == "" || len(t.Name) > 64 || strings.ContainsAny(t.Name, "\r\n"):
			return nil, fmt.Errorf("token %d: want a name of 1 to 64 characters", i+1)
		case names[t.Name]:
			return nil, fmt.Errorf("two tokens are named %q", t.Name)
		case t.Role.level() == 0:
			return nil, fmt.Errorf("token %q: role %q is not read, operate or administer", t.Name, t.Role)
		case len(t.Token) < 16 || len(t.Token) > 512 || strings.ContainsAny(t.Token, " \t\r\n"):
			return nil, fmt.Errorf("token %q: the secret must have 16 to 512 characters without spaces", t.Name)
		}
		names[t.Name] = true
	}
	return &Tokens{list: list}, nil
}

// LoadTokens reads the tokens of a data directory. Where there is no file yet
// it makes one with a first token, "admin", that may do everything and speak
// as any agent. With an empty dir that token is only in memory.
func LoadTokens(dir string) (*Tokens, error) {
	if dir != "" {
		t, err := ReadTokens(dir)
		if !errors.Is(err, os.ErrNotExist) {
			return t, err
		}
	}
	var secret [24]byte
	if _, err := rand.Read(secret[:]); err != nil {
		return nil, fmt.Errorf("make an admin token: %w", err)
	}
	first := Token{Name: "admin", Role: Administer, Token: "parley_" + base64.RawURLEncoding.EncodeToString(secret[:]), Speak: []string{"**"}}
	if dir != "" {
		if err := writeToken(dir, first); err != nil {
			return nil, fmt.Errorf("make the admin token: %w", err)
		}
	}
	return NewTokens(first)
}

func writeToken(dir string, t Token) error {
	b, err := jsonx.Encode(t)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, TokenFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	return errors.Join(err, f.Sync(), f.Close())
}

// ReadTokens reads the tokens of a data directory and makes none; the error
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
	if i.Mode().Perm()&0o077 != 0 {
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

// Best gives the token with the most powerful role, the first of several.
func (t *Tokens) Best() (Token, bool) {
	var best Token
	for _, v := range t.list {
		if v.Role.level() > best.Role.level() {
			best = v
		}
	}
	return best, best.Role != ""
}

// find gives the actor of a secret. All tokens are compared, each in constant
// time, so that the time tells nothing about any of them.
func (t *Tokens) find(secret string) (Actor, bool) {
	got := sha256.Sum256([]byte(secret))
	found := -1
	for i, v := range t.list {
		want := sha256.Sum256([]byte(v.Token))
		if subtle.ConstantTimeCompare(got[:], want[:]) == 1 {
			found = i
		}
	}
	if found < 0 {
		return Actor{}, false
	}
	v := t.list[found]
	return Actor{Name: v.Name, Role: v.Role, Speak: v.Speak}, true
}
