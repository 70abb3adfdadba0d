package peerauth

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/json"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/parley-hub/parley/bridge/bridgetest"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/keyring"
)

// newStore opens a followed store for protocol "x" on a journal. changed gives the agents that it reported.
func newStore(t *testing.T, j *journal.Journal, k *keyring.Ring) (s *Store, changed func() []string) {
	t.Helper()
	var agents []string // Follow makes no call at once with another, and Put and Forget return after it
	s = NewStore(j, k, "x", rand.Reader)
	stop, err := s.Follow(t.Context(), func(agent string) { agents = append(agents, agent) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return s, func() []string { return agents }
}

func opened(t *testing.T) (*journal.Journal, *keyring.Ring) {
	t.Helper()
	j, err := journal.Open(context.Background(), journal.Config{Store: testjournal.Memory(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	k, err := keyring.Open(keyring.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return j, k
}

// Credentials are sealed, bound to their agent, and read by each store on the journal.
func TestStore(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	j, k := opened(t)
	s, changed := newStore(t, j, k)
	cert, _ := bridgetest.Certificate(t, "hub")
	want := Credentials{APIKey: "s3cr3t-key", Header: "X-Lab", TokenURL: "https://id.test/t", ClientID: "hub",
		ClientSecret: "s3cr3t", Scopes: []string{"a"}, Certificate: cert}
	if err := s.Put(ctx, "lab", want); err != nil {
		t.Fatal(err)
	}
	raw, err := j.State("x-credentials").Get(ctx, "lab")
	if err != nil || bytes.Contains(raw.Data, []byte("s3cr3t")) || bytes.Contains(raw.Data, []byte("PRIVATE")) {
		t.Errorf("stored in clear: %s, %v", raw.Data, err)
	}
	other, _ := newStore(t, j, k)
	got, err := other.Get("lab")
	if err != nil || got.Certificate == nil || !bytes.Equal(got.Certificate.Certificate[0], cert.Certificate[0]) ||
		!reflect.DeepEqual(got.Certificate.PrivateKey, cert.PrivateKey) {
		t.Fatalf("%s, %v", got.Kinds(), err)
	}
	got.Certificate = cert
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	if _, err := s.table.Put(ctx, "another", s.table.Known("lab").Value, raw.Until); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Get("another"); err == nil || !got.Empty() {
		t.Errorf("the credentials of an agent are taken for another's: %s, %v", got.Kinds(), err)
	}
	if err := s.Put(ctx, "bad", Credentials{Token: "two words"}); err == nil || s.Has("bad") {
		t.Error("credentials that cannot be shown are stored")
	}
	if err := s.Put(ctx, "another", Credentials{}); err != nil || s.Has("another") {
		t.Errorf("empty credentials are kept: %v", err)
	}
	for range 2 { // those that are not there are no error
		if err := s.Forget(ctx, "lab"); err != nil || s.Has("lab") {
			t.Fatalf("they stay: %v", err)
		}
	}
	if got, err := s.Get("lab"); err != nil || !got.Empty() {
		t.Errorf("%s, %v", got.Kinds(), err)
	}
	if got := changed(); !slices.Equal(got, []string{"lab", "another", "another", "lab"}) {
		t.Errorf("changes of %q", got)
	}
}

// The form of what is sealed does not change: hubs read what others stored before.
func TestStoredForm(t *testing.T) {
	t.Parallel()
	j, k := opened(t)
	key, err := k.Secret("x credentials", 32)
	if err != nil {
		t.Fatal(err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	nonce := make([]byte, aead.NonceSize())
	plain := `{"Token":"t","APIKey":"k","Header":"X-Lab","TokenURL":"","ClientID":"","ClientSecret":"","Scopes":null}`
	row, err := json.Marshal(map[string][]byte{"Nonce": nonce, "Box": aead.Seal(nil, nonce, []byte(plain), []byte("lab"))})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.State("x-credentials").Put(t.Context(), "lab", row, time.Time{}); err != nil {
		t.Fatal(err)
	}
	s, _ := newStore(t, j, k)
	if got, err := s.Get("lab"); err != nil || got.Token != "t" || got.APIKey != "k" || got.Header != "X-Lab" {
		t.Errorf("%+v, %v", got, err)
	}
}
