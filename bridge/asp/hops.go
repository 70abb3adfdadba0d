package asp

import (
	protocol "github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/bridge"
)

// hopsOf gives the hubs that a message has passed, where another hub worded it.
func hopsOf(e *protocol.Envelope) []string {
	for _, o := range e.Content.Context {
		if o.Type == TrustEvidence {
			return bridge.HopsOf(o.Data)
		}
	}
	return nil
}
