package agh

import (
	"testing"

	protocol "github.com/parley-hub/parley/agh"
)

// A peer's further request with the trace id from the hub stays in the trace.
func TestTraceIsKept(t *testing.T) {
	const w3c = "0af7651916cd43dd8448eb211c80319c"
	at := func(trace string) string {
		p := traceparent(&protocol.Envelope{WorkspaceID: "acme", From: "ana", ID: "m1", TraceID: trace})
		if len(p) != 55 {
			t.Fatalf("%q", p)
		}
		return p[3:35]
	}
	if got := at(w3c); got != w3c {
		t.Errorf("trace %s", got)
	}
	if one := at("trace_1"); at("trace_1") != one || one == at("trace_2") || at("") == at("trace_1") {
		t.Error("ids of another form do not lead to one trace each")
	}
}
