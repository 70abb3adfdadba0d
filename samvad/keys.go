package samvad

import (
	"context"
	"crypto/ed25519"
	"errors"
)

// A Key is one public key of an agent.
type Key struct {
	KID     string            // the keyid it answers to; "" = any (an enrolled raw key)
	Public  ed25519.PublicKey // 32 bytes
	Revoked bool              // listed, but not active: messages signed with it are refused
	Source  string            // where it comes from, for the verdict: "enrolled", "card", …
	Version string            // protocolVersion of the card it comes from, if any
}

// Keys says which keys an agent has. It returns an error wrapping
// [ErrUnknownKey] (or no keys) for an agent that it does not know, and any
// other error when it could not find out; both refuse the message. It must be
// safe for concurrent use.
type Keys interface {
	Keys(ctx context.Context, id string) ([]Key, error)
}

// A Refresher is a [Keys] that can look anew when a message names a key that
// is not among those known (SAM-073). It limits by itself how often.
type Refresher interface {
	Refresh(ctx context.Context, id string) ([]Key, error)
}

// StaticKeys are enrolled keys by agent identity. It must not be changed while
// in use.
type StaticKeys map[string][]Key

// Keys implements [Keys].
func (s StaticKeys) Keys(_ context.Context, id string) ([]Key, error) {
	if k := s[id]; len(k) > 0 {
		return k, nil
	}
	return nil, ErrUnknownKey
}

// FirstOf asks each source in turn; the first that knows the agent decides
// alone, so that enrolled keys take precedence over fetched ones (SAM-077).
func FirstOf(sources ...Keys) Keys { return firstOf(sources) }

type firstOf []Keys

func (f firstOf) Keys(ctx context.Context, id string) ([]Key, error) {
	k, _, err := f.find(ctx, id)
	return k, err
}

func (f firstOf) find(ctx context.Context, id string) ([]Key, Keys, error) {
	why := error(ErrUnknownKey)
	for _, s := range f {
		k, err := s.Keys(ctx, id)
		if len(k) > 0 && err == nil {
			return k, s, nil
		}
		if err != nil && !errors.Is(err, ErrUnknownKey) {
			return nil, nil, err
		}
		if err != nil {
			why = err // the last source is the one that looked farthest
		}
	}
	return nil, nil, why
}

// Refresh implements [Refresher] through the source that knows the agent.
func (f firstOf) Refresh(ctx context.Context, id string) ([]Key, error) {
	k, s, err := f.find(ctx, id)
	if err != nil {
		return nil, err
	}
	if r, ok := s.(Refresher); ok {
		return r.Refresh(ctx, id)
	}
	return k, nil
}
