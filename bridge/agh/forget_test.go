package agh

import (
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/hub"
)

// The last text of a target is kept with the state of open work, and is removed when
// the work ends or is forgotten.
func TestForgetsLastWords(t *testing.T) {
	j := memoryJournal(t)
	w := newWorks(j, time.Now)
	request := parley.HashID([]byte("request"))
	e := &protocol.Envelope{WorkspaceID: "acme", WorkID: "work_1", Note: &link{Request: request, Target: "bob"}}
	step := func(state protocol.WorkState) {
		t.Helper()
		if _, err := w.Update(t.Context(), e, func(protocol.Work, bool) (protocol.Work, error) {
			return protocol.Work{WorkspaceID: "acme", WorkID: "work_1", Initiator: "alice", Target: "bob",
				State: state}, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	kept := func() (text string) {
		t.Helper()
		for v, err := range j.State("agh.works").Range(t.Context(), "") {
			if err != nil {
				t.Fatal(err)
			}
			text += string(v.Data)
		}
		return text
	}
	const inBase64 = "YSB3b3Jk"
	said := func() {
		t.Helper()
		if err := w.setLastText(t.Context(), "acme", "work_1", []byte("a word")); err != nil {
			t.Fatal(err)
		}
		if s := kept(); !strings.Contains(s, inBase64) {
			t.Fatalf("the text is not kept: %s", s)
		}
	}
	step(protocol.StateSubmitted)
	said()
	n, err := w.forget(t.Context(), &hub.Forgetting{Message: func(id parley.ID) bool { return id == request }})
	if s := kept(); n != 1 || err != nil || strings.Contains(s, inBase64) || !strings.Contains(s, "work_1") {
		t.Errorf("%d values, %v: %s", n, err, s)
	}
	said()
	step(protocol.StateCompleted)
	if s := kept(); strings.Contains(s, inBase64) || !strings.Contains(s, "work_1") {
		t.Errorf("after the end: %s", s)
	}
}
