package keyring

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func identityFile(t testing.TB) string {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "identity.txt")
	writeFile(t, path, []byte("# made for a test\n"+id.String()+"\n"), 0o600)
	return path
}

func writeFile(t testing.TB, path string, b []byte, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, b, mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// files lists the files in dir with their modes.
func files(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, fmt.Sprintf("%s %o", e.Name(), info.Mode().Perm()))
	}
	return out
}

// fill adds to r keys in every state, an enrolled key for each algorithm, and a secret.
func fill(t testing.TB, r *Ring) {
	t.Helper()
	for _, a := range []Algorithm{Ed25519, Secp256k1, P256} {
		k := create(t, r, New{Owner: "weather", Purpose: string(a), Algorithm: a, By: "ann", Note: "ü"})
		if _, err := r.Enroll(Enrolled{Agent: "peer", Purpose: string(a), Algorithm: a, Public: k.Public}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Rotate("weather", string(Ed25519), "test", 1e12); err != nil {
		t.Fatal(err)
	}
	if err := r.Revoke(r.Keys("weather", string(P256))[0].ID); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Secret("journal", 32); err != nil {
		t.Fatal(err)
	}
}

type state struct {
	Keys     []Key
	Enrolled []Enrolled
	Seeds    []string
	Secret   string
}

// stateOf gives the content of r, with its secrets, for comparison.
func stateOf(t testing.TB, r *Ring) state {
	t.Helper()
	s := state{Keys: r.List(), Enrolled: r.AllEnrolled(),
		Secret: hex.EncodeToString(r.current.Load().contents.Secrets["journal"])}
	for _, k := range s.Keys {
		if k.State != Revoked {
			seed, err := r.Export(k.ID)
			if err != nil {
				t.Fatal(err)
			}
			s.Seeds = append(s.Seeds, hex.EncodeToString(seed))
		}
	}
	return s
}

// A ring that is opened again has the same content. Only the user may read its directory and file. An encrypted
// file shows neither secrets nor names.
func TestReopen(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]Protection{
		"plain":      {},
		"passphrase": {Passphrase: Secret("correct horse")},
		"identity":   {IdentityFile: identityFile(t)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, dir := newClock(), filepath.Join(t.TempDir(), "a b", "keys")
			o := Options{Dir: dir, Passphrase: p.Passphrase, IdentityFile: p.IdentityFile, Now: c.Now}
			r := open(t, o)
			fill(t, r)
			want := stateOf(t, r)
			if diff := cmp.Diff(want, stateOf(t, open(t, o))); diff != "" {
				t.Errorf("content after reopening (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{"keyring.json 600"}, files(t, dir)); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
			if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("directory: mode %v, %v; want mode 0700", info.Mode(), err)
			}
			if ok, err := Exists(dir); !ok || err != nil {
				t.Errorf("Exists = %v, %v; want true", ok, err)
			}
			b := readFile(t, filepath.Join(dir, FileName))
			for _, s := range append(want.Seeds, want.Secret) {
				raw, err := hex.DecodeString(s)
				if err != nil {
					t.Fatal(err)
				}
				seen := bytes.Contains(b, []byte(base64.StdEncoding.EncodeToString(raw)))
				if seen != (name == "plain") {
					t.Errorf("a secret is readable in the file: %v", seen)
				}
			}
			if name != "plain" && bytes.Contains(b, []byte("weather")) {
				t.Error("the encrypted file shows an owner's name")
			}
		})
	}
	if ok, err := Exists(t.TempDir()); ok || err != nil {
		t.Errorf("Exists of an empty directory = %v, %v; want false", ok, err)
	}
}

// Open refuses a wrong, missing or superfluous passphrase or identity file, and writes nothing.
func TestWrongKey(t *testing.T) {
	t.Parallel()
	id1, id2 := identityFile(t), identityFile(t)
	notID := filepath.Join(t.TempDir(), "not")
	writeFile(t, notID, []byte("AGE-SECRET-KEY-1NOTONE\n"), 0o600)
	loose := filepath.Join(t.TempDir(), "loose")
	writeFile(t, loose, readFile(t, id1), 0o640)
	pass := Options{Passphrase: Secret("right")}
	for _, c := range []struct {
		name       string
		made, with Options
		want       error
		text       string
	}{
		{"wrong passphrase", pass, Options{Passphrase: Secret("wrong")}, ErrWrongKey, "does not open"},
		{"no passphrase", pass, Options{}, ErrEncrypted, "needs a passphrase"},
		{"empty passphrase", pass, Options{Passphrase: Secret{}}, ErrInvalid, "the passphrase is empty"},
		{"identity for passphrase", pass, Options{IdentityFile: id1}, ErrWrongKey,
			"protected by a passphrase, but an identity file"},
		{"passphrase and identity", pass, Options{Passphrase: Secret("right"), IdentityFile: id1}, ErrInvalid,
			"choose one"},
		{"wrong identity", Options{IdentityFile: id1}, Options{IdentityFile: id2}, ErrWrongKey, "does not open"},
		{"no identity", Options{IdentityFile: id1}, Options{}, ErrEncrypted, "needs an identity file"},
		{"passphrase for identity", Options{IdentityFile: id1}, pass, ErrWrongKey, "protected by an identity file"},
		{"no such identity file", Options{IdentityFile: id1}, Options{IdentityFile: id1 + "x"}, os.ErrNotExist,
			"identity file"},
		{"not an identity file", Options{IdentityFile: id1}, Options{IdentityFile: notID}, ErrInvalid,
			"is not an identity file"},
		{"identity file readable by others", Options{IdentityFile: id1}, Options{IdentityFile: loose}, ErrPermissions,
			"chmod 600 " + loose},
		{"passphrase for plain", Options{}, pass, ErrNotEncrypted, "parley keys passphrase"},
		{"identity for plain", Options{}, Options{IdentityFile: id1}, ErrNotEncrypted, "parley keys passphrase"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "keys")
			c.made.Dir, c.with.Dir = dir, dir
			fill(t, open(t, c.made))
			before, list := readFile(t, filepath.Join(dir, FileName)), files(t, dir)
			c.with.WorkFactor = 4
			_, err := Open(c.with)
			wantErr(t, err, c.want)
			if err != nil && !strings.Contains(err.Error(), c.text) {
				t.Errorf("error %q does not contain %q", err, c.text)
			}
			if !bytes.Equal(before, readFile(t, filepath.Join(dir, FileName))) || cmp.Diff(list, files(t, dir)) != "" {
				t.Error("Open changed the directory")
			}
		})
	}
	// Open does not create a ring with an unusable passphrase or identity file.
	for _, o := range []Options{{Passphrase: Secret{}}, {IdentityFile: notID}, {IdentityFile: id1 + "x"}} {
		o.Dir = filepath.Join(t.TempDir(), "keys")
		if _, err := Open(o); err == nil {
			t.Error("Open accepted an unusable passphrase or identity file")
		}
		if ok, err := Exists(o.Dir); ok || err != nil {
			t.Errorf("Exists after a refused Open = %v, %v; want false", ok, err)
		}
	}
}

// Open refuses a file or directory that other users may access. The error gives the chmod command.
func TestModes(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "it's mine")
	fill(t, open(t, Options{Dir: dir}))
	path := filepath.Join(dir, FileName)
	for _, c := range []struct {
		path string
		mode os.FileMode
		text string
	}{
		{path, 0o644, `has mode 0644; run: chmod 600 '` + strings.ReplaceAll(path, "'", `'\''`) + "'"},
		{path, 0o660, "chmod 600"},
		{path, 0o601, "chmod 600"},
		{dir, 0o755, "chmod 700"},
		{dir, 0o710, "chmod 700"},
	} {
		old, err := os.Stat(c.path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(c.path, c.mode); err != nil {
			t.Fatal(err)
		}
		_, err = Open(Options{Dir: dir})
		wantErr(t, err, ErrPermissions)
		if err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("error %q does not contain %q", err, c.text)
		}
		if err := os.Chmod(c.path, old.Mode()); err != nil {
			t.Fatal(err)
		}
	}
	open(t, Options{Dir: dir})
}

// Open refuses a damaged file, names it in the error, and does not change it.
func TestCorrupt(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]Protection{"plain": {}, "passphrase": {Passphrase: Secret("right")},
		"identity": {IdentityFile: identityFile(t)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "keys")
			o := Options{Dir: dir, Passphrase: p.Passphrase, IdentityFile: p.IdentityFile, WorkFactor: 4}
			fill(t, open(t, o))
			path := filepath.Join(dir, FileName)
			good := readFile(t, path)
			damaged := map[string][]byte{
				"empty":              {},
				"cut short":          good[:len(good)/2],
				"last bytes missing": good[:len(good)-2],
				"trailing data":      append(bytes.Clone(good), "{}"...),
				"null":               []byte("null"),
				"other format":       bytes.Replace(good, []byte("keyring/1"), []byte("keyring/9"), 1),
				"unknown member":     bytes.Replace(good, []byte(`{"format"`), []byte(`{"x":1,"format"`), 1),
				"no contents":        []byte(`{"format":"parley-keyring/1","protection":"none"}`),
				"unknown protection": bytes.Replace(good, []byte(`"protection":"`), []byte(`"protection":"x`), 1),
			}
			if name == "plain" {
				pub := base64.StdEncoding.EncodeToString(open(t, o).List()[0].Public)
				damaged["other public key"] = bytes.Replace(good, []byte(pub),
					[]byte(strings.Replace(pub, pub[:2], "zz", 1)), 1)
				damaged["other owner"] = bytes.Replace(good, []byte(`"owner":"weather"`), []byte(`"owner":"storm"`), 1)
				damaged["unknown state"] = bytes.Replace(good, []byte(`"state":"active"`), []byte(`"state":"great"`), 1)
				damaged["enrolled key of small order"] = bytes.Replace(good, []byte(`"enrolled":[`),
					[]byte(`"enrolled":[{"agent":"a","purpose":"p","keyId":"k","algorithm":"ed25519","public":"`+
						`AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","created":"2026-11-20T12:00:00Z"},`), 1)
				damaged["duplicate key"] = []byte(strings.Replace(string(good), `"keys":[`,
					`"keys":[`+firstKey(t, good)+`,`, 1))
			} else {
				i := bytes.Index(good, []byte(`"sealed":"`)) + 400
				damaged["flipped bits"] = bytes.Clone(good)
				damaged["flipped bits"][i] ^= 3
				damaged["sealed content too short"] = append(append(bytes.Clone(good[:i-390]), "AAAA"...),
					good[len(good)-3:]...)
			}
			for what, b := range damaged {
				writeFile(t, path, b, 0o600)
				_, err := Open(o)
				if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), path) {
					t.Errorf("%s: got %v, want ErrCorrupt with the path", what, err)
				}
				if !bytes.Equal(b, readFile(t, path)) || len(files(t, dir)) != 1 {
					t.Errorf("%s: Open changed the directory", what)
				}
			}
		})
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, FileName), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := Open(Options{Dir: dir})
	wantErr(t, err, ErrCorrupt)
	file := filepath.Join(dir, "file")
	writeFile(t, file, nil, 0o600)
	if _, err := Open(Options{Dir: file}); err == nil {
		t.Error("Open accepted a file as its directory")
	}
}

// firstKey gives the JSON of the first key in a file that is not encrypted.
func firstKey(t testing.TB, b []byte) string {
	t.Helper()
	var f struct {
		Contents struct{ Keys []json.RawMessage }
	}
	if err := json.Unmarshal(b, &f); err != nil {
		t.Fatal(err)
	}
	return string(f.Contents.Keys[0])
}

// If a step of a write fails, the ring keeps its previous state on disk and in memory, and the next write succeeds.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"replace", "backup"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			var failing bool
			full := errors.New("no space left on device")
			dir := filepath.Join(t.TempDir(), "keys")
			o := Options{Dir: dir, fault: func(s string) error {
				if failing && s == step {
					return full
				}
				return nil
			}}
			r := open(t, o)
			fill(t, r)
			s, err := r.Signer("weather", string(Secp256k1))
			if err != nil {
				t.Fatal(err)
			}
			want, b := stateOf(t, r), readFile(t, filepath.Join(dir, FileName))
			failing = true
			if step != "backup" {
				_, err := r.Create(New{Owner: "new", Purpose: "p", Algorithm: Ed25519})
				wantErr(t, err, full)
				_, err = r.Rotate("weather", string(Ed25519), "test", 0)
				wantErr(t, err, full)
				wantErr(t, r.Revoke(s.ID()), full)
				_, err = r.Secret("another", 32)
				wantErr(t, err, full)
				_, err = Open(Options{Dir: filepath.Join(t.TempDir(), "keys"), fault: o.fault})
				wantErr(t, err, full)
			}
			_, err = r.Protect(Protection{}, Protection{Passphrase: Secret("x")})
			wantErr(t, err, full)
			if diff := cmp.Diff(want, stateOf(t, r)); diff != "" {
				t.Errorf("content after failed writes (-want +got):\n%s", diff)
			}
			if _, err := s.Sign(make([]byte, 32)); err != nil {
				t.Errorf("Sign after failed writes: %v", err)
			}
			if !bytes.Equal(b, readFile(t, filepath.Join(dir, FileName))) {
				t.Error("a failed write changed the file")
			}
			for _, f := range files(t, dir) {
				if strings.Contains(f, unfinished) {
					t.Errorf("a failed write left %s", f)
				}
			}
			failing = false
			create(t, r, New{Owner: "new", Purpose: "p", Algorithm: Ed25519})
			if diff := cmp.Diff(stateOf(t, r), stateOf(t, open(t, Options{Dir: dir}))); diff != "" {
				t.Errorf("memory and file differ (-memory +file):\n%s", diff)
			}
		})
	}
	// If only the sync of the directory fails, Create returns an error although the file has the new key. The next
	// change finds that key.
	t.Run("replaced", func(t *testing.T) {
		t.Parallel()
		var failing bool
		dir := filepath.Join(t.TempDir(), "keys")
		r := open(t, Options{Dir: dir, fault: func(s string) error {
			if failing && s == "replaced" {
				return errors.New("input/output error")
			}
			return nil
		}})
		failing = true
		n := New{Owner: "new", Purpose: "p", Algorithm: Ed25519}
		if _, err := r.Create(n); err == nil {
			t.Error("Create succeeded although the sync of the directory failed")
		}
		failing = false
		if s, err := r.Ensure(n); err != nil || len(r.List()) != 1 || s.ID() != r.List()[0].ID {
			t.Errorf("keys after Ensure: %v, %v; want one", r.List(), err)
		}
	})
}

// Open removes the temporary file of an interrupted write.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "keys[1]")
	r := open(t, Options{Dir: dir})
	fill(t, r)
	writeFile(t, filepath.Join(dir, FileName+unfinished), []byte("half a ring"), 0o600)
	open(t, Options{Dir: dir})
	if diff := cmp.Diff([]string{"keyring.json 600"}, files(t, dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	// If the file is missing but a backup exists, Open does not create an empty ring.
	backup, err := r.Protect(Protection{}, Protection{Passphrase: Secret("x")})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, FileName)); err != nil {
		t.Fatal(err)
	}
	_, err = Open(Options{Dir: dir, Passphrase: Secret("x")})
	wantErr(t, err, ErrMissing)
	if err == nil || !strings.Contains(err.Error(), backup) {
		t.Errorf("error %q does not name the backup %s", err, backup)
	}
	_, err = r.Create(New{Owner: "n", Purpose: "p", Algorithm: Ed25519})
	wantErr(t, err, os.ErrNotExist)
}

// Protect changes the protection of a ring and keeps a backup of the previous file. It requires the current passphrase
// or identity file.
func TestProtect(t *testing.T) {
	t.Parallel()
	c, dir, id := newClock(), filepath.Join(t.TempDir(), "keys"), identityFile(t)
	o := Options{Dir: dir, Now: c.Now}
	r := open(t, o)
	fill(t, r)
	want := stateOf(t, r)
	same := func(r *Ring) {
		t.Helper()
		if diff := cmp.Diff(want, stateOf(t, r)); diff != "" {
			t.Errorf("content (-want +got):\n%s", diff)
		}
	}
	plain := readFile(t, filepath.Join(dir, FileName))
	one, two, file := Protection{Passphrase: Secret("one")}, Protection{Passphrase: Secret("two")},
		Protection{IdentityFile: id}
	backup, err := r.Protect(Protection{}, one)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(plain, readFile(t, backup)) || filepath.Base(backup) != "keyring.json.20261120T120000Z.bak" {
		t.Errorf("the backup %s has another name or content than the previous file", backup)
	}
	same(r)
	if _, err := Open(o); !errors.Is(err, ErrEncrypted) {
		t.Errorf("Open without the passphrase: %v, want ErrEncrypted", err)
	}
	o.Passphrase = Secret("one")
	r2 := open(t, o)
	same(r2)

	// Change the passphrase, then replace it by an identity file. A ring that was opened before still signs, but
	// cannot write.
	for current, want := range map[*Protection]error{{}: ErrEncrypted, &two: ErrWrongKey, &file: ErrWrongKey} {
		_, err = r.Protect(*current, two)
		wantErr(t, err, want)
	}
	if _, err := r.Protect(one, two); err != nil {
		t.Fatal(err)
	}
	_, err = Open(o)
	wantErr(t, err, ErrWrongKey)
	if err == nil || !strings.Contains(err.Error(), "was changed on 2026-11-20T12:00:00Z") {
		t.Errorf("error %v does not give the time of the change", err)
	}
	signer, err := r2.Signer("weather", string(Ed25519))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := signer.Sign([]byte("m")); err != nil {
		t.Errorf("Sign after another ring changed the passphrase: %v", err)
	}
	_, err = r2.Create(New{Owner: "n", Purpose: "p", Algorithm: Ed25519})
	wantErr(t, err, ErrWrongKey)
	if err := r2.Close(); err != nil {
		t.Errorf("Close after another ring changed the passphrase: %v", err)
	}
	if _, err := r.Protect(two, file); err != nil {
		t.Fatal(err)
	}
	o.Passphrase, o.IdentityFile = nil, id
	r3 := open(t, o)
	same(r3)
	if _, err := r3.Protect(file, Protection{}); err != nil {
		t.Fatal(err)
	}
	o.IdentityFile = ""
	same(open(t, o))
	if diff := cmp.Diff([]string{
		"keyring.json 600", "keyring.json.20261120T120000Z-1.bak 600", "keyring.json.20261120T120000Z-2.bak 600",
		"keyring.json.20261120T120000Z-3.bak 600", "keyring.json.20261120T120000Z.bak 600",
	}, files(t, dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}

	for _, p := range []Protection{{Passphrase: Secret{}}, {Passphrase: Secret("x"), IdentityFile: id}} {
		_, err := r.Protect(file, p)
		wantErr(t, err, ErrInvalid)
	}
	mem, _ := memory(t)
	_, err = mem.Protect(Protection{}, Protection{Passphrase: Secret("x")})
	wantErr(t, err, ErrInvalid)
}

// Two rings that are open on one directory keep each other's changes.
func TestSharedRing(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "keys")
	o := Options{Dir: dir, Passphrase: Secret("x")}
	a, b := open(t, o), open(t, o)
	ka := create(t, a, New{Owner: "a", Purpose: "p", Algorithm: Ed25519})
	kb := create(t, b, New{Owner: "b", Purpose: "p", Algorithm: Ed25519})
	if _, err := a.Signer("b", "p"); !errors.Is(err, ErrNotFound) {
		t.Errorf("Signer for the other ring's key before a reload: %v, want ErrNotFound", err)
	}
	if err := tryReload(a); err != nil {
		t.Fatal(err)
	}
	sb, err := a.Signer("b", "p")
	if err != nil || sb.ID() != kb.ID {
		t.Errorf("Signer for the other ring's key: %v, %v; want %s", sb, err, kb.ID)
	}
	sa, err := b.Signer("a", "p")
	if err != nil || sa.ID() != ka.ID {
		t.Errorf("Signer for the other ring's key: %v, %v; want %s", sa, err, ka.ID)
	}
	// A reload applies a revocation by another ring. A restored backup makes the key valid again.
	before := readFile(t, filepath.Join(dir, FileName))
	if err := a.Revoke(kb.ID); err != nil {
		t.Fatal(err)
	}
	if err := tryReload(b); err != nil {
		t.Fatal(err)
	}
	_, err = b.SignerByID(kb.ID)
	wantErr(t, err, ErrRevoked)
	fresh := open(t, o)
	writeFile(t, filepath.Join(dir, FileName), before, 0o600)
	for _, r := range []*Ring{a, b, fresh} {
		if err := tryReload(r); err != nil {
			t.Fatal(err)
		}
		s, err := r.SignerByID(kb.ID)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Sign(nil); err != nil {
			t.Errorf("Sign after the backup was restored: %v", err)
		}
	}
	// If another process damages the file, the ring refuses changes and keeps its keys.
	writeFile(t, filepath.Join(dir, FileName), before[:100], 0o600)
	for range 2 {
		_, err = a.Create(New{Owner: "c", Purpose: "p", Algorithm: Ed25519})
		wantErr(t, err, ErrCorrupt)
	}
	if _, err := a.Signer("a", "p"); err != nil {
		t.Errorf("Signer after the file was damaged: %v", err)
	}
}

// If another process writes an invalid key to the file, every reload and every change fails, and the ring does not
// overwrite the file.
func TestReloadBadKey(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "keys")
	r := open(t, Options{Dir: dir})
	fill(t, r)
	path := filepath.Join(dir, FileName)
	bad := bytes.Replace(readFile(t, path), []byte(`"owner":"weather"`), []byte(`"owner":"storm"`), 1)
	writeFile(t, path, bad, 0o600)
	for range 2 {
		wantErr(t, tryReload(r), ErrCorrupt)
		_, err := r.Secret("another", 32)
		wantErr(t, err, ErrCorrupt)
	}
	if !bytes.Equal(bad, readFile(t, path)) {
		t.Error("the ring overwrote the file with the invalid key")
	}
}

// Formatted values, logs, JSON and error texts show no seed, passphrase or secret.
func TestNothingSecretIsShown(t *testing.T) {
	t.Parallel()
	seed := bytes.Repeat([]byte("S"), 32)
	pass := Secret("hunter2-passphrase")
	o := Options{Dir: filepath.Join(t.TempDir(), "keys"), Passphrase: pass}
	r := open(t, o)
	n := New{Owner: "a", Purpose: "p", Algorithm: Ed25519, Seed: seed}
	if _, err := r.Create(n); err != nil {
		t.Fatal(err)
	}
	s, err := r.Signer("a", "p")
	if err != nil {
		t.Fatal(err)
	}
	sec, err := r.Secret("journal", 32)
	if err != nil {
		t.Fatal(err)
	}
	exported, err := r.Export(s.ID())
	if err != nil {
		t.Fatal(err)
	}
	master := fmt.Sprint(r.place.(*ringFile).sealer.identities[0])
	hidden := []string{master, "AGE-SECRET-KEY"}
	for _, b := range [][]byte{seed, pass, sec} {
		hidden = append(hidden, string(b), hex.EncodeToString(b), strings.ToUpper(hex.EncodeToString(b)),
			base64.StdEncoding.EncodeToString(b),
			strings.Trim(fmt.Sprintf("%d", b), "[]"), strings.Trim(fmt.Sprintf("%#v", b), "[]byte{}"))
	}
	check := func(how, out string) {
		t.Helper()
		for _, h := range hidden {
			if strings.Contains(out, h) {
				t.Errorf("%s shows a secret: %s", how, out)
			}
		}
	}
	var text, js bytes.Buffer
	for _, v := range []any{r, s, o, &o, n, &n, pass, exported, Protection{Passphrase: pass}, r.List(),
		struct{ R *Ring }{r}, struct{ S Signer }{s}, []Signer{s}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%o"} {
			check(verb, fmt.Sprintf(verb, v))
		}
		slog.New(slog.NewTextHandler(&text, nil)).Info("x", "v", v)
		slog.New(slog.NewJSONHandler(&js, nil)).Info("x", "v", v)
		if b, err := json.Marshal(v); err == nil {
			check("json", string(b))
		}
	}
	check("slog text", text.String())
	check("slog JSON", js.String())
	if got := fmt.Sprintf("%+v", pass); got != redacted {
		t.Errorf("got %s", got)
	}
	if got := fmt.Sprintf("%+v", r); got != "keyring{"+o.Dir+"/keyring.json, 1 keys}" {
		t.Errorf("got %s", got)
	}
	if got := fmt.Sprintf("%+v", s); got != `signer{`+s.ID()+` ed25519 "a" "p"}` {
		t.Errorf("got %s", got)
	}
	// Errors of Create and Open show no secret.
	for _, bad := range []New{
		{Owner: "a", Purpose: "p", Algorithm: Ed25519, Seed: seed},
		{Owner: "a", Purpose: "q", Algorithm: Ed25519, Seed: append(bytes.Clone(seed), seed...)},
		{Owner: "a", Purpose: "q", Algorithm: "x", Seed: seed},
		{Owner: "", Purpose: "q", Algorithm: Ed25519, Seed: seed},
	} {
		_, err := r.Create(bad)
		if err == nil {
			t.Fatal("Create accepted an invalid key")
		}
		check("error", err.Error())
	}
	plain := filepath.Join(t.TempDir(), "keys")
	pr := open(t, Options{Dir: plain})
	if _, err := pr.Create(n); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(plain, FileName)
	b64 := []byte(base64.StdEncoding.EncodeToString(seed))
	for _, with := range []string{`x`, `"`, `\`, `"x`} {
		b := readFile(t, path)
		writeFile(t, path, bytes.Replace(b, b64, append([]byte(with), b64...), 1), 0o600)
		_, err := Open(Options{Dir: plain})
		if err == nil {
			t.Fatal("Open accepted a damaged file")
		}
		check("error", err.Error())
		writeFile(t, path, b, 0o600)
	}
}

// A file that is accepted has the same content after it is written and read again. Other files give ErrCorrupt.
func FuzzParseFile(f *testing.F) {
	dir := filepath.Join(f.TempDir(), "keys")
	fill(f, open(f, Options{Dir: dir}))
	f.Add(readFile(f, filepath.Join(dir, FileName)))
	f.Add([]byte(`{"format":"parley-keyring/1","protection":"none","contents":{"keys":[],"enrolled":[],"secrets":{}}}`))
	f.Add([]byte(`{"format":"parley-keyring/1","protection":"passphrase","master":"AA==","sealed":"AA=="}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := parseFile(b, "x")
		if err != nil {
			wantErr(t, err, ErrCorrupt)
			return
		}
		s, err := sealerFor(Protection{}, file, "x")
		if err != nil {
			return
		}
		c, err := s.open(file, "x")
		if err != nil {
			t.Fatal(err)
		}
		r := open(t, Options{})
		r.place = &ringFile{path: "x"}
		if r.load(c) != nil {
			return
		}
		r.place = nowhere{}
		out, err := s.seal(r.current.Load().contents)
		if err != nil {
			t.Fatal(err)
		}
		if file, err = parseFile(out, "x"); err != nil {
			t.Fatal(err)
		}
		again := open(t, Options{})
		again.place = &ringFile{path: "x"}
		if err := again.load(file.Contents); err != nil {
			t.Fatal(err)
		}
		// An empty list is equal to null: the file may have either.
		if diff := cmp.Diff(stateOf(t, r), stateOf(t, again), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("content after writing and reading (-want +got):\n%s", diff)
		}
	})
}

// Many keys are enrolled with one write of the file, or none of them.
func TestEnrollAllWritesOnce(t *testing.T) {
	writes := 0
	r := open(t, Options{Dir: filepath.Join(t.TempDir(), "keys"), fault: func(step string) error {
		if step == "replace" {
			writes++
		}
		return nil
	}})
	var keys []Enrolled
	for i := range 100 {
		public, _, err := ed25519.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, Enrolled{Agent: fmt.Sprint("agent-", i), Purpose: "samvad", KeyID: "k", Algorithm: Ed25519,
			Public: public})
	}
	writes = 0
	for range 2 { // the second time nothing is new
		if err := r.EnrollAll(keys...); err != nil {
			t.Fatal(err)
		}
	}
	if all := r.AllEnrolled(); writes != 1 || len(all) != 100 {
		t.Errorf("%d keys in %d writes", len(all), writes)
	}
	other, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	clash := Enrolled{Agent: "agent-7", Purpose: "samvad", KeyID: "k", Algorithm: Ed25519, Public: other}
	fresh := Enrolled{Agent: "agent-100", Purpose: "samvad", Algorithm: Ed25519, Public: other}
	if err := r.EnrollAll(fresh, clash); !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), "agent-7") {
		t.Errorf("another key of the same id: %v", err)
	}
	if all := r.AllEnrolled(); writes != 1 || len(all) != 100 {
		t.Errorf("after a refusal: %d keys in %d writes", len(all), writes)
	}
}
