package console_test

import (
	"html"
	"net/url"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
)

// TestCommandsAreReadByShells: a shell reads each value in a command that a page shows as the reader gave it.
func TestCommandsAreReadByShells(t *testing.T) {
	b := hall(t)
	w := b.entered(b.token("root", admin.Administer))
	const odd = `it's "all" of $(x); & <y> #1`
	shown := regexp.MustCompile(`(?s)<(?:code|pre)[^>]*>\s*(parley [^<]*)<`)
	reads := func(page string, want ...string) {
		t.Helper()
		for _, m := range shown.FindAllStringSubmatch(page, -1) {
			command := html.UnescapeString(m[1])
			if !strings.HasPrefix(command, "parley "+want[0]+" "+want[1]) {
				continue
			}
			out, err := exec.CommandContext(t.Context(), "sh", "-c",
				`parley() { printf '%s\0' "$@"; }; `+command).Output()
			if got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"); err == nil && slices.Equal(got, want) {
				return
			}
			t.Logf("%s is read as %q", command, out)
		}
		t.Errorf("no command is read as %q", want)
	}
	const address = "https://a.example/?x=1&y=$(z)"
	link := url.Values{"ask": {"link"}, "in": {"agh"}, "id": {odd}, "url": {address}}
	reads(w.page("/console/agents/acme/buyer?"+link.Encode()), "agents", "link", "acme/buyer", "--protocol", "agh", "--id",
		odd, "--url", address)
	form := url.Values{"protocol": {"samvad"}, "name": {"new one"}, "samvad": {address}, "key-id": {odd},
		"expose": {"asp, $(x)"}}
	reads(w.page("/console/agents/connect?"+form.Encode()), "agents", "add", "new one", "--samvad", address,
		"--key-id", odd, "--expose", "asp,$(x)", "--wait", "2m")
	if _, err := b.node.Admin().Connect(t.Context(), admin.Actor{Name: "test", Role: admin.Administer}, admin.NewAgent{
		Name: "far", Identities: []admin.NewIdentity{{Protocol: "samvad", ID: "agent://far.example", URL: address,
			PublicKey: key2}}}); err != nil {
		t.Fatal(err)
	}
	reads(w.page("/console/agents/connect/far"), "agents", "add", "far", "--samvad", address, "--wait", "2m")

	id := b.bury("crew/planner", "box", "lost", dies(parley.Unavailable, parley.NoAnswer, "away"))
	drop := url.Values{"drop": {"1"}, "to": {"box"}, "why": {odd}}
	reads(w.page("/console/undelivered?"+drop.Encode()), "dead", "drop", "--to", "box", "--expect", "1", "--reason", odd)
	m, err := b.api.Message(t.Context(), id.String(), false)
	if err != nil {
		t.Fatal(err)
	}
	forget := url.Values{"ask": {"forget"}, "why": {odd}}
	c := m.Conversation.String()
	reads(w.page("/console/conversations/"+c+"?"+forget.Encode()), "forget", "--conversation", c[:8], "--reason", odd)
}
