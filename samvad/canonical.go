package samvad

import (
	"encoding/json"
	"fmt"

	"github.com/parley-hub/parley/internal/jsonx"
)

// legacyVersion is the protocolVersion of cards whose agents sign the body.
const legacyVersion = "1.1"

// LegacyBase gives the bytes that a body signature of protocol 1.1 covers: the
// canonical form (RFC 8785) of the body without its member signature.
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
