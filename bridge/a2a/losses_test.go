package a2a

import (
	"encoding/json"
	"testing"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/bridge/bridgetest"
)

// TestNothingIsLostSilently: for a message of any protocol, the parts that an A2A agent or
// client does not get are reported.
func TestNothingIsLostSilently(t *testing.T) {
	kinds := []parley.Kind{parley.Request, parley.Notice, parley.Response, parley.Failure, parley.Event}
	bridgetest.Check(t, bridge.A2A, kinds, func(m *parley.Message) (string, []parley.Loss, error) {
		text, err := onTheWire(m)
		return text, bridge.Losses(bridge.A2A, m, bridgetest.Recipient), err
	}, "Origin") // the message's ID is with the provenance
}

// onTheWire is the JSON that an agent elsewhere gets of a request or notice, or a client of
// an event or reply.
func onTheWire(m *parley.Message) (string, error) {
	if m.Kind == parley.Request || m.Kind == parley.Notice {
		r, err := toSend(m, sendForm{version: V1, declares: true})
		if err != nil {
			return "", err
		}
		b, err := json.Marshal(r)
		return string(b), err
	}
	at := time.Unix(1767225600, 0)
	request := &parley.Message{ID: m.InReplyTo, Kind: parley.Request, From: m.To, To: m.From}
	p, _ := begin(request, at)
	var text string
	for _, e := range p.events(m, at) {
		b, err := json.Marshal(protocol.StreamResponse{Event: e})
		if err != nil {
			return "", err
		}
		text += string(b) + "\n"
	}
	return text, nil
}
