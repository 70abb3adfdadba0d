package a2e

import (
	"context"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"

	protocol "github.com/parley-hub/parley/a2e"
)

// Forget implements hub.Forgetter. Of an agent go its memories, with
// their ids, its subagents that do not work, what its inbox is owed and the
// frames that its sessions have not brought. Of others go what is about the
// erased messages.
func (b *Binding) Forget(ctx context.Context, f hub.Forgetting) (n int, err error) {
	var errs []error
	for _, forget := range []func(context.Context, *hub.Forgetting) (int, error){b.memory.forget, b.agents.forget, b.inboxes.forget, b.store.forget} {
		k, err := forget(ctx, &f)
		n += k
		errs = append(errs, err)
	}
	return n, errors.Join(errs...)
}

// collect lists the values of a prefix: what is changed must not be while it
// is gone through.
func collect(ctx context.Context, s journal.State, prefix string) (out []journal.Value, err error) {
	for v, err := range s.Range(ctx, prefix) {
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

// forget drops all that an agent has stored.
func (m *memory) forget(ctx context.Context, f *hub.Forgetting) (n int, err error) {
	if f.Agent == "" {
		return 0, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	list, err := collect(ctx, m.s, "e/")
	if err != nil {
		return 0, err
	}
	for _, v := range list {
		var e stored
		if json.Unmarshal(v.Data, &e) != nil || e.Owner != f.Agent {
			continue
		}
		if err := m.remove(ctx, map[string]journal.Value{}, v); err != nil {
			return n, err
		}
		n++
	}
	// The names of namespaces and scopes are the agent's words too.
	if list, err = collect(ctx, m.s, "h/"+digest(f.Agent)+"/"); err != nil {
		return n, err
	}
	for _, v := range list {
		if err := m.s.Delete(ctx, v.Key, 0); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// forget drops an agent's subagents, and what others have of what they did.
// Those at work stay.
func (a *subagents) forget(ctx context.Context, f *hub.Forgetting) (n int, err error) {
	list, err := collect(ctx, a.s, "")
	if err != nil {
		return 0, err
	}
	for _, v := range list {
		var s subagent
		if json.Unmarshal(v.Data, &s) != nil || s.Status == protocol.StatusRunning && !f.Message(s.Request) {
			continue
		}
		own := f.Agent != "" && strings.HasPrefix(v.Key, ownerPrefix(f.Agent))
		about := f.Agent != "" && s.Agent == f.Agent || !s.Request.IsZero() && f.Message(s.Request) || !f.Conversation.IsZero() && s.Conversation == f.Conversation
		switch {
		case own:
			err = a.s.Delete(ctx, v.Key, v.Revision)
		case about && (s.Task != "" || len(s.Result) > 0 || s.Error != ""):
			s.Task, s.Result, s.Error = "", nil, ""
			var data []byte
			if data, err = json.Marshal(s); err == nil {
				_, err = a.s.Update(ctx, v.Key, data, v.Until, v.Revision)
			}
		default:
			continue
		}
		if errors.Is(err, journal.ErrConflict) {
			err = nil // it works again: that is of later
			continue
		}
		if err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// forget drops what is kept for agents.
func (x *inboxes) forget(ctx context.Context, f *hub.Forgetting) (n int, err error) {
	list, err := collect(ctx, x.kept, "owed/")
	if err != nil {
		return 0, err
	}
	for _, v := range list {
		var m arrival
		known := json.Unmarshal(readKept(v).Arrival, &m) == nil
		if !(f.Agent != "" && strings.HasPrefix(v.Key, keptPrefix(f.Agent)) ||
			known && (f.Message(m.ID) || f.Agent != "" && m.From == f.Agent || !f.Conversation.IsZero() && m.Conversation == f.Conversation)) {
			continue
		}
		if err := x.kept.Delete(ctx, v.Key, 0); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// forget takes the content out of frames that sessions have not brought to
// their agents. The frames stay, for they are numbered.
func (t *store) forget(ctx context.Context, f *hub.Forgetting) (n int, err error) {
	for range 8 { // sessions may be taken up meanwhile
		k, again, err := t.forgetOnce(ctx, f)
		if n += k; err != nil || !again {
			return n, err
		}
	}
	return n, protocol.ErrMoved
}

func (t *store) forgetOnce(ctx context.Context, f *hub.Forgetting) (n int, again bool, err error) {
	list, err := collect(ctx, t.s, "")
	if err != nil {
		return 0, false, err
	}
	t.mu.Lock()
	held := make(map[string]*kept, len(t.sessions))
	for _, k := range t.sessions {
		held[k.key] = k
	}
	t.mu.Unlock()
	for key, k := range held {
		k.mu.Lock()
		if k.lost != nil { // another node has it
			delete(held, key)
		}
		if emptied := k.rec.empty(f); emptied > 0 && k.lost == nil {
			n += emptied
			err = t.save(ctx, k)
		}
		k.mu.Unlock()
		if err != nil && !errors.Is(err, protocol.ErrMoved) {
			return n, false, err
		}
	}
	forgotten := map[string]bool{} // sessions
	for _, v := range list {
		var rec saved
		if f.Agent != "" && json.Unmarshal(v.Data, &rec) == nil && rec.Agent == f.Agent {
			forgotten[v.Key] = true
		}
		rec = saved{}
		if held[v.Key] != nil || json.Unmarshal(v.Data, &rec) != nil {
			continue
		}
		emptied := rec.empty(f)
		if emptied == 0 {
			continue
		}
		b, err := json.Marshal(rec)
		if err == nil {
			_, err = t.s.Update(ctx, v.Key, b, v.Until, v.Revision)
		}
		if errors.Is(err, journal.ErrConflict) {
			again = true
			continue
		}
		if err != nil {
			return n, false, err
		}
		n += emptied
	}
	passed, err := collect(ctx, t.relays, "")
	if err != nil {
		return n, again, err
	}
	for _, v := range passed {
		if key, _, _ := strings.Cut(v.Key, "/"); !forgotten[key] && !isAbout(string(v.Data), f) {
			continue
		}
		if err := t.relays.Delete(ctx, v.Key, 0); err != nil {
			return n, again, err
		}
		n++
	}
	return n, again, nil
}

// frameIDs finds the ids of messages in a frame: what comes of the hub's says
// which message it is.
var frameIDs = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}`)

// isAbout reports whether a frame names an erased message.
func isAbout(frame string, f *hub.Forgetting) bool {
	return slices.ContainsFunc(frameIDs.FindAllString(frame, -1), func(s string) bool {
		id, err := parley.ParseID(s)
		return err == nil && (f.Message(id) || id == f.Conversation && !id.IsZero())
	})
}

// empty takes the content out of frames, and tells of how many.
func (r *saved) empty(f *hub.Forgetting) (n int) {
	for i := range r.Frames {
		frame := &r.Frames[i]
		if !(f.Agent != "" && r.Agent == f.Agent) && !isAbout(frame.Line, f) {
			continue
		}
		if line, changed := emptied(frame.Line); changed {
			frame.Line = line
			n++
		}
	}
	return n
}

// emptied gives a frame without what it says.
func emptied(line string) (string, bool) {
	const (
		answer = `{"success":false,"error":"the content was erased from the hub"}`
		other  = `{}`
	)
	var v map[string]json.RawMessage
	var kind string
	if json.Unmarshal([]byte(line), &v) != nil || v["data"] == nil || json.Unmarshal(v["type"], &kind) != nil {
		return line, false
	}
	data := other
	if strings.HasSuffix(kind, "/resp") {
		data = answer
	}
	if string(v["data"]) == data {
		return line, false
	}
	v["data"] = json.RawMessage(data)
	b, err := json.Marshal(v)
	if err != nil {
		return line, false
	}
	return string(b) + line[len(strings.TrimRight(line, "\n")):], true
}
