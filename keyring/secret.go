package keyring

import "fmt"

// Secret is bytes that fmt, log/slog and encoding/json show as "[redacted]".
// A []byte can be assigned to it and back.
type Secret []byte

const redacted = "[redacted]"

// String hides the secret.
func (Secret) String() string { return redacted }

// Format hides the secret whatever the verb.
func (Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// MarshalText hides the secret.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }
