package agh

import (
	"errors"
	"strings"
	"testing"
)

// The refusal of what is too long says what it is, how long it is, and the bound. It does not repeat it.
func TestTooLongIsSaid(t *testing.T) {
	t.Parallel()
	name := strings.Repeat("n", 1<<20)
	long := func(is error, field, size, bound string, err error) {
		t.Helper()
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, is) || e.Field != field || !strings.Contains(e.Text, size) ||
			!strings.Contains(e.Text, bound) || len(e.Text) > 200 {
			t.Errorf("%.300v: want %v of %q with %q and %q", err, is, field, size, bound)
		}
	}
	for _, field := range []string{"from", "to", "channel", "workspace_id", "id"} {
		_, err := Decode([]byte(with(sayText, field, name)))
		long(ErrTooLarge, "", "the envelope has 10", "at most 1048576 ", err)
	}
	for field, bound := range map[string]string{"from": "at most 128 ", "to": "at most 128 ", "channel": "at most 64 ",
		"workspace_id": "at most 1024 "} {
		_, err := Decode([]byte(with(sayText, field, name[:5000])))
		long(ErrMalformed, field, "has 5000 bytes", bound, err)
	}
	_, err := BroadcastSubject(name, "builders")
	long(ErrMalformed, "workspace_id", "has 1048576 bytes", "at most 1024 ", err)
	_, err = PeerSubject("acme", "builders", name)
	long(ErrMalformed, "peer_id", "has 1048576 bytes", "at most 128 ", err)
	_, err = DirectID("acme", name, "alice", "bob")
	long(ErrMalformed, "channel", "has 1048576 bytes", "at most 64 ", err)
	_, err = DirectID("acme", "builders", name, "bob")
	long(ErrMalformed, "peer_id", "has 1048576 bytes", "at most 128 ", err)

	// What a hosted peer cannot say, and cannot be called.
	r := node(t, nil, "bob")
	say := &Envelope{WorkspaceID: "ws", Channel: "c", From: "bob", Surface: SurfaceThread,
		ThreadID: NewThreadID()}
	if err := say.SetContent(&Say{Text: name}); err != nil {
		t.Fatal(err)
	}
	_, err = r.Prepare(t.Context(), say)
	long(ErrTooLarge, "", "the envelope has 10", "at most 1048576 ", err)
	_, err = r.Host(&Local{WorkspaceID: "ws", Channel: "c", Card: &Card{PeerID: "carol", DisplayName: name}})
	long(ErrTooLarge, "", "the envelope has 10", "at most 1048576 ", err)
	r.Verifier.Limits.Envelope = 500
	_, err = r.Prepare(t.Context(), say)
	long(ErrTooLarge, "", "the envelope has 10", "at most 500 ", err)
}
