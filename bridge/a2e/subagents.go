package a2e

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/journal"
)

// subagents is the capability multi_agent: a subagent is an agent of the directory, in
// its own conversation. Work delegated to it is a request, whose answer await fetches.
// All of it is in the journal's state, so that work continues while the agent is away
// and the hub restarts.
type subagents struct {
	b    *Binding
	rows *journal.Table[subagent]

	mu    sync.Mutex
	wakes map[string]map[chan struct{}]struct{} // by key
}

// subagent is the recorded form of a subagent.
type subagent struct {
	ID           string          `json:"subagent_id"`
	Name         string          `json:"name"`
	Role         string          `json:"role"`
	Status       string          `json:"status"`
	Agent        string          `json:"agent"` // of the directory
	Skill        string          `json:"skill"`
	Conversation parley.ID       `json:"conversation"`
	Request      parley.ID       `json:"request,omitzero"` // the latest
	Task         string          `json:"task,omitempty"`
	Result       json.RawMessage `json:"result,omitempty"`
	Error        string          `json:"error,omitempty"`
}

// maxSubagents is the limit of one agent; subagentFor is how long a subagent is kept.
const (
	maxSubagents = 256
	subagentFor  = 30 * 24 * time.Hour
)

var errUnknownSubagent = &protocol.Error{Code: protocol.InvalidMessage,
	Reason: "unknown_subagent", Text: "unknown subagent_id", Step: "handler", Capability: "multi_agent"}

func newSubagents(b *Binding) *subagents {
	return &subagents{b: b, rows: journal.NewTable[subagent](b.c.Journal, "a2e.subagents", 0),
		wakes: map[string]map[chan struct{}]struct{}{}}
}

func (a *subagents) key(agent, id string) string { return ownerPrefix(agent) + id }

func (a *subagents) get(ctx context.Context, agent, id string) (journal.Row[subagent], error) {
	if len(id) != 32 {
		return journal.Row[subagent]{}, errUnknownSubagent
	}
	row, err := a.rows.Get(ctx, a.key(agent, id))
	if err == nil && row.Revision == 0 {
		err = errUnknownSubagent
	}
	return row, err
}

// edit changes a subagent if f returns true.
func (a *subagents) edit(ctx context.Context, agent, id string, f func(*subagent) bool) (subagent, error) {
	row, err := a.rows.Change(ctx, a.key(agent, id), func(row *journal.Row[subagent]) (bool, error) {
		if row.Revision == 0 {
			return false, errUnknownSubagent
		}
		row.Until = a.b.c.Now().Add(subagentFor)
		return f(&row.Value), nil
	})
	return row.Value, err
}

// watch wakes waiting calls when any hub has changed their subagent.
func (a *subagents) watch(ctx context.Context) (stop func(), err error) {
	return a.rows.Watch(ctx, "", func(row journal.Row[subagent]) {
		a.mu.Lock()
		defer a.mu.Unlock()
		for c := range a.wakes[row.Key] {
			wake(c)
		}
	})
}

// Spawn implements a2e.MultiAgent: name is an agent of the directory, or a tool or
// skill of one; if several match, the role may decide.
func (a *subagents) Spawn(ctx context.Context, r *protocol.Request, s protocol.Spawn) (string, string, error) {
	agent := r.Identity.Name
	tg, ok := a.b.tools.catalogue.Tool(s.Name)
	if !ok && s.Role != "" {
		tg, ok = a.b.tools.catalogue.Tool(s.Role)
	}
	if !ok || !a.b.c.Hub.Visible(Protocol, agent, tg.Entry, tg.Skill.ID) {
		e := toError(parley.Refuse(parley.UnknownAgent, "no agent of this name here; tool/list names those there are"),
			"multi_agent")
		e.Code = protocol.InvalidMessage
		return "", "", e
	}
	others, err := a.rows.List(ctx, ownerPrefix(agent))
	if err != nil {
		return "", "", err
	}
	if len(others) >= maxSubagents {
		return "", "", &protocol.Error{Code: protocol.OutOfMemory,
			Reason: "too_many_subagents", Text: "terminate subagents that are not needed any more", Step: "handler"}
	}
	// A duplicate of the request finds its subagent.
	id := sessionKey(r.Session.ID() + "\x00spawn\x00" + r.ID)
	v := subagent{ID: id, Name: s.Name, Role: s.Role, Status: protocol.StatusReady, Agent: tg.Agent, Skill: tg.Skill.ID,
		Conversation: a.b.c.Hub.Conversation(Protocol, "multi_agent", id, agent, tg.Agent)}
	_, err = a.rows.Replace(ctx, journal.Row[subagent]{Key: a.key(agent, id), Value: v,
		Until: a.b.c.Now().Add(subagentFor)})
	if err != nil && !errors.Is(err, journal.ErrConflict) {
		return "", "", err
	}
	return id, v.Status, nil
}

// Delegate implements a2e.MultiAgent. A subagent takes one piece of work at a time: it
// takes the next once the result of the last is there.
func (a *subagents) Delegate(ctx context.Context, r *protocol.Request, d protocol.Delegation) (bool, string, error) {
	agent := r.Identity.Name
	row, err := a.get(ctx, agent, d.SubagentID)
	if err != nil {
		return false, "", err
	}
	s := row.Value
	if s.Status == protocol.StatusRunning {
		return false, s.Status, nil
	}
	m := a.b.request(r, parley.Request)
	m.Deadline = time.Time{} // no connection waits for it
	m.To, m.Skill, m.Conversation = s.Agent, s.Skill, s.Conversation
	text := d.Instruction
	if len(d.SuccessCriteria) > 0 && jsonx.Valid([]byte(text), 0) != nil {
		text += "\n\nSuccess criteria:\n- " + strings.Join(d.SuccessCriteria, "\n- ")
	}
	m.Parts = []parley.Part{parley.Text(text)}
	if m.Extensions, err = (extension{Subagent: s.ID, Task: d.TaskName, Criteria: d.SuccessCriteria}).in(); err != nil {
		return false, "", err
	}
	if m.ID, err = parley.NewID(a.b.c.Now(), rand.Reader); err != nil {
		return false, "", err
	}
	// Recorded first, so that the reply finds its request.
	taken := false
	s, err = a.edit(ctx, agent, s.ID, func(s *subagent) bool {
		if taken = s.Status != protocol.StatusRunning; taken {
			s.Status, s.Request, s.Task, s.Result, s.Error = protocol.StatusRunning, m.ID, d.TaskName, nil, ""
		}
		return taken
	})
	if err != nil || !taken {
		return false, s.Status, err
	}
	sub := a.b.submission(r, m)
	sub.Foreign = ""
	_, err = a.b.c.Hub.Accept(ctx, sub)
	if err == nil {
		return true, protocol.StatusRunning, nil
	}
	id := m.ID
	if prior, ok := errors.AsType[*hub.Prior](err); ok {
		id, err = prior.Of.Message, nil // a duplicate: that request is in flight
	}
	if _, eerr := a.edit(ctx, agent, s.ID, func(s *subagent) bool {
		if s.Request != m.ID {
			return false
		}
		s.Request = id
		if err != nil {
			s.Status, s.Error = protocol.StatusFailed, parley.AsError(err).Text
		}
		return true
	}); eerr != nil {
		return false, "", eerr
	}
	if err != nil {
		return false, "", a.b.refusal(err, r, s.Agent)
	}
	return true, protocol.StatusRunning, nil
}

// Await implements a2e.MultiAgent: it answers RUNNING before its deadline.
func (a *subagents) Await(ctx context.Context, r *protocol.Request, id string) (protocol.Outcome, error) {
	agent := r.Identity.Name
	key := a.key(agent, id)
	changed := make(chan struct{}, 1)
	a.mu.Lock()
	if a.wakes[key] == nil {
		a.wakes[key] = map[chan struct{}]struct{}{}
	}
	a.wakes[key][changed] = struct{}{}
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.wakes[key], changed)
		if len(a.wakes[key]) == 0 {
			delete(a.wakes, key)
		}
	}()
	until := time.NewTimer(timeLeft(r))
	defer until.Stop()
	call := a.b.inboxes.begin(agent, nil) // while the call waits, hubs deliver results
	defer a.b.inboxes.end(call)
	for {
		row, err := a.get(ctx, agent, id)
		if err != nil {
			return protocol.Outcome{}, err
		}
		s := row.Value
		out := protocol.Outcome{Status: s.Status, Result: json.RawMessage(s.Result), Error: s.Error}
		if s.Status != protocol.StatusRunning {
			return out, nil
		}
		if !call.announced {
			a.b.inboxes.offer(ctx, call, 0, 0, timeLeft(r))
			continue
		}
		select {
		case <-changed:
		case <-until.C:
			return out, nil
		case <-a.b.inboxes.life.Done():
			return out, nil
		case <-ctx.Done():
			return out, ctx.Err()
		}
	}
}

// List implements a2e.MultiAgent.
func (a *subagents) List(ctx context.Context, r *protocol.Request) ([]json.RawMessage, error) {
	list, err := a.rows.List(ctx, ownerPrefix(r.Identity.Name))
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(x, y journal.Row[subagent]) int { return strings.Compare(x.Key, y.Key) })
	var out []json.RawMessage
	for _, row := range list {
		v, err := json.Marshal(row.Value)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

// Terminate implements a2e.MultiAgent. Open work is cancelled if the other agent's
// protocol supports it.
func (a *subagents) Terminate(ctx context.Context, r *protocol.Request, id string) (bool, error) {
	agent := r.Identity.Name
	row, err := a.get(ctx, agent, id)
	if err != nil {
		return false, err
	}
	s := row.Value
	if s.Status == protocol.StatusRunning {
		m := a.b.request(r, parley.Cancel)
		m.InReplyTo, m.To = s.Request, s.Agent
		sub := a.b.submission(r, m)
		sub.Foreign = ""
		if _, err := a.b.c.Hub.Accept(ctx, sub); err != nil && parley.CodeOf(err) != parley.Conflict &&
			parley.CodeOf(err) != parley.Replayed {
			return false, a.b.refusal(err, r, s.Agent)
		}
	}
	if err := a.rows.Delete(ctx, row.Key, row.Revision); err != nil && !errors.Is(err, journal.ErrConflict) {
		return false, err
	}
	return true, nil
}

var _ protocol.MultiAgent = (*subagents)(nil)
