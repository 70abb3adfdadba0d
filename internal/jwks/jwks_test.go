package jwks

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
)

func edKey(t *testing.T, kid string) jose.JSONWebKey {
	t.Helper()
	pub, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return jose.JSONWebKey{Key: pub, KeyID: kid}
}

func document(t *testing.T, keys ...jose.JSONWebKey) string {
	t.Helper()
	b, err := json.Marshal(jose.JSONWebKeySet{Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Only keys whose signatures prove something are taken; others hurt no key beside them.
func TestParse(t *testing.T) {
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	with := func(k any, kid, alg, use string) jose.JSONWebKey {
		return jose.JSONWebKey{Key: k, KeyID: kid, Algorithm: alg, Use: use}
	}
	good := document(t, edKey(t, "ed"), with(&p256.PublicKey, "p256", "ES256", "sig"),
		with(&rsaKey.PublicKey, "rsa", "", ""))
	set, err := Parse([]byte(good))
	if err != nil || len(set) != 3 {
		t.Fatalf("%v: %v", err, set)
	}
	for kid, a := range map[string]jose.SignatureAlgorithm{"ed": jose.EdDSA, "p256": jose.ES256, "rsa": jose.RS256} {
		if len(set.Find(kid, a)) != 1 || len(set.Find("", a)) != 1 || len(set.Find("x", a)) != 0 ||
			len(set.Find(kid, jose.HS256)) != 0 {
			t.Errorf("%s: %v", kid, set)
		}
	}
	small := &rsa.PublicKey{N: new(big.Int).Lsh(big.NewInt(1), 1023), E: 65537}
	small.N.SetBit(small.N, 0, 1)
	bad := map[string]string{
		"another curve":   document(t, with(&p384.PublicKey, "x", "", "")),
		"a small RSA key": document(t, with(small, "x", "", "")),
		"for encryption":  document(t, with(&p256.PublicKey, "x", "", "enc")),
		"other algorithm": document(t, with(&rsaKey.PublicKey, "x", "PS256", "sig")),
		"a private key":   document(t, with(p256, "x", "", "")),
		"a secret":        document(t, with([]byte("0123456789abcdef0123456789abcdef"), "x", "HS256", "")),
		"small order":     `{"keys":[{"kty":"OKP","crv":"Ed25519","x":"` + strings.Repeat("A", 43) + `"}]}`,
		"nothing known":   `{"keys":[{"kty":"AKP"},7,null]}`,
	}
	for name, doc := range bad {
		if set, err := Parse([]byte(doc)); !errors.Is(err, ErrKeys) {
			t.Errorf("%s: %v %v", name, set, err)
		}
		one := strings.TrimSuffix(strings.TrimPrefix(doc, `{"keys":[`), "]}")
		if set, err := Parse([]byte(strings.Replace(good, `"keys":[`, `"keys":[`+one+",", 1))); err != nil || len(set) != 3 {
			t.Errorf("%s beside others: %v %v", name, set, err)
		}
	}
	for name, doc := range map[string]string{
		"empty": "", "no JSON": "<html>", "no keys": "{}", "keys twice": `{"keys":[],"keys":[]}`,
		"many":  `{"keys":[` + strings.TrimSuffix(strings.Repeat("{},", MaxKeys+1), ",") + "]}",
		"large": good + strings.Repeat(" ", MaxBytes),
	} {
		if _, err := Parse([]byte(doc)); !errors.Is(err, ErrKeys) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFetch(t *testing.T) {
	body, status := document(t, edKey(t, "a")), 200
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}))
	t.Cleanup(s.Close)
	if set, err := Fetch(t.Context(), s.Client(), s.URL); err != nil || len(set) != 1 {
		t.Error(set, err)
	}
	status = 500
	if _, err := Fetch(t.Context(), s.Client(), s.URL); err == nil {
		t.Error("status 500 gives keys")
	}
	status, body = 200, strings.Repeat(" ", MaxBytes+1)
	if _, err := Fetch(t.Context(), s.Client(), s.URL); err == nil {
		t.Error("a large document gives keys")
	}
}

// An unknown kid cannot make the hub hammer the issuer, and an issuer that is down does not
// end the use of its keys.
func TestRemote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fetches, down := 0, false
		keys := Set{{Key: "1", KeyID: "1", Algorithm: "EdDSA"}}
		r := NewRemote(func(ctx context.Context) (Set, error) {
			fetches++
			time.Sleep(time.Second) // of the bubble
			if down {
				return nil, errors.New("down")
			}
			return keys, ctx.Err()
		}, time.Now)
		defer r.Close()
		find := func(kid string, want int, wantErr bool, wantFetches int) {
			t.Helper()
			set, err := r.Find(t.Context(), kid, jose.EdDSA)
			synctest.Wait()
			if len(set) != want || (err != nil) != wantErr || fetches != wantFetches {
				t.Errorf("%s: %d keys, %v, after %d fetches; want %d keys, %d fetches", kid, len(set), err, fetches, want,
					wantFetches)
			}
		}
		down = true
		find("1", 0, true, 1)
		find("1", 0, true, 1) // not again at once
		down = false
		time.Sleep(pause)
		find("1", 1, false, 2)
		for range 100 {
			find("unknown", 0, false, 2)
		}
		time.Sleep(pause)
		keys = append(keys, jose.JSONWebKey{Key: "2", KeyID: "2", Algorithm: "EdDSA"})
		find("2", 1, false, 3) // a new key is found within the pause
		find("unknown", 0, false, 3)

		// Old keys are used at once, and fetched again beside that.
		time.Sleep(fresh)
		down = true
		begun := time.Now()
		find("1", 1, false, 4)
		if time.Since(begun) != 0 {
			t.Error("a caller with a known key waits for the issuer")
		}
		time.Sleep(fresh)
		find("1", 1, false, 5)
		find("3", 0, true, 5) // it may be a new key
		time.Sleep(kept)
		find("1", 0, true, 6)

		// A caller that leaves ends no fetch.
		down = false
		time.Sleep(pause)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := r.Find(ctx, "1", jose.EdDSA); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		time.Sleep(2 * time.Second)
		find("1", 1, false, 7)
	})
}

// Close ends a fetch in flight.
func TestRemoteClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRemote(func(ctx context.Context) (Set, error) { <-ctx.Done(); return nil, ctx.Err() }, time.Now)
		go func() {
			synctest.Wait()
			r.Close()
		}()
		if _, err := r.Find(t.Context(), "1", jose.EdDSA); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}
