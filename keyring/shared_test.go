package keyring

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// kv is a Store in memory.
type kv struct {
	mu       sync.Mutex
	revision uint64
	values   map[string]Value
	watchers map[int]func(Value)
	before   func(key string) // runs before each write
	fault    func() error     // its error makes a write fail
}

func newKV() *kv { return &kv{values: map[string]Value{}, watchers: map[int]func(Value){}} }

func (s *kv) Get(_ context.Context, key string) (Value, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.values[key]
	v.Key = key
	return v, nil
}

func (s *kv) Set(_ context.Context, key string, data []byte, revision uint64) (uint64, error) {
	return s.write(key, data, revision, true)
}

func (s *kv) Remove(_ context.Context, key string, revision uint64) error {
	_, err := s.write(key, nil, revision, revision != 0)
	return err
}

func (s *kv) write(key string, data []byte, revision uint64, compare bool) (uint64, error) {
	if s.before != nil {
		s.before(key)
	}
	if s.fault != nil {
		if err := s.fault(); err != nil {
			return 0, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if compare && s.values[key].Revision != revision {
		return 0, fmt.Errorf("%q: %w", key, ErrConflict)
	}
	s.revision++
	v := Value{key, bytes.Clone(data), s.revision}
	if data == nil {
		delete(s.values, key)
	} else {
		s.values[key] = v
	}
	for _, f := range s.watchers {
		f(v)
	}
	return s.revision, nil
}

func (s *kv) Watch(_ context.Context, fn func(Value)) (stop func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.values {
		fn(v)
	}
	id := len(s.watchers)
	s.watchers[id] = fn
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.watchers[id] = func(Value) {}
	}, nil
}

func openOn(t testing.TB, s Store, more ...func(*Options)) *Ring {
	t.Helper()
	o := Options{Store: s, Shared: true, Passphrase: Secret("right")}
	for _, f := range more {
		f(&o)
	}
	r := open(t, o)
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func reload(t testing.TB, r *Ring) *Ring {
	t.Helper()
	if err := tryReload(r); err != nil {
		t.Fatal(err)
	}
	return r
}

// Hubs that share a state have the same keys, whichever hub creates, changes or removes them.
func TestSharedState(t *testing.T) {
	t.Parallel()
	s, c := newKV(), newClock()
	at := func(o *Options) { o.Now = c.Now }
	a, b := openOn(t, s, at), openOn(t, s, at)
	fill(t, a)
	want := stateOf(t, a)
	same := func(r *Ring) {
		t.Helper()
		if diff := cmp.Diff(want, stateOf(t, reload(t, r))); diff != "" {
			t.Errorf("content at another hub (-want +got):\n%s", diff)
		}
	}
	same(b)
	same(openOn(t, s, at))
	signer, err := b.Signer("weather", string(Secp256k1))
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Revoke(signer.ID()); err != nil {
		t.Fatal(err)
	}
	reload(t, b)
	if _, err := signer.Sign(make([]byte, 32)); !errors.Is(err, ErrRevoked) {
		t.Errorf("Sign with a key that another hub revoked: %v, want ErrRevoked", err)
	}
	secret, err := b.Secret("journal", 32)
	if err != nil || hex.EncodeToString(secret) != want.Secret {
		t.Errorf("Secret = %x, %v; want the first hub's %s", secret, err, want.Secret)
	}
	if n, err := b.Forget("weather"); n != 4 || err != nil {
		t.Errorf("Forget removed %d keys, %v; want 4", n, err)
	}
	if keys := reload(t, a).List(); len(keys) != 0 {
		t.Errorf("keys after another hub's Forget: %+v", keys)
	}
	create(t, a, New{Owner: "weather", Purpose: string(P256), Algorithm: P256})
	if keys := reload(t, b).List(); len(keys) != 1 {
		t.Errorf("keys after another hub's Create: %+v, want 1", keys)
	}
	if got := fmt.Sprint(a); got != "keyring{the keyring in the shared state, 1 keys}" {
		t.Errorf("String() = %q", got)
	}
}

// The store shows no secrets and no names. A shared ring does not open without its passphrase.
func TestSharedIsSealed(t *testing.T) {
	t.Parallel()
	s := newKV()
	r := openOn(t, s)
	fill(t, r)
	want := stateOf(t, r)
	for key, v := range s.values {
		for _, hidden := range append(slices.Clone(want.Seeds), want.Secret, hex.EncodeToString([]byte("weather"))) {
			raw, err := hex.DecodeString(hidden)
			if err != nil {
				t.Fatal(err)
			}
			for _, form := range []string{string(raw), hidden, base64.StdEncoding.EncodeToString(raw)} {
				if strings.Contains(key, form) || bytes.Contains(v.Data, []byte(form)) {
					t.Errorf("%s shows a secret", key)
				}
			}
		}
	}
	before := maps.Clone(s.values)
	for _, c := range []struct {
		o    Options
		want error
	}{{Options{Passphrase: Secret("wrong")}, ErrWrongKey}, {Options{}, ErrEncrypted},
		{Options{IdentityFile: identityFile(t)}, ErrWrongKey}} {
		c.o.Store, c.o.Shared, c.o.WorkFactor = s, true, 4
		_, err := Open(c.o)
		wantErr(t, err, c.want)
	}
	if diff := cmp.Diff(before, s.values); diff != "" {
		t.Errorf("a refused Open changed the store (-before +after):\n%s", diff)
	}
	_, err := Open(Options{Store: newKV(), Shared: true})
	wantErr(t, err, ErrInvalid)
}

// Hubs that create the same keys at the same time end with one key each.
func TestSharedAtOnce(t *testing.T) {
	t.Parallel()
	s := newKV()
	var rings []*Ring
	for range 3 {
		rings = append(rings, openOn(t, s))
	}
	const each = 40
	ids := make([][]string, len(rings))
	secrets := make([][]byte, len(rings))
	var work sync.WaitGroup
	for n, r := range rings {
		work.Go(func() {
			var all []New
			for i := range each {
				owner := fmt.Sprintf("agent-%d", i)
				all = append(all, New{Owner: owner, Purpose: "q", Algorithm: Secp256k1})
				k, err := r.Ensure(New{Owner: owner, Purpose: "p", Algorithm: Ed25519})
				if err != nil {
					t.Error(err)
					return
				}
				ids[n] = append(ids[n], k.ID())
			}
			if err := r.EnsureAll(all...); err != nil {
				t.Error(err)
			}
			var err error
			if secrets[n], err = r.Secret("tokens", 32); err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	want := stateOf(t, reload(t, rings[0]))
	if len(want.Keys) != 2*each {
		t.Errorf("%d keys, want %d", len(want.Keys), 2*each)
	}
	for n, r := range rings {
		if !slices.Equal(ids[n], ids[0]) || !bytes.Equal(secrets[n], secrets[0]) {
			t.Errorf("hub %d has other keys than hub 0", n)
		}
		if diff := cmp.Diff(want, stateOf(t, reload(t, r))); diff != "" {
			t.Errorf("hub %d (-hub 0 +hub %[1]d):\n%[2]s", n, diff)
		}
	}
}

// If another hub changes a key first, a change is made again on the new value. If another hub removes the key first,
// the change fails.
func TestSharedConflict(t *testing.T) {
	t.Parallel()
	s := newKV()
	a, b := openOn(t, s), openOn(t, s)
	key := storeKey("keys", "x", "p")
	create(t, a, New{Owner: "x", Purpose: "p", Algorithm: Ed25519})
	first := reload(t, b).Keys("x", "p")[0]
	meanwhile := func(f func() error) {
		s.before = func(k string) {
			if k != key {
				return
			}
			s.before = nil
			if err := f(); err != nil {
				t.Error(err)
			}
		}
	}
	meanwhile(func() error { return errOf(a.Rotate("x", "p", "test", time.Hour)) })
	if err := b.Revoke(first.ID); err != nil {
		t.Fatal(err)
	}
	if keys := reload(t, a).Keys("x", "p"); len(keys) != 1 || keys[0].ID == first.ID {
		t.Errorf("keys after a rotation and a revocation: %+v, want only the new one", keys)
	}
	meanwhile(func() error { return errOf(a.Forget("x")) })
	if _, err := b.Rotate("x", "p", "test", 0); !errors.Is(err, ErrNotFound) {
		t.Errorf("Rotate of a key that another hub removed: %v, want ErrNotFound", err)
	}
}

// A hub neither loads nor overwrites a damaged value of the store, and keeps the keys that it has.
func TestSharedDamage(t *testing.T) {
	t.Parallel()
	s := newKV()
	r := openOn(t, s)
	fill(t, r)
	want := stateOf(t, r)
	key, other := storeKey("keys", "weather", string(Ed25519)), storeKey("keys", "peer", string(Ed25519))
	good := s.values[key]
	for name, b := range map[string][]byte{"garbage": []byte("{"), "value of another key": s.values[other].Data} {
		revision, err := s.Set(t.Context(), key, b, s.values[key].Revision)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := tryReload(r); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s: reload: %v, want ErrCorrupt", name, err)
			}
			if _, err := r.Rotate("weather", string(Ed25519), "test", 0); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s: Rotate: %v, want ErrCorrupt", name, err)
			}
		}
		if diff := cmp.Diff(want, stateOf(t, r)); diff != "" {
			t.Errorf("%s: the ring changed (-before +after):\n%s", name, diff)
		}
		if _, err := Open(Options{Store: s, Shared: true, Passphrase: Secret("right")}); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: Open: %v, want ErrCorrupt", name, err)
		}
		if _, err := s.Set(t.Context(), key, good.Data, revision); err != nil {
			t.Fatal(err)
		}
		reload(t, r)
	}
}

// opens lists the keys of the values that by can decrypt.
func opens(s *kv, by *sealer) (keys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, v := range s.values {
		if _, err := by.decode(v.Data, key); err == nil && key != headKey {
			keys = append(keys, key)
		}
	}
	return keys
}

// One hub changes the passphrase of a shared ring. The other hubs still sign with the keys that they have, but cannot
// change or reload them. A hub that starts needs the new passphrase.
func TestSharedPassphrase(t *testing.T) {
	t.Parallel()
	s, c := newKV(), newClock()
	at := func(o *Options) { o.Now = c.Now }
	under := func(p string) func(*Options) { return func(o *Options) { o.Passphrase = Secret(p) } }
	right, second, third := Protection{Passphrase: Secret("right")}, Protection{Passphrase: Secret("second")},
		Protection{Passphrase: Secret("third")}
	a, b := openOn(t, s, at), openOn(t, s, at)
	fill(t, a)
	reload(t, b)
	values := maps.Clone(s.values)
	for _, p := range [][2]Protection{{second, third}, {{}, second}, {right, {}}} {
		if _, err := a.Protect(p[0], p[1]); err == nil {
			t.Error("Protect accepted a wrong or missing passphrase")
		}
	}
	if diff := cmp.Diff(values, s.values); diff != "" {
		t.Errorf("a refused Protect changed the store (-before +after):\n%s", diff)
	}

	// Another hub creates a key during the change.
	before := a.place.(*shared).sealer
	late := storeKey("keys", "late", "p")
	s.before = func(key string) {
		if key == late {
			s.before = nil
			if _, err := a.Protect(right, second); err != nil {
				t.Error(err)
			}
		}
	}
	made := create(t, b, New{Owner: "late", Purpose: "p", Algorithm: Ed25519})
	if keys := reload(t, a).Keys("late", "p"); len(keys) != 1 || keys[0].ID != made.ID {
		t.Errorf("keys that the other hub created during the change: %+v, want %s", keys, made.ID)
	}
	if keys := opens(s, before); len(keys) != 1 || keys[0] != late {
		t.Errorf("the previous identity decrypts %v, want only %s", keys, late)
	}
	want := stateOf(t, a)

	// The other hub signs, but cannot change or reload keys.
	signer, err := b.Signer("weather", string(Ed25519))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := signer.Sign([]byte("m")); err != nil {
		t.Errorf("Sign after another hub changed the passphrase: %v", err)
	}
	for _, err := range []error{errOf(b.Rotate("weather", string(Ed25519), "test", 0)), tryReload(b),
		errOf(b.Protect(right, third))} {
		wantErr(t, err, ErrWrongKey)
		if err == nil || !strings.Contains(err.Error(), "start it again, with the new passphrase") {
			t.Errorf("error %v does not ask for a restart with the new passphrase", err)
		}
	}

	// A hub that starts needs the new passphrase.
	_, err = Open(Options{Store: s, Shared: true, Passphrase: Secret("right")})
	wantErr(t, err, ErrWrongKey)
	if err == nil || !strings.Contains(err.Error(), "was changed on 2026-11-20T12:00:00Z") {
		t.Errorf("error %v does not give the time of the change", err)
	}
	d := openOn(t, s, at, under("second"))
	if diff := cmp.Diff(want, stateOf(t, d)); diff != "" {
		t.Errorf("content under the new passphrase (-want +got):\n%s", diff)
	}
	if keys := opens(s, before); len(keys) != 0 {
		t.Errorf("the previous identity decrypts %v, want nothing", keys)
	}

	// The first hub changes the passphrase again, and keeps a key that the new hub created.
	create(t, d, New{Owner: "more", Purpose: "p", Algorithm: Ed25519})
	want = stateOf(t, d)
	before = a.place.(*shared).sealer
	if _, err := a.Protect(second, third); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, stateOf(t, openOn(t, s, at, under("third")))); diff != "" {
		t.Errorf("content under the third passphrase (-want +got):\n%s", diff)
	}
	if keys := opens(s, before); len(keys) != 0 {
		t.Errorf("the previous identity decrypts %v, want nothing", keys)
	}
}

// A hub stops during a change of the passphrase. Before the first write only the old passphrase opens the ring; after
// it only the new one does. No key is lost.
func TestSharedPassphraseCutOff(t *testing.T) {
	t.Parallel()
	gone := errors.New("gone")
	for n := range 8 {
		s, c := newKV(), newClock()
		at := func(o *Options) { o.Now = c.Now }
		r := open(t, Options{Store: s, Shared: true, Passphrase: Secret("right"), Now: c.Now})
		fill(t, r)
		want, before := stateOf(t, r), r.place.(*shared).sealer
		var mu sync.Mutex
		left := n
		s.fault = func() error {
			mu.Lock()
			defer mu.Unlock()
			if left--; left < 0 {
				return gone
			}
			return nil
		}
		_, err := r.Protect(Protection{Passphrase: Secret("right")}, Protection{Passphrase: Secret("next")})
		if !errors.Is(err, gone) && len(opens(s, before)) > 0 {
			t.Errorf("stopped after %d writes: Protect: %v", n, err)
		}
		r.place.stop()
		s.fault = nil
		works, fails := "next", "right"
		if n == 0 {
			works, fails = fails, works
		}
		_, err = Open(Options{Store: s, Shared: true, Passphrase: Secret(fails)})
		wantErr(t, err, ErrWrongKey)
		again := openOn(t, s, at, func(o *Options) { o.Passphrase = Secret(works) })
		if diff := cmp.Diff(want, stateOf(t, again)); diff != "" {
			t.Errorf("stopped after %d writes (-want +got):\n%s", n, diff)
		}
		if keys := opens(s, before); n > 0 && len(keys) > 0 {
			t.Errorf("stopped after %d writes: the previous identity decrypts %v", n, keys)
		}
	}
}

// A hub that joins a cluster moves the keys of its files into the shared state, once. A single hub that starts on a
// cluster's backup moves the keys of the shared state into its files.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	for name, pass := range map[string]Secret{"plain": nil, "passphrase": Secret("right")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, c, dir := newKV(), newClock(), filepath.Join(t.TempDir(), "keys")
			old := open(t, Options{Dir: dir, Passphrase: pass, Now: c.Now})
			fill(t, old)
			want := stateOf(t, old)
			file := readFile(t, filepath.Join(dir, FileName))
			from := func(dir string) func(*Options) { return func(o *Options) { o.Dir, o.Now = dir, c.Now } }
			a := openOn(t, s, from(dir))
			if diff := cmp.Diff(want, stateOf(t, a)); diff != "" {
				t.Errorf("shared state (-file +got):\n%s", diff)
			}
			left := files(t, dir)
			if len(left) != 1 || !strings.HasSuffix(left[0], ".bak 600") {
				t.Fatalf("files after the move: %v, want one backup", left)
			}
			aside := filepath.Join(dir, strings.TrimSuffix(left[0], " 600"))
			if !bytes.Equal(file, readFile(t, aside)) {
				t.Error("the backup differs from the moved file")
			}
			// A later start moves nothing more: a key that was revoked since then stays revoked.
			b := openOn(t, s, from(dir))
			signer, err := b.Signer("weather", string(Ed25519))
			if err != nil {
				t.Fatal(err)
			}
			if err := b.Revoke(signer.ID()); err != nil {
				t.Fatal(err)
			}
			again := openOn(t, s, from(dir))
			if _, err := again.SignerByID(signer.ID()); !errors.Is(err, ErrRevoked) {
				t.Errorf("signer of a revoked key after a restart: %v, want ErrRevoked", err)
			}
			// A third hub adds its own keys, except a key whose owner and purpose have one already.
			third := filepath.Join(t.TempDir(), "keys")
			own := open(t, Options{Dir: third, Now: c.Now})
			mine := create(t, own, New{Owner: "weather", Purpose: string(Secp256k1), Algorithm: Secp256k1})
			more := create(t, own, New{Owner: "more", Purpose: "p", Algorithm: Ed25519})
			var log bytes.Buffer
			d := openOn(t, s, from(third), func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
			if _, err := d.SignerByID(more.ID); err != nil {
				t.Errorf("signer of the third hub's key: %v", err)
			}
			if _, err := d.SignerByID(mine.ID); !errors.Is(err, ErrNotFound) ||
				!strings.Contains(log.String(), mine.ID) {
				t.Errorf("signer of the skipped key: %v, want ErrNotFound and its ID in the log: %s", err, &log)
			}
			want = stateOf(t, d)
			if _, err := Open(Options{Store: s, Dir: filepath.Join(t.TempDir(), "keys")}); !errors.Is(err,
				ErrEncrypted) {
				t.Errorf("single hub without the passphrase: %v, want ErrEncrypted", err)
			}
			for _, r := range []*Ring{a, b, again, d} {
				if err := r.Close(); err != nil {
					t.Fatal(err)
				}
			}
			// A single hub starts on the restored backup.
			alone := open(t, Options{Store: s, Dir: dir, Passphrase: Secret("right"), Now: c.Now})
			if diff := cmp.Diff(want, stateOf(t, alone)); diff != "" {
				t.Errorf("single hub (-want +got):\n%s", diff)
			}
			if len(s.values) != 0 {
				t.Errorf("%d values are left in the shared state, want 0", len(s.values))
			}
			alone = open(t, Options{Store: s, Dir: dir, Passphrase: Secret("right"), Now: c.Now})
			if diff := cmp.Diff(want, stateOf(t, alone)); diff != "" {
				t.Errorf("single hub (-want +got):\n%s", diff)
			}
		})
	}
	// If the directory has no ring, the hub creates no file there.
	dir := filepath.Join(t.TempDir(), "keys")
	openOn(t, newKV(), func(o *Options) { o.Dir = dir })
	if _, err := Exists(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Exists: %v", err)
	}
	// A file with another passphrase is refused: the hub moves no key and keeps the file.
	dir = filepath.Join(t.TempDir(), "keys")
	fill(t, open(t, Options{Dir: dir, Passphrase: Secret("other")}))
	s := newKV()
	_, err := Open(Options{Store: s, Shared: true, Dir: dir, Passphrase: Secret("right"), WorkFactor: 4})
	wantErr(t, err, ErrWrongKey)
	if there, _ := Exists(dir); !there || len(s.values) != 0 {
		t.Error("a refused Open changed the file or the shared state")
	}
}

// Watchers are called when another hub enrolls or removes a key.
func TestSharedWatch(t *testing.T) {
	t.Parallel()
	s := newKV()
	a, b := openOn(t, s), openOn(t, s)
	told := make(chan string, 10)
	b.Watch(func(agent string) { told <- agent })
	k := create(t, a, New{Owner: "x", Purpose: "p", Algorithm: Ed25519})
	e, err := a.Enroll(Enrolled{Agent: "peer", Purpose: "p", Algorithm: Ed25519, Public: k.Public})
	if err != nil {
		t.Fatal(err)
	}
	if agent := <-told; agent != "peer" || len(b.Enrolled("peer", "p")) != 1 {
		t.Errorf("watcher called for %q, want peer with 1 key", agent)
	}
	if err := a.Unenroll("peer", "p", e.KeyID); err != nil {
		t.Fatal(err)
	}
	if agent := <-told; agent != "peer" || len(b.Enrolled("peer", "p")) != 0 {
		t.Errorf("watcher called for %q, want peer without keys", agent)
	}
}

// Close writes the time of a key's last use, to the hour, in one write. A second Close writes nothing.
func TestSharedUsed(t *testing.T) {
	t.Parallel()
	s, c := newKV(), newClock()
	at := func(o *Options) { o.Now = c.Now }
	r := open(t, Options{Store: s, Shared: true, Passphrase: Secret("right"), Now: c.Now})
	k := create(t, r, New{Owner: "x", Purpose: "p", Algorithm: Ed25519})
	signer, err := r.Signer("x", "p")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := signer.Sign([]byte("m")); err != nil {
		t.Fatal(err)
	}
	before := s.revision
	for range 2 {
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if got := openOn(t, s, at).Keys("x", "p")[0].Used; !got.Equal(c.Now()) {
		t.Errorf("last used %s, want %s", got, c.Now())
	}
	if n := s.revision - before; n != 1 {
		t.Errorf("%d writes for %s, want 1", n, k.ID)
	}
}
