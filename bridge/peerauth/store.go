package peerauth

import (
	"bytes"
	"cmp"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/keyring"
)

// Store keeps credentials by agent, sealed, for all hubs on a journal.
type Store struct {
	table   *journal.Table[sealed] // by directory name
	keys    *keyring.Ring
	purpose string // of the key
	rand    io.Reader
}

// NewStore makes the store of a protocol, whose short name names its table and its key. Follow must be called before
// the other methods.
func NewStore(j *journal.Journal, k *keyring.Ring, protocol string, rand io.Reader) *Store {
	return &Store{table: journal.NewTable[sealed](j, protocol+"-credentials", 0), keys: k,
		purpose: protocol + " credentials", rand: rand}
}

// Follow reads what is stored, and calls changed for each agent with credentials and each later change by any hub.
// ctx is for the reading only.
func (s *Store) Follow(ctx context.Context, changed func(agent string)) (stop func(), err error) {
	stop, err = s.table.Follow(ctx, func(before, after journal.Row[sealed]) { changed(cmp.Or(after.Key, before.Key)) })
	if err != nil {
		return nil, fmt.Errorf("read the credentials for agents elsewhere: %w", err)
	}
	return stop, nil
}

// Has reports whether credentials for an agent are stored.
func (s *Store) Has(agent string) bool { return s.table.Known(agent).Revision != 0 }

// Get gives the credentials for an agent, empty ones if none are stored. An error says that those which are stored
// cannot be read; then they must be stored again.
func (s *Store) Get(agent string) (Credentials, error) {
	row := s.table.Known(agent)
	if row.Revision == 0 {
		return Credentials{}, nil
	}
	return s.unseal(agent, row.Value)
}

// Put stores credentials that pass Check. It forgets an agent's if they are empty.
func (s *Store) Put(ctx context.Context, agent string, c Credentials) error {
	if c.Empty() {
		return s.Forget(ctx, agent)
	}
	if err := c.Check(); err != nil {
		return err
	}
	v, err := s.seal(agent, c)
	if err == nil {
		_, err = s.table.Put(ctx, agent, v, time.Time{})
	}
	if err != nil {
		return fmt.Errorf("store credentials for %q: %w", agent, err)
	}
	return nil
}

// Forget removes the credentials for an agent.
func (s *Store) Forget(ctx context.Context, agent string) error {
	if !s.Has(agent) {
		return nil
	}
	if err := s.table.Delete(ctx, agent, 0); err != nil {
		return fmt.Errorf("forget the credentials for %q: %w", agent, err)
	}
	return nil
}

// A sealed value is encrypted with a key of the keyring.
type sealed struct {
	Nonce []byte
	Box   []byte
}

// stored is what is sealed, in JSON.
type stored struct {
	Credentials
	Certificate []byte `json:",omitempty"` // PEM: the chain, then the private key
}

func (s *Store) aead() (cipher.AEAD, error) {
	key, err := s.keys.Secret(s.purpose, 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

func (s *Store) seal(agent string, c Credentials) (v sealed, err error) {
	open := stored{Credentials: c}
	if c.Certificate != nil {
		var text bytes.Buffer
		for _, der := range c.Certificate.Certificate {
			_ = pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: der}) // a Buffer does not fail
		}
		der, err := x509.MarshalPKCS8PrivateKey(c.Certificate.PrivateKey)
		if err != nil {
			return v, fmt.Errorf("the certificate's key: %w", err)
		}
		_ = pem.Encode(&text, &pem.Block{Type: "PRIVATE KEY", Bytes: der})
		open.Certificate = text.Bytes()
	}
	plain, err := json.Marshal(open)
	if err != nil {
		return v, err
	}
	aead, err := s.aead()
	if err != nil {
		return v, err
	}
	v.Nonce = make([]byte, aead.NonceSize())
	if _, err := io.ReadFull(s.rand, v.Nonce); err != nil {
		return v, err
	}
	v.Box = aead.Seal(nil, v.Nonce, plain, []byte(agent)) // not to be moved to another agent
	return v, nil
}

func (s *Store) unseal(agent string, v sealed) (c Credentials, err error) {
	aead, err := s.aead()
	if err != nil {
		return c, err
	}
	if len(v.Nonce) != aead.NonceSize() {
		return c, errors.New("the nonce has a wrong size")
	}
	plain, err := aead.Open(nil, v.Nonce, v.Box, []byte(agent))
	if err != nil {
		return c, err
	}
	var open stored
	if err := json.Unmarshal(plain, &open); err != nil {
		return c, err
	}
	c = open.Credentials
	if len(open.Certificate) > 0 {
		pair, err := tls.X509KeyPair(open.Certificate, open.Certificate)
		if err != nil {
			return Credentials{}, err
		}
		c.Certificate = &pair
	}
	return c, nil
}
