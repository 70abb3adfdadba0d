package console

import (
	"fmt"
	"strings"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/readable"
)

// This file erases the content of a conversation: a dialog counts the erased and the remaining parts.

// A ForgetQuestion is the dialog.
type ForgetQuestion struct {
	admin.Forgotten
	Digits  string // to type
	Why     string
	Changed bool // it is not what the operator read before
}

// Nothing reports whether there is nothing to erase.
func (f *ForgetQuestion) Nothing() bool { return f.Erased == 0 && f.Values == 0 }

// Seen is what the operator read.
func (f *ForgetQuestion) Seen() string { return seenOfForget(&f.Forgotten) }

// Command does the same.
func (f *ForgetQuestion) Command() string {
	if f.Why == "" {
		return "parley forget --conversation " + f.Digits + " --reason …"
	}
	return "parley forget --conversation " + f.Digits + " --reason " + readable.ShellWord(f.Why)
}

func seenOfForget(f *admin.Forgotten) string {
	return fmt.Sprint(f.Erased, f.Values, f.Undelivered, f.Dead, f.Ongoing)
}

// askForget counts, if the address asks for the dialog.
func (c *Console) askForget(q *request, v *ConversationView) error {
	u := q.r.URL.Query()
	if u.Get("ask") != "forget" || !q.by.May(admin.Administer) {
		return nil
	}
	id := v.Info.ID.String()
	r, err := c.admin.Forget(q.r.Context(), q.by, admin.Forget{Conversation: id, DryRun: true})
	if err != nil {
		return err
	}
	v.Forget = &ForgetQuestion{Forgotten: r, Digits: id[:8], Why: cut(u.Get("why"), maxParameter),
		Changed: u.Get("changed") != ""}
	return nil
}

// forgetConversation erases the content of a conversation whose digits were typed. If more or less would go than the
// operator read, it asks again.
func (c *Console) forgetConversation(q *request) error {
	f := admin.Forget{Conversation: q.r.PathValue("id"), Reason: strings.TrimSpace(q.r.PostFormValue("why")), DryRun: true}
	r, err := c.admin.Forget(q.r.Context(), q.by, f)
	if err != nil {
		return err
	}
	v := &ConversationView{}
	if v.Info.ID, err = parley.ParseID(r.Name); err != nil {
		return err
	}
	if typed := strings.TrimSpace(q.r.PostFormValue("typed")); typed != r.Name[:8] {
		return parley.Refuse(parley.Malformed, "%.40q are not the first 8 digits of the conversation, %s: nothing was "+
			"erased; go back and type them", typed, r.Name[:8])
	}
	if q.r.PostFormValue("seen") != seenOfForget(&r) {
		q.see(v.Link("ask", "forget", "changed", "1", "why", f.Reason) + "#forget")
		return nil
	}
	f.DryRun = false
	if _, err := c.admin.Forget(q.r.Context(), q.by, f); err != nil {
		return err
	}
	q.see(v.Link())
	return nil
}
