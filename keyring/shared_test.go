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
	before   func(key string) // called before each write
	fault    func() error     // makes a write fail
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

// Hubs that share a state have the same keys, whoever makes, changes or removes
// them.
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
			t.Error(diff)
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
		t.Errorf("a key that another hub revoked signs: %v", err)
	}
	secret, err := b.Secret("journal", 32)
	if err != nil || hex.EncodeToString(secret) != want.Secret {
		t.Errorf("%x, %v", secret, err)
	}
	if n, err := b.Forget("weather"); n != 4 || err != nil {
		t.Errorf("%d keys, %v", n, err)
	}
	if keys := reload(t, a).List(); len(keys) != 0 {
		t.Errorf("%+v", keys)
	}
	create(t, a, New{Owner: "weather", Purpose: string(P256), Algorithm: P256})
	if keys := reload(t, b).List(); len(keys) != 1 {
		t.Errorf("%+v", keys)
	}
	if got := fmt.Sprint(a); got != "keyring{the keyring in the shared state, 1 keys}" {
		t.Error(got)
	}
}

// Nothing in the store is readable without the passphrase, and nothing opens
// without it.
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
		t.Error(diff)
	}
	_, err := Open(Options{Store: newKV(), Shared: true})
	wantErr(t, err, ErrInvalid)
}

// Two hubs that want a key at once end with one.
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
			t.Errorf("hub %d has other keys", n)
		}
		if diff := cmp.Diff(want, stateOf(t, reload(t, r))); diff != "" {
			t.Error(diff)
		}
	}
}

// A change starts again from what another hub made a moment before, and one that
// removed what is changed is noticed too.
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
	meanwhile(func() error { return errOf(a.Rotate("x", "p", time.Hour)) })
	if err := b.Revoke(first.ID); err != nil {
		t.Fatal(err)
	}
	if keys := reload(t, a).Keys("x", "p"); len(keys) != 1 || keys[0].ID == first.ID {
		t.Errorf("%+v", keys)
	}
	meanwhile(func() error { return errOf(a.Forget("x")) })
	if _, err := b.Rotate("x", "p", 0); !errors.Is(err, ErrNotFound) {
		t.Errorf("a key that is gone was replaced: %v", err)
	}
}

// What cannot be read is not taken up, and not written over.
func TestSharedDamage(t *testing.T) {
	t.Parallel()
	s := newKV()
	r := openOn(t, s)
	fill(t, r)
	want := stateOf(t, r)
	key, other := storeKey("keys", "weather", string(Ed25519)), storeKey("keys", "peer", string(Ed25519))
	good := s.values[key]
	for name, b := range map[string][]byte{"garbage": []byte("{"), "another's": s.values[other].Data} {
		revision, err := s.Set(t.Context(), key, b, s.values[key].Revision)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := tryReload(r); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s: %v", name, err)
			}
			if _, err := r.Rotate("weather", string(Ed25519), 0); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if diff := cmp.Diff(want, stateOf(t, r)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if _, err := Open(Options{Store: s, Shared: true, Passphrase: Secret("right")}); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := s.Set(t.Context(), key, good.Data, revision); err != nil {
			t.Fatal(err)
		}
		reload(t, r)
	}
}

// opens says which values a sealer opens.
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

// The passphrase of a shared ring is changed at one hub. The others go on with
// the keys they have, and those that start need the new one.
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
			t.Error("the passphrase was changed")
		}
	}
	if diff := cmp.Diff(values, s.values); diff != "" {
		t.Error(diff)
	}

	// Another hub makes a key while it is changed.
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
		t.Errorf("%+v", keys)
	}
	if keys := opens(s, before); len(keys) != 1 || keys[0] != late {
		t.Errorf("the old identity opens %v", keys)
	}
	want := stateOf(t, a)

	// The other hub.
	signer, err := b.Signer("weather", string(Ed25519))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := signer.Sign([]byte("m")); err != nil {
		t.Error(err)
	}
	for _, err := range []error{errOf(b.Rotate("weather", string(Ed25519), 0)), tryReload(b),
		errOf(b.Protect(right, third))} {
		wantErr(t, err, ErrWrongKey)
		if err == nil || !strings.Contains(err.Error(), "start it again, with the new passphrase") {
			t.Error(err)
		}
	}

	// Those that start.
	_, err = Open(Options{Store: s, Shared: true, Passphrase: Secret("right")})
	wantErr(t, err, ErrWrongKey)
	if err == nil || !strings.Contains(err.Error(), "was changed on 2026-11-20T12:00:00Z") {
		t.Error(err)
	}
	d := openOn(t, s, at, under("second"))
	if diff := cmp.Diff(want, stateOf(t, d)); diff != "" {
		t.Error(diff)
	}
	if keys := opens(s, before); len(keys) != 0 {
		t.Errorf("the old identity opens %v", keys)
	}

	// What one of them makes the first knows, and the passphrase changes again.
	create(t, d, New{Owner: "more", Purpose: "p", Algorithm: Ed25519})
	want = stateOf(t, d)
	before = a.place.(*shared).sealer
	if _, err := a.Protect(second, third); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, stateOf(t, openOn(t, s, at, under("third")))); diff != "" {
		t.Error(diff)
	}
	if keys := opens(s, before); len(keys) != 0 {
		t.Errorf("the old identity opens %v", keys)
	}
}

// A hub ends somewhere in a change of the passphrase: until the first write the
// old one opens the ring, and from then on the new one, with all keys.
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
			t.Errorf("%d writes: %v", n, err)
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
			t.Errorf("%d writes: %s", n, diff)
		}
		if keys := opens(s, before); n > 0 && len(keys) > 0 {
			t.Errorf("%d writes: the old identity opens %v", n, keys)
		}
	}
}

// The keys of a hub that joins a cluster are taken over into the shared state,
// once, and those of a cluster's backup into the files of a hub alone.
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
				t.Error(diff)
			}
			left := files(t, dir)
			if len(left) != 1 || !strings.HasSuffix(left[0], ".bak 600") {
				t.Fatal(left)
			}
			aside := filepath.Join(dir, strings.TrimSuffix(left[0], " 600"))
			if !bytes.Equal(file, readFile(t, aside)) {
				t.Error("what was put aside is another file")
			}
			// The next hub finds nothing there, nor does this one at its next start.
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
				t.Errorf("a revoked key came back: %v", err)
			}
			// A third brings keys of its own: no key takes the place of another.
			third := filepath.Join(t.TempDir(), "keys")
			own := open(t, Options{Dir: third, Now: c.Now})
			mine := create(t, own, New{Owner: "weather", Purpose: string(Secp256k1), Algorithm: Secp256k1})
			more := create(t, own, New{Owner: "more", Purpose: "p", Algorithm: Ed25519})
			var log bytes.Buffer
			d := openOn(t, s, from(third), func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
			if _, err := d.SignerByID(more.ID); err != nil {
				t.Error(err)
			}
			if _, err := d.SignerByID(mine.ID); !errors.Is(err, ErrNotFound) ||
				!strings.Contains(log.String(), mine.ID) {
				t.Errorf("%v; %s", err, &log)
			}
			want = stateOf(t, d)
			if _, err := Open(Options{Store: s, Dir: filepath.Join(t.TempDir(), "keys")}); !errors.Is(err,
				ErrEncrypted) {
				t.Error(err)
			}
			for _, r := range []*Ring{a, b, again, d} {
				if err := r.Close(); err != nil {
					t.Fatal(err)
				}
			}
			// A hub alone, in the directory of a backup.
			alone := open(t, Options{Store: s, Dir: dir, Passphrase: Secret("right"), Now: c.Now})
			if diff := cmp.Diff(want, stateOf(t, alone)); diff != "" {
				t.Error(diff)
			}
			if len(s.values) != 0 {
				t.Errorf("%d values are left", len(s.values))
			}
			alone = open(t, Options{Store: s, Dir: dir, Passphrase: Secret("right"), Now: c.Now})
			if diff := cmp.Diff(want, stateOf(t, alone)); diff != "" {
				t.Error(diff)
			}
		})
	}
	// Without a ring in the directory nothing is made there.
	dir := filepath.Join(t.TempDir(), "keys")
	openOn(t, newKV(), func(o *Options) { o.Dir = dir })
	if _, err := Exists(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	// Of a file under another passphrase nothing is taken, and it stays.
	dir = filepath.Join(t.TempDir(), "keys")
	fill(t, open(t, Options{Dir: dir, Passphrase: Secret("other")}))
	s := newKV()
	_, err := Open(Options{Store: s, Shared: true, Dir: dir, Passphrase: Secret("right"), WorkFactor: 4})
	wantErr(t, err, ErrWrongKey)
	if there, _ := Exists(dir); !there || len(s.values) != 0 {
		t.Error("something was changed")
	}
}

// Watchers hear of keys that are enrolled and removed by another hub.
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
		t.Errorf("%q", agent)
	}
	if err := a.Unenroll("peer", "p", e.KeyID); err != nil {
		t.Fatal(err)
	}
	if agent := <-told; agent != "peer" || len(b.Enrolled("peer", "p")) != 0 {
		t.Errorf("%q", agent)
	}
}

// When a key was used last is written at the end, to the hour.
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
		t.Errorf("last used %s", got)
	}
	if n := s.revision - before; n != 1 {
		t.Errorf("%d writes for %s", n, k.ID)
	}
}
