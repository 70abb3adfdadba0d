package agh

import (
	"testing"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/bridge"
)

// TestReceiptsHaveReasons looks at every reason code of the registry.
func TestReceiptsHaveReasons(t *testing.T) {
	for _, code := range []protocol.Reason{protocol.ReasonMalformed, protocol.ReasonExpired, protocol.ReasonDuplicate,
		protocol.ReasonUnsupportedKind, protocol.ReasonUnsupportedProfile, protocol.ReasonVerificationFailed,
		protocol.ReasonNotTarget, protocol.ReasonNotFound, protocol.ReasonBusy, protocol.ReasonInternal,
		protocol.ReasonInvalidSurface, protocol.ReasonNoConversation, protocol.ReasonWorkClosed,
		protocol.ReasonContainerMismatch, protocol.ReasonLegacyField} {
		want, known := bridge.PeerReasons[Protocol][string(code)]
		if !known {
			t.Errorf("%s: no reason", code)
		}
		for _, status := range []protocol.ReceiptStatus{protocol.StatusRejected, protocol.StatusExpired,
			protocol.StatusUnsupported, protocol.StatusCanceled} {
			e := &protocol.Envelope{}
			if err := e.SetContent(&protocol.Receipt{ForID: "m", Status: status, Reason: code}); err != nil {
				t.Fatal(err)
			}
			if f := toFailure(e); f.Source != parley.ByPeer || f.Reason != want {
				t.Errorf("%s %s: %s %s, want %s", status, code, f.Source, f.Reason, want)
			}
		}
	}
}
