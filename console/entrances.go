package console

import (
	"cmp"
	"slices"
	"strings"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/readable"
)

// This file names the commands by which a message enters by a protocol. The console itself sends by the API alone: an
// envelope that the hub signed in an agent's name and sent to itself would be recorded as the agent's own, proved by a
// key that the agent never had. The owner of a key signs with parley send --protocol.

// An Entrance is the command that sends the message of the form to a stand-in of the hub.
type Entrance struct{ Protocol, Command string }

// entrances lists the protocols in which the hub stands in for an agent.
func entrances(a *admin.Agent, info *admin.Info, f *composition) (out []Entrance) {
	hub := cmp.Or(info.PublicURL, info.Addresses["http"])
	for _, protocol := range spoken {
		at := a.Addresses[protocol]
		if at == "" || slices.Contains(a.Native, protocol) {
			continue
		}
		flags := ""
		add := func(name, value string) { flags += " --" + name + " " + readable.ShellWord(value) }
		skill := f.Skill
		switch protocol {
		case "samvad":
			add("url", at)
			flags += " --key me.json --as agent://me"
			skill = cmp.Or(skill, defaultSkill(a))
		case "uagents":
			add("url", hub)
			add("to", at)
			flags += " --key me.key"
		case "a2e":
			add("url", at)
			flags += " --key me.token"
			skill = a.Name + "." + cmp.Or(skill, defaultSkill(a)) // the tool
		case "agh":
			where := strings.Split(strings.Fields(at)[0], "/")
			if len(where) != 3 {
				continue
			}
			add("url", "nats://"+strings.TrimPrefix(info.Addresses["agh"], "nats://"))
			flags += " --key me.token"
			add("as", where[0]+"/"+where[1]+"/me")
			add("to", where[2])
		case "asp":
			add("url", hub)
			flags += " --key me.json"
			add("to", at)
		default: // a2a, mcp
			add("url", at)
			flags += " --token-file me.token"
		}
		if skill != "" {
			add("skill", skill)
		}
		out = append(out, Entrance{protocol, withContent("parley send --protocol "+protocol+flags, f.Content)})
	}
	return out
}

// defaultSkill is the skill of an agent that takes messages which name none, else its first one.
func defaultSkill(a *admin.Agent) string {
	id := "SKILL"
	for i, s := range a.Skills {
		if i == 0 || s.Default {
			id = s.ID
		}
	}
	return id
}

// withContent is a command with the content as its argument.
func withContent(command, content string) string {
	switch {
	case content == "":
		return command
	case len(content) > commandLength:
		return command + " @content.json"
	case content[0] == '@' || content[0] == '-': // a file, or a flag
		return "printf %s " + readable.ShellWord(content) + " | " + command + " -"
	}
	return command + " " + readable.ShellWord(content)
}
