package admin

import (
	"cmp"
	"context"
	"encoding/base64"
	"io"
	"strconv"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// Forget chooses the content that is erased: exactly one of Agent and
// Conversation is set.
type Forget struct {
	Agent        string `json:"agent,omitzero"`        // all messages from it and to it
	Conversation string `json:"conversation,omitzero"` // its id, or at least the first 8 digits of it
	Reason       string `json:"reason,omitzero"`       // for the audit trail and the record of the erasure
	DryRun       bool   `json:"dryRun,omitzero"`       // only count
}

// Forgotten is the result of [Forget].
type Forgotten struct {
	Erasure     uint64    `json:"erasure,omitzero"` // its number
	What        string    `json:"what"`             // "agent" or "conversation"
	Name        string    `json:"name"`
	Erased      uint64    `json:"erased"` // messages whose content is gone
	Values      uint64    `json:"values"` // erased state of protocols: task results, memories, mailboxes
	Undelivered uint64    `json:"undelivered"`
	Dead        uint64    `json:"dead"`    // dead letters, not erased
	Ongoing     uint64    `json:"ongoing"` // messages of open sessions, not erased
	Ended       time.Time `json:"ended,omitzero"`
	DryRun      bool      `json:"dryRun"`
}

// Kept counts the messages that were not erased because they are still needed.
func (f *Forgotten) Kept() uint64 { return f.Undelivered + f.Dead + f.Ongoing }

// Erasure is the reason, the time and the author of an erasure of content.
type Erasure struct {
	Number uint64    `json:"number"`
	What   string    `json:"what"` // "agent", "conversation" or "retention"
	Name   string    `json:"name,omitzero"`
	By     string    `json:"by"`
	Reason string    `json:"reason,omitzero"`
	Begun  time.Time `json:"begun"`
	Ended  time.Time `json:"ended,omitzero"`
	Erased uint64    `json:"erased"`
	Kept   uint64    `json:"kept"`
}

func viewErasure(e *journal.Erasure) *Erasure {
	return &Erasure{Number: e.Number, What: e.What, Name: e.Name, By: e.By, Reason: e.Reason, Begun: e.Begun,
		Ended: e.Ended, Erased: e.Records, Kept: e.Kept}
}

// erasure gives the erasure of a record's content, nil if there was none.
func (a *Admin) erasure(ctx context.Context, r *journal.Record) *Erasure {
	if r.Erased == nil {
		return nil
	}
	e, err := a.c.Hub.Journal().Erasure(ctx, r.Erased.Number)
	if err != nil {
		return &Erasure{Number: r.Erased.Number} // the record of the erasure is gone
	}
	return viewErasure(&e)
}

// Forget erases the content of an agent's messages, or of a conversation's. The
// records stay, with sender, recipient and time, and name the erasure.
func (a *Admin) Forget(ctx context.Context, by Actor, f Forget) (Forgotten, error) {
	if err := cmp.Or(by.may(Administer), a.resolveNames(&f.Agent)); err != nil {
		return Forgotten{}, err
	}
	what, name := "agent", f.Agent
	switch {
	case (f.Agent == "") == (f.Conversation == ""):
		return Forgotten{}, parley.Refuse(parley.Malformed, "say which agent, or which conversation")
	case len(f.Reason) > 512:
		return Forgotten{}, parley.Refuse(parley.TooLarge, "a reason has at most 512 bytes")
	case f.Agent != "":
		if err := parley.CheckName(f.Agent); err != nil {
			return Forgotten{}, err
		}
	default:
		id, err := a.conversationID(ctx, by, f.Conversation)
		if err != nil {
			return Forgotten{}, err
		}
		what, name = "conversation", id.String()
	}
	if f.DryRun {
		return a.c.Forget(ctx, what, name, by.Name, f.Reason, true)
	}
	return actFor(a, ctx, by, Administer, "forget."+what, name, f.Reason, func(ctx context.Context) (Forgotten, error) {
		return a.c.Forget(ctx, what, name, by.Name, f.Reason, false)
	})
}

// Erasures lists the erasures, each with its reason and author, the oldest first.
func (a *Admin) Erasures(ctx context.Context, by Actor) ([]Erasure, error) {
	if err := by.may(Observe); err != nil {
		return nil, err
	}
	list, err := a.c.Hub.Journal().Erasures(ctx)
	out := []Erasure{}
	for i := range list {
		out = append(out, *viewErasure(&list[i]))
	}
	return out, err
}

// Backup writes a backup of the hub: journal, keys, tokens. The hub keeps working
// meanwhile.
func (a *Admin) Backup(ctx context.Context, by Actor, w io.Writer) (*journal.BackupSummary, error) {
	return actFor(a, ctx, by, Administer, "backup", "", "", func(ctx context.Context) (*journal.BackupSummary, error) {
		return a.c.Backup(ctx, w)
	})
}

// ExportErased describes the erasure of a record's content in an export.
type ExportErased struct {
	Erasure uint64    `json:"erasure"`
	What    string    `json:"what,omitzero"`
	Name    string    `json:"name,omitzero"`
	By      string    `json:"by,omitzero"`
	Reason  string    `json:"reason,omitzero"`
	Time    time.Time `json:"time,omitzero"`
}

// mark notes the erasure in a line, with the size and digests of the erased
// content. A digest of the empty content would be false.
func (v *ExportRecord) mark(r *journal.Record, e *Erasure) {
	if e == nil || v.Message == nil {
		return
	}
	v.Erased = &ExportErased{Erasure: e.Number, What: e.What, Name: e.Name, By: e.By, Reason: e.Reason, Time: e.Begun}
	v.Message.Origin.RawSize = int(r.Erased.Size)
	if len(r.Erased.Digest) > 0 {
		v.Message.Origin.RawDigest = "sha-256=:" + base64.StdEncoding.EncodeToString(r.Erased.Digest) + ":"
	}
	for i := range v.Message.Parts {
		v.Message.Parts[i].Digest = r.Message.Parts[i].Digest
	}
}

// String is a sentence for people.
func (e *ExportErased) String() string {
	s := "erased"
	if !e.Time.IsZero() {
		s += " " + e.Time.UTC().Format(time.RFC3339)
	}
	if e.By != "" {
		s += " by " + e.By
	}
	s += " (erasure " + strconv.FormatUint(e.Erasure, 10)
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	return s + ")"
}
