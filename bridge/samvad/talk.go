package samvad

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	protocol "github.com/parley-hub/parley/samvad"
)

// talk is the skill of hosted agents of which no skill is known: every agent
// can be talked to.
const talk = "talk"

// talks reports whether an agent is hosted with the skill talk: it speaks another
// protocol, and nobody declared what it can do. It stays when the agent itself
// tells its skills, so that callers need not know whether it has done so yet.
func talks(e *directory.Entry) bool {
	return (len(e.Skills) == 0 || e.Learned != "" && !slices.ContainsFunc(e.Skills, isTalk)) &&
		slices.ContainsFunc(e.Native(), func(p string) bool { return p != Protocol }) && !slices.Contains(e.Native(), Protocol)
}

func isTalk(s parley.SkillSpec) bool { return s.ID == talk }

// talkSkill is that skill on a card.
func talkSkill() protocol.Skill {
	return protocol.Skill{ID: talk, Name: "Talk", Description: "Takes a message and answers it.",
		InputSchema:  json.RawMessage(`{"type":"object","properties":{"text":{"type":"string"}}}`),
		OutputSchema: json.RawMessage(`{"type":"object"}`),
		Modes:        []protocol.Mode{protocol.ModeSync, protocol.ModeAsync, protocol.ModeStream}, Trust: protocol.TrustPublic}
}

// plain takes the skill out of a message where it only says: this is talk.
func (b *Binding) plain(m *parley.Message) {
	if m.Skill != talk {
		return
	}
	if e, ok := b.c.Hub.Directory().Agent(m.To); ok && talks(e) {
		m.Skill = ""
	}
}

// defaultSkill is the skill elsewhere that takes talk: the only one on the
// agent's card, or the one that is called so.
func (b *Binding) defaultSkill(card *protocol.Card) string {
	if card == nil {
		return ""
	}
	if card.Skill(talk) != nil || len(card.Skills) != 1 {
		return talk
	}
	return card.Skills[0].ID
}

// cardOf gives the card under which an agent is hosted, with the skills of its
// own card elsewhere; nil where none is known.
func (b *Binding) cardOf(ctx context.Context, name string) *protocol.Card {
	if a := b.agent(ctx, name); a != nil {
		return a.Card
	}
	return nil
}
