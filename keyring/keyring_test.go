package keyring

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	secpecdsa "github.com/decred/dcrd/dcrec/secp256k1/v4/ecdsa"
	"github.com/google/go-cmp/cmp"
)

// clock is a clock that tests set.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) Add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

func open(t testing.TB, o Options) *Ring {
	t.Helper()
	if o.WorkFactor == 0 {
		o.WorkFactor = 4
	}
	r, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func memory(t testing.TB) (*Ring, *clock) {
	t.Helper()
	c := newClock()
	return open(t, Options{Now: c.Now}), c
}

func create(t testing.TB, r *Ring, n New) Key {
	t.Helper()
	k, err := r.Create(n)
	if err != nil {
		t.Fatal(err)
	}
	return k[0]
}

func wantErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
}

// tryReload reads the changes of other processes.
func tryReload(r *Ring) error { return r.update(func(*contents) error { return errUnchanged }) }

// Signers of each algorithm give deterministic signatures of 64 bytes that other implementations verify. ECDSA signers
// accept only digests of 32 bytes.
func TestSigners(t *testing.T) {
	t.Parallel()
	r, _ := memory(t)
	msg := []byte("to be signed")
	digest := sha256.Sum256(msg)
	for _, c := range []struct {
		a      Algorithm
		size   int
		in     []byte
		verify func(pub, sig []byte) bool
	}{
		{Ed25519, 32, msg, func(pub, sig []byte) bool { return ed25519.Verify(pub, msg, sig) }},
		{Secp256k1, 33, digest[:], func(pub, sig []byte) bool {
			k, err := secp256k1.ParsePubKey(pub)
			var r, s secp256k1.ModNScalar
			r.SetByteSlice(sig[:32])
			s.SetByteSlice(sig[32:])
			return err == nil && !s.IsOverHalfOrder() && secpecdsa.NewSignature(&r, &s).Verify(digest[:], k)
		}},
		{P256, 65, digest[:], func(pub, sig []byte) bool {
			k, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), pub)
			return err == nil && ecdsa.Verify(k, digest[:], new(big.Int).SetBytes(sig[:32]),
				new(big.Int).SetBytes(sig[32:]))
		}},
	} {
		k := create(t, r, New{Owner: "weather", Purpose: string(c.a), Algorithm: c.a})
		s, err := r.Signer("weather", string(c.a))
		if err != nil {
			t.Fatal(err)
		}
		if s.ID() != k.ID || s.Algorithm() != c.a || len(s.Public()) != c.size || !bytes.Equal(s.Public(), k.Public) ||
			len(s.Seed()) != 32 {
			t.Errorf("%s: signer %v, public key of %d bytes; want key %s of %d bytes", c.a, s, len(s.Public()), k.ID,
				c.size)
		}
		sig, err := s.Sign(c.in)
		if err != nil || len(sig) != 64 || !c.verify(s.Public(), sig) {
			t.Errorf("%s: invalid signature %x, %v", c.a, sig, err)
		}
		again, err := s.Sign(c.in)
		if err != nil || !bytes.Equal(again, sig) {
			t.Errorf("%s: signing is not deterministic", c.a)
		}
		if c.a != Ed25519 {
			for _, bad := range [][]byte{nil, msg, make([]byte, 33)} {
				_, err := s.Sign(bad)
				wantErr(t, err, ErrInvalid)
			}
		}
	}
}

// Known private keys give the published public keys and signatures: RFC 8032 §7.1 test 2, RFC 6979 §A.2.5 (message
// "sample"), and for secp256k1 the widely published test with private key 1.
func TestKnownKeys(t *testing.T) {
	t.Parallel()
	unhex := func(s string) []byte {
		b, err := hex.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	sample, satoshi := sha256.Sum256([]byte("sample")), sha256.Sum256([]byte("Satoshi Nakamoto"))
	for _, c := range []struct {
		a                   Algorithm
		seed, pub, msg, sig string
	}{
		{Ed25519, "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
			"3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c", "72",
			"92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da08" +
				"5ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"},
		{P256, "c9afa9d845ba75166b5c215767b1d6934e50c3db36e89b127b8a622b120f6721",
			"0460fed4ba255a9d31c961eb74c6356d68c049b8923b61fa6ce669622e60f29fb6" +
				"7903fe1008b8bc99a41ae9e95628bc64f2f1b20c2d7e9f5177a3c294d4462299", hex.EncodeToString(sample[:]),
			"efd48b2aacb6a8fd1140dd9cd45e81d69d2c877b56aaf991c34d0ea84eaf3716f7" +
				"cb1c942d657c41d436c7a1b6e29f65f3e900dbb9aff4064dc4ab2f843acda8"},
		{Secp256k1, "0000000000000000000000000000000000000000000000000000000000000001",
			"0279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798", hex.EncodeToString(satoshi[:]),
			"934b1ea10a4b3c1757e2b0c017d0b6143ce3c9a7e6a4a49860d7a6ab210ee3d824" +
				"42ce9d2b916064108014783e923ec36b49743e2ffa1c4496f01a512aafd9e5"},
	} {
		r, _ := memory(t)
		if _, err := r.Create(New{Owner: "a", Purpose: "p", Algorithm: c.a, Seed: unhex(c.seed)}); err != nil {
			t.Fatal(err)
		}
		s, err := r.Signer("a", "p")
		if err != nil {
			t.Fatal(err)
		}
		if got := hex.EncodeToString(s.Public()); got != c.pub {
			t.Errorf("%s: public key %s, want %s", c.a, got, c.pub)
		}
		if sig, err := s.Sign(unhex(c.msg)); err != nil || hex.EncodeToString(sig) != c.sig {
			t.Errorf("%s: signature %x, %v; want %s", c.a, sig, err, c.sig)
		}
	}
}

// A key is active, then retiring during the overlap of a rotation, then revoked. A revoked key neither signs nor can be
// exported.
func TestLife(t *testing.T) {
	t.Parallel()
	r, c := memory(t)
	first := create(t, r, New{Owner: "weather", Purpose: "samvad", Algorithm: Ed25519, By: "ann", Note: "the first"})
	if diff := cmp.Diff(Key{
		ID: first.ID, Owner: "weather", Purpose: "samvad", Algorithm: Ed25519, Public: first.Public, State: Active,
		Created: c.Now(), By: "ann", Note: "the first",
	}, first); diff != "" {
		t.Errorf("created key (-want +got):\n%s", diff)
	}
	_, err := r.Create(New{Owner: "weather", Purpose: "samvad", Algorithm: Ed25519})
	wantErr(t, err, ErrExists)
	old, err := r.Signer("weather", "samvad")
	if err != nil {
		t.Fatal(err)
	}

	c.Add(time.Hour)
	second, err := r.Rotate("weather", "samvad", "bea", 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := r.Signer("weather", "samvad"); err != nil || s.ID() != second.ID || second.ID == first.ID ||
		second.By != "bea" {
		t.Errorf("signer after the rotation: %v, %v; want %s", s, err, second.ID)
	}
	if keys := r.Keys("weather", "samvad"); len(keys) != 2 || keys[0].ID != second.ID || keys[1].ID != first.ID ||
		keys[1].State != Retiring || !keys[1].Until.Equal(c.Now().Add(24*time.Hour)) {
		t.Errorf("keys during the overlap: %+v", keys)
	}
	if s, err := r.SignerByID(first.ID); err != nil || s.ID() != first.ID {
		t.Errorf("signer of the retiring key: %v, %v", s, err)
	}
	if _, err := old.Sign(nil); err != nil {
		t.Errorf("Sign with the retiring key: %v", err)
	}

	c.Add(24 * time.Hour)
	if keys := r.Keys("weather", "samvad"); len(keys) != 1 || keys[0].ID != second.ID {
		t.Errorf("keys after the overlap: %+v", keys)
	}
	_, err = r.SignerByID(first.ID)
	wantErr(t, err, ErrRevoked)
	_, err = old.Sign(nil)
	wantErr(t, err, ErrRevoked)
	if old.Seed() != nil {
		t.Error("a revoked key gives its seed")
	}

	inUse, err := r.Signer("weather", "samvad")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := r.Revoke(second.ID); err != nil {
			t.Fatal(err)
		}
	}
	_, err = inUse.Sign(nil)
	wantErr(t, err, ErrRevoked)
	_, err = r.Signer("weather", "samvad")
	wantErr(t, err, ErrNotFound)
	_, err = r.SignerByID(second.ID)
	wantErr(t, err, ErrRevoked)
	_, err = r.Export(second.ID)
	wantErr(t, err, ErrRevoked)
	_, err = r.Rotate("weather", "samvad", "test", 0)
	wantErr(t, err, ErrNotFound)
	if l := r.List(); len(l) != 2 || l[1].State != Revoked || !l[1].Until.Equal(c.Now()) {
		t.Errorf("keys after the revocation: %+v", l)
	}

	// After a revocation a new key may be created. A rotation without overlap revokes the old key at once.
	third := create(t, r, New{Owner: "weather", Purpose: "samvad", Algorithm: Ed25519})
	if _, err := r.Rotate("weather", "samvad", "test", 0); err != nil {
		t.Fatal(err)
	}
	_, err = r.SignerByID(third.ID)
	wantErr(t, err, ErrRevoked)

	wantErr(t, r.Revoke("nobody"), ErrNotFound)
	_, err = r.Export("nobody")
	wantErr(t, err, ErrNotFound)
	_, err = r.SignerByID("nobody")
	wantErr(t, err, ErrNotFound)
}

// The ring records the time of a key's last signature, and keeps it over a restart.
func TestUsed(t *testing.T) {
	t.Parallel()
	c, dir := newClock(), t.TempDir()+"/keys"
	r := open(t, Options{Dir: dir, Now: c.Now})
	create(t, r, New{Owner: "a", Purpose: "p", Algorithm: Ed25519})
	if k := r.List()[0]; !k.Used.IsZero() {
		t.Errorf("a new key was used at %v", k.Used)
	}
	s, err := r.Signer("a", "p")
	if err != nil {
		t.Fatal(err)
	}
	c.Add(time.Minute)
	if _, err := s.Sign(nil); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if k := r.List()[0]; !k.Used.Equal(c.Now()) {
			t.Errorf("last used at %v, want %v", k.Used, c.Now())
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		r = open(t, Options{Dir: dir, Now: c.Now})
	}
}

// A key that is exported from one ring and imported into another has the same key ID.
func TestExportImport(t *testing.T) {
	t.Parallel()
	a, _ := memory(t)
	k := create(t, a, New{Owner: "weather", Purpose: "uagents", Algorithm: Secp256k1})
	seed, err := a.Export(k.ID)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := memory(t)
	made, err := b.Create(New{Owner: "weather", Purpose: "uagents", Algorithm: Secp256k1, Seed: seed})
	if err != nil || made[0].ID != k.ID || !bytes.Equal(made[0].Public, k.Public) {
		t.Fatalf("imported key: %+v, %v; want the ID %s", made, err, k.ID)
	}
	got := made[0]
	// The same seed with another purpose has another key ID.
	other, err := b.Create(New{Owner: "weather", Purpose: "asp", Algorithm: Secp256k1, Seed: seed})
	if err != nil || other[0].ID == k.ID {
		t.Errorf("same seed, another purpose: %+v, %v; want another ID than %s", other, err, k.ID)
	}
	// A caller that changes its slices does not change the ring.
	clear(seed)
	clear(got.Public)
	if s, err := b.Signer("weather", "uagents"); err != nil || !bytes.Equal(s.Public(), k.Public) ||
		bytes.Equal(s.Seed(), seed) {
		t.Error("the ring shares memory with its caller")
	}
	// A revoked key cannot be imported again.
	if err := b.Revoke(got.ID); err != nil {
		t.Fatal(err)
	}
	again, err := a.Export(k.ID)
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Create(New{Owner: "weather", Purpose: "uagents", Algorithm: Secp256k1, Seed: again})
	wantErr(t, err, ErrExists)
}

// Create refuses invalid keys, keys beyond the ring's limit, and a broken random source.
func TestRefusals(t *testing.T) {
	t.Parallel()
	r, _ := memory(t)
	order := secp256k1.Params().N.Bytes()
	for name, n := range map[string]New{
		"no owner":          {Purpose: "p", Algorithm: Ed25519},
		"no purpose":        {Owner: "a", Algorithm: Ed25519},
		"no algorithm":      {Owner: "a", Purpose: "p"},
		"RSA":               {Owner: "a", Purpose: "p", Algorithm: "rsa"},
		"control character": {Owner: "a\n", Purpose: "p", Algorithm: Ed25519},
		"not UTF-8":         {Owner: "a\xff", Purpose: "p", Algorithm: Ed25519},
		"long owner":        {Owner: strings.Repeat("a", maxName+1), Purpose: "p", Algorithm: Ed25519},
		"long note":         {Owner: "a", Purpose: "p", Algorithm: Ed25519, Note: strings.Repeat("a", maxName+1)},
		"empty seed":        {Owner: "a", Purpose: "p", Algorithm: Ed25519, Seed: Secret{}},
		"short seed":        {Owner: "a", Purpose: "p", Algorithm: Ed25519, Seed: make([]byte, 31)},
		"64 byte seed":      {Owner: "a", Purpose: "p", Algorithm: Ed25519, Seed: make([]byte, 64)},
		"zero scalar":       {Owner: "a", Purpose: "p", Algorithm: Secp256k1, Seed: make([]byte, 32)},
		"large scalar":      {Owner: "a", Purpose: "p", Algorithm: Secp256k1, Seed: order},
		"zero on P-256":     {Owner: "a", Purpose: "p", Algorithm: P256, Seed: make([]byte, 32)},
		"large on P-256":    {Owner: "a", Purpose: "p", Algorithm: P256, Seed: bytes.Repeat([]byte{0xff}, 32)},
	} {
		if _, err := r.Create(n); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	// If one key is invalid, Create adds none.
	_, err := r.Create(New{Owner: "a", Purpose: "p", Algorithm: Ed25519},
		New{Owner: "b", Purpose: "p", Algorithm: "rsa"})
	wantErr(t, err, ErrInvalid)
	_, err = r.Create(New{Owner: "a", Purpose: "p", Algorithm: Ed25519}, New{Owner: "a", Purpose: "p", Algorithm: P256})
	wantErr(t, err, ErrExists)
	if l := r.List(); len(l) != 0 {
		t.Errorf("keys after refused calls: %+v", l)
	}
	if keys, err := r.Create(); err != nil || keys != nil {
		t.Errorf("Create without arguments: %v, %v", keys, err)
	}

	full := open(t, Options{maxKeys: 1})
	create(t, full, New{Owner: "a", Purpose: "p", Algorithm: Ed25519})
	_, err = full.Create(New{Owner: "b", Purpose: "p", Algorithm: Ed25519})
	wantErr(t, err, ErrFull)
	if _, err := full.Enroll(Enrolled{Agent: "a", Purpose: "p", Algorithm: Ed25519,
		Public: full.List()[0].Public}); err != nil {
		t.Errorf("Enroll of one key, which is the limit: %v", err)
	}
	_, err = full.Enroll(Enrolled{Agent: "b", Purpose: "p", Algorithm: Ed25519, Public: full.List()[0].Public})
	wantErr(t, err, ErrFull)
	if _, err := full.Secret("x", 16); err != nil {
		t.Errorf("Secret, one at a limit of one: %v", err)
	}
	_, err = full.Secret("y", 16)
	wantErr(t, err, ErrFull)

	for _, rnd := range []*Ring{
		open(t, Options{Rand: iotest.ErrReader(errors.New("no entropy"))}),
		open(t, Options{Rand: zeros{}}),
	} {
		if _, err := rnd.Create(New{Owner: "a", Purpose: "p", Algorithm: Secp256k1}); err == nil {
			t.Error("Create made a key with a broken random source")
		}
	}
	_, err = open(t, Options{Rand: iotest.ErrReader(errors.New("no entropy"))}).Secret("x", 16)
	if err == nil {
		t.Error("Secret made a secret with a broken random source")
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// Concurrent calls of Ensure give one key. Create adds many keys at once, and List sorts them.
func TestEnsureAndCreateMany(t *testing.T) {
	t.Parallel()
	r, _ := memory(t)
	n := New{Owner: Hub, Purpose: "samvad", Algorithm: Ed25519}
	ids := make([]string, 8)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			s, err := r.Ensure(n)
			if err != nil {
				t.Error(err)
				return
			}
			ids[i] = s.ID()
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Errorf("concurrent Ensure made two keys: %s and %s", id, ids[0])
		}
	}
	_, err := r.Ensure(New{Owner: Hub, Purpose: "x", Algorithm: "rsa"})
	wantErr(t, err, ErrInvalid)
	var many []New
	for i := range 100 {
		many = append(many, New{Owner: fmt.Sprint("agent", i%50), Purpose: []string{"asp", "uagents"}[i/50],
			Algorithm: Ed25519})
	}
	if keys, err := r.Create(many...); err != nil || len(keys) != 100 {
		t.Errorf("Create of 100 keys: %d keys, %v", len(keys), err)
	}
	if l := r.List(); len(l) != 101 || l[0].Owner != "agent0" || l[0].Purpose != "asp" || l[1].Purpose != "uagents" ||
		l[100].Owner != Hub {
		t.Errorf("list of %d begins with %+v", len(l), l[0])
	}
}

// Enroll stores the public keys of agents in one encoding per algorithm, and refuses invalid ones.
func TestEnrolled(t *testing.T) {
	t.Parallel()
	r, c := memory(t)
	pub := create(t, r, New{Owner: "x", Purpose: "ed", Algorithm: Ed25519}).Public
	e, err := r.Enroll(Enrolled{Agent: "weather", Purpose: "samvad", Algorithm: Ed25519, Public: pub, By: "ann"})
	if err != nil || e.KeyID != Fingerprint(Ed25519, pub) || len(e.KeyID) != 20 || !e.Created.Equal(c.Now()) {
		t.Fatalf("enrolled key: %+v, %v", e, err)
	}
	if diff := cmp.Diff([]Enrolled{e}, r.Enrolled("weather", "samvad")); diff != "" {
		t.Errorf("enrolled keys (-want +got):\n%s", diff)
	}
	// Enrolling the same key again changes nothing.
	c.Add(time.Hour)
	if again, err := r.Enroll(Enrolled{Agent: "weather", Purpose: "samvad", Algorithm: Ed25519, Public: pub,
		By: "bob"}); err != nil || again.By != "ann" || !again.Created.Equal(e.Created) {
		t.Errorf("the same key again: %+v, %v; want the first entry", again, err)
	}
	// Another key needs another key ID.
	pub2 := create(t, r, New{Owner: "x", Purpose: "ed2", Algorithm: Ed25519}).Public
	_, err = r.Enroll(Enrolled{Agent: "weather", Purpose: "samvad", KeyID: e.KeyID, Algorithm: Ed25519, Public: pub2})
	wantErr(t, err, ErrExists)
	if _, err := r.Enroll(Enrolled{Agent: "weather", Purpose: "samvad", KeyID: "second", Algorithm: Ed25519,
		Public: pub2}); err != nil {
		t.Errorf("a second key with a key ID of its own: %v", err)
	}
	if l := r.Enrolled("weather", "samvad"); len(l) != 2 || l[1].KeyID != "second" {
		t.Errorf("enrolled keys of weather: %+v, want 2", l)
	}
	if r.Enrolled("weather", "asp") != nil || r.Enrolled("stranger", "samvad") != nil {
		t.Error("Enrolled gives keys for an agent or a purpose without any")
	}
	if _, err := r.Enroll(Enrolled{Agent: "a", Purpose: "samvad", Algorithm: Ed25519, Public: pub}); err != nil {
		t.Errorf("Enroll of the same key for another agent: %v", err)
	}
	if l := r.AllEnrolled(); len(l) != 3 || l[0].Agent != "a" || l[2].KeyID != "second" {
		t.Errorf("all enrolled keys: %+v, want 3 in order", l)
	}
	if err := r.Unenroll("weather", "samvad", "second"); err != nil {
		t.Errorf("Unenroll: %v", err)
	}
	wantErr(t, r.Unenroll("weather", "samvad", "second"), ErrNotFound)
	if l := r.Enrolled("weather", "samvad"); len(l) != 1 {
		t.Errorf("keys after Unenroll: %+v, want 1", l)
	}

	// Compressed and uncompressed public keys are stored in one encoding.
	secp := create(t, r, New{Owner: "x", Purpose: "secp", Algorithm: Secp256k1}).Public
	k, err := secp256k1.ParsePubKey(secp)
	if err != nil {
		t.Fatal(err)
	}
	long := k.SerializeUncompressed()
	if e, err := r.Enroll(Enrolled{Agent: "u", Purpose: "uagents", Algorithm: Secp256k1, Public: long}); err != nil ||
		!bytes.Equal(e.Public, secp) {
		t.Errorf("secp256k1: stored %x, %v; want %x", e.Public, err, secp)
	}
	p256 := create(t, r, New{Owner: "x", Purpose: "p256", Algorithm: P256}).Public
	short := append([]byte{2 + p256[64]&1}, p256[1:33]...)
	if e, err := r.Enroll(Enrolled{Agent: "u", Purpose: "asp", Algorithm: P256, Public: short}); err != nil ||
		!bytes.Equal(e.Public, p256) {
		t.Errorf("P-256: stored %x, %v; want %x", e.Public, err, p256)
	}

	hybrid := bytes.Clone(long)
	hybrid[0] = 6 + long[64]&1
	identity := append([]byte{1}, make([]byte, 31)...)
	nonCanonical := bytes.Repeat([]byte{0xff}, 32)
	for name, e := range map[string]Enrolled{
		"small order":          {Algorithm: Ed25519, Public: identity},
		"zero":                 {Algorithm: Ed25519, Public: make([]byte, 32)},
		"not canonical":        {Algorithm: Ed25519, Public: nonCanonical},
		"short":                {Algorithm: Ed25519, Public: pub[:31]},
		"hybrid secp256k1":     {Algorithm: Secp256k1, Public: hybrid},
		"invalid secp256k1":    {Algorithm: Secp256k1, Public: make([]byte, 33)},
		"invalid P-256":        {Algorithm: P256, Public: append([]byte{4}, make([]byte, 64)...)},
		"P-256 infinity":       {Algorithm: P256, Public: []byte{0}},
		"P-256 x out of range": {Algorithm: P256, Public: append([]byte{2}, bytes.Repeat([]byte{0xff}, 32)...)},
		"unknown algorithm":    {Algorithm: "rsa", Public: pub},
		"NUL in key ID":        {KeyID: "a\x00b", Algorithm: Ed25519, Public: pub},
	} {
		e.Agent, e.Purpose = "stranger", "samvad"
		if _, err := r.Enroll(e); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	_, err = r.Enroll(Enrolled{Purpose: "samvad", Algorithm: Ed25519, Public: pub})
	wantErr(t, err, ErrInvalid)
}

// Secret gives the same random bytes for one name. Forget removes the keys of an agent, and its signers stop working.
func TestSecretAndForget(t *testing.T) {
	t.Parallel()
	r, _ := memory(t)
	a, err := r.Secret("journal", 32)
	if err != nil || len(a) != 32 || bytes.Equal(a, make([]byte, 32)) {
		t.Fatalf("Secret = %x, %v; want 32 random bytes", a, err)
	}
	b, err := r.Secret("journal", 32)
	if err != nil || !bytes.Equal(a, b) {
		t.Errorf("one name gives two secrets: %x and %x, %v", a, b, err)
	}
	clear(b)
	if c, err := r.Secret("journal", 32); err != nil || !bytes.Equal(a, c) {
		t.Error("the ring shares memory with its caller")
	}
	_, err = r.Secret("journal", 16)
	wantErr(t, err, ErrInvalid)
	for _, n := range []int{-1, 0, 15, 4097} {
		_, err = r.Secret("other", n)
		wantErr(t, err, ErrInvalid)
	}
	_, err = r.Secret("", 32)
	wantErr(t, err, ErrInvalid)

	k := create(t, r, New{Owner: "weather", Purpose: "samvad", Algorithm: Ed25519})
	create(t, r, New{Owner: "other", Purpose: "samvad", Algorithm: Ed25519})
	if _, err := r.Enroll(Enrolled{Agent: "weather", Purpose: "samvad", Algorithm: Ed25519,
		Public: k.Public}); err != nil {
		t.Fatal(err)
	}
	s, err := r.Signer("weather", "samvad")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := r.Forget("weather"); n != 2 || err != nil {
		t.Errorf("Forget removed %d keys, %v; want 2", n, err)
	}
	if n, err := r.Forget("weather"); n != 0 || err != nil {
		t.Errorf("a second Forget removed %d keys, %v; want 0", n, err)
	}
	_, err = s.Sign(nil)
	wantErr(t, err, ErrRevoked)
	if l := r.List(); len(l) != 1 || l[0].Owner != "other" {
		t.Errorf("keys after Forget: %+v, want those of the other owner", l)
	}
	if l := r.Enrolled("weather", "samvad"); l != nil {
		t.Errorf("enrolled keys after Forget: %+v", l)
	}
}

// During rotations, concurrent readers always find a key, and its signatures verify.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	r, _ := memory(t)
	create(t, r, New{Owner: "a", Purpose: "p", Algorithm: Ed25519})
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				s, err := r.Signer("a", "p")
				if err != nil {
					t.Error(err)
					return
				}
				sig, err := s.Sign([]byte("m"))
				if err == nil && !ed25519.Verify(s.Public(), []byte("m"), sig) || err != nil &&
					!errors.Is(err, ErrRevoked) {
					t.Errorf("invalid signature or unexpected error: %v", err)
					return
				}
				if k := r.Keys("a", "p"); len(k) == 0 {
					t.Error("Keys gives no key during a rotation")
					return
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for i := range 50 {
		if _, err := r.Rotate("a", "p", "test", time.Duration(i%2)*time.Hour); err != nil {
			t.Errorf("Rotate: %v", err)
		}
	}
	close(done)
	wg.Wait()
}

func BenchmarkSigner(b *testing.B) {
	r, _ := memory(b)
	for i := range 1000 {
		create(b, r, New{Owner: fmt.Sprint(i), Purpose: "samvad", Algorithm: Ed25519})
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Signer("500", "samvad"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSign(b *testing.B) {
	r, _ := memory(b)
	in := make([]byte, 32)
	for _, a := range []Algorithm{Ed25519, Secp256k1, P256} {
		create(b, r, New{Owner: Hub, Purpose: string(a), Algorithm: a})
		b.Run(string(a), func(b *testing.B) {
			s, err := r.Signer(Hub, string(a))
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Sign(in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// EnsureAll creates missing keys and keeps existing ones. If one of them is invalid, it creates none.
func TestEnsureAll(t *testing.T) {
	r, _ := memory(t)
	first, err := r.Ensure(New{Owner: "a", Purpose: "samvad", Algorithm: Ed25519})
	if err != nil {
		t.Fatal(err)
	}
	var all []New
	for _, owner := range []string{"a", "b", "c", "b"} {
		all = append(all, New{Owner: owner, Purpose: "samvad", Algorithm: Ed25519})
	}
	bad := append(slices.Clone(all), New{Owner: "d", Purpose: "samvad", Algorithm: "rsa"})
	if err := r.EnsureAll(bad...); err == nil || len(r.List()) != 1 {
		t.Fatalf("EnsureAll with an invalid key: %v, %d keys; want an error and 1 key", err, len(r.List()))
	}
	for range 2 {
		if err := r.EnsureAll(all...); err != nil || len(r.List()) != 3 {
			t.Fatalf("EnsureAll: %v, %d keys; want 3", err, len(r.List()))
		}
	}
	if s, err := r.Signer("a", "samvad"); err != nil || s.ID() != first.ID() {
		t.Errorf("EnsureAll replaced an existing key: %v", err)
	}
}

// A rollover changes its phase by time alone, also over restarts.
func TestRollover(t *testing.T) {
	t.Parallel()
	c, dir := newClock(), t.TempDir()+"/keys"
	r := open(t, Options{Dir: dir, Now: c.Now})
	create(t, r, New{Owner: "hub", Purpose: "samvad", Algorithm: Ed25519})
	old := r.List()[0]
	fresh, err := r.Rollover("hub", "samvad", "test", 24*time.Hour, time.Hour)
	if err != nil || fresh.State != Next {
		t.Fatalf("new key: %+v, %v; want the state %s", fresh, err, Next)
	}
	expect := func(phase, signs string, states ...State) {
		t.Helper()
		for range 2 { // before and after a restart
			s, err := r.Signer("hub", "samvad")
			if err != nil || s.ID() != signs {
				t.Fatalf("%s: signer %v, %v; want %s", phase, s, err, signs)
			}
			if _, err := s.Sign([]byte("x")); err != nil {
				t.Errorf("%s: Sign: %v", phase, err)
			}
			var got []State
			for _, k := range r.Keys("hub", "samvad") {
				got = append(got, k.State)
			}
			if !slices.Equal(got, states) {
				t.Errorf("%s: states %v, want %v", phase, got, states)
			}
			if v := r.Valid("hub", "samvad"); !strings.Contains(v, signs) ||
				strings.Contains(v, string(Next)) != slices.Contains(states, Next) ||
				strings.Contains(v, string(Retiring)) != slices.Contains(states, Retiring) {
				t.Errorf("%s: Valid gives %q", phase, v)
			}
			r = open(t, Options{Dir: dir, Now: c.Now})
		}
	}
	expect("new key published", old.ID, Next, Active)
	_, err = r.Rollover("hub", "samvad", "test", time.Hour, time.Hour)
	wantErr(t, err, ErrExists)
	_, err = r.Rotate("hub", "samvad", "test", time.Hour)
	wantErr(t, err, ErrExists)
	wantErr(t, errOf(r.Create(New{Owner: "hub", Purpose: "samvad", Algorithm: Ed25519})), ErrExists)
	c.Add(24 * time.Hour)
	expect("new key signs", fresh.ID, Active, Retiring)
	c.Add(time.Hour)
	expect("old key withdrawn", fresh.ID, Active)
	if _, err := r.SignerByID(old.ID); !errors.Is(err, ErrRevoked) {
		t.Errorf("signer of the withdrawn key: %v, want ErrRevoked", err)
	}

	// Rotate ends a rollover at once. If the new key is revoked, the old one stays active; if the old key is revoked,
	// the new one becomes active.
	third, err := r.Rollover("hub", "samvad", "test", time.Hour, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if k, err := r.Rotate("hub", "samvad", "test", 0); err != nil || k.ID != third.ID {
		t.Errorf("Rotate during a rollover: %+v, %v; want %s", k, err, third.ID)
	}
	expect("rollover ended by Rotate", third.ID, Active)
	fourth, err := r.Rollover("hub", "samvad", "test", time.Hour, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Revoke(fourth.ID); err != nil {
		t.Fatal(err)
	}
	expect("new key revoked", third.ID, Active)
	if fourth, err = r.Rollover("hub", "samvad", "test", time.Hour, time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := r.Revoke(third.ID); err != nil {
		t.Fatal(err)
	}
	expect("old key revoked", fourth.ID, Active)
}

func errOf[T any](_ T, err error) error { return err }
