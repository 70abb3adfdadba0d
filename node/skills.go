package node

import (
	"encoding/json"
	"fmt"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/jsonx"
)

// AgentSkill is a skill of an agent, as the operator declares it.
type AgentSkill struct {
	// its id
	ID string `toml:"id" example:"\"forecast\""`
	// for people; default: the id
	Name string `toml:"name"`
	// for people and models
	Description string `toml:"description"`
	// JSON Schema of the content; default: anything
	Input string `toml:"input"`
	// JSON Schema of the result; default: anything
	Output string `toml:"output"`
	// sync, async and stream, as far as the agent takes them; default: all
	Modes []string `toml:"modes"`
	// who may call it: public | authenticated | trusted-peers
	Access string `toml:"access" default:"\"public\""`
	// identities that access trusted-peers lets in
	Peers []string `toml:"peers"`
	// it takes messages that name no skill
	Default bool `toml:"default"`
}

// spec checks the skill and gives the directory's form.
func (k *AgentSkill) spec() (s parley.SkillSpec, err error) {
	if k.ID == "" || len(k.ID) > 64 {
		return s, fmt.Errorf("id = %.70q: want 1 to 64 characters", k.ID)
	}
	s = parley.SkillSpec{ID: k.ID, Name: k.Name, Description: k.Description, Access: parley.Access(k.Access),
		Peers: k.Peers, Default: k.Default}
	for _, m := range k.Modes {
		if err := oneOf("modes", m, string(parley.Sync), string(parley.Async), string(parley.Streaming)); err != nil {
			return s, err
		}
		s.Modes = append(s.Modes, parley.Mode(m))
	}
	if err := oneOf("access", k.Access, string(parley.Public), string(parley.Authenticated),
		string(parley.TrustedPeers)); err != nil {
		return s, err
	}
	if s.Input, err = schemaOf("input", k.Input); err == nil {
		s.Output, err = schemaOf("output", k.Output)
	}
	return s, err
}

func schemaOf(key, text string) (json.RawMessage, error) {
	if text == "" {
		return nil, nil
	}
	if err := jsonx.Valid([]byte(text), 0); err != nil {
		return nil, fmt.Errorf("%s is not JSON: %w", key, err)
	}
	return json.RawMessage(text), nil
}
