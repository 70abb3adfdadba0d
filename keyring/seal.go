package keyring

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"filippo.io/age"

	"github.com/parley-hub/parley/internal/jsonx"
)

// Protection opens a ring. At most one field is set; none: the ring is plain.
type Protection struct {
	Passphrase   Secret
	IdentityFile string // made by age-keygen
}

// format is the first thing in every ring's file.
const format = "parley-keyring/1"

// The values of file.Protection.
const (
	byNothing    = "none"
	byPassphrase = "passphrase"
	byIdentity   = "identity"
)

// file is keyring.json.
type file struct {
	Format     string    `json:"format"`
	Protection string    `json:"protection"`
	Changed    time.Time `json:"changed,omitzero"` // last change of the protection
	Master     []byte    `json:"master,omitempty"` // age (scrypt): the X25519 identity that opens Sealed
	Sealed     []byte    `json:"sealed,omitempty"` // age (X25519): the contents
	Contents   *contents `json:"contents,omitempty"`
}

// sealer encrypts contents into a file, and decrypts them.
type sealer struct {
	protection string
	changed    time.Time
	identity   []byte // the text of identities
	identities []age.Identity
	recipients []age.Recipient
	master     []byte  // for byPassphrase
	previous   *sealer // opens values from before the last change of the protection; nil: no such values
}

func (p Protection) kind() (string, error) {
	switch {
	case p.Passphrase != nil && p.IdentityFile != "":
		return "", fmt.Errorf("%w: a passphrase and an identity file were given; choose one", ErrInvalid)
	case p.Passphrase != nil && len(p.Passphrase) == 0:
		return "", fmt.Errorf("%w: the passphrase is empty", ErrInvalid)
	case p.Passphrase != nil:
		return byPassphrase, nil
	case p.IdentityFile != "":
		return byIdentity, nil
	}
	return byNothing, nil
}

// newSealer makes the sealer of a new ring.
func newSealer(p Protection, workFactor int) (*sealer, error) {
	kind, err := p.kind()
	if err != nil {
		return nil, err
	}
	s := &sealer{protection: kind}
	switch kind {
	case byIdentity:
		return s, s.useIdentityFile(p.IdentityFile)
	case byPassphrase:
		id, err := age.GenerateX25519Identity()
		if err != nil {
			return nil, fmt.Errorf("keyring: %w", err)
		}
		if err := s.use([]byte(id.String())); err != nil {
			return nil, err
		}
		r, err := age.NewScryptRecipient(string(p.Passphrase))
		if err != nil {
			return nil, fmt.Errorf("%w: the passphrase cannot be used", ErrInvalid)
		}
		if workFactor != 0 {
			r.SetWorkFactor(workFactor)
		}
		if s.master, err = encrypt(s.identity, r); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// sealerFor makes the sealer of the existing file f; path is for errors.
func sealerFor(p Protection, f *file, path string) (*sealer, error) {
	kind, err := p.kind()
	if err != nil {
		return nil, err
	}
	switch {
	case f.Protection == kind:
	case f.Protection == byNothing:
		return nil, fmt.Errorf("%w: %s is plain, but %s was given. Nothing was changed; "+
			"to encrypt it, give none and run: parley keys passphrase --new-file FILE (which writes a backup first)",
			ErrNotEncrypted, path, describe(kind))
	case kind == byNothing:
		return nil, fmt.Errorf("%w: %s needs %s", ErrEncrypted, path, describe(f.Protection))
	default:
		return nil, fmt.Errorf("%w: %s is protected by %s, but %s was given", ErrWrongKey, path, describe(f.Protection),
			describe(kind))
	}
	s := &sealer{protection: kind, master: f.Master, changed: f.Changed}
	switch kind {
	case byIdentity:
		return s, s.useIdentityFile(p.IdentityFile)
	case byPassphrase:
		id, err := age.NewScryptIdentity(string(p.Passphrase))
		if err != nil {
			return nil, fmt.Errorf("%w: the passphrase cannot be used", ErrInvalid)
		}
		b, err := decrypt(f.Master, path, id)
		if errors.Is(err, ErrWrongKey) && !f.Changed.IsZero() {
			return nil, fmt.Errorf("%w. Its passphrase was changed on %s: "+
				"set PARLEY_PASSPHRASE or PARLEY_PASSPHRASE_FILE to the new one",
				err, f.Changed.UTC().Format(time.RFC3339))
		}
		if err != nil {
			return nil, err
		}
		if s.use(b) != nil {
			return nil, fmt.Errorf("%w: %s: the passphrase opens it, but it contains no identity", ErrCorrupt, path)
		}
	}
	return s, nil
}

// isOpenedBy fails unless p opens the ring.
func (s *sealer) isOpenedBy(p Protection, path string) error {
	_, err := sealerFor(p, &file{Protection: s.protection, Master: s.master, Changed: s.changed}, path)
	return err
}

func describe(kind string) string {
	if kind == byIdentity {
		return "an identity file"
	}
	return "a passphrase"
}

func (s *sealer) useIdentityFile(path string) error {
	b, err := readPrivate(path, 1<<20)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("keyring: identity file: %w", err)
	}
	if err != nil {
		return err
	}
	if err := s.use(b); err != nil {
		return fmt.Errorf("%w: %s is not an identity file: %w", ErrInvalid, path, err)
	}
	return nil
}

// use parses identities as age-keygen writes them.
func (s *sealer) use(text []byte) error {
	ids, err := age.ParseIdentities(bytes.NewReader(text))
	if err != nil {
		return errors.New("no identity as age-keygen makes it") // the parser's error may quote the text
	}
	for _, id := range ids {
		switch id := id.(type) {
		case *age.X25519Identity:
			s.recipients = append(s.recipients, id.Recipient())
		case *age.HybridIdentity:
			s.recipients = append(s.recipients, id.Recipient())
		default:
			return errors.New("an identity of another kind than age-keygen makes")
		}
	}
	s.identity, s.identities = text, ids
	return nil
}

// seal encodes c as a file.
func (s *sealer) seal(c *contents) (b []byte, err error) {
	f := file{Format: format, Protection: s.protection, Changed: s.changed, Master: s.master}
	if s.protection == byNothing {
		f.Contents = c
	} else if f.Sealed, err = s.encode(c); err != nil {
		return nil, err
	}
	if b, err = jsonx.Encode(&f); err != nil {
		return nil, errors.New("keyring: the contents cannot be written")
	}
	return append(b, '\n'), nil
}

// encode encrypts contents alone.
func (s *sealer) encode(c *contents) ([]byte, error) {
	b, err := jsonx.Encode(c)
	if err != nil {
		return nil, errors.New("keyring: the contents cannot be written")
	}
	return encrypt(b, s.recipients...)
}

// open decrypts the contents of f; path is for errors.
func (s *sealer) open(f *file, path string) (*contents, error) {
	if f.Protection != s.protection || !bytes.Equal(f.Master, s.master) {
		return nil, fmt.Errorf("%w: the passphrase of %s was changed meanwhile. "+
			"This hub goes on with the keys that it has, and changes none: start it again, with the new passphrase",
			ErrWrongKey, path)
	}
	if s.protection == byNothing {
		return f.Contents, nil
	}
	return s.decode(f.Sealed, path)
}

// decode decrypts the result of encode; path is for errors.
func (s *sealer) decode(sealed []byte, path string) (*contents, error) {
	b, err := decrypt(sealed, path, s.identities...)
	if err != nil {
		return nil, err
	}
	c := &contents{}
	if err := jsonx.DecodeKnown(b, c); err != nil {
		// The decoder's error may quote the contents.
		return nil, fmt.Errorf("%w: %s: its contents cannot be read", ErrCorrupt, path)
	}
	return c, nil
}

// parseFile reads the parts of a file that need no key.
func parseFile(b []byte, path string) (*file, error) {
	// Only the format decides how the rest is read.
	var head struct {
		Format string `json:"format"`
	}
	if err := jsonx.Decode(b, &head); err != nil {
		return nil, fmt.Errorf("%w: %s is not a keyring, or it was cut short", ErrCorrupt, path)
	}
	if head.Format != format {
		return nil, fmt.Errorf("%w: %s has the format %q; this version reads %q", ErrCorrupt, path, head.Format, format)
	}
	f := &file{}
	if err := jsonx.DecodeKnown(b, f); err != nil {
		return nil, fmt.Errorf("%w: %s: its members cannot be read", ErrCorrupt, path)
	}
	var fits bool
	switch f.Protection {
	case byNothing:
		fits = f.Contents != nil && f.Sealed == nil && f.Master == nil
	case byIdentity:
		fits = f.Contents == nil && f.Sealed != nil && f.Master == nil
	case byPassphrase:
		fits = f.Contents == nil && f.Sealed != nil && f.Master != nil
	}
	if !fits {
		return nil, fmt.Errorf("%w: %s: its members do not belong together", ErrCorrupt, path)
	}
	return f, nil
}

func encrypt(b []byte, to ...age.Recipient) ([]byte, error) {
	var out bytes.Buffer
	w, err := age.Encrypt(&out, to...)
	if err == nil {
		_, err = w.Write(b)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("keyring: encrypt: %w", err)
	}
	return out.Bytes(), nil
}

func decrypt(b []byte, path string, with ...age.Identity) ([]byte, error) {
	r, err := age.Decrypt(bytes.NewReader(b), with...)
	if _, wrong := errors.AsType[*age.NoIdentityMatchError](err); wrong {
		return nil, fmt.Errorf("%w: %s does not open. Nothing was changed", ErrWrongKey, path)
	}
	var out []byte
	if err == nil {
		out, err = io.ReadAll(r)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s: its encryption is broken", ErrCorrupt, path)
	}
	return out, nil
}
