package mcp

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/bridge/bridgetest"
	"github.com/parley-hub/parley/journal"
)

// TestNothingIsLostSilently: parts of a message of any protocol that an MCP client or an attached server does not get
// are reported.
func TestNothingIsLostSilently(t *testing.T) {
	t.Parallel()
	t.Run("the inbox of a client", func(t *testing.T) {
		t.Parallel()
		bridgetest.Check(t, bridge.MCPClient, []parley.Kind{parley.Request, parley.Notice, parley.Input, parley.Cancel},
			func(m *parley.Message) (string, []parley.Loss, error) {
				v, err := bridge.ArrivalOf(bridge.MCPClient, m, 1, "hub")
				return string(v) + " " + m.Kind.String(), bridge.Losses(bridge.MCPClient, m, bridgetest.Recipient), err
			})
	})
	for name, can := range map[string]abilities{"a client": {modern: true, form: true},
		"a client of the handshake revisions": {form: true}, "a client that cannot be asked": {modern: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			bridgetest.Check(t, bridge.MCPClient, []parley.Kind{parley.Response, parley.Failure, parley.Event},
				func(m *parley.Message) (string, []parley.Loss, error) {
					text, err := w.heard(can, m)
					losses := replyLosses(m, &parley.Message{From: bridgetest.Recipient})
					for i := range losses {
						_, losses[i].Field, _ = strings.Cut(losses[i].Field, ".") // it begins with Reply or Event
					}
					return text, losses, err
				})
		})
	}
	t.Run("a server", func(t *testing.T) {
		t.Parallel()
		schema := json.RawMessage(`{"type":"object","properties":{"content":{"type":"string"}}}`)
		bridgetest.Check(t, bridge.MCPServer, []parley.Kind{parley.Request, parley.Notice},
			func(m *parley.Message) (string, []parley.Loss, error) {
				p, refused := toCall(m, &ToolText{Name: "do", Input: schema}, "hub")
				if refused != nil {
					return "", nil, refused
				}
				b, err := json.Marshal(p)
				return string(b), bridge.Losses(bridge.MCPServer, m, bridgetest.Recipient), err
			})
		bridgetest.Check(t, bridge.MCPServer, []parley.Kind{parley.Input},
			func(m *parley.Message) (string, []parley.Loss, error) {
				r, why := toElicitResult(m, schema, "hub")
				if why != "" {
					return "", nil, parley.Refuse(parley.InvalidContent, "%s", why)
				}
				b, err := json.Marshal(r)
				return string(b), bridge.Losses(bridge.MCPServer, m, bridgetest.Recipient), err
			})
	})
}

// heard is what a client that gave a token for progress gets of an event or a reply, up to the result of its call.
func (w *world) heard(can abilities, m *parley.Message) (string, error) {
	e := &clientCall{b: w.node.Binding, t: w.toolCall(w.caller("alice"), toolAsk, ""), can: can, token: "p",
		id: m.InReplyTo}
	said := []any{}
	for i, m := range []*parley.Message{m, {Kind: parley.Response, From: m.From, Origin: m.Origin}} {
		e.apply(&journal.Record{Position: journal.Position{Sequence: uint64(i + 1)}, Message: m})
		said = append(said, e.progress.pending)
		var r *mcp.CallToolResult
		switch {
		case e.reply != nil:
			r = e.answer()
		case e.asked != nil:
			var err error
			if r, err = e.question(); err != nil {
				return "", err
			}
		}
		if said = append(said, r); e.reply == m {
			break // an event is followed by a result, which names its sender
		}
	}
	b, err := json.Marshal(said)
	return string(b), err
}
