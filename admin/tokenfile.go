package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/parley-hub/parley/internal/atomicfile"
	"github.com/parley-hub/parley/internal/disk"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/journal"
)

// TokenFile is a copy of the tokens, in the data directory: one JSON object a
// line, mode 0600. It holds hashes of the secrets. To add a token, add a line with
// its secret in "token": a hub that starts or reloads its configuration moves it
// into the state, where the tokens of all hubs of a cluster are.
const TokenFile = "admin-tokens.jsonl"

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

// IssueToken adds a token with a fresh secret to the file of a data directory whose hub
// does not run, and gives it with the secret, which is stored nowhere. The hub knows the
// token when it starts.
func IssueToken(dir string, n NewToken, now time.Time, rnd io.Reader) (Token, error) {
	t, unlock, err := lockTokens(dir)
	defer unlock()
	if errors.Is(err, os.ErrNotExist) {
		return Token{}, fmt.Errorf("%w; `parley init` makes it", err)
	}
	if err != nil {
		return Token{}, err
	}
	token, err := n.token(now, rnd)
	if err != nil {
		return Token{}, err
	}
	if t, err = newTokens(append([]Token{token}, t.list...)...); err != nil {
		return Token{}, err
	}
	return token, writeTokens(dir, append(t.list[1:], t.list[0]))
}

// RevokeToken marks a token as removed in the file of a data directory whose hub does not
// run. The hub, and every hub of its cluster, refuses it after [Tokens.Reread]. Without
// force the last token that may administer stays.
func RevokeToken(dir, name string, force bool, now time.Time) error {
	t, unlock, err := lockTokens(dir)
	defer unlock()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(t.list, func(k Token) bool { return k.Name == name && !k.Removed })
	if i < 0 {
		return fmt.Errorf("no token is named %q; `parley tokens` lists them", name)
	}
	if !force && t.list[i].lastOf(t.All(), now) {
		return lastToken(name)
	}
	if k := &t.list[i]; k.Kept != "" {
		k.Kept, k.Removed = "", true
	} else {
		t.list = slices.Delete(t.list, i, i+1) // no hub has it yet
	}
	return writeTokens(dir, t.list)
}

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
			// Its role, its expiry or the agents for which it may send may have changed.
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
			if err := t.remove(ctx, k.Name); err != nil {
				return fmt.Errorf("revoke admin token %q: %w", k.Name, err)
			}
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

// Clear names the tokens whose secrets are in the file in clear text.
func (t *Tokens) Clear() []string { return t.clear }

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
