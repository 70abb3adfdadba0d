package pairs

import (
	"errors"
	"strings"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/node"
)

// TestUnsignedA2A: a token proves the session (A2A-060).
func TestUnsignedA2A(t *testing.T) { unsignedCaller(t, "a2a") }

// TestUnsignedMCP: a token proves the session (MCP-012).
func TestUnsignedMCP(t *testing.T) { unsignedCaller(t, "mcp") }

// unsignedCaller has an agent ask agents of all protocols. Nothing is signed in its own. Where signatures are demanded,
// the agent is refused, and no agent hears the message; so is a caller without a token. Else each recipient sees in a
// field of its own protocol what was proved, whatever the hub itself signs.
func unsignedCaller(t *testing.T, protocol string) {
	t.Parallel()
	for _, c := range []struct {
		demanded string
		token    bool
		let      bool
	}{{"signed", true, false}, {"session", true, true}, {"session", false, false}} {
		name := c.demanded + " with a token"
		if !c.token {
			name = c.demanded + " without a token"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			from := newPeer(t, protocol, protocol+"-from")
			all := []Peer{from}
			for _, p := range Protocols {
				all = append(all, newPeer(t, p, p+"-to"))
			}
			w := newTestNode(t, node.Config{Policy: node.Policy{Assurance: c.demanded}}, all...)
			w.join(t, all[1:]...)
			at := At(w.Node)
			if !c.token {
				at.Token = nil
			}
			if err := from.Join(patient(t), at, false); err != nil {
				t.Fatal(err)
			}
			for _, to := range all[1:] {
				text := "say " + to.Name()
				_, err := from.Ask(patient(t), Question{To: to, Text: text})
				if !c.let {
					if f := new(Failure); !errors.As(err, &f) || !f.Refused {
						t.Errorf("%s: %v", to.Name(), err)
					}
					if n := len(to.Heard()); n > 0 {
						t.Errorf("%s heard %d of it", to.Name(), n)
					}
					continue
				}
				if err != nil {
					t.Fatalf("%s: %v", to.Name(), err)
				}
				if h := hears(t, to, text); !strings.Contains(h.Provenance, "session") ||
					!strings.Contains(h.Provenance, protocol) {
					t.Errorf("%s is told: %s", to.Name(), h.Provenance)
				}
				if m := w.said(t, from, to, text); m.Origin.Verdict.Assurance != parley.Session {
					t.Errorf("recorded as %s", m.Origin.Verdict.Assurance)
				}
			}
		})
	}
}
