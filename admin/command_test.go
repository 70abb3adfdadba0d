package admin

import (
	"encoding/base64"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestPreviewCommandsAreReadByShells: a shell reads each value of a previewed command as it was given.
func TestPreviewCommandsAreReadByShells(t *testing.T) {
	b, ctx := troubled(t), t.Context()
	const id, keyID = `it's "$(echo run)" > x; #1`, "k 2 `x`"
	const address = "https://box.example/?a=1&b=$(x)"
	key := base64.StdEncoding.EncodeToString(ed25519Key(3))
	reads := func(p Preview, err error, want ...string) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(ctx, "sh", "-c", `parley() { printf '%s\0' "$@"; }; `+p.Command).Output()
		if got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s is read as %q, want %q; %v", p.Command, got, want, err)
		}
	}
	p, err := b.client.PreviewLink(ctx, "box", NewIdentity{Protocol: "agh", ID: id, URL: address, PublicKey: key,
		KeyID: keyID})
	reads(p, err, "agents", "link", "box", "--protocol", "agh", "--id", id, "--url", address, "--key", key, "--key-id",
		keyID)
	p, err = b.client.PreviewEnroll(ctx, Enrolment{Agent: "down", NewIdentity: NewIdentity{Protocol: "agh",
		PublicKey: key, KeyID: keyID}})
	reads(p, err, "keys", "enroll", "down", "--protocol", "agh", "--key", key, "--key-id", keyID)
	p, err = b.client.PreviewExpose(ctx, "weather", []string{"agh", "asp"})
	reads(p, err, "agents", "expose", "weather", "agh", "asp")
}
