package samvad

import (
	"encoding/base64"
	"encoding/json"
	"fmt"

	"github.com/parley-hub/parley/internal/jsonx"
)

// legacyVersion is the protocolVersion of cards whose agents sign the body.
const legacyVersion = "1.1"

// Canonical gives the canonical JSON of protocol 1.1: object members sorted by
// UTF-16 code units at every depth, no white space, ECMAScript numbers and
// strings. It is the form of RFC 8785.
func Canonical(b []byte) ([]byte, error) { return jsonx.Canonicalize(b) }

// LegacyBase gives the bytes that a body signature of protocol 1.1 covers: the
// canonical form of the body without its member signature.
func LegacyBase(body []byte) ([]byte, error) {
	var members map[string]json.RawMessage
	if err := jsonx.Decode(body, &members); err != nil {
		return nil, fmt.Errorf("samvad: legacy body: %w", err)
	}
	delete(members, "signature")
	b, err := jsonx.Encode(members)
	if err != nil {
		return nil, fmt.Errorf("samvad: legacy body: %w", err)
	}
	return jsonx.Canonicalize(b)
}

// SignLegacy gives the value of the member signature for a body of protocol
// 1.1; the body must name its key in the member kid.
func SignLegacy(s Signer, body []byte) (string, error) {
	base, err := LegacyBase(body)
	if err != nil {
		return "", err
	}
	sig, err := s.Sign(base)
	if err != nil {
		return "", fmt.Errorf("samvad: sign: %w", err)
	}
	return base64.StdEncoding.EncodeToString(sig), nil
}
