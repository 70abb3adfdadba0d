package a2e

import (
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/bridge/bridgetest"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/jsonx"
)

// TestNothingIsLostSilently: parts of a message of any protocol that an A2E agent or
// host does not get are reported.
func TestNothingIsLostSilently(t *testing.T) {
	all := []parley.Kind{parley.Request, parley.Notice, parley.Response, parley.Failure, parley.Event, parley.Cancel,
		parley.Input}
	bridgetest.Check(t, bridge.Inbox, all, func(m *parley.Message) (string, []parley.Loss, error) {
		v, err := bridge.ArrivalOf(bridge.Inbox, m, 1, "hub")
		return string(v) + " " + m.Kind.String(), bridge.Losses(bridge.Inbox, m, bridgetest.Recipient), err
	})
	bridgetest.Check(t, bridge.Call, []parley.Kind{parley.Input}, func(m *parley.Message) (string, []parley.Loss, error) {
		out := (&hosts{}).deliver(t.Context(), hub.Outbound{Message: m,
			Recipient: &directory.Entry{Agent: parley.Agent{Name: bridgetest.Recipient}}})
		if out.Err != nil {
			return "", nil, out.Err
		}
		return "", out.Losses, nil
	})
	bridgetest.Check(t, bridge.Call, []parley.Kind{parley.Request, parley.Notice, parley.Response, parley.Failure},
		func(m *parley.Message) (string, []parley.Loss, error) {
			data, err := toData(m.Parts)
			if err == nil && m.Error != nil {
				e := toError(m.Error, "tools")
				data, err = jsonx.Encode(map[string]any{"code": e.Code, "message": e.Text, "retryable": e.Retryable,
					"detail": e.Detail})
			}
			return string(data) + string(provenanceOf(m, "hub", bridge.Call)),
				bridge.Losses(bridge.Call, m, bridgetest.Recipient), err
		}, "Origin")
	bridgetest.Check(t, bridge.Call, []parley.Kind{parley.Event},
		func(m *parley.Message) (string, []parley.Loss, error) {
			_, data := toEvent(m)
			v, err := jsonx.Encode(data)
			// The final result names the origin of itself and of its events.
			return string(v) + string(provenanceOf(&parley.Message{Origin: m.Origin}, "hub", bridge.Call)),
				bridge.Losses(bridge.Call, m, bridgetest.Recipient), err
		})
}
