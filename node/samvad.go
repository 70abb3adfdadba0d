package node

import (
	"fmt"
	"strings"

	bridge "github.com/parley-hub/parley/bridge/samvad"
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

// credentials reads what calls of the agent carry.
func (s *SAMVADAgent) credentials() (c bridge.Credentials, err error) {
	c.Delegate = s.Delegate
	if s.TokenFile == "" {
		return c, nil
	}
	b, err := secretFile(s.TokenFile)
	switch {
	case err != nil:
		return c, fmt.Errorf("token_file: %w", err)
	case len(b) == 0 || len(strings.Fields(string(b))) != 1:
		return c, fmt.Errorf("token_file: %s must hold one token", s.TokenFile)
	}
	c.Token = string(b)
	return c, nil
}
