package admin

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/parley-hub/parley"
)

// TestCurlSendsTheSame: the command, run by a shell, sends what Send would. The token is not in it.
func TestCurlSendsTheSame(t *testing.T) {
	for _, program := range []string{"bash", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed", program)
		}
	}
	b := open(t, nil)
	text := "it's $HOME, `two`\nlines, \u202eturned and \x1b[31mred"
	command, err := b.client.Curl(Send{To: "weather", Kind: parley.Notice, Text: &text, IdempotencyKey: "a 'key'"}, false)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(command, rootToken) || !strings.Contains(command, "$PARLEY_TOKEN") {
		t.Errorf("%s", command)
	}
	c := exec.CommandContext(t.Context(), "bash", "-c", command)
	c.Env = append(c.Environ(), "PARLEY_TOKEN="+rootToken, "no_proxy=*")
	out, err := c.Output()
	if err != nil || !strings.Contains(string(out), `"id":`) {
		t.Fatalf("%s\n%s %v", command, out, err)
	}
	id := strings.Split(string(out), `"`)[3]
	m, err := b.client.Message(t.Context(), id, false)
	if err != nil || m.Kind != parley.Notice || m.To != "weather" || *m.Content.Parts[0].Text != text {
		t.Errorf("%s: %+v, %v", out, m, err)
	}
}
