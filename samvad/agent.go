package samvad

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// An Agent describes one agent to a [Server]. It is cheap: no
// goroutine, no timer; its card is encoded once and its schemas are compiled
// on first use. To change an agent, make a new one. It must not be copied.
type Agent struct {
	Card     *Card   // completed by the server; see [Card.Complete]
	Handler  Handler // runs the skills; not used where [Server.Handle] is set
	Identity Signer  // signs webhooks; nil: they are not signed

	// Token validates the bearer token of authenticated skills; nil accepts
	// any that is not empty, as the SDKs do. The request is verified.
	Token func(ctx context.Context, req *Request) error

	// Skills holds options by skill id.
	Skills map[string]SkillOptions

	// Limit is enforced in place of the card's; nil: the card's. Zero members
	// are no limit, for programs that limit elsewhere.
	Limit *RateLimit

	once    sync.Once
	encoded []byte
	err     error
	limit   RateLimit
	light   bool                                    // some skill is lightweight
	schemas map[string]func() (*InputSchema, error) // by skill id
}

// SkillOptions change how a server treats a skill.
type SkillOptions struct {
	NoScan bool // do not scan payloads for injection patterns
	// public skills only: accept unsigned {"skill","payload"} bodies (an extension; the sender is agent://anonymous)
	Lightweight bool
}

// Anonymous is the sender of lightweight requests.
const Anonymous = "agent://anonymous"

func (a *Agent) prepare() error {
	a.once.Do(func() {
		if a.Card == nil {
			a.err = because(ErrCard, errors.New("agent without a card"))
			return
		}
		a.limit = a.Card.limit()
		for _, o := range a.Skills {
			a.light = a.light || o.Lightweight
		}
		if a.Limit != nil {
			a.limit = *a.Limit
		}
		a.schemas = make(map[string]func() (*InputSchema, error), len(a.Card.Skills))
		for _, s := range a.Card.Skills {
			a.schemas[s.ID] = sync.OnceValues(func() (*InputSchema, error) { return CompileInput(s.InputSchema) })
		}
		a.encoded, a.err = a.Card.Encode()
	})
	return a.err
}

// Check reports what is wrong with an agent: its card, or a schema that does not
// compile. A server answers AGENT_UNAVAILABLE where Check would return an error.
func (a *Agent) Check() error {
	if err := a.prepare(); err != nil {
		return err
	}
	for _, s := range a.Card.Skills {
		if _, err := a.schemas[s.ID](); err != nil {
			return fmt.Errorf("skill %q: %w", s.ID, err)
		}
	}
	return nil
}

func (a *Agent) id() string { return a.Card.ID }
