package journal

import (
	"testing"

	"github.com/parley-hub/parley"
)

// A retried dead letter is known as one until it is settled or dead again, also after a restart, whose view comes
// from a checkpoint.
func TestRetried(t *testing.T) {
	t.Parallel()
	s := setup{Dir: t.TempDir()}
	id := parley.ID{1, 6: 0x70, 8: 0x80}
	retried := func(j *Journal, want bool, steps ...Step) {
		t.Helper()
		for _, x := range steps {
			x.Message, x.To = id, "bob"
			if _, err := j.Append(t.Context(), Entry{Steps: []Step{x}}); err != nil {
				t.Fatal(err)
			}
		}
		if d, ok := j.Delivery(id, "bob"); !ok || d.Retried != want {
			t.Errorf("after %v: retried %v, want %v", steps, d.Retried, want)
		}
	}
	j, err := tryOpen(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	m := &parley.Message{ID: id, Kind: parley.Notice, From: "alice", To: "bob"}
	if _, err := j.Append(t.Context(), Entry{Scope: "bob", Message: m, Open: []Opening{{To: "bob", Attempt: 1}}}); err != nil {
		t.Fatal(err)
	}
	again := Step{State: parley.Waiting}
	retried(j, false, again, Step{State: parley.Delivering, Attempt: 2}, Step{State: parley.Dead})
	retried(j, true, again)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j = open(t, s)
	retried(j, true)
	retried(j, true, Step{State: parley.Delivering, Attempt: 3})
	retried(j, false, Step{State: parley.Dead})
}
