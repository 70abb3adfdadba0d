package a2e

import (
	"context"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"

	protocol "github.com/parley-hub/parley/a2e"
)

// Forget implements hub.Forgetter. It removes an agent's memories with their ids, its
// idle subagents, its inbox, and the content of its unread frames. From the state of
// other agents it removes the entries about the erased messages.
func (b *Binding) Forget(ctx context.Context, f hub.Forgetting) (n int, err error) {
	var errs []error
	for _, forget := range []func(context.Context, *hub.Forgetting) (int, error){b.memory.forget, b.subagents.forget,
		b.inboxes.forget, b.sessions.forget} {
		k, err := forget(ctx, &f)
		n += k
		errs = append(errs, err)
	}
	return n, errors.Join(errs...)
}

// forget drops all memories of an agent.
func (m *memory) forget(ctx context.Context, f *hub.Forgetting) (n int, err error) {
	if f.Agent == "" {
		return 0, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err = m.entries.Sweep(ctx, "e/", func(r *journal.Row[stored]) journal.Fate {
		if r.Value.Owner != f.Agent {
			return journal.Keep
		}
		return journal.Remove
	})
	if err != nil {
		return n, err
	}
	m.count(f.Agent, -m.used[f.Agent])
	// Names of namespaces and scopes come from the agent too.
	k, err := m.handles.Sweep(ctx, "h/"+digest(f.Agent)+"/",
		func(*journal.Row[memoryHandle]) journal.Fate { return journal.Remove })
	return n + k, err
}

// forget drops an agent's subagents, and the results that other agents have of them.
// Working subagents stay.
func (a *subagents) forget(ctx context.Context, f *hub.Forgetting) (n int, err error) {
	return a.rows.Sweep(ctx, "", func(row *journal.Row[subagent]) journal.Fate {
		s := &row.Value
		if s.Status == protocol.StatusRunning && !f.Message(s.Request) {
			return journal.Keep
		}
		own := f.Agent != "" && strings.HasPrefix(row.Key, ownerPrefix(f.Agent))
		about := f.Agent != "" && s.Agent == f.Agent || !s.Request.IsZero() && f.Message(s.Request) ||
			!f.Conversation.IsZero() && s.Conversation == f.Conversation
		switch {
		case own:
			return journal.Remove
		case about && (s.Task != "" || len(s.Result) > 0 || s.Error != ""):
			s.Task, s.Result, s.Error = "", nil, ""
			return journal.Write
		}
		return journal.Keep
	})
}

// forget drops messages of inboxes.
func (x *inboxes) forget(ctx context.Context, f *hub.Forgetting) (n int, err error) {
	return x.messages.Sweep(ctx, "owed/", func(row *journal.Row[inboxMessage]) journal.Fate {
		var m bridge.Arrival
		known := json.Unmarshal(row.Value.Arrival, &m) == nil
		if f.Agent != "" && strings.HasPrefix(row.Key, inboxPrefix(f.Agent)) ||
			known && (f.Message(m.ID) || f.Agent != "" && m.From == f.Agent || !f.Conversation.IsZero() &&
				m.Conversation == f.Conversation) {
			return journal.Remove
		}
		return journal.Keep
	})
}

// forget empties unread frames. The frames stay, because they are numbered.
func (t *sessionStore) forget(ctx context.Context, f *hub.Forgetting) (n int, err error) {
	here := map[string]bool{} // sessions that this node has, by key
	for _, k := range t.all() {
		k.mu.Lock()
		here[k.key] = k.lost == nil
		if k.lost == nil {
			if emptied := k.rec.empty(f); emptied > 0 {
				n += emptied
				err = t.save(ctx, k)
			}
		}
		k.mu.Unlock()
		if err != nil && !errors.Is(err, protocol.ErrMoved) {
			return n, err
		}
	}
	forgotten := map[string]bool{} // sessions of the agent
	_, err = t.rows.Sweep(ctx, "", func(row *journal.Row[recordedSession]) journal.Fate {
		if f.Agent != "" && row.Value.Agent == f.Agent {
			forgotten[row.Key] = true
		}
		if here[row.Key] {
			return journal.Keep
		}
		emptied := row.Value.empty(f)
		n += emptied
		if emptied == 0 {
			return journal.Keep
		}
		return journal.Write
	})
	if err != nil {
		return n, err
	}
	relayed, err := t.relayed(ctx, "")
	if err != nil {
		return n, err
	}
	for _, v := range relayed {
		if key, _, _ := strings.Cut(v.Key, "/"); !forgotten[key] && !isAbout(string(v.Data), f) {
			continue
		}
		if err := t.relays.Delete(ctx, v.Key, 0); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// frameIDs finds message ids in a frame: the hub's frames name their message.
var frameIDs = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}`)

// isAbout reports whether a frame names an erased message.
func isAbout(frame string, f *hub.Forgetting) bool {
	return slices.ContainsFunc(frameIDs.FindAllString(frame, -1), func(s string) bool {
		id, err := parley.ParseID(s)
		return err == nil && (f.Message(id) || id == f.Conversation && !id.IsZero())
	})
}

// empty removes the content of frames, and counts them.
func (r *recordedSession) empty(f *hub.Forgetting) (n int) {
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

// emptied gives a frame without content.
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
