package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/hub"
)

// An agent and a rule are shown with their lines in the file, and after a reload with the new ones. The stand-ins of an
// agent tell what their callers lose.
func TestAgentsKnowTheirLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "parley.toml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const rest = `
[[allow]]
from = "acme/**"
to = ["box"]

[agents.box]
inbox = true
expose = ["samvad"]
`
	write(rest)
	c, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	c.Data, c.AdminAPI, c.Durability = filepath.Join(t.TempDir(), "data"), true, "memory"
	c.Read = func() (Config, error) {
		r, err := Load(path)
		r.Data, r.AdminAPI, r.Durability = c.Data, c.AdminAPI, c.Durability
		return r, err
	}
	n := running(t, c)
	check := func(agent, rule int) {
		t.Helper()
		v, err := n.Admin().Agent(t.Context(), everything, "box", 0)
		if err != nil || v.Origin.Line != agent || v.Origin.File != path || len(v.Callers.Rules) != 1 ||
			v.Callers.Rules[0].Line != rule {
			t.Errorf("%+v, %+v, %v; want the lines %d and %d", v.Origin, v.Callers, err, agent, rule)
		}
	}
	check(6, 2)
	write("# one\n# two\n" + rest)
	if out, err := n.Reload(t.Context()); err != nil || len(out.Changed) > 0 {
		t.Fatalf("%+v, %v", out, err)
	}
	check(8, 4)

	v, err := n.Admin().Agent(t.Context(), everything, "box", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range v.Bindings {
		switch b.Protocol {
		case "api":
			if b.State != hub.NoReader || b.Since.IsZero() {
				t.Errorf("the inbox: %+v", b)
			}
		case "samvad":
			if !b.StandIn || !strings.HasSuffix(b.ID, "/agents/box") ||
				!strings.Contains(strings.Join(b.Losses, ", "), "Event: working") {
				t.Errorf("the stand-in: %+v", b)
			}
		default:
			t.Errorf("%+v", b)
		}
	}
	err = n.Admin().RemoveAgent(t.Context(), everything, "box")
	if want := "agent box is configured in parley.toml, line 8: edit the file, then parley config reload"; err == nil ||
		parley.AsError(err).Text != want {
		t.Errorf("%v; want %s", err, want)
	}
	p, err := n.Admin().PreviewExpose(t.Context(), everything, "box", []string{"all"})
	if err == nil || len(p.Text) > 0 {
		t.Errorf("%+v, %v: the file says where it is exposed", p, err)
	}
	if _, err := n.Admin().AddAgent(t.Context(), everything, admin.NewAgent{Name: "desk", Inbox: true}); err != nil {
		t.Fatal(err)
	}
	p, err = n.Admin().PreviewExpose(t.Context(), everything, "desk", []string{"asp", "uagents"})
	if text := strings.Join(p.Text, "\n"); err != nil || !strings.Contains(text, "reachable in asp as agent://") ||
		!strings.Contains(text, "reachable in uagents as an address that its stand-in gets then; callers lose: ") {
		t.Errorf("%s, %v", text, err)
	}
	after, err := n.Admin().Agent(t.Context(), everything, "desk", 0)
	if err != nil || len(after.Identities) != 1 || len(n.Keys().List()) > 0 && n.Keys().List()[0].Owner == "desk" {
		t.Errorf("the preview made a stand-in: %+v, %v", after.Identities, err)
	}
}
