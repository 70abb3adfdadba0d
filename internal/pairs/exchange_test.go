package pairs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/node"
)

// TestExchanges: in every protocol the step that ends an attempt says what left the hub, byte for byte.
func TestExchanges(t *testing.T) {
	t.Parallel()
	from := newPeer(t, "samvad", "exchange-from")
	all := []Peer{from}
	for _, protocol := range Protocols {
		all = append(all, newPeer(t, protocol, "exchange-"+protocol))
	}
	w := newTestNode(t, node.Config{Limits: node.Limits{Body: "1MiB"}, Journal: node.Journaling{Sent: true}}, all...)
	w.join(t, all...)
	for _, to := range all[1:] {
		t.Run(to.Protocol(), func(t *testing.T) {
			ctx, stop := context.WithTimeout(t.Context(), within)
			defer stop()
			if _, err := from.Ask(ctx, Question{To: to, Text: "say hello"}); err != nil {
				t.Fatal(err)
			}
			x := w.exchange(ctx, t, to.Name())
			sent := x.Sent
			dialled := map[string]bool{"samvad": true, "uagents": true, "a2a": true, "mcp": true}[x.Protocol]
			if dialled {
				_, sent, _ = bytes.Cut(sent, []byte("\r\n\r\n"))
			}
			sum := sha256.Sum256(sent)
			if x.Protocol != to.Protocol() || x.Size != len(sent) || !bytes.Equal(x.Digest, sum[:]) ||
				x.Written < x.Routed || x.Took < x.Written {
				t.Errorf("%+v", x)
			}
			// A uAgent may answer by a connection of its own before it answers the hub's request.
			early := x.Protocol == "uagents" && x.Status == ""
			if dialled && (x.Address == "" || x.Status != "200 OK" && x.Status != "202 Accepted" && !early) {
				t.Errorf("address %q, status %q", x.Address, x.Status)
			}
		})
	}
}

// exchange waits for the first step with an exchange that ends an attempt to an agent.
func (w *testNode) exchange(ctx context.Context, t *testing.T, to string) *parley.Exchange {
	t.Helper()
	for {
		w.mu.Lock()
		more := w.more
		for _, r := range w.records {
			for _, s := range r.Steps {
				if s.To == to && s.Exchange != nil && s.Exchange.Size > 0 {
					w.mu.Unlock()
					return s.Exchange
				}
			}
		}
		w.mu.Unlock()
		select {
		case <-more:
		case <-ctx.Done():
			t.Fatalf("no attempt to %s is recorded with its exchange", to)
		}
	}
}
