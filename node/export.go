package node

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/keyring"
)

// ExportAgents writes agents as they would stand in a configuration file. Agents that are
// in the file of their hub already, or belong to its program, are left out. The sections
// of guests are comments, unless guests is set: the file would vouch for them. No secret
// is written; a comment says where a file with one is needed.
func ExportAgents(list []admin.Agent, keys []keyring.Enrolled, guests bool) []byte {
	var out bytes.Buffer
	for i := range list {
		a := &list[i]
		if a.Source == directory.FromConfig || a.Source == directory.FromCode {
			continue
		}
		t := AgentText{Keys: slices.DeleteFunc(slices.Clone(keys),
			func(k keyring.Enrolled) bool { return k.Agent != a.Name })}
		t.agent(a)
		if out.Len() > 0 {
			out.WriteByte('\n')
		}
		if a.Source != directory.FromGuest || guests {
			out.Write(t.text.Bytes())
			continue
		}
		out.WriteString("# A guest, for whom nobody vouches. In the file you vouch for it.\n")
		for line := range strings.Lines(t.text.String()) {
			out.WriteString("# " + line)
		}
	}
	return out.Bytes()
}

// An AgentText is the section of one agent in a configuration file.
type AgentText struct {
	Keys []keyring.Enrolled // of the agent
	text bytes.Buffer
}

func (t *AgentText) agent(a *admin.Agent) {
	fmt.Fprintf(&t.text, "[agents.%s]\n", tomlKey(a.Name))
	t.Line("title", a.Title)
	t.Line("description", a.Description)
	t.Line("expose", a.Exposed)
	t.Line("record", string(a.Record))
	t.Line("inbox", a.Inbox)
	if d := a.Delivery; d != nil {
		if d.Own.Tries != nil {
			t.Line("delivery.tries", d.Tries)
		}
		if d.Own.Patience != nil {
			t.Line("delivery.patience", d.Patience)
		}
		if d.Own.Ordered != nil {
			t.text.WriteString("delivery.ordered = false\n")
		}
	}
	if a.Paused {
		t.Note("It is paused: parley agents pause %s", a.Name)
	}
	var done []string
	for _, i := range a.Identities {
		p := slices.IndexFunc(Protocols, func(p *Protocol) bool { return p.Name == i.Protocol })
		switch {
		case i.StandIn || i.Protocol == admin.Inbox(a.Name).Protocol:
		case p < 0 || Protocols[p].Export == nil:
			t.Note("Its identity %s in %s has no place in the file.", i.ID, i.Protocol)
		case slices.Contains(done, i.Protocol):
			t.Note("A further identity in %s has no place in the file: parley agents link %s --protocol %[1]s --id %[3]s",
				i.Protocol, a.Name, i.ID)
		default:
			done = append(done, i.Protocol)
			Protocols[p].Export(t, a, i)
		}
	}
	if a.Learned != "" {
		return // it declares its skills itself
	}
	for _, k := range a.Skills {
		fmt.Fprintf(&t.text, "[[agents.%s.skills]]\n", tomlKey(a.Name))
		t.Line("id", k.ID)
		t.Line("name", k.Name)
		t.Line("description", k.Description)
		t.Line("input", string(k.Input))
		t.Line("output", string(k.Output))
		t.Line("modes", k.Modes)
		t.Line("access", string(k.Access))
		t.Line("peers", k.Peers)
		t.Line("default", k.Default)
	}
}

// Line writes a key, whose name may have dots, unless its value is the zero value.
func (t *AgentText) Line(key string, value any) {
	b, err := toml.Marshal(map[string]any{"k": value})
	v := strings.TrimPrefix(string(b), "k = ")
	if err != nil || slices.Contains([]string{"''\n", "[]\n", "false\n"}, v) {
		return // only values of the types above are written, which all can be encoded
	}
	t.text.WriteString(key + " = " + v)
}

// Note writes a comment of one line.
func (t *AgentText) Note(format string, args ...any) { fmt.Fprintf(&t.text, "# "+format+"\n", args...) }

// tomlKey quotes a name where TOML asks for it.
func tomlKey(name string) string {
	if strings.ContainsAny(name, "/.") {
		return `"` + name + `"`
	}
	return name
}
