package agh

import (
	"testing"

	"github.com/parley-hub/parley"
)

// The hub's receipt reports that a request was accepted. Another acceptance is sent
// only if it is a peer's own receipt, or has content.
func TestAcceptedIsSaidOnce(t *testing.T) {
	for _, c := range []struct {
		name  string
		event parley.Message
		want  bool
	}{
		{"an acknowledgement", parley.Message{State: parley.Accepted, Origin: parley.Origin{Protocol: "uagents"}},
			false},
		{"one of the hub", parley.Message{State: parley.Accepted}, false},
		{"a peer's receipt", parley.Message{State: parley.Accepted, Origin: parley.Origin{Protocol: Protocol}}, true},
		{"one with a text", parley.Message{State: parley.Accepted, Origin: parley.Origin{Protocol: "asp"},
			Parts: []parley.Part{parley.Text("in a moment")}}, true},
		{"progress", parley.Message{State: parley.Working, Origin: parley.Origin{Protocol: "a2e"}}, true},
		{"a piece of the answer", parley.Message{Origin: parley.Origin{Protocol: "samvad"},
			Parts: []parley.Part{parley.Text("a")}}, true},
	} {
		c.event.Kind = parley.Event
		if got := carriesEvent(&c.event); got != c.want {
			t.Errorf("%s is carried: %t, want %t", c.name, got, c.want)
		}
	}
}
