package asp

import (
	"testing"
	"time"

	protocol "github.com/parley-hub/parley/asp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/bridge/bridgetest"
)

// TestNothingIsLostSilently: for a message of any protocol, the parts that an ASP agent
// does not get are reported.
func TestNothingIsLostSilently(t *testing.T) {
	id, err := protocol.GenerateIdentity("agent://parley.test/stand/in", "org_parley")
	if err != nil {
		t.Fatal(err)
	}
	session, err := protocol.NewSessionID()
	if err != nil {
		t.Fatal(err)
	}
	all := []parley.Kind{parley.Request, parley.Notice, parley.Response, parley.Failure, parley.Event, parley.Input}
	bridgetest.Check(t, bridge.ASP, all, func(m *parley.Message) (string, []parley.Loss, error) {
		w, err := toSpeechAct(m, "q", bridgetest.Recipient)
		if err != nil {
			return "", nil, err
		}
		o, err := evidence(m, "hub")
		if err != nil {
			return "", nil, err
		}
		e, err := protocol.Draft{SessionID: session, SequenceNumber: 1, Time: time.Unix(1767225600, 0),
			Performative: w.act, MimeType: w.mimeType, Body: w.body, Context: []protocol.ContextObject{o}}.Sign(id)
		if err != nil {
			return "", nil, err
		}
		return string(e.Raw()), w.losses, nil
	})
}
