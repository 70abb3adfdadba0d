package uagents

import (
	"context"
	"strings"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/policy"
	protocol "github.com/parley-hub/parley/uagents"
)

// itemOrigin is the origin of an envelope in a mailbox.
type itemOrigin struct {
	message parley.ID // of the hub; zero: another agent's envelope
	guest   bool      // the sender is a guest
	source  string    // of the guest; see policy.Source
}

func (b *Binding) originOf(m *parley.Message) itemOrigin {
	if m == nil {
		return itemOrigin{}
	}
	from := itemOrigin{message: m.ID, guest: m.Origin.Protocol == Protocol && b.c.Hub.Guest(m.From)}
	if from.guest {
		from.source = policy.Source(m.Origin.Address)
	}
	return from
}

// Forget implements hub.Forgetter: it removes from mailboxes the envelopes from the
// agent, for it, and of the erased messages. Their replay keys stay until they expire, so
// that the envelopes are not put there again. Questions to the sender of an erased request go too.
func (b *Binding) Forget(ctx context.Context, f hub.Forgetting) (n int, err error) {
	rows, err := b.mailbox.itemRows.List(ctx, prefixItem)
	if err != nil {
		return 0, err
	}
	for _, row := range rows {
		if row.Value.Envelope == nil || !b.about(&f, &row.Value) {
			continue
		}
		address, _, _ := strings.Cut(strings.TrimPrefix(row.Key, prefixItem), "/")
		taken, err := b.mailbox.Delete(ctx, address, row.Value.UUID)
		if err != nil {
			return n, err
		}
		if taken {
			n++
		}
	}
	asked, err := b.questions.Sweep(ctx, "", func(r *journal.Row[question]) journal.Fate {
		if f.Message(r.Value.Request) {
			return journal.Remove
		}
		return journal.Keep
	})
	return n + asked, err
}

// about reports whether Forget removes an item.
func (b *Binding) about(f *hub.Forgetting, s *storedItem) bool {
	if !s.Message.IsZero() && f.Message(s.Message) {
		return true
	}
	e, err := protocol.Decode(s.Envelope)
	if err != nil {
		return false
	}
	is := func(address string) bool {
		name, _ := b.nameAt(address)
		return name == f.Agent || f.Is(Protocol, address)
	}
	if f.Agent != "" {
		return is(e.Sender) || is(e.Target)
	}
	// An envelope of another uAgent is in the conversation of its session.
	to, _ := b.nameAt(e.Target)
	from, _ := b.nameAt(e.Sender)
	for _, from := range []string{from, directory.GuestName(Protocol, e.Sender, ""),
		directory.GuestName(Protocol, e.Sender, "unsigned")} {
		if from != "" && b.c.Hub.Conversation(Protocol, scope(e.Target), e.Session, from, to) == f.Conversation {
			return true
		}
	}
	return false
}
