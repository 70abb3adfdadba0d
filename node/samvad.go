package node

import (
	"fmt"
	"strings"
)

// tokens reads the bearer tokens that authenticated skills accept.
func (s SAMVAD) tokens() ([]string, error) {
	if s.TokensFile == "" {
		return nil, nil
	}
	b, err := secretFile(s.TokensFile)
	if err != nil {
		return nil, fmt.Errorf("samvad.tokens_file: %w", err)
	}
	tokens := strings.Fields(string(b))
	if len(tokens) == 0 {
		return nil, fmt.Errorf("samvad.tokens_file: %s holds no token", s.TokensFile)
	}
	return tokens, nil
}
