package uagents

import (
	"slices"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/bridge/bridgetest"
	protocol "github.com/parley-hub/parley/uagents"
)

// TestNothingIsLostSilently: every part of a message that a uAgent does not get is a
// reported loss.
func TestNothingIsLostSilently(t *testing.T) {
	kinds := []parley.Kind{parley.Request, parley.Notice, parley.Response, parley.Failure, parley.Event, parley.Input}
	bridgetest.Check(t, bridge.Chat, kinds, func(m *parley.Message) (string, []parley.Loss, error) {
		content, losses := toChat(m, bridgetest.Recipient, time.Unix(1767225600, 0), m.Kind == parley.Response)
		switch m.Kind {
		case parley.Event:
			if m.State != parley.NeedsInput {
				return "", losses, nil
			}
		case parley.Failure:
			content = protocol.NewErrorMessage(failureText(m.Error))
		}
		return string(content.Payload) + "\n" + bridge.Provenance(m), losses, content.Err()
	})
	bridgetest.Check(t, bridge.Model, kinds, func(m *parley.Message) (string, []parley.Loss, error) {
		losses := bridge.Losses(bridge.Model, m, bridgetest.Recipient)
		switch m.Kind {
		case parley.Event, parley.Input:
			return "", losses, nil
		case parley.Failure:
			return string(protocol.NewErrorMessage(failureText(m.Error)).Payload) + "\n" + bridge.Provenance(m), losses,
				nil
		}
		model, err := protocol.ParseModel([]byte(`{"title":"Q","type":"object","properties":{"text":{"title":"Text","type":"string"}},"required":["text"]}`))
		if err != nil {
			return "", nil, err
		}
		if slices.ContainsFunc(m.Parts, parley.Part.IsJSON) {
			model = nil
		}
		text, err := toObject(m, model)
		return string(text) + "\n" + bridge.Provenance(m), losses, err
	})
}
