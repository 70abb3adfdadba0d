package agh

import (
	"cmp"
	"strings"
	"testing"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/bridge/bridgetest"
	"github.com/parley-hub/parley/internal/jsonx"
)

// TestNothingIsLostSilently: the fields of a message that an AGH peer does not get
// are reported, for every protocol.
func TestNothingIsLostSilently(t *testing.T) {
	asked := &protocol.Envelope{ID: "msg_1", WorkspaceID: "ws_1", Channel: "main", Surface: protocol.SurfaceThread,
		ThreadID: "thread_1", From: "bob", To: "alice", WorkID: "work_1"}
	bridgetest.Check(t, bridge.AGH, []parley.Kind{parley.Response, parley.Failure, parley.Event},
		func(m *parley.Message) (string, []parley.Loss, error) {
			outs, losses := (&Binding{}).answers(asked, m, bridgetest.Recipient)
			var text strings.Builder
			for _, e := range outs {
				text.Write(e.Body)
				text.Write(e.Ext)
			}
			return text.String(), losses, nil
		})
	bridgetest.Check(t, bridge.AGH, []parley.Kind{parley.Request, parley.Notice, parley.Input},
		func(m *parley.Message) (string, []parley.Loss, error) {
			s, more := toSay(pieces(m.Parts), cmp.Or(m.Act, "request"))
			var e protocol.Envelope
			err := e.SetContent(s)
			if err == nil {
				err = e.SetExt(ExtParley, provenanceOf(m))
			}
			ext, xerr := jsonx.Encode(provenanceOf(m))
			if err == nil {
				err = xerr
			}
			return string(e.Body) + string(ext), append(bridge.Losses(bridge.AGH, m, bridgetest.Recipient), more...),
				err
		})
}
