package samvad

import (
	"fmt"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/bridge/bridgetest"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
)

// TestNothingIsLostSilently: the hub reports every aspect of a message of any
// protocol that a SAMVAD agent or caller does not get.
func TestNothingIsLostSilently(t *testing.T) {
	agent := &parley.Agent{Name: bridgetest.Recipient, Skills: []parley.SkillSpec{{ID: "talk", Default: true}}}
	bridgetest.Check(t, bridge.SAMVAD, []parley.Kind{parley.Input},
		func(m *parley.Message) (string, []parley.Loss, error) {
			out := (&Binding{}).Deliver(t.Context(), hub.Outbound{Message: m,
				Recipient: &directory.Entry{Agent: *agent}})
			if out.Err != nil {
				return "", nil, out.Err
			}
			return "", out.Losses, nil
		})
	bridgetest.Check(t, bridge.SAMVAD, []parley.Kind{parley.Request, parley.Notice},
		func(m *parley.Message) (string, []parley.Loss, error) {
			call, err := callOf(m, agent, parley.Identity{ID: "agent://bob.test"})
			return fmt.Sprintf("%s %s %s %s\n%s", call.Header, call.TraceID, call.SpanID, call.Skill, call.Payload),
				bridge.Losses(bridge.SAMVAD, m, agent.Name), err
		})
	asked := &parley.Message{From: agent.Name, Trace: parley.Trace{Foreign: map[string]string{foreignMode: "sync"}}}
	bridgetest.Check(t, bridge.SAMVAD, []parley.Kind{parley.Response, parley.Failure},
		func(m *parley.Message) (string, []parley.Loss, error) {
			r := toReply("trace", m)
			text := r.SpanID + "\n" + string(r.Result)
			if r.Err != nil {
				text += string(r.Err.Code) + " " + r.Err.Text
			}
			return text, unprefixed(replyLosses(m, asked)), nil
		}, "Act", "Schema", "Origin")
	asked.Trace.Foreign[foreignMode] = "stream"
	bridgetest.Check(t, bridge.SAMVAD, []parley.Kind{parley.Event},
		func(m *parley.Message) (string, []parley.Loss, error) {
			losses := unprefixed(replyLosses(m, asked))
			if m.State != parley.NoState {
				return "", losses, nil
			}
			v, err := toResult(m.Parts)
			return m.ID.String() + string(v), losses, err
		}, "Act", "Schema", "Origin")
}

func unprefixed(losses []parley.Loss) []parley.Loss {
	var out []parley.Loss
	for _, l := range losses {
		out = append(out, parley.Loss{Field: l.Field[len("Reply."):], Reason: l.Reason})
	}
	return out
}
